"""The rules of the columns, one test for each sentence of docs/statistics.md, and properties of them all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.statistics.columns import COUNTERS, NULLABLE, Offsets, SourceRow, advance, meet, summed, total

COUNT = st.integers(0, 2**40)
PROGRESS = st.dictionaries(st.sampled_from("abcd"), COUNT)


def row(worker: str, incarnation: str = "now", **columns: Any) -> SourceRow:
    known = SourceRow("recovery", worker, incarnation, 10, False, 4, False, 20, 15, 7, 700, 6, 5)
    return replace(known, **columns)


ROWS = st.lists(
    st.builds(
        SourceRow, st.just("recovery"), st.sampled_from("abc"), st.sampled_from(["now", "before"]), st.none() | COUNT, st.booleans(),
        st.none() | COUNT, st.booleans(), st.none() | COUNT, st.none() | COUNT, COUNT, COUNT, COUNT, COUNT,
    ),
    max_size=6, unique_by=lambda each: (each.worker, each.incarnation),
)  # fmt: skip


def test_a_partially_ordered_progress_is_summed_into_one_number() -> None:
    assert summed({"0": 100, "1": 150}) == 250
    assert summed({}) == 0


def test_with_several_sinks_processed_is_the_least_of_each_shard() -> None:
    assert meet([{"0": 5, "1": 9}, {"0": 7, "1": 2}]) == {"0": 5, "1": 2}
    assert meet([{"0": 5}, {"1": 2}]) == {"0": 0, "1": 0}, "a sink that names no shard has acknowledged none of it"
    assert meet([]) == {}


def test_the_total_is_the_sum_of_the_workers() -> None:
    found = total([row("a"), row("b")], {"a", "b"}, "now")
    assert found == SourceRow("recovery", "", "now", 20, False, 8, False, 40, 30, 14, 1400, 12, 10)
    assert found.lag == 10


@pytest.mark.parametrize("column", NULLABLE)
def test_a_column_is_null_until_every_worker_has_reported_it(column: str) -> None:
    missing: dict[str, Any] = {column: None}
    assert getattr(total([row("a"), row("b", **missing)], {"a", "b"}, "now"), column) is None
    assert getattr(total([row("a")], {"a", "b"}, "now"), column) is None
    assert getattr(total([], set(), "now"), column) is None


def test_a_worker_that_is_not_responsible_reports_zero_and_zero_counts() -> None:
    idle = row("b", snapshot_records_known=0, snapshot_progress=0, outstanding_values=0, processed_values=0)
    found = total([row("a"), idle], {"a", "b"}, "now")
    assert [getattr(found, name) for name in NULLABLE] == [10, 4, 20, 15]


@pytest.mark.parametrize("column", NULLABLE)
def test_figures_of_an_older_incarnation_never_mix_in(column: str) -> None:
    rows = [row("a"), row("b"), row("b", "before", **{column: 999})]
    assert getattr(total(rows, {"a", "b"}, "now"), column) == 2 * getattr(row("a"), column)
    assert getattr(total([row("a"), row("b", "before")], {"a", "b"}, "now"), column) is None


@pytest.mark.parametrize("column", COUNTERS)
def test_a_counter_counts_what_older_incarnations_did(column: str) -> None:
    assert getattr(total([row("a"), row("a", "before"), row("gone")], {"a"}, "now"), column) == 3 * getattr(row("a"), column)


def test_a_pass_is_committed_once_every_worker_says_so() -> None:
    done = [row("a", snapshot_committed=True), row("b", snapshot_committed=True)]
    assert total(done, {"a", "b"}, "now").snapshot_committed
    assert not total([done[0], row("b")], {"a", "b"}, "now").snapshot_committed
    assert not total(done[:1], {"a", "b"}, "now").snapshot_committed
    assert not total([], set(), "now").snapshot_committed


def test_progress_may_exceed_an_estimate_and_the_percentage_is_capped() -> None:
    guess = row("a", snapshot_records_known=10, snapshot_known_estimated=True, snapshot_progress=25)
    found = total([guess, row("b")], {"a", "b"}, "now")
    assert (found.snapshot_progress, found.snapshot_records_known, found.snapshot_known_estimated) == (29, 20, True)
    assert found.snapshot_percentage == 99.0
    assert replace(found, snapshot_committed=True).snapshot_percentage == 100.0


def test_the_percentage_of_what_is_not_known_is_not_known() -> None:
    assert row("a").snapshot_percentage == 40.0
    assert row("a", snapshot_records_known=None).snapshot_percentage is None
    assert row("a", snapshot_progress=None).snapshot_percentage is None
    assert row("a", snapshot_records_known=0, snapshot_progress=0).snapshot_percentage == 0.0
    assert row("a", snapshot_records_known=None, snapshot_committed=True).snapshot_percentage == 100.0


@pytest.mark.parametrize(("before", "found", "shown"), [
    (Offsets(0, 0), Offsets(10, 4), Offsets(10, 4)),
    (Offsets(10, 4), Offsets(12, 9), Offsets(12, 9)),
    (Offsets(10, 4), Offsets(10, 4), Offsets(10, 4)),
    (Offsets(10, 4), Offsets(7, 4), Offsets(10, 7)),  # three of them vanished: something else dealt with them
    (Offsets(10, 10), Offsets(2, 0), Offsets(12, 10)),  # all was forgotten, and two are to be done
    (Offsets(10, 4), Offsets(5, 9), Offsets(10, 10)),  # a probe that saw less than is done: no negative lag
])  # fmt: skip
def test_neither_offset_decreases(before: Offsets, found: Offsets, shown: Offsets) -> None:
    assert advance(before, found) == shown


@given(st.lists(st.tuples(COUNT, COUNT), max_size=20))
def test_whatever_probes_find_no_offset_decreases_and_the_lag_is_the_last_probes(probes: list[tuple[int, int]]) -> None:
    shown = Offsets(0, 0)
    for outstanding, processed in probes:
        after = advance(shown, Offsets(outstanding, processed))
        assert after.outstanding >= shown.outstanding and after.processed >= shown.processed
        assert after.outstanding - after.processed == max(0, outstanding - processed)
        shown = after


@given(ROWS, st.sets(st.sampled_from("abc")))
def test_a_total_is_the_sum_or_null_and_knows_no_order(rows: list[SourceRow], workers: set[str]) -> None:
    found = total(rows, workers, "now")
    assert found == replace(total(rows[::-1], workers, "now"), source=found.source)
    mine = [each for each in rows if each.incarnation == "now" and each.worker in workers]
    for name in NULLABLE:
        values = [getattr(each, name) for each in mine]
        expected = sum(values) if workers and len(mine) == len(workers) and None not in values else None
        assert getattr(found, name) == expected
    for name in COUNTERS:
        assert getattr(found, name) == sum(getattr(each, name) for each in rows)


@given(st.lists(PROGRESS, min_size=1, max_size=4))
def test_a_meet_is_below_every_sink_and_order_means_nothing(sinks: list[dict[str, int]]) -> None:
    found = meet(sinks)
    assert all(count <= each.get(shard, 0) for each in sinks for shard, count in found.items())
    assert found == meet(sinks[::-1]) == meet([*sinks, found])
    assert summed(found) <= min(map(summed, sinks))
