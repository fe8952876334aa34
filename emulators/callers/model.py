"""What was written, and so what a read may return.

For each object, the model holds its writes and when they may have happened.

A write that was told ok happened between its call and its answer. A write that was told no did not happen. Any other
write (cancelled, unknown) may have happened from its call until its store was closed and recovered, or not at all. A
read may return what a write left if no other write certainly happened after it and before the read began.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Any

from emulators.callers.verdict import Violation
from tiered import Metadata
from tiered.metadata import FIELDS, encode_metadata


class WriteCertainty(Enum):
    OK = "ok"
    NO = "no"
    MAYBE = "maybe"


@dataclass(slots=True, eq=False)
class ModelWrite:
    """One write. `content` None: a deletion. `known` False: nobody knows which bytes it stored.

    `copied`: nobody knows anything of it but its revision. `compressed`: it is stored so. `told`: what its caller
    heard. `happened_by`: the tick by which it has happened, if it happens.
    """

    path: str
    content: bytes | None
    metadata: Metadata | None
    began: int
    known: bool = True
    told: WriteCertainty = WriteCertainty.MAYBE
    happened_by: float = inf
    revision: str | None = None
    copied: bool = False
    compressed: bool = False

    @property
    def mortal(self) -> bool:
        if self.copied:
            return True
        expiration = None if self.metadata is None else self.metadata.expiration
        return expiration is not None and expiration.ns < 3_000_000_000_000


@dataclass(slots=True, eq=False)
class SeenObject:
    """What a read returned. No metadata: there was nothing. `whole` False: it read only the head."""

    content: bytes | None
    metadata: Metadata | None
    revision: str | None
    whole: bool = True


@dataclass(slots=True)
class CallersModel:
    now: int = 0
    writes: dict[str, list[ModelWrite]] = field(default_factory=lambda: defaultdict(list))

    def tick(self) -> int:
        self.now += 1
        return self.now

    def begin(self, path: str, content: bytes | None, metadata: Metadata | None, *, known: bool = True) -> ModelWrite:
        write = ModelWrite(path, content, metadata, self.tick(), known)
        self.writes[path].append(write)
        return write

    def end(self, write: ModelWrite, told: WriteCertainty, revision: str | None = None) -> None:
        write.told, write.revision = told, revision
        if told is not WriteCertainty.MAYBE:
            write.happened_by = self.tick()

    def settled(self) -> None:
        """Notes that all stores were closed and recovery has run. No write happens later."""
        now = self.tick()
        for writes in self.writes.values():
            for write in writes:
                write.happened_by = min(write.happened_by, now)

    def check(self, path: str, seen: SeenObject, began: int, cut: Callable[[bytes], bytes | None] = bytes) -> None:
        """Checks a read that began at the tick `began` and ends now. Raises `Violation` if no write explains it.

        `cut`: returns the part of a content that the read asked for.
        """
        self.tick()
        possible = self._possible(path, began)
        if any(_explains(write, seen, cut) for write in possible):
            return
        told = "; ".join(_said(write) for write in possible) or "nothing"
        raise Violation("wrong answer", f"{path} reads as {_shown(seen)}; possible is: {told}")

    def judge_condition(self, write: ModelWrite, condition: Mapping[str, Any]) -> tuple[bool, bool]:
        """Returns whether the condition of a write that ends now may have held, and whether it may have been false."""
        possible = [each for each in self._possible(write.path, write.began) if each is not write]
        revision = condition.get("if_revision")
        if revision is None:
            return any(each.content is None or each.mortal for each in possible), any(each.content is not None for each in possible)
        # A caller may pass anything, also what raises if it is compared.
        wanted = revision if isinstance(revision, str) else None
        may_hold = any(each.content is not None and each.revision in (None, wanted) for each in possible)
        return may_hold, any(each.content is None or each.mortal or each.revision != wanted for each in possible)

    def names(self, path: str, began: int) -> tuple[bool, bool]:
        """Returns whether a listing may show this path, and whether it may leave it out."""
        self.tick()
        possible = self._possible(path, began)
        return any(write.content is not None for write in possible), any(write.content is None or write.mortal for write in possible)

    def _possible(self, path: str, began: int) -> list[ModelWrite]:
        nothing = ModelWrite(path, None, None, 0, told=WriteCertainty.OK, happened_by=0)
        happened = [nothing, *(write for write in self.writes[path] if write.told is not WriteCertainty.NO)]
        certain = [write for write in happened if write.told is WriteCertainty.OK and write.happened_by < began]
        return [
            write for write in happened
            if not any(other.began > write.happened_by for other in certain if other is not write)
        ]  # fmt: skip


def _explains(write: ModelWrite, seen: SeenObject, cut: Callable[[bytes], bytes | None]) -> bool:
    if seen.metadata is None:
        return write.content is None or write.mortal
    if write.content is None or (write.revision is not None and seen.revision != write.revision):
        return False
    if write.copied:
        return True
    if write.known and seen.whole and seen.content != cut(write.content):
        return False
    return same_metadata(write, seen.metadata)


def same_metadata(write: ModelWrite, read: Metadata) -> bool:
    """Tells whether `read` is what was given, plus what the store fills in."""
    given = write.metadata or Metadata()
    filled = read.time_created_ns is not None and (read.time_expires_ns is not None) == (given.expiration is not None)
    size = read.size if not write.known or write.compressed else len(write.content or b"")
    said = (None, "Zstd") if write.compressed else (given.compression,)  # of what it gives, or of what is stored
    return filled and read.size == size and read.compression in said and all((
        given.time_created_ns in (None, read.time_created_ns), given.expiration == read.expiration,
        *(_same(getattr(given, name), getattr(read, name)) for name, row in FIELDS.items() if row.kind is str and name != "compression"),
        _same(dict(given.custom), dict(read.custom)), _same(dict(given.unknown), dict(read.unknown)),
    ))  # fmt: skip


def _same(given: Any, read: Any) -> bool:
    """Tells whether two values are equal. True is not the same as 1, and a tuple is not the same as a list."""
    if isinstance(given, dict) and isinstance(read, dict):
        return given.keys() == read.keys() and all(_same(value, read[key]) for key, value in given.items()) and \
            all(type(key) is str or not isinstance(key, str) for key in read)
    if isinstance(given, list) and isinstance(read, list):
        return len(given) == len(read) and all(map(_same, given, read))
    return bool(given == read) and (type(given) is type(read) or (isinstance(given, str) and isinstance(read, str)))


def _said(write: ModelWrite) -> str:
    if write.content is None:
        return f"nothing ({write.told.value})"
    return f"{_bytes(write.content) if write.known else 'bytes'} with {_metadata(write.metadata)} ({write.told.value})"


def _shown(seen: SeenObject) -> str:
    if seen.metadata is None:
        return "nothing"
    return f"{_bytes(seen.content) if seen.content is not None else 'something'} with {_metadata(seen.metadata)}, revision {seen.revision}"


def _bytes(content: bytes) -> str:
    return f"{len(content)} bytes {content[:8].hex()}…"


def _metadata(metadata: Metadata | None) -> str:
    if metadata is None:
        return "no metadata"
    try:
        return json.dumps(json.loads(encode_metadata(metadata)), ensure_ascii=True)[:300]
    except Exception:  # noqa: BLE001 - it is only shown, and it may be what is wrong
        return repr(metadata)[:300]
