"""`GroupTransactions`: several writes in one transaction, of which each fails alone.

    BEGIN IMMEDIATE [SAVEPOINT run]... COMMIT

On a full disk, writes that bring no payload use up a reserve (`FILE-reserve`). So deleting is possible, and the other
writes fail until there is space for the reserve again. *Crash*: the whole group is in the file, or nothing of it.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import suppress
from typing import Any

from changelog.sqlite.connections import FileConnections
from changelog.sqlite.disk import free_bytes
from changelog.sqlite.result_codes import NO_SPACE_BYTES, is_full, translated
from changelog.sqlite.schema import RequiredSchema, refuse_newer
from changelog.sqlite.write_thread import PendingWrite


class GroupTransactions:
    """Works in the thread that writes, with open `connections`."""

    def __init__(self, connections: FileConnections, schema: RequiredSchema) -> None:
        self._connections = connections
        self._schema = schema
        self._path = connections.path

    def commit(self, group: list[PendingWrite[Any]]) -> None:
        """Commits all of them in one transaction. Leaves a result or an error in each.

        It raises only what ends the thread, such as `SystemExit`. Then the transaction is undone.
        """
        with self._connections.writing:
            growing = [write for write in group if write.grows]
            try:
                if growing:
                    self._connections.reserve.restore()
            except OSError as error:
                for write in growing:
                    write.error = translated(error, self._path)
                group = [write for write in group if not write.grows]
            if group:
                self._commit_together(group)

    def _commit_together(self, group: list[PendingWrite[Any]], attempt: int = 1) -> None:
        writer, committing = self._connections.writer, False
        try:
            self._connections.refuse_if_gone()
            self._connections.checkpoints.begin()
            refuse_newer(writer, self._path)
            present = self._schema.make(writer)
            for write in group:
                if len(group) > 1:
                    self._attempt(writer, write)
                else:  # if it fails, all is undone anyway
                    write.error, write.result = None, write.run(writer)
                if write.grows:
                    self._refuse_what_cannot_be_moved(writer, len(group))
            committing = True
            writer.execute("COMMIT")
            self._schema.hold(present)
        except BaseException as error:
            with suppress(sqlite3.Error):  # after most errors SQLite has rolled back already
                writer.execute("ROLLBACK")
            if not isinstance(error, Exception):  # an open transaction would hold up all other processes
                raise
            if is_full(error, self._path):
                if len(group) > 1:
                    for write in group:  # one that is too large must not make the others fail
                        self._commit_together([write])
                    return
                if self._made_room(group[0], attempt):
                    self._commit_together(group, attempt + 1)
                    return
            for write in group:
                write.error = translated(error, self._path, committing=committing)

    def _made_room(self, write: PendingWrite[Any], attempt: int) -> bool:
        """Makes room for one write that does not fit. False: nothing more can be done.

        A write without payload first gets the reserve's space, for SQLite's log. The next step moves the log's content
        into the file.
        """
        if attempt == 1 and not write.grows and self._connections.reserve.release():
            return True
        if attempt > 2:
            return False
        # PASSIVE keeps the log's space for a deletion; TRUNCATE would free it for everybody.
        self._connections.checkpoints.empty("TRUNCATE" if write.grows else "PASSIVE")
        return True

    def _refuse_what_cannot_be_moved(self, writer: sqlite3.Connection, writes: int) -> None:
        """Refuses a write whose content would fit into the log, but could not be moved from there into the file.

        Such content would keep the log from ever beginning anew, and then nothing could be deleted, either. So there
        must be space for the file's growth twice, in the log and in the file, and once for what else each write
        changes.
        """
        (pages,), = writer.execute("PRAGMA page_count")
        growth = pages * self._connections.checkpoints.page_bytes - os.stat(self._path).st_size
        if growth > 0 and 2 * growth + writes * NO_SPACE_BYTES > free_bytes(self._path.parent):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _attempt(self, writer: sqlite3.Connection, write: PendingWrite[Any]) -> None:
        """Runs one write within the group's transaction. If it fails, only this write is undone."""
        write.error = None
        writer.execute("SAVEPOINT attempt")
        try:
            write.result = write.run(writer)
        except Exception as error:  # the caller raises it; the others in the group go on
            sqlites = isinstance(error, sqlite3.Error)
            # SQLite undid all of them, or they are tried again.
            if not writer.in_transaction or (sqlites and is_full(error, self._path)):
                raise
            writer.execute("ROLLBACK TO attempt")
            write.error = translated(error, self._path) if sqlites else error
        writer.execute("RELEASE attempt")
