"""The readers of the change feed beside plain ones: in one process, and on Spark.

A feed is written once, as lines of Avro-JSON and as object container files. A tenth of its messages are there twice,
and the order of messages is mixed within a hundred of them. Each record changes four times, and half of them are gone
at the end. The sides (`feed_side`) take turns, each in a process of its own. Each must find the same view, but for
`plain`, which adds up what is repeated, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from benchmarks.feed_side import plain
from benchmarks.harness import Figures, few
from benchmarks.metered import compare_metered
from recovery.feed import Message, Progress, Update, Updates
from recovery.feed.files import FileFormat, write

UPDATES, SMALLEST, ROUNDS = 1_000_000, 20_000, 3
PER_TIME, PER_MESSAGE = 1000, 100
CHANGES = ((1, -1, 1, -1), (1, -1, 1, 1))
"""How a record changes: one that is gone at the end, and one that is there twice."""
REPEATED, WINDOW, FILES = 0.1, 100, 8
ALONE = {"CdcReader and View, JSON lines": "reader", "CdcReader and View, Avro": "avro", "json.loads and a sum": "plain"}
ON_SPARK = {
    "ours, JSON lines, local[2]": "spark", "distinct and sum over our rows": "rows", "distinct and sum, Spark's own JSON reader": "own",
}  # fmt: skip
NOTES = (
    "json.loads and a sum counts what is repeated, too, so its sum is wrong.",
    "The sides with distinct and sum know no frontier, and check nothing.",
)


def messages(updates: int) -> Iterator[Message]:
    """Yields a sound feed of so many updates, in order. The records are those of the live references."""
    blocks = updates // PER_TIME // len(CHANGES[0])
    for time in range(blocks * len(CHANGES[0])):
        turn, block = divmod(time, blocks)
        diff = CHANGES[block % 2][turn]
        for start in range(block * PER_TIME, (block + 1) * PER_TIME, PER_MESSAGE):
            yield Updates(tuple(Update(_record(number), time, diff) for number in range(start, start + PER_MESSAGE)))
        yield Progress((time,), (time + 1,), ((time, PER_TIME),))


def _record(number: int) -> dict[str, str]:
    path = f"attachments/org.{number % 97}/objects/2026/{number:012}"
    return {"object": path, "blob": f"{path}/0190aaaa-0000-7000-8000-{number:012}"}


def mangled(updates: int) -> Iterator[Message]:
    """Yields the same messages, some of them twice, each near its place."""
    random, window = Random(1), list[Message]()
    for message in messages(updates):
        window += [message] * (2 if random.random() < REPEATED else 1)
        while len(window) > WINDOW:
            yield window.pop(random.randrange(len(window)))
    random.shuffle(window)
    yield from window


def write_feed(directory: Path, updates: int) -> None:
    """Writes the feed in each of the forms, in files that follow each other."""
    for form in (FileFormat.JSON, FileFormat.AVRO):
        (directory / form).mkdir()
        source = mangled(updates)
        each = updates // PER_MESSAGE * 11 // 10 // FILES
        for number in range(FILES):
            part = source if number == FILES - 1 else (message for _, message in zip(range(each), source, strict=False))
            first = next(iter(part), None)
            write(directory / form / f"part-{number}.{form}", chain([] if first is None else [first], part), form)


async def figures(size: float) -> list[Figures]:
    updates = max(SMALLEST, round(UPDATES * size))
    updates -= updates % (2 * PER_TIME * len(CHANGES[0]))
    records = updates // PER_TIME // len(CHANGES[0]) // 2 * PER_TIME
    tables = []
    with TemporaryDirectory(prefix="tiered-bench-") as directory:
        write_feed(Path(directory), updates)
        for title, sides, note in (("Change feed in one process", ALONE, NOTES[0]), ("Change feed on Spark", ON_SPARK, NOTES[1])):
            commands = {what: ["benchmarks.feed_side", side, directory] for what, side in sides.items()}
            found = {what: [*plain(Path(directory))] if side == "plain" else [records, 2 * records] for what, side in sides.items()}
            title = f"{title}, {updates:,} updates"
            tables.append(await compare_metered(title, updates, commands, few(ROUNDS, size), found, {"CdcReader and View, Avro"}, [note]))
    return tables
