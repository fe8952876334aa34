"""A failing run is made small: what is left violates the same invariant, and nothing of it can be left out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from emulators.simulation.minimise import Run, minimise
from emulators.simulation.recipe import Recipe, RecipePart, Weather
from emulators.simulation.run import RunResult
from emulators.world.checker import InvariantViolation

ACTORS = [RecipePart("actor", f"actor-{number}") for number in range(5)]
STEPS = [RecipePart("step", f"actor-{number % 5}", str(number)) for number in range(20)]
FAULTS = [RecipePart("fault", f"actor-{number % 5}", f"rows.swap #{number}") for number in range(40)]
SUSPENSION = RecipePart("suspension", "actor-1", "log.renew #1")
PARTS = [*ACTORS, *STEPS, *FAULTS, SUSPENSION]


def worlds(broken: Callable[[set[RecipePart]], str | None], parts: Sequence[RecipePart] = PARTS) -> tuple[Run, list[Recipe]]:
    """A run in which an actor that is left out takes its parts with it, and all that were run.

    `broken` names the invariant.
    """
    made: list[Recipe] = []

    def run(recipe: Recipe) -> RunResult:
        made.append(recipe)
        acting = {part.where for part in parts if part.kind == "actor" and recipe.has(part)}
        role = [part for part in parts if recipe.has(part) and part.where in acting]
        invariant = broken(set(role))
        violation = None if invariant is None else InvariantViolation(invariant, f"with {len(role)} parts")
        return RunResult(recipe.seed, violation, [], 0.0, 0, tuple(role))

    return run, made


def smallest(run: Run, runs_max: int = 400) -> tuple[Recipe, RunResult]:
    recipe = Recipe(7, (), Weather())
    return minimise(recipe, run(recipe), runs_max, run)


def needs(*needed: RecipePart) -> Callable[[set[RecipePart]], str | None]:
    return lambda role: "I1 no dangling" if role.issuperset(needed) else None


@pytest.mark.parametrize(
    "needed",
    [
        [ACTORS[2]],
        [ACTORS[2], STEPS[7]],
        [ACTORS[0], ACTORS[1], STEPS[5], STEPS[6], FAULTS[11], FAULTS[15], FAULTS[36]],
        [ACTORS[1], SUSPENSION],
        PARTS,
    ],
    ids=["an actor", "a step", "two actors and faults", "a suspension", "everything"],
)
def test_what_is_left_is_what_is_needed(needed: list[RecipePart]) -> None:
    run, _ = worlds(needs(*needed))
    recipe, result = smallest(run)
    assert list(result.parts) == needed
    assert run(recipe).parts == result.parts


def test_what_fails_without_anything_is_left_without_anything() -> None:
    run, made = worlds(lambda role: "I6 drained")
    _, result = smallest(run)
    assert result.parts == ()
    assert len(made) == 2, "to leave out everything is tried first"


def test_another_violation_is_not_taken_for_it() -> None:
    def broken(role: set[RecipePart]) -> str | None:
        return "I1 no dangling" if {ACTORS[3], STEPS[8]} <= role else "I4 honest"

    run, _ = worlds(broken)
    _, result = smallest(run)
    assert str(result.violation).startswith("I1 no dangling:")
    assert list(result.parts) == [ACTORS[3], STEPS[8]]


def test_a_part_that_hides_the_violation_unless_another_is_there_is_found_out() -> None:
    """Not monotone: STEPS[3] alone prevents what FAULTS[13] brings about, unless STEPS[18] comes with it."""

    def broken(role: set[RecipePart]) -> str | None:
        hidden = STEPS[3] in role and STEPS[18] not in role
        return "I2 settle first" if FAULTS[13] in role and not hidden else None

    run, _ = worlds(broken)
    _, result = smallest(run)
    assert list(result.parts) == [ACTORS[3], FAULTS[13]]


def test_an_actor_goes_even_if_more_faults_are_met_without_it() -> None:
    more = [RecipePart("fault", "actor-0", f"rows.read #{number}") for number in range(30)]

    def run(recipe: Recipe) -> RunResult:
        actors = [actor for actor in ACTORS[:2] if recipe.has(actor)]
        faults = [] if ACTORS[1] in actors or not actors else [part for part in more if recipe.has(part)]
        violation = InvariantViolation("I3 no leak", "a blob") if ACTORS[0] in actors else None
        return RunResult(recipe.seed, violation, [], 0.0, 0, (*actors, *faults))

    _, result = smallest(run)
    assert result.parts == (ACTORS[0],)


def test_what_becomes_larger_by_leaving_something_out_is_not_taken() -> None:
    """A fault that kills an actor keeps it from its further steps."""

    def run(recipe: Recipe) -> RunResult:
        steps = [] if recipe.has(FAULTS[0]) else [part for part in STEPS if recipe.has(part)]
        parts = [part for part in (ACTORS[0], *steps, FAULTS[0]) if recipe.has(part)]
        violation = InvariantViolation("I3 no leak", "a blob") if recipe.has(ACTORS[0]) and (steps or recipe.has(FAULTS[0])) else None
        return RunResult(recipe.seed, violation, [], 0.0, 0, tuple(parts))

    _, result = smallest(run)
    assert result.parts == (ACTORS[0], FAULTS[0])


@pytest.mark.parametrize("seed", range(20))
def test_no_single_part_of_the_smallest_can_be_left_out(seed: int) -> None:
    """Violations that any of several causes brings about, and that some parts prevent."""
    chance = random.Random(seed)
    causes = [set(chance.sample(PARTS, chance.randrange(1, 6))) for _ in range(4)]
    preventing = [set(chance.sample(PARTS, 2)) for _ in range(3)]

    def broken(role: set[RecipePart]) -> str | None:
        prevented = any(len(pair & role) == 1 for pair in preventing)
        return "I1 no dangling" if role == set(PARTS) or (any(cause <= role for cause in causes) and not prevented) else None

    run, _ = worlds(broken)
    recipe, result = smallest(run, 5000)
    assert result.violation is not None
    for part in result.parts:
        less = run(recipe.without([part]))
        assert less.violation is None, f"{part} is not needed"


def test_it_is_bounded_by_runs_and_returns_the_smallest_so_far() -> None:
    run, made = worlds(needs(ACTORS[0], FAULTS[5], FAULTS[10], FAULTS[35]))
    _, result = smallest(run, runs_max=10)
    assert len(made) == 1 + 10
    assert result.violation is not None and len(result.parts) < len(PARTS)


def test_the_same_run_is_made_smaller_in_the_same_way_and_none_is_run_twice() -> None:
    run, made = worlds(needs(ACTORS[0], STEPS[10], FAULTS[5]))
    first, _ = smallest(run)
    once = [recipe.left_out for recipe in made]
    assert len(set(once)) == len(once)
    made.clear()
    second, _ = smallest(run)
    assert [recipe.left_out for recipe in made] == once and second == first
