"""A small receiver of a change feed: it takes files by PUT, keeps them in a directory, and shows them again.

    PUT /generation-…/TIME.json     204: kept durably; sent again with the same bytes: 204 again
    GET, PUT /_feed.json            the mark: whose feed it is; 409: another feed's
    GET /                           a line of JSON for each generation
    GET /generation-…/              a line of JSON for each file, in the order of their times
    GET /generation-…/TIME.json     the file

What is kept has passed four checks: the name is one of a feed, the size is within the bound, the bytes have the
checksum of the header `Repr-Digest`, and each message can be read. A name reaches the file system only if it has the
form of a feed's own names, so no path leads elsewhere. `DirectorySink` keeps the files, so what was acknowledged
survives a kill, and other bytes under a known name are refused.

*Failure*: 400 wrong digest, 404 foreign name, 409 other bytes under this name, 413 too large, 422 no feed, 503 not now
(such as a full disk), 500 somebody must look at the directory. There is no TLS and no password.
"""

from __future__ import annotations

import base64
import binascii
import errno
import json
import os
import stat
from collections.abc import Callable, Collection
from contextlib import aclosing
from functools import partial
from hashlib import sha256
from pathlib import Path

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from changelog.base.errors import ConfigurationError, CorruptRecordError, TieredError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.base.threads import in_thread
from recovery.feed.errors import FeedError, Rule
from recovery.feed.sinks.directory import DirectorySink
from recovery.feed.sinks.sink import CONTENT_TYPES, MARK, MARK_TYPE, Owner, Parcel, Suffix, generation_of, time_of
from recovery.http.app import Guarded

BYTES_MAX = 64 * 2**20
"""A larger file is refused. The files of a store's feed have a few megabytes at most."""
BODIES_MAX = 4
"""So many requests with a body, or for one, are in memory at once; others wait."""
LINES = "application/jsonl"


def make_receiver(directory: str | Path, runtime: Runtime, hosts: Collection[str] | None = None, bytes_max: int = BYTES_MAX) -> ASGIApp:
    """Returns the ASGI application.

    `directory`: made by the first file, if its parent is there. `hosts`: the names that requests may call this machine;
    None: any. `bytes_max`: of a file.
    """
    receiver = _Receiver(DirectorySink(directory, runtime), bytes_max)
    routes = [
        Route(f"/{MARK}", receiver.put_mark, methods=["PUT"]), Route(f"/{MARK}", receiver.mark),
        Route("/", receiver.generations), Route("/{folder}/", receiver.files), Route("/{folder}", receiver.files),
        Route("/{folder}/{name}", receiver.put, methods=["PUT"]), Route("/{folder}/{name}", receiver.file),
    ]  # fmt: skip
    app = Starlette(routes=routes, exception_handlers={HTTPException: _told, TieredError: _refused})
    app.router.redirect_slashes = False
    return Guarded(app, hosts, ("GET", "HEAD", "PUT"), "only GET, HEAD and PUT: what was received stays", "give another --listen")


class _Receiver:
    def __init__(self, sink: DirectorySink, bytes_max: int) -> None:
        self._sink = sink
        self._bytes_max = bytes_max
        self._bodies = anyio.Semaphore(BODIES_MAX)
        self._thread = anyio.CapacityLimiter(1)

    async def put(self, request: Request) -> Response:
        generation, (time, suffix) = _named(request)
        told = _digest_of(request.headers.get("repr-digest", ""))
        declared = request.headers.get("content-length", "0")
        if not declared.isdecimal() or int(declared) > self._bytes_max:
            raise self._too_large()
        async with self._bodies:
            parcel = Parcel.of(generation, time, await self._body(request), suffix)
            if parcel.sha256 != told:
                raise HTTPException(400, "the body has another sha-256 than Repr-Digest says: send it again")
            await in_thread(partial(_read_through, parcel), self._thread)
            await self._sink.deliver(parcel)
        return Response(status_code=204)

    async def put_mark(self, request: Request) -> Response:
        """Keeps the mark of a feed, unless there is one. One of another feed stays."""
        told = _digest_of(request.headers.get("repr-digest", ""))
        async with self._bodies:
            body = await self._body(request)
        if sha256(body).hexdigest() != told:
            raise HTTPException(400, "the body has another sha-256 than Repr-Digest says: send it again")
        try:
            owner = Owner.from_bytes(body, "the body")
        except ConfigurationError as error:
            raise HTTPException(422, str(error)) from None
        await self._sink.claim(owner)
        there = (await self._sink.look(0, 0)).owner
        if there is None or there.feed != owner.feed:
            raise HTTPException(409, "the files here are of another feed")
        return Response(status_code=204)

    async def mark(self, _: Request) -> Response:
        owner = (await self._sink.look(0, 0)).owner
        if owner is None:
            raise HTTPException(404)
        return Response(owner.to_bytes(), media_type=MARK_TYPE)

    async def generations(self, _: Request) -> Response:
        found = await in_thread(partial(_listed, self._sink.root, generation_of, folders=True), self._thread)
        return _lines([{"generation": generation_of(name), "folder": name} for name, _ in found])

    async def files(self, request: Request) -> Response:
        folder = request.path_params["folder"]
        if generation_of(folder) is None:
            raise HTTPException(404)
        found = await in_thread(partial(_listed, self._sink.root / folder, time_of, folders=False), self._thread)
        if not found:
            raise HTTPException(404)
        return _lines([{"name": name, "time": known[0], "bytes": size} for name, size in found if (known := time_of(name))])

    async def file(self, request: Request) -> Response:
        _, (_, suffix) = _named(request)
        path = self._sink.root / request.path_params["folder"] / request.path_params["name"]
        async with self._bodies:
            content = await in_thread(partial(_content, path), self._thread)
        digest = base64.b64encode(sha256(content).digest()).decode()
        return Response(content, media_type=CONTENT_TYPES[suffix], headers={"repr-digest": f"sha-256=:{digest}:"})

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        try:
            async with aclosing(request.stream()) as pieces:
                async for piece in pieces:
                    body += piece
                    if len(body) > self._bytes_max:
                        raise self._too_large()
        except ClientDisconnect:
            raise HTTPException(400, "the connection ended before the body") from None
        return bytes(body)

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"a file may have {self._bytes_max} bytes here: raise --bytes-max, or set a smaller feed.batch_max")


def _named(request: Request) -> tuple[int, tuple[int, Suffix]]:
    """The generation, the time and the suffix that the address names."""
    generation, known = generation_of(request.path_params["folder"]), time_of(request.path_params["name"])
    if generation is None or known is None:
        raise HTTPException(404, "that is no name of a feed's file, such as generation-0001795000000000/0001795000000012345.json")
    return generation, known


def _digest_of(header: str) -> str:
    """The sha-256 that a header `Repr-Digest` tells, in hex."""
    for part in header.split(","):
        name, _, value = part.strip().partition("=")
        if name == "sha-256" and len(value) > 2 and value.startswith(":") and value.endswith(":"):
            try:
                return base64.b64decode(value[1:-1], validate=True).hex()
            except binascii.Error:
                break
    raise HTTPException(400, "the header Repr-Digest with sha-256 (RFC 9530) is missing or cannot be read: without it nothing is kept")


def _read_through(parcel: Parcel) -> None:
    if not sum(1 for _ in parcel.messages()):
        raise FeedError(Rule.FORM, "the file has no message", parcel.path)


def _listed(directory: Path, known: Callable[[str], object], *, folders: bool) -> list[tuple[str, int]]:
    """The names that a feed gives to folders, or to files, in a directory: sorted, with sizes. No directory has none.

    What has such a name and is something else is left out: a link may lead anywhere, and a pipe has no end.
    """
    is_wanted = stat.S_ISDIR if folders else stat.S_ISREG
    try:
        found = [(each.name, each.stat(follow_symlinks=False)) for each in os.scandir(directory) if known(each.name) is not None]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UnavailableError(f"{directory} cannot be read: {error.strerror}") from None
    return sorted((name, there.st_size) for name, there in found if is_wanted(there.st_mode))


def _content(path: Path) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if stat.S_ISREG(os.fstat(handle).st_mode):
                with open(handle, "rb", closefd=False) as file:
                    return file.read()
        finally:
            os.close(handle)
    except FileNotFoundError:
        raise HTTPException(404) from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise UnavailableError(f"{path} cannot be read: {error.strerror}") from None
    raise ConfigurationError(f"{path} is no file, and a feed did not put it there: move it away")


def _lines(values: list[dict[str, object]]) -> Response:
    return Response("".join(f"{json.dumps(each)}\n" for each in values), media_type=LINES)


async def _told(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code)


async def _refused(_: Request, error: Exception) -> Response:
    match error:
        case FeedError():
            status = 422
        case CorruptRecordError():
            status = 409
        case UnavailableError():
            status = 503
        case _:
            status = 500
    return PlainTextResponse(f"{error}\n", status)
