"""What stands between a store and its server: a pooler in transaction mode, and hosts that are silent."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import NamedTuple

import anyio
import asyncpg
import pytest

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from changelog.postgres.log import PostgresChangeLog
from changelog.postgres.pool import PostgresPool
from changelog.postgres.session import asked
from emulators.postgres.pooler import find_pgbouncer, pooled
from emulators.postgres.server import USER, PostgresNotFoundError, PostgresServer
from tests.conftest import postgres_or_skip
from tests.given.fresh_schema import made_schema, settings_of
from tiered.metadata import Metadata
from tiered.object_id import blob_name
from tiered.postgres.open import open_postgres
from tiered.postgres.rows import PostgresRows
from tiered.provision.findings import problems
from tiered.provision.postgres import inspect_postgres
from tiered.services.backends import Inline, Tombstone

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
RUNTIME = SystemRuntime()
TASKS, ROUNDS = 12, 12
TRUST = {"auth_type": "trust"}
TAKEN = ", ".join(asked(1))


@pytest.fixture
def pooler(postgres: PostgresServer) -> Iterator[str]:
    """The DSN of a pooler before the server."""
    find_pgbouncer_or_skip()
    with pooled(postgres) as port:
        yield f"postgresql://{USER}@127.0.0.1:{port}/postgres"


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """A server that a test may stop."""
    with postgres_or_skip() as server:
        find_pgbouncer_or_skip()
        yield server


def find_pgbouncer_or_skip() -> None:
    try:
        find_pgbouncer()
    except PostgresNotFoundError as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))


async def use(rows: PostgresRows, log: PostgresChangeLog, task: int) -> None:
    """One change after another, each of another path, and what each call answers."""
    for number in range(ROUNDS):
        path, token = f"n/objects/{task}-{number}", ChangeId.new(RUNTIME)
        inline = Inline(Metadata(size=3), b"abc", token)
        assert await rows.put_inline(path, token, inline) and (await rows.read(path, marks=token)).state == inline
        entry = await log.record(Change(token, path), "me")
        assert await log.read(token) == entry
        tombstone = Tombstone(blob_name(path, token), None, None, token)
        assert await rows.swap(path, token, None, tombstone, RUNTIME.boot_time() + 60)
        assert await rows.settle(path, token) and not await rows.settle(path, ChangeId.new(RUNTIME))
        assert await log.swap_note(path, None, path.encode()) and await log.read_note(path) == path.encode()
        await log.forget(entry)
        assert await log.read(token) is None


async def test_through_a_pooler_many_tasks_share_few_connections_and_each_gets_its_own_answers(
    postgres: PostgresServer, pooler: str
) -> None:
    settings = settings_of(postgres, await made_schema(postgres), dsn=pooler, prepared=False)
    async with open_postgres(settings, RUNTIME) as (rows, log), anyio.create_task_group() as tasks:
        for task in range(TASKS):
            tasks.start_soon(use, rows, log, task)


async def test_a_pooler_that_takes_no_settings_is_told_with_the_setting_that_is_missing(postgres: PostgresServer, pooler: str) -> None:
    settings = settings_of(postgres, await made_schema(postgres), dsn=pooler)
    with pytest.raises(ConfigurationError, match=r"postgres\.prepared: false"):
        async with open_postgres(settings, RUNTIME):
            pass
    assert "postgres.prepared: false" in problems(await inspect_postgres(settings, RUNTIME))[0]


async def test_a_host_that_is_silent_hides_no_other_one_and_is_asked_last_from_then_on(postgres: PostgresServer) -> None:
    schema = await made_schema(postgres)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # it takes connections, and nobody answers them
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{postgres.port}"
        settings = settings_of(postgres, schema, dsn=postgres.dsn(host_port=hosts), timeout_s=2)
        async with open_postgres(settings, RUNTIME) as (rows, log), anyio.create_task_group() as tasks:
            for task in range(2):
                tasks.start_soon(use, rows, log, task)
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


# --- what a pooler says ------------------------------------------------------------------------------


class PoolerWord(NamedTuple):
    """A word of PgBouncer. `does`: what provokes it, beside its settings. `options`: after the ? of the DSN."""

    kind: type[TieredError]
    advice: str
    settings: Mapping[str, object] = MappingProxyType({})
    does: str = "read"
    prepared: bool = False
    options: str = ""
    database: str = "postgres"


WORDS = {
    "unsupported startup parameter": PoolerWord(ConfigurationError, "set postgres.prepared: false", prepared=True),
    "unsupported startup parameter, where prepared is false": PoolerWord(
        ConfigurationError, "ignore_startup_parameters", options="?options=-c%20work_mem%3D8MB"
    ),
    "no more connections allowed": PoolerWord(UnavailableError, "raise its max_client_conn", {"max_client_conn": 1}, "two"),
    "no more connections allowed, in session mode": PoolerWord(
        UnavailableError, "raise its max_client_conn",
        {"max_client_conn": 1, "pool_mode": "session", "ignore_startup_parameters": TAKEN}, "two", prepared=True,
    ),
    "query_wait_timeout": PoolerWord(UnavailableError, "raise its default_pool_size", {"query_wait_timeout": 1}, "hold"),
    "query_wait_timeout, of a write": PoolerWord(UnavailableError, "raise its default_pool_size", {"query_wait_timeout": 1}, "hold, write"),
    "no such database": PoolerWord(ConfigurationError, "the pooler has no such database", TRUST, database="nowhere"),
    "no such database, where it has no users": PoolerWord(ConfigurationError, "the pooler lacks this database or user", database="nowhere"),
    "the server is away, at the login": PoolerWord(UnavailableError, "cannot reach PostgreSQL", {"client_login_timeout": 1}, "stop"),
    "a password that is wrong": PoolerWord(UnavailableError, "does not let this role in", {"auth_type": "md5"}, options="?password=wrong"),
    "no such user": PoolerWord(UnavailableError, "does not let this role in", {"auth_type": "md5"}, options="?user=stranger&password=x"),
    "statement mode": PoolerWord(ConfigurationError, "transaction or session mode", {"pool_mode": "statement"}, "begin"),
    "query_timeout, of a read": PoolerWord(UnavailableError, "the pooler ended it", {"query_timeout": 1}, "sleep"),
    "query_timeout, of a write": PoolerWord(UnconfirmedError, "the pooler ended it", {"query_timeout": 1}, "sleep, write"),
    "disabled": PoolerWord(UnavailableError, "run ENABLE there", {**TRUST, "admin_users": USER}, "disable"),
}  # fmt: skip


@pytest.mark.parametrize("said", WORDS.values(), ids=WORDS.keys())
async def test_each_word_of_a_pooler_is_told_as_what_it_is_where_it_is_said(own_postgres: PostgresServer, said: PoolerWord) -> None:
    with pooled(own_postgres, 1, passwords={USER: "right"}, choices=said.settings) as port:
        user = "" if "user=" in said.options else f"{USER}@"
        dsn = f"postgresql://{user}127.0.0.1:{port}/{said.database}{said.options}"
        async with AsyncExitStack() as stack:
            pool = await stack.enter_async_context(PostgresPool(
                dsn, "the server", connections_max=4, timeout_s=20, writes=False, transactional=said.prepared
            ))
            if "two" in said.does or "hold" in said.does:
                first = await asyncpg.connect(dsn, statement_cache_size=0)
                stack.push_async_callback(first.close)
            if "look" in said.does or "hold" in said.does:
                await pool.read("looking", "SELECT 1")
            if "hold" in said.does:
                await first.execute("BEGIN")
            if "stop" in said.does:
                await anyio.to_thread.run_sync(own_postgres.stop)
                stack.push_async_callback(anyio.to_thread.run_sync, own_postgres.start)
            if "disable" in said.does:
                console = await asyncpg.connect(f"postgresql://{USER}@127.0.0.1:{port}/pgbouncer", statement_cache_size=0)
                await console.execute("DISABLE postgres")
                await console.close()
            statement = "SELECT pg_sleep(30)" if "sleep" in said.does else "SELECT 1"
            call = pool.run if "begin" in said.does else pool.write if "write" in said.does else pool.read
            with pytest.raises(said.kind) as failed:
                await call("calling it", "BEGIN; SELECT 1" if "begin" in said.does else statement)
    assert type(failed.value) is said.kind and said.advice in str(failed.value), str(failed.value)
    assert failed.value.refused == (said.kind is ConfigurationError or "let this role in" in said.advice or "ENABLE" in said.advice)
    assert failed.value.code in ("08P01", "") and ("postgres.prepared: false" in str(failed.value)) == ("prepared: false" in said.advice)
