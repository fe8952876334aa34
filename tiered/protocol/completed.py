"""What became of an upload in parts, remembered by the row for as long as its marks: two days.

The entry of an upload is gone soon after its end, and its blob with the next write. What outlives both are marks, and
they say only whether a token has won. So tokens are *made from* what became of the upload, and refused. Nothing else
has such a token, so that refuses nothing. It needs no other format, on any backend, and is collected like all marks.

    of a list    74 bits of the SHA-256 of upload and list
    of a size    21 bits of the SHA-256 of the upload; the hour since its beginning, in 10; the size in bytes, in 43
    given up     74 bits of the SHA-256 of the upload

All have the time of the upload in front. Whoever completes leaves the first two *before* his swap: the blob is made by
then, of exactly this list, and there can be no other one. So once the upload has won, both are there until they are
collected. The hour tells when that may begin.

*Crash* between the two: the next attempt writes both. Pure: who writes and reads the marks is `assembling.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from changelog.change import ChangeId

SIZE_MAX = (1 << 43) - 2
"""Bytes: 8 TiB. The mark of a larger list tells no size."""

_SIZE_BITS, _HOUR_BITS, _FREE_BITS = 43, 10, 74
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Completed:
    """`size`: in bytes. None: it was too large for its mark. `since_ms`: a time before the mark was written (Unix ms).
    """

    size: int | None
    since_ms: int


@dataclass(frozen=True, slots=True)
class CompletedLists:
    """The tokens that tell what became of this upload."""

    upload_id: ChangeId

    def of_list(self, digest: str) -> ChangeId:
        return self._token(self._hash(f"parts {digest}", _FREE_BITS))

    def of_size(self, size: int, since_ms: int) -> ChangeId:
        """`since_ms`: when it was claimed (Unix ms)."""
        hour = min(max(0, since_ms - self.upload_id.created_ms) // _HOUR_MS, (1 << _HOUR_BITS) - 1)
        return self._token((self._mine << _HOUR_BITS | hour) << _SIZE_BITS | min(size, SIZE_MAX + 1))

    @property
    def given_up(self) -> ChangeId:
        """Nothing of it was stored, and nothing will be."""
        return self._token(self._hash("given up", _FREE_BITS))

    def completed(self, refused: Iterable[ChangeId]) -> Completed | None:
        """What the marks of a row say of the size. None: nothing."""
        found = {token for token in refused if token.created_ms == self.upload_id.created_ms}
        for token in found:
            bits = token.free
            if bits >> (_SIZE_BITS + _HOUR_BITS) == self._mine:
                size, hour = bits & ((1 << _SIZE_BITS) - 1), bits >> _SIZE_BITS & ((1 << _HOUR_BITS) - 1)
                return Completed(None if size > SIZE_MAX else size, self.upload_id.created_ms + hour * _HOUR_MS)
        return None

    @property
    def _mine(self) -> int:
        return self._hash("size", _FREE_BITS - _HOUR_BITS - _SIZE_BITS)

    def _hash(self, what: str, bits: int) -> int:
        return int.from_bytes(hashlib.sha256(f"{self.upload_id} {what}".encode()).digest()) >> (256 - bits)

    def _token(self, bits: int) -> ChangeId:
        return ChangeId.of(self.upload_id.created_ms, bits)
