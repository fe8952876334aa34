"""Brings back blobs that are gone although tombstones name them, if the service still keeps them: soft-deleted,
or as noncurrent generations of a bucket with versions.

It uses no engine and no files. It works on a batch of names that an audit called dangling, in this order:

    C  read the changelog     spares what an entry names, and objects of which an entry tells: a change is under way
    H  look for the blob      by its name: what is there is not touched
    S  ask what is kept       of that name: the newest deleted generation is taken
    R  read the rows          by both readings of the name; spares what no unexpired tombstone names now
    note it, and then
    restore the generation    only if no blob has the name
    R2 read the rows again    if no tombstone names the blob any more, it is deleted again: settle, then its generation

The finding is not believed: only its name is used. A restoration is the one call that can make garbage out of nothing.
So this is why it leaves none (I3). Whoever deletes a blob has taken it out of its row before. If that was before R2,
R2 sees it. If it comes after R2, the deletion comes after it, and removes the restored blob by its name. What is
deleted after R2 cannot be live: the blob's revision was in effect once, and no revision takes effect twice. The settle
makes that certain, and the generation protects what older software may write under the name meanwhile.

*Crash* between the restoration and R2 may leave garbage. The note tells the next call, which looks at the blob first.
*Failure*: an error is raised if a service does not answer for `BUDGET_S`, or refuses. A restoration whose answer was
lost may take effect later: then the next call, or the next audit, finds the blob.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from changelog.base.errors import CorruptRecordError
from changelog.base.runtime import Runtime
from changelog.change import Unreadable
from changelog.log import ChangeLog
from recovery.audit.deleting.candidates import (
    AT_ONCE,
    BUDGET_S,
    ENTRIES_PAGE,
    Candidate,
    DeleteOutcome,
    DeletionBatch,
    Meant,
    Pace,
    no_pace,
)
from recovery.audit.finding_classes import NameForm
from recovery.audit.names import is_of, read_name
from tiered.metadata import NS_PER_S, is_expired
from tiered.services.backends import LongTermBackend, Tiers
from tiered.services.capabilities import BlobRestoration
from tiered.services.concurrent import map_concurrently
from tiered.services.retry import retry, retry_read
from tiered.services.scans import Generation, Redirect, Removal

T = TypeVar("T")

RECENT_NS = 3600 * NS_PER_S
"""In nanoseconds. Older software has no changelog.

So a blob without suffix that was deleted just now may belong to a deletion that is under way.
"""


class RestoreOutcome(Meant):
    """What became of a blob that was gone, or what is to be done about it."""

    RESTORABLE = "restorable", "the bucket keeps it, and a tombstone names it"
    HALF_DONE = "half_done", "it is back, but a call was interrupted before it could see that no row names it any more"
    RESTORED = "restored", "its row names it, and it is there again"
    THERE = "there", "it is there: another call has restored it, or it was never gone"
    NOT_KEPT = (
        "not_kept", "the bucket keeps no deleted generation of it, neither soft-deleted nor noncurrent: it is lost, unless a backup has it",
    )  # fmt: skip
    EXPIRED = "expired", "its tombstone has expired: nobody can read the object, so nothing is restored"
    NOT_NAMED = "not_named", "no row names it any more, so it is not missed"
    LOGGED = "logged", "an entry of the changelog names it or its object: a change is under way; try again when it has ended"
    RECENT = "recent", "it has no revision and was deleted within the hour, maybe by older software: try again in an hour"
    UNREADABLE = "unreadable", "it, or a row that may name it, cannot be read: nothing is done"
    TAKEN_BACK = "taken_back", "its row named another blob when it was back, so it was deleted again"
    LEFT = "left", "it is back, and its row does not name it any more; nobody can tell whose it is: see tiered audit show"


TO_DO = frozenset({RestoreOutcome.RESTORABLE, RestoreOutcome.HALF_DONE})


@dataclass(frozen=True, slots=True)
class Loss:
    """A blob that an audit missed, and what became of it, as far as is known.

    `generation`: the deleted generation that is taken, of `size` bytes. It was deleted at `deleted_ns`, and the service
    keeps it until `kept_until_ns` (nanoseconds since 1970; None: it is noncurrent, and a rule of the bucket may remove
    it). `restored`: the generation that the blob has now.
    """

    name: str
    end: RestoreOutcome
    generation: Generation | None = None
    size: int | None = None
    deleted_ns: int | None = None
    kept_until_ns: int | None = None
    restored: Generation | None = None

    @property
    def is_to_do(self) -> bool:
        """Whether `Losses.restore` has something to do for it."""
        return self.end in TO_DO


@dataclass(frozen=True, slots=True)
class Losses:
    """Looks at lost blobs, and restores them. `blobs`: the long-term tier of `tiers`."""

    tiers: Tiers
    blobs: BlobRestoration
    log: ChangeLog
    runtime: Runtime
    pace: Pace = no_pace

    async def look(self, names: Sequence[str], before: Mapping[str, Loss]) -> list[Loss]:
        """Returns the losses of these names, and changes nothing. Hand those that are `is_to_do` to `restore`.

        `before`: what an earlier call has noted, by name.
        """
        logged = await self._logged(names)
        now_ns = await self._retry_read(self.tiers.long_term.now_ns)

        async def judge(name: str) -> Loss:
            noted = before.get(name)
            if name in logged:
                return Loss(name, RestoreOutcome.LOGGED) if noted is None else replace(noted, end=RestoreOutcome.LOGGED)
            try:
                return await self._judge(name, noted, now_ns)
            except CorruptRecordError:
                return Loss(name, RestoreOutcome.UNREADABLE) if noted is None else replace(noted, end=RestoreOutcome.UNREADABLE)

        return await map_concurrently(judge, names, AT_ONCE)

    async def restore(self, loss: Loss) -> Loss:
        """Restores one blob of which `look` says that this is to be done, and returns it with its end."""
        if loss.end is RestoreOutcome.HALF_DONE:
            return await self._take_back_later(loss)
        assert loss.generation is not None, "look has found it"
        await self.pace()
        restored = await self._retry(partial(self.blobs.restore, loss.name, loss.generation))
        is_ours = restored is not None
        if restored is None:
            # An attempt whose answer was lost may have restored it, or somebody else.
            head = await self._retry_read(partial(self.tiers.long_term.head, loss.name))
            if head is None:
                return replace(loss, end=RestoreOutcome.NOT_KEPT)
            restored = head.generation
        loss = replace(loss, restored=restored)
        try:
            is_named = await self._named(loss.name) is not None
            return replace(loss, end=RestoreOutcome.RESTORED if is_named else await self._take_back(loss, is_ours=is_ours))
        except CorruptRecordError:
            return replace(loss, end=RestoreOutcome.UNREADABLE)

    # --- C

    async def _logged(self, names: Sequence[str]) -> set[str]:
        """Returns the names that an entry tells of: the blob itself, or its object."""
        by_object: dict[str, list[str]] = {}
        for name in names:
            for key in _rows_of(name):
                by_object.setdefault(key, []).append(name)
        wanted, found = set(names), set[str]()
        start: str | None = "" if names else None
        while start is not None:
            page = await self._retry_read(partial(self.log.entries, start, ENTRIES_PAGE))
            for entry in page.entries:
                if not isinstance(entry, Unreadable):  # nobody knows its object; R2 is there for such a change
                    found.update(by_object.get(entry.change.object, []))
                    found.update(name for name in (entry.change.new, entry.change.old) if name in wanted and name is not None)
            start = page.next_start
        return found

    # --- H, S, R

    async def _judge(self, name: str, noted: Loss | None, now_ns: int) -> Loss:
        head = await self._retry_read(partial(self.tiers.long_term.head, name))
        if head is not None:
            return await self._judge_what_is_there(name, noted, head.generation)
        kept = await self._retry_read(partial(self.blobs.deleted_generations, name))
        loss = Loss(name, RestoreOutcome.NOT_KEPT)
        if kept:
            newest = kept[-1]
            loss = Loss(name, RestoreOutcome.RESTORABLE, newest.generation, newest.size, newest.deleted_ns, newest.kept_until_ns)
        redirect = await self._named(name)
        if redirect is None:
            return replace(loss, end=RestoreOutcome.NOT_NAMED)
        if is_expired(redirect.deadline_ns, now_ns):
            return replace(loss, end=RestoreOutcome.EXPIRED)
        if loss.deleted_ns is not None and read_name(name).form is not NameForm.REVISION and loss.deleted_ns > now_ns - RECENT_NS:
            return replace(loss, end=RestoreOutcome.RECENT)
        return loss

    async def _judge_what_is_there(self, name: str, noted: Loss | None, generation: Generation) -> Loss:
        """Returns the loss of a blob that is there. A call that was killed may have restored it, and not looked again.
        """
        if await self._named(name):
            if noted is None or noted.generation is None:
                return Loss(name, RestoreOutcome.THERE)
            return replace(noted, end=RestoreOutcome.RESTORED)
        if noted is None or noted.generation is None or noted.end not in _UNDECIDED:
            return Loss(name, RestoreOutcome.NOT_NAMED)
        return replace(noted, end=RestoreOutcome.HALF_DONE, restored=generation)

    async def _named(self, name: str) -> Redirect | None:
        """Returns the tombstone that names the blob. Raises `CorruptRecordError` if a row that may name it is broken.
        """
        keys = [key.encode() for key in _rows_of(name)]
        page = await self._retry_read(partial(self.tiers.high_volume.redirects_at, keys))
        if page.corrupt:
            raise CorruptRecordError(f"a row that may name {name!r} cannot be read")
        return next((each for each in page.redirects if each.target == name and is_of(each.path, name)), None)

    # --- R2

    async def _take_back(self, loss: Loss, *, is_ours: bool) -> RestoreOutcome:
        """Deletes what was restored: no tombstone names it. `is_ours`: this call has made that generation."""
        assert loss.restored is not None, "the caller has looked"
        reading = read_name(loss.name)
        if reading.form is NameForm.REVISION:
            assert reading.object is not None and reading.revision is not None, "this form has both"
            if await self._retry(partial(self.tiers.high_volume.settle, reading.object, reading.revision)):
                return RestoreOutcome.RESTORED
        elif not is_ours:
            return RestoreOutcome.LEFT
        removed = await self._retry(partial(self.tiers.long_term.delete_generation, loss.name, loss.restored))
        return RestoreOutcome.LEFT if removed is Removal.REPLACED else RestoreOutcome.TAKEN_BACK

    async def _take_back_later(self, loss: Loss) -> Loss:
        """Deletes what an earlier call may have restored, as a deletion does: nothing is believed but its name."""
        assert loss.restored is not None, "the caller has looked"
        candidate = Candidate.named(loss.name, loss.restored, loss.size or 0)
        if candidate is None:
            return replace(loss, end=RestoreOutcome.LEFT)
        batch = DeletionBatch(self.tiers, self.log, [candidate], self.runtime, self.pace)
        await batch.run()
        return replace(loss, end=_ENDS[batch.outcomes[loss.name]])

    async def _retry_read(self, read: Callable[[], Awaitable[T]]) -> T:
        return await retry_read(read, self.runtime, BUDGET_S)

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retry(call, self.runtime, BUDGET_S)


def keeps_deleted(blobs: LongTermBackend) -> BlobRestoration | None:
    """Returns the tier as one that keeps deleted blobs, or None if it does not."""
    return blobs if isinstance(blobs, BlobRestoration) else None


def _rows_of(name: str) -> list[str]:
    """Returns the keys of the rows that may name the blob."""
    reading = read_name(name)
    return [name] if reading.form is not NameForm.REVISION or reading.object is None else [reading.object, name]


_UNDECIDED = (RestoreOutcome.RESTORABLE, RestoreOutcome.HALF_DONE, RestoreOutcome.LOGGED, RestoreOutcome.UNREADABLE)
"""A loss that was noted with one of these, and with a generation, may have been restored by a call that was killed."""

_ENDS = {
    DeleteOutcome.DELETED: RestoreOutcome.TAKEN_BACK, DeleteOutcome.GONE: RestoreOutcome.TAKEN_BACK,
    DeleteOutcome.REPLACED: RestoreOutcome.LEFT, DeleteOutcome.LOGGED: RestoreOutcome.LOGGED, DeleteOutcome.NAMED: RestoreOutcome.RESTORED,
    DeleteOutcome.UNREADABLE: RestoreOutcome.UNREADABLE, DeleteOutcome.KEPT: RestoreOutcome.LEFT,
}  # fmt: skip
