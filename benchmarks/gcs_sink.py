"""A GCS that keeps nothing.

`python -m benchmarks.gcs_sink` says its URL, takes uploads and answers them, until stdin ends.

    POST uploadType=resumable   a session          PUT   its bytes, at once or in chunks: 308 until the last has come
    POST uploadType=multipart   read and dropped

It keeps only the length and the crc32c of what it is given, because clients verify them. The emulator would keep the
bytes: gigabytes, for the many large uploads whose memory is measured here.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass

import anyio
import google_crc32c
from aiohttp import web

from benchmarks.servers import serve_http


@dataclass
class Dropped:
    """What is known of the bytes of one upload."""

    size: int = 0
    crc: int = 0

    def take(self, chunk: bytes) -> None:
        self.size += len(chunk)
        self.crc = google_crc32c.extend(self.crc, chunk)

    def resource(self) -> dict[str, str]:
        crc32c = base64.b64encode(self.crc.to_bytes(4, "big")).decode()
        return {"kind": "storage#object", "name": "dropped", "generation": "1", "size": str(self.size), "crc32c": crc32c}


class GcsDrain:
    def __init__(self) -> None:
        self._sessions: dict[str, Dropped] = {}

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "POST" and request.query.get("uploadType") == "resumable":
            await request.read()
            session = f"{len(self._sessions)}"
            self._sessions[session] = Dropped()
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
    anyio.run(serve_http, GcsDrain().serve)
