"""Which blobs of a window are named by a row: by a scan of its rows, or by the index of a change feed.

    RowMatch.scan_rows            scans the rows of the window
    RowMatch.take_references      takes the index of a feed, and reads the rows that it leaves in doubt

Both take the blobs that a live tombstone names out of `window.unnamed`, and hand the tombstones whose blob was not
listed to the second look. `sweep.py` says when the row is read although the index has it. Rows come in columns, most of
them, and are compared with the names as two sorted lists are (`merge.py`). What does not fit there is looked at one by
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, repeat

from recovery.audit.names import is_of, is_plain, own_rows, rows_before
from recovery.audit.sweeping.judge import Judge, misfiled
from recovery.audit.sweeping.merge import NameMerge
from recovery.audit.sweeping.references import FeedIndex, Reference
from recovery.audit.sweeping.second_look import SecondReading
from recovery.audit.sweeping.tier_reads import POINT_READS, ROWS_PAGE, TierReads
from recovery.audit.sweeping.window import LoggedNames, Window
from tiered.services.capabilities import ColumnarRedirects, RedirectColumns
from tiered.services.scans import BlobInfo, Redirect, RedirectPage

LOOKED_UP_SHARE = 0.1
LOOKED_UP_MIN = 500
"""If the index of a feed leaves more rows to be read by their keys than both, the rows of the window are scanned.

The share is of the names in the window. A page of a scan holds more rows than a reading by keys, and costs less.
"""


@dataclass(slots=True)
class IndexedNames:
    """What the index of a feed has of a window.

    `names`: the blobs of the window. `enough`: objects and their blobs, where that is all that there is to know.
    `doubtful`: objects whose rows must be read.
    """

    names: Mapping[str, BlobInfo]
    enough: dict[str, str] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)


class RowMatch:
    """`second`: takes the tombstones whose blob was not listed."""

    def __init__(self, reads: TierReads, judge: Judge, second: SecondReading) -> None:
        self._reads = reads
        self._judge = judge
        self._second = second
        self._summary = judge.summary

    # --- a scan ----------------------------------------------------------------------------------

    async def scan_rows(self, window: Window) -> None:
        reads = self._reads
        merge = NameMerge(window.ordered)
        window.unnamed, window.rows, left = {}, 0, list[Redirect]()
        start: bytes | None = window.start.encode()
        end = None if window.end is None else window.end.encode()
        while start is not None:
            columns = await self._columns(start, end)
            start = columns.others.next_start
            left += self._merge(window, merge, columns)
            if start is None or len(left) > ROWS_PAGE:
                window.unnamed.update((window.ordered[place], window.blobs[place]) for place in merge.unmatched())
                await self._second.confirm_missing(window, self.match(window, left))
                left = []
        before = rows_before(window.start)
        for first in range(0, len(before), POINT_READS):
            page = await reads.retry(partial(reads.rows.redirects_at, before[first : first + POINT_READS]))
            # These rows are counted, and their faults reported, where their keys are scanned.
            window.misfiled.update(filter(None, map(misfiled, page.corrupt)))
            await self._second.confirm_missing(window, self.match(window, page.redirects))

    async def _columns(self, start: bytes, end: bytes | None) -> RedirectColumns:
        reads = self._reads
        if isinstance(reads.rows, ColumnarRedirects):
            return await reads.retry(partial(reads.rows.redirect_columns, start, end, ROWS_PAGE))
        page = await reads.retry(partial(reads.rows.redirects, start, end, ROWS_PAGE))
        paths, targets = [redirect.path for redirect in page.redirects], [redirect.target for redirect in page.redirects]
        deadlines_ns = {redirect.path: redirect.deadline_ns for redirect in page.redirects if redirect.deadline_ns is not None}
        return RedirectColumns(paths, targets, deadlines_ns, RedirectPage((), page.corrupt, page.next_start))

    def _merge(self, window: Window, merge: NameMerge, columns: RedirectColumns) -> list[Redirect]:
        """Matches the rows of a page with the names of the window, and tells which rows are damaged.

        Returns the rows that `match` must look at: those that have expired, and those whose blob the merge did not
        find.
        """
        paths, targets, others = columns.paths, columns.targets, columns.others
        found = len(paths) + len(others.redirects)
        window.rows = found + (window.rows or 0)
        self._summary.redirects += found
        self._judge.note_corrupt_rows(window, others)
        left = list(others.redirects)
        as_of_ns = self._judge.cutoff.as_of_ns
        expired = {path for path, deadline_ns in columns.deadlines_ns.items() if deadline_ns <= as_of_ns}
        if expired or not all(map(str.startswith, targets, map(str.__add__, paths, repeat("/")))):
            odd = [path in expired or not is_of(path, target) for path, target in zip(paths, targets, strict=True)]
            unusual = RedirectPage(_redirects(columns, compress(range(len(paths)), odd)), (), None)
            self._judge.note_corrupt_rows(window, unusual)
            left += unusual.redirects
            usual = [not each for each in odd]
            columns = RedirectColumns(list(compress(paths, usual)), list(compress(targets, usual)), columns.deadlines_ns, others)
        return left + _redirects(columns, merge.take(columns.targets))

    def match(self, window: Window, redirects: Iterable[Redirect]) -> list[Redirect]:
        """Removes the blobs that these rows name from `window.unnamed`.

        Returns the rows whose blob should be in the window but is not.
        """
        missing: list[Redirect] = []
        strike, now_ns = window.unnamed.pop, self._judge.cutoff.as_of_ns
        for redirect in redirects:
            _, target, deadline_ns = redirect
            blob = strike(target, None)
            if deadline_ns is not None and deadline_ns <= now_ns:
                if blob is not None:
                    window.named_by_expired[target] = blob
                elif not window.lists(target):
                    missing.append(redirect)
            elif blob is None:
                window.named_by_expired.pop(target, None)
                if not window.lists(target):
                    missing.append(redirect)
        for redirect in missing:
            if redirect.target in window.broken:
                window.broken_named.setdefault(redirect.target, set()).add(redirect.path)
        return [redirect for redirect in missing if window.holds(redirect.target) and redirect.target not in window.broken]

    # --- the index of a feed ---------------------------------------------------------------------

    async def take_references(self, window: Window, logged: LoggedNames, index: FeedIndex) -> None:
        """Takes the references from the index of a feed, and reads the rows that it leaves in doubt."""
        indexed = await self._read_index(window, index)
        self._doubt(window, logged, indexed)
        if logged.unreadable or len(indexed.doubtful) > max(LOOKED_UP_MIN, LOOKED_UP_SHARE * len(window.blobs)):
            before = self._summary.redirects
            await self.scan_rows(window)
            self._summary.looked_up += self._summary.redirects - before
        else:
            self._summary.redirects += sum(map(window.holds, indexed.enough))
            await self._look_up(window, sorted(indexed.doubtful))
        await self._reads.retry(index.check)

    async def _read_index(self, window: Window, index: FeedIndex) -> IndexedNames:
        indexed = IndexedNames(window.names())
        window.unnamed = dict(indexed.names)
        before = [key.decode() for key in rows_before(window.start)]
        for first in range(0, len(before), POINT_READS):
            self._take(window, indexed, await self._reads.retry(partial(index.at, before[first : first + POINT_READS])))
        start: str | None = window.start
        while start is not None:
            page = await self._reads.retry(partial(index.page, start, window.end, ROWS_PAGE))
            self._summary.indexed += len(page.references)
            self._take(window, indexed, page.references)
            start = page.next_start
        return indexed

    def _take(self, window: Window, indexed: IndexedNames, references: Iterable[Reference]) -> None:
        """Removes the blobs that these references explain from `window.unnamed`."""
        strike, names = window.unnamed.pop, indexed.names
        for path, target in references:
            blob = None if target is None else names.get(target)
            if target is None or not is_plain(path, target):
                indexed.doubtful.add(path)
            elif blob is None:
                if window.holds(target):
                    indexed.doubtful.add(path)
                else:
                    indexed.enough[path] = target  # its blob is in another window, which takes it from there
            elif blob.deadline_ns is not None:
                indexed.doubtful.add(path)
            else:
                indexed.enough[path] = target
                strike(target, None)

    def _doubt(self, window: Window, logged: LoggedNames, indexed: IndexedNames) -> None:
        """Adds the rows to be read because of the changelog, and because of blobs that the index does not explain.

        What the index says of an object counts for nothing if the object's row is read.
        """
        indexed.doubtful |= logged.objects
        for name in window.unnamed:
            indexed.doubtful.update(own_rows(name))
        again = list(indexed.doubtful & indexed.enough.keys())
        while again:
            path = again.pop()
            target = indexed.enough.pop(path, None)
            if target is not None and target in indexed.names:
                window.unnamed[target] = indexed.names[target]
                others = [each for each in own_rows(target) if each in indexed.enough]  # another row may name it, too
                indexed.doubtful.update(others)
                again += others

    async def _look_up(self, window: Window, paths: Sequence[str]) -> None:
        """Reads these rows by their keys."""
        for first in range(0, len(paths), POINT_READS):
            keys = [path.encode() for path in paths[first : first + POINT_READS]]
            page = await self._reads.retry(partial(self._reads.rows.redirects_at, keys))
            self._summary.looked_up += len(keys)
            within = [redirect for redirect in page.redirects if window.holds(redirect.path)]
            self._summary.redirects += len(within)
            self._judge.note_corrupt_rows(window, RedirectPage(within, [row for row in page.corrupt if window.holds(row.path)], None))
            window.misfiled.update(filter(None, map(misfiled, page.corrupt)))
            await self._second.confirm_missing(window, self.match(window, page.redirects))


def _redirects(columns: RedirectColumns, places: Iterable[int]) -> list[Redirect]:
    """Returns the rows at these places of the columns."""
    paths, targets, deadlines_ns = columns.paths, columns.targets, columns.deadlines_ns
    return [Redirect(path := paths[place], targets[place], deadlines_ns.get(path)) for place in places]
