"""`TieredStorage`: put, get, head, delete, list over two tiers, and many of them at once.

Each operation checks its arguments, takes a slot, and hands over to `protocol/reading.py` or `protocol/writing.py`. A
slot bounds what is under way. A write gives it back when its clean-up is done, after its caller was answered. `get`
gives it back before the bytes are read. So slots do not bound how many objects are open for reading; only a service's
connections do (`gcs.connections_max`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Self

import anyio

from changelog.base.events import events
from changelog.base.observe import SILENT, Observer
from changelog.base.runtime import Runtime, instance_name
from changelog.base.tasks import elsewhere_is_an_error
from changelog.change import ChangeId
from changelog.heartbeat import Heartbeat
from changelog.log import ChangeLog
from tiered.bulk import PAYLOAD_BYTES_MAX, Bulk, LoadedObject, PutRequest, Requests, bounded_concurrency, check_bytes_max, load
from tiered.errors import (
    ConditionFailedError,
    ConfigurationError,
    InvalidRequestError,
    OutcomeUnknownError,
    TieredError,
    UnavailableError,
)
from tiered.metadata import Metadata, TimeToIdle, deadline_from, expiring, is_expired
from tiered.object_id import ROW_KEY_BYTES_MAX, ObjectId, refuse_reserved
from tiered.payload.pieces import Pieces, split_head
from tiered.payload.streams import Payload, pieces
from tiered.protocol.admission import Admission, Share, Slot
from tiered.protocol.backends import ByteRange, Inline, RowPage, RowState, Tiers, Tombstone
from tiered.protocol.conditions import ANY_REVISION, Condition, IfRevision, checked_condition
from tiered.protocol.reading import Reader
from tiered.protocol.retry import ask
from tiered.protocol.under_way import Write, WritesUnderWay
from tiered.protocol.writing import Body, Outcome, Writer, check_declared
from tiered.settings import Settings
from tiered.stored import ObjectHead, PutResult, StoredObject
from tiered.text import plain, shown

LIST_PAGE = 1000


class TieredStorage:
    """An open store: `async with TieredStorage(tiers, log, runtime, settings) as storage`, or `open_storage(…)`.

    Many tasks of one event loop may call its methods at the same time. Each method may raise `UnavailableError`
    (nothing happened; try again), `AtCapacityError` (it did not begin; send less), `InvalidRequestError` (fix the call)
    or `CorruptRecordError` (an operator must look).
    """

    def __init__(
        self, tiers: Tiers, log: ChangeLog, runtime: Runtime, settings: Settings, *, writes: bool = True, observer: Observer = SILENT
    ) -> None:
        """`writes` False: the backends were opened for reading only. `observer` is told of each operation."""
        self._tiers = tiers
        self._runtime = runtime
        self._settings = settings
        self._observer = observer
        self.instance = settings.instance or instance_name(runtime, "store")
        store = settings.store
        # Apart, so that writers who wait for a changelog that is down, and touches, do not keep readers out.
        self._reads = Admission(store.concurrency_max, store.queue_max, store.queue_wait_s)
        self._writes = Admission(store.concurrency_max, store.queue_max, store.queue_wait_s)
        self._touches = Admission(store.concurrency_max, queue_max=0, queue_wait_s=0)
        heartbeat = Heartbeat(log, runtime, self.instance, settings.lease.heartbeat_interval_s, settings.lease.expiry_s)
        self._under_way = WritesUnderWay(heartbeat, recovered=log.durable)
        self._writer = Writer(tiers, log, runtime, settings, heartbeat, self._under_way, observer)
        self._reader = Reader(tiers, runtime, settings, observer)
        self._touching: set[str] = set()
        self._may_write = writes
        self._entered = False
        self._open = False

    # --- life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._entered:
            raise InvalidRequestError("a storage is entered once; open another")
        self._entered = True
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
            await self._under_way.__aexit__(kind, error, trace)

    async def aclose(self) -> list[ChangeId]:
        """Takes no more work, and waits up to `store.drain_budget_s` seconds for what is under way.

        Returns the changes that are left to recovery, and logs them. `async with` calls it. Safe to repeat. If the
        caller is cancelled meanwhile, the wait goes on to its end first.
        """
        self._open = False
        return await self._under_way.drain(self._wait_idle, self._settings.store.drain_budget_s)

    def _sides(self) -> tuple[tuple[str, Admission], ...]:
        return ("read", self._reads), ("write", self._writes), ("touch", self._touches)

    async def _wait_idle(self) -> None:
        await self._writes.wait_idle()
        await self._reads.wait_idle()
        await self._touches.wait_idle()

    @property
    def dangling_found(self) -> int:
        """How many reads have found a tombstone whose blob is gone since the store was opened."""
        return self._reader.dangling

    # --- operations ------------------------------------------------------------------------------

    async def put(
        self, object_id: ObjectId, payload: Payload, metadata: Metadata | None = None, *,
        if_absent: bool = False, if_revision: IfRevision = ANY_REVISION,
    ) -> PutResult:
        """Stores the payload under the id, and replaces what is there. It is durable when the call returns.

        The payload is bytes, a path, an open binary file, an iterator or async iterator of bytes of any length, or a
        `StoredObject`, which is closed at the end. The length of a regular file is fixed when it is opened. If
        `metadata.size` (bytes) is given, the payload must have that size. What may block is read in a thread of its
        own; `AtCapacityError` is raised when there are too many of these (`tiered/payload/own_thread.py`).

        `if_absent`: only if there is no object, or it has expired. `if_revision`: only over the object with this
        revision, which a `PutResult` or an `ObjectHead` shows. Otherwise `ConditionFailedError` is raised (nothing was
        stored). Part of the payload may have been read then.

        Raises also `OutcomeUnknownError` (it may have happened; ask `outcome`), and whatever the payload's own iterator
        raises (nothing was stored). If something that this iterator awaits is cancelled, and this task is not, the
        error is `CancelledElsewhereError` (nothing was stored).
        """
        return await self._put(self._writes, PutRequest(object_id, payload, metadata, if_absent, if_revision))

    async def _put(self, admission: Admission | Share, request: PutRequest) -> PutResult:
        # Outside of the payload's own scopes: one may be open between two pieces, and its end is not the caller's.
        elsewhere = elsewhere_is_an_error("nothing was stored: what the payload awaited was cancelled elsewhere")
        with self._observer.operation("put"), elsewhere:
            async with aclosing(pieces(request.payload)) as source:
                self._check_may_write()
                object_id = request.object_id
                metadata = Metadata() if request.metadata is None else request.metadata
                _check(object_id, metadata=metadata)
                object_id.validate()
                condition = checked_condition(request.if_absent, request.if_revision)
                # Built and checked anew: a mapping in it may have been changed since it was made.
                return await self._put_pieces(admission, object_id, source, replace(metadata), condition)

    async def _put_pieces(
        self, admission: Admission | Share, object_id: ObjectId, source: Pieces, metadata: Metadata, condition: Condition | None
    ) -> PutResult:
        with await self._enter(admission) as slot:
            write = Write.begin(object_id, self._runtime, condition)
            stamped = metadata.stamped(write.begun_ns)
            head, head_size, rest = await split_head(source, self._settings.inline_bytes_max)
            if rest is not None:
                # A blob's time of creation is the service's own, unless the caller told one.
                beside = stamped.with_facts(time_created_ns=metadata.time_created_ns)
                size = rest.size if metadata.size is None else metadata.size
                return await self._writer.put_large(write, beside, Body(head, rest, size), slot)
            check_declared(metadata, head_size)
            return await self._writer.put_small(write, stamped.with_facts(size=head_size), b"".join(head), slot)

    async def delete(self, object_id: ObjectId, *, if_revision: IfRevision = ANY_REVISION) -> None:
        """Removes the object. No error if there is none. Raises also `OutcomeUnknownError` (ask `outcome`).

        `if_revision`: only the object with this revision. Otherwise `ConditionFailedError` is raised, also if there is
        no object (nothing was deleted).
        """
        await self._delete(self._writes, object_id, if_revision)

    async def _delete(self, admission: Admission | Share, object_id: ObjectId, if_revision: IfRevision = ANY_REVISION) -> None:
        with self._observer.operation("delete"):
            self._check_may_write()
            _check(object_id)
            condition = checked_condition(if_absent=False, if_revision=if_revision)
            with await self._enter(admission) as slot:
                await self._writer.delete(Write.begin(object_id, self._runtime, condition), slot)

    async def copy(
        self, source: ObjectId, destination: ObjectId, *, if_absent: bool = False, if_revision: IfRevision = ANY_REVISION
    ) -> PutResult | None:
        """Copies an object within the store, without its payload passing through here. None: there is no source.

        The copy is a new revision with the metadata of the source, its time of creation and its deadline. The
        conditions are those of `put` and are about the destination. Raises as `put` does, and `UnavailableError` also
        if the source was replaced meanwhile.
        """
        with self._observer.operation("copy"):
            found = await self._copy(source, destination, checked_condition(if_absent, if_revision))
            return None if found is None else found[0]

    async def rename(
        self, source: ObjectId, destination: ObjectId, *, if_absent: bool = False, if_revision: IfRevision = ANY_REVISION
    ) -> PutResult | None:
        """Copies an object, as `copy` does, and then deletes the revision that was copied. None: there is no source.

        It is not one step: for a moment both exist, and both stay if the process dies in between or an error is raised
        after the copy. To call it again is safe. `ConditionFailedError`, and its `object_id` is the source: the source
        was replaced after it was copied, and stays. `InvalidRequestError`: older software wrote the source, so it has
        no revision; copy and delete it.
        """
        with self._observer.operation("rename"):
            found = await self._copy(source, destination, checked_condition(if_absent, if_revision), whole=True)
            if found is None:
                return None
            result, revision = found
            with await self._enter(self._writes) as slot:
                await self._writer.delete(Write.begin(source, self._runtime, Condition(revision)), slot)
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
        with await self._enter(self._writes) as slot:
            found = await self._reader.source(source)
            if found is None:
                return None
            if whole and found.head.revision is None:
                raise InvalidRequestError(f"{source} has no revision, because older software wrote it: copy it, and then delete it")
            write = Write.begin(destination, self._runtime, condition)
            return await self._writer.put_copy(write, found.head.metadata, found, slot), found.head.revision

    async def update_metadata(
        self, object_id: ObjectId, change: Callable[[Metadata], Metadata], *, if_revision: IfRevision = ANY_REVISION
    ) -> PutResult | None:
        """Changes the metadata of an object, without its payload passing through here. None: there is no object.

        `change` gets the metadata and returns others. It may be called again, if another writer was faster. What it
        raises reaches you, and nothing is changed then. The size and the time of creation stay. So does the deadline,
        unless the expiration was changed or is a time to idle: then it begins anew. If nothing is different, nothing
        is written.

        The result is a new revision, so readers see metadata and payload of one write. `if_revision`: as for `put`.
        Raises as `put` does, and `InvalidRequestError` also if older software wrote the object, so that it has no
        revision.
        """
        if not callable(change):
            raise InvalidRequestError(f"pass a function from Metadata to Metadata, not {shown(change)}")
        with self._observer.operation("update_metadata"):
            return await self._rewrite(object_id, lambda now: _updated(now, change(now), self._runtime.wall_ns()), if_revision)

    async def set_expiry(
        self, object_id: ObjectId, *, at: datetime | None = None, from_creation: timedelta | None = None, extend_only: bool = False,
        if_revision: IfRevision = ANY_REVISION,
    ) -> PutResult | None:
        """Sets when an object expires: `at` a time, or `from_creation` so much later; neither: never.

        `extend_only`: an object that lives longer stays as it is. Everything else is as for `update_metadata`. `at` has
        a time zone and is in the future.
        """
        with self._observer.operation("set_expiry"):
            if not isinstance(extend_only, bool):
                raise InvalidRequestError(f"extend_only is True or False, not {shown(extend_only)}")
            deadline_ns = deadline_from(at, from_creation)
            now_ns = self._runtime.wall_ns()
            return await self._rewrite(object_id, lambda now: expiring(now, deadline_ns, now_ns, extend_only=extend_only), if_revision)

    async def _rewrite(self, object_id: ObjectId, edit: Callable[[Metadata], Metadata], if_revision: IfRevision) -> PutResult | None:
        """Copies the object over itself, with other metadata, if it is still what was read."""
        self._check_may_write()
        _check(object_id)
        object_id.validate()
        condition = checked_condition(if_absent=False, if_revision=if_revision)
        for _ in range(self._settings.store.read_attempts_max):
            with await self._enter(self._writes) as slot:
                found = await self._reader.source(object_id)
                revision = None if found is None else found.head.revision
                if condition is not None and condition.revision != revision:
                    raise ConditionFailedError(object_id, revision, f"revision {condition.revision} was asked for, and is not there")
                if found is None:
                    return None
                if revision is None:
                    raise InvalidRequestError(f"{object_id} has no revision, because older software wrote it: put it again")
                metadata = edit(found.head.metadata)
                if metadata == found.head.metadata:
                    return PutResult(revision, found.head.tier, found.head.size)
                write = Write.begin(object_id, self._runtime, Condition(revision))
                try:
                    return await self._writer.put_copy(write, metadata, found, slot)
                except ConditionFailedError:
                    if condition is not None:
                        raise
        raise UnavailableError(f"{object_id} was changed again and again meanwhile, and its metadata are as they were; try again")

    async def get(self, object_id: ObjectId, range: ByteRange | None = None) -> StoredObject | None:
        """Opens the object for reading. None: there is none, or it has expired.

        Raises also `InvalidRequestError` (the range begins after the object's end) and `DanglingTombstoneError` (the
        object's data is lost).
        """
        return await self._get(self._reads, object_id, range)

    async def _get(self, admission: Admission | Share, object_id: ObjectId, range: ByteRange | None = None) -> StoredObject | None:
        with self._observer.operation("get"):
            _check(object_id, range=range)
            with await self._enter(admission):
                found = await self._reader.open(object_id, range)
                if found is None:
                    return None
                stored, state = found
                self._touch(object_id, state)
                return stored

    async def head(self, object_id: ObjectId) -> ObjectHead | None:
        """All of the object but its bytes. None: there is none, or it has expired. Does not extend a time to idle."""
        with self._observer.operation("head"):
            _check(object_id)
            with await self._enter(self._reads):
                return await self._reader.head(object_id)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectId]:
        """Yields the ids whose storage path begins with `prefix`, in the byte order of the paths, without expired ones.

        It reads page by page while others write: an object that is written or deleted meanwhile may be listed or not. A
        damaged row does not end the listing. Its id is listed and logged, and `get` says what is wrong with it
        (`CorruptRecordError`). If its key is no object id, it is only logged.
        """
        prefix = _checked_prefix(prefix)
        start: bytes | None = b""
        while start is not None:
            with self._observer.operation("list"), await self._enter(self._reads):
                page = await self._page(prefix, start)
            now_ns = self._runtime.wall_ns()
            for damaged in page.corrupt:
                events.warning("corrupt_row", damaged.fault, path=damaged.path)
            for row in page.rows:
                if not is_expired(row.deadline_ns, now_ns) and (object_id := _parse_stored(row.path)) is not None:
                    yield object_id
            start = page.next_start

    async def _page(self, prefix: str, start: bytes) -> RowPage:
        budget_s = self._settings.store.answer_budget_s
        return await ask(lambda: self._tiers.high_volume.scan(prefix, start, LIST_PAGE), self._runtime, budget_s, self._observer)

    async def outcome(self, error: OutcomeUnknownError) -> Outcome:
        """Says what became of a change that ended with `OutcomeUnknownError`. Ask again while it is PENDING."""
        if not isinstance(error, OutcomeUnknownError) or not isinstance(error.change_id, ChangeId):
            raise InvalidRequestError(f"pass the OutcomeUnknownError that was raised, not {shown(error)}")
        _check(error.object_id)
        error.object_id.validate()
        self._check_may_write()
        with self._observer.operation("outcome"):
            return await self._writer.outcome(error)

    # --- many at once ----------------------------------------------------------------------------

    def put_many(self, requests: Requests[PutRequest], *, concurrency: int | None = None) -> Bulk[PutRequest, PutResult]:
        """Puts all of them: `async with storage.put_many(requests) as results: async for result in results: …`.

        At most `concurrency` puts run at once: by default a quarter of `store.concurrency_max`, and at most 16. They
        begin while you take the results. Each `ItemResult` has a value or an error, and no error ends the others. Items
        wait where a single put would raise `AtCapacityError`. Puts of one id keep their order. Leaving the block early
        cancels what is under way.
        """
        concurrency = bounded_concurrency(concurrency, self._settings.store.concurrency_max)
        share = Share(self._writes, concurrency)

        async def put(request: PutRequest) -> PutResult:
            return await self._put(share, request)

        return Bulk(requests, PutRequest, put, concurrency)

    def delete_many(self, object_ids: Requests[ObjectId], *, concurrency: int | None = None) -> Bulk[ObjectId, None]:
        """Deletes all of them. The rules are those of `put_many`."""
        concurrency = bounded_concurrency(concurrency, self._settings.store.concurrency_max)
        return Bulk(object_ids, ObjectId, partial(self._delete, Share(self._writes, concurrency)), concurrency)

    def get_many(
        self, object_ids: Requests[ObjectId], *, concurrency: int | None = None, payload_bytes_max: int = PAYLOAD_BYTES_MAX
    ) -> Bulk[ObjectId, LoadedObject | None]:
        """Reads all of them whole. The rules are those of `put_many`. None: there is none, or it has expired.

        At most `concurrency` + 1 payloads are in memory at a time, of at most `payload_bytes_max` bytes each. A larger
        object is not read: its error is `InvalidRequestError`. Use `get`, which streams it.
        """
        check_bytes_max(payload_bytes_max)
        concurrency = bounded_concurrency(concurrency, self._settings.store.concurrency_max)
        share = Share(self._reads, concurrency)

        async def get(object_id: ObjectId) -> LoadedObject | None:
            return await load(await self._get(share, object_id), payload_bytes_max)

        return Bulk(object_ids, ObjectId, get, concurrency)

    # --- beside ----------------------------------------------------------------------------------

    def _check_may_write(self) -> None:
        if not self._may_write:
            raise ConfigurationError("this store was opened to read only: open it without writes=False to put or delete")

    async def _enter(self, admission: Admission | Share) -> Slot:
        if not self._open:
            raise InvalidRequestError("the storage is not open; use it inside 'async with'")
        return await admission.enter()

    def _touch(self, object_id: ObjectId, state: RowState) -> None:
        """Starts to extend the deadline of an object with a time to idle. The reader does not wait for it.

        One touch runs at a time for each object, and a limited number in all. What is beyond that is left to the next
        read.
        """
        path = object_id.path
        if state is None or path in self._touching or not self._reader.wants_touch(state):
            return
        if (slot := self._touches.try_enter()) is not None:
            self._touching.add(path)
            self._under_way.run_beside(partial(self._run_touch, object_id, state), slot)

    async def _run_touch(self, object_id: ObjectId, state: Inline | Tombstone) -> None:
        try:
            with anyio.move_on_after(self._settings.store.answer_budget_s):
                await self._reader.touch(object_id, state)
        except TieredError as error:
            events.warning("touch_failed", error, object=str(object_id))
        finally:
            self._touching.discard(object_id.path)


def _updated(before: Metadata, after: object, now_ns: int) -> Metadata:
    """What a caller has made of the metadata, with the facts that he cannot change."""
    if not isinstance(after, Metadata):
        raise InvalidRequestError(f"the function must return Metadata, not {shown(after)}")
    checked = replace(after, size=before.size, time_created_ns=before.time_created_ns, time_expires_ns=None)
    if checked == before.with_facts(time_expires_ns=None):
        return before
    if checked.expiration != before.expiration or isinstance(checked.expiration, TimeToIdle):
        return checked.stamped(now_ns)
    return checked.with_facts(time_expires_ns=before.time_expires_ns)


def _checked_prefix(prefix: object) -> str:
    text = plain("the prefix, such as 'photos/org.17/',", prefix)
    if len(text.encode()) > ROW_KEY_BYTES_MAX:
        raise InvalidRequestError(f"the prefix {shown(text)} has more than the {ROW_KEY_BYTES_MAX} bytes that a stored path has at most")
    return text


def _check(object_id: object, *, metadata: object = None, range: object = None) -> None:
    if not isinstance(object_id, ObjectId):
        raise InvalidRequestError(f"pass an ObjectId, not {shown(object_id)}: ObjectId.create(…), or ObjectId.parse(text)")
    refuse_reserved(object_id.usecase)
    if metadata is not None and not isinstance(metadata, Metadata):
        raise InvalidRequestError(f"metadata is Metadata(…), not {shown(metadata)}")
    if range is not None and not isinstance(range, ByteRange):
        raise InvalidRequestError(f"a range is ByteRange(start, stop), not {shown(range)}")


def _parse_stored(path: str) -> ObjectId | None:
    try:
        return ObjectId.parse(path)
    except InvalidRequestError as error:
        events.warning("unparseable_row", f"it is skipped: {error}")
        return None
