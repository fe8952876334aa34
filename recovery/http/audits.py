"""The runs of the audit in one directory of this machine, newest first, for the status page.

A run is a directory with a `manifest.json`, as `tiered audit run --to DIR` leaves it. A file or a link that is anything
else is passed over. Only the report of a run that was just listed is ever opened, so no address leads out of the
directory. *Failure*: a directory or a manifest that cannot be read becomes a sentence in the list.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from changelog.base.errors import ConfigurationError, CorruptRecordError
from recovery.audit.manifest import contradictions, parse_manifest

MANIFEST, REPORT = "manifest.json", "report.html"
MANIFEST_BYTES_MAX = 8 * 1024 * 1024
RUNS_MAX = 20
LOOKED_AT_MAX = 1000
"""So many entries of the directory are looked at. More than that is no directory of runs."""


@dataclass(frozen=True, slots=True)
class AuditRun:
    """A run. `name`: of its directory. Times are nanoseconds since 1970; `ended_ns` None: it has not ended.

    `problem`: why its manifest says nothing, or cannot be true.
    """

    name: str
    started_ns: int | None = None
    ended_ns: int | None = None
    complete: bool = False
    findings: int | None = None
    blobs: int | None = None
    has_report: bool = False
    problem: str | None = None


def audit_runs(directory: Path) -> Sequence[AuditRun]:
    """Returns the youngest runs in the directory. It blocks: call it in a thread. `OSError`: it cannot be listed."""
    found: list[tuple[int, Path]] = []
    with os.scandir(directory) as entries:
        for entry in islice(entries, LOOKED_AT_MAX):
            if not entry.name.startswith((".", "_")) and entry.is_dir(follow_symlinks=False) and _is_text(entry.name):
                manifest = _is_file(Path(entry.path, MANIFEST))
                if manifest is not None:
                    found.append((manifest.st_mtime_ns, Path(entry.path)))
    youngest = sorted(found, reverse=True)[:RUNS_MAX]
    return [_run(path) for _, path in youngest]


def report_of(directory: Path, name: str) -> Path | None:
    """Returns the report of a run that `audit_runs` lists, or None. It blocks: call it in a thread."""
    try:
        known = any(run.name == name and run.has_report for run in audit_runs(directory))
    except OSError:
        return None
    return directory / name / REPORT if known else None


def _is_text(name: str) -> bool:
    """Whether an address can hold the name: bytes that are no UTF-8 cannot."""
    try:
        return name.isprintable() and name.encode() != b""
    except UnicodeEncodeError:
        return False


def _run(path: Path) -> AuditRun:
    has_report = _is_file(path / REPORT) is not None
    try:
        with (path / MANIFEST).open("rb") as file:
            text = file.read(MANIFEST_BYTES_MAX + 1)
        if len(text) > MANIFEST_BYTES_MAX:
            return AuditRun(path.name, problem="its manifest is larger than a manifest is")
        run = parse_manifest(text, f"{path.name}/{MANIFEST}")
    except OSError as error:
        return AuditRun(path.name, problem=f"its manifest cannot be read: {error.strerror}")
    except (CorruptRecordError, ConfigurationError) as error:
        return AuditRun(path.name, problem=str(error))
    # Only the manifest is checked here, and not the files beside it. No clock is at hand, so any time is in the past.
    wrong = next(contradictions(run, sys.maxsize), None)
    problem = None if wrong is None else f"its manifest cannot be trusted: {wrong}"
    complete = run.complete and wrong is None
    return AuditRun(path.name, run.started_ns, run.ended_ns, complete, run.findings, run.names, has_report, problem)


def _is_file(path: Path) -> os.stat_result | None:
    """What the system says of a regular file. None: there is none, or it is a link to somewhere else."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None
