"""What a store needs to sign links, and a client that opens them in the app of `tiered.asgi`, without a server."""

from __future__ import annotations

from typing import Any

from httpx import ASGITransport, AsyncClient, Response

from tiered import TieredStorage
from tiered.asgi import LinkApp
from tiered.settings import LinkSettings

BASE_URL = "http://files.example.com/links"
LINKS = LinkSettings.model_validate({"base_url": BASE_URL, "keys": ["a key for tests, of 32 characters"]})


def client_of(storage: TieredStorage, **options: Any) -> AsyncClient:
    """Requests go to an app that is mounted at `BASE_URL`. What it raises reaches the test."""
    return AsyncClient(transport=ASGITransport(LinkApp(lambda: storage, **options), root_path="/links"))


async def opened(storage: TieredStorage, url: str | None, method: str = "GET", **headers: str) -> Response:
    """The answer. `headers`: with `_` for `-`."""
    assert url is not None
    async with client_of(storage) as client:
        return await client.request(method, url, headers={name.replace("_", "-"): value for name, value in headers.items()})
