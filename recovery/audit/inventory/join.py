"""What the report and the table do not have in common, found by Spark in one job.

    report (files)   ->  blobs: hashes, at             -.
                                                          full outer join on two hashes of the name
    export or table  ->  rows:  hashes, flags, at        -'    |
                                                               v
    in no live row: suspects       in no blob: rows to look at       in both: counted, never moved again

Only hashes cross the network: 16 bytes a name, and 8 that say in which row of which file it is. The names of what is
left are read from those rows (`lines.py`, which runs on the executors). Rows of a table that is scanned go along as
they are. Two names with the same hashes seem to be one. Then an orphan, or a lost blob, may be overlooked, and never
the opposite. Names that are null are left out and counted.

The first hash starts from a constant, and so the second one, which starts from another, does not follow from it.

Arrow opens the files, on the executors (`shards.py`). Hadoop cannot: Google puts a colon into the names of shards, and
a path of Hadoop may have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from changelog.base.errors import ConfigurationError
from recovery.audit.inventory import lines
from recovery.audit.inventory.lines import ROW_BITS, InventoryFiles
from recovery.audit.inventory.report import InventoryReport, ReportSummary, check_repeats, check_sums
from recovery.audit.manifest import Bounds

BLOB_COLUMNS = "name string, at bigint, told string"
ROW_COLUMNS = "target string, passed boolean, look boolean, at bigint, told string"
SCANNED_COLUMNS = f"{ROW_COLUMNS}, key binary, fault string"
CANDIDATE_COLUMNS = "range int, name string, generation string, size bigint, key binary, target string, fault string, told string"

WHOLE = {"key": "binary", "target": "string", "fault": "string"}
"""The columns of a row of a table that is scanned, because it cannot be read a second time."""


def _each(session: SparkSession, number: int, read: Callable[[Iterable[Any]], Iterator[Any]], columns: str) -> DataFrame:
    """Returns what `read` makes of the numbers from 0 to `number`, one task for each."""
    return session.range(0, number, 1, number).mapInArrow(read, columns)


# --- what is joined --------------------------------------------------------------------------------


def look_over(session: SparkSession, report: InventoryReport) -> ReportSummary:
    """Counts the rows of the report where they are read. Refuses one that is damaged, or lists blobs again."""
    columns = (
        "shard bigint, rows bigint, nameless bigint, deleted bigint, bucketless bigint, repeated bigint, shown bigint, owners bigint,"
        " least string, greatest string, sum string, sketch array<bigint>"
    )
    seen = sorted(_each(session, len(report.shards), partial(lines.look_over, report), columns).collect(), key=itemgetter("shard"))
    check_sums(report, [(each["shard"], each["sum"]) for each in seen])
    if bucketless := sum(each["bucketless"] for each in seen):
        raise ConfigurationError(f"{bucketless:,} rows of the inventory report do not tell their bucket: copy the report again")
    check_repeats(report, [(each["shard"], each["repeated"], each["sketch"]) for each in seen])
    counts = {name: sum(each[name] for each in seen) for name in ("rows", "nameless", "deleted", "shown", "owners")}
    buckets = [each[name] for each in seen for name in ("least", "greatest") if each[name] is not None]
    return ReportSummary(**counts, least=min(buckets, default=None), greatest=max(buckets, default=None))


def read_report(session: SparkSession, report: InventoryReport, bounds: Sequence[Bounds]) -> DataFrame:
    """Returns the lines of the report. One task reads one shard."""
    return _each(session, len(report.shards), partial(lines.of_blobs, report, bounds), BLOB_COLUMNS)


def read_export(session: SparkSession, files: InventoryFiles, bounds: Sequence[Bounds], now_us: int) -> DataFrame:
    """Returns the lines of a Bigtable export (`report.open_export`). One task reads one file."""
    return _each(session, len(files.export), partial(lines.of_export, files, bounds, now_us), ROW_COLUMNS)


def read_table(session: SparkSession, settings: str, bounds: Sequence[Bounds], now_us: int) -> DataFrame:
    """Returns the lines of the table itself, one task for each of these ranges of keys."""
    return _each(session, len(bounds), partial(lines.of_table, settings, bounds, now_us), SCANNED_COLUMNS)


# --- the join --------------------------------------------------------------------------------------


def hashes(name: Column) -> tuple[Column, Column]:
    """Returns two hashes of a name, of 64 bits each."""
    return f.xxhash64(name), f.xxhash64(f.lit("tiered"), name)


def candidates(blobs: DataFrame, rows: DataFrame, files: InventoryFiles, bounds: Sequence[Bounds]) -> DataFrame:
    """Returns what must be looked at, and all counts, as `lines.CANDIDATE` says.

    A suspect has no `key`. A row has one. If it cannot be read, its `target` is null and its `fault` is not. A count
    has text in `told` and no name.
    """
    apart = left_over(blobs, rows)
    number = files.shards + len(files.export)
    parted = apart.repartition(number, f.shiftright("at", ROW_BITS)).sortWithinPartitions("at")
    return parted.mapInArrow(partial(lines.named, files, bounds), CANDIDATE_COLUMNS)


def left_over(blobs: DataFrame, rows: DataFrame) -> DataFrame:
    """Returns the lines that the two do not have in common, and all counts: at, key, target, fault, told."""
    left = _hashed(blobs, "name").select("first", "second", f.col("at").alias("blob"), f.col("told").alias("of_blobs"))
    right = _hashed(rows, "target").withColumnsRenamed({"first": "first_too", "second": "second_too"})
    empty = {name: f.lit(None).cast(kind) for name, kind in WHOLE.items()}
    row = {name: f.col(name) if "key" in rows.columns else null for name, null in empty.items()}
    same = (f.col("first") == f.col("first_too")) & (f.col("second") == f.col("second_too"))
    is_suspect = f.col("blob").isNotNull() & f.coalesce("passed", f.lit(True))
    is_to_look_at = f.col("passed").isNotNull() & (f.col("blob").isNull() | f.col("look"))
    target = f.coalesce("of_blobs", "told")

    def line(**columns: Column) -> Column:
        values = {"at": f.lit(None).cast("bigint"), **empty, "told": f.lit(None).cast("string")} | columns
        return f.struct(*(value.alias(name) for name, value in values.items()))

    found = f.array_compact(f.array(
        f.when(is_suspect, line(at=f.col("blob"))),
        f.when(is_to_look_at, line(at=f.col("at"), **row)),
        f.when(target.isNotNull(), line(told=target)),
    ))  # fmt: skip
    return left.join(right, same, "full_outer").where(is_suspect | is_to_look_at | target.isNotNull()).select(f.inline(found))


def _hashed(frame: DataFrame, name: str) -> DataFrame:
    """Returns the lines with both hashes of a column. A line without a name meets no other: null equals nothing.

    Its first hash is of something else, so that such lines are spread over all tasks.
    """
    first, second = hashes(f.col(name))
    is_named = f.col(name).isNotNull()
    return frame.select(
        "*", f.when(is_named, first).otherwise(f.xxhash64("at", "told")).alias("first"), f.when(is_named, second).alias("second"),
    )  # fmt: skip
