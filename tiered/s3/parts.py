"""Uploads in parts: S3's multipart uploads, as `PartUploads` describes them, and as uploads in lanes use them.

    begin       1 call; the metadata are fixed then
    put         1; with a crc32c, which the service may compare. What says that it arrived is in its answer
    listed      1 for each page of up to 1,000 (`listings.py`)
    check       as `listed`
    complete    2: the completion, create-only (`If-None-Match: *`), and a look at the blob; 1 more to read it back,
                where nothing says that its bytes arrived
    cancel      1
    open        1 for each page: the uploads that have not ended

A session is `parts:BUCKET/NAME?uploadId=ID`, as in GCS: what to cancel, and no secret. It does not say which endpoint
it was begun at. The crc32c of the whole is joined from those of the parts and told with the completion, so the service
refuses what differs, if it keeps such checksums (`FULL_OBJECT`). One that does not take them at the beginning is asked
without from then on.

*Failure*: 404 NoSuchUpload means that the upload was completed or has ended. Which of the two, the blob tells. So
completing may be repeated, also after a crash. A completion may be refused in an answer of 200, fail after its effect,
or find a blob of the name (412): after each of these, the blob is looked at. If it is the one that was to be made, the
upload is complete.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote

from changelog.base.errors import CorruptRecordError, InvalidRequestError, TieredError, UnavailableError, UnconfirmedError
from tiered.metadata import Metadata
from tiered.payload.chunks import Chunk
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.protocol.arrival import DAMAGED, UnprovenPart, proven
from tiered.protocol.backends import SessionEndedError
from tiered.protocol.capabilities import PART_NUMBER_MAX, PARTS_SESSION, OpenSession, Part, SessionPage, check_parts
from tiered.protocol.part_lists import CRC, compare_sizes, compare_stored, gone, joined_crc
from tiered.s3 import listings
from tiered.s3.arrival import answer_proves, prove_whole
from tiered.s3.client import S3Client
from tiered.s3.errors import Refusal, error_of, odd
from tiered.s3.format import Stored, encode_metadata

COMPLETION_ANSWERS = 30
"""A completion may take as long as so many answers: the service puts large blobs together for minutes."""

_SESSION = re.compile(r"parts:([^/?#\s]+)/([^?#\s]+)\?uploadId=([^?#&\s]+)")
_NO_CHECKSUMS = ("InvalidRequest", "InvalidArgument", "NotImplemented")
"""What a service says that keeps no crc32c of a whole object made of parts."""
_ENDED = "NoSuchUpload"
_WRONG_PARTS = ("InvalidPart", "InvalidPartOrder")
_DOUBTFUL = (_ENDED, "PreconditionFailed")
"""Refusals of a completion after which the blob tells whether it is complete."""


def is_of_parts(session: str) -> bool:
    return session.startswith(PARTS_SESSION)


class S3Parts:
    """Uploads in parts to one bucket. `looked`: what the service tells of a blob; None: there is none."""

    def __init__(self, client: S3Client, looked: Callable[[str], Awaitable[Stored | None]], *, keeps_checksums: bool = True) -> None:
        self._client = client
        self._looked = looked
        self._keeps_checksums = keeps_checksums

    async def look(self, name: str) -> Stored | None:
        return await self._looked(name)

    async def begin(
        self, name: str, metadata: Metadata, nonce: str | None = None, source: str | None = None, *, crc32c: str | None = None,
        is_copy: bool = False,
    ) -> str:  # fmt: skip
        """`is_copy`: its parts will be copied, and `crc32c` is that of the source. The service keeps none then: some
        tell a wrong one, and MinIO copies nothing of what was made of parts.
        """
        doing = f"beginning the upload in parts of blob {name!r}"
        named = {"Key": name, **encode_metadata(name, metadata, nonce=nonce, source=source, crc32c=crc32c)}
        while True:
            is_kept = self._keeps_checksums and not is_copy
            whole: dict[str, Any] = {"ChecksumAlgorithm": "CRC32C", "ChecksumType": "FULL_OBJECT"} if is_kept else {}
            accept = _NO_CHECKSUMS if whole else ()
            answer = await self._client.call("create_multipart_upload", doing, accept=accept, **named, **whole)
            if not isinstance(answer, Refusal):
                break
            self._keeps_checksums = False
        return self._session(name, answer["UploadId"])

    async def put(self, name: str, session: str, number: int, payload: Sequence[Chunk]) -> Part:
        body, crc = [memoryview(chunk).cast("B") for chunk in payload], 0
        for chunk in payload:
            crc = extend_crc(crc, chunk)
        return proven(name, await self.send(name, session, number, body, sum(map(len, body)), crc))

    async def send(self, name: str, session: str, number: int, body: Sequence[memoryview], size: int, crc: int) -> Part:
        upload_id = self._of(name, session)
        if not 1 <= number <= PART_NUMBER_MAX:
            raise InvalidRequestError(f"a part has a number from 1 to {PART_NUMBER_MAX}, not {number}")
        doing, told = f"uploading part {number} of blob {name!r}", encode_crc(crc)
        answer = await self._client.call(
            "upload_part", doing, effect=True, accept=(_ENDED,), body=body, Key=name, UploadId=upload_id, PartNumber=number,
            ContentLength=size, ChecksumCRC32C=told,
        )  # fmt: skip
        if isinstance(answer, Refusal):
            raise gone(name, doing)
        part = self._part(number, size, answer, doing, told)
        return part if await answer_proves(f"part {number} of blob {name!r}", answer, body, crc) else UnprovenPart.of(part)

    async def copy(self, name: str, session: str, number: int, source: str, etag: str, extent: tuple[int, int] | None) -> Part:
        """Makes a part of bytes of the blob `source`, which must have this tag. `extent`: from where to where.

        That the part has these bytes is proven by the same tag. Of a blob that was made of parts, no part has that.
        """
        doing = f"copying blob {source!r} to part {number} of blob {name!r}"
        ranged: dict[str, Any] = {} if extent is None else {"CopySourceRange": f"bytes={extent[0]}-{extent[1] - 1}"}
        answer = await self._client.call(
            "upload_part_copy", doing, effect=True, accept=(_ENDED, "PreconditionFailed", "NoSuchKey"), answers=COMPLETION_ANSWERS,
            Key=name, UploadId=self._of(name, session), PartNumber=number, CopySource={"Bucket": self._client.bucket, "Key": source},
            CopySourceIfMatch=f'"{etag}"', **ranged,
        )  # fmt: skip
        if isinstance(answer, Refusal):
            if answer.code == _ENDED:
                raise gone(name, doing)
            raise UnavailableError(f"{doing} failed: the source is gone, or is another ({answer.code})").coded("404", heard=True)
        told: dict[str, Any] = dict(answer.get("CopyPartResult") or {})
        part = self._part(number, 0 if extent is None else extent[1] - extent[0], told, doing, None)
        return part if part.etag == etag and extent is None else UnprovenPart.of(part)

    def query_of(self, name: str, session: str, number: int) -> dict[str, Any]:
        """What the address of a part says besides its name."""
        return {"PartNumber": number, "UploadId": self._of(name, session)}

    async def listed(self, name: str, session: str) -> Sequence[Part]:
        doing = f"listing the parts of blob {name!r}"
        found = await listings.parts(self._client, doing, name, self._of(name, session), (_ENDED,))
        if isinstance(found, Refusal):
            raise gone(name, doing)
        return [self._part(each["PartNumber"], each["Size"], each, doing, each.get("ChecksumCRC32C")) for each in found]

    async def check(self, name: str, session: str, parts: Sequence[Part]) -> None:
        """Raises `InvalidRequestError` if the service has other parts than these. If it has none any more, it does not.

        The service looks at the ETags alone.
        """
        joined_crc(parts)
        with suppress(SessionEndedError):
            compare_sizes(name, parts, await self.listed(name, session))

    async def complete(self, name: str, session: str, parts: Sequence[Part], crc32c: str | None = None) -> Stored:
        """Returns what the service tells of the blob, which has the bytes of the parts.

        `crc32c`: of all of them, if they were copied: the service was told none. Of no bytes it is not told either:
        MinIO takes that for a wrong one.
        """
        upload_id = self._of(name, session)
        check_parts(name, parts)
        doing = f"completing the upload of blob {name!r}"
        crc = joined_crc(parts)
        is_kept = self._keeps_checksums and crc32c is None and crc is not None
        is_told = is_kept and any(part.size for part in parts)
        whole: dict[str, Any] = {"ChecksumCRC32C": crc, "ChecksumType": "FULL_OBJECT"} if is_told else {}
        unclear: TieredError | None = None
        try:
            answer = await self._client.call(
                "complete_multipart_upload", doing, effect=True, accept=(*_DOUBTFUL, *_WRONG_PARTS), answers=COMPLETION_ANSWERS, Key=name,
                UploadId=upload_id, IfNoneMatch="*",
                MultipartUpload={"Parts": [_named(part, is_kept=is_kept) for part in parts]}, **whole,
            )  # fmt: skip
            if isinstance(answer, Refusal):
                unclear = _refused(answer, name, doing)
        except UnconfirmedError as error:
            unclear = error
        try:
            found = await self.look(name)
        except UnavailableError as error:
            raise UnconfirmedError(f"{doing} was never confirmed: {unclear or 'it succeeded'}, and nobody told of the blob") from error
        if isinstance(unclear, InvalidRequestError):
            raise unclear
        if found is not None:
            compare_stored(name, parts, found.size, None)
            try:
                await prove_whole(
                    self._client, name, found, parts, crc32c or crc, is_believed=self._keeps_checksums and crc32c is None
                )
            except UnavailableError as error:
                if error.code == DAMAGED:
                    raise SessionEndedError(f"{error}, and delete it").telling(heard=True) from error
                raise UnconfirmedError(f"{doing} succeeded, and nobody told whether its bytes arrived: {error}") from error
            return found
        raise unclear or SessionEndedError(f"{doing} succeeded, and somebody deleted the blob at once").telling(heard=True)

    async def open(self, prefix: str, before_ns: int, after: str, limit: int) -> SessionPage:
        """`prefix`: of the names. `after`: what the page before told."""
        doing = f"listing the uploads in parts of bucket {self._client.bucket!r}"
        told, last = await listings.uploads(self._client, doing, after, prefix, limit)
        sessions = [OpenSession(each.name, self._session(each.name, each.upload_id)) for each in told if each.begun_ns < before_ns]
        return SessionPage(sessions, last)

    async def cancel(self, session: str) -> None:
        """Ends the upload. It is no error if it has ended. `CorruptRecordError`: it is none of this bucket."""
        name, upload_id = self._taken_apart(session)
        doing = f"cancelling an upload in parts of bucket {self._client.bucket!r}"
        await self._client.call("abort_multipart_upload", doing, effect=True, accept=(_ENDED,), Key=name, UploadId=upload_id)

    def _part(self, number: int, size: int, told: Any, doing: str, crc: str | None) -> Part:
        etag = str(told.get("ETag", "")).strip('"')
        if not etag:
            raise odd(doing, effect=True, what="without an ETag")
        return Part(number, size, None if crc is None else f"{CRC}{crc}", etag)

    def _session(self, name: str, upload_id: str) -> str:
        return f"{PARTS_SESSION}{self._client.bucket}/{quote(name, safe='')}?uploadId={quote(upload_id, safe='')}"

    def _of(self, name: str, session: str) -> str:
        of, upload_id = self._taken_apart(session)
        if of != name:
            raise InvalidRequestError(f"the upload session is that of another blob than {name!r}; nothing was sent")
        return upload_id

    def _taken_apart(self, session: str) -> tuple[str, str]:
        """The name of the session's blob, and the upload's id."""
        found = _SESSION.fullmatch(session)
        if found is None or found[1] != self._client.bucket:
            raise CorruptRecordError(f"an upload session is none of bucket {self._client.bucket!r}; nothing was sent")
        return unquote(found[2]), unquote(found[3])


def _named(part: Part, *, is_kept: bool) -> dict[str, Any]:
    """With its checksum if the upload was begun so: some services want to be told then, and only then."""
    checksum = {} if part.checksum is None or not is_kept else {"ChecksumCRC32C": part.checksum.removeprefix(CRC)}
    return {"PartNumber": part.number, "ETag": f'"{part.etag}"', **checksum}


def _refused(answer: Refusal, name: str, doing: str) -> TieredError:
    if answer.code == _ENDED:
        return gone(name, doing)
    if answer.code in _WRONG_PARTS:
        return error_of(answer, doing, effect=True)
    return UnavailableError(f"blob {name!r} was deleted while {doing}; try again").coded("412", heard=True)
