"""Copies that are kept of what is deleted, in the same bucket or directory, and their way back.

    NAME  --copy, checked-->  ~quarantine/LABEL/RUN/NAME      then NAME is deleted
    ~quarantine/LABEL/RUN/NAME  --copy, if the copy has the generation of the journal-->  NAME  then the copy is deleted

Deletions and restorations of one run may work at the same time, and stop anywhere. The blob or its copy is always
there, because of these rules:

- A deletion of the run deletes only the generation that the run has listed.
- A restoration makes another generation (`bring_back`), and no other step of the run makes a blob of that name.
- A restoration removes the copy only if the blob that is there has not the generation that was listed. So no deletion
  of the run can delete it any more.
- Each run has its own copies. A later run that deletes what was restored does not lean on a copy that is being removed.

docs/protocol/deleting.py tries every interleaving of this. The audit counts names below `~quarantine/` as
`quarantined`, and accuses none of them. No deadline removes a copy. A blob that was restored is an orphan again:
nothing names it. An older blob of the same name is never overwritten. *Crash* anywhere: each step may be repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from changelog.base.errors import CorruptRecordError, InvalidRequestError
from changelog.base.runtime import Runtime
from recovery.audit.deleting.candidates import BUDGET_S, Candidate, DeleteOutcome, Meant, Pace
from recovery.audit.deleting.journal import Copy, JournalEntry
from tiered.services.backends import Tiers
from tiered.services.retry import retry, retry_read
from tiered.services.scans import QUARANTINE, NotCopied
from tiered.text import refuse_control_characters

T = TypeVar("T")

LABEL_BYTES_MAX = 100
NAME_BYTES_MAX = 1024
"""Of an object in GCS."""


def check_label(label: str) -> str:
    """Returns the label of a quarantine. Raises `InvalidRequestError` if no names can begin with it."""
    size = len(label.encode(errors="surrogatepass"))
    if {"", ".", ".."} & set(label.split("/")) or size > LABEL_BYTES_MAX or label.encode(errors="replace").decode() != label:
        raise InvalidRequestError(
            f"--quarantine {label!r} is no label: give a short name such as 2026-11; the copies are then kept as {QUARANTINE}2026-11/NAME"
        )
    refuse_control_characters("--quarantine", label)
    return label


def shelf_of(label: str, run: str) -> str:
    """Returns where the copies of a run are, below `QUARANTINE`."""
    return f"{label}/{run}"


class Quarantine:
    """Sets blobs aside. `shelf`: where (`shelf_of`). `copies`: those that it has made, by the name of the blob."""

    def __init__(self, tiers: Tiers, shelf: str, runtime: Runtime) -> None:
        self.copies: dict[str, Copy] = {}
        self._blobs = tiers.long_term
        self._shelf = shelf
        self._runtime = runtime

    async def set_aside(self, candidate: Candidate) -> DeleteOutcome | None:
        """Copies the blob. None: the copy is there, and was checked. Otherwise the blob stays, or is gone already."""
        target = f"{QUARANTINE}{self._shelf}/{candidate.name}"
        if len(target.encode()) > NAME_BYTES_MAX:
            return DeleteOutcome.KEPT
        copied = await self._retry(partial(self._blobs.set_aside, candidate.name, candidate.generation, target))
        if copied is NotCopied.TAKEN:
            raise CorruptRecordError(f"{target!r} is another blob than {candidate.name!r}, so that cannot be set aside there")
        if copied is NotCopied.ABSENT:
            await self._note_earlier(candidate, target)
            return DeleteOutcome.GONE
        if copied is NotCopied.REPLACED:
            return DeleteOutcome.REPLACED
        if copied in (NotCopied.EXPIRING, NotCopied.TOO_LONG):
            return DeleteOutcome.KEPT
        self.copies[candidate.name] = Copy(target, copied)
        return None

    async def _note_earlier(self, candidate: Candidate, target: str) -> None:
        """Notes the copy of an earlier attempt, which deleted the blob and was killed before it noted that."""
        copy = await self._retry(partial(self._blobs.head, target))
        if copy is not None:
            self.copies[candidate.name] = Copy(target, copy.generation)

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retry(call, self._runtime, BUDGET_S)


class CopyOutcome(Meant):
    """What became of a copy that was to be restored."""

    RESTORED = "restored", "the blob is back under its name, and its copy is deleted"
    BACK = "back", "the copy that was made is gone, and a blob has its name: it was restored before, or is there still"
    TAKEN = "taken", "another blob has the name now, so the copy stays in the quarantine"
    LOST = "lost", "the copy that was made is gone, and no blob has its name: somebody deleted it"
    NO_COPY = "no_copy", "it was deleted without a copy, or it was not deleted"
    THERE = "there", "the blob is there as the audit listed it, and a deletion may still be about to delete it, so its copy stays"
    EXPIRED = "expired", "its deadline has passed, so it would be removed as soon as it is back: its copy stays in the quarantine"
    UNREADABLE = "unreadable", "the copy, or what has the name now, cannot be read: nothing is done"


async def with_copy(entry: JournalEntry, shelf: str, tiers: Tiers, runtime: Runtime) -> JournalEntry:
    """Returns the entry with the copy that is in the quarantine, if nothing was noted of its deletion.

    A deletion that was killed may have set the blob aside, and deleted it, and noted nothing of that.
    """
    target = f"{QUARANTINE}{shelf}/{entry.candidate.name}"
    if entry.outcome is not None or entry.copy is not None or len(target.encode()) > NAME_BYTES_MAX:
        return entry
    found = await retry(partial(tiers.long_term.head, target), runtime, BUDGET_S)
    return entry if found is None else replace(entry, copy=Copy(target, found.generation))


async def look(entry: JournalEntry, tiers: Tiers, runtime: Runtime) -> CopyOutcome | None:
    """Returns why the copy cannot be brought back. None: it is there, which is all that was looked at."""
    if entry.copy is None:
        return CopyOutcome.NO_COPY
    try:
        found = await retry(partial(tiers.long_term.head, entry.copy.name), runtime, BUDGET_S)
    except CorruptRecordError:
        return CopyOutcome.UNREADABLE
    return None if found is not None and found.generation == entry.copy.generation else await _without_copy(entry, tiers, runtime)


async def _without_copy(entry: JournalEntry, tiers: Tiers, runtime: Runtime) -> CopyOutcome:
    try:
        found = await retry(partial(tiers.long_term.head, entry.candidate.name), runtime, BUDGET_S)
    except CorruptRecordError:
        return CopyOutcome.UNREADABLE
    return CopyOutcome.LOST if found is None else CopyOutcome.BACK


async def restore(entry: JournalEntry, tiers: Tiers, runtime: Runtime, pace: Pace) -> CopyOutcome:
    """Brings one blob back from the quarantine. It may be repeated, after a crash too."""
    if entry.copy is None:
        return CopyOutcome.NO_COPY
    await pace()
    blobs, name, copy = tiers.long_term, entry.candidate.name, entry.copy
    now_ns = await retry_read(blobs.now_ns, runtime, BUDGET_S)
    try:
        back = await retry(partial(blobs.bring_back, copy.name, copy.generation, name, now_ns), runtime, BUDGET_S)
    except CorruptRecordError:
        return CopyOutcome.UNREADABLE
    if isinstance(back, NotCopied):
        return _COPY_OUTCOMES.get(back) or await _without_copy(entry, tiers, runtime)
    if back == entry.candidate.generation:
        return CopyOutcome.THERE
    await retry(partial(blobs.delete_generation, copy.name, copy.generation), runtime, BUDGET_S)
    return CopyOutcome.RESTORED


_COPY_OUTCOMES = {NotCopied.TAKEN: CopyOutcome.TAKEN, NotCopied.EXPIRING: CopyOutcome.EXPIRED}
