"""Reads the files of a report and of an export with Arrow, on an executor.

Rows are numbered from 0 in each file. Two readings of a file yield the same rows in the same order.

Memory holds one batch. *Failure*: `CorruptRecordError` names the file that cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from changelog.base.errors import CorruptRecordError
from changelog.base.runtime import SystemRuntime
from recovery.audit.files.directory import DirectoryFiles
from recovery.audit.inventory.report import DELETED, InventoryReport
from tiered.bigtable.cells import EXPIRING, LEGACY_TOMBSTONE, MANUAL, METADATA, PAYLOAD, TARGET
from tiered.protocol.owners import OWNERS

BATCH = 20_000
_NUMBER = re.compile(r"[0-9]{1,18}")

Chosen = Callable[[int, int], Any]
"""Tells which rows are wanted of those from a first number (inclusive) to a last one (exclusive), in order."""

SKETCH = 1000
LOOK = pa.schema([
    *((name, pa.int64()) for name in ("shard", "rows", "nameless", "deleted", "bucketless", "repeated")),
    ("least", pa.string()), ("greatest", pa.string()), ("sketch", pa.list_(pa.int64())),
])  # fmt: skip

LOOK_AGAIN = ""
"""The fault of a row of an export: what is wrong with it is read from the table."""


def read_report(report: InventoryReport, shard: int, chosen: Chosen | None = None) -> Iterator[tuple[Any, Any]]:
    """Yields the blobs of a shard, batch by batch: name, size, generation; and the number of each one's row.

    Rows without a name that is text, rows about deleted blobs, and what is none of the store's blobs are left out. The
    names come without the store's prefix. A number that cannot be read is null. Generations are text.
    """
    for batch, numbers in _numbered(_rows(report, shard, ["name", "size", "generation"]), chosen):
        name = texts(batch["name"])
        is_own = pc.starts_with(name, report.prefix) if report.prefix else pc.invert(pc.starts_with(name, OWNERS))
        name = pc.utf8_slice_codeunits(name, len(report.prefix)) if report.prefix else name  # the prefix is ASCII
        kept = pc.and_(pc.fill_null(pc.and_(is_own, pc.not_equal(name, "")), False), pc.invert(_is_deleted(batch)))
        blobs = pa.RecordBatch.from_pydict({
            "name": name, "size": _numbers(batch["size"]), "generation": pc.cast(_numbers(batch["generation"]), pa.string()),
        })  # fmt: skip
        yield blobs.filter(kept), numbers[_mask(kept)]


def _rows(report: InventoryReport, shard: int, columns: Sequence[str]) -> Iterator[Any]:
    """Yields all rows of a shard with these columns, as they are, and with `timeDeleted` if the report tells that."""
    columns = [*columns, *([DELETED] if DELETED in report.columns else [])]
    with _opened(report.shards[shard]) as file:
        yield from (
            _csv(file, report.delimiter, columns) if report.form == "csv" else pq.ParquetFile(file).iter_batches(BATCH, columns=columns)
        )


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
    """Returns one row about a shard: rows, nameless, deleted, bucketless, and the least and greatest `bucket`.

    `repeated`: how many blobs it lists again. `sketch`: the least `SKETCH` hashes of their names. Memory holds 8 bytes
    for each blob of the shard.
    """
    rows = nameless = deleted = bucketless = 0
    buckets: set[str] = set()
    hashes = [np.array([], np.uint64)]
    for batch in _rows(report, shard, ["bucket", "name"]):
        rows += batch.num_rows
        nameless += batch.num_rows - pc.sum(pc.fill_null(pc.not_equal(texts(batch["name"]), ""), False)).as_py()
        deleted += pc.sum(_is_deleted(batch)).as_py()
        live = pc.cast(batch["name"].filter(pc.invert(_is_deleted(batch))).drop_null(), pa.binary())
        hashes.append(np.fromiter(map(_hash, live.to_pylist()), np.uint64, len(live)))
        bucketless += batch["bucket"].null_count
        buckets = {each for each in (*buckets, *pc.min_max(pc.cast(batch["bucket"], pa.string())).as_py().values()) if each is not None}
    ends = (min(buckets), max(buckets)) if buckets else (None, None)
    listed = np.concatenate(hashes)
    unique = np.unique(listed)
    sketch = unique[:SKETCH].view(np.int64).tolist()
    values = (shard, rows, nameless, deleted, bucketless, len(listed) - len(unique), *ends, sketch)
    return pa.RecordBatch.from_arrays([pa.array([value], field.type) for value, field in zip(values, LOOK, strict=True)], schema=LOOK)


def _hash(name: bytes) -> int:
    return int.from_bytes(blake2b(name, digest_size=8).digest())


def texts(values: Any) -> Any:
    """Returns these values as text. What is no text is null. Arrow does not check the text that it reads."""
    values = pc.cast(values, pa.binary())
    try:
        return pc.cast(values, pa.string())
    except pa.ArrowInvalid:
        return pa.array([_decoded(value) for value in values.to_pylist()], pa.string())


def _numbers(values: Any) -> Any:
    """Returns the numbers of a column of numbers or text. What is no number is null."""
    try:
        return pc.cast(values, pa.int64())
    except pa.ArrowInvalid:
        texts = pc.cast(values, pa.string()).to_pylist()
        return pa.array([int(text) if text is not None and _NUMBER.fullmatch(text) else None for text in texts], pa.int64())


def _is_deleted(batch: Any) -> Any:
    """Tells of each row whether it is about a blob that was deleted or replaced."""
    return pc.is_valid(batch[DELETED]) if DELETED in batch.schema.names else pa.array([False] * batch.num_rows)


def _decoded(name: bytes | None) -> str | None:
    try:
        return None if name is None else name.decode()
    except UnicodeDecodeError:
        return None


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
    of_objects = pc.invert(pc.starts_with(found["key"], b"~"))
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


def _csv(file: Any, delimiter: str, columns: Sequence[str]) -> Any:
    types = {name: pa.binary() if name == "name" else pa.string() for name in columns}
    return arrow_csv.open_csv(
        file,
        parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            column_types=types, include_columns=list(columns), null_values=[""], strings_can_be_null=True
        ),
    )


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    directory, _, name = path.rpartition("/")
    files = DirectoryFiles.at(directory, SystemRuntime())
    with files.explained("be read", name), files.filesystem.open_input_file(f"{files.path}/{name}") as file:
        try:
            yield file
        except pa.ArrowException as error:
            raise CorruptRecordError(f"{path} cannot be read ({' '.join(str(error).split())[:200]}): copy the report again") from None
