"""Runs one call to its end, cancels it on the way if its step says so, and tells how it ended.

    run_to_end    drives the call, and returns its `Ended`: a value, an error, or its cancellation
    moments       what cancels a call at its k-th await

It raises `Violation` if the task was cancelled and the call ended as if it was not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio

from emulators.callers.interrupt import How, Interrupt, Steps
from emulators.callers.values import said
from emulators.callers.verdict import Violation

LATEST_S = 0.5
"""A call that never comes to the await at which it is to be cancelled is cancelled after so many seconds."""

NO_VALUE = object()
"""The call returned nothing, not even None."""


@dataclass(slots=True)
class Ended:
    """How a call ended. `asked`: we cancelled it, whether or not it noticed."""

    value: Any = NO_VALUE
    error: BaseException | None = None
    asked: bool = False

    @property
    def cancelled(self) -> bool:
        return self.value is NO_VALUE and self.error is None

    def __str__(self) -> str:
        return "cancelled" if self.cancelled else f"raised {self.error!r}" if self.error is not None else f"returned {said(self.value)}"


def described(ended: Ended) -> str:
    """Returns how a call ended, for a violation: of an error, its type and at most 400 characters of its text."""
    if ended.error is None:
        return str(ended)
    error = innermost(ended.error)
    return f"raised {type(error).__name__}: {str(error)[:400]}"


def innermost(error: BaseException) -> BaseException:
    """Returns the error, or of a group the first one in it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def run_to_end(
    call: Awaitable[Any], interrupt: Interrupt | None = None, steps: Steps | None = None, scope: anyio.CancelScope | None = None
) -> Ended:
    """Runs a call to its end. Cancels it if `interrupt` says so, and reports how it ended."""
    steps, scope, ended = steps or Steps(), scope or anyio.CancelScope(), Ended()
    task = _current_task()
    timer: asyncio.TimerHandle | None = None
    if interrupt is not None:
        ended.asked = True
        if interrupt.at is not None:
            steps.arm(moments(interrupt, scope))
        after_s = LATEST_S if interrupt.at is not None else interrupt.after_ms / 1000  # the call may end before that await
        if interrupt.how is How.SCOPE or task is None:
            scope.deadline = anyio.current_time() + after_s
        else:
            timer = asyncio.get_running_loop().call_later(after_s, task.cancel)
    try:
        with scope:
            ended.value = await steps.through(call)
    except anyio.get_cancelled_exc_class() as error:
        if task is None:
            raise
        if not task.cancelling():
            ended.error = error
    except BaseException as error:  # noqa: BLE001 - all of it is judged
        ended.error = error
    finally:
        if timer is not None:
            timer.cancel()
    if task is not None and task.cancelling():
        await _take_back(task, ended)
    return ended


async def _take_back(task: asyncio.Task[Any], ended: Ended) -> None:
    """Checks that a cancelled task was told so, now or at its next await, and takes the cancellation back."""
    pending = False
    for _ in range(2):  # a task that was cancelled twice may be told twice
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pending = True
    while task.cancelling():
        task.uncancel()
    if not pending and ended.value is not NO_VALUE:
        raise Violation("swallowed", f"its task was cancelled, and it {described(ended)} as if nothing had happened")


def moments(interrupt: Interrupt, scope: anyio.CancelScope) -> dict[int, Callable[[], object]]:
    """Returns what cancels a call, by the number of the await at which it is to happen."""
    assert interrupt.at is not None or interrupt.how, "counted"
    at = interrupt.at or 1
    task = _current_task()
    if interrupt.how is How.SCOPE or task is None:
        return {at: scope.cancel}
    return {at: task.cancel} | ({at + 2: task.cancel} if interrupt.how is How.TASK_TWICE else {})


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
