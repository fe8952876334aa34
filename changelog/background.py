"""The end of tasks that run beside a block of their owner's: told nothing of how the block ended, and hiding nothing of it."""

from __future__ import annotations

import anyio
from anyio.abc import TaskGroup


async def end_tasks(tasks: TaskGroup, error: BaseException | None) -> None:
    """Cancels what is left in the group, and waits for it. `error`: what the owner's block raised, which the owner raises on.

    Not told of that error, the group lets it pass as it is instead of wrapping it in a group.
    """
    tasks.cancel_scope.cancel()
    try:
        await tasks.__aexit__(None, None, None)
    except anyio.get_cancelled_exc_class() as cancelled:
        if error is None or isinstance(error, type(cancelled)):
            raise
