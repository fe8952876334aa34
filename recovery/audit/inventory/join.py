"""What the report and the table do not have in common, found by Spark.

    report (files)   ->  blobs: name, generation, size          -.
                                                                   full outer join on two hashes of the name
    export or table  ->  rows:  key, target, deadline, fault     -'    |
                                                                       v
    in no live row: suspects       in no blob: rows to look at       in both: counted, never moved again

Only hashes cross the network: 16 bytes a name, 8 for the range and a flag. The names of what is left are read from the
files once more. Two names with the same hashes seem to be one. Then an orphan, or a lost blob, may be overlooked, and
never the opposite. Names that are null are left out and counted.

The first hash starts from a constant, and so the second one, which starts from another, does not follow from it.

Arrow opens the files, on the executors (`shards.py`). Hadoop cannot: Google puts a colon into the names of shards, and
a path of Hadoop may have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from changelog.base.errors import ConfigurationError
from recovery.audit.finding import NO_USECASE, OTHERS
from recovery.audit.inventory import shards
from recovery.audit.inventory.report import DELETED, Report
from recovery.audit.manifest import Bounds
from recovery.sources.columns import TOMBSTONES, batch_of
from recovery.sources.reading import Part, rows

USECASE_ROWS_MAX = 100_000
"""How many pairs of range and usecase are counted one by one. With more, each range counts its blobs as of others."""

BROADCAST_MAX = 500_000
"""So many hashes are sent to every executor, to find their names. More are joined by a shuffle."""

ROW_COLUMNS = "key binary, target string, deadline_us bigint, fault string"


@dataclass(frozen=True, slots=True)
class Counted:
    """How many rows of the report, and bytes, a range has of a usecase."""

    usecase: str
    number: int
    size: int


# --- the report ------------------------------------------------------------------------------------


def read_report(session: SparkSession, report: Report) -> DataFrame:
    """Returns the blobs of the report: name, size, generation. One task reads one shard.

    Names that are null or no text are left out, and so are blobs that had been deleted. A number that cannot be read is
    null.
    """
    read = partial(shards.read_report, report.shards, report.form, report.delimiter, DELETED in report.columns)
    return _each(session, report.shards, read, "name string, size bigint, generation bigint")


def _each(session: SparkSession, files: Sequence[str], read: Callable[[Iterable[Any]], Iterator[Any]], columns: str) -> DataFrame:
    return session.range(0, len(files), 1, len(files)).mapInArrow(read, columns)


@dataclass(frozen=True, slots=True)
class Looked:
    """What one pass over the report told. `least`, `greatest`: of the column `bucket`."""

    rows: int
    nameless: int
    deleted: int
    least: str | None
    greatest: str | None


def look_over(session: SparkSession, report: Report) -> Looked:
    """Counts the rows of the report where they are read. Only one row for each shard leaves its task."""
    read = partial(shards.look_over, report.shards, report.form, report.delimiter, DELETED in report.columns)
    columns = "rows bigint, nameless bigint, deleted bigint, bucketless bigint, least string, greatest string"
    seen = _each(session, report.shards, read, columns)
    sums = (f.sum(name) for name in ("rows", "nameless", "deleted", "bucketless"))
    [found] = seen.agg(*sums, f.min("least"), f.max("greatest")).collect()
    if found[3]:
        raise ConfigurationError(f"{found[3]:,} rows of the inventory report do not tell their bucket: copy the report again")
    return Looked(found[0], found[1], found[2], found[4], found[5])


# --- the rows --------------------------------------------------------------------------------------


def read_export(session: SparkSession, files: Sequence[str]) -> DataFrame:
    """Returns the tombstones of a Bigtable export (`report.open_export`). One task reads one file."""
    raw = _each(session, files, partial(shards.read_export, files), "key binary, target binary, deadline_us bigint, fault string")
    target = f.col("target").cast("string")
    readable = f.expr("is_valid_utf8(string(key))") & f.coalesce(f.expr("is_valid_utf8(string(target))"), f.lit(True))
    fault = f.when(~readable, f.lit(shards.LOOK_AGAIN)).otherwise(f.col("fault"))
    return raw.select("key", f.when(readable, target).alias("target"), "deadline_us", fault.alias("fault"))


def read_table(session: SparkSession, settings: str, parts: Sequence[Bounds]) -> DataFrame:
    """Returns the tombstones of the table itself, one task for each of these ranges of keys."""
    return session.range(0, len(parts), 1, len(parts)).mapInArrow(
        partial(_scan, settings, [Part(bounds.start, bounds.end) for bounds in parts]), ROW_COLUMNS
    )


def _scan(settings: str, parts: Sequence[Part], batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for page in rows("tiered.tombstones", settings, parts[number]):
                found = batch_of(TOMBSTONES, page, ("object", "name", "deadline", "error")).to_pydict()
                yield batch.from_pydict({
                    "key": [path.encode() for path in found["object"]], "target": found["name"],
                    "deadline_us": [row[4] for row in page], "fault": found["error"],
                })  # fmt: skip


# --- the join --------------------------------------------------------------------------------------


def hashes(name: Column) -> tuple[Column, Column]:
    """Returns two hashes of a name, of 64 bits each."""
    return f.xxhash64(name), f.xxhash64(f.lit("tiered"), name)


def range_of(name: Column, bounds: Sequence[Bounds]) -> Column:
    """Returns the number of the range in which a name lies. Spark compares text by the bytes of its UTF-8."""

    def below(first: int, last: int) -> Column:
        if last - first == 1:
            return f.lit(first)
        middle = (first + last) // 2
        return f.when(name < f.lit(bounds[middle].start), below(first, middle)).otherwise(below(middle, last))

    return below(0, len(bounds)).cast("int")


def usecase_of(name: Column) -> Column:
    first = f.substring_index(name, "/", 1)
    return f.when(name.contains("/") & (first != ""), first).otherwise(f.lit(NO_USECASE))


def candidates(
    blobs: DataFrame, table: DataFrame, bounds: Sequence[Bounds], now_us: int, kept: list[DataFrame] | None = None
) -> DataFrame:
    """Returns what must be looked at: range, name, generation, size, key, target, fault.

    A suspect has no `key`. A row has one. If it cannot be read, its `target` is null and its `fault` is not. `now_us`:
    a deadline that is not after this time has passed (microseconds since 1970). `kept`: takes what Spark keeps on disk
    until the caller unpersists it.
    """
    passed = f.coalesce(f.col("deadline_us") <= now_us, f.lit(False))
    good = table.where("fault IS NULL")
    (a, b), (c, d) = hashes(f.col("name")), hashes(f.col("target"))
    left = blobs.select(a.alias("a"), b.alias("b"), f.lit(True).alias("blob"))
    right = good.select(c.alias("c"), d.alias("d"), passed.alias("passed"))
    joined = left.join(right, (f.col("a") == f.col("c")) & (f.col("b") == f.col("d")), "full_outer")
    apart = joined.where("blob IS NULL OR passed IS NULL OR passed").select(
        f.coalesce("a", "c").alias("a"), f.coalesce("b", "d").alias("b"), f.col("blob").isNotNull().alias("blob"),
    ).distinct().persist(StorageLevel.DISK_ONLY)  # fmt: skip
    if kept is not None:
        kept.append(apart)
    is_small = apart.count() <= BROADCAST_MAX

    def named(frame: DataFrame, name: Column, wanted: DataFrame, how: str) -> DataFrame:
        first, second = hashes(name)
        hashed = wanted.select("a", "b")
        return frame.join(f.broadcast(hashed) if is_small else hashed, (first == f.col("a")) & (second == f.col("b")), how)

    suspects = named(blobs, f.col("name"), apart.where("blob"), "left_semi").select(
        "name", "generation", "size", f.lit(None).cast("binary").alias("key"), f.lit(None).cast("string").alias("target"),
        f.lit(None).cast("string").alias("fault"),
    )  # fmt: skip
    target, key = f.col("target"), f.col("key").cast("string")
    own = (target == key) | target.startswith(f.concat(key, f.lit("/")))
    odd = f.col("fault").isNotNull() | ~own
    to_look_at = named(table, target, apart.where("NOT blob"), "left").where(f.col("a").isNotNull() | odd).select(
        f.coalesce(target, f.when(f.expr("is_valid_utf8(string(key))"), key)).alias("name"),
        f.lit(None).cast("bigint").alias("generation"), f.lit(None).cast("bigint").alias("size"), "key", "target", "fault",
    )  # fmt: skip
    found = suspects.union(to_look_at)
    place = f.when(f.col("name").isNull(), f.lit(0)).otherwise(range_of(f.col("name"), bounds))
    return found.select(place.alias("range"), *found.columns)


def counted(blobs: DataFrame, bounds: Sequence[Bounds]) -> dict[int, list[Counted]]:
    """Counts the blobs of the report by range and usecase."""
    ranged = blobs.select(range_of(f.col("name"), bounds).alias("range"), usecase_of(f.col("name")).alias("usecase"), "size")
    sums = (f.count("*").alias("number"), f.coalesce(f.sum("size"), f.lit(0)).alias("bytes"))
    found = ranged.groupBy("range", "usecase").agg(*sums).limit(USECASE_ROWS_MAX + 1).collect()
    if len(found) > USECASE_ROWS_MAX:
        found = ranged.groupBy("range").agg(*sums).withColumn("usecase", f.lit(OTHERS)).collect()
    by_range: dict[int, list[Counted]] = {}
    for row in found:
        by_range.setdefault(row["range"], []).append(Counted(row["usecase"], row["number"], row["bytes"]))
    return by_range


def rows_counted(table: DataFrame, bounds: Sequence[Bounds]) -> dict[int, int]:
    """Counts the tombstones by the range in which the blob's name lies."""
    named = table.where("target IS NOT NULL").groupBy(range_of(f.col("target"), bounds).alias("range"))
    found = named.agg(f.count("*").alias("number")).collect()
    return {row["range"]: row["number"] for row in found}
