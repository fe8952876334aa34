"""Every error a caller of the store can meet, grouped by what to do about it (see `changelog.base.errors`).

    UnavailableError, LeaseLostError   nothing happened: retry
    ClockBehindError                   nothing happened: put this machine's clock right
    CancelledElsewhereError            nothing happened: what a payload or an iterator of requests awaited was cancelled
    AtCapacityError                    nothing happened: shed load, then retry
    OutcomeUnknownError                it may have happened: ask `storage.outcome(error)`
    CorruptRecordError                 stored bytes break the format: operator
    DanglingTombstoneError             the blob is gone: data loss, counted and reported
    InvalidRequestError                fix the call
    ConfigurationError                 fix the settings, the schema or the directory

Absence is `None`; a lost race is a value.
"""

from __future__ import annotations

from changelog.base.errors import (
    CancelledElsewhereError,
    ClockBehindError,
    ConfigurationError,
    CorruptRecordError,
    InvalidRequestError,
    LeaseLostError,
    TieredError,
    UnavailableError,
    UnconfirmedError,
)
from changelog.change import ChangeId
from tiered.object_id import ObjectId

__all__ = [
    "AtCapacityError", "CancelledElsewhereError", "ClockBehindError", "ConfigurationError", "CorruptRecordError", "DanglingTombstoneError",
    "InvalidRequestError", "LeaseLostError", "OutcomeUnknownError", "TieredError", "UnavailableError", "UnconfirmedError",
]


class AtCapacityError(UnavailableError):
    """Too many operations are under way; this one was not begun. Shed load, then try again."""


class DanglingTombstoneError(TieredError):
    """The row names a blob that does not exist: its data is lost."""


class OutcomeUnknownError(TieredError):
    """The change may or may not have taken effect, and could not be found out in time.

    `settled`: it may have taken effect and been replaced, but will not take effect any more. `logged`:
    `storage.outcome(error)` will tell, when recovery has finished it. Neither: it may still take effect.
    """

    def __init__(self, object_id: ObjectId, change_id: ChangeId, *, settled: bool = False, logged: bool = False) -> None:
        after = (
            "it may have taken effect and been replaced, and will not take effect any more" if settled
            else "storage.outcome(error) will tell, when recovery has finished it" if logged
            else "it may still take effect; storage.outcome(error) settles it"
        )
        super().__init__(f"the outcome of change {change_id} to {object_id} is unknown: {after}")
        self.object_id = object_id
        self.change_id = change_id
        self.settled = settled
        self.logged = logged

    def __reduce__(self) -> tuple[object, ...]:
        return _outcome_unknown, (self.object_id, self.change_id, self.settled, self.logged)


def _outcome_unknown(object_id: ObjectId, change_id: ChangeId, settled: bool, logged: bool) -> OutcomeUnknownError:
    return OutcomeUnknownError(object_id, change_id, settled=settled, logged=logged)
