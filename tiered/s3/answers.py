"""Whether an answer is the service's own, by its shape: one row for each call that is sent (pure).

    status     of a success: those that S3 documents. All others from 200 to 299 are nobody's
    headers    without which a success tells nothing
    root       of the body; of a refusal, `Error` with a `Code`. A success that has no root has no body
    has        what each success tells besides, as aiobotocore names it; `each`: what all of a list's entries tell

Something in between (a portal, a gateway, a cache) also answers, also with 200, and also cuts answers off. So what has
another shape proves nothing: neither an effect nor its absence, and nothing of what is stored. A request that has no
row is never sent. Refusals of HEAD have no body: whoever wants to know more asks by GET.

A page of a web site has the tag, time and length of an object. What no service of S3 is known to leave out where a blob
is read is a header of S3 (`is_signed`); without any, a listing must confirm the answer (`S3Client`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple


class Shape(NamedTuple):
    root: str | None
    statuses: Collection[int] = (200,)
    headers: Collection[str] = ()
    has: Collection[str] = ()
    each: Mapping[str, Collection[str]] = {}


ANY_BODY, STREAM = "any body", "a stream"
_OBJECT = ("etag", "last-modified", "content-length")
_ENTRY = ("Key", "LastModified", "ETag", "Size")
_OF_VERSION = ("Key", "VersionId")

ANSWERS: Mapping[str, Shape] = {
    "put_object": Shape(None, headers=("etag",)),
    "get_object": Shape(STREAM, (200, 206), _OBJECT),
    "head_object": Shape(None, headers=_OBJECT),
    "delete_object": Shape(None, (204,)),
    "create_multipart_upload": Shape("InitiateMultipartUploadResult", has=("UploadId",)),
    "upload_part": Shape(None, headers=("etag",)),
    "upload_part_copy": Shape("CopyPartResult", each={"CopyPartResult": ("ETag",)}),
    "complete_multipart_upload": Shape("CompleteMultipartUploadResult"),
    "abort_multipart_upload": Shape(None, (204,)),
    "list_parts": Shape("ListPartsResult", has=("IsTruncated",), each={"Parts": ("PartNumber", "Size", "ETag")}),
    "list_objects_v2": Shape("ListBucketResult", has=("Name", "IsTruncated"), each={"Contents": _ENTRY}),
    "list_multipart_uploads": Shape(
        "ListMultipartUploadsResult", has=("IsTruncated",), each={"Uploads": ("Key", "UploadId", "Initiated")}
    ),
    "list_object_versions": Shape(
        "ListVersionsResult", has=("IsTruncated",), each={"Versions": (*_OF_VERSION, "ETag", "Size"), "DeleteMarkers": _OF_VERSION}
    ),
    "create_bucket": Shape(ANY_BODY),
    "head_bucket": Shape(None),
    "get_bucket_lifecycle_configuration": Shape("LifecycleConfiguration"),
    "put_bucket_lifecycle_configuration": Shape(None),
    "get_bucket_versioning": Shape("VersioningConfiguration"),
    "put_bucket_versioning": Shape(None),
    "get_object_lock_configuration": Shape("ObjectLockConfiguration"),
}

STATUS_OF = {"NoSuchKey": 404, "NoSuchUpload": 404, "PreconditionFailed": 412}
"""The words that something rests on. With another status they are nobody's."""

_ROOT = re.compile(rb"\s*(?:<\?xml[^>]*\?>\s*)?(?:<!--.*?-->\s*)*<(?:[\w.-]+:)?([\w.-]+)", re.DOTALL)
_TRUNCATED = re.compile(rb"<(?:[\w.-]+:)?IsTruncated>(?:true|false)</")
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_LENGTH = re.compile(r"[0-9]{1,18}")


def oddity(operation: str, status: int, headers: Mapping[str, str], body: bytes) -> str | None:
    """What is wrong with the shape of an answer, before it is read. None: nothing. `body`: empty if it is a stream."""
    shape = ANSWERS[operation]
    if status >= 300:
        if shape.root is None and operation.startswith("head_"):
            return f"with {status}" if status < 400 else None
        return None if _root_of(body) == "Error" else f"with {status}, and not in the way of S3"
    if status not in shape.statuses:
        return f"with {status}, and not in the way of S3"
    lacking = [name for name in shape.headers if not headers.get(name, "").strip('"')]
    if lacking:
        return f"without {lacking[0]}"
    if "content-length" in shape.headers and not _LENGTH.fullmatch(headers["content-length"]):
        return f"with a length of {headers['content-length'][:40]!r}"
    if status == 206:
        told = _RANGE.fullmatch(headers.get("content-range", ""))
        if told is None or int(told[2]) - int(told[1]) + 1 != int(headers["content-length"]) or int(told[2]) >= int(told[3]):
            return "with a range that is none"
    if shape.root in (ANY_BODY, STREAM):
        return None
    if shape.root is None:
        return f"with {len(body)} bytes, and no body is due" if body else None
    if _root_of(body) != shape.root:
        return f"without a {shape.root}"
    return "without saying whether it is all" if "IsTruncated" in shape.has and not _TRUNCATED.search(body) else None


def lacking(operation: str, answer: Mapping[str, Any]) -> str | None:
    """What a success that was read does not tell. None: it tells all."""
    shape = ANSWERS[operation]
    for name in shape.has:
        if answer.get(name) in (None, ""):
            return f"without {name}"
    for name, fields in shape.each.items():
        told = answer.get(name) or ({} if name.endswith("Result") else [])
        for each in [told] if isinstance(told, Mapping) else told:
            for field in fields:
                if each.get(field) in (None, "", '""'):
                    return f"without the {field} of one of its {name}"
    return None


def is_signed(headers: Mapping[str, str]) -> bool:
    """Whether a success has a header of S3."""
    return any(name.startswith("x-amz-") for name in headers)


def _root_of(body: bytes) -> str | None:
    found = _ROOT.match(body[:4096])
    return found[1].decode() if found else None
