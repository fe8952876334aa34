"""`FeedWriter`, which publishes the live references, one transaction after the other.

    open      epoch + 1, by compare-and-swap: an older writer fails at its next commit
              do once more what follows from the last commit: it may have got lost with the writer before
    step      read hints, then the rows of their objects, and a page of the present pass
              the difference to what is published -> stage it as a file -> COMMIT the checkpoint -> apply
              then the hints are over: `cleaning.py` deletes what only they kept alive, and forgets them

Sinks get the file after the commit, never before (`delivery.py`): what no commit names, no reader sees. The deletion of
an old blob waits for the commit of its -1, not for the sinks. A hint that makes no difference waits for a commit, too:
a writer that was fenced may have compared with an index that is behind.

A *pass* goes through all rows. The first one of a generation is the snapshot: its progress is *withheld*, so that no
reader takes a part for the whole. So it is after a *gap*, when recovery has cleaned up without the feed, or a process
has worked with the feed off (`tiered.notes.feed_off`). As long as one does so, no progress is published, and no pass
begins. Later passes find what no hint told, such as references that expired.

Times are ms since 1970 and never go back, whatever the clock does. *Crash* anywhere: the next `open` goes on.
*Failure*: an error is raised; open again. `FencedError`: another writer is at work, and nothing more of this one's is
committed.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import ParamSpec, TypeVar

from changelog.base.errors import ConfigurationError, CorruptRecordError, LeaseLostError
from changelog.base.events import events
from changelog.base.runtime import Runtime, instance_name
from changelog.change import LOG_PREFIX, Entry, Unreadable, encode
from changelog.log import LOG_END, KeyRange
from recovery.feed.files import FileFormat
from recovery.feed.index_value import IndexDamagedError
from recovery.feed.messages import Message, Progress, Update, Updates
from recovery.feed.writer.changes import References, difference, of_objects, of_range
from recovery.feed.writer.checkpoint import NOTE, Checkpoint, Pass, Staged
from recovery.feed.writer.source import FeedWriterCounts
from recovery.feed.writer.stored import Journaled, StoredFeed
from tiered.metadata import NS_PER_MS
from tiered.notes.feed_off import read_notices, remove_notices
from tiered.notes.note_fields import NewerNoteError
from tiered.open import Backends
from tiered.services.retry import retry
from tiered.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")

CALL_BUDGET_S = 30.0
"""For so many seconds a call that failed is repeated. Then the step ends with the error."""

TRANSACTION_AGE_MAX_S = 3600.0
"""A writer that stood still for longer, since it read what it would write, opens again instead."""

DAMAGED_AGAIN_S = 60.0
"""A row that could not be read is looked at again after so many seconds."""

COVERED_MAX = 20_000
"""When so many hints wait for their clean-up, nothing more is read: a service is away."""

SWEPT_AT_ONCE = 500
"""So many values of other generations are removed in a step."""

PARTS = 64
"""The size of a pass is estimated from boundaries that cut the rows into about so many parts."""

NEW_GENERATION = "begin a new generation with 'tiered feed run --new-generation'"


class FencedError(LeaseLostError):
    """Another writer has opened the feed, or recovery has set a gap: the checkpoint is another one by now.

    Nothing was committed.
    """


class _IndexLostError(Exception):
    """A whole pass did not meet all that was published. It never leaves this module."""


class StepResult(Enum):
    """What a step did."""

    IDLE = "there was nothing to do"
    DONE = "something was committed"
    MORE = "something was committed, and there is more to do"
    PAUSED = "too much waits for the sinks, or for the clean-up"


@dataclass(frozen=True, slots=True)
class CoveredHint:
    """A hint that a commit covers. `shown`: the blob that the row named when it was read for that commit."""

    entry: Entry
    shown: str | None


@dataclass(slots=True)
class NextCommit:
    """What a step is about to commit. `scan`: the pass afterwards; `passed`: it is complete with this step.

    `read`: the references that the updates come from.
    """

    updates: Sequence[Update]
    read: References
    scan: Pass | None
    withheld: bool = False
    passed: bool = False


class FeedWriter:
    """Call `open`, then `step` again and again, in one task. `store`: which store this is, by a name that stays.

    `counts`: what it counts for the statistics. `waiting`: the committed files that sinks may still need, in the order
    of their times. `covered`: the hints that a commit covers, by key. Whoever cleans up after them takes them out.
    """

    def __init__(self, backends: Backends, runtime: Runtime, settings: Settings, store: str, counts: FeedWriterCounts) -> None:
        self.counts = counts
        self.waiting: list[Journaled] = []
        self.covered: dict[str, CoveredHint] = {}
        self._log = backends.log
        self._rows = backends.tiers.high_volume
        self._runtime = runtime
        self._settings = settings.feed
        self._form = FileFormat(settings.feed.format)
        self._store = store
        self.name = instance_name(runtime, "feed")
        self._checkpoint: Checkpoint | None = None
        self._stored: StoredFeed | None = None
        self._raw: bytes | None = None
        self._aside: dict[str, float] = {}
        self._boundaries: Sequence[str] = ()
        self._told_at = -math.inf
        self._has_others = True
        self._moved_at = -math.inf
        self._committed_s = -math.inf
        self._looked_at = -math.inf
        self.feed_off: tuple[str, ...] = ()
        """The processes that work with the feed off, as far as this writer knows. Meanwhile no progress is published.
        """

    @property
    def checkpoint(self) -> Checkpoint:
        """What is committed, as far as this writer knows. Only after `open`."""
        assert self._checkpoint is not None, "open it first"
        return self._checkpoint

    @property
    def committed(self) -> Checkpoint | None:
        """The same, or None if this writer is not open: it knows that it is fenced."""
        return self._checkpoint

    @property
    def stored(self) -> StoredFeed:
        """The values of the present generation. Only after `open`."""
        assert self._stored is not None, "open it first"
        return self._stored

    # --- opening -----------------------------------------------------------------------------------

    async def open(self, *, new_generation: bool = False) -> Checkpoint:
        """Makes this the only writer, and does once more what follows from the last commit.

        `ConfigurationError`: the feed in this changelog is of another store. `CorruptRecordError`: the checkpoint or a
        committed file is damaged; nothing was lost, and nothing more is published.
        """
        self._checkpoint = self._stored = None
        self._aside.clear()
        self.covered.clear()
        self._told_at = self._looked_at = -math.inf
        self.feed_off = ()
        self._has_others = True
        raw = await self._retry(self._log.read_note, NOTE)
        try:
            before = None if raw is None else Checkpoint.from_bytes(raw)
        except NewerNoteError:
            raise
        except CorruptRecordError:
            if not new_generation:
                raise
            before = None
        if before is None or new_generation:
            return await self._begin_generation(raw, before)
        if before.store != self._store:
            raise ConfigurationError(
                f"the feed in this changelog is of the store {before.store}, and this is the store {self._store}:"
                f" check the settings, or {NEW_GENERATION}"
            )
        if not await self._retry(StoredFeed(self._log, before.generation).has_begun):
            events.warning("feed_index_lost", "none of it is there", generation=before.generation)
            return await self._begin_generation(raw, before)
        return await self._go_on(raw, before)

    async def begin_after(self, newest: int) -> None:
        """Begins a generation that is later than this one, because the changelog went back in time."""
        await self._begin_generation(self._raw, self.checkpoint, newest + 1)

    async def _begin_generation(self, raw: bytes | None, before: Checkpoint | None, least: int = 0) -> Checkpoint:
        """A feed from 0, in which a progress goes out before any update. `least`: the least number that it may have."""
        now_ms = self._now_ms()
        older = await self._retry(StoredFeed.newest, self._log) if before is None else before.generation
        generation = max(now_ms, least) if older is None else max(now_ms, least, older + 1)
        epoch = 1 if before is None else before.epoch + 1
        stored = StoredFeed(self._log, generation)
        await self._retry(stored.begin, epoch)
        staged = await self._retry(stored.stage, [Progress((0,), (1,), ())], 0, 0, self._form, epoch, 1)
        first = replace(
            Checkpoint.begin(generation, self._store, self.name, epoch=epoch),
            next=1, lower=1, staged=staged, scan=_pass(now_ms, withheld=True),
        )
        await self._commit(raw, first)
        self._stored, self.feed_off = stored, ()
        await self._apply(first, [])
        self.waiting = [Journaled(0, staged, 0, before=-1)]
        self._boundaries = await self._retry(self._rows.boundaries, PARTS)
        events.info("feed_generation_began", "its first pass reads every row", generation=generation, epoch=epoch)
        return first

    async def _go_on(self, raw: bytes | None, before: Checkpoint) -> Checkpoint:
        mine = before.opened(self.name)
        await self._commit(raw, mine)
        self._stored = stored = StoredFeed(self._log, mine.generation)
        keep = []
        if (staged := mine.staged) is not None:
            keep.append(staged)
            await self._apply(mine, await self._updates_of(staged))
        self.waiting = await self._retry(stored.journal)
        keep += [each.staged for each in self.waiting]
        await self._retry(stored.sweep, keep, mine.epoch)
        self._boundaries = await self._retry(self._rows.boundaries, PARTS)
        events.info("feed_opened", generation=mine.generation, epoch=mine.epoch, frontier=mine.frontier)
        return mine

    async def _updates_of(self, staged: Staged) -> Sequence[Update]:
        """Returns the updates of the last committed file. If a later writer has trimmed it, this one is fenced."""
        try:
            return await self._retry(self.stored.updates_of, staged)
        except CorruptRecordError:
            if await self._retry(self._log.read_note, NOTE) == self._raw:
                raise
            self._checkpoint = None
            raise FencedError("another writer has opened the feed while this one did; this one commits nothing more") from None

    async def close(self) -> None:
        """Says in the checkpoint that no writer is at work, so that the next one need not wait."""
        if self._checkpoint is not None:
            await self._commit(self._raw, self._checkpoint.ended())
            self._checkpoint = None

    # --- one transaction ---------------------------------------------------------------------------

    async def step(self) -> StepResult:
        """Publishes what has changed, as one transaction. Raises `FencedError`, or the error of a service.

        After an error call `open` before the next step: what the checkpoint is may be unknown.
        """
        known, began_s = self.checkpoint, self._runtime.boot_time()
        if self._has_others and known.scan is None:
            self._has_others = await self._retry(self.stored.sweep_others, SWEPT_AT_ONCE, known.epoch)
        if self.feed_off and self._runtime.monotonic() - self._looked_at >= self._settings.progress_every_s:
            await self._look_for_feed_off()
            return StepResult.MORE
        if known.gap and not self.feed_off:
            if await self._look_for_feed_off():
                return StepResult.MORE
            return await self._begin_pass(replace(known, gap=False), withheld=True)
        if known.scan is None and not self.feed_off and abs(self._now_ms() - (known.passed or 0)) > self._settings.reconcile_every_s * 1000:
            return await self._begin_pass(known, withheld=False)
        if self._is_full():
            if self._runtime.monotonic() - self._moved_at >= self._settings.progress_every_s:
                await self._commit(self._raw, replace(known, seq=known.seq + 1))  # otherwise another one takes over
            return StepResult.PAUSED
        hints, more = await self._hints()
        if any(isinstance(hint, Unreadable) for hint in hints.values()):
            return await self._park(hints)
        entries = {key: hint for key, hint in hints.items() if isinstance(hint, Entry)}
        time = max(known.next, self._now_ms())
        told_at = self._moved_at if self.feed_off else self._told_at  # who publishes no progress still shows that it lives
        due = self._runtime.monotonic() - told_at >= self._settings.progress_every_s
        if not entries and known.scan is None and not due:
            return StepResult.IDLE
        if not self.feed_off and await self._look_for_feed_off():
            return StepResult.MORE
        wanted = await self._retry(of_objects, self._rows, {entry.change.object for entry in entries.values()})
        try:
            intent = await self._intent(known, entries, wanted, time)
            if self._runtime.boot_time() - began_s > TRANSACTION_AGE_MAX_S:
                raise FencedError("this writer stood still for an hour, so it opens the feed again")
            await self._publish(known, intent, time, due=due)
        except (_IndexLostError, IndexDamagedError) as error:
            events.warning("feed_index_lost", error, generation=known.generation)
            await self._begin_generation(self._raw, known)
            return StepResult.MORE
        self.counts.hints += len(entries)
        self.counts.hint_bytes += sum(len(encode(entry)) for entry in entries.values())
        self._cover(entries, intent.read)
        return StepResult.MORE if more or intent.scan is not None else StepResult.DONE

    async def _intent(self, known: Checkpoint, hints: Mapping[str, Entry], wanted: References, time: int) -> NextCommit:
        """The difference of the hints' objects, and of a page of the pass, if one is under way."""
        objects = {entry.change.object for entry in hints.values()}
        scan, stored, limit = known.scan, self.stored, self._settings.batch_max
        published = await self._retry(stored.published, objects)
        if scan is None:
            return NextCommit(difference(wanted, published, objects, time), wanted, None, withheld=bool(self.feed_off))
        start = scan.cursor.decode()
        page = await self._retry(of_range, self._rows, start, limit)
        within, rest = await self._retry(stored.published_within, start, page.end, limit)
        end = page.end if rest is None else rest  # an index with very many entries for a few rows is taken in parts
        rows = {path for path in page.references.blobs if end is None or path < end}
        damaged = {path: fault for path, fault in page.references.damaged.items() if end is None or path < end}
        # The rows of hints were read before the page, so what the page says of them is as good, and may be newer.
        both = References(
            {path: blob for path, blob in wanted.blobs.items() if not start <= path or (end is not None and path >= end)}
            | {path: page.references.blobs[path] for path in rows},
            wanted.damaged | damaged,
        )
        updates = difference(both, published | within, objects | rows | within.keys(), time)
        scanned = scan.scanned + len(within) + sum(update.diff for update in updates if end is None or update.data["object"] < end)
        for path, fault in damaged.items():
            events.warning("feed_row_damaged", fault, object=path)
        if end is None:
            if scanned != (live := known.live + sum(update.diff for update in updates)):
                raise _IndexLostError(f"the published index has {scanned} entries, and {live} were published")
            return NextCommit(updates, both, None, scan.withheld, passed=True)
        read = scan.read + len(rows)
        after = replace(scan, cursor=end.encode(), read=read, known=self._estimate(end, read), estimated=True, scanned=scanned)
        return NextCommit(updates, both, after, scan.withheld)

    async def _publish(self, known: Checkpoint, intent: NextCommit, time: int, *, due: bool) -> None:
        """Stages, commits and applies. Without an update, and before progress is due, it is the commit alone."""
        stored, count, updates = self.stored, len(intent.updates), intent.updates
        shows_progress = not intent.withheld or intent.passed
        following = replace(
            known, seq=known.seq + 1, live=known.live + sum(update.diff for update in updates), scan=intent.scan,
            passed=self._now_ms() if intent.passed else known.passed,
        )
        if not count and not (shows_progress and (due or intent.passed)):
            await self._commit(self._raw, following)
            return
        messages: list[Message] = [Updates(tuple(updates))] if count else []
        if shows_progress:
            counts = await self._retry(stored.withheld, known.lower) if known.lower < known.next else {}
            counts = counts | {time: count} if count else counts
            messages.append(Progress((known.lower,), (time + 1,), tuple(sorted(counts.items()))))
        staged = await self._retry(stored.stage, messages, count, time, self._form, known.epoch, following.seq)
        self.counts.staged += count
        records = known.records + count
        following = replace(
            following, timestamp=time, num_records=count, next=time + 1, lower=time + 1 if shows_progress else known.lower, staged=staged,
            bindings=known.bound(time, records),
        )
        await self._commit(self._raw, following)
        await self._apply(following, updates, tells=known.lower < known.next)
        self.waiting.append(Journaled(time, staged, records, before=known.timestamp))
        self.counts.committed += count
        if shows_progress:
            self._told_at = self._runtime.monotonic()

    def _is_full(self) -> bool:
        """Whether too much waits for the sinks, or for the clean-up."""
        return sum(each.staged.bytes for each in self.waiting) > self._settings.journal_bytes_max or len(self.covered) >= COVERED_MAX

    async def trim(self, acknowledged: int) -> None:
        """Forgets committed files before this time, which every sink has. `Delivery` compares that of this time.

        The last one stays: `open` needs it.
        """
        while len(self.waiting) > 1 and self.waiting[0].time < acknowledged:
            await self._retry(self.stored.drop, self.waiting[0])
            del self.waiting[0]

    # --- hints -------------------------------------------------------------------------------------

    async def _hints(self) -> tuple[dict[str, Entry | Unreadable], bool]:
        """Entries that are kept and not covered by a commit yet, by key. And whether there are more."""
        found: dict[str, Entry | Unreadable] = {}
        start: str | None = LOG_PREFIX
        now = self._runtime.monotonic()
        while start is not None:
            within = KeyRange(start, LOG_END)
            page = await self._retry(self._log.kept, within, self._settings.batch_max)
            for entry in page.entries:
                if entry.key not in self.covered and self._aside.get(entry.key, -math.inf) <= now:
                    if len(found) >= self._settings.batch_max:
                        return found, True
                    found[entry.key] = entry
            start = page.next_start
        return found, False

    async def _park(self, hints: Mapping[str, Entry | Unreadable]) -> StepResult:
        """Parks hints that cannot be read. What they were about is found by a pass over all rows.

        One that changes meanwhile is looked at again later. `ConfigurationError`: newer software wrote one. It stays,
        and nothing is published: a progress would claim that the feed has what it says.
        """
        for hint in hints.values():
            if isinstance(hint, Unreadable) and hint.newer:
                raise ConfigurationError(hint.error)
        parked = False
        for hint in hints.values():
            if not isinstance(hint, Unreadable):
                continue
            if await self._retry(self._log.park, hint, hint.error):
                parked = True
                events.error("entry_parked", hint.error, key=hint.key, verdict="parked")
            else:
                self._aside[hint.key] = self._runtime.monotonic() + DAMAGED_AGAIN_S
        if not parked or self.feed_off:  # then a pass comes anyway
            return StepResult.MORE
        return await self._begin_pass(self.checkpoint, withheld=True)

    def _cover(self, hints: Mapping[str, Entry], read: References) -> None:
        """Hands hints over to the clean-up, except those whose row cannot be read."""
        again = self._runtime.monotonic() + DAMAGED_AGAIN_S
        for key, entry in hints.items():
            if (fault := read.damaged.get(entry.change.object)) is None:
                self._aside.pop(key, None)
                self.covered[key] = CoveredHint(entry, read.blobs.get(entry.change.object))
            else:
                self._aside[key] = again
                events.warning("feed_row_damaged", fault, object=entry.change.object)

    # --- the feed that is off ------------------------------------------------------------------------

    async def _look_for_feed_off(self) -> bool:
        """Looks whether processes work with the feed off, or did. If any does or did, the checkpoint has a gap then.

        The gap is committed after the notices were read, and before they are removed. So a pass that begins after it
        finds what they are about, and a *crash* between the two costs one more pass.
        """
        known = self.checkpoint
        notices = await self._retry(read_notices, self._log)
        now_ms = await self._retry(self._log.now_ms) if notices else 0
        self._looked_at = self._runtime.monotonic()
        working = tuple(notice.process for notice in notices if not notice.is_over(now_ms))
        if working != self.feed_off:
            events.warning("feed_off_found", ", ".join(working) or "none any more", generation=known.generation, count=len(working))
            self.feed_off = working
        if notices and not (working and known.gap):
            await self._commit(self._raw, known.with_gap())
        if not working:
            await self._retry(remove_notices, self._log, notices)
        return bool(notices)

    # --- passes ------------------------------------------------------------------------------------

    async def _begin_pass(self, known: Checkpoint, *, withheld: bool) -> StepResult:
        """Begins a pass over all rows, or begins it anew. A pass that withholds progress goes on to do so."""
        withheld = withheld or (known.scan is not None and known.scan.withheld)
        self._boundaries = await self._retry(self._rows.boundaries, PARTS)
        await self._commit(self._raw, replace(known, seq=known.seq + 1, scan=_pass(self._now_ms(), withheld=withheld)))
        events.info("feed_pass_began", generation=known.generation, withheld=withheld)
        return StepResult.MORE

    def _estimate(self, reached: str, read: int) -> int | None:
        """About how many references the pass will read, by how many parts it has read. None: nothing tells yet."""
        done = sum(boundary <= reached for boundary in self._boundaries)
        return round(read * (len(self._boundaries) + 1) / done) if done else None

    # --- the checkpoint ----------------------------------------------------------------------------

    async def _commit(self, raw: bytes | None, new: Checkpoint) -> None:
        """Replaces the checkpoint if it is still the one that this writer knows. Raises `FencedError` if it is not."""
        value, began_s = new.to_bytes(), self._runtime.boot_time()
        if not await self._retry(self._log.swap_note, NOTE, raw, value):
            self._checkpoint = None
            raise FencedError("another writer has opened the feed, or recovery has set a gap; this one commits nothing more")
        self._checkpoint, self._raw, self._moved_at, self._committed_s = new, value, self._runtime.monotonic(), began_s

    async def _apply(self, committed: Checkpoint, updates: Sequence[Update], *, tells: bool = True) -> None:
        """Raises `FencedError` if this writer stood still: that a value was removed is not remembered for ever."""
        async def once() -> None:
            if self._runtime.boot_time() - self._committed_s > TRANSACTION_AGE_MAX_S:
                raise FencedError("this writer stood still for an hour after a commit, so it opens the feed again")
            await self.stored.apply(committed, updates, tells=tells)

        await self._retry(once)

    # --- details -------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return self._runtime.wall_ns() // NS_PER_MS

    async def _retry(self, call: Callable[P, Awaitable[T]], *args: P.args, **named: P.kwargs) -> T:
        return await retry(partial(call, *args, **named), self._runtime, CALL_BUDGET_S)


def _pass(began_ms: int, *, withheld: bool) -> Pass:
    return Pass(cursor=b"", read=0, known=None, estimated=True, withheld=withheld, began=began_ms, scanned=0)
