"""Tables that do not fit into memory, in a database without a name.

A database is in memory while it is small, and then in the directory for temporary files.

*Crash*: the file has no name, so nothing stays. *Failure*: `UnavailableError`, if that directory is full or cannot be
written. What is held there is of no use then.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import finalize

from changelog.base.errors import UnavailableError

CACHE_KIB = 64 * 1024
"""Of memory for a database."""


class TemporaryTable:
    """A table in a database of its own. `made_by`: the statement that makes it."""

    def __init__(self, made_by: str) -> None:
        with explained():
            self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            for setting in ("journal_mode = OFF", "synchronous = OFF", "temp_store = FILE", f"cache_size = -{CACHE_KIB}"):
                self._database.execute(f"PRAGMA {setting}")
            finalize(self, self._database.close)
            self._database.execute(made_by)

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Yields the rows that a statement finds. It runs as far as it is asked for them."""
        with explained():
            yield from self._database.execute(statement, values)

    def write(self, statement: str, values: Iterable[tuple[Any, ...]]) -> None:
        """Runs a statement that finds nothing, once for each, in one transaction: each alone took ten times as long."""
        with explained():
            self._database.execute("BEGIN")
            self._database.executemany(statement, values)
            self._database.execute("COMMIT")

    def close(self) -> None:
        self._database.close()


@contextmanager
def explained() -> Iterator[None]:
    """What a temporary file cannot hold is `UnavailableError`, with what to do."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise UnavailableError(
            f"what does not fit into memory cannot be kept in a temporary file: {error}; free space in the directory for temporary"
            " files, or name another one in TMPDIR"
        ) from error
