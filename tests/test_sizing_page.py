"""docs/sizing.md has the calls that are counted, and the calculator beside it multiplies right."""

from __future__ import annotations

import re
import shlex

import pytest

from benchmarks.calls import BESIDE, CASES
from benchmarks.cost import OPERATIONS, BilledCalls, FeedYear, Prices, Use, main, monthly, table, written
from benchmarks.harness import together
from tests.given.repository import ROOT

PAGE = (ROOT / "docs/sizing.md").read_text("utf-8")


def test_the_table_is_what_is_counted() -> None:
    assert written(PAGE) == PAGE, "run python -m benchmarks.cost --docs docs/sizing.md"
    assert set(OPERATIONS) == {*(case.what for case in CASES), *BESIDE}


def test_operations_that_cost_the_same_are_one_row_and_none_is_left_out() -> None:
    assert together([["a", "1", "2"], ["b", "1", "3"], ["c", "1", "2"]]) == [["a; c", "1", "2"], ["b", "1", "3"]]
    assert sorted(name for row in table().rows for name in str(row[0]).split("; ")) == sorted(OPERATIONS)


def test_calls_are_classified_as_they_are_billed() -> None:
    assert OPERATIONS["put small"] == BilledCalls(reads=1, writes=1)
    assert OPERATIONS["put 16 MiB over nothing"] == BilledCalls(
        reads=2, writes=3, class_a=1
    )  # read, record, swap, forget; a session is one
    assert OPERATIONS["get large"] == BilledCalls(reads=1, class_b=2)


def test_a_month_is_rates_times_prices() -> None:
    use = Use({"put 2 MiB over nothing": 10, "get large": 100}, large=(1024, 1024**2), path_bytes=50)
    found = {what: (amount, cost) for what, amount, _, cost in monthly(use, Prices(class_a=0.5, blob_gib_month=2))}
    assert found["GCS class A"] == (10 * 730 * 3.6, 10 * 730 * 3.6 * 0.5)
    assert found["GCS class B"] == (200 * 730 * 3.6, None)
    assert found["blobs"] == (1, 2)
    assert found["Bigtable nodes"] == (730, None)  # one node is the least
    assert next(monthly(Use({"put small": 53_740}), Prices()))[1] == pytest.approx(10 * 730, rel=0.01)


def test_the_command_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    [command] = re.findall(r"\$ python -m benchmarks.cost (.*?)```", PAGE.replace("\\\n", ""), re.DOTALL)
    main(shlex.split(command))
    assert "730.0 node hours" in capsys.readouterr().out


def test_a_price_that_is_missing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--rate", "put small=1"])
    assert "0.00 without Bigtable nodes, rows" in " ".join(capsys.readouterr().out.split())


def test_an_operation_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rate", "put=1"])
    assert "'put' is no operation; give one of put small, " in capsys.readouterr().err


def test_a_year_of_a_feed_is_what_a_person_would_work_out() -> None:
    year = FeedYear(changes_per_s=10, poll_s=4, live=1e6, path_bytes=50)
    assert year.files == 7_884_000 and year.updates == 630_720_000
    assert year.calls.reads == 10 * 31_536_000 * 4 + 7_884_000 * 4
    assert year.calls.class_a == year.files
    assert year.calls.scanned_mb == pytest.approx(365 * 1e6 * (402 + 200) / 1e6)
