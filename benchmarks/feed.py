"""The change feed's figures: the reader beside a plain one, Spark's reader beside Spark's own sum, and memory.

    python -m benchmarks.feed --size 1        1 M updates: some minutes on two cores
    python -m benchmarks.feed --size 5 --large       Spark alone, in one round

A feed is written once, as lines of Avro-JSON and as object container files. A tenth of its messages are there twice,
and the order of messages is mixed within a hundred of them. Each record changes four times, and half of them are gone
at the end. The sides (`feed_side`) take turns, each in a process of its own. Each must find the same view, but for
`plain`, which adds up what is repeated, too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory

import anyio

from benchmarks.figures import Cell, Figures, options, tell
from benchmarks.metered import Taken
from benchmarks.rounds import Ratio, take_turns
from benchmarks.servers import started
from recovery.feed import Message, Progress, Update, Updates
from recovery.feed.files import FileFormat, write

UPDATES, SMALLEST = 1_000_000, 20_000
PER_TIME, PER_MESSAGE = 1000, 100
CHANGES = ((1, -1, 1, -1), (1, -1, 1, 1))
"""How a record changes: one that is gone at the end, and one that is there twice."""
REPEATED, WINDOW = 0.1, 100
FILES = 8
ROUNDS = 3
RUN_S = 3000.0
MIB = 1024 * 1024
HELD = 240_000
"""So many updates are held back, to see how much memory that takes."""


@dataclass(frozen=True)
class FeedSide:
    what: str
    name: str


ALONE = (
    FeedSide("CdcReader and View, JSON lines", "reader"),
    FeedSide("CdcReader and View, Avro", "avro"),
    FeedSide("json.loads and a sum", "plain"),
)
ON_SPARK = (
    FeedSide("ours, JSON lines, local[2]", "spark"), FeedSide("ours, Avro, local[2]", "spark-avro"),
    FeedSide("distinct and sum over our rows", "rows"), FeedSide("distinct and sum, Spark's own JSON reader", "own"),
)  # fmt: skip


@dataclass(frozen=True)
class FeedBenchRun:
    """One run. `cpu_s`: CPU of all processes from ready to found. Peaks are of the largest process, in MiB."""

    cpu_s: float
    wall_s: float
    python_mib: float
    java_mib: float
    found: tuple[int, int]


# --- what is read ----------------------------------------------------------------------------------


def messages(updates: int) -> Iterator[Message]:
    """Yields a sound feed of so many updates, in order. The records are those of the live references."""
    blocks = updates // PER_TIME // len(CHANGES[0])
    for time in range(blocks * len(CHANGES[0])):
        turn, block = divmod(time, blocks)
        diff = CHANGES[block % 2][turn]
        for start in range(block * PER_TIME, (block + 1) * PER_TIME, PER_MESSAGE):
            yield Updates(tuple(Update(_record(number), time, diff) for number in range(start, start + PER_MESSAGE)))
        yield Progress((time,), (time + 1,), ((time, PER_TIME),))


def _record(number: int) -> dict[str, str]:
    path = f"attachments/org.{number % 97}/objects/2026/{number:012}"
    return {"object": path, "blob": f"{path}/0190aaaa-0000-7000-8000-{number:012}"}


def mangled(updates: int) -> Iterator[Message]:
    """Yields the same messages, some of them twice, each near its place."""
    random, window = Random(1), list[Message]()
    for message in messages(updates):
        window += [message] * (2 if random.random() < REPEATED else 1)
        while len(window) > WINDOW:
            yield window.pop(random.randrange(len(window)))
    random.shuffle(window)
    yield from window


def found_of(updates: int) -> tuple[int, int]:
    """Returns what the view holds at the end: the records that are there, each twice."""
    records = updates // PER_TIME // len(CHANGES[0]) // 2 * PER_TIME
    return records, 2 * records


def write_feed(directory: Path, updates: int, forms: Sequence[FileFormat] = (FileFormat.JSON, FileFormat.AVRO)) -> None:
    """Writes the feed in each of these forms, in files that follow each other."""
    for form in forms:
        (directory / form).mkdir()
        source = mangled(updates)
        each = updates // PER_MESSAGE * 11 // 10 // FILES
        for number in range(FILES):
            part = source if number == FILES - 1 else (message for _, message in zip(range(each), source, strict=False))
            first = next(iter(part), None)
            write(directory / form / f"part-{number}.{form}", chain([] if first is None else [first], part), form)


# --- the figures -----------------------------------------------------------------------------------


async def measure(side: FeedSide, directory: Path) -> FeedBenchRun:
    command = [sys.executable, "-m", "benchmarks.feed_side", side.name, str(directory)]
    async with started("benchmarks.metered", *command, within_s=RUN_S) as line:
        taken = Taken.loaded(line)
    if taken.code or [each.text for each in taken.lines][:1] != ["ready"]:
        raise SystemExit(f"{side.what} failed with exit code {taken.code}")
    ready, found = taken.lines[0], taken.lines[-1]
    python = max(taken.peaks_kib.get("worker", 0), taken.peaks_kib.get("main", 0)) / 1024
    records, total = json.loads(found.text)
    return FeedBenchRun(found.cpu_s - ready.cpu_s, found.at_s - ready.at_s, python, taken.peaks_kib.get("java", 0) / 1024, (records, total))


def beside(title: str, updates: int, sides: Sequence[FeedSide], runs: list[list[FeedBenchRun]], notes: list[str]) -> Figures:
    """Compares the sides with the first one."""
    rows: list[list[Cell]] = []
    for side, each in zip(sides, runs, strict=True):
        if side.name != "plain" and {run.found for run in each} != {found_of(updates)}:
            raise AssertionError(f"{side.what} found {each[0].found} and not {found_of(updates)}")
        costs, ours = ([run.cpu_s for run in runs[0]], [run.cpu_s for run in each]), side.name.endswith("avro")
        ratio: Cell = "1" if side is sides[0] else Ratio.of(*costs, more_is_better=ours)
        cpu = median(run.cpu_s for run in each)
        peaks = [f"{max(peak):,.0f}" for peak in ([run.python_mib for run in each], [run.java_mib for run in each])]
        rows.append([
            side.what, f"{updates / cpu / 1000:,.0f}", f"{cpu:.1f}", ratio,
            f"{median(run.wall_s for run in each):.1f}", *(peak if peak != "0" else "" for peak in peaks),
        ])  # fmt: skip
    columns = ["", "1,000 updates per s and core", "CPU, s", "first to it", "all, s", "largest Python, MiB", "Java, MiB"]
    return Figures(f"{title}, {updates:,} updates", columns, rows, notes)


async def memory() -> Figures:
    """Returns how much `CdcReader` holds for updates that are not complete."""
    with TemporaryDirectory(prefix="tiered-bench-") as directory:
        write_feed(Path(directory), HELD, [FileFormat.JSON])
        run = await measure(FeedSide("updates held back", "held"), Path(directory))
    number, size = run.found
    rows = [[f"{number:,}", f"{size / MIB:,.0f}", f"{size / number * UPDATES / MIB:,.0f}"]]
    return Figures("Memory of updates that are held back", ["updates", "MiB", "MiB for a million"], rows)


async def figures(size: float, rounds: int = ROUNDS, only: Sequence[str] = ()) -> list[Figures]:
    """`only`: the names of the sides to measure; none: all of them, and memory."""
    updates = max(SMALLEST, round(UPDATES * size))
    updates -= updates % (2 * PER_TIME * len(CHANGES[0]))
    with TemporaryDirectory(prefix="tiered-bench-") as directory:
        forms = {
            FileFormat.AVRO if "avro" in side.name else FileFormat.JSON for side in (*ALONE, *ON_SPARK) if not only or side.name in only
        }
        write_feed(Path(directory), updates, sorted(forms))
        told = []
        for title, sides, note in (
            ("Change feed in one process", ALONE, "json.loads and a sum counts what is repeated, too, so its sum is wrong."),
            ("Change feed on Spark", ON_SPARK, "The sides with distinct and sum know no frontier, and check nothing."),
        ):
            wanted = [side for side in sides if not only or side.name in only]
            if wanted:
                runs = await take_turns([partial(measure, side, Path(directory)) for side in wanted], rounds)
                told.append(beside(title, updates, wanted, runs, [note]))
    return told if only else [*told, await memory()]


if __name__ == "__main__":
    parser = options(
        "feed", "The readers of the change feed beside plain ones.",
        "millions of updates (1: some minutes; 10: the full size)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", nargs="*", default=[], help="the sides to measure, such as spark-avro; by default all")
    parser.add_argument("--large", action="store_true", help="only the sides on Spark, in one round")
    arguments = parser.parse_args()
    if arguments.large:
        names = [side.name for side in ON_SPARK]
        tell("feed_large", anyio.run(figures, arguments.size, 1, names), arguments.size, arguments.load, arguments.docs)
        raise SystemExit
    measured = anyio.run(figures, arguments.size, arguments.rounds, arguments.only)
    tell("feed", measured, arguments.size, arguments.load, arguments.docs)
