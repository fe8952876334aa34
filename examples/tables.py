"""Tables of a shop in a store: each day's orders are a Parquet file, and pandas reads them as one table.

    TIERED_CONFIG=tiered.yaml python -m examples.tables 2026-12-01 orders.csv      # a night's work, from cron

A file is there as a whole or not at all, and writing a day again replaces it in one step. So a job that failed or was
killed is run again. Where the blobs are (a directory, a bucket) is in tiered.yaml alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import date
from typing import TypeVar

import pandas

T = TypeVar("T")
ORDERS, REVENUE = "tiered://tables/objects/orders", "tiered://tables/objects/revenue"
COLUMNS = {"order": "int64", "product": "string", "cents": "int64"}
ATTEMPTS = 5


def write_day(day: date, orders: pandas.DataFrame) -> None:
    """Stores the orders of a day. `ValueError`: a column is missing, or a value does not fit."""
    if missing := COLUMNS.keys() - orders.columns:
        raise ValueError(f"the orders of {day} have no column {', '.join(sorted(missing))}")
    table = orders[list(COLUMNS)].astype(COLUMNS).assign(day=pandas.Timestamp(day))
    table.to_parquet(f"{ORDERS}/{day}.parquet", index=False)


def orders(first: date, last: date) -> pandas.DataFrame:
    """The orders from one day to another, both included. Of other days, only the ends of their files are read."""
    days = [("day", ">=", pandas.Timestamp(first)), ("day", "<=", pandas.Timestamp(last))]
    return read_again(lambda: pandas.read_parquet(ORDERS, filters=days))


def read_again(read: Callable[[], T]) -> T:
    """Reads once more if a file was replaced or deleted while it was read: no read mixes two writes."""
    for _ in range(ATTEMPTS - 1):
        try:
            return read()
        except OSError as error:
            print(f"reading once more: {error}", file=sys.stderr)
    return read()


def write_revenue(first: date, last: date) -> pandas.DataFrame:
    """Stores the revenue of each product and day, as the table of the month of `last`."""
    revenue = orders(first, last).groupby(["day", "product"], as_index=False)["cents"].sum()
    revenue.to_parquet(f"{REVENUE}/{last:%Y-%m}.parquet", index=False)
    return revenue


def main(day_text: str, csv: str) -> None:
    day = date.fromisoformat(day_text)
    write_day(day, pandas.read_csv(csv))
    print(write_revenue(day.replace(day=1), day).to_string(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
