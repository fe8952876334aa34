"""A relay between clients and one server on this machine. It can cut connections, and it can make requests late.

    clients --> 127.0.0.1:port --> the server

It passes on bytes in both directions as they come, and also the end of a stream.

    cut … mend          breaks all connections on both sides at once, and each new one until `mend`
    stall … release     holds back what half of the clients send. It arrives after `release`, later than what the others
                        sent; by then its sender may have given up, or may have died

*Failure*: if the server refuses or breaks a connection, the client's connection breaks, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import anyio
from anyio.abc import SocketAttribute, SocketStream, TaskStatus
from anyio.from_thread import BlockingPortal

BROKEN = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)


@dataclass(slots=True, eq=False)
class _RelayedConnection:
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    released: anyio.Event | None = None


class Relay:
    """Relays from `port` to `server_port` on loopback while `serve` runs. Call its methods in the same event loop."""

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self._server_port = server_port
        self._connections: list[_RelayedConnection] = []
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
        """Holds back half of the connections: the older half, and the newer half the next time.

        One process makes its connections together, so this holds back whole processes.
        """
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
            self._connections.append(connection := _RelayedConnection())
            ends.callback(self._connections.remove, connection)
            with connection.scope, suppress(*BROKEN):
                server = await ends.enter_async_context(await anyio.connect_tcp("127.0.0.1", self._server_port))
                async with anyio.create_task_group() as ways:
                    ways.start_soon(_pass_on, client, server, connection)
                    ways.start_soon(_pass_on, server, client, None)


@asynccontextmanager
async def relayed(server_port: int) -> AsyncIterator[Relay]:
    """Yields a relay that serves until the end of the block."""
    relay = Relay(server_port)
    async with anyio.create_task_group() as tasks:
        await tasks.start(relay.serve)
        yield relay
        tasks.cancel_scope.cancel()


Step = Callable[[], None]


def steps_of(relay: Relay, portal: BlockingPortal) -> tuple[Step, Step, Step, Step]:
    """Returns what begins and ends a stall, then what begins and ends a cut, for a thread beside the relay's."""
    at = portal.call
    return partial(at, relay.stall), partial(at, relay.release), partial(at, relay.cut), partial(at, relay.mend)


async def _pass_on(source: SocketStream, target: SocketStream, stalls: _RelayedConnection | None) -> None:
    with suppress(*BROKEN):
        async for chunk in source:
            if stalls is not None and stalls.released is not None:
                await stalls.released.wait()
            await target.send(chunk)
    with suppress(*BROKEN):
        await target.send_eof()
