"""What callers are told when marks have been collected meanwhile: found by the model of the protocol ("answered late")."""

from __future__ import annotations

from typing import Any

import pytest

from changelog.errors import UnconfirmedError
from tests.store.conftest import LARGE, OBJECT, World
from tiered import OutcomeUnknownError
from tiered.backends import MARK_AGE_MAX_S

pytestmark = pytest.mark.anyio

HOUR_S = 3600


async def test_a_put_is_not_told_no_when_its_won_mark_may_have_been_collected(world: World) -> None:
    """Its swap takes effect, and the machine is suspended for two days before it hears of it. Meanwhile somebody deletes the object."""

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
