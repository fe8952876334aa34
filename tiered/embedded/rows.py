"""`SqliteRows`, the high-volume tier of embedded mode: three tables in a file that may also hold the changelog.

    rows      path; target (tombstone) or payload (inline object); metadata: of the one or of the other's blob (null:
              only the blob tells them); policy; token; deadline_ms;
              crc: of all these but the deadline, CRC-32 (null: written before 0.1.0, and not verified);
              conditional: 1 for a tombstone that was made by a write with a condition
    marks     path, token, verdict ('won' or 'refused'), at_ms
    horizon   created_ms: of the collected marks, when the last was written, or its change made. Never goes back

The row operations are the same as on Bigtable. Each is one transaction of `changelog.sqlite.database`. `reserve` writes
nothing: a transaction can see for itself what is there when a swap takes effect. Predicates go by
the tombstone being present, expired or not. A row of marks only is an absent object. Paths are in byte order. The
deadline is kept in whole milliseconds and overrides the one in the metadata; `size` is that of the payload (I7).

A reader that finds a row expired does not delete it. `collect` does, by this machine's wall clock. It also collects
marks by that clock, and moves the horizon in the same transaction. A token that is not younger than the horizon is
refused without a mark, so the fence holds even if the clock jumps.

*Crash* at any call: the row is as before or as after. *Failure*: see `changelog.sqlite.database`. A row whose bytes
have changed is a `CorruptRecordError` that names it. This module knows no blobs.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from typing import Any

from changelog.base.errors import ClockBehindError, CorruptRecordError, TieredError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from changelog.sqlite.database import Database
from tiered.buckets.row_keys import corrupt_row, is_text, printable, split_points
from tiered.embedded.crc32 import crc32
from tiered.metadata import NS_PER_MS, described_by_row, encode_described, encode_metadata, encode_policy, metadata_of_row, policy_of_row
from tiered.services.backends import MARK_AGE_MAX_S, Inline, Only, Row, RowState, Tombstone, Vacant
from tiered.services.scans import CorruptRow, Redirect, RedirectPage, RowPage, ScannedRow
from tiered.text import quoted

KEYS_MAX = 500
"""Keys in one query. SQLite limits the number of a query's parameters."""



def _add_columns(connection: sqlite3.Connection) -> None:
    """Adds the columns that earlier versions did not have."""
    there = {name for _, name, *_ in connection.execute("PRAGMA table_info(rows)")}
    for name in ("crc", "conditional"):
        if name not in there:
            connection.execute(f"ALTER TABLE rows ADD COLUMN {name} INTEGER")


_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS rows (
        path TEXT PRIMARY KEY, target TEXT, token TEXT, deadline_ms INTEGER, policy TEXT, metadata BLOB, payload BLOB, crc INTEGER,
        conditional INTEGER,
        CHECK ((target IS NULL) = (payload IS NOT NULL))
    )""",
    "CREATE INDEX IF NOT EXISTS rows_by_deadline ON rows (deadline_ms) WHERE deadline_ms IS NOT NULL",
    """CREATE TABLE IF NOT EXISTS marks (
        path TEXT, token TEXT, verdict TEXT, at_ms INTEGER NOT NULL, PRIMARY KEY (path, token, verdict)
    ) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS marks_by_age ON marks (at_ms)",
    "CREATE TABLE IF NOT EXISTS horizon (only INTEGER PRIMARY KEY CHECK (only = 1), created_ms INTEGER NOT NULL)",
    _add_columns,
)

_COLUMNS = "token, target, policy, metadata, payload"
_CHANGED = "does not match its checksum: bytes on the disk have changed; write or delete the object"
"""The columns that a write sets and that nothing changes later. The checksum covers them and the path."""

_KINDS = (str, str, str, bytes, bytes, int)
"""The types of these columns and of the deadline. In a damaged file, a column of SQLite may hold any type."""


class SqliteRows:
    """Implements `HighVolumeBackend`.

    Also implements `GarbageCollection`, because SQLite itself does not remove what has expired.
    """

    def __init__(self, database: Database, runtime: Runtime) -> None:
        self._database = database
        self._runtime = runtime
        database.require(_SCHEMA)

    async def read(self, path: str, *, marks: ChangeId | bool = False) -> Row:
        def run(connection: sqlite3.Connection) -> Row:
            state = _state(connection, path)
            if marks is False:
                return Row(state)
            if marks is True:
                return Row(state, *_marks(connection, path))
            return Row(state, *_marks_of(connection, path, marks), marks.created_ms <= _horizon_ms(connection))

        return await self._database.read(run)

    async def reserve(self, path: str, token: ChangeId, seen: Inline | Tombstone) -> bool:
        return await self._database.read(lambda connection: _holds(connection, path, seen))

    async def swap(
        self, path: str, token: ChangeId, expected: str | None, state: RowState, deadline_s: float, only: Only | None = None,
        since_ms: int | None = None,
    ) -> bool:  # fmt: skip
        def run(connection: sqlite3.Connection) -> bool:
            # In a transaction that holds the file's write lock: nobody collects a mark before it commits, even if this
            # process is stopped here for long.
            if self._runtime.boot_time() > deadline_s:
                raise UnavailableError(f"the swap of {token} at {path} waited too long for its turn; it was not sent")
            target, is_marked, horizon_ms = _before(connection, path, token)
            if is_marked or target not in (None, expected):
                return False
            if only is not None and not _satisfies(connection, path, only):
                return False
            if self._is_forgotten(token.created_ms if since_ms is None else since_ms, horizon_ms):
                return False
            _write(connection, path, token, state)
            _mark(connection, path, token, "won", self._now_ms())
            return True

        return await self._database.write(run, grows=isinstance(state, Inline))

    async def settle(self, path: str, token: ChangeId) -> bool:
        def run(connection: sqlite3.Connection) -> bool:
            # A row whose key was damaged so that it is no text shows what it names, though nobody finds it by its key.
            quoted = connection.execute(
                "SELECT 1 FROM rows WHERE path = ? AND (target = ? OR token = ?)"
                f" UNION ALL SELECT 1 FROM rows WHERE ({_NO_TEXT}) AND target = ? LIMIT 1",
                (path, f"{path}/{token}", token, f"{path}/{token}"),
            ).fetchone()
            if quoted is None:
                _mark(connection, path, token, "refused", self._now_ms())
            return quoted is not None

        return await self._database.write(run)

    async def put_inline(self, path: str, token: ChangeId, state: Inline) -> bool:
        return await self._database.write(partial(self._replace_inline, path, token, state), grows=True)

    async def delete_inline(self, path: str, token: ChangeId) -> bool:
        return await self._database.write(partial(self._replace_inline, path, token, None))

    async def touch(self, path: str, seen: Inline | Tombstone, deadline_ns: int) -> bool:
        target = seen.target if isinstance(seen, Tombstone) else None
        payload = seen.payload if isinstance(seen, Inline) else None
        deadline_ms = deadline_ns // NS_PER_MS

        told: dict[str, object] = {"deadline_ms": deadline_ms}
        if seen.token is not None and isinstance(seen, Tombstone) and seen.metadata is not None:
            columns = _columns(seen.token, seen)
            told |= dict(zip(_COLUMNS.split(", "), columns, strict=True), crc=_crc(path, columns))

        def run(connection: sqlite3.Connection) -> bool:
            return connection.execute(
                f"UPDATE rows SET {', '.join(f'{column} = ?' for column in told)} WHERE path = ? AND deadline_ms < ?"
                " AND target IS ? AND token IS ? AND (token IS NOT NULL OR payload IS ?)",
                (*told.values(), path, deadline_ms, target, seen.token, payload),
            ).rowcount > 0

        return await self._database.write(run)

    async def scan(self, prefix: str, start: bytes, limit: int, end: bytes | None = None) -> RowPage:
        """The first page of all rows also has those whose key is no text, in `corrupt`."""
        before = "" if end is None else " AND path < CAST(:end AS TEXT)"
        query = (
            "SELECT path, deadline_ms, token, target, metadata, length(payload) FROM rows"
            f" WHERE typeof(path) = 'text' AND path >= CAST(:start AS TEXT){before}"
            " ORDER BY path LIMIT :limit"
        )

        def run(connection: sqlite3.Connection) -> RowPage:
            found = connection.execute(query, {"start": max(prefix.encode(), start), "limit": limit, "end": end})
            page = _scanned(list(takewhile(lambda row: row[0].startswith(prefix), found)), limit)
            return page if prefix or start else replace(page, corrupt=[*_without_text(connection), *page.corrupt])

        return await self._database.read(run)

    async def redirects(self, start: bytes, end: bytes | None, limit: int) -> RedirectPage:
        before = "" if end is None else "AND path < CAST(:end AS TEXT) "
        found = await self._found(f"path >= CAST(:start AS TEXT) {before}ORDER BY path LIMIT :limit", start=start, end=end, limit=limit)
        next_start = None if len(found) < limit else found[-1][0] + b"\0"
        until = end if next_start is None else next_start
        return _page(found, next_start, await self._keyless(lambda place: start <= place and (until is None or place < until)))

    async def redirects_at(self, keys: Sequence[bytes]) -> RedirectPage:
        found: list[_Shown] = []
        for first in range(0, len(ordered := sorted(set(keys))), KEYS_MAX):
            batch = {f"key{number}": key for number, key in enumerate(ordered[first : first + KEYS_MAX])}
            found += await self._found(f"path IN ({', '.join(f'CAST(:{name} AS TEXT)' for name in batch)}) ORDER BY path", **batch)
        wanted = set(keys)
        return _page(found, None, await self._keyless(lambda place: place in wanted or place.rpartition(b"/")[0] in wanted))

    async def boundaries(self, count: int) -> Sequence[str]:
        def run(connection: sqlite3.Connection) -> Sequence[str]:
            (rows,), = connection.execute("SELECT count(*) FROM rows")
            step = max(1, -(-rows // count))
            keys = connection.execute(
                "SELECT CAST(path AS BLOB) FROM"
                " (SELECT path, row_number() OVER (ORDER BY path) AS number FROM rows WHERE typeof(path) = 'text')"
                " WHERE number > 1 AND number % :step = 1 % :step", {"step": step}
            )  # fmt: skip
            return split_points(key for key, in keys)

        return await self._database.read(run)

    async def _found(self, where: str, **parameters: bytes | int | None) -> list[_Shown]:
        query = (
            f"SELECT CAST(path AS BLOB), {_AS_BYTES}, deadline_ms, crc FROM rows"
            f" WHERE target IS NOT NULL AND typeof(path) = 'text' AND {where}"
        )
        return await self._database.read(lambda connection: connection.execute(query, parameters).fetchall())

    async def _keyless(self, holds: Callable[[bytes], bool]) -> list[CorruptRow]:
        """Returns the tombstones whose keys are damaged so that they are no text. Nobody finds them by their keys.

        `holds`: whether a row is wanted whose blob has this name. If it tells none, its key counts.
        """
        query = f"SELECT CAST(path AS BLOB), typeof(path), CAST(target AS BLOB) FROM rows WHERE target IS NOT NULL AND ({_NO_TEXT})"
        rows = await self._database.read(lambda connection: connection.execute(query).fetchall())
        return [
            CorruptRow(printable(key or b""), _KEYLESS.format(kind), target.decode() if is_text(target) else None)
            for key, kind, target in rows if holds(target if is_text(target) else key or b"")
        ]  # fmt: skip

    async def collect(self, limit: int) -> int:
        """Removes expired rows, then marks older than `MARK_AGE_MAX_S`, by this machine's wall clock.

        Returns how many it removed.

        It removes at most `limit` of both together, then gives free pages back to the system. A mark stays if its token
        seems younger than `MARK_AGE_MAX_S`, so the horizon never passes what this clock calls two days ago. If one part
        fails, the other is still done, and then the first error is raised.
        """
        removed, failure = 0, None
        for part in (self._collect_rows, self._collect_marks):
            try:
                removed += await part(limit - removed)
            except TieredError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        await self._database.shrink()
        return removed

    async def verify(self, after: bytes, limit: int) -> Verified:
        """Reads up to `limit` rows after the key `after`, as `read` does, and reports those that cannot be read.

        With the last rows it also reports the keys that are not text.
        """
        def run(connection: sqlite3.Connection) -> Verified:
            query = (
                "SELECT CAST(path AS BLOB), crc IS NULL FROM rows"
                " WHERE typeof(path) = 'text' AND path > CAST(? AS TEXT) ORDER BY path LIMIT ?"
            )
            found, last = Verified(), after
            for key, unknown in connection.execute(query, (after, limit)):
                last = key
                try:
                    _state(connection, key.decode())
                except (CorruptRecordError, UnicodeDecodeError) as error:
                    found.corrupt.append(CorruptRow(printable(key), str(error)))
                found.rows += 1
                found.without_checksum += unknown
            if found.rows == limit:
                found.last = last
                return found
            for key, kind in connection.execute("SELECT CAST(path AS BLOB), typeof(path) FROM rows WHERE typeof(path) <> 'text'"):
                found.corrupt.append(CorruptRow(printable(key or b""), _KEYLESS.format(kind)))
                found.rows += 1
            return found

        return await self._database.read(run)

    async def _collect_rows(self, limit: int) -> int:
        def run(connection: sqlite3.Connection) -> int:
            return connection.execute(
                "DELETE FROM rows WHERE rowid IN (SELECT rowid FROM rows WHERE deadline_ms <= ? LIMIT ?)", (self._now_ms(), limit)
            ).rowcount

        return await self._database.write(run)

    async def _collect_marks(self, limit: int) -> int:
        def run(connection: sqlite3.Connection) -> int:
            oldest_ms = self._now_ms() - MARK_AGE_MAX_S * 1000
            marks = connection.execute(
                "SELECT path, token, verdict, at_ms FROM marks WHERE at_ms < ? AND token < ? ORDER BY at_ms LIMIT ?",
                (oldest_ms, ChangeId.first(oldest_ms), limit),
            ).fetchall()
            connection.executemany("DELETE FROM marks WHERE path = ? AND token = ? AND verdict = ?", [mark[:3] for mark in marks])
            # The marks of an upload that was open for days are much younger than its token.
            if passed := [max(ChangeId(token).created_ms, at_ms) for _, token, _, at_ms in marks if ChangeId.matches(token)]:
                connection.execute(
                    "INSERT INTO horizon VALUES (1, ?) ON CONFLICT (only) DO UPDATE SET created_ms = max(created_ms, excluded.created_ms)",
                    (max(passed),),
                )
            return len(marks)

        return await self._database.write(run)

    def _is_forgotten(self, since_ms: int, horizon_ms: int) -> bool:
        """Whether a mark of a token may have been collected that has had marks since then at the earliest (Unix ms).

        `ClockBehindError`: the clock is so far behind that this would be true of every new change.
        """
        if since_ms > horizon_ms:
            return False
        if (now_ms := self._now_ms()) <= horizon_ms:
            raise ClockBehindError(
                f"this machine's clock says {_time(now_ms)}, but the store has forgotten changes made up to {_time(horizon_ms)}, so "
                "nothing was written: set the clock right (if it was ahead before: docs/production.md, 'Embedded mode')"
            )
        return True

    def _replace_inline(self, path: str, token: ChangeId, state: Inline | None, connection: sqlite3.Connection) -> bool:
        target, is_marked, horizon_ms = _before(connection, path, token)
        if target is not None or is_marked or self._is_forgotten(token.created_ms, horizon_ms):
            return False
        _write(connection, path, token, state)
        return True

    def _now_ms(self) -> int:
        return self._runtime.wall_ns() // NS_PER_MS


@dataclass(slots=True)
class Verified:
    """What `verify` has read.

    `without_checksum`: rows that were written before 0.1.0. `last`: the key after which the next call goes on; None:
    that was all.
    """

    corrupt: list[CorruptRow] = field(default_factory=list)
    rows: int = 0
    without_checksum: int = 0
    last: bytes | None = None


# --- what scans and audits read -------------------------------------------------------------------

_Shown = tuple[bytes, bytes | None, bytes, bytes | None, bytes | None, bytes | None, int | None, int | None]
"""A tombstone's path, `_COLUMNS`, deadline in ms and checksum. Damaged text may be no text, so it is read as bytes."""

_KEYLESS = "its key is of type {}, not text, so nobody finds it"
_NO_TEXT = "path >= x'' OR path < '' OR path IS NULL"
"""A key of another type than text. In SQLite's order, numbers come before all text, and bytes after it."""

_AS_BYTES = ", ".join(f"CAST({column} AS BLOB)" for column in _COLUMNS.split(", "))


def _without_text(connection: sqlite3.Connection) -> Iterator[CorruptRow]:
    """The rows whose key is damaged so that it is no text. Nobody finds them by their keys."""
    query = f"SELECT CAST(path AS BLOB), typeof(path), CAST(target AS BLOB) FROM rows WHERE {_NO_TEXT}"
    for key, kind, target in connection.execute(query):
        yield CorruptRow(printable(key or b""), _KEYLESS.format(kind), target.decode() if target and is_text(target) else None)


def _scanned(found: Sequence[tuple[Any, ...]], limit: int) -> RowPage:
    rows: list[ScannedRow] = []
    corrupt: list[CorruptRow] = []
    for path, deadline_ms, *columns in found:
        try:
            path.encode()
        except UnicodeEncodeError:
            corrupt.append(corrupt_row(_key(path), b""))
            continue
        deadline_ns = None
        try:
            deadline_ns = _ns(deadline_ms)
            rows.append(_scanned_row(path, deadline_ns, *columns))
        except CorruptRecordError as error:
            rows.append(ScannedRow(path, deadline_ns))
            corrupt.append(CorruptRow(path, str(error)))
    return RowPage(rows, corrupt, None if len(found) < limit else _key(found[-1][0]) + b"\0")


def _scanned_row(path: str, deadline_ns: int | None, token: Any, target: Any, metadata: Any, size: Any) -> ScannedRow:
    """The row without its payload. SQLite tells the payload's size without reading it."""
    _check_kinds(path, (str, str, bytes, int), (token, target, metadata, size))
    made_by = _token(path, token)
    if target is not None:
        return ScannedRow(path, deadline_ns, made_by, target, described_by_row(metadata, deadline_ns))
    return ScannedRow(path, deadline_ns, made_by, metadata=metadata_of_row(path, metadata, deadline_ns, size))


def _key(path: str) -> bytes:
    """The key as it is stored, text or not."""
    return path.encode(errors="surrogateescape")


def _page(found: Sequence[_Shown], next_start: bytes | None, keyless: Sequence[CorruptRow]) -> RedirectPage:
    redirects: list[Redirect] = []
    corrupt: list[CorruptRow] = [*keyless]
    for path, token, target, policy, metadata, payload, deadline_ms, crc in found:
        try:
            if crc is not None and crc != _crc_of_bytes(path, (token, target, policy, metadata, payload)):
                target_text = target.decode() if is_text(target) else None
                corrupt.append(CorruptRow(printable(path), f"the row {printable(path)} {_CHANGED}", target_text))
                continue
            redirects.append(Redirect(path.decode(), target.decode(), _ns(deadline_ms)))
        except UnicodeDecodeError:
            corrupt.append(corrupt_row(path, target))
        except CorruptRecordError as error:
            corrupt.append(CorruptRow(path.decode(), str(error), target.decode()))
    return RedirectPage(redirects, corrupt, next_start)


# --- one row, inside of a transaction ----------------------------------------------------------------


def _state(connection: sqlite3.Connection, path: str) -> RowState:
    found = connection.execute(f"SELECT {_COLUMNS}, deadline_ms, crc, conditional FROM rows WHERE path = ?", (path,)).fetchone()
    if found is None:
        return None
    *columns, deadline_ms, crc, conditional = found
    if crc is not None and crc != _crc(path, columns):
        raise CorruptRecordError(f"the row {path} {_CHANGED}")
    _check_kinds(path, _KINDS, (*columns, deadline_ms))
    token, target, policy, metadata, payload = columns
    made_by, deadline_ns = _token(path, token), _ns(deadline_ms)
    if target is not None:
        told = described_by_row(metadata, deadline_ns)
        return Tombstone(target, policy_of_row(path, policy), deadline_ns, made_by, conditional is not None, told)
    return Inline(metadata_of_row(path, metadata, deadline_ns, len(payload)), payload, made_by)


def _check_kinds(path: str, kinds: Sequence[type], values: Sequence[object]) -> None:
    for kind, value in zip(kinds, values, strict=True):
        if value is not None and type(value) is not kind:
            raise CorruptRecordError(f"the row {path} has {quoted(value)} where a value of type {kind.__name__} belongs")


def _token(path: str, token: str | None) -> ChangeId | None:
    if token is not None and not ChangeId.matches(token):
        raise CorruptRecordError(f"the row {path} has {token!r} for its token, which is no change id")
    return ChangeId(token) if token else None


def _write(connection: sqlite3.Connection, path: str, token: ChangeId, state: RowState) -> None:
    if state is None:
        connection.execute("DELETE FROM rows WHERE path = ?", (path,))
        return
    columns = _columns(token, state)
    connection.execute(
        f"INSERT OR REPLACE INTO rows ({_COLUMNS}, path, deadline_ms, crc, conditional) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *columns, path, None if state.deadline_ns is None else state.deadline_ns // NS_PER_MS, _crc(path, columns),
            1 if isinstance(state, Tombstone) and state.conditional else None,
        ),
    )


def _columns(token: ChangeId, state: Inline | Tombstone) -> tuple[str | None, str | None, str | None, bytes | None, bytes | None]:
    """What `_COLUMNS` hold of the state."""
    match state:
        case Tombstone(target, expiration, metadata=metadata):
            told = None if metadata is None else encode_described(metadata)
            return token, target, json.dumps(encode_policy(expiration)), told, None
        case Inline(metadata, payload):
            return token, None, None, encode_metadata(metadata), payload


def _holds(connection: sqlite3.Connection, path: str, seen: Inline | Tombstone) -> bool:
    """Whether the row still holds what was seen. An object that older software wrote cannot be told from another."""
    if isinstance(seen, Tombstone):
        return seen.target != path and _target(connection, path) == seen.target
    query = "SELECT 1 FROM rows WHERE path = ? AND token = ? AND target IS NULL"
    return seen.token is not None and connection.execute(query, (path, seen.token)).fetchone() is not None


def _satisfies(connection: sqlite3.Connection, path: str, only: Only) -> bool:
    if not isinstance(only, Vacant):
        return _holds(connection, path, only.seen)
    found = connection.execute("SELECT deadline_ms FROM rows WHERE path = ?", (path,)).fetchone()
    return found is None or (found[0] is not None and found[0] * NS_PER_MS <= only.at_ns)


def _crc(path: str, columns: Sequence[str | bytes | None]) -> int:
    """The checksum of the path and `_COLUMNS`.

    Each value is preceded by its length, so that no part of one is taken for a part of another. The deadline has no
    part in it, because it may change alone.
    """
    crc = crc32(path.encode())
    for value in columns:
        raw = value if isinstance(value, (bytes, bytearray)) else str(value).encode(errors="surrogateescape")
        crc = crc32(raw, crc32(f"{'-' if value is None else len(raw)} ".encode(), crc))
    return crc


def _crc_of_bytes(path: bytes, columns: Iterable[bytes | None]) -> int:
    """The same of values that were read as bytes, in one call: an audit needs it for every tombstone."""
    return crc32(b"".join((path, *(b"- None" if raw is None else b"%d %b" % (len(raw), raw) for raw in columns))))


def _target(connection: sqlite3.Connection, path: str) -> str | None:
    """The blob that a present tombstone names; None: there is none."""
    found = connection.execute("SELECT target FROM rows WHERE path = ?", (path,)).fetchone()
    return found[0] if found else None


def _before(connection: sqlite3.Connection, path: str, token: ChangeId) -> tuple[str | None, bool, int]:
    """What decides a write: the blob that a tombstone names, whether the token has a mark, and the horizon in ms.

    It is one statement, because a statement costs more than what it looks up.
    """
    target, is_marked, horizon_ms = connection.execute(
        "SELECT (SELECT target FROM rows WHERE path = ?), EXISTS (SELECT 1 FROM marks WHERE path = ? AND token = ?),"
        " (SELECT created_ms FROM horizon)", (path, path, token)
    ).fetchone()
    return target, bool(is_marked), -1 if horizon_ms is None else horizon_ms


def _mark(connection: sqlite3.Connection, path: str, token: ChangeId, verdict: str, at_ms: int) -> None:
    """Writes a mark. If the mark exists, it is kept for longer."""
    connection.execute("INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?)", (path, token, verdict, at_ms))


def _marks_of(connection: sqlite3.Connection, path: str, token: ChangeId) -> tuple[frozenset[ChangeId], frozenset[ChangeId]]:
    """(won, refused) for one token: one look into the index."""
    verdicts = {verdict for verdict, in connection.execute("SELECT verdict FROM marks WHERE path = ? AND token = ?", (path, token))}
    won, refused = (frozenset({token} if verdict in verdicts else ()) for verdict in ("won", "refused"))
    return won, refused


def _horizon_ms(connection: sqlite3.Connection) -> int:
    """As the table's `created_ms`, in ms since 1970; -1: none was collected."""
    found = connection.execute("SELECT created_ms FROM horizon").fetchone()
    return found[0] if found else -1


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _marks(connection: sqlite3.Connection, path: str) -> tuple[frozenset[ChangeId], frozenset[ChangeId]]:
    """(won, refused): all marks of the row."""
    marks = connection.execute("SELECT token, verdict FROM marks WHERE path = ?", (path,)).fetchall()
    if foreign := [token for token, _ in marks if not ChangeId.matches(token)]:
        raise CorruptRecordError(f"the row {path} has a mark of {foreign[0]!r}, which is no change id")
    won, refused = (frozenset(ChangeId(token) for token, verdict in marks if verdict == wanted) for wanted in ("won", "refused"))
    return won, refused


def _ns(deadline_ms: int | None) -> int | None:
    if not isinstance(deadline_ms, int | None):
        raise CorruptRecordError(f"its deadline is {quoted(deadline_ms)}, not milliseconds since 1970")
    return None if deadline_ms is None else deadline_ms * NS_PER_MS
