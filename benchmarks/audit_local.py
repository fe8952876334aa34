"""The audit's ranges in worker processes of this machine."""

from __future__ import annotations

from benchmarks.audit_ranges import carry_out_all
from benchmarks.audit_side import Found, Ready, SideRequest
from recovery.audit.running.local import LocalEngine


def find(asked: SideRequest, ready: Ready) -> Found:
    return carry_out_all(LocalEngine(asked.slots), asked, ready)
