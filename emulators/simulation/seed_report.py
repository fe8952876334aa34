"""What a person is told, as plain lines: for one seed, what it chose, did and broke; for many, what was explored."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterator

from emulators.simulation.coverage import RARE
from emulators.simulation.explore import SEEDS_TO_TELL_ALL, SEEDS_TO_TELL_MIN, ExploredSeeds, replay
from emulators.simulation.minimise import minimise, run_uncounted
from emulators.simulation.recipe import Recipe, RecipePart, actor_part, outage_part, step_part
from emulators.simulation.run import RunResult
from emulators.world.checker import InvariantViolation

AFTERWARDS = "afterwards:"


def replayed(seed: int, *, whole: bool = False) -> tuple[bool, Iterator[str]]:
    """Runs a seed. Returns whether all went well, and what happened.

    That is the whole run, or, if there is a violation, the smallest run that shows it.
    """
    recipe = Recipe.of(seed)
    result = run_uncounted(recipe)
    if result.violation is None or whole:
        return result.violation is None, (line for lines in (chosen(recipe), happened(result)) for line in lines)
    return False, minimised(recipe, result)


def first_violation(explored: ExploredSeeds) -> Iterator[str]:
    """Yields the smallest run that shows the first violation, or nothing if there is none."""
    for seed, _ in explored.totals.violations[:1]:
        well, lines = replayed(seed)
        yield from [f"seed {seed} violates nothing when it is run again: the simulation does not repeat itself"] if well else lines


def minimised(recipe: Recipe, result: RunResult) -> Iterator[str]:
    """Yields the smallest run that violates the same invariant, up to that moment."""
    small, found = minimise(recipe, result)
    yield from chosen(small.without([part for part in _parts(small) if part not in found.parts]))
    yield f"minimised: {len(found.parts)} of {len(result.parts)} parts are needed"
    yield from (f"  {part}" for part in found.parts if part not in _parts(small))
    yield from itertools.takewhile(lambda line: line is not AFTERWARDS, happened(found))
    yield replay(recipe.seed) + " (ARGS=--whole shows all of it)"


def chosen(recipe: Recipe) -> Iterator[str]:
    """Yields what the seed chose: features, actors with their steps, outages."""
    uploads, log = "sessions" if recipe.sessions else "single requests", "durable" if recipe.durable else "none"
    weather = recipe.weather
    modes = ", ".join(mode.name for mode in weather.modes) or "none"
    legacy = ", one of older software" if recipe.legacy else ""
    tiers = "the Bigtable adapters" if recipe.bigtable else f"simulated, with {'a' if recipe.horizon else 'no'} horizon"
    blobs = "the S3 adapter" if recipe.s3 else "simulated"
    yield f"seed {recipe.seed}: uploads: {uploads}; changelog: {log}; objects: {recipe.things}{legacy}"
    yield f"  rows and log: {tiers}; blobs: {blobs}"
    yield f"  limits: {'tight' if recipe.tight else 'as shipped'}; lingers for {recipe.lingers_s:g} s"
    yield f"  faults: {weather.rate:g} of all calls, of {modes}; travel: up to {weather.travel_s:g} s"
    yield from (line for part, line in _parts(recipe).items() if recipe.has(part))


def _parts(recipe: Recipe) -> dict[RecipePart, str]:
    """Returns a line for each actor, each of its steps, and each outage."""
    lines: dict[RecipePart, str] = {}
    for actor in recipe.actors:
        lines[actor_part(actor)] = f"  {actor}"
        if recipe.has(actor_part(actor)):
            lines |= {step_part(actor, number): f"    {number}: {step}" for number, step in enumerate(actor.steps)}
    return lines | {outage_part(outage, number): f"  {outage}" for number, outage in enumerate(recipe.outages)}


def happened(result: RunResult) -> Iterator[str]:
    """Yields the trace and the verdict. A violation appears at the place where it was seen."""
    moment = len(result.trace) if result.violation is None else _moment(result.violation, result.trace)
    yield from result.trace[:moment]
    if result.violation is not None:
        if result.violation.__cause__ is not None:
            yield from "".join(traceback.format_exception(result.violation.__cause__)).splitlines()
        yield f"{result.violation.invariant}: {result.violation.finding}"
        yield AFTERWARDS
        yield from result.trace[moment:]
    yield f"seed {result.seed}: {result.calls} calls in {result.simulated_s:.0f} simulated seconds"
    yield "every invariant holds" if result.violation is None else f"{result.violation.invariant} is violated, see above"


def _moment(violation: InvariantViolation, trace: list[str]) -> int:
    """Returns how much of the trace led to the violation: its message ends with the last line of that part."""
    last = str(violation).splitlines()[-1].removeprefix("    ")
    return next((number for number in range(len(trace), 0, -1) if trace[number - 1] == last), len(trace))


def figures(explored: ExploredSeeds) -> list[tuple[str, str]]:
    """Returns the summary, as names and values."""
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


def sentence(explored: ExploredSeeds, worlds: str = "worlds of the simulation") -> str:
    """Returns the line that names what ran. `.ci/night` looks for how it begins."""
    totals = explored.totals
    return (
        f"seeds: {explored.first} to {explored.last}, {totals.worlds} {worlds}, {totals.calls} calls,"
        f" {totals.cpu_s:.0f} s of CPU, {len(totals.violations)} violations"
    )


def problems(explored: ExploredSeeds) -> list[str]:
    """Returns what is wrong: violations, and what no world met. Empty if nothing is wrong."""
    return [f"seed {seed}: {what}" for seed, what in explored.totals.violations] + [
        f"never met, in {explored.totals.worlds} worlds: {name}" for name in explored.missing()
    ]


def too_short(explored: ExploredSeeds) -> str | None:
    """Returns a sentence if the run was too short to tell all that is missing, else None."""
    worlds = explored.totals.worlds
    if worlds >= SEEDS_TO_TELL_ALL:
        return None
    if worlds < SEEDS_TO_TELL_MIN:
        return f"{worlds} worlds are too few to tell what is never met; {SEEDS_TO_TELL_MIN} suffice"
    unmet = [name for name in explored.totals.coverage.missing() if name.partition(": ")[2] in RARE]
    return f"not met, which {worlds} worlds are too few to blame: {', '.join(unmet)}" if unmet else None


def counts(explored: ExploredSeeds) -> list[tuple[str, list[tuple[str, int]]]]:
    """Returns by section how often each name was met."""
    sections = explored.totals.coverage.sections
    return [(section, sorted(names.items())) for section, names in sorted(sections.items()) if names]


def record(explored: ExploredSeeds) -> dict[str, object]:
    """Returns everything, for a file."""
    return {
        "first": explored.first, "last": explored.last, "jobs": explored.jobs, "elapsed_s": round(explored.elapsed_s, 1),
        "seeds_per_s_and_core": round(explored.seeds_per_s, 2), "missing": explored.missing(), **explored.totals.to_json(),
    }  # fmt: skip
