"""What readers make of the schedules of `transactions.py`, as a table.

Every history goes through each channel to each reader:

    ordered     every message once, in the order in which it was sent
    mangled     messages are cut in pieces, repeated and reordered
    zombie      as ordered; but some writers that should be dead go on sending

    CDC v2      trusts progress alone, as the reference reader does: `reference.py`
    strict      the same, but it refuses what contradicts itself: `CdcReader()`
    roll-back   discards the updates after a progress that it gets a second time: `RollbackReader()`

Whatever a reader delivers is compared with the committed transactions before its frontier. It has *leaked* if its view
was another one, *refused* if it raised an error before that, and it is *stuck* if it did not reach the end although
everything was sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from random import Random
from typing import Protocol

from emulators.feed.reference import ReferenceReader
from emulators.feed.transactions import CommitOrder, Reference, ScheduleHistory, reference, run
from recovery.feed.batch import FeedBatch
from recovery.feed.errors import FeedError
from recovery.feed.messages import Message, Updates
from recovery.feed.reader import CdcReader
from recovery.feed.rollback import RollbackReader

BEGIN, END = "<!-- failed transactions -->", "<!-- end of failed transactions -->"
COPIES_MAX = 3
REACHES = (2.0, 8.0, 1000.0)
"""By how many places a mangled channel may delay a message. The last one is longer than any history."""


class TableReader(Protocol):
    def feed(self, message: Message) -> FeedBatch | None: ...


class TableVerdict(Enum):
    RIGHT = "right"
    LEAKED = "leaked"
    REFUSED = "refused"
    STUCK = "stuck"


READERS: dict[str, Callable[[], TableReader]] = {
    "CDC v2": ReferenceReader, "strict": CdcReader, "roll-back": RollbackReader,
}
CHANNELS = ("ordered", "mangled", "zombie")

Cell = tuple[CommitOrder, str, str]
"""Order, channel and reader."""
Table = dict[Cell, Counter[TableVerdict]]


def table(schedules: int) -> Table:
    """Runs the schedules of so many seeds, from 1 on, and counts the verdicts."""
    cells: Table = {(order, channel, reader): Counter() for order in CommitOrder for channel in CHANNELS for reader in READERS}
    for seed in range(1, schedules + 1):
        for order in CommitOrder:
            for channel in CHANNELS:
                history, messages = sent(seed, order, channel)
                for name, reader in READERS.items():
                    cells[order, channel, name][judged(history, messages, reader())] += 1
    return cells


def sent(seed: int, order: CommitOrder, channel: str) -> tuple[ScheduleHistory, Sequence[Message]]:
    """Returns what happened, and the messages as the channel delivers them."""
    history = run(seed, order, zombies=channel == "zombie")
    return history, list(mangled(history.messages, Random(f"{seed}/channel"))) if channel == "mangled" else history.messages


def mangled(messages: Sequence[Message], random: Random) -> Iterator[Message]:
    """Yields the messages as a channel delivers them that cuts, repeats and reorders them, and loses none."""
    reach = random.choice(REACHES)
    delayed = [
        (place + random.random() * reach, number, piece)
        for place, message in enumerate(messages) for number in range(random.randint(1, COPIES_MAX)) for piece in _pieces(message, random)
    ]  # fmt: skip
    yield from (message for _, _, message in sorted(delayed, key=lambda each: each[:2]))


def judged(history: ScheduleHistory, messages: Sequence[Message], reader: TableReader) -> TableVerdict:
    """Returns what becomes of a reader that is given these messages."""
    view: Counter[Reference] = Counter()
    frontier: tuple[int, ...] = (0,)
    for message in messages:
        try:
            batch = reader.feed(message)
        except FeedError:
            return TableVerdict.REFUSED
        if batch is None:
            continue
        for data, _, diff in batch.updates:
            view[reference(data)] += diff
        frontier = batch.frontier
        if {each: number for each, number in view.items() if number} != history.view(frontier[0]):
            return TableVerdict.LEAKED
    return TableVerdict.RIGHT if frontier == (history.end,) else TableVerdict.STUCK


def wrong(cells: Table) -> list[str]:
    """Returns what differs from docs/feed.md: a cell that must be all right and is not, or one that must not be and is.

    The published order leaks a failed transaction into a CDC v2 reader's view. The order commit-first gives such a
    reader the right view through every channel. A roll-back reader needs a channel that keeps the order.
    """
    found = []
    for (order, channel, reader), verdicts in cells.items():
        tolerates = channel == "ordered" if reader == "roll-back" else order is CommitOrder.COMMIT_FIRST
        where = f"{order.value}, {channel} channel, {reader} reader"
        if tolerates and set(verdicts) != {TableVerdict.RIGHT}:
            found.append(f"{where}: {_cell(verdicts)}, but none may be")
        if not tolerates and not verdicts.total() > verdicts[TableVerdict.RIGHT]:
            found.append(f"{where}: nothing went wrong, but something must")
        if not tolerates and reader == "CDC v2" and not verdicts[TableVerdict.LEAKED]:
            found.append(f"{where}: nothing leaked, but something must")
    return found


def lines(cells: Table) -> list[str]:
    """Returns the table in Markdown. A cell says of how many schedules which verdict is true."""
    head = ["order of the writer", "channel", *READERS]
    rows = [
        [order.value, channel, *(_cell(cells[order, channel, reader]) for reader in READERS)]
        for order in CommitOrder
        for channel in CHANNELS
    ]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def put_into(page: Path, cells: Table) -> None:
    """Writes the table between the page's marks. Raises `ValueError` if the page has no marks."""
    before, begin, rest = page.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} must hold '{BEGIN}', and after it '{END}'")
    page.write_text("\n".join([f"{before}{BEGIN}", *lines(cells), f"{END}{after}"]), "utf-8")


def recorded(page: Path) -> list[str]:
    """Returns the lines of the table that the page has."""
    return page.read_text("utf-8").partition(BEGIN)[2].partition(END)[0].strip().splitlines()


def _cell(verdicts: Counter[TableVerdict]) -> str:
    wrong = [f"{verdicts[each]:,} {each.value}" for each in TableVerdict if each is not TableVerdict.RIGHT and verdicts[each]]
    return ", ".join(wrong) or "all right"


def _pieces(message: Message, random: Random) -> list[Message]:
    if not isinstance(message, Updates) or len(message.updates) < 2 or random.random() < 0.5:
        return [message]
    at = random.randint(1, len(message.updates) - 1)
    return [Updates(message.updates[:at]), Updates(message.updates[at:])]
