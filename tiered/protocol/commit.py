"""The life of one change, from the record to the forgetting: the writer's side of the protocol.

    begin       record {object, new, old, upload}; a heartbeat keeps the entry alive          step 1a
    (the payload streams meanwhile, and is finalised only when `begin` has returned
     and the lease still holds)                                                                1b, 2
    commit      lease still held? swap(change, old, state)                                     3
                told ok: ok. Told conflict, or not told: settle, read the row, judge           4
    clean_up    settle, cancel, delete what was found not live; forget                         5, 6

*Crash* anywhere leaves the entry, and recovery does the rest. *Failure* becomes a verdict: I4 holds because
"no" is only said after the token was refused and found not won, by a change young enough for its marks to be there, or
when the swap was never sent. I1 and I2 rest on the row alone, never on the lease.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum

from changelog.base.errors import ClockBehindError, LeaseLostError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import Runtime
from changelog.change import Change, ChangeId
from changelog.heartbeat import Heartbeat
from changelog.lease import Lease
from changelog.log import ChangeLog
from tiered.errors import OutcomeUnknownError
from tiered.metadata import NS_PER_S
from tiered.object_id import ObjectId
from tiered.protocol.backends import Row, State
from tiered.protocol.retry import persist
from tiered.protocol.settle import Tiers, finish, may_tell_ok, settle_change
from tiered.settings import Settings

logger = logging.getLogger("tiered")


@dataclass(frozen=True, slots=True)
class Token:
    """A change's id, and when it was made by both clocks that its age is judged by."""

    id: ChangeId
    wall_ns: int
    boot_s: float

    @classmethod
    def new(cls, runtime: Runtime) -> Token:
        return cls(ChangeId.new(runtime), runtime.wall_ns(), runtime.boot_time())

    def age_s(self, runtime: Runtime) -> float:
        """The greater of its ages: a clock that was set back must not make it young."""
        return max((runtime.wall_ns() - self.wall_ns) / NS_PER_S, runtime.boot_time() - self.boot_s)


class Told(Enum):
    """What is known of the swap when the sending of it is over."""

    OK = "it took effect"
    CONFLICT = "the row refused it"
    NOTHING = "sent, and not answered"
    LEASE_LOST = "never sent: the lease had ended"
    TOO_OLD = "never sent: the change is older than its marks may be relied on"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the caller is told (`error` None: ok), and what may be cleaned up.

    `live`: the new state took effect and is not garbage; None: not known, settle first. `ours` False:
    clean nothing up, recovery does.
    """

    error: TieredError | None
    live: bool | None
    ours: bool = True


class Committer:
    """Carries changes through and holds their leases. `run` must run beside the work."""

    def __init__(self, tiers: Tiers, log: ChangeLog, runtime: Runtime, settings: Settings, owner: str) -> None:
        self._tiers = tiers
        self._log = log
        self._runtime = runtime
        self._settings = settings
        self._heartbeat = Heartbeat(log, runtime, owner, settings.lease.heartbeat_interval_s, settings.lease.expiry_s)

    async def run(self) -> None:
        """Renews the leases for ever."""
        await self._heartbeat.run()

    async def begin(self, change: Change) -> Lease:
        """Records the change, durably before it returns."""
        return await persist(lambda: self._heartbeat.record(change), self._runtime, self._settings.store.answer_budget_s)

    def check_held(self, lease: Lease) -> None:
        """Raises `LeaseLostError`: recovery may have taken over, and a blob that is finalised now would be nobody's garbage (I3)."""
        if not self._heartbeat.held(lease):
            raise _lost(lease)

    async def commit(self, object_id: ObjectId, token: Token, lease: Lease, state: State) -> Verdict:
        """Steps 3 and 4: swaps, and finds out what became of it. Raises no error of a backend."""
        try:
            told = await self._swap(token, lease, state)
        except ClockBehindError as error:
            return Verdict(error, None)
        match told:
            case Told.OK:
                return Verdict(None, live=True)
            case Told.LEASE_LOST:
                return Verdict(_lost(lease), None, ours=False)
            case Told.TOO_OLD:
                return Verdict(UnavailableError(f"change {token.id} of {object_id} took longer than a change may; try again"), None)
            case Told.CONFLICT | Told.NOTHING:
                return await self._judge(object_id, token, lease, told)

    async def clean_up(self, lease: Lease, live: bool | None, *, may_land_late: bool) -> None:
        """Steps 5 and 6, within their budget; what fails is left to recovery, with a word in the log."""
        change = lease.entry.change
        grace_ms = round(self._settings.recovery.late_upload_grace_s * 1000) if may_land_late else None
        try:
            await persist(
                lambda: finish(self._tiers, self._log, self._heartbeat, lease, live, grace_ms),
                self._runtime, self._settings.store.cleanup_budget_s,
            )
        except TieredError as error:
            logger.warning("change_left_to_recovery id=%s object=%s: %s", change.id, change.object, error)
        finally:
            self.leave(lease)

    def leave(self, lease: Lease) -> None:
        """Stops renewing: recovery takes the entry over once it is stale. Safe to repeat."""
        self._heartbeat.drop(lease)

    async def _swap(self, token: Token, lease: Lease, state: State) -> Told:
        """Raises `ClockBehindError` where nothing was sent before that could have taken effect."""
        change, sent, unanswered = lease.entry.change, False, False

        async def once() -> Told:
            nonlocal sent, unanswered
            # The deadline is fixed before the checks, so a process stopped after them sends nothing late.
            deadline_s = self._runtime.boot_time() + self._settings.marks.swap_deadline_s
            if not self._heartbeat.held(lease):
                return Told.LEASE_LOST
            if self._is_aged(token):
                return Told.TOO_OLD
            sent = True
            try:
                effective = await self._tiers.high_volume.swap(change.object, change.id, change.old, state, deadline_s)
            except UnconfirmedError:
                unanswered = True
                raise
            return Told.OK if effective else Told.CONFLICT

        try:
            told = await persist(once, self._runtime, self._settings.store.answer_budget_s)
        except TieredError as error:
            if isinstance(error, ClockBehindError) and not unanswered:
                raise
            return Told.NOTHING
        return Told.NOTHING if sent and told in (Told.LEASE_LOST, Told.TOO_OLD) else told

    async def _judge(self, object_id: ObjectId, token: Token, lease: Lease, told: Told) -> Verdict:
        change = lease.entry.change
        try:
            live, row = await persist(lambda: self._settle_and_read(change), self._runtime, self._settings.store.answer_budget_s)
        except TieredError as error:
            unknown = OutcomeUnknownError(object_id, change.id, logged=self._log.durable)
            unknown.__cause__ = error
            return Verdict(unknown, None, ours=False)
        if may_tell_ok(change, live, row):
            return Verdict(None, live)
        if row.forgotten or self._is_aged(token):
            # It may have won, and been replaced, and its mark collected: this process stood still for long, or a clock jumped.
            return Verdict(OutcomeUnknownError(object_id, change.id, settled=True), live)
        why = (
            "its row was changed meanwhile, by another writer or by recovery" if told is Told.CONFLICT
            else "what became of the request was not told, and it takes no effect any more"
        )
        return Verdict(UnavailableError(f"change {token.id} of {object_id} was not made: {why}; try again"), live)

    def _is_aged(self, token: Token) -> bool:
        """Whether it is older than its marks may be relied on: a mark that is missing proves nothing then."""
        return token.age_s(self._runtime) > self._settings.marks.swap_age_max_s

    async def _settle_and_read(self, change: Change) -> tuple[bool, Row]:
        live = await settle_change(self._tiers, change)
        return live, await self._tiers.high_volume.read(change.object, marks=change.id)


def _lost(lease: Lease) -> LeaseLostError:
    return LeaseLostError(f"change {lease.entry.change.id} of {lease.entry.change.object} was not made: {lease.end()}; try again")
