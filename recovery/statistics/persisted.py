"""`Document`, what is stored of a source's statistics: one note of the changelog for each source, changed by CAS.

    read note -> Document | None -> change it (pure) -> encode -> swap_note -> lost to another worker: again

Each worker writes its own figures, and they are absolute, so to write them again changes nothing. What a worker of the
past did is *folded* into `base`. So the note stays small, and no figure decreases when workers come and go:

    a worker is silent for `gone_ms`       its row is folded into `base`; another may become responsible
    it comes back after all                what was folded of it is taken out again, and its row stands there again
    it left                                the next worker that reports folds its row

One worker at a time is *responsible* for what belongs to the source as a whole: its backlog and its first pass. The
others report 0 of these. A new responsible worker begins a new incarnation.

*Crash* at any moment: the note has the figures of the last swap. *Failure*: see `ChangeLog`. A note that is damaged,
or that newer software wrote, is a `CorruptRecordError`, and it stays as it is. `Document` names what is in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace
from typing import Any

from changelog.base.errors import CorruptRecordError
from changelog.key_values import NOTE_BYTES_MAX, KeyValueStore
from recovery.statistics.columns import COUNTERS, NULLABLE, Offsets, SourceRow, advance, total
from recovery.statistics.verdict import Sample, SourceVerdict, verdict

RECOVERY, FEED, AUDIT = "recovery", "feed", "audit"
SOURCES = (RECOVERY, FEED, AUDIT)
"""Every source that there is. A source that has never reported has no note, and is shown nowhere."""

VERSION = 1
FOLDED_MAX = 40
"""How many workers of the past are remembered one by one, in case they come back."""
DEPARTED_MAX = 40
"""Of how many workers that ended and were folded the name is remembered."""
SAMPLES_MAX = 12
SAMPLE_EVERY_MS = 5_000
WINDOW_MS = 30_000
"""A verdict compares samples that are at least this far apart, if there are such."""
KEEP_MS = 120_000
TRIES = 8
COUNT_MAX = 2**64 - 1

DONE = ("processed_values", *COUNTERS)
"""The columns of what a worker has done. They are carried over when the worker is gone."""


@dataclass(frozen=True, slots=True)
class ServiceOut:
    """A service that a worker met lately, and that did not do what it was asked. `refuses`: it answered, and refused.
    """

    service: str
    refuses: bool
    error: str


@dataclass(frozen=True, slots=True)
class Reported:
    """The last report of a worker. `run`: which process or run it is. `at_ms`: the server's time. `left`: it ended.

    `out`: which services it found out of reach, or refusing, and what they said (`recovery/outages.py`).
    """

    row: SourceRow
    run: str
    at_ms: int
    left: bool = False
    out: tuple[ServiceOut, ...] = ()


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What a probe missed although nobody had reported it as processed.

    `since_ms`: when that probe ended (the server's time). `amount`: how much was missed. `others`: how much the other
    workers had reported as processed by then.
    """

    since_ms: int
    amount: int
    others: int


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker reports. `row`: its own absolute figures, as if it was responsible.

    `run`: which run it is. `now_ms`: the server's time. `gone_ms`: workers that have been silent for longer are gone.
    `probe`: the offsets of the source as a whole, if the worker has looked. They are used if it is responsible.
    `alone`: the source has one worker at a time, so this one replaces the one before. `left`: this is its last report.
    `during`: how much the worker processed while it looked, which is not in `row`. `looked_ms`: when it had looked;
    None: at `now_ms`. `out`: as in `Reported`.
    """

    row: SourceRow
    run: str
    now_ms: int
    gone_ms: int
    _: KW_ONLY
    snapshot: str
    probe: Offsets | None
    alone: bool = False
    left: bool = False
    during: int = 0
    looked_ms: int | None = None
    out: tuple[ServiceOut, ...] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """All that is stored of one source.

    `incarnation`: the present one, which is the run of the responsible worker. `snapshot` names the first pass that
    `committed` is about. `base`: what folded workers did, by column. `folded`: the part of `base` of each run that may
    come back. `offsets`: as they are shown; None: never probed. `missing`: what another worker may have processed and
    not reported yet. `elsewhere`: how much of what is shown as processed no worker counted, because something else
    dealt with it. `regressions`: the sum of all that `outstanding` went back. `samples`: of the offsets, the oldest
    first. `departed`: workers that ended and were folded, by name, the latest last, each with the time of its last
    report (Unix ms).
    """

    source: str
    incarnation: str = ""
    snapshot: str = ""
    committed: bool = False
    base: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(DONE, 0))
    folded: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    offsets: Offsets | None = None
    missing: Shortfall | None = None
    elsewhere: int = 0
    regressions: int = 0
    samples: tuple[tuple[int, int, int], ...] = ()
    workers: Mapping[str, Reported] = field(default_factory=dict)
    departed: Mapping[str, int] = field(default_factory=dict)

    # --- what is shown

    @property
    def at_ms(self) -> int:
        """The server's time of the last report (Unix ms). 0: nobody has ever reported."""
        return max((each.at_ms for each in self.workers.values()), default=0)

    def rows(self) -> dict[str, SourceRow]:
        """Returns the last row of each worker that was not folded yet, by its name."""
        return {name: each.row for name, each in self.workers.items()}

    def total(self) -> SourceRow:
        """Returns the row of the source as a whole: its workers, and what the workers of the past did."""
        rows = self.rows()
        found = total(rows.values(), rows, self.incarnation, self.source)
        carried = {name: getattr(found, name) + self.base[name] for name in COUNTERS}
        found = replace(found, snapshot_committed=found.snapshot_committed or self.committed, **carried)
        if self.offsets is None or found.outstanding_values is None or found.processed_values is None:
            return replace(found, outstanding_values=None, processed_values=None)
        return replace(found, outstanding_values=self.offsets.outstanding, processed_values=self.offsets.processed)

    def window(self) -> tuple[Sample | None, Sample | None]:
        """Returns the two samples that a verdict compares: the newest one, and one from about `WINDOW_MS` before."""
        if not self.samples:
            return None, None
        *earlier, after = (Sample(*each) for each in self.samples)
        far = [each for each in earlier if after.at_ms - each.at_ms >= WINDOW_MS]
        return (far[-1] if far else earlier[0] if earlier else None), after

    def verdict(self) -> SourceVerdict:
        """Returns whether the source keeps up, by what is stored."""
        return verdict(*self.window())

    # --- how it changes

    def processed(self, but: str = "") -> int:
        """Returns how much all workers have dealt with so far, without the run `but`."""
        return self.base["processed_values"] + sum(
            each.row.processed_values or 0 for each in self.workers.values() if each.run != but
        ) - self.folded.get(but, {}).get("processed_values", 0)

    def done_by(self, run: str) -> Mapping[str, int]:
        """Returns what the run has reported of what it did, by column."""
        for each in self.workers.values():
            if each.run == run:
                return _done(each.row)
        return self.folded.get(run, dict.fromkeys(DONE, 0))

    def responsible(self, now_ms: int, gone_ms: int) -> str | None:
        """Returns the run that is responsible now. None: there is none, so whoever reports next becomes it."""
        found = next((each for each in self.workers.values() if each.run == self.incarnation), None)
        return None if found is None or is_gone(found, now_ms, gone_ms) else found.run

    def with_report(self, report: WorkerReport) -> Document:
        """Returns the document after a report."""
        run, now_ms, gone_ms, probe = report.run, report.now_ms, report.gone_ms, report.probe
        row, alone, snapshot = report.row, report.alone, report.snapshot
        others_did = 0 if probe is None else probe.processed - (row.processed_values or 0)
        row = _at_least(row, self.done_by(run))
        document = self._unfolded(run)
        responsible = (None if alone else document.responsible(now_ms, gone_ms)) or run
        for name, each in list(document.workers.items()):
            if each.run != run and (alone or is_gone(each, now_ms, gone_ms)):
                document = document._folded_away(name)
        if responsible != run:
            row = replace(
                row, snapshot_records_known=0, snapshot_known_estimated=False, snapshot_progress=0, outstanding_values=row.processed_values
            )
        name = document._name_of(row.worker, run)
        row = replace(row, worker=name, incarnation=responsible)
        others = {other: each for other, each in document.workers.items() if each.run != run}
        document = replace(
            document, incarnation=responsible, snapshot=snapshot,
            committed=(document.committed and document.snapshot == snapshot) or (row.snapshot_committed and responsible == run),
            workers=others | {name: Reported(row, run, now_ms, report.left, report.out)},
            departed={other: at_ms for other, at_ms in document.departed.items() if other != name},
        )  # fmt: skip
        if probe is not None and responsible == run:
            document = document._found_elsewhere(
                probe, run, others_did, report.during, now_ms if report.looked_ms is None else report.looked_ms
            )
            document = document._probed(probe, now_ms)
        return document._small_enough(run)

    def _name_of(self, worker: str, run: str) -> str:
        """Returns the name to show. Of two workers that call themselves the same, the second gets a part of its run."""
        taken = self.workers.get(worker)
        return worker if taken is None or taken.run == run else f"{worker}~{run[:6]}"

    def _found_elsewhere(self, probe: Offsets, run: str, others_did: int, during: int, looked_ms: int) -> Document:
        """Returns it with what something else dealt with in `elsewhere`, and in `regressions`.

        Less may be outstanding than before because another worker has processed it and not reported it yet. If that
        counted as dealt with elsewhere, its report would count it again. So what is missed waits until every other
        worker has reported, and only what they did not report then was dealt with elsewhere.
        """
        missed = max(0, (self.offsets or Offsets(0, 0)).outstanding - probe.outstanding - self.elsewhere - during)
        others = [each for each in self.workers.values() if each.run != run and not each.left]
        elsewhere, missing = 0, self.missing
        if missing is not None and missing.since_ms > looked_ms:
            missing = None  # the clock was set back, so nobody knows who has reported since: begin anew
        if missing is not None and all(each.at_ms > missing.since_ms for each in others):
            elsewhere = min(missed, max(0, missing.amount - max(0, others_did - missing.others)))
            missing = None
        if not others:
            elsewhere = missed
        if missing is None and missed > elsewhere:
            missing = Shortfall(looked_ms, missed - elsewhere, others_did)
        return replace(self, missing=missing, elsewhere=self.elsewhere + elsewhere, regressions=self.regressions + elsewhere)

    def _probed(self, probe: Offsets, now_ms: int) -> Document:
        shown = advance(self.offsets or Offsets(0, 0), Offsets(probe.outstanding + self.elsewhere, probe.processed + self.elsewhere))
        # What lies ahead was written before the clock was set back.
        samples = [each for each in self.samples if each[0] < now_ms]
        if len(samples) > 1 and samples[-1][0] - samples[-2][0] < SAMPLE_EVERY_MS:
            samples.pop()
        # Older ones are from before the clock jumped ahead, or nobody worked: such rates say nothing of now.
        recent = [each for each in samples if now_ms - each[0] <= KEEP_MS]
        sample = (now_ms, shown.outstanding, shown.processed)
        return replace(
            self, offsets=shown, samples=(*recent[1 - SAMPLES_MAX:], sample),
        )  # fmt: skip

    def _folded_away(self, name: str) -> Document:
        gone = self.workers[name]
        part = _done(gone.row)
        folded = {**self.folded, gone.run: part}
        for oldest in list(folded)[:-FOLDED_MAX]:
            del folded[oldest]
        departed = {other: at_ms for other, at_ms in self.departed.items() if other != name}
        if gone.left:
            departed = dict([*departed.items(), (name, gone.at_ms)][-DEPARTED_MAX:])
        return replace(
            self, folded=folded, departed=departed, base={column: self.base[column] + part[column] for column in DONE},
            workers={other: each for other, each in self.workers.items() if other != name},
        )  # fmt: skip

    def _unfolded(self, run: str) -> Document:
        part = self.folded.get(run)
        if part is None:
            return self
        return replace(
            self, base={column: self.base[column] - part[column] for column in DONE},
            folded={other: each for other, each in self.folded.items() if other != run},
        )  # fmt: skip

    def _small_enough(self, run: str) -> Document:
        """Returns it with so many of the most silent workers folded that it fits into a note."""
        document = self
        while len(encode(document)) > NOTE_BYTES_MAX:
            if document.departed:
                document = replace(document, departed=dict(list(document.departed.items())[1:]))
                continue
            others = [(each.at_ms, name) for name, each in document.workers.items() if each.run != run]
            if others:
                document = document._folded_away(min(others)[1])
            else:
                document = replace(document, folded=dict(list(document.folded.items())[1:]))
        return document


def is_gone(worker: Reported, now_ms: int, gone_ms: int) -> bool:
    """Whether a worker has ended or is silent for too long. One from far ahead wrote before the clock was set back."""
    return worker.left or abs(now_ms - worker.at_ms) > gone_ms


def _done(row: SourceRow) -> dict[str, int]:
    return {column: getattr(row, column) or 0 for column in DONE}


def _at_least(row: SourceRow, before: Mapping[str, int]) -> SourceRow:
    """Returns the row with no less done than the same run reported before: an older reading may come late."""
    now = _done(row)
    ahead = max(0, before["processed_values"] - now["processed_values"])
    more: dict[str, Any] = {column: max(before[column], now[column]) for column in DONE}
    if row.outstanding_values is not None:
        more["outstanding_values"] = row.outstanding_values + ahead
    return replace(row, **more)


# --- in the changelog --------------------------------------------------------------------------------


def note_name(source: str) -> str:
    return f"statistics/{source}"


async def read_statistics(log: KeyValueStore, source: str) -> Document | None:
    """Returns what is stored of a source. None: nobody has reported yet.

    Raises as `KeyValueStore.read_note`. `CorruptRecordError`: it is damaged, or newer software wrote it.
    """
    raw = await log.read_note(note_name(source))
    return None if raw is None else decode(source, raw)


async def change_statistics(log: KeyValueStore, source: str, change: Callable[[Document], Document]) -> Document | None:
    """Changes what is stored of a source. Returns the new document, or None if others were faster `TRIES` times.

    `change` is pure, and may be called several times. Raises as `KeyValueStore.swap_note`. `CorruptRecordError`: what
    is stored is damaged, or newer software wrote it. It stays as it is.
    """
    for _ in range(TRIES):
        raw = await log.read_note(note_name(source))
        document = change(Document(source) if raw is None else decode(source, raw))
        if await log.swap_note(note_name(source), raw, encode(document)):
            return document
    return None


# --- the stored form ---------------------------------------------------------------------------------

_STORED = [each.name for each in fields(SourceRow) if each.name not in ("source", "worker")]


def encode(document: Document) -> bytes:
    """Returns the stored form, JSON without spaces."""
    value = {
        "v": VERSION, "source": document.source, "incarnation": document.incarnation, "snapshot": document.snapshot,
        "committed": document.committed, "base": dict(document.base),
        "folded": {run: [part[column] for column in DONE] for run, part in document.folded.items()},
        "offsets": None if document.offsets is None else asdict(document.offsets),
        "missing": None if document.missing is None else asdict(document.missing),
        "elsewhere": document.elsewhere, "regressions": document.regressions, "samples": document.samples,
        "workers": {
            name: {"run": each.run, "at_ms": each.at_ms, "left": each.left}
            | ({"out": [asdict(met) for met in each.out]} if each.out else {})
            | {column: getattr(each.row, column) for column in _STORED}
            for name, each in document.workers.items()
        },
        "departed": dict(document.departed),
    }  # fmt: skip
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def decode(source: str, raw: bytes) -> Document:
    """Returns what was stored. `CorruptRecordError`: it is damaged, or newer software wrote it."""
    try:
        value = json.loads(raw)
        version = value["v"] if isinstance(value, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise CorruptRecordError(
                f"the statistics of {source} were written by newer software (version {version}, and this one knows {VERSION}): "
                "they are left as they are; upgrade this software"
            )
        return _decoded(source, value)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptRecordError(
            f"the statistics of {source} in the changelog are damaged ({type(error).__name__}: {error}): they are left as they are; "
            f"delete the note {note_name(source)} to begin them anew"
        ) from None


def _decoded(source: str, value: Any) -> Document:
    if _of(value, "v", int) != VERSION or _of(value, "source", str) != source:
        raise ValueError("it is something else")
    json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair could be neither written nor shown
    offsets, missing = value["offsets"], value.get("missing")  # earlier software wrote no `missing` and no `departed`
    found = Document(
        source=source, incarnation=_of(value, "incarnation", str), snapshot=_of(value, "snapshot", str),
        committed=_of(value, "committed", bool), base={column: _count(value["base"][column]) for column in DONE},
        folded={
            run: dict(zip(DONE, map(_count, _list(part, len(DONE))), strict=True)) for run, part in _of(value, "folded", dict).items()
        },
        offsets=None if offsets is None else Offsets(_count(offsets["outstanding"]), _count(offsets["processed"])),
        missing=None if missing is None else Shortfall(*(_count(missing[each.name]) for each in fields(Shortfall))),
        elsewhere=_count(value["elsewhere"]), regressions=_count(value["regressions"]),
        samples=tuple((_count(at), _count(outstanding), _count(processed)) for at, outstanding, processed in value["samples"]),
        workers={name: _reported(source, name, each) for name, each in _of(value, "workers", dict).items()},
        departed={name: _count(at_ms) for name, at_ms in value.get("departed", {}).items()},
    )  # fmt: skip
    if any(sum(part[column] for part in found.folded.values()) > found.base[column] for column in DONE):
        raise ValueError("more is folded than the base has")
    if found.offsets is not None and found.offsets.processed > found.offsets.outstanding:
        raise ValueError("more is processed than is outstanding")
    return found


def _reported(source: str, name: str, value: Any) -> Reported:
    columns: dict[str, Any] = {column: _count(value[column]) for column in COUNTERS}
    columns |= {column: None if value[column] is None else _count(value[column]) for column in NULLABLE}
    columns |= {column: _of(value, column, bool) for column in ("snapshot_known_estimated", "snapshot_committed")}
    row = SourceRow(source, name, _of(value, "incarnation", str), **columns)
    out = value.get("out", [])  # earlier software wrote none
    if type(out) is not list:
        raise ValueError("out is no list")
    met = tuple(ServiceOut(_of(each, "service", str), _of(each, "refuses", bool), _of(each, "error", str)) for each in out)
    return Reported(row, _of(value, "run", str), _count(value["at_ms"]), _of(value, "left", bool), met)


def _of(value: Any, name: str, kind: type) -> Any:
    if type(value[name]) is not kind:
        raise ValueError(f"{name} is no {kind.__name__}")
    return value[name]


def _list(value: Any, length: int) -> list[Any]:
    if type(value) is not list or len(value) != length:
        raise ValueError(f"there are not {length} figures")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise ValueError(f"{value!r} is no count")
    return value
