"""A process that runs the seeds it is asked for: `python -m emulators.simulation.worker`.

    --feed             worlds with a change feed (`emulators.feed_worlds`)
    --beside OTHER     with processes of another code, too: `released`, or a commit
    --without GUARD    with this guard knocked out

See `emulators.simulation.explore`.

    stdin     12000 20                    run the seeds 12000 to 12019
    stdout    @12000 … @12019             which seed is running now
              {"worlds": 20, …}           their totals

It ends when stdin does. *Crash*: the last `@` names the seed.
"""

from __future__ import annotations

import gc
import json
import logging
import resource
import signal
import sys
from argparse import ArgumentParser
from contextlib import nullcontext
from typing import TextIO

from emulators.feed_worlds.guards import GUARDS as FEED_GUARDS
from emulators.feed_worlds.recipe import FeedRecipe
from emulators.feed_worlds.recipe_run import run as run_fed
from emulators.simulation.beside import other_code, run_both
from emulators.simulation.coverage import Coverage
from emulators.simulation.decisions import decisions_counted
from emulators.simulation.explore import WORKER
from emulators.simulation.guards import GUARDS
from emulators.simulation.recipe import Recipe
from emulators.simulation.run import RunResult, RunSeed, run
from emulators.simulation.totals import Totals
from emulators.world.code import TODAY


def run_seed(seed: int, coverage: Coverage) -> RunResult:
    return run(Recipe.of(seed), coverage)


def worlds(*, feed: bool = False, beside: str | None = None) -> RunSeed:
    """Returns what runs the world of a seed. Raises `NotReleasedError` or `CodeError` if there is no such code."""
    if feed:
        if beside is None:
            return lambda seed, coverage: run_fed(FeedRecipe.of(seed), coverage)
        codes = TODAY, other_code(beside)
        return lambda seed, coverage: run_fed(FeedRecipe.of(seed).on_services(), coverage, codes)
    if beside is None:
        return run_seed
    other = other_code(beside)
    return lambda seed, coverage: run_both(seed, coverage, other)


def command(*, feed: bool = False, beside: str | None = None, without: str | None = None) -> tuple[str, ...]:
    """Returns the command of such a process, for `explore`."""
    chosen = [*(["--feed"] if feed else []), *(["--beside", beside] if beside else []), *(["--without", without] if without else [])]
    return (*WORKER, *chosen)


def work(requests: TextIO, answers: TextIO, run: RunSeed = run_seed) -> None:
    """Serves requests until there are no more."""
    with decisions_counted(Coverage()):  # wrap the product once, for all requests
        for request in requests:
            first, count = map(int, request.split())
            totals = Totals()
            with decisions_counted(totals.coverage):
                for seed in range(first, first + count):
                    print(f"@{seed}", file=answers, flush=True)
                    _run(seed, totals, run)
            print(json.dumps(totals.to_json()), file=answers, flush=True)


def _run(seed: int, totals: Totals, run: RunSeed) -> None:
    began_s = _cpu_s()
    result = run(seed, totals.coverage)
    took_s = _cpu_s() - began_s
    totals.worlds += 1
    totals.cpu_s += took_s
    totals.simulated_s += result.simulated_s
    totals.calls += result.calls
    totals.slowest = max(totals.slowest, (took_s, seed))
    if result.violation is not None:
        totals.violations.append((seed, f"{result.violation.invariant}: {result.violation.finding}"))


def _cpu_s() -> float:
    """Returns the seconds of CPU that this process has used. Other processes on the machine do not count."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("--feed", action="store_true")
    parser.add_argument("--beside")
    parser.add_argument("--without")
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the process that asks ends this one
    logging.disable()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)  # a world is over soon, and to look for garbage often is a quarter of its price
    world, guard = worlds(feed=chosen.feed, beside=chosen.beside), (FEED_GUARDS if chosen.feed else GUARDS).get(chosen.without)
    with nullcontext() if guard is None else guard.knocked_out():
        work(sys.stdin, sys.stdout, world if guard is None else guard.watched(world))


if __name__ == "__main__":
    main()
