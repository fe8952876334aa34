"""A side of the inventory join's figures, in a process of its own: `python -m benchmarks.inventory_side NAME WHERE`.

    ours      the join of `recovery.audit.inventory`: files read with Arrow, two hashes of each name, one full outer
              join, the names of what is left; and the counts by range and usecase, which the others do not make
    hashed    Spark's own reader, an anti-join each way on the same two hashes, names are not told
    plain     Spark's own reader, an anti-join each way on the name
    duckdb    an anti-join each way on the name, with two threads

All read the same files. Judging what is left is no part of it. A side prints `ready` when its session is open, and then
what it found, and how many bytes Spark wrote for its shuffles.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb as duck
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.audit_join import open_session
from benchmarks.audit_side import SideRequest
from changelog.base.runtime import SystemRuntime
from recovery.audit.inventory import join
from recovery.audit.inventory.insights import open_report
from recovery.audit.inventory.lines import InventoryFiles, LineCount
from recovery.audit.inventory.report import open_export
from recovery.audit.running.plan import split

BUCKET = "bench-bucket"
SLOTS = 2
TARGET = "string(element_at(filter(cells, c -> c.family = 'fm' AND c.qualifier = X'72'), 1).value) AS target"

Found = tuple[int, int]
"""The number of blobs that no row names, and of rows whose blob is not in the report."""


def ours(session: SparkSession, directory: Path) -> Found:
    bounds = split([f"attachments/org.{number}" for number in range(100, 112)])
    runtime = SystemRuntime()
    report = open_report(str(directory / "report"), BUCKET, runtime, insist=True)
    seen = join.look_over(session, report)
    assert seen.rows == report.records and (seen.least, seen.greatest) == (BUCKET, BUCKET)
    files, now_us = InventoryFiles(report, open_export(str(directory / "export"), runtime)), report.evidence.snapshot_ns // 1000
    blobs, rows = join.read_report(session, report, bounds), join.read_export(session, files, bounds, now_us)
    left = join.candidates(blobs, rows, files, bounds).collect()
    counted = [LineCount(*json.loads(each["told"])) for each in left if each["told"] is not None]
    assert sum(each.number for each in counted if each.usecase is not None) == report.records
    named = [each["key"] is None for each in left if each["told"] is None]
    return sum(named), len(named) - sum(named)


def hashed(session: SparkSession, directory: Path) -> Found:
    def hashes(frame: DataFrame, column: str) -> DataFrame:
        first, second = join.hashes(f.col(column))
        return frame.select(first.alias("a"), second.alias("b"), *([] if column == "target" else ["size", "generation"]))

    blobs, rows = (hashes(frame, column) for frame, column in zip(_read(session, directory), ("name", "target"), strict=True))
    return blobs.join(rows, ["a", "b"], "left_anti").count(), rows.join(blobs, ["a", "b"], "left_anti").count()


def plain(session: SparkSession, directory: Path) -> Found:
    blobs, rows = _read(session, directory)
    named = rows.withColumnRenamed("target", "name")
    return blobs.select("name").join(named, "name", "left_anti").count(), named.join(blobs, "name", "left_anti").count()


def _read(session: SparkSession, directory: Path) -> tuple[DataFrame, DataFrame]:
    blobs = session.read.parquet(*map(str, sorted((directory / "report").glob("*.parquet")))).where("name IS NOT NULL")
    return blobs, session.read.parquet(str(directory / "export")).selectExpr(TARGET)


def duckdb(directory: Path) -> Found:
    database = duck.connect()
    database.execute(f"SET threads = {SLOTS}")
    names = f"SELECT name FROM '{directory}/report/*.parquet' WHERE name IS NOT NULL"
    chosen = "list_filter(cells, lambda c: c.family = 'fm' AND c.qualifier = 'r'::BLOB)"
    targets = f"SELECT decode({chosen}[1].value) AS name FROM '{directory}/export/*.parquet'"
    print("ready", flush=True)
    counted = [
        database.sql(f"SELECT count(*) FROM ({left}) ANTI JOIN ({right}) USING (name)").fetchall()[0][0]
        for left, right in ((names, targets), (targets, names))
    ]
    return counted[0], counted[1]


SPARK: dict[str, Callable[[SparkSession, Path], Found]] = {"ours": ours, "hashed": hashed, "plain": plain}


def shuffled(session: SparkSession) -> int:
    """Returns how many bytes the shuffles of this session wrote."""
    java: Any = session.sparkContext._jsc
    executors = java.sc().statusStore().executorList(True)
    return sum(executors.apply(number).totalShuffleWrite() for number in range(executors.length()))


def main(side: str, where: str) -> None:
    directory = Path(where)
    if side == "duckdb":
        print(json.dumps({"found": duckdb(directory), "shuffled": 0}), flush=True)
        return
    session = open_session(SideRequest(0, "", "", where, SLOTS))
    print("ready", flush=True)
    found = SPARK[side](session, directory)
    print(json.dumps({"found": found, "shuffled": shuffled(session)}), flush=True)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
