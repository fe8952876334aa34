"""One open file of the file system.

Reading: by ranges, with fsspec's caches. All of them come from the revision that was opened, or reading fails.
Writing: into memory, and beyond 8 MiB into a temporary file. `close` puts all of it at once, or nothing.

A file that nobody closes is stored when nobody refers to it any more, or when the interpreter exits: DuckDB leaves it
to that. Nothing is stored if a write failed, or if an error ended the code that wrote the file. fsspec's `OpenFile`,
pandas and pyarrow close a file from an `__exit__` of their own and do not say that there was an error. So `close` looks
for such a block among its callers, and a file that is dropped looks whether its dropper forgets an error. `TextFile`
and `PackedFile` are what `open` returns for text and for compressed files; they keep the same rules.
"""

from __future__ import annotations

import atexit
import io
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dis import opmap
from inspect import currentframe
from tempfile import SpooledTemporaryFile
from threading import Thread
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any
from weakref import WeakValueDictionary

from fsspec.compression import compr
from fsspec.spec import AbstractBufferedFile

from changelog.base.errors import InvalidRequestError
from changelog.base.events import events
from tiered.errors import ConditionFailedError
from tiered.stored import ObjectHead
from tiered.sync.loop import in_shared_loop

IN_MEMORY_BYTES_MAX = 8 << 20

EXIT_WITH_ERROR = opmap["WITH_EXCEPT_START"]
FORGET_ERROR, POP, LOAD_NONE = opmap["POP_EXCEPT"], opmap["POP_TOP"], opmap["LOAD_CONST"]
STORES = {opmap[f"STORE_{kind}"]: opmap[f"DELETE_{kind}"] for kind in ("FAST", "NAME", "GLOBAL", "DEREF")}

_unclosed: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""What callers write to, by the id of its `TieredFile`, which cannot be hashed while it is written."""


class TieredFile(AbstractBufferedFile):  # type: ignore[misc] # fsspec has no types
    """A file of a `TieredFileSystem`, opened by its `open`, for `rb`, `wb`, `xb` or `ab`.

    An `ab` file begins with what the object holds and keeps its metadata. If somebody else writes the object before the
    file is closed, `close` raises `OSError` and stores nothing.
    """

    _written: SpooledTemporaryFile[bytes] | None = None
    _appended: ObjectHead | None = None
    _is_torn = False
    _is_begun = False
    _error_at_open: BaseException | None = None
    forced: bool
    mode: str

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.mode == "rb":
            self._pin_revision()
            return
        self._process = os.getpid()
        self._error_at_open = sys.exc_info()[1]
        self._written = written = SpooledTemporaryFile(IN_MEMORY_BYTES_MAX)  # noqa: SIM115 - until `commit` or `discard`
        if self.mode == "ab":
            try:
                self._begin_with_what_is_there(written)
            except BaseException:
                self.discard()
                raise
        _unclosed[id(self)] = self

    def _pin_revision(self) -> None:
        """Notes which revision is read. `OSError`: this file was pickled, and the object was written since."""
        if self.details["type"] != "file":
            raise IsADirectoryError(self.path)
        revision = str(self.details["revision"])
        if self.kwargs.setdefault("revision", revision) != revision:
            raise OSError(f"{self.path} was written by somebody since the file was pickled; open it again")

    def _begin_with_what_is_there(self, written: SpooledTemporaryFile[bytes]) -> None:
        try:
            stored = self.fs._stored(self.path)
        except FileNotFoundError:
            return
        with stored:
            if stored.revision is None:
                raise InvalidRequestError(f"{self.path} has no revision, because other software wrote it: read it, and write it anew")
            if stored.metadata.compression is not None:
                raise InvalidRequestError(f"{self.path} is compressed, and what is appended would not be: read it, and write it anew")
            shutil.copyfileobj(stored, written)
        self._appended, self.loc = stored.head, stored.size

    def _fetch_range(self, start: int, end: int) -> bytes:
        if start >= min(end, self.size):
            return b""
        self._pin_revision()  # a cache may read before this file is made
        return bytes(self.fs.read_range(self.path, start, min(end, self.size), self.kwargs["revision"]))

    # --- writing

    def write(self, data: Any) -> int:
        """Takes bytes. They are stored when the file is closed. If this fails half-way, `close` stores nothing."""
        if self.mode == "rb":
            raise ValueError("File not in write mode")
        if self.closed or self.forced or self._written is None:
            raise ValueError("I/O operation on closed file.")
        chunk = memoryview(data).cast("B")
        self._is_begun = True
        try:
            self._written.write(chunk)
        except BaseException:
            self._is_torn = True
            raise
        self.loc += chunk.nbytes
        return chunk.nbytes

    def flush(self, force: bool = False) -> None:
        """Stores nothing. With `force` it is the end of the file, as fsspec's `close` wants it."""
        if self.closed:
            raise ValueError("Flush on closed file")
        if self.mode == "rb" or not force:
            return
        self.forced = True
        if self.autocommit:
            self.commit()

    def commit(self) -> None:
        """Stores what was written. fsspec calls it at the end of a transaction, for each file that was opened in it.

        `FileExistsError`: it was opened with `xb`, and somebody was first. `OSError`: a write failed, the file was not
        closed, or somebody wrote the object that `ab` was to append to. Nothing of it is stored then.
        """
        written, self._written = self._written, None
        if written is None:
            return  # it was discarded
        with written:
            if self._is_torn:
                raise OSError(f"a write to {self.path} failed, so nothing of it was stored")
            if not self.forced:
                self.closed = True
                raise OSError(f"{self.path} was still open at the end of its transaction, so nothing of it was stored: close it before")
            written.seek(0)
            if self.mode == "ab":
                self._append(written)
            else:
                self.fs._store(self.path, written, if_absent=self.mode == "xb")

    def _append(self, written: SpooledTemporaryFile[bytes]) -> None:
        before = self._appended
        condition: Mapping[str, Any] = {"if_absent": True}
        if before is not None:
            metadata = before.metadata.with_facts(size=None, time_created_ns=None, time_expires_ns=None)
            condition = {"if_revision": before.revision, "metadata": metadata}
        try:
            self.fs._store(self.path, written, **condition)
        except (ConditionFailedError, FileExistsError):
            raise OSError(f"{self.path} was written by somebody since it was opened for appending; open it again") from None

    def discard(self) -> None:
        """Forgets what was written. Nothing of it is stored."""
        written, self._written = self._written, None
        if written is not None:
            written.close()
        self._error_at_open = None
        self.closed = True

    # --- its end

    def close(self) -> None:
        """Ends the file, and stores what was written to it, unless a `with` block that failed closes it."""
        if self.closed:
            return
        if self.mode != "rb" and (error := self._error_of_the_block()) is not None:
            self.discard()
            events.warning("file_discarded", "the block that wrote it ended with an error", path=self.path, error=type(error).__name__)
            return
        try:
            super().close()
        finally:
            self._error_at_open = None

    def _error_of_the_block(self) -> BaseException | None:
        """The error with which a `with` block ends, if that is why this is called.

        Then a frame through which the error has passed is at the instruction that calls `__exit__` because of an error.
        """
        error = sys.exc_info()[1]
        if error is None or error is self._error_at_open:
            return None
        passed = [frame for frame, _ in walk_tb(error.__traceback__)]
        frame = currentframe()
        while frame is not None:
            if frame in passed and frame.f_code.co_code[frame.f_lasti] == EXIT_WITH_ERROR:
                return error
            frame = frame.f_back
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None and self.mode != "rb":
            self.discard()
        else:
            self.close()

    def __del__(self) -> None:
        _drop(self, self)


# --- what nobody closes ----------------------------------------------------------------------------


def _drop(file: TieredFile, whole: Any) -> None:
    """Ends a file that nobody refers to any more: as its `close` does, unless an error ended the code that wrote it.

    `whole`: what the caller wrote to. A file that was only opened is forgotten: nobody asked for an empty object. So is
    one that was opened before a fork, in the child.
    """
    if file.closed or file.mode == "rb":
        return
    if file._written is None or not file._is_begun or file._process != os.getpid():
        file.discard()
    elif sys.exc_info()[1] not in (None, file._error_at_open) or _forgets_an_error(currentframe()):
        _discard_dropped(file)
    elif in_shared_loop():
        Thread(target=_close_dropped, args=(file, whole)).start()  # this thread would wait for itself; at exit, the interpreter waits
    else:
        _close_dropped(file, whole)


def _close_dropped(file: TieredFile, whole: Any) -> None:
    try:
        whole.close()
    except Exception as error:  # noqa: BLE001 - nobody is there to take it
        events.error("file_lost", error, path=file.path)


def _discard_dropped(file: TieredFile) -> None:
    file.discard()
    events.warning("file_discarded", "an error ended the code that wrote it, and nobody closed it", path=file.path)


def _forgets_an_error(frame: FrameType | None) -> bool:
    """Whether this is called because the code that drops a file is at the end of an `except`, or of a `with` that takes
    an error. There the error's traceback ends, and with it what only the failed code referred to.
    """
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    if frame is None:
        return False
    code, place = frame.f_code.co_code, frame.f_lasti
    if place + 3 < len(code) and STORES.get(code[place]) == code[place + 2] and code[place + 1] == code[place + 3]:
        place -= 2  # `except … as error` ends with `error = None; del error`
        return code[place] == LOAD_NONE and code[place - 2] == FORGET_ERROR
    while code[place] == POP:
        place -= 2
    return code[place] == FORGET_ERROR


def _at_exit() -> None:
    """Ends what is still open, as if it was dropped: later there is no store. A program that failed leaves halves."""
    for whole in list(_unclosed.values()):
        file = whole if isinstance(whole, TieredFile) else whole._file
        if getattr(sys, "last_value", None) is not None and file._is_begun and not file.closed:
            _discard_dropped(file)
        else:
            _drop(file, whole)


atexit.register(_at_exit)  # runs before the shared loop ends, which was imported and registered before


# --- text and compression --------------------------------------------------------------------------


class _OnFile:
    """A file that writes through to a `TieredFile`, and ends it."""

    _file: TieredFile
    _is_detached = False

    def write(self, data: Any) -> int:
        self._file._is_begun = True
        return int(super().write(data))  # type: ignore[misc] # of io

    def detach(self) -> Any:
        """Returns what is below, which the caller then closes."""
        self._is_detached = True
        return super().detach()  # type: ignore[misc] # of io

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            super().close()  # type: ignore[misc] # of io
        except BaseException:
            self._file.discard()
            raise
        self._file.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        self._file.discard()
        with suppress(Exception):
            super().close()  # type: ignore[misc] # what is below was discarded

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None and not self._is_detached:
            _drop(file, self)
        with suppress(Exception):
            super().close()  # type: ignore[misc] # what is below was discarded or closed


class TextFile(_OnFile, io.TextIOWrapper):
    """A file that is written as text."""

    def __init__(self, packed: Any, file: TieredFile, **text: Any) -> None:
        self._file = file
        super().__init__(packed, **text)


class PackedFile(_OnFile, io.BufferedWriter):
    """A file that is written compressed."""

    def __init__(self, packed: Any, file: TieredFile) -> None:
        self._file = file
        super().__init__(packed)


def written_through(file: TieredFile, compression: str | None, text: Mapping[str, Any] | None) -> Any:
    """Returns what a caller writes to: compressed if `compression` names one; `text`: the options of a text file."""
    packed = compr[compression](file, mode=file.mode[0])
    file._is_begun = False  # what was written is a header
    if text is None and packed is file:
        return file
    _unclosed[id(file)] = whole = PackedFile(packed, file) if text is None else TextFile(packed, file, **text)
    return whole
