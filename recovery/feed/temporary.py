"""What does not fit into memory: the columns of a record in a temporary table, and the file of a large batch.

A record in a table is its key, so it comes back as equal JSON, with its keys sorted.

*Crash*: the files have no names, so nothing stays. *Failure*: as in `changelog/sqlite/temporary.py`. Whoever reads the
feed begins again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO, Any
from weakref import finalize

from changelog.base.errors import InvalidRequestError
from changelog.sqlite.temporary import explained
from recovery.feed.messages import Json, Key, canonical
from tiered.text import quoted

Delivered = Collection[tuple[Json, int, int]]
"""(data, time, diff), sorted by data, then by time."""


class LargeBatch(Delivered):
    """The updates of a large batch, in order, in a temporary file. It can be read again and again, by one at a time."""

    def __init__(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """`rows`: key, whether it is text, time and diff of each update, in order."""
        self._number = 0
        with explained():
            self._file: IO[str] = TemporaryFile("w+", encoding="utf-8", newline="\n")  # noqa: SIM115 - it is read later
            finalize(self, _discard, self._file)
            for key, is_text, time, diff in rows:
                self._file.write(f"[{canonical(key) if is_text else key},{time},{diff}]\n")
                self._number += 1

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[tuple[Json, int, int]]:
        with explained():
            self._file.seek(0)
            for line in self._file:
                data, time, diff = json.loads(line)
                yield data, time, diff

    def __contains__(self, update: object) -> bool:
        return any(each == update for each in self)


def check_in_memory(number: object) -> None:
    """Raises `InvalidRequestError` if this is no number of what may be in memory."""
    if number is not None and (type(number) is not int or number < 0):
        raise InvalidRequestError(f"in_memory is {quoted(number)}, not a number from 0: leave it out to keep all in memory")


def columns_of(key: Key) -> tuple[str, int]:
    """Returns a key as two columns: what it says, and 1 if the record is text. In their order, with the 1 first."""
    return (key, 1) if type(key) is str else (key[0], 0)


def data_of(key: str, is_text: int) -> Json:
    """Returns the record of these columns."""
    return key if is_text else json.loads(key)


def _discard(file: IO[str]) -> None:
    """Closes it. What was not written because the disk is full is not written now either, and was told before."""
    with suppress(OSError):
        file.close()
