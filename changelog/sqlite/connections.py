"""`FileConnections`: a file's connections, from its opening to its end. One writes, one copies the log, some read.

The opening signs a new file as ours in one transaction, so the first of several processes wins, and writes only what is
missing. So the file can also be read on a full or read-only disk. *Crash*: a file that is not signed is a new one to
the next process. *Failure*: what is wrong with the path is a `ConfigurationError`, and nothing was changed.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio

from changelog.base.directories import sync_upwards
from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.base.threads import in_thread
from changelog.sqlite.checkpoints import Checkpoints, log_of
from changelog.sqlite.disk import Reserve, any_file, identity_of, is_read_only, make_directory, make_private
from changelog.sqlite.forks import Identity, closed, opened, refuse_inherited
from changelog.sqlite.result_codes import code_of, is_full, translated
from changelog.sqlite.schema import FORMAT_VERSION, sign, signed

READERS = 4
WAL_BYTES_MAX = 8 << 20


class FileConnections:
    """`writer` and `checkpoints` are for whoever holds `writing`, `readers` for whoever takes one out and puts it back.

    `noted`: what `forks` was told to be open.
    """

    writer: sqlite3.Connection
    checkpoints: Checkpoints

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self.path = path
        self.reserve = Reserve(path)
        self.writing = threading.Lock()
        self.readers: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self.noted: Identity | None = None
        self._busy_timeout_s = busy_timeout_s
        self._options = ""
        self._file: Identity | None = None
        self._is_open = False
        self._opening_thread = anyio.CapacityLimiter(1)
        self._all: list[sqlite3.Connection] = []

    async def open(self, runtime: Runtime, beside: Path | None) -> None:
        """Opens all of them, as `Database.open` says. If it raises, `end` closes those that were opened."""
        try:
            try:
                await self._open_connections(runtime, beside)
            except sqlite3.Error as error:
                if not self._can_be_read_otherwise(error):
                    raise
                while self._all:
                    self._all.pop().close()
                await self._open_connections(runtime, beside)
        except sqlite3.Error as error:
            raise translated(error, self.path, opening=True) from error
        except PermissionError as error:
            raise ConfigurationError(
                f"this user may not use or make the directory {self.path.parent}: run as the user whose store it is, or let this one in"
            ) from error
        except OSError as error:
            raise ConfigurationError(f"the directory {self.path.parent} cannot be made: {error.strerror}; choose another") from error

    async def end(self) -> None:
        """Closes all of them, in a thread if one can be had."""
        try:
            with anyio.CancelScope(shield=True):
                await in_thread(self.close, self._opening_thread)
        except UnavailableError:  # no thread can be had
            self.close()
        except BaseException:  # asyncio's own cancellation, which no shield stops: a thread may still be closing it
            self.close()
            raise

    def close(self) -> None:
        """Closes all connections. Safe to repeat.

        The closed readers are put back, so that a late call finds one and is refused, and does not wait for ever.
        """
        with self.writing:  # after asyncio's own cancellation a thread may still be writing
            readers = [self.readers.get() for _ in range(READERS)] if self._is_open else []
            # The writer is closed first. If a reader is the last one to close, the empty log and the file of locks
            # stay. So they need not be made again on a full or read-only disk.
            if self._is_open:
                self.checkpoints.close()
            for connection in self._all:
                connection.close()
            for connection in readers:
                self.readers.put(connection)
            noted, self.noted = self.noted, None
            if noted is not None:
                closed(noted)

    def refuse_if_gone(self) -> None:
        """Raises if the file was deleted or replaced: a write to it would be acknowledged and lost."""
        if self._file != identity_of(self.path):
            raise UnavailableError(f"{self.path} was deleted or replaced while it was open: put it back, and start this process again")

    async def _open_connections(self, runtime: Runtime, beside: Path | None) -> None:
        await in_thread(partial(self._create, beside), self._opening_thread)
        given_up_at = runtime.monotonic() + self._busy_timeout_s
        while not await in_thread(partial(self._in_wal_mode, runtime.monotonic() >= given_up_at), self._opening_thread):
            await runtime.sleep(0.01)  # SQLite's own waiting does not cover this change of its mode
        await in_thread(self._connect_readers, self._opening_thread)

    def _can_be_read_otherwise(self, error: sqlite3.Error) -> bool:
        """Whether opening may succeed at a second attempt, because something can be done without.

        On a full disk this is the reserve, on a read-only one the locks. SQLite keeps a small file of locks beside the
        database. In a copy it may be missing. On a read-only file system nobody writes, so no locks are needed. But if
        a killed process left committed data in SQLite's log, the log cannot be read without them. Then it is a
        `ConfigurationError`.
        """
        if is_full(error, self.path) and self.reserve.release():
            return True
        if self._options or not self.path.exists() or not is_read_only(self.path.parent):
            return False
        log = log_of(self.path)
        if log.exists() and log.stat().st_size:
            raise ConfigurationError(
                f"{self.path} was not closed, and what was written last lies in {log}: open it once where it can be written"
            )
        self._options = "?mode=ro&immutable=1"
        return True

    def _create(self, beside: Path | None) -> None:
        """Signs a new file as ours, or refuses a file that is not ours.

        In one transaction, so the first of several processes wins.
        """
        make_directory(self.path.parent)
        refuse_inherited(self.path, identity_of(self.path))
        # SQLite would make it by the umask. It gives its other files the mode of this one. Where this fails, SQLite
        # says why, or can make it.
        with suppress(OSError):
            make_private(self.path)
        self.writer = self._connection()
        signature = signed(self.writer, self.path)
        if self.noted is None and (noted := identity_of(self.path)) is not None:
            opened(noted)
            self.noted = noted
        if signature is None:
            self._refuse_if_lost(beside)
            self._all.pop().close()
            self.writer = self._connection()  # a connection that has read the file cannot set auto_vacuum any more
            self.writer.execute("PRAGMA auto_vacuum=INCREMENTAL")
        self.writer.execute("PRAGMA synchronous=FULL")
        # Some systems' SQLite overwrites what is deleted, which needs space.
        self.writer.execute("PRAGMA secure_delete=FAST")
        self.writer.execute(f"PRAGMA journal_size_limit={WAL_BYTES_MAX}")
        self.writer.execute("PRAGMA wal_autocheckpoint=0")  # see `Checkpoints`
        if signed(self.writer, self.path) == FORMAT_VERSION:
            return
        sync_upwards(self.path.parent)  # whoever finds a signed file relies on it, and on its directory
        self.writer.execute("BEGIN IMMEDIATE")
        if signed(self.writer, self.path) != FORMAT_VERSION:
            sign(self.writer)
        self.writer.execute("COMMIT")

    def _refuse_if_lost(self, beside: Path | None) -> None:
        """Raises if the database is new, but `beside` holds files.

        A store puts files there only after its database was signed. So under the database's lock, such files belong to
        an earlier database, and that one is lost.
        """
        self.writer.execute("BEGIN IMMEDIATE")
        if signed(self.writer, self.path) is None and beside is not None and (file := any_file(beside)):
            raise ConfigurationError(
                f"{self.path} is lost or empty, and without it {file} and whatever else lies in {beside} belongs to nothing: "
                f"restore the database from a backup, or move {beside} away to begin anew"
            )
        self.writer.execute("ROLLBACK")

    def _in_wal_mode(self, last_try: bool) -> bool:
        """Switches the file to a write-ahead log.

        False: another process is doing the same, and SQLite does not wait for it.
        """
        if self._options:
            return True
        try:
            (mode,), = self.writer.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if last_try or code_of(error) != sqlite3.SQLITE_BUSY:
                raise
            return False
        if mode != "wal":
            raise ConfigurationError(f"{self.path} lies on a file system without shared memory; choose a path on a local disk")
        return True

    def _connect_readers(self) -> None:
        copier = self._connection()
        readers = [self._connection("?mode=ro") for _ in range(READERS)]
        # This finds out now whether the file can be read at all. And only a connection that has read keeps SQLite's log
        # and locks, see `close`.
        readers[-1].execute("SELECT count(*) FROM sqlite_schema").fetchall()
        for reader in readers:
            self.readers.put(reader)
        self._file = identity_of(self.path)
        try:
            self.checkpoints = Checkpoints(self.path, self.writer, copier)
        except OSError as error:
            raise translated(error, self.path) from error
        self._is_open = True

    def _connection(self, options: str = "") -> sqlite3.Connection:
        # Only SQLite may open the file. Closing any other descriptor of it would release this process's locks.
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}{self._options or options}", uri=True, timeout=self._busy_timeout_s, isolation_level=None,
            check_same_thread=False,
        )  # fmt: skip
        connection.text_factory = _text
        connection.execute("PRAGMA fullfsync=ON")  # where fsync alone does not reach the disk (macOS)
        self._all.append(connection)
        return connection


def _text(raw: bytes) -> str:
    """Decodes text. Bytes that are not UTF-8 become halves of surrogate pairs.

    So one damaged value does not prevent the reading of the others.
    """
    return raw.decode(errors="surrogateescape")
