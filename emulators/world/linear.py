"""Finds an order of operations that explains what the readers of one register found, if there is one.

    began ├────────── write 1 ──────────┤ ended
                ├─ read: 1 ─┤
          ├───────── write 2 ─────────────────┤   2, 1, both reads: an order; not with a third read: 2 at the end
                                  ├─ read: 1 ─┤

Each operation has its whole effect at one moment between `began` and `ended`. An operation that had ended before
another began comes before it. A read finds what the write before it left. An *optional* write may also have had no
effect at all. A *conditional* write takes effect only on certain states.

The search is Wing and Gong's ("Testing and Verifying Concurrent Objects", JPDC 17, 1993). Place any operation that no
unplaced operation must precede. Go on from there, and go back if that leads nowhere. It also uses Lowe's memory
("Testing for linearizability", Concurrency and Computation 29, 2017): a set of placed operations with the same state
reached is looked at once. Where nearly all orders are alike, four rules keep the search small. None of them loses an
order:

    a read that finds the present state is placed at once                 it changes nothing
    if an unplaced read needs the present state and no write will         no order goes on from there
    bring it back, the state is not left
    a required write that no unplaced read finds is placed with the next  it is overwritten unseen
    an optional write is placed only where a read can find it next        otherwise it may as well be left out

The first and third rule wait if an optional write would then become too late, because it had ended before that
operation began. A conditional write finds a state, as a read does. As long as one is unplaced, the third rule waits:
what nobody reads may be what breaks its condition.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

INITIAL = 0
"""What the register holds before the first write."""

Node = tuple[int, int]
"""The operations placed, as bits, and the state reached."""


@dataclass(frozen=True, slots=True)
class RegisterOperation:
    """One operation. A write leaves `state` in the register. A read (`state` None) found one of `finds`.

    `ended` inf: it may have its effect at any later time. `needs`: a conditional write takes effect only on one of
    these states.
    """

    began: float
    ended: float
    state: int | None = None
    finds: frozenset[int] = frozenset()
    optional: bool = False
    needs: frozenset[int] | None = None


def explaining_order(operations: Sequence[RegisterOperation]) -> list[int] | None:
    """Returns the operations' positions in an order that explains all reads, or None if there is no such order.

    Optional writes that the order does not need are left out.
    """
    return _LinearSearch(operations).run()


class _LinearSearch:
    """One search. `_sorted` holds the operations in the order in which they began. Operation i of it is bit i."""

    def __init__(self, operations: Sequence[RegisterOperation]) -> None:
        self._positions = sorted(range(len(operations)), key=lambda each: operations[each].began)
        self._sorted = [operations[each] for each in self._positions]
        self._began = [each.began for each in self._sorted]
        self._writes = self._optional = self._conditional = 0
        self._finders: defaultdict[int, int] = defaultdict(int)
        self._needers: defaultdict[int, int] = defaultdict(int)
        writers: defaultdict[int, int] = defaultdict(int)
        for index, each in enumerate(self._sorted):
            if each.state is not None:
                self._writes |= 1 << index
                self._optional |= each.optional << index
                writers[each.state] |= 1 << index
            for state in each.finds:
                self._finders[state] |= 1 << index
            for state in each.needs or ():
                self._needers[state] |= 1 << index
            self._conditional |= (each.needs is not None) << index
        self._required = ((1 << len(self._sorted)) - 1) & ~self._optional
        self._writers_found = [sum(writers.get(state, 0) for state in each.finds) for each in self._sorted]
        self._by_end = sorted(_bits(self._required), key=lambda index: self._sorted[index].ended)
        self._came_from: dict[Node, tuple[Node, list[int]]] = {}

    def run(self) -> list[int] | None:
        if not all(self._may_be_explained(index) for index in _bits(self._required & ~self._writes)):
            return None
        stack: list[Node] = [(0, INITIAL)]
        while stack:
            node = stack.pop()
            placed, state = node
            steps: list[int] = []
            placed = self._place_reads(placed, state, steps)
            if placed & self._required == self._required:
                return self._order(node, steps)
            stack += self._note(node, steps, [(read, state) for read in self._reads_in_doubt(placed, state)], placed)
            if self._strands_a_read(placed, state):
                continue
            placed = self._place_unseen_writes(placed, steps)
            if placed & self._required == self._required:
                return self._order(node, steps)
            stack += self._note(node, steps, self._next_writes(placed, state), placed)
        return None

    # --- the four rules ----------------------------------------------------------------------------

    def _place_reads(self, placed: int, state: int, steps: list[int]) -> int:
        while found := self._in_time(self._candidates(placed), self._finders[state]):
            steps += found
            placed |= sum(1 << read for read in found)
        return placed

    def _reads_in_doubt(self, placed: int, state: int) -> Iterator[int]:
        return _bits(self._candidates(placed) & self._finders[state])

    def _strands_a_read(self, placed: int, state: int) -> bool:
        return any(not self._writers_found[read] & ~placed for read in _bits(self._finders[state] & ~placed))

    def _place_unseen_writes(self, placed: int, steps: list[int]) -> int:
        if self._conditional & ~placed:
            return placed
        writes = _bits(self._required & self._writes & ~placed)
        unseen = sum(1 << write for write in writes if not self._finders[self._state_after(write)] & ~placed)
        while found := self._in_time(self._candidates(placed), unseen):
            steps += found
            placed |= sum(1 << write for write in found)
        return placed

    def _next_writes(self, placed: int, present: int) -> list[tuple[int, int]]:
        """Returns the writes that may come next, and their states.

        The write that ended first is last, because it is tried first.
        """
        candidates, found, at_any_time = self._candidates(placed), [], set()
        for write in _bits(candidates & self._writes):
            state, needs = self._state_after(write), self._sorted[write].needs
            if needs is not None and present not in needs:
                continue
            if self._optional >> write & 1:
                if not (self._finders[state] | self._needers[state]) & candidates & ~(1 << write):
                    continue
                if self._sorted[write].ended == inf and needs is None:
                    if state in at_any_time:
                        continue  # the write that began first does as well, and leaves this one for later
                    at_any_time.add(state)
            found.append((write, state))
        return sorted(found, key=lambda each: -self._sorted[each[0]].ended)

    # --- what may come next --------------------------------------------------------------------------

    def _candidates(self, placed: int) -> int:
        """Returns the operations that may come next: no unplaced required operation must precede them.

        Optional ones that are too late are left out.
        """
        horizon = next((self._sorted[index].ended for index in self._by_end if not placed >> index & 1), inf)
        candidates = ((1 << bisect_right(self._began, horizon)) - 1) & ~placed
        if placed and (optional := candidates & self._optional):
            latest = self._began[placed.bit_length() - 1]
            for index in _bits(optional):
                if self._sorted[index].ended < latest:
                    candidates &= ~(1 << index)
        return candidates

    def _in_time(self, candidates: int, wanted: int) -> list[int]:
        """Returns the wanted candidates that began before any optional write ended that may still come."""
        optional = _bits(candidates & self._optional)
        ends = min((self._sorted[index].ended for index in optional), default=inf)
        return [index for index in _bits(candidates & wanted) if self._began[index] <= ends]

    def _may_be_explained(self, read: int) -> bool:
        return INITIAL in self._sorted[read].finds or self._writers_found[read] != 0

    def _state_after(self, write: int) -> int:
        state = self._sorted[write].state
        assert state is not None, "a write leaves a state"
        return state

    # --- the way -----------------------------------------------------------------------------------

    def _note(self, node: Node, steps: list[int], following: list[tuple[int, int]], placed: int) -> Iterator[Node]:
        """Returns the nodes that are new, and keeps the way to them."""
        for index, state in following:
            reached = (placed | 1 << index, state)
            if reached not in self._came_from:
                self._came_from[reached] = node, [*steps, index]
                yield reached

    def _order(self, node: Node, steps: list[int]) -> list[int]:
        ways = [steps]
        while node in self._came_from:
            node, steps = self._came_from[node]
            ways.append(steps)
        return [self._positions[index] for way in reversed(ways) for index in way]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
