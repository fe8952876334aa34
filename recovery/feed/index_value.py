"""What the published index stores for an object: the blob, after a checksum. Pure.

    00c0ffee attachments/org.17/objects/a/01901234-5678-7abc-8def-0123456789ab

The checksum is the CRC-32 of the object's path and the blob's name. So a value that is damaged, or lies under the key
of another object, is noticed before anything is published from it.
"""

from __future__ import annotations

import zlib

from changelog.base.errors import CorruptRecordError


class IndexDamagedError(CorruptRecordError):
    """A value of the published index is not what the writer wrote."""


def index_value(path: str, blob: str) -> bytes:
    """Returns what is stored for an object."""
    return f"{_checksum(path, blob)} {blob}".encode()


def blob_of(path: str, value: bytes) -> str:
    """Returns the blob in a stored value. `IndexDamagedError`: it is damaged, or it is the value of another object."""
    checksum, _, blob = value.decode(errors="replace").partition(" ")
    if checksum != _checksum(path, blob):
        raise IndexDamagedError(f"the entry of {path} in the published index of the feed is damaged")
    return blob


def _checksum(path: str, blob: str) -> str:
    return f"{zlib.crc32(blob.encode(), zlib.crc32(path.encode())):08x}"
