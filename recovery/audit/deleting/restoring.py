"""Brings back what a deletion set aside: every copy in the journal of a run, back to its name.

A blob that is back is an orphan again, because nothing names it. An audit calls it one when it is older than the grace.
Nothing is written to the journal: a copy that is gone says that it was restored before, or deleted. So the call may be
repeated, after a crash too. A deletion that was killed may have set blobs aside without a note. Their copies are looked
for, and stay in the quarantine, because workers of that deletion may still be at work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import anyio
from anyio import to_thread

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import Runtime
from recovery.audit.deleting.journal import Entry, Journal, Order
from recovery.audit.deleting.quarantine import Return, restore, with_copy
from recovery.audit.ledger import RunDirectory
from recovery.audit.plan import inputs_of
from recovery.audit.work import check_there, portable
from recovery.rate import TokenBucket
from tiered.open import open_backends
from tiered.protocol.concurrent import most_urgent
from tiered.settings import Settings

T = TypeVar("T")

AT_ONCE = 16


@dataclass(slots=True)
class Returned:
    """What a restoration did, or would do. `copies`: how many copies the journal names. `size`: their bytes.

    `returns`: how many copies had which end. `quarantine`: the label.
    """

    copies: int
    size: int
    quarantine: str
    returns: Counter[Return]


async def restore_deleted(
    settings: Settings, where: str, runtime: Runtime, rate_per_s: float, progress: Callable[[Returned], None], *, dry: bool
) -> Returned:
    """Brings back all blobs that the deletion of this run set aside.

    `where`: the directory of the run. `dry`: only counts.

    Raises `ConfigurationError` if the run has no quarantine, or is of another store. `CorruptRecordError`: the journal
    breaks the format. `UnavailableError`, `UnconfirmedError`: a service did not answer; the call may be repeated.
    """
    check_there(settings)
    settings = portable(settings)
    directory = await to_thread.run_sync(RunDirectory.open, where, runtime)
    journal, label, order = await to_thread.run_sync(_opened, directory, settings)
    found = Returned(0, 0, label, Counter())
    bucket = TokenBucket(runtime, rate_per_s)
    async with open_backends(settings, runtime, writes=not dry) as backends:
        for batch in range(order.batches):
            noted = await to_thread.run_sync(journal.read, batch)
            entries = [each for each in await _each(noted, lambda entry: with_copy(entry, label, backends.tiers, runtime)) if each.copy]
            found.copies += len(entries)
            found.size += sum(each.candidate.size for each in entries)
            if not dry:
                found.returns.update(await _each(entries, lambda entry: restore(entry, backends.tiers, runtime, bucket.take)))
            progress(found)
    return found


async def _each(entries: Sequence[Entry], call: Callable[[Entry], Awaitable[T]]) -> list[T]:
    """Makes the call for each entry, `AT_ONCE` at the same time. Returns what the calls returned, in any order."""
    waiting = iter(entries)
    found: list[T] = []

    async def work() -> None:
        for entry in waiting:
            found.append(await call(entry))

    try:
        async with anyio.create_task_group() as group:
            for _ in range(AT_ONCE):
                group.start_soon(work)
    except BaseExceptionGroup as errors:
        raise most_urgent(errors) from None
    return found


def _opened(directory: RunDirectory, settings: Settings) -> tuple[Journal, str, Order]:
    manifest = directory.read_manifest()
    if manifest is None:
        raise ConfigurationError(f"{directory.uri} holds no run of an audit: give the directory that `tiered audit run` named")
    if manifest.inputs != inputs_of(settings):
        raise ConfigurationError(f"{directory.uri} is a run of another store: give the settings of then")
    journal = Journal(directory.files, manifest.run)
    order = journal.order()
    if order is None or order.quarantine is None:
        why = "nothing was deleted because of it" if order is None else "what was deleted because of it was not set aside"
        raise ConfigurationError(f"nothing of {directory.uri} can be restored: {why}")
    for _ in journal.entries(order):  # all of it is checked before the first copy is touched
        pass
    return journal, order.quarantine, order
