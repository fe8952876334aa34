"""Counts how many seeds it takes until the simulation finds that a guard is missing, and keeps the counts on a page.

    search(name)                from seed 1 on, on all cores, with the guard knocked out in every worker
    put_into(page, found)       the table of docs/guards.md, between its two marks; `recorded` reads it back

Seeds count from 1, so the seed that finds a missing guard is also the number of seeds that it takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from emulators.simulation.explore import Tell, explore
from emulators.simulation.guards import GUARDS
from emulators.simulation.worker import command

BEGIN, END = "<!-- guards -->", "<!-- end of guards -->"
COLUMNS = ("guard", "without it", "seeds to find", "what is found")
PAGE_COLUMNS = (COLUMNS[0], *COLUMNS[2:])
"""What happens without a guard is a sentence of `GUARDS`. The page does not say it again."""
NAME_ENDS = re.compile(r"attachments/objects/|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{9}")
"""What all names have in common, and most of an id."""


@dataclass(frozen=True, slots=True)
class GuardResult:
    """The result for one guard. `seed` None: it was not found. `what`: the violation, in one line."""

    guard: str
    seed: int | None = None
    what: str = ""

    def cells(self) -> tuple[str, str, str, str]:
        """A row of the table, which names the invariant alone: the seed tells the rest."""
        seed = "not found" if self.seed is None else str(self.seed)
        return self.guard, GUARDS[self.guard].protects, seed, self.what.partition(":")[0]


def search(
    name: str, seeds: int, jobs: int | None = None, tell: Tell = lambda explored: None, *, feed: bool = False
) -> GuardResult:
    """Returns the first of `seeds` seeds that finds the missing guard. Raises `WorkerError`, as `explore`.

    `feed`: the guard is one of a change feed.
    """
    violations = explore(seeds, first=1, jobs=jobs, tell=tell, worker=command(feed=feed, without=name)).totals.violations
    return GuardResult(name, violations[0][0], NAME_ENDS.sub("", violations[0][1])) if violations else GuardResult(name)


def put_into(page: Path, found: Iterable[GuardResult]) -> None:
    """Writes the table into the page. Guards that were not searched keep their row.

    Raises `ValueError` if the page has no marks.
    """
    before, begin, rest = page.read_text("utf-8").partition(BEGIN)
    table, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} must hold '{BEGIN}', and after it '{END}'")
    rows = {each.guard: each for each in (*_rows(table), *found)}
    shown = [rows[name].cells() for name in GUARDS if name in rows]
    lines = [PAGE_COLUMNS, ("---",) * len(PAGE_COLUMNS), *((name, seed, what) for name, _, seed, what in shown)]
    table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", "utf-8")


def recorded(page: Path) -> list[GuardResult]:
    """Returns what the page says, in its order."""
    return _rows(page.read_text("utf-8").partition(BEGIN)[2].partition(END)[0])


def _rows(table: str) -> list[GuardResult]:
    cells = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines() if line]
    return [GuardResult(guard, int(seed) if seed.isdecimal() else None, what) for guard, seed, what in cells if guard in GUARDS]
