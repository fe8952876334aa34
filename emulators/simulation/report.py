"""What a person is told: of one seed, what it chose, did and broke; of many, what was explored. Plain lines."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

from emulators.simulation.coverage import RARE
from emulators.simulation.explore import SEEDS_TO_TELL_ALL, SEEDS_TO_TELL_MIN, Explored, replay
from emulators.simulation.minimise import minimise, run_uncounted
from emulators.simulation.recipe import Recipe, actor_part, outage_part, step_part
from emulators.simulation.run import Result


def replayed(seed: int, *, whole: bool = False) -> tuple[bool, Iterator[str]]:
    """Whether all went well, and what happened: the whole of it, or, of a violation, the smallest run that shows it."""
    recipe = Recipe.of(seed)
    result = run_uncounted(recipe)
    if result.violation is None or whole:
        return result.violation is None, (line for lines in (chosen(recipe), happened(result)) for line in lines)
    return False, minimised(recipe, result)


def minimised(recipe: Recipe, result: Result) -> Iterator[str]:
    """The smallest run that violates the same invariant."""
    small, found = minimise(recipe, result)
    yield from chosen(small)
    yield f"minimised: {len(found.parts)} of {len(result.parts)} parts are needed"
    yield from (f"  {part}" for part in found.parts if part.kind not in ("actor", "step", "outage"))
    yield from happened(found)
    yield replay(recipe.seed) + " (add ARGS=--whole for all of it)"


def chosen(recipe: Recipe) -> Iterator[str]:
    """What the seed chose: features, actors with their steps, outages."""
    uploads, log = "sessions" if recipe.sessions else "single requests", "durable" if recipe.durable else "none"
    weather = recipe.weather
    modes = ", ".join(mode.name for mode in weather.modes) or "none"
    legacy = ", one of older software" if recipe.legacy else ""
    yield f"seed {recipe.seed}: uploads: {uploads}; changelog: {log}; objects: {recipe.things}{legacy}"
    yield f"  faults: {weather.rate:g} of all calls, of {modes}; travel: up to {weather.travel_s:g} s"
    for actor in recipe.actors:
        if recipe.has(actor_part(actor)):
            yield f"  {actor}"
            yield from (f"    {number}: {step}" for number, step in enumerate(actor.steps) if recipe.has(step_part(actor, number)))
    yield from (f"  {outage}" for number, outage in enumerate(recipe.outages) if recipe.has(outage_part(outage, number)))


def happened(result: Result) -> Iterator[str]:
    """The trace, and the verdict."""
    yield from result.trace
    yield f"seed {result.seed}: {result.calls} calls in {result.simulated_s:.0f} simulated seconds"
    if result.violation is None:
        yield "every invariant holds"
        return
    if result.violation.__cause__ is not None:
        yield from "".join(traceback.format_exception(result.violation.__cause__)).splitlines()
    yield str(result.violation).partition("\n")[0]


def figures(explored: Explored) -> list[tuple[str, str]]:
    """The summary, as names and values."""
    totals = explored.totals
    hours, rate = totals.simulated_s / 3600, 1 / max(explored.elapsed_s, 1e-9)
    slowest_s, slowest = totals.slowest
    return [
        ("seeds", f"{explored.first} to {explored.last}"),
        ("worlds", f"{totals.worlds}"),
        ("time", f"{explored.elapsed_s:.0f} s on {explored.jobs} processes"),
        ("seeds per second and core", f"{explored.seeds_per_s:.1f}"),
        ("simulated", f"{hours:.1f} h; {hours * rate:.2f} h per second"),
        ("calls", f"{totals.calls}"),
        ("slowest seed", f"{slowest} ({slowest_s:.2f} s)"),
        ("violations", f"{len(totals.violations)}"),
    ]


def problems(explored: Explored) -> list[str]:
    """What is wrong: violations, and what no world met. Empty: nothing."""
    return [f"seed {seed}: {what}" for seed, what in explored.totals.violations] + [
        f"never met, in {explored.totals.worlds} worlds: {name}" for name in explored.missing()
    ]


def too_short(explored: Explored) -> str | None:
    """Says so where a run is too short to tell all that is missing."""
    worlds = explored.totals.worlds
    if worlds >= SEEDS_TO_TELL_ALL:
        return None
    if worlds < SEEDS_TO_TELL_MIN:
        return f"{worlds} worlds are too few to tell what is never met; {SEEDS_TO_TELL_MIN} suffice"
    unmet = [name for name in explored.totals.coverage.missing() if name.partition(": ")[2] in RARE]
    return f"not met, which {worlds} worlds are too few to blame: {', '.join(unmet)}" if unmet else None


def counts(explored: Explored) -> list[tuple[str, list[tuple[str, int]]]]:
    """By section, what was met how often."""
    sections = explored.totals.coverage.sections
    return [(section, sorted(names.items())) for section, names in sorted(sections.items()) if names]


def record(explored: Explored) -> dict[str, object]:
    """All of it, to be kept."""
    return {
        "first": explored.first, "last": explored.last, "jobs": explored.jobs, "elapsed_s": round(explored.elapsed_s, 1),
        "seeds_per_s_and_core": round(explored.seeds_per_s, 2), "missing": explored.missing(), **explored.totals.to_json(),
    }  # fmt: skip
