"""`Database`, one SQLite file that several processes share: many readers, and writers that commit in groups.

    write(run) --> queue --> one task: BEGIN IMMEDIATE [SAVEPOINT run]... COMMIT --> every waiter is told
    read(run)  --> a read connection of its own: one snapshot, never waits for writers

Every module that keeps tables here brings its own `CREATE TABLE IF NOT EXISTS` (`require`); the file knows
only whose it is (`application_id`) and which format it has (`user_version`). Opening writes only what is missing, so a full or
read-only disk can be read. Each commit is an fsync (`synchronous=FULL`), so the writes that wait at one moment share one. SQLite's
locks hold between processes, and a killed one's are released with it. On a full disk, writes that bring no payload
live on a reserve (`FILE-reserve`), so deleting is possible, and the others wait until it is there again.

*Crash* at any point: a write is in the file whole, or not at all. *Failure*: one table below, from SQLite's codes to this
project's errors; where no thread can be had, that write or read fails, and no other. No SQL of anyone's tables is here.
"""

from __future__ import annotations

import errno
import os
import queue
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, cast

import anyio

from changelog.base.errors import ConfigurationError, CorruptRecordError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import Runtime
from changelog.base.tasks import end_tasks
from changelog.base.threads import in_thread

APPLICATION_ID = 0x54694572
"""In the file's header, where `file` and SQLite show it: "TiEr"."""

FORMAT_VERSION = 2
"""1 was of version 0.1 and is taken over when it is opened: `require` brings what its tables lack."""

BUSY_TIMEOUT_S = 5.0
GROUP_MAX = 64
READERS = 4
RESERVE_BYTES = 1 << 20
NO_SPACE_BYTES = 64 << 10
"""Less than that is free on a disk that SQLite's vaguer errors are put down to; and more than one write changes besides its payload."""
WAL_BYTES_MAX = 8 << 20
SPARE_PAGES = 256
"""Free pages that are kept for the next writes."""
SHRINK_PAGES = 2048
"""Given back in one transaction, in which nobody else writes."""

T = TypeVar("T")
Run = Callable[[sqlite3.Connection], T]


@dataclass(slots=True, eq=False)
class _Write(Generic[T]):
    """One call of `write` on its way. `grows`: it brings a payload. `taken`: in a transaction, it can no longer be withdrawn."""

    run: Run[T]
    grows: bool
    told: anyio.Event = field(default_factory=anyio.Event)
    taken: bool = False
    withdrawn: bool = False
    result: T | None = None
    error: Exception | None = None


class Database:
    """Opened by `open`, which also closes it. Calls block threads of their own, never the event loop, nor anyio's shared threads."""

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self.path = path
        self._busy_timeout_s = busy_timeout_s
        self._reserve = _Reserve(path.with_name(f"{path.name}-reserve"))
        self._required: list[str | Run[None]] = []
        self._present = 0  # of these, so many were seen in the file
        self._options = ""
        self._file: tuple[int, int] | None = None
        self._writing = threading.Lock()
        self._to_writer, self._from_callers = anyio.create_memory_object_stream[_Write[Any]](GROUP_MAX)
        self._writer_thread = anyio.CapacityLimiter(1)
        self._reader_threads = anyio.CapacityLimiter(READERS)
        self._readers: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._connections: list[sqlite3.Connection] = []
        self._writer: sqlite3.Connection

    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: Path, runtime: Runtime, *, beside: Path | None = None, busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> AsyncIterator[Self]:
        """Opens the file, creating it and its directory if need be; several processes may do so at once.

        `beside`: a directory that is worth nothing without this file: while any file is in it, a missing or empty database
        is a lost one, and is not made anew. `busy_timeout_s`: how long a write waits for other processes' writes.
        `ConfigurationError`: the path holds something else, or a newer format, or cannot be made, or was lost; nothing was changed.
        A file that can only be read is opened for that.
        """
        database = cls(path, busy_timeout_s)
        failure: BaseException | None = None
        try:
            await database._connect(runtime, beside)
            tasks = anyio.create_task_group()
            await tasks.__aenter__()
            tasks.start_soon(database._commit_groups)
            try:
                with database._to_writer:
                    yield database
            except BaseException as error:
                failure = error
                raise
            finally:
                await end_tasks(tasks, failure)
        finally:
            database._to_writer.close()
            database._from_callers.close()
            try:
                with anyio.CancelScope(shield=True):
                    await in_thread(database._close, database._writer_thread)
            except UnavailableError:  # no thread can be had
                database._close()
            except BaseException:  # asyncio's own cancellation, for which nothing is shielded: it is under way
                database._close()
                raise

    def require(self, schema: Sequence[str | Run[None]]) -> None:
        """Has these statements run before any later read or write; each must be harmless when repeated.

        One of what is there already must write nothing.
        """
        self._required.extend(schema)

    async def write(self, run: Run[T], *, grows: bool = False) -> T:
        """Runs `run` in a write transaction, in a thread, and returns its result once it is durable.

        What `run` raises undoes its own writes only; it may run twice, if its first time was undone. `grows`: it brings a payload, so
        it is refused on a full disk, where others may use the reserve.
        `UnavailableError`: nothing was written. `UnconfirmedError`: it may have been. Cancelled: it was not begun, or it is complete.
        """
        write = _Write(run, grows)
        try:
            await self._to_writer.send(write)
            await write.told.wait()
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise UnavailableError(f"{self.path} is closed") from None
        except BaseException:
            write.withdrawn = True
            while write.taken and not write.told.is_set():
                with suppress(anyio.get_cancelled_exc_class()), anyio.CancelScope(shield=True):  # asyncio's own passes every shield
                    await write.told.wait()
            raise
        if write.error is not None:
            raise write.error
        return cast(T, write.result)

    async def read(self, run: Run[T]) -> T:
        """Runs `run`, which must not write, on one snapshot of the file, in a thread; returns its result."""
        try:
            return await in_thread(partial(self._on_snapshot, run), self._reader_threads)
        except _SchemaMissingError:
            await self.write(lambda connection: None)
            return await in_thread(partial(self._on_snapshot, run), self._reader_threads)

    async def try_writing(self) -> None:
        """Writes what is there already, as a payload would be written. Raises as `write`."""
        await self.write(_sign, grows=True)

    async def shrink(self) -> None:
        """Gives the file's free pages back to the disk, some at a time; a file of version 0.1 keeps them for later writes."""
        surplus = await self.read(_surplus)
        while surplus > 0:
            step = f"PRAGMA incremental_vacuum({min(surplus, SHRINK_PAGES)})"
            await self.write(lambda connection, step=step: connection.execute(step).fetchall())  # type: ignore[misc]
            before, surplus = surplus, await self.read(_surplus)
            if surplus >= before:
                return

    # --- the writer's task ---------------------------------------------------------------------------

    async def _commit_groups(self) -> None:
        """Ends when the database is closed, never before: clean-up in cancelled scopes still writes."""
        try:
            with anyio.CancelScope(shield=True):
                async for first in self._from_callers:
                    await self._commit_group([first, *self._waiting()])
        finally:
            # If it ends otherwise (asyncio's own shutdown), nobody may wait for it.
            while waiting := self._waiting():
                self._give_up(waiting)
            self._from_callers.close()

    async def _commit_group(self, received: list[_Write[Any]]) -> None:
        group = [write for write in received if not write.withdrawn]
        for write in group:
            write.taken = True
        try:
            if group:
                await in_thread(partial(self._commit, group), self._writer_thread)
        except UnavailableError as error:  # no thread can be had: that is this group's, and maybe not the next one's
            for write in group:
                write.error = error
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
        with self._writing:
            growing = [write for write in group if write.grows]
            try:
                if growing:
                    self._reserve.restore()
            except OSError as error:
                for write in growing:
                    write.error = self._translated(error)
                group = [write for write in group if not write.grows]
            if group:
                self._commit_together(group)

    def _commit_together(self, group: list[_Write[Any]], attempt: int = 1) -> None:
        committing = False
        try:
            self._refuse_if_gone()
            self._writer.execute("BEGIN IMMEDIATE")
            present = self._require(self._writer)
            for write in group:
                self._attempt(write)
                if write.grows:
                    self._refuse_what_cannot_be_moved(len(group))
            committing = True
            self._writer.execute("COMMIT")
            self._present = present
        except Exception as error:  # noqa: BLE001 raised by each of the callers
            with suppress(sqlite3.Error):  # most errors have rolled it back already
                self._writer.execute("ROLLBACK")
            if self._is_full(error):
                if len(group) > 1:
                    for write in group:  # the one that is too large must not take the others along
                        self._commit_together([write])
                    return
                if self._made_room(group[0], attempt):
                    self._commit_together(group, attempt + 1)
                    return
            for write in group:
                write.error = self._translated(error, committing=committing)

    def _made_room(self, write: _Write[Any], attempt: int) -> bool:
        """For one write that does not fit: the reserve first, for the log; then what the log holds moves out of it, into the file."""
        if attempt == 1 and not write.grows and self._reserve.release():
            return True
        if attempt > 2:
            return False
        self._empty_log("TRUNCATE" if write.grows else "PASSIVE")  # others must not get the space that a deletion can have
        return True

    def _empty_log(self, how: str) -> None:
        """As far as nobody uses it at this moment."""
        with suppress(sqlite3.Error):
            self._writer.execute("PRAGMA busy_timeout=0")
            self._writer.execute(f"PRAGMA wal_checkpoint({how})").fetchall()
            self._writer.execute(f"PRAGMA busy_timeout={round(self._busy_timeout_s * 1000)}")

    def _refuse_what_cannot_be_moved(self, writes: int) -> None:
        """What is in the log and cannot move into the file keeps the log from ever beginning anew: then nothing can be deleted, either.

        So the file's growth must fit twice, in the log and beside it, and what else each write changes once.
        """
        (pages,), (size,) = *self._writer.execute("PRAGMA page_count"), *self._writer.execute("PRAGMA page_size")
        growth = pages * size - self.path.stat().st_size
        if growth > 0 and 2 * growth + writes * NO_SPACE_BYTES > _free_bytes(self.path.parent):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _attempt(self, write: _Write[Any]) -> None:
        """One write inside of the group's transaction; if it fails, it is undone alone."""
        write.error = None
        self._writer.execute("SAVEPOINT attempt")
        try:
            write.result = write.run(self._writer)
        except Exception as error:  # its caller's, who raises it; the others of the group go on
            sqlites = isinstance(error, sqlite3.Error)
            if not self._writer.in_transaction or (sqlites and self._is_full(error)):  # SQLite undid all of them, or it is tried again
                raise
            self._writer.execute("ROLLBACK TO attempt")
            write.error = self._translated(error) if sqlites else error
        self._writer.execute("RELEASE attempt")

    # --- threads and connections ---------------------------------------------------------------------

    def _on_snapshot(self, run: Run[T]) -> T:
        connection = self._readers.get()  # waits only for threads whose callers were cancelled by asyncio itself
        try:
            connection.execute("BEGIN")
            try:
                self._look_for_schema(connection)
                return run(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise self._translated(error) from error
        finally:
            self._readers.put(connection)

    def _look_for_schema(self, reader: sqlite3.Connection) -> None:
        try:
            self._present = self._require(reader)
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_READONLY:
                raise
            raise _SchemaMissingError from error

    def _require(self, connection: sqlite3.Connection) -> int:
        """Runs what was not seen in the file yet. Returns how many statements are satisfied when this transaction has ended well."""
        count = len(self._required)
        for statement in self._required[self._present : count]:
            if isinstance(statement, str):
                connection.execute(statement)
            else:
                statement(connection)
        return count

    async def _connect(self, runtime: Runtime, beside: Path | None) -> None:
        try:
            try:
                await self._open_connections(runtime, beside)
            except sqlite3.Error as error:
                if not self._can_be_read_otherwise(error):
                    raise
                while self._connections:
                    self._connections.pop().close()
                await self._open_connections(runtime, beside)
        except sqlite3.Error as error:
            raise self._translated(error, opening=True) from error
        except OSError as error:
            raise ConfigurationError(f"the directory {self.path.parent} cannot be made: {error.strerror}; choose another") from error

    async def _open_connections(self, runtime: Runtime, beside: Path | None) -> None:
        await in_thread(partial(self._create, beside), self._writer_thread)
        given_up_at = runtime.monotonic() + self._busy_timeout_s
        while not await in_thread(partial(self._in_wal_mode, runtime.monotonic() >= given_up_at), self._writer_thread):
            await runtime.sleep(0.01)
        await in_thread(self._connect_readers, self._writer_thread)

    def _can_be_read_otherwise(self, error: sqlite3.Error) -> bool:
        """Whether a second attempt may end better: on a full disk without the reserve, on a read-only one without locks.

        SQLite keeps a small file of locks beside the database. Where it is missing, as in a copy, and the file system is read-only,
        nobody writes, and none are needed; but what a killed process had committed lies in a log that cannot be read without them.
        """
        if self._is_full(error) and self._reserve.release():
            return True
        if self._options or not self.path.exists() or not _is_read_only(self.path.parent):
            return False
        log = self.path.with_name(f"{self.path.name}-wal")
        if log.exists() and log.stat().st_size:
            raise ConfigurationError(
                f"{self.path} was not closed, and what was written last lies in {log}: open it once where it can be written"
            )
        self._options = "?mode=ro&immutable=1"
        return True

    def _create(self, beside: Path | None) -> None:
        """Marks a new file as ours, or refuses one that is not: in one transaction, so the first of several wins."""
        _make_directory(self.path.parent)
        self._writer = self._connection()
        if self._signed() is None:
            self._refuse_if_lost(beside)
            self._connections.pop().close()
            self._writer = self._connection()  # one that has looked closer cannot choose this any more
            self._writer.execute("PRAGMA auto_vacuum=INCREMENTAL")
        self._writer.execute("PRAGMA synchronous=FULL")
        self._writer.execute("PRAGMA fullfsync=ON")  # where fsync does not reach the disk without it (macOS)
        self._writer.execute("PRAGMA secure_delete=FAST")  # to overwrite what is deleted, as some systems' SQLite does, needs space
        self._writer.execute(f"PRAGMA journal_size_limit={WAL_BYTES_MAX}")
        if self._signed() == FORMAT_VERSION:
            return
        self._writer.execute("BEGIN IMMEDIATE")
        if self._signed() != FORMAT_VERSION:
            _sign(self._writer)
        self._writer.execute("COMMIT")

    def _refuse_if_lost(self, beside: Path | None) -> None:
        """Nobody puts a file beside a database that is not signed: what is there under its lock belongs to another, which is gone."""
        self._writer.execute("BEGIN IMMEDIATE")
        if self._signed() is None and beside is not None and (file := _any_file(beside)):
            raise ConfigurationError(
                f"{self.path} is lost or empty, and without it {file} and whatever else lies in {beside} belongs to nothing: "
                f"restore the database from a backup, or move {beside} away to begin anew"
            )
        self._writer.execute("ROLLBACK")

    def _signed(self) -> int | None:
        """The format that the file says it has; None: it is new. Raises if it is not ours."""
        (application,), = self._writer.execute("PRAGMA application_id")
        (version,), = self._writer.execute("PRAGMA user_version")
        (tables,), = self._writer.execute("SELECT count(*) FROM sqlite_schema")
        if application == version == tables == 0:
            return None
        if application != APPLICATION_ID:
            raise ConfigurationError(f"{self.path} is an SQLite file of another program; choose another path")
        if version > FORMAT_VERSION:
            raise ConfigurationError(
                f"{self.path} has format {version} and this software knows up to {FORMAT_VERSION}; upgrade this software"
            )
        return int(version)

    def _refuse_if_gone(self) -> None:
        """What is written to a file that was deleted is acknowledged and lost."""
        if self._file != _identity(self.path):
            raise UnavailableError(f"{self.path} was deleted or replaced while it was open: put it back, and start this process again")

    def _in_wal_mode(self, last_try: bool) -> bool:
        """Switches the file over. False: another process is doing so, and SQLite does not wait for that."""
        if self._options:
            return True
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
        readers = [self._connection("?mode=ro") for _ in range(READERS)]
        # Whether it can be read at all is found out now; and only who has read keeps log and locks, see `_close`.
        readers[-1].execute("SELECT count(*) FROM sqlite_schema").fetchall()
        for reader in readers:
            self._readers.put(reader)
        self._file = _identity(self.path)

    def _connection(self, options: str = "") -> sqlite3.Connection:
        # Only SQLite may open the file: closing any other descriptor of it would drop this process's locks.
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}{self._options or options}", uri=True, timeout=self._busy_timeout_s, isolation_level=None,
            check_same_thread=False,
        )  # fmt: skip
        connection.text_factory = _text
        self._connections.append(connection)
        return connection

    def _close(self) -> None:
        """The closed readers go back, so that a late call finds one and is refused instead of waiting. Safe to repeat."""
        with self._writing:  # asyncio's own cancellation leaves a thread to itself
            readers = [self._readers.get() for _ in range(READERS)] if self._file else []
            # The writer first: where a reader is the last to close, the empty log and the locks stay, and no full disk keeps them from
            # being made again, nor a read-only one.
            if self._connections:
                self._empty_log("TRUNCATE")
            for connection in self._connections:
                connection.close()
            for connection in readers:
                self._readers.put(connection)

    # --- what went wrong -----------------------------------------------------------------------------

    def _translated(self, error: Exception, *, committing: bool = False, opening: bool = False) -> Exception:
        """In a thread, as it looks at the disk. What is not SQLite's or the system's is its caller's own."""
        if not isinstance(error, (sqlite3.Error, OSError)):
            return error
        code = _code(error)
        is_full = self._is_full(error)
        kind, sentence = _MEANING[sqlite3.SQLITE_FULL] if is_full else _MEANING.get(code, _OTHER)
        if committing and code == sqlite3.SQLITE_IOERR:
            kind = UnconfirmedError
        if opening and not is_full and code in _MISPLACED:
            kind = ConfigurationError
        translated = kind(f"{sentence.format(path=self.path, directory=self.path.parent)} ({error})")
        translated.__cause__ = error
        return translated

    def _is_full(self, error: Exception) -> bool:
        """SQLite says so, or something vaguer where the disk has no space left."""
        code = _code(error)
        return code == sqlite3.SQLITE_FULL or (code in _VAGUE and _free_bytes(self.path.parent) < NO_SPACE_BYTES)


class _SchemaMissingError(Exception):
    """The file lacks a table that is required: it must be written to before it can be read."""


class _Reserve:
    """A file that is given up where the disk is full, so that something can be deleted. Every process may make and remove it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def restore(self) -> None:
        """Raises `OSError` if there is no space for it."""
        with suppress(FileNotFoundError):
            if self._path.stat().st_size == RESERVE_BYTES:
                return
        try:
            self._path.write_bytes(bytes(RESERVE_BYTES))
        except OSError:
            self.release()
            raise

    def release(self) -> bool:
        """False: there was none."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True


def _sign(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={FORMAT_VERSION}")


def _surplus(connection: sqlite3.Connection) -> int:
    """How many free pages may be given back."""
    (mode,), = connection.execute("PRAGMA auto_vacuum")
    (free,), = connection.execute("PRAGMA freelist_count")
    return int(free) - SPARE_PAGES if mode == 2 else 0


_MEANING: dict[int, tuple[type[TieredError], str]] = {
    sqlite3.SQLITE_BUSY: (UnavailableError, "{path} is locked: other processes write without a pause or are stopped; try again"),
    sqlite3.SQLITE_FULL: (UnavailableError, "the disk is full: free some space for {path}"),
    sqlite3.SQLITE_READONLY: (
        UnavailableError, "{path} is read-only: let this user write the file and its directory, or mount the disk for writing"
    ),
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
_VAGUE = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
_MISPLACED = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOTADB}


def _text(raw: bytes) -> str:
    """Bytes that are no UTF-8 become halves of surrogate pairs: one damaged value must not end the reading of the others."""
    return raw.decode(errors="surrogateescape")


def _code(error: Exception) -> int:
    """SQLite's primary result code; 0 for what is none. A closed connection is `sqlite3`'s own to report."""
    if isinstance(error, OSError):
        return _OF_THE_SYSTEM.get(error.errno or 0, sqlite3.SQLITE_IOERR)
    if isinstance(error, sqlite3.ProgrammingError):
        return sqlite3.SQLITE_MISUSE
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


_OF_THE_SYSTEM = {
    errno.ENOSPC: sqlite3.SQLITE_FULL, errno.EDQUOT: sqlite3.SQLITE_FULL, errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.EACCES: sqlite3.SQLITE_PERM, errno.EPERM: sqlite3.SQLITE_PERM,
}


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file it is; None: there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _free_bytes(directory: Path) -> int:
    try:
        found = os.statvfs(directory)
    except OSError:
        return 1 << 63  # nobody knows, and something else is wrong
    return found.f_bavail * found.f_frsize if found.f_favail or not found.f_files else 0


def _is_read_only(directory: Path) -> bool:
    """Whether its file system is, for everybody."""
    return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)


def _any_file(directory: Path) -> Path | None:
    return next((Path(parent, names[0]) for parent, _, names in os.walk(directory) if names), None)


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
