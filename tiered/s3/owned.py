"""`OwnedS3Blobs`, the blobs of one store in a bucket of S3: `OwnedBucket`, and what S3 needs besides.

`S3Blobs` must know the prefix, too: what lies beside the blobs lies below it.
"""

from __future__ import annotations

from tiered.buckets.owned import OwnedBucket
from tiered.s3.blobs import S3Blobs


class OwnedS3Blobs(OwnedBucket[S3Blobs]):
    """Implements all that `S3Blobs` implements, and `Ownership`. `blobs` was opened with the same prefix."""

    service, scheme = "S3", "s3://"

    async def collect(self, limit: int) -> int:
        await self._full_to_change("")
        return await self._blobs.collect(limit)
