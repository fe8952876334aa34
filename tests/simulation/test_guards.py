"""Each guard of the protocol is missed: a recorded seed is clean with it, and violates an invariant without it.

The seeds are those of docs/guards.md. Where a change of the recipes has made them mean something else,
`python -m emulators.simulation guards --docs docs/guards.md` finds new ones.
"""

from __future__ import annotations

import json
import subprocess
from inspect import getattr_static
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from emulators.simulation import guard_search
from emulators.simulation.__main__ import app
from emulators.simulation.coverage import Coverage
from emulators.simulation.guard_search import BEGIN, END, GuardResult, put_into, recorded
from emulators.simulation.guards import GUARDS
from emulators.simulation.minimise import run_uncounted
from emulators.simulation.recipe import Recipe
from emulators.simulation.worker import command, run_seed
from tests.given.repository import ROOT
from tests.suites import share

PAGE = ROOT / "docs" / "guards.md"
GUARD = "tombstone in the inline write"


@pytest.fixture(scope="module")
def seeds() -> dict[str, GuardResult]:
    return {found.guard: found for found in recorded(PAGE)}


# --- the guards ----------------------------------------------------------------------------------


def test_the_page_names_each_guard_and_no_other() -> None:
    assert [found.guard for found in recorded(PAGE)] == list(GUARDS)


@pytest.mark.parametrize("name", share(tuple(GUARDS), 6))
def test_a_missing_guard_is_found_out_by_its_recorded_seed(name: str, seeds: dict[str, GuardResult]) -> None:
    seed = seeds[name].seed
    assert seed is not None
    with GUARDS[name].knocked_out():
        violation = GUARDS[name].watched(run_seed)(seed, Coverage()).violation
    assert violation is not None, f"seed {seed} does not miss it any more; find another: see the top of this module"
    assert violation.invariant == seeds[name].what.partition(":")[0]


@pytest.mark.parametrize("name", share(tuple(GUARDS), 18))
def test_with_the_guard_the_same_seed_is_clean(name: str, seeds: dict[str, GuardResult]) -> None:
    seed = seeds[name].seed
    assert seed is not None
    assert run_uncounted(Recipe.of(seed)).violation is None


@pytest.mark.parametrize("name", GUARDS)
def test_a_knock_out_takes_something_away_and_puts_it_back(name: str) -> None:
    def present() -> list[Any]:
        return [getattr_static(owner, attribute) for owner, attribute, _ in GUARDS[name].patches]

    before = present()
    with GUARDS[name].knocked_out():
        assert not any(one is other for one, other in zip(before, present(), strict=True))
    assert all(one is other for one, other in zip(before, present(), strict=True))


def test_a_knock_out_ends_with_an_error_too() -> None:
    (owner, attribute, _), = GUARDS[GUARD].patches
    before = getattr_static(owner, attribute)
    with pytest.raises(RuntimeError, match="within"), GUARDS[GUARD].knocked_out():
        raise RuntimeError("within")
    assert getattr_static(owner, attribute) is before


# --- the search ----------------------------------------------------------------------------------


@pytest.mark.night
def test_a_worker_runs_without_its_guard(seeds: dict[str, GuardResult]) -> None:
    found = seeds[GUARD]
    request = f"{found.seed} 1\n"
    answer = subprocess.run(command(without=GUARD), input=request, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    (seed, what), = json.loads(answer)["violations"]
    assert (seed, what.partition(":")[0]) == (found.seed, found.what.partition(":")[0])


def test_a_violation_that_a_guard_is_not_known_by_is_none(seeds: dict[str, GuardResult], monkeypatch: pytest.MonkeyPatch) -> None:
    seed = seeds["conditional heartbeat"].seed
    assert seed is not None
    with GUARDS["conditional heartbeat"].knocked_out():
        assert GUARDS["conditional heartbeat"].watched(run_seed)(seed, Coverage()).violation is not None
        assert GUARDS["conditional touch"].watched(run_seed)(seed, Coverage()).violation is None


def test_a_page_keeps_the_rows_of_guards_that_were_not_looked_for(tmp_path: Path) -> None:
    page, (first, second) = tmp_path / "guards.md", list(GUARDS)[:2]
    page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    put_into(page, [GuardResult(first, 1, "I1 a | b: object-0"), GuardResult(second, 2, "I2")])
    put_into(page, [GuardResult(second)])
    assert recorded(page) == [GuardResult(first, 1, "I1 a | b"), GuardResult(second)]
    assert page.read_text().startswith("before\n") and page.read_text().endswith("after\n")


def test_a_page_without_a_place_for_the_table_is_refused(tmp_path: Path) -> None:
    (page := tmp_path / "guards.md").write_text("nothing")
    with pytest.raises(ValueError, match="must hold"):
        put_into(page, [])


def test_the_command_tells_what_was_found_and_what_was_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = list(GUARDS)[:2]
    monkeypatch.setattr(guard_search, "search", lambda name, *_: GuardResult(name, 7, "I1: so") if name == first else GuardResult(name))
    (page := tmp_path / "guards.md").write_text(f"{BEGIN}\n{END}\n")
    result = CliRunner().invoke(app, ["guards", "--only", first, "--docs", str(page)])
    assert (result.exit_code, recorded(page)) == (0, [GuardResult(first, 7, "I1")])
    result = CliRunner().invoke(app, ["guards", "--only", first, "--only", second, "--seeds", "5"])
    assert result.exit_code == 1
    assert f"nobody noticed in 5 seeds that this guard was missing: {second}" in result.output


def test_a_guard_that_does_not_exist_is_refused_with_the_names_of_those_that_do() -> None:
    result = CliRunner().invoke(app, ["guards", "--only", "nothing"])
    assert result.exit_code == 2
