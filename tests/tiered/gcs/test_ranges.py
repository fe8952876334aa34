"""`save` from GCS, on our emulator: ranges that are cut, stall, come short or damaged."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from emulators.gcs.media import media
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from tiered import ByteRange, ObjectId, Settings, StoredObject, TieredStorage, UnavailableError
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.http import Media
from tiered.services.backends import DamagedError, Tiers
from tiered.testing.log import MemoryChangeLog
from tiered.testing.rows import MemoryRows
from tiered.transfer import lanes
from tiered.transfer.reading import BucketRanges, BucketReader

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MIB = 1024 * 1024
OBJECT = ObjectId.create("notes", "large")
PAYLOAD = os.urandom(9 * MIB + 7)
RUNTIME = SystemRuntime()
READ = "object.read"


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "PART_BYTES", MIB)
    monkeypatch.setattr(lanes, "LANES_MAX", 4)


@asynccontextmanager
async def a_store(server: GcsEmulator, store: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[TieredStorage]:
    settings = Settings(directory="unused", store=store or {})
    async with GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url, **({"answer_timeout_s": 0.5} | options)) as blobs:
        tiers = Tiers(MemoryRows(RUNTIME), blobs)
        async with TieredStorage(tiers, MemoryChangeLog(RUNTIME), RUNTIME, settings) as storage:
            yield storage


@pytest.fixture
async def storage(server: GcsEmulator) -> AsyncIterator[TieredStorage]:
    async with a_store(server) as storage:
        await storage.put(OBJECT, PAYLOAD)
        server.calls.clear()
        yield storage
        assert storage._reader._lanes.free == 64


async def opened(storage: TieredStorage, range: ByteRange | None = None, **options: Any) -> StoredObject:
    stored = await storage.get(OBJECT, range, **options)
    assert stored is not None
    return stored


def left_beside(file: Path) -> list[str]:
    return sorted(path.name for path in file.parent.iterdir())


# --- the ranges ----------------------------------------------------------------------------------


@pytest.mark.parametrize("span", [None, ByteRange(5, 7 * MIB), ByteRange(-3 * MIB), ByteRange(10, 10), ByteRange(1, MIB)])
async def test_a_file_has_the_bytes_of_the_range(storage: TieredStorage, tmp_path: Path, span: ByteRange | None) -> None:
    stored = await opened(storage, span)
    await stored.save(tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes() == PAYLOAD[stored.start : stored.stop]
    assert left_beside(tmp_path / "saved") == ["saved"]


async def test_each_part_is_one_request_and_the_blob_is_looked_at_once(
    storage: TieredStorage, server: GcsEmulator, tmp_path: Path
) -> None:
    await (await opened(storage)).save(tmp_path / "saved")
    assert server.calls.count("object.get") == 1
    assert 4 <= server.calls.count(READ) <= 10 and len(server.calls) == 1 + server.calls.count(READ)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("mode", [
    FaultMode.TRUNCATE, FaultMode.DROP_BEFORE, FaultMode.DROP_AFTER, FaultMode.STALL_AFTER, FaultMode.STATUS,
])  # fmt: skip
async def test_a_range_that_fails_is_tried_again_alone(
    storage: TieredStorage, server: GcsEmulator, tmp_path: Path, mode: FaultMode, times: int
) -> None:
    stored = await opened(storage)
    server.faults.append(GcsFault(mode, READ, times=times))
    told: list[int] = []
    await stored._save(tmp_path / "saved", _noting(told))
    assert (tmp_path / "saved").read_bytes() == PAYLOAD and sum(told) == len(PAYLOAD)
    assert server.faults[0].times == 0


def _noting(told: list[int]) -> Any:
    async def note(size: int) -> None:
        told.append(size)

    return note


@pytest.mark.parametrize("text", ["<html>404</html>", None])
async def test_a_404_of_something_in_between_is_no_lost_object(
    storage: TieredStorage, server: GcsEmulator, tmp_path: Path, text: str | None
) -> None:
    stored = await opened(storage)
    server.faults.append(GcsFault(FaultMode.STATUS, READ, status=404, text=text, times=2))
    await stored.save(tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes() == PAYLOAD and server.faults[0].times == 0, "it was met"


async def test_a_proxy_that_knows_no_ranges_leaves_the_read_to_the_first_stream(
    storage: TieredStorage, server: GcsEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await opened(storage)
    monkeypatch.setattr("emulators.gcs.service.media", lambda stored, headers: media(stored, {}))
    await stored.save(tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes() == PAYLOAD


async def test_damaged_bytes_of_one_range_are_noticed_in_the_whole(
    storage: TieredStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "saved").write_bytes(b"before")
    stored, real, damaged = await opened(storage), Media.read, [0]

    async def read(self: Media) -> bytes:
        chunk = await real(self)
        if self.status == 206 and not damaged[0]:
            damaged[0] = 1
            return bytes([chunk[0] ^ 1]) + chunk[1:]
        return chunk

    monkeypatch.setattr(Media, "read", read)
    with pytest.raises(DamagedError, match=r"crc32c is .*, not"):
        await stored.save(file)
    assert file.read_bytes() == b"before" and left_beside(file) == ["saved"]


async def test_the_same_of_an_object_that_comes_in_one_stream(
    storage: TieredStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await storage.put(OBJECT, payload := PAYLOAD[: 2 * MIB])
    monkeypatch.setattr(lanes, "LANES_MAX", 1)
    stored, real = await opened(storage), Media.read

    async def read(self: Media) -> bytes:
        chunk = await real(self)
        return bytes([chunk[0] ^ 1]) + chunk[1:]

    monkeypatch.setattr(Media, "read", read)
    with pytest.raises(DamagedError):
        await stored.save(tmp_path / "saved")
    monkeypatch.undo()
    await (await opened(storage)).save(tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes() == payload


@pytest.mark.parametrize("then", ["put", "delete"])
async def test_an_object_that_is_replaced_meanwhile_is_saved_whole_or_not_at_all(
    storage: TieredStorage, server: GcsEmulator, tmp_path: Path, then: str
) -> None:
    (file := tmp_path / "saved").write_bytes(b"before")
    stored = await opened(storage)
    await (storage.put(OBJECT, b"later") if then == "put" else storage.delete(OBJECT))
    await _until(lambda: not server.buckets["blobs"].objects)
    await stored.save(file)  # the service goes on with the stream that it has begun
    assert file.read_bytes() == PAYLOAD


async def test_an_object_that_is_replaced_while_its_connections_break_is_not_saved(
    storage: TieredStorage, server: GcsEmulator, tmp_path: Path
) -> None:
    (file := tmp_path / "saved").write_bytes(b"before")
    server.faults.append(GcsFault(FaultMode.TRUNCATE, READ))
    stored = await opened(storage)
    await storage.delete(OBJECT)
    await _until(lambda: not server.buckets["blobs"].objects)
    with pytest.raises(UnavailableError, match="overwritten or deleted while it was read"):
        await stored.save(file)
    assert file.read_bytes() == b"before" and left_beside(file) == ["saved"]


async def _until(condition: Any) -> None:
    with anyio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - the server sends no events
            await anyio.sleep(0.001)


async def test_a_service_that_is_gone_ends_the_save_and_leaves_nothing(server: GcsEmulator, tmp_path: Path) -> None:
    async with a_store(server, {"answer_budget_s": 0.2}) as storage:
        await storage.put(OBJECT, PAYLOAD)
        server.faults.append(GcsFault(FaultMode.TRUNCATE, READ))
        stored = await opened(storage)
        server.faults.append(GcsFault(FaultMode.DROP_BEFORE, "*", times=None))
        with pytest.raises(UnavailableError):
            await stored.save(tmp_path / "saved")
        assert left_beside(tmp_path / "saved") == []


async def test_a_helper_whose_task_is_cancelled_by_name_leaves_no_hole(
    storage: TieredStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, cancelled = BucketRanges.open, [0]

    async def open(self: BucketRanges, start: int, stop: int) -> BucketReader | None:
        if cancelled[0] < 2:
            cancelled[0] += 1
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        return await real(self, start, stop)

    stored = await opened(storage)
    monkeypatch.setattr(BucketRanges, "open", open)
    await stored.save(tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes() == PAYLOAD


async def test_lanes_leave_connections_to_others(server: GcsEmulator, tmp_path: Path) -> None:
    async with a_store(server, connections_max=3, answer_timeout_s=5) as storage:
        await storage.put(OBJECT, PAYLOAD)
        storage._reader._lanes.free = 1
        first, second = await opened(storage), await opened(storage)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.save, tmp_path / "first")
            tasks.start_soon(second.save, tmp_path / "second")
            for _ in range(20):
                assert await storage.head(OBJECT) is not None
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes() == PAYLOAD


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EFBIG])
async def test_a_write_that_fails_in_one_lane_ends_them_all(
    storage: TieredStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real, written = os.pwrite, [0]

    def pwrite(descriptor: int, part: Any, position: int) -> int:
        written[0] += 1
        if position > 8 * MIB:
            raise OSError(number, os.strerror(number))
        return real(descriptor, part[: 100_000], position)  # the system may write less than it was given

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match=os.strerror(number)):
        await (await opened(storage)).save(tmp_path / "saved")
    assert left_beside(tmp_path / "saved") == [] and written[0] > 0


async def test_a_cancelled_save_leaves_no_file_and_no_connection(storage: TieredStorage, server: GcsEmulator, tmp_path: Path) -> None:
    stored = await opened(storage)
    server.faults.append(GcsFault(FaultMode.STALL_AFTER, READ, times=None))
    with anyio.move_on_after(0.2) as scope:
        await stored.save(tmp_path / "saved")
    assert scope.cancelled_caught and left_beside(tmp_path / "saved") == []
    server.faults.clear()
    await (await opened(storage)).save(tmp_path / "saved")


async def test_a_pipe_gets_one_stream(storage: TieredStorage, server: GcsEmulator, tmp_path: Path) -> None:
    stored = await opened(storage)
    with (tmp_path / "file").open("ab") as file:
        await stored.save(file)
    assert (tmp_path / "file").read_bytes() == PAYLOAD and server.calls.count(READ) == 1
