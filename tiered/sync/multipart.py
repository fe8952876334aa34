"""`SyncMultipartUpload` and `SyncResumableUpload`: uploads that stay open, for callers that block."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import tiered.multipart
from changelog.change import ChangeId
from tiered.object_id import ObjectId
from tiered.protocol.capabilities import Part
from tiered.stored import PutResult

if TYPE_CHECKING:
    from tiered.sync.storage import Payload

T = TypeVar("T")
U = TypeVar("U", bound=tiered.multipart.MultipartUpload | tiered.multipart.ResumableUpload)


class Calls(Protocol):
    """How a blocking call is made: the store does it."""

    def call(self, operate: Callable[[], Awaitable[T]]) -> T: ...

    def with_payload(self, payload: Payload, operate: Callable[[Any], Awaitable[T]]) -> T: ...


class _SyncUpload(Generic[U]):
    """What both kinds of uploads are: a view of the asynchronous one."""

    def __init__(self, upload: U, calls: Calls) -> None:
        self._upload: U = upload
        self._calls = calls

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.object_id}>"

    @property
    def object_id(self) -> ObjectId:
        return self._upload.object_id

    @property
    def id(self) -> ChangeId:
        return self._upload.id


class SyncMultipartUpload(_SyncUpload[tiered.multipart.MultipartUpload]):
    """An upload of one object in parts. `id` is all that another process needs besides the id of the object.

    Each method raises `UploadEndedError` after the upload has ended, and what the methods of the store raise.
    """

    def upload_part(self, number: int, payload: Payload, *, checksums: Mapping[str, str] | None = None) -> Part:
        """Uploads the part with this number, 1 to 10,000, durably. In any order, many at once, again if it is in doubt.

        The last upload of a number counts; two at once of the same number leave either. A part has at most 128 MiB,
        which are held in memory. In GCS each but the last has at least 5 MiB, or `complete` is refused. `checksums` and
        the payload are those of `put`. If this raises, the part is to be uploaded again.
        """
        return self._calls.with_payload(payload, lambda body: self._upload.upload_part(number, body, checksums=checksums))

    def sign_part(self, number: int, expires_in: timedelta, *, size_max: int | None = None) -> str:
        """A link to which anybody may PUT this part for `expires_in` (1 second to 7 days), as often as he likes.

        GCS and S3 sign a link of their own, and the part may have up to 5 GiB. Otherwise it is a link to the app of
        `tiered.asgi`, which takes at most 128 MiB. So is a link with a `size_max` (bytes), which no link of a bucket
        can bound. Nothing that came so is an object before `complete`. After the end of the upload it leads nowhere.

        `ConfigurationError`: no app is configured, or the credentials of the service cannot sign.
        """
        return self._calls.call(lambda: self._upload.sign_part(number, expires_in, size_max=size_max))

    def parts(self) -> Sequence[Part]:
        """The parts that were uploaded, by number. Their checksums are told only where the service keeps them."""
        return self._calls.call(self._upload.parts)

    def complete(self, parts: Sequence[Part] | None = None) -> PutResult:
        """Makes the object of these parts, in the order of their numbers; None: of all. Goes on if it is interrupted.

        Safe to repeat, by anybody: an upload that was completed is told so again, with the same result, for two days.
        The first call with parts that are there decides of which; another list is an `InvalidRequestError` from then
        on. The conditions of the upload are judged now: `ConditionFailedError`. Unless an earlier call has failed
        midway, the upload stays open then, as it does after `InvalidRequestError` and `UnavailableError`.

        A day after the first call that failed midway, the upload cannot be completed any more. `OutcomeUnknownError`:
        call it again, or ask `outcome`.
        """
        return self._calls.call(lambda: self._upload.complete(parts))

    def abort(self) -> None:
        """Gives the upload up, and removes its parts. No error if it was given up before.

        `UploadEndedError`: it was completed. `OutcomeUnknownError`: it takes no more parts, but it may be complete.
        """
        self._calls.call(self._upload.abort)


@dataclass(frozen=True, slots=True)
class SyncSignedPut:
    """A link to write an object: who has `url` may PUT its bytes there. Then `upload.complete()` makes the object."""

    url: str
    upload: SyncMultipartUpload


class SyncResumableUpload(_SyncUpload[tiered.multipart.ResumableUpload]):
    """An upload of one object from its first byte to its last, as tus has it: after a cut, ask `status` and go on.

    Each method raises `UploadEndedError` after the upload has ended, and what the methods of the
    store raise. `size`: of the whole object in bytes; None: whoever appends the end says so.
    """

    @property
    def size(self) -> int | None:
        return self._upload.size

    def status(self) -> int:
        """How many bytes are kept, from the first on: the offset of the next append."""
        return self._calls.call(self._upload.status)

    def append(self, offset: int, payload: Payload, *, final: bool = False, part_bytes: int | None = None) -> int:
        """Appends the bytes from `offset` on, and returns how many bytes are kept now.

        They are kept in pieces of `part_bytes` (5 MiB to 128 MiB), of which an upload has at most 10,000. The first
        append decides of that, for the upload; None: as it did, or 8 MiB. What is left at the end of the payload and is
        no whole piece is kept only with the last byte of the object: with `final`, or where `size` is reached. So send
        on from the offset that this returns, or that `status` tells if it raises. A payload that breaks off keeps the
        pieces before that.

        Who appends takes the upload over from whoever did before, also from a process that is only stopped: that one
        gets `OffsetMismatchError`, and what it sends late does not count. Of two appends at one offset, one is told ok.

        `OffsetMismatchError`: other bytes come next, and of these, only pieces before its `offset` were kept.
        `InvalidRequestError`: the upload has another `part_bytes`.
        """
        return self._calls.with_payload(payload, lambda body: self._upload.append(offset, body, final=final, part_bytes=part_bytes))

    def finish(self) -> PutResult:
        """Makes the object of what was appended, as it was acknowledged.

        Otherwise as `SyncMultipartUpload.complete` without a list.
        `InvalidRequestError`: a part has changed since, because somebody has uploaded it in another way; nothing is
        stored.
        """
        return self._calls.call(self._upload.finish)

    def cancel(self) -> None:
        """Gives the upload up. As `SyncMultipartUpload.abort`."""
        self._calls.call(self._upload.cancel)
