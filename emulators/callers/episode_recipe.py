"""What a seed chooses: a store, some objects, and the calls, with their arguments and when they are cancelled.

    EpisodeRecipe.of(seed)  always the same, whatever was run before; each step is drawn by a generator of its own,
                            so one step can be left out while the others stay the same (`without`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random

from emulators.callers import values
from emulators.callers.interrupt import How, Interrupt
from emulators.callers.payloads import BLOCKING, SLOW, Payload, kinds
from emulators.callers.values import Value
from emulators.callers.verdict import step_part
from emulators.simulation.recipe import RecipePart

STEPS_MAX = 20
MANNERS_TO_READ = (
    "read whole", "read twice", "in chunks", "left half-way", "closed unread", "never closed", "closed twice", "read after closing",
    "inside async with", "two readers at once",
)  # fmt: skip
INTERRUPTED_MS = (0.0, 0.3, 1.0, 5.0, 20.0)


class CallKind(Enum):
    """A call, with how often it is drawn."""

    PUT = "put", 40
    OPEN = "open", 6
    GET = "get", 16
    HEAD = "head", 5
    DELETE = "delete", 9
    LIST = "list", 4
    OUTCOME = "outcome", 2
    COPY = "copy", 3
    RENAME = "rename", 3
    UPDATE_METADATA = "update_metadata", 3
    SET_EXPIRY = "set_expiry", 3
    PUT_MANY = "put_many", 8
    GET_MANY = "get_many", 4
    HEAD_MANY = "head_many", 2
    DELETE_MANY = "delete_many", 3
    MULTIPART = "begin_multipart", 5
    RESUMABLE = "begin_resumable", 5
    CONSTRUCT = "construct", 8
    REOPEN = "close and open again", 3
    CLOSE = "aclose", 1
    ENTER_AGAIN = "enter again", 1
    SETTINGS = "settings", 2

    def __init__(self, verb: str, weight: int) -> None:
        self.verb = verb
        self.weight = weight


REWRITES = (CallKind.COPY, CallKind.RENAME, CallKind.UPDATE_METADATA, CallKind.SET_EXPIRY)
"""Calls that write what is in the store already."""
UPLOADS = (CallKind.MULTIPART, CallKind.RESUMABLE)
BULK = (CallKind.PUT_MANY, CallKind.GET_MANY, CallKind.HEAD_MANY, CallKind.DELETE_MANY)
MAY_BE_ABSENT = (CallKind.PUT, CallKind.OPEN, *UPLOADS, CallKind.COPY, CallKind.RENAME)
"""Calls that know `if_absent`."""

_ENDS = (*["no list"] * 3, "overwrite", "abort", "abort beside")
UPLOAD_CALLS = (
    ("part", ("part", "part by link", "its list", "its list", "a shorter list", "a changed list", *_ENDS)),
    ("append", ("append", "append", "append elsewhere", "two at once", "another part_bytes", "part", "status", *_ENDS)),
)
"""What is called of an upload in parts, and of one that is appended to: first how it sends, then all. `open_uploads.py`
makes these calls. "no list" completes or finishes it."""


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a bulk call. `wrong`: passed instead of a request of the right type. `condition`: that of a put."""

    object_id: Value
    payload: Payload | None = None
    metadata: Value | None = None
    wrong: Value | None = None
    condition: Value | None = None

    def __str__(self) -> str:
        if self.wrong is not None:
            return str(self.wrong)
        return f"({', '.join(str(each) for each in (self.object_id, self.payload, self.metadata, self.condition) if each)})"


@dataclass(frozen=True, slots=True)
class CallerStep:
    """One call. `beside`: the next step does not wait for its end. `manner`: how its answer is used."""

    number: int
    call: CallKind
    arguments: dict[str, Value]
    payload: Payload | None = None
    items: tuple[Item, ...] = ()
    manner: str = ""
    interrupt: Interrupt | None = None
    beside: bool = False

    def __str__(self) -> str:
        arguments = [f"{name}={value}" for name, value in self.arguments.items()]
        passed = [*arguments, *([str(self.payload)] if self.payload else []), *(str(item) for item in self.items)]
        manner, interrupt = f", {self.manner}" if self.manner else "", f", {self.interrupt}" if self.interrupt else ""
        return f"{self.number}: {self.call.verb}({', '.join(passed)}){manner}{interrupt}{', beside what follows' if self.beside else ''}"


@dataclass(frozen=True, slots=True)
class EpisodeRecipe:
    """Everything that one episode needs.

    `ground`: embedded on asyncio or trio, or simulated. `closing`: how the closing of the last store is cancelled.
    `sweep`: the step that is cancelled at every await, each time in a new world.
    """

    seed: int
    ground: str
    settings: dict[str, object]
    ids: tuple[Value, ...]
    steps: tuple[CallerStep, ...]
    closing: Interrupt | None = None
    sweep: int | None = None
    left_out: frozenset[RecipePart] = field(default_factory=frozenset)

    @classmethod
    def of(cls, seed: int, ground: str | None = None) -> EpisodeRecipe:
        random = Random(f"{seed}/recipe")
        drawn = random.choice((*["embedded on asyncio"] * 4, "embedded on trio", *["simulated"] * 4))
        ground = ground or drawn
        settings: dict[str, object] = {"inline_bytes_max": random.choice((1, 16, 100, 1000))}
        settings["changelog"] = random.choice(("sqlite", "sqlite", "sqlite", "noop"))
        store: dict[str, object] = {"concurrency_max": random.choice((1, 2, 8, 64)), "queue_max": random.choice((0, 1, 256))}
        if random.random() < 0.15:
            store["drain_budget_s"] = random.choice((0.001, 0.05))
        settings["store"] = store
        ids = tuple(values.good_id(random) for _ in range(random.randint(1, 4)))
        interrupts, wrong, beside = random.random() < 0.7, random.choice((0.0, 0.1, 0.5)), random.choice((0, 0, 0.4))
        chooser = _CallerChooser(seed, ground, ids, interrupts=interrupts, wrong=wrong, beside=beside)
        count = random.randint(1, STEPS_MAX) if ground == "simulated" else random.randint(3, STEPS_MAX)
        steps = tuple(chooser.step(number) for number in range(count))
        closing = chooser.interrupt(Random(f"{seed}/closing")) if random.random() < 0.2 else None
        slow = any(payload.kind in SLOW for step in steps for payload in _payloads(step))
        sweep = random.randrange(count) if ground == "simulated" and not slow and random.random() < 0.25 else None
        return cls(seed, ground, settings, ids, steps, closing, sweep)

    def without(self, parts: Iterable[RecipePart]) -> EpisodeRecipe:
        left_out = self.left_out | frozenset(parts)
        return replace(self, steps=tuple(step for step in self.steps if step_part(step.number) not in left_out), left_out=left_out)

    def words(self) -> Iterator[str]:
        yield f"seed {self.seed}: {self.ground}, {', '.join(f'{name}={value}' for name, value in self.settings.items())}"
        for step in self.steps:
            yield f"  {step}" + (" — at each of its awaits, in a world each" if step.number == self.sweep else "")
        if self.closing:
            yield f"  the closing of the store is {self.closing}"


class _CallerChooser:
    def __init__(self, seed: int, ground: str, ids: tuple[Value, ...], *, interrupts: bool, wrong: float, beside: float) -> None:
        self._seed = seed
        self._ids = ids
        self._interrupts = interrupts
        self._wrong = wrong
        self._beside = beside
        self._on_asyncio = ground == "embedded on asyncio"
        self._simulated = ground == "simulated"
        self._kinds = kinds(threads=not self._simulated, on_asyncio=self._on_asyncio)

    def step(self, number: int) -> CallerStep:
        random = Random(f"{self._seed}/step {number}")
        call = random.choices(list(CallKind), [each.weight for each in CallKind])[0]
        step = self._chosen(CallerStep(number, call, {}, beside=random.random() < self._beside), random)
        if call in (CallKind.PUT, CallKind.OPEN, CallKind.DELETE, *UPLOADS, *REWRITES) and random.random() < 0.25:
            step = replace(step, arguments=step.arguments | {"condition": values.any_condition(random, absent=call in MAY_BE_ABSENT)})
        blocks = any(payload.blocks for payload in _payloads(step))
        if step.interrupt is None and (blocks or (self._interrupts and random.random() < 0.4)):
            step = replace(step, interrupt=self.interrupt(random, timed=blocks and random.random() < 0.7))
        return step

    def _chosen(self, step: CallerStep, random: Random) -> CallerStep:
        """Chooses the arguments of a step, and how its answer is used."""
        call, arguments, manner, payload = step.call, {}, "", None
        if call in (CallKind.PUT, CallKind.OPEN, *UPLOADS):
            metadata = values.good_metadata(random) if call in UPLOADS else self._metadata(random)
            arguments = {"id": self._id(random), "metadata": metadata}
            payload = self._payload(random, "" if call is CallKind.PUT else "bytes")
        elif call in (CallKind.GET, CallKind.HEAD, CallKind.DELETE, *REWRITES):
            arguments = {"id": self._id(random)}
        match call:
            case CallKind.PUT:
                arguments |= self._progress(random) | self._checked(random)
            case CallKind.OPEN:
                arguments |= self._checked(random)
                manner = random.choice(("to its end", "to its end", "to its end", "block raises", "entered twice", "written afterwards", "read"))
            case CallKind.GET:
                arguments |= {"range": values.any_range(random)} if random.random() < 0.4 else {}
                manner = random.choice(("read whole", "read whole", *MANNERS_TO_READ))
                arguments |= self._progress(random) if manner in ("read whole", "in chunks") else {}
            case CallKind.COPY | CallKind.RENAME:
                arguments["to"] = self._id(random)
            case CallKind.UPDATE_METADATA:
                arguments["what"] = values.any_change(random)
            case CallKind.SET_EXPIRY:
                arguments["what"] = values.any_expiry(random)
            case CallKind.LIST:
                arguments = values.listing(random, self._ids, self._wrong)
                manner = random.choice(("to its end", "to its end", "left half-way", "page by page", "page by page"))
            case CallKind.OUTCOME:
                arguments = {"error": values.junk(random)}
                manner = random.choice(("of what was never written", "of something else"))
            case CallKind.MULTIPART | CallKind.RESUMABLE:
                sends, calls = UPLOAD_CALLS[call is CallKind.RESUMABLE]
                manner = ", ".join([sends] * random.choice((0, 1, 2, 2)) + random.choices(calls, k=random.randint(1, 9)))
            case CallKind.CONSTRUCT:
                make = random.choice((values.any_id, values.any_metadata, values.any_range, values.odd_lifetime))
                arguments = {"value": make(random)}
            case CallKind.SETTINGS:
                arguments = {"source": values.any_settings(random)}
            case _ if call in BULK:
                return self._bulk(step, random)
        return replace(step, arguments=arguments, payload=payload, manner=manner)

    def interrupt(self, random: Random, *, timed: bool | None = None) -> Interrupt:
        how = random.choice(list(How)) if self._on_asyncio else How.SCOPE
        if timed or (timed is None and random.random() < 0.2):
            return Interrupt(how, None, random.choice(INTERRUPTED_MS))
        return Interrupt(how, random.choice((1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 30)))

    def _bulk(self, step: CallerStep, random: Random) -> CallerStep:
        manner = random.choice((
            "all results", "all results", "all results", "left early", "never iterated", "block raises", "entered twice", "not entered", "iterated afterwards",
        ))  # fmt: skip
        sources = ["a list", "an async generator", "an async generator that raises", "no iterable"]
        if not self._simulated:  # these are read in a thread, which knows nothing of simulated time
            sources += ["a generator", "a generator that raises"]
        if self._on_asyncio:
            sources += ["an async generator that blocks", "an async generator that awaits a task cancelled by others"]
        source = random.choice(sources)
        arguments = {"concurrency": values.any_concurrency(random) if random.random() < 0.5 else values.exactly(None)}
        if step.call is CallKind.GET_MANY:
            arguments["payload_bytes_max"] = values.any_bytes_max(random)
        items = tuple(self._item(step.call, random) for _ in range(random.choice((0, 1, 3, 6, 12))))
        step = replace(step, arguments=arguments, items=items, manner=f"{source}, {manner}")
        return replace(step, interrupt=self.interrupt(random, timed=True)) if "that blocks" in source else step

    def _item(self, call: CallKind, random: Random) -> Item:
        if random.random() < self._wrong / 3:
            return Item(self._id(random), wrong=values.junk(random))
        if call is not CallKind.PUT_MANY:
            return Item(self._id(random))
        item = Item(self._id(random), self._payload(random), self._metadata(random))
        return replace(item, condition=values.any_condition(random)) if random.random() < 0.25 else item

    def _id(self, random: Random) -> Value:
        return values.any_id(random) if random.random() < self._wrong else random.choice(self._ids)

    def _progress(self, random: Random) -> dict[str, Value]:
        return {"progress": values.any_progress(random, self._wrong)} if random.random() < 0.2 else {}

    def _checked(self, random: Random) -> dict[str, Value]:
        """What is declared of a payload, and what is known at its end."""
        checked: dict[str, Value] = {}
        if random.random() < 0.2:
            checked["checksums"] = values.any_checksums(random, self._wrong, threads=not self._simulated)
        if random.random() < 0.2:
            checked["custom_at_end"] = values.any_told_at_end(random, self._wrong)
        if not self._simulated and random.random() < 0.2:  # large chunks are compressed in threads
            checked["compress"] = values.any_compress(random, self._wrong)
        return checked

    def _metadata(self, random: Random) -> Value:
        return values.any_metadata(random) if random.random() < self._wrong else values.good_metadata(random)

    def _payload(self, random: Random, name: str = "") -> Payload:
        names = [name for name in self._kinds if self._interrupts or name not in BLOCKING]
        name = name or random.choices(names, [1 if each in SLOW else 8 for each in names])[0]
        size = random.choice((0, 1, 2, 15, 16, 17, 99, 100, 101, 999, 1001, 5000, 5000, 70_000, 300_000))
        return Payload(name, size, random.getrandbits(48))


def _payloads(step: CallerStep) -> list[Payload]:
    return [payload for payload in (step.payload, *(item.payload for item in step.items)) if payload is not None]

