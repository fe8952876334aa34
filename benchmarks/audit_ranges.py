"""The audit as `tiered audit run` does it: ranges, an engine, findings in Parquet files, but no report.

It says `first` as soon as the findings of a range are there, because somebody may look into the run's directory then.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from threading import Thread

import anyio

from benchmarks.audit_side import GRACE_S, Found, Ready, SideRequest
from changelog.base.runtime import SystemRuntime
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds, Cutoff, Manifest
from recovery.audit.running.work import Engine, job_of
from tiered.open import open_backends

RUNTIME = SystemRuntime()
LOOK_EVERY_S = 0.05


def carry_out_all(engine: Engine, asked: SideRequest, ready: Ready) -> Found:
    ready()
    manifest = anyio.run(_planned, asked)
    path = mkdtemp(prefix="run-", dir=asked.directory)
    directory = RunDirectory.open(path, RUNTIME)
    directory.begin(manifest)
    Thread(target=say_first, args=[Path(path)], daemon=True).start()
    job = replace(job_of(manifest, path, asked.settings), partition_names=sys.maxsize, partition_s=float("inf"))  # nobody takes a rest back
    for outcome in engine.run(job, range(len(manifest.ranges))):
        if outcome.error is not None:
            raise AssertionError(outcome.error)
    counts = [header.summary.totals() for _, header in directory.done(manifest.run)]
    orphans, dangling = (sum(each[kind].number for each in counts if kind in each) for kind in (FindingClass.ORPHAN, FindingClass.DANGLING))
    return orphans, dangling


def say_first(path: Path) -> None:
    while not any(path.glob("findings/*.parquet")):
        time.sleep(LOOK_EVERY_S)
    print("first", flush=True)


async def _planned(asked: SideRequest) -> Manifest:
    async with open_backends(asked.settings, RUNTIME, writes=False) as backends:
        cuts: list[str] = ["", *await backends.tiers.high_volume.boundaries(asked.ranges)]
        cutoff = Cutoff(as_of_ns=await backends.tiers.long_term.now_ns(), grace_s=GRACE_S)
    ranges = tuple(Bounds(start=start, end=end) for start, end in zip(cuts, [*cuts[1:], None], strict=True))
    return Manifest(run="bench", inputs={}, log_is_durable=True, cutoff=cutoff, ranges=ranges, started_ns=RUNTIME.wall_ns())
