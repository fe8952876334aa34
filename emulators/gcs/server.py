"""`GcsEmulator`: Google Cloud Storage's JSON and XML APIs as documented, on loopback, in memory, with faults on demand.

    async with GcsEmulator() as server:      server.url         "http://127.0.0.1:PORT", for STORAGE_EMULATOR_HOST too
        server.create_bucket("blobs")        server.buckets     name -> Bucket, open to inspection
        server.faults.append(GcsFault(...))  server.calls       kinds of the calls that came, in order

    request -> WireRequest -> [fault] -> body -> [fault] -> GcsService.answer, one atomic step -> [fault] -> answer

It is an aiohttp server, so it runs on asyncio only. Its clients may be anything, in any process. *Failure*: a body that
breaks off has no effect, except that a resumable upload keeps its whole granules.

It does not implement access control, holds and retention, keys of customers, folders, notifications, or forms of HTML.
A call, a parameter or a field that it lacks is answered with 501 and its name, and never ignored.
"""

from __future__ import annotations

import re
from types import TracebackType
from typing import Any, Self

import aiohttp
import anyio
import anyio.lowlevel
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from changelog.base.runtime import Runtime, SystemRuntime
from emulators.gcs.answers import GcsError, WireResponse, XmlError
from emulators.gcs.bodies import HEAD_BYTES_MAX
from emulators.gcs.parts import PartsService
from emulators.gcs.service import GcsService
from emulators.gcs.sessions import ContentRange, Session
from emulators.gcs.store import Bucket
from emulators.gcs.wire import WireRequest
from emulators.gcs.wire_faults import FaultMode, GcsFault, take_fault

CHUNK_BYTES = 256 * 1024
CALLS_KEPT = 10_000
UNSENDABLE = re.compile(r"[\x00-\x1f\x7f]")
BROKEN_BODY = (ConnectionError, aiohttp.ClientError, web.RequestPayloadError)
"""What aiohttp raises when the connection ends before the body, however its length was given."""

ACCEPTING_TURNS = 4
"""After so many turns of the event loop, a connection that was accepted is known, so that it is closed.

If the server stops earlier, asyncio leaves its transport open.
"""

__all__ = ["FaultMode", "GcsEmulator", "GcsFault"]


class _ConnectionLostError(Exception):
    """The client is gone, or a fault drops the connection."""


class GcsEmulator:
    """The server, for `async with`. `port` 0: any free one. `runtime`: the server's clock and ids."""

    def __init__(self, port: int = 0, runtime: Runtime | None = None) -> None:
        self.faults: list[GcsFault] = []
        self.calls: list[str] = []
        self._runtime = runtime or SystemRuntime()
        self._service = GcsService(self._runtime, self._fault_of_part)
        self._closing = anyio.Event()
        self._server = web.Server(self._serve, auto_decompress=False, max_line_size=HEAD_BYTES_MAX, max_field_size=HEAD_BYTES_MAX)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=1.0)
        self._port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def buckets(self) -> dict[str, Bucket]:
        return self._service.buckets

    @property
    def sessions(self) -> dict[str, Session]:
        """The sessions by upload id. Those that ended stay here for a fortnight."""
        return self._service.uploads.sessions

    @property
    def accounts(self) -> dict[str, RSAPublicKey]:
        """The public keys of accounts whose V4 signatures are good, by email: a test adds its own."""
        return self._service.accounts

    @property
    def parts(self) -> PartsService:
        """The uploads of several parts."""
        return self._service.parts

    def merge_rewrites(self) -> None:
        """From now on, what the body of a rewrite leaves out stays as in the source, as in Google's testbench."""
        self._service.merges_rewrites = True

    def create_bucket(self, name: str, settings: dict[str, Any] | None = None) -> Bucket:
        """Creates a bucket. `settings`: as in the call's JSON, such as `lifecycle`."""
        return self._service.of_buckets.create(name, settings)

    async def apply_lifecycle(self) -> list[str]:
        """Does what the service does about once a day. Returns the names of what was deleted."""
        return self._service.apply_lifecycle()

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closing.set()
        for _ in range(ACCEPTING_TURNS):
            await anyio.lowlevel.checkpoint()
        for connection in self._server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await self._runner.cleanup()

    # --- one request

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            answer, truncated = await self._answer(request)
            return await self._send(request, answer, truncated)
        except _ConnectionLostError:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=503)

    async def _answer(self, request: web.BaseRequest) -> tuple[WireResponse, bool]:
        """Returns the answer, and whether only half of it is to be sent."""
        try:
            call = WireRequest.parse(request.method, request.raw_path, request.headers)
        except GcsError as error:
            await self._read_body(request)
            return error.answer(), False
        self._note(call)
        session = self.sessions.get(call.query.get("upload_id", ""))
        fault = take_fault(self.faults, call, session.name if session else call.name)
        mode = fault.mode if fault else None
        if mode is FaultMode.DROP_BEFORE:
            raise _ConnectionLostError
        refused, body = await self._receive(request, call)
        if fault is not None:
            if mode is FaultMode.STATUS:
                return _error_of(fault, call).answer(), False
            await self._wait(fault)
        answer = refused or self._service.answer(call, body)
        if mode is FaultMode.STALL_AFTER:
            await self._closing.wait()
        if mode in (FaultMode.DROP_AFTER, FaultMode.STALL_AFTER):
            raise _ConnectionLostError
        return answer, mode is FaultMode.TRUNCATE

    def _fault_of_part(self, call: WireRequest) -> GcsError | None:
        """The fault of one call of a batch. Only an error status can be."""
        fault = take_fault([each for each in self.faults if each.mode is FaultMode.STATUS], call, call.name)
        return None if fault is None else _error_of(fault, call)

    def _note(self, call: WireRequest) -> None:
        self.calls.append(call.kind)
        del self.calls[:-CALLS_KEPT]

    async def _wait(self, fault: GcsFault) -> None:
        """Waits before the effect, when the whole body has come. A client that gives up meanwhile changes nothing."""
        if fault.mode is FaultMode.STALL_BEFORE:
            await self._closing.wait()
            raise _ConnectionLostError
        if fault.mode is FaultMode.DELAY:
            await self._runtime.sleep(fault.seconds)

    async def _receive(self, request: web.BaseRequest, call: WireRequest) -> tuple[WireResponse | None, bytes]:
        """Returns the whole body, or a refusal. The body of a resumable upload goes to its session."""
        if not call.to_session:
            return None, await self._read_body(request)
        try:
            session, sent = self._service.uploads.arrive(call)
        except GcsError as error:
            await self._read_body(request)  # an answer while the client still sends would break its connection
            return call.refusal(error), b""
        try:
            await self._read_into(session, sent, request)
        except GcsError as error:
            return call.refusal(error), b""
        return None, b""

    async def _read_body(self, request: web.BaseRequest) -> bytes:
        try:
            return b"".join([chunk async for chunk in request.content.iter_any()])
        except BROKEN_BODY as error:
            raise _ConnectionLostError from error

    async def _read_into(self, session: Session, sent: ContentRange, request: web.BaseRequest) -> None:
        count = 0
        try:
            async for chunk in request.content.iter_any():
                if sent.first is not None:
                    session.take(sent.first + count, chunk)
                count += len(chunk)
        except BROKEN_BODY as error:
            session.break_off()
            raise _ConnectionLostError from error
        if session.open:
            session.end(sent, count)

    async def _send(self, request: web.BaseRequest, answer: WireResponse, truncated: bool) -> web.StreamResponse:
        body = b"" if answer.status == 304 else answer.body
        # What the JSON API took may be no header.
        headers = {UNSENDABLE.sub(" ", key): UNSENDABLE.sub(" ", value) for key, value in answer.headers.items()}
        if request.method == "HEAD" or (len(body) <= CHUNK_BYTES and not truncated):
            return web.Response(status=answer.status, body=body, headers=headers)
        response = web.StreamResponse(status=answer.status, headers={**headers, "Content-Length": str(len(body))})
        end = len(body) // 2 if truncated else len(body)
        try:
            await response.prepare(request)
            for start in range(0, end, CHUNK_BYTES):
                await response.write(body[start : min(start + CHUNK_BYTES, end)])
        except ConnectionError as error:  # the reader has what it wanted
            raise _ConnectionLostError from error
        if truncated and request.transport is not None:
            request.transport.close()
        return response


def _error_of(fault: GcsFault, call: WireRequest) -> GcsError:
    if fault.text is not None:
        return _BetweenError(fault.status, fault.text, headers=fault.headers)
    error = GcsError(fault.status, "A fault of this emulator.", headers=fault.headers)
    return XmlError(error) if call.of_xml else error


class _BetweenError(GcsError):
    """An answer that is not in the service's form. Any status may have one."""

    def answer(self) -> WireResponse:
        return WireResponse(self.status, str(self).encode(), {"Content-Type": "text/html", **self.headers})
