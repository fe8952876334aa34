"""One recipe's run: who acts, acts; then faults end, the world must converge, and every invariant is looked at.

    1 the callers do their steps, beside recoverers, auditors, operators, collectors, in the recipe's weather
    2 calm: no new fault; what is under way arrives; stores and recoveries that are still there hold nothing, serve, and recover
    3 drain: what is parked is retried, recovery passes until the log is empty (I6; unreadable entries stay, and only they)
    4 repeat: every clean-up once more (I5)
    5 live: each object can be put, read, deleted
    6 verify: I1-I7, and that the history has an order that explains it

A run raises nothing: what breaks is in its `Result`, an error that no caller should see as well as a violated invariant.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import anyio

from changelog.change import Change, ChangeId, Entry, Unreadable
from changelog.runtime import Runtime
from emulators.bigtable_memory_stack import BigtableStack
from emulators.checker import InvariantViolation
from emulators.client import Client
from emulators.faults import Process
from emulators.history import Answer
from emulators.runtime import elapse, run_world
from emulators.simulation.actors import LARGE_BYTES, OBJECTS, SMALL_BYTES, Stage, live, stream
from emulators.simulation.coverage import Coverage
from emulators.simulation.leaks import held_by_recovery, held_by_store
from emulators.simulation.recipe import Part, Recipe, Role, actor_part
from emulators.stack import SimulatedStack, Stack
from emulators.world import SETTINGS, TIGHT, World
from tiered.errors import DanglingTombstoneError
from tiered.metadata import TimeToIdle
from tiered.object_id import ObjectId

SKEW_MAX_S = 60.0
WORLD_ENDS_S = 30 * 86_400.0
CALLS_MAX = 50_000
PAGE = 1000
RESTS_WITHIN_S = 1500.0
"""When all is calm: longer than anything is under way, and all budgets after that."""
RECOVERED_WITHIN_S = 3000.0
"""Longer than what is under way, a lease, the late-upload grace and a full pass."""
LONG_AGO_S = 3 * 3600.0
LOOKS_EVERY_S = 10.0
IDLE_LIFE = TimeToIdle(timedelta(minutes=4))


@dataclass(slots=True)
class Result:
    """`violation` None: all invariants held. `parts`: what played a role and could be left out. `calls`: of all processes."""

    seed: int
    violation: InvariantViolation | None = None
    trace: list[str] = field(default_factory=list)
    simulated_s: float = 0.0
    calls: int = 0
    parts: tuple[Part, ...] = ()


def run(recipe: Recipe, coverage: Coverage) -> Result:
    """Runs it. `coverage` learns what was exercised; the product's decisions, if the caller has them counted (`decisions_counted`)."""
    result = Result(recipe.seed)
    with _quiet():
        try:
            run_world(lambda: _live(recipe, result, coverage), recipe.seed)
        except InvariantViolation as violation:
            result.violation = violation
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            result.violation = _unexpected(error, result.trace)
    return result


async def _live(recipe: Recipe, result: Result, coverage: Coverage) -> None:
    skew_max_s = max(SKEW_MAX_S if actor.role is Role.CLOCKS else abs(actor.skew_s) for actor in recipe.actors)
    stack: Callable[[Runtime], Stack] = BigtableStack if recipe.bigtable else SimulatedStack
    settings = TIGHT if recipe.tight else SETTINGS
    world = World(
        recipe.seed, sessions=recipe.sessions, settings=settings, skew_max_s=skew_max_s, durable=recipe.durable, stack=stack
    )  # fmt: skip
    world.blobs.collect_after_s = recipe.collect_after_s
    async with world:
        stage = Stage(world, recipe)
        result.trace = world.network.trace
        try:
            with anyio.fail_after(WORLD_ENDS_S):
                await _play(stage)
        finally:
            result.simulated_s = anyio.current_time()
            result.calls = len(world.network.trace)
            result.parts = tuple(stage.played)
            _count(stage, coverage)


async def _play(stage: Stage) -> None:
    world, recipe = stage.world, stage.recipe
    if recipe.legacy:
        world.plant_legacy(OBJECTS[0], "legacy", LARGE_BYTES)
    actors = [actor for actor in recipe.actors if recipe.has(actor_part(actor))]
    async with anyio.create_task_group() as all_of_them:
        for actor in actors:
            all_of_them.start_soon(live, stage, actor)
        await stage.wait_through(actor for actor in actors if actor.role is Role.CALLER)
        await elapse(recipe.lingers_s)
        stage.over.set()
        await stage.wait_through(actor for actor in actors if not actor.stays)
        stage.calm = True
        await _rest(stage)
        await _recover(stage)
        stage.leave.set()
    await _drain(stage)
    world.verify()
    await world.repeat()
    world.verify()
    await _prove_alive(stage)
    await world.drain()
    world.verify()


async def _rest(stage: Stage) -> None:
    """Stores that lived through everything hold nothing any more, and serve."""
    world = stage.world
    for number, (process, client) in enumerate(stage.clients):
        await _holds_nothing(stage, process, partial(held_by_store, client.storage))
        if process.alive and await client.put(OBJECTS[0], f"stayed-{number}", SMALL_BYTES) is not Answer.OK:
            world.watch.report("I6 drained", f"when all is calm, the store of {process.name} does not put")


async def _recover(stage: Stage) -> None:
    """Recoveries that lived through everything find what is there, and what is left over from long ago."""
    world = stage.world
    if not any(process.alive for process, _ in stage.recoveries) or not stage.recipe.durable:
        return
    if not stage.recipe.bigtable:  # there a pass takes a call for each of its shards, and a full one is minutes away
        past = world.process("past", skew_s=-LONG_AGO_S)
        await world.log_of(past).record(Change(ChangeId.new(past.runtime), OBJECTS[0].path), "who died long ago")
    ends_at = anyio.current_time() + RECOVERED_WITHIN_S
    while anyio.current_time() < ends_at and not all(stored.state for stored in world.log.stored.values()):
        await elapse(LOOKS_EVERY_S)
    for line in [key for key, stored in world.log.stored.items() if not stored.state]:
        world.watch.report("I6 drained", f"recoveries run for {RECOVERED_WITHIN_S:g} s when all is calm, and leave {line}")
    for process, recovery in stage.recoveries:
        await _holds_nothing(stage, process, partial(held_by_recovery, recovery))


async def _holds_nothing(stage: Stage, process: Process, held: Callable[[], list[str]]) -> None:
    await elapse(max(0.0, process.stopped_until - anyio.current_time()))
    ends_at = anyio.current_time() + RESTS_WITHIN_S
    while process.alive and held() and anyio.current_time() < ends_at:
        await elapse(LOOKS_EVERY_S)
    if process.alive and (kept := held()):
        stage.world.watch.report("leak", f"when all is calm, {process.name} still holds {', '.join(kept)}")


async def _drain(stage: Stage) -> None:
    """Convergence: what operators parked is retried; what cannot be read was parked by recovery, and is taken away."""
    world = stage.world
    await world.drain()  # an operator's late request may still park something
    log = world.log_of(world.process("last-operator"))
    for entry in (await log.entries("", PAGE)).entries:
        if isinstance(entry, Entry) and entry.stuck is not None:
            await log.retry(entry)
    await world.drain()
    for entry in (await log.entries("", PAGE)).entries:
        if isinstance(entry, Unreadable) and entry.stuck is not None:
            del world.log.stored[entry.key]


async def _prove_alive(stage: Stage) -> None:
    """Liveness: whatever happened before, each object can be put, read and deleted now."""
    world = stage.world
    async with world.client(world.process("last-caller")) as client:
        for number, object_id in enumerate(OBJECTS[: stage.recipe.things]):
            if any(actor.stays for actor in stage.recipe.actors):  # it takes its time
                await _prove_slow(stage, client, object_id, f"{number}")
            for label, size in ((f"last-large-{number}", LARGE_BYTES), (f"last-small-{number}", SMALL_BYTES)):
                await client.get(object_id)
                if await client.put(object_id, label, size) is not Answer.OK or await client.get(object_id) != label:
                    world.watch.report("I6 drained", f"when all is calm, {object_id} cannot be put and read")
            if await client.delete(object_id) is not Answer.OK or await client.get(object_id) is not None:
                world.watch.report("I6 drained", f"when all is calm, {object_id} cannot be deleted")


async def _prove_slow(stage: Stage, client: Client, object_id: ObjectId, name: str) -> None:
    """What takes longer than a lease is put all the same, and what is read in time does not expire."""
    process, idle_s = client.process, IDLE_LIFE.ns / 1e9
    slow = stream(process, f"slow-{name}", SETTINGS.lease.expiry_s)
    if await client.put(object_id, f"slow-{name}", LARGE_BYTES, payload=slow) is not Answer.OK:
        stage.world.watch.report("I6 drained", f"when all is calm, {object_id} cannot be put slowly")
    for size in (LARGE_BYTES, SMALL_BYTES):
        await client.put(object_id, f"idle-{name}-{size}", size, expiration=IDLE_LIFE)
        for _ in range(3):
            await elapse(idle_s / 2)
            if await client.get(object_id) is None:
                stage.world.watch.report("I6 drained", f"{object_id} was read in time again and again, and has expired")


def _count(stage: Stage, coverage: Coverage) -> None:
    for section, counts in (("faults", stage.faults), ("checks", stage.world.watch.checked)):
        for name, times in counts.items():
            coverage.count(section, name, times)
    answers = Counter(write.answer.name for write in stage.world.history.writes)
    for name, times in answers.items():
        coverage.count("answers", name, times)
    for actor in stage.recipe.actors:
        if actor_part(actor) in stage.played:
            coverage.count("actors", actor.role.name)


def _unexpected(error: BaseException, trace: list[str]) -> InvariantViolation:
    """The first error of those that a group of tasks raised together."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, InvariantViolation):
        return error
    invariant = "I1 no dangling" if isinstance(error, DanglingTombstoneError) else "unexpected error"
    violation = InvariantViolation(invariant, f"{type(error).__name__}: {error}", trace)
    violation.__cause__ = error
    return violation


@contextmanager
def _quiet() -> Iterator[None]:
    """The product's log records are for operators of real deployments; a world's trace tells more."""
    logger = logging.getLogger("tiered")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled
