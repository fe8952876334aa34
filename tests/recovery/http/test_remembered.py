"""What the server remembers: a day of points, a hundred lines, and texts without names of objects."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.hiding import without_names
from recovery.http.decisions import KEPT_MAX, Decisions
from recovery.http.history import COARSE_MAX, FINE_MAX, History, Point
from tests.given.shown_status import SetClock


def test_a_day_of_points_is_bounded_ordered_and_keeps_peaks_and_gaps() -> None:
    history = History()
    for number in range(100_000):
        at = number * 5.0
        backlog = 9_999.0 if number == 99_000 else 10.0
        gap = 98_000 <= number < 98_100
        history.add(Point(at) if gap else Point(at, 1.0, 3.0, backlog))
    points = history.points()
    assert len(points) <= FINE_MAX + COARSE_MAX + 1
    assert [point.at for point in points] == sorted(point.at for point in points)
    assert points[-1].at - points[0].at > 23 * 3600
    assert max(point.backlog or 0 for point in points) == 9_999.0
    assert any(point.backlog is None for point in points)
    assert {point.inflow for point in points} == {None, 1.0}


@given(st.lists(st.tuples(st.floats(0.1, 500), st.none() | st.floats(0, 1e6)), max_size=1200))
def test_history_loses_no_peak_of_what_it_still_covers(steps: list[tuple[float, float | None]]) -> None:
    history, at, peak = History(), 0.0, 0.0
    for step, backlog in steps:
        at += step
        peak = max(peak, backlog or 0.0)
        history.add(Point(at, None, None, backlog))
    points = history.points()
    assert max([point.backlog or 0.0 for point in points], default=0.0) == peak or len(points) > COARSE_MAX
    assert all(later.at > earlier.at for earlier, later in pairwise(points))


@pytest.fixture
def kept() -> Iterator[tuple[Decisions, logging.Logger]]:
    decisions, logger = Decisions(SetClock()), logging.getLogger("tests.kept")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(decisions)
    yield decisions, logger
    logger.removeHandler(decisions)


def test_the_last_lines_are_kept_newest_first(kept: tuple[Decisions, logging.Logger]) -> None:
    decisions, logger = kept
    for number in range(KEPT_MAX + 50):
        logger.info("recovered id=%d: done", number)
    logger.debug("not_kept")
    lines = decisions.newest_first()
    assert len(lines) == KEPT_MAX
    assert (lines[0].event, lines[0].text, lines[0].level) == ("recovered", f"id={KEPT_MAX + 49}: done", "info")


def test_a_line_that_repeats_is_counted(kept: tuple[Decisions, logging.Logger]) -> None:
    decisions, logger = kept
    logger.warning("recovered id=1: done")
    for _ in range(1000):
        logger.warning("recovery_pass_failed: the changelog did not answer")
    assert [(line.event, line.times) for line in decisions.newest_first()] == [("recovery_pass_failed", 1000), ("recovered", 1)]


def test_a_record_whose_arguments_do_not_fit_raises_nothing(kept: tuple[Decisions, logging.Logger]) -> None:
    decisions, logger = kept
    decisions.emit(logger.makeRecord("x", logging.INFO, "f", 1, "%d and %d", (1,), None))
    logger.info("without_object object=%s")
    assert [line.event for line in decisions.newest_first()] == ["without_object"]


def test_text_that_is_no_event_is_kept_whole(kept: tuple[Decisions, logging.Logger]) -> None:
    decisions, logger = kept
    logger.warning("No changelog is set, so …")
    assert (decisions.newest_first()[0].event, decisions.newest_first()[0].text) == ("", "No changelog is set, so …")


@pytest.mark.parametrize(
    ("text", "names", "left"),
    [
        ("nothing here", [], "nothing here"),
        ("the row a/objects/b breaks", ["a/objects/b"], "the row … breaks"),
        ("the row a/objects/b c breaks", [], "the row …"),
        ("blob 'a/objects/b/018b' and a/objects/b", ["a/objects/b", "a/objects/b/018b"], "blob '…' and …"),
        ("/data/blobs/a/objects/b: Permission denied", [], "…"),
        ("the entry at ~changelog/01/x cannot be read: 'id' is 7", [], "the entry at ~changelog/01/x cannot be read: …"),
        (f"blob {'a/objects/x' + chr(10) + 'y'!r} is odd", ["a/objects/x\ny"], "blob '…' is odd"),
        ("x", [None, ""], "x"),
    ],
)  # fmt: skip
def test_names_are_taken_out_of_texts(text: str, names: list[str | None], left: str) -> None:
    assert without_names(text, names) == left


@given(st.text(min_size=1, max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_no_key_is_left_whether_or_not_its_name_is_known(key: str, before: str, after: str) -> None:
    name = f"photos/objects/{key}"
    assert name not in without_names(f"{before} {name} {after}")
    assert name not in without_names(f"{before} {name} {after}", [name])
