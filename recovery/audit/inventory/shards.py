"""Reads the files of a report and of an export with Arrow, on an executor.

Rows are numbered from 0 in each file. Two readings of a file yield the same rows in the same order.

Memory holds one batch. A file whose MD5 is told is read once more for that. *Failure*: `CorruptRecordError` names the
file that cannot be read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from hashlib import blake2b
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from changelog.base.errors import CorruptRecordError
from changelog.base.runtime import SystemRuntime
from changelog.change import OWN_PREFIXES
from recovery.audit.files.directory import DirectoryFiles
from recovery.audit.inventory.arrays import numbers, texts
from recovery.audit.inventory.report import BUCKET, SIZE, InventoryReport
from tiered.bigtable.cells import EXPIRING, LEGACY_TOMBSTONE, MANUAL, METADATA, PAYLOAD, TARGET
from tiered.protocol.owners import OWNERS

BATCH = 20_000
GZIP = ".gz"
_BAD_GZIP = ("Truncated compressed stream", "zlib inflate failed")
"""How errors of Arrow begin that are about the bytes, and not about the way to them."""
_NOTHING = "Empty CSV file"

SUMMED_BYTES = 4 * 1024 * 1024
"""How much of a shard is read at once for its MD5."""

Chosen = Callable[[int, int], Any]
"""Tells which rows are wanted of those from a first number (inclusive) to a last one (exclusive), in order."""

SKETCH = 1000
_COUNTS = ("shard", "rows", "nameless", "deleted", "bucketless", "repeated", "shown", "owners")
LOOK = pa.schema([
    *((name, pa.int64()) for name in _COUNTS), ("least", pa.string()), ("greatest", pa.string()), ("sum", pa.string()),
    ("sketch", pa.list_(pa.int64())),
])  # fmt: skip

LOOK_AGAIN = ""
"""The fault of a row of an export: what is wrong with it is read from the table."""


def read_report(report: InventoryReport, shard: int, chosen: Chosen | None = None) -> Iterator[tuple[Any, Any]]:
    """Yields the blobs of a shard, batch by batch: name, size, generation; and the number of each one's row.

    Rows without a name that is text, rows about deleted blobs, and what is none of the store's blobs are left out. The
    names come without the store's prefix. A number that cannot be read is null. Generations are text.
    """
    for batch, places in _numbered(_rows(report, shard, report.told.used), chosen):
        whole = report.told.names(batch[report.told.name])
        name, kept = _own(report, whole, pc.invert(report.told.gone(batch)))
        blobs = pa.RecordBatch.from_pydict({"name": name, "size": numbers(batch[SIZE]), "generation": report.told.generations(batch)})
        yield blobs.filter(kept), places[_mask(kept)]


def _own(report: InventoryReport, whole: Any, live: Any) -> tuple[Any, Any]:
    """Returns these names without the store's prefix, and which of them are its blobs. `live`: which are there."""
    is_own = pc.starts_with(whole, report.prefix) if report.prefix else pc.invert(pc.starts_with(whole, OWNERS))
    name = pc.utf8_slice_codeunits(whole, len(report.prefix)) if report.prefix else whole  # the prefix is ASCII
    is_blob = pc.and_(pc.and_(is_own, pc.not_equal(name, "")), pc.invert(_is_beside(report, whole)))
    return name, pc.and_(pc.fill_null(is_blob, False), live)


def _is_beside(report: InventoryReport, whole: Any) -> Any:
    """Tells which of these names are of what the store's adapter keeps beside its blobs. Null: of no name."""
    found = pc.if_else(pc.is_valid(whole), False, pa.scalar(None, pa.bool_()))
    for beginning in report.told.beside:
        found = pc.or_(found, pc.starts_with(whole, f"{report.prefix}{beginning}"))
    return found


def _rows(report: InventoryReport, shard: int, columns: Sequence[str]) -> Iterator[Any]:
    """Yields all rows of a shard with those of these columns that the report has, as they are."""
    columns = [column for column in report.columns if column in columns]
    with _opened(report.shards[shard], report.form) as file:
        yield from _csv(file, report, columns) if report.form == "csv" else pq.ParquetFile(file).iter_batches(BATCH, columns=columns)


def _numbered(batches: Iterable[Any], chosen: Chosen | None) -> Iterator[tuple[Any, Any]]:
    """Yields the chosen rows of these batches, each with its number."""
    first = 0
    for batch in batches:
        following = first + batch.num_rows
        if chosen is None:
            yield batch, np.arange(first, following, dtype=np.int64)
        else:
            numbers = chosen(first, following)
            yield batch.take(pa.array(numbers - first)), numbers
        first = following


def look_over(report: InventoryReport, shard: int) -> Any:
    """Returns one row about a shard, as `LOOK` says.

    `least`, `greatest`: of the column `bucket`. `shown`: blobs of the store. `owners`: markers of owners.
    `repeated`: how many of the blobs it lists again. `sketch`: hashes of the `SKETCH` names that have the least
    checksums. `sum`: the MD5 of its bytes, if the report tells it. If that is another one, nothing is counted. Memory
    holds 8 bytes for each blob of the shard: Python's own hash, which is good in one process only, and costs little.
    """
    sum_now = _sum(report.shards[shard]) if report.sums else None
    counts = dict.fromkeys(_COUNTS, 0) | {"shard": shard}
    buckets: set[str] = set()
    hashes, sketch = [np.array([], np.int64)], list[tuple[int, int]]()
    for batch in _rows(report, shard, report.told.looked) if not report.sums or sum_now == report.sums[shard] else ():
        whole, gone = report.told.names(batch[report.told.name]), report.told.gone(batch)
        counts["rows"] += batch.num_rows
        counts["nameless"] += batch.num_rows - _true(pc.not_equal(whole, ""))
        counts["deleted"] += _true(gone)
        counts["bucketless"] += batch[BUCKET].null_count
        counts["shown"] += _true(_own(report, whole, pc.invert(gone))[1])
        counts["owners"] += _true(pc.starts_with(whole, OWNERS))
        listed_now = pc.fill_null(pc.and_(pc.invert(gone), pc.invert(_is_beside(report, whole))), False)
        live = pc.cast(whole.filter(listed_now), pa.binary()).to_pylist()
        hashes.append(np.fromiter(map(hash, live), np.int64, len(live)))
        sketch = least(sketch, live)
        buckets = {each for each in (*buckets, *pc.min_max(pc.cast(batch[BUCKET], pa.string())).as_py().values()) if each is not None}
    ends = (min(buckets), max(buckets)) if buckets else (None, None)
    listed = np.sort(np.concatenate(hashes))
    counts["repeated"] = int(np.count_nonzero(listed[1:] == listed[:-1]))
    values = (*counts.values(), *ends, sum_now, [each for _, each in sketch])
    return pa.RecordBatch.from_arrays([pa.array([value], field.type) for value, field in zip(values, LOOK, strict=True)], schema=LOOK)


def _true(found: Any) -> int:
    return int(pc.sum(pc.fill_null(found, False)).as_py() or 0)


def least(sketch: list[tuple[int, int]], names: Sequence[bytes]) -> list[tuple[int, int]]:
    """Adds names to a sketch: of `SKETCH` names with the least checksums, the checksum and a hash of 64 bits, in order.

    The checksum only chooses, so few names are hashed.
    """
    checksums = np.fromiter(map(crc32, names), np.uint32, len(names))
    places = np.flatnonzero(checksums <= sketch[-1][0]) if len(sketch) == SKETCH else np.arange(len(names))
    places = places[np.argsort(checksums[places], kind="stable")[:SKETCH]]
    return sorted({*sketch, *((int(checksums[place]), _hash(names[place])) for place in places.tolist())})[:SKETCH]


def _hash(name: bytes) -> int:
    return int.from_bytes(blake2b(name, digest_size=8).digest(), signed=True)


def _sum(path: str) -> str:
    found = hashlib.md5(usedforsecurity=False)
    with _opened(path, "whole") as file:
        while piece := file.read(SUMMED_BYTES):
            found.update(piece)
    return found.hexdigest()


def read_export(path: str, chosen: Chosen | None = None) -> Iterator[tuple[Any, Any]]:
    """Yields the tombstones of a file, batch by batch: key, target, deadline_us, fault; and the number of each's row.

    A row that may mean two blobs yields both, and a third line with the fault `LOOK_AGAIN`. A row whose key or target
    is no text has that fault, too, and no target.
    """
    with _opened(path) as file:
        for batch, numbers in _numbered(pq.ParquetFile(file).iter_batches(BATCH, columns=["key", "cells"]), chosen):
            found, places = _tombstones(batch["key"], batch["cells"])
            yield found, numbers[places]


def _tombstones(keys: Any, cells: Any) -> tuple[Any, Any]:
    """Returns the tombstones of these rows, and the place of each one's row.

    Nearly all have one cell that names the blob, and are read without a Python object for each. The others, of older
    software or in doubt, are read one by one.
    """
    flat, parents = cells.flatten(), pc.list_parent_indices(cells).to_numpy(zero_copy_only=False)
    family, column, value = (pc.struct_field(flat, name) for name in ("family", "qualifier", "value"))
    column, value = pc.cast(column, pa.binary()), pc.cast(value, pa.binary())
    of_data = pc.is_in(pc.cast(family, pa.string()), pa.array([EXPIRING, MANUAL]))
    named = _mask(pc.and_(of_data, pc.equal(column, TARGET)))
    legacy = _mask(pc.and_(pc.and_(of_data, pc.equal(column, METADATA)), pc.starts_with(value, LEGACY_TOMBSTONE)))
    times = np.bincount(parents[named], minlength=len(keys))
    is_plain = times == 1
    is_plain[parents[legacy]] = False
    chosen = pa.array(np.flatnonzero(named & is_plain[parents]))
    places = parents[chosen.to_numpy()]
    path = keys.take(pa.array(places))
    target = value.take(chosen)
    at = pc.cast(pc.struct_field(flat, "timestamp"), pa.int64()).take(chosen)
    expires = pc.equal(pc.cast(family, pa.string()).take(chosen), EXPIRING)
    odd = np.flatnonzero((times > 0) & ~is_plain)
    odd = np.union1d(odd, np.unique(parents[legacy])).astype(np.int64)
    slow = [(row, each) for row in odd.tolist() for each in _row_by_row(keys[row].as_py(), cells[row].as_py())]
    columns = [
        pa.concat_arrays([pc.cast(found, kind), pa.array([each[place] for _, each in slow], kind)])
        for place, (found, kind) in enumerate((
            (path, pa.binary()), (pc.if_else(pc.equal(pc.binary_length(target), 0), path, target), pa.binary()),
            (pc.if_else(expires, at, pa.scalar(None, pa.int64())), pa.int64()), (pa.nulls(len(path), pa.string()), pa.string()),
        ))
    ]  # fmt: skip
    found = _as_text(pa.RecordBatch.from_arrays(columns, names=["key", "target", "deadline_us", "fault"]))
    of_objects = pc.invert(reduce(pc.or_, (pc.starts_with(found["key"], own.encode()) for own in OWN_PREFIXES)))
    rows = np.concatenate([places, np.array([row for row, _ in slow], np.int64)])
    return found.filter(of_objects), rows[_mask(of_objects)]


def _as_text(found: Any) -> Any:
    """Returns the tombstones with their targets as text. If a key or a target is no text, the table is asked."""
    target = texts(found["target"])
    readable = pc.and_(pc.is_valid(texts(found["key"])), pc.or_(pc.is_valid(target), pc.is_null(found["target"])))
    columns = [
        found["key"], pc.if_else(readable, target, pa.scalar(None, pa.string())), found["deadline_us"],
        pc.if_else(readable, found["fault"], LOOK_AGAIN),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, names=["key", "target", "deadline_us", "fault"])


def _row_by_row(key: bytes, cells: Sequence[dict[str, Any]]) -> list[tuple[bytes, bytes | None, int | None, str | None]]:
    newest: dict[tuple[str, bytes], dict[str, Any]] = {}
    for cell in cells:
        place = (cell["family"], bytes(cell["qualifier"]))
        if place not in newest or cell["timestamp"] > newest[place]["timestamp"]:
            newest[place] = cell
    filled = any(bytes(cell["qualifier"]) == PAYLOAD and cell["value"] for cell in newest.values())
    found: list[tuple[bytes, bytes | None, int | None, str | None]] = []
    for family in (EXPIRING, MANUAL):
        for column in (TARGET, METADATA):
            newest_value = newest.get((family, column))
            if newest_value is None or (column == METADATA and (filled or not newest_value["value"].startswith(LEGACY_TOMBSTONE))):
                continue
            deadline = newest_value["timestamp"] if family == EXPIRING else None
            found.append((key, (newest_value["value"] if column == TARGET else b"") or key, deadline, None))
    return found if len(found) < 2 else [*found, (key, None, None, LOOK_AGAIN)]


def _mask(found: Any) -> Any:
    return pc.fill_null(found, False).to_numpy(zero_copy_only=False)


def _csv(file: Any, report: InventoryReport, columns: Sequence[str]) -> Iterator[Any]:
    types = {name: pa.binary() if name == report.told.name else pa.string() for name in columns}
    try:
        yield from arrow_csv.open_csv(
            file,
            read_options=arrow_csv.ReadOptions(column_names=None if report.told.has_header else list(report.columns)),
            parse_options=arrow_csv.ParseOptions(delimiter=report.delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types, include_columns=list(columns), null_values=[""], strings_can_be_null=True
            ),
        )
    except pa.ArrowInvalid as error:
        if report.told.has_header or str(error) != _NOTHING:
            raise


@contextmanager
def _opened(path: str, form: str = "parquet") -> Iterator[Any]:
    """Opens a file. `form`: `csv` is read from its beginning on, and decompressed; `whole`: as it is stored."""
    directory, _, name = path.rpartition("/")
    files = DirectoryFiles.at(directory, SystemRuntime())
    place = f"{files.path}/{name}"
    with files.explained("be read", name), _stream(files.filesystem, place, form) as file:
        try:
            yield file
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and not str(error).startswith(_BAD_GZIP):
                raise
            raise CorruptRecordError(f"{path} cannot be read ({' '.join(str(error).split())[:200]}): copy the report again") from None


def _stream(filesystem: Any, place: str, form: str) -> Any:
    if form == "parquet":
        return filesystem.open_input_file(place)
    return filesystem.open_input_stream(place, compression="gzip" if form == "csv" and place.endswith(GZIP) else None)
