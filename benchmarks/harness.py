"""The harness of all tables: sides take turns, and what is compared are the ratios of a round.

    round 1   ours, theirs        round 2   theirs, ours        round 3   ours, theirs ...

So other work on the machine affects all sides alike, and what one side leaves behind (a busy disk, a full cache)
affects no side alone. Each round gives a ratio. We report the median of the rounds' ratios, and the range of their
middle half.

    Contest   a table that is measured here: sides, operations, and how many items of their own they do at once
    Figures   a table as it is shown, kept, and put into pages between two marks

    <!-- figures NAME -->       each run replaces what stands between the marks, and nothing else on the page
    <!-- end of NAME -->
    <!-- figures NAME 2 -->     likewise, with the second table of this part alone

`benchmarks/results/` has every part. `docs/benchmarks.md` has the tables that somebody needs who chooses. What is kept
(`build/figures/NAME.json`) is compared with the last release by `benchmarks.baseline`.
"""

from __future__ import annotations

import gc
import os
import platform
import re
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from importlib.metadata import version
from itertools import count
from math import inf
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Generic, NamedTuple, TypeVar

import anyio
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId

Item = TypeVar("Item")
Measured = TypeVar("Measured")
Side = TypeVar("Side")

RUNTIME = SystemRuntime()
WIDTH, PROSE_WIDTH = 150, 120
LIBRARIES = ("grpcio", "google-cloud-bigtable", "google-cloud-storage", "aiohttp", "asyncpg")
SPREAD = "half of the rounds"
ROOT = Path(__file__).parent.parent
KEPT = ROOT / "build" / "figures"
RESULTS = Path(__file__).parent / "results"


# --- rounds --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """How many times `right` `left` is, over the rounds: the median, and the ends of the middle half.

    `more_is_better`: which way a change is good. `digits`: how many a table shows after the point.
    """

    middle: float
    low: float
    high: float
    rounds: int
    more_is_better: bool = False
    digits: int = 2

    def __post_init__(self) -> None:
        if not (0 <= self.low <= self.middle <= self.high < inf and self.rounds >= 1):
            raise ValueError(f"{self.low} - {self.middle} - {self.high} of {self.rounds} rounds is no ratio")

    @classmethod
    def of(cls, left: Sequence[float], right: Sequence[float], *, more_is_better: bool = False, digits: int = 2) -> Ratio:
        ratios = [one / other for one, other in zip(left, right, strict=True)]
        low, middle, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        return cls(middle, low, high, len(ratios), more_is_better, digits)

    @property
    def shown(self) -> str:
        return f"{self.middle:.{self.digits}f}"

    @property
    def spread(self) -> str:
        return "one round" if self.rounds == 1 else f"{self.low:.{self.digits}f} - {self.high:.{self.digits}f}"


Cell = str | Ratio


async def take_turns(sides: Sequence[Callable[[], Awaitable[Measured]]], rounds: int) -> list[list[Measured]]:
    """Runs the rounds, and returns what each side returned in each round.

    The side that begins changes from round to round.
    """
    measured: list[list[Measured]] = [[] for _ in sides]
    for number in range(rounds):
        for place in range(len(sides)):
            side = (place + number) % len(sides)
            measured[side].append(await sides[side]())
    return measured


def few(rounds: int, size: float) -> int:
    """The rounds of what takes long. At a tiny size, one shows that it works."""
    return rounds if size >= 0.1 else 1


async def run_in_flight(work: Callable[[Item], Awaitable[object]], items: Iterable[Item], in_flight: int) -> None:
    """Works on all items, `in_flight` of them at once."""
    to_do = iter(items)

    async def worker() -> None:
        for item in to_do:
            await work(item)

    async with anyio.create_task_group() as workers:
        for _ in range(in_flight):
            workers.start_soon(worker)


class Spent(NamedTuple):
    """The seconds of one operation: by the clock, and of CPU of all threads of this process."""

    clock_s: float
    cpu_s: float


class Measure(NamedTuple):
    """What columns tell. `of`: a field of `Spent`. `prefix`: how the names of the columns begin."""

    of: str
    unit: str
    prefix: str = ""
    digits: int = 2

    def seconds(self, rounds: Iterable[Spent]) -> list[float]:
        return [getattr(each, self.of) for each in rounds]

    def shown(self, rounds: Iterable[Spent]) -> str:
        per_second, digits = {"µs": (1e6, 0), "ms": (1e3, 2), "s": (1.0, 2)}[self.unit]
        return f"{median(self.seconds(rounds)) * per_second:,.{digits}f}"


CPU_US = Measure("cpu_s", "µs")
Operations = Mapping[str, Callable[[Side, str, ChangeId], Awaitable[object]]]
"""By its name, what a side does with one item. The item has a name, and each operation on it a token of its own."""


@dataclass
class Contest(Generic[Side]):
    """A table that is measured: the first of the sides is ours, and the others are what it is compared with.

    A side may have `ready()`, a context in which it does its operations. When that ends, so has all work that they
    left running; it is measured, too. `labels`: the columns that name a row.
    """

    title: str
    sides: Mapping[str, Side]
    rounds: int = 7
    measures: Sequence[Measure] = (CPU_US,)
    labels: Sequence[str] = ("", "in flight")
    notes: Sequence[str] = ()
    rows: list[list[Cell]] = field(default_factory=list)

    async def run(self, operations: Operations[Side], items: int, in_flight: int, *labels: str) -> None:
        """Measures, and adds a row for each operation. In a round, each side does all of them on items of its own."""
        work = partial(self._round, operations, items, in_flight)
        measured = await take_turns([partial(work, side) for side in self.sides.values()], self.rounds)
        for place, operation in enumerate(operations):
            spent = [[each[place] for each in side] for side in measured]
            self.rows.append([operation, *(labels or [str(in_flight)]), *self._cells(spent)])

    async def _round(self, operations: Operations[Side], items: int, in_flight: int, side: Side) -> list[Spent]:
        names = [f"bench/objects/{next(_NUMBERS)}" for _ in range(items)]
        spent = []
        for operation in operations.values():
            given = [(name, ChangeId.new(RUNTIME)) for name in names]
            gc.collect()  # so that no side pays for another's garbage
            clock, cpu = time.perf_counter(), time.process_time()
            async with getattr(side, "ready", nullcontext)():
                await run_in_flight(partial(_done, operation, side), given, in_flight)
            spent.append(Spent((time.perf_counter() - clock) / items, (time.process_time() - cpu) / items))
        return spent

    def _cells(self, sides: Sequence[Sequence[Spent]]) -> list[Cell]:
        cells: list[Cell] = []
        for measure in self.measures:
            ours, *others = sides
            cells.append(measure.shown(ours))
            for other in others:
                cells += [measure.shown(other), Ratio.of(measure.seconds(ours), measure.seconds(other), digits=measure.digits)]
        return cells

    def figures(self) -> Figures:
        ours, *others = self.sides
        columns = [*self.labels]
        for _, unit, prefix, _ in self.measures:
            columns += [f"{prefix}{ours}, {unit}", *(told for name in others for told in (f"{prefix}{name}, {unit}", f"{prefix}of {name}"))]
        return Figures(self.title, columns, self.rows, [*self.notes, f"Medians of {self.rounds} rounds."], self.labels)


_NUMBERS = count()


async def _done(operation: Callable[[Any, str, ChangeId], Awaitable[object]], side: object, item: tuple[str, ChangeId]) -> None:
    await operation(side, *item)


def put_get_delete(payload: bytes, what: str = "") -> Operations[Any]:
    """The operations of a side that stores payloads. `what`: is shown behind the name of each."""

    async def get(side: Any, name: str, token: ChangeId) -> None:
        if len(await side.get(name) or b"") != len(payload):
            raise AssertionError(f"{name} is not what was put")

    return {
        f"put{what}": lambda side, name, token: side.put(name, token, payload), f"get{what}": get,
        f"delete{what}": lambda side, name, token: side.delete(name, token),
    }  # fmt: skip


# --- tables --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """A table. `notes`: what a reader must know to judge it; each is one sentence.

    A column of ratios is shown as two: the medians, and the middle half of the rounds. Only ratios are compared with
    the last release. `named_by`: the columns whose cells name a row; rows with ratios need different names.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
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

    def compared(self) -> dict[str, dict[str, Ratio]]:
        """Returns what another run can be compared with, by row and column.

        Raises `ValueError` if two rows, or two columns that are compared, have one name.
        """
        names = [self.columns.index(name) for name in self.named_by] or [0]
        found: dict[str, dict[str, Ratio]] = {}
        for row in self.rows:
            ratios = [(column, cell) for column, cell in zip(self.columns, row, strict=True) if isinstance(cell, Ratio)]
            name = ", ".join(str(row[place]) for place in names if row[place] != "")
            if ratios and name in found:
                raise ValueError(f"the table '{self.title}' has two rows '{name}'; tell them apart by named_by")
            if len(dict(ratios)) < len(ratios):
                raise ValueError(f"the table '{self.title}' has two columns of one name; give each its own")
            if ratios:
                found[name] = dict(ratios)
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
    """What one run of a part measured that can be compared, and how. `load`: of the machine, before the run.

    `compared`: by title of the table, row and column.
    """

    date: date
    size: float
    load: float
    machine: str
    versions: str
    compared: dict[str, dict[str, dict[str, Ratio]]] = field(default_factory=dict)


MEASURED = TypeAdapter(MeasuredPart)


def tell(name: str, figures: Sequence[Figures], size: float, load: float, docs: Path | None) -> None:
    """Shows the figures of a part, and keeps them for the comparison. With a page `docs`: puts them there, too.

    `load`: the machine's load average before the run.
    """
    for each in figures:
        each.show()
    compared = {each.title: rows for each in figures if (rows := each.compared())}
    KEPT.mkdir(parents=True, exist_ok=True)
    measured = MeasuredPart(date.today(), size, round(load, 1), machine(), versions(), compared)
    (KEPT / f"{name}.json").write_bytes(MEASURED.dump_json(measured))
    for page in () if docs is None else (docs, *sorted(RESULTS.glob("*.txt"))):
        if name in places(page.read_text("utf-8")):
            put_into(page, name, figures, size, load)


def places(text: str) -> set[str]:
    """Returns the names of the parts that have a place in a page."""
    return set(re.findall(r"<!-- figures (\w+)(?: \d+)? -->", text))


def put_into(page: Path, name: str, figures: Sequence[Figures], size: float, load: float) -> None:
    """Replaces what the page says between the marks of `name`. `load`: the machine's load average before the run."""
    told = _wrapped(f"Measured on {date.today()} at size {size:g}, with a load of {load:.1f} before, on {machine()}, {versions()}.") + "\n"

    def block(place: re.Match[str]) -> str:
        number = place["number"]
        shown = figures if not number else [figures[int(number) - 1]]
        tables = [each.markdown() for each in shown]
        return "\n".join([f"<!-- figures {name}{number} -->", told, *tables, f"<!-- end of {name}{number} -->"])

    place = rf"<!-- figures {name}(?P<number>(?: \d+)?) -->.*?<!-- end of {name}(?P=number) -->"
    page.write_text(re.sub(place, block, page.read_text("utf-8"), flags=re.DOTALL), "utf-8")


def between(page: str, name: str, figures: Figures) -> str:
    """The page with this table, without its title, between the marks `<!-- NAME -->` and `<!-- end of NAME -->`."""
    before, mark, rest = page.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    return f"{before}{mark}\n{figures.markdown().partition(chr(10) * 2)[2]}\n{end}{after}"


def together(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Returns the rows. Those with the same cells after the first one are one row, with all their names."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, *cells in rows:
        names.setdefault(tuple(cells), []).append(name)
    return [["; ".join(named), *cells] for cells, named in names.items()]


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
