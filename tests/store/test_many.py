"""Many operations in one call: each item's own result, never more at once than asked for, and nothing left behind."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import anyio
import pytest

from tests.given.tapped_store import LARGE, OBJECT, SMALL, TappedWorld, head_of, pieces, read
from tiered import (
    AtCapacityError,
    Bulk,
    InvalidRequestError,
    ItemResult,
    LoadedObject,
    Metadata,
    ObjectId,
    PutRequest,
    PutResult,
    TieredStorage,
    UnavailableError,
)

pytestmark = pytest.mark.anyio


def other(number: int) -> ObjectId:
    return ObjectId.create("attachments", f"key{number}")


def puts(numbers: Iterable[int], payload: bytes = SMALL) -> list[PutRequest]:
    """No generator: those are read in a thread, which simulated time knows nothing of.

    See tests/tiered/embedded/test_many.py.
    """
    return [PutRequest(other(number), payload) for number in numbers]


def others(numbers: Iterable[int]) -> list[ObjectId]:
    return [other(number) for number in numbers]


async def asynchronous(requests: Iterable[Any]) -> AsyncIterator[Any]:
    for request in requests:
        yield request


async def collect(bulk: Bulk[Any, Any]) -> list[ItemResult[Any, Any]]:
    async with bulk as results:
        return [result async for result in results]


class Gauge:
    """A hook that takes a second, and knows how many were in it at once."""

    def __init__(self, world: TappedWorld) -> None:
        self.now = self.most = 0
        self._world = world

    async def __call__(self, real: Any, *args: Any, **named: Any) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self._world.runtime.sleep(1)
            return await real(*args, **named)
        finally:
            self.now -= 1


# --- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [iter, asynchronous, list, tuple])
async def test_every_item_has_its_own_result_from_any_iterable(world: TappedWorld, given: Callable[[Any], Any]) -> None:
    requests = [PutRequest(other(n), (LARGE if n % 2 else SMALL) + b"%d" % n, Metadata(custom={"n": str(n)})) for n in range(50)]
    async with world.store() as storage:
        put = await collect(storage.put_many(given(requests)))
        assert sorted(result.position for result in put) == list(range(50))
        for result in put:
            assert result.request is requests[result.position] and result.error is None
            head = await head_of(storage, result.request.object_id)
            assert head.revision == result.value.revision

        ids = [request.object_id for request in requests] + [OBJECT]
        got = await collect(storage.get_many(given(ids)))
        values = {result.request: result.value for result in got}
        assert values.pop(OBJECT) is None
        assert {path: loaded.payload for path, loaded in values.items()} == {each.object_id: each.payload for each in requests}
        assert all(loaded.head.metadata.custom == {"n": path.key.removeprefix("key")} for path, loaded in values.items())

        heads = {result.request: result.value for result in await collect(storage.head_many(given(ids), checksum=True))}
        assert heads == {object_id: await storage.head(object_id, checksum=True) for object_id in ids} and heads[OBJECT] is None

        deleted = await collect(storage.delete_many(given(ids)))
        assert [result.value for result in deleted] == [None] * 51
        assert [entry.object_id async for entry in storage.list()] == []
    assert await world.is_clean()


async def test_nothing_to_do_has_no_results(world: TappedWorld) -> None:
    async with world.store() as storage:
        assert await collect(storage.put_many([])) == []
        assert await collect(storage.get_many(asynchronous([]))) == []
        assert await collect(storage.head_many(asynchronous([]))) == []
        assert await collect(storage.delete_many(iter(()))) == []
    assert world.calls == []


async def test_results_come_as_they_complete_so_a_large_put_holds_up_no_small_ones(world: TappedWorld) -> None:
    requests = [PutRequest(OBJECT, pieces(LARGE, 100)), *puts(range(20))]
    async with world.store() as storage, storage.put_many(requests, concurrency=2) as results:
        order = []
        async for result in results:
            order.append(result.position)
            assert world.runtime.monotonic() == (100 if result.request.object_id == OBJECT else 0)
    assert order == [*range(1, 21), 0]


async def test_one_items_failure_ends_no_other(world: TappedWorld) -> None:
    async def refuse_one(real: Any, path: str, *args: Any) -> Any:
        if path == other(3).path:
            raise UnavailableError("no")
        return await real(path, *args)

    world.rows.hooks["put_inline"] = refuse_one
    broken, wrong = PutRequest(OBJECT, pieces(LARGE, ZeroDivisionError("mine"))), PutRequest(OBJECT, "text")  # type: ignore[arg-type]
    requests = [*puts(range(6)), broken, wrong, *puts(range(6, 10))]
    async with world.store(store={"answer_budget_s": 5}) as storage:
        results = await collect(storage.put_many(requests))
        assert len(results) == 12
        errors = {result.position: type(result.error) for result in results if result.error is not None}
        assert errors == {3: UnavailableError, 6: ZeroDivisionError, 7: InvalidRequestError}
        [failed] = [result for result in results if result.position == 6]
        with pytest.raises(ZeroDivisionError, match="mine"):
            _ = failed.value
        assert len([entry.object_id async for entry in storage.list()]) == 9
    assert await world.is_clean()


async def test_wrong_item_is_a_result_that_names_it(world: TappedWorld) -> None:
    requests: list[Any] = [PutRequest(other(0), SMALL), (other(1), SMALL), PutRequest("key", SMALL), None]  # type: ignore[arg-type]
    async with world.store() as storage:
        results = {result.position: result for result in await collect(storage.put_many(requests))}
        assert results[0].error is None
        assert [str(results[n].error) for n in (1, 3)] == [
            "item 1 is of type tuple, not PutRequest", "item 3 is of type NoneType, not PutRequest",
        ]
        assert "pass an ObjectId, not 'key'" in str(results[2].error)
        assert all(isinstance(results[n].error, InvalidRequestError) for n in (1, 2, 3))
        [wrong] = await collect(storage.get_many(["key"]))  # type: ignore[list-item]
        [also_wrong] = await collect(storage.head_many(["key"]))  # type: ignore[list-item]
        assert isinstance(also_wrong.error, InvalidRequestError) and str(also_wrong.error) == str(wrong.error)
        assert str(wrong.error) == "item 0 is of type str, not ObjectId"


async def test_wrong_call_is_refused_at_once(world: TappedWorld) -> None:
    async with world.store(store={"concurrency_max": 8}) as storage:
        for wrong in (OBJECT, "a/objects/key", b"key", 7):
            with pytest.raises(InvalidRequestError, match="pass an iterable or async iterable of ObjectId"):
                storage.delete_many(wrong)  # type: ignore[arg-type]
        for concurrency in (0, 9, 1.5, "8", True):
            with pytest.raises(InvalidRequestError, match=r"from 1 to 6 \(three quarters of store.concurrency_max\)"):
                storage.put_many([], concurrency=concurrency)  # type: ignore[arg-type]
        for bytes_max in (-1, None, True):
            with pytest.raises(InvalidRequestError, match="payload_bytes_max"):
                storage.get_many([], payload_bytes_max=bytes_max)  # type: ignore[arg-type]


async def test_block_is_needed_and_entered_once(world: TappedWorld) -> None:
    async with world.store() as storage:
        bulk = storage.put_many(puts(range(3)))
        with pytest.raises(InvalidRequestError, match="inside the block only"):
            await anext(bulk)
        async with bulk as results:
            await anext(results)
        with pytest.raises(InvalidRequestError, match="inside the block only"):
            await anext(results)
        with pytest.raises(InvalidRequestError, match="entered once"):
            await bulk.__aenter__()


async def test_results_show_no_payload(world: TappedWorld) -> None:
    async with world.store() as storage:
        [put] = await collect(storage.put_many([PutRequest(OBJECT, SMALL)]))
        [got] = await collect(storage.get_many([OBJECT]))
    assert OBJECT.key in repr(put) and OBJECT.key in repr(got)
    assert SMALL.decode() not in f"{put!r} {put.request!r} {got!r} {got.value!r}", "a result's own repr is cut short"


# --- order -----------------------------------------------------------------------------------------


async def test_last_put_of_one_id_wins_however_long_the_others_take(world: TappedWorld) -> None:
    async with world.store() as storage:
        for payload in (SMALL, LARGE):
            requests = [
                PutRequest(OBJECT, pieces(SMALL, 50)), PutRequest(other(1), SMALL), PutRequest(OBJECT, pieces(LARGE, 20)),
                PutRequest(OBJECT, payload),
            ]
            results = await collect(storage.put_many(requests))
            assert [result.position for result in results if result.request.object_id == OBJECT] == [0, 2, 3]
            assert all(result.error is None for result in results)
            assert await read(storage) == payload
    assert await world.is_clean()


async def test_put_of_an_id_that_failed_does_not_block_the_next_of_it(world: TappedWorld) -> None:
    async with world.store() as storage:
        requests = [PutRequest(OBJECT, [b"x", "no bytes"]), PutRequest(OBJECT, SMALL)]  # type: ignore[list-item]
        results = await collect(storage.put_many(requests, concurrency=1))
        assert [type(result.error) for result in results] == [InvalidRequestError, type(None)]
        assert await read(storage) == SMALL


async def test_one_id_is_read_as_often_as_asked_and_at_once(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        world.rows.hooks["read"] = gauge = Gauge(world)
        results = await collect(storage.get_many([OBJECT] * 10, concurrency=5))
        assert [result.value.payload for result in results] == [SMALL] * 10
        assert gauge.most == 5


# --- bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 7])
async def test_never_more_are_under_way_than_asked_for(world: TappedWorld, concurrency: int) -> None:
    async with world.store() as storage:
        world.rows.hooks |= {"put_inline": (put := Gauge(world))}
        await collect(storage.put_many(puts(range(30)), concurrency=concurrency))
        world.rows.hooks |= {"read": (got := Gauge(world)), "delete_inline": (deleted := Gauge(world))}
        await collect(storage.get_many(others(range(30)), concurrency=concurrency))
        world.rows.hooks |= {"read": (looked := Gauge(world))}
        await collect(storage.head_many(others(range(30)), concurrency=concurrency))
        await collect(storage.delete_many(others(range(30)), concurrency=concurrency))
    assert put.most == got.most == looked.most == deleted.most == concurrency


@pytest.mark.parametrize(("concurrency_max", "expected"), [(64, 16), (1000, 16), (20, 5), (1, 1)])
async def test_unless_told_a_bulk_call_leaves_most_of_the_store_to_others(world: TappedWorld, concurrency_max: int, expected: int) -> None:
    async with world.store(store={"concurrency_max": concurrency_max}) as storage:
        world.rows.hooks["put_inline"] = gauge = Gauge(world)
        await collect(storage.put_many(puts(range(50))))
    assert gauge.most == expected


async def test_requests_are_read_as_results_are_taken(world: TappedWorld) -> None:
    pulled = itertools.count()
    endless = (PutRequest(other(next(pulled)), SMALL) for _ in itertools.count())
    async with world.store() as storage, storage.put_many(asynchronous(endless), concurrency=4) as results:
        await world.runtime.sleep(10)
        assert len([entry.object_id async for entry in storage.list()]) == 4
        for _ in range(3):
            await anext(results)
        await world.runtime.sleep(10)
        assert next(pulled) == 7


async def test_result_that_nobody_takes_holds_no_slot_of_the_store(world: TappedWorld) -> None:
    async with world.store(store={"concurrency_max": 1, "queue_max": 0}) as storage, storage.put_many(puts(range(5))) as results:
        await world.runtime.sleep(1)
        await storage.put(OBJECT, SMALL)
        async for result in results:
            assert result.error is None
            await world.runtime.sleep(1)
            await storage.put(OBJECT, SMALL)


@pytest.mark.parametrize("calls", [2, 3], ids=["the queue is free", "another call waits"])
async def test_items_that_wait_leave_the_queue_to_others_and_wait_on_where_these_are_refused(world: TappedWorld, calls: int) -> None:
    results: list[ItemResult[Any, Any]] = []
    settings = {"concurrency_max": 2, "queue_max": 1, "queue_wait_s": 1000}
    async with world.store(store=settings) as storage, anyio.create_task_group() as tasks:
        world.rows.hooks["put_inline"] = world.slow(20)
        for number in range(calls):
            tasks.start_soon(storage.put, other(number), SMALL)
        await world.runtime.sleep(1)
        world.rows.hooks.clear()
        tasks.start_soon(collect_into, results, storage.put_many(puts(range(10, 20)), concurrency=2))
        await world.runtime.sleep(1)
        with pytest.raises(AtCapacityError) if calls == 3 else nullcontext():
            await storage.put(OBJECT, SMALL)
            assert world.runtime.monotonic() == 20
        await world.runtime.sleep(21)
        assert [result.error for result in results] == [None] * 10

        world.rows.hooks["put_inline"] = world.slow(20)
        for number in range(3):
            tasks.start_soon(storage.put, other(number), SMALL)
        await world.runtime.sleep(1)
        with pytest.raises(AtCapacityError, match="queue_max"):  # the bulk call is over: the queue is as long as ever
            await storage.put(OBJECT, SMALL)


@pytest.mark.parametrize("name", ["put_many", "delete_many", "get_many", "head_many"])
async def test_item_waits_longer_than_any_queue(world: TappedWorld, name: str) -> None:
    settings = {"concurrency_max": 1, "queue_max": 0, "queue_wait_s": 5, "answer_budget_s": 1000}
    async with world.store(store=settings) as storage, anyio.create_task_group() as tasks:
        world.rows.hooks |= dict.fromkeys(("read", "put_inline"), world.slow(500))
        tasks.start_soon(storage.get, OBJECT)
        tasks.start_soon(storage.put, OBJECT, SMALL)
        await world.runtime.sleep(1)
        world.rows.hooks.clear()
        requests = puts(range(5)) if name == "put_many" else others(range(5))
        assert [result.error for result in await collect(getattr(storage, name)(requests))] == [None] * 5
        assert world.runtime.monotonic() == 500


async def test_items_that_were_cancelled_while_they_waited_do_not_keep_the_store_from_closing(world: TappedWorld) -> None:
    async with world.store(store={"concurrency_max": 1}) as storage, anyio.create_task_group() as tasks:
        world.rows.hooks["put_inline"] = world.slow(20)
        tasks.start_soon(storage.put, OBJECT, SMALL)
        await world.runtime.sleep(1)
        world.rows.hooks.clear()
        with anyio.move_on_after(5):
            await collect(storage.put_many(puts(range(5))))
        await world.runtime.sleep(100)
        assert await storage.aclose() == []
        assert world.runtime.monotonic() == 106


async def test_clean_up_of_a_bulk_call_counts_so_that_it_cannot_crowd_others_out(world: TappedWorld) -> None:
    results: list[ItemResult[Any, Any]] = []
    settings = {"concurrency_max": 4, "queue_max": 0, "drain_budget_s": 1000, "answer_budget_s": 180}
    async with world.store(store=settings) as storage, anyio.create_task_group() as tasks:
        await collect(storage.put_many(puts(range(10), LARGE)))
        world.blobs.hooks["delete"] = world.slow(50)
        tasks.start_soon(collect_into, results, storage.put_many(puts(range(10)), concurrency=3))
        await world.runtime.sleep(1)
        assert len(results) == 3, "answered, and their clean-up holds the slots"
        await storage.put(OBJECT, SMALL)
        assert world.runtime.monotonic() == 1
    assert len(results) == 10
    assert await world.is_clean()


async def test_payloads_own_capacity_error_is_its_items_and_is_not_repeated(world: TappedWorld) -> None:
    begun = []

    async def copied_from_elsewhere() -> AsyncIterator[bytes]:
        begun.append(1)
        yield SMALL
        raise AtCapacityError("the other store is full")

    async with world.store() as storage:
        [result] = await collect(storage.put_many([PutRequest(OBJECT, copied_from_elsewhere())]))
        assert isinstance(result.error, AtCapacityError) and "other store" in str(result.error)
        assert begun == [1]
        assert await read(storage) is None


# --- reading ---------------------------------------------------------------------------------------


class Connections:
    """A hook on `open` of blobs: how many readers are open."""

    def __init__(self, world: TappedWorld, seconds: float = 0) -> None:
        self.opened = self.now = 0
        self._world, self._seconds = world, seconds

    async def __call__(self, real: Any, *args: Any) -> Any:
        reader = await real(*args)
        chunks, aclose, closed = reader.chunks, reader.aclose, False

        async def slow_chunks() -> AsyncIterator[bytes]:
            await self._world.runtime.sleep(self._seconds)
            async for chunk in chunks():
                yield chunk

        async def counted_aclose() -> None:
            nonlocal closed
            self.now -= not closed
            closed = True
            await aclose()

        reader.chunks, reader.aclose = slow_chunks, counted_aclose
        self.opened += 1
        self.now += 1
        return reader


async def test_object_above_the_limit_is_an_error_that_says_so_and_is_not_read(world: TappedWorld) -> None:
    async with world.store() as storage:
        await collect(storage.put_many([PutRequest(other(1), LARGE), PutRequest(other(2), SMALL * 4), PutRequest(other(3), SMALL)]))
        world.blobs.hooks["open"] = connections = Connections(world, seconds=100)
        got = await collect(storage.get_many(others((1, 2, 3)), payload_bytes_max=len(SMALL)))
        results = {result.request: result for result in got}
        assert str(results[other(1)].error) == (
            f"{other(1)} has 5000 bytes, more than payload_bytes_max (5): stream it with get, or raise that"
        )
        assert isinstance(results[other(2)].error, InvalidRequestError)
        assert results[other(3)].value.payload == SMALL
        assert (connections.opened, connections.now, world.runtime.monotonic()) == (1, 0, 0)


async def test_every_blob_that_was_opened_is_closed_also_when_the_block_is_left(world: TappedWorld) -> None:
    async with world.store() as storage:
        await collect(storage.put_many(puts(range(20), LARGE)))
        world.blobs.hooks["open"] = connections = Connections(world, seconds=1)
        async with storage.get_many(others(range(20)), concurrency=6) as results:
            loaded = (await anext(results)).value
            assert isinstance(loaded, LoadedObject) and loaded.payload == LARGE
            await anext(results)
            await world.runtime.sleep(0.5)
            assert 0 < connections.now <= 6
        assert connections.now == 0 and connections.opened < 20


# --- ends ------------------------------------------------------------------------------------------


async def collect_into(results: list[ItemResult[Any, Any]], bulk: Bulk[Any, Any]) -> None:
    async with bulk:
        async for result in bulk:
            results.append(result)


async def test_error_of_the_requests_comes_plain_after_the_results_of_all_that_was_begun(world: TappedWorld) -> None:
    cause, mine = KeyError("cause"), ValueError("mine")

    def requests() -> Iterator[PutRequest]:
        yield PutRequest(other(0), pieces(SMALL, 10))
        yield PutRequest(other(1), SMALL)
        raise mine from cause

    async with world.store() as storage:
        async with storage.put_many(asynchronous(requests())) as results:
            begun = [await anext(results) for _ in range(2)]
            with pytest.raises(ValueError, match="mine") as caught:
                await anext(results)
            assert caught.value is mine and mine.__cause__ is cause
            assert [result async for result in results] == []
        assert [(result.position, result.error) for result in begun] == [(1, None), (0, None)]
        assert await read(storage, other(0)) == SMALL


async def test_leaving_early_cancels_what_is_under_way_and_closes_what_was_read_from(world: TappedWorld) -> None:
    closed = []

    async def payload(number: int) -> AsyncIterator[bytes]:
        try:
            yield LARGE
            if number:
                await anyio.sleep_forever()
        finally:
            closed.append(number)

    async def requests() -> AsyncIterator[PutRequest]:
        try:
            for number in itertools.count():
                yield PutRequest(other(number), payload(number))
        finally:
            closed.append(-1)

    async with world.store(store={"concurrency_max": 3}) as storage:
        async with storage.put_many(requests(), concurrency=3) as results:
            async for result in results:
                assert result.position == 0
                await world.runtime.sleep(1)
                break
        assert sorted(closed) == [-1, 0, 1, 2, 3]
        for number in range(3):
            await storage.put(other(number), LARGE)  # the slots are free again
    assert await world.is_clean()
    assert world.blobs.target.uploads == {}


async def test_cancelling_ends_all_that_is_under_way(world: TappedWorld) -> None:
    async with world.store() as storage:
        with anyio.move_on_after(5) as scope:
            await collect(storage.put_many((PutRequest(other(n), pieces(LARGE, 1000)) for n in range(50)), concurrency=5))
        assert scope.cancelled_caught
        assert world.runtime.monotonic() == 5
    assert await world.is_clean()
    assert "swap" not in world.calls


@pytest.mark.parametrize("cancelled", [False, True])
async def test_error_of_the_callers_own_block_comes_out_plain(world: TappedWorld, cancelled: bool) -> None:
    async def block(storage: TieredStorage, scope: anyio.CancelScope) -> None:
        async with storage.put_many(PutRequest(other(n), pieces(LARGE, 1000)) for n in range(5)):
            await world.runtime.sleep(1)
            if cancelled:
                scope.cancel()
            raise ZeroDivisionError

    async with world.store() as storage:
        with pytest.raises(ZeroDivisionError), anyio.CancelScope() as scope:
            await block(storage, scope)
    assert await world.is_clean()


@pytest.mark.parametrize("where", ["payload", "requests"])
async def test_interrupt_ends_all_and_comes_out_plain(world: TappedWorld, where: str) -> None:
    class ForeignInterrupt(BaseException):
        pass

    async def requests() -> AsyncIterator[PutRequest]:
        yield PutRequest(other(1), pieces(LARGE, 1000))
        if where == "payload":
            yield PutRequest(OBJECT, pieces(LARGE, 1, ForeignInterrupt()))
            await anyio.sleep_forever()
        await world.runtime.sleep(1)
        raise ForeignInterrupt

    async with world.store() as storage:
        with pytest.raises(ForeignInterrupt):
            await collect(storage.put_many(requests()))
        assert world.runtime.monotonic() == 1
    assert await world.is_clean()


async def test_waiting_for_one_result_can_be_given_up_without_losing_it(world: TappedWorld) -> None:
    async with world.store() as storage, storage.put_many([PutRequest(OBJECT, pieces(SMALL, 10))]) as results:
        with anyio.move_on_after(1) as scope:
            await anext(results)
        assert scope.cancelled_caught
        assert [result.error async for result in results] == [None]


async def test_requests_may_hold_a_scope_of_their_own_between_two(world: TappedWorld) -> None:
    async def requests() -> AsyncIterator[PutRequest]:
        with anyio.fail_after(60):
            async with anyio.create_task_group():
                for request in puts(range(10)):
                    yield request

    async with world.store() as storage:
        assert len(await collect(storage.put_many(requests(), concurrency=2))) == 10


async def test_closing_the_store_lets_items_finish_that_were_begun_and_refuses_the_rest(world: TappedWorld) -> None:
    async with world.store() as storage, storage.put_many(
        [PutRequest(other(n), pieces(SMALL, 5)) for n in range(6)], concurrency=2
    ) as results:
        await world.runtime.sleep(1)
        assert await storage.aclose() == []
        assert world.runtime.monotonic() == 5
        errors = {result.position: result.error async for result in results}
    assert errors.pop(0) is None and errors.pop(1) is None
    assert all("not open" in str(error) for error in errors.values()) and len(errors) == 4


async def test_closing_the_store_waits_for_an_item_that_waits_for_the_clean_up_of_another(world: TappedWorld) -> None:
    for _ in range(10):
        async with world.store() as storage:
            await collect(storage.put_many(puts(range(2), LARGE)))
            world.blobs.hooks["delete"] = world.slow(5)
            async with storage.put_many(puts(range(2)), concurrency=1) as results:
                assert (await anext(results)).error is None
                await world.runtime.sleep(1)
                assert await storage.aclose() == []
                assert (await anext(results)).error is None
        world.blobs.hooks.clear()
    assert await world.is_clean()


async def test_results_that_another_task_waits_for_do_not_seem_complete_when_the_block_is_left(world: TappedWorld) -> None:
    async with world.store() as storage, anyio.create_task_group() as tasks:
        async def take(results: Bulk[PutRequest, PutResult]) -> None:
            with pytest.raises(InvalidRequestError, match="inside the block only"):
                [result async for result in results]

        async with storage.put_many([PutRequest(OBJECT, SMALL), PutRequest(OBJECT, pieces(60, b"x"))]) as results:
            tasks.start_soon(take, results)
            await anyio.wait_all_tasks_blocked()
