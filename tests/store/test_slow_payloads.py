"""Callers whose payloads come slowly, or not at all. They keep nobody out, and they are bounded."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.given.tapped_store import LARGE, OBJECT, ON_BOTH, SMALL, TappedWorld, pieces, read
from tiered import AtCapacityError, InvalidRequestError, Metadata, ObjectId, PutRequest

pytestmark = pytest.mark.anyio
ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])
SLOTS = {"concurrency_max": 4, "queue_max": 100, "payloads_max": 20, "payload_idle_s": None}


def other(number: int) -> ObjectId:
    return ObjectId.create("attachments", f"key{number}")


async def slow(first: bytes, more: anyio.Event) -> AsyncIterator[bytes]:
    yield first
    await more.wait()
    yield b"rest"


async def at_once(payload: bytes) -> AsyncIterator[bytes]:
    yield payload


# --- slots -----------------------------------------------------------------------------------------


@ON_BOTH
@pytest.mark.parametrize("first", [SMALL, LARGE])
async def test_more_slow_payloads_than_slots_kept_out_all_other_writes(world: TappedWorld, first: bytes) -> None:
    more = anyio.Event()
    async with world.store(store=SLOTS) as storage, anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(storage.put, other(number), slow(first, more))
        await anyio.wait_all_tasks_blocked()
        for payload in (SMALL, LARGE):
            await storage.put(OBJECT, payload)
            await storage.put(OBJECT, at_once(payload))
        await storage.update_metadata(OBJECT, lambda metadata: replace(metadata, origin="me"))
        await storage.copy(OBJECT, other(99))
        await storage.delete(OBJECT)
        more.set()
    assert world.calls.count("put_inline") + world.calls.count("swap") >= 12
    async with world.store() as storage:
        for number in range(12):
            assert await read(storage, other(number)) == first + b"rest"
    assert await world.is_clean()


async def test_slow_payloads_of_one_bulk_call_kept_out_the_others(world: TappedWorld) -> None:
    more = anyio.Event()
    async with world.store(store=SLOTS) as storage, AsyncExitStack() as calls:
        for call in range(3):
            requests = [PutRequest(other(10 * call + number), slow(LARGE, more)) for number in range(3)]
            await calls.enter_async_context(storage.put_many(requests, concurrency=3))
        await anyio.wait_all_tasks_blocked()
        async with storage.put_many([PutRequest(OBJECT, SMALL)]) as results:
            assert [result.error async for result in results] == [None]
    assert await world.is_clean(), "leaving the blocks cancelled the puts"


@pytest.mark.parametrize("waits_in", ["progress", "change"])
async def test_a_slow_function_of_the_callers_kept_out_all_other_writes(world: TappedWorld, waits_in: str) -> None:
    more = anyio.Event()

    async def progress(so_far: int, total: int | None) -> None:
        await more.wait()

    async def change(metadata: Metadata) -> Metadata:
        await more.wait()
        return replace(metadata, origin="me")

    async with world.store(store=SLOTS) as storage:
        for number in range(12):
            await storage.put(other(number), LARGE)
        async with anyio.create_task_group() as tasks:
            for number in range(12):
                if waits_in == "change":
                    tasks.start_soon(storage.update_metadata, other(number), change)
                else:
                    tasks.start_soon(partial(storage.put, other(number), LARGE, progress=progress))
            await anyio.wait_all_tasks_blocked()
            await storage.put(OBJECT, SMALL)
            more.set()
    assert await world.is_clean()


@pytest.mark.slow
@ON_BOTH
async def test_a_slow_put_that_ends_is_cleaned_up_in_a_slot(world: TappedWorld) -> None:
    """Otherwise changes could pile up whose clean-up falls behind."""
    may_end = anyio.Event()

    async def held(real: Any, *args: Any) -> Any:
        await may_end.wait()
        return await real(*args)

    async with world.store(store={**SLOTS, "concurrency_max": 1}) as storage:
        async with anyio.create_task_group() as beside:
            async with anyio.create_task_group() as tasks:
                for number in range(5):
                    tasks.start_soon(storage.put, other(number), slow(LARGE, anyio.Event()))
                await anyio.wait_all_tasks_blocked()
                open_uploads = len(world.blobs.target.uploads)
                world.rows.hooks["put_inline"] = held
                beside.start_soon(storage.put, OBJECT, SMALL)
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
            await anyio.wait_all_tasks_blocked()
            assert len(world.blobs.target.uploads) == open_uploads == 5, "no slot is free"
            may_end.set()
        await storage.put(other(9), SMALL)
        assert await storage.aclose() == []
    assert await world.is_clean() and not world.blobs.target.uploads


# --- bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [SMALL, LARGE])
async def test_open_payloads_are_bounded_and_leave_what_is_in_memory_alone(world: TappedWorld, first: bytes) -> None:
    more = anyio.Event()
    async with world.store(store={**SLOTS, "queue_max": 0, "payloads_max": 3}) as storage, anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(storage.put, other(number), slow(first, more))
        await anyio.wait_all_tasks_blocked()
        begun = []

        async def payload() -> AsyncIterator[bytes]:
            begun.append(True)
            yield SMALL

        with pytest.raises(AtCapacityError, match="3 payloads are open and 0 wait; shed load, try again later, or raise") as full:
            await storage.put(OBJECT, payload())
        assert full.value.retry_after_s is None and not begun, "no payload has ended yet, so nothing is known"
        await storage.put(OBJECT, SMALL)
        more.set()


async def test_items_of_a_bulk_call_wait_for_a_place_and_leave_some_to_others(world: TappedWorld) -> None:
    more = anyio.Event()
    async with world.store(store={**SLOTS, "payloads_max": 4}) as storage, anyio.create_task_group() as tasks:
        done: list[Any] = []

        async def bulk(first: int) -> None:
            async with storage.put_many([PutRequest(other(first + n), slow(SMALL, more)) for n in range(3)], concurrency=3) as results:
                done.extend([result.error async for result in results])

        tasks.start_soon(bulk, 0)
        tasks.start_soon(bulk, 10)
        await anyio.wait_all_tasks_blocked()
        await storage.put(OBJECT, at_once(SMALL))
        more.set()
    assert done == [None] * 6


async def test_a_payload_is_not_read_in_vain_when_the_store_is_full(world: TappedWorld) -> None:
    begun = []

    async def payload() -> AsyncIterator[bytes]:
        begun.append(True)
        yield SMALL

    world.rows.hooks["put_inline"] = world.slow(5)
    async with world.store(store={"concurrency_max": 1, "queue_max": 0}) as storage, anyio.create_task_group() as tasks:
        tasks.start_soon(storage.put, other(1), SMALL)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(AtCapacityError, match="1 operations are under way"):
            await storage.put(OBJECT, payload())
    assert not begun


# --- stalled ---------------------------------------------------------------------------------------


class Scoped:
    """An iterator, and no generator, that opens a scope in one chunk and leaves it open: nobody closes it."""

    def __init__(self, first: bytes) -> None:
        self._first = first
        self.scope = anyio.CancelScope()

    def __aiter__(self) -> Scoped:
        return self

    async def __anext__(self) -> bytes:
        if first := self._first:
            self._first = b""
            self.scope.__enter__()
            return first
        await anyio.sleep_forever()
        raise AssertionError


async def begun_before(first: bytes) -> AsyncIterator[bytes]:
    with anyio.CancelScope():
        yield first
        yield first
        await anyio.sleep_forever()


async def empty_chunks(first: bytes) -> AsyncIterator[bytes]:
    yield first
    while True:
        await anyio.lowlevel.checkpoint()
        yield b""


async def makes_another_error_of_it(first: bytes) -> AsyncIterator[bytes]:
    yield first
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        raise ValueError("the connection broke") from None


async def begins_none(_: bytes) -> AsyncIterator[bytes]:
    await anyio.sleep_forever()
    yield b""


@ON_ASYNCIO
@pytest.mark.parametrize("payload", [
    lambda first: slow(first, anyio.Event()), begins_none, Scoped, begun_before, empty_chunks, makes_another_error_of_it,
])  # fmt: skip
@pytest.mark.parametrize("first", [SMALL, LARGE])
async def test_a_payload_that_stalled_was_waited_for_without_an_end(
    world: TappedWorld, first: bytes, payload: Callable[[bytes], AsyncIterator[bytes]]
) -> None:
    async with world.store(store={"payload_idle_s": 0.02, "payloads_max": 1}) as storage:
        await storage.put(OBJECT, b"before")
        given = payload(first)
        with anyio.fail_after(30):
            if payload is begun_before:
                await anext(given)
            with pytest.raises(InvalidRequestError, match=r"gave no byte for 0\.02 s .*store\.payload_idle_s"):
                await storage.put(OBJECT, given)
            if isinstance(given, Scoped):
                given.scope.__exit__(None, None, None)
        await storage.put(other(1), at_once(b"the place is free"))
        assert await read(storage) == b"before"
        await anyio.lowlevel.checkpoint()
    assert await world.is_clean() and not world.blobs.target.uploads


@ON_ASYNCIO
async def test_who_is_cancelled_while_its_payload_stalls_is_cancelled(world: TappedWorld) -> None:
    async with world.store(store={"payload_idle_s": 30}) as storage:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(storage.put, OBJECT, slow(LARGE, anyio.Event()))
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
    assert scope.cancelled_caught and await world.is_clean()


@ON_ASYNCIO
async def test_a_payloads_own_timeout_stays_its_own(world: TappedWorld) -> None:
    async with world.store(store={"payload_idle_s": 30}) as storage:
        with pytest.raises(TimeoutError, match="mine"):
            await storage.put(OBJECT, pieces(LARGE, TimeoutError("mine")))


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_an_iterator_and_a_pipe_that_stall_are_ended(world: TappedWorld, tmp_path: Path) -> None:
    go_on = Event()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    os.write(writer, SMALL)

    def iterator() -> Iterator[bytes]:
        yield SMALL
        go_on.wait(30)

    try:
        async with world.store(store={"payload_idle_s": 0.02, "payloads_max": 1}) as storage:
            for payload in (iterator(), pipe):
                with anyio.fail_after(30), pytest.raises(InvalidRequestError, match="gave no byte"):
                    await storage.put(OBJECT, payload)
            assert await storage.head(OBJECT) is None
    finally:
        go_on.set()
        os.close(writer)


@ON_BOTH
async def test_a_payload_that_comes_slowly_is_waited_for(world: TappedWorld) -> None:
    async def payload() -> AsyncIterator[bytes]:
        for _ in range(5):
            await anyio.sleep(0.01)
            yield LARGE

    async with world.store(store={"payload_idle_s": 5}) as storage:
        await storage.put(OBJECT, payload())
        assert await read(storage) == LARGE * 5


