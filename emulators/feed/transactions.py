"""Transactions of a feed whose writer dies at any step, in two orders.

    PUBLISHED       open -> acknowledge -> send the updates -> commit the checkpoint -> acknowledge
    COMMIT_FIRST    open -> acknowledge -> commit the checkpoint, with the updates in it -> acknowledge

To open is to raise the epoch in the checkpoint. An older writer then fails its next commit. To acknowledge is to send
the progress of the last committed transaction; COMMIT_FIRST sends that transaction's updates before it. So the first
act after opening repeats, byte for byte, what may have got lost with the writer before.

The checkpoint is one row, changed by compare-and-swap. Before the first transaction it stands for an empty one at time
0. So a *bootstrap* progress `[0,1)` goes out before any update.

What is published are the live references of a made-up store. They change while a writer is dead. So what is sent after
a failed transaction, at the same time, is not what the failed one sent.

*Crash*: between any two steps, a writer is dropped. A *zombie* is not dropped: it goes on beside its successor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import count
from random import Random

from recovery.feed.messages import Message, Progress, Update, Updates

OBJECTS = ("a", "b", "c", "d")
LIVES_MAX, STEPS_MAX = 6, 14
"""A schedule has at most so many writers, one after another. Each but the last dies after at most so many steps."""
MESSAGE_UPDATES_MAX = 2

Reference = tuple[str, str]
"""An object and its blob."""


class CommitOrder(Enum):
    PUBLISHED = "published"
    COMMIT_FIRST = "commit-first"


@dataclass(frozen=True, slots=True)
class ModelCheckpoint:
    """`time`: that of the last committed transaction. `lower`: where its progress begins. `updates`: its content."""

    epoch: int = 0
    seq: int = 0
    time: int = 0
    lower: int = 0
    updates: tuple[Update, ...] = ()

    @property
    def progress(self) -> Progress:
        counts = ((self.time, len(self.updates)),) if self.updates else ()
        return Progress((self.lower,), (self.time + 1,), counts)


@dataclass(slots=True)
class CheckpointRow:
    """The row of the checkpoint."""

    checkpoint: ModelCheckpoint = ModelCheckpoint()

    def swap(self, known: ModelCheckpoint, new: ModelCheckpoint) -> bool:
        """Writes the new checkpoint if the row still has the known one. Says whether it did."""
        if (self.checkpoint.epoch, self.checkpoint.seq) != (known.epoch, known.seq):
            return False
        self.checkpoint = new
        return True


@dataclass(slots=True)
class ScheduleHistory:
    """What happened in a schedule.

    `messages`: what was sent, in order. `committed`: the content of each committed transaction, by its time.
    `acknowledged`: after how many messages a writer was told that the transaction of this time is out.
    """

    messages: list[Message] = field(default_factory=list)
    committed: dict[int, tuple[Update, ...]] = field(default_factory=dict)
    acknowledged: list[tuple[int, int]] = field(default_factory=list)

    def view(self, frontier: int) -> Counter[Reference]:
        """Returns the references that the transactions before this time leave, with their multiplicities."""
        view: Counter[Reference] = Counter()
        for time, updates in self.committed.items():
            if time < frontier:
                for update in updates:
                    view[reference(update.data)] += update.diff
        return Counter({each: number for each, number in view.items() if number})

    @property
    def end(self) -> int:
        """The frontier after the last committed transaction."""
        return max(self.committed, default=0) + 1


@dataclass(slots=True)
class ModelWriter:
    """One life of a writer. `steps` ends when another writer has fenced it."""

    order: CommitOrder
    row: CheckpointRow
    live: dict[str, str]
    history: ScheduleHistory
    bootstrap: bool = True

    def steps(self) -> Iterator[bool]:
        """Works, and yields after each effect, so that it can be dropped there. Yields True if nothing is to do."""
        known = self.row.checkpoint
        mine = replace(known, epoch=known.epoch + 1)
        if not self.row.swap(known, mine):
            return
        yield False
        yield from self._acknowledge(mine)
        while True:
            if not (updates := self._difference()):
                yield True
                continue
            time = mine.time + 1
            intent = tuple(Update({"object": name, "blob": blob}, time, diff) for (name, blob), diff in updates)
            if self.order is CommitOrder.PUBLISHED:
                yield from self._send(intent)
            committed = replace(mine, seq=mine.seq + 1, time=time, lower=mine.time + 1, updates=intent)
            if not self.row.swap(mine, committed):
                return
            self.history.committed[time] = intent
            mine = committed
            yield False
            yield from self._acknowledge(mine)

    def _acknowledge(self, mine: ModelCheckpoint) -> Iterator[bool]:
        if not self.bootstrap and mine.time == 0:
            return
        if self.order is CommitOrder.COMMIT_FIRST:
            yield from self._send(mine.updates)
        self.history.messages.append(mine.progress)
        self.history.acknowledged.append((len(self.history.messages), mine.time))
        yield False

    def _send(self, updates: tuple[Update, ...]) -> Iterator[bool]:
        for begin in range(0, len(updates), MESSAGE_UPDATES_MAX):
            self.history.messages.append(Updates(updates[begin : begin + MESSAGE_UPDATES_MAX]))
            yield False

    def _difference(self) -> list[tuple[Reference, int]]:
        """Returns what must be published so that the view becomes what is live."""
        published = self.history.view(self.history.end)
        wanted = Counter(self.live.items())
        return [(each, wanted[each] - published[each]) for each in sorted(wanted | published) if wanted[each] != published[each]]


def run(seed: int, order: CommitOrder, *, bootstrap: bool = True, zombies: bool = False) -> ScheduleHistory:
    """Returns the history of the schedule that the seed chooses. Its last writer publishes everything.

    `bootstrap`: a progress goes out before any update. `zombies`: some writers that should be dead go on.
    """
    random = Random(f"{seed}/feed")
    history, row, live, names = ScheduleHistory(), CheckpointRow(), dict[str, str](), count(1)
    undead: list[Iterator[bool]] = []
    for _ in range(random.randint(1, LIVES_MAX)):
        steps = ModelWriter(order, row, live, history, bootstrap).steps()
        _change(live, names, random)
        for _ in range(random.randint(1, STEPS_MAX)):
            next(steps, None)
            if random.random() < 0.2:
                _change(live, names, random)
            _stagger(undead, random)
        if zombies and random.random() < 0.5:
            undead.append(steps)
        _change(live, names, random)
    steps = ModelWriter(order, row, live, history, bootstrap).steps()
    while not next(steps):
        _stagger(undead, random)
    return history


def reference(data: object) -> Reference:
    """Returns the reference that an update is about."""
    assert isinstance(data, dict)
    return data["object"], data["blob"]


def _change(live: dict[str, str], names: Iterator[int], random: Random) -> None:
    """Gives one to three objects another blob, or takes them away. A deletion of what is not there is none."""
    for name in random.sample(OBJECTS, random.randint(1, 3)):
        if name in live and random.random() < 0.4:
            del live[name]
        else:
            live[name] = f"{name}/{next(names)}"


def _stagger(undead: list[Iterator[bool]], random: Random) -> None:
    """Each zombie goes a step further, or not."""
    for steps in undead:
        if random.random() < 0.5:
            next(steps, None)
