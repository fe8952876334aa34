"""A change, its id, and its entry in the log: the words that everything else is written in.

    Change   one put or delete that may touch both tiers: object, new blob, old blob, upload session.
    Entry    the change as recorded: who owns it, how often it was claimed, when it last beat.

A change's id is its *token* in the row. If the change uploads a blob, it is that blob's *revision*, too. An entry is
stored as the value of column `fc:c` (version 1). Its last heartbeat is the timestamp of the cell, and not in the value:

    row key   ~changelog/{shard:02x}/{change id}
    value     {"v":1,"id":…,"new":…,"old":…,"upload":…,"owner":…,"attempt":0,"cleanup_after":…,"trace":…}
    state     beside the value. None: open; {"state":"stuck","error":…,"at":…}; {"state":"done"}: kept for the feed

An entry of an *open upload* has no owner for days, and one more key, `"assembling"`: text of the tier above. It may be
completed any number of times until somebody claims it: a claim takes that text away, and nothing brings it back. Older
software does not know the key, so its claims of such an entry are lost.

The form of older software is read, too: the key `~changelog/{change id}`, with only `id`, `new` and `old`. Every
compare-and-swap compares the whole value. An instance that releases an entry and claims it again writes the same value
as before. A late renewal of its first claim then renews the second one. That is harmless: safety rests on no lease.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any, Self
from uuid import UUID

from changelog.base.errors import CorruptRecordError, InvalidRequestError
from changelog.base.runtime import Runtime, uuid7_number

LOG_PREFIX, DAEMON_PREFIX, NOTE_PREFIX, VALUE_PREFIX = "~changelog/", "~daemon/", "~notes/", "~values/"
OWN_PREFIXES = (LOG_PREFIX, DAEMON_PREFIX, NOTE_PREFIX, VALUE_PREFIX)
"""How the keys begin that are no object's, because a changelog may be in the table of the objects. In their order."""
READABLE = b'{"v":1,"id":"'
"""The bytes with which the value of every entry of this version begins."""
SHARDS_DEFAULT = 16
LEGACY_OWNER = "legacy"
"""Stands for the owner where older software recorded none. Its entries are held as long as they are renewed."""

_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_KEY = re.compile(r"~changelog/(?:[0-9a-f]{2}/)?([0-9a-f-]{36})")


class ChangeId(str):
    """A UUIDv7 in its lower-case hyphenated text form: 36 characters, ordered by creation time."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if not isinstance(text, str) or not cls.matches(text):
            shown = repr(text[:60]) if isinstance(text, str) else f"a value of type {type(text).__name__}"
            raise InvalidRequestError(f"{shown} is not a change id (a lower-case UUIDv7 such as 018bcfe5-6800-7000-8000-000000000001)")
        return super().__new__(cls, text)

    @classmethod
    def new(cls, runtime: Runtime) -> Self:
        digits = f"{uuid7_number(runtime):032x}"
        # It has the right form already, so it is not matched: each operation makes one.
        return super().__new__(cls, f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}")

    @classmethod
    def first(cls, created_ms: int) -> Self:
        """The least id that can be made at that time (Unix ms)."""
        return cls.of(created_ms, 0)

    @classmethod
    def of(cls, created_ms: int, free: int) -> Self:
        """The id of that time (Unix ms) that has these 74 bits where others have random ones."""
        high, low = free >> 62, free & (1 << 62) - 1
        return cls(str(UUID(int=max(0, created_ms) << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low)))

    @property
    def free(self) -> int:
        """Its 74 bits that are neither its time nor its form."""
        number = UUID(self).int
        return (number >> 64 & 0xFFF) << 62 | number & (1 << 62) - 1

    @staticmethod
    def matches(text: str) -> bool:
        return _UUID7.fullmatch(text) is not None

    @property
    def created_ms(self) -> int:
        """Unix milliseconds at which it was made, by its maker's clock."""
        return int(f"{self[:8]}{self[9:13]}", 16)

    def row_key(self, shards: int = SHARDS_DEFAULT) -> str:
        """The key of its entry. Shards spread the ids, which are ordered by time, over the tablets of a table."""
        return f"{LOG_PREFIX}{UUID(self).int % 256 % shards:02x}/{self}"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Change:
    """One put or delete that may touch both tiers. `new` and `old` are blob names.

    `upload`: the name of an upload session. Whoever knows it can end the upload, so it is never shown.
    """

    id: ChangeId
    object: str
    new: str | None = None
    old: str | None = None
    upload: str | None = field(default=None, repr=False)
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Stuck:
    """Why an entry was parked, and when (Unix milliseconds, server's clock)."""

    error: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A change as recorded. `owner` is empty when it was released.

    `attempt`: how often it was claimed since it was recorded or last released. `heartbeat_ms` (Unix ms) is assigned by
    the server. Only an entry that was read has it; in what `record` and `claim` return it is 0. `kept_ms`: since when
    it is kept for the change feed alone (Unix ms, server's clock); None: it is not. Two entries that differ in these
    two times alone are equal.

    `assembling`: what it takes to complete the upload of this entry, which is open. Then `attempt` counts those who
    tried, so no value of the entry ever comes back. None: nobody may complete it from outside.
    """

    change: Change
    key: str
    owner: str
    attempt: int = 0
    cleanup_after_ms: int | None = None
    heartbeat_ms: int = field(default=0, compare=False)
    stuck: Stuck | None = None
    kept_ms: int | None = field(default=None, compare=False)
    assembling: str | None = None

    @property
    def is_second_look(self) -> bool:
        """Whether somebody has cleaned up after it. Only a blob that lands late may still have to be deleted."""
        return self.cleanup_after_ms is not None and self.assembling is None

    def claimed_by(self, owner: str) -> Entry:
        if self.assembling is not None:  # from now on it is like any other, and its upload is not waited for any more
            return replace(self, owner=owner, attempt=1, cleanup_after_ms=None, assembling=None)
        return replace(self, owner=owner, attempt=self.attempt + 1)

    def retried(self) -> Entry:
        """The entry as recovery may try it anew. One that is assembling stays as it is: no value of it may come back.
        """
        return self if self.assembling is not None else replace(self, owner="", attempt=0)

    def released(self, cleanup_after_ms: int | None) -> Entry:
        """The entry as its owner gives it back. That is no failed attempt."""
        return replace(self, owner="", attempt=0, cleanup_after_ms=cleanup_after_ms)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What lies under `key` in the log but is no entry. `raw`: its bytes; `error`: one sentence.

    `stuck` and `kept_ms`: as in `Entry`. It was kept by software that could read it. `newer`: it has a later version,
    so newer software can read it, and this one changes nothing of it.
    """

    key: str
    raw: bytes
    error: str
    stuck: Stuck | None = None
    kept_ms: int | None = field(default=None, compare=False)
    newer: bool = False


class _NewerEntryError(CorruptRecordError):
    """The entry has a later version than this software knows."""


def encode(entry: Entry) -> bytes:
    """The stored value of an entry (version 1). The same entry always gives the same bytes."""
    change = entry.change
    value = {
        "v": 1, "id": change.object, "new": change.new, "old": change.old, "upload": change.upload,
        "owner": entry.owner, "attempt": entry.attempt, "cleanup_after": entry.cleanup_after_ms, "trace": change.trace,
    }
    if entry.assembling is not None:
        value["assembling"] = entry.assembling
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def decode(key: str, raw: bytes, heartbeat_ms: int, state: str | None = None) -> Entry | Unreadable:
    """Reads a stored entry. Guesses nothing: what it cannot read is `Unreadable`, with the reason."""
    stuck, kept_ms = _state(state, heartbeat_ms)
    try:
        entry = _entry(key, raw, heartbeat_ms, stuck, kept_ms)
        encode(entry)  # JSON can spell text that is no Unicode, which nobody could compare or write back
        return entry
    except (CorruptRecordError, InvalidRequestError, ValueError, RecursionError) as error:
        newer = isinstance(error, _NewerEntryError)
        return Unreadable(key, raw, f"the entry at {key} cannot be read: {error}", stuck, kept_ms, newer)


DONE = '{"state":"done"}'
"""The state of an entry that is kept for the change feed, where the store itself remembers since when."""


def encode_done(at_ms: int) -> str:
    """`DONE` for a store that does not date it. `at_ms`: since when the entry is kept, by the server's clock."""
    return json.dumps({"state": "done", "at": at_ms}, separators=(",", ":"))


def encode_stuck(stuck: Stuck) -> str:
    return json.dumps({"state": "stuck", "error": stuck.error, "at": stuck.at_ms}, ensure_ascii=False, separators=(",", ":"))


def _state(state: str | None, heartbeat_ms: int) -> tuple[Stuck | None, int | None]:
    """Why and since when an entry of this state is stuck, or since when it is kept. At most one of them is not None.

    A kept one without a date is taken to be kept since its last heartbeat.
    """
    if state is None:
        return None, None
    try:
        value = json.loads(state)
        if value["state"] == "done":
            return None, int(value.get("at", heartbeat_ms))
        return Stuck(str(value["error"]), int(value["at"])), None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError, OverflowError):
        return Stuck(f"its state cannot be read: {state[:200]}", 0), None


def _entry(key: str, raw: bytes, heartbeat_ms: int, stuck: Stuck | None, kept_ms: int | None) -> Entry:
    found = _KEY.fullmatch(key)
    if found is None:
        raise CorruptRecordError("the row key does not name a change")
    value = json.loads(raw)
    if not isinstance(value, dict):
        raise CorruptRecordError("the value is not a JSON object")
    version = value.get("v", 1)
    if type(version) is int and version > 1:
        raise _NewerEntryError(f"newer software wrote it, in version {version}, and this one reads version 1: update this one")
    if version != 1:
        raise CorruptRecordError(f"it has version {version!r}; this software reads version 1")
    change = Change(
        ChangeId(found[1]), _text(value, "id"), _optional(value, "new"), _optional(value, "old"),
        _optional(value, "upload"), _optional(value, "trace"),
    )
    owner = _optional(value, "owner") if "owner" in value else LEGACY_OWNER
    return Entry(
        change, key, owner or "", _count(value, "attempt") or 0, _count(value, "cleanup_after"), heartbeat_ms, stuck,
        kept_ms, _optional(value, "assembling"),
    )


def _text(value: dict[str, Any], name: str) -> str:
    text = _optional(value, name)
    if not text:
        raise CorruptRecordError(f"{name!r} is missing")
    return text


def _optional(value: dict[str, Any], name: str) -> str | None:
    text = value.get(name)
    if text is not None and not isinstance(text, str):
        raise CorruptRecordError(f"{name!r} is {text!r}, not text")
    return text


def _count(value: dict[str, Any], name: str) -> int | None:
    number = value.get(name)
    if number is not None and (type(number) is not int or number < 0):
        raise CorruptRecordError(f"{name!r} is {number!r}, not a whole number")
    return number
