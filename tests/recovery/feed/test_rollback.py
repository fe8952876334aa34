"""RollbackReader: what the writer of the published sketch sends, and what an ordered channel cannot have sent."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulators.feed.reference import ReferenceReader
from recovery.feed import CdcReader, FeedBatch, FeedError, Message, Progress, RollbackReader, Rule, Update, Updates
from recovery.feed.spelling import from_text
from tests.given.feeds import batches, truth

FAILED_TRANSACTION = [
    "update (a, time0, +1)", "progress (time0, 1)",
    "update (b, time1, +1)", "update (c, time1, +1)",   # and here the writer dies
    "progress (time0, 1)", "update (b, time1, +1)", "progress (time1, 1)",
]  # fmt: skip


def text(*lines: str) -> list[Message]:
    return [from_text(line) for line in lines]


def delivered(reader: RollbackReader, messages: list[Message]) -> list[FeedBatch]:
    return [batch for each in messages if (batch := reader.feed(each)) is not None]


def test_a_repeated_progress_discards_the_updates_since() -> None:
    reader = RollbackReader()
    assert delivered(reader, text(*FAILED_TRANSACTION)) == [FeedBatch([("a", 0, 1)], (1,)), FeedBatch([("b", 1, 1)], (2,))]
    assert (reader.discarded, reader.held.updates, reader.frontier) == (2, 0, (2,))


def test_a_reader_of_cdc_v2_cannot_tell_a_failed_transaction_from_a_good_one() -> None:
    assert batches(ReferenceReader(), text(*FAILED_TRANSACTION))[-1].updates == [("b", 1, 1), ("c", 1, 1)]
    with pytest.raises(FeedError, match="declares 1 at time 1, and 2 distinct updates came"):
        batches(CdcReader(), text(*FAILED_TRANSACTION))


def a_writers_life(random: Random) -> tuple[list[Message], list[Update]]:
    """The messages of the sketch's writer on an ordered channel, and what it committed. It dies at any step."""
    updates = truth(random)
    last: Message = Progress((0,), (0,), ())
    messages: list[Message] = [last]
    for lower, upper in pairwise([0, *sorted({each.time + 1 for each in updates}), 20]):
        now = [each for each in updates if lower <= each.time < upper]
        for _ in range(random.randint(0, 2)):  # dies before its commit, and takes up other changes afterwards
            messages += [Updates((each,)) for each in random.sample(now, random.randint(0, len(now)))]
            messages += [Updates((Update("failed", upper - 1, 7),)), last]
        messages += [Updates((each,)) for each in now]
        messages += [Updates(tuple(now))] * random.randint(0, 1)  # repeated by a writer that commits first
        last = Progress((lower,), (upper,), ((upper - 1, len(now)),) if now else ())
        messages.append(last)
        if random.random() < 0.3:  # and repeats all of it when it begins again
            messages += [Updates(tuple(now)), last]
    return messages, updates


@settings(max_examples=40)
@given(st.randoms(use_true_random=False))
def test_a_writer_that_dies_anywhere_leaves_what_it_committed(random: Random) -> None:
    messages, updates = a_writers_life(random)
    reader = RollbackReader()
    got = [Update(*each) for batch in delivered(reader, messages) for each in batch.updates]
    assert len(got) == len(updates) and set(got) == set(updates)
    assert reader.frontier == (20,)


REFUSED: dict[str, tuple[list[Message], Rule, str]] = {
    "goes back": (
        text("progress (time0, 0)", "progress (time1, 0)", "progress (time0, 0)"), Rule.ORDER,
        "progress (time0, 0) goes back: an earlier one went up to time 2",
    ),
    "differs": (
        text("update (a, time0, +1)", "progress (time0, 1)", "progress (time0, 2)"), Rule.PROGRESS,
        "progress (time0, 2) is at the time of the last one, and differs from it",
    ),
    "too few": (
        text("update (a, time0, +1)", "progress (time0, 2)"), Rule.COUNT,
        "progress (time0, 2) declares 2 updates, and 1 came since the last one",
    ),
    "too late": (
        text("progress (time0, 0)", "update (a, time0, +1)", "progress (time1, 1)"), Rule.ORDER,
        "progress (time1, 1) comes after update (a, time0, +1), which it is not about",
    ),
    "too early": (
        text("update (a, time1, +1)", "progress (time0, 1)"), Rule.ORDER,
        "progress (time0, 1) comes after update (a, time1, +1), which it is not about",
    ),
    "negative": (text("update (a, time-1, +1)"), Rule.TIME, "update (a, time-1, +1) is at a negative time"),
    "ends before it begins": (
        text("progress (time3 to time2)"), Rule.INTERVAL, "progress (time3 to time2) ends before it begins",
    ),
    "negative lower bound": (text("progress (time-1 to time2)"), Rule.TIME, "progress (time-1 to time2) has a negative bound"),
    "negative count": (
        text("update (a, time0, +1)", "progress (time0 to time2, time0: 2, time1: -1)"), Rule.INTERVAL,
        "progress (time0 to time2, time0: 2, time1: -1) declares the negative count -1 for time 1",
    ),
    "count outside": (
        text("update (a, time0, +1)", "progress (time0 to time2, time7: 1)"), Rule.INTERVAL,
        "progress (time0 to time2, time7: 1) has a count for time 7, which it is not about",
    ),
    "negative bound": (text("progress (time-2, 0)"), Rule.TIME, "progress (time-2, 0) has a negative bound"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_an_ordered_channel_cannot_have_sent_is_refused_and_changes_nothing(name: str) -> None:
    messages, rule, sentence = REFUSED[name]
    reader = RollbackReader()
    delivered(reader, messages[:-1])
    before = (reader.held, reader.frontier, reader.discarded)
    with pytest.raises(FeedError) as raised:
        reader.feed(messages[-1])
    assert (raised.value.rule, raised.value.why) == (rule, sentence)
    assert (reader.held, reader.frontier, reader.discarded) == before


def test_a_channel_that_repeats_progress_needs_a_reader_of_cdc_v2() -> None:
    repeated = text("progress (time0, 0)", "update (a, time1, +1)", "progress (time0, 0)", "progress (time1, 1)")
    with pytest.raises(FeedError, match="declares 1 updates, and 0 came since the last one"):
        delivered(RollbackReader(), repeated)
    assert batches(CdcReader(), repeated)[-1].updates == [("a", 1, 1)]
