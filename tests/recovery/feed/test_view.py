"""What batches add up to."""

from __future__ import annotations

import pytest

from changelog.base.errors import InvalidRequestError
from recovery.feed import FeedBatch
from recovery.feed.view import FeedView, ViewRecord

BATCHES = [
    FeedBatch([("a", 0, 1), ({"k": 1, "l": 2}, 0, 1), ("a", 2, 1)], (3,)), FeedBatch([("a", 4, -2), ({"l": 2, "k": 1}, 3, 1)], (5,)),
    FeedBatch([("a", 6, 1), ("a", 5, 1)], ()),
]  # fmt: skip


def view(at: int | None = None, batches: int = 3) -> FeedView:
    whole = FeedView(at)
    for batch in BATCHES[:batches]:
        whole.add(batch)
    return whole


def test_a_view_says_what_is_there_how_often_and_since_when() -> None:
    assert list(view()) == [ViewRecord("a", 2, 5), ViewRecord({"l": 2, "k": 1}, 2, 0)]
    assert view().get("a") == ViewRecord("a", 2, 5) and view().get("b") is None and len(view()) == 2
    assert list(view(batches=1)) == [ViewRecord("a", 2, 0), ViewRecord({"k": 1, "l": 2}, 1, 0)]
    assert (view().frontier, view(batches=2).frontier, FeedView().frontier) == ((), (5,), (0,))


def test_a_view_of_an_earlier_time_leaves_out_what_is_later() -> None:
    assert list(view(at=4)) == [ViewRecord({"l": 2, "k": 1}, 2, 0)]
    assert [row.multiplicity for row in view(at=1)] == [1, 1]
    assert [view(at=4, batches=n).complete for n in range(4)] == [False, False, True, True]
    assert view(at=5, batches=2).complete is False and view(batches=0).complete


@pytest.mark.parametrize("at", [-1, True, 1.0, 2**63])
def test_the_time_of_a_view_is_a_time(at: int) -> None:
    with pytest.raises(InvalidRequestError, match="the time of a view"):
        FeedView(at)
