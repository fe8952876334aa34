"""Times and covered intervals beside a plain set, in chunks that are small enough to be split."""

from __future__ import annotations

from random import Random

import pytest

from recovery.feed import times
from recovery.feed.times import Cover, Times


@pytest.mark.parametrize("seed", range(5))
def test_times_are_a_sorted_set(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "CHUNK", 2)
    random, known, found = Random(seed), set[int](), Times()
    for _ in range(400):
        time, other = random.randrange(60), random.randrange(60)
        match random.randrange(6):
            case 0 if time in known:
                known.remove(time)
                found.remove(time)
            case 1 if random.random() < 0.2:
                assert found.remove_before(time) == sorted(each for each in known if each < time)
                known = {each for each in known if each >= time}
            case _ if time not in known:
                known.add(time)
                found.add(time)
        assert list(found) == sorted(known) and len(found) == len(known)
        assert list(found.between(time, other)) == sorted(each for each in known if time <= each < other)
        assert found.last_until(time) == max((each for each in known if each <= time), default=None)
        assert all(found._chunks) and found._firsts == [each[0] for each in found._chunks]


@pytest.mark.parametrize("seed", range(5))
def test_a_cover_is_the_union_of_its_intervals(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "CHUNK", 2)
    random, known, found = Random(seed), set[int](), Cover()
    for _ in range(60):
        lower = random.randrange(199)
        upper = min(200, lower + random.choice((1, 1, 2, 5, 30 if random.random() < 0.2 else 1)))
        found.add(lower, upper)
        known |= set(range(lower, upper))
        assert {time for time in range(200) if time in found} == known
        assert found.end == next(time for time in range(201) if time not in known)
        after = [time for time in known if time > found.end and time - 1 not in known]
        assert len(found) == len(after)
