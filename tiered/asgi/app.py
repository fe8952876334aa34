"""`LinkApp`: answers signed links. What a link allows is in the link (`tiered/links.py`), and nothing else is served.

    link            not ours, expired, for another method     403
    method          that no link allows                       405
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
    store           away or full                              503, with Retry-After
                    the rate of the usecase is used up        429, with Retry-After
                    damaged, lost, badly configured           500, and a line in the log

A GET opens the object, and compares the revision of what was opened: between a look and an open it could change. HEAD
answers what GET without a range answers. Bodies are sent by `body.py`; `bodies_max` of them at once, because each may
hold a connection to the service that all other reads of this store need, too.

*Failure* after the first byte: the error leaves the application, and the server ends the connection early. *Crash*: so
does the system.

A method is a row of `_METHODS`: the method that the link must allow, and what answers it. A link to write takes one
part of an open upload (`storage.sign_put`). What came is no object before somebody completes the upload.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from changelog.base.errors import ConfigurationError, InvalidRequestError, TieredError, UnavailableError
from changelog.base.events import events
from tiered.asgi.body import ClientGoneError, Receive, Send, send_body, send_within
from tiered.asgi.http_rules import accepts_encoding, etag_of, http_date, precondition, range_is_for, wanted_range
from tiered.errors import AtCapacityError, RangeNotSatisfiableError, RateLimitedError, ServiceAwayError, UploadEndedError
from tiered.links import SignedLink, content_disposition, content_type_of
from tiered.open import open_storage
from tiered.payload.zstd import COMPRESSION
from tiered.protocol.backends import ByteRange
from tiered.protocol.blob_entries import encoding_of
from tiered.protocol.capabilities import PART_BYTES_MAX
from tiered.settings import ENV_CONFIG, Settings
from tiered.storage import TieredStorage
from tiered.stored import ObjectHead, StoredObject

Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

SEND_IDLE_S = 60.0
BODIES_MAX = 128
CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


@dataclass(frozen=True, slots=True)
class LinkAnswer:
    """`body`: what is sent; of an open object, the bytes for which it was opened."""

    status: int
    headers: Mapping[str, str]
    body: bytes | StoredObject = b""


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """A request whose link is good. `headers`: with their names in lower case; several of one name are one."""

    storage: TieredStorage
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
    opened. Its settings have `links`. `cache_control`: of answers with an object. `send_idle_s`: a client that takes no
    bytes for so long is given up (seconds). `bodies_max`: how many large objects are sent at once; who comes then gets
    503. Keep it well below `gcs.connections_max`.
    """

    def __init__(
        self, storage: Callable[[], TieredStorage], *, cache_control: str = "private", send_idle_s: float = SEND_IDLE_S,
        bodies_max: int = BODIES_MAX,
    ) -> None:
        self._storage = storage
        self._cache_control = cache_control
        self._send_idle_s = send_idle_s
        self._bodies_max = bodies_max
        self._bodies = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # a framework passes them on, too
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["type"] != "http":
            raise ValueError(f"LinkApp answers HTTP, and no {scope['type']}; create_app makes an application that also opens a store")
        try:
            answer = await self._answered(scope, receive)
            await self._send(answer, receive, send, has_body=scope["method"] != "HEAD")
        except ClientGoneError:
            return

    async def _send(self, answer: LinkAnswer, receive: Receive, send: Send, *, has_body: bool) -> None:
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
        start = {"type": "http.response.start", "status": answer.status, "headers": headers}
        if isinstance(answer.body, bytes):
            await send_within(send, start, self._send_idle_s)
            await send_within(send, {"type": "http.response.body", "body": answer.body if has_body else b""}, self._send_idle_s)
            return
        held = 1 if answer.body.in_memory is None else 0
        self._bodies += held
        try:
            async with answer.body:
                await send_within(send, start, self._send_idle_s)
                await send_body(answer.body, receive, send, self._send_idle_s)
        finally:
            self._bodies -= held

    async def _answered(self, scope: Scope, receive: Receive) -> LinkAnswer:
        """The answer to a request. What the store raises before the first byte has a status."""
        try:
            return await self._answer(scope, receive)
        except UnavailableError as error:
            told = error.retry_after_s if isinstance(error, AtCapacityError | ServiceAwayError) else None
            later = {"Retry-After": str(max(1, ceil(told or 1)))}
            if isinstance(error, RateLimitedError):
                return _refused(429, "too much at once; try again later", later)
            return _refused(503, "the store does not answer now; try again", later)
        except TieredError as error:
            events.error("link_not_answered", error)
            return _refused(500, "the store needs its operator")

    async def _answer(self, scope: Scope, receive: Receive) -> LinkAnswer:
        storage = self._storage()
        links = storage.links
        if links is None:
            raise ConfigurationError("no link is signed or answered: set links.base_url and links.keys")
        if scope["method"] not in self._METHODS:
            return _refused(405, "a link is for GET and HEAD, or for PUT", {"Allow": ", ".join(self._METHODS)})
        allowed, answer = self._METHODS[scope["method"]]
        link = links.read(_token_of(scope))
        if link is None:
            return _refused(403, "this is no link of this server, or not all of it")
        if (why := links.refusal(link)) is not None:
            return _refused(403, why)
        if link.method != allowed:
            return _refused(403, "the link is for another method")
        return await answer(self, LinkRequest(storage, link, _headers_of(scope), receive))

    # --- writing

    async def _put(self, request: LinkRequest) -> LinkAnswer:
        link = request.link
        size_max = PART_BYTES_MAX if link.size_max is None else link.size_max
        if link.part is None:
            return _refused(403, "the link is for another method")
        too_large = _refused(413, f"a part of at most {size_max} bytes is taken")
        declared = request.headers.get("content-length")
        if declared is not None and declared.isdecimal() and (len(declared) > 18 or int(declared) > size_max):
            return too_large
        try:
            part = await request.storage.multipart(link.object_id, link.revision).upload_part(link.part, _body(request.receive, size_max))
        except _TooLargeError:
            return too_large
        except UploadEndedError as error:
            return _refused(410, "the upload has ended: it was completed" if error.completed else "the upload has ended")
        except ConfigurationError:
            raise
        except InvalidRequestError:
            return _refused(408, "the part was not taken: most likely it did not come in time")
        told = {"ETag": part.etag if part.etag.startswith('"') else f'"{part.etag}"', "Content-Length": "0", "Cache-Control": "no-store"}
        return LinkAnswer(200, told)

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
        if stored.in_memory is None and self._bodies >= self._bodies_max:
            await stored.aclose()
            return _refused(503, "too many objects are being sent; try again", {"Retry-After": "1"})
        headers = self._described(stored.head, request)
        if wanted is None or stored.decompressed or stored.length == 0:
            return LinkAnswer(200, headers, stored)
        part = {"Content-Length": str(stored.length), "Content-Range": f"bytes {stored.start}-{stored.stop - 1}/{stored.size}"}
        return LinkAnswer(206, headers | part, stored)

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
        status = precondition(request.headers, headers["ETag"], headers.get("Last-Modified"))
        if status == 304:
            return LinkAnswer(304, {name: headers[name] for name in ("ETag", "Last-Modified", "Cache-Control", "Vary") if name in headers})
        return LinkAnswer(200, headers) if status is None else _refused(status, "the condition of the request does not hold")

    def _described(self, head: ObjectHead, request: LinkRequest) -> dict[str, str]:
        decompressed = self._is_decompressed(head, request)
        described = {
            "Content-Type": request.link.content_type or content_type_of(head),
            "Content-Disposition": content_disposition(request.link.disposition, head),
            "ETag": request.etag(decompressed=decompressed),
            "Accept-Ranges": "none" if decompressed else "bytes",
            "Cache-Control": self._cache_control,
            "X-Content-Type-Options": "nosniff",
        }
        if (modified := http_date(head.metadata.time_created_ns)) is not None:
            described["Last-Modified"] = modified
        if head.metadata.compression == COMPRESSION:
            described["Vary"] = "Accept-Encoding"
        if decompressed:
            return described
        described["Content-Length"] = str(head.size)
        if (encoding := encoding_of(head.metadata)) is not None and _TOKEN.fullmatch(encoding):
            described["Content-Encoding"] = encoding
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


class _TooLargeError(Exception):
    """More bytes came than the link allows."""


async def _body(receive: Receive, size_max: int) -> AsyncGenerator[bytes, None]:
    """The bytes of the request. Raises `_TooLargeError`, and `ClientGoneError` before the last of them."""
    size, is_more = 0, True
    while is_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk, is_more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size > size_max:
            raise _TooLargeError
        if chunk:
            yield chunk


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
