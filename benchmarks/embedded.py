"""An embedded store beside what a user would write instead, on the same disk, by turns.

    1 KiB    one row of SQLite for each object, in a transaction of its own (`synchronous=FULL`)
    2 MiB    a temporary file that is written, synced and renamed

Both run in threads, as an async service would have to. On a disk, most of the time of a put is that of the syncs, which
both sides make. In a memory disk a sync costs nothing, so all of the time is CPU, some of it the kernel's.
Each round deletes what it has put: files that stay would fill a memory disk, and new pages of memory cost more.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from anyio import CapacityLimiter, to_thread

from benchmarks.harness import Contest, Figures, Measure, put_get_delete
from benchmarks.sides import StoreSide
from changelog.change import ChangeId
from tiered import Settings

DISKS = {"disk": "/var/tmp", "memory": "/dev/shm"}
IN_FLIGHT = (1, 16)
SMALL, LARGE = os.urandom(1024), os.urandom(2 * 1024 * 1024)
TABLE = "CREATE TABLE object (name TEXT PRIMARY KEY, payload BLOB)"
MEASURES = (Measure("clock_s", "ms"), Measure("cpu_s", "ms", "CPU: "))


class BareSqlite:
    def __init__(self, path: Path) -> None:
        self._one_at_a_time = CapacityLimiter(1)
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", TABLE):
            self.connection.execute(statement)

    async def put(self, name: str, token: ChangeId, payload: bytes) -> None:
        await self._execute("INSERT INTO object VALUES (?, ?)", name, payload)

    async def get(self, name: str) -> bytes | None:
        [[payload]] = await self._execute("SELECT payload FROM object WHERE name = ?", name)
        return bytes(payload)

    async def delete(self, name: str, token: ChangeId) -> None:
        await self._execute("DELETE FROM object WHERE name = ?", name)

    async def _execute(self, statement: str, *values: str | bytes) -> list[Any]:
        return await to_thread.run_sync(lambda: self.connection.execute(statement, values).fetchall(), limiter=self._one_at_a_time)


class BareFiles:
    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory

    async def put(self, name: str, token: ChangeId, payload: bytes) -> None:
        await to_thread.run_sync(self._write, self._path(name), payload)

    async def get(self, name: str) -> bytes | None:
        return await to_thread.run_sync(self._path(name).read_bytes)

    async def delete(self, name: str, token: ChangeId) -> None:
        await to_thread.run_sync(self._unlink, self._path(name))

    def _path(self, name: str) -> Path:
        return self._directory / name.rpartition("/")[2]

    def _write(self, path: Path, payload: bytes) -> None:
        temporary = path.with_suffix(".tmp")
        with temporary.open("xb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        self._sync()

    def _unlink(self, path: Path) -> None:
        path.unlink()
        self._sync()  # as the store does it, so that it is over when the next round begins

    def _sync(self) -> None:
        folder = os.open(self._directory, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


async def figures(size: float) -> list[Figures]:
    contest = Contest[Any]("Embedded store", {}, 9, MEASURES, ("", "where", "in flight"))
    for disk, place in DISKS.items():
        async with AsyncExitStack() as opened:
            root = Path(opened.enter_context(TemporaryDirectory(prefix="tiered-bench-", dir=place)))
            store = await opened.enter_async_context(StoreSide.open(Settings(directory=root / "store", changelog="sqlite")))
            sqlite, files = BareSqlite(root / "bare.db"), BareFiles(root / "bare")
            opened.callback(sqlite.connection.close)
            for payload, what, other, number in ((SMALL, " 1 KiB", sqlite, 300), (LARGE, " 2 MiB", files, 20)):
                contest.sides = {"ours": store, "bare": other}
                for in_flight in IN_FLIGHT:
                    await contest.run(put_get_delete(payload, what), max(2, round(number * size)), in_flight, disk, str(in_flight))
    return [contest.figures()]
