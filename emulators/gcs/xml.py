"""As much of GCS's XML API as clients of the `object_store` family use, over the same buckets as the JSON API.

    PUT /BUCKET/NAME     an object, or with x-goog-copy-source a copy; x-goog-if-generation-match is heeded
    GET, HEAD, DELETE    an object; GET with Range, and both of an address with a V4 signature, which is verified
    GET /BUCKET          a listing: prefix, delimiter, start-after, continuation-token, max-keys

Uploads of several parts are in `emulators.gcs.parts`. Access control and buckets are answered with 501.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from xml.sax.saxutils import escape

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from changelog.base.runtime import Runtime
from emulators.gcs.media import media
from emulators.gcs.signatures import check_signature
from emulators.gcs.store import CONTENT_KEYS, Bucket, ObjectGeneration, bucket_of, rfc3339
from emulators.gcs.wire import WireRequest, WireResponse

CUSTOM, CUSTOM_TIME, MATCH = "x-goog-meta-", "x-goog-custom-time", "x-goog-if-"
OVERRIDES = {"response-content-type": "Content-Type", "response-content-disposition": "Content-Disposition"}
OF_QUERY = {"max-keys": "maxResults", "continuation-token": "pageToken", "start-after": "startOffset"}


Step = Callable[[WireRequest, bytes], WireResponse]


def xml_steps(buckets: Mapping[str, Bucket], runtime: Runtime, accounts: Mapping[str, RSAPublicKey]) -> dict[str, Step]:
    """`accounts`: the public key of each account that signs, by its email."""
    steps = {"put": _put, "copy": _copy, "delete": _delete, "list": _list}
    found: dict[str, Step] = {f"xml.{kind}": partial(step, buckets, runtime) for kind, step in steps.items()}

    def get(call: WireRequest, body: bytes) -> WireResponse:
        check_signature(call, "GET", accounts, runtime.wall_ns())
        answer = _get(buckets, runtime, call, body)
        asked = {name: call.query[key] for key, name in OVERRIDES.items() if key in call.query}
        return replace(answer, headers={**asked, **answer.headers})  # what is stored wins

    return {**found, "xml.get": get, "xml.head": get}  # the server leaves the body out; who may GET may HEAD


def _get(buckets: Mapping[str, Bucket], runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    stored = bucket_of(buckets, call.bucket).get(call.name, {**call.query, **preconditions(call)}, reading=True)
    found = media(stored, call.headers.get("Range"))
    custom = {f"{CUSTOM}{key}": value for key, value in stored.metadata.items()}
    return WireResponse(found.status, found.body, {**found.headers, **custom, "ETag": _etag(stored)})


def _put(buckets: Mapping[str, Bucket], runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    bucket = bucket_of(buckets, call.bucket)
    return _written(bucket.insert(call.name, body, described(call), preconditions(call), told_hashes(call), runtime.wall_ns()))


def described(call: WireRequest) -> dict[str, Any]:
    """Returns the object's resource as the headers of its upload say it. Keys of custom metadata become lower case."""
    content = {key: call.headers[name] for key in CONTENT_KEYS if (name := re.sub("(?=[A-Z])", "-", key)) in call.headers}
    custom = {key.lower()[len(CUSTOM) :]: value for key, value in call.headers.items() if key.lower().startswith(CUSTOM)}
    time = {"customTime": call.headers[CUSTOM_TIME]} if CUSTOM_TIME in call.headers else {}
    return {"contentType": "application/octet-stream", **content, **time, "metadata": custom}


def told_hashes(call: WireRequest) -> list[tuple[str, object]]:
    """Returns the hashes of `X-Goog-Hash`, which may come several times, and of `Content-MD5`."""
    told = [pair.strip().partition("=")[::2] for header in call.headers.getall("X-Goog-Hash", []) for pair in header.split(",")]
    return [*told, *(("md5", value) for value in call.headers.getall("Content-MD5", []))]


def _copy(buckets: Mapping[str, Bucket], runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    source = bucket_of(buckets, call.bucket).get(call.name, {})
    stored = bucket_of(buckets, call.target[0]).copy(source, call.target[1], None, preconditions(call), runtime.wall_ns())
    told = f"<LastModified>{rfc3339(stored.updated)}</LastModified><ETag>{escape(_etag(stored))}</ETag>"
    return xml_answer(f"<CopyObjectResult>{told}</CopyObjectResult>", stored)


def _delete(buckets: Mapping[str, Bucket], runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    bucket_of(buckets, call.bucket).remove(call.name, {**call.query, **preconditions(call)}, runtime.wall_ns())
    return WireResponse(204)


def _list(buckets: Mapping[str, Bucket], runtime: Runtime, call: WireRequest, body: bytes) -> WireResponse:
    query = {OF_QUERY.get(key, key): value for key, value in call.query.items()}
    if "start-after" in call.query:
        query["startOffset"] += "\0"
    page = bucket_of(buckets, call.bucket).page(query)
    contents = "".join(f"<Contents>{_listed(each)}</Contents>" for each in page.objects if isinstance(each, ObjectGeneration))
    groups = "".join(f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>" for prefix in page.prefixes)
    more = f"<NextContinuationToken>{escape(page.next_token)}</NextContinuationToken>" if page.next_token else ""
    cut = f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>"
    return xml_answer(f"<ListBucketResult><Name>{escape(call.bucket)}</Name>{cut}{more}{contents}{groups}</ListBucketResult>")


def _listed(stored: ObjectGeneration) -> str:
    told = {
        "Key": stored.name, "Generation": stored.generation, "LastModified": rfc3339(stored.updated), "ETag": _etag(stored),
        "Size": len(stored.payload),
    }  # fmt: skip
    return "".join(f"<{key}>{escape(str(value))}</{key}>" for key, value in told.items())


def xml_answer(text: str, stored: ObjectGeneration | None = None) -> WireResponse:
    headers = {"Content-Type": "application/xml; charset=UTF-8", **(_written(stored).headers if stored else {})}
    return WireResponse(200, f"<?xml version='1.0' encoding='UTF-8'?>{text}".encode(), headers)


def _written(stored: ObjectGeneration) -> WireResponse:
    return WireResponse(200, headers={"ETag": _etag(stored), "X-Goog-Generation": str(stored.generation)})


def _etag(stored: ObjectGeneration) -> str:
    return f'"{stored.etag}"'


def preconditions(call: WireRequest) -> dict[str, str]:
    """Returns the preconditions as the JSON API calls them: x-goog-if-generation-match is ifGenerationMatch."""
    asked = {key.lower(): value for key, value in call.headers.items() if key.lower().startswith(MATCH)}
    return {"if" + key.removeprefix(MATCH).title().replace("-", ""): value for key, value in asked.items()}
