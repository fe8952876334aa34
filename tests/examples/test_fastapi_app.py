"""examples/fastapi_app.py: it streams, answers ranges and statuses, and keeps nothing open when a client goes away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Response
from starlette.requests import ClientDisconnect
from starlette.types import Message

from changelog.change import ChangeId
from examples.fastapi_app import create_app, etag
from tests.given.directories import open_below
from tests.given.served_app import served
from tiered import (
    AtCapacityError,
    ByteRange,
    ConfigurationError,
    DanglingTombstoneError,
    InvalidRequestError,
    ObjectHead,
    ObjectId,
    OutcomeUnknownError,
    RateLimitedError,
    Settings,
    UnavailableError,
    open_storage,
)
from tiered.settings import StoreSettings

pytestmark = pytest.mark.anyio
LARGE = bytes(range(256)) * 6_000
"""Bytes. More than `inline_bytes_max`, so it becomes a blob, which is a file."""
CAT = "/photos/17/2026/cat.jpg"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # as every server of FastAPI


@pytest.fixture
async def app(anyio_backend: str, tmp_path: Path) -> AsyncIterator[FastAPI]:
    app = create_app(Settings(directory=tmp_path))
    async with app.router.lifespan_context(app):
        yield app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(transport=ASGITransport(app, raise_app_exceptions=False), base_url="http://store") as client:
        yield client


@pytest.fixture
async def cat(client: AsyncClient) -> Response:
    return await client.put(CAT, content=LARGE, headers={"Content-Type": "image/jpeg"})


async def test_what_is_put_is_served_until_it_is_deleted(client: AsyncClient, cat: Response) -> None:
    assert (cat.status_code, cat.json()) == (201, {"size": len(LARGE)})
    got = await client.get(CAT)
    assert (got.status_code, got.content, got.headers["content-type"]) == (200, LARGE, "image/jpeg")
    head = await client.head(CAT)
    assert (head.headers["content-length"], head.headers["etag"]) == (str(len(LARGE)), cat.headers["etag"])
    assert (await client.delete(CAT)).status_code == 204
    assert [(await client.request(method, CAT)).status_code for method in ("GET", "HEAD")] == [404, 404]


async def test_a_range_is_served(client: AsyncClient, cat: Response) -> None:
    size = len(LARGE)
    for asked, start, stop in (
        ("0-0", 0, 1), ("5-9", 5, 10), (f"{size - 10}-", size - 10, size), ("-4", size - 4, size), ("-9999999", 0, size),
        (f"{size - 1}-9999999", size - 1, size),
    ):  # fmt: skip
        got = await client.get(CAT, headers={"Range": f"bytes={asked}"})
        assert (got.status_code, got.content) == (206, LARGE[start:stop]), asked
        assert got.headers["content-range"] == f"bytes {start}-{stop - 1}/{size}"
        assert got.headers["content-length"] == str(stop - start)


async def test_a_range_after_the_end_is_a_416_with_the_size(client: AsyncClient, cat: Response) -> None:
    for asked in (f"bytes={len(LARGE)}-", "bytes=-0"):
        got = await client.get(CAT, headers={"Range": asked})
        assert (got.status_code, got.headers["content-range"]) == (416, f"bytes */{len(LARGE)}")


async def test_a_range_of_an_empty_object_is_all_of_it(client: AsyncClient) -> None:
    await client.put(CAT, content=b"")
    got = await client.get(CAT, headers={"Range": "bytes=-5"})
    assert (got.status_code, got.content) == (200, b"")


async def test_the_rest_of_an_object_that_has_changed_is_all_of_the_new_one(client: AsyncClient, cat: Response) -> None:
    rest = {"Range": "bytes=100-", "If-Range": cat.headers["etag"]}
    assert (await client.get(CAT, headers=rest)).status_code == 206
    await client.put(CAT, content=b"a dog")
    got = await client.get(CAT, headers=rest)
    assert (got.status_code, got.content) == (200, b"a dog")


async def test_an_object_that_changes_while_its_rest_is_opened_is_never_a_mixture(
    app: FastAPI, client: AsyncClient, cat: Response, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, get = app.state.storage, app.state.storage.get

    async def replaced_first(object_id: ObjectId, range: ByteRange | None = None, **options: bool) -> object:
        if range is not None:
            await storage.put(object_id, LARGE[::-1])
        return await get(object_id, range, **options)

    monkeypatch.setattr(storage, "get", replaced_first)
    got = await client.get(CAT, headers={"Range": "bytes=100-", "If-Range": cat.headers["etag"]})
    assert (got.status_code, got.content) == (200, LARGE[::-1])


async def test_an_object_without_a_revision_has_no_etag_and_is_there(
    app: FastAPI, client: AsyncClient, cat: Response, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = app.state.storage.head

    async def of_older_software(object_id: ObjectId) -> ObjectHead | None:
        return None if (found := await head(object_id)) is None else replace(found, revision=None)

    monkeypatch.setattr(app.state.storage, "head", of_older_software)
    assert (etag(None), etag(await of_older_software(ObjectId.parse("photos/org.17/objects/2026/cat.jpg")))) == (None, "")
    assert "etag" not in (await client.head(CAT)).headers
    for condition, status in (("If-None-Match", 412), ("If-Match", 201)):
        assert (await client.put(CAT, content=b"a dog", headers={condition: "*"})).status_code == status
    assert (await client.put(CAT, content=b"a dog", headers={"If-Match": cat.headers["etag"]})).status_code == 412


async def test_an_object_that_the_client_has_is_not_sent_again(client: AsyncClient, cat: Response, tmp_path: Path) -> None:
    got = await client.get(CAT, headers={"If-None-Match": f'"another", {cat.headers["etag"]}'})
    assert (got.status_code, got.content, open_below(tmp_path / "blobs")) == (304, b"", [])


async def test_an_upload_that_must_be_new_replaces_nothing(client: AsyncClient, cat: Response) -> None:
    only_new = {"If-None-Match": "*"}
    assert (await client.put(CAT, content=b"a dog", headers=only_new)).status_code == 412
    assert (await client.get(CAT)).content == LARGE
    assert (await client.put("/photos/17/dog", content=b"a dog", headers=only_new)).status_code == 201


@pytest.mark.parametrize(
    ("headers", "there", "absent"),
    [
        ({}, 201, 201), ({"If-None-Match": "*"}, 412, 201), ({"If-Match": "*"}, 201, 412), ({"If-Match": "ETAG"}, 201, 412),
        ({"If-Match": '"other", ETAG'}, 201, 412), ({"If-Match": '"other"'}, 412, 412), ({"If-None-Match": "ETAG"}, 412, 201),
        ({"If-None-Match": '"other"'}, 201, 201), ({"If-Match": "ETAG", "If-None-Match": "*"}, 412, 412),
        ({"If-Match": "W/ETAG"}, 412, 412), ({"If-None-Match": "W/ETAG"}, 412, 201), ({"If-Match": 'W/"x", ETAG'}, 201, 412),
        ({"If-Match": "BARE"}, 412, 412), ({"If-Match": ""}, 412, 412), ({"If-None-Match": 'W/"a,b", "c"'}, 201, 201),
    ],
)  # fmt: skip
async def test_an_upload_or_a_deletion_changes_what_its_client_has_seen(
    client: AsyncClient, cat: Response, headers: dict[str, str], there: int, absent: int
) -> None:
    def asking(tag: str) -> dict[str, str]:
        return {name: value.replace("ETAG", tag).replace("BARE", tag.strip('"')) for name, value in headers.items()}

    told = asking(cat.headers["etag"])
    deleted = {201: 204, 412: 412}
    assert (await client.delete("/photos/17/dog", headers=told)).status_code == deleted[absent]
    assert (await client.put("/photos/17/dog", content=b"a dog", headers=told)).status_code == absent
    assert (await client.put(CAT, content=b"a dog", headers=told)).status_code == there
    assert (await client.get(CAT)).content == (b"a dog" if there == 201 else LARGE)
    again = await client.put(CAT, content=LARGE)
    assert (await client.delete(CAT, headers=asking(again.headers["etag"]))).status_code == deleted[there]
    assert (await client.get(CAT)).status_code == (404 if there == 201 else 200)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"If-None-Match": "ETAG"}, 304), ({"If-None-Match": "W/ETAG"}, 304), ({"If-None-Match": "*"}, 304),
        ({"If-None-Match": '"x"'}, 200), ({"If-Match": "ETAG"}, 200), ({"If-Match": "*"}, 200), ({"If-Match": '"x", W/ETAG'}, 412),
        ({"If-Match": "ETAG", "Range": "bytes=0-0"}, 206),
    ],
)  # fmt: skip
async def test_a_client_reads_what_it_has_seen_or_what_is_new_to_it(
    client: AsyncClient, cat: Response, tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    told = {name: value.replace("ETAG", cat.headers["etag"]) for name, value in headers.items()}
    assert (await client.get(CAT, headers=told)).status_code == status
    assert (await client.head(CAT, headers=told)).status_code == (200 if status == 206 else status)
    assert (await client.get("/photos/17/dog", headers=told)).status_code == 404
    assert open_below(tmp_path / "blobs") == []


async def test_the_lines_of_a_list_are_all_read(client: AsyncClient, cat: Response) -> None:
    tag = cat.headers["etag"]
    assert (await client.put(CAT, content=b"a dog", headers=[("If-None-Match", '"x"'), ("If-None-Match", tag)])).status_code == 412
    assert (await client.put(CAT, content=b"a dog", headers=[("If-Match", '"x"'), ("If-Match", tag)])).status_code == 201


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_what_comes_between_the_look_and_the_change_is_not_lost(
    app: FastAPI, client: AsyncClient, cat: Response, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    storage, head = app.state.storage, app.state.storage.head

    async def replaced_after(object_id: ObjectId) -> ObjectHead | None:
        found: ObjectHead | None = await head(object_id)
        await storage.put(object_id, b"of another client")
        return found

    monkeypatch.setattr(storage, "head", replaced_after)
    for path, told in ((CAT, {"If-Match": cat.headers["etag"]}), (CAT, {"If-Match": "*"}), ("/photos/17/dog", {"If-None-Match": "*"})):
        changed = await client.request(method, path, content=b"mine" if method == "PUT" else None, headers=told)
        assert changed.status_code == (204 if (method, path) == ("DELETE", "/photos/17/dog") else 412)
        assert (await client.get(path)).content == b"of another client"


async def test_a_user_may_be_named_by_an_address(app: FastAPI, client: AsyncClient) -> None:
    assert (await client.put("/photos/anna@example.com/cat.jpg", content=b"a cat")).status_code == 201
    assert (await client.get("/photos/anna%40example.com/cat.jpg")).content == b"a cat"
    assert [str(each.object_id) async for each in app.state.storage.list()] == ["photos/org.anna+40example+2Ecom/objects/cat.jpg"]


async def test_a_link_shows_the_object_without_its_route(tmp_path: Path) -> None:
    links = {"base_url": "http://store/links", "keys": ["a key for tests, of 32 characters"]}
    app = create_app(Settings(directory=tmp_path, links=links))
    transport = ASGITransport(app, raise_app_exceptions=False)
    async with app.router.lifespan_context(app), AsyncClient(transport=transport, base_url="http://store") as client:
        assert (await client.post(CAT)).status_code == 404
        await client.put(CAT, content=LARGE)
        url = (await client.post(CAT)).json()["url"]
        got = await client.get(url, headers={"Range": "bytes=5-"})
        assert (url.startswith("http://store/links/"), got.status_code, got.content) == (True, 206, LARGE[5:])
        await client.put(CAT, content=b"a dog")
        assert (await client.get(url)).status_code == 410


# --- clients that go away ------------------------------------------------------------------------


async def test_nothing_is_stored_when_the_client_goes_away_while_it_uploads(app: FastAPI, tmp_path: Path) -> None:
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": LARGE, "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Message) -> None:
        pass

    await app(scope("PUT"), receive, send)
    assert messages == []
    assert [str(each) async for each in app.state.storage.list()] == []


@pytest.mark.parametrize("version", ["2.3", "2.4"])
async def test_the_object_is_closed_when_the_client_goes_away_while_it_downloads(
    app: FastAPI, cat: Response, tmp_path: Path, version: str
) -> None:
    """Servers of ASGI 2.3 say that the client has gone; later ones let the sending fail."""
    gone = anyio.Event()
    opened: list[str] = []

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            opened.extend(open_below(tmp_path / "blobs"))
            gone.set()
            if version == "2.4":
                raise OSError("the client has gone")
            await anyio.sleep_forever()

    with anyio.fail_after(10), pytest.raises(ClientDisconnect) if version == "2.4" else nullcontext():
        await app(scope("GET", version), receive, send)
    assert opened != []
    assert open_below(tmp_path / "blobs") == []


def scope(method: str, version: str = "2.4") -> dict[str, Any]:
    asgi = {"version": "3.0", "spec_version": version}
    return {"type": "http", "asgi": asgi, "method": method, "path": CAT, "raw_path": CAT.encode(), "query_string": b"", "headers": []}


# --- slow clients, of a real server ----------------------------------------------------------------


async def stalled(port: int, key: str, body: bytes) -> SocketStream:
    """A client that sends the head of an upload and a part of its body, and then nothing."""
    client = await anyio.connect_tcp("127.0.0.1", port)
    await client.send(f"PUT /photos/17/{key} HTTP/1.1\r\nHost: store\r\nContent-Length: {len(LARGE) * 2}\r\n\r\n".encode() + body)
    return client


@pytest.mark.slow
@pytest.mark.parametrize("sent", [LARGE, *(pytest.param(sent, marks=pytest.mark.night) for sent in (b"", b"x"))])
async def test_64_slow_uploaders_stopped_all_writes_of_the_worker(tmp_path: Path, sent: bytes) -> None:
    app = create_app(Settings(directory=tmp_path))
    async with served(app) as port, AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as healthy:
        slow = [await stalled(port, f"slow{number}", sent) for number in range(100)]
        for number in range(20):
            path = f"/photos/17/healthy{number}"
            for body in (b"a dog", LARGE):
                assert (await healthy.put(path, content=body)).status_code == 201
                assert (await healthy.get(path)).content == body
        assert (await healthy.delete("/photos/17/healthy0")).status_code == 204
        for client in slow:
            await client.aclose()
    async with open_storage(Settings(directory=tmp_path), writes=False) as storage:
        assert {str(entry.object_id) async for entry in storage.list()} == {f"photos/org.17/objects/healthy{n}" for n in range(1, 20)}
    assert not any((tmp_path / "uploads").iterdir())


@pytest.mark.slow
async def test_an_uploader_that_stalls_is_answered_and_leaves_its_place_to_others(tmp_path: Path) -> None:
    settings = Settings(directory=tmp_path, store=StoreSettings(payloads_max=2, payload_idle_s=0.5, queue_wait_s=60))
    async with served(create_app(settings)) as port, AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as healthy:
        slow = [await stalled(port, f"slow{number}", sent) for number, sent in enumerate((b"x", LARGE) * 3)]
        assert (await healthy.put(CAT, content=LARGE)).status_code == 201
        for client in slow:
            answer = b""
            with anyio.fail_after(60):
                while b"gave no byte for 0.5 s" not in answer:
                    answer += await client.receive()
            assert answer.startswith(b"HTTP/1.1 400")
            await client.aclose()
    assert not any((tmp_path / "uploads").iterdir())


# --- errors ----------------------------------------------------------------------------------------


ERRORS: list[tuple[Exception, int]] = [
    (UnavailableError("away"), 503), (AtCapacityError("full"), 503), (RateLimitedError("fast"), 429), (DanglingTombstoneError("lost"), 500),
    (ConfigurationError("no table"), 500), (UnavailableError("a wrong password").refusing(), 500), (InvalidRequestError("no such id"), 400),
    (OutcomeUnknownError(ObjectId.create("photos", "k"), ChangeId("018b0000-0000-7000-8000-000000000001")), 504),
]  # fmt: skip


async def test_an_error_has_a_status(app: FastAPI, client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(app.state.storage, "get", fail)
    for error, status in ERRORS:
        got = await client.get(CAT)
        assert (got.status_code, "retry-after" in got.headers) == (status, status in (429, 503)), error


async def test_a_client_is_told_when_to_come_again(app: FastAPI, client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **options: object) -> None:
        raise AtCapacityError("full", retry_after_s=2.3)

    monkeypatch.setattr(app.state.storage, "get", fail)
    assert (await client.get(CAT)).headers["retry-after"] == "3"


async def test_an_id_that_cannot_be_is_a_bad_request(client: AsyncClient) -> None:
    assert (await client.put("/photos/17/a%01b", content=b"x")).status_code == 400


async def test_a_phone_goes_on_with_an_upload_where_it_was_cut(client: AsyncClient) -> None:
    film = bytes(range(256)) * 80_000
    place = CAT.replace("/photos/", "/uploads/")
    begun = (await client.post(place, headers={"content-type": "video/mp4"})).json()
    query = {"upload": begun["upload"]}

    async def cut() -> AsyncIterator[bytes]:
        yield film[: 9 << 20]
        raise ClientDisconnect

    assert (await client.patch(place, params=query, content=cut(), headers={"upload-offset": "0"})).status_code in (400, 500)
    there = int((await client.head(place, params=query)).headers["upload-offset"])
    assert there == 8 << 20
    wrong = await client.patch(place, params=query, content=b"x", headers={"upload-offset": "7"})
    assert (wrong.status_code, wrong.headers["upload-offset"]) == (409, str(there))
    assert (await client.get(CAT)).status_code == 404
    piece = film[there : there + (8 << 20)]
    went_on = await client.patch(place, params=query, content=piece, headers={"upload-offset": str(there)})
    assert (went_on.status_code, went_on.headers["upload-offset"]) == (204, str(16 << 20))
    done = await client.patch(place, params=query | {"final": "true"}, content=film[16 << 20 :], headers={"upload-offset": str(16 << 20)})
    assert (done.status_code, done.json()) == (200, {"size": len(film)})
    found = await client.get(CAT)
    assert (found.content, found.headers["content-type"], found.headers["etag"]) == (film, "video/mp4", done.headers["etag"])
    again = await client.patch(place, params=query | {"final": "true"}, content=b"x", headers={"upload-offset": str(len(film))})
    assert again.status_code == 410
    assert (await client.head(place, params={"upload": "x"})).status_code == 400
