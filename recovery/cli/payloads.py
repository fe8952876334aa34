"""How `put` and `get` move payloads: from stdin, and to stdout, a file or a pipe."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import AsyncIterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, cast

from anyio import to_thread, wait_writable

from changelog.base.errors import InvalidRequestError, UnavailableError
from changelog.base.runtime import SystemRuntime
from tiered.stored import CHUNK_BYTES, StoredObject


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


async def save(stored: StoredObject, file: str) -> None:
    """Writes the payload to stdout (`-`) or to a file. If this fails, a plain file is as it was before.

    A pipe or a device is not replaced; it is written to, and may have got a part. Raises `UnavailableError` if the disk
    is full or broken, and `InvalidRequestError` if the output cannot be written for another reason.
    """
    if file in ("-", "/dev/stdout"):
        if sys.stdout is None:
            raise InvalidRequestError("stdout is closed; add --output FILE")
        sys.stdout.flush()
        await _write(stored, getattr(sys.stdout.buffer, "raw", sys.stdout.buffer))
        return
    try:
        target, is_plain = _target(file)
        if is_plain:
            await _replace(stored, target)
        else:  # in a thread: to open a pipe waits until somebody reads it
            with await to_thread.run_sync(lambda: open(file, "wb", buffering=0), abandon_on_cancel=True) as out:
                await _write(stored, out)
    except OSError as error:
        kind = UnavailableError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else InvalidRequestError
        raise kind(f"{file!r} cannot be written: {error.strerror}") from None


async def _replace(stored: StoredObject, target: Path) -> None:
    # The name does not contain the target's name: a longer name than the target's may be too long for the file system.
    partial = target.with_name(f".tiered-{SystemRuntime().random.getrandbits(64):016x}.partial")
    try:
        with partial.open("xb", buffering=0) as out:
            _keep_mode(partial, target)
            await _write(stored, out)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


_OPEN_FILES = ("/dev/fd/", "/dev/std", "/proc/")


def _target(file: str) -> tuple[Path, bool]:
    """Follows symbolic links, and says whether a plain file is there or may be made. Raises `OSError`."""
    target = Path(os.path.realpath(file))
    try:
        mode = os.stat(file).st_mode
    except FileNotFoundError:
        return target, bool(file) and not file.endswith("/")
    return target, stat.S_ISREG(mode) and not os.path.abspath(file).startswith(_OPEN_FILES)


def _keep_mode(partial: Path, target: Path) -> None:
    if target.exists():
        partial.chmod(stat.S_IMODE(target.stat().st_mode))


async def _write(stored: StoredObject, out: BinaryIO) -> None:
    """Writes without a buffer, since a write that hangs would keep the buffer's lock.

    It writes in threads, which an interrupted command abandons.
    """
    async for chunk in stored:
        rest = memoryview(chunk)
        while rest:
            written = await to_thread.run_sync(out.write, rest, abandon_on_cancel=True)
            if written is None:  # the pipe is full, and somebody made it non-blocking
                await wait_writable(out)
            rest = rest[written or 0:]
