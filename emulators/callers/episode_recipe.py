"""What a seed chooses: a store, some objects, and the calls, with their arguments and when they are cancelled.

    EpisodeRecipe.of(seed)  always the same, whatever was run before; each step is drawn by a generator of its own,
                            so one step can be left out while the others stay the same (`without`)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random

from emulators.callers import values
from emulators.callers.interrupt import How, Interrupt
from emulators.callers.payloads import BLOCKING, SLOW, Payload, kinds
from emulators.callers.values import Is, Value

STEPS_MAX = 20
INTERRUPTED_MS = (0.0, 0.3, 1.0, 5.0, 20.0)


class CallKind(Enum):
    PUT = "put"
    OPEN = "open"
    GET = "get"
    HEAD = "head"
    DELETE = "delete"
    LIST = "list"
    OUTCOME = "outcome"
    COPY = "copy"
    RENAME = "rename"
    UPDATE_METADATA = "update_metadata"
    SET_EXPIRY = "set_expiry"
    PUT_MANY = "put_many"
    GET_MANY = "get_many"
    HEAD_MANY = "head_many"
    DELETE_MANY = "delete_many"
    MULTIPART = "begin_multipart"
    RESUMABLE = "begin_resumable"
    CONSTRUCT = "construct"
    REOPEN = "close and open again"
    CLOSE = "aclose"
    ENTER_AGAIN = "enter again"
    SETTINGS = "settings"


_WEIGHTS = {
    CallKind.PUT: 40, CallKind.OPEN: 6, CallKind.GET: 16, CallKind.HEAD: 5, CallKind.DELETE: 9, CallKind.LIST: 4, CallKind.OUTCOME: 2, CallKind.PUT_MANY: 8, CallKind.GET_MANY: 4, CallKind.HEAD_MANY: 2, CallKind.DELETE_MANY: 3,
    CallKind.COPY: 3, CallKind.RENAME: 3, CallKind.UPDATE_METADATA: 3, CallKind.SET_EXPIRY: 3, CallKind.CONSTRUCT: 8, CallKind.REOPEN: 3, CallKind.CLOSE: 1, CallKind.ENTER_AGAIN: 1, CallKind.SETTINGS: 2,
    CallKind.MULTIPART: 5, CallKind.RESUMABLE: 5,
}  # fmt: skip


REWRITES = (CallKind.COPY, CallKind.RENAME, CallKind.UPDATE_METADATA, CallKind.SET_EXPIRY)
"""Calls that write what is in the store already."""
UPLOADS = (CallKind.MULTIPART, CallKind.RESUMABLE)
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
        return f"{self.number}: {self.call.value}({', '.join(passed)}){manner}{interrupt}{', beside what follows' if self.beside else ''}"


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
    left_out: frozenset[int] = field(default_factory=frozenset)

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

    def without(self, steps: frozenset[int]) -> EpisodeRecipe:
        kept = tuple(step for step in self.steps if step.number not in steps)
        return replace(self, steps=kept, left_out=self.left_out | steps)

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
        call = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        step = CallerStep(number, call, {}, beside=random.random() < self._beside)
        match call:
            case CallKind.PUT:
                arguments = {"id": self._id(random), "metadata": self._metadata(random)} | self._progress(random) | self._checked(random)
                step = replace(step, arguments=arguments, payload=self._payload(random))
            case CallKind.OPEN:
                arguments = {"id": self._id(random), "metadata": self._metadata(random)} | self._checked(random)
                manner = random.choice(("to its end", "to its end", "to its end", "block raises", "entered twice", "written afterwards", "read"))
                step = replace(step, arguments=arguments, payload=self._payload(random, "bytes"), manner=manner)
            case CallKind.GET:
                ranged = random.random() < 0.4
                manner = random.choice((
                    "read whole", "read whole", "read whole", "read twice", "in chunks", "left half-way", "closed unread", "never closed", "closed twice",
                    "read after closing", "inside async with", "two readers at once",
                ))  # fmt: skip
                arguments = {"id": self._id(random)} | ({"range": values.any_range(random)} if ranged else {})
                arguments |= self._progress(random) if manner in ("read whole", "in chunks") else {}
                step = replace(step, arguments=arguments, manner=manner)
            case CallKind.HEAD | CallKind.DELETE:
                step = replace(step, arguments={"id": self._id(random)})
            case CallKind.COPY | CallKind.RENAME:
                step = replace(step, arguments={"id": self._id(random), "to": self._id(random)})
            case CallKind.UPDATE_METADATA | CallKind.SET_EXPIRY:
                what = values.any_change(random) if call is CallKind.UPDATE_METADATA else values.any_expiry(random)
                step = replace(step, arguments={"id": self._id(random), "what": what})
            case CallKind.LIST:
                manner = random.choice(("to its end", "to its end", "left half-way", "page by page", "page by page"))
                step = replace(step, arguments=values.listing(random, self._ids, self._wrong), manner=manner)
            case CallKind.OUTCOME:
                manner = random.choice(("of what was never written", "of something else"))
                step = replace(step, arguments={"error": values.junk(random)}, manner=manner)
            case CallKind.PUT_MANY | CallKind.GET_MANY | CallKind.HEAD_MANY | CallKind.DELETE_MANY:
                step = self._bulk(step, random)
            case CallKind.MULTIPART | CallKind.RESUMABLE:
                sends, calls = UPLOAD_CALLS[call is CallKind.RESUMABLE]
                manner = ", ".join([sends] * random.choice((0, 1, 2, 2)) + random.choices(calls, k=random.randint(1, 9)))
                arguments = {"id": self._id(random), "metadata": values.good_metadata(random)}
                step = replace(step, arguments=arguments, payload=self._payload(random, "bytes"), manner=manner)
            case CallKind.CONSTRUCT:
                make = random.choice((values.any_id, values.any_metadata, values.any_range, values.odd_lifetime))
                step = replace(step, arguments={"value": make(random)})
            case CallKind.SETTINGS:
                step = replace(step, arguments={"source": values.any_settings(random)})
            case _:
                pass
        if call in (CallKind.PUT, CallKind.OPEN, CallKind.DELETE, *UPLOADS, *REWRITES) and random.random() < 0.25:
            step = replace(step, arguments=step.arguments | {"condition": values.any_condition(random, absent=call in MAY_BE_ABSENT)})
        blocks = any(payload.blocks for payload in _payloads(step))
        if blocks or (self._interrupts and random.random() < 0.4):
            step = replace(step, interrupt=self.interrupt(random, timed=blocks and random.random() < 0.7))
        return step

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
        if "that blocks" in source and step.interrupt is None:
            step = replace(step, interrupt=self.interrupt(random, timed=True))
        return step

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


__all__ = ["CallKind", "CallerStep", "EpisodeRecipe", "Interrupt", "Is", "Item"]
