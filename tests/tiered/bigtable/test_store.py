"""The whole store on Bigtable's rows and changelog, with blobs in a directory.

Its life, and what a dead process left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable
from changelog.bigtable.log import BigtableChangeLog
from changelog.change import Change, ChangeId
from recovery.loop import RecoveryLoop
from tiered.bigtable.rows import BigtableRows
from tiered.embedded.blobs import FileBlobs
from tiered.metadata import Metadata
from tiered.object_id import ObjectId, blob_name
from tiered.protocol.backends import Tiers
from tiered.settings import Settings
from tiered.storage import TieredStorage

pytestmark = pytest.mark.anyio

RUNTIME = SystemRuntime()
SMALL, LARGE = b"small", b"large" * 1000


class BigtableWorld:
    """Rows and changelog side by side in one table, and what stands on them."""

    def __init__(self, table: BigtableTable, blobs: FileBlobs, directory: Path) -> None:
        self.tiers = Tiers(BigtableRows(table, RUNTIME), blobs)
        self.log = BigtableChangeLog(table, RUNTIME)
        self.settings = Settings(directory=directory, changelog="noop", inline_bytes_max=100)

    def store(self) -> TieredStorage:
        return TieredStorage(self.tiers, self.log, RUNTIME, self.settings)

    async def blob_names(self) -> list[str]:
        return [blob.name for blob in (await self.tiers.long_term.list("", None, 1000)).blobs]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def world(
    anyio_backend: str, fresh_table: Callable[[], AbstractAsyncContextManager[BigtableTable]], tmp_path: Path
) -> AsyncIterator[BigtableWorld]:
    async with fresh_table() as table:
        yield BigtableWorld(table, await FileBlobs.open_directory(tmp_path / "store", RUNTIME), tmp_path)


async def test_objects_live_and_die_and_leave_nothing(world: BigtableWorld) -> None:
    object_id = ObjectId.create("notes", "k", {"org": "1"})
    async with world.store() as storage:
        for payload in (LARGE, SMALL, LARGE + b"2", LARGE + b"3"):
            await storage.put(object_id, payload)
            found = await storage.get(object_id)
            assert found is not None
            async with found:
                assert await found.read() == payload
            assert [entry.object_id async for entry in storage.list()] == [object_id]
        await storage.delete(object_id)
        assert await storage.get(object_id) is None
    assert (await world.log.entries("", 10)).entries == () and await world.blob_names() == []


async def test_concurrent_writers_of_one_object_leave_one_of_them_and_its_blob(world: BigtableWorld) -> None:
    object_id = ObjectId.create("notes", "k")
    async with world.store() as one, world.store() as other, anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon((one, other)[number % 2].put, object_id, LARGE + str(number).encode())
    target = (await world.tiers.high_volume.read(object_id.path)).target
    assert await world.blob_names() == [target]
    assert (await world.log.entries("", 10)).entries == ()


async def test_recovery_removes_what_a_dead_writer_uploaded_and_keeps_what_won(world: BigtableWorld) -> None:
    object_id = ObjectId.create("notes", "k")
    async with world.store() as storage:
        await storage.put(object_id, LARGE)
    before = await world.blob_names()
    change_id = ChangeId.new(RUNTIME)
    dead = Change(change_id, object_id.path, blob_name(object_id.path, change_id), before[0])
    entry = await world.log.record(dead, "dead")
    upload = await world.tiers.long_term.open_upload(blob_name(object_id.path, change_id), Metadata(), 5)
    await upload.write(b"orph")
    await upload.write(b"a")
    await upload.finalise()
    assert len(await world.blob_names()) == 2
    assert await world.log.release(entry)
    recovery = RecoveryLoop(world.tiers, world.log, RUNTIME, world.settings)
    await recovery.run_once()
    assert await world.blob_names() == before
    row = await world.tiers.high_volume.read(object_id.path, marks=True)
    assert change_id in row.refused and row.target == before[0]
