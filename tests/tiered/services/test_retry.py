"""`retry`: what it repeats, for how long, and what it gives up with."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from changelog.base.errors import CorruptRecordError, LeaseLostError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.observe import Event, Observer
from changelog.base.runtime import SystemRuntime
from emulators.world.runtime import SimulatedRuntime
from tiered.errors import AtCapacityError, ServiceAwayError
from tiered.services.retry import retry

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": MockClock(autojump_threshold=0)}


def failing(*errors: Exception) -> tuple[Callable[[], Awaitable[str]], list[int]]:
    """A call that fails with these, and then succeeds."""
    left, calls = list(errors), [0]

    async def call() -> str:
        calls[0] += 1
        if left:
            raise left.pop(0)
        return "done"

    return call, calls


async def test_unavailable_and_unconfirmed_calls_are_repeated() -> None:
    call, calls = failing(UnavailableError("a"), UnconfirmedError("b"), UnavailableError("c"))
    assert await retry(call, SimulatedRuntime(seed=1), 30) == "done"
    assert calls == [4]


@pytest.mark.parametrize("error", [LeaseLostError("gone"), CorruptRecordError("bad"), ValueError("bug")])
async def test_other_errors_are_raised_at_once(error: Exception) -> None:
    call, calls = failing(error)
    with pytest.raises(type(error)):
        await retry(call, SimulatedRuntime(seed=1), 30)
    assert calls == [1]


@pytest.mark.parametrize("kind", [UnavailableError, UnconfirmedError])
@pytest.mark.parametrize("before", [[], [UnavailableError("away")], [UnconfirmedError("no answer"), UnavailableError("away")]])
async def test_what_is_refused_until_somebody_changes_something_is_told_at_once(kind: type[TieredError], before: list[Exception]) -> None:
    call, calls = failing(*before, kind("no such key").refusing())
    with pytest.raises(kind, match="no such key"):
        await retry(call, SimulatedRuntime(seed=1), 30)
    assert calls == [len(before) + 1]


async def test_what_is_refused_and_may_pass_by_itself_is_tried_again() -> None:
    call, calls = failing(*[UnavailableError("it is a standby").refusing(may_pass=True)] * 3)
    assert await retry(call, SimulatedRuntime(seed=1), 30) == "done"
    assert calls == [4]


async def test_error_that_is_not_to_be_repeated_ends_the_repeating() -> None:
    call, calls = failing(UnavailableError("a"), UnconfirmedError("b"))
    with pytest.raises(UnconfirmedError):
        await retry(call, SimulatedRuntime(seed=1), 30, repeat=UnavailableError)
    assert calls == [2]


@pytest.mark.parametrize("unsent", [AtCapacityError("full"), ServiceAwayError("away")], ids=["full", "away"])
async def test_a_call_that_was_not_confirmed_is_not_forgotten_because_the_last_one_was_not_sent(unsent: UnavailableError) -> None:
    call, _ = failing(UnconfirmedError("no answer"), *[unsent] * 1000)
    with pytest.raises(UnconfirmedError, match="no answer"):
        await retry(call, SimulatedRuntime(seed=1), 30)


async def test_budget_ends_with_the_last_error() -> None:
    runtime = SimulatedRuntime(seed=1)
    call, calls = failing(*[UnavailableError(str(n)) for n in range(1000)])
    with pytest.raises(UnavailableError):
        await retry(call, runtime, 30)
    assert 5 < calls[0] < 100
    assert runtime.monotonic() <= 30


async def test_a_budget_that_ends_within_a_call_quotes_the_latest_error() -> None:
    calls = 0

    async def call() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            await anyio.sleep_forever()
        raise UnavailableError(f"no {calls}: a proxy answered")

    with pytest.raises(UnconfirmedError, match=r"^no answer within 30 s; before that: no 2: a proxy answered$"):
        await retry(call, SimulatedRuntime(seed=1), 30)


async def test_each_repeated_call_is_told_with_the_error_before_it() -> None:
    told: list[tuple[Event, str]] = []

    class RetryEvents(Observer):
        def count(self, event: Event, kind: str = "", amount: int = 1) -> None:
            told.append((event, kind))

    call, calls = failing(UnavailableError("a"), UnconfirmedError("b"), UnavailableError("c"))
    assert await retry(call, SimulatedRuntime(seed=1), 30, observer=RetryEvents()) == "done"
    assert calls[0] == 4
    assert told == [(Event.RETRIED, name) for name in ("UnavailableError", "UnconfirmedError", "UnavailableError")]


async def test_call_that_never_answers_is_unconfirmed_when_the_budget_is_spent() -> None:
    with pytest.raises(UnconfirmedError, match="30 s"):
        await retry(anyio.sleep_forever, SimulatedRuntime(seed=1), 30)


async def test_a_call_that_ends_by_itself_within_the_budget_has_no_scope_around_it_until_it_has_failed() -> None:
    deadlines: list[float] = []
    began_at = anyio.current_time()

    async def call() -> str:
        deadlines.append(anyio.current_effective_deadline() - began_at)
        if len(deadlines) == 2:
            await anyio.sleep_forever()
        raise UnavailableError("no")

    with pytest.raises(UnconfirmedError, match="30 s"):
        await retry(call, SystemRuntime(), 30, call_s_max=10)
    assert deadlines == [math.inf, pytest.approx(30, abs=1)]


async def test_a_call_that_may_take_longer_than_the_budget_has_a_scope_from_the_beginning() -> None:
    with pytest.raises(UnconfirmedError, match="30 s"):
        await retry(anyio.sleep_forever, SimulatedRuntime(seed=1), 30, call_s_max=30)
