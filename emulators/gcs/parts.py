"""Uploads of several parts of GCS's XML API, over the same buckets as all else.

    POST   /BUCKET/NAME?uploads                       begins one; its headers describe the object, as those of a PUT
    PUT    /BUCKET/NAME?partNumber=N&uploadId=ID      a part; the last one of a number counts
    GET    /BUCKET/NAME?uploadId=ID                   its parts, in pages; GET /BUCKET?uploads: the uploads of a bucket
    POST   /BUCKET/NAME?uploadId=ID                   puts the parts that its body names together, and replaces
    DELETE /BUCKET/NAME?uploadId=ID                   ends it

Once an upload has ended, however it did, all that names it is answered 404 NoSuchUpload. It never ends by itself, but a
lifecycle rule may end it. The service refuses preconditions here, with 400 NotImplemented. The object has no MD5.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote

from changelog.base.runtime import Runtime
from emulators.gcs.answers import GcsError, WireResponse, elements
from emulators.gcs.conditions import MATCH
from emulators.gcs.lifecycle import ABORT, applies, conditions_of
from emulators.gcs.objects import check_hashes, check_name, check_resource, crc_of, from_ns, md5_of, rfc3339
from emulators.gcs.shown import Step, described, told_hashes, written
from emulators.gcs.store import Bucket, bucket_of
from emulators.gcs.wire import WireRequest, parse_int
from emulators.gcs.xml import local, malformed, texts, xml_root

PART_BYTES_MIN = 5 * 1024 * 1024
PART_NUMBER_MAX = 10_000
PARTS_LISTED_MAX = UPLOADS_LISTED_MAX = 1000
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


@dataclass(frozen=True, slots=True)
class UploadedPart:
    """One part as it was uploaded last. Hashes are base64."""

    payload: bytes
    etag: str
    crc32c: str
    md5: str
    uploaded: datetime


@dataclass(slots=True)
class PartsUpload:
    """An upload that has not ended. `resource`: what its object will be."""

    id: str
    bucket: str
    name: str
    resource: Mapping[str, Any]
    begun: datetime
    parts: dict[int, UploadedPart] = field(default_factory=dict)


class PartsService:
    """`uploads`: those that have not ended, by their id. `part_bytes_min`: how large all parts but the last must be."""

    def __init__(self, buckets: Mapping[str, Bucket], runtime: Runtime) -> None:
        self.uploads: dict[str, PartsUpload] = {}
        self.part_bytes_min = PART_BYTES_MIN
        self._buckets = buckets
        self._runtime = runtime

    def steps(self) -> dict[str, Step]:
        return {
            "xml.parts.start": self._start, "xml.parts.put": self._put, "xml.parts.list": self._list,
            "xml.parts.complete": self._complete, "xml.parts.cancel": self._cancel, "xml.uploads": self._list_uploads,
        }  # fmt: skip

    def apply_lifecycle(self) -> Iterator[str]:
        """Ends the uploads that a rule of their bucket ends. Yields the names of their objects."""
        now = from_ns(self._runtime.wall_ns())
        for upload in list(self.uploads.values()):
            bucket = self._buckets.get(upload.bucket)
            conditions = [{}] if bucket is None else conditions_of(bucket.settings, ABORT)
            if any(applies(condition, upload.name, upload.begun, now) for condition in conditions):
                del self.uploads[upload.id]
                yield upload.name

    def _start(self, call: WireRequest, body: bytes) -> WireResponse:
        bucket = bucket_of(self._buckets, call.bucket)
        check_name(call.name)
        _refuse_preconditions(call)
        resource = described(call)
        check_resource(resource, "STANDARD")
        upload_id = f"{self._runtime.random.getrandbits(128):032x}"
        begun = from_ns(self._runtime.wall_ns())
        self.uploads[upload_id] = PartsUpload(upload_id, bucket.name, call.name, resource, begun)
        return _answer("InitiateMultipartUploadResult", {"Bucket": call.bucket, "Key": call.name, "UploadId": upload_id})

    def _put(self, call: WireRequest, body: bytes) -> WireResponse:
        """Keeps a part, if it is what its hashes say."""
        upload, number = self._upload(call), parse_int(call.query, "partNumber") or 0
        if not 1 <= number <= PART_NUMBER_MAX:
            raise GcsError(400, f"Part number must be an integer between 1 and {PART_NUMBER_MAX}, inclusive.")
        crc32c, md5 = crc_of(body), md5_of(body)
        check_hashes(told_hashes(call), crc32c, md5)
        etag = f'"{b64decode(md5).hex()}"'  # as S3's clients expect, which compare it with what they sent
        upload.parts[number] = UploadedPart(body, etag, crc32c, md5, from_ns(self._runtime.wall_ns()))
        return WireResponse(200, headers={"ETag": etag, "X-Goog-Hash": f"crc32c={crc32c},md5={md5}"})

    def _list(self, call: WireRequest, body: bytes) -> WireResponse:
        upload = self._upload(call)
        limit = min(_positive(call, "max-parts", PARTS_LISTED_MAX), PARTS_LISTED_MAX)
        numbers = [number for number in sorted(upload.parts) if number > (parse_int(call.query, "part-number-marker") or 0)]
        listed = [(number, upload.parts[number]) for number in numbers[:limit]]
        parts = [
            ("Part", {"PartNumber": number, "LastModified": rfc3339(part.uploaded), "ETag": part.etag, "Size": len(part.payload)})
            for number, part in listed
        ]
        more = {"NextPartNumberMarker": numbers[limit - 1]} if len(numbers) > limit else {}
        told = {"Bucket": upload.bucket, **_named(upload, call), "MaxParts": limit}
        return _answer("ListPartsResult", {**told, **more, "IsTruncated": str(bool(more)).lower()}, parts)

    def _list_uploads(self, call: WireRequest, body: bytes) -> WireResponse:
        bucket_of(self._buckets, call.bucket)
        limit, after = min(_positive(call, "max-uploads", UPLOADS_LISTED_MAX), UPLOADS_LISTED_MAX), _markers(call)
        found = sorted(
            ((upload.name.encode(), upload.id), upload) for upload in self.uploads.values()
            if upload.bucket == call.bucket and upload.name.startswith(call.query.get("prefix", ""))
        )  # fmt: skip
        found = [each for each in found if after is None or each[0] > after]
        uploads = [
            ("Upload", {**_named(upload, call), "Initiated": rfc3339(upload.begun)})
            for _, upload in found[:limit]
        ]
        last = found[limit - 1][1] if len(found) > limit else None
        more = {} if last is None else {"NextKeyMarker": _named(last, call)["Key"], "NextUploadIdMarker": last.id}
        told = {"Bucket": call.bucket, "MaxUploads": limit, **more, "IsTruncated": str(last is not None).lower()}
        return _answer("ListMultipartUploadsResult", told, uploads)

    def _complete(self, call: WireRequest, body: bytes) -> WireResponse:
        """Makes the object, in one step. Parts that it does not name are gone then. If refused, it changes nothing."""
        upload = self._upload(call)
        _refuse_preconditions(call)
        named = _named_parts(body)
        numbers = [number for number, _ in named]
        if numbers != sorted(set(numbers)):
            raise GcsError(400, "The list of parts was not in ascending order.", code="InvalidPartOrder")
        if any(number not in upload.parts or upload.parts[number].etag.strip('"') != etag for number, etag in named):
            raise GcsError(400, "One or more of the specified parts could not be found, or has another ETag.", code="InvalidPart")
        payloads = [upload.parts[number].payload for number in numbers]
        if any(len(payload) < self.part_bytes_min for payload in payloads[:-1]):
            raise GcsError(400, "A part that is not the last one is smaller than the minimum.", code="EntityTooSmall")
        bucket = bucket_of(self._buckets, call.bucket)
        stored = bucket.insert(upload.name, b"".join(payloads), upload.resource, {}, (), self._runtime.wall_ns(), whole=False)
        del self.uploads[upload.id]
        location = f"http://{call.headers.get('Host', '127.0.0.1')}/{call.bucket}/{call.name}"
        told = {"Location": location, "Bucket": call.bucket, "Key": call.name, "ETag": stored.xml_etag}
        return _answer("CompleteMultipartUploadResult", told, headers={**written(stored).headers})

    def _cancel(self, call: WireRequest, body: bytes) -> WireResponse:
        del self.uploads[self._upload(call).id]
        return WireResponse(204)

    def _upload(self, call: WireRequest) -> PartsUpload:
        bucket_of(self._buckets, call.bucket)
        upload = self.uploads.get(call.query["uploadId"])
        if upload is None or (upload.bucket, upload.name) != (call.bucket, call.name):
            raise GcsError(404, "The requested upload was not found.", code="NoSuchUpload")
        return upload


def _named(upload: PartsUpload, call: WireRequest) -> Mapping[str, object]:
    key = quote(upload.name, safe="/") if call.query.get("encoding-type") == "url" else upload.name
    return {"Key": key, "UploadId": upload.id, "StorageClass": upload.resource.get("storageClass", "STANDARD")}


def _refuse_preconditions(call: WireRequest) -> None:
    if any(header.lower().startswith(MATCH) for header in call.headers):
        raise GcsError(400, "The service takes no preconditions for an upload of several parts.", "notImplemented", code="NotImplemented")


def _positive(call: WireRequest, key: str, default: int) -> int:
    asked = parse_int(call.query, key)
    if asked is not None and asked < 1:
        raise GcsError(400, f"Invalid {key} {asked}")
    return default if asked is None else asked


def _markers(call: WireRequest) -> tuple[bytes, str] | None:
    """The name and the id after which a listing of uploads goes on. Without an id: after all of that name."""
    key = call.query.get("key-marker")
    return (key.encode(), call.query.get("upload-id-marker", "\U0010ffff")) if key else None


def _named_parts(body: bytes) -> list[tuple[int, str]]:
    """The numbers and ETags, without quotes, of a CompleteMultipartUpload, in the XML's order."""
    found = []
    for part in xml_root(body, "CompleteMultipartUpload"):
        told = texts(part)
        if local(part) != "Part" or not told.get("PartNumber", "").isdecimal() or "ETag" not in told:
            raise malformed()
        found.append((int(told["PartNumber"]), told["ETag"].strip('"')))
    return found


def _answer(
    root: str, told: Mapping[str, object], items: Sequence[tuple[str, Mapping[str, object]]] = (), headers: Mapping[str, str] | None = None
) -> WireResponse:
    inner = "".join(f"<{tag}>{elements(item)}</{tag}>" for tag, item in items)
    answer = WireResponse.of_xml(f'<{root} xmlns="{NAMESPACE}">{elements(told)}{inner}</{root}>')
    return answer.with_headers(headers or {})
