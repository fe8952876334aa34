"""Tasks that run beside a block of their owner's: their end, and whose a cancellation is that one of them meets.

    a scope around the task, `Task.cancel`, a loop that shuts down      asked for: the task ends, and so do those around it
    what the task awaited was cancelled, and the task itself was not    an error like any other: `CancelledElsewhereError`

asyncio raises the same `CancelledError` for both, and a task group takes either for the first: it ends all its tasks and the block
they run beside, without a word, and the program with 0. So whatever runs code of callers tells them apart here (docs/decisions/0019).
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - only it tells whether it is this task that was cancelled: anyio knows its own scopes alone
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
from anyio.abc import TaskGroup

from changelog.base.errors import CancelledElsewhereError


def is_asked_to_end() -> bool:
    """Whether somebody asked for the end of this task. False: a cancellation error that it met is another's."""
    if anyio.get_current_task().has_pending_cancellation():
        return True
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextmanager
def elsewhere_is_an_error(sentence: str) -> Iterator[None]:
    """Raises a cancellation that nobody asked this task for as `CancelledElsewhereError(sentence)`, and any other as it is."""
    try:
        yield
    except anyio.get_cancelled_exc_class() as cancelled:
        if is_asked_to_end():
            raise
        raise CancelledElsewhereError(sentence) from cancelled


async def end_tasks(tasks: TaskGroup, error: BaseException | None) -> None:
    """Cancels what is left in the group, and waits for it. `error`: what the owner's block raised, which the owner raises on.

    Not told of that error, the group lets it pass as it is: it would wrap it in a group, or take a cancellation of elsewhere for its own.
    """
    ended_by_itself = tasks.cancel_scope.cancel_called
    tasks.cancel_scope.cancel()
    try:
        await tasks.__aexit__(None, None, None)
    except anyio.get_cancelled_exc_class() as cancelled:
        if error is None or isinstance(error, type(cancelled)):
            raise
    if ended_by_itself and isinstance(error, anyio.get_cancelled_exc_class()) and not is_asked_to_end():
        # By name, as a program does that cancels all tasks it can find. The block was ended for it, and nobody else will say so.
        raise CancelledElsewhereError("a task that worked beside this block was cancelled, and so the block was") from error


async def wait_out(event: anyio.Event) -> None:
    """Waits for the event whoever cancels this task meanwhile, and however often: asyncio's own cancellation passes every shield.

    It is raised afterwards. Only for what comes within a budget of its own.
    """
    late: BaseException | None = None
    with anyio.CancelScope(shield=True):
        while not event.is_set():
            try:
                await event.wait()
            except anyio.get_cancelled_exc_class() as cancelled:
                late = cancelled
    if late is not None:
        raise late
