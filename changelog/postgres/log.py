"""`PostgresChangeLog`, the changelog in PostgreSQL. `schema.py` has its tables.

Each call is one statement, which is one transaction at READ COMMITTED, and durable before it returns. Times are by the
clock of the server. A compare-and-swap is `UPDATE … WHERE key = … AND value = …`. Its proof: PostgreSQL locks the row,
and if somebody changed it meanwhile, judges the condition anew by the row's latest version. So of two that compare with
the same value one finds it, and an entry that was forgotten is not there to be updated. `record` inserts, or finds the
row that is there in the same way (`ON CONFLICT … WHERE`).

    record, forget                 1 statement for all that come at the same time (`group_commit.py`)
    renew, write_values            1 for all of one call
    open, amend, release, claim,
    keep, park, retry, swap_note   1; one that fails: 1 more for an entry that other software spelt in other bytes
    stale, kept, entries           1 for a page, mostly
    all others                     1

Statements that change many rows lock them in the order of their keys, so that no two wait for one another.

*Crash* at any call: the whole entry is in the log, or nothing of it. A statement that was sent and never answered may
land late. A late `record` brings back an entry whose change is settled: recovery forgets it again (I5). A late renewal
or claim compares. *Failure*: see `sqlstates.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from changelog.base.errors import LeaseLostError
from changelog.base.events import Once, events
from changelog.change import LOG_PREFIX, READABLE, Change, ChangeId, Entry, Stuck, Unreadable, decode, encode, encode_stuck
from changelog.key_values import REMOVED_AGE_MAX_MS, ValuePage, check_note, check_values, portions
from changelog.lease import DUE, SET_BACK_MS, Renewal, entry_state
from changelog.log import PRESENCE_AGE_MAX_MS, EntryPage, KeyRange, shard_ranges
from changelog.postgres.group_commit import Item, SharedStatements
from changelog.postgres.pool import PostgresPool, Record
from changelog.postgres.schema import HEAD_BYTES

PAGE_ROWS_MIN, PAGE_ROWS_MAX = 100, 10_000
SHARDS_MAX = 256

_NO_OWNER = b'"owner":""'
"""In an entry of this version. Text in it cannot hold these bytes, because JSON escapes quotation marks."""
_DONE = """'{{"state":"done","at":' || {schema}.clock_ms() || '}}'"""
_IS_DONE = """state LIKE '{{"state":"done"%'"""
_COLUMNS = "key, value, heartbeat_ms, state"
_HEAD = f"substr(key, 1, {HEAD_BYTES})"
_LOCKED = "(SELECT key FROM {schema}.entries WHERE key = ANY($1::bytea[]) ORDER BY key FOR UPDATE)"

STATEMENTS = {
    "record": """INSERT INTO {schema}.entries AS e SELECT w.key, w.value, {schema}.clock_ms(), NULL
        FROM unnest($1::bytea[], $2::bytea[]) AS w (key, value)
        ON CONFLICT (key) DO UPDATE SET heartbeat_ms = excluded.heartbeat_ms WHERE e.value = excluded.value RETURNING e.key""",
    "forget": f"WITH held AS MATERIALIZED {_LOCKED} DELETE FROM {{schema}}.entries WHERE key = ANY(SELECT key FROM held) RETURNING key",
    "open": "INSERT INTO {schema}.entries VALUES ($1, $2, {schema}.clock_ms(), NULL) ON CONFLICT DO NOTHING RETURNING 1",
    "renew": f"""WITH held AS MATERIALIZED {_LOCKED} UPDATE {{schema}}.entries AS e SET heartbeat_ms = {{schema}}.clock_ms()
        FROM unnest($1::bytea[], $2::bytea[]) AS w (key, value), held
        WHERE held.key = w.key AND e.key = w.key AND e.value = w.value RETURNING w.key, w.value""",
    "swap": "UPDATE {schema}.entries SET value = $3, heartbeat_ms = {schema}.clock_ms() WHERE key = $1 AND value = $2 RETURNING 1",
    "keep": f"""UPDATE {{schema}}.entries SET state = CASE WHEN {_IS_DONE} THEN state ELSE {_DONE} END
        WHERE key = $1 AND value = $2 RETURNING 1""",
    "park": f"""UPDATE {{schema}}.entries SET state = $3::text || {{schema}}.clock_ms() || '}}}}'
        WHERE key = $1 AND value = $2 AND ($4 OR state IS NULL OR NOT {_IS_DONE}) RETURNING 1""",
    "retry": f"""UPDATE {{schema}}.entries SET value = $3, state = NULL
        WHERE key = $1 AND value = $2 AND state IS NOT NULL AND NOT {_IS_DONE} RETURNING 1""",
    "stale": f"""SELECT {_COLUMNS} FROM {{schema}}.entries WHERE key >= $1 AND key < $2 AND state IS NULL AND NOT
        (heartbeat_ms BETWEEN $3 AND $4 AND substr(value, 1, {len(READABLE)}) = $5 AND position($6::bytea IN value) = 0)
        ORDER BY key LIMIT $7""",
    "ended": f"SELECT {_COLUMNS} FROM {{schema}}.entries WHERE key >= $1 AND key < $2 AND state IS NOT NULL ORDER BY key LIMIT $3",
    "entries": f"SELECT {_COLUMNS} FROM {{schema}}.entries WHERE key >= $1 AND key < $2 ORDER BY key LIMIT $3",
    "read": f"SELECT {_COLUMNS} FROM {{schema}}.entries WHERE key = ANY($1::bytea[]) LIMIT 1",
    "stored": f"SELECT {_COLUMNS} FROM {{schema}}.entries WHERE key = $1",
    "announce": """INSERT INTO {schema}.presences VALUES ($1, {schema}.clock_ms())
        ON CONFLICT (instance) DO UPDATE SET seen_ms = excluded.seen_ms RETURNING seen_ms""",
    "now_ms": "SELECT {schema}.clock_ms()",
    "presences": "SELECT instance, seen_ms FROM {schema}.presences",
    "read_note": "SELECT value FROM {schema}.notes WHERE name = $1",
    "first_note": """INSERT INTO {schema}.notes AS n VALUES ($1, $2)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE n.value = excluded.value RETURNING 1""",
    "next_note": "UPDATE {schema}.notes SET value = $3 WHERE name = $1 AND value IN ($2, $3) RETURNING 1",
    "read_values": f"""SELECT v.key, v.value FROM unnest($1::bytea[]) AS w (key) JOIN {{schema}}.log_values v
        ON substr(v.key, 1, {HEAD_BYTES}) = substr(w.key, 1, {HEAD_BYTES}) AND sha256(v.key) = sha256(w.key) WHERE v.value IS NOT NULL""",
    "write_values": f"""INSERT INTO {{schema}}.log_values AS v SELECT w.key, w.value, $3
        FROM unnest($1::bytea[], $2::bytea[]) AS w (key, value) ON CONFLICT ({_HEAD}, sha256(key)) DO UPDATE
        SET value = excluded.value, version = excluded.version WHERE excluded.version >= v.version""",
    "scan_values": f"""SELECT key, value FROM {{schema}}.log_values WHERE {_HEAD} >= substr($1::bytea, 1, {HEAD_BYTES}) AND key >= $1
        AND {_HEAD} <= substr($2::bytea, 1, {HEAD_BYTES}) AND key < $2 AND value IS NOT NULL ORDER BY {_HEAD}, key LIMIT $3""",
    "erase_values": f"""DELETE FROM {{schema}}.log_values v USING unnest($1::bytea[]) AS w (key)
        WHERE substr(v.key, 1, {HEAD_BYTES}) = substr(w.key, 1, {HEAD_BYTES}) AND sha256(v.key) = sha256(w.key)""",
    "collect_presences": """DELETE FROM {schema}.presences WHERE instance IN
        (SELECT instance FROM {schema}.presences WHERE seen_ms < {schema}.clock_ms() - $1 LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING 1""",
    "collect_values": """DELETE FROM {schema}.log_values WHERE ctid = ANY(ARRAY(SELECT ctid FROM {schema}.log_values
        WHERE value IS NULL AND version < {schema}.clock_ms() - $1 LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING 1""",
}


class PostgresChangeLog:
    """Implements `ChangeLog`, and `GarbageCollection`: nothing else removes old presence rows and removed values.

    `schema`: as it is quoted in SQL.
    """

    durable = True

    def __init__(self, pool: PostgresPool, schema: str) -> None:
        self._pool = pool
        self._sql = {name: statement.format(schema=schema) for name, statement in STATEMENTS.items()}
        self._told = Once()
        self._records = SharedStatements(self._record_all)
        self._forgets = SharedStatements(self._forget_all, groups_in_flight=1)  # nobody waits for them, so they go in larger groups

    async def record(self, change: Change, owner: str) -> Entry:
        """As in `ChangeLog`. `LeaseLostError`: it was recorded before and has been claimed since, so recovery has it.
        """
        entry = Entry(change, change.id.row_key(), owner)
        if not await self._records.call(entry.key.encode(), encode(entry)):
            raise LeaseLostError(f"change {change.id} of {change.object} was taken over by recovery")
        return entry

    async def _record_all(self, items: Sequence[Item]) -> Collection[bytes]:
        keys, values = [key for key, _ in items], [value for _, value in items]
        return _keys(await self._pool.write_many(f"recording {len(items)} changes", self._sql["record"], keys, values))

    async def open(self, entry: Entry) -> bool:
        return await self._done(f"opening the entry {entry.key}", "open", entry.key.encode(), encode(entry))

    async def amend(self, entry: Entry, by: Entry) -> bool:
        return await self._swap("amending", entry, by)

    async def renew(self, entries: Sequence[Entry]) -> Sequence[Renewal]:
        """As in `ChangeLog`, in one statement for all. Only entries that this software wrote are renewed."""
        if not entries:
            return []
        keys, values = [entry.key.encode() for entry in entries], [encode(entry) for entry in entries]
        doing = f"renewing {len(entries)} entries"
        renewed = {(row[0], row[1]) for row in await self._pool.write_many(doing, self._sql["renew"], keys, values)}
        return [Renewal.RENEWED if each in renewed else Renewal.NOT_YOURS for each in zip(keys, values, strict=True)]

    async def forget(self, entry: Entry) -> None:
        await self._forgets.call(entry.key.encode())

    async def _forget_all(self, items: Sequence[Item]) -> Collection[bytes]:
        return _keys(await self._pool.write_many(f"forgetting {len(items)} entries", self._sql["forget"], [key for key, _ in items]))

    async def release(self, entry: Entry, cleanup_after_ms: int | None = None) -> bool:
        return await self._swap("releasing", entry, entry.released(cleanup_after_ms))

    async def keep(self, entry: Entry) -> bool:
        return await self._compare("keeping", "keep", entry)

    async def kept(self, within: KeyRange, limit: int) -> EntryPage:
        return await self._page("ended", within, limit, lambda entry: entry.kept_ms is not None)

    async def announce(self, instance: str) -> int:
        return int((await self._answered("announcing an instance", "announce", instance.encode()))[0])

    async def now_ms(self) -> int:
        return int((await self._pool.read("asking for the time", self._sql["now_ms"]))[0][0])

    def ranges(self) -> Sequence[KeyRange]:
        return shard_ranges()

    async def stale(self, within: KeyRange, now_ms: int, expiry_ms: int, limit: int) -> EntryPage:
        """As in `ChangeLog`. The server leaves out what is renewed, has an owner, and begins like an entry of this
        version, and what is kept or parked.
        """
        def is_due(entry: Entry | Unreadable) -> bool:
            return entry_state(entry, now_ms, expiry_ms, attempts_max=1) in DUE

        return await self._page("stale", within, limit, is_due, now_ms - expiry_ms, now_ms + SET_BACK_MS, READABLE, _NO_OWNER)

    async def claim(self, entry: Entry, owner: str) -> Entry | None:
        claimed = entry.claimed_by(owner)
        return claimed if await self._swap("claiming", entry, claimed) else None

    async def park(self, entry: Entry | Unreadable, error: str) -> bool:
        undated = encode_stuck(Stuck(error, 0)).removesuffix("0}")
        return await self._compare("parking", "park", entry, undated, entry.kept_ms is not None)

    async def retry(self, entry: Entry | Unreadable) -> bool:
        return await self._compare("retrying", "retry", entry, encode(entry.retried()) if isinstance(entry, Entry) else entry.raw)

    async def entries(self, start: str, limit: int, *, stuck_only: bool = False) -> EntryPage:
        within = KeyRange(max(start, LOG_PREFIX), shard_ranges()[-1].end)
        if stuck_only:
            return await self._page("ended", within, limit, lambda entry: entry.stuck is not None)
        return await self._page("entries", within, limit, lambda entry: True)

    async def read(self, change_id: ChangeId) -> Entry | Unreadable | None:
        keys = [f"{LOG_PREFIX}{change_id}", *(f"{LOG_PREFIX}{shard:02x}/{change_id}" for shard in range(SHARDS_MAX))]
        found = await self._pool.read(f"reading the entry of {change_id}", self._sql["read"], [key.encode() for key in keys])
        return _decode(found[0]) if found else None

    async def presences(self) -> Sequence[tuple[str, int]]:
        rows = await self._pool.read("reading who is present", self._sql["presences"])
        return [(instance.decode(errors="backslashreplace"), seen_ms) for instance, seen_ms in rows]

    async def read_note(self, name: str) -> bytes | None:
        found = await self._pool.read(f"reading the note {name}", self._sql["read_note"], name.encode())
        return found[0][0] if found else None

    async def swap_note(self, name: str, expected: bytes | None, value: bytes) -> bool:
        check_note(value)
        doing = f"writing the note {name}"
        if expected is None:
            return await self._done(doing, "first_note", name.encode(), value)
        return await self._done(doing, "next_note", name.encode(), expected, value)

    async def read_values(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        found: dict[str, bytes] = {}
        for portion in portions(keys, _bytes):
            doing = f"reading {len(portion)} values"
            rows = await self._pool.read(doing, self._sql["read_values"], [key.encode() for key in portion])
            found.update((key.decode(), value) for key, value in rows)
        return found

    async def write_values(self, values: Mapping[str, bytes | None], version: int) -> None:
        check_values(values, version)
        for portion in portions(sorted(values), lambda key: _bytes(key) + len(values[key] or b"")):
            keys = sorted(key.encode() for key in portion)
            payloads = [values[key.decode()] for key in keys]
            await self._pool.write_many(f"writing {len(portion)} values", self._sql["write_values"], keys, payloads, version)

    async def scan_values(self, start: str, end: str, limit: int) -> ValuePage:
        rows = await self._pool.read("scanning values", self._sql["scan_values"], start.encode(), end.encode(), limit + 1)
        found: dict[str, bytes] = {}
        for key, value in rows:
            try:
                found[key.decode()] = value
            except UnicodeDecodeError:
                if self._told.is_new(repr(key)):
                    events.warning("unreadable_key", "it is skipped: no value has such a key", key=repr(key))
        next_start = found.popitem()[0] if len(rows) > limit and found else None
        return ValuePage(found, next_start)

    async def erase_values(self, keys: Sequence[str]) -> None:
        for portion in portions(keys, _bytes):
            doing = f"erasing {len(portion)} values"
            await self._pool.write_many(doing, self._sql["erase_values"], [key.encode() for key in portion])

    async def collect(self, limit: int) -> int:
        """Removes presence rows older than a day, and what is left of values that were removed long ago.

        At most `limit` of them in all, by the clock of the server. Returns how many.
        """
        removed = 0
        for statement, age_ms in (("collect_presences", PRESENCE_AGE_MAX_MS), ("collect_values", REMOVED_AGE_MAX_MS)):
            if removed < limit:
                removed += len(await self._pool.write_many("collecting garbage", self._sql[statement], age_ms, limit - removed))
        return removed

    async def _page(
        self, statement: str, within: KeyRange, limit: int, chosen: Callable[[Entry | Unreadable], bool], *values: object
    ) -> EntryPage:
        """The first `limit` chosen entries of the range. The next page begins at the one after them.

        It reads until it has enough or the range ends, more at a time the fewer of them are chosen.
        """
        found: list[Entry | Unreadable] = []
        rows_max = max(limit + 1, PAGE_ROWS_MIN)
        start, is_all = within.start.encode(), False
        while not is_all and len(found) <= limit:
            rows = await self._pool.read("scanning entries", self._sql[statement], start, within.end.encode(), *values, rows_max)
            is_all = len(rows) < rows_max
            found += [entry for row in rows if (entry := self._readable(row)) is not None and chosen(entry)]
            if not is_all:
                start, rows_max = rows[-1][0] + b"\0", max(rows_max, min(PAGE_ROWS_MAX, rows_max * 4))
        return EntryPage(tuple(found[:limit]), found[limit].key if len(found) > limit else None)

    def _readable(self, row: Record) -> Entry | Unreadable | None:
        """None: its key is no text. An entry under such a key could be neither parked nor forgotten, so it is skipped.
        """
        try:
            return _decode(row)
        except UnicodeDecodeError:
            if self._told.is_new(repr(row[0])):
                events.warning("unreadable_key", "it is skipped: no entry has such a key", key=repr(row[0]))
            return None

    async def _swap(self, doing: str, seen: Entry, new: Entry) -> bool:
        return await self._compare(doing, "swap", seen, encode(new))

    async def _compare(self, doing: str, statement: str, seen: Entry | Unreadable, *values: object) -> bool:
        """Runs a statement that compares, and returns whether it found `seen`.

        Other software may write the same entry in other bytes. If nothing was found, the stored bytes are read. If they
        mean the same, the statement compares with them instead.
        """
        doing = f"{doing} the entry {seen.key}"
        key, raw = seen.key.encode(), _value(seen)
        if await self._done(doing, statement, key, raw, *values):
            return True
        found = await self._pool.read(doing, self._sql["stored"], key)
        if not found or found[0][1] == raw or _value(_decode(found[0])) != raw:
            return False
        return await self._done(doing, statement, key, found[0][1], *values)

    async def _done(self, doing: str, statement: str, *values: object) -> bool:
        return await self._pool.write(doing, self._sql[statement], *values) is not None

    async def _answered(self, doing: str, statement: str, *values: object) -> Record:
        answer = await self._pool.write(doing, self._sql[statement], *values)
        assert answer is not None, "this statement returns a row"
        return answer


def _keys(rows: Sequence[Record]) -> set[bytes]:
    return {row[0] for row in rows}


def _bytes(key: str) -> int:
    return len(key.encode())


def _value(entry: Entry | Unreadable) -> bytes:
    return entry.raw if isinstance(entry, Unreadable) else encode(entry)


def _decode(row: Record) -> Entry | Unreadable:
    key, value, heartbeat_ms, state = row
    return decode(key.decode(), value, heartbeat_ms, state)
