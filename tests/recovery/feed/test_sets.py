"""CdcReader beside the protocol's own words: sets of messages, looked at anew after each one. Many have mistakes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from recovery.feed import CdcReader, FeedError, Message, Progress, Update, Updates

END = 2**63
RECORDS: list[Any] = ["a", "1", 1, 1.0, True, None, 0.0, -0.0, "\u00e9", "e\u0301", 10**25, {"x": 1, "y": [1]}, {"y": [1], "x": 1}, []]


def identity(data: Any) -> object:
    """Equal for what is the same JSON, found without the code that is tested."""
    if isinstance(data, dict):
        return "object", frozenset((key, identity(each)) for key, each in data.items())
    return type(data).__name__, tuple(identity(each) for each in data) if isinstance(data, list) else repr(data)


class Sets:
    """Everything that was taken, and that may still be compared. `frontier`: the first time that is not complete."""

    def __init__(self, remember: bool) -> None:
        self.remember = remember
        self.updates = set[tuple[object, int, int]]()
        self.progress: list[tuple[int, int, dict[int, int]]] = []
        self.frontier = 0

    def take(self, message: Message) -> set[tuple[object, int, int]] | None:
        """Returns what became complete, or None if the message contradicts what came before, or itself."""
        oldest = 0 if self.remember else self.frontier
        updates, progress = set(self.updates), list(self.progress)
        if isinstance(message, Updates):
            if any(each.time < 0 for each in message.updates):
                return None
            updates |= {(identity(each.data), each.time, each.diff) for each in message.updates if each.time >= oldest}
        else:
            lower, upper = (bound[0] if bound else END for bound in (message.lower, message.upper))
            counts = dict(message.counts)
            within = all(lower <= time < upper and count >= 0 for time, count in counts.items())
            if not 0 <= lower <= upper or not within or len(counts) < len(message.counts):
                return None
            progress.append((lower, upper, counts))
        for time in {*(time for _, time, _ in updates), *(time for lower, _, counts in progress for time in (lower, *counts))}:
            declared, found = self._declared(progress, time), [record for record, at, _ in updates if at == time]
            if time >= oldest and (len(declared) > 1 or (declared and len(found) > min(declared)) or len(set(found)) < len(found)):
                return None
        self.updates, self.progress = updates, progress
        return self._deliver()

    def _deliver(self) -> set[tuple[object, int, int]]:
        covered = 0
        while (further := max((upper for lower, upper, _ in self.progress if lower <= covered), default=0)) > covered:
            covered = further
        at = [time for _, time, _ in self.updates]
        told = {time for _, _, counts in self.progress for time in counts if self.frontier <= time < covered}
        short = [time for time in told if at.count(time) < max(self._declared(self.progress, time))]
        before, self.frontier = self.frontier, min([covered, *short])
        return {each for each in self.updates if before <= each[1] < self.frontier}

    @staticmethod
    def _declared(progress: list[tuple[int, int, dict[int, int]]], time: int) -> set[int]:
        return {counts.get(time, 0) for lower, upper, counts in progress if lower <= time < upper}


def messages(random: Random) -> list[Message]:
    """Parts of one truth, cut and repeated in any way, and now and then something else."""
    times = random.choice((2, 4, 8))
    late = END - 1 - times if random.random() < 0.3 else 0  # all times but 0 are the last that there are
    at = [0, *(late + time for time in range(1, times + 1))]
    records = random.sample(RECORDS, 5)
    drawn = (Update(random.choice(records), random.choice(at[:-1]), random.choice((0, 1, -1, END - 1, -END))) for _ in range(12))
    truth = list({(each.key, each.time): each for each in drawn}.values())
    made: list[Message] = []
    for _ in range(random.choice((5, 25))):
        if random.random() < 0.5:
            some = random.choices(truth, k=random.randrange(4))
            wrong = [Update(random.choice(RECORDS), random.choice((-1, *at[:-1])), 7)] if random.random() < 0.06 else []
            made.append(Updates((*some, *wrong)))
            continue
        lower, upper = sorted(random.choices(at, k=2), reverse=random.random() < 0.03)
        counts = {time: sum(each.time == time for each in truth) for time in at[:-1] if lower <= time < upper}
        told = [(time, count) for time, count in counts.items() if count or random.random() < 0.5]
        if told and random.random() < 0.08:
            time, count = told.pop() if random.random() < 0.7 else told[0]
            told.append((time + random.choice((0, 0, -1)), count + random.choice((1, -1))))
        random.shuffle(told)
        ends = upper == at[-1] and random.random() < 0.3
        made.append(Progress((lower,), () if ends else (upper,), tuple(told)))
    return made


@pytest.mark.parametrize("seed", range(60))
def test_a_reader_takes_refuses_and_delivers_what_the_sets_say(seed: int) -> None:
    random = Random(seed)
    remember = random.random() < 0.5
    reader, sets = CdcReader(remember=remember, in_memory=(None, 0, 4)[seed % 3]), Sets(remember)
    for message in messages(random):
        expected = sets.take(message)
        if expected is None:
            with pytest.raises(FeedError):
                reader.feed(message)
            continue
        batch = reader.feed(message)
        found = [(identity(data), time, diff) for data, time, diff in batch.updates] if batch else []
        assert len(found) == len(expected) and set(found) == expected
        assert reader.frontier == ((sets.frontier,) if sets.frontier < END else ())
        assert reader.held.updates == sum(time >= sets.frontier for _, time, _ in sets.updates)
