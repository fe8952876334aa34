"""`OwnedBlobs`, the blobs of one store in a bucket of GCS: `OwnedBucket`, and what GCS does besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from changelog.base.errors import TieredError
from tiered.buckets.owned import OwnedBucket
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.format import renamed
from tiered.services.backends import BlobHead
from tiered.services.capabilities import KeptPage, Retention
from tiered.services.scans import BlobInfo, Generation, ListedBlob, Removal


class OwnedBlobs(OwnedBucket[GcsBlobs]):
    """Implements all that `GcsBlobs` implements, and `Ownership`."""

    service = "GCS"

    async def delete_generations(self, blobs: Sequence[tuple[str, Generation]]) -> Sequence[Removal | TieredError]:
        return await self._blobs.delete_generations([(await self._full_to_change(name), generation) for name, generation in blobs])

    async def heads(self, names: Sequence[str]) -> Mapping[str, BlobHead]:
        found = await self._blobs.heads([self._prefix + name for name in names])
        return {name.removeprefix(self._prefix): head for name, head in found.items()}

    async def generations(self, blobs: Sequence[BlobInfo]) -> Mapping[str, Generation]:
        named = [ListedBlob(self._prefix + blob.name, blob.size, 0, None, blob.generation) for blob in blobs]  # no times are needed
        found = await self._blobs.generations(named)
        return {name.removeprefix(self._prefix): generation for name, generation in found.items()}

    async def kept(self, what: Retention, start: str, end: str | None, token: str) -> KeptPage:
        return await self._blobs.kept(what, self._prefix + start, self._end(end), token)

    def _renamed(self, blob: BlobInfo, name: str) -> BlobInfo:
        return renamed(blob, name)
