"""Where a world for the audit is planted: the simulated backends, embedded mode, and the emulators.

    AuditGround    tiers, changelog, and one clock for writers and services, which the planter sets as it likes
                   `blob`, `row`, `inline`, `refuse`, `entry`     through the backends themselves
                   `legacy_row`, `raw_entry`, `oddities`          written past them: what older software left
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from random import Random
from typing import Protocol, cast

import anyio.lowlevel
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import SERVER_TIME, BigtableTable, set_cell
from changelog.bigtable.log import FAMILY, BigtableChangeLog
from changelog.change import Change, ChangeId
from changelog.log import ChangeLog, GarbageCollection
from changelog.sqlite.log import Database, SqliteChangeLog
from emulators.gcs.server import GcsEmulator
from emulators.world.services import SimulatedBlobs, SimulatedChangeLog, SimulatedRows
from recovery.audit.finding_classes import FindingClass
from tiered.bigtable.rows import BigtableRows
from tiered.embedded.blobs import FileBlobs
from tiered.embedded.file import path_of
from tiered.embedded.rows import SqliteRows
from tiered.gcs.blobs import GcsBlobs
from tiered.metadata import NS_PER_S, Metadata, TimeToLive
from tiered.services.backends import Inline, Tiers, Tombstone
from tiered.testing.log import StoredEntry

BEGINS_NS = 1_790_000_000 * NS_PER_S
"""When the audit of a planted world begins, by everybody's clock."""
DAY_NS = 86_400 * NS_PER_S
OLD_NS = BEGINS_NS - 3 * DAY_NS

class Expect(Protocol):
    """`size`: of a blob that is listed."""

    def __call__(self, kind: FindingClass, name: str, size: int | None = None) -> None: ...


class SetRuntime(SystemRuntime):
    """A wall clock that stands where it was set, ids and chance that repeat, and sleep that takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.random = Random(5)
        self.now_ns = BEGINS_NS

    def wall_ns(self) -> int:
        return self.now_ns

    async def sleep(self, seconds: float) -> None:
        await anyio.lowlevel.checkpoint()

    def at(self, now_ns: int) -> ChangeId:
        """An id that was made then; and sets the clock."""
        self.now_ns = now_ns
        return ChangeId.new(self)


class AuditGround:
    def __init__(self, clock: SetRuntime, tiers: Tiers, log: ChangeLog) -> None:
        self.clock = clock
        self.tiers = tiers
        self.log = log

    async def blob(self, name: str, size: int, at_ns: int, deadline_ns: int | None) -> None:
        self.clock.now_ns = at_ns
        expiration = None if deadline_ns is None else TimeToLive(ns=max(1, deadline_ns - at_ns))
        upload = await self.tiers.long_term.open_upload(name, Metadata(expiration, at_ns, deadline_ns, size=size), size)
        await upload.write(b"x" * size)
        await upload.finalise()

    async def row(self, path: str, target: str, deadline_ns: int | None) -> None:
        expiration = None if deadline_ns is None else TimeToLive(ns=DAY_NS)
        token, soon_s = self.clock.at(OLD_NS), self.clock.boot_time() + 60
        assert await self.tiers.high_volume.swap(path, token, None, Tombstone(target, expiration, deadline_ns), soon_s)

    async def inline(self, path: str) -> None:
        assert await self.tiers.high_volume.put_inline(path, self.clock.at(OLD_NS), Inline(Metadata(size=1), b"x"))

    async def refuse(self, path: str, token: ChangeId) -> None:
        assert not await self.tiers.high_volume.settle(path, token)

    async def entry(self, change: Change, *, stuck: bool = False) -> None:
        entry = await self.log.record(change, "somebody")
        assert not stuck or await self.log.park(entry, "nobody could clean it up")

    async def legacy_row(self, path: str, deadline_ns: int | None, *, empty: bool) -> None:
        """`empty`: it has an empty `r`; else its `m` says that it is a tombstone. Its target is its own path."""
        await self.row(path, path, deadline_ns)

    async def raw_entry(self, key: str, value: bytes) -> None:
        raise NotImplementedError

    async def collect(self) -> None:
        """What removes expired blobs does so now."""
        await cast(GarbageCollection, self.tiers.long_term).collect(1000)

    async def oddities(self, expect: Expect) -> None:
        """What only this ground can hold."""


# --- simulated -----------------------------------------------------------------------------------


class SimulatedGround(AuditGround):
    def __init__(self) -> None:
        clock = SetRuntime()
        self.stored = SimulatedChangeLog(clock)
        super().__init__(clock, Tiers(SimulatedRows(clock), SimulatedBlobs(clock)), self.stored)

    async def raw_entry(self, key: str, value: bytes) -> None:
        self.stored.stored[key] = StoredEntry(value, 0)


# --- embedded ------------------------------------------------------------------------------------


class EmbeddedGround(AuditGround):
    def __init__(self, root: Path, clock: SetRuntime, database: Database, blobs: FileBlobs) -> None:
        super().__init__(clock, Tiers(SqliteRows(database, clock), blobs), SqliteChangeLog(database, clock))
        self.root = root
        self._database = database

    def file_of(self, name: str) -> Path:
        return self.root / "blobs" / path_of(name)

    async def blob(self, name: str, size: int, at_ns: int, deadline_ns: int | None) -> None:
        """The file's own time, too, is `at_ns`: this ground has one clock."""
        await super().blob(name, size, at_ns, deadline_ns)
        self.set_time(name, at_ns)

    def set_time(self, name: str, at_ns: int) -> None:
        os.utime(self.file_of(name), ns=(at_ns, at_ns))

    async def raw_entry(self, key: str, value: bytes) -> None:
        await self.sql("INSERT INTO changes VALUES (?, ?, 0, NULL)", key, value)

    async def sql(self, statement: str, *values: object) -> None:
        def run(connection: sqlite3.Connection) -> None:
            connection.execute(statement, values)

        await self._database.write(run)

    async def oddities(self, expect: Expect) -> None:
        target = f"corrupt/objects/row/{self.clock.at(OLD_NS)}"
        await self.sql("INSERT INTO rows (path, target, policy) VALUES (CAST(X'FF2F' AS TEXT), ?, '{}')", target)
        expect(FindingClass.CORRUPT_ROW, "\\xff/")
        expect(FindingClass.MISFILED, target)
        await self.sql("INSERT INTO rows (path, target, policy) VALUES ('corrupt/objects/target', CAST(X'FE' AS TEXT), '{}')")
        expect(FindingClass.CORRUPT_ROW, "corrupt/objects/target")
        blobs = self.root / "blobs"
        for name, kind in (("corrupt/objects/cut", FindingClass.CORRUPT_BLOB), ("corrupt/objects/named", FindingClass.DESTROYED)):
            name = f"{name}/{self.clock.at(OLD_NS)}"
            await self.blob(name, 5, OLD_NS, None)
            path = blobs / path_of(name)
            path.write_bytes(path.read_bytes()[:-1])
            expect(kind, name, path.stat().st_size)
            if "named" in name:
                await self.row(name.rpartition("/")[0], name, None)
        deeper = next(each for each in blobs.iterdir() if each.is_dir())
        for stranger in (blobs / "NOTES.txt", blobs / "refs%2", deeper / "~c3", deeper / "Copy of k"):
            stranger.write_bytes(b"what is this?")
            expect(FindingClass.FOREIGN, str(stranger), stranger.stat().st_size)
        for stranger in (blobs / "lost+found", deeper / "sub"):
            stranger.mkdir()
            (stranger / "below").write_bytes(b"never looked at")
            expect(FindingClass.FOREIGN, str(stranger))


def ground_of(kind: str, request: pytest.FixtureRequest, root: Path) -> AbstractAsyncContextManager[AuditGround]:
    """`kind`: "simulated", "embedded" or "emulators", the last with the `fresh_table` of the test that requests it."""
    if kind == "simulated":
        return nullcontext(SimulatedGround())
    return embedded_ground(root) if kind == "embedded" else emulated_ground(request.getfixturevalue("fresh_table"))


@asynccontextmanager
async def embedded_ground(root: Path) -> AsyncIterator[AuditGround]:
    clock = SetRuntime()
    async with Database.open(root / "tiered.db", clock) as database:
        yield EmbeddedGround(root, clock, database, await FileBlobs.open_directory(root, clock))


# --- emulators -----------------------------------------------------------------------------------

LIFECYCLE = {"rule": [{"action": {"type": "Delete"}, "condition": {"daysSinceCustomTime": 1}}]}
LEGACY_TOMBSTONE = b'{"is_redirect_tombstone":true,"content_type":"application/octet-stream"}'


class EmulatedGround(AuditGround):
    """Rows and log share a table, as they may."""

    def __init__(self, clock: SetRuntime, table: BigtableTable, blobs: GcsBlobs, server: GcsEmulator) -> None:
        super().__init__(clock, Tiers(BigtableRows(table, clock), blobs), BigtableChangeLog(table, clock))
        self.table = table
        self._server = server

    async def collect(self) -> None:
        await self._server.apply_lifecycle()

    async def legacy_row(self, path: str, deadline_ns: int | None, *, empty: bool) -> None:
        family, timestamp_us = ("fm", SERVER_TIME) if deadline_ns is None else ("fg", deadline_ns // 1000)
        cells = {b"r": b""} if empty else {b"m": LEGACY_TOMBSTONE, b"p": b""}
        await self.table.mutate(path.encode(), *(set_cell(family, column, value, timestamp_us) for column, value in cells.items()))

    async def raw_entry(self, key: str, value: bytes) -> None:
        await self.table.mutate(key.encode(), set_cell(FAMILY, b"c", value))

    async def oddities(self, expect: Expect) -> None:
        target = f"corrupt/objects/row/{self.clock.at(OLD_NS)}".encode()
        await self.table.mutate(b"\xff/", set_cell("fm", b"r", target))
        expect(FindingClass.CORRUPT_ROW, "\\xff/")
        expect(FindingClass.MISFILED, target.decode())
        await self.table.mutate(b"corrupt/objects/target", set_cell("fm", b"r", b"\xfe"))
        expect(FindingClass.CORRUPT_ROW, "corrupt/objects/target")
        path, names = "corrupt/objects/twice", []
        for family in ("fm", "fg"):  # it could mean either, so both are spared
            names.append(name := f"{path}/{self.clock.at(OLD_NS)}")
            await self.blob(name, 5, OLD_NS, None)
            timestamp_us = SERVER_TIME if family == "fm" else (BEGINS_NS + DAY_NS) // 1000
            await self.table.mutate(path.encode(), set_cell(family, b"r", name.encode(), timestamp_us))
            expect(FindingClass.REFERENCED, name, 5)
        expect(FindingClass.CORRUPT_ROW, path)


@asynccontextmanager
async def emulated_ground(fresh_table: Callable[[], AbstractAsyncContextManager[BigtableTable]]) -> AsyncIterator[AuditGround]:
    clock = SetRuntime()
    async with (
        fresh_table() as table, GcsEmulator(runtime=clock) as server,
        GcsBlobs.connect(server.create_bucket("blobs", {"lifecycle": LIFECYCLE}).name, clock, endpoint=server.url) as blobs,
    ):  # fmt: skip
        yield EmulatedGround(clock, table, blobs, server)
