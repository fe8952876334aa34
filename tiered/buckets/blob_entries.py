'''A blob's metadata as the headers of HTTP that buckets keep, and as entries: text by key, as custom metadata. Pure.

    x-sn-expiration         `ttl:1h`, `tti:30days`: durations as humantime, a Rust library, writes them
    x-sn-origin, …          fields that are entries
    x-snme-{key}            custom entries
    x-snme-Tiered-Unknown   the JSON keys of newer software, and of fields that are neither header nor entry. A field
                            that is one is also read here: a writer that did not know it kept it so
    x-snme-tiered-packed    where entries are headers: those that no header carries as they are, as JSON, zlib, base64

The last two are our own, and are written only if there is something to keep. Other software fails on every other key,
whatever it begins with, and takes these two for custom entries. Its own have no capital letters, and none that is no
JSON object, or no such text, is taken for ours. Deadline and a time of creation that the caller told have places of
their own in each service. The rows of `tiered/metadata.py` say which field is a header, and which an entry.

Also read: `x-sn-created` (or `none`) and `x-sn-unknown`, which older versions of this software wrote. Unknown keys are
ignored. *Failure*: what breaks the format is the `CorruptRecordError` that the caller makes, because it knows the blob.
'''

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from changelog.base.errors import CorruptRecordError
from tiered.metadata import (
    FIELDS,
    NS_PER_S,
    OWN_PACKED,
    OWN_UNKNOWN,
    Expiration,
    Metadata,
    TimeToIdle,
    TimeToLive,
    unknown_beside,
)

Corrupt = Callable[[str, str], CorruptRecordError]
"""Makes the error of an entry that breaks the format. Given the key, and what is wrong with it."""

CUSTOM = "x-snme-"
OURS = ("x-sn-", CUSTOM)
PACKED = f"{CUSTOM}{OWN_PACKED}"
_EXPIRATION = "x-sn-expiration"
_OLD_CREATED, _OLD_UNKNOWN, _OLD_NOT_TOLD = "x-sn-created", "x-sn-unknown", "none"
_AS_HEADER = re.compile(r"[!-~](?:[ -~]*[!-~])?")
"""Values that reach the other end of a header as they are: ASCII, not empty, no space at either end."""
_PLAIN_KEY = re.compile(r"[a-z0-9-]+")
_UNPACKED_BYTES_MAX = 1 << 16
_NANOSECONDS = re.compile(r"-?[0-9]{1,30}")
_POLICIES: dict[str, type[TimeToLive] | type[TimeToIdle]] = {"ttl": TimeToLive, "tti": TimeToIdle}
_HEADERS = [(name, row.header, row) for name, row in FIELDS.items() if row.header is not None]
HEADERS = tuple(header for _, header, _ in _HEADERS)
"""The headers that fields are kept in."""
OTHER_HEADERS = tuple(each for each in ("Cache-Control", "Content-Disposition", "Content-Language") if each not in HEADERS)
"""Headers that buckets keep and show, too. An import makes custom entries of them."""
_ENTRIES = [(name, row.entry) for name, row in FIELDS.items() if row.entry is not None]
_KNOWN = {"custom", *(row.key or name for name, row in FIELDS.items())}
_ELSEWHERE = {row.key or name: (name, row) for name, row in FIELDS.items() if not row.is_placed}
"""The fields, by key, that are read from the unknown keys, too: there is their place, or older software kept them."""


def encode_entries(metadata: Metadata) -> dict[str, str]:
    """The entries of these metadata, without a time of creation, in an order that depends on them alone."""
    unknown = unknown_beside(metadata)
    known = {
        _EXPIRATION: _encode_expiration(metadata.expiration),
        **{entry: getattr(metadata, name) for name, entry in _ENTRIES},
        f"{CUSTOM}{OWN_UNKNOWN}": _as_ascii(unknown) if unknown else None,
        **{f"{CUSTOM}{key}": value for key, value in sorted(metadata.custom.items())},
    }
    return {key: value for key, value in known.items() if value is not None}


def decode_entries(entries: Mapping[str, str], corrupt: Corrupt) -> dict[str, Any]:
    """The fields that entries tell, whatever version of this software wrote them.

    `time_created_ns` is one that older versions of this software wrote, or None. A field that is a header is told if
    older software, which did not know it, kept it with the unknown keys; what its header says counts instead.
    """
    custom: dict[str, str] = {}
    known: dict[str, str] = {}
    for key, value in entries.items():
        if key.startswith(CUSTOM):
            custom[key.removeprefix(CUSTOM)] = value
        else:
            known[key] = value
    expiration = _decode_expiration(known.get(_EXPIRATION), corrupt)
    created_ns, unknown = _decode_created(known, corrupt), _take_unknown(known, custom, corrupt)
    told: dict[str, Any] = {name: known.get(entry) for name, entry in _ENTRIES}
    for key in _KNOWN & unknown.keys():
        value, known_as = unknown.pop(key), _ELSEWHERE.get(key)
        if value is None or known_as is None or told.get(known_as[0]) is not None:
            continue
        name, row = known_as
        if type(value) is not row.kind:
            raise corrupt(key, f"is {value!r}, not {row.kind.__name__}")
        told[name] = value if row.read is None else row.read(value)
    return {**told, "expiration": expiration, "time_created_ns": created_ns, "custom": custom, "unknown": unknown}


def headers_of(metadata: Metadata) -> dict[str, str]:
    """The headers that tell of the payload with these metadata."""
    return {header: row.tell(value) for name, header, row in _HEADERS if (value := getattr(metadata, name)) is not None}


def fields_of_headers(told: Callable[[str], str | None]) -> dict[str, str | None]:
    """The fields that headers tell. `told`: returns the value of a header, or None."""
    return {name: row.hear(value) for name, header, row in _HEADERS if (value := told(header))}


# --- as headers ------------------------------------------------------------------------------------


def said_by_headers(entries: Mapping[str, str]) -> dict[str, str]:
    """Those that headers carry as they are. Keys arrive in lower case."""
    return {key: value for key, value in entries.items() if is_said(key, value)}


def pack(entries: Mapping[str, str], said: Mapping[str, str]) -> dict[str, str]:
    """`said`, and one entry more with the rest, if there is any."""
    if len(said) == len(entries):
        return dict(said)
    unsaid = {key: value for key, value in entries.items() if key not in said}
    return {**said, PACKED: base64.b64encode(zlib.compress(dump_json(unsaid).encode(), 9)).decode()}


def is_said(key: str, value: str) -> bool:
    return _PLAIN_KEY.fullmatch(key) is not None and _AS_HEADER.fullmatch(value) is not None


def unpack(entries: Mapping[str, str]) -> Mapping[str, str]:
    """With the entries that came packed. If they cannot be read, the entry that has our name is somebody else's."""
    if PACKED not in entries:
        return entries
    try:
        unsaid = json.loads(zlib.decompressobj().decompress(base64.b64decode(entries[PACKED], validate=True), _UNPACKED_BYTES_MAX))
    except (ValueError, RecursionError, binascii.Error, zlib.error):
        return entries
    if not isinstance(unsaid, dict) or not all(isinstance(value, str) for value in unsaid.values()):
        return entries
    return {**{key: value for key, value in entries.items() if key != PACKED}, **unsaid}


# --- single entries ----------------------------------------------------------------------------------


def _decode_created(known: Mapping[str, str], corrupt: Corrupt) -> int | None:
    created = known.get(_OLD_CREATED, _OLD_NOT_TOLD)
    if created == _OLD_NOT_TOLD:
        return None
    if not _NANOSECONDS.fullmatch(created):
        raise corrupt(_OLD_CREATED, f"is {created!r}, not nanoseconds since 1970")
    return int(created)


def _take_unknown(known: Mapping[str, str], custom: dict[str, str], corrupt: Corrupt) -> dict[str, Any]:
    """The JSON keys of newer software. A custom entry that has our name but is no JSON object stays one."""
    kept = _json_object(custom.get(OWN_UNKNOWN, ""))
    if kept is not None:
        del custom[OWN_UNKNOWN]
        return kept
    old = known.get(_OLD_UNKNOWN, "{}")
    kept = _json_object(old)
    if kept is None:
        raise corrupt(_OLD_UNKNOWN, f"is {old!r}, not a JSON object")
    return kept


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _encode_expiration(expiration: Expiration) -> str | None:
    if expiration is None:
        return None
    kind = next(kind for kind, policy in _POLICIES.items() if isinstance(expiration, policy))
    return f"{kind}:{encode_duration(expiration.ns)}"


def _decode_expiration(text: str | None, corrupt: Corrupt) -> Expiration:
    if text is None:
        return None
    kind, _, duration = text.partition(":")
    try:
        return _POLICIES[kind].stored(decode_duration(duration))
    except (KeyError, ValueError):
        raise corrupt(_EXPIRATION, f"is {text!r}, not such as 'ttl:1h' or 'tti:30days'") from None


def _as_ascii(unknown: Mapping[str, Any]) -> str:
    """It is shown as a header by Objectstore, whose clients fail on other characters."""
    return json.dumps(dict(unknown), separators=(",", ":"))


def dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- durations ---------------------------------------------------------------------------------------

DAY_S, _MONTH_S, _YEAR_S = 86_400, 2_630_016, 31_557_600
_UNITS = {
    "year": _YEAR_S * NS_PER_S, "month": _MONTH_S * NS_PER_S, "day": DAY_S * NS_PER_S,
    "h": 3600 * NS_PER_S, "m": 60 * NS_PER_S, "s": NS_PER_S, "ms": 1_000_000, "us": 1000, "ns": 1,
}  # fmt: skip
_PLURAL = ("year", "month", "day")
_ALSO_READ = {
    "year": ("years", "yr", "yrs", "y"), "month": ("months", "M"), "day": ("days", "d"), "h": ("hours", "hour", "hrs", "hr"),
    "m": ("minutes", "minute", "mins", "min"), "s": ("seconds", "second", "secs", "sec"), "ms": ("millis", "msec"),
    "us": ("micros", "usec", "µs"), "ns": ("nanos", "nsec"),
}  # fmt: skip
_READ = _UNITS | {alias: _UNITS[unit] for unit, aliases in _ALSO_READ.items() for alias in aliases}
_READ |= dict.fromkeys(("weeks", "week", "wks", "wk", "w"), 7 * _UNITS["day"])


def encode_duration(ns: int) -> str:
    """`2months 29days 2h 52m 48s` for 90 days: the largest units first; only the first three have a plural."""
    parts = []
    for unit, size in _UNITS.items():
        count, ns = divmod(ns, size)
        if count:
            parts.append(f"{count}{unit}{'s' if unit in _PLURAL and count > 1 else ''}")
    return " ".join(parts) or "0s"


def decode_duration(text: str) -> int:
    """The duration in nanoseconds. Raises `ValueError`."""
    if not re.fullmatch(r"(\s*[0-9]{1,20}\s*[a-zA-Zµ]+)+\s*", text):
        raise ValueError(f"{text!r} is no duration")
    parts = re.findall(r"([0-9]+)\s*([a-zA-Zµ]+)", text)
    if unknown := [unit for _, unit in parts if unit not in _READ]:
        raise ValueError(f"{unknown[0]!r} is no unit of time")
    return sum(int(count) * _READ[unit] for count, unit in parts)
