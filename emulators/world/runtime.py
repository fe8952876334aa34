"""Time, chance and scheduling of a simulated world. The same seed replays the same history.

`run_world` runs an async function on trio under a virtual clock. When every task sleeps, the clock jumps to the next
deadline, so hours cost nothing. Everything random comes from the seed: each process's ids and jitter, and the order in
which ready tasks run.

`SimulatedService` is what the simulated services have in common. `Request` is one call of theirs under way. Whoever
holds it can carry it on, so a request outlives a sender that gave up.
"""

from __future__ import annotations

import heapq
import math
import random  # noqa: TID251 - the simulated door for chance
import types
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

import anyio
import trio
from trio._core import _run as trio_run

from tiered.metadata import NS_PER_S
from tiered.testing.service import MemoryService

T = TypeVar("T")
DEADLOCK = "every task of this world waits for ever"
WALL_START_NS = 1_700_000_000 * NS_PER_S

CLOCK_ROUNDS_S = 1e-6
"""Times of several days are not exact to the last digit. The rounding error in seconds."""

LEAVES = object()
"""The coroutine of a simulated service yields this where its request leaves.

It is then sent the pause between two rows of a scan, in seconds.
"""


class VirtualClock(trio.abc.Clock):
    """A clock that stands still while anything can run, and then jumps to the next deadline.

    `sleep` is trio's sleep without a cancel scope, because a simulation mostly waits. `deadlocked` is a scope around
    the world. It is cancelled when every task waits for ever.
    """

    def __init__(self) -> None:
        self.deadlocked = trio.CancelScope()
        self._now = 0.0
        self._count = 0
        self._sleepers: list[tuple[float, int, list[trio.lowlevel.Task]]] = []

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Moves the time on. Trio asks this when no task can run. The next moment is a deadline or the end of a sleep.
        """
        runner = trio_run.GLOBAL_RUN_CONTEXT.runner
        if runner.entry_queue.queue or runner.entry_queue.idempotent_queue:
            return 0.0  # a generator that was abandoned is closed first
        if runner.waiting_for_idle:
            return 1.0  # trio does not sleep: a task that waits until all others wait goes on before the time does
        sleepers = self._sleepers
        while sleepers and not sleepers[0][2]:
            heapq.heappop(sleepers)
        wakes_at = min(deadline, sleepers[0][0]) if sleepers else deadline
        if wakes_at == math.inf:
            if self.deadlocked.cancel_called:
                raise RuntimeError(DEADLOCK)
            self.deadlocked.cancel()
            return 0.0
        self._now = now = max(self._now, wakes_at)
        while sleepers and sleepers[0][0] <= now:
            for task in heapq.heappop(sleepers)[2]:
                trio.lowlevel.reschedule(task)
        return 0.0

    async def sleep(self, seconds: float) -> None:
        asleep = [trio.lowlevel.current_task()]

        def abort(raise_cancel: object) -> trio.lowlevel.Abort:
            asleep.clear()
            return trio.lowlevel.Abort.SUCCEEDED

        self._count += 1
        heapq.heappush(self._sleepers, (self._now + seconds, self._count, asleep))
        await trio.lowlevel.wait_task_rescheduled(abort)


_clock: VirtualClock | None = None
"""That of the world that runs now. It is asked very often, and trio's own way to it is long."""


def now_s() -> float:
    """Returns the event loop's time in seconds."""
    return anyio.current_time() if _clock is None else _clock._now


async def elapse(seconds: float) -> None:
    """Lets so many seconds of the world's own time pass. No process can stop this time. It is a checkpoint even for 0.
    """
    if _clock is None:
        await anyio.sleep(seconds)  # noqa: TID251 - the simulated door for time
    elif seconds > 0:
        await _clock.sleep(seconds)
    else:
        await trio.lowlevel.checkpoint()


class SimulatedRuntime:
    """The clocks and the chance of one process.

    All its clocks follow the event loop's clock. `skew_s` sets its wall clock wrong, and may be changed at any time.

    While a process is *stopped*, its clocks show the time at which it goes on. If a timer of the event loop fires
    meanwhile, the simulated process runs, and a real one would do the same at that later time. While a process is
    *suspended*, it is stopped and its monotonic clock stands still too, so its sleeps end later by that time.
    """

    def __init__(self, seed: int | str, wall_start_ns: int = WALL_START_NS, skew_s: float = 0.0) -> None:
        self.random: random.Random = random.Random(seed)
        self.skew_s = skew_s
        self._wall_start_ns = wall_start_ns
        self._goes_on_at = 0.0
        self._suspended_s = 0.0
        self._resumes_at = 0.0

    def stop(self, seconds: float) -> None:
        """Stops from now on, for so long. If it is stopped already, the later end counts."""
        self._goes_on_at = max(self._goes_on_at, now_s() + seconds)

    def suspend(self, seconds: float) -> None:
        """Stops, and lets the monotonic clock stand still."""
        now = now_s()
        begins = max(now, self._resumes_at)
        self._suspended_s += max(0.0, now + seconds - begins)
        self._resumes_at = max(self._resumes_at, now + seconds)
        self.stop(seconds)

    def monotonic(self) -> float:
        return self.boot_time() - self._suspended_s

    def boot_time(self) -> float:
        now = now_s()
        return now if now > self._goes_on_at else self._goes_on_at

    def wall_ns(self) -> int:
        return self._wall_start_ns + round((self.boot_time() + self.skew_s) * NS_PER_S)

    async def sleep(self, seconds: float) -> None:
        ends_at, left_s = self.monotonic() + seconds, seconds
        while True:
            await elapse(max(0.0, left_s) + max(0.0, self._goes_on_at - now_s()))
            left_s = ends_at - self.monotonic()
            if left_s <= CLOCK_ROUNDS_S:
                return


_carried = False
"""Whether the code that runs now belongs to a `Request`.

It then yields `LEAVES` and its pauses to whoever carries the request.
"""


@types.coroutine
def _yield(what: object) -> Generator[object, Any, Any]:
    return (yield what)


class Request(Generic[T]):
    """One call under way. Its coroutine belongs to no task, so another task can carry it on after it has left.

            while await request.goes_on():      it stopped: `stop` is LEAVES, or a pause in seconds
                ...                             wait, as the carrier decides
            request.answer                      `goes_on` raises what the call raises
    """

    answer: T

    def __init__(self, call: Awaitable[T]) -> None:
        self.stop: object = None
        self._steps: Any = call.__await__()

    @types.coroutine
    def goes_on(self, given: float = 0.0) -> Generator[object, Any, bool]:
        """Runs the call up to its next stop. Returns False if it has ended.

        `given`: at LEAVES, the pause between two rows of a scan, in seconds.
        """
        global _carried
        step: Callable[[Any], object] = self._steps.send
        value: object = None if self.stop is None else given
        while True:
            outer, _carried = _carried, True
            try:
                trap = step(value)
            except StopIteration as end:
                self.answer = end.value
                return False
            finally:
                _carried = outer
            if trap is LEAVES or type(trap) is float:
                self.stop = trap
                return True
            try:  # anything else that it waits for belongs to the event loop of its task
                step, value = self._steps.send, (yield trap)
            except BaseException as error:  # noqa: BLE001 - passed on
                step, value = self._steps.throw, error

    @property
    def has_left(self) -> bool:
        return self.stop is LEAVES

    def wait_s(self, there_s: float) -> float:
        """Returns how many seconds it stops now, if the way to the service takes `there_s` seconds."""
        return there_s if self.has_left else cast(float, self.stop)

    def fail(self, error: BaseException) -> None:
        """Ends the call: raises `error` where it stopped, and so here."""
        self._steps.throw(error)


class SimulatedService(MemoryService):
    """A simulated service: its calls are requests that the network can hold back, and that outlive their sender."""

    async def _travel(self) -> float:
        if _carried:
            return float(await _yield(LEAVES))
        await elapse(0)
        return 0.0

    async def _pause(self, seconds: float) -> None:
        await (_yield(seconds) if _carried else elapse(seconds))


def run_world(world: Callable[[], Awaitable[T]], seed: int) -> T:
    """Runs `world` in virtual time, from 0 s on, under the schedule that `seed` chooses. Returns what it returns.

    Raises `RuntimeError` if every task of it waits for ever.
    """
    clock = VirtualClock()

    async def live() -> T:
        runner = trio_run.GLOBAL_RUN_CONTEXT.runner
        runner.instruments = {}  # type: ignore[assignment]  # nobody looks on, and a `UserDict` is asked six times a step
        runner.io_manager = _NoIO(runner)  # type: ignore[assignment]
        with clock.deadlocked:
            return await world()
        raise RuntimeError(DEADLOCK)

    with _schedule(seed), _told(clock):
        return anyio.run(live, backend="trio", backend_options={"clock": clock})


class _NoIO:
    """Stands for trio's `io_manager`: a world has no files, so the kernel is asked only if something else wakes the
    loop: an interrupt, or a generator that was abandoned.
    """

    def __init__(self, runner: Any) -> None:
        self._entries = runner.entry_queue
        self._real = runner.io_manager
        self.process_events = self._real.process_events

    def get_events(self, timeout: float) -> Any:
        return self._real.get_events(timeout) if self._entries.queue or self._entries.idempotent_queue else ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@contextmanager
def _told(clock: VirtualClock) -> Iterator[None]:
    global _clock
    outer, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = outer


class _Registered:
    """What trio's `CancelScope` does around each change of its deadline, without a generator.

    A scope is entered and left some thousand times in a world, most of them without a deadline.
    """

    __slots__ = ("_scope",)

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope: Any = scope

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        scope = self._scope
        old, new = scope._registered_deadline, scope._deadline
        if scope._cancel_status is None or scope._cancel_called:
            new = math.inf
        if old != new:
            scope._registered_deadline = new
            deadlines = trio_run.GLOBAL_RUN_CONTEXT.runner.deadlines
            if old != math.inf:
                deadlines.remove(old, scope)
            if new != math.inf:
                deadlines.add(new, scope)


@contextmanager
def _schedule(seed: int) -> Iterator[None]:
    """Makes trio's choices repeatable.

    Trio runs ready tasks in a random order, by a generator of its own. What becomes ready at once (waiters of one
    event, equal deadlines) runs in an order that follows memory addresses. There is no public way to fix either.
    Hypothesis sets these two names for the same purpose.
    """
    chance, deterministic = trio_run._r.getstate(), trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    around = trio.CancelScope._might_change_registered_deadline
    trio.CancelScope._might_change_registered_deadline = lambda scope: _Registered(scope)  # type: ignore[method-assign,assignment,return-value]
    trio_run._r.seed(seed)
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    try:
        yield
    finally:
        trio_run._r.setstate(chance)
        trio.CancelScope._might_change_registered_deadline = around  # type: ignore[method-assign]
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = deterministic  # type: ignore[misc]
