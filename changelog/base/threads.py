"""Work that blocks, in threads: each kind of it has its own limiter, and runs to its end.

anyio's default limiter is shared by the whole process, callers' code included: forty of its threads that wait for a pipe would stop all
that needs a forty-first, such as the renewal of a token. anyio waits for a thread whose task a scope cancels, but asyncio's own
`Task.cancel` passes its shield, and the thread would go on behind the back of whoever cleans up: here it is waited for, too.
*Failure*: a thread that cannot be started (the process has as many as it may) is `UnavailableError`, because nothing was begun.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio
from anyio import to_thread

from changelog.base.errors import UnavailableError

T = TypeVar("T")


async def in_thread(
    function: Callable[[], T], limiter: anyio.CapacityLimiter, *, abandon_on_cancel: bool = False, undo: Callable[[T], None] | None = None
) -> T:
    """Calls it in a thread, and returns its result.

    `abandon_on_cancel`: whoever is cancelled leaves it to its end unheeded. `undo`: what becomes of a result that nobody receives any more.
    """
    call = _Call(function)
    try:
        return await to_thread.run_sync(call.run, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
    except RuntimeError as error:
        if call.begun:
            raise
        raise UnavailableError(f"no thread could be started: let this process have more of them, or try again ({error})") from error
    except anyio.get_cancelled_exc_class():
        if not abandon_on_cancel and call.goes_on():
            await _end_of(call.ended)
            if undo is not None:
                for result in call.results:
                    undo(result)
        raise


class _Call(Generic[T]):
    """One call on its way. `results`: what it returned, if it did."""

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
            raise RuntimeError("withdrawn before it began")  # told to nobody
        try:
            result = self._function()
            self.results.append(result)
            return result
        finally:
            self.ended.set()

    def goes_on(self) -> bool:
        """Withdraws it, unless a thread has begun with it."""
        with self._deciding:
            self._withdrawn = not self.begun
        return self.begun


async def _end_of(ended: threading.Event) -> None:
    """Waits for it, whoever cancels this task meanwhile, and however often."""
    while not ended.is_set():
        try:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(ended.wait, limiter=anyio.CapacityLimiter(1))
        except anyio.get_cancelled_exc_class():
            continue
        except RuntimeError:  # no thread to wait in
            return
