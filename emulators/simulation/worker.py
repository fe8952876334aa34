"""A process that runs the seeds it is asked for: `python -m emulators.simulation.worker`.

See `emulators.simulation.explore`.

    stdin     12000 20                    run the seeds 12000 to 12019
    stdout    @12000 … @12019             which seed is running now
              {"worlds": 20, …}           their totals

It ends when stdin does. *Crash*: the last `@` names the seed.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys
from collections.abc import Callable
from typing import TextIO

from emulators.simulation.coverage import Coverage
from emulators.simulation.decisions import decisions_counted
from emulators.simulation.recipe import Recipe
from emulators.simulation.run import RunResult, run
from emulators.simulation.totals import Totals

RunCounted = Callable[[Recipe, Coverage], RunResult]


def work(requests: TextIO, answers: TextIO, run: RunCounted = run) -> None:
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


def _run(seed: int, totals: Totals, run: RunCounted) -> None:
    began_s = _cpu_s()
    result = run(Recipe.of(seed), totals.coverage)
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


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the process that asks ends this one
    logging.disable()
    work(sys.stdin, sys.stdout)
