"""A small feed as segments, and what its readers must find."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from recovery.feed import CdcReader, Message, Progress, Update, Updates
from recovery.feed.files import FileFormat, write
from recovery.feed.sinks.sink import Segment, Suffix
from recovery.feed.spelling import to_line
from recovery.feed.view import FeedView

GENERATION = 1_795_000_000_000
NOW = GENERATION + 12_345


def reference(name: str, time: int, diff: int = 1) -> Update:
    return Update({"object": name, "blob": f"{name}/1"}, time, diff)


TRANSACTIONS: list[tuple[int, list[Message]]] = [
    (0, [Progress((0,), (1,), ())]),
    (NOW, [Updates((reference("a", NOW), reference("b", NOW))), Progress((1,), (NOW + 1,), ((NOW, 2),))]),
    (NOW + 5, [Updates((reference("a", NOW + 5, -1),)), Progress((NOW + 1,), (NOW + 6,), ((NOW + 5, 1),))]),
    (NOW + 9, [Progress((NOW + 6,), (NOW + 10,), ())]),
]  # fmt: skip


def segment(time: int, messages: Sequence[Message], suffix: Suffix = "json", generation: int = GENERATION) -> Segment:
    if suffix == "json":
        return Segment.of(generation, time, "".join(f"{to_line(each)}\n" for each in messages).encode(), suffix)
    with TemporaryDirectory() as directory:
        path = Path(directory) / "file"
        write(path, messages, FileFormat.AVRO, generation=generation)
        return Segment.of(generation, time, path.read_bytes(), suffix)


def segments(suffix: Suffix = "json", generation: int = GENERATION) -> list[Segment]:
    """The feed of `TRANSACTIONS`."""
    return [segment(time, messages, suffix, generation) for time, messages in TRANSACTIONS]


@cache
def large(size: int) -> Segment:
    """A first segment of about so many bytes."""
    updates = [reference(f"{number:05d}{'x' * 1000}", 0) for number in range(size // 2050)]
    cut = [Updates(tuple(updates[begin : begin + 1000])) for begin in range(0, len(updates), 1000)]
    return segment(0, [*cut, Progress((0,), (1,), ((0, len(updates)),))])


def viewed(messages: Iterable[Message]) -> tuple[dict[str, int], tuple[int, ...]]:
    """The view: how often each object is there; and the frontier."""
    reader, view = CdcReader(remember=True), FeedView()
    for message in messages:
        if (batch := reader.feed(message)) is not None:
            view.add(batch)
    return {row.record["object"]: row.multiplicity for row in view}, reader.frontier


def expected(delivered: Iterable[Segment]) -> tuple[dict[str, int], tuple[int, ...]]:
    """The view of these segments, without any sink between."""
    return viewed(message for each in delivered for message in each.messages())
