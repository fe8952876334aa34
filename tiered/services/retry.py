"""Repeats calls until a budget of time is used up. The only module that knows tenacity.

What a service refuses until somebody changes something (`TieredError.is_final`) is told at once, whatever the call.

The protocol decides what may be repeated. Reads, settles, renewals, deletions and whole clean-ups may be (I5). A swap
may be, because its token takes effect at most once. An inline write may not.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import anyio

from changelog.base.errors import ClockBehindError, LeaseLostError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.observe import SILENT, Event, Observer
from changelog.base.runtime import Runtime
from tiered.errors import AtCapacityError, ServiceAwayError
from tiered.services.backends import SessionEndedError
from tiered.services.paging import ListingError

T = TypeVar("T")
WAIT_FIRST_S = 0.05
WAIT_MAX_S = 5.0
DOUBLINGS_MAX = 16


Repeat = type[TieredError] | tuple[type[TieredError], ...]

_NO_SCOPE: AbstractContextManager[object] = nullcontext()
_NEVER_REPEATED = (LeaseLostError, ClockBehindError, ServiceAwayError, SessionEndedError, ListingError)
_NOT_SENT = (ServiceAwayError, AtCapacityError)


async def retry(
    call: Callable[[], Awaitable[T]], runtime: Runtime, budget_s: float, repeat: Repeat = (UnavailableError, UnconfirmedError),
    observer: Observer = SILENT, call_s_max: float = math.inf,
) -> T:
    """Makes the call, and repeats it while it fails with an error of `repeat`, for at most `budget_s` seconds.

    Then it raises the last error. `UnconfirmedError`: the budget ended while a call was still waiting for its answer;
    it quotes the error before, which says more.
    What `_NEVER_REPEATED` names is never repeated, and no refusal that is final. What `_NOT_SENT` names tells of the
    last call only that it was not sent. So if an earlier one was not confirmed, its error is raised instead. `observer`
    is told of each repeated call.
    `call_s_max`: a call ends by itself within so many seconds. If that is within the budget, the first call needs no
    scope, which would take a third of what the store adds to a small write.
    """
    ends_at = runtime.monotonic() + budget_s
    failures: _Failures | None = None
    with _NO_SCOPE if call_s_max < budget_s else anyio.move_on_after(budget_s):
        try:
            return await call()
        except repeat as error:
            if error.is_final or isinstance(error, _NEVER_REPEATED):
                raise
            failures = _Failures(error)
        with anyio.move_on_after(ends_at - runtime.monotonic()):
            return await _retry_after(failures, call, runtime, ends_at, repeat, observer)
    before = f"; before that: {failures.text}" if failures else ""
    raise UnconfirmedError(f"no answer within {budget_s:g} s{before}")


class _Failures:
    """What is kept of the calls that failed: the kind and the text of the latest error, and the latest unconfirmed one.

    Other errors are not kept: an error holds the frames that it went through.
    """

    unconfirmed: UnconfirmedError | None = None

    def __init__(self, first: TieredError) -> None:
        self.add(first)

    def add(self, error: TieredError) -> None:
        self.kind, self.text = type(error).__name__, str(error)
        if isinstance(error, UnconfirmedError):
            self.unconfirmed = error


async def _retry_after(
    failures: _Failures, call: Callable[[], Awaitable[T]], runtime: Runtime, ends_at: float, repeat: Repeat, observer: Observer
) -> T:
    """What `retry` does once the first call has failed."""
    from tenacity import AsyncRetrying, RetryCallState, retry_if_exception  # noqa: PLC0415 - most processes never need it

    def is_repeated(error: BaseException) -> bool:
        if not isinstance(error, repeat) or error.is_final or isinstance(error, _NEVER_REPEATED):  # a cancellation is none
            return False
        failures.add(error)
        return True

    def wait_s(state: RetryCallState) -> float:
        return backoff_s(runtime, state.attempt_number)

    def is_over(state: RetryCallState) -> bool:
        return runtime.monotonic() + state.upcoming_sleep >= ends_at

    try:
        await runtime.sleep(runtime.random.uniform(0, WAIT_FIRST_S))
        async for attempt in AsyncRetrying(
            sleep=runtime.sleep, wait=wait_s, stop=is_over, retry=retry_if_exception(is_repeated), reraise=True
        ):
            with attempt:
                observer.count(Event.RETRIED, failures.kind)
                return await call()
        raise AssertionError("tenacity returns or raises")
    except _NOT_SENT:
        if failures.unconfirmed is None:
            raise
        raise failures.unconfirmed from None
    finally:
        failures.unconfirmed = None  # an error that is raised holds this frame, and must not be held by it


def backoff_s(runtime: Runtime, failures: int) -> float:
    """How long to wait after so many failures in a row, in seconds.

    Full jitter below an exponential bound, so that callers do not all come back at one moment.
    """
    return runtime.random.uniform(0, min(WAIT_MAX_S, WAIT_FIRST_S * 2 ** min(failures, DOUBLINGS_MAX)))


async def retry_read(read: Callable[[], Awaitable[T]], runtime: Runtime, budget_s: float, observer: Observer = SILENT) -> T:
    """`retry` for calls that change nothing. If there was no answer, nothing happened: `UnavailableError`."""
    try:
        return await retry(read, runtime, budget_s, observer=observer)
    except UnconfirmedError as error:
        raise UnavailableError(str(error)) from error
