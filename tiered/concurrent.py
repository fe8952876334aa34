"""Two things at once, with the plain error of the one that failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

A = TypeVar("A")
B = TypeVar("B")


async def both(main: Callable[[], Awaitable[A]], beside: Callable[[], Awaitable[B]]) -> tuple[A, B]:
    """Runs `main` in this task and `beside` in another, and waits for both.

    When one fails the other is cancelled, and its error is raised as it is, not in a group: callers see
    the exception that their own payload raised.
    """
    done: list[B] = []

    async def run_beside() -> None:
        done.append(await beside())

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(run_beside)
            first = await main()
    except BaseExceptionGroup as errors:
        raise _foremost(errors.exceptions) from None
    return first, done[0]


def _foremost(errors: Sequence[BaseException]) -> BaseException:
    """The one that ends most: an interrupt or a cancellation before an ordinary error. Groups in it are the callers' own."""
    return next((error for error in errors if not isinstance(error, Exception)), errors[0])
