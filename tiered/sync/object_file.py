"""What makes `SyncStoredObject` a binary file, for `shutil.copyfileobj`, `json.load` and `io.TextIOWrapper`.

It can be read once, from its beginning to its end, and it cannot seek. Its bytes come chunk by chunk from the event
loop, so a large object takes little memory.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Self

import tiered.stored
from changelog.base.errors import InvalidRequestError
from tiered.payload.destinations import Destination
from tiered.stored import CHUNK_BYTES, ProgressCount
from tiered.sync.callers_thread import refuse_async
from tiered.sync.loop import LoopThread, Turn


class ObjectFile(io.BufferedIOBase):
    """An object that is open for reading: its head, and its bytes as a file that is read once.

    Use `with storage.get(id) as stored`. `stored.read()` returns all bytes that are left, and `read(n)` at most `n`; at
    the end both return `b""`. *Iteration gives chunks of at most 256 KiB, and not lines*, as in the asynchronous API:
    a large object may have no line end. For lines, use `io.TextIOWrapper(stored)` or `io.BufferedReader(stored)`.

    It is also a payload: `put` streams a copy of it and closes it. `start`, `stop`: the range of stored bytes, `stop`
    excluded: 0 and `size` unless a range was asked for. `decompressed`: it gives the bytes that were compressed, and
    not those that are stored. `length`: how many bytes it gives; None: it decompresses, and only its end tells. Threads
    that share it get each byte once, in an order that nobody knows.
    """

    def __init__(self, loop: LoopThread, stored: tiered.stored.StoredObject, progress: ProgressCount | None = None) -> None:
        self.head = stored.head
        self.start, self.stop, self.length, self.decompressed = stored.start, stored.stop, stored.length, stored.decompressed
        self._progress = progress
        self._loop = loop
        self._stored = stored
        self._chunks: AsyncIterator[bytes] | None = None
        self._begun = False
        # Of a small object the bytes are here already, and the loop is not needed again. But `progress` is told by it.
        self._all_here = stored.in_memory is not None and progress is None
        self._left = stored.in_memory if stored.in_memory is not None and progress is None else memoryview(b"")
        self._turn = Turn("an open object")

    def __repr__(self) -> str:
        return f"<SyncStoredObject {self.head.object_id} of {self.head.size} bytes, revision {self.head.revision}>"

    @property
    def name(self) -> str:
        """The storage path, as files have a name."""
        return self.head.object_id.path

    # --- the bytes

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Returns at most `size` bytes; None or -1: all that are left, held in memory. `b""`: it is at its end.

        Fewer bytes than `size` come at the end only. Any error closes it: get the object again.

        Raises:
            InvalidRequestError: It was closed.
            UnavailableError: The blob vanished or the service failed meanwhile.
            CorruptRecordError: It cannot be decompressed.
        """
        return self._in_turn(lambda: self._read(size))

    def read1(self, size: int = -1, /) -> bytes:
        """Returns at most `size` bytes of the next chunk. -1: all of it."""
        return self._in_turn(lambda: self._read1(size))

    def peek(self, size: int = 0, /) -> bytes:
        """Returns the bytes that are in memory, without taking them: at least one, unless it is at its end."""
        return self._in_turn(self._peek)

    def _in_turn(self, read: Callable[[], bytes]) -> bytes:
        self._check()  # in a forked child, nobody lets this thread take a turn
        return self._turn.take(read)

    def _read(self, size: int | None) -> bytes:
        if size is None or size < 0:
            self._check()
            self._begun = True
            first, self._left = bytes(self._left), memoryview(b"")
            if self._all_here:
                return first
            if self._progress is not None:
                return first + b"".join(iter(self._take, b""))
            with self._closing_if_it_fails():
                return first + self._loop.call(self._take_rest)
        parts: list[bytes] = []
        while size and (part := self._read1(size)):
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read1(self, size: int) -> bytes:
        self._fill()
        size = min(len(self._left), CHUNK_BYTES) if size < 0 else size
        part, self._left = bytes(self._left[:size]), self._left[size:]
        return part

    def _peek(self) -> bytes:
        self._fill()
        return bytes(self._left)

    def __iter__(self) -> Self:
        self._check()
        return self

    def __next__(self) -> bytes:
        if chunk := self.read1():
            return chunk
        raise StopIteration

    def _fill(self) -> None:
        self._check()
        self._begun = True
        if not self._left and not self._all_here:
            self._left = memoryview(self._take())

    def _take(self) -> bytes:
        """The next chunk, of which the caller's callback was told; empty at the end."""
        with self._closing_if_it_fails():
            chunk = self._loop.call(self._take_chunk)
            if chunk and self._progress is not None:
                refuse_async(self._progress.tell(len(chunk), self.length))
        return chunk

    @contextmanager
    def _closing_if_it_fails(self) -> Iterator[None]:
        """Closes the object after an error. Otherwise the next `read` would return `b""`, as it does at the end."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _save(self, destination: Destination) -> None:
        stored, thread, count = self.release(), self._loop.callers_thread(), self._progress

        async def told(size: int) -> None:
            if count is not None:
                await thread.run(lambda: refuse_async(count.tell(size, self.length)))

        try:
            self._loop.call(lambda: stored._save(destination, told, thread), thread)
        except BaseException:
            self._loop.close_soon(stored)  # if this thread was interrupted, it may not have begun
            raise

    def _check(self) -> None:
        self._loop.check()
        if self.closed:
            raise InvalidRequestError(f"{self.head.object_id} was closed; get it again")

    def release(self) -> tiered.stored.StoredObject:
        """Gives the object up to whoever reads and closes it, such as a `put`.

        `InvalidRequestError`: it was read or closed.
        """
        self._check()
        if self._begun:
            raise InvalidRequestError(f"{self.head.object_id} was already read or closed; get it again")
        super().close()
        return self._stored

    # --- in the event loop

    async def _take_chunk(self) -> bytes:
        if self._chunks is None:
            self._chunks = aiter(self._stored)
        return await anext(self._chunks, b"")

    async def _take_rest(self) -> bytes:
        if self._chunks is None:
            self._chunks = aiter(self._stored)
        return b"".join([chunk async for chunk in self._chunks])

    # --- its end

    def _close(self) -> None:
        if not self.closed:
            super().close()
            if self._loop.is_usable and not self._all_here:
                self._loop.call(self._stored.aclose)

    def __del__(self) -> None:
        # Python may call this in any thread, also in the loop's own, so it waits for nothing.
        if not self.closed:
            super().close()
            if not getattr(self, "_all_here", True):  # if it has none, it was interrupted while it was made
                self._loop.close_soon(self._stored)
