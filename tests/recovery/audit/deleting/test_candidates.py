"""One batch of candidates in a planted world: orphans are deleted, and whatever else is called an orphan stays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from changelog.base.errors import ConfigurationError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from changelog.noop import NoopChangeLog
from recovery.audit.deleting.candidates import Candidate, DeleteOutcome, DeletionBatch
from recovery.audit.deleting.journal import Copy, JournalEntry
from recovery.audit.deleting.quarantine import CopyOutcome, Quarantine, look, restore
from recovery.audit.finding import Finding
from recovery.audit.finding_classes import FindingClass
from tests.given.audit_grounds import OLD_NS, AuditGround, SimulatedGround, ground_of
from tests.given.findings import finding
from tests.given.planted_world import Planted, plant
from tiered.services.backends import Tombstone
from tiered.services.capabilities import BatchDeletion
from tiered.services.scans import BlobInfo, Generation

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(params=["simulated", "embedded", pytest.param("emulators", marks=pytest.mark.night)])
async def world(request: pytest.FixtureRequest, anyio_backend: object, tmp_path: Path) -> AsyncIterator[Planted]:
    async with ground_of(request.param, request, tmp_path) as ground:
        yield await plant(ground)


@pytest.fixture
def ground() -> AuditGround:
    return SimulatedGround()


async def listed(ground: AuditGround) -> dict[str, BlobInfo]:
    found: dict[str, BlobInfo] = {}
    start: str | None = ""
    while start is not None:
        page = await ground.tiers.long_term.list(start, None, 1000)
        found |= {blob.name: blob for blob in page.blobs}
        start = page.next_start
    return found


def called_orphan(blob: BlobInfo) -> Finding:
    return finding(FindingClass.ORPHAN, blob.name, size=blob.size, generation=blob.generation)


PATH = "media/objects/key"
STAY = {
    FindingClass.REFERENCED, FindingClass.IN_FLIGHT, FindingClass.SUPERSEDED, FindingClass.LEGACY_ORPHAN, FindingClass.UPLOAD,
    FindingClass.STALE_UPLOAD, FindingClass.QUARANTINED, FindingClass.FOREIGN, FindingClass.UNPARSEABLE,
}  # fmt: skip


async def orphan(ground: AuditGround, path: str = PATH) -> str:
    """Plants a blob that nothing names."""
    name = f"{path}/{ground.clock.at(OLD_NS)}"
    await ground.blob(name, 10, OLD_NS, None)
    return name


def batch_of(ground: AuditGround, candidates: list[Candidate], **more: Any) -> DeletionBatch:
    return DeletionBatch(ground.tiers, ground.log, candidates, SystemRuntime(), **more)


async def candidates_of(ground: AuditGround, *names: str) -> list[Candidate]:
    blobs = await listed(ground)
    found = [Candidate.of(called_orphan(blob)) for name, blob in blobs.items() if not names or name in names]
    return [each for each in found if each is not None]


async def run(ground: AuditGround, *names: str, log: bool = True) -> dict[str, DeleteOutcome]:
    candidates = await candidates_of(ground, *names)
    batch = DeletionBatch(ground.tiers, ground.log if log else NoopChangeLog(), candidates, SystemRuntime())
    await batch.run()
    assert set(batch.outcomes) == {each.name for each in candidates}
    return batch.outcomes


# --- a planted world, in which every blob is called an orphan --------------------------------------


async def test_if_every_blob_is_called_an_orphan_only_those_that_nothing_names_are_deleted(world: Planted) -> None:
    """I1: each blob that its row names is there as before.

    The row of another object may name it, too. Nobody can look for that, so such a row makes a whole run doubtful.
    """
    before = set(await listed(world.ground))
    redirects = (await world.ground.tiers.high_volume.redirects(b"", None, 100_000)).redirects
    outcomes = await run(world.ground)
    left = set(await listed(world.ground))
    assert {redirect.target for redirect in redirects} & before - world.undecided <= left
    kinds = {name: kind for (kind, name) in world.expected if name in before}
    for name, kind in kinds.items():
        if kind is FindingClass.ORPHAN:
            assert name not in left, name
        if kind in STAY:
            assert name in left, (kind, name, outcomes.get(name))
    assert {name for name, outcome in outcomes.items() if outcome is DeleteOutcome.DELETED} == before - left
    assert {kinds.get(name, FindingClass.ORPHAN) for name in before - left} <= {
        FindingClass.ORPHAN, FindingClass.TOO_YOUNG, FindingClass.EXPIRED, FindingClass.OVERDUE
    }  # fmt: skip


# --- one candidate ---------------------------------------------------------------------------------


async def test_a_change_that_is_refused_by_the_deletion_never_takes_effect(ground: AuditGround) -> None:
    """I1: the swap of a writer whose entry was lost comes after the deletion, and conflicts."""
    token = ground.clock.at(OLD_NS)
    name = f"{PATH}/{token}"
    await ground.blob(name, 10, OLD_NS, None)
    assert await run(ground, name) == {name: DeleteOutcome.DELETED}
    assert not await ground.tiers.high_volume.swap(PATH, token, None, Tombstone(name, token=token), 1e12)
    assert (await ground.tiers.high_volume.read(PATH)).state is None


async def test_a_row_that_names_it_since_the_batch_read_the_rows_keeps_it(ground: AuditGround) -> None:
    name = await orphan(ground)
    [candidate] = await candidates_of(ground, name)

    async def swap_now() -> None:
        await ground.row(PATH, name, None)

    batch = batch_of(ground, [candidate], pace=swap_now)
    await batch.run()
    assert batch.outcomes == {name: DeleteOutcome.NAMED} and name in await listed(ground)


async def test_an_entry_that_names_it_as_new_or_as_old_keeps_it(ground: AuditGround) -> None:
    new, old, other = [await orphan(ground) for _ in range(3)]
    await ground.entry(Change(ChangeId(new.rpartition("/")[2]), PATH, new, old))
    assert await run(ground) == {new: DeleteOutcome.LOGGED, old: DeleteOutcome.LOGGED, other: DeleteOutcome.DELETED}


async def test_without_a_changelog_an_entry_keeps_nothing_and_the_settle_still_does(ground: AuditGround) -> None:
    name, live = [await orphan(ground) for _ in range(2)]
    await ground.row(PATH, live, None)
    await ground.entry(Change(ChangeId(name.rpartition("/")[2]), PATH, name, None))
    assert await run(ground, log=False) == {name: DeleteOutcome.DELETED, live: DeleteOutcome.NAMED}


async def test_another_generation_of_the_name_stays(ground: AuditGround) -> None:
    name = await orphan(ground)
    candidates = await candidates_of(ground, name)
    await ground.tiers.long_term.delete(name)
    await ground.blob(name, 11, OLD_NS, None)
    batch = batch_of(ground, candidates)
    await batch.run()
    assert batch.outcomes == {name: DeleteOutcome.REPLACED} and name in await listed(ground)


async def test_a_blob_that_is_gone_is_told_so_however_often_it_is_tried(ground: AuditGround) -> None:
    name = await orphan(ground)
    candidates = await candidates_of(ground, name)
    for outcome in (DeleteOutcome.DELETED, DeleteOutcome.GONE, DeleteOutcome.GONE):
        batch = batch_of(ground, candidates)
        await batch.run()
        assert batch.outcomes == {name: outcome}


@pytest.mark.parametrize("kind", [kind for kind in FindingClass if kind is not FindingClass.ORPHAN])
def test_findings_of_another_class_are_no_candidates(kind: FindingClass) -> None:
    assert Candidate.of(finding(kind, f"{PATH}/01a10000-0000-7000-8000-000000000000")) is None


@pytest.mark.parametrize("name", ["media/objects/key", "notes.txt", "media/uploads/k/01a10000-0000-7000-8000-000000000000"])
def test_a_name_without_a_revision_is_no_candidate_whatever_its_finding_says(name: str) -> None:
    assert Candidate.of(finding(FindingClass.ORPHAN, name)) is None
    assert Candidate.of(finding(FindingClass.ORPHAN, f"{PATH}/01a10000-0000-7000-8000-000000000000", generation=None)) is None


async def test_an_error_leaves_the_fates_that_are_known_and_the_batch_goes_on_from_there(ground: AuditGround) -> None:
    names = [await orphan(ground) for _ in range(240)]
    count = 0

    async def fail_at_the_200th() -> None:
        nonlocal count
        count += 1
        if count == 200:
            raise ConfigurationError("the permission is gone")

    batch = batch_of(ground, await candidates_of(ground), pace=fail_at_the_200th)
    with pytest.raises(ConfigurationError, match="the permission is gone"):
        await batch.run()
    assert 0 < len(batch.outcomes) < 240 and set(batch.outcomes.values()) == {DeleteOutcome.DELETED}
    await batch.run()
    assert set(batch.outcomes) == set(names) and set(batch.outcomes.values()) == {DeleteOutcome.DELETED}


def tally(calls: list[str], ground: AuditGround, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes the calls that delete."""
    for name in ("delete_generation", "delete_generations"):
        monkeypatch.setattr(ground.tiers.long_term, name, noting(calls, name, getattr(ground.tiers.long_term, name)))


def noting(calls: list[str], name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def noted(*args: Any) -> Any:
        calls.append(name)
        return await call(*args)

    return noted


async def test_blobs_are_deleted_by_the_hundred(ground: AuditGround, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(230):
        await orphan(ground)
    calls: list[str] = []
    tally(calls, ground, monkeypatch)
    assert set((await run(ground)).values()) == {DeleteOutcome.DELETED}
    assert calls == ["delete_generations"] * 3 and not await listed(ground)


@pytest.mark.parametrize("lost", [UnconfirmedError("x"), UnavailableError("x"), ConfigurationError("it takes no batches")])
@pytest.mark.parametrize("effect", [True, False])
async def test_a_batch_without_an_answer_is_looked_at_one_by_one(
    ground: AuditGround, monkeypatch: pytest.MonkeyPatch, lost: Exception, effect: bool
) -> None:
    names = [await orphan(ground) for _ in range(3)]
    delete = cast(BatchDeletion, ground.tiers.long_term).delete_generations

    async def unanswered(blobs: Sequence[tuple[str, Generation]]) -> Any:
        if effect:
            await delete(blobs)
        raise lost

    monkeypatch.setattr(ground.tiers.long_term, "delete_generations", unanswered)
    assert await run(ground) == dict.fromkeys(names, DeleteOutcome.GONE if effect else DeleteOutcome.DELETED)
    assert not await listed(ground)


async def test_a_part_of_a_batch_that_failed_is_deleted_by_itself(ground: AuditGround, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [await orphan(ground) for _ in range(3)]
    delete = cast(BatchDeletion, ground.tiers.long_term).delete_generations

    async def partly(blobs: Sequence[tuple[str, Generation]]) -> Any:
        return [UnconfirmedError("x"), *await delete(blobs[1:])]

    monkeypatch.setattr(ground.tiers.long_term, "delete_generations", partly)
    calls: list[str] = []
    tally(calls, ground, monkeypatch)
    assert await run(ground) == dict.fromkeys(names, DeleteOutcome.DELETED)
    assert calls == ["delete_generations", "delete_generation"]


# --- the quarantine --------------------------------------------------------------------------------


async def set_aside(ground: AuditGround, name: str) -> tuple[DeletionBatch, Quarantine]:
    quarantine = Quarantine(ground.tiers, "test", SystemRuntime())
    batch = batch_of(ground, await candidates_of(ground, name), set_aside=quarantine.set_aside)
    return batch, quarantine


async def pay_nothing() -> None:
    return


async def test_a_blob_that_is_set_aside_can_be_restored_once(ground: AuditGround) -> None:
    name = await orphan(ground)
    batch, quarantine = await set_aside(ground, name)
    await batch.run()
    assert batch.outcomes == {name: DeleteOutcome.DELETED} and list(await listed(ground)) == [f"~quarantine/test/{name}"]
    entry = JournalEntry(batch.candidates[0], DeleteOutcome.DELETED, quarantine.copies[name])
    assert await restore(entry, ground.tiers, SystemRuntime(), pay_nothing) is CopyOutcome.RESTORED
    assert list(await listed(ground)) == [name]
    assert await restore(entry, ground.tiers, SystemRuntime(), pay_nothing) is CopyOutcome.BACK, "it was called lost"
    assert await look(entry, ground.tiers, SystemRuntime()) is CopyOutcome.BACK
    assert list(await listed(ground)) == [name]


async def test_a_copy_whose_deletion_was_killed_before_it_was_noted_is_noted_at_the_next_try(ground: AuditGround) -> None:
    name = await orphan(ground)
    (first, _), (second, quarantine) = await set_aside(ground, name), await set_aside(ground, name)
    await first.run()
    await second.run()
    assert second.outcomes == {name: DeleteOutcome.GONE} and quarantine.copies[name].name == f"~quarantine/test/{name}"


async def test_a_restoration_overwrites_nothing(ground: AuditGround) -> None:
    name = await orphan(ground)
    batch, quarantine = await set_aside(ground, name)
    await batch.run()
    await ground.blob(name, 11, OLD_NS, None)
    entry = JournalEntry(batch.candidates[0], DeleteOutcome.DELETED, quarantine.copies[name])
    assert await restore(entry, ground.tiers, SystemRuntime(), pay_nothing) is CopyOutcome.TAKEN
    assert {blob.name: blob.size for blob in (await listed(ground)).values()} == {name: 11, f"~quarantine/test/{name}": 10}


async def test_what_cannot_be_copied_is_not_deleted(ground: AuditGround, monkeypatch: pytest.MonkeyPatch) -> None:
    long, name = await orphan(ground, f"{PATH}/{'k' * 960}"), await orphan(ground)
    batch, _ = await set_aside(ground, long)
    await batch.run()
    assert batch.outcomes == {long: DeleteOutcome.KEPT}

    async def refuse(*_: object) -> None:
        raise ConfigurationError("it may not write")

    monkeypatch.setattr(ground.tiers.long_term, "set_aside", refuse)
    batch, _ = await set_aside(ground, name)
    with pytest.raises(ConfigurationError):
        await batch.run()
    assert set(await listed(ground)) == {long, name}


async def test_what_was_deleted_without_a_copy_cannot_be_restored(ground: AuditGround) -> None:
    name = await orphan(ground)
    [candidate] = await candidates_of(ground, name)
    assert await restore(JournalEntry(candidate, DeleteOutcome.DELETED), ground.tiers, SystemRuntime(), pay_nothing) is CopyOutcome.NO_COPY
    gone = JournalEntry(candidate, DeleteOutcome.DELETED, Copy("~quarantine/test/nothing", "1"))
    assert await restore(gone, ground.tiers, SystemRuntime(), pay_nothing) is CopyOutcome.BACK
    await ground.tiers.long_term.delete(name)
    assert await restore(gone, ground.tiers, SystemRuntime(), pay_nothing) is CopyOutcome.LOST
    assert await look(gone, ground.tiers, SystemRuntime()) is CopyOutcome.LOST
