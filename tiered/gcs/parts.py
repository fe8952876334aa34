"""Uploads in parts: GCS's XML API for multipart uploads, as `PartUploads` describes it.

    begin       1 call; the metadata are its headers
    put         1; the service compares the crc32c, keeps nothing if it differs, and tells that of what arrived
    listed      1 for each page of up to 1,000; the service lists no checksums
    complete    2: the completion, and a look at the blob; if others tell of the parts, 1 more for each 1,000 before it
    cancel      1
    open        1 for each page: the uploads that have not ended

The service knows no preconditions here: a completion replaces a blob of the same name. A blob's name is unique to its
change, so that can only be the same blob. A completion may take minutes, and be refused in an answer of 200.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from changelog.base.errors import TieredError, UnavailableError, UnconfirmedError
from tiered.gcs.answers import GcsResponse, a_completion, a_list_of_parts, a_list_of_uploads, a_part, an_xml, child, nothing, tag_of
from tiered.gcs.format import decode_time, encode_headers
from tiered.gcs.http import BETWEEN, GcsHttp, GcsRequest, quoted
from tiered.metadata import Metadata
from tiered.payload.chunks import Chunk
from tiered.payload.crc32c import encode_crc
from tiered.services.backends import SessionEndedError
from tiered.services.capabilities import PARTS_SESSION, Part
from tiered.services.paging import ListingError, PageCheck, page_of_uploads
from tiered.stored import CHUNK_BYTES
from tiered.transfer.arrival import UnprovenPart, says_arrived
from tiered.transfer.part_lists import CRC, compare_stored, gone
from tiered.transfer.parts import COMPLETION_ANSWERS, BucketParts

_DAMAGED = ("BadDigest", "CrcMismatch", "InvalidDigest")


def is_of_parts(session: str) -> bool:
    return session.startswith(PARTS_SESSION)


class GcsParts(BucketParts[Mapping[str, Any]]):
    """The requests. What the service tells of a blob is its JSON."""

    def __init__(self, http: GcsHttp, look: Callable[[str], Awaitable[Mapping[str, Any] | None]]) -> None:
        super().__init__(http.bucket, look, quoted(http.bucket))
        self._http = http

    def _encoded(self, name: str) -> str:
        return self._http.xml_path(name).partition("/")[2]

    async def begin(self, name: str, metadata: Metadata, *, packs: bool = True) -> str:
        """`packs` False: what headers do not carry is left out, and whoever completes the blob sets it then."""
        doing = f"beginning the upload in parts of blob {name!r}"
        path = self._http.xml_path(name)
        url = self._http.xml_url(path, uploads="")
        shape = an_xml("InitiateMultipartUploadResult", Bucket=self._http.bucket, Key=name, UploadId="")
        headers = encode_headers(name, metadata, packs=packs)
        answer = await self._http.call(GcsRequest("POST", url, doing, shape, headers=headers, xml=True))
        return self._session(name, child(answer.told, "UploadId"))

    async def _arrived(self, name: str, session: str, number: int, body: Sequence[memoryview], size: int, crc: int) -> Part:
        part, told = await self._sent(name, session, number, body, size, crc)
        is_proven = await says_arrived(f"part {number} of blob {name!r}", told, part.etag.strip('"'), body, crc)
        return part if is_proven else UnprovenPart.of(part)

    async def send(self, name: str, session: str, number: int, body: Sequence[memoryview], size: int, crc: int) -> Part:
        """`put` of bytes whose size and crc32c are known. That they arrived is said by the crc32c of the whole blob."""
        return (await self._sent(name, session, number, body, size, crc))[0]

    async def _sent(self, name: str, session: str, number: int, body: Sequence[memoryview], size: int, crc: int) -> tuple[Part, str | None]:
        """The part, and the crc32c that the service tells of it. None: it tells none. One that differs is an error."""
        doing = f"uploading part {number} of blob {name!r}"
        url = self._http.xml_url(self._http.xml_path(name), **self.query_of(name, session, number))
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream", "x-goog-hash": f"{CRC}{encode_crc(crc)}"}
        answer = await self._http.call(GcsRequest(
            "PUT", url, doing, a_part(encode_crc(crc)), accept=(200, 400, 404), headers=headers, body=_pieces(body), effect=True, xml=True
        ))
        if answer.status == 400 and answer.reason in _DAMAGED:
            raise UnavailableError(f"{doing} failed: it was damaged on its way; try again ({answer.message})").coded("400", heard=True)
        if answer.status == 400:
            raise self._http.refusal(answer, doing, effect=True)
        if answer.status == 404:
            raise self._gone(answer, name, doing)
        etag, told = answer.told
        return Part(number, size, f"{CRC}{encode_crc(crc)}", etag), told

    def query_of(self, name: str, session: str, number: int) -> dict[str, str]:
        """What the address of a part says besides its path."""
        return {"partNumber": str(number), "uploadId": self._of(name, session, number)}

    async def listed(self, name: str, session: str) -> Sequence[Part]:
        path, upload_id = self._http.xml_path(name), self._of(name, session)
        doing = f"listing the parts of blob {name!r}"
        found: list[Part] = []
        after: dict[str, str] = {}
        shape, check = a_list_of_parts(self._http.bucket, name, upload_id), PageCheck(doing, after=0)
        while True:
            url = self._http.xml_url(path, uploadId=upload_id, **after)
            answer = await self._http.call(GcsRequest("GET", url, doing, shape, accept=(200, 404), xml=True))
            if answer.status == 404:
                raise self._gone(answer, name, doing, effect=False)
            told = [_listed(part) for part in answer.told if tag_of(part) == "Part"]
            is_last, marker = child(answer.told, "IsTruncated") != "true", child(answer.told, "NextPartNumberMarker")
            check.take([part.number for part in told], None if is_last else marker)
            found += told
            if is_last:
                return found
            if not marker:
                raise ListingError(f"{doing} was answered as if there were more, and not where; {BETWEEN}").telling(heard=True)
            after = {"part-number-marker": marker}

    async def _completed(self, name: str, upload_id: str, parts: Sequence[Part], doing: str, copied: str | None) -> TieredError | None:
        named = "".join(f"<Part><PartNumber>{part.number}</PartNumber><ETag>{escape(part.etag)}</ETag></Part>" for part in parts)
        body = f"<CompleteMultipartUpload>{named}</CompleteMultipartUpload>".encode()
        answer = await self._http.call(GcsRequest(
            "POST", self._http.xml_url(self._http.xml_path(name), uploadId=upload_id), doing, a_completion(self._http.bucket, name),
            accept=(200, 404), headers={"Content-Type": "application/xml"}, body=body, effect=True, answers=COMPLETION_ANSWERS, xml=True,
        ))  # fmt: skip
        if answer.status == 404:
            return self._gone(answer, name, doing)
        if isinstance(answer.told, tuple):
            code, message = answer.told  # the service began to answer before it knew
            return UnconfirmedError(f"{doing} was never confirmed: {code} ({message})").coded(code)
        return None

    async def _compare(self, name: str, parts: Sequence[Part], found: Mapping[str, Any], doing: str, copied: str | None) -> None:
        compare_stored(name, parts, int(found["size"]), str(found["crc32c"]))

    async def _unended(self, doing: str, prefix: str, after: str, limit: int) -> tuple[Sequence[tuple[str, str, int]], str | None]:
        url, shape = self._http.xml_path("").rstrip("/"), a_list_of_uploads(self._http.bucket)

        async def ask(name: str, upload_id: str) -> tuple[Sequence[tuple[str, str, int]], bool]:
            query = {"uploads": "", "prefix": prefix, "max-uploads": str(limit), "key-marker": name, "upload-id-marker": upload_id}
            asked = self._http.xml_url(url, **{key: value for key, value in query.items() if value or not key.endswith("marker")})
            page = (await self._http.call(GcsRequest("GET", asked, doing, shape, xml=True))).told
            told = [
                (child(each, "Key"), child(each, "UploadId"), decode_time(child(each, "Initiated")))
                for each in page if tag_of(each) == "Upload"
            ]
            return told, child(page, "IsTruncated") == "true"

        return await page_of_uploads(ask, doing, after, prefix)

    async def cancel(self, session: str) -> None:
        """Ends the upload. It is no error if it has ended. `CorruptRecordError`: it is none of this bucket."""
        name, upload_id = self._taken_apart(session)
        doing = f"cancelling an upload in parts of bucket {self._http.bucket!r}"
        url = self._http.xml_url(f"{quoted(self._http.bucket)}/{name}", uploadId=upload_id)
        answer = await self._http.call(GcsRequest("DELETE", url, doing, nothing, accept=(204, 404), effect=True, xml=True))
        if answer.status == 404 and answer.reason != "NoSuchUpload":
            raise self._http.refusal(answer, doing, effect=True)

    def _gone(self, answer: GcsResponse, name: str, doing: str, *, effect: bool = True) -> SessionEndedError:
        """The error of a 404. Raises another if it says something else."""
        if answer.reason != "NoSuchUpload":
            raise self._http.refusal(answer, doing, effect=effect)
        return gone(name, doing)


async def _pieces(body: Sequence[memoryview]) -> AsyncIterator[Chunk]:
    """A body of views, in pieces of at most 256 KiB."""
    for chunk in body:
        for start in range(0, len(chunk), CHUNK_BYTES):
            yield chunk[start : start + CHUNK_BYTES]


def _listed(part: ElementTree.Element) -> Part:
    return Part(int(child(part, "PartNumber")), int(child(part, "Size")), None, child(part, "ETag"))
