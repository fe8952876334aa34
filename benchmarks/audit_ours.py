"""The audit as `tiered audit run` does it, without its report: in one process, in workers, and under Spark."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from tempfile import mkdtemp

import anyio

from benchmarks.audit_side import Found, Ready, SideRequest
from benchmarks.harness import RUNTIME
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.finding import Finding
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds, Cutoff, Manifest
from recovery.audit.running.jobs import Engine, carry_out, collect_less, job_of
from recovery.audit.running.local import LocalEngine
from recovery.audit.sweeping.sweep import audit_range
from tiered.open import open_backends

GRACE_S = 86_400.0


def sweep(asked: SideRequest, ready: Ready) -> Found:
    """One range that holds all names. What it finds is counted and not written."""
    collect_less()  # as the workers of its engines do
    return anyio.run(_sweep, asked, ready)


async def _sweep(asked: SideRequest, ready: Ready) -> Found:
    classes = Counter[FindingClass]()

    def count(findings: Sequence[Finding]) -> None:
        classes.update(finding.class_ for finding in findings)

    async with open_backends(asked.settings, RUNTIME, writes=False) as backends:
        cutoff = Cutoff(as_of_ns=await backends.tiers.long_term.now_ns(), grace_s=GRACE_S)
        ready()
        await audit_range(backends.tiers, backends.log, Bounds(start="", end=None), cutoff, RUNTIME, count)
    return classes[FindingClass.ORPHAN], classes[FindingClass.DANGLING]


def workers(asked: SideRequest, ready: Ready) -> Found:
    return _carry_out_all(LocalEngine(asked.slots), asked, ready)


def spark(asked: SideRequest, ready: Ready) -> Found:
    from recovery.audit.running.cluster import open_spark  # noqa: PLC0415 - the other sides load no Spark

    with open_spark(carry_out, slots=asked.slots) as engine:
        return _carry_out_all(engine, asked, ready)


def _carry_out_all(engine: Engine, asked: SideRequest, ready: Ready) -> Found:
    """Ranges, an engine, findings in Parquet files."""
    ready()
    manifest = anyio.run(_planned, asked)
    path = mkdtemp(prefix="run-", dir=asked.directory)
    directory = RunDirectory.open(path, RUNTIME)
    directory.begin(manifest)
    job = replace(job_of(manifest, path, asked.settings), partition_names=sys.maxsize, partition_s=float("inf"))  # nobody takes a rest back
    for outcome in engine.run(job, range(len(manifest.ranges))):
        if outcome.error is not None:
            raise AssertionError(outcome.error)
    counts = [header.summary.totals() for _, header in directory.done(manifest.run)]
    orphans, dangling = (sum(each[of].number for each in counts if of in each) for of in (FindingClass.ORPHAN, FindingClass.DANGLING))
    return orphans, dangling


async def _planned(asked: SideRequest) -> Manifest:
    async with open_backends(asked.settings, RUNTIME, writes=False) as backends:
        cuts: list[str] = ["", *await backends.tiers.high_volume.boundaries(asked.ranges)]
        cutoff = Cutoff(as_of_ns=await backends.tiers.long_term.now_ns(), grace_s=GRACE_S)
    ranges = tuple(Bounds(start=start, end=end) for start, end in zip(cuts, [*cuts[1:], None], strict=True))
    return Manifest(run="bench", inputs={}, log_is_durable=True, cutoff=cutoff, ranges=ranges, started_ns=RUNTIME.wall_ns())
