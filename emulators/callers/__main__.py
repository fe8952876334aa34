"""`python -m emulators.callers`: seeded callers of the store and of the command. `make callers` calls it.

    --minutes M, --seeds N    fresh seeds, on all cores; for the first violation, the smallest recipe
    --seed S                  one seed, replayed
    --command                 callers of the command `tiered`, not of the library

Exit codes: 0: no violation. 1: a violation. 2: the command line is wrong. 130: interrupted.
"""

from __future__ import annotations

import argparse
import sys
from random import SystemRandom

from emulators.callers import command_lines as command
from emulators.callers.explore import FIRST_SEED_MAX, ExploredEpisodes, explore, replayed

TELL_EVERY_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m emulators.callers", description="Seeded callers of the store.")
    parser.add_argument("--seeds", type=int, help="so many episodes; 1000 unless --minutes is given")
    parser.add_argument("--minutes", type=float, help="for so long")
    parser.add_argument("--first", type=int, help="the first seed; a random one unless given")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--whole", action="store_true", help="with --seed: not its smallest recipe")
    parser.add_argument("--jobs", type=int, help="processes; one for each core unless given")
    parser.add_argument("--keep-going", action="store_true", help="go on after a violation")
    parser.add_argument("--command", action="store_true", help="callers of the command")
    chosen = parser.parse_args()
    if chosen.seed is not None:
        well, lines = command.replayed(chosen.seed) if chosen.command else replayed(chosen.seed, whole=chosen.whole)
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return 0 if well else 1
    seconds = None if chosen.minutes is None else chosen.minutes * 60
    seeds = 1000 if chosen.seeds is None and seconds is None else chosen.seeds
    first = SystemRandom().randrange(FIRST_SEED_MAX) if chosen.first is None else chosen.first
    told, said = 0.0, 0

    def tell(explored: ExploredEpisodes) -> None:
        nonlocal told, said
        for seed, _, what in explored.violations[said:]:
            sys.stderr.write(f"seed {seed}: {what}\n")
            said += 1
        if explored.elapsed_s - told > TELL_EVERY_S:
            told = explored.elapsed_s
            sys.stderr.write(f"{explored}\n")

    explored = explore(
        first, seeds=seeds, seconds=seconds, jobs=chosen.jobs, keep_going=chosen.keep_going, tell=tell, command=chosen.command
    )  # fmt: skip
    sys.stdout.writelines(f"{line}\n" for line in report(explored, command_line=chosen.command))
    return 1 if explored.violations else 0


def report(explored: ExploredEpisodes, *, command_line: bool = False) -> list[str]:
    """Returns the totals and the violations, and for the first violation what is needed to show it."""
    lines = [str(explored), *(f"seed {seed}: {what}" for seed, _, what in explored.violations)]
    for seed, kind, _ in explored.violations[:1]:
        if kind != "hang":
            lines += (command.replayed(seed) if command_line else replayed(seed))[1]
        lines.append(f"replay it with: make callers SEED={seed}" + (" ARGS=--command" if command_line else ""))
    return lines


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
