"""Two things at once, with the plain error of the one that failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
import anyio.lowlevel

from changelog.base.errors import CancelledElsewhereError
from changelog.base.tasks import elsewhere_is_an_error

A = TypeVar("A")
B = TypeVar("B")

_ELSEWHERE = "one of two calls that ran at once was cancelled, and who made them was not"


async def both(main: Callable[[], Awaitable[A]], beside: Callable[[], Awaitable[B]]) -> tuple[A, B]:
    """Runs `main` in this task and `beside` in another, and waits for both.

    When one fails, the other is cancelled and waited for. The error of the first to fail is raised as it is, not in a group, so that
    callers of the store see that of the read of the row, or of the opening of the upload. An interrupt comes before any other.
    Cancelled, it ends so, even if one of them took no notice.
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
        raise failed  # here, so that it keeps its own cause
    if not (first and second):
        await anyio.lowlevel.checkpoint_if_cancelled()
        raise CancelledElsewhereError(_ELSEWHERE)  # by name, in its own task
    return first[0], second[0]


def foremost(errors: Sequence[BaseException]) -> BaseException:
    """The one that ends most: an interrupt or a cancellation before an ordinary error. Groups in it are the callers' own."""
    return next((error for error in errors if not isinstance(error, Exception)), errors[0])
