"""Values that a column cannot hold cost only themselves."""

from __future__ import annotations

from typing import Any

from recovery.sources.columns import BLOBS, CHANGES, TIME_MAX_US, batch_of, ddl


def change(**values: Any) -> tuple[Any, ...]:
    return tuple(values.get(name) for name in CHANGES)


def test_good_rows_are_kept_as_they_are() -> None:
    [row] = batch_of(CHANGES, [change(key="k", attempt=2, created=TIME_MAX_US)], ["attempt", "key", "error"]).to_pylist()
    assert row == {"attempt": 2, "key": "k", "error": None}


def test_no_rows_give_an_empty_batch_with_the_right_types() -> None:
    empty = batch_of(BLOBS, [], ["created", "size"])
    assert empty.num_rows == 0 and [str(each) for each in empty.schema.types] == ["timestamp[us, tz=UTC]", "int64"]


def test_a_number_and_a_time_that_do_not_fit_become_null_and_are_named() -> None:
    rows = [change(key="good", attempt=1), change(key="bad", attempt=10**30, cleanup_after=10**40, error="before")]
    good, bad = batch_of(CHANGES, rows, list(CHANGES)).to_pylist()
    assert (good["attempt"], good["error"]) == (1, None)
    assert (bad["key"], bad["attempt"], bad["cleanup_after"]) == ("bad", None, None)
    assert bad["error"].startswith("before; attempt is 1000") and "cleanup_after is 1000" in bad["error"]


def test_a_time_that_arrow_can_hold_and_a_calendar_cannot_becomes_null() -> None:
    late, good = batch_of(BLOBS, [("late", *(None,) * 5, TIME_MAX_US + 1, *(None,) * 3), ("good", *(None,) * 5, 5, *(None,) * 3)],
                          ["name", "created", "error"]).to_pylist()  # fmt: skip
    assert late["created"] is None and late["error"] == f"created is {TIME_MAX_US + 1} microseconds, which its column cannot hold"
    assert good["created"].microsecond == 5 and good["error"] is None


def test_text_that_is_no_unicode_is_escaped() -> None:
    [row] = batch_of(BLOBS, [("a\udcffb", *(None,) * 9)], ["name"]).to_pylist()
    assert row["name"] == "a\\udcffb"


def test_the_columns_are_text_that_spark_reads() -> None:
    assert ddl(BLOBS).startswith("`name` string, `object` string")
