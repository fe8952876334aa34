"""The demo's independent check: compares what is stored, and asks whether what callers were told is true.

    dangling     a row redirects to a blob that is not there                                    I1
    orphans      a blob that no row names                                                       I3
    entries      left in the changelog    uploads    left half-way    parked    set aside       I3, I6
    lost         what is stored, or was read, ended before an acknowledged write to it began    I4
    false_no     an operation took effect though its caller was told that it never will         I4
    mixed_up     bytes that no operation wrote there, or not the one that the metadata name     I7
    errors       answers that no caller should get, such as "its data is lost"

It uses none of the code under test: of each backend a `Stored` reads rows, blobs and entries from the formats alone
(`emulators.demo.files`, `emulators.demo.google`). To be called when all processes have ended, except for
`dangling` and `unfinished`, which may be asked at any time.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Protocol

from emulators.demo.journal import Answer, Kind, Operation, late_writes, read_operations
from emulators.demo.load import digest

FLAWS = ("dangling", "orphans", "entries", "uploads", "parked", "lost", "false_no", "mixed_up", "errors")
DETAILS_MAX = 3
SHOWN_MAX = 100


@dataclass(slots=True)
class Findings:
    """What the check found. `flaws`: how many of each of FLAWS; `details`: a sentence for the first few of each.

    `late`: writes of rows that took effect after they had timed out, which is no flaw.
    """

    objects: int = 0
    inline: int = 0
    blobs: int = 0
    late: int = 0
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


def content_of(payload: bytes, metadata: bytes) -> Content:
    """`metadata`: JSON, as rows keep it."""
    return Content(digest(payload), json.loads(metadata).get("custom", {}).get("operation"))


@dataclass(frozen=True, slots=True)
class StoredRow:
    """An object's row. `target`: the blob that it redirects to; None: it is inline. `content` None: not of the format."""

    path: str
    target: str | None
    content: Content | None = None


class Stored(Protocol):
    """What a backend holds. A *place* is where a blob is; `place` says where the one of a name is, or would be."""

    late_s: float
    """How long after its sender has ended a request may still take effect, in seconds."""

    def rows(self) -> Iterable[StoredRow]: ...

    def targets(self) -> dict[str, str]:
        """The blob that each row redirects to, by the row's path, at this moment."""

    def absent(self, names: Collection[str]) -> set[str]:
        """Those of the names under which there is no blob; one that comes or goes meanwhile may be among them."""

    def place(self, name: str) -> str: ...

    def places(self) -> Iterable[str]: ...

    def blob(self, place: str) -> Content | None:
        """None: its bytes are not what its checksum says."""

    def won(self) -> Collection[str]:
        """The changes that are marked to have taken effect."""

    def uploads(self) -> Collection[str]:
        """Those that were begun and would stay for good."""

    def entries(self) -> Collection[tuple[str, str | None]]:
        """Key and state of all that is in the changelog; None: open."""


def check(stored: Stored, journal: Path, seen_dangling: Collection[str] = ()) -> Findings:
    """Judges a store by the journals of all who wrote to it, and by the blobs that `dangling` missed meanwhile."""
    findings, operations = Findings(), read_operations(journal, stored.late_s)
    contents = _check_tiers(stored, findings)
    for key, state in stored.entries():
        findings.add("entries" if state is None else "parked", f"the changelog still has {key} {state or ''}")
    for name in sorted(set(seen_dangling) - dangling(stored)):
        findings.add("dangling", f"for a while, a row redirected to {_short(name)}, which did not exist")
    for operation in operations:
        if operation.answer is Answer.ERROR:
            findings.add("errors", f"{operation.kind} {operation.id} was told: {operation.detail}")
    _check_contents(contents, operations, findings)
    findings.late = late_writes(journal, stored.won())
    return findings


# --- what is stored ------------------------------------------------------------------------------


def dangling(stored: Stored) -> set[str]:
    """Names of blobs that a row redirects to and that do not exist, at this moment, whatever else goes on.

    A revision that was replaced never comes back: a row that shows it before and after the look showed it
    all the while.
    """
    before = stored.targets()
    absent = stored.absent(before.values())
    if not absent:
        return set()
    after = stored.targets()
    return {target for path, target in before.items() if target in absent and after.get(path) == target}


def unfinished(stored: Stored) -> tuple[int, int]:
    """How many entries are open in the changelog, and how many uploads there are, at this moment."""
    return sum(state is None for _, state in stored.entries()), len(stored.uploads())


def _check_tiers(stored: Stored, findings: Findings) -> dict[str, Content | None]:
    """Rows against blobs, both ways. Returns what each object holds; None where that is lost or broken."""
    contents: dict[str, Content | None] = {}
    named, places = set[str](), set(stored.places())
    for row in stored.rows():
        findings.objects += 1
        contents[row.path] = row.content
        if row.target is None:
            findings.inline += 1
            if row.content is None:
                findings.add("mixed_up", f"the row {_short(row.path)} is neither an object nor a tombstone")
            continue
        findings.blobs += 1
        place = stored.place(row.target)
        named.add(place)
        if place not in places:
            findings.add("dangling", f"the row {_short(row.path)} redirects to a blob {row.target[-36:]}, which does not exist")
        elif (content := stored.blob(place)) is None:
            findings.add("mixed_up", f"the blob {_short(row.target)} does not agree with its own checksum")
        else:
            contents[row.path] = content
    for place in sorted(places - named):
        findings.add("orphans", f"no row names the blob {_short(place)}")
    for upload in stored.uploads():
        findings.add("uploads", f"an upload was left: {upload}")
    return contents


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
