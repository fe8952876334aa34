"""`python -m emulators.callers`: seeded callers of the store and of the command. `make callers` calls it.

    --minutes M, --seeds N    fresh seeds, on all cores; for the first violation, the smallest recipe
    --seed S                  one seed, replayed
    --command                 callers of the command `tiered`, not of the library

Exit codes: 0: no violation. 1: a violation. 2: the command line is wrong. 130: interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator

from emulators.callers.explore import explore, replayed
from emulators.simulation.explore import ExploredSeeds, WorkerError
from emulators.simulation.seed_report import counts, figures

TELL_EVERY_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m emulators.callers", description="Seeded callers of the store.")
    parser.add_argument("--seeds", type=int, help="so many; 1000 unless --minutes is given")
    parser.add_argument("--minutes", type=float, help="for so long")
    parser.add_argument("--first", type=int, help="the first seed; a random one unless given")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--whole", action="store_true", help="with --seed: not its smallest recipe")
    parser.add_argument("--jobs", type=int, help="processes; one for each core unless given")
    parser.add_argument("--keep-going", action="store_true", help="go on after a violation")
    parser.add_argument("--command", action="store_const", const="command", default="library", dest="callers", help="callers of the command")
    chosen = parser.parse_args()
    if chosen.seed is not None:
        well, lines = replayed(chosen.callers, chosen.seed, whole=chosen.whole)
        _write(lines)
        return 0 if well else 1
    seconds = None if chosen.minutes is None else chosen.minutes * 60
    seeds = 1000 if chosen.seeds is None and seconds is None else chosen.seeds
    told_at = 0.0

    def tell(explored: ExploredSeeds) -> None:
        nonlocal told_at
        if explored.elapsed_s - told_at > TELL_EVERY_S:
            told_at = explored.elapsed_s
            sys.stderr.write(f"{sentence(explored)}\n")

    try:
        explored = explore(chosen.callers, seeds, seconds, chosen.first, chosen.jobs, keep_going=chosen.keep_going, tell=tell)
    except WorkerError as error:
        sys.stderr.write(f"{error}\n".replace("make sim", "make callers"))
        return 1
    _write(f"{name}: {value}" for name, value in figures(explored) if name != "simulated")
    _write([sentence(explored)])
    _write(violations(chosen.callers, explored))
    return 1 if explored.totals.violations else 0


def sentence(explored: ExploredSeeds) -> str:
    totals = explored.totals
    worlds = ", ".join(f"{times} {name}" for _, names in counts(explored) for name, times in names)
    return f"{totals.worlds} episodes from seed {explored.first} ({worlds}), {totals.calls} calls, {len(totals.violations)} violations"


def violations(callers: str, explored: ExploredSeeds) -> Iterator[str]:
    """Yields the violations, and for the first what is needed to show it."""
    yield from (f"seed {seed}: {what}" for seed, what in explored.totals.violations)
    for seed, what in explored.totals.violations[:1]:
        if not what.startswith("hang"):
            yield from replayed(callers, seed)[1]
        yield f"replay it with: make callers SEED={seed}" + (" ARGS=--command" if callers == "command" else "")


def _write(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
