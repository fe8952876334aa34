"""Rows and entries that break the format, under the whole store: they are named, parked and never deleted."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from changelog.base.errors import CorruptRecordError
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable, set_cell
from changelog.bigtable.log import BigtableChangeLog
from changelog.change import Change, ChangeId, Entry
from emulators.world.services import SimulatedBlobs
from recovery.loop import RecoveryLoop
from tiered.bigtable.rows import BigtableRows
from tiered.metadata import Metadata
from tiered.object_id import ObjectId, ObjectPrefix, blob_name
from tiered.services.backends import Tiers
from tiered.settings import Settings
from tiered.storage import TieredStorage

pytestmark = pytest.mark.anyio

RUNTIME = SystemRuntime()
SMALL, LARGE = b"small", b"large" * 100
OBJECT, BYSTANDER = ObjectId.create("notes", "broken", {"org": "1"}), ObjectId.create("notes", "whole")
PLAIN = b'{"content_type":"application/octet-stream","size":5}'
TARGET = f"{OBJECT.path}/018bcfe5-6800-7000-8000-000000000001".encode()
SETTINGS = Settings(directory=Path("emulated"), changelog="noop", inline_bytes_max=100)
Cells = dict[tuple[str, bytes], bytes]

OBJECTS: dict[str, Cells] = {
    "metadata is no JSON": {("fm", b"p"): b"x", ("fm", b"m"): b"{"},
    "no payload": {("fm", b"m"): PLAIN},
    "no metadata, of ours": {("fm", b"p"): b"hello", ("fm", b"v"): b"018bcfe5-6800-7000-8000-000000000001"},
    "no change id": {("fm", b"p"): b"x", ("fm", b"m"): PLAIN, ("fm", b"v"): b"me"},
}
TOMBSTONES: dict[str, Cells] = {
    "an object and a tombstone": {("fm", b"p"): b"x", ("fm", b"m"): PLAIN, ("fm", b"r"): TARGET},
    "in both families": {("fm", b"r"): TARGET, ("fg", b"r"): TARGET},
    "no UTF-8": {("fm", b"r"): b"\xff"},
    "no policy": {("fm", b"r"): TARGET, ("fm", b"t"): b"[]"},
    "a policy too deep to read": {("fm", b"r"): TARGET, ("fm", b"t"): b"[" * 100_000},
}
ROWS = OBJECTS | TOMBSTONES


class CorruptWorld:
    def __init__(self, table: BigtableTable) -> None:
        self.table = table
        self.blobs = SimulatedBlobs(RUNTIME)
        self.tiers = Tiers(BigtableRows(table, RUNTIME), self.blobs)
        self.log = BigtableChangeLog(table, RUNTIME)

    def store(self) -> TieredStorage:
        return TieredStorage(self.tiers, self.log, RUNTIME, SETTINGS)

    def recovery(self) -> RecoveryLoop:
        return RecoveryLoop(self.tiers, self.log, RUNTIME, SETTINGS)

    async def plant(self, cells: Cells, path: str = OBJECT.path) -> None:
        await self.table.mutate(path.encode(), *(set_cell(family, column, value) for (family, column), value in cells.items()))

    async def planted(self, path: str = OBJECT.path) -> Cells:
        row = await self.table.read(path.encode())
        return {} if row is None else {(cell.family, cell.column): cell.value for cell in row.cells}

    async def upload(self, name: str) -> None:
        upload = await self.blobs.open_upload(name, Metadata(), len(LARGE))
        await upload.write(LARGE)
        await upload.finalise()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def world(anyio_backend: str, fresh_table: Callable[[], AbstractAsyncContextManager[BigtableTable]]) -> AsyncIterator[CorruptWorld]:
    async with fresh_table() as table:
        yield CorruptWorld(table)


async def read(storage: TieredStorage, object_id: ObjectId) -> bytes | None:
    stored = await storage.get(object_id)
    return None if stored is None else await stored.read()


# --- rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ROWS)
async def test_reading_a_corrupt_row_names_it_and_leaves_it(world: CorruptWorld, fault: str) -> None:
    await world.plant(ROWS[fault])
    async with world.store() as storage:
        for read in (storage.get, storage.head):
            with pytest.raises(CorruptRecordError, match=OBJECT.path):
                await read(OBJECT)
    assert await world.planted() == ROWS[fault]


@pytest.mark.parametrize("fault", OBJECTS)
async def test_a_small_put_or_a_deletion_replaces_a_corrupt_object(world: CorruptWorld, fault: str) -> None:
    """Neither reads it, and no blob can be lost by it."""
    async with world.store() as storage:
        await world.plant(OBJECTS[fault])
        await storage.put(OBJECT, SMALL)
        assert await read(storage, OBJECT) == SMALL
        await world.plant(OBJECTS[fault])
        await storage.delete(OBJECT)
        assert await read(storage, OBJECT) is None


WRITES: dict[str, Callable[[TieredStorage], Awaitable[object]]] = {
    "put small": lambda storage: storage.put(OBJECT, SMALL),
    "put large": lambda storage: storage.put(OBJECT, LARGE),
    "delete": lambda storage: storage.delete(OBJECT),
}


@pytest.mark.parametrize(("fault", "write"), [
    *((fault, write) for fault in TOMBSTONES for write in WRITES), *((fault, "put large") for fault in OBJECTS)
])  # fmt: skip
async def test_what_must_know_the_row_to_replace_it_refuses_to_and_leaves_no_trace(world: CorruptWorld, fault: str, write: str) -> None:
    """Which blob it redirects to is not certain, and that blob would be lost."""
    await world.plant(ROWS[fault])
    await world.upload(TARGET.decode())
    async with world.store() as storage:
        with pytest.raises(CorruptRecordError, match=OBJECT.path):
            await WRITES[write](storage)
    assert await world.planted() == ROWS[fault]
    assert list(world.blobs.blobs) == [TARGET.decode()] and world.blobs.uploads == {}
    assert (await world.log.entries("", 10)).entries == ()


@pytest.mark.parametrize("fault", ROWS)
async def test_a_list_goes_on_beyond_a_corrupt_row(world: CorruptWorld, fault: str) -> None:
    await world.plant(ROWS[fault])
    async with world.store() as storage:
        await storage.put(BYSTANDER, SMALL)
        listed = [entry.object_id async for entry in storage.list()]
    assert BYSTANDER in listed and set(listed) <= {OBJECT, BYSTANDER}


async def test_a_list_goes_on_beyond_a_key_that_is_no_text_and_the_log_names_it(
    world: CorruptWorld, caplog: pytest.LogCaptureFixture
) -> None:
    for key in (b"notes/objects/\xff", b"\xfe", b"\xff" * 100):
        await world.table.mutate(key, set_cell("fm", b"p", b""), set_cell("fm", b"m", PLAIN))
    async with world.store() as storage:
        await storage.put(BYSTANDER, SMALL)
        with caplog.at_level(logging.WARNING, "tiered"):
            assert [entry.object_id async for entry in storage.list()] == [BYSTANDER]
        assert r"corrupt_row path=notes/objects/\xff" in caplog.text and r"path=\xfe" in caplog.text
        assert [entry.object_id async for entry in storage.list(ObjectPrefix.create("notes", "w"))] == [BYSTANDER]


ZERO = b'{"expiration_policy":{"%s":{"secs":0,"nanos":0}},"content_type":"application/octet-stream"}'


@pytest.mark.parametrize("kind", [b"TimeToLive", b"TimeToIdle"])
async def test_a_lifetime_of_zero_is_expired_and_not_corrupt(world: CorruptWorld, kind: bytes) -> None:
    objects: list[Cells] = [{("fg", b"p"): b"x", ("fg", b"m"): ZERO % kind}, {("fg", b"r"): TARGET, ("fg", b"t"): ZERO % kind}]
    for cells in objects:
        await world.table.mutate(OBJECT.path.encode(), *(
            set_cell(family, column, value, 1_700_000_000_000_000) for (family, column), value in cells.items()
        ))  # fmt: skip
        async with world.store() as storage:
            assert await storage.get(OBJECT) is None and await storage.head(OBJECT) is None
            assert [entry.object_id async for entry in storage.list()] == []
            await storage.delete(OBJECT)


# --- entries -------------------------------------------------------------------------------------

ENTRIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b'{"v":1,"id":"\xff"}',
    "a version that is no number": b'{"v":null,"id":"notes/objects/broken","new":null,"old":null,"owner":"","attempt":0}',
    "no object": b'{"v":1,"new":null,"old":null,"owner":"","attempt":0}',
    "an attempt that is no number": b'{"v":1,"id":"notes/objects/broken","new":null,"old":null,"owner":"","attempt":"many"}',
}


async def leave_behind(world: CorruptWorld, object_id: ObjectId) -> str:
    """A blob, and an entry that nobody owns, as of a writer that died before its swap. The blob's name."""
    change_id = ChangeId.new(RUNTIME)
    name = blob_name(object_id.path, change_id)
    await world.upload(name)
    assert await world.log.release(await world.log.record(Change(change_id, object_id.path, name, None, "session"), "dead"))
    return name


@pytest.mark.parametrize("fault", ENTRIES)
async def test_recovery_parks_what_is_no_entry_and_recovers_the_others(world: CorruptWorld, fault: str) -> None:
    change_id = ChangeId.new(RUNTIME)
    await world.table.mutate(change_id.row_key().encode(), set_cell("fc", b"c", ENTRIES[fault], 1000))
    await leave_behind(world, BYSTANDER)
    report = await world.recovery().run_once()
    assert (report.parked, report.recovered, report.failed) == (1, 1, 0)
    [parked] = (await world.log.entries("", 10)).entries
    assert parked.stuck is not None and parked.key == change_id.row_key()
    assert (await world.planted(parked.key))["fc", b"c"] == ENTRIES[fault] and not world.blobs.blobs
    assert (await world.recovery().run_once()).seen == 0, "it is no work any more"


CHANGES: dict[str, Callable[[ChangeId], Change]] = {
    "a new blob that is not of its object": lambda id: Change(id, OBJECT.path, f"{BYSTANDER.path}/{id}", None, "session"),
    "an old blob that is not of its object": lambda id: Change(id, OBJECT.path, None, BYSTANDER.path),
}


@pytest.mark.parametrize("fault", CHANGES)
async def test_recovery_parks_an_entry_that_names_blobs_of_others_and_deletes_none_of_them(world: CorruptWorld, fault: str) -> None:
    change_id = ChangeId.new(RUNTIME)
    change = CHANGES[fault](change_id)
    foreign = change.new or change.old
    assert foreign is not None
    await world.upload(foreign)
    assert await world.log.release(await world.log.record(change, "dead"))
    await leave_behind(world, BYSTANDER)
    report = await world.recovery().run_once()
    assert (report.parked, report.recovered, report.failed) == (1, 1, 0)
    [parked] = (await world.log.entries("", 10)).entries
    assert isinstance(parked, Entry) and parked.stuck is not None and foreign in parked.stuck.error
    assert list(world.blobs.blobs) == [foreign]


@pytest.mark.parametrize("fault", ROWS)
async def test_recovery_over_a_corrupt_row_deletes_only_what_the_row_cannot_show_any_more(world: CorruptWorld, fault: str) -> None:
    """To settle needs no reading: the refused mark is right whatever else the row holds. What the row shows stays."""
    await world.plant(ROWS[fault])
    await world.upload(TARGET.decode())
    await leave_behind(world, OBJECT)
    assert (await world.recovery().run_once()).recovered == 1
    assert list(world.blobs.blobs) == [TARGET.decode()]
    planted = await world.planted()
    assert {name: value for name, value in planted.items() if name[0] != "ff"} == ROWS[fault]


@pytest.mark.parametrize("fault", ROWS)
async def test_recovery_that_would_have_to_read_a_corrupt_row_parks_the_entry_and_deletes_nothing(world: CorruptWorld, fault: str) -> None:
    """An old blob without a revision has no token to settle: only the row tells whether it is garbage."""
    await world.plant(ROWS[fault])
    await world.upload(OBJECT.path)
    assert await world.log.release(await world.log.record(Change(ChangeId.new(RUNTIME), OBJECT.path, None, OBJECT.path), "dead"))
    report = await world.recovery().run_once()
    assert (report.parked, report.recovered, report.failed) == (1, 0, 0)
    [parked] = (await world.log.entries("", 10)).entries
    assert parked.stuck is not None and OBJECT.path in parked.stuck.error and list(world.blobs.blobs) == [OBJECT.path]
