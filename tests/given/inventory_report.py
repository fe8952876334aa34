"""Inventory reports as Google and S3 Inventory write them: shards of CSV or Parquet, and a manifest; and an export."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq

from changelog.base.runtime import SystemRuntime

NOW_NS = 1_790_000_000 * 10**9


class At(SystemRuntime):
    """The wall clock stands at `NOW_NS`."""

    def wall_ns(self) -> int:
        return NOW_NS


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


S3_CONFIG = "tiered-daily"
S3_FIELDS = {
    "Bucket": ("bucket", pa.string()), "Key": ("key", pa.string()), "VersionId": ("version_id", pa.string()),
    "IsLatest": ("is_latest", pa.bool_()), "IsDeleteMarker": ("is_delete_marker", pa.bool_()), "Size": ("size", pa.int64()),
    "LastModifiedDate": ("last_modified_date", pa.timestamp("ms", tz="UTC")), "ETag": ("e_tag", pa.string()),
    "StorageClass": ("storage_class", pa.string()),
}  # fmt: skip
S3_CURRENT = tuple(field for field in S3_FIELDS if field not in ("VersionId", "IsLatest", "IsDeleteMarker"))
"""The fields of a report of current versions."""


def s3_line(
    name: str | None, size: int | None = 20, tag: str | None = "3858f62230ac3c915f300c664312c63f", bucket: str = "b",
    created: datetime = datetime(2026, 11, 1, 2, 3, 4, 567000, UTC), latest: bool = True, marker: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """One row, by the fields of CSV."""
    return {
        "Bucket": bucket, "Key": name, "VersionId": "3HL4kqtJlcpXroDTDmJrmSpXd3dIbrHY", "IsLatest": latest, "IsDeleteMarker": marker,
        "Size": size, "LastModifiedDate": created, "ETag": tag, "StorageClass": "STANDARD",
    }  # fmt: skip


def write_s3_report(
    directory: Path, rows: Sequence[dict[str, Any]], snapshot_ns: int, *, form: str = "parquet", shards: int = 2, bucket: str = "b",
    fields: Sequence[str] = S3_CURRENT, prefix: str = "reports/", **told: Any,
) -> Path:  # fmt: skip
    """Writes a report of the configuration whose directory this is, and returns its manifest.

    `told`: what the manifest says otherwise; None: nothing.
    """
    at = datetime.fromtimestamp(snapshot_ns // 10**9, UTC)
    (directory / "data").mkdir(parents=True, exist_ok=True)
    (directory / f"{at:%Y-%m-%dT%H-%MZ}").mkdir(exist_ok=True)
    files = []
    for number in range(shards):
        name = f"{at:%Y%m%d%H%M}-{number}.{'csv.gz' if form == 'csv' else form}"
        part = [{field: row.get(field) for field in fields} for row in rows[number::shards]]
        stored = gzip.compress(_s3_csv(part), mtime=0) if form == "csv" else _s3_parquet(part, fields)
        (directory / "data" / name).write_bytes(stored)
        key = f"{prefix}{bucket}/{S3_CONFIG}/data/{name}"
        files.append({"key": key, "size": len(stored), "MD5checksum": hashlib.md5(stored).hexdigest()})
    parquet = f"message s3.inventory {{ {' '.join(f'optional binary {S3_FIELDS[field][0]};' for field in fields)} }}"
    manifest = {
        "sourceBucket": bucket, "destinationBucket": "arn:aws:s3:::reports", "version": "2016-11-30",
        "creationTimestamp": str(snapshot_ns // 10**6), "fileFormat": "CSV" if form == "csv" else "Parquet",
        "fileSchema": ", ".join(fields) if form == "csv" else parquet, "files": files, **told,
    }  # fmt: skip
    path = directory / f"{at:%Y-%m-%dT%H-%MZ}" / "manifest.json"
    path.write_text(json.dumps({key: value for key, value in manifest.items() if value is not None}))
    sign_s3_manifest(path)
    return path


def sign_s3_manifest(path: Path) -> None:
    """Writes the checksum of a manifest, as it is now."""
    path.with_name("manifest.checksum").write_text(f"{hashlib.md5(path.read_bytes()).hexdigest()}\n")


def rewrite_s3_shard(manifest: Path, shard: Path, stored: bytes) -> None:
    """Replaces a shard, as if the service had written it so."""
    shard.write_bytes(stored)
    told = json.loads(manifest.read_text())
    for each in told["files"]:
        if each["key"].endswith(f"/{shard.name}"):
            each |= {"size": len(stored), "MD5checksum": hashlib.md5(stored).hexdigest()}
    manifest.write_text(json.dumps(told))
    sign_s3_manifest(manifest)


def _s3_csv(rows: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([_s3_text(*each) for each in row.items()] for row in rows)
    return text.getvalue().encode()


def _s3_text(field: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, bool):
        return str(value).lower()
    return quote_plus(value, safe="/") if field == "Key" else str(value)


def _s3_parquet(rows: Sequence[dict[str, Any]], fields: Sequence[str]) -> bytes:
    columns = {S3_FIELDS[field][0]: pa.array([row[field] for row in rows], S3_FIELDS[field][1]) for field in fields}
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def write_export(path: Path, rows: dict[bytes, list[tuple[str, bytes, int, bytes]]]) -> str:
    """Writes an export of the table. `rows`: by key, the cells of each: family, column, microseconds, value."""
    cells = [[dict(zip(("family", "qualifier", "timestamp", "value"), cell, strict=True)) for cell in each] for each in rows.values()]
    path.mkdir(exist_ok=True)
    pq.write_table(pa.table({"key": pa.array(list(rows), pa.binary()), "cells": pa.array(cells, pa.list_(CELL))}), path / "part-0.parquet")
    return str(path)
