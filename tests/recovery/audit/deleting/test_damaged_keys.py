"""Rows whose keys are damaged: their blobs are no garbage, wherever such a row sorts. Nothing is deleted unasked."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Any

import pytest

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable, set_cell
from recovery.audit.deleting.candidates import Candidate, DeleteOutcome, DeletionBatch
from recovery.audit.deleting.deletion import delete_orphans, look
from recovery.audit.deleting.gates import DeletionRequest
from recovery.audit.finding import Finding
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds, Cutoff
from recovery.audit.running.jobs import AuditOptions
from recovery.audit.running.run import run_audit
from recovery.audit.sweeping.sweep import audit_range
from tests.given.audit_grounds import BEGINS_NS, OLD_NS, AuditGround, embedded_ground, emulated_ground
from tests.given.audited_store import InThread
from tests.given.deleted_store import OBJECTS, ORPHANS, blobs, plant_orphans
from tests.given.deletion_process import settings_of
from tiered.open import open_backends
from tiered.settings import DATABASE_NAME, Settings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KEY = "media/objects/05"
TOLD: dict[str, Any] = {"at_most": 1_000_000, "despite_corrupt_rows": True}
DAMAGES = {
    "stored as a blob": "CAST(path AS BLOB)",
    "stored as a blob, and a letter changed": "CAST('zedia/objects/05' AS BLOB)",
    "a letter changed, to before all names": "'aedia/objects/05'",
    "a letter changed, to after all names": "'zedia/objects/05'",
    "no UTF-8, before all names": "CAST(X'2FFF' AS TEXT)",
    "no UTF-8, after all names": "CAST(X'FF2F' AS TEXT)",
    "a number": "NULL",
}


async def damaged(directory: Path, to: str) -> tuple[Settings, str]:
    """A store in which the key of one row is damaged, and the blob that the row names."""
    settings = settings_of(directory / "store")
    await plant_orphans(settings)
    async with open_backends(settings, SystemRuntime(), writes=False) as backends:
        target = (await backends.tiers.high_volume.read(KEY)).target
    assert target is not None
    with closing(sqlite3.connect(directory / "store" / DATABASE_NAME)) as database, database:
        assert database.execute(f"UPDATE rows SET path = {to} WHERE path = ?", (KEY,)).rowcount == 1
    return settings, target


@pytest.mark.parametrize("to", DAMAGES)
@pytest.mark.parametrize("ranges", [pytest.param(1, marks=pytest.mark.night), 4])
async def test_the_blob_of_a_row_whose_key_is_damaged_was_an_orphan_that_was_deleted(tmp_path: Path, to: str, ranges: int) -> None:
    settings, target = await damaged(tmp_path, DAMAGES[to])
    run = str(tmp_path / "run")
    options = AuditOptions(run, grace_s=0, insist=True)
    manifest = await run_audit(settings, options, InThread(slots=ranges), SystemRuntime(), lambda _: None)
    assert manifest.complete and manifest.totals[FindingClass.CORRUPT_ROW].number == 1 and len(manifest.ranges) >= ranges
    assert manifest.totals[FindingClass.ORPHAN].number <= ORPHANS + (ranges > 1)
    with pytest.raises(ConfigurationError, match=r"the run found 1 row that cannot be read, .* with --despite-corrupt-rows"):
        await delete_orphans(settings, DeletionRequest(run, at_most=1_000_000), SystemRuntime(), lambda _: None)
    assert len(await blobs(settings)) == ORPHANS + OBJECTS
    seen = await look(settings, DeletionRequest(run, **TOLD), SystemRuntime())
    spared = to == "stored as a blob"  # it still tells its object, so no blob of that is accused
    assert (seen.number, seen.refused) == (ORPHANS - spared, ())
    done = await delete_orphans(settings, DeletionRequest(run, **TOLD, rate_per_s=10_000), SystemRuntime(), lambda _: None)
    assert dict(done.done.numbers) == {DeleteOutcome.DELETED: ORPHANS - spared}
    left = await blobs(settings)
    assert len(left) == OBJECTS + spared and target in left


async def test_a_row_that_tells_no_blob_is_no_reason_to_delete(tmp_path: Path) -> None:
    settings, target = await damaged(tmp_path, "path")
    with closing(sqlite3.connect(tmp_path / "store" / DATABASE_NAME)) as database, database:
        database.execute("UPDATE rows SET target = CAST(X'FE' AS TEXT) WHERE path = ?", (KEY,))
    run = str(tmp_path / "run")
    await run_audit(settings, AuditOptions(run, grace_s=0, insist=True), InThread(slots=2), SystemRuntime(), lambda _: None)
    with pytest.raises(ConfigurationError, match="--despite-corrupt-rows"):
        await delete_orphans(settings, DeletionRequest(run, at_most=1_000_000), SystemRuntime(), lambda _: None)
    await delete_orphans(settings, DeletionRequest(run, **TOLD, rate_per_s=10_000), SystemRuntime(), lambda _: None)
    assert target in await blobs(settings), "it is of the object whose row is corrupt"


# --- one window, both tiers ------------------------------------------------------------------------


async def audited(ground: AuditGround, *bounds: Bounds) -> list[Finding]:
    found: list[Finding] = []
    ground.clock.now_ns = BEGINS_NS
    for each in bounds:
        await audit_range(ground.tiers, ground.log, each, Cutoff(as_of_ns=BEGINS_NS, grace_s=3600), ground.clock, found.extend)
    return found


async def test_a_damaged_key_of_a_table_spares_its_blob_and_is_told(
    fresh_table: Callable[[], AbstractAsyncContextManager[BigtableTable]]
) -> None:
    async with emulated_ground(fresh_table) as ground:
        name = f"media/objects/key/{ground.clock.at(OLD_NS)}"
        await ground.blob(name, 5, OLD_NS, None)
        await ground.table.mutate(b"media/objects/k\xff", set_cell("fm", b"r", name.encode()))  # type: ignore[attr-defined]
        found = await audited(ground, Bounds(start="", end=None))
        assert {(each.class_, each.name) for each in found} == {
            (FindingClass.CORRUPT_ROW, "media/objects/k\\xff"), (FindingClass.MISFILED, name)
        }  # fmt: skip
        apart = await audited(ground, Bounds(start="", end="media/objects/ky"), Bounds(start="media/objects/ky", end=None))
        assert {each.class_ for each in apart if each.name == name} == {FindingClass.MISFILED, FindingClass.ORPHAN}


async def test_a_deletion_spares_what_a_row_without_a_key_names(tmp_path: Path) -> None:
    """The row was damaged after the audit: only the second look can see it."""
    async with embedded_ground(tmp_path) as ground:
        name = f"media/objects/key/{ground.clock.at(OLD_NS)}"
        await ground.blob(name, 5, OLD_NS, None)
        head = await ground.tiers.long_term.head(name)
        assert head is not None
        candidate = Candidate.named(name, head.generation, 5)
        assert candidate is not None
        await ground.sql("INSERT INTO rows (path, target, policy) VALUES (X'6B', ?, '{}')", name)  # type: ignore[attr-defined]
        batch = DeletionBatch(ground.tiers, ground.log, [candidate], SystemRuntime())
        await batch.run()
        assert batch.outcomes == {name: DeleteOutcome.NAMED} and await ground.tiers.long_term.head(name) is not None
