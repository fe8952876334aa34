"""What an engine receives, and what comes back: plain values that can be pickled.

    run --Job, numbers--> Engine (local processes, Spark) --carry_out(job, number)--> Outcome
                                                                   `-> RUN/findings/range-000017.parquet

The file is the result. An outcome only tells early what the directory will tell. So an engine may audit a range twice,
lose an outcome, or die: whether a range is done, the directory says.
"""

from __future__ import annotations

import gc
import json
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

import anyio

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from recovery.audit.finding import Summary
from recovery.audit.ledger import RunDirectory
from recovery.audit.manifest import Bounds, Cutoff, Inventory, Manifest
from recovery.audit.sweep import audit_range
from recovery.audit.verdicts import FINDINGS, Kind
from tiered.open import DATABASE_NAME, open_backends
from tiered.protocol.concurrent import foremost
from tiered.settings import Settings

GRACE_S = 86_400.0
GRACE_MIN_S = 3600.0
"""A change may be under way for this long. A shorter grace is only for a caller who insists on it."""


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """What the person who starts an audit chooses.

    `directory`: the run's, a path or a URI (`gs://…`, `s3://…`, `hdfs://…`).

    `grace_s`: in seconds; None: `GRACE_S` for a new run, the run's own grace for one that goes on. `insist`: do it in
    spite of a grace below `GRACE_MIN_S`, or of a table that looks wrong. `price`: US dollars per GiB and month, for the
    report; None: the default. `inventory`: the report that shows the blobs; None: they are listed.
    """

    directory: str
    grace_s: float | None = None
    insist: bool = False
    price: float | None = None
    inventory: Inventory | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """All that a worker on another machine must know. `directory`: the URI of the run.

    `settings`: those of the store, as JSON.
    """

    directory: str
    run: str
    settings: str
    ranges: tuple[Bounds, ...]
    cutoff: Cutoff


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a range ended. `error`: None, or one sentence that says why its file is not there.

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
    """What audits the ranges. `name`: for people. `versions`: of the software it runs on.

    `slots`: how many ranges run at once.
    """

    name: str
    versions: Mapping[str, str]
    slots: int

    def run(self, job: Job, numbers: Sequence[int]) -> Iterator[Outcome]:
        """Audits the ranges of these numbers, in any order, and yields each outcome.

        It blocks, so it is called in a thread.

        It ends early after `stop`. A range without an outcome is done if and only if its file is there. Raises
        `UnavailableError` if no range can be audited any more, and `ConfigurationError` with the fix if something is
        set up wrongly.
        """

    def stop(self) -> None:
        """Stops for good: begins nothing more, and ends soon what is under way.

        Any thread may call it, at any time, repeatedly.
        """


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. `names` and `findings` count all finished ranges, also those of earlier calls for this run.

    `seconds` and `names_per_s` are those of this call. `seconds_left`: an estimate; None until this call has finished a
    range.
    """

    ranges: int
    ranges_done: int
    ranges_failed: int = 0
    names: int = 0
    findings: Mapping[Kind, int] = field(default_factory=dict)
    seconds: float = 0.0
    names_per_s: float = 0.0
    seconds_left: float | None = None


# --- a range ---------------------------------------------------------------------------------------


def job_of(manifest: Manifest, directory: str, settings: Settings) -> Job:
    return Job(directory, manifest.run, portable(settings).model_dump_json(), manifest.ranges, manifest.cutoff)


def portable(settings: Settings) -> Settings:
    """Returns the same settings for a process with another current directory. An unset changelog becomes `noop`."""
    directory = None if settings.directory is None else settings.directory.absolute()
    return settings.model_copy(update={"directory": directory, "changelog": settings.changelog or "noop"})


def check_there(settings: Settings) -> None:
    """Refuses a directory without a store.

    Opening it would create an empty store, and an audit of that would find nothing wrong.
    """
    if settings.directory is not None and not (settings.directory / DATABASE_NAME).is_file():
        raise ConfigurationError(f"there is no store in {settings.directory.absolute()} on this machine: check the directory")


@cache
def collect_less() -> None:
    """Makes the garbage collector run less often.

    Call it only in a process that does nothing but audit ranges, never in the user's own.

    A window holds some 100,000 objects at once, none of them in a cycle. With Python's own thresholds the collector
    would visit them, and all imported modules, again and again.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def carry_out(job: Job, number: int) -> Outcome:
    """Audits one range and leaves its file. It needs a process or thread without an event loop.

    It never raises: the outcome holds the error.

    It opens what it needs and closes it again, because connections survive neither a fork nor the reuse of a worker. A
    range that is done is left alone.
    """
    try:
        return anyio.run(_carry_out, job, number)
    except Exception as raised:  # noqa: BLE001 (what goes wrong in one range must not end the others)
        error: BaseException = raised
        while isinstance(error, BaseExceptionGroup):
            error = foremost(error.exceptions)
        if isinstance(error, TieredError):
            return Outcome(number, error=str(error), retryable=isinstance(error, UnavailableError | UnconfirmedError))
        [*_, frame] = traceback.extract_tb(error.__traceback__)
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        return Outcome(number, error=f"this software failed, please report it: {type(error).__name__}: {error} ({place})")


async def _carry_out(job: Job, number: int) -> Outcome:
    runtime = SystemRuntime()
    began = runtime.monotonic()
    directory = RunDirectory.open(job.directory, runtime)
    if (done := directory.done_range(job.run, number)) is not None:
        return Outcome(number, done.names, findings_in(done))
    settings = Settings(**json.loads(job.settings))
    check_there(settings)
    async with open_backends(settings, runtime, writes=False, verify=False) as backends:
        with directory.writer(job.run, number) as file:
            summary = await audit_range(backends.tiers, backends.log, job.ranges[number], job.cutoff, runtime, file.add)
            file.commit(summary)
    return Outcome(number, summary.names, file.written, runtime.monotonic() - began)


def findings_in(summary: Summary) -> int:
    return sum(count.number for kind, count in summary.totals().items() if kind in FINDINGS)
