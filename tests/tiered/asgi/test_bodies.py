"""All bodies have one bound: in bytes, places, time, and by the end of the link. And nothing is read in vain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from trio.testing import MockClock

from tests.given.asked_app import AppAnswer, asked
from tests.given.signed_links import LINKS
from tiered import Metadata, ObjectId, Settings
from tiered.asgi import LinkApp
from tiered.asgi.app import SMALL_BYTES, STREAM_BYTES
from tiered.asgi.body import RATE_MIN, YIELD_S
from tiered.payload import zstd
from tiered.testing import memory_storage
from tiered.testing.in_memory import NOWHERE, MemoryStorage

pytestmark = pytest.mark.anyio
CAT = ObjectId.create("photos", "cat.jpg")
HOUR = timedelta(hours=1)
MIB = 1 << 20
MEMORY = Settings(directory=NOWHERE, inline_bytes_max=100_000, links=LINKS)


@pytest.fixture
def anyio_backend() -> Any:
    """In virtual time: a second passes when nothing else is left to do."""
    return "trio", {"clock": MockClock(autojump_threshold=0)}


@pytest.fixture
async def store(anyio_backend: object) -> AsyncIterator[MemoryStorage]:
    async with memory_storage(MEMORY) as storage:
        yield storage


def app_of(store: MemoryStorage, **options: Any) -> LinkApp:
    return LinkApp(lambda: store, **options)


async def put_url(store: MemoryStorage, key: str = "cat.jpg") -> str:
    return (await store.sign_put(ObjectId.create("photos", key), HOUR)).url


async def get_url(store: MemoryStorage, payload: bytes, key: str = "cat.jpg", **metadata: Any) -> str:
    object_id = ObjectId.create("photos", key)
    await store.put(object_id, payload, Metadata(**metadata))
    return str(await store.sign_get(object_id, HOUR))


async def held(app: LinkApp) -> int:
    """How many bytes are held, when all that can happen has happened."""
    await anyio.lowlevel.checkpoint()
    await anyio.wait_all_tasks_blocked()
    return sum(body.held for body in app._bodies._under_way)


class Stalled:
    """Clients that stand still until the block ends: who has sent `chunks`, or takes nothing."""

    def __init__(self, app: LinkApp) -> None:
        self.app = app
        self.tasks = anyio.create_task_group()

    async def __aenter__(self) -> Stalled:
        await self.tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.tasks.cancel_scope.cancel()
        await self.tasks.__aexit__(None, None, None)

    async def sends(self, url: str, size: int | None = None, chunks: tuple[bytes, ...] = (b"x",)) -> AppAnswer:
        got = AppAnswer()
        headers = {} if size is None else {"Content-Length": str(size)}

        async def run() -> None:
            await asked(self.app, "PUT", url, headers, chunks, stalls=True, asked=got)

        self.tasks.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        return got

    async def takes_nothing(self, url: str) -> AppAnswer:
        got = AppAnswer()

        async def run() -> None:
            await asked(self.app, "GET", url, {}, taking=anyio.sleep_forever, asked=got)

        self.tasks.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        return got


# --- bytes -----------------------------------------------------------------------------------------


async def test_of_parts_no_more_is_taken_than_there_is_room_for(store: MemoryStorage) -> None:
    app = app_of(store)
    async with Stalled(app) as clients:
        for number in range(12):
            got = await clients.sends(await put_url(store, f"k{number}"), 100 * MIB)
            assert (got.status, got.read) == ((0, 1) if number < 2 else (503, 0)), number
            if number >= 2:
                assert got.headers["retry-after"] == "1"
        unknown = await clients.sends(await put_url(store, "unknown"))  # it may be 128 MiB
        assert (unknown.status, unknown.read) == (503, 0)
        assert (await clients.sends(await put_url(store, "small"), 56 * MIB)).status == 0
        assert await held(app) == 256 * MIB


async def test_who_takes_nothing_of_small_objects_holds_no_more_of_them_than_there_is_room_for(store: MemoryStorage) -> None:
    row = 90_000
    app, url = app_of(store, bytes_max=5 * (row + SMALL_BYTES)), await get_url(store, bytes(row))
    async with Stalled(app) as clients:
        got = [await clients.takes_nothing(url) for _ in range(5)]
        refused = await asked(app, "GET", url)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert [each.status for each in got] == [0] * 5
    assert (await asked(app, "GET", url)).status == 200
    assert await held(app) == 0


FAR = bytes.fromhex("28b52ffd 00 88 010000")
"""An empty frame that may look back 128 MiB."""


def far(payload: bytes, log: int) -> bytes:
    library = zstd._library()
    frame = library.ZstdCompressor(options={library.CompressionParameter.window_log: log})
    return bytes(frame.compress(payload) + frame.flush())


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_bombs_are_held_together_within_one_bound(store: MemoryStorage) -> None:
    app = app_of(store)
    url = await get_url(store, far(bytes(8 * MIB), 27), compression="Zstd")
    near = await get_url(store, far(bytes(8 * MIB), 20), "near", compression="Zstd")
    async with Stalled(app) as clients:
        await clients.takes_nothing(url)
        with anyio.fail_after(20):
            while await held(app) < 128 * MIB:
                await anyio.lowlevel.checkpoint()
        assert (await asked(app, "GET", url)).status == 503
        assert (await asked(app, "GET", near)).body == bytes(8 * MIB)
        assert (await asked(app, "GET", url, {"Accept-Encoding": "zstd"})).status == 200
    assert (await asked(app, "GET", url)).body == bytes(8 * MIB)
    assert await held(app) == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_bomb_behind_a_harmless_frame_is_held_too(store: MemoryStorage) -> None:
    url = await get_url(store, far(bytes(3 * MIB), 17) + FAR + far(b"end", 10), compression="Zstd")
    for bytes_max, whole in ((20 * MIB, False), (200 * MIB, True)):
        got = await asked(app_of(store, bytes_max=bytes_max), "GET", url)
        assert got.status == 200 and (got.body == bytes(3 * MIB) + b"end") is whole
        assert got.body.startswith(bytes(MIB))


def test_how_far_a_frame_looks_back_is_in_its_header() -> None:
    for log in (10, 17, 23, 27):
        assert zstd._window_of(memoryview(far(bytes(1 << 20), log))) == min(1 << log, 1 << 27)
    library = zstd._library()
    for size in (0, 5, 255, 256, 700, 70_000):
        whole = memoryview(library.compress(bytes(size)))
        assert zstd._window_of(whole) == size
        assert {zstd._window_of(whole[:stop]) for stop in range(4)} == {1 << 27}, "its header is not all here"
    assert zstd._window_of(memoryview(b"\x50\x2a\x4d\x18")) == 0
    assert zstd._window_of(memoryview(b"no zstd")) == 0
    assert zstd._window_of(memoryview(bytes.fromhex("28b52ffd 00 ff 010000"))) == 1 << 27


# --- places, and time ------------------------------------------------------------------------------


async def test_who_stands_still_shuts_nobody_out(store: MemoryStorage) -> None:
    app, large = app_of(store, bodies_max=8), await get_url(store, bytes(200_000), "large")
    async with Stalled(app) as clients:
        idle = [await clients.sends(await put_url(store, f"k{number}"), 1) for number in range(4)]
        idle += [await clients.takes_nothing(large) for _ in range(4)]
        honest = await put_url(store, "honest")
        assert (await asked(app, "PUT", honest, {}, [b"payload"])).status == 503
        await anyio.sleep(YIELD_S)
        assert (await asked(app, "PUT", honest, {}, [b"payload"])).status == 200
        await anyio.wait_all_tasks_blocked()
        assert sorted(got.status for got in idle) == [0] * 7 + [408], "one of them gave its place, and no more"
        [ended] = [got for got in idle if got.status]
        assert ended.headers["connection"] == "close"


async def test_one_link_takes_one_place(store: MemoryStorage) -> None:
    """128 requests with one byte each shut everybody out."""
    app, url = app_of(store), await put_url(store)
    async with Stalled(app) as clients:
        got = [await clients.sends(url, 1) for _ in range(128)]
        assert [each.status for each in got] == [409] * 127 + [0]
        assert (await asked(app, "PUT", await put_url(store, "honest"), {}, [b"payload"])).status == 200
        assert (await asked(app, "PUT", url, {}, [b"last"])).status == 200
    assert [part.size for part in await store.multipart(CAT, upload_of(store, url)).parts()] == [4]


def upload_of(store: MemoryStorage, url: str) -> str:
    assert store.links is not None
    link = store.links.read(url.rpartition("/")[2])
    assert link is not None
    return link.revision


async def test_an_upload_that_has_ended_takes_no_place_and_no_byte(store: MemoryStorage) -> None:
    app, signed = app_of(store, bodies_max=1), await store.sign_put(CAT, HOUR)
    await asked(app, "PUT", signed.url, {}, [b"payload"])
    await signed.upload.complete()
    async with Stalled(app) as clients:
        for _ in range(4):
            got = await clients.sends(signed.url, 100 * MIB, (bytes(MIB),) * 100)
            assert (got.status, got.read) == (410, 0)
        assert await held(app) == 0


async def test_a_part_that_trickles_ends_though_it_never_stands_still(store: MemoryStorage) -> None:
    app, url, began = app_of(store, send_idle_s=60.0), await put_url(store), anyio.current_time()
    sent = 0

    async def receive() -> Any:
        nonlocal sent
        await anyio.sleep(5)
        sent += 1
        return {"type": "http.request", "body": b"x", "more_body": True}

    got: list[Any] = []

    async def send(message: Any) -> None:
        got.append(message)

    path = f"/links/{url.rpartition('/')[2]}"
    await app({"type": "http", "method": "PUT", "path": path, "root_path": "/links", "headers": []}, receive, send)
    assert (got[0]["status"], sent) == (408, 12) and anyio.current_time() - began == pytest.approx(60, abs=1)


async def test_who_is_slow_and_steady_is_served(store: MemoryStorage) -> None:
    """A phone that sends and takes 8 KiB a second, for ten minutes."""
    app, url = app_of(store, send_idle_s=60.0), await put_url(store)
    chunk = bytes(64 * 1024)
    messages = [{"type": "http.request", "body": chunk, "more_body": number < 79} for number in range(80)]

    async def receive() -> Any:
        await anyio.sleep(len(chunk) / (2 * RATE_MIN))
        return messages.pop(0)

    got: list[Any] = []

    async def send(message: Any) -> None:
        got.append(message)

    path = f"/links/{url.rpartition('/')[2]}"
    await app({"type": "http", "method": "PUT", "path": path, "root_path": "/links", "headers": []}, receive, send)
    assert got[0]["status"] == 200


async def test_a_part_comes_before_its_link_ends(store: MemoryStorage) -> None:
    signed = await store.sign_put(CAT, timedelta(seconds=20))
    app = app_of(store, send_idle_s=60.0)
    async with Stalled(app) as clients:
        got = await clients.sends(signed.url)
        store.clock.advance(timedelta(seconds=22))
        await anyio.sleep(21.5)
        assert (got.status, got.body) == (403, b"the link has expired before all of the part had come\n")
    assert list(await signed.upload.parts()) == []


async def test_a_body_of_a_large_object_holds_little(store: MemoryStorage) -> None:
    app, url = app_of(store), await get_url(store, bytes(8 * MIB))
    async with Stalled(app) as clients:
        await clients.takes_nothing(url)
        assert await held(app) == STREAM_BYTES
