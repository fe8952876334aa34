"""Requests as they reach the GCS emulator. No I/O.

    "GET /storage/v1/b/B/o/N?alt=media"  --parse-->  WireRequest(kind="object.read", bucket="B", name="N", ...)

Paths are taken as they were sent. In the JSON API, an object's name is one percent-encoded segment, so `a/b` must
arrive as `a%2Fb`. Anything else has no route, as in the service. Clients of S3 send `x-amz-` where the XML API has
`x-goog-`: both are the same here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote_to_bytes

from multidict import CIMultiDict, MultiMapping

from emulators.gcs.answers import GcsError, WireResponse, XmlError
from emulators.gcs.routes import OF_JSON, check_known, json_kind, json_route, xml_kind

HEAD_END = b"\r\n\r\n"
OF_S3 = re.compile(r"x-amz-(meta-.*|copy-source.*|metadata-directive|storage-class|acl)", re.IGNORECASE)
"""Headers that mean the same with `x-goog-`."""
OF_S3_ALONE = re.compile(r"x-amz-(content-sha256|date|security-token|user-agent|checksum-.*|sdk-.*)", re.IGNORECASE)
"""Headers of S3's clients that the service does not know: who calls, and hashes besides `Content-MD5`."""


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One request without its body. `kind` is `object.get`, `upload.put`, `batch`, ...: see `emulators.gcs.routes`.

    `target`: the bucket and the name that a rewrite writes to.
    """

    kind: str
    bucket: str
    name: str
    query: Mapping[str, str]
    headers: MultiMapping[str]
    target: tuple[str, str] = ("", "")
    method: str = "GET"

    @classmethod
    def parse(cls, method: str, target: str, headers: MultiMapping[str]) -> WireRequest:
        """Reads a request. `target`: the path and query as sent, or a whole URL.

        Raises `GcsError` if there is no such route.
        """
        path, _, raw_query = re.sub(r"^https?://[^/]*", "", target).partition("?")
        query = _query(raw_query)
        if not re.fullmatch(OF_JSON, path):
            try:
                return cls._parse_xml(method, path, query, headers)
            except GcsError as error:
                raise XmlError(error) from None
        kind, segments = json_route(method, path)
        kind = json_kind(kind, query, headers.get("Content-Range", ""))
        bucket, name, *to = [*map(_decoded, segments), *[""] * 4][:4]
        if kind == "object.move":  # within its bucket
            to = [bucket, to[0]]
        given = query.get("name", "") if kind.startswith("upload") else ""
        check_known(kind, query, headers)
        return cls(kind, bucket, name or given, query, headers, (to[0], to[1]), method)

    @classmethod
    def _parse_xml(cls, method: str, path: str, query: Mapping[str, str], sent: MultiMapping[str]) -> WireRequest:
        headers = _as_of_google(sent)
        bucket, name = (_decoded(part) for part in path[1:].partition("/")[::2])
        kind = xml_kind(method, bucket, name, query, headers)
        if kind is None:
            raise GcsError.lacking(f"{method} {path} {' '.join(query)}".rstrip())
        check_known(kind, query, headers)
        if kind != "xml.copy":
            return cls(kind, bucket, name, query, headers, method=method)
        of, _, copied = _decoded(headers["x-goog-copy-source"]).removeprefix("/").partition("/")
        return cls(kind, of, copied, query, headers, (bucket, name), method)

    @property
    def of_xml(self) -> bool:
        return self.kind.startswith("xml.")

    @property
    def to_session(self) -> bool:
        """Whether the body goes to a resumable upload, or asks for its status."""
        return self.kind.removeprefix("xml.") in ("upload.put", "upload.status")

    def refusal(self, error: GcsError) -> WireResponse:
        """Returns the error as the API of this call answers it."""
        return (XmlError(error) if self.of_xml else error).answer()

    def as_asked(self, answer: WireResponse) -> WireResponse:
        """Returns the answer, with custom metadata under the names of S3 too if the request is signed as one of S3."""
        if not self.headers.get("Authorization", "").startswith("AWS"):
            return answer
        custom = {key: value for key, value in answer.headers.items() if key.startswith("x-goog-meta-")}
        return answer.with_headers({key.replace("goog", "amz", 1): value for key, value in custom.items()})


def _as_of_google(headers: MultiMapping[str]) -> CIMultiDict[str]:
    return CIMultiDict(
        (f"x-goog-{found[1]}" if (found := OF_S3.fullmatch(key)) else key, value)
        for key, value in headers.items() if not OF_S3_ALONE.fullmatch(key)
    )  # fmt: skip


def with_one_content_type(head: bytes) -> bytes:
    """Returns a request's head with only the last of its Content-Type headers.

    The client set the last one, after its library had set one.
    """
    line, *headers = head.split(b"\r\n")
    types = [header for header in headers if header[:13].lower() == b"content-type:"]
    if len(types) < 2:
        return head
    return b"\r\n".join([line, *(header for header in headers if header not in types), types[-1]])


def is_true(query: Mapping[str, str], key: str) -> bool:
    return query.get(key, "").lower() == "true"


def parse_int(query: Mapping[str, str], key: str) -> int | None:
    if key not in query:
        return None
    try:
        return int(query[key])
    except ValueError:
        raise GcsError(400, f"Invalid value for {key}: {query[key]} is no integer") from None


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
