"""Tasks that run beside a block, and how they end. Tells whose cancellation a task meets.

    a scope around the task, `Task.cancel`, a loop that shuts down    asked for: the task ends, and those around it, too
    what the task awaited was cancelled, and the task was not         an error like any other: `CancelledElsewhereError`

asyncio raises the same `CancelledError` for both. A task group takes either of them for the first kind: it ends all its
tasks and the block beside which they run, without any error, and the program may end with 0. So all code here that runs
code of callers tells the two apart (docs/decisions/store.md, 19).
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - only asyncio knows whether this task was cancelled: anyio knows only its own scopes
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled, current_token

from changelog.base.errors import CancelledElsewhereError
from changelog.base.own_waits import OwnWaits

T = TypeVar("T")


def is_asked_to_end() -> bool:
    """Whether somebody asked for the end of this task. False: a cancellation error that it met was meant for another.
    """
    if anyio.get_current_task().has_pending_cancellation():
        return True
    if not _on_asyncio():
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


class Patience:
    """Bounds how long a task waits, each time, for code of a caller's that may hold cancel scopes of its own.

    Enter it around all such waits; it raises `late()` for one that took longer than `seconds`. On asyncio the task
    itself is cancelled, in no scope of ours: so it does not matter which scopes that code leaves open from one wait to
    the next. Trio has no such thing. There one scope is open all the while, if `scoped` says that the code holds none
    of its own between two waits. Otherwise nothing is bounded there. On asyncio, no time runs while that code waits for
    this process itself (`own_wait`).
    """

    __slots__ = ("_late", "_scope", "_seconds")

    def __init__(self, seconds: float, late: Callable[[], Exception], *, scoped: bool) -> None:
        self._seconds = seconds
        self._late = late
        self._scope = anyio.CancelScope() if scoped and not _on_asyncio() else None

    def __enter__(self) -> Self:
        if self._scope is not None:
            self._scope.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._scope is not None:
            self._scope.__exit__(kind, error, trace)  # it hides nothing but a cancellation of its own
            if self._scope.cancelled_caught:
                raise self._late() from error

    async def wait(self, call: Callable[[], Awaitable[T]]) -> T:
        """Returns or raises what the call does. What it raises because it was ended becomes `late()`."""
        if not _on_asyncio():
            return await self._wait_in_scope(call)
        loop, limit = asyncio.get_running_loop(), asyncio.timeout(None)
        began_at = loop.time()
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            until = waits.over_at(began_at) + self._seconds
            if until <= loop.time():
                limit.reschedule(until)
            else:
                timer = loop.call_at(until, look)

        timer = loop.call_later(self._seconds, look)
        try:
            with OwnWaits(loop.time) as waits:
                async with limit:
                    return await call()
        except Exception as error:  # that code may have made anything of the cancellation by which it was ended
            if limit.expired():
                raise self._late() from error
            raise
        except asyncio.CancelledError:
            if limit.expired():  # a scope of anyio's was cancelled, too, and knows only what it raises itself for its own
                await checkpoint_if_cancelled()
            raise
        finally:
            timer.cancel()

    async def _wait_in_scope(self, call: Callable[[], Awaitable[T]]) -> T:
        if self._scope is None:
            return await call()
        self._scope.deadline = anyio.current_time() + self._seconds
        try:
            return await call()
        finally:
            self._scope.deadline = math.inf


def running_loop() -> object:
    """The event loop that runs this task. On asyncio, anyio takes ten times as long to find it, and each call asks."""
    return asyncio._get_running_loop() or current_token().native_token


def _on_asyncio() -> bool:
    return anyio.get_cancelled_exc_class() is asyncio.CancelledError


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


@asynccontextmanager
async def tasks_beside() -> AsyncIterator[TaskGroup]:
    """A group whose tasks run beside the block. Those that are left when it ends are cancelled, as `end_tasks` does."""
    tasks = anyio.create_task_group()
    await tasks.__aenter__()
    failure: BaseException | None = None
    try:
        yield tasks
    except BaseException as error:
        failure = error
        raise
    finally:
        await end_tasks(tasks, failure)


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
