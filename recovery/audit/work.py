"""What is handed to whoever carries ranges out, and what comes back: plain values that can be pickled.

    run --Job, numbers--> Engine (local processes, Spark) --carry_out(job, number)--> Outcome
                                                                   `-> RUN/findings/range-000017.parquet

The file is the result: an outcome only says soon what the directory says for good. So an engine may carry a range out twice, lose
an outcome, or die; whether a range is done is asked of the directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from recovery.audit.manifest import Bounds, Cutoff
from recovery.audit.verdicts import Kind

GRACE_S = 86_400.0
GRACE_MIN_S = 3600.0
"""A change may be under way for so long that a shorter grace is only for those who insist."""


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """What the person who starts an audit chooses. `directory`: of the run, a path or a URI (`gs://…`, `s3://…`, `hdfs://…`).

    `insist`: a grace (seconds) below `GRACE_MIN_S` is meant. `price`: of a GiB a month, for the report; None: the report's own.
    """

    directory: str
    grace_s: float = GRACE_S
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
        """From another thread, at any time, repeatedly: begin nothing more, and end what is under way soon."""


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
