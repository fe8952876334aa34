"""Messages as values: what is equal, what can be a key, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from changelog.base.errors import InvalidRequestError
from recovery.feed import Progress, Update, Updates
from recovery.feed.messages import canonical


def test_the_order_of_keys_does_not_matter() -> None:
    one, other = Update({"a": 1, "b": [{"c": None, "d": ""}]}, 7, 1), Update({"b": [{"d": "", "c": None}], "a": 1}, 7, 1)
    assert one == other and hash(one) == hash(other) and len({one, other}) == 1
    assert (one == "an update") is False
    assert Updates((one,)) == Updates((other,)) and hash(Updates((one,))) == hash(Updates((other,)))


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (0, False), (1, 1.0), ("1", 1), ("null", None), ('{"a":1}', {"a": 1}), ('"a"', "a"), ([1], [[1]]), ({}, []), ("", None)],
)
def test_what_is_spelled_differently_is_different(one: object, other: object) -> None:
    assert Update(one, 0, 1) != Update(other, 0, 1)
    assert len({Update(one, 0, 1), Update(other, 0, 1)}) == 2


def test_another_time_or_diff_is_another_update() -> None:
    assert len({Update("a", 0, 1), Update("a", 0, 2), Update("a", 1, 1)}) == 3


@pytest.mark.parametrize("data", [
    {}, {"b": "2", "a": "1"}, {"a\n": '"\\'}, {"a": "\x7f\x00"}, {"b": "\u00fc"}, {"\u00fc": "b"}, {"a": 1}, {"a": "1", "b": None},
    "\u00fc",
])  # fmt: skip
def test_a_key_is_the_canonical_json_unless_data_is_text(data: object) -> None:
    assert Update(data, 0, 1).key == (data if isinstance(data, str) else (canonical(data),))


def test_canonical_json_is_sorted_and_short() -> None:
    assert canonical({"b": [1, 2.5, True, None], "a": "\u00fc"}) == '{"a":"\u00fc","b":[1,2.5,true,null]}'


CYCLE: list[object] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize("data", [
    float("nan"), [float("inf")], {1: "a"}, {1: "a", "b": "c"}, {"a": {2: 3}}, (1,), [(1,)], b"a", {"a": b""}, object(), {1}, "\ud800",
    ["\ud800"], CYCLE,
])  # fmt: skip
def test_data_that_is_not_json_is_refused(data: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"^data "):
        Update(data, 0, 1)


@pytest.mark.parametrize("number", [True, 1.0, "1", None, 2**63, -(2**63) - 1])
def test_a_number_that_is_no_long_is_refused(number: int) -> None:
    for make in (
        lambda: Update("a", number, 1), lambda: Update("a", 0, number), lambda: Progress((number,), (), ()),
        lambda: Progress((0,), (number,), ()), lambda: Progress((0,), (1,), ((number, 1),)), lambda: Progress((0,), (1,), ((0, number),)),
    ):  # fmt: skip
        with pytest.raises(InvalidRequestError, match="not an integer of 64 bits"):
            make()


@pytest.mark.parametrize(("parts", "sentence"), [
    (((0, 1), (2,), ()), "lower of a progress message has 2 times"), (((0,), (1, 2), ()), "upper of a progress message has 2 times"),
    ((0, (1,), ()), "lower of a progress message is 0, not a sequence"), (((0,), "1", ()), "upper .* not a sequence"),
    (((0,), (1,), ((0, 1, 2),)), "which is no pair"), (((0,), (1,), (0,)), "not a sequence"),
])  # fmt: skip
def test_progress_of_another_shape_is_refused(parts: tuple[object, ...], sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence):
        Progress(*parts)  # type: ignore[arg-type]


def test_sequences_are_kept_as_tuples() -> None:
    progress = Progress([0], [], [[0, 1]])  # type: ignore[arg-type]
    assert progress == Progress((0,), (), ((0, 1),)) and hash(progress) == hash(Progress((0,), (), ((0, 1),)))
    assert Updates([Update("a", 0, 1)]).updates == (Update("a", 0, 1),)  # type: ignore[arg-type]


def test_updates_hold_updates_only() -> None:
    with pytest.raises(InvalidRequestError, match="which is not an Update"):
        Updates(({"data": 1, "time": 0, "diff": 1},))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, 5, Update("a", 0, 1), "ab", {"a": 1}])
def test_updates_are_a_sequence_of_updates(wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match="updates"):
        Updates(wrong)
