"""Every operation, and recovery, of the real adapters on the real emulator, with one thing going wrong at every call.

Each mode of going wrong is one test: all operations and all their calls at once (`tests/given/crash_matrix.py`).

A push has every death at a call of the long-term tier, and of each other mode a share of the operations
(`tests.suites.share`). Blobs are in GCS where a request to GCS fails or the process dies; they are simulated where a
call to Bigtable fails. The night has every operation, call and mode, and adds GCS to the latter, outages for as long as
an operation tries, and more ways in which two things go wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import parse_qsl

import anyio
import pytest

import tiered.bigtable.rows
import tiered.protocol.finishing
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable, Channel, either, insecure_channel, set_cell
from changelog.change import ChangeId, Entry
from emulators.adapter_world import AdapterWorld
from emulators.bigtable.faulty_channel import READ_MODES, WireMode
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from emulators.gcs.wire import WireRequest
from emulators.world.client import content
from emulators.world.faults import CallFault, Mode, Network, Process, call_of
from emulators.world.history import WriteAnswer
from emulators.world.services import SimulatedBlobs
from tests.given.crash_matrix import DYING, LIVING, RECOVERY, CrashedCase, CrashStage, DeathBefore, MatrixScenario, fault_name, scenarios_on
from tests.given.crashing_operations import (
    LARGE,
    SMALL,
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
from tests.suites import has_all, share
from tiered.bigtable.rows import BigtableRows
from tiered.gcs.blobs import GcsBlobs
from tiered.metadata import Metadata
from tiered.object_id import blob_name
from tiered.services.backends import LongTermBackend
from tiered.settings import LeaseSettings, Settings, StoreSettings
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
RENEWAL = "CheckAndMutateRow entry c #2"
SHARE = 12
"""A push has every twelfth operation, others for the next mode."""

DEATHS = [CallFault(Mode.CRASH_BEFORE), CallFault(Mode.CRASH_AFTER)]
SERVICE_FAULTS = [
    GcsFault(FaultMode.STATUS, status=503), GcsFault(FaultMode.STATUS, status=429), GcsFault(FaultMode.DROP_BEFORE),
    GcsFault(FaultMode.DROP_AFTER), GcsFault(FaultMode.DELAY, seconds=DELAY_S), GcsFault(FaultMode.STALL_BEFORE),
    GcsFault(FaultMode.STALL_AFTER), GcsFault(FaultMode.TRUNCATE),
]  # fmt: skip
SLOW_MODES = (FaultMode.DELAY, FaultMode.STALL_BEFORE, FaultMode.STALL_AFTER)
PATIENT_S, IMPATIENT_S = 10.0, 2.0
"""How long a client of GCS waits for an answer: the latter where it gets none in time."""

BEATING = DYING.model_copy(update={"lease": LeaseSettings(expiry_s=10)})
HASTY = LIVING.model_copy(update={
    "lease": LeaseSettings(expiry_s=0.1),
    "recovery": RECOVERY.model_copy(update={"late_upload_grace_s": GRACE_S}),
})  # fmt: skip
"""Of a recovery that takes over from living writers, who beat every 10 s."""
TIRED = LIVING.model_copy(update={"store": StoreSettings(answer_budget_s=4, drain_budget_s=20)})
"""Gives up soon in an outage, but not before it, on a busy machine: a third of the budget is a call's."""

@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def scenarios() -> Iterator[tuple[str, MatrixScenario]]:
    for before in ("absent", "small", "large", "legacy"):
        yield from scenarios_on(before, put_small, put_large, put_stream, delete)
    yield from scenarios_on("large", put_broken, put_named_at_end, rename)
    for before in ("idle small", "idle large"):
        yield from scenarios_on(before, get_idle)
    if has_all():
        yield from scenarios_on("small", rename, update_metadata)
        yield from scenarios_on("large", set_expiry)


SCENARIOS = dict(scenarios())


# --- one world for many cases --------------------------------------------------------------------


class AtService(GcsFault):
    """The requests of one case's process to GCS: tells the case of each, and is the fault of the one that is meant.

    A process is known by its credentials; a session needs none, being known by its name.
    """

    def __init__(self, case: CrashedCase) -> None:
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


class Name:
    """`Authorize`: says whose request it is."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def __call__(self, within_s: float = 10.0) -> Mapping[str, str]:
        return {"Authorization": self._name}

    def refused(self, headers: Mapping[str, str]) -> bool:
        raise AssertionError("nobody refuses a name")


class EmulatorStore(CrashStage):
    """A fresh table and bucket. `server`: where it is GCS's. `grace_s`: how long recovery waits for late uploads."""

    def __init__(self, table: BigtableTable, channel: Channel, network: Network, server: GcsEmulator | None, grace_s: float) -> None:
        self._impatient: set[str] = set()
        self.blobs = MixedBlobs(SystemRuntime())
        self.server = server
        self._grace_s = grace_s
        self.table = table
        world = AdapterWorld(channel, table.name, self._open_blobs, self._is_open, network, self.graced(LIVING), HANG_S)
        super().__init__("simulated blobs" if server is None else "gcs", world)

    def graced(self, settings: Settings) -> Settings:
        return settings.model_copy(update={"recovery": settings.recovery.model_copy(update={"late_upload_grace_s": self._grace_s})})

    def settings_of(self, case: CrashedCase) -> Settings:
        return self.graced(super().settings_of(case))

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
    def watched(self, case: CrashedCase) -> Iterator[None]:
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

    async def plant_legacy(self, case: CrashedCase) -> None:
        """As older software left it: a tombstone without a token, and the blob under the storage path itself."""
        path = case.object_id.path
        async with self._open_blobs(self.world.process("older")) as blobs:
            upload = await blobs.open_upload(path, Metadata(custom={"label": "old"}, size=LARGE), LARGE)
            await upload.write(content("old", LARGE))
            await upload.finalise()
        await self.table.mutate(path.encode(), set_cell("fm", b"r", b""))
        self.world.history.end_write(self.world.history.begin_write(path, "old"), WriteAnswer.OK)

    async def deliver(self, cases: Sequence[CrashedCase], *, once_more: bool) -> bool:
        arrived = await super().deliver(cases, once_more=once_more)
        delayed = not once_more and any(fault_name(case.fault) == "DELAY" for case in cases)
        if delayed:
            await anyio.sleep(DELAY_S)  # the server tells nobody what is under way
        return arrived or delayed


class MixedBlobs(SimulatedBlobs):
    """As GCS's adapter does: a payload of known size goes in a single request, any other by a session."""

    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> MemoryUpload:
        self._sessions = size is None
        return await super().open_upload(name, metadata, size)


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
ANY_TIER = pytest.mark.parametrize("stage", ["simulated blobs", pytest.param("gcs", marks=pytest.mark.night)], indirect=True)
ON_GCS = pytest.mark.parametrize("stage", ["gcs"], indirect=True)


def some(
    clean: Sequence[T], fault: WireMode | CallFault | GcsFault, points: Callable[[T], Sequence[str]], of: int = SHARE
) -> list[tuple[T, str]]:
    """A share of the runs, each with all of its points. A run without any is none: else a share may be of nothing."""
    kinds = [fault_name(each) for each in (*WireMode, *DEATHS, *SERVICE_FAULTS)]
    runs = [each for each in clean if points(each)]
    return [(each, point) for each in share(runs, of, kinds.index(fault_name(fault))) for point in points(each)]


INLINE = ("CheckAndMutateRow object p m v", "CheckAndMutateRow object")


def meets(point: str, mode: WireMode) -> bool:
    """Reads are not late, and what is sent once does not arrive twice."""
    if mode is WireMode.ECHO and call_of(point) in INLINE:
        return False
    return mode in READ_MODES or not point.startswith("ReadRows")


async def wire_cases(stage: EmulatorStore, mode: WireMode, *, cancelled: bool = False, of: int = SHARE) -> list[CrashedCase]:
    pairs = some(await stage.clean_run(SCENARIOS), mode, lambda clean: [point for point in clean.points if meets(point, mode)], of)
    return [CrashedCase(clean.scenario, point, mode, cancelled=cancelled) for clean, point in pairs]


# --- operations ----------------------------------------------------------------------------------


@ANY_TIER
@pytest.mark.parametrize("mode", WireMode)
async def test_an_operation_with_a_fault_at_any_call_to_bigtable_answers_honestly_and_leaves_nothing(
    stage: EmulatorStore, mode: WireMode
) -> None:
    cases = await wire_cases(stage, mode)
    await stage.go_through(cases)
    await stage.verify(cases)


@ON_GCS
@pytest.mark.parametrize("fault", DEATHS, ids=fault_name)
async def test_an_operation_that_dies_at_any_call_of_the_long_term_tier_leaves_old_or_new_and_nothing_else(
    stage: EmulatorStore, fault: CallFault
) -> None:
    cases = [CrashedCase(clean.scenario, point, fault) for clean in await stage.clean_run(SCENARIOS) for point in clean.far_points]
    await stage.go_through(cases)
    await stage.verify(cases)


@ON_GCS
@pytest.mark.parametrize(("fault", "killed"), [
    *(pytest.param(fault, False, id=fault_name(fault), marks=pytest.mark.night if fault.status == 429 else ()) for fault in SERVICE_FAULTS),
    *(
        pytest.param(fault, True, id=f"{fault_name(fault)} and death", marks=() if fault.mode is FaultMode.DELAY else pytest.mark.night)
        for fault in SERVICE_FAULTS if fault.mode in SLOW_MODES
    ),
])  # fmt: skip
async def test_an_operation_with_a_fault_at_any_request_to_gcs_answers_honestly_and_leaves_nothing(
    stage: EmulatorStore, fault: GcsFault, killed: bool
) -> None:
    pairs = some(await stage.clean_run(SCENARIOS), fault, lambda clean: clean.service_points)
    cases = [CrashedCase(clean.scenario, point, fault, killed=killed) for clean, point in pairs]
    await stage.go_through(cases)
    await stage.verify(cases)


@ANY_TIER
@pytest.mark.parametrize("mode", [WireMode.HANG, WireMode.LATE])
async def test_a_caller_cancelled_during_any_call_to_bigtable_leaves_old_or_new_and_nothing_else(
    stage: EmulatorStore, mode: WireMode
) -> None:
    cases = await wire_cases(stage, mode, cancelled=True)
    await stage.go_through(cases)
    await stage.verify(cases)


@ANY_TIER
@pytest.mark.parametrize("size", [LARGE, pytest.param(SMALL, marks=pytest.mark.night)])
@pytest.mark.parametrize(
    ("mode", "cancelled"), [
        (WireMode.LATE, False), (WireMode.DIE_LATE, False),
        pytest.param(WireMode.LATE, True, marks=pytest.mark.night), pytest.param(WireMode.ECHO, False, marks=pytest.mark.night),
    ],
)  # fmt: skip
async def test_what_lands_late_never_undoes_a_later_write(stage: EmulatorStore, mode: WireMode, cancelled: bool, size: int) -> None:
    cases = await wire_cases(stage, mode, cancelled=cancelled)
    await stage.go_through(cases)
    await stage.succeed(cases, size)
    await stage.verify(cases)


@ANY_TIER
@pytest.mark.parametrize("mode", [WireMode.HANG, pytest.param(WireMode.LATE, marks=pytest.mark.night)])
async def test_a_writer_stalled_past_its_lease_while_recovery_cleans_up_does_no_harm(stage: EmulatorStore, mode: WireMode) -> None:
    cases = await wire_cases(stage, mode, of=3)  # of fewer, the writers may win every race
    await stage.prepare(cases)
    async with stage.world.recovery(stage.world.process("cleaner"), settings=HASTY) as recovery, anyio.create_task_group() as tasks:
        tasks.start_soon(recovery.run)
        await stage.each(cases, stage.live)
        recovery.stop()
    assert (recovery.total.recovered if has_all() else recovery.total.seen) > 0
    await stage.verify(cases)


@ANY_TIER
@pytest.mark.parametrize("mode", WireMode)
async def test_a_renewal_that_goes_wrong_costs_no_more_than_the_lease(
    stage: EmulatorStore, mode: WireMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeaseSettings, "heartbeat_interval_s", 0.02)
    [(_, scenario)] = scenarios_on("large", put_slowly)
    case = CrashedCase(scenario, RENEWAL, mode)
    await stage.go_through([case], stage.graced(BEATING))
    await stage.verify([case])


@ANY_TIER
@pytest.mark.night
@pytest.mark.parametrize("mode", [WireMode.CUT, WireMode.DROP_ANSWER, WireMode.HANG, WireMode.LATE, WireMode.DUPLICATE])
async def test_an_operation_during_an_outage_of_any_call_answers_honestly_and_leaves_nothing(stage: EmulatorStore, mode: WireMode) -> None:
    cases = [
        CrashedCase(clean.scenario, name, mode)
        for clean in await stage.clean_run(SCENARIOS)
        for name in dict.fromkeys(call_of(point) for point in clean.points) if meets(name, mode)
    ]  # fmt: skip
    await stage.go_through(cases, stage.graced(TIRED))
    await stage.verify(cases)


# --- recovery ------------------------------------------------------------------------------------

SWAP_BLOB, SWAP_INLINE, SWAP_NOTHING = (f"CheckAndMutateRow object {cells}w: #1" for cells in ("r t d v ", "p m v ", ""))

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


async def recoveries_of(
    stage: EmulatorStore, fault: WireMode | CallFault | GcsFault, points: Callable[[CrashedCase], Sequence[str]]
) -> list[DeathBefore]:
    """A share of the kinds, each with this fault at every one of these points of its recoverer."""
    pairs = some(await stage.clean_recoveries(STALE, SCENARIOS), fault, lambda clean: points(clean.recoverer))
    return [DeathBefore.of(STALE, SCENARIOS, clean.kind, point, fault) for clean, point in pairs]


@ANY_TIER
@pytest.mark.parametrize("mode", WireMode)
async def test_recovery_with_a_fault_at_any_call_to_bigtable_is_finished_by_another(stage: EmulatorStore, mode: WireMode) -> None:
    recoveries = await recoveries_of(stage, mode, lambda case: [point for point in case.points if meets(point, mode)])
    await stage.recover(recoveries)
    await stage.verify_recoveries(recoveries)


@ON_GCS
@pytest.mark.parametrize("fault", [
    *(pytest.param(fault, id=fault_name(fault)) for fault in DEATHS),
    *(pytest.param(fault, id=fault_name(fault), marks=pytest.mark.night if fault.status == 429 else ()) for fault in SERVICE_FAULTS),
])  # fmt: skip
async def test_recovery_with_a_fault_at_any_call_to_gcs_is_finished_by_another(stage: EmulatorStore, fault: CallFault | GcsFault) -> None:
    recoveries = await recoveries_of(stage, fault, lambda case: case.far_points if isinstance(fault, CallFault) else case.service_points)
    await stage.recover(recoveries)
    await stage.verify_recoveries(recoveries)


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


def lands_after_recovery(stage: EmulatorStore, case: CrashedCase) -> Callable[[str, str], Awaitable[None]]:
    """A `Network.turn`: the upload of this case arrives when its change has no entry any more."""

    async def is_ended() -> bool:
        left = (await stage.world.log.entries("", 1000)).entries
        return case.object_id.path not in [each.change.object for each in left if isinstance(each, Entry)]

    async def turn(who: str, point: str) -> None:
        with anyio.move_on_after(LATER_S if who == "network" else 0):
            await becomes(is_ended)

    return turn


@pytest.mark.parametrize("stage", ["simulated blobs"], indirect=True)
@pytest.mark.parametrize("guard", share(list(KNOCKED_OUT), 3))
async def test_without_a_guard_the_suite_finds_what_breaks(stage: EmulatorStore, monkeypatch: pytest.MonkeyPatch, guard: str) -> None:
    names = *(f"{act}_on_large" for act in ("put_small", "put_large", "put_stream", "delete")), "put_small_on_small"
    clean_runs = [clean for clean in await stage.clean_run(SCENARIOS) if clean.scenario.name in names]
    late = CrashedCase(SCENARIOS["put_large_on_large"], "upload.finalise #1", CallFault(Mode.LATE, SHORT_GRACE_S))
    cases = [
        *(CrashedCase(each.scenario, point, WireMode.LATE) for each in clean_runs for point in each.points if meets(point, WireMode.LATE)),
        *(DeathBefore.of(STALE, SCENARIOS, kind).writer for kind in STALE),
        late,
    ]
    if guard == NO_GRACE:
        stage.world.network.turn = lands_after_recovery(stage, late)
    await stage.prepare(cases)
    for name, replacement in KNOCKED_OUT[guard].replaced.items():
        monkeypatch.setattr(KNOCKED_OUT[guard].owner, name, replacement)
    await stage.each(cases, stage.live)
    await stage.succeed([case for case in cases if case.scenario.name == "put_small_on_small"], SMALL)
    found = await stage.findings(cases)
    assert {finding[:2] for finding in found} >= KNOCKED_OUT[guard].broken, "\n".join(found)
