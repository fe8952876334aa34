"""How bytes of a blob are compared with the crc32c that its service keeps of the whole: read at once, or in ranges."""

from __future__ import annotations

from collections.abc import Sequence

from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.payload.crcs import CRC32C, join_crcs
from tiered.protocol.backends import DamagedError


class CheckedRanges:
    """What `BlobRanges` of GCS and S3 have in common. `crc32c`: of the whole; None: the ranges are not verified."""

    def __init__(self, name: str, crc32c: str | None) -> None:
        self._name = name
        self._crc32c = crc32c

    def extend(self, check: int, chunk: bytes) -> int:
        return 0 if self._crc32c is None else extend_crc(check, chunk)

    def check(self, parts: Sequence[tuple[int, int]]) -> None:
        if self._crc32c is not None:
            check_crc(self._name, self._crc32c, join_crcs(parts, CRC32C))


def check_crc(name: str, crc32c: str | None, crc: int) -> None:
    """Raises `DamagedError` if this is not the crc32c of the blob. None: nobody tells that."""
    if crc32c not in (None, encode_crc(crc)):
        raise DamagedError(
            f"reading blob {name!r} failed: it was damaged on its way, its crc32c is {encode_crc(crc)}, not {crc32c}; try again"
        )
