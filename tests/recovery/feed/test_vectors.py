"""Message histories, and what the reference reader (differential dataflow) delivers for them."""

from __future__ import annotations

from typing import Any

import pytest

from emulators.feed.reference import ReferenceReader
from recovery.feed import CdcReader, FeedError, Rule
from tests.given.feeds import AnyReader, batches, vectors

CASES = vectors()

UNSOUND = {
    "failed_txn_leaks": (Rule.COUNT, "progress (time1, 1) declares 1 at time 1, and 2 distinct updates came"),
    "abandoned_time_leaks": (Rule.COUNT, "progress (time1, 0) declares 0 at time 1, and 2 distinct updates came"),
    "overcount": (Rule.COUNT, "progress (time0 to time2, time1: 1) declares 1 at time 1, and 2 distinct updates came"),
    "contradictory_diff": (Rule.DIFF, "update (b, time1, +2) contradicts update (b, time1, +1), which came before"),
    "restated_progress_first_wins": (
        Rule.PROGRESS, "progress (time0 to time3, time1: 7) declares 7 at time 1, and another one declared 1",
    ),
}  # fmt: skip
"""What breaks a rule while its time is not delivered."""
LATE = {
    "overcount_progress_first": "update (c, time1, +1) is one too many: progress declares 1 at time 1, and 1 came before",
    "late_junk": "update (z, time3, +1) is one too many: progress declares 0 at time 3, and 0 came before",
}
"""What breaks a rule after its time was delivered."""


def delivered(case: dict[str, Any], reader: AnyReader) -> list[dict[str, Any]]:
    return [
        {"updates": [{"data": data, "time": time, "diff": diff} for data, time, diff in each.updates], "frontier": list(each.frontier)}
        for each in batches(reader, case["messages"])
    ]


def test_the_reference_reader_of_the_simulator_delivers_what_the_reference_reader_delivers() -> None:
    assert [case["name"] for case in CASES if delivered(case, ReferenceReader()) != case["batches"]] == []


def test_a_strict_reader_delivers_the_same_for_each_sound_history() -> None:
    sound = [case for case in CASES if case["name"] not in UNSOUND]
    assert [case["name"] for case in sound if delivered(case, CdcReader()) != case["batches"]] == []
    remembering = [case for case in sound if case["name"] not in LATE]
    assert [case["name"] for case in remembering if delivered(case, CdcReader(remember=True)) != case["batches"]] == []
    assert len(remembering) == len(CASES) - 7


@pytest.mark.parametrize(("name", "remember", "rule", "sentence"), [
    *((name, remember, *UNSOUND[name]) for name in sorted(UNSOUND) for remember in (False, True)),
    *((name, True, Rule.COUNT, LATE[name]) for name in sorted(LATE)),
])  # fmt: skip
def test_a_strict_reader_refuses_what_is_not_sound(name: str, remember: bool, rule: Rule, sentence: str) -> None:
    """And one that remembers refuses what comes too late, as well."""
    (case,) = (each for each in CASES if each["name"] == name)
    with pytest.raises(FeedError) as raised:
        batches(CdcReader(remember=remember), case["messages"])
    assert (raised.value.rule, raised.value.why) == (rule, sentence)
