"""`python -m emulators.feed_worlds`: worlds with a change feed, from the command line. `make sim` calls it.

    --seeds N        explore so many seeds, on all cores; from --first on, or from a random one
    --seed N         replay one seed: its calls, and the verdict
    --crashes        one history, and a crash of the writer at every call
    --mutations N    so many random changes, while writers are killed
    --beside OTHER   of --seeds and --seed, worlds with processes of another code, too: `released`, or a commit
    --guards         knock out each guard of the feed, and count the seeds until a violation shows it

Exit codes: 0: all held, and every missing guard was found. 1: otherwise. 2: the command line is wrong.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable

from emulators.feed_worlds import crashes
from emulators.feed_worlds.guards import GUARDS
from emulators.feed_worlds.mutations import mutate
from emulators.released import NotReleasedError
from emulators.simulation.coverage import Coverage
from emulators.simulation.explore import explore
from emulators.simulation.guard_search import search
from emulators.simulation.run import RunSeed
from emulators.simulation.seed_report import sentence
from emulators.simulation.worker import command, worlds
from emulators.world.checker import InvariantViolation
from emulators.world.code import CodeError

GUARD_SEEDS = 1000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m emulators.feed_worlds", description="Worlds with a change feed.")
    parser.add_argument("--seeds", type=int, help="explore so many seeds")
    parser.add_argument("--first", type=int, help="the first seed; a random one unless given")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--crashes", action="store_true", help="a crash of the writer at every call of one history")
    parser.add_argument("--mutations", type=int, help="so many random changes, while writers are killed")
    parser.add_argument("--guards", action="store_true", help="knock out each guard in turn")
    parser.add_argument("--beside", help="with processes of another code: released (the last release), or a commit")
    chosen = parser.parse_args()
    logging.disable()
    try:
        world = worlds(feed=True, beside=chosen.beside)
    except (NotReleasedError, CodeError) as error:
        sys.stderr.write(f"feed_worlds: {error}\n")
        return 1
    well = True
    if chosen.seed is not None:
        well &= _replay(world, chosen.seed)
    if chosen.seeds is not None:
        well &= _explore(chosen.seeds, chosen.first, chosen.beside)
    if chosen.crashes:
        for call, ending in crashes.schedules():
            well &= _holds(f"{ending.name} at call {call}", crashes.crashed, call, ending)
        _say("crashes: every call, with every ending")
    if chosen.mutations is not None:
        well &= _holds(f"{chosen.mutations} changes", mutate, 1, chosen.mutations)
        _say(f"mutations: {chosen.mutations} changes")
    if chosen.guards:
        for name in GUARDS:
            well &= GUARDS[name].seed is None or _is_found(name)
    return 0 if well else 1


def _replay(world: RunSeed, seed: int) -> bool:
    result = world(seed, Coverage())
    for line in result.trace:
        _say(line)
    _say("every invariant holds" if result.violation is None else str(result.violation))
    return result.violation is None


def _explore(seeds: int, first: int | None, beside: str | None) -> bool:
    explored = explore(seeds, first=first, worker=command(feed=True, beside=beside))
    totals = explored.totals
    _say(sentence(explored, "worlds with a feed"))
    for name, times in sorted((totals.coverage.sections["lives"] | totals.coverage.sections["checks"]).items()):
        _say(f"{times:>10} {name}")
    for seed, what in totals.violations:
        _say(f"seed {seed}: {what}; replay it with: make sim-feed SEED={seed}")
    return not totals.violations


def _holds(what: str, work: Callable[..., object], *given: object) -> bool:
    """Tells whether the work raises no violation."""
    failed: list[BaseException] = []
    try:
        work(*given)
    except* InvariantViolation as group:
        failed += group.exceptions
    for error in failed:
        _say(f"{what}: {error}")
    return not failed


def _is_found(name: str) -> bool:
    found = search(name, GUARD_SEEDS, feed=True)
    _say(f"{name}: {'not found' if found.seed is None else f'seed {found.seed}, {found.what}'}")
    return found.seed is not None


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
