"""`SharedStatements`: calls that come at the same time share one statement.

    in flight     [a]  [b]           found a free place and went at once (here two places)
    waiting       c d e f            what comes while all places are taken is collected
    a answered    [c d e f]  [b]     c, who came first, sends for all of them; it is shielded from its own cancellation

The longer an answer takes, the larger the groups become. Nothing waits for a clock, and no task runs beside the
callers. A caller that is cancelled while it waits is not sent. A group is one transaction: all of it happened, or none.
So each caller gets what is known of the whole. No group has one key twice, and a group is sorted by key, so that two
groups never wait for one another.

*Crash*: as of one statement. *Failure*: each caller gets an error object of its own. If the caller that sends a group
is stopped, the others get `UnconfirmedError`. The same idea for Bigtable is in `changelog/bigtable/group_commit.py`,
where each row fails by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, field

import anyio

from changelog.base.errors import TieredError, UnconfirmedError
from changelog.base.own_waits import own_wait

GROUPS_IN_FLIGHT = 2
ROWS_MAX = 200
BYTES_MAX = 1 << 20

Item = tuple[bytes, bytes]
"""A key and a value."""

Send = Callable[[Sequence[Item]], Awaitable[Collection[bytes]]]
"""Sends one statement for all items, sorted by key. Returns the keys for which it took effect."""


@dataclass(slots=True, eq=False)
class _Call:
    """One caller's item. `leads`: the group that this caller has to send."""

    item: Item
    woken: anyio.Event = field(default_factory=anyio.Event)
    taken: bool = False
    leads: list[_Call] = field(default_factory=list)
    took_effect: bool = False
    failure: TieredError | None = None


class SharedStatements:
    """A group has at most `ROWS_MAX` items and `BYTES_MAX` bytes, or one item that is larger."""

    def __init__(self, send: Send, groups_in_flight: int = GROUPS_IN_FLIGHT) -> None:
        self._send = send
        self._free = groups_in_flight
        self._waiting: list[_Call] = []  # empty while a place is free

    async def call(self, key: bytes, value: bytes = b"") -> bool:
        """Whether the statement took effect for this key. Raises what the statement raised."""
        if self._free:
            self._free -= 1
            try:
                return key in await self._send([(key, value)])
            finally:
                self._hand_over()
        call = _Call((key, value))
        self._waiting.append(call)
        try:
            with own_wait():
                await call.woken.wait()
        except anyio.get_cancelled_exc_class():
            if not call.taken:
                self._waiting.remove(call)
            elif call.leads:
                await self._send_group(call.leads[1:])
            raise
        if call.leads:
            await self._send_group(call.leads)
        if call.failure is not None:
            raise call.failure
        return call.took_effect

    async def _send_group(self, group: Sequence[_Call]) -> None:
        """Sends the group. It is shielded, because the others are not cancelled if this caller is."""
        failure: TieredError | None = UnconfirmedError("who sent this with others was stopped meanwhile")
        found: Collection[bytes] = ()
        try:
            if group:
                with anyio.CancelScope(shield=True):
                    found = await self._send(sorted(call.item for call in group))
            failure = None
        except TieredError as error:
            failure = error
        finally:
            for call in group:
                call.failure = None if failure is None else copy(failure)
                call.took_effect = call.item[0] in found
                call.woken.set()
            self._hand_over()

    def _hand_over(self) -> None:
        """Gives this place to the callers that wait."""
        if not self._waiting:
            self._free += 1
            return
        group: list[_Call] = []
        keys: set[bytes] = set()
        size = 0
        for call in self._waiting:
            size += sum(map(len, call.item))
            if group and (size > BYTES_MAX or len(group) == ROWS_MAX):
                break
            if call.item[0] not in keys:  # its second call waits for the next group
                keys.add(call.item[0])
                group.append(call)
        for call in group:
            call.taken = True
        self._waiting = [call for call in self._waiting if not call.taken]
        group[0].leads = group
        group[0].woken.set()
