"""Whole deletions of an embedded store: dry, done, done again, interrupted, killed, beside writers, and restored."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from recovery.audit.deleting import journal as journals
from recovery.audit.deleting.candidates import DeleteOutcome
from recovery.audit.deleting.deletion import DeletionProgress, DeletionReport, delete_orphans, look
from recovery.audit.deleting.gates import DeletionRequest
from recovery.audit.deleting.quarantine import CopyOutcome
from recovery.audit.deleting.restoring import restore_deleted
from recovery.audit.errors import AuditInterruptedError
from recovery.statistics.persisted import AUDIT, read_statistics
from tests.given.audited_store import audit
from tests.given.deleted_store import ALL, OBJECTS, ORPHANS, blobs, embedded_with_orphans, readable
from tests.given.deletion_process import POINTS, settings_of, start
from tiered.object_id import ObjectId
from tiered.open import open_backends, open_storage
from tiered.services.backends import Tombstone
from tiered.settings import Settings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

@pytest.fixture
async def store(tmp_path: Path) -> Settings:
    return await embedded_with_orphans(tmp_path)


@pytest.fixture
def to(tmp_path: Path) -> str:
    return str(tmp_path / "run")


async def delete(
    settings: Settings, to: str, request: DeletionRequest | None = None, shown: list[DeletionProgress] | None = None
) -> DeletionReport:
    told = [] if shown is None else shown
    return await delete_orphans(settings, request or DeletionRequest(to, at_most=ALL, rate_per_s=10_000), SystemRuntime(), told.append)


async def test_a_look_changes_nothing_and_tells_what_would_be_deleted(store: Settings, to: str) -> None:
    before, files = await blobs(store), sorted(Path(to).rglob("*"))
    found = await look(store, DeletionRequest(to, at_most=ALL), SystemRuntime())
    assert (found.number, found.size, found.left, found.refused, found.plan) == (ORPHANS, ORPHANS * 10, ORPHANS, (), None)
    assert (await blobs(store), sorted(Path(to).rglob("*"))) == (before, files)


async def test_orphans_are_deleted_and_nothing_else(store: Settings, to: str) -> None:
    shown: list[DeletionProgress] = []
    found = await delete(store, to, shown=shown)
    assert found.left == 0 and dict(found.done.numbers) == {DeleteOutcome.DELETED: ORPHANS}
    assert found.done.sizes[DeleteOutcome.DELETED] == ORPHANS * 10
    assert len(await blobs(store)) == OBJECTS == await readable(store)
    assert (shown[-1].done, shown[-1].deleted, shown[-1].reclaimed, shown[-1].seconds_left) == (ORPHANS, ORPHANS, ORPHANS * 10, 0.0)


async def test_the_second_call_deletes_nothing_and_tells_what_the_first_did(
    store: Settings, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await delete(store, to)

    async def never(*_: object) -> None:
        raise AssertionError("nothing is left to delete")

    monkeypatch.setattr("tiered.embedded.blobs.FileBlobs.delete_generation", never)
    assert (await delete(store, to)).done == first.done


async def test_what_a_gate_refuses_deletes_nothing_and_writes_nothing(store: Settings, to: str) -> None:
    before = await blobs(store)
    with pytest.raises(ConfigurationError, match="nothing is deleted: the run found 25 orphans among 37 blobs, more than 1%"):
        await delete(store, to, DeletionRequest(to))
    assert await blobs(store) == before and not (Path(to) / "deleted").exists()


async def test_a_run_of_another_store_is_refused(store: Settings, to: str, tmp_path: Path) -> None:
    other = settings_of(tmp_path / "other")
    async with open_storage(other) as storage:
        await storage.put(ObjectId("media", (), "k"), b"x" * 20)
    with pytest.raises(ConfigurationError, match="the run is of another store: its directory is"):
        await delete(other, to)


async def test_a_deletion_that_was_begun_goes_on_with_the_same_quarantine_only(store: Settings, to: str) -> None:
    await delete(store, to, DeletionRequest(to, at_most=ALL, rate_per_s=10_000, quarantine="one"))
    with pytest.raises(ConfigurationError, match="was begun with --quarantine one, and goes on like that only"):
        await delete(store, to)


async def test_an_orphan_that_is_named_since_the_run_stays(store: Settings, to: str) -> None:
    name = min(each for each in await blobs(store) if "/24/" in each)
    path, _, revision = name.rpartition("/")
    async with open_backends(store, SystemRuntime()) as backends:
        row = Tombstone(name, token=ChangeId(revision))
        assert await backends.tiers.high_volume.swap(path, ChangeId(revision), None, row, SystemRuntime().boot_time() + 60)
    found = await delete(store, to)
    assert dict(found.done.numbers) == {DeleteOutcome.DELETED: ORPHANS - 1, DeleteOutcome.NAMED: 1}
    assert name in await blobs(store)


async def test_writers_work_on_while_orphans_are_deleted(store: Settings, to: str) -> None:
    failed: list[Exception] = []
    over = anyio.Event()

    async def write() -> None:
        async with open_storage(store) as storage:
            number = 0
            while not over.is_set():
                number += 1
                object_id = ObjectId("media", (), f"{number % OBJECTS:02}")
                await storage.put(object_id, b"y" * 30)
                if number % 5 == 0:
                    await storage.delete(object_id)
                    await storage.put(object_id, b"z" * 30)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        found = await delete(store, to, DeletionRequest(to, at_most=ALL, rate_per_s=50))
        over.set()
    assert not failed and found.done.numbers[DeleteOutcome.DELETED] == ORPHANS
    assert await readable(store) == OBJECTS


async def test_the_rate_is_kept_over_all_batches(store: Settings, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "BATCH", 4)
    began = SystemRuntime().monotonic()
    await delete(store, to, DeletionRequest(to, at_most=ALL, rate_per_s=20))
    assert SystemRuntime().monotonic() - began >= (ORPHANS - 20) / 20  # one second's worth may come at once


async def test_the_statistics_tell_how_far_the_deletion_is(store: Settings, to: str) -> None:
    await delete(store, to)
    async with open_backends(store, SystemRuntime(), writes=False) as backends:
        document = await read_statistics(backends.log, AUDIT)
    assert document is not None
    [row] = [row for row in document.rows().values() if row.incarnation.endswith("-deletion")]
    assert (row.snapshot_records_known, row.snapshot_progress, row.snapshot_committed) == (ORPHANS, ORPHANS, True)
    assert (row.updates_staged, row.updates_committed) == (ORPHANS, ORPHANS)


async def test_a_journal_that_was_damaged_is_refused(store: Settings, to: str) -> None:
    await delete(store, to)
    (Path(to) / "deleted" / "range-000000.parquet").write_bytes(b"PAR1")
    with pytest.raises(CorruptRecordError, match=r"deleted/range-000000\.parquet is cut off"):
        await look(store, DeletionRequest(to, at_most=ALL), SystemRuntime())


# --- kills -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=pytest.mark.night if point != "copied" else ()) for point in POINTS]
)
async def test_a_deletion_that_is_killed_goes_on_and_every_blob_can_be_restored(
    store: Settings, to: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await blobs(store)
    named = await readable(store)
    with start(store, to, point) as killed:
        _, errors = killed.communicate()
    assert killed.returncode == -signal.SIGKILL, errors.decode()
    await delete(store, to, DeletionRequest(to, at_most=ALL, rate_per_s=10_000, quarantine="test"))
    found = await look(store, DeletionRequest(to, at_most=ALL, quarantine="test"), SystemRuntime())
    assert found.left == 0 and sum(found.done.numbers.values()) == ORPHANS
    assert set(found.done.numbers) <= {DeleteOutcome.DELETED, DeleteOutcome.GONE}
    left = await blobs(store)
    assert {name for name in left if not name.startswith("~")} < before and await readable(store) == named == OBJECTS
    assert sum(name.startswith("~quarantine/test/") for name in left) == ORPHANS
    returned = await restore_deleted(store, to, SystemRuntime(), 10_000, lambda _: None, dry=False)
    assert (returned.copies, dict(returned.outcomes)) == (ORPHANS, {CopyOutcome.RESTORED: ORPHANS})
    assert await blobs(store) == before


async def test_an_interrupt_ends_the_deletion_and_the_next_call_goes_on(store: Settings, to: str) -> None:
    sent: list[int] = []

    def interrupt(progress: DeletionProgress) -> None:
        if progress.done and not sent:
            sent.append(progress.done)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(AuditInterruptedError, match="of 25 candidates are done: the same command goes on from there"):
        await delete_orphans(store, DeletionRequest(to, at_most=ALL, rate_per_s=5), SystemRuntime(), interrupt)
    between = await look(store, DeletionRequest(to, at_most=ALL), SystemRuntime())
    assert between.plan is not None
    found = await delete(store, to)
    assert dict(found.done.numbers) == {DeleteOutcome.DELETED: ORPHANS}  # what was done before the interrupt was noted


@pytest.mark.parametrize("point", ["unnoted", *(pytest.param(each, marks=pytest.mark.night) for each in ("copied", "deleted"))])
async def test_what_a_killed_deletion_did_not_note_can_be_restored(store: Settings, to: str, point: str) -> None:
    before = await blobs(store)
    with start(store, to, point) as killed:
        killed.communicate()
    aside = sum(name.startswith("~") for name in await blobs(store))
    seen = await restore_deleted(store, to, SystemRuntime(), 10_000, lambda _: None, dry=True)
    assert seen.copies == aside > 0 and not seen.outcomes
    returned = await restore_deleted(store, to, SystemRuntime(), 10_000, lambda _: None, dry=False)
    assert sum(returned.outcomes.values()) == aside and set(returned.outcomes) <= {CopyOutcome.RESTORED, CopyOutcome.THERE}
    left = await blobs(store)
    assert {name for name in left if not name.startswith("~")} == before
    kept = sum(name.startswith("~") for name in left)
    assert kept == returned.outcomes[CopyOutcome.THERE], "a deletion may still be about to delete these"


async def test_a_journal_that_names_a_live_blob_as_a_copy_loses_nothing(store: Settings, to: str) -> None:
    await delete(store, to, DeletionRequest(to, at_most=ALL, rate_per_s=10_000, quarantine="november"))
    before = await blobs(store)
    file = Path(to) / "deleted" / "range-000000.parquet"
    table = pq.read_table(file)
    aside = pa.array([min(before)] * len(table), pa.string())
    async with open_backends(store, SystemRuntime(), writes=False) as backends:
        head = await backends.tiers.long_term.head(min(before))
        assert head is not None
    edited = table.set_column(6, "aside", aside).set_column(7, "aside_generation", pa.array([head.generation] * len(table), pa.string()))
    pq.write_table(edited.replace_schema_metadata(table.schema.metadata), file)
    with pytest.raises(CorruptRecordError, match="is no copy of"):
        await restore_deleted(store, to, SystemRuntime(), 10_000, lambda _: None, dry=False)
    assert await blobs(store) == before and await readable(store) == OBJECTS


# --- restore ---------------------------------------------------------------------------------------


async def test_what_was_not_set_aside_cannot_be_restored(store: Settings, to: str) -> None:
    with pytest.raises(ConfigurationError, match="nothing was deleted because of it"):
        await restore_deleted(store, to, SystemRuntime(), 100, lambda _: None, dry=True)
    await delete(store, to)
    with pytest.raises(ConfigurationError, match="was not set aside"):
        await restore_deleted(store, to, SystemRuntime(), 100, lambda _: None, dry=True)


async def test_the_next_audit_counts_the_copies_and_calls_what_is_restored_an_orphan_again(
    store: Settings, to: str, tmp_path: Path
) -> None:
    await delete(store, to, DeletionRequest(to, at_most=ALL, rate_per_s=10_000, quarantine="november"))
    second = await audit(store, tmp_path / "second")
    assert second.complete and second.findings == 0
    assert second.totals["quarantined"].number == ORPHANS  # type: ignore[index]
    await restore_deleted(store, to, SystemRuntime(), 10_000, lambda _: None, dry=False)
    third = await audit(store, tmp_path / "third")
    assert third.totals["orphan"].number == ORPHANS and "quarantined" not in third.totals  # type: ignore[index]
