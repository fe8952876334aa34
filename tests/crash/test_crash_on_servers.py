"""Every operation, and recovery, of the adapters to PostgreSQL and S3, with one thing going wrong at every call.

Each mode of going wrong is one test: all operations and all their calls at once (`tests/given/crash_matrix.py`). A push
has every mode with a share of the calls (`tests.suites.share`). What S3's answers look like on the wire is in
`tests/tiered/s3/test_faults.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

import tiered.protocol.finishing
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.postgres.server import PostgresServer
from emulators.server_world import OF_READS, OF_S3, ServerMode, ServerWorld
from emulators.world.client import Client
from emulators.world.faults import Network
from tests.given.crash_matrix import LIVING, CrashedCase, CrashStage, DeathBefore, MatrixScenario, scenarios_on
from tests.given.crashing_operations import (
    IDLE,
    LARGE,
    Crashed,
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
from tests.suites import share
from tiered.postgres.open import connect
from tiered.postgres.rows import PostgresRows

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SHARE = 14
"""A push has every 14th call, others for the next mode."""
CASES_AT_ONCE = 16


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def put_expiring(client: Client, case: Crashed) -> None:
    """With a deadline, which S3 keeps beside the blob."""
    await client.put(case.object_id, "new", LARGE, expiration=IDLE)


async def stream_expiring(client: Client, case: Crashed) -> None:
    """The same in a session, whose deadline and last metadata are written at its end."""
    await client.put(case.object_id, "new", LARGE, expiration=IDLE, named_at_end=True)


def scenarios() -> Iterator[tuple[str, MatrixScenario]]:
    for before in ("absent", "small", "large"):
        yield from scenarios_on(before, put_small, put_large, put_stream, delete)
    yield from scenarios_on("large", put_broken, put_named_at_end, put_expiring, stream_expiring, rename, set_expiry)
    yield from scenarios_on("small", rename, update_metadata)
    yield from scenarios_on("idle large", get_idle, delete)
    yield from scenarios_on("idle small", get_idle)


SCENARIOS = dict(scenarios())


class ServedStage(CrashStage):
    """A fresh schema and bucket."""

    world: ServerWorld

    async def findings(self, cases: Sequence[CrashedCase], recoverers: Sequence[CrashedCase] = ()) -> list[str]:
        """Before all else, recovery makes a pass, and late uploads arrive."""
        await self.world.visit()
        await self.world.deliver_uploads()
        return await super().findings(cases, recoverers)


@pytest.fixture
async def stage(anyio_backend: str, postgres: PostgresServer, versitygw_url: str) -> AsyncIterator[ServedStage]:
    schema = await made_schema(postgres)
    async with (
        connect(settings_of(postgres, schema), writes=True) as pool, new_bucket(versitygw_url, SystemRuntime()) as bucket,
        Network() as network,
    ):  # fmt: skip
        yield ServedStage("servers", ServerWorld(pool, schema, bucket.client, network, LIVING), CASES_AT_ONCE)


def meets(clean: CrashedCase, mode: ServerMode) -> list[str]:
    """The points of a case at which this may happen."""
    writes = [point for point in clean.points if point not in clean.reads]
    return [point for point in (clean.points if mode in OF_READS else writes) if mode not in OF_S3 or point.startswith("s3 ")]


async def faulty_cases(stage: ServedStage, mode: ServerMode) -> Sequence[CrashedCase]:
    clean_run = await stage.clean_run(SCENARIOS)
    every = [CrashedCase(clean.scenario, point, mode) for clean in clean_run for point in meets(clean, mode)]
    return share(every, SHARE, list(ServerMode).index(mode))


# --- operations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ServerMode, ids=lambda mode: mode.name)
async def test_an_operation_with_a_fault_at_any_call_answers_honestly_and_leaves_nothing(stage: ServedStage, mode: ServerMode) -> None:
    cases = await faulty_cases(stage, mode)
    assert len(cases) > 3
    await stage.go_through(cases)
    await stage.verify(cases)


@pytest.mark.parametrize("mode", [ServerMode.LATE, ServerMode.DIE_LATE], ids=lambda mode: mode.name)
async def test_what_lands_late_never_undoes_a_later_write(stage: ServedStage, mode: ServerMode) -> None:
    cases = await faulty_cases(stage, mode)
    assert len(cases) > 3
    await stage.go_through(cases)
    await stage.succeed(cases)
    await stage.verify(cases)


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


@pytest.mark.parametrize("mode", ServerMode, ids=lambda mode: mode.name)
async def test_recovery_with_a_fault_at_any_call_is_finished_by_another(stage: ServedStage, mode: ServerMode) -> None:
    recoveries = [
        DeathBefore.of(LEFT_BEHIND, SCENARIOS, clean.kind, point, mode)
        for clean in await stage.clean_recoveries(LEFT_BEHIND, SCENARIOS) for point in meets(clean.recoverer, mode)
    ]  # fmt: skip
    chosen = share(recoveries, 2 * SHARE, list(ServerMode).index(mode))
    await stage.recover(chosen)
    await stage.verify_recoveries(chosen)


# --- a guard knocked out -------------------------------------------------------------------------


async def refuses_nothing(rows: PostgresRows, path: str, token: ChangeId) -> bool:
    """Settle as the published protocol has it: a look, and no mark."""
    row = await rows.read(path)
    return row.target == f"{path}/{token}" or (row.state is not None and row.state.token == token)


@pytest.mark.parametrize(("owner", "name", "replacement", "broken"), share([
    pytest.param(PostgresRows, "settle", refuses_nothing, {"I1", "I2"}, id="settle refuses nothing"),
    pytest.param(tiered.protocol.finishing, "waits_for_late_upload", lambda change, live: False, {"I3"}, id="no grace for late uploads"),
], 2))  # fmt: skip
async def test_without_a_guard_the_matrix_finds_what_breaks(
    stage: ServedStage, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, replacement: object, broken: set[str]
) -> None:
    names = [f"{act}_on_large" for act in ("put_large", "put_stream", "delete")]
    cases = [
        CrashedCase(clean.scenario, point, mode) for clean in await stage.clean_run(SCENARIOS) if clean.scenario.name in names
        for mode in (ServerMode.LATE, ServerMode.DIE_LATE) for point in (SWAP, FINALISE) if point in meets(clean, mode)
    ]  # fmt: skip
    await stage.prepare(cases)
    monkeypatch.setattr(owner, name, replacement)
    await stage.each(cases, stage.live)
    found = await stage.findings(cases)
    assert {finding[:2] for finding in found} >= broken, "\n".join(found)
