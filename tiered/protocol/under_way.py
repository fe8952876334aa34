"""Writes under way: the tasks they run in, the answer to their caller, and their end. `writing.py` has the protocol.

    add            the store knows the write: from now on a drain waits for it, and stops it at last
    record         its entry is written in a task of its own, beside whatever the caller's task does
    hand_over      the write goes on in a task of the store, and the caller waits for `answered`
                   the end: its lease is dropped, and whoever still waits is answered

Before the hand-over a write runs in its caller's own task, in no scope of ours: a payload may be an iterator that holds
scopes of its own open between two chunks. After it, the write is shielded. The cancellation of its caller does not stop
it, nor that of the scope around the store. Only the end of the drain's budget does; the write is then left to recovery.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

import anyio
from anyio.abc import TaskGroup

from changelog.base.errors import UnavailableError
from changelog.base.events import events
from changelog.base.runtime import Runtime
from changelog.base.tasks import elsewhere_is_an_error, end_tasks, wait_out
from changelog.change import Change, ChangeId
from changelog.heartbeat import Heartbeat
from changelog.lease import Lease
from tiered.errors import OutcomeUnknownError
from tiered.limits.admission import Slot
from tiered.metadata import NS_PER_S
from tiered.object_id import ObjectId
from tiered.protocol.conditions import Condition
from tiered.services.backends import PendingBlob, Row
from tiered.services.guarded import StoreService


@dataclass(slots=True, eq=False)
class WriteInProgress:
    """One put or delete, from its beginning to the end of its clean-up.

    `id`: of its change, and the token of its row operations. `begun_ns` (Unix nanoseconds) and `begun_s` (boot time,
    seconds): when it began, by the two clocks that its age is judged by. `condition`: what must be there; None:
    anything may. `seen`: the row on which the condition was judged, at `judged_ns` (Unix nanoseconds). `change` is set
    as soon as its entry may be in the log, `lease` once it is. `may_land_late`: the end of its upload was sent, and
    nobody knows what became of it. `since_ms`: as `HighVolumeBackend.swap` wants it. `in_doubt`: an open upload may be
    complete, or is open no more, so an error of a service proves nothing about it.
    """

    object_id: ObjectId
    id: ChangeId
    begun_ns: int
    begun_s: float
    condition: Condition | None = None
    seen: Row | None = None
    judged_ns: int = 0
    upload: PendingBlob | None = None
    may_land_late: bool = False
    change: Change | None = None
    lease: Lease | None = None
    since_ms: int | None = None
    in_doubt: bool = False
    error: BaseException | None = None
    # Made by `add`: most writes are one row operation, and never need them.
    recorded: anyio.Event = field(init=False)
    answered: anyio.Event = field(init=False)
    _record_error: Exception | None = None
    _stopped: bool = False
    _shields: list[anyio.CancelScope] = field(init=False)

    @classmethod
    def begin(cls, object_id: ObjectId, runtime: Runtime, condition: Condition | None = None) -> WriteInProgress:
        return cls(object_id, ChangeId.new(runtime), runtime.wall_ns(), runtime.boot_time(), condition)

    def age_s(self, runtime: Runtime) -> float:
        """Seconds since it began, by the clock that says more: a clock that was set back must not make it young."""
        return max((runtime.wall_ns() - self.begun_ns) / NS_PER_S, runtime.boot_time() - self.begun_s)

    def raise_record_error(self) -> None:
        """Raises what `ChangeLog.record` raised, if it has."""
        if self._record_error is not None:
            raise self._record_error

    async def wait_recorded(self) -> Lease:
        """Waits until the entry is durable. Raises what `ChangeLog.record` raised."""
        await self.recorded.wait()
        self.raise_record_error()
        if self.lease is None:
            raise _closed(self)
        return self.lease

    def answer(self, error: BaseException | None) -> None:
        """Answers the caller; None: it is done. The first answer counts."""
        if not self.answered.is_set():
            self.error = error
            self.answered.set()


class WritesUnderWay:
    """All writes under way in one store, their tasks, and the heartbeat beside them. Enter it once.

    `changelog`: how it is asked. `recovered`: True if it is durable, so that a daemon can finish what is left.
    """

    def __init__(self, heartbeat: Heartbeat, changelog: StoreService, *, recovered: bool) -> None:
        self._heartbeat = heartbeat
        self._changelog = changelog
        self._recovered = recovered
        self._writes: dict[WriteInProgress, None] = {}  # in their order; several may complete one upload, and have its id
        self._tasks: TaskGroup | None = None
        self._draining: anyio.Event | None = None
        self._left: list[ChangeId] = []
        self._heartbeat_scope = anyio.CancelScope(shield=True)

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._renew)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None, "entered before it is left"
        self._heartbeat_scope.cancel()
        await end_tasks(tasks, error)  # writes are shielded, and have ended or were stopped: only what runs beside is left

    def add(self, write: WriteInProgress) -> None:
        write.recorded, write.answered, write._shields = anyio.Event(), anyio.Event(), []
        if self._draining is not None and self._draining.is_set():
            _stop(write)
        self._writes[write] = None

    def record(self, write: WriteInProgress, change: Change) -> None:
        """Starts to record the change beside what the caller does next. `wait_recorded` of the write waits for it."""
        if self._tasks is None:
            raise _closed(write)
        write.change = change
        self._tasks.start_soon(self._record, write, change)

    def hand_over(self, write: WriteInProgress, work: Callable[[], Awaitable[None]], slot: Slot) -> bool:
        """Goes on with the write in a task of the store, with the caller's slot. False: it was stopped."""
        if self._tasks is None or write._stopped:
            write.answer(_closed(write))
            self._end(write)
            return False
        self._tasks.start_soon(self._run, write, work, slot.hand_over())
        return True

    def run_beside(self, work: Callable[[], Awaitable[None]], slot: Slot) -> None:
        """Runs what nobody waits for. It ends with the scope around the store. A closed store begins none."""
        if self._tasks is None:
            slot.release()
            return
        self._tasks.start_soon(self._run_beside, work, slot)

    async def drain(self, idle: Callable[[], Awaitable[None]], budget_s: float) -> list[ChangeId]:
        """Waits for `idle`, at most `budget_s` seconds, then stops the writes that are left.

        Returns the changes whose entries are left to recovery. It runs once, however often it is called, and to its
        end, even when the task that called it is cancelled: see `wait_out`.
        """
        if self._draining is None and self._tasks is not None:
            self._draining = anyio.Event()
            self._tasks.start_soon(self._drain, self._draining, idle, budget_s)
        if self._draining is not None:
            await wait_out(self._draining)
        return self._left

    # --- the tasks -------------------------------------------------------------------------------

    async def _renew(self) -> None:
        with self._heartbeat_scope:
            await self._heartbeat.run()

    async def _record(self, write: WriteInProgress, change: Change) -> None:
        try:
            with elsewhere_is_an_error(f"the record of {write.id} was cancelled elsewhere"), _shield(write):
                write.lease = await self._changelog.repeat(self._heartbeat.record, change)
        except Exception as error:  # noqa: BLE001 - raised where the caller waits for it
            write._record_error = error
        finally:
            write.recorded.set()

    async def _run(self, write: WriteInProgress, work: Callable[[], Awaitable[None]], slot: Slot) -> None:
        try:
            with elsewhere_is_an_error(f"change {write.id} was cancelled elsewhere"), _shield(write):
                await slot.take_back()  # if the write ended while it waited for its payload
                await work()
        except Exception as error:  # noqa: BLE001 - logged, with its traceback
            # The entry stays for recovery. A bug in one change must not cancel the caller's other work.
            events.error("change_failed", error, exc_info=error, id=write.id, object=str(write.object_id))
            write.answer(self._unknown(write, error))
        finally:
            slot.release()
            self._end(write)

    async def _run_beside(self, work: Callable[[], Awaitable[None]], slot: Slot) -> None:
        try:
            with slot, elsewhere_is_an_error("it was cancelled elsewhere"):
                await work()
        except Exception as error:  # noqa: BLE001 - logged, with its traceback
            # Nobody waits for it, so it must end nobody's block.
            events.error("work_beside_failed", error, exc_info=error)

    async def _drain(self, drained: anyio.Event, idle: Callable[[], Awaitable[None]], budget_s: float) -> None:
        try:
            with anyio.move_on_after(budget_s, shield=True):
                await idle()
        finally:
            for write in self._writes:
                _stop(write)
            self._left = sorted({write.id for write in self._writes if write.change is not None})
            if self._left:
                events.warning("closed_with_changes_left_to_recovery", count=len(self._left), ids=",".join(self._left))
            drained.set()

    def _end(self, write: WriteInProgress) -> None:
        """Every write that was added ends here: nobody renews its entry any more, and nobody waits for it."""
        if write.lease is not None:
            self._heartbeat.drop(write.lease)
        if not write.answered.is_set():
            write.answer(self._unknown(write, None))
        self._writes.pop(write, None)

    def _unknown(self, write: WriteInProgress, cause: Exception | None) -> OutcomeUnknownError:
        unknown = OutcomeUnknownError(write.object_id, write.id, logged=self._recovered)
        unknown.__cause__ = cause
        return unknown


def _shield(write: WriteInProgress) -> anyio.CancelScope:
    """A scope that only `_stop` cancels."""
    scope = anyio.CancelScope(shield=True)
    write._shields.append(scope)
    if write._stopped:
        scope.cancel()
    return scope


def _stop(write: WriteInProgress) -> None:
    write._stopped = True
    for scope in write._shields:
        scope.cancel()


def _closed(write: WriteInProgress) -> UnavailableError:
    return UnavailableError(f"the storage was closed before {write.object_id} was changed")
