"""What a worker on another machine receives, and how it carries out one batch: plain values that can be pickled.

The file of the batch is the result (`journal.py`). The outcome only says early what the file says. So an engine may
carry out a batch twice, lose an outcome, or die.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio
from anyio import to_thread

from changelog.base.runtime import SystemRuntime
from recovery.audit.deleting.batch import carry_out_batch
from recovery.audit.deleting.candidates import tell_nobody
from recovery.audit.deleting.journal import DeletionJournal
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.running.work import PartResult, check_there, failed_outcome
from tiered.open import open_backends
from tiered.protocol.concurrent import most_urgent
from tiered.protocol.rate import TokenBucket
from tiered.settings import Settings


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
