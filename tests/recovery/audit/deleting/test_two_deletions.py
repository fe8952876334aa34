"""Two deletions of one run, and a restoration between their steps: a blob that is back stays, or its copy does.

The slower deletion is stopped before one of its calls of the long-term tier, in a wrapped backend. Meanwhile the faster
one ends, and a restoration brings the blob back. Then the slower one goes on.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from recovery.audit.deleting.candidates import Candidate, DeleteOutcome, DeletionBatch
from recovery.audit.deleting.journal import JournalEntry
from recovery.audit.deleting.quarantine import CopyOutcome, Quarantine, restore
from tests.given.audit_grounds import BEGINS_NS, DAY_NS, OLD_NS, AuditGround, EmbeddedGround, embedded_ground
from tiered.services.backends import LongTermBackend, Tiers
from tiered.services.scans import Removal

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PATH = "media/objects/key"


class Stopped:
    """A long-term tier whose call of this name waits, the first time, until it may go on."""

    def __init__(self, blobs: LongTermBackend, call: str) -> None:
        self._blobs = blobs
        self._call = call
        self.reached, self.go_on = anyio.Event(), anyio.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._blobs, name)
        if name != self._call:
            return found

        async def wait(*args: Any) -> Any:
            self.reached.set()
            await self.go_on.wait()
            return await found(*args)

        return wait


def deletion(ground: AuditGround, candidate: Candidate, blobs: object = None, label: str = "test") -> tuple[DeletionBatch, Quarantine]:
    tiers = Tiers(ground.tiers.high_volume, cast(LongTermBackend, blobs or ground.tiers.long_term))
    quarantine = Quarantine(tiers, label, SystemRuntime())
    return DeletionBatch(tiers, ground.log, [candidate], SystemRuntime(), set_aside=quarantine.set_aside), quarantine


async def pay_nothing() -> None:
    return


async def orphan(ground: AuditGround, deadline_ns: int | None = None) -> Candidate:
    name = f"{PATH}/{ground.clock.at(OLD_NS)}"
    await ground.blob(name, 10, OLD_NS, deadline_ns)
    ground.clock.now_ns = BEGINS_NS
    return await as_listed(ground, name)


async def as_listed(ground: AuditGround, name: str) -> Candidate:
    head = await ground.tiers.long_term.head(name)
    assert head is not None
    candidate = Candidate.named(name, head.generation, head.size)
    assert candidate is not None
    return candidate


async def names(ground: AuditGround) -> list[str]:
    return [blob.name for blob in (await ground.tiers.long_term.list("", None, 100)).blobs]


async def back(
    ground: AuditGround, candidate: Candidate, quarantine: Quarantine, outcome: DeleteOutcome | None = DeleteOutcome.DELETED
) -> CopyOutcome:
    return await restore(JournalEntry(candidate, outcome, quarantine.copies[candidate.name]), ground.tiers, SystemRuntime(), pay_nothing)


@pytest.mark.parametrize("call", ["set_aside", "delete_generation"])
async def test_a_restored_blob_was_destroyed_by_a_slower_deletion_of_the_same_run(ground: AuditGround, call: str) -> None:
    candidate = await orphan(ground)
    stopped = Stopped(ground.tiers.long_term, call)
    slower, _ = deletion(ground, candidate, stopped)
    faster, quarantine = deletion(ground, candidate)
    async with anyio.create_task_group() as group:
        group.start_soon(slower.run)
        await stopped.reached.wait()
        await faster.run()
        assert faster.outcomes == {candidate.name: DeleteOutcome.DELETED}
        assert await back(ground, candidate, quarantine) is CopyOutcome.RESTORED
        assert await names(ground) == [candidate.name]
        stopped.go_on.set()
    assert slower.outcomes == {candidate.name: DeleteOutcome.REPLACED}
    assert await names(ground) == [candidate.name]


async def test_a_restoration_beside_a_deletion_took_the_copy_of_a_blob_that_was_about_to_be_deleted(ground: AuditGround) -> None:
    """Whatever the journal says of it: as long as the blob is the one that was listed, its copy stays."""
    candidate = await orphan(ground)
    stopped = Stopped(ground.tiers.long_term, "delete_generation")
    slower, quarantine = deletion(ground, candidate, stopped)
    async with anyio.create_task_group() as group:
        group.start_soon(slower.run)
        await stopped.reached.wait()
        for outcome in (None, DeleteOutcome.DELETED, DeleteOutcome.GONE):
            assert await back(ground, candidate, quarantine, outcome) is CopyOutcome.THERE
        stopped.go_on.set()
    assert slower.outcomes == {candidate.name: DeleteOutcome.DELETED}
    assert await names(ground) == [quarantine.copies[candidate.name].name]
    assert await back(ground, candidate, quarantine) is CopyOutcome.RESTORED and await names(ground) == [candidate.name]


@pytest.mark.parametrize("call", ["bring_back", "delete_generation"])
async def test_of_two_restorations_the_slower_one_harms_nothing(ground: AuditGround, call: str) -> None:
    candidate = await orphan(ground)
    batch, quarantine = deletion(ground, candidate)
    await batch.run()
    stopped = Stopped(ground.tiers.long_term, call)
    slow = replace_blobs(ground, stopped)
    ends: list[CopyOutcome] = []

    async def restore_slowly() -> None:
        entry = JournalEntry(candidate, DeleteOutcome.DELETED, quarantine.copies[candidate.name])
        ends.append(await restore(entry, slow, SystemRuntime(), pay_nothing))

    async with anyio.create_task_group() as group:
        group.start_soon(restore_slowly)
        await stopped.reached.wait()
        assert await back(ground, candidate, quarantine) is CopyOutcome.RESTORED
        stopped.go_on.set()
    assert ends == [CopyOutcome.BACK if call == "bring_back" else CopyOutcome.RESTORED]
    assert await names(ground) == [candidate.name]


def replace_blobs(ground: AuditGround, blobs: object) -> Tiers:
    return replace(ground.tiers, long_term=cast(LongTermBackend, blobs))


async def test_a_later_run_that_deletes_what_was_restored_has_a_copy_of_its_own(ground: AuditGround) -> None:
    """A restoration of the first run stands still before it removes its copy. A copy of its name would be that one."""
    candidate = await orphan(ground)
    first, quarantine = deletion(ground, candidate, label="test/first")
    await first.run()
    stopped = Stopped(ground.tiers.long_term, "delete_generation")
    entry = JournalEntry(candidate, DeleteOutcome.DELETED, quarantine.copies[candidate.name])
    async with anyio.create_task_group() as group:
        group.start_soon(restore, entry, replace_blobs(ground, stopped), SystemRuntime(), pay_nothing)
        await stopped.reached.wait()
        again = await as_listed(ground, candidate.name)
        assert again.generation != candidate.generation
        second, quarantine = deletion(ground, again, label="test/second")
        await second.run()
        assert second.outcomes == {candidate.name: DeleteOutcome.DELETED}
        stopped.go_on.set()
    assert await back(ground, again, quarantine) is CopyOutcome.RESTORED and await names(ground) == [candidate.name]


async def test_each_step_beside_a_restored_blob_refuses_the_old_generation(ground: AuditGround) -> None:
    candidate, blobs = await orphan(ground), ground.tiers.long_term
    batch, quarantine = deletion(ground, candidate)
    await batch.run()
    copy = quarantine.copies[candidate.name]
    restored = await blobs.bring_back(copy.name, copy.generation, candidate.name, BEGINS_NS)
    assert isinstance(restored, str) and restored != candidate.generation
    assert await blobs.bring_back(copy.name, copy.generation, candidate.name, BEGINS_NS) == restored, "it may be repeated"
    assert await blobs.delete_generation(candidate.name, candidate.generation) is Removal.REPLACED
    head = await blobs.head(candidate.name)
    assert head is not None and head.generation == restored and head.size == 10


# --- deadlines -------------------------------------------------------------------------------------


async def test_a_copy_in_quarantine_was_collected_as_expired(ground: AuditGround) -> None:
    """The deadline is the blob's and not the copy's: it comes back with the blob."""
    deadline_ns = BEGINS_NS + 3650 * DAY_NS  # the emulator's own clock is that of this machine
    candidate = await orphan(ground, deadline_ns)
    before = await ground.tiers.long_term.head(candidate.name)
    batch, quarantine = deletion(ground, candidate)
    await batch.run()
    copy = quarantine.copies[candidate.name].name
    ground.clock.now_ns = deadline_ns + 9 * DAY_NS
    await ground.collect()
    assert await names(ground) == [copy]
    ground.clock.now_ns = BEGINS_NS
    assert await back(ground, candidate, quarantine) is CopyOutcome.RESTORED
    after = await ground.tiers.long_term.head(candidate.name)
    assert before is not None and after is not None and after.metadata == before.metadata
    ground.clock.now_ns = deadline_ns + 9 * DAY_NS
    await ground.collect()
    assert await names(ground) == [], "the deadline holds again"


async def test_a_blob_whose_deadline_has_passed_stays_in_quarantine_and_it_is_said(ground: AuditGround) -> None:
    candidate = await orphan(ground, 10**18)
    batch, quarantine = deletion(ground, candidate)
    await batch.run()
    assert await back(ground, candidate, quarantine) is CopyOutcome.EXPIRED
    assert await names(ground) == [quarantine.copies[candidate.name].name]


async def test_a_copy_whose_bytes_were_damaged_ended_the_whole_restoration(tmp_path: Path) -> None:
    async with embedded_ground(tmp_path) as ground:
        candidate = await orphan(ground)
        batch, quarantine = deletion(ground, candidate)
        await batch.run()
        copy = quarantine.copies[candidate.name].name
        assert isinstance(ground, EmbeddedGround)
        with ground.file_of(copy).open("r+b") as file:
            file.write(b"y")
        assert await back(ground, candidate, quarantine) is CopyOutcome.UNREADABLE
        assert await names(ground) == [copy] and not list((tmp_path / "uploads").iterdir())
