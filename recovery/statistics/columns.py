"""`SourceRow`, what a source reports about its progress, and the rules by which rows are added up. No I/O.

A *source* is what works through something: recovery (it counts changelog entries), the change feed (updates) and the
audit (blobs). A *worker* is one process or run that works for a source. An *incarnation* is one attempt of a source at
its first pass, its *snapshot*. If the pass begins anew, that is a new incarnation. `docs/statistics.md` explains each
column and each rule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SourceRow:
    """What one worker of a source has reported, or the sum of its workers. All figures are counts; None: not known yet.

    `snapshot_records_known`: the size of the first pass. `snapshot_known_estimated`: that size is an estimate.
    `snapshot_progress`: records read so far, a lower bound. `snapshot_committed`: the first pass is complete and
    durable. `outstanding_values`: all that the source has ever been given to do. `processed_values`: how much of that
    is durably dealt with. The four counters only grow.
    """

    source: str
    worker: str
    incarnation: str
    snapshot_records_known: int | None = None
    snapshot_known_estimated: bool = False
    snapshot_progress: int | None = None
    snapshot_committed: bool = False
    outstanding_values: int | None = None
    processed_values: int | None = None
    messages_received: int = 0
    bytes_received: int = 0
    updates_staged: int = 0
    updates_committed: int = 0

    @property
    def lag(self) -> int | None:
        """How much is still to be dealt with. None: not known yet."""
        if self.outstanding_values is None or self.processed_values is None:
            return None
        return self.outstanding_values - self.processed_values

    @property
    def snapshot_percentage(self) -> float | None:
        """How far the first pass is, from 0 to 100. None: not known yet.

        More records may be read than an estimate foresaw, so the percentage is capped. It reaches 100 only when the
        pass is complete.
        """
        return 100.0 if self.snapshot_committed else percentage(self.snapshot_progress, self.snapshot_records_known)


def percentage(read: int | None, known: int | None) -> float | None:
    """Returns how far a pass is that is under way, from 0 to 99. None: not known yet."""
    if read is None or known is None:
        return None
    return min(99.0, 100.0 * read / known) if known else 0.0


COUNTERS = ("messages_received", "bytes_received", "updates_staged", "updates_committed")
"""The columns that count what was done, in any incarnation."""

NULLABLE = ("snapshot_records_known", "snapshot_progress", "outstanding_values", "processed_values")
"""The columns that are None until every worker of the incarnation has reported."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """How much a source was given to do, and how much of it is dealt with. `processed` is never above `outstanding`."""

    outstanding: int
    processed: int


def summed(progress: Mapping[str, int]) -> int:
    """Returns a progress for each shard as one number: their sum."""
    return sum(progress.values())


def meet(acknowledged: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Returns what every sink has acknowledged: the least of each shard.

    A sink that does not name a shard has acknowledged none of it.
    """
    shards = sorted({shard for each in acknowledged for shard in each})
    return {shard: min(each.get(shard, 0) for each in acknowledged) for shard in shards}


def total(rows: Iterable[SourceRow], workers: Collection[str], incarnation: str, source: str = "") -> SourceRow:
    """Returns the sum of the rows of one source, as a row whose worker is "".

    `workers`: the names of those who work for the source now. `incarnation`: the current one. A column that may be
    None is None until each of these workers has reported it in this incarnation; rows of other incarnations and of
    other workers do not count. Counters are facts about the past: those of all rows count. The pass is committed once
    each worker says so.
    """
    rows = list(rows)
    current = {row.worker: row for row in rows if row.incarnation == incarnation and row.worker in workers}
    complete = bool(workers) and len(current) == len(set(workers))

    def column(name: str) -> int | None:
        values: list[int | None] = [getattr(row, name) for row in current.values()]
        known = [value for value in values if value is not None]
        return sum(known) if complete and len(known) == len(values) else None

    sums: dict[str, Any] = {name: column(name) for name in NULLABLE} | {name: sum(getattr(row, name) for row in rows) for name in COUNTERS}
    return SourceRow(
        source=source or next((row.source for row in rows), ""), worker="", incarnation=incarnation,
        snapshot_known_estimated=any(row.snapshot_known_estimated for row in current.values()),
        snapshot_committed=complete and all(row.snapshot_committed for row in current.values()),
        **sums,
    )  # fmt: skip


def advance(before: Offsets, found: Offsets) -> Offsets:
    """Returns the offsets to show after a probe found `found`.

    Neither offset ever decreases, and what is still to be done is what the probe found, as far as that allows. If the
    source has less than before, something else dealt with the difference. Then `outstanding` stays, and the
    difference counts as processed.
    """
    lag = max(0, found.outstanding - found.processed)
    outstanding = max(before.outstanding, before.processed, found.outstanding, found.processed)
    processed = max(before.processed, outstanding - lag)
    return Offsets(max(outstanding, processed + lag), processed)
