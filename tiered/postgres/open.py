"""Opens the rows and the changelog of a store in PostgreSQL.

    one pool of connections -> PostgresRows
                            -> PostgresChangeLog

Before anything else the version of the schema is compared: functions of another version may keep another protocol. An
older schema is migrated by `tiered provision`, and a newer one needs newer software. Then the schema is looked at as
`tiered check` does it: what somebody changed so that a write or a read means something else is refused. Nothing is
created here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import Runtime
from changelog.postgres.log import PostgresChangeLog
from changelog.postgres.pool import PostgresPool
from changelog.postgres.sqlstates import PROVISION
from tiered.postgres.rows import PostgresRows
from tiered.postgres.schema import READ_VERSION, VERSION, in_schema, quoted_schema
from tiered.postgres.shape import departures_of
from tiered.settings import PostgresSettings

_NO_TABLE = """SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relname = 'schema_version' AND c.relkind <> 'r'"""


@asynccontextmanager
async def open_postgres(
    settings: PostgresSettings, runtime: Runtime, *, writes: bool = True
) -> AsyncIterator[tuple[PostgresRows, PostgresChangeLog]]:
    """Yields the rows and the changelog, which share one pool.

    `writes` False: a standby is enough, and a role that may only read. `ConfigurationError` says what to run.
    `UnavailableError`: the server did not answer.
    """
    if anyio.get_cancelled_exc_class().__module__.startswith("trio"):
        raise ConfigurationError("PostgreSQL needs asyncio, because its driver does: run this with anyio.run(main) or asyncio.run(main())")
    async with connect(settings, writes=writes) as pool:
        store = await checked_version(pool, settings)
        for departure in await departures_of(pool, settings.schema_name):
            if not departure.opens:
                raise ConfigurationError(f"{settings.address} is not as this software made it: {departure.told()}")
        pool.tells_of_standby = True  # until now only the schema was looked at
        rows = PostgresRows(pool, settings.schema_name, runtime, owner(store))
        yield rows, PostgresChangeLog(pool, quoted_schema(settings.schema_name))


async def owner_of(settings: PostgresSettings) -> str:
    """How a bucket names the store whose blobs it holds.

    It stays when a standby is promoted, and when the server gets another name. A dump that is restored elsewhere is
    another owner: while both are there, each would take the other's blobs for orphans.
    """
    async with connect(settings, writes=False) as pool:
        return owner(await checked_version(pool, settings))


def owner(store: str) -> str:
    return f"postgresql/{store}"


def connect(settings: PostgresSettings, *, writes: bool) -> PostgresPool:
    """The pool of a store. Enter it before it is used."""
    return PostgresPool(
        settings.dsn.get_secret_value(), settings.address, connections_max=settings.connections_max, timeout_s=settings.timeout_s,
        writes=writes, transactional=settings.prepared,
    )


async def refuse_view(pool: PostgresPool, settings: PostgresSettings) -> None:
    """`ConfigurationError`: where the version should be is no table. To read a view runs what its owner says, as us."""
    if await pool.read("looking for the version of the schema", _NO_TABLE, settings.schema_name):
        raise ConfigurationError(
            f"schema_version of {settings.address} is no table, so it is somebody else's, and is not read: remove that schema, or name "
            "another one in postgres.schema_name"
        )


async def checked_version(pool: PostgresPool, settings: PostgresSettings) -> str:
    """The id of the store. `ConfigurationError`: the schema is missing, or has another version."""
    await refuse_view(pool, settings)
    found = await pool.read("reading the version of the schema", in_schema(READ_VERSION, settings.schema_name))
    if not found:
        raise ConfigurationError(f"{settings.address} has no version of the schema: {PROVISION}")
    version, store = found[0]
    if version < VERSION:
        raise ConfigurationError(f"{settings.address} has version {version} of the schema, and this software needs {VERSION}: {PROVISION}")
    if version > VERSION:
        raise ConfigurationError(
            f"{settings.address} has version {version} of the schema, which newer software made; this software knows {VERSION}:"
            " install a newer tiered"
        )
    return str(store)
