"""The thread of a blocking caller does jobs for the event loop while it waits for it.

A caller's iterator or file is read there and nowhere else. So a cursor of a database, a thread-local value, a lock or a
context variable works as if the caller had read it by itself, and Ctrl-C reaches it. A list of bytes, a path and a
regular file need no code of the caller's, and are read as in the asynchronous API.

    the loop: `run(job)`  ──▶ jobs ──▶ `wait(call)` does them, one after another, until `end_wait(call)`

In a bulk call, jobs that come while nobody waits stay until the caller takes the next result.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from contextlib import suppress
from functools import partial
from inspect import iscoroutine
from queue import SimpleQueue
from typing import TypeVar, cast

from changelog.base.errors import InvalidRequestError
from changelog.base.own_waits import own_wait
from tiered.payload.in_threads import OwnFile, OwnIterable
from tiered.payload.own_thread import carry_out_alone, made_by
from tiered.payload.streams import Payload, chunks
from tiered.text import quoted

F = TypeVar("F")
T = TypeVar("T")


class CallersThread:
    """The jobs of one blocking call, or of one bulk call. `check` raises in a forked child, where no loop runs."""

    def __init__(self, soon: Callable[[Callable[[], object]], None], check: Callable[[], None]) -> None:
        """`soon` lets the loop make a call, and does not wait for it."""
        self.given_up = False
        self._soon = soon
        self._check = check
        self._jobs: SimpleQueue[object] = SimpleQueue()

    # --- in the caller's thread

    def wait(self, call: object) -> None:
        """Does the jobs that come, until `end_wait(call)`. Raises only what interrupts this thread."""
        while (job := self._jobs.get()) is not call:
            if callable(job):
                job()
                self._check()  # a job may have forked this process
            del job

    # --- in the event loop

    def end_wait(self, call: object) -> None:
        self._jobs.put(call)

    async def run(self, call: Callable[[], T], late: Callable[[], None] = lambda: None) -> T:
        """Runs `call` in the caller's thread, and returns or raises what it does.

        Calls `late` in this task after 50 ms without a return. If this task is cancelled before the call has begun, the
        call is not made. Until it begins, it waits for this process itself: for other jobs, or for the caller.
        """
        turn = own_wait()

        def begun() -> T:
            self._soon(turn.end)
            return call()

        with turn:
            return await made_by(self._jobs.put, begun, self._soon, late, self._give_up, Exception)

    def callback(self, function: F) -> F:
        """What the event loop calls instead of a function of the caller's: this thread calls that, and the loop waits.

        Whoever takes a callback takes an async function, too. What is no function stays: the call says what is wrong.
        """
        if not callable(function):
            return function

        async def called(*arguments: object) -> object:
            return await self.run(lambda: refuse_async(function(*arguments)))

        return cast(F, called)

    def _give_up(self) -> None:
        self.given_up = True

    def end(self, last: Callable[[], object]) -> None:
        """Hands over one last job, for which nobody waits."""
        self._jobs.put(partial(carry_out_alone, last))

    def payload(self, payload: object) -> Payload:
        """Returns the payload for an asynchronous call. Code of the caller's then runs in this thread."""
        if isinstance(payload, AsyncIterable):
            raise InvalidRequestError(
                f"{quoted(payload)} is read with await, and tiered.sync runs no event loop of yours: "
                "pass bytes, a path, an open binary file or an iterator"
            )
        with suppress(InvalidRequestError):  # what is no payload goes on as it is: `put` says what is wrong with it
            source = chunks(payload, thread=self)  # type: ignore[arg-type]
            if isinstance(source, OwnIterable | OwnFile):
                return source  # type: ignore[return-value] # which `chunks` takes as it is
        return payload  # type: ignore[return-value]


def refuse_async(result: T) -> T:
    """Returns what a callback returned. `InvalidRequestError`: it is a coroutine, which nobody awaits."""
    if iscoroutine(result):
        result.close()
        raise InvalidRequestError("this callback is an async function, and tiered.sync runs no event loop of yours: pass a plain one")
    return result
