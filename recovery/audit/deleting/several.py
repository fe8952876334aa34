"""Calls for many things, several at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from tiered.protocol.concurrent import most_urgent

A = TypeVar("A")
B = TypeVar("B")

AT_ONCE = 16


async def several(things: Sequence[A], call: Callable[[A], Awaitable[B]]) -> list[B]:
    """Makes the call for each thing, `AT_ONCE` at the same time. Returns what the calls returned, in the same order.

    Raises the most urgent error plainly, not in a group; the other calls are cancelled.
    """
    waiting = iter(enumerate(things))
    found: dict[int, B] = {}

    async def work() -> None:
        for number, thing in waiting:
            found[number] = await call(thing)

    try:
        async with anyio.create_task_group() as group:
            for _ in range(min(AT_ONCE, len(things))):
                group.start_soon(work)
    except BaseExceptionGroup as errors:
        raise most_urgent(errors) from None
    return [found[number] for number in range(len(things))]
