"""`Figures`, a table of results. It is shown on the terminal, and put into a page of the docs between two marks.

    <!-- figures NAME -->       each run replaces what stands between the marks, and nothing else on the page
    <!-- end of NAME -->
"""

from __future__ import annotations

import json
import os
import platform
import re
import textwrap
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

WIDTH = 130
PROSE_WIDTH = 120
LIBRARIES = ("grpcio", "google-cloud-bigtable", "google-cloud-storage", "aiohttp")


@dataclass(frozen=True)
class Figures:
    """A table. `notes`: what a reader must know to judge it; each is one sentence."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def show(self) -> None:
        table = Table(*self.columns, title=self.title, title_justify="left")
        for row in self.rows:
            table.add_row(*row)
        console = Console(width=WIDTH)
        console.print(table)
        for note in self.notes:
            console.print(f"  {note}", markup=False, highlight=False)

    def markdown(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return "\n\n".join([f"### {self.title}", table, *map(_wrapped, self.notes)]) + "\n"


def dumped(figures: list[Figures]) -> str:
    return json.dumps([asdict(each) for each in figures])


def loaded(text: str) -> list[Figures]:
    return [Figures(**each) for each in json.loads(text)]


def put_into(page: Path, name: str, figures: list[Figures], size: float, load: float) -> None:
    """Replaces what the page says between the marks of `name`. `load`: the machine's load average before the run."""
    begin, end = f"<!-- figures {name} -->", f"<!-- end of {name} -->"
    told = _wrapped(f"Measured on {date.today()} at size {size:g}, with a load of {load:.1f} before, on {machine()}.") + "\n"
    block = "\n".join([begin, told, *(each.markdown() for each in figures), end])
    text = page.read_text("utf-8")
    replaced, count = re.subn(re.escape(begin) + ".*?" + re.escape(end), lambda _: block, text, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{page} must hold '{begin}' and '{end}' once; it has {count} such places")
    page.write_text(replaced, "utf-8")


def _wrapped(sentence: str) -> str:
    return textwrap.fill(sentence, PROSE_WIDTH, break_long_words=False, break_on_hyphens=False)


def machine() -> str:
    """Describes the machine on which the figures were taken."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return f"{platform.system()} {platform.machine()}, {cpus} cores, {memory_gib:.0f} GiB, Python {platform.python_version()} ({libraries})"
