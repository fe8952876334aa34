"""Times in order, and the intervals that progress messages cover. Pure.

A million of them may be held back, in any order. One sorted list would move all that come after, for each that is
added. So there are many short ones.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

CHUNK = 1000
"""How many times are in a list that was just split."""


class Times:
    """A set of times, sorted. `_chunks`: sorted lists, none of them empty. `_firsts`: the first time of each."""

    def __init__(self) -> None:
        self._chunks: list[list[int]] = []
        self._firsts: list[int] = []

    def add(self, time: int) -> None:
        """Adds a time that is not there."""
        if not self._chunks:
            self._chunks, self._firsts = [[time]], [time]
            return
        at = self._chunk_of(time)
        chunk = self._chunks[at]
        insort(chunk, time)
        if len(chunk) > 2 * CHUNK:
            self._chunks.insert(at + 1, chunk[CHUNK:])
            self._firsts.insert(at + 1, chunk[CHUNK])
            del chunk[CHUNK:]
        self._firsts[at] = chunk[0]

    def remove(self, time: int) -> None:
        """Takes away a time that is there."""
        at = self._chunk_of(time)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, time)]
        self._keep(at)

    def remove_before(self, end: int) -> list[int]:
        """Takes away the times before `end`. Returns them."""
        removed: list[int] = []
        if not self._firsts or end <= self._firsts[0]:
            return removed
        whole = max(0, bisect_left(self._firsts, end) - 1)
        for chunk in self._chunks[:whole]:
            removed += chunk
        del self._chunks[:whole], self._firsts[:whole]
        chunk = self._chunks[0]
        at = bisect_left(chunk, end)
        removed += chunk[:at]
        del chunk[:at]
        self._keep(0)
        return removed

    def between(self, lower: int, upper: int) -> Iterable[int]:
        """Returns the times from `lower` up to, but not with, `upper`, sorted. Use them before the set changes."""
        if not self._firsts:
            return ()
        begin, end = self._chunk_of(lower), self._chunk_of(upper)
        if begin < end:
            return self._across(begin, end, lower, upper)
        chunk = self._chunks[begin]
        return chunk[bisect_left(chunk, lower) : bisect_left(chunk, upper)]

    def _across(self, begin: int, end: int, lower: int, upper: int) -> Iterator[int]:
        """One chunk at a time, because who asks may need the first time only."""
        chunk = self._chunks[begin]
        yield from chunk[bisect_left(chunk, lower) :]
        for at in range(begin + 1, end):
            yield from self._chunks[at]
        chunk = self._chunks[end]
        yield from chunk[: bisect_left(chunk, upper)]

    def last_until(self, time: int) -> int | None:
        """Returns the last time that is not after `time`."""
        if not self._firsts or time < self._firsts[0]:
            return None
        chunk = self._chunks[self._chunk_of(time)]
        return chunk[bisect_right(chunk, time) - 1]

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def __iter__(self) -> Iterator[int]:
        for chunk in self._chunks:
            yield from chunk

    def _chunk_of(self, time: int) -> int:
        """The chunk that has the time, or should have it."""
        at = bisect_right(self._firsts, time)
        return at - 1 if at else 0

    def _keep(self, at: int) -> None:
        if self._chunks[at]:
            self._firsts[at] = self._chunks[at][0]
        else:
            del self._chunks[at], self._firsts[at]


class Cover:
    """What progress messages were about: intervals with gaps between them. `end`: the first gap begins there."""

    def __init__(self) -> None:
        self.end = 0
        self._lowers = Times()
        self._upper: dict[int, int] = {}
        """By the lower bound: the upper bound, of each interval that begins after `end`."""

    def add(self, lower: int, upper: int) -> None:
        """Adds the times from `lower` up to, but not with, `upper`, which is greater."""
        if lower <= self.end and not self._upper:
            self.end = max(self.end, upper)
            return
        before = self._lowers.last_until(lower)
        if before is not None and lower <= self._upper[before]:
            lower = before
        for each in list(self._lowers.between(lower, upper + 1)):
            self._lowers.remove(each)
            upper = max(upper, self._upper.pop(each))
        if lower <= self.end:
            self.end = max(self.end, upper)
            for each in self._lowers.remove_before(self.end + 1):
                self.end = max(self.end, self._upper.pop(each))
        else:
            self._lowers.add(lower)
            self._upper[lower] = upper

    def __contains__(self, time: int) -> bool:
        if time < self.end:
            return True
        before = self._lowers.last_until(time)
        return before is not None and time < self._upper[before]

    def __len__(self) -> int:
        """How many intervals begin after the first gap."""
        return len(self._upper)
