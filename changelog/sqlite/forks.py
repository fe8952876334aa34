"""Remembers which files this process had open when it was forked, because a child must not open them.

SQLite keeps its own table of the locks that a process holds. A child inherits this table, but the system gives it none
of the locks. If the child opened the file, SQLite would take no lock for it, and the parent could remove the log
(`-wal`) in which the child's commits lie. A trial lost committed rows in this way. So a child may not open a file that
its parent had open at the fork. It may open the file if the parent had closed it, or had not opened it yet.
"""

from __future__ import annotations

import os
from collections import Counter

from changelog.base.errors import ConfigurationError

Identity = tuple[int, int]
"""Device and inode of a file."""

_open: Counter[Identity] = Counter()
_inherited: set[Identity] = set()


def opened(file: Identity) -> None:
    """Notes that this process has opened the file. It may do so several times."""
    _open[file] += 1


def closed(file: Identity) -> None:
    """Notes that this process has closed the file once."""
    _open[file] -= 1


def refuse_inherited(path: object, file: Identity | None) -> None:
    """Raises `ConfigurationError` if the file was open in this process's parent when it was forked."""
    if file in _inherited:
        raise ConfigurationError(
            f"{path} was open in the process that this one was forked from, and SQLite would lose writes: "
            "open the store in each process after the fork, and not before it"
        )


def _in_child() -> None:
    _inherited.update(file for file, times in _open.items() if times > 0)
    _open.clear()


os.register_at_fork(after_in_child=_in_child)
