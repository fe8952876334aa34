"""The local side: a directory whose files are walked, read, placed and deleted. Nothing here leaves that directory.

A file is reached from the directory's own descriptor, name by name, and no symbolic link is followed on the way. So
neither a name with `..` nor a link, also one that is made meanwhile, leads out. What was given as the directory itself
may be a link.

A new file is written under a name of this software's own beside its place (`.tiered-sync-….partial`), and is then
renamed: its place has the old bytes or the new ones. *Crash*: a killed process leaves that partial file, on which it
held a lock. The next download finds it without one, and deletes it. *Failure*: an error of the system becomes
`UnavailableError` if it may go away by itself (the disk is full), otherwise `InvalidRequestError`.

All calls block, and are made in threads. The names of one directory are in memory at a time, and of those above it.
"""

from __future__ import annotations

import errno
import fcntl
import io
import itertools
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from changelog.base.errors import InvalidRequestError, TieredError, UnavailableError
from tiered.settings import DATABASE_NAME
from tiered.text import quoted
from tiered.whose import refuse_store

READ_BYTES = 1024 * 1024
"""How much is read at once. A file that is no longer is kept in memory between its comparison and its upload."""

PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.EAGAIN)
"""Errors that may go away while the request stays the same."""

_PARTIAL = re.compile(r"\.tiered-(sync-)?\d+-\d+\.partial")
"""What a download is written to, also that of `tiered get`. No such file is an object's."""

_INTO = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_numbers = itertools.count()


class LocalEntry(NamedTuple):
    """Something in the directory. `path`: from there, with `/` between names.

    `skipped`: why it is no file that could be copied, such as a link. `fault`: why nobody knows what is there. Both
    None: it is a regular file. `is_whole`: the entry stands for a directory and all that is in it.
    """

    path: str
    skipped: str | None = None
    fault: str | None = None
    is_whole: bool = False

    @property
    def order(self) -> bytes:
        """Its place among entries and keys."""
        return os.fsencode(f"{self.path}/" if self.is_whole else self.path)


class FileState(NamedTuple):
    """What tells whether a file is still the same: if nothing of this has changed, nobody wrote to it in between."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileState:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class LocalFile:
    """An open regular file, which is read from its beginning. Close it."""

    def __init__(self, path: str, file: io.FileIO) -> None:
        self.path = path
        self.state = FileState.of(os.fstat(file.fileno()))
        self._file = file
        self._read = 0

    def read(self) -> bytes:
        """Returns the next bytes; none at the end. Raises `UnavailableError` if the file was changed meanwhile."""
        with translated(self.path):
            found = self._file.read(READ_BYTES) or b""
            self._read += len(found)
            if self._read > self.state.size or (not found and FileState.of(os.fstat(self._file.fileno())) != self.state):
                raise changed(self.path)
        return found

    def rewind(self) -> None:
        self._file.seek(0)
        self._read = 0

    def close(self) -> None:
        self._file.close()


class PartialFile:
    """What is to become the file at `path`. Write its bytes; then `finish` or `abandon` it."""

    def __init__(self, path: str, parent: int, placing: Lock) -> None:
        self._path = path
        self._name = path.rpartition("/")[2]
        self._parent = parent
        self._placing = placing
        try:
            self._partial, self._file = _new_partial(parent)
        except BaseException:
            os.close(parent)
            raise

    def file(self) -> io.FileIO:
        """The file that is written."""
        return io.FileIO(self._file, "rb+", closefd=False)

    def read(self, start: int) -> bytes:
        """Returns what was written from there on, or a part of it; none at the end."""
        with translated(self._path):
            return os.pread(self._file, READ_BYTES, start)

    def write(self, whole: bytes | memoryview) -> None:
        with translated(self._path):
            while whole:
                whole = memoryview(whole)[os.write(self._file, whole) :]

    def finish(self, expected: FileState | None) -> None:
        """Gives the file its name. `expected`: the file that it replaces; None: none is there.

        `UnavailableError`: another is there; nothing was replaced.
        """
        with translated(self._path):
            with self._placing:
                there = _looked_at(self._name, self._parent)
                _refuse_directory(self._path, there)
                if (None if there is None else FileState.of(there)) != expected:
                    raise UnavailableError(f"{quoted(self._path)} was changed here meanwhile, and was not replaced; try again")
                if there is not None:
                    os.fchmod(self._file, stat.S_IMODE(there.st_mode))
                os.rename(self._partial, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
            self._close()

    def abandon(self) -> None:
        """Deletes what was written. After `finish`, does nothing."""
        if self._file >= 0:
            with suppress(OSError):
                os.unlink(self._partial, dir_fd=self._parent)
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, -1
        os.close(self._parent)
        os.close(file)


class LocalTree:
    """A directory and what is in it. Close it."""

    def __init__(self, directory: Path, *, make: bool, own: Path | None = None) -> None:
        """`make`: it is made, with those above it, if it is not there. `own`: the directory of the open store, if any.

        `InvalidRequestError`: it is no directory, it belongs to a store, or the open one is in it.
        """
        refuse_store(directory, own, around=True)
        self.directory = directory
        self._placing = Lock()
        with translated(str(directory)):
            if make:
                directory.mkdir(parents=True, exist_ok=True)
            self._root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        os.close(self._root)

    # --- looking ---------------------------------------------------------------------------------

    def walk(self, *, sweep: bool = False) -> Iterator[LocalEntry]:
        """Yields what is in the directory, in the byte order of the paths. Directories are walked, and not yielded.

        A directory that vanished meanwhile is left out. `sweep`: partial files of downloads that died are deleted.
        """
        waiting = [("", self._listed("", sweep))]
        while waiting:
            above, (names, skipped) = waiting[-1]
            if not names:
                waiting.pop()
                continue
            name = os.fsdecode(names.pop())
            path = f"{above}{name}"
            if not name.endswith("/"):
                yield LocalEntry(path, skipped=skipped.get(name))
                continue
            try:
                waiting.append((path, self._listed(path, sweep)))
            except FileNotFoundError:
                continue
            except TieredError as error:
                yield LocalEntry(path[:-1], fault=str(error), is_whole=True)
            except OSError as error:
                yield LocalEntry(path[:-1], fault=f"the directory cannot be read: {error.strerror}", is_whole=True)

    def _listed(self, above: str, sweep: bool) -> tuple[list[bytes], dict[str, str]]:
        """The names in a directory, the last one first, and why some are skipped. Those of directories end with `/`."""
        names: list[bytes] = []
        skipped: dict[str, str] = {}
        opened = self._open_directory(above.split("/")[:-1])
        try:
            with os.scandir(opened) as found:
                for each in found:
                    if each.is_dir(follow_symlinks=False):
                        names.append(os.fsencode(f"{each.name}/"))
                        continue
                    if partial := _PARTIAL.fullmatch(each.name):
                        if sweep and partial[1]:
                            _sweep(each.name, opened)
                        continue
                    names.append(os.fsencode(each.name))
                    if not each.is_file(follow_symlinks=False):
                        skipped[each.name] = "it is a symbolic link" if each.is_symlink() else "it is no regular file"
        finally:
            os.close(opened)
        if os.fsencode(DATABASE_NAME) in names:
            raise InvalidRequestError("an embedded store is in it: a copy of its files is no copy of the store")
        names.sort(reverse=True)
        return names, skipped

    def open(self, path: str) -> LocalFile:
        """Opens a file to read it. `FileNotFoundError`: it is gone. `InvalidRequestError`: it is no regular file."""
        with translated(path), self._parent(path) as (parent, name):
            # Without O_NONBLOCK, opening a pipe waits until somebody writes to it.
            file = io.FileIO(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent), "rb")
        try:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidRequestError(f"{quoted(path)} is no regular file")
            return LocalFile(path, file)
        except BaseException:
            file.close()
            raise

    # --- changing --------------------------------------------------------------------------------

    def begin(self, path: str, *, is_new: bool) -> PartialFile:
        """Begins a file, and makes the directories above it. `is_new`: raises what `check_free` does."""
        if is_new:
            self.check_free(path)
        with translated(path):
            return PartialFile(path, self._open_directory(path.split("/")[:-1], make=True), self._placing)

    def check_free(self, path: str) -> None:
        """Raises an error unless a new file can have this path: what is there or on the way to it is in its way."""
        with translated(path), suppress(FileNotFoundError), self._parent(path) as (parent, name):
            there = _looked_at(name, parent)
            _refuse_directory(path, there)
            if there is not None:
                raise UnavailableError(f"{quoted(path)} is there meanwhile, or under another spelling of its name; try again")

    def lacks_room(self, path: str) -> bool:
        """Whether a directory is in the place of a file, or a file where a directory on the way to it would be."""
        try:
            with translated(path), suppress(FileNotFoundError), self._parent(path) as (parent, name):
                return (there := _looked_at(name, parent)) is not None and stat.S_ISDIR(there.st_mode)
        except InvalidRequestError as error:
            if not isinstance(error.__cause__, NotADirectoryError):
                raise
            return True
        return False

    def remove_empty(self, path: str) -> None:
        """Removes a directory in which there is nothing but empty directories. Others, and files, stay."""
        with suppress(OSError), self._parent(path) as (parent, name):
            for _, directories, _, above in os.fwalk(name, topdown=False, dir_fd=parent):
                for each in directories:
                    with suppress(OSError):
                        os.rmdir(each, dir_fd=above)
            os.rmdir(name, dir_fd=parent)

    def delete(self, path: str) -> None:
        """Deletes a regular file, and the directories above it that are empty then. It is no error if it is gone."""
        names = path.split("/")
        with translated(path), suppress(FileNotFoundError), self._parent(path) as (parent, name):
            if not stat.S_ISREG(os.lstat(name, dir_fd=parent).st_mode):
                raise InvalidRequestError(f"{quoted(path)} is no regular file any more, and was not deleted")
            os.unlink(name, dir_fd=parent)
        with suppress(OSError):  # it is not empty
            while names := names[:-1]:
                with self._parent("/".join(names)) as (parent, name):
                    os.rmdir(name, dir_fd=parent)

    def takes_case_for_nothing(self) -> bool:
        """Whether `a` and `A` are one file here. Looks with a file that it makes; False if it cannot make one."""
        try:
            name, file = _new_partial(self._root)
        except OSError:
            return False
        try:
            return _looked_at(name.upper(), self._root) is not None
        finally:
            os.unlink(name, dir_fd=self._root)
            os.close(file)

    # --- descriptors -----------------------------------------------------------------------------

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        above, _, name = path.rpartition("/")
        parent = self._open_directory(above.split("/") if above else [])
        try:
            yield parent, name
        finally:
            os.close(parent)

    def _open_directory(self, names: list[str], *, make: bool = False) -> int:
        at = os.dup(self._root)
        for name in names:
            above = at
            try:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(name, dir_fd=above)
                at = os.open(name, _INTO, dir_fd=above)
            finally:
                os.close(above)
        return at


def check_file_path(path: str) -> None:
    """Raises `InvalidRequestError` if no file below a directory can have this path."""
    names = path.split("/")
    for name in names:
        if name in ("", ".", "..") or "\0" in name:
            raise InvalidRequestError(f"the key {quoted(path)} is no path of a file: it has a part {quoted(name)}")
    if _PARTIAL.fullmatch(names[-1]):
        raise InvalidRequestError(f"the key {quoted(path)} ends with a name that only unfinished downloads have")


def changed(path: str) -> UnavailableError:
    return UnavailableError(f"{quoted(path)} was changed while it was read; try again")


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turns an error of the system into one of `tiered`, but for `FileNotFoundError`."""
    try:
        yield
    except (FileNotFoundError, TieredError):
        raise
    except OSError as error:
        kind = UnavailableError if error.errno in PASSING else InvalidRequestError
        why = error.strerror or str(error)
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            why = "a file or a symbolic link is on the way to it, or in its place"
        raise kind(f"{quoted(path)}: {why}") from error
    except ValueError as error:  # a NUL in a path
        raise InvalidRequestError(f"{quoted(path)}: {error}") from error


def _refuse_directory(path: str, there: os.stat_result | None) -> None:
    if there is not None and stat.S_ISDIR(there.st_mode):
        raise InvalidRequestError(f"{quoted(path)}: a directory is there in its place; remove it")


def _looked_at(name: str, parent: int) -> os.stat_result | None:
    try:
        return os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return None


def _new_partial(parent: int) -> tuple[str, int]:
    """Makes a partial file that is locked. Returns its name and its descriptor."""
    while True:
        name = f".tiered-sync-{os.getpid()}-{next(_numbers)}.partial"
        try:
            file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=parent)
        except FileExistsError:  # of a dead process with this number
            continue
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:  # else another download took it for one of a dead process
                return name, file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _sweep(name: str, parent: int) -> None:
    """Deletes a partial file that nobody has locked."""
    with suppress(OSError):
        file = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name, dir_fd=parent)
        finally:
            os.close(file)
