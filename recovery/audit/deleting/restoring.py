"""Brings back what is gone: copies that a deletion set aside, or lost blobs that the service still keeps.

`restore_lost` takes every dangling finding of a run (`losses.py`), and notes in the run's directory what became of it.
After a kill the same call goes on.

`restore_deleted` takes every copy in the journal of a run, back to its name. A blob that is back is an orphan again,
because nothing names it. An audit calls it one when it is older than the grace. Nothing is written to the journal: a
copy that is gone says that it was restored before, if a blob has its name, or deleted. So the call may be repeated,
after a crash too. A deletion that was killed may have set blobs aside without a note. Their copies are looked for, and
are brought back, too. What a deletion may still be about to delete keeps its copy (`quarantine.py`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio
from anyio import to_thread

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import Runtime
from recovery.audit.deleting.candidates import AT_ONCE
from recovery.audit.deleting.journal import DeletionJournal, DeletionPlan, JournalEntry
from recovery.audit.deleting.loss_notes import BATCH, LossNotes
from recovery.audit.deleting.losses import Loss, Losses, RestoreOutcome, keeps_deleted
from recovery.audit.deleting.quarantine import CopyOutcome, look, restore, shelf_of, with_copy
from recovery.audit.files.evidence import evidence
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Manifest, differing_inputs
from recovery.audit.reporting.one_name import NOBODY_ASKS
from recovery.audit.running.jobs import check_there, portable
from recovery.audit.running.plan import inputs_of
from tiered.limits.rate import TokenBucket
from tiered.open import open_backends
from tiered.services.concurrent import map_concurrently
from tiered.settings import Settings

LOSSES_SHOWN = 1000


@dataclass(slots=True)
class RestoredCopies:
    """What a restoration did, or would do. `copies`: how many copies the journal names. `size`: their bytes.

    `outcomes`: how many copies had which; of a call that only looks, those that are gone or cannot be read. `there`:
    how many such a call has seen, with `there_size` bytes. `quarantine`: where the copies are, below `~quarantine/`.
    """

    copies: int
    size: int
    quarantine: str
    outcomes: Counter[CopyOutcome]
    there: int = 0
    there_size: int = 0

    @property
    def is_lost(self) -> bool:
        """Whether some copies cannot be brought back although nothing has their names, or nobody knows."""
        return bool(self.outcomes[CopyOutcome.LOST] or self.outcomes[CopyOutcome.UNREADABLE])

    def add_seen(self, entry: JournalEntry, seen: CopyOutcome | None) -> None:
        if seen is None:
            self.there += 1
            self.there_size += entry.candidate.size
        else:
            self.outcomes[seen] += 1


async def restore_deleted(
    settings: Settings, where: str, runtime: Runtime, rate_per_s: float, progress: Callable[[RestoredCopies], None], *, dry: bool
) -> RestoredCopies:
    """Brings back all blobs that the deletion of this run set aside.

    `where`: the directory of the run. `dry`: only looks which copies are there.

    Raises `ConfigurationError` if the run has no quarantine, or is of another store. `CorruptRecordError`: the journal
    breaks the format. `UnavailableError`, `UnconfirmedError`: a service did not answer; the call may be repeated.
    """
    check_there(settings)
    settings = portable(settings)
    directory = await to_thread.run_sync(RunDirectory.open, where, runtime)
    journal, shelf, plan = await to_thread.run_sync(_opened, directory, settings)
    found = RestoredCopies(0, 0, shelf, Counter())
    bucket = TokenBucket(runtime, rate_per_s)
    async with open_backends(settings, runtime, writes=not dry) as backends:
        for batch in range(plan.batches):
            noted = await to_thread.run_sync(journal.read, batch)
            copied = await map_concurrently(lambda entry: with_copy(entry, shelf, backends.tiers, runtime), noted, AT_ONCE)
            entries = [each for each in copied if each.copy]
            found.copies += len(entries)
            found.size += sum(each.candidate.size for each in entries)
            if dry:
                looks = await map_concurrently(lambda entry: look(entry, backends.tiers, runtime), entries, AT_ONCE)
                for entry, seen in zip(entries, looks, strict=True):
                    found.add_seen(entry, seen)
            else:
                found.outcomes.update(
                    await map_concurrently(lambda entry: restore(entry, backends.tiers, runtime, bucket.take), entries, AT_ONCE)
                )
            progress(found)
    return found


@dataclass(slots=True)
class RestoredLosses:
    """What a restoration of lost blobs did, or would do. `ends`: how many had which end, and `sizes` the bytes of those
    whose size is known.

    `losses`: the first `LOSSES_SHOWN` of them; `number`: how many there are in all. `doubts`: why the run may not name
    all lost blobs, one sentence each.
    """

    doubts: tuple[str, ...]
    number: int
    ends: Counter[RestoreOutcome]
    sizes: Counter[RestoreOutcome]
    losses: list[Loss]

    def add(self, loss: Loss) -> None:
        self.number += 1
        self.ends[loss.end] += 1
        if loss.size is not None:
            self.sizes[loss.end] += loss.size
        if len(self.losses) < LOSSES_SHOWN:
            self.losses.append(loss)


async def restore_lost(
    settings: Settings, where: str, runtime: Runtime, rate_per_s: float, progress: Callable[[RestoredLosses], None], *, dry: bool
) -> RestoredLosses:
    """Restores the blobs that this run called dangling, if tombstones still name them and the service keeps them.

    `where`: the directory of the run. `dry`: only looks, and writes nothing.

    Raises `ConfigurationError` if there is no run, if it is of another store, or if nobody can ask what is kept there.
    `CorruptRecordError`: a file of the run breaks the format. `UnavailableError`, `UnconfirmedError`: a service did not
    answer; the call may be repeated.
    """
    check_there(settings)
    settings = portable(settings)
    directory = await to_thread.run_sync(RunDirectory.open, where, runtime)
    run = (await to_thread.run_sync(_manifest, directory, settings)).run
    notes = LossNotes(directory.files, run)
    async with open_backends(settings, runtime, writes=not dry) as backends:
        blobs = keeps_deleted(backends.tiers.long_term)
        if blobs is None:
            raise ConfigurationError(
                f"nothing that {directory.uri} misses can be restored: {NOBODY_ASKS}"
            )
        proof = await to_thread.run_sync(evidence, directory, await backends.tiers.long_term.now_ns())
        found = RestoredLosses(proof.doubts, 0, Counter(), Counter(), [])
        losses = Losses(backends.tiers, blobs, backends.log, runtime, TokenBucket(runtime, rate_per_s).take)
        findings = (finding.name for finding in directory.findings(run, {FindingClass.DANGLING}))
        for number in itertools.count():
            names = await to_thread.run_sync(lambda: list(dict.fromkeys(itertools.islice(findings, BATCH))))
            if not names:
                return found
            looked = await losses.look(names, await to_thread.run_sync(notes.read, number, names))
            for loss in looked if dry else await _restore_batch(losses, looked, notes, number):
                found.add(loss)
            progress(found)
    raise AssertionError("the findings end")


async def _restore_batch(losses: Losses, looked: Sequence[Loss], notes: LossNotes, number: int) -> list[Loss]:
    """Restores what may be, and notes it before and after, also if it ends with an error or is cancelled."""
    known = {each.name: each for each in looked}

    async def restore_one(loss: Loss) -> None:
        known[loss.name] = await losses.restore(loss)

    await to_thread.run_sync(notes.write, number, looked)
    try:
        await map_concurrently(restore_one, [each for each in looked if each.is_to_do], AT_ONCE)
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(notes.write, number, list(known.values()))
    return list(known.values())


def _manifest(directory: RunDirectory, settings: Settings) -> Manifest:
    manifest = directory.read_manifest()
    if manifest is None:
        raise ConfigurationError(f"{directory.uri} holds no run of an audit: give the directory that `tiered audit run` named")
    if differing_inputs(manifest.inputs, inputs_of(settings)):
        raise ConfigurationError(f"{directory.uri} is a run of another store: give the settings of then")
    return manifest


def _opened(directory: RunDirectory, settings: Settings) -> tuple[DeletionJournal, str, DeletionPlan]:
    manifest = _manifest(directory, settings)
    journal = DeletionJournal(directory.files, manifest.run)
    plan = journal.plan()
    if plan is None or plan.quarantine is None:
        why = "nothing was deleted because of it" if plan is None else "what was deleted because of it was not set aside"
        raise ConfigurationError(f"nothing of {directory.uri} can be restored: {why}; for lost blobs, give --class {FindingClass.DANGLING}")
    for _ in journal.entries(plan):  # all of it is checked before the first copy is touched
        pass
    return journal, shelf_of(plan.quarantine, plan.run), plan
