"""The writer of the feed as one process: it waits for its turn, writes, delivers and cleans up until it is stopped.

    stand by    while another writer is at work: its checkpoint moves at least every `feed.progress_every_s`
    open        when it was closed, or has not moved for `feed.takeover_s`
    write       transactions, beside them a delivery for each sink, the clean-up and the statistics
    fenced      another one has opened the feed: stand by again. Recovery has set a gap: open again at once
    stop        commit that no writer is at work, so that the next one need not wait

Any number of these may run at the same time; one of them works. If two ever do, the epoch fences the older one.
*Crash*: another one takes over. *Failure* of a service: logged, and everything begins again after a wait.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio

from changelog.base.errors import ConfigurationError, CorruptRecordError, TieredError, UnavailableError
from changelog.base.events import events
from changelog.base.runtime import Runtime
from changelog.base.tasks import elsewhere_is_an_error
from changelog.change import LOG_PREFIX, Unreadable
from changelog.log import LOG_END, KeyRange
from recovery.feed.sinks.sink import Sink
from recovery.feed.writer.checkpoint import NOTE, Checkpoint
from recovery.feed.writer.cleaning import Cleaning
from recovery.feed.writer.delivery import Delivery
from recovery.feed.writer.owner import owner_of
from recovery.feed.writer.positions import Position, read
from recovery.feed.writer.source import FeedSource, FeedWriterCounts
from recovery.feed.writer.writer import CALL_BUDGET_S, FeedWriter, FencedError, StepResult
from tiered.kinds.chosen import address_of
from tiered.notes.feed_off import OVER_AFTER_MS
from tiered.notes.note_fields import NewerNoteError
from tiered.open import Backends
from tiered.services.retry import retry
from tiered.settings import Settings

ONCE_LOOK_S = 0.05
ONCE_PATIENCE_S = 60.0
"""For so many seconds a run with `once` goes on to try a sink that fails, or waits for another writer."""

LAST_BUDGET_S = 10.0
"""For so many seconds the end of a writer is tried to be committed."""


@dataclass(frozen=True, slots=True)
class FeedRunResult:
    """What a run did. `frontier`: up to this time (exclusive, ms since 1970) the feed is committed; None: unknown.

    `left`: hints whose clean-up `once` has tried and not finished; they are tried again. `other`: another writer, which
    has done what this run with `once` was to do; None: this run did it.
    """

    generation: int | None
    frontier: int | None
    updates: int
    hints: int
    left: int
    other: str | None = None


class FeedRun:
    """Call `run`. `stop` ends it in good order. `once`: it ends when all that it found is published, acknowledged and
    cleaned up, or with the error of a sink. If another writer lives, that one does it, and this run waits for it, but
    no longer than `ONCE_PATIENCE_S`.

    `sinks`: by the names under which their positions are kept (`sink_name`). `on_standby` is called when another writer
    may be at work, so this one waits.
    """

    def __init__(
        self, backends: Backends, runtime: Runtime, settings: Settings, sinks: Mapping[str, Sink], *,
        new_generation: bool = False, once: bool = False, on_standby: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.counts = FeedWriterCounts()
        self.left = 0
        self._gave_up = False
        self.writer = FeedWriter(backends, runtime, settings, address_of(settings), self.counts)
        self._backends = backends
        self._log = backends.log
        self._runtime = runtime
        self._settings = settings
        self._sinks = sinks
        self._new_generation = new_generation
        self._once = once
        self._on_standby = on_standby
        self._stopping = anyio.Event()
        self._source = FeedSource(self._log, runtime, settings, self.writer.name, self.counts)
        self._last: Checkpoint | None = None
        self._other: str | None = None

    @property
    def written(self) -> FeedRunResult:
        """What it did until now."""
        generation, frontier = (None, None) if self._last is None else (self._last.generation, self._last.frontier)
        return FeedRunResult(generation, frontier, self.counts.committed, self.counts.hints, self.left, self._other)

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Ends it in good order: what is committed stays committed, and the next writer need not wait."""
        self._stopping.set()

    async def run(self) -> None:
        """Runs until `stop`. Raises `ConfigurationError` and `CorruptRecordError`: somebody must change something.

        With `once` also `UnavailableError`: a sink fails, another writer lives and is not through, or a process works
        with the feed off.
        """
        failures = 0
        while not self._stopping.is_set():
            try:
                if await self._my_turn():
                    await self._write()
                    failures = 0
            except FencedError as error:
                events.info("feed_fenced", error, writer=self.writer.name)
            except (ConfigurationError, CorruptRecordError):
                await self._end(closed=True)
                raise
            except TieredError as error:
                if self._gave_up:
                    await self._end(closed=True)
                    raise
                failures += 1
                events.warning("feed_interrupted", error, writer=self.writer.name)
                bound_s = min(self._settings.recovery.pause_max_s, 2.0 ** min(failures, 16))
                await self.rest(bound_s * self._runtime.random.uniform(0.5, 1.0))

    # --- whose turn it is ----------------------------------------------------------------------------

    async def _my_turn(self) -> bool:
        """Waits until no other writer is at work. False: it was stopped meanwhile."""
        seen: tuple[int, int] | None = None
        since, asked_ms = -math.inf, 0
        while not self._stopping.is_set():
            raw = await self._log.read_note(NOTE)
            if raw is None:
                return True
            try:
                found = Checkpoint.from_bytes(raw)
            except NewerNoteError:
                raise
            except CorruptRecordError:
                if self._new_generation:
                    return True  # a writer that works with it is fenced
                raise
            if found.closed or found.writer == self.writer.name:
                return True
            now = self._runtime.monotonic()
            if (found.epoch, found.seq) != seen:
                if seen is None:
                    events.info("feed_stands_by", "another writer may be at work", writer=found.writer)
                    self._on_standby()
                    asked_ms = await self._log.now_ms() if self._once else 0
                elif self._once:
                    await self._wait_for_other(found.writer, asked_ms)
                seen, since = (found.epoch, found.seq), now
            elif now - since >= self._settings.feed.takeover_s:
                return True
            await self.rest(min(self._settings.feed.poll_s, self._settings.feed.takeover_s / 10))
        return False

    async def _wait_for_other(self, writer: str, asked_ms: int) -> None:
        """A run with `once` waits until another writer, which lives, has done what it was to do. Then it stops.

        Returns also if the other writer has ended. `asked_ms`: when this run began, by the log's clock.
        """
        if self._new_generation:
            raise ConfigurationError(f"another writer of the feed, {writer}, is at work: stop it before you begin a new generation")
        ends_at = self._runtime.monotonic() + ONCE_PATIENCE_S
        through: tuple[int, int] | None = None
        waits_for = ""
        while not self._stopping.is_set():
            raw = await self._log.read_note(NOTE)
            if raw is None or (found := Checkpoint.from_bytes(raw)).closed:
                return
            if through is None or through[0] != found.generation:
                waits_for = await self._unpublished(found, asked_ms)
                through = None if waits_for else (found.generation, found.timestamp)
            if through is not None:
                known = await read(self._log, self._sinks)
                behind = [name for name in self._sinks if name not in known or _reached(known[name]) < through]
                if not behind:
                    self._last, self._other = found, found.writer
                    self._stopping.set()
                    return
                waits_for = f"the sink {behind[0]} does not have all of it"
            if self._runtime.monotonic() >= ends_at:
                self._gave_up = True
                raise UnavailableError(
                    f"another writer of the feed, {found.writer}, has given signs of life, and is not through after"
                    f" {ONCE_PATIENCE_S:g} s: {waits_for}. This run has published nothing"
                )
            await self.rest(min(self._settings.feed.poll_s, ONCE_PATIENCE_S / 10))

    async def _unpublished(self, found: Checkpoint, asked_ms: int) -> str:
        """Returns why not all that was there at this time is published and cleaned up, as a clause. Empty: it is."""
        if found.gap or found.scan is not None:
            return "it reads all rows"
        start: str | None = LOG_PREFIX
        while start is not None:
            page = await self._log.kept(KeyRange(start, LOG_END), self._settings.feed.batch_max)
            if any(isinstance(each, Unreadable) or each.kept_ms is None or each.kept_ms <= asked_ms for each in page.entries):
                return "finished changes wait for it, or for their clean-up"
            start = page.next_start
        return ""

    async def rest(self, seconds: float) -> None:
        """Waits, or until it is stopped."""
        with anyio.move_on_after(seconds):
            await self._stopping.wait()

    # --- at work ---------------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Opens, writes until it is stopped, and closes. Raises what ended it before."""
        await self.writer.open(new_generation=self._new_generation)
        self._new_generation = False
        owner = await retry(lambda: owner_of(self._log, self._runtime, self._settings), self._runtime, CALL_BUDGET_S)
        deliveries = [Delivery(name, sink, self.writer, self._log, self._runtime, owner) for name, sink in self._sinks.items()]
        for delivery in deliveries:
            await delivery.begin()
        cleaning = Cleaning(self.writer, self._backends, self._runtime, self._settings)
        try:
            await self._work(deliveries, cleaning)
        except anyio.get_cancelled_exc_class():
            await self._end(closed=True)
            raise
        await self._end(closed=self._stopping.is_set())

    async def _work(self, deliveries: Sequence[Delivery], cleaning: Cleaning) -> None:
        failure: TieredError | None = None
        generation = self.writer.checkpoint.generation
        async with anyio.create_task_group() as beside:
            for each in (*(delivery.run for delivery in deliveries), cleaning.run, self._source.run):
                beside.start_soon(each)
            try:
                while not self._stopping.is_set() and self.writer.checkpoint.generation == generation:
                    if await self._begins_anew(deliveries):
                        break
                    step = await self.writer.step()
                    self._last = self.writer.checkpoint
                    await self.writer.trim(min(delivery.acknowledged for delivery in deliveries))
                    if self._once and step in (StepResult.IDLE, StepResult.DONE):
                        await self._finish_once(self.writer.checkpoint.timestamp, set(self.writer.covered), deliveries, cleaning)
                        self._check_feed_is_on()
                    elif step is not StepResult.MORE:
                        await self.rest(self._settings.feed.poll_s)
            except TieredError as error:  # raised below, because the task group would wrap it
                failure = error
            beside.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _begins_anew(self, deliveries: Sequence[Delivery]) -> bool:
        """Begins a new generation if a sink shows that the changelog went back in time. Returns whether it did."""
        if not (newest := [each.went_back for each in deliveries if each.went_back is not None]):
            return False
        await self.writer.begin_after(max(newest))
        return True

    async def _finish_once(self, time: int, hints: set[str], deliveries: Sequence[Delivery], cleaning: Cleaning) -> None:
        """Waits until each sink has the file of this time, and the clean-up after each of these hints was tried. Stops.

        What comes meanwhile is left to the next run, so that a busy store does not keep this one for ever. Raises the
        error of a sink that refuses, or that fails for `ONCE_PATIENCE_S`.
        """
        def is_behind(each: Delivery) -> bool:
            return not each.has_looked or each.acknowledged < time

        while not self.stopping and (any(map(is_behind, deliveries)) or not cleaning.has_tried(hints)):
            if any(each.went_back is not None for each in deliveries):
                return
            for each in deliveries:
                if (error := each.error_after(ONCE_PATIENCE_S)) is not None:
                    self._gave_up = True
                    raise error
            await self.rest(ONCE_LOOK_S)
        await self.writer.trim(min(each.acknowledged for each in deliveries))
        self.left = len(hints & self.writer.covered.keys())
        self._stopping.set()

    def _check_feed_is_on(self) -> None:
        if self.writer.feed_off:
            self._gave_up = True
            raise UnavailableError(
                f"no progress is published, because {_names(self.writer.feed_off)} worked with the feed off less than"
                f" {OVER_AFTER_MS // 60_000} minutes ago: set feed.enabled there, and run this again"
            )

    async def _end(self, *, closed: bool) -> None:
        with anyio.move_on_after(LAST_BUDGET_S, shield=True):
            try:
                if closed:
                    await self.writer.close()
                await self._source.report(left=True)
            except TieredError as error:
                events.info("feed_not_closed", error, writer=self.writer.name)


def _names(processes: Sequence[str]) -> str:
    more = f" and {len(processes) - 1:,} more" if processes[1:] else ""
    return f"the process {processes[0]}{more}"


def _reached(position: Position) -> tuple[int, int]:
    return position.generation, -1 if position.acknowledged is None else position.acknowledged


async def run_beside(feed: FeedRun, stopped: Callable[[], Awaitable[None]], runtime: Runtime, wait_s: float) -> None:
    """Runs the writer inside another process, until `stopped` returns. It raises nothing but a cancellation.

    An error that somebody must mend is logged, and the writer begins again after `wait_s` seconds.
    """
    async def end() -> None:
        await stopped()
        feed.stop()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end)
        while not feed.stopping:
            try:
                with elsewhere_is_an_error("the writer of the feed was cancelled elsewhere"):
                    await feed.run()
            except Exception as error:  # noqa: BLE001 - it must not end what it runs beside
                events.error("feed_broken", error, exc_info=None if isinstance(error, TieredError) else error, writer=feed.writer.name)
                await feed.rest(wait_s * runtime.random.uniform(0.5, 1.0))
