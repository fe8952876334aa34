"""The write-ahead log of changes: what every backend of it must do.

    record -> renew ... renew -> forget                      the owner's life with an entry
              (owner dies) -> stale -> claim -> forget       recovery's
                                            -> release       ... or later, or someone else
                                            -> park          ... or never without an operator

Contract (one suite runs it on every implementation): a recorded entry survives any crash before `record`
returns; renew, claim, release and park are compare-and-swaps on the exact value that was read (so on owner
and attempt) and never recreate an entry that was forgotten; each call is safe to repeat. *Crash* at any
call leaves the entry in the log or out of it, whole. *Failure*: `UnavailableError` (nothing happened) or
`UnconfirmedError` (unknown; repeat it). The log knows nothing of rows and blobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from changelog.base.errors import CorruptRecordError
from changelog.change import LOG_PREFIX, SHARDS_DEFAULT, Change, ChangeId, Entry, Unreadable
from changelog.lease import Renewal

LOG_END = "~changelog0"
"""The first key after all that begin with `LOG_PREFIX`."""

PRESENCE_AGE_MAX_MS = 24 * 3600 * 1000
"""Presence rows of instances that were silent for so long are garbage; one that lives writes its own again."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Row keys from `start` (inclusive) to `end` (exclusive)."""

    start: str
    end: str

    def since(self, created_ms: int) -> KeyRange:
        """Its part without the current form's entries of changes made before that (Unix ms, their maker's clock).

        Sorted entries that are gone are what makes a queue's range slow to scan: Bigtable walks over them for days.
        """
        shard = self.start if self.start != LOG_PREFIX else f"{LOG_PREFIX}00/"
        return KeyRange(f"{shard}{ChangeId.first(created_ms)}", self.end)


def shard_ranges(shards: int = SHARDS_DEFAULT) -> Sequence[KeyRange]:
    """One for each shard, so that daemons that begin at different ones seldom want the same entry. Together they hold the whole log.

    The first has what is under no shard, the last what software with more shards has recorded.
    """
    starts = [LOG_PREFIX, *(f"{LOG_PREFIX}{shard:02x}/" for shard in range(1, shards))]
    return [KeyRange(start, end) for start, end in zip(starts, [*starts[1:], LOG_END], strict=True)]


@dataclass(frozen=True, slots=True)
class Page:
    """Entries in key order. `next_start` is where the next page begins; None: the range is exhausted."""

    entries: tuple[Entry | Unreadable, ...]
    next_start: str | None


class ChangeLog(Protocol):
    durable: bool
    """False only for the Noop log: what a dying process leaves behind is then the audit's to find."""

    async def record(self, change: Change, owner: str) -> Entry:
        """Writes the entry, durably before it returns; its heartbeat is not told. Repeating it with the same arguments is safe."""

    async def renew(self, entries: Sequence[Entry]) -> Sequence[Renewal]:
        """Beats once for each entry, in order: a fresh server timestamp iff the value is still this one.

        NOT_YOURS: it was claimed or forgotten. FAILED: unknown for this one. May also raise for all.
        """

    async def forget(self, entry: Entry) -> None:
        """Removes the entry, whoever holds it: only ever called when its clean-up is complete (I5)."""

    async def release(self, entry: Entry, cleanup_after_ms: int | None = None) -> bool:
        """Gives the entry up for others: at once, or once the server's clock passes `cleanup_after_ms`.

        False: it was not ours any more; nothing changed.
        """

    async def announce(self, instance: str) -> int:
        """Writes the instance's presence row; returns the server's time of that write (Unix ms)."""

    def ranges(self) -> Sequence[KeyRange]:
        """The key ranges that together hold every entry, in no particular order of interest."""

    async def stale(self, within: KeyRange, now_ms: int, expiry_ms: int, limit: int) -> Page:
        """Up to `limit` open entries that nobody renews or that are unreadable, in key order.

        Parked entries and those whose `cleanup_after_ms` lies ahead never fill a page. One closed call:
        nothing stays open while the caller works on the page.
        """

    async def claim(self, entry: Entry, owner: str) -> Entry | None:
        """Takes the entry over: owner and attempt + 1 iff the value is still this one. None: lost the race.

        The heartbeat of what it returns is not told.
        """

    async def park(self, entry: Entry | Unreadable, error: str) -> bool:
        """Marks it stuck with `error`, so that no scan returns it until an operator retries it.

        False: it changed meanwhile; nothing was marked.
        """

    async def retry(self, entry: Entry | Unreadable) -> bool:
        """Takes a stuck entry's mark off and, if it is readable, its failed attempts too. False: it changed."""

    async def entries(self, start: str, limit: int, *, stuck_only: bool = False) -> Page:
        """Every entry from row key `start` on ('' for the first), in key order: for operators."""

    async def read(self, change_id: ChangeId) -> Entry | Unreadable | None:
        """The entry of one change, wherever its key puts it."""


@runtime_checkable
class Collects(Protocol):
    """A log or backend with garbage that no service collects: the daemon does, now and then."""

    async def collect(self, limit: int) -> int:
        """Removes up to `limit` things that nothing needs any more; returns how many. Never shortens a promise.

        Fewer than `limit`: it has been through them all. `LeftGarbageError`: so it has, and had to leave some.
        """


class LeftGarbageError(CorruptRecordError):
    """A collection has been through everything, and could not look at some of it, or not remove it: an operator must look.

    `removed`: how many things it removed all the same.
    """

    def __init__(self, sentence: str, removed: int) -> None:
        super().__init__(sentence)
        self.removed = removed
