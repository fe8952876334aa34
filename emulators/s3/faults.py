"""A proxy before a server of the S3 API, which answers as a service does when it fails.

    proxy.faults.append(ServiceFault("PUT", FaultKind.AFTER, 500, "InternalError"))

The first fault that fits a request is used up by it; all other requests are passed on as they are. `seen`: the requests
that came, as method and path with query.
"""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from html import unescape
from urllib.parse import quote

import aiohttp
from aiohttp import web
from yarl import URL

_LIMIT = re.compile(r"&max-keys=[0-9]+")
_NAMES = re.compile(rb"(<(?:Key|Prefix|KeyMarker|NextKeyMarker)>)([^<]+)<")
_HOPS = ("transfer-encoding", "connection", "keep-alive")


class FaultKind(Enum):
    BEFORE = "it is not passed on, and is answered so"
    AFTER = "it is passed on, and answered so"
    CUT_BEFORE = "it is not passed on, and the connection is dropped"
    CUT_AFTER = "it is passed on, and the connection is dropped"
    CUT_WITHIN = "it is passed on, and the connection is dropped in the middle of the answer's body"


@dataclass(frozen=True, slots=True)
class ServiceFault:
    """`method`, `having`: of the request, and what is part of its address. `code` empty: an answer without S3's words.
    `lasts`: it fits every request from now on, and is not used up.
    """

    method: str
    kind: FaultKind
    status: int = 500
    code: str = ""
    having: str = ""
    lasts: bool = False

    def body(self) -> bytes:
        said = f"<Error><Code>{self.code}</Code><Message>as the test wants it</Message></Error>"
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{said}'.encode() if self.code else b"<html>no</html>"


class FaultyProxy:
    """`url`: where it listens. `without`: headers that it takes away from requests of the method `of`. `page_max`: how
    many objects the service lists at once, whatever it is asked for: only before one that verifies no signature.
    `encodes`: it encodes names in listings where it is asked to, as S3 does, and the emulators not always. `damages`:
    what becomes of a body on its way, by the path; only before one that verifies no signature. `has_checksums` False:
    nobody tells the service a checksum, and it tells none.
    """

    def __init__(self, target: str, *, without: Collection[str] = (), of: str = "") -> None:
        self._without = {each.lower() for each in without}
        self._of = of
        self.url = ""
        self.page_max: int | None = None
        self.encodes = False
        self.damages: Callable[[str, bytes], bytes] | None = None
        self.has_checksums = True
        self.faults: list[ServiceFault] = []
        self.seen: list[str] = []
        self._target = target
        self._session: aiohttp.ClientSession | None = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(f"{request.method} {request.raw_path}")
        fault = next((each for each in self.faults if each.method == request.method and each.having in request.raw_path), None)
        if fault is not None and not fault.lasts:
            self.faults.remove(fault)
        body = await request.read()
        if self.damages is not None and request.method == "PUT":
            body = self.damages(request.path, body)
        if fault is None or fault.kind in (FaultKind.AFTER, FaultKind.CUT_AFTER, FaultKind.CUT_WITHIN):
            assert self._session is not None, "it is open"
            url, sent = URL(self._target + self._limited(request.raw_path), encoded=True), io.BytesIO(body) if body else None
            async with self._session.request(
                request.method, url, headers=self._headers(request), data=sent, allow_redirects=False
            ) as passed:
                answer = await passed.read()
                headers = {key: value for key, value in passed.headers.items() if self._passes(key, _HOPS)}
                status = passed.status
        if fault is None:
            if request.method == "HEAD":
                return web.Response(status=status, headers=headers)
            headers.pop("Content-Length", None)
            if self.encodes and "encoding-type=url" in request.raw_path and b"<EncodingType>url<" not in answer:
                answer = _NAMES.sub(_encoded, answer).replace(b"<Name>", b"<EncodingType>url</EncodingType><Name>", 1)
            return web.Response(status=status, headers=headers, body=answer)
        if fault.kind is FaultKind.CUT_WITHIN:
            return await _half(request, status, headers, answer)
        if fault.kind in (FaultKind.CUT_BEFORE, FaultKind.CUT_AFTER):
            assert request.transport is not None, "it is connected"
            request.transport.abort()
            return web.Response()
        return web.Response(status=fault.status, body=fault.body(), content_type="application/xml")

    def _limited(self, path: str) -> str:
        if self.page_max is None or "list-type=2" not in path:
            return path
        return f"{_LIMIT.sub('', path)}&max-keys={self.page_max}"

    def _headers(self, request: web.Request) -> dict[str, str]:
        taken = self._without if request.method == self._of else ()
        counted = () if self.damages is None else ("content-length",)
        return {key: value for key, value in request.headers.items() if self._passes(key, (*taken, *counted))}

    def _passes(self, header: str, taken: Collection[str]) -> bool:
        name = header.lower()
        return name not in taken and (self.has_checksums or not name.startswith(("x-amz-checksum", "x-amz-sdk-checksum")))

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[FaultyProxy]:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None)
        async with aiohttp.ClientSession(auto_decompress=False) as self._session:
            await runner.setup()
            try:
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
                yield self
            finally:
                await runner.cleanup()


def _encoded(name: re.Match[bytes]) -> bytes:
    return name[1] + quote(unescape(name[2].decode())).encode() + b"<"


async def _half(request: web.Request, status: int, headers: Mapping[str, str], answer: bytes) -> web.StreamResponse:
    """Sends half of the body, and drops the connection."""
    half = web.StreamResponse(status=status, headers={**headers, "Content-Length": str(len(answer))})
    await half.prepare(request)
    await half.write(answer[: len(answer) // 2])
    assert request.transport is not None, "it is connected"
    request.transport.close()
    return half
