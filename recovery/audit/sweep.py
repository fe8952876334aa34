"""Audits one range of names while the store is in use. This is the core of the audit.

It uses no engine, no files and only the runtime's clock.

It works in windows of some ten thousand names. In each window it reads in this order and no other:

    L  list the blobs
    C  read the changelog      a change under way during L is in it, or has finished and is seen in R
    R  scan the rows           what was committed after L is seen here

R may be the index of a change feed (`recovery.audit.references`). Then the row is read by its key wherever the index is
not enough: if an entry names the object or the blob, if the blob was not listed, if it has a deadline (the index has
none), or if the index does not name it. After that, all is as it is after a scan. If that would be many rows, or if
nobody can tell what an entry names, the rows of the window are scanned all the same.

A blob is unused if L has it and neither R nor C names it. In any other order,
that may also be true of a blob in use.

A blob that looks like an orphan, or overdue, gets a second look: at the log (its change may have been recorded after C
and committed before R), at the blob (it must still exist with the generation that was listed, because its clean-up may
be done) and at its rows. A tombstone whose blob is not in L is dangling if and only if a point read finds no blob and
the row, read after that, still names it. The same look tells whether a blob that cannot be read is loss or garbage.
With `verify`, the blobs that live tombstones name are then read to their last byte.

Memory holds one window of blobs, one page of rows (two, if most of them fit no blob) and the names of the log's entries
that lie in the window, whatever the size of the range. Rows come in columns, most of them, and are compared with the
names as two sorted lists are (`recovery.audit.merge`). What does not fit there is looked at one by one. Rows are
matched by the blob's *name*, so both readings of a name are tried. Rows that sort before the window are read by their
keys (`names.rows_before`).

*Crash*: nothing was written. *Failure*: an error is raised if reads are forbidden, or if they stay unavailable for
`READ_BUDGET_S`. Then nothing is known about the range: an audit of a part of it proves nothing. The audit only reads,
so running it twice, or beside others, does no harm.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, repeat
from operator import attrgetter
from typing import NamedTuple, TypeVar

import anyio

from changelog.base.errors import CorruptRecordError, TieredError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId, Unreadable
from changelog.log import ChangeLog
from recovery.audit.finding import NO_USECASE, Finding, Summary, Tally
from recovery.audit.finding_classes import (
    FINDINGS,
    Deadline,
    Facts,
    FindingClass,
    Logged,
    MissingBlob,
    NameForm,
    Redirected,
    classify,
    classify_missing,
)
from recovery.audit.manifest import Bounds, Cutoff, FeedReferences, Verify
from recovery.audit.merge import NameMerge
from recovery.audit.names import ParsedName, after, is_of, is_plain, own_rows, read_name, rows_before, usecase_of
from recovery.audit.references import FeedIndex, Reference
from recovery.audit.verify import READ_BUDGET_S, Verifier, is_chosen
from tiered.metadata import NS_PER_MS, NS_PER_S
from tiered.protocol.backends import BlobHead, Tiers
from tiered.protocol.capabilities import ColumnarRedirects, GenerationLookup, RedirectColumns
from tiered.protocol.retry import retry_read
from tiered.protocol.scans import BlobInfo, CorruptRow, ListedBlob, Oddity, Redirect, RedirectPage

T = TypeVar("T")
Sink = Callable[[Sequence[Finding]], None]
_Head = BlobHead | CorruptRecordError | None
"""What a point read finds: the blob, what is wrong with it, or no blob."""

WINDOW_NAMES = 25_000
"""Twice as many cost a worker 17 MiB more and made no range faster."""
WINDOW_VERIFIED = 1000
"""As many if payloads are read. A window is never cut, and what was read of it is read again if its worker dies."""

ROWS_PAGE = 15_000
ENTRIES_PAGE = 1000
POINT_READS = 200
POINTS_AT_ONCE = 16
LOOKED_UP_SHARE = 0.1
LOOKED_UP_MIN = 500
"""If the index of a feed leaves more rows to be read by their keys than both, the rows of the window are scanned.

The share is of the names in the window. A page of a scan holds more rows than a reading by keys, and costs less.
"""

RELIST_SHARE = 0.02
"""A share of the names in a window.

If more than this are to be looked at again, one more listing is cheaper than a request for each.
"""

ACCUSED = (FindingClass.ORPHAN, FindingClass.LEGACY_ORPHAN, FindingClass.OVERDUE)
"""What is looked at twice, because somebody may delete it."""

BROKEN_BUDGET_S = 5.0
"""How long a blob is asked for that the listing could not read. If there is no answer, the listing's word stands."""

LOOKED_AT_ONCE = 1000
"""How many blobs a tier is asked for in one call, if it tells their generations without a listing."""

FOUND_AT_ONCE = 1000
"""So many findings are held back, and then `found` is called. Most calls would have one finding otherwise."""

UPLOAD_STALE_NS = 8 * 86_400 * NS_PER_S
"""A part of an upload that is older than this belongs to none that can be finished: a session lives a week."""

LISTED_AFTER_NS = 3600 * NS_PER_S
"""A blob that was created this long before the audit began was visible to the listing, however slow its writer was."""

SKEW_MAX_NS = 60 * NS_PER_S
"""A clock that differs by more than this is wrong."""

AHEAD_NS = 3600 * NS_PER_S
"""A blob is counted as `dated_ahead` if its date lies more than this in the future."""


async def audit_range(
    tiers: Tiers, log: ChangeLog, bounds: Bounds, cutoff: Cutoff, runtime: Runtime, found: Sink, *, window_names: int = WINDOW_NAMES,
    verify: Verify | None = None, references: FeedReferences | None = None, suspects_only: bool = False,
) -> Summary:  # fmt: skip
    """Audits the blobs of these names, and the rows that name one of them.

    `found` is called with the findings as they are found.

    If several ranges together hold every name, they hold every row. `window_names`: how many names a window holds.
    `verify`: which payloads are read; None: none. `references`: the feed that tells the references; None: the rows are
    scanned. `suspects_only`: a scan of these tiers shows not all rows, but a row that is read by its key is that of the
    table.

    Raises `TieredError` if the range cannot be read to its end. What was found until then is no evidence.
    """
    summary, _ = await audit_until(
        tiers, log, bounds, cutoff, runtime, found, lambda _: False, window_names=window_names, verify=verify, references=references,
        suspects_only=suspects_only,
    )  # fmt: skip
    return summary


async def audit_until(
    tiers: Tiers, log: ChangeLog, bounds: Bounds, cutoff: Cutoff, runtime: Runtime, found: Sink, enough: Callable[[Summary], bool], *,
    window_names: int = WINDOW_NAMES, verify: Verify | None = None, references: FeedReferences | None = None, suspects_only: bool = False,
) -> tuple[Summary, str | None]:  # fmt: skip
    """Does the same, but ends after the first window at whose end `enough` of the summary is true.

    Returns the summary, and the name where the rest begins: everything before it was audited. None: there is no rest.
    """
    index = None if references is None else FeedIndex(log, references)
    sweep = _Sweep(tiers, log, bounds, cutoff, runtime, found, window_names, verify, index, suspects_only)
    await sweep.ask_the_time()
    start: str | None = bounds.start
    while start is not None:
        start = await sweep.audit_window(start)
        if start is not None and enough(sweep.summary):
            break
    return sweep.summary, start


@dataclass(slots=True)
class _Logged:
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
class _Window:
    """The blobs with names from `start` to `end`, and which of them nothing explains yet.

    `unnamed`: those that no row names, once the rows were read. `misfiled`: what damaged rows of other keys name, also
    blobs of other windows. `ordered`: the names of `blobs`. `broken`: those that cannot be read. `broken_named`: for
    these, the keys of the rows that name them. `rows`: how many rows a scan of the window's keys found; None: they were
    not scanned. Times are nanoseconds since 1970.
    """

    start: str
    end: str | None
    blobs: list[BlobInfo]
    broken: dict[str, Oddity]
    listed_ns: int
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


class _Suspect(NamedTuple):
    """A blob that gets a second look, and what was known after the first one."""

    blob: BlobInfo
    reading: ParsedName
    facts: Facts


@dataclass(slots=True)
class _Told:
    """What the index of a feed tells of a window.

    `names`: the blobs of the window. `enough`: objects and their blobs, where that is all that there is to know.
    `doubtful`: objects whose rows must be read.
    """

    names: Mapping[str, BlobInfo]
    enough: dict[str, str] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)


class _Sweep:
    def __init__(
        self, tiers: Tiers, log: ChangeLog, bounds: Bounds, cutoff: Cutoff, runtime: Runtime, found: Sink, window_names: int,
        verify: Verify | None, index: FeedIndex | None, suspects_only: bool,
    ) -> None:  # fmt: skip
        self.summary = Summary()
        self._index = index
        self._suspects_only = suspects_only
        self._rows = tiers.high_volume
        self._blobs = tiers.long_term
        self._log = log
        self._bounds = bounds
        self._cutoff = cutoff
        self._young_from_ns = cutoff.created_before_ns
        self._runtime = runtime
        self._found = found
        self._held: list[Finding] = []
        self._window_names = window_names if verify is None else min(window_names, WINDOW_VERIFIED)
        self._verify = verify
        self._verifier = None if verify is None else Verifier(tiers.long_term, runtime, verify.bytes_per_s)
        self._ahead_ns = 0

    async def ask_the_time(self) -> None:
        """Measures how far this machine's clock is ahead of the service's.

        A small difference counts as none: the service's clock has whole seconds, and the question takes time itself.
        """
        ahead_ns = self._runtime.wall_ns() - await self._retry_read(self._blobs.now_ns)
        self._ahead_ns = ahead_ns if ahead_ns > SKEW_MAX_NS else 0

    async def audit_window(self, start: str) -> str | None:
        """Audits one window. Returns the name where the next window begins, or None if the range is done."""
        window, oddities, next_start = await self._list(start)
        window.logged_ns = self._runtime.wall_ns()
        logged = await self._read_log(window)
        window.scanned_ns = self._runtime.wall_ns()
        self._count_listed(window)
        self._tell_foreign(window, oddities)
        await (self._scan_rows(window) if self._index is None else self._take_references(window, logged, self._index))
        await self._judge(window, logged)
        await self._judge_broken(window)
        await self._read_payloads(window)
        self._tell_held()
        self.summary.windows += 1
        return next_start

    # --- L ---------------------------------------------------------------------------------------

    async def _list(self, start: str) -> tuple[_Window, list[Oddity], str | None]:
        listed_ns = self._runtime.wall_ns()
        blobs: list[BlobInfo] = []
        oddities: list[Oddity] = []
        next_start: str | None = start
        while next_start is not None and len(blobs) < self._window_names:
            left = self._window_names - len(blobs)
            page = await self._retry_read(partial(self._blobs.list, next_start, self._bounds.end, left))
            blobs += page.blobs
            oddities += page.oddities
            next_start = page.next_start
        broken = {oddity.name: oddity for oddity in oddities if oddity.is_blob}
        end = self._bounds.end if next_start is None else next_start
        return _Window(start, end, blobs, broken, listed_ns), oddities, next_start

    def _count_listed(self, window: _Window) -> None:
        """Counts each blob as referenced. Later steps correct the count for those that are not.

        A blob that cannot be read is a name like the others. It is counted when it is judged.
        """
        blobs, first = window.blobs, 0
        self.summary.names += len(blobs) + len(window.broken)
        while first < len(blobs):
            usecase = usecase_of(blobs[first].name)
            # All names of a usecase are next to each other, up to `{usecase}0`, because 0 comes right after the slash.
            last = first + 1 if usecase == NO_USECASE else bisect_left(blobs, f"{usecase}0", lo=first + 1, key=_NAME)
            self.summary.count(usecase, FindingClass.REFERENCED, last - first, sum(map(_SIZE, blobs[first:last])))
            first = last

    def _tell_foreign(self, window: _Window, oddities: Iterable[Oddity]) -> None:
        for oddity in oddities:
            if not oddity.is_blob:
                self._tell(window, FindingClass.FOREIGN, oddity.name, detail=oddity.fault)

    # --- C ---------------------------------------------------------------------------------------

    async def _read_log(self, window: _Window) -> _Logged:
        """Reads the whole log, however it is sharded, but keep only what names a blob of the window."""
        logged = _Logged()
        start: str | None = ""
        entries = 0
        while start is not None:
            page = await self._retry_read(partial(self._log.entries, start, ENTRIES_PAGE))
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
        self.summary.entries_max = max(self.summary.entries_max, entries)
        self.summary.unreadable_max = max(self.summary.unreadable_max, len(logged.unreadable))
        return logged

    # --- R ---------------------------------------------------------------------------------------

    async def _scan_rows(self, window: _Window) -> None:
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
                await self._look_for(window, self._match(window, left))
                left = []
        before = rows_before(window.start)
        for first in range(0, len(before), POINT_READS):
            page = await self._retry_read(partial(self._rows.redirects_at, before[first : first + POINT_READS]))
            # These rows are counted, and their faults reported, where their keys are scanned.
            window.misfiled.update(filter(None, map(_misfiled, page.corrupt)))
            await self._look_for(window, self._match(window, page.redirects))

    async def _columns(self, start: bytes, end: bytes | None) -> RedirectColumns:
        if isinstance(self._rows, ColumnarRedirects):
            return await self._retry_read(partial(self._rows.redirect_columns, start, end, ROWS_PAGE))
        page = await self._retry_read(partial(self._rows.redirects, start, end, ROWS_PAGE))
        paths, targets = [redirect.path for redirect in page.redirects], [redirect.target for redirect in page.redirects]
        deadlines_ns = {redirect.path: redirect.deadline_ns for redirect in page.redirects if redirect.deadline_ns is not None}
        return RedirectColumns(paths, targets, deadlines_ns, RedirectPage((), page.corrupt, page.next_start))

    def _merge(self, window: _Window, merge: NameMerge, columns: RedirectColumns) -> list[Redirect]:
        """Matches the rows of a page with the names of the window, and tells which rows are damaged.

        Returns the rows that `_match` must look at: those that have expired, and those whose blob the merge did not
        find.
        """
        paths, targets, others = columns.paths, columns.targets, columns.others
        found = len(paths) + len(others.redirects)
        window.rows = found + (window.rows or 0)
        self.summary.redirects += found
        self._tell_corrupt_rows(window, others)
        left = list(others.redirects)
        expired = {path for path, deadline_ns in columns.deadlines_ns.items() if deadline_ns <= self._cutoff.as_of_ns}
        if expired or not all(map(str.startswith, targets, map(str.__add__, paths, repeat("/")))):
            odd = [path in expired or not is_of(path, target) for path, target in zip(paths, targets, strict=True)]
            unusual = RedirectPage(_redirects(columns, compress(range(len(paths)), odd)), (), None)
            self._tell_corrupt_rows(window, unusual)
            left += unusual.redirects
            usual = [not each for each in odd]
            columns = RedirectColumns(list(compress(paths, usual)), list(compress(targets, usual)), columns.deadlines_ns, others)
        return left + _redirects(columns, merge.take(columns.targets))

    async def _take_references(self, window: _Window, logged: _Logged, index: FeedIndex) -> None:
        """Takes the references from the index of a feed, and reads the rows that it leaves in doubt."""
        told = await self._read_index(window, index)
        self._doubt(window, logged, told)
        if logged.unreadable or len(told.doubtful) > max(LOOKED_UP_MIN, LOOKED_UP_SHARE * len(window.blobs)):
            before = self.summary.redirects
            await self._scan_rows(window)
            self.summary.looked_up += self.summary.redirects - before
        else:
            self.summary.redirects += sum(map(window.holds, told.enough))
            await self._look_up(window, sorted(told.doubtful))
        await self._retry_read(index.check)

    async def _read_index(self, window: _Window, index: FeedIndex) -> _Told:
        told = _Told(window.names())
        window.unnamed = dict(told.names)
        before = [key.decode() for key in rows_before(window.start)]
        for first in range(0, len(before), POINT_READS):
            self._take(window, told, await self._retry_read(partial(index.at, before[first : first + POINT_READS])))
        start: str | None = window.start
        while start is not None:
            page = await self._retry_read(partial(index.page, start, window.end, ROWS_PAGE))
            self.summary.indexed += len(page.references)
            self._take(window, told, page.references)
            start = page.next_start
        return told

    def _take(self, window: _Window, told: _Told, references: Iterable[Reference]) -> None:
        """Removes the blobs that these references explain from `window.unnamed`."""
        strike, names = window.unnamed.pop, told.names
        for path, target in references:
            blob = None if target is None else names.get(target)
            if target is None or not is_plain(path, target):
                told.doubtful.add(path)
            elif blob is None:
                if window.holds(target):
                    told.doubtful.add(path)
                else:
                    told.enough[path] = target  # its blob is in another window, which takes it from there
            elif blob.deadline_ns is not None:
                told.doubtful.add(path)
            else:
                told.enough[path] = target
                strike(target, None)

    def _doubt(self, window: _Window, logged: _Logged, told: _Told) -> None:
        """Adds the rows to be read because of the changelog, and because of blobs that the index does not explain.

        What the index says of an object counts for nothing if the object's row is read.
        """
        told.doubtful |= logged.objects
        for name in window.unnamed:
            told.doubtful.update(own_rows(name))
        again = list(told.doubtful & told.enough.keys())
        while again:
            path = again.pop()
            target = told.enough.pop(path, None)
            if target is not None and target in told.names:
                window.unnamed[target] = told.names[target]
                others = [each for each in own_rows(target) if each in told.enough]  # another row may name it, too
                told.doubtful.update(others)
                again += others

    async def _look_up(self, window: _Window, paths: Sequence[str]) -> None:
        """Reads these rows by their keys."""
        for first in range(0, len(paths), POINT_READS):
            keys = [path.encode() for path in paths[first : first + POINT_READS]]
            page = await self._retry_read(partial(self._rows.redirects_at, keys))
            self.summary.looked_up += len(keys)
            within = [redirect for redirect in page.redirects if window.holds(redirect.path)]
            self.summary.redirects += len(within)
            self._tell_corrupt_rows(window, RedirectPage(within, [row for row in page.corrupt if window.holds(row.path)], None))
            window.misfiled.update(filter(None, map(_misfiled, page.corrupt)))
            await self._look_for(window, self._match(window, page.redirects))

    def _match(self, window: _Window, redirects: Iterable[Redirect]) -> list[Redirect]:
        """Removes the blobs that these rows name from `window.unnamed`.

        Returns the rows whose blob should be in the window but is not.
        """
        missing: list[Redirect] = []
        strike, now_ns = window.unnamed.pop, self._cutoff.as_of_ns
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

    def _tell_corrupt_rows(self, window: _Window, page: RedirectPage) -> None:
        for row in page.corrupt:
            self._tell_row(window, FindingClass.CORRUPT_ROW, row)
            if (name := _misfiled(row)) is not None:
                window.misfiled.add(name)
                detail = f"the row {row.path} names it, which nobody finds by its key; {row.fault}"
                self._tell(window, FindingClass.MISFILED, name, read_name(name).object, read_name(name).revision, detail=detail)
        for path, target, _ in page.redirects:
            if not target.startswith(f"{path}/") and not is_of(path, target):
                self._tell_row(window, FindingClass.MISDIRECTED, CorruptRow(path, f"it names {target!r}, a blob that is not its own"))

    def _tell_row(self, window: _Window, kind: FindingClass, row: CorruptRow) -> None:
        self._tell(window, kind, row.path, object=row.path, detail=row.fault)

    # --- dangling --------------------------------------------------------------------------------

    async def _look_for(self, window: _Window, missing: Sequence[Redirect]) -> None:
        """Checks each tombstone whose blob was not listed: does the blob exist, and if not, does the row still name it?
        """
        live: list[Redirect] = []
        for redirect in missing:
            if not is_of(redirect.path, redirect.target):
                continue  # it is reported as misdirected, and its blob may be in any range
            if self._has_expired(redirect.deadline_ns):
                self.summary.count(usecase_of(redirect.path), FindingClass.EXPIRED, 1, 0)
            else:
                live.append(redirect)
        if not live:
            return
        heads = await self._heads([redirect.target for redirect in live])
        confirmed_ns = self._runtime.wall_ns()
        doubtful = {redirect.path for redirect in live if not isinstance(heads[redirect.target], BlobHead)}
        shown, _, _ = await self._rows_now(doubtful)
        for redirect in live:
            self._judge_missing(window, redirect, heads[redirect.target], shown, confirmed_ns)

    def _judge_missing(
        self, window: _Window, redirect: Redirect, head: _Head, shown: Mapping[str, Redirect], confirmed_ns: int
    ) -> None:
        path, target, deadline_ns = redirect
        seen = head if isinstance(head, BlobHead) else None
        now = shown.get(target)
        kind = classify_missing(MissingBlob(
            expired=now is not None and self._has_expired(now.deadline_ns),
            there=head is not None,
            readable=seen is not None,
            listable=seen is not None and self._was_listable(seen),
            shown=now is not None,
        ))  # fmt: skip
        if kind is None:
            return
        if kind not in FINDINGS:
            self.summary.count(usecase_of(path), kind, 1, 0 if seen is None else seen.size)
            return
        detail = "its row names it, and it is not there" if head is None else "it is there, and was not listed"
        if isinstance(head, CorruptRecordError):
            detail = str(head)
        size, created_ns, generation = (None, None, None) if seen is None else (seen.size, seen.created_ns, seen.generation)
        self._tell(
            window, kind, target, path, read_name(target).revision, size, created_ns, generation, deadline_ns, detail, confirmed_ns
        )

    def _was_listable(self, head: BlobHead) -> bool:
        """Tells whether the blob was there so long before the audit began that every listing must hold it.

        The writer's clock alone proves nothing: if it is behind, a new blob seems to be old.
        """
        there_ns = max(head.created_ns, head.changed_ns or 0)
        return there_ns < min(self._cutoff.created_before_ns, self._cutoff.as_of_ns - LISTED_AFTER_NS)

    async def _heads(self, names: Sequence[str], broken_budget_s: float | None = None) -> dict[str, _Head]:
        """Asks for each of these blobs.

        `broken_budget_s`: they could not be read when they were listed; if one is not available for so many seconds,
        it still cannot be read.
        """
        found: dict[str, _Head] = {}
        failed: list[TieredError] = []
        waiting = iter(names)

        async def look() -> None:
            try:
                for name in waiting:
                    try:
                        found[name] = await retry_read(partial(self._blobs.head, name), self._runtime, broken_budget_s or READ_BUDGET_S)
                    except CorruptRecordError as error:
                        found[name] = error
                    except UnavailableError as error:
                        if broken_budget_s is None:
                            raise
                        found[name] = CorruptRecordError(str(error))
            except TieredError as error:
                failed.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for _ in range(min(POINTS_AT_ONCE, len(names))):
                group.start_soon(look)
        if failed:
            raise failed[0]  # raise the error itself, not an exception group
        return found

    async def _rows_now(self, paths: Iterable[str]) -> tuple[dict[str, Redirect], set[str], set[str]]:
        """Reads these rows again.

        Returns their tombstones by the blob that they name, the keys of the rows that are corrupt, and what those name
        that are not at the key of their object.
        """
        keys = sorted(path.encode() for path in paths)
        found: dict[str, Redirect] = {}
        corrupt: set[str] = set()
        misfiled: set[str] = set()
        for first in range(0, len(keys), POINT_READS):
            page = await self._retry_read(partial(self._rows.redirects_at, keys[first : first + POINT_READS]))
            self._keep_rows(page, found, corrupt, misfiled)
        return found, corrupt, misfiled

    def _keep_rows(self, page: RedirectPage, found: dict[str, Redirect], corrupt: set[str], misfiled: set[str]) -> None:
        for redirect in page.redirects:  # if two rows name one blob, keep the tombstone that protects it
            if redirect.target not in found or not self._has_expired(redirect.deadline_ns):
                found[redirect.target] = redirect
        corrupt.update(row.path for row in page.corrupt)
        misfiled.update(filter(None, map(_misfiled, page.corrupt)))

    # --- orphans ---------------------------------------------------------------------------------

    async def _judge(self, window: _Window, logged: _Logged) -> None:
        """Judges the blobs that no row names, and those that only an expired tombstone names."""
        for name in window.misfiled:
            window.unnamed.pop(name, None)
            window.named_by_expired.pop(name, None)
        suspects: list[_Suspect] = []
        for redirected, blobs in ((Redirected.EXPIRED, window.named_by_expired), (Redirected.NOT, window.unnamed)):
            for name, listed in blobs.items():
                reading, blob = read_name(name), _with_times(listed)
                date_ns = self._date_ns(reading.revision, blob.created_ns)
                facts = self._facts(blob, reading, logged, redirected, date_ns)
                if classify(facts) in ACCUSED:
                    suspects.append(_Suspect(blob, reading, facts))
                else:
                    self._conclude(window, blob, reading, classify(facts))
                if date_ns > window.listed_ns + AHEAD_NS:
                    self.summary.dated_ahead += 1
        if suspects:
            await self._judge_again(window, suspects)
        self._tell_held()

    async def _judge_again(self, window: _Window, suspects: Sequence[_Suspect]) -> None:
        """The second look at blobs that seem to be orphans or overdue.

        It reads the log first, because an entry outlives the blob that it names.
        """
        logged = await self._read_log(window)
        there = await self._still_there(window, [suspect.blob for suspect in suspects])
        confirmed_ns = self._runtime.wall_ns()
        paths = {path for blob, reading, _ in suspects for path in (reading.object, blob.name) if path}
        named, corrupt, misfiled = await self._rows_again(window, paths)
        accused: list[tuple[BlobInfo, ParsedName, FindingClass]] = []
        for blob, reading, facts in suspects:
            name = blob.name
            if there.get(name) != blob.generation:
                self._uncount(blob)  # it disappeared meanwhile, or it is another blob now
                continue
            redirected = self._redirected(named.get(name))
            if reading.object in corrupt or name in corrupt or name in misfiled:
                redirected = Redirected.LIVE  # nobody can say what a corrupt row names, and the row is a finding itself
            now = logged.of(name, reading.revision), redirected
            if now != (facts.logged, facts.redirected) or blob.deadline_ns is not None:
                facts = facts._replace(logged=now[0], redirected=redirected, deadline=self._standing_of(blob.deadline_ns))
            kind = classify(facts)
            if kind in ACCUSED:
                accused.append((blob, reading, kind))
            else:
                self._conclude(window, blob, reading, kind, confirmed_ns)
        self._accuse(window, accused, confirmed_ns)

    async def _rows_again(self, window: _Window, paths: Set[str]) -> tuple[dict[str, Redirect], set[str], set[str]]:
        """As `_rows_now`. If the window has fewer rows than there are keys, it scans them all: that is cheaper.

        It never does if a scan shows only suspects, because here every row counts that names one of the blobs.
        """
        within = sorted(path for path in paths if window.holds(path))
        if self._suspects_only or window.rows is None or window.rows >= len(within):
            return await self._rows_now(paths)
        found, corrupt, misfiled = await self._rows_now(path for path in paths if not window.holds(path))
        start: bytes | None = within[0].encode()
        while start is not None:
            page = await self._retry_read(partial(self._rows.redirects, start, after(within[-1]).encode(), ROWS_PAGE))
            self._keep_rows(page, found, corrupt, misfiled)
            start = page.next_start
        return found, corrupt, misfiled

    def _accuse(self, window: _Window, accused: Sequence[tuple[BlobInfo, ParsedName, FindingClass]], confirmed_ns: int) -> None:
        """Does what `_conclude` does for these blobs, and counts them together."""
        listed_ns, logged_ns, scanned_ns, as_of_ns = window.listed_ns, window.logged_ns, window.scanned_ns, self._cutoff.as_of_ns
        counts: dict[tuple[str, FindingClass], Tally] = {}
        for blob, reading, kind in accused:
            name, size, created_ns, deadline_ns = blob.name, blob.size, blob.created_ns, blob.deadline_ns
            key = usecase_of(name), kind
            if key not in counts:
                counts[key] = Tally()
            counts[key].add(1, size)
            self.summary.age(kind, (as_of_ns - created_ns) / NS_PER_S, size)
            self._held.append(Finding(
                kind, name, reading.object, reading.revision, size, created_ns, deadline_ns, blob.generation, self._why(kind, blob),
                listed_ns, logged_ns, scanned_ns, confirmed_ns,
            ))  # fmt: skip
        for (usecase, kind), count in counts.items():
            self.summary.count(usecase, FindingClass.REFERENCED, -count.number, -count.size)
            self.summary.count(usecase, kind, count.number, count.size)
        self._tell_held()

    # --- blobs that cannot be read -----------------------------------------------------------------

    async def _judge_broken(self, window: _Window) -> None:
        """Tells for each blob that cannot be read whether a live tombstone names it: loss, or garbage.

        It looks again as `_judge_again` does, in the same order. A blob that can be read by now is judged like others.
        """
        if not window.broken:
            return
        logged = await self._read_log(window)
        heads = await self._heads(list(window.broken), BROKEN_BUDGET_S)
        confirmed_ns = self._runtime.wall_ns()
        paths = {name: {name, *window.broken_named.get(name, ()), *_object_of(name)} for name in window.broken}
        named, corrupt_rows, _ = await self._rows_now(set().union(*paths.values()))
        for name, oddity in window.broken.items():
            head, row = heads[name], named.get(name)
            if head is None:
                if row is not None and not self._has_expired(row.deadline_ns):
                    self._judge_missing(window, row, None, named, confirmed_ns)
                continue
            redirected = self._redirected(row)
            hidden = redirected is not Redirected.LIVE and bool(paths[name] & corrupt_rows)
            if isinstance(head, BlobHead):
                blob = ListedBlob(name, head.size, head.created_ns, head.metadata.time_expires_ns, head.generation)
                self.summary.count(usecase_of(name), FindingClass.REFERENCED, 1, blob.size)
                kind = self._classify(blob, read_name(name), logged, Redirected.LIVE if hidden else redirected)
                self._conclude(window, blob, read_name(name), kind, confirmed_ns)
            else:
                self._tell_broken(window, oddity, row, self._standing(name, logged, redirected, hidden), confirmed_ns)

    def _standing(self, name: str, logged: _Logged, redirected: Redirected, hidden: bool) -> str:
        """Returns who names a blob that cannot be read, in words. Empty: a live tombstone."""
        if redirected is Redirected.LIVE:
            return ""
        if hidden:
            return "the row of its object is corrupt, so nobody can tell whether it names it"
        if logged.of(name, read_name(name).revision) is not Logged.NOT:
            return "an entry of the changelog names it"
        return "nothing names it" if redirected is Redirected.NOT else "only an expired tombstone names it"

    def _tell_broken(self, window: _Window, oddity: Oddity, row: Redirect | None, standing: str, confirmed_ns: int) -> None:
        reading = read_name(oddity.name)
        kind = classify(Facts(
            reading.form, Logged.NOT, Redirected.NOT if standing else Redirected.LIVE, readable=False, young=False, stale=False,
            deadline=Deadline.AHEAD,
        ))  # fmt: skip
        path = reading.object if row is None else row.path
        detail = f"{oddity.fault}; {standing}" if standing else oddity.fault
        self._tell(
            window, kind, oddity.name, path, reading.revision, oddity.size, oddity.created_ns, oddity.generation,
            None if row is None else row.deadline_ns, detail, confirmed_ns,
        )  # fmt: skip

    async def _read_payloads(self, window: _Window) -> None:
        """Reads the chosen ones of the blobs that live tombstones name. Those that `get` would refuse are judged again.
        """
        if self._verify is None or self._verifier is None:
            return
        share = self._verify.share
        names = [
            blob.name for blob in window.blobs
            if blob.name not in window.unnamed and blob.name not in window.named_by_expired and is_chosen(blob.name, share)
        ]  # fmt: skip
        seen = await self._verifier.look_at(names)
        self.summary.verified += sum(each.there and each.fault is None for each in seen.values())
        self.summary.verified_bytes += sum(each.size for each in seen.values())
        refused = {name: each for name, each in seen.items() if each.fault is not None or not each.there}
        if not refused:
            return
        confirmed_ns = self._runtime.wall_ns()
        logged = await self._read_log(window)
        named, corrupt_rows, _ = await self._rows_now({path for name in refused for path in (name, *_object_of(name))})
        listed = window.names()
        for name, each in refused.items():
            row, blob = named.get(name), listed[name]
            if not each.there:
                if row is not None and not self._has_expired(row.deadline_ns):
                    self._uncount(blob)
                    self._judge_missing(window, row, None, named, confirmed_ns)
                continue
            self._uncount(blob)
            hidden = row is None and bool({name, *_object_of(name)} & corrupt_rows)
            oddity = Oddity(name, str(each.fault), True, blob.size, blob.created_ns, blob.generation)
            self._tell_broken(window, oddity, row, self._standing(name, logged, self._redirected(row), hidden), confirmed_ns)

    def _redirected(self, row: Redirect | None) -> Redirected:
        if row is None:
            return Redirected.NOT
        return Redirected.EXPIRED if self._has_expired(row.deadline_ns) else Redirected.LIVE

    async def _still_there(self, window: _Window, suspects: Sequence[BlobInfo]) -> dict[str, int]:
        """Returns the generation of each of these blobs that still exists."""
        if isinstance(self._blobs, GenerationLookup):
            generations = dict[str, int]()
            for first in range(0, len(suspects), LOOKED_AT_ONCE):
                generations |= await self._retry_read(partial(self._blobs.generations, suspects[first : first + LOOKED_AT_ONCE]))
            return generations
        if len(suspects) <= RELIST_SHARE * len(window.blobs):
            heads = await self._heads([blob.name for blob in suspects])
            generations = {blob.name: blob.generation for blob in suspects}
            return {name: _generation(head, generations[name]) for name, head in heads.items() if head is not None}
        wanted = {blob.name for blob in suspects}
        found: dict[str, int] = {}
        start: str | None = min(wanted)
        end = after(max(wanted))
        while start is not None:
            page = await self._retry_read(partial(self._blobs.list, start, end, self._window_names))
            found.update((blob.name, blob.generation) for blob in page.blobs if blob.name in wanted)
            start = page.next_start
        return found

    def _classify(self, blob: BlobInfo, reading: ParsedName, logged: _Logged, redirected: Redirected) -> FindingClass:
        return classify(self._facts(blob, reading, logged, redirected, self._date_ns(reading.revision, blob.created_ns)))

    def _facts(self, blob: BlobInfo, reading: ParsedName, logged: _Logged, redirected: Redirected, date_ns: int) -> Facts:
        return Facts(
            form=reading.form,
            logged=logged.of(blob.name, reading.revision),
            redirected=redirected,
            readable=True,
            young=date_ns >= self._young_from_ns,
            stale=reading.form is NameForm.UPLOAD and blob.created_ns < self._cutoff.as_of_ns - UPLOAD_STALE_NS,
            deadline=self._standing_of(blob.deadline_ns),
        )

    def _conclude(self, window: _Window, blob: BlobInfo, reading: ParsedName, kind: FindingClass, confirmed_ns: int | None = None) -> None:
        if kind is FindingClass.REFERENCED:
            return
        self._uncount(blob)
        self.summary.age(kind, (self._cutoff.as_of_ns - blob.created_ns) / NS_PER_S, blob.size)
        if kind not in FINDINGS:
            self.summary.count(usecase_of(blob.name), kind, 1, blob.size)
            return
        self._tell(
            window, kind, blob.name, reading.object, reading.revision, blob.size, blob.created_ns, blob.generation, blob.deadline_ns,
            self._why(kind, blob), confirmed_ns,
        )  # fmt: skip

    def _why(self, kind: FindingClass, blob: BlobInfo) -> str:
        if kind is FindingClass.OVERDUE:
            days = (self._cutoff.as_of_ns - (blob.deadline_ns or 0)) // (86_400 * NS_PER_S)
            return f"its deadline passed {days} days before the audit began"
        return "no tombstone and no entry of the changelog names it" if kind in (FindingClass.ORPHAN, FindingClass.LEGACY_ORPHAN) else ""

    def _uncount(self, blob: BlobInfo) -> None:
        self.summary.count(usecase_of(blob.name), FindingClass.REFERENCED, -1, -blob.size)

    # --- shared ----------------------------------------------------------------------------------

    def _date_ns(self, revision: ChangeId | None, created_ns: int) -> int:
        """Returns the later of two times: the blob's creation (service's clock) and its change's id (writer's clock).
        """
        return created_ns if revision is None else max(created_ns, revision.created_ms * NS_PER_MS)

    def _has_expired(self, deadline_ns: int | None) -> bool:
        """Tells whether the deadline has passed by now, by the service's clock.

        The start of the audit is not enough: an audit may take longer than a bucket keeps what has expired.
        """
        return deadline_ns is not None and deadline_ns <= max(self._cutoff.as_of_ns, self._runtime.wall_ns() - self._ahead_ns)

    def _standing_of(self, deadline_ns: int | None) -> Deadline:
        if deadline_ns is None or not self._has_expired(deadline_ns):
            return Deadline.AHEAD
        return Deadline.OVERDUE if deadline_ns <= self._cutoff.overdue_by_ns else Deadline.PASSED

    def _tell(
        self, window: _Window, kind: FindingClass, name: str, object: str | None = None, revision: str | None = None,
        size: int | None = None,
        created_ns: int | None = None, generation: int | None = None, deadline_ns: int | None = None, detail: str = "",
        confirmed_ns: int | None = None,
    ) -> None:  # fmt: skip
        self.summary.count(usecase_of(name), kind, 1, size or 0)
        self._held.append(Finding(
            kind, name, object, revision, size, created_ns, deadline_ns, generation, detail,
            window.listed_ns, window.logged_ns, window.scanned_ns, confirmed_ns,
        ))  # fmt: skip
        if len(self._held) >= FOUND_AT_ONCE:
            self._tell_held()

    def _tell_held(self) -> None:
        if self._held:
            self._found(self._held)
            self._held = []

    async def _retry_read(self, read: Callable[[], Awaitable[T]]) -> T:
        return await retry_read(read, self._runtime, READ_BUDGET_S)


def _misfiled(row: CorruptRow) -> str | None:
    """Returns the blob that a damaged row names, if the row is not at the key of the blob's object.

    A blob at the key of its object needs no such care: if that row is damaged, the blob is accused of nothing.
    """
    if row.target is None or is_of(row.path, row.target) or read_name(row.target).object is None:
        return None
    return row.target


def _redirects(columns: RedirectColumns, places: Iterable[int]) -> list[Redirect]:
    """Returns the rows at these places of the columns."""
    paths, targets, deadlines_ns = columns.paths, columns.targets, columns.deadlines_ns
    return [Redirect(path := paths[place], targets[place], deadlines_ns.get(path)) for place in places]


def _object_of(name: str) -> tuple[str, ...]:
    """Returns the key of the row that may name this blob by its revision, if it has one."""
    path = read_name(name).object
    return () if path is None else (path,)


_NAME, _SIZE = attrgetter("name"), attrgetter("size")


def _with_times(blob: BlobInfo) -> ListedBlob:
    """Returns the blob with its times decoded, because a verdict asks for them several times."""
    if isinstance(blob, ListedBlob):
        return blob
    return ListedBlob(blob.name, blob.size, blob.created_ns, blob.deadline_ns, blob.generation)


def _generation(head: BlobHead | CorruptRecordError, listed: int) -> int:
    """Returns the generation. A blob that cannot be read exists all the same, and counts as the one that was listed."""
    return head.generation if isinstance(head, BlobHead) else listed
