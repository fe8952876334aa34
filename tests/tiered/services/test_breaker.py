"""The breaker: when a service counts as away, what is refused then, and what ends it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from changelog.base.errors import (
    ConfigurationError,
    CorruptRecordError,
    InvalidRequestError,
    LeaseLostError,
    TieredError,
    UnavailableError,
    UnconfirmedError,
)
from changelog.base.observe import Event, Observer
from changelog.base.own_waits import own_wait
from emulators.world.runtime import SimulatedRuntime
from tiered.errors import RangeNotSatisfiableError, ServiceAwayError
from tiered.services.backends import Tiers
from tiered.services.breaker import GIVEN_UP_S, HIGH_VOLUME, LONG_TERM, TRIED_EVERY_S, TRY_MAX_S, Breaker
from tiered.services.guarded import GuardedServices
from tiered.services.retry import retry, retry_read
from tiered.settings import StoreSettings
from tiered.testing.blobs import MemoryBlobs
from tiered.testing.rows import MemoryRows

pytestmark = pytest.mark.anyio

AWAY_AFTER_S = 10.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": MockClock(autojump_threshold=0)}


class BreakerEvents(Observer):
    def __init__(self) -> None:
        self.refused: list[str] = []
        self.away_now = 0

    def count(self, event: Event, kind: str = "", amount: int = 1) -> None:
        if event is Event.FAILED_FAST:
            self.refused.append(kind)

    def away(self, service: str, stores: int) -> None:
        self.away_now += stores


class FailingService:
    """A service that answers, or fails with `error`. `calls`: when it was called."""

    def __init__(self, after_s: float = AWAY_AFTER_S) -> None:
        self.told = BreakerEvents()
        self.error: Exception | None = None
        self.takes_s = 0.0
        self.calls: list[float] = []
        self.runtime = SimulatedRuntime(seed=1)
        self.breaker = Breaker(HIGH_VOLUME, after_s, self.runtime, "store-1", self.told)

    async def call(self) -> str:
        self.calls.append(anyio.current_time())
        await anyio.sleep(self.takes_s)
        if self.error is not None:
            raise self.error
        return "answer"

    async def fails(self, kind: type[Exception] = UnavailableError) -> None:
        with pytest.raises(kind) as raised:
            await self.breaker.call(self.call)
        assert raised.type is kind

    async def go_away(self, error: Exception | None = None) -> None:
        """Fails often enough, for long enough."""
        self.error = error or UnavailableError("no route to host")
        for _ in range(3):
            await self.fails(type(self.error))
            await anyio.sleep(AWAY_AFTER_S / 2)
        self.calls.clear()


@pytest.fixture
def service() -> FailingService:
    return FailingService()


async def test_a_service_that_answers_nothing_for_long_enough_is_away_and_then_calls_are_not_sent(
    service: FailingService, caplog: pytest.LogCaptureFixture
) -> None:
    await service.go_away()
    assert service.told.away_now == 1 and service.breaker.away_s == pytest.approx(15.0)
    await service.fails(ServiceAwayError)
    with pytest.raises(ServiceAwayError, match=r"nothing was sent, and it is tried again in 2\.0 s: no route") as refused:
        await service.breaker.call(service.call)
    assert len(service.calls) == 1, "the first tried it"
    text = str(refused.value)
    assert "the service of the rows (high_volume) has answered nothing for" in text and "since 2023-11-14T22:13:20Z;" in text
    assert refused.value.service == HIGH_VOLUME and refused.value.retry_after_s is not None
    assert 0 < refused.value.retry_after_s <= TRIED_EVERY_S
    assert [record.event for record in caplog.records] == ["service_unreachable"]  # type: ignore[attr-defined]


async def test_one_call_at_a_time_tries_it_and_an_answer_ends_it(service: FailingService, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await service.go_away()
    service.takes_s, told = 7.0, service.told
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.fails, ServiceAwayError)
        await anyio.wait_all_tasks_blocked()
        for _ in range(5):
            await service.fails(ServiceAwayError)
            await anyio.sleep(1)
    assert len(service.calls) == 1 and told.refused == [HIGH_VOLUME] * 5
    service.error, service.takes_s = None, 0.0
    assert await service.breaker.call(service.call) == "answer"
    assert service.breaker.away_s is None and told.away_now == 0
    assert await service.breaker.call(service.call) == "answer"
    assert [record.event for record in caplog.records] == ["service_unreachable", "service_healthy_again"]  # type: ignore[attr-defined]


async def test_tries_that_fail_at_once_come_every_two_seconds(service: FailingService) -> None:
    await service.go_away()
    for _ in range(100):
        await service.fails(ServiceAwayError)
        await anyio.sleep(0.1)
    assert 4 <= len(service.calls) <= 6


@pytest.mark.parametrize("error", [
    CorruptRecordError("damaged"), ConfigurationError("403"), RangeNotSatisfiableError("beyond", 5),
    InvalidRequestError("no").coded("400"),
])
async def test_a_refusal_is_an_answer(service: FailingService, error: Exception) -> None:
    await service.go_away()
    service.error = error
    await service.fails(type(error))
    assert service.breaker.away_s is None


@pytest.mark.parametrize("error", [LeaseLostError("lost"), InvalidRequestError("wrong"), ZeroDivisionError("bug")])
async def test_errors_about_something_else_tell_nothing_of_the_service(service: FailingService, error: Exception) -> None:
    await service.go_away(error)
    assert service.breaker.away_s is None
    await service.go_away()
    service.error = error
    await service.fails(type(error))
    assert service.breaker.away_s is not None


@pytest.mark.parametrize("kind", [UnavailableError, UnconfirmedError, ConfigurationError])
async def test_an_error_with_which_the_service_was_heard_ends_an_outage(service: FailingService, kind: type[TieredError]) -> None:
    await service.go_away()
    service.error = kind("429").coded("429", heard=True)
    with pytest.raises(TieredError):
        await service.breaker.call(service.call)
    assert service.breaker.away_s is None


@pytest.mark.parametrize("kind", [UnavailableError, UnconfirmedError, ConfigurationError])
async def test_an_error_before_the_service_was_asked_neither_begins_nor_ends_an_outage(
    service: FailingService, kind: type[TieredError]
) -> None:
    service.error = kind("there is no token").telling(heard=False)
    for _ in range(10):
        with pytest.raises(kind):
            await service.breaker.call(service.call)
        await anyio.sleep(AWAY_AFTER_S)
    assert service.breaker.away_s is None
    await service.go_away()
    service.error = kind("there is no token").telling(heard=False)
    with pytest.raises(TieredError):
        await service.breaker.call(service.call)
    assert service.breaker.away_s is not None


async def test_callers_who_leave_while_they_wait_for_this_process_tell_nothing(service: FailingService) -> None:
    async def wait_here(then_s: float) -> None:
        async with anyio.create_task_group() as tasks:  # a task of the call counts, too
            tasks.start_soon(anyio.sleep, 0)
            with own_wait():
                await anyio.sleep(AWAY_AFTER_S)
            await anyio.sleep(then_s)

    for left_s in (AWAY_AFTER_S / 2, AWAY_AFTER_S + GIVEN_UP_S / 2):
        for _ in range(5):
            with anyio.move_on_after(left_s):
                await service.breaker.call(lambda: wait_here(1000))
    assert service.breaker.away_s is None
    for _ in range(10):
        with anyio.move_on_after(AWAY_AFTER_S + 2 * GIVEN_UP_S):
            await service.breaker.note(lambda: wait_here(1000))
    assert service.breaker.away_s is not None, "after that wait the service was silent"


async def test_an_answer_between_failures_begins_the_time_anew(service: FailingService) -> None:
    for _ in range(4):
        service.error = UnavailableError("now and then")
        for _ in range(4):
            await service.fails()
            await anyio.sleep(2)
        service.error = None
        assert await service.breaker.call(service.call) == "answer"
    assert service.breaker.away_s is None


async def test_failures_that_are_far_apart_do_not_add_up(service: FailingService) -> None:
    service.error = UnavailableError("once an hour")
    for _ in range(10):
        await service.fails()
        await anyio.sleep(3600)
    assert service.breaker.away_s is None


@pytest.mark.parametrize("after_s", [0.1, 1.0, AWAY_AFTER_S])
async def test_calls_that_take_long_to_fail_add_up_also_if_they_come_one_after_the_other(after_s: float) -> None:
    service = FailingService(after_s)
    service.takes_s = 1000.0
    for _ in range(3):
        with pytest.raises(UnavailableError, match="no answer within 30 s"):
            await retry_read(lambda: service.breaker.call(service.call), service.runtime, 30)
        await anyio.sleep(after_s)
    assert service.breaker.away_s == pytest.approx(90 + 3 * after_s, abs=1)


async def test_callers_who_give_up_before_any_answer_count_too(service: FailingService) -> None:
    """Behind a firewall that drops packets nothing fails: each caller's own deadline ends its wait."""
    service.takes_s = 1000.0
    for _ in range(7):
        with anyio.move_on_after(GIVEN_UP_S + 0.5):
            await service.breaker.call(service.call)
    await service.fails(ServiceAwayError)


async def test_callers_who_leave_at_once_tell_nothing(service: FailingService) -> None:
    service.takes_s = 1000.0
    for _ in range(100):
        with anyio.move_on_after(GIVEN_UP_S / 2):
            await service.breaker.call(service.call)
    assert service.breaker.away_s is None


async def test_a_try_whose_caller_gives_up_makes_room_for_the_next(service: FailingService) -> None:
    await service.go_away()
    service.takes_s = 1000.0
    with anyio.move_on_after(TRIED_EVERY_S):
        await service.breaker.call(service.call)
    service.error, service.takes_s = None, 0.0
    assert await service.breaker.call(service.call) == "answer"


async def test_a_try_that_hangs_does_not_keep_a_service_away_that_is_back(service: FailingService) -> None:
    await service.go_away()
    service.error, service.takes_s = None, math.inf
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.breaker.call, service.call)
        await anyio.wait_all_tasks_blocked()
        service.takes_s = 0.0
        await anyio.sleep(TRY_MAX_S - 0.1)
        await service.fails(ServiceAwayError)
        await anyio.sleep(0.2)
        assert await service.breaker.call(service.call) == "answer"
        assert service.breaker.away_s is None
        tasks.cancel_scope.cancel()


async def test_a_try_that_hangs_makes_room_for_one_call_and_not_for_all(service: FailingService) -> None:
    await service.go_away()
    service.takes_s = math.inf
    async with anyio.create_task_group() as tasks:
        for seconds in range(60):
            if seconds % TRY_MAX_S == 0:
                tasks.start_soon(service.breaker.call, service.call)
                await anyio.wait_all_tasks_blocked()
            await service.fails(ServiceAwayError)
            await anyio.sleep(1)
        assert len(service.calls) == 60 / TRY_MAX_S
        tasks.cancel_scope.cancel()


async def test_what_settles_or_finishes_is_sent_in_any_case_and_its_answer_counts(service: FailingService) -> None:
    await service.go_away()
    for _ in range(3):
        with pytest.raises(UnavailableError):
            await service.breaker.note(service.call)
    assert len(service.calls) == 3
    service.error = None
    assert await service.breaker.note(service.call) == "answer"
    assert service.breaker.away_s is None


async def test_a_result_without_a_request_ends_no_outage(service: FailingService) -> None:
    await service.go_away()
    service.error = None
    assert await service.breaker.call(service.call, is_answer=lambda result: False) == "answer"
    await service.fails(ServiceAwayError)


async def test_the_first_callers_wait_and_the_others_fail_at_once(service: FailingService) -> None:
    service.error = UnavailableError("no route to host")
    waited: list[float] = []

    async def caller() -> None:
        began_at = anyio.current_time()
        with pytest.raises(UnavailableError):
            await retry_read(lambda: service.breaker.call(service.call), service.runtime, 30)
        waited.append(anyio.current_time() - began_at)

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(caller)
        await anyio.sleep(20)
        for _ in range(20):
            await caller()
    first, late = waited[:20], waited[20:]
    assert max(first) < 20.0 and max(late) < 0.2


def unconfirmed_then_away(service: FailingService) -> Callable[[], Awaitable[str]]:
    """A call that is sent and not answered. While it waits to be repeated, its service is found to be away."""
    def answers() -> Iterator[Callable[[], Awaitable[str]]]:
        async def first() -> str:
            await service.go_away()
            await service.fails(ServiceAwayError)  # the try
            raise UnconfirmedError("sent, and not answered")

        yield first
        while True:
            yield lambda: service.breaker.call(service.call)

    following = answers()
    return lambda: next(following)()


async def test_a_call_that_was_sent_before_is_never_told_as_not_sent(service: FailingService) -> None:
    with pytest.raises(UnconfirmedError, match="sent, and not answered"):
        await retry(unconfirmed_then_away(service), service.runtime, 30)


def services_of(observer: Observer, *, local: bool) -> GuardedServices:
    runtime = SimulatedRuntime(seed=1)
    tiers = Tiers(MemoryRows(runtime), MemoryBlobs(runtime), local=local)
    return GuardedServices(tiers, StoreSettings(), runtime, "store-1", observer)


async def test_files_of_this_machine_are_never_away() -> None:
    services = services_of(Observer(), local=True)

    async def full() -> None:
        raise UnavailableError("the disk is full")

    for _ in range(100):
        with pytest.raises(UnavailableError, match="the disk is full"):
            await services.blobs.call(full)
        await anyio.sleep(10)
    assert services.away == {}


async def test_a_closed_store_is_not_counted_among_those_that_miss_a_service() -> None:
    told = BreakerEvents()
    services = services_of(told, local=False)

    async def down() -> None:
        raise UnavailableError("down")

    for _ in range(3):
        with pytest.raises(UnavailableError):
            await services.blobs.call(down)
        await anyio.sleep(5)
    assert services.away == {LONG_TERM: 15.0} and told.away_now == 1
    services.close()
    assert services.away == {} and told.away_now == 0
    for _ in range(3):  # calls that were under way end only now
        with pytest.raises(UnavailableError):
            await services.blobs.note(down)
        await anyio.sleep(1)
    assert services.away == {} and told.away_now == 0
