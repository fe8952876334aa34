"""`Observer`: what core code tells about its work. This one ignores everything; `tiered.telemetry` counts and traces.

    operation    one put, get, ... of a caller, or one entry of recovery: a scope
    call         one call to a service: a scope within an operation, or beside all of them
    count        something happened: an `Event`, and which kind of it
    passed       recovery made a pass over the log
    watch        a queue in which operations wait for a slot
    away         a service of a store does not answer any more, or answers again
    traceparent  names the operation that runs now, so that an entry can carry that name

Core code gets an observer as it gets a `Runtime`. An observer never raises, never waits and changes nothing: whatever
it is told, the operation goes on in the same way.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Protocol


class Event(Enum):
    """What is counted. The comment says which kinds an event has."""

    RETRIED = "retry"                  # the name of the error after which a call was repeated
    FAILED_FAST = "failed_fast"        # the service that is away: the call was not sent
    REFUSED = "refused"                # the name of the policy in the settings: a usecase, or *
    DANGLING = "dangling"
    CHANGE_LOST = "change_lost"
    CLEANED_UP = "clean_up"            # by the writer: forgotten, swept, deferred, left
    RECOVERED = "recovery"             # by recovery: forgotten, swept, deferred, kept, overdue, parked, lost, failed
    # told by the services
    RECORDED = "record"
    RENEWED = "renewal"                # renewed, not_yours, failed
    FORGOTTEN = "forget"
    PARKED = "park"
    CLAIMED = "claim"                  # won, lost
    SWAPPED = "swap"                   # won, conflict, unknown
    SETTLED = "settle"                 # live, refused
    INLINE_WRITTEN = "inline_write"    # done, refused, unknown
    BLOB_DELETED = "blob_deleted"
    BLOB_BYTES_DELETED = "blob_bytes_deleted"
    COLLECTED = "collected"            # high_volume, long_term, changelog


class Queue(Protocol):
    """Operations that hold a slot, and those that wait for one. It is read at any time, from any thread."""

    @property
    def slots(self) -> int: ...
    @property
    def held(self) -> int: ...
    @property
    def waiting(self) -> int: ...


class Observer:
    """Ignores everything."""

    def operation(self, name: str, link: str | None = None) -> AbstractContextManager[object]:
        """The scope of one operation. Never held over a `yield`.

        `link`: the `traceparent` of the operation that this one finishes; '': it is not known. The new operation
        belongs to no other then.
        """
        return _NOTHING

    def call(self, service: str, method: str, *, traced: bool = True) -> AbstractContextManager[object]:
        """The scope of one call to a service. `traced` False: one of very many, such as the pieces of a payload."""
        return _NOTHING

    def count(self, event: Event, kind: str = "", amount: int = 1) -> None:
        """Notes that `event` happened `amount` times."""

    def passed(self, seconds: float, *, full: bool, ok: bool) -> None:
        """Notes a pass of recovery. `full`: over the whole log. `ok`: it ended, and no entry failed."""

    def watch(self, side: str, queue: Queue) -> None:
        """Shows the queue of an open store until `unwatch`. `side`: read, write or touch."""

    def unwatch(self, side: str, queue: Queue) -> None:
        """Shows it no more."""

    def away(self, service: str, stores: int) -> None:
        """Notes that one store more (1) or one less (-1) finds this service away."""

    def traceparent(self) -> str | None:
        """The W3C traceparent of the operation that runs now. None: it is not traced."""
        return None

    def failed(self, error: Exception) -> None:
        """Notes that telemetry itself failed. What it was told about goes on."""


_NOTHING: AbstractContextManager[object] = nullcontext()

SILENT = Observer()
"""The observer of whoever wants no telemetry."""
