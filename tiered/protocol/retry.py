"""Repeats idempotent calls within a budget: the only module that knows tenacity.

What may be repeated is decided by the protocol, not here: reads, settles, renewals, deletions and whole
clean-ups are (I5); a swap is, because its token takes effect at most once; an inline write is not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from changelog.base.errors import ClockBehindError, LeaseLostError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import Runtime

T = TypeVar("T")
WAIT_FIRST_S = 0.05
WAIT_MAX_S = 5.0


Repeat = type[TieredError] | tuple[type[TieredError], ...]


async def persist(
    call: Callable[[], Awaitable[T]], runtime: Runtime, budget_s: float, repeat: Repeat = (UnavailableError, UnconfirmedError)
) -> T:
    """Calls until it fails with none of `repeat`, for `budget_s` seconds at most.

    Then raises its last error; `UnconfirmedError` if it never answered at all. A lost lease or a wrong clock is not retried.
    """
    ends_at = runtime.monotonic() + budget_s

    def wait_s(state: RetryCallState) -> float:
        # Full jitter over an exponential bound: the callers of a service that comes back do not march in step.
        return runtime.random.uniform(0, min(WAIT_MAX_S, WAIT_FIRST_S * 2 ** min(state.attempt_number, 16)))

    def is_repeated(error: BaseException) -> bool:
        return isinstance(error, repeat) and not isinstance(error, (LeaseLostError, ClockBehindError))

    with anyio.move_on_after(budget_s):
        try:
            return await call()  # the ordinary case pays for no machinery
        except repeat as error:
            if not is_repeated(error):
                raise
        retrying = AsyncRetrying(
            sleep=runtime.sleep,
            wait=wait_s,
            stop=lambda state: runtime.monotonic() + state.upcoming_sleep >= ends_at,
            retry=retry_if_exception(is_repeated),
            reraise=True,
        )
        await runtime.sleep(runtime.random.uniform(0, WAIT_FIRST_S))
        async for attempt in retrying:
            with attempt:
                return await call()
        raise AssertionError("tenacity returns or raises")
    raise UnconfirmedError(f"no answer within {budget_s:g} s")


async def ask(read: Callable[[], Awaitable[T]], runtime: Runtime, budget_s: float) -> T:
    """`persist` for what changes nothing: never answered means no more than unavailable."""
    try:
        return await persist(read, runtime, budget_s)
    except UnconfirmedError as error:
        raise UnavailableError(str(error)) from error
