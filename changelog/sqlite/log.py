"""`SqliteChangeLog`, the changelog of embedded mode: three tables in a file that may also hold the rows.

    changes   key (as in `changelog.change`), value (the entry, JSON), heartbeat_ms, state (JSON; null: open)
    daemons   instance, seen_ms
    notes     name, value. It is made with the first note, so a store without it can be read on any disk

Each call is one transaction of `changelog.sqlite.database`, and durable before it returns. The *server's clock* of
embedded mode is this machine's wall clock. All processes on one file share it. If somebody sets it, recovery acts
sooner or later, and nothing else changes. A compare-and-swap decodes the stored entry and compares it in its current
form, so entries of older software can be claimed, too (I6).

*Crash* at any call: the whole entry is in the log, or nothing of it. *Failure*: see `changelog.sqlite.database`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from changelog.base.errors import LeaseLostError
from changelog.base.events import events
from changelog.base.runtime import Runtime
from changelog.change import Change, ChangeId, Entry, Stuck, Unreadable, decode, encode, encode_stuck
from changelog.lease import Renewal, Standing, standing
from changelog.log import CLOCK, PRESENCE_AGE_MAX_MS, KeyRange, Page, check_note, shard_ranges
from changelog.sqlite.database import Database

__all__ = ["Database", "SqliteChangeLog"]


_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS changes (
        key TEXT PRIMARY KEY, value BLOB NOT NULL, heartbeat_ms INTEGER NOT NULL, state TEXT
    ) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS daemons (instance TEXT PRIMARY KEY, seen_ms INTEGER NOT NULL) WITHOUT ROWID",
)
_NOTES = "CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
_COLUMNS = "CAST(key AS BLOB), CAST(value AS BLOB), CAST(heartbeat_ms AS INTEGER), CAST(state AS BLOB)"
"""A damaged value may have another type, so all are cast. A heartbeat that is not a number becomes 0, a very old one.
"""
_Stored = tuple[bytes, bytes, int, bytes | None]
_DUE = (Standing.CLAIMABLE, Standing.EXHAUSTED, Standing.UNREADABLE)


class SqliteChangeLog:
    """Implements `ChangeLog`. Also implements `Collects`, because nothing else removes old presence rows."""

    durable = True

    def __init__(self, database: Database, runtime: Runtime) -> None:
        self._database = database
        self._runtime = runtime
        database.require(_SCHEMA)

    async def record(self, change: Change, owner: str) -> Entry:
        """As in `ChangeLog`. `LeaseLostError`: it was recorded before and has been claimed since, so recovery has it.
        """
        def run(connection: sqlite3.Connection) -> Entry:
            entry = Entry(change, change.id.row_key(), owner)
            connection.execute("INSERT INTO changes VALUES (?, ?, 0, NULL) ON CONFLICT DO NOTHING", (entry.key, encode(entry)))
            if not self._swap(connection, entry, entry):
                raise LeaseLostError(f"change {change.id} of {change.object} was taken over by recovery")
            return entry

        return await self._database.write(run)

    async def renew(self, entries: Sequence[Entry]) -> Sequence[Renewal]:
        def run(connection: sqlite3.Connection) -> Sequence[Renewal]:
            return [Renewal.RENEWED if self._swap(connection, entry, entry) else Renewal.NOT_YOURS for entry in entries]

        return await self._database.write(run)

    async def forget(self, entry: Entry) -> None:
        await self._database.write(lambda connection: connection.execute("DELETE FROM changes WHERE key = ?", (entry.key,)))

    async def release(self, entry: Entry, cleanup_after_ms: int | None = None) -> bool:
        released = entry.released(cleanup_after_ms)
        return await self._database.write(lambda connection: self._swap(connection, entry, released))

    async def announce(self, instance: str) -> int:
        def run(connection: sqlite3.Connection) -> int:
            now_ms = self._now_ms()
            connection.execute("INSERT OR REPLACE INTO daemons VALUES (?, ?)", (instance, now_ms))
            return now_ms

        return await self._database.write(run)

    def ranges(self) -> Sequence[KeyRange]:
        return shard_ranges()

    async def stale(self, within: KeyRange, now_ms: int, expiry_ms: int, limit: int) -> Page:
        def run(connection: sqlite3.Connection) -> Page:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM changes WHERE key >= ? AND key < ? AND state IS NULL ORDER BY key", (within.start, within.end)
            )
            due = (entry for entry in _readable(rows) if standing(entry, now_ms, expiry_ms, attempts_max=1) in _DUE)
            return _page(due, limit)

        return await self._database.read(run)

    async def claim(self, entry: Entry, owner: str) -> Entry | None:
        claimed = entry.claimed_by(owner)
        return claimed if await self._database.write(lambda connection: self._swap(connection, entry, claimed)) else None

    async def park(self, entry: Entry | Unreadable, error: str) -> bool:
        def run(connection: sqlite3.Connection) -> bool:
            if not _is_stored(connection, entry):
                return False
            stuck = encode_stuck(Stuck(error, self._now_ms()))
            connection.execute("UPDATE changes SET state = ? WHERE key = ?", (stuck, entry.key))
            return True

        return await self._database.write(run)

    async def retry(self, entry: Entry | Unreadable) -> bool:
        def run(connection: sqlite3.Connection) -> bool:
            if not _is_stored(connection, entry):
                return False
            value = encode(replace(entry, owner="", attempt=0)) if isinstance(entry, Entry) else entry.raw
            found = connection.execute(
                "UPDATE changes SET value = ?, state = NULL WHERE key = ? AND state IS NOT NULL", (value, entry.key)
            )
            return found.rowcount > 0

        return await self._database.write(run)

    async def entries(self, start: str, limit: int, *, stuck_only: bool = False) -> Page:
        def run(connection: sqlite3.Connection) -> Page:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM changes WHERE key >= ? AND (state IS NOT NULL OR NOT ?) ORDER BY key", (start, stuck_only)
            )
            return _page((entry for entry in _readable(rows) if entry.stuck or not stuck_only), limit)

        return await self._database.read(run)

    async def read(self, change_id: ChangeId) -> Entry | Unreadable | None:
        def run(connection: sqlite3.Connection) -> Entry | Unreadable | None:
            found = connection.execute(f"SELECT {_COLUMNS} FROM changes WHERE substr(key, -36) = ?", (change_id,)).fetchone()
            return _decode(found) if found else None

        return await self._database.read(run)

    async def presences(self) -> Sequence[tuple[str, int]]:
        def run(connection: sqlite3.Connection) -> Sequence[tuple[str, int]]:
            rows = connection.execute(
                "SELECT CAST(instance AS BLOB), CAST(seen_ms AS INTEGER) FROM daemons WHERE instance <> ?", (CLOCK,)
            ).fetchall()
            return [(instance.decode(errors="backslashreplace"), seen_ms) for instance, seen_ms in rows]

        return await self._database.read(run)

    async def read_note(self, name: str) -> bytes | None:
        return await self._database.read(lambda connection: _note(connection, name))

    async def swap_note(self, name: str, expected: bytes | None, value: bytes) -> bool:
        """As in `ChangeLog`. On a full disk it is refused: the space that is left is for deletions."""
        def run(connection: sqlite3.Connection) -> bool:
            connection.execute(_NOTES)
            stored = _note(connection, name)
            if stored not in (expected, value):
                return False
            if stored != value:
                connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, value))
            return True

        check_note(value)
        return await self._database.write(run, grows=True)

    async def collect(self, limit: int) -> int:
        """Removes presence rows older than a day, at most `limit`. Returns how many."""
        def run(connection: sqlite3.Connection) -> int:
            return connection.execute(
                "DELETE FROM daemons WHERE instance IN (SELECT instance FROM daemons WHERE seen_ms < ? LIMIT ?)",
                (self._now_ms() - PRESENCE_AGE_MAX_MS, limit),
            ).rowcount

        return await self._database.write(run)

    def _swap(self, connection: sqlite3.Connection, seen: Entry, new: Entry) -> bool:
        """Writes `new` with a fresh heartbeat iff `seen` is what is stored."""
        if not _is_stored(connection, seen):
            return False
        connection.execute("UPDATE changes SET value = ?, heartbeat_ms = ? WHERE key = ?", (encode(new), self._now_ms(), new.key))
        return True

    def _now_ms(self) -> int:
        """The server's clock, in ms since 1970."""
        return self._runtime.wall_ns() // 1_000_000


def _note(connection: sqlite3.Connection, name: str) -> bytes | None:
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'notes'").fetchone():
        return None
    found = connection.execute("SELECT CAST(value AS BLOB) FROM notes WHERE name = ?", (name,)).fetchone()
    return None if found is None else bytes(found[0])


def _stored(connection: sqlite3.Connection, key: str) -> Entry | Unreadable | None:
    found = connection.execute(f"SELECT {_COLUMNS} FROM changes WHERE key = ?", (key,)).fetchone()
    return _decode(found) if found else None


def _is_stored(connection: sqlite3.Connection, seen: Entry | Unreadable) -> bool:
    stored = _stored(connection, seen.key)
    return stored is not None and _value(stored) == _value(seen)


def _value(entry: Entry | Unreadable) -> bytes:
    return entry.raw if isinstance(entry, Unreadable) else encode(entry)


def _readable(rows: Iterable[_Stored]) -> Iterator[Entry | Unreadable]:
    """The entries whose key is text. An entry under any other key could be neither parked nor forgotten.

    So it is skipped, with a warning, and the others are still parked and forgotten.
    """
    for row in rows:
        try:
            yield _decode(row)
        except UnicodeDecodeError:
            events.warning("unreadable_key", "it is skipped: no entry has such a key", key=repr(row[0]))


def _decode(row: _Stored) -> Entry | Unreadable:
    key, value, heartbeat_ms, state = row
    return decode(key.decode(), value, heartbeat_ms, None if state is None else state.decode(errors="backslashreplace"))


def _page(entries: Iterator[Entry | Unreadable], limit: int) -> Page:
    """The first `limit` entries. The next page begins at the entry after them."""
    found = tuple(islice(entries, limit))
    following = next(entries, None)
    return Page(found, None if following is None else following.key)
