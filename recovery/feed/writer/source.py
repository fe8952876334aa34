"""The statistics of the change feed: what its writer counts, and how far each sink is, in the note `statistics/feed`.

    note feed, notes feed-sink-…, kept entries --every REPORT_EVERY_S--> FeedSource --> note `statistics/feed`

The unit is an update of the feed. *Outstanding* are the updates that were committed, and the hints that wait: entries
that are kept for the feed, but for those that a commit covers and that only wait for an upload that may arrive late.
*Processed* are the updates that every sink has acknowledged. A hint may lead to no update or to two, so outstanding is
exact only when no hint waits. The snapshot is the first pass of a generation over all rows. Figures come from the
checkpoint and the positions, so a restart of the writer loses none but what it counted itself since its last report.

A new generation has a new snapshot. What the one before had not delivered yet counts as dealt with, because nobody will
deliver it. Only the writer that is at work reports. *Crash* and *failure*: as of `recovery_source`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from changelog.base.runtime import Runtime
from changelog.change import Entry, Unreadable
from changelog.log import ChangeLog
from recovery.feed.writer.checkpoint import NOTE, Checkpoint
from recovery.feed.writer.positions import Position, positions, sink_name
from recovery.statistics.columns import Offsets, SourceRow, meet, summed
from recovery.statistics.counting import COUNT_S, count_entries
from recovery.statistics.persisted import FEED, Document, WorkerReport, change_statistics
from recovery.statistics.reporting import FINAL_BUDGET_S, Reporting
from tiered.settings import Settings

RECORDS = "records"
"""The one shard of a sink's progress."""


@dataclass(slots=True)
class FeedWriterCounts:
    """What a writer has done since it was made. The writer adds to it, without a call to anything.

    `hints`: entries that it has read as hints, each time it reads them. `hint_bytes`: their encoded size. `staged` and
    `committed`: updates. `late`: hints, by key, that a commit covers and that only wait for an upload that may arrive
    late.
    """

    hints: int = 0
    hint_bytes: int = 0
    staged: int = 0
    committed: int = 0
    late: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class RetainedEntries:
    """Entries that are kept for the feed. `entries`: how many; None: not known, because there are too many.

    `estimated`: `entries` is no more than an estimate. `oldest_ms`: since when the oldest of those that were read is
    kept (Unix ms, the server's clock); None: none is.
    """

    entries: int | None
    estimated: bool
    oldest_ms: int | None


async def count_kept(log: ChangeLog, runtime: Runtime, within_s: float = COUNT_S, without: Container[str] = ()) -> RetainedEntries:
    """Counts the entries that are kept for the feed, without these keys. Raises the errors of `ChangeLog.kept`."""
    oldest_ms: int | None = None

    def look(entry: Entry | Unreadable) -> bool:
        nonlocal oldest_ms
        if isinstance(entry, Entry) and entry.kept_ms is not None:
            oldest_ms = entry.kept_ms if oldest_ms is None else min(oldest_ms, entry.kept_ms)
        return entry.key not in without

    found = await count_entries(log.kept, log.ranges(), look, runtime, within_s)
    return RetainedEntries(found.number, found.estimated, oldest_ms)


def acknowledged(checkpoint: Checkpoint, sinks: Iterable[str], known: Mapping[str, Position]) -> int:
    """Returns how many updates of the generation every sink has acknowledged. Without a sink: all that are committed.

    A sink that has no position in this generation has acknowledged none.
    """
    sinks = list(sinks)
    if not sinks:
        return checkpoint.records
    here = {sink: each.records for sink, each in known.items() if each.generation == checkpoint.generation}
    return summed(meet([{RECORDS: here.get(sink, 0)} for sink in sinks]))


class FeedSource(Reporting):
    """Reports what one writer of the feed does. `run` goes on until it is cancelled; `report` reports once.

    Only a writer that is at work may report, and not one that stands by. `instance`: the name of the worker. `counts`:
    what the writer adds to.
    """

    def __init__(self, log: ChangeLog, runtime: Runtime, settings: Settings, instance: str, counts: FeedWriterCounts) -> None:
        super().__init__(log, runtime, instance)
        self._settings = settings
        self._counts = counts
        self._run = f"{runtime.random.getrandbits(64):016x}"
        self._generation: int | None = None
        self._seen = 0
        self._delivered = 0

    async def _report(self, left: bool) -> None:
        now_ms = await self._log.now_ms()
        # What is acknowledged is read first, then what is committed, then what waits. So no update is acknowledged that
        # is not outstanding, and an update that is committed meanwhile is not missed.
        known = await positions(self._log, self._settings)
        raw = await self._log.read_note(NOTE)
        if raw is None:
            return  # no writer has begun a generation yet
        checkpoint = Checkpoint.from_bytes(raw)
        kept = await count_kept(self._log, self._runtime, FINAL_BUDGET_S / 2 if left else COUNT_S, self._counts.late)
        processed = acknowledged(checkpoint, map(sink_name, self._settings.feed.to), known)
        self._note_delivered(checkpoint, processed)
        probe: Offsets | None = None  # no verdict rests on an estimate
        if kept.entries is not None and not kept.estimated:
            probe = Offsets(max(checkpoint.records, processed) + kept.entries, processed)
        row = self._row(checkpoint, None if probe is None else probe.outstanding - probe.processed)
        snapshot = f"generation-{checkpoint.generation}"
        await change_statistics(self._log, FEED, lambda document: _begun(document, snapshot).with_report(WorkerReport(
            row, self._run, now_ms, 0, snapshot=snapshot, probe=probe, alone=True, left=left,
        )))  # fmt: skip

    def _note_delivered(self, checkpoint: Checkpoint, processed: int) -> None:
        """Adds what was delivered since the last report of this process. What was delivered before it is not its own.
        """
        if self._generation == checkpoint.generation:
            self._delivered += max(0, processed - self._seen)
        elif self._generation is not None:
            self._delivered += processed
        self._generation, self._seen = checkpoint.generation, processed

    def _row(self, checkpoint: Checkpoint, lag: int | None) -> SourceRow:
        counts, scan = self._counts, checkpoint.scan
        first = checkpoint.passed is None  # afterwards nobody knows any more how many rows that pass has read
        return SourceRow(
            source=FEED, worker=self._instance, incarnation=self._run,
            snapshot_records_known=scan.known if first and scan is not None else None,
            snapshot_known_estimated=first and scan is not None and scan.estimated and scan.known is not None,
            snapshot_progress=(0 if scan is None else scan.read) if first else None, snapshot_committed=not first,
            outstanding_values=None if lag is None else self._delivered + lag, processed_values=self._delivered,
            messages_received=counts.hints, bytes_received=counts.hint_bytes,
            updates_staged=counts.staged, updates_committed=counts.committed,
        )  # fmt: skip


def _begun(document: Document, snapshot: str) -> Document:
    """Returns the document for this snapshot. The offsets of a new generation go on where the one before ended."""
    if document.snapshot == snapshot or document.offsets is None:
        return document
    # A sample of the generation before would make a rate of what was given up.
    return replace(document, elsewhere=document.offsets.outstanding, missing=None, samples=())
