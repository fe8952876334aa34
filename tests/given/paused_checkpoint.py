"""Stops this process inside its checkpoints: `call_at`.

SQLite's checkpoint reads how long the log is, and then how much of it is in the file already. If another connection
begins the log anew between the two, SQLite before 3.51.3 compares the length of the old log with the new log's state
(sqlite.org/wal.html, "walresetbug"). No patched SQLite is needed to be there at that moment: if the log has changed
since its last look, a checkpoint calls `xUnfetch` of the file exactly then. So this module replaces that
function, and the one that takes the lock of checkpoints, in the tables that SQLite's own file system (its VFS) hands
out. All else is the SQLite that Python has loaded.
"""

from __future__ import annotations

import _sqlite3
import ctypes
from collections.abc import Callable
from typing import Any

_OPENS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
_LOCKS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int)
_UNFETCHES = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)

_MAIN_DATABASE = 0x100
_LOCK_EXCLUSIVELY, _LOCK_OF_CHECKPOINTS = 2 | 8, 1


class _FileSystem(ctypes.Structure):
    """The beginning of `sqlite3_vfs`."""

    _fields_ = (
        ("version", ctypes.c_int), ("file_bytes", ctypes.c_int), ("path_max", ctypes.c_int), ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("open", _OPENS),
    )  # fmt: skip


class _Methods(ctypes.Structure):
    """`sqlite3_io_methods` of version 3: what can be done with an open file."""

    _fields_ = (
        ("version", ctypes.c_int), ("first", ctypes.c_void_p * 13), ("lock", _LOCKS), ("others", ctypes.c_void_p * 3),
        ("unfetch", _UNFETCHES),
    )  # fmt: skip


_kept: list[object] = []
"""SQLite uses them for as long as this process lives."""


def call_at(reached: Callable[[str], object]) -> None:
    """Calls `reached` in each checkpoint of a database that this process opens from now on.

    With "begins": it has no lock yet. With "between": it is between the two looks, and another connection has written
    since this one looked at the log last.
    """
    library = ctypes.CDLL(_sqlite3.__file__)  # the SQLite that it is linked with
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_FileSystem)
    system = library.sqlite3_vfs_find(None).contents
    opens = _copied(system.open)

    def open_(vfs: int, name: int, file: int, flags: int, told: int) -> int:
        code = int(opens(vfs, name, file, flags, told))
        if code == 0 and flags & _MAIN_DATABASE:
            methods = ctypes.cast(file, ctypes.POINTER(ctypes.POINTER(_Methods)))
            assert methods.contents.contents.version >= 3
            stopping = _stopping(methods.contents.contents, reached)
            methods[0] = ctypes.pointer(stopping)
            _kept.append(stopping)
        return code

    system.open = _OPENS(open_)
    _kept.append(system.open)


def _stopping(methods: _Methods, reached: Callable[[str], object]) -> _Methods:
    locks, unfetches = _copied(methods.lock), _copied(methods.unfetch)

    def lock(file: int, first: int, number: int, how: int) -> int:
        if (first, how) == (_LOCK_OF_CHECKPOINTS, _LOCK_EXCLUSIVELY):
            reached("begins")
        return int(locks(file, first, number, how))

    def unfetch(file: int, offset: int, mapped: int | None) -> int:
        if mapped is None:
            reached("between")
        return int(unfetches(file, offset, mapped))

    copy = _Methods.from_buffer_copy(methods)
    copy.lock, copy.unfetch = _LOCKS(lock), _UNFETCHES(unfetch)
    _kept.extend((copy.lock, copy.unfetch, lock, unfetch))
    return copy


def _copied(function: Any) -> Any:
    """The function of today, which stays when its place in the table gets another one."""
    return type(function)(ctypes.cast(function, ctypes.c_void_p).value)
