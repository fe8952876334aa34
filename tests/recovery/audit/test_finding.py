"""Summaries of ranges: they add up, have a bound, and count each age in its class."""

from __future__ import annotations

from collections import Counter

import pytest

from recovery.audit.finding import AGES, DAY_S, HOUR_S, OTHERS, USECASES_MAX, Summary, Tally
from recovery.audit.finding_classes import FindingClass


def summary_of(number: int) -> Summary:
    return Summary(
        number, 2 * number, 3 * number, 4 * number, 5 * number, 6 * number, 7 * number, 8 * number,
        {"a": {FindingClass.ORPHAN: Tally(number, 10 * number)}}, {FindingClass.ORPHAN: Counter({number: 1, 6: 1})},
        {FindingClass.ORPHAN: Counter({number: 10, 6: 5})},
    )  # fmt: skip


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_summaries_add_up_but_for_what_every_range_sees(first: int, second: int) -> None:
    whole = summary_of(first)
    whole.merge(summary_of(second))
    assert (whole.names, whole.redirects, whole.windows, whole.entries_max, whole.unreadable_max, whole.dated_ahead) == (3, 6, 9, 8, 10, 18)
    assert (whole.verified, whole.verified_bytes) == (21, 24)
    assert whole.age_sizes == {FindingClass.ORPHAN: Counter({1: 10, 2: 10, 6: 10})}
    assert whole.totals() == {FindingClass.ORPHAN: Tally(3, 30)} and whole.ages == {FindingClass.ORPHAN: Counter({6: 2, 1: 1, 2: 1})}


def test_usecases_beyond_a_bound_are_counted_together_and_what_is_taken_back_is_taken_from_them() -> None:
    summary = Summary()
    for number in range(USECASES_MAX + 5):
        summary.count(f"usecase-{number}", FindingClass.REFERENCED, 1, 10)
    summary.count(f"usecase-{USECASES_MAX}", FindingClass.REFERENCED, -1, -10)
    summary.count("usecase-0", FindingClass.ORPHAN, 1, 1)
    assert len(summary.counts) == USECASES_MAX + 1
    assert summary.counts[OTHERS] == {FindingClass.REFERENCED: Tally(4, 40)} and summary.counts["usecase-0"][FindingClass.ORPHAN] == Tally(
        1, 1
    )
    whole = Summary()
    whole.merge(summary)
    left = USECASES_MAX + 4
    assert whole.totals() == summary.totals() == {FindingClass.REFERENCED: Tally(left, 10 * left), FindingClass.ORPHAN: Tally(1, 1)}


@pytest.mark.parametrize(("seconds", "name"), [
    (-5, "under 1 h"), (HOUR_S - 1, "under 1 h"), (HOUR_S, "1 h to 1 d"), (DAY_S, "1 d to 7 d"),
    (365 * DAY_S, "over 1 y"), (1e12, "over 1 y"),
])  # fmt: skip
def test_an_age_is_in_one_class_from_its_lower_bound(seconds: float, name: str) -> None:
    summary = Summary()
    summary.age(FindingClass.ORPHAN, seconds)
    [age] = summary.ages[FindingClass.ORPHAN]
    assert AGES[age][0] == name
