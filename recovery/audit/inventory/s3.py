"""Reports of S3 Inventory: the manifest, and what the columns tell.

    {prefix}/{bucket}/{configuration}/{YYYY-MM-DDTHH-MMZ}/manifest.json
    {prefix}/{bucket}/{configuration}/{YYYY-MM-DDTHH-MMZ}/manifest.checksum    its MD5; it is written last
    {prefix}/{bucket}/{configuration}/data/{UUID}.csv.gz | .parquet            of all reports of the configuration

The manifest is JSON: `sourceBucket`, `destinationBucket` (an ARN), `creationTimestamp` (Unix ms as text: when the
report was begun), `fileFormat`, `fileSchema`, and `files`: of each `key` (in the destination), `size`, `MD5checksum`.
It tells no number of rows. CSV has no header: `fileSchema` names the columns. Its keys are encoded as those of a form:
a space is a plus sign. Parquet has the same columns, named in lower case with underscores, and its keys as they are.
Here columns have their Parquet names. With all versions, `IsLatest` and `IsDeleteMarker` say which rows are about
blobs that are there.

A generation is what the adapter tells: the tag and the second of creation. Beside the blobs the adapter keeps deadlines
(`~t/`), late metadata (`~m/`) and probes. They are no blobs, and no listing shows them. A blob's deadline is asked when
it is judged. A listing by the service is made little by little while the bucket changes, and may lack what came last.

*Failure*: as of `report.py`. This module only reads.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import pyarrow as pa
import pyarrow.compute as pc

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import Runtime
from recovery.audit.files.directory import DirectoryFiles
from recovery.audit.inventory.arrays import decoded, texts
from recovery.audit.inventory.report import (
    BUCKET,
    SIZE,
    InventoryReport,
    ReportColumns,
    another_bucket,
    check_age,
    check_columns,
    footer_of,
    parse_manifest,
    without_shards,
    wrong_field,
)
from recovery.audit.manifest import Inventory
from recovery.display import count
from tiered.metadata import DEADLINE_MAX_NS, NS_PER_MS
from tiered.s3.format import AMENDED, MARKERS, PROBES

WHAT = "the inventory report"
MANIFEST, CHECKSUM = "manifest.json", "manifest.checksum"
KEY, CREATED, TAG, LATEST, MARKER, VERSION = "key", "last_modified_date", "e_tag", "is_latest", "is_delete_marker", "version_id"
NAMED = {
    "Bucket": BUCKET, "Key": KEY, "Size": SIZE, "LastModifiedDate": CREATED, "ETag": TAG, "VersionId": VERSION, "IsLatest": LATEST,
    "IsDeleteMarker": MARKER,
}  # fmt: skip
"""The columns of CSV that are read, and those of Parquet."""
NEEDED = (BUCKET, KEY, SIZE, CREATED, TAG)
OF_VERSIONS = (LATEST, MARKER)
"""Needed, too, if the report has `version_id`: it lists all versions."""
ORDER = "order the report with the fields Size, LastModifiedDate and ETag"

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}-\d{2}Z")
_SUM = re.compile(r"[0-9a-f]{32}")
_ENCODED = r"[%+]"
_BROKEN = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_MS_PER_S = 1000


# --- what the columns tell -------------------------------------------------------------------------


def generations(batch: Any) -> Any:
    """Returns the generations of these rows, as `tiered.s3.format.generation_of`. Null: not known."""
    return pc.binary_join_element_wise(pc.utf8_trim(texts(batch[TAG]), '"'), pc.cast(_seconds(batch[CREATED]), pa.string()), "@")


def gone(batch: Any) -> Any:
    """Tells of each row whether its version is not there. In doubt it is there: the service is asked."""
    found = pa.array([False] * batch.num_rows)
    if LATEST in batch.schema.names:
        found = pc.or_(found, pc.invert(pc.fill_null(_flags(batch[LATEST]), True)))
    if MARKER in batch.schema.names:
        found = pc.or_(found, pc.fill_null(_flags(batch[MARKER]), False))
    return found


def decoded_keys(values: Any) -> Any:
    """Returns the names of keys that are encoded. Null: it is no text, or breaks the encoding."""
    names = texts(values)
    is_encoded = pc.fill_null(pc.match_substring_regex(names, _ENCODED), False)
    plain = [_decoded_key(key) for key in pc.cast(names.filter(is_encoded), pa.binary()).to_pylist()]
    return pc.replace_with_mask(names, is_encoded, pa.array(plain, pa.string()))


def _decoded_key(key: bytes) -> str | None:
    return None if _BROKEN.search(key) else decoded(unquote_to_bytes(key.replace(b"+", b" ")))


def _seconds(times: Any) -> Any:
    """Returns whole seconds since 1970 of times, or of text such as 2026-11-21T05:00:00.000Z."""
    if pa.types.is_timestamp(times.type):
        milliseconds = pc.cast(pc.cast(times, pa.timestamp("ms", "UTC"), safe=False), pa.int64())
    else:
        milliseconds = pc.cast(_times(pc.cast(times, pa.string())), pa.int64())
    return pc.divide(milliseconds, _MS_PER_S)


def _times(told: Any) -> Any:
    try:
        return pc.cast(told, pa.timestamp("ms", "UTC"))
    except pa.ArrowInvalid:
        return pa.concat_arrays([_time(told.slice(place, 1)) for place in range(len(told))])


def _time(told: Any) -> Any:
    try:
        return pc.cast(told, pa.timestamp("ms", "UTC"))
    except pa.ArrowInvalid:
        return pa.nulls(1, pa.timestamp("ms", "UTC"))


def _flags(values: Any) -> Any:
    return values if pa.types.is_boolean(values.type) else pc.equal(pc.utf8_lower(pc.cast(values, pa.string())), "true")


def _notes(_: Sequence[str]) -> Iterator[str]:
    yield "S3 lists a bucket little by little, from the time of its report on: blobs of about that time may be missing from it"


PARQUET = ReportColumns(
    KEY, (*NEEDED, *OF_VERSIONS), (BUCKET, KEY, *OF_VERSIONS), texts, generations, gone, _notes, beside=(MARKERS, AMENDED, PROBES),
)  # fmt: skip
CSV = replace(PARQUET, names=decoded_keys)


# --- the report ------------------------------------------------------------------------------------


class ShardTold(NamedTuple):
    """A file of the report, as the manifest tells it. `sum`: its MD5."""

    key: str
    size: int
    sum: str


def open_report(where: str, bucket: str, runtime: Runtime, *, prefix: str = "", insist: bool = False) -> InventoryReport:
    """Returns the report of a manifest, or of the directory with its name; or the newest one of a configuration.

    `where`: a path or a URI. `bucket`, `prefix`: what is audited. `insist`: take a report that is older than
    `AGE_MAX_S`.
    """
    files, name = _find(where, runtime)
    manifest = f"{files.uri}/{name}"
    text = files.read(name)
    if text is not None:
        _check_sum(files, text, manifest)
    told = parse_manifest(text, manifest)
    snapshot_ns = _snapshot_ns(told, manifest)
    check_age(snapshot_ns, runtime.wall_ns(), manifest, insist)
    if _text(told, "sourceBucket", "the name of a bucket", manifest) != bucket:
        raise another_bucket(manifest, told["sourceBucket"], bucket)
    form, named = _form(told, manifest), _shards(told, manifest)
    places = _places(files, told, named, runtime, manifest)
    records = None
    if form == "csv":
        columns = check_columns([(manifest, _schema(told, manifest))], NEEDED, ORDER, manifest)
    else:
        footers = [footer_of(directory, PurePosixPath(shard.key).name) for directory, shard in zip(places, named, strict=True)]
        found = [(shard.key, tuple(each.schema.to_arrow_schema().names)) for shard, each in zip(named, footers, strict=True)]
        columns, records = check_columns(found, NEEDED, ORDER, manifest), sum(each.num_rows for each in footers)
    if VERSION in columns:
        check_columns([(manifest, columns)], OF_VERSIONS, "order it with all versions, or with the current ones only", manifest)
    evidence = Inventory(report=manifest, snapshot_ns=snapshot_ns, records=records or 0)
    shards = tuple(f"{directory.uri}/{PurePosixPath(shard.key).name}" for directory, shard in zip(places, named, strict=True))
    told_by = CSV if form == "csv" else PARQUET
    return InventoryReport(shards, form, columns, ",", records, evidence, told_by, prefix, tuple(shard.sum for shard in named))


def _find(where: str, runtime: Runtime) -> tuple[DirectoryFiles, str]:
    """Returns the directory of the report, and the name of its manifest in it."""
    if where.endswith(".json"):
        directory, _, name = where.rpartition("/")
        return DirectoryFiles.at(directory or ".", runtime, WHAT), name
    files = DirectoryFiles.at(where.rstrip("/"), runtime, WHAT)
    seen = files.list()
    if any(each.name == MANIFEST for each in seen):
        return files, MANIFEST
    for day in sorted((each.name for each in seen if not each.is_file and _DAY.fullmatch(each.name)), reverse=True):
        if {MANIFEST, CHECKSUM} <= {each.name for each in files.list(day)}:
            return DirectoryFiles.at(_other(files.uri, day), runtime, WHAT), MANIFEST
    raise ConfigurationError(
        f"{files.uri} holds no report of S3 Inventory, which is a directory such as 2026-11-21T01-00Z with {MANIFEST} and {CHECKSUM}: name"
        " the manifest, or the directory of the configuration"
    )


def _other(uri: str, relative: str) -> str:
    """Returns another directory, by its path from a directory. What follows a question mark stays at the end."""
    place, mark, query = uri.partition("?") if "://" in uri else (uri, "", "")
    scheme, slashes, path = place.rpartition("://")
    parts = path.rstrip("/").split("/")
    for part in relative.split("/"):
        if part == "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return f"{scheme}{slashes}{'/'.join(parts)}{mark}{query}"


# --- the manifest ----------------------------------------------------------------------------------


def _check_sum(files: DirectoryFiles, text: bytes, manifest: str) -> None:
    told = files.read(CHECKSUM)
    if told is None:
        raise ConfigurationError(f"{files.uri} has no {CHECKSUM}, so the report may not be finished: copy the whole report, or wait for it")
    found = hashlib.md5(text, usedforsecurity=False).hexdigest()
    if found != told.decode(errors="replace").strip().lower():
        raise ConfigurationError(f"{manifest} has the MD5 {found}, and {CHECKSUM} tells another one: copy the whole report again")


def _text(told: Mapping[str, Any], key: str, wanted: str, manifest: str) -> str:
    text = told.get(key)
    if not isinstance(text, str) or not text:
        raise wrong_field(manifest, key, wanted)
    return text


def _snapshot_ns(told: Mapping[str, Any], manifest: str) -> int:
    at = str(told.get("creationTimestamp"))
    if not at.isascii() or not at.isdecimal() or int(at) * NS_PER_MS > DEADLINE_MAX_NS:
        raise wrong_field(manifest, "creationTimestamp", "a number of milliseconds since 1970")
    return int(at) * NS_PER_MS


def _form(told: Mapping[str, Any], manifest: str) -> str:
    form = _text(told, "fileFormat", "CSV or Parquet", manifest).lower()
    if form not in ("csv", "parquet"):
        raise ConfigurationError(f"{manifest} is a report in {told['fileFormat']}, which is not read here: order it in CSV or Parquet")
    return form


def _schema(told: Mapping[str, Any], manifest: str) -> tuple[str, ...]:
    columns = tuple(each.strip() for each in _text(told, "fileSchema", "a list of columns", manifest).split(","))
    if len(set(columns)) != len(columns):
        raise wrong_field(manifest, "fileSchema", "a list of columns, each of them once")
    return tuple(NAMED.get(column, column) for column in columns)


def _shards(told: Mapping[str, Any], manifest: str) -> list[ShardTold]:
    files = told.get("files")
    if not isinstance(files, list) or not all(isinstance(each, dict) for each in files):
        raise wrong_field(manifest, "files", "a list of files")
    if not files:
        raise without_shards(manifest)
    shards = []
    for each in files:
        key, size, told_sum = each.get("key"), each.get("size"), str(each.get("MD5checksum")).lower()
        if not isinstance(key, str) or not key or {"", ".", ".."} & set(key.rsplit("/", 2)[-2:]):
            raise wrong_field(manifest, "files", "a list of files, each with the key of one")
        if type(size) is not int or size < 0 or not _SUM.fullmatch(told_sum):
            raise wrong_field(manifest, "files", f"a list of files, each with size and MD5checksum ({key} is not)")
        shards.append(ShardTold(key, size, told_sum))
    if len({shard.key for shard in shards}) != len(shards):
        raise ConfigurationError(f"{manifest} does not fit itself: it names a file more than once: copy the whole report again")
    return shards


# --- the shards ------------------------------------------------------------------------------------


def _places(
    files: DirectoryFiles, told: Mapping[str, Any], shards: Sequence[ShardTold], runtime: Runtime, manifest: str
) -> list[DirectoryFiles]:
    """Returns of each shard the directory where it lies.

    It is looked for at its key, if the manifest is in the destination; then as near to the manifest as it was there;
    then, for a copy, below the manifest and beside it.
    """
    missing: dict[ShardTold, str] = {}
    found: dict[ShardTold, DirectoryFiles] = {}
    for nearness in _nearnesses(files, told):
        left = [shard for shard in shards if shard not in found]
        by_uri: dict[str, list[ShardTold]] = {}
        for shard in left:
            by_uri.setdefault(_other(files.uri, nearness.format(*_directories(shard.key))), []).append(shard)
        for uri, several in by_uri.items():
            directory = DirectoryFiles.at(uri, runtime, WHAT)
            sizes = _sizes(directory, [PurePosixPath(shard.key).name for shard in several])
            for shard, size in zip(several, sizes, strict=True):
                if size == shard.size:
                    found[shard] = directory
                elif size is not None:
                    missing[shard] = f"has {size:,} bytes and not {shard.size:,}"
    absent = [shard for shard in shards if shard not in found]
    if absent:
        first, are = absent[0], "is" if len(absent) == 1 else "are"
        raise ConfigurationError(
            f"{manifest} names {count(len(shards), 'shard')}, and {len(absent)} of them {are} not there whole (such as {first.key}, which"
            f" {missing.get(first, 'is not there')}): copy the whole report, with its directory data"
        )
    return [found[shard] for shard in shards]


def _directories(key: str) -> tuple[str, str]:
    """The directory of a key, and the last part of it."""
    directory = key.rpartition("/")[0]
    return directory, directory.rpartition("/")[2]


def _nearnesses(files: DirectoryFiles, told: Mapping[str, Any]) -> Iterator[str]:
    """Yields paths from the directory of the manifest. `{0}`: the directory of the key, `{1}`: the last part of it."""
    destination = str(told.get("destinationBucket")).rpartition(":")[2]
    place = PurePosixPath(files.path).parts
    if files.bucket is not None and files.bucket == destination:
        yield "/".join([*[".."] * (len(place) - 1), "{0}"])
    yield from ("../{1}", "{1}", ".")


def _sizes(directory: DirectoryFiles, names: Sequence[str]) -> list[int | None]:
    """Returns the size of each of these files, in bytes. None: it does not exist."""
    with directory.explained("be read"):
        seen = directory.filesystem.get_file_info([f"{directory.path}/{name}" for name in names])
        return [each.size if each.is_file else None for each in seen]
