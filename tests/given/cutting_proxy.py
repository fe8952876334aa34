"""A proxy before a server, which cuts connections at the bytes that a test names."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import Enum


class CutKind(Enum):
    RESET = "the connection is dropped on both sides"
    STALL = "nothing is passed on any more, and the connection stays open"
    MUTE = "what was sent so far arrives, its answer is dropped, and so is the connection on both sides"
    ANSWER = "the proxy answers 503 itself, and reads no more"


class CuttingProxy:
    """`cuts`: after how many bytes from clients, all connections together, and what happens then. The first one first.

    `taken`: how many bytes were passed on to the server.
    """

    def __init__(self, port: int) -> None:
        self.cuts: deque[tuple[int, CutKind]] = deque()
        self.taken = 0
        self.done: list[CutKind] = []
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with suppress(ConnectionError, asyncio.CancelledError):
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
            down = asyncio.create_task(self._pass_back(up_reader, writer))
            self._tasks.add(down)
            try:
                await self._pass_on(reader, up_writer, writer, down)
            finally:
                up_writer.transport.abort()
        writer.transport.abort()

    async def _pass_on(
        self, reader: asyncio.StreamReader, to: asyncio.StreamWriter, back: asyncio.StreamWriter, down: asyncio.Task[None]
    ) -> None:
        while chunk := await reader.read(65_536):
            left = self.cuts[0][0] - self.taken if self.cuts else len(chunk) + 1
            if left <= len(chunk) and self.cuts[0][1] is CutKind.MUTE:
                down.cancel()
            to.write(chunk[: max(0, left)])
            self.taken += min(len(chunk), max(0, left))
            await to.drain()
            if left > len(chunk):
                continue
            kind = self.cuts.popleft()[1]
            self.done.append(kind)
            if kind is CutKind.STALL:
                await asyncio.sleep(3600)
            await asyncio.sleep(0.02)  # so that the server has read what it was sent
            if kind is CutKind.ANSWER:
                down.cancel()
                to.transport.abort()
                back.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
                await back.drain()
                await asyncio.sleep(0.2)
            return

    async def _pass_back(self, reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            while chunk := await reader.read(65_536):
                to.write(chunk)
                await to.drain()
            to.transport.abort()

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def cutting_proxy(url: str) -> AsyncIterator[CuttingProxy]:
    """A proxy before the server at `url`."""
    proxy = CuttingProxy(int(url.rpartition(":")[2]))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * 1024)  # loopback would take megabytes that are lost in a cut
    listener.bind(("127.0.0.1", 0))
    server = await asyncio.start_server(proxy.serve, sock=listener)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.aclose()
        await server.wait_closed()
