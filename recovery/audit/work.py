"""What is handed to whoever carries ranges out, and what comes back: plain values that can be pickled.

    run --Job, numbers--> Engine (local processes, Spark) --carry_out(job, number)--> Outcome
                                                                   `-> RUN/findings/range-000017.parquet

The file is the result: an outcome only says soon what the directory says for good. So an engine may carry a range out twice, lose
an outcome, or die; whether a range is done is asked of the directory.
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
from recovery.audit.manifest import Bounds, Cutoff, Manifest
from recovery.audit.sweep import audit_range
from recovery.audit.verdicts import FINDINGS, Kind
from tiered.open import DATABASE_NAME, open_backends
from tiered.protocol.concurrent import foremost
from tiered.settings import Settings

GRACE_S = 86_400.0
GRACE_MIN_S = 3600.0
"""A change may be under way for so long that a shorter grace is only for those who insist."""


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """What the person who starts an audit chooses. `directory`: of the run, a path or a URI (`gs://…`, `s3://…`, `hdfs://…`).

    `grace_s`: None, `GRACE_S`, or that of the run that goes on. `insist`: one below `GRACE_MIN_S` is meant. `price`: of a GiB a
    month, for the report; None: the report's own.
    """

    directory: str
    grace_s: float | None = None
    insist: bool = False
    price: float | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """All that a worker on another machine must know. `directory`: URI of the run's; `settings`: of the store, as JSON."""

    directory: str
    run: str
    settings: str
    ranges: tuple[Bounds, ...]
    cutoff: Cutoff


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a range ended. `error`: None, or why its file is not there, in a sentence. `retryable`: it may work when tried again.

    `names` were listed, `findings` written down, in `seconds` (0 where the file was there already).
    """

    range: int
    names: int = 0
    findings: int = 0
    seconds: float = 0.0
    error: str | None = None
    retryable: bool = False


class Engine(Protocol):
    """Who carries ranges out. `name`: for people; `versions`: of what it runs on; `slots`: how many ranges at once."""

    name: str
    versions: Mapping[str, str]
    slots: int

    def run(self, job: Job, numbers: Sequence[int]) -> Iterator[Outcome]:
        """Carries the ranges of these numbers out, in any order, and yields as they end. Blocks; it is called in a thread.

        Ends early after `stop`. A range without an outcome is done iff its file is there. `UnavailableError` where no range
        can be carried out any more, `ConfigurationError` with the fix.
        """

    def stop(self) -> None:
        """From another thread, at any time, repeatedly: for good, begin nothing more and end what is under way soon."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. `names` and `findings` are those of finished ranges, of earlier runs of this audit too.

    `seconds`: of this run. `names_per_s`: of this run. `seconds_left`: None until a range of this run has finished.
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
    """The same for a process with another current directory. A changelog that is not set is none."""
    directory = None if settings.directory is None else settings.directory.absolute()
    return settings.model_copy(update={"directory": directory, "changelog": settings.changelog or "noop"})


def check_there(settings: Settings) -> None:
    """Opening an embedded store makes what is missing, and an audit of that would find nothing wrong."""
    if settings.directory is not None and not (settings.directory / DATABASE_NAME).is_file():
        raise ConfigurationError(f"there is no store in {settings.directory.absolute()} on this machine: check the directory")


@cache
def collect_less() -> None:
    """Once in a process that does nothing but carry ranges out: not in the user's own.

    A window holds some 100,000 objects at once, none of them in a cycle. By Python's own thresholds the garbage collector walks them over
    and over, and all that was imported with them.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def carry_out(job: Job, number: int) -> Outcome:
    """Audits one range and leaves its file, in a process without an event loop. Never raises: what fails is in the outcome.

    Opens what it needs and closes it again: connections do not survive a fork, nor a worker that is reused. A range that is done
    is left alone.
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
