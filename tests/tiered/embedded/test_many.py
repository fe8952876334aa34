"""Many operations in one call on a real directory, and how a bulk call ends, on both event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from tests.given.embedded_store import embedded, files
from tests.given.tapped_store import SMALL
from tiered import InvalidRequestError, Metadata, ObjectId, PutRequest, TieredStorage, open_storage

pytestmark = pytest.mark.anyio

LARGE = b"large" * 500_000


def other(number: int) -> ObjectId:
    return ObjectId.create("attachments", f"key{number:03}")


def content(number: int) -> bytes:
    return b"%d" % number * (1 if number % 10 else 700_000)


class StuckRequests:
    """Requests whose payloads never end; the first two are small and do."""

    def __init__(self) -> None:
        self.under_way = 0
        self.read = anyio.Event()

    def __iter__(self) -> Iterator[PutRequest]:
        for number in range(1000):
            yield PutRequest(other(number), b"small" if number < 2 else self.payload())

    async def payload(self) -> AsyncIterator[bytes]:
        self.under_way += 1
        try:
            yield LARGE
            self.read.set()
            await anyio.sleep_forever()
        finally:
            self.under_way -= 1


async def is_left_alone(storage: TieredStorage, stuck: StuckRequests, directory: Path) -> bool:
    await storage.aclose()
    return stuck.under_way == 0 and files(directory) == []


@pytest.mark.slow
async def test_round_trip_of_hundreds(tmp_path: Path) -> None:
    numbers = range(300)
    async with open_storage(embedded(tmp_path)) as storage:
        async with storage.put_many(PutRequest(other(number), content(number)) for number in numbers) as puts:
            assert sorted([result.value.size async for result in puts]) == sorted(len(content(number)) for number in numbers)
        ids = (entry.object_id async for entry in storage.list())
        async with storage.get_many(ids) as loads:
            found = {result.request: result.value async for result in loads}
        assert {path: loaded and loaded.payload for path, loaded in found.items()} == {other(n): content(n) for n in numbers}
        async with storage.delete_many(found) as deletions:
            assert [result.error async for result in deletions] == [None] * len(numbers)
        assert [entry.object_id async for entry in storage.list()] == []
    assert files(tmp_path) == []


async def test_breaking_off_leaves_nothing(tmp_path: Path) -> None:
    async with open_storage(embedded(tmp_path)) as storage:
        stuck = StuckRequests()
        async with storage.put_many(stuck, concurrency=4) as results:
            async for _ in results:
                await stuck.read.wait()
                break
        assert await is_left_alone(storage, stuck, tmp_path)


async def test_error_of_the_block_comes_out_plain_and_leaves_nothing(tmp_path: Path) -> None:
    async with open_storage(embedded(tmp_path)) as storage:
        stuck = StuckRequests()

        async def run() -> None:
            async with storage.put_many(stuck, concurrency=4):
                await stuck.read.wait()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await run()
        assert await is_left_alone(storage, stuck, tmp_path)


async def test_cancelling_a_scope_leaves_nothing(tmp_path: Path) -> None:
    async with open_storage(embedded(tmp_path)) as storage:
        stuck = StuckRequests()

        async def run() -> None:
            async with storage.put_many(stuck, concurrency=4) as results:
                async for _ in results:
                    pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await stuck.read.wait()
            tasks.cancel_scope.cancel()
        assert await is_left_alone(storage, stuck, tmp_path)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_cancelling_a_bare_asyncio_task_leaves_nothing_and_it_ends_cancelled(tmp_path: Path) -> None:
    async with open_storage(embedded(tmp_path)) as storage:
        stuck = StuckRequests()

        async def run() -> None:
            async with storage.put_many(stuck, concurrency=4) as results:
                async for _ in results:
                    pass

        task = asyncio.create_task(run())
        await stuck.read.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await is_left_alone(storage, stuck, tmp_path)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_cancelling_a_bare_asyncio_task_while_it_leaves_the_block_is_not_lost(tmp_path: Path) -> None:
    reading, leaving, may_end = anyio.Event(), anyio.Event(), anyio.Event()

    async def payload() -> AsyncIterator[bytes]:
        try:
            reading.set()
            await anyio.sleep_forever()
            yield b""
        finally:
            leaving.set()
            with anyio.CancelScope(shield=True):
                await may_end.wait()

    async with open_storage(embedded(tmp_path)) as storage:

        async def run() -> None:
            async with storage.put_many([PutRequest(other(1), payload())]):
                await reading.wait()

        task = asyncio.create_task(run())
        await leaving.wait()
        task.cancel()
        may_end.set()
        await asyncio.wait([task])
        assert task.cancelled()


async def test_error_of_the_requests_comes_out_plain(tmp_path: Path) -> None:
    async def requests() -> AsyncIterator[PutRequest]:
        yield PutRequest(other(1), b"small")
        yield PutRequest(other(2), LARGE)
        raise ZeroDivisionError

    async with open_storage(embedded(tmp_path)) as storage:
        async with storage.put_many(requests()) as results:
            sizes = {(await anext(results)).value.size for _ in range(2)}
            with pytest.raises(ZeroDivisionError):
                await anext(results)
        assert sizes == {5, len(LARGE)}


async def test_requests_that_block_hold_up_no_other_task_and_are_closed_when_they_are_given_up(tmp_path: Path) -> None:
    blocked, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def requests() -> Iterator[PutRequest]:
        try:
            yield PutRequest(other(0), SMALL)
            blocked.set()
            go_on.wait(60)
            yield PutRequest(other(1), SMALL)
        finally:
            closed.set()

    async with open_storage(embedded(tmp_path)) as storage:
        async with storage.put_many(requests()) as results:
            async for result in results:
                assert result.error is None
                with anyio.fail_after(30):
                    await anyio.to_thread.run_sync(blocked.wait)
                    await storage.put(other(2), SMALL)  # meanwhile
                break
        go_on.set()
        assert await anyio.to_thread.run_sync(closed.wait, 30)


async def test_generator_of_requests_that_raises_ends_the_iteration_with_its_error(tmp_path: Path) -> None:
    def requests() -> Iterator[PutRequest]:
        yield PutRequest(other(0), SMALL)
        raise LookupError("no more of them")

    found = []
    async with open_storage(embedded(tmp_path)) as storage:
        with pytest.raises(LookupError, match="no more"):
            async with storage.put_many(requests()) as results:
                found = [result.error async for result in results]
        assert found == []
        assert (await storage.get(other(0))) is not None


async def test_task_group_around_the_yield_of_a_payload_that_is_given_up_is_no_error_of_its_own(tmp_path: Path) -> None:
    async def payload() -> AsyncIterator[bytes]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            yield LARGE

    async with open_storage(embedded(tmp_path)) as storage:
        with pytest.raises(InvalidRequestError, match="declare"):
            await storage.put(other(0), payload(), Metadata(size=3))
        async with storage.put_many([PutRequest(other(0), payload(), Metadata(size=3)), PutRequest(other(1), SMALL)]) as results:
            errors = {result.position: result.error async for result in results}
    assert isinstance(errors[0], InvalidRequestError)
    assert errors[1] is None
