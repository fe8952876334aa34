"""Two calls at the same time. If one fails, its error is raised plainly, not in a group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
import anyio.lowlevel

from changelog.base.errors import CancelledElsewhereError
from changelog.base.tasks import elsewhere_is_an_error

A = TypeVar("A")
B = TypeVar("B")

_ELSEWHERE = "one of two calls that ran at once was cancelled, and their caller was not"


async def both(main: Callable[[], Awaitable[A]], beside: Callable[[], Awaitable[B]]) -> tuple[A, B]:
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
