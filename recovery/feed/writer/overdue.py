"""The bound on how long a deletion waits for the feed: recovery cleans up entries that were kept for too long.

    kept entries older than `feed.hold_max_s`: settle each, and decide what is garbage
      -> set `gap` in the checkpoint (compare-and-swap) -> delete that garbage, and forget the entries

The gap comes first. A writer that has read such an entry and not committed it cannot commit any more, because the
checkpoint is another one. It reads the rows anew in a whole pass, and publishes no progress before that pass is
complete. A kept entry never changes its row again, so a pass that begins after the gap sees what the entry did.

What is garbage is decided before the gap, and only that is deleted, however late. A pass that begins after the gap may
publish a blob that the row still shows, and that becomes garbage afterwards. It has to wait for its -1 again.

I2 and I5 are kept by `tiered.protocol.finishing`: a blob is deleted only after its revision was settled and found not
live, and everything may be repeated, by the writer too. *Crash* anywhere: the entries that are left are found again.
*Failure* with one entry: it is logged, and the others go on. If the checkpoint cannot be read, nothing is cleaned up.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

from changelog.base.errors import CorruptRecordError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.events import events
from changelog.base.observe import Event
from changelog.base.runtime import Runtime
from changelog.base.tasks import elsewhere_is_an_error
from changelog.change import Entry, Unreadable
from changelog.key_values import KeyValueStore
from changelog.log import ChangeLog, KeyRange
from recovery.feed.writer.checkpoint import NOTE, Checkpoint
from tiered.limits.rate import TokenBucket
from tiered.notes.feed_off import read_notices, remove_notices
from tiered.open import Backends
from tiered.protocol.finishing import garbage_of, remove_garbage, settle_change, waits_for_late_upload
from tiered.services.concurrent import map_concurrently
from tiered.settings import Settings

TRIES = 20
FAILURES_LOGGED_MAX = 10
"""So many failures of one call have a line each in the log. Its last line counts all."""
WORK_MAX_S = 60.0
"""How long the work on one entry may take."""
COVERED_MAX = 10_000
"""Of so many entries it is remembered that the gap was set for them."""


@dataclass(frozen=True, slots=True)
class DecidedEntry:
    """What was decided of an entry before a gap was set. `doomed`: its garbage."""

    live: bool
    doomed: Sequence[str]


Kept = Entry | Unreadable
DecidedEntries = dict[str, DecidedEntry]
"""What was decided of entries, by key."""


async def release_overdue(backends: Backends, runtime: Runtime, settings: Settings, covered: DecidedEntries | None = None) -> int:
    """Cleans up and forgets each entry that was kept for the feed for more than `feed.hold_max_s` seconds.

    Ages are by the server's clock. Returns how many entries it has forgotten. It goes by the same bound where no feed
    is configured any more. It also sets the gap for processes that have worked with the feed off (`cover_notices`).

    `covered`: give each call the same mapping. It holds what was decided of entries that an earlier call found overdue
    and could not clean up. The gap is set once for each of them. Otherwise one entry that always fails would begin the
    writer's pass anew for ever.

    Raises the `TieredError` of the changelog, if it cannot be listed or the gap cannot be set. `CorruptRecordError`:
    the checkpoint is damaged. What was forgotten by then stays forgotten.
    """
    return (await release_counted(backends, runtime, settings, covered)).forgotten


async def release_counted(
    backends: Backends, runtime: Runtime, settings: Settings, covered: DecidedEntries | None = None, limit: int | None = None
) -> ReleaseCounts:
    """Does the same, with at most `limit` entries, and counts all that became of them."""
    return await _Overdue(backends, runtime, settings, {} if covered is None else covered, limit).release()


async def set_gap(log: KeyValueStore) -> bool:
    """Sets the gap of the feed, if there is a feed. Returns whether it changed the checkpoint.

    If a gap is set already, a pass that is under way is ended: it may have read the rows too early. Raises as
    `KeyValueStore.swap_note`; `CorruptRecordError`: the checkpoint is damaged, and stays as it is.
    """
    for left in reversed(range(TRIES)):
        raw = await log.read_note(NOTE)
        if raw is None:
            return False
        checkpoint = Checkpoint.from_bytes(raw)
        if checkpoint.gap and checkpoint.scan is None:
            return False
        try:
            if await log.swap_note(NOTE, raw, checkpoint.with_gap().to_bytes()):
                events.warning("feed_gap", "no progress is published before all rows are read again", generation=checkpoint.generation)
                return True
        except UnconfirmedError:
            if not left:
                raise
    raise UnavailableError(f"the gap of the feed was not set: others changed the checkpoint {TRIES} times meanwhile")


async def cover_notices(log: ChangeLog) -> None:
    """Sets the gap for the processes that have ended their work with the feed off, and removes their notices.

    The writer does the same. This is for stores without one, where notices would become more and more. Raises as
    `set_gap`.
    """
    if notices := await read_notices(log):
        now_ms = await log.now_ms()
        if over := [notice for notice in notices if notice.is_over(now_ms)]:
            await set_gap(log)
            await remove_notices(log, over)


@dataclass(slots=True)
class ReleaseCounts:
    """What one call did with entries. `forgotten`: cleaned up. `waiting`: their upload may still arrive, so they are
    looked at again later. `failed`: not cleaned up; the log of this process says why.
    """

    forgotten: int = 0
    parked: int = 0
    waiting: int = 0
    failed: int = 0

    @property
    def looked_at(self) -> int:
        return self.forgotten + self.parked + self.waiting + self.failed


class _Overdue:
    """One call of `release_overdue`."""

    def __init__(self, backends: Backends, runtime: Runtime, settings: Settings, covered: DecidedEntries, limit: int | None) -> None:
        self._tiers = backends.tiers
        self._log = backends.log
        self._observer = backends.observer
        self._runtime = runtime
        self._settings = settings
        self._bucket = TokenBucket(runtime, settings.recovery.rate_per_s)
        self._counts = ReleaseCounts()
        self._left = math.inf if limit is None else limit
        self._covered = covered
        self._now_ms = 0

    async def release(self) -> ReleaseCounts:
        if not self._log.durable:
            return self._counts
        await cover_notices(self._log)
        # One time for the whole call. So every entry that it finds overdue was kept before the gap was set.
        self._now_ms = await self._log.now_ms()
        began = self._runtime.monotonic()
        try:
            for within in self._log.ranges():
                start: str | None = within.start
                while start is not None and self._left > 0:
                    page = await self._log.kept(KeyRange(start, within.end), self._settings.recovery.concurrency_max)
                    overdue = [entry for entry in page.entries if self._is_overdue(entry)]
                    overdue = overdue[: int(min(self._left, len(overdue)))]
                    self._left -= len(overdue)
                    await self._work(overdue)
                    start = page.next_start
        finally:
            self._say(self._runtime.monotonic() - began)
        return self._counts

    def _is_overdue(self, entry: Entry | Unreadable) -> bool:
        """Whether it is. Nobody can work on an entry that cannot be read, unless newer software wrote it."""
        if isinstance(entry, Unreadable) or entry.kept_ms is None:
            return isinstance(entry, Unreadable) and not entry.newer
        return self._now_ms - entry.kept_ms > self._settings.feed.hold_max_s * 1000

    async def _work(self, overdue: list[Entry | Unreadable]) -> None:
        if not overdue:
            return
        if len(self._covered) > COVERED_MAX:
            self._covered.clear()
        decided: DecidedEntries = {}
        await self._each([entry for entry in overdue if entry.key not in self._covered], partial(self._decide, decided))
        unreadable = any(isinstance(entry, Unreadable) for entry in overdue)
        if decided or unreadable:
            await set_gap(self._log)
            self._covered |= decided
        await self._each([entry for entry in overdue if isinstance(entry, Unreadable) or entry.key in self._covered], self._judge)

    async def _each(self, entries: Sequence[Kept], work: Callable[[Kept], Awaitable[None]]) -> None:
        """Works on all of them, some at once. What fails with one of them is logged."""
        await map_concurrently(partial(self._work_on, work), entries, self._settings.recovery.concurrency_max)

    async def _work_on(self, work: Callable[[Kept], Awaitable[None]], entry: Kept) -> None:
        try:
            await self._bucket.take()
            with elsewhere_is_an_error("the work on it was cancelled elsewhere"), anyio.fail_after(WORK_MAX_S):
                await work(entry)
        except Exception as error:  # noqa: BLE001 - it is this entry's: the others must not end with it (I6)
            self._failed(entry, error)

    async def _decide(self, decided: DecidedEntries, entry: Entry | Unreadable) -> None:
        """Settles the entry, and decides what of it is garbage. An upload that may still arrive is waited for."""
        if isinstance(entry, Unreadable):
            return
        try:
            live = await settle_change(self._tiers, entry.change)
            if waits_for_late_upload(entry.change, live) and not self._grace_is_over(entry):
                self._counts.waiting += 1
                return
            decided[entry.key] = DecidedEntry(live, await garbage_of(self._tiers, entry.change, live))
        except CorruptRecordError as error:
            await self._park(entry, str(error))

    async def _judge(self, entry: Entry | Unreadable) -> None:
        if isinstance(entry, Unreadable):
            await self._park(entry, entry.error)
            return
        try:
            await self._finish(entry)
        except CorruptRecordError as error:
            await self._park(entry, str(error))

    async def _finish(self, entry: Entry) -> None:
        decided = self._covered[entry.key]
        await remove_garbage(self._tiers, entry.change, decided.live, decided.doomed)
        await self._log.forget(entry)
        del self._covered[entry.key]
        self._counts.forgotten += 1
        self._observer.count(Event.RECOVERED, "overdue")

    def _grace_is_over(self, entry: Entry) -> bool:
        return self._now_ms - (entry.kept_ms or 0) >= self._settings.recovery.late_upload_grace_s * 1000

    async def _park(self, entry: Entry | Unreadable, error: str) -> None:
        if await self._log.park(entry, error):
            self._counts.parked += 1
            self._observer.count(Event.RECOVERED, "parked")
            events.error("entry_parked", error, **_about(entry), verdict="parked")

    def _failed(self, entry: Entry | Unreadable, error: Exception) -> None:
        self._counts.failed += 1
        self._observer.count(Event.RECOVERED, "failed")
        if self._counts.failed <= FAILURES_LOGGED_MAX:
            unforeseen = None if isinstance(error, TieredError | TimeoutError) else error
            events.warning("overdue_failed", error, exc_info=unforeseen, **_about(entry))

    def _say(self, duration_s: float) -> None:
        found = self._counts
        if found.forgotten or found.parked or found.waiting or found.failed:
            events.warning(
                "overdue_released", f"the feed did not take them up within {self._settings.feed.hold_max_s:g} s", count=found.forgotten,
                parked=found.parked, waiting=found.waiting, failed=found.failed, duration_s=round(duration_s, 3),
            )


def _about(entry: Entry | Unreadable) -> dict[str, Any]:
    """What a line of the log says of an entry. One that cannot be read has only its key."""
    readable = entry if isinstance(entry, Entry) else None
    return {"id": readable and readable.change.id, "object": readable and readable.change.object, "key": entry.key}
