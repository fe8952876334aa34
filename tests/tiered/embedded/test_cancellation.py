"""Whose a cancellation is: of a caller, of something that a caller's code awaited, of the store's own tasks.

On real directories.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.given.embedded_store import embedded, files
from tests.given.tapped_store import read
from tiered import CancelledElsewhereError, ObjectId, PutRequest, TieredStorage, open_storage

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])

OBJECT = ObjectId.create("attachments", "key", {"org": "17"})
SMALL = b"small"
LARGE = b"large" * 210_000


def other(number: int) -> ObjectId:
    return ObjectId.create("attachments", f"key{number}")


async def cancelled_natively() -> None:
    """Awaits a task that somebody else cancels."""
    task = asyncio.ensure_future(anyio.sleep_forever())
    asyncio.get_running_loop().call_soon(task.cancel)
    await task


async def cancelled_by_a_scope() -> None:
    """Awaits a task that a scope of its own ended, whose error any task group would take for its own."""

    async def run() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError as error:
                reason.append(error)

    reason: list[BaseException] = []
    await asyncio.ensure_future(run())
    raise reason[0]


elsewhere = pytest.mark.parametrize("awaited", [cancelled_natively, cancelled_by_a_scope])
Awaited = Callable[[], Awaitable[None]]


async def payload(awaited: Awaited, before: bytes = b"") -> AsyncIterator[bytes]:
    if before:
        yield before
    await awaited()


async def is_left_alone(storage: TieredStorage, directory: Path) -> bool:
    """No blob, no upload, no entry is left of changes that came to nothing."""
    return await storage.aclose() == [] and files(directory) == [] and list((await storage._writer._log.entries("", 10)).entries) == []


# --- a cancellation that nobody asked for ------------------------------------------------------------


@on_asyncio
@elsewhere
@pytest.mark.parametrize("before", [b"", SMALL, LARGE])
async def test_cancellation_of_what_a_payload_awaits_is_its_items_error_and_ends_nothing_else(
    tmp_path: Path, awaited: Awaited, before: bytes
) -> None:
    requests = [PutRequest(other(0), SMALL), PutRequest(other(1), payload(awaited, before)), PutRequest(other(2), SMALL)]
    errors: dict[int, Exception | None] = {}
    async with open_storage(embedded(tmp_path)) as storage:
        async with storage.put_many(requests) as results:
            errors |= {result.position: result.error async for result in results}
        assert await read(storage, other(1)) is None
        assert await is_left_alone(storage, tmp_path)
    # Here, because a store that ends without a word would end a test of it so, too.
    assert {position: type(error) for position, error in errors.items()} == {0: type(None), 1: CancelledElsewhereError, 2: type(None)}
    assert str(errors[1]) == "nothing was stored: what the payload awaited was cancelled elsewhere"


@on_asyncio
@elsewhere
async def test_cancellation_of_what_the_requests_await_is_the_iterations_error(tmp_path: Path, awaited: Awaited) -> None:
    async def requests() -> AsyncIterator[PutRequest]:
        yield PutRequest(other(0), SMALL)
        await awaited()

    stored: list[bytes | None] = []
    async with open_storage(embedded(tmp_path)) as storage:
        async with storage.put_many(requests()) as results:
            assert (await anext(results)).error is None
            with pytest.raises(CancelledElsewhereError, match="iterator of the requests"):
                await anext(results)
        stored.append(await read(storage, other(0)))
    assert stored == [SMALL]


@on_asyncio
@elsewhere
@pytest.mark.parametrize("before", [b"", SMALL, LARGE])
async def test_put_whose_payload_awaits_what_was_cancelled_fails_and_stores_nothing(
    tmp_path: Path, awaited: Awaited, before: bytes
) -> None:
    whole = False
    async with open_storage(embedded(tmp_path)) as storage:
        with pytest.raises(CancelledElsewhereError, match="nothing was stored: what the payload awaited"):
            await storage.put(OBJECT, payload(awaited, before))
        whole = await read(storage) is None and await is_left_alone(storage, tmp_path)
    assert whole


@on_asyncio
@elsewhere
async def test_cancellation_that_the_callers_own_block_met_comes_out_of_the_store(tmp_path: Path, awaited: Awaited) -> None:
    async def in_the_store() -> None:
        async with open_storage(embedded(tmp_path)) as storage:
            await storage.put(OBJECT, SMALL)
            await awaited()

    async def in_a_bulk_call() -> None:
        async with open_storage(embedded(tmp_path)) as storage, storage.put_many([PutRequest(OBJECT, SMALL)]):
            await awaited()

    for block in (in_the_store, in_a_bulk_call):
        with pytest.raises(asyncio.CancelledError):
            await block()


@pytest.mark.parametrize("before", [SMALL, LARGE])
async def test_scope_of_the_payloads_own_that_ends_between_two_chunks_is_an_error_of_the_put(tmp_path: Path, before: bytes) -> None:
    async def bounded() -> AsyncIterator[bytes]:
        with anyio.CancelScope() as scope:
            yield before
            scope.cancel()
            yield LARGE
            await anyio.lowlevel.checkpoint()

    errors: dict[int, Exception | None] = {}
    async with open_storage(embedded(tmp_path)) as storage:
        with pytest.raises(CancelledElsewhereError):
            await storage.put(OBJECT, bounded())
        async with storage.put_many([PutRequest(OBJECT, bounded()), PutRequest(other(1), SMALL)]) as results:
            errors |= {result.position: result.error async for result in results}
        assert await is_left_alone(storage, tmp_path)
    assert {position: type(error) for position, error in errors.items()} == {0: CancelledElsewhereError, 1: type(None)}


# --- a cancellation that was asked for ---------------------------------------------------------------


Operation = Callable[[TieredStorage], Awaitable[Any]]


async def put_in_chunks(storage: TieredStorage) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield LARGE
            await anyio.lowlevel.checkpoint()

    await storage.put(OBJECT, chunks())


async def put_many(storage: TieredStorage) -> None:
    async with storage.put_many([PutRequest(other(n), LARGE if n % 2 else SMALL) for n in range(4)]) as results:
        assert [result.error async for result in results] == [None] * 4


async def get_many(storage: TieredStorage) -> None:
    async with storage.get_many([OBJECT, other(1)] * 2) as results:
        assert [result.error async for result in results] == [None] * 4


async def delete_many(storage: TieredStorage) -> None:
    async with storage.delete_many([OBJECT, other(1)]) as results:
        assert [result.error async for result in results] == [None] * 2


async def stream(storage: TieredStorage) -> None:
    stored = await storage.get(OBJECT)
    if stored is not None:
        async with stored:
            async for _ in stored:
                pass


async def list_all(storage: TieredStorage) -> None:
    assert len([entry.object_id async for entry in storage.list()]) <= 6


OPERATIONS: dict[str, Operation] = {
    "small put": lambda storage: storage.put(OBJECT, SMALL), "large put": put_in_chunks, "delete": lambda storage: storage.delete(OBJECT),
    "get": stream, "list": list_all, "put_many": put_many, "get_many": get_many, "delete_many": delete_many,
}


@on_asyncio
@pytest.mark.parametrize(("by", "first"), [
    ("task", 0), ("scope", 1), pytest.param("task", 1, marks=pytest.mark.night), pytest.param("scope", 0, marks=pytest.mark.night),
])  # fmt: skip
@pytest.mark.parametrize("name", OPERATIONS)
async def test_operation_that_is_cancelled_at_any_turn_of_the_loop_ends_cancelled_and_leaves_the_store_whole(
    tmp_path: Path, name: str, by: str, first: int
) -> None:
    """`first`: at this turn, and at every second one after it."""
    operation, scope = OPERATIONS[name], anyio.CancelScope()

    async def run() -> None:
        if by == "task":
            await operation(storage)
            return
        with scope:
            await operation(storage)
            return
        raise asyncio.CancelledError  # as the scope did

    whole = False
    async with open_storage(embedded(tmp_path)) as storage:
        for turns in range(first, 30, 2):
            await storage.put(OBJECT, LARGE)
            scope = anyio.CancelScope()
            task = asyncio.ensure_future(run())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel() if by == "task" else scope.cancel()
            with anyio.fail_after(30):
                await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None, task
            assert await read(storage) in (None, SMALL, LARGE, LARGE * 4)
        for number in range(4):
            await storage.delete(other(number))
        await storage.delete(OBJECT)
        whole = await is_left_alone(storage, tmp_path)
    assert whole


# --- the end of a store ------------------------------------------------------------------------------


def slow_deletes(storage: TieredStorage, may_end: anyio.Event) -> anyio.Event:
    """Holds the clean-up of changes up; the event: one has begun."""
    real, begun = storage._tiers.long_term.delete, anyio.Event()

    async def delete(name: str) -> None:
        begun.set()
        await may_end.wait()
        await real(name)

    storage._tiers.long_term.delete = delete  # type: ignore[method-assign]
    return begun


@on_asyncio
@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("ends", [True, False])
async def test_store_that_is_cancelled_again_and_again_while_it_closes_keeps_to_its_budget(
    tmp_path: Path, explicit: bool, ends: bool
) -> None:
    store = embedded(tmp_path).store.model_copy(update={"drain_budget_s": 60.0 if ends else 0.5, "answer_budget_s": 1800.0})
    settings, ready, may_end = embedded(tmp_path).model_copy(update={"store": store}), anyio.Event(), anyio.Event()

    async def run() -> None:
        async with open_storage(settings) as storage:
            await storage.put(OBJECT, LARGE)
            begun = slow_deletes(storage, may_end)
            await storage.put(OBJECT, SMALL)
            await begun.wait()
            ready.set()
            if explicit:
                await storage.aclose()
            await anyio.sleep_forever()

    task = asyncio.ensure_future(run())
    await ready.wait()
    for _ in range(5):
        task.cancel()
        await anyio.sleep(0.02)
    if ends:
        may_end.set()
    with anyio.fail_after(120):  # less than the clean-up may take, where nothing stops it
        await asyncio.wait([task])
    assert task.cancelled()
    assert (files(tmp_path) == []) is ends, "what takes less than the budget is completed"


@on_asyncio
async def test_bulk_call_whose_tasks_are_cancelled_by_name_says_so(tmp_path: Path) -> None:
    """As programs do that cancel all tasks but their own."""
    reading = anyio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        reading.set()
        await anyio.sleep_forever()
        yield b""

    async def run(storage: TieredStorage) -> None:
        before = asyncio.all_tasks()
        async with storage.put_many([PutRequest(OBJECT, stuck())]) as results:
            await reading.wait()
            for task in asyncio.all_tasks() - before:
                task.cancel()
            async for _ in results:
                pass

    whole = False
    async with open_storage(embedded(tmp_path)) as storage:
        with pytest.raises(CancelledElsewhereError):
            await run(storage)
        whole = await read(storage) is None and await is_left_alone(storage, tmp_path)
    assert whole


@on_asyncio
async def test_store_whose_tasks_are_cancelled_by_name_ends_its_block_with_an_error(tmp_path: Path) -> None:
    async def run() -> None:
        before = asyncio.all_tasks()
        async with open_storage(embedded(tmp_path)) as storage:
            await storage.put(OBJECT, SMALL)
            for task in asyncio.all_tasks() - before:
                task.cancel()
            await anyio.sleep_forever()

    with pytest.raises(CancelledElsewhereError):
        await run()
