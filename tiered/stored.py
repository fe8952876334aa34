"""What calls return: the head of an object, an open stream of its bytes, the entries of a listing.

I7: metadata and bytes come from one write. Both come from one row or from one blob, and a blob's bytes never change.
I4: after a `StoredObject` was handed out, it gives the bytes of its own revision or an error, never other bytes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from inspect import isawaitable
from types import TracebackType
from typing import Literal, Self

from changelog.base.errors import InvalidRequestError, UnavailableError, UnconfirmedError
from changelog.base.home_loop import HomeLoop, in_home_loop
from changelog.base.tasks import elsewhere_is_an_error
from changelog.change import ChangeId
from tiered.metadata import Metadata, as_datetime
from tiered.object_id import ObjectId, ObjectPrefix
from tiered.payload.destinations import Destination, Output, opened
from tiered.payload.own_thread import Thread
from tiered.payload.zstd import COMPRESSION, Decompressor
from tiered.services.backends import BlobReader, ByteRange, RangedReader
from tiered.text import quoted
from tiered.transfer.lanes import Lanes

CHUNK_BYTES = 256 * 1024
"""Payloads are read, stored and returned in chunks of at most this size, in bytes."""


Progress = Callable[[int, int | None], object]
"""What `progress=` takes: it is called after each chunk with the bytes so far and the total (None: not known).

It is called in the event loop, so it must not block. It may be an async function; then the next chunk waits for it. In
`tiered.sync`, the thread of the caller calls it. What it raises ends the put or the read.
"""


CustomAtEnd = Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""What `custom_at_end=` takes: it is called once after the last byte, and returns more entries of `Metadata.custom`.

It is called in the event loop, so it must not block. It may be an async function. In `tiered.sync`, the thread of the
caller calls it. What it raises ends the put.
"""


Compression = Literal["zstd"]
"""What `compress=` takes."""


class ProgressCount:
    """Counts bytes, and tells a caller's `Progress` of them."""

    def __init__(self, progress: Progress) -> None:
        if not callable(progress):
            raise InvalidRequestError(f"progress is {quoted(progress)}: pass a function that takes the bytes so far and the total")
        self._progress = progress
        self._bytes = 0

    async def add(self, size: int, total: int | None) -> None:
        """Tells of `size` more bytes."""
        try:
            with elsewhere_is_an_error("what the progress callback awaited was cancelled elsewhere"):
                result = self.tell(size, total)
                if isawaitable(result):
                    await result
        except StopAsyncIteration as error:  # between chunks, it would be taken for the end of the payload
            raise RuntimeError("the progress callback raised StopAsyncIteration") from error

    def tell(self, size: int, total: int | None) -> object:
        """Tells of `size` more bytes, and returns what the callback returns."""
        self._bytes += size
        return self._progress(self._bytes, total)


class Tier(Enum):
    """Where the payload of an object is stored."""

    HIGH_VOLUME = "high-volume"
    LONG_TERM = "long-term"


@dataclass(frozen=True, slots=True)
class PutResult:
    """What `put` returns. `revision`: the token of this write. `size`: length of the payload as stored, in bytes."""

    revision: ChangeId
    tier: Tier
    size: int


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """All that is known of an object except its bytes.

    `size`: length of the whole payload in bytes, as it is stored: if `metadata.compression` is set, compressed.
    `revision`: None if older software wrote the object; it is also a strong ETag: no other bytes and no other metadata
    ever have it. `checksum`: of the whole payload as the long-term tier keeps it, such as `crc32c=yZRlqg==`; None: the
    tier keeps none of the whole. Of a small object, `head` computes it when asked.
    """

    object_id: ObjectId
    metadata: Metadata
    size: int
    tier: Tier
    revision: ChangeId | None
    checksum: str | None = None


def metadata_given(head: ObjectHead, *, decompressed: bool) -> Metadata:
    """The metadata of the bytes that a read gives. What was decompressed is not compressed, and has another size."""
    return head.metadata.with_facts(compression=None, size=None) if decompressed else head.metadata


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One object of a listing. All of it is from one write.

    `size`: length of the payload as stored, in bytes. `revision`: None if older software wrote it. `time_created_ns`,
    `time_expires_ns`: nanoseconds since 1970; an object without `time_expires_ns` stays until it is deleted.

    Its row tells all this. Only of a large object that an earlier or other software wrote, or that came in parts with
    more than 1 KiB of metadata, it does not tell `size` and `time_created_ns`: they are None unless the listing was
    asked for metadata, as they are with the blob. `metadata`: None unless the listing was asked for them.

    `fault`: what is wrong with an object that is damaged, in words; then nothing but its id is sure. None: nothing was
    noticed. A listing reads no payload, and no blob that its row describes, so it does not notice all damage.
    """

    object_id: ObjectId
    tier: Tier
    revision: ChangeId | None = None
    size: int | None = None
    time_created_ns: int | None = None
    time_expires_ns: int | None = None
    metadata: Metadata | None = None
    fault: str | None = None

    @property
    def time_created(self) -> datetime | None:
        """`time_created_ns` as a `datetime` in UTC, to the microsecond."""
        return as_datetime(self.time_created_ns)

    @property
    def time_expires(self) -> datetime | None:
        """`time_expires_ns` as a `datetime` in UTC, to the microsecond."""
        return as_datetime(self.time_expires_ns)


@dataclass(frozen=True, slots=True)
class Difference:
    """What `compare` found on one side only. `entry`: the object that no id names; None: an id names it, and there is
    no such object.
    """

    object_id: ObjectId
    entry: ListEntry | None


@dataclass(frozen=True, slots=True)
class Folder:
    """All objects of a listing whose paths are the same up to a delimiter. `list(folder.prefix)` lists them."""

    prefix: ObjectPrefix


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a listing. `next_page_token`: what `list_page` wants for the next page; None: there is no more."""

    entries: tuple[ListEntry | Folder, ...]
    next_page_token: str | None

    @property
    def objects(self) -> list[ListEntry]:
        """The entries that are no folders."""
        return [entry for entry in self.entries if isinstance(entry, ListEntry)]

    @property
    def folders(self) -> list[Folder]:
        return [entry for entry in self.entries if isinstance(entry, Folder)]


@in_home_loop
class StoredObject:
    """An object that is open for reading: its head, and its bytes, which can be read once.

    Use `await stored.read()`, `await stored.save(path)`, `async for chunk in stored`, or `async with stored`. Each of
    them closes the object at its end. If none of them is used, the object keeps a file or a connection open until
    `aclose`. It is also a payload: `put` streams a copy of it and always closes it. `start`, `stop`: the range of the
    stored bytes, `stop` excluded, as an HTTP `Content-Range` wants it: 0 and `size` unless a range was asked for.

    `decompressed`: it gives the bytes that were compressed, and not those that are stored. `length`: how many bytes it
    gives; None: it decompresses, and only its end tells. `in_memory`: the bytes that it gives, if they came with the
    row; None: they are read from the blob, or decompressed.
    """

    def __init__(
        self, head: ObjectHead, source: BlobReader | memoryview, start: int, stop: int, progress: ProgressCount | None = None,
        lanes: Lanes | None = None,
    ) -> None:
        self._home = HomeLoop(self)
        self.head = head
        self.start = start
        self.stop = stop
        self.length: int | None = stop - start
        self.decompressed = False
        self._decompressor: Decompressor | None = None
        self._blob = None if isinstance(source, memoryview) else source
        self._chunks = _Slices(source) if isinstance(source, memoryview) else source.chunks()
        self.in_memory = source if isinstance(source, memoryview) else None
        self._progress = progress
        self._lanes = lanes
        self._begun = self._reading = self._in_chunks = self._ended = self._closed = False

    def __repr__(self) -> str:
        return f"<StoredObject {self.object_id} of {self.size} bytes, revision {self.revision}>"

    def _decompress(self, range: ByteRange | None) -> None:
        """Lets it give the bytes that were compressed, if these are. Called before the first one.

        `InvalidRequestError`: a range was asked for. `ConfigurationError`: no library is installed.
        """
        if self.head.metadata.compression != COMPRESSION:
            return
        if range is not None:  # also if all stored bytes are within it: they stand for others, and more of them
            raise InvalidRequestError(
                f"{self.object_id} is compressed, and a range counts the bytes as they are stored: read it whole, "
                "or the range with decompress=False (--raw)"
            )
        self._decompressor = Decompressor(str(self.object_id))
        self.length, self.in_memory, self.decompressed = None, None, True

    def _ask(self, hold: Callable[[int], None]) -> None:
        """Lets what decompresses ask for its memory: as `Decompressor.ask`. Called before the first byte."""
        if self._decompressor is not None:
            self._decompressor.ask(hold)

    @property
    def object_id(self) -> ObjectId:
        return self.head.object_id

    @property
    def metadata(self) -> Metadata:
        """Of the bytes that it gives: those of `head`, but without `compression` and `size` if it decompresses."""
        return metadata_given(self.head, decompressed=self.decompressed)

    @property
    def size(self) -> int:
        """Length of the whole payload in bytes, as it is stored, also if only a range was asked for."""
        return self.head.size

    @property
    def tier(self) -> Tier:
        return self.head.tier

    @property
    def revision(self) -> ChangeId | None:
        return self.head.revision

    @property
    def checksum(self) -> str | None:
        """Of the whole payload as it is stored, also if only a range was asked for."""
        return self.head.checksum

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The bytes of the range, in chunks, once. `InvalidRequestError`: it was read or closed before.

        `UnavailableError`, from a chunk: the blob vanished or the service failed meanwhile. Get the object again.
        `CorruptRecordError`, from a chunk: it cannot be decompressed.
        """
        self._home.check()
        if self._begun:
            raise InvalidRequestError(f"{self.object_id} was already read or closed; get it again")
        self._begun = True
        return _Bytes(self._next)

    async def _next(self) -> bytes:
        if self._reading:
            raise InvalidRequestError(f"{self.object_id} is being read by another task; each gets it for itself")
        if self._ended:
            raise StopAsyncIteration
        self._reading = True
        try:
            chunk = await self._next_chunk()
            if self._progress is not None:
                await self._progress.add(len(chunk), self.length)
            return chunk
        except BaseException as error:
            self._ended = isinstance(error, StopAsyncIteration)
            await self.aclose()
            if isinstance(error, UnconfirmedError):
                raise UnavailableError(f"{self.object_id} could not be read to its end: {error}") from error
            raise
        finally:
            self._reading = False

    async def _next_chunk(self) -> bytes:
        return await (self._next_stored() if self._decompressor is None else self._decompressor.take(self._next_stored))

    async def _next_stored(self) -> bytes:
        """Raises `StopAsyncIteration` only after the last byte: what was closed must not look shorter than it is."""
        if not self._closed:
            self._in_chunks = True
            with suppress(StopAsyncIteration):
                try:
                    return await anext(self._chunks)
                finally:
                    self._in_chunks = False
            if not self._closed:
                raise StopAsyncIteration
        await self._close_chunks()
        raise InvalidRequestError(f"{self.object_id} was closed before its end was read; get it again")

    async def read(self) -> bytes:
        """Returns all bytes of the range, held in memory."""
        if self.in_memory is not None and type(self._chunks) is _Slices and not self._begun and self._progress is None:
            self._begun = self._closed = self._ended = True
            return bytes(self.in_memory)
        return b"".join([chunk async for chunk in self])

    async def save(self, destination: Destination) -> None:
        """Writes all bytes of the range to a file or into a buffer, and closes the object.

        `destination`: a path, an open binary file, or a buffer that is long enough, such as a `bytearray` of `length`
        bytes. At a path, a plain file is replaced when all bytes are there, and is as it was before if this fails. An
        open file is written from its position on, stays open, and may have got a part if this fails; so may a buffer,
        and a pipe or a device at a path.

        A large object comes in up to 8 ranges at once, unless the destination is written from
        its beginning to its end, as a pipe is, or the object is decompressed. A range whose connection breaks is read
        on where it stopped.

        `InvalidRequestError`: it was read or closed before, or nothing can be saved there. `UnavailableError`: the blob
        vanished or the service failed meanwhile, or the bytes were damaged on their way. Get the object again.
        `CorruptRecordError`: it cannot be decompressed. `OSError`: what the system says of the file, such as that the
        disk is full. What a file of your own raises reaches you.
        """
        progress = self._progress
        await self._save(destination, None if progress is None else lambda size: progress.add(size, self.length))

    async def _save(
        self, destination: Destination, tell: Callable[[int], Awaitable[None]] | None, thread: Thread | None = None
    ) -> None:
        """`tell`: is told of each number of bytes that was written. `thread`: where code of the caller's runs."""
        if self._begun:
            raise InvalidRequestError(f"{self.object_id} was already read or closed; get it again")
        self._begun = True

        async def told(size: int) -> None:
            if tell is not None:
                await tell(size)

        try:
            async with opened(destination, self.length, thread) as output:
                is_raw = self._decompressor is None
                if is_raw and output.in_any_order and self._lanes is not None and isinstance(self._blob, RangedReader):
                    await self._lanes.fetch(self._blob.ranges(), self._chunks, (self.start, self.stop), output, told)
                else:
                    await self._save_in_sequence(output, told)
        except UnconfirmedError as error:
            raise UnavailableError(f"{self.object_id} could not be read to its end: {error}") from error
        finally:
            await self.aclose()

    async def _save_in_sequence(self, output: Output, told: Callable[[int], Awaitable[None]]) -> None:
        position = 0
        while True:
            try:
                chunk = await self._next_chunk()
            except StopAsyncIteration:
                return
            await output.write(position, [chunk], lambda chunk: None)
            position += len(chunk)
            await told(len(chunk))

    async def aclose(self) -> None:
        """Closes the object; bytes that were not read are given up. Safe to repeat.

        If another task still reads it, that gets an error, and never less than all bytes without one.
        """
        self._begun = self._closed = True
        blob, self._blob = self._blob, None
        if blob is not None:
            with suppress(UnavailableError, UnconfirmedError):  # how the reading ended changes nothing for the caller
                try:
                    await self._close_chunks()
                finally:
                    await blob.aclose()

    async def _close_chunks(self) -> None:
        if isinstance(self._chunks, AsyncGenerator) and not self._in_chunks:
            await self._chunks.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()


class _Bytes:
    """The iterator over an object's bytes. It is no generator, because nobody closes a generator that is left half-way.
    """

    def __init__(self, read_next: Callable[[], Awaitable[bytes]]) -> None:
        self._read_next = read_next

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await self._read_next()


class _Slices:
    """The chunks of a payload that is in memory."""

    def __init__(self, whole: memoryview) -> None:
        self._rest = whole

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if not self._rest:
            raise StopAsyncIteration
        chunk, self._rest = self._rest[:CHUNK_BYTES], self._rest[CHUNK_BYTES:]
        return bytes(chunk)
