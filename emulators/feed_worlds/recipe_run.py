"""The run of one recipe with a feed: the actors act; then faults end, the feed comes to rest, and all is checked.

    1 callers do their steps, beside recoveries, auditors, operators, collectors, and writers of the feed
    2 calm: no new fault; recovery drains the log, but for what waits for the feed
    3 a writer without faults goes on until nothing waits, and then makes one more pass over all rows
    4 rest: `FeedWatch.rest`, I1-I7, and every clean-up once more (I5)

A run raises nothing. Its `RunResult` holds what breaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import anyio

from emulators.feed_worlds.inside import bound, look_every, write, writer_in
from emulators.feed_worlds.recipe import FeedRecipe
from emulators.feed_worlds.sinks import WorldSink
from emulators.feed_worlds.watch import FeedWatch
from emulators.simulation.actors import LARGE_BYTES, OBJECTS, RESTART_S, Stage, live
from emulators.simulation.coverage import Coverage
from emulators.simulation.recipe import Actor, Role
from emulators.simulation.run import RunResult, act, drain, found_by, leave_to, world_of
from emulators.world.code import TODAY, Code
from emulators.world.deployment import World
from emulators.world.faults import Process
from emulators.world.runtime import elapse
from recovery.feed.writer.supervisor import FeedRun
from tiered.object_id import ObjectId
from tiered.settings import Settings

PAGE = 1000
RESTS_WITHIN_S = 6 * 3600.0
LOOKS_EVERY_S = 20.0
PASS_WITHIN_S = 120.0
"""A pass that ended so long after the world was quiet began after that, too."""
WRITER_LOOKS_EVERY_S = 1.0
"""The writer's tasks look every few tenths of a second whether there is something to do. A world has no time for it."""


class FedWorld:
    """A world with a feed. `process` and `settings` make its writers."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.world = world
        self.settings = settings
        self.sinks = [WorldSink(world.runtime, name) for name in settings.feed.to]
        self.watch = FeedWatch(world, self.sinks)

    def writer(self, process: Process, settings: Settings | None = None, *, new_generation: bool = False, once: bool = False) -> FeedRun:
        """Returns a writer of the feed in this process."""
        tiers, log = self.world.tiers_of(process), self.world.log_of(process)
        return process.code.own(writer_in)(
            process, tiers, log, settings or self.settings, self.sinks, new_generation=new_generation, once=once
        )  # fmt: skip

    async def come_to_rest(self, code: Code = TODAY, name: str = "last-feeder") -> None:
        """Lets a writer without faults go on until nothing waits, and until a pass that began then is complete.

        `code`: that of the writer.
        """
        feed = self.settings.feed.model_copy(update={"reconcile_every_s": 60.0, "poll_s": 2.0, "progress_every_s": 10.0})
        run = self.writer(self.world.process(name, code=code), self.settings.model_copy(update={"feed": feed}))

        async def stop_at_rest() -> None:
            ends_at, quiet_at = anyio.current_time() + RESTS_WITHIN_S, None
            while anyio.current_time() < ends_at:
                await elapse(LOOKS_EVERY_S)
                quiet_at = (quiet_at or anyio.current_time()) if self.watch.is_through() else None
                if quiet_at is not None and self.watch.passed_at - PASS_WITHIN_S > quiet_at:
                    break
            run.stop()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop_at_rest)
            await run.run()
            tasks.cancel_scope.cancel()
        await self.writer(self.world.process(f"{name}-once", code=code), once=True).run()


def run(recipe: FeedRecipe, coverage: Coverage, codes: Sequence[Code] = (TODAY,), newer: Code | None = None) -> RunResult:
    """Runs a recipe. `coverage` counts what was exercised. `codes` and `newer`: as in `emulators.simulation.run`."""

    async def live(result: RunResult) -> None:
        async with world_of(recipe.base, recipe.settings, newer, horizon=True) as world:
            stage = Stage(world, recipe.base, codes, newer)
            if recipe.base.legacy:
                world.plant_legacy(OBJECTS[0], "legacy", LARGE_BYTES)
            for number in range(recipe.planted):
                world.plant_legacy(ObjectId.create("attachments", f"planted-{number}"), f"planted-{number}", LARGE_BYTES)
            fed = FedWorld(world, recipe.settings)
            try:
                await act(stage, result, coverage, partial(_play, stage, fed, recipe))
            finally:
                for name, times in fed.watch.checked.items():
                    coverage.count("checks", name, times)

    looks = [code.own(look_every)((WRITER_LOOKS_EVERY_S, WRITER_LOOKS_EVERY_S)) for code in codes]
    try:
        return found_by(live, recipe.seed)
    finally:
        for code, before in zip(codes, looks, strict=True):
            code.own(look_every)(before)


async def _play(stage: Stage, fed: FedWorld, recipe: FeedRecipe) -> None:
    world = stage.world
    actors = stage.recipe.actors
    async with anyio.create_task_group() as all_of_them:
        for actor in actors:
            all_of_them.start_soon(live, stage, actor)
        async with anyio.create_task_group() as beside:
            for feeder in recipe.feeders:
                beside.start_soon(_feed, stage, fed, feeder, recipe)
            if recipe.bound is not None:
                beside.start_soon(_bound, stage, fed, recipe.bound)
            await stage.wait_through(actor for actor in actors if actor.role is Role.CALLER)
            await elapse(recipe.base.lingers_s)
            stage.over.set()
        stage.calm = True
    world.watch.verify()
    if stage.newer is not None:
        await leave_to(stage, stage.newer)
    await drain(stage.world, stage.last_code)
    await fed.come_to_rest(stage.last_code)
    fed.watch.rest()
    world.verify()
    await world.repeat()
    world.verify()


async def _feed(stage: Stage, fed: FedWorld, actor: Actor, recipe: FeedRecipe) -> None:
    """Runs writers of the feed, one life after the other, until the callers have finished."""
    await elapse(actor.starts_s)
    life = 0
    while stage.goes_on(actor):
        process = stage.process(actor, life)
        begins_anew = process.runtime.random.random() < recipe.restarts
        await process.run(partial(_write, stage, fed, actor, process, begins_anew))
        life += 1
        with anyio.move_on_after(RESTART_S):
            await stage.over.wait()


async def _write(stage: Stage, fed: FedWorld, actor: Actor, process: Process, begins_anew: bool) -> None:
    await process.code.own(write)(stage, actor, fed.writer(process, new_generation=begins_anew))


async def _bound(stage: Stage, fed: FedWorld, actor: Actor) -> None:
    """Cleans up what is overdue, again and again, one process after the other."""
    life = 0
    while stage.goes_on(actor):
        process = stage.process(actor, life)
        tiers, log = stage.world.tiers_of(process), stage.world.log_of(process)
        await process.run(partial(process.code.own(bound), stage, actor, process, tiers, log, fed.settings))
        life += 1
        await elapse(RESTART_S)
