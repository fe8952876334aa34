"""The rules of what this store writes, as tables of sentences; they know none of its encoders.

    ROW     one row of the table                BLOB      one object of the bucket, as GCS's JSON tells it
    ENTRY   one row of the changelog            HEADERS   the same, as the headers that begin an upload in parts

`broken` names the rules that something breaks. What rests on another rule may break with it, so a rule that cannot read
what it judges counts as broken. The rules are those of `docs/format.md`, and of those who read it beside this software.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Rules = Mapping[str, Callable[[T], Any]]

UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
SCOPE = re.compile(r"[A-Za-z0-9_\-()$!+']+\.[A-Za-z0-9_\-()$!+']+")
TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
HEADER = re.compile(r"[!-~]([ -~]*[!-~])?")
"""What a header carries as it is: visible ASCII, and spaces between."""
CONTENT_TYPE = re.compile(rf"{TOKEN.pattern}/{TOKEN.pattern}(\s*;[ -~]*)?")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")
"""RFC 3339 in UTC, in whole milliseconds."""
UNITS = (
    ("year", "years", None), ("month", "months", 11), ("day", "days", 30), ("h", "h", 23), ("m", "m", 59), ("s", "s", 59),
    ("ms", "ms", 999), ("us", "us", 999), ("ns", "ns", 999),
)  # fmt: skip
"""Units of a duration: one, several, and how many there are at most before the next larger one takes over."""
PATH_BYTES_MAX, NAME_BYTES_MAX, METADATA_BYTES_MAX, SHARDS = 987, 1024, 8192, 16
SECONDS_OF_9999 = 253_402_300_799


class WrittenCell(NamedTuple):
    family: str
    column: str
    timestamp_us: int
    value: bytes


class WrittenRow(NamedTuple):
    key: bytes
    cells: Sequence[WrittenCell]

    def data(self) -> dict[str, WrittenCell]:
        return {cell.column: cell for cell in self.cells if cell.family in DATA}

    def value(self, column: str) -> bytes:
        return self.data()[column].value

    def has(self, column: str) -> bool:
        return column in self.data()

    def metadata(self) -> dict[str, Any]:
        """Of the object, or those that the row tells of its blob."""
        return dict(**json.loads(self.value("m" if self.has("m") else "d")))

    def describes(self) -> bool:
        return self.has("m") or self.has("d")


def as_written(key: bytes, cells: Iterable[Any]) -> WrittenRow:
    """A row as a table of Bigtable in memory holds it."""
    return WrittenRow(key, [WrittenCell(cell.family, cell.column.decode(), cell.timestamp_us, cell.value) for cell in cells])


def broken(rules: Rules[T], written: T) -> list[str]:
    """The rules that this breaks."""
    return [sentence for sentence, holds in rules.items() if not _holds(holds, written)]


def _holds(rule: Callable[[T], Any], written: T) -> bool:
    try:
        return bool(rule(written))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, zlib.error):
        return False


# --- names -------------------------------------------------------------------------------------------


def is_path(path: str) -> bool:
    """Whether a new object may have this path."""
    start, marker, key = path.partition("/objects/")
    usecase, *scopes = start.split("/")
    return (
        bool(marker and usecase and key) and len(path.encode()) <= PATH_BYTES_MAX and not CONTROL.search(path)
        and not usecase.startswith("~") and usecase not in (".", "..") and not {".", ".."} & set(key.split("/"))
        and all(SCOPE.fullmatch(scope) for scope in scopes)
    )  # fmt: skip


def is_blob_of(name: str, path: str) -> bool:
    stem, _, revision = name.rpartition("/")
    return stem == path and UUID7.fullmatch(revision) is not None and len(name.encode()) <= NAME_BYTES_MAX


# --- metadata ----------------------------------------------------------------------------------------


def _is_count(value: object, maximum: int) -> bool:
    return type(value) is int and 0 <= value <= maximum


def _is_pair(value: Any, seconds: str, nanos: str) -> bool:
    return list(value) == [seconds, nanos] and _is_count(value[seconds], SECONDS_OF_9999) and _is_count(value[nanos], 999_999_999)


def is_policy(value: Any) -> bool:
    [(kind, lifetime)] = value.items()
    return kind in ("TimeToLive", "TimeToIdle") and _is_pair(lifetime, "secs", "nanos") and any(lifetime.values())


def is_time(value: Any) -> bool:
    return _is_pair(value, "secs_since_epoch", "nanos_since_epoch")


def is_text(value: Any) -> bool:
    return HEADER.fullmatch(value) is not None


def is_custom(value: Any) -> bool:
    """Text by token, sorted; two keys that differ in case alone are one header. A value may be empty."""
    return bool(value) and list(value) == sorted(value) and len({key.lower() for key in value}) == len(value) and all(
        TOKEN.fullmatch(key) and (text == "" or is_text(text)) for key, text in value.items()
    )  # fmt: skip


METADATA: dict[str, Callable[[Any], bool]] = {
    "expiration_policy": is_policy, "time_created": is_time, "time_expires": is_time,
    "content_type": lambda value: CONTENT_TYPE.fullmatch(value) is not None, "compression": lambda value: value == "Zstd",
    "origin": is_text, "filename": is_text, "size": lambda value: _is_count(value, (1 << 63) - 1), "custom": is_custom,
}  # fmt: skip
"""The keys in their order, and the form of each."""


def is_compact(raw: bytes) -> bool:
    """Whether JSON is raw UTF-8 without spaces."""
    return json.dumps(json.loads(raw), ensure_ascii=False, separators=(",", ":")).encode() == raw


# --- rows --------------------------------------------------------------------------------------------

DATA = ("fg", "fm")
COLUMNS = {"fg": set("pmrtvcd"), "fm": set("pmrtvcd")}
CONTENTS: tuple[set[str], ...] = (set(), set("pmv"), set("rtv"), set("rtvc"), set("rtvd"), set("rtvcd"))
"""What the columns of a row are together: nothing, an object, a tombstone, also with a condition, or a description."""


def _is_mark(cell: WrittenCell) -> bool:
    if cell.column == "x":
        return UUID7.fullmatch(cell.value.decode()) is not None
    return cell.column[:2] in ("w:", "r:") and UUID7.fullmatch(cell.column[2:]) is not None and cell.value == b""


def _deadlines_agree(row: WrittenRow) -> bool:
    """A deadline has a policy, and the metadata tell the same one."""
    told = row.metadata() if row.has("m") else json.loads(row.value("t")) if row.has("t") else {}
    expires = any(cell.family == "fg" for cell in row.cells)
    if ("expiration_policy" in told) != expires:
        return False
    told_us = _us(told.get("time_expires"))
    if row.has("d") and ("time_expires" in row.metadata() or row.metadata().get("expiration_policy") != told.get("expiration_policy")):
        return False
    return not row.has("m") or told_us == (row.data()["m"].timestamp_us if expires else None)


def _us(time: Any) -> int | None:
    return None if time is None else time["secs_since_epoch"] * 1_000_000 + time["nanos_since_epoch"] // 1000


def _is_policy_of_tombstone(raw: bytes) -> bool:
    value = json.loads(raw)
    return value == {} or (list(value) == ["expiration_policy"] and is_policy(value["expiration_policy"]))


def _known_in_order(row: WrittenRow) -> bool:
    """Known keys in their order, and then only others; the content type is always there."""
    keys = list(row.metadata())
    known = [key for key in METADATA if key in keys]
    return keys[: len(known)] == known and "content_type" in known


ROW: Rules[WrittenRow] = {
    "the key is the path of an object": lambda row: is_path(row.key.decode()),
    "only known families and columns": lambda row: all(
        cell.family == "ff" or cell.column in COLUMNS.get(cell.family, ()) for cell in row.cells
    ),
    "one cell in each column": lambda row: len({cell[:2] for cell in row.cells}) == len(row.cells),
    "an object, a tombstone, or nothing": lambda row: set(row.data()) in CONTENTS,
    "one family": lambda row: len({cell.family for cell in row.cells if cell.family in DATA}) <= 1,
    "one deadline": lambda row: len({cell.timestamp_us for cell in row.cells if cell.family == "fg"}) <= 1,
    "whole milliseconds": lambda row: all(cell.timestamp_us > 0 and cell.timestamp_us % 1000 == 0 for cell in row.cells),
    "what expires has a policy and says when": _deadlines_agree,
    "v is a change's id": lambda row: not row.data() or UUID7.fullmatch(row.value("v").decode()),
    "r is the revision that v names": lambda row: not row.has("r") or row.value("r") == row.key + b"/" + row.value("v"),
    "t is a policy or {}": lambda row: not row.has("t") or _is_policy_of_tombstone(row.value("t")),
    "c is empty": lambda row: not row.has("c") or row.value("c") == b"",
    "JSON has no spaces": lambda row: all(is_compact(row.value(column)) for column in ("m", "t", "d") if row.has(column)),
    "keys of metadata in their order": lambda row: not row.describes() or _known_in_order(row),
    "values of metadata in their form": lambda row: not row.describes() or all(
        holds(row.metadata()[key]) for key, holds in METADATA.items() if key in row.metadata()
    ),
    "size is that of p": lambda row: not row.has("m") or row.metadata()["size"] == len(row.value("p")),
    "d has size and time of creation": lambda row: not row.has("d") or {"size", "time_created"} <= row.metadata().keys(),
    "marks are of changes": lambda row: all(_is_mark(cell) for cell in row.cells if cell.family == "ff"),
}  # fmt: skip


# --- blobs -------------------------------------------------------------------------------------------

SENT_AS = {
    "contentType": "Content-Type", "contentEncoding": "Content-Encoding", "contentDisposition": "Content-Disposition",
    "customTime": "x-goog-custom-time",
}  # fmt: skip
"""The headers of an upload in parts, by what they are in the resource."""
RESOURCE = {"name", "metadata", *SENT_AS}
KNOWN_THERE = {"x-sn-expiration", "x-sn-origin", "x-sn-filename"}
"""The keys with the prefix `x-sn-` that the format's own software knows. It fails on every other one."""
CUSTOM = "x-snme-"
UNKNOWN, PACKED = "x-snme-Tiered-Unknown", "x-snme-tiered-packed"


def is_duration(text: str) -> bool:
    """Whether it is the one spelling of a duration: the largest units first, and none twice."""
    last = -1
    for part in text.split(" "):
        [(digits, unit)] = re.findall(r"^([1-9][0-9]*)([a-z]+)$", part)
        [place] = [place for place, (one, several, _) in enumerate(UNITS) if unit == (one if digits == "1" else several)]
        most = UNITS[place][2]
        if place <= last or (most is not None and int(digits) > most):
            return False
        last = place
    return True


def entries_of(resource: Mapping[str, Any]) -> dict[str, str]:
    """A blob's custom metadata, with those that are packed."""
    entries = dict(resource.get("metadata", {}))
    if PACKED in entries:
        entries |= json.loads(zlib.decompress(base64.b64decode(entries.pop(PACKED), validate=True)))
    return entries


def _custom_of(resource: Mapping[str, Any]) -> dict[str, str]:
    return {key.removeprefix(CUSTOM): value for key, value in entries_of(resource).items() if key.startswith(CUSTOM)}


def _expiration(resource: Mapping[str, Any]) -> str | None:
    return entries_of(resource).get("x-sn-expiration")


BLOB: Rules[Mapping[str, Any]] = {
    "the name is a path and a revision": lambda told: is_path(told["name"].rpartition("/")[0])
    and is_blob_of(told["name"], told["name"].rpartition("/")[0]),
    "only known fields": lambda told: told.keys() <= RESOURCE,
    "no other key with x-sn-": lambda told: {key for key in entries_of(told) if key.startswith("x-sn-")} <= KNOWN_THERE,
    "every other key is custom": lambda told: all(key in KNOWN_THERE or key.startswith(CUSTOM) for key in entries_of(told)),
    "keys of custom are tokens, none twice": lambda told: all(map(TOKEN.fullmatch, _custom_of(told)))
    and len({key.lower() for key in _custom_of(told)}) == len(_custom_of(told)),
    "values are legal in headers": lambda told: all(is_text(told[field]) for field in SENT_AS.keys() & told.keys()) and all(
        is_text(value) or (value == "" and key.startswith(CUSTOM)) for key, value in entries_of(told).items() if key != UNKNOWN
    ),
    "unknown keys are a JSON object": lambda told: dict(**json.loads(entries_of(told).get(UNKNOWN, "{}"))) is not None,
    "the disposition is a time of creation": lambda told: re.fullmatch(
        r"inline; created-ns=[0-9]{1,30}", told.get("contentDisposition", "inline; created-ns=0")
    ),
    "the lifetime is ttl: or tti: and a duration": lambda told: _expiration(told) is None
    or (str(_expiration(told))[:4] in ("ttl:", "tti:") and is_duration(str(_expiration(told))[4:])),
    "what has a lifetime has a deadline, and nothing else has": lambda told: (_expiration(told) is None) == ("customTime" not in told),
    "the deadline is in whole milliseconds": lambda told: TIME.fullmatch(told.get("customTime", "2023-11-14T22:13:20.000Z")),
    "the content type has a /": lambda told: CONTENT_TYPE.fullmatch(told["contentType"]),
    "the encoding is zstd": lambda told: told.get("contentEncoding", "zstd") == "zstd",
    "all together fits": lambda told: sum(
        len(key.encode()) + len(value.encode()) for key, value in entries_of(told).items()
    ) <= METADATA_BYTES_MAX,
}  # fmt: skip

META, FIXED = "x-goog-meta-", set(SENT_AS.values())
HEADERS: Rules[Mapping[str, str]] = {
    "only known headers": lambda headers: all(name in FIXED or name.startswith(META) for name in headers),
    "names of metadata are in lower case": lambda headers: all(re.fullmatch(r"[a-z0-9-]+", name) for name in headers.keys() - FIXED),
    "headers carry the values as they are": lambda headers: all(map(HEADER.fullmatch, headers.values())),
}  # fmt: skip


def as_resource(name: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """The blob that an upload with these headers makes, as the service tells it then."""
    told: dict[str, Any] = {field: headers[header] for field, header in SENT_AS.items() if header in headers}
    metadata = {key.removeprefix(META): value for key, value in headers.items() if key.startswith(META)}
    return {"name": name, **told, "metadata": metadata}


# --- the changelog -----------------------------------------------------------------------------------

ENTRY_KEYS = ["v", "id", "new", "old", "upload", "owner", "attempt", "cleanup_after", "trace"]


class WrittenEntry(NamedTuple):
    key: str
    value: bytes
    state: bytes | None

    def told(self) -> dict[str, Any]:
        return dict(**json.loads(self.value))


def _key_is(entry: WrittenEntry) -> bool:
    start, shard, change = entry.key.split("/")
    return start == "~changelog" and UUID7.fullmatch(change) is not None and shard == f"{int(change[-2:], 16) % SHARDS:02x}"


def _is_state(raw: bytes | None) -> bool:
    if raw is None:
        return True
    told = json.loads(raw)
    stuck = list(told) == ["state", "error", "at"] and told["state"] == "stuck" and bool(told["error"]) and _is_count(told["at"], 1 << 53)
    return is_compact(raw) and (told == {"state": "done"} or stuck)


ENTRY: Rules[WrittenEntry] = {
    "the key is a shard and a change's id": _key_is,
    "JSON has no spaces": lambda entry: is_compact(entry.value),
    "its keys in their order": lambda entry: [key for key in entry.told() if key != "assembling"] == ENTRY_KEYS
    and list(entry.told())[len(ENTRY_KEYS) :] in ([], ["assembling"]),
    "version 1 of an object": lambda entry: entry.told()["v"] == 1 and is_path(entry.told()["id"]),
    "blobs of this object": lambda entry: all(
        told is None or is_blob_of(told, entry.told()["id"]) or told == entry.told()["id"]
        for told in (entry.told()["new"], entry.told()["old"])
    ),
    "the new blob is the change's": lambda entry: entry.told()["new"] in (None, entry.told()["id"] + entry.key[-37:]),
    "counts are whole numbers": lambda entry: _is_count(entry.told()["attempt"], 1 << 53)
    and (entry.told()["cleanup_after"] is None or _is_count(entry.told()["cleanup_after"], 1 << 53)),
    "texts are text": lambda entry: isinstance(entry.told()["owner"], str)
    and all(isinstance(entry.told().get(key) or "", str) for key in ("upload", "trace", "assembling")),
    "its state is open, done or stuck": lambda entry: _is_state(entry.state),
}  # fmt: skip
