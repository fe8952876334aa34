"""`count_entries`: how many entries of the changelog are of one kind, exactly or about.

The ranges of a log are shards: the end of a change's id, which is random, says in which one its entry is. So each range
has a like share of the entries, however they are spread over time. If the time does not suffice, the ranges that were
read to their end tell what the others have. The reading begins at a random range. A part of a range tells
nothing of its rest: its ids are in the order of time, and the oldest come first.

An estimate says no more than the order of magnitude. It supposes that the ranges are alike, and they are not where
recovery has just emptied some of them, or where older software wrote: errors from -60 % to +126 % were measured while
recovery worked. At rest its mean is right. It is shown, marked as an estimate, and no verdict rests on it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from changelog.base.runtime import Runtime
from changelog.change import LOG_PREFIX, Entry, Unreadable
from changelog.log import LOG_END, EntryPage, KeyRange

COUNT_PAGE = 500
COUNT_S = 5.0
"""For about so many seconds entries are counted. What was not reached by then is estimated."""

ReadPage = Callable[[KeyRange, int], Awaitable[EntryPage]]
"""Reads up to so many entries of a range, as `ChangeLog.kept`."""


@dataclass(frozen=True, slots=True)
class EntryCount:
    """`number`: how many there are; None: not known, because no range was read to its end. `estimated`: it is no more
    than an estimate."""

    number: int | None
    estimated: bool = False


async def count_entries(
    read: ReadPage, ranges: Sequence[KeyRange], is_counted: Callable[[Entry | Unreadable], bool], runtime: Runtime,
    within_s: float = COUNT_S,
) -> EntryCount:  # fmt: skip
    """Counts the entries for which `is_counted` is true, for about `within_s` seconds. It may be asked twice of one.

    A log that fits into one page is read with one call. Raises what `read` raises.
    """
    began = runtime.monotonic()
    page = await read(KeyRange(LOG_PREFIX, LOG_END), COUNT_PAGE)
    if page.next_start is None:
        return EntryCount(sum(map(is_counted, page.entries)))
    first = runtime.random.randrange(len(ranges))
    whole = reached = 0
    in_order = sorted(ranges, key=lambda each: each.start)
    for within in (*in_order[first:], *in_order[:first]):
        found, start = 0, within.start
        while True:
            if runtime.monotonic() - began >= within_s:
                sure = reached + found
                return EntryCount(max(sure, round(reached * len(ranges) / whole)) if whole else None, estimated=True)
            page = await read(KeyRange(start, within.end), COUNT_PAGE)
            found += sum(map(is_counted, page.entries))
            if page.next_start is None:
                break
            start = page.next_start
        whole, reached = whole + 1, reached + found
    return EntryCount(reached)
