"""`LinkApp`: answers signed links. What a link allows is in the link (`tiered/links.py`), and nothing else is served.

    link            not ours, expired, for another method     403
    method          that no link allows, or this store        405
    OPTIONS         where `links.origins` are set             204
    object          not there                                 404
                    there, of another revision                410
    condition                                                 304, 412
    range           one, within the object                    206
                    one, beyond its end                       416
                    several, or none                          200
    compressed      the client takes zstd                     what is stored, as above
                    it does not                               200, decompressed, without a length and without ranges
    part            taken                                     200, with its ETag
                    of an upload that has ended               410
                    too large                                 413
                    a piece of one (Content-Range)            400
                    another length or digest than declared    400
                    encoded (Content-Encoding)                415
                    refused by the policy of its usecase      403
                    it came too slowly                        408
                    it came anew meanwhile                    409
    bodies          as many as may be at once                 503, with Retry-After
    store           away or full                              503, with Retry-After
                    the rate of the usecase is used up        429, with Retry-After
                    damaged, lost, refused by a service       500, and a line in the log

A GET opens the object, and compares the revision of what was opened: between a look and an open it could change. HEAD
answers what GET without a range answers. Bodies are sent and read by `body.py`, which bounds all of them together.
Nothing of a part is read before its upload was asked whether it is open, and there is a place for all of it.

A browser shows what strangers have stored. So whatever may be a document runs no script, loads nothing, and does not
tell its address, which is the link (`_DOCUMENT`). Scripts of other sites use links only as `links.origins` says.

*Failure* after the first byte: the error leaves the application, and the server ends the connection early. *Crash*: so
does the system.

A method is a row of `_METHODS`: the method that the link must allow, and what answers it. A link to write takes one
part of an open upload (`storage.sign_put`). What came is no object before somebody completes the upload. The resource
of such a link is the part: its conditions are judged by what is there when the part begins to come.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import anyio

from changelog.base.errors import ConfigurationError, InvalidRequestError, TieredError, UnavailableError
from changelog.base.events import events
from tiered.asgi.body import (
    Bodies,
    BodyEndedError,
    ClientGoneError,
    FullError,
    OpenBody,
    Receive,
    Send,
    read_body,
    send_body,
    send_within,
)
from tiered.asgi.http_rules import (
    accepts_encoding,
    declared_digests,
    etag_of,
    http_date,
    length_of,
    precondition,
    range_is_for,
    wanted_range,
)
from tiered.buckets.blob_entries import HEADERS, headers_of
from tiered.errors import AtCapacityError, RangeNotSatisfiableError, RateLimitedError, ServiceAwayError, UploadEndedError
from tiered.links import Links, SignedLink, can_be_header, content_disposition, content_type_of
from tiered.open import open_storage
from tiered.payload.checksums import DeclaredChecksums
from tiered.payload.chunks import Chunk
from tiered.payload.zstd import COMPRESSION
from tiered.services.backends import ByteRange
from tiered.services.capabilities import PART_BYTES_MAX, Part
from tiered.settings import ENV_CONFIG, Settings
from tiered.storage import TieredStorage
from tiered.stored import ObjectHead, StoredObject
from tiered.text import check_flags

Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

SEND_IDLE_S = 60.0
BODIES_MAX = 128
BYTES_MAX = 256 << 20
STREAM_BYTES, SMALL_BYTES = 1 << 20, 64 << 10
"""About so many bytes are in memory of a large object that is being sent, and of a small one besides its own."""

CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
PREFLIGHT_S = 600
"""For so long a browser remembers what it may ask for, in seconds."""

_ASKED_HEADERS = (
    "Content-Type, Content-MD5, Content-Digest, Repr-Digest, Range, If-Range, If-Match, If-None-Match, If-Modified-Since,"
    " If-Unmodified-Since"
)
_TOLD_HEADERS = ", ".join(("ETag", "Accept-Ranges", "Allow", "Content-Disposition", *HEADERS, "Content-Range", "Retry-After"))
_DOCUMENT = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox",
    "Referrer-Policy": "no-referrer",
}
_NO_DOCUMENT = re.compile(r"(image/(?!svg)|audio/|video/|application/pdf\b)", re.IGNORECASE)
"""No scripts run in these. A browser that confines them as a document shows none of them."""

_CLOSE = {"Connection": "close"}
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


@dataclass(frozen=True, slots=True)
class LinkAnswer:
    """`body`: what is sent; of an open object, the bytes for which it was opened."""

    status: int
    headers: Mapping[str, str]
    body: bytes | OpenBody = b""


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """A request whose link is good. `headers`: with their names in lower case; several of one name are one."""

    storage: TieredStorage
    links: Links
    link: SignedLink
    headers: Mapping[str, str]
    receive: Receive

    @property
    def takes_zstd(self) -> bool:
        return accepts_encoding(self.headers.get("accept-encoding"), "zstd")

    def etag(self, *, decompressed: bool) -> str:
        """Bytes that are decompressed are another representation, whose strong ETag is another one (RFC 9110, 8.8)."""
        return etag_of(self.link.revision, "decompressed" if decompressed else None)

    @property
    def has_conditions(self) -> bool:
        return any(name in self.headers for name in CONDITIONS)


class LinkApp:
    """An ASGI 3 application.

    `storage`: returns the open store, once for each request, so that the application can be made before the store is
    opened. Its settings have `links`. `cache_control`: of answers with an object. `send_idle_s`: a client that takes or
    sends no bytes for so long is given up (seconds).

    `bodies_max`: how many large objects and parts are sent and received at once; keep it well below
    `gcs.connections_max`. `bytes_max`: how many bytes of these and of small objects are held in memory: all of a part,
    1 MiB of a large object, and up to 128 MiB more if it is decompressed. Who comes then gets 503, unless another
    client has stood still for 15 s: it is given up.
    """

    def __init__(
        self, storage: Callable[[], TieredStorage], *, cache_control: str = "private", send_idle_s: float = SEND_IDLE_S,
        bodies_max: int = BODIES_MAX, bytes_max: int = BYTES_MAX,
    ) -> None:  # fmt: skip
        self._storage = storage
        self._cache_control = cache_control
        self._send_idle_s = send_idle_s
        self._bodies = Bodies(bodies_max, bytes_max)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # a framework passes them on, too
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["type"] != "http":
            raise ValueError(f"LinkApp answers HTTP, and no {scope['type']}; create_app makes an application that also opens a store")
        storage = self._storage()
        try:
            answer = await self._answered(storage, scope, receive)
            cors = _for_origin(scope, _origins(storage), answer.headers.get("Vary"))
            await self._send(scope["method"], replace(answer, headers={**answer.headers, **cors}), receive, send)
        except ClientGoneError:
            return

    async def _send(self, method: str, answer: LinkAnswer, receive: Receive, send: Send) -> None:
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
        start = {"type": "http.response.start", "status": answer.status, "headers": headers}
        if isinstance(answer.body, bytes):
            await send_within(send, start, self._send_idle_s)
            body = b"" if method == "HEAD" else answer.body
            await send_within(send, {"type": "http.response.body", "body": body}, self._send_idle_s)
            return
        with answer.body.place:
            async with answer.body.stored:
                await send_within(send, start, self._send_idle_s)
                await send_body(answer.body, receive, send)

    async def _answered(self, storage: TieredStorage, scope: Scope, receive: Receive) -> LinkAnswer:
        """The answer to a request. What the store raises before the first byte has a status."""
        try:
            return await self._answer(storage, scope, receive)
        except TieredError as error:
            if error.is_final or not isinstance(error, UnavailableError):
                events.error("link_not_answered", error)
                return _refused(500, "the store needs its operator")
            told = error.retry_after_s if isinstance(error, AtCapacityError | ServiceAwayError) else None
            later = {"Retry-After": str(max(1, ceil(told or 1)))}
            if isinstance(error, RateLimitedError):
                return _refused(429, "too much at once; try again later", later)
            return _refused(503, "the store does not answer now; try again", later)
        except FullError:
            return _refused(503, "too many bodies are under way; try again", {"Retry-After": "1"})

    async def _answer(self, storage: TieredStorage, scope: Scope, receive: Receive) -> LinkAnswer:
        links = storage.links
        if links is None:
            raise ConfigurationError("no link is signed or answered: set links.base_url and links.keys")
        methods = [method for method, (allowed, _) in self._METHODS.items() if storage._may_write or allowed != "PUT"]
        if scope["method"] == "OPTIONS" and links.origins:
            return _options([*methods, "OPTIONS"], _headers_of(scope))
        if scope["method"] not in methods:
            return _refused(405, "a link is for GET and HEAD, or for PUT", {"Allow": ", ".join(methods)})
        allowed, answer = self._METHODS[scope["method"]]
        link = links.read(_token_of(scope))
        if link is None:
            return _refused(403, "this is no link of this server, or not all of it")
        if (why := links.refusal(link)) is not None:
            return _refused(403, why)
        if link.method != allowed:
            return _refused(403, "the link is for another method")
        return await answer(self, LinkRequest(storage, links, link, _headers_of(scope), receive))

    # --- writing

    async def _put(self, request: LinkRequest) -> LinkAnswer:
        link, headers, uploads = request.link, request.headers, request.storage._uploads
        if link.part is None:
            return _refused(403, "the link is for another method")
        if (refusal := _refusal_of_part(headers)) is not None:
            return refusal
        try:
            digests = DeclaredChecksums(declared_digests(headers))
        except ValueError as error:
            return _refused(400, str(error))
        size, size_max = length_of(headers), self._part_bytes_max(request)
        if size is not None and size > size_max:
            return _too_large(size_max)
        try:
            await uploads.ask(link.object_id, link.revision)
            if request.has_conditions:
                there = [part for part in await uploads.parts(link.object_id, link.revision) if part.number == link.part]
                if precondition(headers, _quoted(there[0].etag) if there else None, None, reads=False) is not None:
                    return _refused(412, "the condition of the request does not hold")
            name = (link.object_id.path, link.revision, link.part)
            with self._bodies.enter(size_max if size is None else size, self._send_idle_s, name) as place:
                chunks: list[bytes] = []
                came = 0
                until = anyio.current_time() + request.links.left_s(link)
                async with aclosing(read_body(request.receive, place, until)) as body:
                    async for chunk in body:
                        came += len(chunk)
                        if came > size_max:
                            return _too_large(size_max)
                        await digests.add(chunk)
                        chunks.append(chunk)
                if size not in (None, came):
                    return _refused(400, f"{came} bytes came, and Content-Length is {size}")
                try:
                    digests.compare()
                except InvalidRequestError:
                    return _refused(400, "the bytes that came have another digest than was declared")
                part = await _kept(request, link.part, chunks)
        except BodyEndedError as error:
            if error.replaced:
                return _refused(409, "the part is being sent anew, and this one was not taken", _CLOSE)
            if (why := request.links.refusal(link)) is not None:
                return _refused(403, f"{why} before all of the part had come", _CLOSE)
            return _refused(408, "the part was not taken: it came too slowly", _CLOSE)
        except UploadEndedError as error:
            return _refused(410, "the upload has ended: it was completed" if error.completed else "the upload has ended")
        except ConfigurationError:
            raise
        except InvalidRequestError:
            return _refused(403, "this store takes no such part")
        return LinkAnswer(200, {"ETag": _quoted(part.etag), "Content-Length": "0", "Cache-Control": "no-store"})

    def _part_bytes_max(self, request: LinkRequest) -> int:
        """How many bytes a part may have: by its link, by the policy as it is now, by what is held here."""
        policies, link = request.storage._policies, request.link
        allowed = link.size_max if policies is None else policies.bytes_max(link.object_id, link.size_max)
        return min(PART_BYTES_MAX, self._bodies.bytes_max, *([] if allowed is None else [allowed]))

    # --- reading

    async def _get(self, request: LinkRequest) -> LinkAnswer:
        if_range = request.headers.get("if-range")
        modified: str | None = None
        if request.has_conditions or not (if_range is None or '"' in if_range):  # judged before any byte is read
            found = await self._look(request)
            if found.status != 200:
                return found
            modified = found.headers.get("Last-Modified")
        etag = request.etag(decompressed=False)  # what is decompressed has no ranges
        wanted = wanted_range(request.headers.get("range")) if range_is_for(if_range, etag, modified) else None
        try:
            stored = await self._open(request, wanted)
        except RangeNotSatisfiableError:
            found = await self._look(request)  # whose size it told is not known
            if found.status != 200:
                return found
            if (size := found.headers.get("Content-Length")) is not None:
                return _refused(416, "the range begins after the end", {"Content-Range": f"bytes */{size}"})
            wanted = None
            stored = await self._open(request, None)
        if stored is None:
            return _not_there()
        if stored.revision != request.link.revision:
            await stored.aclose()
            return _replaced()
        headers = self._described(stored.head, request)
        body = await self._begun(stored)
        if wanted is None or stored.decompressed or stored.length == 0:
            return LinkAnswer(200, headers, body)
        part = {"Content-Length": str(stored.length), "Content-Range": f"bytes {stored.start}-{stored.stop - 1}/{stored.size}"}
        return LinkAnswer(206, headers | part, body)

    async def _begun(self, stored: StoredObject) -> OpenBody:
        """The object as it is sent, with its place. What is decompressed has begun, because it tells only then how far
        it looks back, or that it is damaged. `FullError`.
        """
        row, place = stored.in_memory, None
        held = STREAM_BYTES if row is None else SMALL_BYTES + row.nbytes
        try:
            place = self._bodies.enter(held, self._send_idle_s, counts=row is None)
            stored._ask(lambda window: place.hold(held + window))
            chunks = aiter(stored)
            return OpenBody(stored, chunks, place, await anext(chunks, b"") if stored.decompressed else b"")
        except BaseException:
            if place is not None:
                self._bodies.leave(place)
            with anyio.CancelScope(shield=True):
                await stored.aclose()
            raise

    async def _open(self, request: LinkRequest, wanted: ByteRange | None) -> StoredObject | None:
        """Opens what is to be sent: a range only of the bytes that are stored."""
        get = partial(request.storage.get, request.link.object_id)
        stored = await get(wanted, decompress=wanted is None and not request.takes_zstd)
        if stored is None or stored.decompressed or not self._is_decompressed(stored.head, request):
            return stored
        await stored.aclose()
        return await get(decompress=True)

    @staticmethod
    def _is_decompressed(head: ObjectHead, request: LinkRequest) -> bool:
        return head.metadata.compression == COMPRESSION and not request.takes_zstd

    async def _look(self, request: LinkRequest) -> LinkAnswer:
        """What HEAD answers, and what GET answers unless it is 200."""
        head = await request.storage.head(request.link.object_id)
        if head is None:
            return _not_there()
        if head.revision != request.link.revision:
            return _replaced()
        headers = self._described(head, request)
        status = precondition(request.headers, headers["ETag"], headers.get("Last-Modified"), reads=True)
        if status == 304:
            return LinkAnswer(304, {name: headers[name] for name in ("ETag", "Last-Modified", "Cache-Control", "Vary") if name in headers})
        return LinkAnswer(200, headers) if status is None else _refused(status, "the condition of the request does not hold")

    def _described(self, head: ObjectHead, request: LinkRequest) -> dict[str, str]:
        decompressed = self._is_decompressed(head, request)
        described = {
            "Cache-Control": self._cache_control,  # unless the object tells one: of two, the later counts
            **{header: told for header, told in headers_of(head.metadata).items() if can_be_header(told)},
            "Content-Type": request.link.content_type or content_type_of(head),
            "Content-Disposition": content_disposition(request.link.disposition, head),
            "ETag": request.etag(decompressed=decompressed),
            "Accept-Ranges": "none" if decompressed else "bytes",
            "X-Content-Type-Options": "nosniff",
        }
        if not _NO_DOCUMENT.match(described["Content-Type"]):
            described |= _DOCUMENT
        if (modified := http_date(head.metadata.time_created_ns)) is not None:
            described["Last-Modified"] = modified
        if head.metadata.compression == COMPRESSION:
            described["Vary"] = "Accept-Encoding"
        if not decompressed:
            described["Content-Length"] = str(head.size)
        if decompressed or not _TOKEN.fullmatch(described.get("Content-Encoding", "")):
            described.pop("Content-Encoding", None)
        return described

    _METHODS: Mapping[str, tuple[str, Callable[[LinkApp, LinkRequest], Awaitable[LinkAnswer]]]] = {
        "GET": ("GET", _get),
        "HEAD": ("GET", _look),
        "PUT": ("PUT", _put),
    }
    """For each method of HTTP the one that a link must allow, and what answers."""


def create_app(source: str | Path | Settings | None = None, *, writes: bool = False) -> Application:
    """An ASGI 3 application that opens a store as long as its server runs.

    Without `writes`, the store is opened for reading only, and no link to write is answered.

    `source`: as for `open_storage`; None: the file that `TIERED_CONFIG` names. If the store cannot be opened, the
    server does not start. What is read keeps its time to idle.
    """
    check_flags(writes=writes)
    opened: list[TieredStorage] = []
    links = LinkApp(lambda: opened[0])

    async def live(receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup
        try:
            given = os.environ.get(ENV_CONFIG) if source is None else source
            if given is None:
                raise ConfigurationError(f"set {ENV_CONFIG} to the path of a settings file")
            async with open_storage(given, writes=writes) as storage:
                if storage.links is None:
                    raise ConfigurationError("no link is signed or answered: set links.base_url and links.keys")
                opened.append(storage)
                await send({"type": "lifespan.startup.complete"})
                await receive()  # lifespan.shutdown
        except TieredError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await (live(receive, send) if scope["type"] == "lifespan" else links(scope, receive, send))

    return application


async def _kept(request: LinkRequest, number: int, chunks: list[bytes]) -> Part:
    """Uploads the part, of which all bytes are here."""
    kept: list[Part] = []
    uploads, link = request.storage._uploads, request.link

    async def keep(piece: Sequence[Chunk]) -> None:
        kept.append(await uploads.put_part(link.object_id, link.revision, number, piece))

    await uploads.send(link.object_id, chunks, None, PART_BYTES_MAX + 1, keep, 0)
    return kept[0]


def _refusal_of_part(headers: Mapping[str, str]) -> LinkAnswer | None:
    """Why a part with these headers is not taken: what they ask for is not done. None: it may be."""
    if "content-range" in headers:
        return _refused(400, "a part is sent whole: leave Content-Range out")
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        return _refused(415, "a part is kept as it comes: leave Content-Encoding out", {"Accept-Encoding": "identity"})
    return None


def _too_large(size_max: int) -> LinkAnswer:
    return _refused(413, f"a part of at most {size_max} bytes is taken")


def _quoted(etag: str) -> str:
    return etag if etag.startswith('"') else f'"{etag}"'


def _origins(storage: TieredStorage) -> Sequence[str]:
    return () if storage.links is None else storage.links.origins


def _options(methods: Sequence[str], headers: Mapping[str, str]) -> LinkAnswer:
    """What may be asked of any link. A browser asks that before it sends what a plain form could not."""
    told = {"Allow": ", ".join(methods), "Cache-Control": "no-store"}
    if "access-control-request-method" in headers:
        told |= {
            "Access-Control-Allow-Methods": ", ".join(methods), "Access-Control-Allow-Headers": _ASKED_HEADERS,
            "Access-Control-Max-Age": str(PREFLIGHT_S),
        }  # fmt: skip
    return LinkAnswer(204, told)


def _for_origin(scope: Scope, origins: Sequence[str], vary: str | None) -> Mapping[str, str]:
    """What lets scripts of another site see an answer (CORS). No cookie counts here, so `*` gives nothing away."""
    if not origins:
        return {}
    told = {"Access-Control-Expose-Headers": _TOLD_HEADERS}
    if "*" in origins:
        return {"Access-Control-Allow-Origin": "*", **told}
    varies = {"Vary": "Origin" if vary is None else f"{vary}, Origin"}
    origin = _headers_of(scope).get("origin")
    return varies if origin is None or origin not in origins else {"Access-Control-Allow-Origin": origin, **told, **varies}


def _not_there() -> LinkAnswer:
    return _refused(404, "the object is not there any more")


def _replaced() -> LinkAnswer:
    return _refused(410, "the object was replaced, and the link was for what was there before")


def _refused(status: int, why: str, headers: Mapping[str, str] | None = None) -> LinkAnswer:
    body = f"{why}\n".encode()
    told = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body)), "Cache-Control": "no-store"}
    return LinkAnswer(status, {**told, "X-Content-Type-Options": "nosniff", **(headers or {})}, body)


def _token_of(scope: Scope) -> str:
    """What follows the place where the application is mounted, if it is one segment. Empty: it is not."""
    path, root = str(scope["path"]), str(scope.get("root_path") or "").rstrip("/")
    rest = path[len(root) :] if root and path.startswith(f"{root}/") else path  # some frameworks take the root away
    return "" if "/" in rest[1:] else rest[1:]


def _headers_of(scope: Scope) -> Mapping[str, str]:
    headers: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1").lower()
        headers[name] = f"{headers[name]}, {value.decode('latin-1')}" if name in headers else value.decode("latin-1")
    return headers
