"""The body of an upload on its way from the task that writes it to that of its request."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence

from anyio import Event

from tiered.payload.chunks import Chunk
from tiered.stored import CHUNK_BYTES


class SentOnce:
    """A body that can be iterated once, so that the HTTP library cannot repeat a request that was partly sent."""

    def __init__(self, chunks: AsyncIterator[Chunk]) -> None:
        self._chunks: AsyncIterator[Chunk] | None = chunks

    def __aiter__(self) -> AsyncIterator[Chunk]:
        chunks, self._chunks = self._chunks, None
        if chunks is None:
            raise RuntimeError("the body of an upload is sent once")
        return chunks


class Pipe:
    """Parts on their way from the writer's task to the request's. Each is taken at most once, and in order.

    `turn`: the number of the request that takes them. `is_awaited`: it has taken all, and waits for more.
    """

    def __init__(self) -> None:
        self._parts: deque[tuple[Chunk, bool]] = deque()
        self.closed = False
        self.turn = 0
        self.is_awaited = False
        self._ahead = 0
        self._added: Event | None = None
        self._taken: Event | None = None

    @property
    def waiting(self) -> int:
        """How many parts were added and not taken."""
        return len(self._parts)

    def add(self, parts: Sequence[Chunk], *, last: bool) -> None:
        """Adds parts. `last`: nothing comes after them."""
        self._parts.extend((part, last and place == len(parts)) for place, part in enumerate(parts, 1))
        if self._added is not None:
            self._added.set()

    async def take(self, turn: int) -> tuple[Chunk, bool]:
        """Returns the next part, and whether it is the last one.

        `BrokenPipeError`: the pipe is closed, or it is another request's turn.
        """
        while not self._parts and not self.closed and turn == self.turn:
            self._added, self.is_awaited = Event(), True
            await self._added.wait()
        if self.closed or turn != self.turn:
            raise BrokenPipeError("the upload has ended, or goes on in another request")
        self.is_awaited = False
        taken = self._parts.popleft()
        if self._taken is not None and len(self._parts) <= self._ahead:
            self._taken.set()
        return taken

    async def wait_taken(self, ahead: int) -> None:
        """Waits until at most `ahead` parts are left, or until the pipe is closed."""
        if len(self._parts) > ahead and not self.closed:
            self._ahead, self._taken = ahead, Event()
            await self._taken.wait()

    def close(self) -> None:
        """From now on, nothing is taken. Safe to repeat."""
        self.closed = True
        for waited_for in (self._added, self._taken):
            if waited_for is not None:
                waited_for.set()


def cut(chunk: Chunk) -> Iterator[Chunk]:
    """Cuts a chunk into parts of at most 256 KiB, and copies nothing."""
    if len(chunk) <= CHUNK_BYTES:
        yield chunk
        return
    view = memoryview(chunk)
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]
