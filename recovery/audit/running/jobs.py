"""What an engine receives, and what comes back: plain values that can be pickled.

    run --Job, numbers--> Engine (local processes, Spark) --carry_out(job, number)--> PartResult
                                                                   `-> RUN/findings/range-000017.parquet

A number is the place of a part in the job's `partitions`. No part takes longer than some minutes: after `PARTITION_S`
or `PARTITION_NAMES` the worker ends it, and its file says how the rest is to be cut. `recovery.audit.running.run` gives
the partitions of the rest to the engine as parts of their own. So many workers audit a rest, and a worker that dies
loses minutes.

The file is the result. An outcome only tells early what the directory will tell. So an engine may audit a range twice,
lose an outcome, or die: whether a range is done, the directory says.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

import anyio

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.files.partitions import DEPTH_MAX, Partition
from recovery.audit.finding import Summary
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds, Cutoff, FeedReferences, Manifest, Verify
from recovery.audit.running.canary import Canary, check_backends, check_directory, check_variables
from recovery.audit.running.cuts import cut_names
from recovery.audit.sweeping.beside_blobs import look_beside, tell_mixed_writers
from recovery.audit.sweeping.sweep import audit_until
from tiered.open import Backends, open_backends
from tiered.services.capabilities import SharedListing
from tiered.services.concurrent import most_urgent
from tiered.settings import DATABASE_NAME, NO_CHANGELOG, Settings

CANARY = -1
"""The number of the task that only tries whether a worker can do the work."""

GRACE_S = 86_400.0
FEED_AGE_MAX_S = 86_400.0
"""How old the frontier of a feed may be by default, in seconds."""

GRACE_MIN_S = 3600.0
"""A change may be under way for this long. A shorter grace is only for a caller who insists on it."""

PARTITION_NAMES, PARTITION_S = 1_000_000, 180.0
"""After so many names, or so many seconds, a worker hands back the rest of what it audits. A window is never cut."""

PARTITIONS_OF_REST = 8
"""Into so many partitions, about, a rest is cut."""


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """What the person who starts an audit chooses.

    `directory`: the run's, a path or a URI (`gs://…`, `s3://…`, `hdfs://…`).

    `grace_s`: in seconds; None: `GRACE_S` for a new run, the run's own grace for one that goes on. `insist`: do it in
    spite of a grace below `GRACE_MIN_S`, or of a table that looks wrong. `unowned`: take it from the caller that the
    blobs are all of this store, although no marker in the bucket says so. `price`: US dollars per GiB and month, for
    the report; None: the default.

    `prefix`: only names that begin with this are looked at. `verify`: which payloads are read. `overdue_s`: how many
    seconds after its deadline a blob is overdue. None: all names, no payload, a week; or as the run began that goes on.

    `since`: the directory of an earlier run, with which the report compares this one; None: the youngest one beside it.
    `tiered`: how commands begin that mean the same store, for the report.

    `references`: where the references come from. `rows`: the rows are scanned. `feed`: the index of the change feed of
    live references. None: the rows; or as the run began that goes on. `feed_age_max_s`: how many seconds ago that feed
    may have been complete; None: `FEED_AGE_MAX_S`; or as the run began.
    """

    directory: str
    grace_s: float | None = None
    insist: bool = False
    unowned: bool = False
    price: float | None = None
    prefix: str | None = None
    verify: Verify | None = None
    overdue_s: float | None = None
    since: str | None = None
    tiered: tuple[str, ...] = ("tiered",)
    references: Literal["rows", "feed"] | None = None
    feed_age_max_s: float | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """All that a worker on another machine must know. `directory`: the URI of the run.

    `settings`: those of the store, as `Settings.packed`, with its secrets: Spark sends a job to its executors, which
    keep it on their disks while they work. `partitions`: the parts; an engine is told their places here.
    `partition_names`, `partition_s`: when a worker hands back the rest of a part. `canary`: only if the workers are not
    on this machine; then the number `CANARY` is the task of `recovery.audit.running.canary`, and a worker notes in the
    directory what failed. `verify`: which payloads are read; its bytes a second are one worker's. `references`: the
    feed that tells the references; None: the rows are scanned.
    """

    directory: str
    run: str
    settings: str = field(repr=False)
    partitions: tuple[Partition, ...]
    cutoff: Cutoff
    partition_names: int = PARTITION_NAMES
    partition_s: float = PARTITION_S
    canary: Canary | None = None
    verify: Verify | None = None
    references: FeedReferences | None = None


@dataclass(frozen=True, slots=True)
class PartResult:
    """How a part ended. `range`: its number. `error`: None, or one sentence that says why its file is not there.

    `retryable`: another try may work.

    `names` were listed and `findings` were written, in `seconds` (0 if the file was there already).
    """

    range: int
    names: int = 0
    findings: int = 0
    seconds: float = 0.0
    error: str | None = None
    retryable: bool = False


class Engine(Protocol):
    """What audits the parts. `name`: for people. `versions`: of the software it runs on.

    `slots`: how many parts run at once. `elsewhere`: workers may be on other machines, or have another environment, and
    their outcomes may come late.
    """

    name: str
    versions: Mapping[str, str]
    slots: int
    elsewhere: bool

    def run(self, job: Job, numbers: Sequence[int]) -> Iterator[PartResult]:
        """Audits the parts of these numbers, in any order, and yields each outcome.

        It blocks, so it is called in a thread.

        It ends early after `stop`. A part without an outcome is done if and only if its file is there. Raises
        `UnavailableError` if no range can be audited any more, and `ConfigurationError` with the fix if something is
        set up wrongly.
        """

    def stop(self) -> None:
        """Stops for good: begins nothing more, and ends soon what is under way.

        Any thread may call it, at any time, repeatedly.
        """


@dataclass(frozen=True, slots=True)
class AuditProgress:
    """How far a run is. `ranges`: how many parts there are by now; more come when a part hands back its rest.

    `names` and `findings` count all finished parts, also those of earlier calls for this run.

    `seconds` and `names_per_s` are those of this call. `seconds_left`: an estimate; None until this call has finished a
    range.
    """

    ranges: int
    ranges_done: int
    ranges_failed: int = 0
    names: int = 0
    findings: Mapping[FindingClass, int] = field(default_factory=dict)
    seconds: float = 0.0
    names_per_s: float = 0.0
    seconds_left: float | None = None


# --- a part ----------------------------------------------------------------------------------------


def job_of(manifest: Manifest, directory: str, settings: Settings, slots: int = 1) -> Job:
    """Returns the job of a run. `slots`: how many workers share what may be read in a second."""
    verify = manifest.verify
    if verify is not None and verify.bytes_per_s is not None:
        verify = verify.model_copy(update={"bytes_per_s": verify.bytes_per_s / slots})
    partitions = tuple(Partition(number, bounds) for number, bounds in enumerate(manifest.ranges))
    return Job(
        directory, manifest.run, portable(settings).packed(), partitions, manifest.cutoff, verify=verify,
        references=manifest.references,
    )  # fmt: skip


def portable(settings: Settings) -> Settings:
    """Returns the same settings for a process with another current directory. An unset changelog becomes `noop`.

    The keys of links are left out: an audit signs none, and Spark writes its jobs down.
    """
    return settings.model_copy(update={"changelog": settings.changelog or NO_CHANGELOG, "links": None})


def others_may_write(settings: Settings) -> bool:
    """Whether other software may write rows beside this one. No other knows those of embedded mode."""
    return not settings.embedded


def check_there(settings: Settings) -> None:
    """Refuses a directory without a store.

    Opening it would create an empty store, and an audit of that would find nothing wrong.
    """
    if settings.embedded and settings.directory and not (settings.directory / DATABASE_NAME).is_file():
        raise ConfigurationError(f"there is no store in {settings.directory} on this machine: check the directory")


@cache
def collect_less() -> None:
    """Makes the garbage collector run less often.

    Call it only in a process that does nothing but audit ranges, never in the user's own.

    A window holds some 100,000 objects at once, none of them in a cycle. With Python's own thresholds the collector
    would visit them, and all imported modules, again and again.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def carry_out(job: Job, number: int) -> PartResult:
    """Audits one part and leaves its file. It needs a process or thread without an event loop.

    It never raises: the outcome holds the error.

    It opens what it needs and closes it again, because connections survive neither a fork nor the reuse of a worker. A
    part that is done is left alone.
    """
    try:
        return anyio.run(_carry_out, job, number)
    except Exception as raised:  # noqa: BLE001 (what goes wrong in one range must not end the others)
        outcome = failed_outcome(number, most_urgent(raised))
        _note(job, outcome)
        return outcome


def failed_outcome(number: int, error: BaseException) -> PartResult:
    """Returns the outcome of a number that ended with this error."""
    if isinstance(error, TieredError):
        return PartResult(number, error=str(error), retryable=isinstance(error, UnavailableError | UnconfirmedError))
    [*_, frame] = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    return PartResult(number, error=f"this software failed, please report it: {type(error).__name__}: {error} ({place})")


def _note(job: Job, failed: PartResult) -> None:
    """Tells the driver early why a part failed, if its outcome may come late.

    If it is the directory that fails, there is no note.
    """
    if job.canary is None or failed.range == CANARY or failed.error is None or job.directory in failed.error:
        return
    with suppress(TieredError, OSError):
        RunDirectory.open(job.directory).note_failure(job.partitions[failed.range].key, failed.error)


async def _carry_out(job: Job, number: int) -> PartResult:
    runtime = SystemRuntime()
    began = runtime.monotonic()
    if number == CANARY:
        return await _try_out(job, runtime)
    directory = RunDirectory.open(job.directory, runtime)
    partition = job.partitions[number]
    if (done := directory.done_part(job.run, partition)) is not None:
        return PartResult(number, done.summary.names, findings_in(done.summary))
    settings = Settings.unpacked(job.settings)
    check_there(settings)

    def is_long(so_far: Summary) -> bool:
        too_long = so_far.names >= job.partition_names or runtime.monotonic() - began >= job.partition_s
        return too_long and len(partition.place) < DEPTH_MAX

    async with open_backends(settings, runtime, writes=False, verify=False) as backends:
        if isinstance(backends.tiers.long_term, SharedListing):
            # A blob that was written after another range had read the names is younger than the cut-off of this run.
            backends.tiers.long_term.share_names(job.run)
        with directory.writer(job.run, partition) as file:
            summary, stopped = await audit_until(
                backends.tiers, backends.log, partition.bounds, job.cutoff, runtime, file.add, is_long,
                verify=job.verify, references=job.references,
            )  # fmt: skip
            audited = Bounds(start=partition.bounds.start, end=partition.bounds.end if stopped is None else stopped)
            await look_beside(backends.tiers, audited, job.cutoff, runtime, file.add, summary)
            if others_may_write(settings):
                await tell_mixed_writers(backends.tiers, audited, runtime, file.add, summary)
            rest = (
                () if stopped is None else (stopped, *await _cut_rest(backends, Bounds(start=stopped, end=partition.bounds.end), runtime))
            )
            # If another worker has done the part meanwhile, its file stays: its rest may be under way already.
            if directory.done_part(job.run, partition) is None:
                file.commit(summary, rest)
    return PartResult(number, summary.names, file.written, runtime.monotonic() - began)


async def _cut_rest(backends: Backends, rest: Bounds, runtime: SystemRuntime) -> list[str]:
    """Returns where to cut a rest, so that several workers can go on with it.

    If the bucket does not tell, the rest is one partition: what was audited so far is worth more.
    """
    with suppress(TieredError):
        return await cut_names(backends.tiers.long_term, rest, PARTITIONS_OF_REST, runtime)
    return []


async def _try_out(job: Job, runtime: SystemRuntime) -> PartResult:
    assert job.canary is not None
    check_variables(job.canary, job.directory)
    check_directory(job.canary, RunDirectory.open(job.directory, runtime))
    settings = Settings.unpacked(job.settings)
    check_there(settings)
    async with open_backends(settings, runtime, writes=False, verify=False) as backends:
        await check_backends(backends)
    return PartResult(CANARY)


def findings_in(summary: Summary) -> int:
    return sum(count.number for class_, count in summary.totals().items() if class_.finding is not None)
