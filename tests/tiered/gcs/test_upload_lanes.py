"""Uploads in lanes on our emulator: which blobs go up so, what they hold, parts that fail, services that take none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from changelog.base.errors import ConfigurationError, InvalidRequestError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from changelog.sqlite.log import Database, SqliteChangeLog
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from emulators.gcs.store import Bucket
from recovery.loop import RecoveryLoop
from tiered.gcs.blobs import GcsBlobs
from tiered.metadata import NS_PER_S, Metadata, TimeToIdle
from tiered.object_id import ObjectId, blob_name
from tiered.services.backends import Tiers
from tiered.services.capabilities import PART_NUMBER_MAX
from tiered.settings import LeaseSettings, RecoverySettings, Settings
from tiered.storage import TieredStorage
from tiered.testing.contracts.whole_blobs import read
from tiered.testing.rows import MemoryRows
from tiered.transfer.upload_lanes import MIB, LaneUpload, UploadLanes

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

RUNTIME = SystemRuntime()
OBJECT = ObjectId.create("photos", "cat")
NAME = blob_name(OBJECT.path, ChangeId("018bcfe5-6800-7000-8000-000000000001"))
PART, PARTS = 10_000, 7
PAYLOAD = bytes(range(250)) * (PART // 250) * (PARTS - 1) + b"the last part"
LANES = UploadLanes(3, from_bytes=20_000, part_bytes=PART, memory_bytes=6 * PART)


@pytest.fixture
async def blobs(server: GcsEmulator) -> AsyncIterator[GcsBlobs]:
    server.parts.part_bytes_min = PART
    async with GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url, answer_timeout_s=2, lanes=LANES, upload_budget_s=0.5) as blobs:
        yield blobs


async def begin(blobs: GcsBlobs, name: str = NAME, metadata: Metadata | None = None) -> LaneUpload[Any]:
    upload = await blobs.open_upload(name, metadata or Metadata(), len(PAYLOAD))
    assert isinstance(upload, LaneUpload)
    return upload


async def write(upload: Any, chunk_bytes: int = 3000) -> None:
    for start in range(0, len(PAYLOAD), chunk_bytes):
        await upload.write(memoryview(PAYLOAD)[start : start + chunk_bytes])


async def until_ended(server: GcsEmulator) -> None:
    with anyio.fail_after(10):
        while server.parts.uploads:  # noqa: ASYNC110 - it is cancelled in the background
            await anyio.sleep(0.001)


async def test_a_large_blob_of_known_size_goes_up_in_parts(blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket) -> None:
    metadata = Metadata(TimeToIdle(ns=86_400 * NS_PER_S), time_expires_ns=2_000_000_000 * NS_PER_S, filename="a b.txt", content_type="a/b")
    upload = await begin(blobs, metadata=metadata)
    await write(upload)
    [parts] = server.parts.uploads.values()
    assert PARTS not in parts.parts, "the last part is withheld"
    await upload.finalise()
    assert bucket.objects[NAME].payload == PAYLOAD and await read(blobs, NAME) == PAYLOAD
    head = await blobs.head(NAME)
    assert head is not None and replace(head.metadata, size=None, time_created_ns=None) == metadata
    expected = {"xml.parts.start": 1, "xml.parts.put": PARTS, "xml.parts.complete": 1, "object.get": 4, "object.read": 1}
    assert {kind: server.calls.count(kind) for kind in server.calls} == expected  # 3 to look at it here


async def test_what_is_small_or_of_unknown_size_or_has_no_revision_goes_up_in_one_stream(blobs: GcsBlobs) -> None:
    for name, size in ((NAME, LANES.from_bytes), (NAME, None), ("legacy/objects/name", len(PAYLOAD))):
        assert not isinstance(await blobs.open_upload(name, Metadata(), size), LaneUpload)
    assert isinstance(await blobs.open_upload(NAME, Metadata(size=len(PAYLOAD)), None), LaneUpload)


@pytest.mark.parametrize("metadata", [Metadata(filename="größe"), Metadata(custom={"Upper": "x", "empty": "", "plain": "y"})])
async def test_what_no_header_carries_is_set_after_the_blob_and_stored_as_ever(
    blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket, metadata: Metadata
) -> None:
    upload = await begin(blobs, metadata=metadata)
    await write(upload)
    await upload.finalise()
    assert server.calls.count("object.patch") == 1
    single = await blobs.open_upload("u/objects/single", metadata, 1)
    await single.write(b"x")
    await single.finalise()
    assert bucket.objects[NAME].metadata == bucket.objects["u/objects/single"].metadata


def test_parts_grow_so_that_ten_thousand_are_enough() -> None:
    lanes = UploadLanes()
    for size in (None, 1, 100 * MIB, 58 * 1024 * MIB, 60 * 1024 * MIB, 5 * MIB**2):
        part = lanes.part_of(size)
        assert (size or 0) <= part * PART_NUMBER_MAX and part % MIB == 0
        assert part == 6 * MIB or (part - MIB) * PART_NUMBER_MAX < (size or 0)


async def test_no_more_parts_are_held_than_there_are_lanes_and_none_is_copied(
    blobs: GcsBlobs, server: GcsEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.faults.append(GcsFault(FaultMode.DELAY, "xml.parts.put", seconds=0.02, times=None))
    upload = await begin(blobs)
    held: list[int] = []
    send = upload._parts.send

    async def watched(*args: Any) -> Any:
        assert all(chunk.obj is PAYLOAD for chunk in args[3])
        held.append(len(upload._under_way) + bool(upload._gathered.chunks))
        return await send(*args)

    monkeypatch.setattr(upload._parts, "send", watched)
    await write(upload, 7 * PART)
    await upload.finalise()
    assert max(held) == LANES.count and len(held) == PARTS


@pytest.mark.parametrize("mode", [FaultMode.STATUS, FaultMode.DROP_BEFORE, FaultMode.DROP_AFTER])
async def test_a_part_that_fails_is_sent_again_alone(blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket, mode: FaultMode) -> None:
    server.faults.append(GcsFault(mode, "xml.parts.put", times=2))
    upload = await begin(blobs)
    await write(upload)
    await upload.finalise()
    assert bucket.objects[NAME].payload == PAYLOAD and server.calls.count("xml.parts.put") == PARTS + 2


@pytest.mark.parametrize("status", [503, 429, 403])
async def test_parts_that_fail_for_long_end_the_upload_and_nothing_is_stored(
    blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket, status: int
) -> None:
    server.faults.append(GcsFault(FaultMode.STATUS, "xml.parts.put", status=status, times=None))
    upload = await begin(blobs)
    with pytest.raises(ConfigurationError if status == 403 else UnavailableError):  # noqa: PT012 - either may be the first to know
        await write(upload)
        await upload.finalise()
    with pytest.raises(InvalidRequestError, match="ended already"):
        await upload.finalise()
    await upload.abort()
    await until_ended(server)
    assert not bucket.objects and blobs._resuming.held == 0


async def test_an_upload_that_is_aborted_is_cancelled_at_the_service(blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket) -> None:
    server.faults.append(GcsFault(FaultMode.STALL_BEFORE, "xml.parts.put", times=None))
    upload = await begin(blobs)
    await upload.write(PAYLOAD[: 2 * PART + 1])
    for _ in range(2):
        await upload.abort()
    await until_ended(server)
    with pytest.raises(InvalidRequestError):
        await upload.write(b"x")
    assert not bucket.objects and blobs._resuming.held == 0


async def test_a_writer_that_is_cancelled_while_it_waits_for_a_lane_has_ended_its_upload(blobs: GcsBlobs, server: GcsEmulator) -> None:
    server.faults.append(GcsFault(FaultMode.STALL_BEFORE, "xml.parts.put", times=None))
    upload = await begin(blobs)
    with anyio.move_on_after(0.1) as scope:
        await write(upload)
    assert scope.cancelled_caught and blobs._resuming.held == 0
    with pytest.raises(InvalidRequestError, match="ended already"):
        await upload.finalise()


async def test_a_storage_that_is_closed_ends_its_uploads(server: GcsEmulator) -> None:
    server.faults.append(GcsFault(FaultMode.STALL_BEFORE, "xml.parts.put", times=None))
    async with GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url, lanes=LANES) as blobs:
        upload = await begin(blobs)
        await upload.write(PAYLOAD[: 2 * PART + 1])
        await anyio.sleep(0.01)
    with pytest.raises(UnavailableError, match="closed"):
        await upload.finalise()
    await upload.abort()


async def test_what_all_uploads_hold_is_bounded_and_the_next_goes_up_in_one_stream(blobs: GcsBlobs) -> None:
    first, second = await begin(blobs, f"{NAME[:-1]}2"), await begin(blobs, f"{NAME[:-1]}3")
    assert not isinstance(await blobs.open_upload(NAME, Metadata(), len(PAYLOAD)), LaneUpload)
    await write(first)
    await first.finalise()
    await second.abort()
    assert blobs._resuming.held == 0 and isinstance(await blobs.open_upload(NAME, Metadata(), len(PAYLOAD)), LaneUpload)


async def test_a_blob_that_was_damaged_on_its_way_is_to_be_deleted(blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket) -> None:
    upload = await begin(blobs)
    await write(upload)
    [parts] = server.parts.uploads.values()
    with anyio.fail_after(5):
        while 2 not in parts.parts:  # noqa: ASYNC110 - the server sends no events
            await anyio.sleep(0.001)
    parts.parts[2] = replace(parts.parts[2], payload=b"?" * PART)
    with pytest.raises(UnavailableError, match="delete it"):
        await upload.finalise()
    assert NAME in bucket.objects


async def test_a_blob_whose_deadline_was_lost_is_not_used(blobs: GcsBlobs, server: GcsEmulator) -> None:
    upload = await begin(blobs, metadata=Metadata(TimeToIdle(ns=NS_PER_S), time_expires_ns=2_000_000_000 * NS_PER_S))
    await write(upload)
    [parts] = server.parts.uploads.values()
    parts.resource = {key: value for key, value in parts.resource.items() if key != "customTime"}
    with pytest.raises(ConfigurationError, match="customTime"):
        await upload.finalise()


async def test_a_completion_that_nobody_confirmed_is_unknown(blobs: GcsBlobs, server: GcsEmulator) -> None:
    upload = await begin(blobs)
    await write(upload)
    server.faults.append(GcsFault(FaultMode.STATUS, "xml.parts.complete", times=None))
    with pytest.raises(UnconfirmedError):
        await upload.finalise()
    await upload.abort()
    await until_ended(server)


@pytest.mark.parametrize(
    ("status", "text"), [(403, None), (405, None), (501, None), (404, "<html>no such page</html>"), (200, "{}"), (400, "no form")]
)
async def test_a_service_that_takes_no_parts_gets_one_stream(
    blobs: GcsBlobs, server: GcsEmulator, status: int, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    server.faults.append(GcsFault(FaultMode.STATUS, "xml.parts.start", status=status, text=text, times=None))
    for name in (NAME, f"{NAME[:-1]}2"):
        upload = await blobs.open_upload(name, Metadata(), len(PAYLOAD))
        await write(upload)
        await upload.finalise()
        assert await read(blobs, name) == PAYLOAD
    times = 1 if text is None else 2
    assert server.calls.count("xml.parts.start") == times == caplog.text.count("lanes_refused"), "in its own words it is told once"
    assert ("no XML API" in caplog.text) == (status in (405, 501)) and "no JSON API" not in caplog.text


async def test_a_service_that_is_away_is_asked_again(blobs: GcsBlobs, server: GcsEmulator) -> None:
    server.faults.append(GcsFault(FaultMode.STATUS, "xml.parts.start", status=503, times=None))
    with pytest.raises(UnavailableError):
        await begin(blobs)
    assert blobs._resuming.held == 0
    server.faults.clear()
    await begin(blobs)


async def test_a_store_puts_in_lanes_and_recovery_cancels_what_a_dead_writer_left(
    blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket, tmp_path: Path
) -> None:
    settings = Settings(
        directory=tmp_path, inline_bytes_max=100, recovery=RecoverySettings(idle_s=0.01, late_upload_grace_s=0.2),
    )
    soon = settings.model_copy(update={"lease": LeaseSettings(expiry_s=0.3)})
    async with Database.open(tmp_path / "log.db", RUNTIME) as database:
        tiers, log = Tiers(MemoryRows(RUNTIME), blobs), SqliteChangeLog(database, RUNTIME)
        async with TieredStorage(tiers, log, RUNTIME, settings) as storage:
            for _ in range(2):
                await storage.put(OBJECT, PAYLOAD)
            stored = await storage.get(OBJECT)
            assert stored is not None and await stored.read() == PAYLOAD
        assert server.calls.count("xml.parts.complete") == 2 and len(bucket.objects) == 1

        for completed in (False, True):
            token = ChangeId.new(RUNTIME)
            upload = await begin(blobs, blob_name(OBJECT.path, token))
            await log.record(Change(token, OBJECT.path, blob_name(OBJECT.path, token), None, upload.session), "dead")
            await write(upload)
            if completed:
                await upload.finalise()
        assert len(bucket.objects) == 2 and len(server.parts.uploads) == 1
        loop = RecoveryLoop(tiers, log, RUNTIME, soon)
        with anyio.fail_after(60):
            while (await log.entries("", 1)).entries:
                await loop.run_once()
                await anyio.sleep(0.05)
        assert len(bucket.objects) == 1 and not server.parts.uploads
