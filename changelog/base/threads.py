"""Blocking calls in threads. Each kind of call has its own limiter, and each call runs to its end.

anyio's default limiter is shared by the whole process, including the callers' code. If forty of its threads wait for a
pipe, nothing else that needs a thread goes on, such as the renewal of a token. If a scope cancels a task, anyio waits
for its thread. But asyncio's own `Task.cancel` passes anyio's shield, and the thread would go on while others already
clean up. So here the thread is waited for in this case, too.

A call that may hang for ever (`detached`) has a thread for which nothing waits, not even the end of the process.

*Failure*: if no thread can be started because the process has as many as it may, it is `UnavailableError`: nothing was
begun.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import anyio
from anyio import from_thread, to_thread
from anyio.lowlevel import current_token

from changelog.base.errors import UnavailableError

T = TypeVar("T")


async def in_thread(
    function: Callable[[], T], limiter: anyio.CapacityLimiter, *, abandon_on_cancel: bool = False, undo: Callable[[T], None] | None = None
) -> T:
    """Calls `function` in a thread, and returns its result or raises its error.

    `limiter`: bounds the threads of this kind. `abandon_on_cancel`: if this task is cancelled, it does not wait for the
    thread. `undo`: gets a result that nobody receives any more because this task was cancelled. `UnavailableError`: no
    thread could be started, so nothing was begun.
    """
    call = _ThreadCall(function)
    try:
        return await to_thread.run_sync(call.run, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
    except RuntimeError as error:
        if call.begun:
            raise
        raise _no_thread(error) from error
    except anyio.get_cancelled_exc_class():
        if not abandon_on_cancel and call.goes_on():
            await _end_of(call.ended)
            if undo is not None:
                for result in call.results:
                    undo(result)
        raise


def detached(function: Callable[[], T], then: Callable[[T | None, BaseException | None], None]) -> None:
    """Begins `function` in a thread of its own, and returns. Later, `then` gets its result or its error.

    `then` is called in the event loop; if that has ended, not at all. `UnavailableError`: no thread could be started.
    """
    loop = current_token()

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            failure = error
        with suppress(RuntimeError):  # the event loop has ended
            from_thread.run_sync(then, result, failure, token=loop)

    try:
        threading.Thread(target=run, name="tiered-detached", daemon=True).start()
    except RuntimeError as error:
        raise _no_thread(error) from error


def _no_thread(error: RuntimeError) -> UnavailableError:
    return UnavailableError(f"no thread could be started: let this process have more of them, or try again ({error})").telling(heard=False)


class _ThreadCall(Generic[T]):
    """One call. `results`: what it returned, if it has returned."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.begun = False
        self.ended = threading.Event()
        self.results: list[T] = []
        self._withdrawn = False
        self._deciding = threading.Lock()
        self._function = function

    def run(self) -> T:
        with self._deciding:
            self.begun = not self._withdrawn
        if not self.begun:
            raise RuntimeError("withdrawn before it began")  # nobody gets this error
        try:
            result = self._function()
            self.results.append(result)
            return result
        finally:
            self.ended.set()

    def goes_on(self) -> bool:
        """Whether a thread has begun the call. If not, the call is withdrawn."""
        with self._deciding:
            self._withdrawn = not self.begun
        return self.begun


async def _end_of(ended: threading.Event) -> None:
    """Waits for the end of the call, even if this task is cancelled meanwhile, once or often."""
    while not ended.is_set():
        try:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(ended.wait, limiter=anyio.CapacityLimiter(1))
        except anyio.get_cancelled_exc_class():
            continue
        except RuntimeError:  # there is no thread in which to wait
            return
