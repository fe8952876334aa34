"""`CountedUpload`: what every upload to a bucket counts and refuses, whatever its requests are.

A payload that is longer or shorter than was declared never becomes a blob. What has ended takes nothing more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from anyio.abc import TaskGroup

from changelog.base.errors import InvalidRequestError, TieredError, UnavailableError
from tiered.metadata import Metadata


class CountedUpload:
    """`Upload` without its requests. `declared`: how many bytes it is to have; None: nobody knows."""

    session: str | None = None

    def __init__(self, name: str, declared: int | None) -> None:
        self._name = name
        self._declared = declared
        self._amended: Metadata | None = None
        self._size = 0
        self._ended = False

    def amend(self, metadata: Metadata) -> None:
        self._amended = metadata

    @property
    def _doing(self) -> str:
        return f"the upload of blob {self._name!r}"

    def _count(self, size: int) -> None:
        """Before a chunk of so many bytes is taken."""
        self._refuse_if_ended()
        self._size += size
        if self._declared is not None and self._size > self._declared:
            raise self._end(self._wrong_size("more than"))

    def _count_all(self) -> None:
        """Before the end of the payload is sent."""
        self._refuse_if_ended()
        if self._declared is not None and self._size != self._declared:
            raise self._end(self._wrong_size("not"))

    def _refuse_if_ended(self) -> None:
        if self._ended:
            raise InvalidRequestError(f"the upload of {self._name!r} has ended already; begin another")
        if (failure := self._failed()) is not None:
            raise self._end(failure)

    def _failed(self) -> Exception | None:
        """Why it cannot go on, although nobody has ended it."""
        return None

    def _end(self, error: Exception | None = None) -> Exception:
        """Drops what was not sent. Returns the error to raise."""
        self._ended = True
        return error or UnavailableError(f"{self._doing} was given up")

    def _closed(self) -> UnavailableError:
        return UnavailableError(f"{self._doing} was given up: the storage was closed")

    def _wrong_size(self, relation: str) -> InvalidRequestError:
        return InvalidRequestError(f"the payload of {self._name!r} has {self._size} bytes, {relation} the declared {self._declared}")


def cancel_soon(tasks: TaskGroup, cancel: Callable[[str], Awaitable[None]], session: str) -> None:
    """Ends a session in the background. If that fails, recovery ends it later, or the bucket does."""

    async def quietly() -> None:
        with suppress(TieredError):
            await cancel(session)

    with suppress(RuntimeError):  # the adapter is closed
        tasks.start_soon(quietly)
