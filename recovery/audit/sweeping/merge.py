"""`NameMerge`: which names of a window the rows of a scan name, many at a time. No I/O.

    names     a/1 a/2 a/3 a/4     in order, as they were listed
    targets   a/1 a/2 a/4 a/9     in the order of their rows' keys, which is nearly that of the names
              `-----`              equal lists are compared in one step, without a hash or an object for each
    unnamed   a/3                 left: a/9

If both sides had exactly one order, this would be a merge of two sorted lists. They have not (`recovery.audit.names`):
the blob of a row may sort before that of the row before it. So a name that is passed over is only *not yet* named, and
a target that fits nothing here is only handed back. `window.unnamed` holds the one and is searched for the other, by
their hashes. No result depends on the order of either side; only the speed does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain

COMPARED_AT_ONCE = 256


class NameMerge:
    """Names that are matched with targets, page by page."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._at = 0
        self._passed: list[range] = []

    def take(self, targets: Sequence[str]) -> list[int]:
        """Matches the next targets. Returns the places of those that fit no name from here on."""
        names, at, first = self._names, self._at, 0
        left: list[int] = []
        while first < len(targets):
            size = min(COMPARED_AT_ONCE, len(targets) - first)
            if names[at : at + size] == targets[first : first + size]:
                at, first = at + size, first + size
                continue
            while at < len(names) and first < len(targets) and names[at] == targets[first]:
                at, first = at + 1, first + 1
            if at == len(names) or first == len(targets):
                left += range(first, len(targets))
                break
            # Each step passes over one at least, also if a side is not in order.
            if names[at] < targets[first]:
                until = max(at + 1, bisect_left(names, targets[first], at))
                self._passed.append(range(at, until))
                at = until
            else:
                until = max(first + 1, bisect_left(targets, names[at], first))
                left += range(first, until)
                first = until
        self._at = at
        return left

    def unmatched(self) -> Iterator[int]:
        """Yields the places of the names that nothing has matched, and that it has not yielded before.

        From then on, `take` hands every target back.
        """
        passed = [*self._passed, range(self._at, len(self._names))]
        self._passed, self._at = [], len(self._names)
        return chain.from_iterable(passed)
