"""Uploads that stay open for days: `MultipartUpload`, in parts by number, and `ResumableUpload`, from an offset on.

    upload = await storage.begin_multipart(id)        upload = await storage.begin_resumable(id)
    await upload.upload_part(1, …), (2, …), …         offset = await upload.append(offset, …)
    await upload.complete()                           await upload.finish()

Any process goes on with `storage.multipart(id, upload.id)`: neither object here knows more than these two. Readers see
nothing of it before its end. Whoever gives an upload's id to somebody else gives away no other object: it counts only
together with the id of the object.

The second is the first, with parts that the store numbers. How both go is `protocol/assembling.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from changelog.base.errors import InvalidRequestError
from changelog.change import ChangeId
from tiered.errors import AtCapacityError
from tiered.object_id import ObjectId
from tiered.payload.chunks import Chunk
from tiered.payload.streams import Payload
from tiered.protocol.assembling import Append
from tiered.services.capabilities import PART_BYTES_MAX, PART_BYTES_MIN, PART_NUMBER_MAX, Part
from tiered.stored import PutResult
from tiered.text import check_flags, quoted

APPENDED_PART_BYTES = 8 << 20
"""In pieces of so many bytes an upload is kept that is appended to, unless its first append chooses others."""

Keep = Callable[[Sequence[Chunk]], Awaitable[object]]
"""Takes one piece of a payload, in chunks."""


class Uploads(Protocol):
    """What the store does for an open upload. `tiered/protocol/assembling.py` says what each call means."""

    async def send(
        self, object_id: ObjectId, payload: Payload, checksums: Mapping[str, str] | None, piece_bytes: int, keep: Keep,
        kept: int | None = None,
    ) -> None:  # fmt: skip
        """Reads the payload in pieces of so many bytes, of which the last may be shorter, and gives each to `keep`.

        An empty payload is one empty piece. `checksums` are compared before the last piece is given. `kept`: how many
        bytes before it the upload has, if `take` was asked for that, for this call; None: it was not.
        """

    async def put_part(self, object_id: ObjectId, upload_id: ChangeId, number: int, piece: Sequence[Chunk]) -> Part: ...

    async def parts(self, object_id: ObjectId, upload_id: ChangeId) -> Sequence[Part]: ...

    async def appended(self, object_id: ObjectId, upload_id: ChangeId) -> int: ...

    async def take(self, object_id: ObjectId, upload_id: ChangeId, offset: int, part_bytes: int | None) -> Append: ...

    async def append(self, object_id: ObjectId, append: Append, piece: Sequence[Chunk], *, is_last: bool) -> Append: ...

    async def give_back(self, object_id: ObjectId, append: Append) -> None: ...

    async def complete(
        self, object_id: ObjectId, upload_id: ChangeId, parts: Sequence[Part] | None, *, appended: bool = False
    ) -> PutResult: ...

    async def abort(self, object_id: ObjectId, upload_id: ChangeId) -> None: ...

    async def sign_part(
        self, object_id: ObjectId, upload_id: ChangeId, number: int, expires_in: timedelta, size_max: int | None, *,
        counts: bool = True,
    ) -> str:  # fmt: skip
        """`counts` False: the upload was begun by the same call, and knows `size_max`."""


@dataclass(frozen=True, slots=True)
class MultipartUpload:
    """An upload of one object in parts. `id` is all that another process needs besides the id of the object.

    Each method raises `UploadEndedError` after the upload has ended, and what the methods of the store raise.
    """

    object_id: ObjectId
    id: ChangeId
    _uploads: Uploads

    def __repr__(self) -> str:
        return f"<MultipartUpload {self.id} of {self.object_id}>"

    async def upload_part(self, number: int, payload: Payload, *, checksums: Mapping[str, str] | None = None) -> Part:
        """Uploads a part, durably. If this raises, the part is to be uploaded again; a file is back where it was.

        Parts come in any order, many at once, and again if one is in doubt. The last upload of a number counts; two at
        once of the same number leave either.

        Args:
            number: The place of the part in the object, 1 to 10,000.
            payload: As for `put`, of at most 128 MiB, which are held in memory. In GCS each part but the last has at
                least 5 MiB, or `complete` is refused.
            checksums: As for `put`, of the part.
        """
        _check_number(number)
        kept: list[Part] = []

        async def keep(piece: Sequence[Chunk]) -> None:
            if kept or sum(map(len, piece)) > PART_BYTES_MAX:
                raise InvalidRequestError(f"part {number} has more than {PART_BYTES_MAX} bytes; nothing of it was kept")
            kept.append(await self._uploads.put_part(self.object_id, self.id, number, piece))

        await self._uploads.send(self.object_id, payload, checksums, PART_BYTES_MAX + 1, keep)
        return kept[0]

    async def sign_part(self, number: int, expires_in: timedelta, *, size_max: int | None = None) -> str:
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
        _check_number(number)
        check_size_max(size_max)
        return await self._uploads.sign_part(self.object_id, self.id, number, expires_in, size_max)

    async def parts(self) -> Sequence[Part]:
        """The parts that were uploaded, by number. Their checksums are told only where the service keeps them."""
        return await self._uploads.parts(self.object_id, self.id)

    async def complete(self, parts: Sequence[Part] | None = None) -> PutResult:
        """Makes the object of its parts, in the order of their numbers. Goes on if its caller is cancelled.

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
        return await self._uploads.complete(self.object_id, self.id, parts)

    async def abort(self) -> None:
        """Gives the upload up, and removes its parts. No error if it was given up before, in the last two days.

        Raises:
            UploadEndedError: It was completed, or ended so long ago that nobody can tell (`completed`).
            OutcomeUnknownError: It takes no more parts, but it may be complete.
        """
        await self._uploads.abort(self.object_id, self.id)


@dataclass(frozen=True, slots=True)
class ResumableUpload:
    """An upload of one object from its first byte to its last, as tus has it: after a cut, ask `status` and go on.

    Each method raises `UploadEndedError` after the upload has ended, and what the methods of the store raise. `size`:
    of the whole object in bytes; None: whoever appends the end says so.
    """

    object_id: ObjectId
    id: ChangeId
    _uploads: Uploads
    size: int | None = None

    def __repr__(self) -> str:
        return f"<ResumableUpload {self.id} of {self.object_id}>"

    async def status(self) -> int:
        """How many bytes are kept, from the first on: the offset of the next append."""
        return await self._uploads.appended(self.object_id, self.id)

    async def append(self, offset: int, payload: Payload, *, final: bool = False, part_bytes: int | None = None) -> int:
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
        check_flags(final=final)
        if part_bytes is not None and (type(part_bytes) is not int or not PART_BYTES_MIN <= part_bytes <= PART_BYTES_MAX):
            raise InvalidRequestError(f"part_bytes is a number from {PART_BYTES_MIN} to {PART_BYTES_MAX}, not {quoted(part_bytes)}")
        if type(offset) is not int or offset < 0:
            raise InvalidRequestError(f"an offset is a number of bytes, not {quoted(offset)}")
        mine = await self._uploads.take(self.object_id, self.id, offset, part_bytes)
        may_land_late = False

        async def keep(piece: Sequence[Chunk]) -> None:
            nonlocal mine, may_land_late
            size, there, whole = sum(map(len, piece)), mine.state.size, mine.state.part_bytes
            if self.size is not None and there + size > self.size:
                raise InvalidRequestError(
                    f"the upload of {self.object_id} is to have {self.size} bytes, and more came; what was too much was not kept"
                )
            ends = there + size == self.size
            if (size < whole and not (final or ends)) or (not size and mine.state.parts):
                return  # more must follow it, or it is the end of a payload that was kept
            may_land_late = True
            mine = await self._uploads.append(self.object_id, mine, piece, is_last=size < whole or ends)
            may_land_late = False

        try:
            await self._uploads.send(self.object_id, payload, None, mine.state.part_bytes, keep, offset)
        except Exception as error:
            if not may_land_late or isinstance(error, AtCapacityError):  # else whoever goes on must leave its number out
                await self._uploads.give_back(self.object_id, mine)
            raise
        if mine.state.token is not None:
            await self._uploads.give_back(self.object_id, mine)
        return mine.state.size

    async def finish(self) -> PutResult:
        """Makes the object of what was appended, as it was acknowledged. Otherwise as `MultipartUpload.complete` of all
        parts.

        Raises:
            InvalidRequestError: Also if a part has changed since, because somebody has uploaded it in another way.
                Nothing is stored.
        """
        return await self._uploads.complete(self.object_id, self.id, None, appended=True)

    async def cancel(self) -> None:
        """Gives the upload up. As `MultipartUpload.abort`."""
        await self._uploads.abort(self.object_id, self.id)


@dataclass(frozen=True, slots=True)
class SignedPut:
    """A link to write an object: who has `url` may PUT its bytes there. Then `upload.complete()` makes the object."""

    url: str
    upload: MultipartUpload


def _check_number(number: object) -> None:
    if type(number) is not int or not 1 <= number <= PART_NUMBER_MAX:
        raise InvalidRequestError(f"a part has a number from 1 to {PART_NUMBER_MAX}, not {quoted(number)}")


def check_size_max(size_max: object) -> None:
    if size_max is not None and (type(size_max) is not int or size_max < 0):
        raise InvalidRequestError(f"size_max is a number of bytes, not {quoted(size_max)}")
