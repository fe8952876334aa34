"""A store under more load than it can bear, and one whose service goes away under load. In virtual time.

    service    rows that answer in 50 ms while at most 8 calls are under way; more calls share what it can do
    store      it lets 8 operations run and 16 wait
    callers    come at random moments, whatever became of those before, and wait 5 s at most
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import anyio
import pytest

from changelog.base.errors import UnavailableError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from changelog.noop import NoopChangeLog
from emulators.world.runtime import SimulatedRuntime
from emulators.world.services import SimulatedBlobs, SimulatedRows
from tests.given.virtual_time import simulated
from tiered.errors import AtCapacityError
from tiered.object_id import ObjectId
from tiered.services.backends import Row, Tiers
from tiered.settings import Settings, StoreSettings
from tiered.storage import TieredStorage

AT_ONCE, ANSWER_S = 8, 0.05
CAPACITY_PER_S = AT_ONCE / ANSWER_S
QUEUE = 16
PATIENCE_S = 5.0
OURS = StoreSettings(concurrency_max=AT_ONCE, queue_max=QUEUE)
OBJECT = ObjectId.create("load", "object")
LONGEST_S = ANSWER_S + QUEUE / CAPACITY_PER_S + ANSWER_S
"""Who is admitted waits for those before it in the queue, and then for its own answer."""


class CongestedRows(SimulatedRows):
    """Rows of a service that slows down when too much is asked of it. `is_away` True: it answers nothing.

    `calls`: the moments of all calls, in seconds.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.is_away = False
        self.calls: list[float] = []
        self._under_way = 0

    async def read(self, path: str, *, marks: ChangeId | bool = False) -> Row:
        self.calls.append(anyio.current_time())
        self._under_way += 1
        try:
            await anyio.sleep(ANSWER_S * max(1.0, self._under_way / AT_ONCE))
        finally:
            self._under_way -= 1
        if self.is_away:
            raise UnavailableError("no route to host")
        return await super().read(path, marks=marks)


@dataclass(frozen=True, slots=True)
class TimedCall:
    """What became of one call. Times are seconds. `error`: the name of its error; empty: it was answered."""

    began_s: float
    took_s: float
    error: str


class Load:
    """Callers of one store, and what became of their calls."""

    def __init__(self, store: StoreSettings, seed: int = 1) -> None:
        self.runtime = SimulatedRuntime(seed)
        self.rows = CongestedRows(self.runtime)
        self.calls: list[TimedCall] = []
        self.refusals: list[AtCapacityError] = []
        self._chance = random.Random(seed)
        tiers = Tiers(self.rows, SimulatedBlobs(self.runtime))
        settings = Settings(directory=Path("simulated"), changelog="noop", store=store)
        self.storage = TieredStorage(tiers, NoopChangeLog(), self.runtime, settings)

    async def arrive(self, factor: float, seconds: float, patience_s: float = PATIENCE_S) -> None:
        """Lets callers come for so long: `factor` times as many as the service can answer. Waits for the last one."""
        ends_at = anyio.current_time() + seconds
        async with anyio.create_task_group() as callers:
            while anyio.current_time() < ends_at:
                callers.start_soon(self._call, patience_s)
                await anyio.sleep(self._chance.expovariate(factor * CAPACITY_PER_S))

    async def _call(self, patience_s: float) -> None:
        began_s, error = anyio.current_time(), ""
        try:
            with anyio.fail_after(patience_s):
                await self.storage.head(OBJECT)
        except TimeoutError:
            error = TimeoutError.__name__
        except UnavailableError as failed:
            error = type(failed).__name__
            if isinstance(failed, AtCapacityError):
                self.refusals.append(failed)
        self.calls.append(TimedCall(began_s, anyio.current_time() - began_s, error))

    def answered(self, from_s: float = 0.0, until_s: float = float("inf")) -> list[float]:
        """Returns how long the calls took that began in this time and were answered (seconds, in order)."""
        return sorted(call.took_s for call in self.calls if not call.error and from_s <= call.began_s < until_s)


def at(took_s: Sequence[float], share: float) -> float:
    """Returns the time within which this share of the calls was answered, in seconds. No call: nan."""
    return took_s[min(len(took_s) - 1, int(share * len(took_s)))] if took_s else float("nan")


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
    load, read = Load(StoreSettings(concurrency_max=8, queue_max=16)), 0

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
