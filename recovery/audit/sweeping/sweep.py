"""Audits one range of names while the store is in use. This is the core of the audit.

    window.py        L and C: the window, its blobs, what the log says of them
    match.py         R: which of them a row names
    judge.py         what each blob and each damaged row is
    second_look.py   what is read again before a blob is accused

It works in windows of some ten thousand names. In each window it reads in this order and no other:

    L  list the blobs
    C  read the changelog      a change under way during L is in it, or has finished and is seen in R
    R  scan the rows           what was committed after L is seen here

R may be the index of a change feed (`references.py`). Then the row is read by its key wherever the index is not enough:
if an entry names the object or the blob, if the blob was not listed, if it has a deadline (the index has none), or if
the index does not name it. After that, all is as it is after a scan. If that would be many rows, or if nobody can tell
what an entry names, the rows of the window are scanned all the same.

A blob is unused if L has it and neither R nor C names it. In any other order, that may also be true of a blob in use.

A blob that looks like an orphan, or overdue, gets a second look: at the log (its change may have been recorded after C
and committed before R), at the blob (it must still exist with the generation that was listed, because its clean-up may
be done) and at its rows. A tombstone whose blob is not in L is dangling if and only if a point read finds no blob and
the row, read after that, still names it. The same look tells whether a blob that cannot be read is loss or garbage.
With `verify`, the blobs that live tombstones name are then read to their last byte.

Memory holds one window of blobs, one page of rows (two, if most of them fit no blob) and the names of the log's entries
that lie in the window, whatever the size of the range. Rows are matched by the blob's *name*, so both readings of a
name are tried. Rows that sort before the window are read by their keys (`names.rows_before`).

*Crash*: nothing was written. *Failure*: an error is raised if reads are forbidden, or if they stay unavailable for
`READ_BUDGET_S`. Then nothing is known about the range: an audit of a part of it proves nothing. The audit only reads,
so running it twice, or beside others, does no harm.
"""

from __future__ import annotations

from collections.abc import Callable

from changelog.base.runtime import Runtime
from changelog.log import ChangeLog
from recovery.audit.finding import Summary
from recovery.audit.manifest import Bounds, Cutoff, FeedReferences, Verify
from recovery.audit.sweeping.judge import FindingSink, Judge
from recovery.audit.sweeping.match import RowMatch
from recovery.audit.sweeping.references import FeedIndex
from recovery.audit.sweeping.second_look import SecondReading
from recovery.audit.sweeping.tier_reads import TierReads
from recovery.audit.sweeping.window import WINDOW_NAMES, WINDOW_VERIFIED, WindowReader
from tiered.services.backends import Tiers


async def audit_range(
    tiers: Tiers, log: ChangeLog, bounds: Bounds, cutoff: Cutoff, runtime: Runtime, found: FindingSink, *, window_names: int = WINDOW_NAMES,
    verify: Verify | None = None,
) -> Summary:  # fmt: skip
    """Audits the blobs of these names, and the rows that name one of them.

    `found` is called with the findings as they are found.

    If several ranges together hold every name, they hold every row. `window_names`: how many names a window holds.
    `verify`: which payloads are read; None: none.

    Raises `TieredError` if the range cannot be read to its end. What was found until then is no evidence.
    """
    summary, _ = await audit_until(
        tiers, log, bounds, cutoff, runtime, found, lambda _: False, window_names=window_names, verify=verify,
    )  # fmt: skip
    return summary


async def audit_until(
    tiers: Tiers, log: ChangeLog, bounds: Bounds, cutoff: Cutoff, runtime: Runtime, found: FindingSink,
    enough: Callable[[Summary], bool], *, window_names: int = WINDOW_NAMES, verify: Verify | None = None,
    references: FeedReferences | None = None,
) -> tuple[Summary, str | None]:  # fmt: skip
    """Does the same, but ends after the first window at whose end `enough` of the summary is true.

    `references`: the feed that tells the references; None: the rows are scanned.

    Returns the summary, and the name where the rest begins: everything before it was audited. None: there is no rest.
    """
    index = None if references is None else FeedIndex(log, references)
    names = window_names if verify is None else min(window_names, WINDOW_VERIFIED)
    reads, judge = TierReads(tiers, log, runtime), Judge(cutoff, runtime, found)
    windows = WindowReader(reads, bounds, names, judge.summary)
    sweep = _Sweep(reads, windows, judge, SecondReading(reads, windows, judge, verify, names), index)
    await sweep.ask_the_time()
    start: str | None = bounds.start
    while start is not None:
        start = await sweep.audit_window(start)
        if start is not None and enough(sweep.judge.summary):
            break
    return sweep.judge.summary, start


class _Sweep:
    """`index`: that of the feed that tells the references; None: the rows are scanned."""

    def __init__(self, reads: TierReads, windows: WindowReader, judge: Judge, second: SecondReading, index: FeedIndex | None) -> None:
        self.reads = reads
        self.windows = windows
        self.judge = judge
        self.second = second
        self.match = RowMatch(reads, judge, second)
        self._index = index

    async def ask_the_time(self) -> None:
        asked_ns = self.reads.runtime.wall_ns()
        self.judge.set_service_time(asked_ns, await self.reads.retry(self.reads.blobs.now_ns))

    async def audit_window(self, start: str) -> str | None:
        """Audits one window. Returns the name where the next window begins, or None if the range is done."""
        runtime, judge = self.reads.runtime, self.judge
        window, oddities, next_start = await self.windows.read(start)
        window.logged_ns = runtime.wall_ns()
        logged = await self.windows.read_log(window)
        window.scanned_ns = runtime.wall_ns()
        judge.count_listed(window)
        judge.note_foreign(window, oddities)
        await (self.match.scan_rows(window) if self._index is None else self.match.take_references(window, logged, self._index))
        if suspects := judge.suspects(window, logged):
            await self.second.confirm_accused(window, suspects)
        judge.flush()
        await self.second.confirm_broken(window)
        await self.second.read_payloads(window)
        judge.flush()
        judge.summary.windows += 1
        return next_start
