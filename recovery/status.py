"""The status of a store: does recovery keep up, is anything wrong, what should an operator type?

    gather(backends, settings, runtime) -> Status -> as_json      for programs, and for the status page
                                                  -> headline     the answer, in one sentence
                                                  -> orders       what to type, and why

`gather` reads and writes nothing. It claims only what it has seen: what could not be read is None and not 0, and a
sentence in `problems` says why. A service that is down gives a Status with what is known, and no exception.

What it reads: the service's clock; the entries, all pages, up to `COUNT_MAX` of them or `COUNT_S` seconds; the presence
rows; the notes with the statistics and with the last audit.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

import anyio

from changelog.base.errors import TieredError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId, Entry, Unreadable
from changelog.lease import SET_BACK_MS, Standing, standing
from changelog.log import ChangeLog
from recovery.entries import PAGE
from recovery.hiding import HIDDEN, without_names
from recovery.last_audit import LastAudit, read_last
from recovery.statistics.columns import SourceRow
from recovery.statistics.persisted import AUDIT, RECOVERY, Document, read_statistics
from recovery.statistics.verdict import Kind, Verdict
from tiered.metadata import NS_PER_S
from tiered.open import Backends
from tiered.settings import Settings

COUNT_MAX = 50_000
COUNT_S = 5.0
"""Up to so many entries, and for about so many seconds, entries are counted exactly. What is beyond is not counted."""

ANSWER_S = 10.0
"""Seconds within which a service must answer one question."""

STUCK_LISTED_MAX = 100
"""So many stuck entries are described. All are counted."""

REPORT_AGE_MAX_S = 60.0
"""Figures that are older, in seconds, say nothing of the present: their verdict is unknown."""

SILENCE_MAX_S = 60.0
"""For how many seconds a daemon that works may write no presence row. It writes one with every report: every 10 s, if a
report does not take long, and every 31 s if each takes all the time that it may take."""

SKEW_MAX_S = 60.0
"""By how many seconds this machine's clock may differ from the service's before `problems` says so."""

AGES_S = (60.0, 600.0, 3600.0, 86_400.0)
"""The bounds of the classes of age, in seconds. There is one class more than bounds."""

DUE = (Standing.CLAIMABLE, Standing.EXHAUSTED, Standing.UNREADABLE)
"""Entries of these standings are work for recovery, now."""

UNKNOWN = Verdict(Kind.UNKNOWN)
Answer = TypeVar("Answer")
NS_PER_MS = 1_000_000


class Level(StrEnum):
    """The answer in one word. STUCK comes before BEHIND, and BEHIND before UNKNOWN."""

    OK = "ok"
    BEHIND = "behind"
    STUCK = "stuck"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Store:
    """Which store it is. `kind`: `embedded` or `google`."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Source:
    """The statistics of one source.

    `workers`: the row of each worker that has not ended, by its name. `verdict`: unknown if the figures are older than
    `REPORT_AGE_MAX_S`, or if nobody is left who works. `reported_ms`: when a worker last reported (Unix ms).
    `regressions`: the sum of all that vanished although no worker dealt with it.
    """

    total: SourceRow
    workers: Mapping[str, SourceRow]
    verdict: Verdict
    reported_ms: int | None = None
    regressions: int = 0


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries that were counted, by standing, and in each standing by class of age (`AGES_S`).

    `complete`: all were counted. Otherwise there are more, or the changelog did not answer. `oldest_age_s`: the age of
    the oldest change that is not stuck, by the clock of the machine that made it. `undated`: entries whose key tells no
    age; they are in `by_standing`, and in no class of age. Both mappings are empty if nothing could be read.
    """

    by_standing: Mapping[Standing, int] = field(default_factory=dict)
    by_age: Mapping[Standing, tuple[int, ...]] = field(default_factory=dict)
    undated: int = 0
    oldest_age_s: float | None = None
    oldest_id: str | None = None
    counted: int = 0
    complete: bool = False

    @property
    def due(self) -> int:
        """How many of the counted entries are work for recovery now."""
        return sum(self.by_standing.get(each, 0) for each in DUE)


@dataclass(frozen=True, slots=True)
class StuckEntry:
    """An entry that waits for an operator. `since_ms`: Unix ms; None: not known, as in all fields.

    `names`: the object and the blobs that the entry names. They are hidden together with the object.
    """

    id: str
    key: str
    object: str | None
    error: str
    since_ms: int | None
    attempt: int | None
    names: tuple[str, ...] = ()

    @property
    def error_without_names(self) -> str:
        """The error, with "…" for each name. An error about an entry that cannot be read may quote anything from it."""
        if self.object is None:
            return "the entry cannot be read"
        return without_names(self.error, self.names)

    @property
    def command(self) -> str:
        """What to type after the cause was mended. An ID that no terminal can show is retried with all others."""
        return f"tiered log retry {shlex.quote(self.id)}" if self.id.isprintable() else "tiered log retry --all"


@dataclass(frozen=True, slots=True)
class StuckEntries:
    """`count`: how many there are; None: not known. `complete`: all were counted; otherwise there are `count` or more.

    `entries`: the first `STUCK_LISTED_MAX`.
    """

    count: int | None = None
    complete: bool = False
    entries: tuple[StuckEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Daemon:
    """An instance of recovery that wrote a presence row within the last day. `seen_s_ago`: seconds since its last one.

    `ended`: its last report says that it ended. `alive`: it did not say so, and was seen within `SILENCE_MAX_S`.
    An instance that is neither was killed, or it cannot reach the changelog.
    """

    instance: str
    seen_s_ago: float
    alive: bool
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """All that is known of a store at `at_ms` (Unix ms by the service's clock).

    `durable`: a changelog is kept. `answers`: the changelog could be read. `daemons`: None if the presence rows could
    not be read. `problems`: one sentence for each thing that could not be looked at, or that is wrong.
    """

    at_ms: int
    store: Store
    durable: bool
    answers: bool
    sources: Mapping[str, Source]
    entries: Entries
    stuck: StuckEntries
    daemons: Sequence[Daemon] | None
    last_audit: LastAudit | None
    problems: tuple[str, ...]

    @property
    def alive(self) -> int | None:
        """How many daemons live. None: not known."""
        return None if self.daemons is None else sum(daemon.alive for daemon in self.daemons)

    @property
    def nobody_works(self) -> bool:
        """Whether there is work for recovery, and surely no daemon that lives."""
        return self.alive == 0 and self.entries.due > 0

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on recovery. None: no daemon has reported anything."""
        return self.sources[RECOVERY].verdict if RECOVERY in self.sources else None

    @property
    def level(self) -> Level:
        kind = None if self.verdict is None else self.verdict.kind
        if self.stuck.count:
            return Level.STUCK
        if self.nobody_works or kind in (Kind.FALLING_BEHIND, Kind.STALLED):
            return Level.BEHIND
        if not self.answers or not self.durable:
            return Level.UNKNOWN
        nothing_waits = self.entries.complete and not self.entries.due
        if self.stuck.complete and (kind in (Kind.HEALTHY, Kind.CATCHING_UP) or nothing_waits):
            return Level.OK
        return Level.UNKNOWN


# --- the answer, in words ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """Something for an operator to do. `why`: one sentence. `type`: the command to type; None: there is none."""

    why: str
    type: str | None = None


def headline(status: Status) -> str:
    """Returns the answer in one or two sentences: does recovery keep up, and is anything wrong?"""
    audit = status.last_audit
    lost = " The last audit found that data is lost." if audit is not None and audit.is_loss else ""
    problems = " See the problems, too." if status.problems and status.answers and status.durable else ""
    return f"{_headline(status)}{lost}{problems}"


def _headline(status: Status) -> str:
    stuck, count = status.stuck, status.stuck.count
    match status.level:
        case Level.STUCK:
            more = "" if stuck.complete else " or more"
            waits = "1 entry is stuck and waits" if count == 1 and not more else f"{count:,}{more} entries are stuck and wait"
            return f"{waits} for you. {_pace(status)}"
        case _ if not status.answers:
            return "The changelog does not answer, so it is not known whether recovery keeps up."
        case _ if not status.durable:
            return "No changelog is kept, so nobody cleans up after a process that dies. Only an audit finds what it leaves."
        case _:
            return _pace(status)


def _pace(status: Status) -> str:
    """Returns whether recovery keeps up, in a sentence."""
    found, due = status.verdict or UNKNOWN, status.entries.due
    if status.nobody_works:
        least = "" if status.entries.complete else "at least "
        return f"Nobody works on {least}{_count(due, 'entry that waits', 'entries that wait')} for recovery: no daemon lives."
    match found.kind:
        case Kind.HEALTHY:
            return "Recovery keeps up."
        case Kind.CATCHING_UP:
            return "Recovery is catching up."
        case Kind.FALLING_BEHIND:
            return "Recovery falls behind: entries come in at least as fast as it deals with them."
        case Kind.STALLED:
            return "Recovery stands still: entries wait, and it deals with none."
    if status.entries.complete and not due:
        return f"Nothing waits for recovery{', and no daemon lives' if status.alive == 0 else ''}."
    return "It is not known whether recovery keeps up: that takes two reports of a daemon that lives."


def orders(status: Status) -> list[Order]:
    """Returns what an operator should do, the most urgent first. Each stuck entry has a command of its own besides."""
    return list(_orders(status))


def _orders(status: Status) -> Iterator[Order]:
    kind = None if status.verdict is None else status.verdict.kind
    if status.stuck.count:
        yield Order("Entries are stuck. Mend the cause of each, then give it back to recovery.", "tiered log list --stuck")
    if not status.answers:
        yield Order("The changelog does not answer. See what is missing or out of reach.", "tiered check")
    elif not status.durable:
        to = "sqlite" if status.store.kind == "embedded" else "bigtable"
        yield Order(f"No changelog is kept. Set 'changelog: {to}' if what a killed process leaves behind should be removed.")
    elif status.alive == 0:
        yield Order("No daemon lives. Start one.", "tiered recover")
    if kind is Kind.STALLED and not status.nobody_works:
        yield Order("The daemon deals with no entry. Its log says why; see whether it reaches everything.", "tiered check")
    if kind is Kind.FALLING_BEHIND and not status.nobody_works:
        why = "Recovery is too slow. Start another daemon, or raise recovery.rate_per_s and recovery.concurrency_max."
        yield Order(why, "tiered recover")
    if status.last_audit is not None and status.last_audit.is_loss:
        yield Order(f"The last audit found live objects that are lost. Read its report in {status.last_audit.where}.")


DAMAGED = "The entry itself is damaged, and nobody can work on it. Keep it, and run an audit to find what it leaves behind."
MEND = "Mend what the error names; then retry the entry."
ADVICE: tuple[tuple[str, str], ...] = (
    (r"it has version .* this software reads", "Newer software wrote it. Update the daemons; then retry the entry."),
    (r"^the entry at .* cannot be read|names the (new|old) blob", DAMAGED),
    (r"^its state cannot be read", "Only the mark that says why it is stuck is damaged. Retry the entry."),
    (r"^claimed \d+ times", "Daemons died while they worked on it. Their logs say why, such as too little memory; then retry the entry."),
    (r"(?i)grant roles/|permission|forbidden|\b40[13]\b", "The daemon's account may not do it. Grant it the role; then retry the entry."),
    (r"^failed \d+ times", MEND),
    (
        r"breaks the format|does not match its checksum|\bthe row\b",
        "A stored record is damaged. Restore it, or write or delete the object; then retry the entry.",
    ),
)
"""What to do first about a stuck entry, by its error. The first pattern that is found decides."""


def advice(error: str) -> str:
    """Returns what to do about a stuck entry with this error."""
    return next((what for pattern, what in ADVICE if re.search(pattern, error)), MEND)


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


# --- JSON ----------------------------------------------------------------------------------------

COLUMNS = (
    "snapshot_records_known", "snapshot_known_estimated", "snapshot_progress", "snapshot_committed", "outstanding_values",
    "processed_values", "messages_received", "bytes_received", "updates_staged", "updates_committed",
)  # fmt: skip


def as_json(status: Status, *, show_objects: bool = True) -> dict[str, Any]:
    """Returns the status as plain JSON, as `tiered status --json` and `/status.json` print it.

    What is not known is null. `show_objects` False: the names of objects and of their blobs are replaced by "…".
    """
    entries, stuck, audit = status.entries, status.stuck, status.last_audit
    return {
        "at": moment(status.at_ms),
        "level": status.level.value,
        "headline": headline(status),
        "orders": [{"why": order.why, "type": order.type} for order in orders(status)],
        "store": {"kind": status.store.kind, "name": status.store.name, "durable": status.durable, "answers": status.answers},
        "sources": {name: _source_json(source) for name, source in status.sources.items()},
        "entries": {
            "by_standing": {each.name: number for each, number in entries.by_standing.items()},
            "by_age": {each.name: list(ages) for each, ages in entries.by_age.items()},
            "ages_s": list(AGES_S), "undated": entries.undated,
            "oldest_age_s": entries.oldest_age_s, "oldest_id": entries.oldest_id,
            "counted": entries.counted, "complete": entries.complete,
        },
        "stuck": {
            "count": stuck.count, "complete": stuck.complete, "entries": [_stuck_json(each, show_objects) for each in stuck.entries],
        },
        "daemons": None if status.daemons is None else [
            {"instance": each.instance, "seen_s_ago": each.seen_s_ago, "alive": each.alive, "ended": each.ended} for each in status.daemons
        ],
        "last_audit": None if audit is None else {
            "run": audit.run, "where": audit.where, "started": moment(audit.started_ns // NS_PER_MS),
            "ended": moment(audit.ended_ns // NS_PER_MS), "complete": audit.complete, "sentence": audit.sentence,
            "blobs": audit.blobs, "tombstones": audit.tombstones, "scope": audit.scope, "payloads_read": audit.verified,
            "findings": {kind: {"number": number, "bytes": size} for kind, (number, size) in audit.findings.items()},
        },
        "problems": list(status.problems),
    }  # fmt: skip


def _source_json(source: Source) -> dict[str, Any]:
    return {
        "total": _columns(source.total),
        "workers": {name: _columns(row) for name, row in source.workers.items()},
        "verdict": verdict_json(source.verdict),
        "reported": moment(source.reported_ms), "regressions": source.regressions,
    }  # fmt: skip


def verdict_json(found: Verdict) -> dict[str, Any]:
    """Returns the verdict as plain JSON."""
    return {
        "kind": found.kind.value, "inflow_per_s": found.inflow_per_s, "drain_per_s": found.drain_per_s,
        "caught_up_in_s": found.caught_up_in_s,
    }  # fmt: skip


def _columns(row: SourceRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in COLUMNS}


def _stuck_json(entry: StuckEntry, show_objects: bool) -> dict[str, Any]:
    named = entry.object is not None
    return {
        "id": entry.id, "key": entry.key, "object": entry.object if show_objects or not named else HIDDEN,
        "error": entry.error if show_objects else entry.error_without_names,
        "since": moment(entry.since_ms), "attempt": entry.attempt, "advice": advice(entry.error), "type": entry.command,
    }  # fmt: skip


def moment(unix_ms: int | None) -> str | None:
    """Returns a time in RFC 3339, to the second. None: it is not known, or no calendar has it."""
    if unix_ms is None:
        return None
    try:
        return datetime.fromtimestamp(unix_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return None


# --- looking -------------------------------------------------------------------------------------


async def gather(backends: Backends, settings: Settings, runtime: Runtime) -> Status:
    """Looks at a store. It writes nothing, and no `TieredError` leaves it: `Status.problems` has their sentences.

    It takes up to a few times `ANSWER_S` seconds if the services do not answer.
    """
    return await _Look(backends, settings, runtime).gather()


class _Look:
    """One look at a store. `_unread`: what could not be read, by the reason. `_ended`: workers that
    said so, and when (Unix ms by the service's clock)."""

    def __init__(self, backends: Backends, settings: Settings, runtime: Runtime) -> None:
        self._tiers = backends.tiers
        self._log = backends.log
        self._settings = settings
        self._runtime = runtime
        self._problems: list[str] = []
        self._unread: dict[str, list[str]] = {}
        self._now_ms = 0
        self._ended: dict[str, int] = {}

    async def gather(self) -> Status:
        self._now_ms = await self._time_ms()
        entries = _Scan(self._log, self._now_ms, self._settings)
        presences: Sequence[tuple[str, int]] | None = None
        audit: LastAudit | None = None
        sources: dict[str, Source] = {}

        async def read_source(name: str) -> None:
            if (found := await self._source(name)) is not None:
                sources[name] = found

        async def read_presences() -> None:
            nonlocal presences
            presences = await self._ask("the presence of daemons", self._log.presences)

        async def read_audit() -> None:
            nonlocal audit
            audit = await self._ask("the result of the last audit", lambda: read_last(self._log))

        async with anyio.create_task_group() as group:
            group.start_soon(self._count, entries)
            group.start_soon(read_presences)
            group.start_soon(read_source, RECOVERY)
            group.start_soon(read_source, AUDIT)
            group.start_soon(read_audit)
        daemons = None if presences is None else self._daemons(presences)
        if RECOVERY in sources and daemons is not None and not any(each.alive for each in daemons):
            sources[RECOVERY] = replace(sources[RECOVERY], verdict=UNKNOWN)  # it was about the past
        return Status(
            at_ms=self._now_ms, store=store_of(self._settings), durable=self._log.durable, answers=entries.answered,
            sources={name: sources[name] for name in (RECOVERY, AUDIT) if name in sources}, entries=entries.entries(),
            stuck=entries.stuck(), daemons=daemons, last_audit=audit,
            problems=tuple(self._told()),
        )  # fmt: skip

    def _told(self) -> Iterator[str]:
        """Yields the problems. What failed for one reason is told in one sentence."""
        for reason, whats in sorted(self._unread.items()):
            listed = ", ".join(sorted(set(whats)))
            yield f"{listed} could not be read: {reason}"
        yield from self._problems

    async def _ask(self, what: str, call: Callable[[], Awaitable[Answer]]) -> Answer | None:
        """Asks, for `ANSWER_S` seconds at most. None: there was no answer, and the problem is noted."""
        try:
            with anyio.fail_after(ANSWER_S):
                return await call()
        except TimeoutError:
            self._unread.setdefault(f"no answer within {ANSWER_S:g} s", []).append(what)
        except TieredError as error:
            self._unread.setdefault("; ".join(str(error).splitlines()), []).append(what)
        return None

    async def _time_ms(self) -> int:
        """Returns the service's time (Unix ms). If it does not answer, this machine's, and that is noted."""
        here_ns = self._runtime.wall_ns()
        there_ns = await self._ask("the service's clock", self._tiers.long_term.now_ns)
        if there_ns is None:
            self._problems.append("ages are by this machine's clock")
            return here_ns // NS_PER_MS
        if abs(ahead_s := (here_ns - there_ns) / NS_PER_S) > SKEW_MAX_S:
            side = "ahead of" if ahead_s > 0 else "behind"
            self._problems.append(f"this machine's clock is {abs(ahead_s):,.0f} s {side} the service's, by which ages are shown")
        return there_ns // NS_PER_MS

    async def _source(self, name: str) -> Source | None:
        """Reads the statistics of a source. None: nobody has reported, or they cannot be read."""
        found = await self._ask(f"the statistics of {name}", lambda: read_statistics(self._log, name))
        if found is None or not found.at_ms:
            return None
        sampled_ms = found.samples[-1][0] if found.samples else 0
        fresh = abs(self._now_ms - sampled_ms) <= REPORT_AGE_MAX_S * 1000
        self._tell_twins(found)
        self._ended |= {**found.departed, **{worker: each.at_ms for worker, each in found.workers.items() if each.left}}
        present = {worker: each.row for worker, each in found.workers.items() if not each.left}
        return Source(found.total(), present, found.verdict() if fresh else UNKNOWN, found.at_ms, found.regressions)

    def _tell_twins(self, found: Document) -> None:
        """Tells of workers that call themselves the same. The second one was given a `~` and a part of its run."""
        recent = {
            worker for worker, each in found.workers.items() if not each.left and self._now_ms - each.at_ms <= REPORT_AGE_MAX_S * 1000
        }
        for name in sorted({worker.partition("~")[0] for worker in recent if "~" in worker} & recent):
            self._problems.append(
                f"two workers call themselves {name}: unless one was restarted within the last minute, give each an 'instance' of its own"
            )

    async def _count(self, scan: _Scan) -> None:
        """Counts all entries. If that is cut short, counts those that are stuck besides, because they matter most."""
        await self._read_pages(scan, stuck_only=False)
        if scan.answered and not scan.complete:
            scan.begin_stuck()
            await self._read_pages(scan, stuck_only=True)

    async def _read_pages(self, scan: _Scan, *, stuck_only: bool) -> None:
        began, seen, start = self._runtime.monotonic(), 0, ""
        while seen < COUNT_MAX and self._runtime.monotonic() - began < COUNT_S:
            page = await self._ask("the changelog", partial(self._log.entries, start, PAGE, stuck_only=stuck_only))
            if page is None:
                return
            seen += len(page.entries)
            scan.take(page.entries)
            if page.next_start is None:
                scan.end()
                return
            start = page.next_start
        if not stuck_only:
            self._problems.append(f"there are more than {seen:,} entries, and no more were counted")

    def _daemons(self, presences: Sequence[tuple[str, int]]) -> list[Daemon]:
        found = []
        for instance, seen_ms in sorted(presences, key=lambda each: (-each[1], each[0])):
            ago_ms = self._now_ms - seen_ms
            ended = seen_ms <= self._ended.get(instance, -1)  # what was seen later is another one with this name
            alive = not ended and -SET_BACK_MS < ago_ms <= SILENCE_MAX_S * 1000
            found.append(Daemon(instance, max(0.0, ago_ms / 1000), alive, ended))
        return found


def store_of(settings: Settings) -> Store:
    """Returns which store the settings name."""
    if (directory := settings.directory) is not None:
        with suppress(OSError):  # the current directory may be gone
            directory = directory.absolute()
        return Store("embedded", str(directory))
    bigtable, gcs = settings.bigtable, settings.gcs
    assert bigtable is not None and gcs is not None, "settings allow one only with the other"
    return Store("google", f"{bigtable.project}/{bigtable.instance}/{bigtable.table} and gs://{gcs.bucket}")


class _Scan:
    """What a scan of the entries has found so far. `answered`: the first page came. `complete`: the last one did."""

    def __init__(self, log: ChangeLog, now_ms: int, settings: Settings) -> None:
        self.answered = False
        self.complete = False
        self._rules = (now_ms, round(settings.lease.expiry_s * 1000), settings.recovery.attempts_max)
        self._now_ms = now_ms
        self._ages = {each: [0] * (len(AGES_S) + 1) for each in Standing}
        self._counts = dict.fromkeys(Standing, 0)
        self._undated = dict.fromkeys(Standing, 0)
        self._oldest: tuple[int, str] | None = None
        self._stuck: list[StuckEntry] = []
        self._stuck_only = self._stuck_complete = False

    def begin_stuck(self) -> None:
        """Begins a second scan, of the stuck entries alone."""
        self._stuck_only = True
        self._counts[Standing.PARKED], self._undated[Standing.PARKED] = 0, 0
        self._ages[Standing.PARKED] = [0] * (len(AGES_S) + 1)
        self._stuck = []

    def take(self, entries: Sequence[Entry | Unreadable]) -> None:
        self.answered = True
        for entry in entries:
            self._take(entry)

    def end(self) -> None:
        self._stuck_complete = True
        self.complete = self.complete or not self._stuck_only

    def _take(self, entry: Entry | Unreadable) -> None:
        where = standing(entry, *self._rules)
        self._counts[where] += 1
        created_ms = _created_ms(entry)
        if created_ms is None:
            self._undated[where] += 1
        else:
            age_s = max(0.0, (self._now_ms - created_ms) / 1000)
            self._ages[where][bisect_right(AGES_S, age_s)] += 1
            if where is not Standing.PARKED and (self._oldest is None or created_ms < self._oldest[0]):
                self._oldest = created_ms, _id(entry)
        if where is Standing.PARKED and len(self._stuck) < STUCK_LISTED_MAX:
            self._stuck.append(_stuck_entry(entry))

    def entries(self) -> Entries:
        if not self.answered:
            return Entries()
        return Entries(
            by_standing=dict(self._counts), by_age={each: tuple(ages) for each, ages in self._ages.items()},
            undated=sum(self._undated.values()),
            oldest_age_s=None if self._oldest is None else max(0.0, (self._now_ms - self._oldest[0]) / 1000),
            oldest_id=None if self._oldest is None else self._oldest[1],
            counted=sum(self._counts.values()), complete=self.complete,
        )  # fmt: skip

    def stuck(self) -> StuckEntries:
        if not self.answered:
            return StuckEntries()
        return StuckEntries(self._counts[Standing.PARKED], self._stuck_complete, tuple(self._stuck))


def _created_ms(entry: Entry | Unreadable) -> int | None:
    """Returns when the change was made (Unix ms, by its maker's clock). None: the key does not tell."""
    told = entry.change.id if isinstance(entry, Entry) else entry.key[-36:]
    return ChangeId(told).created_ms if ChangeId.matches(told) else None


def _id(entry: Entry | Unreadable) -> str:
    """Returns by what `tiered log` finds the entry: the change's id, or the key of an entry that cannot be read."""
    return entry.change.id if isinstance(entry, Entry) else entry.key


def _stuck_entry(entry: Entry | Unreadable) -> StuckEntry:
    assert entry.stuck is not None
    since_ms = entry.stuck.at_ms or None
    if isinstance(entry, Unreadable):
        return StuckEntry(entry.key, entry.key, None, entry.stuck.error, since_ms, None)
    change = entry.change
    names = tuple(name for name in (change.new, change.old, change.object) if name)
    return StuckEntry(change.id, entry.key, change.object, entry.stuck.error, since_ms, entry.attempt, names)
