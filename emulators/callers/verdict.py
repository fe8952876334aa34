"""What the run of one seed has shown, as `emulators.simulation.minimise` needs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from emulators.simulation.recipe import RecipePart
from emulators.world.checker import InvariantViolation


class Violation(InvariantViolation):
    """Something that the product must not do. `kind`: a short name for the rule that it breaks."""

    @property
    def kind(self) -> str:
        return self.invariant


class SeedRecipe(Protocol):
    """What a seed chose. `without` leaves out steps, and the others stay the same."""

    @property
    def seed(self) -> int: ...
    @property
    def ground(self) -> str: ...
    @property
    def steps(self) -> Sequence[Any]: ...
    def without(self, parts: Iterable[RecipePart]) -> Self: ...
    def words(self) -> Iterator[str]: ...


@dataclass(slots=True)
class EpisodeResult:
    """`worlds`: how many were run. `recipe`: that of the last."""

    recipe: SeedRecipe
    violation: Violation | None = None
    trace: list[str] = field(default_factory=list)
    calls: int = 0
    worlds: int = 1

    @property
    def parts(self) -> tuple[RecipePart, ...]:
        return tuple(step_part(step.number) for step in self.recipe.steps)


def step_part(number: int) -> RecipePart:
    return RecipePart("step", str(number))
