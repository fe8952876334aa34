"""`Checkpoints`: when and how SQLite's log is copied into the file, so that no SQLite loses a commit by it.

Before 3.51.3, SQLite loses commits if another connection begins the log anew during a checkpoint (its WAL-reset bug).
So `Checkpoints._copy` is the only checkpoint of this software.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

LOG_PAGES = 1000
"""SQLite's log is copied into the file when it has so many pages."""

SQLITE_VERSION = sqlite3.sqlite_version_info
"""Of the library that runs, such as (3, 40, 1)."""


def has_reset_bug(version: tuple[int, int, int]) -> bool:
    """Whether this SQLite can lose commits if its log begins anew during a checkpoint: see `Checkpoints._copy`."""
    return not (version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45))


def log_of(database: Path) -> Path:
    """Where SQLite keeps its log of that database."""
    return database.with_name(f"{database.name}-wal")


class Checkpoints:
    """`writer` begins the transactions, and `copier` copies. They are connections to the same file. `close` this first.

    Raises `OSError` if the log is there and cannot be opened.
    """

    def __init__(self, database: Path, writer: sqlite3.Connection, copier: sqlite3.Connection) -> None:
        self._writer = writer
        self._copier = copier
        self._copier.execute("PRAGMA busy_timeout=0")
        (self.page_bytes,), = writer.execute("PRAGMA page_size")  # no statement changes it in the WAL mode
        self._log: int | None = None  # a descriptor of SQLite's log, on which SQLite has no locks
        with suppress(FileNotFoundError):  # an immutable file has none
            self._log = os.open(log_of(database), os.O_RDONLY)

    def begin(self) -> None:
        """Begins a write transaction. If the log is long, it is copied into the file first.

        All of it is copied, unless somebody reads it, because nobody can add to it meanwhile. Then a commit of the next
        transaction, whoever's it is, begins the log anew.
        """
        self._writer.execute("BEGIN IMMEDIATE")
        if self._log is not None and _has_pages(self._log, LOG_PAGES, self.page_bytes):
            self._copy("PASSIVE")
            self._writer.execute("ROLLBACK")
            self._writer.execute("BEGIN IMMEDIATE")

    def empty(self, how: str) -> None:
        """Copies the log into the file, as far as nobody uses it at this moment. TRUNCATE also gives its space back."""
        for step in ("PASSIVE", "TRUNCATE")[: 2 if how == "TRUNCATE" else 1]:
            with suppress(sqlite3.Error):
                self._writer.execute("BEGIN")
                self._writer.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # the transaction begins with its first read
                self._copy(step)
            with suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")

    def close(self) -> None:
        """Gives the log's space back, if that is possible now."""
        log, self._log = self._log, None
        if log is not None:
            if os.fstat(log).st_size:
                self.empty("TRUNCATE")
            os.close(log)

    def _copy(self, how: str) -> None:
        """The only checkpoint of this software. Call it while `_writer` is in a transaction that has read.

        Before 3.51.3, SQLite loses commits if another connection begins the log anew during a checkpoint. While a
        transaction is open, this does no harm. Either it reads from the log, and then nobody can begin the log anew. Or
        it reads from the file alone, and then no checkpoint can copy anything. TRUNCATE begins the log anew itself, and
        for that it has all of SQLite's locks. If it cannot copy all, it copies what it can, and leaves the log.
        """
        with suppress(sqlite3.Error):
            self._copier.execute(f"PRAGMA wal_checkpoint({how})").fetchall()


def _has_pages(log: int, pages: int, page_bytes: int) -> bool:
    """Whether so many pages were written into the log since it began anew.

    The length of its file does not tell, because it is written over. But each page in it repeats the log's salt, a
    number that every beginning changes.
    """
    salt = os.pread(log, 8, 16)
    return len(salt) == 8 and os.pread(log, 8, 32 + (pages - 1) * (24 + page_bytes) + 8) == salt
