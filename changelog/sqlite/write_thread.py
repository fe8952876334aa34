"""`WriteThread`: writes of many tasks wait in a queue, and one thread commits those that wait together.

    commit(write) --> queue --> the thread: up to `GROUP_MAX` of them in one transaction --> every waiter is told

It knows nothing of transactions: what it is given (`commit_group`) leaves a result or an error in each write.
*Failure*: if the thread ends in any unforeseen way, all who wait are told so, and nothing more is taken.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import anyio
from anyio import from_thread
from anyio.lowlevel import EventLoopToken, current_token

from changelog.base.errors import UnavailableError, UnconfirmedError
from changelog.base.tasks import wait_out

GROUP_MAX = 64

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class PendingWrite(Generic[T]):
    """One call of `write` on its way. `grows`: it brings a payload.

    `taken`: its transaction begins, so it cannot be withdrawn.
    """

    run: Callable[[sqlite3.Connection], T]
    grows: bool
    told: anyio.Event = field(default_factory=anyio.Event)
    taken: bool = False
    withdrawn: bool = False
    result: T | None = None
    error: Exception | None = None


class WriteThread:
    """`path`: the database, for what its errors say. `commit_group` may raise only what ends the thread."""

    def __init__(self, path: Path, commit_group: Callable[[list[PendingWrite[Any]]], None]) -> None:
        self._path = path
        self._commit_group = commit_group
        self._waiting: queue.SimpleQueue[PendingWrite[Any] | None] = queue.SimpleQueue()  # None: the last one has come
        self._deciding = threading.Lock()  # guards `_is_closed`, and what is taken or withdrawn
        self._is_closed = True
        self._ended = anyio.Event()

    def start(self) -> None:
        """Starts the thread. It is a daemon thread, so it does not keep a program from ending that leaves it behind."""
        try:
            threading.Thread(target=self._commit_groups, args=(current_token(),), name="tiered database", daemon=True).start()
        except RuntimeError as error:
            raise UnavailableError(f"no thread could be started: let this process have more of them, or try again ({error})") from error
        self._is_closed = False

    async def stop(self) -> None:
        """Takes no more writes, and waits until those that wait are committed."""
        with self._deciding:
            self._is_closed = True
        self._waiting.put(None)
        await wait_out(self._ended)

    async def commit(self, write: PendingWrite[T]) -> T:
        """Returns what its `run` returned, once that is durable. Raises as `Database.write`."""
        with self._deciding:
            if self._is_closed:
                raise UnavailableError(f"{self._path} is closed")
            self._waiting.put(write)
        try:
            await write.told.wait()
        except BaseException:
            with self._deciding:
                write.withdrawn = not write.taken
            if not write.withdrawn:
                await wait_out(write.told)
            raise
        if write.error is not None:
            raise write.error
        return cast(T, write.result)

    def _commit_groups(self, loop: EventLoopToken) -> None:
        taken: list[PendingWrite[Any]] = []
        try:
            while (first := self._waiting.get()) is not None:
                taken = self._take(first)
                del first  # its payload must not stay in memory while this waits for the next
                if taken:
                    self._commit_group(taken)
                    try:
                        from_thread.run_sync(_tell, taken, token=loop)
                    except RuntimeError:  # the event loop has ended, so nobody waits
                        return
                    taken = []
        finally:
            # If it ends in another way, nobody may wait for an answer any more.
            with self._deciding:
                self._is_closed = True
            with suppress(queue.Empty):
                while True:
                    if (left := self._waiting.get_nowait()) is not None:
                        taken.append(left)
            for write in taken:
                write.error = UnconfirmedError(f"{self._path} was given up while it was written to")
            with suppress(RuntimeError):  # the event loop has ended, so nobody waits
                from_thread.run_sync(_tell, taken, token=loop)
                from_thread.run_sync(self._ended.set, token=loop)

    def _take(self, first: PendingWrite[Any]) -> list[PendingWrite[Any]]:
        """The first and those that wait behind it, without those that were withdrawn."""
        received = [first]
        with suppress(queue.Empty):
            while len(received) < GROUP_MAX:
                following = self._waiting.get_nowait()
                if following is None:
                    self._waiting.put(None)  # nothing comes after it
                    break
                received.append(following)
        with self._deciding:
            taken = [write for write in received if not write.withdrawn]
            for write in taken:
                write.taken = True
        return taken


def _tell(writes: Sequence[PendingWrite[Any]]) -> None:
    for write in writes:
        write.told.set()
