"""The inventory join's figures, beside what a user would write instead: CPU, peak memory, bytes of shuffle.

    python -m benchmarks.inventory --size 1        1 M blobs and as many rows: minutes on two cores
    python -m benchmarks.inventory --size 10       10 M

A report of Google's form and an export of the table are written once, as Parquet. The sides (`inventory_side`) take
turns, each in a process of its own that is metered with all that it starts. Each must find exactly what was planted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from benchmarks.audit_world import NAME_BYTES, PATH_BYTES, PER_PROJECT, AuditWorld, Bytes, Numbers, blobs_among, names_of, rows_among
from benchmarks.figures import Cell, Figures, options, tell
from benchmarks.inventory_side import BUCKET
from benchmarks.metered import Taken
from benchmarks.rounds import Ratio, take_turns
from benchmarks.servers import started

NAMES = 1_000_000
SMALLEST = 10_000
SHARDS = 4
ROUNDS = 3
RUN_S = 1800.0
MIB = 1024 * 1024
CELL = pa.struct([("family", pa.string()), ("qualifier", pa.binary()), ("timestamp", pa.int64()), ("value", pa.binary())])
GOALS = ["Goal: ours at most 1.1 times the CPU of the best of Spark's own plans."]


@dataclass(frozen=True)
class InventorySide:
    what: str
    name: str


SIDES = (
    InventorySide("ours, local[2]", "ours"), InventorySide("Spark's reader, hashed names, local[2]", "hashed"),
    InventorySide("Spark's reader, names, local[2]", "plain"), InventorySide("DuckDB, 2 threads", "duckdb"),
)  # fmt: skip


@dataclass(frozen=True)
class InventoryBenchRun:
    """One run. `cpu_s`: CPU of all processes from ready to found. Peaks are of the largest process, in MiB."""

    cpu_s: float
    whole_s: float
    wall_s: float
    worker_mib: float
    java_mib: float
    shuffled: int


# --- what is read ----------------------------------------------------------------------------------


def write(directory: Path, names: int) -> None:
    """Writes the report and the export of a world of so many names, in `SHARDS` files each."""
    for folder, table_of, among in (("report", _blobs, blobs_among), ("export", _rows, rows_among)):
        (directory / folder).mkdir()
        starts = range(0, names, PER_PROJECT)
        for shard in range(SHARDS):
            with parquet.ParquetWriter(directory / folder / f"shard_{shard}.parquet", table_of(np.arange(0)).schema) as writer:
                for start in starts[shard::SHARDS]:
                    writer.write_table(table_of(among(np.arange(start, min(names, start + PER_PROJECT)))))
    manifest = {
        "records_processed": AuditWorld(names).blobs, "snapshot_time": "2026-11-01T00:00:00Z", "shard_count": SHARDS,
        "report_shards_file_names": [f"shard_{shard}.parquet" for shard in range(SHARDS)],
    }  # fmt: skip
    (directory / "report" / "manifest.json").write_text(json.dumps(manifest))


def _blobs(numbers: Numbers) -> Any:
    count = len(numbers)
    return pa.table({
        "bucket": pa.array([BUCKET] * count, pa.string()), "name": _texts(names_of(numbers)[:, :NAME_BYTES], pa.string()),
        "size": pa.array(numbers % 900_000 + 100_000, pa.int64()), "generation": pa.array(numbers + 1_738_368_000_000_000, pa.int64()),
        "timeCreated": pa.array(numbers + 1_738_368_000_000_000, pa.timestamp("us", tz="UTC")),
    })  # fmt: skip


def _rows(numbers: Numbers) -> Any:
    lines, count = names_of(numbers), len(numbers)
    cells = pa.StructArray.from_arrays(
        [
            pa.array(["fm"] * count, pa.string()), pa.array([b"r"] * count, pa.binary()),
            pa.array(numbers + 1_738_368_000_000_000, pa.int64()), _texts(lines[:, :NAME_BYTES], pa.binary()),
        ],
        fields=list(CELL),
    )  # fmt: skip
    offsets = pa.array(np.arange(count + 1, dtype=np.int32))
    return pa.table({"key": _texts(lines[:, :PATH_BYTES], pa.binary()), "cells": pa.ListArray.from_arrays(offsets, cells)})


def _texts(lines: Bytes, kind: Any) -> Any:
    """Returns lines of one length as an array of Arrow, without a Python object for each."""
    count, width = lines.shape
    offsets = pa.py_buffer(np.arange(0, (count + 1) * width, max(1, width), dtype=np.int32)[: count + 1].tobytes())
    return pa.Array.from_buffers(kind, count, [None, offsets, pa.py_buffer(np.ascontiguousarray(lines).tobytes())])


# --- the sides -------------------------------------------------------------------------------------


async def measure(side: InventorySide, directory: Path, names: int) -> InventoryBenchRun:
    command = [sys.executable, "-m", "benchmarks.inventory_side", side.name, str(directory)]
    async with started("benchmarks.metered", *command, within_s=RUN_S) as line:
        taken = Taken.loaded(line)
    if taken.code or [line.text for line in taken.lines][:1] != ["ready"]:
        raise SystemExit(f"{side.what} failed with exit code {taken.code}")
    ready, found = taken.lines[0], taken.lines[-1]
    result, world = json.loads(found.text), AuditWorld(names)
    if result["found"] != [world.orphans, world.dangling]:
        raise AssertionError(f"{side.what} found {result['found']} and not {[world.orphans, world.dangling]}")
    worker = max(taken.peaks_kib.get("worker", 0), taken.peaks_kib.get("main", 0)) / 1024
    return InventoryBenchRun(
        found.cpu_s - ready.cpu_s, taken.cpu_s, found.at_s - ready.at_s, worker, taken.peaks_kib.get("java", 0) / 1024, result["shuffled"]
    )


def beside(names: int, sides: Sequence[InventorySide], runs: list[list[InventoryBenchRun]]) -> Figures:
    """Compares the sides with the first one."""
    rows: list[list[Cell]] = []
    for side, each in zip(sides, runs, strict=True):
        ratio: Cell = "1" if side is sides[0] else Ratio.of([run.cpu_s for run in runs[0]], [run.cpu_s for run in each])
        cpu, wall, whole = (f"{median(seconds):.1f}" for seconds in (
            [run.cpu_s for run in each], [run.wall_s for run in each], [run.whole_s for run in each],
        ))  # fmt: skip
        peaks = [f"{max(peak):,.0f}" for peak in ([run.worker_mib for run in each], [run.java_mib for run in each])]
        shuffled = max(run.shuffled for run in each) / MIB
        rows.append([
            side.what, cpu, ratio, wall, whole, *(peak if peak != "0" else "" for peak in peaks),
            f"{shuffled:,.0f}" if shuffled else "",
        ])  # fmt: skip
    columns = [
        "", "CPU, s", "ours to it", "all, s", "CPU with the start, s", "largest Python, MiB", "Java, MiB",
        "shuffle, MiB",
    ]
    return Figures(f"Inventory join of {names:,} names, as many blobs and rows", columns, rows, GOALS)


async def figures(size: float, sides: Sequence[InventorySide] = SIDES, rounds: int = ROUNDS) -> Figures:
    names = max(SMALLEST, round(NAMES * size))
    with TemporaryDirectory(prefix="tiered-bench-") as directory:
        write(Path(directory), names)
        runs = await take_turns([partial(measure, side, Path(directory), names) for side in sides], rounds)
    return beside(names, sides, runs)


if __name__ == "__main__":
    parser = options(
        "inventory", "The inventory join beside what a user would write.",
        "millions of names (1: some minutes; 10: the full size)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    measured = anyio.run(partial(figures, rounds=arguments.rounds), arguments.size)
    tell("inventory", [measured], arguments.size, arguments.load, arguments.docs)
