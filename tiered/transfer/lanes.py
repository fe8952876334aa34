"""Lanes: the bytes of a large object come down in several ranges at once, into a file or a buffer.

    |--- the leader ---->                    <---- helper ----|---- helper ----|---- helper ----|
    reads the stream with which the          each opens a part of its own of the same generation:
    object was opened, part after part       the last part that nobody has begun

The object is cut into parts of `PART_BYTES`. The leader takes the first part that nobody has begun, and
goes on with its stream. When it has met the helpers, it waits for them, and then gets what they had to leave.

Bounded: one lane for each part, `LANES_MAX` at most. The helpers of all reads of a store together are
`Lanes.free` at most, a share of the service's connections. A read that finds no free lane begins alone, and looks again
after each part. A lane holds `WRITTEN_BYTES` and a chunk in memory.

*Failure*: a stream that breaks, stalls, or ends early is opened again where it stopped, `READ_ATTEMPTS_MAX` times
for each part. A helper that fails all the same is called no more, and leaves its part to the leader. The leader goes on
with the first stream if no other can be opened, such as when the generation is gone meanwhile: the service may still
give its bytes to who has asked before. When that stream has broken, too, `store.answer_budget_s` bounds how long
another one is tried for. So lanes end with an error only where one stream does. Each range is verified by its length,
and the whole by its checksum, if the service told one.

Where bytes are written belongs to `tiered/payload/destinations.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from changelog.base.errors import UnavailableError, UnconfirmedError
from changelog.base.events import events
from changelog.base.observe import Event, Observer
from changelog.base.runtime import Runtime
from tiered.services.backends import BlobRanges, BlobReader
from tiered.services.concurrent import foremost
from tiered.services.retry import backoff_s

WRITTEN_BYTES = 1024 * 1024
"""A lane writes so many bytes at once: each write takes a thread."""

WRITTEN_AFTER_S = 0.25
"""But after so long it writes what has come. So a slow lane shows its progress."""

READ_ATTEMPTS_MAX, LANES_MAX, PART_BYTES = 5, 8, 8 << 20
"""How often an object is read again; how many ranges of it at once, as a stream is as fast as one connection; of which
length."""

GONE = "the object was overwritten or deleted while it was read, and its bytes are gone; get it again"

Call = Callable[[Callable[[], Awaitable[BlobReader | None]]], Awaitable[BlobReader | None]]


class Writes(Protocol):
    """What takes the bytes. See `tiered.payload.destinations.Output`."""

    async def write(self, position: int, chunks: Sequence[bytes], seen: Callable[[bytes], object]) -> None: ...


class Lanes:
    """The lanes of one store. `free`: how many helpers may begin now, in all reads together.

    `once`, `patiently`: make a call to the blobs, one time or for as long as the store tries each of its reads.
    """

    def __init__(self, runtime: Runtime, free: int, observer: Observer, once: Call, patiently: Call) -> None:
        self.runtime = runtime
        self.free = free
        self.observer = observer
        self.once = once
        self.patiently = patiently

    async def fetch(
        self, ranges: BlobRanges, stream: AsyncIterator[bytes], extent: tuple[int, int], output: Writes,
        told: Callable[[int], Awaitable[None]],
    ) -> None:  # fmt: skip
        """Writes all bytes of the extent (start and stop) to the output.

        `stream`: gives these bytes, from the first on. `told`: is told of each number of bytes that was written; never
        twice at once. The first error of any lane is raised as it is, after all of them have ended.
        """
        await _Fetch(self, ranges, stream, extent, output, told).run()


@dataclass(slots=True, eq=False)
class _LanePart:
    """The bytes before `at` were written, and those from it to `stop` are missing. `check`: of what was written."""

    start: int
    stop: int
    at: int
    check: int = 0


class _LaneStream:
    """An open stream whose next byte is that `at`. `reader`: what is closed with it. None: it is the first stream."""

    def __init__(self, chunks: AsyncIterator[bytes], at: int, reader: BlobReader | None = None) -> None:
        self.at = at
        self._chunks = chunks
        self.reader = reader
        self._rest = b""
        self._failure: UnavailableError | UnconfirmedError | None = None

    async def take(self, size: int, is_late: Callable[[], bool]) -> list[bytes]:
        """The next bytes: at least one, and `size` unless it becomes late before. `UnavailableError`: none came."""
        taken: list[bytes] = []
        while size and self._failure is None and not (taken and is_late()):
            if not (chunk := await self._next()):
                break
            chunk, self._rest = chunk[:size], chunk[size:]
            size -= len(chunk)
            self.at += len(chunk)
            taken.append(chunk)
        if not taken and self._failure is not None:
            raise self._failure
        return taken

    async def _next(self) -> bytes:
        """The next chunk. Empty: there is none, and `_failure` says why. What came before it is not lost with it."""
        if self._rest:
            return self._rest
        try:
            return await anext(self._chunks)
        except StopAsyncIteration:
            self._failure = UnavailableError(f"the stream ended after {self.at} bytes, and more were to come; try again")
        except (UnavailableError, UnconfirmedError) as error:
            self._failure = error
        return b""

    async def skip(self, to: int) -> None:
        while self.at < to:
            await self.take(min(to - self.at, WRITTEN_BYTES), lambda: False)

    async def aclose(self) -> None:
        if self.reader is None:
            return
        with suppress(UnavailableError, UnconfirmedError):  # how the reading ended changes nothing
            try:
                if isinstance(self._chunks, AsyncGenerator):
                    await self._chunks.aclose()
            finally:
                await self.reader.aclose()


class _Lane:
    """Whoever gets parts, one after another. `stream`: what it reads."""

    def __init__(self, stream: _LaneStream | None = None) -> None:
        self.stream = stream

    async def aclose(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            await stream.aclose()


class _Fetch:
    """One read. Nobody has begun the parts from `_next` on that are before `_until`."""

    def __init__(
        self, lanes: Lanes, ranges: BlobRanges, stream: AsyncIterator[bytes], extent: tuple[int, int], output: Writes,
        told: Callable[[int], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._start, stop = extent
        size = PART_BYTES
        self._parts = [_LanePart(at, min(at + size, stop), at) for at in range(self._start, stop, size)]
        self._next, self._until = 0, len(self._parts)
        self._helping = self._taken = 0
        self._is_gone = False
        self._lanes = lanes
        self._ranges = ranges
        self._output = output
        self._told = told
        self._telling = anyio.Lock()
        self._leader = _Lane(_LaneStream(stream, self._start))

    async def run(self) -> None:
        failed: BaseException | None = None
        try:
            async with anyio.create_task_group() as helpers:
                while (part := self._first()) is not None:
                    self._call_helpers(helpers)
                    await self._lead(part)
            for part in self._parts:
                await self._lead(part)
        except BaseExceptionGroup as errors:
            failed = foremost(errors.exceptions)
        finally:
            self._lanes.free += self._taken  # of helpers that were cancelled before they began
            await self._leader.aclose()
        if failed is not None:
            raise failed  # raised here, outside of the group's except clause, so that it keeps its own cause
        self._ranges.check([(part.check, part.stop - part.start) for part in self._parts])

    # --- who gets which part

    def _first(self) -> _LanePart | None:
        if self._next == self._until:
            return None
        self._next += 1
        return self._parts[self._next - 1]

    def _last(self) -> _LanePart | None:
        if self._next == self._until or self._is_gone:
            return None
        self._until -= 1
        return self._parts[self._until]

    def _call_helpers(self, helpers: TaskGroup) -> None:
        while self._lanes.free and self._helping < LANES_MAX - 1 and (part := self._last()) is not None:
            self._lanes.free -= 1
            self._taken += 1
            self._helping += 1
            helpers.start_soon(self._help, part)

    async def _help(self, part: _LanePart | None) -> None:
        lane = _Lane()
        try:
            while part is not None:
                if await self._get(lane, part) is not None:
                    return
                part = self._last()
            self._helping -= 1
        finally:
            self._lanes.free += 1
            self._taken -= 1
            await lane.aclose()

    async def _lead(self, part: _LanePart) -> None:
        if (failure := await self._get(self._leader, part)) is not None:
            raise failure

    # --- one part

    async def _get(self, lane: _Lane, part: _LanePart) -> UnavailableError | UnconfirmedError | None:
        """Gets what is missing of a part. Returns why that could not be had."""
        failure: UnavailableError | UnconfirmedError | None = None
        for attempt in range(1 + READ_ATTEMPTS_MAX):  # what was open may break before anything is opened here
            if part.at == part.stop or (self._is_gone and lane.stream is None):
                break
            if failure is not None:
                self._lanes.observer.count(Event.RETRIED, type(failure).__name__)
                await self._lanes.runtime.sleep(backoff_s(self._lanes.runtime, attempt))
            patiently = lane is self._leader and lane.stream is None
            try:
                stream = await self._stream_for(lane, part, patiently=patiently)
            except (UnavailableError, UnconfirmedError) as error:
                failure = error
                if patiently or error.is_final:
                    break  # it was tried for as long as the store tries anything
                continue
            failure = await self._copy(stream, part)
            if failure is not None:
                await lane.aclose()
                if attempt == 0:
                    events.warning("range_cut_off", failure, start=part.at, end=part.stop)
        if part.at == part.stop:
            return None
        return UnavailableError(GONE) if self._is_gone or failure is None else failure

    async def _stream_for(self, lane: _Lane, part: _LanePart, *, patiently: bool) -> _LaneStream:
        """A stream that stands where the part is to be gone on with. `UnavailableError`: there is none now."""
        if lane.stream is not None and lane.stream.at == part.at:
            return lane.stream
        if lane.stream is not None and lane.stream.reader is not None:
            await lane.aclose()  # but the first stream is kept until it is known that others can be opened
        opened: _LaneStream | None = None
        if not self._is_gone:
            try:
                opened = await self._open(part, patiently=patiently)
                self._is_gone = self._is_gone or opened is None
            except (UnavailableError, UnconfirmedError):
                if lane.stream is None:
                    raise
        if opened is not None:
            lane.stream = opened
            return opened
        if lane.stream is None:
            raise UnavailableError(GONE)
        try:
            await lane.stream.skip(part.at)
        except BaseException:
            await lane.aclose()
            raise
        return lane.stream

    async def _open(self, part: _LanePart, *, patiently: bool) -> _LaneStream | None:
        """Opens a stream of the part. That of the leader goes on to the last byte that nobody has begun."""
        stop = max(part.stop, self._parts[self._until - 1].stop) if self._until else part.stop
        call = self._lanes.patiently if patiently else self._lanes.once
        reader = await call(lambda: self._ranges.open(part.at, stop))
        return None if reader is None else _LaneStream(reader.chunks(), part.at, reader)

    async def _copy(self, stream: _LaneStream, part: _LanePart) -> UnavailableError | UnconfirmedError | None:
        """Writes what the stream gives of the part. Returns why it gave no more."""
        clock = self._lanes.runtime.monotonic

        def seen(chunk: bytes) -> None:
            part.check = self._ranges.extend(part.check, chunk)

        while part.at < part.stop:
            late_at = clock() + WRITTEN_AFTER_S
            try:
                chunks = await stream.take(min(part.stop - part.at, WRITTEN_BYTES), lambda late_at=late_at: clock() > late_at)  # type: ignore[misc]
            except (UnavailableError, UnconfirmedError) as error:
                return error
            await self._output.write(part.at - self._start, chunks, seen)
            size = sum(map(len, chunks))
            part.at += size
            async with self._telling:
                await self._told(size)
        return None
