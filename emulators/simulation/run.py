"""The run of one recipe: the actors act; then faults end, the world must converge, and every invariant is checked.

    1 the callers do their steps, beside recoverers, auditors, operators, collectors, in the recipe's weather
    2 calm: no new fault; what is under way arrives; stores and recoveries that stayed hold nothing, serve, and recover
    3 drain: parked entries are retried, recovery passes until the log is empty (I6; only unreadable entries stay)
    4 repeat: every clean-up once more (I5)
    5 age: where an expiry was changed, the bucket collects hours later, and each object is read; on S3, what has
      expired of the rows is collected
    6 live: each object can be put, read, deleted; where orphans are deleted, an audit leaves none
    7 verify: I1-I7, and that some order explains the history
    8 on S3, a day later: what has expired is gone, and nothing lies beside a blob that is gone (I3)

A run raises nothing. Its `RunResult` holds what breaks: a violated invariant, or an error that no caller should see.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import cast

import anyio

from changelog.base.runtime import Runtime
from changelog.change import Change, ChangeId, Entry, Unreadable, decode
from emulators.bigtable.stack import BigtableStack
from emulators.s3.stack import ShownBlobs, WorldBucket
from emulators.simulation import actors
from emulators.simulation.actors import LARGE_BYTES, OBJECTS, SMALL_BYTES, SOON_S, Stage, audit_and_delete, live, stream
from emulators.simulation.coverage import Coverage
from emulators.simulation.leaks import held_by_recovery, held_by_store
from emulators.simulation.recipe import OVER_ITSELF, Recipe, RecipePart, Role, actor_part
from emulators.world.checker import InvariantViolation
from emulators.world.client import Client
from emulators.world.code import TODAY, Code
from emulators.world.deployment import SETTINGS, TIGHT, World
from emulators.world.faults import CallFault, Mode, Process
from emulators.world.history import WriteAnswer
from emulators.world.runtime import elapse, run_world
from emulators.world.stack import SimulatedStack, Stack
from recovery.audit.finding_classes import NameForm
from recovery.audit.names import read_name
from tiered.errors import DanglingTombstoneError
from tiered.metadata import TimeToIdle, TimeToLive, is_expired
from tiered.object_id import ObjectId
from tiered.services.backends import Row
from tiered.settings import Settings

SKEW_MAX_S = 60.0
WORLD_ENDS_S = 30 * 86_400.0
PAGE = 1000
RESTS_WITHIN_S = 1500.0
"""Seconds after all is calm. It is longer than anything is under way, and all budgets after that."""
QUIET_WITHIN_S = 1000.0
RECOVERED_SOON_S = 200.0
"""Seconds. It is longer than a lease and the pause after failures."""
RECOVERED_WITHIN_S = 3000.0
"""Seconds. It is longer than what is under way, a lease, the late-upload grace and a full pass."""
LONG_AGO_S = 3 * 3600.0
LOOKS_EVERY_S = 10.0
LIFE = timedelta(seconds=20)
HANGS_S = 500.0
LEFT_TO_NEWER = "an entry of newer software is left to it"


@dataclass(slots=True)
class RunResult:
    """The result of a run. `violation` None: all invariants held.

    `parts`: the parts of the recipe that mattered and could be left out.

    `calls`: how many calls all processes made.
    """

    seed: int
    violation: InvariantViolation | None = None
    trace: list[str] = field(default_factory=list)
    simulated_s: float = 0.0
    calls: int = 0
    parts: tuple[RecipePart, ...] = ()


RunSeed = Callable[[int, Coverage], RunResult]
"""Runs the world of a seed. What it exercised is counted."""


def run(recipe: Recipe, coverage: Coverage, codes: Sequence[Code] = (TODAY,), newer: Code | None = None) -> RunResult:
    """Runs a recipe. `coverage` counts what was exercised. `codes`: each process has one of them. `newer`: the one
    whose entries the others cannot read: they must leave them, and it comes last.

    The product's decisions are counted only if the caller has switched that on (`decisions_counted`).
    """

    async def live(result: RunResult) -> None:
        async with world_of(recipe, TIGHT if recipe.tight else SETTINGS, newer, horizon=recipe.horizon) as world:
            stage = Stage(world, recipe, codes, newer)
            await act(stage, result, coverage, partial(_play, stage))

    return found_by(live, recipe.seed)


def found_by(live: Callable[[RunResult], Awaitable[None]], seed: int) -> RunResult:
    """Runs what a seed has chosen, and returns its result. Whatever a world raises is a finding, and ends no search."""
    result = RunResult(seed)
    with quiet():
        try:
            run_world(partial(live, result), seed)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - see above
            result.violation = violation_of(error, result.trace)
    return result


def world_of(recipe: Recipe, settings: Settings, newer: Code | None, *, horizon: bool) -> World:
    """Returns the world that a recipe is played in. It reads entries as `newer` does, if there is one.

    `horizon`: whether simulated rows keep one.
    """
    skew_max_s = max(SKEW_MAX_S if actor.role is Role.CLOCKS else abs(actor.skew_s) for actor in recipe.actors)
    stack: Callable[[Runtime], Stack] = BigtableStack if recipe.bigtable else partial(SimulatedStack, horizon=horizon)
    world = World(
        recipe.seed, sessions=recipe.sessions, settings=settings, skew_max_s=skew_max_s, durable=recipe.durable, stack=stack,
        bucket=partial(WorldBucket, sessions=recipe.sessions) if recipe.s3 else None, reads=newer or TODAY,
    )  # fmt: skip
    world.blobs.collect_after_s = recipe.collect_after_s
    return world


async def act(stage: Stage, result: RunResult, coverage: Coverage, play: Callable[[], Awaitable[None]]) -> None:
    """Plays what is on the stage, within the time of a world, and notes what was met, even if it ends with an error."""
    result.trace = stage.world.network.trace
    try:
        with anyio.fail_after(WORLD_ENDS_S) as stage.bound:
            await play()
    finally:
        result.simulated_s = anyio.current_time()
        result.calls = len(result.trace)
        result.parts = tuple(stage.played)
        _count(stage, coverage)


async def _play(stage: Stage) -> None:
    world, recipe = stage.world, stage.recipe
    if recipe.legacy:
        world.plant_legacy(OBJECTS[0], "legacy", LARGE_BYTES)
    played = [actor for actor in recipe.actors if recipe.has(actor_part(actor))]
    async with anyio.create_task_group() as all_of_them:
        for actor in played:
            all_of_them.start_soon(live, stage, actor)
        await stage.wait_through(actor for actor in played if actor.role is Role.CALLER)
        await elapse(recipe.lingers_s)
        stage.over.set()
        await stage.wait_through(actor for actor in played if not actor.stays)
        stage.calm = True
        await _rest(stage)
        await _recover(stage)
        stage.leave.set()
    if stage.newer is not None:
        await leave_to(stage, stage.newer)
    await drain(stage.world, stage.last_code)
    world.verify()
    await world.repeat()
    world.verify()
    if any(step.kind in OVER_ITSELF for actor in played for step in actor.steps):
        await _prove_deadlines(stage)
    if recipe.s3:  # rows that have expired leave blobs to their deadlines alone, before somebody overwrites them
        await elapse(SOON_S + 2 * SKEW_MAX_S)
        await world.rows.collect(PAGE)
    await _prove_alive(stage)
    await world.drain()
    if any(actor.role is Role.OLDER for actor in played):
        await _prove_audit(stage)
    world.verify()
    if recipe.s3:
        await _prove_collected(stage)
        world.watch.verify()


def _first_object(process: Process) -> ObjectId:
    """Returns the first object, as a caller in this process names it."""
    objects: list[ObjectId] = process.code.module(actors.__name__).OBJECTS
    return objects[0]


async def _rest(stage: Stage) -> None:
    """Checks that the stores that are still open hold nothing any more, and can put."""
    world = stage.world
    await elapse(LOOKS_EVERY_S)  # what was under way when it became calm may still stop its process
    for number, (process, client) in enumerate(stage.clients):
        await _holds_nothing(stage, process, partial(held_by_store, client.storage), "store")
        for label in (f"stayed-{number}", f"stayed-{number}-again"):
            if not process.alive or await client.put(_first_object(process), label, SMALL_BYTES) is WriteAnswer.OK:
                break
            # A process that was stopped for minutes has heard nothing of its services, and is told when to ask again.
            await elapse(LOOKS_EVERY_S)
        else:
            world.watch.report("I6 drained", f"when all is calm, the store of {process.name} does not put")


async def _recover(stage: Stage) -> None:
    """Checks that the recoveries that still run find a new entry soon, and an old one somewhat later."""
    world = stage.world
    if not any(process.alive for process, _ in stage.recoveries) or not stage.recipe.durable:
        return
    for process, _ in stage.recoveries:
        await _awake(process)
    await _until(lambda: world.network.quiet, QUIET_WITHIN_S)
    fresh = await _leave_behind(world, "just now", 0.0)
    if not stage.recipe.bigtable:  # with Bigtable a pass takes a call for each shard, and a full pass comes only after minutes
        await _leave_behind(world, "long ago", -LONG_AGO_S)
    await _until(lambda: fresh not in world.log.stored, RECOVERED_SOON_S)
    if fresh in world.log.stored:
        world.watch.report("I6 drained", f"when all is calm, recoveries have left what is new for {RECOVERED_SOON_S:g} s: {fresh}")
    await _until(lambda: not _due(world), RECOVERED_WITHIN_S)
    for line in _due(world):
        world.watch.report("I6 drained", f"when all is calm, recoveries have left what is there for {RECOVERED_WITHIN_S:g} s: {line}")
    for process, recovery in stage.recoveries:
        await _holds_nothing(stage, process, partial(held_by_recovery, recovery), "recovery")


def _due(world: World) -> list[str]:
    """The keys of the entries that nobody parked, and that are no open uploads: these wait longer for somebody."""
    return [key for key, stored in world.log.stored.items() if not stored.state and b'"assembling":' not in stored.value]


async def leave_to(stage: Stage, newer: Code) -> None:
    """Checks that recoveries of the other codes leave what newer software recorded, byte by byte, for hours."""
    world = stage.world
    await _until(lambda: world.network.quiet, QUIET_WITHIN_S)  # its own late requests may still change its entries
    await _leave_behind(world, "in the next version", 0.0, newer)

    def recorded() -> dict[str, bytes]:
        found = {key: world.watch.decoded(key) for key in world.log.stored}
        return {key: world.log.stored[key].value for key, entry in found.items() if isinstance(entry, Entry) and entry.stuck is None}

    before = {key: value for key, value in recorded().items() if _is_newer(key, value)}
    for code in stage.codes:
        if code is not newer:
            await world.drain(code)
    after = recorded()
    stage.checked[LEFT_TO_NEWER] += len(before)
    for key, value in before.items():
        if after.get(key) != value:
            world.watch.report("I6 drained", f"{key} of newer software was {value!r}, and others made {after.get(key)!r} of it")


def _is_newer(key: str, value: bytes) -> bool:
    """Tells whether newer software than this wrote the entry."""
    found = decode(key, value, 0)
    return isinstance(found, Unreadable) and found.newer


async def _leave_behind(world: World, when: str, skew_s: float, code: Code = TODAY) -> str:
    """Leaves an entry in the log, as a process that died does. `skew_s`: how wrong its clock was. Returns its key.

    It goes under the first shard, where old entries are skipped.
    """
    dead, change = world.process(f"died {when}", skew_s=skew_s, code=code), code.own(Change)
    left = change(code.own(ChangeId).new(dead.runtime), OBJECTS[0].path)
    return (await world.log_of(dead, shards=1).record(left, dead.name)).key


async def _awake(process: Process) -> None:
    await elapse(max(0.0, process.stopped_until - anyio.current_time()))


async def _until(holds: Callable[[], bool], within_s: float) -> None:
    ends_at = anyio.current_time() + within_s
    while not holds() and anyio.current_time() < ends_at:
        await elapse(LOOKS_EVERY_S)


async def _holds_nothing(stage: Stage, process: Process, held: Callable[[], list[str]], what: str) -> None:
    stage.checked[f"no leak in a {what}"] += 1
    await _awake(process)
    await _until(lambda: not process.alive or not held(), RESTS_WITHIN_S)
    if process.alive and (kept := held()):
        stage.world.watch.report("leak", f"when all is calm, {process.name} still holds {', '.join(kept)}")


async def drain(world: World, code: Code = TODAY) -> None:
    """Converges. What operators parked is retried. What cannot be read was parked by recovery, and is removed here.

    `code`: that of the recovery.
    """
    await world.drain(code)  # an operator's late request may still park something
    log, readable = world.log_of(world.process("last-operator", code=code)), code.own(Entry)
    for entry in (await log.entries("", PAGE)).entries:
        if isinstance(entry, readable) and entry.stuck is not None:
            await log.retry(entry)
    await world.drain(code)
    for entry in (await log.entries("", PAGE)).entries:
        if not isinstance(entry, readable) and entry.stuck is not None:
            del world.log.stored[entry.key]


async def _prove_alive(stage: Stage) -> None:
    """Checks that each object can be put, read and deleted now, whatever happened before."""
    world, stays = stage.world, any(actor.stays for actor in stage.recipe.actors)
    if stays:
        await _prove_patience(stage, OBJECTS[0])
    async with world.client(world.process("last-caller")) as client:
        for number, object_id in enumerate(OBJECTS[: stage.recipe.things]):
            if stays:  # this takes long, so not every run does it
                await _prove_in_time(stage, client, object_id, f"{number}")
            for label, size in ((f"last-large-{number}", LARGE_BYTES), (f"last-small-{number}", SMALL_BYTES)):
                await client.get(object_id)
                if await client.put(object_id, label, size) is not WriteAnswer.OK or await client.get(object_id) != label:
                    world.watch.report("I6 drained", f"when all is calm, {object_id} cannot be put and read")
            if await client.delete(object_id) is not WriteAnswer.OK or await client.get(object_id) is not None:
                world.watch.report("I6 drained", f"when all is calm, {object_id} cannot be deleted")


async def _prove_deadlines(stage: Stage) -> None:
    """Checks that what lives outlives the collection of what has expired, and that nothing brings the latter back.

    The ghost judges the reads and changes, and `Watch` what is collected.
    """
    world = stage.world
    await elapse(SOON_S + world.blobs.collect_after_s + 2 * SKEW_MAX_S)
    await world.blobs.collect(PAGE)
    async with world.client(world.process("later-caller")) as client:
        for number, object_id in enumerate(OBJECTS):
            await client.get(object_id)
            await client.set_expiry(f"later-{number}", object_id)
            await client.get(object_id)


async def _prove_audit(stage: Stage) -> None:
    """Checks that an audit and its deletion now leave no orphan, and leave all else."""
    world = stage.world
    await elapse(SKEW_MAX_S + LOOKS_EVERY_S)  # an audit judges only what is older than itself, by its writer's clock, too
    before, named = set(world.blobs.blobs), {Row(state).target for state in world.rows.states.values()}
    await audit_and_delete(stage, world.process("last-auditor"))
    after = set(world.blobs.blobs)
    stage.checked["orphans are gone, and nothing else"] += 1
    now_ns = world.runtime.wall_ns()
    for name in sorted(after - named):
        if read_name(name).form is NameForm.REVISION and not is_expired(world.blobs.blobs[name].metadata.time_expires_ns, now_ns):
            world.watch.report("orphans", f"an audit and its deletion left {name}")
    if gone := (before - after) & named:
        world.watch.report("orphans", f"an audit and its deletion took {min(gone)}, which a row names")


async def _prove_collected(stage: Stage) -> None:
    """Checks that rounds of the adapter, when all has expired, leave no blob with a deadline, and nothing beside."""
    world = stage.world
    await elapse(86_400.0 + world.blobs.collect_after_s + LONG_AGO_S)
    while await world.blobs.collect(PAGE):
        pass
    stage.checked["nothing is left in a bucket"] += 1
    for line in cast(ShownBlobs, world.blobs).left_beside(recovered=stage.recipe.durable):
        world.watch.report("I3 no leak", f"a day later there is {line}")


async def _prove_in_time(stage: Stage, client: Client, object_id: ObjectId, name: str) -> None:
    """Checks slow puts and expiry.

    A put that takes longer than a lease succeeds. An object that is read in time does not expire, and one that is not
    read does.
    """
    process, watch = client.process, stage.world.watch
    for share in (0.385, 1.0):  # shares of three pauses: a little longer than a lease in all, and several renewals
        label = f"slow-{name}-{share}"
        slow = stream(process, label, share * SETTINGS.lease.expiry_s)
        if await client.put(object_id, label, LARGE_BYTES, payload=slow) is not WriteAnswer.OK:
            watch.report("I6 drained", f"when all is calm, {object_id} cannot be put slowly")
    for size in (LARGE_BYTES, SMALL_BYTES):
        await client.put(object_id, f"idle-{name}-{size}", size, expiration=TimeToIdle(LIFE))
        for _ in range(3):
            await elapse(LIFE.total_seconds() / 2)
            if await client.get(object_id) is None:
                watch.report("I6 drained", f"{object_id} was read in time again and again, and has expired")
    size = SMALL_BYTES if stage.recipe.seed % 2 else LARGE_BYTES
    await client.put(object_id, f"mortal-{name}", size, expiration=TimeToLive(LIFE))
    await elapse(LIFE.total_seconds() + 5 * SKEW_MAX_S)
    await client.get(object_id)
    await client.list(metadata=True)


async def _prove_patience(stage: Stage, object_id: ObjectId) -> None:
    """Checks that a caller is answered within its budgets if the service does not answer."""
    world = stage.world
    hangs = CallFault(Mode.SLOW, HANGS_S)
    async with world.client(world.process("waiting", lambda point: hangs if point.startswith("rows.read") else None)) as client:
        await client.get(object_id)
        await client.head(object_id)


def _count(stage: Stage, coverage: Coverage) -> None:
    for section, counts in (("faults", stage.faults), ("checks", stage.world.watch.checked), ("checks", stage.checked)):
        for name, times in counts.items():
            coverage.count(section, name, times)
    answers = Counter(write.answer.name for write in stage.world.history.writes)
    for name, times in answers.items():
        coverage.count("answers", name, times)
    for actor in stage.recipe.actors:
        if actor_part(actor) in stage.played:
            coverage.count("actors", actor.role.name)
    if len(stage.codes) > 1:
        _count_lives(stage, coverage)


def _count_lives(stage: Stage, coverage: Coverage) -> None:
    """Counts which actor had which code, and which code came last."""
    for (part, code), times in stage.lives.items():
        coverage.count("lives", f"{part} of {code.name}", times)
    coverage.count("lives", f"last recovery of {stage.last_code.name}")


def violation_of(error: BaseException, trace: list[str]) -> InvariantViolation:
    """Returns the first error of those that a group of tasks raised together, as a violation."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, InvariantViolation):
        return error
    invariant = "I1 no dangling" if isinstance(error, DanglingTombstoneError) else "unexpected error"
    violation = InvariantViolation(invariant, f"{type(error).__name__}: {error}", trace)
    violation.__cause__ = error
    return violation


@contextmanager
def quiet() -> Iterator[None]:
    """Switches the product's log records off. They are for operators of real deployments. A world's trace tells more.
    """
    logger = logging.getLogger("tiered")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled
