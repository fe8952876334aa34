"""The set-based reader of change feeds, beside `CdcReader`: the same view, the same frontier, the same refusals."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from changelog.base.errors import ConfigurationError
from examples import feed_spark
from recovery.feed import FeedError, Message, Progress, Rule, Update, Updates
from recovery.feed.avro import REFERENCES, encode, frame
from recovery.feed.files import FileFormat, write
from recovery.feed.messages import canonical
from recovery.feed.reader import CdcReader
from recovery.feed.spelling import PROGRESS, from_json
from recovery.feed.view import FeedView
from recovery.sources.columns import FEED, TableRow, ddl
from recovery.sources.consistent import NEEDED, BrokenRule, ConsistentFeeds, located, open_feed
from recovery.sources.feed_files import names_of, rows
from tests.given.feeds import vectors
from tests.given.maven import NotFetchedError, fetched
from tests.given.segments import GENERATION, segments

pytestmark = pytest.mark.slow

SPARK_AVRO = "4.1.1"
"""The newest one that Maven Central had here. It works on the Spark that is tested, 4.3."""

Seen = tuple[tuple[int, ...], dict[str, int]]
"""A frontier, and how often each record is there."""


def by_messages(messages: Iterable[Message]) -> Seen | None:
    """What `CdcReader` makes of it; None: it refuses a message. It remembers: Spark has all messages at once, too."""
    reader, view = CdcReader(remember=True), FeedView()
    try:
        for message in messages:
            batch = reader.feed(message)
            if batch is not None:
                view.add(batch)
    except FeedError:
        return None
    return reader.frontier, {canonical(row.record): row.multiplicity for row in view}


def by_spark(reading: ConsistentFeeds) -> dict[str, Seen]:
    views: dict[str, dict[str, int]] = {}
    for row in reading.view.collect():
        views.setdefault(row.feed, {})[row.data] = row["count"]
    return {row.feed: (() if row.closed else (row.frontier,), views.get(row.feed, {})) for row in reading.frontier.collect()}


def table(spark: SparkSession, feeds: dict[str, list[Message]]) -> DataFrame:
    """The rows of several feeds, as the format tiered.feed has them."""
    told: list[tuple[Any, ...]] = []
    for feed, messages in feeds.items():
        for message in messages:
            if isinstance(message, Updates):
                told += [
                    (feed, None, "update", canonical(each.data), each.time, each.diff, None, None, None, None) for each in message.updates
                ]
            else:
                lower, upper = (bound[0] if bound else None for bound in (message.lower, message.upper))
                told.append((feed, None, "progress", None, None, None, lower, upper, list(message.counts), None))
    return spark.createDataFrame(told, ddl({name: FEED[name] for name in NEEDED}))


def history(random: Random, times: int, records: int) -> list[Message]:
    """A sound feed: at each time some records change, and progress messages close it, a few times at once."""
    messages: list[Message] = []
    closed, counts = 0, {}
    for time in range(times):
        changed = [number for number in range(records) if random.random() < 0.3]
        updates = [Update({"object": f"o/{number}", "blob": "ü"}, time, random.choice((1, -1, 3))) for number in changed]
        cut = random.randrange(len(updates) + 1)
        messages += [Updates(tuple(part)) for part in (updates[:cut], updates[cut:])]
        if updates:
            counts[time] = len(updates)
        if random.random() < 0.5:
            messages.append(Progress((closed,), (time + 1,), tuple(counts.items())))
            closed, counts = time + 1, {}
    return messages


def broken(random: Random) -> list[Message]:
    """A small feed in any order, in which a few messages are missing, and a few say something else."""
    messages = history(random, 8, 4)
    for _ in range(random.randrange(3)):
        del messages[random.randrange(len(messages))]
    for _ in range(random.randrange(4)):
        place = random.randrange(len(messages))
        messages.insert(random.randrange(len(messages)), altered(random, messages[place]))
    random.shuffle(messages)
    return messages


def altered(random: Random, message: Message) -> Message:
    if isinstance(message, Updates):
        return Updates(tuple(
            Update(each.data, each.time + random.choice((0, 0, 1, -1)), each.diff + random.choice((0, 0, 1))) for each in message.updates
        ))  # fmt: skip
    lower, upper = (tuple(time + random.choice((0, 0, 1, -1)) for time in bound) for bound in (message.lower, message.upper))
    counts = tuple((time, count + random.choice((0, 0, 0, 1, -1))) for time, count in message.counts if random.random() < 0.9)
    return Progress(lower, () if random.random() < 0.1 else upper, counts)


@pytest.mark.parametrize("histories", [20, pytest.param(100, marks=pytest.mark.night)])
def test_every_vector_and_every_broken_history_is_read_as_by_the_reader(spark: SparkSession, histories: int) -> None:
    """In several ranges of times. The test of files has one range."""
    feeds = {case["name"]: [from_json(message) for message in case["messages"]] for case in vectors()}
    assert sum(by_messages(messages) is None for messages in feeds.values()) == 7
    feeds |= {f"broken {number}": broken(Random(number)) for number in range(histories)}
    expected = {name: by_messages(messages) for name, messages in feeds.items()}
    assert histories / 4 < sum(seen is None for seen in expected.values()) < histories
    expected["without messages"] = (0,), {}
    with ConsistentFeeds(table(spark, feeds), list(expected), points_max=80) as reading:
        refused = {fault.feed for fault in reading.faults}
        assert refused == {name for name, seen in expected.items() if seen is None}
        found = by_spark(reading)
    assert {name: seen for name, seen in found.items() if name not in refused} == {
        name: seen for name, seen in expected.items() if seen is not None
    }  # fmt: skip


@pytest.mark.night
@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_sum_is_right_though_a_part_of_it_does_not_fit_into_64_bits(spark: SparkSession, strict: str) -> None:
    """Where Spark raises errors for numbers that overflow, and where it says nothing about them."""
    big = 2**63 - 1
    up, more, down = Update("a", 0, big), Update("a", 1, 5), Update("a", 2, -big)
    fits: list[Message] = [Updates((up, more, down)), Progress((0,), (), ((0, 1), (1, 1), (2, 1)))]
    too_large: list[Message] = [Updates((up, more)), Progress((0,), (), ((0, 1), (1, 1)))]
    before = spark.conf.get("spark.sql.ansi.enabled") or "true"
    try:
        spark.conf.set("spark.sql.ansi.enabled", strict)
        broken: list[Message] = [*too_large, Updates((Update("a", 1, 6),))]
        with ConsistentFeeds(table(spark, {"fits": fits, "broken": broken, "too large": too_large})) as reading:
            assert {fault.feed for fault in reading.faults} == {"broken"}
            assert {row.feed: row.closed for row in reading.frontier.collect()}["fits"]
            assert [tuple(row) for row in reading.view.where("feed <> 'too large'").collect()] == [("fits", '"a"', 5)]
            with pytest.raises(PySparkException, match=f'the diffs of "a" add up to {big + 5}: 64 bits do not hold it'):
                reading.view.collect()
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)


# --- files -----------------------------------------------------------------------------------------


def scatter(random: Random, messages: list[Message], directory: Path, files: int = 6) -> list[Message]:
    """Writes the messages, some of them twice, in any order, to files of each form. Returns them in that order."""
    mangled = [*messages, *random.sample(messages, len(messages) // 2)]
    random.shuffle(mangled)
    directory.mkdir()
    for number in range(files):
        form = (FileFormat.AVRO, FileFormat.JSON, FileFormat.TEXT)[number % 3]
        write(directory / f"part-{number}.{form}{'.gz' if number > 2 else ''}", mangled[number::files], form)
    return mangled


@pytest.mark.night
def test_files_in_any_order_and_form_are_read_as_by_the_reader(spark: SparkSession, tmp_path: Path) -> None:
    random = Random(5)
    whole, lossy = history(random, 60, 20), history(random, 60, 20)
    del lossy[len(lossy) // 2 :: 9]
    mangled = {name: scatter(random, messages, tmp_path / name) for name, messages in (("whole", whole), ("lossy", lossy))}
    (tmp_path / "whole" / "_part.tmp").write_bytes(b"half")
    expected = {str(tmp_path / name): by_messages(messages) for name, messages in mangled.items()}
    tables = [spark.read.format("tiered.feed").option("parallel", "2").load(directory) for directory in expected]
    with ConsistentFeeds(tables[0].unionByName(tables[1])) as reading:
        assert reading.faults == [] and by_spark(reading) == expected
        ends = {row.feed[-5:]: (row.frontier, row.covered, row.short) for row in reading.frontier.collect()}
    assert ends["whole"][0] > 50 > ends["lossy"][0] and all(min(filter(None, rest)) == first for first, *rest in ends.values())


# --- what is refused -------------------------------------------------------------------------------


def change(record: str, time: int, diff: int = 1) -> str:
    return f'{{"array":[{{"data":"{record}","time":{time},"diff":{diff}}}]}}\n'


def progress(lower: int, upper: int, *counts: tuple[int, int]) -> str:
    told = [{"time": time, "count": count} for time, count in counts]
    return json.dumps({PROGRESS: {"lower": [lower], "upper": [upper], "counts": told}}) + "\n"


GOOD = change("a", 1) + progress(0, 2, (1, 1))
BROKEN: list[tuple[str, str, Rule, str]] = [
    ("truncated", GOOD + change("b", 2)[:-9], Rule.WHOLE, "part-1, line 3: "),
    ("foreign", "PK\x03\x04", Rule.FORM, "part-1, byte 0: the file begins with"),
    ("over-count", GOOD + change("b", 1), Rule.COUNT, "part-0, line 2; part-1, line 3: time 1 has 2 distinct updates, and 1 are declared"),
    ("late", change("b", 0), Rule.COUNT, "part-0, line 2; part-1, line 1: time 0 has 1 distinct updates, and 0 are declared"),
    ("diffs", change("a", 1, 2), Rule.DIFF, 'part-0, line 1; part-1, line 1: "a" at time 1 has the diffs 1 and 2'),
    ("progress", GOOD + progress(1, 9, (1, 1), (2, 1)) + progress(2, 3), Rule.PROGRESS, "part-1, line 3; part-1, line 4: progress mess"),
    ("negative", change("a", -1), Rule.TIME, "part-1, line 1: an update has the time -1"),
    ("outside", progress(2, 3, (9, 1)), Rule.INTERVAL, "part-1, line 1: a progress message from 2 to 3 is not possible"),
    ("inverted", progress(7, 3), Rule.INTERVAL, "part-1, line 1: a progress message from 7 to 3 is not possible"),
    ("below 0", progress(-2, 3), Rule.TIME, "part-1, line 1: a progress message from -2 to 3 is not possible"),
]


@pytest.mark.night
def test_a_feed_that_breaks_a_rule_is_told_with_file_place_and_rule(spark: SparkSession, tmp_path: Path) -> None:
    cases = {str(tmp_path / case[0]): case for case in BROKEN}
    told: list[TableRow] = []
    for directory, (_, content, _, _) in cases.items():
        Path(directory).mkdir()
        (Path(directory) / "part-0").write_text(GOOD)
        (Path(directory) / "part-1").write_bytes(content.encode())
        told += [row for name in names_of(directory) for page in rows(directory, name) for row in page]
    messages = spark.createDataFrame(told, ddl(FEED)).coalesce(1).cache()
    with ConsistentFeeds(messages) as reading:
        first = {fault.feed: fault for fault in reversed(reading.faults)}
        assert set(first) == set(cases)
        for fault in first.values():
            error, (_, _, rule, says) = located(messages, fault), cases[fault.feed]
            assert isinstance(error, FeedError)
            assert (error.rule, says in str(error), str(error).count("(rule ")) == (rule, True, 1), str(error)
    messages.unpersist()


@pytest.mark.night
def test_a_feed_that_breaks_a_rule_has_no_view(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "a.avro", [Progress((0,), (1,), ())], FileFormat.AVRO, generation=1)
    write(tmp_path / "b.avro", [Progress((1,), (2,), ())], FileFormat.AVRO, generation=2)
    with pytest.raises(FeedError, match=r"a\.avro, .*; b\.avro, .*: there are files of the generations 1 and 2"):
        open_feed(spark, str(tmp_path), parallel=1)
    closed = located(spark.range(0), BrokenRule("feed", None, "a.avro cannot be read: Permission denied"))
    assert isinstance(closed, ConfigurationError) and str(closed) == "a.avro cannot be read: Permission denied"


def test_a_directory_that_is_no_feed_is_refused_in_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match=r"tiered\.feed has no path: give the directory of a change feed to load"):
        spark.read.format("tiered.feed").load().collect()
    with pytest.raises(PySparkException, match="has no files: give the directory of a feed"):
        spark.read.format("tiered.feed").load(str(tmp_path)).collect()


# --- Spark's own Avro reader -------------------------------------------------------------------------


@pytest.mark.night
def test_sparks_own_avro_reader_reads_what_kafka_has(spark: SparkSession) -> None:
    """examples/feed_spark.py, with an older generation in the topic."""
    try:
        jar = fetched("org.apache.spark", "spark-avro_2.13", SPARK_AVRO, "jar")
    except NotFetchedError as error:
        pytest.skip(str(error))
    spark.sql(f"ADD JAR '{jar}'")
    older, newer = (segments("avro", generation) for generation in (GENERATION, GENERATION + 1))
    sent = [(segment, message) for segment in (*older, *newer[:3], older[1], newer[1]) for message in segment.messages()]
    framed = [(f"{each.generation:016d}/{each.time:019d}".encode(), frame(encode(message, REFERENCES), 7)) for each, message in sent]
    topic, beginning = (spark.createDataFrame(records, "key binary, value binary") for records in (framed, framed[:1]))
    reader = by_messages(message for segment in newer[:3] for message in segment.messages())
    assert reader is not None and reader[1] == {canonical({"object": "b", "blob": "b/1"}): 1}
    assert [tuple(row) for row in feed_spark.references(topic).collect()] == [(reader[0][0], "b", "b/1")]
    first = feed_spark.messages(beginning).collect()
    assert [row.progress.asDict() for row in first] == [{"lower": [0], "upper": [1], "counts": []}]
