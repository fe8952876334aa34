"""Tells whoever watches a service that a call waits for this process itself, and not for the service.

    with OwnWaits(clock) as waits:          the watcher, around a call
        with own_wait(): ...                deep inside of the call: all connections are taken, a token is being renewed
    waits.over_at(began_at)                 from when on the service itself was waited for

A context variable carries it, so that the calls between the two need not know of it. Without a watcher, an `own_wait`
is noted nowhere. Tasks that a call starts belong to it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Self


class OwnWaits:
    """The waits of one call for its own process. `clock`: seconds, as the watcher measures."""

    __slots__ = ("_clock", "_ended_at", "_open", "_token")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open = 0
        self._ended_at: float | None = None
        self._token: Token[OwnWaits | None] | None = None

    def __enter__(self) -> Self:
        self._token = _watched.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None, "entered before it is left"
        _watched.reset(self._token)

    def over_at(self, began_at: float) -> float:
        """When the last of them ended, or `began_at` if there was none. While one goes on: now."""
        if self._open:
            return self._clock()
        return began_at if self._ended_at is None else max(began_at, self._ended_at)

    def begin(self) -> None:
        self._open += 1

    def end(self) -> None:
        self._open -= 1
        self._ended_at = self._clock()


_watched: ContextVar[OwnWaits | None] = ContextVar("own_waits", default=None)


class own_wait:
    """A wait for this process itself. It may be entered and left more often than it takes."""

    __slots__ = ("_open", "_waits")

    def __init__(self) -> None:
        self._waits = _watched.get()
        self._open = False

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        if self._waits is not None and not self._open:
            self._open = True
            self._waits.begin()

    def end(self) -> None:
        if self._waits is not None and self._open:
            self._open = False
            self._waits.end()
