"""Every operation, and recovery, of the adapters to PostgreSQL and S3, with one thing going wrong at every call.

Each mode of going wrong is one test: all operations and all their calls at once, each on an object of its own. The
calls are learnt from a run without faults. Then recovery makes a pass, late uploads arrive, recovery drains the log,
late statements arrive, recovery drains it again, and everything is read. A finding names its case, as in
`put_large_on_large|s3 put_object blob #1|FAILED_AFTER`.

`make test` has every mode with every 14th call; `make sim` has every call. What S3's answers look like on the wire is
in `tests/tiered/s3/test_faults.py`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

import tiered.protocol.finishing
from changelog.base.errors import UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.postgres.server import PostgresServer
from emulators.server_world import OF_READS, OF_S3, ServerMode, ServerWire, ServerWorld
from emulators.world.client import Client
from emulators.world.faults import Network
from emulators.world.history import WriteAnswer
from tests.given.crashing_operations import (
    IDLE,
    LARGE,
    SMALL,
    SOME_TIME_S,
    CrashedCase,
    delete,
    get_idle,
    put_broken,
    put_large,
    put_named_at_end,
    put_small,
    put_stream,
    rename,
    set_expiry,
    update_metadata,
)
from tests.given.fresh_schema import made_schema, settings_of
from tests.given.s3_buckets import new_bucket
from tiered.errors import DanglingTombstoneError
from tiered.object_id import ObjectId
from tiered.postgres.open import connect
from tiered.postgres.rows import PostgresRows
from tiered.settings import RecoverySettings, Settings, StoreSettings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ALL = "TIERED_SIM_SEEDS" in os.environ
SHARE = 14
CASES_AT_ONCE = 16
MEETING_S = 5.0

_STORE = StoreSettings(queue_max=1000, drain_budget_s=20, answer_budget_s=10)
LIVING = Settings(
    directory=Path("served"), changelog="noop", inline_bytes_max=100, store=_STORE,
    recovery=RecoverySettings(rate_per_s=100_000, attempts_max=50, idle_s=0.05),
)  # fmt: skip
DYING = LIVING.model_copy(update={"store": _STORE.model_copy(update={"drain_budget_s": 0.01})})
"""A dead process waits for nobody: its tasks are gone."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# --- what is done, and what goes wrong -------------------------------------------------------------


class ServedCase:
    """One process with an object of its own, and what goes wrong where. `mode` None: nothing. `aside` tells apart."""

    def __init__(self, scenario: ServedScenario, point: str = "", mode: ServerMode | None = None, aside: str = "") -> None:
        self.scenario = scenario
        self.mode = mode
        self.name = "|".join([scenario.name, point, mode.name if mode else "", aside])
        self.object_id = ObjectId.create("crash", self.name)
        self.renamed = ObjectId.create("renamed", self.name)
        self.dies = mode is not None and mode.name.startswith("DIE")
        self.met = anyio.Event()
        self.wire: ServerWire | None = None
        self._point = point

    def script(self, point: str) -> ServerMode | None:
        if point != self._point:
            return None
        self.met.set()
        return self.mode


@dataclass(frozen=True)
class ServedScenario:
    """`act` by one caller. `before`: what the object is: absent, small or large, and perhaps idle."""

    name: str
    before: str
    act: Callable[[Client, ServedCase], Awaitable[object]]


async def put_expiring(client: Client, case: CrashedCase) -> None:
    """With a deadline, which S3 keeps beside the blob."""
    await client.put(case.object_id, "new", LARGE, expiration=IDLE)


async def stream_expiring(client: Client, case: CrashedCase) -> None:
    """The same in a session, whose deadline and last metadata are written at its end."""
    await client.put(case.object_id, "new", LARGE, expiration=IDLE, named_at_end=True)


def scenarios() -> Iterator[ServedScenario]:
    for before in ("absent", "small", "large"):
        for act in (put_small, put_large, put_stream, delete):
            yield ServedScenario(f"{act.__name__}_on_{before}", before, act)
    for act in (put_broken, put_named_at_end, put_expiring, stream_expiring, rename, set_expiry):
        yield ServedScenario(f"{act.__name__}_on_large", "large", act)
    for act in (rename, update_metadata):
        yield ServedScenario(f"{act.__name__}_on_small", "small", act)
    for act in (get_idle, delete):
        yield ServedScenario(f"{act.__name__}_on_idle_large", "idle large", act)
    yield ServedScenario("get_idle_on_idle_small", "idle small", get_idle)


SCENARIOS = {scenario.name: scenario for scenario in scenarios()}


# --- one world for many cases --------------------------------------------------------------------


class ServedStage:
    """A fresh schema and bucket, on which many cases are lived through at once."""

    def __init__(self, world: ServerWorld) -> None:
        self.world = world

    async def prepare(self, cases: Sequence[ServedCase]) -> None:
        async def put(case: ServedCase, client: Client) -> None:
            before = case.scenario.before
            if before != "absent":
                size = SMALL if "small" in before else LARGE
                assert await client.put(case.object_id, "old", size, expiration=IDLE if "idle" in before else None) is WriteAnswer.OK

        for is_idle, skew_s in ((False, 0.0), (True, -SOME_TIME_S)):
            process = self.world.process("setup", skew_s=skew_s)
            async with self.world.client(process, ServerWire(process, lambda _: None), LIVING) as client:
                chosen = [case for case in cases if ("idle" in case.scenario.before) is is_idle]
                await each(chosen, lambda case, client=client: put(case, client))  # type: ignore[misc]

    async def live(self, case: ServedCase) -> None:
        """The case's process, from the opening of its store to its close, or to its death."""
        process = self.world.process(case.name)
        case.wire = ServerWire(process, case.script)

        async def life() -> None:
            assert case.wire is not None
            async with self.world.client(process, case.wire, DYING if case.dies else LIVING) as client:
                await case.scenario.act(client, case)
                if case.dies:
                    with anyio.move_on_after(MEETING_S):  # it is a finding otherwise
                        await case.met.wait()  # in its clean-up

        await process.run(life)

    async def succeed(self, cases: Sequence[ServedCase]) -> None:
        """Another writer, of the same objects, who is told that all is well."""
        process = self.world.process("successor")
        async with self.world.client(process, ServerWire(process, lambda _: None), LIVING) as client:

            async def put(case: ServedCase) -> None:
                assert await client.put(case.object_id, "later", LARGE) is WriteAnswer.OK

            await each(cases, put)

    async def read(self, cases: Sequence[ServedCase]) -> None:
        found: list[dict[str, str | None]] = [{}, {}]
        process = self.world.process("reader")
        async with self.world.client(process, ServerWire(process, lambda _: None), LIVING) as client:

            async def look(case: ServedCase) -> None:
                for answers in found:
                    with suppress(DanglingTombstoneError):  # counted among the findings
                        answers[case.name] = await client.get(case.object_id)
                        if case.scenario.act is rename:
                            answers[f"renamed {case.name}"] = await client.get(case.renamed)

            await each(cases, look)
        assert found[0] == found[1]

    async def findings(self, cases: Sequence[ServedCase], recoverers: Sequence[ServedCase] = ()) -> list[str]:
        """Recovery ends what is left: before and after late uploads and late statements arrive, and once more after the
        latter arrive again.
        """
        await self.world.visit()
        await self.world.deliver_uploads()
        for once_more in (None, False, True):
            arrived = 0 if once_more is None else await self.world.deliver(once_more=once_more)
            if once_more is None or arrived:
                await self.world.drain()
                await self.read(cases)
        found = [*await self.world.findings(), *await self.world.unmarked()]
        missed = [f"{case.name} was never met: {_points(case)}" for case in [*cases, *recoverers] if not case.met.is_set()]
        return [*(_explained(cases, finding) for finding in found), *missed]


def _points(case: ServedCase) -> list[str]:
    return [] if case.wire is None else case.wire.points


def _explained(cases: Sequence[ServedCase], finding: str) -> str:
    """With the calls of its case."""
    traces = [line for case in cases if f"/{case.name}" in finding and case.wire is not None for line in case.wire.trace]
    return "\n    ".join([finding, *traces])


async def each(cases: Sequence[ServedCase], do: Callable[[ServedCase], Awaitable[None]]) -> None:
    """For all of them, so many at a time."""
    limiter = anyio.CapacityLimiter(CASES_AT_ONCE)

    async def do_one(case: ServedCase) -> None:
        async with limiter:
            await do(case)

    async with anyio.create_task_group() as tasks:
        for case in cases:
            tasks.start_soon(do_one, case)


@pytest.fixture
async def stage(anyio_backend: str, postgres: PostgresServer, versitygw_url: str) -> AsyncIterator[ServedStage]:
    schema = await made_schema(postgres)
    async with (
        connect(settings_of(postgres, schema), writes=True) as pool, new_bucket(versitygw_url, SystemRuntime()) as bucket,
        Network() as network,
    ):  # fmt: skip
        yield ServedStage(ServerWorld(pool, schema, bucket.client, network, LIVING))


_clean_runs: list[ServedCase] = []


async def clean_run(stage: ServedStage) -> Sequence[ServedCase]:
    """Every scenario without a fault: these cases know the calls. They are run once."""
    if not _clean_runs:
        cases = [ServedCase(scenario) for scenario in SCENARIOS.values()]
        await stage.prepare(cases)
        await each(cases, stage.live)
        _clean_runs.extend(cases)
    return _clean_runs


def meets(clean: ServedCase, mode: ServerMode) -> list[str]:
    """The points of a case at which this may happen."""
    assert clean.wire is not None, "it has lived"
    writes = [point for point in clean.wire.points if point not in clean.wire.reads]
    return [point for point in (clean.wire.points if mode in OF_READS else writes) if mode not in OF_S3 or point.startswith("s3 ")]


def some(all_of_them: list[ServedCase], mode: ServerMode) -> list[ServedCase]:
    """Every 14th one, others for the next mode; `make sim` has all."""
    return all_of_them if ALL else all_of_them[list(ServerMode).index(mode) % SHARE :: SHARE]


async def faulty_cases(stage: ServedStage, mode: ServerMode) -> list[ServedCase]:
    return some([ServedCase(clean.scenario, point, mode) for clean in await clean_run(stage) for point in meets(clean, mode)], mode)


# --- operations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ServerMode, ids=lambda mode: mode.name)
async def test_an_operation_with_a_fault_at_any_call_answers_honestly_and_leaves_nothing(stage: ServedStage, mode: ServerMode) -> None:
    cases = await faulty_cases(stage, mode)
    await stage.prepare(cases)
    await each(cases, stage.live)
    found = await stage.findings(cases)
    assert len(cases) > 3 and not found, "\n".join(found)


@pytest.mark.parametrize("mode", [ServerMode.LATE, ServerMode.DIE_LATE], ids=lambda mode: mode.name)
async def test_what_lands_late_never_undoes_a_later_write(stage: ServedStage, mode: ServerMode) -> None:
    cases = await faulty_cases(stage, mode)
    await stage.prepare(cases)
    await each(cases, stage.live)
    await stage.succeed(cases)
    found = await stage.findings(cases)
    assert len(cases) > 3 and not found, "\n".join(found)


# --- recovery ------------------------------------------------------------------------------------

SWAP, FINALISE, COMPLETE = "postgres swapping the row #1", "s3 put_object blob #1", "s3 complete_multipart_upload blob #1"

LEFT_BEHIND: dict[str, tuple[str, str, ServerMode]] = {
    "upload_open": ("put_stream_on_large", COMPLETE, ServerMode.DIE_BEFORE),
    "blob_written": ("put_stream_on_large", COMPLETE, ServerMode.DIE_AFTER),
    "blob_written_at_once": ("put_large_on_small", FINALISE, ServerMode.DIE_AFTER),
    "deadline_written": ("put_expiring_on_large", FINALISE, ServerMode.DIE_BEFORE),
    "swap_not_sent": ("put_large_on_absent", SWAP, ServerMode.DIE_BEFORE),
    "swapped_in": ("put_large_on_large", SWAP, ServerMode.DIE_AFTER),
    "deleted": ("delete_on_large", SWAP, ServerMode.DIE_AFTER),
}
"""How each kind of stale entry comes about: the scenario, and where its writer dies."""


async def recover(stage: ServedStage, recoverers: Sequence[tuple[str, ServedCase]]) -> list[ServedCase]:
    """All writers die; an hour later each recoverer makes a pass over the entry of its own. Returns the writers."""
    writers: list[ServedCase] = []
    for kind, recoverer in recoverers:
        scenario, died_at, death = LEFT_BEHIND[kind]
        writers.append(ServedCase(SCENARIOS[scenario], died_at, death, recoverer.name))
    await stage.prepare(writers)
    await each(writers, stage.live)
    keys = await stage.world.age()
    written = {recoverer.name: keys[writer.object_id.path] for (_, recoverer), writer in zip(recoverers, writers, strict=True)}

    async def make_pass(case: ServedCase) -> None:
        process = stage.world.process(case.name)
        case.wire = ServerWire(process, case.script)

        async def life() -> None:
            async with stage.world.recovery(process, case.wire, written[case.name]) as recovery:
                with suppress(UnavailableError, UnconfirmedError):
                    await recovery.run_once()

        await process.run(life)

    await each([recoverer for _, recoverer in recoverers], make_pass)
    return writers


_clean_recoveries: list[tuple[str, ServedCase]] = []


@pytest.mark.parametrize("mode", ServerMode, ids=lambda mode: mode.name)
async def test_recovery_with_a_fault_at_any_call_is_finished_by_another(stage: ServedStage, mode: ServerMode) -> None:
    if not _clean_recoveries:
        clean = [(kind, ServedCase(SCENARIOS[LEFT_BEHIND[kind][0]], aside=kind)) for kind in LEFT_BEHIND]
        await recover(stage, clean)
        _clean_recoveries.extend(clean)
    kinds, cases = [], []
    for kind, clean_case in _clean_recoveries:
        for point in meets(clean_case, mode):
            cases.append(ServedCase(clean_case.scenario, point, mode, kind))
            kinds.append(kind)
    chosen = some(cases, mode)
    recoverers = [(kind, case) for kind, case in zip(kinds, cases, strict=True) if case in chosen]
    writers = await recover(stage, recoverers)
    found = await stage.findings(writers, [case for _, case in recoverers])
    assert recoverers and not found, "\n".join(found)


# --- a guard knocked out -------------------------------------------------------------------------


async def refuses_nothing(rows: PostgresRows, path: str, token: ChangeId) -> bool:
    """Settle as the published protocol has it: a look, and no mark."""
    row = await rows.read(path)
    return row.target == f"{path}/{token}" or (row.state is not None and row.state.token == token)


@pytest.mark.parametrize(("owner", "name", "replacement", "broken"), [
    (PostgresRows, "settle", refuses_nothing, {"I1", "I2"}),
    (tiered.protocol.finishing, "waits_for_late_upload", lambda change, live: False, {"I3"}),
], ids=["settle refuses nothing", "no grace for late uploads"])  # fmt: skip
async def test_without_a_guard_the_matrix_finds_what_breaks(
    stage: ServedStage, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, replacement: object, broken: set[str]
) -> None:
    names = [f"{act}_on_large" for act in ("put_large", "put_stream", "delete")]
    cases = [
        ServedCase(clean.scenario, point, mode) for clean in await clean_run(stage) if clean.scenario.name in names
        for mode in (ServerMode.LATE, ServerMode.DIE_LATE) for point in (SWAP, FINALISE) if point in meets(clean, mode)
    ]  # fmt: skip
    await stage.prepare(cases)
    monkeypatch.setattr(owner, name, replacement)
    await each(cases, stage.live)
    found = await stage.findings(cases)
    assert {finding[:2] for finding in found} >= broken, "\n".join(found)
