"""Where `StoredObject.save` writes the bytes of an object.

    a path to a plain file, or to nothing    into a temporary file beside it, which replaces it at the end
    an open plain file                       from its position on; its position is then the end of what was written
    a writable buffer                        from its first byte on
    a path to a pipe or device, other files  one write after another, in a thread of its own

The first three take bytes in any order. *Crash*: a path is as it was before, and a file `.tiered-….partial` beside it
may be left. *Failure*, *cancelled*: a path is as it was before, and nothing is left; anything else may have got a part.
What the system says about a file (`OSError`), and what a caller's own file raises, reaches the caller unchanged. A
write to a plain file is waited for, because it ends soon. Another one is given up together with its thread.
"""

from __future__ import annotations

import fcntl
import io
import itertools
import os
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import BinaryIO, TypeVar, cast

from anyio import CancelScope, CapacityLimiter, wait_writable
from anyio.lowlevel import RunVar

from changelog.base.errors import InvalidRequestError
from changelog.base.threads import in_thread
from tiered.payload.own_thread import OwnThread, Thread
from tiered.text import quoted

T = TypeVar("T")

Destination = os.PathLike[str] | BinaryIO | bytearray | memoryview
"""Where `save` writes. A `str` is none: pass the name of a file as `pathlib.Path`."""

Seen = Callable[[bytes], object]

WRITE_THREADS_MAX = 16
_write_threads: RunVar[CapacityLimiter] = RunVar("tiered.payload.destinations.threads")
_partials = itertools.count()
_OPEN_FILES = ("/dev/fd/", "/dev/std", "/proc/")
"""What is named here is open already, so it is written to, and not replaced."""


class Output(ABC):
    """An open destination. `in_any_order`: a write need not begin where the one before it ended."""

    in_any_order = True

    @abstractmethod
    async def write(self, position: int, chunks: Sequence[bytes], seen: Seen) -> None:
        """Writes the chunks, one after another, from `position` on (bytes from the first one of the whole).

        `seen` is called with each chunk, in their order, where it is written: perhaps in a thread.
        """


@asynccontextmanager
async def opened(destination: Destination, size: int | None, thread: Thread | None = None) -> AsyncIterator[Output]:
    """Opens the destination for `size` bytes; None: for as many as come, one write after another.

    If the block ends without an error, all of them were written.

    `thread`: where code of the caller's runs; None: in a thread of its own. `InvalidRequestError`: nothing can be saved
    there.
    """
    if isinstance(destination, os.PathLike):
        path = _path(destination)
        target, is_plain = await _in_thread(partial(_target, path))
        if is_plain:
            async with _replaced(target, size) as output:
                yield output
            return
        async with _in_sequence(partial(io.FileIO, path, "wb"), thread, close=True) as output:
            yield output
        return
    if (view := _writable(destination)) is not None:
        if size is not None and view.nbytes < size:
            raise InvalidRequestError(f"the buffer has {view.nbytes} bytes, and {size} are to be written: pass a longer one")
        yield _BufferOutput(view)
        return
    file = _checked(destination)
    if (plain := _plain(file)) is None:
        async with _in_sequence(lambda: file, thread, close=False) as output:
            yield output
        return
    start = await _in_thread(partial(_flushed, plain))
    yield (output := _FileOutput(plain.fileno(), start))
    await _in_thread(partial(plain.seek, output.end if size is None else start + size))


async def _in_thread(call: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
    threads = _write_threads.get(None)
    if threads is None:
        _write_threads.set(threads := CapacityLimiter(WRITE_THREADS_MAX))
    return await in_thread(call, threads, undo=undo)


# --- what is a destination -----------------------------------------------------------------------


def _path(destination: os.PathLike[str]) -> str:
    try:
        return os.fsdecode(destination)
    except TypeError as error:
        raise InvalidRequestError(f"{quoted(destination)} is no path: {error}") from None


def _writable(destination: object) -> memoryview | None:
    """The bytes of a buffer. None: it is none."""
    if isinstance(destination, str):
        raise InvalidRequestError("a destination of type str is ambiguous: pass pathlib.Path(…) for a file")
    try:
        view = memoryview(destination).cast("B")  # type: ignore[arg-type]
    except TypeError:
        return None
    if view.readonly:
        raise InvalidRequestError(f"a {type(destination).__name__} cannot be written: pass a bytearray of the object's length")
    return view


def _checked(destination: object) -> BinaryIO:
    if isinstance(destination, io.TextIOBase):
        raise InvalidRequestError(f"{quoted(destination)} takes text: open the file in binary mode ('wb')")
    if isinstance(destination, type) or not callable(getattr(destination, "write", None)):
        told = "pass a pathlib.Path, an open binary file, or a bytearray of the object's length"
        raise InvalidRequestError(f"nothing can be saved to {quoted(destination)}: {told}")
    file = cast(BinaryIO, destination)
    if isinstance(file, io.IOBase) and (file.closed or not file.writable()):
        wrong = "is closed" if file.closed else "is open for reading only: open it with 'wb'"
        raise InvalidRequestError(f"the file {quoted(destination)} {wrong}")
    return file


Plain = io.FileIO | io.BufferedWriter | io.BufferedRandom


def _plain(file: BinaryIO) -> Plain | None:
    """The regular file whose descriptor it is, if bytes may be written anywhere in it.

    A GzipFile is none: its descriptor is that of the compressed file. Nor is a file that is open for appending: the
    system adds all that is written to its end.
    """
    inner = file.file if isinstance(file, tempfile._TemporaryFileWrapper) else file
    if not isinstance(inner, Plain) or type(inner) not in (io.FileIO, io.BufferedWriter, io.BufferedRandom):
        return None
    if type(getattr(inner, "raw", inner)) is not io.FileIO:
        return None
    is_regular = stat.S_ISREG(os.fstat(inner.fileno()).st_mode)
    return inner if is_regular and not fcntl.fcntl(inner.fileno(), fcntl.F_GETFL) & os.O_APPEND else None


def _flushed(file: Plain) -> int:
    """Where the file stands, once nothing of it waits in memory."""
    file.flush()
    return file.tell()


# --- outputs -------------------------------------------------------------------------------------


class _BufferOutput(Output):
    def __init__(self, view: memoryview) -> None:
        self._view = view

    async def write(self, position: int, chunks: Sequence[bytes], seen: Seen) -> None:
        for chunk in chunks:
            if position + len(chunk) > self._view.nbytes:  # of what is decompressed, only this tells
                raise InvalidRequestError(f"the buffer has {self._view.nbytes} bytes, and more came: pass a longer one, or a file")
            self._view[position : position + len(chunk)] = chunk
            seen(chunk)
            position += len(chunk)


class _FileOutput(Output):
    """A regular file. `start`: where in it the first byte belongs. `end`: of the last write."""

    def __init__(self, descriptor: int, start: int) -> None:
        self._descriptor = descriptor
        self._start = self.end = start

    async def write(self, position: int, chunks: Sequence[bytes], seen: Seen) -> None:
        await _in_thread(partial(self._write, self._start + position, chunks, seen))

    def _write(self, position: int, chunks: Sequence[bytes], seen: Seen) -> None:
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                written = os.pwrite(self._descriptor, rest, position)
                position, rest = position + written, rest[written:]
            seen(chunk)
        self.end = position


class _SequentialOutput(Output):
    in_any_order = False

    def __init__(self, file: BinaryIO | io.FileIO, thread: Thread) -> None:
        self._file = file
        self._thread = thread
        self._may_write_less = isinstance(file, io.RawIOBase)

    async def write(self, position: int, chunks: Sequence[bytes], seen: Seen) -> None:
        for chunk in chunks:
            rest: bytes | memoryview = chunk
            while rest:
                written = await self._thread.run(partial(self._file.write, rest))
                if not self._may_write_less:
                    break
                if written is None:  # the pipe is full, and somebody made it non-blocking
                    await wait_writable(self._file)
                rest = memoryview(rest)[written or 0 :]
            seen(chunk)


@asynccontextmanager
async def _in_sequence(open_file: Callable[[], BinaryIO | io.FileIO], thread: Thread | None, *, close: bool) -> AsyncIterator[Output]:
    """In a thread: to open a pipe waits until somebody reads it."""
    thread = thread or await OwnThread.start()
    files: list[BinaryIO | io.FileIO] = []

    def begin() -> BinaryIO | io.FileIO:
        files.append(file := open_file())
        return file

    def end() -> None:
        if close:
            for file in files:
                file.close()

    try:
        yield _SequentialOutput(await thread.run(begin), thread)
        await thread.run(end)
    finally:
        thread.end(end)


# --- a path --------------------------------------------------------------------------------------


def _target(path: str) -> tuple[str, bool]:
    """Follows symbolic links, and says whether a plain file is there or may be made."""
    target = os.path.realpath(path)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return target, not path.endswith("/")
    return target, stat.S_ISREG(mode) and not os.path.abspath(path).startswith(_OPEN_FILES)


@asynccontextmanager
async def _replaced(target: str, size: int | None) -> AsyncIterator[Output]:
    """Makes the whole file beside the target, and renames it."""
    file = await _in_thread(partial(_FileBeside, target), undo=_FileBeside.drop)
    try:
        await _in_thread(partial(file.begin, size))
        yield _FileOutput(file.descriptor, 0)
        await _in_thread(file.publish)
    except BaseException:
        with CancelScope(shield=True):
            await _in_thread(file.drop)
        raise


class _FileBeside:
    """The temporary file beside a target. It has the target's mode, or that of any new file."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._is_open = True
        while True:
            # Without the target's name: a longer one may be too long for the file system.
            self._path = os.path.join(os.path.dirname(target), f".tiered-{os.getpid()}-{next(_partials)}.partial")
            try:
                self.descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileExistsError:  # of a process that was killed, or on another machine
                continue
            except OSError as error:
                error.filename = target  # what the caller has named
                raise
            return

    def begin(self, size: int | None) -> None:
        with suppress(FileNotFoundError):
            os.fchmod(self.descriptor, stat.S_IMODE(os.stat(self._target).st_mode))
        os.ftruncate(self.descriptor, size or 0)  # a file system that cannot hold such a file says so now

    def publish(self) -> None:
        self._is_open = False
        os.close(self.descriptor)
        os.replace(self._path, self._target)

    def drop(self) -> None:
        if self._is_open:
            os.close(self.descriptor)
        with suppress(FileNotFoundError):
            os.unlink(self._path)
