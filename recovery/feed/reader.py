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

from collections.abc import Iterable
from typing import Any, Protocol

from changelog.base.errors import InvalidRequestError
from recovery.feed.batch import BYTES_PER_TIME, END, BufferedUpdates, FeedBatch, Waiting, counts_of, named
from recovery.feed.errors import FeedError, Rule
from recovery.feed.held import HeldUpdates
from recovery.feed.messages import Key, Message, Progress, Update, Updates
from recovery.feed.reference import ReferenceRules
from recovery.feed.spelling import from_json
from recovery.feed.temporary import Delivered, check_in_memory
from recovery.feed.times import Cover, Times


class Rules(Protocol):
    """By what a reader decides: the strict rules below, or those of the reference reader."""

    frontier: int
    ignored: int
    late: int

    @property
    def updates(self) -> int: ...
    @property
    def bytes(self) -> int: ...

    def take_updates(self, updates: tuple[Update, ...]) -> None: ...
    def take_progress(self, progress: Progress) -> None: ...
    def deliver(self) -> Delivered | None: ...
    def times(self) -> int: ...
    def waiting(self) -> tuple[int, int | None, int]: ...


class CdcReader:
    """Reads one feed, message by message. Not for several threads at once.

    `lenient`: refuses nothing, and delivers exactly what the reference reader (differential dataflow) delivers, wrong
    views included: an over-count is delivered, a second diff too, and the first progress about a time wins.
    `remember`: also keeps what it has delivered, for ever, and so refuses a contradiction that comes late.
    `in_memory`: so many updates are kept in memory, and the others in a temporary file; None: all in memory. Then a
    large batch is in a file, too, and may raise `UnavailableError` where it is read, as `feed` may.
    """

    def __init__(self, lenient: bool = False, remember: bool = False, in_memory: int | None = None) -> None:
        if lenient and remember:
            raise InvalidRequestError("a lenient reader refuses nothing, so it has nothing to remember: choose one of the two")
        check_in_memory(in_memory)
        if lenient and in_memory is not None:
            raise InvalidRequestError("a lenient reader holds all updates in memory: leave in_memory out")
        self._rules: Rules = ReferenceRules() if lenient else StrictRules(remember, in_memory)

    def feed(self, message: Message | dict[str, Any]) -> FeedBatch | None:
        """Takes one message, a value or the decoded Avro-JSON object. Returns what became complete by it, if anything.

        The data of the message is kept as it is, and not copied: do not change it afterwards. Raises `FeedError` if the
        message is none or breaks a rule. Then nothing of it was taken.
        """
        if not isinstance(message, Updates | Progress):
            message = from_json(message)
        if isinstance(message, Updates):
            self._rules.take_updates(message.updates)
        else:
            self._rules.take_progress(message)
        delivered = self._rules.deliver()
        if delivered is None:
            return None
        return FeedBatch(delivered, self.frontier)

    @property
    def frontier(self) -> tuple[int, ...]:
        """The first time that is not complete; empty: the feed has ended."""
        return () if self._rules.frontier == END else (self._rules.frontier,)

    @property
    def held(self) -> BufferedUpdates:
        """How much the reader holds back. `remember` is not counted."""
        times = self._rules.times()
        return BufferedUpdates(self._rules.updates, times, self._rules.bytes + times * BYTES_PER_TIME)

    @property
    def ignored(self) -> int:
        """How many updates had no effect: repeated ones, and ones at times that were delivered before."""
        return self._rules.ignored

    @property
    def late(self) -> int:
        """How many of the ignored updates were at times that were delivered before. A repetition is one, too."""
        return self._rules.late

    @property
    def waiting(self) -> Waiting | None:
        """What keeps the frontier where it is. None: the feed has ended."""
        return None if self._rules.frontier == END else Waiting(*self._rules.waiting())


class StrictRules:
    """The rules at the top of this file. `frontier`: the first time that is not complete."""

    def __init__(self, remember: bool = False, in_memory: int | None = None) -> None:
        self.frontier = 0
        self.ignored = 0
        self.late = 0
        self._remember = remember
        self._held = HeldUpdates(in_memory)
        self._declared: dict[int, int] = {}
        """By time: the count, where it is not 0."""
        self._declared_times = Times()
        """The keys of `_declared`."""
        self._cover = Cover()

    # --- updates -----------------------------------------------------------------------------------

    def take_updates(self, updates: tuple[Update, ...]) -> None:
        fresh: dict[int, dict[Key, Update]] = {}
        ignored, late = 0, 0
        for update in updates:
            if update.time < 0:
                raise FeedError(Rule.TIME, f"{named(update)} is at a negative time")
            if self._is_late(update) or self._is_repeated(update, fresh):
                ignored += 1
                late += update.time < self.frontier
                continue
            at_time = fresh.setdefault(update.time, {})
            self._refuse_one_too_many(update, len(at_time))
            at_time[update.key] = update
        # Nothing was refused.
        self.ignored += ignored
        self.late += late
        for time, found in fresh.items():
            self._held.add(time, found)

    @property
    def updates(self) -> int:
        return self._held.updates

    @property
    def bytes(self) -> int:
        return self._held.bytes

    def _is_late(self, update: Update) -> bool:
        return update.time < self._oldest()

    def _oldest(self) -> int:
        """The first time of which the reader still knows something."""
        return 0 if self._remember else self.frontier

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

    def take_progress(self, progress: Progress) -> None:
        lower, upper = (bound[0] if bound else END for bound in (progress.lower, progress.upper))
        counts = self._counts(progress, lower, upper)
        self._refuse_other_counts(progress, lower, upper, counts)
        self._refuse_fewer_than_received(progress, lower, upper, counts)
        for time, count in counts.items():
            if count and time >= self._oldest() and time not in self._declared:
                self._declared[time] = count
                self._declared_times.add(time)
        if lower < upper:
            self._cover.add(lower, upper)

    def _counts(self, progress: Progress, lower: int, upper: int) -> dict[int, int]:
        return counts_of(progress, lower, upper)

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

    def deliver(self) -> Delivered | None:
        """Returns the updates that became complete, and moves the frontier. None: it stays where it is."""
        frontier = min(self._cover.end, self._first_incomplete())
        if frontier == self.frontier:
            return None
        complete = self._held.deliver(self.frontier, frontier)
        self.frontier = frontier
        if not self._remember:
            self._forget(frontier)
        return complete

    def _first_incomplete(self) -> int:
        """The first time that has fewer updates than declared. Times that nobody can deliver yet are not looked at."""
        for time in self._declared_times.between(self.frontier, self._cover.end):
            if self._held.number(time) < self._declared[time]:
                return time
        return END

    def _forget(self, frontier: int) -> None:
        self._held.forget_before(frontier)
        for time in self._declared_times.remove_before(frontier):
            del self._declared[time]

    # --- figures -----------------------------------------------------------------------------------

    def times(self) -> int:
        held, declared = (sum(1 for _ in times.between(self.frontier, END)) for times in (self._held, self._declared_times))
        return max(held, declared) + len(self._cover)

    def waiting(self) -> tuple[int, int | None, int]:
        time = self.frontier
        return time, self._declared.get(time, 0) if time in self._cover else None, self._held.number(time)


_NONE: dict[Key, Update] = {}


def batches(reader: CdcReader, messages: Iterable[Message | dict[str, Any]]) -> list[FeedBatch]:
    """Returns all that a reader delivers for some messages."""
    return [batch for message in messages if (batch := reader.feed(message)) is not None]
