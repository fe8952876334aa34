"""The audit itself, without an engine: one range that holds all names. What it finds is counted and not written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import anyio

from benchmarks.audit_side import GRACE_S, Found, Ready, SideRequest
from changelog.base.runtime import SystemRuntime
from recovery.audit.finding import Finding
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds, Cutoff
from recovery.audit.running.work import collect_less
from recovery.audit.sweeping.sweep import audit_range
from tiered.open import open_backends

RUNTIME = SystemRuntime()


def find(asked: SideRequest, ready: Ready) -> Found:
    collect_less()  # as the workers of its engines do
    return anyio.run(_sweep, asked, ready)


async def _sweep(asked: SideRequest, ready: Ready) -> Found:
    kinds = Counter[FindingClass]()

    def count(findings: Sequence[Finding]) -> None:
        kinds.update(finding.kind for finding in findings)

    async with open_backends(asked.settings, RUNTIME, writes=False) as backends:
        cutoff = Cutoff(as_of_ns=await backends.tiers.long_term.now_ns(), grace_s=GRACE_S)
        ready()
        await audit_range(backends.tiers, backends.log, Bounds(start="", end=None), cutoff, RUNTIME, count)
    return kinds[FindingClass.ORPHAN], kinds[FindingClass.DANGLING]
