"""What batches add up to."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from changelog.base.errors import InvalidRequestError, UnavailableError
from recovery.feed import CdcReader, FeedBatch, Progress, Update, Updates
from recovery.feed.view import FeedView, ViewRecord
from tests.given.repository import ROOT

BATCHES = [
    FeedBatch([("a", 0, 1), ({"k": 1, "l": 2}, 0, 1), ("a", 2, 1)], (3,)), FeedBatch([("a", 4, -2), ({"l": 2, "k": 1}, 3, 1)], (5,)),
    FeedBatch([("a", 6, 1), ("a", 5, 1)], ()),
]  # fmt: skip


def view(at: int | None = None, batches: int = 3, in_memory: int | None = None) -> FeedView:
    whole = FeedView(at, in_memory)
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


@pytest.mark.parametrize("in_memory", [0, 1])
def test_a_view_in_a_file_is_the_same_view(in_memory: int) -> None:
    for batches in range(4):
        filed, plain = view(batches=batches, in_memory=in_memory), view(batches=batches)
        assert (list(filed), len(filed), filed.frontier) == (list(plain), len(plain), plain.frontier)
    assert filed.get("a") == ViewRecord("a", 2, 5) and filed.get("b") is None
    assert filed.get({"k": 1, "l": 2}) == ViewRecord({"l": 2, "k": 1}, 2, 0)


def test_a_view_in_a_file_has_any_record_and_any_multiplicity_in_the_same_order() -> None:
    records = ["b", "", "a\0", "a", "[]", [], "é", "\U0001f600", 1, 1.0, True, None, {"é": ["\n", 10**25]}, "{}", "1"]
    reader, views = CdcReader(in_memory=0), (FeedView(), FeedView(in_memory=0))
    for time in range(3):
        reader.feed(Updates(tuple(Update(record, time, 2**63 - 1) for record in records)))
    batch = reader.feed(Progress((0,), (3,), tuple((time, len(records)) for time in range(3))))
    assert batch is not None and len(batch.updates) == 3 * len(records) and (1.0, 2, 2**63 - 1) in batch.updates
    for each in views:
        each.add(batch)
    assert [repr(row) for row in views[1]] == [repr(row) for row in views[0]]
    assert {row.multiplicity for row in views[1]} == {3 * (2**63 - 1)} and len(views[1]) == len(records)


@pytest.mark.night
def test_a_large_feed_takes_the_memory_that_it_is_given() -> None:
    def peak(in_memory: int | None) -> int:
        reader, whole = CdcReader(in_memory=in_memory), FeedView(in_memory=in_memory)
        tracemalloc.start()
        for time in range(20):
            reader.feed(Updates(tuple(Update({"object": f"object/{n:08}", "blob": f"blob/{n:032}"}, time, 1) for n in range(500))))
        batch = reader.feed(Progress((0,), (20,), tuple((time, 500) for time in range(20))))
        assert batch is not None
        whole.add(batch)
        assert len(whole) == 500 and {row.multiplicity for row in whole} == {20}
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(500) * 4 < peak(None)  # what SQLite has of it is in its cache, which is bounded


@pytest.mark.parametrize("in_memory", [-1, True, 1.5, "1"])
def test_what_may_be_in_memory_is_a_number(in_memory: int) -> None:
    for make in (FeedView, CdcReader):
        with pytest.raises(InvalidRequestError, match=r"in_memory is .*, not a number from 0"):
            make(in_memory=in_memory)


def test_a_directory_for_temporary_files_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    reader = CdcReader(in_memory=0)
    reader.feed(Updates((Update("a", 0, 1),)))
    with pytest.raises(UnavailableError, match=r"cannot be kept in a temporary file: .*TMPDIR"):
        reader.feed(Progress((0,), (1,), ((0, 1),)))


FULL = """
import resource
from changelog.base.errors import UnavailableError
from recovery.feed import CdcReader, Progress, Update, Updates
reader = CdcReader(in_memory=0)
reader.feed(Updates((Update("a", 0, 1),)))
batch = reader.feed(Progress((0,), (1,), ((0, 1),)))
resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))
try:
    list(batch.updates)
except UnavailableError as error:
    print(error)
"""


def test_a_full_disk_is_told_once_and_leaves_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", FULL], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "File too large; free space" in done.stdout and done.stderr == ""
