"""One batch of the journal: read it, carry it out, note what became of each candidate."""

from __future__ import annotations

from dataclasses import replace

import anyio
from anyio import to_thread

from changelog.base.runtime import Runtime
from recovery.audit.deleting.candidates import DeletionBatch, Pace, Told
from recovery.audit.deleting.journal import DeletionJournal
from recovery.audit.deleting.quarantine import Quarantine, shelf_of
from tiered.open import Backends


async def carry_out_batch(
    journal: DeletionJournal, number: int, backends: Backends, runtime: Runtime, pace: Pace, label: str | None,
    told: Told,
) -> None:  # fmt: skip
    """Carries out one batch, and notes what became of it, also if it ends with an error or is cancelled.

    `label`: of the quarantine; None: no copies are kept. `told`: of what became of each candidate.
    """
    entries = await to_thread.run_sync(journal.read, number)
    known = {each.candidate.name: each.fate for each in entries if each.fate is not None}
    if len(known) == len(entries):
        return
    candidates = [each.candidate for each in entries]
    quarantine = None if label is None else Quarantine(backends.tiers, shelf_of(label, journal.run), runtime)
    set_aside = None if quarantine is None else quarantine.set_aside
    for each in entries:
        if each.fate is not None:
            told(each.candidate, each.fate)
    batch = DeletionBatch(backends.tiers, backends.log, candidates, runtime, pace, set_aside, told, known)
    try:
        await batch.run()
    finally:
        with anyio.CancelScope(shield=True):
            copies = {} if quarantine is None else quarantine.copies
            after = [
                replace(each, fate=batch.fates.get(name := each.candidate.name), copy=copies.get(name, each.copy)) for each in entries
            ]
            await to_thread.run_sync(journal.write, number, after)
