"""Looks at what lies beside the blobs of a range: deleted blobs that are kept, what dead uploads left, other writers.

    kept        soft-deleted and noncurrent generations: a number and bytes, where the service tells them
    uploads     embedded mode: files in `uploads/` whose process has died, older than the grace; one finding each
    writers     rows that show that other software writes beside this one (`recovery.mixed_writers` has the rule); the
                audit's own scan does not read whether a row has a token, so the first rows of the range are read for
                it, but in embedded mode, where no other software writes rows

None is needed to judge a blob. So a service that refuses to tell, or that does not answer, fails nothing here: the
summary says *not known*, and why. Open upload sessions of a bucket cannot be listed at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from changelog.base.errors import TieredError
from changelog.base.runtime import Runtime
from recovery.audit.finding import NO_USECASE, Finding, Summary, Tally
from recovery.audit.finding_classes import FindingClass
from recovery.audit.manifest import Bounds, Cutoff
from recovery.audit.names import usecase_of
from recovery.mixed_writers import find_mix, some_rows
from tiered.services.backends import Tiers
from tiered.services.capabilities import Retention, RetentionUsage, UploadListing
from tiered.services.paging import PageCheck
from tiered.services.retry import retry_read

BUDGET_S = 30.0
UPLOADS_PAGE = 1000
WRITERS_ROWS = 2000
"""Of so many rows of a range it is asked who wrote them."""
UPLOADS, WRITERS = "abandoned_uploads", "mixed_writers"

Sink = Callable[[Sequence[Finding]], None]


async def look_beside(tiers: Tiers, bounds: Bounds, cutoff: Cutoff, runtime: Runtime, found: Sink, summary: Summary) -> None:
    """Adds what it finds to `summary`, and calls `found` with the uploads that are left.

    The range that begins at the first name looks at the uploads, so a run does that once.
    """
    blobs = tiers.long_term
    if isinstance(blobs, RetentionUsage):
        for what in Retention:
            try:
                await _count_kept(blobs, what, bounds, runtime, summary)
            except TieredError as error:
                summary.unknown[what] = str(error)
    if isinstance(blobs, UploadListing) and bounds.start == "":
        try:
            await _tell_uploads(blobs, cutoff, runtime, found, summary)
        except TieredError as error:
            summary.unknown[UPLOADS] = str(error)


async def _count_kept(blobs: RetentionUsage, what: Retention, bounds: Bounds, runtime: Runtime, summary: Summary) -> None:
    counted = Tally()
    token: str | None = ""
    check = PageCheck(f"counting what is kept ({what})")
    while token is not None:
        page = await retry_read(partial(blobs.kept, what, bounds.start, bounds.end, token), runtime, BUDGET_S)
        check.take(() if page.last is None else [page.last], page.next_token, () if page.last is None else [page.next_token])
        counted.add(page.number, page.size)
        token = page.next_token
    summary.kept.setdefault(what, Tally()).add(counted.number, counted.size)


async def _tell_uploads(blobs: UploadListing, cutoff: Cutoff, runtime: Runtime, found: Sink, summary: Summary) -> None:
    start = ""
    while True:
        now_ns = runtime.wall_ns()
        page = await retry_read(partial(blobs.abandoned_uploads, start, cutoff.created_before_ns, UPLOADS_PAGE), runtime, BUDGET_S)
        for left in page.uploads:
            summary.count(NO_USECASE, FindingClass.STALE_UPLOAD, 1, left.size)
            summary.age(FindingClass.STALE_UPLOAD, (cutoff.as_of_ns - left.changed_ns) / 1e9, left.size)
            found([Finding(
                FindingClass.STALE_UPLOAD, left.name, None, None, left.size, left.changed_ns, None, None,
                "the process that wrote it has died, and no recovery has collected it", now_ns, now_ns, now_ns, now_ns,
            )])  # fmt: skip
        if page.next_start is None:
            return
        start = page.next_start


async def tell_mixed_writers(tiers: Tiers, bounds: Bounds, runtime: Runtime, found: Sink, summary: Summary) -> None:
    """Adds to `summary` what shows that other software writes beside this one, and calls `found` with one such row."""
    now_ns = runtime.wall_ns()
    end = None if bounds.end is None else bounds.end.encode()
    try:
        rows = await retry_read(partial(some_rows, tiers.high_volume, bounds.start.encode(), end, WRITERS_ROWS), runtime, BUDGET_S)
        mix = await retry_read(partial(find_mix, rows, tiers.long_term, now_ns), runtime, BUDGET_S)
    except TieredError as error:
        summary.unknown[WRITERS] = str(error)
        return
    if mix is not None:
        summary.count(usecase_of(mix.theirs), FindingClass.MIXED_WRITERS, 1, 0)
        found([Finding(
            FindingClass.MIXED_WRITERS, mix.theirs, mix.theirs, None, None, mix.theirs_ns, None, None, mix.sentence, now_ns, now_ns,
            now_ns, None,
        )])  # fmt: skip
