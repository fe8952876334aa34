"""The comparison with the baseline: what it calls worse, what it names, and what it refuses to read."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.baseline import RatioVerdict, compare, judged, read_baseline, read_kept, write_baseline
from benchmarks.harness import Figures, MeasuredPart, Ratio, tell

THEN = Ratio(1.0, 0.95, 1.05, 7)
RUN = MeasuredPart(date(2026, 11, 22), 1, 0.5, "a machine", "Python", {"table": {"row": {"ratio": THEN}}})


def at(middle: float, spread: float = 0.1, rounds: int = 7, more_is_better: bool = False) -> Ratio:
    return Ratio(middle, middle - spread / 2, middle + spread / 2, rounds, more_is_better)


@pytest.mark.parametrize(("now", "verdict"), [
    (at(1.24), RatioVerdict.SAME),               # 1.05, and both spreads of 0.1
    (at(1.26), RatioVerdict.WORSE),
    (at(0.74), RatioVerdict.BETTER),
    (at(1.26, more_is_better=True), RatioVerdict.BETTER),
    (at(0.74, more_is_better=True), RatioVerdict.WORSE),
    (at(1.26, spread=0.2), RatioVerdict.SAME),   # it is less sure itself
    (at(9.0, rounds=1), RatioVerdict.NOT_JUDGED),
])  # fmt: skip
def test_a_ratio_is_worse_when_it_leaves_the_old_middle_half_widened_by_both_spreads(now: Ratio, verdict: RatioVerdict) -> None:
    assert judged(THEN, now) is verdict


def test_rounds_that_were_all_alike_do_not_make_a_small_difference_a_finding() -> None:
    assert [judged(at(1.0, spread=0), at(middle, spread=0)) for middle in (1.04, 1.06)] == [RatioVerdict.SAME, RatioVerdict.WORSE]


def test_the_same_code_is_seldom_called_worse_and_a_third_more_mostly_is() -> None:
    chance = random.Random(1)

    def measured(more: float) -> Ratio:
        return Ratio.of([more * chance.lognormvariate(0, 0.05) for _ in range(5)], [1.0] * 5)

    assert sum(judged(measured(1), measured(1)) is RatioVerdict.WORSE for _ in range(400)) < 12
    assert sum(judged(measured(1), measured(1.33)) is RatioVerdict.WORSE for _ in range(400)) > 360


def test_a_comparison_names_what_got_worse_came_and_went(capsys: pytest.CaptureFixture[str]) -> None:
    now = replace(RUN, compared={"table": {"row": {"ratio": at(1.5)}, "another": {"ratio": THEN}}})
    then = replace(RUN, compared={"table": {**RUN.compared["table"], "old": {"ratio": THEN}}})
    assert compare({"part": then, "other": RUN}, {"part": now}) == 1
    shown = capsys.readouterr().out
    assert "measured today: other" in shown and re.search(r"another .*new", shown)
    assert [line.partition(" ->")[0] for line in shown.splitlines()[-2:]] == [
        "WORSE: part: table: row: ratio: 1.00 (0.95 - 1.05)", "GONE: part: table: old: ratio: 1.00 (0.95 - 1.05)",
    ]  # fmt: skip
    assert compare({"part": RUN}, {"part": RUN, "added": RUN}) == 0
    assert "added: not in the baseline" in capsys.readouterr().out


def test_another_size_or_machine_is_a_warning_and_rows_named_after_the_size_may_go(capsys: pytest.CaptureFixture[str]) -> None:
    now = replace(RUN, size=0.1, machine="another", compared={"table": {"row of 10": {"ratio": THEN}}})
    assert compare({"part": RUN}, {"part": now}) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "measured at size 1, and this run at size 0.1" in shown and "on a machine, and this run on another" in shown


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    parts = {"part": RUN, "other": replace(RUN, compared={'a "table"': {"µs": {"ratio": THEN}}})}
    write_baseline(parts, path)
    assert read_baseline(path) == parts


TOLD = '{"part": {"date": "2026-11-22", "size": 1, "load": 0, "machine": "", "versions": "", "compared": {"t": {"r": {"c": %s}}}}}'


@pytest.mark.parametrize("text", [
    "", "{", "[]", '{"part": {}}', '{"part": {"date": "2026-11-22", "figures": []}}', TOLD % 1,
    TOLD % '{"middle": NaN, "low": 1, "high": 1, "rounds": 7}', TOLD % '{"middle": 2, "low": 1, "high": 1, "rounds": 7}',
    TOLD % '{"middle": 1, "low": 1, "high": 1, "rounds": 0}',
])  # fmt: skip
def test_a_damaged_or_foreign_baseline_is_an_error_that_says_what_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(SystemExit, match=r"is no baseline of these benchmarks .*make bench BASELINE=1"):
        read_baseline(path)
    with pytest.raises(SystemExit, match=r"is not there; .*git checkout"):
        read_baseline(tmp_path / "none.json")


def test_figures_are_kept_with_what_can_be_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "KEPT", tmp_path)
    columns = ["", "in flight", "µs", "ratio"]
    rows: list[list[str | Ratio]] = [["put", "1", "5", THEN], ["put", "2", "6", "1"]]
    table = Figures("Title", columns, rows, named_by=columns[:2])
    tell("part", [table, Figures("None", [""], [["put"]])], 1, 0.5, None)
    assert read_kept(tmp_path)["part"].compared == {"Title": {"put, 1": {"ratio": THEN}}}
    assert "| put | 1 | 5 | 1.00 | 0.95 - 1.05 |" in table.markdown() and "| put | 2 | 6 | 1 |  |" in table.markdown()
    (tmp_path / "part.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"part.json is damaged \(date: Field required\); remove it"):
        read_kept(tmp_path)
    with pytest.raises(SystemExit, match="make bench measures them"):
        read_kept(tmp_path / "none")


def test_rows_and_columns_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="two rows 'put'"):
        Figures("Title", ["", "ratio"], [["put", THEN], ["put", THEN]]).compared()
    with pytest.raises(ValueError, match="two columns"):
        Figures("Title", ["", "ratio", "ratio"], [["put", THEN, THEN]]).compared()


def test_the_baseline_in_the_checkout_can_be_read_and_has_what_a_run_of_now_has() -> None:
    assert read_baseline()
