"""Delivers the committed files to one sink, in the order of their times, until each is acknowledged.

A sink has its own pace and its own position, a note that only goes forward. A sink that is away holds up no other one
and no deletion; what it does not have yet waits in the journal. *Crash* after the acknowledgement and before the
position: the file is delivered again, with the same bytes. *Failure*: it is written down with the position, for
`tiered status`, and tried again for ever.

Before the first delivery, and now and then afterwards, the sink is looked at:

    it is marked as the place of another feed, or has      refused: two stores must not deliver to one place
      files, no mark, and this feed never delivered there
    it has a file of this generation after the last one    the changelog went back in time (a backup was restored):
      that it acknowledged, and the journal does not         the run begins a new generation (`went_back`)
    it has a later generation, and knows all files of      refused: a copy of this store, or a restored one, has gone
      this one                                               on there. Two copies never take turns: one of them stops
    what it acknowledged last is gone, or at the           `UnavailableError`, until the files are back
      beginning or after a day, any file
    what it acknowledged last has other bytes              refused: it is delivered again, and compared
    beside its files is one that no feed puts there        refused: readers would fail

The time of the last commit would not do instead: a writer that was restored may commit before it gets an answer.

A later writer of this store leaves the same signs. It has changed the epoch of the checkpoint before, so the checkpoint
is read once more before anything is believed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import anyio

from changelog.base.errors import ConfigurationError, CorruptRecordError, TieredError, UnavailableError
from changelog.base.events import events
from changelog.base.runtime import Runtime
from changelog.base.tasks import elsewhere_is_an_error
from changelog.log import ChangeLog
from recovery.feed.sinks.sink import Owner, Sink, SinkContent, folder_of, refuse_foreign
from recovery.feed.writer.checkpoint import NOTE, Checkpoint
from recovery.feed.writer.positions import FileCount, Position, advance, read, renew
from recovery.feed.writer.stored import Journaled
from recovery.feed.writer.writer import NEW_GENERATION, FeedWriter, FencedError
from tiered.metadata import NS_PER_MS
from tiered.notes.note_fields import NewerNoteError

LOOK_EVERY_S = 0.1
LOOK_AT_SINK_EVERY_S = 600.0
LOOK_AT_ALL_EVERY_S = 86_400.0
"""How often all files of the generation are counted, which a bucket lists in one request for each 1,000."""
AGAIN_FIRST_S = 0.5
AGAIN_MAX_S = 60.0
DELIVERY_MAX_S = 900.0
"""A delivery that takes longer is given up, and counts as a failure. Each sink has a shorter limit of its own."""


class Delivery:
    """One sink of one writer, which is open. `name`: under which its position is kept. `owner`: whose feed it is.

    `acknowledged`: the time of the last file that the sink has; -1: none. `has_looked`: the sink was looked at, and
    may be delivered to. `went_back`: the latest generation that the sink has, if the changelog went back in time;
    then nothing more is delivered. None: it did not.

    Call `begin`, then run `run` beside the writer until it is cancelled.
    """

    def __init__(self, name: str, sink: Sink, writer: FeedWriter, log: ChangeLog, runtime: Runtime, owner: Owner) -> None:
        self._name = name
        self._sink = sink
        self._owner = owner
        self.acknowledged = -1
        self.has_looked = False
        self.went_back: int | None = None
        self._look_at = self._look_at_all = -math.inf
        self._delivered_before = False
        self._error: Exception | None = None
        self._failing_at = 0.0
        self._told: str | None = None
        self._generation = -1
        self._writer = writer
        self._log = log
        self._runtime = runtime
        self._position: Position | None = None

    async def begin(self) -> None:
        """Reads where the sink is.

        `ConfigurationError`, which is noted: it lacks what came before, and that is not kept any more.
        `CorruptRecordError`: nobody knows what it has. `FencedError`: another writer has begun a later generation.
        """
        generation, waiting = self._writer.checkpoint.generation, self._writer.waiting
        try:
            stored = (await read(self._log, [self._name])).get(self._name)
        except NewerNoteError:
            raise
        except CorruptRecordError:
            if not waiting or waiting[0].time != 0:
                raise
            stored = None  # all of the generation is here still, so it may be delivered once more from its beginning
            await renew(self._log, Position(self._name, generation))
        if stored is not None and stored.generation > generation:
            raise FencedError(f"another writer has begun generation {stored.generation} of the feed; this one delivers nothing more")
        here = stored if stored is not None and stored.generation == generation else Position(self._name, generation)
        self._delivered_before = stored is not None and stored.acknowledged is not None
        self._position, self._generation = here, generation
        self.acknowledged = -1 if here.acknowledged is None else here.acknowledged
        if (following := self._next()) is not None and following.before > self.acknowledged:
            what = "is new to" if here.acknowledged is None else "was left out for a part of"
            error = ConfigurationError(
                f"the sink {self._name} {what} generation {generation} of the feed, whose earlier files are not kept any more:"
                f" leave the sink out, or {NEW_GENERATION}"
            )
            await self._failed(error)
            raise error

    @property
    def is_behind(self) -> bool:
        """Whether something that is committed is not acknowledged."""
        return self._next() is not None

    def error_after(self, seconds: float) -> Exception | None:
        """Returns the last error of a sink that fails for so long, or that no repetition helps. None: there is none."""
        is_refused = isinstance(self._error, ConfigurationError | CorruptRecordError)
        return self._error if is_refused or self._runtime.monotonic() - self._failing_at >= seconds else None

    async def run(self) -> None:
        failures = 0
        while True:
            is_due = self._runtime.monotonic() >= self._look_at
            if self.went_back is not None or not (is_due or self.is_behind):
                await self._runtime.sleep(LOOK_EVERY_S)
                continue
            try:
                with elsewhere_is_an_error(f"the delivery to {self._name} was cancelled elsewhere"):
                    await (self.look() if is_due else self.deliver_next())
                failures = 0
            except Exception as error:  # noqa: BLE001 - it is this sink's: the others go on
                failures += 1
                await self._failed(error)
                bound_s = min(AGAIN_MAX_S, AGAIN_FIRST_S * 2 ** min(failures - 1, 16))
                await self._runtime.sleep(bound_s * self._runtime.random.uniform(0.5, 1.0))

    async def look(self) -> None:
        """Looks at the sink, and marks it as the place of this feed if it has no mark. See the top of this module.

        `ConfigurationError`: it is the place of another feed, or of another copy of this store. `UnavailableError`: it
        has lost what it acknowledged. Or the error of the sink or of the log.
        """
        at_all = self._runtime.monotonic() >= self._look_at_all
        with anyio.move_on_after(DELIVERY_MAX_S) as bound:
            held = whole = await self._sink.look(self._generation, 0) if at_all else await self._held()
            if whole is not None:
                held = replace(whole, times=tuple(time for time in whole.times if time >= self.acknowledged))
            if held is None or held.owner is None:
                held = await self._claim(held)
            if held is not None:
                refuse_foreign(held.foreign, f"the sink {self._name}: {folder_of(self._generation)}")
                await self._judge(held)
                await self._compare_last()
                if at_all and whole is not None:
                    await self._count_files(whole)
            elif not self.has_looked:
                events.info("feed_sink_unverified", "whether another store delivers there cannot be asked", sink=self._name)
        if bound.cancelled_caught:
            raise self._unanswered()
        if at_all:
            self._look_at_all = self._runtime.monotonic() + LOOK_AT_ALL_EVERY_S
        self.has_looked, self._look_at = True, self._runtime.monotonic() + LOOK_AT_SINK_EVERY_S

    async def _held(self) -> SinkContent | None:
        """Returns what the sink has from the last file that it acknowledged on."""
        return await self._sink.look(self._generation, max(0, self.acknowledged))

    async def _compare_last(self) -> None:
        """Delivers the last file again, if it is kept. The sink compares it with its own, and refuses other bytes."""
        last = next((each for each in self._writer.waiting if each.time == self.acknowledged), None)
        if last is None or self.went_back is not None:
            return
        try:
            segment = await self._writer.stored.segment(last)
        except CorruptRecordError:  # a later writer has trimmed it; or it is damaged, and whoever opens the feed says so
            return
        await self._sink.deliver(segment)

    async def _count_files(self, whole: SinkContent) -> None:
        """Compares all files that the sink has with those that it acknowledged. The first time, they are believed."""
        if self.acknowledged < 0 or self.went_back is not None:
            return
        assert self._position is not None, "something was delivered"
        there = FileCount.of([time for time in whole.times if time <= self.acknowledged])
        if self._position.files is None:
            self._position = await advance(self._log, replace(self._position, files=there))
        elif there != self._position.files:
            raise UnavailableError(
                f"the sink {self._name} does not have the files that were delivered: up to {self.acknowledged:019d},"
                f" {folder_of(self._generation)} must have {self._position.files.number:,}, and has {there.number:,}, or others;"
                f" readers stand still where one is missing: bring the files back, or {NEW_GENERATION}"
            )

    async def _claim(self, held: SinkContent | None) -> SinkContent | None:
        """Marks the sink, unless its files are of nobody knows whom. Returns what is there then."""
        if held is not None and held.newest is not None and not (self._delivered_before or held.times):
            raise ConfigurationError(
                f"the sink {self._name} has {folder_of(held.newest)} of a feed, and this feed has never delivered there: give an empty"
                " place, or move what is there away"
            )
        if held is not None and self._has_lost(held):
            raise self._lost()
        if not await self._sink.claim(self._owner) or held is None:
            return held
        return await self._held()  # another feed may have been faster

    async def _judge(self, held: SinkContent) -> None:
        if (owner := held.owner) is not None and owner.feed != self._owner.feed:
            raise ConfigurationError(
                f"the sink {self._name} is the place of another feed, {owner.feed} of {owner.store}; this is {self._owner.feed} of"
                f" {self._owner.store}: give each store a place of its own"
            )
        checkpoint, newest = self._writer.committed, held.newest or 0
        if checkpoint is None:
            return  # it is fenced
        journaled = {each.time for each in self._writer.waiting}
        is_unknown = any(time > self.acknowledged and time not in journaled for time in held.times)
        is_beyond = newest > self._generation
        if not (is_unknown or is_beyond or self._has_lost(held)) or await self._is_fenced(checkpoint):
            return
        if is_unknown or (is_beyond and not held.times):
            self.went_back = max(newest, self._generation)
            events.warning(
                "feed_went_back", "the sink has files that the changelog does not know, as after a backup was restored",
                sink=self._name, generation=self._generation, newest=newest,
            )  # fmt: skip
        elif is_beyond:
            raise ConfigurationError(
                f"the sink {self._name} has {folder_of(newest)}, and this store is at {folder_of(self._generation)}, of which nothing is"
                " missing here: a copy of this store, or a backup that was restored, has gone on there. Stop that one, or give it a"
                f" place of its own; then {NEW_GENERATION}"
            )
        else:
            raise self._lost()

    def _has_lost(self, held: SinkContent) -> bool:
        return self.acknowledged >= 0 and self.acknowledged not in held.times[:1] and (held.newest or 0) <= self._generation

    async def _is_fenced(self, checkpoint: Checkpoint) -> bool:
        """Whether a later writer is at work. This one learns it with its next commit."""
        raw = await self._log.read_note(NOTE)
        if raw is None:
            return True
        found = Checkpoint.from_bytes(raw)
        return (found.epoch, found.generation) != (checkpoint.epoch, checkpoint.generation)

    def _lost(self) -> UnavailableError:
        return UnavailableError(
            f"the sink {self._name} has lost files: the last one that it acknowledged, {self.acknowledged:019d} in"
            f" {folder_of(self._generation)}, is not there; bring the files back, or {NEW_GENERATION}"
        )

    def _unanswered(self) -> UnavailableError:
        return UnavailableError(f"the sink {self._name} has not answered for {DELIVERY_MAX_S:g} s")

    def _next(self) -> Journaled | None:
        return next((each for each in self._writer.waiting if each.time > self.acknowledged), None)

    async def deliver_next(self) -> None:
        """Delivers one file and writes the position down. Only then it counts as acknowledged, and may be trimmed.

        Raises the error of the sink or of the log.
        """
        assert self._position is not None, "it has begun"
        if (journaled := self._next()) is None:
            return
        if journaled.before > self.acknowledged:
            raise CorruptRecordError(
                f"the journal of the feed has lost files after {self.acknowledged} that the sink {self._name} does not have:"
                f" {NEW_GENERATION}"
            )
        try:
            segment = await self._writer.stored.segment(journaled)
        except CorruptRecordError:
            stored = (await read(self._log, [self._name])).get(self._name)
            if stored is None or stored.generation != self._generation or (stored.acknowledged or 0) < journaled.time:
                raise
            self._position, self.acknowledged = stored, stored.acknowledged or 0  # the writer before has delivered and trimmed it
            return
        with anyio.move_on_after(DELIVERY_MAX_S) as bound:
            await self._sink.deliver(segment)
        if bound.cancelled_caught:
            raise self._unanswered()
        was_failing = self._position.failing_since is not None
        before = FileCount() if journaled.time == 0 else self._position.files
        files = None if before is None else before.plus(journaled.time)
        self._position = await advance(
            self._log, Position(self._name, self._generation, journaled.time, journaled.records, files=files)
        )
        self.acknowledged = journaled.time
        self._error = self._told = None
        if was_failing:
            events.info("feed_sink_answers", sink=self._name, acknowledged=journaled.time)

    async def _failed(self, error: Exception) -> None:
        """Logs a failure and notes it beside the position, unless it is the one that is noted already.

        Since when no delivery succeeds is kept, also from the writer before this one.
        """
        if self._error is None:
            self._failing_at = self._runtime.monotonic()
        if str(error) != self._told:
            await self._note(error)
        self._error = error  # last: `error_after` ends a run, and the status must say afterwards why

    async def _note(self, error: Exception) -> None:
        self._told = str(error)
        unforeseen = None if isinstance(error, TieredError) else error
        events.warning("feed_sink_failing", error, exc_info=unforeseen, sink=self._name)
        assert self._position is not None, "it has begun"
        since = self._position.failing_since
        if since is None:
            since = self._runtime.wall_ns() // NS_PER_MS
        self._position = replace(self._position, failing_since=since, error=str(error))
        with anyio.move_on_after(AGAIN_MAX_S):
            try:
                await advance(self._log, self._position)
            except TieredError as unwritten:
                events.debug("feed_position_not_written", unwritten, sink=self._name)
