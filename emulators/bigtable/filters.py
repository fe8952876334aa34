"""Bigtable's filters, as far as the adapters use them, on the cells of one row in memory.

    chain             each sees what the one before it yields
    interleave        what any yields, in the row's order; a cell may come more than once
    column_range, value_range, timestamp_range        which cells
    cells_per_column_limit                            the newest of each column
    cells_per_row_limit                               the first of the row, if they are of one family
    strip_value                                       the same cells without their values

A filter is built once into a function, which is remembered by the filter's bytes. *Failure*: any other filter raises an
error. To let everything pass, as other emulators do, would give an adapter's predicate another meaning than in the
service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain

import grpc
from google.cloud.bigtable_v2.types import data

from changelog.bigtable.channel import Message
from changelog.bigtable.row_merge import Cell
from emulators.bigtable.faulty_channel import rpc_error

Yields = Callable[[Sequence[Cell]], Sequence[Cell]]
"""From a row's cells, in order, to those that pass, in order."""

_Filter = data.RowFilter.pb()


def place(cell: Cell) -> tuple[str, bytes, int]:
    """Returns the cell's place in its row: by family, by column, newest first."""
    return cell.family, cell.column, -cell.timestamp_us


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """Bytes from `start` (inclusive) to `end` (exclusive; None: no end)."""

    start: bytes
    end: bytes | None

    @staticmethod
    def of(message: Message, what: str) -> KeyBounds:
        """Reads the bounds of a range of `qualifier`s, `value`s or `key`s.

        The first bytes after x are x and a zero byte.
        """
        start = message.WhichOneof(f"start_{what}")
        end = message.WhichOneof(f"end_{what}")
        first = b"" if start is None else getattr(message, start) + (b"\0" if start.endswith("_open") else b"")
        last = None if end is None else getattr(message, end) + (b"\0" if end.endswith("_closed") else b"")
        return KeyBounds(first, last)

    def holds(self, value: bytes) -> bool:
        return self.start <= value and (self.end is None or value < self.end)


def yields(filter: Message) -> Yields:
    """Returns what the filter does, as a function. Raises `NotImplementedError` for a filter that no adapter uses."""
    return _remembered(filter.SerializeToString())


@lru_cache(maxsize=1024)
def _remembered(raw: bytes) -> Yields:
    return _built(_Filter.FromString(raw))


def _built(filter: Message) -> Yields:
    match filter.WhichOneof("filter"):
        case "chain":
            return _chain(_parts(filter.chain.filters, "Chain"))
        case "interleave":
            return _interleave(_parts(filter.interleave.filters, "Interleave"))
        case "column_range_filter":
            return _columns(filter.column_range_filter.family_name, KeyBounds.of(filter.column_range_filter, "qualifier"))
        case "value_range_filter":
            values = KeyBounds.of(filter.value_range_filter, "value")
            return lambda cells: [cell for cell in cells if values.holds(cell.value)]
        case "timestamp_range_filter":
            first = filter.timestamp_range_filter.start_timestamp_micros
            last = filter.timestamp_range_filter.end_timestamp_micros or float("inf")
            return lambda cells: [cell for cell in cells if first <= cell.timestamp_us < last]
        case "cells_per_column_limit_filter":
            limit = filter.cells_per_column_limit_filter
            return lambda cells: _newest(cells, limit)
        case "cells_per_row_limit_filter":
            return partial(_first, filter.cells_per_row_limit_filter)
        case "strip_value_transformer":
            return lambda cells: [replace(cell, value=b"") for cell in cells]
        case other:
            raise NotImplementedError(f"MemoryBigtable has no filter {other}: add it, with a case in the test against the emulator")


def _parts(filters: Sequence[Message], kind: str) -> list[Yields]:
    if len(filters) < 2:
        raise rpc_error(grpc.StatusCode.INVALID_ARGUMENT, f"{kind} must contain at least two RowFilters")
    return [_built(each) for each in filters]


def _chain(parts: Sequence[Yields]) -> Yields:
    def through_all(cells: Sequence[Cell]) -> Sequence[Cell]:
        for part in parts:
            if not cells:
                break
            cells = part(cells)
        return cells

    return through_all


def _interleave(parts: Sequence[Yields]) -> Yields:
    return lambda cells: sorted(chain.from_iterable(part(cells) for part in parts), key=place) if cells else cells


def _columns(family: str, columns: KeyBounds) -> Yields:
    if columns.end == columns.start + b"\0":
        column = columns.start
        return lambda cells: [cell for cell in cells if cell.column == column and cell.family == family]
    return lambda cells: [cell for cell in cells if cell.family == family and columns.holds(cell.column)]


def _first(limit: int, cells: Sequence[Cell]) -> Sequence[Cell]:
    """The first cells. Between families the service has no order, so no adapter may ask for it."""
    assert len({cell.family for cell in cells}) <= 1, "the order of families is not defined"
    return cells[:limit]


def _newest(cells: Iterable[Cell], limit: int) -> list[Cell]:
    found: list[Cell] = []
    column, count = None, 0
    for cell in cells:
        column, count = ((cell.family, cell.column), 1) if (cell.family, cell.column) != column else (column, count + 1)
        if count <= limit:
            found.append(cell)
    return found
