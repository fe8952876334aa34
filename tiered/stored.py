"""What reads return: an object's head, and its open stream of bytes.

I7: metadata and bytes come from one write, because both come from one row or from one blob, and a blob is
immutable. I4: once a `StoredObject` is handed out, its bytes are that revision's or an error, never another's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Self

from changelog.change import ChangeId
from tiered.errors import InvalidRequestError, UnavailableError, UnconfirmedError
from tiered.metadata import Metadata
from tiered.object_id import ObjectId
from tiered.protocol.backends import BlobReader

PIECE_BYTES = 256 * 1024
"""Payloads are read, stored and returned in pieces of at most this size, in bytes."""


class Tier(Enum):
    HIGH_VOLUME = "high-volume"
    LONG_TERM = "long-term"


@dataclass(frozen=True, slots=True)
class PutResult:
    """`revision`: the token of this write. `size`: bytes of payload."""

    revision: ChangeId
    tier: Tier
    size: int


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """All but the bytes. `size`: bytes of the whole payload. `revision`: None where older software wrote it."""

    object_id: ObjectId
    metadata: Metadata
    size: int
    tier: Tier
    revision: ChangeId | None


class StoredObject:
    """An object that is open for reading: its head, and its bytes once.

    Read it with `await stored.read()`, with `async for piece in stored`, or inside `async with stored`; any of
    them closes it at the end. Left alone it holds a file or a connection until `aclose`. It is a payload, too: `put` streams a copy
    and closes it, however that ends. `length`: bytes of the range that was asked for.
    """

    def __init__(self, head: ObjectHead, source: BlobReader | memoryview, length: int) -> None:
        self.head = head
        self.length = length
        self._blob = None if isinstance(source, memoryview) else source
        self._pieces = _Slices(source) if isinstance(source, memoryview) else source.pieces()
        self._begun = False
        self._reading = False

    def __repr__(self) -> str:
        return f"<StoredObject {self.object_id} of {self.size} bytes, revision {self.revision}>"

    @property
    def object_id(self) -> ObjectId:
        return self.head.object_id

    @property
    def metadata(self) -> Metadata:
        return self.head.metadata

    @property
    def size(self) -> int:
        """Bytes of the whole payload, whatever range was asked for."""
        return self.head.size

    @property
    def tier(self) -> Tier:
        return self.head.tier

    @property
    def revision(self) -> ChangeId | None:
        return self.head.revision

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The bytes of the range in pieces, once. `UnavailableError`: the blob vanished on the way; get it again."""
        if self._begun:
            raise InvalidRequestError(f"{self.object_id} was already read or closed; get it again")
        self._begun = True
        return _Bytes(self._next)

    async def _next(self) -> bytes:
        if self._reading:
            raise InvalidRequestError(f"{self.object_id} is being read by another task; each gets it for itself")
        self._reading = True
        try:
            return await anext(self._pieces)
        except BaseException as error:
            await self.aclose()
            if isinstance(error, UnconfirmedError):
                raise UnavailableError(f"{self.object_id} could not be read to its end: {error}") from error
            raise
        finally:
            self._reading = False

    async def read(self) -> bytes:
        """All bytes of the range in memory."""
        return b"".join([piece async for piece in self])

    async def aclose(self) -> None:
        """Gives up what is unread. Safe to repeat."""
        self._begun = True
        blob, self._blob = self._blob, None
        if blob is not None:
            with suppress(UnavailableError, UnconfirmedError):  # nothing depends on how it was given up
                try:
                    if isinstance(self._pieces, AsyncGenerator):
                        await self._pieces.aclose()
                finally:
                    await blob.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()


class _Bytes:
    """The one iterator of an object. No generator: one that is left half-way is closed by nobody."""

    def __init__(self, read_next: Callable[[], Awaitable[bytes]]) -> None:
        self._read_next = read_next

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await self._read_next()


class _Slices:
    """The pieces of what is in memory."""

    def __init__(self, whole: memoryview) -> None:
        self._rest = whole

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if not self._rest:
            raise StopAsyncIteration
        piece, self._rest = self._rest[:PIECE_BYTES], self._rest[PIECE_BYTES:]
        return bytes(piece)
