"""`MemoryBlobs`: the long-term tier in memory. Tests may read its state.

    blobs       name -> blob, visible
    uploads     session -> upload that can still be finalised
    in_parts    session -> upload in parts that can still be completed
    collected   names of blobs that were removed because they expired
    strays      names of blobs that the network's second copy of a single request made again after they were deleted
    deleted     name -> its deleted generations, which can be restored for `kept_s` (0, the default: none are kept)

A blob is collected `collect_after_s` after its deadline: an hour in embedded mode, a day in a bucket as provisioned. No
clock is wrong by that much. So no reader follows a tombstone that seems unexpired to a blob that is gone.

Each call is atomic: after its request has travelled, nothing is awaited, except in a slow scan. With `sessions=False`
every upload is a single request: nothing of it is at the service before `finalise` is sent, `session` is None, and what
was sent cannot be called back. So it may arrive after its sender gave up.

*Failure*: a reader whose blob disappears fails. It never continues from another generation (I7).
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import inf

from changelog.base.errors import InvalidRequestError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import Runtime
from tiered.metadata import NS_PER_S, Metadata, is_expired
from tiered.payload.chunks import Chunk
from tiered.payload.crcs import CRC32, join_crcs
from tiered.services.backends import BlobHead, ByteRange, SessionEndedError
from tiered.services.capabilities import PART_NUMBER_MAX, PARTS_DAYS_MAX, DeletedGeneration, OpenSession, Part, SessionPage, check_parts
from tiered.services.scans import QUARANTINE, BlobPage, Generation, ListedBlob, NotCopied, Removal
from tiered.stored import CHUNK_BYTES
from tiered.testing.service import MemoryService

REQUEST_LIVES_S = 900.0
"""How long a request may stand still before it is lost, in seconds.

The late-upload grace depends on it (docs/protocol.md, assumption 4).
"""
SESSION_AGE_MAX_NS = 7 * 86_400 * NS_PER_S
PARTS_AGE_MAX_NS = PARTS_DAYS_MAX * 86_400 * NS_PER_S
_CRC = "crc32="


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob as stored. Its deadline is in its metadata."""

    metadata: Metadata
    payload: bytes
    created_ns: int
    generation: Generation


class MemoryBlobs(MemoryService):
    """`LongTermBackend`, `GarbageCollection`, `BlobRestoration`, `BatchDeletion` and `PartUploads`.

    `runtime` is the server's.
    """

    def __init__(self, runtime: Runtime, *, sessions: bool = True) -> None:
        super().__init__(runtime)
        self.collect_after_s = 3600.0
        self.blobs: dict[str, Blob] = {}
        self.uploads: dict[str, MemoryUpload] = {}
        self.in_parts: dict[str, MemoryParts] = {}
        self.collected: set[str] = set()
        self.strays: set[str] = set()
        self.deleted: dict[str, list[tuple[int, Blob]]] = {}
        self.kept_s = 0.0
        self._created: set[str] = set()
        self._sessions = sessions
        self._count = 0

    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> MemoryUpload:
        session = f"{name}#{self._next()}" if self._sessions else None
        if session is not None:
            await self._travel()
        upload = MemoryUpload(self, name, metadata, size, session, self._runtime.wall_ns())
        if session is not None:
            self.uploads[session] = upload
            self._took_effect("blobs.open_upload", session)
        return upload

    async def open_copy(self, source: str, generation: Generation, name: str, metadata: Metadata) -> MemoryUpload:
        return MemoryCopy(self, source, generation, name, metadata)

    async def cancel(self, session: str) -> None:
        await self._travel()
        self._end(session, "blobs.cancel")

    async def begin_parts(self, name: str, metadata: Metadata) -> str:
        session = f"parts:{name}#{self._next()}"
        await self._travel()
        self.in_parts[session] = MemoryParts(name, metadata, self._runtime.wall_ns())
        self._took_effect("blobs.begin_parts", session)
        return session

    async def put_part(self, name: str, session: str, number: int, payload: Sequence[Chunk]) -> Part:
        _check_session(name, session)
        if not 1 <= number <= PART_NUMBER_MAX:
            raise InvalidRequestError(f"a part has a number from 1 to {PART_NUMBER_MAX}, not {number}")
        await self._travel()
        whole = b"".join(payload)
        part = Part(number, len(whole), f"{_CRC}{zlib.crc32(whole):08x}", str(self._next()))
        self._parts_of(name, session).parts[number] = part, whole
        self._took_effect("blobs.put_part", session)
        return part

    async def parts(self, name: str, session: str) -> Sequence[Part]:
        _check_session(name, session)
        await self._travel()
        return [part for _, (part, _) in sorted(self._parts_of(name, session).parts.items())]

    async def complete_parts(self, name: str, session: str, parts: Sequence[Part]) -> None:
        _check_session(name, session)
        check_parts(name, parts)
        await self._travel()
        found = self.blobs.get(name)
        if session not in self.in_parts and found is not None and _is_of(found, parts):
            return
        upload = self._parts_of(name, session)
        there = [upload.parts.get(part.number, (None, b"")) for part in parts]
        if [part for part, _ in there] != list(parts):
            raise InvalidRequestError(f"a part of blob {name!r} is not there, or was uploaded again; list them")
        self._create(name, upload.metadata, b"".join(payload for _, payload in there))
        del self.in_parts[session]

    async def open_sessions(self, before_ns: int, after: str, limit: int) -> SessionPage:
        await self._travel()
        following = sorted(session for session in self.in_parts if session > after)
        found = [OpenSession(self.in_parts[each].name, each) for each in following[:limit] if self.in_parts[each].begun_ns < before_ns]
        return SessionPage(found, following[limit - 1] if len(following) > limit else None)

    def _parts_of(self, name: str, session: str) -> MemoryParts:
        upload = self.in_parts.get(session)
        if upload is None:
            raise SessionEndedError(f"the upload of blob {name!r} was cancelled or completed before").telling(heard=True)
        return upload

    async def open(self, name: str, range: ByteRange | None = None) -> MemoryReader | None:
        await self._travel()
        blob = self.blobs.get(name)
        return None if blob is None else MemoryReader(self, name, blob, range)

    async def head(self, name: str) -> BlobHead | None:
        await self._travel()
        blob = self.blobs.get(name)
        return None if blob is None else BlobHead(deepcopy(blob.metadata), len(blob.payload), blob.created_ns, blob.generation)

    async def delete(self, name: str) -> int:
        await self._travel()
        blob = self.blobs.pop(name, None)
        if blob is None:
            return 0
        self._keep(name, blob)
        self._took_effect("blobs.delete", name)
        return len(blob.payload)

    async def delete_generation(self, name: str, generation: Generation) -> Removal:
        await self._travel()
        return self._remove(name, generation)

    async def delete_generations(self, blobs: Sequence[tuple[str, Generation]]) -> Sequence[Removal | TieredError]:
        await self._travel()
        return [self._remove(name, generation) for name, generation in blobs]

    def _remove(self, name: str, generation: Generation) -> Removal:
        blob = self.blobs.get(name)
        if blob is None:
            return Removal.ABSENT
        if blob.generation != generation:
            return Removal.REPLACED
        self._keep(name, self.blobs.pop(name))
        self._took_effect("blobs.delete", name)
        return Removal.DELETED

    async def deleted_generations(self, name: str) -> Sequence[DeletedGeneration]:
        await self._travel()
        return [
            DeletedGeneration(f"{name}#{blob.generation}", len(blob.payload), blob.generation, deleted_ns, self._kept_until_ns(deleted_ns))
            for deleted_ns, blob in self._restorable(name)
        ]

    async def restore(self, name: str, generation: Generation) -> Generation | None:
        await self._travel()
        blob = next((blob for _, blob in self._restorable(name) if blob.generation == generation), None)
        if blob is None or name in self.blobs:
            return None
        self.blobs[name] = restored = replace(blob, created_ns=self._runtime.wall_ns(), generation=self._next_generation())
        self._took_effect("blobs.restore", name)
        return restored.generation

    def _keep(self, name: str, blob: Blob) -> None:
        if self.kept_s:
            self.deleted.setdefault(name, []).append((self._runtime.wall_ns(), blob))

    def _restorable(self, name: str) -> Sequence[tuple[int, Blob]]:
        return [kept for kept in self.deleted.get(name, []) if self._kept_until_ns(kept[0]) > self._runtime.wall_ns()]

    def _kept_until_ns(self, deleted_ns: int) -> int:
        return deleted_ns + round(self.kept_s * NS_PER_S)

    async def set_aside(self, name: str, generation: Generation, copy: str) -> Generation | NotCopied:
        await self._travel()
        return self._copy(name, generation, copy, "blobs.set_aside", None)

    async def bring_back(self, copy: str, generation: Generation, name: str, now_ns: int) -> Generation | NotCopied:
        await self._travel()
        return self._copy(copy, generation, name, "blobs.bring_back", now_ns)

    def _copy(self, name: str, generation: Generation, target: str, call: str, now_ns: int | None) -> Generation | NotCopied:
        blob, copy = self.blobs.get(name), self.blobs.get(target)
        if blob is None or blob.generation != generation:
            return NotCopied.ABSENT if blob is None else NotCopied.REPLACED
        if now_ns is not None and is_expired(blob.metadata.time_expires_ns, now_ns):
            return NotCopied.EXPIRING
        if copy is None:
            self.blobs[target] = copy = replace(blob, created_ns=self._runtime.wall_ns(), generation=self._next_generation())
            self._took_effect(call, target)
        return copy.generation if copy.payload == blob.payload else NotCopied.TAKEN

    async def touch(self, name: str, deadline_ns: int) -> bool:
        await self._travel()
        blob = self.blobs.get(name)
        if blob is None:
            return False
        if blob.metadata.time_expires_ns is not None and blob.metadata.time_expires_ns < deadline_ns:
            self.blobs[name] = replace(blob, metadata=blob.metadata.with_facts(time_expires_ns=deadline_ns))
            self._took_effect("blobs.touch", name)
        return True

    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        found = await self._read_in_order(
            self.blobs, start, lambda name: end is None or name < end, lambda name: _info(name, self.blobs[name]), limit
        )
        return BlobPage(found, (), None if len(found) < limit else f"{found[-1].name}\0")

    async def now_ns(self) -> int:
        await self._travel()
        return self._runtime.wall_ns()

    async def collect(self, limit: int) -> int:
        """Removes some of what is due.

        That is blobs that expired `collect_after_s` ago, as a bucket's lifecycle does, and sessions older than a week,
        or a month if they are in parts.

        `limit`: remove at most this many. Returns how many it removed.
        """
        await self._travel()
        due_ns = self._runtime.wall_ns() - round(self.collect_after_s * NS_PER_S)
        expired = [
            name for name, blob in self.blobs.items()
            if is_expired(blob.metadata.time_expires_ns, due_ns) and not name.startswith(QUARANTINE)
        ]  # fmt: skip
        old = [session for session, upload in self.uploads.items() if self._is_old(upload)]
        old += [session for session, upload in self.in_parts.items() if self._runtime.wall_ns() - upload.begun_ns > PARTS_AGE_MAX_NS]
        for garbage in (chosen := self._some([*expired, *old], limit)):
            if garbage in self.uploads or garbage in self.in_parts:
                self._end(garbage, "blobs.collect_upload")
            else:
                del self.blobs[garbage]
                self.collected.add(garbage)
                self._took_effect("blobs.collect", garbage)
        return len(chosen)

    def _is_old(self, upload: MemoryUpload) -> bool:
        return self._runtime.wall_ns() - upload.opened_ns > SESSION_AGE_MAX_NS

    def plant(self, name: str, metadata: Metadata, payload: bytes) -> None:
        """Makes a blob at once, as another generation if there is one of this name. It is no effect of a call."""
        self.blobs[name] = Blob(metadata, payload, self._runtime.wall_ns(), self._next_generation())

    def _create(self, name: str, metadata: Metadata, payload: bytes, *, copy: bool = False) -> None:
        if name in self.blobs:
            raise UnavailableError(f"blob {name!r} exists already, and nothing is overwritten")
        if copy and name in self._created:
            self.strays.add(name)
        self._created.add(name)
        now_ns = self._runtime.wall_ns()
        created_ns = now_ns if metadata.time_created_ns is None else metadata.time_created_ns
        stored = metadata.with_facts(size=len(payload), time_created_ns=created_ns)
        self.blobs[name] = Blob(stored, payload, now_ns, self._next_generation())
        self._took_effect("upload.finalise", name)

    def _end(self, session: str, call: str) -> None:
        if self.uploads.pop(session, None) is not None or self.in_parts.pop(session, None) is not None:
            self._took_effect(call, session)

    def _next_generation(self) -> Generation:
        return str(self._next())

    def _next(self) -> int:
        self._count += 1
        return self._count


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """An upload in parts: by its number, each part and its bytes. `begun_ns`: nanoseconds since 1970."""

    name: str
    metadata: Metadata
    begun_ns: int
    parts: dict[int, tuple[Part, bytes]] = field(default_factory=dict)


def _check_session(name: str, session: str) -> None:
    if not session.startswith("parts:") or session.rpartition("#")[0] != f"parts:{name}":
        raise InvalidRequestError(f"the session is none of an upload in parts of blob {name!r}")


def _is_of(blob: Blob, parts: Sequence[Part]) -> bool:
    try:
        crcs = [(int((part.checksum or "").removeprefix(_CRC), 16), part.size) for part in parts]
    except ValueError:  # a checksum that is none of ours
        return False
    return len(blob.payload) == sum(part.size for part in parts) and zlib.crc32(blob.payload) == join_crcs(crcs, CRC32)


class MemoryUpload:
    """Implements `Upload`. If `session` is None, it is a single request, which `finalise` sends.

    `given_at`: the second of the world at which its client sent the last part. A single request that does not reach the
    service within `REQUEST_LIVES_S`, because its process or the network stands still, is lost with its connection.
    """

    def __init__(
        self, blobs: MemoryBlobs, name: str, metadata: Metadata, size: int | None, session: str | None, opened_ns: int
    ) -> None:
        self.session = session
        self.opened_ns = opened_ns
        self.payload = bytearray()
        self.given_at = inf
        self._blobs = blobs
        self._name = name
        self._metadata = metadata
        self._declared = metadata.size if size is None else size
        self._ended = False

    async def write(self, chunk: bytes | memoryview) -> None:
        self._refuse_if_ended()
        if self._declared is not None and len(self.payload) + len(chunk) > self._declared:
            raise self._wrong_size("more than")
        self._ended = True  # if the caller is cancelled during the request, the upload has ended
        await self._blobs._travel()
        self._ended = False
        self.payload += chunk

    async def finalise(self) -> None:
        """Makes the blob visible.

        Raises `UnavailableError` if the upload was cancelled, is older than a week, or a blob of this name exists.
        Raises `UnconfirmedError` if a single request stood still for too long, and `InvalidRequestError` if the size is
        wrong or the upload has ended. None of them leaves a new blob.
        """
        self._refuse_if_ended()
        self._ended = True
        if self._declared is not None and len(self.payload) != self._declared:
            raise self._wrong_size("not")
        await self._blobs._travel()
        if self.session is None and self._blobs._runtime.boot_time() - self.given_at > REQUEST_LIVES_S:
            raise UnconfirmedError(f"the upload of blob {self._name!r} stood still for too long; its connection is gone")
        if self.session is not None and (self._blobs.uploads.pop(self.session, None) is None or self._blobs._is_old(self)):
            raise UnavailableError(f"the upload of blob {self._name!r} was cancelled before it was finalised, or is a week old; try again")
        self._blobs._create(self._name, self._metadata, self._bytes())

    def amend(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def finalise_copy(self) -> None:
        """Delivers a single request a second time, as the network may do. No client asks for this."""
        await self._blobs._travel()
        self._blobs._create(self._name, self._metadata, self._bytes(), copy=True)

    async def abort(self) -> None:
        """Gives the upload up. A single request has nothing at the service, and one that was sent goes on."""
        await self._blobs._travel()
        if self.session is not None:
            self._ended = True
            self._blobs._end(self.session, "upload.abort")

    def _bytes(self) -> bytes:
        """What is stored, when the request has arrived."""
        return bytes(self.payload)

    def _refuse_if_ended(self) -> None:
        if self._ended:
            raise InvalidRequestError(f"the upload of {self._name!r} has ended already; begin another")

    def _wrong_size(self, relation: str) -> InvalidRequestError:
        return InvalidRequestError(f"the payload of {self._name!r} has {len(self.payload)} bytes, {relation} the declared {self._declared}")


class MemoryCopy(MemoryUpload):
    """An upload in a single request, whose bytes the service copies when the request arrives."""

    def __init__(self, blobs: MemoryBlobs, source: str, generation: Generation, name: str, metadata: Metadata) -> None:
        super().__init__(blobs, name, metadata.with_facts(size=None), None, None, blobs._runtime.wall_ns())
        self._source = source
        self._generation = generation

    def _bytes(self) -> bytes:
        blob = self._blobs.blobs.get(self._source)
        if blob is None or blob.generation != self._generation:
            raise UnavailableError(f"the blob {self._source!r} is gone, so it cannot be copied")
        return blob.payload


class MemoryReader:
    """Implements `BlobReader` for one generation."""

    def __init__(self, blobs: MemoryBlobs, name: str, blob: Blob, range: ByteRange | None) -> None:
        self.metadata = deepcopy(blob.metadata)
        self.size = len(blob.payload)
        self.checksum: str | None = None
        self._start, self._stop = (0, self.size) if range is None else range.within(self.size)
        self._blobs = blobs
        self._name = name
        self._blob = blob

    async def chunks(self) -> AsyncIterator[bytes]:
        for start in range(self._start, self._stop, CHUNK_BYTES):
            await self._blobs._travel()
            found = self._blobs.blobs.get(self._name)
            if found is None or found.generation != self._blob.generation:
                raise UnavailableError(f"blob {self._name!r} vanished while it was read; get the object again")
            yield self._blob.payload[start : min(start + CHUNK_BYTES, self._stop)]

    async def aclose(self) -> None:
        await self._blobs._travel()


def _info(name: str, blob: Blob) -> ListedBlob:
    return ListedBlob(name, len(blob.payload), blob.created_ns, blob.metadata.time_expires_ns, blob.generation)
