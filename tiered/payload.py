"""Payloads as streams: whatever a caller passes becomes pieces of bytes, one at a time.

    bytes                              sliced, never copied; other buffers are copied slice by slice
    list, tuple, set, BytesIO          at once: they cannot block
    a StoredObject, async iterables    in the caller's own task (decision 8), which is given back now and then
    a path, an open plain file         in shared threads, the file from its position to its length when it was opened
    other files, other iterables       may block for ever: in a thread of their own (tiered/own_thread.py)
    a path to a pipe                   waited for in the event loop

Small pieces that come soon after one another are joined, big ones cut, empty ones dropped. What `put` begins to read it closes, if it
is a generator, a StoredObject or a path's file; a caller's file stays open.

Bounded: at most two pieces are in hand, and what `split_head` was asked for. *Cancelled*: a thread that is stuck in a payload is left
there and what it reads is lost; its generator is closed in that thread, if ever it returns. *Failure*: what is no payload is
an `InvalidRequestError`, as early as it can be known, and so is a plain file that cannot be read; what a caller's iterator or
own kind of file raises is passed on unchanged. Compression and multipart framing do not belong here.
"""

from __future__ import annotations

import io
import os
import stat
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from inspect import iscoroutinefunction
from threading import Lock
from typing import BinaryIO, Self, TypeVar, cast

from anyio import CancelScope, CapacityLimiter, current_time, to_thread, wait_readable
from anyio.lowlevel import RunVar, checkpoint

from changelog.errors import InvalidRequestError, UnavailableError
from tiered.own_thread import LATE_S, OwnThread
from tiered.stored import StoredObject

T = TypeVar("T")

Payload = bytes | bytearray | memoryview | os.PathLike[str] | BinaryIO | AsyncIterable[bytes] | Iterable[bytes]
"""What `put` takes. A `str` is none: encode text, and pass a file as `pathlib.Path`. Of an object that is several of these, the
first in the order of `pieces` counts: buffer, path, async iterable, file, iterable."""

Piece = bytes | memoryview

PIECE_BYTES = 256 * 1024
FILE_THREADS_MAX = 16
_JOINED_BYTES = 4096
"""What an async iterator yields is held back only below this: it may wait for what becomes of it before it yields more."""

_PIECES_IN_A_ROW = 64
"""So many pieces are taken from what does not wait by itself, before others have their turn."""

_END = object()
_file_threads: RunVar[CapacityLimiter] = RunVar("tiered.payload.file_threads")


def pieces(payload: Payload, size: int = PIECE_BYTES) -> Pieces:
    """The payload in pieces of at most `size` bytes, once. `InvalidRequestError` at once for a wrong type."""
    _refuse_what_is_no_payload(payload)
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return _Buffer(payload, size)
    if isinstance(payload, os.PathLike):
        return _PlainFile(_path(payload), size)
    if isinstance(payload, AsyncIterable):
        return _InTask(payload, size)
    if callable(getattr(payload, "read", None)):
        file = cast(BinaryIO, payload)
        if type(payload) is io.BytesIO:
            return _BytesIO(payload, size)
        return _PlainFile(file, size) if _is_plain(file) else _OtherFile(file, size)
    if type(payload) in (list, tuple, set, frozenset, deque):
        return _InMemory(payload, size)
    return _Iterable(payload, size)


class Pieces(ABC):
    """Pieces of bytes, none empty. Close it (`aclose`) when it is given up half-way.

    `size`: bytes of the whole payload as far as it is known, from the first piece on; then that many come, or an error. None: only
    reading it will tell.
    """

    size: int | None = None

    def __init__(self, piece_bytes: int, enough: int | None = None) -> None:
        half = max(1, piece_bytes // 2)
        self._joined = _Joined(piece_bytes, half if enough is None else min(enough, half))
        self._piece_bytes = piece_bytes
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        while not self._joined.ready:
            if self._ended:
                raise StopAsyncIteration
            try:
                self._ended = not await self._fill()
            except BaseException as error:
                self._ended = True
                if isinstance(error, StopAsyncIteration):  # would be taken for the payload's end
                    raise RuntimeError("the payload raised StopAsyncIteration") from error
                raise
            if self._ended:
                self._joined.flush()
                await self._close()
        return self._joined.ready.popleft()

    async def aclose(self) -> None:
        """Safe to repeat."""
        self._ended = True
        await self._close()

    @abstractmethod
    async def _fill(self) -> bool:
        """Reads on, into `_joined`. False: that was all."""

    async def _close(self) -> None:  # noqa: B027 - most have nothing to close
        """Repeated. An iterator that has ended, or raised something, has closed itself."""


async def split_head(source: Pieces, limit: int) -> tuple[list[Piece], int, Pieces | None]:
    """Reads until more than `limit` bytes are in hand or the payload ends: (head, bytes in it, rest).

    `rest` is None when the payload has ended; otherwise it is `source`, and the caller's to read or close.
    """
    head: list[Piece] = []
    total = 0
    async for piece in source:
        head.append(piece)
        total += len(piece)
        if total > limit:
            return head, total, source
    return head, total, None


# --- what is a payload ---------------------------------------------------------------------------


def _refuse_what_is_no_payload(payload: object) -> None:
    if isinstance(payload, str):
        raise InvalidRequestError("a payload of type str is ambiguous: pass text.encode(), or pathlib.Path(…) for a file")
    if isinstance(payload, io.TextIOBase):
        raise InvalidRequestError(f"a payload of type {_type(payload)} yields text: open the file in binary mode ('rb')")
    read = getattr(payload, "read", None)
    iterable = isinstance(payload, (bytes, bytearray, memoryview, os.PathLike, AsyncIterable, Iterable)) or callable(read)
    if isinstance(payload, (Mapping, type)) or not iterable:
        raise InvalidRequestError(
            f"a payload of type {_type(payload)} cannot be stored: pass bytes, a pathlib.Path, an open binary file or an iterable of bytes"
        )
    if iscoroutinefunction(read) and not isinstance(payload, (os.PathLike, AsyncIterable)):
        raise InvalidRequestError(f"a payload of type {_type(payload)} has an async read: pass an async iterator that calls it")


def _path(payload: os.PathLike[str]) -> str:
    try:
        return os.fsdecode(payload)
    except TypeError as error:
        raise InvalidRequestError(f"a payload of type {_type(payload)} is no path: {error}") from None


def _is_plain(file: BinaryIO) -> bool:
    """Whether it is a regular file, read as it is: a GzipFile has the descriptor of the compressed file and another length.

    `InvalidRequestError`: it is plain, and cannot be read.
    """
    inner = file.file if isinstance(file, tempfile._TemporaryFileWrapper) else file
    if type(inner) not in (io.FileIO, io.BufferedReader, io.BufferedRandom, io.BufferedWriter):
        return False
    if inner.closed:
        raise InvalidRequestError(f"the payload {_name(file)} is closed")
    if type(getattr(inner, "raw", inner)) is not io.FileIO:
        return False
    if not inner.readable():
        raise InvalidRequestError(f"the payload {_name(file)} is open for writing only: open it with 'rb'")
    try:
        return stat.S_ISREG(os.fstat(inner.fileno()).st_mode)
    except OSError as error:
        raise _unreadable(file, error) from error


def _name(file: object) -> str:
    """As messages name it."""
    return repr(file if isinstance(file, str) else getattr(file, "name", file))


def _unreadable(file: object, error: OSError | ValueError) -> InvalidRequestError:
    return InvalidRequestError(f"the payload {_name(file)} cannot be read: {getattr(error, 'strerror', None) or error}")


def _type(value: object) -> str:
    return type(value).__name__


# --- pieces that are joined and cut --------------------------------------------------------------


class _Joined:
    """What was read, in pieces of at most `size` bytes, none empty: small ones are joined, so that a byte does not cost what a piece does.

    A piece of `enough` bytes, at most half of `size`, is not held back for the next one.
    """

    def __init__(self, size: int, enough: int) -> None:
        self.ready: deque[Piece] = deque()
        self._size = size
        self._enough = enough
        self._held = bytearray()

    def add(self, piece: object) -> None:
        # A buffer may be refilled by its owner while we hold the piece, so it is copied; bytes never are.
        whole = piece if isinstance(piece, bytes) else _bytes(piece)
        if len(whole) < self._enough:
            self._held += whole
            if len(self._held) >= self._enough:
                self.flush()
            return
        self.flush()
        view = memoryview(whole)
        cut = (view[start : start + self._size] for start in range(0, len(whole), self._size))
        self.ready.extend([whole] if len(whole) <= self._size else cut)

    def flush(self) -> None:
        """Whatever there is, is ready."""
        if self._held:
            self.ready.append(bytes(self._held))
            self._held.clear()


def _bytes(piece: object) -> bytes:
    if not isinstance(piece, (bytearray, memoryview)):
        raise InvalidRequestError(f"a piece of the payload has type {_type(piece)}: yield bytes")
    try:
        return bytes(piece)
    except ValueError as error:
        raise InvalidRequestError(f"a piece of the payload cannot be read ({error}): yield bytes") from None


# --- what cannot block ---------------------------------------------------------------------------


class _Buffer(Pieces):
    def __init__(self, buffer: bytes | bytearray | memoryview, piece_bytes: int) -> None:
        super().__init__(piece_bytes)
        try:
            self._rest = memoryview(buffer).cast("B")
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(f"a payload of type memoryview cannot be read ({error}): pass bytes(view)") from None
        self.size = self._rest.nbytes

    async def _fill(self) -> bool:
        piece, self._rest = self._rest[: self._piece_bytes], self._rest[self._piece_bytes :]
        if piece:
            # Its owner may change any other buffer, and what is stored must be what was summed up.
            self._joined.ready.append(piece if isinstance(piece.obj, bytes) else bytes(piece))
        return bool(self._rest)


class _BytesIO(_Buffer):
    """From its position to its end, as it is when it is begun."""

    def __init__(self, file: io.BytesIO, piece_bytes: int) -> None:
        super().__init__(b"", piece_bytes)
        self._file: io.BytesIO | None = file

    async def _fill(self) -> bool:
        file, self._file = self._file, None
        if file is not None:
            if file.closed:
                raise InvalidRequestError("the payload, a BytesIO, is closed")
            self._rest = memoryview(file.getvalue())[file.tell() :]  # shared, not copied
            self.size = self._rest.nbytes
            file.seek(0, io.SEEK_END)
        return await super()._fill()


class _InMemory(Pieces):
    def __init__(self, parts: Iterable[object], piece_bytes: int) -> None:
        super().__init__(piece_bytes)
        self._parts = parts if isinstance(parts, Iterator) else iter(parts)

    async def _fill(self) -> bool:
        for _ in range(_PIECES_IN_A_ROW):
            part = next(self._parts, _END)
            if part is _END:
                return False
            self._joined.add(part)
            if self._joined.ready:
                return True
        await checkpoint()
        return True


# --- async iterables -----------------------------------------------------------------------------


class _InTask(Pieces):
    """An iterator that holds a cancel scope between two pieces finds itself in one task, and in no scope of ours."""

    def __init__(self, payload: AsyncIterable[object], piece_bytes: int) -> None:
        super().__init__(piece_bytes, _JOINED_BYTES)
        self._payload = payload
        self._iterator: AsyncIterator[object] | None = None
        self._to_close: object = payload
        self._taken = 0
        if isinstance(payload, StoredObject):
            self.size = payload.length

    async def _fill(self) -> bool:
        late_at = current_time() + LATE_S
        while not self._joined.ready:
            piece = await self._next()
            if piece is _END:
                return False
            self._joined.add(piece)
            self._taken += 1
            if self._taken % _PIECES_IN_A_ROW == 0:
                await checkpoint()
            if current_time() > late_at:
                self._joined.flush()
                break
        return True

    async def _next(self) -> object:
        try:
            if self._iterator is None:
                self._iterator = aiter(self._payload)
                self._to_close = self._payload if isinstance(self._payload, StoredObject) else self._iterator
            return await anext(self._iterator, _END)
        except BaseException:
            self._to_close = None
            raise

    async def _close(self) -> None:
        """Abandoned half-way, the caller's generator is closed now, not when it happens to be collected."""
        source, self._to_close = self._to_close, None
        if isinstance(source, (StoredObject, AsyncGenerator)):
            await source.aclose()


# --- plain files, and paths ----------------------------------------------------------------------


class _PlainFile(Pieces):
    """An open regular file, or whatever is at a path.

    A regular file ends where it ended when it was opened, however it grows; one that shrinks is refused. What has no blocks (`/proc`,
    `/sys`) or is no regular file has a length that says nothing, and is read to its end.
    """

    def __init__(self, file: str | BinaryIO, piece_bytes: int) -> None:
        super().__init__(piece_bytes)
        self._named = file
        self._file: BinaryIO | io.FileIO | None = None if isinstance(file, str) else file
        self._left: int | None = None
        self._lock = Lock()
        self._observed = self._is_pipe = self._busy = False

    async def _fill(self) -> bool:
        if not self._observed:
            await self._in_thread(self._observe)
        if self._is_pipe:
            await self._wait_readable()  # one that nobody has opened for writing yet reads as empty
        piece = await self._in_thread(self._read)
        if piece is None:
            await self._wait_readable()
            return True
        self._joined.add(piece)
        self._joined.flush()
        if self._left is None:
            return bool(piece)
        self._left -= len(piece)
        if self._left and not piece:
            raise InvalidRequestError(
                f"the payload {_name(self._named)} became shorter while it was read: {self._left} of its {self.size} bytes are missing"
            )
        return self._left > 0

    async def _close(self) -> None:
        if not isinstance(self._named, str):
            return
        if not self._busy:
            self._close_file()
            return
        with CancelScope(shield=True):  # an interrupted read may still have the descriptor
            await self._in_thread(self._close_file)

    async def _wait_readable(self) -> None:
        assert isinstance(self._file, io.FileIO), "of a caller's own, only regular files come here"
        await wait_readable(self._file)

    # --- in a thread

    async def _in_thread(self, call: Callable[[], T]) -> T:
        threads = _file_threads.get(None)
        if threads is None:
            _file_threads.set(threads := CapacityLimiter(FILE_THREADS_MAX))
        self._busy = True
        try:
            return await to_thread.run_sync(self._alone, call, limiter=threads)
        except (OSError, ValueError) as error:
            raise _unreadable(self._named, error) from error
        except RuntimeError as error:
            raise UnavailableError(f"the payload was not read, for the system gave no thread ({error}): try again") from error

    def _alone(self, call: Callable[[], T]) -> T:
        with self._lock:
            try:
                return call()
            finally:
                self._busy = False

    def _observe(self) -> None:
        if isinstance(self._named, str):
            # Otherwise the opening of a pipe waits for somebody who writes to it, and nothing ends that.
            self._file = io.FileIO(self._named, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK))
        assert self._file is not None
        found = os.fstat(self._file.fileno())
        self._is_pipe = stat.S_ISFIFO(found.st_mode)
        if stat.S_ISREG(found.st_mode) and found.st_blocks:
            position = 0 if isinstance(self._named, str) else self._file.tell()
            self.size = self._left = max(0, found.st_size - position)
        self._observed = True

    def _read(self) -> bytes | None:
        assert self._file is not None
        return self._file.read(self._piece_bytes if self._left is None else min(self._left, self._piece_bytes))

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()


# --- what may block for ever ---------------------------------------------------------------------


class _Blocking(Pieces):
    """All that is called of it is called in one thread of its own."""

    def __init__(self, piece_bytes: int) -> None:
        super().__init__(piece_bytes)
        self._thread: OwnThread | None = None
        self._to_close: Callable[[], object] | None = None
        self._late = self._closed = False

    async def _fill(self) -> bool:
        if self._thread is None:
            self._thread = await OwnThread.start()
        self._late = False
        return await self._thread.run(self._pull, self._hurry)

    async def _close(self) -> None:
        """Where the thread was given up, it closes what it has begun when its call returns: nothing else may before."""
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
            piece = self._next()
            if piece is _END:
                return False
            self._joined.add(piece)
            if self._late:
                self._joined.flush()
                break
        return True

    @abstractmethod
    def _next(self) -> object:
        """The next piece, or `_END`."""

    def _finish(self) -> None:
        close, self._to_close = self._to_close, None
        if close is not None:
            close()


class _Iterable(_Blocking):
    def __init__(self, payload: Iterable[object], piece_bytes: int) -> None:
        super().__init__(piece_bytes)
        self._payload = payload
        self._iterator: Iterator[object] | None = None

    def _next(self) -> object:
        try:
            if self._iterator is None:
                self._iterator = iter(self._payload)
            piece = next(self._iterator, _END)
        except BaseException:
            self._to_close = None
            raise
        self._to_close = self._iterator.close if piece is not _END and isinstance(self._iterator, Generator) else None
        return piece


class _OtherFile(_Blocking):
    """A pipe, a socket, a compressed file, an object with `read`: the caller's, and never closed here."""

    def __init__(self, file: BinaryIO, piece_bytes: int) -> None:
        super().__init__(piece_bytes)
        self._file = file

    def _next(self) -> object:
        piece: object = self._file.read(self._piece_bytes)
        if piece is None:
            raise InvalidRequestError(f"the payload {_name(self._file)} has nothing yet and does not block: pass its path")
        return _END if isinstance(piece, (bytes, bytearray, memoryview)) and not piece else piece
