"""The messages of a change feed, after the protocol CDC v2, as values. Pure.

    Update(data, time, diff)            at `time`, the multiplicity of the record `data` changes by `diff`
    Updates(updates)                    some updates, sent together; how they are cut into messages means nothing
    Progress(lower, upper, counts)      for each time from `lower` up to, but not with, `upper`: how many distinct
                                        updates it has. A time without a count has none.

`lower` and `upper` hold one time each, or none. An empty `upper` says that the feed ends: all later times have no
updates. Two updates are the same if data, time and diff are. A channel may repeat and reorder messages.

The values check types and ranges only. Whether messages contradict each other is the business of a reader.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from json import JSONEncoder
from json.encoder import encode_basestring
from typing import Any, TypeAlias, cast

from changelog.base.errors import InvalidRequestError
from tiered.text import quoted

Json: TypeAlias = Any
"""None, a bool, an int, a float, a str, a list of these, or a dict from str to these."""

Key: TypeAlias = "str | tuple[str]"
"""What is equal for equal data: text stands for itself, and all else is a tuple of its canonical JSON."""

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

_encode = JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=True).encode
_PLAIN = frozenset({str, int, bool, type(None)})


def canonical(data: Json) -> str:
    """Returns the canonical JSON of a value: keys sorted, no spaces, characters as they are.

    Two values are the same record if their canonical JSON is equal. 1 and 1.0 differ, and so do 1 and true.
    Raises `InvalidRequestError` if the value is not JSON.
    """
    _check(data, data)
    try:
        text = _encode(data)
        if not text.isascii():
            text.encode()
    except (ValueError, RecursionError) as error:  # not valid Unicode is a ValueError, too
        raise InvalidRequestError(f"data {quoted(data)} cannot be written as JSON: {error}") from None
    return text


def key_of(data: Json) -> Key:
    """Returns what is equal for equal data, and can be a key of a dict. Raises what `canonical` raises."""
    kind = type(data)
    if kind is str and data.isascii():
        return cast(str, data)
    if kind is dict and (text := _flat(data)) is not None:
        return (text,)
    text = canonical(data)
    return cast(str, data) if kind is str else (text,)


def _flat(data: dict[str, Json]) -> str | None:
    """The canonical JSON of an object of ASCII text alone, several times as fast. None: there is more in it."""
    parts = []
    for key, value in data.items():
        if type(key) is not str or type(value) is not str:
            return None
        parts.append((key, value))
    parts.sort()
    text = f"{{{','.join([f'{encode_basestring(key)}:{encode_basestring(value)}' for key, value in parts])}}}"
    return text if text.isascii() else None


def _check(value: Json, whole: Json) -> None:
    """Refuses what Python's encoder takes in silence: keys that are no text, tuples, subclasses, and NaN."""
    kind = type(value)
    if kind in _PLAIN:
        return
    if kind is dict:
        for key, each in value.items():
            if type(key) is not str:
                raise InvalidRequestError(f"data {quoted(whole)} has the key {quoted(key)}, which is not text")
            if type(each) not in _PLAIN:
                _check_deeper(each, whole)
    elif kind is list:
        for each in value:
            if type(each) not in _PLAIN:
                _check_deeper(each, whole)
    elif kind is not float or not math.isfinite(value):
        raise InvalidRequestError(f"data {quoted(whole)} is not JSON: it has {quoted(value)}, of type {kind.__name__}")


def _check_deeper(value: Json, whole: Json) -> None:
    try:
        _check(value, whole)
    except RecursionError:
        raise InvalidRequestError(f"data {quoted(whole)} is nested too deeply") from None


def _long(part: str, value: object) -> None:
    if type(value) is not int or not LONG_MIN <= value <= LONG_MAX:
        raise InvalidRequestError(f"{part} is {quoted(value)}, not an integer of 64 bits")


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """At `time`, the multiplicity of the record `data` changes by `diff`.

    `data`: any JSON value; do not change it afterwards. `time`, `diff`: integers of 64 bits. `key` is equal for equal
    data, whatever the order of keys in it. Raises `InvalidRequestError` for anything else.
    """

    data: Json
    time: int
    diff: int
    key: Key = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if type(self.time) is not int or not LONG_MIN <= self.time <= LONG_MAX:
            _long("the time of an update", self.time)
        if type(self.diff) is not int or not LONG_MIN <= self.diff <= LONG_MAX:
            _long("the diff of an update", self.diff)
        object.__setattr__(self, "key", key_of(self.data))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Update):
            return NotImplemented
        return self.time == other.time and self.diff == other.diff and self.key == other.key

    def __hash__(self) -> int:
        return hash((self.key, self.time, self.diff))


@dataclass(frozen=True, slots=True)
class Updates:
    """Some updates that were sent together: the array of the union. Raises `InvalidRequestError` for other things."""

    updates: tuple[Update, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.updates, Iterable):
            raise InvalidRequestError(f"updates are {quoted(self.updates)}, not a sequence")
        object.__setattr__(self, "updates", tuple(self.updates))
        for each in self.updates:
            if type(each) is not Update:
                raise InvalidRequestError(f"updates have {quoted(each)}, which is not an Update")


@dataclass(frozen=True, slots=True)
class Progress:
    """How many distinct updates each time in [lower, upper) has.

    `lower`, `upper`: a tuple of one time, or of none. An empty `upper` is the end of the feed. `counts`: pairs (time,
    count). Any sequences will do, and are kept as tuples. Raises `InvalidRequestError` for other things, but not for
    counts that make no sense: a reader judges these.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    counts: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        for part in ("lower", "upper"):
            times = _sequence(part, getattr(self, part))
            if len(times) > 1:
                raise InvalidRequestError(f"{part} of a progress message has {len(times)} times: it may have one, or none for the end")
            for time in times:
                _long(f"{part} of a progress message", time)
            object.__setattr__(self, part, times)
        counts = tuple(_sequence("counts", pair) for pair in _sequence("counts", self.counts))
        for pair in counts:
            if len(pair) != 2:
                raise InvalidRequestError(f"counts of a progress message have {quoted(pair)}, which is no pair of a time and a count")
            _long("a time in the counts of a progress message", pair[0])
            _long("a count of a progress message", pair[1])
        object.__setattr__(self, "counts", counts)


def _sequence(part: str, value: object) -> tuple[Any, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | dict):
        raise InvalidRequestError(f"{part} of a progress message is {quoted(value)}, not a sequence")
    return tuple(value)


Message: TypeAlias = Updates | Progress
