"""Tombstones of a Bigtable table in bulk, for audits: the calls of `BigtableRows` that read no single row.

    sent for    r of fg and fm, newest cell     the blob that it names; empty: the one named by the path itself
                m of fg and fm, without its     the blob named by the path itself, unless the row has a payload
                value, if it begins like that
                of a legacy tombstone

No payload is ever transferred, and no cell of an inline object. If a row has such an `m`, a second request asks whether
it also has a payload. This is rare, and it transfers no payload, either.

Calls: redirects, redirect_columns 1 for a page; redirects_at 1 for each 400,000 bytes of keys; one more for each of
these where legacy tombstones are found; boundaries 1. *Failure*: see `changelog.bigtable.channel`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from changelog.base.errors import UnavailableError
from changelog.bigtable.channel import (
    NEWEST,
    WITHOUT_VALUES,
    BigtableTable,
    chain,
    column_is,
    either,
    value_after,
    value_begins_with,
)
from changelog.bigtable.column_scan import ColumnScan
from changelog.bigtable.row_scan import RowScan, ScannedCell
from tiered.bigtable.cells import (
    DATA_FAMILIES,
    EXPIRING,
    LEGACY_FAMILIES,
    LEGACY_TOMBSTONE,
    MANUAL,
    METADATA,
    NS_PER_US,
    PAYLOAD,
    TARGET,
    TARGETS,
)
from tiered.bigtable.spans import OWN_KEYS, object_spans
from tiered.buckets.row_keys import corrupt_row, is_text, printable, split_points
from tiered.services.capabilities import RedirectColumns
from tiered.services.scans import CorruptRow, Redirect, RedirectPage

PAGE_MAX = 20_000
KEYS_BYTES_MAX = 400_000
"""Bytes of keys in one request. Bigtable allows 512 KiB for the whole request."""

_KEY_BYTES = 8
"""Bytes that each key adds to a request besides its own."""

_REDIRECTS = either(
    *(chain(target, NEWEST) for target in TARGETS),
    *(chain(column_is(family, METADATA), NEWEST, value_begins_with(LEGACY_TOMBSTONE), WITHOUT_VALUES) for family in DATA_FAMILIES),
)
_FILLED = chain(NEWEST, value_after(b""), WITHOUT_VALUES)
"""Finds the columns whose value is not empty."""

_PAYLOAD_FAMILIES = {*DATA_FAMILIES, *LEGACY_FAMILIES}


async def redirects(table: BigtableTable, start: bytes, end: bytes | None, limit: int) -> RedirectPage:
    spans = object_spans(start, end)
    if not spans:
        return RedirectPage((), (), None)
    scan, is_all = await table.read_bulk(spans, _REDIRECTS, min(limit, PAGE_MAX))
    return await _page(table, scan.cells, scan.rows, None if is_all else scan.last_key + b"\0")


async def redirect_columns(table: BigtableTable, start: bytes, end: bytes | None, limit: int) -> RedirectColumns:
    spans = object_spans(start, end)
    scan = ColumnScan(TARGET, MANUAL, EXPIRING)
    is_all = await table.read_columns(scan, spans, _REDIRECTS, min(limit, PAGE_MAX))
    next_start = None if is_all else scan.last_key + b"\0"
    others = await _page(table, scan.cells, scan.rows - len(scan.keys), next_start)
    return RedirectColumns(scan.keys, scan.values, {key: stamp * NS_PER_US for key, stamp in scan.stamps.items()}, others)


async def redirects_at(table: BigtableTable, keys: Sequence[bytes]) -> RedirectPage:
    found: list[Redirect] = []
    corrupt: list[CorruptRow] = []
    for batch in _batches(key for key in keys if key and not key.startswith(OWN_KEYS)):
        scan = await _read_all(table, batch, _REDIRECTS)
        page = await _page(table, scan.cells, scan.rows, None)
        found += page.redirects
        corrupt += page.corrupt
    return RedirectPage(found, corrupt, None)


async def boundaries(table: BigtableTable, count: int) -> Sequence[str]:
    """Keys that split the table into parts of nearly equal size in bytes, chosen among the service's samples.

    If the service tells no bytes, the parts have nearly equal numbers of samples.
    """
    samples = await table.sample()
    if not samples:
        return []
    parts = samples if samples[-1][1] else [(key, number) for number, (key, _) in enumerate(samples, 1)]
    total = parts[-1][1]
    step, reached = total / count, 0.0
    chosen: list[bytes] = []
    for key, offset in parts:
        if reached + step <= offset < total and not key.startswith(OWN_KEYS):
            chosen.append(key)
            reached = offset // step * step
    return split_points(chosen)


# --- pages -------------------------------------------------------------------------------------------


def _batches(keys: Iterator[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for key in sorted(set(keys)):
        size += len(key) + _KEY_BYTES
        if batch and size > KEYS_BYTES_MAX:
            yield batch
            batch, size = [], len(key) + _KEY_BYTES
        batch.append(key)
    if batch:
        yield batch


async def _read_all(table: BigtableTable, keys: Sequence[bytes], yields: object) -> RowScan:
    scan, is_all = await table.read_bulk(keys, yields)
    if not is_all:
        raise UnavailableError(f"{len(keys)} rows of {table.name} could not be read in time; read again")
    return scan


async def _page(table: BigtableTable, cells: Sequence[ScannedCell], rows: int, next_start: bytes | None) -> RedirectPage:
    """Makes a page of the cells of so many rows."""
    corrupt = [] if len(cells) == rows else list(_ambiguous(cells))
    if legacy := {cell[0] for cell in cells if cell[2] == METADATA}:
        inline = await _with_payload(table, legacy)
        cells = [cell for cell in cells if cell[2] != METADATA or cell[0] not in inline]
    try:
        return RedirectPage(_decoded(cells), corrupt, next_start)
    except UnicodeDecodeError:
        corrupt += [corrupt_row(key, value) for key, _, _, _, value in cells if not is_text(key) or not is_text(value)]
        return RedirectPage(_decoded([cell for cell in cells if is_text(cell[0]) and is_text(cell[4])]), corrupt, next_start)


def _decoded(cells: Sequence[ScannedCell]) -> list[Redirect]:
    new = tuple.__new__  # takes half as long as Redirect(…)
    return [
        new(Redirect, (path := key.decode(), value.decode() or path, timestamp_us * NS_PER_US if family == EXPIRING else None))
        for key, family, _, timestamp_us, value in cells
    ]


async def _with_payload(table: BigtableTable, keys: set[bytes]) -> set[bytes]:
    """Those of the rows that are inline objects."""
    found: set[bytes] = set()
    for batch in _batches(iter(keys)):
        scan = await _read_all(table, batch, _FILLED)
        found |= {cell[0] for cell in scan.cells if cell[2] == PAYLOAD and cell[1] in _PAYLOAD_FAMILIES}
    return found


def _ambiguous(cells: Sequence[ScannedCell]) -> Iterator[CorruptRow]:
    for key, count in Counter(cell[0] for cell in cells).items():
        if count > 1:
            yield CorruptRow(printable(key), f"it is a tombstone in {count} ways, and may mean any of their blobs")
