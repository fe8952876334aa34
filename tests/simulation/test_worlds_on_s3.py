"""Whole worlds on the real S3 adapter: every invariant holds there too, and a seed is replayed call for call."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from emulators.simulation.coverage import Coverage
from emulators.simulation.guards import S3_GUARDS
from emulators.simulation.recipe import Life, Recipe, Weather
from emulators.simulation.run import RunResult, run
from emulators.world.faults import Mode

SEEDS = (0, 1, 2, *(pytest.param(seed, marks=pytest.mark.night) for seed in range(3, 10)))
"""Of the fresh seeds that a push has, one in seven chooses S3."""
STORMS = {
    "create-only request in S3": (4, Life.SOON, Weather(0.4, (Mode.DUPLICATED,), 0.01), "I7 whole"),
    "deadline before its blob in S3": (12, Life.SOON, Weather(0.4, (Mode.UNAVAILABLE, Mode.DROPPED), 0.01), "I3 no leak"),
    "later deadline before the earlier goes in S3": (
        809, Life.IDLE, Weather(0.2, (Mode.UNAVAILABLE, Mode.CRASH_AFTER, Mode.CRASH_BEFORE), 0.01), "I3 no leak",
    ),
}  # fmt: skip
"""For each guard: a seed, how long all objects of its world live, its weather, and what is found without the guard."""


def on_s3(seed: int) -> RunResult:
    return run(Recipe.of_simulated_blobs(seed).on_s3(), Coverage())


@pytest.mark.parametrize("seed", SEEDS)
def test_worlds_on_s3_keep_every_invariant(seed: int) -> None:
    coverage = Coverage()
    result = run(Recipe.of_simulated_blobs(seed).on_s3(), coverage)
    assert result.violation is None and result.calls > 10
    assert coverage.sections["checks"]["nothing is left in a bucket"] == 1


@pytest.mark.night
def test_the_same_seed_gives_the_same_calls_in_another_interpreter() -> None:
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=environment, timeout=120, check=True)
    assert done.stdout.splitlines() == [line for seed in (1, 2) for line in on_s3(seed).trace]


def test_some_seeds_choose_s3_and_the_others_are_what_they_were() -> None:
    chosen = [Recipe.of(seed) for seed in range(1000)]
    assert 100 < sum(recipe.s3 for recipe in chosen) < 200
    assert all(recipe == Recipe.of_simulated_blobs(recipe.seed) for recipe in chosen if not recipe.s3)
    assert {recipe.bigtable for recipe in chosen if recipe.s3} == {False, True}


@pytest.mark.parametrize("name", S3_GUARDS)
def test_a_missing_guard_is_found_out_in_its_weather_and_with_it_the_world_is_clean(name: str) -> None:
    seed, life, weather, invariant = STORMS[name]
    recipe = stormy(seed, life, weather)
    assert run(recipe, Coverage()).violation is None
    with S3_GUARDS[name].knocked_out():
        violation = run(recipe, Coverage()).violation
    assert violation is not None and violation.invariant == invariant


def stormy(seed: int, life: Life, weather: Weather) -> Recipe:
    """A world of single requests in this weather, all of whose objects live so long."""
    recipe = Recipe.of_simulated_blobs(seed).on_s3()
    actors = tuple(
        replace(actor, weather=None, steps=tuple(replace(step, life=life) for step in actor.steps)) for actor in recipe.actors
    )
    return replace(recipe, sessions=False, weather=weather, outages=(), actors=actors)


if __name__ == "__main__":
    sys.stdout.write("\n".join(line for seed in (1, 2) for line in on_s3(seed).trace))
