"""`records_of`: a segment as the records of a sink that keeps messages and no files, such as `kafka.py`. Pure.

    value     a message, as the sink encodes it
    headers   generation, time, part (1/3), sha256 of the segment, content-type, feed (whose it is, if that is known)

The records are in the order of the segment's file. Updates that would make a value larger than `RECORD_BYTES_MAX` are
cut into several. How they are cut means nothing to a reader; a segment is always cut in the same way. How records are
sent, and what a broker answers, does not belong here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from recovery.feed.messages import Message, Updates
from recovery.feed.sinks.sink import Owner, Segment
from recovery.feed.spelling import to_line

RECORD_BYTES_MAX = 512 * 1024
"""Brokers of Kafka take 1 MB by default."""
GENERATION = "{generation}"
"""Stands for the sixteen digits of the generation in the name of a topic."""

Encode = Callable[[Message], bytes]


def topic_of(name: str, generation: int) -> str:
    """Returns the name of the topic of this generation."""
    return name.replace(GENERATION, f"{generation:016d}", 1)


def as_json(message: Message) -> bytes:
    """Returns the message as a line of JSON, without the end of the line."""
    return to_line(message).encode()


def records_of(
    segment: Segment, owner: Owner | None, encode: Encode = as_json, content_type: str = "application/json"
) -> Iterator[tuple[bytes, dict[str, str]]]:
    """Yields the value and the headers of each record. `content_type`: of what `encode` makes."""
    values = [value for message in segment.messages() for value in _cut(message, encode)]
    feed = {} if owner is None else {"feed": owner.feed}
    for number, value in enumerate(values, start=1):
        yield value, {
            "generation": str(segment.generation), "time": str(segment.time), "part": f"{number}/{len(values)}",
            "sha256": segment.sha256, "content-type": content_type, **feed,
        }  # fmt: skip


def _cut(message: Message, encode: Encode) -> Iterator[bytes]:
    """Yields the value of the message, or those of its halves, until they fit. A single update is never cut."""
    value = encode(message)
    if len(value) <= RECORD_BYTES_MAX or not isinstance(message, Updates) or len(message.updates) == 1:
        yield value
        return
    middle = len(message.updates) // 2
    for half in (message.updates[:middle], message.updates[middle:]):
        yield from _cut(Updates(half), encode)
