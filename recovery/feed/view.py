"""What the batches of a reader add up to: how often each record is there, up to a frontier.

A view answers for the time just before its frontier, or for an earlier one that it was told. Batches come in the order
of their frontiers, so what is later than that time is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar, cast

from changelog.base.errors import InvalidRequestError
from changelog.sqlite.temporary import TemporaryTable
from recovery.feed.batch import FeedBatch
from recovery.feed.messages import LONG_MAX, Json, Key, key_of
from recovery.feed.temporary import LargeBatch, check_in_memory, columns_of, data_of
from tiered.text import quoted

UPDATES_AT_ONCE = 1000


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

    It holds one row for each record that is there: in memory, or, once there are more than `in_memory`, in a temporary
    file. None: always in memory. With a file, everything here may raise `UnavailableError`.
    """

    def __init__(self, at: int | None = None, in_memory: int | None = None) -> None:
        if at is not None and (type(at) is not int or not 0 <= at <= LONG_MAX):
            raise InvalidRequestError(f"the time of a view is {quoted(at)}, not an integer of 64 bits from 0")
        check_in_memory(in_memory)
        self.frontier: tuple[int, ...] = (0,)
        self._at = at
        self._in_memory = in_memory
        self._rows: dict[Key, ViewRecord] = {}
        self._file: _RowsInFile | None = None

    def add(self, batch: FeedBatch) -> None:
        """Adds the next batch."""
        # Of one record, the earlier update first. A large batch is in order, and too large to be sorted here.
        updates: Iterable[tuple[Json, int, int]] = (
            batch.updates if isinstance(batch.updates, LargeBatch) else sorted(batch.updates, key=lambda each: each[1])
        )
        for part in _parts((key_of(data), data, time, diff) for data, time, diff in updates if self._at is None or time <= self._at):
            rows = self._rows if self._file is None else self._file.rows(key for key, *_ in part)
            for key, data, time, diff in part:
                row = rows.get(key)
                multiplicity = diff + (row.multiplicity if row else 0)
                if multiplicity:
                    rows[key] = ViewRecord(data, multiplicity, row.since if row else time)
                else:
                    rows.pop(key, None)
            if self._file is not None:
                self._file.replace((key for key, *_ in part), rows)
            elif self._in_memory is not None and len(rows) > self._in_memory:
                self._file, self._rows = _RowsInFile(), {}
                self._file.replace((), rows)
        self.frontier = batch.frontier

    @property
    def complete(self) -> bool:
        """Whether all updates up to the time of the view have come. Without `at`, it is complete at each frontier."""
        return self._at is None or not self.frontier or self.frontier[0] > self._at

    def __len__(self) -> int:
        return len(self._rows) if self._file is None else len(self._file)

    def __iter__(self) -> Iterator[ViewRecord]:
        """Yields the rows, sorted by their records: text as it is, all else by its canonical JSON."""
        if self._file is not None:
            yield from self._file
            return
        for key in sorted(self._rows, key=lambda key: (key, False) if type(key) is str else (key[0], True)):
            yield self._rows[key]

    def get(self, record: Json) -> ViewRecord | None:
        """Returns the row of a record, or None if it is not there."""
        key = key_of(record)
        return (self._rows if self._file is None else self._file.rows([key])).get(key)


class _RowsInFile:
    """The rows of a view, by their keys. A multiplicity may have more than 64 bits, so it is text."""

    def __init__(self) -> None:
        self._table = TemporaryTable("CREATE TABLE rows (key, is_text, multiplicity, since, PRIMARY KEY (key, is_text)) WITHOUT ROWID")

    def __len__(self) -> int:
        [(number,)] = self._table.execute("SELECT count(*) FROM rows")
        return cast(int, number)

    def __iter__(self) -> Iterator[ViewRecord]:
        for key, is_text, multiplicity, since in self._table.execute("SELECT * FROM rows ORDER BY key, is_text DESC"):
            yield ViewRecord(data_of(key, is_text), int(multiplicity), since)

    def rows(self, keys: Iterable[Key]) -> dict[Key, ViewRecord]:
        """Returns those of these keys that are there."""
        found: dict[Key, ViewRecord] = {}
        for key in keys:
            columns = columns_of(key)
            for multiplicity, since in self._table.execute("SELECT multiplicity, since FROM rows WHERE key = ? AND is_text = ?", columns):
                found[key] = ViewRecord(data_of(*columns), int(multiplicity), since)
        return found

    def replace(self, keys: Iterable[Key], rows: Mapping[Key, ViewRecord]) -> None:
        """Stores the rows. Of `keys`, those that are not among them are removed."""
        self._table.write("DELETE FROM rows WHERE key = ? AND is_text = ?", (columns_of(key) for key in keys if key not in rows))
        self._table.write(
            "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)",
            ((*columns_of(key), str(row.multiplicity), row.since) for key, row in rows.items()),
        )


T = TypeVar("T")


def _parts(each: Iterable[T]) -> Iterator[list[T]]:
    found = iter(each)
    while part := list(islice(found, UPDATES_AT_ONCE)):
        yield part
