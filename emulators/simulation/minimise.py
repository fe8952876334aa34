"""Makes a small failing run from a large one: leave out what the violation does not need.

    actors -> steps -> outages, faults, suspensions      again from the first, until no stage leaves anything out

Each stage is delta debugging (ddmin; Zeller and Hildebrandt, 2002): keep only one of n chunks, else all but one of
them, else cut into smaller chunks. A smaller run counts if it violates the same invariant. Parts depend on one another:
a fault is met only where its call is made. So the parts that play a role are looked up again after each run. It is
deterministic, and the number of runs is limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from emulators.simulation.coverage import Coverage
from emulators.simulation.recipe import Recipe, RecipePart
from emulators.simulation.run import RunResult, run

STAGES = (("actor",), ("step",), ("outage", "fault", "suspension"))

Run = Callable[[Recipe], RunResult]


def run_uncounted(recipe: Recipe) -> RunResult:
    return run(recipe, Coverage())


def minimise(recipe: Recipe, result: RunResult, runs_max: int = 400, run: Run = run_uncounted) -> tuple[Recipe, RunResult]:
    """Returns the smallest recipe found whose run violates the same invariant as `result`, and that run."""
    search = _MinimiseSearch(recipe, result, runs_max, run)
    while any(search.reduce(kinds) for kinds in STAGES):  # begin again if a stage left something out
        pass
    return search.recipe, search.result


class _MinimiseSearch:
    """One search. `recipe` and `result` are the smallest so far."""

    def __init__(self, recipe: Recipe, result: RunResult, runs_max: int, run: Run) -> None:
        assert result.violation is not None, "only a failing run is made smaller"
        self.recipe = recipe
        self.result = result
        self._invariant = result.violation.invariant
        self._runs_left = runs_max
        self._run = run
        self._tried: set[frozenset[RecipePart]] = set()

    def reduce(self, kinds: Sequence[str]) -> bool:
        """Does one stage: ddmin over the parts of these kinds. Returns whether anything could be left out."""
        began = self._size()
        parts, chunks = self._parts(kinds), 1
        while parts and chunks <= len(parts):
            if self._any_smaller(parts, chunks):
                parts = self._parts(kinds)
                chunks = max(1, min(len(parts), chunks - 1))
            elif chunks == len(parts):
                break
            else:
                chunks = min(len(parts), chunks * 2)
        return self._size() < began

    def _any_smaller(self, parts: list[RecipePart], chunks: int) -> bool:
        """Tries to keep nothing or only one chunk. Then tries to leave out one chunk."""
        cut = list(_cut(parts, chunks))
        kept: list[list[RecipePart]] = [[]] if chunks == 1 else []
        if chunks > 1:
            kept += cut
        if chunks > 2:
            kept += [[part for part in parts if part not in chunk] for chunk in cut]
        return any(self._try(frozenset(parts) - frozenset(each)) for each in kept)

    def _try(self, less: frozenset[RecipePart]) -> bool:
        """Leaves these parts out too, if the run still fails and has become smaller."""
        recipe = self.recipe.without(less)
        if self._runs_left <= 0 or recipe.left_out in self._tried:
            return False
        self._tried.add(recipe.left_out)
        self._runs_left -= 1
        result = self._run(recipe)
        if result.violation is None or result.violation.invariant != self._invariant or self._size_of(result) >= self._size():
            return False
        self.recipe, self.result = recipe, result
        return True

    def _parts(self, kinds: Sequence[str]) -> list[RecipePart]:
        return [part for part in self.result.parts if part.kind in kinds]

    def _size(self) -> tuple[int, ...]:
        return self._size_of(self.result)

    def _size_of(self, result: RunResult) -> tuple[int, ...]:
        """Returns the number of parts by stage.

        A run without an actor may have more faults, but it counts as smaller all the same. So the search ends.
        """
        return tuple(sum(part.kind in kinds for part in result.parts) for kinds in STAGES)


def _cut(parts: list[RecipePart], chunks: int) -> Iterator[list[RecipePart]]:
    """Cuts the parts into this many chunks, as equal as possible, in order."""
    for number in range(chunks):
        yield parts[len(parts) * number // chunks : len(parts) * (number + 1) // chunks]
