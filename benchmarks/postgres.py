"""CPU of a client and of the server for each operation on PostgreSQL: ours, and bare calls of its driver, by turns.

    python -m benchmarks.postgres --size 1        about a minute on a quiet machine

    ours    `PostgresRows` and `PostgresChangeLog`: through the pool, with deadlines; each write calls a function that
            locks the key, looks at the row and the token's marks, and writes
    fenced  asyncpg, one connection for each call in flight, and the very statements of ours, with values that are made
            before: what the driver and the fence cost, without our layer
    bare    asyncpg, one connection for each call in flight, one prepared statement that changes or reads the same
            columns of the same tables: no fence, no lock, no pool, no deadline; nothing is verified or translated but
            the metadata

The server has fsync on, in a directory in memory, where a sync costs nothing; so the time is nearly that of the CPU.
The server's CPU is that of all its processes. It is told, and has no goal: the fence is work that bare calls do not do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import asyncpg

from benchmarks.figures import Cell, Figures, options, tell
from benchmarks.rounds import Ratio, run_in_flight, take_turns
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId, Entry, encode
from changelog.postgres.log import PostgresChangeLog
from changelog.postgres.session import asked
from emulators.postgres.server import PostgresServer, postgres_server
from tiered import Metadata
from tiered.metadata import decode_metadata, encode_metadata
from tiered.object_id import blob_name
from tiered.postgres.open import open_postgres
from tiered.postgres.rows import PostgresRows
from tiered.protocol.backends import Inline, Tombstone
from tiered.provision.postgres import provision_postgres
from tiered.settings import PostgresSettings

RUNTIME = SystemRuntime()
ROUNDS = 7
IN_FLIGHT = (1, 16)
OPERATIONS = 600
GOAL = 1.3
PAYLOAD = os.urandom(1024)
SERVER = ("fsync=on", "shared_buffers=128MB", "max_wal_size=1GB")
Used = tuple[float, float]
"""CPU seconds of this process, and of the server."""

_BARE = {
    "put": """INSERT INTO tiered.rows (path, token, metadata, payload, conditional) VALUES ($1, $2, $3, $4, false) ON CONFLICT (path)
        DO UPDATE SET token = excluded.token, metadata = excluded.metadata, payload = excluded.payload""",
    "get": "SELECT token, target, policy, metadata, payload, deadline_ms, crc, conditional FROM tiered.rows WHERE path = $1",
    "delete": "DELETE FROM tiered.rows WHERE path = $1",
    "swap": """WITH mark AS (INSERT INTO tiered.marks VALUES ($1, $2, true, false, 0)) INSERT INTO tiered.rows (path, token, target, policy)
        VALUES ($1, $2, $3, '{}') ON CONFLICT (path) DO UPDATE SET token = excluded.token, target = excluded.target""",
    "settle": "INSERT INTO tiered.marks VALUES ($1, $2, false, true, 0)",
    "record": "INSERT INTO tiered.entries VALUES ($1, $2, 0, NULL)",
    "forget": "DELETE FROM tiered.entries WHERE key = $1",
}
OPERATION_NAMES = tuple(_BARE)


class OurPostgres:
    def __init__(self, rows: PostgresRows, log: PostgresChangeLog) -> None:
        self._rows, self._log = rows, log

    async def do(self, operation: str, path: str, token: ChangeId) -> None:
        match operation:
            case "put":
                assert await self._rows.put_inline(path, token, Inline(Metadata(size=len(PAYLOAD)), PAYLOAD, token))
            case "get":
                state = (await self._rows.read(path)).state
                assert isinstance(state, Inline) and state.payload == PAYLOAD
            case "delete":
                assert await self._rows.delete_inline(path, token)
            case "swap":
                state = Tombstone(blob_name(path, token), None, None, token)
                assert await self._rows.swap(path, token, None, state, RUNTIME.boot_time() + 60)
            case "settle":
                assert not await self._rows.settle(path, token)
            case "record":
                await self._log.record(Change(token, path, blob_name(path, token)), "me")
            case _:
                await self._log.forget(Entry(Change(token, path), token.row_key(), "me"))


class BarePostgres:
    """`free`: connections of which none is in a call."""

    def __init__(self, free: list[Any]) -> None:
        self._free = free

    async def do(self, operation: str, path: str, token: ChangeId) -> None:
        connection = self._free.pop()
        try:
            await self._send(connection, operation, path, token)
        finally:
            self._free.append(connection)

    async def _send(self, connection: Any, operation: str, path: str, token: ChangeId) -> None:
        key, statement = path.encode(), _BARE[operation]
        match operation:
            case "put":
                await connection.execute(statement, key, str(token), encode_metadata(Metadata(size=len(PAYLOAD))), PAYLOAD)
            case "get":
                row = await connection.fetchrow(statement, key)
                assert row["payload"] == PAYLOAD and decode_metadata(row["metadata"]) is not None
            case "swap":
                await connection.execute(statement, key, str(token), blob_name(path, token).encode())
            case "settle":
                await connection.execute(statement, key, str(token))
            case "record":
                entry = Entry(Change(token, path, blob_name(path, token)), token.row_key(), "me")
                await connection.execute(statement, entry.key.encode(), encode(entry))
            case "forget":
                await connection.execute(statement, token.row_key().encode())
            case _:
                await connection.execute(statement, key)


class FencedPostgres(BarePostgres):
    """`sql`: the statements of `PostgresRows` and `PostgresChangeLog`, by operation."""

    def __init__(self, free: list[Any], rows: PostgresRows, log: PostgresChangeLog) -> None:
        super().__init__(free)
        change = rows._sql["change"]
        self._sql = {"put": change, "delete": change, "swap": change, "settle": rows._sql["settle"], "get": rows._sql["read"]}
        self._sql |= {name: log._sql[name] for name in ("record", "forget")}

    async def _send(self, connection: Any, operation: str, path: str, token: ChangeId) -> None:
        key, text, statement = path.encode(), str(token), self._sql[operation]
        head = key, text, None, token.created_ms, token.created_ms, operation == "swap", 0, None, None, None
        match operation:
            case "put":
                metadata = encode_metadata(Metadata(size=len(PAYLOAD)))
                await connection.fetchrow(statement, *head, True, None, None, metadata, PAYLOAD, None, 0, False)
            case "delete":
                await connection.fetchrow(statement, *head, False, None, None, None, None, None, None, False)
            case "swap":
                await connection.fetchrow(statement, *head, True, blob_name(path, token).encode(), "null", None, None, None, 0, False)
            case "settle":
                await connection.fetchrow(statement, key, text, blob_name(path, token).encode())
            case "record":
                entry = Entry(Change(token, path, blob_name(path, token)), token.row_key(), "me")
                await connection.fetch(statement, [entry.key.encode()], [encode(entry)])
            case "forget":
                await connection.fetch(statement, [token.row_key().encode()])
            case _:
                row = await connection.fetchrow(statement, key)
                assert row["payload"] == PAYLOAD and decode_metadata(row["metadata"]) is not None


Side = OurPostgres | BarePostgres


def server_cpu_s(pid: int) -> float:
    """The CPU of the server: its first process, the ones it has now, and those that ended."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(process.name) == pid:
            ticks += sum(map(int, fields[11:15]))  # its own, and that of children that ended
        elif int(fields[1]) == pid:
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


class PostgresContest:
    """All sides do an operation on rows of their own, by turns."""

    def __init__(self, server: PostgresServer, sides: Sequence[Side], in_flight: int, operations: int) -> None:
        self._server, self._sides, self._in_flight, self._operations = server, sides, in_flight, operations
        self._numbers = count()

    async def run(self, rounds: int) -> list[list[Cell]]:
        rows: list[list[Cell]] = []
        measured = await take_turns([partial(self._round, side) for side in self._sides], rounds)
        for place, name in enumerate(OPERATION_NAMES):
            ours, fenced, bare = ([one[place] for one in side] for side in measured)
            (mine, my_server), (theirs, _), (least, least_server) = (zip(*side, strict=True) for side in (ours, fenced, bare))
            rows.append([
                name, str(self._in_flight), f"{median(mine):,.0f}", Ratio.of(mine, theirs), Ratio.of(mine, least),
                f"{median(my_server):,.0f}", f"{median(least_server):,.0f}",
            ])
        return rows

    async def _round(self, side: Side) -> list[Used]:
        """µs of CPU for each of the operations, in their order: what is put is read and deleted, and so on."""
        paths = [f"notes/{type(side).__name__}.{self._in_flight}/objects/{number}" for number in islice(self._numbers, self._operations)]
        tokens = {path: ChangeId.new(RUNTIME) for path in paths}
        used = []
        for name in OPERATION_NAMES:
            async def work(path: str, name: str = name) -> None:
                await side.do(name, f"{path}/{name}" if name in ("swap", "settle") else path, tokens[path])

            used.append(await self._measured(partial(run_in_flight, work, paths, self._in_flight)))
        return used

    async def _measured(self, work: Callable[[], Awaitable[None]]) -> Used:
        before, server_before = time.process_time(), server_cpu_s(self._server.pid)
        await work()
        after, server_after = time.process_time(), server_cpu_s(self._server.pid)
        return (after - before) / self._operations * 1e6, (server_after - server_before) / self._operations * 1e6


async def figures(server: PostgresServer, size: float) -> list[Figures]:
    settings = PostgresSettings.model_validate({"dsn": server.dsn()})
    await provision_postgres(settings, RUNTIME)
    rows: list[list[Cell]] = []
    async with AsyncExitStack() as opened:
        rows_and_log = await opened.enter_async_context(open_postgres(settings, RUNTIME))
        connect = partial(asyncpg.connect, server.dsn(), max_cached_statement_lifetime=0, server_settings=asked(settings.timeout_s))
        free = [await connect() for _ in range(max(IN_FLIGHT))]
        for connection in free:
            opened.push_async_callback(connection.close)
        for in_flight in IN_FLIGHT:
            sides: list[Side] = [OurPostgres(*rows_and_log), FencedPostgres(free, *rows_and_log), BarePostgres(free)]
            contest = PostgresContest(server, sides, in_flight, max(2, round(OPERATIONS * size)))
            await contest.run(1)  # prepares all statements
            rows += await contest.run(ROUNDS)
    columns = ["", "in flight", "ours, µs", "of fenced", "of bare", "server for ours, µs", "server for bare, µs"]
    notes = [
        f"Goal: at most {GOAL} of bare calls. Medians of {ROUNDS} rounds. Fenced: the same statements without our layer.",
        "A row has 1 KiB. Records, and removals of entries, that are under way at the same time share statements.",
        "The server's CPU is counted in ticks of 10 ms, so that of one round is coarse.",
    ]
    return [Figures("CPU per operation on PostgreSQL", columns, rows, notes, named_by=columns[:2])]


async def main() -> None:
    arguments = options("postgres", "CPU per operation on PostgreSQL.", "scales the number of operations (1: about a minute)").parse_args()
    with postgres_server(SERVER) as server:
        tables = await figures(server, arguments.size)
    tell("postgres", tables, arguments.size, arguments.load, arguments.docs)


if __name__ == "__main__":
    anyio.run(main)
