"""The programs that read a change feed with the software of others, on what the real writer has delivered."""

from __future__ import annotations

import random
from collections import deque
from itertools import permutations
from pathlib import Path

import pytest

from examples import feed_duckdb
from examples.feed_confluent import Topic
from recovery.feed import CdcReader, FeedError, Message, Progress, Updates
from recovery.feed.sinks.kafka import _Delivery
from recovery.feed.sinks.sink import Segment
from tests.given.fed_store import FedStore, fed_store, view_of

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

Record = tuple[bytes, Message]


async def written(store: FedStore, *, generations: int) -> list[dict[str, str]]:
    """Lets a store change and the writer publish it, in several generations. Returns what each had at its end."""
    shown = []
    for number in range(generations):
        for name in ("a", "b", f"c{number}"):
            await store.put(name)
        await store.run_once(new_generation=number > 0)
        await store.delete("a")
        await store.put("b")
        await store.run_once()
        shown.append(await store.references())
    return shown


def records(segments: list[Segment]) -> list[Record]:
    return [(_Delivery(segment, "live", None, None).key, message) for segment in segments for message in segment.messages()]


def taken(topic: Topic, record: Record) -> None:
    """As Avro gives it."""
    key, message = record
    if isinstance(message, Updates):
        topic.take(key, [{"data": each.data, "time": each.time, "diff": each.diff} for each in message.updates])
    else:
        counts = [{"time": time, "count": count} for time, count in message.counts]
        topic.take(key, {"lower": message.lower, "upper": message.upper, "counts": counts})


# --- generations on one topic ------------------------------------------------------------------------


async def test_wherever_a_writer_died_a_reader_that_knows_the_rule_shows_what_a_generation_had() -> None:
    """The topic is cut after each record. Fenced writers, and ones that begin again, repeat what was there."""
    async with fed_store(format="avro") as store:
        ends = await written(store, generations=3)
        sent = records(store.sink.segments)
    views = _views(sent)
    assert all(end in views for end in ends) and len(views) >= 6
    chance = random.Random(26)
    for cut in range(len(sent) + 1):
        topic = Topic()
        came = sent[:cut] + [chance.choice(sent[:cut]) for _ in range(5) if cut]
        for number, record in enumerate(came):
            taken(topic, record)
            assert topic.references in views, number
        again = Topic()  # partitions are read in any order
        for record in chance.sample(came, len(came)):
            taken(again, record)
        assert again.references == topic.references or _has_an_unfinished_one(sent[:cut])
        if cut == len(sent):
            assert topic.references == again.references == ends[-1]


def _views(sent: list[Record]) -> list[dict[str, str]]:
    """What each generation shows at each of its frontiers, and nothing."""
    found: list[dict[str, str]] = [{}]
    for generation in sorted({key[:16] for key, _ in sent}):
        messages = [message for key, message in sent if key[:16] == generation]
        found += [view_of(messages[:end])[0] for end in range(1, len(messages) + 1)]
    return [each for number, each in enumerate(found) if each not in found[:number]]


def _has_an_unfinished_one(sent: list[Record]) -> bool:
    """Whether the latest generation has not passed frontier 1. Then a reader goes on to show what it had, if it had."""
    newest = max((key[:16] for key, _ in sent), default=b"")
    return view_of([message for key, message in sent if key[:16] == newest])[1] <= (1,)


async def test_without_the_rule_a_reader_refuses_the_topic() -> None:
    async with fed_store() as store:
        await written(store, generations=2)
    reader = CdcReader(remember=True)
    with pytest.raises(FeedError, match=r"rule (progress|count|diff)"):
        deque(map(reader.feed, (message for _, message in records(store.sink.segments))), maxlen=0)


async def test_a_compacted_topic_stands_still_and_shows_nothing_wrong() -> None:
    async with fed_store() as store:
        await written(store, generations=2)
    kept = dict(records(store.sink.segments))  # the last record of each key
    topic = Topic()
    for record in kept.items():
        taken(topic, record)
    assert topic.references == {} and all(isinstance(message, Progress) for message in kept.values())


# --- DuckDB --------------------------------------------------------------------------------------------


def stored(segments: list[Segment], folder: Path) -> None:
    for segment in segments:
        path = folder / segment.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(segment.data)


async def test_duckdb_shows_what_is_complete_and_nothing_else(tmp_path: Path) -> None:
    async with fed_store() as store:
        ends = await written(store, generations=2)
    segments = store.sink.segments
    stored(segments, tmp_path / "whole")
    newest = max(segment.generation for segment in segments)
    for place in (tmp_path, tmp_path / "nowhere", *(tmp_path / "whole").iterdir()):
        with pytest.raises(FileNotFoundError, match="there is no folder generation-"):
            feed_duckdb.references(place)
    assert feed_duckdb.references(tmp_path / "whole") == (view_of(store.sink.messages())[1][0], ends[1])
    for number in range(0, len(segments), 2):
        stored(segments[: number + 1], tmp_path / f"cut-{number}")
        here = [segment for segment in segments[: number + 1] if segment.generation == newest]
        generation = newest if len(here) > 1 else segments[0].generation
        expected = view_of([m for p in segments[: number + 1] if p.generation == generation for m in p.messages()])
        frontier, found = feed_duckdb.references(tmp_path / f"cut-{number}")
        assert ((frontier,), found) == (expected[1], expected[0]) or expected[1] <= (1,)
    for lost in [segment for segment in segments if segment.generation == newest]:
        stored([each for each in segments if each.name != lost.name], tmp_path / f"lost-{lost.time}")
        rest = [m for p in segments if p.generation == newest and p.name != lost.name for m in p.messages()]
        frontier, found = feed_duckdb.references(tmp_path / f"lost-{lost.time}")
        assert view_of(rest)[1] <= (1,) or ((frontier,), found) == (view_of(rest)[1], view_of(rest)[0])


async def test_duckdb_holds_back_a_transaction_of_which_an_update_is_missing(tmp_path: Path) -> None:
    """In every order of the lines, and with each of them repeated."""
    update = '{"array":[{"data":{"object":"%s","blob":"%s/1"},"time":%d,"diff":1}]}'
    progress = '{"com.materialize.cdc.progress":{"lower":[%d],"upper":[%d],"counts":[%s]}}'
    lines = [
        progress % (0, 5, '{"time":4,"count":1}'), progress % (5, 9, '{"time":7,"count":2}'),
        update % ("a", "a", 4), update % ("b", "b", 7),
    ]  # fmt: skip
    (folder := tmp_path / "generation-0000000000000007").mkdir()
    for number, order in enumerate(permutations(lines)):
        if number % 4 == 0:
            (folder / "0000000000000000000.json").write_text("".join(f"{line}\n{line}\n" for line in order))
            assert feed_duckdb.references(tmp_path) == (7, {"a": "a/1"})
    (folder / "0000000000000000008.json").write_text(update % ("c", "c", 7) + "\n")
    assert feed_duckdb.references(tmp_path) == (9, {"a": "a/1", "b": "b/1", "c": "c/1"})
