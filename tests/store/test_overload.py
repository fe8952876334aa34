"""A store under more load than it can bear, and one whose service goes away under load. In virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from itertools import count

import anyio
import pytest

from benchmarks.overload import ANSWER_S, CAPACITY_PER_S, OBJECT, OURS, QUEUE, Load, at
from tests.given.virtual_time import simulated
from tiered.object_id import ObjectId
from tiered.settings import StoreSettings

LONGEST_S = ANSWER_S + QUEUE / CAPACITY_PER_S + ANSWER_S
"""Who is admitted waits for those before it in the queue, and then for its own answer."""


@pytest.mark.slow
@simulated
async def test_three_times_the_capacity_does_not_slow_down_what_is_admitted_and_is_over_at_once() -> None:
    load = Load(OURS)
    async with load.storage:
        await load.arrive(0.5, 2)
        await load.arrive(3.0, 6)
        over_at = anyio.current_time()
        await load.arrive(0.5, 2)
    early, late = load.answered(3, 5.5), load.answered(5.5, 8)
    assert len(early) / 2.5 > 0.95 * CAPACITY_PER_S and len(late) / 2.5 > 0.95 * CAPACITY_PER_S, "no collapse"
    assert max(*early, *late) <= LONGEST_S
    assert at(late, 0.5) == pytest.approx(at(early, 0.5), rel=0.1) and at(late, 0.99) == pytest.approx(at(early, 0.99), rel=0.1), "flat"
    refused = [call for call in load.calls if call.error]
    assert {(call.error, call.took_s) for call in refused} == {("AtCapacityError", 0.0)}, "at once, and for no other reason"
    hints = [error.retry_after_s or 0.0 for error in load.refusals]
    assert min(hints) > 0.05 and max(hints) < 0.3, "in about so many seconds the queue of now is gone"
    afterwards = [call for call in load.calls if call.began_s > over_at + 0.5]
    assert not any(call.error for call in afterwards) and at(load.answered(over_at + 0.5), 0.5) == pytest.approx(ANSWER_S)


@pytest.mark.slow
@simulated
async def test_calls_fail_at_once_while_a_service_is_away_and_succeed_within_seconds_after_it() -> None:
    load = Load(StoreSettings(concurrency_max=OURS.concurrency_max, queue_max=10_000, queue_wait_s=60))
    rows = load.rows
    async with load.storage, anyio.create_task_group() as tasks:
        tasks.start_soon(load.arrive, 0.5, 60.0, 100.0)
        await anyio.sleep(5)
        rows.is_away = True
        await anyio.sleep(40)
        rows.is_away = False
        back_at = anyio.current_time()
    away = [call for call in load.calls if 5 <= call.began_s < back_at - 1]
    assert {call.error for call in away} == {"ServiceAwayError"}
    assert max(call.took_s for call in away) < 20.0, "the first ones waited"
    later = [call for call in away if call.began_s >= 25]
    assert at(sorted(call.took_s for call in later), 0.95) == 0.0
    assert max(call.took_s for call in later) <= 2 * ANSWER_S, "those that tried the service"
    sent = [moment for moment in rows.calls if 25 <= moment < back_at]
    assert len(sent) <= (back_at - 25) / 2 + 1, "one try every 2 s"
    after = [call for call in load.calls if call.began_s > back_at + 2.1]
    assert after and not any(call.error for call in after)
    assert at(load.answered(back_at + 2.1), 0.99) <= LONGEST_S


@pytest.mark.slow
@simulated
async def test_single_operations_find_slots_beside_bulk_work_and_bulk_work_goes_on_beside_them() -> None:
    load, read = Load(StoreSettings(concurrency_max=8, queue_max=16, bulk_concurrency_max=6)), 0

    async def bulk() -> None:
        nonlocal read
        everything = (ObjectId.create("load", f"{number}") for number in count())
        async with load.storage.get_many(_each(everything), concurrency=6) as results:
            async for _ in results:
                read += 1

    async with load.storage, anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(bulk)
        await load.arrive(0.2, 5)
        alone, read = read, 0
        assert at(load.answered(1), 0.99) <= 3 * ANSWER_S and not any(call.error for call in load.calls)
        assert alone / 5 == pytest.approx(0.75 * CAPACITY_PER_S, rel=0.1), "all that bulk work may hold"
        await load.arrive(3.0, 5)
        assert read / 5 > 0.4 * CAPACITY_PER_S, "they take turns"
        assert len(load.answered(6, 10)) / 4 > 0.4 * CAPACITY_PER_S
        tasks.cancel_scope.cancel()


@simulated
async def test_a_caller_whose_time_is_up_sends_nothing() -> None:
    load = Load(OURS)
    async with load.storage:
        with anyio.move_on_after(0) as scope:
            await load.storage.head(OBJECT)
        assert scope.cancelled_caught and load.rows.calls == []
        async with anyio.create_task_group() as tasks:
            for _ in range(OURS.concurrency_max):
                tasks.start_soon(load.storage.head, OBJECT)
            await anyio.sleep(ANSWER_S / 2)
            with anyio.move_on_after(ANSWER_S / 4) as scope:
                await load.storage.head(OBJECT)
            assert scope.cancelled_caught and len(load.rows.calls) == OURS.concurrency_max, "it ended in the queue"


async def _each(items: Iterable[ObjectId]) -> AsyncIterator[ObjectId]:
    for item in items:
        yield item
