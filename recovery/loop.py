"""The recovery loop: takes over the entries of processes that died, and removes what they left behind.

    for each key range, from a random one on: announce (learn the log's now) -> a page of stale entries
      each entry, as a worker is free: claim (CAS) -> heartbeat -> settle, clean up -> forget | wait out the grace
                                       lost the race: someone else has it      unreadable, or failed too often: park

An entry waits for its services most of the time. So many are worked on at once, and few are claimed at once: two
instances that meet in a range notice it before they have lost many claims.

Any number of instances run side by side, and none leads. Recovery only collects garbage: it completes no put, and it
changes no tombstone (I1 and I2 are kept by `tiered.protocol.finishing`). I5: another instance may repeat whatever it
did. I6: a bad entry is parked with its error, so it never blocks the others. *Crash*: its claims go stale, and others
claim them. *Failure* of a tier or of the log: the claim is left to go stale, and the loop backs off.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from changelog.base.errors import ConfigurationError, CorruptRecordError, LeaseLostError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.events import events, text_of
from changelog.base.observe import SILENT, Event, Observer
from changelog.base.runtime import Runtime, instance_name
from changelog.base.tasks import elsewhere_is_an_error
from changelog.change import Entry, Unreadable
from changelog.heartbeat import Heartbeat
from changelog.lease import EntryState, Lease, entry_state
from changelog.log import ChangeLog, EntryPage, KeyRange
from recovery.outages import ATTEMPT_BUDGET_S, FULL_PASS_EVERY_S, TIERS, AskedServices, Outages
from recovery.statistics.recovery_source import RecoveryCounts
from tiered.limits.rate import TokenBucket
from tiered.metadata import NS_PER_MS
from tiered.notes.feed_off import FeedOffNotifier
from tiered.protocol.finishing import Ending, finish
from tiered.services.backends import Tiers
from tiered.services.breaker import CHANGELOG, HIGH_VOLUME
from tiered.services.retry import retry
from tiered.settings import Settings

RELEASE_BUDGET_S = 5.0
EVIDENCE_S = 5.0
"""How long an entry that failed waits for the clean-up of another one, which shows that the services answer."""

FAILED_ALONE_MAX = 10_000
"""Of so many entries it is remembered how often they failed while others did not."""

RECENT_S = 1800
"""Most passes look only at changes that are younger: nearly every change ends, or its owner dies, before."""

PROBE_S = 5.0
"""How long one small question waits for its answer."""

_NOT_ANSWERED = (UnavailableError, UnconfirmedError, ConfigurationError)
"""A service is down, or it refuses: a permission is taken away, and given back."""

PRESENT_TIMES = 2
"""An instance counts as present until it was silent for so many times `pause_max_s`, the longest wait for a pass."""

CLAIMS_AT_ONCE = 8
"""How many claims wait for their answers at once. Where two instances meet, each loses about so many before it knows.
"""

CONTESTED_MIN = 4
"""Leave a range to other instances after losing more claims there than this, and than a quarter of the entries seen."""


@dataclass(slots=True)
class RecoveryReport:
    """What a pass, or a whole run, did. All are counts of entries.

    `seen`: stale entries that it found. `recovered`: cleaned up and forgotten, or settled and kept for the change feed.
    `deferred`: cleaned up, and waiting for the end of the late-upload grace. `parked`: set aside for an operator.
    `lost`: another instance was faster. `failed`: left to go stale again.
    """

    seen: int = 0
    recovered: int = 0
    deferred: int = 0
    parked: int = 0
    lost: int = 0
    failed: int = 0

    def add(self, other: RecoveryReport) -> None:
        for each in fields(RecoveryReport):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class RecoveryLoop:
    """Call `run`, which goes on until `stop`, or `run_once`.

    `passes`: how many ended since the loop was made. `passed_at`: when the last whole pass ended, by the runtime's
    monotonic clock; None: none did yet. `outages`: the services that do not answer now. `counts`: what it counts for
    the statistics.
    """

    def __init__(self, tiers: Tiers, log: ChangeLog, runtime: Runtime, settings: Settings, observer: Observer = SILENT) -> None:
        self.instance = settings.instance or instance_name(runtime, "recovery")
        self.counts = RecoveryCounts()
        self.passes = 0
        self.passed_at: float | None = None
        self.outages = Outages(runtime, self.instance, observer)
        self._tiers = tiers
        self._log = log
        self._runtime = runtime
        self._observer = observer
        self._settings = settings.recovery
        self._feed_off = None if settings.feed.enabled else FeedOffNotifier(log, runtime, self.instance)
        self._expiry_ms = round(settings.lease.expiry_s * 1000)
        self._heartbeat = Heartbeat(log, runtime, self.instance, settings.lease.heartbeat_interval_s, settings.lease.expiry_s)
        self._bucket = TokenBucket(runtime, settings.recovery.rate_per_s)
        self._ended, self._under_way = RecoveryReport(), RecoveryReport()
        self._stopping = anyio.Event()
        self._log_now_ms, self._asked_at = 0, -math.inf
        self._full_pass_at = self._counted_at = -math.inf
        self._instances = 1
        self._left_to_others = False
        self._held: list[Entry] = []
        self._began_at: dict[str, float] = {}
        self._failed_alone: dict[str, int] = {}
        self._cleaned = self._claimed = 0
        self.answered_at: float | None = None
        """When the log last answered a page of a pass (`Runtime.monotonic`). None: not yet."""
        self._first_cleaned = anyio.Event()

    @property
    def total(self) -> RecoveryReport:
        """What all passes did until now, the one that is under way among them."""
        whole = replace(self._ended)
        whole.add(self._under_way)
        return whole

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    async def stopped(self) -> None:
        """Waits for `stop`."""
        await self._stopping.wait()

    def stop(self) -> None:
        """Tells the loop to claim nothing more. `run` returns once each entry that it holds is finished or released."""
        self._stopping.set()

    async def run(self) -> None:
        """Makes passes until `stop`: the next one at once while there is work, and after a jittered wait otherwise.

        Instances share the idle passes: each waits the longer, the more of them there are. So together they ask the log
        no more often than one alone would.

        The first pass looks at the whole log, and so does one every `FULL_PASS_EVERY_S` seconds. The passes between
        look at recent changes only. After a failure the next pass looks at the whole log again, because what failed
        may be old by then. A tier or a log that refuses is treated like one that is down: the loop waits for it.
        `CorruptRecordError`: the log is damaged as a whole, and an operator must look.
        """
        failures, logged = 0, ""
        while not self._stopping.is_set():
            try:
                report = await self._run_next()
                logged = ""
                if not report.seen:
                    await self._count_instances()
                await self._note_answers(report)
            except (UnavailableError, ConfigurationError) as error:
                self.outages.suspect(CHANGELOG, error)  # a pass itself asks nothing else
                self.outages.confirm()
                if text_of(error) != logged:  # an outage is one line, and not one a minute
                    events.warning("recovery_pass_failed", error, instance=self.instance)
                logged = text_of(error)
                report = RecoveryReport(failed=1)
            if report.failed:
                self._full_pass_at = -math.inf
            failures = failures + 1 if report.failed and not report.recovered else 0
            if report.failed or not report.seen:
                await self._pause(failures)

    async def run_once(self, limit: int | None = None) -> RecoveryReport:
        """One pass over the whole log, at most `limit` entries.

        `UnavailableError`: the log is out of reach. `CorruptRecordError`: it is damaged as a whole.
        """
        self.counts.begin_full_pass()
        self._left_to_others = False
        report = await self._counted("full", self._log.ranges(), math.inf if limit is None else limit)
        self.counts.end_full_pass(complete=limit is None and not (report.failed or self._left_to_others or self.stopping))
        return report

    async def leave(self) -> None:
        """Call it at the end. Where the feed is off, it says that this loop forgets nothing more. Raises nothing."""
        self.outages.close()
        if self._feed_off is not None:
            await self._feed_off.end()

    async def survey(self) -> AsyncIterator[tuple[Entry | Unreadable, EntryState]]:
        """Yields what a pass would work on, in key order. Writes nothing. Raises as `run_once`.

        It judges by this machine's clock, because asking the log for its own means writing the presence row. So it may
        be wrong about entries that got stale just now, by as much as the two clocks differ.
        """
        now_ms = self._runtime.wall_ns() // NS_PER_MS
        for within in sorted(self._log.ranges(), key=lambda each: each.start):
            start: str | None = within.start
            while start is not None:
                page, found = await self._page(KeyRange(start, within.end), now_ms)
                for each in found:
                    yield each
                start = page.next_start

    # --- a pass ----------------------------------------------------------------------------------

    async def _run_next(self) -> RecoveryReport:
        """One pass: over the whole log if it is time for that, otherwise over recent changes."""
        began = self._runtime.monotonic()
        if began - self._full_pass_at >= FULL_PASS_EVERY_S:
            report = await self.run_once()
            if not self._left_to_others:  # otherwise the next one is full again: a recent one would not find what is old
                self._full_pass_at = began
            return report
        with self._answered_in_time():
            since_ms = await self._now_ms() - round(RECENT_S * 1000)
        return await self._counted("recent", [within.since(since_ms) for within in self._log.ranges()], math.inf)

    async def _counted(self, kind: str, ranges: Sequence[KeyRange], limit: float) -> RecoveryReport:
        self._cleaned, self._claimed, self._first_cleaned = 0, 0, anyio.Event()
        self._under_way = report = RecoveryReport()
        began, ended = self._runtime.monotonic(), False
        try:
            await self._pass(ranges, report, limit)
            ended = True
        finally:
            self._ended.add(report)
            self._under_way = RecoveryReport()
            self._observer.passed(self._runtime.monotonic() - began, full=kind == "full", ok=ended and not report.failed)
        self.passes += 1
        self.passed_at = self._runtime.monotonic()
        write = events.info if report.seen else events.debug  # an idle daemon makes a pass every few seconds
        write("pass_done", instance=self.instance, kind=kind, **asdict(report), duration_s=round(self.passed_at - began, 3))
        return report

    async def _count_instances(self) -> None:
        """Counts the instances that announced themselves lately. It asks the log once in `pause_max_s` at most."""
        now, age_max_s = self._runtime.monotonic(), self._settings.pause_max_s
        if now - self._counted_at >= age_max_s:
            with self._answered_in_time():
                seen_after_ms = await self._now_ms() - PRESENT_TIMES * age_max_s * 1000
                present = [instance for instance, seen_ms in await self._log.presences() if seen_ms >= seen_after_ms]
            self._instances, self._counted_at = max(1, len(present)), now

    async def _note_answers(self, report: RecoveryReport) -> None:
        """After a pass over the log: notes which services answer, and which do not.

        A tier that was out is asked for something small if the pass had nothing to ask it for. Otherwise nobody would
        learn that it answers again.
        """
        self.outages.confirm()
        if report.failed or self.stopping:
            return
        self.outages.answered(CHANGELOG)
        for service in self.outages.to_probe():
            try:
                with anyio.fail_after(PROBE_S):
                    if service == HIGH_VOLUME:
                        await self._tiers.high_volume.scan("", b"", 1)
                    else:
                        await self._tiers.long_term.list("", None, 1)
            except (TieredError, TimeoutError):
                continue
            self.outages.answered(service)

    async def _pass(self, ranges: Sequence[KeyRange], report: RecoveryReport, limit: float) -> None:
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

    async def _hand_out(self, ranges: Sequence[KeyRange], workers: TaskGroup, report: RecoveryReport, limit: float) -> None:
        """Starts a worker for each stale entry, as soon as one is free.

        The ranges come in their own order, but each pass begins at a random one. So instances that work equally fast
        stay apart. In a random order they would meet again and again. Where they do meet, this one leaves the range to
        the others; its next pass finds what they left. Within a page the order is random, for those that meet.
        """
        free, claims = anyio.Semaphore(self._settings.concurrency_max), anyio.Semaphore(CLAIMS_AT_ONCE)
        first = self._runtime.random.randrange(max(1, len(ranges)))
        for within in (*ranges[first:], *ranges[:first]):
            start: str | None = within.start
            lost, seen, contested = report.lost, report.seen, False
            while start is not None and not contested:
                page, found = await self._page(KeyRange(start, within.end))
                self.counts.add_page(page.entries)
                self._runtime.random.shuffle(found)
                for entry, where in found:
                    await free.acquire()
                    await claims.acquire()
                    if self.stopping or report.seen >= limit:
                        return
                    contested = report.lost - lost > max(CONTESTED_MIN, (report.seen - seen) // 4)
                    if contested:
                        self._left_to_others = True
                        free.release()
                        claims.release()
                        break
                    report.seen += 1
                    workers.start_soon(self._work_on, entry, where, report, free, claims)
                start = page.next_start

    async def _page(self, within: KeyRange, known_ms: int | None = None) -> tuple[EntryPage, list[tuple[Entry | Unreadable, EntryState]]]:
        """Reads the next page, and judges each entry. No call stays open while the entries are worked on.

        `known_ms`: the present time (Unix ms) to judge by; None: the log is asked for its own.
        """
        with self._answered_in_time():
            now_ms = await self._now_ms() if known_ms is None else known_ms
            page = await self._log.stale(within, now_ms, self._expiry_ms, self._settings.concurrency_max)
        self.answered_at = self._runtime.monotonic()
        rules = (now_ms, self._expiry_ms, self._settings.attempts_max)
        return page, [(entry, entry_state(entry, *rules)) for entry in page.entries]

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
            with anyio.fail_after(ATTEMPT_BUDGET_S):
                yield
        except (TimeoutError, UnconfirmedError) as error:
            why = f": {error}" if str(error) else f" within {ATTEMPT_BUDGET_S:g} s"
            raise UnavailableError(f"the changelog did not answer{why}") from error

    async def _bound_shutdown(self, scope: anyio.CancelScope) -> None:
        await self._stopping.wait()
        scope.deadline = anyio.current_time() + self._settings.shutdown_budget_s

    async def _release_held(self) -> None:
        """Releases the entries that are still held, after a cancellation or at the end of the shutdown budget.

        Others may then claim them at once, and need not wait until the lease expires.
        """
        held, self._held = self._held, []
        with anyio.move_on_after(RELEASE_BUDGET_S, shield=True):
            async with anyio.create_task_group() as releases:
                for entry in held:
                    releases.start_soon(self._release, entry)

    async def _release(self, entry: Entry) -> None:
        try:
            await self._log.release(entry, entry.cleanup_after_ms)
        except TieredError as error:
            events.warning("release_failed", error, id=entry.change.id, object=entry.change.object)

    async def _pause(self, failures: int) -> None:
        """Waits for about `idle_s` seconds for each instance, and longer after each failure in a row.

        It waits at most `pause_max_s` seconds, and ends at once on `stop`.
        """
        bound_s = min(self._settings.pause_max_s, self._settings.idle_s * self._instances * 2 ** min(failures, 16))
        with anyio.move_on_after(bound_s * self._runtime.random.uniform(0.5, 1.0)):
            await self._stopping.wait()

    # --- one entry -------------------------------------------------------------------------------

    async def _work_on(
        self, entry: Entry | Unreadable, found: EntryState, report: RecoveryReport, free: anyio.Semaphore, claims: anyio.Semaphore
    ) -> None:
        """Gives its place in `claims` back once the claim is answered, and the one in `free` at the end."""
        claiming = ExitStack()
        claiming.callback(claims.release)
        try:
            await self._bucket.take()
            self._began_at[entry.key] = self._runtime.monotonic()
            with elsewhere_is_an_error("the work on it was cancelled elsewhere"):
                await self._judge(entry, found, report, claiming)
        except Exception as error:  # noqa: BLE001 - it is this entry's: the others must not wait for it, nor end with it (I6)
            if not self._claimed and isinstance(error, _NOT_ANSWERED):  # only the log is asked before an entry is claimed
                self.outages.suspect(CHANGELOG, error)
            self._count(report, "failed")
            self._log_failure(entry, error)
        finally:
            self._began_at.pop(entry.key, None)
            claiming.close()
            free.release()

    async def _judge(self, entry: Entry | Unreadable, found: EntryState, report: RecoveryReport, claiming: ExitStack) -> None:
        match entry:
            case Unreadable():
                await self._park(entry, entry.error, report)
            case Entry() if found is EntryState.EXHAUSTED:
                await self._park(entry, f"claimed {entry.attempt} times, and each time its claimer died or gave up", report)
            case Entry() if found is EntryState.CLAIMABLE:
                failure: Exception | None = None
                try:
                    with self._observer.operation("recover", link=entry.change.trace or ""):
                        if (failure := await self._take_over(entry, report, claiming)) is not None:
                            raise failure
                except Exception as error:
                    if error is not failure:
                        raise

    async def _take_over(self, entry: Entry, report: RecoveryReport, claiming: ExitStack) -> Exception | None:
        """Returns why the entry was not cleaned up, if that was dealt with. None: it was, or another one has it."""
        with self._answered_in_time():
            try:
                lease = await self._heartbeat.claim(entry)
            except UnconfirmedError:  # if it is one, it was nobody's failed attempt: five of them would park the entry
                await self._log.release(entry.claimed_by(self.instance), entry.cleanup_after_ms)
                raise
            except anyio.get_cancelled_exc_class():  # nobody waits for the answer any more, and it may be a claim
                self._held.append(entry.claimed_by(self.instance))
                raise
        self._claimed += 1
        if lease is None:
            self._lost(entry, "another instance was faster, or its owner still lives", report)
            return None
        claiming.close()
        self.counts.claimed += 1
        try:
            return await self._finish(lease, entry.owner, report)
        except anyio.get_cancelled_exc_class():
            self._held.append(lease.entry)
            raise
        finally:
            self._heartbeat.drop(lease)

    async def _finish(self, lease: Lease, owner_was: str, report: RecoveryReport) -> Exception | None:
        grace_ms = round(self._settings.late_upload_grace_s * 1000)
        asked = AskedServices(self._tiers, self._log)
        try:
            ending = await retry(
                partial(finish, asked.tiers, asked.log, self._heartbeat, lease, None, grace_ms, self._feed_off),
                self._runtime, ATTEMPT_BUDGET_S, observer=self._observer,
            )
        except LeaseLostError as error:
            self._lost(lease.entry, str(error), report)
            return error
        except CorruptRecordError as error:
            await self._park(lease.entry, str(error), report)
            return error
        except _NOT_ANSWERED as error:
            alone = await self._others_are_cleaned_up()
            if not alone:
                self.outages.suspect(asked.service_of(error), error)
            await self._fail(lease, error, report, alone=alone)
            return error
        except Exception as error:  # noqa: BLE001 - logged with its traceback, and counted
            await self._fail(lease, error, report, alone=True)
            return error
        self._finished(lease.entry, owner_was, ending, report)
        return None

    async def _others_are_cleaned_up(self) -> bool:
        """Whether garbage of another entry was deleted in this pass: then the tiers answer, and this one is at fault.

        Waits a moment for it. A refusal comes at once, before the others had the time to be cleaned up.
        """
        with anyio.move_on_after(EVIDENCE_S):
            await self._first_cleaned.wait()
        return self._cleaned > 0

    async def _fail(self, lease: Lease, error: Exception, report: RecoveryReport, *, alone: bool) -> None:
        """`alone`: only this entry fails. The garbage of others was deleted in this pass, so both tiers answer.

        Otherwise there is an outage, perhaps of one tier only, and it is not counted as a failed attempt of this entry.
        """
        entry = lease.entry
        self._log_failure(entry, error)
        # The entry's own count begins anew when it is released, as it is in every pass that cleans up nothing else.
        times = max(entry.attempt, self._failed_alone.get(entry.key, 0) + 1)
        if alone and times >= self._settings.attempts_max:
            await self._park(entry, f"failed {times} times, at last with: {error}", report)
            return
        if alone:
            if len(self._failed_alone) >= FAILED_ALONE_MAX:
                self._failed_alone.clear()
            self._failed_alone[entry.key] = times
        if not alone:
            await self._log.release(entry, entry.cleanup_after_ms)
        self._count(report, "failed")

    def _finished(self, entry: Entry, owner_was: str, ending: Ending, report: RecoveryReport) -> None:
        self._failed_alone.pop(entry.key, None)
        self._count(report, "deferred" if ending is Ending.DEFERRED else "recovered", ending.name.lower())
        self.counts.finished += 1
        self.counts.add_processed(entry)
        is_cleaned = ending in (Ending.CLEANED, Ending.DEFERRED)
        if is_cleaned or ending is Ending.KEPT:  # with a change feed, all that an entry needs is its row and the log
            self._cleaned += 1
            self._first_cleaned.set()
        self.outages.answered(CHANGELOG, *(TIERS if is_cleaned else (HIGH_VOLUME,)))  # without garbage only the row was asked
        events.info("recovered", ending.value, **self._facts(entry), verdict=ending.name.lower(), owner_was=owner_was)

    async def _park(self, entry: Entry | Unreadable, error: str, report: RecoveryReport) -> None:
        if await self._log.park(entry, error):
            self._failed_alone.pop(entry.key, None)
            self._count(report, "parked")
            self.counts.add_processed(entry)
            events.error("entry_parked", error, **self._facts(entry), verdict="parked")
        else:
            self._lost(entry, "it changed before it could be parked", report)

    def _lost(self, entry: Entry | Unreadable, why: str, report: RecoveryReport) -> None:
        self._count(report, "lost")
        events.info("entry_lost", why, **self._facts(entry), verdict="lost")

    def _count(self, report: RecoveryReport, outcome: str, result: str | None = None) -> None:
        """Counts what became of one entry. `outcome`: the field of the report; `result`: another name for metrics."""
        setattr(report, outcome, getattr(report, outcome) + 1)
        self._observer.count(Event.RECOVERED, result or outcome)

    def _log_failure(self, entry: Entry | Unreadable, error: Exception) -> None:
        """Logs the error, with a traceback only if it is no error of ours."""
        unforeseen = None if isinstance(error, TieredError) else error
        events.warning("recovery_failed", error, exc_info=unforeseen, **self._facts(entry), verdict="failed")

    def _facts(self, entry: Entry | Unreadable) -> dict[str, Any]:
        """What every decision says of its entry. One that cannot be read has only its key."""
        readable, key = (entry, None) if isinstance(entry, Entry) else (None, entry.key)
        began_at = self._began_at.get(entry.key)
        return {
            "id": readable and readable.change.id,
            "object": readable and readable.change.object,
            "key": key,
            "attempt": readable and readable.attempt,
            "duration_s": None if began_at is None else round(self._runtime.monotonic() - began_at, 3),
        }
