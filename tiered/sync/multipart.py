"""Made from `tiered/multipart.py` by `python -m tests.tiered.sync.twins`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import tiered.multipart
from changelog.change import ChangeId
from tiered.object_id import ObjectId
from tiered.services.capabilities import Part
from tiered.stored import PutResult
from tiered.sync.calls import BlockingUpload, Payload, body


class SyncMultipartUpload(BlockingUpload[tiered.multipart.MultipartUpload]):
    """An upload of one object in parts. `id` is all that another process needs besides the id of the object.

    Each method raises `UploadEndedError` after the upload has ended, and what the methods of the store raise.
    """

    @property
    def object_id(self) -> ObjectId:
        return self._upload.object_id

    @property
    def id(self) -> ChangeId:
        return self._upload.id

    def upload_part(self, number: int, payload: Payload, *, checksums: Mapping[str, str] | None = None) -> Part:
        """Uploads a part, durably. If this raises, the part is to be uploaded again; a file is back where it was.

        Parts come in any order, many at once, and again if one is in doubt. The last upload of a number counts; two at
        once of the same number leave either.

        Args:
            number: The place of the part in the object, 1 to 10,000.
            payload: As for `put`, of at most 128 MiB, which are held in memory. In GCS each part but the last has at
                least 5 MiB, or `complete` is refused.
            checksums: As for `put`, of the part.
        """
        thread = self._calls.thread()
        call = partial(self._upload.upload_part, number, body(payload, thread), checksums=checksums)
        return self._calls.call(call, thread)

    def sign_part(self, number: int, expires_in: timedelta, *, size_max: int | None = None) -> str:
        """A link to which anybody may PUT a part, as often as he likes.

        GCS and S3 sign a link of their own, and the part may have up to 5 GiB. Otherwise it is a link to the app of
        `tiered.asgi`, which takes at most 128 MiB. Nothing that came so is an object before `complete`. After the end
        of the upload it leads nowhere.

        Args:
            number: The place of the part in the object, 1 to 10,000.
            expires_in: For how long the link is good: 1 second to 7 days.
            size_max: How many bytes the part may have. Then it is a link to the app, because no link of a bucket can
                bound that.

        Raises:
            ConfigurationError: No app is configured, or the credentials of the service cannot sign.
        """
        call = partial(self._upload.sign_part, number, expires_in, size_max=size_max)
        return self._calls.call(call)

    def parts(self) -> Sequence[Part]:
        """The parts that were uploaded, by number. Their checksums are told only where the service keeps them."""
        return self._calls.call(self._upload.parts)

    def complete(self, parts: Sequence[Part] | None = None) -> PutResult:
        """Makes the object of its parts, in the order of their numbers. Goes on if its caller is interrupted.

        Safe to repeat, by anybody: an upload that was completed is told so again, with the same result, for two days. A
        day after the first call that failed midway, it cannot be completed any more.

        Args:
            parts: Which parts; None: all. The first call with parts that are there decides of that.

        Raises:
            ConditionFailedError: The conditions of the upload are judged now. Unless an earlier call has failed midway,
                the upload stays open, as it does after `InvalidRequestError` and `UnavailableError`.
            InvalidRequestError: Also if another call has decided of other parts.
            OutcomeUnknownError: Call it again, or ask `outcome`.
        """
        call = partial(self._upload.complete, parts)
        return self._calls.call(call)

    def abort(self) -> None:
        """Gives the upload up, and removes its parts. No error if it was given up before, in the last two days.

        Raises:
            UploadEndedError: It was completed, or ended so long ago that nobody can tell (`completed`).
            OutcomeUnknownError: It takes no more parts, but it may be complete.
        """
        self._calls.call(self._upload.abort)


class SyncResumableUpload(BlockingUpload[tiered.multipart.ResumableUpload]):
    """An upload of one object from its first byte to its last, as tus has it: after a cut, ask `status` and go on.

    Each method raises `UploadEndedError` after the upload has ended, and what the methods of the store raise. `size`:
    of the whole object in bytes; None: whoever appends the end says so.
    """

    @property
    def object_id(self) -> ObjectId:
        return self._upload.object_id

    @property
    def id(self) -> ChangeId:
        return self._upload.id

    @property
    def size(self) -> int | None:
        return self._upload.size

    def status(self) -> int:
        """How many bytes are kept, from the first on: the offset of the next append."""
        return self._calls.call(self._upload.status)

    def append(self, offset: int, payload: Payload, *, final: bool = False, part_bytes: int | None = None) -> int:
        """Appends the bytes from `offset` on, and returns how many bytes are kept now.

        They are kept in whole pieces. What is left at the end of the payload is kept only with the last byte of the
        object: with `final`, or where `size` is reached. So send on from the offset that this returns, or that `status`
        tells if it raises. A payload that breaks off keeps the pieces before that.

        Who appends takes the upload over from whoever did before, also from a process that is only stopped: that one
        gets `OffsetMismatchError`, and what it sends late does not count. Of two appends at one offset, one is told ok.

        Args:
            offset: How many bytes are kept before these.
            payload: As for `put`.
            final: The payload is the end of the object.
            part_bytes: The size of a piece, 5 MiB to 128 MiB; an upload has at most 10,000. The first append decides of
                that, for the upload; None: as it did, or 8 MiB.

        Raises:
            OffsetMismatchError: Other bytes come next, and of these, only pieces before its `offset` were kept.
            InvalidRequestError: Also if the upload has another `part_bytes`.
        """
        thread = self._calls.thread()
        call = partial(self._upload.append, offset, body(payload, thread), final=final, part_bytes=part_bytes)
        return self._calls.call(call, thread)

    def finish(self) -> PutResult:
        """Makes the object of what was appended, as it was acknowledged. Otherwise as `SyncMultipartUpload.complete` of
        all parts.

        Raises:
            InvalidRequestError: Also if a part has changed since, because somebody has uploaded it in another way.
                Nothing is stored.
        """
        return self._calls.call(self._upload.finish)

    def cancel(self) -> None:
        """Gives the upload up. As `SyncMultipartUpload.abort`."""
        self._calls.call(self._upload.cancel)


@dataclass(frozen=True, slots=True)
class SyncSignedPut:
    """A link to write an object: who has `url` may PUT its bytes there. Then `upload.complete()` makes the object."""

    url: str
    upload: SyncMultipartUpload
