"""Copies that the service makes itself: part by part into an upload in parts, which is completed create-only.

So a copy has a session that recovery can cancel, it never overwrites, and its source may be larger than 5 GiB. Services
that know no condition for CopyObject are served, too. Each part is copied only if the source still has its tag.

A blob that is brought back needs another generation than the name ever had. Its tag tells how it was put: `…-N`, of N
parts. So `layouts` gives the number of parts that the blob which was deleted did not have. A small blob that was made
of one part is read and put whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tiered.s3.format import Stored
from tiered.s3.parts import S3Parts
from tiered.services.capabilities import PART_BYTES_MIN, Part
from tiered.transfer.upload_lanes import MIB

GIB = 1024 * MIB
COPIED_BYTES_MAX = 5 * GIB
"""How many bytes one request copies."""


def extents(size: int, part_bytes: int) -> Sequence[tuple[int, int]]:
    """From where to where each part goes. One of nothing, if there are no bytes."""
    return [(start, min(start + part_bytes, size)) for start in range(0, max(size, 1), part_bytes)]


def other_layout(size: int, parts: int) -> int | None:
    """Of how many bytes the parts of a copy are that shall not have so many parts. None: it must be put whole."""
    if size == 0:
        return 1 if parts == 0 else None
    if parts != 1 and size <= COPIED_BYTES_MAX:
        return size
    if parts != 1:
        return next(each for each in (COPIED_BYTES_MAX, 2 * GIB) if len(extents(size, each)) != parts)
    half = max(PART_BYTES_MIN, -(-size // 2))
    return half if len(extents(size, half)) > 1 else None


async def copy_parts(to: S3Parts, source: str, found: Stored, name: str, session: str, part_bytes: int) -> Sequence[Part]:
    """Copies all bytes of the source, as it was found, to an upload. Returns its parts."""
    if found.size == 0:
        return [replace(await to.send(name, session, 1, [], 0, 0), checksum=None)]
    whole = extents(found.size, part_bytes)
    if len(whole) == 1:
        part = await to.copy(name, session, 1, source, found.etag, None)
        return [replace(part, size=found.size)]
    return [await to.copy(name, session, number, source, found.etag, extent) for number, extent in enumerate(whole, 1)]
