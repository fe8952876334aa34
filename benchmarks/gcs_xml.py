"""A GCS that speaks as much of the XML API as obstore uses. Our emulator speaks the JSON API, and obstore does not.

`python -m benchmarks.gcs_xml` says its URL, keeps objects in memory, and serves until stdin ends.
"""

from __future__ import annotations

from urllib.parse import unquote
from xml.sax.saxutils import escape

import anyio
from aiohttp import web

from benchmarks.servers import serve_http

PAGE_NAMES = 1000
WRITTEN = "Sun, 22 Nov 2026 00:00:00 GMT"


class XmlObjects:
    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        _, _, name = unquote(request.rel_url.raw_path.removeprefix("/")).partition("/")
        headers = {"ETag": '"1"', "Last-Modified": WRITTEN, "x-goog-generation": "1"}
        match request.method:
            case "PUT":
                self._objects[name] = await request.content.read()  # request.read() takes 1 MiB at most
                return web.Response(headers=headers)
            case "DELETE":
                return web.Response(status=204 if self._objects.pop(name, None) is not None else 404)
            case "GET" if name in self._objects:
                return web.Response(body=self._objects[name], headers=headers)
            case "GET" if not name:
                return self._page(request.query.get("prefix", ""), request.query.get("continuation-token", ""))
        return web.Response(status=404)

    def _page(self, prefix: str, after: str) -> web.Response:
        names = sorted(name for name in self._objects if name.startswith(prefix) and name > after)
        contents = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2026-11-22T00:00:00.000Z</LastModified><ETag>\"1\"</ETag>"
            f"<Size>{len(self._objects[name])}</Size></Contents>" for name in names[:PAGE_NAMES]
        )  # fmt: skip
        following = f"<NextContinuationToken>{escape(names[PAGE_NAMES - 1])}</NextContinuationToken>" if len(names) > PAGE_NAMES else ""
        return web.Response(text=f"<ListBucketResult>{contents}{following}</ListBucketResult>", content_type="application/xml")


if __name__ == "__main__":
    anyio.run(serve_http, XmlObjects().serve)
