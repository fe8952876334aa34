"""One file or object: whether the two sides differ, and what is done then.

    sizes differ                                   they differ
    the object's metadata tell its SHA-256         that of the file is computed and compared
    they do not: other software put the object     the object is read, too
    size_only                                      equal sizes are enough: nothing is read

No time of a file is compared: a clock or a copy may set it as it likes. A file has the bytes that are stored, also of a
compressed object: the listing tells the size of these.

An upload keeps the metadata of an object that it replaces, but for what tells of its bytes. It stores their SHA-256
under the key `tiered-sha256` of the custom metadata. It is computed before the upload, and again from the bytes that
are sent: if they differ, the file was changed meanwhile, and nothing is stored. The store keeps the key only from a
write that declares that checksum, so a put of other bytes with the metadata of before does not keep it. What is
replaced or deleted is named by the revision that was compared, so another writer's object is not lost
(`ConditionFailedError`). A download checks the bytes that it wrote, and replaces only the file that it compared.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TypeVar

import anyio

from changelog.base.errors import CorruptRecordError, InvalidRequestError, TieredError
from changelog.base.threads import in_thread
from tiered.bulk import PutRequest
from tiered.directories.pairs import Pair, object_of
from tiered.directories.tree import READ_BYTES, FileState, LocalFile, LocalTree, PartialFile, check_file_path, translated
from tiered.errors import ConditionFailedError
from tiered.metadata import CONTENT_TYPE_DEFAULT, SHA256_KEY, Metadata
from tiered.object_id import ObjectId, ObjectPrefix
from tiered.payload.content_type import content_type_of
from tiered.protocol.conditions import IfRevision
from tiered.storage import TieredStorage
from tiered.stored import ListEntry, ObjectHead, StoredObject
from tiered.text import quoted

T = TypeVar("T")

_CHECKSUM = re.compile(r"[0-9a-f]{64}")


class Kind(Enum):
    """What became of a file and its object."""

    COPIED = "copied"
    UNCHANGED = "unchanged"
    DELETED = "deleted"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class FileResult:
    """What was done, or would be done, with one file and its object.

    `path`: of the file, from the directory on. `size`: in bytes, of what was copied. `why`: in words, of what was
    skipped or failed. `error`: of what failed. `object_id`: where an import stores it; None: it can be no object, or
    this is no import.
    """

    kind: Kind
    path: str
    size: int | None = None
    why: str | None = None
    error: TieredError | None = None
    object_id: ObjectId | None = None


@dataclass(slots=True)
class Transfer:
    """What is copied where, and how. `waits`: what has no room here waits for the deletion; `waiting`: how many do."""

    storage: TieredStorage
    tree: LocalTree | None
    prefix: ObjectPrefix
    size_only: bool
    dry_run: bool
    threads: anyio.CapacityLimiter
    waits: bool = False
    waiting: int = 0

    async def blocking(self, function: partial[T]) -> T:
        return await in_thread(function, self.threads)

    def opened(self) -> LocalTree:
        """`tree` None: the directory is not there yet, in a dry run of a download."""
        assert self.tree is not None
        return self.tree

    # --- to the store ----------------------------------------------------------------------------

    async def upload(self, pair: Pair) -> FileResult | None:
        """Stores a file if the object differs. None: there is no such file."""
        local = pair.local
        if local is None:
            return None
        if (unusual := _unusual(pair)) is not None:
            return unusual
        object_id = object_of(self.prefix, local.path)
        if pair.remote is not None:
            _check_whole(pair.remote)
        try:
            return await self._upload(object_id, local.path, pair.remote)
        except FileNotFoundError:
            return FileResult(Kind.SKIPPED, local.path, why="it was deleted meanwhile")

    async def _upload(self, object_id: ObjectId, path: str, remote: ListEntry | ObjectHead | None) -> FileResult:
        def wanted(size: int) -> bool:
            return not self.size_only if remote is not None and remote.size == size else not self.dry_run

        async with self._look(path, wanted) as (file, checksum, whole):
            size = file.state.size
            same = remote is not None and remote.size == size
            if same and checksum is not None:
                assert remote is not None
                noted = _noted(remote.metadata)
                if noted is None:
                    remote, noted = await self._read(object_id)
                same = noted == checksum
            if same:
                return FileResult(Kind.UNCHANGED, path, size)
            if not self.dry_run:
                assert checksum is not None
                metadata = _said_of(path, remote, size, checksum)
                payload = self._sent(file) if whole is None else whole
                condition = {"if_absent": True} if remote is None else {"if_revision": _revision(object_id, remote)}
                try:
                    await self._put(PutRequest(object_id, payload, metadata, checksums={"sha256": checksum}, **condition))
                except ConditionFailedError:
                    # Another call may copy the same files, or a cancelled one has carried this put through.
                    head = await self.storage.head(object_id)
                    if head is None or head.size != size or _noted(head.metadata) != checksum:
                        raise
                    return FileResult(Kind.UNCHANGED, path, size)
            return FileResult(Kind.COPIED, path, size)

    async def _put(self, request: PutRequest) -> None:
        async with self.storage.put_many([request], concurrency=1) as results:  # waits for its turn, as bulk work does
            async for result in results:
                assert result.value is not None

    @asynccontextmanager
    async def _look(self, path: str, wanted: Callable[[int], bool]) -> AsyncIterator[tuple[LocalFile, str | None, bytes | None]]:
        """Opens a file. Gives its SHA-256, unless it is not `wanted` for a file of this size, and all its bytes if they
        are few and were read."""
        file, computed, whole = await in_thread(partial(_looked_into, self.opened(), path, wanted), self.threads, undo=_close_looked_into)
        try:
            if computed is not None and whole is None:
                while await self.blocking(partial(_add, computed, file)):
                    pass
            yield file, None if computed is None else computed.hexdigest(), whole
        finally:
            file.close()

    async def _sent(self, file: LocalFile) -> AsyncIterator[bytes]:
        """The bytes of a file. The store compares them with those that were read before."""
        file.rewind()
        while chunk := await self.blocking(partial(file.read)):
            yield chunk

    async def delete_object(self, pair: Pair) -> FileResult | None:
        """Deletes an object whose file is not there. None: there is no such object.

        An object that a link or a special file hides is left: what they stand for is not known.
        """
        local, remote = pair.local, pair.remote
        if local is not None and local.fault is not None:
            raise InvalidRequestError(f"{quoted(local.path)}: {local.fault}")
        if remote is None or local is not None or pair.below_skipped:
            return None
        if not self.dry_run:
            await self.storage.delete(remote.object_id, if_revision=_revision(remote.object_id, remote))
        return FileResult(Kind.DELETED, pair.path)

    # --- from the store --------------------------------------------------------------------------

    async def download(self, pair: Pair) -> FileResult | None:
        """Fetches an object if the file differs. None: there is no such object."""
        remote = pair.remote
        if remote is None:
            return None
        _check_whole(remote)
        if pair.path.endswith("/") and remote.size == 0:
            return FileResult(Kind.SKIPPED, pair.path, why="it stands for a directory")
        check_file_path(pair.path)
        if pair.below_object:
            raise InvalidRequestError(f"{quoted(pair.path)}: an object has the name of a directory above it, and is a file here")
        if pair.spelled is not None:
            raise InvalidRequestError(f"{quoted(pair.path)} would be one file with {quoted(pair.spelled)} here: give it another name")
        if pair.below_skipped:
            raise InvalidRequestError(f"{quoted(pair.path)}: what is on the way to it here is no directory, or cannot be read")
        if pair.local is not None and (why := pair.local.fault or pair.local.skipped) is not None:
            raise InvalidRequestError(f"{quoted(pair.path)}: in its place here, {why}")
        is_same, there = (False, None) if pair.local is None else await self._compare(pair.path, remote)
        if is_same:
            return FileResult(Kind.UNCHANGED, pair.path, remote.size)
        if self.waits and pair.local is None and self.tree is not None and await self.blocking(partial(self.tree.lacks_room, pair.path)):
            if self.dry_run:
                return FileResult(Kind.COPIED, pair.path, remote.size)
            self.waiting += 1
            return None
        if self.dry_run:
            if there is None and self.tree is not None:
                await self.blocking(partial(self.tree.check_free, pair.path))
            return FileResult(Kind.COPIED, pair.path, remote.size)
        return await self._fetch(remote.object_id, pair.path, there)

    async def download_what_waited(self, pair: Pair) -> FileResult | None:
        """Fetches an object that has no file yet, now that what was in its way is deleted."""
        if pair.local is not None or pair.path.endswith("/"):
            return None
        await self.blocking(partial(self.opened().remove_empty, pair.path))
        return await self.download(pair)

    async def _compare(self, path: str, remote: ListEntry) -> tuple[bool, FileState | None]:
        """Whether file and object are the same, and what the file is; None: it is gone."""

        def wanted(size: int) -> bool:
            return size == remote.size and not self.size_only

        try:
            async with self._look(path, wanted) as (file, checksum, _):
                if checksum is None:
                    return file.state.size == remote.size, file.state
                noted = _noted(remote.metadata)
                if noted is None:
                    _, noted = await self._read(remote.object_id)
                return noted == checksum, file.state
        except FileNotFoundError:
            return False, None

    async def _fetch(self, object_id: ObjectId, path: str, there: FileState | None) -> FileResult:
        try:
            begin = partial(self.opened().begin, path, is_new=there is None)
            place = await in_thread(begin, self.threads, undo=PartialFile.abandon)
        except FileNotFoundError as error:
            raise InvalidRequestError(f"{quoted(path)}: {error.strerror}") from error
        try:
            stored = await self.storage.get(object_id, decompress=False)
            if stored is None:
                return FileResult(Kind.SKIPPED, path, why="it was deleted meanwhile")
            async with stored:
                await self._fill(place, path, stored, there)
            return FileResult(Kind.COPIED, path, stored.size)
        finally:
            place.abandon()

    async def _fill(self, place: PartialFile, path: str, stored: StoredObject, there: FileState | None) -> None:
        if stored.in_memory is not None:
            await self.blocking(partial(_fill_at_once, place, stored, stored.in_memory, there))
            return
        with translated(path):
            await stored.save(place.file())  # in several ranges at once
        computed, so_far = hashlib.sha256(), 0
        while _noted(stored.metadata) is not None and (chunk := await self.blocking(partial(place.read, so_far))):
            so_far += len(chunk)
            await self.blocking(partial(computed.update, chunk))
        _check_noted(stored, computed)
        await self.blocking(partial(place.finish, there))

    async def delete_file(self, pair: Pair) -> FileResult | None:
        """Deletes a file whose object is not there. None: there is no such file. Only regular files are deleted."""
        local = pair.local
        if local is None or pair.remote is not None:
            return None
        if (unusual := _unusual(pair)) is not None:
            return unusual
        if not self.dry_run:
            await self.blocking(partial(self.opened().delete, pair.path))
        return FileResult(Kind.DELETED, pair.path)

    # --- both ------------------------------------------------------------------------------------

    async def _read(self, object_id: ObjectId) -> tuple[ObjectHead | None, str | None]:
        """Reads an object whose metadata do not tell its checksum. Returns its head and its SHA-256, if it is there."""
        stored = await self.storage.get(object_id, decompress=False)
        if stored is None:
            return None, None
        computed = hashlib.sha256()
        async for chunk in stored:
            await self.blocking(partial(computed.update, chunk))
        return stored.head, computed.hexdigest()


def failed(path: str, error: TieredError) -> FileResult:
    return FileResult(Kind.FAILED, path, why=str(error), error=error)


def _unusual(pair: Pair) -> FileResult | None:
    """The result of what is no regular file."""
    assert pair.local is not None
    if pair.local.fault is not None:
        return failed(pair.path, InvalidRequestError(f"{quoted(pair.path)}: {pair.local.fault}"))
    return None if pair.local.skipped is None else FileResult(Kind.SKIPPED, pair.path, why=pair.local.skipped)


def _check_whole(remote: ListEntry) -> None:
    if remote.fault is not None:
        raise CorruptRecordError(f"{remote.object_id} is damaged: {remote.fault}")


def _noted(metadata: Metadata | None) -> str | None:
    """The SHA-256 that metadata tell, if it is one."""
    noted = None if metadata is None else metadata.custom.get(SHA256_KEY)
    return noted if noted is not None and _CHECKSUM.fullmatch(noted) else None


def _said_of(path: str, remote: ListEntry | ObjectHead | None, size: int, checksum: str) -> Metadata:
    """The metadata of an upload: those of the object that it replaces, but for what tells of its bytes.

    `InvalidRequestError`: other software stored a text there that a write refuses.
    """
    said = Metadata() if remote is None or remote.metadata is None else remote.metadata
    is_typed = said.content_type != CONTENT_TYPE_DEFAULT
    return replace(
        said, content_type=said.content_type if is_typed else content_type_of(path), compression=None, size=size,
        time_created_ns=None, time_expires_ns=None, custom={**said.custom, SHA256_KEY: checksum},
    )  # fmt: skip


def _revision(object_id: ObjectId, remote: ListEntry | ObjectHead) -> IfRevision:
    if remote.revision is None:
        raise InvalidRequestError(f"{object_id} has no revision to compare, because other software wrote it: put or delete it by itself")
    return remote.revision


def _looked_into(tree: LocalTree, path: str, wanted: Callable[[int], bool]) -> tuple[LocalFile, hashlib._Hash | None, bytes | None]:
    """Opens a file, and begins its SHA-256 if it is wanted. Of a small file, that is all."""
    file = tree.open(path)
    try:
        if not wanted(file.state.size):
            return file, None, None
        computed = hashlib.sha256()
        first = _add(computed, file)
        is_whole = len(first) < READ_BYTES and not _add(computed, file)
        return file, computed, first if is_whole else None
    except BaseException:
        file.close()
        raise


def _close_looked_into(looked: tuple[LocalFile, object, object]) -> None:
    looked[0].close()


def _add(computed: hashlib._Hash, file: LocalFile) -> bytes:
    chunk = file.read()
    computed.update(chunk)
    return chunk


def _fill_at_once(place: PartialFile, stored: StoredObject, whole: memoryview, there: FileState | None) -> None:
    place.write(whole)
    _check_noted(stored, hashlib.sha256(whole))
    place.finish(there)


def _check_noted(stored: StoredObject, computed: hashlib._Hash) -> None:
    if _noted(stored.metadata) not in (None, computed.hexdigest()):
        raise InvalidRequestError(
            f"{stored.object_id}: its custom metadata {SHA256_KEY} are of other bytes, so another program copied them there; "
            f"remove them: 'tiered update-metadata {stored.object_id} --remove-custom {SHA256_KEY}'"
        )
