"""The pool of connections and its errors, on a real server: what a failed call proves, and what is left of the pool."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import anyio
import asyncpg
import pytest

from changelog.base.errors import (
    ConfigurationError,
    CorruptRecordError,
    InvalidRequestError,
    TieredError,
    UnavailableError,
    UnconfirmedError,
)
from changelog.postgres.pool import PostgresPool
from changelog.postgres.sqlstates import ADVICE, UNKNOWN_CODES, translated
from emulators.ports import free_port
from emulators.postgres.server import PostgresServer
from tests.given.cutting_proxy import CutKind, cutting_proxy
from tests.given.fresh_schema import ask, settings_of
from tests.given.waiting import becomes
from tiered.postgres.open import connect

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
TABLE = "public.pool_test"
INSERT = f"INSERT INTO {TABLE} VALUES ($1) RETURNING n"


def pool_of(server: PostgresServer, port: int | None = None, **others: object) -> PostgresPool:
    dsn: dict[str, object] = {"dsn": server.dsn(host_port=f"127.0.0.1:{port}")} if port else {}
    return connect(settings_of(server, "tiered", **({"connections_max": 1} | dsn | others)), writes=True)


@pytest.fixture
async def table(postgres: PostgresServer, anyio_backend: str) -> PostgresServer:
    await ask(postgres, f"DROP TABLE IF EXISTS {TABLE}")
    await ask(postgres, f"CREATE TABLE {TABLE} (n int PRIMARY KEY)")
    return postgres


async def stored(server: PostgresServer) -> list[int]:
    return [row[0] for row in await ask(server, f"SELECT n FROM {TABLE} ORDER BY n")]


async def idle(server: PostgresServer) -> bool:
    """Whether no statement of ours is under way."""
    return not await ask(server, "SELECT 1 FROM pg_stat_activity WHERE application_name = 'tiered' AND state = 'active'")


# --- what the server says ------------------------------------------------------------------------

CODES = {code if len(code) == 5 else f"{code}P02": kind for code, (kind, _) in ADVICE.items()} | dict.fromkeys(
    ("58030", "P0001", "42601", "55006", "0A000"), UnavailableError
)


@pytest.mark.parametrize("code", [code for code in CODES if code not in ("26000", "0A000")])
async def test_an_error_that_the_server_says_proves_that_nothing_happened(table: PostgresServer, code: str) -> None:
    async with pool_of(table) as pool:
        await pool.run("making a function", f"""CREATE OR REPLACE FUNCTION public.fails() RETURNS int LANGUAGE plpgsql AS $$
            BEGIN INSERT INTO {TABLE} VALUES (1); RAISE EXCEPTION 'planted' USING ERRCODE = '{code}'; END $$""")  # fmt: skip
        with pytest.raises(TieredError, match=f"writing it in .* failed with {code}: .*planted") as failed:
            await pool.write("writing it", "SELECT public.fails()")
        assert type(failed.value) is CODES[code] and not isinstance(failed.value, UnconfirmedError)
        assert failed.value.code == code and failed.value.heard is True
        assert await stored(table) == []
        assert await pool.write("writing it", INSERT, 2) is not None, "the pool goes on"


@pytest.mark.parametrize("code", sorted(UNKNOWN_CODES))
async def test_an_error_that_may_come_after_the_commit_proves_nothing(table: PostgresServer, code: str) -> None:
    async with pool_of(table) as pool:
        await pool.run("making a function", f"""CREATE OR REPLACE FUNCTION public.fails() RETURNS int LANGUAGE plpgsql AS $$
            BEGIN RAISE EXCEPTION USING ERRCODE = '{code}'; END $$""")  # fmt: skip
        with pytest.raises(UnconfirmedError) as failed:
            await pool.write("writing it", "SELECT public.fails()")
        assert failed.value.heard is True
        with pytest.raises(UnavailableError):
            await pool.read("reading it", "SELECT public.fails()")


@pytest.mark.parametrize(("severity", "kind"), [("ERROR", UnavailableError), ("FATAL", UnconfirmedError), ("PANIC", UnconfirmedError)])
async def test_what_ends_a_connection_proves_nothing_whatever_its_code(
    severity: str, kind: type[TieredError], anyio_backend: str
) -> None:
    said = asyncpg.exceptions.DiskFullError("no space")
    said.severity_en = severity
    assert type(translated(said, "writing it", sent=True)) is kind
    assert type(translated(said, "connecting", sent=False)) is UnavailableError
    assert type(translated(asyncpg.InternalClientError("a bug"), "writing it", sent=True)) is UnconfirmedError
    ended = asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")  # a fast stop says this
    said = str(translated(ended, "reading it", sent=False))
    assert said == f"reading it failed: the connection cannot be used any more, as if the server had ended it ({ended})"


async def test_a_backend_that_is_told_to_end_leaves_a_write_unknown_and_a_read_undone(table: PostgresServer) -> None:
    async with pool_of(table) as pool:
        with pytest.raises(UnconfirmedError):
            await pool.write("writing it", f"INSERT INTO {TABLE} SELECT 1 WHERE pg_terminate_backend(pg_backend_pid())")
        with pytest.raises(UnavailableError) as failed:
            await pool.read("reading it", "SELECT pg_terminate_backend(pg_backend_pid())")
        assert "pooler" not in str(failed.value) and failed.value.heard is None
        assert await pool.write("writing it", INSERT, 3) is not None
    assert await stored(table) == [3]


async def test_a_value_that_cannot_be_sent_is_an_invalid_request(table: PostgresServer) -> None:
    async with pool_of(table) as pool:
        with pytest.raises(InvalidRequestError):
            await pool.write("writing it", INSERT, "no number")
        with pytest.raises(CorruptRecordError):
            await pool.write("writing it", f"INSERT INTO {TABLE} VALUES (NULL)")
        assert await pool.write("writing it", INSERT, 1) is not None


# --- deadlines and cancellation ------------------------------------------------------------------


async def test_a_call_past_its_deadline_is_unknown_and_nobody_asks_the_server_to_cancel_it(
    table: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(table.said())
    async with pool_of(table) as pool:
        # The server's own limit is that of the pool, so only this side's ends the call.
        slowly = f"INSERT INTO {TABLE} SELECT 1 FROM (SELECT pg_sleep(1.5)) AS late"
        pool._give_back(await pool._borrow("connecting"))
        with monkeypatch.context() as patch:
            patch.setattr(pool, "_timeout_s", 0.4)
            with pytest.raises(UnconfirmedError):
                await pool.write("writing it", slowly)
        assert await pool.write("writing it", INSERT, 2) is not None
        with anyio.move_on_after(0.2):
            await pool.write("writing it", slowly.replace("SELECT 1 FROM", "SELECT 3 FROM"))
        assert await pool.write("writing it", INSERT, 4) is not None
    await becomes(lambda: idle(table))
    assert "user request" not in table.said()[before:]
    assert {2, 4} <= set(await stored(table))


@pytest.mark.parametrize("writes", [True, False])
async def test_a_call_whose_time_is_up_between_two_messages_ends_as_any_other(
    table: PostgresServer, monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    """The statement is prepared, and the connection is cut before the driver goes on with it."""
    async with pool_of(table) as pool:
        await pool.read("warming up", "SELECT 1")
        connection = pool._idle[0]
        prepare = connection._get_statement

        async def prepare_then_cut(*arguments: object, **named: object) -> object:
            prepared = await prepare(*arguments, **named)
            connection.terminate()
            return prepared

        monkeypatch.setattr(type(connection), "_get_statement", lambda _, *arguments, **named: prepare_then_cut(*arguments, **named))
        with pytest.raises(UnavailableError):
            await (pool.write("inserting", INSERT, 1) if writes else pool.read("reading", f"SELECT n FROM {TABLE}"))
        monkeypatch.undo()
        assert await pool.write("inserting", INSERT, 2) == (2,)
    assert await stored(table) == [2]


async def test_a_call_that_waits_for_a_lock_too_long_had_no_effect(table: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("changelog.postgres.session.LOCK_SHARE", 0.01)  # the rest of its 30 s is for the server to say so
    async with pool_of(table, timeout_s=30) as pool:
        holder = await asyncpg.connect(table.dsn())
        try:
            await holder.execute("SELECT pg_advisory_lock(7)")
            with pytest.raises(UnavailableError, match="held the row") as failed:
                await pool.write("locking it", "SELECT pg_advisory_xact_lock(7)")
        finally:
            await holder.close()
        assert failed.value.code == "55P03"


async def test_an_answer_that_came_while_this_process_stood_still_was_no_answer(
    table: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server had said that nothing happened, and the caller was told that nobody knows."""
    monkeypatch.setattr("changelog.postgres.session.LOCK_SHARE", 0.2)
    async with pool_of(table, timeout_s=1) as pool:
        holder = await asyncpg.connect(table.dsn())
        before = table.said().count("lock timeout")

        def stand_still() -> None:
            ends_at = time.monotonic() + 60
            while table.said().count("lock timeout") == before and time.monotonic() < ends_at:
                time.sleep(0.02)
            time.sleep(1.2)  # until the call's time is up, and its answer is here

        try:
            await holder.execute("SELECT pg_advisory_lock(8)")
            asyncio.get_running_loop().call_later(0.1, stand_still)
            with pytest.raises(UnavailableError, match="held the row") as failed:
                await pool.write("locking it", "SELECT pg_advisory_xact_lock(8)")
        finally:
            await holder.close()
        assert failed.value.code == "55P03"
        assert await pool.write("writing it", INSERT, 1) is not None


async def test_a_call_that_gets_no_connection_in_time_was_never_sent(table: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool_of(table) as pool:
        taken = await pool._borrow("holding it")
        with monkeypatch.context() as patch:
            patch.setattr(pool, "_timeout_s", 0.3)
            with pytest.raises(UnavailableError, match="connections_max") as failed:
                await pool.write("writing it", INSERT, 1)
        assert failed.value.heard is False and not pool._waiting
        pool._give_back(taken)
        assert await pool.write("writing it", INSERT, 2) is not None
    assert await stored(table) == [2]


async def test_many_calls_share_few_connections_and_a_cancelled_one_takes_none_away(table: PostgresServer) -> None:
    async with pool_of(table, connections_max=3) as pool:
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(pool.write, "writing it", INSERT, number)
        assert pool._open <= 3 and await stored(table) == list(range(100))
        for _ in range(5):
            async with anyio.create_task_group() as tasks:
                for _ in range(9):
                    tasks.start_soon(pool.read, "sleeping", "SELECT pg_sleep(5)")
                await anyio.sleep(0.03)
                tasks.cancel_scope.cancel()
        assert pool._open <= 3 and not pool._waiting
        async with anyio.create_task_group() as tasks:
            for number in range(100, 120):
                tasks.start_soon(pool.write, "writing it", INSERT, number)
        assert await stored(table) == list(range(120))
        with pytest.raises(UnavailableError):
            await pool.write("writing it", INSERT, 500, may_send=_refuses)
    assert pool._open == 0
    with pytest.raises(UnavailableError, match="closed"):
        await pool.read("reading it", "SELECT 1")


def _refuses() -> None:
    raise UnavailableError("too late")


# --- connections that break ----------------------------------------------------------------------


async def test_a_statement_whose_answer_was_lost_is_unknown_and_happened_and_one_that_was_cut_short_did_not(table: PostgresServer) -> None:
    async with cutting_proxy(f"x:{table.port}") as proxy, pool_of(table, int(proxy.url.rpartition(":")[2])) as pool:
        await pool.write("writing it", INSERT, 1)
        before = proxy.taken
        await pool.write("writing it", INSERT, 2)
        length = proxy.taken - before
        proxy.cuts.append((proxy.taken + length, CutKind.MUTE))
        with pytest.raises(UnconfirmedError):
            await pool.write("writing it", INSERT, 3)
        assert proxy.done == [CutKind.MUTE]
        await pool.write("writing it", INSERT, 4)
        proxy.cuts.append((proxy.taken + length // 2, CutKind.RESET))
        with pytest.raises(UnconfirmedError):
            await pool.write("writing it", INSERT, 5)
        proxy.cuts.append((proxy.taken + 10, CutKind.RESET))
        with pytest.raises(UnavailableError):  # a read has no effect
            await pool.read("reading it", "SELECT 1")
        await pool.write("writing it", INSERT, 6)
    await becomes(lambda: idle(table))
    assert await stored(table) == [1, 2, 3, 4, 6]


async def test_idle_connections_that_the_server_ended_are_replaced(table: PostgresServer) -> None:
    async with pool_of(table, connections_max=4) as pool:
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(pool.read, "sleeping", "SELECT pg_sleep(0.05)")
        assert len(pool._idle) == 4
        async def all_closed() -> bool:
            return all(connection.is_closed() for connection in pool._idle)

        await ask(table, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tiered'")
        await becomes(all_closed)
        for number in range(4):
            assert await pool.write("writing it", INSERT, number) is not None


async def test_a_server_that_is_not_there_was_sent_nothing(postgres: PostgresServer) -> None:
    async with pool_of(postgres, free_port()) as pool:
        with pytest.raises(UnavailableError) as failed:
            await pool.write("writing it", INSERT, 1)
        assert failed.value.heard is None


@pytest.mark.parametrize("sslmode", ["disable", "prefer", "require"])
@pytest.mark.parametrize("hears", [True, False], ids=["after a greeting", "at once"])
async def test_whoever_takes_connections_and_ends_them_without_a_word_is_no_server_that_answers(
    postgres: PostgresServer, sslmode: str, hears: bool
) -> None:
    async def end(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive() if hears else None

    # So does a balancer that has no server left.
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as balancer, anyio.create_task_group() as tasks:
        tasks.start_soon(balancer.serve, end)
        port = balancer.extra(anyio.abc.SocketAttribute.local_port)
        async with pool_of(postgres, dsn=f"postgresql://x@127.0.0.1:{port}/postgres?sslmode={sslmode}") as pool:
            with pytest.raises(UnavailableError) as failed:
                await pool.read("reading it", "SELECT 1")
        tasks.cancel_scope.cancel()
    assert failed.value.heard is None and "pooler" not in str(failed.value), str(failed.value)


@pytest.mark.parametrize(("dsn", "kind", "code"), [
    ("postgresql://tiered@127.0.0.1:{port}/nowhere", ConfigurationError, "3D000"),
    ("postgresql://nobody_here@127.0.0.1:{port}/postgres", UnavailableError, "28000"),
    ("postgresql://tiered@127.0.0.1:{port}/postgres?target_session_attrs=standby", UnavailableError, "25006"),
])  # fmt: skip
async def test_a_server_that_lets_nobody_in_says_why(postgres: PostgresServer, dsn: str, kind: type[TieredError], code: str) -> None:
    async with pool_of(postgres, dsn=dsn.format(port=postgres.port)) as pool:
        with pytest.raises(kind) as failed:
            await pool.write("writing it", INSERT, 1)
        assert failed.value.code == code


@pytest.mark.parametrize(("address", "said"), [
    ("127.0.0.1:9/postgres", "Connect call failed"),
    ("nowhere.invalid/postgres", "failed: "),
    ("127.0.0.1:{port}/postgres?sslmode=require", "rejected SSL upgrade"),
])  # fmt: skip
async def test_a_server_that_cannot_be_reached_is_told_with_what_to_look_at(postgres: PostgresServer, address: str, said: str) -> None:
    async with pool_of(postgres, dsn=f"postgresql://tiered@{address.format(port=postgres.port)}") as pool:
        with pytest.raises(UnavailableError, match=rf"{said}.*; check postgres\.dsn \(host, port, sslmode\), and the network$"):
            await pool.write("writing it", INSERT, 1)


@pytest.mark.parametrize("wanted", ["standby", "read-only"])
async def test_where_one_host_is_away_and_the_other_is_none_that_is_asked_for_both_are_said(postgres: PostgresServer, wanted: str) -> None:
    hosts = postgres.dsn(host_port=f"127.0.0.1:{free_port()},127.0.0.1:{postgres.port}")
    async with connect(settings_of(postgres, "tiered", dsn=f"{hosts}?target_session_attrs={wanted}"), writes=False) as pool:
        with pytest.raises(UnavailableError, match="Connect call failed") as failed:
            await pool.read("reading it", "SELECT 1")
    assert f"target_session_attrs={wanted}" in str(failed.value) and "are standbys" not in str(failed.value)


# --- what a session must be ----------------------------------------------------------------------


@pytest.fixture
async def careless(postgres: PostgresServer, anyio_backend: str) -> AsyncIterator[str]:
    """A role whose sessions lose commits, and see old snapshots, unless they say otherwise."""
    await ask(postgres, "CREATE ROLE careless LOGIN SUPERUSER")
    try:
        yield postgres.dsn().replace("tiered@", "careless@")
    finally:
        await ask(postgres, "DROP ROLE careless")


async def test_a_session_commits_durably_and_at_read_committed_whatever_the_role_says(postgres: PostgresServer, careless: str) -> None:
    await ask(postgres, "ALTER ROLE careless SET synchronous_commit = off")
    await ask(postgres, "ALTER ROLE careless SET default_transaction_isolation = 'serializable'")
    for prepared in (True, False):
        async with pool_of(postgres, dsn=careless, prepared=prepared) as pool:
            looking = "SELECT current_setting('synchronous_commit'), current_setting('transaction_isolation')"
            assert tuple((await pool.read("looking", looking))[0]) == ("on", "read committed")
    await ask(postgres, "ALTER ROLE careless SET synchronous_commit = remote_apply")
    for prepared in (True, False):
        async with pool_of(postgres, dsn=careless, prepared=prepared) as pool:
            assert (await pool.read("looking", "SELECT current_setting('synchronous_commit')"))[0][0] == "remote_apply"


async def test_without_prepared_statements_nothing_is_left_in_the_session(table: PostgresServer) -> None:
    async with pool_of(table, prepared=False) as pool:
        for number in range(3):
            assert await pool.write("writing it", INSERT, number) is not None
        assert await pool.read("looking", "SELECT name FROM pg_prepared_statements WHERE name <> ''") == []
    assert await stored(table) == [0, 1, 2]


# --- what an error says of the session ---------------------------------------------------------------

RAISED = {
    # code: whether the connection on which it came is used again, and whether the others are
    "25006": (False, False), "25001": (False, True), "25P02": (False, True), "26000": (False, True), "42P05": (False, True),
    "0A000": (False, True), "28000": (False, True), "08P01": (False, True), "57P01": (False, False), "57P03": (False, False),
    "XX000": (False, True), "58030": (False, True), "3D000": (False, True), "F0000": (False, True),
    "22P02": (True, True), "23505": (True, True), "40001": (True, True), "40P01": (True, True), "42501": (True, True),
    "42P01": (True, True), "42883": (True, True), "53100": (True, True), "53200": (True, True), "54000": (True, True),
    "55P03": (True, True), "57014": (True, True), "P0001": (True, True),
}  # fmt: skip


@pytest.mark.parametrize("code", RAISED)
async def test_after_an_error_of_the_session_or_of_the_servers_role_no_connection_of_then_is_used(
    postgres: PostgresServer, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("changelog.postgres.pool.FRESH_S", 0.0)
    async def pids(pool: PostgresPool) -> set[int]:
        borrowed = [await pool._borrow("asking who answers") for _ in range(2)]
        for connection in borrowed:
            pool._give_back(connection)
        return {connection.get_server_pid() for connection in borrowed}

    async with pool_of(postgres, connections_max=2) as pool:
        before = await pids(pool)
        assert len(before) == 2
        with pytest.raises(TieredError):
            await pool.write("raising it", f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}', MESSAGE = 'a test'; END $$")
        kept = before & await pids(pool)
        assert (len(kept) == 2, bool(kept)) == (RAISED[code][0], RAISED[code][1]), "the one, and the others"


async def test_writes_that_a_read_only_server_refuses_leave_reads_their_connections(postgres: PostgresServer) -> None:
    async with pool_of(postgres, connections_max=4) as pool:
        async def refused(times: int) -> None:
            for _ in range(times):
                with pytest.raises(UnavailableError, match="25006"):
                    await pool.write("writing it", "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '25006'; END $$")

        async def reader() -> int:
            return int((await pool.read("asking who answers", "SELECT pg_backend_pid(), pg_sleep(0.02)"))[0][0])

        seen: set[int] = set()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refused, 20)
            for _ in range(20):
                seen.add(await reader())
        assert len(seen) <= 2


async def test_a_server_that_was_read_only_takes_writes_again_at_once_on_every_connection(
    table: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("changelog.postgres.pool.FRESH_S", 0.05)
    async with pool_of(table, connections_max=6) as pool:
        async def write_many(expected: type[TieredError] | None) -> None:
            async def write(number: int) -> None:
                if expected is None:
                    assert await pool.write("writing it", INSERT, number) is not None
                else:
                    with pytest.raises(expected, match="25006") as failed:
                        await pool.write("writing it", INSERT, number)
                    assert failed.value.refused and failed.value.heard

            async with anyio.create_task_group() as tasks:
                for number in range(6):
                    tasks.start_soon(write, number)

        await ask(table, "ALTER DATABASE postgres SET default_transaction_read_only = on")
        try:
            await pool.read("reading it", "SELECT 1")
            await write_many(UnavailableError)
            async with anyio.create_task_group() as tasks:  # reads go on, on connections that begin read-only
                for _ in range(6):
                    tasks.start_soon(pool.read, "reading it", "SELECT pg_sleep(0.1)")
        finally:
            writer = await asyncpg.connect(table.dsn(), server_settings={"default_transaction_read_only": "off"})
            await writer.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
            await writer.close()
        with pytest.raises(UnavailableError, match="25006"):
            await pool.write("writing it", INSERT, 1)
        await write_many(None)
