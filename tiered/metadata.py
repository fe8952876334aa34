"""`Metadata`, what is stored beside a payload, and its JSON (formats of the stored rows).

Keys in this order, absent when empty: expiration_policy, time_created, time_expires, content_type,
compression, origin, filename, size, custom; then keys this software does not know, kept as they were.
`custom` is sorted by key; raw UTF-8, no spaces. Times are integers of nanoseconds since 1970 here and
`{"secs_since_epoch":…,"nanos_since_epoch":…}` in JSON. Compression is recorded, never performed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from changelog.errors import CorruptRecordError, InvalidRequestError

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
CONTENT_TYPE_DEFAULT = "application/octet-stream"
DEADLINE_MAX_NS = 253_402_300_799 * NS_PER_S
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
METADATA_BYTES_MAX = 8192
"""What storage services accept beside an object."""
_LONGER_BESIDE_A_BLOB = 64
"""By how much a blob's metadata may be longer than the JSON; so may each key of `custom`, by one byte."""

TOLD_CREATED, TOLD_UNKNOWN = "tiered-created", "tiered-unknown"
"""Custom keys that are ours: under these, a blob in GCS keeps what its format has no place for."""

TOUCH_SLACK_MAX_NS = 24 * 3600 * NS_PER_S


@dataclass(frozen=True, slots=True)
class _Lifetime:
    ns: int

    def __init__(self, lifetime: timedelta | None = None, *, ns: int | None = None) -> None:
        if (lifetime is None) == (ns is None):
            raise InvalidRequestError("give a lifetime either as a timedelta or as ns=")
        if lifetime is not None and not isinstance(lifetime, timedelta):
            raise InvalidRequestError(f"a lifetime is a timedelta such as timedelta(hours=1), not {lifetime!r}")
        value = ns if lifetime is None else lifetime // timedelta(microseconds=1) * 1000
        if type(value) is not int or value <= 0:
            raise InvalidRequestError(f"a lifetime must be longer than nothing, not {lifetime if ns is None else ns}")
        object.__setattr__(self, "ns", value)


class TimeToLive(_Lifetime):
    """The object expires this long after it was written. `TimeToLive(timedelta(hours=1))`."""


class TimeToIdle(_Lifetime):
    """The object expires this long after it was last read or written."""


Expiration = TimeToLive | TimeToIdle | None
"""None: manual, the object stays until it is deleted."""

_LIFETIMES: dict[str, type[TimeToLive] | type[TimeToIdle]] = {"TimeToLive": TimeToLive, "TimeToIdle": TimeToIdle}


@dataclass(frozen=True, slots=True)
class Metadata:
    """What is known of a payload. The store fills in what is None when it writes: creation, expiry, size.

    `time_created_ns`, `time_expires_ns`: nanoseconds since 1970. `size`: bytes; declare it and a payload of
    another length is refused. `custom`: the caller's own text. `unknown`: JSON keys of newer software, kept.
    """

    expiration: Expiration = None
    time_created_ns: int | None = None
    time_expires_ns: int | None = None
    content_type: str = CONTENT_TYPE_DEFAULT
    compression: str | None = None
    origin: str | None = None
    filename: str | None = None
    size: int | None = None
    custom: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def time_created(self) -> datetime | None:
        return _datetime(self.time_created_ns)

    @property
    def time_expires(self) -> datetime | None:
        return _datetime(self.time_expires_ns)

    def stamped(self, now_ns: int) -> Metadata:
        """As it is written at `now_ns`: created now unless told otherwise, expiring by its policy.

        A deadline is a whole millisecond, the resolution at which rows keep it.
        """
        if self.time_expires_ns is not None and self.expiration is None:
            raise InvalidRequestError("time_expires is computed: set expiration to TimeToLive or TimeToIdle instead")
        deadline = None if self.expiration is None else whole_ms(now_ns + self.expiration.ns)
        if deadline is not None and deadline > DEADLINE_MAX_NS:
            raise InvalidRequestError("the object would expire after the year 9999; leave its expiration out")
        created = now_ns if self.time_created_ns is None else self.time_created_ns
        return replace(self, time_created_ns=created, time_expires_ns=deadline)

    def validate(self) -> None:
        """Raises `InvalidRequestError` unless it can be stored and read back as it is."""
        if self.expiration is not None and not isinstance(self.expiration, _Lifetime):
            raise InvalidRequestError(f"expiration is TimeToLive(…), TimeToIdle(…) or None, not {self.expiration!r}")
        texts = {"content_type": self.content_type, "compression": self.compression, "origin": self.origin, "filename": self.filename}
        for name, text in texts.items():
            if text is not None:
                _validate_text(name, text)
        if not self.content_type:
            raise InvalidRequestError(f"content_type is empty; leave it out for {CONTENT_TYPE_DEFAULT}")
        if self.compression not in (None, "Zstd"):
            raise InvalidRequestError(f"compression {self.compression!r} is not known; it is 'Zstd' or absent")
        if self.size is not None and (type(self.size) is not int or self.size < 0):
            raise InvalidRequestError(f"size {self.size!r} is not a number of bytes")
        for key, value in self.custom.items():
            _validate_text("custom key", key)
            _validate_text(f"custom value of {key!r}", value)
        _validate_unreserved(self.custom)
        if any(texts.values()) or self.custom or self.unknown:
            self._validate_size()

    def _validate_size(self) -> None:
        if (size := len(encode_metadata(self)) + len(self.custom) + _LONGER_BESIDE_A_BLOB) > METADATA_BYTES_MAX:
            raise InvalidRequestError(f"the metadata takes {size} bytes; at most {METADATA_BYTES_MAX} fit: put it into the payload")


def touch_deadline(expiration: Expiration, deadline_ns: int | None, now_ns: int) -> int | None:
    """The deadline that a read at `now_ns` should extend an object to; None: it was extended lately, or never is."""
    if not isinstance(expiration, TimeToIdle) or deadline_ns is None:
        return None
    idle = expiration.ns
    renew = deadline_ns < now_ns + idle - min(idle // 4, TOUCH_SLACK_MAX_NS)
    return whole_ms(now_ns + idle) if renew else None


def whole_ms(ns: int) -> int:
    return ns // NS_PER_MS * NS_PER_MS


def is_expired(deadline_ns: int | None, now_ns: int) -> bool:
    """Readers judge expiry, by their own clock; writers and recovery never do."""
    return deadline_ns is not None and deadline_ns <= now_ns


def encode_metadata(metadata: Metadata) -> bytes:
    """The stored JSON, byte for byte stable."""
    value: dict[str, Any] = {
        "expiration_policy": encode_policy(metadata.expiration),
        "time_created": _encode_time(metadata.time_created_ns),
        "time_expires": _encode_time(metadata.time_expires_ns),
        "content_type": metadata.content_type,
        "compression": metadata.compression,
        "origin": metadata.origin,
        "filename": metadata.filename,
        "size": metadata.size,
        "custom": dict(sorted(metadata.custom.items())) or None,
    }
    known = {key: item for key, item in value.items() if item is not None}
    return _dump(known | {key: item for key, item in metadata.unknown.items() if key not in value})


def decode_metadata(raw: bytes) -> Metadata:
    """Reads stored JSON. Raises `CorruptRecordError` naming the key that breaks the format."""
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise CorruptRecordError(f"metadata is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CorruptRecordError("metadata is not a JSON object")
    custom = _take(value, "custom", dict) or {}
    if not all(isinstance(text, str) for text in custom.values()):
        raise CorruptRecordError("metadata: 'custom' holds something that is not text")
    content_type = _take(value, "content_type", str) or CONTENT_TYPE_DEFAULT
    return Metadata(
        decode_policy(_take(value, "expiration_policy", dict)),
        _decode_time(_take(value, "time_created", dict)), _decode_time(_take(value, "time_expires", dict)),
        content_type, _take(value, "compression", str), _take(value, "origin", str), _take(value, "filename", str),
        _take(value, "size", int), custom, value,
    )


def encode_policy(expiration: Expiration) -> dict[str, Any] | None:
    """`{"TimeToLive":{"secs":…,"nanos":…}}`, or None for manual."""
    if expiration is None:
        return None
    secs, nanos = divmod(expiration.ns, NS_PER_S)
    return {type(expiration).__name__: {"secs": secs, "nanos": nanos}}


def decode_policy(value: dict[str, Any] | None) -> Expiration:
    if value is None:
        return None
    try:
        (kind, lifetime), = value.items()
        ns = lifetime["secs"] * NS_PER_S + lifetime.get("nanos", 0)
        return _LIFETIMES[kind](ns=ns)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise CorruptRecordError(f"metadata: expiration_policy {value!r} is not TimeToLive or TimeToIdle") from None


def _take(value: dict[str, Any], key: str, kind: type[Any]) -> Any:
    """Removes `key` from `value`, so that what remains is what we do not know."""
    item = value.pop(key, None)
    if item is not None and type(item) is not kind:
        raise CorruptRecordError(f"metadata: {key!r} is {item!r}, not {kind.__name__}")
    return item


def _encode_time(ns: int | None) -> dict[str, int] | None:
    return None if ns is None else {"secs_since_epoch": ns // NS_PER_S, "nanos_since_epoch": ns % NS_PER_S}


def _decode_time(value: dict[str, Any] | None) -> int | None:
    if value is None:
        return None
    secs, nanos = value.get("secs_since_epoch"), value.get("nanos_since_epoch", 0)
    if type(secs) is not int or type(nanos) is not int:
        raise CorruptRecordError(f"metadata: {value!r} is not a time")
    return secs * NS_PER_S + nanos


def _datetime(ns: int | None) -> datetime | None:
    """To the microsecond, which is all that `datetime` can hold."""
    return None if ns is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)


def _dump(value: dict[str, Any]) -> bytes:
    return _ENCODER.encode(value).encode()


def _validate_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise InvalidRequestError(f"{name} is {text!r}, not text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{name} {text!r} is not valid Unicode: {error.reason}") from None
    if any(character in text for character in "\r\n\0"):
        raise InvalidRequestError(f"{name} {text!r} has a line break or NUL, which HTTP headers cannot carry")


def _validate_unreserved(custom: Mapping[str, str]) -> None:
    if taken := [key for key in custom if key.lower() in (TOLD_CREATED, TOLD_UNKNOWN)]:
        raise InvalidRequestError(f"custom key {taken[0]!r} is this software's own; choose another")
