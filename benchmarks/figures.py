"""`Figures`, a table of results. It is shown on the terminal, kept, and put into pages between two marks.

    <!-- figures NAME -->       each run replaces what stands between the marks, and nothing else on the page
    <!-- end of NAME -->
    <!-- figures NAME 2 -->     likewise, with the second table of this part alone
    <!-- end of NAME 2 -->

`benchmarks/results/` has every part. `docs/benchmarks.md` has the tables that somebody needs who chooses.

What is kept (`build/figures/NAME.json`) is compared with the last release by `benchmarks.baseline`.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from benchmarks.rounds import Ratio

WIDTH = 150
PROSE_WIDTH = 120
LIBRARIES = ("grpcio", "google-cloud-bigtable", "google-cloud-storage", "aiohttp", "asyncpg")
SPREAD = "half of the rounds"
KEPT = Path(__file__).parent.parent / "build" / "figures"
RESULTS = Path(__file__).parent / "results"

Cell = str | Ratio
Compared = dict[str, dict[str, dict[str, Cell]]]
"""By title of the table, row and column: what can be compared with another run."""


@dataclass(frozen=True)
class Figures:
    """A table. `notes`: what a reader must know to judge it; each is one sentence.

    A column of ratios is shown as two: the medians, and the middle half of the rounds. Only ratios are compared with
    the last release, and the cells of the columns in `counted`. These do not depend on the machine, and must be equal.
    `named_by`: the columns whose cells name a row; by default the first one. Rows with ratios need different names.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    counted: Sequence[str] = ()
    named_by: Sequence[str] = ()

    def show(self) -> None:
        columns, *rows = self._lines()
        table = Table(*columns, title=self.title, title_justify="left")
        for row in rows:
            table.add_row(*row)
        console = Console(width=WIDTH)
        console.print(table)
        for note in self.notes:
            console.print(f"  {note}", markup=False, highlight=False)

    def markdown(self) -> str:
        columns, *rows = self._lines()
        lines = [columns, ["---"] * len(columns), *rows]
        table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return "\n\n".join([f"### {self.title}", table, *map(_wrapped, self.notes)]) + "\n"

    def compared(self) -> dict[str, dict[str, Cell]]:
        """Returns what another run can be compared with, by row and column.

        Raises `ValueError` if two rows, or two columns that are compared, have one name.
        """
        names = [self.columns.index(name) for name in self.named_by] or [0]
        found: dict[str, dict[str, Cell]] = {}
        for row in self.rows:
            kept = [place for place, cell in enumerate(row) if isinstance(cell, Ratio) or self.columns[place] in self.counted]
            name = ", ".join(str(row[place]) for place in names if row[place] != "")
            cells = {self.columns[place]: row[place] for place in kept}
            if kept and name in found:
                raise ValueError(f"the table '{self.title}' has two rows '{name}'; tell them apart by named_by")
            if len(cells) < len(kept):
                raise ValueError(f"the table '{self.title}' has two columns of one name; give each its own")
            if kept:
                found[name] = cells
        return found

    def _lines(self) -> list[list[str]]:
        """Returns the columns and the rows as they are shown."""
        ratios = {place for row in self.rows for place, cell in enumerate(row) if isinstance(cell, Ratio)}
        lines = [[text for place, name in enumerate(self.columns) for text in ((name, SPREAD) if place in ratios else (name,))]]
        for row in self.rows:
            shown: list[str] = []
            for place, cell in enumerate(row):
                shown += (cell.shown, cell.spread) if isinstance(cell, Ratio) else (cell, "") if place in ratios else (cell,)
            lines.append(shown)
        return lines


FIGURES = TypeAdapter(list[Figures])


@dataclass(frozen=True)
class MeasuredPart:
    """What one run of a part measured that can be compared, and how. `load`: of the machine, before the run."""

    date: date
    size: float
    load: float
    machine: str
    versions: str
    compared: Compared = field(default_factory=dict)


MEASURED = TypeAdapter(MeasuredPart)


def together(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Returns the rows. Those with the same cells after the first one are one row, with all their names."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, *cells in rows:
        names.setdefault(tuple(cells), []).append(name)
    return [["; ".join(named), *cells] for cells, named in names.items()]


def dumped(figures: Sequence[Figures]) -> str:
    return FIGURES.dump_json([*figures]).decode()


def loaded(text: str) -> list[Figures]:
    return FIGURES.validate_json(text)


def options(benchmark: str, description: str, size: str) -> argparse.ArgumentParser:
    """Returns a parser with `--size` and `--docs`. What it reads also has `load`, the load of the machine now.

    `size`: what the size scales, and how long 1 takes.
    """
    parser = argparse.ArgumentParser(f"python -m benchmarks.{benchmark}", description=description)
    parser.add_argument("--size", type=float, default=1.0, help=size)
    parser.add_argument("--docs", type=Path, help="a page with places for the figures, such as docs/benchmarks.md")
    parser.set_defaults(load=os.getloadavg()[0])
    return parser


def tell(name: str, figures: Sequence[Figures], size: float, load: float, docs: Path | None) -> None:
    """Shows the figures of a part, and keeps them for the comparison. With a page `docs`: puts them there, too.

    `load`: the machine's load average before the run.
    """
    for each in figures:
        each.show()
    keep(name, figures, size, load)
    if docs is not None:
        for page in (docs, *sorted(RESULTS.glob("*.txt"))):
            if name in places(page.read_text("utf-8")):
                put_into(page, name, figures, size, load)


def keep(name: str, figures: Sequence[Figures], size: float, load: float) -> None:
    compared = {each.title: rows for each in figures if (rows := each.compared())}
    KEPT.mkdir(parents=True, exist_ok=True)
    measured = MeasuredPart(date.today(), size, round(load, 1), machine(), versions(), compared)
    (KEPT / f"{name}.json").write_bytes(MEASURED.dump_json(measured))


def places(text: str) -> set[str]:
    """Returns the names of the parts that have a place in a page."""
    return set(re.findall(r"<!-- figures (\w+)(?: \d+)? -->", text))


def put_into(page: Path, name: str, figures: Sequence[Figures], size: float, load: float) -> None:
    """Replaces what the page says between the marks of `name`. `load`: the machine's load average before the run."""
    told = _wrapped(f"Measured on {date.today()} at size {size:g}, with a load of {load:.1f} before, on {machine()}, {versions()}.") + "\n"

    def block(place: re.Match[str]) -> str:
        number = place["number"]
        shown = figures if not number else [figures[int(number) - 1]]
        begin, end = f"<!-- figures {name}{number} -->", f"<!-- end of {name}{number} -->"
        return "\n".join([begin, told, *(each.markdown() for each in shown), end])

    text = page.read_text("utf-8")
    place = rf"<!-- figures {name}(?P<number>(?: \d+)?) -->.*?<!-- end of {name}(?P=number) -->"
    replaced, count = re.subn(place, block, text, flags=re.DOTALL)
    if count == 0:
        raise SystemExit(f"{page} must hold '<!-- figures {name} -->' and '<!-- end of {name} -->'")
    page.write_text(replaced, "utf-8")


def _wrapped(sentence: str) -> str:
    return textwrap.fill(sentence, PROSE_WIDTH, break_long_words=False, break_on_hyphens=False)


def machine() -> str:
    """Describes the machine on which the figures were taken."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    return f"{platform.system()} {platform.machine()}, {cpus} cores, {memory_gib:.0f} GiB"


def versions() -> str:
    """Names Python, and the libraries that matter most, with their versions."""
    return f"Python {platform.python_version()} ({', '.join(f'{name} {version(name)}' for name in LIBRARIES)})"
