"""Reports of Google Cloud Storage (Storage Insights): the manifest, and what the columns tell.

    DIRECTORY/{report config's UUID}_{YYYY-MM-DDTHH:MM}_manifest.json
    DIRECTORY/{report config's UUID}_{YYYY-MM-DDTHH:MM}_{shard}.csv | .parquet

The manifest is JSON: `report_config` (how the report was ordered), `records_processed` (rows in all shards together),
`snapshot_time` (RFC 3339: all rows are of that moment), `shard_count` and `report_shards_file_names` (the names of the
shards, which lie beside the manifest). docs/audit.md says what of this was verified.

*Failure*: as of `report.py`. This module only reads.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import Runtime
from recovery.audit.files.directory import DirectoryFiles
from recovery.audit.inventory.arrays import numbers, texts
from recovery.audit.inventory.report import (
    BUCKET,
    SIZE,
    InventoryReport,
    ReportColumns,
    another_bucket,
    check_age,
    check_columns,
    check_count,
    footer_of,
    parse_manifest,
    without_shards,
    wrong_field,
)
from recovery.audit.manifest import Inventory
from recovery.display import count
from tiered.metadata import NS_PER_S

NAME, GENERATION, DELETED = "name", "generation", "timeDeleted"
COLUMNS = (BUCKET, NAME, SIZE, GENERATION, "timeCreated")
"""What a report must have. `timeDeleted` is used, too, if it is there: rows with it are no live blobs."""

HEADER_BYTES = 64 * 1024
MANIFEST_ENDS = "manifest.json"
_FRACTION = re.compile(r"\.(\d{6})\d+")


def _generations(batch: Any) -> Any:
    return pc.cast(numbers(batch[GENERATION]), pa.string())


def _gone(batch: Any) -> Any:
    return pc.is_valid(batch[DELETED]) if DELETED in batch.schema.names else pa.array([False] * batch.num_rows)


def _notes(columns: Sequence[str]) -> Iterator[str]:
    if DELETED not in columns:
        yield (
            f"the inventory report has no column {DELETED}: if the bucket keeps noncurrent generations, a blob that was deleted may"
            " be among those of the report"
        )


TOLD = ReportColumns(
    NAME, (BUCKET, NAME, SIZE, GENERATION, DELETED), (BUCKET, NAME, DELETED), texts, _generations, _gone, _notes, has_header=True,
    on_repeats=f"if the bucket keeps noncurrent generations, order the report with the column {DELETED}",
)  # fmt: skip


def open_report(where: str, bucket: str, runtime: Runtime, *, prefix: str = "", insist: bool = False) -> InventoryReport:
    """Returns the report of a manifest, or the newest report of a directory.

    `where`: a path or a URI. `bucket`, `prefix`: what is audited. `insist`: take a report that is older than
    `AGE_MAX_S`.
    """
    files, name = _find(where, runtime)
    manifest = f"{files.uri}/{name}"
    report = parse_manifest(files.read(name), manifest)
    snapshot_ns = _snapshot_ns(report, manifest)
    check_age(snapshot_ns, runtime.wall_ns(), manifest, insist)
    _check_bucket(report, bucket, manifest)
    shards, records = _shards(report, manifest), _records(report, manifest)
    form = _form(shards, manifest)
    _check_there(files, shards, manifest)
    delimiter = _delimiter(report)
    order = f"order the report with {', '.join(COLUMNS)}{' and a header' if form == 'csv' else ''}"
    found = [(f"{files.uri}/{shard}", _header(files, shard, form, delimiter)) for shard in shards]
    columns = check_columns(found, COLUMNS, order, manifest)
    if form == "parquet":
        check_count(sum(footer_of(files, shard).num_rows for shard in shards), records, manifest)
    evidence = Inventory(report=manifest, snapshot_ns=snapshot_ns, records=records)
    return InventoryReport(tuple(shard for shard, _ in found), form, columns, delimiter, records, evidence, TOLD, prefix)


# --- the manifest ----------------------------------------------------------------------------------


def _find(where: str, runtime: Runtime) -> tuple[DirectoryFiles, str]:
    """Returns the directory of the report, and the name of its manifest in it."""
    if where.endswith(".json"):
        directory, _, name = where.rpartition("/")
        files = DirectoryFiles.at(directory or ".", runtime)
        return files, name
    files = DirectoryFiles.at(where.rstrip("/"), runtime)
    manifests = [seen.name for seen in files.list() if seen.name.endswith(MANIFEST_ENDS)]
    if not manifests:
        raise ConfigurationError(f"{files.uri} holds no *{MANIFEST_ENDS} of an inventory report: name the manifest, or its directory")
    return files, max(manifests, key=lambda name: (_told_ns(files, name), name))


def _told_ns(files: DirectoryFiles, name: str) -> int:
    manifest = f"{files.uri}/{name}"
    return _snapshot_ns(parse_manifest(files.read(name), manifest), manifest)


def _snapshot_ns(told: dict[str, Any], manifest: str) -> int:
    text = told.get("snapshot_time")
    try:
        at = datetime.fromisoformat(_FRACTION.sub(r".\1", text)) if isinstance(text, str) else None
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise wrong_field(manifest, "snapshot_time", "a time such as 2026-11-21T05:00:00Z")
    return round(at.timestamp() * NS_PER_S)


def _records(told: dict[str, Any], manifest: str) -> int:
    records = told.get("records_processed")
    if isinstance(records, str) and records.isdecimal():  # numbers of 64 bits may be written as text
        records = int(records)
    if type(records) is not int or records < 0:
        raise wrong_field(manifest, "records_processed", "a number of rows")
    return records


def _shards(told: dict[str, Any], manifest: str) -> list[str]:
    names = told.get("report_shards_file_names")
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise wrong_field(manifest, "report_shards_file_names", "a list of names of files")
    shards = [PurePosixPath(name).name for name in names]
    told_count = told.get("shard_count", len(shards))
    if str(told_count) != str(len(shards)) or len(set(shards)) != len(shards):
        raise ConfigurationError(
            f"{manifest} does not fit itself: it tells {told_count} shards and names {len(set(shards))}: copy the whole report again"
        )
    if not shards:
        raise without_shards(manifest)
    return shards


def _form(shards: Sequence[str], manifest: str) -> str:
    forms = {PurePosixPath(shard).suffix.lower().lstrip(".") for shard in shards}
    if len(forms) != 1 or not forms <= {"csv", "parquet"}:
        raise ConfigurationError(f"{manifest} names shards that are not all .csv or all .parquet: order the report in one of the two")
    return forms.pop()


def _check_bucket(told: dict[str, Any], bucket: str, manifest: str) -> None:
    """Checks the bucket where the manifest tells it. The rows tell it in any case."""
    found = told.get("report_config")
    for key in ("object_metadata_report_options", "storage_filters", "bucket"):
        found = found.get(key) if isinstance(found, dict) else None
    if isinstance(found, str) and found.removeprefix("gs://").rstrip("/") != bucket:
        raise another_bucket(manifest, found, bucket)


def _delimiter(told: dict[str, Any]) -> str:
    config = told.get("report_config")
    options = config.get("csv_options") if isinstance(config, dict) else None
    delimiter = options.get("delimiter") if isinstance(options, dict) else None
    return delimiter if isinstance(delimiter, str) and len(delimiter) == 1 else ","


# --- the shards ------------------------------------------------------------------------------------


def _check_there(files: DirectoryFiles, shards: Sequence[str], manifest: str) -> None:
    there = {seen.name for seen in files.list()}
    if absent := [shard for shard in shards if shard not in there]:
        raise ConfigurationError(
            f"{manifest} names {count(len(shards), 'shard')}, and {len(absent)} of them {'is' if len(absent) == 1 else 'are'} not beside it"
            f" (such as {absent[0]}): copy the whole report"
        )


def _header(files: DirectoryFiles, shard: str, form: str, delimiter: str) -> tuple[str, ...]:
    if form == "parquet":
        return tuple(footer_of(files, shard).schema.to_arrow_schema().names)
    with files.explained("be read", shard), files.filesystem.open_input_file(f"{files.path}/{shard}") as file:
        text = bytes(file.read(HEADER_BYTES)).decode("utf-8-sig", errors="replace")
    return tuple(next(csv.reader([text.splitlines()[0]], delimiter=delimiter))) if text else ()
