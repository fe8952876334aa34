"""Changes under way, on both sides of their hand-over: the caller prepares, the storage's own tasks carry on.

    take_off -> (the caller's task: read, record, upload) -> launch -> (own task: swap, answer, clean up) -> land

From `launch` on a flight is shielded: neither its caller's cancellation nor that of the scope around the whole
storage stops it. `drain` waits for all of them within a budget, and leaves the rest to recovery. A flight that
lands always tells whoever waits for it. What is done in the air is `tiered.storage`'s and `tiered.commit`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Self, TypeVarTuple, Unpack

import anyio
from anyio.abc import TaskGroup

from changelog.change import Change, ChangeId
from changelog.lease import Lease
from tiered.admission import Slot
from tiered.backends import Upload
from tiered.commit import Committer, Token
from tiered.errors import OutcomeUnknownError, UnavailableError
from tiered.object_id import ObjectId

logger = logging.getLogger("tiered")

Ts = TypeVarTuple("Ts")


@dataclass(slots=True, eq=False)
class Flight:
    """One change under way. `change` is set as soon as its entry may be in the log, `lease` when it is."""

    object_id: ObjectId
    token: Token
    upload: Upload | None = None
    change: Change | None = None
    lease: Lease | None = None
    error: BaseException | None = None
    answered: anyio.Event = field(default_factory=anyio.Event)
    landed: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=lambda: anyio.CancelScope(shield=True))

    def answer(self, error: BaseException | None) -> None:
        """Tells the caller once; later answers are ignored."""
        if not self.answered.is_set():
            self.error = error
            self.answered.set()


class Flights:
    """All flights of one storage, and the tasks they run in: `async with` it. The heartbeat runs beside them."""

    def __init__(self, committer: Committer, *, recovered: bool) -> None:
        self._committer = committer
        self._recovered = recovered
        self._flights: dict[ChangeId, Flight] = {}
        self._tasks: TaskGroup | None = None
        self._heartbeat_scope = anyio.CancelScope(shield=True)

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._beat)
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None, "entered before it is left"
        self._heartbeat_scope.cancel()
        # Not told of the block's own error, the group lets it pass as it is instead of wrapping it in a group.
        await tasks.__aexit__(None, None, None)

    def take_off(self, object_id: ObjectId, token: Token) -> Flight:
        flight = Flight(object_id, token)
        self._flights[token.id] = flight
        return flight

    def launch(self, flight: Flight, work: Callable[[], Awaitable[None]], slot: Slot) -> None:
        """Carries the flight on in a task of its own, with the caller's slot."""
        if self._tasks is None or flight.scope.cancel_called:
            flight.answer(UnavailableError(f"the storage was closed before {flight.object_id} was changed"))
            self._land(flight)
            return
        self._tasks.start_soon(self._run, flight, work, slot.hand_over())

    def run_beside(self, work: Callable[[Unpack[Ts]], Coroutine[Any, Any, Any]], *args: *Ts) -> None:
        """Runs what nobody waits for, and what is cancelled with the scope around the storage."""
        if self._tasks is not None:
            self._tasks.start_soon(work, *args)

    async def drain(self, budget_s: float) -> list[ChangeId]:
        """Waits for every flight, at most so long; then stops those in the air. Returns what is left to recovery."""
        with anyio.move_on_after(budget_s, shield=True):
            for flight in list(self._flights.values()):
                await flight.landed.wait()
        for flight in self._flights.values():
            flight.scope.cancel()
        return sorted(self._flights)

    async def _beat(self) -> None:
        with self._heartbeat_scope:
            await self._committer.run()

    async def _run(self, flight: Flight, work: Callable[[], Awaitable[None]], slot: Slot) -> None:
        try:
            with flight.scope:
                await work()
        except Exception as error:
            # The entry stays for recovery; a bug in one change must not cancel the caller's other work.
            logger.exception("change_failed id=%s object=%s", flight.token.id, flight.object_id)
            flight.answer(error)
        finally:
            slot.release()
            self._land(flight)

    def _land(self, flight: Flight) -> None:
        """The end of every flight: nobody renews its entry any more."""
        if flight.lease is not None:
            self._committer.leave(flight.lease)
        flight.answer(OutcomeUnknownError(flight.object_id, flight.token.id, logged=self._recovered))
        self._flights.pop(flight.token.id, None)
        flight.landed.set()
