"""Looks at a store. It reads and writes nothing else than what it says here, and never raises a `TieredError`.

It reads the service's clock; the entries, all pages, up to `COUNT_MAX` of them or `COUNT_S` seconds; the presence rows;
the notes with the statistics, with the results of audits and of the change feed; where there is a feed, the entries
that wait for it; the note of what readers found lost, and the row and the blob of each; one row and one blob that do
not exist, to know whether the tiers answer, if the clock's service did; whether the rows take writes; how full the disk
is. A service that is down gives a Status with what is known.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio

from changelog.base.errors import CorruptRecordError, TieredError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId, Entry, Unreadable
from changelog.lease import DUE, EntryState, entry_state
from changelog.log import ChangeLog
from recovery.dangling import look_at_lost_reads
from recovery.entries import PAGE
from recovery.last_audit import read_audits
from recovery.outages import FULL_PASS_EVERY_S, is_refusal
from recovery.statistics.persisted import FEED, RECOVERY, SOURCES, Document, Reported, read_statistics
from recovery.status.feed import look_at_feed, state_of
from recovery.status.known import (
    AGES_S,
    REPORT_AGE_MAX_S,
    SERVICES,
    SILENCE_MAX_S,
    STUCK_LISTED_MAX,
    UNKNOWN,
    CountedEntries,
    Daemon,
    DiskStatus,
    SourceStatus,
    Status,
    StoreIdentity,
    StuckEntries,
    StuckEntry,
)
from tiered.kinds.chosen import address_of
from tiered.metadata import NS_PER_MS, NS_PER_S
from tiered.open import Backends
from tiered.services.breaker import CHANGELOG, HIGH_VOLUME, LONG_TERM
from tiered.services.capabilities import ServerRole
from tiered.settings import Settings

COUNT_MAX = 50_000
COUNT_S = 5.0
"""Up to so many entries, and for about so many seconds, entries are counted exactly. What is beyond is not counted."""

ANSWER_S = 10.0
"""Seconds within which a service must answer one question."""

A_ROW, A_BLOB, TAKES_WRITES, THE_CLOCK = "a row", "a blob", "whether writes are taken", "the service's clock"
PRESENCES, AUDITS, LOST_READS = "the presence of daemons", "the results of the audits", "what readers found lost"
_NOT_DUE = (EntryState.PARKED, EntryState.KEPT, EntryState.ASSEMBLING, EntryState.NEWER)
"""Nobody waits for recovery to finish these."""

SERVICE_OF = {A_ROW: HIGH_VOLUME, TAKES_WRITES: HIGH_VOLUME, A_BLOB: LONG_TERM, THE_CLOCK: LONG_TERM}
"""Which service is asked for what. All else is asked of the changelog."""

NO_OBJECT = "~status"
"""A path that no object has."""

SKEW_MAX_S = 60.0
"""By how many seconds this machine's clock may differ from the service's before `problems` says so."""

Answer = TypeVar("Answer")


async def gather(backends: Backends, settings: Settings, runtime: Runtime) -> Status:
    """Looks at a store. It writes nothing, and no `TieredError` leaves it: `Status.problems` has their sentences.

    It takes up to a few times `ANSWER_S` seconds if the services do not answer.
    """
    return await _StoreLook(backends, settings, runtime).gather()


class _StoreLook:
    """One look at a store. `_unread`: what could not be read, by the reason. `_ended`: workers that
    said so, and when (Unix ms by the service's clock)."""

    def __init__(self, backends: Backends, settings: Settings, runtime: Runtime) -> None:
        self._tiers = backends.tiers
        self._log = backends.log
        self._settings = settings
        self._runtime = runtime
        self._problems: list[str] = []
        self._unread: dict[str, list[str]] = {}
        self._away: set[str] = set()
        self._refusing: set[str] = set()
        self._now_ms = 0
        self._ended: dict[str, int] = {}

    async def gather(self) -> Status:
        self._now_ms = await self._time_ms()
        tiers, log, settings = self._tiers, self._log, self._settings
        entries, found = _Scan(log, self._now_ms, settings), dict[str, Any]()

        async def read(what: str, call: Callable[[], Awaitable[object]]) -> None:
            found[what] = await self._call(what, call)

        async def read_lost() -> None:
            await read(AUDITS, partial(read_audits, log))
            await read(LOST_READS, partial(look_at_lost_reads, tiers, log, self._runtime, found[AUDITS]))
            if (lost := found[LOST_READS]) is not None and lost.not_looked_at:
                self._unread.setdefault(lost.reason, []).append(LOST_READS)

        async def read_feed() -> None:
            found[FEED] = await look_at_feed(self._call, log, settings, self._runtime, self._now_ms)

        async with anyio.create_task_group() as group:
            group.start_soon(self._count, entries)
            group.start_soon(read, A_ROW, partial(tiers.high_volume.read, NO_OBJECT))
            if LONG_TERM not in self._away:  # otherwise it did not tell the time, and another question would wait as long
                group.start_soon(read, A_BLOB, partial(tiers.long_term.head, NO_OBJECT))
            if isinstance(tiers.high_volume, ServerRole):
                group.start_soon(read, TAKES_WRITES, tiers.high_volume.refuses_writes)
            group.start_soon(read, PRESENCES, log.presences)
            for name in SOURCES:
                group.start_soon(read, f"the statistics of {name}", partial(read_statistics, log, name))
            group.start_soon(read_lost)
            group.start_soon(read_feed)
        if (refusal := found.get(TAKES_WRITES)) is not None:
            self._problems.append(refusal)
            self._refusing |= {HIGH_VOLUME, CHANGELOG}
        sources = {name: self._source(document) for name in SOURCES if (document := found[f"the statistics of {name}"]) and document.at_ms}
        daemons = None if found[PRESENCES] is None else self._daemons(found[PRESENCES])
        if RECOVERY in sources and daemons is not None and not any(each.alive for each in daemons):
            sources[RECOVERY] = replace(sources[RECOVERY], verdict=UNKNOWN)  # it was about the past
        if (feed := found[FEED]) is not None:
            state, why = state_of(feed, settings.feed, sources.get(FEED))
            feed = replace(feed, state=state, why=why)
        return Status(
            at_ms=self._now_ms, store=store_of(settings), durable=log.durable, answers=entries.answered,
            sources=sources, entries=entries.entries(), stuck=entries.stuck(), daemons=daemons,
            audits=found[AUDITS] if log.durable else None, lost_reads=found[LOST_READS] if log.durable else None,
            problems=tuple(self._told()), complete=not self._unread, disk=disk_of(settings.directory),
            away=_named(self._away), refusing=_named(self._refusing - self._away), feed=feed,
        )  # fmt: skip

    def _told(self) -> Iterator[str]:
        """Yields the problems. What failed for one reason is told in one sentence."""
        for reason, whats in sorted(self._unread.items()):
            listed = ", ".join(sorted(set(whats)))
            yield f"{listed} could not be read: {reason}"
        yield from self._problems

    async def _call(self, what: str, call: Callable[[], Awaitable[Answer]]) -> Answer | None:
        """Asks, for `ANSWER_S` seconds at most. None: there was no answer, and the problem is noted."""
        service = SERVICE_OF.get(what, CHANGELOG)
        try:
            with anyio.fail_after(ANSWER_S):
                return await call()
        except TimeoutError:
            self._unread.setdefault(f"no answer within {ANSWER_S:g} s", []).append(what)
            self._away.add(service)
        except TieredError as error:
            if not isinstance(error, CorruptRecordError):
                (self._refusing if is_refusal(error) else self._away).add(service)
            self._unread.setdefault("; ".join(str(error).splitlines()), []).append(what)
        return None

    async def _time_ms(self) -> int:
        """Returns the service's time (Unix ms). If it does not answer, this machine's, and that is noted."""
        here_ns = self._runtime.wall_ns()
        there_ns = await self._call(THE_CLOCK, self._tiers.long_term.now_ns)
        if there_ns is None:
            self._problems.append("ages are by this machine's clock")
            return here_ns // NS_PER_MS
        if abs(ahead_s := (here_ns - there_ns) / NS_PER_S) > SKEW_MAX_S:
            side = "ahead of" if ahead_s > 0 else "behind"
            self._problems.append(f"this machine's clock is {abs(ahead_s):,.0f} s {side} the service's, by which ages are shown")
        return there_ns // NS_PER_MS

    def _source(self, found: Document) -> SourceStatus:
        """Returns the statistics of a source, of which somebody has reported."""
        sampled_ms = found.samples[-1][0] if found.samples else 0
        fresh = abs(self._now_ms - sampled_ms) <= REPORT_AGE_MAX_S * 1000
        recent = {name: each for name, each in found.workers.items() if not each.left and self._is_recent(each.at_ms)}
        self._tell_twins(recent)
        self._tell_met(recent)
        self._ended |= {**found.departed, **{worker: each.at_ms for worker, each in found.workers.items() if each.left}}
        present = {worker: each.row for worker, each in found.workers.items() if not each.left}
        verdict = found.verdict() if fresh and present else UNKNOWN
        return SourceStatus(found.total(), present, verdict, found.at_ms, found.regressions, self._is_recent(found.at_ms))

    def _is_recent(self, at_ms: int) -> bool:
        return abs(self._now_ms - at_ms) <= REPORT_AGE_MAX_S * 1000

    def _tell_twins(self, recent: Mapping[str, Reported]) -> None:
        """Tells of workers that call themselves the same. The second one was given a `~` and a part of its run."""
        for name in sorted({worker.partition("~")[0] for worker in recent if "~" in worker} & {*recent}):
            self._problems.append(
                f"two workers call themselves {name}: unless one was restarted within the last minute, give each an 'instance' of its own"
            )

    def _tell_met(self, recent: Mapping[str, Reported]) -> None:
        """Tells what living daemons met lately. Reads succeed here where each of their deletions is refused."""
        for name, met in ((name, met) for name, each in sorted(recent.items()) for met in each.out if met.service in SERVICES):
            (self._refusing if met.refuses else self._away).add(met.service)
            does = "refuses what it is asked" if met.refuses else "does not answer it"
            self._problems.append(f"{name} says that the {SERVICES[met.service]} {does}: {'; '.join(met.error.splitlines())}")

    async def _count(self, scan: _Scan) -> None:
        """Counts all entries. If that is cut short, counts those that are stuck besides, because they matter most."""
        await self._read_pages(scan, stuck_only=False)
        if scan.answered and not scan.complete:
            scan.begin_stuck()
            await self._read_pages(scan, stuck_only=True)

    async def _read_pages(self, scan: _Scan, *, stuck_only: bool) -> None:
        began, seen, start = self._runtime.monotonic(), 0, ""
        while seen < COUNT_MAX and self._runtime.monotonic() - began < COUNT_S:
            page = await self._call("the changelog", partial(self._log.entries, start, PAGE, stuck_only=stuck_only))
            if page is None:
                return
            seen += len(page.entries)
            scan.take(page.entries)
            if page.next_start is None:
                scan.end()
                return
            start = page.next_start

    def _daemons(self, presences: Sequence[tuple[str, int]]) -> list[Daemon]:
        found = []
        for instance, seen_ms in sorted(presences, key=lambda each: (-each[1], each[0])):
            ago_ms = self._now_ms - seen_ms
            ended = seen_ms <= self._ended.get(instance, -1)  # what was seen later is another one with this name
            alive = not ended and abs(ago_ms) <= SILENCE_MAX_S * 1000  # what lies ahead was written before a clock was set back
            found.append(Daemon(instance, max(0.0, ago_ms / 1000), alive, ended))
        return found


def _named(services: Collection[str]) -> tuple[str, ...]:
    return tuple(name for service, name in SERVICES.items() if service in services)


def disk_of(directory: Path | None) -> DiskStatus | None:
    """Asks the system. It blocks, for microseconds: SQLite's log needs a local disk. None: there is no directory."""
    if directory is None:
        return None
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    free = found.f_bavail if found.f_favail or not found.f_files else 0
    return DiskStatus(free * found.f_frsize, found.f_blocks * found.f_frsize, bool(found.f_flag & os.ST_RDONLY))


def store_of(settings: Settings) -> StoreIdentity:
    """Returns which store the settings name."""
    if settings.embedded:
        return StoreIdentity("embedded", str(settings.directory))
    return StoreIdentity(f"{settings.rows_kind}+{settings.blobs_kind}", address_of(settings))


class _Scan:
    """What a scan of the entries has found so far. `answered`: the first page came. `complete`: the last one did."""

    def __init__(self, log: ChangeLog, now_ms: int, settings: Settings) -> None:
        self.answered = False
        self.complete = False
        self._rules = (now_ms, round(settings.lease.expiry_s * 1000), settings.recovery.attempts_max)
        self._now_ms = now_ms
        self._late = 0
        self._late_ms = now_ms - round(2 * FULL_PASS_EVERY_S * 1000)
        self._seen = Counter[tuple[EntryState, int | None]]()
        self._oldest: tuple[int, str] | None = None
        self._stuck: list[StuckEntry] = []
        self._stuck_only = self._stuck_complete = False

    def begin_stuck(self) -> None:
        """Begins a second scan, of the stuck entries alone."""
        self._stuck_only = True
        self._seen = Counter({key: number for key, number in self._seen.items() if key[0] is not EntryState.PARKED})
        self._stuck = []

    def take(self, entries: Sequence[Entry | Unreadable]) -> None:
        self.answered = True
        for entry in entries:
            self._take(entry)

    def end(self) -> None:
        self._stuck_complete = True
        self.complete = self.complete or not self._stuck_only

    def _take(self, entry: Entry | Unreadable) -> None:
        where = entry_state(entry, *self._rules)
        if where in DUE and isinstance(entry, Entry) and entry.is_second_look:
            self._late += (entry.cleanup_after_ms or 0) < self._late_ms
        created_ms = _created_ms(entry)
        self._seen[where, None if created_ms is None else bisect_right(AGES_S, max(0.0, (self._now_ms - created_ms) / 1000))] += 1
        if created_ms is not None and where not in _NOT_DUE and (self._oldest is None or created_ms < self._oldest[0]):
            self._oldest = created_ms, _id(entry)
        if where is EntryState.PARKED and len(self._stuck) < STUCK_LISTED_MAX:
            self._stuck.append(_stuck_entry(entry))

    def entries(self) -> CountedEntries:
        if not self.answered:
            return CountedEntries()
        return CountedEntries(
            by_state={each: self._number(each) for each in EntryState},
            by_age={each: tuple(self._seen[each, age] for age in range(len(AGES_S) + 1)) for each in EntryState},
            undated=sum(self._seen[each, None] for each in EntryState),
            oldest_age_s=None if self._oldest is None else max(0.0, (self._now_ms - self._oldest[0]) / 1000),
            oldest_id=None if self._oldest is None else self._oldest[1],
            counted=self._seen.total(), complete=self.complete, late=self._late,
        )  # fmt: skip

    def stuck(self) -> StuckEntries:
        if not self.answered:
            return StuckEntries()
        return StuckEntries(self._number(EntryState.PARKED), self._stuck_complete, tuple(self._stuck))

    def _number(self, where: EntryState) -> int:
        return sum(number for (each, _), number in self._seen.items() if each is where)


def _created_ms(entry: Entry | Unreadable) -> int | None:
    """Returns when the change was made (Unix ms, by its maker's clock). None: the key does not tell."""
    name = entry.change.id if isinstance(entry, Entry) else entry.key[-36:]
    return ChangeId(name).created_ms if ChangeId.matches(name) else None


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
