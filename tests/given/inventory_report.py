"""An inventory report as Google writes it: shards of CSV or Parquet, and the manifest beside them; and an export."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

CONFIG = "0b9f9a2e-6b1f-4c52-9d6b-3d6a4a0a7c11"
FIELDS = ("project", "bucket", "name", "size", "timeCreated", "timeDeleted", "generation", "storageClass")
TIME = pa.timestamp("us", tz="UTC")
CELL = pa.struct([("family", pa.string()), ("qualifier", pa.binary()), ("timestamp", pa.int64()), ("value", pa.binary())])
TYPES = {"size": pa.int64(), "generation": pa.int64(), "timeCreated": TIME, "timeDeleted": TIME}


def line(
    name: str | None, size: int | None = 20, generation: int | str | None = 7, bucket: str = "b", deleted: bool = False
) -> dict[str, Any]:
    """One row. All blobs were created at the same time."""
    at = datetime(2026, 11, 1, tzinfo=UTC)
    return {
        "project": "p", "bucket": bucket, "name": name, "size": size, "timeCreated": at, "timeDeleted": at if deleted else None,
        "generation": None if generation is None else int(generation), "storageClass": "STANDARD",
    }  # fmt: skip


def write_report(
    directory: Path, rows: Sequence[dict[str, Any]], snapshot_ns: int, *, form: str = "parquet", shards: int = 2,
    fields: Sequence[str] = FIELDS, **told: Any,
) -> Path:  # fmt: skip
    """Writes the report and returns its manifest. `told`: what the manifest says otherwise; None: nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    at = datetime.fromtimestamp(snapshot_ns // 10**9, UTC)
    stem = f"{CONFIG}_{at:%Y-%m-%dT%H:%M}"
    names = [f"{stem}_{number}.{form}" for number in range(shards)]
    for number, name in enumerate(names):
        part = [{field: row.get(field) for field in fields} for row in rows[number::shards]]
        if form == "parquet":
            columns = {field: pa.array([row[field] for row in part], TYPES.get(field, pa.string())) for field in fields}
            pq.write_table(pa.table(columns), directory / name)
            continue
        with (directory / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, fields, lineterminator="\n")
            writer.writeheader()
            writer.writerows({key: _text(value) for key, value in row.items()} for row in part)
    manifest = {
        "report_config": {"display_name": "daily", "csv_options": {"delimiter": ",", "header_required": True}},
        "records_processed": len(rows), "snapshot_time": at.isoformat().replace("+00:00", "Z"), "shard_count": shards,
        "report_shards_file_names": names, **told,
    }  # fmt: skip
    path = directory / f"{stem}_manifest.json"
    path.write_text(json.dumps({key: value for key, value in manifest.items() if value is not None}))
    return path


def _text(value: Any) -> Any:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


def write_export(path: Path, rows: dict[bytes, list[tuple[str, bytes, int, bytes]]]) -> str:
    """Writes an export of the table. `rows`: by key, the cells of each: family, column, microseconds, value."""
    cells = [[dict(zip(("family", "qualifier", "timestamp", "value"), cell, strict=True)) for cell in each] for each in rows.values()]
    path.mkdir(exist_ok=True)
    pq.write_table(pa.table({"key": pa.array(list(rows), pa.binary()), "cells": pa.array(cells, pa.list_(CELL))}), path / "part-0.parquet")
    return str(path)
