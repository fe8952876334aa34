"""What the reference reader does: differential dataflow, `capture::iterator::Iter`, at revision e6c5a4d9.

It refuses nothing. Its answers to messages that contradict each other are wrong views, and are kept here as they are:
`tests/recovery/feed/vectors.json` has what it delivers. `CdcReader(lenient=True)` uses it. Times are those of an
unsigned number, so an update at a negative time is never delivered.
"""

from __future__ import annotations

from heapq import heappop, heappush

from recovery.feed.batch import END, characters
from recovery.feed.messages import Progress, Update


class ReferenceRules:
    """Holds distinct updates, and progress messages until their lower bound is reached.

    `_outstanding`: by time, what accepted progress declared minus what was received. It falls below 0 where updates
    come first, or where there are too many.
    """

    def __init__(self) -> None:
        self.frontier = 0
        self.ignored = 0
        self.updates = 0
        self.characters = 0
        self._accepted = 0
        """The frontier of accepted progress messages."""
        self._held: dict[int, dict[Update, None]] = {}
        self._outstanding: dict[int, int] = {}
        self._positive: list[int] = []
        """A heap with each time that is outstanding, and with others."""
        self._queue: list[Progress] = []

    def take_updates(self, updates: tuple[Update, ...]) -> None:
        # An update that one message has twice is counted twice, as the reference reader does.
        fresh = [each for each in updates if self.frontier <= each.time and each not in self._held.get(each.time, ())]
        self.ignored += len(updates) - len(fresh)
        for each in fresh:
            self._count(each.time, -1)
        for each in fresh:
            at_time = self._held.setdefault(each.time, {})
            if each not in at_time:
                at_time[each] = None
                self.updates += 1
                self.characters += characters(each.key)

    def take_progress(self, progress: Progress) -> None:
        self._queue.append(progress)

    def deliver(self) -> list[Update] | None:
        self._accept()
        while self._positive and self._outstanding.get(self._positive[0], 0) <= 0:
            heappop(self._positive)
        frontier = min(self._accepted, self._positive[0] if self._positive else END)
        if frontier == self.frontier:
            return None
        self.frontier = frontier
        complete = [each for time in [time for time in self._held if time < frontier] for each in self._held.pop(time)]
        self.updates -= len(complete)
        self.characters -= sum(characters(each.key) for each in complete)
        return complete

    def _accept(self) -> None:
        """Accepts waiting progress messages for as long as one begins no later than the accepted ones end."""
        while (found := next((each for each in self._queue if _bound(each.lower) <= self._accepted), None)) is not None:
            self._queue.remove(found)
            for time, count in found.counts:
                if self._accepted <= time:
                    self._count(time, count)
            self._accepted = max(self._accepted, _bound(found.upper))

    def _count(self, time: int, change: int) -> None:
        before = self._outstanding.get(time, 0)
        self._outstanding[time] = before + change
        if before <= 0 < before + change:
            heappush(self._positive, time)

    def times(self) -> int:
        return len(self._held) + len(self._queue)

    def waiting(self) -> tuple[int, int | None, int]:
        time, received = self.frontier, len(self._held.get(self.frontier, ()))
        return time, received + self._outstanding.get(time, 0) if time < self._accepted else None, received


def _bound(times: tuple[int, ...]) -> int:
    return times[0] if times else END
