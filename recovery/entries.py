"""Reads all entries of a changelog, page by page.

The command line lists them, and the daemon counts those that are stuck.

Nothing stays open between two pages, so the number of entries does not matter. An entry that is recorded or forgotten
during the reading may or may not be seen.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from changelog.change import Entry, Unreadable
from changelog.log import ChangeLog

PAGE = 500


async def all_entries(log: ChangeLog, *, stuck_only: bool = False) -> AsyncIterator[Entry | Unreadable]:
    """Yields the entries in key order. It raises the errors of `ChangeLog.entries`."""
    start: str | None = ""
    while start is not None:
        page = await log.entries(start, PAGE, stuck_only=stuck_only)
        for entry in page.entries:
            yield entry
        start = page.next_start


async def count_open(log: ChangeLog) -> int:
    """Counts the entries that are neither stuck nor kept: changes under way, and changes whose owner died."""
    return len([None async for entry in all_entries(log) if entry.stuck is None and entry.kept_ms is None])


async def count_stuck(log: ChangeLog) -> int:
    """Counts the entries that are stuck and wait for an operator."""
    return len([None async for _ in all_entries(log, stuck_only=True)])


def stuck_sentence(count: int) -> str:
    are = "entry is" if count == 1 else "entries are"
    return f"{count} {are} stuck: 'tiered log list --stuck' says why; 'tiered log retry ID' gives one back once its cause is mended"
