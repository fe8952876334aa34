"""What goes over the wire of the GCS emulator: calls, answers, errors, partial answers, bodies of several parts.

No I/O.

    "GET /storage/v1/b/B/o/N?alt=media"  --parse-->     WireRequest(kind="object.read", bucket="B", name="N", ...)
    GcsError(412, "conditionNotMet")     --answer()-->  WireResponse(412, headers, JSON body)

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
from xml.sax.saxutils import escape

from multidict import CIMultiDict, MultiMapping

XML_CODES = {
    400: "InvalidArgument", 403: "AccessDenied", 404: "NoSuchKey", 412: "PreconditionFailed", 416: "InvalidRange", 429: "SlowDown",
    500: "InternalError", 501: "NotImplemented", 503: "ServiceUnavailable",
}  # fmt: skip
XML_OWN_CODES = {"NoSuchUpload", "InvalidArgument", "InvalidPart", "InvalidPartOrder", "EntityTooSmall", "BadDigest", "MalformedXML"}
"""Codes that only the XML API has, where one status has several."""
BATCH_CALLS_MAX = 100
HEAD_END, HEAD_BYTES_MAX = b"\r\n\r\n", 1 << 16

OBJECT, OBJECTS = r"(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)", r"/storage/v1/b/([^/]+)/o"
TO = r"/storage/v1/b/([^/]+)/o/([^/]+)/{}To/b/([^/]+)/o/([^/]+)"
MOVE = r"/storage/v1/b/([^/]+)/o/([^/]+)/moveTo/o/([^/]+)"
RESTORE = r"/storage/v1/b/([^/]+)/o/([^/]+)/restore"
BUCKET, BUCKETS = r"/storage/v1/b/([^/]+)", r"/storage/v1/b"
UPLOADS = r"(?:/resumable)?/upload/storage/v1/b/([^/]+)/o"

ROUTES = [
    (UPLOADS, {"POST": "upload", "PUT": "upload.put", "DELETE": "upload.cancel"}),
    (OBJECT, {"GET": "object.get", "DELETE": "object.delete", "PATCH": "object.patch", "PUT": "object.update"}),
    (TO.format("rewrite"), {"POST": "object.rewrite"}),
    (TO.format("copy"), {"POST": "object.copy"}),
    (MOVE, {"POST": "object.move"}),
    (RESTORE, {"POST": "object.restore"}),
    (OBJECTS, {"GET": "object.list"}),
    (BUCKET, {"GET": "bucket.get", "PATCH": "bucket.patch", "DELETE": "bucket.delete", "PUT": "bucket.update"}),
    (BUCKETS, {"GET": "bucket.list", "POST": "bucket.create"}),
    (r"/batch/storage/v1", {"POST": "batch"}),
]
LACKING = (
    r"/storage/v1/b/[^/]+/o/[^/]+/(acl|iam|compose)(/.*)?|/storage/v1/projects/.*|/storage/v1/b/[^/]+/"
    r"(acl|anywhereCaches|defaultObjectAcl|folders|iam|lockRetentionPolicy|managedFolders|notificationConfigs|operations|relocate|restore)"
    r"(/.*)?"
)
"""Paths of the service that this emulator lacks."""
OF_JSON = r"/(storage|upload|resumable|download|batch)(/.*)?"
"""Paths of the JSON API. All others are of the XML API, whose paths begin with a bucket: `emulators.gcs.xml`."""

MATCHES = frozenset(f"if{fact}{match}" for fact in ("Generation", "Metageneration") for match in ("Match", "NotMatch"))
OF_SOURCE = frozenset({"sourceGeneration", *(f"ifSource{match[2:]}" for match in MATCHES)})
SIGNED = frozenset({
    *(f"X-Goog-{name}" for name in ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")),
    "response-content-type", "response-content-disposition",
})  # fmt: skip
PARAMETERS = {
    "upload": {*MATCHES, "contentEncoding", "name", "uploadType", "upload_id"}, "object": {*MATCHES, "generation"},
    "object.get": {*MATCHES, "generation", "softDeleted"},
    "object.rewrite": {*MATCHES, *OF_SOURCE, "rewriteToken"}, "object.copy": {*MATCHES, *OF_SOURCE}, "object.move": {*MATCHES, *OF_SOURCE},
    "object.list": {"prefix", "delimiter", "startOffset", "endOffset", "maxResults", "pageToken", "softDeleted", "versions",
                    "includeTrailingDelimiter"},
    # Nobody is refused here, whatever a new bucket says of access. gcsfs always says something.
    "bucket": set(), "bucket.create": {"predefinedAcl", "predefinedDefaultObjectAcl"}, "bucket.list": {"prefix"}, "batch": set(),
    "xml": set(), "xml.get": {"generation", *SIGNED}, "xml.head": {"generation", *SIGNED}, "xml.delete": {"generation"},
    "xml.parts.start": {"uploads"}, "xml.parts.put": {"partNumber", "uploadId"}, "xml.parts.complete": {"uploadId"},
    "xml.parts.cancel": {"uploadId"}, "xml.parts.list": {"uploadId", "max-parts", "part-number-marker"},
    "xml.uploads": {"uploads", "prefix", "key-marker", "upload-id-marker", "max-uploads"},
    "xml.list": {"list-type", "prefix", "delimiter", "start-after", "continuation-token", "max-keys"},
}  # fmt: skip
"""What each kind of call, or its first word, knows. Another parameter would change what the call means."""
HEADERS_LACKING = (
    "x-goog-encryption-", "x-goog-copy-source-", "x-goog-acl", "x-goog-metadata-directive",
    "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range",
)  # fmt: skip
"""How headers begin that ask for what this emulator lacks."""
MEANINGLESS = {"fields", "prettyPrint", "quotaUser", "userIp", "userProject", "key", "projection", "project", "alt"}
"""Parameters of every call that change nothing here: who pays, how the answer looks."""

UNASKED = ("", "false", "False")
"""Values of a parameter that ask for nothing else than its absence does."""

KINDS = {"media": "upload.media", "multipart": "upload.multipart", "resumable": "upload.start"}

REASONS = {400: "invalid", 404: "notFound", 405: "methodNotAllowed", 409: "conflict", 410: "gone", 412: "conditionNotMet", 416: "range"}


@dataclass(frozen=True, slots=True)
class WireResponse:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(cls, value: object, status: int = 200) -> WireResponse:
        return cls(status, json.dumps(value, ensure_ascii=False).encode(), {"Content-Type": "application/json; charset=UTF-8"})


class GcsError(Exception):
    """An answer that refuses, in the service's form."""

    def __init__(self, status: int, message: str, reason: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason or REASONS.get(status, "backendError")
        self.headers = headers or {}

    @classmethod
    def lacking(cls, what: str) -> GcsError:
        """The service has this. To ignore it would be a wrong answer."""
        return cls(501, f"This emulator does not implement {what}", "notImplemented")

    def answer(self) -> WireResponse:
        errors = [{"message": str(self), "domain": "global", "reason": self.reason}]
        plain = WireResponse.of_json({"error": {"code": self.status, "message": str(self), "errors": errors}}, self.status)
        return WireResponse(plain.status, plain.body, {**plain.headers, **self.headers})


@dataclass(frozen=True, slots=True)
class WireRequest:
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
    def parse(cls, method: str, target: str, headers: MultiMapping[str]) -> WireRequest:
        """Reads a request. `target`: the path and query as sent, or a whole URL.

        Raises `GcsError` if there is no such route.
        """
        path, _, raw_query = re.sub(r"^https?://[^/]*", "", target).partition("?")
        query = _query(raw_query)
        if not re.fullmatch(OF_JSON, path):
            return cls._parse_xml(method, path, query, headers)
        for pattern, methods in ROUTES:
            if found := re.fullmatch(pattern, path):
                if method not in methods:
                    raise GcsError(405, f"{method} is not allowed on {path}")
                bucket, name, *rewritten = [*map(_decoded, found.groups()), *[""] * 4][:4]
                kind = _kind(methods[method], query, headers)
                if kind == "object.move":  # within its bucket
                    rewritten = [bucket, rewritten[0]]
                given = query.get("name", "") if kind.startswith("upload") else ""
                return cls(kind, bucket, name or given, query, headers, (rewritten[0], rewritten[1]))._known()
        raise GcsError.lacking(path) if re.fullmatch(LACKING, path) else GcsError(404, f"Not Found: {path}")

    @classmethod
    def _parse_xml(cls, method: str, path: str, query: Mapping[str, str], headers: MultiMapping[str]) -> WireRequest:
        bucket, _, name = path[1:].partition("/")
        source = _decoded(headers.get("x-goog-copy-source", "")).removeprefix("/")
        kinds = {"GET": "get", "HEAD": "head", "PUT": "copy" if source else "put", "DELETE": "delete"} if name else {"GET": "list"}
        if "uploads" in query:
            kinds = {"POST": "parts.start"} if name else {"GET": "uploads"}
        elif name and "uploadId" in query:
            kinds = {"PUT": "parts.put", "GET": "parts.list", "POST": "parts.complete", "DELETE": "parts.cancel"}
        try:
            if not bucket or method not in kinds:
                raise GcsError.lacking(f"{method} {path} {' '.join(query)}".rstrip())
            where = (_decoded(bucket), _decoded(name))
            at, _, copied = source.partition("/")
            of, to = ((at, copied), where) if source else (where, ("", ""))
            return cls(f"xml.{kinds[method]}", *of, query, headers, to)._known()
        except GcsError as error:
            raise XmlError(error) from None

    def _known(self) -> WireRequest:
        """Raises 501 if a parameter or a header says something that no call of this kind knows here."""
        if self.kind == "bucket.update":
            raise GcsError.lacking(self.kind)
        known = PARAMETERS.get(self.kind) or PARAMETERS.get(self.kind.partition(".")[0], set())
        for parameter, value in self.query.items():
            says = self.kind.startswith("xml.") or value not in UNASKED
            if says and parameter not in known and parameter not in MEANINGLESS:
                raise GcsError.lacking(f"the parameter {parameter} of {self.kind}")
        for header in self.headers:
            if header.lower().startswith(HEADERS_LACKING):
                raise GcsError.lacking(f"the header {header}")
        return self


class XmlError(GcsError):
    """The same in the form of the XML API."""

    def __init__(self, error: GcsError) -> None:
        code = "NoSuchBucket" if "bucket does not exist" in str(error) else XML_CODES.get(error.status, error.reason)
        super().__init__(error.status, str(error), error.reason if error.reason in XML_OWN_CODES else code, error.headers)

    def answer(self) -> WireResponse:
        told = f"<Code>{self.reason}</Code><Message>{escape(str(self))}</Message><Details>{escape(str(self))}</Details>"
        body = f"<?xml version='1.0' encoding='UTF-8'?><Error>{told}</Error>"
        return WireResponse(self.status, body.encode(), {"Content-Type": "application/xml; charset=UTF-8", **self.headers})


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
    if kind == "upload" and "upload_id" in query:  # gcsfs sends to its session by POST
        kind = "upload.put"
    if kind == "upload":
        if query.get("uploadType") not in KINDS:
            raise GcsError(400, f"uploadType must be one of {', '.join(KINDS)}")
        return KINDS[query["uploadType"]]
    if kind == "upload.put" and headers.get("Content-Range", "").startswith("bytes */"):
        return "upload.status"
    return "object.read" if kind == "object.get" and query.get("alt") == "media" else kind


def is_true(query: Mapping[str, str], key: str) -> bool:
    return query.get(key, "").lower() == "true"


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


def batch_answer(answers: list[tuple[str | None, WireResponse]]) -> WireResponse:
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
    return WireResponse(
        200, b"".join(parts) + b"--" + boundary + b"--\r\n", {"Content-Type": f"multipart/mixed; boundary={boundary.decode()}"}
    )
