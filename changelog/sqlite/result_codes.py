"""The one table that translates SQLite's result codes into this project's errors.

Errors of the system have the nearest code. What is neither SQLite's nor the system's is the caller's, and stays as it
is.
"""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from changelog.base.errors import ConfigurationError, CorruptRecordError, TieredError, UnavailableError, UnconfirmedError
from changelog.sqlite.disk import free_bytes

NO_SPACE_BYTES = 64 << 10
"""If less is free on the disk, an unclear error of SQLite counts as a full disk.

It is also more than one write changes besides its payload.
"""

_MEANING: dict[int, tuple[type[TieredError], str]] = {
    sqlite3.SQLITE_BUSY: (UnavailableError, "{path} is locked: other processes write without a pause or are stopped; try again"),
    sqlite3.SQLITE_FULL: (UnavailableError, "the disk is full: free some space for {path}"),
    sqlite3.SQLITE_READONLY: (
        UnavailableError, "{path} is read-only: let this user write the file and its directory, or mount the disk for writing"
    ),
    sqlite3.SQLITE_CANTOPEN: (
        UnavailableError, "{path} cannot be opened: let this user write the directory {directory}, and the file if it is there"
    ),
    sqlite3.SQLITE_PERM: (UnavailableError, "{path} cannot be opened: let this user write the file and its directory"),
    sqlite3.SQLITE_IOERR: (UnavailableError, "{path} cannot be read or written: check its disk"),
    sqlite3.SQLITE_NOMEM: (UnavailableError, "SQLite has no memory left for {path}: give this process more"),
    sqlite3.SQLITE_PROTOCOL: (UnavailableError, "{path} is opened by too many processes at once; try again"),
    sqlite3.SQLITE_NOTADB: (CorruptRecordError, "{path} is not an SQLite file: choose another path or restore the file"),
    sqlite3.SQLITE_CORRUPT: (CorruptRecordError, "{path} is damaged: restore it from a backup"),
    sqlite3.SQLITE_MISUSE: (UnavailableError, "{path} is closed"),
}
_OTHER = (CorruptRecordError, "{path} does not hold what this software wrote: restore it from a backup")
_VAGUE = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
_MISPLACED = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOTADB}
_OF_THE_SYSTEM = {
    errno.ENOSPC: sqlite3.SQLITE_FULL, errno.EDQUOT: sqlite3.SQLITE_FULL, errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.EACCES: sqlite3.SQLITE_PERM, errno.EPERM: sqlite3.SQLITE_PERM,
}


def translated(error: Exception, path: Path, *, committing: bool = False, opening: bool = False) -> Exception:
    """The error in this project's terms.

    An error that is not SQLite's or the system's is the caller's, and stays as it is.

    It looks at the disk, so call it in a thread.
    """
    if not isinstance(error, (sqlite3.Error, OSError)):
        return error
    code = code_of(error)
    no_space = is_full(error, path)
    kind, sentence = _MEANING[sqlite3.SQLITE_FULL] if no_space else _MEANING.get(code, _OTHER)
    if committing and code == sqlite3.SQLITE_IOERR:
        kind = UnconfirmedError
    if opening and not no_space and code in _MISPLACED:
        kind = ConfigurationError
    translated = kind(f"{sentence.format(path=path, directory=path.parent)} ({error})")
    translated.__cause__ = error
    return translated


def is_full(error: Exception, path: Path) -> bool:
    """Whether the disk is full: SQLite says so, or it gives an unclear error and the disk has no space left."""
    code = code_of(error)
    return code == sqlite3.SQLITE_FULL or (code in _VAGUE and free_bytes(path.parent) < NO_SPACE_BYTES)


def code_of(error: Exception) -> int:
    """SQLite's primary result code; 0 for an error that has none. Errors of the system are given the nearest code.

    A closed connection is reported by the module `sqlite3` itself, as a ProgrammingError.
    """
    if isinstance(error, OSError):
        return _OF_THE_SYSTEM.get(error.errno or 0, sqlite3.SQLITE_IOERR)
    if isinstance(error, sqlite3.ProgrammingError):
        return sqlite3.SQLITE_MISUSE
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
