"""The rates and the backlog of the last day, in memory: each sample at first, and one point for two minutes later.

A point without figures is a gap. The line on the page breaks there, so that an outage does not look like calm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

FINE_MAX = 400
"""How many samples are kept as they are: half an hour and more, at one in 5 s."""

COARSE_S = 120.0
COARSE_MAX = 720
"""Older ones become one point for every `COARSE_S` seconds: a day of them."""


class Point(NamedTuple):
    """`at`: `Runtime.monotonic`, in seconds. The rates are entries per second, and the backlog counts entries.

    None: not known.
    """

    at: float
    inflow: float | None = None
    drain: float | None = None
    backlog: float | None = None


class History:
    """Points in order of time, at most `FINE_MAX + COARSE_MAX + 1`."""

    def __init__(self) -> None:
        self._fine: deque[Point] = deque()
        self._coarse: deque[Point] = deque(maxlen=COARSE_MAX)
        self._bucket: list[Point] = []

    def add(self, point: Point) -> None:
        self._fine.append(point)
        if len(self._fine) > FINE_MAX:
            self._thin(self._fine.popleft())

    def _thin(self, point: Point) -> None:
        if self._bucket and point.at // COARSE_S != self._bucket[0].at // COARSE_S:
            self._coarse.append(_merged(self._bucket))
            self._bucket = []
        self._bucket.append(point)

    def points(self) -> list[Point]:
        """All points, oldest first."""
        return [*self._coarse, *([_merged(self._bucket)] if self._bucket else []), *self._fine]


def _merged(points: Sequence[Point]) -> Point:
    """One point for many: the mean of each rate, and the largest backlog, so that no peak disappears."""
    backlogs = [point.backlog for point in points if point.backlog is not None]
    return Point(
        points[0].at, _mean(point.inflow for point in points), _mean(point.drain for point in points), max(backlogs, default=None),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
