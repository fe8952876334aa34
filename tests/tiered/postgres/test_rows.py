"""Rows in PostgreSQL: what is particular to them. What every backend must do is in `tests/contracts/`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

import anyio
import asyncpg
import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId, Entry
from emulators.postgres.server import PostgresServer
from tests.given.fresh_schema import ask, fresh_store, made_schema, settings_of
from tests.given.waiting import becomes
from tiered.metadata import NS_PER_MS, Metadata
from tiered.object_id import blob_name
from tiered.postgres import rows as rows_module
from tiered.postgres import schema as schema_module
from tiered.postgres.open import open_postgres
from tiered.postgres.rows import PostgresRows
from tiered.postgres.schema import MIGRATIONS, in_schema
from tiered.provision import postgres as provision_module
from tiered.provision.findings import NoticeKind
from tiered.provision.postgres import provision_postgres
from tiered.services.backends import Inline, Row, Tombstone, Vacant
from tiered.settings import PostgresSettings

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
RUNTIME = SystemRuntime()
PATH = "notes/org.1/objects/key"
Opened = tuple[PostgresServer, str, PostgresRows]


@pytest.fixture
async def opened(postgres: PostgresServer, anyio_backend: str) -> AsyncIterator[Opened]:
    schema = await made_schema(postgres)
    async with open_postgres(settings_of(postgres, schema), RUNTIME) as (rows, _):
        yield postgres, schema, rows


def new() -> ChangeId:
    return ChangeId.new(RUNTIME)


def inline(token: ChangeId, payload: bytes = b"payload", deadline_ns: int | None = None) -> Inline:
    return Inline(Metadata(time_expires_ns=deadline_ns, size=len(payload)), payload, token)


def tombstone(token: ChangeId, path: str = PATH, deadline_ns: int | None = None) -> Tombstone:
    return Tombstone(blob_name(path, token), None, deadline_ns, token)


async def swap(rows: PostgresRows, token: ChangeId, expected: str | None, state: Inline | Tombstone | None, path: str = PATH) -> bool:
    return await rows.swap(path, token, expected, state, RUNTIME.boot_time() + 60)


# --- atomicity -----------------------------------------------------------------------------------

GATES = ("pg_advisory_xact_lock(4711)", "pg_advisory_xact_lock(4712)")
GATED_CLOCK = """CREATE OR REPLACE FUNCTION {schema}.clock_ms() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$ BEGIN
    PERFORM GATE; RETURN floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint; END $$"""
"""A function asks for the time after it has looked and written the row, and before it has written the mark."""


@asynccontextmanager
async def held(server: PostgresServer, statement: str, *values: object) -> AsyncIterator[None]:
    """Until the end of the block, somebody else holds what the statement locks."""
    other = await asyncpg.connect(server.dsn())
    try:
        async with other.transaction():
            await other.execute(statement, *values)
            yield
    finally:
        await other.close()


async def waits(server: PostgresServer, number: int) -> bool:
    """Whether so many statements wait at a gate, or for the lock of a key."""
    [[found]] = await ask(server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    return bool(found == number)


async def settle_beside_a_swap(opened: Opened) -> tuple[bool, bool, Row]:
    """What a swap and a settle of its token are told, where the settle comes in the middle of the swap."""
    server, schema, rows = opened
    token = new()
    told: dict[str, bool] = {}

    async def swaps() -> None:
        told["won"] = await swap(rows, token, None, tombstone(token))

    async def settles() -> None:
        told["live"] = await rows.settle(PATH, token)

    async def has_swapped() -> bool:
        return "won" in told

    async with anyio.create_task_group() as tasks, held(server, f"SELECT {GATES[1]}"):
        async with held(server, f"SELECT {GATES[0]}"):
            for number, call in enumerate((swaps, settles)):
                await ask(server, in_schema(GATED_CLOCK.replace("GATE", GATES[number]), schema))
                tasks.start_soon(call)
                await becomes(partial(waits, server, number + 1))
        await becomes(has_swapped)
    return told["won"], told["live"], await rows.read(PATH, marks=True)


async def test_a_settle_in_the_middle_of_a_swap_waits_and_finds_it_live(opened: Opened) -> None:
    won, live, row = await settle_beside_a_swap(opened)
    assert won and live and not row.refused and row.target is not None


async def test_without_its_lock_the_swap_would_be_refused_and_yet_win(opened: Opened) -> None:
    """So the test above can fail: the lock is what makes it pass."""
    server, schema, _ = opened
    for statement in (schema_module._CHANGE, schema_module._SETTLE):
        unlocked = in_schema(statement, schema).replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
        lines = ["IF false THEN" if "pg_advisory_xact_lock" in line else line for line in unlocked.splitlines()]
        assert lines.count("IF false THEN") == 1
        await ask(server, "\n".join(lines))
    _, live, row = await settle_beside_a_swap(opened)
    assert not live and row.target is not None, "its blob would be deleted, and the row names it"


async def test_of_many_processes_that_swap_one_row_one_wins_each_time_and_what_is_refused_never_does(postgres: PostgresServer) -> None:
    schema = await made_schema(postgres)
    settings = settings_of(postgres, schema, connections_max=8)
    for _ in range(4):
        async with anyio.create_task_group() as tasks:
            won: list[ChangeId] = []
            refused: list[ChangeId] = []

            async def process(won: list[ChangeId] = won, refused: list[ChangeId] = refused) -> None:
                async with open_postgres(settings, RUNTIME) as (rows, _), anyio.create_task_group() as calls:
                    seen = (await rows.read(PATH)).target

                    async def change() -> None:
                        token = new()
                        if await swap(rows, token, seen, tombstone(token)):
                            won.append(token)

                    async def fence() -> None:
                        token = new()
                        async with anyio.create_task_group() as both:
                            both.start_soon(lands, token)
                            if not await rows.settle(PATH, token):
                                refused.append(token)

                    async def lands(token: ChangeId) -> None:
                        await swap(rows, token, seen, tombstone(token))

                    for _ in range(8):
                        calls.start_soon(change)
                        calls.start_soon(fence)

            for _ in range(4):
                tasks.start_soon(process)
        async with open_postgres(settings, RUNTIME) as (rows, _):
            row = await rows.read(PATH, marks=True)
            assert row.target is not None and set(won) <= row.won
            assert not set(refused) & row.won and set(refused) <= row.refused
            assert len(row.won & set(won)) == len(won)


async def test_of_32_that_write_an_empty_row_on_a_condition_exactly_one_wins(opened: Opened) -> None:
    _, _, rows = opened
    for number in range(10):
        path = f"{PATH}/{number}"
        won: list[ChangeId] = []

        async def puts(path: str = path, won: list[ChangeId] = won) -> None:
            token = new()
            state = inline(token) if token[-1] in "02468ace" else tombstone(token, path)
            if await rows.swap(path, token, None, state, RUNTIME.boot_time() + 60, Vacant(RUNTIME.wall_ns())):
                won.append(token)

        async with anyio.create_task_group() as tasks:
            for _ in range(32):
                tasks.start_soon(puts)
        [winner] = won
        state = (await rows.read(path)).state
        assert state is not None and state.token == winner


# --- collection ----------------------------------------------------------------------------------


async def test_collection_leaves_a_row_that_is_being_changed_to_the_next_round(opened: Opened) -> None:
    server, schema, rows = opened
    past_ns = RUNTIME.wall_ns() // NS_PER_MS * NS_PER_MS - 10**9
    paths = [f"{PATH}/{number}" for number in range(3)]
    for path in paths:
        token = new()
        assert await swap(rows, token, None, inline(token, deadline_ns=past_ns), path)
    lock = in_schema(schema_module._LOCK.replace("{path}", "$1"), schema)
    async with held(server, f"SELECT {lock}", paths[1].encode()):
        assert await rows.collect(100) == 2
        assert (await rows.read(paths[1])).state is not None
    assert await rows.collect(100) == 1
    assert await rows.collect(100) == 0


async def test_collection_does_not_wait_for_a_row_that_other_software_holds(opened: Opened) -> None:
    server, schema, rows = opened
    past_ns = RUNTIME.wall_ns() // NS_PER_MS * NS_PER_MS - 10**9
    for path in (PATH, f"{PATH}/free"):
        assert await rows.put_inline(path, token := new(), inline(token, deadline_ns=past_ns))
    async with held(server, f"SELECT 1 FROM {schema}.rows WHERE path = $1 FOR UPDATE", PATH.encode()):
        assert await rows.collect(100) == 1
        assert (await rows.read(PATH)).state is not None
    assert await rows.collect(100) == 1


async def test_collection_goes_on_until_its_limit_whatever_one_call_takes(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, rows = opened
    monkeypatch.setattr(rows_module, "COLLECTED_AT_ONCE", 3)
    past_ns = RUNTIME.wall_ns() - 10**9
    for number in range(10):
        token = new()
        assert await rows.put_inline(f"{PATH}/{number}", token, inline(token, deadline_ns=past_ns))
    assert [await rows.collect(limit) for limit in (5, 100, 100)] == [5, 5, 0]


# --- what is stored ------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [
    "payload = 'other'::bytea", "metadata = '{}'::bytea", "metadata = NULL, crc = NULL", "crc = crc + 1", "token = gen_random_uuid()",
    "token = gen_random_uuid(), crc = NULL", "metadata = 'x', crc = NULL",
])  # fmt: skip
async def test_a_damaged_object_is_named(opened: Opened, damage: str) -> None:
    server, schema, rows = opened
    token = new()
    assert await rows.put_inline(PATH, token, inline(token))
    await ask(server, f"UPDATE {schema}.rows SET {damage}")
    with pytest.raises(CorruptRecordError, match=PATH):
        await rows.read(PATH)
    assert [row.path for row in (await rows.scan("", b"", 10)).rows] == [PATH]
    assert await rows.delete_inline(PATH, new()) and await rows.read(PATH) == Row(None)


@pytest.mark.parametrize("damage", [
    "target = target || 'x'", "policy = '{'", "metadata = '{}'", "policy = '7', crc = NULL", "target = '\\xff'",
])  # fmt: skip
async def test_a_damaged_tombstone_is_named_by_readers_and_audits(opened: Opened, damage: str) -> None:
    server, schema, rows = opened
    token, other = new(), new()
    assert await swap(rows, token, None, tombstone(token))
    assert await swap(rows, other, None, tombstone(other, f"{PATH}2"), f"{PATH}2")
    await ask(server, f"UPDATE {schema}.rows SET {damage} WHERE path = $1", PATH.encode())
    with pytest.raises(CorruptRecordError, match=PATH):
        await rows.read(PATH)
    page = await rows.redirects(b"", None, 10)
    assert [row.path for row in page.redirects if row.path != PATH] == [f"{PATH}2"]
    if "crc" not in damage:
        assert [row.path for row in page.corrupt] == [PATH] == [row.path for row in (await rows.redirects_at([PATH.encode()])).corrupt]


async def test_a_key_that_is_no_text_is_a_finding_and_ends_no_scan(opened: Opened) -> None:
    server, schema, rows = opened
    token = new()
    assert await swap(rows, token, None, tombstone(token))
    for key in (b"a\xff", b"\xff\xff"):
        await ask(server, f"INSERT INTO {schema}.rows (path, target) VALUES ($1, 'blob')", key)
    for page in (await rows.redirects(b"", None, 10), await rows.scan("", b"", 10)):
        assert [row.path for row in page.corrupt] == ["a\\xff", "\\xff\\xff"]
        assert all(row.target == "blob" for row in page.corrupt)


async def test_a_value_that_breaks_a_rule_of_the_table_is_refused_by_it(opened: Opened) -> None:
    server, schema, _ = opened
    with pytest.raises(Exception, match="violates check constraint"):
        await ask(server, f"INSERT INTO {schema}.rows (path) VALUES ('a')")


@pytest.mark.parametrize("analysed", [True, False])
async def test_a_large_table_is_cut_by_its_statistics_or_by_a_sample(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, analysed: bool
) -> None:
    server, schema, rows = opened
    monkeypatch.setattr(rows_module, "SMALL_TABLE_BYTES", 400_000)
    await ask(server, f"""INSERT INTO {schema}.rows (path, metadata, payload)
        SELECT convert_to('k/objects/' || lpad(n::text, 6, '0'), 'UTF8'), '{{}}', 'x' FROM generate_series(1, 20000) AS n""")  # fmt: skip
    if analysed:
        await ask(server, f"ANALYZE {schema}.rows")
    cuts = await rows.boundaries(8)
    assert list(cuts) == sorted(set(cuts)) and 4 <= len(cuts) <= 8
    numbers = [0, *(int(cut[-6:]) for cut in cuts), 20_000]
    assert max(end - start for start, end in pairwise(numbers)) < 20_000 / 2


async def test_scans_use_an_index_from_the_first_row_on(opened: Opened) -> None:
    """A plan that is made once, for an empty table, must not read a whole one later."""
    _, _, rows = opened
    assert (await rows.scan("", b"", 10)).rows == []
    pool = rows._pool
    for statement, values in (
        (rows._sql["scan"], (b"a", b"b", 10)), (rows._sql["redirects"], (b"a", b"b", 10)), (rows._sql["read"], (b"a",)),
    ):
        plan = "\n".join(row[0] for row in await pool.read("explaining", f"EXPLAIN {statement}", *values))
        assert "Index" in plan and "Seq Scan" not in plan, plan


# --- the schema ----------------------------------------------------------------------------------


async def test_a_schema_is_migrated_in_one_step_or_not_at_all(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    server, schema, rows = opened
    token = new()
    assert await rows.put_inline(PATH, token, inline(token))
    add = "ALTER TABLE {schema}.rows ADD COLUMN colour text"
    settings = settings_of(server, schema)
    monkeypatch.setattr(provision_module, "VERSION", 2)
    monkeypatch.setattr(provision_module, "MIGRATIONS", (*MIGRATIONS, (add, "SELECT 1 / 0")))
    failed = await provision_postgres(settings, RUNTIME)
    assert any(finding.kind is NoticeKind.PROBLEM and "division by zero" in finding.sentence for finding in failed)
    columns = "SELECT attname::text FROM pg_attribute WHERE attrelid = $1::text::regclass AND attname = 'colour'"
    assert not await ask(server, columns, f"{schema}.rows")
    monkeypatch.setattr(provision_module, "MIGRATIONS", (*MIGRATIONS, (add,)))
    assert any("migrated to" in finding.sentence for finding in await provision_postgres(settings, RUNTIME))
    assert await ask(server, columns, f"{schema}.rows")
    assert (await rows.read(PATH)).state == inline(token), "who has it open reads on"
    with pytest.raises(ConfigurationError, match="install a newer tiered"):
        async with open_postgres(settings, RUNTIME):
            pass


async def test_a_schema_is_made_once_by_two_that_make_it_at_the_same_time(postgres: PostgresServer) -> None:
    settings = settings_of(postgres, "p" + new().replace("-", ""))
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(provision_postgres, settings, RUNTIME)
    async with open_postgres(settings, RUNTIME) as (rows, _):
        assert await rows.collect(10) == 0


async def test_every_time_that_is_stored_is_the_servers(postgres: PostgresServer) -> None:
    class Late(SystemRuntime):
        def wall_ns(self) -> int:
            return super().wall_ns() + 10**18

    async with fresh_store(postgres, Late()) as (rows, log):
        token = new()
        assert await rows.settle(PATH, token) is False
        assert await rows.collect(10) == 0
        [[at_ms, now_ms]] = await rows._pool.read("looking", in_schema(
            "SELECT (SELECT at_ms FROM {schema}.marks), {schema}.clock_ms()", rows._schema))  # fmt: skip
        assert 0 <= now_ms - at_ms < 60_000
        entry = await log.record(Change(new(), PATH), "me")
        found = await log.read(entry.change.id)
        assert isinstance(found, Entry) and 0 <= await log.now_ms() - found.heartbeat_ms < 60_000


async def test_whoever_runs_trio_is_told_what_to_run() -> None:
    async def opens() -> None:
        async with open_postgres(PostgresSettings.model_validate({"dsn": "postgresql://a/b"}), RUNTIME):
            pass

    def run() -> None:
        with pytest.raises(ConfigurationError, match="needs asyncio"):
            anyio.run(opens, backend="trio")

    await anyio.to_thread.run_sync(run)
