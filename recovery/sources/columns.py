"""The columns of each table, and how rows become Arrow batches.

All times are timestamps in microseconds, UTC. All sizes are bytes. Every column may be null. `error` is null in a good
row. In a row about something damaged, `error` says in words what is wrong, and the other columns have what could be
read.

A value that its column cannot hold (a time after the year 9999, a number beyond 64 bits) becomes null, and `error`
names it. So one odd value never ends the reading of the others. Text that is no Unicode is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tiered.metadata import COLUMNS

TableRow = tuple[Any, ...]
"""The values of all columns of a table, in their order. Times are microseconds since 1970."""

TEXT, LONG, INT, FLAG, TIME, REAL = "string", "bigint", "int", "boolean", "timestamp", "double"
COUNTS = "array<struct<time:bigint,count:bigint>>"
SCOPES = "array<struct<name:string,value:string>>"
ARROW = {
    TEXT: pa.string(), LONG: pa.int64(), INT: pa.int32(), FLAG: pa.bool_(), TIME: pa.timestamp("us", tz="UTC"),
    REAL: pa.float64(), SCOPES: pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())])),
    COUNTS: pa.list_(pa.struct([("time", pa.int64()), ("count", pa.int64())])),
}  # fmt: skip
"""The type of Arrow for each type of Spark."""

OBJECTS: Mapping[str, str] = {
    "path": TEXT,          # the key of the row
    "usecase": TEXT,       # "(none)" if the path has none
    "scopes": SCOPES,      # in their order; null if the path is none of an object, and so is the key
    "key": TEXT,
    "tier": TEXT,          # high-volume: the payload is in the row; long-term: in a blob
    "size": LONG,          # of the payload, in bytes
    "created": TIME,
    "expires": TIME,       # null: never, if `policy` is manual
    "expired": FLAG,       # when it was read: readers do not see it any more, and it is stored until it is collected
    "policy": TEXT,        # manual, time_to_live or time_to_idle
    "lifetime_s": REAL,    # of the policy, in seconds
    **dict.fromkeys(COLUMNS, TEXT),    # fields of the metadata
    "revision": TEXT,      # the change that wrote it; null if older software did
    "blob": TEXT,          # the name of its blob; null: it has none
    "read": TIME,          # when its row was read, by the reader's clock
    "error": TEXT,
}  # fmt: skip
"""`tiered.objects`: every object, expired or not, wherever its payload is. What is not known is null.

A damaged row, a row whose key is no path, and an object whose blob is gone or damaged are rows with an `error`. No
payload is read, so damage that only the payload shows is not noticed.
"""

BLOBS: Mapping[str, str] = {
    "name": TEXT,          # of the blob
    "object": TEXT,        # the storage path of its object; null if the name has none
    "revision": TEXT,      # the change that wrote it; null for a blob of older software
    "usecase": TEXT,       # "(none)" if the name has none
    "form": TEXT,          # what the name looks like: revision, unsuffixed, upload, unparseable, foreign
    "size": LONG,          # bytes
    "created": TIME,       # by the service's clock
    "deadline": TIME,      # when it expires; null: never
    "generation": TEXT,    # tells two blobs apart that had this name one after the other
    "error": TEXT,
}  # fmt: skip
"""`tiered.blobs`: every blob of the bucket or the directory. Something that is no blob is a row with an `error`."""

TOMBSTONES: Mapping[str, str] = {
    "object": TEXT,        # the key of the row
    "name": TEXT,          # of the blob that it names
    "revision": TEXT,      # of that blob; null for a blob of older software
    "usecase": TEXT,
    "deadline": TIME,      # when the object expires; null: never
    "error": TEXT,
}  # fmt: skip
"""`tiered.tombstones`: every row that names a blob, expired or not. Objects that are stored in their row are not read.
"""

CHANGES: Mapping[str, str] = {
    "key": TEXT,           # of the entry in the changelog
    "id": TEXT,            # of the change
    "object": TEXT,        # the storage path that it changes
    "usecase": TEXT,
    "new": TEXT,           # the blob that it writes; null: none
    "old": TEXT,           # the blob that it replaces; null: none
    "owner": TEXT,         # the instance that holds it; empty: it was released
    "attempt": LONG,       # how often it was claimed since it was recorded or last released
    "created": TIME,       # when its id was made, by its maker's clock
    "heartbeat": TIME,     # when it was last renewed, by the server's clock
    "cleanup_after": TIME, # recovery leaves it alone until then; null: no such time
    "stuck": TEXT,         # why recovery gave it up; null: it did not
    "stuck_at": TIME,
    "error": TEXT,
}  # fmt: skip
"""`tiered.changes`: every entry of the changelog. An entry that nobody can read is a row with an `error`."""

FINDINGS: Mapping[str, str] = {
    "class": TEXT, "name": TEXT, "object": TEXT, "revision": TEXT, "usecase": TEXT, "size": LONG, "created": TIME, "deadline": TIME,
    "listed": TIME, "logged": TIME, "scanned": TIME, "confirmed": TIME, "generation": TEXT, "detail": TEXT, "range": INT, "run": TEXT,
    "complete": FLAG,      # of the run, which is checked: false if nothing may be deleted because of it
    "error": TEXT,
}  # fmt: skip
"""`tiered.findings`: what a run of the audit found (docs/audit.md has the columns).

A range that was not audited, or whose file is damaged, is a row with an `error`.
"""

FEED: Mapping[str, str] = {
    "feed": TEXT,          # the directory
    "file": TEXT,          # its name in the directory
    "place": TEXT,         # of the message in the file, in words
    "generation": LONG,    # of the feed, if the file tells it
    "kind": TEXT,          # update, progress or error
    "data": TEXT,          # of an update: the record as canonical JSON
    "time": LONG,          # of an update
    "diff": LONG,          # of an update: by how much the record's multiplicity changes
    "lower": LONG,         # of a progress message: the first time that it tells of; null: none, it tells only of the end
    "upper": LONG,         # of a progress message: the first time that it does not tell of; null: the feed ends
    "counts": COUNTS,      # of a progress message: how many distinct updates a time has
    "error": TEXT,
}  # fmt: skip
"""`tiered.feed`: every update and every progress message of a change feed, as often as it is there.

A file that cannot be read to its end gives one more row of the kind error. Its `error` is the sentence.
"""

TIME_MIN_US, TIME_MAX_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999: what Spark and Python can show."""
SPANS = {LONG: (-(2**63), 2**63 - 1), INT: (-(2**31), 2**31 - 1), TIME: (TIME_MIN_US, TIME_MAX_US)}


def ddl(columns: Mapping[str, str]) -> str:
    """Returns the columns as Spark's `StructType.fromDDL` reads them."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def us_of(ns: int | None) -> int | None:
    """Returns microseconds of nanoseconds."""
    return None if ns is None else ns // 1000


def us_of_ms(ms: int | None) -> int | None:
    """Returns microseconds of milliseconds."""
    return None if ms is None else ms * 1000


def batch_of(columns: Mapping[str, str], rows: Sequence[TableRow], wanted: Sequence[str]) -> Any:
    """Returns a record batch of these rows, with the `wanted` columns in that order."""
    try:
        return _batch(columns, rows, wanted)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return _batch(columns, [_held(columns, row) for row in rows], wanted)


def _batch(columns: Mapping[str, str], rows: Sequence[TableRow], wanted: Sequence[str]) -> Any:
    values = dict(zip(columns, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(columns, ())
    arrays = [pa.array(values[name], ARROW[columns[name]]) for name in wanted]
    for name, array in zip(wanted, arrays, strict=True):
        if columns[name] == TIME and len(array) > array.null_count:
            bounds = pc.min_max(array.cast(pa.int64()))
            if bounds["min"].as_py() < TIME_MIN_US or bounds["max"].as_py() > TIME_MAX_US:
                raise OverflowError(name)
    return pa.RecordBatch.from_arrays(arrays, names=list(wanted))


def _held(columns: Mapping[str, str], row: TableRow) -> TableRow:
    """Returns the row without the values that its columns cannot hold. `error`, the last column, names them."""
    *values, error = row
    faults = [] if error is None else [error]
    for place, (name, kind) in enumerate(zip(columns, columns.values(), strict=True)):
        value = row[place]
        if isinstance(value, str) and place < len(values):
            values[place] = _escaped(value)
        elif value is not None and kind in SPANS and not SPANS[kind][0] <= value <= SPANS[kind][1]:
            values[place] = None
            faults.append(f"{name} is {value}{' microseconds' if kind == TIME else ''}, which its column cannot hold")
    return (*values, _escaped("; ".join(faults)) if faults else None)


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
