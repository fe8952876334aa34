"""How a blocking call is made. The classes that callers see are built on this, and made from the asynchronous ones.

    storage.put(id, payload)             generated, in storage.py
      thread = calls.thread()            checks, and notes which thread waits
      body(payload, thread)              code of the caller's will run there
      calls.call(…, thread)              runs the asynchronous call in the loop, and waits
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Generic, TypeVar

import tiered.multipart
import tiered.storage
import tiered.stored
from changelog.base.errors import InvalidRequestError
from changelog.change import ChangeId
from tiered.object_id import ObjectId
from tiered.services.backends import ByteRange
from tiered.stored import Progress, ProgressCount
from tiered.sync.callers_thread import CallersThread
from tiered.sync.loop import LoopThread, Turn, refuse_in_event_loop
from tiered.sync.stored import SyncStoredObject
from tiered.text import check_flags, quoted

if TYPE_CHECKING:
    import tiered.payload.streams

T = TypeVar("T")
U = TypeVar("U", bound=tiered.multipart.MultipartUpload | tiered.multipart.ResumableUpload)

Payload = bytes | bytearray | memoryview | os.PathLike[str] | BinaryIO | SyncStoredObject | Iterable[bytes]
"""What `put` takes. A `str` is not a payload: encode text, and pass the name of a file as `pathlib.Path`."""

TAKEN_AT_ONCE = 1000
"""How many items of an asynchronous iterator are taken in one call into the event loop."""


class Calls:
    """The calls of one open store. `is_open`: it takes more of them."""

    def __init__(self, loop: LoopThread, *, in_event_loops: bool) -> None:
        """`in_event_loops`: calls are allowed where an event loop runs, and block it."""
        self.loop = loop
        self.is_open = True
        self._in_event_loops = in_event_loops

    def check(self) -> None:
        """Raises `InvalidRequestError` where no call may be made."""
        self.loop.check()
        if not self.is_open:
            raise InvalidRequestError("the storage is not open; use it inside 'with'")
        if not self._in_event_loops:
            refuse_in_event_loop()

    def thread(self) -> CallersThread:
        """This thread, for a call that it may make. Called before anything of the caller's is taken."""
        self.check()
        return self.loop.callers_thread()

    def call(
        self, operate: Callable[[], Awaitable[T]], thread: CallersThread | None = None, undo: Callable[[T], Awaitable[None]] | None = None
    ) -> T:
        """As `LoopThread.call`, if a call may be made."""
        self.check()
        return self.loop.call(operate, thread, undo)

    def each(self, begin: Callable[[], AsyncIterator[T]], thread: CallersThread | None = None) -> Iterator[T]:
        """The items of an asynchronous iterator. `thread`: does what code of the caller's is to do."""
        self.check()
        return _Each(self, begin, thread)


class BlockingStorage:
    """An open store whose calls block: `with tiered.sync.open_storage(…) as storage`.

    Many threads may call its methods at the same time. All stores of a process share one event loop, which runs in a
    thread of its own. Each method may raise `UnavailableError` (nothing happened; try again), `AtCapacityError` (it did
    not begin; send less), `InvalidRequestError` (fix the call) or `CorruptRecordError` (an operator must look).

    A call in a forked child is an `InvalidRequestError`, and so is one in a thread in which an event loop runs. Ctrl-C
    during a call cancels the operation, and waits until it has ended: what is known then is what is known after a
    cancelled call of `tiered`.
    """

    def __init__(self, loop: LoopThread, storage: tiered.storage.TieredStorage, *, in_event_loops: bool = False) -> None:
        """Use `open_storage`. `in_event_loops`: calls are allowed where an event loop runs, and block it."""
        check_flags(in_event_loops=in_event_loops)
        self._loop = loop
        self._storage = storage
        self._calls = Calls(loop, in_event_loops=in_event_loops)
        self.instance = storage.instance

    @property
    def _usable(self) -> bool:
        return self._calls.is_open and self._loop.is_usable

    def _close(self) -> list[ChangeId]:
        self._calls.is_open = False
        return self._loop.call(self._storage.aclose) if self._loop.is_usable else []

    def _get(self, object_id: ObjectId, range: ByteRange | None, *, progress: Progress | None, decompress: bool) -> SyncStoredObject | None:
        count = None if progress is None else ProgressCount(progress)  # told by the thread that reads, which may be another
        stored = self._calls.call(lambda: self._storage.get(object_id, range, decompress=decompress), undo=_left_unread)
        return None if stored is None else SyncStoredObject(self._loop, stored, count)


class BlockingUpload(Generic[U]):
    """An open upload."""

    def __init__(self, upload: U, calls: Calls) -> None:
        self._upload: U = upload
        self._calls = calls

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._upload.id} of {self._upload.object_id}>"


def calls_of(storage: BlockingStorage) -> Calls:
    """How calls with this storage are made. `InvalidRequestError`: it is none."""
    if not isinstance(storage, BlockingStorage):
        raise InvalidRequestError(f"pass an open storage of tiered.sync, not {quoted(storage)}")
    return storage._calls


def body(payload: object, thread: CallersThread) -> tiered.payload.streams.Payload:
    """The payload for an asynchronous call. What is to be read of it by code of the caller's, `thread` reads."""
    return payload.release() if isinstance(payload, SyncStoredObject) else thread.payload(payload)


class _Each(Iterator[T]):
    """The items of an asynchronous iterator. Many of them are taken in one call into the event loop.

    Threads may share it. After an error or an interruption it raises an error again, and never ends as if it were
    complete.
    """

    def __init__(self, calls: Calls, begin: Callable[[], AsyncIterator[T]], thread: CallersThread | None) -> None:
        self._call: Callable[[Callable[[], Awaitable[list[T]]]], list[T]] = lambda take: calls.call(take, thread)
        self._check = calls.check
        self._turn = Turn("a listing")
        self._begin = begin
        self._source: AsyncIterator[T] | None = None
        self._taken: Iterator[T] = iter(())
        self._error: Exception | None = None
        self._ended = self._interrupted = False

    def __next__(self) -> T:
        for item in self._taken:
            return item
        self._check()  # in a forked child, nobody lets this thread take a turn
        for item in self._turn.take(self._next):
            return item
        raise StopIteration

    def _next(self) -> list[T]:
        """The next item; none at the end."""
        while True:
            for item in self._taken:
                return [item]
            if self._error is not None:
                raise self._error
            if self._ended:
                return []
            if self._interrupted:
                raise InvalidRequestError("this was interrupted and is not complete; call again (list goes on with start_after)")
            self._interrupted = True
            self._taken = iter(self._call(self._take))
            self._interrupted = False

    async def _take(self) -> list[T]:
        taken: list[T] = []
        try:
            if self._source is None:
                self._source = self._begin()
            async for item in self._source:
                taken.append(item)
                if len(taken) == TAKEN_AT_ONCE:
                    return taken
        except Exception as error:  # noqa: BLE001 - raised after the items that came before it
            self._error = error
        self._ended = True
        return taken


async def _left_unread(stored: tiered.stored.StoredObject | None) -> None:
    if stored is not None:
        await stored.aclose()
