"""The life of a write, step by step: the writer's side of the protocol.

    a small put, a delete           ONE row operation, and no entry, if no tombstone is in the way;
                                    otherwise a change, as below, without an upload
      with a condition              read and judge; reserve what is there (if_revision); steps 3 and 4
    a large put                     a change:
      1 record   read the row and open the upload, at once; record {object, new, old, upload} in the changelog,
                 while the payload streams, its last chunk withheld
      2 finalise the upload, once the entry is durable and if the lease still holds
      3 swap     the row names the new blob, if the lease still holds               <- the commit point
      4 answer   told ok: ok. Refused, or not answered: settle the change, read the row, and judge
      5 clean up, 6 forget          after the answer: `finishing.py`, which recovery shares

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
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TypeVar

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
from tiered.metadata import NS_PER_S, Metadata
from tiered.object_id import ObjectId, blob_name
from tiered.payload.chunks import Chunk, Chunks
from tiered.protocol.admission import Slot
from tiered.protocol.backends import (
    MARK_AGE_MAX_S,
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
from tiered.protocol.concurrent import run_both
from tiered.protocol.feed_off import FeedOffNotifier
from tiered.protocol.finishing import finish, may_tell_ok, settle_change, took_effect
from tiered.protocol.guarded import GuardedServices
from tiered.protocol.reading import CopySource
from tiered.protocol.retry import retry
from tiered.protocol.under_way import WriteInProgress, WritesUnderWay
from tiered.settings import Settings
from tiered.stored import PutResult, Tier

B = TypeVar("B", bound=PendingBlob)

CLOCKS_APART_MAX_S = 3600
"""Seconds that two clocks may be apart before `outcome` could take an old change for a young one. Used only there."""


@dataclass(slots=True, eq=False)
class Body:
    """A payload that is too large to be inline: the chunks that were read already, the rest, and its bytes if known."""

    head: list[Chunk]
    rest: Chunks
    size: int | None


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
        if not await self._send_inline(write, partial(self._services.inline.put_inline, write.object_id.path, write.id, state), slot):
            await self._change(write, self._prepare, state, slot)
        return PutResult(write.id, Tier.HIGH_VOLUME, len(payload))

    async def delete(self, write: WriteInProgress, slot: Slot) -> None:
        """Removes the object."""
        if write.condition is not None:
            await self._write_if(write, None, slot)
            return
        try:
            deleted = await self._send_inline(write, partial(self._services.inline.delete_inline, write.object_id.path, write.id), slot)
        except OutcomeUnknownError as error:
            if not await self._is_absent_after(error):
                raise
            return
        if not deleted:
            await self._change(write, self._prepare, None, slot)

    async def _send_inline(self, write: WriteInProgress, send: Callable[[], Awaitable[bool]], slot: Slot) -> bool:
        """Sends an inline write, and again only if it certainly had no effect. False: a tombstone is in the way."""
        try:
            try:
                return await send()
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
            await self._change(write, self._prepare, state, slot)
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
            return await self._services.settling.high_volume.settle(write.object_id.path, write.id)
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

    async def put_large(self, write: WriteInProgress, metadata: Metadata, body: Body | CopySource, slot: Slot) -> PutResult:
        """Stores the payload as a blob, and lets the row redirect to it."""
        name, total, blobs = blob_name(write.object_id.path, write.id), 0, self._tiers.long_term

        async def prepare(write: WriteInProgress) -> None:
            nonlocal total
            if isinstance(body, CopySource):
                begin_copy = partial(blobs.open_copy, body.blob, body.generation, name, metadata)
                total = await self._prepare_blob(write, name, metadata, begin_copy, partial(_nothing_to_send, body.head.size))
            else:
                begin_upload = partial(blobs.open_upload, name, metadata, body.size)
                total = await self._prepare_blob(write, name, metadata, begin_upload, partial(_stream, body, metadata, write, slot))

        state = Tombstone(name, metadata.expiration, metadata.time_expires_ns, write.id, write.condition is not None)
        await self._change(write, prepare, state, slot)
        return PutResult(write.id, Tier.LONG_TERM, total)

    async def put_copy(self, write: WriteInProgress, metadata: Metadata, source: CopySource, slot: Slot) -> PutResult:
        """Stores a copy of what was read, with these metadata. The service copies a blob itself."""
        if source.payload is not None:
            return await self.put_small(write, metadata, source.payload, slot)
        return await self.put_large(write, metadata, source, slot)

    async def _change(
        self, write: WriteInProgress, prepare: Callable[[WriteInProgress], Awaitable[None]], state: RowState, slot: Slot
    ) -> None:
        """All steps: prepares in the caller's task, hands over at the commit, and waits for the answer."""
        self._writes.add(write)
        try:
            await prepare(write)
            await write.wait_recorded()
        except BaseException as error:
            if not self._writes.hand_over(write, partial(self._abandon, write), slot):
                with anyio.CancelScope(shield=True):
                    await self._abort_upload(write)  # here: where no entry names it, nobody else will
            if isinstance(error, UnconfirmedError):  # whatever it was, the swap was not sent
                raise UnavailableError(f"{write.object_id} was not changed: {error}") from error
            raise
        self._writes.hand_over(write, partial(self._carry_through, write, state), slot)
        await write.answered.wait()
        if write.error is not None:
            raise write.error

    async def _prepare(self, write: WriteInProgress) -> None:
        """Step 1 of a change without an upload."""
        old = await self._present_target(write)
        self._writes.record(write, self._change_of(write, None, old, None), self._services.record)

    async def _prepare_blob(
        self, write: WriteInProgress, name: str, metadata: Metadata, begin: Callable[[], Awaitable[B]], send: Callable[[B], Awaitable[int]]
    ) -> int:
        """Steps 1 and 2. Returns the number of the payload's bytes, as `send` does, which withholds the last chunk."""

        async def begin_upload() -> B:
            write.upload = upload = await self._services.breakers.blobs.call(begin, is_answer=_was_sent)
            return upload

        if write.condition is None:
            old, upload = await run_both(partial(self._present_target, write), begin_upload)
        else:  # no upload is opened in vain
            old, upload = await self._present_target(write), await begin_upload()
        self._writes.record(write, self._change_of(write, name, old, upload.session), self._services.record)
        total = await send(upload)
        check_declared(metadata, total)
        self._check_held(await write.wait_recorded())
        write.may_land_late = True
        try:
            await self._services.breakers.blobs.note(upload.finalise)
        except TieredError as error:
            write.may_land_late = isinstance(error, UnconfirmedError)  # others answer (docs/decisions/protocol.md, 14)
            raise
        write.may_land_late = False
        return total

    def _change_of(self, write: WriteInProgress, new: str | None, old: str | None, upload: str | None) -> Change:
        return Change(write.id, write.object_id.path, new, old, upload, self._observer.traceparent())

    async def _present_target(self, write: WriteInProgress) -> str | None:
        return (await (self._row(write.object_id) if write.condition is None else self._judged(write))).target

    async def _judged(self, write: WriteInProgress) -> Row:
        """The row that satisfies the write's condition, read once. Raises `ConditionFailedError`."""
        if write.seen is None:
            row, now_ns = await self._row(write.object_id), self._runtime.wall_ns()
            self.check_condition(write, row, now_ns)
            write.seen, write.judged_ns = row, now_ns
        return write.seen

    def check_condition(self, write: WriteInProgress, row: Row, now_ns: int) -> None:
        """Raises `ConditionFailedError`. Call it only while the write cannot take effect: unsent, or refused (I4)."""
        if write.condition is not None and not write.condition.holds(write.object_id.path, row.state, now_ns):
            raise write.condition.failure(write.object_id, row.state, now_ns)

    async def _row(self, object_id: ObjectId, *, marks: ChangeId | bool = False) -> Row:
        return await self._services.reads.high_volume.read(object_id.path, marks=marks)

    def _check_held(self, lease: Lease) -> None:
        """Raises `LeaseLostError` if recovery may have cleaned up: a blob finalised now would never be deleted (I3)."""
        if not self._heartbeat.held(lease):
            raise self._lost(lease)

    async def _carry_through(self, write: WriteInProgress, state: RowState) -> None:
        """Steps 3 to 6."""
        lease = _lease_of(write)
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
            return await self._services.settling.high_volume.reserve(write.object_id.path, write.id, only.seen)
        except UnconfirmedError as error:
            raise UnavailableError(f"{write.object_id} was not changed: {error}") from error

    async def swap(self, write: WriteInProgress, change: Change, lease: Lease | None, state: RowState, only: Only | None) -> SwapResult:
        """Raises `ClockBehindError` if nothing was sent before it that could have taken effect."""
        sent, unanswered = False, False

        async def once() -> SwapResult:
            nonlocal sent, unanswered
            # The deadline is fixed before the checks, so a process that is stopped after them sends nothing late.
            deadline_s = self._runtime.boot_time() + self._settings.marks.swap_deadline_s
            if lease is not None and not self._heartbeat.held(lease):
                return SwapResult.LEASE_LOST
            if self._is_aged(write):
                return SwapResult.TOO_OLD
            sent = True
            try:
                swap = partial(self._tiers.high_volume.swap, change.object, change.id, change.old, state, deadline_s, only, write.since_ms)
                effective = await self._services.breakers.rows.note(swap)
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
            live = await settle_change(self._services.settling, change)
            row = await self._services.settling.high_volume.read(change.object, marks=change.id)
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
        return write.age_s(self._runtime) > self._settings.marks.swap_age_max_s

    async def finish(self, write: WriteInProgress, live: bool | None) -> None:
        """Steps 5 and 6, within their budget. What fails is left to recovery, and logged."""
        lease = _lease_of(write)
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
            await self._services.reads.high_volume.settle(path, change_id)
        # The log first: an entry that is gone was settled before, so the row read after it remembers.
        entry = await self._services.log_reads.read(change_id)
        row = await self._row(error.object_id, marks=change_id)
        is_there = row.target == blob_name(path, change_id) or (row.state is not None and row.state.token == change_id)
        if is_there or change_id in row.won:
            return Outcome.TOOK_EFFECT
        if error.marked and change_id in row.refused and self._marks_are_whole(change_id) and not row.forgotten:
            return Outcome.NO_EFFECT
        return Outcome.PENDING if entry is not None else Outcome.UNKNOWABLE

    def _marks_are_whole(self, change_id: ChangeId) -> bool:
        """Whether no mark of it can have been collected: a change may be refused long after it won and was replaced."""
        age_s = self._runtime.wall_ns() / NS_PER_S - change_id.created_ms / 1000
        return -CLOCKS_APART_MAX_S < age_s < MARK_AGE_MAX_S - CLOCKS_APART_MAX_S


def check_declared(metadata: Metadata, size: int) -> None:
    """Raises `InvalidRequestError` if the metadata declares another size than the payload has (bytes)."""
    if metadata.size is not None and metadata.size != size:
        raise InvalidRequestError(f"metadata declares {metadata.size} bytes, but the payload has {size}")


def _was_sent(upload: PendingBlob) -> bool:
    """Whether the service was asked for anything yet. Without a session it was not."""
    return upload.session is not None


async def _nothing_to_send(size: int, copy: PendingBlob) -> int:
    """For a copy, whose bytes the service has."""
    return size


async def _stream(body: Body, metadata: Metadata, write: WriteInProgress, slot: Slot, upload: Upload) -> int:
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
        upload.amend(metadata.with_facts(custom=body.rest.custom))
    await slot.take_back()
    return total


@contextmanager
def _logged(event: str, write: WriteInProgress) -> Iterator[None]:
    """For what is done when the caller is gone: an error is written down, and the work goes on."""
    try:
        yield
    except TieredError as error:
        events.warning(event, error, id=write.id, object=str(write.object_id))


def _lease_of(write: WriteInProgress) -> Lease:
    assert write.lease is not None, "its entry was recorded"
    return write.lease
