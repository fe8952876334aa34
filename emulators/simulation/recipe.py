"""`Recipe`: everything that a seed chooses, as data. The same recipe gives the same run, call for call.

    actors     callers (each a process with an open store), recoverers, auditors, operators, garbage collectors
    weather    how often which fault meets a call, and how long requests travel
    outages    a service refuses, or does not answer, for a while

It is a *swarm* (Groce et al., ISSTA 2012): each seed enables a random subset of faults and actors. A feature that is
always on hides what happens only when it is off. Whether a call meets a fault follows from the seed and the call's own
name, not from what happened before. So a `RecipePart` can be left out and the rest stays the same. That makes it
possible to make a failing run small.
"""

from __future__ import annotations

import random  # noqa: TID251 - the simulated door for chance
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from struct import unpack
from typing import TypeVar

from emulators.world.faults import ONCE, READS, SCANS, STREAMS, CallFault, Mode, call_of

DAY_S = 86_400.0
WHILES_S = (0.2, 2.0, 15.0, 45.0, 120.0, 600.0)
"""How many seconds something may take: within an operation's budget, beyond it, or beyond the lease.

All are shorter than the late-upload grace (900 s).
"""


class StepKind(Enum):
    """What a caller does in one step."""

    PUT_SMALL = "put, inline"
    PUT_LARGE = "put, in one chunk"
    PUT_STREAM = "put, chunk by chunk with time between"
    PUT_BROKEN = "put whose payload fails half-way"
    DELETE = "delete"
    GET = "get"
    GET_SLOWLY = "get, and read it later"
    HEAD = "head"
    LIST = "list"
    PUT_MANY = "put many, twice each"
    DELETE_MANY = "delete many"
    GET_MANY = "get many"
    COPY = "copy the other object"
    COPY_OLDER = "copy what older software writes"
    RENAME = "rename the other object"
    UPDATE = "change the metadata"
    EXPIRE = "set when it expires"
    PROLONG = "let it live longer"
    UPLOAD = "upload in parts"
    UPLOAD_LEFT = "upload in parts, and leave it to others"
    APPEND = "append to an upload, beside others"
    COMPLETE = "complete somebody's upload"
    COMPLETE_OTHERWISE = "complete somebody's upload with other parts"
    ABORT = "abort somebody's upload"
    REOPEN = "close the store and open it again"
    SLEEP = "its machine sleeps for days"


class Life(Enum):
    """How long an object lives after a put."""

    EVER = "for ever"
    SOON = "seconds"
    IDLE = "until it is idle"


class When(Enum):
    """The condition of a put or delete."""

    ALWAYS = "in any case"
    ABSENT = "if there is nothing"
    SEEN = "if what it has just seen is still there"


class Role(Enum):
    CALLER = "a service that uses the store"
    RECOVERER = "a recovery daemon"
    JOB = "a recovery that makes one pass now and then"
    AUDITOR = "audits, and deletes the orphans"
    BLIND_AUDITOR = "the same, and its audit does without the log and the age of blobs, so it is wrong"
    OPERATOR = "parks and retries entries"
    COLLECTOR = "the services' own garbage collection"
    OLDER = "older software, whose blobs have no revision"
    VANDAL = "writes what cannot be read into the log"
    CLOCKS = "sets clocks, up to a minute wrong, while they are looked at"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a caller. `pause_s`: the pause before it. `cancel_after_s`: when the caller gives up; None: never.

    `thing`: the number of the object. `life`: how long what is written lives. `when`: the condition of what it writes.
    """

    kind: StepKind
    thing: int
    pause_s: float
    life: Life = Life.EVER
    cancel_after_s: float | None = None
    when: When = When.ALWAYS

    def __str__(self) -> str:
        cancelled = "" if self.cancel_after_s is None else f", cancelled after {self.cancel_after_s:.3f} s"
        when = "" if self.when is When.ALWAYS else f" {self.when.value}"
        return f"after {self.pause_s:.3f} s {self.kind.value}{when}, object {self.thing}, lives {self.life.value}{cancelled}"


@dataclass(frozen=True, slots=True)
class Weather:
    """Which faults calls meet.

    `rate`: the share of calls that meet a fault, one of `modes`. `travel_s`: the longest time of a request or an
    answer. `suspend_rate`: the share of calls at which the machine sleeps for `suspend_s`. That is days, longer than
    marks are kept.
    """

    rate: float = 0.0
    modes: tuple[Mode, ...] = ()
    travel_s: float = 0.0
    suspend_rate: float = 0.0
    suspend_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Actor:
    """One actor. `tasks`: how many steps it does at once. `ends_s`: when an actor without steps stops.

    `shards`: how many shards of the changelog its software knows. `weather`: which faults its own calls meet; None:
    those of the world. `stays`: a caller or recoverer that is still there when all is calm. What it has leaked is seen
    then.
    """

    name: str
    role: Role
    steps: tuple[Step, ...] = ()
    starts_s: float = 0.0
    ends_s: float = 0.0
    every_s: float = 10.0
    tasks: int = 1
    skew_s: float = 0.0
    shards: int = 2
    weather: Weather | None = None
    stays: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.role.value}, from {self.starts_s:g} s, skew {self.skew_s:g} s, {self.shards} shards"


@dataclass(frozen=True, slots=True)
class PlannedOutage:
    """For a time, all calls on one service meet one fault.

    `service`: rows, log or blobs. It lasts from `from_s` until `until_s`. `actor`: only the calls of this actor; None:
    of all.
    """

    service: str
    mode: Mode
    from_s: float
    until_s: float
    actor: str | None = None

    def meets(self, point: str) -> bool:
        """Tells whether this call belongs to the service and can meet the fault.

        Uploads and readers belong to the blobs.
        """
        service = point.partition(".")[0]
        return (self.service == "blobs" if service in ("upload", "reader") else service == self.service) and _fits(point, self.mode)

    def __str__(self) -> str:
        return f"{self.service} {self.mode.name} for {self.actor or 'all'} from {self.from_s:.1f} s to {self.until_s:.1f} s"


@dataclass(frozen=True, slots=True)
class RecipePart:
    """Something that can be left out: an actor, one of its steps, an outage, the fault at one call.

    `text` is for the reader.
    """

    kind: str
    where: str
    what: str = ""
    text: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.where} {self.what}{': ' if self.text else ''}{self.text}"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that one run needs.

    `sessions`: uploads are sessions, else single requests. `durable` False: there is no changelog. `legacy`: older
    software wrote object 0. `collect_after_s`: how long after their deadline the bucket collects blobs. `lingers_s`:
    how long the other actors go on after the callers have finished. `bigtable`: rows and log are the real Bigtable
    adapters on a server in memory, else simulated ones. `s3`: so are the blobs, in S3; `sessions` means there
    that every upload is one, also a small one. `tight`: few operations at once, few entries on a page.
    """

    seed: int
    actors: tuple[Actor, ...]
    weather: Weather
    outages: tuple[PlannedOutage, ...] = ()
    things: int = 1
    sessions: bool = True
    durable: bool = True
    legacy: bool = False
    collect_after_s: float = 3600.0
    lingers_s: float = 0.0
    bigtable: bool = False
    tight: bool = False
    s3: bool = False
    left_out: frozenset[RecipePart] = frozenset()

    @property
    def horizon(self) -> bool:
        """Whether simulated rows keep a horizon, as an embedded store does.

        Other runs have none, because a horizon hides that certain guards are missing.
        """
        return self.seed % 4 == 1

    @staticmethod
    def of(seed: int) -> Recipe:
        return Recipe.of_simulated_blobs(seed).with_s3()

    @staticmethod
    def of_simulated_blobs(seed: int) -> Recipe:
        """What the seed chooses but for S3."""
        return (
            _RecipeChooser(random.Random(f"recipe {seed}"), seed).recipe()
            .with_older_software().with_conditions().with_copies().with_changes().with_copies_of_older().with_uploads().with_appends()
        )  # fmt: skip

    def with_older_software(self) -> Recipe:
        """Adds older software where somebody deletes orphans. It draws nothing, so other seeds keep their meaning."""
        auditors = [actor for actor in self.actors if actor.role in (Role.AUDITOR, Role.BLIND_AUDITOR)]
        if self.bigtable or not auditors:  # its writes go past the adapters
            return self
        [first, *_] = auditors
        older = Actor("older-0", Role.OLDER, starts_s=first.starts_s, ends_s=first.ends_s, every_s=first.every_s)
        return replace(self, actors=(*self.actors, older))

    def with_conditions(self) -> Recipe:
        """Gives conditions to some writes, in a quarter of worlds. Its chance is its own: other seeds stay the same."""
        chance = random.Random(f"conditions {self.seed}")
        if chance.random() >= 0.25:
            return self
        share = chance.choice((0.4, 0.8, 1.0))
        actors = [
            replace(actor, steps=tuple(_conditional(step, chance) if chance.random() < share else step for step in actor.steps))
            for actor in self.actors
        ]  # fmt: skip
        return replace(self, actors=tuple(actors))

    def with_copies(self) -> Recipe:
        """Makes copies of some of the puts, in a tenth of worlds without conditions, by a chance of its own."""
        chance = random.Random(f"copies 8 {self.seed}")
        steps = [step for actor in self.actors for step in actor.steps]
        if chance.random() >= 0.1 or any(step.when is not When.ALWAYS for step in steps):
            return self
        actors = [
            replace(actor, steps=tuple(_copied(step) if step.kind in PUTS and chance.random() < 0.3 else step for step in actor.steps))
            for actor in self.actors
        ]  # fmt: skip
        return replace(self, actors=tuple(actors), things=2)

    def with_changes(self) -> Recipe:
        """Makes copies, renames and changes of metadata of some of the puts, in an eighth of worlds, by a chance of its
        own. In half of these, some writes also have conditions.
        """
        chance = random.Random(f"changes 1 {self.seed}")
        if chance.random() >= 0.125:
            return self
        share, conditional = chance.choice((0.3, 0.6)), chance.random() < 0.5

        def changed(step: Step) -> Step:
            if step.kind in PUTS and chance.random() < share:
                step = replace(step, kind=chance.choice(CHANGES), life=chance.choice(tuple(Life)))
            return _conditional(step, chance) if conditional and chance.random() < 0.4 else step

        actors = [replace(actor, steps=tuple(map(changed, actor.steps))) for actor in self.actors]
        return replace(self, actors=tuple(actors), things=2)

    def with_copies_of_older(self) -> Recipe:
        """Lets some puts copy what older software writes, in a third of the worlds where it does, by its own chance."""
        chance = random.Random(f"copies of older 17 {self.seed}")
        if chance.random() >= 0.33 or not any(actor.role is Role.OLDER for actor in self.actors):
            return self

        def copied(step: Step) -> Step:
            return replace(step, kind=StepKind.COPY_OLDER) if step.kind in PUTS and chance.random() < 0.5 else step

        return replace(self, actors=tuple(replace(actor, steps=tuple(map(copied, actor.steps))) for actor in self.actors))

    def with_uploads(self) -> Recipe:
        """Makes uploads in parts of some puts and reads, in a quarter of the worlds with a log, by its own chance."""
        chance = random.Random(f"uploads 1 {self.seed}")
        if chance.random() >= 0.25 or not self.durable:
            return self
        share = chance.choice((0.3, 0.6))

        def uploaded(step: Step) -> Step:
            if step.kind in PUTS and chance.random() < share:
                return replace(step, kind=chance.choice((StepKind.UPLOAD, StepKind.UPLOAD, StepKind.UPLOAD_LEFT)))
            if step.kind in READINGS and chance.random() < share:
                return replace(step, kind=chance.choice((StepKind.COMPLETE, StepKind.COMPLETE, StepKind.ABORT)))
            return step

        return replace(self, actors=tuple(replace(actor, steps=tuple(map(uploaded, actor.steps))) for actor in self.actors))

    def with_appends(self) -> Recipe:
        """Lets some who upload append instead, and some who complete have another list, in a third of the worlds."""
        chance = random.Random(f"appends 47 {self.seed}")
        if chance.random() >= 0.33:
            return self

        def changed(step: Step) -> Step:
            if step.kind is StepKind.UPLOAD and chance.random() < 0.5:
                return replace(step, kind=StepKind.APPEND)
            if step.kind is StepKind.COMPLETE and chance.random() < 0.3:
                return replace(step, kind=StepKind.COMPLETE_OTHERWISE)
            return step

        return replace(self, actors=tuple(replace(actor, steps=tuple(map(changed, actor.steps))) for actor in self.actors))

    def with_s3(self) -> Recipe:
        """Keeps the blobs in S3, in three of twenty worlds, by a chance of its own.

        Older software never wrote there. Blobs expire there as the adapter has it.
        """
        return self.on_s3() if random.Random(f"s3 92 {self.seed}").random() < 0.15 else self

    def on_s3(self) -> Recipe:
        actors = tuple(actor for actor in self.actors if actor.role is not Role.OLDER)
        return replace(self, actors=actors, legacy=False, collect_after_s=3600.0, s3=True)

    def without(self, parts: Collection[RecipePart]) -> Recipe:
        return replace(self, left_out=self.left_out | frozenset(parts))

    def has(self, part: RecipePart) -> bool:
        return part not in self.left_out

    def fault(self, actor: Actor, process: str, point: str) -> CallFault | None:
        """Returns the fault that the weather has for this call, or None."""
        weather, chance = actor.weather or self.weather, _chances(self.seed, process, point)
        if not weather.modes or chance[0] >= weather.rate:
            return None
        mode, seconds = _pick(weather.modes, chance[1]), _pick(WHILES_S, chance[2])
        fits = _fits(point, mode) or (mode is Mode.DUPLICATED and _is_end(point) and not self.sessions and seconds < COPY_WITHIN_S)
        return CallFault(mode, seconds) if fits and self.has(fault_part(process, point)) else None

    def suspension(self, actor: Actor, process: str, point: str) -> CallFault | None:
        """Returns how the process's machine is suspended at this call, or None.

        It is suspended before the request leaves, or before its answer arrives.
        """
        weather, chance = actor.weather or self.weather, _chances(self.seed, process, point)
        if chance[3] >= weather.suspend_rate or not self.has(suspension_part(process, point)):
            return None
        mode = _pick((Mode.SUSPEND_BEFORE, Mode.SUSPEND_AFTER), chance[4])
        return CallFault(mode, weather.suspend_s)

    def travel(self, process: str, point: str) -> tuple[float, float]:
        """Returns the seconds that a request and its answer travel."""
        chance = _chances(self.seed, process, point)
        return chance[5] * self.weather.travel_s, chance[6] * self.weather.travel_s


@lru_cache(maxsize=64)
def _chances(seed: int, process: str, point: str) -> tuple[float, ...]:
    """Returns numbers from 0 to 1 that only this call of this seed has. A call asks three times."""
    digest = blake2b(f"{seed} {process} {point}".encode(), digest_size=7 * 8).digest()
    return tuple([number / 2**64 for number in unpack("<7Q", digest)])


def _conditional(step: Step, chance: random.Random) -> Step:
    if step.kind is StepKind.DELETE or step.kind in OVER_ITSELF:
        return replace(step, when=When.SEEN)
    return replace(step, when=chance.choice((When.ABSENT, When.SEEN, When.SEEN))) if step.kind in (*PUTS, *CHANGES) else step


def _copied(step: Step) -> Step:
    return replace(step, kind=StepKind.COPY)


T = TypeVar("T")


def _pick(choices: tuple[T, ...], chance: float) -> T:
    return choices[int(chance * len(choices)) % len(choices)]


def actor_part(actor: Actor) -> RecipePart:
    return RecipePart("actor", actor.name, "", str(actor))


def step_part(actor: Actor, number: int) -> RecipePart:
    return RecipePart("step", actor.name, str(number), str(actor.steps[number]))


def outage_part(outage: PlannedOutage, number: int) -> RecipePart:
    return RecipePart("outage", str(number), "", str(outage))


def fault_part(process: str, point: str, fault: CallFault | None = None) -> RecipePart:
    return RecipePart("fault", process, point, "" if fault is None else f"{fault.mode.name} {fault.seconds:g} s")


def suspension_part(process: str, point: str, suspension: CallFault | None = None) -> RecipePart:
    return RecipePart("suspension", process, point, "" if suspension is None else f"{suspension.mode.name} {suspension.seconds:g} s")


# --- what may happen to which call ---------------------------------------------------------------

COPY_WITHIN_S = 60.0
"""The network's own copy of the end of an upload comes within this many seconds."""


def _is_end(point: str) -> bool:
    return call_of(point) == "upload.finalise"


def _fits(point: str, mode: Mode) -> bool:
    call = call_of(point)
    match mode:
        case Mode.SLOW:
            return call not in STREAMS
        case Mode.LATE:
            return call not in READS | STREAMS
        case Mode.DUPLICATED:
            return call not in READS | STREAMS | ONCE
        case Mode.CRAWLING:
            return call in SCANS
        case Mode.DAMAGED:
            return call == "upload.finalise"
        case _:
            return True


# --- the choice ----------------------------------------------------------------------------------

PUTS = (StepKind.PUT_SMALL, StepKind.PUT_LARGE, StepKind.PUT_STREAM, StepKind.PUT_BROKEN)
CHANGES = (StepKind.COPY, StepKind.RENAME, StepKind.RENAME, StepKind.UPDATE, StepKind.UPDATE, StepKind.EXPIRE, StepKind.PROLONG)
OVER_ITSELF = (StepKind.UPDATE, StepKind.EXPIRE, StepKind.PROLONG)
WRITES = (StepKind.PUT_SMALL, StepKind.PUT_LARGE, StepKind.PUT_LARGE, StepKind.PUT_STREAM, StepKind.DELETE)
READINGS = (StepKind.GET, StepKind.GET, StepKind.GET, StepKind.HEAD, StepKind.GET_SLOWLY, StepKind.LIST)
MODES = tuple(mode for mode in Mode)
SHARDS = (1, 2, 3, 5)
SKEWS_S = (-60.0, -5.0, 0.0, 5.0, 60.0)
COLLECT_AFTER_MIN_S = 125.0
"""In seconds, more than two clocks differ."""
LATE_UPLOADS = Weather(0.12, (Mode.LATE, Mode.SLOW, Mode.UNAVAILABLE, Mode.LOST), 0.05)
"""The faults that matter to single requests.

With sessions, or among all other faults, an upload too seldom arrives late.
"""
DEADLY = Weather(0.4, (Mode.CRASH_BEFORE, Mode.CRASH_AFTER))


@dataclass(slots=True)
class _RecipeChooser:
    """Draws a recipe.

    `chance` is used in a fixed order, so a seed keeps its meaning as long as this class is not changed.
    """

    chance: random.Random
    seed: int

    def recipe(self) -> Recipe:
        pace_s = self.chance.choice((0.05, 0.5, 5.0, 40.0))
        ages = self._on(0.08)
        idles = not ages and self._on(0.05)
        actors = self._idlers() if idles else self._callers(pace_s)
        busy_s = max(sum(step.pause_s for step in actor.steps) for actor in actors) + 60.0
        skewed = self._on(0.3)
        lingers_s = 400.0 if self._on(0.1) else 0.0
        collector = Actor("collector-0", Role.COLLECTOR, ends_s=busy_s, every_s=10.0)
        actors += [collector] if idles else self._beside(busy_s, lingers_s)
        durable, outages = not self._on(0.05), self._outages(actors, busy_s)
        if ages:
            durable = not self._on(0.25)
            actors = self._of_ages(actors, durable)
            from_s = self.chance.uniform(0, busy_s)
            outages += (PlannedOutage("rows", Mode.LOST, from_s, from_s + 120.0),) if self._on() else ()
        if skewed:
            actors = [replace(actor, skew_s=self.chance.choice(SKEWS_S)) for actor in actors]
        if self._on(0.2):
            actors = [replace(actor, shards=self.chance.choice(SHARDS)) for actor in actors]
        stays = self._on(0.2) and not ages
        actors = [replace(actor, stays=stays and actor.role in (Role.CALLER, Role.RECOVERER)) for actor in actors]
        late = not ages and not idles and self._on(0.06)
        weather = LATE_UPLOADS if late else self._weather(ages, idles)
        return Recipe(
            self.seed, tuple(actors), weather, outages, things=self.chance.choice((1, 1, 1, 2)), sessions=not late and self._on(0.6),
            durable=durable, legacy=self._on(0.15), collect_after_s=self.chance.choice((COLLECT_AFTER_MIN_S, 3600.0)),
            lingers_s=lingers_s, bigtable=self._on(0.15), tight=self._on(0.3),
        )  # fmt: skip

    def _on(self, probability: float = 0.5) -> bool:
        return self.chance.random() < probability

    def _callers(self, pace_s: float) -> list[Actor]:
        kinds = tuple(kind for kind in WRITES if self._on(0.7)) or WRITES
        if self._on(0.2):
            kinds += (StepKind.PUT_BROKEN, StepKind.REOPEN, StepKind.PUT_MANY, StepKind.DELETE_MANY, StepKind.GET_MANY)
        lives = (Life.EVER, *(life for life in (Life.SOON, Life.IDLE) if self._on(0.25)))
        if self._on(0.05):
            lives = (Life.IDLE,)
        cancels = self._on(0.3)
        writers = [
            Actor(f"writer-{number}", Role.CALLER, self._steps(kinds, lives, pace_s, cancels), tasks=self.chance.choice((1, 1, 2, 3)))
            for number in range(self.chance.choice((1, 2, 2, 3)))
        ]
        readers = [
            Actor(f"reader-{number}", Role.CALLER, self._steps(READINGS, lives, pace_s, cancels), tasks=self.chance.choice((1, 2)))
            for number in range(self.chance.choice((1, 1, 2)))
        ]
        return writers + readers

    def _idlers(self) -> list[Actor]:
        """Returns actors for objects with a time to idle: reads come close to the deadlines."""
        kinds = (StepKind.PUT_LARGE, StepKind.PUT_LARGE, StepKind.PUT_LARGE, StepKind.PUT_SMALL, StepKind.DELETE)
        writes = [Step(self.chance.choice(kinds), number, self.chance.uniform(0, 600) * number, Life.IDLE) for number in range(3)]
        reads = [[Step(StepKind.GET, self.chance.randrange(2), self.chance.uniform(20, 160)) for _ in range(10)] for _ in range(2)]
        return [
            Actor(name, Role.CALLER, tuple(steps)) for name, steps in (("writer-0", writes), ("reader-0", reads[0]), ("reader-1", reads[1]))
        ]  # fmt: skip

    def _steps(self, kinds: tuple[StepKind, ...], lives: tuple[Life, ...], pace_s: float, cancels: bool) -> tuple[Step, ...]:
        return tuple(
            Step(
                self.chance.choice(kinds), self.chance.randrange(2), self._pause(pace_s), self.chance.choice(lives),
                self.chance.choice((0.001, 0.05, 1.0, 10.0)) * self.chance.random() if cancels and self._on(0.3) else None,
            )
            for _ in range(self.chance.randrange(2, 8))
        )  # fmt: skip

    def _pause(self, pace_s: float) -> float:
        return 0.0 if self._on(0.3) else self.chance.uniform(0, pace_s)

    def _beside(self, busy_s: float, lingers_s: float) -> list[Actor]:
        """Returns the other actors. They work until the callers have finished, and linger. Each has its own pace."""
        some = [
            (Role.RECOVERER, self.chance.choice((0, 1, 1, 1, 2, 3)), (5.0, 20.0)), (Role.AUDITOR, int(self._on(0.15)), (0.3, 5.0, 60.0)),
            (Role.BLIND_AUDITOR, int(self._on(0.15)), (0.3, 5.0, 60.0)), (Role.OPERATOR, int(self._on(0.15)), (5.0, 20.0)),
            (Role.COLLECTOR, int(self._on(0.4)), (1.0, 10.0, 600.0)), (Role.VANDAL, int(self._on(0.1)), (10.0,)),
            (Role.CLOCKS, int(self._on(0.1)), (0.5, 10.0)),
        ]  # fmt: skip
        actors = [
            Actor(f"{role.name.lower().replace('_', '-')}-{number}", role, starts_s=self.chance.uniform(0, busy_s / 4),
                  ends_s=busy_s * 2 + lingers_s, every_s=self.chance.choice(paces))
            for role, count, paces in some for number in range(count)
        ]  # fmt: skip
        if self._on(0.5 if lingers_s else 0.05):  # recoverers that die of what they claim
            actors = [replace(actor, weather=DEADLY) if actor.role is Role.RECOVERER else actor for actor in actors]
        return actors

    def _of_ages(self, actors: list[Actor], durable: bool) -> list[Actor]:
        """Returns the actors of a world that lasts for days.

        Machines sleep, one caller comes late, marks are collected, and the other actors work from time to time.
        """
        late = replace(actors[0], name=f"late-{actors[0].name}", starts_s=self.chance.uniform(1.5, 4.0) * DAY_S)
        sleep = Step(StepKind.SLEEP, 0, 0.0)
        actors = [replace(actor, steps=(*actor.steps, sleep)) if actor.role is Role.CALLER and self._on() else actor for actor in actors]
        beside = (Role.COLLECTOR, Role.JOB) if durable else (Role.COLLECTOR, Role.BLIND_AUDITOR)
        return [*actors, late] + [
            Actor(f"{role.name.lower().replace('_', '-')}-{len(actors)}", role, starts_s=self.chance.uniform(0.01, 0.2) * DAY_S,
                  ends_s=5 * DAY_S, every_s=self.chance.uniform(0.05, 0.4) * DAY_S, weather=Weather())
            for role in beside
        ]  # fmt: skip

    def _weather(self, ages: bool, idles: bool) -> Weather:
        modes = tuple(mode for mode in MODES if self._on(0.35))
        rate = 0.2 if idles else self.chance.choice((0.0, 0.01, 0.03, 0.03, 0.1, 0.2))
        travel_s = self.chance.choice((0.0, 0.01, 0.05, 0.5))
        suspend_s = self.chance.choice((2.1, 3.5, 3.5)) * DAY_S
        return Weather(rate, modes, travel_s, 0.05 if ages else 0.0, suspend_s)

    def _outages(self, actors: list[Actor], busy_s: float) -> tuple[PlannedOutage, ...]:
        outages = tuple(self._outage(actors, busy_s) for _ in range(self.chance.choice((0, 0, 0, 1, 2))))
        if self._on(0.05):  # answers are lost, and then the permission to ask is lost too
            from_s, lost_s = self.chance.uniform(0, busy_s), self.chance.uniform(1, 20)
            outages += (
                PlannedOutage("rows", Mode.LOST, from_s, from_s + lost_s),
                PlannedOutage("rows", Mode.DENIED, from_s + lost_s, from_s + lost_s + 40.0)
            )  # fmt: skip
        return outages

    def _outage(self, actors: list[Actor], busy_s: float) -> PlannedOutage:
        from_s, mode = self.chance.uniform(0, busy_s), self.chance.choice((Mode.UNAVAILABLE, Mode.DENIED, Mode.LOST, Mode.SLOW))
        until_s = from_s + self.chance.choice((3.0, 40.0, 200.0))
        whom = self.chance.choice([None, *(actor.name for actor in actors)])
        return PlannedOutage(self.chance.choice(("rows", "log", "blobs")), mode, from_s, until_s, whom)
