"""Cancels a call at an exact await. The call is driven step by step, and its k-th suspension is the moment.

    Steps          drives an awaitable and counts how often it suspends its task; the k-th time it acts as armed
    ForeignTask    a task that others cancel; whoever awaits it gets a `CancelledError` that nobody here asked for
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self, TypeVar

from tiered.errors import CancelledElsewhereError

T = TypeVar("T")

ELSEWHERE = (asyncio.CancelledError, CancelledElsewhereError)
"""The errors for a payload or an iterator that awaited a task which others cancelled."""


class How(Enum):
    SCOPE = "its scope"
    TASK = "its task"
    TASK_TWICE = "its task, twice"


@dataclass(frozen=True, slots=True)
class Interrupt:
    """How and when a call is cancelled.

    `at`: the number of the await, counted from the call on; None: after `after_ms`.
    """

    how: How
    at: int | None
    after_ms: float = 0.0

    def __str__(self) -> str:
        return f"cancelled by {self.how.value} " + (f"at await {self.at}" if self.at is not None else f"after {self.after_ms:g} ms")


class Steps:
    """Drives a call. `count`: how often the call was suspended since it was armed."""

    def __init__(self) -> None:
        self.count = 0
        self._at: dict[int, Callable[[], object]] = {}

    def arm(self, at: dict[int, Callable[[], object]]) -> None:
        """Sets what to do at the k-th suspension from now on. It is done before the task waits."""
        self.count, self._at = 0, at

    @types.coroutine
    def through(self, call: Awaitable[T]) -> Generator[Any, Any, T]:
        steps: Any = call.__await__()
        step: Callable[[Any], Any] = steps.send
        value: Any = None
        while True:
            try:
                trap = step(value)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            self.count += 1
            if (act := self._at.pop(self.count, None)) is not None:
                act()
            try:
                step, value = steps.send, (yield trap)
            except BaseException as error:  # noqa: BLE001 - passed on
                step, value = steps.throw, error


class ForeignTask:
    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(asyncio.sleep(10_000))
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()

    async def cancelled(self) -> None:
        """Waits for the task and ends with a `CancelledError` that no scope and no task of ours has asked for."""
        asyncio.get_running_loop().call_soon(self._task.cancel)
        await self._task
