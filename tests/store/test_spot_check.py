"""A loss that no reader and no audit met yet is found by a look at a few blobs."""

from __future__ import annotations

from typing import Any

import pytest

from changelog.base.errors import UnavailableError
from recovery.spot_check import BLOBS_AT_ONCE, SpotCheck
from recovery.states import Level
from recovery.status.judgement import judge
from recovery.status.look import gather
from tests.given.tapped_store import LARGE, SMALL, TappedWorld, fails
from tiered import ObjectId
from tiered.notes.dangling import read_dangling
from tiered.open import Backends

pytestmark = pytest.mark.anyio


def object_id(number: int) -> ObjectId:
    return ObjectId.create("attachments", f"key-{number:04d}", {"org": "17"})


async def put(world: TappedWorld, number: int, *, small_between: int = 0) -> None:
    async with world.store() as storage:
        for each in range(number):
            await storage.put(object_id(each), SMALL if small_between and each % small_between else LARGE)


async def lose(world: TappedWorld, *numbers: int) -> None:
    for number in numbers:
        target = (await world.rows.target.read(object_id(number).path)).target
        await world.blobs.target.delete(target)


def check_of(world: TappedWorld) -> SpotCheck:
    return SpotCheck(world.tiers, world.log, world.runtime)


async def test_one_look_finds_that_all_blobs_are_gone_and_the_status_says_so(world: TappedWorld) -> None:
    await put(world, 3)
    await lose(world, 0, 1, 2)
    backends, settings = Backends(world.tiers, world.log), world.settings()
    before = await gather(backends, settings, world.runtime)
    assert before.lost_reads is not None and not before.lost_reads.is_loss
    check = check_of(world)
    await check.look()
    assert check.lost == 3
    after = await gather(backends, settings, world.runtime)
    assert after.lost_reads is not None and {each.path for each in after.lost_reads.objects} == {object_id(each).path for each in range(3)}
    assert judge(after).level is Level.LOST


async def test_it_goes_round_the_store_and_finds_the_last_one_too(world: TappedWorld) -> None:
    number = 2 * BLOBS_AT_ONCE + 3
    await put(world, number)
    await lose(world, number - 1)
    check = check_of(world)
    for looks in range(2):
        await check.look()
        assert check.lost == 0, looks
    await check.look()
    assert check.lost == 1
    for _ in range(3):
        await check.look()
    assert check.lost == 2 and len((await read_dangling(world.log)).listed) == 1, "the second round finds it again, and notes it once"


async def test_a_whole_store_is_not_called_lost(world: TappedWorld) -> None:
    await put(world, 20, small_between=3)
    check = check_of(world)
    for _ in range(3):
        await check.look()
    assert check.lost == 0 and not (await read_dangling(world.log)).listed


async def test_what_is_deleted_or_replaced_under_the_look_is_not_lost(world: TappedWorld) -> None:
    await put(world, 2)
    async with world.store() as storage:
        async def overtaken(real: Any, *args: Any, **named: Any) -> Any:
            page = await real(*args, **named)
            await storage.delete(object_id(0))
            await storage.put(object_id(1), LARGE)
            await storage.aclose()
            return page

        world.rows.hooks["scan"] = overtaken
        check = check_of(world)
        await check.look()
    assert check.lost == 0


async def test_a_tier_that_does_not_answer_is_no_loss_and_is_told_once(world: TappedWorld, caplog: pytest.LogCaptureFixture) -> None:
    await put(world, 1)

    world.rows.hooks["scan"] = fails(UnavailableError("nobody there"))
    check = check_of(world)
    await check.look()
    await check.look()
    assert check.lost == 0 and caplog.text.count("spot_check_failed") == 1
    world.rows.hooks.clear()
    world.blobs.hooks["head"] = fails(UnavailableError("nobody there"))
    await check.look()
    assert check.lost == 0 and not (await read_dangling(world.log)).listed
