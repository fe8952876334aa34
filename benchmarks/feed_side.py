"""A side of the change feed's figures, in a process of its own: `python -m benchmarks.feed_side NAME WHERE`.

    plain     what a user would write for JSON lines: `json.loads`, and a sum for each record; no progress, no checks
    reader    `recovery.feed`: the files are read, `CdcReader` delivers, `FeedView` adds up
    avro      the same from object container files
    spark     `recovery.sources.consistent` on Spark: the frontier, the checks and the view, from the lines
    rows      Spark's own distinct and sum over the rows of the format tiered.feed; no progress, no checks
    own       the same, but Spark's own JSON reader reads the lines

A side prints `ready`, and then what it found: how many records there are, and the sum of their multiplicities.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.audit_join import open_session
from benchmarks.audit_side import SideRequest
from recovery.feed.files import read_all
from recovery.feed.reader import CdcReader
from recovery.feed.view import FeedView
from recovery.sources.consistent import open_feed
from recovery.sources.spark import register

PARTITIONS = 8
LINE = "array array<struct<data:struct<object:string,blob:string>,time:bigint,diff:bigint>>"

Found = tuple[int, int]
"""How many records there are, and the sum of their multiplicities."""


def plain(directory: Path) -> Found:
    view: Counter[tuple[str, str]] = Counter()
    for path in sorted((directory / "json").iterdir()):
        with path.open() as lines:
            for line in lines:
                for update in json.loads(line).get("array", ()):
                    view[update["data"]["object"], update["data"]["blob"]] += update["diff"]
    return len(view), sum(view.values())


def reader(directory: Path, form: str = "json") -> Found:
    reading, view = CdcReader(), FeedView()
    for located in read_all(sorted((directory / form).iterdir())):
        batch = reading.feed(located.message)
        if batch is not None:
            view.add(batch)
    return len(view), sum(row.multiplicity for row in view)


def spark(session: SparkSession, directory: Path) -> Found:
    with open_feed(session, str(directory / "json")) as reading:
        [frontier] = reading.frontier.collect()
        assert frontier.short is None and frontier.covered == frontier.frontier
        return _found(reading.view)


def rows(session: SparkSession, directory: Path) -> Found:
    wanted = session.read.format("tiered.feed").schema("kind string, data string, time bigint, diff bigint")
    return _summed(wanted.load(str(directory / "json")).where("kind = 'update'").drop("kind"))


def own(session: SparkSession, directory: Path) -> Found:
    lines = session.read.schema(LINE).json(str(directory / "json"))
    return _summed(lines.select(f.explode("array").alias("each")).select("each.*"))


def _summed(updates: DataFrame) -> Found:
    return _found(updates.distinct().groupBy("data").agg(f.sum("diff").alias("count")).where("count != 0"))


def _found(view: DataFrame) -> Found:
    [row] = view.agg(f.count("*").alias("records"), f.sum("count").alias("sum")).collect()
    return row.records, row.sum


ALONE: dict[str, Callable[[Path], Found]] = {"plain": plain, "reader": reader, "avro": partial(reader, form="avro")}
ON_SPARK: dict[str, Callable[[SparkSession, Path], Found]] = {"spark": spark, "rows": rows, "own": own}


def main(side: str, where: str) -> None:
    work: Callable[[], Found] = partial(ALONE.get(side, plain), Path(where))
    if side in ON_SPARK:
        session = open_session(SideRequest(0, "", "", where))
        session.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
        register(session)
        work = partial(ON_SPARK[side], session, Path(where))
    print("ready", flush=True)
    print(json.dumps(work()), flush=True)
    if side in ON_SPARK:
        session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
