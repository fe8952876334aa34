"""A process that audits a store and deletes the orphans: `python -m tests.given.audit_and_deletion ROOT`.

It runs under the recorder of `emulators/power/`, and notes `audited` and `deleted`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from changelog.base.runtime import SystemRuntime
from emulators.power.judge import settings_of
from emulators.power.recorded_work import STORE
from emulators.power.recording import note
from recovery.audit.deleting.deletion import delete_orphans
from recovery.audit.deleting.gates import DeletionRequest
from recovery.audit.running.jobs import AuditOptions
from recovery.audit.running.run import run_audit
from tests.given.audited_store import InThread

RUN = "audits/today/1"


async def audit_and_delete(root: Path, *, notes: bool) -> None:
    """Audits the store below `root`, and deletes what nothing names; each of them goes on with what was begun."""
    settings, run = settings_of(root / STORE), str(root / RUN)
    await run_audit(settings, AuditOptions(run, grace_s=0, insist=True), InThread(), SystemRuntime(), lambda _: None)
    if notes:
        note("audited")
    request = DeletionRequest(run, at_most=1000, rate_per_s=2000.0, quarantine="kept")
    await delete_orphans(settings, request, SystemRuntime(), lambda _: None)
    if notes:
        note("deleted")


async def main() -> None:
    await audit_and_delete(Path(sys.argv[1]), notes=True)


if __name__ == "__main__":
    anyio.run(main)
