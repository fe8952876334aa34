"""Tasks that run beside a block, and how they end. Tells whose cancellation a task meets.

    a scope around the task, `Task.cancel`, a loop that shuts down    asked for: the task ends, and those around it, too
    what the task awaited was cancelled, and the task was not         an error like any other: `CancelledElsewhereError`

asyncio raises the same `CancelledError` for both. A task group takes either of them for the first kind: it ends all its
tasks and the block beside which they run, without any error, and the program may end with 0. So all code here that runs
code of callers tells the two apart (docs/decisions/0019).
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - only asyncio knows whether this task was cancelled: anyio knows only its own scopes

import anyio
from anyio.abc import TaskGroup

from changelog.base.errors import CancelledElsewhereError


def is_asked_to_end() -> bool:
    """Whether somebody asked for the end of this task. False: a cancellation error that it met was meant for another.
    """
    if anyio.get_current_task().has_pending_cancellation():
        return True
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class elsewhere_is_an_error:
    """Raises `CancelledElsewhereError(sentence)` for a cancellation that nobody asked this task for.

    A cancellation that somebody did ask for is raised as it is.
    """

    __slots__ = ("_sentence",)

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and isinstance(error, anyio.get_cancelled_exc_class()) and not is_asked_to_end():
            raise CancelledElsewhereError(self._sentence) from error


async def end_tasks(tasks: TaskGroup, error: BaseException | None) -> None:
    """Cancels the tasks that are left in the group, and waits for them.

    `error`: what the owner's block raised; the owner raises it again afterwards. The group is not told of it. Otherwise
    the group would wrap it in an exception group, or take a cancellation from elsewhere for its own.
    """
    ended_by_itself = tasks.cancel_scope.cancel_called
    tasks.cancel_scope.cancel()
    try:
        await tasks.__aexit__(None, None, None)
    except anyio.get_cancelled_exc_class() as cancelled:
        if error is None or isinstance(error, type(cancelled)):
            raise
    if ended_by_itself and isinstance(error, anyio.get_cancelled_exc_class()) and not is_asked_to_end():
        # The block was cancelled because one of its tasks was cancelled by name, as a program does that cancels all
        # tasks it can find. Nobody else would report this.
        raise CancelledElsewhereError("a task that worked beside this block was cancelled, and so the block was") from error


async def wait_out(event: anyio.Event) -> None:
    """Waits for the event, even if this task is cancelled meanwhile, once or often.

    A shield is not enough, because asyncio's own cancellation passes every shield. The cancellation is raised
    afterwards. Use it only for an event that comes within a budget of its own.
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
