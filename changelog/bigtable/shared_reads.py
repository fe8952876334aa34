"""`SharedReads`: reads of single rows that are asked for at the same moment go in one ReadRows.

    at one moment   a b c              one call for the three rows
    under way       [a b c] [d]        there is a free place, so d goes at once (here two places)
    waiting         e f g              no place is free: what comes now is collected, and e, who came first, waits for
                                       a place and then sends for all of them
    too slow        [a b c] -> c       a and b have their rows already; c is given up, and asks for its row alone

`grpc.aio` makes a stream of each read. One stream of 16 rows costs a fraction of 16 streams. "At the same moment" is
one turn of the event loop, so a read that comes alone waits for no clock. It goes as a unary call
(`BigtableTable.read_in_one`).

A row that is slow or damaged does not hold up or fail the others. Each caller gets its row as soon as it comes. A call
for several rows that fails, or takes longer than is usual, is given up. Then each caller whose row is missing asks for
it alone, and gets the answer or the error of its own row. Nobody waits for a place for longer than that either. So a
caller waits for others at most twice as long as `_patience_s` says.

Reads have no effect, so a row may be asked for twice, and callers that ask for the same row share one answer. The call
is sent after all of them asked, so none of them gets a row from before its question.

*Cancelled*: whoever waits leaves the others alone. If the caller that reads for others is cancelled, each of them asks
for its row alone, so no number of such callers holds it up.
*Crash*: nothing is kept. Repeats and budgets do not belong here.
"""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import anyio.lowlevel

from changelog.base.errors import TieredError
from changelog.bigtable.channel import BigtableTable, Message
from changelog.bigtable.row_merge import CellRow

CALLS_AT_ONCE = 4
"""How many calls run at once before others have to wait. Measured: more of them give smaller groups and more work."""
ROWS_MAX = 100
PATIENCE_MIN_S = 0.05
PATIENCE_TIMES = 4
"""A call is slow when it takes so many times as long as calls took lately, and longer than `PATIENCE_MIN_S`."""
LATEST = 0.1
"""How much the latest call counts in the mean of the times that calls take."""


@dataclass(slots=True, eq=False)
class _WaitingRead:
    """One caller that waits. `woken`: it is the first of the line now, or it has its answer, or it must read alone.
    None: it was the first from the beginning, and waits for nobody.

    `row`: the answer; None: there is no such row.
    """

    key: bytes
    woken: anyio.Event | None
    answered: bool = False
    alone: bool = False
    row: CellRow | None = None

    def answer(self, row: CellRow | None) -> None:
        self.row, self.answered = row, True
        self.wake()

    def wake(self) -> None:
        if self.woken is not None:
            self.woken.set()


class SharedReads:
    """Reads of rows of one table, all with the filter `yields`."""

    def __init__(self, table: BigtableTable, yields: Message, calls_at_once: int = CALLS_AT_ONCE) -> None:
        self._table = table
        self._yields = yields
        self._free = calls_at_once
        self._freed = anyio.Event()
        self._line: list[_WaitingRead] = []  # the first of it waits for a place, and the others wait for the first
        self._usual_s = 0.0

    async def read(self, key: bytes) -> CellRow | None:
        """As `BigtableTable.read`."""
        asked = _WaitingRead(key, anyio.Event() if self._line else None)
        self._line.append(asked)
        try:
            if asked.woken is not None:
                await asked.woken.wait()
            if not (asked.answered or asked.alone):
                await self._wait_for_place()
                await self._read_line(asked)
        finally:
            asked.answered = True  # also if it was cancelled: it waits for nothing any more
            if asked in self._line:  # cancelled before anything was sent for it
                was_first = self._line[0] is asked
                self._line.remove(asked)
                if was_first:
                    self._wake_first()
        return await self._table.read(key, self._yields) if asked.alone else asked.row

    async def _wait_for_place(self) -> None:
        """Waits until a place is free, or for as long as is usual. Others join the line meanwhile."""
        if self._free > 0:
            await anyio.lowlevel.checkpoint()
        while self._free <= 0:
            self._freed = anyio.Event()
            with anyio.move_on_after(self._patience_s()) as waiting:
                await self._freed.wait()
            if waiting.cancelled_caught:
                return  # the calls under way hang: one more is sent beside them

    async def _read_line(self, first: _WaitingRead) -> None:
        """Reads the rows of those who wait. `first`, who came first, does it for all."""
        group = self._line[:ROWS_MAX]
        del self._line[:ROWS_MAX]
        self._wake_first()
        self._free -= 1
        began_at = anyio.current_time()
        try:
            if len(group) == 1:
                first.answer(await self._table.read_in_one(first.key, self._yields, self._patience_s()))
            else:
                await self._read_group(group)
        finally:
            took_s = anyio.current_time() - began_at
            self._usual_s += LATEST * (took_s - self._usual_s)
            self._free += 1
            self._freed.set()
            for each in group:
                if not each.answered:  # the call failed or was slow, or `first` was cancelled
                    each.alone = True
                    each.wake()

    async def _read_group(self, group: list[_WaitingRead]) -> None:
        waiting: dict[bytes, list[_WaitingRead]] = {}
        for each in group:
            waiting.setdefault(each.key, []).append(each)

        def take(row: CellRow) -> None:
            for each in waiting.pop(row.key, ()):
                each.answer(row)

        try:
            with anyio.move_on_after(self._patience_s()) as reading:
                await self._table.read_each(waiting, self._yields, take)
        except TieredError:
            is_whole = False  # each of them asks alone, and is told its own error
        else:
            is_whole = not reading.cancelled_caught
        if is_whole:
            for each in group:
                if not each.answered:
                    each.answer(None)

    def _patience_s(self) -> float:
        return max(PATIENCE_MIN_S, PATIENCE_TIMES * self._usual_s)

    def _wake_first(self) -> None:
        """The first of the line waits for a place from now on, and reads for all."""
        if self._line:
            self._line[0].wake()
