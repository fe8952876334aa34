"""`tiered provision` and `tiered check` for PostgreSQL.

    inspect_postgres     looks at the server, the schema, its version, what was changed in it
                         (`tiered/postgres/shape.py`), and what this role may do                           -> findings
    provision_postgres   the same look, and the mend of each finding                                -> findings

A mend makes the schema, or migrates it, each version in one transaction; and gives roles the rights that they need,
which are no more than these:

    a writer    services and the recovery daemon: SELECT, INSERT, UPDATE, DELETE on our tables, nothing else
    a reader    audits, listings, `writes=False`: SELECT on our tables
    both        CONNECT on the database; EXECUTE on our functions, and on those of the server that we call: where not
                everybody has it

Settings of the server are looked at and never changed. Two runs at once: one waits for the other, and then says that
all is there, or fails and can be run again. *Crash* anywhere: run it again. *Failure*: a server that does not answer is
a problem among the findings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import anyio
from anyio import CapacityLimiter

from changelog.base.errors import ConfigurationError, TieredError
from changelog.base.runtime import Runtime
from changelog.base.threads import in_thread
from changelog.postgres.log import STATEMENTS as LOG_STATEMENTS
from changelog.postgres.pool import PostgresPool, Record
from changelog.postgres.schema import DDL as CHANGELOG_DDL
from tiered.postgres.open import connect, refuse_view
from tiered.postgres.rows import OF_ONE_ROLE
from tiered.postgres.rows import STATEMENTS as ROW_STATEMENTS
from tiered.postgres.schema import MIGRATIONS, READ_VERSION, READER_RIGHTS, TABLES, VERSION, WRITER_RIGHTS, in_schema, quoted_schema, rights
from tiered.postgres.shape import Departure, departures_of
from tiered.provision.findings import Mend, MendFailedError, Notice, NoticeKind, carry_out, clocks_apart, note, ok, problem
from tiered.settings import PostgresSettings

MIGRATION_S = 600.0

_SERVER = """SELECT current_setting('server_version'), current_setting('fsync'), current_setting('full_page_writes'),
 current_setting('synchronous_standby_names'), current_setting('data_checksums'), current_setting('autovacuum'),
 current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
 (SELECT count(*) FROM pg_catalog.pg_stat_replication), extract(epoch FROM pg_catalog.clock_timestamp())::float8,
 current_user::text, pg_catalog.pg_is_in_recovery()"""
_SCHEMA = """SELECT to_regnamespace($1) IS NOT NULL, to_regclass($1 || '.schema_version') IS NOT NULL,
 pg_catalog.has_database_privilege(current_database(), 'CREATE')"""
_RIGHTS = """SELECT table_name FROM unnest($2::text[]) AS t (table_name)
 WHERE NOT coalesce(pg_catalog.has_table_privilege($3::text, $1 || '.' || table_name, $4), false)"""
_EXECUTE = """SELECT n.nspname = $1, p.proname::text, p.oid::regprocedure::text FROM pg_catalog.pg_proc p
 JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace WHERE (n.nspname = $1 OR n.nspname = 'pg_catalog' AND p.proname = ANY($2::text[]))
 AND NOT pg_catalog.has_function_privilege($3::text, p.oid, 'EXECUTE') ORDER BY 1, 2, 3"""
_CONNECT = """SELECT current_database()::text WHERE NOT pg_catalog.has_database_privilege($1::text, current_database(), 'CONNECT')"""
_WHO = """SELECT current_user::text, current_database()::text, setting, source FROM pg_catalog.pg_settings
 WHERE name = 'default_transaction_read_only'"""
_EXCESS = """SELECT r.rolsuper, r.rolcreaterole, r.rolcreatedb, r.rolreplication, r.rolbypassrls,
 pg_catalog.pg_has_role(r.oid, d.datdba, 'USAGE'),
 EXISTS (SELECT FROM pg_catalog.pg_namespace n WHERE n.oid = to_regnamespace($1) AND pg_catalog.pg_has_role(r.oid, n.nspowner, 'USAGE'))
 FROM pg_catalog.pg_roles r, pg_catalog.pg_database d WHERE r.rolname = current_user AND d.datname = current_database()"""
_MAY = (
    "may make roles, and give them rights", "may make databases", "may copy the whole server as a standby",
    "passes over the row security of all tables", "owns the database, so it may drop it",
    "owns the schema of the store, so it may drop its tables",
)
"""What the columns of `_EXCESS` mean, after the first."""
_PREDEFINED = """SELECT r.rolname::text FROM pg_catalog.pg_roles r
 WHERE r.rolname = ANY($1::text[]) AND pg_catalog.pg_has_role(current_user, r.oid, 'USAGE') ORDER BY 1"""
_POWERS = {
    "pg_execute_server_program": "may run programs on the server", "pg_write_server_files": "may write files of the server",
    "pg_read_server_files": "may read files of the server", "pg_write_all_data": "may write all tables",
    "pg_read_all_data": "may read all tables",
}
_ROLE = "SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $1)"

_SENT = (READ_VERSION, *ROW_STATEMENTS.values(), *LOG_STATEMENTS.values())
_FUNCTIONS = [statement for version in MIGRATIONS for statement in version if statement.startswith("CREATE FUNCTION")]
_CALL = re.compile(r"(?<![\w}.])(?:pg_catalog\.)?(\w+)\(")


def _called(statements: Iterable[str]) -> list[str]:
    """The names of the server's functions that statements call."""
    return sorted({name for statement in statements for name in _CALL.findall(statement)})


_CALLED_BY_READERS = _called([each for each in (*_SENT, *CHANGELOG_DDL) if each.startswith(("SELECT", "CREATE FUNCTION"))])
_CALLED_BY_WRITERS = _called([*_SENT, *_FUNCTIONS])


async def inspect_postgres(settings: PostgresSettings, runtime: Runtime) -> list[Notice]:
    """The findings of `tiered check`. It changes nothing. A problem says what to run."""
    try:
        async with connect(settings, writes=False) as pool:
            findings, schema = await _look_at_server(pool, settings, runtime), await _look_at_schema(pool, settings)
            findings += schema
            if all(finding.kind is not NoticeKind.PROBLEM for finding in schema):
                findings += await _look_at_own_rights(pool, settings)
                with suppress(ConfigurationError):  # who may write nothing in the language of our functions may call them
                    await pool.read("running the language of its functions", "DO LANGUAGE plpgsql 'BEGIN END'")
    except TieredError as error:
        return [problem(str(error))]
    return findings


async def provision_postgres(
    settings: PostgresSettings, runtime: Runtime, *, dry_run: bool = False, writer: str | None = None, reader: str | None = None
) -> list[Notice]:
    """Makes the schema or migrates it, and gives rights to two roles, if they are named. Repeatable.

    `writer`: the role of the services and the daemon; `reader`: of whoever only reads. `dry_run`: the findings say what
    would be done.
    """
    try:
        async with connect(settings, writes=True) as pool:
            found = [*await _look_at_server(pool, settings, runtime), *await _look_at_schema(pool, settings)]
            found = await _carried_out(found, dry_run)
            if not (dry_run and any(finding.kind is NoticeKind.PLANNED for finding in found)):
                for role, writes in ((writer, True), (reader, False)):
                    found += await _carried_out(await _look_at_role(pool, settings, role, writes=writes), dry_run)
    except TieredError as error:
        return [problem(str(error))]
    return found


async def _carried_out(findings: Sequence[Notice], dry_run: bool) -> list[Notice]:
    """A mend blocks, so it runs in a thread, with an event loop and a connection of its own."""
    return await in_thread(lambda: [carry_out(finding, dry_run=dry_run) for finding in findings], CapacityLimiter(1))


# --- the server ----------------------------------------------------------------------------------


async def _look_at_server(pool: PostgresPool, settings: PostgresSettings, runtime: Runtime) -> list[Notice]:
    [found] = await pool.read("looking at the server", _SERVER)
    return list(_of_server(found, settings, runtime.wall_ns() / 1e9))


def _of_server(found: Record, settings: PostgresSettings, now_s: float) -> Iterator[Notice]:
    version, fsync, full_pages, synchronous, checksums, autovacuum, places, standbys, server_s, role, is_standby = found
    yield ok(f"PostgreSQL {version} answers at {settings.address} as role {role}")
    if is_standby:
        sentence = f"what answers at {settings.address} is a standby, which takes no writes and may lag"
        yield problem(f"{sentence}: name the primary in postgres.dsn, or bring it back")
        return  # what else it tells is not of the server that the store writes to
    if fsync != "on" or full_pages != "on":
        sentence = f"fsync is {fsync} and full_page_writes is {full_pages}: a crash of the server loses or damages data; set both to on"
        yield problem(sentence)
    else:
        yield ok("what is committed survives a crash of the server: fsync and full_page_writes are on")
    if synchronous.strip():
        yield ok(f"commits wait for standbys ({synchronous}); of several, promote the one that has received most")
    else:
        yield note(
            f"no standby is synchronous ({standbys} are connected): a standby that is promoted may lack writes that were acknowledged, and "
            "then rows name blobs that are deleted; set synchronous_standby_names, or run the audit after each failover"
        )  # fmt: skip
    if checksums != "on":
        sentence = "data_checksums is off: rows have checksums of ours, but indexes and entries have none; see pg_checksums"
        yield note(sentence)
    if autovacuum != "on":
        yield problem("autovacuum is off: the changelog and the marks grow without end; set it to on")
    if settings.connections_max > places:
        sentence = f"postgres.connections_max is {settings.connections_max}, and the server takes {places} connections of all processes"
        yield note(sentence)
    yield from clocks_apart("the server", round(server_s * 1e9), round(now_s * 1e9))


# --- the schema ----------------------------------------------------------------------------------


async def _look_at_schema(pool: PostgresPool, settings: PostgresSettings) -> list[Notice]:
    name = settings.schema_name
    await refuse_view(pool, settings)
    [(there, has_version, may_create)] = await pool.read("looking at the schema", _SCHEMA, name)
    version = 0
    if has_version:
        found = await pool.read("reading the version of the schema", in_schema("SELECT version FROM {schema}.schema_version", name))
        version = found[0][0] if found else 0
    if version == VERSION:
        faults = [_noticed(fault, settings) for fault in await departures_of(pool, name)]
        return faults or [ok(f"schema {name} has version {VERSION}, and is as this software made it")]
    if version > VERSION:
        newer = f"schema {name} has version {version}, which newer software made; this software knows {VERSION}: install a newer tiered"
        return [problem(newer)]
    sentence = f"schema {name} has version {version} of {VERSION}" if has_version else f"there is no store in schema {name}"
    if not there and not may_create:
        return [problem(f"{sentence}, and this role may not create schemas: run 'tiered provision' as one that may")]
    verb = ("migrate to", "migrated to") if has_version else ("create", "created")
    mend = Mend(verb, f"schema {name} in version {VERSION}", partial(_mend, settings, partial(_migrate, version)))
    return [problem(f"{sentence}: run 'tiered provision'", mend)]


def _noticed(fault: Departure, settings: PostgresSettings) -> Notice:
    if not fault.mend:
        return Notice(NoticeKind.NOTE if fault.is_note else NoticeKind.PROBLEM, fault.told())
    mend = Mend(("mend", "mended"), f"this: {fault.sentence}", partial(_mend, settings, partial(_run, "mending the schema", fault.mend)))
    return problem(fault.told(), mend)


def _mend(settings: PostgresSettings, work: Callable[[PostgresPool, PostgresSettings], object]) -> None:
    patient = settings.model_copy(update={"timeout_s": MIGRATION_S, "connections_max": 1})

    async def run() -> None:
        async with connect(patient, writes=True) as pool:
            await work(pool, settings)  # type: ignore[misc]  # each of them is a coroutine function

    try:
        anyio.run(run)
    except TieredError as error:
        raise MendFailedError(str(error)) from error


async def _migrate(version: int, pool: PostgresPool, settings: PostgresSettings) -> None:
    """Leads the schema from this version to ours, each step in one transaction. Another run waits meanwhile."""
    for step, statements in enumerate(MIGRATIONS[version:], version):
        script = [
            "SELECT pg_catalog.pg_advisory_xact_lock({seed})",
            *(["CREATE SCHEMA IF NOT EXISTS {schema}"] if step == 0 else []),
            *statements,
            f"UPDATE {{schema}}.schema_version SET version = {step + 1} WHERE version = {step}",
        ]
        await pool.run(f"making version {step + 1} of the schema", ";\n".join(in_schema(each, settings.schema_name) for each in script))


# --- rights --------------------------------------------------------------------------------------


async def _look_at_own_rights(pool: PostgresPool, settings: PostgresSettings) -> list[Notice]:
    [(role, database, read_only, source)] = await pool.read("asking who this is", _WHO)
    of_role, of_database = f"ROLE {quoted_schema(role)}", f"DATABASE {quoted_schema(database)}"
    set_by = {"user": of_role, "database": of_database, "database user": f"{of_role} IN {of_database}"}
    lacking = await _lacking(pool, settings, role, writes=True)
    if read_only == "on" and ("rows" not in lacking or source not in OF_ONE_ROLE):
        setting, where = "default_transaction_read_only", "the options of postgres.dsn" if source == "client" else f"the {source}"
        cure = f"run ALTER {set_by[source]} RESET {setting}" if source in set_by else f"take {setting} out of {where}"
        return [problem(f"each transaction of role {role} is read-only, so nothing is written: {cure}")]
    if not lacking:
        return [ok(f"role {role} may read and write the tables of schema {settings.schema_name}")]
    if "rows" not in lacking:
        return [problem(f"role {role} may write some of it, but not use {_listed(lacking)}: {_advised(lacking)}")]
    if unread := await _lacking(pool, settings, role, writes=False):
        return [problem(f"role {role} may not read {_listed(unread)}: {_advised(unread)}")]
    return [note(f"role {role} may only read; to write, too: {_advised(lacking)}")]


async def _look_at_role(pool: PostgresPool, settings: PostgresSettings, role: str | None, *, writes: bool) -> Sequence[Notice]:
    if role is None:
        return []
    [[there]] = await pool.read("looking for a role", _ROLE, role)
    if not there:
        return [problem(f"there is no role {role}: run CREATE ROLE {quoted_schema(role)} LOGIN")]
    may = "read and write" if writes else "read"
    lacking = await _lacking(pool, settings, role, writes=writes)
    if not lacking:
        return [ok(f"role {role} may {may} the tables of schema {settings.schema_name}")]
    mend = Mend(("grant", "granted"), f"role {role} the rights to {may} the tables of schema {settings.schema_name}",
                partial(_mend, settings, partial(_grant, role, writes)))  # fmt: skip
    return [problem(f"role {role} may not {may} all tables of schema {settings.schema_name}", mend)]


async def _run(doing: str, statements: Sequence[str], pool: PostgresPool, settings: PostgresSettings) -> None:
    await pool.run(doing, ";\n".join(statements))


async def _grant(role: str, writes: bool, pool: PostgresPool, settings: PostgresSettings) -> None:
    """Gives the rights, and looks: PostgreSQL only warns if whoever runs this may not give one."""
    await _run("granting rights", _granting(await _lacking(pool, settings, role, writes=writes)), pool, settings)
    if lacking := await _lacking(pool, settings, role, writes=writes):
        still = f"role {role} still lacks {_listed(lacking)}, because this role may not give that"
        raise ConfigurationError(f"{still}: as a superuser, {_advised(lacking)}")


async def _lacking(pool: PostgresPool, settings: PostgresSettings, role: str, *, writes: bool) -> Mapping[str, Sequence[str]]:
    """The tables, functions and the database on which the role lacks a right, each with the statements that give it."""
    schema = quoted_schema(settings.schema_name)
    given = rights(WRITER_RIGHTS if writes else READER_RIGHTS, settings.schema_name, role)
    lacking: dict[str, Sequence[str]] = {
        f"database {database}": [f"GRANT CONNECT ON DATABASE {quoted_schema(database)} TO {quoted_schema(role)}"]
        for [database] in await pool.read("looking at rights", _CONNECT, role)
    }
    for right in ("SELECT", "INSERT", "UPDATE", "DELETE") if writes else ("SELECT",):
        tables = [table for table in TABLES if right == "SELECT" or table != "schema_version"]
        try:
            rows = await pool.read("looking at rights", _RIGHTS, schema, tables, role, right)
        except ConfigurationError:  # no USAGE on the schema: its tables cannot be named
            return lacking | dict.fromkeys(TABLES, given)
        lacking |= {row[0]: given for row in rows}
    names = _CALLED_BY_WRITERS if writes else _CALLED_BY_READERS
    for is_ours, name, function in await pool.read("looking at rights", _EXECUTE, settings.schema_name, names, role):
        lacking[f"{name}()"] = given if is_ours else [f"GRANT EXECUTE ON FUNCTION pg_catalog.{function} TO {quoted_schema(role)}"]
    return lacking


async def excess_of(settings: PostgresSettings) -> Sequence[str]:
    """What the role may do that no writer needs, each the rest of a sentence about it."""
    async with connect(settings, writes=False) as pool:
        [found] = await pool.read("asking what this role may do", _EXCESS, quoted_schema(settings.schema_name))
        if found[0]:
            return ["is a superuser, who may do all on this server"]
        predefined = await pool.read("asking which roles this one has", _PREDEFINED, list(_POWERS))
    held = [words for words, may in zip(_MAY, found[1:], strict=True) if may]
    return [*held, *(_POWERS[role] for [role] in predefined)]


def _listed(lacking: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(sorted(lacking))


def _granting(lacking: Mapping[str, Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(statement for statements in lacking.values() for statement in statements))


def _advised(lacking: Mapping[str, Sequence[str]]) -> str:
    return f"run \"{'; '.join(_granting(lacking))}\""
