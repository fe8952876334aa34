"""Notes which services are away, so that calls to them fail at once instead of waiting, each for its whole budget.

    answering   --no call was answered for `AWAY_AFTER_S`, and at least 3 were not-->   away
    away        --one call at a time goes through, at most every 2 s; one is answered-->      answering
                  (one that hangs for 5 s makes room for the next)

Each service of a store, the rows, the blobs and the changelog, has a breaker of its own. It sends nothing itself: all
that it knows is what the calls of the store tell. A refusal is an answer, too, whatever its kind. If a service forbids
something, each call fails at once without help from here. A call that waits for this process itself (for a connection,
for a token) tells nothing of the service.

I4: what is refused here (`call`) was certainly not sent. So only the calls are refused with which an operation begins
or goes on while nothing of it has taken effect: reads, the upload, the entry, a write inside a row. What finds out or
finishes what was sent (settle, swap, clean-up) is only listened to (`note`), and keeps its own budget. Recovery has its
own knowledge of outages (`recovery/outages.py`). *Crash*: nothing is kept, and the next process finds out anew.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

from changelog.base.errors import (
    ConfigurationError,
    CorruptRecordError,
    InvalidRequestError,
    TieredError,
    UnavailableError,
    UnconfirmedError,
)
from changelog.base.events import events
from changelog.base.observe import Event, Observer
from changelog.base.own_waits import OwnWaits
from changelog.base.runtime import Runtime
from tiered.errors import RangeNotSatisfiableError, ServiceAwayError

T = TypeVar("T")

HIGH_VOLUME, LONG_TERM, CHANGELOG = "high_volume", "long_term", "changelog"

AWAY_AFTER_S = 10.0
"""No call was answered for so long: a failover of a database takes less."""
FAILURES_MIN = 3
TRIED_EVERY_S = 2.0
TRY_MAX_S = 5.0
"""A try that has no answer for so long makes room for the next: what it hangs on may be one dead connection."""
GIVEN_UP_S = 1.0
"""A caller who gave up after at least so many seconds of silence tells as much as a call that failed.

The time in which the call waited for this process itself is not silence of the service (`changelog.base.own_waits`).
"""

_REFUSALS = (ConfigurationError, CorruptRecordError, RangeNotSatisfiableError)
"""Errors that only an answer leads to. So does an `InvalidRequestError` with a code of the service.

Of other errors their backend says whether the service was heard (`TieredError.heard`).
"""

_WORDS = {HIGH_VOLUME: "rows", LONG_TERM: "blobs", CHANGELOG: "changelog"}


class Breaker:
    """What is known of one service. `after_s`: how long no call is answered before the service counts as away.

    `math.inf`: files of this machine, which are no service and never away.
    """

    def __init__(self, name: str, after_s: float, runtime: Runtime, instance: str, observer: Observer) -> None:
        self.name = name
        self._after_s = after_s
        self._runtime = runtime
        self._instance = instance
        self._observer = observer
        self._answered_at = -math.inf
        self._failures = 0
        self._failing_since = self._failed_at = -math.inf
        self._why = ""
        self._is_away = False
        self._is_closed = False
        self._tried_at: float | None = None
        self._next_try_at = -math.inf

    @property
    def away_s(self) -> float | None:
        """For how many seconds no call has been answered. None: the service is not away."""
        return self._runtime.monotonic() - self._failing_since if self._is_away else None

    async def call(self, call: Callable[[], Awaitable[T]], *, is_answer: Callable[[T], bool] | None = None) -> T:
        """Makes the call, or raises `ServiceAwayError` and does not make it. So does a try that certainly failed.

        `is_answer` False for a result: no service was asked for it.
        """
        if self._after_s == math.inf:
            return await call()
        if not self._is_away:
            return await self.note(call, is_answer=is_answer)
        tried_at = self._begin_try()
        try:
            return await self.note(call, is_answer=is_answer)
        except UnavailableError as error:
            if type(error) is UnavailableError and error.heard is None and self._is_away:
                raise self._refusal("this call tried it again") from error  # not repeated: the next one tries
            raise
        finally:
            if self._tried_at == tried_at:
                self._tried_at = None

    async def note(self, call: Callable[[], Awaitable[T]], *, is_answer: Callable[[T], bool] | None = None) -> T:
        """Makes the call in any case, and notes whether the service answered."""
        if self._after_s == math.inf:
            return await call()
        began_at = self._runtime.monotonic()
        with OwnWaits(self._runtime.monotonic) as waits:
            try:
                result = await call()
            except TieredError as error:
                self._failed_with(error, waits.over_at(began_at))
                raise
            except Exception:
                raise  # a defect here tells nothing of the service
            except BaseException:  # cancelled
                asked_at = waits.over_at(began_at)
                given_up_after_s = self._runtime.monotonic() - asked_at
                if given_up_after_s >= GIVEN_UP_S:
                    self._failed(asked_at, f"no answer within {given_up_after_s:.3g} s")
                raise
        if is_answer is None or is_answer(result):
            self._answered()
        return result

    def close(self) -> None:
        """The store is closed: its metrics show nothing of it any more, also if a call ends only after this."""
        self._is_closed = True
        if self._is_away:
            self._is_away = False
            self._observer.away(self.name, -1)

    def _begin_try(self) -> float:
        now = self._runtime.monotonic()
        is_tried = self._tried_at is not None and now < self._tried_at + TRY_MAX_S
        if is_tried or now < self._next_try_at:
            self._observer.count(Event.FAILED_FAST, self.name)
            after_s = self._next_try_at - now
            when = "a call that tries it again is under way" if is_tried else f"it is tried again in {after_s:.1f} s"
            raise self._refusal(f"nothing was sent, and {when}")
        self._tried_at = now
        self._next_try_at = now + TRIED_EVERY_S
        return now

    def _refusal(self, done: str) -> ServiceAwayError:
        now = self._runtime.monotonic()
        away_s = now - self._failing_since
        since = datetime.fromtimestamp(self._runtime.wall_ns() // 1_000_000_000 - away_s, UTC)
        return ServiceAwayError(
            f"the service of the {_WORDS[self.name]} ({self.name}) has answered nothing for {away_s:.0f} s,"
            f" since {since:%Y-%m-%dT%H:%M:%SZ}; {done}: {self._why}",
            self.name, max(0.0, self._next_try_at - now) or TRIED_EVERY_S,
        )  # fmt: skip

    def _failed_with(self, error: TieredError, asked_at: float) -> None:
        if error.heard is False:
            return
        if error.heard or isinstance(error, _REFUSALS) or (isinstance(error, InvalidRequestError) and error.code):
            self._answered()
        elif type(error) in (UnavailableError, UnconfirmedError):  # the kinds of them are about other things
            self._failed(asked_at, str(error))

    def _failed(self, began_at: float, why: str) -> None:
        now = self._runtime.monotonic()
        self._why = why
        if self._is_away or self._is_closed:
            return
        if not self._failures or began_at - self._failed_at > 3 * self._after_s:  # what failed long ago tells nothing of now
            self._failures, self._failing_since = 0, max(began_at, self._answered_at)
        self._failures += 1
        self._failed_at = now
        if self._failures >= FAILURES_MIN and now - self._failing_since >= self._after_s:
            self._is_away = True
            self._next_try_at = now + TRIED_EVERY_S
            self._observer.away(self.name, 1)
            events.warning("service_unreachable", why, service=self.name, instance=self._instance)

    def _answered(self) -> None:
        self._failures = 0
        self._answered_at = self._runtime.monotonic()
        if self._is_away:
            self._is_away = False
            self._observer.away(self.name, -1)
            outage_s = round(self._answered_at - self._failing_since, 3)
            events.info("service_healthy_again", service=self.name, instance=self._instance, outage_s=outage_s)
