"""`OwnedS3Blobs`, the blobs of one store in a bucket of S3: `OwnedBucket`, and what S3 needs besides.

`S3Blobs` must know the prefix, too: what lies beside the blobs lies below it.
"""

from __future__ import annotations

from tiered.protocol.owned import OwnedBucket
from tiered.s3.blobs import S3Blobs


class OwnedS3Blobs(OwnedBucket[S3Blobs]):
    """Implements all that `S3Blobs` implements, and `Ownership`. `blobs` was opened with the same prefix."""

    service = "S3"

    def __init__(self, blobs: S3Blobs, bucket: str, prefix: str, owner: str) -> None:
        super().__init__(blobs, f"s3://{bucket}", prefix, owner)

    async def collect(self, limit: int) -> int:
        await self._full_to_change("")
        return await self._blobs.collect(limit)
