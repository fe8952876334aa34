"""One request to an ASGI application, message by message: what it answers, and what it has read before that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio


@dataclass
class AppAnswer:
    """`status` 0: there was no answer. `read`: how many messages of the body were taken."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    read: int = 0


async def asked(
    app: Any, method: str, url: str, headers: Mapping[str, str] | None = None, body: Iterable[bytes] = (b"",), *,
    stalls: bool = False, asked: AppAnswer | None = None, taking: Callable[[], Awaitable[None]] | None = None,
) -> AppAnswer:  # fmt: skip
    """`body`: its chunks. `stalls`: nothing follows them, and no end either. `taking`: awaited with each message."""
    got, chunks = AppAnswer() if asked is None else asked, list(body)

    async def receive() -> Any:
        if got.read == len(chunks):
            if stalls:
                await anyio.sleep_forever()
            return {"type": "http.disconnect"}
        got.read += 1
        return {"type": "http.request", "body": chunks[got.read - 1], "more_body": stalls or got.read < len(chunks)}

    async def send(message: Any) -> None:
        if taking is not None:
            await taking()
        if message["type"] == "http.response.start":
            got.status, got.headers = message["status"], {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            got.body += message["body"]

    told = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    path = f"/links/{url.rpartition('/')[2]}"
    scope = {"type": "http", "method": method, "path": path, "root_path": "/links", "query_string": b"", "headers": told}
    await app(scope, receive if method == "PUT" else anyio.sleep_forever, send)
    return got
