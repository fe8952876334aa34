"""Repeats calls until a budget of time is used up.

The protocol decides what may be repeated. Reads, settles, renewals, deletions and whole clean-ups may be (I5). A swap
may be, because its token takes effect at most once. An inline write may not.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from changelog.base.errors import ClockBehindError, LeaseLostError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.observe import SILENT, Event, Observer
from changelog.base.runtime import Runtime
from tiered.errors import ServiceAwayError

T = TypeVar("T")
WAIT_FIRST_S = 0.05
WAIT_MAX_S = 5.0
DOUBLINGS_MAX = 16


Repeat = type[TieredError] | tuple[type[TieredError], ...]


async def persist(
    call: Callable[[], Awaitable[T]], runtime: Runtime, budget_s: float, repeat: Repeat = (UnavailableError, UnconfirmedError),
    observer: Observer = SILENT,
) -> T:
    """Makes the call, and repeats it while it fails with an error of `repeat`, for at most `budget_s` seconds.

    Then it raises the last error. `UnconfirmedError`: the budget ended while a call was still waiting for its answer.
    `LeaseLostError`, `ClockBehindError` and `ServiceAwayError` are never repeated. `ServiceAwayError` tells of the last
    call only that it was not sent. So if an earlier one was not confirmed, its error is raised instead. `observer` is
    told of each repeated call.
    """
    ends_at = runtime.monotonic() + budget_s
    failed: TieredError | None = None
    unconfirmed: UnconfirmedError | None = None
    try:
        with anyio.move_on_after(budget_s):
            for repeats in itertools.count():
                try:
                    return await call()
                except repeat as error:
                    if isinstance(error, (LeaseLostError, ClockBehindError)) or (isinstance(error, ServiceAwayError) and not unconfirmed):
                        raise
                    failed = error
                if isinstance(failed, ServiceAwayError) and unconfirmed is not None:
                    raise unconfirmed
                unconfirmed = failed if isinstance(failed, UnconfirmedError) else unconfirmed
                # Full jitter below an exponential bound, so that callers do not all come back at one moment.
                wait_s = runtime.random.uniform(0, min(WAIT_MAX_S, WAIT_FIRST_S * 2 ** min(repeats, DOUBLINGS_MAX)))
                if repeats and runtime.monotonic() + wait_s >= ends_at:
                    raise failed
                await runtime.sleep(wait_s)
                observer.count(Event.RETRIED, type(failed).__name__)
        raise UnconfirmedError(f"no answer within {budget_s:g} s")
    finally:
        failed = unconfirmed = None  # an error that is raised holds this frame, and must not be held by it


async def ask(read: Callable[[], Awaitable[T]], runtime: Runtime, budget_s: float, observer: Observer = SILENT) -> T:
    """`persist` for calls that change nothing. If there was no answer, nothing happened: `UnavailableError`."""
    try:
        return await persist(read, runtime, budget_s, observer=observer)
    except UnconfirmedError as error:
        raise UnavailableError(str(error)) from error
