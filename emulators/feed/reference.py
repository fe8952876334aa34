"""What the reference reader does: differential dataflow, `capture::iterator::Iter`, at revision e6c5a4d9.

It refuses nothing. Its answers to messages that contradict each other are wrong views, and are kept here as they are:
`tests/recovery/feed/vectors.json` has what it delivers. Times are those of an unsigned number, so an update at a
negative time is never delivered.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import Any

from recovery.feed.batch import END, FeedBatch, in_order
from recovery.feed.messages import Message, Progress, Update, Updates
from recovery.feed.spelling import from_json


class ReferenceReader:
    """Holds distinct updates, and progress messages until their lower bound is reached.

    `_outstanding`: by time, what accepted progress declared minus what was received. It falls below 0 where updates
    come first, or where there are too many.
    """

    def __init__(self) -> None:
        self._frontier = 0
        self._accepted = 0
        """The frontier of accepted progress messages."""
        self._held: dict[int, dict[Update, None]] = {}
        self._held_times: list[int] = []
        """A heap with the keys of `_held`."""
        self._outstanding: dict[int, int] = {}
        self._positive: list[int] = []
        """A heap with each time that is outstanding, and with others."""
        self._numbered = count()
        self._waiting: list[tuple[int, int, Progress]] = []
        """A heap of progress messages, by their lower bound, then as they came."""
        self._ready: list[tuple[int, Progress]] = []
        """A heap of those that may be accepted, as they came."""

    def feed(self, message: Message | dict[str, Any]) -> FeedBatch | None:
        """As of `CdcReader`."""
        if not isinstance(message, Updates | Progress):
            message = from_json(message)
        if isinstance(message, Updates):
            self._take(message.updates)
        else:
            heappush(self._waiting, (_bound(message.lower), next(self._numbered), message))
        self._accept()
        while self._positive and self._outstanding.get(self._positive[0], 0) <= 0:
            heappop(self._positive)
        frontier = min(self._accepted, self._positive[0] if self._positive else END)
        if frontier == self._frontier:
            return None
        self._frontier = frontier
        complete: list[Update] = []
        while self._held_times and self._held_times[0] < frontier:
            time = heappop(self._held_times)
            complete += self._held.pop(time)
            self._outstanding.pop(time, None)  # below 0 if there were too many, and never asked for again
        return FeedBatch(in_order(complete), self.frontier)

    @property
    def frontier(self) -> tuple[int, ...]:
        """As of `CdcReader`."""
        return () if self._frontier == END else (self._frontier,)

    def _take(self, updates: tuple[Update, ...]) -> None:
        # An update that one message has twice is counted twice, as the reference reader does.
        fresh = [each for each in updates if self._frontier <= each.time and each not in self._held.get(each.time, ())]
        for each in fresh:
            self._count(each.time, -1)
        for each in fresh:
            if each.time not in self._held:
                heappush(self._held_times, each.time)
            self._held.setdefault(each.time, {})[each] = None

    def _accept(self) -> None:
        """Accepts progress messages that begin no later than the accepted ones end: always the one that came first."""
        while True:
            while self._waiting and self._waiting[0][0] <= self._accepted:
                _, number, progress = heappop(self._waiting)
                heappush(self._ready, (number, progress))
            if not self._ready:
                return
            _, found = heappop(self._ready)
            for time, more in found.counts:
                if self._accepted <= time:
                    self._count(time, more)
            self._accepted = max(self._accepted, _bound(found.upper))

    def _count(self, time: int, change: int) -> None:
        before = self._outstanding.get(time, 0)
        if before + change:
            self._outstanding[time] = before + change
        else:
            self._outstanding.pop(time, None)
        if before <= 0 < before + change:
            heappush(self._positive, time)


def _bound(times: tuple[int, ...]) -> int:
    return times[0] if times else END
