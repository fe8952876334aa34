"""Objects of GCS's XML API in the GCS emulator, over the same buckets as the JSON API.

    PUT /BUCKET/NAME            an object; with x-goog-copy-source a copy; with ?compose what its body names
    GET, HEAD, DELETE           an object, a range of it, one generation

`x-goog-if-generation-match` and its like are heeded, and `If-None-Match` and its like where one reads. An address with
a V4 signature is verified (`signatures.py`). Access control is answered with 501.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from xml.etree import ElementTree

from changelog.base.runtime import Runtime
from emulators.gcs.answers import GcsError, WireResponse, elements
from emulators.gcs.conditions import OF_COPIED, check_tags, of_headers
from emulators.gcs.media import media
from emulators.gcs.objects import ObjectGeneration, rfc3339
from emulators.gcs.shown import CUSTOM, CUSTOM_TIME, Step, described, told_hashes, written
from emulators.gcs.store import Bucket, bucket_of
from emulators.gcs.wire import WireRequest

OVERRIDES = {"response-content-type": "Content-Type", "response-content-disposition": "Content-Disposition"}
DIRECTIVE, OF_GENERATION = "x-goog-metadata-directive", "x-goog-copy-source-generation"

Buckets = Mapping[str, Bucket]


def xml_steps(buckets: Buckets, runtime: Runtime) -> dict[str, Step]:
    # The server leaves the body of a HEAD out.
    steps = {"get": _get, "head": _get, "put": _put, "copy": _copy, "compose": _compose, "delete": _delete}
    return {f"xml.{kind}": partial(step, buckets, runtime) for kind, step in steps.items()}


def _get(buckets: Buckets, runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    stored = bucket_of(buckets, call.bucket).get(call.name, {**call.query, **of_headers(call)}, reading=True)
    check_tags(call.headers, stored.xml_etag, stored.updated)
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


def _copy(buckets: Buckets, runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    """Copies an object. With the directive REPLACE, the headers are all of the copy's metadata."""
    directive = call.headers.get(DIRECTIVE, "COPY").upper()
    if directive not in ("COPY", "REPLACE"):
        raise GcsError(400, f"{DIRECTIVE} is {directive!r}; it may be COPY or REPLACE")
    generation = {"generation": call.headers[OF_GENERATION]} if OF_GENERATION in call.headers else {}
    source = bucket_of(buckets, call.bucket).get(call.name, {**generation, **of_headers(call, OF_COPIED)})
    check_tags(call.headers, source.xml_etag, source.updated, of_copied=True)
    to, name = call.target
    resource = described(call) if directive == "REPLACE" else None
    stored = bucket_of(buckets, to).copy(source, name, resource, of_headers(call), runtime.wall_ns())
    told = {"LastModified": rfc3339(stored.updated), "ETag": stored.xml_etag}
    return WireResponse.of_xml(f"<CopyObjectResult>{elements(told)}</CopyObjectResult>").with_headers(written(stored).headers)


def _compose(buckets: Buckets, runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    bucket = bucket_of(buckets, call.bucket)
    named = [texts(component) for component in xml_root(body, "ComposeRequest")]
    if not all(each.get("Name") for each in named):
        raise malformed()
    asked = {"Generation": "generation", "IfGenerationMatch": "ifGenerationMatch"}
    sources = [bucket.get(each["Name"], {asked[key]: text for key, text in each.items() if key in asked}) for each in named]
    resource: dict[str, Any] = described(call)
    if "Content-Type" not in call.headers:
        del resource["contentType"]
    return written(bucket.compose(sources, call.name, resource, of_headers(call), runtime.wall_ns()))


def _delete(buckets: Buckets, runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    bucket_of(buckets, call.bucket).remove(call.name, {**call.query, **of_headers(call)}, runtime.wall_ns())
    return WireResponse(204)


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
