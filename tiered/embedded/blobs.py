"""The long-term tier in a directory: each blob is one file, written under another name and then linked into place.

    ROOT/uploads/{session}      an upload on its way; its process holds the file's lock (flock) while it lives
    ROOT/uploads/{id}.parts/    an upload in parts (`tiered/embedded/part_files.py`), which belongs to no process
    ROOT/blobs/{encoded name}   a blob; names and bytes as in `tiered/embedded/file.py`

    write the file -> fsync -> link(uploads/…, blobs/…) -> fsync the directories -> unlink(uploads/…)

The link makes the blob visible: as a whole, and never in place of another. Cancelling an upload unlinks its temporary
file. Then its link can never be made, however late the writer goes on. So an embedded upload is always a session (I3),
and needs no late-upload grace. A blob that is unlinked while it is read stays readable to its end (I7).

*Crash here*: a temporary file stays behind that nobody has locked. `collect` removes it, whether it was linked or not
(`tiered/embedded/garbage.py`). *Failure*: the table below translates the system's errors. An error that it does not
know is `UnconfirmedError`, except from a call that only reads: there it is `UnavailableError`.

Both directories must be on one local file system, with hard links and flock. Any number of processes may share it. This
module does not decide which blobs are garbage, except for those that have expired.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import Self, TypeVar, TypeVarTuple

from anyio import CancelScope, CapacityLimiter

from changelog.base.errors import (
    ConfigurationError,
    CorruptRecordError,
    InvalidRequestError,
    TieredError,
    UnavailableError,
    UnconfirmedError,
)
from changelog.base.events import ONCE_MAX, Once, events
from changelog.base.runtime import Runtime
from changelog.base.threads import in_thread
from changelog.change import ChangeId
from changelog.log import LeftGarbageError
from tiered.embedded.blob_files import (
    BlobFile,
    UploadFile,
    delete,
    delete_generation,
    extend,
    prepare,
    read_head,
    refuse_foreign_directories,
    set_aside,
    unlink,
)
from tiered.embedded.blob_listing import Listings, generations, list_abandoned
from tiered.embedded.file import NS_PER_US, microseconds, path_of
from tiered.embedded.garbage import FOREIGN, CollectionFault, Round
from tiered.embedded.part_files import PartsDirectory, end_parts, open_parts
from tiered.metadata import NS_PER_S, Metadata, is_expired
from tiered.payload.chunks import Chunk
from tiered.services.backends import BlobHead, ByteRange, DamagedError, HighVolumeBackend
from tiered.services.capabilities import PARTS_SESSION, OpenSession, Part, SessionPage, UploadPage, check_parts
from tiered.services.scans import BlobInfo, BlobPage, Generation, NotCopied, Removal

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

THREADS_MAX = 16
GATHERED_BYTES = 1 << 20
"""How much of a payload an upload gathers. More than this is written to the file, in one call into a thread."""

COPIED_BYTES_MAX = 64 << 10
"""Chunks up to this size are joined to larger ones, which copies them."""


COLLECT_AT_ONCE = 256
"""How many files one step of a collection looks at.

Then it sleeps as long as the step took, so that others get the disk.
"""

EXPIRED_SLACK_NS = 3600 * NS_PER_S
"""How long a blob is kept after its deadline. A reader whose clock is behind must not find a row without its blob."""

LOCK_ATTEMPTS = 50
LOCK_WAIT_S = 0.02

_FULL = (UnavailableError, "the disk is full: free space, raise the quota, or move the store")
_REFUSED = (ConfigurationError, "the system refuses it: give this process the right to read and write there")
_EXHAUSTED = (UnavailableError, "too many files are open: raise the limit (ulimit -n)")
_FOREIGN = (CorruptRecordError, "something is in its place that this software did not put there")
_TRANSLATIONS: dict[int, tuple[type[TieredError], str]] = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: (UnavailableError, "the disk is full, or the limit on the size of a file (ulimit -f) is too low"),
    errno.EROFS: (UnavailableError, "the disk is read-only: mount it for writing"),
    errno.EACCES: _REFUSED,
    errno.EPERM: _REFUSED,
    errno.EMFILE: _EXHAUSTED,
    errno.ENFILE: _EXHAUSTED,
    errno.EEXIST: (UnavailableError, "it exists already, and nothing is overwritten"),
    errno.ENOENT: (UnavailableError, "its directory is gone: put the store back"),
    errno.ENAMETOOLONG: (InvalidRequestError, "the name is longer than the file system can hold"),
    errno.EISDIR: _FOREIGN,
    errno.ENOTDIR: _FOREIGN,
    errno.ELOOP: _FOREIGN,
    errno.EIO: (UnconfirmedError, "the disk fails, and it may or may not have happened"),
}

_NOT_NOW = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
"""Errors that prevent writing, but not reading, and that may pass."""


class FileBlobs:
    """`LongTermBackend` in a directory, with six capabilities.

    `GarbageCollection`, `UploadListing`, `NamePartitioning`, `GenerationLookup`, `SharedListing` and `PartUploads`.

    Open it with `await FileBlobs.open_directory(root, runtime)`. `odd_files`: how many files the last whole collection
    met that are not ours, are damaged or could not be removed; None: none has ended."""

    def __init__(self, root: Path, runtime: Runtime) -> None:
        root = root.absolute()  # the process may change its current directory
        self._root = root / "blobs"
        self._uploads = root / "uploads"
        self._listings = Listings(self._root)
        self._runtime = runtime
        self._disk = _Disk()
        self._is_settled = False
        self._round: _Collection | None = None
        self._told = Once()
        self.odd_files: int | None = None

    @classmethod
    async def open_directory(cls, root: Path, runtime: Runtime, *, verify: bool = False) -> Self:
        """Makes the directories that are missing, and tests whether a blob can be written.

        `ConfigurationError` says what to change; then nothing is left half-made. On a full or read-only disk blobs can
        still be read, and on a full one deleted. So it opens with a warning, and missing directories are made when the
        first blob is written. `verify` True: such a disk is an `UnavailableError`, and every directory below is looked
        at.
        """
        blobs = cls(root, runtime)
        try:
            ids, threads = (ChangeId.new(runtime), ChangeId.new(runtime)), blobs._disk.threads
            await in_thread(partial(prepare, blobs._root, blobs._uploads, *ids), threads)
            if verify:
                await in_thread(partial(refuse_foreign_directories, blobs._root, blobs._uploads), threads)
        except OSError as error:
            if error.errno in _NOT_NOW:
                if verify:
                    raise _translated(f"write blobs in {root}", error) from error
                events.warning("blobs_cannot_be_written", error.strerror, directory=str(root))
                return blobs
            raise ConfigurationError(
                f"{root} cannot hold blobs ({error.strerror}: {error.filename2 or error.filename}): give a directory that this process"
                " may write to, on a local file system with hard links"
            ) from error
        return blobs

    async def open_upload(self, name: str, metadata: Metadata, size: int | None, *, session: ChangeId | None = None) -> FileUpload:
        """Begins an upload. `session` None: the revision in the name, or a new id if the name has none."""
        if session is None:
            revision = name.rpartition("/")[2]
            session = ChangeId(revision) if ChangeId.matches(revision) else ChangeId.new(self._runtime)
        begun = (self._uploads / session, self._path(name), self._root, not self._is_settled)
        file = await self._disk.run(f"begin the upload of {name!r}", UploadFile, *begun, undo=UploadFile.discard)
        self._is_settled = True
        return FileUpload(name, metadata, size, session, file, self._disk, self._runtime)

    async def open_copy(self, source: str, generation: Generation, name: str, metadata: Metadata) -> FileCopy:
        head = await self.head(source)
        return FileCopy(self, source, generation, await self.open_upload(name, metadata, None if head is None else head.size))

    async def cancel(self, session: str) -> None:
        doing = f"cancel the upload {session}"
        if session.startswith(PARTS_SESSION):
            await self._disk.run(doing, end_parts, self._uploads, _id_of_parts(session))
            return
        if not ChangeId.matches(session):
            raise CorruptRecordError(f"upload session {session!r} is none of a directory's: expected a change id")
        await self._disk.run(doing, unlink, self._uploads / session)

    async def begin_parts(self, name: str, metadata: Metadata) -> str:
        self._path(name)
        session = ChangeId.new(self._runtime)
        directory = PartsDirectory(self._uploads, session, name)
        await self._disk.run(f"begin the upload of {name!r}", directory.begin, self._root, metadata)
        return f"{PARTS_SESSION}{session}"

    async def put_part(self, name: str, session: str, number: int, payload: Sequence[Chunk]) -> Part:
        directory, attempt = self._parts_of(name, session), ChangeId.new(self._runtime)
        return await self._disk.run(f"write part {number} of blob {name!r}", directory.put, number, payload, attempt)

    async def parts(self, name: str, session: str) -> Sequence[Part]:
        return await self._disk.look(f"list the parts of blob {name!r}", self._parts_of(name, session).parts)

    async def complete_parts(self, name: str, session: str, parts: Sequence[Part]) -> None:
        """Writes all bytes once more, so the disk must have room for them twice."""
        check_parts(name, parts)
        directory, attempt, written_ns = self._parts_of(name, session), ChangeId.new(self._runtime), self._runtime.wall_ns()
        doing = f"complete the upload of {name!r}"
        await self._disk.run(doing, directory.complete, parts, self._path(name), self._root, attempt, written_ns)

    async def open_sessions(self, before_ns: int, after: str, limit: int) -> SessionPage:
        found = await self._disk.look("list the uploads", open_parts, self._uploads, before_ns, after.removeprefix(PARTS_SESSION), limit)
        sessions, next_after = found
        return SessionPage(
            [OpenSession(name, f"{PARTS_SESSION}{session}") for name, session in sessions],
            None if next_after is None else f"{PARTS_SESSION}{next_after}",
        )

    def _parts_of(self, name: str, session: str) -> PartsDirectory:
        return PartsDirectory(self._uploads, _id_of_parts(session), name)

    async def open(self, name: str, range: ByteRange | None = None) -> FileReader | None:
        """Opens the blob, expired or not. Readers judge expiry by the deadline in the row."""
        file = await self._there(f"open blob {name!r}", BlobFile.open, self._path(name), range, undo=_close)
        return None if file is None else FileReader(name, file, self._disk)

    async def head(self, name: str) -> BlobHead | None:
        return await self._there(f"read what blob {name!r} is", read_head, self._path(name))

    async def _there(
        self, doing: str, function: Callable[[*Ts], T | None], *args: *Ts, undo: Callable[[T | None], None] | None = None
    ) -> T | None:
        """Looks for something, as `_Disk.look`. If the whole directory is gone, nobody knows what is not found."""

        def look() -> T | None:
            if (found := function(*args)) is None and not self._root.is_dir():
                raise ConfigurationError(f"cannot {doing}: {self._root} is gone: put it back, or mount it")
            return found

        return await self._disk.look(doing, look, undo=undo)

    async def delete(self, name: str) -> int:
        return await self._disk.run(f"delete blob {name!r}", delete, self._path(name))

    async def delete_generation(self, name: str, generation: Generation) -> Removal:
        return await self._unlocked(f"delete blob {name!r}", delete_generation, self._path(name), generation)

    async def set_aside(self, name: str, generation: Generation, copy: str) -> Generation | NotCopied:
        """A second link to the same file. `collect` leaves it alone."""
        doing = f"copy blob {name!r} to {copy!r}"
        return await self._unlocked(doing, set_aside, self._path(name), generation, self._path(copy), self._root)

    async def bring_back(self, copy: str, generation: Generation, name: str, now_ns: int) -> Generation | NotCopied:
        """A file of its own: a link would have the generation of the blob that was deleted."""
        async with AsyncExitStack() as opened:
            source = await self._opened(copy, opened)
            if source is None:
                return NotCopied.ABSENT
            if source.generation != generation:
                return NotCopied.REPLACED
            if is_expired(source.metadata.time_expires_ns, now_ns):
                return NotCopied.EXPIRING
            there = await self._opened(name, opened)
            if there is not None:
                return there.generation if await self._are_same(copy, source, name, there) else NotCopied.TAKEN
            return await self._write_anew(copy, source, name)

    async def _opened(self, name: str, opened: AsyncExitStack) -> BlobFile | None:
        file = await self._disk.look(f"open blob {name!r}", BlobFile.open, self._path(name), None, undo=_close)
        opened.callback(_close, file)
        return file

    async def _are_same(self, copy: str, source: BlobFile, name: str, there: BlobFile) -> bool:
        if source.size != there.size:
            return False
        ours, theirs = FileReader(copy, source, self._disk), FileReader(name, there, self._disk)
        async for chunk in ours:
            if await anext(theirs) != chunk:
                return False
        return True

    async def _write_anew(self, copy: str, source: BlobFile, name: str) -> Generation:
        """Writes the blob again. Its time, so its generation, is after that of the copy, whatever the clock says."""
        written_ns = max(self._runtime.wall_ns(), source.written_ns + NS_PER_US)
        upload = await self.open_upload(name, source.metadata, source.size, session=ChangeId.new(self._runtime))
        try:
            async for chunk in FileReader(copy, source, self._disk):
                await upload.write(chunk)
            await upload.finalise(written_ns)
        finally:
            await upload.abort()
        return str(microseconds(written_ns))

    async def touch(self, name: str, deadline_ns: int) -> bool:
        return await self._unlocked(f"touch blob {name!r}", extend, self._path(name), microseconds(deadline_ns))

    async def _unlocked(self, doing: str, function: Callable[[*Ts], T | None], *args: *Ts) -> T:
        """Calls the function until no other process has locked the blob."""
        for _ in range(LOCK_ATTEMPTS):
            found = await self._disk.run(doing, function, *args)
            if found is not None:
                return found
            await self._runtime.sleep(LOCK_WAIT_S)
        raise UnavailableError(f"cannot {doing}: it stayed locked by another process, and is as it was")

    async def list(self, start: str, end: str | None, limit: int) -> BlobPage:
        page, now_ns = self._listings.page, self._runtime.wall_ns()
        return await self._disk.look(f"list the blobs from {start!r} on", page, start, end, limit, now_ns)

    def share_names(self, label: str) -> None:
        self._listings.share_names(label)

    async def cuts(self, start: str, end: str | None, count: int) -> Sequence[str]:
        return await self._disk.look(f"look where to cut the blobs from {start!r} on", self._listings.cuts, start, end, count)

    async def generations(self, blobs: Sequence[BlobInfo]) -> Mapping[str, Generation]:
        return await self._disk.look("look at blobs again", generations, self._root, blobs)

    async def abandoned_uploads(self, start: str, before_ns: int, limit: int) -> UploadPage:
        return await self._disk.look("look for abandoned uploads", list_abandoned, self._uploads, start, before_ns, limit)

    async def now_ns(self) -> int:
        return self._runtime.wall_ns()

    async def collect(self, limit: int) -> int:
        """Removes uploads whose process has died, then blobs that expired an hour ago.

        Returns how many files it removed.

        A call that removed `limit` files ends, and the next call goes on from there. Between steps it sleeps as long as
        the last step took. `LeftGarbageError`: the round is over, and some files could not be looked at or removed;
        each is logged once, up to `ONCE_MAX`.
        """
        collection, self._round = self._round or _Collection(Round(self._root, self._uploads), self._told), None
        removed = 0
        while removed < limit:
            began = self._runtime.monotonic()
            expired_by_ns = self._runtime.wall_ns() - EXPIRED_SLACK_NS
            chunk = await self._disk.run("collect garbage", collection.round.step, COLLECT_AT_ONCE, limit - removed, expired_by_ns)
            collection.note(chunk.faults)
            removed += chunk.removed
            if chunk.is_last:
                if self.odd_files != (found := collection.found) and found > ONCE_MAX:
                    events.warning("collection_found", f"only the first {ONCE_MAX} are logged", count=found)
                self.odd_files = found
                collection.end(removed)
                return removed
            await self._runtime.sleep(self._runtime.monotonic() - began)
        self._round = collection
        return removed

    def _path(self, name: str) -> Path:
        return self._root / path_of(name)


def _id_of_parts(session: str) -> ChangeId:
    found = session.removeprefix(PARTS_SESSION)
    if found == session or not ChangeId.matches(found):
        raise CorruptRecordError(f"upload session {session!r} is none of an upload in parts of a directory; nothing was done")
    return ChangeId(found)


async def refuse_if_gone(root: Path, rows: HighVolumeBackend, *, empty: bool = False) -> None:
    """Raises `ConfigurationError` if the directory of the blobs is gone although a row names one.

    To make another in its place would hide that. `empty` True: also if the directory is there without any file.
    """
    directory = root / "blobs"
    if any(names for _, _, names in os.walk(directory)) if empty else directory.is_dir():
        return
    page = await rows.redirects(b"", None, 1)
    if page.redirects or page.corrupt:
        raise ConfigurationError(
            f"{directory} is {'empty' if directory.is_dir() else 'gone'}, and rows of the store name blobs in it: put it back, or mount it"
        )


class _Collection:
    """A round through the files, and the faults that it met."""

    def __init__(self, round: Round, told: Once) -> None:
        self.round = round
        self.found = 0
        self._told = told
        self._first: CollectionFault | None = None
        self._left = 0

    def note(self, faults: Sequence[CollectionFault]) -> None:
        for fault in faults:
            self.found += 1
            if fault.event != FOREIGN:
                self._left += 1
                self._first = self._first or fault
            if self._told.is_new(f"{fault.event} {fault.what} {fault.why}"):
                events.warning(fault.event, fault.why, name=fault.what)

    def end(self, removed: int) -> None:
        if self._first is not None:
            raise LeftGarbageError(
                f"{self._left} {'file' if self._left == 1 else 'files'} could not be looked at or collected, the first is"
                f" {self._first.what!r}: {self._first.why}", removed
            )


class FileUpload:
    """`Upload` into a temporary file.

    Chunks are gathered first, so that not each of them needs a call into a thread.
    """

    def __init__(
        self, name: str, metadata: Metadata, size: int | None, session: ChangeId, file: UploadFile, disk: _Disk, runtime: Runtime
    ) -> None:
        self.session: str | None = session
        self._name = name
        self._metadata = metadata
        self._declared = metadata.size if size is None else size
        self._file = file
        self._disk = disk
        self._runtime = runtime
        self._gathered: list[bytearray | memoryview] = []
        self._gathered_bytes = 0
        self._size = 0
        self._is_whole = True

    async def write(self, chunk: bytes | memoryview) -> None:
        """Takes one chunk. After an error of the disk the upload has ended, and its file is removed.

        After any other error or a cancellation it has ended, too, and `abort` removes its file.
        """
        self._refuse_if_ended()
        view = memoryview(chunk).cast("B")
        self._size += view.nbytes
        if self._declared is not None and self._size > self._declared:
            raise self._wrong_size("more than")
        self._gathered_bytes += view.nbytes
        last = self._gathered[-1] if self._gathered else None
        if view.nbytes > COPIED_BYTES_MAX and isinstance(view.obj, bytes):
            self._gathered.append(view)
        elif isinstance(last, bytearray):  # it is copied if it is small, or if the caller may change it: bytes stay as they are
            last += view
        else:
            self._gathered.append(bytearray(view))
        if self._gathered_bytes > GATHERED_BYTES:
            gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
            self._is_whole = False  # unless the file has them: they are no longer here
            await self._disk.run(f"write blob {self._name!r}", self._file.append, gathered)
            self._is_whole = True

    def amend(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def finalise(self, written_ns: int | None = None) -> None:
        """Makes the blob visible. `UnavailableError`: the upload was cancelled, or a blob of this name exists.

        `written_ns`: when it was written, in nanoseconds since 1970; None: now. After an error of the disk or a wrong
        size the upload has ended, and its file is removed.
        """
        self._refuse_if_ended()
        if self._declared is not None and self._size != self._declared:
            await self.abort()
            raise self._wrong_size("not")
        written_ns = self._runtime.wall_ns() if written_ns is None else written_ns
        await self._disk.run(f"finalise blob {self._name!r}", self._file.publish, self._gathered, self._metadata, written_ns)

    async def abort(self) -> None:
        with CancelScope(shield=True):
            await self._disk.run(f"abort the upload of {self._name!r}", self._file.discard)

    def _refuse_if_ended(self) -> None:
        """Raises if a write failed or was cancelled: a part of the payload may be missing in the file."""
        if not self._is_whole:
            raise InvalidRequestError(f"the upload of {self._name!r} has ended already; begin another")

    def _wrong_size(self, relation: str) -> InvalidRequestError:
        return InvalidRequestError(f"the payload of {self._name!r} has {self._size} bytes, {relation} the declared {self._declared}")


class FileCopy:
    """`PendingBlob` whose bytes come from another blob. They are copied: a link would share the deadline, too."""

    def __init__(self, blobs: FileBlobs, source: str, generation: Generation, upload: FileUpload) -> None:
        self.session = upload.session
        self._blobs = blobs
        self._source = source
        self._generation = generation
        self._upload = upload

    async def finalise(self) -> None:
        reader = await self._blobs.open(self._source)
        if reader is None:
            raise UnavailableError(f"the blob {self._source!r} is gone, so it cannot be copied")
        async with aclosing(reader):
            head = await self._blobs.head(self._source)
            if head is None or head.generation != self._generation:
                raise UnavailableError(f"the blob {self._source!r} was replaced, so it cannot be copied")
            async for chunk in reader.chunks():
                await self._upload.write(chunk)
        await self._upload.finalise()

    async def abort(self) -> None:
        await self._upload.abort()


class FileReader:
    """`BlobReader` of an open file, and the iterator over its chunks.

    No generator, so it may be abandoned at any point.
    """

    def __init__(self, name: str, file: BlobFile, disk: _Disk) -> None:
        self.metadata = file.metadata
        self.size = file.size
        self.checksum: str | None = None  # the file has one for each block
        self._name = name
        self._file = file
        self._disk = disk
        self._next = file.start
        self._crc = 0
        self._ahead: deque[bytes] = deque()

    def chunks(self) -> AsyncIterator[bytes]:
        """Chunks of up to 256 KiB. Each is checked before it is given out.

        If one does not match its checksum, `CorruptRecordError` is raised in its place. A file of version 1 has only
        one checksum: a whole read is checked with its last chunk, and a range is not checked.
        """
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._next == self._file.stop:
            raise StopAsyncIteration
        if not self._ahead:
            chunks, self._crc = await self._disk.look(f"read blob {self._name!r}", self._file.read_ahead, self._next, self._crc)
            self._ahead.extend(chunks)
        chunk = self._ahead.popleft()
        self._next += len(chunk)
        return chunk

    async def aclose(self) -> None:
        """Closes the file, without a thread: closing does not wait, and so no cancellation can come in between."""
        self._ahead.clear()
        self._file.close()


class _Disk:
    """Runs blocking calls in threads of its own and translates their errors.

    A call runs to its end even if it is cancelled.
    """

    def __init__(self) -> None:
        self.threads = CapacityLimiter(THREADS_MAX)

    async def run(self, doing: str, function: Callable[[*Ts], T], *args: *Ts, undo: Callable[[T], None] | None = None) -> T:
        """Runs `function` in a thread. `doing`: what it does, for messages.

        `undo`: called with the result if the caller was cancelled meanwhile.
        """
        try:
            return await in_thread(partial(function, *args), self.threads, undo=undo)
        except OSError as error:
            raise _translated(doing, error) from error
        except CorruptRecordError as error:
            raise CorruptRecordError(f"cannot {doing}: {error}") from error

    async def look(self, doing: str, function: Callable[[*Ts], T], *args: *Ts, undo: Callable[[T], None] | None = None) -> T:
        """`run` for calls that change nothing: `UnconfirmedError` becomes `UnavailableError`.

        If the disk fails to read, it becomes `DamagedError`.
        """
        try:
            return await in_thread(partial(function, *args), self.threads, undo=undo)
        except OSError as error:
            if not isinstance(known := _translated(doing, error), UnconfirmedError):
                raise known from error
            raise (DamagedError if error.errno == errno.EIO else UnavailableError)(f"cannot {doing}: {error}") from error
        except CorruptRecordError as error:
            raise CorruptRecordError(f"cannot {doing}: {error}") from error


def _close(file: BlobFile | None) -> None:
    if file is not None:
        file.close()


def _translated(doing: str, error: OSError) -> TieredError:
    """The error in our terms. If the table does not know it, the call may or may not have had its effect."""
    kind, meaning = _TRANSLATIONS.get(error.errno or 0, (UnconfirmedError, f"{error.strerror}; it may or may not have happened"))
    path = error.filename2 or error.filename  # of a link, its target
    return kind(f"cannot {doing}{f' ({path})' if path else ''}: {meaning}")
