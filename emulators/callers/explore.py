"""Seeds of callers, of the library or of the command: many on all cores, or one again, as small as shows its violation.

Both are done by what the simulation has for its seeds. `emulators.callers.worker` is a process that runs some.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from emulators.callers import command_lines, episode_run
from emulators.callers.episode_recipe import EpisodeRecipe
from emulators.callers.verdict import EpisodeResult, SeedRecipe
from emulators.simulation.explore import ExploredSeeds, Tell
from emulators.simulation.explore import explore as explore_seeds
from emulators.simulation.minimise import minimise

CALLERS: dict[str, tuple[Callable[[int], SeedRecipe], Callable[[Any], EpisodeResult]]] = {
    "library": (EpisodeRecipe.of, episode_run.run),
    "command": (command_lines.CommandRecipe.of, command_lines.run),
}
"""Who calls: what a seed chooses, and what runs it."""

MEMORY = "/dev/shm"
"""Files go here if it exists. What a killed worker leaves behind is removed with it at the end."""
RUNS_TO_MAKE_SMALL = 60


def explore(
    callers: str, seeds: int | None = None, seconds: float | None = None, first: int | None = None, jobs: int | None = None, *,
    keep_going: bool = False, tell: Tell = lambda explored: None,
) -> ExploredSeeds:
    """Runs seeds, as `emulators.simulation.explore` does. Its worlds are counted by their ground."""
    with tempfile.TemporaryDirectory(prefix="callers-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as place:
        worker = (sys.executable, "-m", "emulators.callers.worker", callers, place)
        return explore_seeds(seeds, seconds, first, jobs, keep_going=keep_going, tell=tell, worker=worker)


def run_seed(callers: str, seed: int) -> EpisodeResult:
    recipe_of, run = CALLERS[callers]
    return run(recipe_of(seed))


def replayed(callers: str, seed: int, *, whole: bool = False) -> tuple[bool, Iterator[str]]:
    """Runs a seed. Returns whether all went well, and what it chose, how the calls ended, and the verdict.

    If there is a violation, that is its smallest recipe, unless `whole` is set.
    """
    result = run_seed(callers, seed)
    return result.violation is None, _lines(result if whole else smallest(callers, result))


def smallest(callers: str, result: EpisodeResult) -> EpisodeResult:
    """Returns a run with as few steps as show a violation of the same kind."""
    if result.violation is None or result.violation.kind == "hang":
        return result  # each further run of one that hangs would take as long
    search: Any = minimise  # it is typed for the simulation, and asks no more than a `SeedRecipe` and a result have
    return search(result.recipe, result, RUNS_TO_MAKE_SMALL, CALLERS[callers][1])[1]  # type: ignore[no-any-return]


def _lines(result: EpisodeResult) -> Iterator[str]:
    yield from result.recipe.words()
    yield "what they told:"
    yield from (f"  {line}" for line in result.trace)
    found: BaseException | None = result.violation
    if found is None:
        yield "every call kept its word"
        return
    yield f"violation: {found}"
    if found.__cause__ is not None:
        yield from "".join(traceback.format_exception(found.__cause__)).splitlines()
