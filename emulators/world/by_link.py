"""A part that is sent to a link, through the application that answers links, without a server."""

from __future__ import annotations

from typing import Any

import anyio

from changelog.base.errors import ConfigurationError, UnavailableError
from tiered.asgi import LinkApp
from tiered.storage import TieredStorage


async def put_by_link(storage: TieredStorage, url: str, payload: bytes) -> None:
    """Sends these bytes. Raises for another status than 200 what `upload_part` would."""
    messages: list[Any] = [{"type": "http.request", "body": payload, "more_body": False}]
    statuses: list[int] = []

    async def receive() -> Any:
        if not messages:
            await anyio.sleep_forever()
        return messages.pop()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    path = f"/{url.rpartition('/')[2]}"
    await LinkApp(lambda: storage)({"type": "http", "method": "PUT", "path": path, "headers": []}, receive, send)
    if statuses == [500]:
        raise ConfigurationError("a link was answered with 500, because its service refuses this identity")
    if statuses != [200]:
        raise UnavailableError(f"a link was answered with {statuses}")
