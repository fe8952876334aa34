"""Where the names of a bucket can be cut, so that many workers share them. No service tells; a few small listings do.

    cut_names(blobs, bounds, wanted) -> names, in order, inside the bounds

The table's boundaries say nothing of the bucket: sixty thousand orphans beside forty rows would be one worker's task.
So the bucket is cut, too. A part of the names that fills more than one page is cut in two: first it looks how long the
beginning is that all its names share, then it looks for a name in the middle of what may come next. Each look is a
listing with a page of one. Parts are halved side by side, until there are enough of them or all are small. Nobody tells
how many names a part holds, so they are uneven.

    split "media/org.1/objects/0a3f…"      shared:  media/org.1/objects/
                                           middle:  is there a name from media/org.1/objects/X on?

About 15 requests for each cut. A tier that knows better (`NamePartitioning`) is asked instead. *Failure*: `TieredError`
if the bucket cannot be listed. Then there are no cuts. This module only reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from changelog.base.runtime import Runtime
from recovery.audit.manifest import Bounds
from tiered.services.backends import LongTermBackend
from tiered.services.capabilities import NamePartitioning
from tiered.services.concurrent import map_concurrently
from tiered.services.retry import retry_read
from tiered.services.scans import BlobPage

SMALL_NAMES = 1000
"""A part with no more names than this, one page of GCS's listing, is not cut."""

ROUNDS_MAX = 24
AT_ONCE = 16
CUT_BUDGET_S = 60.0
_ASCII, _HIGHEST = 0x80, 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


async def cut_names(blobs: LongTermBackend, bounds: Bounds, wanted: int, runtime: Runtime) -> list[str]:
    """Returns names, in order, that cut the blobs of these names into about `wanted` parts, or into fewer.

    Every part holds a name. Raises `TieredError` if the bucket cannot be listed.
    """
    if wanted < 2:
        return []
    if isinstance(blobs, NamePartitioning):
        found: Sequence[str] = await retry_read(partial(blobs.cuts, bounds.start, bounds.end, wanted), runtime, CUT_BUDGET_S)
    else:
        found = await _Cutting(blobs, runtime).cut(bounds, wanted)
    return [name for name in found if bounds.start < name and (bounds.end is None or name < bounds.end)]


@dataclass(slots=True)
class _Stretch:
    """The names from `first`, which exists, to `end` (None: no end). `is_small`: it is not worth a cut."""

    first: str
    end: str | None
    is_small: bool = False


class _Cutting:
    def __init__(self, blobs: LongTermBackend, runtime: Runtime) -> None:
        self._blobs = blobs
        self._runtime = runtime

    async def cut(self, bounds: Bounds, wanted: int) -> list[str]:
        first = await self._first_from(bounds.start, bounds.end)
        if first is None:
            return []
        parts = [_Stretch(first, bounds.end)]
        for _ in range(ROUNDS_MAX):
            large = [part for part in parts if not part.is_small]
            room = wanted - len(parts)
            if not large or room <= 0:
                break
            # If not all can be cut any more, those that are cut lie far apart.
            chosen = [large[place * len(large) // room] for place in range(room)] if room < len(large) else large
            parts += await self._halve(chosen)
            parts.sort(key=lambda part: part.first)
        return [part.first for part in parts[1:]]

    async def _halve(self, parts: Sequence[_Stretch]) -> list[_Stretch]:
        """Cuts each of these parts in two, and returns the new ones. A part that is small is marked."""
        made: list[_Stretch] = []
        for part, cut in zip(parts, await map_concurrently(self._middle, parts, AT_ONCE), strict=True):
            if cut is None:
                part.is_small = True
            else:
                made.append(_Stretch(cut, part.end))
                part.end = cut
        return made

    async def _middle(self, part: _Stretch) -> str | None:
        """Returns a name somewhere in the middle of a part, or None if the part is small."""
        start: str | None = part.first
        names = 0
        last = part.first
        while start is not None and names < SMALL_NAMES:
            page = await self._list(start, part.end, SMALL_NAMES - names)
            names += len(page.blobs)
            last = page.blobs[-1].name if page.blobs else last
            start = page.next_start
        if start is None or last == part.first:
            return None
        # `last` and some names after it are in the part. All of these share a beginning, maybe an empty one.
        shared = await self._shared(last, part.end)
        if shared == len(last):
            return last
        low = ord(last[shared]) + 1
        beginning = last[:shared]
        high = _ASCII if await self._first_from(beginning + chr(_ASCII), part.end) is None else _HIGHEST
        while low < high:
            middle = _no_surrogate((low + high) // 2)
            name = await self._first_from(beginning + chr(middle), part.end)
            if name is not None:
                return name
            if middle >= high:
                break
            high = middle
        following = await self._first_from(beginning + chr(_no_surrogate(low)), part.end)
        return following or last

    async def _shared(self, name: str, end: str | None) -> int:
        """Returns how many characters `name` and all names from it to `end` have in common at their beginnings."""
        low = 0 if end is None else _common(name, end)  # so many for certain
        high = len(name)
        while low < high:
            middle = (low + high + 1) // 2
            beyond = _following(name[:middle])
            if beyond is None or (end is not None and beyond >= end) or await self._first_from(beyond, end) is None:
                low = middle
            else:
                high = middle - 1
        return low

    async def _first_from(self, start: str, end: str | None) -> str | None:
        """Returns the first name from `start` on, before `end`; None: there is none."""
        at: str | None = start
        while at is not None and (end is None or at < end):
            page = await self._list(at, end, 1)
            if page.blobs:
                return page.blobs[0].name
            at = page.next_start
        return None

    async def _list(self, start: str, end: str | None, limit: int) -> BlobPage:
        return await retry_read(partial(self._blobs.list, start, end, limit), self._runtime, CUT_BUDGET_S)


def _common(one: str, other: str) -> int:
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _following(prefix: str) -> str | None:
    """Returns the first text after all that begin with this one; None: there is none."""
    code = ord(prefix[-1])
    return None if code == _HIGHEST else prefix[:-1] + chr(_no_surrogate(code + 1))


def _no_surrogate(code: int) -> int:
    """Returns the code of a character that UTF-8 can hold: this one, or the first after it."""
    return _SURROGATES.stop if code in _SURROGATES else code
