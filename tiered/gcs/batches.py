"""Several calls of the JSON API in one request, and their answers (`multipart/mixed`, one part for each call). No I/O.

    [("DELETE", "/storage/v1/b/B/o/N?ifGenerationMatch=7")]  --encode_batch-->  the body of one POST
    the service's answer  --decode_batch-->  {0: GcsResponse(204, ...)}

The service carries the calls out one by one, in any order. Each has its own status. A part is told by its Content-ID,
so its answer is found wherever it stands. What no part of the answer tells is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tiered.gcs.http import GcsResponse

_BOUNDARY = "tiered_calls"
BATCH_HEADERS = {"Content-Type": f"multipart/mixed; boundary={_BOUNDARY}"}

_ID = re.compile(rb"^content-id:[^\r\n]*?(\d+)>?[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_STATUS = re.compile(rb"HTTP/[\d.]+ (\d{3})\b")
_EMPTY_LINE = re.compile(rb"\r?\n\r?\n")


def encode_batch(calls: Sequence[tuple[str, str]]) -> bytes:
    """Returns the body of the request. `calls`: method and path with query, where all special characters are escaped.
    """
    parts = [
        f"--{_BOUNDARY}\r\nContent-Type: application/http\r\nContent-ID: <call+{number}>\r\n\r\n{method} {path} HTTP/1.1\r\n\r\n\r\n"
        for number, (method, path) in enumerate(calls)
    ]
    return "".join([*parts, f"--{_BOUNDARY}--\r\n"]).encode()


def decode_batch(answer: GcsResponse) -> Mapping[int, GcsResponse]:
    """Returns the answers by the number of their calls, without their headers. Parts that make no sense are left out.
    """
    found = re.search(r'boundary="?([^";]+)"?', answer.headers.get("Content-Type", ""))
    if found is None:
        return {}
    answers: dict[int, GcsResponse] = {}
    for part in (b"\r\n" + answer.body).split(b"\n--" + found[1].strip().encode())[1:]:
        head, *rest = _EMPTY_LINE.split(part, 2)
        number, status = _ID.search(head), _STATUS.match(rest[0].lstrip()) if rest else None
        if number is not None and status is not None:
            answers[int(number[1])] = GcsResponse(int(status[1]), {}, rest[1].rstrip(b"\r\n") if len(rest) > 1 else b"")
    return answers
