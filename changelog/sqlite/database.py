"""`Database`, one SQLite file that several processes share: many readers, and writers that commit in groups.

    write(run) --> queue --> one thread: BEGIN IMMEDIATE [SAVEPOINT run]... COMMIT --> every waiter is told
    read(run)  --> a read connection of its own: one snapshot, never waits for writers

Each module that keeps tables here brings its own `CREATE TABLE IF NOT EXISTS` (`require`). Each commit is an fsync
(`synchronous=FULL`), so writes that wait at the same time share one. SQLite's locks work between processes, and end
with a process that is killed.

*Crash* at any point: the whole write is in the file, or nothing of it. *Failure*: one table (`result_codes.py`)
translates SQLite's codes into this project's errors. If no thread can be started, only that read fails, or the opening:
the thread that writes lives from the opening to the closing. This folder's modules but `log.py` contain no SQL of any
other module's tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Self

import anyio

from changelog.base.runtime import Runtime
from changelog.base.threads import in_thread
from changelog.sqlite.connections import READERS, FileConnections
from changelog.sqlite.forks import refuse_inherited
from changelog.sqlite.result_codes import translated
from changelog.sqlite.schema import RequiredSchema, Run, SchemaMissingError, T, refuse_newer, sign
from changelog.sqlite.transactions import GroupTransactions
from changelog.sqlite.write_thread import PendingWrite, WriteThread

BUSY_TIMEOUT_S = 5.0
SPARE_PAGES = 256
"""Free pages that stay in the file for the next writes."""
SHRINK_PAGES = 2048
"""Pages that are given back in one transaction, during which nobody else can write."""


class Database:
    """Open it with `open`, which also closes it.

    Calls run in threads of its own, not in the event loop or anyio's own threads.
    """

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self.path = path
        self._schema = RequiredSchema()
        self._connections = FileConnections(path, busy_timeout_s)
        self._thread = WriteThread(path, GroupTransactions(self._connections, self._schema).commit)
        self._reader_threads = anyio.CapacityLimiter(READERS)

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
            await database._connections.open(runtime, beside)
            database._thread.start()
            try:
                yield database
            finally:
                await database._thread.stop()
        finally:
            await database._connections.end()

    def require(self, schema: Sequence[str | Run[None]]) -> None:
        """Registers statements that run before any later read or write.

        Each must be harmless when it is repeated, and must write nothing if its effect is already there.
        """
        self._schema.add(schema)

    async def write(self, run: Run[T], *, grows: bool = False) -> T:
        """Runs `run` in a write transaction, in a thread. Returns its result once it is durable.

        If `run` raises, only its own writes are undone. It may run twice, if the first run was undone. `grows`: it
        brings a payload, so it is refused on a full disk, where other writes may use the reserve. `UnavailableError`:
        nothing was written. `UnconfirmedError`: it may have been written. If the task is cancelled, the write was not
        begun, or it is complete. `ConfigurationError`: this process was forked while the file was open, or newer
        software has taken the file over since.
        """
        refuse_inherited(self.path, self._connections.noted)  # the thread that writes is the parent's
        return await self._thread.commit(PendingWrite(run, grows))

    async def read(self, run: Run[T]) -> T:
        """Runs `run`, which must not write, on one snapshot of the file, in a thread. Returns its result.

        `ConfigurationError`: this process was forked while the file was open, so it has none of SQLite's locks; or
        newer software has taken the file over since.
        """
        refuse_inherited(self.path, self._connections.noted)
        try:
            return await in_thread(partial(self._on_snapshot, run), self._reader_threads)
        except SchemaMissingError:
            await self.write(lambda connection: None)
            return await in_thread(partial(self._on_snapshot, run), self._reader_threads)

    async def try_writing(self) -> None:
        """Tests a write as one with a payload would be made. It only writes values that are already there.

        Raises as `write`.
        """
        await self.write(sign, grows=True)

    async def shrink(self) -> None:
        """Gives the file's free pages back to the disk, in steps. A file from before 0.1.0 keeps them for later."""
        surplus = await self.read(_surplus)
        while surplus > 0:
            await self.write(partial(_give_back, min(surplus, SHRINK_PAGES)))
            before, surplus = surplus, await self.read(_surplus)
            if surplus >= before:
                return

    def _on_snapshot(self, run: Run[T]) -> T:
        connection = self._connections.readers.get()  # waits only if asyncio's own cancellation left threads behind
        try:
            connection.execute("BEGIN")
            try:
                refuse_newer(connection, self.path)
                self._schema.look(connection)
                return run(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise translated(error, self.path) from error
        finally:
            self._connections.readers.put(connection)


def _give_back(pages: int, connection: sqlite3.Connection) -> None:
    """Gives that many free pages back to the disk. One execution gives back one page, whatever number it names."""
    for _ in range(pages):
        connection.execute("PRAGMA incremental_vacuum(1)")


def _surplus(connection: sqlite3.Connection) -> int:
    """How many free pages may be given back."""
    (mode,), = connection.execute("PRAGMA auto_vacuum")
    (free,), = connection.execute("PRAGMA freelist_count")
    return int(free) - SPARE_PAGES if mode == 2 else 0
