"""Calls at the same time. If one fails, its error is raised plainly, not in a group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
import anyio.lowlevel

from changelog.base.errors import CancelledElsewhereError
from changelog.base.tasks import elsewhere_is_an_error

A = TypeVar("A")
B = TypeVar("B")

_ELSEWHERE = "one of several calls that ran at once was cancelled, and their caller was not"


async def run_both(main: Callable[[], Awaitable[A]], beside: Callable[[], Awaitable[B]]) -> tuple[A, B]:
    """Runs `main` in this task and `beside` in another, and waits for both.

    If one fails, the other is cancelled and waited for. The error of the first to fail is raised as it is, not in a
    group. So callers of the store see the error of the read of the row, or of the opening of the upload. An interrupt
    comes before any other error. If this task is cancelled, the cancellation is raised, even if one of the two calls
    ignored it.
    """
    first: list[A] = []
    second: list[B] = []
    failed: BaseException | None = None

    async def run_beside() -> None:
        with elsewhere_is_an_error(_ELSEWHERE):
            second.append(await beside())

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(run_beside)
            with elsewhere_is_an_error(_ELSEWHERE):
                first.append(await main())
    except BaseExceptionGroup as errors:
        failed = foremost(errors.exceptions)
    if failed is not None:
        raise failed  # raised here, outside of the group's except clause, so that it keeps its own cause
    if not (first and second):
        await anyio.lowlevel.checkpoint_if_cancelled()
        raise CancelledElsewhereError(_ELSEWHERE)  # the task of one call was cancelled by name
    return first[0], second[0]


async def map_concurrently(call: Callable[[A], Awaitable[B]], items: Sequence[A], at_once: int) -> list[B]:
    """Calls it for each item, at most `at_once` at the same time. Returns the results in the order of the items.

    If one call fails, the others are cancelled and waited for, and the first error is raised as it is, not in a group.
    """
    results: dict[int, B] = {}
    left = iter(enumerate(items))
    failed: BaseException | None = None

    async def work() -> None:
        with elsewhere_is_an_error(_ELSEWHERE):
            for number, item in left:
                results[number] = await call(item)

    try:
        async with anyio.create_task_group() as group:
            for _ in range(min(at_once, len(items))):
                group.start_soon(work)
    except BaseExceptionGroup as errors:
        failed = foremost(errors.exceptions)
    if failed is not None:
        raise failed
    if len(results) < len(items):
        await anyio.lowlevel.checkpoint_if_cancelled()
        raise CancelledElsewhereError(_ELSEWHERE)
    return [results[number] for number in range(len(items))]


def foremost(errors: Sequence[BaseException]) -> BaseException:
    """The most urgent error: an interrupt or a cancellation comes before an ordinary error.

    A group in it stays as it is.
    """
    return next((error for error in errors if not isinstance(error, Exception)), errors[0])


def most_urgent(error: BaseException) -> BaseException:
    """The most urgent error in a group, however deep. An error that is no group is itself."""
    while isinstance(error, BaseExceptionGroup):
        error = foremost(error.exceptions)
    return error
