"""What every payload becomes: chunks of bytes, one at a time.

Small chunks that come soon after one another are joined, and large ones are cut.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Self, TypeVar

from changelog.base.errors import InvalidRequestError, TieredError
from changelog.base.tasks import Patience
from tiered.payload.checksums import DeclaredChecksums
from tiered.stored import ProgressCount

T = TypeVar("T")

Chunk = bytes | memoryview

Reread = Callable[[int, int], AsyncIterator[Chunk]]
"""Yields the bytes of a payload from the first position up to the second, once more. `InvalidRequestError`: it cannot
any more."""

END = object()
"""Stands for the end of the payload."""


def unchanging(chunk: Chunk) -> Chunk:
    """The chunk, or a copy of it if somebody else can change it."""
    if isinstance(chunk, bytes):
        return chunk
    view = memoryview(chunk).cast("B")
    return view if isinstance(view.obj, bytes) else bytes(view)


class Chunks(ABC):
    """The chunks of one payload, none of them empty.

    Read them in `async with`, which closes the payload. If the block fails, a file that the caller opened goes back to
    where it was, so that the call can be made again. What cannot go back is said in a note on the error.

    `size`: length of the whole payload in bytes, if it is known; look at it after the first chunk. Then exactly that
    many bytes come, or an error. None: only reading it to its end tells. `custom`: what `ask_at_end` asked for; None
    before the end. `path`: of the file, if the payload was given as a path. `waits`: reading it may wait for somebody
    else, and a put lends its slot meanwhile. `may_hold_scopes`: it may have a cancel scope of its own open before it is
    read, or after. `patience`: bounds each wait for somebody else; a regular file is nobody. `meter`: is told how many
    bytes each chunk has; what it raises ends the reading. `offset`: how many bytes before these are stored already. A
    file that has nothing left is refused, as it was read before, unless it stands there.
    """

    size: int | None = None
    custom: Mapping[str, str] | None = None
    path: str | None = None
    waits = True
    may_hold_scopes = False
    offset = 0
    patience: Patience | None = None
    meter: Callable[[int], None] | None = None

    def __init__(self, piece_bytes: int, enough: int | None = None) -> None:
        self._come_in(piece_bytes, enough)
        self._ended = False
        self._progress: ProgressCount | None = None
        self._declared: int | None = None
        self._checksums: DeclaredChecksums | None = None
        self._ask: Callable[[], Awaitable[Mapping[str, str]]] | None = None

    def _come_in(self, piece_bytes: int, enough: int | None = None) -> None:
        """Lets chunks have at most so many bytes. Call it before the first one."""
        half = max(1, piece_bytes // 2)
        self._joined = ChunkBuffer(piece_bytes, half if enough is None else min(enough, half))
        self._chunk_bytes = piece_bytes

    def report_to(self, progress: ProgressCount | None, declared: int | None) -> None:
        """Tells of each chunk, which may wait. `declared`: how many bytes the caller said there are."""
        self._progress, self._declared, self.waits = progress, declared, True

    def compare_with(self, checksums: DeclaredChecksums) -> None:
        """Computes them while the chunks come. If one differs at the end, that raises `InvalidRequestError`."""
        self._checksums = checksums

    def ask_at_end(self, ask: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
        """Asks for `custom` after the last byte, if no checksum differs. It may wait, and the patience bounds that."""
        self._ask, self.waits = ask, True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        while not self._joined.ready:
            if self._ended:
                await self._look_at_whole()
                raise StopAsyncIteration
            try:
                self._ended = not await self._fill()
            except BaseException as error:
                self._give_up()
                # An async iterator must not raise it: it would be taken for the payload's end.
                if isinstance(error, StopAsyncIteration):
                    raise RuntimeError("the payload raised StopAsyncIteration") from error
                raise
            if self._ended:
                self._joined.flush()
                await self._close()
        chunk = self._joined.ready.popleft()
        if self.meter is not None:
            self.meter(len(chunk))
        if self._checksums is not None:
            await self._checksums.add(chunk)
        if self._progress is not None:
            await self._progress.add(len(chunk), self.size if self._declared is None else self._declared)
        return chunk

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and not self._go_back() and isinstance(error, TieredError):
            error.add_note(f"{self._joined.taken} bytes of the payload were read in vain: make it anew before you try again")
        await self.aclose()

    def _go_back(self) -> bool:
        """Lets the payload give its bytes to another call. False: some are lost to it."""
        return True

    async def aclose(self) -> None:
        """Gives up what is unread. Safe to repeat."""
        self._give_up()
        await self._close()

    def take_whole(self, bytes_max: int) -> bytes | None:
        """Returns the whole payload, so that nothing is left, if it is in memory and none of it was read yet.

        None: it is not, or it has more than `bytes_max` bytes, or each chunk of it must be looked at. Read it then.
        """
        return None

    def reread(self) -> Reread | None:
        """How to have its bytes again, until it is closed. Ask after the first chunk. None: it can be read only once.

        What is read again is not compared with what came first: that is the receiver's to do.
        """
        return None

    async def _look_at_whole(self) -> None:
        checksums, ask = self._checksums, self._ask
        self._give_up()
        if checksums is not None:
            checksums.compare()
        if ask is not None:
            self.custom = await self._patiently(ask)

    def _give_up(self) -> None:
        """What comes from now on is no whole payload, or it was looked at."""
        self._ended, self._checksums, self._ask = True, None, None

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Waits for somebody else, within the patience."""
        return await (call() if self.patience is None else self.patience.wait(call))

    @abstractmethod
    async def _fill(self) -> bool:
        """Reads more into `_joined`. False: that was all."""

    async def _close(self) -> None:  # noqa: B027 - most have nothing to close
        """Called more than once. An iterator that has ended, or raised an error, has closed itself."""


async def close_generator(source: object) -> None:
    """Closes an async generator of the caller's now, and not whenever it is garbage-collected. Closes nothing else."""
    if isinstance(source, AsyncGenerator):
        try:
            await source.aclose()
        except BaseExceptionGroup as errors:
            # A task group around a `yield` wraps the GeneratorExit that ends the generator.
            _, others = errors.split(GeneratorExit)
            if others is not None:
                raise others from None


async def split_head(source: Chunks, limit: int) -> tuple[list[Chunk], int, Chunks | None]:
    """Reads until more than `limit` bytes are in hand, or until the payload ends. Returns (head, bytes in it, rest).

    `rest` is None if the payload has ended. Otherwise it is `source`, which the caller reads on or closes.
    """
    whole = source.take_whole(limit)
    if whole is not None:  # most small payloads: they need no loop
        return [whole], len(whole), None
    head: list[Chunk] = []
    total = 0
    async for chunk in source:
        head.append(chunk)
        total += len(chunk)
        if total > limit:
            return head, total, source
    return head, total, None


class ChunkBuffer:
    """Collects what was read, and gives it out in chunks of at most `size` bytes, none of them empty.

    Small chunks are joined, so that one byte does not cost as much as a whole chunk. A chunk of at least `enough` bytes
    (at most half of `size`) does not wait for the next one. `taken`: how many bytes were read.
    """

    def __init__(self, size: int, enough: int) -> None:
        self.ready: deque[Chunk] = deque()
        self.taken = 0
        self._size = size
        self._enough = enough
        self._held = bytearray()

    def add(self, chunk: object) -> None:
        """Adds what was read. `InvalidRequestError`: it is not bytes."""
        # The caller may refill a buffer while we hold the chunk, so it is copied. bytes cannot change and are not
        # copied.
        whole = chunk if isinstance(chunk, bytes) else _bytes(chunk)
        self.taken += len(whole)
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
        """Makes everything that was collected ready."""
        if self._held:
            self.ready.append(bytes(self._held))
            self._held.clear()


def _bytes(chunk: object) -> bytes:
    if not isinstance(chunk, (bytearray, memoryview)):
        raise InvalidRequestError(f"a chunk of the payload has type {type_name(chunk)}: yield bytes")
    try:
        return bytes(chunk)
    except ValueError as error:
        raise InvalidRequestError(f"a chunk of the payload cannot be read ({error}): yield bytes") from None


def type_name(value: object) -> str:
    return type(value).__name__
