"""Recovery ends uploads in parts that nobody will complete, because their process died before their entry was there."""

from __future__ import annotations

import pytest

from changelog.base.errors import UnavailableError
from changelog.change import ChangeId
from changelog.noop import NoopChangeLog
from recovery.stray_uploads import PAGE, STRAY_AGE_S, StrayUploads
from tests.given.tapped_store import OBJECT, RARE_BEATS, TappedWorld, fails
from tiered import Metadata
from tiered.object_id import blob_name

pytestmark = pytest.mark.anyio


async def begun(world: TappedWorld, name: str | None = None) -> str:
    """The session of an upload without an entry."""
    name = blob_name(OBJECT.path, ChangeId.new(world.runtime)) if name is None else name
    session: str = await world.blobs.target.begin_parts(name, Metadata())
    return session


async def test_an_upload_without_an_entry_is_ended_after_an_hour_and_an_open_one_is_not(world: TappedWorld) -> None:
    strays = StrayUploads(world.tiers, world.log)
    async with world.store(lease=RARE_BEATS) as storage:
        stray, foreign = await begun(world), await begun(world, "of somebody else")
        upload = await storage.begin_multipart(OBJECT)
        await world.runtime.sleep(STRAY_AGE_S - 1)
        await strays.end()
        assert strays.ended == 0
        await world.runtime.sleep(2)
        young = await begun(world)
        await strays.end()
        assert strays.ended == 1
        left = set(world.blobs.target.in_parts)
        assert stray not in left and {foreign, young} < left
        await upload.upload_part(1, b"part")
        await upload.complete()


async def test_all_of_many_are_ended_in_pages(world: TappedWorld) -> None:
    for _ in range(2 * PAGE + 1):
        await begun(world)
    await world.runtime.sleep(STRAY_AGE_S + 1)
    strays = StrayUploads(world.tiers, world.log)
    await strays.end()
    assert strays.ended == 2 * PAGE + 1 and not world.blobs.target.in_parts


@pytest.mark.parametrize("call", ["open_sessions", "cancel", "read"])
async def test_a_service_that_is_away_ends_nothing_and_is_told_once(
    world: TappedWorld, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    await begun(world)
    await world.runtime.sleep(STRAY_AGE_S + 1)
    service = world.log if call == "read" else world.blobs
    service.hooks[call] = fails(UnavailableError("away"))
    strays = StrayUploads(world.tiers, world.log)
    for _ in range(3):
        await strays.end()
    assert world.blobs.target.in_parts
    assert sum("stray_uploads_not_ended" in record.getMessage() for record in caplog.records) == 1
    service.hooks.clear()
    await strays.end()
    assert strays.ended == 1


async def test_without_a_changelog_nothing_proves_that_an_upload_is_nobodys(world: TappedWorld) -> None:
    await begun(world)
    await world.runtime.sleep(STRAY_AGE_S + 1)
    await StrayUploads(world.tiers, NoopChangeLog()).end()
    assert world.blobs.target.in_parts
