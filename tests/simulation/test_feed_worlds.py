"""Worlds with a change feed: some seeds, some crashes, some changes; and each missing guard is found by its seed."""

from __future__ import annotations

import pytest

from emulators.feed_worlds import crashes
from emulators.feed_worlds.guards import GUARDS
from emulators.feed_worlds.mutations import mutate
from emulators.feed_worlds.recipe import FeedRecipe
from emulators.feed_worlds.recipe_run import run
from emulators.simulation.coverage import Coverage
from emulators.world.checker import InvariantViolation
from tests.suites import share

SEEDS = range(1, 7)


def test_some_worlds_hold_every_invariant_and_check_each() -> None:
    coverage = Coverage()
    assert [(seed, violation) for seed in SEEDS if (violation := run(FeedRecipe.of(seed), coverage).violation)] == []
    checked = coverage.sections["checks"]
    for name in ("no blob is deleted before its -1", "the view at a frontier", "forgotten when it is published", "progress is contiguous"):
        assert checked[name], name


def test_the_same_seed_makes_the_same_calls() -> None:
    first, second = (run(FeedRecipe.of(1), Coverage()).trace for _ in range(2))
    assert first == second


def test_after_a_crash_at_some_calls_a_new_writer_makes_the_feed_exact() -> None:
    for call, ending in crashes.schedules(every=180):
        crashes.crashed(call, ending)


@pytest.mark.night
def test_after_a_crash_at_every_call_a_new_writer_makes_the_feed_exact() -> None:
    for call, ending in crashes.schedules():
        crashes.crashed(call, ending)


def test_after_many_changes_with_kills_the_view_is_what_rows_hold() -> None:
    fed = mutate(1, 150)
    assert fed.watch.generation is not None
    assert fed.watch.generation.updates


@pytest.mark.parametrize("name", share([name for name, guard in GUARDS.items() if guard.seed is not None], 6))
def test_a_missing_guard_is_found_by_its_seed(name: str) -> None:
    seed = GUARDS[name].seed
    assert seed is not None
    with GUARDS[name].knocked_out():
        found = run(FeedRecipe.of(seed), Coverage()).violation
    assert found is not None, "it is found no more; find another seed: make sim-feed ARGS=--guards"
    assert run(FeedRecipe.of(seed), Coverage()).violation is None


def test_a_violation_of_a_crashed_history_is_raised() -> None:
    with GUARDS["deletion after the -1"].knocked_out(), pytest.raises((InvariantViolation, BaseExceptionGroup)):
        crashes.crashed(1, crashes.ENDINGS[0])
