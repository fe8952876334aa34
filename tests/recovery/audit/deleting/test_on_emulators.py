"""Orphans of Bigtable and GCS are deleted beside a writer: killed, gone on with, restored. Lost blobs are restored."""

from __future__ import annotations

import signal

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from recovery.audit.deleting.candidates import DeleteOutcome
from recovery.audit.deleting.deletion import look
from recovery.audit.deleting.gates import DeletionRequest
from recovery.audit.deleting.losses import RestoreOutcome
from recovery.audit.deleting.quarantine import CopyOutcome
from recovery.audit.deleting.restoring import restore_deleted, restore_lost
from recovery.audit.running.jobs import AuditOptions
from recovery.audit.running.run import run_audit
from tests.given.audited_store import InThread
from tests.given.deleted_store import ALL, OBJECTS, ORPHANS, blobs, plant_orphans, readable, wait_until_judged
from tests.given.deletion_process import start
from tiered.object_id import ObjectId
from tiered.open import open_backends, open_storage
from tiered.settings import Settings

pytestmark = pytest.mark.slow
RUN = "gs://audits/2026/november"


async def planted(settings: Settings) -> None:
    await plant_orphans(settings)
    await wait_until_judged(settings)
    manifest = await run_audit(settings, AuditOptions(RUN, grace_s=0, insist=True), InThread(), SystemRuntime(), lambda _: None)
    assert manifest.complete and manifest.totals["orphan"].number == ORPHANS  # type: ignore[index]


async def write_until(over: anyio.Event, settings: Settings) -> None:
    """Overwrites the objects again and again."""
    async with open_storage(settings) as storage:
        number = 0
        while not over.is_set():
            await storage.put(ObjectId("media", (), f"{number % OBJECTS:02}"), b"y" * 30)
            number += 1
            await anyio.sleep(0.1)


def test_a_deletion_killed_beside_a_writer_goes_on_and_is_undone(services: Settings) -> None:
    async def main() -> None:
        await planted(services)
        over = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write_until, over, services)
            for point, code in (("deleted", -signal.SIGKILL), ("never", 0)):
                with start(services, RUN, point) as deletion:
                    _, errors = await anyio.to_thread.run_sync(deletion.communicate)
                assert deletion.returncode == code, errors.decode()
            over.set()
        found = await look(services, DeletionRequest(RUN, at_most=ALL, quarantine="test"), SystemRuntime())
        assert found.left == 0 and sum(found.done.numbers.values()) == ORPHANS
        assert set(found.done.numbers) == {DeleteOutcome.DELETED, DeleteOutcome.GONE}
        left = await blobs(services)
        assert sum(name.startswith("~quarantine/test/") for name in left) == ORPHANS
        assert len(left) == ORPHANS + OBJECTS == ORPHANS + await readable(services)
        returned = await restore_deleted(services, RUN, SystemRuntime(), 10_000, lambda _: None, dry=False)
        assert dict(returned.outcomes) == {CopyOutcome.RESTORED: ORPHANS}
        assert not any(name.startswith("~") for name in await blobs(services))
        await lost_blobs_are_restored(services)

    anyio.run(main)


async def lost_blobs_are_restored(settings: Settings) -> None:
    async with open_backends(settings, SystemRuntime()) as backends:
        targets = [(await backends.tiers.high_volume.read(f"media/objects/{number:02}")).target for number in range(2)]
        for target in targets:
            assert target is not None
            await backends.tiers.long_term.delete(target)
    where = f"{RUN}-lost"
    manifest = await run_audit(settings, AuditOptions(where, grace_s=0, insist=True), InThread(), SystemRuntime(), lambda _: None)
    assert manifest.totals["dangling"].number == 2  # type: ignore[index]

    async def restored(*, dry: bool) -> dict[RestoreOutcome, int]:
        found = await restore_lost(settings, where, SystemRuntime(), 100, lambda _: None, dry=dry)
        assert {each.name for each in found.losses} == set(targets) and found.doubts == ()
        return dict(found.ends)

    assert await restored(dry=True) == {RestoreOutcome.RESTORABLE: 2} and not set(targets) & await blobs(settings)
    assert await restored(dry=False) == {RestoreOutcome.RESTORED: 2} and await readable(settings) == OBJECTS
    assert await restored(dry=False) == {RestoreOutcome.RESTORED: 2}
