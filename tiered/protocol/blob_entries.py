'''What a blob's metadata are as entries beside it: text by key, as services keep custom metadata. Pure; no I/O.

    x-sn-expiration         `ttl:1h`, `tti:30days`: durations as humantime, a Rust library, writes them
    x-sn-origin, x-sn-filename
    x-snme-{key}            custom entries
    x-snme-Tiered-Unknown   the JSON keys of newer software
    x-snme-tiered-packed    where entries are headers: those that no header carries as they are, as JSON, zlib, base64

The last two are our own, and are written only if there is something to keep. Other software fails on every other key,
whatever it begins with, and takes these two for custom entries. Its own have no capital letters, and none that is no
JSON object, or no such text, is taken for ours. Content type, compression, deadline and a time of creation that the
caller told have places of their own in each service.

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
from typing import Any, NamedTuple

from changelog.base.errors import CorruptRecordError
from tiered.metadata import NS_PER_S, OWN_PACKED, OWN_UNKNOWN, Expiration, Metadata, TimeToIdle, TimeToLive

Corrupt = Callable[[str, str], CorruptRecordError]
"""Makes the error of an entry that breaks the format. Given the key, and what is wrong with it."""

CUSTOM = "x-snme-"
OURS = ("x-sn-", CUSTOM)
PACKED = f"{CUSTOM}{OWN_PACKED}"
_EXPIRATION, _ORIGIN, _FILENAME = "x-sn-expiration", "x-sn-origin", "x-sn-filename"
_OLD_CREATED, _OLD_UNKNOWN, _OLD_NOT_TOLD = "x-sn-created", "x-sn-unknown", "none"
_AS_HEADER = re.compile(r"[!-~](?:[ -~]*[!-~])?")
"""Values that reach the other end of a header as they are: ASCII, not empty, no space at either end."""
_PLAIN_KEY = re.compile(r"[a-z0-9-]+")
_UNPACKED_BYTES_MAX = 1 << 16
_NANOSECONDS = re.compile(r"-?[0-9]{1,30}")
_POLICIES: dict[str, type[TimeToLive] | type[TimeToIdle]] = {"ttl": TimeToLive, "tti": TimeToIdle}
_ENCODINGS = {"Zstd": "zstd"}
_COMPRESSIONS = {encoding: compression for compression, encoding in _ENCODINGS.items()}


class Entries(NamedTuple):
    """What entries tell. `created_ns`: by older versions of this software, nanoseconds since 1970."""

    expiration: Expiration
    created_ns: int | None
    origin: str | None
    filename: str | None
    custom: Mapping[str, str]
    unknown: Mapping[str, Any]


def encode_entries(metadata: Metadata) -> dict[str, str]:
    """The entries of these metadata, without a time of creation, in an order that depends on them alone."""
    known = {
        _EXPIRATION: _encode_expiration(metadata.expiration),
        _ORIGIN: metadata.origin,
        _FILENAME: metadata.filename,
        f"{CUSTOM}{OWN_UNKNOWN}": _as_ascii(metadata.unknown) if metadata.unknown else None,
        **{f"{CUSTOM}{key}": value for key, value in sorted(metadata.custom.items())},
    }
    return {key: value for key, value in known.items() if value is not None}


def decode_entries(entries: Mapping[str, str], corrupt: Corrupt) -> Entries:
    """Reads what `encode_entries` wrote, by whatever version of this software."""
    custom: dict[str, str] = {}
    known: dict[str, str] = {}
    for key, value in entries.items():
        if key.startswith(CUSTOM):
            custom[key.removeprefix(CUSTOM)] = value
        else:
            known[key] = value
    expiration = _decode_expiration(known.get(_EXPIRATION), corrupt)
    created_ns, unknown = _decode_created(known, corrupt), _take_unknown(known, custom, corrupt)
    return Entries(expiration, created_ns, known.get(_ORIGIN), known.get(_FILENAME), custom, unknown)


_NO_CODING = ("", "identity", "aws-chunked")


def encoding_of(metadata: Metadata) -> str | None:
    """The content encoding that tells how the payload is compressed."""
    return None if metadata.compression is None else _ENCODINGS.get(metadata.compression, metadata.compression)


def compression_of(encoding: str | None) -> str | None:
    """How a payload with this content encoding is compressed.

    `identity` is no encoding (RFC 9110, 8.4.1), and `aws-chunked` is one of the request that brought the payload.
    """
    codings = [each for part in (encoding or "").split(",") if (each := part.strip()).lower() not in _NO_CODING]
    named = ",".join(codings)
    return _COMPRESSIONS.get(named, named) if named else None


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


def _take_unknown(known: Mapping[str, str], custom: dict[str, str], corrupt: Corrupt) -> Mapping[str, Any]:
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
