"""What each kind of actor does in a world, as its recipe says.

Actors live in processes that may crash, stall and start again.

    caller      opens a store and does its steps, some at once; after a crash a new process goes on with the next step
    recoverer   a recovery loop, as the daemon runs it; a job makes one pass from time to time
    auditor     runs the real audit again and again, and the real deletion of what it calls an orphan
    older       older software: writes a blob whose name could be a revision over the one that is there, and names it
    operator    parks an entry from time to time, retries what is parked
    collector   the services' own garbage collection: expired rows, blobs and marks, some now and some later
    vandal      writes an unreadable entry into the log
    clocks      sets the clocks of running processes wrong, by up to a minute

What a process does is loaded for each code whose processes a world has (`emulators.world.code`): `process.code.own`
takes a function here to its code. They share a `Stage`: the world, the recipe, and a plan of faults for each of their
processes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from random import Random  # noqa: TID251 - the simulated door for chance
from typing import Any, cast

import anyio

from changelog.base.errors import TieredError
from changelog.change import ChangeId, Entry
from changelog.log import ChangeLog, GarbageCollection
from changelog.noop import NoopChangeLog
from emulators.simulation.recipe import (
    OVER_ITSELF,
    SKEWS_S,
    Actor,
    Life,
    PlannedOutage,
    Recipe,
    RecipePart,
    Role,
    Step,
    StepKind,
    When,
    actor_part,
    fault_part,
    outage_part,
    step_part,
    suspension_part,
)
from emulators.world.checker import WANTED_BY_OPERATOR
from emulators.world.client import NOTHING, BrokenPayload, Client, OpenCall, content
from emulators.world.code import TODAY, Code
from emulators.world.deployment import INLINE_BYTES_MAX, World
from emulators.world.faults import CallFault, Process
from emulators.world.runtime import SimulatedRuntime, elapse, now_s
from recovery.audit.deleting.candidates import Candidate, DeletionBatch
from recovery.audit.finding import Finding
from recovery.audit.finding_classes import FindingClass as Verdict
from recovery.audit.manifest import Bounds, Cutoff
from recovery.audit.sweeping.sweep import audit_range
from recovery.loop import RecoveryLoop
from tiered.metadata import Expiration, TimeToIdle, TimeToLive
from tiered.object_id import ObjectId, blob_name
from tiered.services.backends import HighVolumeBackend, Tiers
from tiered.testing.log import StoredEntry

OBJECTS = [ObjectId.create("attachments", f"object-{number}") for number in range(2)]
SMALL_BYTES, LARGE_BYTES = INLINE_BYTES_MAX // 2, INLINE_BYTES_MAX * 3
PIECES = 3
SOON_S = 240.0
LIVES: dict[Life, Expiration] = {
    Life.EVER: None, Life.SOON: TimeToLive(timedelta(seconds=SOON_S)), Life.IDLE: TimeToIdle(timedelta(seconds=SOON_S))
}  # fmt: skip
EXPIRES_S = {Life.EVER: None, Life.SOON: SOON_S, Life.IDLE: 86_400.0}
"""In how many seconds an object expires, from now or from its creation, when its expiry is set. None: never."""
RESTART_S = 1.0
PAGE = 100
EVERYTHING = Bounds(start="", end=None)
OLDER_WRITES_MAX = 30
BLIND_S = 86_400.0
"""How many seconds ahead the cut-off of a blind auditor lies."""


class Stage:
    """What all actors share.

    `calm`: no fault happens any more. `played`: the parts of the recipe that mattered so far. `faults`: how many of
    each kind. `checked`: how often each check was made. `clocks`: for each actor, the clock of the process that it
    runs, or ran last. `codes`: each life of an actor has one of them. `newer`: the one whose entries the others cannot
    read, if any. `lives`: how many of each kind had which.
    `older`: the path of the object of older software. `uploads`: those
    that were begun, latest last. `over`: the callers have finished. `leave`: actors that
    stay may leave now; `clients` and `recoveries` are those that stay. `bound`: the world must end within it; a machine
    that sleeps puts it off, because nothing says how often it may.
    """

    def __init__(self, world: World, recipe: Recipe, codes: Sequence[Code] = (TODAY,), newer: Code | None = None) -> None:
        self.world = world
        self.recipe = recipe
        self.codes = codes
        self.newer = newer
        self.lives: Counter[tuple[str, Code]] = Counter()
        self.calm = False
        self.over = anyio.Event()
        self.leave = anyio.Event()
        self.older: str | None = None
        self.uploads: list[OpenCall] = []
        self.clients: list[tuple[Process, Client]] = []
        self.recoveries: list[tuple[Process, RecoveryLoop]] = []
        self._through = {actor.name: anyio.Event() for actor in recipe.actors}
        self.played: dict[RecipePart, None] = {}
        self.faults: Counter[str] = Counter()
        self.checked: Counter[str] = Counter()
        self.clocks: dict[str, SimulatedRuntime] = {}
        self.bound = anyio.CancelScope()
        self._outages = [
            outage for number, outage in enumerate(recipe.outages) if recipe.has(outage_part(outage, number))
        ]  # fmt: skip

    def process(self, actor: Actor, life: int) -> Process:
        """Makes the actor's process for its `life`th life."""
        name = f"{actor.name}.{life}"
        code = self._code_of(name)
        process = self.world.process(
            name, lambda point: self._fault(actor, process, point), actor.skew_s, partial(self._travel, name), code
        )  # fmt: skip
        self.clocks[actor.name] = process.clock
        self.lives[actor.name.rstrip("-0123456789"), code] += 1
        return process

    @property
    def last_code(self) -> Code:
        """The code of the recovery at the end: nothing else recovers what is left then."""
        return self.newer or self._code_of("drain")

    def _code_of(self, process: str) -> Code:
        return Random(f"code {self.recipe.seed} {process}").choice(self.codes)

    def goes_on(self, actor: Actor) -> bool:
        """Tells whether an actor without steps goes on: the callers have not finished, and its own time is not over."""
        return not self.over.is_set() and now_s() < actor.ends_s

    def through(self, actor: Actor) -> None:
        """Notes that the actor has done its work."""
        self._through[actor.name].set()

    async def wait_through(self, actors: Iterable[Actor]) -> None:
        for actor in actors:
            await self._through[actor.name].wait()

    def _travel(self, name: str, point: str) -> tuple[float, float]:
        return (0.0, 0.0) if self.calm else self.recipe.travel(name, point)

    def _fault(self, actor: Actor, process: Process, point: str) -> CallFault | None:
        if self.calm:
            return None
        if suspension := self.recipe.suspension(actor, process.name, point):
            self.faults["suspended for days"] += 1
            self.played[suspension_part(process.name, point, suspension)] = None
            self.bound.deadline += suspension.seconds
            return suspension
        if (outage := self._outage(actor, point)) is not None:
            self.faults[f"outage {outage.mode.name}"] += 1
            self.played[outage_part(outage, self.recipe.outages.index(outage))] = None
            return CallFault(outage.mode, outage.until_s - now_s())
        fault = self.recipe.fault(actor, process.name, point)
        if fault is not None:
            self.faults[fault.mode.name] += 1
            self.played[fault_part(process.name, point, fault)] = None
        return fault

    def _outage(self, actor: Actor, point: str) -> PlannedOutage | None:
        if not self._outages:
            return None
        now = now_s()
        for outage in self._outages:
            if outage.from_s <= now < outage.until_s and outage.actor in (None, actor.name) and outage.meets(point):
                return outage
        return None


# --- lives ---------------------------------------------------------------------------------------


async def live(stage: Stage, actor: Actor) -> None:
    """Plays the actor from its beginning to its end, in as many processes as it needs."""
    await elapse(actor.starts_s)
    stage.played[actor_part(actor)] = None
    try:
        await _play(stage, actor)
    finally:
        stage.through(actor)


async def _play(stage: Stage, actor: Actor) -> None:
    match actor.role:
        case Role.CALLER:
            await _call(stage, actor)
        case Role.RECOVERER:
            await _again_and_again(stage, actor, _recover)
        case Role.JOB:
            await _again_and_again(stage, actor, _recover_now_and_then)
        case Role.AUDITOR | Role.BLIND_AUDITOR:
            await _again_and_again(stage, actor, _audit)
        case Role.OPERATOR:
            await _again_and_again(stage, actor, _operate)
        case Role.COLLECTOR:
            await _collect(stage, actor)
        case Role.OLDER:
            await _write_as_older_software(stage, actor)
        case Role.VANDAL:
            _vandalise(stage)
        case Role.CLOCKS:
            await _set_clocks(stage, actor)


async def _again_and_again(stage: Stage, actor: Actor, work: Callable[[Stage, Actor, Process], Awaitable[None]]) -> None:
    """Repeats the work until the callers have finished. After each crash, it goes on in a new process."""
    life = 0
    while not stage.leave.is_set() if actor.stays else stage.goes_on(actor):
        process = stage.process(actor, life)
        await process.run(partial(process.code.own(work), stage, actor, process))
        life += 1
        await (elapse(RESTART_S) if actor.stays else _rest(stage, RESTART_S))


async def _rest(stage: Stage, seconds: float) -> None:
    with anyio.move_on_after(seconds):
        await stage.over.wait()


# --- callers -------------------------------------------------------------------------------------


async def _call(stage: Stage, actor: Actor) -> None:
    steps = deque(number for number in range(len(actor.steps)) if stage.recipe.has(step_part(actor, number)))
    life = 0
    while steps:
        process = stage.process(actor, life)
        await process.run(partial(process.code.own(_work), stage, actor, process, steps))
        life += 1
        await elapse(RESTART_S)


async def _work(stage: Stage, actor: Actor, process: Process, steps: deque[int]) -> None:
    """Does steps in one process, until none are left, a step says to reopen the store, or the process dies."""
    async with stage.world.client(process, actor.shards) as client:
        reopen = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for _ in range(actor.tasks):
                tasks.start_soon(_do_steps, stage, actor, client, process, steps, reopen)
        if actor.stays and not steps:
            stage.clients.append((process, client))
            stage.through(actor)
            await stage.leave.wait()


async def _do_steps(stage: Stage, actor: Actor, client: Client, process: Process, steps: deque[int], reopen: anyio.Event) -> None:
    while steps and not reopen.is_set():
        number = steps.popleft()
        step = actor.steps[number]
        stage.played[step_part(actor, number)] = None
        await process.runtime.sleep(step.pause_s)
        if step.kind is StepKind.REOPEN:
            reopen.set()
            return
        if step.kind is StepKind.SLEEP:
            process.suspend(stage.recipe.weather.suspend_s)
            stage.bound.deadline += stage.recipe.weather.suspend_s
            continue
        with anyio.move_on_after(step.cancel_after_s):
            await _do(client, process, OBJECTS[step.thing % stage.recipe.things], step, f"{actor.name}-{number}", stage)
    await client.ask()


async def _do(client: Client, process: Process, object_id: ObjectId, step: Step, label: str, stage: Stage) -> None:
    expiration = LIVES[step.life]
    over = NOTHING if step.when is When.ABSENT else None
    if step.when is When.SEEN and (over := await client.seen(object_id)) is None:
        return
    if over is NOTHING and (step.kind is StepKind.DELETE or step.kind in OVER_ITSELF):
        return
    match step.kind:
        case StepKind.PUT_SMALL:
            await client.put(object_id, label, SMALL_BYTES, expiration=expiration, over=over)
        case StepKind.PUT_LARGE:
            await client.put(object_id, label, LARGE_BYTES, expiration=expiration, over=over)
        case StepKind.PUT_STREAM:
            payload = stream(process, label, step.pause_s)
            await client.put(object_id, label, LARGE_BYTES, payload=payload, expiration=expiration, over=over, named_at_end=True)
        case StepKind.PUT_BROKEN:
            broken = stream(process, label, 0.0, breaks=True)
            await client.put(object_id, label, LARGE_BYTES, payload=broken, expiration=expiration, over=over)
        case StepKind.COPY:
            await client.copy(f"copy {label}", other_than(object_id), object_id, over)
        case StepKind.COPY_OLDER:
            if stage.older is not None:
                await client.copy(f"copy {label}", ObjectId.parse(stage.older), object_id, over)
        case StepKind.UPLOAD | StepKind.UPLOAD_LEFT:
            leaves = step.kind is StepKind.UPLOAD_LEFT
            await client.upload(object_id, label, LARGE_BYTES, stage.uploads, expiration=expiration, over=over, leaves=leaves)
        case StepKind.APPEND:
            await client.append(object_id, label, LARGE_BYTES, stage.uploads, expiration=expiration, over=over)
        case StepKind.COMPLETE | StepKind.ABORT:
            for call in stage.uploads[-1:]:
                await client.end_upload(call, completes=step.kind is StepKind.COMPLETE, lists=step.life is Life.SOON)
        case StepKind.COMPLETE_OTHERWISE:
            for call in stage.uploads[-1:]:
                await client.complete_otherwise(call)
        case StepKind.RENAME:
            await client.rename(f"rename {label}", other_than(object_id), object_id, over)
        case StepKind.UPDATE:
            await client.update_metadata(f"update {label}", object_id, over, expiration=expiration, takes_s=step.pause_s)
        case StepKind.EXPIRE:
            of_creation = step.life is Life.IDLE
            await client.set_expiry(f"expiry {label}", object_id, over, lives_s=EXPIRES_S[step.life], of_creation=of_creation)
        case StepKind.PROLONG:
            await client.set_expiry(f"prolong {label}", object_id, over, lives_s=EXPIRES_S[step.life], extend_only=True)
        case StepKind.DELETE:
            await client.delete(object_id, over)
        case StepKind.GET:
            await client.get(object_id)
        case StepKind.GET_SLOWLY:
            await client.get(object_id, step.pause_s)
        case StepKind.HEAD:
            await client.head(object_id)
        case StepKind.LIST:
            await client.list(metadata=step.life is Life.SOON)  # drawn for every step
        case StepKind.PUT_MANY:
            await client.put_many([object_id, OBJECTS[0]] * 2, label, LARGE_BYTES if step.thing else SMALL_BYTES)
        case StepKind.DELETE_MANY:
            await client.delete_many([object_id, OBJECTS[0]])
        case StepKind.GET_MANY:
            await client.get_many([object_id, OBJECTS[0]])


def other_than(object_id: ObjectId) -> ObjectId:
    return OBJECTS[1 - OBJECTS.index(object_id)]


async def stream(process: Process, label: str, pause_s: float, *, breaks: bool = False) -> AsyncIterator[bytes]:
    whole = content(label, LARGE_BYTES)
    for start in range(0, LARGE_BYTES, LARGE_BYTES // PIECES):
        yield whole[start : start + LARGE_BYTES // PIECES]
        if breaks:
            raise BrokenPayload
        await process.runtime.sleep(pause_s)


# --- those beside --------------------------------------------------------------------------------


async def _recover(stage: Stage, actor: Actor, process: Process) -> None:
    recovery = stage.world.recovery(process, actor.shards)
    stage.recoveries += [(process, recovery)] if actor.stays else []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_when_over, stage, actor, recovery.stop)
        await recovery.run()
        tasks.cancel_scope.cancel()


async def _recover_now_and_then(stage: Stage, actor: Actor, process: Process) -> None:
    recovery = stage.world.recovery(process, actor.shards)
    while stage.goes_on(actor):
        with suppress(TieredError):  # the log is out of reach; try again at the next pass
            await recovery.run_once()
        await _rest(stage, actor.every_s)


async def _stop_when_over(stage: Stage, actor: Actor, stop: Callable[[], None]) -> None:
    if actor.stays:
        await stage.leave.wait()
    else:
        await _rest(stage, actor.ends_s - now_s())
    stop()


async def _audit(stage: Stage, actor: Actor, process: Process) -> None:
    """Audits again and again, and deletes what it calls orphans.

    A blind auditor reads no changelog, and it spares no blob for its age. So its findings are wrong, and only the steps
    of the deletion keep what is live. In every other world its deletion has no changelog either. In the others the
    deletion has one, and takes *every* blob for an orphan.
    """
    tiers, is_blind = stage.world.tiers_of(process), actor.role is Role.BLIND_AUDITOR
    without_log = is_blind and stage.recipe.seed % 2 == 1
    log = stage.world.log_of(process, actor.shards)
    while stage.goes_on(actor):
        found: list[Finding] = []
        try:
            cutoff = Cutoff(as_of_ns=await tiers.long_term.now_ns(), grace_s=-BLIND_S if is_blind else 0.0)
            await audit_range(tiers, NoopChangeLog() if is_blind else log, EVERYTHING, cutoff, process.runtime, found.extend)
            chosen = await _all_blobs(tiers) if is_blind and not without_log else found
            await _delete(stage, process, tiers, NoopChangeLog() if without_log else log, chosen)
        except TieredError:
            pass  # the audit or the deletion could not be completed; begin it again
        _judge(stage, actor, found)
        await _rest(stage, actor.every_s)


async def audit_and_delete(stage: Stage, process: Process) -> None:
    """Audits once, without a grace, and deletes the orphans."""
    tiers, log = stage.world.tiers_of(process), stage.world.log_of(process)
    found: list[Finding] = []
    await audit_range(
        tiers, log, EVERYTHING, Cutoff(as_of_ns=await tiers.long_term.now_ns(), grace_s=0.0), process.runtime, found.extend
    )
    await _delete(stage, process, tiers, log, found)


async def _all_blobs(tiers: Tiers) -> list[Finding]:
    """Returns a finding for each blob, as a wrong audit might."""
    found: list[Finding] = []
    start: str | None = ""
    while start is not None:
        page = await tiers.long_term.list(start, None, PAGE)
        found += [
            Finding(Verdict.ORPHAN, blob.name, None, None, blob.size, blob.created_ns, None, blob.generation, "wrong", 0, 0, 0, 0)
            for blob in page.blobs
        ]
        start = page.next_start
    return found


async def _delete(stage: Stage, process: Process, tiers: Tiers, log: ChangeLog, found: Iterable[Finding]) -> None:
    candidates = [candidate for each in found if (candidate := Candidate.of(each)) is not None]
    if log.durable:
        tiers = Tiers(cast(HighVolumeBackend, _SpoilsNothing(stage, tiers.high_volume)), tiers.long_term)
    batch = DeletionBatch(tiers, log, candidates, process.runtime)
    try:
        await batch.run()
    finally:
        for outcome in batch.outcomes.values():
            stage.checked[f"candidate: {outcome}"] += 1


class _SpoilsNothing:
    """The rows, as a deletion sees them that has read the changelog. It may refuse no change that is under way."""

    def __init__(self, stage: Stage, rows: HighVolumeBackend) -> None:
        self._stage = stage
        self._rows = rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    async def settle(self, path: str, token: ChangeId) -> bool:
        watch = self._stage.world.watch
        was_marked = watch.is_marked(path, token)
        live = await self._rows.settle(path, token)
        self._stage.checked["deletion spoils nothing"] += 1
        if not live and not was_marked and (key := watch.open_entry_of(blob_name(path, token))) is not None:
            watch.report("spoilt", f"a deletion refused {path}/{token}, and the entry {key} was open")
        return live


async def _write_as_older_software(stage: Stage, actor: Actor) -> None:
    """Writes an object whose key ends in a revision, deletes its row and leaves its blob, again and again.

    Older software names a blob as soon as it is written, so here both are one moment.
    """
    world, chance = stage.world, Random(f"older {stage.recipe.seed}")
    path = f"older/objects/key/{ChangeId.new(SimulatedRuntime('older'))}"
    world.plant_stray(path)
    stage.older = path
    for number in range(OLDER_WRITES_MAX):
        await _rest(stage, actor.every_s * chance.random())
        if not stage.goes_on(actor):
            return
        world.write_as_older_software(path, f"older-{number}", LARGE_BYTES)
        await _rest(stage, actor.every_s * chance.random())
        world.write_as_older_software(path, None, 0)


def _judge(stage: Stage, actor: Actor, found: Iterable[Finding]) -> None:
    """Reports what no audit may say of a store whose blobs are all where they belong (I1)."""
    for finding in found:
        stage.checked[f"audited: {finding.class_}"] += 1
        if finding.class_ not in (Verdict.ORPHAN, Verdict.LEGACY_ORPHAN):
            stage.world.watch.report("audit", f"{actor.name} told of {finding.name}: {finding.class_}, {finding.detail}")


async def _operate(stage: Stage, actor: Actor, process: Process) -> None:
    log, chance = stage.world.log_of(process, actor.shards), process.runtime.random
    while stage.goes_on(actor):
        try:
            for entry in (await log.entries("", PAGE)).entries:
                if entry.stuck is not None and isinstance(entry, Entry):
                    await log.retry(entry)
                elif entry.stuck is None and chance.random() < 0.3:
                    await log.park(entry, WANTED_BY_OPERATOR)
        except TieredError:
            pass  # the log is out of reach; try again later
        await _rest(stage, actor.every_s)


async def _collect(stage: Stage, actor: Actor) -> None:
    world = stage.world
    if not stage.recipe.s3:
        await _collect_from(stage, actor, (world.rows.collect, world.blobs.collect, world.log.collect))
        return
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_again_and_again, stage, actor, _collect_blobs)
        await _collect_from(stage, actor, (world.rows.collect, world.log.collect))


async def _collect_from(stage: Stage, actor: Actor, services: Sequence[Callable[[int], Awaitable[int]]]) -> None:
    chance = stage.world.runtime.random
    while stage.goes_on(actor):
        for collect in services:
            await collect(chance.choice((1, 3, 1000)))
        await _rest(stage, actor.every_s * chance.uniform(0.5, 1.0))


async def _collect_blobs(stage: Stage, actor: Actor, process: Process) -> None:
    """Collects from S3 as a daemon does: over the network, and may die of it."""
    blobs = cast(GarbageCollection, stage.world.tiers_of(process).long_term)
    while stage.goes_on(actor):
        with suppress(TieredError):  # the round goes on at the next call
            await blobs.collect(process.runtime.random.choice((1, 3, 1000)))
        await _rest(stage, actor.every_s)


async def _set_clocks(stage: Stage, actor: Actor) -> None:
    chance = stage.world.runtime.random
    while stage.goes_on(actor):
        if stage.clocks:
            chance.choice(list(stage.clocks.values())).skew_s = chance.choice(SKEWS_S)
        await _rest(stage, actor.every_s)


def _vandalise(stage: Stage) -> None:
    key = ChangeId.new(stage.world.runtime).row_key(2)
    stage.world.log.stored[key] = StoredEntry(b'{"v":1,"id":', 0)
