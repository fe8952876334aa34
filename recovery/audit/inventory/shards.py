"""Reads the files of a report and of an export with Arrow, on an executor: one file for each task.

Memory holds one batch. *Failure*: `CorruptRecordError` names the file that cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from changelog.base.errors import CorruptRecordError
from changelog.base.runtime import SystemRuntime
from recovery.audit.directory import Files
from recovery.audit.inventory.report import DELETED

BATCH = 20_000
CELLS = pa.list_(pa.struct([("family", pa.string()), ("qualifier", pa.binary()), ("at", pa.int64()), ("value", pa.binary())]))


def read_report(
    shards: Sequence[str], form: str, delimiter: str, tells_deleted: bool, batches: Iterable[Any]
) -> Iterator[Any]:
    """Yields the rows of these shards: bucket, name, size, generation, deleted. `batches`: which of the shards."""
    columns = ["bucket", "name", "size", "generation", *([DELETED] if tells_deleted else [])]
    for shard in _chosen(shards, batches):
        with _opened(shard) as file:
            for batch in _csv(file, delimiter, columns) if form == "csv" else pq.ParquetFile(file).iter_batches(BATCH, columns=columns):
                texts = {name: pc.cast(batch[name], pa.string()) for name in columns if name != "name"}
                deleted = texts.get(DELETED, pa.nulls(batch.num_rows, pa.string()))
                yield pa.RecordBatch.from_pydict({
                    "bucket": texts["bucket"], "name": pc.cast(batch["name"], pa.binary()), "size": texts["size"],
                    "generation": texts["generation"], "deleted": deleted,
                })  # fmt: skip


def read_export(files: Sequence[str], batches: Iterable[Any]) -> Iterator[Any]:
    """Yields the rows of these files: key, cells. `batches`: which of the files."""
    for path in _chosen(files, batches):
        with _opened(path) as file:
            for batch in pq.ParquetFile(file).iter_batches(BATCH, columns=["key", "cells"]):
                cells = batch["cells"]
                flat = cells.flatten()
                fields = [
                    pc.cast(pc.struct_field(flat, name), field.type)
                    for name, field in zip(("family", "qualifier", "timestamp", "value"), CELLS.value_type, strict=True)
                ]
                lengths = pc.fill_null(pc.list_value_length(cells), 0).to_numpy(zero_copy_only=False)
                offsets = pa.array([0, *lengths.cumsum().tolist()], pa.int32())
                inner = pa.StructArray.from_arrays(fields, fields=list(CELLS.value_type))
                yield pa.RecordBatch.from_arrays([batch["key"], pa.ListArray.from_arrays(offsets, inner)], names=["key", "cells"])


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
