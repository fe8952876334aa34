"""What a delivery writes down of a sink that fails."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError
from recovery.feed.sinks.sink import Owner
from recovery.feed.writer.delivery import Delivery
from recovery.feed.writer.positions import Position, read
from tests.given.fed_store import OWNER, FedStore

pytestmark = pytest.mark.anyio


class FailingSink:
    """A sink that raises the errors of a list, one each time, and the last one for ever. An empty list: it takes all.
    """

    name = "https://memory/feed"

    def __init__(self, *errors: TieredError) -> None:
        self.errors = list(errors)

    async def deliver(self, segment: Any) -> None:
        if self.errors:
            raise self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]

    async def look(self, generation: int, since: int) -> None:
        return None

    async def claim(self, owner: Owner) -> bool:
        return False

    async def aclose(self) -> None:
        return None


async def noted(store: FedStore) -> Position | None:
    return (await read(store.log, [store.sink.name])).get(store.sink.name)


async def deliver(store: FedStore, sink: FailingSink, until: Callable[[Position], bool]) -> Position:
    """One writer delivers until the note is so, and is killed then."""
    run = store.run()
    await run.writer.open()
    delivery = Delivery(sink.name, sink, run.writer, store.log, store.runtime, OWNER)
    await delivery.begin()
    if not delivery.is_behind:
        await run.writer.step()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(delivery.run)
        with anyio.fail_after(60):
            while not ((found := await noted(store)) and until(found)):
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert found is not None
    return found


async def test_since_when_a_sink_fails_survives_a_restart_of_the_writer(store: FedStore) -> None:
    first = await deliver(store, FailingSink(UnavailableError("away")), lambda found: found.failing_since is not None)
    store.runtime.advance(timedelta(hours=1))
    sink = FailingSink(UnavailableError("still away"))
    second = await deliver(store, sink, lambda found: found.error == "still away")
    assert second.failing_since == first.failing_since
    third = await deliver(store, FailingSink(), lambda found: found.acknowledged is not None)
    assert (third.failing_since, third.error) == (None, None)


async def test_the_note_has_the_last_error_and_not_the_first_one(store: FedStore) -> None:
    sink = FailingSink(UnavailableError("away"), ConfigurationError("no permission"))
    found = await deliver(store, sink, lambda found: found.error == "no permission")
    assert found.failing_since is not None
