"""A window: some ten thousand names of a range, their blobs, and what the changelog says of them.

    Window          the blobs that were listed, and which of them nothing explains yet
    LoggedNames     the names of its blobs that entries of the changelog name
    WindowReader    lists a window, and reads the log for it

Matching its rows is for `match.py`, judging its blobs for `judge.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from changelog.change import ChangeId, Unreadable
from recovery.audit.finding import Summary
from recovery.audit.finding_classes import Logged
from recovery.audit.manifest import Bounds
from recovery.audit.sweeping.tier_reads import ENTRIES_PAGE, TierReads
from tiered.services.scans import BlobInfo, Oddity

WINDOW_NAMES = 25_000
"""Twice as many cost a worker 17 MiB more and made no range faster."""
WINDOW_VERIFIED = 1000
"""As many if payloads are read. A window is never cut, and what was read of it is read again if its worker dies."""


@dataclass(slots=True)
class LoggedNames:
    """The names of a window's blobs that entries of the changelog name, and the ids of entries that nobody can read.

    `objects`: of which objects entries tell that matter to the window.
    """

    new: set[str] = field(default_factory=set)
    old: set[str] = field(default_factory=set)
    objects: set[str] = field(default_factory=set)
    unreadable: set[str] = field(default_factory=set)

    def of(self, name: str, revision: ChangeId | None) -> Logged:
        if name in self.new or revision in self.unreadable:
            return Logged.NEW
        return Logged.OLD if name in self.old else Logged.NOT


@dataclass(slots=True)
class Window:
    """The blobs with names from `start` to `end`, and which of them nothing explains yet.

    `unnamed`: those that no row names, once the rows were read. `misfiled`: what damaged rows of other keys name, also
    blobs of other windows. `ordered`: the names of `blobs`. `broken`: those that cannot be read. `broken_named`: for
    these, the keys of the rows that name them. `rows`: how many rows a scan of the window's keys found; None: they were
    not scanned. `pages`: where each page of the listing began, and how many names it was asked for. Times are
    nanoseconds since 1970.
    """

    start: str
    end: str | None
    blobs: list[BlobInfo]
    broken: dict[str, Oddity]
    listed_ns: int
    pages: list[tuple[str, int]] = field(default_factory=list)
    logged_ns: int = 0
    scanned_ns: int = 0
    unnamed: dict[str, BlobInfo] = field(default_factory=dict)
    named_by_expired: dict[str, BlobInfo] = field(default_factory=dict)
    broken_named: dict[str, set[str]] = field(default_factory=dict)
    rows: int | None = None
    misfiled: set[str] = field(default_factory=set)
    ordered: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ordered = [blob.name for blob in self.blobs]

    def holds(self, name: str) -> bool:
        return self.start <= name and (self.end is None or name < self.end)

    def lists(self, name: str) -> bool:
        """Tells whether a blob of this name was listed, and could be read."""
        place = bisect_left(self.ordered, name)
        return place < len(self.ordered) and self.ordered[place] == name

    def names(self) -> dict[str, BlobInfo]:
        """Returns the blobs by their names. Most windows do without: it costs as much as to list them."""
        return dict(zip(self.ordered, self.blobs, strict=True))


class WindowReader:
    """`window_names`: how many names a window holds, at most. Notes in `summary` how much the log held."""

    def __init__(self, reads: TierReads, bounds: Bounds, window_names: int, summary: Summary) -> None:
        self._reads = reads
        self._bounds = bounds
        self._window_names = window_names
        self._summary = summary

    async def read(self, start: str) -> tuple[Window, list[Oddity], str | None]:
        """Returns the window that begins here, all that is odd in it, and where the next one begins; None: nowhere."""
        listed_ns = self._reads.runtime.wall_ns()
        blobs: list[BlobInfo] = []
        oddities: list[Oddity] = []
        next_start: str | None = start
        pages: list[tuple[str, int]] = []
        while next_start is not None and len(blobs) < self._window_names:
            left = self._window_names - len(blobs)
            pages.append((next_start, left))
            page = await self._reads.list(next_start, self._bounds.end, left)
            blobs += page.blobs
            oddities += page.oddities
            next_start = page.next_start
        broken = {oddity.name: oddity for oddity in oddities if oddity.is_blob}
        end = self._bounds.end if next_start is None else next_start
        return Window(start, end, blobs, broken, listed_ns, pages), oddities, next_start

    async def listed_again(self, window: Window, names: Iterable[str]) -> set[str]:
        """Returns which of these names a listing has now that is asked for exactly as that of the window was."""
        wanted, found = sorted(names), set[str]()
        for place, (start, limit) in enumerate(window.pages):
            until = window.pages[place + 1][0] if place + 1 < len(window.pages) else window.end
            own = [name for name in wanted if start <= name and (until is None or name < until)]
            following: str | None = start if own else None
            while following is not None and following <= own[-1]:
                page = await self._reads.list(following, self._bounds.end, limit)
                found.update(name for name in (*(blob.name for blob in page.blobs), *(odd.name for odd in page.oddities)) if name in own)
                following = page.next_start
        return found

    async def read_log(self, window: Window) -> LoggedNames:
        """Reads the whole log, however it is sharded, but keeps only what names a blob of the window."""
        logged = LoggedNames()
        start: str | None = ""
        entries = 0
        while start is not None:
            page = await self._reads.retry(partial(self._reads.log.entries, start, ENTRIES_PAGE))
            for entry in page.entries:
                if isinstance(entry, Unreadable):
                    logged.unreadable.add(entry.key.rpartition("/")[2])
                    continue
                change = entry.change
                matters = window.holds(change.object)
                if change.new is not None and window.holds(change.new):
                    logged.new.add(change.new)
                    matters = True
                if change.old is not None and window.holds(change.old):
                    logged.old.add(change.old)
                    matters = True
                if matters:
                    logged.objects.add(change.object)
            entries += len(page.entries)
            start = page.next_start
        self._summary.entries_max = max(self._summary.entries_max, entries)
        self._summary.unreadable_max = max(self._summary.unreadable_max, len(logged.unreadable))
        return logged
