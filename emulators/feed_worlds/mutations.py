"""Thousands of random changes of many objects, while writers of the feed are killed. At the end the view is exact."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random  # noqa: TID251 - the simulated door for chance

import anyio

from emulators.feed_worlds.recipe_run import FedWorld
from emulators.simulation.run import quiet
from emulators.world.deployment import INLINE_BYTES_MAX, SETTINGS, World
from emulators.world.faults import CallFault, Mode, Process
from emulators.world.runtime import elapse, run_world
from tiered.object_id import ObjectId
from tiered.settings import FeedSettings

CALLERS = 3
CHANGES_OF_AN_OBJECT = 20
KILLED_SHARE = 0.01
FAULTS = (Mode.CRASH_BEFORE, Mode.CRASH_AFTER, Mode.STALL_BEFORE, Mode.LOST)


def mutate(seed: int, changes: int) -> FedWorld:
    """Makes so many changes, and lets the feed come to rest. Raises `InvariantViolation`."""
    with quiet():
        return run_world(lambda: _live(seed, changes), seed)


async def _live(seed: int, changes: int) -> FedWorld:
    chance = Random(f"mutations {seed}")
    settings = SETTINGS.model_copy(update={
        "feed": FeedSettings(
            enabled=True, to=("first", "second"), batch_max=chance.choice((5, 100)), poll_s=1.0, progress_every_s=3.75,
            reconcile_every_s=chance.choice((60.0, 86_400.0)),
        ),
    })  # fmt: skip
    objects = [ObjectId.create("attachments", f"object-{number}") for number in range(max(2, changes // CHANGES_OF_AN_OBJECT))]
    async with World(seed, settings=settings) as world:
        fed = FedWorld(world, settings)
        over = anyio.Event()
        async with anyio.create_task_group() as beside:
            for number in range(2):
                beside.start_soon(_feed, world, fed, f"feeder-{number}", chance, over)
            async with anyio.create_task_group() as callers:
                for number in range(CALLERS):
                    callers.start_soon(_call, world, f"caller-{number}", objects, changes // CALLERS, chance)
            over.set()
        await world.drain()
        await fed.come_to_rest()
        fed.watch.rest()
        world.verify()
        return fed


async def _call(world: World, name: str, objects: Sequence[ObjectId], changes: int, chance: Random) -> None:
    async with world.client(world.process(name)) as client:
        for number in range(changes):
            object_id, size = chance.choice(objects), chance.choice((10, INLINE_BYTES_MAX * 3, INLINE_BYTES_MAX * 3))
            if chance.random() < 0.25:
                await client.delete(object_id)
            else:
                await client.put(object_id, f"{name}-{number}", size)
            await elapse(chance.choice((0.0, 0.01, 0.3)))


async def _feed(world: World, fed: FedWorld, name: str, chance: Random, over: anyio.Event) -> None:
    """Runs writers, one life after the other, each until it is killed."""

    def plan(point: str) -> CallFault | None:
        return CallFault(chance.choice(FAULTS), 40.0) if chance.random() < KILLED_SHARE and not over.is_set() else None

    life = 0
    while not over.is_set():
        process = world.process(f"{name}.{life}", plan)
        await process.run(partial(_write, fed, process, over))
        life += 1


async def _write(fed: FedWorld, process: Process, over: anyio.Event) -> None:
    run = fed.writer(process)

    async def stop() -> None:
        await over.wait()
        run.stop()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop)
        await run.run()
        tasks.cancel_scope.cancel()
