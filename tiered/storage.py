"""`TieredStorage`: put, get, head, delete, list over two tiers. The protocol, as the caller's side sees it.

    small put, delete    no tombstone in the way: ONE row operation, no changelog entry
                         a tombstone in the way: a change with `old`, as below, without an upload
    large put            1  read the row and open the upload, at once; record {object, new, old, upload}
                            while the payload streams, its last piece withheld
                         2  finalise when the record is durable, if the lease still holds
                         3  swap                                                      <- the commit point
                         4  answer the caller                                             (tiered/protocol/commit.py)
                         5  clean up, 6 forget: in the storage's own tasks, after the answer

*Cancelled or failed* before step 3: the change is abandoned and cleaned up in the background. From step 3 on it
is carried through whatever becomes of the caller. *Crash*: recovery finishes what the entry names. Bounded:
an operation holds its slot until its clean-up is done; the payload is never held whole unless it is inline.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Self

import anyio

from changelog.base.runtime import Runtime, instance_name
from changelog.base.tasks import elsewhere_is_an_error, is_asked_to_end
from changelog.change import Change, ChangeId
from changelog.log import ChangeLog
from tiered.bulk import PAYLOAD_BYTES_MAX, Bulk, LoadedObject, PutRequest, Requests, bounded_concurrency, check_bytes_max, load
from tiered.errors import (
    ConfigurationError,
    InvalidRequestError,
    OutcomeUnknownError,
    TieredError,
    UnavailableError,
    UnconfirmedError,
)
from tiered.metadata import NS_PER_S, Metadata, is_expired
from tiered.object_id import ROW_KEY_BYTES_MAX, ObjectId, blob_name, refuse_reserved
from tiered.payload.pieces import Piece, Pieces, split_head
from tiered.payload.streams import Payload, pieces
from tiered.protocol.admission import Admission, Share, Slot
from tiered.protocol.backends import MARK_AGE_MAX_S, ByteRange, Inline, Row, RowPage, State, Tombstone, Upload
from tiered.protocol.commit import Committer, Token
from tiered.protocol.concurrent import both
from tiered.protocol.flights import Flight, Flights
from tiered.protocol.reading import Reader
from tiered.protocol.retry import ask, persist
from tiered.protocol.settle import Tiers
from tiered.settings import Settings
from tiered.stored import ObjectHead, PutResult, StoredObject, Tier
from tiered.text import plain, shown

logger = logging.getLogger("tiered")

LIST_PAGE = 1000
CLOCKS_APART_MAX_S = 3600
"""How far two clocks may be apart before `outcome` could mistake an old change for a young one. Nothing else rests on it."""


class Outcome(Enum):
    """What became of a change whose outcome was unknown."""

    TOOK_EFFECT = "it took effect (and may have been replaced since)"
    NO_EFFECT = "it did not take effect and never will"
    PENDING = "recovery has not finished it yet; ask again"
    UNKNOWABLE = "the row does not remember; it will not take effect any more"


@dataclass(slots=True, eq=False)
class _Body:
    """A payload too large to be inline: what was read of it already, the rest, and its bytes if they are known."""

    head: list[Piece]
    rest: Pieces
    size: int | None


class TieredStorage:
    """An open store: `async with TieredStorage(tiers, log, runtime, settings) as storage`, or `open_storage(…)`.

    All methods may be called at once from many tasks of one event loop. Each may raise `UnavailableError`
    (nothing happened; retry), `AtCapacityError` (not begun; shed load), `InvalidRequestError` (fix the call) or
    `CorruptRecordError` (an operator must look).
    """

    def __init__(self, tiers: Tiers, log: ChangeLog, runtime: Runtime, settings: Settings, *, writes: bool = True) -> None:
        """`writes` False: what was opened suffices for reading only."""
        self._tiers = tiers
        self._log = log
        self._runtime = runtime
        self._settings = settings
        self.instance = settings.instance or instance_name(runtime, "store")
        store = settings.store
        # Apart, so that writers who wait for a changelog that is down, and touches, do not keep readers out.
        self._reads = Admission(store.concurrency_max, store.queue_max, store.queue_wait_s)
        self._writes = Admission(store.concurrency_max, store.queue_max, store.queue_wait_s)
        self._touches = Admission(store.concurrency_max, queue_max=0, queue_wait_s=0)
        self._committer = Committer(tiers, log, runtime, settings, self.instance)
        self._reader = Reader(tiers, runtime, settings)
        self._flights = Flights(self._committer, recovered=log.durable)
        self._touching: set[str] = set()
        self._may_write = writes
        self._entered = False
        self._open = False

    # --- life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._entered:
            raise InvalidRequestError("a storage is entered once; open another")
        self._entered = True
        await self._flights.__aenter__()
        self._open = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self.aclose()
        finally:
            await self._flights.__aexit__(kind, error, trace)

    async def aclose(self) -> list[ChangeId]:
        """Takes no more work and waits for what is under way, within `store.drain_budget_s`.

        Returns the changes that are left to recovery (logged, too). `async with` calls it; safe to repeat. Whoever is cancelled meanwhile
        is so afterwards.
        """
        self._open = False
        return await self._flights.drain(self._wait_idle, self._settings.store.drain_budget_s)

    async def _wait_idle(self) -> None:
        await self._writes.wait_idle()
        await self._reads.wait_idle()
        await self._touches.wait_idle()

    @property
    def dangling_found(self) -> int:
        """How many reads found a tombstone whose blob is gone, since the store was opened."""
        return self._reader.dangling

    # --- operations ------------------------------------------------------------------------------

    async def put(self, object_id: ObjectId, payload: Payload, metadata: Metadata | None = None) -> PutResult:
        """Stores the payload under the id, replacing what is there; durable when it returns.

        Payload: bytes, a path or open binary file, an (async) iterator of bytes of any length, or a `StoredObject`, which is
        closed. A regular file is stored as long as it is when it is opened; only `metadata.size` declares a size. What may block is
        read in a thread of its own, and `AtCapacityError` is raised when there are too many (`tiered/payload/own_thread.py`). Raises also
        `OutcomeUnknownError`, and whatever the payload's own iterator raises; then nothing was stored. Where what that
        iterator awaits was cancelled, and this task was not, it is `CancelledElsewhereError`.
        """
        return await self._put(self._writes, object_id, payload, metadata)

    async def _put(
        self, admission: Admission | Share, object_id: ObjectId, payload: Payload, metadata: Metadata | None
    ) -> PutResult:
        # Not within the payload's own scopes: the end of one that is open between two pieces is none that the caller asked for.
        with elsewhere_is_an_error("nothing was stored: what the payload awaited was cancelled elsewhere"):
            async with aclosing(pieces(payload)) as source:
                self._check_may_write()
                metadata = Metadata() if metadata is None else metadata
                _check(object_id, metadata=metadata)
                object_id.validate()
                # Built anew, and so judged again: it may have been read, or hold a mapping that was changed since.
                return await self._put_pieces(admission, object_id, source, replace(metadata))

    async def _put_pieces(self, admission: Admission | Share, object_id: ObjectId, source: Pieces, metadata: Metadata) -> PutResult:
        with await self._enter(admission) as slot:
            token = Token.new(self._runtime)
            stamped = metadata.stamped(token.wall_ns)
            head, head_size, rest = await split_head(source, self._settings.inline_bytes_max)
            if rest is not None:
                # A blob's time of creation is the service's own, unless the caller told one.
                beside = stamped.with_facts(time_created_ns=metadata.time_created_ns)
                size = rest.size if metadata.size is None else metadata.size
                return await self._put_large(object_id, token, beside, _Body(head, rest, size), slot)
            _check_declared(metadata, head_size)
            return await self._put_small(object_id, token, stamped.with_facts(size=head_size), b"".join(head), slot)

    async def delete(self, object_id: ObjectId) -> None:
        """Removes the object; one that is absent is removed already. Raises also `OutcomeUnknownError`."""
        await self._delete(self._writes, object_id)

    async def _delete(self, admission: Admission | Share, object_id: ObjectId) -> None:
        self._check_may_write()
        _check(object_id)
        with await self._enter(admission) as slot:
            token = Token.new(self._runtime)
            write = partial(self._tiers.high_volume.delete_inline, object_id.path, token.id)
            try:
                deleted = await self._inline(object_id, token, write, slot)
            except OutcomeUnknownError as error:
                if not await self._is_absent_after(error):
                    raise
                return
            if not deleted:
                await self._change(object_id, token, None, slot)

    async def get(self, object_id: ObjectId, range: ByteRange | None = None) -> StoredObject | None:
        """Opens the object for reading; None: there is none, or it has expired.

        A range outside of it is an `InvalidRequestError`. `DanglingTombstoneError`: its data is lost.
        """
        return await self._get(self._reads, object_id, range)

    async def _get(self, admission: Admission | Share, object_id: ObjectId, range: ByteRange | None = None) -> StoredObject | None:
        _check(object_id, range=range)
        with await self._enter(admission):
            found = await self._reader.open(object_id, range)
            if found is None:
                return None
            stored, state = found
            self._touch(object_id, state)
            return stored

    async def head(self, object_id: ObjectId) -> ObjectHead | None:
        """All but the bytes; None: there is none, or it has expired. Counts as no access for time to idle."""
        _check(object_id)
        with await self._enter(self._reads):
            return await self._reader.head(object_id)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectId]:
        """The ids whose storage path begins with `prefix`, in byte order of the path; expired ones left out.

        Read page by page while others write: an object written or deleted meanwhile may be seen or not. A damaged row ends nothing:
        its id is listed, `get` of it says what is wrong (`CorruptRecordError`), and the log names it. Where its key is no object id,
        only the log does.
        """
        prefix = _checked_prefix(prefix)
        start: bytes | None = b""
        while start is not None:
            with await self._enter(self._reads):
                page = await self._scan(prefix, start)
            now_ns = self._runtime.wall_ns()
            for damaged in page.corrupt:
                logger.warning("corrupt_row path=%s: %s", damaged.path, damaged.fault)
            for row in page.rows:
                if not is_expired(row.deadline_ns, now_ns) and (object_id := _parse_stored(row.path)) is not None:
                    yield object_id
            start = page.next_start

    async def outcome(self, error: OutcomeUnknownError) -> Outcome:
        """What became of a change that ended with `OutcomeUnknownError`. Ask again while it is PENDING."""
        if not isinstance(error, OutcomeUnknownError) or not isinstance(error.change_id, ChangeId):
            raise InvalidRequestError(f"pass the OutcomeUnknownError that was raised, not {shown(error)}")
        _check(error.object_id)
        error.object_id.validate()
        self._check_may_write()
        path, change_id, budget_s = error.object_id.path, error.change_id, self._settings.store.answer_budget_s
        if not error.logged:
            # No entry, so no recovery: this is where it is settled, if it was not.
            await ask(lambda: self._tiers.high_volume.settle(path, change_id), self._runtime, budget_s)
        # The log first: an entry that is gone was settled before, so the row read after it remembers.
        entry = await ask(lambda: self._log.read(change_id), self._runtime, budget_s)
        row = await self._row(error.object_id, marks=change_id)
        is_there = row.target == blob_name(path, change_id) or (row.state is not None and row.state.token == change_id)
        if is_there or change_id in row.won:
            return Outcome.TOOK_EFFECT
        if error.logged and change_id in row.refused and self._marks_are_whole(change_id) and not row.forgotten:
            return Outcome.NO_EFFECT
        return Outcome.PENDING if entry is not None else Outcome.UNKNOWABLE

    def _marks_are_whole(self, change_id: ChangeId) -> bool:
        """Whether none of its marks can have been collected: a change may be refused long after it won, and was replaced."""
        age_s = self._runtime.wall_ns() / NS_PER_S - change_id.created_ms / 1000
        return -CLOCKS_APART_MAX_S < age_s < MARK_AGE_MAX_S - CLOCKS_APART_MAX_S

    # --- many at once ----------------------------------------------------------------------------

    def put_many(self, requests: Requests[PutRequest], *, concurrency: int | None = None) -> Bulk[PutRequest, PutResult]:
        """Puts all of them: `async with storage.put_many(requests) as results: async for result in results: …`.

        At most `concurrency` at once (by default a quarter of `store.concurrency_max`, but at most 16), begun as results are
        taken. Each `ItemResult` has a value or an error; none ends the others, and instead of `AtCapacityError` items wait.
        Puts of one id keep their order. Leaving the block early cancels what is under way.
        """
        concurrency = bounded_concurrency(concurrency, self._settings.store.concurrency_max)
        share = Share(self._writes, concurrency)

        async def put(request: PutRequest) -> PutResult:
            return await self._put(share, request.object_id, request.payload, request.metadata)

        return Bulk(requests, PutRequest, put, concurrency)

    def delete_many(self, object_ids: Requests[ObjectId], *, concurrency: int | None = None) -> Bulk[ObjectId, None]:
        """Deletes all of them, as `put_many` puts."""
        concurrency = bounded_concurrency(concurrency, self._settings.store.concurrency_max)
        return Bulk(object_ids, ObjectId, partial(self._delete, Share(self._writes, concurrency)), concurrency)

    def get_many(
        self, object_ids: Requests[ObjectId], *, concurrency: int | None = None, payload_bytes_max: int = PAYLOAD_BYTES_MAX
    ) -> Bulk[ObjectId, LoadedObject | None]:
        """Reads all of them whole, as `put_many` puts; a value of None: there is none, or it has expired.

        In memory at a time: `concurrency` + 1 payloads of at most `payload_bytes_max`. A larger one is not read: its error is
        `InvalidRequestError`, and `get` streams it.
        """
        check_bytes_max(payload_bytes_max)
        concurrency = bounded_concurrency(concurrency, self._settings.store.concurrency_max)
        share = Share(self._reads, concurrency)

        async def get(object_id: ObjectId) -> LoadedObject | None:
            return await load(await self._get(share, object_id), payload_bytes_max)

        return Bulk(object_ids, ObjectId, get, concurrency)

    # --- one row operation -----------------------------------------------------------------------

    async def _put_small(self, object_id: ObjectId, token: Token, metadata: Metadata, payload: bytes, slot: Slot) -> PutResult:
        state = Inline(metadata, payload, token.id)
        write = partial(self._tiers.high_volume.put_inline, object_id.path, token.id, state)
        if not await self._inline(object_id, token, write, slot):
            await self._change(object_id, token, state, slot)
        return PutResult(token.id, Tier.HIGH_VOLUME, len(payload))

    async def _inline(self, object_id: ObjectId, token: Token, write: Callable[[], Awaitable[bool]], slot: Slot) -> bool:
        """Sends an inline write once, or again only if it certainly never left. False: a tombstone is in the way."""
        try:
            try:
                return await persist(write, self._runtime, self._settings.store.answer_budget_s, repeat=UnavailableError)
            except UnconfirmedError as error:
                if await self._settle_inline(object_id, token):
                    return True  # a put; a deletion leaves no token to show
                raise OutcomeUnknownError(object_id, token.id, settled=True) from error
        except anyio.get_cancelled_exc_class() as cancelled:
            # It may have left and land late, over what the caller writes next: refuse it.
            flight = self._flights.take_off(object_id, token)
            self._flights.launch(flight, lambda: self._settle_abandoned(flight), slot)
            if is_asked_to_end():
                raise
            raise OutcomeUnknownError(object_id, token.id) from cancelled

    async def _is_absent_after(self, error: OutcomeUnknownError) -> bool:
        """Settled, so it happens no more: where the row is empty now, the object is deleted, by whomever."""
        try:
            return error.settled and (await self._row(error.object_id)).state is None
        except TieredError:  # whatever is wrong with the row now: the deletion may have happened
            return False

    async def _settle_inline(self, object_id: ObjectId, token: Token) -> bool:
        """Whether the write shows in the row; if not, it never will any more."""
        budget_s = self._settings.store.answer_budget_s
        try:
            return await persist(lambda: self._tiers.high_volume.settle(object_id.path, token.id), self._runtime, budget_s)
        except TieredError as error:  # a permission that was taken away or a damaged row proves nothing about the write (I4)
            raise OutcomeUnknownError(object_id, token.id) from error

    async def _settle_abandoned(self, flight: Flight) -> None:
        with _logged("write_not_settled", flight):
            await self._settle_inline(flight.object_id, flight.token)

    # --- changes ---------------------------------------------------------------------------------

    async def _change(self, object_id: ObjectId, token: Token, state: State, slot: Slot) -> None:
        """Replaces a tombstone by an inline object or nothing."""
        flight = self._flights.take_off(object_id, token)
        await self._fly(flight, lambda: self._prepare(flight), state, slot)

    async def _put_large(self, object_id: ObjectId, token: Token, metadata: Metadata, body: _Body, slot: Slot) -> PutResult:
        flight = self._flights.take_off(object_id, token)
        name, total = blob_name(object_id.path, token.id), 0

        async def prepare() -> None:
            nonlocal total
            total = await self._prepare_upload(flight, name, metadata, body)

        state = Tombstone(name, metadata.expiration, metadata.time_expires_ns, token.id)
        await self._fly(flight, prepare, state, slot)
        return PutResult(token.id, Tier.LONG_TERM, total)

    async def _prepare(self, flight: Flight) -> None:
        """Step 1a of a change without an upload."""
        old = await self._present_target(flight.object_id)
        self._flights.record(flight, Change(flight.token.id, flight.object_id.path, None, old))

    async def _prepare_upload(self, flight: Flight, name: str, metadata: Metadata, body: _Body) -> int:
        """Steps 1 and 2. Returns the payload's bytes."""

        async def open_upload() -> Upload:
            flight.upload = await self._tiers.long_term.open_upload(name, metadata, body.size)
            return flight.upload

        old, upload = await both(lambda: self._present_target(flight.object_id), open_upload)
        self._flights.record(flight, Change(flight.token.id, flight.object_id.path, name, old, upload.session))
        total = await _stream(body, flight, upload)
        _check_declared(metadata, total)
        self._committer.check_held(await flight.wait_recorded())
        flight.may_land_late = True
        try:
            await upload.finalise()
        except UnavailableError:
            flight.may_land_late = False
            raise
        flight.may_land_late = False
        return total

    async def _present_target(self, object_id: ObjectId) -> str | None:
        return (await self._row(object_id)).target

    async def _scan(self, prefix: str, start: bytes) -> RowPage:
        budget_s = self._settings.store.answer_budget_s
        return await ask(lambda: self._tiers.high_volume.scan(prefix, start, LIST_PAGE), self._runtime, budget_s)

    async def _row(self, object_id: ObjectId, *, marks: ChangeId | bool = False) -> Row:
        budget_s = self._settings.store.answer_budget_s
        return await ask(lambda: self._tiers.high_volume.read(object_id.path, marks=marks), self._runtime, budget_s)

    async def _fly(self, flight: Flight, prepare: Callable[[], Awaitable[None]], state: State, slot: Slot) -> None:
        """Prepares the change in the caller's task, hands it over, and waits for the answer."""
        try:
            await prepare()
            await flight.wait_recorded()
        except BaseException as error:
            if not self._flights.launch(flight, lambda: self._abandon(flight), slot):
                with anyio.CancelScope(shield=True):
                    await self._abort_upload(flight)  # here: where no entry names it, nobody else will
            if isinstance(error, UnconfirmedError):  # whatever it was, the swap was not sent
                raise UnavailableError(f"{flight.object_id} was not changed: {error}") from error
            raise
        self._flights.launch(flight, lambda: self._carry_through(flight, state), slot)
        await flight.answered.wait()
        if flight.error is not None:
            raise flight.error

    async def _carry_through(self, flight: Flight, state: State) -> None:
        """Steps 3 to 6."""
        lease = flight.lease
        assert lease is not None, "prepared, so recorded"
        verdict = await self._committer.commit(flight.object_id, flight.token, lease, state)
        flight.answer(verdict.error)
        if verdict.ours:
            await self._committer.clean_up(lease, verdict.live, may_land_late=flight.may_land_late)

    async def _abandon(self, flight: Flight) -> None:
        """Undoes a change whose swap was never sent."""
        await self._abort_upload(flight)  # its session is cancelled below, too
        if flight.change is not None:
            await flight.recorded.wait()
        if flight.lease is not None:
            await self._committer.clean_up(flight.lease, live=None, may_land_late=flight.may_land_late)

    async def _abort_upload(self, flight: Flight) -> None:
        if flight.upload is not None:
            with _logged("upload_not_aborted", flight), anyio.move_on_after(self._settings.store.cleanup_budget_s):
                await flight.upload.abort()

    # --- beside ----------------------------------------------------------------------------------

    def _check_may_write(self) -> None:
        if not self._may_write:
            raise ConfigurationError("this store was opened to read only: open it without writes=False to put or delete")

    async def _enter(self, admission: Admission | Share) -> Slot:
        if not self._open:
            raise InvalidRequestError("the storage is not open; use it inside 'async with'")
        return await admission.enter()

    def _touch(self, object_id: ObjectId, state: State) -> None:
        """Extends an idle object's deadline beside the answer: one at a time for each object, and so many in all.

        Beyond that it is left to the next read.
        """
        path = object_id.path
        if state is None or path in self._touching or not self._reader.wants_touch(state):
            return
        if (slot := self._touches.try_enter()) is not None:
            self._touching.add(path)
            self._flights.run_beside(partial(self._run_touch, object_id, state), slot)

    async def _run_touch(self, object_id: ObjectId, state: Inline | Tombstone) -> None:
        try:
            with anyio.move_on_after(self._settings.store.answer_budget_s):
                await self._reader.touch(object_id, state)
        except TieredError as error:
            logger.warning("touch_failed object=%s: %s", object_id, error)
        finally:
            self._touching.discard(object_id.path)


@contextmanager
def _logged(event: str, flight: Flight) -> Iterator[None]:
    """For what is done when the caller is gone: an error is written down, and the work goes on."""
    try:
        yield
    except TieredError as error:
        logger.warning("%s id=%s object=%s: %s", event, flight.token.id, flight.object_id, error)


async def _stream(body: _Body, flight: Flight, upload: Upload) -> int:
    """Step 1b: everything goes out, and the adapter withholds the last piece. Ends early when the record has failed."""
    total = 0
    while body.head:
        piece = body.head.pop(0)
        await upload.write(piece)
        total += len(piece)
    async for piece in body.rest:
        flight.raise_record_error()
        await upload.write(piece)
        total += len(piece)
    return total


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


def _check_declared(metadata: Metadata, size: int) -> None:
    if metadata.size is not None and metadata.size != size:
        raise InvalidRequestError(f"metadata declares {metadata.size} bytes, but the payload has {size}")


def _parse_stored(path: str) -> ObjectId | None:
    try:
        return ObjectId.parse(path)
    except InvalidRequestError as error:
        logger.warning("unparseable_row skipped: %s", error)
        return None
