"""The note `audit/last` in the changelog: what the audits found, as far as no later one tells better.

    {"v":2,"runs":[RUN,…]}     newest first, `RUNS_MAX` of them at most

    RUN = {"run":…,"where":…,"started_ns":…,"ended_ns":…,"complete":true,"blobs":n,"tombstones":n,
     "findings":{"orphan":[number,bytes],…},"ranges":n,"ranges_missing":n,"doubts":n,"scope":"media/","verified":n|null,
     "share":0.5|null,"young":n,"references":"rows" or "feed","live":[number,bytes]|null,"bytes":n|null}

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any

from changelog.base.errors import CorruptRecordError, UnconfirmedError
from changelog.key_values import NOTE_BYTES_MAX, KeyValueStore
from recovery import states
from recovery.audit.finding_classes import LOSSES, SIZED, FindingClass
from tiered.notes.note_fields import NewerNoteError, NoteFields

NOTE = "audit/last"
VERSION = 2
VERSION_OF_ONE = 1
FIX = "a whole audit replaces it"
TRIES = 4
RUNS_MAX = 16
"""So many runs fit into a note."""
SEVERAL = "several-"
"""How the id of runs that were put together begins. The id of the newest of them follows."""

COUNT_MAX = 2**64 - 1
ROWS, FEED = "rows", "feed"
_LOSSES = {
    FindingClass.DANGLING: ("live tombstone names a blob that is gone", "live tombstones name blobs that are gone"),
    FindingClass.DESTROYED: ("live tombstone names a blob that cannot be read", "live tombstones name blobs that cannot be read"),
}


@dataclass(frozen=True, slots=True)
class LastAudit:
    """An audit that ended. `where`: the directory of its run. Times are nanoseconds since 1970.

    `findings`: for each class that somebody should look at, how many there are, and their bytes. `complete`: every
    range was audited, and nothing makes the evidence doubtful. `doubts`: how many things make it doubtful.
    `scope`: only names that begin with this were looked at. `verified`: how many payloads were read; None: none was
    meant to be read. `share`: the share of the payloads that was meant to be read, more than 0, up to 1; None: none.
    `young`: how many blobs nothing named, and were younger than the grace. `references`: where the references came
    from, `ROWS` or `FEED`. `tombstones`: how many there were. `live`: how many blobs are in use, and their bytes.
    `size`: the bytes of all blobs. None: older software did not note that.
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
    share: float | None = None
    young: int = 0
    references: str = ROWS
    live: tuple[int, int] | None = None
    size: int | None = None

    def replaces(self, other: LastAudit, *, ends_now: bool = False) -> bool:
        """Whether this run tells all that the other one told, of a later time. `ends_now`: as in `Audits.with_run`.

        It has looked at the same names at least, at the same payloads if one of them could not be read (a name's hash
        decides which a share has), and its evidence is complete if the other one's was, or if that one found lost data.
        Then it also began after the other one had ended: nobody knows when a run looks at which name.
        """
        is_later = self.ended_ns >= other.ended_ns or (ends_now and not other.is_loss)
        if not is_later or not other.scope.startswith(self.scope) or (other.complete and not self.complete):
            return False
        if self.run == other.run or not other.is_loss:
            return True
        if not self.complete or self.started_ns < other.ended_ns:
            return False
        return not other._number(FindingClass.DESTROYED) or (self.share or 0) >= (other.share or 0)

    @property
    def lost(self) -> int:
        """How many live tombstones it found whose blobs are gone or cannot be read."""
        return sum(map(self._number, LOSSES))

    def _number(self, class_: str) -> int:
        return self.findings.get(class_, (0, 0))[0]

    @property
    def is_loss(self) -> bool:
        """Whether it found live tombstones whose blobs are gone or cannot be read.

        If it is not complete, that may be wrong.
        """
        return self.lost > 0

    @property
    def state(self) -> states.State:
        """How it ended: its most serious result only."""
        if not self.complete:
            return states.AUDIT_INCOMPLETE
        return states.AUDIT_LOSS if self.is_loss else states.AUDIT_FINDINGS if self.findings_number else states.AUDIT_CLEAN

    @property
    def findings_number(self) -> int:
        """How many findings it has, of all classes."""
        return sum(count for count, _ in self.findings.values())

    @property
    def sentence(self) -> str:
        """The result in words, without any object's name. It names the most serious result only.

        It says if only a part of the store was looked at, and claims nothing of payloads that nobody read.
        """
        scope = f"; only names that begin with {self.scope} were looked at" if self.scope else ""
        return self._result + scope

    @property
    def _result(self) -> str:
        if self.state is states.AUDIT_INCOMPLETE:
            gap = f"{self.ranges_missing:,} of {self.ranges:,} ranges were not audited" if self.ranges_missing else "it is doubtful"
            return f"incomplete: {gap}; it has {self.findings_number:,} findings, which may be wrong"
        if self.state is states.AUDIT_LOSS:
            return f"DATA LOSS: {' and '.join(self._losses())}"
        if self.state is states.AUDIT_FINDINGS:
            sizes = {class_: f" ({size:,} bytes)" if size or class_ in SIZED else "" for class_, (_, size) in self.findings.items()}
            return f"findings: {', '.join(f'{count:,} {class_}{sizes[class_]}' for class_, (count, _) in self.findings.items())}"
        read = "no payload was read" if self.verified is None else f"{self.verified:,} payloads were read"
        young = f"; {self.young:,} blobs that nothing names were too young to judge" if self.young else ""
        named = "tombstones" if self.references == ROWS else "references of the change feed"
        return f"clean: {self.blobs - self.young:,} blobs and {self.tombstones:,} {named} are accounted for by name{young}; {read}"

    def _losses(self) -> Iterator[str]:
        for each in LOSSES:
            one, more = _LOSSES.get(each, (each, each))
            if number := self._number(each):
                yield f"{number:,} {one if number == 1 else more}"


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
    def lost(self) -> tuple[int, bool]:
        """How many objects `losses` found, and whether there may be more. Of runs whose names overlap, one counts."""
        counted: list[LastAudit] = []
        for audit in sorted(self.losses, key=lambda each: each.lost, reverse=True):
            if not any(audit.scope.startswith(other.scope) or other.scope.startswith(audit.scope) for other in counted):
                counted.append(audit)
        return sum(audit.lost for audit in counted), len(counted) < len(self.losses)

    @property
    def suspicions(self) -> tuple[LastAudit, ...]:
        """Those that found lost data, and whose evidence is not complete."""
        return tuple(audit for audit in self.runs if not audit.complete and audit.is_loss)

    def with_run(self, audit: LastAudit, *, ends_now: bool = False) -> Audits:
        """Returns these with one more, without those that it replaces. If it is replaced itself, nothing changes.

        `ends_now`: it ended a moment ago, so none of these is later, whatever the clock said by which they ended.
        """
        if not ends_now and any(other.run != audit.run and other.replaces(audit) for other in self.runs):
            return self
        kept = [other for other in self.runs if other.run != audit.run and not audit.replaces(other, ends_now=ends_now)]
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
    classes = [*newer.findings, *(class_ for class_ in older.findings if class_ not in newer.findings)]
    counts: dict[str, Any] = {
        name: _sum(getattr(newer, name), getattr(older, name))
        for name in ("blobs", "tombstones", "ranges", "ranges_missing", "doubts", "young")
    }
    return replace(
        newer, run=f"{SEVERAL}{newer.run.removeprefix(SEVERAL)}", scope=_common(newer.scope, older.scope),
        started_ns=min(newer.started_ns, older.started_ns), ended_ns=max(newer.ended_ns, older.ended_ns),
        findings={class_: _pair_sum(newer.findings.get(class_, (0, 0)), older.findings.get(class_, (0, 0))) for class_ in classes},
        verified=_of_known(_sum, newer.verified, older.verified), share=_of_known(max, newer.share, older.share),
        live=None, size=None, **counts,
    )  # fmt: skip


def _of_known(function: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    """Applies it to the two. Where one is None: the other one."""
    return function(one, other) if one is not None and other is not None else one if other is None else other


def _pair_sum(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return _sum(one[0], other[0]), _sum(one[1], other[1])


def _common(one: str, other: str) -> str:
    """Returns how both begin."""
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _sum(one: int, other: int) -> int:
    return min(one + other, COUNT_MAX)


def encode(audits: Audits) -> bytes:
    """Returns the stored form, version 2."""
    return _encoded(audits.runs)


def _encoded(runs: Sequence[LastAudit]) -> bytes:
    named = {"size": "bytes"}  # all others are called as their fields, and stand in their order
    value = {"v": VERSION, "runs": [{named.get(name, name): value for name, value in asdict(run).items()} for run in runs]}
    return json.dumps(value, separators=(",", ":")).encode()


def decode(raw: bytes) -> Audits:
    """Reads the stored form. Raises `CorruptRecordError`, which says what is wrong, and guesses nothing."""
    note = NoteFields.parse(raw, NOTE, FIX)
    if note.version(VERSION_OF_ONE, VERSION) == VERSION_OF_ONE:
        return Audits((_audit(note),))
    if not (runs := note.objects("runs")):
        raise note.no("runs", "a list of runs")
    return Audits(tuple(sorted(map(_audit, runs), key=_ended_ns, reverse=True)))


def _audit(run: NoteFields) -> LastAudit:
    count, optional_count = partial(run.number, most=COUNT_MAX), partial(run.optional_number, most=COUNT_MAX)
    return LastAudit(
        run=run.text("run"), where=run.text("where"), started_ns=count("started_ns"), ended_ns=count("ended_ns"),
        complete=run.value("complete") is True, blobs=count("blobs"), tombstones=count("tombstones"),
        findings=_findings(run), ranges=count("ranges"), ranges_missing=count("ranges_missing"),
        doubts=count("doubts"), scope=run.text("scope", missing=""),
        verified=optional_count("verified"), young=count("young", missing=0),
        references=_source(run), share=_share(run), live=_live(run), size=optional_count("bytes"),
    )  # fmt: skip


def _ended_ns(audit: LastAudit) -> int:
    return audit.ended_ns


def _share(run: NoteFields) -> float | None:
    found = run.value("share")
    if found is None:
        return None
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found <= 1:
        raise run.no("share", "a share above 0, up to 1")
    return float(found)


def _source(run: NoteFields) -> str:
    if (found := run.text("references", missing=ROWS)) not in (ROWS, FEED):
        raise run.no("references", f"{ROWS} or {FEED}")
    return found


def _findings(run: NoteFields) -> dict[str, tuple[int, int]]:
    found = run.value("findings")
    if not isinstance(found, dict) or not all(_is_pair(each) for each in found.values()):
        raise run.no("findings", "a number and bytes for each class")
    return {class_: (number, size) for class_, (number, size) in found.items()}


def _live(run: NoteFields) -> tuple[int, int] | None:
    found = run.value("live")
    if found is not None and not _is_pair(found):
        raise run.no("live", "a number and bytes")
    return None if found is None else (found[0], found[1])


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(each) is int and 0 <= each <= COUNT_MAX for each in value)


async def read_audits(log: KeyValueStore) -> Audits:
    """Returns what the note says. Empty: no audit has ended since notes are kept.

    Raises `CorruptRecordError` if it is damaged, or what `KeyValueStore.read_note` raises.
    """
    raw = await log.read_note(NOTE)
    return Audits() if raw is None else decode(raw)


async def note_audit(log: KeyValueStore, audit: LastAudit, *, ends_now: bool = False) -> None:
    """Adds an audit to the note. `ends_now`: as in `Audits.with_run`.

    A damaged note may have told of a loss, so only a complete audit of the whole store replaces it; another one raises
    `CorruptRecordError`. A note of newer software stays (`NewerNoteError`). Raises what `KeyValueStore.swap_note`
    raises. After `UnconfirmedError` it tries again, which is safe.
    """
    for left in reversed(range(TRIES)):
        stored = await log.read_note(NOTE)
        known = _known(stored, audit)
        audits = known.with_run(audit, ends_now=ends_now)
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
    except NewerNoteError:
        raise
    except CorruptRecordError:
        if audit.complete and not audit.scope:
            return Audits()
        raise
