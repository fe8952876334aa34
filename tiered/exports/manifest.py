"""The format of an export. Every reader goes by it, also one that has nothing of this software.

    begun.json                       what is exported, written first
    payloads/ab/cd/…                 one file for each object: its bytes as they are stored
    manifest/part-000000.parquet     a row for each object, in the order of their paths (after an update: `manifest-2/`)
    manifest.json                    written last: totals, the parts with their SHA-256, and whether it is complete

A part covers the paths after `after` up to `end` (None: the last one), which its footer tells, key `tiered.export`.
The column `metadata` is authoritative: the JSON of `docs/format.md`, with all times to the nanosecond. The columns
beside it are for questions. `state` is `exported`; `vanished`: deleted, or expired, after it was listed; or `failed`:
there is no file. `why` tells the reason, or that an object was replaced after it was listed, and is the later one.

Nothing that is read back is believed: `CorruptRecordError` names what contradicts itself, and what to do.
`ConfigurationError`: a newer software wrote it.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any, NamedTuple

import anyio

from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError
from changelog.base.extras import installing
from changelog.base.threads import in_thread
from tiered.exports.pages import bytes_of_column
from tiered.exports.payloads import PayloadSums, payload_name
from tiered.exports.places import ExportPlace
from tiered.metadata import COLUMNS, Metadata, columns_of, decode_metadata, encode_metadata
from tiered.object_id import ObjectId
from tiered.stored import ObjectHead

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ModuleNotFoundError as missing:  # pragma: no cover - an environment without the extra
    raise ConfigurationError(f"an import and an export need {missing.name}: {installing('audit')}") from None

VERSION = 1
"""Of the rows, of a footer and of both JSON files. A later one may add columns without a new version."""
FORMAT = "tiered.export"
BEGUN, MANIFEST = "begun.json", "manifest.json"
EXPORTED, VANISHED, FAILED = "exported", "vanished", "failed"
JSON_BYTES_MAX, PART_BYTES_MAX, PART_ROWS_MAX = 64 * 1024 * 1024, 256 * 1024 * 1024, 100_000
"""What is read at most of a JSON file and of a part, also once it is decompressed. A part of ours has 10,000 rows."""


class ExportRow(NamedTuple):
    """An object in a manifest. `metadata`: JSON. `sums`: None unless it was exported. `read_us`: when, since 1970."""

    path: str
    state: str
    why: str | None = None
    revision: str | None = None
    tier: str | None = None
    metadata: str | None = None
    sums: PayloadSums | None = None
    read_us: int | None = None

    @classmethod
    def of(cls, head: ObjectHead, sums: PayloadSums, read_ns: int, *, is_changed: bool) -> ExportRow:
        encoded = encode_metadata(head.metadata).decode()
        why = "it was replaced after it was listed" if is_changed else None
        return cls(head.object_id.path, EXPORTED, why, head.revision, head.tier.value, encoded, sums, read_ns // 1000)

    @property
    def file(self) -> str:
        return payload_name(self.path, self.revision)

    def decoded(self) -> Metadata:
        """Raises `CorruptRecordError`."""
        if self.metadata is None:
            raise CorruptRecordError(f"the manifest tells no metadata of {self.path}")
        return decode_metadata(self.metadata.encode())


_US = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([
    pa.field("path", pa.string(), nullable=False), pa.field("state", pa.string(), nullable=False), ("why", pa.string()),
    ("usecase", pa.string()), ("scopes", pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))), ("key", pa.string()),
    ("revision", pa.string()), ("tier", pa.string()), ("size", pa.int64()), *((name, pa.string()) for name in COLUMNS),
    ("created", _US), ("expires", _US), ("custom", pa.map_(pa.string(), pa.string())), ("metadata", pa.string()),
    ("file", pa.string()), ("sha256", pa.string()), ("crc32c", pa.string()), ("read", _US),
])  # fmt: skip
_NEEDED = ("path", "state", "why", "revision", "tier", "metadata", "file", "size", "sha256", "crc32c", "read")


@dataclass(slots=True)
class ExportCounts:
    """How many objects have which state. `changed`: of those exported, replaced after they were listed. `bytes`: of the
    payloads that were exported. `left_out`: rows of the store whose key is no object id; they are in no part.
    """

    exported: int = 0
    vanished: int = 0
    failed: int = 0
    changed: int = 0
    bytes: int = 0
    left_out: int = 0

    def add(self, row: ExportRow) -> None:
        setattr(self, row.state, getattr(self, row.state) + 1)
        self.changed += row.state == EXPORTED and row.why is not None
        self.bytes += 0 if row.sums is None else row.sums.size


@dataclass(frozen=True, slots=True)
class RowsPart:
    """A part as `manifest.json` lists it. It covers the paths after `after` (None: from the first on) up to `end`.

    `left_out`: how many rows were met there whose key is no object id.
    """

    file: str
    rows: int
    sha256: str
    after: str | None
    end: str | None
    left_out: int


@dataclass(frozen=True, slots=True)
class BegunExport:
    """What is exported. `store`: where it is, without secrets. `prefix`: the objects below it. `began`: ISO 8601."""

    export: str
    software: str
    store: Mapping[str, str]
    prefix: str
    began: str

    def encode(self) -> bytes:
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1).encode()

    def check_same(self, now: BegunExport, name: str) -> None:
        """Raises `ConfigurationError` unless both are of the same store and prefix."""
        for what, before, after in (("store", dict(self.store), dict(now.store)), ("prefix", self.prefix, now.prefix)):
            if before != after:
                raise ConfigurationError(f"{name} holds an export whose {what} is {before or 'empty'}, and not {after or 'empty'}:"
                                         " give another place")  # fmt: skip


@dataclass(frozen=True, slots=True)
class EndedExport:
    """`manifest.json`. `complete`: all that was listed was exported, or had vanished. `round`: each update is one."""

    begun: BegunExport
    ended: str
    complete: bool
    round: int = 1
    counts: ExportCounts = field(default_factory=ExportCounts)
    parts: tuple[RowsPart, ...] = ()

    def encode(self) -> bytes:
        parts = [asdict(part) for part in self.parts]
        told = {"ended": self.ended, "complete": self.complete, "round": self.round, "counts": asdict(self.counts), "parts": parts}
        return json.dumps({**json.loads(self.begun.encode()), **told}, indent=1).encode()


def software() -> str:
    with suppress(PackageNotFoundError):
        return version("tiered")
    return "unknown"


def decode_begun(text: bytes, where: str) -> BegunExport:
    told = _json(text, where)
    try:
        found = BegunExport(*(told[each.name] for each in fields(BegunExport)))
        texts = [found.export, found.software, found.prefix, found.began, *found.store, *found.store.values()]
        if not all(isinstance(each, str) for each in texts):
            raise ValueError("it has values of other types")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_manifest(where, error) from None
    return found


def decode_ended(text: bytes, where: str) -> EndedExport:
    told, begun = _json(text, where), decode_begun(text, where)
    try:
        counts = ExportCounts(**told["counts"])
        parts = tuple(RowsPart(**each) for each in told["parts"])
        if type(told["complete"]) is not bool or type(told["ended"]) is not str or not all(map(_is_count, asdict(counts).values())):
            raise ValueError("it has values of other types")
        if not _is_count(told["round"]) or told["round"] < 1:
            raise ValueError("it has no round")
        names = [part_name(number, told["round"]) for number in range(len(parts))]
        if [part.file for part in parts] != names or not all(_is_count(part.rows) and _is_count(part.left_out) for part in parts):
            raise ValueError("its parts have other names or numbers")
        if not parts or [None, *(part.end for part in parts)] != [*(part.after for part in parts), None]:
            raise ValueError("its parts do not follow one another up to the last one")
        rows, left_out = sum(part.rows for part in parts), sum(part.left_out for part in parts)
        if rows != counts.exported + counts.vanished + counts.failed or left_out != counts.left_out:
            raise ValueError("its totals are not those of its parts")
        if told["complete"] and counts.failed:
            raise ValueError("it says that it is complete, and that objects failed")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _no_manifest(where, error) from None
    return EndedExport(begun, told["ended"], told["complete"], told["round"], counts, parts)


def is_of_export(text: bytes | None) -> bool:
    """Whether a file is one of the two of an export, of whatever version. None: there is no file."""
    with suppress(ValueError, RecursionError):
        told = json.loads(text or b"")
        return isinstance(told, dict) and told.get("format") == FORMAT
    return False


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _json(text: bytes, where: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
        if not isinstance(told, dict) or told.get("format") != FORMAT or type(told.get("version")) is not int or told["version"] < 1:
            raise ValueError(f"its format is not {FORMAT}")
    except (ValueError, RecursionError) as error:
        raise _no_manifest(where, error) from None
    if told["version"] > VERSION:
        raise ConfigurationError(
            f"{where} is of version {told['version']}, and this software knows {VERSION}:"
            f" install tiered {told.get('software', '')} or newer"
        )
    return told


def _no_manifest(where: str, error: Exception) -> CorruptRecordError:
    return CorruptRecordError(f"{where} cannot be used ({error}): restore it, or export anew to another place")


# --- parts -------------------------------------------------------------------------------------------


def part_name(number: int, round: int) -> str:
    return f"manifest{'' if round == 1 else f'-{round}'}/part-{number:06d}.parquet"


def encode_part(rows: Sequence[ExportRow], begun: BegunExport, after: str | None, end: str | None, left_out: int) -> bytes:
    """Rows in the order of their paths, as Parquet."""
    told = {
        "format": FORMAT, "version": VERSION, "export": begun.export, "after": after, "end": end, "rows": len(rows), "left_out": left_out,
    }  # fmt: skip
    schema = SCHEMA.with_metadata({FORMAT.encode(): json.dumps(told).encode()})
    into = io.BytesIO()
    table = pa.Table.from_pylist([_columns(row) for row in rows], schema)
    pq.write_table(table, into, compression="zstd", write_page_checksum=True)
    return into.getvalue()


def _columns(row: ExportRow) -> dict[str, Any]:
    object_id = ObjectId.parse(row.path)
    told: dict[str, Any] = {
        "path": row.path, "state": row.state, "why": row.why, "usecase": object_id.usecase, "key": object_id.key,
        "scopes": [{"name": name, "value": value} for name, value in object_id.scopes], "read": row.read_us,
    }  # fmt: skip
    if row.sums is None or row.metadata is None:
        return told
    metadata = row.decoded()
    return told | {
        "revision": row.revision, "tier": row.tier, "size": row.sums.size, **columns_of(metadata),
        "created": _us(metadata.time_created_ns), "expires": _us(metadata.time_expires_ns),
        "custom": list(metadata.custom.items()), "metadata": row.metadata, "file": row.file, "sha256": row.sums.sha256,
        "crc32c": row.sums.crc32c,
    }  # fmt: skip


def _us(ns: int | None) -> int | None:
    """For Arrow. None also for a time that no calendar shows."""
    return None if ns is None or not 0 <= ns // 1000 <= 253_402_300_799_999_999 else ns // 1000


def decode_part(content: bytes, name: str, export: str, where: str) -> tuple[RowsPart, list[ExportRow]]:
    """Reads a part, and checks each of its rows."""
    try:
        table = _bounded(content)
        told = _json((table.schema.metadata or {}).get(FORMAT.encode(), b""), where)
        if told["export"] != export:
            raise ValueError("it is of another export")
        columns = [table.column(name).cast(pa.int64()) if name == "read" else table.column(name) for name in _NEEDED]
        rows = [_checked_row(*values) for values in zip(*(column.to_pylist() for column in columns), strict=True)]
        after, end, left_out = told["after"], told["end"], told["left_out"]
        paths = [row.path.encode() for row in rows]
        if len(rows) != told["rows"] or not _is_count(left_out) or any(first >= second for first, second in pairwise(paths)):
            raise ValueError("rows are missing, or in another order")
        if paths and ((after is not None and paths[0] <= after.encode()) or (end is not None and paths[-1] > end.encode())):
            raise ValueError("it has rows of another range")
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError, InvalidRequestError) as error:
        if isinstance(error, ConfigurationError):
            raise
        why = " ".join(str(error).split())[:200]
        raise CorruptRecordError(f"{where} cannot be used ({why}): restore it, or export to this place again, which mends it") from None
    return RowsPart(name, len(rows), hashlib.sha256(content).hexdigest(), after, end, left_out), rows


def _bounded(content: bytes) -> Any:
    """The table of a part. `ValueError`: it has more rows or bytes than a part may have, or columns of other types.

    A text that is repeated, or compresses well, is some bytes in a file and gigabytes in memory. So sizes are compared
    before pages are read, and repeated texts stay indexes into a dictionary until all of them are counted.
    """
    texts = [name for name in _NEEDED if SCHEMA.field(name).type == pa.string()]
    file = pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True, read_dictionary=texts)
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    columns = (group.column(number) for group in groups if group.num_rows for number in range(group.num_columns))
    pages = sum(bytes_of_column(content, column) for column in columns if column.path_in_schema in _NEEDED)
    if pages > PART_BYTES_MAX or sum(group.num_rows for group in groups) > PART_ROWS_MAX:
        raise ValueError(f"it has more than {PART_BYTES_MAX} bytes or {PART_ROWS_MAX} rows")
    for name in _NEEDED:
        kind = file.schema_arrow.field(name).type
        if (kind.value_type if pa.types.is_dictionary(kind) else kind) != SCHEMA.field(name).type:
            raise ValueError(f"its column {name} is of the type {kind}")
    table = file.read(columns=list(_NEEDED))
    if sum(_expanded(chunk) for name in texts for chunk in table.column(name).chunks) > PART_BYTES_MAX:
        raise ValueError(f"its texts have more than {PART_BYTES_MAX} bytes")
    return table


def _expanded(chunk: Any) -> int:
    """How many bytes the texts of a dictionary array have."""
    lengths = pc.take(pc.binary_length(chunk.dictionary), chunk.indices)
    return int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)


def _checked_row(
    path: str, state: str, why: str | None, revision: str | None, tier: str | None, metadata: str | None, file: str | None,
    size: int | None, sha256: str | None, crc32c: str | None, read_us: int | None,
) -> ExportRow:  # fmt: skip
    ObjectId.parse(path)
    if state not in (EXPORTED, VANISHED, FAILED):
        raise ValueError(f"{path!r} has the state {state!r}")
    if state != EXPORTED:
        return ExportRow(path, state, why, read_us=read_us)
    if size is None or sha256 is None or metadata is None or file != payload_name(path, revision):
        raise ValueError(f"the row of {path!r} contradicts itself")
    row = ExportRow(path, state, why, revision, tier, metadata, PayloadSums(size, sha256, crc32c), read_us)
    if row.decoded().size not in (None, size):
        raise ValueError(f"the metadata of {path!r} tell another size than {size}")
    return row


async def read_part(place: ExportPlace, name: str, export: str) -> tuple[RowsPart, list[ExportRow]] | None:
    """A part of a place. None: there is none of this name."""
    content = await read_file(place, name, PART_BYTES_MAX)
    if content is None:
        return None
    return await in_thread(partial(decode_part, content, name, export, f"{place.name}/{name}"), anyio.CapacityLimiter(1))


async def read_file(place: ExportPlace, name: str, bytes_max: int = JSON_BYTES_MAX) -> bytes | None:
    """A small file of a place. None: there is none. `CorruptRecordError`: it has more bytes."""
    found = bytearray()
    try:
        async for chunk in place.read(name):
            found += chunk
            if len(found) > bytes_max:
                raise CorruptRecordError(f"{place.name}/{name} has more than {bytes_max} bytes: it is no file of an export")
    except FileNotFoundError:
        return None
    return bytes(found)


async def write_file(place: ExportPlace, name: str, content: bytes, content_type: str, *, is_new: bool = False) -> None:
    """Writes a small file, durably. One that is there is replaced, or is a `ConfigurationError` if it `is_new`."""
    async def chunks() -> AsyncIterator[bytes]:
        yield content

    await place.look()
    if not (place.local or is_new) and await place.size(name) is not None:
        await place.remove(name)
    try:
        await place.write(name, chunks(), len(content), content_type)
    except FileExistsError:
        raise ConfigurationError(f"{place.name}/{name} was written by another call at the same time: let that one end") from None
    await place.settle()
