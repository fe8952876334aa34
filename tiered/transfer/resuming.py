"""What an upload goes on with after it was cut off: its bytes again, and how long it tries.

A payload that can be read anew (a buffer, a regular file) holds nothing here. Of any other, the last `HELD_BYTES` that
were sent are held, if the memory that all uploads of a bucket share has room for them: the service has got at least as
far, unless a lot was on its way. What was changed meanwhile is noticed by the checksum of the whole.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from changelog.base.errors import TieredError, UnavailableError, UnconfirmedError
from changelog.base.events import events
from changelog.base.runtime import Runtime
from tiered.errors import AtCapacityError
from tiered.payload.chunks import Chunk, Reread
from tiered.services.retry import backoff_s

T = TypeVar("T")

HELD_BYTES = 8 * 1024 * 1024
"""What may be on its way: in the buffers of a connection over a long way, and at the service."""


_PASSING = ("", "408", "429", "500", "502", "503", "504")
"""The codes of errors after which a session may yet be begun. Empty: there was no answer."""


@dataclass(slots=True)
class Resuming:
    """How the uploads of a bucket go on. `budget_s`: for so long without progress; 0: not at all.

    `memory_bytes`: what all of them may hold of their payloads together. `held`: how many bytes they do.
    """

    runtime: Runtime
    budget_s: float
    memory_bytes: int
    held: int = 0

    def has_room(self, size: int) -> bool:
        return self.held + size <= self.memory_bytes

    def hold(self, size: int) -> None:
        """Takes so many bytes of the memory, or gives them back if negative."""
        self.held += size

    async def begin(self, call: Callable[[], Awaitable[T]], words: Collection[str] = (), held: int = 0) -> T:
        """Begins a session, and another one if that fails. If an answer was lost, nobody knows the first, and it ends
        by itself. `words`: what the service says, besides a status, where it may be begun later. `held`: how many bytes
        its upload holds, from now on.
        """
        self.hold(held)
        try:
            return await self.try_on(call, lambda error: error.code not in _PASSING and error.code not in words)
        except BaseException:
            self.hold(-held)
            raise

    async def try_on(
        self, call: Callable[[], Awaitable[T]], is_over: Callable[[TieredError], bool], progress: Callable[[], int] = lambda: 0,
        part: int | None = None,
    ) -> T:  # fmt: skip
        """Makes the call, and again until the budget has passed since it failed first, or since `progress` grew.

        `is_over`: an error after which it is not made again. `part`: what it uploads, for the log.
        """
        clock, ends_at, failures, most = self.runtime.monotonic, -math.inf, 0, 0
        while True:
            try:
                return await call()
            except (UnavailableError, UnconfirmedError) as error:
                is_ours = isinstance(error, AtCapacityError) or error.heard is False
                if failures == 0 or progress() > most:
                    ends_at, failures, most = clock() + self.budget_s, 0, progress()
                failures += 1
                wait_s = backoff_s(self.runtime, failures)
                if is_ours or is_over(error) or clock() + wait_s >= ends_at:
                    raise
                if failures == 1:
                    events.warning("upload_cut_off", error, part=part)
            await self.runtime.sleep(wait_s)


class SentBytes:
    """The bytes that were sent, as far as they can be had again. `size`: how many were sent."""

    def __init__(self) -> None:
        self.size = 0
        self.reread: Reread | None = None
        self._held: deque[Chunk] = deque()
        self._first = 0
        self._held_max = 0

    def hold(self, bytes_max: int) -> None:
        """From now on, holds the last so many bytes."""
        self._held_max = bytes_max
        if not bytes_max:
            self._held.clear()

    def add(self, chunk: Chunk) -> None:
        self.size += len(chunk)
        if not self._held_max:
            return
        self._held.append(chunk)
        while self.size - self._first - len(self._held[0]) >= self._held_max:
            self._first += len(self._held.popleft())

    def can_go_on_from(self, offset: int) -> bool:
        return offset == self.size or self.reread is not None or (bool(self._held) and offset >= self._first)

    async def again(self, offset: int) -> AsyncIterator[Chunk]:
        """Yields the bytes from `offset` on that were sent before this is called."""
        if self.reread is not None and offset < self.size:
            async for chunk in self.reread(offset, self.size):
                yield chunk
            return
        at = self._first
        for chunk in list(self._held):
            if at + len(chunk) > offset:
                yield memoryview(chunk)[max(0, offset - at) :]
            at += len(chunk)
