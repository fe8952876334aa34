"""A thread of its own, for calls that may block for ever: into a caller's iterator, or into a file that is not plain.

    start -> run(call), run(call), …, one after another -> end
               cancelled meanwhile: the thread is *given up*: it ends by itself, if the call ever returns

All calls are made in the same thread, and in one copy of the context of the task that started it. So a generator may
keep a lock, a SQLite cursor or a context variable from one chunk to the next. The threads are daemon threads: one that
is stuck does not keep the program from ending.

Bounded: at most `THREADS_MAX` threads in one event loop. This counts those that were given up and are still stuck.
*Failure*: if no thread becomes free within `WAIT_MAX_S`, `start` raises `AtCapacityError`. What a call raises, `run`
raises unchanged. Do not use these threads under a simulated clock: its scheduler does not see them and takes a task
that waits for one for a task that waits for ever.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Protocol, Self, TypeVar

from anyio import CapacityLimiter, Event, fail_after, from_thread, move_on_after
from anyio.lowlevel import EventLoopToken, RunVar, current_token

from changelog.base.errors import UnavailableError
from changelog.base.events import events
from tiered.errors import AtCapacityError

try:
    from sniffio import current_async_library_cvar
except ImportError:  # without sniffio, nobody looks for the event loop in the context
    current_async_library_cvar = None  # type: ignore[assignment]

T = TypeVar("T")

THREADS_MAX = 200
WAIT_MAX_S = 5.0
LATE_S = 0.05
"""A call that takes longer than this is told to return soon, with less than it was going to collect."""


@dataclass(slots=True)
class _Threads:
    """The threads of one event loop. `stuck`: how many were given up and have not returned yet."""

    free: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(THREADS_MAX))
    stuck: int = 0


_threads: RunVar[_Threads] = RunVar("tiered.payload.own_thread")


class OwnThread:
    """Start it with `await OwnThread.start()`, and `end` it. `given_up`: nobody waits any more for what it does."""

    def __init__(self, threads: _Threads, token: EventLoopToken) -> None:
        self.given_up = False
        self._threads = threads
        self._token = token
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    @classmethod
    async def start(cls) -> Self:
        """Starts a thread. `AtCapacityError`: none became free within `WAIT_MAX_S`.

        `UnavailableError`: the system gave none.
        """
        threads = _threads.get(None)
        if threads is None:
            _threads.set(threads := _Threads())
        thread = cls(threads, current_token())
        try:
            with fail_after(WAIT_MAX_S):
                await threads.free.acquire_on_behalf_of(thread)
        except TimeoutError:
            raise AtCapacityError(
                f"{THREADS_MAX} threads read payloads that may block ({threads.stuck} of them stuck in payloads that were given up), "
                f"and none ended for {WAIT_MAX_S:g} s: try again, or pass paths or async iterators, which need none"
            ) from None
        try:
            threading.Thread(target=context_without_loop().run, args=(thread._live,), name="tiered payload", daemon=True).start()
        except RuntimeError as error:
            threads.free.release_on_behalf_of(thread)
            raise UnavailableError(f"the payload was not read, for the system gave no thread ({error}): try again") from error
        return thread

    async def run(self, call: Callable[[], T], late: Callable[[], None] = lambda: None) -> T:
        """Runs `call` in the thread, and returns or raises what it does.

        Calls `late` in this task after `LATE_S` without a return.

        If this task is cancelled, the thread is given up: the call goes on, and what it returns is lost.
        """
        return await made_by(self._calls.put, call, self._tell, late, self._give_up)

    def end(self, last: Callable[[], object]) -> None:
        """Lets the thread make one last call, for which nobody waits, and then end."""
        self._calls.put(partial(carry_out_alone, last))
        self._calls.put(None)

    def _give_up(self) -> None:
        self.given_up = True
        self._threads.stuck += 1

    def _live(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # otherwise the payload would stay in memory for as long as the thread waits
        self._tell(self._leave)

    def _leave(self) -> None:
        self._threads.stuck -= self.given_up
        self._threads.free.release_on_behalf_of(self)

    def _tell(self, what: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the event loop has ended, so nobody waits
            from_thread.run_sync(what, token=self._token)


class Thread(Protocol):
    """A thread that makes calls for a task: an `OwnThread`, or that of a blocking caller (`tiered/sync`)."""

    given_up: bool

    async def run(self, call: Callable[[], T], late: Callable[[], None] = ...) -> T:
        """As `OwnThread.run`."""

    def end(self, last: Callable[[], object]) -> None:
        """As `OwnThread.end`."""


async def made_by(
    hand_over: Callable[[Callable[[], None]], None], call: Callable[[], T], tell: Callable[[Callable[[], None]], None],
    late: Callable[[], None], give_up: Callable[[], None], caught: type[BaseException] = BaseException,
) -> T:
    """Lets a thread make a call, and returns or raises what it does.

    `hand_over` gives the thread a job. `tell` lets the event loop make a call. `late` is called after `LATE_S` without
    a return. `give_up` is called if this task is cancelled first; a call that has not begun is not made then. `caught`:
    the errors that are raised here; others end the thread's own wait for jobs, and are an `UnavailableError` here.
    """
    made: list[T] = []
    raised: list[BaseException] = []
    done = Event()
    withdrawn = False

    def carry_out() -> None:
        if withdrawn:
            return
        try:
            made.append(call())
        except caught as error:  # raised where the task waits for it
            raised.append(error)
        except BaseException:
            raised.append(UnavailableError("nothing happened: the thread that read it was interrupted"))
            tell(done.set)
            raise
        tell(done.set)

    hand_over(carry_out)
    try:
        with move_on_after(LATE_S):
            await done.wait()
        if not done.is_set():
            late()
            await done.wait()
    except BaseException:
        withdrawn = True
        give_up()
        raise
    if raised:
        raise raised.pop()
    return made.pop()


def context_without_loop() -> Context:
    """A copy of the context, which names no event loop: where it is used runs none, or another."""
    context = copy_context()
    if current_async_library_cvar is not None:
        context.run(current_async_library_cvar.set, None)
    return context


async def each_of(items: Iterable[T], thread: Thread | None = None) -> AsyncGenerator[T, None]:
    """The items of an iterable that may block, read in `thread`; None: in a thread of its own.

    A generator that is given up half-way is closed in that thread, as soon as its call returns.
    """
    thread = thread or await OwnThread.start()
    source: list[Iterator[T]] = []

    def take() -> list[T]:
        if not source:
            source.append(iter(items))
        return list(islice(source[0], 1))

    def close() -> None:
        if source and isinstance(source[0], Generator):
            source[0].close()

    try:
        while item := await thread.run(take):
            yield item[0]
    finally:
        thread.end(close)


def carry_out_alone(last: Callable[[], object]) -> None:
    """Makes a call for which nobody waits. An error of it is logged."""
    try:
        last()
    except Exception as error:  # noqa: BLE001 - nobody is there to take it
        events.warning("abandoned_payload_not_closed", repr(error))
