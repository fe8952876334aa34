"""The event loop that blocking callers share: one for each process, in one thread, through anyio's portal.

    caller's thread                            thread of the loop
      call(operate) ────── starts a task ──────▶ _BlockingCall.run: await operate()
      waits, and does the jobs that              │   may hand a job to the caller's thread (callers_thread.py)
      the loop has for it              ◀──────── ends: result or error

The loop starts when it is first needed, and ends when the interpreter exits, after all threads that are no daemons.
Then it leaves what is still open, as `with` would have done. It runs on asyncio, because gRPC does.

*Interrupted* (Ctrl-C, or whatever else is raised in a thread that waits): the operation is cancelled, and the caller
waits until it has ended. A second interruption ends this wait, and the operation ends alone. *Fork*: a child has the
objects of its parent, and not the thread. `_in_child` marks the loop, so every use of it is refused. A child that needs
a loop starts one of its own.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context
from functools import partial
from threading import Lock, get_ident
from typing import Any, Generic, Protocol, TypeVar, cast

import anyio
from anyio.from_thread import start_blocking_portal
from anyio.lowlevel import current_token

from changelog.base.errors import InvalidRequestError
from changelog.base.events import events
from tiered.payload.own_thread import context_without_loop
from tiered.stored import StoredObject
from tiered.sync.callers_thread import CallersThread

T = TypeVar("T")
Live = Callable[[], Coroutine[Any, Any, None]]

FORKED = (
    "this process was forked after the storage was opened, and the storage's event loop stayed in the parent: "
    "open a storage in each process, after the fork"
)
IN_A_LOOP = (
    "tiered.sync would block the event loop that runs in this thread: use tiered.open_storage with await, "
    "or call it in another thread (anyio.to_thread.run_sync)"
)


class LoopThread:
    """An event loop in a thread of its own. Get it with `loop_thread()`."""

    def __init__(self) -> None:
        self._inherited = self._ended = False
        self._kept: list[HeldContext[object]] = []
        self._starting = start_blocking_portal("asyncio", name="tiered event loop")
        self._portal = self._starting.__enter__()
        self._to_start: deque[tuple[Context, Live]] = deque()
        self._native, self._thread, self._wake = self._portal.call(_here)
        self._serving = self._portal.start_task_soon(self._serve)

    @property
    def is_usable(self) -> bool:
        return not (self._inherited or self._ended)

    @property
    def is_here(self) -> bool:
        """Whether this thread is the loop's."""
        return get_ident() == self._thread

    def inherit(self) -> None:
        """Notes that this is a forked child: the thread of the loop is not here."""
        self._inherited = True

    def check(self) -> None:
        """Raises `InvalidRequestError` in a forked child, after the interpreter's exit began, and in the loop's thread.
        """
        if self._inherited:
            raise InvalidRequestError(FORKED)
        if self._ended:
            raise InvalidRequestError("the interpreter is exiting, and the storage was closed")

    def call(
        self, operate: Callable[[], Awaitable[T]], thread: CallersThread | None = None, undo: Callable[[T], Awaitable[None]] | None = None
    ) -> T:
        """Runs `operate` in the loop, and returns or raises what it does.

        `thread`: does jobs for the operation meanwhile; None: it has none. `undo`: gets a result that nobody receives,
        because this thread was interrupted.
        """
        self.check()
        thread = self.callers_thread() if thread is None else thread
        call = _BlockingCall(operate, thread)
        try:
            self.start(call.run)
            thread.wait(call)
        except BaseException:
            if not self._inherited:
                self._end_interrupted(call, thread, undo)
            raise
        return call.answer()

    def _end_interrupted(self, call: _BlockingCall[T], thread: CallersThread, undo: Callable[[T], Awaitable[None]] | None) -> None:
        if not call.ended:
            self.soon(call.cancel)
            thread.wait(call)
        if undo is not None:
            for result in call.results:
                self.call(partial(undo, result))

    def callers_thread(self) -> CallersThread:
        """This thread, for the jobs of one call."""
        return CallersThread(self.soon, self.check)

    def start(self, live: Live) -> None:
        """Starts a task, and does not wait for it."""
        self.check()
        if self.is_here:
            raise InvalidRequestError(IN_A_LOOP)
        self._start(live)

    def _start(self, live: Live) -> None:
        self._to_start.append((context_without_loop(), live))
        self.soon(lambda: self._wake.set())

    async def _serve(self) -> None:
        """Starts the tasks, each in the context of the thread that asked for it."""
        async with anyio.create_task_group() as tasks:
            while not self._ended:
                await self._wake.wait()
                self._wake = anyio.Event()
                while self._to_start:
                    context, live = self._to_start.popleft()
                    context.run(partial(tasks.start_soon, live))
            tasks.cancel_scope.cancel()

    def soon(self, call: Callable[[], object]) -> None:
        """Lets the loop make a call, and does not wait for it. Does nothing if the loop has ended."""
        # Not through the portal, which waits until the loop has begun the call: every operation would wait twice.
        if self.is_usable:
            with suppress(RuntimeError):
                self._native.call_soon_threadsafe(call)

    def close_soon(self, stored: StoredObject) -> None:
        """Closes an object that nobody refers to any more. It waits for nothing, so any thread may call it."""
        self._start(stored.aclose)

    def keep(self, kept: HeldContext[object]) -> None:
        self._kept.append(kept)

    def drop(self, kept: HeldContext[object]) -> None:
        with suppress(ValueError):
            self._kept.remove(kept)

    def end(self) -> None:
        """Leaves what is open, ends what is under way, and ends the thread."""
        for kept in reversed(list(self._kept)):
            try:
                kept.leave()
            except Exception as error:  # noqa: BLE001 - nobody is there to take it, and the others are left, too
                events.warning("storage_not_closed_at_exit", repr(error))
        self._ended = True
        self._portal.call(self._wake.set)
        self._serving.result()
        self._starting.__exit__(None, None, None)


class _BlockingCall(Generic[T]):
    """One operation of a blocking caller. `results`: what it returned, if it has."""

    def __init__(self, operate: Callable[[], Awaitable[T]], thread: CallersThread) -> None:
        self.ended = False
        self.results: list[T] = []
        self._error: BaseException | None = None
        self._withdrawn = False
        self._scope: anyio.CancelScope | None = None
        self._operate = operate
        self._thread = thread

    async def run(self) -> None:
        try:
            if not self._withdrawn:
                with anyio.CancelScope() as self._scope:
                    self.results.append(await self._operate())
        except anyio.get_cancelled_exc_class():
            raise  # the loop ends
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread; here it would end the loop
            self._error = error
        finally:
            self._end()

    def cancel(self) -> None:
        """Cancels it, in the loop. If it has not begun, it never will: nothing of it was started."""
        self._withdrawn = True
        if self._scope is None:
            self._end()
        else:
            self._scope.cancel()

    def answer(self) -> T:
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # the error's traceback holds this call
        if not self.results:
            raise CancelledError("the event loop of tiered.sync has ended")
        return self.results[0]

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            self._thread.end_wait(self)


class HeldContext(Generic[T]):
    """An asynchronous context that is held open in the loop, in a task of its own, because one task must enter and
    leave it.
    """

    def __init__(self, loop: LoopThread, context: AbstractAsyncContextManager[T]) -> None:
        self._loop = loop
        self._context = context
        self._values: list[T] = []
        self._error: BaseException | None = None
        self._scope: anyio.CancelScope | None = None
        self._given_up = False
        # The caller's context may name trio, and these are for asyncio.
        self._opened, self._leave, self._ended = context_without_loop().run(lambda: [anyio.Event() for _ in range(3)])

    def enter(self) -> T:
        """Enters the context, and returns what it gives. Raises what entering raises."""
        try:
            self._loop.start(self._live)
            self._loop.call(self._wait_opened)
            if not self._values:
                self._raise()
            self._loop.keep(cast("HeldContext[object]", self))
            return self._values[0]
        except BaseException:
            self.give_up()
            raise

    def leave(self, thread: CallersThread | None = None) -> None:
        """Leaves the context, and raises what leaving raises. In a forked child it does nothing. Safe to repeat.

        `thread`: as in `LoopThread.call`.
        """
        try:
            self._loop.drop(cast("HeldContext[object]", self))
            if self._loop.is_usable:
                self._loop.call(self._wait_left, thread)
                self._raise()
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Leaves the context soon, and does not wait. For a caller that a signal has interrupted."""
        self._loop.drop(cast("HeldContext[object]", self))
        self._loop.soon(self._cancel)

    def _cancel(self) -> None:
        self._given_up = True
        self._leave.set()
        if self._scope is not None:
            self._scope.cancel()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def _live(self) -> None:
        try:
            with anyio.CancelScope() as self._scope:
                if self._given_up:
                    return
                async with self._context as value:
                    self._values.append(value)
                    self._opened.set()
                    await self._leave.wait()
        except anyio.get_cancelled_exc_class():
            raise  # the loop ends
        except BaseException as error:  # noqa: BLE001 - raised where it is entered or left; here it would end the loop
            self._error = error
        finally:
            self._opened.set()
            self._ended.set()

    async def _wait_opened(self) -> None:
        try:
            await self._opened.wait()
        except anyio.get_cancelled_exc_class():
            await self._wait_cancelled()
            raise

    async def _wait_left(self) -> None:
        self._leave.set()
        try:
            await self._ended.wait()
        except anyio.get_cancelled_exc_class():
            await self._wait_cancelled()
            raise

    async def _wait_cancelled(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._ended.wait()


class Turn:
    """Lets one thread at a time in. A thread that is in already gets an error, and not a deadlock."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = Lock()
        self._holder: int | None = None

    def take(self, call: Callable[[], T]) -> T:
        if self._lock.locked() and self._holder == get_ident():
            raise InvalidRequestError(f"{self._what} was called from within itself, in the same thread")
        with self._lock:  # not a context manager of ours: a signal may interrupt its code, and then nothing would release this
            try:
                self._holder = get_ident()
                return call()
            finally:
                self._holder = None


class _NativeLoop(Protocol):
    """asyncio's event loop."""

    def call_soon_threadsafe(self, callback: Callable[[], object], /) -> object: ...


async def _here() -> tuple[_NativeLoop, int, anyio.Event]:
    return cast(_NativeLoop, current_token().native_token), get_ident(), anyio.Event()


def refuse_in_event_loop() -> None:
    """Raises `InvalidRequestError` if an event loop runs in this thread: a blocking call would stop it."""
    try:
        current_token()
    except RuntimeError:  # none runs; below `asyncio.to_thread` the context may still name the library of one
        return
    raise InvalidRequestError(IN_A_LOOP)


# --- one for each process ------------------------------------------------------------------------


_starting = Lock()
_current: LoopThread | None = None


def loop_thread() -> LoopThread:
    """Returns the loop of this process. Starts it if there is none."""
    global _current
    with _starting:
        if _current is None or not _current.is_usable:
            _current = LoopThread()
        return _current


def in_shared_loop() -> bool:
    """Whether this thread is that of the process's loop. Takes no lock, so that a finaliser may ask."""
    return _current is not None and _current.is_here


def _in_child() -> None:
    global _current, _starting
    _starting = Lock()  # another thread of the parent may have held it
    if _current is not None:
        _current.inherit()
        _current = None


def _at_exit() -> None:
    if _current is not None:
        _current.end()


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
