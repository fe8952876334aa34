"""Looks at the store every few seconds, so that a request never does: many readers cost no more than one.

The last good look is kept, with its age and with the reason why there is no newer one. Beside it, each service is asked
one cheap question, because an idle recovery loop would not notice that a tier is gone.

*Failure* of a look or of a question, whatever it is, ends nothing: it is what the page shows then.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

from changelog.base.errors import CorruptRecordError, TieredError, UnavailableError
from changelog.base.events import Once, events, text_of
from changelog.base.runtime import Runtime
from changelog.base.tasks import elsewhere_is_an_error
from changelog.change import ChangeId
from changelog.log import ChangeLog
from recovery.http.history import COARSE_S, HistoryPoint, StatusHistory, exchange
from recovery.http.own import RecentCalls
from recovery.outages import is_refusal
from recovery.status.known import SERVICES, Status
from tiered.open import Backends
from tiered.services.breaker import CHANGELOG, HIGH_VOLUME, LONG_TERM

EVERY_S = 5.0
LOOK_BUDGET_S = 60.0
"""More than `recovery.status.look.gather` takes, which has budgets of its own."""

ASK_BUDGET_S = 5.0
RESTS = 4
"""The pause after a look is at least this many times as long as the look; if something was away, once."""

STALE_AFTER_S = 60.0
"""Figures that are older are not taken for the present ones."""

NOWHERE = "~reach"
"""No object, row or blob is called this: it is no storage path."""


@dataclass(slots=True)
class Reach:
    """Whether a service answers. None: not asked yet. `since`: `Runtime.monotonic` of the first answer of this kind.

    `over`: when the last outage that is over began and ended, by the same clock.
    """

    answers: bool | None = None
    error: str | None = None
    since: float | None = None
    refuses: bool = False
    """It answers, and refuses what it is asked."""
    by_recovery: bool = False
    """Recovery met that, and not a question of the sampler."""
    over: tuple[float, float] | None = None

    def heard(self, error: str | None, now: float, *, refuses: bool = False) -> None:
        if self.answers is False and self.since is not None and error is None:
            self.over = self.since, now
        if self.answers is not (error is None):
            self.answers, self.since = error is None, now
        self.error, self.refuses = error, refuses


class Sampler:
    """`look` returns the status. `questions`: by service, a call that it answers. `calls`: what this process asked of
    the services. `odd_files`: how many files the last collection of this process met that it could not deal with.
    `log`: keeps the history; None: nothing does. `hear`: is told of each question whether the service answered.

    `status`: the last one in which the changelog answered. `error`: why there is no newer one.
    """

    def __init__(
        self, look: Callable[[], Awaitable[Status]], questions: Mapping[str, Callable[[], Awaitable[object]]], runtime: Runtime,
        calls: RecentCalls | None = None, odd_files: Callable[[], int | None] = lambda: None, log: ChangeLog | None = None,
        hear: Callable[[str, bool], None] = lambda name, answers: None,
    ) -> None:  # fmt: skip
        self.status: Status | None = None
        self.taken_at: float | None = None
        self.failing_since: float | None = None
        self.error: str | None = None
        self.history = StatusHistory()
        self.calls = calls or RecentCalls(dict, runtime)
        self.services = {name: Reach() for name in questions}
        self._look = look
        self._questions = questions
        self._runtime = runtime
        self.made_at = runtime.monotonic()
        self.odd_files = odd_files
        self._log = log
        self._hear = hear
        self._exchanged_at = -math.inf
        self._told = Once()

    async def run(self) -> None:
        """Looks for ever, and asks the services beside that: a look waits up to a minute for what is away."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ask_for_ever)
            while True:
                began = self._runtime.monotonic()
                await self._take()
                await self._exchange()
                took_s = self._runtime.monotonic() - began
                # A look at services that are away waits out its budget and costs them little.
                waited = self.error is not None or (self.status is not None and bool(self.status.away))
                await self._runtime.sleep(max(EVERY_S, took_s * (1 if waited else RESTS)))

    async def sample(self) -> None:
        """Looks once, and asks every service."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._take)
            tasks.start_soon(self._ask)
        await self._exchange()

    async def _ask_for_ever(self) -> None:
        while True:
            await self._ask()
            await self._runtime.sleep(EVERY_S)

    async def _ask(self) -> None:
        """Asks every service, each for `ASK_BUDGET_S` at most."""
        self.calls.take()
        async with anyio.create_task_group() as tasks:
            for name in self._questions:
                tasks.start_soon(self._sample, name)

    @property
    def age_s(self) -> float:
        """How old the figures are, in seconds. There are none yet: since when they are awaited."""
        return self._runtime.monotonic() - (self.made_at if self.taken_at is None else self.taken_at)

    @property
    def stale(self) -> bool:
        """Whether there are no figures, or only old ones."""
        return self.taken_at is None or self.age_s > STALE_AFTER_S

    async def _take(self) -> None:
        error, status = await _tried(self._look, LOOK_BUDGET_S)
        now = self._runtime.monotonic()
        if error is None and (status.answers or not status.durable):
            self.status, self.taken_at, self.failing_since, self.error = status, now, None, None
            self.history.add(_point(now, status))
            return
        if error is not None and self.failing_since is None:
            _log_unforeseen(error)
        sentence = "; ".join(status.problems) or "the changelog does not answer" if error is None else text_of(error)
        self.error = sentence or type(error).__name__
        self.failing_since = now if self.failing_since is None else self.failing_since
        self.history.add(HistoryPoint(now))

    async def _exchange(self) -> None:
        """Keeps the history in the changelog, and learns what earlier processes kept, every `COARSE_S` seconds."""
        now, status = self._runtime.monotonic(), self.status
        if self._log is None or not self._log.durable or status is None or self.error is not None or now - self._exchanged_at < COARSE_S:
            return
        self._exchanged_at = now
        unix_s = status.at_ms / 1000
        own = self.history.past(unix_s, now)
        error, past = await _tried(partial(exchange, self._log, own, unix_s), ASK_BUDGET_S)
        if error is None:
            self.history.recall(past, unix_s, now)
        elif self._told.is_new(text_of(error)):
            _log_unforeseen(error)

    async def _sample(self, name: str) -> None:
        error, _ = await _tried(self._questions[name], ASK_BUDGET_S)
        answered = error is None or isinstance(error, CorruptRecordError)
        if error is not None and self.services[name].answers is not False:
            _log_unforeseen(error)
        refuses = error is not None and is_refusal(error)
        failure = None if answered else text_of(error) or type(error).__name__
        self.services[name].heard(failure, self._runtime.monotonic(), refuses=refuses)
        self._hear(name, answered or refuses)


def questions_to(backends: Backends) -> Mapping[str, Callable[[], Awaitable[object]]]:
    """One cheap read of each service."""
    tiers, log = backends.tiers, backends.log
    return {
        SERVICES[CHANGELOG]: lambda: log.read(ChangeId.first(0)),
        SERVICES[HIGH_VOLUME]: lambda: tiers.high_volume.read(NOWHERE),
        SERVICES[LONG_TERM]: lambda: tiers.long_term.head(NOWHERE),
    }


async def _tried(call: Callable[[], Awaitable[Any]], budget_s: float) -> tuple[Exception | None, Any]:
    try:
        with anyio.fail_after(budget_s), elsewhere_is_an_error("the call was cancelled elsewhere"):
            return None, await call()
    except TimeoutError:
        return UnavailableError(f"no answer within {budget_s:g} s"), None
    except Exception as error:  # noqa: BLE001 - recovery goes on, whatever is wrong with what shows it
        return error, None


def _log_unforeseen(error: Exception) -> None:
    """Logs an error that is none of ours, with its traceback. The page shows the others."""
    if not isinstance(error, TieredError):
        events.warning("status_failed", error, exc_info=error)


def _point(now: float, status: Status) -> HistoryPoint:
    source = status.sources.get("recovery")
    if source is None:
        return HistoryPoint(now)
    return HistoryPoint(now, source.verdict.inflow_per_s, source.verdict.drain_per_s, source.total.lag)
