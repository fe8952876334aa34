"""The guards of the protocol. Each one can be knocked out, and the simulation must then find a violation.

    with GUARDS["won mark in the swap"].knocked_out():
        run(Recipe.of(seed), Coverage())            must find a violation, for some seed of a few thousand

A check that never failed proves nothing. So each rule of the design that data depends on is taken away, one at a time.
This is done from outside: a function or a method is replaced for as long as a `with` lasts, because the product has no
hooks. A knock-out takes one thing away and leaves the rest as it is. `emulators.simulation.guard_search` counts the
seeds, and docs/guards.md keeps the counts.

Leases are not among them. Who holds an entry decides only how soon recovery acts and how much is done twice. `Watch`
itself checks what leases are made of: the condition of a heartbeat, and the attempt in a claim.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import recovery.loop
import tiered.protocol.assembling
import tiered.protocol.finishing
import tiered.protocol.open_upload
import tiered.protocol.writing
import tiered.services.guarded
import tiered.storage
from changelog.base.errors import TieredError, UnavailableError, UnconfirmedError
from changelog.base.observe import SILENT, Observer
from changelog.base.runtime import Runtime
from changelog.change import Change, ChangeId, Entry, encode
from changelog.heartbeat import Heartbeat
from changelog.lease import Lease, Renewal
from changelog.log import ChangeLog
from emulators.s3.memory import MemoryS3
from emulators.simulation.coverage import Coverage
from emulators.simulation.replaced import Replacement, replaced
from emulators.simulation.run import RunResult, RunSeed
from emulators.simulation.unfenced import UnfencedBlobs, UnfencedRows, follow_once
from emulators.world.services import SimulatedBlobs, SimulatedChangeLog, SimulatedRows
from recovery.audit.deleting import candidates
from recovery.audit.deleting.candidates import Candidate, DeletionBatch
from tiered.errors import OutcomeUnknownError
from tiered.limits.admission import Slot
from tiered.metadata import Metadata, is_expired, touch_deadline
from tiered.notes.feed_off import FeedOffNotifier
from tiered.object_id import ObjectId, blob_name
from tiered.protocol.appending import Appending
from tiered.protocol.assembling import Assembler
from tiered.protocol.conditions import ANY_REVISION, Condition, IfRevision, checked_condition, revision_shown
from tiered.protocol.finishing import Ending, took_effect
from tiered.protocol.reading import CopySource, Lifetime, Reader
from tiered.protocol.under_way import WriteInProgress
from tiered.protocol.writing import SwapResult, Writer, WriteResult
from tiered.s3.blobs import S3Blobs
from tiered.s3.upload import SinglePut
from tiered.services.backends import Inline, Only, Row, RowState, Still, Tiers, Tombstone, Vacant
from tiered.services.capabilities import Part
from tiered.services.retry import retry
from tiered.services.scans import Generation, Removal
from tiered.storage import TieredStorage
from tiered.stored import PutResult
from tiered.testing.blobs import Blob, MemoryCopy, MemoryUpload
from tiered.testing.log import StoredEntry

T = TypeVar("T")

INVARIANTS = frozenset({"I1 no dangling", "I2 settle first", "I3 no leak", "I4 honest", "I5 repeatable", "I6 drained", "I7 whole"})
SPOILT = frozenset({"spoilt"})
"""What a world calls it when a deletion refuses a change whose entry is open."""
LEASE = frozenset({"lease"})
"""What `Watch` calls it when an entry gets a holder that it may not get."""


@dataclass(frozen=True, slots=True)
class Guard:
    """One guard. `protects`: what goes wrong without it, in one sentence.

    `patches`: the module or class, the name in it, and what stands there instead. `seen`: the invariants whose
    violation shows that the simulation has found out; None: any. `seed`: of a feed's guard, one that misses it.
    """

    protects: str
    patches: tuple[Replacement, ...]
    seen: frozenset[str] | None = INVARIANTS
    seed: int | None = None

    @contextmanager
    def knocked_out(self) -> Iterator[None]:
        """Takes the guard away for as long as the `with` lasts. Only one at a time."""
        with replaced(self.patches):
            yield

    def watched(self, run: RunSeed) -> RunSeed:
        """Returns the same, but a violation counts only if it is one by which this guard's absence is known."""

        def run_watched(seed: int, coverage: Coverage) -> RunResult:
            result = run(seed, coverage)
            if result.violation is not None and self.seen is not None and result.violation.invariant not in self.seen:
                result.violation = None
            return result

        return run_watched


# --- rows ----------------------------------------------------------------------------------------


def _conflicts_but_for(won: bool = False, refused: bool = False, target: bool = False) -> Callable[..., bool]:
    """The predicate of a swap, without the named parts."""

    def conflicts(self: SimulatedRows, path: str, token: ChangeId, expected: str | None) -> bool:
        return (
            (not won and token in self.won.get(path, ()))
            or (not refused and token in self.refused.get(path, ()))
            or (not target and self._target(path) not in (None, expected))
        )

    return conflicts


def _replace_inline_but_for(marks: bool = False, target: bool = False) -> Callable[..., Awaitable[bool]]:
    """The predicate of an inline write, without the named parts."""

    async def replace_inline(self: SimulatedRows, call: str, path: str, token: ChangeId, state: Inline | None) -> bool:
        await self._travel()
        if (not target and self._target(path) is not None) or (not marks and self._is_marked(path, token)):
            return False
        self._write(path, token, state)
        self._took_effect(call, path)
        return True

    return replace_inline


def _unexpired_target(self: SimulatedRows, path: str) -> str | None:
    state = self.states.get(path)
    return None if state is None or is_expired(state.deadline_ns, self._runtime.wall_ns()) else Row(state).target


async def _settle_the_unexpired(self: SimulatedRows, path: str, token: ChangeId) -> bool:
    await self._travel()
    state = self.states.get(path)
    if state is not None and state.token == token and not is_expired(state.deadline_ns, self._runtime.wall_ns()):
        return True
    self.refused[path][token] = self._now_ms()
    self._took_effect("rows.settle", path)
    return False


def _satisfies_but_for(kind: type[Vacant] | type[Still]) -> Callable[..., bool]:
    """The condition of a swap, without conditions of this kind."""

    def satisfies(self: SimulatedRows, path: str, token: ChangeId, only: Only | None) -> bool:
        return isinstance(only, kind) or _SATISFIES(self, path, token, only)

    return satisfies


async def _swap_whenever(
    self: SimulatedRows, path: str, token: ChangeId, expected: str | None, state: RowState, deadline_s: float, only: Only | None = None,
    since_ms: int | None = None,
) -> bool:  # fmt: skip
    return await _SWAP(self, path, token, expected, state, float("inf"), only, since_ms)


# --- blobs ---------------------------------------------------------------------------------------


async def _finalise_without_its_deadline(self: SinglePut) -> None:
    """Writes the deadline as well as it can."""
    write = self._before_end

    async def try_to_write(amended: Metadata | None) -> None:
        with suppress(TieredError):
            await write(amended)

    self._before_end = try_to_write
    await _PUT(self)


async def _touch_by_replacing(self: S3Blobs, name: str, deadline_ns: int) -> bool:
    """Removes the deadlines, and writes another."""
    found = await self._found(name)
    if found is None or found.metadata.time_expires_ns is None:
        return found is not None
    for key, ns in await self._markers_of(name):
        deadline_ns = max(deadline_ns, ns)
        await self.client.call("delete_object", "removing a deadline", effect=True, Key=key)
    await self._mark(name, deadline_ns)
    return True


_PUT = SinglePut.finalise


def _create_over(self: SimulatedBlobs, name: str, metadata: Metadata, payload: bytes, **_: Any) -> None:
    self.blobs[name] = Blob(metadata.with_facts(size=len(payload)), payload, self._runtime.wall_ns(), self._next_generation())
    self._took_effect("upload.finalise", name)


async def _open_copy_as_the_source(
    self: SimulatedBlobs, source: str, generation: Generation, name: str, metadata: Metadata
) -> MemoryUpload:
    blob = self.blobs.get(source)
    deadline_ns = metadata.time_expires_ns if blob is None else blob.metadata.time_expires_ns
    return await _OPEN_COPY(self, source, generation, name, metadata.with_facts(time_expires_ns=deadline_ns))


def _bytes_of_any_generation(self: MemoryCopy) -> bytes:
    blob = self._blobs.blobs.get(self._source)
    return _BYTES(self) if blob is None else blob.payload


# --- the log -------------------------------------------------------------------------------------


async def _renew_whatever_is_there(self: SimulatedChangeLog, entries: Sequence[Entry]) -> Sequence[Renewal]:
    await self._travel()
    for entry in entries:
        self.stored[entry.key] = StoredEntry(encode(entry), self._now_ms())
        self._took_effect("log.renew", entry.key)
    return [Renewal.RENEWED] * len(entries)


async def _claim_whoever_holds_it(self: SimulatedChangeLog, entry: Entry, owner: str) -> Entry | None:
    await self._travel()
    if entry.key not in self.stored:
        return None
    claimed = entry.claimed_by(owner)
    self.stored[entry.key] = replace(self.stored[entry.key], value=encode(claimed), heartbeat_ms=self._now_ms())
    self._took_effect("log.claim", entry.key)
    return claimed


class _StandsStill:
    """A runtime whose boot-time clock stands still while the machine is suspended."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.boot_time = runtime.monotonic

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


def _beat_by_monotonic_clock(self: Heartbeat, log: ChangeLog, runtime: Runtime, owner: str, interval_s: float, expiry_s: float) -> None:
    _HEARTBEAT(self, log, _StandsStill(runtime), owner, interval_s, expiry_s)


# --- the store -----------------------------------------------------------------------------------


async def _judge_by_the_answer(self: Writer, write: WriteInProgress, change: Change, lease: Lease | None, told: SwapResult) -> WriteResult:
    """Takes a swap that was not told ok for one that failed."""
    return WriteResult(UnavailableError(f"{write.object_id} was not changed, it seems"), None)


async def _judge_the_condition_first(
    self: Writer, write: WriteInProgress, change: Change, lease: Lease | None, told: SwapResult
) -> WriteResult:
    row, now_ns = await self._row(write.object_id), self._runtime.wall_ns()
    is_shown = row.state is not None and row.state.token == write.id
    if write.condition is not None and not is_shown and not write.condition.holds(write.object_id.path, row.state, now_ns):
        return WriteResult(write.condition.failure(write.object_id, row.state, now_ns), None)
    return await _JUDGE(self, write, change, lease, told)


def _superseded_by_anybody(change: Change, live: bool, row: Row) -> bool:
    return took_effect(change, live, row) or (row.target is not None and row.target != change.old)


async def _wait_for_nothing(self: Writer, write: WriteInProgress) -> None:
    """The upload is finalised at once: only the swap waits for the record."""


async def _wait_recorded(self: Writer, write: WriteInProgress) -> None:
    await write.wait_recorded()


async def _touch_the_row_first(self: Reader, object_id: ObjectId, read: Lifetime) -> None:
    state = read.state
    deadline_ns = touch_deadline(read.expiration, read.deadline_ns, self._runtime.wall_ns())
    if deadline_ns is None:
        return
    await self._tiers.high_volume.touch(object_id.path, state, deadline_ns)
    if isinstance(state, Tombstone):
        await self._tiers.long_term.touch(state.target, deadline_ns)


async def _write_again_and_again(
    call: Callable[[], Awaitable[T]], runtime: Runtime, budget_s: float, repeat: Any = None, observer: Observer = SILENT,
    call_s_max: float = 0.0,
) -> T:
    return await retry(call, runtime, budget_s)


async def _say_not_live(self: Writer, write: WriteInProgress) -> bool:
    return False


async def _settle_or_pass_on(self: Writer, write: WriteInProgress) -> bool:
    try:
        return await retry(lambda: self._tiers.high_volume.settle(write.object_id.path, write.id), self._runtime, self._budget_s)
    except (UnavailableError, UnconfirmedError) as error:
        raise OutcomeUnknownError(write.object_id, write.id) from error


async def _leave_abandoned(self: Writer, write: WriteInProgress) -> None:
    return


async def _rename_what_is_there(
    self: TieredStorage, source: ObjectId, destination: ObjectId, *, if_absent: bool = False, if_revision: IfRevision = ANY_REVISION
) -> PutResult | None:
    """Deletes the source whatever it is now."""
    found = await self._copy(source, destination, checked_condition(if_absent, if_revision), whole=True)
    if found is None:
        return None
    with await self._enter(self._writes) as slot:
        await self._writer.delete(WriteInProgress.begin(source, self._runtime), slot)
    return found[0]


async def _rename_backwards(
    self: TieredStorage, source: ObjectId, destination: ObjectId, *, if_absent: bool = False, if_revision: IfRevision = ANY_REVISION
) -> PutResult | None:
    """Deletes the source, and then writes what it was."""
    found = await self._reader.source(source)
    if found is None or found.payload is None or found.head.revision is None:
        return None
    with await self._enter(self._writes) as slot:
        await self._writer.delete(WriteInProgress.begin(source, self._runtime, Condition(found.head.revision)), slot)
    with await self._enter(self._writes) as slot:
        write = WriteInProgress.begin(destination, self._runtime, checked_condition(if_absent, if_revision))
        return await self._writer.put_copy(write, found.head.metadata, found, slot)


async def _change_what_is_there(self: Writer, write: WriteInProgress, metadata: Metadata, source: CopySource, slot: Slot) -> PutResult:
    if write.object_id == source.head.object_id:
        write.condition = None
    return await _PUT_COPY(self, write, metadata, source, slot)


async def _source_also_expired(self: Reader, object_id: ObjectId) -> CopySource | None:
    async def state(path: str) -> RowState:
        return (await self._tiers.high_volume.read(path)).state

    reader = copy.copy(self)
    reader._state = state  # type: ignore[method-assign]
    return await _SOURCE(reader, object_id)


def _holds_also_expired(self: Condition, path: str, state: RowState, now_ns: int) -> bool:
    return _HOLDS(self, path, state, now_ns) if self.revision is None else revision_shown(path, state) == self.revision


async def _say_garbage(tiers: Tiers, change: Change, old: str) -> bool:
    return True


async def _say_change_is_garbage(tiers: Tiers, change: Change) -> bool:
    return False


async def _forget_first(
    tiers: Tiers, log: ChangeLog, heartbeat: Heartbeat, lease: Lease, live: bool | None, grace_ms: int | None,
    feed_off: FeedOffNotifier | None,
) -> Ending:  # fmt: skip
    await log.forget(lease.entry)
    return await _FINISH(tiers, log, heartbeat, lease, live, grace_ms, feed_off)


_SWAP, _FINISH, _HEARTBEAT = SimulatedRows.swap, tiered.protocol.finishing.finish, Heartbeat.__init__
_SATISFIES, _JUDGE = SimulatedRows._satisfies, Writer._judge
_BYTES = MemoryCopy._bytes
_OPEN_COPY, _PUT_COPY, _SOURCE, _HOLDS = SimulatedBlobs.open_copy, Writer.put_copy, Reader.source, Condition.holds


# --- open uploads --------------------------------------------------------------------------------

_CLAIMED, _CLAIMED_BY = tiered.protocol.open_upload.claimed, Entry.claimed_by


def _claimed_over_nothing(entry: Entry, claim: Any, old: str | None, owner: str, cleanup_after_ms: int) -> Entry:
    return _CLAIMED(entry, claim, None, owner, cleanup_after_ms)


def _claimed_uncounted(entry: Entry, claim: Any, old: str | None, owner: str, cleanup_after_ms: int) -> Entry:
    return replace(_CLAIMED(entry, claim, old, owner, cleanup_after_ms), attempt=0)


def _claimed_unsealed(self: Entry, owner: str) -> Entry:
    return replace(_CLAIMED_BY(self, owner), assembling=self.assembling)


async def _extended_by_nobody(self: Assembler, name: str, deadline_ns: int) -> bool:
    return True


async def _acknowledged_by_anybody(
    self: Assembler, object_id: ObjectId, mine: Appending, then: Appending, entry: Entry, state: Appending | None
) -> Appending:
    if state is None:
        return then
    return replace(then, size=state.size + then.size - mine.size, token=state.token)


async def _size_alone(self: Assembler, write: WriteInProgress, parts: Sequence[Part] | None) -> int:
    """Another list of the same size passes, and any list does once the blob is gone."""
    head = await self._services.blobs.read(self._tiers.long_term.head, blob_name(write.object_id.path, write.id))
    return sum(part.size for part in parts or ()) if head is None else head.size


# --- the deletion of orphans ---------------------------------------------------------------------


async def _say_unlogged(self: DeletionBatch, left: Sequence[Candidate]) -> set[str]:
    return set()


def _row_of_its_object(candidate: Candidate) -> tuple[str, ...]:
    return (candidate.path,)


async def _see_in_the_row(self: DeletionBatch, candidate: Candidate) -> bool:
    return (await self.tiers.high_volume.read(candidate.path)).target == candidate.name


async def _remove_whatever_is_there(tiers: Tiers, candidate: Candidate) -> Removal:
    await tiers.long_term.delete(candidate.name)
    return Removal.DELETED


async def _remove_all_that_is_there(tiers: Tiers, candidates: Sequence[Candidate]) -> Sequence[Removal]:
    return [await _remove_whatever_is_there(tiers, candidate) for candidate in candidates]


# --- the table -----------------------------------------------------------------------------------

GUARDS: dict[str, Guard] = {
    "refused mark in the swap": Guard(
        "A swap that lands after recovery has refused it points a tombstone at a blob that is deleted.",
        ((SimulatedRows, "_conflicts", _conflicts_but_for(refused=True)),),
    ),
    "won mark in the swap": Guard(
        "A swap that is repeated after others have written takes effect once more.",
        ((SimulatedRows, "_conflicts", _conflicts_but_for(won=True)),),
    ),
    "old target in the swap": Guard(
        "A swap over a tombstone that its change never saw leaves that one's blob to nobody.",
        ((SimulatedRows, "_conflicts", _conflicts_but_for(target=True)),),
    ),
    "marks in the inline write": Guard(
        "An inline write that was given up lands late, over what was written since.",
        ((SimulatedRows, "_replace_inline", _replace_inline_but_for(marks=True)),),
    ),
    "tombstone in the inline write": Guard(
        "An inline write over a tombstone leaves its blob to nobody: it keeps no entry.",
        ((SimulatedRows, "_replace_inline", _replace_inline_but_for(target=True)),),
    ),
    "presence, not expiry, in predicates": Guard(
        "What has expired for one clock is taken for absent, and a tombstone that is there, and may be extended, loses its blob.",
        ((SimulatedRows, "_target", _unexpired_target), (SimulatedRows, "settle", _settle_the_unexpired)),
    ),
    "settle refuses": Guard(
        "Garbage that was only looked at, and not refused, may still be swapped in.",
        ((SimulatedRows, "settle", UnfencedRows.settle),),
    ),
    "settle before the old blob is deleted": Guard(
        "Whoever did not win deletes the blob that the row still names.", ((tiered.protocol.finishing, "_is_garbage", _say_garbage),),
    ),
    "settle before the new blob is deleted": Guard(
        "Recovery deletes the blob of a change that won before its owner died.",
        (
            (tiered.protocol.finishing, "settle_change", _say_change_is_garbage),
            (tiered.protocol.writing, "settle_change", _say_change_is_garbage),
        ),
    ),
    "settle before the answer": Guard(
        "A swap that was not answered is told to have failed, and lands.", ((Writer, "_judge", _judge_by_the_answer),),
    ),
    "the row read before the answer: no": Guard(
        "A change that won and was replaced since is told to have failed.",
        (
            (tiered.protocol.writing, "may_tell_ok", lambda change, live, row: live),
            (tiered.protocol.writing, "took_effect", lambda change, live, row: live),
        ),
    ),
    "the row read before the answer: ok": Guard(
        "A change that was refused is told ok.",
        (
            (tiered.protocol.writing, "may_tell_ok", lambda change, live, row: True),
            (tiered.protocol.writing, "took_effect", lambda change, live, row: True),
        ),
    ),
    "nothing there, in the swap": Guard(
        "A put `if_absent` takes effect over an object that came after its read.",
        ((SimulatedRows, "_satisfies", _satisfies_but_for(Vacant)),),
    ),
    "reservation in the swap": Guard(
        "A write `if_revision` takes effect over what replaced that revision after its read.",
        ((SimulatedRows, "_satisfies", _satisfies_but_for(Still)),),
    ),
    "reservations end with a write": Guard(
        "A write `if_revision` takes effect though the revision was replaced after it was reserved.",
        ((SimulatedRows, "_end_reservations", lambda self, path: None),),
    ),
    "condition in the answer": Guard(
        "A write with a condition is told ok because another superseded it.",
        ((tiered.protocol.writing, "took_effect", tiered.protocol.finishing.may_tell_ok),),
    ),
    "condition shown by a tombstone": Guard(
        "A write is told that a write with a condition superseded it, and would have broken that condition.",
        ((tiered.protocol.writing, "may_tell_ok", _superseded_by_anybody),),
    ),
    "refused before the condition is called false": Guard(
        "A caller is told that the condition is false, and the write takes effect later, or has already.",
        ((Writer, "_judge", _judge_the_condition_first),),
    ),
    "revision in the deletion of a rename": Guard(
        "A rename deletes what somebody has written under the old name since the copy.",
        ((TieredStorage, "rename", _rename_what_is_there),),
    ),
    "copy before the deletion of a rename": Guard(
        "A rename that dies in the middle has deleted the only copy.", ((TieredStorage, "rename", _rename_backwards),),
    ),
    "revision in a change of metadata": Guard(
        "A change of metadata brings back what was deleted or overwritten since it was read.",
        ((Writer, "put_copy", _change_what_is_there),),
    ),
    "expiry before a change of metadata": Guard(
        "A change of metadata or of the expiry brings back what had expired before.",
        ((Reader, "source", _source_also_expired), (Condition, "holds", _holds_also_expired)),
    ),
    "new deadline on a copied blob": Guard(
        "A row whose life was prolonged outlives its blob, which has kept the deadline of its source.",
        ((SimulatedBlobs, "open_copy", _open_copy_as_the_source),),
    ),
    "generation in a copy": Guard(
        "A copy has the metadata of one write of older software and the payload of the next one.",
        ((MemoryCopy, "_bytes", _bytes_of_any_generation),),
    ),
    "conditional heartbeat": Guard(
        "A renewal revives an entry that is done, or takes it back from whoever claimed it.",
        ((SimulatedChangeLog, "renew", _renew_whatever_is_there),), INVARIANTS | LEASE,
    ),
    "attempt in the claim": Guard(
        "Two recoveries hold one entry, and failed attempts are miscounted.",
        ((SimulatedChangeLog, "claim", _claim_whoever_holds_it),), INVARIANTS | LEASE,
    ),
    "conditional touch": Guard(
        "The touch of an idle object brings back a tombstone that was replaced since it was read.",
        ((SimulatedRows, "touch", UnfencedRows.touch),),
    ),
    "blob touched before the row": Guard(
        "A row that was extended alone outlives its blob.", ((Reader, "touch", _touch_the_row_first),),
    ),
    "create-only upload": Guard(
        "A blob that readers are reading is written again.", ((SimulatedBlobs, "_create", _create_over),),
    ),
    "old target in the claim of an upload": Guard(
        "Who completes an upload and dies leaves the blob that it replaced to nobody.",
        ((tiered.protocol.assembling, "claimed", _claimed_over_nothing),),
    ),
    "attempts are counted in the claim of an upload": Guard(
        "A claim that is given back late undoes a later one, and what that one replaced is forgotten.",
        ((tiered.protocol.assembling, "claimed", _claimed_uncounted),), INVARIANTS | LEASE,
    ),
    "seal before an upload is refused": Guard(
        "An upload that was given up is completed once its refused mark is gone.",
        ((Entry, "claimed_by", _claimed_unsealed),), INVARIANTS | LEASE,
    ),
    "first claim of an upload is young": Guard(
        "An upload that won, was replaced and has lost its marks is completed again.",
        ((Assembler, "_is_late", lambda self, opened, now_ms: False), (WriteInProgress, "age_s", lambda self, runtime: 0.0)),
    ),
    "token of who appends": Guard(
        "Two append at one offset, and both are told ok.", ((Assembler, "_if_mine", _acknowledged_by_anybody),),
    ),
    "marks of what an upload was completed with": Guard(
        "Who completes an upload with other parts is told that they are the object.", ((Assembler, "_completed_size", _size_alone),),
    ),
    "blob of an upload extended before its row": Guard(
        "A row whose life is counted from the completion outlives its blob, which was begun before.",
        ((Assembler, "_extended", _extended_by_nobody),),
    ),
    "finalise only after the record": Guard(
        "A blob is visible before the log knows of it, and stays when its writer dies.",
        ((Writer, "_wait_held", _wait_for_nothing),),
    ),
    "lease held before finalise": Guard(
        "A blob appears when recovery has cleaned up after its change, and nobody looks again.",
        ((Writer, "_wait_held", _wait_recorded),),
    ),
    "leases by the boot-time clock": Guard(
        "A machine that slept believes that its lease holds, and finalises a blob that recovery has done with.",
        ((Heartbeat, "__init__", _beat_by_monotonic_clock),),
    ),
    "cancel of the session": Guard(
        "An upload that was given up stays open, and may be finalised after all is cleaned up.",
        ((SimulatedBlobs, "cancel", UnfencedBlobs.cancel),),
    ),
    "late-upload clean-up": Guard(
        "A single-request upload lands after its blob was deleted and its entry forgotten.",
        ((tiered.protocol.finishing, "waits_for_late_upload", lambda change, live: False),),
    ),
    "forget after the clean-up": Guard(
        "Who dies between the two leaves garbage that no entry names.",
        ((tiered.protocol.writing, "finish", _forget_first), (recovery.loop, "finish", _forget_first)),
    ),
    "legacy blob deleted only when replaced": Guard(
        "A blob without a revision is deleted while the row still names it.",
        ((tiered.protocol.finishing, "may_delete_legacy", lambda change, row: True),),
    ),
    "re-read on a vanished blob": Guard(
        "A read during an overwrite finds nothing, though there was something all the time.", ((Reader, "_follow", follow_once),),
    ),
    "inline write sent once": Guard(
        "An inline write that was not answered is sent again, and takes effect twice.",
        ((tiered.services.guarded, "retry", _write_again_and_again),),
    ),
    "settle after an unknown inline attempt": Guard(
        "An inline write that was not answered is told to be over, and lands late.",
        ((Writer, "_settle_inline", _say_not_live),),
    ),
    "unknown when it may not be settled": Guard(
        "A permission that is taken away after an inline write was sent is told as if nothing had happened.",
        ((Writer, "_settle_inline", _settle_or_pass_on),),
    ),
    "settle after an abandoned inline write": Guard(
        "The inline write of a caller that gave up lands over what it wrote next.",
        ((Writer, "_settle_abandoned", _leave_abandoned),),
    ),
    "age bound of a swap": Guard(
        "A swap is sent when the mark that refused it has been collected.", ((WriteInProgress, "age_s", lambda self, runtime: 0.0),),
    ),
    "deadline of a swap": Guard(
        "A swap that was young enough when it was looked at leaves days later, when its mark has been collected.",
        ((SimulatedRows, "swap", _swap_whenever),),
    ),
    "the log before an orphan is deleted": Guard(
        "A deletion with a wrong finding refuses a change that is under way, and its writer fails.",
        ((DeletionBatch, "_logged", _say_unlogged),), SPOILT,
    ),
    "both rows before an orphan is deleted": Guard(
        "The blob of an object of older software, whose key ends in a revision, is deleted while its row names it.",
        ((candidates, "rows_of", _row_of_its_object),),
    ),
    "settle before an orphan is deleted": Guard(
        "A deletion only looks at the row, and what it deletes may still be swapped in.", ((DeletionBatch, "_is_live", _see_in_the_row),),
    ),
    "generation of the orphan": Guard(
        "A blob that was written again under the name of an orphan, and is named, is deleted in its place.",
        ((candidates, "remove", _remove_whatever_is_there), (candidates, "remove_many", _remove_all_that_is_there)),
    ),
    "old outcomes are unknowable": Guard(
        "Of a change that won and was replaced, the won mark is collected first, and it is told to have had no effect.",
        ((Writer, "marks_are_whole", lambda self, since_ms, row: not row.forgotten),),
    ),
}

S3_GUARDS: dict[str, Guard] = {
    "create-only request in S3": Guard(
        "A request that comes twice writes a blob again that readers are reading.",
        ((MemoryS3, "_replaces_nothing", lambda self, named: False),),
    ),
    "deadline before its blob in S3": Guard(
        "A blob whose deadline could not be written stays for ever when its row has expired.",
        ((SinglePut, "finalise", _finalise_without_its_deadline),),
    ),
    "later deadline before the earlier goes in S3": Guard(
        "Who dies while it touches a blob leaves it without a deadline, and nobody ever collects it.",
        ((S3Blobs, "touch", _touch_by_replacing),),
    ),
}
"""Those that the adapter of S3 has. A world of the usual weather meets their absence too seldom to wait for it, so
`tests/simulation/test_worlds_on_s3.py` makes the weather for each.
"""
