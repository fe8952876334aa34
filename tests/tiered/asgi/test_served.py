"""The app under real servers and in other applications: what goes over the wire, also when something breaks."""

from __future__ import annotations

import logging
import os
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import SocketStream
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.given import served_app
from tests.given.signed_links import BASE_URL, LINKS
from tiered import Metadata, ObjectId, Settings, TieredStorage, UnavailableError, open_storage
from tiered.asgi import LinkApp, create_app
from tiered.testing import memory_storage
from tiered.testing.in_memory import NOWHERE

pytestmark = pytest.mark.anyio
CAT = ObjectId.create("photos", "cat.jpg")
HOUR = timedelta(hours=1)
LARGE = os.urandom(3_000_000)
"""Bytes. More than `inline_bytes_max`, and more than a socket and a server hold back."""
MEMORY = Settings(directory=NOWHERE, links=LINKS)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # as uvicorn


def served(app: Any, root_path: str = "/links", lifespan: str = "off") -> AbstractAsyncContextManager[int]:
    """The port of the application, mounted at `root_path`."""
    return served_app.served(app, lifespan=lifespan, root_path=root_path)


async def signed(store: TieredStorage, payload: bytes = LARGE, object_id: ObjectId = CAT) -> str:
    """The path of a link."""
    await store.put(object_id, payload, Metadata(content_type="image/jpeg"))
    url = await store.sign_get(object_id, HOUR)
    assert url is not None and url.startswith(BASE_URL)
    return urlsplit(url).path


async def asked(port: int, request: str, body: bytes = b"") -> SocketStream:
    client = await anyio.connect_tcp("127.0.0.1", port)
    await client.send(f"{request}\r\nHost: files\r\n\r\n".encode("latin-1") + body)
    return client


async def all_of(client: SocketStream) -> bytes:
    """What comes until the server ends the connection."""
    came = bytearray()
    async with client:
        try:
            with anyio.fail_after(30):
                while True:
                    came += await client.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return bytes(came)


async def test_what_is_decompressed_ends_on_the_wire_only_if_it_is_whole() -> None:
    async with memory_storage(MEMORY) as store, served(LinkApp(lambda: store)) as port:
        payload = LARGE[:500_000] * 2
        await store.put(CAT, payload, compress="zstd")
        stored = await store.get(CAT, decompress=False)
        assert stored is not None
        compressed = await stored.read()
        for ends, content in ((True, compressed), (False, compressed[:-1])):
            await store.put(CAT, content, Metadata(compression="Zstd"))
            path = urlsplit(str(await store.sign_get(CAT, HOUR))).path.removeprefix("/links")
            head, _, body = (await all_of(await asked(port, f"GET {path} HTTP/1.1\r\nConnection: close"))).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200") and b"transfer-encoding: chunked" in head.lower()
            assert body.endswith(b"\r\n0\r\n\r\n") is ends


async def test_odd_requests_get_an_answer_and_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_storage(MEMORY) as store, served(LinkApp(lambda: store)) as port:
        path = (await signed(store, b"small")).removeprefix("/links")
        for line, status in (
            (f"GET {path} HTTP/1.1", b"200"), (f"GET {path} HTTP/1.0", b"200"), (f"GET {path}?a=%00&b HTTP/1.1", b"200"),
            (f"GET /..{path} HTTP/1.1", b"403"), (f"GET /%2e%2e{path} HTTP/1.1", b"403"), (f"GET {path}%2f HTTP/1.1", b"403"),
            (f"GET {path}%ff HTTP/1.1", b"403"), ("GET /%F0%9F%90%88 HTTP/1.1", b"403"), ("GET / HTTP/1.1", b"403"),
            (f"GET {path} HTTP/1.1\r\nRange: bytes=1-2\r\nRange: bytes=0-0", b"200"), (f"PUT {path} HTTP/1.1\r\nContent-Length: 0", b"403"),
            (f"GET {path} HTTP/1.1\r\nRange: bytes=1-\r\nContent-Length: 3", b"206"),  # with a body, which nobody reads
        ):  # fmt: skip
            body = b"abc" * ("Length: 3" in line)
            answer = await all_of(await asked(port, f"{line}\r\nConnection: close", body))
            assert answer.split(b" ", 2)[1] == status, line
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_body_that_breaks_off_looks_broken_off(caplog: pytest.LogCaptureFixture) -> None:
    """With a length, and through a middleware that takes the length away and sends chunks."""
    caplog.set_level(logging.CRITICAL, "uvicorn.error")
    async with memory_storage(MEMORY) as store:
        links = LinkApp(lambda: store)
        for app, last in ((links, LARGE[-9:]), (without_length(links), b"\r\n0\r\n\r\n")):
            async with served(app) as port:
                path = (await signed(store)).removeprefix("/links")
                whole = await all_of(await asked(port, f"GET {path} HTTP/1.1\r\nConnection: close"))
                store.faults.fail("read", UnavailableError)
                half = await all_of(await asked(port, f"GET {path} HTTP/1.1\r\nConnection: close"))
                assert half.startswith(b"HTTP/1.1 200") and len(half) < len(whole)
                assert (whole.endswith(last), half.endswith(last)) == (True, False)


def without_length(app: Any) -> Any:
    """As a middleware does that changes the body: the server sends it in chunks then."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [pair for pair in message["headers"] if pair[0] != b"content-length"]}
            await send(message)

        await app(scope, receive, sending)

    return application


async def test_a_client_that_hangs_up_closes_the_file(tmp_path: Path) -> None:
    async with open_storage(Settings(directory=tmp_path, links=LINKS)) as store, served(LinkApp(lambda: store)) as port:
        path = (await signed(store, LARGE * 10)).removeprefix("/links")
        client = await asked(port, f"GET {path} HTTP/1.1")
        await client.receive()
        assert open_blobs(tmp_path) != []
        await client.aclose()
        with anyio.fail_after(20):
            while open_blobs(tmp_path):
                await anyio.lowlevel.checkpoint()


async def test_a_client_that_takes_nothing_frees_the_file_and_keeps_nobody_out(tmp_path: Path) -> None:
    app = LinkApp(lambda: store, send_idle_s=0.2, bodies_max=20)
    async with open_storage(Settings(directory=tmp_path, links=LINKS)) as store, served(app) as port:
        path = (await signed(store, LARGE * 10)).removeprefix("/links")
        other = (await signed(store, b"small", ObjectId.create("photos", "small"))).removeprefix("/links")
        slow = [await asked(port, f"GET {path} HTTP/1.1") for _ in range(20)]
        with anyio.fail_after(30):
            for client in slow:
                await client.receive()
            assert (await all_of(await asked(port, f"GET {other} HTTP/1.1\r\nConnection: close"))).endswith(b"small")
            while open_blobs(tmp_path):
                await anyio.lowlevel.checkpoint()
            app._send_idle_s = 60.0  # whoever takes it all does so in one thread with the server, which may stand still
            whole = await all_of(await asked(port, f"GET {path} HTTP/1.1\r\nConnection: close"))
            assert whole.endswith(LARGE)
            for client in slow:
                assert len(await all_of(client)) < 10 * len(LARGE)


def open_blobs(directory: Path) -> list[str]:
    """The files of the store's blobs that this process has open."""
    links = [os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")]
    return [each for each in links if each.startswith(str(directory / "blobs"))]


# --- within other applications ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Starlette, FastAPI])
async def test_an_application_mounts_it(kind: type[Starlette]) -> None:
    async with memory_storage(MEMORY) as store:
        app = kind()
        app.mount("/links", LinkApp(lambda: store))
        nested = Starlette(routes=[Mount("/files", app=Starlette(routes=[Mount("/deep", app=app)]))])
        path = await signed(store)
        for mounted, at in ((app, path), (nested, f"/files/deep{path}")):
            async with AsyncClient(transport=ASGITransport(mounted), base_url="http://files") as client:
                assert (await client.get(at)).content == LARGE
                assert (await client.get(f"{at}x")).status_code == 403
                assert (await client.head(at)).headers["content-length"] == str(len(LARGE))


# --- by itself -------------------------------------------------------------------------------------


async def test_it_opens_a_store_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(directory=tmp_path / "data", links=LINKS)
    async with open_storage(settings) as store:
        path = await signed(store)
    file = tmp_path / "tiered.yaml"
    key = LINKS.keys[0].get_secret_value()
    file.write_text(f"directory: {tmp_path / 'data'}\nlinks:\n  base_url: {BASE_URL}\n  keys: {key}\n")
    monkeypatch.setenv("TIERED_CONFIG", str(file))
    for app in (create_app(settings), create_app(), create_app(file)):
        async with served(app, lifespan="on") as port:
            assert (await all_of(await asked(port, f"GET {path.removeprefix('/links')} HTTP/1.1\r\nConnection: close"))).endswith(LARGE)


@pytest.mark.parametrize("missing", ["store", "links", "settings"])
async def test_a_server_without_a_store_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.delenv("TIERED_CONFIG", raising=False)
    if missing == "links":
        async with open_storage(Settings(directory=tmp_path)):
            pass
    source = {"store": Settings(directory=tmp_path / "none", links=LINKS), "links": Settings(directory=tmp_path), "settings": None}[missing]
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    await create_app(source)({"type": "lifespan"}, receive, send)
    [message] = sent
    assert message["type"] == "lifespan.startup.failed"
    assert {"store": "no store in", "links": "set links.base_url", "settings": "set TIERED_CONFIG"}[missing] in message["message"]
