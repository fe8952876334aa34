"""What callers are told when marks have been collected meanwhile.

The model of the protocol found these cases ("answered late").
"""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from changelog.base.errors import ClockBehindError, UnavailableError, UnconfirmedError
from tests.given.tapped_store import LARGE, OBJECT, RARE_BEATS, SMALL, TappedWorld, fails, read
from tiered import ObjectId, OutcomeUnknownError
from tiered.errors import UploadEndedError
from tiered.services.backends import MARK_AGE_MAX_S

pytestmark = pytest.mark.anyio

HOUR_S = 3600
OTHER = ObjectId.create("attachments", "other")


async def test_a_put_is_not_told_no_when_its_won_mark_may_have_been_collected(world: TappedWorld) -> None:
    """Its swap takes effect, and the machine is suspended for two days before the answer comes.

    Meanwhile somebody deletes the object.
    """

    async def suspended(real: Any, *args: Any, **named: Any) -> Any:
        world.rows.hooks.clear()
        await real(*args, **named)
        world.runtime._wall_start_ns += round((MARK_AGE_MAX_S + HOUR_S) * 1e9)
        assert await world.rows.target.collect(100) == 1
        async with world.store() as another:
            await another.delete(OBJECT)
        raise UnconfirmedError("the answer was lost")

    world.rows.hooks["swap"] = suspended
    async with world.store() as storage:
        with pytest.raises(OutcomeUnknownError) as caught:
            await storage.put(OBJECT, LARGE)
        assert caught.value.settled, "it may have taken effect, and will not any more"
    await world.runtime.sleep(HOUR_S)
    await world.recovery().run_once()
    assert await world.is_clean()


async def test_a_swap_in_flight_takes_no_effect_when_a_clock_jumps_and_its_refused_mark_is_collected(world: TappedWorld) -> None:
    """Recovery has refused it and deleted its blob.

    The clock is ahead while marks are collected, and is set right again.
    """

    async def in_flight(real: Any, *args: Any, **named: Any) -> Any:
        world.rows.hooks.clear()
        await world.runtime.sleep(HOUR_S)
        assert (await world.recovery().run_once()).recovered == 1 and not world.blobs.target.blobs
        jump_ns = round((MARK_AGE_MAX_S + HOUR_S) * 1e9)
        world.runtime._wall_start_ns += jump_ns
        assert await world.rows.target.collect(100) == 1
        world.runtime._wall_start_ns -= jump_ns
        return await real(*args[:-1], inf)

    world.rows.hooks["swap"], world.log.hooks["renew"] = in_flight, fails(UnavailableError("the log is away"))
    async with world.store(store={"answer_budget_s": 10 * HOUR_S}) as storage:
        with pytest.raises(OutcomeUnknownError) as caught:
            await storage.put(OBJECT, LARGE)
        assert caught.value.settled
        assert await storage.get(OBJECT) is None
        world.log.hooks.clear()
        await storage.put(OBJECT, LARGE)
    await world.runtime.sleep(HOUR_S)
    await world.recovery().run_once()
    assert await world.is_clean()


async def test_an_upload_that_won_is_not_said_to_have_failed_its_condition_when_its_marks_were_collected(world: TappedWorld) -> None:
    """It won, and nobody was told. The object was deleted, and another one is there.

    The clock is ahead while marks are collected, and is set right again.
    """

    async def won(real: Any, *args: Any, **named: Any) -> Any:
        await real(*args, **named)
        world.rows.hooks["read"] = fails(UnavailableError("the rows are away"))
        raise UnconfirmedError("the answer was lost")

    async with world.store(lease=RARE_BEATS) as storage:
        upload = await storage.begin_multipart(OBJECT, if_absent=True)
        await upload.upload_part(1, LARGE)
        world.rows.hooks["swap"] = won
        with pytest.raises(OutcomeUnknownError):
            await upload.complete()
        world.rows.hooks.clear()
        assert await read(storage) == LARGE
        await storage.delete(OBJECT)
        await storage.put(OBJECT, SMALL)
        await world.runtime.sleep(60)  # the deletion cleans up after its answer
        jump_ns = round((MARK_AGE_MAX_S + HOUR_S) * 1e9)
        world.runtime._wall_start_ns += jump_ns
        while await world.rows.target.collect(100):
            pass
        world.runtime._wall_start_ns -= jump_ns
        with pytest.raises(UploadEndedError) as caught:
            await upload.complete()
        assert caught.value.completed is None, "it may have been completed, and will not be any more"
        assert await read(storage) == SMALL


async def test_a_put_by_a_clock_that_is_behind_what_was_forgotten_is_told_so_and_leaves_nothing(world: TappedWorld) -> None:
    async with world.store(lease=RARE_BEATS) as storage:
        await storage.put(OBJECT, LARGE)
        await world.runtime.sleep(MARK_AGE_MAX_S + HOUR_S)
        assert await world.rows.target.collect(100) == 1
        world.runtime._wall_start_ns -= round(2 * MARK_AGE_MAX_S * 1e9)
        for payload in (LARGE, b"small"):
            with pytest.raises(ClockBehindError):
                await storage.put(OTHER, payload)
        with pytest.raises(ClockBehindError):
            await storage.delete(OBJECT)
        assert await read(storage) == LARGE
    world.runtime._wall_start_ns += round(2 * MARK_AGE_MAX_S * 1e9)
    await world.runtime.sleep(HOUR_S)
    await world.recovery().run_once()
    assert await world.is_clean()
