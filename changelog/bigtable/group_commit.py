"""`GroupCommit`: writes of single rows that come at the same time go in one MutateRows.

    in flight     [a]  [b]           found a free place and went at once, each as one MutateRow (here two places)
    waiting       c d e f            what comes while all places are taken is collected
    a answered    [c d e f]  [b]     c, who came first, sends for all of them; it is shielded from its own cancellation

The longer an answer takes, the larger the groups become. Nothing waits for a clock, and no task runs beside the
callers. A caller that is cancelled while it waits is not sent.

*Crash*: the same as if each row had been sent alone. *Failure*: each caller gets what is known of its own row
(`BigtableTable.mutate_rows`). If the caller that sends a group is stopped, the others get `UnconfirmedError`. Use it
only for writes without a condition that may be repeated. Nobody may send two writes of one row at the same time,
because within a group there is no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio

from changelog.base.errors import TieredError, UnconfirmedError
from changelog.base.own_waits import own_wait
from changelog.bigtable.channel import BigtableTable, Message

GROUPS_IN_FLIGHT = 4
"""How many calls run at once before others have to wait. Measured: more of them give smaller groups and more work."""
ROWS_MAX = 100
BYTES_MAX = 1 << 20


@dataclass(slots=True, eq=False)
class _Row:
    """One caller's row. `leads`: the group that this caller has to send. `failure`: what went wrong with its own row.
    """

    key: bytes
    mutations: Sequence[Message]
    woken: anyio.Event = field(default_factory=anyio.Event)
    taken: bool = False
    leads: list[_Row] = field(default_factory=list)
    failure: TieredError | None = None

    def size(self) -> int:
        return len(self.key) + sum(int(mutation.ByteSize()) for mutation in self.mutations)


class GroupCommit:
    """Writes to one table. A group has at most `ROWS_MAX` rows and `BYTES_MAX` bytes, or one row that is larger."""

    def __init__(self, table: BigtableTable, groups_in_flight: int = GROUPS_IN_FLIGHT) -> None:
        self._table = table
        self._free = groups_in_flight
        self._waiting: list[_Row] = []  # empty while a place is free

    async def mutate(self, key: bytes, *mutations: Message) -> None:
        """As `BigtableTable.mutate`."""
        if self._free:
            self._free -= 1
            await self._send_alone(key, mutations)
            return
        row = _Row(key, mutations)
        self._waiting.append(row)
        try:
            with own_wait():  # for the callers before it, who may wait for a token: whoever sends tells of the service
                await row.woken.wait()
        except anyio.get_cancelled_exc_class():
            if not row.taken:
                self._waiting.remove(row)
            elif row.leads:
                await self._send(row.leads[1:])
            raise
        if len(row.leads) == 1:
            await self._send_alone(key, mutations)
        elif row.leads:
            await self._send(row.leads)
        if row.failure is not None:
            raise row.failure

    async def _send_alone(self, key: bytes, mutations: Sequence[Message]) -> None:
        try:
            await self._table.mutate(key, *mutations)
        finally:
            self._hand_over()

    async def _send(self, group: Sequence[_Row]) -> None:
        """Sends the group. It is shielded, because the others are not cancelled if this caller is.

        The call's deadline ends it.
        """
        failures: Sequence[TieredError | None] = [UnconfirmedError("who sent this row with others was stopped meanwhile") for _ in group]
        try:
            if group:
                with anyio.CancelScope(shield=True):
                    failures = await self._table.mutate_rows([(row.key, row.mutations) for row in group])
        finally:
            for row, failure in zip(group, failures, strict=True):
                row.failure = failure
                row.woken.set()
            self._hand_over()

    def _hand_over(self) -> None:
        """Gives this place to the callers that wait."""
        if not self._waiting:
            self._free += 1
            return
        group, size = self._waiting[:1], self._waiting[0].size()
        for row in self._waiting[1:ROWS_MAX]:
            size += row.size()
            if size > BYTES_MAX:
                break
            group.append(row)
        del self._waiting[: len(group)]
        for row in group:
            row.taken = True
        group[0].leads = group
        group[0].woken.set()
