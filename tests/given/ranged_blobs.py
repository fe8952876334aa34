"""Blobs in memory that can be read in several ranges at once, and whose streams a test may spoil."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from tests.given.tapped_store import TappedWorld
from tiered.services.backends import BlobReader, ByteRange, DamagedError

Spoil = Callable[[int, AsyncIterator[bytes]], AsyncIterator[bytes]]


class RangedBlobs:
    """`opened`: the ranges that were opened, also the first. `most_open`: how many were open at once.

    `spoil`: gets the first byte of a stream and the stream, and returns what is read in its place. `refuse`: may raise
    before a range is opened.
    """

    def __init__(self, blobs: Any) -> None:
        self.blobs = blobs
        self.opened: list[tuple[int, int]] = []
        self.open_now = self.most_open = 0
        self.spoil: Spoil = lambda start, chunks: chunks
        self.refuse: Callable[[int], None] = lambda start: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.blobs, name)

    async def open(self, name: str, range: ByteRange | None = None) -> BlobReader | None:
        reader = await self.blobs.open(name, range)
        if reader is None:
            return None
        extent = (0, reader.size) if range is None else range.within(reader.size)
        return RangedMemoryReader(self, name, reader, extent)


class RangedMemoryReader:
    def __init__(self, blobs: RangedBlobs, name: str, reader: Any, extent: tuple[int, int]) -> None:
        self.metadata, self.size, self.checksum = reader.metadata, reader.size, reader.checksum
        self.blob = reader._blob
        self._blobs = blobs
        self._name = name
        self._reader = reader
        self._extent = extent
        self._chunks = reader.chunks()
        self._is_open = True
        blobs.opened.append(extent)
        blobs.open_now += 1
        blobs.most_open = max(blobs.most_open, blobs.open_now)

    def chunks(self) -> AsyncIterator[bytes]:
        return self._blobs.spoil(self._extent[0], self._chunks)

    async def aclose(self) -> None:
        self._blobs.open_now -= self._is_open
        self._is_open = False
        await self._chunks.aclose()
        await self._reader.aclose()

    def ranges(self) -> MemoryRanges:
        return MemoryRanges(self._blobs, self._name, self.blob, self._extent)


class MemoryRanges:
    """Verifies the whole by the sum of its bytes."""

    def __init__(self, blobs: RangedBlobs, name: str, blob: Any, extent: tuple[int, int]) -> None:
        self._blobs = blobs
        self._name = name
        self._blob = blob
        self._extent = extent

    async def open(self, start: int, stop: int) -> BlobReader | None:
        self._blobs.refuse(start)
        reader = await self._blobs.open(self._name, ByteRange(start, stop))
        if reader is None or reader.blob.generation == self._blob.generation:  # type: ignore[attr-defined]
            return reader
        await reader.aclose()
        return None

    def extend(self, check: int, chunk: bytes) -> int:
        return check + sum(chunk)

    def check(self, parts: Sequence[tuple[int, int]]) -> None:
        start, stop = self._extent
        assert sum(size for _, size in parts) == stop - start
        if sum(check for check, _ in parts) != sum(self._blob.payload[start:stop]):
            raise DamagedError("it was damaged on its way; try again")


def ranged(world: TappedWorld) -> RangedBlobs:
    """Lets the stores that this world opens from now on read ranges."""
    world.blobs = blobs = RangedBlobs(world.blobs)  # type: ignore[assignment]
    return blobs
