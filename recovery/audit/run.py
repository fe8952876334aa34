"""A whole audit: a new one, or one that was interrupted and goes on.

    plan -> manifest.json -> the engine audits ranges, in a thread -> totals -> manifest.json, report.html -> a note
                             `-> meanwhile: which files of findings are there? -> Progress

The directory is the only memory. A range is done if and only if its file is there, whoever wrote it. So the same loop
serves every engine.

*Crash* (kill -9 of this process or of any worker) or interruption at any moment: the same call goes on with the ranges
that are missing. It keeps the cut-off and the ranges, and may use another engine. Two processes that run in one
directory at once do the same work twice, without harm. *Failure* of a range: it is tried once more at the end if that
may help. If it fails again, the manifest says so and the run is not complete. The next call tries it again.
"""

from __future__ import annotations

import os
import platform
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from itertools import islice

import anyio
from anyio import to_thread

from changelog.base.errors import ConfigurationError, TieredError
from changelog.base.events import events
from changelog.base.runtime import Runtime, uuid7
from recovery.audit.conclusion import Prefixes, conclude
from recovery.audit.errors import AuditInterruptedError
from recovery.audit.finding import Summary
from recovery.audit.ledger import RunDirectory
from recovery.audit.manifest import Failure, Inventory, Manifest, Prefix
from recovery.audit.plan import Plan, check_apart, check_cutoff, check_grace, check_inventory, check_same, inputs_of, plan_audit
from recovery.audit.report import DANGLING_MAX, render
from recovery.audit.verdicts import FINDINGS, Kind
from recovery.audit.words import PRICE_DEFAULT
from recovery.audit.work import AuditOptions, Engine, Job, Outcome, Progress, check_there, job_of, portable
from recovery.last_audit import LastAudit, write_last
from recovery.statistics.audit_source import AuditSource, Finished
from tiered.open import open_backends
from tiered.settings import Settings

POLL_S, POLL_AFAR_S = 0.5, 5.0
"""How often the directory is read, in seconds.

The second one is for a directory elsewhere, where each reading is a request.
"""

EXIT_AT_ONCE = 130
NOTE_BUDGET_S = 15.0
ORPHANS = frozenset({Kind.ORPHAN, Kind.LEGACY_ORPHAN})


async def run_audit(
    settings: Settings, options: AuditOptions, engine: Engine, runtime: Runtime, progress: Callable[[Progress], None]
) -> Manifest:
    """Begins a run in `options.directory`, or goes on with the run that is there.

    If that run is finished, it writes the report again.

    `progress` is called in the event loop, from time to time. SIGINT or SIGTERM ends the run soon with
    `AuditInterruptedError`; what is done stays done. The second signal ends the process at once. Outside the main
    thread there are no signals: cancel the call instead.

    Raises `ConfigurationError`, `UnavailableError` or `CorruptRecordError` if the run cannot begin, or if its directory
    cannot be read or written. A range that fails raises nothing: the manifest names it.
    """
    check_grace(options)
    check_there(settings)
    settings = portable(settings)
    directory = await to_thread.run_sync(RunDirectory.open, options.directory, runtime)
    check_apart(directory, settings)
    manifest = await to_thread.run_sync(directory.read_manifest)
    planned = None
    if manifest is None:
        plan = await plan_audit(settings, options, engine.slots, runtime)
        planned = plan.blobs
        manifest = await to_thread.run_sync(directory.begin, _first_manifest(plan, engine, runtime, options.inventory))
    check_same(manifest.inputs, inputs_of(settings), directory.uri)
    check_cutoff(manifest.cutoff, options, directory.uri)
    check_inventory(manifest.inventory, options, directory.uri)
    price = PRICE_DEFAULT if options.price is None else options.price
    async with AuditSource.open(settings, runtime, manifest.run) as source:
        run = _Run(manifest, directory, engine, job_of(manifest, directory.uri, settings), runtime, progress, price, source, planned)
        try:
            ended = await run.finish()
        finally:
            with anyio.CancelScope(shield=True):
                await run.report_statistics(left=True)
    await _note(settings, ended, directory.uri, runtime)
    return ended


async def _note(settings: Settings, ended: Manifest, where: str, runtime: Runtime) -> None:
    """Notes in the changelog what the run found, for `tiered status`. A failure is logged, and fails nothing else.

    An account that may only read the changelog can audit, too. Then there is no note.
    """
    try:
        with anyio.fail_after(NOTE_BUDGET_S):
            async with open_backends(settings, runtime, writes=False, verify=False) as backends:
                await write_last(backends.log, last_audit_of(ended, where))
    except Exception as error:  # noqa: BLE001 - whatever it is, the audit is done and its report is written
        events.warning("audit_not_noted", error, run=ended.run)


def last_audit_of(ended: Manifest, where: str) -> LastAudit:
    """Returns the headline figures of a run that ended. `where`: its directory."""
    assert ended.ended_ns is not None
    return LastAudit(
        run=ended.run, where=where, started_ns=ended.started_ns, ended_ns=ended.ended_ns, complete=ended.complete,
        blobs=ended.names, tombstones=ended.redirects,
        findings={kind.value: (each.number, each.size) for kind, each in ended.totals.items() if kind in FINDINGS and each.number},
        ranges=len(ended.ranges), ranges_missing=len(ended.failures), doubts=len(ended.doubts),
    )  # fmt: skip


def _first_manifest(plan: Plan, engine: Engine, runtime: Runtime, inventory: Inventory | None) -> Manifest:
    return Manifest(
        run=str(uuid7(runtime)), inputs=plan.inputs, log_is_durable=plan.log_is_durable, inventory=inventory,
        cutoff=plan.cutoff, ranges=plan.ranges,
        engine=engine.name, versions=_versions(engine), started_ns=runtime.wall_ns(), notes=plan.notes,
    )  # fmt: skip


def _versions(engine: Engine) -> dict[str, str]:
    return {"tiered": version("tiered"), "python": platform.python_version(), "pyarrow": version("pyarrow"), **engine.versions}


class _Run:
    """What one call does for a run. `_look` adds to `_done` and to the counts.

    The outcomes of the engine add to `_errors`.
    """

    def __init__(
        self, manifest: Manifest, directory: RunDirectory, engine: Engine, job: Job, runtime: Runtime,
        progress: Callable[[Progress], None], price: float, source: AuditSource, planned: int | None,
    ) -> None:  # fmt: skip
        self._manifest = manifest
        self._source = source
        self._planned = planned
        self._worked = False
        self._price = price
        self._directory = directory
        self._engine = engine
        self._job = job
        self._runtime = runtime
        self._progress = progress
        self._began = runtime.monotonic()
        self._done: dict[int, int] = {}  # range -> number of names
        self._before = (0, 0)  # ranges and names that earlier calls have done
        self._summary = Summary()
        self._faults: dict[int, str] = {}
        self._errors: dict[int, Outcome] = {}
        self._broken: str | None = None
        self._interrupted = False

    async def finish(self) -> Manifest:
        await to_thread.run_sync(self._look)
        self._before = (len(self._done), self._summary.names)
        self._report()
        if not self._missing() and self._manifest.ended_ns is not None:
            return await to_thread.run_sync(self._describe, self._manifest)
        await self._carry_out(self._missing())
        again = [number for number in self._missing() if number not in self._errors or self._errors[number].retryable]
        if again and self._broken is None and not self._interrupted:
            await self._carry_out(again)
        if self._interrupted and self._missing():
            await to_thread.run_sync(self._leave)
            raise AuditInterruptedError(
                f"interrupted, {len(self._done)} of {len(self._manifest.ranges)} ranges are done:"
                f" the same command goes on from there (--to {self._directory.uri})"
            )
        return await to_thread.run_sync(lambda: self._describe(self._conclude()))

    # --- while it runs

    async def _carry_out(self, numbers: Sequence[int]) -> None:
        """Lets the engine audit these ranges until it ends. Then it reads the directory once more."""
        self._worked = True
        async with anyio.create_task_group() as beside:
            beside.start_soon(self._heed_signals)
            beside.start_soon(self._watch)
            await self._drive(numbers)
            beside.cancel_scope.cancel()
        await to_thread.run_sync(self._look)
        self._report()

    async def _drive(self, numbers: Sequence[int]) -> None:
        """Runs the engine in a thread.

        If this is cancelled, it tells the engine to stop and waits for it: no work goes on after this call.
        """
        async with anyio.create_task_group() as group:

            async def stop_when_cancelled() -> None:
                try:
                    await anyio.sleep_forever()
                finally:
                    if not over:
                        self._engine.stop()

            over: list[bool] = []
            group.start_soon(stop_when_cancelled)
            await to_thread.run_sync(self._drain, numbers)
            over.append(True)
            group.cancel_scope.cancel()

    def _drain(self, numbers: Sequence[int]) -> None:
        try:
            for outcome in self._engine.run(self._job, numbers):
                if outcome.error is None:
                    self._errors.pop(outcome.range, None)
                else:
                    self._errors[outcome.range] = outcome
        except TieredError as error:
            self._broken = str(error)

    async def _watch(self) -> None:
        while True:
            await self._runtime.sleep(POLL_S if self._directory.files.local else POLL_AFAR_S)
            with suppress(TieredError):  # the reading at the end reports the error
                await to_thread.run_sync(self._look)
            self._report()
            await self.report_statistics()

    async def report_statistics(self, *, left: bool = False) -> None:
        """Reports how far the run is to whoever asks for the store's statistics. `left`: this call for the run ends.

        A run that was finished before is no news, and reports nothing.
        """
        if not self._worked:
            return
        totals = self._summary.totals()
        await self._source.report(Finished(
            ranges=len(self._manifest.ranges),
            ranges_done=len(self._done),
            names=self._summary.names,
            findings=sum(totals[kind].number for kind in FINDINGS if kind in totals),
            planned=self._planned,
            complete=not self._missing(),
        ), left=left)  # fmt: skip

    async def _heed_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                if self._interrupted:
                    os._exit(EXIT_AT_ONCE)
                self._interrupted = True
                self._engine.stop()

    def _look(self) -> None:
        """Reads what is new in the directory."""
        for number, summary in self._directory.done(self._manifest.run, self._done):
            self._done[number] = summary.names
            self._summary.merge(summary)
        self._faults.update(self._directory.faults)

    def _missing(self) -> list[int]:
        return [number for number in range(len(self._manifest.ranges)) if number not in self._done]

    def _report(self) -> None:
        seconds = self._runtime.monotonic() - self._began
        ranges, done = len(self._manifest.ranges), len(self._done)
        ranges_now, names_now = done - self._before[0], self._summary.names - self._before[1]
        totals = self._summary.totals()
        self._progress(Progress(
            ranges=ranges,
            ranges_done=done,
            ranges_failed=sum(number not in self._done for number in list(self._errors)),
            names=self._summary.names,
            findings={kind: totals[kind].number for kind in Kind if kind in FINDINGS and kind in totals},
            seconds=seconds,
            names_per_s=names_now / seconds if seconds else 0.0,
            seconds_left=seconds * (ranges - done) / ranges_now if ranges_now else None,
        ))  # fmt: skip

    # --- its end

    def _leave(self) -> None:
        """Saves the time that was spent, unless another call has ended the run in the meantime."""
        if self._there().ended_ns is None:
            self._directory.write_manifest(self._manifest.model_copy(update={"work_s": self._work_s()}))

    def _conclude(self) -> Manifest:
        missing = self._missing()
        failures = tuple(Failure(range=number, error=self._why(number)) for number in missing)
        faults = [fault for number, fault in sorted(self._faults.items()) if number in self._done]
        found = conclude(self._manifest, self._summary, self._done, failures, faults)
        engines = [*filter(None, self._manifest.engine.split("; ")), self._engine.name]
        found = found.model_copy(update={
            "engine": "; ".join(dict.fromkeys(engines)),
            "versions": {**self._manifest.versions, **_versions(self._engine)},
            "ended_ns": self._runtime.wall_ns(),
            "work_s": self._work_s(),
            "prefixes": self._prefixes(),
        })  # fmt: skip
        self._there()
        if not missing:
            self._directory.tidy()
        self._directory.write_manifest(found)
        return found

    def _describe(self, manifest: Manifest) -> Manifest:
        dangling = islice(self._directory.findings(manifest.run, {Kind.DANGLING}), DANGLING_MAX)
        self._directory.write_report(render(manifest, list(dangling), self._price, self._directory.uri))
        return manifest

    def _there(self) -> Manifest:
        """Returns the manifest as it is now.

        In an object store, two processes may have begun runs at once, and then one of them must end.
        """
        found = self._directory.read_manifest()
        if found is None or found.run != self._manifest.run:
            raise ConfigurationError(f"{self._directory.uri} holds another run than this one began: run it again, alone")
        return found

    def _why(self, number: int) -> str:
        if number in self._errors and self._errors[number].error is not None:
            return str(self._errors[number].error)
        return self._broken or f"{self._engine.name} did not carry it out, and did not say why"

    def _prefixes(self) -> tuple[Prefix, ...]:
        found = Prefixes()
        for rows in self._directory.batches(self._manifest.run, ORPHANS, ("class", "name", "object", "size")):
            for name, path, size in zip(*(rows[column].to_pylist() for column in ("name", "object", "size")), strict=True):
                found.add(name, path, size or 0)
        return found.top()

    def _work_s(self) -> float:
        return self._manifest.work_s + self._runtime.monotonic() - self._began
