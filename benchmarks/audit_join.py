"""What a user of Spark would write: both sources as DataFrames, and a join.

It reads through the same adapters as the audit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

import anyio
from pyarrow import RecordBatch
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count_if

from benchmarks.audit_side import Found, Ready, SideRequest
from benchmarks.harness import RUNTIME
from tiered.open import open_backends

PAGE_BLOBS, PAGE_ROWS = 1000, 10_000
CONF = {
    "spark.driver.memory": "4g", "spark.ui.enabled": "false", "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
}  # fmt: skip


def find(asked: SideRequest, ready: Ready) -> Found:
    session = open_session(asked)
    cuts = ["", *anyio.run(boundaries, asked)]
    parts = session.range(0, len(cuts), 1, len(cuts))
    ready()
    blobs = parts.mapInArrow(partial(in_turn, read_blobs, asked, cuts), "name string, size long, created long, generation string")
    rows = parts.mapInArrow(partial(in_turn, read_targets, asked, cuts), "target string")
    joined = blobs.join(rows, col("name") == col("target"), "full_outer")
    [counted] = joined.agg(count_if(col("target").isNull()), count_if(col("name").isNull())).collect()
    session.stop()
    return counted[0], counted[1]


def open_session(asked: SideRequest) -> SparkSession:
    """Returns a session with memory for a shuffle. It prints nothing."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": asked.directory}
    conf = SparkConf().setAppName("join").setMaster(f"local[{asked.slots}]").setAll(list(CONF.items()))
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    SparkContext(conf=conf, gateway=launch_gateway(conf, silent))  # type: ignore[no-untyped-call]
    return SparkSession.builder.getOrCreate()


async def boundaries(asked: SideRequest) -> list[str]:
    async with open_backends(asked.settings, RUNTIME, writes=False) as backends:
        return list(await backends.tiers.high_volume.boundaries(asked.ranges))


async def read_blobs(asked: SideRequest, start: str, end: str | None) -> list[Any]:
    """Returns the blobs of one range, which is small, as Arrow batches."""
    found, next_start = [], cast(str | None, start)
    async with open_backends(asked.settings, RUNTIME, writes=False) as backends:
        while next_start is not None:
            page = await backends.tiers.long_term.list(next_start, end, PAGE_BLOBS)
            next_start = page.next_start
            found.append(RecordBatch.from_pydict({
                "name": [blob.name for blob in page.blobs], "size": [blob.size for blob in page.blobs],
                "created": [blob.created_ns for blob in page.blobs], "generation": [blob.generation for blob in page.blobs],
            }))  # fmt: skip
    return found


async def read_targets(asked: SideRequest, start: str, end: str | None) -> list[Any]:
    found, next_start = [], cast(bytes | None, start.encode())
    async with open_backends(asked.settings, RUNTIME, writes=False) as backends:
        while next_start is not None:
            page = await backends.tiers.high_volume.redirects(next_start, None if end is None else end.encode(), PAGE_ROWS)
            next_start = page.next_start
            found.append(RecordBatch.from_pydict({"target": [target for _, target, _ in page.redirects]}))
    return found


def in_turn(
    read: Callable[[SideRequest, str, str | None], Awaitable[list[Any]]], asked: SideRequest, cuts: list[str], batches: Iterable[Any]
) -> Iterator[Any]:
    """Yields what is read of the ranges that a task was given."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from anyio.run(read, asked, cuts[number], cuts[number + 1] if number + 1 < len(cuts) else None)
