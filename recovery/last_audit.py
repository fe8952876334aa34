"""The note `audit/last` in the changelog: when the last audit ended, and what it found. `tiered status` shows it.

    {"v":1,"run":…,"where":…,"started_ns":…,"ended_ns":…,"complete":true,"blobs":n,"tombstones":n,
     "findings":{"orphan":[number,bytes],…},"ranges":n,"ranges_missing":n,"doubts":n,"scope":"media/","verified":n|null,
     "young":n,"references":"rows" or "feed"}

A note of older software has no `scope`, no `verified`, no `young` and no `references`. `tombstones` counts the
references: those that a scan of the rows found, or those of the change feed.

The note holds figures and no object's name. `recovery.audit.run` writes it when a run has ended, complete or not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from changelog.base.errors import CorruptRecordError, UnconfirmedError
from changelog.log import ChangeLog
from tiered.text import shown

NOTE = "audit/last"
VERSION = 1
TRIES = 4
COUNT_MAX = 2**64 - 1
ROWS, FEED = "rows", "feed"
DANGLING, DESTROYED = "dangling", "destroyed"


@dataclass(frozen=True, slots=True)
class LastAudit:
    """An audit that ended. `where`: the directory of its run. Times are nanoseconds since 1970.

    `findings`: for each class that somebody should look at, how many there are, and their bytes. `complete`: every
    range was audited, and nothing makes the evidence doubtful. `doubts`: how many things make it doubtful.
    `scope`: only names that begin with this were looked at. `verified`: how many payloads were read; None: none was
    meant to be read. `young`: how many blobs nothing named, and were younger than the grace. `references`: where the
    references came from, `ROWS` or `FEED`. `tombstones`: how many there were.
    """

    run: str
    where: str
    started_ns: int
    ended_ns: int
    complete: bool
    blobs: int
    tombstones: int
    findings: Mapping[str, tuple[int, int]]
    ranges: int
    ranges_missing: int
    doubts: int
    scope: str = ""
    verified: int | None = None
    young: int = 0
    references: str = ROWS

    @property
    def is_loss(self) -> bool:
        """Whether it found live tombstones whose blobs are gone or cannot be read.

        If it is not complete, that may be wrong.
        """
        return any(self.findings.get(kind, (0, 0))[0] for kind in (DANGLING, DESTROYED))

    @property
    def sentence(self) -> str:
        """The result in words, without any object's name. It names the most serious result only.

        It says if only a part of the store was looked at, and claims nothing of payloads that nobody read.
        """
        scope = f"; only names that begin with {self.scope} were looked at" if self.scope else ""
        return self._result + scope

    @property
    def _result(self) -> str:
        number = sum(count for count, _ in self.findings.values())
        if not self.complete:
            gap = f"{self.ranges_missing:,} of {self.ranges:,} ranges were not audited" if self.ranges_missing else "it is doubtful"
            return f"incomplete: {gap}; it has {number:,} findings, which may be wrong"
        if self.is_loss:
            return f"DATA LOSS: {' and '.join(self._losses())}"
        if number:
            found = ", ".join(f"{count:,} {kind} ({size:,} bytes)" for kind, (count, size) in self.findings.items())
            return f"findings: {found}"
        read = "no payload was read" if self.verified is None else f"{self.verified:,} payloads were read"
        young = f"; {self.young:,} blobs that nothing names were too young to judge" if self.young else ""
        named = "tombstones" if self.references == ROWS else "references of the change feed"
        return f"clean: {self.blobs - self.young:,} blobs and {self.tombstones:,} {named} are accounted for by name{young}; {read}"

    def _losses(self) -> Iterator[str]:
        gone, broken = (self.findings.get(kind, (0, 0))[0] for kind in (DANGLING, DESTROYED))
        if gone:
            yield f"{gone:,} live tombstone{' names a blob that is' if gone == 1 else 's name blobs that are'} gone"
        if broken:
            yield f"{broken:,} live tombstone{' names a blob' if broken == 1 else 's name blobs'} that cannot be read"


def encode(audit: LastAudit) -> bytes:
    """Returns the stored form, version 1."""
    value = {
        "v": VERSION, "run": audit.run, "where": audit.where, "started_ns": audit.started_ns, "ended_ns": audit.ended_ns,
        "complete": audit.complete, "blobs": audit.blobs, "tombstones": audit.tombstones,
        "findings": {kind: list(found) for kind, found in audit.findings.items()},
        "ranges": audit.ranges, "ranges_missing": audit.ranges_missing, "doubts": audit.doubts,
        "scope": audit.scope, "verified": audit.verified, "young": audit.young, "references": audit.references,
    }  # fmt: skip
    return json.dumps(value, separators=(",", ":")).encode()


def decode(raw: bytes) -> LastAudit:
    """Reads the stored form. Raises `CorruptRecordError`, which says what is wrong, and guesses nothing."""
    try:
        value = json.loads(raw)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair could not be shown
    except (ValueError, RecursionError) as error:
        raise CorruptRecordError(f"the note {NOTE} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CorruptRecordError(f"the note {NOTE} is not a JSON object")
    if value.get("v") != VERSION:
        raise CorruptRecordError(f"the note {NOTE} has version {shown(value.get('v'))}; this software reads version {VERSION}")
    return LastAudit(
        run=_text(value, "run"), where=_text(value, "where"), started_ns=_count(value, "started_ns"), ended_ns=_count(value, "ended_ns"),
        complete=value.get("complete") is True, blobs=_count(value, "blobs"), tombstones=_count(value, "tombstones"),
        findings=_findings(value), ranges=_count(value, "ranges"), ranges_missing=_count(value, "ranges_missing"),
        doubts=_count(value, "doubts"), scope=_text({"scope": "", **value}, "scope"),
        verified=None if value.get("verified") is None else _count(value, "verified"), young=_count({"young": 0, **value}, "young"),
        references=_source(value),
    )  # fmt: skip


def _text(value: Mapping[str, Any], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise CorruptRecordError(f"the note {NOTE} has {shown(found)} for {name!r}")
    return found


def _count(value: Mapping[str, Any], name: str) -> int:
    found = value.get(name)
    if type(found) is not int or not 0 <= found <= COUNT_MAX:
        raise CorruptRecordError(f"the note {NOTE} has {shown(found)} for {name!r}")
    return found


def _source(value: Mapping[str, Any]) -> str:
    if (found := value.get("references", ROWS)) not in (ROWS, FEED):
        raise CorruptRecordError(f"the note {NOTE} has {shown(found)} for 'references'")
    return str(found)


def _findings(value: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    found = value.get("findings")
    if not isinstance(found, dict) or not all(_is_pair(each) for each in found.values()):
        raise CorruptRecordError(f"the note {NOTE} has {shown(found)} for 'findings'")
    return {kind: (number, size) for kind, (number, size) in found.items()}


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(each) is int and 0 <= each <= COUNT_MAX for each in value)


async def read_last(log: ChangeLog) -> LastAudit | None:
    """Returns what the note says. None: no audit has ended since notes are kept.

    Raises `CorruptRecordError` if it is damaged, or what `ChangeLog.read_note` raises.
    """
    raw = await log.read_note(NOTE)
    return None if raw is None else decode(raw)


async def write_last(log: ChangeLog, audit: LastAudit) -> None:
    """Writes the note, unless it tells of an audit that ended later. A note that is damaged is replaced.

    Raises what `ChangeLog.swap_note` raises. After `UnconfirmedError` it tries again, because that is safe.
    """
    for left in reversed(range(TRIES)):
        stored = await log.read_note(NOTE)
        if stored is not None and _ended_ns(stored) >= audit.ended_ns:
            return
        try:
            if await log.swap_note(NOTE, stored, encode(audit)):
                return
        except UnconfirmedError:
            if not left:
                raise


def _ended_ns(raw: bytes) -> int:
    try:
        return decode(raw).ended_ns
    except CorruptRecordError:
        return -1
