"""A process that audits a store and deletes the orphans: `python -m tests.given.audit_and_deletion ROOT`.

It runs under the recorder of `emulators/power/`, and notes `audited`, `added` (to a feed of findings) and `deleted`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
from anyio import to_thread

from changelog.base.runtime import SystemRuntime
from emulators.power.judge import settings_of
from emulators.power.recorded_work import STORE
from emulators.power.recording import note
from recovery.audit.deleting.deletion import Wish, delete_orphans
from recovery.audit.deleting.gates import DeletionOptions
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.reporting.findings_feed import FindingsFeed
from recovery.audit.running.run import run_audit
from recovery.audit.running.work import AuditOptions
from tests.given.audited_store import InThread

RUN, FINDINGS_FEED = "audits/today/1", "findings"


async def audit_and_delete(root: Path, *, notes: bool) -> None:
    """Audits the store below `root`, and deletes what nothing names; each of them goes on with what was begun."""
    settings, run = settings_of(root / STORE), str(root / RUN)
    await run_audit(settings, AuditOptions(run, grace_s=0, insist=True), InThread(), SystemRuntime(), lambda _: None)
    if notes:
        note("audited")
    await to_thread.run_sync(FindingsFeed.open(str(root / FINDINGS_FEED), SystemRuntime()).add, RunDirectory.open(run))
    if notes:
        note("added")
    wish = Wish(run, DeletionOptions(at_most=1000), rate_per_s=2000.0, quarantine="kept")
    await delete_orphans(settings, wish, SystemRuntime(), lambda _: None)
    if notes:
        note("deleted")


async def main() -> None:
    await audit_and_delete(Path(sys.argv[1]), notes=True)


if __name__ == "__main__":
    anyio.run(main)
