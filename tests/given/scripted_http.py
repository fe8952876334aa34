"""A server of HTTP that does what no emulator would, and tokens for whoever calls it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio

Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def scripted(answer: Answering) -> AsyncIterator[str]:
    """Its address. `answer` has each connection; it is closed when that returns."""
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await answer(reader, writer)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def head_of(reader: asyncio.StreamReader) -> str:
    """The first line of a request, and its headers."""
    return (await reader.readuntil(b"\r\n\r\n")).decode()


async def say(writer: asyncio.StreamWriter, status: str, body: bytes | str = b"", **headers: str) -> None:
    """A whole answer. In the names of headers, `_` stands for `-`."""
    content = body.encode() if isinstance(body, str) else body
    told = {"Content-Length": str(len(content)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in told.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode() + content)
    await writer.drain()


def silent(begun: anyio.Event | None = None) -> Answering:
    """Reads the head of a request, and nothing more, and says nothing."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        if begun is not None:
            begun.set()
        await asyncio.sleep(3600)

    return answer


class NumberedTokens:
    """`Authorize`: a new token after each that was refused. `error`: it fails with this. `waits`: it never has one."""

    def __init__(self, error: Exception | None = None, *, waits: bool = False) -> None:
        self.number = 1
        self._error = error
        self._waits = waits

    async def __call__(self, within_s: float = 10.0) -> Mapping[str, str]:
        if self._waits:
            await anyio.sleep(3600)
        if self._error is not None:
            raise self._error
        return {"Authorization": f"Bearer secret-{self.number}"}

    def refused(self, headers: Mapping[str, str]) -> bool:
        assert headers == {"Authorization": f"Bearer secret-{self.number}"}
        self.number += 1
        return True
