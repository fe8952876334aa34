"""What a process of a world with a feed runs: a writer of the feed, or the bound that cleans up what is overdue.

It is loaded for each code whose processes a world has (`emulators.world.code`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import anyio

from changelog.base import errors
from changelog.base.errors import ConfigurationError, TieredError
from changelog.log import ChangeLog
from emulators.simulation.actors import Stage
from emulators.simulation.recipe import Actor
from emulators.world.faults import Process
from emulators.world.inside import understood
from recovery.feed.sinks.sink import Owner, Segment, SinkContent
from recovery.feed.writer import cleaning, delivery
from recovery.feed.writer.overdue import DecidedEntries, release_overdue
from recovery.feed.writer.supervisor import FeedRun
from tiered.open import Backends
from tiered.services.backends import Tiers
from tiered.settings import Settings

FROM_THE_LINK = ("ConfigurationError", "UnavailableError", "UnconfirmedError")
"""What a call over a link may raise, in the classes of the code that made the link."""
ENDS_A_WRITER = ("was denied", "newer software wrote it")
"""What a writer's last words may be: a permission was taken away for a while, or only newer software can go on."""


def look_every(seconds: tuple[float, float]) -> tuple[float, float]:
    """Lets the writer's tasks look so often whether there is something to do. Returns what it was."""
    before = cleaning.LOOK_EVERY_S, delivery.LOOK_EVERY_S
    cleaning.LOOK_EVERY_S, delivery.LOOK_EVERY_S = seconds
    return before


def writer_in(
    process: Process, tiers: Tiers, log: ChangeLog, settings: Settings, sinks: Sequence[Any], *, new_generation: bool, once: bool
) -> FeedRun:
    """Returns a writer of the feed in this process. `sinks`: those of the world."""
    far = {sink.name: SinkAsSeen(process.link.sink(sink)) for sink in sinks}
    return FeedRun(Backends(tiers, log), process.runtime, understood(settings), far, new_generation=new_generation, once=once)


async def write(stage: Stage, actor: Actor, run: FeedRun) -> None:
    """Runs a writer until the callers have finished, or its time is over."""
    async def stop_when_over() -> None:
        with anyio.move_on_after(max(0.0, actor.ends_s - anyio.current_time())):
            await stage.over.wait()
        run.stop()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_when_over)
        try:
            await run.run()
        except ConfigurationError as error:
            if not any(text in str(error) for text in ENDS_A_WRITER):
                raise
        tasks.cancel_scope.cancel()


async def bound(stage: Stage, actor: Actor, process: Process, tiers: Tiers, log: ChangeLog, settings: Settings) -> None:
    """Cleans up what is overdue, again and again."""
    covered: DecidedEntries = {}
    while stage.goes_on(actor):
        with suppress(TieredError):
            await release_overdue(Backends(tiers, log), process.runtime, understood(settings), covered)
        with anyio.move_on_after(actor.every_s):
            await stage.over.wait()


class SinkAsSeen:
    """A sink of the world, seen over a link. What it takes and returns, and its errors, are of this code's classes.
    """

    def __init__(self, far: Any) -> None:
        self.name: str = far.name
        self._far = far

    async def deliver(self, segment: Segment) -> None:
        await _asked(self._far.deliver, segment)

    async def look(self, generation: int, since: int) -> SinkContent:
        found = await _asked(self._far.look, generation, since)
        owner = None if found.owner is None else Owner(**asdict(found.owner))
        return SinkContent(owner, found.newest, found.times)

    async def claim(self, owner: Owner) -> bool:
        claimed: bool = await _asked(self._far.claim, owner)
        return claimed

    async def aclose(self) -> None:
        await _asked(self._far.aclose)


async def _asked(call: Callable[..., Awaitable[Any]], *given: object) -> Any:
    try:
        return await call(*given)
    except Exception as error:
        if isinstance(error, TieredError) or type(error).__name__ not in FROM_THE_LINK:
            raise
        raise getattr(errors, type(error).__name__)(str(error)) from error
