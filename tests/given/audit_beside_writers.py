"""Audits beside writers, crashes, recovery, delays and lost answers, in virtual time; and what each verdict may say.

    orphan      wrong if a row names the blob at any moment from the audit's begin on, be it long after its end, or if
                an entry of the log names it at the verdict; without a log, if a row names it then or later
    dangling    wrong unless the blob is gone while the row names it
    others      wrong: nothing else is planted

In each world one orphan and one dangling tombstone are planted, so an audit that says nothing fails too. The grace is
0: nothing is spared for its age but what was made after the audit's begin. What a seed chooses, it always chooses.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from random import Random

import anyio

from changelog.base.errors import TieredError
from changelog.change import Entry, decode
from emulators.simulation.actors import stream
from emulators.world.client import BrokenPayload, Client
from emulators.world.deployment import INLINE_BYTES_MAX, SETTINGS, World
from emulators.world.faults import ONCE, READS, SCANS, STREAMS, CallFault, Mode, Process, call_of
from emulators.world.runtime import elapse, now_s, run_world
from recovery.audit.finding import Finding
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds, Cutoff
from recovery.audit.sweeping.references import references_of
from recovery.audit.sweeping.sweep import audit_until
from tests.given.audit_grounds import DAY_NS, SetRuntime
from tests.given.feed_index import STORE, keep_up, publish, rows_of
from tiered.metadata import Metadata, TimeToLive
from tiered.object_id import ObjectId
from tiered.services.backends import Tombstone
from tiered.settings import FeedSettings
from tiered.testing.blobs import Blob

OBJECTS = [ObjectId.create("a", "foo"), ObjectId.create("a", "foo-bar")]
CUTS = ("a/objects/foo", "a/objects/foo-", "a/objects/foo/8", "a/objects/foo!z")
SMALL, LARGE = INLINE_BYTES_MAX // 2, INLINE_BYTES_MAX * 3
STEPS = 12
RUNS_S = 2000.0
RESTART_S = 1.0
YEAR_S = 365 * 86_400.0
MODES = (
    Mode.CRASH_BEFORE, Mode.CRASH_AFTER, Mode.STALL_BEFORE, Mode.STALL_AFTER, Mode.UNAVAILABLE, Mode.DROPPED, Mode.LOST, Mode.LATE,
    Mode.DUPLICATED, Mode.SLOW, Mode.CRAWLING,
)  # fmt: skip
ACCUSED = {FindingClass.ORPHAN, FindingClass.LEGACY_ORPHAN}


def may_meet(mode: Mode, call: str) -> bool:
    match mode:
        case Mode.SLOW:
            return call not in STREAMS
        case Mode.LATE:
            return call not in READS | STREAMS
        case Mode.DUPLICATED:
            return call not in READS | STREAMS | ONCE
        case Mode.CRAWLING:
            return call in SCANS
        case _:
            return True


@dataclass(slots=True)
class Accusation:
    """An orphan that was told of by an audit that began at `began_s`."""

    name: str
    began_s: float
    told_s: float


@dataclass
class Named:
    """When each blob was named by a row: from and to, in seconds of the world."""

    world: World
    spans: dict[str, list[list[float]]] = field(default_factory=lambda: defaultdict(list))
    _open: dict[str, str] = field(default_factory=dict)

    def look(self, call: str, what: str) -> None:
        if not call.startswith("rows."):
            return
        state = self.world.rows.states.get(what)
        target = state.target if isinstance(state, Tombstone) else None
        before = self._open.pop(what, None)
        if before is not None and before != target:
            self.spans[before][-1][1] = now_s()
        if target is not None:
            self._open[what] = target
            if before != target:
                self.spans[target].append([now_s(), inf])

    def since(self, name: str, began_s: float) -> bool:
        """Whether a row named it at that moment, or at any later one."""
        return any(end >= began_s for _, end in self.spans[name])


@dataclass
class BusyScene:
    """The world of one seed. `fed`: a change feed follows the store, and the audit takes its references from it.

    `wrong`: the wrong verdicts, in words. `seen`: how often each thing was found or done.
    """

    seed: int
    durable: bool = True
    grace_s: float = 0.0
    fed: bool = False
    wrong: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    accusations: list[Accusation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = Random(f"audits/{self.seed}")
        self.calm = False
        self.fault_share = self.chance.choice((0.0, 0.02, 0.06))
        self.travels_max_s = {
            "writer": self.chance.choice((0.0, 0.3, 1.0, 3.0, 20.0)), "audit": self.chance.choice((0.0, 1.0, 5.0, 20.0, 60.0))
        }  # fmt: skip
        self.pause_max_s = self.chance.choice((1.0, 20.0, 60.0))
        self.writing = 0

    def play(self) -> BusyScene:
        run_world(self._live, self.seed)
        return self

    # --- the world

    async def _live(self) -> None:
        settings = SETTINGS.model_copy(update={"feed": FeedSettings(enabled=True)}) if self.fed else SETTINGS
        world = World(self.seed, sessions=self.chance.random() < 0.5, durable=self.durable, settings=settings)
        self.world, self.named = world, Named(world)
        world.rows.observers.append(self.named.look)
        self._plant()
        async with world:
            if self.fed:
                await publish(world.log, await rows_of(world.rows), world.runtime.wall_ns())
            async with anyio.create_task_group() as tasks:
                for number in range(self.chance.choice((1, 2, 3))):
                    self.writing += 1
                    tasks.start_soon(self._write, f"writer-{number}")
                tasks.start_soon(self._again, "recovery", self._recover)
                tasks.start_soon(self._again, "audit", self._audit)
                if self.fed:
                    tasks.start_soon(self._again, "feed", self._follow)
                tasks.start_soon(self._collect)
            self.calm = True
            await elapse(2000.0)  # what is under way arrives
            if self.fed:
                await self._compare("the feed is behind")
            await world.drain()
            if self.fed:
                await self._compare("recovery has settled all changes")
                await keep_up(world.log, world.tiers_of(world.process("feed.last")), world.runtime)
                await self._compare("the feed has caught up")
        for accused in self.accusations:
            # Without a log nobody knows that a blob was replaced just now, and is about to be deleted: an orphan it is.
            if self.named.since(accused.name, accused.began_s if self.durable else accused.told_s):
                self._wrong(
                    f"{accused.name} was told to be an orphan at {accused.told_s:.1f} s, by an audit that began at"
                    f" {accused.began_s:.1f} s, and was named {self.named.spans[accused.name]}"
                )

    def _plant(self) -> None:
        """An orphan and a dangling tombstone, of older times; and sometimes, what older software left."""
        world, runtime = self.world, SetRuntime()
        now_ns = world.runtime.wall_ns()
        orphan, gone = f"a/objects/foo/{runtime.at(now_ns - DAY_NS)}", f"a/objects/foo!/{runtime.at(now_ns - DAY_NS)}"
        world.blobs.blobs[orphan] = Blob(Metadata(size=1), b"x", now_ns - DAY_NS, "1000000")
        world.rows.states["a/objects/foo!"] = Tombstone(gone)
        self.planted = {(FindingClass.ORPHAN, orphan), (FindingClass.DANGLING, gone)}
        if self.chance.random() < 0.2:
            world.plant_legacy(OBJECTS[0], "legacy", LARGE)
            self.named.look("rows.swap", OBJECTS[0].path)

    def _process(self, name: str) -> Process:
        max_s = self.travels_max_s.get(name.partition("-")[0].partition(".")[0], 3.0)
        return self.world.process(name, self._fault, 0.0, lambda point: self._travel(max_s))

    def _fault(self, point: str) -> CallFault | None:
        if self.calm or self.chance.random() >= self.fault_share:
            return None
        mode = self.chance.choice(MODES)
        return CallFault(mode, self.chance.choice((0.2, 2.0, 15.0, 45.0, 120.0))) if may_meet(mode, call_of(point)) else None

    def _travel(self, max_s: float) -> tuple[float, float]:
        if self.calm or not max_s:
            return 0.0, 0.0
        return self.chance.uniform(0, max_s), self.chance.uniform(0, max_s)

    async def _again(self, name: str, live: Callable[[Process], Awaitable[None]]) -> None:
        """While somebody writes, and after each crash in a new process."""
        life = 0
        while self.writing and now_s() < RUNS_S:
            process = self._process(f"{name}.{life}")

            async def lives(process: Process = process) -> None:
                await live(process)

            await process.run(lives)
            life += 1
            await elapse(RESTART_S)

    # --- who is in it

    async def _write(self, name: str) -> None:
        steps, life = STEPS, 0
        while steps > 0 and now_s() < RUNS_S:
            process = self._process(f"{name}.{life}")

            async def lives(process: Process = process) -> None:
                nonlocal steps
                async with self.world.client(process) as client:
                    while steps > 0:
                        steps -= 1
                        await process.runtime.sleep(self.chance.uniform(0, self.pause_max_s))
                        await self._step(client, f"{process.name}-{steps}")

            await process.run(lives)
            life += 1
            await elapse(RESTART_S)
        self.writing -= 1

    async def _step(self, client: Client, label: str) -> None:
        object_id = self.chance.choice(OBJECTS)
        match self.chance.choice(("put", "put", "put", "slowly", "broken", "mortal", "small", "delete", "get")):
            case "put":
                await client.put(object_id, label, LARGE)
            case "slowly":
                await client.put(object_id, label, LARGE, payload=stream(client.process, label, self.chance.uniform(0, 20)))
            case "broken":
                with suppress(BrokenPayload):
                    await client.put(object_id, label, LARGE, payload=stream(client.process, label, 1.0, breaks=True))
            case "mortal":
                life = TimeToLive(timedelta(seconds=self.chance.choice((5, 60))))
                await client.put(object_id, label, LARGE, expiration=life)
            case "small":
                await client.put(object_id, label, SMALL)
            case "delete":
                await client.delete(object_id)
            case "get":
                await client.get(object_id)

    async def _recover(self, process: Process) -> None:
        recovery = self.world.recovery(process)
        while self.writing and now_s() < RUNS_S:
            with suppress(TieredError):
                await recovery.run_once()
            await elapse(self.chance.uniform(1, 40))

    async def _follow(self, process: Process) -> None:
        while self.writing and now_s() < RUNS_S:
            with suppress(TieredError):
                await keep_up(self.world.log_of(process), self.world.tiers_of(process), process.runtime)
            await elapse(self.chance.uniform(1, 60))

    async def _compare(self, when: str) -> None:
        """Audits the store at rest in both ways, and compares."""
        process = self.world.process(f"audit, {when}")
        tiers, log = self.world.tiers_of(process), self.world.log_of(process)
        cutoff = Cutoff(as_of_ns=await tiers.long_term.now_ns(), grace_s=self.grace_s)
        seen = []
        for references in (None, await references_of(log, STORE, cutoff.as_of_ns, YEAR_S)):
            found: list[Finding] = []
            summary, _ = await audit_until(
                tiers, log, Bounds(start="", end=None), cutoff, process.runtime, found.extend, lambda _: False, window_names=3,
                references=references,
            )  # fmt: skip
            counts = {kind: (each.number, each.size) for kind, each in summary.totals().items() if each.number}
            seen.append((sorted((each.class_, each.name) for each in found), counts))
        if seen[0] != seen[1]:
            self._wrong(f"{when}: by the rows {seen[0]}, and by the feed {seen[1]}")
        self.seen["compared"] += 1

    async def _collect(self) -> None:
        while self.writing and now_s() < RUNS_S:
            for service in (self.world.rows, self.world.blobs):
                await service.collect(1000)
            await elapse(self.chance.uniform(1, 300))

    async def _audit(self, process: Process) -> None:
        tiers, log = self.world.tiers_of(process), self.world.log_of(process)
        while self.writing and now_s() < RUNS_S:
            began_s, found = now_s(), list[tuple[FindingClass, str]]()

            def tell(findings: Sequence[Finding], began_s: float = began_s, found: list[tuple[FindingClass, str]] = found) -> None:
                for finding in findings:
                    found.append((finding.class_, finding.name))
                    self._judge(finding, began_s)

            with suppress(TieredError):
                cutoff = Cutoff(as_of_ns=await tiers.long_term.now_ns(), grace_s=self.grace_s)
                references = await references_of(log, STORE, cutoff.as_of_ns, YEAR_S) if self.fed else None
                cut = sorted(self.chance.sample(CUTS, self.chance.randrange(3)))
                for start, end in zip(("", *cut), (*cut, None), strict=True):
                    window_names = self.chance.choice((1, 2, 50))
                    await audit_until(
                        tiers, log, Bounds(start=start, end=end), cutoff, process.runtime, tell, lambda _: False,
                        window_names=window_names, references=references,
                    )  # fmt: skip
                self.seen["audits"] += 1
                if not self.planted <= set(found):
                    self._wrong(f"what was planted was not found: {found}")
            await elapse(self.chance.uniform(0, 5))

    # --- verdicts

    def _judge(self, finding: Finding, began_s: float) -> None:
        """At the moment at which it is told."""
        self.seen[finding.class_] += 1
        if (finding.class_, finding.name) in self.planted:
            return
        if finding.class_ in ACCUSED:
            self.accusations.append(Accusation(finding.name, began_s, now_s()))
            changes = [entry.change for entry in self._entries() if finding.name in (entry.change.new, entry.change.old)]
            if changes:
                self._wrong(f"{finding.name} was told to be an orphan at {now_s():.1f} s, and {changes[0]} names it")
        else:
            self._wrong(f"{finding.name} was told to be {finding.class_} at {now_s():.1f} s")

    def _entries(self) -> list[Entry]:
        read = (decode(key, stored.value, stored.heartbeat_ms, stored.state) for key, stored in self.world.log.stored.items())
        return [entry for entry in read if isinstance(entry, Entry)]

    def _wrong(self, what: str) -> None:
        self.wrong.append(what)


def first_wrong(seeds: range) -> int | None:
    """The number of seeds until a verdict is wrong; None: of these, none is."""
    return next((number for number, seed in enumerate(seeds, 1) if BusyScene(seed).play().wrong), None)
