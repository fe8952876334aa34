"""Where the CPU of an embedded put goes. `embedded.py` runs this, in a memory disk, with one put under way.

Each part is the CPU of all threads of the process for one call, the least of some rounds: of a moment in which nobody
disturbs. What a part contains is subtracted from it, so the parts of a put add up to the put.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from anyio import CapacityLimiter, to_thread

from benchmarks.figures import Figures
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from changelog.sqlite.database import Database
from changelog.sqlite.log import SqliteChangeLog
from tiered import Metadata, ObjectId, Settings, open_storage
from tiered.embedded.blobs import FileBlobs
from tiered.embedded.crc32 import crc32
from tiered.embedded.rows import SqliteRows
from tiered.protocol.backends import Inline, Tombstone
from tiered.stored import CHUNK_BYTES
from tiered.testing import memory_storage

RUNTIME = SystemRuntime()
ROUNDS = 9
SMALL, LARGE = os.urandom(1024), os.urandom(2 << 20)
AT_ONCE_S = 60.0


@dataclass
class Least:
    """The least CPU of each part, in microseconds per call."""

    calls: int
    us: dict[str, float] = field(default_factory=dict)

    async def of(self, part: str, call: Callable[[], Awaitable[object]]) -> None:
        """Measures `calls` calls in a row. The least of all calls of this method counts."""
        began = time.process_time()
        for _ in range(self.calls):
            await call()
        took = (time.process_time() - began) / self.calls * 1e6
        self.us[part] = min(took, self.us.get(part, took))

    def figures(self, title: str, total: str, rows: list[tuple[str, str, float]], *notes: str) -> Figures:
        """The parts, and last what the whole took."""
        cells = [[what, whose, f"{us:.0f}"] for what, whose, us in rows]
        return Figures(title, ["part", "whose", "CPU µs"], [*cells, ["sum", "", f"{self.us[total]:.0f}"]], [*notes])


async def figures(directory: Path, size: float) -> list[Figures]:
    """Both tables. `directory`: in a memory disk. `size` scales how many calls are made."""
    return [await small_put(directory, max(10, round(300 * size))), await large_put(directory, max(3, round(20 * size)))]


async def small_put(directory: Path, calls: int) -> Figures:
    least, names, one = Least(calls), count(), CapacityLimiter(1)
    bare = sqlite3.connect(directory / "bare.db", isolation_level=None, check_same_thread=False)
    for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "CREATE TABLE object (name TEXT PRIMARY KEY, payload BLOB)"):
        bare.execute(statement)

    def insert() -> None:
        bare.execute("INSERT INTO object VALUES (?, ?)", (f"{next(names):08}", SMALL))

    async def insert_here() -> None:
        insert()

    async with AsyncExitStack() as opened:
        database = await opened.enter_async_context(Database.open(directory / "small.db", RUNTIME))
        storage = await opened.enter_async_context(open_storage(Settings(directory=directory / "small", changelog="sqlite")))
        in_memory = await opened.enter_async_context(memory_storage())
        rows, metadata = SqliteRows(database, RUNTIME), Metadata(size=len(SMALL), time_created_ns=RUNTIME.wall_ns())

        async def put_row() -> None:
            token = ChangeId.new(RUNTIME)
            await rows.put_inline(f"bench/objects/{next(names):08}", token, Inline(metadata, SMALL, token))

        for _ in range(ROUNDS):
            await least.of("hop", lambda: to_thread.run_sync(int, limiter=one))
            await least.of("insert", insert_here)
            await least.of("bare", lambda: to_thread.run_sync(insert, limiter=one))
            await least.of("empty", lambda: database.write(lambda connection: None))
            await least.of("row", put_row)
            await least.of("put", lambda: storage.put(ObjectId.create("bench", f"{next(names):08}"), SMALL))
            await least.of("no disk", lambda: in_memory.put(ObjectId.create("bench", f"{next(names):08}"), SMALL))
    bare.close()
    us = least.us
    return least.figures(
        "A put of 1 KiB: where the CPU goes", "put",
        [
            ("into the writer's thread and back, an empty transaction, is the file still there", "anyio, SQLite", us["empty"]),
            ("one insert, as a bare one does it", "SQLite", us["insert"]),
            ("the rest of the row: what is there, metadata, checksum, space on the disk", "changelog/sqlite, tiered/embedded",
             us["row"] - us["empty"] - us["insert"]),
            ("arguments, slot, id, budget, breaker, answer", "tiered/storage.py, tiered/protocol", us["put"] - us["row"]),
        ],
        f"A bare insert in a thread took {us['bare']:.0f} µs: {us['hop']:.0f} into a thread of anyio and back, and {us['insert']:.0f} the"
        " insert.",
        f"The same put into a store in memory took {us['no disk']:.0f} µs: no thread, no SQLite, no bytes of a row.",
    )  # fmt: skip


async def large_put(directory: Path, calls: int) -> Figures:
    least, names, one = Least(calls), count(), CapacityLimiter(1)
    files = directory / "files"
    files.mkdir()

    def write() -> None:
        path = files / f"{next(names):08}"
        with path.open("xb") as file:
            file.write(LARGE)
            file.flush()
            os.fsync(file.fileno())
        path.rename(path.with_suffix(".done"))

    async def clear() -> None:
        for path in files.iterdir():
            path.unlink()
        for number in range(first, next(names)):
            name = f"bench/objects/{number:08}"
            await storage.delete(ObjectId.parse(name))
            for blob in (await blobs.list(f"{name}/", f"{name}0", 2)).blobs:
                await blobs.delete(blob.name)

    async def checksum() -> None:
        for start in range(0, len(LARGE), CHUNK_BYTES):
            crc32(memoryview(LARGE)[start : start + CHUNK_BYTES])

    async with AsyncExitStack() as opened:
        database = await opened.enter_async_context(Database.open(directory / "large.db", RUNTIME))
        storage = await opened.enter_async_context(open_storage(Settings(directory=directory / "large", changelog="sqlite")))
        rows, log = SqliteRows(database, RUNTIME), SqliteChangeLog(database, RUNTIME)
        blobs = await FileBlobs.open_directory(directory, RUNTIME)

        async def upload() -> None:
            sent = await blobs.open_upload(f"bench/objects/{next(names):08}/{ChangeId.new(RUNTIME)}", Metadata(), len(LARGE))
            for start in range(0, len(LARGE), CHUNK_BYTES):
                await sent.write(memoryview(LARGE)[start : start + CHUNK_BYTES])
            await sent.finalise()

        async def change() -> None:
            token, path = ChangeId.new(RUNTIME), f"bench/objects/{next(names):08}"
            await rows.read(path)
            entry = await log.record(Change(token, path, f"{path}/{token}", None, str(token)), "bench")
            await rows.swap(path, token, None, Tombstone(f"{path}/{token}", None, None, token), RUNTIME.boot_time() + AT_ONCE_S)
            await log.forget(entry)

        for _ in range(ROUNDS):
            first = next(names)
            await least.of("write", lambda: to_thread.run_sync(write, limiter=one))
            await least.of("checksum", checksum)
            await least.of("upload", upload)
            await least.of("change", change)
            await least.of("put", lambda: storage.put(ObjectId.create("bench", f"{next(names):08}"), LARGE))
            await clear()
    us = least.us
    return least.figures(
        "A put of 2 MiB: where the CPU goes", "put",
        [
            ("a file is written, synced and renamed in one thread, as a bare write does it", "the kernel, anyio", us["write"]),
            ("CRC-32 of the blocks", "ISA-L", us["checksum"]),
            ("the rest of the upload: two more calls into a thread, lock, link, trailer, directory", "tiered/embedded",
             us["upload"] - us["write"] - us["checksum"]),
            ("a row is read; an entry written, the row swapped, the entry deleted: four calls into a thread, three of them transactions",
             "changelog/sqlite, tiered/embedded", us["change"]),
            ("arguments, chunks, slot, tasks, lease, budgets", "tiered/storage.py, tiered/protocol",
             us["put"] - us["upload"] - us["change"]),
        ],
        "The first line is all that a bare write does.",
    )  # fmt: skip
