"""Reads the files of a change feed as rows: one for each update, and one for each progress message.

A feed is a directory of files in any of the forms that `recovery.feed.files` finds out by itself. Names that begin with
`_` or `.` are skipped. Anything else in the directory is read, and a file that is no feed is an error, not skipped.

A file that cannot be read to its end gives a row with an `error`, after the rows of what was read. Memory holds one
page and one message.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from changelog.base.errors import ConfigurationError, TieredError
from recovery.feed.files import LocatedMessage, is_left_out, read
from recovery.feed.messages import Key, Updates, canonical
from recovery.sources.columns import FEED, TableRow

PAGE = 10_000
ERROR, PROGRESS, UPDATE = "error", "progress", "update"
_NOTHING = (None,) * 3


def names_of(directory: str) -> list[str]:
    """Returns the names of a feed's files, sorted. Raises `ConfigurationError` if there is no such directory, or none.
    """
    where = Path(directory)
    if not where.is_dir():
        raise ConfigurationError(f"there is no directory {directory} on this machine: give the directory of a feed")
    names = sorted(path.name for path in where.iterdir() if not is_left_out(path.name))
    if not names:
        raise ConfigurationError(f"the directory {directory} has no files: give the directory of a feed")
    for name in names:
        if (where / name).is_dir():
            raise ConfigurationError(f"{where / name} is a directory, and a feed is files only: give the directory of one feed")
    return names


def rows(directory: str, name: str) -> Iterator[list[TableRow]]:
    """Yields the rows of a file, page by page. It raises nothing for what is in the file."""
    page: list[TableRow] = []
    try:
        for located in read(Path(directory) / name):
            page += _rows_of(directory, name, located)
            if len(page) >= PAGE:
                yield page
                page = []
    except TieredError as error:
        page.append(_row(directory, name, kind=ERROR, error=str(error)))
    if page:
        yield page


def _rows_of(directory: str, name: str, located: LocatedMessage) -> list[TableRow]:
    message, before = located.message, (directory, name, located.where.removeprefix(f"{located.file}, "), located.generation)
    if isinstance(message, Updates):
        return [(*before, UPDATE, text_of(each.key), each.time, each.diff, *_NOTHING, None) for each in message.updates]
    lower, upper = (bound[0] if bound else None for bound in (message.lower, message.upper))
    counts = [{"time": time, "count": count} for time, count in message.counts]
    return [(*before, PROGRESS, *_NOTHING, lower, upper, counts, None)]


def _row(directory: str, name: str, **values: object) -> TableRow:
    return tuple({"feed": directory, "file": name, **values}.get(column) for column in FEED)


def text_of(key: Key) -> str:
    """Returns the canonical JSON of a record, of its key."""
    return canonical(key) if isinstance(key, str) else key[0]
