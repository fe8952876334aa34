"""crc32c, the checksum of a blob. Import it only where that is certain: its package comes with the extra `gcp` or `s3`.
"""

from __future__ import annotations

import base64

import google_crc32c

_COPIED_BYTES = 256 * 1024


def extend_crc(crc: int, chunk: bytes | memoryview) -> int:
    if isinstance(chunk, bytes):
        return int(google_crc32c.extend(crc, chunk))
    whole = chunk.obj
    if type(whole) is bytes and chunk.contiguous and chunk.nbytes == len(whole):
        return int(google_crc32c.extend(crc, whole))
    # The library takes no views. Small copies stay in the processor's cache, and take half as long as the checksum.
    for start in range(0, len(chunk), _COPIED_BYTES):
        crc = google_crc32c.extend(crc, bytes(chunk[start : start + _COPIED_BYTES]))
    return int(crc)


def encode_crc(crc: int) -> str:
    """Big-endian, in base64, as GCS tells it."""
    return base64.b64encode(digest_of(crc)).decode()


def decode_crc(text: str) -> int:
    """`ValueError`: it is none."""
    raw = base64.b64decode(text, validate=True)
    if len(raw) != 4:
        raise ValueError(f"{text!r} is no crc32c")
    return int.from_bytes(raw, "big")


def digest_of(crc: int) -> bytes:
    return crc.to_bytes(4, "big")
