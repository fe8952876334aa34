"""`Metadata`, what is stored beside a payload, and the JSON in which it is stored.

A field is one row, in the class: how it is checked, stored and shown. What adapters, tables, links and the command do
with fields is derived from the rows (`FIELDS`).

In the JSON, keys are in the order of the fields, absent when empty; then keys this software does not know, kept as they
were. `custom` is sorted by key; raw UTF-8, no spaces. Times are integers of nanoseconds since 1970 here and
`{"secs_since_epoch":…,"nanos_since_epoch":…}` in JSON.

The rules for writing are stricter than those for reading. `Metadata(…)` accepts only what every backend can carry, also
as HTTP headers, and `put` checks this again. A store may refuse more (`refuse_unicode_in`). Reading accepts everything
that keeps the stored format, whoever wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from json.encoder import encode_basestring
from math import isfinite
from operator import attrgetter
from typing import Any, NoReturn, Self

from changelog.base.errors import CorruptRecordError, InvalidRequestError
from tiered.text import header_name, header_value, media_type, plain, quoted, refuse_control_characters, refuse_unicode

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


class _NotGiven(str):
    """Text that stands for itself, also after it was copied or pickled, so `is` tells it from equal text."""

    __slots__ = ()

    def __reduce__(self) -> str:
        return "CONTENT_TYPE_DEFAULT"


CONTENT_TYPE_DEFAULT: str = _NotGiven("application/octet-stream")
"""The content type of metadata in which nobody gave one. `put` may guess a better one, but never over a given one."""

DEADLINE_MAX_NS = 253_402_300_799 * NS_PER_S
"""The last second of the year 9999. RFC 3339 and `datetime` cannot tell a later one."""

SIZE_MAX = (1 << 63) - 1
NESTED_MAX = 32
"""How deeply lists and objects may be nested in `unknown`, so that a reader does not reach its recursion limit."""

METADATA_BYTES_MAX = 8192
"""How many bytes of metadata storage services accept beside an object."""
_LONGER_BESIDE_A_BLOB = 64
"""A blob's metadata may be this many bytes longer than the JSON, and one byte longer for each key of `custom`."""

OWN_UNKNOWN, OWN_PACKED = "Tiered-Unknown", "tiered-packed"
"""Custom keys that only the store uses: a blob keeps under them what its format has no place for."""

TOUCH_SLACK_MAX_NS = 24 * 3600 * NS_PER_S


@dataclass(frozen=True, slots=True)
class _ExpiryPolicy:
    ns: int

    def __init__(self, lifetime: timedelta | None = None, *, ns: int | None = None) -> None:
        if (lifetime is None) == (ns is None):
            raise InvalidRequestError("give a lifetime either as a timedelta or as ns=")
        if lifetime is not None and not isinstance(lifetime, timedelta):
            raise InvalidRequestError(f"a lifetime is a timedelta such as timedelta(hours=1), not {quoted(lifetime)}")
        value = ns if lifetime is None else lifetime // timedelta(microseconds=1) * 1000
        if type(value) is not int or value <= 0:
            raise InvalidRequestError(f"a lifetime must be longer than nothing, not {quoted(lifetime if ns is None else ns)}")
        if value > DEADLINE_MAX_NS:
            raise InvalidRequestError(f"a lifetime of {quoted(lifetime if ns is None else ns)} ends after the year 9999; leave it out")
        object.__setattr__(self, "ns", value)

    @classmethod
    def stored(cls, ns: int) -> Self:
        """A lifetime as a record has it. It may be 0, and then the object is expired. `ValueError`: it is negative."""
        if ns < 0:
            raise ValueError(f"{ns} is no lifetime")
        found = object.__new__(cls)
        object.__setattr__(found, "ns", ns)
        return found


class TimeToLive(_ExpiryPolicy):
    """The object expires this long after it was written. `TimeToLive(timedelta(hours=1))`."""


class TimeToIdle(_ExpiryPolicy):
    """The object expires this long after it was last read or written."""


Expiration = TimeToLive | TimeToIdle | None
"""None means manual: the object stays until it is deleted."""

SHA256_KEY = "tiered-sha256"
"""The key of `Metadata.custom` that tells the SHA-256 of the stored bytes, in hexadecimal. `tiered sync` goes by it."""

_LIFETIMES: dict[str, type[TimeToLive] | type[TimeToIdle]] = {"TimeToLive": TimeToLive, "TimeToIdle": TimeToIdle}


# --- how single fields are checked, written and read ------------------------------------------------


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_json = _ENCODER.encode


def _dump(value: dict[str, Any]) -> bytes:
    return _json(value).encode()


def encode_policy(expiration: Expiration) -> dict[str, Any] | None:
    """`{"TimeToLive":{"secs":…,"nanos":…}}`, or None if the object stays until it is deleted."""
    if expiration is None:
        return None
    secs, nanos = divmod(expiration.ns, NS_PER_S)
    return {type(expiration).__name__: {"secs": secs, "nanos": nanos}}


def decode_policy(value: dict[str, Any] | None) -> Expiration:
    """Reads what `encode_policy` makes. Raises `CorruptRecordError`."""
    if value is None:
        return None
    try:
        (kind, lifetime), = value.items()
        secs, nanos = lifetime["secs"], lifetime.get("nanos", 0)
        if type(secs) is not int or type(nanos) is not int:
            raise TypeError("a lifetime is whole numbers")
        return _LIFETIMES[kind].stored(secs * NS_PER_S + nanos)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise CorruptRecordError(f"metadata: expiration_policy {value!r} is not TimeToLive or TimeToIdle") from None


def _decode_time(value: dict[str, Any]) -> int:
    secs, nanos = value.get("secs_since_epoch"), value.get("nanos_since_epoch", 0)
    if type(secs) is not int or type(nanos) is not int:
        raise CorruptRecordError(f"metadata: {value!r} is not a time")
    return secs * NS_PER_S + nanos


def _write_time(ns: int) -> str:
    return f'{{"secs_since_epoch":{ns // NS_PER_S},"nanos_since_epoch":{ns % NS_PER_S}}}'


def _decode_custom(value: dict[str, Any]) -> dict[str, str]:
    if not all(isinstance(text, str) for text in value.values()):
        raise CorruptRecordError("metadata: 'custom' holds something that is not text")
    return value


_ENCODINGS, _COMPRESSIONS = {"Zstd": "zstd"}, {"zstd": "Zstd"}
_NO_CODING = ("", "identity", "aws-chunked")


def _encoding_of(compression: str) -> str:
    """The content encoding that tells of a compression."""
    return _ENCODINGS.get(compression, compression)


def _compression_of(encoding: str) -> str | None:
    """How a payload with this content encoding is compressed.

    `identity` is no encoding (RFC 9110, 8.4.1), and `aws-chunked` is one of the request that brought the payload.
    """
    codings = [each for part in encoding.split(",") if (each := part.strip()).lower() not in _NO_CODING]
    named = ",".join(codings)
    return _COMPRESSIONS.get(named, named) if named else None


def _checked_text(name: str, value: object) -> str | None:
    return header_value(name, value) or None  # absent when empty


def _checked_ascii(name: str, value: object) -> str | None:
    if (text := _checked_text(name, value)) is not None and not text.isascii():
        raise InvalidRequestError(f"{name} {quoted(text)} is not ASCII, and a header carries nothing else for certain")
    return text


def _checked_compression(name: str, value: object) -> str | None:
    if (text := _checked_text(name, value)) not in (None, "Zstd"):
        raise InvalidRequestError(f"compression {quoted(text)} is not known; it is 'Zstd' or absent")
    return text


def _checked_expiration(name: str, value: Any) -> Expiration:
    if type(value) not in _LIFETIMES.values() or value.ns <= 0:
        raise InvalidRequestError(f"{name} is TimeToLive(…), TimeToIdle(…) or None, not {quoted(value)}")
    return value  # type: ignore[no-any-return]


def _checked_number(maximum: int, unit: str, name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= maximum:
        raise InvalidRequestError(f"{name} is {quoted(value)}, not {unit}: pass an int, or leave it out")
    return value


_checked_time = partial(_checked_number, DEADLINE_MAX_NS, "nanoseconds from 1970 to the year 9999")
_checked_size = partial(_checked_number, SIZE_MAX, "a number of bytes")


def _checked_custom(custom: object) -> dict[str, str]:
    if type(custom) is not dict and not isinstance(custom, Mapping):  # an ABC is slow to ask
        raise InvalidRequestError(f"custom is a mapping of text to text, not {quoted(custom)}")
    if not custom:
        return {}
    checked = {header_name("custom key", key): header_value(f"custom value of {quoted(key)}", value) for key, value in custom.items()}
    lower = {key.lower() for key in checked}
    if taken := lower & {OWN_UNKNOWN.lower(), OWN_PACKED}:
        raise InvalidRequestError(f"custom key {min(taken)!r} is this software's own; choose another")
    if len(lower) < len(custom):
        raise InvalidRequestError(f"custom has keys that differ only in case, which are one HTTP header: {quoted(sorted(checked))}")
    return checked


def _checked_unknown(unknown: object) -> dict[str, Any]:
    if type(unknown) is not dict and not isinstance(unknown, Mapping):
        raise InvalidRequestError(f"unknown is a mapping of text to what JSON can hold, not {quoted(unknown)}")
    if not unknown:
        return {}
    if known := _KEYS.keys() & unknown.keys():
        raise InvalidRequestError(f"unknown has the key {min(known)!r}, which is no unknown one: set the field of that name")
    checked: dict[str, Any] = _plain_json(dict(unknown), NESTED_MAX + 1, iter(range(METADATA_BYTES_MAX)))
    try:
        refuse_control_characters("unknown", _dump(checked).decode())
    except ValueError as error:
        raise InvalidRequestError(f"unknown cannot be stored as JSON: {error}") from None
    return checked


def _plain_json(value: Any, levels: int, places: Iterator[int]) -> Any:
    """A copy of which JSON returns every value unchanged: no tuples, only text as keys, no NaN.

    `places` gives one item for each value, and every value takes at least one byte: this bounds the size early.
    """
    if next(places, None) is None:
        raise InvalidRequestError(f"unknown takes more than the {METADATA_BYTES_MAX} bytes that fit: put it into the payload")
    kind = type(value)
    if value is None or kind in (bool, int) or (kind is float and isfinite(value)):
        return value
    if isinstance(value, str):
        return plain("a text in unknown", value)
    if kind in (list, dict) and levels == 0:
        raise InvalidRequestError(f"unknown is nested more than {NESTED_MAX} levels deep")
    if kind is list:
        return [_plain_json(item, levels - 1, places) for item in value]
    if kind is dict:
        return {plain("a key in unknown", key): _plain_json(item, levels - 1, places) for key, item in value.items()}
    raise InvalidRequestError(f"unknown holds {quoted(value)}, which JSON would not give back: use None, bool, int, float, str, list, dict")


# --- the fields -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataField:
    """The row of a field of `Metadata`: all in which it differs from the others.

    `check`: given the name and what a caller passed, returns what is kept, or raises `InvalidRequestError`. `key`: in
    the stored JSON; None: the name. `kind`: the type that JSON gives. `write` makes the JSON of a value, and `read` the
    value of what JSON gave (None: it is the value).

    Beside a blob, the field is in one of these places. `header`: a header of HTTP that GCS and S3 keep, and links show;
    its `check` accepts ASCII only, also if none is given; `tell` and `hear` translate its value. `entry`: an entry of
    this key. `is_placed`: each service has a place for it, which its adapter knows. Without all three it is with the
    unknown keys, on which no other software fails.

    `is_column`: tables and `tiered://` show it. `option`: what the option of the command shows for its value, and its
    help; None: there is no such option.
    """

    check: Callable[[str, Any], Any]
    key: str | None = None
    kind: type[Any] = str
    write: Callable[[Any], str] = encode_basestring
    read: Callable[[Any], Any] | None = None
    header: str | None = None
    tell: Callable[[str], str] = str
    hear: Callable[[str], str | None] = str
    entry: str | None = None
    is_placed: bool = False
    is_column: bool = False
    option: tuple[str, str] | None = None


def _row(**row: Any) -> Mapping[str, MetadataField]:
    return {"row": MetadataField(**{"check": _checked_ascii if "header" in row else _checked_text, **row})}


_time = partial(_row, check=_checked_time, kind=dict, write=_write_time, read=_decode_time, is_placed=True)


@dataclass(frozen=True, slots=True)
class Metadata:
    """What is known of a payload.

    When the store writes, it fills in creation and size if they are None, and the expiry.

    `expiration`: `TimeToLive`, `TimeToIdle` or None. `content_type`: if it is left out and the payload is a path, `put`
    guesses it from the file's name. `time_created_ns`, `time_expires_ns`: nanoseconds since 1970, up
    to the year 9999; a write computes `time_expires_ns` from `expiration`. `compression`: `Zstd` if the payload is
    compressed so. `size`: length in bytes; if it is given, a payload of another length is refused. `custom`: text of
    the caller's own. `unknown`: JSON keys that newer software wrote; they are kept.

    Some readers get the texts as HTTP headers. So a text has no control characters and no space at either end,
    `content_type` is type/subtype in ASCII, keys of `custom` are HTTP tokens, and no two of them differ only in case.
    All together takes at most 8 KiB. `InvalidRequestError` names the part that breaks a rule. The mappings are copied.

    A store that writes also refuses an `origin`, a `filename` and values of `custom` that are not ASCII, unless
    `store.unicode_metadata` is set. `urllib.parse.quote` makes such a text ASCII; links tell a browser the file name
    that it stands for.
    """

    expiration: Expiration = field(default=None, metadata=_row(
        key="expiration_policy", check=_checked_expiration, kind=dict, write=lambda policy: _json(encode_policy(policy)),
        read=decode_policy, is_placed=True,
    ))  # fmt: skip
    time_created_ns: int | None = field(default=None, metadata=_time(key="time_created"))
    time_expires_ns: int | None = field(default=None, metadata=_time(key="time_expires"))
    content_type: str = field(default=CONTENT_TYPE_DEFAULT, metadata=_row(
        check=media_type, read=lambda text: text or CONTENT_TYPE_DEFAULT, header="Content-Type", is_column=True,
        option=("TYPE", "MIME type"),
    ))  # fmt: skip
    compression: str | None = field(default=None, metadata=_row(
        check=_checked_compression, header="Content-Encoding", tell=_encoding_of, hear=_compression_of, is_column=True,
    ))  # fmt: skip
    origin: str | None = field(default=None, metadata=_row(entry="x-sn-origin", option=("TEXT", "Where the object comes from")))
    filename: str | None = field(default=None, metadata=_row(
        entry="x-sn-filename", option=("NAME", "The file's name to keep with the object"),
    ))  # fmt: skip
    size: int | None = field(default=None, metadata=_row(check=_checked_size, kind=int, write=str, is_placed=True))
    custom: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_long = False
        for name, default, check, keep, value in zip(_NAMES, _SCALARS, _CHECKS, _SETTERS, _values_of(self)):  # noqa: B905 - each put pays for it
            if value is not default:
                kept = check(name, value)
                keep(self, kept)
                is_long = is_long or type(kept) is str
        object.__setattr__(self, "custom", _checked_custom(self.custom))
        object.__setattr__(self, "unknown", _checked_unknown(self.unknown))
        if is_long or self.custom or self.unknown:
            self._check_bytes()

    def with_facts(self, **facts: int | str | Expiration | Mapping[str, str]) -> Metadata:
        """The same metadata with another `size`, `expiration`, `compression` or `custom`, or other times.

        Texts are not checked, because other software may have stored them.
        """
        values = list(_values_of(self))
        for name, fact in facts.items():
            values[_PLACES[name]] = fact
        return _made(values)

    @property
    def time_created(self) -> datetime | None:
        """`time_created_ns` as a `datetime` in UTC, to the microsecond."""
        return as_datetime(self.time_created_ns)

    @property
    def time_expires(self) -> datetime | None:
        """`time_expires_ns` as a `datetime` in UTC, to the microsecond."""
        return as_datetime(self.time_expires_ns)

    def keeping(self, now_ns: int) -> dict[str, int | None]:
        """What `stamps` returns, with the deadline as it is. `InvalidRequestError`: it has passed, or has no policy."""
        if (self.time_expires_ns is None) != (self.expiration is None):
            raise InvalidRequestError("keep_deadline needs both expiration and time_expires_ns, or neither")
        if is_expired(self.time_expires_ns, now_ns):
            raise InvalidRequestError("the object has expired already; leave it out")
        deadline = None if self.time_expires_ns is None else whole_ms(self.time_expires_ns)
        return {**self.with_facts(expiration=None, time_expires_ns=None).stamps(now_ns), "time_expires_ns": deadline}

    def stamped(self, now_ns: int) -> Metadata:
        """The metadata as a write at `now_ns` stores it, with the time of creation and the deadline filled in."""
        return self.with_facts(**self.stamps(now_ns))

    def stamps(self, now_ns: int) -> dict[str, int | None]:
        """The time of creation and the deadline that a write at `now_ns` fills in, by their names.

        The deadline follows from the policy. It is a whole number of milliseconds, because rows keep no finer one. A
        time of creation that is already set stays. `InvalidRequestError`: an expiry was set without a policy, or the
        object would expire after the year 9999.
        """
        if self.time_expires_ns is not None and self.expiration is None:
            raise InvalidRequestError("time_expires is computed: set expiration to TimeToLive or TimeToIdle instead")
        deadline = None if self.expiration is None else whole_ms(now_ns + self.expiration.ns)
        if deadline is not None and deadline > DEADLINE_MAX_NS:
            raise InvalidRequestError("the object would expire after the year 9999; leave its expiration out")
        created = now_ns if self.time_created_ns is None else self.time_created_ns
        return {"time_created_ns": created, "time_expires_ns": deadline}

    def _check_bytes(self) -> None:
        size = len(encode_metadata(self)) + len(self.custom) + _LONGER_BESIDE_A_BLOB
        if (self.unknown or WITH_UNKNOWN) and (unknown := unknown_beside(self)):  # ASCII beside a blob, so with escapes
            size += len(json.dumps(unknown, separators=(",", ":"))) - len(_dump(unknown))
        if size > METADATA_BYTES_MAX:
            raise InvalidRequestError(f"the metadata takes {size} bytes; at most {METADATA_BYTES_MAX} fit: put it into the payload")


FIELDS: Mapping[str, MetadataField] = {each.name: each.metadata["row"] for each in fields(Metadata) if each.metadata}
"""The row of each field, by its name; all but `custom` and `unknown`, which hold what is no field."""
COLUMNS = tuple(name for name, row in FIELDS.items() if row.is_column)
"""The fields that tables and `tiered://` show. All of them are texts."""
WITH_UNKNOWN = [
    (name, row.key or name, row) for name, row in FIELDS.items() if row.header is None and row.entry is None and not row.is_placed
]  # fmt: skip
_MAYBE_UNICODE = tuple(name for name, row in FIELDS.items() if row.kind is str and row.header is None)
_NAMES, _ROWS = tuple(FIELDS), tuple(FIELDS.values())
_SCALARS = tuple(each.default for each in fields(Metadata) if each.metadata)
_CHECKS, _WRITERS = tuple(row.check for row in _ROWS), tuple(row.write for row in _ROWS)
_PLACES = {each.name: place for place, each in enumerate(fields(Metadata))}
_SETTERS = tuple(Metadata.__dict__[name].__set__ for name in _PLACES)
_values_of = attrgetter(*_PLACES)
_KEYS: dict[str, tuple[int, type[Any], Callable[[Any], Any] | None]] = {
    **{row.key or name: (_PLACES[name], row.kind, row.read) for name, row in FIELDS.items()},
    "custom": (_PLACES["custom"], dict, _decode_custom),
}
"""The known keys: the place of their field, the type that JSON must give, and what reads that."""
_QUOTED = tuple(f'"{row.key or name}":' for name, row in FIELDS.items())


def _made(values: Iterable[Any]) -> Metadata:
    """Metadata from the values of all fields, in their order. It checks none of the rules for writing."""
    made = object.__new__(Metadata)
    for assign, value in zip(_SETTERS, values):  # noqa: B905 - each put pays for it
        assign(made, value)
    return made


def no_metadata() -> Metadata:
    """What `Metadata()` makes, in a fifth of its time: there is nothing to check. The mappings are new."""
    return _made((*_SCALARS, {}, {}))


def unknown_beside(metadata: Metadata) -> dict[str, Any]:
    """What is with the unknown keys beside a blob: these, and those of the fields that have no other place there."""
    told = [(key, row.write, value) for name, key, row in WITH_UNKNOWN if (value := getattr(metadata, name)) is not None]
    return {**{key: json.loads(write(value)) for key, write, value in told}, **metadata.unknown}


def columns_of(metadata: Metadata | None) -> dict[str, str | None]:
    """The values of `COLUMNS`, by their names."""
    told = {name: None if metadata is None else getattr(metadata, name) for name in COLUMNS}
    return {name: None if value is None else str(value) for name, value in told.items()}


def refuse_unicode_in(metadata: Metadata, stored: Metadata | None = None) -> None:
    """Raises `InvalidRequestError` for a text that is not ASCII. It names the field.

    `metadata` has passed its constructor. `stored`: what the object has now; a text of it that stays is not checked.
    """
    for part in _MAYBE_UNICODE:
        text = getattr(metadata, part)
        if text and (stored is None or text != getattr(stored, part)):
            refuse_unicode(part, text)
    for key, text in metadata.custom.items():
        if stored is None or text != stored.custom.get(key):
            refuse_unicode(f"custom value of {key!r}", text)


def deadline_from(at: object, from_creation: object) -> datetime | timedelta | None:
    """What a caller says about an expiry, checked: a time, a time after the creation, or never (None)."""
    if at is not None and from_creation is not None:
        raise InvalidRequestError("at and from_creation exclude each other: pass one of them, or neither for an object that stays")
    if at is not None and not _is_time(at):
        raise InvalidRequestError(f"at is a datetime with a time zone, such as datetime.now(UTC) + timedelta(days=1), not {quoted(at)}")
    if from_creation is not None and not isinstance(from_creation, timedelta):
        raise InvalidRequestError(f"from_creation is a timedelta, not {quoted(from_creation)}")
    return at if isinstance(at, datetime) else from_creation if isinstance(from_creation, timedelta) else None


def _is_time(value: object) -> bool:
    """Whether it is a `datetime` with a time zone. Some are no time at all, such as `NaT` of pandas."""
    try:
        return isinstance(value, datetime) and value.utcoffset() is not None and type((value - _EPOCH) // _MICROSECOND) is int
    except (ValueError, TypeError, OverflowError):
        return False


def expiring(metadata: Metadata, deadline: datetime | timedelta | None, now_ns: int, *, extend_only: bool) -> Metadata:
    """The metadata with this deadline. `extend_only`: the same metadata if the object lives longer.

    `InvalidRequestError`: the deadline has passed, or lies after the year 9999.
    """
    created_ns = now_ns if metadata.time_created_ns is None else metadata.time_created_ns
    if deadline is None:
        return metadata.with_facts(time_expires_ns=None, expiration=None)
    lives = deadline if isinstance(deadline, timedelta) else deadline - _EPOCH
    deadline_ns = whole_ms(lives // _MICROSECOND * 1000 + (created_ns if isinstance(deadline, timedelta) else 0))
    if extend_only and (metadata.time_expires_ns is None or metadata.time_expires_ns >= deadline_ns):
        return metadata
    if deadline_ns <= now_ns:
        raise InvalidRequestError("the object would have expired already: delete it, or name a later time")
    if deadline_ns > DEADLINE_MAX_NS:
        raise InvalidRequestError("the object would expire after the year 9999; pass neither at nor from_creation")
    return metadata.with_facts(time_expires_ns=deadline_ns, expiration=TimeToLive(ns=max(1, deadline_ns - created_ns)))


def touch_deadline(expiration: Expiration, deadline_ns: int | None, now_ns: int) -> int | None:
    """The new deadline (ns since 1970) that a read at `now_ns` should give to an object.

    None: the object has no time to idle, or its deadline was extended not long ago.
    """
    if not isinstance(expiration, TimeToIdle) or deadline_ns is None:
        return None
    idle = expiration.ns
    renewed_ns = min(now_ns + idle, DEADLINE_MAX_NS)  # a stored lifetime has no upper limit
    renew = deadline_ns < renewed_ns - min(idle // 4, TOUCH_SLACK_MAX_NS)
    return whole_ms(renewed_ns) if renew else None


def whole_ms(ns: int) -> int:
    return ns // NS_PER_MS * NS_PER_MS


def without_stale_sha256(metadata: Metadata, checksums: Mapping[str, str] | None) -> Metadata:
    """Without `SHA256_KEY`, unless it is declared of the bytes that are stored with it: then they are compared.

    Whoever puts other bytes with the metadata that an object had would keep a false one, and a sync would trust it.
    """
    noted = metadata.custom.get(SHA256_KEY)
    if noted is None or (checksums is not None and checksums.get("sha256") == noted):
        return metadata
    return metadata.with_facts(custom={key: value for key, value in metadata.custom.items() if key != SHA256_KEY})


def is_expired(deadline_ns: int | None, now_ns: int) -> bool:
    """Whether the deadline has passed. Only readers ask this, by their own clock; writers and recovery never do."""
    return deadline_ns is not None and deadline_ns <= now_ns


def encode_metadata(metadata: Metadata) -> bytes:
    """The stored JSON. Equal metadata always give the same bytes."""
    # The object is put together here, and only what is inside of it by `json`: each put pays for this.
    told = zip(_QUOTED, _WRITERS, _values_of(metadata))  # noqa: B905 - each put pays for it
    parts = [key + write(value) for key, write, value in told if value is not None]
    if metadata.custom:
        parts.append(f'"custom":{_json(dict(sorted(metadata.custom.items())))}')
    if metadata.unknown:
        parts += [f"{encode_basestring(key)}:{_json(item)}" for key, item in metadata.unknown.items() if key not in _KEYS]
    return f"{{{','.join(parts)}}}".encode()


def decode_metadata(raw: bytes) -> Metadata:
    """Reads stored JSON. `CorruptRecordError` says what breaks the format."""
    try:
        value = _DECODER.decode(raw.decode())
        if b"\\u" in raw:  # half of a surrogate pair may be written so, and could never be written again
            _dump(value)
    except (ValueError, RecursionError) as error:
        raise CorruptRecordError(f"metadata is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CorruptRecordError("metadata is not a JSON object")
    unknown: dict[str, Any] = {}
    values = [*_SCALARS, {}, unknown]
    for key, item in value.items():
        if key not in _KEYS:
            unknown[key] = item
        elif item is not None:
            place, kind, read = _KEYS[key]
            if type(item) is not kind:
                raise CorruptRecordError(f"metadata: {key!r} is {item!r}, not {kind.__name__}")
            values[place] = item if read is None else read(item)
    return _made(values)


def metadata_of_row(row: str, raw: bytes | None, deadline_ns: int | None, size: int) -> Metadata:
    """The metadata of a row (I7): its deadline counts, and the size of its payload, whatever the JSON says."""
    if raw is None:
        raise CorruptRecordError(f"the row {row} has a payload and no metadata")
    try:
        told = decode_metadata(raw)
    except CorruptRecordError as error:
        raise CorruptRecordError(f"the row {row} breaks the format: {error}") from error
    if told.size == size and told.time_expires_ns == deadline_ns:  # as nearly always; to copy them costs more
        return told
    return told.with_facts(time_expires_ns=deadline_ns, size=size)


def encode_described(metadata: Metadata) -> bytes:
    """What a row keeps of its blob's metadata: all but the deadline, which the row has elsewhere."""
    return encode_metadata(metadata if metadata.time_expires_ns is None else metadata.with_facts(time_expires_ns=None))


def described_by_row(raw: bytes | None, deadline_ns: int | None) -> Metadata | None:
    """The metadata of the blob that a row names, with size and time of creation. None: the row does not tell them.

    The blob has them all, so what cannot be read counts as not told.
    """
    if raw is None:
        return None
    with suppress(CorruptRecordError):
        told = decode_metadata(raw)
        if told.time_created_ns is not None and told.size is not None and 0 <= told.size <= SIZE_MAX:
            return told if deadline_ns is None else told.with_facts(time_expires_ns=deadline_ns)
    return None


def policy_of_row(row: str, policy: str | None) -> Expiration:
    try:
        return decode_policy(json.loads(policy or ""))
    except (ValueError, RecursionError, CorruptRecordError) as error:
        raise CorruptRecordError(f"the row {row} has {quoted(policy)} for its expiration policy, which is none") from error


def as_datetime(ns: int | None) -> datetime | None:
    """To the microsecond, which is all that `datetime` holds.

    For a stored time that it cannot hold, the nearest that it can.
    """
    return None if ns is None else _EPOCH + timedelta(microseconds=min(max(ns // 1000, _FIRST_US), _LAST_US))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST_US, _LAST_US = ((end.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND for end in (datetime.min, datetime.max))
