"""A whole deletion: a new one, or one that was interrupted and goes on.

    gates -> journal: all are intended -> batches, several at once, at one rate -> journal: what became of them

The run's directory is the only memory. `look` reads and writes nothing: it says what a deletion would do. A deletion
that has ended is not done again; it says what became of each candidate.

*Crash* (kill -9) or interruption at any moment: the same call goes on with the batches that are not done. Two processes
that delete because of the same run do the same work twice, without harm. *Failure* of a service: the batch under way
notes what it has done, and the error is raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import anyio
from anyio import to_thread

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError
from changelog.base.runtime import Runtime
from recovery.audit.deleting.batch import DeletionJob, carry_out_batch
from recovery.audit.deleting.candidates import Candidate, DeleteOutcome
from recovery.audit.deleting.gates import DeletionRequest, refusals
from recovery.audit.deleting.journal import DeletionJournal, DeletionPlan, Sums, sums_of
from recovery.audit.errors import AuditInterruptedError
from recovery.audit.files.evidence import Evidence, evidence
from recovery.audit.files.ledger import RunDirectory
from recovery.audit.finding_classes import FindingClass
from recovery.audit.running.interrupts import heed_signals
from recovery.audit.running.jobs import Engine, check_there, portable
from recovery.audit.running.plan import check_owner, inputs_of
from recovery.display import count
from recovery.statistics.audit_source import AuditSource, Finished
from tiered.limits.rate import TokenBucket
from tiered.open import Backends, open_backends
from tiered.services.concurrent import map_concurrently, most_urgent
from tiered.settings import Settings

BATCHES_AT_ONCE = 4
REPORT_EVERY_S = 0.5
LOOK_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class DeletionReport:
    """What a deletion would do, or what is left of one. Sizes are in bytes.

    `refused`: why nothing may be deleted; empty if it may. `number`, `size`: of the candidates. `never`: findings of
    the class that cannot be deleted, because they have no revision or no generation. `misfiled`: findings of the class
    that are spared, because a row that cannot be read names them. `plan`: of a deletion that was
    begun. `done`: what became of candidates so far.
    """

    evidence: Evidence
    refused: tuple[str, ...]
    number: int
    size: int
    never: int
    plan: DeletionPlan | None
    done: Sums
    misfiled: int = 0

    @property
    def left(self) -> int:
        """How many candidates have no outcome yet. Those of a batch that was interrupted count as a whole."""
        return self.number - sum(self.done.numbers.values())


@dataclass(frozen=True, slots=True)
class DeletionProgress:
    """How far a deletion is. `done` of `number` candidates have an outcome. `reclaimed`: bytes that were deleted.

    `seconds_left`: an estimate; None until this call has ended a candidate.
    """

    number: int
    done: int
    deleted: int
    reclaimed: int
    seconds: float
    seconds_left: float | None


async def look(settings: Settings, request: DeletionRequest, runtime: Runtime) -> DeletionReport:
    """Says what a deletion would do. It changes nothing.

    Raises `ConfigurationError` or `CorruptRecordError` if there is no run, if its files break the format, or if another
    store owns the blobs, and `UnavailableError` if they, or the service's clock, cannot be read now.
    """
    check_there(settings)
    settings = portable(settings)
    directory = await to_thread.run_sync(RunDirectory.open, request.directory, runtime)
    async with open_backends(settings, runtime, writes=False, verify=False) as backends:
        now_ns = await backends.tiers.long_term.now_ns()
        ownerless = await check_owner(backends, runtime)
    found = await to_thread.run_sync(_look, directory, settings, request, now_ns, backends.log.durable)
    return found if ownerless is None else replace(found, refused=(ownerless, *found.refused))


async def delete_orphans(
    settings: Settings, request: DeletionRequest, runtime: Runtime, progress: Callable[[DeletionProgress], None],
    engine: Engine | None = None, found: DeletionReport | None = None,
) -> DeletionReport:  # fmt: skip
    """Deletes what the run calls orphans, if they still are, or goes on with that. Returns what became of them.

    `engine`: carries out `batch.delete_batch`; None: this process does it. `found`: what `look` told of the same
    request just before; None: it looks itself.

    `progress` is called in the event loop, from time to time. SIGINT or SIGTERM ends it soon with
    `AuditInterruptedError`; the same call goes on. Raises `ConfigurationError` with all sentences of the gates, one a
    line, if nothing may be deleted, and what `look` raises. `UnavailableError`, `UnconfirmedError`: a service did not
    answer; what was done is in the journal.
    """
    found = found or await look(settings, request, runtime)
    if found.refused:
        raise ConfigurationError("\n".join(f"nothing is deleted: {sentence}" for sentence in found.refused))
    settings = portable(settings)
    directory = await to_thread.run_sync(RunDirectory.open, request.directory, runtime)
    manifest = found.evidence.manifest
    journal = DeletionJournal(directory.files, manifest.run)
    if found.plan is None:
        begun = DeletionPlan(manifest.run, 0, 0, 0, request.quarantine, runtime.wall_ns())
        plan = await to_thread.run_sync(lambda: journal.begin(begun, _candidates(directory, manifest.run)))
        if refused := list(_of_plan(plan, request, found.number)):  # somebody else has begun meanwhile
            raise ConfigurationError("\n".join(f"nothing is deleted: {sentence}" for sentence in refused))
    else:
        plan = found.plan
        await to_thread.run_sync(journal.settle)
    async with AuditSource.open(settings, runtime, f"{manifest.run}-deletion") as source:
        run = _DeletionRun(plan, journal, runtime, request, progress, source)
        async with open_backends(settings, runtime) as backends:  # it also looks whether the tables are as they must be
            if engine is None:
                await run.finish(lambda numbers: run.carry_out(numbers, backends))
        if engine is not None:
            job = DeletionJob(directory.uri, manifest.run, settings.packed(), plan.quarantine, request.rate_per_s)
            await run.finish(lambda numbers: run.drive(engine, job, numbers))
    await to_thread.run_sync(journal.tidy)
    return replace(found, plan=plan, done=run.sums)


class _DeletionRun:
    """What one call does for a deletion: several batches at once, at one rate."""

    def __init__(
        self,
        plan: DeletionPlan,
        journal: DeletionJournal,
        runtime: Runtime,
        request: DeletionRequest,
        progress: Callable[[DeletionProgress], None],
        source: AuditSource,
    ) -> None:
        self._plan = plan
        self._source = source
        self._journal = journal
        self._runtime = runtime
        self._rate_per_s = request.rate_per_s
        self._progress = progress
        self._began = runtime.monotonic()
        self.sums = Sums.zero()
        self._before = 0
        self._interrupted = False

    async def finish(self, work: Callable[[Sequence[int]], Awaitable[None]]) -> None:
        """Lets `work` carry out all batches that are not done. Raises its first error, or `AuditInterruptedError`."""
        left = await to_thread.run_sync(self._look)
        self._before = sum(self.sums.numbers.values())
        if not left:
            self._report()
            return
        try:
            async with anyio.create_task_group() as beside:
                beside.start_soon(heed_signals, partial(self._interrupt, beside.cancel_scope))
                beside.start_soon(self._report_often)
                await work(left)
                beside.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            raise most_urgent(errors) from None
        finally:
            self._report()
            with anyio.CancelScope(shield=True):
                await self._report_statistics(left=True)
        if self._interrupted:
            ended = sum(self.sums.numbers.values())
            raise AuditInterruptedError(
                f"interrupted, {ended:,} of {count(self._plan.number, 'candidate')} are done: the same command goes on from there"
            )

    async def carry_out(self, numbers: Sequence[int], backends: Backends) -> None:
        """Carries out these batches in this process."""
        bucket, label = TokenBucket(self._runtime, self._rate_per_s), self._plan.quarantine

        async def carry_out_one(number: int) -> None:
            await carry_out_batch(self._journal, number, backends, self._runtime, bucket.take, label, self._note)

        await map_concurrently(carry_out_one, numbers, BATCHES_AT_ONCE)

    async def drive(self, engine: Engine, job: DeletionJob, numbers: Sequence[int]) -> None:
        """Lets the engine carry out these batches, in a thread. Its workers share the rate.

        If this is cancelled, it tells the engine to stop and waits for it. Raises `UnavailableError` with the first
        error.
        """
        workers = max(1, min(engine.slots, len(numbers)))
        errors: list[str] = []
        over: list[bool] = []

        def drain() -> None:
            outcomes = engine.run(cast(Any, replace(job, rate_per_s=job.rate_per_s / workers)), numbers)
            errors.extend(outcome.error for outcome in outcomes if outcome.error is not None)

        async with anyio.create_task_group() as group:
            group.start_soon(self._stop_when_cancelled, engine, over)
            group.start_soon(self._look_often)
            await to_thread.run_sync(drain)
            over.append(True)
            group.cancel_scope.cancel()
        await to_thread.run_sync(self._look)
        if errors and not self._interrupted:
            raise UnavailableError(f"{count(len(errors), 'batch')} of the deletion failed: {errors[0]}; the same command goes on")

    async def _stop_when_cancelled(self, engine: Engine, over: Sequence[bool]) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            if not over:
                engine.stop()

    async def _look_often(self) -> None:
        while True:
            await self._runtime.sleep(LOOK_EVERY_S)
            with suppress(TieredError):  # the look at the end meets the same error
                await to_thread.run_sync(self._look)

    def _look(self) -> list[int]:
        """Reads the journal. Returns the batches that are not done."""
        found = Sums.zero()
        left: list[int] = []
        for number in range(self._plan.batches):
            sums = self._journal.sums(number)
            found.merge(sums or Sums.zero())
            left += [number] if sums is None else []
        self.sums = found
        return left

    def _note(self, candidate: Candidate, outcome: DeleteOutcome) -> None:
        self.sums.add(outcome, candidate.size)

    async def _report_statistics(self, *, left: bool = False) -> None:
        """Reports to whoever asks for the store's statistics.

        A deletion is a run of its own there. Its unit is a candidate.
        """
        ended = sum(self.sums.numbers.values())
        await self._source.report_finished(Finished(
            names=ended,
            findings=self.sums.numbers[DeleteOutcome.DELETED],
            known=self._plan.number,
            estimated=False,
            complete=ended == self._plan.number,
        ), left=left)  # fmt: skip

    async def _report_often(self) -> None:
        while True:
            self._report()
            await self._report_statistics()
            await self._runtime.sleep(REPORT_EVERY_S)

    def _report(self) -> None:
        ended, seconds = sum(self.sums.numbers.values()), self._runtime.monotonic() - self._began
        now = ended - self._before
        self._progress(DeletionProgress(
            number=self._plan.number,
            done=ended,
            deleted=self.sums.numbers[DeleteOutcome.DELETED],
            reclaimed=self.sums.sizes[DeleteOutcome.DELETED],
            seconds=seconds,
            seconds_left=seconds * (self._plan.number - ended) / now if now else None,
        ))  # fmt: skip

    def _interrupt(self, scope: anyio.CancelScope) -> None:
        self._interrupted = True
        scope.cancel()


def _look(directory: RunDirectory, settings: Settings, request: DeletionRequest, now_ns: int, log_is_durable: bool) -> DeletionReport:
    found = evidence(directory, now_ns)
    run = found.manifest.run
    number = size = never = spared = 0
    misfiled = _misfiled(directory, run)
    for candidate in map(Candidate.of, directory.findings(run, {FindingClass.ORPHAN})):
        if candidate is None:
            never += 1
        elif candidate.name in misfiled:
            spared += 1
        else:
            number, size = number + 1, size + candidate.size
    journal = DeletionJournal(directory.files, run)
    plan, done = journal.plan(), Sums.zero()
    for _, entries in () if plan is None else journal.entries(plan):
        done.merge(sums_of(entries) or Sums.zero())
    refused = [
        *refusals(found, inputs_of(settings), request, number, now_ns, log_is_durable=log_is_durable),
        *_of_plan(plan, request, number),
    ]
    return DeletionReport(found, tuple(refused), number, size, never, plan, done, spared)


def _of_plan(plan: DeletionPlan | None, request: DeletionRequest, number: int) -> Iterator[str]:
    """Yields why a deletion that was begun cannot go on like this."""
    if plan is None:
        return
    if plan.number != number:
        yield f"the deletion was begun with {count(plan.number, 'candidate')}, and the run has {number:,} now: run the audit again"
    if plan.quarantine != request.quarantine:
        was = "without a quarantine" if plan.quarantine is None else f"with --quarantine {plan.quarantine}"
        yield f"the deletion was begun {was}, and goes on like that only: give the same again"


def _candidates(directory: RunDirectory, run: str) -> Iterator[Candidate]:
    """Yields the candidates of a run, in one order."""
    misfiled = _misfiled(directory, run)
    for candidate in map(Candidate.of, directory.findings(run, {FindingClass.ORPHAN})):
        if candidate is not None and candidate.name not in misfiled:
            yield candidate


def _misfiled(directory: RunDirectory, run: str) -> frozenset[str]:
    """Returns the blobs that damaged rows of other keys name. Such a row may be far from the names of its blob."""
    return frozenset(finding.name for finding in directory.findings(run, {FindingClass.MISFILED}))
