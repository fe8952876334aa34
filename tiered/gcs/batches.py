"""Several calls of the JSON API in one request, and their answers (`multipart/mixed`, one part for each call). No I/O.

    batch = Batch([("DELETE", "/storage/v1/b/B/o/N?ifGenerationMatch=7")], id)   batch.body: of one POST
    batch.answers([nothing])                                                      the shape of its answer
    the service's answer, read by it                                              {0: GcsResponse(204, ...)}

The service carries the calls out one by one, in any order. Each has its own status. A part is told by its Content-ID,
so its answer is found wherever it stands, and is no part of the answer to another batch. What no part of the answer
tells, or more than one, is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from tiered.gcs.answers import GcsResponse, Shape

_BOUNDARY = "tiered_calls"
BATCH_HEADERS = {"Content-Type": f"multipart/mixed; boundary={_BOUNDARY}"}

_STATUS = re.compile(rb"HTTP/[\d.]+ (\d{3})\b")
_EMPTY_LINE = re.compile(rb"\r?\n\r?\n")


class Batch:
    """A request. `calls`: method and path with query, where all special characters are escaped. `id`: of no other one.
    """

    def __init__(self, calls: Sequence[tuple[str, str]], id: str) -> None:
        self._id = id
        parts = [
            f"--{_BOUNDARY}\r\nContent-Type: application/http\r\nContent-ID: <{self._id}+{number}>\r\n\r\n"
            f"{method} {path} HTTP/1.1\r\n\r\n\r\n"
            for number, (method, path) in enumerate(calls)
        ]
        self.body = "".join([*parts, f"--{_BOUNDARY}--\r\n"]).encode()

    def answers(self, shapes: Sequence[Shape]) -> Shape:
        """Reads the answers by the numbers of their calls, without their headers. `shapes`: of the calls.

        Parts that make no sense are left out. An answer that is cut off is none.
        """
        of_part = re.compile(rf"^content-id:[^\r\n]*?{self._id}\+(\d{{1,4}})>?[ \t]*\r?$".encode(), re.IGNORECASE | re.MULTILINE)

        def read(answer: GcsResponse) -> Mapping[int, GcsResponse] | None:
            found = re.search(r'boundary="?([^";]+)"?', answer.headers.get("Content-Type", ""))
            if found is None:
                return None
            delimiter = b"\n--" + found[1].strip().encode()
            *parts, end = (b"\r\n" + answer.body).split(delimiter)[1:] or [b""]
            if not end.startswith(b"--"):
                return None
            told: list[tuple[int, GcsResponse]] = []
            for part in parts:
                head, *rest = _EMPTY_LINE.split(part, 2)
                number, status = of_part.search(head), _STATUS.match(rest[0].lstrip()) if rest else None
                if number is not None and status is not None and int(number[1]) < len(shapes):
                    body = rest[1].rstrip(b"\r\n") if len(rest) > 1 else b""
                    told.append((int(number[1]), GcsResponse.of(int(status[1]), {}, body, shapes[int(number[1])])))
            times = Counter(number for number, _ in told)
            return {number: each for number, each in told if times[number] == 1}

        return read
