"""Worlds in which processes of the last release and of this checkout work on one store; and what two codes may not do.

A *next* version is this checkout with a line changed: so the failures that the worlds are for are planted here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from emulators.feed_worlds import recipe_run
from emulators.feed_worlds.recipe import FeedRecipe
from emulators.simulation.beside import KINDS, WORLDS_TO_TELL, missing, other_code, run_before, run_both
from emulators.simulation.coverage import Coverage
from emulators.simulation.run import LEFT_TO_NEWER
from emulators.world.checker import InvariantViolation
from emulators.world.code import TODAY, Code, CodeError, beside
from tests.given.repository import ROOT

RENAMES_A_FIELD = {"changelog/change.py": [
    ('"v": 1, "id": change.object', '"v": 1, "object": change.object'), ('_text(value, "id")', '_text(value, "object")'),
]}  # fmt: skip
ADDS_A_FIELD = {"changelog/change.py": [('"v": 1, "id": change.object', '"v": 1, "colour": "red", "id": change.object')]}
REFUSES_ELSEWHERE = {"tiered/bigtable/rows.py": [('_REFUSED, _RESERVED = "w:", "r:", b"x"', '_REFUSED, _RESERVED = "w:", "q:", b"x"')]}
WRITES_VERSION_2 = {"changelog/change.py": [
    ('"v": 1, "id": change.object', '"v": 2, "object": change.object'), ("version > 1:", "version > 2:"),
    ("if version != 1:", "if version not in (1, 2):"), ('_text(value, "id")', '_text(value, "object" if version == 2 else "id")'),
]}  # fmt: skip
PARKS_WHAT_IS_NEWER = {"changelog/lease.py": [("EntryState.NEWER if entry.newer else EntryState.UNREADABLE", "EntryState.UNREADABLE")]}
SEEDS = range(4)


@pytest.fixture(scope="module")
def released() -> Code:
    return other_code("released")


@pytest.fixture(scope="module")
def adding() -> Code:
    return beside("adding", ROOT, ADDS_A_FIELD)


@pytest.fixture(scope="module")
def next_version() -> Code:
    return beside("next", ROOT, WRITES_VERSION_2)


def violations(other: Code, coverage: Coverage) -> Iterator[InvariantViolation]:
    """Yields what worlds beside this code show, one seed after the other."""
    for seed in count():
        if (violation := run_both(seed, coverage, other).violation) is not None:
            yield violation


def test_processes_of_the_release_and_of_this_checkout_keep_every_invariant_together(released: Code) -> None:
    coverage = Coverage()
    assert [violation for seed in SEEDS if (violation := run_both(seed, coverage, released).violation)] == []
    lives = coverage.sections["lives"]
    assert all(lives[f"{kind} of {code.name}"] for kind in ("writer", "reader", "recoverer", "last recovery") for code in (TODAY, released))


def test_so_do_they_with_a_change_feed(released: Code) -> None:
    coverage, codes = Coverage(), (TODAY, released)
    recipes = [FeedRecipe.of(seed).on_services() for seed in (1, 2)]
    assert [violation for recipe in recipes if (violation := recipe_run.run(recipe, coverage, codes).violation)] == []
    assert all(coverage.sections["lives"][f"feeder of {code.name}"] for code in codes)


def test_the_same_seed_makes_the_same_calls(released: Code) -> None:
    first, second = (run_both(3, Coverage(), released).trace for _ in range(2))
    assert first == second and len(first) > 10


def test_what_the_other_code_runs_is_its_own(released: Code) -> None:
    store = released.module("tiered.storage").TieredStorage
    assert Path(released.module("tiered.storage").__file__).is_relative_to(ROOT / "build" / "released")
    assert not issubclass(store, TODAY.module("tiered.storage").TieredStorage)
    assert released.module("emulators.world.client").TieredStorage is store
    assert released.module("emulators.world.client").Ghost is TODAY.module("emulators.world.client").Ghost


def test_a_next_version_that_adds_a_field_to_an_entry_gets_on_with_this_one(adding: Code) -> None:
    written = adding.module("changelog.change")
    entry = written.Entry(written.Change(written.ChangeId("018bcfe5-6800-7000-8000-000000000000"), "a/objects/b"), "key", "me", 0, None, 0)
    assert json.loads(written.encode(entry))["colour"] == "red"
    coverage = Coverage()
    assert [violation for seed in SEEDS[:2] if (violation := run_both(seed, coverage, adding).violation)] == []


def test_a_next_version_whose_entries_this_one_cannot_read_is_found_out() -> None:
    found = violations(beside("next", ROOT, RENAMES_A_FIELD), Coverage())
    parked = next(violation for violation in found if "one code parks what another can do" in violation.finding)
    assert parked.invariant == "I6 drained"


@pytest.mark.night
def test_a_next_version_whose_refusals_this_one_does_not_see_is_found_out() -> None:
    assert next(violations(beside("next", ROOT, REFUSES_ELSEWHERE), Coverage())).invariant.startswith("I")


def test_entries_of_a_next_version_are_left_to_it_and_it_finishes_them(next_version: Code) -> None:
    coverage = Coverage()
    assert [violation for seed in SEEDS[:2] if (violation := run_before(seed, coverage, TODAY, next_version).violation)] == []
    assert coverage.sections["checks"][LEFT_TO_NEWER] >= 2


@pytest.mark.night
def test_the_release_leaves_them_too_with_and_without_a_change_feed(released: Code, next_version: Code) -> None:
    coverage, codes = Coverage(), (released, next_version)
    assert [violation for seed in range(30) if (violation := run_before(seed, coverage, *codes).violation)] == []
    recipes = [FeedRecipe.of(seed).on_services() for seed in range(10)]
    assert [violation for recipe in recipes if (violation := recipe_run.run(recipe, coverage, codes, next_version).violation)] == []
    lives = coverage.sections["lives"]
    assert coverage.sections["checks"][LEFT_TO_NEWER] > 40
    assert all(lives[f"{kind} of {code.name}"] for kind in ("writer", "recoverer", "operator", "feeder") for code in codes)


def test_code_that_parks_what_newer_software_recorded_is_found_out(next_version: Code) -> None:
    found = run_before(0, Coverage(), beside("parking", ROOT, PARKS_WHAT_IS_NEWER), next_version).violation
    assert found is not None and "was parked after 0 claims" in found.finding


def test_code_that_works_on_what_newer_software_recorded_is_found_out(next_version: Code) -> None:
    found = run_before(0, Coverage(), beside("working", ROOT, WRITES_VERSION_2), next_version).violation
    assert found is not None and "of newer software was" in found.finding


def test_a_role_that_was_met_in_one_code_only_is_told() -> None:
    coverage = Coverage()
    for kind in KINDS:
        coverage.count("lives", f"{kind} of today")
    assert missing(coverage, WORLDS_TO_TELL, "0.1.0") == [f"{kind} of 0.1.0" for kind in KINDS]
    assert missing(coverage, WORLDS_TO_TELL - 1, "0.1.0") == []


def test_what_is_no_checkout_and_what_is_not_there_to_be_changed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CodeError, match=r"has no package changelog: name the root of a checkout"):
        beside("none", tmp_path)
    with pytest.raises(CodeError, match=r"change\.py has 'no such line' 0 times"):
        beside("none", ROOT, {"changelog/change.py": [("no such line", "")]})
    with pytest.raises(CodeError, match=r"nothing has loaded recovery/cli/main\.py, so its edits say nothing"):
        beside("none", ROOT, {"recovery/cli/main.py": [("import", "import")]})
    for package in ("changelog", "tiered", "recovery"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    with pytest.raises(CodeError, match=r"the simulators of this checkout cannot run other: No module named 'changelog\.base'"):
        beside("other", tmp_path)
