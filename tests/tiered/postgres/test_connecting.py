"""What stands between a store and its server: a pooler in transaction mode, and hosts that are silent."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import anyio
import pytest

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from changelog.postgres.log import PostgresChangeLog
from emulators.postgres.pooler import pooled
from emulators.postgres.server import USER, PostgresNotFoundError, PostgresServer
from tests.given.fresh_schema import made_schema, settings_of
from tiered.metadata import Metadata
from tiered.object_id import blob_name
from tiered.postgres.open import open_postgres
from tiered.postgres.rows import PostgresRows
from tiered.protocol.backends import Inline, Tombstone
from tiered.provision.findings import problems
from tiered.provision.postgres import inspect_postgres

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
RUNTIME = SystemRuntime()
TASKS, ROUNDS = 12, 12


@pytest.fixture
def pooler(postgres: PostgresServer) -> Iterator[str]:
    """The DSN of a pooler before the server."""
    try:
        with pooled(postgres) as port:
            yield f"postgresql://{USER}@127.0.0.1:{port}/postgres"
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
