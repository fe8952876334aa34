"""The published protocol: the same store and the same recovery, with the fence taken out from outside.

    settle    only reads whether the row shows the revision. It refuses nothing, so garbage may still be swapped in
    swap      compares what is there, which may be nothing, and remembers no token
    answer    a conflict is a lost race, and its blob is garbage; a lost race is told ok, or no
    touch     writes what was read, with a later deadline
    upload    no session is cancelled, and nobody waits for what may land late
    read      if the blob is not there, the object is not there

Everything else is the product's: the entry before the work, the heartbeat, the look at the lease before the swap, the
claim. `emulators.demo.players.unfenced` takes the fence from real backends, for the demo. It is never a part of the
product.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import emulators.world.deployment
import emulators.world.stack
import tiered.protocol.finishing
from changelog.base.errors import UnavailableError
from changelog.base.runtime import Runtime
from changelog.change import Change, ChangeId
from changelog.lease import Lease
from emulators.simulation.replaced import replaced
from emulators.world.services import SimulatedBlobs, SimulatedRows
from tiered.object_id import ObjectId
from tiered.protocol.reading import Reader
from tiered.protocol.under_way import WriteInProgress
from tiered.protocol.writing import SwapResult, Writer, WriteResult
from tiered.services.backends import Inline, Only, Row, RowState, Tombstone
from tiered.testing.rows import with_deadline

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PublishedVariant:
    """A variant of the published protocol.

    `shown_is_ok`: a swap to what the row shows already is told ok. `lost_is_ok`: a lost race is told ok, too.
    """

    shown_is_ok: bool = True
    lost_is_ok: bool = True


PUBLISHED = PublishedVariant()


class UnfencedRows(SimulatedRows):
    """Rows that remember no token: `settle` only reads, and `swap` compares what is there, which may be nothing."""

    def __init__(self, runtime: Runtime, published: PublishedVariant, *, horizon: bool = True) -> None:
        super().__init__(runtime, horizon=horizon)
        self._published = published

    async def settle(self, path: str, token: ChangeId) -> bool:
        await self._travel()
        state = self.states.get(path)
        return self._target(path) == f"{path}/{token}" or (state is not None and state.token == token)

    async def swap(
        self, path: str, token: ChangeId, expected: str | None, state: RowState, deadline_s: float, only: Only | None = None,
        since_ms: int | None = None,
    ) -> bool:  # fmt: skip
        await self._travel()
        present, new = self._target(path), Row(state).target
        if self._published.shown_is_ok and new is not None and present == new:
            return True
        if present != expected and not (self._published.shown_is_ok and present == new):
            return False
        self._write(path, token, state)
        self._took_effect("rows.swap", path)
        return True

    async def touch(self, path: str, seen: Inline | Tombstone, deadline_ns: int) -> bool:
        """Writes what was read, with the new deadline."""
        await self._travel()
        self.states[path] = with_deadline(seen, deadline_ns)
        self._took_effect("rows.touch", path)
        return True


class UnfencedBlobs(SimulatedBlobs):
    """Blobs whose upload sessions nobody cancels. Whatever was sent lands."""

    async def cancel(self, session: str) -> None:
        await self._travel()


@contextmanager
def unfenced(published: PublishedVariant) -> Iterator[None]:
    """Worlds that are made within the `with` have no fence, and the store and its recovery rely on none."""
    with replaced([
        (emulators.world.stack, "SimulatedRows", partial(UnfencedRows, published=published)),
        (emulators.world.deployment, "SimulatedBlobs", UnfencedBlobs),
        (Writer, "_commit", _commit_of(published)),
        (tiered.protocol.finishing, "waits_for_late_upload", lambda change, live: False),
        (Reader, "_follow", follow_once),
    ]):  # fmt: skip
        yield


def _commit_of(published: PublishedVariant) -> Callable[[Writer, WriteInProgress, Change, Lease | None, RowState], Awaitable[WriteResult]]:
    async def commit(self: Writer, write: WriteInProgress, change: Change, lease: Lease | None, state: RowState) -> WriteResult:
        """Takes what lost the race for garbage, and looks up in the row what was not answered."""
        told = await self.swap(write, change, lease, state, None)
        lost = UnavailableError(f"change {change.id} of {write.object_id} lost the race")
        match told:
            case SwapResult.OK:
                return WriteResult(None, live=True)
            case SwapResult.CONFLICT:
                return WriteResult(None if published.lost_is_ok else lost, live=False)
            case SwapResult.LEASE_LOST:
                return WriteResult(lost, None, ours=False)
        live = await self._tiers.high_volume.settle(change.object, change.id)
        return WriteResult(None if live else lost, live)

    return commit


async def follow_once(
    self: Reader, object_id: ObjectId, inline: Callable[[Inline], T], blob: Callable[[Tombstone], Awaitable[T | None]]
) -> T | None:
    """Reads once: if the blob is gone, the object is gone."""
    state = await self._state(object_id.path)
    if state is None:
        return None
    return inline(state) if isinstance(state, Inline) else await blob(state)
