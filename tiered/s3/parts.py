"""Uploads in parts: S3's multipart uploads, as `PartUploads` describes them, and as uploads in lanes use them.

    begin       1 call; the metadata are fixed then
    put         1; with a crc32c, which the service may compare. What says that it arrived is in its answer
    listed      1 for each page of up to 1,000 (`listings.py`)
    check       as `listed`
    complete    2: the completion, create-only (`If-None-Match: *`), and a look at the blob; 1 more to read it back,
                where nothing says that its bytes arrived
    cancel      1
    open        1 for each page: the uploads that have not ended

The crc32c of the whole is joined from those of the parts and told with the completion, so the service refuses what
differs, if it keeps such checksums (`FULL_OBJECT`). One that does not take them at the beginning is asked without from
then on. A completion may be refused in an answer of 200, fail after its effect, or find a blob of the name (412).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import unquote

from changelog.base.errors import TieredError, UnavailableError, UnconfirmedError
from tiered.metadata import Metadata
from tiered.payload.crc32c import encode_crc
from tiered.s3 import listings
from tiered.s3.arrival import answer_proves, prove_whole
from tiered.s3.client import S3Client
from tiered.s3.errors import Refusal, error_of, odd
from tiered.s3.format import Stored, encode_metadata
from tiered.services.backends import SessionEndedError
from tiered.services.capabilities import Part
from tiered.transfer.arrival import DAMAGED, UnprovenPart
from tiered.transfer.part_lists import CRC, compare_stored, gone, joined_crc
from tiered.transfer.parts import COMPLETION_ANSWERS, BucketParts

_NO_CHECKSUMS = ("InvalidRequest", "InvalidArgument", "NotImplemented")
"""What a service says that keeps no crc32c of a whole object made of parts."""
_ENDED = "NoSuchUpload"
_WRONG_PARTS = ("InvalidPart", "InvalidPartOrder")
_DOUBTFUL = (_ENDED, "PreconditionFailed")
"""Refusals of a completion after which the blob tells whether it is complete."""


class S3Parts(BucketParts[Stored]):
    """The requests."""

    def __init__(self, client: S3Client, look: Callable[[str], Awaitable[Stored | None]], *, keeps_checksums: bool = True) -> None:
        super().__init__(client.bucket, look)
        self._client = client
        self._keeps_checksums = keeps_checksums

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

    async def send(self, name: str, session: str, number: int, body: Sequence[memoryview], size: int, crc: int) -> Part:
        doing, told = f"uploading part {number} of blob {name!r}", encode_crc(crc)
        answer = await self._client.call(
            "upload_part", doing, effect=True, accept=(_ENDED,), body=body, Key=name, ContentLength=size, ChecksumCRC32C=told,
            **self.query_of(name, session, number),
        )  # fmt: skip
        if isinstance(answer, Refusal):
            raise gone(name, doing)
        part = self._part(number, size, answer, doing, told)
        return part if await answer_proves(f"part {number} of blob {name!r}", answer, body, crc) else UnprovenPart.of(part)

    _arrived = send

    async def copy(self, name: str, session: str, number: int, source: str, etag: str, extent: tuple[int, int] | None) -> Part:
        """Makes a part of bytes of the blob `source`, which must have this tag. `extent`: from where to where.

        That the part has these bytes is proven by the same tag. Of a blob that was made of parts, no part has that.
        """
        doing = f"copying blob {source!r} to part {number} of blob {name!r}"
        ranged: dict[str, Any] = {} if extent is None else {"CopySourceRange": f"bytes={extent[0]}-{extent[1] - 1}"}
        answer = await self._client.call(
            "upload_part_copy", doing, effect=True, accept=(_ENDED, "PreconditionFailed", "NoSuchKey"), answers=COMPLETION_ANSWERS,
            Key=name, CopySource={"Bucket": self._client.bucket, "Key": source}, CopySourceIfMatch=f'"{etag}"',
            **self.query_of(name, session, number), **ranged,
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
        return {"PartNumber": number, "UploadId": self._of(name, session, number)}

    async def listed(self, name: str, session: str) -> Sequence[Part]:
        doing = f"listing the parts of blob {name!r}"
        found = await listings.parts(self._client, doing, name, self._of(name, session), (_ENDED,))
        if isinstance(found, Refusal):
            raise gone(name, doing)
        return [self._part(each["PartNumber"], each["Size"], each, doing, each.get("ChecksumCRC32C")) for each in found]

    async def _completed(self, name: str, upload_id: str, parts: Sequence[Part], doing: str, copied: str | None) -> TieredError | None:
        """Create-only. Of no bytes no crc32c is told: MinIO takes that for a wrong one."""
        crc = joined_crc(parts)
        is_kept = self._keeps_checksums and copied is None and crc is not None
        is_told = is_kept and any(part.size for part in parts)
        whole: dict[str, Any] = {"ChecksumCRC32C": crc, "ChecksumType": "FULL_OBJECT"} if is_told else {}
        answer = await self._client.call(
            "complete_multipart_upload", doing, effect=True, accept=(*_DOUBTFUL, *_WRONG_PARTS), answers=COMPLETION_ANSWERS, Key=name,
            UploadId=upload_id, IfNoneMatch="*", MultipartUpload={"Parts": [_named(part, is_kept=is_kept) for part in parts]}, **whole,
        )  # fmt: skip
        return _refused(answer, name, doing) if isinstance(answer, Refusal) else None

    async def _compare(self, name: str, parts: Sequence[Part], found: Stored, doing: str, copied: str | None) -> None:
        compare_stored(name, parts, found.size, None)
        is_believed = self._keeps_checksums and copied is None
        try:
            await prove_whole(self._client, name, found, parts, copied or joined_crc(parts), is_believed=is_believed)
        except UnavailableError as error:
            if error.code == DAMAGED:
                raise SessionEndedError(f"{error}, and delete it").telling(heard=True) from error
            raise UnconfirmedError(f"{doing} succeeded, and nobody told whether its bytes arrived: {error}") from error

    async def _unended(self, doing: str, prefix: str, after: str, limit: int) -> tuple[Sequence[tuple[str, str, int]], str | None]:
        return await listings.uploads(self._client, doing, after, prefix, limit)

    async def cancel(self, session: str) -> None:
        """Ends the upload. It is no error if it has ended. `CorruptRecordError`: it is none of this bucket."""
        name, upload_id = self._taken_apart(session)
        doing = f"cancelling an upload in parts of bucket {self._client.bucket!r}"
        await self._client.call("abort_multipart_upload", doing, effect=True, accept=(_ENDED,), Key=unquote(name), UploadId=upload_id)

    def _part(self, number: int, size: int, told: Any, doing: str, crc: str | None) -> Part:
        etag = str(told.get("ETag", "")).strip('"')
        if not etag:
            raise odd(doing, effect=True, what="without an ETag")
        return Part(number, size, None if crc is None else f"{CRC}{crc}", etag)


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
