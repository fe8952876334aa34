"""Many cases at once in one world of servers: each is a process with an object of its own, and one thing goes wrong.

    CrashedCase      what is done, and what goes wrong at which call
    DeathBefore      a writer that dies, and a recoverer of what it left, to which something happens
    CrashStage       a fresh world: it prepares cases, lets them live, and tells what is wrong in the end

The calls of a scenario are learnt from a run without faults. After all lives recovery drains the log, late requests
arrive, recovery drains it again, and everything is read. A finding names its case, as in
`put_large_on_large|CheckAndMutateRow object r t d v w: #1|CUT`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio

from changelog.base.errors import UnavailableError, UnconfirmedError
from emulators.adapter_world import ServedWorld
from emulators.gcs.wire_faults import FaultMode, GcsFault
from emulators.world.client import Client
from emulators.world.faults import CallFault, Process, call_of
from emulators.world.history import WriteAnswer
from tests.given.crashing_operations import IDLE, LARGE, SMALL, SOME_TIME_S, Operation, rename
from tiered.errors import DanglingTombstoneError
from tiered.object_id import ObjectId
from tiered.settings import RecoverySettings, Settings, StoreSettings

T = TypeVar("T")

MEETING_S = 5.0
PATIENCE_S = 0.02

_STORE = StoreSettings(queue_max=1000, drain_budget_s=20)
RECOVERY = RecoverySettings(rate_per_s=100_000, attempts_max=50, idle_s=0.05)
LIVING = Settings(directory=Path("served"), changelog="noop", inline_bytes_max=100, store=_STORE, recovery=RECOVERY)
DYING = LIVING.model_copy(update={"store": _STORE.model_copy(update={"drain_budget_s": 0.01})})
"""A dead process waits for nobody: its tasks are gone."""

Fault = Enum | CallFault | GcsFault
"""Where a fault is: in a call on the wire, in a call of the long-term tier, or in a request to GCS."""


@dataclass(frozen=True)
class MatrixScenario:
    """`act` by one caller. `before`: what the object is: absent, small, large or legacy (without revision); or idle."""

    name: str
    before: str
    act: Operation


def scenarios_on(before: str, *acts: Operation) -> Iterator[tuple[str, MatrixScenario]]:
    for act in acts:
        scenario = MatrixScenario(f"{act.__name__}_on_{before.replace(' ', '_')}", before, act)
        yield scenario.name, scenario


class CrashedCase:
    """One process with an object of its own, and what goes wrong. `fault` None: nothing.

    `aside` tells cases apart that are alike so far. `cancelled`: the caller is cancelled soon after the fault.
    `killed`: the process is killed. What it has done is in `points` (the wire), `reads` (those without effect),
    `far_points` (the long-term tier) and `service_points` (GCS).
    """

    def __init__(
        self, scenario: MatrixScenario, point: str = "", fault: Fault | None = None, aside: str = "", *,
        cancelled: bool = False, killed: bool = False,
    ) -> None:  # fmt: skip
        self.scenario = scenario
        self.fault = fault
        self.name = "|".join([scenario.name, point, fault_name(fault), aside])
        self.object_id = ObjectId.create("crash", self.name)
        self.renamed = ObjectId.create("renamed", self.name)
        self.killed = killed
        self.dies = killed or fault_name(fault).startswith(("DIE", "CRASH"))
        self.met = anyio.Event()
        self.caller = anyio.CancelScope()
        self.points: list[str] = []
        self.reads: set[str] = set()
        self.far_points: list[str] = []
        self.service_points: list[str] = []
        self.trace: list[str] = []
        self._point = point
        self._cancelled = cancelled

    def calls(self) -> Sequence[list[str]]:
        return self.points, self.far_points, self.service_points

    def script(self, made: str) -> Any:
        return self.fault if isinstance(self.fault, Enum) and self._meets(made) else None

    def plan(self, made: str) -> CallFault | None:
        return self.fault if isinstance(self.fault, CallFault) and self._meets(made) else None

    def at_service(self, made: str) -> bool:
        self.service_points.append(made)
        return isinstance(self.fault, GcsFault) and self._meets(made)

    def _meets(self, made: str) -> bool:
        """A point without a number is every call of that name."""
        if self._point not in (made, call_of(made)):
            return False
        self.met.set()
        if self._cancelled:
            self.caller.deadline = anyio.current_time() + PATIENCE_S
        return True


def fault_name(fault: Fault | None) -> str:
    match fault:
        case None:
            return ""
        case Enum():
            return fault.name
        case GcsFault(mode=FaultMode.STATUS):
            return str(fault.status)
    return fault.mode.name


Deaths = Mapping[str, tuple[str, str, Fault]]
"""How each kind of stale entry comes about: the scenario, and where its writer dies."""


@dataclass
class DeathBefore:
    """A writer that dies, and a recoverer of its entry that meets a fault."""

    kind: str
    writer: CrashedCase
    recoverer: CrashedCase

    @staticmethod
    def of(
        deaths: Deaths, scenarios: Mapping[str, MatrixScenario], kind: str, point: str = "", fault: Fault | None = None, aside: str = ""
    ) -> DeathBefore:  # fmt: skip
        name, died_at, death = deaths[kind]
        recoverer = CrashedCase(scenarios[name], point, fault, kind + aside)
        writer = CrashedCase(scenarios[name], died_at, death, recoverer.name)
        recoverer.object_id = writer.object_id
        return DeathBefore(kind, writer, recoverer)


class CrashStage:
    """`kind`: which servers. Clean runs are made once for each kind."""

    def __init__(self, kind: str, world: ServedWorld[Any], cases_at_once: int = 32) -> None:
        self.kind = kind
        self.world = world
        self._cases_at_once = cases_at_once

    # --- what other servers do otherwise -----------------------------------------------------------

    def settings_of(self, case: CrashedCase) -> Settings:
        return DYING if case.dies else LIVING

    def watched(self, case: CrashedCase) -> AbstractContextManager[object]:
        """What the case does is seen at the service, too, while this is open."""
        return nullcontext()

    def hear(self, case: CrashedCase, process: Process) -> None:
        """From now on the case knows its calls."""
        wire = self.world.wires[-1]
        case.points, case.trace, case.reads, case.far_points = wire.points, wire.trace, wire.reads, process.link.points

    async def deliver(self, cases: Sequence[CrashedCase], *, once_more: bool) -> bool:
        """Lets late requests arrive. Returns whether there were some."""
        return await self.world.deliver(once_more=once_more) > 0

    async def plant_legacy(self, case: CrashedCase) -> None:
        raise NotImplementedError

    # --- lives -------------------------------------------------------------------------------------

    async def go_through(self, cases: Sequence[CrashedCase], settings: Settings | None = None) -> None:
        """Prepares all of them, and lets each live."""
        await self.prepare(cases)
        await self.each(cases, partial(self.live, settings=settings))

    async def prepare(self, cases: Sequence[CrashedCase]) -> None:
        present, past = self.world.process("setup"), self.world.process("setup", skew_s=-SOME_TIME_S)
        async with self.world.client(present) as now, self.world.client(past) as then:
            await self.each(cases, lambda case: self._prepare(then if "idle" in case.scenario.before else now, case))

    async def _prepare(self, client: Client, case: CrashedCase) -> None:
        before = case.scenario.before
        if before == "legacy":
            await self.plant_legacy(case)
        elif before != "absent":
            size = SMALL if "small" in before else LARGE
            assert await client.put(case.object_id, "old", size, expiration=IDLE if "idle" in before else None) is WriteAnswer.OK

    async def live(self, case: CrashedCase, settings: Settings | None = None) -> None:
        """The case's process, from the opening of its store to its close, or to its death."""
        process = self.world.process(case.name, case.plan)

        async def life() -> None:
            async with self.world.client(process, case.script, settings or self.settings_of(case)) as client:
                self.hear(case, process)
                with case.caller:
                    await case.scenario.act(client, case)
                if case.dies:
                    with anyio.move_on_after(MEETING_S):  # it is a finding otherwise
                        await case.met.wait()  # in its clean-up

        await self._run(process, case, life)

    async def _run(self, process: Process, case: CrashedCase, life: Callable[[], Awaitable[None]]) -> None:
        """`life`, and its end soon after the fault was met, if that is to kill."""

        async def kill() -> None:
            await case.met.wait()
            await anyio.sleep(PATIENCE_S)
            process.crash()

        async def live_or_die() -> None:
            async with anyio.create_task_group() as tasks:
                if case.killed:
                    tasks.start_soon(kill)
                await life()
                tasks.cancel_scope.cancel()

        with self.watched(case):
            await process.run(live_or_die)

    async def recover(self, recoveries: Sequence[DeathBefore]) -> None:
        """All writers die; an hour later each recoverer makes a pass over the entry of its own."""
        await self.go_through([each.writer for each in recoveries])
        keys = await self.world.age()

        async def make_pass(recovery: DeathBefore) -> None:
            case, key = recovery.recoverer, keys[recovery.writer.object_id.path]
            process = self.world.process(case.name, case.plan)

            async def life() -> None:
                async with self.world.recovery(process, case.script, key) as loop:
                    self.hear(case, process)
                    with suppress(UnavailableError, UnconfirmedError):
                        await loop.run_once()

            await self._run(process, case, life)

        await self.each(recoveries, make_pass)

    async def succeed(self, cases: Sequence[CrashedCase], size: int = LARGE) -> None:
        """Another writer, of the same objects, who is told that all is well."""
        async with self.world.client(self.world.process("successor")) as client:

            async def put(case: CrashedCase) -> None:
                assert await client.put(case.object_id, "later", size) is WriteAnswer.OK

            await self.each(cases, put)

    async def each(self, cases: Sequence[T], do: Callable[[T], Awaitable[None]]) -> None:
        """For all of them, so many at a time."""
        limiter = anyio.CapacityLimiter(self._cases_at_once)

        async def do_one(case: T) -> None:
            async with limiter:
                await do(case)

        async with anyio.create_task_group() as tasks:
            for case in cases:
                tasks.start_soon(do_one, case)

    # --- runs without a fault ----------------------------------------------------------------------

    async def clean_run(self, scenarios: Mapping[str, MatrixScenario]) -> Sequence[CrashedCase]:
        """Every scenario without a fault: these cases know the calls."""
        if self.kind not in _clean_runs:
            cases, again = ([CrashedCase(scenario, aside=aside) for scenario in scenarios.values()] for aside in ("", "again"))
            await self.go_through([*cases, *again])
            _keep_common(cases, again)
            _clean_runs[self.kind] = cases
        return _clean_runs[self.kind]

    async def clean_recoveries(self, deaths: Deaths, scenarios: Mapping[str, MatrixScenario]) -> Sequence[DeathBefore]:
        if self.kind not in _clean_recoveries:
            recoveries, again = ([DeathBefore.of(deaths, scenarios, kind, aside=aside) for kind in deaths] for aside in ("", "again"))
            await self.recover([*recoveries, *again])
            _keep_common([each.recoverer for each in recoveries], [each.recoverer for each in again])
            _clean_recoveries[self.kind] = recoveries
        return _clean_recoveries[self.kind]

    # --- the end -----------------------------------------------------------------------------------

    async def verify(self, cases: Sequence[CrashedCase], recoverers: Sequence[CrashedCase] = ()) -> None:
        found = await self.findings(cases, recoverers)
        assert cases and not found, "\n".join(found)

    async def verify_recoveries(self, recoveries: Sequence[DeathBefore]) -> None:
        await self.verify([each.writer for each in recoveries], [each.recoverer for each in recoveries])

    async def findings(self, cases: Sequence[CrashedCase], recoverers: Sequence[CrashedCase] = ()) -> list[str]:
        """Recovery ends what is left: before and after a late request arrives, and once more after it arrives again."""
        every = [*cases, *recoverers]
        for once_more in (None, False, True):
            if once_more is None or await self.deliver(every, once_more=once_more):
                await self.world.drain()
                await self._read(cases)
        found = await self.world.findings()
        missed = [f"{case.name} was never met: {case.points} {case.far_points}" for case in every if not case.met.is_set()]
        if missed:  # a busy machine may have asked twice in both clean runs: who tries once more does not believe them
            _clean_runs.clear()
            _clean_recoveries.clear()
        return [*map(partial(_explained, cases), found), *missed]

    async def _read(self, cases: Sequence[CrashedCase]) -> None:
        found: list[dict[str, str | None]] = [{}, {}]
        async with self.world.client(self.world.process("reader")) as client:

            async def look(case: CrashedCase) -> None:
                for answers in found:
                    with suppress(DanglingTombstoneError):  # counted among the findings
                        answers[case.name] = await client.get(case.object_id)
                        if case.scenario.act is rename:
                            answers[f"renamed {case.name}"] = await client.get(case.renamed)

            await self.each(cases, look)
        assert found[0] == found[1]


_clean_runs: dict[str, Sequence[CrashedCase]] = {}
_clean_recoveries: dict[str, Sequence[DeathBefore]] = {}


def _keep_common(cases: Sequence[CrashedCase], again: Sequence[CrashedCase]) -> None:
    """A call that a busy machine made one of them repeat is none of the operation's: no other run would meet it."""
    for case, other in zip(cases, again, strict=True):
        for calls, others in zip(case.calls(), other.calls(), strict=True):
            calls[:] = [call for call in calls if call in others]


def _explained(cases: Sequence[CrashedCase], finding: str) -> str:
    """With the calls of its case."""
    traces = [line for case in cases if f"/{case.name}" in finding for line in case.trace]
    return "\n    ".join([finding, *traces])
