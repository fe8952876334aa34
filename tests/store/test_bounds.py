"""Nothing is unbounded: operations, the queue, waiting, closing. And cancelling is safe."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from trio.testing import MockClock

from tests.given.tapped_store import LARGE, OBJECT, SMALL, TappedWorld, Withheld, fails, hangs, pieces, read
from tiered import AtCapacityError, InvalidRequestError, Metadata, ObjectId, StoredObject, TieredStorage, TimeToIdle, UnavailableError

pytestmark = pytest.mark.anyio


def other(number: int) -> ObjectId:
    return ObjectId.create("attachments", f"key{number}")


# --- capacity --------------------------------------------------------------------------------------


async def test_operation_beyond_the_queue_is_refused_at_once(world: TappedWorld) -> None:
    world.rows.hooks["put_inline"] = world.slow(2)
    async with world.store(store={"concurrency_max": 2, "queue_max": 1}) as storage, anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(storage.put, other(number), SMALL)
        await world.runtime.sleep(1)
        before = world.runtime.monotonic()
        with pytest.raises(AtCapacityError, match="queue_max"):
            await storage.put(OBJECT, SMALL)
        assert world.runtime.monotonic() == before


async def test_operation_that_waits_too_long_is_refused(world: TappedWorld) -> None:
    world.rows.hooks["put_inline"] = world.slow(20)
    async with world.store(store={"concurrency_max": 1, "queue_wait_s": 5}) as storage, anyio.create_task_group() as tasks:
        tasks.start_soon(storage.put, other(1), SMALL)
        await world.runtime.sleep(1)
        with pytest.raises(AtCapacityError, match="5 s"):
            await storage.put(OBJECT, SMALL)
        assert world.runtime.monotonic() == pytest.approx(6)


async def test_operation_keeps_its_slot_until_its_clean_up_is_done(world: TappedWorld) -> None:
    async with world.store(store={"concurrency_max": 1}) as storage:
        await storage.put(OBJECT, LARGE)
        world.blobs.hooks["delete"] = world.slow(3)
        await storage.put(OBJECT, SMALL)
        assert world.runtime.monotonic() == 0, "the caller does not wait for the clean-up"
        await storage.put(other(1), SMALL)
        assert world.runtime.monotonic() == 3, "the next operation does"


async def test_failed_and_cancelled_operations_give_their_slots_back(world: TappedWorld) -> None:
    async with world.store(store={"concurrency_max": 1}) as storage:
        for _ in range(5):
            with pytest.raises(InvalidRequestError):
                await storage.put(OBJECT, [b"x", "no bytes"])  # type: ignore[list-item]
            with anyio.move_on_after(1):
                await storage.put(OBJECT, pieces(SMALL, 10))
        await storage.put(OBJECT, SMALL)


async def test_readers_are_not_kept_out_by_writers_who_wait_for_the_changelog(world: TappedWorld) -> None:
    async def write(number: int) -> None:
        with suppress(UnavailableError):
            await storage.put(other(number), LARGE)

    async with world.store(store={"concurrency_max": 2, "queue_max": 10}) as storage:
        await storage.put(OBJECT, SMALL)
        world.log.hooks["record"] = fails(UnavailableError("the log is down"))
        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(write, number)
            for _ in range(20):
                await world.runtime.sleep(1)
                assert await read(storage) == SMALL


async def test_touches_are_bounded_and_never_hold_up_reading_or_closing(world: TappedWorld) -> None:
    async with world.store(store={"concurrency_max": 3, "queue_max": 0}) as storage:
        for number in range(50):
            await storage.put(other(number), SMALL, Metadata(expiration=TimeToIdle(timedelta(hours=1))))
        await world.runtime.sleep(1800)
        world.rows.hooks["touch"] = hangs
        for number in range(50):
            assert await read(storage, other(number)) == SMALL
        await world.runtime.sleep(1)
        assert world.calls.count("touch") == 3
        closed_at = world.runtime.monotonic()
    assert world.runtime.monotonic() == closed_at + 10


async def test_upload_whose_abort_never_answers_gives_its_slot_back(world: TappedWorld) -> None:
    async def open_upload(real: Any, *args: Any) -> Any:
        upload = await real(*args)
        upload.abort = anyio.sleep_forever
        return upload

    world.blobs.hooks["open_upload"] = open_upload
    async with world.store(store={"concurrency_max": 1, "queue_wait_s": 100}) as storage:
        with pytest.raises(InvalidRequestError):
            await storage.put(OBJECT, [LARGE, "no bytes"])  # type: ignore[list-item]
        await storage.put(OBJECT, SMALL)
    assert await world.is_clean() and world.blobs.target.uploads == {}


# --- cancellation ----------------------------------------------------------------------------------


async def test_caller_cancelled_while_it_uploads_leaves_nothing(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        with anyio.move_on_after(10) as scope:
            await storage.put(OBJECT, pieces(LARGE, 100))
        assert scope.cancelled_caught
        assert await read(storage) == SMALL
    assert await world.is_clean()
    assert "swap" not in world.calls


@pytest.mark.parametrize("anyio_backend", ["asyncio", ("trio", {"clock": MockClock(autojump_threshold=0)})])
@pytest.mark.parametrize("before", [None, SMALL, LARGE])
@pytest.mark.parametrize("takes_no_notice", [None, "read", "open_upload", "record", "swap"])
async def test_large_put_cancelled_at_any_turn_of_the_loop_ends_cancelled_or_done_and_leaves_nothing(
    world: TappedWorld, before: bytes | None, takes_no_notice: str | None
) -> None:
    """Whether or not a backend heeds a cancellation at once: those that work in threads do not."""
    async def shielded(real: Any, *args: Any, **named: Any) -> Any:
        with anyio.CancelScope(shield=True):
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            return await real(*args, **named)

    async def put(scope: anyio.CancelScope, payload: bytes) -> None:
        with scope:
            await storage.put(OBJECT, payload)
            done.append(payload)

    done: list[bytes] = []
    for backend in (world.rows, world.blobs, world.log):
        backend.hooks |= {takes_no_notice: shielded} if takes_no_notice else {}
    async with world.store() as storage:
        for turns in range(40):
            await (storage.delete(OBJECT) if before is None else storage.put(OBJECT, before))
            done.clear()
            scope, payload = anyio.CancelScope(), LARGE + b"%d" % turns
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(put, scope, payload)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
            await storage._writes.wait_idle()  # a swap that was sent is carried through
            stored = await storage.get(OBJECT)
            found = None if stored is None else await stored.read()
            assert done == [payload] or scope.cancelled_caught
            assert found == payload or (not done and found == before)
        assert done, "the last ones were not in time to cancel anything"
    assert await world.is_clean()


async def test_caller_cancelled_during_the_swap_detaches_and_the_change_is_carried_through(world: TappedWorld) -> None:
    world.rows.hooks["swap"] = world.slow(10)
    async with world.store() as storage:
        with anyio.move_on_after(5) as scope:
            await storage.put(OBJECT, LARGE)
        assert scope.cancelled_caught
        assert await read(storage) is None
        await world.runtime.sleep(6)
        assert await read(storage) == LARGE
    assert await world.is_clean()


async def test_inline_put_whose_caller_was_cancelled_cannot_land_over_a_later_one(world: TappedWorld) -> None:
    sent: list[Any] = []

    async def lost_in_the_network(real: Any, *args: Any) -> Any:
        if not sent:
            sent.append((real, args))
            await world.runtime.sleep(1000)
        return await real(*args)

    world.rows.hooks["put_inline"] = lost_in_the_network
    async with world.store() as storage:
        with anyio.move_on_after(1):
            await storage.put(OBJECT, SMALL)
        await world.runtime.sleep(1)
        await storage.put(OBJECT, b"later")
        (real, args), = sent
        assert not await real(*args)
        assert await read(storage) == b"later"


async def test_inline_put_cancelled_while_it_is_settled_cannot_land_over_a_later_one(world: TappedWorld) -> None:
    withheld = Withheld()

    async def slow(real: Any, *args: Any) -> Any:
        world.rows.hooks.clear()
        await world.runtime.sleep(10)
        raise UnavailableError("busy")

    world.rows.hooks |= {"put_inline": withheld, "settle": slow}
    async with world.store() as storage:
        with anyio.move_on_after(5):
            await storage.put(OBJECT, SMALL)
        await storage.put(OBJECT, b"later")
        await world.runtime.sleep(1)
        assert await withheld.arrive() == [False]
        assert await read(storage) == b"later"


async def test_payload_may_hold_a_scope_of_its_own_between_its_chunks(world: TappedWorld) -> None:
    async def payload() -> AsyncIterator[bytes]:
        with anyio.fail_after(60):
            async with anyio.create_task_group():
                for _ in range(10):
                    yield SMALL * 10

    async with world.store() as storage:
        await storage.put(OBJECT, payload())
        assert await read(storage) == SMALL * 100


async def test_payloads_own_exception_group_comes_out_whole(world: TappedWorld) -> None:
    group = ExceptionGroup("mine", [ValueError("a"), KeyError("b")])

    async with world.store() as storage:
        with pytest.raises(ExceptionGroup) as caught:
            await storage.put(OBJECT, pieces(LARGE, group))
    assert caught.value is group


async def test_scope_around_the_whole_store_is_cancelled_and_changes_still_land(world: TappedWorld) -> None:
    world.rows.hooks["swap"] = world.slow(3)
    with anyio.move_on_after(2):
        async with world.store() as storage:
            await storage.put(OBJECT, LARGE)
    assert world.runtime.monotonic() == 3
    assert await world.is_clean()
    assert len(await world.blob_names()) == 1


# --- closing ---------------------------------------------------------------------------------------


async def test_closing_waits_for_clean_up_and_leaves_nothing(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        world.blobs.hooks["delete"] = world.slow(5)
        await storage.put(OBJECT, SMALL)
        assert await storage.aclose() == []
    assert await world.is_clean()


async def test_closing_says_what_it_leaves_to_recovery_when_its_budget_is_spent(world: TappedWorld) -> None:
    async def hangs(real: Any, *args: Any) -> Any:
        await world.runtime.sleep(10_000)

    async with world.store(store={"drain_budget_s": 7}) as storage:
        await storage.put(OBJECT, LARGE)
        world.blobs.hooks["delete"] = hangs
        result = await storage.put(OBJECT, SMALL)
        assert await storage.aclose() == [result.revision]
        assert world.runtime.monotonic() == 7
        await world.runtime.sleep(1)  # closing cancels its own work, not its caller's
    world.blobs.hooks.clear()
    await world.runtime.sleep(60)
    assert (await world.recovery().run_once()).recovered == 1
    assert await world.is_clean()


async def test_closing_waits_for_operations_that_were_accepted_and_still_read_their_payload_or_queue(world: TappedWorld) -> None:
    async with anyio.create_task_group() as tasks, world.store(store={"concurrency_max": 1, "queue_wait_s": 100}) as storage:
        tasks.start_soon(storage.put, OBJECT, pieces(SMALL, 5, LARGE))
        await world.runtime.sleep(1)
        tasks.start_soon(storage.put, other(1), LARGE)
        await world.runtime.sleep(1)
    assert await world.is_clean()
    assert len(await world.blob_names()) == 2


@pytest.mark.parametrize("call", ["renew", "delete", "touch"])
async def test_unforeseen_error_of_what_runs_beside_ends_neither_the_block_nor_the_drain(
    world: TappedWorld, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE, Metadata(expiration=TimeToIdle(timedelta(hours=1))))
        for backend in (world.rows, world.blobs, world.log):
            backend.hooks[call] = fails(RuntimeError("can't start new thread"))
        await world.runtime.sleep(1800)
        assert await storage.get(OBJECT) is not None
        await storage.put(OBJECT, pieces(LARGE, 25))  # long enough for two renewals, and no more than the expiry
        await storage.put(OBJECT, SMALL)
        left = await storage.aclose()
        await anyio.lowlevel.checkpoint()
        assert "can't start new thread" in caplog.text
        assert left == []


async def test_operation_that_takes_off_after_the_budget_of_the_drain_is_told_so(world: TappedWorld) -> None:
    async def put(storage: TieredStorage) -> None:
        with pytest.raises(UnavailableError, match="the storage was closed"):
            await storage.put(OBJECT, pieces(SMALL, 50, LARGE))

    async with anyio.create_task_group() as tasks, world.store(store={"drain_budget_s": 7}) as storage:
        tasks.start_soon(put, storage)
        await world.runtime.sleep(1)
        assert await storage.aclose() == []
        assert await storage.aclose() == [], "once: the budget is spent"
        assert world.runtime.monotonic() == 8
        await world.runtime.sleep(100)
    assert await world.is_clean()
    assert not world.blobs.target.uploads, "no entry names it, so nobody else will give it up"


async def test_a_storage_that_was_never_entered_has_nothing_to_drain(world: TappedWorld) -> None:
    assert await TieredStorage(world.tiers, world.log, world.runtime, world.settings()).aclose() == []


async def test_storage_is_entered_once_and_takes_no_work_when_it_is_closed(world: TappedWorld) -> None:
    async with world.store() as storage:
        with pytest.raises(InvalidRequestError, match="entered once"):
            await storage.__aenter__()
        await storage.put(OBJECT, SMALL)
        await storage.aclose()
        with pytest.raises(InvalidRequestError, match="not open"):
            await storage.get(OBJECT)
    with pytest.raises(InvalidRequestError, match="entered once"):
        await storage.__aenter__()
    with pytest.raises(InvalidRequestError, match="not open"):
        await storage.get(OBJECT)
    assert await storage.aclose() == []


@pytest.mark.parametrize(("operation", "told"), [
    (lambda storage: storage.put(OBJECT, LARGE), UnavailableError), (lambda storage: storage.delete(OBJECT), UnavailableError),
    (lambda storage: storage.head(OBJECT), None), (lambda storage: storage.get(OBJECT), None),
])  # fmt: skip
async def test_operation_that_outlives_its_store_is_told_so_or_completed(
    world: TappedWorld, operation: Callable[[TieredStorage], Awaitable[Any]], told: type[Exception] | None
) -> None:
    go_on, ended = anyio.Event(), list[Exception | None]()

    async def reads_late(real: Any, *args: Any, **named: Any) -> Any:
        row = await real(*args, **named)
        await go_on.wait()
        return row

    async def begin(storage: TieredStorage) -> None:
        try:
            found = await operation(storage)
            ended.append(None)
            if isinstance(found, StoredObject):
                await found.aclose()
        except Exception as error:  # noqa: BLE001 - judged below
            ended.append(error)

    async with anyio.create_task_group() as tasks:
        async with world.store() as storage:
            await storage.put(OBJECT, LARGE, Metadata(expiration=TimeToIdle(timedelta(hours=1))))
            await world.runtime.sleep(1800)
            world.rows.hooks["read"] = reads_late
            tasks.start_soon(begin, storage)
            await world.runtime.sleep(1)
        go_on.set()
    [error] = ended
    assert error is None if told is None else type(error) is told and "the storage was closed" in str(error)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_error_of_the_callers_own_block_comes_out_plain(world: TappedWorld, cancelled: bool) -> None:
    async def block(scope: anyio.CancelScope) -> None:
        async with world.store() as storage:
            await storage.put(OBJECT, LARGE)
            if cancelled:
                scope.cancel()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), anyio.CancelScope() as scope:
        await block(scope)
