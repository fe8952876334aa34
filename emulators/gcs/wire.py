"""Requests as they reach the GCS emulator. No I/O.

    "GET /storage/v1/b/B/o/N?alt=media"  --parse-->  WireRequest(kind="object.read", bucket="B", name="N", ...)

Paths are taken as they were sent. In the JSON API, an object's name is one percent-encoded segment, so `a/b` must
arrive as `a%2Fb`. Anything else has no route, as in the service.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote_to_bytes

from multidict import MultiMapping

from emulators.gcs.answers import GcsError, WireResponse, XmlError
from emulators.gcs.routes import OF_JSON, check_known, json_kind, json_route, xml_kind


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
    def _parse_xml(cls, method: str, path: str, query: Mapping[str, str], headers: MultiMapping[str]) -> WireRequest:
        bucket, name = (_decoded(part) for part in path[1:].partition("/")[::2])
        kind = xml_kind(method, bucket, name, query)
        if kind is None:
            raise GcsError.lacking(f"{method} {path} {' '.join(query)}".rstrip())
        check_known(kind, query, headers)
        return cls(kind, bucket, name, query, headers, method=method)

    @property
    def of_xml(self) -> bool:
        return self.kind.startswith("xml.")

    @property
    def to_session(self) -> bool:
        """Whether the body goes to a resumable upload, or asks for its status."""
        return self.kind in ("upload.put", "upload.status")

    def refusal(self, error: GcsError) -> WireResponse:
        """Returns the error as the API of this call answers it."""
        return (XmlError(error) if self.of_xml else error).answer()


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
