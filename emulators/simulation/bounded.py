"""Every schedule of the real code with at most so many delays: two writers, a recoverer, a reader, and one thing that goes wrong.

    round   writer-1 -> writer-2 -> recoverer -> reader -> network (what is late) -> writer-1 ...

    go on   the process whose turn it is makes its next call; it keeps its turn until it has ended or waits
    delay   instead, its call is postponed: the turn goes to the next in the round that has a call to make

This is delay-bounded scheduling (Emmi, Qadeer, Rakamarić, POPL 2011): each schedule is a few delays away from one
deterministic schedule, few delays find most bugs, and all schedules with few of them can be run. A question is who makes
the next call; questions are numbered from 1, and a schedule is where the answer is *delay*, and the call of writer-1 that
goes wrong, if any. Nothing else is left to chance, so a schedule is replayed from one line:

    put_large+delete on large: delays at 5, 11; writer-1 CRASH_BEFORE rows.swap #1

Time stands still as long as anyone has a call to make, and short waits (before a call is repeated) end at once; so no lease runs out,
and the recoverer takes any entry for stale. What need not be tried, because another schedule with no more delays comes to the same:

    a delay before a call that nobody else can tell from its absence    the same delay before the process's next call
    a delay between the begin of an operation and its first call        the same delay before the begin
    a death of a process that was delayed meanwhile                     its death before the delay
    a death between an effect and its answer                            a death before the process's next call

*Failure*: `explore` collects violations, the one with the fewest choices first; it raises for none.
"""

from __future__ import annotations

import itertools
import re
import sys
from argparse import ArgumentParser
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self, cast

import anyio

from changelog.errors import InvalidRequestError
from changelog.log import LOG_END, LOG_PREFIX, ChangeLog, KeyRange
from emulators.checker import Answer, InvariantViolation
from emulators.faults import Fault, Mode, Plan, Process, no_faults
from emulators.runtime import SimulatedRuntime, run_world
from emulators.world import SETTINGS, Client, World
from recovery.loop import RecoveryLoop
from tiered.errors import DanglingTombstoneError
from tiered.object_id import ObjectId
from tiered.settings import RecoverySettings

SEED = 1
OBJECT = ObjectId.create("attachments", "shared", {"org": "17"})
SMALL, LARGE = 50, 500
ROUND = ("writer-1", "writer-2", "recoverer", "reader", "network")
VICTIM = "writer-1"
BEGIN = "begin "
READS = PASSES = 2
WAIT_MAX_S = 1.0
"""Waits before a repetition are shorter, and timers that tick for ever are longer."""
TOO_LONG_S = 7200.0

ONE_AT_A_TIME = SETTINGS.model_copy(update={"recovery": RecoverySettings(concurrency_max=1)})

OPERATIONS = ("put_large", "put_small", "delete")
BEFORE = ("absent", "small", "large")

INVISIBLE = frozenset({"blobs.open_upload", "upload.write", "log.announce", "reader.aclose"})
"""Calls that change nothing another process can see, and whose answer does not depend on another."""

CRASHES = (Mode.CRASH_BEFORE,)
UNTOLD = (Mode.LATE, Mode.LOST, Mode.DUPLICATED)
ONCE = frozenset({"rows.put_inline", "rows.delete_inline", "upload.finalise"})
"""Calls that no client sends twice, so that no network has two of them to deliver."""
MUTATING = ONCE | {"rows.swap", "rows.settle", "log.record", "log.forget", "log.release", "blobs.cancel", "blobs.delete"}


# --- what is run ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the two writers do at once, and what they find. `sessions`: how large payloads are uploaded."""

    first: str
    second: str
    before: str
    sessions: bool = True

    def __str__(self) -> str:
        return f"{self.first}+{self.second} on {self.before}" + ("" if self.sessions else " in one request")

    @classmethod
    def parse(cls, text: str) -> Self:
        for scenario in scenarios():
            if str(scenario) == text:
                return cls(scenario.first, scenario.second, scenario.before, scenario.sessions)
        raise InvalidRequestError(f"{text!r} is no scenario; name one such as 'put_large+delete on large in one request'")


def scenarios() -> list[Scenario]:
    """All of them; sessions make a difference to large puts only."""
    return [
        Scenario(first, second, before, sessions)
        for sessions in (True, False)
        for before in BEFORE
        for first in OPERATIONS
        for second in OPERATIONS
        if sessions or "put_large" in (first, second)
    ]


@dataclass(frozen=True, slots=True)
class Schedule:
    """`delays`: numbers of questions, ascending. `point` and `mode`: the call of writer-1 that goes wrong, and how."""

    scenario: Scenario
    delays: tuple[int, ...] = ()
    point: str | None = None
    mode: Mode | None = None

    def __str__(self) -> str:
        delays = f"delays at {', '.join(map(str, self.delays))}" if self.delays else "no delays"
        return f"{self.scenario}: {delays}" + (f"; writer-1 {self.mode.name} {self.point}" if self.mode else "")

    @classmethod
    def parse(cls, text: str) -> Self:
        found = re.fullmatch(r"(.+): (?:no delays|delays at ([\d, ]+))(?:; writer-1 ([A-Z_]+) (\S+ #\d+))?", text.strip())
        if found is None or (found[3] is not None and found[3] not in Mode.__members__):
            raise InvalidRequestError(f"{text!r} is no schedule; pass a line that was printed for a violation")
        delays = tuple(int(number) for number in (found[2] or "").split(",") if number.strip())
        return cls(Scenario.parse(found[1]), delays, found[4], Mode[found[3]] if found[3] else None)

    @property
    def plan(self) -> Plan:
        return {} .get if self.mode is None else {self.point: Fault(self.mode)}.get  # type: ignore[return-value]


# --- who goes on ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Question:
    """Shall `process` make the call `point` now? `open`: a delay would make a difference. `delayed`: the answer."""

    process: str
    point: str
    open: bool
    delayed: bool

    @property
    def call(self) -> str:
        return self.point.partition(" #")[0]


class Conductor:
    """Lets one call go on at a time: the next when all tasks wait. `questions`: those asked so far."""

    def __init__(self, delays: Collection[int]) -> None:
        self.questions: list[Question] = []
        self._delays = delays
        self._round = deque(ROUND)
        self._lives: dict[str, Process] = {}
        self._waiting: defaultdict[str, dict[str, anyio.Event]] = defaultdict(dict)
        self._fresh: set[str] = set()
        self._came = anyio.Event()
        self._ended = False

    def conduct(self, process: Process) -> None:
        self._lives[process.name] = process

    async def turn(self, process: str, point: str) -> None:
        """`Network.turn`. Never returns to a process that is dead: its call is not made."""
        if self._ended or process not in ROUND:
            return
        event = self._waiting[process][point] = anyio.Event()
        self._came.set()
        try:
            await event.wait()
        finally:
            del self._waiting[process][point]

    async def run(self) -> None:
        while True:
            await anyio.wait_all_tasks_blocked()
            if able := [name for name in self._round if self._waiting[name] and self._is_alive(name)]:
                self._ask(able)
            else:
                self._came = anyio.Event()
                await self._came.wait()

    def end(self) -> None:
        """Everything goes on by itself from now on."""
        self._ended = True
        for waiting in self._waiting.values():
            for event in waiting.values():
                event.set()

    def _ask(self, able: Sequence[str]) -> None:
        """Asks one after the other until one may go on, and lets it."""
        for name in itertools.cycle(able):
            point = min(self._waiting[name])  # calls that a process makes at once go in the order of their names
            is_open = len(able) > 1 and name not in self._fresh and call_of(point) not in INVISIBLE
            delayed = is_open and len(self.questions) + 1 in self._delays
            self.questions.append(Question(name, point, is_open, delayed))
            if not delayed:
                break
        self._round.rotate(-self._round.index(name))
        self._go_on(name, point)

    def _go_on(self, name: str, point: str) -> None:
        """Until its first call that others can see, an operation that began just now has not done anything."""
        if point.startswith(BEGIN):
            self._fresh.add(name)
        elif call_of(point) not in INVISIBLE:
            self._fresh.discard(name)
        self._waiting[name][point].set()

    def _is_alive(self, name: str) -> bool:
        return name not in self._lives or self._lives[name].alive


def call_of(point: str) -> str:
    return point.partition(" #")[0]


# --- the world -----------------------------------------------------------------------------------


class _HastyRuntime(SimulatedRuntime):
    """Does not wait before it repeats a call: its turn is waited for anyway."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds if seconds > WAIT_MAX_S else 0)


class _HastyLog:
    """A recoverer's view: the server's clock is a lease ahead, so every entry is stale, and all are in one range."""

    def __init__(self, log: ChangeLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def announce(self, instance: str) -> int:
        return await self._log.announce(instance) + round(SETTINGS.lease.expiry_s * 1000) + 1

    def ranges(self) -> Sequence[KeyRange]:
        return [KeyRange(LOG_PREFIX, LOG_END)]


class _SmallWorld(World):
    """One object; recoverers that never wait for a lease to run out, and take one entry at a time."""

    def process(self, name: str, plan: Plan = no_faults, skew_s: float = 0.0) -> Process:
        return Process(name, _HastyRuntime(f"{self.seed}/{name}", skew_s=skew_s), self.network, plan)

    def recovery(self, process: Process) -> RecoveryLoop:
        log = cast(ChangeLog, _HastyLog(process.link.log(self.log)))
        return RecoveryLoop(self._tiers(process), log, process.runtime, ONE_AT_A_TIME)


@dataclass(frozen=True, slots=True)
class Ran:
    """One schedule as it went. `violation` None: all invariants hold."""

    schedule: Schedule
    questions: Sequence[Question]
    violation: InvariantViolation | None

    @property
    def trace(self) -> tuple[tuple[str, str], ...]:
        """Who made which call that others could see, in order."""
        return tuple(
            (asked.process, asked.point) for asked in self.questions
            if not asked.delayed and asked.call not in INVISIBLE
        )  # fmt: skip


def run(schedule: Schedule) -> Ran:
    """Runs it. What is no violation, and no answer that a caller may get either, is raised with the schedule in its notes."""
    conductor = Conductor(schedule.delays)
    violation = None
    try:
        run_world(lambda: _run(schedule, conductor), SEED)
    except InvariantViolation as found:
        violation = found
    except Exception as error:
        error.add_note(str(schedule))
        raise
    return Ran(schedule, conductor.questions, violation)


async def _run(schedule: Schedule, conductor: Conductor) -> None:
    scenario = schedule.scenario
    async with _SmallWorld(SEED, sessions=scenario.sessions) as world:
        if scenario.before != "absent":
            async with world.client(world.process("before")) as client:
                assert await client.put(OBJECT, "old", SMALL if scenario.before == "small" else LARGE) is Answer.OK
        await _conduct(world, schedule, conductor)
        await world.drain()
        async with world.client(world.process("afterwards")) as client:
            await _get(client, world)
        world.verify()


async def _conduct(world: World, schedule: Schedule, conductor: Conductor) -> None:
    """All four live at once, call by call; then what is still under way arrives."""
    scenario = schedule.scenario
    world.network.turn = conductor.turn
    with anyio.fail_after(TOO_LONG_S):
        async with anyio.create_task_group() as conducting:
            conducting.start_soon(conductor.run)
            async with anyio.create_task_group() as lives:
                for name, life in (
                    ("writer-1", partial(_write, scenario.first)),
                    ("writer-2", partial(_write, scenario.second)),
                    ("recoverer", _recover),
                    ("reader", _read),
                ):
                    process = world.process(name, schedule.plan if name == "writer-1" else no_faults)
                    conductor.conduct(process)
                    lives.start_soon(process.run, partial(life, world, process, conductor))
            conducting.cancel_scope.cancel()
    conductor.end()


async def _write(operation: str, world: World, process: Process, conductor: Conductor) -> None:
    async with world.client(process) as client:
        await conductor.turn(process.name, f"{BEGIN}{operation}")
        if operation == "delete":
            await client.delete(OBJECT)
        else:
            await client.put(OBJECT, process.name, LARGE if operation == "put_large" else SMALL)


async def _recover(world: World, process: Process, conductor: Conductor) -> None:
    recovery = world.recovery(process)
    for _ in range(PASSES):
        await recovery.run_once()


async def _read(world: World, process: Process, conductor: Conductor) -> None:
    async with world.client(process) as client:
        for number in range(READS):
            await conductor.turn(process.name, f"{BEGIN}get #{number}")
            await _get(client, world)


async def _get(client: Client, world: World) -> None:
    try:
        await client.get(OBJECT)
    except DanglingTombstoneError as error:
        raise InvariantViolation("I1 no dangling", str(error), world.network.trace) from error


# --- all of them ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Explored:
    """`traces`: how many of the schedules differ in what anyone could see. `cut`: the budget did not suffice for all."""

    schedules: int = 0
    traces: set[tuple[tuple[str, str], ...]] = field(default_factory=set, repr=False)
    violations: list[Ran] = field(default_factory=list)
    cut: bool = False

    @property
    def distinct_traces(self) -> int:
        return len(self.traces)


def each(scenario: Scenario, delays_max: int, wrongs: Collection[Mode] = ()) -> Iterator[Ran]:
    """Runs every schedule with at most `delays_max` delays and at most one call of writer-1 that goes wrong in one of these ways.

    Those with fewer choices first. What a schedule was asked tells which others there are.
    """
    left = deque([Schedule(scenario)])
    while left:
        ran = run(left.popleft())
        yield ran
        left += _further(ran, delays_max, wrongs)


def explore(scenario: Scenario, delays_max: int, wrongs: Collection[Mode] = (), budget: int | None = None) -> Explored:
    """`each`, summed up. `budget`: how many schedules at most."""
    explored = Explored()
    for ran in each(scenario, delays_max, wrongs):
        explored.schedules += 1
        explored.traces.add(ran.trace)
        if ran.violation is not None:
            explored.violations.append(ran)
        if explored.schedules == budget:
            explored.cut = True
            break
    return explored


def replay(text: str) -> Ran:
    """Runs the schedule that one line describes. `InvalidRequestError`: it describes none."""
    return run(Schedule.parse(text))


def _further(ran: Ran, delays_max: int, wrongs: Collection[Mode]) -> Iterator[Schedule]:
    """The schedules that differ from this one in one choice more, made after all of its own."""
    schedule, delayed = ran.schedule, set[str]()
    last = max([*schedule.delays, *(n for n, asked in enumerate(ran.questions, 1) if _is_wrong(asked, schedule))], default=0)
    for number, asked in enumerate(ran.questions, 1):
        if asked.delayed and asked.process == VICTIM:
            delayed.add(asked.point)
        if number <= last:
            continue
        if asked.open and len(schedule.delays) < delays_max:
            yield replace(schedule, delays=(*schedule.delays, number))
        if asked.process == VICTIM and schedule.mode is None:
            for mode in wrongs:
                if _may_go_wrong(asked, mode, asked.point in delayed):
                    yield replace(schedule, point=asked.point, mode=mode)


def _is_wrong(asked: Question, schedule: Schedule) -> bool:
    return asked.process == VICTIM and asked.point == schedule.point and not asked.delayed


def _may_go_wrong(asked: Question, mode: Mode, was_delayed: bool) -> bool:
    if asked.point.startswith(BEGIN):
        return False
    if mode is Mode.CRASH_BEFORE:
        return not was_delayed and asked.call not in INVISIBLE
    if mode is Mode.CRASH_AFTER:
        return asked.call not in INVISIBLE
    return asked.call in MUTATING and (mode is not Mode.DUPLICATED or asked.call not in ONCE)


# --- on the command line -------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None, write: Callable[[str], object] = sys.stdout.write) -> int:
    """Explores all scenarios, or replays one schedule. Returns 0 if no violation was found, else 1."""
    parser = ArgumentParser("python -m emulators.simulation.bounded", description="every schedule with few delays, on the real code")
    parser.add_argument("--delays", type=int, default=2, help="at most so many (2)")
    parser.add_argument("--scenario", help="only this one, as in 'put_large+delete on large'")
    parser.add_argument("--replay", help="run the one schedule that this line describes, and show its calls")
    chosen = parser.parse_args(arguments)
    if chosen.replay is not None:
        ran = replay(chosen.replay)
        write("".join(f"{number:4} {asked.process}: {asked.point}{' delayed' if asked.delayed else ''}\n"
                      for number, asked in enumerate(ran.questions, 1)))
        write(f"{ran.violation or 'no violation'}\n")
        return ran.violation is not None
    found = 0
    for scenario in scenarios() if chosen.scenario is None else [Scenario.parse(chosen.scenario)]:
        for wrongs, delays_max in ((CRASHES, chosen.delays), (UNTOLD, min(1, chosen.delays))):
            explored = explore(scenario, delays_max, wrongs)
            found += len(explored.violations)
            write(f"{scenario}, {delays_max} delays, {'|'.join(mode.name for mode in wrongs)}: {explored.schedules} schedules,"
                  f" {explored.distinct_traces} traces, {len(explored.violations)} violations\n")
            for ran in explored.violations[:1]:
                write(f"    {ran.schedule}\n    {ran.violation}\n")
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
