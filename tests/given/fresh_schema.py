"""Stores in a PostgreSQL server of the tests: each in a new schema, with a clock that a test can put forward."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg

from changelog.base.runtime import Runtime, SystemRuntime
from changelog.change import ChangeId
from changelog.postgres.log import PostgresChangeLog
from changelog.postgres.pool import Record
from emulators.postgres.server import PostgresServer
from recovery.prove.contract_plugin import follow
from tiered.postgres.open import connect
from tiered.postgres.rows import PostgresRows
from tiered.postgres.schema import MIGRATIONS, VERSION, in_schema, quoted_schema
from tiered.settings import PostgresSettings
from tiered.testing.clock import Clock


def settings_of(server: PostgresServer, schema: str = "tiered", **others: object) -> PostgresSettings:
    return PostgresSettings.model_validate({"dsn": server.dsn(), "schema_name": schema, **others})


async def made_schema(server: PostgresServer) -> str:
    """The name of a new schema of the present version."""
    schema = "t" + ChangeId.new(SystemRuntime()).replace("-", "")
    connection = await asyncpg.connect(server.dsn())
    try:
        await connection.execute(";\n".join([
            f"CREATE SCHEMA {schema}", *(in_schema(statement, schema) for migration in MIGRATIONS for statement in migration),
            f"UPDATE {schema}.schema_version SET version = {VERSION}",
        ]))
    finally:
        await connection.close()
    return schema


@asynccontextmanager
async def fresh_store(server: PostgresServer, runtime: Runtime, **others: object) -> AsyncIterator[tuple[PostgresRows, PostgresChangeLog]]:
    """Rows and changelog in a new schema. If the runtime is a `Clock`, the server's is put forward with it."""
    schema = await made_schema(server)
    settings = settings_of(server, schema, **others)
    pool = connect(settings, writes=True)
    if isinstance(runtime, Clock):
        follow(pool, runtime, schema)
    async with pool:
        yield PostgresRows(pool, schema, runtime, "postgresql/test"), PostgresChangeLog(pool, quoted_schema(schema))


async def ask(server: PostgresServer, statement: str, *values: object) -> Sequence[Record]:
    """What the server answers to a superuser."""
    connection = await asyncpg.connect(server.dsn())
    try:
        return await connection.fetch(statement, *values)  # type: ignore[no-any-return]
    finally:
        await connection.close()
