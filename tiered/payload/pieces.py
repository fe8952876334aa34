"""What every payload becomes: pieces of bytes, one at a time. Small ones that come soon after one another are joined, big ones cut."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator
from typing import Self

from changelog.base.errors import InvalidRequestError

Piece = bytes | memoryview

END = object()
"""What comes after the last piece."""


class Pieces(ABC):
    """Pieces of bytes, none empty. Close it (`aclose`) when it is given up half-way.

    `size`: bytes of the whole payload as far as it is known, from the first piece on; then that many come, or an error. None: only
    reading it will tell.
    """

    size: int | None = None

    def __init__(self, piece_bytes: int, enough: int | None = None) -> None:
        half = max(1, piece_bytes // 2)
        self._joined = Joined(piece_bytes, half if enough is None else min(enough, half))
        self._piece_bytes = piece_bytes
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        while not self._joined.ready:
            if self._ended:
                raise StopAsyncIteration
            try:
                self._ended = not await self._fill()
            except BaseException as error:
                self._ended = True
                if isinstance(error, StopAsyncIteration):  # would be taken for the payload's end
                    raise RuntimeError("the payload raised StopAsyncIteration") from error
                raise
            if self._ended:
                self._joined.flush()
                await self._close()
        return self._joined.ready.popleft()

    async def aclose(self) -> None:
        """Safe to repeat."""
        self._ended = True
        await self._close()

    @abstractmethod
    async def _fill(self) -> bool:
        """Reads on, into `_joined`. False: that was all."""

    async def _close(self) -> None:  # noqa: B027 - most have nothing to close
        """Repeated. An iterator that has ended, or raised something, has closed itself."""


async def close_generator(source: object) -> None:
    """Closes a caller's generator that is given up half-way now, not when it happens to be collected. Nothing else is closed."""
    if isinstance(source, AsyncGenerator):
        try:
            await source.aclose()
        except BaseExceptionGroup as errors:
            # A task group around a `yield` wraps the GeneratorExit by which a generator is told to end.
            _, others = errors.split(GeneratorExit)
            if others is not None:
                raise others from None


async def split_head(source: Pieces, limit: int) -> tuple[list[Piece], int, Pieces | None]:
    """Reads until more than `limit` bytes are in hand or the payload ends: (head, bytes in it, rest).

    `rest` is None when the payload has ended; otherwise it is `source`, and the caller's to read or close.
    """
    head: list[Piece] = []
    total = 0
    async for piece in source:
        head.append(piece)
        total += len(piece)
        if total > limit:
            return head, total, source
    return head, total, None


class Joined:
    """What was read, in pieces of at most `size` bytes, none empty: small ones are joined, so that a byte does not cost what a piece does.

    A piece of `enough` bytes, at most half of `size`, is not held back for the next one.
    """

    def __init__(self, size: int, enough: int) -> None:
        self.ready: deque[Piece] = deque()
        self._size = size
        self._enough = enough
        self._held = bytearray()

    def add(self, piece: object) -> None:
        # A buffer may be refilled by its owner while we hold the piece, so it is copied; bytes never are.
        whole = piece if isinstance(piece, bytes) else _bytes(piece)
        if len(whole) < self._enough:
            self._held += whole
            if len(self._held) >= self._enough:
                self.flush()
            return
        self.flush()
        view = memoryview(whole)
        cut = (view[start : start + self._size] for start in range(0, len(whole), self._size))
        self.ready.extend([whole] if len(whole) <= self._size else cut)

    def flush(self) -> None:
        """Whatever there is, is ready."""
        if self._held:
            self.ready.append(bytes(self._held))
            self._held.clear()


def _bytes(piece: object) -> bytes:
    if not isinstance(piece, (bytearray, memoryview)):
        raise InvalidRequestError(f"a piece of the payload has type {type_name(piece)}: yield bytes")
    try:
        return bytes(piece)
    except ValueError as error:
        raise InvalidRequestError(f"a piece of the payload cannot be read ({error}): yield bytes") from None


def type_name(value: object) -> str:
    return type(value).__name__
