"""The note `audit/last` in the changelog: what the audits found, as far as no later one tells better.

    {"v":2,"runs":[RUN,…]}     newest first, `RUNS_MAX` of them at most

    RUN = {"run":…,"where":…,"started_ns":…,"ended_ns":…,"complete":true,"blobs":n,"tombstones":n,
     "findings":{"orphan":[number,bytes],…},"ranges":n,"ranges_missing":n,"doubts":n,"scope":"media/","verified":n|null,
     "share":0.5|null,"young":n,"references":"rows" or "feed","live":[number,bytes]|null,"bytes":n|null,
     "reported_ns":…|null}

A run stays until another one that ended later has looked at all that it looked at (`replaces`); if it found lost data,
until a complete one that began after it. So an audit of one usecase never hides a loss elsewhere. What no longer fits
is left out if it found no loss, and is put together with other losses if it did (`joined`): no loss is pushed out. A
note of older software is one RUN with `"v":1`; it may lack all from `scope` on. That software writes over this one. Any
may lack all from `live` on.

`tombstones` counts the references: those that a scan of the rows found, or those of the change feed.

The note holds figures and no object's name. `recovery.audit.running.run` writes it when a run has ended, complete or
not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from changelog.base.errors import CorruptRecordError, UnconfirmedError
from changelog.log import NOTE_BYTES_MAX, ChangeLog
from recovery.display import moment
from tiered.text import quoted

NOTE = "audit/last"
VERSION = 2
VERSION_OF_ONE = 1
TRIES = 4
RUNS_MAX = 16
"""So many runs fit into a note."""
SEVERAL = "several-"
"""How the id of runs that were put together begins. The id of the newest of them follows."""

COUNT_MAX = 2**64 - 1
ROWS, FEED = "rows", "feed"
DANGLING, DESTROYED = "dangling", "destroyed"


@dataclass(frozen=True, slots=True)
class LastAudit:
    """An audit that ended. `where`: the directory of its run. Times are nanoseconds since 1970.

    `findings`: for each class that somebody should look at, how many there are, and their bytes. `complete`: every
    range was audited, and nothing makes the evidence doubtful. `doubts`: how many things make it doubtful.
    `scope`: only names that begin with this were looked at. `verified`: how many payloads were read; None: none was
    meant to be read. `share`: the share of the payloads that was meant to be read, more than 0, up to 1; None: none.
    `young`: how many blobs nothing named, and were younger than the grace. `references`: where the references came
    from, `ROWS` or `FEED`. `tombstones`: how many there were. `live`: how many blobs a live tombstone names, and their
    bytes. `size`: the bytes of all blobs. None: older software did not note that. `reported_ns`: the moment of the
    inventory report that tells the blobs; None: the run listed them.
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
    share: float | None = None
    live: tuple[int, int] | None = None
    size: int | None = None
    reported_ns: int | None = None

    @property
    def seen_from_ns(self) -> int:
        """The time from which on it saw blobs: what is true of them was true then, or later."""
        return self.started_ns if self.reported_ns is None else min(self.started_ns, self.reported_ns)

    def replaces(self, other: LastAudit) -> bool:
        """Whether this run tells all that the other one told, of a later time.

        It has looked at the same names at least, at the same payloads if one of them could not be read (a name's hash
        decides which a share has), and its evidence is complete if the other one's was, or if that one found lost data.
        Then it also began after the other one had ended: nobody knows when a run looks at which name. An inventory
        report shows the bucket of its own time, so that time counts as the beginning.
        """
        if self.ended_ns < other.ended_ns or not other.scope.startswith(self.scope) or (other.complete and not self.complete):
            return False
        if self.run == other.run:
            return True
        if not other.is_loss:
            return self.reported_ns is None or self.reported_ns >= other.seen_from_ns
        if not self.complete or self.seen_from_ns < other.ended_ns:
            return False
        return not other._number(DESTROYED) or (self.share or 0) >= (other.share or 0)

    @property
    def lost(self) -> int:
        """How many live tombstones it found whose blobs are gone or cannot be read."""
        return self._number(DANGLING) + self._number(DESTROYED)

    def _number(self, kind: str) -> int:
        return self.findings.get(kind, (0, 0))[0]

    @property
    def is_loss(self) -> bool:
        """Whether it found live tombstones whose blobs are gone or cannot be read.

        If it is not complete, that may be wrong.
        """
        return self.lost > 0

    @property
    def sentence(self) -> str:
        """The result in words, without any object's name. It names the most serious result only.

        It says if only a part of the store was looked at, and claims nothing of payloads that nobody read.
        """
        scope = f"; only names that begin with {self.scope} were looked at" if self.scope else ""
        report = "" if self.reported_ns is None else f"; its blobs are those that an inventory report of {moment(self.reported_ns)} lists"
        return self._result + report + scope

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
        gone, broken = self._number(DANGLING), self._number(DESTROYED)
        if gone:
            yield f"{gone:,} live tombstone{' names a blob that is' if gone == 1 else 's name blobs that are'} gone"
        if broken:
            yield f"{broken:,} live tombstone{' names a blob' if broken == 1 else 's name blobs'} that cannot be read"


@dataclass(frozen=True, slots=True)
class Audits:
    """The audits that count, the one that ended last first."""

    runs: tuple[LastAudit, ...] = ()

    @property
    def last(self) -> LastAudit | None:
        """The one that ended last."""
        return self.runs[0] if self.runs else None

    @property
    def whole(self) -> LastAudit | None:
        """The last complete one of the whole store."""
        return next((audit for audit in self.runs if audit.complete and not audit.scope), None)

    @property
    def losses(self) -> tuple[LastAudit, ...]:
        """Those that found lost data, with complete evidence."""
        return tuple(audit for audit in self.runs if audit.complete and audit.is_loss)

    @property
    def suspicions(self) -> tuple[LastAudit, ...]:
        """Those that found lost data, and whose evidence is not complete."""
        return tuple(audit for audit in self.runs if not audit.complete and audit.is_loss)

    def with_run(self, audit: LastAudit) -> Audits:
        """Returns these with one more, without those that it replaces. If it is replaced itself, nothing changes."""
        if any(other.run != audit.run and other.replaces(audit) for other in self.runs):
            return self
        kept = [other for other in self.runs if other.run != audit.run and not audit.replaces(other)]
        runs = sorted([*kept, audit], key=_ended_ns, reverse=True)
        while len(runs) > 1 and (len(runs) > RUNS_MAX or len(_encoded(runs)) > NOTE_BYTES_MAX):
            whole = Audits(tuple(runs)).whole
            spare = [run for run in runs[1:] if not run.is_loss and run is not whole]
            losses = max(([run for run in runs if run.is_loss and run.complete is known] for known in (False, True)), key=len)
            if spare or len(losses) < 2:
                runs.remove((spare or runs)[-1])
            else:
                newer, older = losses[-2:]
                runs = sorted([*(run for run in runs if run not in (newer, older)), joined(newer, older)], key=_ended_ns, reverse=True)
        return Audits(tuple(runs))


def joined(newer: LastAudit, older: LastAudit) -> LastAudit:
    """Returns two runs with losses as one: of all names below what their scopes have in common, and of the whole time.

    So only a run that looks at the names of both replaces it. What both have found counts twice.
    """
    kinds = [*newer.findings, *(kind for kind in older.findings if kind not in newer.findings)]
    none = (0, 0)
    read = [each for each in (newer.verified, older.verified) if each is not None]
    shares = [each for each in (newer.share, older.share) if each is not None]
    reports = [each for each in (newer.reported_ns, older.reported_ns) if each is not None]
    return replace(
        newer, run=f"{SEVERAL}{newer.run.removeprefix(SEVERAL)}", scope=_common(newer.scope, older.scope),
        started_ns=min(newer.started_ns, older.started_ns), ended_ns=max(newer.ended_ns, older.ended_ns),
        findings={
            kind: (_sum(newer.findings.get(kind, none)[0], older.findings.get(kind, none)[0]),
                   _sum(newer.findings.get(kind, none)[1], older.findings.get(kind, none)[1])) for kind in kinds
        },
        blobs=_sum(newer.blobs, older.blobs), tombstones=_sum(newer.tombstones, older.tombstones), ranges=_sum(newer.ranges, older.ranges),
        ranges_missing=_sum(newer.ranges_missing, older.ranges_missing), doubts=_sum(newer.doubts, older.doubts),
        young=_sum(newer.young, older.young), verified=min(sum(read), COUNT_MAX) if read else None,
        share=max(shares, default=None), live=None, size=None, reported_ns=min(reports, default=None),
    )  # fmt: skip


def _common(one: str, other: str) -> str:
    """Returns how both begin."""
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _sum(one: int, other: int) -> int:
    return min(one + other, COUNT_MAX)



def encode(audits: Audits) -> bytes:
    """Returns the stored form, version 2."""
    return _encoded(audits.runs)


def _encoded(runs: Sequence[LastAudit]) -> bytes:
    value = {"v": VERSION, "runs": [_fields(audit) for audit in runs]}
    return json.dumps(value, separators=(",", ":")).encode()


def _fields(audit: LastAudit) -> dict[str, Any]:
    return {
        "run": audit.run, "where": audit.where, "started_ns": audit.started_ns, "ended_ns": audit.ended_ns,
        "complete": audit.complete, "blobs": audit.blobs, "tombstones": audit.tombstones,
        "findings": {kind: list(found) for kind, found in audit.findings.items()},
        "ranges": audit.ranges, "ranges_missing": audit.ranges_missing, "doubts": audit.doubts,
        "scope": audit.scope, "verified": audit.verified, "share": audit.share, "young": audit.young, "references": audit.references,
        "reported_ns": audit.reported_ns,
        "live": None if audit.live is None else list(audit.live), "bytes": audit.size,
    }  # fmt: skip


def decode(raw: bytes) -> Audits:
    """Reads the stored form. Raises `CorruptRecordError`, which says what is wrong, and guesses nothing."""
    try:
        value = json.loads(raw)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair could not be shown
    except (ValueError, RecursionError) as error:
        raise CorruptRecordError(f"the note {NOTE} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CorruptRecordError(f"the note {NOTE} is not a JSON object")
    version = value.get("v")
    if version == VERSION_OF_ONE and type(version) is int:
        return Audits((_audit(value),))
    if version != VERSION or type(version) is not int:
        known = f"{VERSION_OF_ONE} and {VERSION}"
        raise CorruptRecordError(f"the note {NOTE} has version {quoted(version)}; this software reads versions {known}")
    runs = value.get("runs")
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        raise CorruptRecordError(f"the note {NOTE} has {quoted(runs)} for 'runs'")
    return Audits(tuple(sorted(map(_audit, runs), key=_ended_ns, reverse=True)))


def _audit(value: Mapping[str, Any]) -> LastAudit:
    return LastAudit(
        run=_text(value, "run"), where=_text(value, "where"), started_ns=_count(value, "started_ns"), ended_ns=_count(value, "ended_ns"),
        complete=value.get("complete") is True, blobs=_count(value, "blobs"), tombstones=_count(value, "tombstones"),
        findings=_findings(value), ranges=_count(value, "ranges"), ranges_missing=_count(value, "ranges_missing"),
        doubts=_count(value, "doubts"), scope=_text({"scope": "", **value}, "scope"),
        verified=None if value.get("verified") is None else _count(value, "verified"), young=_count({"young": 0, **value}, "young"),
        references=_source(value), share=_share(value), live=_live(value),
        size=None if value.get("bytes") is None else _count(value, "bytes"),
        reported_ns=None if value.get("reported_ns") is None else _count(value, "reported_ns"),
    )  # fmt: skip


def _ended_ns(audit: LastAudit) -> int:
    return audit.ended_ns


def _share(value: Mapping[str, Any]) -> float | None:
    found = value.get("share")
    if found is None:
        return None
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found <= 1:
        raise CorruptRecordError(f"the note {NOTE} has {quoted(found)} for 'share'")
    return float(found)


def _text(value: Mapping[str, Any], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise CorruptRecordError(f"the note {NOTE} has {quoted(found)} for {name!r}")
    return found


def _count(value: Mapping[str, Any], name: str) -> int:
    found = value.get(name)
    if type(found) is not int or not 0 <= found <= COUNT_MAX:
        raise CorruptRecordError(f"the note {NOTE} has {quoted(found)} for {name!r}")
    return found


def _source(value: Mapping[str, Any]) -> str:
    if (found := value.get("references", ROWS)) not in (ROWS, FEED):
        raise CorruptRecordError(f"the note {NOTE} has {quoted(found)} for 'references'")
    return str(found)


def _findings(value: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    found = value.get("findings")
    if not isinstance(found, dict) or not all(_is_pair(each) for each in found.values()):
        raise CorruptRecordError(f"the note {NOTE} has {quoted(found)} for 'findings'")
    return {kind: (number, size) for kind, (number, size) in found.items()}


def _live(value: Mapping[str, Any]) -> tuple[int, int] | None:
    found = value.get("live")
    if found is not None and not _is_pair(found):
        raise CorruptRecordError(f"the note {NOTE} has {quoted(found)} for 'live'")
    return None if found is None else (found[0], found[1])


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(each) is int and 0 <= each <= COUNT_MAX for each in value)


async def read_audits(log: ChangeLog) -> Audits:
    """Returns what the note says. Empty: no audit has ended since notes are kept.

    Raises `CorruptRecordError` if it is damaged, or what `ChangeLog.read_note` raises.
    """
    raw = await log.read_note(NOTE)
    return Audits() if raw is None else decode(raw)


async def note_audit(log: ChangeLog, audit: LastAudit) -> None:
    """Adds an audit to the note.

    A damaged note may have told of a loss, so only a complete audit of the whole store replaces it; another one raises
    `CorruptRecordError`. Raises what `ChangeLog.swap_note` raises. After `UnconfirmedError` it tries again, which is
    safe.
    """
    for left in reversed(range(TRIES)):
        stored = await log.read_note(NOTE)
        known = _known(stored, audit)
        audits = known.with_run(audit)
        if audits == known:
            return
        try:
            if await log.swap_note(NOTE, stored, encode(audits)):
                return
        except UnconfirmedError:
            if not left:
                raise


def _known(raw: bytes | None, audit: LastAudit) -> Audits:
    try:
        return Audits() if raw is None else decode(raw)
    except CorruptRecordError:
        if audit.complete and not audit.scope:
            return Audits()
        raise
