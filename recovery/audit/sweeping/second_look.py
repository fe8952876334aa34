"""The second look: reads again what seems to be an orphan, overdue, missing or lost, before a finding says so.

    accused blobs           the log, then whether the blob still exists, then its rows
    missing or broken       the blob, then its row
    payloads                with `verify`: the bytes; then, of those that have a fault, the log and the row

The order is part of the proof: an entry outlives the blob that it names, and a row is moved before its blob is
deleted. `sweep.py` says why each step is needed. What the facts mean is decided by `judge.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

from changelog.base.errors import CorruptRecordError
from recovery.audit.finding_classes import ACCUSED, FindingClass, Redirected, classify
from recovery.audit.manifest import Verify
from recovery.audit.names import ParsedName, after, is_of, read_name, usecase_of
from recovery.audit.sweeping.judge import Judge, SuspectBlob, misfiled
from recovery.audit.sweeping.tier_reads import POINT_READS, ROWS_PAGE, TierReads
from recovery.audit.sweeping.verify import UNREADABLE, Verifier, is_chosen
from recovery.audit.sweeping.window import Window, WindowReader
from tiered.services.backends import BlobHead
from tiered.services.capabilities import GenerationLookup, SharedListing
from tiered.services.scans import BlobInfo, Generation, ListedBlob, Oddity, Redirect, RedirectPage

RELIST_SHARE = 0.02
"""A share of the names in a window.

If more than this are to be looked at again, one more listing is cheaper, unless it reads a whole directory.
"""

BROKEN_BUDGET_S = 5.0
"""How long a blob is asked for that the listing could not read. If there is no answer, the listing's word stands."""

GENERATIONS_AT_ONCE = 1000
"""How many blobs a tier is asked for in one call, if it tells their generations without a listing."""


@dataclass(slots=True)
class RowsAgain:
    """Rows that were read a second time.

    `named`: their tombstones, by the blob that they name. `corrupt`: the keys of those that cannot be read. `misfiled`:
    the blobs that such rows name, if they are not at the key of the blob's object.
    """

    named: dict[str, Redirect] = field(default_factory=dict)
    corrupt: set[str] = field(default_factory=set)
    misfiled: set[str] = field(default_factory=set)

    def add(self, page: RedirectPage, judge: Judge) -> None:
        for redirect in page.redirects:  # if two rows name one blob, keep the tombstone that protects it
            if redirect.target not in self.named or not judge.has_expired(redirect.deadline_ns):
                self.named[redirect.target] = redirect
        self.corrupt.update(row.path for row in page.corrupt)
        self.misfiled.update(filter(None, map(misfiled, page.corrupt)))


class SecondReading:
    """`window_names`: the most names of a listing."""

    def __init__(self, reads: TierReads, windows: WindowReader, judge: Judge, verify: Verify | None, window_names: int) -> None:
        self._reads = reads
        self._windows = windows
        self._judge = judge
        self._verify = verify
        self._verifier = None if verify is None else Verifier(reads.blobs, reads.runtime, verify.bytes_per_s)
        self._window_names = window_names

    # --- tombstones without a blob ---------------------------------------------------------------

    async def confirm_missing(self, window: Window, missing: Sequence[Redirect]) -> None:
        """Checks each tombstone whose blob was not listed: does the blob exist, and if not, does the row still name it?
        """
        live: list[Redirect] = []
        for redirect in missing:
            if not is_of(redirect.path, redirect.target):
                continue  # it is reported as misdirected, and its blob may be in any range
            if self._judge.has_expired(redirect.deadline_ns):
                self._judge.summary.count(usecase_of(redirect.path), FindingClass.EXPIRED, 1, 0)
            else:
                live.append(redirect)
        if not live:
            return
        heads = await self._reads.heads([redirect.target for redirect in live])
        confirmed_ns = self._reads.runtime.wall_ns()
        doubtful = {redirect.path for redirect in live if not isinstance(heads[redirect.target], BlobHead)}
        named = (await self._rows_now(doubtful)).named
        unlisted = await self._never_listed(window, {name for name, head in heads.items() if isinstance(head, BlobHead)})
        for redirect in live:
            head = heads[redirect.target]
            self._judge.judge_missing(window, redirect, head, named, confirmed_ns, never_listed=redirect.target in unlisted)

    async def _never_listed(self, window: Window, there: set[str]) -> set[str]:
        """Returns which of these blobs, which a point read has just found, the listing does not have now either.

        One that was written after the window was listed is in it now, whatever its age. So the age proves nothing, and
        is not needed: what the same listing does not have now, it leaves out, or it has it under another name. A tier
        whose listings share what they read once is not asked again.
        """
        if not there or isinstance(self._reads.blobs, SharedListing):
            return set()
        left = there - await self._windows.listed_again(window, there)
        heads = await self._reads.heads(sorted(left))  # somebody may have deleted it before it was listed again
        return {name for name, head in heads.items() if isinstance(head, BlobHead)}

    # --- blobs that are accused ------------------------------------------------------------------

    async def confirm_accused(self, window: Window, suspects: Sequence[SuspectBlob]) -> None:
        """Looks again at blobs that seem to be orphans or overdue.

        It reads the log first, because an entry outlives the blob that it names.
        """
        judge = self._judge
        logged = await self._windows.read_log(window)
        there = await self._still_there(window, [suspect.blob for suspect in suspects])
        confirmed_ns = self._reads.runtime.wall_ns()
        paths = {path for blob, reading, _ in suspects for path in (reading.object, blob.name) if path}
        rows = await self._rows_again(window, paths)
        named, corrupt = rows.named, rows.corrupt
        accused: list[tuple[BlobInfo, ParsedName, FindingClass]] = []
        for blob, reading, facts in suspects:
            name = blob.name
            if there.get(name) != blob.generation:
                judge.uncount(blob)  # it disappeared meanwhile, or it is another blob now
                continue
            redirected = judge.redirected(named.get(name))
            if reading.object in corrupt or name in corrupt or name in rows.misfiled:
                redirected = Redirected.LIVE  # nobody can say what a corrupt row names, and the row is a finding itself
            now = logged.of(name, reading.revision), redirected
            if now != (facts.logged, facts.redirected) or blob.deadline_ns is not None:
                facts = facts._replace(logged=now[0], redirected=redirected, deadline=judge.deadline(blob.deadline_ns))
            class_ = classify(facts)
            if class_ in ACCUSED:
                accused.append((blob, reading, class_))
            else:
                judge.conclude(window, blob, reading, class_, confirmed_ns)
        judge.accuse(window, accused, confirmed_ns)

    async def _still_there(self, window: Window, suspects: Sequence[BlobInfo]) -> dict[str, Generation]:
        """Returns the generation of each of these blobs that still exists."""
        reads = self._reads
        few = len(suspects) <= RELIST_SHARE * len(window.blobs)
        if isinstance(reads.blobs, GenerationLookup) and (few or isinstance(reads.blobs, SharedListing)):
            generations = dict[str, Generation]()
            for first in range(0, len(suspects), GENERATIONS_AT_ONCE):
                generations |= await reads.retry(partial(reads.blobs.generations, suspects[first : first + GENERATIONS_AT_ONCE]))
            return generations
        if few:
            heads = await reads.heads([blob.name for blob in suspects])
            generations = {blob.name: blob.generation for blob in suspects}
            return {name: _generation(head, generations[name]) for name, head in heads.items() if head is not None}
        wanted = {blob.name for blob in suspects}
        found: dict[str, Generation] = {}
        start: str | None = min(wanted)
        end = after(max(wanted))
        while start is not None:
            page = await reads.list(start, end, self._window_names)
            found.update((blob.name, blob.generation) for blob in page.blobs if blob.name in wanted)
            start = page.next_start
        return found

    # --- blobs that cannot be read -----------------------------------------------------------------

    async def confirm_broken(self, window: Window) -> None:
        """Tells for each blob that cannot be read whether a live tombstone names it: loss, or garbage.

        It looks again in the order of `confirm_accused`. A blob that can be read by now is judged like others.
        """
        if not window.broken:
            return
        judge = self._judge
        logged = await self._windows.read_log(window)
        heads = await self._reads.heads(list(window.broken), BROKEN_BUDGET_S)
        confirmed_ns = self._reads.runtime.wall_ns()
        paths = {name: {name, *window.broken_named.get(name, ()), *_object_of(name)} for name in window.broken}
        rows = await self._rows_now(set().union(*paths.values()))
        for name, oddity in window.broken.items():
            head, row = heads[name], rows.named.get(name)
            if head is None:
                if row is not None and not judge.has_expired(row.deadline_ns):
                    judge.judge_missing(window, row, None, rows.named, confirmed_ns)
                continue
            redirected = judge.redirected(row)
            row_is_corrupt = redirected is not Redirected.LIVE and bool(paths[name] & rows.corrupt)
            if isinstance(head, BlobHead):
                blob = ListedBlob(name, head.size, head.created_ns, head.metadata.time_expires_ns, head.generation)
                judge.count(blob)
                class_ = judge.classify(blob, read_name(name), logged, Redirected.LIVE if row_is_corrupt else redirected)
                judge.conclude(window, blob, read_name(name), class_, confirmed_ns)
            else:
                judge.judge_broken(window, oddity, row, logged, row_is_corrupt, confirmed_ns, UNREADABLE)

    # --- payloads --------------------------------------------------------------------------------

    async def read_payloads(self, window: Window) -> None:
        """Reads the chosen ones of the blobs that live tombstones name. Those that have a fault are judged again.
        """
        if self._verify is None or self._verifier is None:
            return
        judge, share = self._judge, self._verify.share
        names = [
            blob.name for blob in window.blobs
            if blob.name not in window.unnamed and blob.name not in window.named_by_expired and is_chosen(blob.name, share)
        ]  # fmt: skip
        blob_reads = await self._verifier.look_at(names)
        judge.summary.verified += sum(each.is_whole for each in blob_reads.values())
        judge.summary.verified_bytes += sum(each.size for each in blob_reads.values())
        faulty = {name: each for name, each in blob_reads.items() if each.fault is not None or not each.there}
        if not faulty:
            return
        confirmed_ns = self._reads.runtime.wall_ns()
        logged = await self._windows.read_log(window)
        rows = await self._rows_now({path for name in faulty for path in (name, *_object_of(name))})
        listed = window.names()
        for name, each in faulty.items():
            row, blob = rows.named.get(name), listed[name]
            if not each.there:
                if row is not None and not judge.has_expired(row.deadline_ns):
                    judge.uncount(blob)
                    judge.judge_missing(window, row, None, rows.named, confirmed_ns)
                continue
            row_is_corrupt = row is None and bool({name, *_object_of(name)} & rows.corrupt)
            oddity = Oddity(name, str(each.fault), True, blob.size, blob.created_ns, blob.generation)
            if judge.judge_broken(window, oddity, row, logged, row_is_corrupt, confirmed_ns, each.shown):
                judge.uncount(blob)

    # --- rows ------------------------------------------------------------------------------------

    async def _rows_now(self, paths: Iterable[str]) -> RowsAgain:
        """Reads these rows by their keys."""
        keys = sorted(path.encode() for path in paths)
        rows = RowsAgain()
        for first in range(0, len(keys), POINT_READS):
            page = await self._reads.retry(partial(self._reads.rows.redirects_at, keys[first : first + POINT_READS]))
            rows.add(page, self._judge)
        return rows

    async def _rows_again(self, window: Window, paths: Set[str]) -> RowsAgain:
        """As `_rows_now`. If the window has fewer rows than there are keys, it scans them all: that is cheaper."""
        outside = {path for path in paths if not window.holds(path)}
        if window.rows is None or window.rows >= len(paths) - len(outside):
            return await self._rows_now(paths)
        rows, within = await self._rows_now(outside), paths - outside if outside else paths
        start: bytes | None = min(within).encode()
        end = after(max(within)).encode()
        while start is not None:
            page = await self._reads.retry(partial(self._reads.rows.redirects, start, end, ROWS_PAGE))
            rows.add(page, self._judge)
            start = page.next_start
        return rows


def _object_of(name: str) -> tuple[str, ...]:
    """Returns the key of the row that may name this blob by its revision, if it has one."""
    path = read_name(name).object
    return () if path is None else (path,)


def _generation(head: BlobHead | CorruptRecordError, listed: Generation) -> Generation:
    """Returns the generation. A blob that cannot be read exists all the same, and counts as the one that was listed."""
    return head.generation if isinstance(head, BlobHead) else listed
