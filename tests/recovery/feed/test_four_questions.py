"""The four questions of the published discussion, as docs/feed.md answers them.

Does a time have to be a clock? Can several shards share a stream? What does an acknowledgement promise? What does a
failed transaction leave behind?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from emulators.feed.table import READERS, Table, TableVerdict, judged, lines, mangled, recorded, table, wrong
from emulators.feed.transactions import CommitOrder, run
from recovery.feed import CdcReader, FeedBatch, FeedError, Message, Progress, Rule, Update, Updates
from tests.given.repository import ROOT

PAGE = ROOT / "docs/feed.md"
SCHEDULES = 200
RECORDED = 3000

View = Counter[str]


def read(messages: Sequence[Message], reader: CdcReader | None = None) -> tuple[list[tuple[int, View]], CdcReader]:
    """Returns the views at the frontiers that a strict reader reaches, each with its frontier; and the reader."""
    reader, view, views = reader or CdcReader(), View(), list[tuple[int, View]]()
    for message in messages:
        batch = reader.feed(message)
        if batch is not None:
            view.update(_diffs(batch))
            views.append((batch.frontier[0], +view))
    return views, reader


def _diffs(batch: FeedBatch) -> View:
    diffs = View()
    for data, _, diff in batch.updates:
        diffs[str(data)] += diff
    return diffs


# --- does a time have to be a clock? -------------------------------------------------------------


TIMES: dict[str, Callable[[int], int]] = {
    "milliseconds since 1970": lambda number: number and 1_795_000_000_000 + 977 * number * number,
    "offsets of a log": lambda number: 3 * number,
    "numbers with holes": lambda number: 2**number - 1,
}


def at_other_times(messages: Sequence[Message], time: Callable[[int], int]) -> list[Message]:
    def moved(message: Message) -> Message:
        if isinstance(message, Updates):
            return Updates(tuple(Update(each.data, time(each.time), each.diff) for each in message.updates))
        lower, upper = (tuple(time(each) for each in bound) for bound in (message.lower, message.upper))
        return Progress(lower, upper, tuple((time(at), count) for at, count in message.counts))

    return [moved(message) for message in messages]


@pytest.mark.parametrize("name", TIMES)
def test_any_numbers_that_increase_give_the_same_views(name: str) -> None:
    time = TIMES[name]
    for seed in range(1, 11):
        messages = list(mangled(run(seed, CommitOrder.COMMIT_FIRST).messages, Random(seed)))
        views, _ = read(messages)
        assert read(at_other_times(messages, time))[0] == [(time(frontier), view) for frontier, view in views]


def test_a_clock_that_stands_still_contradicts_itself_unless_the_writer_takes_the_next_number() -> None:
    moments = [1000, 1000, 990, 1010]
    with pytest.raises(FeedError) as refused:
        read(_a_transaction_at_each(moments))
    assert refused.value.rule is Rule.INTERVAL
    increasing, last = [], 0
    for moment in moments:
        last = max(moment, last + 1)
        increasing.append(last)
    views, _ = read(_a_transaction_at_each(increasing))
    assert increasing == [1000, 1001, 1002, 1010]
    assert [frontier for frontier, _ in views] == [1001, 1002, 1003, 1011]


def _a_transaction_at_each(times: Sequence[int]) -> list[Message]:
    messages: list[Message] = []
    lower = 0
    for number, time in enumerate(times):
        messages += [Updates((Update(f"r{number}", time, 1),)), Progress((lower,), (time + 1,), ((time, 1),))]
        lower = time + 1
    return messages


# --- can several shards share a stream? ------------------------------------------------------------


class Shards:
    """Some shards that share a stream. Shard k of n has the times k, k + n, k + 2n and so on, so none is used twice.

    A shard sends its updates itself. It reports to one place how far it is, and the count of each of its times. That
    place alone declares progress: up to the least time that a shard may still use.
    """

    def __init__(self, number: int) -> None:
        self.next = list(range(number))
        self.messages: list[Message] = []
        self._declared = 0
        self._counts: dict[int, int] = {}

    def commits(self, shard: int, *records: str) -> None:
        """A transaction of the shard. Without a record, it says only that nothing comes at its next time."""
        time = self.next[shard]
        self.next[shard] += len(self.next)
        if records:
            self._counts[time] = len(records)
            self.messages.append(Updates(tuple(Update(each, time, 1) for each in records)))

    def declares(self) -> None:
        upper = min(self.next)
        if upper > self._declared:
            counts = sorted((time, count) for time, count in self._counts.items() if self._declared <= time < upper)
            self.messages.append(Progress((self._declared,), (upper,), tuple(counts)))
            self._declared = upper


def test_shards_share_a_stream_if_one_place_declares_for_all() -> None:
    shards, random = Shards(3), Random(5)
    for number in range(60):
        shards.commits(random.randrange(3), *(f"r{number}.{each}" for each in range(random.randint(0, 3))))
        if number % 4 == 0:
            shards.declares()
    while len({time // 3 for time in shards.next}) > 1:
        shards.commits(shards.next.index(min(shards.next)))
    shards.declares()
    views, reader = read(shards.messages)
    assert views[-1][0] == min(shards.next) and reader.held.updates == 0
    for seed in range(5):
        assert read(list(mangled(shards.messages, Random(seed))))[0][-1] == views[-1]


def test_a_late_shard_delays_the_frontier_of_all_and_falsifies_nothing() -> None:
    shards = Shards(2)
    for number in range(20):
        shards.commits(0, f"quick{number}")
    shards.commits(1, "late0")
    shards.declares()
    views, reader = read(shards.messages)
    assert views == [(3, View(["quick0", "quick1", "late0"]))]
    assert reader.held.updates == 18  # what the quick shard sent since then is held in memory
    for _ in range(19):
        shards.commits(1)  # a shard that has nothing must say so
    shards.declares()
    views, reader = read(shards.messages)
    assert views[-1] == (40, View([f"quick{number}" for number in range(20)] + ["late0"])) and reader.held.updates == 0


def test_two_shards_that_each_declare_for_themselves_contradict_each_other() -> None:
    """A progress is about all updates of the stream in its interval, not only about those of its sender."""
    quick: list[Message] = [Updates((Update("quick", 0, 1),)), Progress((0,), (2,), ((0, 1),))]
    late: list[Message] = [Updates((Update("late", 1, 1),)), Progress((0,), (2,), ((1, 1),))]
    with pytest.raises(FeedError) as refused:
        read([late[0], *quick, late[1]])
    assert refused.value.rule is Rule.COUNT
    assert read([*quick, *late])[0] == [(2, View(["quick"]))]  # it came too late: nobody looks at it, and it is missing
    with pytest.raises(FeedError) as refused:
        read([*quick, *late], CdcReader(remember=True))
    assert refused.value.rule is Rule.COUNT


# --- what does an acknowledgement promise? -----------------------------------------------------------


def test_after_an_acknowledgement_all_up_to_its_time_is_in_the_channel_in_any_order() -> None:
    """Not that anybody has read it: a reader that gets what was sent by then reaches the time, whatever comes after."""
    for seed in range(1, 31):
        history = run(seed, CommitOrder.COMMIT_FIRST)
        for sent, time in history.acknowledged:
            reached = read(list(mangled(history.messages[:sent], Random(seed))))[0]
            assert reached[-1][0] > time and reached[-1][1] == _names(history.view(reached[-1][0]))


def test_before_the_acknowledgement_a_transaction_may_be_out_in_part_and_is_seen_not_at_all() -> None:
    in_part = 0
    for seed in range(1, 31):
        history = run(seed, CommitOrder.COMMIT_FIRST)
        for sent, time in history.acknowledged:
            before = read(history.messages[: sent - 1])[0]
            first = (sent, time) == next(each for each in history.acknowledged if each[1] == time)
            assert not first or max((frontier for frontier, _ in before), default=0) <= time
            in_part += first and any(isinstance(each, Updates) and each.updates[0].time == time for each in history.messages[: sent - 1])
    assert in_part > 30


def test_a_commit_promises_that_its_updates_appear_even_if_the_writer_dies_before_it_sends_them() -> None:
    for seed in range(1, 31):
        history = run(seed, CommitOrder.COMMIT_FIRST)
        sent = {update for message in history.messages if isinstance(message, Updates) for update in message.updates}
        assert sent == {update for updates in history.committed.values() for update in updates}


def _names(view: Counter[Any]) -> View:
    return View({str({"object": name, "blob": blob}): count for (name, blob), count in view.items()})


# --- what does a failed transaction leave behind? ----------------------------------------------------


@pytest.fixture(scope="module")
def few() -> Table:
    return table(SCHEDULES)


def test_the_published_order_leaks_a_failed_transaction_and_commit_first_does_not(few: Table) -> None:
    assert wrong(few) == []
    assert set(few[CommitOrder.COMMIT_FIRST, "mangled", "CDC v2"]) == {TableVerdict.RIGHT}
    assert few[CommitOrder.PUBLISHED, "ordered", "CDC v2"][TableVerdict.LEAKED] > SCHEDULES / 2
    assert set(few[CommitOrder.PUBLISHED, "ordered", "roll-back"]) == {TableVerdict.RIGHT}


def test_the_shortest_story_of_a_leak() -> None:
    """The writer dies after it has sent b. Its successor sends c at the same time, and declares one update."""
    failed, committed = (Update({"object": "o", "blob": blob}, 1, 1) for blob in ("b", "c"))
    messages: list[Message] = [
        Progress((0,), (1,), ()), Updates((failed,)), Progress((0,), (1,), ()), Updates((committed,)), Progress((1,), (2,), ((1, 1),)),
    ]  # fmt: skip
    history = run(1, CommitOrder.PUBLISHED)
    history.committed = {1: (committed,)}
    assert {name: judged(history, messages, reader()) for name, reader in READERS.items()} == {
        "CDC v2": TableVerdict.LEAKED, "strict": TableVerdict.REFUSED, "roll-back": TableVerdict.RIGHT,
    }


def test_the_table_of_the_page_has_the_same_zeros(few: Table) -> None:
    """Its numbers are those of 3,000 schedules; `make sim` compares them."""
    head, *rows = lines(few)
    shown_head, *shown = recorded(PAGE)
    assert shown_head == head and f"{RECORDED:,} schedules" in PAGE.read_text("utf-8")
    for row, there in zip(rows, shown, strict=True):
        cells, cells_there = ([cell.strip() for cell in line.split("|")[1:-1]] for line in (row, there))
        assert cells[:2] == cells_there[:2]
        for cell, cell_there in zip(cells[2:], cells_there[2:], strict=True):
            assert (cell == "all right") == (cell_there == "all right"), there


@pytest.mark.night
def test_the_table_of_the_page_is_that_of_3000_schedules() -> None:
    assert recorded(PAGE) == lines(table(RECORDED))
