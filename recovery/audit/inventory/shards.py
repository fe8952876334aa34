"""Reads the files of a report and of an export with Arrow, on an executor: one file for each task.

Memory holds one batch. *Failure*: `CorruptRecordError` names the file that cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from changelog.base.errors import CorruptRecordError
from changelog.base.runtime import SystemRuntime
from recovery.audit.directory import Files
from recovery.audit.inventory.report import DELETED
from tiered.bigtable.cells import EXPIRING, LEGACY_TOMBSTONE, MANUAL, METADATA, PAYLOAD, TARGET

BATCH = 20_000
_NUMBER = re.compile(r"[0-9]{1,18}")

LOOK_AGAIN = ""
"""The fault of a row of an export: what is wrong with it is read from the table."""


def read_report(shards: Sequence[str], form: str, delimiter: str, tells_deleted: bool, batches: Iterable[Any]) -> Iterator[Any]:
    """Yields the blobs of these shards: name, size, generation. `batches`: which of the shards.

    Rows without a name that is text, and rows about deleted blobs, are left out. A number that cannot be read is null.
    """
    for batch in _rows(shards, form, delimiter, tells_deleted, batches):
        name = _names(batch["name"])
        kept = pc.and_(pc.fill_null(pc.not_equal(name, ""), False), pc.invert(_is_deleted(batch)))
        yield pa.RecordBatch.from_pydict({
            "name": name, "size": _numbers(batch["size"]), "generation": _numbers(batch["generation"]),
        }).filter(kept)  # fmt: skip


def _rows(shards: Sequence[str], form: str, delimiter: str, tells_deleted: bool, batches: Iterable[Any]) -> Iterator[Any]:
    """Yields all rows of these shards, as they are."""
    columns = ["bucket", "name", "size", "generation", *([DELETED] if tells_deleted else [])]
    for shard in _chosen(shards, batches):
        with _opened(shard) as file:
            yield from _csv(file, delimiter, columns) if form == "csv" else pq.ParquetFile(file).iter_batches(BATCH, columns=columns)


def look_over(shards: Sequence[str], form: str, delimiter: str, tells_deleted: bool, batches: Iterable[Any]) -> Iterator[Any]:
    """Yields one row for each shard: rows, nameless, deleted, bucketless, and the least and greatest `bucket`."""
    for number in (number for batch in batches for number in batch.column(0).to_pylist()):
        rows = nameless = deleted = bucketless = 0
        buckets: set[str] = set()
        for batch in _rows(shards, form, delimiter, tells_deleted, [pa.RecordBatch.from_pydict({"id": [number]})]):
            rows += batch.num_rows
            nameless += batch.num_rows - pc.sum(pc.fill_null(pc.not_equal(_names(batch["name"]), ""), False)).as_py()
            deleted += pc.sum(_is_deleted(batch)).as_py()
            bucketless += batch["bucket"].null_count
            buckets = {each for each in (*buckets, *pc.min_max(pc.cast(batch["bucket"], pa.string())).as_py().values()) if each is not None}
        ends = (min(buckets), max(buckets)) if buckets else (None, None)
        names = ("rows", "nameless", "deleted", "bucketless", "least", "greatest")
        yield pa.RecordBatch.from_pydict(
            {name: [value] for name, value in zip(names, (rows, nameless, deleted, bucketless, *ends), strict=True)},
            pa.schema([(name, pa.int64()) for name in names[:4]] + [(name, pa.string()) for name in names[4:]]),
        )


def _names(names: Any) -> Any:
    """Returns the names as text. What is no text is null."""
    try:
        return pc.cast(names, pa.string())
    except pa.ArrowInvalid:
        return pa.array([_decoded(name) for name in pc.cast(names, pa.binary()).to_pylist()], pa.string())


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


def read_export(files: Sequence[str], batches: Iterable[Any]) -> Iterator[Any]:
    """Yields the tombstones of these files: key, target, deadline_us, fault. `batches`: which of the files.

    `fault` is `LOOK_AGAIN` for a row that may mean two blobs. Such a row also yields both.
    """
    for path in _chosen(files, batches):
        with _opened(path) as file:
            for batch in pq.ParquetFile(file).iter_batches(BATCH, columns=["key", "cells"]):
                yield _tombstones(batch["key"], batch["cells"])


def _tombstones(keys: Any, cells: Any) -> Any:
    """Returns the tombstones of these rows.

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
    path = keys.take(pa.array(parents[chosen.to_numpy()]))
    target = value.take(chosen)
    at = pc.cast(pc.struct_field(flat, "timestamp"), pa.int64()).take(chosen)
    expires = pc.equal(pc.cast(family, pa.string()).take(chosen), EXPIRING)
    odd = np.flatnonzero((times > 0) & ~is_plain)
    odd = np.union1d(odd, np.unique(parents[legacy])).astype(np.int64)
    slow = [each for row in odd.tolist() for each in _row_by_row(keys[row].as_py(), cells[row].as_py())]
    columns = [
        pa.concat_arrays([pc.cast(found, kind), pa.array([each[place] for each in slow], kind)])
        for place, (found, kind) in enumerate((
            (path, pa.binary()), (pc.if_else(pc.equal(pc.binary_length(target), 0), path, target), pa.binary()),
            (pc.if_else(expires, at, pa.scalar(None, pa.int64())), pa.int64()), (pa.nulls(len(path), pa.string()), pa.string()),
        ))
    ]  # fmt: skip
    found = pa.RecordBatch.from_arrays(columns, names=["key", "target", "deadline_us", "fault"])
    return found.filter(pc.invert(pc.starts_with(found["key"], b"~")))


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
            told = newest.get((family, column))
            if told is None or (column == METADATA and (filled or not told["value"].startswith(LEGACY_TOMBSTONE))):
                continue
            deadline = told["timestamp"] if family == EXPIRING else None
            found.append((key, (told["value"] if column == TARGET else b"") or key, deadline, None))
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


def _chosen(files: Sequence[str], batches: Iterable[Any]) -> Iterator[str]:
    for batch in batches:
        yield from (files[number] for number in batch.column(0).to_pylist())


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    directory, _, name = path.rpartition("/")
    files = Files.at(directory, SystemRuntime())
    with files.explained("be read", name), files.filesystem.open_input_file(f"{files.path}/{name}") as file:
        try:
            yield file
        except pa.ArrowException as error:
            raise CorruptRecordError(f"{path} cannot be read ({' '.join(str(error).split())[:200]}): copy the report again") from None
