"""The comparison with the baseline: what it calls worse, what it names, and what it refuses to read."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from datetime import date
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import figures
from benchmarks.baseline import RatioVerdict, compare, judged, read_baseline, read_kept, write_baseline
from benchmarks.figures import Figures, MeasuredPart, dumped, keep, loaded, places
from benchmarks.rounds import Ratio
from tests.given.repository import ROOT

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
    then = replace(RUN, compared={"table": {**RUN.compared["table"], "old": {"ratio": THEN, "calls": "1 read"}}})
    assert compare({"part": then, "other": RUN}, {"part": now}) == 1
    shown = capsys.readouterr().out
    assert "measured today: other" in shown and re.search(r"another .*new", shown)
    assert [line.partition(" ->")[0] for line in shown.splitlines()[-3:]] == [
        "WORSE: part: table: row: ratio: 1.00 (0.95 - 1.05)", "GONE: part: table: old: ratio: 1.00 (0.95 - 1.05)",
        "GONE: part: table: old: calls: 1 read",
    ]  # fmt: skip
    assert compare({"part": RUN}, {"part": RUN, "added": RUN}) == 0
    assert "added: not in the baseline" in capsys.readouterr().out


def test_what_is_counted_must_be_equal(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (replace(RUN, compared={"calls": {"put": {"before": text}}}) for text in ("1 read", "2 read"))
    assert compare({"calls": one}, {"calls": one}) == 0
    assert "calls: 1 counted cells are equal" in capsys.readouterr().out
    assert compare({"calls": one}, {"calls": two}) == 1


def test_another_size_or_machine_is_a_warning_and_rows_named_after_the_size_may_go(capsys: pytest.CaptureFixture[str]) -> None:
    now = replace(RUN, size=0.1, machine="another", compared={"table": {"row of 10": {"ratio": THEN}}})
    assert compare({"part": RUN}, {"part": now}) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "measured at size 1, and this run at size 0.1" in shown and "on a machine, and this run on another" in shown


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    parts = {"part": RUN, "calls": replace(RUN, compared={'a "table"': {"µs": {"cell": "1 read"}}})}
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
    monkeypatch.setattr(figures, "KEPT", tmp_path)
    columns = ["", "in flight", "µs", "ratio"]
    rows: list[list[str | Ratio]] = [["put", "1", "5", THEN], ["put", "2", "6", "1"]]
    table = Figures("Title", columns, rows, named_by=columns[:2])
    calls = Figures("Calls", ["", "before"], [["put", "1 read"]], counted=["before"])
    keep("part", loaded(dumped([table, calls, Figures("None", [""], [["put"]])])), 1, 0.5)
    assert read_kept(tmp_path)["part"].compared == {"Title": {"put, 1": {"ratio": THEN}}, "Calls": {"put": {"before": "1 read"}}}
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


# --- the page ------------------------------------------------------------------------------------

PAGES = [ROOT / "docs" / "benchmarks.md", *sorted((ROOT / "benchmarks" / "results").glob("*.txt"))]


def made_by_make_bench() -> set[str]:
    """The names of the places that the commands of `make bench` and `make bench-large` fill."""
    from benchmarks import production  # noqa: PLC0415 - it opens nothing

    makefile = (ROOT / "Makefile").read_text()
    recipe = "".join(makefile.partition(f"\n{target}: ")[2].partition("\n\n")[0] for target in ("bench", "bench-large"))
    modules = set(re.findall(r"-m benchmarks\.(\w+)", recipe))
    told = {name for module in modules for name in re.findall(r'\btell\("(\w+)"', (ROOT / f"benchmarks/{module}.py").read_text())}
    return told | set(production.PARTS)


def tables_outside_marks(page: str) -> list[str]:
    """The first lines of the tables that no program writes."""
    written = re.sub(r"<!-- figures (\w+(?: \d+)?) -->.*?<!-- end of \1 -->", "", page, flags=re.DOTALL)
    lines = ["", *written.splitlines()]
    return [line for before, line in pairwise(lines) if line.startswith("|") and not before.startswith("|")]


def test_every_place_is_filled_by_make_bench_and_every_part_has_one_among_the_results() -> None:
    in_docs, *results = (places(page.read_text("utf-8")) for page in PAGES)
    assert set().union(*results) == made_by_make_bench() >= in_docs


def test_no_table_was_made_by_hand() -> None:
    assert [line for page in PAGES for line in tables_outside_marks(page.read_text("utf-8"))] == []
    assert tables_outside_marks("words\n| a | b |\n|---|---|\n<!-- figures x -->\n| c |\n<!-- end of x -->\n") == ["| a | b |"]


def test_every_benchmark_keeps_its_ratios_as_values_and_tells_its_figures() -> None:
    """A ratio that a module makes a text of is not compared with the last release."""
    sources = {path.name: path.read_text("utf-8") for path in (ROOT / "benchmarks").glob("*.py")}
    others = {name: text for name, text in sources.items() if name not in ("figures.py", "rounds.py", "baseline.py", "mutants.py")}
    assert [name for name, text in others.items() if re.search(r"\.spread\b", text)] == [], "put the Ratio itself into the row"
    assert [name for name, text in others.items() if "put_into(" in text] == [], "call figures.tell"
