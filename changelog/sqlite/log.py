"""`SqliteChangeLog`, the changelog of embedded mode: four tables in a file that may also hold the rows.

    changes      key (as in `changelog.change`), value (the entry, JSON), heartbeat_ms, state (JSON; null: open)
    daemons      instance, seen_ms
    notes        name, value
    log_values   key, value (null: removed), version

The last two are made with the first note and the first value. So a store without them can be read on any disk.

Each call is one transaction of `changelog.sqlite.database`, and durable before it returns. The *server's clock* of
embedded mode is this machine's wall clock. All processes on one file share it. If somebody sets it, recovery acts
sooner or later, and nothing else changes. A compare-and-swap decodes the stored entry and compares it in its current
form, so entries of older software can be claimed, too (I6).

*Crash* at any call: the whole entry is in the log, or nothing of it. *Failure*: see `changelog.sqlite.database`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from changelog.base.errors import LeaseLostError
from changelog.base.events import Once, events
from changelog.base.runtime import Runtime
from changelog.change import READABLE, Change, ChangeId, Entry, Stuck, Unreadable, decode, encode, encode_done, encode_stuck
from changelog.key_values import REMOVED_AGE_MAX_MS, ValuePage, check_note, check_values, portions
from changelog.lease import DUE, SET_BACK_MS, Renewal, entry_state
from changelog.log import PRESENCE_AGE_MAX_MS, EntryPage, KeyRange, shard_ranges
from changelog.sqlite.database import Database

__all__ = ["Database", "SqliteChangeLog"]


_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS changes (
        key TEXT PRIMARY KEY, value BLOB NOT NULL, heartbeat_ms INTEGER NOT NULL, state TEXT
    ) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS daemons (instance TEXT PRIMARY KEY, seen_ms INTEGER NOT NULL) WITHOUT ROWID",
)
_NOTES = "CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
SMALL_VALUE_BYTES = 256
"""A value of so many bytes that is written alone is written on a full disk, too."""

_VALUES = (
    "CREATE TABLE IF NOT EXISTS log_values (key TEXT PRIMARY KEY, value BLOB, version INTEGER NOT NULL)",
    "CREATE INDEX IF NOT EXISTS removed_log_values ON log_values (version) WHERE value IS NULL",
)
_COLUMNS = "CAST(key AS BLOB), CAST(value AS BLOB), CAST(heartbeat_ms AS INTEGER), CAST(state AS BLOB)"
"""A damaged value may have another type, so all are cast. A heartbeat that is not a number becomes 0, a very old one.
"""
_Stored = tuple[bytes, bytes, int, bytes | None]
_NO_OWNER = b'"owner":""'
"""In an entry of this version. Text in it cannot hold these bytes, because JSON escapes quotation marks."""
_CLOCK = "~clock"
"""Earlier software that asked for the time announced this, and its row stays for a day. It is no instance."""


class SqliteChangeLog:
    """Implements `ChangeLog`, and `GarbageCollection`: nothing else removes old presence rows and removed values."""

    durable = True

    def __init__(self, database: Database, runtime: Runtime) -> None:
        self._database = database
        self._runtime = runtime
        self._told = Once()
        database.require(_SCHEMA)

    async def record(self, change: Change, owner: str) -> Entry:
        """As in `ChangeLog`. `LeaseLostError`: it was recorded before and has been claimed since, so recovery has it.
        """
        def run(connection: sqlite3.Connection) -> Entry:
            entry = Entry(change, change.id.row_key(), owner)
            added = connection.execute(
                "INSERT INTO changes VALUES (?, ?, ?, NULL) ON CONFLICT DO NOTHING", (entry.key, encode(entry), self._now_ms())
            )
            if not added.rowcount and not self._swap(connection, entry, entry):
                raise LeaseLostError(f"change {change.id} of {change.object} was taken over by recovery")
            return entry

        return await self._database.write(run)

    async def open(self, entry: Entry) -> bool:
        def run(connection: sqlite3.Connection) -> bool:
            added = connection.execute(
                "INSERT INTO changes VALUES (?, ?, ?, NULL) ON CONFLICT DO NOTHING", (entry.key, encode(entry), self._now_ms())
            )
            return added.rowcount > 0

        return await self._database.write(run, grows=True)

    async def amend(self, entry: Entry, by: Entry) -> bool:
        return await self._database.write(lambda connection: self._swap(connection, entry, by))

    async def renew(self, entries: Sequence[Entry]) -> Sequence[Renewal]:
        def run(connection: sqlite3.Connection) -> Sequence[Renewal]:
            return [Renewal.RENEWED if self._swap(connection, entry, entry) else Renewal.NOT_YOURS for entry in entries]

        return await self._database.write(run)

    async def forget(self, entry: Entry) -> None:
        await self._database.write(lambda connection: connection.execute("DELETE FROM changes WHERE key = ?", (entry.key,)))

    async def release(self, entry: Entry, cleanup_after_ms: int | None = None) -> bool:
        released = entry.released(cleanup_after_ms)
        return await self._database.write(lambda connection: self._swap(connection, entry, released))

    async def keep(self, entry: Entry) -> bool:
        def run(connection: sqlite3.Connection) -> bool:
            stored = _stored(connection, entry.key)
            if stored is None or _value(stored) != _value(entry):
                return False
            if stored.kept_ms is None:
                connection.execute("UPDATE changes SET state = ? WHERE key = ?", (encode_done(self._now_ms()), entry.key))
            return True

        return await self._database.write(run)

    async def kept(self, within: KeyRange, limit: int) -> EntryPage:
        def run(connection: sqlite3.Connection) -> EntryPage:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM changes WHERE key >= ? AND key < ? AND state IS NOT NULL ORDER BY key", (within.start, within.end)
            )
            return _page((entry for entry in _readable(rows, self._told) if entry.kept_ms is not None), limit)

        return await self._database.read(run)

    async def announce(self, instance: str) -> int:
        def run(connection: sqlite3.Connection) -> int:
            now_ms = self._now_ms()
            connection.execute("INSERT OR REPLACE INTO daemons VALUES (?, ?)", (instance, now_ms))
            return now_ms

        return await self._database.write(run)

    async def now_ms(self) -> int:
        return self._now_ms()

    def ranges(self) -> Sequence[KeyRange]:
        return shard_ranges()

    async def stale(self, within: KeyRange, now_ms: int, expiry_ms: int, limit: int) -> EntryPage:
        """As in `ChangeLog`. SQLite leaves out what is renewed, has an owner, and begins like an entry of this version.
        """
        def run(connection: sqlite3.Connection) -> EntryPage:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM changes WHERE key >= ? AND key < ? AND state IS NULL AND"
                " NOT (CAST(heartbeat_ms AS INTEGER) BETWEEN ? AND ? AND substr(CAST(value AS BLOB), 1, ?) IS ?"
                " AND instr(CAST(value AS BLOB), ?) = 0) ORDER BY key",
                (within.start, within.end, now_ms - expiry_ms, now_ms + SET_BACK_MS, len(READABLE), READABLE, _NO_OWNER),
            )
            due = (entry for entry in _readable(rows, self._told) if entry_state(entry, now_ms, expiry_ms, attempts_max=1) in DUE)
            return _page(due, limit)

        return await self._database.read(run)

    async def claim(self, entry: Entry, owner: str) -> Entry | None:
        claimed = entry.claimed_by(owner)
        return claimed if await self._database.write(lambda connection: self._swap(connection, entry, claimed)) else None

    async def park(self, entry: Entry | Unreadable, error: str) -> bool:
        def run(connection: sqlite3.Connection) -> bool:
            stored = _stored(connection, entry.key)
            if stored is None or _value(stored) != _value(entry):
                return False
            if stored.kept_ms is not None and entry.kept_ms is None:
                return False
            stuck = encode_stuck(Stuck(error, self._now_ms()))
            connection.execute("UPDATE changes SET state = ? WHERE key = ?", (stuck, entry.key))
            return True

        return await self._database.write(run)

    async def retry(self, entry: Entry | Unreadable) -> bool:
        def run(connection: sqlite3.Connection) -> bool:
            stored = _stored(connection, entry.key)
            if stored is None or _value(stored) != _value(entry) or stored.stuck is None:
                return False
            value = encode(entry.retried()) if isinstance(entry, Entry) else entry.raw
            connection.execute("UPDATE changes SET value = ?, state = NULL WHERE key = ?", (value, entry.key))
            return True

        return await self._database.write(run)

    async def entries(self, start: str, limit: int, *, stuck_only: bool = False) -> EntryPage:
        def run(connection: sqlite3.Connection) -> EntryPage:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM changes WHERE key >= ? AND (state IS NOT NULL OR NOT ?) ORDER BY key", (start, stuck_only)
            )
            return _page((entry for entry in _readable(rows, self._told) if entry.stuck or not stuck_only), limit)

        return await self._database.read(run)

    async def read(self, change_id: ChangeId) -> Entry | Unreadable | None:
        def run(connection: sqlite3.Connection) -> Entry | Unreadable | None:
            found = connection.execute(f"SELECT {_COLUMNS} FROM changes WHERE substr(key, -36) = ?", (change_id,)).fetchone()
            return _decode(found) if found else None

        return await self._database.read(run)

    async def presences(self) -> Sequence[tuple[str, int]]:
        def run(connection: sqlite3.Connection) -> Sequence[tuple[str, int]]:
            rows = connection.execute(
                "SELECT CAST(instance AS BLOB), CAST(seen_ms AS INTEGER) FROM daemons WHERE instance <> ?", (_CLOCK,)
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

    async def read_values(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        def run(connection: sqlite3.Connection) -> Mapping[str, bytes]:
            found: dict[str, bytes] = {}
            if _has_values(connection):
                for portion in portions(keys, _bytes):
                    marks = ",".join("?" * len(portion))
                    found.update(connection.execute(
                        f"SELECT key, CAST(value AS BLOB) FROM log_values WHERE value IS NOT NULL AND key IN ({marks})", portion
                    ))
            return found

        return await self._database.read(run)

    async def write_values(self, values: Mapping[str, bytes | None], version: int) -> None:
        """As in `ChangeLog`. On a full disk only removals are possible, and one value of `SMALL_VALUE_BYTES`: a process
        tells in one that the change feed is off, before it deletes anything.

        One portion is one transaction, so that the writes of others need not wait for all of them.
        """
        def run(portion: Sequence[str], connection: sqlite3.Connection) -> None:
            for statement in _VALUES:
                connection.execute(statement)
            connection.executemany(
                "INSERT INTO log_values VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE"
                " SET value = excluded.value, version = excluded.version WHERE excluded.version >= CAST(log_values.version AS INTEGER)",
                [(key, values[key], version) for key in portion],
            )

        check_values(values, version)
        for portion in portions(values, lambda key: _bytes(key) + len(values[key] or b"")):
            small = len(values) == 1 and len(values[portion[0]] or b"") <= SMALL_VALUE_BYTES
            await self._database.write(partial(run, portion), grows=not small and any(values[key] is not None for key in portion))

    async def scan_values(self, start: str, end: str, limit: int) -> ValuePage:
        def run(connection: sqlite3.Connection) -> ValuePage:
            if not _has_values(connection):
                return ValuePage({}, None)
            rows = connection.execute(
                "SELECT CAST(key AS BLOB), CAST(value AS BLOB) FROM log_values"
                " WHERE key >= ? AND key < ? AND value IS NOT NULL ORDER BY key", (start, end)
            )
            values = _readable_values(rows, self._told)
            found = dict(islice(values, limit))
            following = next(values, None)
            return ValuePage(found, None if following is None else following[0])

        return await self._database.read(run)

    async def erase_values(self, keys: Sequence[str]) -> None:
        def run(portion: Sequence[str], connection: sqlite3.Connection) -> None:
            if _has_values(connection):
                connection.executemany("DELETE FROM log_values WHERE key = ?", [(key,) for key in portion])

        for portion in portions(keys, _bytes):
            await self._database.write(partial(run, portion))

    async def collect(self, limit: int) -> int:
        """Removes presence rows older than a day, and what is left of values that were removed long ago.

        At most `limit` of them in all. Returns how many.
        """
        def run(connection: sqlite3.Connection) -> int:
            now_ms = self._now_ms()
            removed = connection.execute(
                "DELETE FROM daemons WHERE instance IN (SELECT instance FROM daemons WHERE seen_ms < ? LIMIT ?)",
                (now_ms - PRESENCE_AGE_MAX_MS, limit),
            ).rowcount
            if removed < limit and _has_values(connection):
                removed += connection.execute(
                    "DELETE FROM log_values WHERE rowid IN (SELECT rowid FROM log_values WHERE value IS NULL AND version < ? LIMIT ?)",
                    (now_ms - REMOVED_AGE_MAX_MS, limit - removed),
                ).rowcount
            return removed

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


def _has(connection: sqlite3.Connection, table: str) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (table,)).fetchone() is not None


def _has_values(connection: sqlite3.Connection) -> bool:
    return _has(connection, "log_values")


def _bytes(key: str) -> int:
    return len(key.encode())


def _note(connection: sqlite3.Connection, name: str) -> bytes | None:
    if not _has(connection, "notes"):
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


def _readable(rows: Iterable[_Stored], told: Once) -> Iterator[Entry | Unreadable]:
    """The entries whose key is text. An entry under any other key could be neither parked nor forgotten.

    So it is skipped, with a warning, and the others are still parked and forgotten.
    """
    for row in rows:
        try:
            yield _decode(row)
        except UnicodeDecodeError:
            if told.is_new(f"entry {row[0]!r}"):
                events.warning("unreadable_key", "it is skipped: no entry has such a key", key=repr(row[0]))


def _readable_values(rows: Iterable[tuple[bytes, bytes]], told: Once) -> Iterator[tuple[str, bytes]]:
    """The values whose key is text. One under any other key is skipped, with a warning."""
    for key, value in rows:
        try:
            yield key.decode(), value
        except UnicodeDecodeError:
            if told.is_new(f"value {key!r}"):
                events.warning("unreadable_key", "it is skipped: no value has such a key", key=repr(key))


def _decode(row: _Stored) -> Entry | Unreadable:
    key, value, heartbeat_ms, state = row
    return decode(key.decode(), value, heartbeat_ms, None if state is None else state.decode(errors="backslashreplace"))


def _page(entries: Iterator[Entry | Unreadable], limit: int) -> EntryPage:
    """The first `limit` entries. The next page begins at the entry after them."""
    found = tuple(islice(entries, limit))
    following = next(entries, None)
    return EntryPage(found, None if following is None else following.key)
