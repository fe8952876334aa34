"""How `put` and `get` move payloads: from stdin, and to stdout, a file or a pipe."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import AsyncIterator
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from anyio import to_thread

from changelog.base.errors import InvalidRequestError, UnavailableError
from tiered.stored import CHUNK_BYTES, StoredObject

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer


async def read_stdin() -> AsyncIterator[bytes]:
    """Yields what stdin holds. Raises `InvalidRequestError` if stdin is closed or cannot be read.

    It reads in threads. An interrupted command abandons them, because nothing else ends a read that waits.
    """
    if sys.stdin is None:
        raise InvalidRequestError("stdin is closed; name a file")
    source = cast(BufferedReader, sys.stdin.buffer)
    try:
        while chunk := await to_thread.run_sync(source.read1, CHUNK_BYTES, abandon_on_cancel=True):
            yield chunk
    except OSError as error:
        raise InvalidRequestError(f"stdin cannot be read: {error.strerror}") from None


class _OneStream(io.RawIOBase):
    """Stdout as what it may be, a pipe. As a file, it could be left with a hole in the middle."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def write(self, chunk: Buffer, /) -> int | None:
        return self._raw.write(chunk)


def is_stdout(file: str) -> bool:
    return file in ("-", "/dev/stdout")


async def save(stored: StoredObject, file: str) -> None:
    """Writes the payload to stdout (`-`) or to a file. If this fails, a plain file is as it was before.

    A pipe or a device is not replaced; it is written to, and may have got a part. Raises `UnavailableError` if the disk
    is full or broken, and `InvalidRequestError` if the output cannot be written for another reason.
    """
    if is_stdout(file):
        if sys.stdout is None:
            raise InvalidRequestError("stdout is closed; add --output FILE")
        sys.stdout.flush()
        # Without a buffer, since a write that hangs would keep the buffer's lock.
        raw = cast(io.RawIOBase, getattr(sys.stdout.buffer, "raw", sys.stdout.buffer))
        await stored.save(cast(BinaryIO, _OneStream(raw)))
        return
    if not file or file.endswith("/"):
        raise InvalidRequestError(f"{file!r} cannot be written: it names no file")
    try:
        await stored.save(Path(file))
    except OSError as error:
        kind = UnavailableError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else InvalidRequestError
        raise kind(f"{file!r} cannot be written: {error.strerror}") from None
