"""What Spark's workers do in tests instead of an audit.

The functions are at module level, so that workers can import them. Marks go to `Job.directory`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import recovery
from recovery.audit.files.partitions import Partition
from recovery.audit.manifest import Bounds, Cutoff
from recovery.audit.running.jobs import Job, PartResult


def job_in(directory: Path, ranges: int) -> Job:
    names = [f"{number:03}" for number in range(1, ranges)]
    bounds = (Bounds(start=start, end=end) for start, end in zip(["", *names], [*names, None], strict=True))
    chunks = tuple(Partition(number, each) for number, each in enumerate(bounds))
    return Job(str(directory), "run", "{}", chunks, Cutoff(as_of_ns=1, grace_s=3600.0))


def marked(job: Job, number: int) -> bool:
    """Leaves a mark for each attempt; true if this one is the first."""
    first = not any(Path(job.directory).glob(f"{number}-*"))
    (Path(job.directory) / f"{number}-{os.getpid()}-{time.monotonic_ns()}").touch()
    return first


def attempts(directory: str | Path) -> list[int]:
    """Of which ranges there are marks, sorted; twice if twice."""
    return sorted(int(path.name.partition("-")[0]) for path in Path(directory).iterdir())


def count(job: Job, number: int) -> PartResult:
    marked(job, number)
    return PartResult(number, names=number * 10, findings=1, seconds=0.5, error="ünicode, 'quoted'\n" if number % 2 else None)


def raise_always(job: Job, number: int) -> PartResult:
    """Work that raises. `carry_out` never does, so this stands for a defect around it."""
    raise LookupError(f"nothing is known of range {number}")


def die_once(job: Job, number: int) -> PartResult:
    """Range 1 takes its worker along, after its effect."""
    if marked(job, number) and number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return PartResult(number, names=1)


def die_always(job: Job, number: int) -> PartResult:
    marked(job, number)
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return PartResult(number, names=1)


def hang(job: Job, number: int) -> PartResult:
    """Until its worker is ended from outside."""
    marked(job, number)
    while True:
        signal.pause()


def kill_executors(job: Job, number: int) -> PartResult:
    """Range 1 takes its worker along, range 2 the executor's JVM. Tells where modules come from."""
    first = marked(job, number)
    if first and number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if first and number == 2:
        os.kill(parent(os.getppid()), signal.SIGKILL)
        signal.pause()
    return PartResult(number, names=1, error=json.dumps([recovery.__file__, *sys.path]))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def tell_jvm(job: Job, number: int) -> PartResult:
    """`names` is the pid of the JVM; range 1 tells it by its mark alone, and hangs."""
    jvm = parent(os.getppid())
    if number == 1:
        (Path(job.directory) / f"1-{jvm}").touch()
        signal.pause()
    return PartResult(number, names=jvm)
