"""The verdict, as a table, and what holds of every verdict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery import states
from recovery.statistics.verdict import NEW_S, Sample, SourceVerdict, verdict

COUNT = st.integers(0, 10_000)
SAMPLES = st.builds(Sample, st.integers(0, 600_000), st.none() | COUNT, st.none() | COUNT)


def at(seconds: float, outstanding: int | None, processed: int | None) -> Sample:
    return Sample(round(seconds * 1000), outstanding, processed)


@pytest.mark.parametrize(("before", "after", "expected"), [
    # two samples with nothing to do
    (at(0, 50, 50), at(10, 50, 50), SourceVerdict(states.HEALTHY, 0.0, 0.0, 0.0)),
    (at(0, 50, 50), at(10, 150, 150), SourceVerdict(states.HEALTHY, 10.0, 10.0, 0.0)),
    (at(0, 50, 10), at(10, 50, 50), SourceVerdict(states.HEALTHY, 0.0, 4.0, 0.0)),
    # a small lag that stays: 100 are drained within 10 s
    (at(0, 200, 100), at(10, 300, 200), SourceVerdict(states.HEALTHY, 10.0, 10.0, None)),
    # a lag that came just now: nobody had time for it yet
    (at(0, 50, 50), at(10, 90, 50), SourceVerdict(states.HEALTHY, 4.0, 0.0, None)),
    (at(0, 50, 50), at(NEW_S, 80, 50), SourceVerdict(states.FALLING_BEHIND, 0.5, 0.0, None)),
    # a backlog becomes smaller: 10,000 - 100 * 10 = 9,000, at 90 a second more than comes in
    (at(0, 10_000, 0), at(10, 10_100, 1_000), SourceVerdict(states.CATCHING_UP, 10.0, 100.0, 9_100 / 90)),
    # it grows, or stays as large as it is
    (at(0, 10_000, 0), at(10, 12_000, 1_000), SourceVerdict(states.FALLING_BEHIND, 200.0, 100.0, None)),
    (at(0, 10_000, 0), at(10, 11_000, 1_000), SourceVerdict(states.FALLING_BEHIND, 100.0, 100.0, None)),
    # nothing moves
    (at(0, 100, 0), at(10, 100, 0), SourceVerdict(states.STALLED, 0.0, 0.0, None)),
    (at(0, 100, 0), at(10, 200, 0), SourceVerdict(states.STALLED, 10.0, 0.0, None)),
    # not known, or a clock that jumped, or the figures of two different stores
    (None, at(10, 1, 1), SourceVerdict(states.UNKNOWN)),
    (at(10, 1, 1), None, SourceVerdict(states.UNKNOWN)),
    (at(0, None, 1), at(10, 1, 1), SourceVerdict(states.UNKNOWN)),
    (at(0, 1, 1), at(10, 1, None), SourceVerdict(states.UNKNOWN)),
    (at(10, 1, 1), at(10, 2, 2), SourceVerdict(states.UNKNOWN)),
    (at(10, 1, 1), at(5, 2, 2), SourceVerdict(states.UNKNOWN)),
    (at(0, 5, 1), at(10, 4, 1), SourceVerdict(states.UNKNOWN)),
    (at(0, 5, 4), at(10, 5, 1), SourceVerdict(states.UNKNOWN)),
    (at(0, 5, 6), at(10, 7, 6), SourceVerdict(states.UNKNOWN)),
])  # fmt: skip
def test_the_verdict_of_two_samples(before: Sample | None, after: Sample | None, expected: SourceVerdict) -> None:
    assert verdict(before, after) == expected


@given(SAMPLES, SAMPLES)
def test_every_verdict_tells_what_it_means(before: Sample, after: Sample) -> None:
    found = verdict(before, after)
    if found.kind is states.UNKNOWN:
        assert found == SourceVerdict(states.UNKNOWN)
        return
    assert found.inflow_per_s is not None and found.drain_per_s is not None
    assert found.inflow_per_s >= 0 and found.drain_per_s >= 0
    match found.kind:
        case states.CATCHING_UP:
            assert found.caught_up_in_s is not None and found.caught_up_in_s > 0 and found.drain_per_s > found.inflow_per_s
        case states.FALLING_BEHIND:
            assert found.caught_up_in_s is None and found.drain_per_s <= found.inflow_per_s
        case states.STALLED:
            assert found.caught_up_in_s is None and found.drain_per_s == 0
    if after.outstanding == after.processed:
        assert found.kind is states.HEALTHY
