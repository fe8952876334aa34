"""The write-ahead log of changes: what every backend of it must do.

    record -> renew ... renew -> forget                      the owner's life with an entry
              (owner dies) -> stale -> claim -> forget       recovery's
                                            -> release       ... or later, or someone else
                                            -> park          ... or never without an operator
              settled -> keep -> kept -> forget              where a change feed must see the change first
    open -> amend ... amend -> claim -> forget               an upload that is completed from anywhere, in its own time

The contract, which one suite checks on every implementation: once `record` has returned, the entry survives any
crash. Renew, claim, release and park are compare-and-swaps on the exact value that was read (so on owner and attempt),
and they never recreate an entry that was forgotten. Each call is safe to repeat. *Crash* at any call: the entry is in
the log as a whole, or not at all. *Failure*: `UnavailableError` (nothing happened) or `UnconfirmedError` (unknown;
repeat the call). The log knows nothing of rows and blobs.

Beside the entries, the log is a small key-value store (`key_values.py`). No change depends on that, and no scan of
entries shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from changelog.base.capability import Capability
from changelog.base.errors import CorruptRecordError
from changelog.change import LOG_PREFIX, SHARDS_DEFAULT, Change, ChangeId, Entry, Unreadable
from changelog.key_values import KeyValueStore
from changelog.lease import Renewal

LOG_END = "~changelog0"
"""The first key after all that begin with `LOG_PREFIX`."""

PRESENCE_AGE_MAX_MS = 24 * 3600 * 1000
"""A presence row is garbage after this time without a write. An instance that is alive writes its own again."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Row keys from `start` (inclusive) to `end` (exclusive)."""

    start: str
    end: str

    def since(self, created_ms: int) -> KeyRange:
        """The part of this range without changes made before that time (Unix ms, by their maker's clock).

        It leaves out a range of old keys that were deleted. Bigtable walks over deleted cells for days, which is what
        makes a queue slow to scan. Entries in the form of older software stay in.
        """
        shard = self.start if self.start != LOG_PREFIX else f"{LOG_PREFIX}00/"
        return KeyRange(f"{shard}{ChangeId.first(created_ms)}", self.end)


def shard_ranges(shards: int = SHARDS_DEFAULT) -> Sequence[KeyRange]:
    """One range for each shard. Daemons begin at different ones, so they seldom want the same entry.

    Together they hold the whole log. A key without a shard, from older software, falls into whichever range it sorts
    into. The shards of software that uses more of them are in the last range.
    """
    starts = [LOG_PREFIX, *(f"{LOG_PREFIX}{shard:02x}/" for shard in range(1, shards))]
    return [KeyRange(start, end) for start, end in zip(starts, [*starts[1:], LOG_END], strict=True)]


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Entries in key order. `next_start`: where the next page begins; None: the range has no more."""

    entries: tuple[Entry | Unreadable, ...]
    next_start: str | None


class ChangeLog(KeyValueStore, Protocol):
    durable: bool
    """False only for the Noop log. Then nobody cleans up after a process that died; the audit finds what it left."""

    async def record(self, change: Change, owner: str) -> Entry:
        """Writes the entry, durably before it returns. Safe to repeat with the same arguments."""

    async def open(self, entry: Entry) -> bool:
        """Writes an entry that is assembling. False: there is one under its key, and nothing was written.

        *Once*: after `UnconfirmedError` the entry must not be used. It is cleaned up when its time has come.
        """

    async def amend(self, entry: Entry, by: Entry) -> bool:
        """Writes `by`, which is assembling, too, in place of `entry`. False: its value is another by now."""

    async def renew(self, entries: Sequence[Entry]) -> Sequence[Renewal]:
        """Renews each entry, in order: it gets a new server timestamp if its value is still this one.

        NOT_YOURS: it was claimed or forgotten. FAILED: unknown for this one. An error that is raised is about all.
        """

    async def forget(self, entry: Entry) -> None:
        """Removes the entry, whoever holds it. Called only when its clean-up is complete (I5)."""

    async def release(self, entry: Entry, cleanup_after_ms: int | None = None) -> bool:
        """Gives the entry up for others: at once, or once the server's clock passes `cleanup_after_ms`.

        False: it was not ours any more; nothing changed.
        """

    async def keep(self, entry: Entry) -> bool:
        """Marks the entry *done*: its change is settled and over, and it stays for the change feed alone.

        From then on `stale` and `retry` leave it alone, until `forget`. False: its value is another by now, or it is
        gone; nothing changed. A parked entry that is kept is parked no more. A compare-and-swap looks at the value
        alone: who read the entry before may still renew, claim or release it, and it stays kept.
        """

    async def kept(self, within: KeyRange, limit: int) -> EntryPage:
        """Up to `limit` entries that are kept for the change feed, in key order. Unreadable ones are included."""

    async def announce(self, instance: str) -> int:
        """Writes the presence row of an instance of recovery. Returns the server's time of that write (Unix ms)."""

    async def now_ms(self) -> int:
        """The server's present time (Unix ms), by the clock that dates heartbeats. Who asks is no presence."""

    def ranges(self) -> Sequence[KeyRange]:
        """The key ranges that together hold every entry. Their order means nothing."""

    async def stale(self, within: KeyRange, now_ms: int, expiry_ms: int, limit: int) -> EntryPage:
        """Up to `limit` open entries that nobody renews, or that cannot be read, in key order.

        Parked entries, and those whose `cleanup_after_ms` lies ahead, are left out, so they never fill a page. No call
        stays open while the caller works on the page.
        """

    async def claim(self, entry: Entry, owner: str) -> Entry | None:
        """Takes the entry over if its value is still this one: sets the owner, and adds one to `attempt`.

        None: another was faster. The entry that it returns has no heartbeat (0).
        """

    async def park(self, entry: Entry | Unreadable, error: str) -> bool:
        """Marks the entry stuck, with `error`. No scan of stale entries returns it until an operator retries it.

        False: it changed meanwhile, and nothing was marked. To be kept meanwhile is such a change. What was read as
        kept (`kept_ms`) can be parked.
        """

    async def retry(self, entry: Entry | Unreadable) -> bool:
        """Takes the mark off a stuck entry, and its failed attempts if it is readable.

        False: it changed meanwhile, or it is not stuck.
        """

    async def entries(self, start: str, limit: int, *, stuck_only: bool = False) -> EntryPage:
        """For operators: every entry from row key `start` on ('': the first), in key order."""

    async def read(self, change_id: ChangeId) -> Entry | Unreadable | None:
        """The entry of one change, in whatever shard it is. None: there is none."""

    async def presences(self) -> Sequence[tuple[str, int]]:
        """Every presence row: the instance, and the server's time of its last announcement (Unix ms). In no order.

        The row of an instance that died stays for a day.
        """


@runtime_checkable
class GarbageCollection(Capability, Protocol):
    """A log or a backend with garbage that no service collects. The daemon collects it now and then."""

    async def collect(self, limit: int) -> int:
        """Removes up to `limit` things that nothing needs any more, and returns how many.

        Fewer than `limit`: it has been through all of them. `LeftGarbageError`: it has been through all of them, too,
        and had to leave some. It removes nothing before the time that was promised for it.
        """


class LeftGarbageError(CorruptRecordError):
    """A collection went through everything, and could not look at some things or remove them. An operator must look.

    `removed`: how many things it removed.
    """

    def __init__(self, sentence: str, removed: int) -> None:
        super().__init__(sentence)
        self.removed = removed
