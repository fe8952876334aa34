"""Seeds are explored on several processes, without a gap, to the first violation.

Whatever a worker does is known by its seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tiered.protocol.finishing
from emulators.simulation import explore as module
from emulators.simulation import seed_report as report
from emulators.simulation.__main__ import app
from emulators.simulation.explore import ExploredSeeds, WorkerError, explore
from emulators.simulation.minimise import run_uncounted
from emulators.simulation.recipe import Recipe
from emulators.simulation.totals import Totals
from tests.given.repository import ROOT

WORKER = """
import os, sys, time
from emulators.world.checker import InvariantViolation
from emulators.simulation.run import RunResult
from emulators.simulation.worker import work

def run(seed, coverage):
    coverage.count("workers", str(os.getpid()))
    coverage.count("seeds", str(seed))
    {what}
    return RunResult(seed, None, [], 2.0, 3, ())

work(sys.stdin, sys.stdout, run)
"""
VIOLATES_AT_25 = 'if seed == 25: return RunResult(25, InvariantViolation("I1 no dangling", "a path", ["call"]), [], 2.0, 3, ())'


def worker(what: str = "pass") -> Sequence[str]:
    return (sys.executable, "-c", WORKER.format(what=what))


# --- exploration ---------------------------------------------------------------------------------


def test_all_seeds_are_run_once_without_a_gap() -> None:
    explored = explore(50, first=1000, jobs=2, worker=worker())
    assert dict(explored.totals.coverage.sections["seeds"]) == {str(seed): 1 for seed in range(1000, 1050)}
    assert (explored.first, explored.last, explored.totals.worlds) == (1000, 1049, 50)
    assert (explored.totals.simulated_s, explored.totals.calls, explored.totals.violations) == (100.0, 150, [])
    assert explored.totals.slowest[1] in range(1000, 1050)


@pytest.mark.night
def test_what_was_explored_so_far_is_told_in_between() -> None:
    told: list[int] = []
    explore(60, first=0, jobs=1, tell=lambda explored: told.append(explored.totals.worlds), worker=worker())
    assert told == [20, 40, 60]


def test_it_ends_at_the_first_violation() -> None:
    explored = explore(10_000, first=0, jobs=1, worker=worker(VIOLATES_AT_25))
    assert explored.totals.violations == [(25, "I1 no dangling: a path")]
    assert explored.totals.worlds < 10_000
    assert report.problems(explored)[0] == "seed 25: I1 no dangling: a path"


def test_it_goes_on_after_a_violation_if_it_shall() -> None:
    explored = explore(100, first=0, jobs=1, keep_going=True, worker=worker(VIOLATES_AT_25))
    assert (explored.totals.worlds, len(explored.totals.violations)) == (100, 1)


@pytest.mark.night
def test_it_ends_when_time_is_over_and_what_was_begun_is_done() -> None:
    explored = explore(seconds=0.5, first=0, jobs=2, worker=worker())
    assert set(explored.totals.coverage.sections["seeds"]) == {str(seed) for seed in range(explored.totals.worlds)}


@pytest.mark.night
def test_a_worker_is_replaced_after_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEEDS_OF_A_WORKER", 40)
    explored = explore(80, first=0, jobs=1, worker=worker())
    assert list(explored.totals.coverage.sections["workers"].values()) == [40, 40]


@pytest.mark.parametrize(
    "what", ["if seed == 31: os._exit(7)", pytest.param("if seed == 31: raise SystemExit(7)", marks=pytest.mark.night)]
)
def test_a_worker_that_dies_is_an_error_that_names_its_seed(what: str) -> None:
    with pytest.raises(WorkerError, match=r"^the worker that ran seed 31 died with exit code 7; replay it with: make sim SEED=31$"):
        explore(60, first=0, jobs=1, worker=worker(what))


def test_a_world_that_does_not_end_is_an_error_that_names_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEED_ENDS_WITHIN_S", 3.0)
    with pytest.raises(WorkerError, match=r"^seed 31 did not end within 3 s; replay it with"):
        explore(60, first=0, jobs=1, worker=worker("if seed == 31: time.sleep(600)"))


def test_a_worker_that_cannot_start_is_an_error() -> None:
    with pytest.raises(WorkerError, match="died with exit code 3"):
        explore(60, first=0, jobs=1, worker=(sys.executable, "-c", "raise SystemExit(3)"))


@pytest.mark.night
def test_a_random_first_seed_is_another_one_each_time() -> None:
    firsts = {explore(1, jobs=1, worker=worker()).first for _ in range(2)}
    assert len(firsts) == 2


def test_what_is_missing_counts_only_when_there_were_enough_worlds() -> None:
    explored = ExploredSeeds(0, 1, Totals(worlds=module.SEEDS_TO_TELL_MIN - 1))
    assert report.problems(explored) == [] and "too few to tell" in (report.too_short(explored) or "")
    explored.totals.worlds += 1
    common, rare = "never met, in 2000 worlds: checks: I6 drained", "never met, in 2000 worlds: decisions: read again"
    assert common in report.problems(explored) and rare not in report.problems(explored)
    assert "decisions: read again" in (report.too_short(explored) or "")
    explored.totals.worlds = module.SEEDS_TO_TELL_ALL
    assert rare.replace("2000", "30000") in report.problems(explored)
    assert report.too_short(explored) is None


# --- replay --------------------------------------------------------------------------------------

REPLAY = """
import sys
from emulators.simulation.recipe import Recipe
from emulators.simulation.minimise import run_uncounted
for seed in map(int, sys.argv[1:]):
    print("\\n".join(run_uncounted(Recipe.of(seed)).trace))
"""
SEEDS = range(7, 12)


@pytest.mark.night
def test_a_seed_gives_the_same_trace_in_another_interpreter_with_other_hashes() -> None:
    """Other addresses and other hashes: neither may decide anything."""
    here = [line for seed in SEEDS for line in run_uncounted(Recipe.of(seed)).trace]
    assert len(here) > 100 * len(SEEDS)
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", REPLAY, *map(str, SEEDS)]
    there = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=120, check=True)
    assert there.stdout.splitlines() == here


def test_a_seed_is_replayed_with_what_it_chose_and_did() -> None:
    done = CliRunner().invoke(app, ["seed", "7"])
    assert done.exit_code == 0, done.output
    trace = run_uncounted(Recipe.of(7)).trace
    assert set(trace) <= set(done.output.splitlines())
    for actor in Recipe.of(7).actors:
        assert f"  {actor}" in done.output
    assert done.output.splitlines()[-1] == "every invariant holds"


def unfenced_seed() -> int:
    return next(seed for seed in range(300) if run_uncounted(Recipe.of(seed)).violation is not None)


def test_a_violation_is_found_made_small_and_can_be_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """End to end, with a guard knocked out: what is old is taken for garbage without being settled."""

    async def take_for_garbage(*_: object) -> bool:
        return True

    monkeypatch.setattr(tiered.protocol.finishing, "_is_garbage", take_for_garbage)
    seed = unfenced_seed()
    small = CliRunner().invoke(app, ["seed", str(seed)])
    whole = CliRunner().invoke(app, ["seed", str(seed), "--whole"])
    assert small.exit_code == whole.exit_code == 1
    violated = str(run_uncounted(Recipe.of(seed)).violation).partition(":")[0]
    assert f"\n{violated}: " in small.output and f"\n{violated}: " in whole.output
    assert whole.output.splitlines()[-1] == f"{violated} is violated, see above"
    assert f"make sim SEED={seed}" in small.output
    assert len(small.output) < len(whole.output) / 2, "the smallest run is not much smaller"


def test_a_violation_that_does_not_come_again_is_said_to_be_no_repeatable_one() -> None:
    explored = ExploredSeeds(7, 1, Totals(violations=[(7, "I1 no dangling: a path")]))
    assert list(report.first_violation(explored)) == ["seed 7 violates nothing when it is run again: the simulation does not repeat itself"]
    assert list(report.first_violation(ExploredSeeds(7, 1))) == []


# --- the command ---------------------------------------------------------------------------------


def test_a_run_prints_one_table_and_records_its_totals(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", "--seeds", "12", "--first", "100", "--jobs", "1", "--json", str(tmp_path / "totals.json")])
    assert done.exit_code == 0, done.output
    totals = json.loads((tmp_path / "totals.json").read_text())
    assert (totals["first"], totals["last"], totals["worlds"], totals["violations"]) == (100, 111, 12, [])
    assert totals["calls"] > 500 and totals["simulated_s"] > 1000 and totals["coverage"]["decisions"]["lease held"] > 20
    for name in ("seeds", "worlds", "seeds per second and core", "simulated", "calls", "slowest seed", "violations"):
        assert f"\n{name} " in f"\n{done.output}"
    for section in ("actors", "answers", "checks", "decisions", "faults"):
        assert f"\n{section} " in done.output
    assert "12 worlds are too few to tell" in done.output


def test_the_help_loads_no_more_than_it_needs() -> None:
    script = "import sys, emulators.simulation.__main__; sys.exit(any(name in sys.modules for name in ('trio', 'pydantic', 'tiered')))"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60, check=True)


@pytest.mark.parametrize(
    "arguments", [["seed"], ["seed", "x"], ["run", "--seeds", "0"], ["run", "--minutes", "0"], ["run", "--jobs", "0"], ["walk"]]
)
def test_a_wrong_command_line_is_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_totals_that_cannot_be_written_are_refused_before_anything_is_run(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", "--minutes", "600", "--json", str(tmp_path / "missing" / "totals.json")])
    assert done.exit_code == 2 and "cannot be written" in done.output
