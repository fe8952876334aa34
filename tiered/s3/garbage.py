"""Finds what nobody needs any more in a bucket of `S3Blobs`: one round through what lies beside blobs, in steps.

    PREFIX~t/       blobs whose latest deadline was more than an hour ago, with their markers; those of blobs that are
                    gone, too
    PREFIX~m/       what was amended of a blob that is gone, a day after it was written
    PREFIX~probe/   what a `tiered check` that was killed left behind, a day later

Blobs without a deadline are never looked at. A blob is deleted only after its markers were listed once more: a touch
writes a later one before it is told. One that comes between this look and the deletion is too late by more than an
hour, as it would be for any reader whose clock is right. *Crash*: the next round begins from the start. *Failure*: what
cannot be removed is counted, and the round goes on with the others (I6).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from changelog.base.errors import TieredError
from changelog.base.events import events
from changelog.log import LeftGarbageError
from tiered.metadata import NS_PER_S
from tiered.s3.format import Beside, before, ns_of
from tiered.s3.listings import pages

if TYPE_CHECKING:
    from tiered.s3.blobs import S3Blobs

EXPIRED_SLACK_NS = 3600 * NS_PER_S
"""How long a blob is kept after its deadline. A reader whose clock is behind must not find a row without its blob."""
AMENDED_AGE_NS = 24 * 3600 * NS_PER_S
"""An amendment is written before its blob; after a day, its upload has ended. And so has a check."""


class BucketRound:
    """One round, in calls of `step`. `now_ns`: by the service's clock, nanoseconds since 1970."""

    def __init__(self, blobs: S3Blobs, beside: Beside, now_ns: int) -> None:
        self._blobs = blobs
        self._beside = beside
        self._now_ns = now_ns
        self._left = 0
        self._met = self._go_through()

    async def step(self, limit: int) -> tuple[int, bool]:
        """Goes on until `limit` objects are removed. Returns how many were, and whether the round is over."""
        removed = 0
        while removed < limit:
            try:
                removed += await anext(self._met)
            except StopAsyncIteration:
                return removed, True
        return removed, False

    def check(self, removed: int) -> None:
        """Raises `LeftGarbageError` if something could not be removed. `removed`: by the last step."""
        if self._left:
            raise LeftGarbageError(f"{self._left} expired blobs, or what lies beside them, could not be removed; the log says why", removed)

    async def _go_through(self) -> AsyncIterator[int]:
        """For each blob that was met, how many objects were removed."""
        async for keys in self._pages(self._beside.markers):
            told = [(self._beside.blob_of(key), key) for key, _ in keys]
            for name, group in groupby((each for each in told if each[0] is not None), key=lambda each: each[0] and each[0][0]):
                deadlines = [marked[1] for marked, _ in group if marked is not None]
                if name is not None and max(deadlines) + EXPIRED_SLACK_NS < self._now_ns:
                    yield await self._counted(name, self._expired(name))
        for place, removed in ((self._beside.amendments, self._amended), (self._beside.probes, self._removed)):
            async for keys in self._pages(place):
                for key, written_ns in keys:
                    if written_ns + AMENDED_AGE_NS < self._now_ns:
                        yield await self._counted(key, removed(key))

    async def _pages(self, prefix: str) -> AsyncIterator[Sequence[tuple[str, int]]]:
        doing = f"looking for what has expired below {prefix!r}"
        try:
            async for items in pages(lambda after: self._blobs._page(doing, after, prefix), before(prefix)):
                yield [(each["Key"], ns_of(each["LastModified"])) for each in items]
        except TieredError as error:
            self._leave(prefix, error)

    async def _counted(self, what: str, removing: Awaitable[int]) -> int:
        """How many objects were removed."""
        try:
            return await removing
        except TieredError as error:
            self._leave(what, error)
            return 0

    async def _expired(self, name: str) -> int:
        """Removes the blob, then its markers, so that a crash between them leaves markers."""
        markers = await self._blobs._markers_of(name)
        if not markers or max(ns for _, ns in markers) + EXPIRED_SLACK_NS >= self._now_ns:
            return 0
        await self._blobs.delete(name)
        for key, _ in markers:
            await self._blobs.delete(key)
        return 1 + len(markers)

    async def _amended(self, key: str) -> int:
        if await self._blobs._look(self._beside.blob_of_amendment(key)) is not None:
            return 0
        return await self._removed(key)

    async def _removed(self, key: str) -> int:
        await self._blobs.delete(key)
        return 1

    def _leave(self, what: str, error: TieredError) -> None:
        self._left += 1
        events.warning("garbage_left", error, name=what)
