"""examples/photos.py: bytes come and go by links alone, and each user has his own photos.

test_from_the_wheel.py has the page in a browser.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Response

from examples import photos
from tiered import ObjectId, UnavailableError
from tiered.asgi import LinkApp

pytestmark = pytest.mark.anyio
LINKS = "http://127.0.0.1:8001"
CONFIG = f"links: {{base_url: '{LINKS}', keys: [a key for tests of some 40 letters], origins: ['http://photos']}}\n"
CAT = {"name": "my cät.jpg", "type": "image/jpeg"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # as every server of FastAPI


@pytest.fixture
async def app(anyio_backend: str, tmp_path: Path) -> AsyncIterator[FastAPI]:
    (tmp_path / "tiered.yaml").write_text(f"directory: {tmp_path}/data\n{CONFIG}")
    app = photos.create_app(str(tmp_path / "tiered.yaml"))
    async with app.router.lifespan_context(app):
        yield app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(transport=ASGITransport(app), base_url="http://photos") as client:
        yield client


@pytest.fixture
async def links(app: FastAPI) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(transport=ASGITransport(LinkApp(lambda: app.state.storage))) as client:
        yield client


async def sent(client: AsyncClient, links: AsyncClient, content: bytes) -> Response:
    begun = (await client.post("/photos", json=CAT)).json()
    assert (await links.put(begun["url"], content=content)).status_code == 200
    return await client.post(f"/photos/{begun['key']}/{begun['upload']}")


async def listed(client: AsyncClient) -> list[Any]:
    """All pages."""
    found, pages = [], [(await client.get("/photos")).json()]
    while pages:
        page = pages.pop()
        found += page["photos"]
        pages += [(await client.get("/photos", params={"after": page["next"]})).json()] if page["next"] else []
    return found


async def test_a_photo_is_sent_to_a_link_and_shown_and_saved_by_links(client: AsyncClient, links: AsyncClient) -> None:
    assert (await sent(client, links, b"cat" * 1000)).json() == {"size": 3000}
    [photo] = await listed(client)
    assert (photo["name"], photo["size"]) == ("my cät.jpg", 3000)
    show, save = await links.get(photo["show"]), await links.get(photo["save"])
    assert (show.content, show.headers["content-type"], show.headers["x-content-type-options"]) == (b"cat" * 1000, "image/jpeg", "nosniff")
    assert save.headers["content-disposition"].startswith("attachment") and "my%20c%C3%A4t.jpg" in save.headers["content-disposition"]


async def test_nobody_sees_or_completes_the_photo_of_another_user(app: FastAPI, client: AsyncClient, links: AsyncClient) -> None:
    begun = (await client.post("/photos", json=CAT)).json()
    await links.put(begun["url"], content=b"cat")
    place = f"/photos/{begun['key']}/{begun['upload']}"
    app.dependency_overrides[photos.user_of] = lambda: "ben"
    assert (await client.post(place)).status_code in (400, 410)
    assert await listed(client) == []
    app.dependency_overrides.clear()
    assert (await client.post(place)).json() == (await client.post(place)).json() == {"size": 3}, "asked again, it answers the same"
    assert len(await listed(client)) == 1


async def test_what_is_no_photo_or_too_large_or_never_came_is_refused(
    client: AsyncClient, links: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await client.post("/photos", json={"name": "a.svg", "type": "image/svg+xml"})).status_code == 415
    assert (await client.post("/photos", json={"name": "a" * 9000, "type": "image/png"})).status_code == 400
    assert (await client.post("/photos/no-uuid/x")).status_code == 422
    begun = (await client.post("/photos", json=CAT)).json()
    answer = await client.post(f"/photos/{begun['key']}/{begun['upload']}")
    assert answer.status_code == 400, answer.text
    monkeypatch.setattr(photos, "SIZE_MAX", 1000)
    begun = (await client.post("/photos", json=CAT)).json()
    assert (await links.put(begun["url"], content=b"x" * 1001)).status_code == 413
    assert await listed(client) == []


async def test_a_store_that_is_away_is_a_503_that_the_page_asks_again(
    app: FastAPI, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **options: object) -> None:
        raise UnavailableError("away")

    monkeypatch.setattr(app.state.storage, "list_page", fail)
    answer = await client.get("/photos")
    assert (answer.status_code, answer.json()) == (503, {"detail": "away"})


async def test_all_photos_are_listed_page_by_page(app: FastAPI, client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "AT_ONCE", 2)
    for number in range(5):
        await app.state.storage.put(ObjectId.create("photos", f"{number}", scopes={"user": "anna"}), b"x")
    assert [photo["key"] for photo in await listed(client)] == ["0", "1", "2", "3", "4"]


async def test_the_page_is_there(client: AsyncClient) -> None:
    assert 'type="file"' in (await client.get("/")).text
