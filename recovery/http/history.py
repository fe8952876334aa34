"""The rates and the backlog of the last day: each sample at first, and one point for five minutes later.

A point without figures is a gap. The line on the page breaks there, so that an outage does not look like calm. The
points of five minutes are also in the note `history/recovery` of the changelog, so they outlive a daemon:

    {"v":1,"points":[[NUMBER,INFLOW,DRAIN,BACKLOG],…]}      NUMBER: of the five minutes since 1970; null: not known

All daemons with a page write it, and the first that tells of some minutes is believed. *Crash*: what was not written is
a gap of ten minutes at most. *Failure* to read or to write it: the page shows what this process remembers.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from changelog.base.errors import CorruptRecordError, UnconfirmedError
from changelog.key_values import NOTE_BYTES_MAX, KeyValueStore
from tiered.notes.note_fields import NoteFields

NOTE = "history/recovery"
VERSION = 1
FIX = "the next daemon with a page replaces it"
TRIES = 3
DIGITS = 4
"""So many significant digits of a figure are kept."""
FIGURE_MAX = 1e305
"""A larger one is damage: a number of JSON may be too large to be shown."""

FINE_MAX = 400
"""How many samples are kept as they are: half an hour and more, at one in 5 s."""

COARSE_S = 300.0
COARSE_MAX = 288
"""Older ones become one point for every `COARSE_S` seconds: a day of them."""


class HistoryPoint(NamedTuple):
    """`at`: `Runtime.monotonic`, in seconds. The rates are entries per second, and the backlog counts entries.

    None: not known.
    """

    at: float
    inflow: float | None = None
    drain: float | None = None
    backlog: float | None = None


Figures = tuple[float | None, float | None, float | None]
Past = Mapping[int, Figures]
"""The figures of a point by the number of its five minutes since 1970."""


class StatusHistory:
    """Points in order of time: at most `FINE_MAX + COARSE_MAX + 1` of this process, and those of earlier ones."""

    def __init__(self) -> None:
        self._earlier: Sequence[HistoryPoint] = ()
        self._fine: deque[HistoryPoint] = deque()
        self._coarse: deque[HistoryPoint] = deque(maxlen=COARSE_MAX)
        self._bucket: list[HistoryPoint] = []

    def add(self, point: HistoryPoint) -> None:
        self._fine.append(point)
        if len(self._fine) > FINE_MAX:
            self._thin(self._fine.popleft())

    def _thin(self, point: HistoryPoint) -> None:
        if self._bucket and point.at // COARSE_S != self._bucket[0].at // COARSE_S:
            self._coarse.append(_merged(self._bucket))
            self._bucket = []
        self._bucket.append(point)

    def points(self) -> list[HistoryPoint]:
        """All points, oldest first."""
        own = self._own()
        first = own[0].at if own else math.inf
        earlier = [point for point in self._earlier if point.at + COARSE_S <= first]
        return [*_with_gaps(earlier), *([HistoryPoint(earlier[-1].at + COARSE_S)] if earlier else []), *own]

    def _own(self) -> list[HistoryPoint]:
        return [*self._coarse, *([_merged(self._bucket)] if self._bucket else []), *self._fine]

    def past(self, unix_s: float, now: float) -> Past:
        """Returns the points of this process for the note. `unix_s`: the service's time at `now` (`Runtime.monotonic`).

        Minutes that are not over yet are left out.
        """
        gathered: dict[int, list[HistoryPoint]] = {}
        for point in self._own():
            gathered.setdefault(int((unix_s - (now - point.at)) // COARSE_S), []).append(point)
        merged = {number: _merged(points) for number, points in gathered.items() if (number + 1) * COARSE_S <= unix_s}
        return {number: (each.inflow, each.drain, each.backlog) for number, each in merged.items()}

    def recall(self, past: Past, unix_s: float, now: float) -> None:
        """Takes in the note's points. Only those that are older than all of this process are shown."""
        self._earlier = [HistoryPoint(now - (unix_s - number * COARSE_S), *past[number]) for number in sorted(past)]


def _with_gaps(points: Sequence[HistoryPoint]) -> Iterator[HistoryPoint]:
    """A point without figures wherever some are missing."""
    for point, following in pairwise(points):
        yield point
        if following.at - point.at > 1.5 * COARSE_S:
            yield HistoryPoint(point.at + COARSE_S)
    yield from points[-1:]


def _merged(points: Sequence[HistoryPoint]) -> HistoryPoint:
    """One point for many: the mean of each rate, and the largest backlog, so that no peak disappears."""
    backlogs = [point.backlog for point in points if point.backlog is not None]
    return HistoryPoint(
        points[0].at, _mean(point.inflow for point in points), _mean(point.drain for point in points), max(backlogs, default=None),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# --- the note ----------------------------------------------------------------------------------------


async def exchange(log: KeyValueStore, own: Past, unix_s: float) -> Past:
    """Adds points to the note, and returns all that it has of the last day. `unix_s`: the service's time.

    A damaged note is replaced. One of newer software stays, and is not read: `CorruptRecordError`. Raises what
    `KeyValueStore.read_note` and `swap_note` raise.
    """
    newest = int(unix_s // COARSE_S)
    for left in reversed(range(TRIES)):
        stored = await log.read_note(NOTE)
        known = {} if stored is None else decode(stored)
        past = {number: each for number, each in sorted({**own, **known}.items()) if newest - COARSE_MAX <= number <= newest}
        if past == known or not past:
            return past
        try:
            if await log.swap_note(NOTE, stored, encode(past)):
                return past
        except UnconfirmedError:
            if not left:
                raise
    return past


def encode(past: Past) -> bytes:
    """Returns the stored form. The oldest points are left out if it would be too large for a note."""
    points = [[number, *(None if each is None else float(f"{each:.{DIGITS}g}") for each in past[number])] for number in sorted(past)]
    while len(raw := json.dumps({"v": VERSION, "points": points}, separators=(",", ":")).encode()) > NOTE_BYTES_MAX:
        del points[: 1 + len(points) // 20]
    return raw


def decode(raw: bytes) -> dict[int, Figures]:
    """Reads the stored form. What breaks it is left out: these are figures for a chart.

    `CorruptRecordError`: newer software wrote it.
    """
    try:
        note = NoteFields.parse(raw, NOTE, FIX)
    except CorruptRecordError:
        return {}
    note.version(VERSION)
    points = note.value("points")
    return {each[0]: (each[1], each[2], each[3]) for each in points if _is_point(each)} if isinstance(points, list) else {}


def _is_point(value: object) -> bool:
    return (
        isinstance(value, list) and len(value) == 4 and type(value[0]) is int and 0 <= value[0] < 2**40
        and all(each is None or (type(each) in (int, float) and 0 <= each <= FIGURE_MAX) for each in value[1:])
    )  # fmt: skip
