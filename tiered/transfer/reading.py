"""How the bytes of a blob are read from a bucket: in one stream, or in several ranges at once. Both are compared with
the crc32c that the service keeps of the whole.

    an adapter opens an answer  ->  BucketReader              one stream
                                    .ranges() -> BucketRanges  more bytes of the same generation, by the adapter again
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from changelog.base.errors import InvalidRequestError, UnavailableError
from tiered.metadata import Metadata
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.payload.crcs import CRC32C, join_crcs
from tiered.services.backends import ByteRange, DamagedError


class OpenAnswer(Protocol):
    """The body of an answer that is still coming."""

    async def read(self) -> bytes:
        """The next bytes. Empty: the body has ended. `UnavailableError`: it broke off."""

    def close(self) -> None:
        """Drops the connection, unless the body was read to its end. Safe to repeat."""


class Described(Protocol):
    """A generation as its service describes it. `crc32c`: of all bytes, base64; None: nobody tells."""

    @property
    def metadata(self) -> Metadata: ...
    @property
    def size(self) -> int: ...
    @property
    def crc32c(self) -> str | None: ...


class BucketReader:
    """`BlobReader` and `RangedReader` of one generation, and the iterator over its chunks.

    `body`: gives the bytes of the `extent` (start, stop); None: there are none. `open_more`: opens other bytes of the
    same generation; None: it is gone. If a whole blob is read, its crc32c is verified; if that differs, `DamagedError`
    takes the place of the last chunk, and reading again may succeed. It is no generator, so it may be abandoned.
    """

    def __init__(
        self, name: str, found: Described, body: OpenAnswer | None, extent: tuple[int, int],
        open_more: Callable[[int, int], Awaitable[BucketReader | None]],
    ) -> None:  # fmt: skip
        self.metadata = found.metadata
        self.size = found.size
        self.checksum = None if found.crc32c is None else f"crc32c={found.crc32c}"
        self._name = name
        self._crc32c = found.crc32c
        self._body = body
        self._left = extent[1] - extent[0]
        self._crc: int | None = 0 if self._left == found.size else None
        self._open_more = open_more

    def ranges(self) -> BucketRanges:
        is_whole, self._crc = self._crc is not None, None
        return BucketRanges(self._name, self._crc32c if is_whole else None, self._open_more)

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._left == 0:
            self._close()
            if self._crc == 0:  # nothing came: the blob is empty, or the answer was
                _check_crc(self._name, self._crc32c, 0)
            raise StopAsyncIteration
        if self._body is None:
            raise InvalidRequestError("the blob was closed while it was read; get it again")
        chunk = await self._body.read()
        if not chunk or len(chunk) > self._left:
            what = "more bytes came than it has" if chunk else f"{self._left} bytes did not come"
            raise UnavailableError(f"reading blob {self._name!r} failed: {what}")
        self._left -= len(chunk)
        if self._crc is not None:
            self._crc = extend_crc(self._crc, chunk)
            if self._left == 0:
                _check_crc(self._name, self._crc32c, self._crc)
        return chunk

    async def aclose(self) -> None:
        """Drops the connection if there are unread bytes."""
        self._close()

    def _close(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            body.close()


class BucketRanges:
    """`BlobRanges` of one generation. `crc32c`: of the whole; None: the ranges are not verified."""

    def __init__(self, name: str, crc32c: str | None, open_more: Callable[[int, int], Awaitable[BucketReader | None]]) -> None:
        self._name = name
        self._crc32c = crc32c
        self._open_more = open_more

    async def open(self, start: int, stop: int) -> BucketReader | None:
        return await self._open_more(start, stop)

    def extend(self, check: int, chunk: bytes) -> int:
        return 0 if self._crc32c is None else extend_crc(check, chunk)

    def check(self, parts: Sequence[tuple[int, int]]) -> None:
        if self._crc32c is not None:
            _check_crc(self._name, self._crc32c, join_crcs(parts, CRC32C))


def _check_crc(name: str, crc32c: str | None, crc: int) -> None:
    """Raises `DamagedError` if this is not the crc32c of the blob. None: nobody tells that."""
    if crc32c not in (None, encode_crc(crc)):
        raise DamagedError(
            f"reading blob {name!r} failed: it was damaged on its way, its crc32c is {encode_crc(crc)}, not {crc32c}; try again"
        )


def header_of(range: ByteRange | None) -> dict[str, str] | None:
    """The header that asks for a range. None: only its size makes it a range of HTTP, or it may be empty."""
    if range is None:
        return {}
    can_tell = range.stop is None or 0 <= range.start < range.stop
    return header_from(range.start, range.stop) if can_tell else None


def header_from(start: int, stop: int | None) -> dict[str, str]:
    return {"Range": f"bytes={start}{'' if start < 0 else '-'}{'' if stop is None else stop - 1}"}
