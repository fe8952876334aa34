"""What a caller is told while a payload goes in and comes out. A callback that raises leaves nothing behind."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.given.tapped_store import OBJECT, SMALL, TappedWorld, in_chunks, opened, read
from tiered import ByteRange, InvalidRequestError, Metadata, ObjectId, Payload, PutRequest

pytestmark = pytest.mark.anyio

PIECE = 256 * 1024
HUGE = b"x" * (2 * PIECE + 7)


class NotedProgress:
    """A callback that notes what it is told, and raises when it has heard of so many bytes."""

    def __init__(self, error: BaseException | None = None, at: int = 0) -> None:
        self.calls: list[tuple[int, int | None]] = []
        self._error = error
        self._at = at

    def __call__(self, done: int, total: int | None) -> None:
        self.calls.append((done, total))
        if self._error is not None and done >= self._at:
            raise self._error


@pytest.mark.parametrize(("payload", "declared", "expected"), [
    (SMALL, None, [(5, 5)]),
    (b"", None, []),
    (HUGE, None, [(PIECE, len(HUGE)), (2 * PIECE, len(HUGE)), (len(HUGE), len(HUGE))]),
    (in_chunks(HUGE, PIECE), None, [(PIECE, None), (2 * PIECE, None), (len(HUGE), None)]),
    (in_chunks(HUGE, PIECE), len(HUGE), [(PIECE, len(HUGE)), (2 * PIECE, len(HUGE)), (len(HUGE), len(HUGE))]),
], ids=["small", "empty", "large", "of unknown size", "of declared size"])  # fmt: skip
async def test_a_put_tells_of_each_chunk(
    world: TappedWorld, payload: Payload, declared: int | None, expected: list[tuple[int, int | None]]
) -> None:
    told = NotedProgress()
    async with world.store() as storage:
        await storage.put(OBJECT, payload, Metadata(size=declared), progress=told)
    assert told.calls == expected


@pytest.mark.parametrize("span", [None, ByteRange(10, PIECE + 20), ByteRange(-5)])
async def test_a_read_tells_of_each_chunk_of_its_range(world: TappedWorld, span: ByteRange | None) -> None:
    told = NotedProgress()
    async with world.store() as storage:
        await storage.put(OBJECT, HUGE)
        stored = await opened(storage, range=span, progress=told)
        payload = await stored.read()
    assert told.calls[-1] == (len(payload), len(payload)) and all(total == stored.length for _, total in told.calls)
    assert len(told.calls) == -(-len(payload) // PIECE)


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), StopAsyncIteration("mine"), StopIteration("mine"), KeyboardInterrupt("mine")])
@pytest.mark.parametrize(("payload", "at"), [(SMALL, 0), (HUGE, 0), (HUGE, PIECE + 1), (HUGE, len(HUGE))])
async def test_a_callback_that_raises_ends_the_put_and_nothing_is_stored(
    world: TappedWorld, payload: bytes, at: int, error: BaseException
) -> None:
    async with world.store(inline_bytes_max=100) as storage:
        await storage.put(OBJECT, b"before")
        with pytest.raises((type(error), RuntimeError), match=r"mine|StopAsyncIteration|StopIteration"):
            await storage.put(OBJECT, payload, progress=NotedProgress(error, at))
        assert await read(storage) == b"before"
    assert await world.is_clean()


async def test_a_callback_that_raises_ends_the_read_and_closes_the_object(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, HUGE)
        for error in (ZeroDivisionError(), StopAsyncIteration()):
            stored = await opened(storage, progress=NotedProgress(error, PIECE + 1))
            with pytest.raises((ZeroDivisionError, RuntimeError)):
                await stored.read()
            with pytest.raises(InvalidRequestError, match="already read or closed"):
                await stored.read()


@pytest.mark.parametrize("progress", [5, "x", True])
async def test_what_is_no_callback_is_refused_before_anything_is_done(world: TappedWorld, progress: Any) -> None:
    async with world.store() as storage:
        for call in (storage.put(OBJECT, SMALL, progress=progress), storage.get(OBJECT, progress=progress)):
            with pytest.raises(InvalidRequestError, match=r"progress is .*: pass a function that takes the bytes so far"):
                await call
    assert world.calls == []


async def test_an_async_callback_is_awaited_and_what_it_raises_ends_the_put(world: TappedWorld) -> None:
    told: list[int] = []

    async def progress(done: int, total: int | None) -> None:
        await anyio.lowlevel.checkpoint()
        told.append(done)

    async def stop(done: int, total: int | None) -> None:
        await anyio.lowlevel.checkpoint()
        raise OSError("the caller has enough")

    async with world.store() as storage:
        await storage.put(OBJECT, SMALL, progress=progress)
        assert await (await opened(storage, progress=progress)).read() == SMALL
        assert told == [len(SMALL), len(SMALL)]
        with pytest.raises(OSError, match="has enough"):
            await storage.put(ObjectId.create("notes", "never"), SMALL, progress=stop)
        assert await storage.head(ObjectId.create("notes", "never")) is None


async def test_each_put_of_many_has_a_callback_of_its_own(world: TappedWorld) -> None:
    told, failing = NotedProgress(), NotedProgress(ZeroDivisionError())
    requests = [PutRequest(OBJECT, SMALL, progress=told), PutRequest(OBJECT, HUGE, progress=failing)]
    async with world.store() as storage, storage.put_many(requests) as results:
        errors = {result.position: result.error async for result in results}
    assert errors[0] is None and isinstance(errors[1], ZeroDivisionError)
    assert (told.calls, failing.calls) == ([(5, 5)], [(PIECE, len(HUGE))])


