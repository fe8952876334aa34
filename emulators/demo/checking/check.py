"""The demo's independent check: it compares rows with blobs, and what is stored with what callers were told.

It counts these flaws:

    dangling     a row redirects to a blob that does not exist                              I1
    orphans      no row names the blob                                                      I3
    entries      an entry is left in the changelog                                          I6
    uploads      an upload was neither finalised nor aborted                                I3
    parked       recovery gave up an entry                                                  I6
    lost         a value is stored or was read, although an acknowledged write replaced it  I4
    false_no     an operation took effect although its caller was told that it never will   I4
    mixed_up     no operation wrote these bytes there, or another one than the metadata say I7
    errors       an answer that no caller should get, such as "its data is lost"
    feed         the change feed breaks a rule, or says another thing of an object than its row does

Of what callers were told, the rules are those of `tiered prove` (`recovery/prove/judge.py`). It uses none of the code
that it judges. For each backend, a `BackendContent` reads rows, blobs and entries by the stored formats alone
(`stored_files.py`, `google.py` and `servers.py`). Call `check` when all processes have ended. `dangling` and
`unfinished` may be called at any time.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from emulators.demo.checking.published import PublishedFeed
from emulators.demo.players.journal import late_writes, process_ends
from emulators.demo.players.load import digest
from recovery.prove.judge import CallAnswer, Content, JournaledCall, calls_of, flaws_of, short

FLAWS = ("dangling", "orphans", "entries", "uploads", "parked", "lost", "false_no", "mixed_up", "errors", "feed")
DETAILS_MAX = 3


@dataclass(slots=True)
class CheckResult:
    """What the check found. `flaws` counts each of FLAWS; `details` has a sentence for the first few of each.

    `late`: how many writes of rows took effect after they had timed out. That is no flaw. `contents`: what each object
    holds; None if that is lost or broken.
    """

    objects: int = 0
    inline: int = 0
    blobs: int = 0
    late: int = 0
    flaws: Counter[str] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)
    contents: dict[str, Content | None] = field(default_factory=dict)

    def add(self, flaw: str, sentence: str) -> None:
        self.flaws[flaw] += 1
        if self.flaws[flaw] <= DETAILS_MAX:
            self.details.append(f"{flaw}: {sentence}")


def content_of(payload: bytes, metadata: bytes) -> Content:
    """Returns a payload's content. `metadata`: JSON, as rows keep it."""
    return Content(digest(payload), json.loads(metadata).get("custom", {}).get("operation"))


@dataclass(frozen=True, slots=True)
class StoredRow:
    """An object's row. `target`: the blob that it redirects to, or None if it is inline.

    `content`: what an inline row holds, or None if the row does not have the right format.
    """

    path: str
    target: str | None
    content: Content | None = None


class BackendContent(Protocol):
    """Reads what a backend holds. A *place* is where a blob is stored: a path, or a name in a bucket."""

    late_s: float
    """For so many seconds after its sender has ended, a request may still take effect."""

    def rows(self) -> Iterable[StoredRow]: ...

    def targets(self) -> dict[str, str]:
        """Returns the blob that each row redirects to at this moment, by the row's path."""

    def absent(self, names: Collection[str]) -> set[str]:
        """Returns the names that have no blob. A blob that is made or deleted meanwhile may be among them."""

    def place(self, name: str) -> str:
        """Returns where the blob of this name is, or would be."""

    def places(self) -> Iterable[str]: ...

    def blob(self, place: str) -> Content | None:
        """Returns the blob's content, or None if its bytes do not match its checksum."""

    def won(self) -> Collection[str]:
        """Returns the changes that are marked as having taken effect."""

    def uploads(self) -> Collection[str]:
        """Returns the uploads that were begun and that nothing would ever remove."""

    def entries(self) -> Collection[tuple[str, str | None]]:
        """Returns key and state of each entry in the changelog. The state of an open entry is None."""


def check(
    stored: BackendContent, journal: Path, seen_dangling: Collection[str] = (), published: Collection[PublishedFeed] = ()
) -> CheckResult:
    """Judges a store by the journals of all its writers.

    `seen_dangling`: names that `dangling` returned while the processes ran. `published`: what each place of the change
    feed holds, after its writer has published everything.
    """
    findings, calls = CheckResult(), read_calls(journal, stored.late_s)
    _check_tiers(stored, findings)
    for key, state in stored.entries():
        findings.add("parked" if is_stuck(state) else "entries", f"the changelog still has {key} {state or ''}")
    for name in sorted(set(seen_dangling) - dangling(stored)):
        findings.add("dangling", f"for a while, a row redirected to {short(name)}, which did not exist")
    for call in calls:
        if call.answer in (CallAnswer.ERROR, CallAnswer.LOST):
            findings.add("errors", f"{call.kind} {call.id} was told: {call.detail}")
    for flaw, sentence in flaws_of(findings.contents, calls):
        findings.add(flaw, sentence)
    if published:
        rows = stored.targets()
        for sentence in (each for place in published for each in (*place.flaws, *place.differences(rows))):
            findings.add("feed", sentence)
    findings.late = late_writes(journal, stored.won())
    return findings


def read_calls(journal: Path, late_s: float = 0.0) -> list[JournaledCall]:
    """Returns every call that began, in no order. One without an answer counts as ended `late_s` seconds after its
    process.
    """
    ends = process_ends(journal)
    return [
        call for path in sorted(journal.glob("w*.jsonl")) for call in calls_of(path.read_bytes(), ends.get(path.stem, math.inf) + late_s)
    ]


# --- what is stored ------------------------------------------------------------------------------


def dangling(stored: BackendContent) -> set[str]:
    """Returns the names of blobs that a row redirects to and that do not exist. Others may write meanwhile.

    It reads the rows before and after it looks for the blobs. A revision that was replaced never comes back. So a row
    that names the same blob both times has named it all the while.
    """
    before = stored.targets()
    absent = stored.absent(before.values())
    if not absent:
        return set()
    after = stored.targets()
    return {target for path, target in before.items() if target in absent and after.get(path) == target}


def unfinished(stored: BackendContent) -> tuple[int, int]:
    """Returns how many entries are open in the changelog, and how many uploads there are, at this moment.

    An entry that is kept for the change feed is not open.
    """
    return sum(state is None for _, state in stored.entries()), len(stored.uploads())


def kept_for_feed(stored: BackendContent) -> int:
    """Returns how many finished entries wait for the change feed, or for its clean-up, at this moment."""
    return sum(state is not None and not is_stuck(state) for _, state in stored.entries())


def is_stuck(state: str | None) -> bool:
    """Whether an entry of this state waits for an operator. Otherwise it is open, or kept for the change feed."""
    return state is not None and json.loads(state)["state"] != "done"


def _check_tiers(stored: BackendContent, findings: CheckResult) -> None:
    """Compares rows with blobs, and blobs with rows. Notes what each object holds."""
    named, places = set[str](), set(stored.places())
    for row in stored.rows():
        findings.objects += 1
        findings.contents[row.path] = row.content
        if row.target is None:
            findings.inline += 1
            if row.content is None:
                findings.add("mixed_up", f"the row {short(row.path)} is neither an object nor a tombstone")
            continue
        findings.blobs += 1
        place = stored.place(row.target)
        named.add(place)
        if place not in places:
            findings.add("dangling", f"the row {short(row.path)} redirects to a blob {row.target[-36:]}, which does not exist")
        elif (content := stored.blob(place)) is None:
            findings.add("mixed_up", f"the blob {short(row.target)} does not agree with its own checksum")
        else:
            findings.contents[row.path] = content
    for place in sorted(places - named):
        findings.add("orphans", f"no row names the blob {short(place)}")
    for upload in stored.uploads():
        findings.add("uploads", f"an upload was left: {upload}")
