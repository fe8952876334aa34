"""What callers are told when marks have been collected meanwhile.

The model of the protocol found these cases ("answered late").
"""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from changelog.base.errors import ClockBehindError, UnavailableError, UnconfirmedError
from tests.given.tapped_store import LARGE, OBJECT, RARE_BEATS, TappedWorld
from tiered import ObjectId, OutcomeUnknownError
from tiered.protocol.backends import MARK_AGE_MAX_S

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

    async def lost(real: Any, *args: Any, **named: Any) -> Any:
        raise UnavailableError("the log is away")

    async def in_flight(real: Any, *args: Any, **named: Any) -> Any:
        world.rows.hooks.clear()
        await world.runtime.sleep(HOUR_S)
        assert (await world.recovery().run_once()).recovered == 1 and not world.blobs.target.blobs
        jump_ns = round((MARK_AGE_MAX_S + HOUR_S) * 1e9)
        world.runtime._wall_start_ns += jump_ns
        assert await world.rows.target.collect(100) == 1
        world.runtime._wall_start_ns -= jump_ns
        return await real(*args[:-1], inf)

    world.rows.hooks["swap"], world.log.hooks["renew"] = in_flight, lost
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
        stored = await storage.get(OBJECT)
        assert stored is not None and await stored.read() == LARGE
    world.runtime._wall_start_ns += round(2 * MARK_AGE_MAX_S * 1e9)
    await world.runtime.sleep(HOUR_S)
    await world.recovery().run_once()
    assert await world.is_clean()
