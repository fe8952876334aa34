"""Payloads that are read in threads.

    PlainFile              a path, or an open regular file: read in a few threads that all payloads share
    OwnIterable, OwnFile   a caller's own code, or a descriptor that may give nothing for ever: a thread of its own

*Cancelled*: the read of a plain file is waited for, because it ends soon. A call into a caller's own code is given up
together with its thread. What that call reads is lost. A generator that was begun is closed in the same thread, when
the call returns and not before; if it never returns, the generator is never closed.
"""

from __future__ import annotations

import io
import os
import stat
import weakref
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import BinaryIO, TypeVar

from anyio import CapacityLimiter, wait_readable
from anyio.lowlevel import RunVar

from changelog.base.errors import InvalidRequestError
from changelog.base.threads import in_thread
from tiered.payload.chunks import END, Chunks, Reread
from tiered.payload.own_thread import OwnThread, Thread

T = TypeVar("T")

FILE_THREADS_MAX = 16

WIDE_FROM_BYTES, WIDE_BYTES = 64 * 1024 * 1024, 4 * 1024 * 1024
"""A file of more bytes than the first number is read in chunks of the second. Each chunk is a call into a thread. With
small chunks, these calls took two fifths of the CPU of a put in lanes.
"""

_file_threads: RunVar[CapacityLimiter] = RunVar("tiered.payload.in_threads.threads")


def name_of(file: object) -> str:
    """How messages name the file."""
    return repr(file if isinstance(file, str) else getattr(file, "name", file))


def unreadable(file: object, error: OSError | ValueError) -> InvalidRequestError:
    return InvalidRequestError(f"the payload {name_of(file)} cannot be read: {getattr(error, 'strerror', None) or error}")


def refuse_at_its_end(file: object, position: int, offset: int) -> None:
    """A file that was read or written before, so that nothing is left, would become an empty object unnoticed."""
    if position not in (0, offset):
        raise InvalidRequestError(
            f"the payload {name_of(file)} is at its end, at byte {position}: call seek(0) or open it again, or pass b'' to store nothing"
        )


class PlainFile(Chunks):
    """An open regular file, or whatever is at a path.

    A regular file is read up to the length that it had when reading began, even if it grows. If it has become shorter,
    it is refused. A file without blocks (`/proc`, `/sys`) and a file that is not regular have no useful length; they
    are read to their end.
    """

    def __init__(self, file: str | BinaryIO, piece_bytes: int) -> None:
        super().__init__(piece_bytes)
        self._named = file
        self.path = file if isinstance(file, str) else None
        self._file: BinaryIO | io.FileIO | None = None if isinstance(file, str) else file
        self._left: int | None = None
        self._position = 0
        self._observed = self._is_pipe = self._is_kept = False

    async def _fill(self) -> bool:
        if not self._observed:
            await self._in_thread(self._observe)
        if self._is_pipe:
            await self._wait_readable()  # until somebody has opened the pipe for writing, it reads as empty
        chunk = await self._in_thread(self._read)
        if chunk is None:
            await self._wait_readable()
            return True
        if not chunk and not self._joined.taken and not self._left:
            refuse_at_its_end(self._named, self._position, self.offset)
        self._joined.add(chunk)
        self._joined.flush()
        if self._left is None:
            return bool(chunk)
        self._left -= len(chunk)
        if self._left and not chunk:
            raise self._shorter(self._left)
        return self._left > 0

    def reread(self) -> Reread | None:
        if self._left is None:
            return None
        self._is_kept = True
        return self._again

    async def _again(self, start: int, stop: int) -> AsyncIterator[bytes]:
        try:
            assert self._file is not None, "it was read before"
            descriptor = os.dup(self._file.fileno())  # so that nobody closes it, nor moves it, meanwhile
        except (OSError, ValueError) as error:
            raise unreadable(self._named, error) from error
        try:
            while start < stop:
                at, size = self._position + start, min(stop - start, self._chunk_bytes)
                chunk = await self._in_thread(partial(os.pread, descriptor, size, at))
                if not chunk:
                    raise self._shorter(stop - start)
                start += len(chunk)
                yield chunk
        finally:
            os.close(descriptor)

    def _shorter(self, missing: int) -> InvalidRequestError:
        return InvalidRequestError(
            f"the payload {name_of(self._named)} became shorter while it was read: {missing} of its {self.size} bytes are missing"
        )

    def _go_back(self) -> bool:
        if self._observed and self._file is not None and self._file is self._named:
            with suppress(OSError, ValueError):  # it was closed meanwhile
                self._file.seek(self._position)
        return True

    async def aclose(self) -> None:
        self._is_kept = False
        await super().aclose()

    async def _close(self) -> None:
        if isinstance(self._named, str) and self._file is not None and not self._is_kept:
            self._file.close()

    async def _wait_readable(self) -> None:
        assert isinstance(self._file, io.FileIO), "of a caller's own, only regular files come here"
        await self._patiently(partial(wait_readable, self._file))

    # --- in a thread

    async def _in_thread(self, call: Callable[[], T]) -> T:
        threads = _file_threads.get(None)
        if threads is None:
            _file_threads.set(threads := CapacityLimiter(FILE_THREADS_MAX))
        try:
            return await in_thread(call, threads)
        except (OSError, ValueError) as error:
            raise unreadable(self._named, error) from error

    def _observe(self) -> None:
        if isinstance(self._named, str):
            # Without O_NONBLOCK, opening a pipe waits until somebody writes to it, and nothing could end that wait.
            self._file = io.FileIO(self._named, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK))
        assert self._file is not None
        found = os.fstat(self._file.fileno())
        self._is_pipe = stat.S_ISFIFO(found.st_mode)
        self._position = 0 if isinstance(self._named, str) else self._file.tell()
        if stat.S_ISREG(found.st_mode) and found.st_blocks:
            self.size = self._left = max(0, found.st_size - self._position)
            if self._left > WIDE_FROM_BYTES:
                self._come_in(WIDE_BYTES)
        self._observed = True

    def _read(self) -> bytes | None:
        assert self._file is not None
        return self._file.read(self._chunk_bytes if self._left is None else min(self._left, self._chunk_bytes))


class _Blocking(Chunks):
    """A payload whose own code may block. All calls into it are made in one thread, which is its own.

    `thread`: the thread of a blocking caller that waits for it; None: one is started.
    """

    def __init__(self, piece_bytes: int, thread: Thread | None) -> None:
        super().__init__(piece_bytes)
        self._thread = thread
        self._to_close: Callable[[], object] | None = None
        self._late = self._closed = False

    async def _fill(self) -> bool:
        if self._thread is None:
            self._thread = await OwnThread.start()
        self._late = False
        return await self._patiently(partial(self._thread.run, self._pull, self._hurry))

    async def _close(self) -> None:
        """Closes what was begun, in the thread. If the thread was given up, it does this itself when its call returns.
        """
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            if self._to_close is not None and not thread.given_up:
                await thread.run(self._finish)
        finally:
            thread.end(self._finish)

    def _hurry(self) -> None:
        self._late = True

    # --- in the thread

    def _pull(self) -> bool:
        while not self._joined.ready and not self._closed:
            chunk = self._next()
            if chunk is END:
                return False
            self._joined.add(chunk)
            if self._late:
                self._joined.flush()
                break
        return True

    def _go_back(self) -> bool:
        return not self._joined.taken

    @abstractmethod
    def _next(self) -> object:
        """Returns the next chunk, or `END`."""

    def _finish(self) -> None:
        close, self._to_close = self._to_close, None
        if close is not None:
            close()


class OwnIterable(_Blocking):
    """An iterable of the caller's. It is closed if it is a generator that was begun."""

    def __init__(self, payload: Iterable[object], piece_bytes: int, thread: Thread | None = None) -> None:
        super().__init__(piece_bytes, thread)
        self._payload = payload
        self._iterator: Iterator[object] | None = None

    def _next(self) -> object:
        try:
            if self._iterator is None:
                self._iterator = iter(self._payload)
            chunk = next(self._iterator, END)
        except BaseException:
            self._to_close = None
            raise
        self._to_close = self._iterator.close if chunk is not END and isinstance(self._iterator, Generator) else None
        return chunk


class OwnFile(_Blocking):
    """A pipe, a socket, a compressed file, or an object with `read`. It belongs to the caller and is never closed here.
    """

    def __init__(self, file: BinaryIO, piece_bytes: int, thread: Thread | None = None) -> None:
        super().__init__(piece_bytes, thread)
        self._file = file
        self._has_begun = False
        self._began_at: int | None = None

    def _go_back(self) -> bool:
        """Nobody knows when a read of the caller's own kind of file returns, so this moves none."""
        if self._has_begun:
            with suppress(TypeError):  # it has no place for a weak reference
                _read_in_vain[id(self._file)] = weakref.ref(self._file, partial(_forget, id(self._file))), self._began_at
        return not self._has_begun

    def _begin(self) -> None:
        position = self._began_at = _position(self._file)
        if (read := _read_in_vain.get(id(self._file))) is not None and read[0]() is self._file:
            began_at = read[1]
            if position is None or began_at is None or position > began_at:
                again = "" if began_at is None else f"call seek({began_at}) or "
                raise InvalidRequestError(
                    f"the payload {name_of(self._file)} was read by a call that failed, so a part is missing: {again}open it again"
                )
            _forget(id(self._file))
        self._has_begun = True

    def _next(self) -> object:
        if not self._has_begun:
            self._begin()
        chunk: object = self._file.read(self._chunk_bytes)
        if chunk is None:
            raise InvalidRequestError(f"the payload {name_of(self._file)} has nothing yet and does not block: pass its path")
        if isinstance(chunk, (bytes, bytearray, memoryview)) and not chunk:
            if not self._joined.taken:
                refuse_at_its_end(self._file, self._began_at or 0, self.offset)
            return END
        return chunk


_read_in_vain: dict[int, tuple[weakref.ref[BinaryIO], int | None]] = {}
"""Files that a call which failed has read, by their `id`, and where each stood before that. None: it does not tell."""


def _forget(file_id: int, _: object = None) -> None:
    _read_in_vain.pop(file_id, None)


def _position(file: BinaryIO) -> int | None:
    """Where a file stands that can tell it. It may be unable to go back, as the body of an HTTP response is."""
    try:
        position: object = file.tell()
    except (AttributeError, OSError, ValueError):
        return None
    return position if isinstance(position, int) else None
