"""Audits the blobs of an inventory report on Spark: an engine of `recovery.audit.run`.

    driver      join -> candidates, with their range                  (join.py)
    executors   the candidates of a range, in order -> candidates.judge -> RUN/findings/range-000017.parquet

Everything else is as in every run: the manifest, the ranges, one file for each, going on where a run was interrupted.
A range without a candidate gets its file, too. What the report and the table have in common is counted by the join and
put into the summary of its range.

*Crash* of a worker or an executor: Spark runs its task again; the join gives it the same candidates. *Failure*:
`ConfigurationError` if the report is refused, `UnavailableError` if Spark gave up. The ranges that are done stay done.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import anyio
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import Runtime, SystemRuntime
from recovery.audit.cluster import explained, open_spark
from recovery.audit.finding import OTHERS, Summary
from recovery.audit.inventory import join
from recovery.audit.inventory.candidates import CHUNK, Suspect, SuspectRow, judge
from recovery.audit.inventory.join import Counted
from recovery.audit.inventory.report import Report, check_buckets, check_rows, open_export, open_report
from recovery.audit.ledger import RunDirectory
from recovery.audit.manifest import Inventory
from recovery.audit.names import usecase_of
from recovery.audit.plan import RANGES_PER_SLOT
from recovery.audit.verdicts import Kind
from recovery.audit.words import count, moment
from recovery.audit.work import Job, Outcome, carry_out, findings_in
from tiered.open import open_backends
from tiered.settings import Settings

RANGES_MAX = 64
"""The expression that finds the range of a name is a tree, and Spark compiles trees of this size."""


@dataclass(frozen=True, slots=True)
class Share:
    """What the join counted in a range: blobs of the report by usecase, and tombstones."""

    blobs: tuple[Counted, ...]
    rows: int


class InventoryEngine:
    """An `Engine` that judges what the report and the table do not have in common. It allows one `run` at a time.

    `evidence`: what the manifest keeps of the report, for `AuditOptions.inventory`.
    """

    def __init__(self, session: SparkSession, settings: Settings, report: Report, export: tuple[str, ...], slots: int) -> None:
        self.slots = max(1, min(slots, RANGES_MAX // RANGES_PER_SLOT))
        self.name = f"spark {session.version}, inventory report of {moment(report.evidence.snapshot_ns)}"
        self.versions: Mapping[str, str] = {"pyspark": session.version}
        self.elsewhere = False  # all outcomes come at the end, and a report was read by the executors already
        self._session = session
        self._report = report
        self._export = export
        self._group = f"tiered-inventory-{id(self)}"
        self._stopped = threading.Event()
        assert settings.gcs is not None
        self._bucket = settings.gcs.bucket
        where = export[0].rpartition("/")[0] if export else None
        self.evidence: Inventory = report.evidence.model_copy(update={"export": where, "notes": tuple(self._look_over())})

    def stop(self) -> None:
        self._stopped.set()
        with suppress(PySparkException, Py4JError, OSError):
            self._session.sparkContext.cancelJobGroup(self._group)

    def _look_over(self) -> Iterator[str]:
        """Checks all rows of the report. Yields what is odd and no reason to refuse it."""
        try:
            seen = join.look_over(self._session, self._report)
        except (PySparkException, Py4JError, OSError) as error:
            raise explained(error) from error
        check_rows(self._report, seen.rows)
        check_buckets(self._report, seen.least, seen.greatest, self._bucket)
        if seen.nameless:
            yield f"left out {count(seen.nameless, 'row')} of the inventory report without a name that is text"
        if seen.deleted:
            yield f"left out {count(seen.deleted, 'row')} of the inventory report about blobs that had been deleted or replaced"
        if seen.rows == seen.nameless + seen.deleted:
            yield "the inventory report shows no blob at all"

    def run(self, job: Job, numbers: Sequence[int]) -> Iterator[Outcome]:
        """Joins, and judges the ranges of these numbers. All outcomes come together at the end."""
        if not numbers or self._stopped.is_set():
            return
        kept: list[DataFrame] = []
        try:
            self._session.sparkContext.setJobGroup(self._group, "tiered audit", interruptOnCancel=True)
            lines = self._judged(job, numbers, kept).collect()
        except (PySparkException, Py4JError, OSError) as error:
            if self._stopped.is_set():
                return
            raise explained(error) from error
        finally:
            with suppress(PySparkException, Py4JError, OSError):
                for frame in kept:
                    frame.unpersist()
        for line in lines:
            yield Outcome(**json.loads(line["outcome"]))

    def _judged(self, job: Job, numbers: Sequence[int], kept: list[DataFrame]) -> DataFrame:
        bounds = [piece.bounds for piece in job.pieces]
        blobs = join.read_report(self._session, self._report)
        if not self._export:
            table = join.read_table(self._session, job.settings, bounds).persist(StorageLevel.DISK_ONLY)
            kept.append(table)
        else:
            table = join.read_export(self._session, self._export)
        counted, rows = join.counted(blobs, bounds), join.rows_counted(table, bounds)
        shares = {number: Share(tuple(counted.get(number, ())), rows.get(number, 0)) for number in numbers}
        found = join.candidates(blobs, table, bounds, job.cutoff.as_of_ns // 1000, kept)
        empty = [(number, *(None,) * (len(found.columns) - 1)) for number in numbers]
        each = found.where(f.col("range").isin(list(numbers))).union(self._session.createDataFrame(empty, found.schema))
        parted = each.repartition(len(numbers), "range").sortWithinPartitions("range", "name")
        return parted.mapInArrow(partial(_judge_each, job, shares), "outcome string")


@contextmanager
def open_inventory(
    settings: Settings, where: str, export: str | None, runtime: Runtime, *, master: str | None = None, slots: int | None = None,
    insist: bool = False,
) -> Iterator[InventoryEngine]:  # fmt: skip
    """Opens Spark as `open_spark` does. Yields the engine for the report at `where`, all of whose rows were checked.

    `export`: a Bigtable export as Parquet; None: the table is scanned. `insist`: take a report that is old. Raises
    `ConfigurationError` or `UnavailableError`.
    """
    if settings.gcs is None:
        raise ConfigurationError("an inventory report is of a bucket, and this store is in a directory: leave --inventory out")
    report = open_report(where, settings.gcs.bucket, runtime, insist=insist)
    files = () if export is None else open_export(export, runtime)
    with open_spark(carry_out, master, slots) as spark:
        session = SparkSession.getActiveSession()
        if session is None or type(session).__module__.startswith("pyspark.sql.connect"):
            raise ConfigurationError("the audit of an inventory report does not run over Spark Connect: use spark-submit, or a local Spark")
        yield InventoryEngine(session, settings, report, files, spark.slots)


# --- on an executor --------------------------------------------------------------------------------


def _judge_each(job: Job, shares: Mapping[int, Share], batches: Iterable[Any]) -> Iterator[Any]:
    """Judges the ranges of one partition. Their candidates come in order, range by range."""
    answer: Any = None

    def candidates() -> Iterator[dict[str, Any]]:
        nonlocal answer
        for batch in batches:
            answer = batch
            yield from batch.to_pylist()

    for number, group in groupby(candidates(), key=itemgetter("range")):
        outcome = _judge_range(job, number, shares[number], group)
        yield answer.from_pydict({"outcome": [json.dumps(asdict(outcome))]})


def _judge_range(job: Job, number: int, share: Share, candidates: Iterator[dict[str, Any]]) -> Outcome:
    try:
        return anyio.run(_judge, job, number, share, candidates)
    except TieredError as error:
        for _ in candidates:
            pass  # the next range begins after them
        return Outcome(number, error=str(error), retryable=isinstance(error, UnavailableError | UnconfirmedError))


async def _judge(job: Job, number: int, share: Share, candidates: Iterator[dict[str, Any]]) -> Outcome:
    runtime = SystemRuntime()
    began = runtime.monotonic()
    directory, piece = RunDirectory.open(job.directory, runtime), job.pieces[number]
    if (done := directory.done_part(job.run, piece)) is not None:
        return Outcome(number, done.summary.names, findings_in(done.summary))
    joined, summary = Joined(share), Summary()
    async with open_backends(Settings(**json.loads(job.settings)), runtime, writes=False, verify=False) as backends:
        with directory.writer(job.run, piece) as file:
            for suspects, rows in joined.chunks(candidates):
                summary.merge(await judge(backends.tiers, backends.log, suspects, rows, job.cutoff, runtime, file.add))
            summary.merge(joined.rest())
            file.commit(summary)
    return Outcome(number, summary.names, file.written, runtime.monotonic() - began)


class Joined:
    """The counts of a range: what the join counted, less the candidates, which are counted when they are judged."""

    def __init__(self, share: Share) -> None:
        self._blobs = {each.usecase: [each.number, each.size] for each in share.blobs}
        self._rows = share.rows

    def chunks(self, candidates: Iterable[dict[str, Any]]) -> Iterator[tuple[list[Suspect], list[SuspectRow]]]:
        """Yields the candidates in chunks. A row of a range that names nothing is no candidate."""
        suspects: dict[str, Suspect] = {}
        rows: dict[tuple[bytes, str | None], SuspectRow] = {}
        for each in candidates:
            if each["key"] is not None:
                rows[each["key"], each["target"]] = SuspectRow(each["key"], each["target"], each["fault"])
                self._rows -= each["target"] is not None
            elif each["name"] is not None:
                suspects[each["name"]] = Suspect(each["name"], each["generation"], each["size"])
                self._take(each["name"], each["size"] or 0)
            if len(suspects) >= CHUNK or len(rows) >= CHUNK:
                yield list(suspects.values()), list(rows.values())
                suspects, rows = {}, {}
        if suspects or rows:
            yield list(suspects.values()), list(rows.values())

    def _take(self, name: str, size: int) -> None:
        counted = self._blobs.get(usecase_of(name)) or self._blobs.get(OTHERS)
        if counted is not None:
            counted[0] -= 1
            counted[1] -= size

    def rest(self) -> Summary:
        """Returns the counts of what was joined: referenced blobs and their rows."""
        summary = Summary(redirects=max(0, self._rows))
        for usecase, (number, size) in self._blobs.items():
            summary.names += number
            summary.count(usecase, Kind.REFERENCED, number, size)
        return summary
