"""The audit's figures, beside what a user would write instead: blobs per core-second, peak memory, how both grow.

    python -m benchmarks.audit --size 1        1 M blobs and as many tombstones, growth from 10 k: minutes on two cores
    python -m benchmarks.audit --size 10 --growth      our own sides alone, one round: to 10 M

    two servers, a process each (`audit_gcs`, `audit_bigtable`) <-- a side: a process and all that it starts (`metered`)

The servers' CPU is not counted. The CPU of a side is that of all its processes. It is measured from the moment when the
side says that it is ready (all is loaded, Spark's session is open) until it has found what it can, and also in all.
Sides take turns. Each must find exactly what was planted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory

import anyio

from benchmarks.audit_duckdb import export
from benchmarks.audit_side import SideRequest
from benchmarks.audit_world import AuditWorld
from benchmarks.billion import Paper
from benchmarks.figures import Cell, Figures, options, tell
from benchmarks.metered import Taken
from benchmarks.rounds import Ratio, take_turns
from benchmarks.servers import started

NAMES = 1_000_000
SMALLEST = 10_000
ON_PAPER = 100_000_000
ROUNDS = 3
RUN_S = 900.0
GOALS = (
    "Goals: 400 k blobs per core-second by the generator and half of that under Spark; at most 200 MB a worker at any size, and 1.1 times"
    " the cost of a blob for ten times as many."
)
MIB = 1024  # in KiB


@dataclass(frozen=True)
class AuditSide:
    """One line of the table. `what`: in words. `slots`: how many tasks run at once."""

    what: str
    name: str
    slots: int = 1


GENERATOR = AuditSide("`audit_range`, one process", "audit_sweep")
LOCAL = AuditSide("its ranges in worker processes, 2", "audit_local", 2)
SPARK = AuditSide("under Spark, local[2]", "audit_spark", 2)
SIDES = (
    GENERATOR, LOCAL, AuditSide("under Spark, local[1]", "audit_spark"), SPARK,
    AuditSide("a join in Spark, local[2]", "audit_join", 2),
    AuditSide("official clients, two Python sets", "audit_sets"), AuditSide("DuckDB, of exported Parquet", "audit_duckdb"),
)  # fmt: skip


OURS = {"audit_sweep", "audit_local", "audit_spark"}


@dataclass(frozen=True)
class AuditBenchRun:
    """One run. `cpu_s`: CPU from ready to found. `whole_s`: CPU of everything.

    `first_s`, `wall_s`: seconds from the start until some and until all findings are there. `worker_mib`: the peak of
    the largest process that did the work. `java_mib`: the peak of Spark's JVM.
    """

    cpu_s: float
    whole_s: float
    first_s: float
    wall_s: float
    worker_mib: float
    java_mib: float


async def measure(side: AuditSide, asked: SideRequest) -> AuditBenchRun:
    told = json.dumps(asdict(replace(asked, slots=side.slots)))
    command = [sys.executable, "-m", "benchmarks.audit_side", side.name, told]
    async with started("benchmarks.metered", *command, within_s=RUN_S) as line:
        taken = Taken.loaded(line)
    if taken.code or [line.text for line in taken.lines][:1] != ["ready"]:
        raise SystemExit(f"{side.what} failed with exit code {taken.code}")
    ready, *first, found = taken.lines
    result = json.loads(found.text)
    world = AuditWorld(asked.names)
    if result["found"] != [world.orphans, world.dangling]:
        raise AssertionError(f"{side.what} found {result['found']} and not {[world.orphans, world.dangling]}")
    alone = "worker" not in taken.peaks_kib
    cpu_s = result["cpu_s"] if alone else found.cpu_s - ready.cpu_s  # its own clock is finer, but counts only itself
    workers = [peak for kind, peak in taken.peaks_kib.items() if kind == ("main" if alone else "worker")]
    return AuditBenchRun(cpu_s, taken.cpu_s, [*first, found][0].at_s, found.at_s, max(workers) / MIB, taken.peaks_kib.get("java", 0) / MIB)


async def compare(asked: SideRequest, sides: Sequence[AuditSide], rounds: int) -> list[list[AuditBenchRun]]:
    """Returns the runs of each side."""
    return await take_turns([partial(measure, side, asked) for side in sides], rounds)


def beside(asked: SideRequest, sides: Sequence[AuditSide], runs: list[list[AuditBenchRun]]) -> Figures:
    """Compares the sides with the first one."""
    rows: list[list[Cell]] = []
    for side, each in zip(sides, runs, strict=True):
        costs, ours = ([run.cpu_s for run in runs[0]], [run.cpu_s for run in each]), side.name in OURS
        ratio: Cell = "1" if side is sides[0] else Ratio.of(*costs, more_is_better=ours)
        rate, whole = (f"{rate / 1000:,.0f}" for rate in (per_core_s(asked.names, each), asked.names / median(run.whole_s for run in each)))
        first, wall = (f"{median(seconds):.1f}" for seconds in ([run.first_s for run in each], [run.wall_s for run in each]))
        worker, java = (f"{max(peaks):,.0f}" for peaks in ([run.worker_mib for run in each], [run.java_mib for run in each]))
        rows.append([side.what, rate, ratio, whole, first, wall, worker, "" if java == "0" else java])
    columns = [
        "", "k blobs per core-s", "of the first", "with the start", "first findings, s", "all, s", "a worker, MiB",
        "Java, MiB",
    ]
    return Figures(f"{asked.names:,} names, as many blobs and tombstones", columns, rows, [GOALS])


def growth(names: Sequence[int], runs: list[list[list[AuditBenchRun]]], sides: Sequence[AuditSide]) -> Figures:
    """Shows how the costs grow. `runs`: by names, by side."""
    rows: list[list[Cell]] = []
    for place, side in enumerate(sides):
        smaller: list[float] = []
        costs = [median(run.cpu_s for run in each[place]) for each in runs]
        before = [(0, 0.0), *zip(names, costs, strict=False)]
        for number, cost, each, (fewer, less) in zip(names, costs, runs, before, strict=False):
            of_blob = [run.cpu_s / number for run in each[place]]
            times: Cell = Ratio.of(of_blob, smaller) if smaller else ""
            smaller = of_blob
            more = f"{(number - fewer) / (cost - less) / 1000:,.0f}" if cost > less else ""
            worker = max(run.worker_mib for run in each[place])
            rows.append([side.what, f"{number:,}", f"{number / cost / 1000:,.0f}", times, more, f"{worker:,.0f}"])
        if len(costs) > 1 and costs[-1] > costs[-2]:
            rows.append([side.what, f"{ON_PAPER:,}, on paper", f"{ON_PAPER / cpu_on_paper(names, costs) / 1000:,.0f}", "", "", ""])
    columns = ["", "names", "k blobs per core-s", "cost of a blob, of that before", "k of those added per core-s", "peak of a worker, MiB"]
    return Figures("Growth", columns, rows, named_by=columns[:2])


def cpu_on_paper(names: Sequence[int], costs: Sequence[float]) -> float:
    """Returns the CPU of `ON_PAPER` names: what the most names took, and for each more what one of the last took."""
    return costs[-1] + (ON_PAPER - names[-1]) * (costs[-1] - costs[-2]) / (names[-1] - names[-2])


def per_core_s(names: int, runs: Sequence[AuditBenchRun]) -> float:
    """Returns blobs per core-second."""
    return names / median(run.cpu_s for run in runs)


def sizes(size: float) -> list[int]:
    """Returns the powers of ten up to the largest size, which is compared with others."""
    largest = max(SMALLEST, round(NAMES * size))
    return [*(number for power in range(4, 9) if (number := 10**power) < largest), largest]


async def figures(size: float, sides: Sequence[AuditSide] = SIDES, rounds: int = ROUNDS) -> tuple[list[Figures], Figures]:
    """Returns what was measured, and what follows from it on paper."""
    *smaller, largest = sizes(size)
    grown = (GENERATOR, LOCAL, SPARK)
    async with started("benchmarks.audit_gcs") as url, started("benchmarks.audit_bigtable") as host:
        with TemporaryDirectory(prefix="tiered-bench-") as directory:
            asked = SideRequest(largest, host.strip(), url.strip(), directory)
            export(asked)
            runs = await compare(asked, sides, rounds)
            series = [await compare(replace(asked, names=number), grown, rounds) for number in smaller]
    series.append([runs[sides.index(side)] for side in grown])
    paper = Paper(per_core_s(largest, series[-1][0]), per_core_s(largest, series[-1][-1]))
    return [beside(asked, sides, runs), growth([*smaller, largest], series, grown)], paper.figures()


async def growth_alone(size: float) -> Figures:
    """Measures our own sides only, in one round. The others take too long or too much memory at such a size."""
    grown = (GENERATOR, LOCAL, SPARK)
    async with started("benchmarks.audit_gcs") as url, started("benchmarks.audit_bigtable") as host:
        with TemporaryDirectory(prefix="tiered-bench-") as directory:
            asked = SideRequest(0, host.strip(), url.strip(), directory)
            series = [await compare(replace(asked, names=number), grown, 1) for number in sizes(size)]
    return growth(sizes(size), series, grown)


if __name__ == "__main__":
    parser = options("audit", "The audit beside what a user would write instead.", "millions of names (1: some minutes)")
    parser.add_argument("--growth", action="store_true", help="only how our own costs grow, in one round")
    arguments = parser.parse_args()
    if arguments.growth:
        grown = anyio.run(growth_alone, arguments.size)
        tell("audit_growth", [grown], arguments.size, arguments.load, arguments.docs)
        raise SystemExit
    measured, on_paper = anyio.run(figures, arguments.size)
    tell("audit", measured, arguments.size, arguments.load, arguments.docs)
    tell("billion", [on_paper], arguments.size, arguments.load, arguments.docs)
