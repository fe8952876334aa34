"""Made from `tiered/storage.py` by `python -m tests.tiered.sync.twins`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, overload

from changelog.change import ChangeId
from tiered.bulk import PAYLOAD_BYTES_MAX, LoadedObject, PutRequest
from tiered.errors import OutcomeUnknownError
from tiered.metadata import Metadata
from tiered.object_id import ALL, ObjectId, ObjectPrefix
from tiered.protocol.conditions import ANY_REVISION, IfRevision
from tiered.protocol.listing import LIST_PAGE_MAX
from tiered.protocol.writing import Outcome
from tiered.services.backends import ByteRange
from tiered.stored import Compression, CustomAtEnd, Difference, Folder, ListEntry, ListPage, ObjectHead, Progress, PutResult
from tiered.sync.bulk import SyncBulk, put_request, requests_of
from tiered.sync.calls import BlockingStorage, Payload, body
from tiered.sync.multipart import SyncMultipartUpload, SyncResumableUpload, SyncSignedPut
from tiered.sync.object_writer import SyncObjectWriter
from tiered.sync.stored import SyncStoredObject


class SyncTieredStorage(BlockingStorage):
    """An open store whose calls block: `with tiered.sync.open_storage(…) as storage`.

    Many threads may call its methods at the same time. All stores of a process share one event loop, which runs in a
    thread of its own. Each method may raise `UnavailableError` (nothing happened; try again), `AtCapacityError` (it did
    not begin; send less), `InvalidRequestError` (fix the call) or `CorruptRecordError` (an operator must look).

    A call in a forked child is an `InvalidRequestError`, and so is one in a thread in which an event loop runs. Ctrl-C
    during a call cancels the operation, and waits until it has ended: what is known then is what is known after a
    cancelled call of `tiered`.
    """

    def close(self) -> list[ChangeId]:
        """Takes no more work, and waits up to `store.drain_budget_s` seconds for what is under way.

        Returns the changes that are left to recovery, and logs them. `with` calls it. Safe to repeat. If the caller is
        interrupted meanwhile, the wait goes on to its end first.
        """
        return self._close()

    @property
    def services_away(self) -> Mapping[str, float]:
        """The services that do not answer this store now, and for how many seconds: `high_volume` (the rows),
        `long_term` (the blobs), `changelog`. Calls to them fail at once (`ServiceAwayError`), but for one at a time.
        """
        return self._storage.services_away

    @property
    def dangling_found(self) -> int:
        """How many reads have found a tombstone whose blob is gone since the store was opened."""
        return self._storage.dangling_found

    def put(
        self, object_id: ObjectId, payload: Payload, metadata: Metadata | None = None, *,
        if_absent: bool = False, if_revision: IfRevision = ANY_REVISION, progress: Progress | None = None,
        checksums: Mapping[str, str] | None = None, custom_at_end: CustomAtEnd | None = None, compress: Compression | None = None,
    ) -> PutResult:
        """Stores the payload under the id, and replaces what is there. It is durable when the call returns.

        A store that is full says so before anything of the payload is read. If the put fails, a file goes back to where
        it was, so that it can be put again. Of another payload, a part may have been read. What your own code raises
        ends the put, and nothing was stored.

        Args:
            payload: Bytes, a path, an open binary file, an iterator of bytes of any length, or a `SyncStoredObject`,
                which is closed at the end. A file is stored from its position on, and the length of a regular one is
                fixed when it is opened. What was read before and gives nothing more is refused. What may block is read
                in your own thread.
            metadata: What is kept beside the bytes. If `size` (bytes) is given, the payload must have that size. If the
                content type is not given, and the payload is a path, it is guessed from the file's name, by a table
                that is the same on every machine.
            if_absent: Only if there is no object, or it has expired.
            if_revision: Only over the object with this revision, which a `PutResult` or an `ObjectHead` shows.
            progress: Called after each chunk that was taken from the payload.
            checksums: Of the whole payload, as `{"sha256": …}`: crc32c (extra `gcp` or `s3`), md5 or sha256, in hex or
                base64. They are compared, and not kept. The entry `tiered-sha256` of the custom metadata, which `tiered
                sync` writes, is kept only if sha256 is declared here and is the same, in hexadecimal.
            custom_at_end: Called after the last byte, for what is known only then, such as a hash or a count. It
                returns entries of `Metadata.custom`, which are added to those of `metadata`, or replace them. Readers
                see the object with all of them, or not at all. In GCS this is one more request for a large object.
            compress: "zstd" stores the payload compressed, with `Metadata.compression` "Zstd", and `get` gives it as it
                was. The size of the result is that of what is stored; `metadata.size`, `checksums` and `progress` are
                of the payload as you pass it. If you compress it yourself, set `metadata.compression` instead.

        Raises:
            ConditionFailedError: `if_absent` or `if_revision` was false. Nothing was stored.
            InvalidRequestError: Also if other bytes came than were declared, or none for `store.payload_idle_s`
                seconds, or if `custom_at_end` took so long. Nothing was stored.
            AtCapacityError: Also if too many payloads that may block are read.
            ConfigurationError: The extra that `checksums` or `compress` needs is not installed.
            OutcomeUnknownError: It may have happened: ask `outcome`.
            CancelledElsewhereError: What the payload awaited was cancelled, and this call was not. Nothing was stored.
        """
        thread = self._calls.thread()
        call = partial(
            self._storage.put, object_id, body(payload, thread), metadata, if_absent=if_absent, if_revision=if_revision,
            progress=thread.callback(progress), checksums=checksums, custom_at_end=thread.callback(custom_at_end), compress=compress,
        )
        return self._calls.call(call, thread)

    def open(
        self, object_id: ObjectId, mode: Literal["wb"], metadata: Metadata | None = None, *,
        if_absent: bool = False, if_revision: IfRevision = ANY_REVISION, checksums: Mapping[str, str] | None = None,
        custom_at_end: CustomAtEnd | None = None, compress: Compression | None = None,
    ) -> SyncObjectWriter:
        """Opens an object for code that writes: `with storage.open(id, "wb") as file: file.write(chunk)`.

        Leaving the block is one `put` of all that was written. What is known before the first byte, such as that the
        store is full, is raised before the block. Leaving the block by an error or an interruption stores nothing. A
        block that writes nothing for `store.payload_idle_s` seconds is taken for a payload that stalls. The other
        arguments and errors are those of `put`.

        Args:
            mode: "wb". `get` opens an object for reading.
        """
        thread = self._calls.thread()
        made = self._storage.open(
            object_id, mode, metadata, if_absent=if_absent, if_revision=if_revision, checksums=checksums,
            custom_at_end=thread.callback(custom_at_end), compress=compress,
        )
        return SyncObjectWriter(self._loop, made, thread)

    def begin_multipart(
        self, object_id: ObjectId, metadata: Metadata | None = None, *, if_absent: bool = False, if_revision: IfRevision = ANY_REVISION
    ) -> SyncMultipartUpload:
        """Begins an upload whose parts come in any order, from any process, for `store.upload_age_max_s` (7 days).

        Until it is completed, readers see nothing of it. Then it is the object, with these metadata, and a time to live
        is counted from that moment. The arguments are those of `put`, and the conditions are judged when it is
        completed. Recovery gives up what nobody completes.

        Raises:
            ConfigurationError: The store has no changelog that would keep it.
        """
        call = partial(self._storage.begin_multipart, object_id, metadata, if_absent=if_absent, if_revision=if_revision)
        made = self._calls.call(call)
        return SyncMultipartUpload(made, self._calls)

    def multipart(self, object_id: ObjectId, upload_id: str) -> SyncMultipartUpload:
        """An upload that was begun before, maybe by another process. Asks nothing: the first call finds out.

        Args:
            upload_id: The `id` of what `begin_multipart` returned.
        """
        made = self._storage.multipart(object_id, upload_id)
        return SyncMultipartUpload(made, self._calls)

    def begin_resumable(
        self, object_id: ObjectId, metadata: Metadata | None = None, *, if_absent: bool = False, if_revision: IfRevision = ANY_REVISION
    ) -> SyncResumableUpload:
        """Begins an upload that is appended to, and goes on after a cut where it was.

        `metadata.size` (bytes), if it is known, tells which append has the end. The arguments and rules are those of
        `begin_multipart`.
        """
        call = partial(self._storage.begin_resumable, object_id, metadata, if_absent=if_absent, if_revision=if_revision)
        made = self._calls.call(call)
        return SyncResumableUpload(made, self._calls)

    def resumable(self, object_id: ObjectId, upload_id: str, size: int | None = None) -> SyncResumableUpload:
        """An upload that was begun before, maybe by another process. Asks nothing: the first call finds out.

        Args:
            upload_id: The `id` of what `begin_resumable` returned.
            size: Of the whole object in bytes, if it is known.
        """
        made = self._storage.resumable(object_id, upload_id, size)
        return SyncResumableUpload(made, self._calls)

    def sign_put(
        self, object_id: ObjectId, expires_in: timedelta, metadata: Metadata | None = None, *, if_absent: bool = False,
        if_revision: IfRevision = ANY_REVISION, size_max: int | None = None,
    ) -> SyncSignedPut:  # fmt: skip
        """A link to write the object, for browsers and other services.

        It is the link to part 1 of an open upload. What is PUT there is no object before somebody completes the upload,
        from any process, with these metadata and on these conditions. Before that, `upload.parts()` tells how much
        came. For a large object, sign a link for each part (`upload.sign_part`). The other arguments and errors are
        those of `begin_multipart`.

        Args:
            expires_in: For how long the link is good: 1 second to 7 days.
            size_max: How many bytes the object may have. The app of `tiered.asgi` takes no more. GCS and S3 sign links
                of their own, which take up to 5 GiB. So `complete` judges it, too, on every service:
                `InvalidRequestError`, and the upload stays open.

        Raises:
            ConfigurationError: Also if no link can be signed.
        """
        call = partial(
            self._storage.sign_put, object_id, expires_in, metadata, if_absent=if_absent, if_revision=if_revision, size_max=size_max,
        )
        made = self._calls.call(call)
        return SyncSignedPut(made.url, SyncMultipartUpload(made.upload, self._calls))

    def delete(self, object_id: ObjectId, *, if_revision: IfRevision = ANY_REVISION) -> None:
        """Removes the object. No error if there is none.

        Args:
            if_revision: Only the object with this revision.

        Raises:
            ConditionFailedError: There is another revision, or no object. Nothing was deleted.
            OutcomeUnknownError: It may have happened: ask `outcome`.
        """
        call = partial(self._storage.delete, object_id, if_revision=if_revision)
        self._calls.call(call)

    def copy(
        self, source: ObjectId, destination: ObjectId, *, if_absent: bool = False, if_revision: IfRevision = ANY_REVISION
    ) -> PutResult | None:
        """Copies an object within the store, without its payload passing through here. None: there is no source.

        The copy is a new revision with the metadata of the source, its time of creation and its deadline. The
        conditions are about the destination. The other arguments and errors are those of `put`.

        Args:
            source: What is copied.
            destination: Where the copy is.

        Raises:
            UnavailableError: Also if the source was replaced meanwhile.
            DanglingTombstoneError: The data of the source are lost.
        """
        call = partial(self._storage.copy, source, destination, if_absent=if_absent, if_revision=if_revision)
        return self._calls.call(call)

    def rename(
        self, source: ObjectId, destination: ObjectId, *, if_absent: bool = False, if_revision: IfRevision = ANY_REVISION
    ) -> PutResult | None:
        """Copies an object, and then deletes the revision that was copied. None: there is no source.

        It is not one step. Both exist for a moment, and stay if the process dies in between, if the caller is
        interrupted, or if a service fails after the copy. Then any error may be raised, and "nothing happened" is said
        of the source alone. To call it again without a condition is safe. With one, it finds its own copy, and raises
        `ConditionFailedError` for the destination. The arguments and errors are those of `copy`.

        Raises:
            ConditionFailedError: If its `object_id` is the source, the copy was made and stays. Meanwhile the source
                was replaced, and stays, too, or it was deleted or has expired.
            InvalidRequestError: Also if older software wrote the source, so that it has no revision: copy and delete
                it.
        """
        call = partial(self._storage.rename, source, destination, if_absent=if_absent, if_revision=if_revision)
        return self._calls.call(call)

    def update_metadata(
        self, object_id: ObjectId, change: Callable[[Metadata], Metadata], *, if_revision: IfRevision = ANY_REVISION
    ) -> PutResult | None:
        """Changes the metadata of an object, without its payload passing through here. None: there is no object.

        The result is a new revision, so readers see metadata and payload of one write. The size and the time of
        creation stay. So does the deadline, unless the expiration was changed or is a time to idle: then it begins
        anew. If nothing is different, nothing is written. Raises also what `put` does.

        Args:
            change: Gets the metadata and returns others. It may be called again, if another writer was faster. What it
                raises reaches you, and nothing is changed then. A text that is not ASCII may stay, and none may come,
                unless `store.unicode_metadata` is set.
            if_revision: As for `put`.

        Raises:
            InvalidRequestError: Also if older software wrote the object, so that it has no revision.
            DanglingTombstoneError: The object's data are lost.
        """
        thread = self._calls.thread()
        call = partial(self._storage.update_metadata, object_id, thread.callback(change), if_revision=if_revision)
        return self._calls.call(call, thread)

    def set_expiry(
        self, object_id: ObjectId, *, at: datetime | None = None, from_creation: timedelta | None = None, extend_only: bool = False,
        if_revision: IfRevision = ANY_REVISION,
    ) -> PutResult | None:
        """Sets when an object expires: without a time, never. Everything else is as for `update_metadata`.

        Nothing brings back an object that has expired (None). One that expires *during* the call may be gone for a
        moment, and come back with the new deadline.

        Args:
            at: When: in the future, and with a time zone.
            from_creation: Instead: so long after its creation.
            extend_only: An object that lives longer stays as it is.
            if_revision: As for `put`.
        """
        call = partial(
            self._storage.set_expiry, object_id, at=at, from_creation=from_creation, extend_only=extend_only, if_revision=if_revision,
        )
        return self._calls.call(call)

    def get(
        self, object_id: ObjectId, range: ByteRange | None = None, *, progress: Progress | None = None, decompress: bool = True
    ) -> SyncStoredObject | None:
        """Opens the object for reading. None: there is none, or it has expired.

        Args:
            range: Which of the stored bytes; None: all.
            progress: Called after each chunk that was read. If it raises, the object is closed.
            decompress: An object whose `metadata.compression` is "Zstd" gives the bytes that were compressed. With
                False, it gives those that are stored, as one with any other compression always does.

        Raises:
            RangeNotSatisfiableError: The range does not fit the object, whose `size` it tells.
            InvalidRequestError: Also if an object that is decompressed is asked for a range, which counts stored bytes.
            DanglingTombstoneError: The object's data are lost.
            ConfigurationError: It is compressed, and the extra `zstd` is not installed.
        """
        return self._get(object_id, range, progress=progress, decompress=decompress)

    def head(self, object_id: ObjectId, *, checksum: bool = False) -> ObjectHead | None:
        """All of the object but its bytes. None: there is none, or it has expired. Does not extend a time to idle.

        Args:
            checksum: Tell the crc32c of a small object, too. It is computed from its row, so it says nothing about what
                was put. That of a large object is told in any case, if its tier keeps one.
        """
        call = partial(self._storage.head, object_id, checksum=checksum)
        return self._calls.call(call)

    def sign_get(
        self, object_id: ObjectId, expires_in: timedelta, *, content_type: str | None = None,
        disposition: Literal["inline", "attachment"] = "inline",
    ) -> str | None:
        """A link to read the object, for browsers and other services. None: there is no object, or it has expired.

        Whoever has it may read exactly the revision that is there now. When that was overwritten or deleted, it leads
        nowhere (404 or 410). Nothing else revokes it but the removal of the key that signed it. Neither to sign nor to
        read in a bucket extends a time to idle.

        A large object in GCS or S3 gets a signed URL of its blob, which ends at the object's present deadline at the
        latest. It shows the blob until that is deleted: mostly at once after an overwrite, but later if a service is
        away or a change feed still needs it. All other objects get a link to the app of `tiered.asgi` (`links` in the
        settings), and so does each link with a `content_type`, which a bucket would ignore. The app decompresses for
        whoever does not take zstd; a bucket sends what is stored, and says `Content-Encoding: zstd`.

        Args:
            expires_in: For how long the link is good: 1 second to 7 days.
            content_type: What is answered instead of the stored one.
            disposition: "inline" lets a browser show the object, "attachment" lets it save the object. The file's name
                is the one in the metadata, percent-decoded, or the end of the key.

        Raises:
            ConfigurationError: No app is configured, or the credentials of the service cannot sign. It says what to set
                or which role is missing.
            InvalidRequestError: Also if older software wrote the object, so that it has no revision.
            DanglingTombstoneError: The object's data are lost.
        """
        call = partial(self._storage.sign_get, object_id, expires_in, content_type=content_type, disposition=disposition)
        return self._calls.call(call)

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

        What is written or deleted meanwhile may be listed or not. A damaged row does not end the listing: it is logged,
        and its entry has a `fault`. If its key is no object id, it has no entry.

        Args:
            prefix: Of which objects; without one, of all.
            start_after: Begin after this object, or after all objects of this prefix (of a `Folder`).
            limit: At most so many entries. `list_page` tells whether there are more.
            delimiter: All objects whose paths are the same up to the next delimiter after the prefix become one
                `Folder`. "/" also makes folders of usecases and scopes.
            metadata: List the metadata, too. A row tells them. Of a large object whose row does not (see `ListEntry`),
                they are one more call, or in GCS one for up to 100 that are near one another in the bucket.
        """
        call = partial(self._storage.list, prefix, start_after=start_after, limit=limit, delimiter=delimiter, metadata=metadata)
        return self._calls.each(call)

    def list_page(
        self, prefix: ObjectPrefix = ALL, *, page_token: str | None = None, start_after: ObjectId | ObjectPrefix | None = None,
        limit: int = LIST_PAGE_MAX, delimiter: str | None = None, metadata: bool = False,
    ) -> ListPage:
        """One page of what `list` yields, and a token for the next page. The other arguments are those of `list`.

        Args:
            page_token: The `next_page_token` of the page before, with the same prefix and delimiter. Any process may
                use it, at any later time.
            limit: At most so many entries, from 1 to 1,000. With `metadata`, they are fewer if objects were deleted
                while the page was made.

        Raises:
            InvalidRequestError: Also if the token is of another listing.
        """
        call = partial(
            self._storage.list_page, prefix, page_token=page_token, start_after=start_after, limit=limit, delimiter=delimiter,
            metadata=metadata,
        )
        return self._calls.call(call)

    def compare(
        self, prefix: ObjectPrefix, object_ids: Iterable[ObjectId], *, grace: timedelta | None = None, allow_empty: bool = False
    ) -> Iterator[Difference]:
        """Compares the objects of a prefix with the ids that your own rows name, and yields what only one side has.

        The differences come in the byte order of their paths, after all ids were read. If reading them fails, none
        comes.

        An object that no id names is told only if it was older than the grace when this began, so none is told that is
        written meanwhile. If an id has no object, look at its row again, which may have been deleted meanwhile. What
        has expired is no object. One whose data are lost is: the audit finds it.

        Args:
            prefix: Of which objects.
            object_ids: All that your rows name within the prefix, in any order, also twice. What does not fit into 128
                MiB of memory is kept in a temporary file.
            grace: Longer than it ever takes from the beginning of a write until its row is there. None: two days more
                than `store.upload_age_max_s`, which are 9 days unless you set it.
            allow_empty: Whether all objects may be told if no id comes. Otherwise that is an error, because your rows
                may not have been read.

        Raises:
            InvalidRequestError: Also if an id is not within the prefix.
            UnavailableError: Also if no temporary file can be written.
        """
        thread = self._calls.thread()
        call = partial(self._storage.compare, prefix, requests_of(object_ids, thread), grace=grace, allow_empty=allow_empty)
        return self._calls.each(call, thread)

    def outcome(self, error: OutcomeUnknownError) -> Outcome:
        """Says what became of a change that ended with `OutcomeUnknownError`. Ask again while it is PENDING."""
        call = partial(self._storage.outcome, error)
        return self._calls.call(call)

    def put_many(self, requests: Iterable[PutRequest], *, concurrency: int | None = None) -> SyncBulk[PutRequest, PutResult]:
        """Puts all of them: `with storage.put_many(requests) as results: for result in results: …`.

        Each `ItemResult` has a value or an error, and no error ends the others. Items wait where a single put would
        raise `AtCapacityError`. Puts of one id keep their order. Leaving the block early cancels what is under way. All
        bulk calls together hold at most three quarters of the slots.

        Args:
            requests: Read one at a time, while you take the results.
            concurrency: How many puts run at once: by default a quarter of `store.concurrency_max`, and at most 16.
        """
        self._calls.check()
        call = partial(self._storage.put_many, concurrency=concurrency)
        return SyncBulk(self._loop, requests, call, put_request)

    def delete_many(self, object_ids: Iterable[ObjectId], *, concurrency: int | None = None) -> SyncBulk[ObjectId, None]:
        """Deletes all of them. The rules are those of `put_many`."""
        self._calls.check()
        call = partial(self._storage.delete_many, concurrency=concurrency)
        return SyncBulk(self._loop, object_ids, call)

    def get_many(
        self, object_ids: Iterable[ObjectId], *, concurrency: int | None = None, payload_bytes_max: int = PAYLOAD_BYTES_MAX,
        decompress: bool = True,
    ) -> SyncBulk[ObjectId, LoadedObject | None]:
        """Reads all of them whole. The arguments and rules are those of `put_many`. None: there is none, or it has
        expired.

        At most `concurrency` + 1 payloads are in memory at a time.

        Args:
            payload_bytes_max: How many bytes each may have. A larger object is not read: its error is
                `InvalidRequestError`. Use `get`, which streams it.
            decompress: As for `get`.
        """
        self._calls.check()
        call = partial(self._storage.get_many, concurrency=concurrency, payload_bytes_max=payload_bytes_max, decompress=decompress)
        return SyncBulk(self._loop, object_ids, call)

    def head_many(
        self, object_ids: Iterable[ObjectId], *, concurrency: int | None = None, checksum: bool = False
    ) -> SyncBulk[ObjectId, ObjectHead | None]:
        """The heads of all of them. The arguments and rules are those of `put_many`. None: there is none, or it has
        expired.

        Args:
            checksum: As for `head`.
        """
        self._calls.check()
        call = partial(self._storage.head_many, concurrency=concurrency, checksum=checksum)
        return SyncBulk(self._loop, object_ids, call)
