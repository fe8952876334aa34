"""`RowMerge`: puts the rows of Bigtable's ReadRows together from the chunks in which they come. No I/O.

    chunk  key f:c "on"…   …"e" (cell ends)   d "two" commit     ->     CellRow(key, (f:c "one", f:d "two"))
    chunk  key f:c "lost"   reset                                ->     nothing; the row begins again

*Failure*: a stream that breaks the rules is `UnavailableError`, because a read has no effect and may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from changelog.base.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. Its timestamp is in microseconds since 1970, in whole milliseconds."""

    family: str
    column: bytes
    timestamp_us: int
    value: bytes


@dataclass(frozen=True, slots=True)
class CellRow:
    """A row's cells that the filter yields: by family, by column, newest first."""

    key: bytes
    cells: tuple[Cell, ...]


class RowMerge:
    """Puts rows together from the chunks of ReadRows, without I/O.

    A chunk is a cell, or a piece of one. It leaves out the key, family and column if they have not changed. A
    `value_size` says that more pieces of the cell follow. A row counts only when it is committed. A row that is reset
    begins again. A message may hold many rows, or a part of one. A chunk that breaks these rules is `UnavailableError`:
    read again. `last_key`: the key of the last row that was committed.
    """

    _key: bytes | None
    _cells: list[Cell]
    _pieces: list[bytes]

    def __init__(self) -> None:
        self.last_key = b""
        self._clear()

    def add(self, chunks: Iterable[Any]) -> Iterator[CellRow]:
        """The rows that are committed by these chunks, the next ones in order."""
        for chunk in chunks:
            if chunk.reset_row:
                self._check(self._key is not None and not chunk.row_key and not chunk.value, "resets no row")
                self._clear()
                continue
            self._begin(chunk)
            self._pieces.append(chunk.value)
            if chunk.value_size:
                self._check(not chunk.commit_row, "commits a row in the middle of a cell")
                self._split = True
                continue
            self._end_cell()
            if chunk.commit_row:
                yield self._commit()

    @property
    def is_between_rows(self) -> bool:
        """Whether no row has begun: the last chunk completed a row, or gave one up."""
        return self._key is None

    def end(self) -> None:
        """Tells that the stream has ended. `UnavailableError`: it ended in the middle of a row."""
        self._check(self._key is None, "ends in the middle of a row")

    def _begin(self, chunk: Any) -> None:
        if self._split:
            self._check(not chunk.HasField("family_name") and not chunk.HasField("qualifier"), "begins a cell in the middle of another")
            self._check(chunk.row_key in (b"", self._key), "begins a row in the middle of another")
            return
        if self._key is None:
            self._check(chunk.row_key > self.last_key, "does not begin a row in order")
            self._check(chunk.HasField("family_name"), "begins a row without a family")
            self._key = chunk.row_key
        self._check(chunk.row_key in (b"", self._key), "begins a row in the middle of another")
        if chunk.HasField("family_name"):
            self._check(chunk.HasField("qualifier"), "begins a family without a column")
            self._family = chunk.family_name.value
        if chunk.HasField("qualifier"):
            self._column = chunk.qualifier.value
        self._timestamp_us = chunk.timestamp_micros

    def _end_cell(self) -> None:
        self._cells.append(Cell(self._family, self._column, self._timestamp_us, b"".join(self._pieces)))
        self._pieces, self._split = [], False

    def _commit(self) -> CellRow:
        assert self._key is not None
        row = CellRow(self._key, tuple(self._cells))
        self.last_key = self._key
        self._clear()
        return row

    def _clear(self) -> None:
        self._key, self._cells, self._pieces, self._split = None, [], [], False
        self._family, self._column, self._timestamp_us = "", b"", 0

    def _check(self, holds: bool, fault: str) -> None:
        if not holds:
            raise UnavailableError(f"ReadRows answered with a chunk that {fault}, after row {self.last_key!r}; read again")
