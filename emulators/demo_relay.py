"""A relay between everybody and one server on loopback, so that its connections can be cut.

    clients --> 127.0.0.1:port --> the server          bytes go through as they come, both ways; an end goes through, too
    cut                            every connection breaks on both sides at once, whatever was under way; so do new ones for a while

*Failure*: a server that refuses or breaks off is passed on to the client as a broken connection.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, suppress

import anyio
from anyio.abc import SocketAttribute, SocketStream, TaskStatus

BROKEN = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)
PIECE_BYTES = 256 * 1024


class Relay:
    """To `port` on loopback. `serve` must run; all else in its event loop."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.joined = 0
        self._server_port = port
        self._scopes: set[anyio.CancelScope] = set()
        self._cut_until = 0.0

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
            self.port = listener.extra(SocketAttribute.local_port)
            task_status.started()
            await listener.serve(self._join)

    def cut(self, seconds: float) -> None:
        self._cut_until = time.monotonic() + seconds
        for scope in self._scopes:
            scope.cancel()

    async def _join(self, client: SocketStream) -> None:
        async with AsyncExitStack() as ends:
            await ends.enter_async_context(client)
            if time.monotonic() < self._cut_until:
                return
            with anyio.CancelScope() as scope, suppress(*BROKEN):
                self._scopes.add(scope)
                ends.callback(self._scopes.remove, scope)
                server = await ends.enter_async_context(await anyio.connect_tcp("127.0.0.1", self._server_port))
                self.joined += 1
                async with anyio.create_task_group() as ways:
                    ways.start_soon(_pass_on, client, server)
                    ways.start_soon(_pass_on, server, client)


async def _pass_on(source: SocketStream, target: SocketStream) -> None:
    with suppress(*BROKEN):
        async for piece in source:
            await target.send(piece)
    with suppress(*BROKEN):
        await target.send_eof()
