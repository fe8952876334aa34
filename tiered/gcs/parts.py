"""Uploads in parts: GCS's XML API for multipart uploads, as `PartUploads` describes it.

    begin       1 call; the metadata are its headers
    put         1; the service compares the crc32c, keeps nothing if it differs, and tells that of what arrived
    listed      1 for each page of up to 1,000; the service lists no checksums
    complete    2: the completion, and a look at the blob; if others tell of the parts, 1 more for each 1,000 before it
    cancel      1
    open        1 for each page: the uploads that have not ended

A session is `parts:BUCKET/NAME?uploadId=ID`: what to cancel, and no secret. It does not say which endpoint it was begun
at. The service knows no preconditions here: a completion replaces a blob of the same name. A blob's name is unique to
its change, so that can only be the same blob.

*Failure*: 404 NoSuchUpload means that the upload was completed or has ended. Which of the two, the blob tells. So
completing may be repeated, also after a crash. A completion may take minutes, and be refused in an answer of 200.
Without an answer, or after one that proves nothing, the blob is looked for. If it is there, the upload is complete.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from changelog.base.errors import CorruptRecordError, InvalidRequestError, TieredError, UnavailableError, UnconfirmedError
from tiered.gcs.answers import GcsResponse, a_completion, a_list_of_parts, a_list_of_uploads, a_part, an_xml, child, nothing, tag_of
from tiered.gcs.format import decode_time, encode_headers
from tiered.gcs.http import BETWEEN, GcsHttp, GcsRequest
from tiered.metadata import Metadata
from tiered.payload.chunks import Chunk
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.protocol.arrival import UnprovenPart, proven, says_arrived
from tiered.protocol.backends import SessionEndedError
from tiered.protocol.capabilities import PART_NUMBER_MAX, PARTS_SESSION, OpenSession, Part, SessionPage, check_parts
from tiered.protocol.paging import ListingError, PageCheck, page_of_uploads
from tiered.protocol.part_lists import CRC, compare_sizes, compare_stored, gone, joined_crc
from tiered.stored import CHUNK_BYTES

COMPLETION_ANSWERS = 30
"""A completion may take as long as so many answers: the service puts large blobs together for minutes."""

_SESSION = re.compile(r"parts:([^/?#\s]+/[^?#\s]+)\?uploadId=([^?#&\s]+)")
_DAMAGED = ("BadDigest", "CrcMismatch", "InvalidDigest")


def is_of_parts(session: str) -> bool:
    return session.startswith(PARTS_SESSION)


class GcsParts:
    """Uploads in parts to one bucket. `look`: the service's JSON of a blob; None: there is none."""

    def __init__(self, http: GcsHttp, look: Callable[[str], Awaitable[Mapping[str, Any] | None]]) -> None:
        self._http = http
        self._look = look

    async def look(self, name: str) -> Mapping[str, Any] | None:
        """The service's JSON of a blob. None: there is none."""
        return await self._look(name)

    async def begin(self, name: str, metadata: Metadata, *, packs: bool = True) -> str:
        """`packs` False: what headers do not carry is left out, and whoever completes the blob sets it then."""
        doing = f"beginning the upload in parts of blob {name!r}"
        path = self._http.xml_path(name)
        url = self._http.xml_url(path, uploads="")
        shape = an_xml("InitiateMultipartUploadResult", Bucket=self._http.bucket, Key=name, UploadId="")
        headers = encode_headers(name, metadata, packs=packs)
        answer = await self._http.call(GcsRequest("POST", url, doing, shape, headers=headers, xml=True))
        return self._session(name, child(answer.told, "UploadId"))

    async def put(self, name: str, session: str, number: int, payload: Sequence[Chunk]) -> Part:
        body, crc = [memoryview(chunk).cast("B") for chunk in payload], 0
        for chunk in payload:
            crc = extend_crc(crc, chunk)
        part, told = await self._sent(name, session, number, body, sum(map(len, body)), crc)
        is_proven = await says_arrived(f"part {number} of blob {name!r}", told, part.etag.strip('"'), body, crc)
        return proven(name, part if is_proven else UnprovenPart.of(part))

    async def send(self, name: str, session: str, number: int, body: Sequence[memoryview], size: int, crc: int) -> Part:
        """`put` of bytes whose size and crc32c are known. That they arrived is said by the crc32c of the whole blob."""
        return (await self._sent(name, session, number, body, size, crc))[0]

    async def _sent(
        self, name: str, session: str, number: int, body: Sequence[memoryview], size: int, crc: int
    ) -> tuple[Part, str | None]:
        """The part, and the crc32c that the service tells of it. None: it tells none. One that differs is an error."""
        path, _ = self._of(name, session)
        if not 1 <= number <= PART_NUMBER_MAX:
            raise InvalidRequestError(f"a part has a number from 1 to {PART_NUMBER_MAX}, not {number}")
        doing = f"uploading part {number} of blob {name!r}"
        url = self._http.xml_url(path, **self.query_of(name, session, number))
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream", "x-goog-hash": f"{CRC}{encode_crc(crc)}"}
        answer = await self._http.call(GcsRequest(
            "PUT", url, doing, a_part(encode_crc(crc)), accept=(200, 400, 404), headers=headers, body=_pieces(body), effect=True, xml=True
        ))
        if answer.status == 400 and answer.reason in _DAMAGED:
            raise UnavailableError(f"{doing} failed: it was damaged on its way; try again ({answer.message})").coded("400", heard=True)
        if answer.status != 200:
            raise self._gone(answer, name, doing) or self._http.refusal(answer, doing, effect=True)
        etag, told = answer.told
        return Part(number, size, f"{CRC}{encode_crc(crc)}", etag), told

    def query_of(self, name: str, session: str, number: int) -> Mapping[str, str]:
        """What the address of a part says besides its path."""
        return {"partNumber": str(number), "uploadId": self._of(name, session)[1]}

    async def listed(self, name: str, session: str) -> Sequence[Part]:
        path, upload_id = self._of(name, session)
        doing = f"listing the parts of blob {name!r}"
        found: list[Part] = []
        after: dict[str, str] = {}
        shape, check = a_list_of_parts(self._http.bucket, name, upload_id), PageCheck(doing, after=0)
        while True:
            url = self._http.xml_url(path, uploadId=upload_id, **after)
            answer = await self._http.call(GcsRequest("GET", url, doing, shape, accept=(200, 404), xml=True))
            if answer.status == 404:
                raise self._gone(answer, name, doing) or self._http.refusal(answer, doing, effect=False)
            told = [_listed(part) for part in answer.told if tag_of(part) == "Part"]
            is_last, marker = child(answer.told, "IsTruncated") != "true", child(answer.told, "NextPartNumberMarker")
            check.take([part.number for part in told], None if is_last else marker)
            found += told
            if is_last:
                return found
            if not marker:
                raise ListingError(f"{doing} was answered as if there were more, and not where; {BETWEEN}").telling(heard=True)
            after = {"part-number-marker": marker}

    async def check(self, name: str, session: str, parts: Sequence[Part]) -> None:
        """Raises `InvalidRequestError` if the service has other parts than these. If it has none any more, it does not.

        The service looks at the ETags alone. A blob of parts that are larger than somebody said is not what they said,
        and its upload would have ended.
        """
        try:
            compare_sizes(name, parts, await self.listed(name, session))
        except SessionEndedError:
            return

    async def complete(self, name: str, session: str, parts: Sequence[Part]) -> Mapping[str, Any]:
        """Returns the service's JSON of the blob."""
        path, upload_id = self._of(name, session)
        check_parts(name, parts)
        joined_crc(parts)  # refuses what is none before anything is sent
        doing = f"completing the upload of blob {name!r}"
        named = "".join(f"<Part><PartNumber>{part.number}</PartNumber><ETag>{escape(part.etag)}</ETag></Part>" for part in parts)
        body = f"<CompleteMultipartUpload>{named}</CompleteMultipartUpload>".encode()
        unclear: TieredError | None = None
        try:
            answer = await self._http.call(GcsRequest(
                "POST", self._http.xml_url(path, uploadId=upload_id), doing, a_completion(self._http.bucket, name), accept=(200, 404),
                headers={"Content-Type": "application/xml"}, body=body, effect=True, answers=COMPLETION_ANSWERS, xml=True,
            ))  # fmt: skip
            if answer.status == 404:
                unclear = self._gone(answer, name, doing)
                if unclear is None:
                    raise self._http.refusal(answer, doing, effect=True)
            elif isinstance(answer.told, tuple):
                code, message = answer.told  # the service began to answer before it knew
                unclear = UnconfirmedError(f"{doing} was never confirmed: {code} ({message})").coded(code)
        except UnconfirmedError as error:
            unclear = error
        try:
            found = await self.look(name)
        except UnavailableError as error:
            raise UnconfirmedError(f"{doing} was never confirmed: {unclear or 'it succeeded'}, and nobody told of the blob") from error
        if found is not None:
            compare_stored(name, parts, int(found["size"]), str(found["crc32c"]))
            return found
        raise unclear or SessionEndedError(f"{doing} succeeded, and somebody deleted the blob at once").telling(heard=True)

    async def open(self, prefix: str, before_ns: int, after: str, limit: int) -> SessionPage:
        """`prefix`: of the names. `after`: what the page before told."""
        doing = f"listing the uploads in parts of bucket {self._http.bucket!r}"
        url, shape = self._http.xml_path("").rstrip("/"), a_list_of_uploads(self._http.bucket)

        async def ask(name: str, upload_id: str) -> tuple[Sequence[tuple[str, str, str]], bool]:
            query = {"uploads": "", "prefix": prefix, "max-uploads": str(limit), "key-marker": name, "upload-id-marker": upload_id}
            asked = self._http.xml_url(url, **{key: value for key, value in query.items() if value or not key.endswith("marker")})
            page = (await self._http.call(GcsRequest("GET", asked, doing, shape, xml=True))).told
            told = [
                (child(each, "Key"), child(each, "UploadId"), child(each, "Initiated")) for each in page if tag_of(each) == "Upload"
            ]
            return told, child(page, "IsTruncated") == "true"

        told, last = await page_of_uploads(ask, doing, after, prefix)
        sessions = [OpenSession(key, self._session(key, upload_id)) for key, upload_id, begun in told if decode_time(begun) < before_ns]
        return SessionPage(sessions, last)

    def _session(self, name: str, upload_id: str) -> str:
        return f"{PARTS_SESSION}{self._http.xml_path(name)}?uploadId={quote(upload_id, safe='')}"

    async def cancel(self, session: str) -> None:
        """Ends the upload. It is no error if it has ended. `CorruptRecordError`: it is none of this bucket."""
        path, upload_id = self._taken_apart(session)
        doing = f"cancelling an upload in parts of bucket {self._http.bucket!r}"
        url = self._http.xml_url(path, uploadId=upload_id)
        answer = await self._http.call(GcsRequest("DELETE", url, doing, nothing, accept=(204, 404), effect=True, xml=True))
        if answer.status == 404 and answer.reason != "NoSuchUpload":
            raise self._http.refusal(answer, doing, effect=True)

    def _of(self, name: str, session: str) -> tuple[str, str]:
        path, upload_id = self._taken_apart(session)
        if path != self._http.xml_path(name):
            raise InvalidRequestError(f"the upload session is that of another blob than {name!r}; nothing was sent")
        return path, upload_id

    def _taken_apart(self, session: str) -> tuple[str, str]:
        """The path of the session's blob, as `xml_path` makes it, and the upload's id."""
        found = _SESSION.fullmatch(session)
        if found is None or not found[1].startswith(self._http.xml_path("")):
            raise CorruptRecordError(f"an upload session is none of bucket {self._http.bucket!r}; nothing was sent")
        return found[1], unquote(found[2])

    def _gone(self, answer: GcsResponse, name: str, doing: str) -> SessionEndedError | None:
        """None: the answer says something else."""
        if answer.status != 404 or answer.reason != "NoSuchUpload":
            return None
        return gone(name, doing)


async def _pieces(body: Sequence[memoryview]) -> AsyncIterator[Chunk]:
    """A body of views, in pieces of at most 256 KiB."""
    for chunk in body:
        for start in range(0, len(chunk), CHUNK_BYTES):
            yield chunk[start : start + CHUNK_BYTES]


def _listed(part: ElementTree.Element) -> Part:
    return Part(int(child(part, "PartNumber")), int(child(part, "Size")), None, child(part, "ETag"))
