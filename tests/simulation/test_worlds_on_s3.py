"""Whole worlds on the real S3 adapter: every invariant holds there too, and a seed is replayed call for call."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from emulators.simulation.coverage import Coverage
from emulators.simulation.recipe import Recipe
from emulators.simulation.run import RunResult, run

SEEDS = range(10)


def on_s3(seed: int) -> RunResult:
    return run(Recipe.of_simulated_blobs(seed).on_s3(), Coverage())


@pytest.mark.parametrize("seed", SEEDS)
def test_worlds_on_s3_keep_every_invariant(seed: int) -> None:
    coverage = Coverage()
    result = run(Recipe.of_simulated_blobs(seed).on_s3(), coverage)
    assert result.violation is None and result.calls > 10
    assert coverage.sections["checks"]["nothing is left in a bucket"] == 1


def test_the_same_seed_gives_the_same_calls_in_another_interpreter() -> None:
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=environment, timeout=120, check=True)
    assert done.stdout.splitlines() == [line for seed in (1, 2) for line in on_s3(seed).trace]


def test_some_seeds_choose_s3_and_the_others_are_what_they_were() -> None:
    chosen = [Recipe.of(seed) for seed in range(1000)]
    assert 100 < sum(recipe.s3 for recipe in chosen) < 200
    assert all(recipe == Recipe.of_simulated_blobs(recipe.seed) for recipe in chosen if not recipe.s3)
    assert {recipe.bigtable for recipe in chosen if recipe.s3} == {False, True}


if __name__ == "__main__":
    sys.stdout.write("\n".join(line for seed in (1, 2) for line in on_s3(seed).trace))
