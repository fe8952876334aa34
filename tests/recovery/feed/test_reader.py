"""CdcReader beside a simple model, whatever the channel does; what it refuses; and each of its rules taken away."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.base.errors import InvalidRequestError
from recovery.feed import CdcReader, FeedBatch, FeedError, Message, Progress, Rule, Update, Updates, Waiting
from recovery.feed.messages import Key
from recovery.feed.reader import StrictRules, batches
from recovery.feed.reference import ReferenceRules
from recovery.feed.spelling import from_text, to_json
from recovery.feed.times import Cover
from tests.given.feeds import END, about, cut, frontier_of, mangled, truth

READERS: dict[str, Callable[[], CdcReader]] = {
    "strict": CdcReader, "remembering": lambda: CdcReader(remember=True), "lenient": lambda: CdcReader(lenient=True),
    "with a file": lambda: CdcReader(in_memory=3), "with a file alone": lambda: CdcReader(in_memory=0, remember=True),
}  # fmt: skip


def text(*lines: str) -> list[Message]:
    return [from_text(line) for line in lines]


# --- beside the model ------------------------------------------------------------------------------


def check_any_channel(random: Random, reader: CdcReader) -> None:
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
        assert reader.held.updates == sum(each.time >= frontier for each in seen)
    if not loses:
        assert frontier == (END if ends else 12)


def check_another_cut(random: Random, make: Callable[[], CdcReader]) -> None:
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
    batches(CdcReader(lenient=True), messages)


def test_a_message_may_be_the_decoded_object() -> None:
    reader = CdcReader()
    assert reader.feed({"array": [{"data": {"b": 1, "a": 2}, "time": 0, "diff": 1}]}) is None
    batch = reader.feed({"com.materialize.cdc.progress": {"lower": [0], "upper": [1], "counts": [{"time": 0, "count": 1}]}})
    assert batch == FeedBatch([({"b": 1, "a": 2}, 0, 1)], (1,))
    with pytest.raises(FeedError, match="no kind of message"):
        reader.feed({"other": []})


def test_lenient_and_remember_exclude_each_other() -> None:
    with pytest.raises(InvalidRequestError, match="choose one of the two"):
        CdcReader(lenient=True, remember=True)


# --- what it holds ---------------------------------------------------------------------------------


def test_what_is_delivered_is_forgotten() -> None:
    reader = CdcReader()
    for time in range(50):
        batches(reader, text(f"update (a, time{time}, +1)", f"progress (time{time}, 1)"))
    rules = reader._rules
    assert isinstance(rules, StrictRules)
    assert [len(each) for each in (rules._held, rules._declared, rules._declared_times, rules._cover)] == [0] * 4
    assert rules._cover.end == 50
    assert (reader.held.updates, reader.held.times, reader.held.bytes) == (0, 0, 0)
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


def test_a_lenient_reader_forgets_what_is_delivered_too() -> None:
    reader = CdcReader(lenient=True)
    for time in range(50):
        over = [] if time % 2 else text(f"update (b, time{time}, +1)")
        batches(reader, [*over, *text(f"update (a, time{time}, +1)", f"progress (time{time}, 1)")])
    rules = reader._rules
    assert isinstance(rules, ReferenceRules) and reader.frontier == (50,)
    assert [len(each) for each in (rules._held, rules._held_times, rules._outstanding, rules._positive, rules._waiting)] == [0] * 5


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


# --- each rule is needed ---------------------------------------------------------------------------


def everything(seeds: int = 40) -> None:
    """What the tests above check, for a few feeds that are always the same."""
    for name in sorted(REFUSED):
        messages, rule, sentence = REFUSED[name]
        with pytest.raises(FeedError) as raised:
            batches(CdcReader(), messages)
        assert (raised.value.rule, raised.value.why) == (rule, sentence)
    for seed in range(seeds):
        check_any_channel(Random(seed), CdcReader())
        check_any_channel(Random(seed), CdcReader(remember=True))
        check_another_cut(Random(seed), CdcReader)
        check_a_refusal_changes_nothing(Random(seed), remember=seed % 2 == 0)
    test_what_is_delivered_is_forgotten()
    test_the_largest_times_are_times_like_others()


def test_everything_holds() -> None:
    everything()


def _knocked_out(name: str, replacement: object) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(StrictRules, name, replacement)


def _hold_at_once(self: StrictRules, updates: tuple[Update, ...]) -> None:
    for update in updates:
        TAKE_UPDATES(self, (update,))


def _repeats_in_one_message_only(self: StrictRules, update: Update, fresh: dict[int, dict[Key, Update]]) -> bool:
    return update.key in fresh.get(update.time, {})


def _any_diff_is_a_repetition(self: StrictRules, update: Update, fresh: dict[int, dict[Key, Update]]) -> bool:
    return self._held.get(update.time, update.key) is not None or update.key in fresh.get(update.time, {})


def _no_other_message(self: StrictRules, update: Update, fresh: dict[int, dict[Key, Update]]) -> bool:
    return REPEATED(self, update, {})


def _cover_without_chain(self: Cover, lower: int, upper: int) -> None:
    self.end = max(self.end, upper)


def _cover_in_order_only(self: Cover, lower: int, upper: int) -> None:
    if lower <= self.end:
        _cover_without_chain(self, lower, upper)


def _only_without_a_gap(self: Cover, time: int) -> bool:
    return time < self.end


def _the_last_count_wins(self: StrictRules, progress: Progress) -> None:
    TAKE_PROGRESS(self, progress)
    for time, count in progress.counts:
        if time in self._declared:
            self._declared[time] = count + 1


TAKE_UPDATES, TAKE_PROGRESS, REPEATED = StrictRules.take_updates, StrictRules.take_progress, StrictRules._is_repeated

KNOCK_OUTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "late updates are dropped": _knocked_out("_is_late", lambda self, update: False),
    "repeated updates count once": _knocked_out("_is_repeated", _repeats_in_one_message_only),
    "repeated updates count once, within a message too": _knocked_out("_is_repeated", _no_other_message),
    "a record has one diff": _knocked_out("_is_repeated", _any_diff_is_a_repetition),
    "a message is taken as a whole": _knocked_out("take_updates", _hold_at_once),
    "no update too many": _knocked_out("_refuse_one_too_many", lambda self, update, fresh: None),
    "no update too many, beyond a gap": lambda patch: patch.setattr(Cover, "__contains__", _only_without_a_gap),
    "no count below what came": _knocked_out("_refuse_fewer_than_received", lambda self, progress, lower, upper, counts: None),
    "no other count": _knocked_out("_refuse_other_counts", lambda self, progress, lower, upper, counts: None),
    "no impossible counts": _knocked_out("_counts", lambda self, progress, lower, upper: dict(progress.counts)),
    "counts are as declared": _knocked_out("take_progress", _the_last_count_wins),
    "a time waits for its updates": _knocked_out("_first_incomplete", lambda self: END),
    "a gap is waited for": lambda patch: patch.setattr(Cover, "add", _cover_without_chain),
    "progress beyond a gap is kept": lambda patch: patch.setattr(Cover, "add", _cover_in_order_only),
    "what is delivered is forgotten": _knocked_out("_forget", lambda self, frontier: None),
    "who remembers knows old times": _knocked_out("_oldest", lambda self: self.frontier),
}


@pytest.mark.parametrize("name", sorted(KNOCK_OUTS))
def test_a_rule_that_is_knocked_out_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    KNOCK_OUTS[name](monkeypatch)
    with pytest.raises((AssertionError, FeedError, KeyError, pytest.fail.Exception)):
        everything()
