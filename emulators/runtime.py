"""Time, chance and scheduling of a simulated world: the same seed replays the same history.

`run_world` runs an async function on trio under a virtual clock: when every task sleeps, the clock jumps to the
next deadline, so hours cost nothing. All that is random comes from the seed: each process's ids and jitter, and
the order in which tasks that are ready run. `Simulated` is what the simulated services have in common.
"""

from __future__ import annotations

import random  # noqa: TID251 - the simulated door for chance
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import anyio
from trio._core import _run as trio_run
from trio.testing import MockClock

from changelog.runtime import Runtime
from tiered.metadata import NS_PER_MS, NS_PER_S

T = TypeVar("T")
Observer = Callable[[str, str], None]
"""Told of an effect as it happens: the call (`rows.swap`) and what it changed (a path, a blob's name, a key)."""

WALL_START_NS = 1_700_000_000 * NS_PER_S

travel_s: ContextVar[float] = ContextVar("travel_s", default=0.0)
"""How long a request of this task is under way between leaving its client and arriving at its service, in seconds."""


class SimulatedRuntime:
    """One process's clocks and chance. All follow the event loop's clock; `skew_s` sets its wall clock wrong."""

    def __init__(self, seed: int | str, wall_start_ns: int = WALL_START_NS, skew_s: float = 0.0) -> None:
        self.random: random.Random = random.Random(seed)
        self._wall_start_ns = wall_start_ns + round(skew_s * NS_PER_S)

    def monotonic(self) -> float:
        return anyio.current_time()

    def boot_time(self) -> float:
        return anyio.current_time()

    def wall_ns(self) -> int:
        return self._wall_start_ns + round(anyio.current_time() * NS_PER_S)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)  # noqa: TID251 - the simulated door for time


class Simulated:
    """A simulated service. `runtime` is its own clock, the server's; `observers` are told of every effect.

    Every call leaves its client, travels (at least a checkpoint), and then has its whole effect at once.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.observers: list[Observer] = []
        self._runtime = runtime

    async def _travel(self) -> None:
        await self._runtime.sleep(travel_s.get())

    def _took_effect(self, call: str, what: str) -> None:
        for observe in self.observers:
            observe(call, what)

    def _now_ms(self) -> int:
        return self._runtime.wall_ns() // NS_PER_MS


def run_world(world: Callable[[], Awaitable[T]], seed: int) -> T:
    """Runs `world` in virtual time, from 0 s on, under the schedule that `seed` chooses. Returns what it returns."""
    with _schedule(seed):
        return anyio.run(world, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


@contextmanager
def _schedule(seed: int) -> Iterator[None]:
    """Makes trio's choices repeatable.

    Trio runs what is ready in a random order, by a generator of its own, and what becomes ready at once (waiters
    of one event, equal deadlines) in an order that follows memory addresses. There is no public way to fix
    either; these two names are what Hypothesis sets for the same purpose.
    """
    chance, deterministic = trio_run._r.getstate(), trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    trio_run._r.seed(seed)
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    try:
        yield
    finally:
        trio_run._r.setstate(chance)
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = deterministic  # type: ignore[misc]
