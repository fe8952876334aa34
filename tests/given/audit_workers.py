"""What workers do in tests instead of an audit. In a module of its own, so that a worker can find it by name.

`job.directory` is a directory that the test looks into; each start of a range leaves a file `{number}.{pid}` there.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

from recovery.audit.files.ledger import FINDINGS, RunDirectory
from recovery.audit.finding import Finding, Summary
from recovery.audit.finding_classes import FindingClass
from recovery.audit.running import jobs
from recovery.audit.running.jobs import Job, PartResult, carry_out
from recovery.audit.sweeping import sweep

ODD_ONE = 2
"""The range that something happens to."""


def note(job: Job, number: int) -> int:
    """Leaves the file; how often the range was begun before."""
    before = len(starts(job.directory, number))
    (Path(job.directory) / f"{number}.{os.getpid()}").touch()
    return before


def starts(directory: str, number: int) -> list[int]:
    """The processes that have begun a range."""
    return [int(path.suffix[1:]) for path in Path(directory).glob(f"{number}.*")]


def succeed(job: Job, number: int) -> PartResult:
    note(job, number)
    return PartResult(number, names=number * 10, findings=number, seconds=1.0)


def chatter(job: Job, number: int) -> PartResult:
    print("out")  # noqa: T201
    print("err", file=sys.stderr)  # noqa: T201
    os.write(2, b"deep\n")
    return succeed(job, number)


def tell_collections(job: Job, number: int) -> PartResult:
    """Tells two settings of this process's garbage collector.

    `names`: after how many new objects it looks for garbage. `findings`: how many older objects it never looks at.
    """
    return PartResult(number, names=gc.get_threshold()[0], findings=gc.get_freeze_count())


def write_a_finding(job: Job, number: int) -> PartResult:
    """Writes the file of a part with one finding. `findings`: how many modules of pandas that took."""
    directory = RunDirectory.open(job.directory)
    directory.files.make(FINDINGS)
    with directory.writer(job.run, job.partitions[number]) as file:
        file.add([Finding(FindingClass.ORPHAN, "a/objects/b", None, None, 1, 2, None, "3", "", 4, 5, 6, None)])
        file.commit(Summary())
    return PartResult(number, names=file.written, findings=len([name for name in sys.modules if name.partition(".")[0] == "pandas"]))


def die_once(job: Job, number: int) -> PartResult:
    if not note(job, number) and number == ODD_ONE:
        os.kill(os.getpid(), signal.SIGKILL)
    return PartResult(number)


def die_always(job: Job, number: int) -> PartResult:
    note(job, number)
    if number == ODD_ONE:
        os.kill(os.getpid(), signal.SIGKILL)
    return PartResult(number)


def leave_always(job: Job, number: int) -> PartResult:
    if number == ODD_ONE:
        os._exit(7)
    return PartResult(number)


def wait_for_ever(job: Job, number: int) -> PartResult:
    """Says on the FIFO `life` that it lives; the FIFO ends when all who said so have ended."""
    life = os.open(Path(job.directory) / "life", os.O_WRONLY)
    os.write(life, f"{os.getpid()}\n".encode())
    threading.Event().wait()
    raise AssertionError("unreachable")


def die_in_the_middle(job: Job, number: int) -> PartResult:
    """An audit whose worker is killed once, when it has done a range and before it has said so."""
    outcome = carry_out(job, number)
    try:
        (Path(job.directory) / "findings" / f"_killed-{ODD_ONE}").touch(exist_ok=number != ODD_ONE)
    except FileExistsError:
        return outcome
    if number == ODD_ONE:
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome


def in_small_parts(job: Job, number: int) -> PartResult:
    """An audit whose windows hold one name, and whose parts hold two."""
    setattr(jobs, "audit_until", partial(sweep.audit_until, window_names=1))  # noqa: B010
    return carry_out(replace(job, partition_names=2), number)


def on_another_machine(job: Job, number: int) -> PartResult:
    """An audit whose run directory is a path of this worker's own disk."""
    other = Path(job.directory).with_name("other")
    (other / "findings").mkdir(parents=True, exist_ok=True)
    return carry_out(replace(job, directory=str(other)), number)
