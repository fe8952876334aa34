"""A bucket of the GCS emulator, or a prefix of it, that belongs to a store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from changelog.base.runtime import Runtime
from emulators.gcs.server import GcsEmulator
from tiered.buckets.owners import encode_marker, marker_name
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.owned import OwnedBlobs

OWNER = "projects/test/instances/emulated/tables/ours"
OTHER = "projects/test/instances/emulated/tables/theirs"


def give(server: GcsEmulator, prefix: str = "", owner: str = OWNER, bucket: str = "blobs") -> None:
    """Writes the marker that provisioning writes, over the one that is there."""
    metadata, text = encode_marker(bucket, prefix, owner)
    server.buckets[bucket].insert(marker_name(prefix), text, {"metadata": dict(metadata)}, {}, (), 10**18)


@asynccontextmanager
async def owned_blobs(
    server: GcsEmulator, runtime: Runtime, prefix: str = "", owner: str = OWNER, bucket: str = "blobs"
) -> AsyncIterator[OwnedBlobs]:
    """The blobs of a store, whoever owns them."""
    async with GcsBlobs.connect(bucket, runtime, endpoint=server.url) as blobs:
        yield OwnedBlobs(blobs, bucket, prefix, owner)
