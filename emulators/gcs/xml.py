"""Objects of GCS's XML API in the GCS emulator, over the same buckets as the JSON API.

    PUT, GET, HEAD, DELETE /BUCKET/NAME    an object, a range of it, one generation
    GET /BUCKET?list-type=2                the names of a bucket, in pages

`x-goog-if-generation-match` and its like are heeded, and `If-None-Match` and its like where one reads. An address with
a V4 signature is verified (`signatures.py`). Access control is answered with 501.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from xml.etree import ElementTree

from changelog.base.runtime import Runtime
from emulators.gcs.answers import GcsError, WireResponse, elements
from emulators.gcs.conditions import check_tags, of_headers
from emulators.gcs.media import media
from emulators.gcs.objects import ObjectGeneration, rfc3339
from emulators.gcs.shown import CUSTOM, CUSTOM_TIME, Step, described, told_hashes, written
from emulators.gcs.store import Bucket, bucket_of
from emulators.gcs.wire import WireRequest

OVERRIDES = {"response-content-type": "Content-Type", "response-content-disposition": "Content-Disposition"}
OF_LISTING = {"max-keys": "maxResults", "continuation-token": "pageToken", "prefix": "prefix", "delimiter": "delimiter"}
"""Parameters of a listing by the names of the JSON API."""
NAMESPACE = "http://doc.s3.amazonaws.com/2006-03-01"

Buckets = Mapping[str, Bucket]


def xml_steps(buckets: Buckets, runtime: Runtime) -> dict[str, Step]:
    # The server leaves the body of a HEAD out.
    steps = {"get": _get, "head": _get, "put": _put, "delete": _delete, "list": _list}
    return {f"xml.{kind}": partial(step, buckets, runtime) for kind, step in steps.items()}


def _get(buckets: Buckets, runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    stored = bucket_of(buckets, call.bucket).get(call.name, {**call.query, **of_headers(call)}, reading=True)
    check_tags(call.headers, stored.xml_etag)
    found = media(stored, call.headers)
    asked = {name: call.query[key] for key, name in OVERRIDES.items() if key in call.query}
    custom = {f"{CUSTOM}{key}": value for key, value in stored.metadata.items()}
    time = {} if stored.custom_time is None else {CUSTOM_TIME: rfc3339(stored.custom_time)}
    headers = {**found.headers, **custom, **time, "ETag": stored.xml_etag}
    # What is stored wins.
    return WireResponse(found.status, found.body, {**headers, **{key: value for key, value in asked.items() if _unsaid(key, stored)}})


def _unsaid(header: str, stored: ObjectGeneration) -> bool:
    return {"Content-Type": "contentType", "Content-Disposition": "contentDisposition"}[header] not in stored.content


def _put(buckets: Buckets, runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    bucket = bucket_of(buckets, call.bucket)
    return written(bucket.insert(call.name, body, described(call), of_headers(call), told_hashes(call), runtime.wall_ns()))


def _delete(buckets: Buckets, runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    bucket_of(buckets, call.bucket).remove(call.name, {**call.query, **of_headers(call)}, runtime.wall_ns())
    return WireResponse(204)


def _list(buckets: Buckets, runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    query = {OF_LISTING[key]: value for key, value in call.query.items() if key in OF_LISTING}
    if after := call.query.get("start-after"):
        query["startOffset"] = after + "\0"
    page = bucket_of(buckets, call.bucket).page(query)
    told: dict[str, object] = {"Name": call.bucket, "Prefix": query.get("prefix", ""), "MaxKeys": call.query.get("max-keys", "1000")}
    told |= {"IsTruncated": str(page.next_token is not None).lower(), "KeyCount": len(page.objects) + len(page.prefixes)}
    told |= {} if page.next_token is None else {"NextContinuationToken": page.next_token}
    contents = "".join(f"<Contents>{elements(_listed(each))}</Contents>" for each in page.objects if isinstance(each, ObjectGeneration))
    groups = "".join(f"<CommonPrefixes>{elements({'Prefix': prefix})}</CommonPrefixes>" for prefix in page.prefixes)
    return WireResponse.of_xml(f'<ListBucketResult xmlns="{NAMESPACE}">{elements(told)}{contents}{groups}</ListBucketResult>')


def _listed(stored: ObjectGeneration) -> Mapping[str, object]:
    return {
        "Key": stored.name, "Generation": stored.generation, "MetaGeneration": stored.metageneration,
        "LastModified": rfc3339(stored.updated), "ETag": stored.xml_etag, "Size": len(stored.payload),
        "StorageClass": stored.storage_class,
    }  # fmt: skip


# --- bodies --------------------------------------------------------------------------------------


def malformed() -> GcsError:
    return GcsError(400, "The XML you provided was not well-formed or did not validate.", code="MalformedXML")


def xml_root(body: bytes, name: str) -> ElementTree.Element:
    """Returns the root of a document. Raises 400 if it is none, has another name, or has nothing in it."""
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        raise malformed() from None
    if local(root) != name or not len(root):
        raise malformed()
    return root


def local(element: ElementTree.Element) -> str:
    """Returns an element's name without its namespace."""
    return element.tag.rpartition("}")[2]


def texts(element: ElementTree.Element) -> dict[str, str]:
    return {local(each): each.text or "" for each in element}
