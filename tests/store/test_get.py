"""What readers see: ranges, expiry, overwrites under their hands, lost blobs, listings."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.given.tapped_store import LARGE, OBJECT, RARE_BEATS, SMALL, TappedWorld, fails, never_arrives, opened, read
from tiered import (
    ByteRange,
    DanglingTombstoneError,
    InvalidRequestError,
    Metadata,
    RangeNotSatisfiableError,
    Settings,
    TieredStorage,
    TimeToIdle,
    TimeToLive,
    UnavailableError,
)
from tiered.services.backends import Inline
from tiered.testing import memory_storage

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


@pytest.mark.parametrize("payload", [SMALL, LARGE])
async def test_head_tells_everything_but_the_bytes(world: TappedWorld, payload: bytes) -> None:
    async with world.store() as storage:
        result = await storage.put(OBJECT, payload, Metadata(content_type="text/plain", filename="a.txt", custom={"k": "o"}))
        head = await storage.head(OBJECT)
    assert head is not None
    assert (head.size, head.tier, head.revision) == (len(payload), result.tier, result.revision)
    assert (head.metadata.content_type, head.metadata.filename, head.metadata.custom) == ("text/plain", "a.txt", {"k": "o"})
    assert head.metadata.time_created_ns is not None and head.metadata.time_expires_ns is None


@pytest.mark.parametrize("payload", [SMALL, LARGE])
@pytest.mark.parametrize("range_", [ByteRange(0, 2), ByteRange(3), ByteRange(-2), ByteRange(1, 10_000), ByteRange(0, 0)])
async def test_range_is_a_slice(world: TappedWorld, payload: bytes, range_: ByteRange) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, payload)
        stored = await storage.get(OBJECT, range=range_)
        assert stored is not None and stored.size == len(payload)
        assert await stored.read() == payload[range_.start : range_.stop] == payload[stored.start : stored.stop]
        assert stored.length == stored.stop - stored.start and stored.checksum is None


@pytest.mark.parametrize("payload", [SMALL, LARGE])
@pytest.mark.parametrize("range_", [ByteRange(5000), ByteRange(9999, 10_000), ByteRange(3, 1)])
async def test_range_outside_of_the_object_is_refused_with_its_size(world: TappedWorld, payload: bytes, range_: ByteRange) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, payload)
        with pytest.raises(RangeNotSatisfiableError, match=str(len(payload))) as refused:
            await storage.get(OBJECT, range=range_)
    assert refused.value.size == pickle.loads(pickle.dumps(refused.value)).size == len(payload)


@pytest.mark.parametrize("call", ["read", "open", "scan"])
async def test_read_that_is_never_answered_is_unavailable(world: TappedWorld, call: str) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        world.rows.hooks[call] = world.blobs.hooks[call] = never_arrives
        with pytest.raises(UnavailableError):
            await (anext(storage.list()) if call == "scan" else storage.get(OBJECT))


@pytest.mark.parametrize("payload", [SMALL, LARGE])
async def test_expired_object_is_absent_to_every_reader(world: TappedWorld, payload: bytes) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, payload, Metadata(expiration=TimeToLive(HOUR)))
        await world.runtime.sleep(3599)
        assert await storage.get(OBJECT) is not None
        await world.runtime.sleep(1)
        assert await storage.get(OBJECT) is None
        assert await storage.head(OBJECT) is None
        assert [each async for each in storage.list()] == []


async def test_expired_tombstone_still_counts_as_present_for_writers(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE, Metadata(expiration=TimeToLive(HOUR)))
        await world.runtime.sleep(7200)
        await storage.put(OBJECT, SMALL)
        assert await read(storage) == SMALL
    assert await world.is_clean()


@pytest.mark.parametrize("call", ["open", "head"])
@pytest.mark.parametrize("then", ["put", "delete"])
async def test_reader_whose_blob_is_gone_before_its_first_byte_finds_what_is_there_now(world: TappedWorld, then: str, call: str) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)

        async def overtake() -> None:
            await (storage.put(OBJECT, LARGE + b"2") if then == "put" else storage.delete(OBJECT))
            await world.runtime.sleep(1)

        world.blobs.before_next(call, overtake)
        if call == "open":
            assert await read(storage) == (LARGE + b"2" if then == "put" else None)
        else:
            head = await storage.head(OBJECT)
            assert (None if head is None else head.size) == (len(LARGE) + 1 if then == "put" else None)
        assert storage.dangling_found == 0


@pytest.mark.parametrize("call", [TieredStorage.get, TieredStorage.head])
async def test_lost_blob_is_reported_as_data_loss_and_counted(world: TappedWorld, call: Callable[..., Awaitable[object]]) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        name, = await world.blob_names()
        await world.blobs.target.delete(name)
        with pytest.raises(DanglingTombstoneError, match=name):
            await call(storage, OBJECT)
        assert storage.dangling_found == 1


async def test_reader_that_is_overtaken_every_time_gives_up_in_the_end(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)

        async def overtaken(real: Any, *args: Any) -> Any:
            await storage.put(OBJECT, LARGE)
            await world.runtime.sleep(1)
            return await real(*args)

        world.blobs.hooks["open"] = overtaken
        with pytest.raises(UnavailableError, match="overwritten 5 times"):
            await storage.get(OBJECT)


async def test_head_asks_for_no_bytes(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        await world.runtime.sleep(1)
        world.calls.clear()
        assert await storage.head(OBJECT) is not None
        assert world.calls == ["read", "head"]


@pytest.mark.parametrize("payload", [SMALL, LARGE])
async def test_reading_an_idle_object_extends_it_blob_first(world: TappedWorld, payload: bytes) -> None:
    async with world.store(lease=RARE_BEATS) as storage:
        await storage.put(OBJECT, payload, Metadata(expiration=TimeToIdle(HOUR)))
        for _ in range(10):
            await world.runtime.sleep(1800)
            stored = await opened(storage)
            await stored.aclose()
        await world.runtime.sleep(1)
        touches = world.calls.count("touch")
        assert touches == 10 * (1 if payload == SMALL else 2)
        await world.runtime.sleep(3600)
        assert await storage.get(OBJECT) is None


@pytest.mark.parametrize("payload", [SMALL, LARGE])
async def test_a_store_that_was_opened_for_reading_wrote_when_it_read_an_idle_object(world: TappedWorld, payload: bytes) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, payload, Metadata(expiration=TimeToIdle(HOUR)))
    world.calls.clear()
    async with TieredStorage(world.tiers, world.log, world.runtime, world.settings(), writes=False) as reader:
        await world.runtime.sleep(1800)
        assert await read(reader) == payload
        async with reader.get_many([OBJECT]) as results:
            assert [result.value is not None async for result in results] == [True]
        await reader.head(OBJECT)
        assert len([entry async for entry in reader.list(metadata=True)]) == 1
        await world.runtime.sleep(1)
        assert set(world.calls) <= {"read", "scan", "open", "head", "heads"}
        await world.runtime.sleep(1800)
        assert await reader.get(OBJECT) is None


async def test_reading_again_soon_touches_nothing(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL, Metadata(expiration=TimeToIdle(HOUR)))
        await world.runtime.sleep(60)
        await storage.get(OBJECT)
        await world.runtime.sleep(1)
    assert "touch" not in world.calls


async def test_touch_never_revives_a_replaced_object(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE, Metadata(expiration=TimeToIdle(HOUR)))

        async def overtake() -> None:
            await storage.put(OBJECT, SMALL)
            await world.runtime.sleep(1)

        world.blobs.before_next("touch", overtake)
        await world.runtime.sleep(1800)
        await opened(storage)
        await world.runtime.sleep(5)
        state = (await world.rows.target.read(OBJECT.path)).state
        assert isinstance(state, Inline) and state.payload == SMALL


async def test_failing_touch_does_not_fail_the_read(world: TappedWorld) -> None:
    world.rows.hooks["touch"] = fails(UnavailableError("down"))
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL, Metadata(expiration=TimeToIdle(HOUR)))
        await world.runtime.sleep(3000)
        assert await read(storage) == SMALL


async def test_stored_object_is_read_by_one_task_at_a_time(world: TappedWorld) -> None:
    """Two would get some of its bytes twice."""
    async def slow_open(real: Any, *args: Any) -> Any:
        reader = await real(*args)
        chunks = reader.chunks

        async def slow_chunks() -> AsyncIterator[bytes]:
            async for chunk in chunks():
                await world.runtime.sleep(5)
                yield chunk

        reader.chunks = slow_chunks
        return reader

    async def take(chunks: AsyncIterator[bytes]) -> None:
        await anext(chunks)

    async with world.store() as storage, anyio.create_task_group() as tasks:
        await storage.put(OBJECT, LARGE)
        world.blobs.hooks["open"] = slow_open
        stored = await opened(storage)
        first = aiter(stored)
        tasks.start_soon(take, first)
        await world.runtime.sleep(1)
        with pytest.raises(InvalidRequestError, match="is being read by another task"):
            await anext(first)
        await world.runtime.sleep(10)
        with pytest.raises(StopAsyncIteration):
            await anext(first)


@pytest.mark.parametrize("large", [False, True])
async def test_an_object_that_is_closed_while_it_is_read_never_looks_shorter_than_it_is(world: TappedWorld, large: bool) -> None:
    """Another task may close it, such as one that watches for a client that goes away, or its own progress callback."""
    payload = b"x" * (3 * 256 * 1024)
    closed = "was closed before its end was read"
    async with world.store(inline_bytes_max=100 if large else 8 * 1024 * 1024) as storage:
        await storage.put(OBJECT, payload)
        stored = await opened(storage)
        chunks = aiter(stored)
        await anext(chunks)
        await stored.aclose()
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match=closed):
                await anext(chunks)

        async def close(done: int, total: int | None) -> None:
            await stored.aclose()

        stored = await opened(storage, progress=close)
        with pytest.raises(InvalidRequestError, match=closed):
            await stored.read()
        stored = await opened(storage)
        chunks = aiter(stored)
        assert b"".join([chunk async for chunk in chunks]) == payload
        with pytest.raises(StopAsyncIteration):
            await anext(chunks)


async def test_an_object_is_closed_while_another_task_waits_for_a_chunk(world: TappedWorld) -> None:
    async with world.store() as storage, anyio.create_task_group() as tasks:
        await storage.put(OBJECT, LARGE * 200)
        stored = await opened(storage)

        async def read() -> None:
            with pytest.raises((InvalidRequestError, UnavailableError)):
                await stored.read()

        tasks.start_soon(read)
        await anyio.lowlevel.checkpoint()
        await stored.aclose()


@pytest.mark.parametrize("payload", [SMALL, LARGE])
async def test_stored_object_left_half_way_can_be_closed_and_is_not_read_again(world: TappedWorld, payload: bytes) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, payload)
        stored = await opened(storage)
        async for _ in stored:
            break
        await stored.aclose()
        await stored.aclose()
        with pytest.raises(InvalidRequestError, match="already read or closed"):
            await stored.read()


@pytest.mark.parametrize("payload", [SMALL, LARGE])
async def test_an_object_that_was_cut_off_never_seems_to_be_at_its_end(payload: bytes) -> None:
    async with memory_storage(Settings(directory=Path("none"), inline_bytes_max=len(SMALL))) as storage:
        await storage.put(OBJECT, payload)
        storage.faults.fail("read")
        torn, closed = await storage.get(OBJECT), await storage.get(OBJECT)
        assert torn is not None and closed is not None
        chunks = aiter(torn)
        with pytest.raises(UnavailableError):
            _ = [chunk async for chunk in chunks]
        with pytest.raises(InvalidRequestError, match="closed before its end"):
            await anext(chunks)
        chunks = aiter(closed)
        await closed.aclose()
        with pytest.raises(InvalidRequestError, match="closed before its end"):
            await anext(chunks)
        whole = await opened(storage)
        chunks = aiter(whole)
        assert b"".join([chunk async for chunk in chunks]) == payload and await anext(chunks, b"end") == b"end"
