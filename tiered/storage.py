"""`TieredStorage`: put, get, head, delete, list, list_page over two tiers, and many of them at once.

Each operation checks its arguments, takes a slot, and hands over to `protocol/reading.py` or `protocol/writing.py`. A
slot bounds what is under way. A write gives it back when its clean-up is done, after its caller was answered. `get`
gives it back before the bytes are read. So slots do not bound how many objects are open for reading; only a service's
connections do (`gcs.connections_max`).

A put holds no slot while it waits for a payload that is not in memory: one client that sends slowly would hold it for
ever. Such payloads have places of their own (`store.payloads_max`), from the first byte to the end of the put.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from copy import deepcopy
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from inspect import isawaitable
from types import TracebackType
from typing import Literal, Self, overload

import anyio
import anyio.lowlevel

from changelog.base.errors import ConfigurationError, InvalidRequestError, TieredError, UnavailableError
from changelog.base.events import events
from changelog.base.home_loop import HomeLoop, in_home_loop
from changelog.base.observe import SILENT, Observer
from changelog.base.runtime import Runtime, instance_name
from changelog.base.tasks import Patience, elsewhere_is_an_error
from changelog.change import ChangeId
from changelog.heartbeat import Heartbeat
from changelog.log import ChangeLog
from tiered.bulk import (
    PAYLOAD_BYTES_MAX,
    Bulk,
    LoadedObject,
    PutRequest,
    Requests,
    bounded_concurrency,
    check_bytes_max,
    load,
)
from tiered.comparison import Comparison
from tiered.errors import ConditionFailedError, OutcomeUnknownError
from tiered.limits.admission import Admission, Share, Slot
from tiered.limits.policies import Policies
from tiered.links import Links, SignedLink, checked_content_type, checked_disposition, checked_life, content_disposition
from tiered.metadata import (
    CONTENT_TYPE_DEFAULT,
    NS_PER_S,
    Metadata,
    TimeToIdle,
    deadline_from,
    expiring,
    no_metadata,
    refuse_unicode_in,
    without_stale_sha256,
)
from tiered.multipart import APPENDED_PART_BYTES, Keep, MultipartUpload, ResumableUpload, SignedPut, check_size_max
from tiered.notes.dangling import DanglingNotes
from tiered.notes.feed_off import FeedOffNotifier
from tiered.object_id import ALL, ObjectId, ObjectPrefix, refuse_reserved
from tiered.object_writer import ObjectWriter
from tiered.payload.checksums import DeclaredChecksums
from tiered.payload.chunks import Chunk, Chunks, split_head
from tiered.payload.compressed import Compressed
from tiered.payload.content_type import content_type_of
from tiered.payload.streams import VIEW_BYTES, Payload, chunks
from tiered.payload.zstd import COMPRESSION
from tiered.protocol.assembling import Append, Assembler
from tiered.protocol.conditions import ANY_REVISION, Condition, IfRevision, checked_condition
from tiered.protocol.listing import LIST_PAGE_MAX, Lister, ListRequest
from tiered.protocol.reading import Lifetime, Reader
from tiered.protocol.under_way import WriteInProgress, WritesUnderWay
from tiered.protocol.writing import Body, Outcome, Writer, check_declared
from tiered.services.backends import ByteRange, Tiers
from tiered.services.capabilities import Part, SignedUrls
from tiered.services.guarded import GuardedServices
from tiered.settings import Settings
from tiered.stored import (
    Compression,
    CustomAtEnd,
    Difference,
    Folder,
    ListEntry,
    ListPage,
    ObjectHead,
    Progress,
    ProgressCount,
    PutResult,
    StoredObject,
)
from tiered.text import check_flags, quoted
from tiered.transfer.lanes import READ_ATTEMPTS_MAX


@in_home_loop
class TieredStorage:
    """An open store: `async with TieredStorage(tiers, log, runtime, settings) as storage`, or `open_storage(…)`.

    Many tasks may call its methods at the same time, all in the event loop in which it was entered: in another one each
    call is an `InvalidRequestError`. Each method may raise `UnavailableError` (nothing happened; try again),
    `AtCapacityError` (it did not begin; send less), `InvalidRequestError` (fix the call) or `CorruptRecordError` (an
    operator must look).
    """

    def __init__(
        self, tiers: Tiers, log: ChangeLog, runtime: Runtime, settings: Settings, *, writes: bool = True, observer: Observer = SILENT
    ) -> None:
        """`writes` False: the backends were opened for reading only, and reading does not count as a use that extends a
        time to idle. `observer` is told of each operation.
        """
        check_flags(writes=writes)
        self._tiers = tiers
        self._runtime = runtime
        self._settings = settings
        self._observer = observer
        self.instance = settings.instance or instance_name(runtime, "store")
        store = settings.store
        # Apart, so that writers who wait for a changelog that is down, and touches, do not keep readers out.
        self._reads, self._writes = (
            Admission(store.concurrency_max, store.queue_max, store.queue_wait_s, runtime.monotonic, bulk_max=store.bulk_max)
            for _ in range(2)
        )
        self._payloads = Admission(
            store.open_payloads_max, store.queue_max, store.queue_wait_s, runtime.monotonic, bulk_max=store.bulk_payloads_max,
            whats="payloads are open", setting="store.payloads_max",
        )  # fmt: skip
        self._touches = Admission(store.concurrency_max, 0, 0, runtime.monotonic)
        heartbeat = Heartbeat(log, runtime, self.instance, settings.lease.heartbeat_interval_s, settings.lease.expiry_s)
        self._services = GuardedServices(tiers, settings.store, runtime, self.instance, observer)
        self._feed_off = None if settings.feed.enabled else FeedOffNotifier(log, runtime, self.instance)
        self._under_way = WritesUnderWay(heartbeat, self._services.changelog, recovered=log.durable)
        self._writer = Writer(tiers, log, runtime, settings, heartbeat, self._under_way, self._services, self._feed_off, observer)
        self._policies = Policies(settings.usecases, runtime, observer) if settings.usecases else None
        self._assembler = Assembler(
            tiers, log, runtime, settings, heartbeat, self._under_way, self._services, self._writer, observer, self._policies
        )
        self._uploads = _OpenUploads(self)
        self._reader = Reader(tiers, runtime, settings, self._services, observer, self._note_dangling)
        self._dangling = DanglingNotes(log, runtime)
        self._notes = Admission(1, 0, 0, runtime.monotonic)
        self._lister = Lister(tiers, runtime, settings, self._reader, self._services, self._enter_listing, observer)
        self._touching: set[str] = set()
        self.links = None if settings.links is None else Links(settings.links, runtime)
        self._may_write = writes
        self._home: HomeLoop | None = None
        self._open = False

    # --- life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._home is not None:
            raise InvalidRequestError("a storage is entered once; open another")
        self._home = HomeLoop("this storage")
        await self._under_way.__aenter__()
        self._open = True
        for side, admission in self._sides():
            self._observer.watch(side, admission)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self.aclose()
        finally:
            for side, admission in self._sides():
                self._observer.unwatch(side, admission)
            self._services.close()
            try:
                await self._under_way.__aexit__(kind, error, trace)
            finally:  # also if it is cancelled: most services end so
                if self._feed_off is not None:
                    await self._feed_off.end()

    async def aclose(self) -> list[ChangeId]:
        """Takes no more work, and waits up to `store.drain_budget_s` seconds for what is under way.

        Returns the changes that are left to recovery, and logs them. `async with` calls it. Safe to repeat. If the
        caller is cancelled meanwhile, the wait goes on to its end first.
        """
        self._open = False
        self._dangling.close()
        return await self._under_way.drain(self._wait_idle, self._settings.store.drain_budget_s)

    def _sides(self) -> tuple[tuple[str, Admission], ...]:
        return ("read", self._reads), ("write", self._writes), ("touch", self._touches), ("payload", self._payloads)

    async def _wait_idle(self) -> None:
        await self._payloads.wait_idle()  # first: whoever has read its payload needs a slot for a write
        await self._writes.wait_idle()
        await self._reads.wait_idle()
        await self._touches.wait_idle()
        await self._notes.wait_idle()

    @property
    def services_away(self) -> Mapping[str, float]:
        """The services that do not answer this store now, and for how many seconds: `high_volume` (the rows),
        `long_term` (the blobs), `changelog`. Calls to them fail at once (`ServiceAwayError`), but for one at a time.
        """
        return self._services.away

    @property
    def dangling_found(self) -> int:
        """How many reads have found a tombstone whose blob is gone since the store was opened."""
        return self._reader.dangling

    # --- operations ------------------------------------------------------------------------------

    async def put(
        self, object_id: ObjectId, payload: Payload, metadata: Metadata | None = None, *,
        if_absent: bool = False, if_revision: IfRevision = ANY_REVISION, progress: Progress | None = None,
        checksums: Mapping[str, str] | None = None, custom_at_end: CustomAtEnd | None = None, compress: Compression | None = None,
    ) -> PutResult:
        """Stores the payload under the id, and replaces what is there. It is durable when the call returns.

        A store that is full says so before anything of the payload is read. If the put fails, a file goes back to where
        it was, so that it can be put again. Of another payload, a part may have been read. What your own code raises
        ends the put, and nothing was stored.

        Args:
            payload: Bytes, a path, an open binary file, an iterator or async iterator of bytes of any length, or a
                `StoredObject`, which is closed at the end. A file is stored from its position on, and the length of a
                regular one is fixed when it is opened. What was read before and gives nothing more is refused. What may
                block is read in a thread of its own.
            metadata: What is kept beside the bytes. If `size` (bytes) is given, the payload must have that size. If the
                content type is not given, and the payload is a path, it is guessed from the file's name, by a table
                that is the same on every machine.
            if_absent: Only if there is no object, or it has expired.
            if_revision: Only over the object with this revision, which a `PutResult` or an `ObjectHead` shows.
            progress: Called after each chunk that was taken from the payload.
            checksums: Of the whole payload, as `{"sha256": …}`: crc32c (extra `gcp` or `s3`), md5 or sha256, in hex
                or base64. They are compared, and not kept. The entry `tiered-sha256` of the custom metadata, which
                `tiered sync` writes, is kept only if sha256 is declared here and is the same, in hexadecimal.
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
        request = PutRequest(object_id, payload, metadata, if_absent, if_revision, progress, checksums, custom_at_end, compress)
        return await self._put(self._writes, self._payloads, request)

    async def _put(self, admission: Admission | Share, places: Admission | Share, request: PutRequest) -> PutResult:
        # Outside of the payload's own scopes: one may be open between two chunks, and its end is not the caller's.
        elsewhere = elsewhere_is_an_error("nothing was stored: what the payload awaited was cancelled elsewhere")
        with self._observer.operation("put"), elsewhere:
            source = chunks(request.payload, views=VIEW_BYTES)
            with self._patience(request.object_id, source, asks=request.custom_at_end is not None):
                async with source:
                    return await self._put_source(admission, places, request, source)

    async def _put_source(
        self, admission: Admission | Share, places: Admission | Share, request: PutRequest, source: Chunks
    ) -> PutResult:
        """Checks the arguments, takes a slot, reads what may be inline, and hands over to the writer."""
        self._check_may_write()
        object_id = request.object_id
        metadata = no_metadata() if request.metadata is None else request.metadata
        _check(object_id, metadata=metadata)
        object_id.validate()
        condition = checked_condition(request.if_absent, request.if_revision)
        if request.progress is not None:
            source.report_to(ProgressCount(request.progress), metadata.size)
        if request.checksums is not None:
            source.compare_with(DeclaredChecksums(request.checksums))
        guessed = content_type_of(source.path) if source.path is not None else CONTENT_TYPE_DEFAULT
        content_type = guessed if metadata.content_type is CONTENT_TYPE_DEFAULT else metadata.content_type
        check_flags(keep_deadline=request.keep_deadline)
        if request.metadata is not None or content_type is not CONTENT_TYPE_DEFAULT:
            # Built and checked anew: a mapping in it may have been changed since it was made.
            metadata = replace(metadata, content_type=content_type)
            self._check_texts(metadata)
        if metadata.custom:
            metadata = without_stale_sha256(metadata, None if request.compress else request.checksums)
        if self._policies is not None:
            metadata = self._policies.new_object(object_id, metadata, keeps=request.keep_deadline)
        if request.custom_at_end is not None:
            source.ask_at_end(_asking(request.custom_at_end, metadata, self._check_texts))
        body = source
        if request.compress is not None or isinstance(request.payload, StoredObject):
            body, metadata = _as_stored(request, source, metadata)
        if waits := body.waits:
            admission.refuse_if_full()  # before the payload is read in vain
        with await self._enter(places if waits else admission, object_id, moves=True) as first:
            head, head_size, rest = await split_head(body, self._settings.inline_bytes_max)
            # A place is no slot. The slot is waited for also if the store is being closed: that waits for this.
            with await admission.enter_later() if waits else first as slot:
                if self._policies is not None:
                    self._policies.receive(object_id, head_size, rest, metadata.size)
                write = WriteInProgress.begin(object_id, self._runtime, condition)
                stamps = (metadata.keeping if request.keep_deadline else metadata.stamps)(write.begun_ns)
                if rest is not None:
                    # A blob's time of creation is the service's own, unless the caller told one.
                    beside = metadata.with_facts(time_expires_ns=stamps["time_expires_ns"])
                    size = rest.size if metadata.size is None else metadata.size
                    return await self._writer.put_large(write, Body(beside, head, rest, size), slot)
                check_declared(metadata, head_size)
                custom = metadata.custom if body.custom is None else body.custom
                facts = metadata.with_facts(**stamps, size=head_size, custom=custom)
                return await self._writer.put_small(write, facts, b"".join(head), slot)

    def _patience(self, object_id: ObjectId, source: Chunks, *, asks: bool) -> AbstractContextManager[object]:
        """Bounds each wait for the payload's next byte, if it can wait, and for what is told at its end."""
        idle_s = self._settings.store.payload_idle_s
        if idle_s is None or not (source.waits or asks):
            return nullcontext()
        late = partial(_stalled, object_id, idle_s)
        source.patience = patience = Patience(idle_s, late, scoped=not source.may_hold_scopes)
        return patience

    def open(
        self, object_id: ObjectId, mode: Literal["wb"], metadata: Metadata | None = None, *,
        if_absent: bool = False, if_revision: IfRevision = ANY_REVISION, checksums: Mapping[str, str] | None = None,
        custom_at_end: CustomAtEnd | None = None, compress: Compression | None = None,
    ) -> ObjectWriter:
        """Opens an object for code that writes: `async with storage.open(id, "wb") as file: await file.write(chunk)`.

        Leaving the block is one `put` of all that was written. What is known before the first byte, such as that the
        store is full, is raised before the block. Leaving the block by an error or a cancellation stores nothing. A
        block that writes nothing for `store.payload_idle_s` seconds is taken for a payload that stalls. The other
        arguments and errors are those of `put`.

        Args:
            mode: "wb". `get` opens an object for reading.
        """
        if mode != "wb":
            raise InvalidRequestError(f"{quoted(mode)} is no mode: open an object with 'wb' to write it, and read it with get")

        async def put(payload: Payload) -> PutResult:
            request = PutRequest(object_id, payload, metadata, if_absent, if_revision, None, checksums, custom_at_end, compress)
            return await self._put(self._writes, self._payloads, request)

        return ObjectWriter(object_id, put)

    # --- uploads that stay open ------------------------------------------------------------------

    async def begin_multipart(
        self, object_id: ObjectId, metadata: Metadata | None = None, *, if_absent: bool = False, if_revision: IfRevision = ANY_REVISION
    ) -> MultipartUpload:
        """Begins an upload whose parts come in any order, from any process, for `store.upload_age_max_s` (7 days).

        Until it is completed, readers see nothing of it. Then it is the object, with these metadata, and a time to live
        is counted from that moment. The arguments are those of `put`, and the conditions are judged when it is
        completed. Recovery gives up what nobody completes.

        Raises:
            ConfigurationError: The store has no changelog that would keep it.
        """
        return await self._begin_upload(object_id, metadata, if_absent, if_revision, None)

    async def _begin_upload(
        self, object_id: ObjectId, metadata: Metadata | None, if_absent: bool, if_revision: IfRevision, size_max: int | None
    ) -> MultipartUpload:
        with self._observer.operation("begin_multipart"):
            self._check_may_write()
            metadata = no_metadata() if metadata is None else metadata
            _check(object_id, metadata=metadata)
            object_id.validate()
            condition = checked_condition(if_absent, if_revision)
            # Built and checked anew: a mapping in it may have been changed since it was made.
            metadata = without_stale_sha256(replace(metadata), None)
            self._check_texts(metadata)
            if self._policies is not None:
                metadata = self._policies.new_object(object_id, metadata, metadata.size)
            with await self._enter(self._writes, object_id) as slot:
                age_max_s = self._settings.store.upload_age_max_s
                upload_id = await self._assembler.begin(object_id, metadata, condition, age_max_s, slot, size_max)
            return self.multipart(object_id, upload_id)

    def multipart(self, object_id: ObjectId, upload_id: str) -> MultipartUpload:
        """An upload that was begun before, maybe by another process. Asks nothing: the first call finds out.

        Args:
            upload_id: The `id` of what `begin_multipart` returned.
        """
        _check(object_id)
        object_id.validate()
        return MultipartUpload(object_id, ChangeId(upload_id), self._uploads)

    async def begin_resumable(
        self, object_id: ObjectId, metadata: Metadata | None = None, *, if_absent: bool = False, if_revision: IfRevision = ANY_REVISION
    ) -> ResumableUpload:
        """Begins an upload that is appended to, and goes on after a cut where it was.

        `metadata.size` (bytes), if it is known, tells which append has the end. The arguments and rules are those of
        `begin_multipart`.
        """
        upload = await self.begin_multipart(object_id, metadata, if_absent=if_absent, if_revision=if_revision)
        return self.resumable(object_id, upload.id, None if metadata is None else metadata.size)

    def resumable(self, object_id: ObjectId, upload_id: str, size: int | None = None) -> ResumableUpload:
        """An upload that was begun before, maybe by another process. Asks nothing: the first call finds out.

        Args:
            upload_id: The `id` of what `begin_resumable` returned.
            size: Of the whole object in bytes, if it is known.
        """
        upload = self.multipart(object_id, upload_id)
        if size is not None and (type(size) is not int or size < 0):
            raise InvalidRequestError(f"a size is a number of bytes, not {quoted(size)}")
        return ResumableUpload(object_id, upload.id, self._uploads, size)

    async def sign_put(
        self, object_id: ObjectId, expires_in: timedelta, metadata: Metadata | None = None, *, if_absent: bool = False,
        if_revision: IfRevision = ANY_REVISION, size_max: int | None = None,
    ) -> SignedPut:  # fmt: skip
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
        checked_life(expires_in)  # before an upload is begun, only to be given up
        check_size_max(size_max)
        if not isinstance(self._tiers.long_term, SignedUrls):
            self._links_to(object_id)
        upload = await self._begin_upload(object_id, metadata, if_absent, if_revision, size_max)
        try:
            url = await self._uploads.sign_part(object_id, upload.id, 1, expires_in, size_max, counts=False)
            return SignedPut(url, upload)
        except TieredError:
            with suppress(TieredError):  # recovery gives it up
                await upload.abort()
            raise

    def _links_to(self, object_id: ObjectId) -> Links:
        """What signs links to write where the tier signs none."""
        if self.links is None:
            raise ConfigurationError(
                f"a link to write {object_id} needs the app of tiered.asgi: mount it, and set links.base_url and links.keys"
            )
        return self.links

    async def delete(self, object_id: ObjectId, *, if_revision: IfRevision = ANY_REVISION) -> None:
        """Removes the object. No error if there is none.

        Args:
            if_revision: Only the object with this revision.

        Raises:
            ConditionFailedError: There is another revision, or no object. Nothing was deleted.
            OutcomeUnknownError: It may have happened: ask `outcome`.
        """
        await self._delete(self._writes, object_id, if_revision)

    async def _delete(self, admission: Admission | Share, object_id: ObjectId, if_revision: IfRevision = ANY_REVISION) -> None:
        with self._observer.operation("delete"):
            self._check_may_write()
            _check(object_id)
            condition = checked_condition(if_absent=False, if_revision=if_revision)
            with await self._enter(admission, object_id) as slot:
                await self._writer.delete(WriteInProgress.begin(object_id, self._runtime, condition), slot)

    async def copy(
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
        with self._observer.operation("copy"):
            found = await self._copy(source, destination, checked_condition(if_absent, if_revision))
            return None if found is None else found[0]

    async def rename(
        self, source: ObjectId, destination: ObjectId, *, if_absent: bool = False, if_revision: IfRevision = ANY_REVISION
    ) -> PutResult | None:
        """Copies an object, and then deletes the revision that was copied. None: there is no source.

        It is not one step. Both exist for a moment, and stay if the process dies in between, if the caller is
        cancelled, or if a service fails after the copy. Then any error may be raised, and "nothing happened" is said of
        the source alone. To call it again without a condition is safe. With one, it finds its own copy, and raises
        `ConditionFailedError` for the destination. The arguments and errors are those of `copy`.

        Raises:
            ConditionFailedError: If its `object_id` is the source, the copy was made and stays. Meanwhile the source
                was replaced, and stays, too, or it was deleted or has expired.
            InvalidRequestError: Also if older software wrote the source, so that it has no revision: copy and delete
                it.
        """
        with self._observer.operation("rename"), self._writes.in_steps():
            found = await self._copy(source, destination, checked_condition(if_absent, if_revision), whole=True)
            if found is None:
                return None
            result, revision = found
            with await self._writes.enter_later() as slot:  # also if the store is being closed: that waits for this
                await self._writer.delete(WriteInProgress.begin(source, self._runtime, Condition(revision)), slot)
            return result

    async def _copy(
        self, source: ObjectId, destination: ObjectId, condition: Condition | None, *, whole: bool = False
    ) -> tuple[PutResult, ChangeId | None] | None:
        """Copies. Returns also the revision of the source. `whole`: it must have one."""
        self._check_may_write()
        _check(source)
        _check(destination)
        destination.validate()
        if source == destination:
            raise InvalidRequestError(f"{source} cannot be copied onto itself; name another destination")
        with await self._enter(self._writes, source, destination) as slot:
            found = await self._reader.source(source)
            if found is None:
                return None
            if whole and found.head.revision is None:
                raise InvalidRequestError(f"{source} has no revision, because other software wrote it: copy it, and then delete it")
            if self._policies is not None:
                self._policies.new_object(destination, found.head.metadata, found.head.size, keeps=True)
            write = WriteInProgress.begin(destination, self._runtime, condition)
            return await self._writer.put_copy(write, found.head.metadata, found, slot), found.head.revision

    async def update_metadata(
        self, object_id: ObjectId, change: Callable[[Metadata], Metadata | Awaitable[Metadata]], *, if_revision: IfRevision = ANY_REVISION
    ) -> PutResult | None:
        """Changes the metadata of an object, without its payload passing through here. None: there is no object.

        The result is a new revision, so readers see metadata and payload of one write. The size and the time of
        creation stay. So does the deadline, unless the expiration was changed or is a time to idle: then it begins
        anew. If nothing is different, nothing is written. Raises also what `put` does.

        Args:
            change: Gets the metadata and returns others. It may be an async function. It may be called again, if
                another writer was faster. What it raises reaches you, and nothing is changed then. A text that is not
                ASCII may stay, and none may come, unless `store.unicode_metadata` is set.
            if_revision: As for `put`.

        Raises:
            InvalidRequestError: Also if older software wrote the object, so that it has no revision.
            DanglingTombstoneError: The object's data are lost.
        """
        if not callable(change):
            raise InvalidRequestError(f"pass a function from Metadata to Metadata, not {quoted(change)}")

        async def edit(now: Metadata) -> Metadata:
            with elsewhere_is_an_error("the metadata are as they were: what the function awaited was cancelled elsewhere"):
                changed = change(deepcopy(now))  # it may set items in the mappings, which are dictionaries
                changed = await changed if isawaitable(changed) else changed
            updated = _updated(now, changed, self._runtime.wall_ns())
            self._check_texts(updated, now)
            return updated

        with self._observer.operation("update_metadata"):
            return await self._rewrite(object_id, edit, if_revision)

    async def set_expiry(
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
        with self._observer.operation("set_expiry"):
            check_flags(extend_only=extend_only)
            deadline_ns = deadline_from(at, from_creation)
            now_ns = self._runtime.wall_ns()

            async def edit(now: Metadata) -> Metadata:
                return expiring(now, deadline_ns, now_ns, extend_only=extend_only)

            return await self._rewrite(object_id, edit, if_revision)

    async def _rewrite(
        self, object_id: ObjectId, edit: Callable[[Metadata], Awaitable[Metadata]], if_revision: IfRevision
    ) -> PutResult | None:
        """Copies the object over itself, with other metadata, if it is still what was read."""
        self._check_may_write()
        _check(object_id)
        object_id.validate()
        condition = checked_condition(if_absent=False, if_revision=if_revision)
        with self._writes.in_steps():
            for attempt in range(READ_ATTEMPTS_MAX):
                with await (self._writes.enter_later() if attempt else self._enter(self._writes, object_id)) as slot:
                    found = await self._reader.source(object_id)
                    revision = None if found is None else found.head.revision
                    if condition is not None and condition.revision != revision:
                        raise ConditionFailedError(object_id, revision, f"revision {condition.revision} was asked for, and is not there")
                    if found is None:
                        return None
                    if revision is None:
                        raise InvalidRequestError(f"{object_id} has no revision, because other software wrote it: put it again")
                    slot.lend()  # the caller's function may wait for others
                    metadata = await edit(found.head.metadata)
                    if metadata == found.head.metadata:
                        return PutResult(revision, found.head.tier, found.head.size)
                    if self._policies is not None:
                        self._policies.check_change(object_id, found.head.metadata, metadata)
                    await slot.take_back()
                    write = WriteInProgress.begin(object_id, self._runtime, Condition(revision))
                    try:
                        return await self._writer.put_copy(write, metadata, found, slot)
                    except ConditionFailedError:
                        if condition is not None:
                            raise
        raise UnavailableError(f"{object_id} was changed again and again meanwhile, and its metadata are as they were; try again")

    async def get(
        self, object_id: ObjectId, range: ByteRange | None = None, *, progress: Progress | None = None, decompress: bool = True
    ) -> StoredObject | None:
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
        return await self._get(self._reads, object_id, range, progress, decompress=decompress)

    async def _get(
        self, admission: Admission | Share, object_id: ObjectId, range: ByteRange | None = None, progress: Progress | None = None,
        *, decompress: bool,
    ) -> StoredObject | None:  # fmt: skip
        with self._observer.operation("get"):
            _check(object_id, range=range)
            check_flags(decompress=decompress)
            count = None if progress is None else ProgressCount(progress)
            with await self._enter(admission, object_id, moves=True):
                found = await self._reader.open(object_id, range, count)
                if found is None:
                    return None
                stored, lifetime = found
                if decompress and stored.head.metadata.compression is not None:
                    await _decompressing(stored, range)
                if self._policies is not None:
                    self._policies.spend(object_id, stored.stop - stored.start)
                if isinstance(lifetime.expiration, TimeToIdle):
                    self._touch(object_id, lifetime)
                return stored

    async def head(self, object_id: ObjectId, *, checksum: bool = False) -> ObjectHead | None:
        """All of the object but its bytes. None: there is none, or it has expired. Does not extend a time to idle.

        Args:
            checksum: Tell the crc32c of a small object, too. It is computed from its row, so it says nothing about what
                was put. That of a large object is told in any case, if its tier keeps one.
        """
        return await self._head(self._reads, object_id, checksum=checksum)

    async def _head(self, admission: Admission | Share, object_id: ObjectId, *, checksum: bool = False) -> ObjectHead | None:
        with self._observer.operation("head"):
            _check(object_id)
            check_flags(checksum=checksum)
            with await self._enter(admission, object_id):
                return await self._reader.head(object_id, checksum=checksum)

    async def sign_get(
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
        with self._observer.operation("sign_get"):
            _check(object_id)
            seconds, content_type = checked_life(expires_in), checked_content_type(content_type)
            checked_disposition(disposition)
            with await self._enter(self._reads, object_id):
                found = await self._reader.source(object_id)
            if found is None:
                return None
            if found.head.revision is None:
                raise InvalidRequestError(f"{object_id} has no revision, because other software wrote it: put it again")
            now_ns, blobs = self._runtime.wall_ns(), self._tiers.long_term
            if found.blob and content_type is None and isinstance(blobs, SignedUrls):
                ends_ns = found.head.metadata.time_expires_ns
                good_s = seconds if ends_ns is None else max(1, min(seconds, (ends_ns - now_ns) // NS_PER_S))
                if (url := await blobs.sign_read(found.blob, good_s, content_disposition(disposition, found.head))) is not None:
                    return url
            if self.links is None:
                raise ConfigurationError(
                    f"a link to {object_id} needs the app of tiered.asgi: mount it, and set links.base_url and links.keys"
                    " (only a large object in GCS or S3 with its own content type needs none)"
                )
            return self.links.sign(
                SignedLink("GET", object_id, found.head.revision, -(-now_ns // NS_PER_S) + seconds, content_type, disposition)
            )

    @overload
    def list(
        self, prefix: ObjectPrefix = ..., *, start_after: ObjectId | ObjectPrefix | None = ..., limit: int | None = ...,
        delimiter: None = ..., metadata: bool = ...,
    ) -> AsyncGenerator[ListEntry, None]: ...

    @overload
    def list(
        self, prefix: ObjectPrefix = ..., *, start_after: ObjectId | ObjectPrefix | None = ..., limit: int | None = ...,
        delimiter: str | None, metadata: bool = ...,
    ) -> AsyncGenerator[ListEntry | Folder, None]: ...

    def list(
        self, prefix: ObjectPrefix = ALL, *, start_after: ObjectId | ObjectPrefix | None = None, limit: int | None = None,
        delimiter: str | None = None, metadata: bool = False,
    ) -> AsyncGenerator[ListEntry, None] | AsyncGenerator[ListEntry | Folder, None]:
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
        return self._lister.entries(ListRequest(prefix, start_after, limit, delimiter, metadata))

    async def list_page(
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
        if limit is None or (type(limit) is int and limit > LIST_PAGE_MAX):
            raise InvalidRequestError(f"limit is {quoted(limit)}: a page has from 1 to {LIST_PAGE_MAX} entries")
        if page_token is not None and start_after is not None:
            raise InvalidRequestError("pass page_token or start_after, not both: the token says where its page begins")
        return await self._lister.page(ListRequest(prefix, start_after, limit, delimiter, metadata), page_token)

    def compare(
        self, prefix: ObjectPrefix, object_ids: Requests[ObjectId], *, grace: timedelta | None = None, allow_empty: bool = False
    ) -> AsyncGenerator[Difference, None]:
        """Compares the objects of a prefix with the ids that your own rows name, and yields what only one side has.

        The differences come in the byte order of their paths, after all ids were read. If reading them fails, none
        comes.

        An object that no id names is told only if it was older than the grace when this began, so none is told that
        is written meanwhile. If an id has no object, look at its row again, which may have been deleted meanwhile. What
        has expired is no object. One whose data are lost is: the audit finds it.

        Args:
            prefix: Of which objects.
            object_ids: All that your rows name within the prefix, in any order, also twice. What does not fit into
                128 MiB of memory is kept in a temporary file.
            grace: Longer than it ever takes from the beginning of a write until its row is there. None: two days more
                than `store.upload_age_max_s`, which are 9 days unless you set it.
            allow_empty: Whether all objects may be told if no id comes. Otherwise that is an error, because your rows
                may not have been read.

        Raises:
            InvalidRequestError: Also if an id is not within the prefix.
            UnavailableError: Also if no temporary file can be written.
        """
        comparison = Comparison(prefix, object_ids, grace, allow_empty)
        listing = ListRequest(prefix, None, None, None, False)
        return self._differences(comparison, listing)

    async def _differences(self, comparison: Comparison, listing: ListRequest) -> AsyncGenerator[Difference, None]:
        self._check_open()
        before_ns = comparison.before_ns(self._runtime.wall_ns(), self._settings.store.upload_age_max_s)
        found = comparison.differences(partial(self._lister.entries, listing), self.head, before_ns)
        async with aclosing(found) as differences:
            async for each in differences:
                yield each

    async def outcome(self, error: OutcomeUnknownError) -> Outcome:
        """Says what became of a change that ended with `OutcomeUnknownError`. Ask again while it is PENDING."""
        if not isinstance(error, OutcomeUnknownError) or not isinstance(error.change_id, ChangeId):
            raise InvalidRequestError(f"pass the OutcomeUnknownError that was raised, not {quoted(error)}")
        _check(error.object_id)
        error.object_id.validate()
        self._check_may_write()
        with self._observer.operation("outcome"):
            return await self._writer.outcome(error)

    # --- many at once ----------------------------------------------------------------------------

    def put_many(self, requests: Requests[PutRequest], *, concurrency: int | None = None) -> Bulk[PutRequest, PutResult]:
        """Puts all of them: `async with storage.put_many(requests) as results: async for result in results: …`.

        Each `ItemResult` has a value or an error, and no error ends the others. Items wait where a single put would
        raise `AtCapacityError`. Puts of one id keep their order. Leaving the block early cancels what is under way. All
        bulk calls together hold at most three quarters of the slots.

        Args:
            requests: Read one at a time, while you take the results.
            concurrency: How many puts run at once: by default a quarter of `store.concurrency_max`, and at most 16.
        """
        concurrency = bounded_concurrency(concurrency, self._settings.store)
        share, places = Share(self._writes, concurrency), Share(self._payloads, concurrency)

        async def put(request: PutRequest) -> PutResult:
            return await self._put(share, places, request)

        return Bulk(requests, PutRequest, put, concurrency)

    def delete_many(self, object_ids: Requests[ObjectId], *, concurrency: int | None = None) -> Bulk[ObjectId, None]:
        """Deletes all of them. The rules are those of `put_many`."""
        concurrency = bounded_concurrency(concurrency, self._settings.store)
        return Bulk(object_ids, ObjectId, partial(self._delete, Share(self._writes, concurrency)), concurrency)

    def get_many(
        self, object_ids: Requests[ObjectId], *, concurrency: int | None = None, payload_bytes_max: int = PAYLOAD_BYTES_MAX,
        decompress: bool = True,
    ) -> Bulk[ObjectId, LoadedObject | None]:
        """Reads all of them whole. The arguments and rules are those of `put_many`. None: there is none, or it has
        expired.

        At most `concurrency` + 1 payloads are in memory at a time.

        Args:
            payload_bytes_max: How many bytes each may have. A larger object is not read: its error is
                `InvalidRequestError`. Use `get`, which streams it.
            decompress: As for `get`.
        """
        check_bytes_max(payload_bytes_max)
        check_flags(decompress=decompress)
        concurrency = bounded_concurrency(concurrency, self._settings.store)
        share = Share(self._reads, concurrency)

        async def get(object_id: ObjectId) -> LoadedObject | None:
            return await load(await self._get(share, object_id, decompress=decompress), payload_bytes_max)

        return Bulk(object_ids, ObjectId, get, concurrency)

    def head_many(
        self, object_ids: Requests[ObjectId], *, concurrency: int | None = None, checksum: bool = False
    ) -> Bulk[ObjectId, ObjectHead | None]:
        """The heads of all of them. The arguments and rules are those of `put_many`. None: there is none, or it has
        expired.

        Args:
            checksum: As for `head`.
        """
        check_flags(checksum=checksum)
        concurrency = bounded_concurrency(concurrency, self._settings.store)
        return Bulk(object_ids, ObjectId, partial(self._head, Share(self._reads, concurrency), checksum=checksum), concurrency)

    # --- beside ----------------------------------------------------------------------------------

    def _check_may_write(self) -> None:
        if not self._may_write:
            raise ConfigurationError("this store was opened to read only: open it without writes=False to put or delete")

    def _check_texts(self, metadata: Metadata, stored: Metadata | None = None) -> None:
        """What is stored already may stay: a copy, and a change of something else, lose nothing."""
        if not self._settings.store.unicode_metadata:
            refuse_unicode_in(metadata, stored)

    def _check_new(self, object_id: ObjectId, metadata: Metadata, size: int, *, keeps: bool) -> None:
        """Raises the `InvalidRequestError` of a put of so many bytes that no service needs to be asked for.

        `keeps`: its deadline is kept.
        """
        self._check_texts(metadata)
        if self._policies is not None:
            self._policies.new_object(object_id, metadata, size, keeps=keeps)

    def _check_open(self) -> None:
        if self._home is not None:
            self._home.check()  # an open upload, a listing and bulk work come here, too
        if not self._open:
            raise InvalidRequestError("the storage is not open; use it inside 'async with'")

    async def _enter(self, admission: Admission | Share, *named: ObjectId | ObjectPrefix, moves: bool = False, waits: bool = False) -> Slot:
        """`named`, `moves`, `waits`: as in `Policies.admit`; what names nothing is not counted. Bulk work waits."""
        self._check_open()
        if self._policies is not None and named:
            await self._policies.admit(named, moves=moves, waits=waits or isinstance(admission, Share))
            self._check_open()  # it may have waited long
        if (until := anyio.current_effective_deadline()) < math.inf and until <= anyio.current_time():
            await anyio.lowlevel.checkpoint()  # the caller's time is up: it is cancelled here, before anything is sent
        return await admission.enter()

    async def _enter_listing(self, prefix: ObjectPrefix, has_begun: bool) -> Slot:
        return await self._enter(self._reads, prefix, waits=has_begun)

    def _touch(self, object_id: ObjectId, read: Lifetime) -> None:
        """Starts to extend the deadline of an object with a time to idle. The reader does not wait for it. A store that
        was opened for reading writes nothing, not even this.

        One touch runs at a time for each object, and a limited number in all. What is beyond that is left to the next
        read.
        """
        path = object_id.path
        if not self._may_write or path in self._touching or not self._reader.wants_touch(read):
            return
        if (slot := self._touches.try_enter()) is not None:
            self._touching.add(path)
            self._under_way.run_beside(partial(self._run_touch, object_id, read), slot)

    def _note_dangling(self, path: str, blob: str) -> None:
        """Starts to note that data are lost. The reader does not wait for it. A store that was opened for reading
        writes nothing."""
        if self._may_write and self._dangling.add(path, blob) and (slot := self._notes.try_enter()) is not None:
            self._under_way.run_beside(self._dangling.run, slot)

    async def _run_touch(self, object_id: ObjectId, read: Lifetime) -> None:
        try:
            with anyio.move_on_after(self._settings.store.answer_budget_s):
                await self._reader.touch(object_id, read)
        except TieredError as error:
            events.warning("touch_failed", error, object=str(object_id))
        finally:
            self._touching.discard(object_id.path)


class _OpenUploads:
    """What the store does for its open uploads."""

    def __init__(self, storage: TieredStorage) -> None:
        self._storage = storage

    async def send(
        self, object_id: ObjectId, payload: Payload, checksums: Mapping[str, str] | None, piece_bytes: int, keep: Keep,
        kept: int | None = None,
    ) -> None:  # fmt: skip
        storage = self._storage
        elsewhere = elsewhere_is_an_error("what the payload awaited was cancelled elsewhere, and nothing from there on was kept")
        with storage._observer.operation("upload_part" if kept is None else "append"), elsewhere:
            source = chunks(payload, views=VIEW_BYTES)
            source.offset = kept or 0
            with storage._patience(object_id, source, asks=False):
                async with source:
                    storage._check_may_write()
                    if checksums is not None:
                        source.compare_with(DeclaredChecksums(checksums))
                    if source.waits:
                        storage._writes.refuse_if_full()
                    counted = () if kept is not None else (object_id,)
                    with await storage._enter(storage._payloads if source.waits else storage._writes, *counted, moves=True) as slot:
                        if not source.waits:
                            slot.lend()  # each piece takes one of its own
                        if storage._policies is not None:
                            storage._policies.receive(object_id, 0, source, kept=kept or 0)
                        await _in_pieces(source, piece_bytes, keep)

    async def ask(self, object_id: ObjectId, upload_id: ChangeId) -> None:
        """Raises `UploadEndedError` unless the upload is open, before anything is read of a part that `send` sends
        next, with `kept`: both are one call.
        """
        storage = self._storage
        storage._check_may_write()
        with await storage._enter(storage._reads, object_id, moves=True):
            await storage._assembler.check_open(object_id, upload_id)

    async def put_part(self, object_id: ObjectId, upload_id: ChangeId, number: int, piece: Sequence[Chunk]) -> Part:
        with await self._storage._writes.enter_later():  # it was admitted by `send`, and its bytes were read
            return await self._storage._assembler.put_part(object_id, upload_id, number, piece)

    async def parts(self, object_id: ObjectId, upload_id: ChangeId) -> Sequence[Part]:
        storage = self._storage
        with storage._observer.operation("list_parts"), await storage._enter(storage._reads, object_id):
            return await storage._assembler.parts(object_id, upload_id)

    async def appended(self, object_id: ObjectId, upload_id: ChangeId) -> int:
        storage = self._storage
        with storage._observer.operation("list_parts"), await storage._enter(storage._reads, object_id):
            return await storage._assembler.appended(object_id, upload_id)

    async def take(self, object_id: ObjectId, upload_id: ChangeId, offset: int, part_bytes: int | None) -> Append:
        storage = self._storage
        with storage._observer.operation("append"):
            storage._check_may_write()
            with await storage._enter(storage._writes, object_id, moves=True):
                return await storage._assembler.take(object_id, upload_id, offset, part_bytes, APPENDED_PART_BYTES)

    async def append(self, object_id: ObjectId, append: Append, piece: Sequence[Chunk], *, is_last: bool) -> Append:
        with await self._storage._writes.enter_later():  # as in `put_part`
            return await self._storage._assembler.append(object_id, append, piece, is_last=is_last)

    async def give_back(self, object_id: ObjectId, append: Append) -> None:
        await self._storage._assembler.give_back(object_id, append)

    async def complete(
        self, object_id: ObjectId, upload_id: ChangeId, parts: Sequence[Part] | None, *, appended: bool = False
    ) -> PutResult:
        with self._storage._observer.operation("complete_multipart"):
            self._storage._check_may_write()
            listed = None if parts is None else _listed(parts)
            with await self._storage._enter(self._storage._writes, object_id) as slot:
                return await self._storage._assembler.complete(object_id, upload_id, listed, slot, appended=appended)

    async def abort(self, object_id: ObjectId, upload_id: ChangeId) -> None:
        with self._storage._observer.operation("abort_multipart"):
            self._storage._check_may_write()
            with await self._storage._enter(self._storage._writes) as slot:
                await self._storage._assembler.abort(object_id, upload_id, slot)


    async def sign_part(
        self, object_id: ObjectId, upload_id: ChangeId, number: int, expires_in: timedelta, size_max: int | None, *,
        counts: bool = True,
    ) -> str:  # fmt: skip
        storage, seconds = self._storage, checked_life(expires_in)
        with storage._observer.operation("sign_part"):
            storage._check_may_write()
            with await storage._enter(storage._reads, *([object_id] if counts else [])):
                bounded = counts and size_max is not None  # else the upload itself remembers it
                url = await storage._assembler.sign_part(object_id, upload_id, number, seconds, bounded=bounded)
            if url is not None:
                return url
            ends_s = -(-storage._runtime.wall_ns() // NS_PER_S) + seconds
            if storage._policies is not None:
                size_max = storage._policies.bytes_max(object_id, size_max)
            return storage._links_to(object_id).sign(SignedLink("PUT", object_id, upload_id, ends_s, part=number, size_max=size_max))


async def _in_pieces(source: Chunks, piece_bytes: int, keep: Keep) -> None:
    piece: list[Chunk] = []
    size, is_first = 0, True
    async for chunk in source:
        view = memoryview(chunk)
        while size + len(view) >= piece_bytes:
            cut = piece_bytes - size
            await keep([*piece, view[:cut]])
            piece, size, is_first, view = [], 0, False, view[cut:]
        if view:
            piece.append(view)
            size += len(view)
    if piece or is_first:
        await keep(piece)


def _listed(parts: object) -> list[Part]:
    listed = list(parts) if isinstance(parts, Iterable) and not isinstance(parts, str | bytes | Mapping) else None
    if listed is None or not all(isinstance(part, Part) for part in listed):
        raise InvalidRequestError(f"parts is a list of what upload_part returned, or None for all, not {quoted(parts)}")
    return listed


def _updated(before: Metadata, after: object, now_ns: int) -> Metadata:
    """What a caller has made of the metadata, with the facts that he cannot change."""
    if not isinstance(after, Metadata):
        raise InvalidRequestError(f"the function must return Metadata, not {quoted(after)}")
    checked = replace(after, size=before.size, time_created_ns=before.time_created_ns, time_expires_ns=None)
    if checked == before.with_facts(time_expires_ns=None):
        return before
    if checked.expiration != before.expiration or isinstance(checked.expiration, TimeToIdle):
        return checked.stamped(now_ns)
    return checked.with_facts(time_expires_ns=before.time_expires_ns)


def _asking(custom_at_end: object, metadata: Metadata, check: Callable[[Metadata], None]) -> Callable[[], Awaitable[Mapping[str, str]]]:
    """Asks a caller's function, and returns all custom metadata together, checked."""
    if not callable(custom_at_end):
        raise InvalidRequestError(f"custom_at_end is a function that returns a mapping of text to text, not {quoted(custom_at_end)}")

    async def ask() -> Mapping[str, str]:
        try:
            told = custom_at_end()
            told = await told if isawaitable(told) else told
        except StopAsyncIteration as error:  # it would be taken for the end of the payload
            raise RuntimeError("custom_at_end raised StopAsyncIteration") from error
        if not isinstance(told, Mapping):
            raise InvalidRequestError(f"custom_at_end must return a mapping of text to text, not {quoted(told)}")
        whole = replace(metadata, custom={**metadata.custom, **told})
        check(whole)
        return whole.custom

    return ask


def _as_stored(request: PutRequest, source: Chunks, metadata: Metadata) -> tuple[Chunks, Metadata]:
    """The payload and its metadata as they are stored: compressed, if that was asked for."""
    stored = request.payload if isinstance(request.payload, StoredObject) else None
    is_all = stored is not None and (stored.start, stored.stop) == (0, stored.size)  # a part of it is no compressed stream
    if stored is not None and is_all and stored.metadata.compression is not None and metadata.compression is None:
        raise InvalidRequestError(
            f"{stored.object_id} gives {stored.metadata.compression}, as it is stored, and the metadata do not say so:"
            " pass those of what you got (metadata=stored.metadata), or set their compression"
        )
    if request.compress is None:
        if metadata.compression is not None and stored is not None and stored.decompressed:
            raise InvalidRequestError(
                f"{stored.object_id} is decompressed while it is read, and metadata.compression says that the payload is"
                " compressed: leave that out, and pass compress='zstd', or get it with decompress=False"
            )
        return source, metadata
    if request.compress != "zstd":
        raise InvalidRequestError(f"compress is 'zstd' or None, not {quoted(request.compress)}")
    if metadata.compression is not None:
        raise InvalidRequestError("pass compress, or metadata.compression if the payload is compressed already, not both")
    return Compressed(source, metadata.size), metadata.with_facts(compression=COMPRESSION, size=None)


async def _decompressing(stored: StoredObject, range: ByteRange | None) -> None:
    """Lets the object decompress what it gives, or closes it."""
    try:
        stored._decompress(range)
    except TieredError:
        await stored.aclose()
        raise


def _stalled(object_id: ObjectId, idle_s: float) -> InvalidRequestError:
    return InvalidRequestError(
        f"{object_id} was not stored: its payload gave no byte for {idle_s:g} s and was ended; "
        "send it faster, or raise store.payload_idle_s"
    )


def _check(object_id: object, *, metadata: object = None, range: object = None) -> None:
    if not isinstance(object_id, ObjectId):
        raise InvalidRequestError(f"pass an ObjectId, not {quoted(object_id)}: ObjectId.create(…), or ObjectId.parse(text)")
    refuse_reserved(object_id.usecase)
    if metadata is not None and not isinstance(metadata, Metadata):
        raise InvalidRequestError(f"metadata is Metadata(…), not {quoted(metadata)}")
    if range is not None and not isinstance(range, ByteRange):
        raise InvalidRequestError(f"a range is ByteRange(start, stop), not {quoted(range)}")
