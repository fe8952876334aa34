"""What the tests have carried out instead of an audit: module-level, so that workers can import it. `Job.directory` is where marks go."""

from __future__ import annotations

import os
import time
from pathlib import Path

from recovery.audit.work import Job, Outcome


def count(job: Job, number: int) -> Outcome:
    """Leaves a mark for each time it is called, as its number and a unique end."""
    (Path(job.directory) / f"{number}-{os.getpid()}-{time.monotonic_ns()}").touch()
    return Outcome(number, names=number * 10, seconds=0.5, error="it is odd: ünicode 'quoted'" if number % 2 else None)


def marks(directory: Path) -> list[int]:
    """Of which ranges there are marks, sorted; twice if twice."""
    return sorted(int(path.name.partition("-")[0]) for path in directory.iterdir() if path.name[0].isdigit())
