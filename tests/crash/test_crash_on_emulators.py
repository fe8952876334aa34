"""Every operation, and recovery, of the real adapters on the real emulator, with one thing going wrong at every call.

Each mode of going wrong is one test: all operations and all their calls at once, each on an object of its own. The
calls are learnt from a run without faults. Then the network heals, recovery drains the log, late requests arrive,
recovery drains it again, and everything is read. A finding names its case, as in
`put_large_on_large|CheckAndMutateRow object r t v w: #1|CUT`.

`make test` has every operation with every third mode, and every mode with a third of the operations. Blobs are in GCS
where a request to GCS fails or the process dies; they are simulated where a call to Bigtable fails. `make sim` has
every operation, call and mode, and adds GCS to the latter, outages for as long as an
operation tries, and more ways in which two things go wrong.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl

import anyio
import pytest

import tiered.bigtable.rows
import tiered.protocol.finishing
from changelog.base.errors import UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable, Channel, either, insecure_channel, set_cell
from changelog.bigtable.log import BigtableChangeLog
from changelog.change import ChangeId, Entry
from changelog.log import KeyRange
from emulators.adapter_world import AdapterWorld
from emulators.bigtable.faulty_channel import READ_MODES, WireMode
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from emulators.gcs.wire import WireRequest
from emulators.world.client import Client, content
from emulators.world.faults import CallFault, Mode, Network, Process, call_of
from emulators.world.history import WriteAnswer
from emulators.world.services import SimulatedBlobs
from tests.given.crashing_operations import (
    IDLE,
    LARGE,
    SMALL,
    SOME_TIME_S,
    delete,
    get_idle,
    put_broken,
    put_large,
    put_named_at_end,
    put_slowly,
    put_small,
    put_stream,
    rename,
    set_expiry,
    update_metadata,
)
from tests.given.waiting import becomes
from tiered.bigtable.rows import BigtableRows
from tiered.errors import DanglingTombstoneError
from tiered.gcs.blobs import GcsBlobs
from tiered.metadata import Metadata
from tiered.object_id import ObjectId, blob_name
from tiered.protocol.backends import LongTermBackend
from tiered.settings import LeaseSettings, RecoverySettings, Settings, StoreSettings
from tiered.testing.blobs import MemoryUpload

pytestmark = pytest.mark.anyio

T = TypeVar("T")

BUCKET = "blobs"
HANG_S = 0.3
DELAY_S, GRACE_S = 3.0, 3.5
SHORT_GRACE_S, GRACE_OF_GCS_S = 0.2, 1.0
"""Where no upload is late: recovery waits only for what the emulator of GCS has still to read from its connections."""
LATER_S, LONG_GRACE_S = 50.0, 90.0
"""An upload comes when recovery has ended its change. If that waits for it, it comes in time, and is cleaned up."""
MEETING_S = 5.0
PATIENCE_S = 0.02
RENEWAL = "CheckAndMutateRow entry c #2"

DEATHS = [CallFault(Mode.CRASH_BEFORE), CallFault(Mode.CRASH_AFTER)]
SERVICE_FAULTS = [
    GcsFault(FaultMode.STATUS, status=503), GcsFault(FaultMode.STATUS, status=429), GcsFault(FaultMode.DROP_BEFORE),
    GcsFault(FaultMode.DROP_AFTER), GcsFault(FaultMode.DELAY, seconds=DELAY_S), GcsFault(FaultMode.STALL_BEFORE),
    GcsFault(FaultMode.STALL_AFTER), GcsFault(FaultMode.TRUNCATE),
]  # fmt: skip
SLOW_MODES = (FaultMode.DELAY, FaultMode.STALL_BEFORE, FaultMode.STALL_AFTER)
PATIENT_S, IMPATIENT_S = 10.0, 2.0
"""How long a client of GCS waits for an answer: the latter where it gets none in time."""

CASES_AT_ONCE = 32

_STORE = StoreSettings(queue_max=1000, drain_budget_s=20)
_RECOVERY = RecoverySettings(rate_per_s=100_000, attempts_max=50, idle_s=0.05)
LIVING = Settings(directory=Path("emulated"), changelog="noop", inline_bytes_max=100, store=_STORE, recovery=_RECOVERY)
DYING = LIVING.model_copy(update={"store": _STORE.model_copy(update={"drain_budget_s": 0.01})})
"""A dead process waits for nobody: its tasks are gone."""
BEATING = DYING.model_copy(update={"lease": LeaseSettings(heartbeat_interval_s=0.02, expiry_s=10)})
HASTY = LIVING.model_copy(update={
    "lease": LeaseSettings(heartbeat_interval_s=0.02, expiry_s=0.1),
    "recovery": _RECOVERY.model_copy(update={"late_upload_grace_s": GRACE_S}),
})  # fmt: skip
"""Of a recovery that takes over from living writers, who beat every 10 s."""
TIRED = LIVING.model_copy(update={"store": StoreSettings(answer_budget_s=1, cleanup_budget_s=1, drain_budget_s=20)})
"""Gives up soon in an outage."""

@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# --- what is done, and what goes wrong -------------------------------------------------------------


AnyFault = WireMode | CallFault | GcsFault
"""Where a fault is: in a call to Bigtable on the wire, in a call of the long-term tier, or in a request to GCS."""


class Case:
    """One process with an object of its own, and what goes wrong. `fault` None: nothing.

    `aside` tells cases apart that are alike so far. `cancelled`: the caller is cancelled soon after the fault.
    `killed`: the process is killed.
    """

    def __init__(
        self, scenario: EmulatorScenario, point: str = "", fault: AnyFault | None = None, aside: str = "", *,
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
        self.far_points: list[str] = []
        self.service_points: list[str] = []
        self.trace: list[str] = []
        self._point = point
        self._cancelled = cancelled

    def script(self, made: str) -> WireMode | None:
        return self.fault if isinstance(self.fault, WireMode) and self._meets(made) else None

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


def fault_name(fault: AnyFault | None) -> str:
    match fault:
        case None:
            return ""
        case WireMode():
            return fault.name
        case GcsFault(mode=FaultMode.STATUS):
            return str(fault.status)
    return fault.mode.name


class AtService(GcsFault):
    """The requests of one case's process to GCS: tells the case of each, and is the fault of the one that is meant.

    A process is known by its credentials; a session needs none, being known by its name.
    """

    def __init__(self, case: Case) -> None:
        fault = case.fault if isinstance(case.fault, GcsFault) else GcsFault(FaultMode.STATUS)
        super().__init__(fault.mode, times=None, status=fault.status, seconds=fault.seconds)
        self._case = case
        self._counts: Counter[str] = Counter()

    def matches(self, call: WireRequest, name: str) -> bool:
        if call.headers.get("Authorization", self._case.name) != self._case.name:
            return False
        if "Authorization" not in call.headers and not name.startswith(f"{self._case.object_id.path}/"):
            return False
        self._counts[call.kind] += 1
        return self._case.at_service(f"{call.kind} #{self._counts[call.kind]}")


@dataclass(frozen=True)
class EmulatorScenario:
    """`act` by one caller. `before`: what the object is, absent, small, large or legacy (a blob without revision)."""

    name: str
    before: str
    act: Callable[[Client, Case], Awaitable[object]]


def scenarios() -> Iterator[EmulatorScenario]:
    for before in ("absent", "small", "large", "legacy"):
        for act in (put_small, put_large, put_stream, delete):
            yield EmulatorScenario(f"{act.__name__}_on_{before}", before, act)
    yield EmulatorScenario("put_broken_on_large", "large", put_broken)
    yield EmulatorScenario("put_named_at_end_on_large", "large", put_named_at_end)
    yield EmulatorScenario("get_idle_small", "idle small", get_idle)
    yield EmulatorScenario("get_idle_large", "idle large", get_idle)
    yield EmulatorScenario("rename_on_large", "large", rename)
    if ALL:
        yield EmulatorScenario("rename_on_small", "small", rename)
        yield EmulatorScenario("update_metadata_on_small", "small", update_metadata)
        yield EmulatorScenario("set_expiry_on_large", "large", set_expiry)


ALL = "TIERED_SIM_SEEDS" in os.environ
SCENARIOS = {scenario.name: scenario for scenario in scenarios()}


# --- one world for many cases --------------------------------------------------------------------


class Name:
    """`Authorize`: says whose request it is."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def __call__(self, within_s: float = 10.0) -> Mapping[str, str]:
        return {"Authorization": self._name}

    def refused(self, headers: Mapping[str, str]) -> None:
        """Nobody refuses a name."""


class EmulatorStore:
    """A fresh table and bucket, on which many cases are lived through at once.

    `server`: where the bucket is GCS's. `grace_s`: how long recovery waits for late uploads.
    """

    def __init__(self, table: BigtableTable, channel: Channel, network: Network, server: GcsEmulator | None, grace_s: float) -> None:
        self._impatient: set[str] = set()
        self.blobs = MixedBlobs(SystemRuntime())
        self.server = server
        self._grace_s = grace_s
        living = self._graced(LIVING)
        self.world = AdapterWorld(channel, table.name, self._open_blobs, self._is_open, network, living, living, HANG_S)

    def _graced(self, settings: Settings) -> Settings:
        return settings.model_copy(update={"recovery": settings.recovery.model_copy(update={"late_upload_grace_s": self._grace_s})})

    @asynccontextmanager
    async def _open_blobs(self, process: Process) -> AsyncIterator[LongTermBackend]:
        if self.server is None:
            yield self.blobs
            return

        timeout_s = IMPATIENT_S if process.name in self._impatient else PATIENT_S
        async with GcsBlobs.connect(
            BUCKET, process.runtime, endpoint=self.server.url, authorize=Name(process.name), answer_timeout_s=timeout_s
        ) as blobs:
            yield blobs

    def _is_open(self, session: str) -> bool:
        if self.server is None:
            return session in self.blobs.uploads
        return self.server.sessions[dict(parse_qsl(session.partition("?")[2]))["upload_id"]].open

    @contextmanager
    def watched(self, case: Case) -> Iterator[None]:
        """Its requests to GCS are noted, and meet its fault."""
        rule = AtService(case)
        faults = [] if self.server is None else self.server.faults
        faults.append(rule)
        if isinstance(case.fault, GcsFault) and case.fault.mode in SLOW_MODES and not case.killed:
            self._impatient.add(case.name)
        try:
            yield
        finally:
            faults[:] = [each for each in faults if each is not rule]  # rules of the same content are equal

    async def prepare(self, cases: list[Case]) -> None:
        present, past = self.world.process("setup"), self.world.process("setup", skew_s=-SOME_TIME_S)
        async with self.world.client(present) as now, self.world.client(past) as then:
            await each(cases, lambda case: self._prepare(then if "idle" in case.scenario.before else now, case))

    async def _prepare(self, client: Client, case: Case) -> None:
        before, object_id = case.scenario.before, case.object_id
        if before == "legacy":
            # As older software left it: a tombstone without a token, and the blob under the storage path itself.
            async with self._open_blobs(self.world.process("older")) as blobs:
                upload = await blobs.open_upload(object_id.path, Metadata(custom={"label": "old"}, size=LARGE), LARGE)
                await upload.write(content("old", LARGE))
                await upload.finalise()
            await self.world.table.mutate(object_id.path.encode(), set_cell("fm", b"r", b""))
            self.world.history.end_write(self.world.history.begin_write(object_id.path, "old"), WriteAnswer.OK)
        elif before != "absent":
            size = SMALL if "small" in before else LARGE
            assert await client.put(object_id, "old", size, expiration=IDLE if "idle" in before else None) is WriteAnswer.OK

    async def live(self, case: Case, settings: Settings | None = None) -> None:
        """The case's process, from the opening of its store to its close, or to its death."""
        settings = self._graced(settings or (DYING if case.dies else LIVING))
        process = self.world.process(case.name, case.plan)

        async def life() -> None:
            async with self.world.client(process, case.script, settings) as client:
                wire = self.world.wires[-1]
                case.points, case.far_points, case.trace = wire.points, process.link.points, wire.trace
                with case.caller:
                    await case.scenario.act(client, case)
                if case.dies:
                    with anyio.move_on_after(MEETING_S):  # it is a finding otherwise
                        await case.met.wait()  # in its clean-up

        with self.watched(case):
            await process.run(partial(killable, process, case, life))

    async def succeed(self, cases: list[Case], size: int) -> None:
        """Another writer, of the same objects, who is told that all is well."""
        async with self.world.client(self.world.process("successor")) as client:

            async def put(case: Case) -> None:
                assert await client.put(case.object_id, "later", size) is WriteAnswer.OK

            await each(cases, put)

    async def read(self, cases: list[Case]) -> None:
        found: list[dict[str, str | None]] = [{}, {}]
        async with self.world.client(self.world.process("reader")) as client:

            async def look(case: Case) -> None:
                for answers in found:
                    with suppress(DanglingTombstoneError):  # counted among the findings
                        answers[case.name] = await client.get(case.object_id)
                        if case.scenario.act is rename:
                            answers[f"renamed {case.name}"] = await client.get(case.renamed)

            await each(cases, look)
        assert found[0] == found[1]

    async def findings(self, cases: list[Case], recoverers: Sequence[Case] = ()) -> list[str]:
        """Recovery ends what is left: before and after a late request arrives, and once more after it arrives again."""
        for once_more in (None, False, True):
            if once_more is not None:
                await self.world.deliver(once_more=once_more)
                if not once_more and any(fault_name(case.fault) == "DELAY" for case in [*cases, *recoverers]):
                    await anyio.sleep(DELAY_S)  # the server tells nobody what is under way
            await self.world.drain()
            await self.read(cases)
        findings = await self.world.findings()
        missed = [f"{case.name} was never met: {case.points} {case.far_points}" for case in [*cases, *recoverers] if not case.met.is_set()]
        return [*map(partial(_explained, cases), findings), *missed]


def _explained(cases: list[Case], finding: str) -> str:
    """With the calls of its case."""
    traces = [line for case in cases if f"/{case.name}" in finding for line in case.trace]
    return "\n    ".join([finding, *traces])


class MixedBlobs(SimulatedBlobs):
    """As GCS's adapter does: a payload of known size goes in a single request, any other by a session."""

    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> MemoryUpload:
        self._sessions = size is None
        return await super().open_upload(name, metadata, size)


async def killable(process: Process, case: Case, life: Callable[[], Awaitable[None]]) -> None:
    """`life`, and its end soon after the fault was met, if that is to kill."""

    async def kill() -> None:
        await case.met.wait()
        await anyio.sleep(PATIENCE_S)
        process.crash()

    async with anyio.create_task_group() as tasks:
        if case.killed:
            tasks.start_soon(kill)
        await life()
        tasks.cancel_scope.cancel()


@pytest.fixture
async def stage(
    request: pytest.FixtureRequest, anyio_backend: str, bigtable_host: str,
    fresh_table: Callable[[], AbstractAsyncContextManager[BigtableTable]],
) -> AsyncIterator[EmulatorStore]:  # fmt: skip
    async with AsyncExitStack() as opened:
        table = await opened.enter_async_context(fresh_table())
        channel = await opened.enter_async_context(insecure_channel(bigtable_host))
        network = await opened.enter_async_context(Network())
        server = await opened.enter_async_context(GcsEmulator()) if request.param == "gcs" else None
        if server is not None:
            server.create_bucket(BUCKET)
        params = request.node.callspec.params
        grace_s = GRACE_S if fault_name(params.get("fault")) == "DELAY" else GRACE_OF_GCS_S
        if server is None:
            grace_s = LONG_GRACE_S if params.get("guard") == NO_GRACE else SHORT_GRACE_S
        yield EmulatorStore(table, channel, network, server, grace_s)


NO_GRACE = "no grace for late uploads"
ANY_TIER = pytest.mark.parametrize("stage", ["simulated blobs", pytest.param("gcs", marks=pytest.mark.sim)], indirect=True)
ON_GCS = pytest.mark.parametrize("stage", ["gcs"], indirect=True)


async def each(cases: list[Case], do: Callable[[Case], Awaitable[None]]) -> None:
    """For all of them, so many at a time."""
    limiter = anyio.CapacityLimiter(CASES_AT_ONCE)

    async def do_one(case: Case) -> None:
        async with limiter:
            await do(case)

    async with anyio.create_task_group() as tasks:
        for case in cases:
            tasks.start_soon(do_one, case)


_clean_runs: dict[bool, list[Case]] = {}


async def clean_run(stage: EmulatorStore) -> list[Case]:
    """Every scenario without a fault: these cases know the calls. They are run once, with and without GCS."""
    on_gcs = stage.server is not None
    if on_gcs not in _clean_runs:
        cases = [Case(scenario) for scenario in SCENARIOS.values()]
        await stage.prepare(cases)
        await each(cases, stage.live)
        _clean_runs[on_gcs] = cases
    return _clean_runs[on_gcs]


def some(clean: Sequence[T], fault: WireMode | CallFault | GcsFault, whole: bool = ALL) -> Sequence[T]:
    """Every fourth one, others for the next kind of fault; `make sim` has all."""
    kinds = [fault_name(each) for each in (*WireMode, *DEATHS, *SERVICE_FAULTS)]
    number = kinds.index(fault_name(fault))
    return clean if whole else clean[number % 4 :: 4]


INLINE = ("CheckAndMutateRow object p m v", "CheckAndMutateRow object")


def meets(point: str, mode: WireMode) -> bool:
    """Reads are not late, and what is sent once does not arrive twice."""
    if mode is WireMode.ECHO and call_of(point) in INLINE:
        return False
    return mode in READ_MODES or not point.startswith("ReadRows")


async def wire_cases(stage: EmulatorStore, mode: WireMode, *, cancelled: bool = False, whole: bool = ALL) -> list[Case]:
    return [
        Case(clean.scenario, point, mode, cancelled=cancelled)
        for clean in some(await clean_run(stage), mode, whole) for point in clean.points if meets(point, mode)
    ]  # fmt: skip


# --- operations ----------------------------------------------------------------------------------


@ANY_TIER
@pytest.mark.parametrize("mode", WireMode)
async def test_an_operation_with_a_fault_at_any_call_to_bigtable_answers_honestly_and_leaves_nothing(
    stage: EmulatorStore, mode: WireMode
) -> None:
    cases = await wire_cases(stage, mode)
    await stage.prepare(cases)
    await each(cases, stage.live)
    found = await stage.findings(cases)
    assert not found, "\n".join(found)


@ON_GCS
@pytest.mark.parametrize("fault", DEATHS, ids=fault_name)
async def test_an_operation_that_dies_at_any_call_of_the_long_term_tier_leaves_old_or_new_and_nothing_else(
    stage: EmulatorStore, fault: CallFault
) -> None:
    cases = [Case(clean.scenario, point, fault) for clean in await clean_run(stage) for point in clean.far_points]
    await stage.prepare(cases)
    await each(cases, stage.live)
    found = await stage.findings(cases)
    assert not found, "\n".join(found)


@ON_GCS
@pytest.mark.parametrize(("fault", "killed"), [
    *(pytest.param(fault, False, id=fault_name(fault), marks=pytest.mark.sim if fault.status == 429 else ()) for fault in SERVICE_FAULTS),
    *(
        pytest.param(fault, True, id=f"{fault_name(fault)} and death", marks=() if fault.mode is FaultMode.DELAY else pytest.mark.sim)
        for fault in SERVICE_FAULTS if fault.mode in SLOW_MODES
    ),
])  # fmt: skip
async def test_an_operation_with_a_fault_at_any_request_to_gcs_answers_honestly_and_leaves_nothing(
    stage: EmulatorStore, fault: GcsFault, killed: bool
) -> None:
    clean_runs = some(await clean_run(stage), fault)
    cases = [Case(clean.scenario, point, fault, killed=killed) for clean in clean_runs for point in clean.service_points]
    await stage.prepare(cases)
    await each(cases, stage.live)
    found = await stage.findings(cases)
    assert not found, "\n".join(found)


@ANY_TIER
@pytest.mark.parametrize("mode", [WireMode.HANG, WireMode.LATE])
async def test_a_caller_cancelled_during_any_call_to_bigtable_leaves_old_or_new_and_nothing_else(
    stage: EmulatorStore, mode: WireMode
) -> None:
    cases = await wire_cases(stage, mode, cancelled=True)
    await stage.prepare(cases)
    await each(cases, stage.live)
    found = await stage.findings(cases)
    assert not found, "\n".join(found)


@ANY_TIER
@pytest.mark.parametrize("size", [LARGE, pytest.param(SMALL, marks=pytest.mark.sim)])
@pytest.mark.parametrize(
    ("mode", "cancelled"), [
        (WireMode.LATE, False), (WireMode.DIE_LATE, False),
        pytest.param(WireMode.LATE, True, marks=pytest.mark.sim), pytest.param(WireMode.ECHO, False, marks=pytest.mark.sim),
    ],
)  # fmt: skip
async def test_what_lands_late_never_undoes_a_later_write(stage: EmulatorStore, mode: WireMode, cancelled: bool, size: int) -> None:
    cases = await wire_cases(stage, mode, cancelled=cancelled)
    await stage.prepare(cases)
    await each(cases, stage.live)
    await stage.succeed(cases, size)
    found = await stage.findings(cases)
    assert not found, "\n".join(found)


@ANY_TIER
@pytest.mark.parametrize("mode", [WireMode.HANG, pytest.param(WireMode.LATE, marks=pytest.mark.sim)])
async def test_a_writer_stalled_past_its_lease_while_recovery_cleans_up_does_no_harm(stage: EmulatorStore, mode: WireMode) -> None:
    cases = await wire_cases(stage, mode)
    await stage.prepare(cases)
    async with stage.world.recovery(stage.world.process("cleaner"), settings=HASTY) as recovery, anyio.create_task_group() as tasks:
        tasks.start_soon(recovery.run)
        await each(cases, stage.live)
        recovery.stop()
    assert recovery.total.recovered > 0
    found = await stage.findings(cases)
    assert not found, "\n".join(found)


@ANY_TIER
@pytest.mark.parametrize("mode", WireMode)
async def test_a_renewal_that_goes_wrong_costs_no_more_than_the_lease(stage: EmulatorStore, mode: WireMode) -> None:
    case = Case(EmulatorScenario("put_slowly_on_large", "large", put_slowly), RENEWAL, mode)
    await stage.prepare([case])
    await stage.live(case, BEATING)
    found = await stage.findings([case])
    assert not found, "\n".join(found)


@ANY_TIER
@pytest.mark.sim
@pytest.mark.parametrize("mode", [WireMode.CUT, WireMode.DROP_ANSWER, WireMode.HANG, WireMode.LATE, WireMode.DUPLICATE])
async def test_an_operation_during_an_outage_of_any_call_answers_honestly_and_leaves_nothing(stage: EmulatorStore, mode: WireMode) -> None:
    cases = [
        Case(clean.scenario, name, mode)
        for clean in await clean_run(stage)
        for name in dict.fromkeys(call_of(point) for point in clean.points) if meets(name, mode)
    ]  # fmt: skip
    await stage.prepare(cases)
    await each(cases, lambda case: stage.live(case, TIRED))
    found = await stage.findings(cases)
    assert not found, "\n".join(found)


# --- recovery ------------------------------------------------------------------------------------

SWAP_BLOB, SWAP_INLINE, SWAP_NOTHING = (f"CheckAndMutateRow object {cells}w: #1" for cells in ("r t v ", "p m v ", ""))

STALE: dict[str, tuple[str, str, WireMode | CallFault]] = {
    "upload_open": ("put_stream_on_large", "upload.finalise #1", CallFault(Mode.CRASH_BEFORE)),
    "blob_written": ("put_stream_on_large", SWAP_BLOB, WireMode.DIE_BEFORE),
    "blob_written_nothing_before": ("put_large_on_absent", SWAP_BLOB, WireMode.DIE_BEFORE),
    "blob_written_over_inline": ("put_stream_on_small", SWAP_BLOB, WireMode.DIE_BEFORE),
    "swap_under_way": ("put_stream_on_large", SWAP_BLOB, WireMode.DIE_LATE),
    "blob_swapped_in": ("put_large_on_large", SWAP_BLOB, WireMode.DIE_AFTER),
    "blob_swapped_in_over_legacy": ("put_large_on_legacy", SWAP_BLOB, WireMode.DIE_AFTER),
    "inline_swapped_in": ("put_small_on_large", SWAP_INLINE, WireMode.DIE_AFTER),
    "inline_swap_under_way": ("put_small_on_large", SWAP_INLINE, WireMode.DIE_LATE),
    "deleted": ("delete_on_large", SWAP_NOTHING, WireMode.DIE_AFTER),
    "deleted_legacy": ("delete_on_legacy", SWAP_NOTHING, WireMode.DIE_AFTER),
    "request_not_sent": ("put_large_on_large", "upload.finalise #1", CallFault(Mode.CRASH_BEFORE)),
    "request_landed": ("put_large_on_large", "upload.finalise #1", CallFault(Mode.CRASH_AFTER)),
}
"""How each kind of stale entry comes about: the scenario, and where its writer dies."""


class OneEntry(BigtableChangeLog):
    """The log as far as one entry goes: recoverers that are to have a fault meet only the entry that is theirs."""

    def __init__(self, table: BigtableTable, key: str) -> None:
        super().__init__(table, SystemRuntime())
        self._key = key

    def ranges(self) -> Sequence[KeyRange]:
        return [KeyRange(self._key, f"{self._key}0")]


@dataclass
class RecoveryScenario:
    """A writer that dies, and a recoverer of its entry that meets a fault."""

    kind: str
    writer: Case
    recoverer: Case

    @staticmethod
    def of(kind: str, point: str = "", fault: AnyFault | None = None) -> RecoveryScenario:
        name, died_at, death = STALE[kind]
        recoverer = Case(SCENARIOS[name], point, fault, kind)
        writer = Case(SCENARIOS[name], died_at, death, recoverer.name)
        recoverer.object_id = writer.object_id
        return RecoveryScenario(kind, writer, recoverer)


async def recover(stage: EmulatorStore, recoveries: list[RecoveryScenario]) -> None:
    """All writers die; an hour later each recoverer makes a pass."""
    writers = [recovery.writer for recovery in recoveries]
    await stage.prepare(writers)
    await each(writers, stage.live)
    keys = await stage.world.age()

    async def make_pass(case: Case) -> None:
        key = keys[next(each.writer for each in recoveries if each.recoverer is case).object_id.path]
        process = stage.world.process(case.name, case.plan)

        async def life() -> None:
            async with stage.world.recovery(process, case.script, lambda table: OneEntry(table, key)) as recovery:
                case.points, case.far_points, case.trace = stage.world.wires[-1].points, process.link.points, stage.world.wires[-1].trace
                with suppress(UnavailableError, UnconfirmedError):
                    await recovery.run_once()

        with stage.watched(case):
            await process.run(partial(killable, process, case, life))

    await each([recovery.recoverer for recovery in recoveries], make_pass)


_clean_recoveries: dict[bool, list[RecoveryScenario]] = {}


async def clean_recoveries(stage: EmulatorStore) -> list[RecoveryScenario]:
    on_gcs = stage.server is not None
    if on_gcs not in _clean_recoveries:
        recoveries = [RecoveryScenario.of(kind) for kind in STALE]
        await recover(stage, recoveries)
        _clean_recoveries[on_gcs] = recoveries
    return _clean_recoveries[on_gcs]


@ANY_TIER
@pytest.mark.parametrize("mode", WireMode)
async def test_recovery_with_a_fault_at_any_call_to_bigtable_is_finished_by_another(stage: EmulatorStore, mode: WireMode) -> None:
    recoveries = [
        RecoveryScenario.of(clean.kind, point, mode)
        for clean in some(await clean_recoveries(stage), mode) for point in clean.recoverer.points if meets(point, mode)
    ]  # fmt: skip
    await recover(stage, recoveries)
    assert await stage.findings([each.writer for each in recoveries], [each.recoverer for each in recoveries]) == []


@ON_GCS
@pytest.mark.parametrize("fault", [
    *(pytest.param(fault, id=fault_name(fault)) for fault in DEATHS),
    *(pytest.param(fault, id=fault_name(fault), marks=pytest.mark.sim if fault.status == 429 else ()) for fault in SERVICE_FAULTS),
])  # fmt: skip
async def test_recovery_with_a_fault_at_any_call_to_gcs_is_finished_by_another(stage: EmulatorStore, fault: CallFault | GcsFault) -> None:
    recoveries = [
        RecoveryScenario.of(clean.kind, point, fault) for clean in some(await clean_recoveries(stage), fault)
        for point in (clean.recoverer.far_points if isinstance(fault, CallFault) else clean.recoverer.service_points)
    ]  # fmt: skip
    await recover(stage, recoveries)
    assert await stage.findings([each.writer for each in recoveries], [each.recoverer for each in recoveries]) == []


# --- guards knocked out --------------------------------------------------------------------------


async def refuses_nothing(rows: BigtableRows, path: str, token: ChangeId) -> bool:
    """Settle as the published protocol has it: a look, and no mark."""
    row = await rows.read(path)
    return row.target == blob_name(path, token) or (row.state is not None and row.state.token == token)


async def finds_nothing_live(rows: BigtableRows, path: str, token: ChangeId) -> bool:
    return False


@dataclass(frozen=True)
class EmulatorGuard:
    """`owner.name` for each replacement by name, and the invariants that must be seen to break."""

    owner: object
    replaced: Mapping[str, object]
    broken: set[str]


KNOCKED_OUT = {
    "settle refuses nothing": EmulatorGuard(BigtableRows, {"settle": refuses_nothing}, {"I1", "I2", "I4"}),
    "settle finds nothing live": EmulatorGuard(BigtableRows, {"settle": finds_nothing_live}, {"I1", "I2"}),
    "row operations ignore marks": EmulatorGuard(
        tiered.bigtable.rows,
        {"_marked": lambda token: iter(()), "_MARKED_OR_LARGE": lambda token: either(*tiered.bigtable.rows._TOMBSTONES)},
        {"I1", "I4"},
    ),
    "row operations ignore what is present": EmulatorGuard(
        tiered.bigtable.rows,
        {"_targets_another": lambda path, expected: [], "_MARKED_OR_LARGE": lambda token: either(*tiered.bigtable.rows._marked(token))},
        {"I3"},
    ),
    NO_GRACE: EmulatorGuard(tiered.protocol.finishing, {"waits_for_late_upload": lambda change, live: False}, {"I3"}),
}


def lands_after_recovery(stage: EmulatorStore, case: Case) -> Callable[[str, str], Awaitable[None]]:
    """A `Network.turn`: the upload of this case arrives when its change has no entry any more."""

    async def is_ended() -> bool:
        left = (await stage.world.log.entries("", 1000)).entries
        return case.object_id.path not in [each.change.object for each in left if isinstance(each, Entry)]

    async def turn(who: str, point: str) -> None:
        with anyio.move_on_after(LATER_S if who == "network" else 0):
            await becomes(is_ended)

    return turn


@pytest.mark.parametrize("stage", ["simulated blobs"], indirect=True)
@pytest.mark.parametrize("guard", KNOCKED_OUT)
async def test_without_a_guard_the_suite_finds_what_breaks(stage: EmulatorStore, monkeypatch: pytest.MonkeyPatch, guard: str) -> None:
    names = *(f"{act}_on_large" for act in ("put_small", "put_large", "put_stream", "delete")), "put_small_on_small"
    late = Case(SCENARIOS["put_large_on_large"], "upload.finalise #1", CallFault(Mode.LATE, SHORT_GRACE_S))
    cases = [
        *(case for case in await wire_cases(stage, WireMode.LATE, whole=True) if case.scenario.name in names),
        *(RecoveryScenario.of(kind).writer for kind in STALE),
        late,
    ]
    if guard == NO_GRACE:
        stage.world.network.turn = lands_after_recovery(stage, late)
    await stage.prepare(cases)
    for name, replacement in KNOCKED_OUT[guard].replaced.items():
        monkeypatch.setattr(KNOCKED_OUT[guard].owner, name, replacement)
    await each(cases, stage.live)
    await stage.succeed([case for case in cases if case.scenario.name == "put_small_on_small"], SMALL)
    found = await stage.findings(cases)
    assert {finding[:2] for finding in found} >= KNOCKED_OUT[guard].broken, "\n".join(found)
