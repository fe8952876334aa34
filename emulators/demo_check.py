"""The demo's independent check: reads rows and files itself, and asks whether what callers were told is true.

    dangling     a row redirects to a file that is not there                                    I1
    orphans      a file that no row names                                                       I3
    entries      left in the changelog    uploads    left in `uploads/`    parked    set aside  I3, I6
    lost         what is stored, or was read, ended before an acknowledged write to it began    I4
    false_no     an operation took effect though its caller was told that it never will         I4
    mixed_up     bytes that no operation wrote there, or not the one that the metadata name     I7
    errors       answers that no caller should get, such as "its data is lost"

It uses none of the code under test: names are encoded, footers decoded and rows read here once more, from the
formats alone. To be called when all processes have ended, except for `dangling`, which may be asked at any time.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import struct
import zlib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from emulators.demo_journal import Answer, Kind, Operation, read_operations
from emulators.demo_load import digest

FLAWS = ("dangling", "orphans", "entries", "uploads", "parked", "lost", "false_no", "mixed_up", "errors")
DETAILS_MAX = 3
SHOWN_MAX = 100

_FOOTER = struct.Struct(">6sHqqQIII")


@dataclass(slots=True)
class Findings:
    """What the check found. `flaws`: how many of each of FLAWS; `details`: a sentence for the first few of each."""

    objects: int = 0
    inline: int = 0
    blobs: int = 0
    flaws: Counter[str] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)

    def add(self, flaw: str, sentence: str) -> None:
        self.flaws[flaw] += 1
        if self.flaws[flaw] <= DETAILS_MAX:
            self.details.append(f"{flaw}: {sentence}")


@dataclass(frozen=True, slots=True)
class Content:
    """What is stored under an object, or was read of it. `by`: the operation that the metadata name."""

    digest: str
    by: str | None


def check(store: Path, journal: Path, seen_dangling: Collection[str] = ()) -> Findings:
    """Judges a store by the journals of all who wrote to it, and by the blobs that `dangling` missed meanwhile."""
    findings, operations = Findings(), read_operations(journal)
    contents = _check_tiers(store, findings)
    _check_log(store, findings)
    for name in sorted(set(seen_dangling) - dangling(store)):
        findings.add("dangling", f"for a while, a row redirected to {_short(name)}, which did not exist")
    for operation in operations:
        if operation.answer is Answer.ERROR:
            findings.add("errors", f"{operation.kind} {operation.id} was told: {operation.detail}")
    _check_contents(contents, operations, findings)
    return findings


# --- what is stored ------------------------------------------------------------------------------


def dangling(store: Path) -> set[str]:
    """Names of blobs that a row redirects to and that do not exist, at this moment, whatever else goes on.

    A revision that was replaced never comes back: a row that shows it before and after the look showed it
    all the while.
    """
    missing = {path: target for path, target in _targets(store).items() if not (store / "blobs" / blob_path(target)).exists()}
    if not missing:
        return set()
    again = _targets(store)
    return {target for path, target in missing.items() if again.get(path) == target}


def unfinished(store: Path) -> tuple[int, int]:
    """How many entries are open in the changelog, and how many uploads there are, at this moment."""
    ((entries,),) = _query(store, "SELECT count(*) FROM changes WHERE state IS NULL")
    return entries, sum(1 for _ in _files(store / "uploads"))


def blob_path(name: str) -> Path:
    """Where the blob's file is, below `blobs/`."""
    text = "".join(map(_escape, name.encode()))
    parts = [text[start : start + 199] for start in range(0, len(text), 199)]
    return Path(*[part + "+" for part in parts[:-1]], parts[-1])


def _escape(byte: int) -> str:
    if byte in b"0123456789abcdefghijklmnopqrstuvwxyz":
        return chr(byte)
    return f"{'%' if byte < 0x30 else '=' if byte < 0x61 else '~'}{byte:02x}"


def _check_tiers(store: Path, findings: Findings) -> dict[str, Content | None]:
    """Rows against files, both ways. Returns what each object holds; None where that is lost or broken."""
    contents: dict[str, Content | None] = {}
    named: set[Path] = set()
    for path, target, metadata, payload in _query(store, "SELECT path, target, metadata, payload FROM rows"):
        findings.objects += 1
        if target is None:
            findings.inline += 1
            contents[path] = _content(payload, metadata)
            continue
        findings.blobs += 1
        file = store / "blobs" / blob_path(target)
        named.add(file)
        contents[path] = None
        if not file.exists():
            findings.add("dangling", f"the row {_short(path)} redirects to a blob {target[-36:]}, which does not exist")
        elif (content := read_blob(file)) is None:
            findings.add("mixed_up", f"the file of {_short(target)} does not agree with its own footer")
        else:
            contents[path] = content
    for file in _files(store / "blobs"):
        if file not in named:
            findings.add("orphans", f"no row names the blob {_short(str(file.relative_to(store)))}")
    for file in _files(store / "uploads"):
        findings.add("uploads", f"an upload was left: {file.relative_to(store)}")
    return contents


def _check_log(store: Path, findings: Findings) -> None:
    for key, state in _query(store, "SELECT key, state FROM changes"):
        findings.add("entries" if state is None else "parked", f"the changelog still has {key} {state or ''}")


def read_blob(file: Path) -> Content | None:
    """What the file holds; None if its sizes or checksums are not what its footer says."""
    raw = file.read_bytes()
    if len(raw) < _FOOTER.size:
        return None
    magic, version, _, _, size, metadata_size, payload_crc, metadata_crc = _FOOTER.unpack(raw[-_FOOTER.size :])
    payload, metadata = raw[:size], raw[size : -_FOOTER.size]
    whole = (magic, version, len(metadata), zlib.crc32(payload), zlib.crc32(metadata))
    return _content(payload, metadata) if whole == (b"tiered", 1, metadata_size, payload_crc, metadata_crc) else None


def _content(payload: bytes, metadata: bytes) -> Content:
    return Content(digest(payload), json.loads(metadata).get("custom", {}).get("operation"))


def _targets(store: Path) -> dict[str, str]:
    return dict(_query(store, "SELECT path, target FROM rows WHERE target IS NOT NULL"))


def _query(store: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(store / "tiered.db", timeout=5)) as connection:
        connection.execute("PRAGMA query_only=ON")
        return connection.execute(sql).fetchall()


def _files(directory: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(directory):
        yield from (Path(parent, name) for name in names)


# --- what callers were told ----------------------------------------------------------------------


class History:
    """The operations on one object: is what was seen of it at some moment among what may be seen?

    Of two writes that do not overlap the later one wins, and an acknowledged one took effect. So a value is
    lost to sight for good once an acknowledged write began after the value's own write had ended, and
    has ended before somebody looks.
    """

    def __init__(self, operations: Iterable[Operation]) -> None:
        every = sorted(operations, key=lambda each: each.ended)
        self._puts = {each.digest: each for each in every if each.kind is Kind.PUT}
        self._deletes = [each for each in every if each.kind is Kind.DELETE]
        acknowledged = [each for each in every if each.kind is not Kind.GET and each.answer is Answer.OK]
        self._last_write = _LastBegun(acknowledged)
        self._last_put = _LastBegun([each for each in acknowledged if each.kind is Kind.PUT])

    def flaw(self, seen: Content | None, looked: float = math.inf, looked_until: float = math.inf) -> str | None:
        """Which flaw it is that `seen` (None: nothing) was there between the two moments; None: none."""
        if seen is None:
            return self._flaw_of_absence(looked, looked_until)
        put = self._puts.get(seen.digest)
        if put is None or put.id != seen.by or put.began > looked_until:
            return "mixed_up"
        if put.answer is Answer.NO:
            return "false_no"
        return "lost" if put.ended < self._last_write.before(looked) else None

    def _flaw_of_absence(self, looked: float, looked_until: float) -> str | None:
        last_put = self._last_put.before(looked)
        if last_put == -math.inf:
            return None
        able = [each for each in self._deletes if each.ended >= last_put and each.began <= looked_until]
        if any(each.answer is not Answer.NO for each in able):
            return None
        return "false_no" if able else "lost"


class _LastBegun:
    """When the latest-begun of the operations that had ended by some moment began."""

    def __init__(self, by_end: list[Operation]) -> None:
        self._ended = [each.ended for each in by_end]
        self._began = list(accumulate((each.began for each in by_end), max))

    def before(self, moment: float) -> float:
        """-inf: none had ended."""
        index = bisect_left(self._ended, moment)
        return self._began[index - 1] if index else -math.inf


def _check_contents(contents: Mapping[str, Content | None], operations: Iterable[Operation], findings: Findings) -> None:
    of_object: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        of_object[operation.object].append(operation)
    for path in sorted(of_object.keys() | contents.keys()):
        history = History(of_object[path])
        content = contents.get(path)
        found_already = path in contents and content is None
        if not found_already and (flaw := history.flaw(content)):
            findings.add(flaw, f"{_short(path)} holds {_said(content)}")
        for read in of_object[path]:
            if read.kind is Kind.GET and read.answer is Answer.OK:
                seen = None if read.digest is None else Content(read.digest, read.by)
                if flaw := history.flaw(seen, read.began, read.ended):
                    findings.add(flaw, f"{read.id} of {_short(path)} read {_said(seen)}")


def _said(content: Content | None) -> str:
    return "nothing" if content is None else f"what {content.by} wrote"


def _short(name: str) -> str:
    """Long names by their beginning and their end."""
    return name if len(name) <= SHOWN_MAX else f"{name[: SHOWN_MAX // 2]}…{name[-SHOWN_MAX // 2 :]}"
