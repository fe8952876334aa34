"""Uploads that stay open: their parts come in any order and from anywhere, and somebody completes them some day.

    begin      the tier opens a session -> the log's entry: no owner, *assembling*, cleaned up after some days
    part       to the session; the row and the log know nothing of it
    append     claim a token in the entry -> a part to the session -> acknowledge it in the entry (`appending.py`)
    complete   the log -> the row -> claim -> the tier makes the blob -> marks -> swap -> answer -> seal -> clean up
    abort      seal -> settle -> clean up; recovery does the same when the time is over

The swaps of all attempts have one token, the revision of the blob. So one of them takes effect, once, and each attempt
finds out by the marks of the row what came of it. *To claim* is a compare-and-swap of the entry: it names the attempt,
what the row redirected to, when the first attempt was, and the list of parts. The entry stays assembling, and an
attempt that dies changes nothing: anybody tries again. *To seal* is the claim of recovery. From then on the entry is
like any other, and nobody completes the upload; so its token may be refused then, and by anybody: who meets a sealed
entry settles it, as recovery would, and tells what became of it.

A won mark is kept for two days. So claims are made, and swaps sent, within `SWAP_AGE_MAX_S` of the first claim.
How old the upload was by then does not matter. An attempt that knows that no blob can come of it gives its claim back:
it writes the entry as it was, but for the number of the attempt, so that no value ever returns.

Once the blob is made, no other list can be, and marks remember this one (`completed.py`). All later answers go by them.

*Crash*: of an attempt, the entry is claimable by recovery an hour later. *Failure*: "nothing happened" is only said if
no swap of any attempt can land. docs/protocol/Protocol.tla is the model of this.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from changelog.base.errors import (
    ConfigurationError,
    CorruptRecordError,
    InvalidRequestError,
    TieredError,
    UnavailableError,
    UnconfirmedError,
)
from changelog.base.events import events
from changelog.base.observe import SILENT, Observer
from changelog.base.runtime import Runtime
from changelog.change import Change, ChangeId, Entry
from changelog.heartbeat import Heartbeat
from changelog.log import ChangeLog
from tiered.errors import ConditionFailedError, OffsetMismatchError, OutcomeUnknownError, UploadEndedError
from tiered.limits.admission import Slot
from tiered.limits.policies import Policies
from tiered.metadata import NS_PER_MS, Metadata
from tiered.object_id import ObjectId, blob_name
from tiered.payload.chunks import Chunk
from tiered.protocol.appending import Appending, leading
from tiered.protocol.completed import CompletedLists
from tiered.protocol.conditions import Condition
from tiered.protocol.finishing import settle_change, took_effect
from tiered.protocol.open_upload import OpenUpload, blob_of, claimed, digest_of
from tiered.protocol.under_way import WriteInProgress, WritesUnderWay
from tiered.protocol.writing import SwapResult, Writer, described
from tiered.services.backends import SWAP_AGE_MAX_S, Row, SessionEndedError, Tiers, Tombstone
from tiered.services.capabilities import Part, PartUploads, SignedUrls, check_parts
from tiered.services.concurrent import run_both
from tiered.services.guarded import GuardedServices
from tiered.settings import Settings
from tiered.stored import PutResult, Tier

T = TypeVar("T")

COMPLETION_MS = 3_600_000
"""How long an attempt keeps recovery away: a service puts large blobs together for minutes."""

ATTEMPTS_MAX = 8
"""How often one call begins anew, because another attempt or another writer was faster."""

PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Append:
    """One who appends: the entry as he has it, and what it says of that."""

    entry: Entry
    state: Appending


@dataclass(frozen=True, slots=True)
class _End:
    """How a call ended. `result` or `error` is what its caller is told. `live`: as in `finish`.

    `entry`: what is left to be sealed, by whoever has the time.
    """

    result: PutResult | None = None
    error: TieredError | None = None
    live: bool | None = None
    entry: Entry | None = None


class Assembler:
    """Begins, completes and aborts open uploads. `writes` must be entered: it runs what goes on without its caller."""

    def __init__(
        self, tiers: Tiers, log: ChangeLog, runtime: Runtime, settings: Settings, heartbeat: Heartbeat, writes: WritesUnderWay,
        services: GuardedServices, writer: Writer, observer: Observer = SILENT, policies: Policies | None = None,
    ) -> None:  # fmt: skip
        self._policies = policies
        self._tiers = tiers
        self._log = log
        self._runtime = runtime
        self._settings = settings
        self._heartbeat = heartbeat
        self._writes = writes
        self._services = services
        self._writer = writer
        self._observer = observer

    # --- while it is open ------------------------------------------------------------------------

    async def begin(
        self, object_id: ObjectId, metadata: Metadata, condition: Condition | None, age_max_s: float, slot: Slot,
        size_max: int | None = None,
    ) -> ChangeId:  # fmt: skip
        """Opens an upload, and returns its id. It can be completed for `age_max_s` seconds, by `size_max` bytes.

        `ConfigurationError`: no changelog keeps its entry, or the tier takes no parts. `UnavailableError`: it was not
        begun; parts of it that nobody knows are removed by the service some day.
        """
        if not self._log.durable:
            raise ConfigurationError(
                "an upload that stays open needs a changelog: set changelog to sqlite, bigtable or postgres, as the rows are, or use put"
            )
        upload_id, blobs = ChangeId.new(self._runtime), self._blobs()
        name = blob_name(object_id.path, upload_id)
        until_ms = await self._services.changelog.read(self._log.now_ms) + round(age_max_s * 1000)
        # The deadline is counted from the completion, which extends this one. A later one would outlive the row.
        beside = metadata.with_facts(time_expires_ns=metadata.stamps(self._runtime.wall_ns())["time_expires_ns"])
        try:
            session = await self._services.blobs.call(partial(blobs.begin_parts, name, beside))
        except UnconfirmedError as error:
            raise UnavailableError(f"the upload of {object_id} was not begun: {error}; try again") from error
        change = Change(upload_id, object_id.path, name, None, session, self._observer.traceparent())
        opened = OpenUpload.begun(metadata, condition, until_ms, size_max)
        entry = Entry(change, upload_id.row_key(), "", 0, until_ms, assembling=opened.encode())
        try:
            # Once: an entry that arrives late must be one that nobody knows.
            if await self._services.changelog.call(partial(self._log.open, entry)):
                return upload_id
            why = "an upload with its id is there already"
        except UnconfirmedError as error:
            why = str(error)
        except BaseException:
            self._leave(session, slot)
            raise
        self._leave(session, slot)
        raise UnavailableError(f"the upload of {object_id} was not begun: {why}; try again")

    def _leave(self, session: str, slot: Slot) -> None:
        """Cancels a session that no entry names, beside what its caller does next."""

        async def cancel() -> None:
            try:
                await self._services.blobs.settle(self._tiers.long_term.cancel, session)
            except TieredError as error:
                events.warning("upload_not_aborted", error)

        self._writes.run_beside(cancel, slot.hand_over())

    async def put_part(self, object_id: ObjectId, upload_id: ChangeId, number: int, payload: Sequence[Chunk]) -> Part:
        entry = await self._open(object_id, upload_id)
        return await self._asked(entry, object_id, lambda blobs, name, session: blobs.put_part(name, session, number, payload))

    async def parts(self, object_id: ObjectId, upload_id: ChangeId) -> Sequence[Part]:
        return await self._parts(await self._open(object_id, upload_id), object_id)

    async def _parts(self, entry: Entry, object_id: ObjectId) -> Sequence[Part]:
        return await self._asked(entry, object_id, lambda blobs, name, session: blobs.parts(name, session))

    async def sign_part(
        self, object_id: ObjectId, upload_id: ChangeId, number: int, expires_in_s: int, *, bounded: bool
    ) -> str | None:
        """The address to PUT a part to. None: the tier signs none, or none that is `bounded` by a size."""
        entry, blobs = await self._open(object_id, upload_id), self._tiers.long_term
        if bounded or not isinstance(blobs, SignedUrls):
            return None
        return await blobs.sign_part(*blob_of(entry), number, expires_in_s)

    async def check_open(self, object_id: ObjectId, upload_id: ChangeId) -> None:
        """Raises `UploadEndedError` if it is open no more. Asks the log alone, until somebody completes it."""
        await self._open(object_id, upload_id)

    async def appended(self, object_id: ObjectId, upload_id: ChangeId) -> int:
        """How many bytes are kept of what was appended."""
        entry = await self._open(object_id, upload_id)
        if (state := OpenUpload.of(entry).appending) is not None:
            return state.size
        return sum(part.size for part in leading(await self._parts(entry, object_id)))

    async def take(self, object_id: ObjectId, upload_id: ChangeId, offset: int, part_bytes: int | None, default: int) -> Append:
        """Takes the token of who appends, from whoever has it. `part_bytes` None: that of the upload, or `default`.

        `OffsetMismatchError`: other bytes come next. `InvalidRequestError`: the upload has another `part_bytes`.
        """
        token = ChangeId.new(self._runtime)

        async def taken(entry: Entry, state: Appending | None) -> Appending:
            if state is None:
                state = Appending.adopted(part_bytes or default, await self._parts(entry, object_id))
            if part_bytes not in (None, state.part_bytes):
                raise InvalidRequestError(
                    f"the upload of {object_id} keeps {state.part_bytes} bytes in each part, since its first append, and not {part_bytes}: "
                    "leave part_bytes out"
                )
            if offset != state.size:
                raise _mismatch(object_id, offset, state)
            return state.taken(token)

        return await self._amended(object_id, await self._open(object_id, upload_id), taken)

    async def append(self, object_id: ObjectId, append: Append, piece: Sequence[Chunk], *, is_last: bool) -> Append:
        """Uploads the next part, and acknowledges it. `is_last`: the token is given back with that.

        `OffsetMismatchError`: somebody else goes on with the upload, and the part does not count.
        """
        mine, number = append.state, append.state.number()
        part = await self._asked(append.entry, object_id, lambda blobs, name, session: blobs.put_part(name, session, number, piece))
        kept = replace(mine.with_part(part), token=None if is_last else mine.token)
        return await self._amended(object_id, append.entry, partial(self._if_mine, object_id, mine, kept))

    async def give_back(self, object_id: ObjectId, append: Append) -> None:
        """Gives the token back. What fails costs a number, and is no error."""
        mine = append.state
        with suppress(TieredError):
            await self._amended(object_id, append.entry, partial(self._if_mine, object_id, mine, replace(mine, token=None)))

    async def _if_mine(self, object_id: ObjectId, mine: Appending, then: Appending, entry: Entry, state: Appending | None) -> Appending:
        if state != mine:
            raise _mismatch(object_id, mine.size, state)
        return then

    async def _amended(
        self, object_id: ObjectId, entry: Entry, change: Callable[[Entry, Appending | None], Awaitable[Appending]]
    ) -> Append:
        """Changes what the entry says of who appends. A change that was not answered shows in the entry."""
        sent: Appending | None = None
        for number in range(ATTEMPTS_MAX):
            if number:
                await self._runtime.sleep(PAUSE_S * number * self._runtime.random.uniform(0.5, 1.5))
                entry = await self._open(object_id, entry.change.id)
            opened = OpenUpload.of(entry)
            if sent is not None and opened.appending == sent:
                return Append(entry, sent)
            if opened.since_ms is not None:
                raise UnavailableError(f"the upload of {object_id} is being finished, so nothing is appended to it; ask its status later")
            sent = await change(entry, opened.appending)
            mine = replace(entry, attempt=entry.attempt + 1, assembling=replace(opened, appending=sent).encode())
            with suppress(UnavailableError, UnconfirmedError):
                if await self._services.changelog.call(partial(self._log.amend, entry, mine)):
                    return Append(mine, sent)
        raise UnavailableError(f"what was appended to the upload of {object_id} was never confirmed; ask its status, and go on from there")

    async def _open(self, object_id: ObjectId, upload_id: ChangeId) -> Entry:
        entry = await self._entry(object_id, upload_id)
        if entry is None or entry.assembling is None:
            try:
                raise await self._ended(object_id, upload_id, entry, None)
            except UnconfirmedError as error:
                why = f"the upload of {object_id} has ended, and what became of it was never confirmed"
                raise UnavailableError(f"{why}: {error}; try again") from error
        if entry.owner:  # somebody has claimed it: who completes it tells so before he seals it
            ended = await self._ended(object_id, upload_id, entry, OpenUpload.of(entry))
            if ended.completed:
                raise ended
        return entry

    async def _asked(self, entry: Entry, object_id: ObjectId, call: Callable[[PartUploads, str, str], Awaitable[T]]) -> T:
        """Calls the tier for the session of an open upload, again if it fails: each of these calls may be repeated."""
        name, session = blob_of(entry)
        try:
            return await self._services.blobs.repeat(call, self._blobs(), name, session)
        except UnconfirmedError as error:
            raise UnavailableError(f"the upload of {object_id} goes on, and what was asked of it was never confirmed: {error}") from error
        except SessionEndedError as error:
            raise await self._ended(object_id, entry.change.id, entry, OpenUpload.of(entry)) from error

    # --- its end ---------------------------------------------------------------------------------

    async def complete(
        self, object_id: ObjectId, upload_id: ChangeId, parts: Sequence[Part] | None, slot: Slot, *, appended: bool = False
    ) -> PutResult:
        """Goes on to its end, whatever becomes of its caller. `parts` None: all that were uploaded, or were appended.

        `appended`: it was appended to, if only by older software, so no part may be missing among the others.
        """
        if parts is not None:
            check_parts(str(object_id), parts)
        end = await self._carried(object_id, upload_id, partial(self._attempt, parts, appended), slot)
        assert end.result is not None, "it ended without an error"
        return end.result

    async def abort(self, object_id: ObjectId, upload_id: ChangeId, slot: Slot) -> None:
        """Goes on to its end, whatever becomes of its caller."""
        await self._carried(object_id, upload_id, self._give_up, slot)

    async def _carried(
        self, object_id: ObjectId, upload_id: ChangeId, attempt: Callable[[WriteInProgress], Awaitable[_End | None]], slot: Slot
    ) -> _End:
        write = WriteInProgress(object_id, upload_id, self._runtime.wall_ns(), self._runtime.boot_time())
        ends: list[_End] = []
        self._writes.add(write)
        self._writes.hand_over(write, partial(self._carry, write, attempt, ends), slot)
        await write.answered.wait()
        if write.error is not None:
            raise write.error
        return ends[0]

    async def _carry(self, write: WriteInProgress, attempt: Callable[[WriteInProgress], Awaitable[_End | None]], ends: list[_End]) -> None:
        end = None
        try:
            for number in range(ATTEMPTS_MAX):
                if number:
                    await self._runtime.sleep(PAUSE_S * number * self._runtime.random.uniform(0.5, 1.5))
                if (end := await attempt(write)) is not None:
                    break
        except UploadEndedError as error:
            end = _End(error=error)
        except TieredError as error:
            end = _End(error=self._unknown(write, error) if write.in_doubt or isinstance(error, UnconfirmedError) else error)
        if end is None:
            others = UnavailableError(f"the upload of {write.object_id} was completed or claimed by others again and again; try again")
            end = _End(error=self._unknown(write, None) if write.in_doubt else others)
        ends.append(end)
        if write.lease is not None:  # it was given up: who is told so finds nothing of it any more
            await self._writer.finish(write, end.live)
            write.answer(end.error)
            return
        write.answer(end.error)
        if end.entry is not None:
            try:
                write.lease = await self._heartbeat.claim(end.entry)
            except TieredError as error:
                events.warning("change_left_to_recovery", error, id=write.id, object=write.object_id.path)
            if write.lease is not None:
                await self._writer.finish(write, end.live)

    async def _attempt(self, parts: Sequence[Part] | None, appended: bool, write: WriteInProgress) -> _End | None:
        """One attempt to complete it. None: begin anew."""
        object_id, begun_s, begun_ns = write.object_id, self._runtime.boot_time(), self._runtime.wall_ns()
        entry = await self._entry(object_id, write.id)
        row = await self._services.rows.read(self._tiers.high_volume.read, object_id.path, marks=write.id)
        if _has_won(object_id, write.id, row):
            return await self._won(write, entry, parts)
        if entry is None or entry.assembling is None:
            raise await self._ended(object_id, write.id, entry, None)
        opened = OpenUpload.of(entry)
        now_ms = await self._services.changelog.read(self._log.now_ms)
        if write.id in row.refused or self._is_late(opened, now_ms):
            return await self._gave_up(write, entry)
        since_ms = now_ms if opened.since_ms is None else opened.since_ms
        write.condition, write.seen, write.judged_ns, write.since_ms = opened.condition, row, begun_ns, since_ms
        write.begun_s, write.begun_ns = begun_s - (now_ms - since_ms) / 1000, begun_ns - (now_ms - since_ms) * NS_PER_MS
        try:
            self._writer.check_condition(write, row, begun_ns)
        except ConditionFailedError as error:
            if opened.since_ms is None:
                raise
            return await self._gave_up(write, entry, error)  # a swap of an earlier attempt may be on its way
        listed = await self._listed(write, entry, opened, parts, appended)
        if listed is None:
            return await self._gave_up(write, entry)
        digest, size = (digest_of(listed), sum(part.size for part in listed)) if listed else (opened.digest, opened.size)
        _check_list(write, opened, digest, size)
        if self._policies is not None and opened.since_ms is None:  # nobody has claimed it, so no swap is on its way
            self._policies.new_object(object_id, opened.metadata, size, keeps=True)
        claim = replace(opened, since_ms=since_ms, digest=digest, size=size)
        mine = claimed(entry, claim, row.target, self._heartbeat.owner, now_ms + COMPLETION_MS)
        try:
            if not await self._services.changelog.call(partial(self._log.amend, entry, mine)):
                return None
        except UnconfirmedError:
            return None
        write.change = mine.change
        return await self._make_blob(write, entry, mine, claim, listed)

    def _is_late(self, opened: OpenUpload, now_ms: int) -> bool:
        """Whether nobody may claim it any more: a swap of an earlier attempt may have won, and lost its mark."""
        if opened.since_ms is None:
            return now_ms > opened.until_ms
        return now_ms - opened.since_ms > SWAP_AGE_MAX_S * 1000

    async def _make_blob(
        self, write: WriteInProgress, before: Entry, mine: Entry, claim: OpenUpload, parts: Sequence[Part]
    ) -> _End | None:
        """The part of an attempt after its claim. `parts` empty: the blob was seen."""
        name, session = blob_of(mine)
        try:
            if parts:
                await self._services.blobs.call(partial(self._blobs().complete_parts, name, session, parts))
        except SessionEndedError:
            return await self._gave_up(write, mine)
        except UnconfirmedError as error:
            why = "whether its parts were put together was never confirmed"
            raise UnavailableError(f"the upload of {write.object_id} is not complete: {why}; complete it again ({error})") from error
        except TieredError:
            await self._give_back(before, mine)
            raise
        try:
            await self._remember(write, claim)
        except UnconfirmedError as error:
            why = "what it was completed with was not remembered"
            raise UnavailableError(f"the upload of {write.object_id} is not complete: {why}; complete it again ({error})") from error
        deadline_ns = claim.metadata.stamps(self._runtime.wall_ns())["time_expires_ns"]
        if deadline_ns is not None and not await self._extended(name, deadline_ns):
            return await self._gave_up(write, mine)
        told = described(claim.metadata, claim.size, write.begun_ns) if claim.whole and claim.size is not None else None
        told = None if told is None else told.with_facts(time_expires_ns=deadline_ns)
        state = Tombstone(name, claim.metadata.expiration, deadline_ns, write.id, write.condition is not None, told)
        only = None if write.condition is None or write.seen is None else write.condition.only(write.seen.state, write.judged_ns)
        if not await self._writer.reserve(write, only):
            return None
        result = _result(write, claim.size)
        if await self._writer.swap(write, mine.change, None, state, only) is SwapResult.OK:
            return _End(result, live=True, entry=mine)
        write.in_doubt = True
        row = await self._services.rows.settle(self._tiers.high_volume.read, write.object_id.path, marks=write.id)
        return _End(result, entry=mine) if _has_won(write.object_id, write.id, row) else None

    async def _remember(self, write: WriteInProgress, claim: OpenUpload) -> None:
        """Leaves the marks of its list. The blob is made of it by now, or will be: there can be no other one."""
        assert claim.digest is not None and claim.size is not None and claim.since_ms is not None, "it was claimed"
        lists, settle, path = CompletedLists(write.id), self._tiers.high_volume.settle, write.object_id.path
        of_list, of_size = lists.of_list(claim.digest), lists.of_size(claim.size, claim.since_ms)
        leave = self._services.rows.settle
        await run_both(partial(leave, settle, path, of_list), partial(leave, settle, path, of_size))

    async def _extended(self, name: str, deadline_ns: int) -> bool:
        """Lets the blob live as long as the row will. False: it had expired, and was collected."""
        return await self._services.blobs.settle(self._tiers.long_term.touch, name, deadline_ns)

    async def _give_back(self, before: Entry, mine: Entry) -> None:
        try:
            await self._log.amend(mine, replace(before, attempt=mine.attempt))
        except TieredError as error:
            events.warning("claim_not_given_back", error, id=mine.change.id, object=mine.change.object)

    async def _won(self, write: WriteInProgress, entry: Entry | None, parts: Sequence[Part] | None) -> _End:
        """It took effect, by whichever attempt. The entry tells of what, and when that is gone, the marks do."""
        entry = None if entry is None or entry.assembling is None else entry  # who has sealed it does the rest
        opened = None if entry is None else OpenUpload.of(entry)
        if opened is None or opened.digest is None:
            return _End(_result(write, await self._completed_size(write, parts)), entry=entry)
        if parts is not None:
            _check_list(write, opened, digest_of(parts), opened.size)
        return _End(_result(write, opened.size), entry=entry)

    async def _completed_size(self, write: WriteInProgress, parts: Sequence[Part] | None) -> int:
        """The size of what it was completed with, if that is what was asked for. `UploadEndedError`: nobody knows.

        Older software leaves no marks of a list.
        """
        row = await self._services.rows.read(self._tiers.high_volume.read, write.object_id.path, marks=True)
        lists = CompletedLists(write.id)
        if parts is not None and lists.of_list(digest_of(parts)) in row.refused:
            return sum(part.size for part in parts)
        completed = lists.completed(row.refused)
        if parts is not None:
            if completed is not None and self._writer.marks_are_whole(completed.since_ms, row):
                raise InvalidRequestError(f"the upload of {write.object_id} was completed with other parts")
            raise _completed(write)
        if completed is not None and completed.size is not None:
            return completed.size
        head = await self._services.blobs.read(self._tiers.long_term.head, blob_name(write.object_id.path, write.id))
        if head is None:
            raise _completed(write)
        return head.size

    async def _give_up(self, write: WriteInProgress) -> _End | None:
        entry = await self._entry(write.object_id, write.id)
        if entry is not None and entry.assembling is not None:
            end = await self._gave_up(write, entry)
            if end is not None and isinstance(end.error, UploadEndedError) and end.error.completed is False:
                return replace(end, error=None)
            return end if end is None or end.error is not None else replace(end, error=_completed(write))
        ended = await self._ended(write.object_id, write.id, entry, None)
        if ended.completed is None and entry is not None:
            return None  # whoever has sealed it may know more, and say so soon
        if ended.completed is not False:  # its row may have expired, and its marks with it
            raise ended
        return _End()

    async def _gave_up(self, write: WriteInProgress, entry: Entry, why: TieredError | None = None) -> _End | None:
        """Seals the entry, settles the upload, and says what came of it. None: somebody else has the entry."""
        opened = OpenUpload.of(entry)
        write.lease = await self._heartbeat.claim(entry)
        if write.lease is None:
            return None
        write.change, change = entry.change, entry.change
        write.in_doubt = True  # it is open no more, and what became of it is not known yet
        write.may_land_late = opened.digest is not None
        live = await self._services.rows.settle(settle_change, self._tiers, change)
        row = await self._services.rows.settle(self._tiers.high_volume.read, change.object, marks=change.id)
        if took_effect(change, live, row):
            return _End(_result(write, opened.size), live=live)
        never = opened.since_ms is None or self._writer.marks_are_whole(opened.since_ms, row)
        if never:
            await self._services.rows.settle(self._tiers.high_volume.settle, change.object, CompletedLists(change.id).given_up)
        if why is None or not never:  # a write that may have won is not told that its condition was false
            why = UploadEndedError(write.object_id, write.id, completed=False if never else None)
        return _End(error=why, live=live)

    async def _listed(
        self, write: WriteInProgress, entry: Entry, opened: OpenUpload, parts: Sequence[Part] | None, appended: bool
    ) -> Sequence[Part] | None:
        """The parts to complete it with. None: its session has ended without a blob. Empty: its blob is there."""
        state = opened.appending
        if parts is not None:
            if state is not None and list(state.acknowledged(str(write.object_id), parts)) != list(parts):
                raise InvalidRequestError(f"the upload of {write.object_id} was appended to: finish it, without a list of parts")
            return parts
        name, session = blob_of(entry)
        try:
            listed = await self._services.blobs.read(self._blobs().parts, name, session)
        except SessionEndedError:
            if opened.size is None:
                return None
            head = await self._services.blobs.read(self._tiers.long_term.head, name)
            return () if head is not None and head.size == opened.size else None
        check_parts(str(write.object_id), listed)
        if state is not None:
            listed = state.acknowledged(str(write.object_id), listed)
            check_parts(str(write.object_id), listed)
        elif appended and len(whole := leading(listed)) < len(listed):
            raise InvalidRequestError(
                f"the upload of {write.object_id} has no part {len(whole) + 1}, but others after it: append what is missing first"
            )
        return list(listed)

    # --- beside ----------------------------------------------------------------------------------

    async def _entry(self, object_id: ObjectId, upload_id: ChangeId) -> Entry | None:
        """None: there is none any more, or there never was. One that is assembling no more was sealed."""
        entry = await self._services.changelog.read(self._log.read, upload_id)
        if entry is None:
            return None
        if not isinstance(entry, Entry):
            raise CorruptRecordError(entry.error)
        if entry.change.object != object_id.path:
            raise InvalidRequestError(f"upload {upload_id} is none of {object_id}")
        return entry

    async def _ended(
        self, object_id: ObjectId, upload_id: ChangeId, entry: Entry | None, opened: OpenUpload | None
    ) -> UploadEndedError:
        """Why an upload cannot go on, as far as the row knows. A sealed entry is settled first, if nobody did that yet.
        """
        if entry is not None and entry.assembling is None:
            await self._services.rows.settle(settle_change, self._tiers, entry.change)
        read = partial(self._services.rows.read, self._tiers.high_volume.read, object_id.path)
        row = await read(marks=upload_id)
        if _has_won(object_id, upload_id, row):
            return UploadEndedError(object_id, upload_id, completed=True)
        never = False
        if upload_id in row.refused:
            since_ms = upload_id.created_ms if opened is None else opened.since_ms
            given_up = CompletedLists(upload_id).given_up
            never = since_ms is None or self._writer.marks_are_whole(since_ms, row)
            never = never or given_up in (await read(marks=given_up)).refused
        return UploadEndedError(object_id, upload_id, completed=False if never else None)

    def _unknown(self, write: WriteInProgress, cause: TieredError | None) -> OutcomeUnknownError:
        unknown = OutcomeUnknownError(write.object_id, write.id, logged=True)
        unknown.__cause__ = cause
        return unknown

    def _blobs(self) -> PartUploads:
        blobs = self._tiers.long_term
        if not isinstance(blobs, PartUploads):
            raise ConfigurationError("the long-term tier of this store takes no uploads in parts")
        return blobs


def _has_won(object_id: ObjectId, upload_id: ChangeId, row: Row) -> bool:
    return upload_id in row.won or row.target == blob_name(object_id.path, upload_id)


def _result(write: WriteInProgress, size: int | None) -> PutResult:
    """`size`: of the list that was claimed; only a claimed upload has a result."""
    assert size is not None, "it was claimed"
    return PutResult(write.id, Tier.LONG_TERM, size)


def _mismatch(object_id: ObjectId, offset: int, state: Appending | None) -> OffsetMismatchError:
    there = 0 if state is None else state.size
    why = "somebody else goes on with it" if offset == there else f"none from {offset} on can be appended"
    return OffsetMismatchError(f"the upload of {object_id} has {there} bytes, and {why}; go on from there", there)


def _completed(write: WriteInProgress) -> UploadEndedError:
    return UploadEndedError(write.object_id, write.id, completed=True)


def _check_list(write: WriteInProgress, opened: OpenUpload, digest: str | None, size: int | None) -> None:
    if opened.digest not in (None, digest):
        raise InvalidRequestError(
            f"the upload of {write.object_id} is being completed with other parts: complete it with the same list, or without one"
        )
    if opened.metadata.size not in (None, size):
        raise InvalidRequestError(f"metadata declares {opened.metadata.size} bytes, but the parts have {size}")
    if opened.size_max is not None and size is not None and size > opened.size_max:
        raise InvalidRequestError(
            f"the link to write {write.object_id} was signed for {opened.size_max} bytes, and its parts have {size}:"
            " let it be sent again, or abort the upload"
        )
