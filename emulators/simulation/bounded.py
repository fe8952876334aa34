"""Runs every schedule of the real code with few delays: two writers, a recoverer, a reader, one object, one fault.

    scenario   what the writers do, and what is there before           put_large+delete on large
    schedule   where a process is delayed (see `conductor`), and       : delays at 5, 11;
               which call goes wrong, and how                          writer-1 CRASH_BEFORE rows.swap #1

Nothing else is left to chance, so such a line replays its schedule. Time stands still while any process has a call to
make, and a wait before a call is repeated ends at once. So no lease runs out, the recoverer treats every entry as
stale, and nothing depends on how long anything takes. Some schedules are not run, because another schedule with no more
delays gives all others the same result:

    a delay before a call that nobody else can tell from its absence    a delay before the process's next call
    a delay between the begin of an operation and its first call        a delay before the begin
    the death of a process that was delayed just before                 its death without that delay
    a death between an effect and its answer                            a death before the process's next call

*Failure*: `explore` collects violations and raises none. Those with the fewest choices come first.
"""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, cast

import anyio

from changelog.base.errors import InvalidRequestError
from changelog.base.runtime import SystemRuntime
from changelog.change import LOG_PREFIX
from changelog.log import LOG_END, ChangeLog, KeyRange
from emulators.simulation.conductor import BEGIN, Conductor, Question
from emulators.simulation.schedules import ROUND, Scenario, Schedule, Wrong, scenario_named, scenarios, schedule_of
from emulators.world.checker import InvariantViolation
from emulators.world.client import Client
from emulators.world.code import TODAY, Code
from emulators.world.deployment import SETTINGS, World
from emulators.world.faults import ONCE, Mode, Plan, Process, Travel, no_faults, no_time
from emulators.world.ghost import acts
from emulators.world.history import WriteAnswer
from emulators.world.runtime import SimulatedRuntime, run_world
from recovery.loop import RecoveryLoop
from tiered.errors import DanglingTombstoneError
from tiered.object_id import ObjectId
from tiered.settings import RecoverySettings

SEED = 1
OBJECT = ObjectId.create("attachments", "shared", {"org": "17"})
SMALL, LARGE = 50, 500
READS = PASSES = 2
WAIT_MAX_S = 1.0
"""Seconds. Waits before the first repetitions are shorter. Timers that repeat for ever are longer."""
TOO_LONG_S = 7200.0

ONE_AT_A_TIME = SETTINGS.model_copy(update={"recovery": RecoverySettings(concurrency_max=1)})

AHEAD_MS = round(SETTINGS.lease.expiry_s * 1000) + 1

CRASHES = (Mode.CRASH_BEFORE,)
UNTOLD = (Mode.LATE, Mode.LOST, Mode.DUPLICATED)

MUTATING = frozenset({
    "rows.put_inline", "rows.delete_inline", "rows.swap", "rows.settle", "upload.finalise", "log.record", "log.forget", "log.release",
    "blobs.cancel", "blobs.delete",
})  # fmt: skip


# --- the world -----------------------------------------------------------------------------------


class _HastyRuntime(SimulatedRuntime):
    """A runtime that does not wait before a call is repeated.

    The schedule decides whether others go on in the meantime.
    """

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds if seconds > WAIT_MAX_S else 0)


class _HastyLog:
    """The log as a recoverer sees it: all entries are stale, for the clock is a lease ahead; one range has all keys.
    """

    def __init__(self, log: ChangeLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def announce(self, instance: str) -> int:
        return await self._log.announce(instance) + AHEAD_MS

    async def now_ms(self) -> int:
        return await self._log.now_ms() + AHEAD_MS

    def ranges(self) -> Sequence[KeyRange]:
        return [KeyRange(LOG_PREFIX, LOG_END)]


class _HastyWorld(World):
    """A world in which nobody waits: not before a repetition, and not for a lease to run out."""

    def process(
        self, name: str, plan: Plan = no_faults, skew_s: float = 0.0, travel: Travel = no_time, code: Code = TODAY
    ) -> Process:
        return Process(name, _HastyRuntime(f"{self.seed}/{name}", skew_s=skew_s), self.network, plan, travel, code)

    def recovery(self, process: Process, shards: int | None = None) -> RecoveryLoop:
        log = cast(ChangeLog, _HastyLog(self.log_of(process, shards)))
        return RecoveryLoop(self.tiers_of(process), log, process.runtime, ONE_AT_A_TIME)

    def begin_as(self, found: World) -> None:
        """Begins with what the other world holds, and nothing under way."""
        self.rows.states |= found.rows.states
        self.rows.won |= deepcopy(found.rows.won)
        self.blobs.blobs |= found.blobs.blobs
        for write in found.history.writes:
            again = self.history.begin_write(write.path, write.value)
            with acts(again):
                self.watch.ghost.took_effect(write.path)
            self.history.end_write(again, write.answer)


@cache
def _before(scenario: Scenario) -> World:
    """Returns the world as an earlier writer left it."""

    async def put() -> World:
        async with _HastyWorld(SEED, sessions=scenario.sessions) as world:
            if scenario.before != "absent":
                async with world.client(world.process("earlier")) as client:
                    assert await client.put(OBJECT, "old", SMALL if scenario.before == "small" else LARGE) is WriteAnswer.OK
        return world

    return run_world(put, SEED)


@dataclass(frozen=True, slots=True)
class Ran:
    """One schedule that was run. `violation` None: all invariants hold."""

    schedule: Schedule
    questions: Sequence[Question]
    violation: InvariantViolation | None

    @property
    def trace(self) -> tuple[tuple[str, str], ...]:
        """Which process made which call that others can see, in order."""
        made = (asked for asked in self.questions if asked.is_visible and not asked.delayed)
        return tuple((asked.process, asked.point) for asked in made if not self._died_before(asked))

    def _died_before(self, asked: Question) -> bool:
        wrong = self.schedule.wrong
        return wrong is not None and wrong.mode is Mode.CRASH_BEFORE and (wrong.process, wrong.point) == (asked.process, asked.point)


def run(schedule: Schedule) -> Ran:
    """Runs a schedule.

    An error that is neither a violation nor a valid answer to a caller is raised, with the schedule in its notes.
    """
    conductor, found, violation = Conductor(ROUND, schedule.delays), _before(schedule.scenario), None
    try:
        run_world(lambda: _run(schedule, conductor, found), SEED)
    except InvariantViolation as broken:
        violation = broken
    except Exception as error:
        error.add_note(str(schedule))
        raise
    return Ran(schedule, conductor.questions, violation)


async def _run(schedule: Schedule, conductor: Conductor, found: World) -> None:
    async with _HastyWorld(SEED, sessions=schedule.scenario.sessions) as world:
        world.begin_as(found)
        lost = await _conduct(world, schedule, conductor)
        if world.log.stored or not world.network.quiet:
            await world.drain()
        async with world.client(world.process("afterwards")) as client:
            lost += await _get(client)
        world.verify()
        for sentence in lost:
            raise InvariantViolation("I1 no dangling", sentence, world.network.trace)


async def _conduct(world: World, schedule: Schedule, conductor: Conductor) -> list[str]:
    """Lets all four live at once, call by call. After that, what is still under way may arrive.

    Returns what the reader found lost.
    """
    lost: list[str] = []
    scenario, world.network.turn = schedule.scenario, conductor.turn
    lives: dict[str, Callable[[Process], Any]] = {
        "writer-1": partial(_write, world, conductor, scenario.first),
        "writer-2": partial(_write, world, conductor, scenario.second),
        "recoverer": partial(_recover, world),
        "reader": partial(_read, world, conductor, lost),
    }
    with anyio.fail_after(TOO_LONG_S):
        async with anyio.create_task_group() as conducting:
            conducting.start_soon(conductor.run)
            async with anyio.create_task_group() as living:
                for name, life in lives.items():
                    process = world.process(name, schedule.plan(name))
                    living.start_soon(process.run, partial(life, process))
            conducting.cancel_scope.cancel()
    conductor.end()
    return lost


async def _write(world: World, conductor: Conductor, operation: str, process: Process) -> None:
    async with world.client(process) as client:
        await conductor.begin(process.name, operation)
        if operation == "delete":
            await client.delete(OBJECT)
        else:
            await client.put(OBJECT, process.name, LARGE if operation == "put_large" else SMALL)


async def _recover(world: World, process: Process) -> None:
    recovery = world.recovery(process)
    for _ in range(PASSES):
        await recovery.run_once()


async def _read(world: World, conductor: Conductor, lost: list[str], process: Process) -> None:
    async with world.client(process) as client:
        for number in range(READS):
            await conductor.begin(process.name, f"get #{number + 1}")
            lost += await _get(client)


async def _get(client: Client) -> list[str]:
    try:
        await client.get(OBJECT)
    except DanglingTombstoneError as error:
        return [str(error)]
    return []


# --- all of them ---------------------------------------------------------------------------------


@dataclass(slots=True)
class ExploredSchedules:
    """What was explored. `traces`: the different orders of calls that others can see.

    `cut`: the budget did not suffice for all.
    """

    schedules: int = 0
    traces: set[tuple[tuple[str, str], ...]] = field(default_factory=set, repr=False)
    violations: list[Ran] = field(default_factory=list)
    cut: bool = False

    @property
    def distinct_traces(self) -> int:
        return len(self.traces)


def each(scenario: Scenario, delays_max: int, wrongs: Collection[Mode] = (), victims: Collection[str] = ROUND[:1]) -> Iterator[Ran]:
    """Runs every schedule with few delays, in which at most one call goes wrong.

    There are at most `delays_max` delays, and at most one call of one of the `victims` goes wrong, in one of the ways
    `wrongs`. Schedules with fewer choices come first. The questions that a schedule was asked tell which further
    schedules there are.
    """
    left = deque([Schedule(scenario)])
    while left:
        ran = run(left.popleft())
        yield ran
        left.extend(_further(ran, delays_max, wrongs, victims))


def explore(
    scenario: Scenario, delays_max: int, wrongs: Collection[Mode] = (), budget: int | None = None, victims: Collection[str] = ROUND[:1]
) -> ExploredSchedules:
    """Runs `each` and sums up. `budget`: how many schedules at most."""
    explored = ExploredSchedules()
    for ran in each(scenario, delays_max, wrongs, victims):
        if explored.schedules == budget:
            explored.cut = True
            break
        explored.schedules += 1
        explored.traces.add(ran.trace)
        if ran.violation is not None:
            explored.violations.append(ran)
    return explored


def replay(text: str) -> Ran:
    """Runs the schedule that one line describes. Raises `InvalidRequestError` if the line describes none."""
    return run(schedule_of(text))


def _further(ran: Ran, delays_max: int, wrongs: Collection[Mode], victims: Collection[str]) -> Iterator[Schedule]:
    """Yields the schedules that have one choice more than this one, made after all of its own."""
    schedule, delayed = ran.schedule, set[tuple[str, str]]()
    last = max([*schedule.delays, _number_of(schedule.wrong, ran.questions)], default=0)
    for number, asked in enumerate(ran.questions, 1):
        if asked.delayed:
            delayed.add((asked.process, asked.point))
        if number <= last:
            continue
        if asked.is_open and len(schedule.delays) < delays_max:
            yield replace(schedule, delays=(*schedule.delays, number))
        if schedule.wrong is None and asked.process in victims:
            for mode in wrongs:
                if _makes_a_difference(mode, asked, (asked.process, asked.point) in delayed):
                    yield replace(schedule, wrong=Wrong(asked.process, asked.point, mode))


def _number_of(wrong: Wrong | None, questions: Sequence[Question]) -> int:
    """Returns the number of the question for the call that went wrong. 0: no call did."""
    if wrong is None:
        return 0
    made = (wrong.process, wrong.point)
    return next(number for number, asked in enumerate(questions, 1) if (asked.process, asked.point) == made and not asked.delayed)


def _makes_a_difference(mode: Mode, asked: Question, was_delayed: bool) -> bool:
    if asked.point.startswith(BEGIN) or not asked.is_visible:
        return False
    if mode in (Mode.CRASH_BEFORE, Mode.CRASH_AFTER):
        return mode is Mode.CRASH_AFTER or not was_delayed
    return asked.call in MUTATING and (mode is not Mode.DUPLICATED or asked.call not in ONCE)


# --- on the command line -------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None, write: Callable[[str], object] = sys.stdout.write) -> int:
    """Explores all scenarios, or replays one schedule. Returns 0 if no violation was found, else 1."""
    parser = ArgumentParser("python -m emulators.simulation.bounded", description="every schedule with few delays, on the real code")
    parser.add_argument("--delays", type=int, default=2, help="at most so many, beside a death; beside another fault at most one (2)")
    parser.add_argument("--scenario", help="only this one, as in 'put_large+delete on large'")
    parser.add_argument("--replay", help="run the one schedule that this line describes, and show its questions")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.replay is not None:
            return _show(replay(chosen.replay), write)
        named = scenarios() if chosen.scenario is None else [scenario_named(chosen.scenario)]
    except InvalidRequestError as error:
        parser.error(str(error))
    return _show_all(named, chosen.delays, write)


def _show(ran: Ran, write: Callable[[str], object]) -> int:
    for number, asked in enumerate(ran.questions, 1):
        write(f"{number:4} {asked}\n")
    write(f"{ran.violation or 'no violation'}\n")
    return int(ran.violation is not None)


def _show_all(named: Sequence[Scenario], delays_max: int, write: Callable[[str], object]) -> int:
    """Writes a line for each scenario and kind of fault, with the first violation in full. Then writes the sum."""
    clock, schedules, violations = SystemRuntime(), 0, 0
    began = clock.monotonic()
    for scenario in named:
        for wrongs, victims, delays in ((CRASHES, ("writer-1", "recoverer"), delays_max), (UNTOLD, ("writer-1",), min(1, delays_max))):
            explored = explore(scenario, delays, wrongs, victims=victims)
            schedules, violations = schedules + explored.schedules, violations + len(explored.violations)
            write(
                f"{scenario}, {delays} delays, {'|'.join(mode.name for mode in wrongs)}: {explored.schedules} schedules,"
                f" {explored.distinct_traces} traces, {len(explored.violations)} violations\n"
            )
            for ran in explored.violations[:1]:
                write(f"    {ran.schedule}\n    {ran.violation}\n")
    per_s = schedules / (clock.monotonic() - began)
    write(f"{len(named)} scenarios: {schedules} schedules, {violations} violations; {per_s:.0f} schedules a second\n")
    return int(violations > 0)


if __name__ == "__main__":
    logging.getLogger("tiered").disabled = True  # the product logs what each death leaves behind
    sys.exit(main())
