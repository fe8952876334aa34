"""The real S3 adapter in the simulated world: each request meets faults, and what is stored is told as it is.

That `MemoryS3` answers as S3 does, the contract suites show (`s3-memory`).
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import anyio
import pytest

from changelog.base.errors import TieredError, UnavailableError, UnconfirmedError
from changelog.change import ChangeId
from emulators.s3.stack import ShownBlobs, WorldBucket
from emulators.world.deployment import World
from emulators.world.faults import CallFault, Mode, Process
from tests.given.virtual_time import simulated
from tiered.metadata import NS_PER_MS, NS_PER_S, Metadata, TimeToLive
from tiered.services.backends import LongTermBackend

BLOB = f"attachments/objects/key/{ChangeId('018bcfe5-6800-7000-8000-000000000001')}"
HOUR_S, LIFE_NS = 3600.0, 60 * NS_PER_S


def on_s3(*, sessions: bool = False) -> World:
    return World(1, bucket=partial(WorldBucket, sessions=sessions))


def blobs_of(world: World, faults: dict[str, CallFault]) -> tuple[Process, LongTermBackend]:
    process = world.process("writer", faults.get)
    return process, world.tiers_of(process).long_term


def bucket_of(world: World) -> ShownBlobs:
    assert isinstance(world.blobs, ShownBlobs)
    return world.blobs


def mortal(world: World) -> Metadata:
    return Metadata(TimeToLive(ns=LIFE_NS), time_expires_ns=world.runtime.wall_ns() + LIFE_NS)


async def put(blobs: LongTermBackend, metadata: Metadata | None = None, size: int | None = 7) -> None:
    upload = await blobs.open_upload(BLOB, metadata or Metadata(), size)
    await upload.write(b"payload")
    await upload.finalise()


@simulated
async def test_a_put_that_left_arrives_after_its_sender_died() -> None:
    async with on_s3() as world:
        process, blobs = blobs_of(world, {"upload.finalise #1": CallFault(Mode.SLOW, 100.0)})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(process.run, partial(put, blobs))
            await anyio.sleep(5)
            process.crash()
        assert BLOB not in world.blobs.blobs
        await anyio.sleep(100)
        assert world.blobs.blobs[BLOB].payload == b"payload"


@simulated
async def test_a_put_whose_answer_is_lost_or_an_error_is_looked_for_and_found() -> None:
    for mode in (Mode.LOST, Mode.DAMAGED):  # a connection that broke; 500 after the effect
        async with on_s3() as world:
            await put(blobs_of(world, {"upload.finalise #1": CallFault(mode)})[1])
            assert BLOB in world.blobs.blobs


@simulated
async def test_a_put_that_never_left_or_was_not_answered_tells_so() -> None:
    for mode, error in ((Mode.DROPPED, UnconfirmedError), (Mode.LATE, UnconfirmedError), (Mode.DENIED, TieredError)):
        async with on_s3() as world:
            with pytest.raises(error):
                await put(blobs_of(world, {"upload.finalise #1": CallFault(mode, 60.0)})[1])
            assert BLOB not in world.blobs.blobs
            await anyio.sleep(61)
            assert (BLOB in world.blobs.blobs) == (mode is Mode.LATE)


@simulated
async def test_a_put_that_was_turned_away_is_sent_again() -> None:
    async with on_s3() as world:
        process, blobs = blobs_of(world, {"upload.finalise #1": CallFault(Mode.UNAVAILABLE)})
        await put(blobs)
        assert "upload.finalise #2" in process.link.answered and BLOB in world.blobs.blobs


@simulated
async def test_a_request_that_stood_still_for_a_quarter_of_an_hour_is_refused() -> None:
    for stands_s in (800.0, 1000.0):
        async with on_s3() as world:
            _, blobs = blobs_of(world, {"upload.finalise #1": CallFault(Mode.STALL_BEFORE, stands_s)})
            with suppress(TieredError):
                await put(blobs)
            await anyio.sleep(1)
            assert (BLOB in world.blobs.blobs) == (stands_s < 900)


@simulated
async def test_the_networks_copy_of_a_put_lands_in_vain_or_makes_a_stray() -> None:
    for deleted in (False, True):
        async with on_s3() as world:
            await put(blobs_of(world, {"upload.finalise #1": CallFault(Mode.DUPLICATED, 10.0)})[1])
            first = world.blobs.blobs[BLOB]
            if deleted:
                await world.blobs.delete(BLOB)
            await anyio.sleep(11)
            assert world.blobs.strays == ({BLOB} if deleted else set())
            assert (world.blobs.blobs[BLOB] is first) == (not deleted)


@simulated
async def test_an_upload_in_lanes_is_a_session_until_it_ends() -> None:
    async with on_s3(sessions=True) as world:
        _, blobs = blobs_of(world, {})
        upload = await blobs.open_upload(BLOB, Metadata(), 300)
        await upload.write(b"x" * 300)
        assert list(world.blobs.uploads) == [upload.session]
        await upload.finalise()
        assert (list(world.blobs.uploads), world.blobs.blobs[BLOB].payload) == ([], b"x" * 300)
        other = await blobs.open_upload(f"{BLOB[:-1]}2", Metadata(), 300)
        await blobs.cancel(str(other.session))
        assert list(world.blobs.uploads) == []


@simulated
async def test_a_deadline_comes_before_its_blob_and_goes_after_it() -> None:
    async with on_s3() as world:
        told: list[str] = []
        process, blobs = blobs_of(world, {})
        metadata, bucket = mortal(world), bucket_of(world)
        world.blobs.observers.append(lambda call, what: told.append(call))
        await put(blobs, metadata)
        assert process.link.points == ["blobs.touch #1", "upload.finalise #1"] and told == ["upload.finalise"]
        deadline_ns = world.blobs.blobs[BLOB].metadata.time_expires_ns
        assert deadline_ns is not None and metadata.time_expires_ns is not None
        assert 0 <= deadline_ns - metadata.time_expires_ns < NS_PER_MS
        assert await blobs.touch(BLOB, deadline_ns + LIFE_NS) and told == ["upload.finalise", "blobs.touch"]
        await anyio.sleep(HOUR_S + 61)
        assert await world.blobs.collect(10) == 0
        await anyio.sleep(61)
        assert await world.blobs.collect(10) == 2 and told[-1] == "blobs.collect"
        assert (world.blobs.collected, world.blobs.blobs, bucket.left_beside(recovered=True)) == ({BLOB}, {}, [])


@simulated
async def test_what_should_be_gone_is_told() -> None:
    async with on_s3() as world:
        bucket = bucket_of(world)
        bucket._server.put(f"~t/{BLOB}/00000000000a", b"", {})
        bucket._server.put(f"~m/{BLOB}/abc", b"{}", {})
        bucket.plant(f"{BLOB[:-1]}2", mortal(world), b"x")
        assert [line.split()[1] for line in bucket.left_beside(recovered=True)] == ["deadline", "amendment", f"{BLOB[:-1]}2,"]
        assert bucket.blobs[f"{BLOB[:-1]}2"].metadata.time_expires_ns is None  # nobody would ever collect it


@simulated
async def test_a_body_that_breaks_off_is_unavailable() -> None:
    async with on_s3() as world:
        _, blobs = blobs_of(world, {"reader.chunks #1": CallFault(Mode.LOST)})
        await put(blobs)
        reader = await blobs.open(BLOB)
        assert reader is not None
        with pytest.raises(UnavailableError, match="broke off"):
            assert not [chunk async for chunk in reader.chunks()]
        await reader.aclose()
