"""Judges a change feed from outside: it reads the stored notes and values and the sinks, after every effect.

    checkpoint   the staged file is there, whole, and says what it may; epoch, seq and times only go forward
                 each transaction turns the view before into one that rows had, in their order
                 a progress comes only when every change that the log has forgotten is in the view
    blob         none is deleted while the committed view holds it, unless a gap was set before
    log          an entry that was kept is forgotten only when the view has what its row held then, or after a gap
    sink         each segment is the file of a committed transaction, with the same bytes always
                 a strict reader of what arrives gets, at each frontier, what was committed up to there
    position     a sink has everything up to the position that is written down for it, and that never goes back
    trim         a committed file is erased only when every sink has it, and never the last one

`rest` checks what must be true when all is quiet. Violations go to `emulators.world.checker.Watch`.

The *view* of a generation is what its committed updates sum up to. The *history* of a row are the blobs that it named,
one after the other; None stands for no reference.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from changelog.change import Entry
from emulators.feed_worlds.sinks import WorldSink
from emulators.world.deployment import World
from emulators.world.runtime import now_s
from recovery.feed.errors import FeedError
from recovery.feed.messages import Message, Progress, Updates
from recovery.feed.reader import CdcReader
from recovery.feed.sinks.sink import Segment
from recovery.feed.spelling import from_json
from tiered.metadata import is_expired
from tiered.object_id import revision_of
from tiered.services.backends import Row

View = dict[str, str]


@dataclass(slots=True)
class Generation:
    """What was committed in one generation.

    `files`: the bytes of each transaction by its time. `updates`: (time, object, blob, diff), in order. `reached`: for
    each object, the place in the history of its row that the view shows. `lower`: up to where progress was committed.
    `began_at`: when it began (seconds of the world).
    """

    number: int
    files: dict[int, bytes] = field(default_factory=dict)
    updates: list[tuple[int, str, str, int]] = field(default_factory=list)
    view: View = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)
    lower: int = 0
    began_at: float = 0.0

    def view_before(self, frontier: int) -> View:
        """Returns the references that the transactions before this time leave."""
        found: Counter[tuple[str, str]] = Counter()
        for time, path, blob, diff in self.updates:
            if time < frontier:
                found[path, blob] += diff
        return {path: blob for (path, blob), number in found.items() if number}


class StrictReader:
    """A strict reader of one generation, and the view that it has."""

    def __init__(self) -> None:
        self._reader = CdcReader(remember=True)
        self._counts: Counter[tuple[str, str]] = Counter()
        self.frontier = 0

    def feed(self, message: Message) -> str | None:
        """Takes a message. Returns what is wrong with it, if anything."""
        try:
            batch = self._reader.feed(message)
        except FeedError as error:
            return f"a strict reader refuses a message: {error}"
        if batch is None:
            return None
        for data, _, diff in batch.updates:
            self._counts[data["object"], data["blob"]] += diff
        (self.frontier,) = batch.frontier
        if wrong := [f"{reference}: {number}" for reference, number in self._counts.items() if number not in (0, 1)]:
            return f"at the frontier {self.frontier} references have these multiplicities: {', '.join(wrong)}"
        if len(self.view) != sum(self._counts.values()):
            return f"at the frontier {self.frontier} an object has two blobs"
        return None

    @property
    def view(self) -> View:
        return {path: blob for (path, blob), number in self._counts.items() if number}


def messages_of(data: bytes) -> list[Message]:
    """Returns the messages of a file in JSON lines."""
    return [from_json(json.loads(line)) for line in data.splitlines()]


class FeedWatch:
    """Watches the feed of a world. `sinks`: all that its writers have. Make it before anything happens.

    `checked`: how often each check was made. `passed_at`: when the last complete pass ended (seconds of the world).
    """

    def __init__(self, world: World, sinks: Sequence[WorldSink]) -> None:
        self.checked: Counter[str] = Counter()
        self.generations: dict[int, Generation] = {}
        self.checkpoint: dict[str, Any] | None = None
        self.has_gap = False
        self.passed_at = -1.0
        self._values = world.log.values
        self._world = world
        self._sinks = sinks
        self._history: dict[str, list[str | None]] = {}
        self._deadlines: dict[str, int | None] = {}
        self._lapsed = set[str]()
        self._kept: dict[str, tuple[str, int, float]] = {}
        self._positions: dict[str, tuple[int, int]] = {}
        self._readings: dict[tuple[str, int], StrictReader] = {}
        for path in world.rows.states:
            self._note_row(path)
        for observers in (world.rows.observers, world.blobs.observers, world.log.observers, *(sink.observers for sink in sinks)):
            observers.append(self._look)

    @property
    def generation(self) -> Generation | None:
        """The one of the checkpoint."""
        return None if self.checkpoint is None else self.generations[self.checkpoint["generation"]]

    # --- what happens --------------------------------------------------------------------------------

    def _look(self, call: str, what: str) -> None:
        service = call.partition(".")[0]
        if service == "rows":
            self._note_row(what)
        elif call == "blobs.delete":
            self._look_at_deletion(what)
        elif call == "sink.deliver":
            self._look_at_segment(next(sink for sink in self._sinks if sink.name == what))
        elif call == "log.swap_note" and what == "feed":
            self._look_at_checkpoint(json.loads(self._world.log.notes["feed"]))
        elif call == "log.swap_note" and what.startswith("feed-sink-"):
            self._look_at_position(json.loads(self._world.log.notes[what]))
        elif call == "log.keep":
            self._note_kept(what)
        elif call == "log.forget":
            self._look_at_forgotten(what)
        elif call == "log.erase_values":
            self._look_at_erased(what.split(","))

    def _report(self, invariant: str, finding: str) -> None:
        self._world.watch.report(invariant, finding)

    def _note_row(self, path: str) -> None:
        history = self._history.setdefault(path, [None])
        state = self._world.rows.states.get(path)
        if (target := Row(state).target) != history[-1]:
            history.append(target)
            if target is None and is_expired(self._deadlines.get(path), self._world.runtime.wall_ns()):
                self._lapsed.add(path)  # no change took it away, so there is no hint: the next pass finds it
            else:
                self._lapsed.discard(path)
        self._deadlines[path] = None if state is None else state.deadline_ns

    def _place(self, path: str, blob: str | None, since: int) -> int | None:
        """Returns the first place from `since` on at which the row named this blob, or None."""
        history = self._history.get(path, [None])
        return next((place for place in range(since, len(history)) if history[place] == blob), None)

    # --- the checkpoint ------------------------------------------------------------------------------

    def _look_at_checkpoint(self, new: dict[str, Any]) -> None:
        old, self.checkpoint = self.checkpoint, new
        number = new["generation"]
        if old is None or old["generation"] != number:
            if number in self.generations:
                self._report("feed order", f"generation {number} came again")
            self.generations[number] = Generation(number, began_at=now_s())
            self.has_gap = False
            before: tuple[int, int] = (0 if old is None else old["epoch"], 0)
            staged_before = None
        else:
            before, staged_before = (old["epoch"], old["seq"]), old["staged"]
            self.has_gap = self.has_gap and (new["gap"] or new["passed"] == old["passed"])
        self.has_gap = self.has_gap or new["gap"]
        if old is not None and new["passed"] != old["passed"] and new["passed"] is not None:
            self.passed_at = now_s()
        self.checked["epoch and seq go forward"] += 1
        if (new["epoch"], new["seq"]) <= before or new["epoch"] < before[0]:
            self._report("feed order", f"epoch and seq went from {before} to {(new['epoch'], new['seq'])}")
        if new["staged"] != staged_before:
            self._look_at_transaction(self.generations[number], new)

    def _look_at_transaction(self, generation: Generation, checkpoint: dict[str, Any]) -> None:
        time, staged = checkpoint["progress"]["timestamp"], checkpoint["staged"]
        parts = [self._value(f"feed/{generation.number}/{staged['object']}/{number:04d}") for number in range(staged["parts"])]
        data = b"".join(part or b"" for part in parts)
        self.checked["the committed file is there"] += 1
        if sha256(data).hexdigest() != staged["sha256"]:
            self._report("feed whole", f"the file {staged['object']} was committed, and it is not there as it should be")
            return
        if time in generation.files:
            self._report("feed order", f"two transactions have the time {time}")
        generation.files[time] = data
        for message in messages_of(data):
            match message:
                case Updates(updates):
                    self._take([(each.time, each.data["object"], each.data["blob"], each.diff) for each in updates], generation, time)
                case Progress(lower, upper, _):
                    self._look_at_progress(generation, lower, upper, time)

    def _take(self, updates: list[tuple[int, str, str, int]], generation: Generation, time: int) -> None:
        generation.updates += updates
        self.checked["the view is one that rows had"] += 1
        for at, path, blob, diff in updates:
            if at != time:
                self._report("feed view", f"an update of the transaction at {time} has the time {at}")
            if diff == -1 and generation.view.get(path) == blob:
                del generation.view[path]
            elif diff == +1 and path not in generation.view:
                generation.view[path] = blob
            else:
                self._report("feed view", f"at {time} {diff:+d} of {blob}, and the view has {generation.view.get(path)}")
        for path in {path for _, path, _, _ in updates}:
            place = self._place(path, generation.view.get(path), generation.reached.get(path, 0))
            if place is None:
                self._report("feed view", f"at {time} the view of {path} became {generation.view.get(path)}, which it was not or no more")
            else:
                generation.reached[path] = place

    def _look_at_progress(self, generation: Generation, lower: Iterable[int], upper: Iterable[int], time: int) -> None:
        (begin,), (end,) = lower, upper
        self.checked["progress is contiguous"] += 1
        if begin != generation.lower or end != time + 1:
            self._report("feed progress", f"the transaction at {time} has the progress [{begin},{end}), after {generation.lower}")
        generation.lower = end
        if time == 0:
            return
        self.checked["what is forgotten is in the view"] += 1
        waiting = {change.change.object for key in self._world.log.stored if (change := self._entry(key)) is not None}
        for path, history in self._history.items():
            state = self._world.rows.states.get(path)
            expires = state is not None and is_expired(state.deadline_ns, self._world.runtime.wall_ns())
            if path in waiting or path in self._lapsed or expires or state is None:
                continue
            if history[-1] != generation.view.get(path):
                shown = generation.view.get(path)
                self._report("feed complete", f"the progress to {end} is about {path} with {shown}, and its row has {history[-1]}")

    # --- blobs and entries ---------------------------------------------------------------------------

    def _look_at_deletion(self, blob: str) -> None:
        self.checked["no blob is deleted before its -1"] += 1
        generation = self.generation
        if generation is not None and not self.has_gap and generation.view.get(blob.rpartition("/")[0]) == blob:
            self._report("feed delete", f"blob {blob} was deleted, and its -1 was not committed")

    def _note_kept(self, key: str) -> None:
        entry = self._entry(key)
        if entry is not None and entry.kept_ms is not None and key not in self._kept:
            path = entry.change.object
            self._kept[key] = path, len(self._history.get(path, [None])) - 1, now_s()
            self.checked["kept when it is over"] += 1
            token = None if entry.change.new is None else revision_of(path, entry.change.new)
            shown = Row(self._world.rows.states.get(path)).target == entry.change.new
            marks = self._world.rows.refused.get(path, {}).keys() | self._world.rows.won.get(path, {}).keys()
            if token is not None and not shown and token not in marks:
                self._report("feed settle", f"the entry {key} was kept, and its change may still change the row")

    def _look_at_forgotten(self, key: str) -> None:
        path, since, at_s = self._kept.pop(key, (None, 0, 0.0))
        if path is None or (generation := self.generation) is None or self.checkpoint is None or self.has_gap:
            return
        if at_s < generation.began_at and self.checkpoint["passed"] is None:
            return  # the bound saw no feed; the first pass reads the row after it was over
        self.checked["forgotten when it is published"] += 1
        if self._place(path, generation.view.get(path), since) is None:
            self._report("feed forget", f"the entry {key} of {path} is forgotten, and the view has {generation.view.get(path)}")

    def _entry(self, key: str) -> Entry | None:
        return entry if isinstance(entry := self._world.watch.decoded(key), Entry) else None

    # --- sinks ---------------------------------------------------------------------------------------

    def _look_at_segment(self, sink: WorldSink) -> None:
        segment = sink.arrived[-1]
        self.checked["a segment is a committed file"] += 1
        generation = self.generations.get(segment.generation)
        if generation is None or generation.files.get(segment.time) != segment.data:
            self._report("feed published", f"{sink.name} got {segment.folder}/{segment.name}, which was not committed so")
            return
        reading = self._readings.setdefault((sink.name, segment.generation), StrictReader())
        before = reading.frontier
        for message in messages_of(segment.data):
            if (wrong := reading.feed(message)) is not None:
                self._report("feed reader", f"{sink.name}, {segment.name}: {wrong}")
        if reading.frontier != before:
            self.checked["the view at a frontier"] += 1
            if reading.view != (committed := generation.view_before(reading.frontier)):
                self._report("feed reader", f"{sink.name} at {reading.frontier}: {reading.view}, and committed was {committed}")

    def _look_at_position(self, note: dict[str, Any]) -> None:
        self.checked["a sink has what its position says"] += 1
        number, time = note["generation"], -1 if note["acknowledged"] is None else note["acknowledged"]
        if (number, time) < self._positions.get(note["sink"], (0, -1)):
            self._report("feed position", f"the position of {note['sink']} went back to {(number, time)}")
        self._positions[note["sink"]] = number, time
        sink = next(sink for sink in self._sinks if sink.name == note["sink"])
        if missing := [at for at in self.generations[number].files if at <= time and (number, at) not in sink.held]:
            self._report("feed position", f"the position of {sink.name} is {time}, and it does not have {missing}")

    def _look_at_erased(self, keys: Iterable[str]) -> None:
        generation, checkpoint = self.generation, self.checkpoint
        if generation is None or checkpoint is None:
            return
        prefix = f"feed/{generation.number}/staged/"
        for time in {int(key.removeprefix(prefix).partition("/")[0]) for key in keys if key.startswith(prefix)} & generation.files.keys():
            self.checked["trimmed when every sink has it"] += 1
            if any(self._is_committed_file(generation, time, key) for key in keys):
                last = time == checkpoint["progress"]["timestamp"]
                if last or not all((generation.number, time) in sink.held for sink in self._sinks):
                    self._report("feed trim", f"the file of {time} was erased, and {'it is the last one' if last else 'a sink lacks it'}")

    def _is_committed_file(self, generation: Generation, time: int, key: str) -> bool:
        """Tells whether the erased key was that of the committed file: nothing else with its bytes is left."""
        prefix = f"feed/{generation.number}/staged/{time:019d}/"
        left = b"".join(value for name in sorted(self._values) if name.startswith(prefix) and (value := self._value(name)))
        return key.startswith(prefix) and generation.files[time] not in left

    def _value(self, key: str) -> bytes | None:
        return self._values.get(key, (None, 0))[0]

    # --- at rest -------------------------------------------------------------------------------------

    def is_through(self) -> bool:
        """Tells whether every committed file is at every sink, and no entry waits for the feed."""
        generation = self.generation
        entries = [self._world.watch.decoded(key) for key in self._world.log.stored]
        if generation is None or any(entry is not None and entry.kept_ms is not None for entry in entries):
            return False
        return all((generation.number, time) in sink.held for time in generation.files for sink in self._sinks)

    def rest(self) -> None:
        """Checks the end: writers and recovery have run until nothing was left to do."""
        generation, checkpoint = self.generation, self.checkpoint
        if generation is None or checkpoint is None:
            self._report("feed rest", "there is no feed")
            return
        rows = {path: target for path, state in self._world.rows.states.items() if (target := Row(state).target) is not None}
        self.checked["at rest the view is what rows hold"] += 1
        if generation.view != rows:
            self._report("feed rest", f"the view is {generation.view}, and rows hold {rows}")
        if checkpoint["live"] != len(rows) or checkpoint["gap"] or checkpoint["pass"] is not None:
            self._report("feed rest", f"the checkpoint is {checkpoint}")
        prefix = f"feed/{generation.number}/"
        values = {key: value for key in sorted(self._values) if (value := self._value(key)) is not None}
        under = f"{prefix}index/"
        stored = {key.removeprefix(under): value.decode() for key, value in values.items() if key.startswith(under)}
        index = {path: value.partition(" ")[2] for path, value in stored.items()}  # after a checksum
        if index != rows:
            self._report("feed rest", f"the index is {index}, and rows hold {rows}")
        others = [key for key in values if not key.startswith((f"{prefix}index/", f"{prefix}began"))]
        last = f"{checkpoint['progress']['timestamp']:019d}"
        if garbage := [key for key in others if not key.startswith((f"{prefix}staged/{last}/", f"{prefix}journal/{last}"))]:
            self._report("feed rest", f"these values are garbage: {', '.join(garbage)}")
        for sink in self._sinks:
            self._read_by_name(sink, generation, checkpoint, rows)

    def _read_by_name(self, sink: WorldSink, generation: Generation, checkpoint: dict[str, Any], rows: View) -> None:
        """Reads the files of a sink in the order of their names, as a strict reader does."""
        reading = StrictReader()
        held: list[Segment] = [each for each in sink.held.values() if each.generation == generation.number]
        for segment in sorted(held, key=lambda each: each.name):
            for message in messages_of(segment.data):
                if (wrong := reading.feed(message)) is not None:
                    self._report("feed reader", f"{sink.name}, in the order of names: {wrong}")
        self.checked["at rest each sink has everything"] += 1
        if (reading.view, reading.frontier) != (rows, checkpoint["lower"]):
            self._report("feed rest", f"{sink.name} shows {reading.view} at {reading.frontier}, and rows hold {rows}")
