"""One history, and a crash of the writer of the feed at every one of its calls. Afterwards a new writer makes it exact.

    puts, an overwrite, a deletion, an expiry -> a writer runs to its end -> more of them -> a second generation -> more
    once more, with a crash before or after call 1, 2, 3, …, or with a crash whose request arrives half a minute later
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta

import anyio

from emulators.feed_worlds.recipe_run import FedWorld
from emulators.simulation.run import quiet
from emulators.world.client import Client
from emulators.world.deployment import INLINE_BYTES_MAX, SETTINGS, World
from emulators.world.faults import CallFault, Mode, Process
from emulators.world.runtime import elapse, run_world
from tiered.metadata import TimeToLive
from tiered.object_id import ObjectId
from tiered.settings import FeedSettings

LARGE_BYTES = INLINE_BYTES_MAX * 3
LATE_S = 30.0
ENDINGS = (Mode.CRASH_BEFORE, Mode.CRASH_AFTER, Mode.LATE)
"""How a writer ends at a call. LATE: it dies, and its request arrives later."""
FED = SETTINGS.model_copy(update={
    "feed": FeedSettings(enabled=True, to=("first", "second"), batch_max=2, poll_s=1.0, progress_every_s=3.75),
})  # fmt: skip


def calls() -> int:
    """Returns how many calls the writers of the history make, when nothing goes wrong."""
    return run_world(lambda: _live(None, Mode.CRASH_BEFORE), 1)


def crashed(call: int, ending: Mode) -> None:
    """Runs the history with an end of the writer at this call (from 1). Raises `InvariantViolation`."""
    with quiet():
        run_world(lambda: _live(call, ending), 1)


def schedules(every: int = 1) -> Iterator[tuple[int, Mode]]:
    """Yields every call with every ending, or each `every`th of them."""
    yield from itertools.islice(itertools.product(range(1, calls() + 1), ENDINGS), 0, None, every)


async def _live(call: int | None, ending: Mode) -> int:
    world, number = World(1, settings=FED), itertools.count(1)
    made = 0

    def plan(point: str) -> CallFault | None:
        nonlocal made
        made = next(number)
        if made != call:
            return None
        if ending is Mode.LATE:
            feeder.crash()
        return CallFault(ending, LATE_S)

    async with world:
        fed = FedWorld(world, FED)
        async with world.client(world.process("caller")) as client:
            for generation in range(3):
                await _change(client, generation)
                feeder: Process = world.process(f"feeder-{generation}", plan)
                if generation == 2:
                    await _write_until_killed(fed, feeder)
                else:
                    await feeder.run(lambda feeder=feeder, anew=generation == 1: _write(fed, feeder, anew))  # type: ignore[misc]
        await elapse(2 * LATE_S)
        await world.drain()
        await fed.come_to_rest()
        fed.watch.rest()
        world.verify()
        await world.repeat()
        world.verify()
        return made


async def _write(fed: FedWorld, feeder: Process, anew: bool) -> None:
    await fed.writer(feeder, new_generation=anew, once=True).run()


async def _write_until_killed(fed: FedWorld, feeder: Process) -> None:
    """Lets a writer run, and kills it without a word."""
    with anyio.move_on_after(20.0):
        await feeder.run(fed.writer(feeder).run)
    feeder.crash()


async def _change(client: Client, round: int) -> None:
    a, b, c, d = (ObjectId.create("attachments", name) for name in "abcd")
    await client.put(a, f"a-{round}", LARGE_BYTES)
    await client.put(b, f"b-{round}", LARGE_BYTES)
    await client.put(a, f"a-again-{round}", LARGE_BYTES)
    await client.put(c, f"c-{round}", LARGE_BYTES if round != 1 else 10)
    await client.put(d, f"d-{round}", LARGE_BYTES, expiration=TimeToLive(timedelta(seconds=300)))
    if round:
        await client.delete(b)
