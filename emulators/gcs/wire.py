"""What goes over the wire of the GCS emulator: calls, answers, errors, partial answers, bodies of several parts.

No I/O.

    "GET /storage/v1/b/B/o/N?alt=media"  --Call.parse-->  Call(kind="object.read", bucket="B", name="N", ...)
    GcsError(412, "conditionNotMet")     --answer()---->  Answer(412, headers, JSON body)

Paths are taken as they were sent. An object's name is one percent-encoded segment, so `a/b` must arrive as `a%2Fb`.
Anything else has no route, as in the service.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email import message_from_bytes, message_from_string
from email.message import Message
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from multidict import CIMultiDict, MultiMapping

BATCH_CALLS_MAX = 100
HEAD_END, HEAD_BYTES_MAX = b"\r\n\r\n", 1 << 16

OBJECT, OBJECTS = r"(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)", r"/storage/v1/b/([^/]+)/o"
REWRITE = r"/storage/v1/b/([^/]+)/o/([^/]+)/rewriteTo/b/([^/]+)/o/([^/]+)"
RESTORE = r"/storage/v1/b/([^/]+)/o/([^/]+)/restore"
BUCKET, BUCKETS = r"/storage/v1/b/([^/]+)", r"/storage/v1/b"
UPLOADS = r"(?:/resumable)?/upload/storage/v1/b/([^/]+)/o"

ROUTES = [
    (UPLOADS, {"POST": "upload", "PUT": "upload.put", "DELETE": "upload.cancel"}),
    (OBJECT, {"GET": "object.get", "DELETE": "object.delete", "PATCH": "object.patch"}),
    (REWRITE, {"POST": "object.rewrite"}),
    (RESTORE, {"POST": "object.restore"}),
    (OBJECTS, {"GET": "object.list"}),
    (BUCKET, {"GET": "bucket.get", "PATCH": "bucket.patch", "DELETE": "bucket.delete"}),
    (BUCKETS, {"GET": "bucket.list", "POST": "bucket.create"}),
    (r"/batch/storage/v1", {"POST": "batch"}),
]
KINDS = {"media": "upload.media", "multipart": "upload.multipart", "resumable": "upload.start"}

REASONS = {400: "invalid", 404: "notFound", 405: "methodNotAllowed", 409: "conflict", 410: "gone", 412: "conditionNotMet", 416: "range"}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(cls, value: object, status: int = 200) -> Answer:
        return cls(status, json.dumps(value, ensure_ascii=False).encode(), {"Content-Type": "application/json; charset=UTF-8"})


class GcsError(Exception):
    """An answer that refuses, in the service's form."""

    def __init__(self, status: int, message: str, reason: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason or REASONS.get(status, "backendError")
        self.headers = headers or {}

    def answer(self) -> Answer:
        errors = [{"message": str(self), "domain": "global", "reason": self.reason}]
        plain = Answer.of_json({"error": {"code": self.status, "message": str(self), "errors": errors}}, self.status)
        return Answer(plain.status, plain.body, {**plain.headers, **self.headers})


@dataclass(frozen=True, slots=True)
class Call:
    """One request without its body. `kind` is `object.get`, `upload.put`, `batch`, ...: see `ROUTES`.

    `target`: the bucket and the name that a rewrite writes to.
    """

    kind: str
    bucket: str
    name: str
    query: Mapping[str, str]
    headers: MultiMapping[str]
    target: tuple[str, str] = ("", "")

    @classmethod
    def parse(cls, method: str, target: str, headers: MultiMapping[str]) -> Call:
        """Reads a request. `target`: the path and query as sent, or a whole URL.

        Raises `GcsError` if there is no such route.
        """
        path, _, raw_query = re.sub(r"^https?://[^/]*", "", target).partition("?")
        query = _query(raw_query)
        for pattern, methods in ROUTES:
            if found := re.fullmatch(pattern, path):
                if method not in methods:
                    raise GcsError(405, f"{method} is not allowed on {path}")
                bucket, name, *rewritten = [*map(_decoded, found.groups()), *[""] * 4][:4]
                kind = _kind(methods[method], query, headers)
                given = query.get("name", "") if kind.startswith("upload") else ""
                return cls(kind, bucket, name or given, query, headers, (rewritten[0], rewritten[1]))
        raise GcsError(404, f"Not Found: {path}")


def with_one_content_type(head: bytes) -> bytes:
    """Returns a request's head with only the last of its Content-Type headers.

    The client set the last one, after its library had set one.
    """
    line, *headers = head.split(b"\r\n")
    types = [header for header in headers if header[:13].lower() == b"content-type:"]
    if len(types) < 2:
        return head
    return b"\r\n".join([line, *(header for header in headers if header not in types), types[-1]])


def _kind(kind: str, query: Mapping[str, str], headers: MultiMapping[str]) -> str:
    if kind == "upload":
        if query.get("uploadType") not in KINDS:
            raise GcsError(400, f"uploadType must be one of {', '.join(KINDS)}")
        return KINDS[query["uploadType"]]
    if kind == "upload.put" and headers.get("Content-Range", "").startswith("bytes */"):
        return "upload.status"
    return "object.read" if kind == "object.get" and query.get("alt") == "media" else kind


def _query(raw: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(raw, keep_blank_values=True, errors="strict"))
    except ValueError:
        raise GcsError(400, f"The query {raw} is not UTF-8") from None


def _decoded(segment: str) -> str:
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise GcsError(400, f"{segment} is not UTF-8") from None


def json_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body or b"{}")
        json.dumps(value, ensure_ascii=False).encode()  # raises on half of a surrogate pair
    except ValueError:
        raise GcsError(400, "Parse Error", "parseError") from None
    if not isinstance(value, dict):
        raise GcsError(400, "Parse Error: the body must be a JSON object", "parseError")
    return value


# --- partial answers -----------------------------------------------------------------------------

Fields = dict[str, "Fields"]
"""Which keys to keep, and which keys of each. An empty tree keeps all."""


def parse_fields(text: str) -> Fields:
    """Parses `items(name,metadata/a),nextPageToken` into a tree."""
    fields, rest = _fields(text)
    if rest:
        raise GcsError(400, f"Invalid field selection {text}", "invalidParameter")
    return fields


def _fields(text: str) -> tuple[Fields, str]:
    """Parses the comma-separated list at the start of `text`. Returns it and what follows it."""
    fields: Fields = {}
    while True:
        name, text = _field(text)
        below: Fields = fields.setdefault(name, {})
        while text.startswith("/"):
            name, text = _field(text[1:])
            below = below.setdefault(name, {})
        if text.startswith("("):
            inner, text = _fields(text[1:])
            below.update(inner)
            if not text.startswith(")"):
                raise GcsError(400, "Invalid field selection: a parenthesis is open", "invalidParameter")
            text = text[1:]
        if not text.startswith(","):
            return fields, text
        text = text[1:]


def _field(text: str) -> tuple[str, str]:
    found = re.match(r"[^,/()]+", text)
    if not found:
        raise GcsError(400, f"Invalid field selection at {text!r}", "invalidParameter")
    return found[0], text[found.end() :]


def select(value: Any, fields: Fields) -> Any:
    if not fields or "*" in fields:
        return value
    if isinstance(value, list):
        return [select(each, fields) for each in value]
    return {key: select(value[key], below) for key, below in fields.items() if key in value} if isinstance(value, dict) else value


# --- bodies of several parts ---------------------------------------------------------------------


def multipart_upload(content_type: str, body: bytes) -> tuple[dict[str, Any], str | None, bytes]:
    """Returns the metadata, the content type and the bytes of a multipart/related upload.

    Lines may end with a bare line feed, too, as those of gcsfs do. How the first line ends says how the others do.
    """
    boundary = message_from_string(f"Content-Type: {content_type}\n\n").get_boundary()
    if not boundary:
        raise GcsError(400, "Missing multipart boundary")
    mark = b"--" + boundary.encode()
    first = body[: HEAD_BYTES_MAX].lstrip(b"\r\n")
    newline = b"\n" if first.startswith(mark + b"\n") else b"\r\n"
    end = body.rfind(newline + mark + b"--")
    second = body.find(newline + mark + newline)
    if not first.startswith(mark) or second < 0 or end <= second:
        raise GcsError(400, "Malformed multipart body: two parts and a closing boundary are expected")
    _, _, resource = body[:second].partition(2 * newline)
    head, _, media = body[second + len(mark) + 2 * len(newline) : end].partition(2 * newline)
    return json_object(resource), message_from_bytes(head).get("Content-Type"), media


def batch_calls(content_type: str, body: bytes) -> Iterator[tuple[str | None, str, str, CIMultiDict[str], bytes]]:
    """Yields (content id, method, target, headers, body) of each call of a batch."""
    parts = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body).get_payload()
    if not isinstance(parts, list):
        raise GcsError(400, "Failed to parse batch request: no parts")
    if len(parts) > BATCH_CALLS_MAX:
        raise GcsError(400, f"The batch request has {len(parts)} calls; at most {BATCH_CALLS_MAX} are allowed")
    for part in parts:
        assert isinstance(part, Message)
        line, _, rest = str(part.get_payload()).replace("\r\n", "\n").lstrip("\n").partition("\n")
        method, _, target = line.removesuffix(" HTTP/1.1").partition(" ")
        inner = message_from_string(rest)
        yield part.get("Content-ID"), method, target, CIMultiDict(inner.items()), str(inner.get_payload()).encode(errors="surrogateescape")


def batch_answer(answers: list[tuple[str | None, Answer]]) -> Answer:
    boundary = b"batch_of_answers"
    parts = []
    for content_id, answer in answers:
        outer = [b"Content-Type: application/http"]
        if content_id:
            outer.append(b"Content-ID: " + content_id.replace("<", "<response-", 1).encode())
        inner = [f"HTTP/1.1 {answer.status} Status".encode()]
        inner += [f"{key}: {value}".encode() for key, value in {**answer.headers, "Content-Length": len(answer.body)}.items()]
        head = b"\r\n".join([b"--" + boundary, *outer, b"", *inner, b"", b""])
        parts.append(head + answer.body + b"\r\n")
    return Answer(200, b"".join(parts) + b"--" + boundary + b"--\r\n", {"Content-Type": f"multipart/mixed; boundary={boundary.decode()}"})
