"""One batch of the journal: read it, carry it out, note what became of each candidate. Also on another machine.

The file of the batch is the result (`journal.py`). What a worker returns only says early what the file says. So an
engine may carry out a batch twice, lose an outcome, or die. What a worker gets are plain values that can be pickled.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import anyio
from anyio import to_thread

from changelog.base.runtime import Runtime, SystemRuntime
from recovery.audit.deleting.candidates import DeletionBatch, Pace, Told, tell_nobody
from recovery.audit.deleting.journal import DeletionJournal
from recovery.audit.deleting.quarantine import Quarantine, shelf_of
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.running.jobs import PartResult, check_there, failed_outcome
from tiered.limits.rate import TokenBucket
from tiered.open import Backends, open_backends
from tiered.services.concurrent import most_urgent
from tiered.settings import Settings


async def carry_out_batch(
    journal: DeletionJournal, number: int, backends: Backends, runtime: Runtime, pace: Pace, label: str | None,
    told: Told,
) -> None:  # fmt: skip
    """Carries out one batch, and notes what became of it, also if it ends with an error or is cancelled.

    `label`: of the quarantine; None: no copies are kept. `told`: of what became of each candidate.
    """
    entries = await to_thread.run_sync(journal.read, number)
    known = {each.candidate.name: each.outcome for each in entries if each.outcome is not None}
    if len(known) == len(entries):
        return
    candidates = [each.candidate for each in entries]
    quarantine = None if label is None else Quarantine(backends.tiers, shelf_of(label, journal.run), runtime)
    set_aside = None if quarantine is None else quarantine.set_aside
    for each in entries:
        if each.outcome is not None:
            told(each.candidate, each.outcome)
    batch = DeletionBatch(backends.tiers, backends.log, candidates, runtime, pace, set_aside, told, known)
    try:
        await batch.run()
    finally:
        with anyio.CancelScope(shield=True):
            copies = {} if quarantine is None else quarantine.copies
            after = [
                replace(each, outcome=batch.outcomes.get(name := each.candidate.name), copy=copies.get(name, each.copy)) for each in entries
            ]
            await to_thread.run_sync(journal.write, number, after)


# --- on another machine ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeletionJob:
    """All that a worker must know. `directory`: the URI of the run. `settings`: as in `Job`.

    `label`: of the quarantine; None: no copies are kept. `rate_per_s`: how many blobs a second this worker may delete.
    """

    directory: str
    run: str
    settings: str = field(repr=False)
    label: str | None
    rate_per_s: float


def delete_batch(job: DeletionJob, number: int) -> PartResult:
    """Carries out one batch. It needs a process or thread without an event loop. It never raises."""
    try:
        return anyio.run(_delete_batch, job, number)
    except Exception as raised:  # noqa: BLE001 (what goes wrong in one batch must not end the others)
        return failed_outcome(number, most_urgent(raised))


async def _delete_batch(job: DeletionJob, number: int) -> PartResult:
    runtime = SystemRuntime()
    began = runtime.monotonic()
    journal = DeletionJournal(RunDirectory.open(job.directory, runtime).files, job.run)
    if await to_thread.run_sync(journal.sums, number) is None:
        settings = Settings.unpacked(job.settings)
        check_there(settings)
        async with open_backends(settings, runtime, verify=False) as backends:
            pace = TokenBucket(runtime, job.rate_per_s).take
            await carry_out_batch(journal, number, backends, runtime, pace, job.label, tell_nobody)
    return PartResult(number, seconds=runtime.monotonic() - began)
