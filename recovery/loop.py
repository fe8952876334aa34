"""The recovery loop: takes over the entries of processes that died, and removes what they left behind.

    for each key range, in random order: announce (learn the log's now) -> a page of stale entries
      each entry, as a worker is free: claim (CAS) -> heartbeat -> settle, sweep -> forget | wait out the grace
                                       lost the race: someone else has it      unreadable, or failed too often: park

Any number of instances run side by side, and none leads. Recovery only collects garbage: it finishes no put, and it
changes no tombstone (I1 and I2 are kept by `tiered.protocol.finishing`). I5: another instance may repeat whatever it
did. I6: a bad entry is parked with its error, so it never blocks the others. *Crash*: its claims go stale, and others
claim them. *Failure* of a tier or of the log: the claim is left to go stale, and the loop backs off.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import anyio
from anyio.abc import TaskGroup

from changelog.base.errors import ConfigurationError, CorruptRecordError, LeaseLostError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.observe import SILENT, Event, Observer
from changelog.base.runtime import Runtime, instance_name
from changelog.base.tasks import elsewhere_is_an_error
from changelog.change import Entry, Unreadable
from changelog.heartbeat import Heartbeat
from changelog.lease import Lease, Standing, standing
from changelog.log import ChangeLog, KeyRange, Page
from recovery.rate import TokenBucket
from tiered.protocol.backends import Tiers
from tiered.protocol.finishing import Ending, finish
from tiered.protocol.retry import persist
from tiered.settings import Settings

logger = logging.getLogger("tiered")

RELEASE_BUDGET_S = 5.0
CONTESTED_MIN = 4
"""Claims lost in one range, and at least a quarter of them: other instances work there."""


@dataclass(slots=True)
class Report:
    """What a pass, or a whole run, did. All are counts of entries.

    `seen`: stale entries that it found. `recovered`: cleaned up and forgotten. `deferred`: cleaned up, and waiting for
    the end of the late-upload grace. `parked`: set aside for an operator. `lost`: another instance was faster.
    `failed`: left to go stale again.
    """

    seen: int = 0
    recovered: int = 0
    deferred: int = 0
    parked: int = 0
    lost: int = 0
    failed: int = 0

    def add(self, other: Report) -> None:
        for each in fields(Report):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class RecoveryLoop:
    """Call `run`, which goes on until `stop`, or `run_once`. `total` counts everything since the loop was made."""

    def __init__(self, tiers: Tiers, log: ChangeLog, runtime: Runtime, settings: Settings, observer: Observer = SILENT) -> None:
        self.instance = settings.instance or instance_name(runtime, "recovery")
        self.total = Report()
        self._tiers = tiers
        self._log = log
        self._runtime = runtime
        self._observer = observer
        self._settings = settings.recovery
        self._expiry_ms = round(settings.lease.expiry_s * 1000)
        self._heartbeat = Heartbeat(log, runtime, self.instance, settings.lease.heartbeat_interval_s, settings.lease.expiry_s)
        self._bucket = TokenBucket(runtime, settings.recovery.rate_per_s)
        self._stopping = anyio.Event()
        self._log_now_ms, self._asked_at = 0, -math.inf
        self._full_pass_at = -math.inf
        self._held: list[Lease] = []
        self._swept = 0

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Tells the loop to claim nothing more. `run` returns once each entry that it holds is finished or released."""
        self._stopping.set()

    async def run(self) -> None:
        """Makes passes until `stop`: the next one at once while there is work, and after a jittered wait otherwise.

        The first pass looks at the whole log, and so does one every `full_pass_every_s` seconds. The passes between
        look at recent changes only. After a failure the next pass looks at the whole log again, because what failed
        may be old by then. A tier or a log that refuses is treated like one that is down: the loop waits for it.
        `CorruptRecordError`: the log is damaged as a whole, and an operator must look.
        """
        failures = 0
        while not self._stopping.is_set():
            try:
                report = await self._run_next()
            except (UnavailableError, ConfigurationError) as error:
                logger.warning("recovery_pass_failed instance=%s: %s", self.instance, error)
                report = Report(failed=1)
            if report.failed:
                self._full_pass_at = -math.inf
            failures = failures + 1 if report.failed and not report.recovered else 0
            if report.failed or not report.seen:
                await self._pause(failures)

    async def run_once(self, limit: int | None = None) -> Report:
        """One pass over the whole log, at most `limit` entries.

        `UnavailableError`: the log is out of reach. `CorruptRecordError`: it is damaged as a whole.
        """
        return await self._counted(self._log.ranges(), math.inf if limit is None else limit, full=True)

    async def survey(self) -> AsyncIterator[tuple[Entry | Unreadable, Standing]]:
        """Yields what a pass would work on, in key order. Writes nothing but the presence row. Raises as `run_once`."""
        for within in sorted(self._log.ranges(), key=lambda each: each.start):
            start: str | None = within.start
            while start is not None:
                page, found = await self._page(KeyRange(start, within.end))
                for each in found:
                    yield each
                start = page.next_start

    # --- a pass ----------------------------------------------------------------------------------

    async def _run_next(self) -> Report:
        """One pass: over the whole log if it is time for that, otherwise over recent changes."""
        began = self._runtime.monotonic()
        if began - self._full_pass_at >= self._settings.full_pass_every_s:
            report = await self.run_once()
            self._full_pass_at = began
            return report
        with self._answered_in_time():
            since_ms = await self._now_ms() - round(self._settings.recent_s * 1000)
        return await self._counted([within.since(since_ms) for within in self._log.ranges()], math.inf, full=False)

    async def _counted(self, ranges: Sequence[KeyRange], limit: float, *, full: bool) -> Report:
        report, self._swept = Report(), 0
        began, ended = self._runtime.monotonic(), False
        try:
            await self._pass(ranges, report, limit)
            ended = True
        finally:
            self.total.add(report)
            self._observer.passed(self._runtime.monotonic() - began, full=full, ok=ended and not report.failed)
        return report

    async def _pass(self, ranges: Sequence[KeyRange], report: Report, limit: float) -> None:
        failure: TieredError | None = None
        async with anyio.create_task_group() as watch:
            watch.start_soon(self._heartbeat.run)
            try:
                async with anyio.create_task_group() as workers:
                    watch.start_soon(self._bound_shutdown, workers.cancel_scope)
                    try:
                        await self._hand_out(ranges, workers, report, limit)
                    except TieredError as error:  # raised below: the groups would wrap it, and the workers go on
                        failure = error
            finally:
                await self._release_held()
            watch.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _hand_out(self, ranges: Sequence[KeyRange], workers: TaskGroup, report: Report, limit: float) -> None:
        """Starts a worker for each stale entry, as soon as one is free.

        Ranges and pages are taken in a random order, so that instances rarely meet. Where they do meet, this one leaves
        the range to the others; its next pass finds what they left.
        """
        free = anyio.Semaphore(self._settings.concurrency_max)
        shuffled = list(ranges)
        self._runtime.random.shuffle(shuffled)
        for within in shuffled:
            start: str | None = within.start
            lost, seen, contested = report.lost, report.seen, False
            while start is not None and not contested:
                page, found = await self._page(KeyRange(start, within.end))
                self._runtime.random.shuffle(found)
                for entry, where in found:
                    await free.acquire()
                    if self.stopping or report.seen >= limit:
                        return
                    contested = report.lost - lost > max(CONTESTED_MIN, (report.seen - seen) // 4)
                    if contested:
                        free.release()
                        break
                    report.seen += 1
                    workers.start_soon(self._work_on, entry, where, report, free)
                start = page.next_start

    async def _page(self, within: KeyRange) -> tuple[Page, list[tuple[Entry | Unreadable, Standing]]]:
        """Reads the next page, and judges each entry. No call stays open while the entries are worked on."""
        with self._answered_in_time():
            now_ms = await self._now_ms()
            page = await self._log.stale(within, now_ms, self._expiry_ms, self._settings.page_max)
        rules = (now_ms, self._expiry_ms, self._settings.attempts_max)
        return page, [(entry, standing(entry, *rules)) for entry in page.entries]

    async def _now_ms(self) -> int:
        """The log's present time (Unix ms), asked for again in a long pass.

        An old time would find too few stale entries, and the presence row, which is written by the same call, would
        not show that this instance is alive.
        """
        now = self._runtime.monotonic()
        if now - self._asked_at > self._expiry_ms / 4000:
            self._log_now_ms, self._asked_at = await self._log.announce(self.instance), now
        return self._log_now_ms

    @contextmanager
    def _answered_in_time(self) -> Iterator[None]:
        """Turns a log that does not answer in time into `UnavailableError`, so that nothing waits for ever."""
        try:
            with anyio.fail_after(self._settings.attempt_budget_s):
                yield
        except (TimeoutError, UnconfirmedError) as error:
            raise UnavailableError(f"the changelog did not answer: {error}") from error

    async def _bound_shutdown(self, scope: anyio.CancelScope) -> None:
        await self._stopping.wait()
        scope.deadline = anyio.current_time() + self._settings.shutdown_budget_s

    async def _release_held(self) -> None:
        """Releases the entries that are still held, after a cancellation or at the end of the shutdown budget.

        Others may then claim them at once, and need not wait until the lease expires.
        """
        held, self._held = self._held, []
        with anyio.move_on_after(RELEASE_BUDGET_S, shield=True):
            for lease in held:
                try:
                    await self._log.release(lease.entry, lease.entry.cleanup_after_ms)
                except TieredError as error:
                    logger.warning("release_failed key=%s: %s", lease.entry.key, error)

    async def _pause(self, failures: int) -> None:
        """Waits for about `idle_s` seconds, and longer after each failure in a row. Ends at once on `stop`."""
        bound_s = min(self._settings.backoff_max_s, self._settings.idle_s * 2 ** min(failures, 16))
        with anyio.move_on_after(bound_s * self._runtime.random.uniform(0.5, 1.0)):
            await self._stopping.wait()

    # --- one entry -------------------------------------------------------------------------------

    async def _work_on(self, entry: Entry | Unreadable, found: Standing, report: Report, free: anyio.Semaphore) -> None:
        try:
            await self._bucket.take()
            with elsewhere_is_an_error("the work on it was cancelled elsewhere"):
                await self._judge(entry, found, report)
        except Exception as error:  # noqa: BLE001 - it is this entry's: the others must not wait for it, nor end with it (I6)
            report.failed += 1
            self._observer.count(Event.RECOVERED, "failed")
            _log_failure(entry, error)
        finally:
            free.release()

    async def _judge(self, entry: Entry | Unreadable, found: Standing, report: Report) -> None:
        match entry:
            case Unreadable():
                await self._park(entry, entry.error, report)
            case Entry() if found is Standing.EXHAUSTED:
                await self._park(entry, f"claimed {entry.attempt} times, and each time its claimer died or gave up", report)
            case Entry() if found is Standing.CLAIMABLE:
                with self._observer.operation("recover", link=entry.change.trace or ""):
                    await self._take_over(entry, report)

    async def _take_over(self, entry: Entry, report: Report) -> None:
        with self._answered_in_time():  # if not, the claim, should it be one, goes stale
            try:
                lease = await self._heartbeat.claim(entry)
            except UnconfirmedError:  # if it is one, it was nobody's failed attempt: five of them would park the entry
                await self._log.release(entry.claimed_by(self.instance), entry.cleanup_after_ms)
                raise
        if lease is None:
            report.lost += 1
            return
        try:
            await self._finish(lease, entry.owner, report)
        except anyio.get_cancelled_exc_class():
            self._held.append(lease)
            raise
        finally:
            self._heartbeat.drop(lease)

    async def _finish(self, lease: Lease, owner_was: str, report: Report) -> None:
        grace_ms = round(self._settings.late_upload_grace_s * 1000)
        try:
            ending = await persist(
                lambda: finish(self._tiers, self._log, self._heartbeat, lease, None, grace_ms),
                self._runtime, self._settings.attempt_budget_s, observer=self._observer,
            )
        except LeaseLostError:
            report.lost += 1
            self._observer.count(Event.RECOVERED, "lost")
        except CorruptRecordError as error:
            await self._park(lease.entry, str(error), report)
        except (UnavailableError, UnconfirmedError, ConfigurationError) as error:  # a permission is taken away, and given back
            await self._fail(lease, error, report, alone=self._swept > 0)
        except Exception as error:  # noqa: BLE001 - logged with its traceback, and counted
            await self._fail(lease, error, report, alone=True)
        else:
            self._count(lease.entry, owner_was, ending, report)

    async def _fail(self, lease: Lease, error: Exception, report: Report, *, alone: bool) -> None:
        """`alone`: only this entry fails. The garbage of others was deleted in this pass, so both tiers answer.

        Otherwise there is an outage, perhaps of one tier only, and it is not counted as a failed attempt of this entry.
        """
        entry = lease.entry
        _log_failure(entry, error)
        if alone and entry.attempt >= self._settings.attempts_max:
            await self._park(entry, f"failed {entry.attempt} times, at last with: {error}", report)
            return
        if not alone:
            await self._log.release(entry, entry.cleanup_after_ms)
        report.failed += 1
        self._observer.count(Event.RECOVERED, "failed")

    def _count(self, entry: Entry, owner_was: str, ending: Ending, report: Report) -> None:
        if ending is Ending.DEFERRED:
            report.deferred += 1
        else:
            report.recovered += 1
        self._swept += ending is not Ending.FORGOTTEN
        self._observer.count(Event.RECOVERED, ending.name.lower())
        logger.info("recovered id=%s object=%s owner_was=%s: %s", entry.change.id, entry.change.object, owner_was, ending.value)

    async def _park(self, entry: Entry | Unreadable, error: str, report: Report) -> None:
        if await self._log.park(entry, error):
            report.parked += 1
            self._observer.count(Event.RECOVERED, "parked")
            logger.error("entry_parked key=%s: %s", entry.key, error)
        else:
            report.lost += 1


def _log_failure(entry: Entry | Unreadable, error: Exception) -> None:
    """Logs the error, with a traceback only if it is no error of ours."""
    unforeseen = None if isinstance(error, TieredError) else error
    logger.warning("recovery_failed key=%s: %s", entry.key, str(error) or type(error).__name__, exc_info=unforeseen)
