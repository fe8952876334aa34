"""What tests of long-term tiers have in common."""

from __future__ import annotations

from tiered.metadata import Metadata
from tiered.services.backends import ByteRange, LongTermBackend, Upload

PLAIN = Metadata()


async def begin(blobs: LongTermBackend, name: str, payload: bytes = b"payload", metadata: Metadata = PLAIN) -> Upload:
    """An upload that has been written and can be finalised."""
    upload = await blobs.open_upload(name, metadata, None)
    await upload.write(payload)
    return upload


async def store(blobs: LongTermBackend, name: str, payload: bytes = b"payload", metadata: Metadata = PLAIN) -> None:
    await (await begin(blobs, name, payload, metadata)).finalise()


async def read(blobs: LongTermBackend, name: str, range: ByteRange | None = None) -> bytes | None:
    """All bytes of the range; None: there is no such blob."""
    reader = await blobs.open(name, range)
    if reader is None:
        return None
    try:
        return b"".join([chunk async for chunk in reader.chunks()])
    finally:
        await reader.aclose()
