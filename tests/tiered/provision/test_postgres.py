"""`tiered provision` and `tiered check` of PostgreSQL, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest

from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from emulators.ports import free_port
from emulators.postgres.server import USER, PostgresServer
from tests.given.fresh_schema import ask, made_schema, settings_of
from tiered.metadata import Metadata
from tiered.postgres.open import open_postgres
from tiered.postgres.schema import MIGRATIONS, TABLES, VERSION
from tiered.provision import postgres as provision
from tiered.provision.findings import Notice, NoticeKind, problems
from tiered.provision.postgres import inspect_postgres, provision_postgres
from tiered.services.backends import Inline, Row
from tiered.settings import PostgresSettings

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
RUNTIME = SystemRuntime()
FSYNC = "fsync is off"


def new_schema() -> str:
    return "p" + ChangeId.new(RUNTIME).replace("-", "")


def of_kind(findings: list[Notice], kind: NoticeKind) -> list[str]:
    return [finding.sentence for finding in findings if finding.kind is kind]


async def test_provision_makes_what_an_opening_needs_and_nothing_when_it_is_repeated(postgres: PostgresServer) -> None:
    settings = settings_of(postgres, new_schema())
    with pytest.raises(ConfigurationError, match="tiered provision"):
        async with open_postgres(settings, RUNTIME):
            pass
    planned = await provision_postgres(settings, RUNTIME, dry_run=True)
    assert of_kind(planned, NoticeKind.PLANNED) == [f"would create schema {settings.schema_name} in version {VERSION}"]
    assert not await ask(postgres, "SELECT 1 FROM pg_namespace WHERE nspname = $1", settings.schema_name)
    made = await provision_postgres(settings, RUNTIME)
    assert of_kind(made, NoticeKind.DONE) == [f"created schema {settings.schema_name} in version {VERSION}"]
    again = await provision_postgres(settings, RUNTIME)
    assert of_kind(again, NoticeKind.DONE) == []
    assert f"schema {settings.schema_name} has version {VERSION}, and is as this software made it" in of_kind(again, NoticeKind.OK)
    async with open_postgres(settings, RUNTIME) as (rows, log):
        token = ChangeId.new(RUNTIME)
        state = Inline(Metadata(size=1), b"x", token)
        assert await rows.put_inline("a/objects/b", token, state)
        assert await rows.read("a/objects/b") == Row(state)
        assert await log.now_ms() > 0 and rows.owner.startswith("postgresql/")


async def test_a_store_keeps_its_id(postgres: PostgresServer) -> None:
    settings = settings_of(postgres, await made_schema(postgres))
    owners = set()
    for _ in range(2):
        async with open_postgres(settings, RUNTIME) as (rows, _):
            owners.add(rows.owner)
    async with open_postgres(settings_of(postgres, await made_schema(postgres)), RUNTIME) as (rows, _):
        assert len(owners) == 1 and rows.owner not in owners


@pytest.mark.parametrize(("version", "sentence"), [(VERSION + 1, "install a newer tiered"), (VERSION - 1, "tiered provision")])
async def test_a_schema_of_another_version_is_refused_with_what_to_do(postgres: PostgresServer, version: int, sentence: str) -> None:
    settings = settings_of(postgres, await made_schema(postgres))
    await ask(postgres, f"UPDATE {settings.schema_name}.schema_version SET version = {version}")
    with pytest.raises(ConfigurationError, match=sentence):
        async with open_postgres(settings, RUNTIME):
            pass
    assert any(sentence in problem for problem in problems(await inspect_postgres(settings, RUNTIME)))


async def everything(server: PostgresServer, schema: str) -> list[str]:
    tables = await ask(server, "SELECT table_name FROM information_schema.tables WHERE table_schema = $1 ORDER BY 1", schema)
    return [str(row) for table, in tables for row in await ask(server, f"SELECT * FROM {schema}.{table} ORDER BY 1")]


async def test_a_store_that_is_open_while_the_schema_is_migrated_is_refused_and_told_why(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted version that keeps the rule: whatever an older version writes with has another name or signature."""
    settings = settings_of(postgres, await made_schema(postgres))
    renamed = [
        *(f"ALTER TABLE {{schema}}.{table} RENAME TO {table}_2" for table in TABLES if table != "schema_version"),
        "DROP FUNCTION {schema}.change_row", "DROP FUNCTION {schema}.settle_row", "DROP FUNCTION {schema}.touch_row",
        "DROP FUNCTION {schema}.collect_rows", "DROP FUNCTION {schema}.collect_marks",
    ]  # fmt: skip
    async with open_postgres(settings, RUNTIME) as (rows, log):
        token = ChangeId.new(RUNTIME)
        assert await rows.put_inline("a/objects/b", token, Inline(Metadata(size=1), b"x", token))
        entry = await log.record(Change(token, "a/objects/b", None, "a/objects/b/c"), "me")
        monkeypatch.setattr(provision, "MIGRATIONS", (*MIGRATIONS, renamed))
        monkeypatch.setattr(provision, "VERSION", VERSION + 1)
        made = await provision_postgres(settings, RUNTIME)
        assert of_kind(made, NoticeKind.DONE) == [f"migrated to schema {settings.schema_name} in version {VERSION + 1}"]
        before = await everything(postgres, settings.schema_name)
        assert len(before) == 3
        later = ChangeId.new(RUNTIME)
        state = Inline(Metadata(size=1), b"y", later)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: rows.put_inline("a/objects/b", later, state), lambda: rows.settle("a/objects/b", later),
            lambda: rows.swap("a/objects/b", later, None, state, RUNTIME.boot_time() + 60), lambda: rows.read("a/objects/b"),
            lambda: log.record(Change(later, "a/objects/b", None, None), "me"), lambda: log.renew([entry]), lambda: log.forget(entry),
            lambda: log.claim(entry, "other"), lambda: log.swap_note("a", None, b"{}"), lambda: log.write_values({"a": b"b"}, 1),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(ConfigurationError, match="install a newer tiered"):
                await call()
        assert await everything(postgres, settings.schema_name) == before


async def test_roles_get_the_least_rights_with_which_they_can_work(postgres: PostgresServer) -> None:
    settings = settings_of(postgres, new_schema())
    writer, reader = f"w_{settings.schema_name[-20:]}", f"r_{settings.schema_name[-20:]}"
    assert await provision_postgres(settings, RUNTIME)
    missing = await provision_postgres(settings, RUNTIME, writer=writer)
    assert any(f"there is no role {writer}" in problem for problem in problems(missing))
    for role in (writer, reader):
        await ask(postgres, f"CREATE ROLE {role} LOGIN")
    granted = await provision_postgres(settings, RUNTIME, writer=writer, reader=reader)
    assert len(of_kind(granted, NoticeKind.DONE)) == 2
    assert of_kind(await provision_postgres(settings, RUNTIME, writer=writer, reader=reader), NoticeKind.DONE) == []
    as_writer, as_reader = (
        PostgresSettings.model_validate({"dsn": postgres.dsn().replace("tiered@", f"{role}@"), "schema_name": settings.schema_name})
        for role in (writer, reader)
    )
    token = ChangeId.new(RUNTIME)
    async with open_postgres(as_writer, RUNTIME) as (rows, log):
        assert await rows.swap("a/objects/b", token, None, None, RUNTIME.boot_time() + 60)
        assert await rows.collect(10) == 0 == await log.collect(10)
    async with open_postgres(as_reader, RUNTIME, writes=False) as (rows, log):
        assert token in (await rows.read("a/objects/b", marks=token)).won
        assert (await log.entries("", 10)).entries == ()
        assert await rows.boundaries(3) == []
        with pytest.raises(ConfigurationError, match="grant"):
            await rows.settle("a/objects/b", token)
    notes = of_kind(await inspect_postgres(as_reader, RUNTIME), NoticeKind.NOTE)
    assert any("may only read" in note and "GRANT INSERT" in note for note in notes)
    owned = await ask(postgres, "SELECT has_table_privilege($1, $2 || '.schema_version', 'UPDATE')", writer, settings.schema_name)
    assert owned[0][0] is False, "a service cannot change the schema"


async def test_a_role_without_any_right_is_told_what_to_grant(postgres: PostgresServer) -> None:
    schema = await made_schema(postgres)
    role = f"n_{schema[-20:]}"
    await ask(postgres, f"CREATE ROLE {role} LOGIN")
    settings = PostgresSettings.model_validate({"dsn": postgres.dsn().replace("tiered@", f"{role}@"), "schema_name": schema})
    with pytest.raises(ConfigurationError, match="grant"):
        async with open_postgres(settings, RUNTIME):
            pass


async def test_what_a_crash_or_a_failover_would_lose_is_said(postgres: PostgresServer) -> None:
    settings = settings_of(postgres, await made_schema(postgres), connections_max=200)
    found = await inspect_postgres(settings, RUNTIME)
    assert any(FSYNC in problem for problem in problems(found)), "the server of the tests has it off"
    assert any("autovacuum is off" in problem for problem in problems(found))
    notes = of_kind(found, NoticeKind.NOTE)
    assert any("may lack writes that were acknowledged" in note for note in notes)
    assert any("data_checksums is off" in note for note in notes)
    assert any("postgres.connections_max is 200" in note for note in notes)
    assert any("may read and write" in sentence for sentence in of_kind(found, NoticeKind.OK))


async def test_a_server_that_does_not_answer_is_a_problem_and_no_error_shows_the_password() -> None:
    dsn = f"postgresql://me:s3cret@127.0.0.1:{free_port()}/db?sslmode=disable"
    settings = PostgresSettings.model_validate({"dsn": dsn})
    assert settings.address.endswith("/db/tiered") and "s3cret" not in repr(settings) + settings.address
    [problem] = problems(await inspect_postgres(settings, RUNTIME))
    with pytest.raises(UnavailableError) as failed:
        async with open_postgres(settings, RUNTIME):
            pass
    assert "127.0.0.1" in problem and "s3cret" not in problem + str(failed.value)


async def test_a_database_in_another_encoding_is_refused(postgres: PostgresServer) -> None:
    name = f"latin_{new_schema()[-12:]}"
    await ask(postgres, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING LATIN1 LOCALE 'C'")
    settings = PostgresSettings.model_validate({"dsn": postgres.dsn(name)})
    with pytest.raises(ConfigurationError, match="UTF8"):
        async with open_postgres(settings, RUNTIME):
            pass


async def test_all_tables_are_in_the_list_of_rights(postgres: PostgresServer) -> None:
    schema = await made_schema(postgres)
    there = {row[0] for row in await ask(postgres, "SELECT tablename::text FROM pg_tables WHERE schemaname = $1", schema)}
    assert there == set(TABLES)


@pytest.mark.parametrize(("fault", "sentence"), [
    ("DROP TABLE {schema}.marks", "table marks of schema {schema} is missing"),
    ("ALTER TABLE {schema}.rows ALTER COLUMN crc TYPE text", "table rows of schema {schema} has the columns"),
    ("ALTER TABLE {schema}.entries DROP COLUMN state", "table entries of schema {schema} has the columns"),
    ("ALTER TABLE {schema}.marks SET UNLOGGED", "is empty after a crash"),
    ("ALTER TABLE {schema}.rows ENABLE ROW LEVEL SECURITY", "may hide rows"),
    ("DROP INDEX {schema}.log_values_by_key", "index log_values_by_key"),
    ("ALTER TABLE {schema}.entries DROP CONSTRAINT entries_pkey", "index entries_pkey"),
])  # fmt: skip
async def test_a_schema_that_somebody_has_changed_is_a_problem_that_names_it(postgres: PostgresServer, fault: str, sentence: str) -> None:
    schema = await made_schema(postgres)
    assert [each for each in problems(await inspect_postgres(settings_of(postgres, schema), RUNTIME)) if schema in each] == []
    await ask(postgres, fault.format(schema=schema))
    found = [each for each in problems(await inspect_postgres(settings_of(postgres, schema), RUNTIME)) if schema in each]
    assert sentence.format(schema=schema) in found[0] and not any("GRANT" in each for each in found)


@pytest.mark.parametrize("fault", [
    "DROP FUNCTION {schema}.touch_row",
    "CREATE OR REPLACE FUNCTION {schema}.collect_marks(p_limit integer) RETURNS integer LANGUAGE plpgsql AS"
    " $$ BEGIN DELETE FROM {schema}.marks; RETURN 0; END $$", "ALTER FUNCTION {schema}.settle_row STABLE",
    "CREATE OR REPLACE FUNCTION {schema}.clock_ms() RETURNS bigint LANGUAGE sql AS $$ SELECT 7::bigint $$",
])  # fmt: skip
async def test_a_function_that_is_missing_or_was_changed_is_made_anew(postgres: PostgresServer, fault: str) -> None:
    settings = settings_of(postgres, await made_schema(postgres))
    await ask(postgres, fault.format(schema=settings.schema_name))
    found = [each for each in problems(await inspect_postgres(settings, RUNTIME)) if settings.schema_name in each]
    assert len(found) == 1 and "run 'tiered provision'" in found[0]
    assert any("mended" in each for each in of_kind(await provision_postgres(settings, RUNTIME), NoticeKind.DONE))
    assert [each for each in problems(await inspect_postgres(settings, RUNTIME)) if settings.schema_name in each] == []


@pytest.mark.parametrize("before", ["", "log_values REPLICA IDENTITY DEFAULT", "marks REPLICA IDENTITY NOTHING"])
async def test_a_publication_of_all_tables_takes_no_write_away(postgres: PostgresServer, before: str) -> None:
    settings = settings_of(postgres, schema := await made_schema(postgres))
    publication = new_schema()
    if before:
        await ask(postgres, f"ALTER TABLE {schema}.{before}")
        [found] = [each for each in problems(await inspect_postgres(settings, RUNTIME)) if schema in each]
        assert "a publication" in found and "run 'tiered provision'" in found
        await provision_postgres(settings, RUNTIME)
    assert not [each for each in problems(await inspect_postgres(settings, RUNTIME)) if schema in each]
    await ask(postgres, f"CREATE PUBLICATION {publication} FOR ALL TABLES")
    try:
        async with open_postgres(settings, RUNTIME) as (rows, log):
            token = ChangeId.new(RUNTIME)
            assert await rows.put_inline("n/objects/k", token, Inline(Metadata(size=0), b"", token))
            assert await rows.settle("n/objects/k", ChangeId.new(RUNTIME)) is False and await rows.collect(9) == 0
            await log.forget(await log.record(Change(token, "n/objects/k"), "me"))
            for version, value in enumerate((b"a", b"b", None), 1):
                await log.write_values({"a": value}, version)
            await log.erase_values(["a"])
            assert await log.swap_note("n", None, b"a") and await log.swap_note("n", b"a", b"b")
            assert await log.announce("me") <= await log.announce("me") and await log.collect(9) == 0
    finally:
        await ask(postgres, f"DROP PUBLICATION {publication}")


async def test_a_trigger_that_comes_after_the_write_is_a_note_and_one_that_raises_changes_nothing(postgres: PostgresServer) -> None:
    settings = settings_of(postgres, schema := await made_schema(postgres))
    raises = "BEGIN RAISE EXCEPTION 'not today' USING ERRCODE = 'P0001'; END"
    await ask(postgres, f"CREATE FUNCTION {schema}.no() RETURNS trigger LANGUAGE plpgsql AS $$ {raises} $$")
    await ask(postgres, f"CREATE TRIGGER no AFTER INSERT ON {schema}.rows FOR EACH ROW EXECUTE FUNCTION {schema}.no()")
    notes = of_kind(await inspect_postgres(settings, RUNTIME), NoticeKind.NOTE)
    assert any(f"no on table rows of schema {schema}" in note for note in notes)
    async with open_postgres(settings, RUNTIME) as (rows, _):
        token = ChangeId.new(RUNTIME)
        with pytest.raises(UnavailableError, match="not today"):
            await rows.put_inline("n/objects/k", token, Inline(Metadata(size=0), b"", token))
        assert await rows.read("n/objects/k") == Row(None)


@asynccontextmanager
async def no_public_execute(server: PostgresServer) -> AsyncIterator[tuple[str, str]]:
    """A database in which functions are only for those whom they are given to, as some operators set it; and a role."""
    database, role = f"d{new_schema()}", f"e{new_schema()}"
    taken = ("pg_control_system()", "pg_advisory_xact_lock(bigint)", "sha256(bytea)")
    await ask(server, f"CREATE DATABASE {database}")
    await ask(server, f"CREATE ROLE {role} LOGIN")
    owner = await asyncpg.connect(server.dsn(database))
    try:
        await owner.execute("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
        for each in taken:
            await owner.execute(f"REVOKE EXECUTE ON FUNCTION pg_catalog.{each} FROM PUBLIC")
        yield database, role
    finally:
        await owner.close()
        await ask(server, f"DROP DATABASE {database} WITH (FORCE)")
        await ask(server, f"DROP ROLE {role}")


async def test_where_functions_are_not_for_everybody_they_are_granted_and_looked_at(postgres: PostgresServer) -> None:
    async with no_public_execute(postgres) as (database, role):
        settings = settings_of(postgres, dsn=postgres.dsn(database))
        as_role = settings_of(postgres, dsn=postgres.dsn(database).replace(f"{USER}@", f"{role}@"))
        await provision_postgres(settings, RUNTIME)
        owner = await asyncpg.connect(postgres.dsn(database))
        try:
            # as an earlier release granted it
            await owner.execute(f"GRANT USAGE ON SCHEMA tiered TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA tiered TO {role}")
            [problem] = [each for each in problems(await inspect_postgres(as_role, RUNTIME)) if role in each]
            for name in ("change_row()", "clock_ms()", "pg_control_system()", "pg_advisory_xact_lock()", "sha256()"):
                assert name in problem
            with pytest.raises(ConfigurationError, match="tiered check"):
                async with open_postgres(as_role, RUNTIME):
                    pass
            await owner.execute(problem.partition('run "')[2][:-1])
            assert [each for each in problems(await inspect_postgres(as_role, RUNTIME)) if role in each] == []
            await owner.execute(f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA tiered FROM {role}")
            await owner.execute(f"REVOKE EXECUTE ON FUNCTION pg_catalog.sha256(bytea) FROM {role}")
            made = await provision_postgres(settings, RUNTIME, writer=role)
            assert len(of_kind(made, NoticeKind.DONE)) == 1 and [each for each in problems(made) if role in each] == []
        finally:
            await owner.close()
        async with open_postgres(as_role, RUNTIME) as (rows, log):
            token = ChangeId.new(RUNTIME)
            assert await rows.put_inline("a/objects/b", token, Inline(Metadata(size=1), b"x", token))
            await log.forget(await log.record(Change(token, "a/objects/b"), "me"))
            await log.write_values({"a": b"b"}, 1)
            assert await log.read_values(["a"]) == {"a": b"b"} and await rows.collect(10) == 0


async def test_a_right_that_whoever_provisions_may_not_give_is_told_and_not_called_granted(postgres: PostgresServer) -> None:
    async with no_public_execute(postgres) as (database, role):
        settings = settings_of(postgres, dsn=postgres.dsn(database))
        owner = f"o{role}"
        await ask(postgres, f"CREATE ROLE {owner} LOGIN")
        await ask(postgres, f"GRANT ALL ON DATABASE {database} TO {owner}")
        await provision_postgres(settings, RUNTIME)
        superuser = await asyncpg.connect(postgres.dsn(database))
        try:
            await superuser.execute(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pg_catalog TO {owner}")
            await superuser.execute("DROP SCHEMA tiered CASCADE")
            as_owner = settings_of(postgres, dsn=postgres.dsn(database).replace(f"{USER}@", f"{owner}@"))
            made = await provision_postgres(as_owner, RUNTIME, writer=role)
            [problem] = [each for each in problems(made) if role in each]
            assert "as a superuser" in problem and "pg_control_system" in problem
            assert not any("granted" in each for each in of_kind(made, NoticeKind.DONE))
        finally:
            await superuser.execute(f"DROP OWNED BY {owner} CASCADE")
            await superuser.close()
            await ask(postgres, f"DROP OWNED BY {owner} CASCADE")
            await ask(postgres, f"DROP ROLE {owner}")


@pytest.mark.parametrize("writes", [True, False])
async def test_where_not_everybody_may_connect_a_role_that_is_named_gets_that_too(postgres: PostgresServer, writes: bool) -> None:
    role, database = new_schema(), new_schema()
    await ask(postgres, f"CREATE ROLE {role} LOGIN")
    await ask(postgres, f"CREATE DATABASE {database} TEMPLATE template0")
    await ask(postgres, f"REVOKE CONNECT ON DATABASE {database} FROM PUBLIC")
    try:
        settings = settings_of(postgres, dsn=postgres.dsn(database))
        mine = settings_of(postgres, dsn=postgres.dsn(database).replace(f"{USER}@", f"{role}@"))
        assert any("42501" in each and "--grant-writer" in each for each in problems(await inspect_postgres(mine, RUNTIME)))
        await provision_postgres(settings, RUNTIME)
        for done in (True, False):
            made = await provision_postgres(settings, RUNTIME, writer=role if writes else None, reader=role)
            assert any("granted" in each for each in of_kind(made, NoticeKind.DONE)) is done
            async with open_postgres(mine, RUNTIME, writes=writes) as (rows, _):
                assert await rows.read("n/objects/k") == Row(None)
    finally:
        await ask(postgres, f"DROP DATABASE {database} (FORCE)")
        await ask(postgres, f"DROP ROLE {role}")


async def test_a_reader_that_is_told_to_be_read_only_says_nothing_of_who_writes(postgres: PostgresServer) -> None:
    settings = settings_of(postgres, await made_schema(postgres))
    role = new_schema()
    await ask(postgres, f"CREATE ROLE {role} LOGIN")
    mine = settings_of(postgres, settings.schema_name, dsn=postgres.dsn().replace(f"{USER}@", f"{role}@"))
    try:
        await ask(postgres, f"ALTER ROLE {role} SET default_transaction_read_only = on")
        for writes in (False, True):
            await provision_postgres(settings, RUNTIME, writer=role if writes else None, reader=role)
            async with open_postgres(mine, RUNTIME, writes=False) as (rows, _):
                assert ((await rows.refuses_writes()) is not None) == writes
            assert any("read-only" in each for each in problems(await inspect_postgres(mine, RUNTIME))) == writes
    finally:
        await ask(postgres, f"DROP OWNED BY {role}")
        await ask(postgres, f"DROP ROLE {role}")


@pytest.mark.parametrize("where", ["ROLE {role}", "ROLE {role} IN DATABASE {database}", "DATABASE {database}", "the options"])
async def test_a_role_whose_transactions_are_read_only_is_a_problem(postgres: PostgresServer, where: str) -> None:
    role, database = new_schema(), new_schema()
    await ask(postgres, f"CREATE ROLE {role} LOGIN SUPERUSER")
    await ask(postgres, f"CREATE DATABASE {database} TEMPLATE template0")
    try:
        dsn = postgres.dsn(database).replace(f"{USER}@", f"{role}@")
        await provision_postgres(settings_of(postgres, dsn=dsn), RUNTIME)
        if (where := where.format(role=f'"{role}"', database=f'"{database}"')).startswith("the"):
            dsn += "?options=-c%20default_transaction_read_only%3Don"
        else:
            await ask(postgres, f"ALTER {where} SET default_transaction_read_only = on")
        found = problems(await inspect_postgres(settings_of(postgres, dsn=dsn), RUNTIME))[-1]
        assert f"each transaction of role {role} is read-only" in found and where in found, found
        if not where.startswith("the"):
            assert found.endswith(f"run ALTER {where} RESET default_transaction_read_only"), found
    finally:
        await ask(postgres, f"DROP DATABASE {database} (FORCE)")
        await ask(postgres, f"DROP ROLE {role}")
