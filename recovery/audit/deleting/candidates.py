"""Deletes blobs that an audit called orphans, if they still are. It uses no engine and no files.

It works on a batch of candidates, in this order:

    C  read the changelog     spares what an entry names: its change is under way, or waits for recovery
    R  read the rows          by both readings of each name; spares what a tombstone names, expired or not
    then, for each candidate by itself:
    settle its revision       *live*: its row names it, so it is no orphan. Otherwise it is refused for ever
    set it aside              only if there is a quarantine: copy it, and check the copy
    delete the generation     that the audit listed, and no other; several in one request if the service takes that

The finding is not believed. If it is wrong, these steps keep the data all the same (I1, I2):

- The row of the object `{path}` cannot begin to name `{path}/{revision}` after the settle, because a swap of a refused
  token conflicts. Before the settle it may; then the settle answers *live*.
- The row of the object `{path}/{revision}`, which names a blob without suffix, has no token that could be refused. Only
  older software writes such blobs. If it did so before R, R sees the row. If it does so after R, it writes the blob
  first, and that is another generation than the one that was listed. (A blob that was listed is older than the grace,
  so older software, which names a blob at once, is not just about to name it.)
- A blob that can be listed was finalised, so its entry was recorded before. If the entry is not in C, its change has
  ended. So the settle refuses no change that is under way. Without a changelog it may, and then the caller of that
  change is told that it failed (I4).

docs/protocol/deleting.py tries every interleaving of this. *Crash* anywhere: the same candidates are carried out again;
each step may be repeated (I5). *Failure*: an error is raised if a service does not answer for `BUDGET_S`, or refuses.
What was done until then is in `outcomes`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Self, TypeVar

from changelog.base.errors import ConfigurationError, CorruptRecordError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId, Unreadable
from changelog.log import ChangeLog
from recovery.audit.finding import Finding
from recovery.audit.finding_classes import FindingClass, NameForm
from recovery.audit.names import read_name
from tiered.services.backends import Tiers
from tiered.services.capabilities import DELETIONS_MAX, BatchDeletion
from tiered.services.concurrent import map_concurrently
from tiered.services.retry import retry, retry_read
from tiered.services.scans import Generation, Removal

T = TypeVar("T")

BUDGET_S = 120.0
AT_ONCE = 16
"""How many candidates of a batch, or copies, or lost blobs are worked on at the same time."""

ENTRIES_PAGE = 1000
POINT_READS = 200


class Meant(StrEnum):
    """Each row is a member: its name, which is stored and printed, and the sentence that says what it means."""

    meaning: str

    def __new__(cls, name: str, meaning: str = "") -> Self:
        found = str.__new__(cls, name)
        found._value_ = name
        found.meaning = meaning
        return found


class DeleteOutcome(Meant):
    """What became of a candidate."""

    DELETED = "deleted", "it was an orphan, and is deleted"
    GONE = "gone", "it was gone already: deleted by an earlier attempt, or by somebody else"
    REPLACED = "replaced", "another blob has its name now, and stays"
    LOGGED = "logged", "an entry of the changelog names it: it is no orphan, and stays"
    NAMED = "named", "a row names it: it is no orphan, and stays"
    UNREADABLE = "unreadable", "it, or a row that may name it, cannot be read: it stays"
    KEPT = "kept", "it cannot be set aside, because the name of its copy would be too long, or the copy would expire: it stays"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A blob that may be deleted if it still is an orphan. `path`: its object's. `size`: bytes, for the sums only."""

    name: str
    path: str
    revision: ChangeId
    generation: Generation
    size: int

    @classmethod
    def of(cls, finding: Finding) -> Self | None:
        """Returns the candidate of a finding, or None if such a finding is never deleted.

        Only orphans are. The name is read anew: without a revision there is no token that could be refused.
        """
        if finding.class_ is not FindingClass.ORPHAN or finding.generation is None:
            return None
        return cls.named(finding.name, finding.generation, finding.size or 0)

    @classmethod
    def named(cls, name: str, generation: Generation, size: int) -> Self | None:
        """Returns the candidate of this name, or None if the name has no revision.

        Its object and revision are read from the name and from nothing else. If they were another's, the settle would
        protect another blob.
        """
        reading = read_name(name)
        if reading.form is not NameForm.REVISION:
            return None
        assert reading.object is not None and reading.revision is not None, "this form has both"
        return cls(name, reading.object, reading.revision, generation, size)


Pace = Callable[[], Awaitable[None]]
"""Waits until one more candidate may be deleted."""

SetAside = Callable[[Candidate], Awaitable["DeleteOutcome | None"]]
"""Copies a candidate to a place from where it can be restored, and checks the copy.

None: it may be deleted now. An outcome: it has no copy, and is not deleted.
"""


Told = Callable[[Candidate, DeleteOutcome], None]
"""Is told what became of each candidate, when it is known."""


async def no_pace() -> None:
    return


def tell_nobody(candidate: Candidate, outcome: DeleteOutcome) -> None:
    return


@dataclass(slots=True)
class DeletionBatch:
    """Carries out the deletion of these candidates. `outcomes`: what became of each, by name, as far as it is known.

    `run` may be called again after an error. It leaves out what has an outcome.
    """

    tiers: Tiers
    log: ChangeLog
    candidates: Sequence[Candidate]
    runtime: Runtime
    pace: Pace = no_pace
    set_aside: SetAside | None = None
    told: Told = tell_nobody
    outcomes: dict[str, DeleteOutcome] = field(default_factory=dict)

    async def run(self) -> None:
        left = [each for each in self.candidates if each.name not in self.outcomes]
        left = self._spare(left, DeleteOutcome.LOGGED, await self._logged(left))
        named, unreadable = await self._named(left)
        left = self._spare(left, DeleteOutcome.UNREADABLE, unreadable)
        left = self._spare(left, DeleteOutcome.NAMED, named)
        await self._delete_all(left)

    def _spare(self, candidates: Sequence[Candidate], outcome: DeleteOutcome, names: Collection[str]) -> list[Candidate]:
        for each in candidates:
            if each.name in names:
                self._end(each, outcome)
        return [each for each in candidates if each.name not in names]

    def _end(self, candidate: Candidate, outcome: DeleteOutcome) -> None:
        self.outcomes[candidate.name] = outcome
        self.told(candidate, outcome)

    # --- C

    async def _logged(self, candidates: Sequence[Candidate]) -> set[str]:
        """Returns the candidates whose revision an entry names, as new or as old, or is that of an unreadable entry.

        A revision is that of one change. So a name with it is spared, also if the service has changed the name.
        """
        by_revision = {str(each.revision): each.name for each in candidates}
        found: set[str] = set()
        start: str | None = "" if candidates else None
        while start is not None:
            page = await self._retry_read(partial(self.log.entries, start, ENTRIES_PAGE))
            for entry in page.entries:
                if isinstance(entry, Unreadable):
                    found.update(filter(None, [by_revision.get(entry.key.rpartition("/")[2])]))
                else:
                    revisions = [name.rpartition("/")[2] for name in (entry.change.new, entry.change.old) if name is not None]
                    found.update(by_revision[each] for each in revisions if each in by_revision)
            start = page.next_start
        return found

    # --- R

    async def _named(self, candidates: Sequence[Candidate]) -> tuple[set[str], set[str]]:
        """Returns the candidates that a tombstone names, and those of which nobody can say whether one does."""
        keys = sorted({key.encode() for each in candidates for key in rows_of(each)})
        named: set[str] = set()
        corrupt: set[str] = set()
        for first in range(0, len(keys), POINT_READS):
            page = await self._retry_read(partial(self.tiers.high_volume.redirects_at, keys[first : first + POINT_READS]))
            named.update(redirect.target for redirect in page.redirects)
            named.update(row.target for row in page.corrupt if row.target is not None)
            corrupt.update(row.path for row in page.corrupt)
        unreadable = {each.name for each in candidates if not corrupt.isdisjoint(rows_of(each))}
        return named, unreadable

    # --- one candidate

    async def _delete_all(self, candidates: Sequence[Candidate]) -> None:
        takes_many = isinstance(self.tiers.long_term, BatchDeletion)
        ready: list[Candidate] = []

        async def delete(candidate: Candidate) -> None:
            await self.pace()
            if (spared := await self._prepare(candidate)) is not None:
                self._end(candidate, spared)
            elif not takes_many:
                await self._remove_one(candidate)
            else:
                ready.append(candidate)
                if len(ready) == DELETIONS_MAX:
                    taken = ready.copy()
                    ready.clear()
                    await self._remove_many(taken)

        await map_concurrently(delete, candidates, AT_ONCE)
        await self._remove_many(ready)

    async def _prepare(self, candidate: Candidate) -> DeleteOutcome | None:
        """Settles a candidate and sets it aside. None: it may be deleted now. An outcome: it stays, or is gone."""
        try:
            if await self._is_live(candidate):
                return DeleteOutcome.NAMED
            return None if self.set_aside is None else await self.set_aside(candidate)
        except CorruptRecordError:
            return DeleteOutcome.UNREADABLE

    async def _remove_many(self, candidates: Sequence[Candidate]) -> None:
        """Deletes what was settled, in one request. What failed, or was not answered, is deleted by itself."""
        removals: Sequence[Removal | TieredError | None] = [None] * len(candidates)
        if len(candidates) > 1:
            # If this is more than a passing failure, the deletion of the first one alone raises it.
            with suppress(UnavailableError, UnconfirmedError, ConfigurationError):
                removals = await remove_many(self.tiers, candidates)
        left: list[Candidate] = []
        for candidate, removal in zip(candidates, removals, strict=True):
            if isinstance(removal, Removal):
                self._end(candidate, _OUTCOMES[removal])
            else:
                left.append(candidate)
        await map_concurrently(self._remove_one, left, AT_ONCE)

    async def _remove_one(self, candidate: Candidate) -> None:
        try:
            self._end(candidate, _OUTCOMES[await self._retry(partial(remove, self.tiers, candidate))])
        except CorruptRecordError:
            self._end(candidate, DeleteOutcome.UNREADABLE)

    async def _is_live(self, candidate: Candidate) -> bool:
        return await self._retry(partial(self.tiers.high_volume.settle, candidate.path, candidate.revision))

    async def _retry_read(self, read: Callable[[], Awaitable[T]]) -> T:
        return await retry_read(read, self.runtime, BUDGET_S)

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retry(call, self.runtime, BUDGET_S)


def rows_of(candidate: Candidate) -> tuple[str, str]:
    """Returns the keys of the rows that may name the blob: as a revision of `path`, and as a blob without suffix."""
    return candidate.path, candidate.name


async def remove(tiers: Tiers, candidate: Candidate) -> Removal:
    return await tiers.long_term.delete_generation(candidate.name, candidate.generation)


async def remove_many(tiers: Tiers, candidates: Sequence[Candidate]) -> Sequence[Removal | TieredError]:
    assert isinstance(tiers.long_term, BatchDeletion), "the caller has looked"
    return await tiers.long_term.delete_generations([(each.name, each.generation) for each in candidates])


_OUTCOMES = {Removal.DELETED: DeleteOutcome.DELETED, Removal.ABSENT: DeleteOutcome.GONE, Removal.REPLACED: DeleteOutcome.REPLACED}
