"""A GCS that keeps nothing.

`python -m benchmarks.gcs_sink OWNER` says its URL, takes uploads and answers them, until stdin ends.

    POST uploadType=resumable   a session          PUT   its bytes, at once or in chunks: 308 until the last has come
    POST uploadType=multipart   read and dropped         GET   a listing: the marker that the table OWNER owns all names

It keeps only the metadata, the length and the crc32c of what it is given, because clients verify them. The emulator
would keep the bytes: gigabytes, for the many large uploads whose memory is measured here.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from dataclasses import dataclass, field
from typing import Any

import anyio
import google_crc32c
from aiohttp import web

from benchmarks.servers import serve_http
from tiered.protocol.owners import encode_marker, marker_name


@dataclass
class Dropped:
    """What is known of the bytes of one upload. `told`: what its session was begun with, such as metadata."""

    told: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    crc: int = 0

    def take(self, chunk: bytes) -> None:
        self.size += len(chunk)
        self.crc = google_crc32c.extend(self.crc, chunk)

    def resource(self) -> dict[str, Any]:
        crc32c = base64.b64encode(self.crc.to_bytes(4, "big")).decode()
        kept = {"kind": "storage#object", "name": "dropped", "generation": "1", "size": str(self.size), "crc32c": crc32c}
        return {**self.told, **kept}


class GcsDrain:
    def __init__(self, owner: str) -> None:
        self._marker = {"name": marker_name(""), "generation": "1", "metadata": encode_marker("", "", owner)[0]}
        self._sessions: dict[str, Dropped] = {}

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response({"kind": "storage#objects", "items": [self._marker]})
        if request.method == "POST" and request.query.get("uploadType") == "resumable":
            told = await request.read()
            session = f"{len(self._sessions)}"
            self._sessions[session] = Dropped(json.loads(told or b"{}"))
            return web.Response(headers={"Location": f"http://{request.host}{request.path}?uploadType=resumable&upload_id={session}"})
        upload = self._sessions.get(request.query.get("upload_id", ""), Dropped())
        async for chunk in request.content.iter_any():
            upload.take(chunk)
        if request.method == "PUT" and not self._ended(request.headers.get("Content-Range", ""), upload.size):
            return web.Response(status=308, headers={"Range": f"bytes=0-{upload.size - 1}"})
        return web.json_response(upload.resource())

    def _ended(self, content_range: str, size: int) -> bool:
        """Tells whether the upload has ended.

        With an open end (`bytes 0-*/*`) the body's end is the end; else the total must have come.
        """
        total = re.fullmatch(r"bytes [\d*-]+/(\d+|\*)", content_range)
        assert total is not None, content_range
        return content_range == "bytes 0-*/*" or total[1] == str(size)


if __name__ == "__main__":
    anyio.run(serve_http, GcsDrain(sys.argv[1]).serve)
