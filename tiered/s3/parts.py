"""Uploads in parts: S3's multipart uploads, as `PartUploads` describes them, and as uploads in lanes use them.

    begin       1 call; the metadata are fixed then
    put         1; the service compares the crc32c, and keeps nothing if it differs
    listed      1 for each page of up to 1,000
    check       as `listed`
    complete    2: the completion, create-only (`If-None-Match: *`), and a look at the blob
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

A page of uploads ends between two names wherever it can, and the next one is asked for by a name alone. What a marker
with an id means, services do not agree on: AWS lists what was begun later, and says that it lists higher ids; versitygw
refuses the marker that it told. So only a page that one name fills goes on by an id.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote

from changelog.base.errors import CorruptRecordError, InvalidRequestError, TieredError, UnavailableError, UnconfirmedError
from tiered.metadata import Metadata
from tiered.payload.chunks import Chunk
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.protocol.backends import SessionEndedError
from tiered.protocol.capabilities import PART_NUMBER_MAX, PARTS_SESSION, OpenSession, Part, SessionPage, check_parts
from tiered.protocol.part_lists import CRC, compare_sizes, compare_stored, gone, joined_crc
from tiered.s3.client import S3Client
from tiered.s3.errors import Refusal, error_of, odd
from tiered.s3.format import Stored, encode_metadata, ns_of

COMPLETION_ANSWERS = 30
"""A completion may take as long as so many answers: the service puts large blobs together for minutes."""

_PLACE = r"parts:([^/?#\s]+)/([^?#\s]+)"
_SESSION, _AFTER = re.compile(rf"{_PLACE}\?uploadId=([^?#&\s]+)"), re.compile(_PLACE)
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
        """`is_copy`: its parts will be copied, and `crc32c` is that of the source: some services tell a wrong one."""
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
        return await self.send(name, session, number, body, sum(map(len, body)), crc)

    async def send(self, name: str, session: str, number: int, body: Sequence[memoryview], size: int, crc: int) -> Part:
        upload_id = self._of(name, session)
        if not 1 <= number <= PART_NUMBER_MAX:
            raise InvalidRequestError(f"a part has a number from 1 to {PART_NUMBER_MAX}, not {number}")
        doing, told = f"uploading part {number} of blob {name!r}", encode_crc(crc)
        answer = await self._client.call(
            "upload_part", doing, effect=True, accept=(_ENDED,), body=b"".join(body), Key=name, UploadId=upload_id, PartNumber=number,
            ContentLength=size, ChecksumCRC32C=told,
        )  # fmt: skip
        if isinstance(answer, Refusal):
            raise gone(name, doing)
        return self._part(number, size, answer, doing, told)

    async def copy(self, name: str, session: str, number: int, source: str, etag: str, extent: tuple[int, int] | None) -> Part:
        """Makes a part of bytes of the blob `source`, which must have this tag. `extent`: from where to where."""
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
        return self._part(number, 0 if extent is None else extent[1] - extent[0], told, doing, None)

    def query_of(self, name: str, session: str, number: int) -> dict[str, Any]:
        """What the address of a part says besides its name."""
        return {"PartNumber": number, "UploadId": self._of(name, session)}

    async def listed(self, name: str, session: str) -> Sequence[Part]:
        upload_id = self._of(name, session)
        doing = f"listing the parts of blob {name!r}"
        found: list[Part] = []
        after: dict[str, Any] = {}
        while True:
            page = await self._client.call("list_parts", doing, accept=(_ENDED,), Key=name, UploadId=upload_id, **after)
            if isinstance(page, Refusal):
                raise gone(name, doing)
            for part in page.get("Parts", ()):
                found.append(self._part(part["PartNumber"], part["Size"], part, doing, part.get("ChecksumCRC32C")))
            marker = page.get("NextPartNumberMarker")
            if not page.get("IsTruncated") or not marker:
                return found
            after = {"PartNumberMarker": marker}

    async def check(self, name: str, session: str, parts: Sequence[Part]) -> None:
        """Raises `InvalidRequestError` if the service has other parts than these. If it has none any more, it does not.

        The service looks at the ETags alone.
        """
        joined_crc(parts)
        with suppress(SessionEndedError):
            compare_sizes(name, parts, await self.listed(name, session))

    async def complete(self, name: str, session: str, parts: Sequence[Part]) -> Stored:
        """Returns what the service tells of the blob. It has the size of the parts, and their crc32c, where known."""
        upload_id = self._of(name, session)
        check_parts(name, parts)
        doing = f"completing the upload of blob {name!r}"
        crc = joined_crc(parts)
        whole: dict[str, Any] = {} if crc is None or not self._keeps_checksums else {"ChecksumCRC32C": crc, "ChecksumType": "FULL_OBJECT"}
        unclear: TieredError | None = None
        try:
            answer = await self._client.call(
                "complete_multipart_upload", doing, effect=True, accept=(*_DOUBTFUL, *_WRONG_PARTS), answers=COMPLETION_ANSWERS, Key=name,
                UploadId=upload_id, IfNoneMatch="*",
                MultipartUpload={"Parts": [_named(part, is_kept=bool(whole)) for part in parts]}, **whole,
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
            compare_stored(name, parts, found.size, found.crc32c)
            return found
        raise unclear or SessionEndedError(f"{doing} succeeded, and somebody deleted the blob at once").telling(heard=True)

    async def open(self, prefix: str, before_ns: int, after: str, limit: int) -> SessionPage:
        """`prefix`: of the names. `after`: what the page before told."""
        doing = f"listing the uploads in parts of bucket {self._client.bucket!r}"
        named: dict[str, Any] = {"Prefix": prefix, "MaxUploads": limit}
        if after:
            named |= self._marker(after)
        page = await self._client.call("list_multipart_uploads", doing, **named)
        assert not isinstance(page, Refusal), "no code is accepted"
        told, next_after = page.get("Uploads", ()), None
        if page.get("IsTruncated") and told:
            last = told[-1]["Key"]
            whole = [each for each in told if each["Key"] != last]
            told = whole or told
            next_after = self._place(whole[-1]["Key"]) if whole else self._session(last, told[-1]["UploadId"])
        sessions = [
            OpenSession(each["Key"], self._session(each["Key"], each["UploadId"])) for each in told if ns_of(each["Initiated"]) < before_ns
        ]
        return SessionPage(sessions, next_after)

    def _marker(self, after: str) -> Mapping[str, str]:
        found = _AFTER.fullmatch(after)
        if found is not None and found[1] == self._client.bucket:
            return {"KeyMarker": unquote(found[2])}
        name, upload_id = self._taken_apart(after)
        return {"KeyMarker": name, "UploadIdMarker": upload_id}

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

    def _place(self, name: str) -> str:
        return f"{PARTS_SESSION}{self._client.bucket}/{quote(name, safe='')}"

    def _session(self, name: str, upload_id: str) -> str:
        return f"{self._place(name)}?uploadId={quote(upload_id, safe='')}"

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
