"""Whole worlds on the real Bigtable adapters: every invariant holds there too, and a seed is replayed call for call."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from emulators.simulation.coverage import Coverage
from emulators.simulation.recipe import Recipe
from emulators.simulation.run import RunResult, run

SEEDS = (0, 1, 2, *(pytest.param(seed, marks=pytest.mark.night) for seed in range(3, 10)))
"""Of the fresh seeds that a push has, some choose Bigtable."""


def on_bigtable(seed: int) -> RunResult:
    return run(replace(Recipe.of(seed), bigtable=True), Coverage())


@pytest.mark.parametrize("seed", SEEDS)
def test_worlds_on_bigtable_keep_every_invariant(seed: int) -> None:
    result = on_bigtable(seed)
    assert result.violation is None and result.calls > 10


@pytest.mark.night
def test_the_same_seed_gives_the_same_calls_in_another_interpreter() -> None:
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=environment, timeout=120, check=True)
    assert done.stdout.splitlines() == [line for seed in (1, 2) for line in on_bigtable(seed).trace]


def test_some_seeds_choose_bigtable_and_others_do_not() -> None:
    assert {Recipe.of(seed).bigtable for seed in range(100)} == {False, True}


def test_what_the_adapters_send_is_not_what_the_simulated_services_are_asked() -> None:
    """A world on Bigtable is one: a compare-and-swap that fails reads why."""
    assert any(on_bigtable(seed).trace != run(replace(Recipe.of(seed), bigtable=False), Coverage()).trace for seed in range(10))


if __name__ == "__main__":
    sys.stdout.write("\n".join(line for seed in (1, 2) for line in on_bigtable(seed).trace))
