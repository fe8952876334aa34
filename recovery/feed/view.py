"""What the batches of a reader add up to: how often each record is there, up to a frontier. Pure.

A view answers for the time just before its frontier, or for an earlier one that it was told. Batches come in the order
of their frontiers, so what is later than that time is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from changelog.base.errors import InvalidRequestError
from recovery.feed.batch import FeedBatch
from recovery.feed.messages import LONG_MAX, Json, Key, key_of
from tiered.text import quoted


@dataclass(frozen=True, slots=True)
class ViewRecord:
    """A record of a view. `multiplicity`: how often it is there; never 0, and below 0 only if the feed says so.

    `since`: the time from which on it was there without a break, with whatever multiplicity.
    """

    record: Json
    multiplicity: int
    since: int


class FeedView:
    """Adds up batches. `at`: up to and with which time; None: up to the frontier. `frontier`: that of the last batch.

    It holds one row for each record that is there.
    """

    def __init__(self, at: int | None = None) -> None:
        if at is not None and (type(at) is not int or not 0 <= at <= LONG_MAX):
            raise InvalidRequestError(f"the time of a view is {quoted(at)}, not an integer of 64 bits from 0")
        self.frontier: tuple[int, ...] = (0,)
        self._at = at
        self._rows: dict[Key, ViewRecord] = {}

    def add(self, batch: FeedBatch) -> None:
        """Adds the next batch."""
        for data, time, diff in sorted(batch.updates, key=lambda each: each[1]):
            if self._at is None or time <= self._at:
                key = key_of(data)
                row = self._rows.get(key)
                multiplicity = diff + (row.multiplicity if row else 0)
                if multiplicity:
                    self._rows[key] = ViewRecord(data, multiplicity, row.since if row else time)
                else:
                    self._rows.pop(key, None)
        self.frontier = batch.frontier

    @property
    def complete(self) -> bool:
        """Whether all updates up to the time of the view have come. Without `at`, it is complete at each frontier."""
        return self._at is None or not self.frontier or self.frontier[0] > self._at

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[ViewRecord]:
        """Yields the rows, sorted by their records: text as it is, all else by its canonical JSON."""
        for key in sorted(self._rows, key=lambda key: (key, False) if type(key) is str else (key[0], True)):
            yield self._rows[key]

    def get(self, record: Json) -> ViewRecord | None:
        """Returns the row of a record, or None if it is not there."""
        return self._rows.get(key_of(record))
