"""Faults on demand: the next calls of an operation end with an error that a real store may raise.

The store itself makes these errors, from what its tiers do to it. So what is known after each of them is true, and
`outcome` tells what became of a change.

    nothing happened    refused where an operation takes its slot, before anything is sent
    unknown             the row operation takes effect or does not, its answer is lost, and the row cannot be asked
    torn                `read`: the bytes of an object that `get` opened end before the last one, with an error
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from changelog.base.errors import (
    ConfigurationError,
    CorruptRecordError,
    InvalidRequestError,
    TieredError,
    UnavailableError,
    UnconfirmedError,
)
from changelog.base.observe import Observer
from tiered.errors import AtCapacityError, DanglingTombstoneError, OutcomeUnknownError, ServiceAwayError
from tiered.payload.chunks import close_generator
from tiered.services.backends import HighVolumeBackend
from tiered.services.breaker import TRIED_EVERY_S
from tiered.storage import TieredStorage
from tiered.text import check_flags, quoted

READ = "read"
READS = {"get", "head", "list", "sign_get", "parts", "sign_part", READ}
NAMES = {"complete_multipart": "complete", "abort_multipart": "abort", "list_parts": "parts"}
"""The methods of an open upload whose operations an `Observer` knows by other names."""

OF_UPLOADS = {"upload_part", "append", "sign_part", *NAMES.values()}
NOT_FAULTY = {
    "aclose", "outcome", "put_many", "get_many", "delete_many", "list_page", "compare", "dangling_found", "services_away", "multipart",
    "resumable", "begin_resumable", "sign_put",
}
OPERATIONS = {name for name in vars(TieredStorage) if not name.startswith("_")} - NOT_FAULTY | {READ} | OF_UPLOADS
"""What `fail` takes. The items of a bulk call are operations of its single name."""

NEVER_UNKNOWN = READS | {"begin_multipart", "upload_part", "append"}
"""What writes no row: `UnavailableError` says all there is."""

READ_ERRORS = (UnavailableError, CorruptRecordError)
"""How the reading of an object that was opened can end."""

MAY_DANGLE = READS | {"copy", "rename", "update_metadata", "set_expiry"}
"""What reads the row of an object, and then its blob."""

ERRORS = (UnavailableError, AtCapacityError, ServiceAwayError, CorruptRecordError, DanglingTombstoneError, OutcomeUnknownError)


@dataclass(slots=True)
class _Fault:
    error: type[TieredError]
    took_effect: bool
    calls: int
    is_sent: bool = False


class Faults:
    """The faults that a storage in memory is to have. `made`: how many it has had, by operation."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()
        self._waiting: dict[str, list[_Fault]] = {}

    def fail(self, operation: str, error: type[TieredError] = UnavailableError, *, calls: int = 1, took_effect: bool = False) -> None:
        """Lets the next `calls` calls of an operation end with this error. Faults of one operation queue up.

        `operation`: the name of a method, such as `"put"`, or `"read"`: the reading of an object that `get` opened. Of
        an open upload: `"upload_part"`, `"append"`, `"parts"` (and `status`), `"sign_part"`, `"complete"` (and
        `finish`) and `"abort"` (and `cancel`).
        `error`: `UnavailableError`, `AtCapacityError`, `ServiceAwayError` (of the rows, with `retry_after_s` 2),
        `CorruptRecordError`, `OutcomeUnknownError` (for what writes a row) or `DanglingTombstoneError` (for what reads,
        and for `copy`, `rename`, `update_metadata` and `set_expiry`). A `read` takes `UnavailableError` and
        `CorruptRecordError`. `took_effect`: whether a change of unknown outcome happened.

        `InvalidRequestError`: an operation cannot fail in this way.
        """
        if not isinstance(operation, str) or operation not in OPERATIONS:
            raise InvalidRequestError(f"there is no operation {quoted(operation)}: pass one of {', '.join(sorted(OPERATIONS))}")
        if error not in ERRORS:
            raise InvalidRequestError(f"no call ends with {quoted(error)} on demand: pass one of {', '.join(e.__name__ for e in ERRORS)}")
        unknown = error is OutcomeUnknownError
        if (
            (unknown and operation in NEVER_UNKNOWN) or (error is DanglingTombstoneError and operation not in MAY_DANGLE)
            or (operation == READ and error not in READ_ERRORS)
        ):
            raise InvalidRequestError(f"{operation} never raises {error.__name__}")
        check_flags(took_effect=took_effect)
        if took_effect and not unknown:
            raise InvalidRequestError(f"after {error.__name__} nothing has happened: took_effect is for OutcomeUnknownError")
        if type(calls) is not int or calls < 1:
            raise InvalidRequestError(f"calls is {quoted(calls)}: pass how many calls are to fail, at least 1")
        self._waiting.setdefault(operation, []).append(_Fault(error, took_effect, calls))

    def clear(self) -> None:
        """Forgets all faults that no call has had yet."""
        self._waiting.clear()

    # --- for the storage

    def take(self, operation: str) -> _Fault | None:
        """The fault that this call has, if any."""
        waiting = self._waiting.get(operation)
        if not waiting:
            return None
        fault = waiting[0]
        fault.calls -= 1
        if not fault.calls:
            waiting.pop(0)
        self.made[operation] += 1
        return fault


# --- where they happen ---------------------------------------------------------------------------

_operation: ContextVar[str] = ContextVar("tiered.testing.operation", default="")
_unanswered: ContextVar[_Fault | None] = ContextVar("tiered.testing.unanswered", default=None)


class Naming(Observer):
    """Remembers which operation a task carries out."""

    def operation(self, name: str, link: str | None = None) -> AbstractContextManager[object]:
        return _named(name)


@contextmanager
def _named(name: str) -> Iterator[None]:
    token = _operation.set(name)
    unanswered = _unanswered.set(None)
    try:
        yield
    finally:
        _operation.reset(token)
        _unanswered.reset(unanswered)


def strike(faults: Faults) -> None:
    """Raises the fault of the operation that begins. One of unknown outcome waits for the operation's row operation."""
    operation = NAMES.get(_operation.get(), _operation.get())
    fault = faults.take(operation)
    if fault is None:
        return
    if fault.error is OutcomeUnknownError:
        _unanswered.set(replace(fault))
        return
    message = f"{operation} was told to fail, by a test"
    raise ServiceAwayError(message, "high_volume", TRIED_EVERY_S) if fault.error is ServiceAwayError else fault.error(message)


class FaultyRows:
    """Rows in memory whose writes may get no answer: as `_unanswered` says in the operation that makes them."""

    def __init__(self, rows: HighVolumeBackend) -> None:
        self._rows = rows
        for name, _ in inspect.getmembers(HighVolumeBackend, inspect.iscoroutinefunction):
            setattr(self, name, self._faulty(name, getattr(rows, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def _faulty(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        if name in {"scan", "redirects", "redirects_at", "boundaries", "touch", "reserve"}:
            return call

        async def faulty(*args: Any, **named: Any) -> Any:
            fault = _unanswered.get()
            is_first = fault is not None and not fault.is_sent
            if fault is None or (is_first and (name == "read" or (name == "settle" and _operation.get() != "abort_multipart"))):
                return await call(*args, **named)
            lost = f"the answer to {name} was lost, by order of a test"
            fault.is_sent = True
            if name == "read" or (name == "settle" and not is_first):
                raise ConfigurationError(lost)  # it is not repeated, so nobody waits
            if fault.took_effect:
                done = await call(*args, **named)
                if done is False and name != "settle":
                    fault.is_sent = False
                    return done  # the row refused, and the change goes another way
            # A swap is repeated after `UnconfirmedError`, and each repetition waits. This ends it as unknown at once.
            raise UnconfirmedError(lost) if name.endswith("inline") else ConfigurationError(lost)

        return faulty


async def torn(chunks: AsyncIterator[bytes], error: type[TieredError]) -> AsyncGenerator[bytes, None]:
    """The chunks of an object, without the last byte of the first one, and then an error."""
    try:
        if len(chunk := await anext(chunks, b"")) > 1:
            yield chunk[:-1]
        raise error("the bytes were cut off, by order of a test; get the object again")
    finally:
        await close_generator(chunks)
