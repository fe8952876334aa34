"""The recovery daemon: the recovery loop, what runs beside it, and the handling of signals.

    SIGTERM, SIGINT      stop claiming; finish what is held within `recovery.shutdown_budget_s`; release the rest
    the second signal    exit at once; this is safe, because the claims go stale and another daemon takes them over
    SIGHUP               nothing: no settings are read again, and the end of a terminal ends no daemon

If SIGINT or SIGHUP was ignored when the daemon began (nohup, a shell's background job), it stays ignored.

*Crash*: at any moment, a crash is as safe as the second signal. Any number of daemons may run at the same time. Two
that were given one name (`instance`) do no harm: claims are told apart by the number of the attempt. They look like one
daemon wherever daemons are listed.
"""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import anyio
from anyio.abc import TaskStatus

from changelog.base.errors import TieredError
from changelog.base.events import events, text_of
from changelog.base.runtime import Runtime
from changelog.base.tasks import elsewhere_is_an_error
from changelog.log import ChangeLog, GarbageCollection, LeftGarbageError
from recovery.dangling import forget_mended
from recovery.entries import count_stuck, stuck_sentence
from recovery.feed.writer.overdue import DecidedEntries, release_overdue
from recovery.loop import RELEASE_BUDGET_S, RecoveryLoop, RecoveryReport
from recovery.outages import FULL_PASS_EVERY_S, lately_s
from recovery.spot_check import SpotCheck
from recovery.statistics.persisted import ServiceOut
from recovery.statistics.recovery_source import RecoverySource
from recovery.stray_uploads import StrayUploads
from recovery.typed_commands import TIERED, with_typed
from tiered.kinds.chosen import address_of
from tiered.open import Backends
from tiered.settings import NO_CHANGELOG, Settings

COLLECT_PAGE = 1000
EXIT_AT_ONCE = 130

RESTS = 4
"""The pause after a collection lasts at least this many times as long as the collection.

So a million blobs do not keep a disk busy all the time.
"""

OFF_EVERY_S = 3600.0
"""How often it looks for entries that are still kept for a change feed, where none is configured, in seconds."""

ALIVE_EVERY_S = 300.0
"""How often a recovery says that it is alive: seldom enough for a log, and often enough for an alert on its absence."""

OUT_CHARACTERS_MAX = 400
"""So much of what a service said is kept with the statistics."""

LAST_COUNT_S = 5.0
"""How long the end of a recovery waits for the number of stuck entries."""

Beside = Callable[[RecoveryLoop], Coroutine[Any, Any, None]]
"""Runs beside the loop until it is cancelled. It raises nothing, because that would end recovery."""


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """What a recovery did from its start to its end. `collected`: things deleted by the collection of embedded mode.

    `stuck`: how many entries are stuck at the end; None: the log did not say.
    """

    report: RecoveryReport
    collected: int
    stuck: int | None


async def run_daemon(
    backends: Backends, runtime: Runtime, settings: Settings, beside_loop: Beside | None = None, tiered: str = TIERED
) -> RecoveryResult:
    """Runs until a signal stops the loop, then returns what was done.

    `beside_loop`: what else to run as long as the loop runs, such as the HTTP server (`recovery.http.server`).
    `tiered`: how commands begin that mean this store.

    It must run in the main thread, because only the main thread receives signals. It raises the `TieredError` that
    ended the loop.
    """
    recovery = Recovery(backends, runtime, settings, tiered)
    failure: TieredError | None = None
    async with anyio.create_task_group() as beside:
        await beside.start(_heed_signals, recovery.loop)
        beside.start_soon(recovery.run_beside)
        if beside_loop is not None:
            beside.start_soon(beside_loop, recovery.loop)
        recovery.say_start()
        try:
            await recovery.run_loop()
        except TieredError as error:  # raised below, because the task group would wrap it in an exception group
            failure = error
        beside.cancel_scope.cancel()
    await recovery.leave()
    if failure is not None:
        raise failure
    return await recovery.say_end()


class Recovery:
    """A recovery loop and what runs beside it, in a daemon or inside a service. It says what it will do and did.

    Run `run_loop` and `run_beside` in two tasks. `loop.stop()` ends the first; cancel the second. `instance`: the
    loop's name in the changelog; by default that of the settings, or one of its own. `tiered`: how commands begin.
    """

    def __init__(self, backends: Backends, runtime: Runtime, settings: Settings, tiered: str = TIERED) -> None:
        self.loop = RecoveryLoop(backends.tiers, backends.log, runtime, settings, backends.observer)
        self._source = source_of(self.loop, backends.log, runtime, settings)
        self.collected = 0
        self.said_end = False
        self._backends = backends
        self._runtime = runtime
        self._settings = settings
        self._left: dict[str, str] = {}
        self._tiered = tiered

    async def run_loop(self) -> None:
        """Runs the loop until `loop.stop()`. Raises the `TieredError` that ended it: the log is damaged as a whole.

        After `stop` it ends within `recovery.shutdown_budget_s` and a few seconds, also if the log does not answer.
        """
        with anyio.CancelScope() as bounded:
            async with anyio.create_task_group() as watch:
                watch.start_soon(self._bound_end, bounded)
                failure: TieredError | None = None
                try:
                    await self.loop.run()
                except TieredError as error:  # raised below, because the task group would wrap it
                    failure = error
                watch.cancel_scope.cancel()
            if failure is not None:
                events.error("recovery_broken", failure, instance=self.loop.instance)
                raise failure

    async def run_beside(self) -> None:
        """Collects, counts what is stuck, cleans up what the change feed takes up too late, looks for lost blobs,
        also at what readers found lost, and says now and then that the loop is alive. Ends only when cancelled.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._collect_for_ever)
            tasks.start_soon(self._source.run)
            tasks.start_soon(self._warn_of_stuck)
            tasks.start_soon(self._release_overdue_for_ever)
            tasks.start_soon(self._look_for_losses_for_ever)
            tasks.start_soon(self._say_alive)

    def say_start(self) -> None:
        """Logs what this recovery will do, with the settings that matter."""
        lease, recovery = self._settings.lease, self._settings.recovery
        events.info(
            "recovery_started",
            f"it takes over changes that nobody renewed for {lease.expiry_s:g} s, looks at recent changes every"
            f" {recovery.idle_s:g} s and at all of them every {FULL_PASS_EVERY_S:g} s",
            instance=self.loop.instance, store=_store_of(self._settings), changelog=self._settings.changelog or NO_CHANGELOG,
            version=_version(), python=platform.python_version(), expiry_s=lease.expiry_s, attempts_max=recovery.attempts_max,
            concurrency_max=recovery.concurrency_max, rate_per_s=recovery.rate_per_s,
            late_upload_grace_s=recovery.late_upload_grace_s, collect_every_s=recovery.pause_max_s,
        )

    async def leave(self) -> None:
        """Reports the statistics for the last time, and that this recovery has ended."""
        await self.loop.leave()
        await self._source.report(left=True)

    async def say_end(self) -> RecoveryResult:
        """Counts what is stuck, logs what this recovery did, and returns it."""
        stuck: int | None = None
        with anyio.move_on_after(LAST_COUNT_S):
            try:
                stuck = await count_stuck(self._backends.log)
            except TieredError as error:
                events.warning("entries_not_counted", error, instance=self.loop.instance)
        return self.say_stopped(stuck)

    def say_stopped(self, stuck: int | None) -> RecoveryResult:
        """Logs what this recovery did, and returns it. `stuck`: how many entries are stuck; None: nobody knows."""
        self.said_end = True
        done = RecoveryResult(self.loop.total, self.collected, stuck)
        events.info(
            "recovery_stopped", instance=self.loop.instance, passes=self.loop.passes, **asdict(done.report),
            collected=done.collected, stuck=done.stuck,
        )
        return done

    async def _bound_end(self, scope: anyio.CancelScope) -> None:
        """The loop keeps to its budget itself, except while it waits for the log between two passes."""
        await self.loop.stopped()
        scope.deadline = anyio.current_time() + self._settings.recovery.shutdown_budget_s + RELEASE_BUDGET_S

    async def _collect_for_ever(self) -> None:
        every_s = self._settings.recovery.pause_max_s
        while True:
            began = self._runtime.monotonic()
            if removed := (await collect(self._backends, self._left)).removed:
                self.collected += removed
                events.info(
                    "collected", count=removed, duration_s=round(self._runtime.monotonic() - began, 3), instance=self.loop.instance
                )
            rest_s = RESTS * (self._runtime.monotonic() - began)
            await self._runtime.sleep(max(rest_s, every_s * self._runtime.random.uniform(0.5, 1.0)))

    async def _warn_of_stuck(self) -> None:
        """Logs how many entries are stuck: at the start, and whenever the number has changed.

        The loop logs each entry when it parks it, but an operator who starts to watch later would not see that line.
        """
        known, failed = 0, ""
        while True:
            try:
                if (count := await count_stuck(self._backends.log)) != known:
                    sentence = with_typed(stuck_sentence(count), self._tiered) if count else "none any more"
                    events.warning("entries_stuck", sentence, count=count)
                    known = count
                failed = ""
            except TieredError as error:
                if text_of(error) != failed:
                    events.warning("entries_not_counted", error, instance=self.loop.instance)
                failed = text_of(error)
            await self._runtime.sleep(FULL_PASS_EVERY_S * self._runtime.random.uniform(0.5, 1.0))

    async def _release_overdue_for_ever(self) -> None:
        """Cleans up entries that the change feed takes up too late. Where no feed is configured, it looks seldom."""
        feed = self._settings.feed
        every_s = min(FULL_PASS_EVERY_S, feed.hold_max_s) if feed.enabled else OFF_EVERY_S
        covered: DecidedEntries = {}
        while True:
            await self._runtime.sleep(every_s * self._runtime.random.uniform(0.5, 1.0))
            await release_overdue_logged(self._backends, self._runtime, self._settings, covered)

    async def _look_for_losses_for_ever(self) -> None:
        """Looks whether some blobs are still there, and takes out of the note of what is lost what is not any more."""
        check = SpotCheck(self._backends.tiers, self._backends.log, self._runtime, self._backends.observer)
        strays = StrayUploads(self._backends.tiers, self._backends.log)
        while True:
            await check.look()
            await strays.end()
            await self._runtime.sleep(FULL_PASS_EVERY_S * self._runtime.random.uniform(0.5, 1.0))
            await forget_mended(self._backends.tiers, self._backends.log, self._runtime)

    async def _say_alive(self) -> None:
        """Logs at a fixed rate that the loop is alive. An idle loop would log nothing else."""
        while True:
            await self._runtime.sleep(ALIVE_EVERY_S)
            passed_at = self.loop.passed_at
            events.info(
                "recovery_alive",
                f"these do not answer: {', '.join(sorted(out))}" if (out := self.loop.outages.present) else None,
                instance=self.loop.instance, passes=self.loop.passes,
                last_pass_s_ago=None if passed_at is None else round(self._runtime.monotonic() - passed_at, 1),
                **asdict(self.loop.total), collected=self.collected,
            )


def source_of(loop: RecoveryLoop, log: ChangeLog, runtime: Runtime, settings: Settings) -> RecoverySource:
    """What reports the statistics of the loop."""

    def out() -> tuple[ServiceOut, ...]:
        met = loop.outages.lately(lately_s(settings.recovery))
        return tuple(
            ServiceOut(service, each.is_refusal, text_of(each.error)[:OUT_CHARACTERS_MAX]) for service, each in sorted(met.items())
        )

    return RecoverySource(log, runtime, settings, loop.instance, loop.counts, out)


async def release_overdue_logged(backends: Backends, runtime: Runtime, settings: Settings, covered: DecidedEntries | None = None) -> int:
    """Cleans up entries that the change feed takes up too late, as `release_overdue`. An error is logged, not raised.

    Returns how many entries it has forgotten; 0 after an error.
    """
    try:
        with elsewhere_is_an_error("it was cancelled elsewhere"):
            return await release_overdue(backends, runtime, settings, covered)
    except TieredError as error:
        events.warning("overdue_not_released", error)
    except Exception as error:  # noqa: BLE001 - recovery goes on
        events.error("overdue_not_released", error, exc_info=error)
    return 0


async def recover_once(loop: RecoveryLoop, source: RecoverySource, limit: int | None) -> RecoveryReport:
    """Makes one pass, with its statistics beside it. Raises as `RecoveryLoop.run_once`."""
    report, failure = RecoveryReport(), None
    async with anyio.create_task_group() as beside:
        beside.start_soon(source.report)
        try:
            report = await loop.run_once(limit)
        except TieredError as error:  # raised below, because the task group would wrap it in an exception group
            failure = error
        beside.cancel_scope.cancel()
    await loop.leave()
    await source.report(left=True)
    if failure is not None:
        raise failure
    return report


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of one collection. `removed`: how many things it deleted.

    `failures`: one error for each part that is not finished.
    """

    removed: int
    failures: Sequence[TieredError]


async def collect(backends: Backends, told: dict[str, str] | None = None) -> Collected:
    """Deletes once what nobody else deletes in embedded mode. It may be cancelled at any time.

    It returns how much it deleted, and the errors. A part that fails is logged, and the other parts go on. `told`: what
    each part failed with last. It is brought up to date, and the same failure is not logged again.

    Files go first. Deleting a file needs no space and frees some, and deleting rows may need that space. A reader loses
    nothing by any order: a blob is kept for an hour after its row's deadline.
    """
    removed = 0
    failures: list[TieredError] = []
    told = {} if told is None else told
    for name, part in (("blobs", backends.tiers.long_term), ("rows", backends.tiers.high_volume), ("log", backends.log)):
        if not isinstance(part, GarbageCollection):
            continue
        try:
            page = COLLECT_PAGE
            while page == COLLECT_PAGE:
                page = await part.collect(COLLECT_PAGE)
                removed += page
            told.pop(name, None)
        except TieredError as error:
            removed += error.removed if isinstance(error, LeftGarbageError) else 0
            failures.append(error)
            if told.get(name) != text_of(error):
                events.warning("collection_failed", error)
            told[name] = text_of(error)
    return Collected(removed, failures)


async def _heed_signals(loop: RecoveryLoop, *, task_status: TaskStatus[None]) -> None:
    # One that is ignored already stays so.
    heeded = [number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    with anyio.open_signal_receiver(signal.SIGTERM, *heeded) as signals:
        task_status.started()
        async for number in signals:
            name = signal.Signals(number).name
            if number == signal.SIGHUP:
                events.info("signal_ignored", "no settings are read again: restart the daemon for that", signal=name)
                continue
            if loop.stopping:
                os._exit(EXIT_AT_ONCE)
            events.info("recovery_stopping", "once more to leave at once", signal=name)
            loop.stop()


def _store_of(settings: Settings) -> str:
    return str(settings.directory) if settings.embedded else address_of(settings)


def _version() -> str:
    try:
        return version("tiered")
    except PackageNotFoundError:  # it runs from a checkout that nobody installed
        return "unknown"
