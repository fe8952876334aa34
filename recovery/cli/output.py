"""How results are printed for all commands: JSON for programs, tables and fields for people."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from recovery.display import escape_controls


def write(text: str) -> None:
    """Prints a line on stdout. Raises `OSError` if stdout is closed: a result that nobody gets is no success."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed")
    sys.stdout.write(f"{text}\n")


def dump(value: Any) -> str:
    """Returns readable JSON. Where stdout cannot encode a character, all but ASCII is escaped."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode("utf-8" if sys.stdout is None else sys.stdout.encoding)
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def show(value: Mapping[str, Any], line: str, as_json: bool) -> None:
    """Prints the line, or the value as JSON."""
    write(dump(value) if as_json else line)


def show_fields(value: Mapping[str, Any], as_json: bool) -> None:
    """Prints one field a line, or the value as JSON."""
    if as_json:
        write(dump(value))
        return
    for name, item in value.items():
        write(f"{name:18}{plain(item)}")


class List:
    """A JSON list that is printed as its items come, one a line."""

    def __init__(self) -> None:
        self._before = "["

    def add(self, items: Sequence[Any]) -> None:
        for item in items:
            write(f"{self._before}{dump(item)}")
            self._before = ","

    def end(self) -> None:
        write("[]" if self._before == "[" else "]")


class PrintedTable:
    """A table that is printed as its rows come. A column is as wide as the widest cell so far.

    Nothing is cut to the terminal's width, so a name is always whole.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns: Sequence[str] | None = columns
        self._widths = [len(column) for column in columns]

    def add(self, rows: Sequence[tuple[str, ...]]) -> None:
        if not rows:
            return
        shown = [[escape_controls(cell) for cell in row] for row in rows]
        if self._columns is not None:
            shown.insert(0, list(self._columns))
            self._columns = None
        self._widths = [max(width, *map(len, cells)) for width, cells in zip(self._widths, zip(*shown, strict=True), strict=True)]
        for row in shown:
            write("  ".join(f"{cell:{width}}" for cell, width in zip(row, self._widths, strict=True)).rstrip())

    def end(self) -> None:
        """Does nothing: a table has no end mark, a `List` has one."""


def plain(value: Any) -> str:
    """Returns a value as a cell of a table."""
    return "-" if value is None else escape_controls(value) if isinstance(value, str) else dump(value)


def iso(moment: datetime | None) -> str | None:
    """Returns a moment in ISO 8601, in milliseconds."""
    return None if moment is None else moment.isoformat(timespec="milliseconds")


def iso_of_ms(unix_ms: int | None) -> str | None:
    """Returns a moment that is given in milliseconds since 1970. 0 means that nobody knows it, and gives None."""
    if not unix_ms:
        return None
    try:
        return iso(datetime.fromtimestamp(unix_ms / 1000, UTC))
    except (OverflowError, ValueError, OSError):
        return f"{unix_ms} ms after 1970, beyond any calendar"
