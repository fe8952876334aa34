"""Whose session: what a role, a database, a pooler or an owner of tables may set changes no answer, or is refused.

The tables are `VALUES` (beside them, each setting that the server knows), `PLANTED` and `DONE_TO_TABLES`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg
import pytest

from changelog.base.errors import ConfigurationError, TieredError
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId, Entry
from changelog.lease import Renewal
from changelog.log import KeyRange
from changelog.postgres.log import PostgresChangeLog
from changelog.postgres.session import SEARCH_PATH, asked
from emulators.postgres.pooler import pooled
from emulators.postgres.server import PostgresServer
from tests.given.fresh_schema import ask, made_schema, settings_of
from tests.given.repository import ROOT
from tiered.metadata import Metadata
from tiered.object_id import blob_name
from tiered.postgres.open import open_postgres
from tiered.postgres.rows import PostgresRows
from tiered.provision.findings import problems
from tiered.provision.postgres import inspect_postgres, provision_postgres
from tiered.services.backends import Inline, Still, Tombstone
from tiered.settings import PostgresSettings

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
RUNTIME = SystemRuntime()
PATIENCE_S = 60.0
"""With all settings of a developer of PostgreSQL at once, an answer took more than 10 s on a busy machine."""


def new() -> ChangeId:
    return ChangeId.new(RUNTIME)


async def each_call(rows: PostgresRows, log: PostgresChangeLog) -> None:
    """Each statement of ours once, and what it answers. It leaves nothing, so that it can be repeated."""
    first, second, third = new(), new(), new()
    path = f"n/objects/{first}"
    inline, tombstone = Inline(Metadata(size=3), b"\\x'", first), Tombstone(blob_name(path, second), None, 2**62, second)
    deadline_s = RUNTIME.boot_time() + 60
    assert await rows.put_inline(path, first, inline) and (await rows.read(path)).state == inline
    assert await rows.reserve(path, second, inline) and not await rows.settle(path, third)
    assert await rows.swap(path, second, None, tombstone, deadline_s, Still(inline))
    assert not await rows.swap(path, third, tombstone.target, None, deadline_s), "it was refused"
    assert not await rows.put_inline(path, third, inline), "there is a tombstone"
    assert await rows.settle(path, second) and await rows.touch(path, tombstone, 2**62 + 10**9)
    seen = await rows.read(path, marks=True)
    assert seen.state is not None and seen.state.token == second and seen.won == {second} and seen.refused == {third}
    assert second in (await rows.read(path, marks=second)).won
    assert [row.path for row in (await rows.scan("n/", b"", 10)).rows] == [path]
    assert [each.target for each in (await rows.redirects(b"", None, 10)).redirects] == [tombstone.target]
    assert len((await rows.redirects_at([path.encode()])).redirects) == 1 and await rows.boundaries(1) == []
    assert await rows.swap(path, new(), tombstone.target, None, deadline_s) and (await rows.read(path)).state is None
    assert await rows.delete_inline(path, new()) and await rows.collect(10) == 0 == await log.collect(10)

    entry = await log.record(Change(first, path), "me")
    assert await log.record(Change(first, path), "me") == entry and await log.renew([entry]) == [Renewal.RENEWED]
    now_ms, everything = await log.now_ms(), KeyRange("", "￿")
    assert entry in (await log.stale(everything, now_ms + 10**9, 1, 10)).entries
    claimed = await log.claim(entry, "you")
    assert claimed is not None and await log.claim(entry, "me") is None and await log.read(first) == claimed
    assert await log.park(claimed, "it's \\ \"so\"")
    [stuck] = (await log.entries("", 10, stuck_only=True)).entries
    assert stuck.stuck is not None and stuck.stuck.error == "it's \\ \"so\"" and await log.retry(stuck)
    [again] = (await log.entries("", 10)).entries
    assert isinstance(again, Entry) and again.stuck is None
    assert await log.keep(again) and len((await log.kept(everything, 10)).entries) == 1
    await log.forget(entry)
    assert await log.read(first) is None
    assert await log.open(entry) and not await log.open(entry) and await log.amend(entry, entry.claimed_by("x"))
    await log.forget(entry)
    await log.announce("me")
    assert "me" in dict(await log.presences())
    assert await log.swap_note(path, None, b"a") and await log.swap_note(path, b"a", b"b") and await log.read_note(path) == b"b"
    await log.write_values({"a": b"1", "b": None}, 1)
    assert await log.read_values(["a", "b"]) == {"a": b"1"} == (await log.scan_values("", "z", 9)).values
    await log.erase_values(["a", "b"])
    assert await log.read_values(["a"]) == {}


async def outcome(settings: PostgresSettings) -> str:
    """Empty: all was right. Otherwise what refused it."""
    try:
        async with open_postgres(settings, RUNTIME) as (rows, log):
            await each_call(rows, log)
    except TieredError as error:
        return f"{type(error).__name__}: {error}"
    return ""


async def said_by_check(settings: PostgresSettings) -> str:
    return "\n".join(problems(await inspect_postgres(settings, RUNTIME)))


@asynccontextmanager
async def other_database(server: PostgresServer) -> AsyncIterator[str]:
    """A database that a test may spoil. It is removed at the end."""
    name = f"d{new().replace('-', '')}"
    await ask(server, f"CREATE DATABASE {name}")
    try:
        yield name
    finally:
        await ask(server, f"DROP DATABASE {name} WITH (FORCE)")


@asynccontextmanager
async def role(server: PostgresServer, schema: str, words: str = "") -> AsyncIterator[str]:
    """A role that may write, with other words than a superuser's."""
    name = f"r{new().replace('-', '')}"
    await ask(server, f"CREATE ROLE {name} LOGIN {words}")
    await provision_postgres(settings_of(server, schema), RUNTIME, writer=name)
    try:
        yield name
    finally:
        await ask(server, f"DROP OWNED BY {name}")
        await ask(server, f"DROP ROLE {name}")


def as_role(server: PostgresServer, name: str) -> str:
    return server.dsn().replace("tiered@", f"{name}@")


# --- settings ------------------------------------------------------------------------------------

READ_ONLY, DAMAGE = "25006", "would count as absent"
REFUSED = {"default_transaction_read_only": READ_ONLY, "zero_damaged_pages": DAMAGE, "ignore_checksum_failure": DAMAGE}
"""What is refused, and with which words. All else changes no answer."""


async def refused_by(server: PostgresServer) -> dict[str, str]:
    """From 18 on, PostgreSQL finds the language of its functions by this path, which a superuser alone may set."""
    [[version]] = await ask(server, "SELECT current_setting('server_version_num')::int")
    return REFUSED | ({"dynamic_library_path": 'could not access file "plpgsql"'} if version >= 180000 else {})


VALUES: dict[str, Sequence[str]] = {
    "search_path": ("public, pg_catalog", "", "nowhere"), "row_security": ("on",), "synchronous_commit": ("off", "local", "remote_write"),
    "default_transaction_isolation": ("serializable", "repeatable read"), "default_transaction_read_only": ("on",),
    "quote_all_identifiers": ("on",), "transform_null_equals": ("on",), "standard_conforming_strings": ("off",),
    "backslash_quote": ("on", "off"), "array_nulls": ("off",), "bytea_output": ("escape",), "DateStyle": ("German", "SQL, DMY"),
    "IntervalStyle": ("sql_standard",), "TimeZone": ("Pacific/Kiritimati",), "client_encoding": ("LATIN1", "SQL_ASCII"),
    "lc_messages": ("C.UTF-8",), "xmloption": ("document",), "extra_float_digits": ("-15",), "exit_on_error": ("on",),
    "statement_timeout": ("1",), "lock_timeout": ("1",), "default_tablespace": ("pg_default",), "temp_tablespaces": ("pg_default",),
    "default_table_access_method": ("heap",), "default_text_search_config": ("pg_catalog.german",), "timezone_abbreviations": ("India",),
    "session_replication_role": ("replica",), "zero_damaged_pages": ("on",), "ignore_checksum_failure": ("on",), "role": (),
    "plpgsql.variable_conflict": ("use_column", "use_variable"), "plpgsql.extra_errors": ("all",), "check_function_bodies": ("off",),
    "session_preload_libraries": (), "local_preload_libraries": (),  # code of whoever may copy files to the server
    "dynamic_library_path": ("/nowhere",), "restrict_nonsystem_relation_kind": ("view, foreign-table",),
}  # fmt: skip
"""Values of settings that could change what a statement means, each tried by itself. Of all others, see `others`."""


async def others(server: PostgresServer) -> dict[str, list[str]]:
    """Each other setting that a role may have, with the values that differ most from its default."""
    known = """SELECT name, vartype, boot_val, min_val, max_val, enumvals FROM pg_settings WHERE context IN ('user', 'superuser')
     AND name NOT LIKE 'transaction_%' AND name <> 'log_statement_stats'"""
    found: dict[str, list[str]] = {}
    for name, kind, default, least, most, choices in await ask(server, known):
        match kind:
            case "bool":
                values = ["off" if default == "on" else "on"]
            case "enum":
                values = [each for each in choices if each != default]
            case "string":
                values = [""]
            case _:
                values = [least, "7680" if name == "max_stack_depth" else most]
        if name not in VALUES:
            found[name] = values
    return found


def rounds_of(values: Mapping[str, Sequence[str]], few: int, refused: Mapping[str, str]) -> list[dict[str, str]]:
    """All settings at once, with up to `few` values of each. What is refused is a round by itself."""
    together = {name: [*each[: few - 1], each[-1]] for name, each in values.items() if each and name not in refused}
    rounds = [{name: each[number % len(each)] for name, each in together.items()} for number in range(few)]
    return [*rounds, *({name: value} for name in refused for value in values.get(name, ()))]


async def all_rounds(server: PostgresServer, alone: bool) -> list[dict[str, str]]:
    """What the tests set: each value of each setting by itself, or in a few rounds all of them."""
    rest = await others(server)
    if alone:
        return [{name: value} for name, values in (VALUES | rest).items() for value in values]
    refused = await refused_by(server)
    return rounds_of(VALUES, 3, refused) + rounds_of(rest, 2, refused)


def set_to(name: str, value: str) -> str:
    return f"SET {name} = {value}" if name == "search_path" and value else f"SET {name} = '{value}'"


async def assert_right(
    values: Mapping[str, str], settings: PostgresSettings, problems_before: str, refusals: Mapping[str, str]
) -> None:
    """All answers are right, and `check` says what it said before; or both are told what is wrong."""
    expected = next((words for name, words in refusals.items() if name in values), "")
    refused, checked = await outcome(settings), await said_by_check(settings)
    assert (expected in refused) if expected else not refused, f"{values}: {refused}"
    assert (checked != problems_before) if expected else (checked == problems_before), f"{values}: {checked}"


async def by_role(server: PostgresServer, alone: bool) -> None:
    schema = await made_schema(server)
    known = {row[0] for row in await ask(server, "SELECT name FROM pg_settings")}
    async with role(server, schema) as name:
        settings = settings_of(server, schema, dsn=as_role(server, name), timeout_s=PATIENCE_S)
        before, refusals = await said_by_check(settings), await refused_by(server)
        for values in await all_rounds(server, alone):
            altered = [f"ALTER ROLE {name} {set_to(*each)};" for each in values.items() if "." in each[0] or each[0] in known]
            await ask(server, f"DO $do$ BEGIN {' '.join(altered)} END $do$")
            await assert_right(values, settings, before, refusals)
            await ask(server, f"ALTER ROLE {name} RESET ALL")


async def by_another_client(server: PostgresServer, pooler: str, alone: bool) -> None:
    settings = settings_of(server, await made_schema(server), dsn=pooler, prepared=False, timeout_s=PATIENCE_S)
    known = {row[0] for row in await ask(server, "SELECT name FROM pg_settings")}
    before, refusals = await said_by_check(settings), REFUSED  # the session has loaded the language by then, and keeps it
    leaving = await asyncpg.connect(pooler, statement_cache_size=0)
    try:
        for values in await all_rounds(server, alone):
            for setting, value in values.items():
                # One millisecond ends what would set it anew: then nothing is answered, and nothing happened.
                if ("." in setting or setting in known) and setting != "statement_timeout":
                    await leaving.execute(set_to(setting, value))
            await assert_right(values, settings, before, refusals)
            await leaving.execute("DISCARD ALL")
    finally:
        await leaving.close()


async def test_what_a_role_sets_changes_no_answer_or_is_refused(postgres: PostgresServer) -> None:
    await by_role(postgres, alone=False)


async def test_what_another_client_of_a_pooler_leaves_in_a_session_changes_no_answer_or_is_refused(
    postgres: PostgresServer, pooler: str
) -> None:
    await by_another_client(postgres, pooler, alone=False)


@pytest.mark.night
async def test_each_setting_that_the_server_knows_changes_no_answer_by_itself(postgres: PostgresServer, pooler: str) -> None:
    await by_role(postgres, alone=True)
    await by_another_client(postgres, pooler, alone=True)


@pytest.fixture
def pooler(postgres: PostgresServer) -> Iterator[str]:
    """The DSN of a pooler that has one session for all, as a superuser."""
    with pooled(postgres, 1) as port:
        yield postgres.dsn(host_port=f"127.0.0.1:{port}")


async def test_a_pooler_that_drops_what_is_asked_for_is_refused(postgres: PostgresServer) -> None:
    schema = await made_schema(postgres)
    with pooled(postgres, choices={"ignore_startup_parameters": ", ".join(asked(1))}) as port:
        settings = settings_of(postgres, schema, dsn=postgres.dsn(host_port=f"127.0.0.1:{port}"))
        assert "asked for" in await outcome(settings) and "asked for" in await said_by_check(settings)
        assert not await outcome(settings.model_copy(update={"prepared": False}))


# --- what is planted in other schemas ------------------------------------------------------------

SQL_IN = ("changelog/postgres", "tiered/postgres", "tiered/provision")
TYPES = ("bytea", "text", "bigint", "integer", "smallint", "boolean", "uuid", "name", "numeric", "oid", '"char"', "bytea[]", "anyelement")
BODY = "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'planted'; END $$"


def named_in_our_sql() -> tuple[set[str], set[str], set[str]]:
    """Words before a parenthesis, operators, and words after `::`, in all texts of the modules that send SQL."""
    texts = [
        node.value
        for folder in SQL_IN
        for path in (ROOT / folder).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    functions = {name for text in texts for name in re.findall(r"([a-z_0-9]+)\(", text)}
    operators = {name for text in texts for name in re.findall(r"[-+*/<>=~!@#%^&|]+", text)} | {"~~", "=", "<>", ">=", "<="}
    return functions, operators, {name for text in texts for name in re.findall(r"::(?:pg_catalog\.)?([a-z_0-9]+)", text)} | {"record"}


async def plant(server: PostgresServer, database: str) -> None:
    """Functions, operators and types of `public` that raise, and that PostgreSQL would prefer to its own."""
    functions, operators, types = named_in_our_sql()
    assert {"substr", "concat_ws", "unnest", "count"} <= functions and {"||", "<", "-", "*"} <= operators and {"text", "bytea"} <= types
    own = """SELECT DISTINCT proname::text, oidvectortypes(proargtypes), pg_get_function_result(oid) FROM pg_proc
     WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = ANY($1)"""
    connection = await asyncpg.connect(server.dsn(database))
    try:
        theirs = await connection.fetch(own, list(functions))
        script = [f"CREATE FUNCTION public.{name}({given}) RETURNS {back} {BODY}" for name, given, back in theirs]
        for name in {name for name, _, _ in theirs}:
            script += [f"CREATE FUNCTION public.{name}({one}) RETURNS {one} {BODY}" for one in TYPES]
            script += [f"CREATE FUNCTION public.{name}({one}, {other}) RETURNS {one} {BODY}" for one in TYPES for other in TYPES[:4]]
        script.append(f"CREATE FUNCTION public.concat_ws(text, uuid, bigint, name) RETURNS text {BODY}")
        for one in TYPES:
            for other in TYPES:
                script.append(f"CREATE FUNCTION public.planted({one}, {other}) RETURNS boolean {BODY}")
                sides = f"(LEFTARG = {one}, RIGHTARG = {other}, FUNCTION = public.planted)"
                script += [f"CREATE OPERATOR public.{each} {sides}" for each in operators]
        script += [f"CREATE DOMAIN public.{each} AS pg_catalog.text CHECK (public.planted(VALUE, VALUE))" for each in types]
        planting = """DO $do$ DECLARE each text; made integer := 0; BEGIN
            FOR each IN SELECT statement FROM pg_temp.script ORDER BY number LOOP
                BEGIN EXECUTE each; made := made + 1; EXCEPTION WHEN others THEN NULL; END;
            END LOOP; UPDATE pg_temp.script SET number = made; END $do$"""
        await connection.execute("CREATE TEMP TABLE script (number serial, statement text)")
        await connection.executemany("INSERT INTO pg_temp.script (statement) VALUES ($1)", [(each,) for each in script])
        await connection.execute(planting)
        made = await connection.fetchval("SELECT number FROM pg_temp.script LIMIT 1")
        assert made > 2000 and made > len(script) / 3, f"only {made} of {len(script)} could be planted"
    finally:
        await connection.close()


HOSTILE = "public, pg_catalog"
UNGUARDED = (
    "SELECT substr('a', 1)", "SELECT '\\x'::pg_catalog.bytea = '\\x'::pg_catalog.bytea", "SELECT 'a'::text",
    "SELECT concat_ws('/', gen_random_uuid(), 1::bigint, current_database())",
)  # fmt: skip


async def test_nothing_that_is_planted_in_another_schema_is_called_by_anything_of_ours(postgres: PostgresServer) -> None:
    """Opened by a superuser who prefers `public`, and through a pooler whose session does, with types in `pg_temp`."""
    async with role(postgres, await made_schema(postgres), "SUPERUSER") as name, other_database(postgres) as database:
        settings = settings_of(postgres, "first", dsn=as_role(postgres, name).replace("/postgres", f"/{database}"))
        await plant(postgres, database)
        await ask(postgres, f"ALTER DATABASE {database} SET search_path = {HOSTILE}")
        await ask(postgres, f"ALTER ROLE {name} SET search_path = {HOSTILE}")
        unguarded = await asyncpg.connect(settings.dsn.get_secret_value())
        for statement in UNGUARDED:
            with pytest.raises(asyncpg.RaiseError, match="planted"):
                await unguarded.fetch(statement)
        await unguarded.close()
        made = await provision_postgres(settings, RUNTIME, writer=name, reader=name)
        assert "planted" not in str(made) and "created schema first" in str(made)
        assert not await outcome(settings) and "planted" not in await said_by_check(settings)
        with pooled(postgres, 1, database) as port:
            pooler = settings_of(postgres, "first", dsn=postgres.dsn(database, f"127.0.0.1:{port}"), prepared=False)
            leaving = await asyncpg.connect(pooler.dsn.get_secret_value(), statement_cache_size=0)
            await leaving.execute(f"SET search_path = {HOSTILE}")
            for each in named_in_our_sql()[2]:
                await leaving.execute(f"CREATE TEMP TABLE {each} (x int)")
            assert not await outcome(pooler) and "planted" not in await said_by_check(pooler)
            await leaving.close()


async def test_what_looks_like_a_store_and_runs_what_its_owner_says_is_not_read(postgres: PostgresServer) -> None:
    schema = f"s{new().replace('-', '')}"
    settings = settings_of(postgres, schema)
    await ask(postgres, f"CREATE SCHEMA {schema}")
    await ask(postgres, f"CREATE FUNCTION {schema}.planted() RETURNS integer {BODY}")
    await ask(postgres, f"CREATE VIEW {schema}.schema_version AS SELECT {schema}.planted() AS version, gen_random_uuid() AS store")
    said = [await outcome(settings), await said_by_check(settings), str(await provision_postgres(settings, RUNTIME))]
    assert all("schema_version" in each and "is no table" in each and "planted" not in each for each in said), said


async def test_a_function_of_ours_refuses_a_session_that_is_not_ours(postgres: PostgresServer) -> None:
    schema, token, none = await made_schema(postgres), str(new()), "NULL, "
    calls = (
        f"{schema}.settle_row('a', '{token}', 'b')", f"{schema}.touch_row('a', 'b', NULL, NULL, 1)", f"{schema}.collect_rows(1)",
        f"{schema}.collect_marks(1)",
        f"{schema}.change_row('a', '{token}', NULL, 1, 1, true, 0::smallint, {none * 3} false, {none * 6} false)",
    )  # fmt: skip
    for path, isolation in ((SEARCH_PATH, "read committed"), (SEARCH_PATH, "repeatable read"), ("", "read committed")):
        session, is_ours = {"search_path": path, "default_transaction_isolation": isolation}, isolation == "read committed" and path
        connection = await asyncpg.connect(postgres.dsn(), server_settings=session)
        for call in calls:
            if is_ours:
                await connection.fetch(f"SELECT {call}")
            else:
                with pytest.raises(asyncpg.ActiveSQLTransactionError, match="READ COMMITTED only, and with search_path"):
                    await connection.fetch(f"SELECT {call}")
        await connection.close()


# --- what is done to the tables ------------------------------------------------------------------

TRIGGER = """CREATE FUNCTION {schema}.drops() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
 CREATE TRIGGER drops BEFORE INSERT ON {schema}.marks FOR EACH ROW EXECUTE FUNCTION {schema}.drops()"""
DONE_TO_TABLES = {
    "ALTER TABLE {schema}.rows ENABLE ROW LEVEL SECURITY": "row-level security of table rows",
    "ALTER TABLE {schema}.entries ENABLE ROW LEVEL SECURITY; ALTER TABLE {schema}.entries FORCE ROW LEVEL SECURITY": "of table entries",
    "CREATE RULE none AS ON INSERT TO {schema}.marks DO INSTEAD NOTHING": "rule none on table marks",
    TRIGGER: "trigger drops on table marks",
    "ALTER TABLE {schema}.rows ADD CONSTRAINT short CHECK (octet_length(path) < 3)": "constraint short on table rows",
    "ALTER TABLE {schema}.marks ADD CONSTRAINT row FOREIGN KEY (path) REFERENCES {schema}.rows NOT VALID": "constraint row on table",
    "CREATE UNIQUE INDEX once ON {schema}.presences (seen_ms)": "index once on table presences",
    "CREATE INDEX lowered ON {schema}.rows (lower(policy))": "index lowered on table rows",
    f"{TRIGGER}; ALTER TABLE {{schema}}.marks ENABLE REPLICA TRIGGER drops": "trigger drops on table marks",
    "CREATE TABLE {schema}.heir () INHERITS ({schema}.rows)": "count as those of table rows",
    "ALTER TABLE {schema}.notes SET UNLOGGED": "table notes of schema {schema} is empty after a crash",
    "CREATE FUNCTION {schema}.settle_row(text, uuid, bytea) RETURNS boolean LANGUAGE sql AS 'SELECT true'": "settle_row(text, uuid, bytea)",
    "ALTER FUNCTION {schema}.settle_row STRICT": "function settle_row", "ALTER FUNCTION {schema}.change_row SECURITY DEFINER": "change_row",
    "ALTER FUNCTION {schema}.change_row SET synchronous_commit = off": "function change_row of schema {schema} was changed",
    "DROP FUNCTION {schema}.collect_rows": "function collect_rows of schema {schema} is missing",
}  # fmt: skip


@pytest.mark.parametrize("done", DONE_TO_TABLES)
async def test_what_an_owner_does_so_that_a_write_or_a_read_means_something_else_is_refused(postgres: PostgresServer, done: str) -> None:
    schema = await made_schema(postgres)
    settings, words = settings_of(postgres, schema), DONE_TO_TABLES[done].format(schema=schema)
    assert not await outcome(settings)
    owner = await asyncpg.connect(postgres.dsn())
    await owner.execute(done.format(schema=schema))
    await owner.close()
    for writes in (True, False):
        with pytest.raises(ConfigurationError, match=re.escape(words)):
            async with open_postgres(settings, RUNTIME, writes=writes):
                pass
    assert words in await said_by_check(settings)
    made = str(await provision_postgres(settings, RUNTIME))
    assert ("mended" in made) == (not await outcome(settings)) == done.startswith(("ALTER FUNCTION", "DROP FUNCTION"))


@pytest.mark.parametrize("prepared", [True, False])
async def test_a_store_that_is_open_when_rows_are_hidden_says_so_in_each_call(postgres: PostgresServer, prepared: bool) -> None:
    schema = await made_schema(postgres)
    async with role(postgres, schema) as name, AsyncExitStack() as stack:
        dsn = as_role(postgres, name)
        if not prepared:
            port = stack.enter_context(pooled(postgres, 1, user=name))
            dsn = dsn.replace(f":{postgres.port}", f":{port}")
        rows, log = await stack.enter_async_context(open_postgres(settings_of(postgres, schema, dsn=dsn, prepared=prepared), RUNTIME))
        first, token = new(), new()
        path, deadline_s = f"n/objects/{first}", RUNTIME.boot_time() + 60
        seen = Inline(Metadata(size=1), b"x", first)
        assert await rows.put_inline(path, first, seen)
        entry = await log.record(Change(first, path), "me")
        calls: dict[str, Sequence[Callable[[], Awaitable[object]]]] = {
            "rows": [
                lambda: rows.read(path), lambda: rows.delete_inline(path, token), lambda: rows.settle(path, first),
                lambda: rows.swap(path, token, None, None, deadline_s), lambda: rows.reserve(path, token, seen),
                lambda: rows.scan("n/", b"", 9), lambda: rows.redirects(b"", None, 9), lambda: rows.collect(9),
                lambda: rows.touch(path, seen, 2**62),
            ],
            "marks": [lambda: rows.read(path, marks=True), lambda: rows.settle(path, token), lambda: rows.delete_inline(path, token)],
            "horizon": [lambda: rows.read(path, marks=token), lambda: rows.delete_inline(path, token)],
            "entries": [
                lambda: log.read(first), lambda: log.renew([entry]), lambda: log.claim(entry, "you"), lambda: log.forget(entry),
                lambda: log.entries("", 9), lambda: log.stale(KeyRange("", "z"), 0, 1, 9), lambda: log.record(Change(token, path), "me"),
            ],
            "notes": [lambda: log.read_note("a"), lambda: log.swap_note("a", None, b"a")],
            "log_values": [lambda: log.read_values(["a"]), lambda: log.write_values({"a": b"a"}, 1), lambda: log.scan_values("", "z", 9)],
            "presences": [log.presences, lambda: log.announce("me")],
        }  # fmt: skip
        for table, each in calls.items():
            await ask(postgres, f"ALTER TABLE {schema}.{table} ENABLE ROW LEVEL SECURITY")
            for call in each:
                with pytest.raises(ConfigurationError, match="row-level security"):
                    await call()
            await ask(postgres, f"ALTER TABLE {schema}.{table} DISABLE ROW LEVEL SECURITY")
            assert (await rows.read(path)).state == seen and await log.read(first) == entry, table
