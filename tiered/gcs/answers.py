"""Whose answer: whether what came is the service's own answer to the call that was made (pure).

    GcsResponse.of(status, headers, body, shape)    each answer, also a part of a batch, is made here
    .is_genuine                                     it has the form that the service gives it, and is of this call
    .told                                           what a success tells, read by the `Shape` of its call

A call names the shape of its success: the kind, the bucket and the name that were asked for, and the numbers that are
always there. A failure has the form of the API's errors, or the header of uploads and downloads. Whatever else comes is
no evidence of anything: `GcsHttp.odd`. A deletion tells nothing, so its shape is an answer without a body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self
from xml.etree import ElementTree

from tiered.gcs.format import LISTING, TEXT_KEYS, TIME, decode_listing, decode_listing_by_item, decode_time

OWN_HEADER = "X-GUploader-UploadID"
GENERATION = "X-Goog-Generation"

_NUMBER = re.compile(r"[0-9]{1,19}")
_ANYTHING = re.compile(r"(?s).+")
_ETAG = re.compile("[ -~]+")
_REACHED = re.compile(r"(bytes=0-[0-9]{1,19})?")
_TEXTS: Mapping[str, re.Pattern[str]] = {
    "generation": _NUMBER, "metageneration": _NUMBER, "size": _NUMBER, "crc32c": re.compile(r"[A-Za-z0-9+/]{6}=="),
}  # fmt: skip
"""What the service tells of every object, as text."""
_MAY_BE_TEXTS = (*TEXT_KEYS, "customTime")
_OF_DELETED = {"softDeleteTime", "hardDeleteTime", "timeDeleted"}
_TIMES = ("timeCreated", *sorted(_OF_DELETED))
_EMPTY = {"size": "0", "crc32c": "AAAAAA=="}
_OBJECT, _BUCKET, _REWRITE = "storage#object", "storage#bucket", "storage#rewriteResponse"


@dataclass(frozen=True, slots=True)
class GcsResponse:
    """An answer that has come completely. `told`: what a success tells. None: it is none, or not the service's.

    `is_genuine`: it is shaped like the service's own answer to this call. `renews`: of a 401, that the next request has
    a newer token.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    told: Any
    is_genuine: bool
    is_xml: bool
    renews: bool = False

    @classmethod
    def of(cls, status: int, headers: Mapping[str, str], body: bytes, shape: Shape, *, goes_on: bool = False, xml: bool = False) -> Self:
        """Judges an answer. `shape`: what a success of this call looks like. `goes_on`: it may be 308, which says how
        far an upload is. `xml`: it is one of the XML API.

        308 is a redirect elsewhere. Nobody but the service uses 499. A call that tells nothing may be refused without a
        word.
        """
        answer = cls(status, headers, body, None, False, xml)
        if status == 308:
            is_genuine = goes_on and not body and "Location" not in headers and _REACHED.fullmatch(headers.get("Range", "")) is not None
        elif status >= 300:
            error = answer._error()
            is_genuine = bool(error) and str(error.get("code", status)) == str(status)
            is_genuine = is_genuine or status == 499 or (OWN_HEADER in headers and (bool(body) or shape is nothing))
        else:
            with suppress(ValueError, RecursionError):
                answer = replace(answer, told=shape(answer))
            is_genuine = answer.told is not None
        return replace(answer, is_genuine=is_genuine)

    @property
    def reached(self) -> int:
        """How many bytes an upload session has, as a genuine 308 says."""
        return int(self.headers["Range"].rpartition("-")[2]) + 1 if self.headers.get("Range") else 0

    @property
    def message(self) -> str:
        """The service's own words about its refusal."""
        error = self._error()
        return _scrubbed(str(error.get("message") or self.body[:300].decode(errors="replace"))[:1500])

    @property
    def reason(self) -> str:
        errors = self._error().get("errors")
        first = errors[0] if isinstance(errors, list) and errors else None
        return str(first.get("reason", "")) if isinstance(first, dict) else ""

    def _error(self) -> Mapping[str, Any]:
        if self.is_xml:
            error = xml_error(self.body)
            return {} if error is None else {"message": error[1], "errors": [{"reason": error[0]}]}
        try:
            error = json.loads(self.body)["error"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return {}
        return error if isinstance(error, dict) else {}


Shape = Callable[[GcsResponse], Any]
"""Reads a success (a status below 300). None, or a `ValueError`: it is not the service's answer to this call."""


# --- the JSON API ----------------------------------------------------------------------------------------


def an_object(bucket: str, name: str, fields: str, generation: str | None = None) -> Shape:
    """The resource of a blob. `fields`: those that were asked for. `generation`: of which it must be."""
    return lambda answer: _object(_json(answer.body), bucket, name, _asked(fields), generation)


def a_rewrite(bucket: str, name: str, fields: str = "") -> Shape:
    """The end of a rewrite to this name, or the token of its next request. `fields`: of the copy, if it is told."""

    def read(answer: GcsResponse) -> object:
        rewrite = _json(answer.body)
        if rewrite.get("kind", _REWRITE) != _REWRITE or not isinstance(rewrite.get("done"), bool):
            return None
        if not rewrite["done"]:
            return rewrite if isinstance(token := rewrite.get("rewriteToken"), str) and token else None
        return rewrite if not fields or _object(rewrite.get("resource"), bucket, name, _asked(fields)) is not None else None

    return read


def a_bucket(bucket: str) -> Shape:
    """The resource of the bucket, with its kind and its name."""

    def read(answer: GcsResponse) -> object:
        told = _json(answer.body)
        return told if (told.get("kind"), told.get("name")) == (_BUCKET, bucket) else None

    return read


def a_listing(query: Mapping[str, str]) -> Shape:
    """One page of a listing, of the names that the query asks for, each with the fields that it asks for."""
    of_items = re.search(r"items\(([^()]*)\)", query.get("fields", ""))
    without = {"timeDeleted"} if query.get("softDeleted") else _OF_DELETED
    asked = {*(of_items[1].split(",") if of_items else [])} - without

    def read(answer: GcsResponse) -> object:
        page = _page(answer.body)
        if page is None:
            return None
        items = page.get("items", [])
        return page if all(isinstance(item, dict) and _has(item, asked) and _is_asked(item.get("name"), query) for item in items) else None

    return read


def a_page(query: Mapping[str, str]) -> Shape:
    """The same for a page of blobs, read fast. One that breaks the format is an oddity on it."""

    def read(answer: GcsResponse) -> object:
        page = decode_listing(answer.body)
        if page is None:
            told = _page(answer.body)
            if told is None:
                return None
            page = decode_listing_by_item(told)
        ends = [blob.name for blob in (*page.blobs[:1], *page.blobs[-1:])] + list(page.names[-1:])
        return page if all(_is_asked(name, query) for name in ends) else None

    return read


def a_session(answer: GcsResponse) -> str | None:
    """The address of a new upload session."""
    address = answer.headers.get("Location", "")
    return address if re.fullmatch(r"https?://[!-~]+[?&]upload_id=[!-~]+", address) else None


def media(answer: GcsResponse) -> bytes | None:
    """The bytes of a blob that come as a whole."""
    return answer.body if is_media(answer.headers) else None


def is_media(headers: Mapping[str, str]) -> bool:
    """Whether the headers are those of a download."""
    return _NUMBER.fullmatch(headers.get(GENERATION, "")) is not None


def nothing(answer: GcsResponse) -> bool | None:
    """An answer without a word: of a deletion, or of the end of an upload."""
    return None if answer.body else True


# --- the XML API -----------------------------------------------------------------------------------------


def an_xml(root: str, /, each: Mapping[str, re.Pattern[str]] = {}, **named: str) -> Shape:
    """A document whose root is this. `each`: what its entries of one kind have, as `Part/Size`. `named`: what elements
    in it say; an empty text: anything but nothing.
    """
    kind = next(iter(each), "").partition("/")[0]

    def read(answer: GcsResponse) -> object:
        found = xml_root(answer.body)
        if found is None or tag_of(found) != root:
            return None
        if not all((text := child(found, key)) and named[key] in ("", text) for key in named):
            return None
        entries = [entry for entry in found if tag_of(entry) == kind]
        return found if all(each[key].fullmatch(child(entry, key.partition("/")[2])) for entry in entries for key in each) else None

    return read


def a_list_of_parts(bucket: str, name: str, upload_id: str) -> Shape:
    each = {"Part/PartNumber": _NUMBER, "Part/Size": _NUMBER, "Part/ETag": _ETAG}
    return an_xml("ListPartsResult", each, Bucket=bucket, Key=name, UploadId=upload_id, IsTruncated="")


def a_list_of_uploads(bucket: str) -> Shape:
    each = {"Upload/Key": _ANYTHING, "Upload/UploadId": _ANYTHING, "Upload/Initiated": TIME}
    return an_xml("ListMultipartUploadsResult", each, Bucket=bucket, IsTruncated="")


def a_completion(bucket: str, name: str) -> Shape:
    """The end of an upload in parts, or the error in its place: the service begins to answer before it knows."""
    done = an_xml("CompleteMultipartUploadResult", Bucket=bucket, Key=name, ETag="")
    return lambda answer: done(answer) if (error := xml_error(answer.body)) is None else error


def a_part(crc32c: str) -> Shape:
    """The ETag of a part, and the checksum of it, which the service may not tell. If it does, it is this one."""

    def read(answer: GcsResponse) -> tuple[str, str | None] | None:
        told = re.findall(r"crc32c=([^,\s]+)", answer.headers.get("X-Goog-Hash", ""))
        etag = answer.headers.get("ETag", "")
        is_one = _ETAG.fullmatch(etag) and told in ([], [crc32c]) and not answer.body
        return (etag, crc32c if told else None) if is_one else None

    return read


def xml_error(body: bytes) -> tuple[str, str] | None:
    """The code and the message of a refusal of the XML API. None: the body is none."""
    root = xml_root(body)
    code = child(root, "Code") if root is not None and root.tag == "Error" else None
    return None if root is None or not code else (code, child(root, "Message") or code)


def xml_root(body: bytes) -> ElementTree.Element | None:
    try:
        return ElementTree.fromstring(body)
    except ElementTree.ParseError:
        return None


def child(element: ElementTree.Element, key: str) -> str:
    return next((each.text or "" for each in element if tag_of(each) == key), "")


def tag_of(element: ElementTree.Element) -> str:
    """The name of an element, in whichever namespace."""
    return element.tag.rpartition("}")[2]


# --- beside ------------------------------------------------------------------------------------------------


def _json(body: bytes) -> Mapping[str, Any]:
    """The object that a body is. Raises `ValueError`, also if it holds what is no text."""
    value = json.loads(body)
    if b"\\ud" in body.lower():
        json.dumps(value, ensure_ascii=False).encode()
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def _asked(fields: str) -> Collection[str]:
    return fields.split(",")


def _object(told: object, bucket: str, name: str, asked: Collection[str], generation: str | None = None) -> Mapping[str, Any] | None:
    if not isinstance(told, dict) or (told.get("kind", _OBJECT), told.get("bucket", bucket), told.get("name")) != (_OBJECT, bucket, name):
        return None
    if told.get("crc32c") == _EMPTY["crc32c"]:  # some servers leave out what is zero
        told = {**_EMPTY, **told}
    return told if _has(told, asked) and generation in (None, told.get("generation")) else None


def _has(told: Mapping[str, Any], asked: Collection[str]) -> bool:
    """Whether a resource has what the service tells of each, as far as that was asked for. `ValueError`: no time."""
    if any(key in asked and not (isinstance(text := told.get(key), str) and form.fullmatch(text)) for key, form in _TEXTS.items()):
        return False
    entries = told.get("metadata") or {}
    if not isinstance(entries, dict) or not all(isinstance(text, str) for text in entries.values()):
        return False
    for key in _TIMES:
        if key in asked or key in told:
            decode_time(str(told.get(key)))
    return all(isinstance(told.get(key, ""), str) for key in _MAY_BE_TEXTS)


def _page(body: bytes) -> Mapping[str, Any] | None:
    page = _json(body)
    items, token = page.get("items", []), page.get("nextPageToken")
    is_one = page.get("kind") == LISTING and isinstance(items, list) and (token is None or (isinstance(token, str) and token != ""))
    return page if is_one else None


def _is_asked(name: object, query: Mapping[str, str]) -> bool:
    """Whether a listing that was asked for like this may have the name."""
    end = query.get("endOffset")
    if not isinstance(name, str) or not name.startswith(query.get("prefix", "")):
        return False
    return name >= query.get("startOffset", "") and (end is None or name < end)


def _scrubbed(text: str) -> str:
    return re.sub(r"(upload_id|uploadId)=[^&\s'\"<>]*", r"\1=(withheld)", text)
