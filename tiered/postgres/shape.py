"""What of a schema in PostgreSQL is not as this software made it. One look, at each opening, by `tiered check`, and
before `tiered provision`, which mends what it can.

    a table that is missing, or has other columns     only a backup has it
    a function that is missing, or was changed        `tiered provision` makes it anew
    a function of somebody else's with such a name    it may be called instead of ours
    UNLOGGED                                          rows vanish in a crash
    row-level security                                rows are not shown, and their blobs would count as garbage
    a table that inherits from ours                   its rows are shown as if they were ours
    a rule, a trigger before each row                 a write that was acknowledged is another one, or none
    a constraint; an index that may fail              writes are refused, and its owner's code runs as the writer
    an index that is missing or invalid               a problem, and a store opens: it is slow, or writes fail
    no replica identity                               a problem, and a store opens: a publication makes writes fail
    any other trigger                                 a note

The version of the schema says nothing of these: somebody's hand, or half of a dump, leaves it as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from changelog.postgres.pool import PostgresPool, Record
from tiered.postgres.schema import MIGRATIONS, TABLES, in_schema, quoted_schema

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

# Of `tgtype`, 1 is: for each row; and 2: before.
_TABLES = """SELECT c.relname::text, c.relpersistence::text, c.relrowsecurity, c.relreplident::text,
 (SELECT pg_catalog.string_agg(a.attname || ' ' || pg_catalog.format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum)
   FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
 ARRAY(SELECT 'rule ' || r.rulename FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid UNION ALL SELECT 'trigger ' || t.tgname
   FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 3 = 3 UNION ALL
   SELECT 'constraint ' || k.conname FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid AND k.contype IN ('c', 'f') UNION ALL
   SELECT 'index ' || i.relname FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
   WHERE x.indrelid = c.oid AND (x.indisunique OR x.indisexclusion OR x.indexprs IS NOT NULL OR x.indpred IS NOT NULL)),
 ARRAY(SELECT 'trigger ' || t.tgname FROM pg_catalog.pg_trigger t
   WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND (t.tgenabled = 'D' OR t.tgtype & 3 <> 3)),
 ARRAY(SELECT h.inhrelid::pg_catalog.regclass::text FROM pg_catalog.pg_inherits h WHERE h.inhparent = c.oid),
 ARRAY(SELECT i.relname::text FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
   WHERE x.indrelid = c.oid AND x.indisvalid)
 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind = 'r'"""
_FUNCTIONS = """SELECT p.proname::text, pg_catalog.oidvectortypes(p.proargtypes), p.prosrc, p.provolatile::text, p.prosecdef, p.proisstrict,
 p.proconfig, l.lanname::text FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
 JOIN pg_catalog.pg_language l ON l.oid = p.prolang WHERE n.nspname = $1"""
_FUNCTION = re.compile(r"CREATE FUNCTION \{schema\}\.(\w+)\((.*?)\)\s+RETURNS .*? LANGUAGE (\w+) .*?AS \$\$(.*)\$\$\Z", re.DOTALL)
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX (\w+) ON \{schema\}\.(\w+)")
_STATEMENTS = [statement for migration in MIGRATIONS for statement in migration]


class Departure(NamedTuple):
    """`sentence`: what is wrong. `mend`: the statements that mend it. `opens`: a store may be opened in spite of it.

    `is_note`: it may be meant so.
    """

    sentence: str
    mend: tuple[str, ...] = ()
    opens: bool = False
    is_note: bool = False

    def told(self) -> str:
        return f"{self.sentence}: run 'tiered provision'" if self.mend else self.sentence


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
        _, persistence, hides_rows, identity, columns, changing, others, heirs, there = found[name]
        table = f"table {name} of schema {schema}"
        if columns != COLUMNS[name]:
            yield Departure(f"{table} has the columns ({columns}) instead of ({COLUMNS[name]}): change them back")
        if persistence != "p":
            yield Departure(f"{table} is empty after a crash of the server: run ALTER TABLE … SET LOGGED")
        if hides_rows:
            yield Departure(
                f"row-level security of {table} may hide rows, and their blobs would count as garbage: run ALTER TABLE … DISABLE ROW LEVEL"
                " SECURITY"
            )
        for heir in heirs:
            yield Departure(f"the rows of {heir} count as those of {table}: run ALTER TABLE {heir} NO INHERIT …")
        ours = {*(f"index {index}" for index in indexes[name]), f"constraint {name}_check", f"constraint {name}_single_check"}
        for other in sorted({*changing} - ours):
            yield Departure(f"{other} on {table} is not this software's, and may refuse or change what is written: remove it")
        for missing in sorted(indexes[name] - set(there)):
            sentence = f"index {missing} of schema {schema} is missing or invalid: make it anew as tiered/postgres/schema.py has it"
            yield Departure(sentence, opens=True)
        if identity == "n" or (identity == "d" and name == "log_values"):
            mend = (f"ALTER TABLE {quoted_schema(schema)}.{name} REPLICA IDENTITY FULL",)
            yield Departure(f"{table} has no replica identity, so writes to it fail if there is a publication of it", mend, opens=True)
        for other in others:
            yield Departure(f"{other} on {table} is not this software's: it may do more than is written", opens=True, is_note=True)


def _of_functions(found: Sequence[Record], schema: str) -> Iterator[Departure]:
    made = {(match[1], _types(match[2])): (match, statement) for statement in _STATEMENTS if (match := _FUNCTION.match(statement))}
    names = {name for name, _ in made}
    there = {(row[0], row[1]): tuple(row[2:]) for row in found}
    for (name, types), (match, statement) in made.items():
        if there.get((name, types)) != (in_schema(match[4], schema), "v", False, False, None, match[3]):
            how = "was changed, and may keep another protocol" if (name, types) in there else "is missing"
            anew = in_schema(statement.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1), schema)
            yield Departure(f"function {name} of schema {schema} {how}", (anew,))
    for name, types in there.keys() - made.keys():
        if name in names:
            where = f"function {name}({types}) of schema {schema}"
            yield Departure(f"{where} is not this software's, and may be called instead of ours: drop it")


def _types(parameters: str) -> str:
    """The types of parameters, as PostgreSQL lists them."""
    return ", ".join(each.split()[1] for each in parameters.split(",") if each.strip())
