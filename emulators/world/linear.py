"""Whether an order of operations exists that explains what the readers of one register found.

    began ├────────── write 1 ──────────┤ ended
                ├─ read: 1 ─┤
          ├───────── write 2 ─────────────────┤          2, 1, both reads: an order; with a third read: 2 at the end there is none
                                  ├─ read: 1 ─┤

Each operation has its whole effect at one moment between `began` and `ended`; one that had ended before another began comes
before it; a read finds what the write before it left. An *optional* write may also have had no effect at all.

The search is Wing and Gong's ("Testing and Verifying Concurrent Objects", JPDC 17, 1993): place any operation that none of
those still to be placed must precede, go on from there, and go back if that leads nowhere. It keeps Lowe's memory ("Testing
for linearizability", Concurrency and Computation 29, 2017): the same operations placed, with the same state reached, are
looked at once. Four rules, none of which loses an order, keep it small where nearly all orders are alike:

    a read that finds the present state is placed at once                                it changes nothing
    a state is not left while a read is still to find it, and nobody will bring it back    no order goes on from there
    a required write that nobody is left to find is placed with the next one             it is overwritten unseen
    an optional write is placed only where a read can find it next                       else it may as well be left out

The first and third wait where an optional write would become too late: one that had ended before that operation began.
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
class Operation:
    """A write leaves `state` in the register; a read (`state` None) found one of `finds`. `ended` inf: it may have its effect for ever."""

    began: float
    ended: float
    state: int | None = None
    finds: frozenset[int] = frozenset()
    optional: bool = False


def explaining_order(operations: Sequence[Operation]) -> list[int] | None:
    """Their positions in an order that explains all reads, without the optional writes that it does not need. None: there is none."""
    return _Search(operations).run()


class _Search:
    """Operation i of `_sorted`, in the order in which they began, is bit i."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._positions = sorted(range(len(operations)), key=lambda each: operations[each].began)
        self._sorted = [operations[each] for each in self._positions]
        self._began = [each.began for each in self._sorted]
        self._writes = self._optional = 0
        self._finders: defaultdict[int, int] = defaultdict(int)
        writers: defaultdict[int, int] = defaultdict(int)
        for index, each in enumerate(self._sorted):
            if each.state is not None:
                self._writes |= 1 << index
                self._optional |= each.optional << index
                writers[each.state] |= 1 << index
            for state in each.finds:
                self._finders[state] |= 1 << index
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
            stack += self._note(node, steps, self._next_writes(placed), placed)
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
        writes = _bits(self._required & self._writes & ~placed)
        unseen = sum(1 << write for write in writes if not self._finders[self._state_after(write)] & ~placed)
        while found := self._in_time(self._candidates(placed), unseen):
            steps += found
            placed |= sum(1 << write for write in found)
        return placed

    def _next_writes(self, placed: int) -> list[tuple[int, int]]:
        """Those that may come next, and their states, the one that had ended first as the last (it is tried first)."""
        candidates, found, at_any_time = self._candidates(placed), [], set()
        for write in _bits(candidates & self._writes):
            state = self._state_after(write)
            if self._optional >> write & 1:
                if not self._finders[state] & candidates:
                    continue
                if self._sorted[write].ended == inf:
                    if state in at_any_time:
                        continue  # the one that began first does as well, and leaves this one for later
                    at_any_time.add(state)
            found.append((write, state))
        return sorted(found, key=lambda each: -self._sorted[each[0]].ended)

    # --- what may come next --------------------------------------------------------------------------

    def _candidates(self, placed: int) -> int:
        """Those that no required operation still to be placed must precede, but for optional ones that are too late."""
        horizon = next((self._sorted[index].ended for index in self._by_end if not placed >> index & 1), inf)
        candidates = ((1 << bisect_right(self._began, horizon)) - 1) & ~placed
        if placed and (optional := candidates & self._optional):
            latest = self._began[placed.bit_length() - 1]
            for index in _bits(optional):
                if self._sorted[index].ended < latest:
                    candidates &= ~(1 << index)
        return candidates

    def _in_time(self, candidates: int, wanted: int) -> list[int]:
        """Those of the wanted candidates that began before any optional write that may still come had ended."""
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
        """The nodes that are new, with the way to them."""
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
