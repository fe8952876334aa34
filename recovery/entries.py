"""All entries of a changelog, page by page: what the command lists, and what the daemon warns of.

Nothing is held open between two pages, and no number of entries is too many. An entry that is recorded or forgotten
meanwhile may be seen or not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from changelog.change import Entry, Unreadable
from changelog.log import ChangeLog

PAGE = 500


async def all_entries(log: ChangeLog, *, stuck_only: bool = False) -> AsyncIterator[Entry | Unreadable]:
    """In key order. Raises as `ChangeLog.entries`."""
    start: str | None = ""
    while start is not None:
        page = await log.entries(start, PAGE, stuck_only=stuck_only)
        for entry in page.entries:
            yield entry
        start = page.next_start


async def count_open(log: ChangeLog) -> int:
    """Of changes under way or dead, none of them stuck."""
    return len([None async for entry in all_entries(log) if entry.stuck is None])


async def count_stuck(log: ChangeLog) -> int:
    """Of entries that wait for an operator."""
    return len([None async for _ in all_entries(log, stuck_only=True)])


def stuck_sentence(count: int) -> str:
    are = "entry is" if count == 1 else "entries are"
    return f"{count} {are} stuck: 'tiered log list --stuck' says why; 'tiered log retry ID' gives one back once its cause is mended"
