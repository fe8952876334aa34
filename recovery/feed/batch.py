"""What readers deliver, what they hold back, and how their errors name a message. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from recovery.feed.errors import FeedError, Rule
from recovery.feed.messages import LONG_MAX, Json, Key, Progress, Update, Updates
from recovery.feed.spelling import to_text

END = LONG_MAX + 1
"""The frontier of a feed that has ended: later than every time."""

BYTES_PER_TEXT = 140
BYTES_PER_RECORD = 420
BYTES_PER_TIME = 250
"""Of memory, as measured on CPython 3.11: an update of text, one of another small record, and a time. Characters come
on top: those of text once, those of other records three times, because they are in the key, too."""


@dataclass(frozen=True, slots=True)
class FeedBatch:
    """What became complete.

    `updates`: (data, time, diff) at the times from the frontier before to the new one, sorted by data, then by time:
    text as it is, all else by its canonical JSON. A list, or, of a reader with `in_memory`, a file that is read anew
    by each loop. `frontier`: the first time that is not complete; empty: the feed has ended.
    """

    updates: Collection[tuple[Json, int, int]]
    frontier: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BufferedUpdates:
    """What a reader holds back. `updates`, `times` of these, `bytes`: an estimate of the memory that this takes."""

    updates: int
    times: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a reader waits for at `time`.

    `declared`: how many distinct updates the time has; None: no progress message about it has come. `received`: how
    many have come.
    """

    time: int
    declared: int | None
    received: int


def in_order(updates: Iterable[Update]) -> list[tuple[Json, int, int]]:
    """Returns the updates of a batch, in the order that does not depend on how they came."""
    return [(each.data, each.time, each.diff) for each in sorted(updates, key=_order)]


def _order(update: Update) -> tuple[str, bool, int, int]:
    key = update.key
    return (key, False, update.time, update.diff) if type(key) is str else (key[0], True, update.time, update.diff)


def bytes_of(key: Key) -> int:
    """Returns an estimate of the memory that an update with this key takes."""
    return BYTES_PER_TEXT + len(key) if type(key) is str else BYTES_PER_RECORD + 3 * len(key[0])


def named(message: Update | Progress) -> str:
    """The message as an error shows it."""
    (text,) = to_text(Updates((message,)) if isinstance(message, Update) else message)
    return text if len(text) <= 300 else f"{text[:300]}…"


def counts_of(progress: Progress, lower: int, upper: int) -> dict[int, int]:
    """Returns the counts of a progress message about [lower, upper), by time. Raises `FeedError` if they are none."""
    if lower < 0 or upper < 0:
        raise FeedError(Rule.TIME, f"{named(progress)} has a negative bound")
    if upper < lower:
        raise FeedError(Rule.INTERVAL, f"{named(progress)} ends before it begins")
    counts: dict[int, int] = {}
    for time, count in progress.counts:
        if time < 0:
            raise FeedError(Rule.TIME, f"{named(progress)} has a count for the negative time {time}")
        if not lower <= time < upper:
            raise FeedError(Rule.INTERVAL, f"{named(progress)} has a count for time {time}, which it is not about")
        if count < 0:
            raise FeedError(Rule.INTERVAL, f"{named(progress)} declares the negative count {count} for time {time}")
        if time in counts:
            raise FeedError(Rule.INTERVAL, f"{named(progress)} has two counts for time {time}")
        counts[time] = count
    return counts
