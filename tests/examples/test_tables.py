"""examples/tables.py: days are written as a whole, read as one table, and never mixed.

test_from_the_wheel.py has them in a bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import fsspec
import pandas
import pytest

from examples import tables

FIRST, SECOND = date(2026, 12, 1), date(2026, 12, 2)


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "tiered.yaml").write_text(f"directory: {tmp_path}/data\n")
    monkeypatch.setenv("TIERED_CONFIG", str(tmp_path / "tiered.yaml"))
    yield
    fsspec.filesystem("tiered").close()


def bought(*rows: tuple[int, str, int]) -> pandas.DataFrame:
    return pandas.DataFrame(rows, columns=["order", "product", "cents"])


def test_days_are_read_as_one_table_and_a_day_that_is_written_again_is_replaced() -> None:
    tables.write_day(FIRST, bought((1, "tea", 300), (2, "tea", 200)))
    tables.write_day(SECOND, bought((3, "tea", 100), (4, "cup", 700)))
    tables.write_day(FIRST, bought((1, "tea", 300)))
    assert sorted(tables.orders(FIRST, SECOND)["order"]) == [1, 3, 4]
    assert sorted(tables.orders(SECOND, SECOND)["order"]) == [3, 4]
    made = tables.write_revenue(FIRST, SECOND)
    assert [tuple(row) for row in made.sort_values(["day", "product"])[["product", "cents"]].to_numpy()] == [
        ("tea", 300), ("cup", 700), ("tea", 100),
    ]  # fmt: skip
    assert pandas.read_parquet(f"{tables.REVENUE}/2026-12.parquet").equals(made)


def test_a_days_orders_that_do_not_fit_are_not_written_and_the_table_of_before_stays() -> None:
    tables.write_day(FIRST, bought((1, "tea", 300)))
    with pytest.raises(ValueError, match="the orders of 2026-12-01 have no column cents"):
        tables.write_day(FIRST, bought((1, "tea", 300)).drop(columns="cents"))
    with pytest.raises(ValueError, match="three"):
        tables.write_day(FIRST, pandas.DataFrame({"order": ["1"], "product": ["tea"], "cents": ["three"]}))
    assert list(tables.orders(FIRST, FIRST)["order"]) == [1]


def test_a_day_that_is_replaced_while_it_is_read_is_read_once_more(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    tables.write_day(FIRST, bought(*((number, "tea", number) for number in range(1000))))
    read = pandas.read_parquet

    def replaced_once(*given: Any, **options: Any) -> pandas.DataFrame:
        monkeypatch.setattr(pandas, "read_parquet", read)
        with fsspec.filesystem("tiered").open(f"{tables.ORDERS}/{FIRST}.parquet", cache_type="none") as file:
            assert file.read(4) == b"PAR1"
            tables.write_day(FIRST, bought((1, "tea", 300)))
            file.read(4)
        return read(*given, **options)

    monkeypatch.setattr(pandas, "read_parquet", replaced_once)
    assert list(tables.orders(FIRST, FIRST)["order"]) == [1]
    assert "reading once more" in capsys.readouterr().err
