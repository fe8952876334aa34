"""The rules by which an episode judges its calls: what a call may answer, and what it may raise.

    refused        a good call raised `InvalidRequestError`, or `UnavailableError` though nothing troubled the store
    taken          a wrong call was not refused
    raw error      a call raised an error that is not documented
    wrong answer   an answer that the model does not allow
    another's row  a call reached a row that is not its object's

Each is the kind of a `Violation`. There are two more: `hang`, if the episode took too long, and `corrupt`, for any
other error of the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from emulators.callers.ended import NO_VALUE, Ended, described, innermost
from emulators.callers.model import CallersModel, ModelWrite, WriteCertainty
from emulators.callers.payloads import Made
from emulators.callers.values import Heard, Is, Value, said
from emulators.callers.verdict import Violation
from tiered import (
    AtCapacityError,
    ConditionFailedError,
    Folder,
    InvalidRequestError,
    LeaseLostError,
    ListEntry,
    Metadata,
    ObjectId,
    ObjectPrefix,
    OutcomeUnknownError,
    PutResult,
    TieredError,
    UnavailableError,
)


def is_hung(error: BaseException) -> bool:
    """Tells whether the alarm of the episode has raised it (`episode_run.EpisodeHung`)."""
    return type(innermost(error)).__name__ == "EpisodeHung"


def raw_error(what: str, error: Exception) -> Violation:
    return Violation("raw error", f"{what} raised {type(error).__name__}: {str(error)[:200]}")


class Oracle:
    """Judges calls. Each method raises `Violation`.

    `model`: what was written, and so what reads may return. `closed`: the store is closed, or is being closed.
    `troubled`: calls may fail, because others run beside them or are cancelled. `tight`: the store has few places, so
    a call may find it full.
    """

    def __init__(self, *, troubled: bool, tight: bool) -> None:
        self.model = CallersModel()
        self.closed = False
        self._troubled = troubled
        self._tight = tight

    def settled(self) -> None:
        """Notes that all stores were closed and recovery has run. Nothing troubles a call any more."""
        self.model.settled()
        self._troubled = self._tight = False

    def make(self, value: Value) -> Any:
        """Makes a value. Raises `InvalidRequestError` if its constructor refused it, as it may."""
        try:
            return value.make()
        except InvalidRequestError as error:
            if value.verdict is Is.GOOD:
                raise Violation("refused", f"{value} is good, and was refused: {error}") from error
            raise
        except Exception as error:
            raise raw_error(str(value), error) from error

    def begin(self, object_id: object, metadata: object, made: Made) -> ModelWrite | None:
        """Begins a write in the model, if the call can take effect at all."""
        if not isinstance(object_id, ObjectId) or not isinstance(metadata, (Metadata, type(None))):
            return None
        content = b"" if made.content is None else made.content
        return self.model.begin(path_of(object_id), content, metadata, known=made.content is not None)

    def judge_write(
        self, write: ModelWrite | None, ended: Ended, verdict: Is, made: Made, object_id: object, *,
        blocks: bool = False, result: type = PutResult, condition: Mapping[str, Any] | None = None,
    ) -> None:
        """Judges a put or a delete, and ends its write in the model.

        `write`: None if the call could not take effect. `verdict`: of its arguments together. `blocks`: its payload
        never ends. `result`: the type that the call returns. `condition`: the arguments that are its condition.
        """
        error = ended.error
        may_hold, may_fail = (True, False) if not condition or write is None else self.model.judge_condition(write, condition)
        may_hold = may_hold or verdict is Is.WRONG  # it is refused anyway, and it may be told either reason
        own = error is not None and (any(error is each for each in made.own) or isinstance(error, made.may_raise))
        if ended.value is not NO_VALUE:
            if verdict is Is.WRONG or made.fails or blocks:
                raise Violation("taken", f"it must not be taken, and {described(ended)}")
            if not isinstance(ended.value, result):
                raise Violation("wrong answer", f"it {described(ended)}")
            if write is None:
                raise Violation("taken", f"no object id, or no metadata, and it {described(ended)}")
            self.check_own_row(object_id)
            if not may_hold:
                raise Violation("taken", f"its condition {condition} cannot have been true, and it {described(ended)}")
            if isinstance(ended.value, PutResult):
                if write.known and not write.compressed and ended.value.size != len(write.content or b""):
                    raise Violation("wrong answer", f"of {len(write.content or b'')} bytes it {described(ended)}")
                self.model.end(write, WriteCertainty.OK, ended.value.revision)
            else:
                self.model.end(write, WriteCertainty.OK)
            return
        told = WriteCertainty.NO
        if ended.cancelled or isinstance(error, OutcomeUnknownError):
            told = WriteCertainty.MAYBE
        if write is not None:
            self.model.end(write, told)
        if isinstance(error, ConditionFailedError):
            if not may_fail:
                raise Violation("refused", f"its condition {condition} cannot have been false: {error}") from error
            return
        if not ended.cancelled and not own:
            self.judge_error(ended, verdict, writes=True)

    def judge_rewrite(self, writes: Sequence[ModelWrite], ended: Ended, verdict: Is) -> None:
        """Judges a copy, a change of metadata, or a rename. `writes`: the copy, and the deletion of the source."""
        if ended.value is not NO_VALUE:
            if verdict is Is.WRONG:
                raise Violation("taken", f"it must not be taken, and {described(ended)}")
            for write in writes:
                told = WriteCertainty.NO if ended.value is None else WriteCertainty.OK
                self.model.end(write, told, ended.value.revision if told is WriteCertainty.OK and write is writes[0] else None)
            return
        error = ended.error
        half = len(writes) > 1 or ended.cancelled or isinstance(error, OutcomeUnknownError)  # a rename may have copied
        for write in writes:
            self.model.end(write, WriteCertainty.MAYBE if half else WriteCertainty.NO)
        if not ended.cancelled and not isinstance(error, ConditionFailedError):
            self.judge_error(ended, verdict & Is.ODD, writes=True)

    def check_heard(self, heard: object, ended: Ended, size: int | None) -> None:
        """Checks what a progress callback was told. `size`: how many bytes the payload has; None: nobody knows."""
        if not isinstance(heard, Heard):
            return
        told = [done for done, _ in heard.calls]
        if told != sorted(set(told)):
            raise Violation("wrong answer", f"progress went from {told}")
        if ended.value is not NO_VALUE and heard.raised:
            raise Violation("taken", f"its progress callback raised an error, and it {described(ended)}")
        if ended.value is not NO_VALUE and size is not None and told[-1:] != [size][: size > 0]:
            raise Violation("wrong answer", f"of {size} bytes, progress heard of {told}")

    def judge_error(self, ended: Ended, verdict: Is, *, writes: bool = False) -> None:
        """Judges a call that raised an error. `verdict`: of its arguments. `writes`: it was a put or a delete."""
        error = ended.error
        assert error is not None, "told"
        if isinstance(error, InvalidRequestError):
            if verdict is Is.GOOD and not self.closed:
                raise Violation("refused", f"a good call was refused: {error}") from error
            return
        if isinstance(error, LeaseLostError):
            raise Violation("wrong answer", f"nobody runs a recovery here: {error}") from error
        if isinstance(error, AtCapacityError) and (self._tight or self._troubled):
            return
        if self._troubled and isinstance(error, (UnavailableError, OutcomeUnknownError) if writes else UnavailableError):
            return
        kind = "refused" if isinstance(error, UnavailableError) else "corrupt" if isinstance(error, TieredError) else "raw error"
        raise Violation("hang" if is_hung(error) else kind, described(ended)) from error

    def check_own_row(self, object_id: object) -> None:
        """Checks that the call reached its own object's row and no other."""
        path = path_of(object_id)
        with suppress(InvalidRequestError):
            if (parsed := ObjectId.parse(path)) == object_id:
                return
            raise Violation("another's row", f"{object_id!r} reached the row {path!r}, which is that of {parsed!r}")
        raise Violation("another's row", f"{object_id!r} reached the row {path!r}, which is no object's")

    def check_listed(self, entries: Sequence[ListEntry | Folder], arguments: Mapping[str, Any], began: int) -> None:
        """Judges a listing with these arguments that began at the tick `began` and ends now."""
        prefix, after, limit = arguments.get("prefix", ObjectPrefix()), arguments.get("start_after"), arguments.get("limit")
        listed = [entry.object_id.path if isinstance(entry, ListEntry) else entry.prefix.path for entry in entries]
        folders = tuple(entry.prefix.path for entry in entries if isinstance(entry, Folder))
        if listed != sorted(set(listed), key=str.encode) or (limit is not None and len(listed) > limit):
            raise Violation("wrong answer", f"a list is not in order, or longer than {limit}: {listed}")
        if folders and arguments.get("delimiter") is None:
            raise Violation("wrong answer", f"nobody asked for the folders {folders}")
        for entry in entries:
            if isinstance(entry, ListEntry):
                self._check_entry(entry, bool(arguments.get("metadata")))
            elif not any(path.startswith(entry.prefix.path) and self.model.names(path, began)[0] for path in self.model.writes):
                raise Violation("wrong answer", f"the folder {entry.prefix.path!r} is empty")
        for path in {*self.model.writes, *listed} - {*folders}:
            may, may_not = self.model.names(path, began)
            within = path.startswith(prefix.path) and (after is None or _is_after(path, after))
            if path in listed and not (may and within):
                raise Violation("wrong answer", f"{path!r} was listed under {prefix.path!r}")
            if path not in listed and within and not may_not and limit is None and not path.startswith(folders):
                raise Violation("wrong answer", f"{path!r} was not listed under {said(prefix.path)}")

    @staticmethod
    def _check_entry(entry: ListEntry, metadata: bool) -> None:
        if entry.fault is not None or entry.revision is None or (entry.metadata is not None) != metadata:
            raise Violation("wrong answer", f"nothing is damaged, metadata were {'asked' if metadata else 'not asked'} for, and it shows {entry}")
        if entry.metadata is not None and (entry.metadata.size, entry.metadata.time_expires_ns) != (entry.size, entry.time_expires_ns):
            raise Violation("wrong answer", f"an entry contradicts its metadata: {entry}")


def _is_after(path: str, after: ObjectId | ObjectPrefix) -> bool:
    return path.encode() > after.path.encode() and not (isinstance(after, ObjectPrefix) and path.startswith(after.path))


def path_of(object_id: object) -> str:
    """Returns the path of an object id; empty for anything else."""
    return object_id.path if isinstance(object_id, ObjectId) else ""
