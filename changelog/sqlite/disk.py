"""What a database asks of its disk: its directory, whose file it is, how much is free, and a reserve for deletions.

Nothing here opens the database's own file. Only SQLite may do that: closing any other descriptor of it would release
this process's locks.
"""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from changelog.sqlite.forks import Identity

RESERVE_BYTES = 1 << 20


class Reserve:
    """A file that is deleted when the disk is full, so that other things can be deleted.

    Every process may make and remove it.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._path = database.with_name(f"{database.name}-reserve")

    def restore(self) -> None:
        """Makes the file again. Raises `OSError` if there is no space for it."""
        with suppress(FileNotFoundError):
            if os.stat(self._path).st_size == RESERVE_BYTES:
                return
        try:
            mode = os.stat(self._database).st_mode & 0o666  # whoever may write the database may write this, too
            with open(self._path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                file.write(bytes(RESERVE_BYTES))
        except OSError:
            self.release()
            raise

    def release(self) -> bool:
        """Deletes the file. False: there was none, or it cannot be deleted."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True


def identity_of(path: Path) -> Identity | None:
    """The file's device and inode; None: there is no file."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def free_bytes(directory: Path) -> int:
    try:
        found = os.statvfs(directory)
    except OSError:
        return 1 << 63  # unknown, so something else must be wrong
    return found.f_bavail * found.f_frsize if found.f_favail or not found.f_files else 0


def is_read_only(directory: Path) -> bool:
    """Whether the file system is read-only for everybody."""
    return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)


def any_file(directory: Path) -> Path | None:
    return next((Path(parent, names[0]) for parent, _, names in os.walk(directory) if names), None)


def make_directory(directory: Path) -> None:
    """Makes the directory, for this user alone, and its parents. They are durable once the file is signed.

    If one cannot be made, those that were made before it are removed again.
    """
    missing = [each for each in (directory, *directory.parents) if not each.is_dir()]
    if missing and missing[-1].exists():
        raise NotADirectoryError(errno.ENOTDIR, "it is a file", str(missing[-1]))
    made: list[Path] = []
    try:
        for each in reversed(missing):
            try:
                each.mkdir(mode=0o700 if each == directory else 0o777)
                made.append(each)
            except FileExistsError:
                if not each.is_dir():  # otherwise another process was faster
                    raise NotADirectoryError(errno.ENOTDIR, "it is a file", str(each)) from None
    except OSError:
        for each in reversed(made):
            with suppress(OSError):
                each.rmdir()
        raise


def make_private(path: Path) -> None:
    """Makes an empty file that only this user may read, unless there is one.

    It has another name while it is open here, so no lock on it can be released. mknod would need none, but on macOS
    only root may call it. A kill may leave the other name behind: it is empty, and in nobody's way.
    """
    if os.path.lexists(path):
        return
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        os.close(descriptor)
        os.link(beside, path)
    finally:
        os.unlink(beside)
