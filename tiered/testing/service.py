"""What the services in memory have in common: how a call reaches them, and who is told of its effects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from anyio.lowlevel import checkpoint

from changelog.base.runtime import Runtime
from tiered.metadata import NS_PER_MS

T = TypeVar("T")
Observer = Callable[[str, str], None]
"""Told of an effect as it happens: the call (`rows.swap`) and what it changed (a path, a blob's name, a key)."""


class MemoryService:
    """A service in memory. `runtime` is the server's clock. `observers` are told of every effect.

    Every call leaves its client, travels (at least a checkpoint), and then has its whole effect at once. A subclass may
    let it travel longer, and may let a scan or a renewal work on each row at another moment.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.observers: list[Observer] = []
        self._runtime = runtime

    async def _travel(self) -> float:
        """Travels to the service. Returns the pause between two rows of a scan, in seconds. 0: it reads all at once."""
        await checkpoint()
        return 0.0

    async def _pause(self, seconds: float) -> None:
        """Pauses between two rows of one call."""

    async def _read_in_order(
        self, stored: Mapping[str, object], start: str, within: Callable[[str], bool], read: Callable[[str], T | None], limit: int
    ) -> list[T]:
        """Reads up to `limit` names from `start` on, in order, and returns what `read` makes of them, without None.

        The names may change between two readings.
        """
        pause_s = await self._travel()
        found: list[T] = []
        names = deque(sorted(name for name in stored if name >= start and within(name)))
        while names and len(found) < limit:
            name = names.popleft()
            if (item := read(name)) is not None:
                found.append(item)
            if pause_s:
                await self._pause(pause_s)
                names = deque(sorted(each for each in stored if each > name and within(each)))
        return found

    def _some(self, garbage: Sequence[T], limit: int) -> Sequence[T]:
        """Chooses what is collected now. The rest is collected later, in an order that nobody may rely on."""
        return garbage if len(garbage) <= limit else self._runtime.random.sample(garbage, limit)

    def _took_effect(self, call: str, what: str) -> None:
        for observe in self.observers:
            observe(call, what)

    def _now_ms(self) -> int:
        return self._runtime.wall_ns() // NS_PER_MS
