"""What of a schema in PostgreSQL is not as this software made it: looked at by `tiered check`, and mended where it can.

    a table that is missing, or has other columns     a problem: only a backup has it
    a function that is missing, or was changed        a problem; `tiered provision` makes it anew
    an index that is missing or invalid               a problem: listings read whole tables, or entries are doubled
    UNLOGGED, row-level security                      a problem: rows vanish in a crash, or are not shown to an audit,
                                                      which would take their blobs for orphans
    a trigger or a rule of somebody else's            a note

The version of the schema says nothing of these: somebody's hand, or half of a dump, leaves it as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from changelog.postgres.pool import PostgresPool, Record
from tiered.postgres.schema import MIGRATIONS, TABLES, in_schema

COLUMNS: Mapping[str, str] = {
    "rows": "path bytea, token uuid, target bytea, policy text, metadata bytea, payload bytea, deadline_ms bigint, crc bigint, "
    "conditional boolean",
    "marks": "path bytea, token uuid, won boolean, refused boolean, at_ms bigint",
    "horizon": "single boolean, created_ms bigint",
    "schema_version": "single boolean, version integer, store uuid",
    "entries": "key bytea, value bytea, heartbeat_ms bigint, state text",
    "presences": "instance bytea, seen_ms bigint",
    "notes": "name bytea, value bytea",
    "log_values": "key bytea, value bytea, version bigint",
}

_TABLES = """SELECT c.relname::text, c.relpersistence::text, c.relrowsecurity,
 (SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum) FROM pg_catalog.pg_attribute a
   WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
 ARRAY(SELECT t.tgname::text FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal
   UNION ALL SELECT r.rulename::text FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid),
 ARRAY(SELECT i.relname::text FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
   WHERE x.indrelid = c.oid AND x.indisvalid)
 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind = 'r'"""
_FUNCTIONS = """SELECT p.proname::text, p.prosrc, p.provolatile::text, p.prosecdef FROM pg_catalog.pg_proc p
 JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = $1"""
_FUNCTION = re.compile(r"CREATE FUNCTION \{schema\}\.(\w+)\(.*?AS \$\$(.*)\$\$\Z", re.DOTALL)
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX (\w+) ON \{schema\}\.(\w+)")
_STATEMENTS = [statement for migration in MIGRATIONS for statement in migration]


class Departure(NamedTuple):
    """`sentence`: what is wrong. `mend`: the statements that mend it. `is_note`: it may be meant so."""

    sentence: str
    mend: tuple[str, ...] = ()
    is_note: bool = False


async def departures_of(pool: PostgresPool, schema: str) -> Sequence[Departure]:
    """What is wrong with the schema, in sentences without a full stop. Two reads of the catalogue."""
    tables = {row[0]: row for row in await pool.read("looking at the tables", _TABLES, schema)}
    functions = await pool.read("looking at the functions", _FUNCTIONS, schema)
    return [*_of_tables(tables, schema), *_of_functions(functions, schema)]


def _of_tables(found: Mapping[str, Record], schema: str) -> Iterator[Departure]:
    indexes = {table: {f"{table}_pkey"} for table in TABLES if table != "log_values"} | {"log_values": set[str]()}
    for name, table in (match.groups() for statement in _STATEMENTS if (match := _INDEX.match(statement))):
        indexes[table].add(name)
    for name in TABLES:
        if name not in found:
            yield Departure(f"table {name} of schema {schema} is missing: restore it from a backup")
            continue
        _, persistence, hides_rows, columns, others, there = found[name]
        if columns != COLUMNS[name]:
            yield Departure(f"table {name} of schema {schema} has the columns ({columns}) instead of ({COLUMNS[name]}): change them back")
        if persistence != "p":
            yield Departure(f"table {name} of schema {schema} is empty after a crash of the server: run ALTER TABLE … SET LOGGED")
        if hides_rows:
            yield Departure(
                f"row-level security of table {name} of schema {schema} may hide rows, and an audit would take their blobs for orphans: run"
                " ALTER TABLE … DISABLE ROW LEVEL SECURITY"
            )
        for missing in sorted(indexes[name] - set(there)):
            yield Departure(f"index {missing} of schema {schema} is missing or invalid: make it anew as tiered/postgres/schema.py has it")
        for other in others:
            where = f"{other} on table {name} of schema {schema}"
            yield Departure(f"{where} is not this software's: it may change what is written", is_note=True)


def _of_functions(found: Sequence[Record], schema: str) -> Iterator[Departure]:
    made = {match[1]: (match[2], statement) for statement in _STATEMENTS if (match := _FUNCTION.match(statement))}
    for name, (body, statement) in made.items():
        there = [row for row in found if row[0] == name]
        if not there or any((row[1], row[2], row[3]) != (in_schema(body, schema), "v", False) for row in there):
            how = "is missing" if not there else "was changed, and may keep another protocol"
            anew = in_schema(statement.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1), schema)
            yield Departure(f"function {name} of schema {schema} {how}", (anew,))
