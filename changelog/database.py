"""`Database`, one SQLite file that several processes share: many readers, and writers that commit in groups.

    write(run) --> queue --> one task: BEGIN IMMEDIATE [SAVEPOINT run]... COMMIT --> every waiter is told
    read(run)  --> a read connection of its own: one snapshot, never waits for writers

Every module that keeps tables here brings its own `CREATE TABLE IF NOT EXISTS` (`require`); the file knows
only whose it is (`application_id`) and which format it has (`user_version`). Each commit is an fsync
(`synchronous=FULL`), so the writes that wait at one moment share one. SQLite's locks hold between processes,
and a killed one's are released with it. *Crash* at any point: a write is in the file whole, or not at all.
*Failure*: one table below, from SQLite's codes to this project's errors. No SQL of anyone's tables is here.
"""

from __future__ import annotations

import errno
import os
import queue
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NoReturn, Self, TypeVar, cast

import anyio
from anyio import to_thread

from changelog.errors import ConfigurationError, CorruptRecordError, TieredError, UnavailableError, UnconfirmedError
from changelog.runtime import Runtime

APPLICATION_ID = 0x54694572
"""In the file's header, where `file` and SQLite show it: "TiEr"."""

FORMAT_VERSION = 1
BUSY_TIMEOUT_S = 5.0
GROUP_MAX = 64
READERS = 4

T = TypeVar("T")
Run = Callable[[sqlite3.Connection], T]


@dataclass(slots=True, eq=False)
class _Write(Generic[T]):
    """One call of `write` on its way. `taken`: in a transaction, it can no longer be withdrawn."""

    run: Run[T]
    told: anyio.Event = field(default_factory=anyio.Event)
    taken: bool = False
    withdrawn: bool = False
    result: T | None = None
    error: Exception | None = None
    committing: bool = False


class Database:
    """Opened by `open`, which also closes it. Calls block threads of their own, never the event loop."""

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self.path = path
        self._busy_timeout_s = busy_timeout_s
        self._required: list[str] = []
        self._to_writer, self._from_callers = anyio.create_memory_object_stream[_Write[Any]](GROUP_MAX)
        self._writer_thread = anyio.CapacityLimiter(1)
        self._reader_threads = anyio.CapacityLimiter(READERS)
        self._readers: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._connections: list[sqlite3.Connection] = []
        self._writer: sqlite3.Connection

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path, runtime: Runtime, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> AsyncIterator[Self]:
        """Opens the file, creating it and its directory if need be; several processes may do so at once.

        `busy_timeout_s`: how long a write waits for other processes' writes. `ConfigurationError`: the path
        holds something else, or a newer format, or cannot be written; nothing was changed.
        """
        database = cls(path, busy_timeout_s)
        failure: BaseException | None = None
        try:
            await database._connect(runtime)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(database._commit_groups)
                with database._to_writer:
                    try:
                        yield database
                    except anyio.get_cancelled_exc_class():
                        raise
                    except BaseException as error:  # noqa: BLE001 - raised below: the task group would wrap it in a group
                        failure = error
        except anyio.get_cancelled_exc_class():
            if failure is None:  # the block's own error comes first
                raise
        finally:
            database._to_writer.close()
            database._from_callers.close()
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(database._close)
        if failure is not None:
            raise failure

    def require(self, schema: Sequence[str]) -> None:
        """Has these statements run before any later read or write; each must be harmless when repeated."""
        self._required.extend(schema)

    async def write(self, run: Run[T]) -> T:
        """Runs `run` in a write transaction, in a thread, and returns its result once it is durable.

        What `run` raises undoes its own writes only; it may run twice, if its first time was undone.
        `UnavailableError`: nothing was written. `UnconfirmedError`: it may have been. Cancelled: it was not begun,
        or it is complete.
        """
        write = _Write(run)
        try:
            await self._to_writer.send(write)
            await write.told.wait()
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise UnavailableError(f"{self.path} is closed") from None
        except BaseException:
            write.withdrawn = True
            if write.taken:
                with anyio.CancelScope(shield=True):
                    await write.told.wait()
            raise
        if write.error is not None:
            self._fail(write.error, committing=write.committing)
        return cast(T, write.result)

    async def read(self, run: Run[T]) -> T:
        """Runs `run`, which must not write, on one snapshot of the file, in a thread; returns its result."""
        if self._required:
            await self.write(lambda connection: None)
        try:
            return await to_thread.run_sync(self._on_snapshot, run, limiter=self._reader_threads)
        except sqlite3.Error as error:
            self._fail(error)

    # --- the writer's task ---------------------------------------------------------------------------

    async def _commit_groups(self) -> None:
        """Ends when the database is closed, never before: clean-up in cancelled scopes still writes."""
        try:
            with anyio.CancelScope(shield=True):
                async for first in self._from_callers:
                    await self._commit_group([first, *self._waiting()])
        finally:
            # If it ends otherwise (asyncio's own shutdown, no thread to be had), nobody may wait for it.
            while waiting := self._waiting():
                self._give_up(waiting)
            self._from_callers.close()

    async def _commit_group(self, received: list[_Write[Any]]) -> None:
        group = [write for write in received if not write.withdrawn]
        for write in group:
            write.taken = True
        try:
            if group:
                await to_thread.run_sync(self._commit, group, limiter=self._writer_thread)
        except BaseException:
            self._give_up(group)
            raise
        for write in group:
            write.told.set()

    def _give_up(self, group: list[_Write[Any]]) -> None:
        for write in group:
            write.error = UnconfirmedError(f"{self.path} was given up while it was written to")
            write.told.set()

    def _waiting(self) -> list[_Write[Any]]:
        """The writes that wait at this moment, besides the one just received."""
        waiting: list[_Write[Any]] = []
        while len(waiting) < GROUP_MAX - 1:
            try:
                waiting.append(self._from_callers.receive_nowait())
            except (anyio.WouldBlock, anyio.EndOfStream):
                break
        return waiting

    def _commit(self, group: list[_Write[Any]]) -> None:
        """All of them in one transaction. Leaves a result or an error in each, and raises nothing."""
        required, committing = list(self._required), False
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for statement in required:
                self._writer.execute(statement)
            for write in group:
                self._attempt(write)
            committing = True
            self._writer.execute("COMMIT")
            del self._required[:len(required)]
        except Exception as error:  # noqa: BLE001 raised by each of the callers
            with suppress(sqlite3.Error):  # most errors have rolled it back already
                self._writer.execute("ROLLBACK")
            if _code(error) == sqlite3.SQLITE_FULL and len(group) > 1:
                for write in group:  # the one that is too large must not take the others along
                    self._commit([write])
                return
            for write in group:
                write.error, write.committing = error, committing

    def _attempt(self, write: _Write[Any]) -> None:
        """One write inside of the group's transaction; if it fails, it is undone alone."""
        write.error = None
        self._writer.execute("SAVEPOINT attempt")
        try:
            write.result = write.run(self._writer)
        except Exception as error:  # its caller's, who raises it; the others of the group go on
            if not self._writer.in_transaction:  # SQLite undid the whole transaction
                raise
            self._writer.execute("ROLLBACK TO attempt")
            write.error = error
        self._writer.execute("RELEASE attempt")

    # --- threads and connections ---------------------------------------------------------------------

    def _on_snapshot(self, run: Run[T]) -> T:
        connection = self._readers.get()  # waits only for threads whose callers were cancelled by asyncio itself
        try:
            connection.execute("BEGIN")
            try:
                return run(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        finally:
            self._readers.put(connection)

    async def _connect(self, runtime: Runtime) -> None:
        try:
            await to_thread.run_sync(self._create)
            given_up_at = runtime.monotonic() + self._busy_timeout_s
            while not await to_thread.run_sync(self._in_wal_mode, runtime.monotonic() >= given_up_at):
                await runtime.sleep(0.01)
            await to_thread.run_sync(self._connect_readers)
        except sqlite3.Error as error:
            self._fail(error, opening=True)
        except OSError as error:
            raise ConfigurationError(f"the directory {self.path.parent} cannot be made: {error.strerror}; choose another") from error

    def _create(self) -> None:
        """Marks a new file as ours, or refuses one that is not: in one transaction, so the first of several wins."""
        _make_directory(self.path.parent)
        self._writer = self._connection()
        self._writer.execute("PRAGMA synchronous=FULL")
        self._writer.execute("PRAGMA fullfsync=ON")  # where fsync does not reach the disk without it (macOS)
        self._writer.execute("BEGIN IMMEDIATE")
        self._refuse_what_is_not_ours()
        # Written each time, so that a file that may only be read is found out now.
        self._writer.execute(f"PRAGMA application_id={APPLICATION_ID}")
        self._writer.execute(f"PRAGMA user_version={FORMAT_VERSION}")
        self._writer.execute("COMMIT")

    def _refuse_what_is_not_ours(self) -> None:
        (application,), = self._writer.execute("PRAGMA application_id")
        (version,), = self._writer.execute("PRAGMA user_version")
        (tables,), = self._writer.execute("SELECT count(*) FROM sqlite_schema")
        if application == version == tables == 0:
            return
        if application != APPLICATION_ID:
            raise ConfigurationError(f"{self.path} is an SQLite file of another program; choose another path")
        if version > FORMAT_VERSION:
            raise ConfigurationError(
                f"{self.path} has format {version} and this software knows up to {FORMAT_VERSION}; upgrade this software"
            )

    def _in_wal_mode(self, last_try: bool) -> bool:
        """Switches the file over. False: another process is doing so, and SQLite does not wait for that."""
        try:
            (mode,), = self._writer.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if last_try or _code(error) != sqlite3.SQLITE_BUSY:
                raise
            return False
        if mode != "wal":
            raise ConfigurationError(f"{self.path} lies on a file system without shared memory; choose a path on a local disk")
        return True

    def _connect_readers(self) -> None:
        for _ in range(READERS):
            connection = self._connection()
            self._readers.put(connection)
            connection.execute("PRAGMA query_only=ON")

    def _connection(self) -> sqlite3.Connection:
        # Only SQLite may open the file: closing any other descriptor of it would drop this process's locks.
        connection = sqlite3.connect(self.path, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False)
        connection.text_factory = _text
        self._connections.append(connection)
        return connection

    def _close(self) -> None:
        """The closed readers go back, so that a late call finds one and is refused instead of waiting."""
        readers = [self._readers.get() for _ in self._connections[1:]]
        for connection in reversed(self._connections):  # the writer last
            connection.close()
        for connection in readers:
            self._readers.put(connection)

    def _fail(self, error: Exception, *, committing: bool = False, opening: bool = False) -> NoReturn:
        if not isinstance(error, sqlite3.Error):
            raise error
        code = _code(error)
        kind, sentence = _MEANING.get(code, _OTHER)
        if committing and code == sqlite3.SQLITE_IOERR:
            kind = UnconfirmedError
        if opening and code in _MISPLACED:
            kind = ConfigurationError
        raise kind(f"{sentence.format(path=self.path, directory=self.path.parent)} ({error})") from error


_MEANING: dict[int, tuple[type[TieredError], str]] = {
    sqlite3.SQLITE_BUSY: (UnavailableError, "{path} is locked: other processes write without a pause or are stopped; try again"),
    sqlite3.SQLITE_FULL: (UnavailableError, "the disk is full: free some space for {path}"),
    sqlite3.SQLITE_READONLY: (UnavailableError, "{path} is read-only: let this user write the file and its directory"),
    sqlite3.SQLITE_CANTOPEN: (UnavailableError, "{path} cannot be opened: let this user write the directory {directory}"),
    sqlite3.SQLITE_PERM: (UnavailableError, "{path} cannot be opened: let this user write the file and its directory"),
    sqlite3.SQLITE_IOERR: (UnavailableError, "{path} cannot be read or written: check its disk"),
    sqlite3.SQLITE_NOMEM: (UnavailableError, "SQLite has no memory left for {path}: give this process more"),
    sqlite3.SQLITE_PROTOCOL: (UnavailableError, "{path} is opened by too many processes at once; try again"),
    sqlite3.SQLITE_NOTADB: (CorruptRecordError, "{path} is not an SQLite file: choose another path or restore the file"),
    sqlite3.SQLITE_CORRUPT: (CorruptRecordError, "{path} is damaged: restore it from a backup"),
    sqlite3.SQLITE_MISUSE: (UnavailableError, "{path} is closed"),
}
_OTHER = (CorruptRecordError, "{path} does not hold what this software wrote: restore it from a backup")
_MISPLACED = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOTADB}


def _text(raw: bytes) -> str:
    """Bytes that are no UTF-8 become halves of surrogate pairs: one damaged value must not end the reading of the others."""
    return raw.decode(errors="surrogateescape")


def _code(error: Exception) -> int:
    """SQLite's primary result code; 0 for what is none. A closed connection is `sqlite3`'s own to report."""
    if isinstance(error, sqlite3.ProgrammingError):
        return sqlite3.SQLITE_MISUSE
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _make_directory(directory: Path) -> None:
    """With its parents, each durable before something is put into it."""
    if directory.is_dir():
        return
    if directory.exists():
        raise NotADirectoryError(errno.ENOTDIR, "it is a file", str(directory))
    _make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    descriptor = os.open(directory.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
