"""Names and targets that are merged: in order, nearly in order, and in no order at all."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.audit.sweeping.merge import COMPARED_AT_ONCE, NameMerge


def merged(names: list[str], *pages: list[str]) -> tuple[list[str], list[str]]:
    """Returns the names that nothing matched, and the targets that were handed back."""
    merge = NameMerge(names)
    left = [page[place] for page in pages for place in merge.take(page)]
    unmatched = [names[place] for place in merge.unmatched()]
    assert list(merge.unmatched()) == [], "each once"
    return unmatched, left


MANY = [f"{number:04}" for number in range(3 * COMPARED_AT_ONCE + 7)]


def test_equal_lists_match_whole() -> None:
    assert merged(MANY, MANY) == ([], [])
    assert merged(MANY, MANY[:100], MANY[100:]) == ([], [])
    assert merged([], []) == ([], [])


@pytest.mark.parametrize("place", [0, 1, COMPARED_AT_ONCE - 1, COMPARED_AT_ONCE, len(MANY) - 1])
def test_one_name_that_is_not_named_is_passed_over(place: int) -> None:
    assert merged(MANY, MANY[:place] + MANY[place + 1 :]) == ([MANY[place]], [])


@pytest.mark.parametrize("place", [0, 1, COMPARED_AT_ONCE - 1, COMPARED_AT_ONCE, len(MANY) - 1])
def test_one_target_that_is_not_listed_is_handed_back(place: int) -> None:
    assert merged(MANY[:place] + MANY[place + 1 :], MANY) == ([], [MANY[place]])


def test_targets_in_another_order_are_left_to_the_caller() -> None:
    assert merged(["a-b/1", "a/1"], ["a/1", "a-b/1"]) == (["a-b/1"], ["a-b/1"])


def test_after_the_unmatched_names_every_target_is_handed_back() -> None:
    merge = NameMerge(["a", "b"])
    assert merge.take(["a"]) == []
    assert list(merge.unmatched()) == [1]
    assert merge.take(["b", "c"]) == [0, 1]


some = st.lists(st.integers(0, 30).map(lambda number: f"{number:02}"), max_size=30)


@given(some.map(lambda names: list(dict.fromkeys(names))), some, st.lists(st.integers(0, 30), max_size=3), st.booleans())
def test_whatever_the_order_no_name_and_no_target_is_lost(names: list[str], targets: list[str], cuts: list[int], in_order: bool) -> None:
    if in_order:
        names, targets = sorted(names), sorted(targets)
    bounds = [0, *sorted(cuts), len(targets)]
    unmatched, left = merged(names, *(targets[first:last] for first, last in pairwise(bounds)))
    matched = set(names) - set(unmatched)
    assert matched <= set(targets), "only what is named"
    assert len(targets) - len(left) == len(matched), "each name by one target"
    if in_order:
        assert matched == set(names) & set(targets)
