"""Changes under way, on both sides of their hand-over: the caller prepares, the storage's own tasks carry on.

    take_off -> (the caller's task: read, upload) -> launch -> (own task: swap, answer, clean up) -> land
                 record: in a task of its own, beside the upload

From `launch` on a flight is shielded: neither its caller's cancellation nor that of the scope around the whole
storage stops it; only the end of the drain's budget does, and leaves it to recovery. The drain, too, runs in a task of its
own. The payload is streamed in its caller's own task, in no scope of ours, because iterators may hold scopes of their own
between two pieces. A flight that lands always tells whoever waits for it. What is done in the air is `tiered.storage`'s
and `tiered.protocol.commit`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

import anyio
from anyio.abc import TaskGroup

from changelog.base.tasks import elsewhere_is_an_error, end_tasks, wait_out
from changelog.change import Change, ChangeId
from changelog.lease import Lease
from tiered.errors import OutcomeUnknownError, UnavailableError
from tiered.object_id import ObjectId
from tiered.protocol.admission import Slot
from tiered.protocol.backends import Upload
from tiered.protocol.commit import Committer, Token

logger = logging.getLogger("tiered")


@dataclass(slots=True, eq=False)
class Flight:
    """One change under way. `change` is set as soon as its entry may be in the log, `lease` when it is.

    `may_land_late`: the end of its upload was sent, and nobody knows what became of it.
    """

    object_id: ObjectId
    token: Token
    upload: Upload | None = None
    may_land_late: bool = False
    change: Change | None = None
    lease: Lease | None = None
    record_error: Exception | None = None
    recorded: anyio.Event = field(default_factory=anyio.Event)
    error: BaseException | None = None
    answered: anyio.Event = field(default_factory=anyio.Event)
    stopped: bool = False
    scopes: list[anyio.CancelScope] = field(default_factory=list)

    def raise_record_error(self) -> None:
        if self.record_error is not None:
            raise self.record_error

    async def wait_recorded(self) -> Lease:
        """Until the entry is durable. Raises what `ChangeLog.record` did."""
        await self.recorded.wait()
        self.raise_record_error()
        if self.lease is None:
            raise _closed(self)
        return self.lease

    def answer(self, error: BaseException | None) -> None:
        """Tells the caller once; later answers are ignored."""
        if not self.answered.is_set():
            self.error = error
            self.answered.set()

    def shield(self) -> anyio.CancelScope:
        """A scope that only `stop` cancels."""
        scope = anyio.CancelScope(shield=True)
        self.scopes.append(scope)
        if self.stopped:
            scope.cancel()
        return scope

    def stop(self) -> None:
        self.stopped = True
        for scope in self.scopes:
            scope.cancel()


class Flights:
    """All flights of one storage, and the tasks they run in: `async with` it, once. The heartbeat runs beside them."""

    def __init__(self, committer: Committer, *, recovered: bool) -> None:
        self._committer = committer
        self._recovered = recovered
        self._flights: dict[ChangeId, Flight] = {}
        self._tasks: TaskGroup | None = None
        self._draining: anyio.Event | None = None
        self._left: list[ChangeId] = []
        self._heartbeat_scope = anyio.CancelScope(shield=True)

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._beat)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None, "entered before it is left"
        self._heartbeat_scope.cancel()
        await end_tasks(tasks, error)  # what runs beside and is not done; flights are shielded, and have landed or stopped

    def take_off(self, object_id: ObjectId, token: Token) -> Flight:
        flight = Flight(object_id, token)
        if self._draining is not None and self._draining.is_set():
            flight.stop()
        self._flights[token.id] = flight
        return flight

    def record(self, flight: Flight, change: Change) -> None:
        """Records the change beside whatever its caller does next; see `Flight.wait_recorded`."""
        if self._tasks is None:
            raise _closed(flight)
        flight.change = change
        self._tasks.start_soon(self._record, flight, change)

    def launch(self, flight: Flight, work: Callable[[], Awaitable[None]], slot: Slot) -> bool:
        """Carries the flight on in a task of its own, with the caller's slot. False: it was stopped, and does nothing any more."""
        if self._tasks is None or flight.stopped:
            flight.answer(_closed(flight))
            self._land(flight)
            return False
        self._tasks.start_soon(self._run, flight, work, slot.hand_over())
        return True

    def run_beside(self, work: Callable[[], Awaitable[None]], slot: Slot) -> None:
        """Runs what nobody waits for; cancelled with the scope around the storage, and not begun any more when that is closed."""
        if self._tasks is None:
            slot.release()
            return
        self._tasks.start_soon(self._run_beside, work, slot)

    async def drain(self, idle: Callable[[], Awaitable[None]], budget_s: float) -> list[ChangeId]:
        """Waits for `idle`, so long at most, and then stops what is in the air. Returns the changes whose entries are left to recovery.

        Once, however often it is asked for, and to its end, whoever cancels the one who asked: see `wait_out`.
        """
        if self._draining is None and self._tasks is not None:
            self._draining = anyio.Event()
            self._tasks.start_soon(self._drain, self._draining, idle, budget_s)
        if self._draining is not None:
            await wait_out(self._draining)
        return self._left

    async def _drain(self, drained: anyio.Event, idle: Callable[[], Awaitable[None]], budget_s: float) -> None:
        try:
            with anyio.move_on_after(budget_s, shield=True):
                await idle()
        finally:
            for flight in self._flights.values():
                flight.stop()
            self._left = sorted(flight.token.id for flight in self._flights.values() if flight.change is not None)
            if self._left:
                logger.warning("closed_with_changes_left_to_recovery count=%d ids=%s", len(self._left), ",".join(self._left))
            drained.set()

    async def _beat(self) -> None:
        with self._heartbeat_scope:
            await self._committer.run()

    async def _record(self, flight: Flight, change: Change) -> None:
        try:
            with elsewhere_is_an_error(f"the record of {flight.token.id} was cancelled elsewhere"), flight.shield():
                flight.lease = await self._committer.begin(change)
        except Exception as error:  # noqa: BLE001 - raised where the caller waits for it
            flight.record_error = error
        finally:
            flight.recorded.set()

    async def _run(self, flight: Flight, work: Callable[[], Awaitable[None]], slot: Slot) -> None:
        try:
            with elsewhere_is_an_error(f"change {flight.token.id} was cancelled elsewhere"), flight.shield():
                await work()
        except Exception as error:
            # The entry stays for recovery; a bug in one change must not cancel the caller's other work.
            logger.exception("change_failed id=%s object=%s", flight.token.id, flight.object_id)
            flight.answer(self._unknown(flight, error))
        finally:
            slot.release()
            self._land(flight)

    async def _run_beside(self, work: Callable[[], Awaitable[None]], slot: Slot) -> None:
        try:
            with slot, elsewhere_is_an_error("it was cancelled elsewhere"):
                await work()
        except Exception:
            # Nobody waits for it, so nobody's block may end with it.
            logger.exception("work_beside_failed")

    def _land(self, flight: Flight) -> None:
        """The end of every flight: nobody renews its entry any more."""
        if flight.lease is not None:
            self._committer.leave(flight.lease)
        flight.answer(self._unknown(flight, None))
        self._flights.pop(flight.token.id, None)

    def _unknown(self, flight: Flight, cause: Exception | None) -> OutcomeUnknownError:
        unknown = OutcomeUnknownError(flight.object_id, flight.token.id, logged=self._recovered)
        unknown.__cause__ = cause
        return unknown


def _closed(flight: Flight) -> UnavailableError:
    return UnavailableError(f"the storage was closed before {flight.object_id} was changed")
