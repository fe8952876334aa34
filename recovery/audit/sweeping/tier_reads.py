"""Reads of both tiers and of the log, each repeated while its service is not available.

*Failure*: `UnavailableError` after `READ_BUDGET_S`; `ConfigurationError` if reads are forbidden.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from changelog.base.errors import CorruptRecordError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.log import ChangeLog
from recovery.audit.sweeping.verify import READ_BUDGET_S
from tiered.services.backends import BlobHead, Tiers
from tiered.services.concurrent import map_concurrently
from tiered.services.paging import PageCheck
from tiered.services.retry import retry_read
from tiered.services.scans import BlobPage

T = TypeVar("T")

Head = BlobHead | CorruptRecordError | None
"""What a point read finds: the blob, what is wrong with it, or no blob."""

ROWS_PAGE = 15_000
ENTRIES_PAGE = 1000
POINT_READS = 200
POINTS_AT_ONCE = 16


class TierReads:
    """The services, as one audit of a range reads them."""

    def __init__(self, tiers: Tiers, log: ChangeLog, runtime: Runtime) -> None:
        self.rows = tiers.high_volume
        self.blobs = tiers.long_term
        self.log = log
        self.runtime = runtime

    async def retry(self, read: Callable[[], Awaitable[T]], budget_s: float = READ_BUDGET_S) -> T:
        return await retry_read(read, self.runtime, budget_s)

    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        """`BlobScans.list`, of whatever tier. `ListingError`: what it told cannot be true."""
        page = await self.retry(partial(self.blobs.list, start, end, limit))
        check = PageCheck(f"listing blobs from {start!r} on", start=start, end=end)
        check.take([blob.name for blob in page.blobs], page.next_start)
        if page.next_start is not None:
            PageCheck("the page after this listing of blobs", after=page.blobs[-1].name if page.blobs else start).take([page.next_start])
        return page

    async def heads(self, names: Sequence[str], broken_budget_s: float | None = None) -> dict[str, Head]:
        """Asks for each of these blobs.

        `broken_budget_s`: they could not be read when they were listed; if one is not available for so many seconds,
        it still cannot be read.
        """

        async def look(name: str) -> Head:
            try:
                return await self.retry(partial(self.blobs.head, name), broken_budget_s or READ_BUDGET_S)
            except CorruptRecordError as error:
                return error
            except UnavailableError as error:
                if broken_budget_s is None:
                    raise
                return CorruptRecordError(str(error))

        return dict(zip(names, await map_concurrently(look, names, POINTS_AT_ONCE), strict=True))
