"""`python -m emulators.feed`: what a failed transaction leaves behind in a change feed. `make sim` calls it.

    --schedules N    so many schedules, from seed 1 on; 3,000 unless given
    --docs PAGE      put the table into this page, too: docs/feed.md

Exit codes: 0: commit-first leaked nothing, and the published order did. 1: otherwise. 2: the command line is wrong.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from emulators.feed.table import lines, put_into, table, wrong

SCHEDULES = 3000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m emulators.feed", description="What a failed transaction leaves behind.")
    parser.add_argument("--schedules", type=int, default=SCHEDULES, help="so many; 3,000 unless given")
    parser.add_argument("--docs", type=Path, help="put the table into this page, too")
    chosen = parser.parse_args()
    if chosen.schedules < 1:
        parser.error("--schedules must be at least 1")
    cells = table(chosen.schedules)
    sys.stdout.writelines(f"{line}\n" for line in lines(cells))
    if chosen.docs is not None:
        put_into(chosen.docs, cells)
    found = wrong(cells)
    sys.stdout.writelines(f"{sentence}\n" for sentence in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
