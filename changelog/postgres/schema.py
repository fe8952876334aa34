"""The tables of the changelog in PostgreSQL, as DDL. `tiered provision` runs it; a store that is open never does.

    entries      key, value (the entry, JSON), heartbeat_ms, state (JSON; null: open)
    presences    instance, seen_ms
    notes        name, value
    log_values   key, value (null: removed), version
    clock_ms()   the server's clock, in ms since 1970: every time in these tables is by it

Keys and values are bytes, as on Bigtable, so their order is that of bytes whatever collation the database has. A key of
a value may have 3,000 bytes, and an index entry 2,700, so that index has the first bytes of a key and its hash.

`entries` is a queue: a row lives for seconds and is renewed in place. So its pages keep room for a renewal (which then
touches no index), and it is vacuumed after a thousand dead rows, however large it once was. `{schema}` stands for the
schema, quoted.
"""

from __future__ import annotations

from collections.abc import Sequence

QUEUE = (
    "fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, autovacuum_analyze_threshold = 5000, "
    "autovacuum_vacuum_cost_delay = 0"
)
HEAD_BYTES = 1024
"""So many first bytes of a value's key are in its index."""

CLOCK = (
    "CREATE FUNCTION {schema}.clock_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE"
    " AS $$ SELECT pg_catalog.floor(extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000::numeric)::bigint $$"
)

DDL: Sequence[str] = (
    CLOCK,
    f"""CREATE TABLE {{schema}}.entries (
        key bytea PRIMARY KEY, value bytea NOT NULL, heartbeat_ms bigint NOT NULL, state text
    ) WITH ({QUEUE})""",
    "CREATE INDEX entries_ended ON {schema}.entries (key) WHERE state IS NOT NULL",
    "CREATE TABLE {schema}.presences (instance bytea PRIMARY KEY, seen_ms bigint NOT NULL) WITH (fillfactor = 50)",
    "CREATE TABLE {schema}.notes (name bytea PRIMARY KEY, value bytea NOT NULL) WITH (fillfactor = 50)",
    "CREATE TABLE {schema}.log_values (key bytea NOT NULL, value bytea, version bigint NOT NULL)"
    " WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05)",
    f"CREATE UNIQUE INDEX log_values_by_key ON {{schema}}.log_values (substr(key, 1, {HEAD_BYTES}), sha256(key))",
    "CREATE INDEX log_values_removed ON {schema}.log_values (version) WHERE value IS NULL",
    # It has no primary key, and PostgreSQL refuses to change what is published and cannot be told from other rows.
    "ALTER TABLE {schema}.log_values REPLICA IDENTITY FULL",
)
TABLES = ("entries", "presences", "notes", "log_values")
