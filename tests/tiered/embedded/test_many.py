"""Many operations in one call on a real directory, and how a bulk call ends, on both event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
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


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
async def test_a_block_that_ends_early_leaves_nothing_and_its_error_comes_out_plain(tmp_path: Path, error: type[Exception] | None) -> None:
    async with open_storage(embedded(tmp_path)) as storage:
        stuck = StuckRequests()
        with nullcontext() if error is None else pytest.raises(error):
            async with storage.put_many(stuck, concurrency=4):
                await stuck.read.wait()
                if error is not None:
                    raise error
        assert await is_left_alone(storage, stuck, tmp_path)


async def take_all(storage: TieredStorage, stuck: StuckRequests) -> None:
    async with storage.put_many(stuck, concurrency=4) as results:
        async for _ in results:
            pass


async def test_cancelling_a_scope_leaves_nothing(tmp_path: Path) -> None:
    async with open_storage(embedded(tmp_path)) as storage:
        stuck = StuckRequests()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_all, storage, stuck)
            await stuck.read.wait()
            tasks.cancel_scope.cancel()
        assert await is_left_alone(storage, stuck, tmp_path)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_cancelling_a_bare_asyncio_task_leaves_nothing_and_it_ends_cancelled(tmp_path: Path) -> None:
    async with open_storage(embedded(tmp_path)) as storage:
        stuck = StuckRequests()
        task = asyncio.create_task(take_all(storage, stuck))
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
