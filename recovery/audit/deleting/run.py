"""A whole deletion: a new one, or one that was interrupted and goes on.

    gates -> journal: all are intended -> batches, several at once, at one rate -> journal: what became of them

The run's directory is the only memory. `look` reads and writes nothing: it says what a deletion would do. A deletion
that has ended is not done again; it says what became of each candidate.

*Crash* (kill -9) or interruption at any moment: the same call goes on with the batches that are not done. Two processes
that delete because of the same run do the same work twice, without harm. *Failure* of a service: the batch under way
notes what it has done, and the error is raised.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import anyio
from anyio import to_thread

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import Runtime
from recovery.audit.deleting.candidates import Batch, Candidate, Fate, Pace
from recovery.audit.deleting.gates import Asked, refusals
from recovery.audit.deleting.journal import Journal, Order, Sums
from recovery.audit.deleting.quarantine import Quarantine
from recovery.audit.errors import AuditInterruptedError
from recovery.audit.evidence import Evidence, evidence
from recovery.audit.ledger import RunDirectory
from recovery.audit.plan import inputs_of
from recovery.audit.verdicts import Kind
from recovery.audit.words import count
from recovery.audit.work import check_there, portable
from recovery.rate import TokenBucket
from tiered.open import Backends, open_backends
from tiered.protocol.concurrent import foremost
from tiered.settings import Settings

RATE_PER_S = 200.0
BATCHES_AT_ONCE = 4
REPORT_EVERY_S = 0.5
EXIT_AT_ONCE = 130
NOTHING_ASKED = Asked()


@dataclass(frozen=True, slots=True)
class Wish:
    """What the person who deletes chooses. `directory`: of the run. `rate_per_s`: how many blobs a second.

    `quarantine`: a prefix for copies; None: none are kept. `asked`: for the gates.
    """

    directory: str
    asked: Asked = NOTHING_ASKED
    rate_per_s: float = RATE_PER_S
    quarantine: str | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What a deletion would do, or what is left of one. Sizes are in bytes.

    `refused`: why nothing may be deleted; empty if it may. `number`, `size`: of the candidates. `never`: findings of
    the class that cannot be deleted, because they have no revision or no generation. `order`: of a deletion that was
    begun. `done`: what became of candidates so far.
    """

    evidence: Evidence
    refused: tuple[str, ...]
    number: int
    size: int
    never: int
    order: Order | None
    done: Sums

    @property
    def left(self) -> int:
        """How many candidates have no fate yet. Those of a batch that was interrupted count as a whole."""
        return self.number - sum(self.done.numbers.values())


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a deletion is. `done` of `number` candidates have a fate. `reclaimed`: bytes that were deleted.

    `seconds_left`: an estimate; None until this call has ended a candidate.
    """

    number: int
    done: int
    deleted: int
    reclaimed: int
    seconds: float
    seconds_left: float | None


async def look(settings: Settings, wish: Wish, runtime: Runtime) -> Look:
    """Says what a deletion would do. It changes nothing.

    Raises `ConfigurationError` or `CorruptRecordError` if there is no run, or if its files break the format, and
    `UnavailableError` if they, or the service's clock, cannot be read now.
    """
    check_there(settings)
    settings = portable(settings)
    directory = await to_thread.run_sync(RunDirectory.open, wish.directory, runtime)
    async with open_backends(settings, runtime, writes=False, verify=False) as backends:
        now_ns = await backends.tiers.long_term.now_ns()
    return await to_thread.run_sync(_look, directory, settings, wish, now_ns, backends.log.durable)


async def delete_orphans(settings: Settings, wish: Wish, runtime: Runtime, progress: Callable[[Progress], None]) -> Look:
    """Deletes what the run calls orphans, if they still are, or goes on with that. Returns what became of them.

    `progress` is called in the event loop, from time to time. SIGINT or SIGTERM ends it soon with
    `AuditInterruptedError`; the same call goes on. Raises `ConfigurationError` with all sentences of the gates, one a
    line, if nothing may be deleted, and what `look` raises. `UnavailableError`, `UnconfirmedError`: a service did not
    answer; what was done is in the journal.
    """
    found = await look(settings, wish, runtime)
    if found.refused:
        raise ConfigurationError("\n".join(f"nothing is deleted: {sentence}" for sentence in found.refused))
    settings = portable(settings)
    directory = await to_thread.run_sync(RunDirectory.open, wish.directory, runtime)
    manifest = found.evidence.manifest
    journal = Journal(directory.files, manifest.run)
    if found.order is None:
        order = Order(manifest.run, 0, 0, 0, wish.quarantine, runtime.wall_ns())
        candidates = (each for each in _candidates(directory, manifest.run) if each is not None)
        order = await to_thread.run_sync(journal.begin, order, candidates)
    else:
        order = found.order
    async with open_backends(settings, runtime) as backends:
        await _Run(order, journal, backends, runtime, wish, progress).finish()
    await to_thread.run_sync(journal.tidy)
    return await look(settings, wish, runtime)


async def carry_out_batch(
    journal: Journal, number: int, backends: Backends, runtime: Runtime, pace: Pace, label: str | None,
    told: Callable[[Candidate, Fate], None],
) -> None:  # fmt: skip
    """Carries out one batch, and notes what became of it, also if it ends with an error or is cancelled.

    `label`: of the quarantine; None: no copies are kept. `told`: of what became of each candidate.
    """
    entries = await to_thread.run_sync(journal.read, number)
    known = {each.candidate.name: each.fate for each in entries if each.fate is not None}
    if len(known) == len(entries):
        return
    candidates = [each.candidate for each in entries]
    quarantine = None if label is None else Quarantine(backends.tiers, label, runtime)
    set_aside = None if quarantine is None else quarantine.set_aside
    for each in entries:
        if each.fate is not None:
            told(each.candidate, each.fate)
    batch = Batch(backends.tiers, backends.log, candidates, runtime, pace, set_aside, told, known)
    try:
        await batch.run()
    finally:
        with anyio.CancelScope(shield=True):
            copies = {} if quarantine is None else quarantine.copies
            after = [
                replace(each, fate=batch.fates.get(name := each.candidate.name), copy=copies.get(name, each.copy)) for each in entries
            ]
            await to_thread.run_sync(journal.write, number, after)


class _Run:
    """What one call does for a deletion: several batches at once, at one rate."""

    def __init__(
        self, order: Order, journal: Journal, backends: Backends, runtime: Runtime, wish: Wish, progress: Callable[[Progress], None]
    ) -> None:
        self._order = order
        self._journal = journal
        self._backends = backends
        self._runtime = runtime
        self._bucket = TokenBucket(runtime, wish.rate_per_s)
        self._progress = progress
        self._began = runtime.monotonic()
        self._sums = Sums.zero()
        self._before = 0
        self._interrupted = False

    async def finish(self) -> None:
        """Carries out all batches that are not done. Raises the first error, or `AuditInterruptedError`."""
        done = {number: await to_thread.run_sync(self._journal.sums, number) for number in range(self._order.batches)}
        for sums in done.values():
            self._sums.merge(sums or Sums.zero())
        self._before = sum(self._sums.numbers.values())
        waiting = iter([number for number, sums in done.items() if sums is None])

        async def work() -> None:
            for number in waiting:
                label = self._order.quarantine
                await carry_out_batch(self._journal, number, self._backends, self._runtime, self._bucket.take, label, self._note)

        try:
            async with anyio.create_task_group() as beside:
                beside.start_soon(self._heed_signals, beside.cancel_scope)
                beside.start_soon(self._report_often)
                async with anyio.create_task_group() as workers:
                    for _ in range(BATCHES_AT_ONCE):
                        workers.start_soon(work)
                beside.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            error: BaseException = errors
            while isinstance(error, BaseExceptionGroup):
                error = foremost(error.exceptions)
            raise error from None
        self._report()
        if self._interrupted:
            ended = sum(self._sums.numbers.values())
            raise AuditInterruptedError(
                f"interrupted, {ended:,} of {count(self._order.number, 'candidate')} are done: the same command goes on from there"
            )

    def _note(self, candidate: Candidate, fate: Fate) -> None:
        self._sums.add(fate, candidate.size)

    async def _report_often(self) -> None:
        while True:
            self._report()
            await self._runtime.sleep(REPORT_EVERY_S)

    def _report(self) -> None:
        ended, seconds = sum(self._sums.numbers.values()), self._runtime.monotonic() - self._began
        now = ended - self._before
        self._progress(Progress(
            number=self._order.number,
            done=ended,
            deleted=self._sums.numbers[Fate.DELETED],
            reclaimed=self._sums.sizes[Fate.DELETED],
            seconds=seconds,
            seconds_left=seconds * (self._order.number - ended) / now if now else None,
        ))  # fmt: skip

    async def _heed_signals(self, scope: anyio.CancelScope) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                if self._interrupted:
                    os._exit(EXIT_AT_ONCE)
                self._interrupted = True
                scope.cancel()


def _look(directory: RunDirectory, settings: Settings, wish: Wish, now_ns: int, log_is_durable: bool) -> Look:
    found = evidence(directory, now_ns)
    run = found.manifest.run
    number = size = never = 0
    for candidate in _candidates(directory, run):
        if candidate is None:
            never += 1
        else:
            number, size = number + 1, size + candidate.size
    journal = Journal(directory.files, run)
    order, done = journal.order(), Sums.zero()
    for batch in range(0 if order is None else order.batches):
        done.merge(journal.sums(batch) or Sums.zero())
    refused = [
        *refusals(found, inputs_of(settings), wish.asked, number, now_ns, log_is_durable=log_is_durable),
        *_of_order(order, wish, number),
    ]
    return Look(found, tuple(refused), number, size, never, order, done)


def _of_order(order: Order | None, wish: Wish, number: int) -> Iterator[str]:
    """Yields why a deletion that was begun cannot go on like this."""
    if order is None:
        return
    if order.number != number:
        yield f"the deletion was begun with {count(order.number, 'candidate')}, and the run has {number:,} now: run the audit again"
    if order.quarantine != wish.quarantine:
        was = "without a quarantine" if order.quarantine is None else f"with --quarantine {order.quarantine}"
        yield f"the deletion was begun {was}, and goes on like that only: give the same again"


def _candidates(directory: RunDirectory, run: str) -> Iterator[Candidate | None]:
    """Yields the candidates of a run, in one order. None: a finding of the class that is never deleted."""
    for finding in directory.findings(run, {Kind.ORPHAN}):
        yield Candidate.of(finding)
