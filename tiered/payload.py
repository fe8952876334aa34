"""Payloads as streams: whatever a caller passes becomes pieces of bytes, one at a time.

    bytes, bytearray, memoryview      sliced, never copied
    a path, an open binary file       read in a thread, the file from its position
    (async) iterables of bytes        piece by piece; big pieces are cut, empty ones dropped

Bounded: at most one piece is in hand, and what `split_head` was asked for. *Failure*: what is no payload is
an `InvalidRequestError`, as early as it can be known; what a caller's iterator raises is passed on
unchanged. Compression and multipart framing do not belong here.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from contextlib import aclosing
from typing import BinaryIO, cast

from anyio import to_thread

from changelog.errors import InvalidRequestError

Payload = bytes | bytearray | memoryview | os.PathLike[str] | BinaryIO | AsyncIterable[bytes] | Iterable[bytes]
"""What `put` takes. A `str` is none: encode text, and pass a file as `pathlib.Path`."""

Piece = bytes | memoryview
Pieces = AsyncGenerator[Piece, None]
"""Pieces of bytes, none empty. Close it (`aclose`) when it is given up half-way."""

PIECE_BYTES = 256 * 1024
_HEAD_PIECES_MAX = 1024


def known_size(payload: Payload) -> int | None:
    """Bytes that the payload has (a file: from its position on); None if only reading it will tell."""
    _refuse_what_is_no_payload(payload)
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return _flat(payload).nbytes
    if isinstance(payload, os.PathLike):
        return _size_of_path(payload)
    if isinstance(payload, io.BytesIO):
        return max(0, payload.getbuffer().nbytes - payload.tell())
    if isinstance(payload, AsyncIterable):
        return None
    if isinstance(getattr(payload, "raw", payload), io.FileIO):
        # Only plain files: a GzipFile has the descriptor of the compressed file and another length.
        return _size_of_file(cast(BinaryIO, payload))
    return None


def pieces(payload: Payload, size: int = PIECE_BYTES) -> Pieces:
    """The payload in pieces of at most `size` bytes, once. `InvalidRequestError` at once for a wrong type."""
    _refuse_what_is_no_payload(payload)
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return _of_buffer(_flat(payload), size)
    if isinstance(payload, os.PathLike):
        return _of_path(payload, size)
    if isinstance(payload, AsyncIterable):
        return _of_async_iterable(payload, size)
    if hasattr(payload, "read"):
        return _of_file(cast(BinaryIO, payload), size)
    return _of_iterable(payload, size)


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
        if len(head) == _HEAD_PIECES_MAX:  # a million pieces of one byte must not weigh fifty each
            head = [b"".join(head)]
    return head, total, None


def _refuse_what_is_no_payload(payload: object) -> None:
    if isinstance(payload, str):
        raise InvalidRequestError("a payload of type str is ambiguous: pass text.encode(), or pathlib.Path(…) for a file")
    if isinstance(payload, io.TextIOBase):
        raise InvalidRequestError(f"a payload of type {_type(payload)} yields text: open the file in binary mode ('rb')")
    iterable = isinstance(payload, (bytes, bytearray, memoryview, os.PathLike, AsyncIterable, Iterable)) or hasattr(payload, "read")
    if isinstance(payload, Mapping) or not iterable:
        raise InvalidRequestError(
            f"a payload of type {_type(payload)} cannot be stored: pass bytes, a pathlib.Path, an open binary file or an iterable of bytes"
        )


def _flat(payload: bytes | bytearray | memoryview) -> memoryview:
    try:
        return memoryview(payload).cast("B")
    except TypeError as error:
        raise InvalidRequestError(f"a payload of type memoryview must be contiguous ({error}): pass bytes(view)") from None


def _size_of_path(path: os.PathLike[str]) -> int | None:
    try:
        found = os.stat(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _size_of_file(file: BinaryIO) -> int | None:
    found = os.fstat(file.fileno())
    return max(0, found.st_size - file.tell()) if stat.S_ISREG(found.st_mode) else None


def _unreadable(path: os.PathLike[str], error: OSError) -> InvalidRequestError:
    return InvalidRequestError(f"the payload {os.fspath(path)!r} cannot be read: {error.strerror or error}")


async def _of_buffer(view: memoryview, size: int) -> Pieces:
    for start in range(0, view.nbytes, size):
        yield view[start : start + size]


async def _of_path(path: os.PathLike[str], size: int) -> Pieces:
    try:
        file = await to_thread.run_sync(_open, path)
    except OSError as error:
        raise _unreadable(path, error) from error
    with file:
        async with aclosing(_of_file(file, size)) as source:
            async for piece in source:
                yield piece


def _open(path: os.PathLike[str]) -> io.FileIO:
    return io.FileIO(os.fspath(path), "rb")


async def _of_file(file: BinaryIO | io.FileIO, size: int) -> Pieces:
    while True:
        piece = await to_thread.run_sync(file.read, size)
        for part in _cut(piece, size):
            yield part
        if not piece:
            return


async def _of_async_iterable(payload: AsyncIterable[bytes], size: int) -> Pieces:
    source = aiter(payload)
    try:
        async for piece in source:
            for part in _cut(piece, size):
                yield part
    finally:
        # Abandoned half-way, the caller's generator is closed now, not when it happens to be collected.
        if isinstance(source, AsyncGenerator):
            await source.aclose()


async def _of_iterable(payload: Iterable[bytes], size: int) -> Pieces:
    for piece in payload:
        for part in _cut(piece, size):
            yield part


def _cut(piece: object, size: int) -> Iterable[Piece]:
    if not isinstance(piece, (bytes, bytearray, memoryview)):
        raise InvalidRequestError(f"a piece of the payload has type {_type(piece)}: yield bytes")
    # A buffer may be refilled by its owner while we hold the piece, so it is copied; bytes never are.
    whole = piece if isinstance(piece, bytes) else bytes(piece)
    if len(whole) <= size:
        return (whole,) if whole else ()
    view = memoryview(whole)
    return (view[start : start + size] for start in range(0, len(whole), size))


def _type(value: object) -> str:
    return type(value).__name__
