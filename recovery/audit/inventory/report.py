"""An inventory report that fits itself, whichever service wrote it; what is checked of every one; and exports.

    insights.py, s3.py   read the manifest of their service, and say what its columns tell  ->  InventoryReport
    shards.py            reads the shards of any `InventoryReport`

A report that does not fit itself is refused before anything is compared: a shard that is absent or damaged, columns or
rows that are missing, another bucket, blobs that are listed twice. Rows on Parquet are counted where the manifest is
read, from the footers. Rows of CSV, checksums and names are looked at by `recovery.audit.inventory.join`.

*Failure*: `ConfigurationError` with the fix, or `UnavailableError`. This module only reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from tiered.protocol.owners import OWNERS

AGE_MAX_S = 7 * 86_400.0
"""A report that is older than this is refused. Nothing may be deleted because of a run that is older than this."""

BUCKET, SIZE = "bucket", "size"
"""Columns that reports of all services have under these names."""


@dataclass(frozen=True, slots=True)
class ReportColumns:
    """What the columns of a service's reports tell. Its functions are those of a module: they go to executors.

    `name`: the column with a blob's name. `used`: the columns that are read, if they are there; `looked`: those that
    are looked over before. `has_header`: of CSV. `beside`: how names begin, after the store's prefix, that the adapter
    keeps beside its blobs. `on_repeats`: what to do if a blob is listed twice, besides copying the report again.

    `names`: the names of the column `name`; null: it is no name, or no text. Of a batch of rows, `generations`: as the
    adapter tells them, null: not known; `gone`: whether each row is about a blob that was deleted or replaced. `notes`:
    what a report with these columns cannot tell.
    """

    name: str
    used: tuple[str, ...]
    looked: tuple[str, ...]
    names: Callable[[Any], Any]
    generations: Callable[[Any], Any]
    gone: Callable[[Any], Any]
    notes: Callable[[Sequence[str]], Iterable[str]]
    has_header: bool = False
    beside: tuple[str, ...] = ()
    on_repeats: str = ""


@dataclass(frozen=True, slots=True)
class InventoryReport:
    """A report that fits itself. `shards`: URIs or paths. `form`: `csv` or `parquet`. `delimiter`: of CSV.

    `columns`: those of the shards, in their order; `told`: what they mean. `records`: how many rows it must have; None:
    its manifest does not tell. `evidence`: what the manifest of a run keeps of it. `prefix`: how the names of the
    store's blobs begin in the bucket. `sums`: the MD5 of each shard, in hexadecimal digits; empty: not told.
    """

    shards: tuple[str, ...]
    form: str
    columns: tuple[str, ...]
    delimiter: str
    records: int | None
    evidence: Inventory
    told: ReportColumns
    prefix: str = ""
    sums: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportSummary:
    """What one pass over a report told, in numbers of rows.

    `nameless`: without a name that is text. `deleted`: about blobs that were deleted or replaced. `shown`: about blobs
    of the store. `owners`: about the markers of owners. `least`, `greatest`: of the column `bucket`.
    """

    rows: int
    nameless: int
    deleted: int
    shown: int
    owners: int
    least: str | None
    greatest: str | None


# --- what was looked at ----------------------------------------------------------------------------


def check_rows(report: InventoryReport, rows: int) -> None:
    """Refuses a report whose shards do not have the rows that its manifest tells."""
    if report.records is not None:
        check_count(rows, report.records, report.evidence.report)


def check_buckets(report: InventoryReport, least: str | None, greatest: str | None, bucket: str) -> None:
    """Refuses a report of another bucket. `least`, `greatest`: of the column `bucket`."""
    for found in (least, greatest):
        if found is not None and found != bucket:
            raise another_bucket(report.evidence.report, found, bucket)


def check_sums(report: InventoryReport, looked: Iterable[tuple[int, str | None]]) -> None:
    """Refuses shards that are not those that the manifest tells. `looked`: of each shard its number and its MD5."""
    for shard, found in looked:
        if report.sums and found != report.sums[shard]:
            raise ConfigurationError(
                f"{report.shards[shard]} has the MD5 {found}, and {report.evidence.report} tells {report.sums[shard]}: it was damaged, or"
                " is of another report; copy the whole report again"
            )


def check_repeats(report: InventoryReport, looked: Iterable[tuple[int, int, Sequence[int]]]) -> None:
    """Refuses shards that list a blob again: another shard may be missing in their place.

    `looked`: of each shard its number, how many of its blobs it lists again, and the hashes of some names. Shards of up
    to `SKETCH` blobs are compared whole. Of larger ones, a few blobs that two have in common are not noticed.
    """
    seen: dict[int, int] = {}
    fix = f": copy the whole report again{report.told.on_repeats and f'; {report.told.on_repeats}'}"
    for shard, repeated, sketch in looked:
        name = report.shards[shard]
        if repeated:
            raise ConfigurationError(f"{name} lists {count(repeated, 'blob')} more than once{fix}")
        for other in {seen[each] for each in sketch if each in seen}:
            raise ConfigurationError(
                f"{report.shards[other]} and {name} list the same blobs, so others may be missing from the report{fix}"
            )
        seen |= dict.fromkeys(sketch, shard)


def oddities(report: InventoryReport, seen: ReportSummary) -> Iterator[str]:
    """Yields what is odd about a report, and no reason to refuse it."""
    if seen.nameless:
        yield f"left out {count(seen.nameless, 'row')} of the inventory report without a name that is text"
    if seen.deleted:
        yield f"left out {count(seen.deleted, 'row')} of the inventory report about blobs that had been deleted or replaced"
    yield from report.told.notes(report.columns)
    if seen.rows == seen.nameless + seen.deleted:
        yield "the inventory report shows no blob at all"
    elif not seen.shown and report.prefix:
        yield f"the inventory report shows no blob whose name begins with {report.prefix}: was it ordered for other names?"
    elif not seen.owners and not report.prefix:
        yield (
            f"the inventory report lists nothing below {OWNERS}, where a bucket says whose blobs it holds: if it was ordered for a prefix,"
            " only blobs with that prefix were audited"
        )


# --- what every manifest is checked for ------------------------------------------------------------


def parse_manifest(text: bytes | None, manifest: str) -> dict[str, Any]:
    """Returns the fields of a manifest. `text`: None: there is no such file."""
    if text is None:
        raise ConfigurationError(f"{manifest} does not exist: name the manifest of an inventory report, or its directory")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ConfigurationError(f"{manifest} is no manifest of an inventory report: it is no JSON object")
    return fields


def wrong_field(manifest: str, key: str, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{manifest} is no manifest of an inventory report: {key} is not {wanted}")


def check_age(snapshot_ns: int, now_ns: int, manifest: str, insist: bool) -> None:
    age_s = (now_ns - snapshot_ns) / NS_PER_S
    if snapshot_ns > now_ns + SKEW_MAX_NS:
        raise ConfigurationError(f"{manifest} is of {moment(snapshot_ns)}, which is in the future: check the clock of this machine")
    if age_s > AGE_MAX_S and not insist:
        raise ConfigurationError(
            f"{manifest} is of {moment(snapshot_ns)}, and a report that is older than {span(AGE_MAX_S)} says little of the bucket now:"
            " use a newer one, or insist on it (--insist)"
        )


def another_bucket(manifest: str, found: str, bucket: str) -> ConfigurationError:
    return ConfigurationError(f"{manifest} is a report of the bucket {found}, and the store is in {bucket}: give a report of {bucket}")


def without_shards(manifest: str) -> ConfigurationError:
    return ConfigurationError(f"{manifest} names no shard, so the report shows nothing of the bucket: use another report")


def check_columns(found: Sequence[tuple[str, tuple[str, ...]]], needed: Sequence[str], order: str, manifest: str) -> tuple[str, ...]:
    """Returns the columns of the shards, which must be the same in all of them. `found`: of each shard its columns.

    `order`: how to order a report that has what is needed.
    """
    first, columns = found[0]
    for shard, has in found:
        if missing := [column for column in needed if column not in has]:
            raise ConfigurationError(
                f"{shard} has no column {missing[0]} (its columns are {', '.join(has)}): {order}, and use the next report"
            )
        if has != columns:
            raise ConfigurationError(
                f"{manifest} does not fit itself: {shard.rpartition('/')[2]} has other columns than {first.rpartition('/')[2]}: copy the"
                " report again"
            )
    return columns


def check_count(rows: int, records: int, manifest: str) -> None:
    if rows != records:
        raise ConfigurationError(f"{manifest} tells {count(records, 'row')}, and its shards have {rows:,}: copy the whole report again")


def footer_of(files: DirectoryFiles, shard: str) -> Any:
    """Returns the footer of a Parquet file: its columns, and how many rows it has."""
    with files.explained("be read", shard):
        try:
            return pq.read_metadata(f"{files.path}/{shard}", filesystem=files.filesystem)
        except pa.ArrowInvalid:
            raise ConfigurationError(f"{files.uri}/{shard} is cut off, or no Parquet file: copy the report again") from None


# --- exports ---------------------------------------------------------------------------------------


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
        schema = footer_of(files, name).schema.to_arrow_schema()
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
