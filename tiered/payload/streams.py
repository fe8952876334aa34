"""Payloads as streams: whatever a caller passes becomes chunks of bytes, one at a time.

    bytes                              views of it, never copied; other buffers are copied slice by slice
    list, tuple, set, BytesIO          at once: they cannot block; a SpooledTemporaryFile is what it holds
    a StoredObject, async iterables    in the caller's own task (docs/decisions/store.md, 8); others get their turn
    a path, an open plain file         in shared threads, the file from its position to its length when reading began
    other files, other iterables       may block for ever: in a thread of their own (tiered/payload/own_thread.py)
    a path to a pipe                   waited for in the event loop

`put` closes a generator that it began to read, and a file that it opened at a path. It always closes a StoredObject. A
file that the caller opened stays open, and goes back to where it was if the call fails. What was read before and gives
nothing more is refused: a file at its end, a generator that has ended, and a file that a failed call began to read and
that cannot go back. A call reads nothing before it is admitted (docs/decisions/store.md, 218).

Bounded: at most two chunks are in memory, and the head that `split_head` was asked for. *Cancelled*: see
`tiered/payload/in_threads.py`. *Failure*: something that is no payload is an `InvalidRequestError`, as early as this
can be known; so is a plain file that cannot be read. What a caller's iterator or own kind of file raises is passed on
unchanged. Compression and multipart framing do not belong here.
"""

from __future__ import annotations

import io
import os
import stat
import tempfile
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from inspect import isasyncgen, isawaitable, iscoroutinefunction, isgenerator, isroutine, signature
from typing import BinaryIO, cast

from anyio import current_time
from anyio.lowlevel import checkpoint

from changelog.base.errors import InvalidRequestError
from tiered.payload.chunks import END, Chunk, Chunks, Reread, close_generator, type_name
from tiered.payload.in_threads import OwnFile, OwnIterable, PlainFile, name_of, refuse_at_its_end, unreadable
from tiered.payload.own_thread import LATE_S, Thread
from tiered.stored import CHUNK_BYTES, StoredObject

Payload = bytes | bytearray | memoryview | os.PathLike[str] | BinaryIO | AsyncIterable[bytes] | Iterable[bytes]
"""What `put` takes. A `str` is not a payload: encode text, and pass the name of a file as `pathlib.Path`.

An object may be several of these. Then the first counts, in the order in which `chunks` looks: buffer, path, async
iterable, file, iterable.
"""

VIEW_BYTES = 4 * 1024 * 1024
"""A put takes bytes in chunks of this size. So a payload of some MiB goes to the upload at once."""

_JOINED_BYTES = 4096
"""Only a chunk below this size waits for more: an async iterator may itself wait for what becomes of its chunk."""

_CHUNKS_AT_ONCE = 16
"""The first chunks, so many, are never held back, however small. Joining pays only if there are many chunks."""

_CHUNKS_IN_A_ROW = 64
"""How many chunks are taken from an iterator that does not wait by itself, before other tasks may run."""


def chunks(payload: Payload, size: int = CHUNK_BYTES, thread: Thread | None = None, *, views: int | None = None) -> Chunks:
    """The payload in chunks of at most `size` bytes, to be read once. `InvalidRequestError`: it is no payload.

    `thread`: where what may block for ever is read; None: in a thread of its own. `views`: bytes, which are in memory
    and cannot change, come in chunks of at most so many bytes, unless each chunk is reported; None: of `size`.
    """
    if isinstance(payload, Chunks):
        return payload  # a blocking caller's, whose thread reads it
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return _Buffer(payload, size, size if views is None else views)
    if type(payload) is tempfile.SpooledTemporaryFile:
        return chunks(payload._file, size, thread, views=views)  # what it is now: a BytesIO, or a plain file
    _refuse_what_is_no_payload(payload)
    if isinstance(payload, os.PathLike):
        return PlainFile(_path(payload), size)
    if isinstance(payload, AsyncIterable):
        return _InTask(payload, size)
    if callable(getattr(payload, "read", None)):
        file = cast(BinaryIO, payload)
        if type(payload) is io.BytesIO:
            return _BytesIO(payload, size, size if views is None else views)
        return PlainFile(file, size) if _is_plain(file) else OwnFile(file, size, thread)
    if type(payload) in (list, tuple, set, frozenset, deque):
        return _InMemory(payload, size)
    return OwnIterable(payload, size, thread)


# --- what is a payload ---------------------------------------------------------------------------


def _refuse_what_is_no_payload(payload: object) -> None:
    if isinstance(payload, str):
        raise InvalidRequestError("a payload of type str is ambiguous: pass text.encode(), or pathlib.Path(…) for a file")
    if isinstance(payload, io.TextIOBase):
        raise InvalidRequestError(f"a payload of type {type_name(payload)} yields text: open the file in binary mode ('rb')")
    read = getattr(payload, "read", None)
    comes_first = isinstance(payload, (bytes, bytearray, memoryview, os.PathLike, AsyncIterable))
    is_readable = comes_first or callable(read) or (isinstance(payload, Iterable) and not isawaitable(payload))
    if isinstance(payload, (Mapping, type)) or not is_readable:
        forgotten = "call it, or " if isroutine(payload) else "await it, or " if isawaitable(payload) else ""
        raise InvalidRequestError(
            f"a payload of type {type_name(payload)} cannot be stored: "
            f"{forgotten}pass bytes, a pathlib.Path, an open binary file or an iterable of bytes"
        )
    if (isgenerator(payload) and payload.gi_frame is None) or (isasyncgen(payload) and payload.ag_frame is None):
        raise InvalidRequestError(
            f"a payload of type {type_name(payload)} has ended, so it gives nothing: call its function again, or pass b'' to store nothing"
        )
    if comes_first or not callable(read) or isinstance(payload, io.IOBase):
        return
    if iscoroutinefunction(read):
        inside = "its file, or " if hasattr(payload, "file") else ""
        raise InvalidRequestError(f"a payload of type {type_name(payload)} has an async read: pass {inside}an async iterator that calls it")
    if not _takes_size(read):
        raise InvalidRequestError(f"a payload of type {type_name(payload)} has a read that takes no size: pass an iterator of its bytes")


def _takes_size(read: Callable[..., object]) -> bool:
    with suppress(ValueError):  # not everything written in C has a signature
        try:
            signature(read).bind(1)
        except TypeError:
            return False
    return True


def _path(payload: os.PathLike[str]) -> str:
    try:
        return os.fsdecode(payload)
    except TypeError as error:
        raise InvalidRequestError(f"a payload of type {type_name(payload)} is no path: {error}") from None


def _is_plain(file: BinaryIO) -> bool:
    """Whether it is a regular file that is read as it is.

    A GzipFile is not: its descriptor is that of the compressed file.

    `InvalidRequestError`: it is such a file, but it is closed or cannot be read.
    """
    inner = file.file if isinstance(file, tempfile._TemporaryFileWrapper) else file
    if type(inner) not in (io.FileIO, io.BufferedReader, io.BufferedRandom, io.BufferedWriter):
        return False
    if inner.closed:
        raise InvalidRequestError(f"the payload {name_of(file)} is closed")
    if type(getattr(inner, "raw", inner)) is not io.FileIO:
        return False
    if not inner.readable():
        raise InvalidRequestError(f"the payload {name_of(file)} is open for writing only: open it with 'rb'")
    try:
        return stat.S_ISREG(os.fstat(inner.fileno()).st_mode)
    except OSError as error:
        raise unreadable(file, error) from error


# --- what cannot block ---------------------------------------------------------------------------


class _Buffer(Chunks):
    waits = False

    def __init__(self, buffer: bytes | bytearray | memoryview, piece_bytes: int, view_bytes: int) -> None:
        super().__init__(piece_bytes)
        self._view_bytes = view_bytes
        try:
            self._rest = memoryview(buffer).cast("B")
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(f"a payload of type memoryview cannot be read ({error}): pass bytes(view)") from None
        self.size = self._rest.nbytes
        self._all = self._rest

    def take_whole(self, bytes_max: int) -> bytes | None:
        whole = self._rest.obj
        is_watched = self._progress is not None or self._checksums is not None or self._ask is not None or self.meter is not None
        if self._ended or is_watched or type(whole) is not bytes or not len(whole) == self._rest.nbytes <= bytes_max:
            return None
        self._rest, self._ended = memoryview(b""), True
        return whole

    def reread(self) -> Reread:
        return self._again

    async def _again(self, start: int, stop: int) -> AsyncIterator[Chunk]:
        for at in range(start, stop, CHUNK_BYTES):
            chunk = self._all[at : min(at + CHUNK_BYTES, stop)]
            yield chunk if isinstance(chunk.obj, bytes) else bytes(chunk)

    async def _fill(self) -> bool:
        whole = self._rest.obj
        size = self._view_bytes if isinstance(whole, bytes) and self._progress is None else self._chunk_bytes
        chunk, self._rest = self._rest[:size], self._rest[size:]
        if isinstance(whole, bytes):
            # A class of its own may tell another length, so its bytes come as a view.
            part: Chunk = whole if type(whole) is bytes and len(chunk) == len(whole) else chunk
        else:
            # The caller may change any other buffer meanwhile, and the stored bytes must be those that the checksum was
            # made of.
            part = bytes(chunk)
        if part:
            self._joined.ready.append(part)
        return bool(self._rest)


class _BytesIO(_Buffer):
    """From its position to its end, as both are when reading begins."""

    def __init__(self, file: io.BytesIO, piece_bytes: int, view_bytes: int) -> None:
        super().__init__(b"", piece_bytes, view_bytes)
        self._file: io.BytesIO | None = file
        self._begun: tuple[io.BytesIO, int] | None = None

    def take_whole(self, bytes_max: int) -> bytes | None:
        return None  # it is not known yet

    async def _fill(self) -> bool:
        file, self._file = self._file, None
        if file is not None:
            if file.closed:
                raise InvalidRequestError("the payload, a BytesIO, is closed")
            self._begun = file, file.tell()
            self._rest = self._all = memoryview(file.getvalue())[file.tell() :]  # shared, not copied
            self.size = self._rest.nbytes
            if not self.size:
                refuse_at_its_end(file, file.tell(), self.offset)
            file.seek(0, io.SEEK_END)
        return await super()._fill()

    def _go_back(self) -> bool:
        if self._begun is not None and not self._begun[0].closed:
            self._begun[0].seek(self._begun[1])
        return True


class _InMemory(Chunks):
    waits = False

    def __init__(self, parts: Iterable[object], piece_bytes: int) -> None:
        super().__init__(piece_bytes)
        self._parts = parts if isinstance(parts, Iterator) else iter(parts)

    async def _fill(self) -> bool:
        for _ in range(_CHUNKS_IN_A_ROW):
            part = next(self._parts, END)
            if part is END:
                return False
            self._joined.add(part)
            if self._joined.ready:
                return True
        await checkpoint()
        return True


# --- async iterables -----------------------------------------------------------------------------


class _InTask(Chunks):
    """An async iterator, always read in the same task and within no cancel scope of ours.

    So it may keep a cancel scope of its own open from one chunk to the next.
    """

    may_hold_scopes = True

    def __init__(self, payload: AsyncIterable[object], piece_bytes: int) -> None:
        super().__init__(piece_bytes, _JOINED_BYTES)
        self._payload = payload
        self._iterator: AsyncIterator[object] | None = None
        self._to_close: object = payload if isinstance(payload, StoredObject) else None  # what was not begun can be begun later
        self._taken = 0
        if isinstance(payload, StoredObject):
            self.size = payload.length

    async def _fill(self) -> bool:
        return await self._patiently(self._gather)

    async def _gather(self) -> bool:
        late_at = current_time() + LATE_S
        while not self._joined.ready:
            chunk = await self._next()
            if chunk is END:
                return False
            self._joined.add(chunk)
            self._taken += 1
            if self._taken % _CHUNKS_IN_A_ROW == 0:
                await checkpoint()
            late = current_time() > late_at
            if late or self._taken <= _CHUNKS_AT_ONCE:
                self._joined.flush()
            if late:
                break
        return True

    async def _next(self) -> object:
        to_close, self._to_close = self._to_close, None
        if self._iterator is None:
            self._iterator = aiter(self._payload)
            to_close = self._payload if isinstance(self._payload, StoredObject) else self._iterator
        try:
            chunk = await anext(self._iterator)
        except StopAsyncIteration:
            return END
        self._to_close = to_close
        return chunk

    def _go_back(self) -> bool:
        return not self._joined.taken or isinstance(self._payload, StoredObject)  # which says by itself that it was read

    async def _close(self) -> None:
        source, self._to_close = self._to_close, None
        if isinstance(source, StoredObject):
            await source.aclose()
        else:
            await close_generator(source)
