"""A small receiver of a change feed: it takes files by PUT, keeps them in a directory, and shows them again.

    PUT /generation-…/TIME.json     204: kept durably; sent again with the same bytes: 204 again
    GET, PUT /_feed.json            the mark: whose feed it is; 409: another feed's
    GET /                           a line of JSON for each generation
    GET /generation-…/              a line of JSON for each file, in the order of their times
    GET /generation-…/TIME.json     the file

What is kept has passed four checks: the name is one of a feed, the size is within the bound, the bytes have the
checksum of the header `Repr-Digest`, and each message can be read. Few bytes may unpack to very many. So they are read
in a process of its own, one file at a time, which gets so much memory and so much time, and is ended if the client goes
away. A name reaches the file system only if it has the form of a feed's own names, so no path leads elsewhere.
`DirectorySink` keeps the files, so what was acknowledged survives a kill, and other bytes under a known name are
refused.

*Failure*: 400 wrong digest, 404 foreign name, 408 too slow, 409 other bytes under this name, 413 too large, 422 no feed
or more than can be read here, 503 not now (such as a full disk), 500 somebody must look at the directory. There is no
TLS and no password.
"""

from __future__ import annotations

import base64
import binascii
import errno
import json
import os
import resource
import signal
import stat
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path

import anyio
from anyio import BrokenWorkerProcess, to_process
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from changelog.base.errors import ConfigurationError, CorruptRecordError, TieredError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.base.threads import in_thread
from recovery.feed.errors import FeedError, Rule
from recovery.feed.files import is_left_out
from recovery.feed.sinks.directory import DirectorySink
from recovery.feed.sinks.sink import CONTENT_TYPES, MARK, MARK_BYTES_MAX, MARK_TYPE, Owner, Segment, Suffix, generation_of, time_of
from recovery.http.app import Guarded

BYTES_MAX = 64 * 2**20
"""A larger file is refused. The files of a store's feed have a few megabytes at most."""
BODIES_MAX = 4
"""So many of the largest bodies fit into memory together. A body beyond that is told to come again."""
GRACE_S, BYTES_PER_S_MIN = 10.0, 256 * 1024
"""A body may take so many seconds, and a second more for so many bytes that came."""
READER_MEMORY_MAX = 2**30
"""One process reads files, with so many bytes of memory."""
READING_S_MAX = 30.0
"""Seconds. The files of a store's feed take less than one."""
READING_CPU_S_MAX = 60
"""After so many seconds of work on one file the system ends a process that reads, also if the receiver was killed."""
CHUNK_BYTES = 256 * 1024
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
    app = Starlette(routes=routes, exception_handlers={HTTPException: _error_response, TieredError: _refused})
    app.router.redirect_slashes = False
    return Guarded(app, hosts, ("GET", "HEAD", "PUT"), "only GET, HEAD and PUT: what was received stays", "give another --listen")


class _Receiver:
    def __init__(self, sink: DirectorySink, bytes_max: int) -> None:
        self._sink = sink
        self._bytes_max = bytes_max
        self._bytes_free = BODIES_MAX * bytes_max
        self._reader = anyio.Lock()
        self._threads = anyio.CapacityLimiter(4)

    async def put(self, request: Request) -> Response:
        generation, (time, suffix) = _named(request)
        declared = _digest_of(request.headers.get("repr-digest", ""))
        async with self._body(request, self._bytes_max, "raise --bytes-max, or set a smaller feed.batch_max") as body:
            segment = Segment.of(generation, time, body, suffix)
            if segment.sha256 != declared:
                raise HTTPException(400, "the body has another sha-256 than Repr-Digest says: send it again")
            await self._check(request, segment)
            await self._sink.deliver(segment)
        return Response(status_code=204)

    async def put_mark(self, request: Request) -> Response:
        """Keeps the mark of a feed, unless there is one. One of another feed stays."""
        declared = _digest_of(request.headers.get("repr-digest", ""))
        async with self._body(request, MARK_BYTES_MAX, "this is no mark of a feed") as body:
            if sha256(body).hexdigest() != declared:
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
        found = await in_thread(partial(_listed, self._sink.root, generation_of, folders=True), self._threads)
        return _lines([{"generation": generation_of(name), "folder": name} for name, _ in found])

    async def files(self, request: Request) -> Response:
        """Lists also what no feed put there, without a time: the sink asks for it, because readers would read it."""
        folder = request.path_params["folder"]
        if generation_of(folder) is None:
            raise HTTPException(404)
        found = await in_thread(partial(_listed, self._sink.root / folder, _read_by_readers, folders=False), self._threads)
        if not found:
            raise HTTPException(404)
        return _lines([{"name": name, "time": (time_of(name) or (None,))[0], "bytes": size} for name, size in found])

    async def file(self, request: Request) -> Response:
        _, (_, suffix) = _named(request)
        path = self._sink.root / request.path_params["folder"] / request.path_params["name"]
        handle = await in_thread(partial(_opened, path), self._threads, undo=os.close)
        try:
            digest, size = await in_thread(partial(_digest_and_size, handle, path), self._threads)
        except BaseException:
            os.close(handle)
            raise
        headers = {"repr-digest": f"sha-256=:{digest}:", "content-length": str(size)}
        return _FileResponse(self._chunks(handle, size), handle, headers, CONTENT_TYPES[suffix])

    async def _chunks(self, handle: int, size: int) -> AsyncIterator[bytes]:
        for start in range(0, size, CHUNK_BYTES):
            yield await in_thread(partial(os.pread, handle, min(CHUNK_BYTES, size - start), start), self._threads)

    @asynccontextmanager
    async def _body(self, request: Request, bytes_max: int, advice: str) -> AsyncIterator[bytes]:
        """The body of a request. Its bytes count as taken until the block ends."""
        declared = request.headers.get("content-length", "0")
        if not declared.isdecimal() or int(declared) > bytes_max:
            raise _too_large(bytes_max, advice)
        body = bytearray()
        try:
            await self._receive(request, body, bytes_max, advice)
            yield bytes(body)
        finally:
            self._bytes_free += len(body)

    async def _receive(self, request: Request, body: bytearray, bytes_max: int, advice: str) -> None:
        """Receives the body into `body`, whose bytes count as taken then."""
        began = anyio.current_time()
        try:
            async with aclosing(request.stream()) as chunks:
                while True:
                    with anyio.fail_after(began + GRACE_S + len(body) / BYTES_PER_S_MIN - anyio.current_time()):  # fail_at: anyio 4.15
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        return
                    if len(body) + len(chunk) > bytes_max:
                        raise _too_large(bytes_max, advice)
                    if len(chunk) > self._bytes_free:
                        raise HTTPException(503, "too many files are being received: send it again later", {"retry-after": "5"})
                    self._bytes_free -= len(chunk)
                    body += chunk
        except TimeoutError:
            raise HTTPException(408, f"the body came too slowly, {len(body)} bytes of it: send it faster") from None
        except ClientDisconnect:
            raise HTTPException(400, "the connection ended before the body") from None

    async def _check(self, request: Request, segment: Segment) -> None:
        """Raises `FeedError` if the file is no feed. Gives up, and ends the process that reads it, if it takes too long
        or the client goes away.
        """
        problem: Exception | None = HTTPException(400, "the connection ended before the answer")

        async def read() -> None:
            nonlocal problem
            try:
                async with self._reader:
                    await _begin_reader()
                    with anyio.fail_after(READING_S_MAX):
                        await to_process.run_sync(_read_through, segment, cancellable=True)
                problem = None
            except TieredError as error:
                problem = error
            except TimeoutError:
                problem = FeedError(Rule.FORM, f"to read the file takes longer than {READING_S_MAX:g} s", segment.path)
            except MemoryError:
                limit = f"more than {READER_MEMORY_MAX >> 20} MiB of memory"
                problem = FeedError(Rule.FORM, f"to read the file takes {limit}", segment.path)
            except BrokenWorkerProcess:
                problem = UnavailableError("the process that read the file ended before it was through: send it again later")
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            while (await request.receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()
        if problem is not None:
            raise problem


def _too_large(bytes_max: int, advice: str) -> HTTPException:
    return HTTPException(413, f"a file may have {bytes_max} bytes here: {advice}")


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


class _FileResponse(StreamingResponse):
    """Sends an open file chunk by chunk, and closes it however that ends: whoever reads slowly holds no file in memory.
    """

    def __init__(self, chunks: AsyncIterator[bytes], handle: int, headers: dict[str, str], media_type: str) -> None:
        super().__init__(chunks, headers=headers, media_type=media_type)
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            os.close(self._handle)


async def _begin_reader() -> None:
    """Begins the process that reads files, unless it waits for work. `UnavailableError`: it cannot be begun.

    It is not cancelled meanwhile: anyio would leave a process behind that is cancelled before it is begun. One that was
    killed while it waited is noticed here, and another one is begun.
    """
    with anyio.CancelScope(shield=True):
        for is_last in (False, True):
            try:
                await to_process.run_sync(_prepare)
                return
            except (BrokenWorkerProcess, OSError) as error:
                if is_last:
                    raise UnavailableError(f"no process can be begun here that reads the file: {error or 'it ended'}") from error


def _prepare() -> None:
    """Is called in the process that reads files. A terminal sends Ctrl-C to it, too, and the receiver ends it then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _read_through(segment: Segment) -> None:
    """Reads the file, in a process of its own."""
    _limit(resource.RLIMIT_AS, READER_MEMORY_MAX)
    worked = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, round(worked.ru_utime + worked.ru_stime) + READING_CPU_S_MAX)
    if not sum(1 for _ in segment.messages()):
        raise FeedError(Rule.FORM, "the file has no message", segment.path)


def _limit(what: int, limit: int) -> None:
    with suppress(ValueError, OSError):  # some systems have no such limit
        resource.setrlimit(what, (limit, resource.getrlimit(what)[1]))


def _read_by_readers(name: str) -> str | None:
    return None if is_left_out(name) else name


def _listed(directory: Path, known: Callable[[str], object], *, folders: bool) -> list[tuple[str, int]]:
    """The names of folders, or of files, of which something is known: sorted, with sizes. No directory has none.

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


def _opened(path: Path) -> int:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
    except FileNotFoundError:
        raise HTTPException(404) from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise UnavailableError(f"{path} cannot be read: {error.strerror}") from None
    raise ConfigurationError(f"{path} is no file, and a feed did not put it there: move it away")


def _digest_and_size(handle: int, path: Path) -> tuple[str, int]:
    """The sha-256 as the header `Repr-Digest` tells it, and how many bytes it is of. Files here never change."""
    seen, size = sha256(), 0
    try:
        while chunk := os.pread(handle, CHUNK_BYTES, size):
            seen.update(chunk)
            size += len(chunk)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read: {error.strerror}") from None
    return base64.b64encode(seen.digest()).decode(), size


def _lines(values: list[dict[str, object]]) -> Response:
    return Response("".join(f"{json.dumps(each)}\n" for each in values), media_type=LINES)


async def _error_response(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)


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
