"""`MemoryS3`: the requests of S3 that the adapter sends, on a bucket in memory, in any event loop.

    S3Blobs -> S3Client --put_object(…)--> MemoryLibrary --(travels)--> MemoryS3
                          as aiobotocore's client of S3

The real `S3Client` is above it, with its time limits, its places and its translation of errors. A request takes effect
at once when it has travelled. What is put is visible at once, whole, and to every listing. A name is replaced unless
the request says `If-None-Match: *`. Times of objects are whole seconds of the server's clock. An upload in parts ends
when it is completed or cancelled, and is `NoSuchUpload` ever after; the bucket's rule ends it after `parts_days_max`
days. The answer to a range tells no checksum, that to HEAD has no body. No versions are kept.

*Failure*: a real `botocore.exceptions.ClientError`. A request that the adapter never sends raises
`NotImplementedError`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from enum import Enum
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

from changelog.base.runtime import Runtime
from changelog.base.tasks import tasks_beside
from emulators.world.runtime import SimulatedService
from tiered.metadata import NS_PER_S
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.s3.blobs import S3Blobs
from tiered.s3.client import ANSWER_TIMEOUT_S, CONNECTIONS_MAX, S3Client
from tiered.s3.copies import GIB
from tiered.s3.format import AMENDED, METADATA_BYTES_MAX, NAME_BYTES_MAX
from tiered.services.capabilities import PARTS_DAYS_MAX
from tiered.transfer.upload_lanes import UploadLanes
from tiered.transfer.uploads import LANES, UPLOAD_BUDGET_S

PAGE_MAX = 1000
PART_BYTES_MIN = 5 * 1024 * 1024
COPIED_BYTES_MAX = 5 * GIB
CONTENT_KEYS = ("ContentType", "ContentEncoding", "ContentDisposition", "ContentLanguage", "CacheControl")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")

Answer = dict[str, Any]
Cause = tuple[str, bool]
"""What a request is called, and whether it is the network's second copy of it."""
Changed = Callable[[Cause, str, str], None]
"""Told of an effect as it happens: its cause, the operation, and the name of the object or the id of the upload."""


@dataclass(frozen=True, slots=True)
class S3Object:
    """An object as it is stored. `headers`: its metadata and types, by the library's names. `etag`: without quotes."""

    body: bytes
    headers: Mapping[str, Any]
    etag: str
    created_ns: int
    crc32c: str | None


@dataclass(slots=True)
class S3Upload:
    """An upload in parts that has not ended. `parts`: by its number, each part as an object."""

    name: str
    headers: Mapping[str, Any]
    begun_ns: int
    keeps_checksum: bool
    parts: dict[int, S3Object] = field(default_factory=dict)


class Tags(Enum):
    MD5 = "the MD5 of the bytes, and of parts that of their tags"
    OTHER = "32 hexadecimal digits, because of keys that the bucket's owner chose, as it says"
    ANY = "what nobody knows"


@dataclass(frozen=True, slots=True)
class Habits:
    """What services do differently. `verifies`: the crc32c that comes with bytes. `tells`: a crc32c of its own in its
    answers, and `tells_asked` when an object is looked at. `mixes_up`: it puts parts together in the wrong order.
    `damages_copies`: by a bit. `joins_nothing`: the crc32c that comes with the completion of no bytes is the right one.
    """

    verifies: bool = True
    tells: bool = True
    tells_asked: bool = True
    tags: Tags = Tags.MD5
    mixes_up: bool = False
    damages_copies: bool = False
    joins_nothing: bool = True


class MemoryS3(SimulatedService):
    """The server, with one bucket. `changed`: observers of every effect. `runtime`: the server's own.

    `part_bytes_min`: how many bytes each part of an upload has at least, but the last.
    """

    def __init__(
        self, runtime: Runtime, bucket: str = "memory", *, part_bytes_min: int = PART_BYTES_MIN, habits: Habits = Habits()
    ) -> None:
        super().__init__(runtime)
        self.bucket = bucket
        self.objects: dict[str, S3Object] = {}
        self.uploads: dict[str, S3Upload] = {}
        self.changed: list[Changed] = []
        self.parts_days_max = PARTS_DAYS_MAX
        self._part_bytes_min = part_bytes_min
        self._names: dict[str, str] = {}
        self._habits = habits

    async def call(self, operation: str, named: Mapping[str, Any], cause: Cause = ("", False)) -> Answer:
        """Answers one request, which travels first."""
        if operation == "list_objects_v2":
            self._check_bucket(named, operation)
            return {**await self._list_objects_v2(named), **self._told(200)}
        await self._travel()
        self._check_bucket(named, operation)
        handler: Callable[[Mapping[str, Any], Cause], Answer] | None = getattr(self, f"_{operation}", None)
        if handler is None:
            raise NotImplementedError(f"MemoryS3 has no operation {operation}")
        return {**handler(named, cause), **self._told(200)}

    async def piece(self, body: bytes) -> bytes:
        """A piece of an answer that is still coming."""
        await self._travel()
        return body

    def put(self, name: str, body: bytes, headers: Mapping[str, Any]) -> None:
        """Puts an object there, over whatever is there. It is no request."""
        self.objects[name] = S3Object(body, _headers(headers), _md5(body), self.now_ns(), encode_crc(extend_crc(0, body)))

    def told_of(self, name: str) -> Answer:
        """What HeadObject answers."""
        found = self.objects[name]
        return {**_about(found), "ContentLength": len(found.body), **self._checksum(found)}

    def _checksum(self, found: S3Object) -> Answer:
        return _checksum(found) if self._habits.tells_asked else {}

    def _tag_of(self, body: bytes) -> str:
        match self._habits.tags:
            case Tags.MD5:
                return _md5(body)
            case Tags.OTHER:
                return _md5(b"key" + body)
        return f"tag-{_md5(body)}"

    def _told_crc(self, crc: str) -> Answer:
        return {"ChecksumCRC32C": crc} if self._habits.tells else {}

    def _verify(self, named: Mapping[str, Any], crc: str, operation: str) -> None:
        if self._habits.verifies and named.get("ChecksumCRC32C", crc) != crc:
            raise refused(400, "BadDigest", operation)

    def named(self, upload_id: str) -> str:
        """The name of the object that the upload makes, or made."""
        return self._names[upload_id]

    def now_ns(self) -> int:
        return self._runtime.wall_ns()

    def end_old_uploads(self) -> int:
        """What the bucket's rule does to uploads that are too old. Returns how many it ended."""
        born_ns = self._runtime.wall_ns() - self.parts_days_max * 86_400 * NS_PER_S
        old = [each for each, upload in self.uploads.items() if upload.begun_ns < born_ns]
        for each in old:
            del self.uploads[each]
            self._has_changed(("", False), "rule", each)
        return len(old)

    # --- objects

    def _put_object(self, named: Mapping[str, Any], cause: Cause) -> Answer:
        name, body = named["Key"], _body_of(named)
        _check_headers(named, "PutObject")
        crc = encode_crc(extend_crc(0, body))
        self._verify(named, crc, "PutObject")
        self._create(name, S3Object(body, _headers(named), self._tag_of(body), self.now_ns(), crc), named, cause, "put_object")
        return {"ETag": f'"{self.objects[name].etag}"', **self._told_crc(crc)}

    def _create(self, name: str, made: S3Object, named: Mapping[str, Any], cause: Cause, operation: str) -> None:
        if len(name.encode()) > NAME_BYTES_MAX:
            raise refused(400, "KeyTooLongError", operation)
        if self._replaces_nothing(named) and name in self.objects:
            raise refused(412, "PreconditionFailed", operation)
        self.objects[name] = made
        self._has_changed(cause, operation, name)

    def _replaces_nothing(self, named: Mapping[str, Any]) -> bool:
        return named.get("IfNoneMatch") == "*"

    def _head_object(self, named: Mapping[str, Any], cause: Cause) -> Answer:
        if named["Key"] not in self.objects:
            raise refused(404, "404", "HeadObject")  # it has no body, so no word
        return self.told_of(named["Key"])

    def _get_object(self, named: Mapping[str, Any], cause: Cause) -> Answer:
        found = self._found(named["Key"], named.get("IfMatch"), "GetObject")
        size, ranged = len(found.body), named.get("Range")
        if ranged is None:
            return {**_about(found), "ContentLength": size, **self._checksum(found), "Body": found.body}
        start, stop = _extent(ranged, size)
        told = {"ContentLength": stop - start, "ContentRange": f"bytes {start}-{stop - 1}/{size}"}
        return {**_about(found), **told, "Body": found.body[start:stop]}

    def _delete_object(self, named: Mapping[str, Any], cause: Cause) -> Answer:
        name = named["Key"]
        if "IfMatch" in named:
            self._found(name, named["IfMatch"], "DeleteObject")
        if self.objects.pop(name, None) is not None:
            self._has_changed(cause, "delete_object", name)
        return {}

    def _found(self, name: str, tag: str | None, operation: str) -> S3Object:
        found = self.objects.get(name)
        if found is None:
            raise refused(404, "NoSuchKey", operation)
        if tag is not None and tag.strip('"') != found.etag:
            raise refused(412, "PreconditionFailed", operation)
        return found

    async def _list_objects_v2(self, named: Mapping[str, Any]) -> Answer:
        after, prefix, most = named.get("StartAfter", ""), named.get("Prefix", ""), min(named.get("MaxKeys", PAGE_MAX), PAGE_MAX)

        def within(name: str) -> bool:
            return name > after and name.startswith(prefix)

        contents = await self._read_in_order(self.objects, after, within, self._listed, most)
        last = contents[-1]["Key"] if contents else after
        is_more = len(contents) == most and any(name > last and within(name) for name in self.objects)
        return {"Name": self.bucket, "KeyCount": len(contents), "IsTruncated": is_more} | ({"Contents": contents} if contents else {})

    def _listed(self, name: str) -> Answer:
        found = self.objects[name]
        return {"Key": name, "Size": len(found.body), "ETag": f'"{found.etag}"', "LastModified": _time(found.created_ns)}

    # --- uploads in parts

    def _create_multipart_upload(self, named: Mapping[str, Any], cause: Cause) -> Answer:
        _check_headers(named, "CreateMultipartUpload")
        upload_id = f"upload-{len(self._names):08}"
        self._names[upload_id] = named["Key"]
        keeps = named.get("ChecksumType") == "FULL_OBJECT"
        self.uploads[upload_id] = S3Upload(named["Key"], _headers(named), self.now_ns(), keeps)
        self._has_changed(cause, "create_multipart_upload", upload_id)
        return {"UploadId": upload_id}

    def _upload_part(self, named: Mapping[str, Any], cause: Cause) -> Answer:
        upload, body = self._upload(named, "UploadPart"), _body_of(named)
        crc = encode_crc(extend_crc(0, body))
        self._verify(named, crc, "UploadPart")
        upload.parts[named["PartNumber"]] = part = S3Object(body, {}, self._tag_of(body), self.now_ns(), crc)
        self._has_changed(cause, "upload_part", named["UploadId"])
        return {"ETag": f'"{part.etag}"', **self._told_crc(crc)}

    def _upload_part_copy(self, named: Mapping[str, Any], cause: Cause) -> Answer:
        upload = self._upload(named, "UploadPartCopy")
        source = self._found(named["CopySource"]["Key"], named.get("CopySourceIfMatch"), "UploadPartCopy")
        start, stop = _extent(named.get("CopySourceRange", "bytes=0-"), len(source.body))
        if stop - start > COPIED_BYTES_MAX:
            raise refused(400, "EntityTooLarge", "UploadPartCopy")
        body = source.body[start:stop]
        if self._habits.damages_copies and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        crc = encode_crc(extend_crc(0, body))
        upload.parts[named["PartNumber"]] = part = S3Object(body, {}, self._tag_of(body), self.now_ns(), crc)
        self._has_changed(cause, "upload_part_copy", named["UploadId"])
        return {"CopyPartResult": {"ETag": f'"{part.etag}"', "LastModified": _time(part.created_ns), **self._told_crc(crc)}}

    def _complete_multipart_upload(self, named: Mapping[str, Any], cause: Cause) -> Answer:
        operation = "CompleteMultipartUpload"
        upload, told = self._upload(named, operation), named["MultipartUpload"]["Parts"]
        numbers = [each["PartNumber"] for each in told]
        if numbers != sorted(set(numbers)) or not numbers:
            raise refused(400, "InvalidPartOrder" if numbers else "MalformedXML", operation)
        parts = [self._part(upload, each, operation) for each in told]
        if any(len(part.body) < self._part_bytes_min for part in parts[:-1]):
            raise refused(400, "EntityTooSmall", operation)
        if not self._habits.joins_nothing and not any(part.body for part in parts) and "ChecksumCRC32C" in named:
            raise refused(400, "XAmzContentChecksumMismatch", operation)
        parts = parts[::-1] if self._habits.mixes_up else parts
        body = b"".join(part.body for part in parts)
        crc = encode_crc(extend_crc(0, body)) if upload.keeps_checksum else None
        if crc is not None:
            self._verify(named, crc, operation)
        etag = f"{_md5(b''.join(bytes.fromhex(part.etag.removeprefix('tag-')) for part in parts))}-{len(parts)}"
        made = S3Object(body, upload.headers, etag, self.now_ns(), crc)
        self._create(upload.name, made, named, cause, "complete_multipart_upload")
        del self.uploads[named["UploadId"]]
        return {"ETag": f'"{etag}"', "Key": upload.name, "Bucket": self.bucket}

    def _part(self, upload: S3Upload, told: Mapping[str, Any], operation: str) -> S3Object:
        part = upload.parts.get(told["PartNumber"])
        if part is None or told["ETag"].strip('"') != part.etag or told.get("ChecksumCRC32C", part.crc32c) != part.crc32c:
            raise refused(400, "InvalidPart", operation)
        return part

    def _abort_multipart_upload(self, named: Mapping[str, Any], cause: Cause) -> Answer:
        self._upload(named, "AbortMultipartUpload")
        del self.uploads[named["UploadId"]]
        self._has_changed(cause, "abort_multipart_upload", named["UploadId"])
        return {}

    def _list_object_versions(self, named: Mapping[str, Any], cause: Cause) -> Answer:
        found = [{**self._listed(name), "VersionId": "null", "IsLatest": True} for name in sorted(self.objects)]
        kept = [each for each in found if each["Key"].startswith(named.get("Prefix", ""))]
        return {"Name": self.bucket, "IsTruncated": False, **({"Versions": kept} if kept else {})}

    def _list_parts(self, named: Mapping[str, Any], cause: Cause) -> Answer:
        upload, after = self._upload(named, "ListParts"), named.get("PartNumberMarker", 0)
        following = sorted(number for number in upload.parts if number > after)
        page = following[:PAGE_MAX]
        parts = [{"PartNumber": number, **self._part_told(upload.parts[number])} for number in page]
        more = {"IsTruncated": True, "NextPartNumberMarker": page[-1]} if len(following) > PAGE_MAX else {"IsTruncated": False}
        return {**({"Parts": parts} if parts else {}), **more}

    def _part_told(self, part: S3Object) -> Answer:
        told = {"ChecksumCRC32C": part.crc32c} if self._habits.tells else {}
        return {"Size": len(part.body), "ETag": f'"{part.etag}"', **told}

    def _list_multipart_uploads(self, named: Mapping[str, Any], cause: Cause) -> Answer:
        prefix, key, upload_id = named.get("Prefix", ""), named.get("KeyMarker", ""), named.get("UploadIdMarker")
        most = min(named.get("MaxUploads", PAGE_MAX), PAGE_MAX)
        found = sorted((upload.name, each) for each, upload in self.uploads.items() if upload.name.startswith(prefix))
        following = [each for each in found if (each > (key, upload_id) if upload_id else each[0] > key)]
        page = following[:most]
        told = [{"Key": name, "UploadId": each, "Initiated": _time(self.uploads[each].begun_ns)} for name, each in page]
        answer: Answer = {"IsTruncated": len(following) > len(page), **({"Uploads": told} if told else {})}
        return answer | ({"NextKeyMarker": page[-1][0], "NextUploadIdMarker": page[-1][1]} if answer["IsTruncated"] else {})

    def _upload(self, named: Mapping[str, Any], operation: str) -> S3Upload:
        upload = self.uploads.get(named["UploadId"])
        if upload is None or upload.name != named["Key"]:
            raise refused(404, "NoSuchUpload", operation)
        return upload

    # --- beside

    def _check_bucket(self, named: Mapping[str, Any], operation: str) -> None:
        if named["Bucket"] != self.bucket:
            raise refused(404, "NoSuchBucket", operation)

    def _told(self, status: int) -> Answer:
        date = formatdate(self._runtime.wall_ns() // NS_PER_S, usegmt=True)
        headers, told = {"date": date, "x-amz-request-id": "memory"}, dict[str, Any]()
        if self._habits.tags is Tags.OTHER:
            headers["x-amz-server-side-encryption"] = told["ServerSideEncryption"] = "aws:kms"
        return {**told, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers}}

    def _has_changed(self, cause: Cause, operation: str, what: str) -> None:
        for observe in self.changed:
            observe(cause, operation, what)


class MemoryLibrary:
    """Stands in for aiobotocore's client of S3: a connection to the server on which nothing goes wrong.

    An operation is a method, as there.
    """

    def __init__(self, server: MemoryS3) -> None:
        self.server = server

    def __getattr__(self, operation: str) -> Any:
        return partial(self._answered, operation)

    async def generate_presigned_url(self, operation: str, *, Params: Mapping[str, Any], ExpiresIn: int) -> str:
        """An address, which nobody can follow."""
        return f"memory://{Params['Bucket']}/{Params['Key']}?operation={operation}&expires={ExpiresIn}"

    async def send(self, operation: str, named: Mapping[str, Any]) -> Answer:
        """Carries one request to the server and its answer back."""
        return await self.server.call(operation, named, (call_name(operation, named), False))

    async def receive(self, body: bytes) -> bytes:
        """Carries a piece of a body."""
        return await self.server.piece(body)

    async def _answered(self, operation: str, **named: Any) -> Answer:
        if "Body" in named:  # bytes, so that the network can carry them twice
            named["Body"] = named["Body"].read()
        answer = await self.send(operation, named)
        return {**answer, "Body": _Body(self, answer["Body"])} if "Body" in answer else answer


class _Body:
    """The body of an answer, as aiobotocore hands it out."""

    def __init__(self, library: MemoryLibrary, left: bytes) -> None:
        self._library = library
        self._left = left

    async def read(self, size: int) -> bytes:
        piece, self._left = self._left[:size], self._left[size:]
        return await self._library.receive(piece) if piece else b""

    def close(self) -> None:
        self._left = b""


COLLECTS: ContextVar[bool] = ContextVar("collects", default=False)
"""Whether the requests of this task collect garbage."""


def call_name(operation: str, named: Mapping[str, Any]) -> str:
    """The call of `LongTermBackend` that sends such a request, so that one plan serves it and the simulated blobs."""
    if operation == "delete_object" and COLLECTS.get():
        return "blobs.collect"
    if operation == "put_object" and "IfNoneMatch" not in named:
        return "blobs.amend" if AMENDED in named["Key"] else "blobs.touch"  # the deadline of an upload, too
    return _NAMES.get(operation, f"blobs.{operation}")


_NAMES = {
    "put_object": "upload.finalise",
    "head_object": "blobs.head", "get_object": "blobs.open", "delete_object": "blobs.delete", "list_objects_v2": "blobs.list",
    "create_multipart_upload": "blobs.open_upload", "upload_part": "blobs.put_part", "upload_part_copy": "blobs.put_part",
    "list_parts": "blobs.parts", "complete_multipart_upload": "blobs.complete_parts", "abort_multipart_upload": "blobs.cancel",
    "list_multipart_uploads": "blobs.open_sessions", "list_object_versions": "blobs.deleted_generations",
}  # fmt: skip


@asynccontextmanager
async def memory_blobs(
    server: MemoryS3, runtime: Runtime, *, prefix: str = "", lanes: UploadLanes = LANES, upload_budget_s: float = UPLOAD_BUDGET_S
) -> AsyncIterator[S3Blobs]:
    """Blobs on the server, as `S3Blobs.connect` opens them on a service."""
    client = S3Client(MemoryLibrary(server), server.bucket, "memory", CONNECTIONS_MAX, ANSWER_TIMEOUT_S)
    async with tasks_beside() as tasks:
        yield S3Blobs(client, tasks, runtime, prefix, lanes, upload_budget_s, whole_checksums=True)


# --- requests and answers ----------------------------------------------------------------------------


def refused(status: int, code: str, operation: str) -> ClientError:
    """The library's error of an answer that is no success."""
    told = {"Error": {"Code": code, "Message": f"the service said {code}"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(told, operation)


def _check_headers(named: Mapping[str, Any], operation: str) -> None:
    if sum(len(key) + len(value) for key, value in named.get("Metadata", {}).items()) > METADATA_BYTES_MAX:
        raise refused(400, "MetadataTooLarge", operation)


def _body_of(named: Mapping[str, Any]) -> bytes:
    body: bytes = named["Body"]
    if named.get("ContentLength", len(body)) != len(body):
        raise refused(400, "IncompleteBody", "a request with a body")
    return body


def _headers(named: Mapping[str, Any]) -> Mapping[str, Any]:
    told = {key: named[key] for key in CONTENT_KEYS if key in named}
    metadata = {key.lower(): value for key, value in named.get("Metadata", {}).items()}
    return {"ContentType": "binary/octet-stream", **told, "Metadata": metadata}


def _about(found: S3Object) -> Answer:
    metadata = dict(found.headers["Metadata"])
    return {**found.headers, "Metadata": metadata, "ETag": f'"{found.etag}"', "LastModified": _time(found.created_ns)}


def _checksum(found: S3Object) -> Answer:
    return {} if found.crc32c is None else {"ChecksumCRC32C": found.crc32c, "ChecksumType": "FULL_OBJECT"}


def _extent(ranged: str, size: int) -> tuple[int, int]:
    found = _RANGE.fullmatch(ranged)
    assert found is not None and (found[1] or found[2]), f"the adapter sent the range {ranged!r}"
    if not found[1]:
        start, stop = max(0, size - int(found[2])), size
    else:
        start, stop = int(found[1]), min(size, int(found[2]) + 1) if found[2] else size
    if start >= stop and not (size == 0 and ranged == "bytes=0-"):
        raise refused(416, "InvalidRange", "GetObject")
    return start, stop


def _time(at_ns: int) -> datetime:
    return datetime.fromtimestamp(at_ns // NS_PER_S, UTC)


def _md5(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()
