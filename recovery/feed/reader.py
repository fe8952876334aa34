"""CdcReader turns messages that were repeated, reordered and cut anywhere into batches that are complete.

    frontier = the first time that is not complete. A time is complete if progress messages cover all times from 0 to
               it without a gap, and each of these times has as many distinct updates as they declare.

The reader trusts progress alone: never the order of messages, nor silence. It keeps these rules, and refuses a message
that breaks one (`FeedError`). A refused message changes nothing, and the next one may be fed.

- No time is negative.
- A progress message is about [lower, upper). It has at most one count for each time in there, and no count for others.
- Two progress messages declare the same count for each time that both are about. No count is the count 0.
- A time has no more distinct updates than declared. Whatever comes second is refused: the update, or the progress.
- At one time, a record has one diff.

*Memory* (with `in_memory`, that or the disk). It holds the updates at times from the frontier on, and the counts for
these times. Everything about earlier times is forgotten, because the protocol needs nothing of it: an update at an
earlier time is dropped unseen. So a contradiction that comes after its time was delivered is found only by a reader
with `remember`, which forgets nothing.

*Crash.* The state is in memory alone. A new reader is fed everything again, or from a point where the reader before it
held nothing, and then gives the same batches.
"""

from __future__ import annotations

from typing import Any

from recovery.feed.batch import BYTES_PER_TIME, END, BufferedUpdates, FeedBatch, Waiting, counts_of, named
from recovery.feed.errors import FeedError, Rule
from recovery.feed.held import HeldUpdates
from recovery.feed.messages import Key, Message, Progress, Update, Updates
from recovery.feed.spelling import from_json
from recovery.feed.temporary import check_in_memory
from recovery.feed.times import Cover, Times


class CdcReader:
    """Reads one feed, message by message. Not for several threads at once.

    `remember`: also keeps what it has delivered, for ever, and so refuses a contradiction that comes late.
    `in_memory`: so many updates are kept in memory, and the others in a temporary file; None: all in memory. Then a
    large batch is in a file, too, and may raise `UnavailableError` where it is read, as `feed` may.
    """

    ignored: int
    """How many updates had no effect: repeated ones, and ones at times that were delivered before."""
    late: int
    """How many of the ignored updates were at times that were delivered before. A repetition is one, too."""

    def __init__(self, remember: bool = False, in_memory: int | None = None) -> None:
        check_in_memory(in_memory)
        self.ignored = self.late = 0
        self._frontier = 0
        """The first time that is not complete."""
        self._remember = remember
        self._held = HeldUpdates(in_memory)
        self._declared: dict[int, int] = {}
        """By time: the count, where it is not 0."""
        self._declared_times = Times()
        """The keys of `_declared`."""
        self._cover = Cover()

    def feed(self, message: Message | dict[str, Any]) -> FeedBatch | None:
        """Takes one message, a value or the decoded Avro-JSON object. Returns what became complete by it, if anything.

        The data of the message is kept as it is, and not copied: do not change it afterwards. Raises `FeedError` if the
        message is none or breaks a rule. Then nothing of it was taken.
        """
        if not isinstance(message, Updates | Progress):
            message = from_json(message)
        if isinstance(message, Updates):
            self._take_updates(message.updates)
        else:
            self._take_progress(message)
        frontier = min(self._cover.end, self._first_incomplete())
        if frontier == self._frontier:
            return None
        complete = self._held.deliver(self._frontier, frontier)
        self._frontier = frontier
        if not self._remember:
            self._forget(frontier)
        return FeedBatch(complete, self.frontier)

    @property
    def frontier(self) -> tuple[int, ...]:
        """The first time that is not complete; empty: the feed has ended."""
        return () if self._frontier == END else (self._frontier,)

    @property
    def held(self) -> BufferedUpdates:
        """How much the reader holds back. `remember` is not counted."""
        updates, declared = (sum(1 for _ in times.between(self._frontier, END)) for times in (self._held, self._declared_times))
        times = max(updates, declared) + len(self._cover)
        return BufferedUpdates(self._held.updates, times, self._held.bytes + times * BYTES_PER_TIME)

    @property
    def waiting(self) -> Waiting | None:
        """What keeps the frontier where it is. None: the feed has ended."""
        if (time := self._frontier) == END:
            return None
        return Waiting(time, self._declared.get(time, 0) if time in self._cover else None, self._held.number(time))

    # --- updates -----------------------------------------------------------------------------------

    def _take_updates(self, updates: tuple[Update, ...]) -> None:
        fresh: dict[int, dict[Key, Update]] = {}
        ignored, late = 0, 0
        for update in updates:
            if update.time < 0:
                raise FeedError(Rule.TIME, f"{named(update)} is at a negative time")
            if self._is_late(update) or self._is_repeated(update, fresh):
                ignored += 1
                late += update.time < self._frontier
                continue
            at_time = fresh.setdefault(update.time, {})
            self._refuse_one_too_many(update, len(at_time))
            at_time[update.key] = update
        # Nothing was refused.
        self.ignored += ignored
        self.late += late
        for time, found in fresh.items():
            self._held.add(time, found)

    def _is_late(self, update: Update) -> bool:
        return update.time < self._oldest()

    def _oldest(self) -> int:
        """The first time of which the reader still knows something."""
        return 0 if self._remember else self._frontier

    def _is_repeated(self, update: Update, fresh: dict[int, dict[Key, Update]]) -> bool:
        """Whether it was taken before, or earlier in the same message. Another diff is a contradiction."""
        before = self._held.get(update.time, update.key) or fresh.get(update.time, _NONE).get(update.key)
        if before is not None and before.diff != update.diff:
            raise FeedError(Rule.DIFF, f"{named(update)} contradicts {named(before)}, which came before")
        return before is not None

    def _refuse_one_too_many(self, update: Update, fresh: int) -> None:
        """`fresh`: how many others at this time the same message has."""
        time = update.time
        if time in self._cover:
            declared, received = self._declared.get(time, 0), self._held.number(time) + fresh
            if received >= declared:
                raise FeedError(
                    Rule.COUNT, f"{named(update)} is one too many: progress declares {declared} at time {time}, and {received} came before"
                )

    # --- progress ----------------------------------------------------------------------------------

    def _take_progress(self, progress: Progress) -> None:
        lower, upper = (bound[0] if bound else END for bound in (progress.lower, progress.upper))
        counts = counts_of(progress, lower, upper)
        self._refuse_other_counts(progress, lower, upper, counts)
        self._refuse_fewer_than_received(progress, lower, upper, counts)
        for time, count in counts.items():
            if count and time >= self._oldest() and time not in self._declared:
                self._declared[time] = count
                self._declared_times.add(time)
        if lower < upper:
            self._cover.add(lower, upper)

    def _refuse_other_counts(self, progress: Progress, lower: int, upper: int, counts: dict[int, int]) -> None:
        """Refuses a count that another progress message declared differently, or a missing one that it declared."""
        oldest = max(lower, self._oldest())
        known = self._declared_times.between(oldest, upper)
        again = (time for time in counts if time >= oldest and time in self._cover)
        for time in sorted({*known, *again}):
            if (before := self._declared.get(time, 0)) != (count := counts.get(time, 0)):
                raise FeedError(Rule.PROGRESS, f"{named(progress)} declares {count} at time {time}, and another one declared {before}")

    def _refuse_fewer_than_received(self, progress: Progress, lower: int, upper: int, counts: dict[int, int]) -> None:
        oldest = max(lower, self._oldest())
        for time in self._held.between(oldest, upper):
            if (received := self._held.number(time)) > (count := counts.get(time, 0)):
                raise FeedError(Rule.COUNT, f"{named(progress)} declares {count} at time {time}, and {received} distinct updates came")

    # --- what is complete --------------------------------------------------------------------------

    def _first_incomplete(self) -> int:
        """The first time that has fewer updates than declared. Times that nobody can deliver yet are not looked at."""
        for time in self._declared_times.between(self._frontier, self._cover.end):
            if self._held.number(time) < self._declared[time]:
                return time
        return END

    def _forget(self, frontier: int) -> None:
        self._held.forget_before(frontier)
        for time in self._declared_times.remove_before(frontier):
            del self._declared[time]


_NONE: dict[Key, Update] = {}
