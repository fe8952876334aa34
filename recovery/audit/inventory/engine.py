"""Audits the blobs of an inventory report on Spark: an engine of `recovery.audit.running.run`.

    executors   report, rows -> join -> candidates and counts, with their range          (join.py, lines.py)
    executors   the candidates of a range, in order -> candidates.judge -> RUN/findings/range-000017.parquet

Everything else is as in every run: the manifest, the ranges, one file for each, going on where a run was interrupted.
A range without a candidate gets its file, too. What the report and the table have in common is counted where it is
read. The counts come with the candidates, and go into the summary of their range. All this is one job of Spark.

*Crash* of a worker or an executor: Spark runs its task again; the join gives it the same candidates. *Failure*:
`ConfigurationError` if the report is refused, `UnavailableError` if Spark gave up. The ranges that are done stay done.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import anyio
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import Runtime, SystemRuntime
from recovery.audit.files.arrow import line_batch
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.finding import OTHERS, Summary, Tally
from recovery.audit.finding_classes import FindingClass
from recovery.audit.inventory import insights, join, s3
from recovery.audit.inventory.candidates import CHUNK, Suspect, SuspectRow, judge
from recovery.audit.inventory.lines import InventoryFiles, LineCount
from recovery.audit.inventory.report import InventoryReport, ReportSummary, check_buckets, check_rows, oddities, open_export
from recovery.audit.manifest import Inventory
from recovery.audit.names import usecase_of
from recovery.audit.running.cluster import explained, open_spark
from recovery.audit.running.work import Job, PartResult, carry_out, findings_in
from recovery.audit.sweeping.beside import tell_mixed_writers
from recovery.display import moment
from tiered.kinds.chosen import blobs_kind
from tiered.kinds.kind import Inventoried
from tiered.open import open_backends
from tiered.settings import Settings

OPENS: Mapping[str, Callable[..., InventoryReport]] = {"gcs": insights.open_report, "s3": s3.open_report}
"""What opens a report, by `Inventoried.form`."""


class InventoryEngine:
    """An `Engine` that judges what the report and the table do not have in common. It allows one `run` at a time.

    `evidence`: what the manifest keeps of the report, for `AuditOptions.inventory`.
    """

    def __init__(
        self, session: SparkSession, inventoried: Inventoried, report: InventoryReport, export: tuple[str, ...], slots: int
    ) -> None:
        self.slots = slots
        self.name = f"spark {session.version}, inventory report of {moment(report.evidence.snapshot_ns)}"
        self.versions: Mapping[str, str] = {"pyspark": session.version}
        self.elsewhere = False  # all outcomes come at the end, and a report was read by the executors already
        self._session = session
        self._report = report
        self._export = export
        self._group = f"tiered-inventory-{id(self)}"
        self._stopped = threading.Event()
        self._inventoried = inventoried
        where = export[0].rpartition("/")[0] if export else None
        seen = self._look_over()
        told = {"records": seen.rows, "export": where, "notes": tuple(oddities(self._report, seen))}
        self.evidence: Inventory = report.evidence.model_copy(update=told)

    def stop(self) -> None:
        self._stopped.set()
        with suppress(PySparkException, Py4JError, OSError):
            self._session.sparkContext.cancelJobGroup(self._group)

    def _look_over(self) -> ReportSummary:
        """Checks all rows of the report."""
        try:
            seen = join.look_over(self._session, self._report)
        except (PySparkException, Py4JError, OSError) as error:
            raise explained(error) from error
        check_rows(self._report, seen.rows)
        check_buckets(self._report, seen.least, seen.greatest, self._inventoried.bucket)
        return seen

    def run(self, job: Job, numbers: Sequence[int]) -> Iterator[PartResult]:
        """Joins, and judges the ranges of these numbers. All outcomes come together at the end."""
        if not numbers or self._stopped.is_set():
            return
        try:
            self._session.sparkContext.setJobGroup(self._group, "tiered audit", interruptOnCancel=True)
            lines = self._judged(job, numbers).collect()
        except (PySparkException, Py4JError, OSError) as error:
            if self._stopped.is_set():
                return
            raise explained(error) from error
        for line in lines:
            yield PartResult(**json.loads(line["outcome"]))

    def _judged(self, job: Job, numbers: Sequence[int]) -> DataFrame:
        bounds, now_us = [partition.bounds for partition in job.partitions], job.cutoff.as_of_ns // 1000
        files = InventoryFiles(self._report, self._export)
        rows = (
            join.read_export(self._session, files, bounds, now_us) if self._export
            else join.read_table(self._session, job.settings, bounds, now_us)
        )  # fmt: skip
        found = join.candidates(join.read_report(self._session, self._report, bounds), rows, files, bounds)
        empty = [(number, *(None,) * (len(found.columns) - 1)) for number in numbers]
        each = found.where(f.col("range").isin(list(numbers))).union(self._session.createDataFrame(empty, found.schema))
        parted = each.repartition(len(numbers), "range").sortWithinPartitions("range", "name")
        return parted.mapInArrow(partial(_judge_each, job), "outcome string")


@contextmanager
def open_inventory(
    settings: Settings, where: str, export: str | None, runtime: Runtime, *, master: str | None = None, slots: int | None = None,
    insist: bool = False,
) -> Iterator[InventoryEngine]:  # fmt: skip
    """Opens Spark as `open_spark` does. Yields the engine for the report at `where`, all of whose rows were checked.

    `export`: a Bigtable export as Parquet; None: the table is scanned. `insist`: take a report that is old. Raises
    `ConfigurationError` or `UnavailableError`.
    """
    inventoried = blobs_kind(settings).inventoried(settings)
    if inventoried is None or inventoried.form not in OPENS:
        raise ConfigurationError(
            f"of what holds the blobs of this store ({settings.blobs_kind}) no inventory can be read: leave --inventory out"
        )
    report = OPENS[inventoried.form](where, inventoried.bucket, runtime, prefix=inventoried.prefix, insist=insist)
    files = () if export is None else open_export(export, runtime)
    with open_spark(carry_out, master, slots) as spark:
        session = SparkSession.getActiveSession()
        if session is None or type(session).__module__.startswith("pyspark.sql.connect"):
            raise ConfigurationError("the audit of an inventory report does not run over Spark Connect: use spark-submit, or a local Spark")
        yield InventoryEngine(session, inventoried, report, files, spark.slots)


# --- on an executor --------------------------------------------------------------------------------


def _judge_each(job: Job, batches: Iterable[Any]) -> Iterator[Any]:
    """Judges the ranges of one partition. Their candidates come in order, range by range."""
    candidates = (candidate for batch in batches for candidate in batch.to_pylist())
    for number, group in groupby(candidates, key=itemgetter("range")):
        outcome = _judge_range(job, number, group)
        yield line_batch("outcome", json.dumps(asdict(outcome)))


def _judge_range(job: Job, number: int, candidates: Iterator[dict[str, Any]]) -> PartResult:
    try:
        return anyio.run(_judge, job, number, candidates)
    except TieredError as error:
        for _ in candidates:
            pass  # the next range begins after them
        return PartResult(number, error=str(error), retryable=isinstance(error, UnavailableError | UnconfirmedError))


async def _judge(job: Job, number: int, candidates: Iterator[dict[str, Any]]) -> PartResult:
    runtime = SystemRuntime()
    began = runtime.monotonic()
    directory, partition = RunDirectory.open(job.directory, runtime), job.partitions[number]
    if (done := directory.done_part(job.run, partition)) is not None:
        return PartResult(number, done.summary.names, findings_in(done.summary))
    joined, summary = JoinedCounts(), Summary()
    async with open_backends(Settings.unpacked(job.settings), runtime, writes=False, verify=False) as backends:
        with directory.writer(job.run, partition) as file:
            for suspects, rows in joined.chunks(candidates):
                summary.merge(await judge(backends.tiers, backends.log, suspects, rows, job.cutoff, runtime, file.add))
            summary.merge(joined.rest())
            await tell_mixed_writers(backends.tiers, partition.bounds, runtime, file.add, summary)
            file.commit(summary)
    return PartResult(number, summary.names, file.written, runtime.monotonic() - began)


class JoinedCounts:
    """The counts of a range: what the join counted, less the candidates, which are counted when they are judged."""

    def __init__(self) -> None:
        self._blobs: dict[str, Tally] = {}
        self._taken: dict[str, Tally] = {}
        self._rows = 0

    def chunks(self, candidates: Iterable[dict[str, Any]]) -> Iterator[tuple[list[Suspect], list[SuspectRow]]]:
        """Yields the candidates in chunks, and keeps the counts."""
        suspects: dict[str, Suspect] = {}
        rows: dict[tuple[bytes, str | None], SuspectRow] = {}
        for each in candidates:
            if each["told"] is not None:
                self._count(LineCount(*json.loads(each["told"])))
            elif each["key"] is not None:
                row = SuspectRow(each["key"], each["target"], each["fault"])
                if rows.setdefault((row.key, row.target), row) is row:
                    self._rows -= row.target is not None  # a row that names nothing was not counted
            elif each["name"] is not None:
                suspects[each["name"]] = Suspect(each["name"], each["generation"], each["size"])
                self._taken.setdefault(usecase_of(each["name"]), Tally()).add(1, each["size"] or 0)
            if len(suspects) >= CHUNK or len(rows) >= CHUNK:
                yield list(suspects.values()), list(rows.values())
                suspects, rows = {}, {}
        if suspects or rows:
            yield list(suspects.values()), list(rows.values())

    def _count(self, told: LineCount) -> None:
        if told.usecase is None:
            self._rows += told.number
        else:
            self._blobs.setdefault(told.usecase, Tally()).add(told.number, told.size)

    def rest(self) -> Summary:
        """Returns the counts of what was joined: referenced blobs and their rows."""
        summary = Summary(redirects=max(0, self._rows))
        if OTHERS in self._blobs:  # some task had too many usecases: nobody knows which of its blobs were of which
            self._blobs, self._taken = _together(self._blobs), _together(self._taken)
        for usecase, counted in self._blobs.items():
            taken = self._taken.get(usecase, Tally())
            number, size = max(0, counted.number - taken.number), max(0, counted.size - taken.size)
            summary.names += number
            summary.count(usecase, FindingClass.REFERENCED, number, size)
        return summary


def _together(counts: Mapping[str, Tally]) -> dict[str, Tally]:
    together = Tally()
    for each in counts.values():
        together.add(each.number, each.size)
    return {OTHERS: together}
