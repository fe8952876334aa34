"""Tables and functions of the rows, as DDL, and the versions of the whole schema. `tiered provision` runs it.

    rows      path; target (tombstone) or payload (inline object); metadata: of the one or of the other's blob (null:
              only the blob tells them); token, policy, deadline_ms;
              crc: of all these but the deadline, CRC-32; conditional: a write with a condition made the tombstone
    marks     path, token, won, refused; at_ms: when the last of them was written
    horizon   created_ms: of the collected marks, when the last was written, or its change made. Never goes back
    schema_version   version: of this schema; store: an id that the store keeps when its server or its name changes

Names are bytes, so their order is that of bytes whatever collation the database has. Tokens are UUIDs. Marks are in a
table of their own: in the row, each change of a busy row would write all of its marks of two days anew.

**Proof of atomicity.** Each write is one call of one function, so one transaction. The function (1) takes the advisory
lock of the row's key, (2) looks, in one statement, (3) writes. At READ COMMITTED each statement in a VOLATILE function
takes a new snapshot. A transaction releases its lock after it has become visible (and, where there are synchronous
standbys, after these have it). So whoever has the lock sees, in (2), all that earlier holders wrote; and nobody else
writes this row or its marks before it commits: all functions that write them take the lock, except the collection of
marks. That one deletes marks and moves the horizon in one statement. (2) reads the mark and the horizon in one
snapshot, so it sees the mark, or a horizon that refuses its token. At another isolation the snapshot of (2) may be
older than the lock; so the functions check it, and refuse. Two keys may share a lock (64 bits): then one waits.

One statement alone (`INSERT … ON CONFLICT`, or a CTE) would not do: after it has waited for the row it sees the new row
beside *old* marks of the same snapshot.

**Migrations.** `MIGRATIONS[n]` leads from version n to n + 1, each in one transaction with the new version. A store
asks for exactly `VERSION` when it is opened, and not again. So each migration takes away what older software writes
with: a function whose meaning changes gets another signature, and a table or column another name. Then PostgreSQL
refuses what a process sends that still has the older version open, and changes nothing. `{schema}` stands for the
schema, quoted; `{seed}` for a number made of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from changelog.postgres.schema import CLOCK
from changelog.postgres.schema import DDL as CHANGELOG_DDL
from changelog.postgres.schema import TABLES as CHANGELOG_TABLES
from changelog.postgres.session import SEARCH_PATH
from tiered.services.backends import MARK_AGE_MAX_S

COLLECTED_AT_ONCE = 200
"""So many rows one call collects. Each holds a lock until its end, and a server has a few thousand by default."""

TABLES = ("rows", "marks", "horizon", "schema_version", *CHANGELOG_TABLES)

EMPTY: Sequence[str] = (
    *(f"DELETE FROM {{schema}}.{table}" for table in TABLES if table != "schema_version"),
    CLOCK.replace("CREATE", "CREATE OR REPLACE", 1),
)
"""Removes what a store holds, and sets its clock right. Each table is small, so this is quicker than to truncate it."""

_LOCK = "pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(pg_catalog.encode({path}, 'hex'), {seed}))"

_OURS = f"""
    IF pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.<>) '{SEARCH_PATH}'
        OR pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed' THEN
        RAISE EXCEPTION 'a row is written at READ COMMITTED only, and with search_path {SEARCH_PATH}' USING ERRCODE = '25001';
    END IF;"""
"""The first statement of each function: whose the operators and types are that the others name depends on the path."""

_BEGIN = f"""{_OURS}
    -- It returns nothing, which is not null. As an expression it costs half of what PERFORM costs.
    IF {_LOCK.replace("{path}", "p_path")} IS NULL THEN
        RETURN NULL;
    END IF;"""

_CHANGE = f"""CREATE FUNCTION {{schema}}.change_row(
    p_path bytea, p_token uuid, p_expected bytea, p_since_ms bigint, p_callers_ms bigint, p_marks boolean,
    p_only smallint, p_only_ms bigint, p_seen_target bytea, p_seen_token uuid,
    p_holds boolean, p_target bytea, p_policy text, p_metadata bytea, p_payload bytea, p_deadline_ms bigint, p_crc bigint,
    p_conditional boolean
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    seen pg_catalog.record;
BEGIN{_BEGIN}
    SELECT r.path IS NOT NULL AS there, r.target, r.token, r.deadline_ms,
        EXISTS (SELECT FROM {{schema}}.marks m WHERE m.path = p_path AND m.token = p_token) AS marked,
        (SELECT h.created_ms FROM {{schema}}.horizon h) AS horizon_ms
        INTO seen FROM (SELECT) AS one LEFT JOIN {{schema}}.rows r ON r.path = p_path;
    IF seen.marked OR (seen.target IS NOT NULL AND seen.target IS DISTINCT FROM p_expected)
        OR (p_only = 1 AND seen.there AND (seen.deadline_ms IS NULL OR seen.deadline_ms > p_only_ms))
        OR (p_only = 2 AND seen.target IS DISTINCT FROM p_seen_target)
        OR (p_only = 3 AND (seen.target IS NOT NULL OR seen.token IS DISTINCT FROM p_seen_token)) THEN
        RETURN 0;
    END IF;
    IF p_since_ms <= seen.horizon_ms THEN
        RETURN CASE WHEN p_callers_ms <= seen.horizon_ms THEN -seen.horizon_ms ELSE 0 END;
    END IF;
    IF NOT p_holds THEN
        DELETE FROM {{schema}}.rows WHERE path = p_path;
    ELSIF seen.there THEN
        UPDATE {{schema}}.rows SET token = p_token, target = p_target, policy = p_policy, metadata = p_metadata, payload = p_payload,
            deadline_ms = p_deadline_ms, crc = p_crc, conditional = p_conditional WHERE path = p_path;
    ELSE
        INSERT INTO {{schema}}.rows (path, token, target, policy, metadata, payload, deadline_ms, crc, conditional)
            VALUES (p_path, p_token, p_target, p_policy, p_metadata, p_payload, p_deadline_ms, p_crc, p_conditional);
    END IF;
    IF p_marks THEN
        INSERT INTO {{schema}}.marks VALUES (p_path, p_token, true, false, {{schema}}.clock_ms());
    END IF;
    RETURN 1;
END $$"""

_SETTLE = f"""CREATE FUNCTION {{schema}}.settle_row(p_path bytea, p_token uuid, p_blob bytea)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN{_BEGIN}
    IF EXISTS (SELECT FROM {{schema}}.rows r WHERE r.path = p_path AND (r.target = p_blob OR r.token = p_token)) THEN
        RETURN true;
    END IF;
    INSERT INTO {{schema}}.marks VALUES (p_path, p_token, false, true, {{schema}}.clock_ms())
        ON CONFLICT (path, token) DO UPDATE SET refused = true, at_ms = excluded.at_ms;
    RETURN false;
END $$"""

_TOUCH = f"""CREATE FUNCTION {{schema}}.touch_row(p_path bytea, p_target bytea, p_token uuid, p_payload bytea, p_deadline_ms bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN{_BEGIN}
    UPDATE {{schema}}.rows r SET deadline_ms = p_deadline_ms
        WHERE r.path = p_path AND r.deadline_ms < p_deadline_ms AND r.target IS NOT DISTINCT FROM p_target
        AND r.token IS NOT DISTINCT FROM p_token AND (p_token IS NOT NULL OR r.payload IS NOT DISTINCT FROM p_payload);
    RETURN FOUND;
END $$"""

_RENEW = f"""CREATE FUNCTION {{schema}}.renew_row(
    p_path bytea, p_target bytea, p_token uuid, p_deadline_ms bigint, p_policy text, p_metadata bytea, p_crc bigint
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN{_BEGIN}
    -- Of the write that is there, the columns say the same again; older software left no metadata.
    UPDATE {{schema}}.rows r SET deadline_ms = p_deadline_ms, policy = p_policy, metadata = p_metadata, crc = p_crc
        WHERE r.path = p_path AND r.deadline_ms < p_deadline_ms AND r.target = p_target AND r.token = p_token;
    RETURN FOUND;
END $$"""

_COLLECT_ROWS = f"""CREATE FUNCTION {{schema}}.collect_rows(p_limit integer) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now_ms bigint;
    old pg_catalog.bytea;
    removed integer := 0;
BEGIN{_OURS}
    now_ms := {{schema}}.clock_ms();
    FOR old IN SELECT r.path FROM {{schema}}.rows r WHERE r.deadline_ms <= now_ms ORDER BY r.deadline_ms LIMIT p_limit LOOP
        -- A row that somebody changes just now is left to the next round. So no two wait for one another.
        IF {_LOCK.replace("pg_advisory_xact_lock", "pg_try_advisory_xact_lock").replace("{path}", "old")} THEN
            DELETE FROM {{schema}}.rows r WHERE r.path = (
                SELECT f.path FROM {{schema}}.rows f WHERE f.path = old AND f.deadline_ms <= now_ms FOR UPDATE SKIP LOCKED);
            IF FOUND THEN
                removed := removed + 1;
            END IF;
        END IF;
    END LOOP;
    RETURN removed;
END $$"""

_COLLECT_MARKS = f"""CREATE FUNCTION {{schema}}.collect_marks(p_limit integer) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    oldest_ms bigint;
    oldest pg_catalog.uuid;
    removed integer;
BEGIN{_OURS}
    oldest_ms := {{schema}}.clock_ms() - {MARK_AGE_MAX_S * 1000};
    -- The least token of that time. A mark of a token that seems younger stays, so the horizon stays behind this time.
    oldest := (pg_catalog.lpad(pg_catalog.to_hex(oldest_ms), 12, '0') || '70008000000000000000')::uuid;
    WITH old AS MATERIALIZED (
        SELECT m.path, m.token FROM {{schema}}.marks m WHERE m.at_ms < oldest_ms AND m.token < oldest
            ORDER BY m.at_ms LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM {{schema}}.marks m USING old WHERE m.path = old.path AND m.token = old.token RETURNING m.token, m.at_ms
    ), passed AS (
        SELECT pg_catalog.count(*)::integer AS number, pg_catalog.max(greatest(at_ms,
            ('x' || pg_catalog.substr(pg_catalog.replace(token::text, '-', ''), 1, 12))::bit(48)::bigint)) AS created_ms FROM gone
    ), moved AS (
        INSERT INTO {{schema}}.horizon AS h SELECT true, created_ms FROM passed WHERE number > 0
            ON CONFLICT (single) DO UPDATE SET created_ms = greatest(h.created_ms, excluded.created_ms)
    )
    SELECT number INTO removed FROM passed;
    RETURN removed;
END $$"""

_VERSION_1: Sequence[str] = (
    *CHANGELOG_DDL,
    """CREATE TABLE {schema}.rows (
        path bytea PRIMARY KEY, token uuid, target bytea, policy text, metadata bytea, payload bytea, deadline_ms bigint, crc bigint,
        conditional boolean NOT NULL DEFAULT false, CHECK ((target IS NULL) = (payload IS NOT NULL))
    ) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02)""",
    # Payloads are compressed by whoever wants that, or cannot be compressed.
    "ALTER TABLE {schema}.rows ALTER COLUMN payload SET STORAGE EXTERNAL",
    # The cuts of an audit are taken from these statistics.
    "ALTER TABLE {schema}.rows ALTER COLUMN path SET STATISTICS 1000",
    "CREATE INDEX rows_by_deadline ON {schema}.rows (deadline_ms) WHERE deadline_ms IS NOT NULL",
    "CREATE INDEX rows_tombstones ON {schema}.rows (path) WHERE target IS NOT NULL",
    """CREATE TABLE {schema}.marks (
        path bytea, token uuid, won boolean NOT NULL, refused boolean NOT NULL, at_ms bigint NOT NULL, PRIMARY KEY (path, token)
    ) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1)""",
    "CREATE INDEX marks_by_age ON {schema}.marks (at_ms)",
    "CREATE TABLE {schema}.horizon (single boolean PRIMARY KEY CHECK (single), created_ms bigint NOT NULL) WITH (fillfactor = 10)",
    "CREATE TABLE {schema}.schema_version (single boolean PRIMARY KEY CHECK (single), version integer NOT NULL, store uuid NOT NULL)",
    "INSERT INTO {schema}.schema_version VALUES (true, 0, pg_catalog.gen_random_uuid())",
    _CHANGE, _SETTLE, _TOUCH, _RENEW, _COLLECT_ROWS, _COLLECT_MARKS,
)  # fmt: skip

MIGRATIONS: Sequence[Sequence[str]] = (_VERSION_1,)
VERSION = len(MIGRATIONS)
READ_VERSION = """SELECT version, pg_catalog.concat_ws('/', store, system_identifier, pg_catalog.current_database())
 FROM {schema}.schema_version, pg_catalog.pg_control_system()"""
"""The version, and who the store is: its own id, and the cluster and the database that it is in."""

READER_RIGHTS = (
    "GRANT USAGE ON SCHEMA {schema} TO {role}", "GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}",
    "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role}",
)  # fmt: skip
"""What a role needs that only reads: audits, listings, a store with `writes=False`. A function has its caller's rights.
"""

WRITER_RIGHTS = (
    *READER_RIGHTS,
    "GRANT INSERT, UPDATE, DELETE ON {writable} TO {role}",
)
"""What the services and the recovery daemon need. They cannot change the schema."""


def quoted_schema(name: str) -> str:
    """The name of a schema as SQL takes it."""
    return '"' + name.replace('"', '""') + '"'


def in_schema(statement: str, name: str) -> str:
    """The statement for the schema of this name. Only these two words in braces are replaced, wherever they stand."""
    return statement.replace("{schema}", quoted_schema(name)).replace("{seed}", str(zlib.crc32(name.encode())))


def rights(statements: Sequence[str], schema: str, role: str) -> list[str]:
    """The statements that give a role these rights."""
    writable = ", ".join(f"{quoted_schema(schema)}.{table}" for table in TABLES if table != "schema_version")
    role = quoted_schema(role)
    return [in_schema(statement.replace("{writable}", writable).replace("{role}", role), schema) for statement in statements]
