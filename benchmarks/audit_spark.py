"""The audit's ranges under a local Spark."""

from __future__ import annotations

from benchmarks.audit_ranges import carry_out_all
from benchmarks.audit_side import Found, Ready, SideRequest
from recovery.audit.running.cluster import open_spark
from recovery.audit.running.work import carry_out


def find(asked: SideRequest, ready: Ready) -> Found:
    with open_spark(carry_out, slots=asked.slots) as engine:
        return carry_out_all(engine, asked, ready)
