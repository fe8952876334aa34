"""CdcReader beside a simple model, whatever the channel does; and what it refuses."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulators.feed.reference import ReferenceReader
from recovery.feed import CdcReader, FeedBatch, FeedError, Message, Progress, Rule, Update, Updates, Waiting
from recovery.feed.spelling import from_text, to_json
from tests.given.feeds import END, AnyReader, about, batches, cut, frontier_of, mangled, truth

READERS: dict[str, Callable[[], AnyReader]] = {
    "strict": CdcReader, "remembering": lambda: CdcReader(remember=True), "reference": ReferenceReader,
    "with a file": lambda: CdcReader(in_memory=3), "with a file alone": lambda: CdcReader(in_memory=0, remember=True),
}  # fmt: skip


def text(*lines: str) -> list[Message]:
    return [from_text(line) for line in lines]


# --- beside the model ------------------------------------------------------------------------------


def check_any_channel(random: Random, reader: AnyReader) -> None:
    """Two writers of the same feed cut it differently. A channel repeats, reorders and loses their messages."""
    updates = truth(random)
    ends = random.random() < 0.3
    sent = [*cut(updates, random, ends), *(cut(updates, random, ends) if random.random() < 0.5 else [])]
    loses = random.random() < 0.5
    received = mangled(sent, random, loses)
    got: list[tuple[object, int, int]] = []
    frontier = 0
    for number, message in enumerate(received, start=1):
        batch = reader.feed(message)
        expected = frontier_of(received[:number])
        assert (batch is not None) == (expected != frontier)
        if batch is not None:
            got += batch.updates
            assert [frontier <= time < expected for _, time, _ in batch.updates] == [True] * len(batch.updates)
        frontier = expected
        assert reader.frontier == (() if frontier == END else (frontier,))
        complete = [each for each in updates if each.time < frontier]
        assert len(got) == len(complete) and {Update(*each) for each in got} == set(complete)
        seen = {each for message in received[:number] if isinstance(message, Updates) for each in message.updates}
        assert not isinstance(reader, CdcReader) or reader.held.updates == sum(each.time >= frontier for each in seen)
    if not loses:
        assert frontier == (END if ends else 12)


def check_another_cut(random: Random, make: Callable[[], AnyReader]) -> None:
    """The same information, cut differently, adds up to the same."""
    updates = truth(random)
    one, other = (batches(make(), mangled(cut(updates, random, True), random, False)) for _ in range(2))
    assert sorted(repr(each) for batch in one for each in batch.updates) == sorted(repr(each) for batch in other for each in batch.updates)
    assert one[-1].frontier == other[-1].frontier == ()


def check_a_refusal_changes_nothing(random: Random, remember: bool) -> None:
    """Messages that break a rule come in between. The reader refuses them, and delivers as if they had not come."""
    updates = truth(random)
    received = mangled(cut(updates, random, False), random, False)
    reader, undisturbed = CdcReader(remember=remember), CdcReader(remember=remember)
    for number, message in enumerate(received):
        for broken in broken_by(updates, received[:number], undisturbed, remember):
            held = reader.held
            with pytest.raises(FeedError):
                reader.feed(broken)
            assert (reader.held, reader.frontier) == (held, undisturbed.frontier)
        assert reader.feed(message) == undisturbed.feed(message)
        assert (reader.held, reader.ignored, reader.waiting) == (undisturbed.held, undisturbed.ignored, undisturbed.waiting)
    assert reader.frontier == (12,)


def broken_by(updates: Sequence[Update], received: Sequence[Message], reader: CdcReader, remember: bool) -> Iterator[Message]:
    """What contradicts the messages that were received, each after something sound that must not be taken either."""
    oldest = 0 if remember else reader.frontier[0]
    seen = {each for message in received if isinstance(message, Updates) for each in message.updates if each.time >= oldest}
    told = [each for each in received if isinstance(each, Progress) and each.upper[0] > oldest]
    new = Update("new", 99, 1)
    yield Updates((new, Update("new", -1, 1)))
    yield Updates((new, Update("new", 99, 2)))
    yield Progress((12,), (11,), ())
    yield Progress((12,), (13,), ((12, 1), (13, 1)))
    yield Progress((12,), (13,), ((11, 1), (12, 1)))
    yield Progress((12,), (13,), ((12, -1),))
    yield Progress((12,), (13,), ((12, 1), (12, 1)))
    yield Progress((-1,), (13,), ())
    for each in islice(seen, 2):
        yield Updates((new, Update(each.data, each.time, each.diff + 5)))
        if each.time >= reader.frontier[0] or remember:
            fewer = sum(other.time == each.time for other in seen) - 1
            yield Progress((each.time,), (each.time + 1,), ((each.time, fewer),) if fewer else ())
    for progress in told[:2]:
        lower, upper = max(progress.lower[0], oldest), progress.upper[0]
        one_more = dict(about(updates, lower, upper).counts)
        one_more[upper - 1] = one_more.get(upper - 1, 0) + 1
        yield Progress((lower,), (upper,), tuple(sorted(one_more.items())))
        for time in dict(about(updates, lower, upper).counts):  # a count that is left out is the count 0
            yield Progress((lower,), (upper,), tuple(each for each in about(updates, lower, upper).counts if each[0] != time))
        there = sum(each.time == upper - 1 for each in updates)
        yield Updates((new, *(Update(f"more {number}", upper - 1, 1) for number in range(there + 1))))


@settings(max_examples=50)
@given(st.randoms(use_true_random=False), st.sampled_from(sorted(READERS)))
def test_a_reader_delivers_what_the_model_delivers_whatever_the_channel_does(random: Random, kind: str) -> None:
    check_any_channel(random, READERS[kind]())


@settings(max_examples=25)
@given(st.randoms(use_true_random=False), st.sampled_from(sorted(READERS)))
def test_the_same_information_cut_differently_gives_the_same_view(random: Random, kind: str) -> None:
    check_another_cut(random, READERS[kind])


@settings(max_examples=25)
@given(st.randoms(use_true_random=False), st.booleans())
def test_a_refused_message_changes_nothing(random: Random, remember: bool) -> None:
    check_a_refusal_changes_nothing(random, remember)


# --- what it refuses -------------------------------------------------------------------------------

REFUSED: dict[str, tuple[list[Message], Rule, str]] = {
    "a negative time": (text("update (a, time-1, +1)"), Rule.TIME, "update (a, time-1, +1) is at a negative time"),
    "a negative bound": (text("progress (time-1, 0)"), Rule.TIME, "progress (time-1, 0) has a negative bound"),
    "an end before the beginning": (
        text("progress (time2 to time1)"), Rule.INTERVAL, "progress (time2 to time1) ends before it begins",
    ),
    "an end of the feed that is no end": (
        text("progress (end to time1)"), Rule.INTERVAL, "progress (end to time1) ends before it begins",
    ),
    "a count outside": (
        text("progress (time0 to time2, time2: 1)"), Rule.INTERVAL,
        "progress (time0 to time2, time2: 1) has a count for time 2, which it is not about",
    ),
    "a negative count": (
        text("progress (time0, -1)"), Rule.INTERVAL, "progress (time0, -1) declares the negative count -1 for time 0",
    ),
    "two counts": (
        text("progress (time0 to time1, time0: 1, time0: 1)"), Rule.INTERVAL,
        "progress (time0 to time1, time0: 1, time0: 1) has two counts for time 0",
    ),
    "another diff": (
        text("update (a, time1, +1)", "update (a, time1, +2)"), Rule.DIFF,
        "update (a, time1, +2) contradicts update (a, time1, +1), which came before",
    ),
    "another diff in one message": (
        [Updates((Update("a", 1, 1), Update("a", 1, 2)))], Rule.DIFF,
        "update (a, time1, +2) contradicts update (a, time1, +1), which came before",
    ),
    "an update too many": (
        text("progress (time1, 1)", "update (a, time1, +1)", "update (b, time1, +1)"), Rule.COUNT,
        "update (b, time1, +1) is one too many: progress declares 1 at time 1, and 1 came before",
    ),
    "an update too many, in one message": (
        [*text("progress (time1, 1)"), Updates((Update("a", 1, 1), Update("b", 1, 1)))], Rule.COUNT,
        "update (b, time1, +1) is one too many: progress declares 1 at time 1, and 1 came before",
    ),
    "an update where there is none": (
        text("progress (time1 to end)", "update (a, time7, +1)"), Rule.COUNT,
        "update (a, time7, +1) is one too many: progress declares 0 at time 7, and 0 came before",
    ),
    "a count too small": (
        text("update (a, time1, +1)", "progress (time0 to time2)"), Rule.COUNT,
        "progress (time0 to time2) declares 0 at time 1, and 1 distinct updates came",
    ),
    "another count": (
        text("progress (time1, 1)", "progress (time0 to time3, time1: 2)"), Rule.PROGRESS,
        "progress (time0 to time3, time1: 2) declares 2 at time 1, and another one declared 1",
    ),
    "no count where there was one": (
        text("progress (time1, 1)", "progress (time0 to time3)"), Rule.PROGRESS,
        "progress (time0 to time3) declares 0 at time 1, and another one declared 1",
    ),
    "a count where there was none": (
        text("progress (time1 to time3)", "progress (time2, 1)"), Rule.PROGRESS,
        "progress (time2, 1) declares 1 at time 2, and another one declared 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_the_refusal_names_the_message(name: str) -> None:
    messages, rule, sentence = REFUSED[name]
    reader = CdcReader()
    batches(reader, messages[:-1])
    with pytest.raises(FeedError) as raised:
        reader.feed(messages[-1])
    assert (raised.value.rule, raised.value.why, raised.value.where) == (rule, sentence, "")
    batches(ReferenceReader(), messages)


def test_a_message_may_be_the_decoded_object() -> None:
    reader = CdcReader()
    assert reader.feed({"array": [{"data": {"b": 1, "a": 2}, "time": 0, "diff": 1}]}) is None
    batch = reader.feed({"com.materialize.cdc.progress": {"lower": [0], "upper": [1], "counts": [{"time": 0, "count": 1}]}})
    assert batch == FeedBatch([({"b": 1, "a": 2}, 0, 1)], (1,))
    with pytest.raises(FeedError, match="no kind of message"):
        reader.feed({"other": []})


# --- what it holds ---------------------------------------------------------------------------------


def test_what_is_delivered_is_forgotten() -> None:
    """A thousand more times take no memory. One that is kept takes a hundred bytes at least."""
    reader = CdcReader()
    taken = []
    tracemalloc.start()
    try:
        for time in range(2000):
            batches(reader, text(f"update (a, time{time}, +1)", f"progress (time{time}, 1)"))
            if time in (999, 1999):
                gc.collect()
                taken.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert taken[1] - taken[0] < 20_000
    assert reader.frontier == (2000,) and (reader.held.updates, reader.held.times, reader.held.bytes) == (0, 0, 0)


def test_what_comes_again_after_it_was_delivered_is_late() -> None:
    reader = CdcReader()
    batches(reader, text("update (a, time3, +1)", "progress (time0 to time4, time3: 1)"))
    assert reader.feed(Updates((Update("a", 3, 1), Update("late", 3, 1)))) is None
    assert (reader.held.updates, reader.ignored, reader.late) == (0, 2, 2)


def test_what_is_held_is_told_and_so_is_what_is_waited_for() -> None:
    reader = CdcReader()
    assert reader.waiting == Waiting(0, None, 0)
    batches(reader, text("update (a, time1, +1)", "update (a, time1, +1)", "update (b, time5, +1)", "progress (time0 to time3, time1: 2)"))
    assert (reader.held.updates, reader.held.times, reader.ignored, reader.late) == (2, 2, 1, 0)
    assert reader.waiting == Waiting(1, 2, 1)
    batches(reader, text("update (c, time1, +1)"))
    assert (reader.frontier, reader.waiting) == ((3,), Waiting(3, None, 0))
    batches(reader, text("progress (time3 to end, time5: 1)"))
    ended: object = (reader.frontier, reader.waiting, reader.held.updates)
    assert ended == ((), None, 0)


@pytest.mark.parametrize("per_time", [1, 100])
@pytest.mark.parametrize("record", [lambda n: f"record{n}", lambda n: {"object": f"object/{n:08}", "blob": f"object/{n:08}/{n:032}"}])
def test_the_estimate_of_its_memory_is_near_to_what_it_takes(record: Callable[[int], object], per_time: int) -> None:
    tracemalloc.start()
    try:
        reader = CdcReader()
        for n in range(2000):
            reader.feed(to_json(Updates((Update(record(n), n // per_time, 1),))))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.7 < reader.held.bytes / taken < 1.4


def test_the_largest_times_are_times_like_others() -> None:
    last = END - 1
    reader = CdcReader()
    messages: list[Message] = [Progress((0,), (last,), ()), Updates((Update("a", last, 1),))]
    batches(reader, messages)
    assert reader.frontier == (last,)
    assert reader.feed(Progress((last,), (), ((last, 1),))) == FeedBatch([("a", last, 1)], ())
    assert reader.feed(Progress((), (), ())) is None
