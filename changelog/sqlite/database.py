"""`Database`, one SQLite file that several processes share: many readers, and writers that commit in groups.

    write(run) --> queue --> one thread: BEGIN IMMEDIATE [SAVEPOINT run]... COMMIT --> every waiter is told
    read(run)  --> a read connection of its own: one snapshot, never waits for writers

Each module that keeps tables here brings its own `CREATE TABLE IF NOT EXISTS` (`require`). The file itself knows only
whose it is (`application_id`) and which format it has (`user_version`). Opening writes only what is missing, so the
file can also be read on a full or read-only disk. Each commit is an fsync (`synchronous=FULL`), so writes that wait at
the same time share one. SQLite's locks work between processes, and end with a process that is killed. SQLite's log is
copied into the file only as `Database._copy_log` says, because SQLite before 3.51.3 may lose commits. On a full disk,
writes that bring no payload use up a reserve (`FILE-reserve`). So deleting is possible, and the other writes fail until
there is space for the reserve again.

*Crash* at any point: the whole write is in the file, or nothing of it. *Failure*: one table below translates SQLite's
codes into this project's errors. If no thread can be started, only that read fails, or the opening: the thread that
writes lives from the opening to the closing. This module contains no SQL of any other module's tables.
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
from anyio import from_thread
from anyio.lowlevel import EventLoopToken, current_token

from changelog.base.directories import sync_upwards
from changelog.base.errors import ConfigurationError, CorruptRecordError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import Runtime
from changelog.base.tasks import wait_out
from changelog.base.threads import in_thread
from changelog.sqlite.forks import Identity, closed, opened, refuse_inherited

APPLICATION_ID = 0x54694572
"""Stands in the file's header, where `file` and SQLite show it: "TiEr"."""

FORMAT_VERSION = 2
"""Version 0.1 wrote format 1. Opening takes such a file over: `require` adds what its tables lack."""

BUSY_TIMEOUT_S = 5.0
GROUP_MAX = 64
READERS = 4
RESERVE_BYTES = 1 << 20
NO_SPACE_BYTES = 64 << 10
"""If less is free on the disk, an unclear error of SQLite counts as a full disk.

It is also more than one write changes besides its payload.
"""
LOG_PAGES = 1000
"""SQLite's log is copied into the file when it has so many pages."""
WAL_BYTES_MAX = 8 << 20
SPARE_PAGES = 256
"""Free pages that stay in the file for the next writes."""
SHRINK_PAGES = 2048
"""Pages that are given back in one transaction, during which nobody else can write."""

SQLITE_VERSION = sqlite3.sqlite_version_info
"""Of the library that runs, such as (3, 40, 1)."""

T = TypeVar("T")
Run = Callable[[sqlite3.Connection], T]


@dataclass(slots=True, eq=False)
class _Write(Generic[T]):
    """One call of `write` on its way. `grows`: it brings a payload.

    `taken`: its transaction begins, so it cannot be withdrawn.
    """

    run: Run[T]
    grows: bool
    told: anyio.Event = field(default_factory=anyio.Event)
    taken: bool = False
    withdrawn: bool = False
    result: T | None = None
    error: Exception | None = None


class Database:
    """Open it with `open`, which also closes it.

    Calls run in threads of its own, not in the event loop or anyio's own threads.
    """

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self.path = path
        self._busy_timeout_s = busy_timeout_s
        self._reserve = _Reserve(path)
        self._required: list[str | Run[None]] = []
        self._present = 0  # how many of these were seen in the file
        self._options = ""
        self._file: Identity | None = None
        self._noted: Identity | None = None  # what `forks` was told to be open
        self._page_bytes = 0
        self._writing = threading.Lock()
        self._waiting: queue.SimpleQueue[_Write[Any] | None] = queue.SimpleQueue()  # None: the last one has come
        self._deciding = threading.Lock()  # guards `_is_closed`, and what is taken or withdrawn
        self._is_closed = True
        self._ended = anyio.Event()  # the thread that writes
        self._opening_thread = anyio.CapacityLimiter(1)
        self._reader_threads = anyio.CapacityLimiter(READERS)
        self._readers: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._connections: list[sqlite3.Connection] = []
        self._writer: sqlite3.Connection
        self._copier: sqlite3.Connection
        self._log: int | None = None  # a descriptor of SQLite's log, on which SQLite has no locks

    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: Path, runtime: Runtime, *, beside: Path | None = None, busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> AsyncIterator[Self]:
        """Opens the file.

        Creates the file and its directory if they are missing; several processes may do this at once.

        `beside`: a directory that is worth nothing without this file. If any file is in it, a missing or empty database
        is a lost one, and no new one is made. `busy_timeout_s`: how many seconds a write waits for other processes'
        writes. `ConfigurationError`: the path holds something else, or a newer format, or cannot be made, or was lost;
        nothing was changed. A file that can only be read is opened for reading.
        """
        database = cls(path, busy_timeout_s)
        try:
            await database._connect(runtime, beside)
            database._start_writing()
            try:
                yield database
            finally:
                await database._stop_writing()
        finally:
            try:
                with anyio.CancelScope(shield=True):
                    await in_thread(database._close, database._opening_thread)
            except UnavailableError:  # no thread can be had
                database._close()
            except BaseException:  # asyncio's own cancellation, which no shield stops: a thread may still be closing it
                database._close()
                raise

    def require(self, schema: Sequence[str | Run[None]]) -> None:
        """Registers statements that run before any later read or write.

        Each must be harmless when it is repeated, and must write nothing if its effect is already there.
        """
        self._required.extend(schema)

    async def write(self, run: Run[T], *, grows: bool = False) -> T:
        """Runs `run` in a write transaction, in a thread. Returns its result once it is durable.

        If `run` raises, only its own writes are undone. It may run twice, if the first run was undone. `grows`: it
        brings a payload, so it is refused on a full disk, where other writes may use the reserve. `UnavailableError`:
        nothing was written. `UnconfirmedError`: it may have been written. If the task is cancelled, the write was not
        begun, or it is complete. `ConfigurationError`: this process was forked while the file was open.
        """
        refuse_inherited(self.path, self._noted)  # the thread that writes is the parent's
        write = _Write(run, grows)
        with self._deciding:
            if self._is_closed:
                raise UnavailableError(f"{self.path} is closed")
            self._waiting.put(write)
        try:
            await write.told.wait()
        except BaseException:
            with self._deciding:
                write.withdrawn = not write.taken
            if not write.withdrawn:
                await wait_out(write.told)
            raise
        if write.error is not None:
            raise write.error
        return cast(T, write.result)

    async def read(self, run: Run[T]) -> T:
        """Runs `run`, which must not write, on one snapshot of the file, in a thread. Returns its result.

        `ConfigurationError`: this process was forked while the file was open, so it has none of SQLite's locks.
        """
        refuse_inherited(self.path, self._noted)
        try:
            return await in_thread(partial(self._on_snapshot, run), self._reader_threads)
        except _SchemaMissingError:
            await self.write(lambda connection: None)
            return await in_thread(partial(self._on_snapshot, run), self._reader_threads)

    async def try_writing(self) -> None:
        """Tests a write as one with a payload would be made. It only writes values that are already there.

        Raises as `write`.
        """
        await self.write(_sign, grows=True)

    async def shrink(self) -> None:
        """Gives the file's free pages back to the disk, in steps. A file of version 0.1 keeps them for later writes."""
        surplus = await self.read(_surplus)
        while surplus > 0:
            await self.write(partial(_give_back, min(surplus, SHRINK_PAGES)))
            before, surplus = surplus, await self.read(_surplus)
            if surplus >= before:
                return

    # --- the thread that writes ----------------------------------------------------------------------

    def _start_writing(self) -> None:
        """Starts the thread. It is a daemon thread, so it does not keep a program from ending that leaves it behind."""
        try:
            threading.Thread(target=self._commit_groups, args=(current_token(),), name="tiered database", daemon=True).start()
        except RuntimeError as error:
            raise UnavailableError(f"no thread could be started: let this process have more of them, or try again ({error})") from error
        self._is_closed = False

    async def _stop_writing(self) -> None:
        """Takes no more writes, and waits until those that wait are committed."""
        with self._deciding:
            self._is_closed = True
        self._waiting.put(None)
        await wait_out(self._ended)

    def _commit_groups(self, loop: EventLoopToken) -> None:
        taken: list[_Write[Any]] = []
        try:
            while (first := self._waiting.get()) is not None:
                taken = self._take(first)
                del first  # its payload must not stay in memory while this waits for the next
                if taken:
                    self._commit(taken)
                    try:
                        from_thread.run_sync(_tell, taken, token=loop)
                    except RuntimeError:  # the event loop has ended, so nobody waits
                        return
                    taken = []
        finally:
            # If it ends in another way, nobody may wait for an answer any more.
            with self._deciding:
                self._is_closed = True
            with suppress(queue.Empty):
                while True:
                    if (left := self._waiting.get_nowait()) is not None:
                        taken.append(left)
            for write in taken:
                write.error = UnconfirmedError(f"{self.path} was given up while it was written to")
            with suppress(RuntimeError):  # the event loop has ended, so nobody waits
                from_thread.run_sync(_tell, taken, token=loop)
                from_thread.run_sync(self._ended.set, token=loop)

    def _take(self, first: _Write[Any]) -> list[_Write[Any]]:
        """The first and those that wait behind it, without those that were withdrawn."""
        received = [first]
        with suppress(queue.Empty):
            while len(received) < GROUP_MAX:
                following = self._waiting.get_nowait()
                if following is None:
                    self._waiting.put(None)  # nothing comes after it
                    break
                received.append(following)
        with self._deciding:
            taken = [write for write in received if not write.withdrawn]
            for write in taken:
                write.taken = True
        return taken

    def _commit(self, group: list[_Write[Any]]) -> None:
        """Commits all of them in one transaction. Leaves a result or an error in each.

        It raises only what ends the thread, such as `SystemExit`. Then the transaction is undone.
        """
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
            self._begin()
            present = self._require(self._writer)
            for write in group:
                if len(group) > 1:
                    self._attempt(write)
                else:  # if it fails, all is undone anyway
                    write.error, write.result = None, write.run(self._writer)
                if write.grows:
                    self._refuse_what_cannot_be_moved(len(group))
            committing = True
            self._writer.execute("COMMIT")
            self._present = present
        except BaseException as error:
            with suppress(sqlite3.Error):  # after most errors SQLite has rolled back already
                self._writer.execute("ROLLBACK")
            if not isinstance(error, Exception):  # an open transaction would hold up all other processes
                raise
            if self._is_full(error):
                if len(group) > 1:
                    for write in group:  # one that is too large must not make the others fail
                        self._commit_together([write])
                    return
                if self._made_room(group[0], attempt):
                    self._commit_together(group, attempt + 1)
                    return
            for write in group:
                write.error = self._translated(error, committing=committing)

    def _made_room(self, write: _Write[Any], attempt: int) -> bool:
        """Makes room for one write that does not fit. False: nothing more can be done.

        A write without payload first gets the reserve's space, for SQLite's log. The next step moves the log's content
        into the file.
        """
        if attempt == 1 and not write.grows and self._reserve.release():
            return True
        if attempt > 2:
            return False
        # PASSIVE keeps the log's space for a deletion; TRUNCATE would free it for everybody.
        self._empty_log("TRUNCATE" if write.grows else "PASSIVE")
        return True

    def _begin(self) -> None:
        """Begins a write transaction. If the log is long, it is copied into the file first.

        All of it is copied, unless somebody reads it, because nobody can add to it meanwhile. Then a commit of the next
        transaction, whoever's it is, begins the log anew.
        """
        self._writer.execute("BEGIN IMMEDIATE")
        if self._log is not None and _has_pages(self._log, LOG_PAGES, self._page_bytes):
            self._copy_log("PASSIVE")
            self._writer.execute("ROLLBACK")
            self._writer.execute("BEGIN IMMEDIATE")

    def _empty_log(self, how: str) -> None:
        """Copies the log into the file, as far as nobody uses it at this moment. TRUNCATE also gives its space back."""
        for step in ("PASSIVE", "TRUNCATE")[: 2 if how == "TRUNCATE" else 1]:
            with suppress(sqlite3.Error):
                self._writer.execute("BEGIN")
                self._writer.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # the transaction begins with its first read
                self._copy_log(step)
            with suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")

    def _copy_log(self, how: str) -> None:
        """The only checkpoint of this software. Call it while `_writer` is in a transaction that has read.

        Before 3.51.3, SQLite loses commits if another connection begins the log anew during a checkpoint. While a
        transaction is open, this does no harm. Either it reads from the log, and then nobody can begin the log anew. Or
        it reads from the file alone, and then no checkpoint can copy anything. TRUNCATE begins the log anew itself, and
        for that it has all of SQLite's locks. If it cannot copy all, it copies what it can, and leaves the log.
        """
        with suppress(sqlite3.Error):
            self._copier.execute(f"PRAGMA wal_checkpoint({how})").fetchall()

    def _refuse_what_cannot_be_moved(self, writes: int) -> None:
        """Refuses a write whose content would fit into the log, but could not be moved from there into the file.

        Such content would keep the log from ever beginning anew, and then nothing could be deleted, either. So there
        must be space for the file's growth twice, in the log and in the file, and once for what else each write
        changes.
        """
        (pages,), = self._writer.execute("PRAGMA page_count")
        growth = pages * self._page_bytes - os.stat(self.path).st_size
        if growth > 0 and 2 * growth + writes * NO_SPACE_BYTES > _free_bytes(self.path.parent):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _attempt(self, write: _Write[Any]) -> None:
        """Runs one write within the group's transaction. If it fails, only this write is undone."""
        write.error = None
        self._writer.execute("SAVEPOINT attempt")
        try:
            write.result = write.run(self._writer)
        except Exception as error:  # the caller raises it; the others in the group go on
            sqlites = isinstance(error, sqlite3.Error)
            # SQLite undid all of them, or they are tried again.
            if not self._writer.in_transaction or (sqlites and self._is_full(error)):
                raise
            self._writer.execute("ROLLBACK TO attempt")
            write.error = self._translated(error) if sqlites else error
        self._writer.execute("RELEASE attempt")

    # --- threads and connections ---------------------------------------------------------------------

    def _on_snapshot(self, run: Run[T]) -> T:
        connection = self._readers.get()  # waits only if asyncio's own cancellation left threads behind
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
        """Runs the statements that were not seen in the file yet.

        Returns how many hold once this transaction has ended well.
        """
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
        except PermissionError as error:
            raise ConfigurationError(
                f"this user may not use or make the directory {self.path.parent}: run as the user whose store it is, or let this one in"
            ) from error
        except OSError as error:
            raise ConfigurationError(f"the directory {self.path.parent} cannot be made: {error.strerror}; choose another") from error

    async def _open_connections(self, runtime: Runtime, beside: Path | None) -> None:
        await in_thread(partial(self._create, beside), self._opening_thread)
        given_up_at = runtime.monotonic() + self._busy_timeout_s
        while not await in_thread(partial(self._in_wal_mode, runtime.monotonic() >= given_up_at), self._opening_thread):
            await runtime.sleep(0.01)
        await in_thread(self._connect_readers, self._opening_thread)

    def _can_be_read_otherwise(self, error: sqlite3.Error) -> bool:
        """Whether opening may succeed at a second attempt, because something can be done without.

        On a full disk this is the reserve, on a read-only one the locks. SQLite keeps a small file of locks beside the
        database. In a copy it may be missing. On a read-only file system nobody writes, so no locks are needed. But if
        a killed process left committed data in SQLite's log, the log cannot be read without them. Then it is a
        `ConfigurationError`.
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
        """Signs a new file as ours, or refuses a file that is not ours.

        In one transaction, so the first of several processes wins.
        """
        _make_directory(self.path.parent)
        refuse_inherited(self.path, _identity(self.path))
        # SQLite would make it by the umask. It gives its other files the mode of this one. Opening and closing it here
        # could release this process's locks. Where this fails, SQLite says why, or can make it.
        with suppress(OSError):
            os.mknod(self.path, 0o600)
        self._writer = self._connection()
        signed = self._signed()
        if self._noted is None and (noted := _identity(self.path)) is not None:
            opened(noted)
            self._noted = noted
        if signed is None:
            self._refuse_if_lost(beside)
            self._connections.pop().close()
            self._writer = self._connection()  # a connection that has read the file cannot set auto_vacuum any more
            self._writer.execute("PRAGMA auto_vacuum=INCREMENTAL")
        self._writer.execute("PRAGMA synchronous=FULL")
        self._writer.execute("PRAGMA fullfsync=ON")  # where fsync alone does not reach the disk (macOS)
        # Some systems' SQLite overwrites what is deleted, which needs space.
        self._writer.execute("PRAGMA secure_delete=FAST")
        self._writer.execute(f"PRAGMA journal_size_limit={WAL_BYTES_MAX}")
        self._writer.execute("PRAGMA wal_autocheckpoint=0")  # see `_copy_log`
        if self._signed() == FORMAT_VERSION:
            return
        sync_upwards(self.path.parent)  # whoever finds a signed file relies on it, and on its directory
        self._writer.execute("BEGIN IMMEDIATE")
        if self._signed() != FORMAT_VERSION:
            _sign(self._writer)
        self._writer.execute("COMMIT")

    def _refuse_if_lost(self, beside: Path | None) -> None:
        """Raises if the database is new, but `beside` holds files.

        A store puts files there only after its database was signed. So under the database's lock, such files belong to
        an earlier database, and that one is lost.
        """
        self._writer.execute("BEGIN IMMEDIATE")
        if self._signed() is None and beside is not None and (file := _any_file(beside)):
            raise ConfigurationError(
                f"{self.path} is lost or empty, and without it {file} and whatever else lies in {beside} belongs to nothing: "
                f"restore the database from a backup, or move {beside} away to begin anew"
            )
        self._writer.execute("ROLLBACK")

    def _signed(self) -> int | None:
        """The format that the file says it has; None: it is new.

        `ConfigurationError`: it is not ours, or its format is newer.
        """
        # One statement, so one look: another process may sign the file between two.
        (application, version, tables), = self._writer.execute(
            "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) FROM pragma_application_id, pragma_user_version"
        )
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
        """Raises if the file was deleted or replaced: a write to it would be acknowledged and lost."""
        if self._file != _identity(self.path):
            raise UnavailableError(f"{self.path} was deleted or replaced while it was open: put it back, and start this process again")

    def _in_wal_mode(self, last_try: bool) -> bool:
        """Switches the file to a write-ahead log.

        False: another process is doing the same, and SQLite does not wait for it.
        """
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
        self._copier = self._connection()
        self._copier.execute("PRAGMA busy_timeout=0")
        readers = [self._connection("?mode=ro") for _ in range(READERS)]
        # This finds out now whether the file can be read at all. And only a connection that has read keeps SQLite's log
        # and locks, see `_close`.
        readers[-1].execute("SELECT count(*) FROM sqlite_schema").fetchall()
        for reader in readers:
            self._readers.put(reader)
        (self._page_bytes,), = self._writer.execute("PRAGMA page_size")  # no statement changes it in the WAL mode
        try:
            self._log = os.open(self.path.with_name(f"{self.path.name}-wal"), os.O_RDONLY)
        except FileNotFoundError:  # an immutable file has none
            self._log = None
        except OSError as error:
            raise self._translated(error) from error
        self._file = _identity(self.path)

    def _connection(self, options: str = "") -> sqlite3.Connection:
        # Only SQLite may open the file. Closing any other descriptor of it would release this process's locks.
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}{self._options or options}", uri=True, timeout=self._busy_timeout_s, isolation_level=None,
            check_same_thread=False,
        )  # fmt: skip
        connection.text_factory = _text
        self._connections.append(connection)
        return connection

    def _close(self) -> None:
        """Closes all connections. Safe to repeat.

        The closed readers are put back, so that a late call finds one and is refused, and does not wait for ever.
        """
        with self._writing:  # after asyncio's own cancellation a thread may still be writing
            readers = [self._readers.get() for _ in range(READERS)] if self._file else []
            # The writer is closed first. If a reader is the last one to close, the empty log and the file of locks
            # stay. So they need not be made again on a full or read-only disk.
            log, self._log = self._log, None
            if log is not None:
                if os.fstat(log).st_size:
                    self._empty_log("TRUNCATE")
                os.close(log)
            for connection in self._connections:
                connection.close()
            for connection in readers:
                self._readers.put(connection)
            noted, self._noted = self._noted, None
            if noted is not None:
                closed(noted)

    # --- what went wrong -----------------------------------------------------------------------------

    def _translated(self, error: Exception, *, committing: bool = False, opening: bool = False) -> Exception:
        """The error in this project's terms.

        An error that is not SQLite's or the system's is the caller's, and stays as it is.

        It looks at the disk, so call it in a thread.
        """
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
        """Whether the disk is full: SQLite says so, or it gives an unclear error and the disk has no space left."""
        code = _code(error)
        return code == sqlite3.SQLITE_FULL or (code in _VAGUE and _free_bytes(self.path.parent) < NO_SPACE_BYTES)


def has_reset_bug(version: tuple[int, int, int]) -> bool:
    """Whether this SQLite can lose commits if its log begins anew during a checkpoint: see `Database._copy_log`."""
    return not (version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45))


def _tell(writes: Sequence[_Write[Any]]) -> None:
    for write in writes:
        write.told.set()


class _SchemaMissingError(Exception):
    """The file lacks a table that is required. It must be written to before it can be read."""


class _Reserve:
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


def _sign(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={FORMAT_VERSION}")


def _give_back(pages: int, connection: sqlite3.Connection) -> None:
    """Gives that many free pages back to the disk. One execution gives back one page, whatever number it names."""
    for _ in range(pages):
        connection.execute("PRAGMA incremental_vacuum(1)")


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


def _text(raw: bytes) -> str:
    """Decodes text. Bytes that are not UTF-8 become halves of surrogate pairs.

    So one damaged value does not prevent the reading of the others.
    """
    return raw.decode(errors="surrogateescape")


def _code(error: Exception) -> int:
    """SQLite's primary result code; 0 for an error that has none. Errors of the system are given the nearest code.

    A closed connection is reported by the module `sqlite3` itself, as a ProgrammingError.
    """
    if isinstance(error, OSError):
        return _OF_THE_SYSTEM.get(error.errno or 0, sqlite3.SQLITE_IOERR)
    if isinstance(error, sqlite3.ProgrammingError):
        return sqlite3.SQLITE_MISUSE
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


_OF_THE_SYSTEM = {
    errno.ENOSPC: sqlite3.SQLITE_FULL, errno.EDQUOT: sqlite3.SQLITE_FULL, errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.EACCES: sqlite3.SQLITE_PERM, errno.EPERM: sqlite3.SQLITE_PERM,
}


def _identity(path: Path) -> Identity | None:
    """The file's device and inode; None: there is no file."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _free_bytes(directory: Path) -> int:
    try:
        found = os.statvfs(directory)
    except OSError:
        return 1 << 63  # unknown, so something else must be wrong
    return found.f_bavail * found.f_frsize if found.f_favail or not found.f_files else 0


def _is_read_only(directory: Path) -> bool:
    """Whether the file system is read-only for everybody."""
    return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)


def _has_pages(log: int, pages: int, page_bytes: int) -> bool:
    """Whether so many pages were written into the log since it began anew.

    The length of its file does not tell, because it is written over. But each page in it repeats the log's salt, a
    number that every beginning changes.
    """
    salt = os.pread(log, 8, 16)
    return len(salt) == 8 and os.pread(log, 8, 32 + (pages - 1) * (24 + page_bytes) + 8) == salt


def _any_file(directory: Path) -> Path | None:
    return next((Path(parent, names[0]) for parent, _, names in os.walk(directory) if names), None)


def _make_directory(directory: Path) -> None:
    """Makes the directory, for this user alone, and its parents. They are durable once the file is signed (`_create`).

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
