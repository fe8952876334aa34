"""RollbackReader: the rule of the published sketch, for channels that keep the order and repeat nothing by themselves.

The writer of that sketch sends the updates of a transaction, commits, then sends its progress. If it dies before the
commit, the updates that it sent belong to no transaction. So it begins again with its last progress message. By that
repetition, a reader knows which updates to throw away:

    a progress message that goes further than the last one    the updates since the last one are complete
    the last progress message once more                       the updates since then are discarded

**Do not use it on a channel that reorders or repeats messages.** A repeated progress message would discard good
updates, and the next one then declares more than came. `CdcReader` reads such a channel.

Order is trusted, and checked as far as times and counts tell. `FeedError` refuses a progress message that goes back,
one that differs from the last one at its time, and one that declares another number of distinct updates than came since
the last one. It does not ask that progress begins where the last one ended: a writer of the sketch leaves times out. So
it does not see that a whole transaction is missing. A refused message changes nothing.

*Crash.* The state is in memory alone. A new reader begins at the start of the feed.
"""

from __future__ import annotations

from typing import Any

from recovery.feed.batch import END, BufferedUpdates, FeedBatch, bytes_of, counts_of, in_order, named
from recovery.feed.errors import FeedError, Rule
from recovery.feed.messages import Message, Progress, Update, Updates
from recovery.feed.spelling import from_json


class RollbackReader:
    """Reads one feed from an ordered channel, message by message. `discarded`: how many updates were rolled back."""

    def __init__(self) -> None:
        self.discarded = 0
        self._frontier = 0
        self._last: Progress | None = None
        self._since: dict[Update, None] = {}
        """The distinct updates since the last progress message."""

    def feed(self, message: Message | dict[str, Any]) -> FeedBatch | None:
        """Takes one message, a value or the decoded Avro-JSON object. Returns what became complete by it, if anything.

        Raises `FeedError` if the message is none, or if the channel cannot have been an ordered one. Then nothing of
        the message was taken.
        """
        if not isinstance(message, Updates | Progress):
            message = from_json(message)
        if isinstance(message, Progress):
            return self._progress(message)
        for update in message.updates:
            if update.time < 0:
                raise FeedError(Rule.TIME, f"{named(update)} is at a negative time")
        self._since.update(dict.fromkeys(message.updates))
        return None

    def _progress(self, progress: Progress) -> FeedBatch | None:
        upper = progress.upper[0] if progress.upper else END
        if self._last is not None and upper <= self._frontier:
            self._check_repeated(progress, upper)
            self.discarded += len(self._since)
            self._since = {}
            return None
        self._check_complete(progress, upper)
        since, self._since = self._since, {}
        self._frontier, self._last = upper, progress
        return FeedBatch(in_order(since), self.frontier)

    def _check_repeated(self, progress: Progress, upper: int) -> None:
        if upper < self._frontier:
            raise FeedError(Rule.ORDER, f"{named(progress)} goes back: an earlier one went up to time {self._frontier}")
        if progress != self._last:
            raise FeedError(Rule.PROGRESS, f"{named(progress)} is at the time of the last one, and differs from it")

    def _check_complete(self, progress: Progress, upper: int) -> None:
        counts = counts_of(progress, progress.lower[0] if progress.lower else END, upper)
        for update in self._since:
            if not self._frontier <= update.time < upper:
                raise FeedError(Rule.ORDER, f"{named(progress)} comes after {named(update)}, which it is not about")
        declared = sum(counts.values())
        if declared != len(self._since):
            raise FeedError(Rule.COUNT, f"{named(progress)} declares {declared} updates, and {len(self._since)} came since the last one")

    @property
    def frontier(self) -> tuple[int, ...]:
        """The first time that is not complete; empty: the feed has ended."""
        return () if self._frontier == END else (self._frontier,)

    @property
    def held(self) -> BufferedUpdates:
        """How much the reader holds back: the updates since the last progress message."""
        return BufferedUpdates(len(self._since), len({each.time for each in self._since}), sum(bytes_of(each.key) for each in self._since))
