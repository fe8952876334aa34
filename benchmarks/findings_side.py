"""A side of what a finding costs, in a process of its own: `python -m benchmarks.findings_side delta STORE DIRECTORY`.

    directory_range     `audit_range` over an embedded store, one range; what it finds is counted and not written
    directory_ranges    the ranges of a run for two workers, one after the other, with their files of findings
    directory_spark     the same on a local Spark with one slot
    delta               `DeltaTable.vacuum(full=True, dry_run=True)` of a table without these files

It prints `ready` when all is loaded, and then how many orphans it found, and its own CPU since. STORE: the directory of
the store or table. DIRECTORY: for other files.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp

import anyio
import pyarrow as pa

from benchmarks.audit_side import GRACE_S
from changelog.base.runtime import SystemRuntime
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.finding import Finding
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds, Cutoff, Manifest
from recovery.audit.running.cluster import open_spark
from recovery.audit.running.plan import plan_audit
from recovery.audit.running.work import AuditOptions, Job, PartResult, carry_out, collect_less, job_of
from recovery.audit.sweeping.sweep import audit_range
from tiered.open import open_backends
from tiered.settings import Settings

RUNTIME = SystemRuntime()
SLOTS = 2
"""The ranges are those of a run with so many workers."""


class FindingsCpuClock:
    """Measures this process's CPU, in seconds since `start`."""

    def start(self) -> None:
        print("ready", flush=True)
        self._started_s = time.process_time()

    def tell(self, found: int) -> None:
        print(json.dumps({"found": found, "cpu_s": time.process_time() - self._started_s}), flush=True)


def directory_range(clock: FindingsCpuClock, store: Path, directory: Path) -> int:
    collect_less()
    return anyio.run(_range, clock, store)


async def _range(clock: FindingsCpuClock, store: Path) -> int:
    kinds = Counter[FindingClass]()

    def count(findings: Sequence[Finding]) -> None:
        kinds.update(finding.kind for finding in findings)

    async with open_backends(settings_of(store), RUNTIME, writes=False) as backends:
        clock.start()
        cutoff = Cutoff(as_of_ns=RUNTIME.wall_ns(), grace_s=GRACE_S)
        await audit_range(backends.tiers, backends.log, Bounds(start="", end=None), cutoff, RUNTIME, count)
    return kinds[FindingClass.ORPHAN]


def directory_ranges(clock: FindingsCpuClock, store: Path, directory: Path) -> int:
    collect_less()
    job, run = _planned(store, directory)
    clock.start()
    return _found(run, job, [carry_out(job, number) for number in range(len(job.partitions))])


def directory_spark(clock: FindingsCpuClock, store: Path, directory: Path) -> int:
    job, run = _planned(store, directory)
    with open_spark(carry_out, slots=1) as engine:
        clock.start()
        return _found(run, job, list(engine.run(job, range(len(job.partitions)))))


def delta(clock: FindingsCpuClock, store: Path, directory: Path) -> int:
    from deltalake import DeltaTable  # noqa: PLC0415 - of the extra `bench`

    clock.start()
    return len(DeltaTable(str(store)).vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=True))


def settings_of(store: Path) -> Settings:
    return Settings(directory=store, changelog="sqlite")


def _planned(store: Path, directory: Path) -> tuple[Job, RunDirectory]:
    path, settings = mkdtemp(prefix="run-", dir=directory), settings_of(store)
    plan = anyio.run(plan_audit, settings, AuditOptions(directory=path), SLOTS, RUNTIME)
    manifest = Manifest(
        run="bench", inputs=plan.inputs, log_is_durable=True, cutoff=plan.cutoff, ranges=plan.ranges, started_ns=RUNTIME.wall_ns()
    )
    run = RunDirectory.open(path, RUNTIME)
    run.begin(manifest)
    pa.array([0])  # it loads what pyarrow needs of other packages
    return job_of(manifest, path, settings), run


def _found(run: RunDirectory, job: Job, outcomes: Sequence[PartResult]) -> int:
    if wrong := [outcome.error for outcome in outcomes if outcome.error is not None]:
        raise AssertionError(wrong[0])
    return sum(
        header.summary.totals()[FindingClass.ORPHAN].number
        for _, header in run.done(job.run)
        if FindingClass.ORPHAN in header.summary.totals()
    )


SIDES: dict[str, Callable[[FindingsCpuClock, Path, Path], int]] = {
    each.__name__: each for each in (directory_range, directory_ranges, directory_spark, delta)
}

if __name__ == "__main__":
    side, *paths = sys.argv[1:]
    clock = FindingsCpuClock()
    clock.tell(SIDES[side](clock, *map(Path, paths)))
