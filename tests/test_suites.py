"""What a push leaves to the night, by the rule that CONTRIBUTING has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests import suites
from tests.suites import ALL, MANY, PLACES, REASONS, ROOT, ROTATED, left_to_other_commits

MARKED = sorted(path for path in ROOT.rglob("test_*.py") if "mark.night" in path.read_text())


def test_the_rule_is_a_table_of_at_most_ten_lines() -> None:
    page = (ROOT.parent / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", page.partition("| left to the night |")[2].partition("\n\n")[0], re.MULTILINE)

    assert dict(rows) == REASONS and len(rows) <= 8  # and its two lines of heading


@pytest.mark.parametrize(("place", "reason"), PLACES.items())
def test_what_is_left_to_the_night_is_there_and_has_a_reason(place: str, reason: str) -> None:
    word, _, shown_in = reason.partition(" ")

    assert (ROOT / place).exists() and word in REASONS
    assert (word == "repeats") == bool(shown_in), "what repeats names the file that shows the same in `make test`"
    assert (ROOT / shown_in).exists() and not shown_in.startswith(tuple(PLACES)), f"{shown_in} is in the night, too"


@pytest.mark.parametrize("path", MARKED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_repeats_at_length_has_something_short_beside_it(path: Path) -> None:
    if path.relative_to(ROOT).as_posix().startswith(tuple(PLACES)):
        return
    tree = ast.parse(path.read_text())
    tests = [each for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_")]
    whole = [each for each in tests if any(ast.unparse(mark).startswith("pytest.mark.night") for mark in each.decorator_list)]

    assert len(whole) < len(tests), "nothing of it runs in `make test`: it needs a row of PLACES"
    assert not re.search(r"^pytestmark = .*mark\.night", path.read_text(), re.MULTILINE)


def test_the_forge_runs_each_step_of_the_night_once_a_day() -> None:
    workflow = (ROOT.parent / ".github/workflows/night.yml").read_text()
    steps = re.findall(r"^([a-z-]+) {2,}\S", (ROOT.parent / ".ci/night").read_text(), re.MULTILINE)
    daily = re.findall(r'"([a-z -]+)"', workflow.rpartition("fromJSON(")[2])

    assert "schedule:" in workflow and len(steps) > 10
    assert sorted(step for job in daily for step in job.split()) == sorted(steps)


def test_each_parameter_runs_within_three_commits_in_a_row_and_no_test_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"tests/{room}test_it.py::{test}[{number}]" for room in ROTATED for test in ("test_one", "test_other") for number in range(10)]
    others = ["tests/tiered/test_it.py::test_plain", *(f"tests/contracts/test_rows.py::test_swap[{number}]" for number in range(10))]
    few = [f"tests/tiered/test_it.py::test_few[{number}]" for number in range(MANY - 1)]
    monkeypatch.delenv(ALL, raising=False)
    run: list[set[str]] = []
    for commit in ("0", "1", "2"):
        monkeypatch.setattr(suites, "commit", lambda commit=commit: commit)
        run.append({*names, *others, *few} - left_to_other_commits([*names, *others, *few]))

    assert set.union(*run) == {*names, *others, *few} and set.intersection(*run) == {*others, *few}
    assert all(3 * 2 * len(ROTATED) <= len(each & {*names}) <= 4 * 2 * len(ROTATED) for each in run), "a third of ten"
    ever: set[str] = set()
    for commit in (f"{number:x}" for number in range(0, 144 * 3, 12)):  # of which `share` has chosen the same twelfth
        monkeypatch.setattr(suites, "commit", lambda commit=commit: commit)
        ever |= {*names} - left_to_other_commits(names)
    assert ever == {*names}
    monkeypatch.setenv(ALL, "1")
    assert not left_to_other_commits(names), "the night has all"
