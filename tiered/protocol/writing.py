"""The life of a write, step by step: the writer's side of the protocol.

    a small put, a delete           ONE row operation, and no entry, if no tombstone is in the way;
                                    otherwise a change, as below, without an upload
      with a condition              read and judge; reserve what is there (if_revision); steps 3 and 4
    a large put                     a change: 1 record, 2 finalise, 3 swap (the commit), 4 answer; and after the
                                    answer 5 clean up, 6 forget: `finishing.py`, which recovery shares

docs/architecture.md, "The life of a change", has the six steps.

The caller's task reads the row, uploads and finalises. The entry is recorded in a task of the store beside that. Steps
3 to 6 run in another task of the store (`under_way.py`). *Cancelled or failed* before step 3: the write is abandoned,
and cleaned up in the background. From step 3 on it is carried through, whatever becomes of its caller. *Crash*
anywhere: the entry is left, and recovery does the rest.

What callers are told is true (I4). A caller is told "no" in two cases. Either the swap was never sent. Or the token is
refused, the row has no *won* mark of it, and the change is so young that the mark cannot have been collected. I1 and I2
rest on the row alone, never on the lease. A write holds its slot until its clean-up is done, except while its payload
is waited for: then the slot is lent. A payload is never held whole unless it is inline.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import cast

import anyio

from changelog.base.errors import ClockBehindError, InvalidRequestError, LeaseLostError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.events import events
from changelog.base.observe import SILENT, Event, Observer
from changelog.base.runtime import Runtime
from changelog.base.tasks import is_asked_to_end
from changelog.change import Change, ChangeId
from changelog.heartbeat import Heartbeat
from changelog.lease import Lease
from changelog.log import ChangeLog
from tiered.errors import ConditionFailedError, OutcomeUnknownError
from tiered.limits.admission import Slot
from tiered.metadata import NS_PER_S, Metadata
from tiered.notes.feed_off import FeedOffNotifier
from tiered.object_id import ObjectId, blob_name
from tiered.payload.chunks import Chunk, Chunks
from tiered.protocol.finishing import finish, may_tell_ok, settle_change, took_effect
from tiered.protocol.reading import CopySource
from tiered.protocol.under_way import WriteInProgress, WritesUnderWay
from tiered.services.backends import (
    MARK_AGE_MAX_S,
    SWAP_AGE_MAX_S,
    SWAP_DEADLINE_S,
    Inline,
    Only,
    PendingBlob,
    RereadingUpload,
    Row,
    RowState,
    Still,
    Tiers,
    Tombstone,
    Upload,
)
from tiered.services.concurrent import run_both
from tiered.services.guarded import GuardedServices
from tiered.services.retry import retry
from tiered.settings import Settings
from tiered.stored import PutResult, Tier

CLOCKS_APART_MAX_S = 3600
"""Seconds that two clocks may be apart before whoever asks later could take an old change for a young one."""

ASKED_AGE_MAX_S = MARK_AGE_MAX_S - CLOCKS_APART_MAX_S
"""Whoever asks later about a change that is older is not told no: its won mark may have been collected."""


@dataclass(slots=True, eq=False)
class Body:
    """A payload that becomes a blob with these metadata: what was read of it already, the rest, and its bytes if known.
    """

    metadata: Metadata
    head: list[Chunk]
    rest: Chunks
    size: int | None


@dataclass(frozen=True, slots=True)
class BlobCopy:
    """A blob that gets the bytes of another one, and these metadata."""

    metadata: Metadata
    source: CopySource


class Outcome(Enum):
    """What became of a change whose outcome was unknown."""

    TOOK_EFFECT = "it took effect (and may have been replaced since)"
    NO_EFFECT = "it did not take effect and never will"
    PENDING = "recovery has not finished it yet; ask again"
    UNKNOWABLE = "the row does not remember; it will not take effect any more"


class SwapResult(Enum):
    """What is known of the swap when the sending of it is over."""

    OK = "it took effect"
    CONFLICT = "the row refused it"
    NOTHING = "sent, and not answered"
    LEASE_LOST = "never sent: the lease had ended"
    TOO_OLD = "never sent: the change is older than its marks may be relied on"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What the caller is told (`error` None: ok), and what may be cleaned up.

    `live`: the new state took effect and is no garbage; None: not known, settle first. `ours` False: clean nothing up,
    because recovery does.
    """

    error: TieredError | None
    live: bool | None
    ours: bool = True


class Writer:
    """Carries writes through. `writes` must be entered: it runs tasks and the heartbeat. `feed_off`: see `finish`."""

    def __init__(
        self, tiers: Tiers, log: ChangeLog, runtime: Runtime, settings: Settings, heartbeat: Heartbeat, writes: WritesUnderWay,
        services: GuardedServices, feed_off: FeedOffNotifier | None, observer: Observer = SILENT,
    ) -> None:
        self._tiers = tiers
        self._log = log
        self._runtime = runtime
        self._settings = settings
        self._budget_s = settings.store.answer_budget_s
        self._heartbeat = heartbeat
        self._writes = writes
        self._services = services
        self._feed_off = feed_off
        self._observer = observer

    # --- one row operation -----------------------------------------------------------------------

    async def put_small(self, write: WriteInProgress, metadata: Metadata, payload: bytes, slot: Slot) -> PutResult:
        """Stores the payload in the row."""
        state = Inline(metadata, payload, write.id)
        if write.condition is not None:
            await self._write_if(write, state, slot)
            return PutResult(write.id, Tier.HIGH_VOLUME, len(payload))
        if not await self._send_inline(write, partial(self._tiers.high_volume.put_inline, write.object_id.path, write.id, state), slot):
            await self._change(write, state, slot)
        return PutResult(write.id, Tier.HIGH_VOLUME, len(payload))

    async def delete(self, write: WriteInProgress, slot: Slot) -> None:
        """Removes the object."""
        if write.condition is not None:
            await self._write_if(write, None, slot)
            return
        try:
            deleted = await self._send_inline(write, partial(self._tiers.high_volume.delete_inline, write.object_id.path, write.id), slot)
        except OutcomeUnknownError as error:
            if not await self._is_absent_after(error):
                raise
            return
        if not deleted:
            await self._change(write, None, slot)

    async def _send_inline(self, write: WriteInProgress, send: Callable[[], Awaitable[bool]], slot: Slot) -> bool:
        """Sends an inline write, and again only if it certainly had no effect. False: a tombstone is in the way."""
        try:
            try:
                return await self._services.rows.send(send)
            except UnconfirmedError as error:
                if await self._settle_inline(write):
                    return True  # a put; a deletion leaves no token to show
                raise OutcomeUnknownError(write.object_id, write.id, settled=True) from error
        except anyio.get_cancelled_exc_class() as cancelled:
            self._leave_abandoned(write, slot)
            if is_asked_to_end():
                raise
            raise OutcomeUnknownError(write.object_id, write.id) from cancelled

    async def _write_if(self, write: WriteInProgress, state: Inline | None, slot: Slot) -> None:
        """A small put or a delete with a condition. Its swap leaves a mark, so an entry is only needed for a blob."""
        row = await self._judged(write)
        if row.target is not None:
            await self._change(write, state, slot)
            return
        try:
            verdict = await self._commit(write, self._change_of(write, None, None, None), None, state)
        except anyio.get_cancelled_exc_class() as cancelled:
            self._leave_abandoned(write, slot)
            if is_asked_to_end():
                raise
            raise OutcomeUnknownError(write.object_id, write.id, marked=True) from cancelled
        if verdict.error is not None:
            raise verdict.error

    def _leave_abandoned(self, write: WriteInProgress, slot: Slot) -> None:
        """What was sent may have left and land late, over what the caller writes next: it is refused."""
        self._writes.add(write)
        self._writes.hand_over(write, partial(self._settle_abandoned, write), slot)

    async def _settle_inline(self, write: WriteInProgress) -> bool:
        """Whether the write shows in the row; if not, it never will any more."""
        try:
            return await self._services.rows.settle(self._tiers.high_volume.settle, write.object_id.path, write.id)
        except TieredError as error:  # a permission that was taken away, or a damaged row, proves nothing about the write (I4)
            raise OutcomeUnknownError(write.object_id, write.id) from error

    async def _settle_abandoned(self, write: WriteInProgress) -> None:
        with _logged("write_not_settled", write):
            await self._settle_inline(write)

    async def _is_absent_after(self, error: OutcomeUnknownError) -> bool:
        """Whether the row is empty after a deletion that was settled: then the object is deleted, by whomever."""
        try:
            return error.settled and (await self._row(error.object_id)).state is None
        except TieredError:  # whatever is wrong with the row now: the deletion may have happened
            return False

    # --- a change --------------------------------------------------------------------------------

    async def put_large(self, write: WriteInProgress, body: Body | BlobCopy, slot: Slot) -> PutResult:
        """Stores a blob, and lets the row redirect to it."""
        name, metadata = blob_name(write.object_id.path, write.id), body.metadata
        state = Tombstone(name, metadata.expiration, metadata.time_expires_ns, write.id, write.condition is not None, metadata)
        return PutResult(write.id, Tier.LONG_TERM, await self._change(write, state, slot, body))

    async def put_copy(self, write: WriteInProgress, metadata: Metadata, source: CopySource, slot: Slot) -> PutResult:
        """Stores a copy of what was read, with these metadata. The service copies a blob itself."""
        if source.payload is not None:
            return await self.put_small(write, metadata, source.payload, slot)
        return await self.put_large(write, BlobCopy(metadata, source), slot)

    async def _change(self, write: WriteInProgress, state: RowState, slot: Slot, body: Body | BlobCopy | None = None) -> int:
        """All steps in their order: up to the commit in the caller's task, from there on in one of the store.

        `body`: what becomes the blob that `state` names; None: it names none. Returns the number of its bytes.
        """
        self._writes.add(write)
        total = 0
        try:
            # 1 record, while the payload streams
            if body is None:
                row = await self._judged(write)
                self._writes.record(write, self._change_of(write, None, row.target, None))
            else:
                if write.condition is None:
                    row, upload = await run_both(partial(self._judged, write), partial(self._begin, write, body))
                else:  # no upload is opened in vain
                    row, upload = await self._judged(write), await self._begin(write, body)
                self._writes.record(write, self._change_of(write, blob_name(write.object_id.path, write.id), row.target, upload.session))
                total = body.source.head.size if isinstance(body, BlobCopy) else await _stream(body, write, slot, cast(Upload, upload))
                check_declared(body.metadata, total)
                if isinstance(state, Tombstone):
                    state = replace(state, metadata=described(_stored(body), total, write.begun_ns))
                # 2 finalise
                await self._wait_held(write)
                write.may_land_late = True
                try:
                    await self._services.blobs.note(upload.finalise)
                except TieredError as error:
                    write.may_land_late = isinstance(error, UnconfirmedError)  # others answer (docs/decisions/protocol.md, 14)
                    raise
                write.may_land_late = False
            await write.wait_recorded()
        except BaseException as error:
            if not self._writes.hand_over(write, partial(self._abandon, write), slot):
                with anyio.CancelScope(shield=True):
                    await self._abort_upload(write)  # here: where no entry names it, nobody else will
            if isinstance(error, UnconfirmedError):  # whatever it was, the swap was not sent
                raise UnavailableError(f"{write.object_id} was not changed: {error}") from error
            raise
        # 3 swap, 4 answer, 5 clean up, 6 forget
        self._writes.hand_over(write, partial(self._carry_through, write, state), slot)
        await write.answered.wait()
        if write.error is not None:
            raise write.error
        return total

    async def _begin(self, write: WriteInProgress, body: Body | BlobCopy) -> PendingBlob:
        """Opens the upload of the blob, or the copy to it."""
        name, blobs = blob_name(write.object_id.path, write.id), self._tiers.long_term
        begin: Callable[[], Awaitable[PendingBlob]] = (
            partial(blobs.open_copy, body.source.blob, body.source.generation, name, body.metadata) if isinstance(body, BlobCopy)
            else partial(blobs.open_upload, name, body.metadata, body.size)
        )  # fmt: skip
        write.upload = await self._services.blobs.call(begin, is_answer=_was_sent)
        return write.upload

    async def _wait_held(self, write: WriteInProgress) -> None:
        """Waits until the entry is durable. `LeaseLostError`: recovery may have cleaned up since, and a blob finalised
        now would never be deleted (I3).
        """
        lease = await write.wait_recorded()
        if not self._heartbeat.held(lease):
            raise self._lost(lease)

    def _change_of(self, write: WriteInProgress, new: str | None, old: str | None, upload: str | None) -> Change:
        return Change(write.id, write.object_id.path, new, old, upload, self._observer.traceparent())

    async def _judged(self, write: WriteInProgress) -> Row:
        """The row that satisfies the write's condition, if it has one, read once. Raises `ConditionFailedError`."""
        if write.seen is not None:
            return write.seen
        row = await self._row(write.object_id)
        if write.condition is not None:
            now_ns = self._runtime.wall_ns()
            self.check_condition(write, row, now_ns)
            write.seen, write.judged_ns = row, now_ns
        return row

    def check_condition(self, write: WriteInProgress, row: Row, now_ns: int) -> None:
        """Raises `ConditionFailedError`. Call it only while the write cannot take effect: unsent, or refused (I4)."""
        if write.condition is not None and not write.condition.holds(write.object_id.path, row.state, now_ns):
            raise write.condition.failure(write.object_id, row.state, now_ns)

    async def _row(self, object_id: ObjectId, *, marks: ChangeId | bool = False) -> Row:
        return await self._services.rows.read(self._tiers.high_volume.read, object_id.path, marks=marks)

    async def _carry_through(self, write: WriteInProgress, state: RowState) -> None:
        """Steps 3 to 6."""
        lease = write.lease
        assert lease is not None, "its entry was recorded"
        verdict = await self._commit(write, lease.entry.change, lease, state)
        write.answer(verdict.error)
        if verdict.ours:
            await self.finish(write, verdict.live)

    async def _commit(self, write: WriteInProgress, change: Change, lease: Lease | None, state: RowState) -> WriteResult:
        """Steps 3 and 4: swaps, and finds out what became of it. Raises no error of a backend.

        `lease` None: the change has no entry.
        """
        only = write.condition.only(write.seen.state, write.judged_ns) if write.condition is not None and write.seen is not None else None
        try:
            is_there = await self.reserve(write, only)
        except TieredError as error:
            return WriteResult(error, None)
        try:
            result = await self.swap(write, change, lease, state, only) if is_there else SwapResult.CONFLICT
        except ClockBehindError as error:
            return WriteResult(error, None)
        match result:
            case SwapResult.OK:
                return WriteResult(None, live=True)
            case SwapResult.LEASE_LOST:
                assert lease is not None, "it was looked at"
                return WriteResult(self._lost(lease), None, ours=False)
            case SwapResult.TOO_OLD:
                why = "took longer than a change may; try again"
                return WriteResult(UnavailableError(f"change {write.id} of {write.object_id} {why}"), None)
            case SwapResult.CONFLICT | SwapResult.NOTHING:
                return await self._judge(write, change, lease, result)

    async def reserve(self, write: WriteInProgress, only: Only | None) -> bool:
        """Reserves what the swap's condition is about. False: it is not there any more. Raises only if nothing was sent
        that could take effect.
        """
        if not isinstance(only, Still):
            return True
        try:
            return await self._services.rows.settle(self._tiers.high_volume.reserve, write.object_id.path, write.id, only.seen)
        except UnconfirmedError as error:
            raise UnavailableError(f"{write.object_id} was not changed: {error}") from error

    async def swap(self, write: WriteInProgress, change: Change, lease: Lease | None, state: RowState, only: Only | None) -> SwapResult:
        """Raises `ClockBehindError` if nothing was sent before it that could have taken effect."""
        sent, unanswered = False, False

        async def once() -> SwapResult:
            nonlocal sent, unanswered
            # The deadline is fixed before the checks, so a process that is stopped after them sends nothing late.
            deadline_s = self._runtime.boot_time() + SWAP_DEADLINE_S
            if lease is not None and not self._heartbeat.held(lease):
                return SwapResult.LEASE_LOST
            if self._is_aged(write):
                return SwapResult.TOO_OLD
            sent = True
            try:
                swap = partial(self._tiers.high_volume.swap, change.object, change.id, change.old, state, deadline_s, only, write.since_ms)
                effective = await self._services.rows.note(swap)
            except UnconfirmedError:
                unanswered = True
                raise
            return SwapResult.OK if effective else SwapResult.CONFLICT

        try:
            result = await retry(once, self._runtime, self._budget_s, observer=self._observer)
        except TieredError as error:
            if isinstance(error, ClockBehindError) and not unanswered:
                raise
            return SwapResult.NOTHING
        return SwapResult.NOTHING if sent and result in (SwapResult.LEASE_LOST, SwapResult.TOO_OLD) else result

    async def _judge(self, write: WriteInProgress, change: Change, lease: Lease | None, told: SwapResult) -> WriteResult:
        """Step 4 after a swap that was not told ok: settles, reads the row, and says what the caller may be told."""
        try:
            live = await self._services.rows.settle(settle_change, self._tiers, change)
            row = await self._services.rows.settle(self._tiers.high_volume.read, change.object, marks=change.id)
        except TieredError as error:
            unknown = OutcomeUnknownError(write.object_id, change.id, logged=lease is not None and self._log.durable, marked=True)
            unknown.__cause__ = error
            return WriteResult(unknown, None, ours=False)
        if (may_tell_ok if write.condition is None else took_effect)(change, live, row):
            return WriteResult(None, live)
        if row.forgotten or self._is_aged(write):
            # It may have won and been replaced, and its mark collected: this process stood still, or a clock jumped.
            return WriteResult(OutcomeUnknownError(write.object_id, change.id, settled=True), live)
        try:
            self.check_condition(write, row, self._runtime.wall_ns())
        except ConditionFailedError as error:
            return WriteResult(error, live)
        why = (
            "its row was changed meanwhile, by another writer or by recovery" if told is SwapResult.CONFLICT
            else "what became of the request was not told, and it takes no effect any more"
        )
        return WriteResult(UnavailableError(f"change {write.id} of {write.object_id} was not made: {why}; try again"), live)

    def _is_aged(self, write: WriteInProgress) -> bool:
        """Whether it is older than its marks may be relied on: a mark that is missing proves nothing then."""
        return write.age_s(self._runtime) > SWAP_AGE_MAX_S

    async def finish(self, write: WriteInProgress, live: bool | None) -> None:
        """Finishes the change, within the budget for it. What fails is left to recovery, and logged."""
        lease = write.lease
        assert lease is not None, "its entry was recorded"
        grace_ms = round(self._settings.recovery.late_upload_grace_s * 1000) if write.may_land_late else None
        try:
            ending = await retry(
                partial(finish, self._tiers, self._log, self._heartbeat, lease, live, grace_ms, self._feed_off),
                self._runtime, self._settings.store.cleanup_budget_s, observer=self._observer,
            )
            self._observer.count(Event.CLEANED_UP, ending.name.lower())
        except TieredError as error:
            self._observer.count(Event.CLEANED_UP, "left")
            events.warning("change_left_to_recovery", error, id=write.id, object=lease.entry.change.object)

    async def _abandon(self, write: WriteInProgress) -> None:
        """Undoes a change whose swap was never sent."""
        await self._abort_upload(write)  # its session is cancelled below, too
        if write.change is not None:
            await write.recorded.wait()
        if write.lease is not None:
            await self.finish(write, live=None)

    async def _abort_upload(self, write: WriteInProgress) -> None:
        if write.upload is not None:
            with _logged("upload_not_aborted", write), anyio.move_on_after(self._settings.store.cleanup_budget_s):
                await write.upload.abort()

    def _lost(self, lease: Lease) -> LeaseLostError:
        self._observer.count(Event.CHANGE_LOST)
        return LeaseLostError(f"change {lease.entry.change.id} of {lease.entry.change.object} was not made: {lease.end()}; try again")

    # --- afterwards ------------------------------------------------------------------------------

    async def outcome(self, error: OutcomeUnknownError) -> Outcome:
        """What became of a change that ended with `OutcomeUnknownError`."""
        path, change_id = error.object_id.path, error.change_id
        if not error.logged:
            # No entry, so no recovery: this is where it is settled, if it was not.
            await self._services.rows.read(self._tiers.high_volume.settle, path, change_id)
        # The log first: an entry that is gone was settled before, so the row read after it remembers.
        entry = await self._services.changelog.read(self._log.read, change_id)
        row = await self._row(error.object_id, marks=change_id)
        is_there = row.target == blob_name(path, change_id) or (row.state is not None and row.state.token == change_id)
        if is_there or change_id in row.won:
            return Outcome.TOOK_EFFECT
        if error.marked and change_id in row.refused and self.marks_are_whole(change_id.created_ms, row):
            return Outcome.NO_EFFECT
        return Outcome.PENDING if entry is not None else Outcome.UNKNOWABLE

    def marks_are_whole(self, since_ms: int, row: Row) -> bool:
        """Whether the row still has each mark of the change that was made after that time (Unix ms). A change may be
        refused long after it won and was replaced, so a refused mark alone proves nothing.
        """
        age_s = self._runtime.wall_ns() / NS_PER_S - since_ms / 1000
        return not row.forgotten and -CLOCKS_APART_MAX_S < age_s < ASKED_AGE_MAX_S


def check_declared(metadata: Metadata, size: int) -> None:
    """Raises `InvalidRequestError` if the metadata declares another size than the payload has (bytes)."""
    if metadata.size is not None and metadata.size != size:
        raise InvalidRequestError(f"metadata declares {metadata.size} bytes, but the payload has {size}")


def described(metadata: Metadata, size: int, begun_ns: int) -> Metadata:
    """The metadata of a blob of `size` bytes as its row tells them. `begun_ns`: when its write began (Unix ns)."""
    return metadata.with_facts(size=size, time_created_ns=begun_ns if metadata.time_created_ns is None else metadata.time_created_ns)


def _stored(body: Body | BlobCopy) -> Metadata:
    """The metadata of the blob, with what its payload's end told."""
    amended = None if isinstance(body, BlobCopy) else body.rest.custom
    return body.metadata if amended is None else body.metadata.with_facts(custom=amended)


def _was_sent(upload: PendingBlob) -> bool:
    """Whether the service was asked for anything yet. Without a session it was not."""
    return upload.session is not None


async def _stream(body: Body, write: WriteInProgress, slot: Slot, upload: Upload) -> int:
    """Sends the whole payload, of which the adapter withholds the last chunk. Ends early when the record has failed.

    The slot is lent while the payload may have to be waited for, and for what its caller tells at its end.
    """
    total = 0
    if isinstance(upload, RereadingUpload) and (reread := body.rest.reread()) is not None:
        upload.resume_with(reread)
    while body.head:
        chunk = body.head.pop(0)
        await upload.write(chunk)
        total += len(chunk)
    if body.rest.waits:
        slot.lend()
    async for chunk in body.rest:
        write.raise_record_error()
        await upload.write(chunk)
        total += len(chunk)
    if body.rest.custom is not None:
        upload.amend(body.metadata.with_facts(custom=body.rest.custom))
    await slot.take_back()
    return total


@contextmanager
def _logged(event: str, write: WriteInProgress) -> Iterator[None]:
    """For what is done when the caller is gone: an error is written down, and the work goes on."""
    try:
        yield
    except TieredError as error:
        events.warning(event, error, id=write.id, object=str(write.object_id))
