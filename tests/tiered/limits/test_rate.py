"""The token bucket: how much passes, how long whoever is too early must wait, and that nobody waits for ever."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.limits.rate import TokenBucket


class HandClock:
    """A runtime whose time a test sets."""

    random = Random(1)

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def monotonic(self) -> float:
        return self.now_s

    def boot_time(self) -> float:
        return self.now_s

    def wall_ns(self) -> int:
        return round(self.now_s * 1e9)

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


RATES = st.floats(0.01, 1e6)


@given(RATES, st.floats(0.001, 100), st.lists(st.tuples(st.floats(0, 50), st.floats(0, 10)), max_size=60))
def test_never_more_passes_than_the_bucket_held_and_what_came_in_meanwhile(
    rate_per_s: float, burst_s: float, calls: list[tuple[float, float]]
) -> None:
    """Each call comes some time after the last one, and spends some bursts. Only the last one that passed is a debt."""
    clock, burst = HandClock(), max(1.0, rate_per_s * burst_s)
    bucket, passed, began_s = TokenBucket(clock, rate_per_s, rate_per_s * burst_s), 0.0, clock.now_s
    for after_s, bursts in calls:
        clock.now_s += after_s
        if bucket.wait_s() == 0:
            assert passed <= burst - 1 + (clock.now_s - began_s) * rate_per_s * (1 + 1e-6) + 1e-3, "it began within what was allowed"
            bucket.spend(bursts * burst)
            passed += bursts * burst


@given(RATES, st.floats(0.001, 100), st.floats(0, 1e6))
def test_who_waits_as_long_as_it_was_told_may_begin_whatever_was_spent_before(rate_per_s: float, burst_s: float, bursts: float) -> None:
    clock = HandClock()
    bucket = TokenBucket(clock, rate_per_s, rate_per_s * burst_s)
    bucket.spend(bursts * max(1.0, rate_per_s * burst_s))
    told_s = bucket.wait_s()
    clock.now_s += told_s * 0.99
    if told_s * rate_per_s > 0.001:  # less than that is rounded
        assert bucket.wait_s() > 0, "not before"
    clock.now_s += told_s * 0.01 + 1e-9
    assert bucket.wait_s() < 1e-9 + 1e-6 * told_s


def test_what_is_larger_than_the_bucket_passes_and_is_paid_for() -> None:
    clock = HandClock()
    bucket = TokenBucket(clock, 10.0)
    assert bucket.wait_s() == 0
    bucket.spend(1000)
    assert bucket.wait_s() == pytest.approx(99.1)
    clock.now_s += 99.2
    assert bucket.wait_s() == 0


def test_a_bucket_for_less_than_one_a_second_lets_the_first_pass() -> None:
    clock = HandClock()
    bucket = TokenBucket(clock, 0.01, 0.00001)
    assert bucket.wait_s() == 0
    bucket.spend(1)
    assert bucket.wait_s() == pytest.approx(100)


@pytest.mark.anyio
async def test_who_takes_gets_turns_in_order_at_the_rate() -> None:
    clock = HandClock()
    bucket, began_s = TokenBucket(clock, 2.0), clock.now_s
    for _ in range(6):
        await bucket.take()
    assert clock.now_s - began_s == pytest.approx(2), "two at once, and then two a second"
