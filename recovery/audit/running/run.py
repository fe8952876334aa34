"""A whole audit: a new one, or one that was interrupted and goes on.

    plan -> manifest.json -> the engine audits parts, in a thread -> totals -> manifest.json, report.html, a note
                             ^                          `-> meanwhile: which files of findings exist? -> AuditProgress
                             `-- the partitions of the rest that long parts handed back

The directory is the only memory. A part is done if and only if its file is there, whoever wrote it. So the same loop
serves every engine. A range is one part at first. If a worker hands back its rest, the partitions of the rest are
parts, too (`recovery.audit.files.partitions`).

*Crash* (kill -9 of this process or of any worker) or interruption at any moment: the same call goes on with the parts
that are missing. It keeps the cut-off and the ranges, and may use another engine. What it finds in the directory is
checked first, and a part whose file is damaged is audited again. Two processes that run in one directory at once do the
same work twice, without harm. *Failure* of a part: it is tried once more at the end if that may help. If it fails
again, the manifest says so and the run is not complete. The next call tries it again. If several parts fail for the
same reason and none succeeds, the engine is stopped, because all others would fail as well. If workers are on other
machines, one small task tries everything first (`recovery.audit.running.canary`).
"""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from itertools import islice

import anyio
from anyio import to_thread

from changelog.base.errors import ConfigurationError, CorruptRecordError, TieredError, UnavailableError
from changelog.base.events import events
from changelog.base.runtime import Runtime, uuid7
from recovery.audit.errors import AuditInterruptedError
from recovery.audit.files.conclusion import Prefixes, conclude
from recovery.audit.files.evidence import damage, faults_of_files, parts_of
from recovery.audit.files.examine import examined
from recovery.audit.files.ledger import RunDirectory, misfit
from recovery.audit.files.partitions import Header, Partition, Tiling, tiled
from recovery.audit.finding import Summary
from recovery.audit.finding_classes import FINDINGS, IN_USE, LOST_BLOBS, OF_ROWS, ORPHANS, FindingClass
from recovery.audit.manifest import Failure, FeedAtEnd, Manifest, Prefix, contradictions
from recovery.audit.reporting import run_verdict
from recovery.audit.reporting.report import names_max, render
from recovery.audit.reporting.run_verdict import PRICE_DEFAULT
from recovery.audit.reporting.since import check_since, earlier
from recovery.audit.running.canary import Canary
from recovery.audit.running.interrupts import heed_signals
from recovery.audit.running.jobs import CANARY, AuditOptions, AuditProgress, Engine, Job, PartResult, check_there, job_of, portable
from recovery.audit.running.plan import (
    Plan,
    check_apart,
    check_choices,
    check_cutoff,
    check_feed_goes_on,
    check_grace,
    check_owner_of,
    check_references,
    check_same,
    check_unowned,
    inputs_of,
    plan_audit,
)
from recovery.audit.running.stuck import StuckAndOpen, read_stuck
from recovery.audit.sweeping.references import at_end
from recovery.last_audit import FEED, ROWS, LastAudit, note_audit
from recovery.statistics.audit_source import AuditSource, Finished, estimate
from tiered.open import open_backends
from tiered.services.retry import retry_read
from tiered.settings import Settings

ALIKE_MAX = 3
"""After so many parts failed for the same reason, and none was done meanwhile, no more are tried."""

POLL_S, POLL_AFAR_S = 0.5, 5.0
"""How often the directory is read, in seconds.

The second one is for a directory elsewhere, where each reading is a request.
"""

_VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
"""The parts of an error's sentence that may differ from range to range: names and numbers."""

NOTE_BUDGET_S = 15.0
FEED_BUDGET_S = 30.0


async def run_audit(
    settings: Settings, options: AuditOptions, engine: Engine, runtime: Runtime, progress: Callable[[AuditProgress], None]
) -> Manifest:
    """Begins a run in `options.directory`, or goes on with the run that is there.

    If that run is finished, it writes the report again.

    `progress` is called in the event loop, from time to time. SIGINT or SIGTERM ends the run soon with
    `AuditInterruptedError`; what is done stays done. The second signal ends the process at once. Outside the main
    thread there are no signals: cancel the call instead.

    Raises `ConfigurationError`, `UnavailableError` or `CorruptRecordError` if the run cannot begin, or if its directory
    cannot be read or written. A manifest that cannot be true is a `CorruptRecordError`. A part that fails raises
    nothing: the manifest names its range.
    """
    check_grace(options)
    check_there(settings)
    settings = portable(settings)
    directory = await to_thread.run_sync(RunDirectory.open, options.directory, runtime)
    check_apart(directory.files, settings)
    ownerless = await check_owner_of(settings, runtime)
    manifest = await to_thread.run_sync(directory.read_manifest)
    if options.since is not None:
        scope, begun_ns = (options.prefix or "", None) if manifest is None else (manifest.scope, manifest.started_ns)
        await to_thread.run_sync(check_since, options.since, inputs_of(settings), scope, directory.uri, begun_ns)
    planned = None
    if manifest is None:
        await to_thread.run_sync(check_unowned, directory.files)
        plan = await plan_audit(settings, options, engine.slots, runtime)
        planned = plan.blobs
        manifest = await to_thread.run_sync(directory.begin, _first_manifest(plan, options, engine, runtime))
    _check_true(manifest, directory.uri, runtime)
    check_same(manifest.inputs, inputs_of(settings), directory.uri)
    check_cutoff(manifest.cutoff, options, directory.uri)
    check_choices(manifest, options, directory.uri)
    check_references(manifest, options, directory.uri)
    if planned is None:
        await check_feed_goes_on(settings, manifest, runtime)
    noted_ns = manifest.ended_ns
    if ownerless is not None and options.unowned:
        manifest, ownerless = _unowned(manifest), None
    async with AuditSource.open(settings, runtime, manifest.run) as source:
        verify = options.verify or manifest.verify  # the same share; the rate may be another one for this call
        job = job_of(manifest.model_copy(update={"verify": verify}), directory.uri, settings, engine.slots)
        run = _AuditCall(manifest, directory, engine, job, runtime, progress, options, source, planned, ownerless)
        try:
            ended = await run.finish()
        finally:
            with anyio.CancelScope(shield=True):
                await run.report_statistics(left=True)
    await _note(settings, ended, directory.uri, runtime, ends_now=ended.ended_ns != noted_ns)
    return ended


def _check_true(manifest: Manifest, where: str, runtime: Runtime) -> None:
    """Refuses to go on with a run whose manifest cannot be true. Its ranges may leave names out, for example."""
    now_ns = runtime.wall_ns() - min(0, manifest.ahead_ns)
    for fault in contradictions(manifest.model_copy(update={"ended_ns": None}), now_ns):
        raise CorruptRecordError(f"the run in {where} cannot be trusted: {fault}; begin one in another directory")


def _unowned(manifest: Manifest) -> Manifest:
    """The manifest of a run whose caller vouches for the bucket, which says that."""
    said = "no store owns the bucket; that all of its blobs are of this store is the caller's word (--unowned)"
    return manifest.model_copy(update={"notes": tuple(dict.fromkeys([*manifest.notes, said]))})


async def _note(settings: Settings, ended: Manifest, where: str, runtime: Runtime, *, ends_now: bool) -> None:
    """Notes in the changelog what the run found, for `tiered status`. A failure is logged, and fails nothing else.

    `ends_now`: this call ended it; otherwise it only wrote its report again.

    An account that may only read the changelog can audit, too. Then there is no note.
    """
    try:
        with anyio.fail_after(NOTE_BUDGET_S):
            async with open_backends(settings, runtime, writes=False, verify=False) as backends:
                await note_audit(backends.log, last_audit_of(ended, where), ends_now=ends_now)
    except Exception as error:  # noqa: BLE001 - whatever it is, the audit is done and its report is written
        events.warning("audit_not_noted", error, run=ended.run)


def last_audit_of(ended: Manifest, where: str) -> LastAudit:
    """Returns the headline figures of a run that ended. `where`: its directory."""
    assert ended.ended_ns is not None
    live = run_verdict.total(ended, IN_USE)
    return LastAudit(
        run=ended.run, where=where, started_ns=ended.started_ns, ended_ns=ended.ended_ns, complete=ended.complete,
        blobs=ended.names, tombstones=ended.redirects,
        findings={class_.value: (each.number, each.size) for class_, each in ended.totals.items() if class_ in FINDINGS and each.number},
        ranges=len(ended.ranges), ranges_missing=len(ended.failures), doubts=len(ended.doubts), scope=ended.scope,
        verified=None if ended.verify is None else ended.verified, young=run_verdict.total(ended, [FindingClass.TOO_YOUNG]).number,
        references=ROWS if ended.references is None else FEED,
        share=None if ended.verify is None else ended.verify.share,
        live=(live.number, live.size), size=sum(each.size for of, each in ended.totals.items() if of not in (*OF_ROWS, *LOST_BLOBS)),
    )  # fmt: skip


def _first_manifest(plan: Plan, options: AuditOptions, engine: Engine, runtime: Runtime) -> Manifest:
    return Manifest(
        run=str(uuid7(runtime)), inputs=plan.inputs, log_is_durable=plan.log_is_durable,
        references=plan.references, cutoff=plan.cutoff, ranges=plan.ranges,
        engine=engine.name, versions=_versions(engine), started_ns=runtime.wall_ns(), ahead_ns=plan.ahead_ns, notes=plan.notes,
        scope=options.prefix or "", verify=options.verify,
    )  # fmt: skip


def _versions(engine: Engine) -> dict[str, str]:
    return {"tiered": version("tiered"), "python": platform.python_version(), "pyarrow": version("pyarrow"), **engine.versions}


class _AuditCall:
    """What one call does for a run. `_look` adds to `_headers`, to the parts and to the counts.

    A part's number is its place in `_pieces`. The first are the ranges; parts that were handed back come after them.
    The outcomes of the engine add to `_errors`.
    """

    def __init__(
        self, manifest: Manifest, directory: RunDirectory, engine: Engine, job: Job, runtime: Runtime,
        progress: Callable[[AuditProgress], None], options: AuditOptions, source: AuditSource, planned: int | None, ownerless: str | None,
    ) -> None:  # fmt: skip
        self._manifest = manifest
        self._ownerless = ownerless
        self._source = source
        self._planned = planned
        self._worked = False
        self._price = PRICE_DEFAULT if options.price is None else options.price
        self._since = options.since
        self._tiered = options.tiered
        self._directory = directory
        self._engine = engine
        self._job = job
        self._runtime = runtime
        self._progress = progress
        self._began = runtime.monotonic()
        self._pieces: list[Partition] = list(job.partitions)
        self._numbers = {partition.key: number for number, partition in enumerate(self._pieces)}
        self._headers: dict[str, Header] = {}  # what was read of the files, by key
        self._tiling: Tiling = tiled(manifest.ranges, {})
        self._done: set[int] = set()
        self._before = (0, 0)  # parts and names that earlier calls have done
        self._summary = Summary()
        self._faults: dict[str, str] = {}
        self._errors: dict[int, PartResult] = {}
        self._alike: dict[str, set[int]] = {}  # the parts that failed since one was done, by their reason
        self._noted: set[str] = set()
        self._broken: TieredError | None = None
        self._interrupted = False

    async def finish(self) -> Manifest:
        await to_thread.run_sync(self._look_closely)
        self._before = (len(self._done), self._summary.names)
        self._report()
        if self._engine.elsewhere and self._missing():
            await self._try_out()
        tried: Counter[int] = Counter()
        while numbers := self._due(tried):
            tried.update(numbers)
            await self._carry_out(numbers)
        if self._interrupted and self._missing():
            await to_thread.run_sync(self._leave)
            raise AuditInterruptedError(
                f"interrupted, {len(self._done)} of {len(self._pieces)} ranges are done:"
                f" the same command goes on from there (--to {self._directory.uri})"
            )
        settings = Settings.unpacked(self._job.settings)
        stuck = await read_stuck(settings, self._runtime)
        if self._manifest.references is not None and (self._worked or self._manifest.ended_ns is None):
            self._manifest = self._manifest.model_copy(update={"feed_at_end": await self._feed_now(settings)})
        return await to_thread.run_sync(lambda: self._describe(self._conclude(stuck)))

    async def _feed_now(self, settings: Settings) -> FeedAtEnd | None:
        """Returns what the feed's writer counts now. None: it cannot be read, or it is another feed by now."""
        assert self._manifest.references is not None
        with suppress(TieredError):
            async with open_backends(settings, self._runtime, writes=False, verify=False) as backends:
                return await retry_read(partial(at_end, backends.log, self._manifest.references), self._runtime, FEED_BUDGET_S)
        return None

    def _due(self, tried: Counter[int]) -> list[int]:
        """Returns the parts to audit now. `tried`: how often this call tried each.

        First those that were not tried, also those that were handed back meanwhile. Then, once more, those that failed
        and may succeed another time. None if nothing can be audited any more.
        """
        if self._broken is not None or self._interrupted:
            return []
        missing = self._missing()
        return [number for number in missing if not tried[number]] or [
            number for number in missing if tried[number] == 1 and (number not in self._errors or self._errors[number].retryable)
        ]

    # --- while it runs

    async def _carry_out(self, numbers: Sequence[int]) -> None:
        """Lets the engine audit these parts until it ends. Then it reads the directory once more."""
        self._worked = True
        self._job = replace(self._job, partitions=tuple(self._pieces))
        if self._job.canary is not None:
            await to_thread.run_sync(self._directory.forget_failures)
        self._alike.clear()
        self._noted.clear()
        await self._drive_watched(numbers)
        await to_thread.run_sync(self._look)
        self._report()

    async def _try_out(self) -> None:
        """Sends one small task to a worker. Raises the error that every range would meet."""
        canary = await to_thread.run_sync(Canary.send, self._directory, self._runtime)
        self._job = replace(self._job, canary=canary)
        await self._drive_watched([CANARY])
        failed = self._errors.pop(CANARY, None)
        try:
            if self._interrupted:
                return
            if self._broken is not None:
                raise self._broken
            if failed is not None:
                raise (UnavailableError if failed.retryable else ConfigurationError)(f"no range was begun: {failed.error}")
            await to_thread.run_sync(canary.check_back, self._directory)
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(canary.remove, self._directory)

    async def _drive_watched(self, numbers: Sequence[int]) -> None:
        async with anyio.create_task_group() as beside:
            beside.start_soon(heed_signals, self._interrupt)
            beside.start_soon(self._watch)
            await self._drive(numbers)
            beside.cancel_scope.cancel()

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
                    self._alike.clear()
                else:
                    self._errors[outcome.range] = outcome
                    if not self._engine.elsewhere:  # else they come when all is over, and notes came before
                        self._heed(outcome.range, outcome.error)
        except TieredError as error:
            self._broken = error

    def _heed(self, number: int, error: str) -> None:
        """Stops the engine if everything fails for the same reason. Sentences that differ only in names are alike."""
        alike = self._alike.setdefault(_VARYING.sub("…", error), set())
        alike.add(number)
        if len(alike) >= ALIKE_MAX and self._broken is None:
            self._broken = UnavailableError(f"{len(alike)} ranges failed for the same reason, so no more were tried: {error}")
            self._engine.stop()

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
        totals, names, complete = self._summary.totals(), self._summary.names, not self._missing()
        await self._source.report_finished(Finished(
            names=names,
            findings=sum(totals[class_].number for class_ in FINDINGS if class_ in totals),
            known=names if complete else estimate(len(self._pieces), len(self._done), names, self._planned),
            estimated=not complete,
            complete=complete,
        ), left=left)  # fmt: skip

    def _interrupt(self) -> None:
        self._interrupted = True
        self._engine.stop()

    def _look(self) -> None:
        """Reads what is new in the directory, and adds the parts that were handed back."""
        found = dict(self._directory.done(self._manifest.run, self._headers))
        self._faults.update(self._directory.faults)
        self._add(found)
        if self._job.canary is not None:  # its outcomes may come late
            for key, error in self._directory.failures(self._noted).items():
                self._noted.add(key)
                if key in self._numbers and self._numbers[key] not in self._done:
                    self._heed(self._numbers[key], error)

    def _add(self, found: dict[str, Header]) -> None:
        if not found:
            return
        self._headers |= found
        self._tiling = tiled(self._manifest.ranges, self._headers)
        for partition in self._tiling.missing:
            self._number(partition)
            if self._headers.pop(partition.key, None) is not None:  # its file is of other names: read it again, it may be replaced
                self._faults[partition.key] = misfit(partition)
        for partition, header in self._tiling.done:
            if (number := self._number(partition)) not in self._done:
                self._done.add(number)
                self._alike.clear()
                self._summary.merge(header.summary)

    def _number(self, partition: Partition) -> int:
        if partition.key not in self._numbers:
            self._numbers[partition.key] = len(self._pieces)
            self._pieces.append(partition)
        return self._numbers[partition.key]

    def _look_closely(self) -> None:
        """Reads the directory as an earlier call left it. Files that are damaged are deleted, so that their parts are
        audited again.
        """
        tiling = self._directory.tiling(self._manifest)
        damaged = damage(self._directory, self._manifest, tiling)
        for partition, header in tiling.done:
            # Look again right before: another driver may have replaced the file meanwhile.
            if partition.key in damaged and self._directory.done_part(self._manifest.run, partition) == header:
                for fault in islice(examined(self._directory.files, partition, header, self._manifest), 1):
                    self._directory.forget(partition.key)
                    self._faults[partition.key] = fault
        self._look()

    def _look_anew(self) -> None:
        """Reads the directory as it is now. Another driver may have replaced files of the same parts."""
        self._headers, self._done, self._summary = {}, set(), Summary()
        self._look()

    def _missing(self) -> list[int]:
        return [number for number in range(len(self._pieces)) if number not in self._done]

    def _report(self) -> None:
        seconds = self._runtime.monotonic() - self._began
        ranges, done = len(self._pieces), len(self._done)
        ranges_now, names_now = done - self._before[0], self._summary.names - self._before[1]
        totals = self._summary.totals()
        self._progress(AuditProgress(
            ranges=ranges,
            ranges_done=done,
            ranges_failed=sum(number not in self._done for number in list(self._errors)),
            names=self._summary.names,
            findings={class_: totals[class_].number for class_ in FINDINGS if class_ in totals},
            seconds=seconds,
            names_per_s=names_now / seconds if seconds else 0.0,
            seconds_left=seconds * (ranges - done) / ranges_now if ranges_now else None,
        ))  # fmt: skip

    # --- its end

    def _leave(self) -> None:
        """Saves the time that was spent, unless another call has ended the run in the meantime."""
        if self._there().ended_ns is None:
            self._directory.write_manifest(self._manifest.model_copy(update={"work_s": self._work_s()}))

    def _conclude(self, stuck: StuckAndOpen) -> Manifest:
        """Returns the manifest of the run as it is now, and writes it if that is news."""
        self._look_anew()
        missing = self._missing()
        if not missing:
            self._directory.tidy(self._tiling.strays)
        failures: dict[int, str] = {}
        for number in missing:
            failures.setdefault(self._pieces[number].range, self._why(number))
        names: Counter[int] = Counter()
        for partition, header in self._tiling.done:
            names[partition.range] += header.summary.names
        faults = [fault for key, fault in sorted(self._faults.items()) if self._numbers.get(key) in self._done]
        names_by_range = {number: names[number] for number in range(len(self._manifest.ranges)) if number not in failures}
        found = conclude(
            self._manifest, self._summary, names_by_range,
            tuple(Failure(range=number, error=error) for number, error in sorted(failures.items())), faults,
            [*filter(None, [self._ownerless]), *faults_of_files(self._directory, self._manifest, self._tiling)],
        ).model_copy(update={"parts": parts_of(self._tiling)})  # fmt: skip
        if not self._worked and self._manifest.ended_ns is not None and found == self._manifest:
            return found
        engines = [*filter(None, self._manifest.engine.split("; ")), *([self._engine.name] if self._worked else [])]
        found = found.model_copy(update={
            "engine": "; ".join(dict.fromkeys(engines)) or self._engine.name,
            "versions": {**self._manifest.versions, **_versions(self._engine)},
            "ended_ns": self._runtime.wall_ns(),
            "work_s": self._work_s(),
            "prefixes": self._prefixes(),
            "stuck": stuck.stuck,
            "stuck_entries": stuck.shown,
            "open_uploads": stuck.open_uploads,
        })  # fmt: skip
        self._there()
        self._directory.write_manifest(found)
        return found

    def _describe(self, manifest: Manifest) -> Manifest:
        named = [
            finding for class_ in run_verdict.shown_classes(manifest) if class_ in FINDINGS
            for finding in islice(self._directory.findings(manifest.run, {class_}), names_max(class_))
        ]  # fmt: skip
        before = earlier(self._directory, manifest, self._since)
        self._directory.write_report(render(manifest, named, self._price, self._directory.uri, before, self._tiered))
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
        if self._broken is not None:
            return str(self._broken)
        if (fault := self._faults.get(self._pieces[number].key)) is not None:
            return fault
        return f"{self._engine.name} did not carry it out, and did not say why"

    def _prefixes(self) -> tuple[Prefix, ...]:
        found = Prefixes()
        for rows in self._directory.batches(self._manifest.run, ORPHANS, ("class", "name", "object", "size")):
            for name, path, size in zip(*(rows[column].to_pylist() for column in ("name", "object", "size")), strict=True):
                found.add(name, path, size or 0)
        return found.top()

    def _work_s(self) -> float:
        return self._manifest.work_s + self._runtime.monotonic() - self._began
