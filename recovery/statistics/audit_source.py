"""The statistics of the audit: what the finished ranges of a run say, in the note `statistics/audit`.

The unit is a listed blob. All figures come from range results that are written to the run's directory, never from
counters inside Spark: a task that is repeated would count twice there. A range counts once, whoever audited it.

A new run is a new incarnation with a new snapshot, and replaces the one before. The times are those of this machine,
because an audit writes no presence row. *Crash*: the next process that goes on with the run reports the same figures
and more. *Failure*: it is logged, and the audit goes on. An audit that may only read the store reports nothing.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from changelog.base.errors import TieredError
from changelog.base.events import events
from changelog.base.runtime import Runtime
from changelog.log import ChangeLog
from changelog.noop import NoopChangeLog
from recovery.statistics.columns import Offsets, SourceRow
from recovery.statistics.persisted import AUDIT, Document, WorkerReport, change_statistics
from recovery.statistics.reporting import REPORT_EVERY_S, Reporting
from tiered.metadata import NS_PER_MS
from tiered.open import open_backends
from tiered.settings import Settings


@dataclass(frozen=True, slots=True)
class Finished:
    """What is done of a run: `names` were dealt with, and `findings` came of it.

    `known`: how many names the run will deal with; None: not known yet. `estimated`: that is no more than an estimate.
    """

    names: int
    findings: int
    known: int | None
    estimated: bool
    complete: bool


def estimate(ranges: int, ranges_done: int, names: int, planned: int | None) -> int | None:
    """Returns about how many blobs all ranges hold, if the finished ones hold `names`. None: nothing tells.

    `planned`: how many blobs the plan counted; None: it did not.
    """
    return max(names, round(names * ranges / ranges_done)) if ranges_done else planned


class AuditSource(Reporting):
    """Reports the progress of one run."""

    budget_s = final_budget_s = 5.0

    def __init__(self, log: ChangeLog, runtime: Runtime, run: str) -> None:
        super().__init__(log, runtime, run)
        self._reported_at = -math.inf
        self._finished = Finished(0, 0, None, estimated=False, complete=False)

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings, runtime: Runtime, run: str) -> AsyncIterator[AuditSource]:
        """Opens the changelog of the store, if it keeps anything. If that fails, the audit goes on without statistics.
        """
        log: ChangeLog = NoopChangeLog()
        async with AsyncExitStack() as stack:
            if settings.changelog not in (None, "noop"):
                try:
                    opened = open_backends(settings, runtime, writes=False, verify=False)
                    log = (await stack.enter_async_context(opened)).log
                except TieredError as error:
                    events.info("statistics_not_reported", error, run=run)
            yield cls(log, runtime, run)

    async def report_finished(self, finished: Finished, *, left: bool = False) -> None:
        """Reports, unless the last report was less than `REPORT_EVERY_S` seconds ago. `left`: it is the last one.

        Whatever fails is logged and not raised.
        """
        now = self._runtime.monotonic()
        if left or now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at, self._finished = now, finished
            await self.report(left=left)

    def _tell(self, error: Exception, unforeseen: Exception | None) -> None:
        if unforeseen is None:  # an audit may be allowed to read only
            events.info("statistics_not_reported", error, run=self._instance)
        else:
            events.warning("statistics_not_reported", error, exc_info=unforeseen, run=self._instance)

    async def _report(self, left: bool) -> None:
        run, finished = self._instance, self._finished
        now_ms = self._runtime.wall_ns() // NS_PER_MS
        # An estimate may fall later, and what is outstanding must not. So it counts only what is sure.
        sure = finished.names if finished.estimated or finished.known is None else max(finished.names, finished.known)
        row = SourceRow(
            source=AUDIT, worker=f"run-{run}", incarnation=run,
            snapshot_records_known=finished.known, snapshot_known_estimated=finished.estimated and finished.known is not None,
            snapshot_progress=finished.names, snapshot_committed=finished.complete,
            outstanding_values=None if finished.known is None else sure, processed_values=finished.names,
            messages_received=finished.names, updates_staged=finished.findings, updates_committed=finished.findings,
        )  # fmt: skip

        def change(document: Document) -> Document:
            # Another process of this run may have seen more ranges finished.
            names = max(finished.names, document.done_by(run)["processed_values"])
            processed = document.processed(run) + names
            probe = None if finished.known is None else Offsets(processed + max(0, sure - names), processed)
            return document.with_report(WorkerReport(row, run, now_ms, 0, snapshot=run, probe=probe, alone=True, left=left))

        await change_statistics(self._log, AUDIT, change)
