"""`SyncTieredStorage` and `open_storage` for blocking callers. Each method calls the asynchronous one of the same name.

A test compares the two: names, parameters, defaults, and the errors that the docstrings name
(tests/tiered/sync/test_mirror.py). To add a method, write its signature and a docstring, and one line:
`return self._call(lambda: self._storage.name(…))`. A payload goes through `_with_payload`, an iterator through `_each`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Generic, Literal, TypeVar, cast, overload

import tiered.open
import tiered.storage
import tiered.stored
from changelog.base.errors import InvalidRequestError
from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from tiered.bulk import PAYLOAD_BYTES_MAX, LoadedObject, PutRequest
from tiered.errors import OutcomeUnknownError
from tiered.metadata import Metadata
from tiered.object_id import ALL, ObjectId, ObjectPrefix
from tiered.protocol.backends import ByteRange
from tiered.protocol.conditions import ANY_REVISION, IfRevision
from tiered.protocol.listing import LIST_PAGE_MAX
from tiered.protocol.writing import Outcome
from tiered.settings import Settings
from tiered.stored import Compression, CustomAtEnd, Folder, ListEntry, ListPage, ObjectHead, Progress, ProgressCount, PutResult
from tiered.sync.bulk import SyncBulk
from tiered.sync.callers_thread import CallersThread
from tiered.sync.loop import HeldContext, LoopThread, Turn, loop_thread, refuse_in_event_loop
from tiered.sync.multipart import SyncMultipartUpload, SyncResumableUpload, SyncSignedPut
from tiered.sync.object_writer import SyncObjectWriter
from tiered.sync.stored import SyncStoredObject, refuse_async
from tiered.text import check_flags

if TYPE_CHECKING:
    import tiered.payload.streams
    from tiered.telemetry.telemetry import Telemetry

T = TypeVar("T")

Payload = bytes | bytearray | memoryview | os.PathLike[str] | BinaryIO | SyncStoredObject | Iterable[bytes]
"""What `put` takes. A `str` is not a payload: encode text, and pass the name of a file as `pathlib.Path`."""

TAKEN_AT_ONCE = 1000
"""How many items of an asynchronous iterator are taken in one call into the event loop."""


class SyncTieredStorage:
    """An open store whose calls block: `with tiered.sync.open_storage(…) as storage`.

    Many threads may call its methods at the same time. All stores of a process share one event loop, which runs in a
    thread of its own. Each method may raise `UnavailableError` (nothing happened; try again), `AtCapacityError` (it did
    not begin; send less), `InvalidRequestError` (fix the call) or `CorruptRecordError` (an operator must look).

    A call in a forked child is an `InvalidRequestError`, and so is one in a thread in which an event loop runs. Ctrl-C
    during a call cancels the operation, and waits until it has ended. The rules for a cancelled `put` or `delete` are
    in the README.
    """

    def __init__(self, loop: LoopThread, storage: tiered.storage.TieredStorage, *, in_event_loops: bool = False) -> None:
        """Use `open_storage`. `in_event_loops`: calls are allowed where an event loop runs, and block it."""
        check_flags(in_event_loops=in_event_loops)
        self._loop = loop
        self._storage = storage
        self._open = True
        self._in_event_loops = in_event_loops
        self.instance = storage.instance

    # --- life ------------------------------------------------------------------------------------

    def close(self) -> list[ChangeId]:
        """Takes no more work, and waits up to `store.drain_budget_s` seconds for what is under way.

        Returns the changes that are left to recovery, and logs them. `with` calls it. Safe to repeat. Does nothing in a
        forked child.
        """
        self._open = False
        return self._loop.call(self._storage.aclose) if self._loop.is_usable else []

    @property
    def dangling_found(self) -> int:
        """How many reads have found a tombstone whose blob is gone since the store was opened."""
        return self._storage.dangling_found

    @property
    def services_away(self) -> Mapping[str, float]:
        """The services that have answered nothing for a while, and for how many seconds. For a health check."""
        return self._storage.services_away

    # --- operations ------------------------------------------------------------------------------

    def put(
        self, object_id: ObjectId, payload: Payload, metadata: Metadata | None = None, *,
        if_absent: bool = False, if_revision: IfRevision = ANY_REVISION, progress: Progress | None = None,
        checksums: Mapping[str, str] | None = None, custom_at_end: CustomAtEnd | None = None, compress: Compression | None = None,
    ) -> PutResult:
        """Stores the payload under the id, and replaces what is there. It is durable when the call returns.

        The payload is bytes, a path, an open binary file, an iterator of bytes of any length, or a `SyncStoredObject`,
        which is closed at the end. An iterator, and a file that is no regular one, are read in this thread, while it
        waits. A file goes back to where it was if the put fails, so that it can be put again. What was read before and
        gives nothing more is refused (`InvalidRequestError`). The length of a regular file is fixed when it is opened.
        If `metadata.size` (bytes) is given, the payload must have that size.

        `if_absent`: only if there is no object, or it has expired. `if_revision`: only over the object with this
        revision, which a `PutResult` or an `ObjectHead` shows. Otherwise `ConditionFailedError` is raised (nothing was
        stored). Part of the payload may have been read then.

        If the payload is a path and the metadata give no content type, the type is guessed from the file's name, by a
        table that is the same on every machine. `progress(bytes_so_far, total)` is called in this thread after each
        chunk that was taken from the payload; `total` is None while it is not known. If it raises, the put ends with
        that error and nothing is stored.

        `checksums`: of the whole payload, as `{"sha256": …}`: crc32c, md5 or sha256, in hex or base64. If one of them
        differs from what came, the put ends with `InvalidRequestError` and nothing is stored. They are not kept: the
        stored form is shared with other software and has no place for them. The entry `tiered-sha256` of the custom
        metadata, which `tiered sync` writes, is kept only if sha256 is declared here and is the same, in hexadecimal.
        crc32c needs the extra `gcp` (`ConfigurationError`).

        `custom_at_end` is called by this thread after the last byte, for what is known only then, such as a hash or a
        count. Its result are entries of `Metadata.custom`, which are added to those of `metadata`, or replace them.
        Readers see the object with all of them, or not at all. In GCS this is one more request for a large object. If
        it raises, or waits longer than `store.payload_idle_s`, the put ends with an error and nothing is stored.

        `compress`: "zstd" stores the payload compressed, with `Metadata.compression` "Zstd". `get` gives it as it was.
        The size of the result is that of what is stored; `metadata.size`, `checksums` and `progress` are of the payload
        as you pass it. If you compress it yourself, set `metadata.compression` instead. `ConfigurationError`: the extra
        `zstd` is not installed.

        Raises also `OutcomeUnknownError` (it may have happened; ask `outcome`), and whatever the payload's own iterator
        raises (nothing was stored). `CancelledElsewhereError`: an operation of the event loop was cancelled by another
        program part (nothing was stored). `AtCapacityError`: see the class.
        """
        def put(body: tiered.payload.streams.Payload, thread: CallersThread) -> Awaitable[PutResult]:
            hook = _told_in(thread, progress)
            return self._storage.put(
                object_id, body, metadata, if_absent=if_absent, if_revision=if_revision, progress=hook, checksums=checksums,
                custom_at_end=_asked_in(thread, custom_at_end), compress=compress,
            )

        return self._with_payload(payload, put)

    def open(
        self, object_id: ObjectId, mode: Literal["wb"], metadata: Metadata | None = None, *,
        if_absent: bool = False, if_revision: IfRevision = ANY_REVISION, checksums: Mapping[str, str] | None = None,
        custom_at_end: CustomAtEnd | None = None, compress: Compression | None = None,
    ) -> SyncObjectWriter:
        """Opens an object for code that writes: `with storage.open(id, "wb") as file: file.write(chunk)`.

        Leaving the block is one `put` of all that was written, with the same arguments and errors. What can be known
        before the first byte is raised before the block, so a store that is full is known there. Leaving the block by
        an error or an interruption stores nothing. A block that writes nothing for `store.payload_idle_s` seconds is
        taken for a payload that stalls. `get` opens an object for reading.
        """
        self._check()
        thread = self._loop.callers_thread()
        writer = self._storage.open(
            object_id, mode, metadata, if_absent=if_absent, if_revision=if_revision, checksums=checksums,
            custom_at_end=_asked_in(thread, custom_at_end), compress=compress,
        )  # fmt: skip
        return SyncObjectWriter(self._loop, writer, thread)

    def begin_multipart(
        self, object_id: ObjectId, metadata: Metadata | None = None, *, if_absent: bool = False, if_revision: IfRevision = ANY_REVISION
    ) -> SyncMultipartUpload:
        """Begins an upload whose parts come in any order, from any process, for `store.upload_age_max_s` (7 days).

        Until it is completed, readers see nothing of it. Then it is the object, with these metadata, and a time to live
        is counted from that moment. The conditions are those of `put`, and are judged then. Recovery gives up what
        nobody completes. `ConfigurationError`: the store has no changelog that would keep it.
        """
        begin = partial(self._storage.begin_multipart, if_absent=if_absent, if_revision=if_revision)
        return SyncMultipartUpload(self._call(lambda: begin(object_id, metadata)), _Calls(self))

    def multipart(self, object_id: ObjectId, upload_id: str) -> SyncMultipartUpload:
        """An upload that was begun before, maybe by another process. Asks nothing: the first call finds out."""
        return SyncMultipartUpload(self._storage.multipart(object_id, upload_id), _Calls(self))

    def begin_resumable(
        self, object_id: ObjectId, metadata: Metadata | None = None, *, if_absent: bool = False, if_revision: IfRevision = ANY_REVISION
    ) -> SyncResumableUpload:
        """Begins an upload that is appended to, and goes on after a cut where it was. Otherwise as `begin_multipart`.

        `metadata.size` (bytes), if it is known, tells which append has the end.
        """
        begin = partial(self._storage.begin_resumable, if_absent=if_absent, if_revision=if_revision)
        return SyncResumableUpload(self._call(lambda: begin(object_id, metadata)), _Calls(self))

    def resumable(self, object_id: ObjectId, upload_id: str, size: int | None = None) -> SyncResumableUpload:
        """An upload that was begun before, maybe by another process. `size`: of the whole, if it is known, in bytes."""
        return SyncResumableUpload(self._storage.resumable(object_id, upload_id, size), _Calls(self))

    def sign_put(
        self, object_id: ObjectId, expires_in: timedelta, metadata: Metadata | None = None, *, if_absent: bool = False,
        if_revision: IfRevision = ANY_REVISION, size_max: int | None = None,
    ) -> SyncSignedPut:  # fmt: skip
        """A link to write the object, for browsers and other services, good for `expires_in` (1 second to 7 days).

        It is the link to part 1 of an open upload. What is PUT there is no object before somebody calls `complete` of
        the upload, from any process, with these metadata and on these conditions. Before that, `upload.parts()` tells
        how much came. If nobody completes it, recovery removes it. For a large object, sign a link for each part
        (`upload.sign_part`). Raises as `begin_multipart`, and `ConfigurationError` if no link can be signed.

        `size_max`: how many bytes the object may have. The app of `tiered.asgi` takes no more. GCS and S3 sign links of
        their own, which take up to 5 GiB. So `complete` judges it, too, on every service: `InvalidRequestError`, and
        the upload stays open.
        """
        sign = partial(self._storage.sign_put, if_absent=if_absent, if_revision=if_revision, size_max=size_max)
        signed = self._call(lambda: sign(object_id, expires_in, metadata))
        return SyncSignedPut(signed.url, SyncMultipartUpload(signed.upload, _Calls(self)))

    def delete(self, object_id: ObjectId, *, if_revision: IfRevision = ANY_REVISION) -> None:
        """Removes the object. No error if there is none. Raises also `OutcomeUnknownError` (ask `outcome`).

        `if_revision`: only the object with this revision. Otherwise `ConditionFailedError` is raised, also if there is
        no object (nothing was deleted).
        """
        self._call(lambda: self._storage.delete(object_id, if_revision=if_revision))

    def copy(
        self, source: ObjectId, destination: ObjectId, *, if_absent: bool = False, if_revision: IfRevision = ANY_REVISION
    ) -> PutResult | None:
        """Copies an object within the store, without its payload passing through here. None: there is no source.

        The copy is a new revision with the metadata of the source, its time of creation and its deadline. The
        conditions are those of `put` and are about the destination. Raises as `put` does, `UnavailableError` also if
        the source was replaced meanwhile, and `DanglingTombstoneError` (the data of the source are lost).
        """
        return self._call(lambda: self._storage.copy(source, destination, if_absent=if_absent, if_revision=if_revision))

    def rename(
        self, source: ObjectId, destination: ObjectId, *, if_absent: bool = False, if_revision: IfRevision = ANY_REVISION
    ) -> PutResult | None:
        """Copies an object, as `copy` does, and then deletes the revision that was copied. None: there is no source.

        It is not one step: for a moment both exist. Both stay if the process dies in between, if the caller is
        interrupted, or if a service fails after the copy. Then any error may be raised, and "nothing happened" is said
        of the source alone. To call it again without a condition is safe. With one, it finds its own copy, and raises
        `ConditionFailedError` for the destination.

        `ConditionFailedError`, and its `object_id` is the source: the copy was made and stays. Meanwhile the source was
        replaced, and stays, too, or it was deleted or has expired. `InvalidRequestError`: older software wrote the
        source, so it has no revision; copy and delete it.
        """
        return self._call(lambda: self._storage.rename(source, destination, if_absent=if_absent, if_revision=if_revision))

    def update_metadata(
        self, object_id: ObjectId, change: Callable[[Metadata], Metadata], *, if_revision: IfRevision = ANY_REVISION
    ) -> PutResult | None:
        """Changes the metadata of an object, without its payload passing through here. None: there is no object.

        `change` gets the metadata and returns others. This thread calls it, and may call it again, if another writer
        was faster. What it raises reaches you, and nothing is changed then. The size and the time of creation
        stay. So does the deadline, unless the expiration was changed or is a time to idle: then it begins anew.
        If nothing is different, nothing is written.

        The result is a new revision, so readers see metadata and payload of one write. `if_revision`: as for `put`.
        Raises as `put` does, `InvalidRequestError` also if older software wrote the object, so that it has no revision,
        and `DanglingTombstoneError` (the object's data are lost).
        """
        if not callable(change):
            return self._call(lambda: self._storage.update_metadata(object_id, change, if_revision=if_revision))
        thread = self._loop.callers_thread()

        async def changed(metadata: Metadata) -> Metadata:
            return await thread.run(lambda: refuse_async(change(metadata)))

        return self._call(lambda: self._storage.update_metadata(object_id, changed, if_revision=if_revision), thread)

    def set_expiry(
        self, object_id: ObjectId, *, at: datetime | None = None, from_creation: timedelta | None = None, extend_only: bool = False,
        if_revision: IfRevision = ANY_REVISION,
    ) -> PutResult | None:
        """Sets when an object expires: `at` a time, or `from_creation` so much later; neither: never.

        `extend_only`: an object that lives longer stays as it is. Everything else is as for `update_metadata`. `at` has
        a time zone and is in the future. An object that has expired is not there, so nothing brings it back (None). An
        object that expires *during* the call may be gone for a moment, and come back with the new deadline.
        """
        return self._call(lambda: self._storage.set_expiry(
            object_id, at=at, from_creation=from_creation, extend_only=extend_only, if_revision=if_revision
        ))  # fmt: skip

    def get(
        self, object_id: ObjectId, range: ByteRange | None = None, *, progress: Progress | None = None, decompress: bool = True
    ) -> SyncStoredObject | None:
        """Opens the object for reading. None: there is none, or it has expired.

        `progress(bytes_so_far, total)` is called in the thread that reads, after each chunk of the range. If it raises,
        the read ends with that error, and the object is closed.

        `decompress`: an object whose `metadata.compression` is "Zstd" gives the bytes that were compressed. With False,
        it gives those that are stored, as one with any other compression always does. A range counts the stored bytes,
        so a range of a compressed object is an `InvalidRequestError` unless this is False.

        Raises also `RangeNotSatisfiableError` (the range does not fit the object, whose `size` it tells),
        `DanglingTombstoneError` (the object's data is lost), and `ConfigurationError` (it is compressed, and the extra
        `zstd` is not installed).
        """
        count = None if progress is None else ProgressCount(progress)
        stored = self._call(lambda: self._storage.get(object_id, range, decompress=decompress), undo=_close)
        return None if stored is None else SyncStoredObject(self._loop, stored, count)

    def head(self, object_id: ObjectId, *, checksum: bool = False) -> ObjectHead | None:
        """All of the object but its bytes. None: there is none, or it has expired. Does not extend a time to idle.

        `checksum`: tell the crc32c of a small object, too. It is computed from its row, so it says nothing about what
        was put. Of a large object, the one that the long-term tier keeps is told in any case.
        """
        return self._call(lambda: self._storage.head(object_id, checksum=checksum))

    def sign_get(
        self, object_id: ObjectId, expires_in: timedelta, *, content_type: str | None = None,
        disposition: Literal["inline", "attachment"] = "inline",
    ) -> str | None:
        """A link to read the object, for browsers and other services. None: there is no object, or it has expired.

        Whoever has the link may read, for `expires_in` (1 second to 7 days). It shows exactly the revision that is
        there now. When that was overwritten or deleted, it leads nowhere (404 or 410), and never shows other bytes.
        Nothing revokes it otherwise but the removal of the key that signed it. To sign is no use that extends a time to
        idle, and neither is a read in a bucket.

        A large object in GCS or S3 gets a signed URL of its blob, which ends with the object's deadline, as it is now,
        at the latest. It shows the blob until the blob is deleted: mostly at once after an overwrite, but later if a
        service is away or a change feed still needs it. All other objects get a link to the app of `tiered.asgi`
        (`links` in the settings), and so does each link with a `content_type`, which a bucket would ignore. The app
        decompresses for whoever does not take zstd; a bucket sends what is stored, and says `Content-Encoding: zstd`.

        `content_type`: what is answered instead of the stored one. `disposition`: "inline" lets a browser show the
        object, "attachment" lets it save the object; the file's name is the one in the metadata, or the end of the key.

        `ConfigurationError`: no app is configured, or the credentials of the service cannot sign; it says what to set
        or which role is missing. `InvalidRequestError` also if older software wrote the object, so that it has no
        revision. `DanglingTombstoneError`: the object's data are lost.
        """
        return self._call(lambda: self._storage.sign_get(object_id, expires_in, content_type=content_type, disposition=disposition))

    @overload
    def list(
        self, prefix: ObjectPrefix = ..., *, start_after: ObjectId | ObjectPrefix | None = ..., limit: int | None = ...,
        delimiter: None = ..., metadata: bool = ...,
    ) -> Iterator[ListEntry]: ...

    @overload
    def list(
        self, prefix: ObjectPrefix = ..., *, start_after: ObjectId | ObjectPrefix | None = ..., limit: int | None = ...,
        delimiter: str | None, metadata: bool = ...,
    ) -> Iterator[ListEntry | Folder]: ...

    def list(
        self, prefix: ObjectPrefix = ALL, *, start_after: ObjectId | ObjectPrefix | None = None, limit: int | None = None,
        delimiter: str | None = None, metadata: bool = False,
    ) -> Iterator[ListEntry] | Iterator[ListEntry | Folder]:
        """Yields the objects of a prefix in the byte order of their paths, without expired ones.

        `start_after`: begin after this object, or after all objects of this prefix (of a `Folder`). `limit`: at most so
        many entries; `list_page` tells whether there are more. `delimiter`: all objects whose paths are the same up to
        the next delimiter after the prefix become one `Folder`; "/" also makes folders of usecases and scopes.
        `metadata`: list the metadata, too, and the size and the time of creation of large objects. That is one more
        call for each large object. In GCS it is one for up to 100 of them, if they are near one another in the bucket.

        It reads page by page while others write: an object that is written or deleted meanwhile may be listed or not. A
        damaged row does not end the listing. Its entry has a `fault`, and it is logged. If its key is no object id, it
        is only logged.
        """
        return self._each(
            lambda: self._storage.list(prefix, start_after=start_after, limit=limit, delimiter=delimiter, metadata=metadata)
        )

    def list_page(
        self, prefix: ObjectPrefix = ALL, *, page_token: str | None = None, start_after: ObjectId | ObjectPrefix | None = None,
        limit: int = LIST_PAGE_MAX, delimiter: str | None = None, metadata: bool = False,
    ) -> ListPage:
        """One page of what `list` yields: at most `limit` entries (from 1 to 1,000), and a token for the next page.

        `page_token`: the `next_page_token` of the page before, with the same prefix and delimiter; any process may use
        it, at any later time. A token of another listing is an `InvalidRequestError`. With `metadata`, a page has fewer
        entries if objects were deleted while it was made.
        """
        return self._call(lambda: self._storage.list_page(
            prefix, page_token=page_token, start_after=start_after, limit=limit, delimiter=delimiter, metadata=metadata
        ))  # fmt: skip

    def outcome(self, error: OutcomeUnknownError) -> Outcome:
        """Says what became of a change that ended with `OutcomeUnknownError`. Ask again while it is PENDING."""
        return self._call(lambda: self._storage.outcome(error))

    # --- many at once ----------------------------------------------------------------------------

    def put_many(self, requests: Iterable[PutRequest], *, concurrency: int | None = None) -> SyncBulk[PutRequest, PutResult]:
        """Puts all of them: `with storage.put_many(requests) as results: for result in results: …`.

        At most `concurrency` puts run at once: by default a quarter of `store.concurrency_max`, and at most 16. They
        begin while you take the results. Each `ItemResult` has a value or an error, and no error ends the others. Items
        wait where a single put would raise `AtCapacityError`. Puts of one id keep their order. Leaving the block early
        cancels what is under way. Requests and payloads that are iterators are read in the thread that takes the
        results, while it waits for one.
        """
        self._check()
        return SyncBulk(self._loop, requests, partial(self._storage.put_many, concurrency=concurrency), _with_payload_of)

    def delete_many(self, object_ids: Iterable[ObjectId], *, concurrency: int | None = None) -> SyncBulk[ObjectId, None]:
        """Deletes all of them. The rules are those of `put_many`."""
        self._check()
        return SyncBulk(self._loop, object_ids, partial(self._storage.delete_many, concurrency=concurrency))

    def get_many(
        self, object_ids: Iterable[ObjectId], *, concurrency: int | None = None, payload_bytes_max: int = PAYLOAD_BYTES_MAX,
        decompress: bool = True,
    ) -> SyncBulk[ObjectId, LoadedObject | None]:
        """Reads all of them whole. The rules are those of `put_many`. None: there is none, or it has expired.

        At most `concurrency` + 1 payloads are in memory at a time, of at most `payload_bytes_max` bytes each. A larger
        object is not read: its error is `InvalidRequestError`. Use `get`, which streams it. `decompress`: as of `get`.
        """
        self._check()
        begin = partial(self._storage.get_many, concurrency=concurrency, payload_bytes_max=payload_bytes_max, decompress=decompress)
        return SyncBulk(self._loop, object_ids, begin)

    def head_many(
        self, object_ids: Iterable[ObjectId], *, concurrency: int | None = None, checksum: bool = False
    ) -> SyncBulk[ObjectId, ObjectHead | None]:
        """The heads of all of them. The rules are those of `put_many`, and `checksum` is that of `head`.

        None: there is none, or it has expired.
        """
        self._check()
        return SyncBulk(self._loop, object_ids, partial(self._storage.head_many, concurrency=concurrency, checksum=checksum))

    # --- beside ----------------------------------------------------------------------------------

    @property
    def _usable(self) -> bool:
        return self._open and self._loop.is_usable

    def _call(
        self, operate: Callable[[], Awaitable[T]], thread: CallersThread | None = None, undo: Callable[[T], Awaitable[None]] | None = None
    ) -> T:
        self._check()
        return self._loop.call(operate, thread, undo)

    def _with_payload(
        self, payload: Payload, operate: Callable[[tiered.payload.streams.Payload, CallersThread], Awaitable[T]]
    ) -> T:
        self._check()  # before the payload is taken
        thread = self._loop.callers_thread()
        body = _body(payload, thread)
        return self._call(lambda: operate(body, thread), thread)

    def _each(self, begin: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        self._check()
        return _Each(self._call, self._check, begin)

    def _check(self) -> None:
        self._loop.check()
        if not self._open:
            raise InvalidRequestError("the storage is not open; use it inside 'with'")
        if not self._in_event_loops:
            refuse_in_event_loop()


class _Calls:
    """Makes the calls of an open upload."""

    def __init__(self, storage: SyncTieredStorage) -> None:
        self._storage = storage

    def call(self, operate: Callable[[], Awaitable[T]]) -> T:
        return self._storage._call(operate)

    def with_payload(self, payload: Payload, operate: Callable[[tiered.payload.streams.Payload], Awaitable[T]]) -> T:
        return self._storage._with_payload(payload, lambda body, _: operate(body))


class _Each(Iterator[T]):
    """The items of an asynchronous iterator. Many of them are taken in one call into the event loop.

    Threads may share it. After an error or an interruption it raises an error again, and never ends as if it were
    complete.
    """

    def __init__(
        self, call: Callable[[Callable[[], Awaitable[list[T]]]], list[T]], check: Callable[[], None], begin: Callable[[], AsyncIterator[T]]
    ) -> None:
        self._call = call
        self._check = check
        self._turn = Turn("a listing")
        self._begin = begin
        self._source: AsyncIterator[T] | None = None
        self._taken: Iterator[T] = iter(())
        self._error: Exception | None = None
        self._ended = self._interrupted = False

    def __next__(self) -> T:
        for item in self._taken:
            return item
        self._check()  # in a forked child, nobody lets this thread take a turn
        for item in self._turn.take(self._next):
            return item
        raise StopIteration

    def _next(self) -> list[T]:
        """The next item; none at the end."""
        while True:
            for item in self._taken:
                return [item]
            if self._error is not None:
                raise self._error
            if self._ended:
                return []
            if self._interrupted:
                raise InvalidRequestError("the listing was interrupted and is not complete; list again, with start_after to go on")
            self._interrupted = True
            self._taken = iter(self._call(self._take))
            self._interrupted = False

    async def _take(self) -> list[T]:
        taken: list[T] = []
        try:
            if self._source is None:
                self._source = self._begin()
            async for item in self._source:
                taken.append(item)
                if len(taken) == TAKEN_AT_ONCE:
                    return taken
        except Exception as error:  # noqa: BLE001 - raised after the items that came before it
            self._error = error
        self._ended = True
        return taken


async def _close(stored: tiered.stored.StoredObject | None) -> None:
    if stored is not None:
        await stored.aclose()


def _body(payload: object, thread: CallersThread) -> tiered.payload.streams.Payload:
    return payload.release() if isinstance(payload, SyncStoredObject) else thread.payload(payload)


def _with_payload_of(request: PutRequest, thread: CallersThread) -> PutRequest:
    if not isinstance(request, PutRequest):
        return request
    body: tiered.payload.streams.Payload
    try:
        body = _body(request.payload, thread)
    except InvalidRequestError as error:
        body = _Refused(error)  # so that it is the error of this item, and not of the bulk call
    return replace(
        request, payload=body, progress=_told_in(thread, request.progress), custom_at_end=_asked_in(thread, request.custom_at_end)
    )


def _told_in(thread: CallersThread, progress: Progress | None) -> Progress | None:
    """A callback for the event loop that lets the caller's thread call `progress`, and waits for it."""
    if progress is None or not callable(progress):
        return progress  # `put` says what is wrong with it

    async def told(so_far: int, total: int | None) -> None:
        await thread.run(lambda: refuse_async(progress(so_far, total)))

    return told


def _asked_in(thread: CallersThread, custom_at_end: CustomAtEnd | None) -> CustomAtEnd | None:
    """A callback for the event loop that lets the caller's thread call `custom_at_end`, and waits for it."""
    if custom_at_end is None or not callable(custom_at_end):
        return custom_at_end  # `put` says what is wrong with it

    async def asked() -> Mapping[str, str]:
        return cast("Mapping[str, str]", await thread.run(lambda: refuse_async(custom_at_end())))

    return asked


class _Refused(AsyncIterator[bytes]):
    """A payload that raises an error when it is read."""

    def __init__(self, error: InvalidRequestError) -> None:
        self._error = error

    async def __anext__(self) -> bytes:
        raise self._error


# --- opening -------------------------------------------------------------------------------------


A = TypeVar("A", bound=tiered.storage.TieredStorage)
S = TypeVar("S", bound=SyncTieredStorage)


class Opening(AbstractContextManager[S], Generic[A, S]):
    """What `open_storage` returns. Enter it with `with`, once.

    A storage that was entered and never left is left when the interpreter exits.
    """

    def __init__(self, open_async: Callable[[], AbstractAsyncContextManager[A]], make: Callable[[LoopThread, A], S]) -> None:
        """`make` makes the blocking storage from the open one."""
        self._open_async = open_async
        self._make = make
        self._kept: HeldContext[A] | None = None
        self._storage: S | None = None

    def __enter__(self) -> S:
        refuse_in_event_loop()
        return self.enter_anywhere()

    def enter_anywhere(self) -> S:
        """Enters it also where an event loop runs, which it blocks."""
        if self._kept is not None:
            raise InvalidRequestError("a storage is entered once; open another")
        loop = loop_thread()
        self._kept = HeldContext(loop, self._open_async())
        self._storage = self._make(loop, self._kept.enter())
        return self._storage

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._kept is not None and self._storage is not None, "entered before it is left"
        self._storage._open = False
        self._kept.leave()


def open_storage(
    source: str | Path | Settings, runtime: Runtime | None = None, *,
    writes: bool = True, recover: bool = False, telemetry: Telemetry | None = None,
) -> Opening[tiered.storage.TieredStorage, SyncTieredStorage]:
    """Opens a store for blocking callers: `with open_storage(…) as storage`.

    `source` is the path of a YAML file, or `Settings`. Raises `ConfigurationError`, which says what to change.

    The arguments are those of `tiered.open_storage`. Open a store after a fork, and not before it: gunicorn's
    `post_fork`, Celery's `worker_process_init`. A forked child cannot use a storage of its parent. In embedded mode it
    cannot open a directory either that its parent had open at the fork.
    """
    opening = partial(tiered.open.open_storage, source, runtime, writes=writes, recover=recover, telemetry=telemetry)
    return Opening(opening, SyncTieredStorage)
