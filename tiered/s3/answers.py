"""Whether an answer is the service's own, by its shape: one row for each call that is sent (pure).

    status     of a success: those that S3 documents. All others from 200 to 299 are nobody's
    headers    without which a success tells nothing
    root       of the body; of a refusal, `Error` with a `Code`. A success that has no root has no body
    has        what each success tells besides, as aiobotocore names it; `each`: what all of a list's entries tell

Something in between (a portal, a gateway, a cache) also answers, also with 200, and also cuts answers off. So what has
another shape proves nothing: neither an effect nor its absence, and nothing of what is stored. A request that has no
row is never sent. Refusals of HEAD have no body: whoever wants to know more asks by GET.

Anybody can answer 204, and a page of a web site has the tag, time and length of an object. So a success that has no
header of S3 at all (`is_signed`) counts only if another request confirms it (`S3Client`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_plus

from tiered.transfer.arrival import is_md5


class Shape(NamedTuple):
    root: str | None
    statuses: Collection[int] = (200,)
    headers: Collection[str] = ()
    has: Collection[str] = ()
    each: Mapping[str, Collection[str]] = {}


ANY_BODY, STREAM = "any body", "a stream"
_OBJECT = ("etag", "last-modified", "content-length")
_ENTRY = ("Key", "LastModified", "ETag", "Size")
_KEPT = ("Key", "VersionId", "IsLatest", "LastModified")

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
        "ListVersionsResult", has=("Name", "IsTruncated"), each={"Versions": (*_KEPT, "ETag", "Size"), "DeleteMarkers": _KEPT}
    ),
    "create_bucket": Shape(ANY_BODY),
    "head_bucket": Shape(None),
    "get_bucket_lifecycle_configuration": Shape("LifecycleConfiguration"),
    "put_bucket_lifecycle_configuration": Shape(None),
    "get_bucket_versioning": Shape("VersioningConfiguration"),
    "get_bucket_policy_status": Shape("PolicyStatus"),
    "put_bucket_versioning": Shape(None),
    "get_object_lock_configuration": Shape("ObjectLockConfiguration"),
}

STATUS_OF = {"NoSuchKey": 404, "NoSuchUpload": 404, "PreconditionFailed": 412}
"""The words that something rests on. With another status they are nobody's."""

_ROOT = re.compile(rb"\s*(?:<\?xml[^>]*\?>\s*)?(?:<!--.*?-->\s*)*<(?:[\w.-]+:)?([\w.-]+)", re.DOTALL)
_FLAG = re.compile(rb"<(?:[\w.-]+:)?(IsTruncated|IsLatest)(?!>(?:true|false)</)")
"""One that says neither. The library reads it as false."""
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_REPEATED = ("Prefix", "StartAfter", "UploadId", "Key")
"""What a service may repeat of what it was asked. A cache may have kept a page for another question."""
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
    if shape.headers == _OBJECT and int(headers["content-length"]) == 0 and not _is_of(headers["etag"], headers, b""):
        return "without bytes, and its ETag is not that of none"
    if status == 206:
        told = _RANGE.fullmatch(headers.get("content-range", ""))
        if told is None or int(told[2]) - int(told[1]) + 1 != int(headers["content-length"]) or int(told[2]) >= int(told[3]):
            return "with a range that is none"
    if shape.root in (ANY_BODY, STREAM):
        return None
    if shape.root is None:
        return f"with {len(body)} bytes, and no body is due" if body else None
    if _root_of(body) not in _roots(operation, shape.root):
        return f"without a {shape.root}"
    flag = _FLAG.search(body)
    return None if flag is None else f"with a word for {flag[1].decode()} that is none"


def lacking(operation: str, asked: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    """What a success that was read does not tell, or that it is of something else. None: it tells all."""
    shape = ANSWERS[operation]
    for name in _REPEATED:
        if name in asked and answer.get(name) and not _plain(answer[name]) & _plain(asked[name]):
            return f"of the {name} {answer[name]!r}"
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


def is_body_of(answer: Mapping[str, Any], body: bytes) -> bool:
    """Whether these can be all bytes of an object that was put whole: its tag is their MD5, unless it is encrypted."""
    return _is_of(answer["ETag"], answer["ResponseMetadata"]["HTTPHeaders"], body)


def _is_of(etag: str, headers: Mapping[str, str], body: bytes) -> bool:
    tag = etag.strip('"').lower()
    is_plain = not any(name.startswith("x-amz-server-side-encryption") for name in headers)
    return not (is_plain and is_md5(tag)) or hashlib.md5(body, usedforsecurity=False).hexdigest() == tag


def _plain(name: str) -> set[str]:
    """What of a name every service repeats as it is, whether or not it escapes it."""
    return {re.sub("/+", "/", re.sub("[^!-~]", "", each)).strip("/") for each in (name, unquote(name), unquote_plus(name))}


def is_signed(answer: Mapping[str, Any]) -> bool:
    """Whether a success has a header of S3."""
    return any(name.startswith("x-amz") for name in answer["ResponseMetadata"]["HTTPHeaders"])


def _roots(operation: str, root: str) -> tuple[str, ...]:
    """As S3 documents it, or as older documents named all answers."""
    return root, root.replace("Result", "Response"), f"{operation.title().replace('_', '')}Response"


def _root_of(body: bytes) -> str | None:
    found = _ROOT.match(body[:4096])
    return found[1].decode() if found else None
