"""`PostgresRows`, the high-volume tier in PostgreSQL. `schema.py` has its tables, its functions, and their proof.

The row operations are the same as on Bigtable. Each that writes is one call of one function; each that reads is one
SELECT, so one snapshot. `reserve` writes nothing: the function sees for itself what is there when a swap takes effect.
Predicates go by the tombstone being present, expired or not. A row of marks only is an absent object. The deadline is
kept in whole milliseconds and overrides the one in the metadata; `size` is that of the payload (I7).

    read, reserve, swap, settle, put_inline, delete_inline, touch   1 statement
    scan, redirects, redirects_at                                   1 for a page
    boundaries                                                      1 or 2, which read no more than a sample
    collect                                                         1 for 200 rows, 1 for all marks

A reader that finds a row expired does not delete it. `collect` does, by the clock of the *server*. It also collects
marks by that clock, and moves the horizon. A token that is not younger than the horizon is refused without a mark, so
the fence holds even if a clock jumps. Only the choice between "conflict" and `ClockBehindError` goes by the caller's
clock.

*Crash* at any call: the row is as before or as after. *Failure*: see `changelog/postgres/sqlstates.py`. A swap is not
sent after its deadline by the boot-time clock; one that was sent may land `timeout_s` later, or once a server that
stood goes on. A row whose bytes have changed is a `CorruptRecordError` that names it. This module knows no blobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from changelog.base.errors import ClockBehindError, CorruptRecordError, TieredError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from changelog.postgres.pool import PostgresPool, Record
from tiered.buckets.row_keys import corrupt_row, is_text, printable, split_points
from tiered.metadata import NS_PER_MS, described_by_row, metadata_of_row
from tiered.postgres.schema import COLLECTED_AT_ONCE, in_schema
from tiered.postgres.stored_row import COLUMNS, ns, state, stored, text_of, token_of, verify
from tiered.services.backends import Inline, Only, Row, RowState, Still, Tombstone, Vacant
from tiered.services.scans import CorruptRow, Redirect, RedirectPage, RowPage, ScannedRow

SMALL_TABLE_BYTES = 16 << 20
"""Of a table up to this size all keys are read to find where it can be cut. Of a larger one, a sample."""

SAMPLED_ROWS_MAX = 20_000
_END = b"\xff" * 1024
"""After every key, also one that is damaged so that it is no text."""

OF_ONE_ROLE = ("user", "database user", "client")
"""The places, as `pg_settings` names them, where a setting is told to one role, and not to all."""

_SHOWN = "r.path, r.token, r.target, r.policy, r.metadata, r.payload, r.deadline_ms, r.crc"
STATEMENTS = {
    "read": f"SELECT {COLUMNS} FROM {{schema}}.rows r WHERE r.path = $1",
    "read_with_mark": f"""SELECT {COLUMNS}, m.won, m.refused, h.created_ms FROM (SELECT) AS one
        LEFT JOIN {{schema}}.rows r ON r.path = $1 LEFT JOIN {{schema}}.marks m ON m.path = $1 AND m.token = $2
        LEFT JOIN {{schema}}.horizon h ON true""",
    "read_with_marks": f"""SELECT {COLUMNS}, m.token, m.won, m.refused FROM (SELECT) AS one
        LEFT JOIN {{schema}}.rows r ON r.path = $1 LEFT JOIN {{schema}}.marks m ON m.path = $1""",
    "holds": "SELECT r.target, r.token FROM {schema}.rows r WHERE r.path = $1",
    "change": "SELECT {schema}.change_row($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)",
    "settle": "SELECT {schema}.settle_row($1, $2, $3)",
    "touch": "SELECT {schema}.touch_row($1, $2, $3, $4, $5)",
    "renew": "SELECT {schema}.renew_row($1, $2, $3, $4, $5, $6, $7)",
    "scan": """SELECT r.path, r.deadline_ms, r.token, r.target, r.metadata, pg_catalog.octet_length(r.payload) FROM {schema}.rows r
        WHERE r.path >= $1 AND r.path < $2 ORDER BY r.path LIMIT $3""",
    "redirects": f"""SELECT {_SHOWN} FROM {{schema}}.rows r WHERE r.target IS NOT NULL AND r.path >= $1 AND r.path < $2
        ORDER BY r.path LIMIT $3""",
    "redirects_at": f"SELECT {_SHOWN} FROM {{schema}}.rows r WHERE r.target IS NOT NULL AND r.path = ANY($1::bytea[]) ORDER BY r.path",
    "size": """SELECT pg_catalog.pg_relation_size('{schema}.rows'), (SELECT s.histogram_bounds::text::bytea[] FROM pg_catalog.pg_stats s
        WHERE s.schemaname = $1 AND s.tablename = 'rows' AND s.attname = 'path')""",
    "all_keys": "SELECT r.path FROM {schema}.rows r ORDER BY r.path",
    "sampled_keys": "SELECT r.path FROM {schema}.rows r TABLESAMPLE SYSTEM ($1) LIMIT $2",
    # What a role is told that may only read says nothing of the others.
    "refuses_writes": f"""SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('transaction_read_only') = 'on'
        AND (s.source NOT IN {OF_ONE_ROLE} OR pg_catalog.has_table_privilege('{{schema}}.rows', 'INSERT'))
        FROM pg_catalog.pg_settings s WHERE s.name = 'default_transaction_read_only'""",
    "collect_rows": "SELECT {schema}.collect_rows($1)",
    "collect_marks": "SELECT {schema}.collect_marks($1)",
}
_ANYTHING, _VACANT, _STILL_TOMBSTONE, _STILL_INLINE = range(4)
"""The values of `p_only`."""
_UNCONDITIONAL = (_ANYTHING, None, None, None)


class PostgresRows:
    """Implements `HighVolumeBackend`, `ServerRole`, and `GarbageCollection`: nothing else removes what has expired.

    `schema`: its name. `owner`: how a bucket names the store, whatever the server is called.
    """

    def __init__(self, pool: PostgresPool, schema: str, runtime: Runtime, owner: str = "") -> None:
        self._pool = pool
        self._schema = schema
        self._runtime = runtime
        self.owner = owner
        self._sql = {name: in_schema(statement, schema) for name, statement in STATEMENTS.items()}

    def primary_only(self) -> None:
        self._pool.primary_only()

    def standby_answers(self) -> int:
        return self._pool.standby_answers

    async def refuses_writes(self) -> str | None:
        [(is_standby, is_read_only)] = await self._pool.read("asking whether writes are taken", self._sql["refuses_writes"])
        if is_standby:
            return f"{self._pool.shown} is a standby, which takes no writes"
        if is_read_only:
            return f"{self._pool.shown} is read-only (default_transaction_read_only is on): nothing is stored, and nothing is cleaned up"
        return None

    async def read(self, path: str, *, marks: ChangeId | bool = False) -> Row:
        doing, key = f"reading the row {path}", path.encode()
        if marks is False:
            found = await self._pool.read(doing, self._sql["read"], key)
            return Row(state(key, found[0]) if found else None)
        if marks is True:
            found = await self._pool.read(doing, self._sql["read_with_marks"], key)
            won, refused = _marks(path, [row[-3:] for row in found if row[-3] is not None])
            return Row(state(key, found[0][:-3]), won, refused)
        found = await self._pool.read(doing, self._sql["read_with_mark"], key, str(marks))
        *columns, is_won, is_refused, horizon_ms = found[0]
        mine: frozenset[ChangeId] = frozenset({marks})
        none: frozenset[ChangeId] = frozenset()
        forgotten = horizon_ms is not None and marks.created_ms <= horizon_ms
        return Row(state(key, columns), mine if is_won else none, mine if is_refused else none, forgotten)

    async def reserve(self, path: str, token: ChangeId, seen: Inline | Tombstone) -> bool:
        if not _can_be_held(path, seen):
            return False
        found = await self._pool.read(f"looking at the row {path}", self._sql["holds"], path.encode())
        if not found:
            return False
        target, made_by = found[0]
        if isinstance(seen, Tombstone):
            return bool(target == seen.target.encode())
        return target is None and made_by is not None and str(made_by) == seen.token

    async def swap(
        self, path: str, token: ChangeId, expected: str | None, state: RowState, deadline_s: float, only: Only | None = None,
        since_ms: int | None = None,
    ) -> bool:  # fmt: skip
        def in_time() -> None:
            if self._runtime.boot_time() > deadline_s:
                raise UnavailableError(f"the swap of {token} at {path} waited too long for its turn; it was not sent").telling(heard=False)

        in_time()
        if isinstance(only, Still) and not _can_be_held(path, only.seen):
            return False
        since_ms = token.created_ms if since_ms is None else since_ms
        return await self._change("swapping", path, token, expected, state, since_ms, only, marks=True, may_send=in_time)

    async def settle(self, path: str, token: ChangeId) -> bool:
        doing, blob = f"settling {token} at the row {path}", f"{path}/{token}"
        return bool((await self._answered(doing, "settle", path.encode(), str(token), blob.encode()))[0])

    async def put_inline(self, path: str, token: ChangeId, state: Inline) -> bool:
        return await self._change("writing", path, token, None, state, token.created_ms, None, marks=False)

    async def delete_inline(self, path: str, token: ChangeId) -> bool:
        return await self._change("clearing", path, token, None, None, token.created_ms, None, marks=False)

    async def touch(self, path: str, seen: Inline | Tombstone, deadline_ns: int) -> bool:
        if isinstance(seen, Tombstone) and seen.metadata is not None and seen.token is not None:
            told = stored(path.encode(), seen.token, seen)
            row = path.encode(), told.target, str(seen.token), deadline_ns // NS_PER_MS, told.policy, told.metadata, told.crc
            return bool((await self._answered(f"touching the row {path}", "renew", *row))[0])
        target = seen.target.encode() if isinstance(seen, Tombstone) else None
        payload = seen.payload if isinstance(seen, Inline) and seen.token is None else None
        values = path.encode(), target, _uuid(seen.token), payload, deadline_ns // NS_PER_MS
        return bool((await self._answered(f"touching the row {path}", "touch", *values))[0])

    async def scan(self, prefix: str, start: bytes, limit: int, end: bytes | None = None) -> RowPage:
        begins = prefix.encode()
        until = _after(begins) if end is None else min(_after(begins), end)
        found = await self._pool.read("scanning rows", self._sql["scan"], max(begins, start), until, limit)
        return _scanned(found, limit)

    async def redirects(self, start: bytes, end: bytes | None, limit: int) -> RedirectPage:
        found = await self._pool.read("scanning tombstones", self._sql["redirects"], start, _END if end is None else end, limit)
        return _page(found, None if len(found) < limit else found[-1][0] + b"\0")

    async def redirects_at(self, keys: Sequence[bytes]) -> RedirectPage:
        found = await self._pool.read(f"reading {len(keys)} tombstones", self._sql["redirects_at"], sorted(set(keys)))
        return _page(found, None)

    async def boundaries(self, count: int) -> Sequence[str]:
        """As in `RowScans`. Of a large table, from the statistics that autovacuum keeps; without any, from a sample."""
        doing = "looking where the rows can be cut"
        [[size, bounds]] = await self._pool.read(doing, self._sql["size"], self._schema)
        if size <= SMALL_TABLE_BYTES:
            keys = [row[0] for row in await self._pool.read(doing, self._sql["all_keys"])]
        elif bounds is not None and len(bounds) > count:
            keys = list(bounds)
        else:
            share = min(100.0, 100.0 * SMALL_TABLE_BYTES / size)
            keys = sorted(row[0] for row in await self._pool.read(doing, self._sql["sampled_keys"], share, SAMPLED_ROWS_MAX))
        step = max(1, -(-len(keys) // count))
        return split_points(keys[step::step])

    async def collect(self, limit: int) -> int:
        """Removes expired rows, then marks older than `MARK_AGE_MAX_S`, by the clock of the server.

        Returns how many it removed, at most `limit` of both together. A row that is being changed stays for the next
        round. A mark stays if its token seems younger than `MARK_AGE_MAX_S`, so the horizon never passes what that
        clock calls two days ago. If one part fails, the other is still done, and then the first error is raised.
        """
        removed, failure = 0, None
        for statement in ("collect_rows", "collect_marks"):
            try:
                removed += await self._collect(statement, limit - removed)
            except TieredError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return removed

    async def _collect(self, statement: str, limit: int) -> int:
        removed = 0
        while removed < limit:
            at_once = min(COLLECTED_AT_ONCE, limit - removed)
            gone = int((await self._answered("collecting garbage", statement, at_once))[0])
            removed += gone
            if gone < at_once:
                break
        return removed

    async def _change(
        self, verb: str, path: str, token: ChangeId, expected: str | None, state: RowState, since_ms: int, only: Only | None,
        *, marks: bool, may_send: Any = None,
    ) -> bool:  # fmt: skip
        """Calls `change_row`. `ClockBehindError`: this machine's clock is behind the horizon."""
        key, doing = path.encode(), f"{verb} the row {path}"
        expected_key = None if expected is None else expected.encode()
        callers_ms = self._runtime.wall_ns() // NS_PER_MS
        answer = await self._pool.write(
            doing, self._sql["change"], key, str(token), expected_key, since_ms, callers_ms, marks, *_condition(only),
            *stored(key, token, state), may_send=may_send,
        )
        outcome = 0 if answer is None else int(answer[0])
        if outcome < 0:
            raise ClockBehindError(
                f"this machine's clock says {_time(callers_ms)}, but the store has forgotten changes made up to {_time(-outcome)}, so "
                "nothing was written: set the clock right (if the server's was ahead before, this passes at that time)"
            )
        return outcome == 1

    async def _answered(self, doing: str, statement: str, *values: object) -> Record:
        answer = await self._pool.write(doing, self._sql[statement], *values)
        assert answer is not None, "a function returns a row"
        return answer


def _can_be_held(path: str, seen: Inline | Tombstone) -> bool:
    """Whether what was seen can be told from what others write. What older software wrote cannot."""
    return seen.target != path if isinstance(seen, Tombstone) else seen.token is not None


def _condition(only: Only | None) -> tuple[int, int | None, bytes | None, str | None]:
    """`p_only`, `p_only_ms`, `p_seen_target`, `p_seen_token`."""
    if only is None:
        return _UNCONDITIONAL
    match only:
        case Vacant(at_ns):
            return _VACANT, at_ns // NS_PER_MS, None, None
        case Still(Tombstone(target)):
            return _STILL_TOMBSTONE, None, target.encode(), None
        case Still(seen):
            return _STILL_INLINE, None, None, _uuid(seen.token)


def _uuid(token: ChangeId | None) -> str | None:
    """The token as the driver takes it: text of a subclass is refused."""
    return None if token is None else str(token)


def _after(prefix: bytes) -> bytes:
    """The first key after all that begin with a text."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else _END


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _marks(path: str, marks: Sequence[Any]) -> tuple[frozenset[ChangeId], frozenset[ChangeId]]:
    """(won, refused): all marks of the row."""
    if foreign := [token for token, _, _ in marks if not ChangeId.matches(str(token))]:
        raise CorruptRecordError(f"the row {path} has a mark of {foreign[0]}, which is no change id")
    tokens = [(ChangeId(str(token)), won, refused) for token, won, refused in marks]
    return frozenset(token for token, won, _ in tokens if won), frozenset(token for token, _, refused in tokens if refused)


# --- what scans and audits read -------------------------------------------------------------------


def _scanned(found: Sequence[Record], limit: int) -> RowPage:
    rows: list[ScannedRow] = []
    corrupt: list[CorruptRow] = []
    for path, deadline_ms, token, target, metadata, size in found:
        if not is_text(path):
            corrupt.append(corrupt_row(path, target or b""))
            continue
        deadline_ns = ns(deadline_ms)
        try:
            made_by = token_of(path, token)
            if target is not None:
                rows.append(ScannedRow(path.decode(), deadline_ns, made_by, text_of(path, target), described_by_row(metadata, deadline_ns)))
            else:
                told = metadata_of_row(printable(path), metadata, deadline_ns, size)
                rows.append(ScannedRow(path.decode(), deadline_ns, made_by, metadata=told))
        except CorruptRecordError as error:
            rows.append(ScannedRow(path.decode(), deadline_ns))
            corrupt.append(CorruptRow(path.decode(), str(error)))
    return RowPage(rows, corrupt, None if len(found) < limit else found[-1][0] + b"\0")


def _page(found: Sequence[Record], next_start: bytes | None) -> RedirectPage:
    redirects: list[Redirect] = []
    corrupt: list[CorruptRow] = []
    for path, token, target, policy, metadata, payload, deadline_ms, crc in found:
        if not is_text(path) or not is_text(target):
            corrupt.append(corrupt_row(path, target))
            continue
        try:
            verify(path, token_of(path, token), target, policy, metadata, payload, crc)
            redirects.append(Redirect(path.decode(), target.decode(), ns(deadline_ms)))
        except CorruptRecordError as error:
            corrupt.append(CorruptRow(printable(path), str(error), target.decode()))
    return RedirectPage(redirects, corrupt, next_start)
