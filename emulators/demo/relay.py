"""A relay between everybody and one server on loopback, so that its connections can be cut, and requests be late.

    clients --> 127.0.0.1:port --> the server          bytes go through as they come, both ways; an end goes through, too
    cut ... mend           every connection breaks on both sides at once, whatever was under way, and so do new ones meanwhile
    stall ... release      what half of the clients send stands still, and then arrives, though its sender may have given it up, or
                           have died; everybody else's overtakes it

*Failure*: a server that refuses or breaks off is passed on to the client as a broken connection.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

import anyio
from anyio.abc import SocketAttribute, SocketStream, TaskStatus

BROKEN = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)


@dataclass(slots=True, eq=False)
class _Connection:
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    released: anyio.Event | None = None


class Relay:
    """To `server_port` on loopback, from `port`. `serve` must run; all else in its event loop."""

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self._server_port = server_port
        self._connections: list[_Connection] = []
        self._is_cut = False
        self._later = False

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
            self.port = listener.extra(SocketAttribute.local_port)
            task_status.started()
            await listener.serve(self._join)

    def cut(self) -> None:
        self._is_cut = True
        for connection in self._connections:
            connection.scope.cancel()

    def mend(self) -> None:
        self._is_cut = False

    def stall(self) -> None:
        """Of those who joined earlier, or later: connections of one process are made together. The others' turn is next time."""
        released, half = anyio.Event(), len(self._connections) // 2
        for connection in self._connections[half:] if self._later else self._connections[:half]:
            connection.released = released
        self._later = not self._later

    def release(self) -> None:
        for connection in self._connections:
            if connection.released is not None:
                connection.released.set()

    async def _join(self, client: SocketStream) -> None:
        async with AsyncExitStack() as ends:
            await ends.enter_async_context(client)
            if self._is_cut:
                return
            self._connections.append(connection := _Connection())
            ends.callback(self._connections.remove, connection)
            with connection.scope, suppress(*BROKEN):
                server = await ends.enter_async_context(await anyio.connect_tcp("127.0.0.1", self._server_port))
                async with anyio.create_task_group() as ways:
                    ways.start_soon(_pass_on, client, server, connection)
                    ways.start_soon(_pass_on, server, client, None)


async def _pass_on(source: SocketStream, target: SocketStream, stalls: _Connection | None) -> None:
    with suppress(*BROKEN):
        async for piece in source:
            if stalls is not None and stalls.released is not None:
                await stalls.released.wait()
            await target.send(piece)
    with suppress(*BROKEN):
        await target.send_eof()
