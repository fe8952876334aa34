"""The statistics of recovery: what a loop counts, how much there is to do, and the reports about both.

    RecoveryLoop --counts--> RecoveryCounts --every REPORT_EVERY_S--> RecoverySource --> note `statistics/recovery`

The unit is an entry of the changelog. *Processed* are the entries that a worker cleaned up or parked. The *backlog* is
what is due now: entries that nobody works on, those that must be parked, and those that a recoverer holds. Entries that
wait, those that their writer holds, and those that are kept for the change feed are no backlog. An entry counts once:
its second look, after the late-upload grace, is in neither figure. Neither offset may decrease, so the look would make
a second entry of it. The status counts entries itself: there it is due, and contradicts "healthy" if nobody takes it.

A report costs an announcement, the reading and the writing of a note, and, for the responsible worker, a reading of the
changelog that is bounded. None of it is in the way of a write or of a pass. *Crash*: what was not reported yet is
missing in the counters, and the next probe finds it gone from the backlog. *Failure*, of whatever kind: it is logged
once, and recovery goes on without statistics until a report succeeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from changelog.base.runtime import Runtime
from changelog.change import Entry, Unreadable, encode
from changelog.lease import DUE, EntryState, entry_state
from changelog.log import ChangeLog, EntryPage, KeyRange
from recovery.statistics.columns import Offsets, SourceRow
from recovery.statistics.counting import COUNT_S, EntryCount, count_entries
from recovery.statistics.persisted import RECOVERY, Document, ServiceOut, WorkerReport, change_statistics, read_statistics
from recovery.statistics.reporting import Reporting
from tiered.settings import Settings

FINAL_PROBE_S = 2.0
"""How long the probe in the last report may take, in seconds."""
RESTS = 4
"""A probe is followed by a pause of at least this many times its own length."""

GONE_EXPIRIES = 4
"""A worker is gone if it did not report for so many times the expiry of a lease."""

SNAPSHOT = "first pass"


@dataclass(slots=True)
class RecoveryCounts:
    """What a recovery loop has done since it was made. The loop adds to it, without a call to anything.

    `read` and `read_bytes`: entries that passes found, and their encoded bytes. `claimed`: claims won. `finished`: how
    often an entry was cleaned up. `processed`: how many were cleaned up or parked, each once. `progress`: how many
    entries the first full pass has read. `passed`: that pass is complete, and all it found was dealt with.
    """

    read: int = 0
    read_bytes: int = 0
    claimed: int = 0
    finished: int = 0
    processed: int = 0
    progress: int = 0
    passed: bool = False
    passing: bool = False

    def begin_full_pass(self) -> None:
        """A full pass begins. Unless an earlier one was complete, the progress starts anew."""
        if not self.passed:
            self.progress, self.passing = 0, True

    def end_full_pass(self, *, complete: bool) -> None:
        """The pass has ended. `complete`: it read the whole log, and nothing of it failed."""
        if self.passing:
            self.passed, self.passing = complete, False

    def add_processed(self, entry: Entry | Unreadable) -> None:
        """Nothing is left to do about this entry now. A second look was counted when its time was set."""
        self.processed += isinstance(entry, Unreadable) or not entry.is_second_look

    def add_page(self, entries: Iterable[Entry | Unreadable]) -> None:
        """A pass has read these entries."""
        for entry in entries:
            self.read += 1
            self.read_bytes += len(entry.raw if isinstance(entry, Unreadable) else encode(entry))
            self.progress += self.passing


async def count_backlog(log: ChangeLog, runtime: Runtime, now_ms: int, settings: Settings, within_s: float = COUNT_S) -> EntryCount:
    """Counts what is due at `now_ms` (the server's time), by reading the changelog. Raises as `ChangeLog.entries`."""
    rules = (now_ms, round(settings.lease.expiry_s * 1000), settings.recovery.attempts_max)

    async def read(within: KeyRange, limit: int) -> EntryPage:
        page = await log.entries(within.start, limit)
        inside = tuple(entry for entry in page.entries if entry.key < within.end)
        is_last = page.next_start is None or page.next_start >= within.end
        return EntryPage(inside, None if is_last else page.next_start)

    return await count_entries(read, log.ranges(), lambda entry: _is_due(entry, entry_state(entry, *rules)), runtime, within_s)


def _is_due(entry: Entry | Unreadable, found: EntryState) -> bool:
    """Whether recovery has to do something about it for the first time now, or is doing it."""
    if isinstance(entry, Unreadable):
        return found in DUE
    return (found in DUE or (found is EntryState.HELD and entry.attempt > 0)) and not entry.is_second_look


class RecoverySource(Reporting):
    """Reports what one recovery loop does. `run` goes on until it is cancelled; `report` reports once.

    `instance`: the name of the worker. `counts`: what the loop adds to. `out`: the services that it met lately,
    and that did not do what it asked.
    """

    def __init__(
        self, log: ChangeLog, runtime: Runtime, settings: Settings, instance: str, counts: RecoveryCounts,
        out: Callable[[], tuple[ServiceOut, ...]] = tuple,
    ) -> None:  # fmt: skip
        super().__init__(log, runtime, instance)
        self._out = out
        self._settings = settings
        self._counts = counts
        self._gone_ms = round(GONE_EXPIRIES * settings.lease.expiry_s * 1000)
        self._run = f"{runtime.random.getrandbits(64):016x}"
        self._known: EntryCount | None = None
        self._backlog: int | None = None
        self._probe_at = -math.inf
        self._stored = False
        self._before = RecoveryCounts()
        self._told = RecoveryCounts()

    async def _report(self, left: bool) -> None:
        now_ms = await self._log.announce(self._instance)
        found = await read_statistics(self._log, RECOVERY) or Document(RECOVERY)
        self._begin_anew_if_forgotten(found)
        # What is processed is read before what is due is counted. What is finished in between is in neither, and so it
        # seems to have vanished until the next report. The other way round it would be counted twice.
        processed = self._counts.processed - self._before.processed
        probe, during, looked_ms = None, 0, now_ms
        if found.responsible(now_ms, self._gone_ms) in (None, self._run) and (left or self._runtime.monotonic() >= self._probe_at):
            began = self._runtime.monotonic()
            self._backlog = await self._look(now_ms, FINAL_PROBE_S if left else COUNT_S)
            during = self._counts.processed - self._before.processed - processed
            looked_ms += round((self._runtime.monotonic() - began) * 1000)
            if self._backlog is not None:
                everything = found.processed(self._run) + processed
                probe = Offsets(everything + self._backlog, everything)
        row = self._row(processed)
        self._told = self._copy()
        written = await change_statistics(self._log, RECOVERY, lambda document: document.with_report(WorkerReport(
            row, self._run, now_ms, self._gone_ms, snapshot=SNAPSHOT, probe=probe, left=left, during=during, looked_ms=looked_ms,
            out=self._out(),
        )))  # fmt: skip
        self._stored = self._stored or written is not None

    async def _look(self, now_ms: int, within_s: float) -> int | None:
        """Returns the backlog. None: it is too long to be counted, and no verdict rests on an estimate."""
        began = self._runtime.monotonic()
        done, passed = self._counts.processed, self._counts.passed
        backlog = await count_backlog(self._log, self._runtime, now_ms, self._settings, within_s)
        ended = self._runtime.monotonic()
        self._probe_at = ended + RESTS * (ended - began)
        if self._known is None and not passed and backlog.number is not None:
            self._known = EntryCount(done + backlog.number, backlog.estimated)
        return None if backlog.estimated else backlog.number

    def _row(self, processed: int) -> SourceRow:
        counts, before = self._counts, self._before
        known = self._known
        if known is None and counts.passed:  # the pass was faster than the first probe
            known = EntryCount(counts.progress)
        return SourceRow(
            source=RECOVERY, worker=self._instance, incarnation=self._run,
            snapshot_records_known=None if known is None else known.number,
            snapshot_known_estimated=known is not None and known.estimated,
            snapshot_progress=counts.progress, snapshot_committed=counts.passed,
            outstanding_values=None if self._backlog is None else processed + self._backlog, processed_values=processed,
            messages_received=counts.read - before.read, bytes_received=counts.read_bytes - before.read_bytes,
            updates_staged=counts.claimed - before.claimed, updates_committed=counts.finished - before.finished,
        )  # fmt: skip

    def _begin_anew_if_forgotten(self, found: Document) -> None:
        """Begins at 0 under another name if the document does not remember this worker any more.

        Its figures are in the base by now, or the document is a new one.
        """
        known = self._run in found.folded or any(each.run == self._run for each in found.workers.values())
        if self._stored and not known:
            self._run = f"{self._runtime.random.getrandbits(64):016x}"
            self._before, self._stored = self._told, False

    def _copy(self) -> RecoveryCounts:
        counts = self._counts
        return RecoveryCounts(counts.read, counts.read_bytes, counts.claimed, counts.finished, counts.processed)
