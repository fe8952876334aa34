"""Reads the manifest of an inventory report (Storage Insights of Google Cloud Storage), and checks its shards.

    DIRECTORY/{report config's UUID}_{YYYY-MM-DDTHH:MM}_manifest.json
    DIRECTORY/{report config's UUID}_{YYYY-MM-DDTHH:MM}_{shard}.csv | .parquet

The manifest is JSON: `report_config` (how the report was ordered), `records_processed` (rows in all shards together),
`snapshot_time` (RFC 3339: all rows are of that moment), `shard_count` and `report_shards_file_names` (the names of the
shards, which lie beside the manifest). docs/audit.md says what of this was verified.

A report that does not fit itself is refused here, before anything is compared: a shard that is absent or that the
manifest does not name, columns that are missing, rows that are missing. A report on Parquet has its rows counted here,
from the footers. Rows of CSV are counted by `recovery.audit.inventory.join`.

*Failure*: `ConfigurationError` with the fix, or `UnavailableError`. This module only reads.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import Runtime
from recovery.audit.files.directory import DirectoryFiles
from recovery.audit.manifest import Inventory
from recovery.audit.sweeping.judge import SKEW_MAX_NS
from recovery.display import count, moment, span
from tiered.metadata import NS_PER_S

COLUMNS = ("bucket", "name", "size", "generation", "timeCreated")
"""What a report must have. `timeDeleted` is used, too, if it is there: rows with it are no live blobs."""
DELETED = "timeDeleted"

AGE_MAX_S = 7 * 86_400.0
"""A report that is older than this is refused. Nothing may be deleted because of a run that is older than this."""

HEADER_BYTES = 64 * 1024
MANIFEST_ENDS = "manifest.json"
_FRACTION = re.compile(r"\.(\d{6})\d+")


@dataclass(frozen=True, slots=True)
class InventoryReport:
    """A report that fits itself. `shards`: URIs or paths. `delimiter`: of CSV. `records`: how many rows it must have.

    `columns`: those of the shards. `evidence`: what the manifest of a run keeps of it. `prefix`: how the names of the
    store's blobs begin in the bucket (`gcs.prefix`).
    """

    shards: tuple[str, ...]
    form: str
    columns: tuple[str, ...]
    delimiter: str
    records: int
    evidence: Inventory
    prefix: str = ""


def open_report(where: str, bucket: str, runtime: Runtime, *, prefix: str = "", insist: bool = False) -> InventoryReport:
    """Returns the report of a manifest, or the newest report of a directory.

    `where`: a path or a URI. `bucket`, `prefix`: what is audited. `insist`: take a report that is older than
    `AGE_MAX_S`.
    """
    files, name = _find(where, runtime)
    report = _parse(files, name)
    manifest = f"{files.uri}/{name}"
    snapshot_ns = _snapshot_ns(report, manifest)
    _check_age(snapshot_ns, runtime.wall_ns(), manifest, insist)
    _check_bucket(report, bucket, manifest)
    shards, records = _shards(report, manifest), _records(report, manifest)
    form = _form(shards, manifest)
    _check_there(files, shards, manifest)
    delimiter = _delimiter(report)
    columns = _columns(files, shards, form, delimiter, manifest)
    if form == "parquet":
        _check_rows(sum(_footer(files, shard).num_rows for shard in shards), records, manifest)
    evidence = Inventory(report=manifest, snapshot_ns=snapshot_ns, records=records)
    return InventoryReport(tuple(f"{files.uri}/{shard}" for shard in shards), form, columns, delimiter, records, evidence, prefix)


def check_rows(report: InventoryReport, rows: int) -> None:
    """Refuses a report whose shards do not have the rows that its manifest tells."""
    _check_rows(rows, report.records, report.evidence.report)


def check_buckets(report: InventoryReport, least: str | None, greatest: str | None, bucket: str) -> None:
    """Refuses a report of another bucket. `least`, `greatest`: of the column `bucket`."""
    for found in (least, greatest):
        if found is not None and found != bucket:
            raise _another_bucket(report.evidence.report, found, bucket)


def check_repeats(report: InventoryReport, looked: Iterable[tuple[int, int, Sequence[int]]]) -> None:
    """Refuses shards that list a blob again: another shard may be missing in their place.

    `looked`: of each shard its number, how many of its blobs it lists again, and the least hashes of its names. Shards
    of up to `SKETCH` blobs are compared whole. Of larger ones, a few blobs that two have in common are not noticed.
    """
    seen: dict[int, int] = {}
    for shard, repeated, sketch in looked:
        name = report.shards[shard]
        if repeated:
            raise ConfigurationError(
                f"{name} lists {count(repeated, 'blob')} more than once: copy the whole report again; if the bucket keeps noncurrent"
                f" generations, order the report with the column {DELETED}"
            )
        for other in {seen[each] for each in sketch if each in seen}:
            raise ConfigurationError(
                f"{report.shards[other]} and {name} list the same blobs, so others may be missing from the report: copy the whole report"
                f" again; if the bucket keeps noncurrent generations, order it with the column {DELETED}"
            )
        seen |= dict.fromkeys(sketch, shard)


def open_export(where: str, runtime: Runtime) -> tuple[str, ...]:
    """Returns the files of a Bigtable export as Parquet: all `*.parquet` of a directory.

    The columns are those of Google's Dataflow template *Cloud Bigtable to Cloud Storage Parquet*: `key` (binary) and
    `cells`, a list of structs with `family` (string), `qualifier` (binary), `timestamp` (microseconds) and `value`
    (binary).
    """
    files = DirectoryFiles.at(where.rstrip("/"), runtime)
    names = [seen.name for seen in files.list() if seen.name.endswith(".parquet") and not seen.name.startswith((".", "_"))]
    if not names:
        raise ConfigurationError(f"{files.uri} holds no *.parquet of a Bigtable export: name its directory, or leave --export out")
    for name in names:
        schema = _footer(files, name).schema.to_arrow_schema()
        if not _is_export(schema):
            raise ConfigurationError(
                f"{files.uri}/{name} is no Bigtable export: it must have key (binary) and cells (a list of family, qualifier, timestamp"
                f" and value), and has {', '.join(f'{field.name} ({field.type})' for field in schema)}: use Google's template"
            )
    return tuple(f"{files.uri}/{name}" for name in names)


def _is_export(schema: Any) -> bool:
    kinds = {field.name: field.type for field in schema}
    cells = kinds.get("cells")
    if cells is None or kinds.get("key") != pa.binary() or not pa.types.is_list(cells) or not pa.types.is_struct(cells.value_type):
        return False
    return {"family", "qualifier", "timestamp", "value"} <= {field.name for field in cells.value_type}


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
    return files, max(manifests, key=lambda name: (_snapshot_ns(_parse(files, name), f"{files.uri}/{name}"), name))


def _parse(files: DirectoryFiles, name: str) -> dict[str, Any]:
    text = files.read(name)
    if text is None:
        raise ConfigurationError(f"{files.uri}/{name} does not exist: name the manifest of an inventory report, or its directory")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ConfigurationError(f"{files.uri}/{name} is no manifest of an inventory report: it is no JSON object")
    return fields


def _wrong(manifest: str, key: str, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{manifest} is no manifest of an inventory report: {key} is not {wanted}")


def _snapshot_ns(told: dict[str, Any], manifest: str) -> int:
    text = told.get("snapshot_time")
    try:
        at = datetime.fromisoformat(_FRACTION.sub(r".\1", text)) if isinstance(text, str) else None
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise _wrong(manifest, "snapshot_time", "a time such as 2026-11-21T05:00:00Z")
    return round(at.timestamp() * NS_PER_S)


def _records(told: dict[str, Any], manifest: str) -> int:
    records = told.get("records_processed")
    if isinstance(records, str) and records.isdecimal():  # numbers of 64 bits may be written as text
        records = int(records)
    if type(records) is not int or records < 0:
        raise _wrong(manifest, "records_processed", "a number of rows")
    return records


def _shards(told: dict[str, Any], manifest: str) -> list[str]:
    names = told.get("report_shards_file_names")
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise _wrong(manifest, "report_shards_file_names", "a list of names of files")
    shards = [PurePosixPath(name).name for name in names]
    told_count = told.get("shard_count", len(shards))
    if str(told_count) != str(len(shards)) or len(set(shards)) != len(shards):
        raise ConfigurationError(
            f"{manifest} does not fit itself: it tells {told_count} shards and names {len(set(shards))}: copy the whole report again"
        )
    if not shards:
        raise ConfigurationError(f"{manifest} names no shard, so the report shows nothing of the bucket: use another report")
    return shards


def _form(shards: Sequence[str], manifest: str) -> str:
    forms = {PurePosixPath(shard).suffix.lower().lstrip(".") for shard in shards}
    if len(forms) != 1 or not forms <= {"csv", "parquet"}:
        raise ConfigurationError(f"{manifest} names shards that are not all .csv or all .parquet: order the report in one of the two")
    return forms.pop()


def _check_age(snapshot_ns: int, now_ns: int, manifest: str, insist: bool) -> None:
    age_s = (now_ns - snapshot_ns) / NS_PER_S
    if snapshot_ns > now_ns + SKEW_MAX_NS:
        raise ConfigurationError(f"{manifest} is of {moment(snapshot_ns)}, which is in the future: check the clock of this machine")
    if age_s > AGE_MAX_S and not insist:
        raise ConfigurationError(
            f"{manifest} is of {moment(snapshot_ns)}, and a report that is older than {span(AGE_MAX_S)} says little of the bucket now:"
            " use a newer one, or insist on it (--insist)"
        )


def _check_bucket(told: dict[str, Any], bucket: str, manifest: str) -> None:
    """Checks the bucket where the manifest tells it. The rows tell it in any case."""
    found = told.get("report_config")
    for key in ("object_metadata_report_options", "storage_filters", "bucket"):
        found = found.get(key) if isinstance(found, dict) else None
    if isinstance(found, str) and found.removeprefix("gs://").rstrip("/") != bucket:
        raise _another_bucket(manifest, found, bucket)


def _another_bucket(manifest: str, found: str, bucket: str) -> ConfigurationError:
    return ConfigurationError(f"{manifest} is a report of the bucket {found}, and the store is in {bucket}: give a report of {bucket}")


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


def _columns(files: DirectoryFiles, shards: Sequence[str], form: str, delimiter: str, manifest: str) -> tuple[str, ...]:
    """Returns the columns of the shards, which must be the same in all of them."""
    found = [_header(files, shard, form, delimiter) for shard in shards]
    for shard, columns in zip(shards, found, strict=True):
        if missing := [column for column in COLUMNS if column not in columns]:
            raise ConfigurationError(
                f"{files.uri}/{shard} has no column {missing[0]} (its columns are {', '.join(columns)}): the report must have"
                f" {', '.join(COLUMNS)}{' and a header' if form == 'csv' else ''}; change its configuration and use the next report"
            )
        if columns != found[0]:
            raise ConfigurationError(f"{manifest} does not fit itself: {shard} has other columns than {shards[0]}: copy the report again")
    return found[0]


def _header(files: DirectoryFiles, shard: str, form: str, delimiter: str) -> tuple[str, ...]:
    if form == "parquet":
        return tuple(_footer(files, shard).schema.to_arrow_schema().names)
    with files.explained("be read", shard), files.filesystem.open_input_file(f"{files.path}/{shard}") as file:
        text = bytes(file.read(HEADER_BYTES)).decode("utf-8-sig", errors="replace")
    return tuple(next(csv.reader([text.splitlines()[0]], delimiter=delimiter))) if text else ()


def _footer(files: DirectoryFiles, shard: str) -> Any:
    with files.explained("be read", shard):
        try:
            return pq.read_metadata(f"{files.path}/{shard}", filesystem=files.filesystem)
        except pa.ArrowInvalid:
            raise ConfigurationError(f"{files.uri}/{shard} is cut off, or no Parquet file: copy the report again") from None


def _check_rows(rows: int, records: int, manifest: str) -> None:
    if rows != records:
        raise ConfigurationError(f"{manifest} tells {count(records, 'row')}, and its shards have {rows:,}: copy the whole report again")
