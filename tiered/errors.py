"""Every error that a caller of the store can get, grouped by what to do about it (see `changelog.base.errors`).

    UnavailableError, LeaseLostError   nothing happened: retry
    ClockBehindError                   nothing happened: put this machine's clock right
    CancelledElsewhereError            nothing happened: what a payload or an iterator of requests awaited was cancelled
    AtCapacityError                    nothing happened: shed load, then retry
      RateLimitedError                 ... because of the rate that the settings allow its usecase: an HTTP 429
    ServiceAwayError                   nothing happened: a service does not answer; retry when it is tried again
    ConditionFailedError               nothing happened: what is there is not what the caller asked for; read it again
    OutcomeUnknownError                it may have happened: ask `storage.outcome(error)`
    UploadEndedError                   the upload in parts is over: begin another, unless it was completed
    CorruptRecordError                 stored bytes break the format: an operator must look
    DanglingTombstoneError             the blob is gone: data loss, counted and reported
    InvalidRequestError                fix the call
    RangeNotSatisfiableError           the range is not within the object: an HTTP 416
    OffsetMismatchError                the bytes are none that follow those of the upload: an HTTP 409
    ConfigurationError                 fix the settings, the schema or the directory

`UnconfirmedError` is between the backends and the store; callers never get it. Absence is `None`, not an error.
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
    "AtCapacityError", "CancelledElsewhereError", "ClockBehindError", "ConditionFailedError", "ConfigurationError",
    "CorruptRecordError", "DanglingTombstoneError", "InvalidRequestError", "LeaseLostError", "OffsetMismatchError",
    "OutcomeUnknownError", "RangeNotSatisfiableError", "RateLimitedError", "ServiceAwayError", "TieredError", "UnavailableError",
    "UnconfirmedError", "UploadEndedError",
]


class AtCapacityError(UnavailableError):
    """Too many operations are under way, and this one was not begun. Shed load, then try again.

    `retry_after_s`: in how many seconds it is worth trying again: an estimate from how long operations took lately and
    how many wait now, from 0.05 to 30. It promises nothing. All who are refused at one moment get about the same value,
    so spread the retries. None: nothing was measured.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimitedError(AtCapacityError):
    """The rate that the settings allow a usecase is used up in this process, and this operation was not begun.

    `usecase`: whose rate. `limit`: the setting that says how much it is, such as
    `usecases.attachments.requests_per_s`. `retry_after_s`: when the next operation may begin, if no other does before.
    After much was moved at once, that may take longer than 30 seconds.
    """

    callers_fault = True

    def __init__(self, message: str, retry_after_s: float | None = None, usecase: str = "", limit: str = "") -> None:
        super().__init__(message, retry_after_s)
        self.usecase = usecase
        self.limit = limit


class ServiceAwayError(UnavailableError):
    """A service of the store has answered no call for a while, so this operation was given up. Nothing happened.

    `service`: `high_volume` (the rows), `long_term` (the blobs) or `changelog`. `retry_after_s`: in how many seconds
    the service is tried again. Until one call is answered, the others fail like this, at once.
    """

    def __init__(self, message: str, service: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.service = service
        self.retry_after_s = retry_after_s


class RangeNotSatisfiableError(InvalidRequestError):
    """The range does not fit the object. `size`: length of the whole payload in bytes, for an HTTP 416."""

    def __init__(self, message: str, size: int) -> None:
        super().__init__(message)
        self.size = size

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.size), self.__dict__


class OffsetMismatchError(InvalidRequestError):
    """The bytes of an append do not follow those that are there, or somebody else goes on with the upload by now.

    `offset`: where to go on. Nothing was kept of what came from there on.
    """

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.offset), self.__dict__


class DanglingTombstoneError(TieredError):
    """The row names a blob that does not exist: the object's data is lost."""


class ConditionFailedError(TieredError):
    """A write with a condition found something else, at a moment between its call and this error. Nothing happened.

    The write will not take effect any more, but an open upload may still be completed by a later call. `revision`: what
    was there; None: nothing, or an object without a revision, which older software wrote. What is there now may be
    something else again.
    """

    callers_fault = True

    def __init__(self, object_id: ObjectId, revision: ChangeId | None, why: str) -> None:
        super().__init__(f"{object_id} was not changed: {why}")
        self.object_id = object_id
        self.revision = revision
        self._why = why

    def __reduce__(self) -> tuple[object, ...]:
        return ConditionFailedError, (self.object_id, self.revision, self._why)


class UploadEndedError(TieredError):
    """An upload in parts has ended: it takes no more parts, and cannot be completed or aborted any more.

    `completed`: True: it became the object, which may have been replaced since. False: nothing of it was stored, and
    nothing will be. None: one of the two, or there never was such an upload; it is too long ago to tell.
    """

    callers_fault = True

    def __init__(self, object_id: ObjectId, upload_id: ChangeId, *, completed: bool | None) -> None:
        how = {
            True: "it was completed", False: "it was aborted, or is too old, and nothing of it was stored; begin another",
            None: "it was aborted, or is too old, or was completed and replaced since, or never was",
        }  # fmt: skip
        super().__init__(f"the upload {upload_id} of {object_id} has ended: {how[completed]}")
        self.object_id = object_id
        self.upload_id = upload_id
        self.completed = completed

    def __reduce__(self) -> tuple[object, ...]:
        return _upload_ended, (self.object_id, self.upload_id, self.completed)


class OutcomeUnknownError(TieredError):
    """The change may or may not have taken effect, and the store could not find out in time.

    `settled`: it may have taken effect and been replaced, but it will not take effect any more. `logged`:
    `storage.outcome(error)` tells what happened once recovery has finished the change. Neither: it may still take
    effect, and `storage.outcome(error)` settles it. `marked`: if it has taken effect, the row remembers that for two
    days.
    """

    def __init__(
        self, object_id: ObjectId, change_id: ChangeId, *, settled: bool = False, logged: bool = False, marked: bool = False
    ) -> None:
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
        self.marked = marked or logged

    def __reduce__(self) -> tuple[object, ...]:
        return _outcome_unknown, (self.object_id, self.change_id, self.settled, self.logged, self.marked)


def _upload_ended(object_id: ObjectId, upload_id: ChangeId, completed: bool | None) -> UploadEndedError:
    return UploadEndedError(object_id, upload_id, completed=completed)


def _outcome_unknown(object_id: ObjectId, change_id: ChangeId, settled: bool, logged: bool, marked: bool) -> OutcomeUnknownError:
    return OutcomeUnknownError(object_id, change_id, settled=settled, logged=logged, marked=marked)
