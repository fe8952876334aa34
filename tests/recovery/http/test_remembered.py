"""What the server remembers: a day of points, a hundred lines, and texts without names of objects."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.base.errors import CorruptRecordError
from changelog.key_values import NOTE_BYTES_MAX
from recovery.http.decisions import KEPT_MAX, Decisions
from recovery.http.history import COARSE_MAX, COARSE_S, FINE_MAX, NOTE, HistoryPoint, StatusHistory, decode, encode, exchange
from recovery.http.own import RecentCalls, memory_bytes
from recovery.redaction import redact_names
from tests.given.shown_status import NOW_MS, SetClock, ShownStatus, healthy
from tiered.testing.log import MemoryChangeLog

pytestmark = pytest.mark.anyio


def test_a_day_of_points_is_bounded_ordered_and_keeps_peaks_and_gaps() -> None:
    history = StatusHistory()
    for number in range(100_000):
        at = number * 5.0
        backlog = 9_999.0 if number == 99_000 else 10.0
        gap = 98_000 <= number < 98_100
        history.add(HistoryPoint(at) if gap else HistoryPoint(at, 1.0, 3.0, backlog))
    points = history.points()
    assert len(points) <= FINE_MAX + COARSE_MAX + 1
    assert [point.at for point in points] == sorted(point.at for point in points)
    assert points[-1].at - points[0].at > 23 * 3600
    assert max(point.backlog or 0 for point in points) == 9_999.0
    assert any(point.backlog is None for point in points)
    assert {point.inflow for point in points} == {None, 1.0}


@given(st.lists(st.tuples(st.floats(0.1, 500), st.none() | st.floats(0, 1e6)), max_size=1200))
def test_history_loses_no_peak_of_what_it_still_covers(steps: list[tuple[float, float | None]]) -> None:
    history, at, peak = StatusHistory(), 0.0, 0.0
    for step, backlog in steps:
        at += step
        peak = max(peak, backlog or 0.0)
        history.add(HistoryPoint(at, None, None, backlog))
    points = history.points()
    assert max([point.backlog or 0.0 for point in points], default=0.0) == peak or len(points) > COARSE_MAX
    assert all(later.at > earlier.at for earlier, later in pairwise(points))


DAY = 1_795_334_400.0


async def test_the_history_outlives_a_daemon_and_breaks_where_nobody_looked() -> None:
    """What this process has seen is never replaced by what the note says of the same minutes."""
    log = MemoryChangeLog(SetClock())
    before = StatusHistory()
    for number in range(720):  # an hour; `at` is this daemon's own clock
        before.add(HistoryPoint(5000.0 + number * 5, 2.0, 4.0, float(number)))
    past = await exchange(log, before.past(DAY, 8600.0), DAY)
    assert len(past) == 12 and max(backlog or 0.0 for _, _, backlog in past.values()) == 719
    after, later = StatusHistory(), DAY + 3 * COARSE_S
    after.add(HistoryPoint(20.0, 9.0, 9.0, 9.0))
    after.recall(await exchange(log, after.past(later, 20.0), later), later, 20.0)
    points = after.points()
    assert [point.at for point in points] == sorted(point.at for point in points) and points[-1] == HistoryPoint(20.0, 9.0, 9.0, 9.0)
    assert [point.inflow for point in points] == [2.0] * 12 + [None, 9.0]
    assert points[0].at == pytest.approx(20.0 - 15 * COARSE_S), "an hour before the first daemon ended, by this one's clock"


async def test_two_daemons_keep_one_history_of_a_day_in_a_note() -> None:
    log = MemoryChangeLog(SetClock())
    first = int(DAY // COARSE_S) - 400
    for numbers, inflow in ((range(0, 400, 2), 1.0), (range(400), 123_456.789)):
        past = await exchange(log, {first + number: (inflow, None, 2.5e9) for number in numbers}, DAY)
    assert set(past) == {first + number for number in range(112, 400)}, "a day"
    assert past[first + 200] == (1.0, None, 2.5e9), "what was told first stays"
    assert decode(encode(past))[first + 201] == (123_500.0, None, 2.5e9)
    wide = {2**39 + number: (1.234e-300, 1.234e300, 1.234e-300) for number in range(500)}
    kept = decode(encode(wide))
    assert len(encode(wide)) <= NOTE_BYTES_MAX and max(kept) == max(wide) and len(kept) > 200


@pytest.mark.parametrize(
    "raw", [b"?", b"[]", b'{"v":1}', b'{"v":1,"points":[[1],[5,true,2,3],[5,-1,2,3],[5.5,1,2,3],[5,1e999,1,1],[5,1,"2",3]]}']
)
async def test_a_damaged_history_is_replaced_and_harms_nothing(raw: bytes) -> None:
    assert decode(raw) == {}
    log = MemoryChangeLog(SetClock())
    assert await log.swap_note(NOTE, None, raw)
    now = int(DAY // COARSE_S)
    assert await exchange(log, {now - 1: (1.0, 1.0, 1.0)}, DAY) == {now - 1: (1.0, 1.0, 1.0)}
    assert decode(await log.read_note(NOTE) or b"") == {now - 1: (1.0, 1.0, 1.0)}


async def test_a_figure_that_no_float_holds_kept_the_history_from_being_written() -> None:
    log, now = MemoryChangeLog(SetClock()), int(DAY // COARSE_S)
    assert await log.swap_note(NOTE, None, f'{{"v":1,"points":[[{now - 2},1{"0" * 400},1,1]]}}'.encode())
    assert await exchange(log, {now - 1: (1.0, 1.0, 1.0)}, DAY) == {now - 1: (1.0, 1.0, 1.0)}


async def test_a_history_of_newer_software_stays() -> None:
    log = MemoryChangeLog(SetClock())
    assert await log.swap_note(NOTE, None, b'{"v":2}')
    with pytest.raises(CorruptRecordError, match="version 2"):
        await exchange(log, {1: (1.0, 1.0, 1.0)}, DAY)
    assert await log.read_note(NOTE) == b'{"v":2}'


async def test_a_page_shows_the_history_of_the_daemon_before_it() -> None:
    log = MemoryChangeLog(SetClock())
    for later_s, shown_before in ((0.0, 0), (900.0, 1)):
        shown = ShownStatus(replace(healthy(), at_ms=NOW_MS + round(later_s * 1000)), log=log)
        shown.sampler.history.add(HistoryPoint(shown.runtime.now - 400.0, 7.0, 7.0, 7.0))
        await shown.sample()
        history = shown.view.recent()["history"]
        old = [age_s for age_s, inflow in zip(history["age_s"], history["inflow"], strict=True) if age_s > 500 and inflow == 7.0]
        assert len(old) == shown_before
    assert 900 < old[0] <= 900 + 700


def test_calls_of_late_are_counted_and_those_before_are_not() -> None:
    clock, made = SetClock(), {"changelog": (0, 0)}
    calls = RecentCalls(lambda: dict(made), clock)
    assert {**calls.late("changelog"), "over_s": calls.over_s} == {"calls": None, "failed": None, "over_s": None}
    for number in range(1, 201):
        calls.take()
        made["changelog"] = (number * 10, number)
        clock.now += 5
    calls.take()
    assert {**calls.late("changelog"), "over_s": calls.over_s} == {"calls": 600, "failed": 60, "over_s": 300.0}
    assert calls.late("long-term tier") == {"calls": None, "failed": None}
    assert len(calls._counts) < 70


def test_the_memory_is_that_of_this_process() -> None:
    assert 10**7 < (memory_bytes() or 0) < 10**10


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


@pytest.mark.parametrize(("text", "names", "left"), [
    ("nothing here", [], "nothing here"),
    ("the row a/objects/b breaks", ["a/objects/b"], "the row … breaks"),
    ("the row a/objects/b c breaks", [], "the row …"),
    ("blob 'a/objects/b/018b' and a/objects/b", ["a/objects/b", "a/objects/b/018b"], "blob '…' and …"),
    ("/data/blobs/a/objects/b: Permission denied", [], "…"),
    ("the entry at ~changelog/01/x cannot be read: 'id' is 7", [], "the entry at ~changelog/01/x cannot be read: …"),
    (f"blob {'a/objects/x' + chr(10) + 'y'!r} is odd", ["a/objects/x\ny"], "blob '…' is odd"),
    ("x", [None, ""], "x"),
])  # fmt: skip
def test_names_are_taken_out_of_texts(text: str, names: list[str | None], left: str) -> None:
    assert redact_names(text, names) == left


@given(st.text(min_size=1, max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_no_key_is_left_whether_or_not_its_name_is_known(key: str, before: str, after: str) -> None:
    name = f"photos/objects/{key}"
    assert name not in redact_names(f"{before} {name} {after}")
    assert name not in redact_names(f"{before} {name} {after}", [name])
