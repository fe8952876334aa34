"""Buckets of GCS's XML API in the GCS emulator: listings, many deletions in one call, and the buckets themselves.

    GET /BUCKET            its objects: version 1 with marker, version 2 (list-type=2) with continuation-token
    POST /BUCKET?delete    deletes up to a thousand objects; each by itself
    PUT, HEAD, DELETE      the bucket itself; GET /BUCKET?location; GET / lists the buckets
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from urllib.parse import quote

from changelog.base.runtime import Runtime
from emulators.gcs.answers import GcsError, WireResponse, elements
from emulators.gcs.buckets import BucketsService
from emulators.gcs.objects import ObjectGeneration, rfc3339
from emulators.gcs.shown import Step
from emulators.gcs.store import bucket_of
from emulators.gcs.wire import WireRequest
from emulators.gcs.xml import local, malformed, texts, xml_root

NAMESPACE = "http://doc.s3.amazonaws.com/2006-03-01"
OF_QUERY = {"max-keys": "maxResults", "continuation-token": "pageToken", "prefix": "prefix", "delimiter": "delimiter"}
DELETED_MAX = 1000


def xml_bucket_steps(service: BucketsService, runtime: Runtime) -> dict[str, Step]:
    steps = {
        "list": _list, "delete_many": _delete_many, "buckets": _buckets, "bucket.head": _head, "bucket.location": _location,
        "bucket.create": _create, "bucket.delete": _delete,
    }  # fmt: skip
    return {f"xml.{kind}": partial(step, service, runtime) for kind, step in steps.items()}


def _list(service: BucketsService, runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    newer = call.query.get("list-type") == "2"
    query = {OF_QUERY[key]: value for key, value in call.query.items() if key in OF_QUERY}
    after = call.query.get("start-after" if newer else "marker")
    if after:
        # A group that a marker names was told whole.
        delimiter, below = query.get("delimiter", ""), after.removeprefix(query.get("prefix", ""))
        group = not newer and bool(delimiter) and below.endswith(delimiter)
        query["startOffset"] = after[:-1] + chr(ord(after[-1]) + 1) if group else after + "\0"
    page = bucket_of(service.buckets, call.bucket).page(query)
    encoded = call.query.get("encoding-type") == "url"
    objects = [each for each in page.objects if isinstance(each, ObjectGeneration)]
    last = max([*(each.name for each in objects[-1:]), *page.prefixes[-1:]], key=str.encode, default="")
    told: dict[str, object] = {"Name": call.bucket, "Prefix": _name(query.get("prefix", ""), encoded=encoded)}
    for key, tag in {"delimiter": "Delimiter", "encoding-type": "EncodingType", "start-after": "StartAfter", "marker": "Marker",
                     "continuation-token": "ContinuationToken"}.items():  # fmt: skip
        if call.query.get(key):
            told[tag] = _name(call.query[key], encoded=encoded and key in ("delimiter", "start-after", "marker"))
    told |= {"MaxKeys": call.query.get("max-keys", "1000"), "IsTruncated": str(page.next_token is not None).lower()}
    if newer:
        told["KeyCount"] = len(objects) + len(page.prefixes)
    if page.next_token is not None:
        told |= {"NextContinuationToken": page.next_token} if newer else {"NextMarker": _name(last, encoded=encoded)}
    contents = "".join(f"<Contents>{elements(_listed(each, encoded=encoded))}</Contents>" for each in objects)
    groups = "".join(
        f"<CommonPrefixes>{elements({'Prefix': _name(prefix, encoded=encoded)})}</CommonPrefixes>" for prefix in page.prefixes
    )
    return _document("ListBucketResult", elements(told) + contents + groups)


def _name(name: str, *, encoded: bool) -> str:
    return quote(name, safe="/") if encoded else name


def _listed(stored: ObjectGeneration, *, encoded: bool) -> Mapping[str, object]:
    return {
        "Key": _name(stored.name, encoded=encoded), "Generation": stored.generation, "MetaGeneration": stored.metageneration,
        "LastModified": rfc3339(stored.updated), "ETag": stored.xml_etag, "Size": len(stored.payload),
        "StorageClass": stored.storage_class,
    }  # fmt: skip


def _document(root: str, inner: str) -> WireResponse:
    return WireResponse.of_xml(f'<{root} xmlns="{NAMESPACE}">{inner}</{root}>')


def _delete_many(service: BucketsService, runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    """Deletes each object that the body names, by itself. One that is absent counts as deleted."""
    bucket, root = bucket_of(service.buckets, call.bucket), xml_root(body, "Delete")
    named = [texts(each) for each in root if local(each) == "Object"]
    if not 1 <= len(named) <= DELETED_MAX or not all(each.get("Key") for each in named):
        raise malformed()
    quiet = texts(root).get("Quiet", "").strip().lower() == "true"
    told = []
    for each in named:
        try:
            bucket.remove(each["Key"], {"generation": each["VersionId"]} if each.get("VersionId") else {}, runtime.wall_ns())
        except GcsError as error:
            if error.status != 404:
                told.append(f"<Error>{elements({**each, 'Code': error.code, 'Message': str(error)})}</Error>")
                continue
        if not quiet:
            told.append(f"<Deleted>{elements(each)}</Deleted>")
    return _document("DeleteResult", "".join(told))


def _buckets(service: BucketsService, runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    found = [{"Name": name, "CreationDate": bucket.settings["timeCreated"]} for name, bucket in sorted(service.buckets.items())]
    inner = "".join(f"<Bucket>{elements(each)}</Bucket>" for each in found)
    return _document("ListAllMyBucketsResult", f"<Buckets>{inner}</Buckets>")


def _head(service: BucketsService, runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    bucket = bucket_of(service.buckets, call.bucket)
    told = {"X-Goog-Metageneration": bucket.settings["metageneration"], "X-Goog-Storage-Class": bucket.settings["storageClass"]}
    return WireResponse(200, headers=told)


def _location(service: BucketsService, runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    location = bucket_of(service.buckets, call.bucket).settings["location"]
    return WireResponse.of_xml(elements({"LocationConstraint": location}))


def _create(service: BucketsService, runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    """Creates a bucket. Its body may say where, and in which storage class."""
    told = texts(xml_root(body, "CreateBucketConfiguration")) if body.strip() else {}
    if unknown := set(told) - {"LocationConstraint", "StorageClass"}:
        raise GcsError.lacking(f"{', '.join(sorted(unknown))} of a bucket")
    settings = {"location": told.get("LocationConstraint"), "storageClass": told.get("StorageClass")}
    service.create(call.bucket, {key: value for key, value in settings.items() if value})
    return WireResponse(200)


def _delete(service: BucketsService, runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    service.delete(call.bucket)
    return WireResponse(204)
