"""Bodies of the GCS emulator's JSON API: objects, partial answers, uploads and batches of several parts. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from email import message_from_bytes, message_from_string
from email.message import Message
from typing import Any

from multidict import CIMultiDict

from emulators.gcs.answers import GcsError, WireResponse

BATCH_CALLS_MAX = 100
HEAD_BYTES_MAX = 1 << 16


def json_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body or b"{}")
        json.dumps(value, ensure_ascii=False).encode()  # raises on half of a surrogate pair
    except ValueError:
        raise GcsError(400, "Parse Error", "parseError") from None
    if not isinstance(value, dict):
        raise GcsError(400, "Parse Error: the body must be a JSON object", "parseError")
    return value


def object_in(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Returns the object under a key, or an empty one if there is none. Raises 400 if what is there is no object."""
    inner = value.get(key)
    if inner is not None and not isinstance(inner, dict):
        raise GcsError(400, f"Invalid value for {key}: it must be an object")
    return inner or {}


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
    # A part may have no headers, as one of gcloud-aio has none.
    head, _, media = (newline + body[second + len(mark) + 2 * len(newline) : end]).partition(2 * newline)
    return json_object(resource), message_from_bytes(head.lstrip(b"\r\n")).get("Content-Type"), media


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
