"""The set-based reader of a change feed: Spark finds what a feed says, from all its messages at once.

    rows of tiered.feed --distinct--> updates, statements --> points --running sum--> frontier, view
                                                                `--> what is wrong, in sentences

It asks nothing of the order of messages, and takes each distinct one once. A *statement* is a progress message. A
*point* is a time that some message names. Of each point Spark counts four things: how many statements cover it, how
many declare a count for it, the least and the greatest of these counts, and how many distinct updates there are.

    frontier    the first point that no statement covers, or that has fewer updates than its statements declare
    view        of each record the sum of the diffs of its distinct updates before the frontier, if it is not 0

A running sum over the points (+1 where a statement begins, -1 where it ends) tells how many statements cover each. So
the first point that none covers ends the longest chain of statements from 0. The sum is made in ranges of times, about
`POINTS_MAX` points each, so no task gets more, whatever the number of progress messages. Nothing but the bounds of
these ranges, one line for each feed, and its first faults come to the driver.

A feed that breaks a rule gives no view at all. The rules are those of `recovery.feed`'s strict reader. This reader
finds more than that one, because it has all messages at once: an update that comes late, at a time that is closed, is
one too many here.

Rows of several feeds may be read at once. The column `feed` tells them apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from types import TracebackType
from typing import Self

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as f

from changelog.base.errors import ConfigurationError
from recovery.feed.errors import FeedError, Rule
from recovery.feed.messages import LONG_MAX, LONG_MIN
from recovery.sources.columns import FEED, ddl
from recovery.sources.feed_files import PROGRESS, UPDATE

POINTS_MAX = 1_000_000
"""So many points, about, are in one range of times. One task sorts them."""

BLAMED = 3
"""So many places are named in an error."""

DATA_MAX = 200
"""So many characters of a record are shown in an error."""

NEEDED = ("feed", "generation", "kind", "data", "time", "diff", "lower", "upper", "counts", "error")
"""The columns that the reader needs. `file` and `place` are read only to say where a fault is."""

FRONTIER = "feed string, frontier bigint, closed boolean, covered bigint, short bigint"
_RANGE, _SUM = "_range", "_before"
_RULE = re.compile(r" \(rule (\w+): [^()]*\)$")


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule that a feed breaks. `why`: what was found, as one clause. `time`, `data`: which these are, if known.

    `rule`: None if a file cannot be read; then `why` is a whole sentence.
    """

    feed: str
    rule: Rule | None
    why: str
    time: int | None = None
    data: str | None = None


class ConsistentFeeds:
    """What the messages of one or more feeds say. It is a context manager: `close` frees what Spark keeps for it.

    `frontier`: one row for each feed. `frontier` is the first time that is not known to be complete; null if `closed`:
    the feed has ended. `covered`: the first time that no chain of progress messages from 0 covers; null: there is none.
    `short`: the first time with fewer updates than are declared; null: there is none.

    `view`: `feed`, `data` (the record as canonical JSON) and `count`, for each record whose count is not 0. Spark
    raises an error that names the record if a count does not fit into 64 bits. `faults`: which rules are broken: the
    first one of each feed, and a second one if a rule is broken that only several messages
    together can break. Such a feed has no view, and its frontier means nothing.
    """

    def __init__(self, messages: DataFrame, feeds: Sequence[str] = (), *, points_max: int = POINTS_MAX) -> None:
        """Reads all messages, once. `messages`: rows of the format tiered.feed with the columns `NEEDED`.

        `feeds`: these have a row in `frontier` even if they have no messages.
        Raises what reading raises. A broken rule raises nothing: it is one of the `faults`.
        """
        self._session = messages.sparkSession
        self._kept: list[DataFrame] = []
        try:
            self._held = self._keep(_distinct(messages))
            self.faults = list(_faults_of_messages(self._held))
            points = self._covered(self._keep(_points(self._held)), points_max)
            self.faults += _faults_of_points(points)
            self.frontier = self._frontiers(points, feeds)
        except BaseException:
            self.close()
            raise
        self.view = self._view()

    def close(self) -> None:
        """Frees what Spark keeps. The view cannot be read any more without reading all messages again."""
        for frame in self._kept:
            frame.unpersist()
        self._kept.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _keep(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
        self._kept.append(kept)
        return kept

    def _covered(self, points: DataFrame, points_max: int) -> DataFrame:
        """Returns the points with `covered`: how many statements cover each."""
        ranges = -(-points.count() // points_max)
        bounds = sorted(set(points.approxQuantile("at", [n / ranges for n in range(1, ranges)], 0.25 / ranges))) if ranges > 1 else []
        ranged = points.withColumn(_RANGE, _range_of(bounds))
        before = Window.partitionBy("feed").orderBy(_RANGE).rowsBetween(Window.unboundedPreceding, -1)
        sums = ranged.groupBy("feed", _RANGE).agg(f.sum("turn").alias("turn"))
        sums = sums.select("feed", _RANGE, f.coalesce(f.sum("turn").over(before), f.lit(0)).alias(_SUM))
        within = Window.partitionBy("feed", _RANGE).orderBy("at").rowsBetween(Window.unboundedPreceding, Window.currentRow)
        running = f.sum("turn").over(within) + f.col(_SUM)
        return ranged.join(f.broadcast(sums), ["feed", _RANGE]).withColumn("covered", running).drop(_RANGE, _SUM)

    def _frontiers(self, points: DataFrame, feeds: Sequence[str]) -> DataFrame:
        uncovered, short = f.col("covered") == 0, (f.col("covered") > 0) & (f.col("found") < f.coalesce("most", f.lit(0)))
        ends = points.groupBy("feed").agg(
            f.min(f.when(uncovered, f.col("at"))).alias("covered"), f.min(f.when(short, f.col("at"))).alias("short")
        )
        known = ends.select(
            "feed", f.least("covered", "short").alias("frontier"), (f.isnull("covered") & f.isnull("short")).alias("closed"),
            "covered", "short",
        )  # fmt: skip
        found = {row.feed: tuple(row) for row in known.collect()}
        silent = {feed: (feed, 0, False, 0, None) for feed in feeds if feed not in found}
        return self._session.createDataFrame([*found.values(), *silent.values()], FRONTIER)

    def _view(self) -> DataFrame:
        broken = sorted({fault.feed for fault in self.faults})
        known = f.broadcast(self.frontier.where(~f.col("feed").isin(broken)).select("feed", "frontier"))
        before = f.isnull("frontier") | (f.col("time") < f.col("frontier"))
        updates = self._held.where(f.col("kind") == UPDATE).join(known, "feed").where(before)
        # As decimals: 64 bits could overflow on the way to a sum that fits, or wrap in silence.
        sums = updates.groupBy("feed", "data").agg(f.sum(f.col("least").cast("decimal(20,0)")).alias("sum")).where(f.col("sum") != 0)
        why = f.concat(
            f.lit("the diffs of "), f.substring("data", 1, DATA_MAX), f.lit(" add up to "), "sum", f.lit(": 64 bits do not hold it")
        )
        fits = f.col("sum").between(LONG_MIN, LONG_MAX)
        return sums.select("feed", "data", f.when(fits, f.col("sum").cast("bigint")).otherwise(f.raise_error(why)).alias("count"))


def open_feed(session: SparkSession, directory: str, *, parallel: int | None = None) -> ConsistentFeeds:
    """Reads the feed in a directory. Use it in a `with` block.

    `parallel`: about how many files are read at once. Raises `FeedError` if the feed breaks a rule; it names the file,
    the place in it and the rule. `ConfigurationError` if a file cannot be opened. Then there is no view. If the
    directory cannot be listed, Spark's own error says why.
    """
    options = {"path": directory} | ({} if parallel is None else {"parallel": str(parallel)})
    needed = ddl({name: FEED[name] for name in NEEDED})
    reading = ConsistentFeeds(
        session.read.format("tiered.feed").options(**options).schema(needed).load(), [str(Path(directory).absolute())]
    )
    if not reading.faults:
        return reading
    reading.close()
    raise located(session.read.format("tiered.feed").options(**options).load(), reading.faults[0])


# --- the messages ----------------------------------------------------------------------------------


def _distinct(messages: DataFrame) -> DataFrame:
    """Returns each distinct message once: an update with the `least` and the `greatest` diff that were seen of it."""
    distinct = messages.groupBy("feed", "kind", "data", "time", "lower", "upper", "counts", "error")
    return distinct.agg(
        f.min("diff").alias("least"), f.max("diff").alias("greatest"),
        f.min("generation").alias("oldest"), f.max("generation").alias("newest"),
    )  # fmt: skip


def _faults_of_messages(held: DataFrame) -> Iterator[BrokenRule]:
    """Yields what is wrong with a message alone, or with two updates of the same record and time."""
    declared = f.col("counts")
    times = f.transform(declared, lambda each: each["time"])
    outside = f.exists(declared, lambda each: (each["time"] < f.col("lower")) | (each["time"] >= f.col("upper")) | (each["count"] < 0))
    upside = f.isnull("lower") & f.isnotnull("upper") | (f.col("lower") > f.col("upper"))
    endless = f.isnull("lower") & (f.size(declared) > 0)
    malformed = upside | endless | outside | (f.size(f.array_distinct(times)) < f.size(times))
    negative = (f.col("time") < 0) | (f.col("lower") < 0) | (f.col("upper") < 0)
    broken = f.when(f.isnotnull("error"), None).when(negative, Rule.TIME.name)
    broken = broken.when((f.col("kind") == PROGRESS) & f.coalesce(malformed, f.lit(False)), Rule.INTERVAL.name)
    broken = broken.when(f.col("least") != f.col("greatest"), Rule.DIFF.name)
    found = held.withColumn("rule", broken).where(f.isnotnull("error") | f.isnotnull("rule"))
    for row in _first(found, "rule", "time", "lower", "upper", "data", "least", "greatest", "kind", "error"):
        if row.error is not None:
            yield BrokenRule(row.feed, None, row.error)
        elif row.rule == Rule.DIFF.name:
            why = f"{row.data[:DATA_MAX]} at time {row.time} has the diffs {row.least} and {row.greatest}"
            yield BrokenRule(row.feed, Rule.DIFF, why, row.time, row.data)
        elif row.kind == UPDATE:
            yield BrokenRule(row.feed, Rule.TIME, f"an update has the time {row.time}", row.time, row.data)
        else:
            upper = "its end" if row.upper is None else row.upper
            yield BrokenRule(row.feed, Rule[row.rule], f"a progress message from {row.lower} to {upper} is not possible", row.lower)


def _first(faults: DataFrame, *columns: str) -> list[Row]:
    """Returns one fault of each feed: the least by these columns."""
    least = faults.groupBy("feed").agg(f.min(f.struct(*columns)).alias("first"))
    return least.select("feed", "first.*").orderBy("feed").collect()


# --- the points ------------------------------------------------------------------------------------


def _points(held: DataFrame) -> DataFrame:
    """Returns each time that a message names, and 0. `turn`: by how many more statements it is covered than before.

    `found`: how many distinct updates it has. `said`: how many statements declare a count that is not 0, `least` and
    `most`: these counts. `oldest`, `newest`: of the generations of the feed, at the point 0 alone.
    """
    sums, others = ("turn", "found", "said"), ("count", "oldest", "newest")

    def point(frame: DataFrame, at: Column, **told: Column) -> DataFrame:
        columns = [told.get(name, f.lit(0 if name in sums else None)).cast("bigint").alias(name) for name in (*sums, *others)]
        return frame.select("feed", at.cast("bigint").alias("at"), *columns)

    statements = held.where((f.col("kind") == PROGRESS) & f.isnotnull("lower"))
    declared = statements.select("feed", f.explode("counts").alias("each")).where(f.col("each")["count"] != 0)  # no count is the count 0
    found = held.where(f.col("kind") == UPDATE).groupBy("feed", "time").agg(f.count("*").alias("number"))
    feeds = held.groupBy("feed").agg(f.min("oldest").alias("oldest"), f.max("newest").alias("newest"))
    parts = [
        point(found, f.col("time"), found=f.col("number")),
        point(statements, f.col("lower"), turn=f.lit(1)),
        point(statements.where(f.isnotnull("upper")), f.col("upper"), turn=f.lit(-1)),
        point(declared, f.col("each")["time"], said=f.lit(1), count=f.col("each")["count"]),
        point(feeds, f.lit(0), oldest=f.col("oldest"), newest=f.col("newest")),
    ]
    together = reduce(DataFrame.unionByName, parts).groupBy("feed", "at")
    return together.agg(
        *(f.sum(name).alias(name) for name in sums), f.min("count").alias("least"), f.max("count").alias("most"),
        f.min("oldest").alias("oldest"), f.max("newest").alias("newest"),
    )  # fmt: skip


def _range_of(bounds: Sequence[float]) -> Column:
    """Returns the number of the range of times in which a point is. Equal times are in the same range."""
    return reduce(add, [(f.col("at").cast("double") >= bound).cast("int") for bound in bounds], f.lit(0))


def _faults_of_points(points: DataFrame) -> Iterator[BrokenRule]:
    """Yields mixed generations, contradictions between progress messages, and times with more updates than declared."""
    declared = f.coalesce("most", f.lit(0))
    mixed = f.coalesce(f.col("oldest") != f.col("newest"), f.lit(False))
    apart = (f.col("said") > 0) & ((f.col("least") != f.col("most")) | (f.col("said") != f.col("covered")))
    many = (f.col("covered") > 0) & (f.col("found") > declared)
    broken = f.when(mixed, Rule.GENERATION.name).when(apart, Rule.PROGRESS.name).when(many, Rule.COUNT.name)
    found = points.withColumn("rule", broken).where(f.isnotnull("rule"))
    for row in _first(found, "at", "rule", "said", "covered", "found", "least", "most", "oldest", "newest"):
        rule, time = Rule[row.rule], row["at"]
        if rule is Rule.GENERATION:
            yield BrokenRule(row.feed, rule, f"there are files of the generations {row.oldest} and {row.newest}")
        elif rule is Rule.COUNT:
            yield BrokenRule(row.feed, rule, f"time {time} has {row.found} distinct updates, and {row.most or 0} are declared", time)
        else:
            least = row.least if row.said == row.covered else 0
            yield BrokenRule(row.feed, rule, f"progress messages declare {least} and {row.most} updates at time {time}", time)


# --- where a fault is ------------------------------------------------------------------------------


def located(messages: DataFrame, fault: BrokenRule) -> FeedError | ConfigurationError:
    """Returns the error of a fault, with the files and places of the first `BLAMED` messages that it is about.

    `messages`: the same messages again, with all columns of the format tiered.feed.
    """
    if fault.rule is None:
        rule = _RULE.search(fault.why)
        return ConfigurationError(fault.why) if rule is None else FeedError(Rule[rule[1].upper()], fault.why[: rule.start()])
    time, data = f.lit(fault.time), f.col("data").eqNullSafe(f.lit(fault.data))
    update = (f.col("kind") == UPDATE) & (f.col("time") == time)
    covering = (f.col("kind") == PROGRESS) & (f.col("lower") <= time) & (f.isnull("upper") | (f.col("upper") > time))
    said = f.coalesce(f.get(f.filter("counts", lambda each: each["time"] == time), 0)["count"], f.lit(0))
    blamed, unlike = {
        Rule.GENERATION: (f.isnotnull("generation"), f.col("generation")),
        Rule.PROGRESS: (covering, said),
        Rule.COUNT: (update | covering, f.col("data")),
        Rule.DIFF: (update & data, f.col("diff")),
        Rule.TIME: ((update & data) | ((f.col("kind") == PROGRESS) & (f.col("lower") == time)), f.lit(0)),
        Rule.INTERVAL: ((f.col("kind") == PROGRESS) & f.col("lower").eqNullSafe(time), f.lit(0)),
    }[fault.rule]
    first = f.min(f.struct("file", "place")).alias("first")
    rows = messages.where(f.col("feed") == fault.feed).where(blamed).groupBy(unlike.alias("unlike")).agg(first)
    rows = rows.orderBy("first").limit(BLAMED)
    return FeedError(fault.rule, fault.why, "; ".join(f"{row['first'].file}, {row['first'].place}" for row in rows.collect()))
