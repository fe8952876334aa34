"""Feeds made at random, what a channel may do to them, and what a reader must make of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import pairwise
from random import Random
from typing import Any, TypeAlias

from hypothesis import strategies as st

from emulators.feed.reference import ReferenceReader
from recovery.feed import CdcReader, FeedBatch, Message, Progress, Update, Updates
from recovery.feed.avro import ContainerReader, ContainerWriter, Schema
from recovery.feed.messages import LONG_MAX, LONG_MIN
from recovery.feed.spelling import PROGRESS
from tests.given.repository import ROOT

longs = st.integers(LONG_MIN, LONG_MAX)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
bounds = st.lists(st.integers(0, 9) | longs, max_size=1).map(tuple)
counts = st.lists(st.tuples(st.integers(0, 9) | longs, st.integers(0, 3) | longs), max_size=3).map(tuple)
progresses = st.builds(Progress, bounds, bounds, counts)

END = LONG_MAX + 1


def vectors() -> list[dict[str, Any]]:
    """Message histories, and what the reference reader delivers. The file has short names for the kinds of messages."""
    names = {"updates": "array", "progress": PROGRESS}
    cases: list[dict[str, Any]] = json.loads((ROOT / "tests" / "recovery" / "feed" / "vectors.json").read_text("utf-8"))["cases"]
    for case in cases:
        case["messages"] = [{names[kind]: content for kind, content in each.items()} for each in case["messages"]]
    return cases


AnyReader: TypeAlias = CdcReader | ReferenceReader


def batches(reader: AnyReader, messages: Iterable[Message | dict[str, Any]]) -> list[FeedBatch]:
    """All that a reader delivers for some messages."""
    return [batch for message in messages if (batch := reader.feed(message)) is not None]


def in_a_container(message: Message, schema: Schema) -> Message:
    """The message as it comes back from an Avro file."""
    file = BytesIO()
    writer = ContainerWriter(file, schema)
    writer.write(message)
    writer.flush()
    file.seek(0)
    [found] = ContainerReader(file)
    return found.message


def truth(random: Random) -> list[Update]:
    """The distinct updates of a small feed. Times have gaps, and records of several kinds come back at other times."""
    records: list[object] = ["a", "b", "1", 1, {"object": "a", "blob": "b"}, None]
    times = random.sample(range(12), random.randint(0, 5))
    return [
        Update(record, time, random.choice((-2, -1, 1, 2))) for time in times for record in random.sample(records, random.randint(1, 4))
    ]  # fmt: skip


def cut(updates: Sequence[Update], random: Random, ends: bool) -> list[Message]:
    """One writer's messages about them, cut anywhere. Progress goes up to time 12, or, if it `ends`, to the end."""
    shuffled = random.sample(updates, len(updates))
    messages: list[Message] = []
    while shuffled:
        count = random.randint(1, 4)
        messages.append(Updates(tuple(shuffled[:count])))
        del shuffled[:count]
    cuts = sorted({0, 12, *(random.randint(1, 11) for _ in range(random.randint(0, 4)))})
    for lower, upper in pairwise(cuts):
        messages.append(about(updates, lower, upper))
    if ends:
        messages.append(about(updates, 12, END))
    return messages


def about(updates: Sequence[Update], lower: int, upper: int) -> Progress:
    """The progress message about some times of a feed."""
    times = sorted({each.time for each in updates if lower <= each.time < upper})
    return Progress((lower,), () if upper == END else (upper,), tuple((time, sum(each.time == time for each in updates)) for time in times))


def mangled(messages: Sequence[Message], random: Random, loses: bool) -> list[Message]:
    """What a channel makes of messages: any order, some of them twice, and if it `loses`, some not at all."""
    kept = [each for each in messages if not loses or random.random() > 0.15]
    repeated = [*kept, *(each for each in kept if random.random() < 0.3)]
    return random.sample(repeated, len(repeated))


def frontier_of(received: Sequence[Message]) -> int:
    """The simple model of a reader: the frontier of messages that do not contradict each other.

    min(longest chained cover from 0, first time with fewer distinct updates than declared)
    """
    updates = {update for each in received if isinstance(each, Updates) for update in each.updates}
    progress = [each for each in received if isinstance(each, Progress)]
    cover, before = 0, -1
    while cover != before:
        before = cover
        for each in progress:
            if each.lower and each.lower[0] <= cover:
                cover = max(cover, each.upper[0] if each.upper else END)
    declared = {time: count for each in progress for time, count in each.counts}
    return min([cover, *(time for time, count in declared.items() if sum(each.time == time for each in updates) < count)])
