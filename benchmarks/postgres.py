"""CPU of the client for rows on PostgreSQL: ours, and bare calls of its driver, by turns.

    ours    `PostgresRows`: through the pool, with deadlines; each write calls a function that locks the key, looks at
            the row and the token's marks, and writes
    bare    asyncpg, one connection for each call in flight, one prepared statement that changes or reads the same
            columns of the same table: no fence, no lock, no pool, no deadline; only the metadata are translated

The server is another process. It has fsync on, in a directory in memory, where a sync costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import asyncpg

from benchmarks.harness import RUNTIME, Contest, Figures, put_get_delete
from benchmarks.sides import RowsSide
from changelog.change import ChangeId
from changelog.postgres.session import asked
from emulators.postgres.server import postgres_server
from tiered import Metadata
from tiered.metadata import decode_metadata, encode_metadata
from tiered.postgres.open import open_postgres
from tiered.provision.postgres import provision_postgres
from tiered.settings import PostgresSettings

IN_FLIGHT = (1, 16)
OPERATIONS = 600
PAYLOAD = os.urandom(1024)
SERVER = ("fsync=on", "shared_buffers=128MB", "max_wal_size=1GB")
PUT = """INSERT INTO tiered.rows (path, token, metadata, payload, conditional) VALUES ($1, $2, $3, $4, false) ON CONFLICT (path)
    DO UPDATE SET token = excluded.token, metadata = excluded.metadata, payload = excluded.payload"""
GET = "SELECT token, target, policy, metadata, payload, deadline_ms, crc, conditional FROM tiered.rows WHERE path = $1"
DELETE = "DELETE FROM tiered.rows WHERE path = $1"


class BarePostgres:
    """`free`: connections of which none is in a call."""

    def __init__(self, free: list[Any]) -> None:
        self._free = free

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        connection = self._free.pop()
        yield connection
        self._free.append(connection)

    async def put(self, name: str, token: ChangeId, payload: bytes) -> None:
        async with self._connection() as connection:
            await connection.execute(PUT, name.encode(), str(token), encode_metadata(Metadata(size=len(payload))), payload)

    async def get(self, name: str) -> bytes | None:
        async with self._connection() as connection:
            row = await connection.fetchrow(GET, name.encode())
        assert decode_metadata(row["metadata"]) is not None
        return bytes(row["payload"])

    async def delete(self, name: str, token: ChangeId) -> None:
        async with self._connection() as connection:
            await connection.execute(DELETE, name.encode())


async def figures(size: float) -> list[Figures]:
    async with AsyncExitStack() as opened:
        server = opened.enter_context(postgres_server(SERVER))
        settings = PostgresSettings.model_validate({"dsn": server.dsn()})
        await provision_postgres(settings, RUNTIME)
        rows, _ = await opened.enter_async_context(open_postgres(settings, RUNTIME))
        connect = partial(asyncpg.connect, server.dsn(), max_cached_statement_lifetime=0, server_settings=asked(settings.timeout_s))
        free = [await connect() for _ in range(max(IN_FLIGHT))]
        for connection in free:
            opened.push_async_callback(connection.close)
        sides = {"ours": RowsSide(rows), "bare": BarePostgres(free)}
        await Contest[Any]("prepares all statements", sides, rounds=1).run(put_get_delete(PAYLOAD), max(IN_FLIGHT), max(IN_FLIGHT))
        table = Contest[Any]("CPU per operation on PostgreSQL", sides, notes=["Goal: at most 1.3 of bare calls. A row has 1 KiB."])
        for in_flight in IN_FLIGHT:
            await table.run(put_get_delete(PAYLOAD), max(2, round(OPERATIONS * size)), in_flight)
    return [table.figures()]
