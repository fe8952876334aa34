"""Reads: from the row, through its tombstone to the blob, also while the object is overwritten.

    row absent or expired            -> None
    inline                           -> the row's own bytes
    tombstone, blob opens            -> the blob's bytes (of a head: what the blob is, and no byte is asked for)
    tombstone, blob is gone          -> read the row again: another state: begin again with it
                                        the same: `DanglingTombstoneError`, data loss, counted, noted and reported

I4: after `put` returned, `get` finds that object or a later one, also during an overwrite. The row may be read again
because nothing has been handed out yet. A revision that was replaced never comes back. So if the row shows the same
tombstone before and after its blob was not found, the blob is lost; unless a standby showed it, which may lag. Only
readers judge expiry, by their own clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from changelog.base.errors import UnavailableError
from changelog.base.events import events
from changelog.base.observe import SILENT, Event, Observer
from changelog.base.runtime import Runtime
from tiered.errors import DanglingTombstoneError
from tiered.metadata import Expiration, Metadata, is_expired, touch_deadline
from tiered.object_id import ObjectId
from tiered.payload.checksums import checksum_of
from tiered.protocol.conditions import revision_shown
from tiered.services.backends import BlobHead, BlobReader, ByteRange, Inline, RowState, Tiers, Tombstone
from tiered.services.capabilities import ServerRole
from tiered.services.guarded import GuardedServices
from tiered.services.scans import Generation
from tiered.settings import Settings
from tiered.stored import ObjectHead, ProgressCount, StoredObject, Tier
from tiered.transfer.lanes import READ_ATTEMPTS_MAX, Lanes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CopySource:
    """An object that is to be copied: its head, and its payload or its blob.

    `blob`, `generation`: the blob's name and generation; empty if the payload is here.
    """

    head: ObjectHead
    payload: bytes | None = None
    blob: str = ""
    generation: Generation = ""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """What decides whether a read extends an object's deadline, and the state of the row that led to it.

    The row's policy counts. Where it tells none, as other software writes large objects, the blob's does. The deadline
    is the earlier one of row and blob: other software extends the row first, and may die before it comes to the blob,
    which would then be removed while the object is read. None: neither has one. `ends_ns`: when the object is absent.
    The state tells what was read of the blob's metadata, also if its row does not: so the row will, once it is touched.
    """

    state: Inline | Tombstone
    expiration: Expiration
    deadline_ns: int | None

    @property
    def ends_ns(self) -> int | None:
        return self.deadline_ns if self.state.deadline_ns is None else self.state.deadline_ns

    @staticmethod
    def of(state: Inline | Tombstone, told: Metadata) -> Lifetime:
        """`told`: the object's metadata, from its row or its blob."""
        expiration = state.expiration if isinstance(state, Tombstone) and state.expiration is not None else told.expiration
        ends_ns, told_ns = state.deadline_ns, told.time_expires_ns
        if ends_ns is None or (told_ns is not None and told_ns < ends_ns):
            ends_ns = told_ns
        if isinstance(state, Tombstone) and state.metadata is None and state.token is not None:
            state = replace(state, metadata=told.with_facts(time_expires_ns=state.deadline_ns))
        return Lifetime(state, expiration, ends_ns)


class Reader:
    """Reads objects. `dangling`: how many tombstones it has found so far whose blob is gone.

    `on_dangling`: is told the object's path and the blob's name of each. It must not wait.
    """

    def __init__(
        self, tiers: Tiers, runtime: Runtime, settings: Settings, services: GuardedServices, observer: Observer = SILENT,
        on_dangling: Callable[[str, str], None] = lambda path, blob: None,
    ) -> None:  # fmt: skip
        self.dangling = 0
        self._on_dangling = on_dangling
        self._services = services
        self._observer = observer
        self._tiers = tiers
        self._standby_answers = tiers.high_volume.standby_answers if isinstance(tiers.high_volume, ServerRole) else int
        self._runtime = runtime
        self._lanes = Lanes(runtime, settings.lanes_at_once, observer, services.blobs.call, services.blobs.read)

    async def open(
        self, object_id: ObjectId, range: ByteRange | None, progress: ProgressCount | None = None
    ) -> tuple[StoredObject, Lifetime] | None:
        """Opens the object. Returns it with what `touch` needs.

        None: there is no object, or it has expired. `range`: the bytes that are wanted; None: all.
        `RangeNotSatisfiableError`: the range does not fit the object. `DanglingTombstoneError`: its blob is gone.
        `CorruptRecordError`: stored bytes break the format. `UnavailableError`: no answer in time, or the object was
        overwritten too often meanwhile.
        """

        async def open_blob(state: Tombstone) -> tuple[StoredObject, Lifetime] | None:
            blob = await self._services.blobs.read(self._tiers.long_term.open, state.target, range)
            if blob is None:
                return None
            start, stop = (0, blob.size) if range is None else range.within(blob.size)
            stored = StoredObject(head_of_blob(object_id, state, blob), blob, start, stop, progress, self._lanes)
            return stored, Lifetime.of(state, blob.metadata)

        def open_inline(state: Inline) -> tuple[StoredObject, Lifetime]:
            size = len(state.payload)
            start, stop = (0, size) if range is None else range.within(size)
            payload = memoryview(state.payload)[start:stop]
            return StoredObject(_head_of_inline(object_id, state), payload, start, stop, progress), Lifetime.of(state, state.metadata)

        return await self._follow(object_id, open_inline, open_blob)

    async def head(self, object_id: ObjectId, *, checksum: bool = False) -> ObjectHead | None:
        """All that is known of the object except its bytes. None: there is none, or it has expired. Raises as `open`.

        `checksum`: compute that of an object whose payload is in the row.
        """

        def look_at_row(state: Inline) -> ObjectHead:
            head = _head_of_inline(object_id, state)
            return replace(head, checksum=checksum_of(state.payload)) if checksum else head

        async def look_at_blob(state: Tombstone) -> ObjectHead | None:
            blob = await self._services.blobs.read(self._tiers.long_term.head, state.target)
            return None if blob is None else head_of_blob(object_id, state, blob)

        return await self._follow(object_id, look_at_row, look_at_blob)

    async def source(self, object_id: ObjectId) -> CopySource | None:
        """The object as the source of a copy. None: there is none, or it has expired. Raises as `open`."""

        async def source_blob(state: Tombstone) -> CopySource | None:
            blob = await self._services.blobs.read(self._tiers.long_term.head, state.target)
            return None if blob is None else CopySource(head_of_blob(object_id, state, blob), None, state.target, blob.generation)

        return await self._follow(object_id, lambda state: CopySource(_head_of_inline(object_id, state), state.payload), source_blob)

    async def _follow(
        self, object_id: ObjectId, inline: Callable[[Inline], T], blob: Callable[[Tombstone], Awaitable[T | None]]
    ) -> T | None:
        """What was found, in the row or behind its tombstone."""
        seen: RowState = None
        from_standby = self._standby_answers()
        for _ in itertools.repeat(None, READ_ATTEMPTS_MAX):
            state = await self._state(object_id.path)
            if state is None:
                return None
            if isinstance(state, Inline):
                return inline(state)
            found = await blob(state)
            if found is not None:
                return found
            if isinstance(seen, Tombstone) and seen.target == state.target:
                if self._standby_answers() != from_standby:
                    raise UnavailableError(f"{object_id} was read from a standby, which lags: its blob is gone; ask the primary")
                raise self._lost(object_id, state.target)
            seen = state
        raise UnavailableError(f"{object_id} was overwritten {READ_ATTEMPTS_MAX} times while it was being read; try again")

    async def touch(self, object_id: ObjectId, read: Lifetime) -> None:
        """Extends the deadline of an object with time to idle after it was read: first the blob's, then the row's.

        Best effort: if the blob is gone, or the row has changed, the deadline stays as it is.
        """
        deadline_ns, state = touch_deadline(read.expiration, read.deadline_ns, self._runtime.wall_ns()), read.state
        if deadline_ns is None:
            return
        if isinstance(state, Tombstone) and not await self._tiers.long_term.touch(state.target, deadline_ns):
            return
        await self._tiers.high_volume.touch(object_id.path, state, deadline_ns)

    def wants_touch(self, read: Lifetime) -> bool:
        """Whether what was read should live longer now. What has expired, by its blob alone, is not brought back."""
        now_ns = self._runtime.wall_ns()
        return not is_expired(read.ends_ns, now_ns) and touch_deadline(read.expiration, read.deadline_ns, now_ns) is not None

    async def _state(self, path: str) -> RowState:
        row = await self._services.rows.read(self._tiers.high_volume.read, path)
        state = row.state
        return None if state is None or is_expired(state.deadline_ns, self._runtime.wall_ns()) else state

    def _lost(self, object_id: ObjectId, blob: str) -> DanglingTombstoneError:
        self.dangling += 1
        self._observer.count(Event.DANGLING)
        events.error("dangling_tombstone", object=str(object_id), blob=blob)
        self._on_dangling(object_id.path, blob)
        return DanglingTombstoneError(f"{object_id} redirects to the blob {blob!r}, which does not exist: its data is lost")


def _head_of_inline(object_id: ObjectId, state: Inline) -> ObjectHead:
    return ObjectHead(object_id, state.metadata, len(state.payload), Tier.HIGH_VOLUME, revision_shown(object_id.path, state))


def head_of_blob(object_id: ObjectId, state: Tombstone, blob: BlobHead | BlobReader) -> ObjectHead:
    """The head of a large object, from its row and its blob."""
    # The row's deadline counts. A touch extends the blob's first and may fail before it reaches the row. A row of other
    # software may have none although the blob, and so the object, ends some day.
    deadline_ns = blob.metadata.time_expires_ns if state.deadline_ns is None else state.deadline_ns
    # A listing shows the time that the row tells, so all calls do. The blob's own may be later, and by another clock.
    created_ns = (blob.metadata if state.metadata is None else state.metadata).time_created_ns
    metadata = blob.metadata.with_facts(time_expires_ns=deadline_ns, time_created_ns=created_ns)
    return ObjectHead(object_id, metadata, blob.size, Tier.LONG_TERM, revision_shown(object_id.path, state), blob.checksum)
