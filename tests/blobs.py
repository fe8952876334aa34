"""What tests of long-term tiers have in common."""

from __future__ import annotations

from tiered.backends import ByteRange, LongTermBackend


async def read(blobs: LongTermBackend, name: str, range: ByteRange | None = None) -> bytes | None:
    """All bytes of the range; None: there is no such blob."""
    reader = await blobs.open(name, range)
    if reader is None:
        return None
    try:
        return b"".join([piece async for piece in reader.pieces()])
    finally:
        await reader.aclose()
