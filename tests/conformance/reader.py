"""A reader of the stored format, written from `docs/format.md` alone: what a third implementation would be.

It imports nothing of this project, and has at most 200 lines. A test compares it with the store.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

Lookup = Callable[[str], Mapping[str, Any] | None]
"""What a bucket tells of a blob by its name, as the JSON of GCS. None: there is none."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY_US, TEN_MINUTES_US = 86_400_000_000, 600_000_000
PATH = re.compile(r"[^/]+/(?:[^/.]+\.[^/]+/)*objects/.+", re.DOTALL)
REDIRECT = b'{"is_redirect_tombstone":true'
DEFAULT_TYPE = "application/octet-stream"
UNITS_S = {"year": 31_557_600, "month": 2_630_016, "day": 86_400, "h": 3600, "m": 60, "s": 1}
UNITS_NS = {unit: seconds * 10**9 for unit, seconds in UNITS_S.items()} | {"ms": 10**6, "us": 1000, "ns": 1}
KNOWN: dict[str, type] = {"expiration_policy": dict, "time_created": dict, "time_expires": dict, "content_type": str}
KNOWN |= {"compression": str, "origin": str, "filename": str, "size": int, "custom": dict}
NEVER_UNKNOWN = {"expiration_policy", "time_created", "time_expires", "size", "custom"}
"""What is never read from the unknown keys beside a blob."""


class BreaksFormatError(Exception):
    """Something breaks the format."""


class BlobGoneError(Exception):
    """The row names a blob that is not there."""


class ReadCell(NamedTuple):
    family: str
    column: str
    timestamp_us: int
    value: bytes


class ReadObject(NamedTuple):
    """An object. `payload` or `blob`, the name of its blob. `deadlines_us`: of row and blob. `policy`: its lifetime."""

    metadata: dict[str, Any]
    payload: bytes | None
    blob: str | None
    deadlines_us: list[int]
    policy: dict[str, Any] | None


def read(key: bytes, cells: Iterable[ReadCell], look_up: Lookup, now_us: int) -> ReadObject | None:
    """The object in this row. None: there is none. `BreaksFormatError`, `BlobGoneError`: see there."""
    path = _text(key)
    if not PATH.fullmatch(path):
        return None
    newest: dict[tuple[str, str], ReadCell] = {}
    for cell in sorted(cells, key=lambda each: each.timestamp_us):
        newest[cell.family, cell.column] = cell
    row = {column: cell for (family, column), cell in newest.items() if family in ("fg", "fm")}
    families, stamps = {f for f, _ in newest if f in ("fg", "fm")}, {cell.timestamp_us for cell in row.values()}
    if len(families) > 1 or (families == {"fg"} and len(stamps) > 1):
        raise BreaksFormatError(path)
    deadline_us = stamps.pop() if families == {"fg"} else None
    if not row.keys() & {"p", "m", "r"}:
        return None
    if "r" in row and ("p" in row or "m" in row):
        raise BreaksFormatError(path)
    is_redirect = "m" in row and row["m"].value.startswith(REDIRECT) and not ("p" in row and row["p"].value)
    if "r" not in row and not is_redirect:
        return _small(row, newest, deadline_us, now_us)
    blob, told = (path, _metadata(row["m"].value)) if is_redirect else (_text(row["r"].value) or path, {})
    policy = _json(row["t"].value).get("expiration_policy") if "t" in row and not is_redirect else told.get("expiration_policy")
    if policy is not None:
        _lifetime_ns(policy)
    about = "d" in row and "v" in row and blob == f"{path}/{_text(row['v'].value)}" and _take({"x-snme-d": row["d"].value}, "d")
    return None if _is_past(deadline_us, now_us) else _large(blob, deadline_us, policy, (about or {}).get("time_created"), look_up)


def renewed(found: ReadObject, now_us: int) -> int | None:
    """The deadline that a read at this time gives the object. None: it stays as it is."""
    if not found.deadlines_us or "TimeToIdle" not in (found.policy or {}) or found.deadlines_us[0] <= now_us:
        return None
    idle_us = _lifetime_ns(found.policy or {}) // 1000
    is_soon = min(found.deadlines_us) < now_us + idle_us - min(idle_us // 4, DAY_US)
    return (now_us + idle_us) // 1000 * 1000 if is_soon else None


def _small(row: Mapping[str, ReadCell], newest: Mapping[Any, ReadCell], deadline_us: int | None, now_us: int) -> ReadObject | None:
    payload, metadata = row.get("p"), row.get("m")
    if payload is None and metadata is not None:
        apart = newest.get(("fpm" if metadata.family == "fm" else "fpg", "p"))
        if apart is not None and (metadata.family == "fm" or apart.timestamp_us == deadline_us):
            payload = apart
    is_half = payload is None or metadata is None
    if is_half and _is_past(deadline_us, now_us + TEN_MINUTES_US):
        return None
    told = _metadata(metadata.value if metadata else b"{}")
    if is_half and ("v" in row or (payload is None and told.get("size", 0) > 0)):
        raise BreaksFormatError("half of the object is missing")
    if _is_past(deadline_us, now_us):
        return None
    stored = payload.value if payload else b""
    facts = {"time_expires": _as_time(deadline_us), "size": len(stored)}
    return ReadObject(_shown(told | facts), stored, None, [] if deadline_us is None else [deadline_us], told.get("expiration_policy"))


def _large(name: str, deadline_us: int | None, policy: dict[str, Any] | None, created: Any, look_up: Lookup) -> ReadObject:
    resource = look_up(name)
    if resource is None:
        raise BlobGoneError(name)
    metadata = _of_blob(resource)
    told_us = [each for each in (deadline_us, _time_us(resource.get("customTime"))) if each is not None]
    metadata |= {"time_expires": _as_time(told_us[0] if told_us else None), "time_created": created or metadata["time_created"]}
    return ReadObject(_shown(metadata), None, name, told_us, policy or metadata.get("expiration_policy"))


def _is_past(deadline_us: int | None, now_us: int) -> bool:
    return deadline_us is not None and deadline_us <= now_us


def _metadata(raw: bytes) -> dict[str, Any]:
    told = {key: value for key, value in _json(raw).items() if value is not None or key not in KNOWN}
    if any(type(told[key]) is not form for key, form in KNOWN.items() if key in told):
        raise BreaksFormatError(raw)
    if "expiration_policy" in told:
        _lifetime_ns(told["expiration_policy"])
    for key in {"time_created", "time_expires"} & told.keys():
        told[key] = {"secs_since_epoch": told[key]["secs_since_epoch"], "nanos_since_epoch": told[key].get("nanos_since_epoch", 0)}
    return told | {"content_type": told.get("content_type") or DEFAULT_TYPE}


def _of_blob(resource: Mapping[str, Any]) -> dict[str, Any]:
    entries = dict(resource.get("metadata", {}))
    entries |= _take(entries, "tiered-packed") or {}
    unknown = _take(entries, "Tiered-Unknown")
    said = re.fullmatch(r"inline; created-ns=(\d+)", resource.get("contentDisposition", ""))
    created = said[1] if said else entries.get("x-sn-created", "none")
    told = {key: value for key, value in (unknown or _json(entries.get("x-sn-unknown", "{}"))).items() if key not in NEVER_UNKNOWN}
    told |= {key: entries[f"x-sn-{key}"] for key in ("origin", "filename") if f"x-sn-{key}" in entries}
    told["custom"] = {key.removeprefix("x-snme-"): value for key, value in entries.items() if key.startswith("x-snme-")}
    if "x-sn-expiration" in entries:
        kind, _, duration = entries["x-sn-expiration"].partition(":")
        ns = sum(int(count) * UNITS_NS[unit] for count, unit in re.findall(r"(\d+)(year|month|day|ms|us|ns|h|m|s)s?", duration))
        told["expiration_policy"] = {{"ttl": "TimeToLive", "tti": "TimeToIdle"}[kind]: {"secs": ns // 10**9, "nanos": ns % 10**9}}
    encoding = resource.get("contentEncoding")
    told["time_created"] = _as_time(_time_us(resource["timeCreated"]), None if created == "none" else int(created))
    told["content_type"] = resource.get("contentType") or told.get("content_type") or DEFAULT_TYPE
    told["compression"] = "Zstd" if encoding == "zstd" else encoding or told.get("compression")
    return {**told, "size": int(resource["size"])}


def _take(entries: dict[str, Any], key: str) -> Any:
    """Takes what an entry of the store's own says. None: there is none, or it is somebody else's and stays."""
    try:
        raw: Any = entries[f"x-snme-{key}"]
        value = _json(zlib.decompress(base64.b64decode(raw, validate=True)) if key == "tiered-packed" else raw)
    except (KeyError, ValueError, BreaksFormatError, zlib.error):
        return None
    del entries[f"x-snme-{key}"]
    return value


def _shown(told: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in told.items() if value not in (None, "", {}) or key not in KNOWN}


def _lifetime_ns(policy: dict[str, Any]) -> int:
    for kind in ("TimeToLive", "TimeToIdle"):
        if policy.keys() == {kind}:
            return int(policy[kind]["secs"]) * 10**9 + int(policy[kind].get("nanos", 0))
    raise BreaksFormatError(policy)


def _as_time(us: int | None, ns: int | None = None) -> dict[str, int] | None:
    ns = us * 1000 if ns is None and us is not None else ns
    return None if ns is None else {"secs_since_epoch": ns // 10**9, "nanos_since_epoch": ns % 10**9}


def _time_us(text: str | None) -> Any:
    return None if text is None else (datetime.fromisoformat(text.replace("Z", "+00:00")) - EPOCH) // timedelta(microseconds=1)


def _json(raw: bytes | str) -> dict[str, Any]:
    try:
        return dict(**json.loads(raw))
    except (ValueError, TypeError) as error:
        raise BreaksFormatError(raw) from error


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise BreaksFormatError(raw) from error
