"""Uploads to GCS: each payload streams out in ONE request, whose end is withheld until `finalise`.

    SingleUpload     known and at most 8 MiB: one multipart POST, one round trip; no session, so it may land late
    SessionUpload    else: a resumable session, opened before the entry is recorded, and one PUT of its whole body

    write -> [one part withheld] -> pipe -> the request, in a task of the adapter's own -> the connection
                                                       finalise: the withheld part, then the end of the body

What `amend` brought is one more request, a PATCH, after the blob and before `finalise` returns.

A body that breaks off creates nothing. So nothing is visible before `finalise` (I1, I4), and nothing appears after
`abort` or the death of the process. Recovery cancels what is left of a session (I3). `ifGenerationMatch=0` makes it
create-only.

A chunk goes in parts of at most 256 KiB. One part is withheld, at most `PARTS_AHEAD` are left in the pipe when `write`
returns, and one is being sent. So a slow connection slows the writer down. Parts of bytes, which cannot change, are
views of the caller's own, and not copied. The checksum is made in the event loop: for 2 MiB it takes about as long as
one call into a thread.

*Failure*: if the service refuses early, the next `write` raises it. After `finalise`, the crc32c that the service
reports is compared with that of the bytes that were written. If they differ, the blob exists, and `UnavailableError`
makes the caller delete it. If the answer is lost and there is a session, the session is asked for its status here,
once, because the store calls `finalise` only once. An answer of 408 or 5xx counts as lost, unless it gives a limit of
the service as its reason: then nothing was stored (`UnavailableError`). If there is no session, or if it does not tell,
it is `UnconfirmedError`. So it is if the request does not take the last chunk in time; then the session is not asked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress

from anyio import CancelScope, Event, get_cancelled_exc_class, move_on_after
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled

from changelog.base.errors import (
    ConfigurationError,
    CorruptRecordError,
    InvalidRequestError,
    TieredError,
    UnavailableError,
    UnconfirmedError,
)
from changelog.base.own_waits import own_wait
from changelog.base.runtime import Runtime
from tiered.gcs.format import CHECKED_FIELDS, differing, encode_amended, encode_resource
from tiered.gcs.http import BETWEEN, ConnectionSlot, GcsHttp, GcsRequest, GcsResponse, NoAnswerError, lost_request
from tiered.metadata import Metadata
from tiered.payload.chunks import Chunk
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.stored import CHUNK_BYTES

SINGLE_BYTES_MAX = 8 * 1024 * 1024
"""For larger blobs, the extra round trip that opens a session takes little time compared with the transfer."""

PARTS_AHEAD = 2
"""With more parts in the pipe, the two tasks change places less often. With fewer, an upload takes less memory."""

_CREATE_ONLY = {"ifGenerationMatch": "0"}
_SHOWN = {"fields": CHECKED_FIELDS}
_JSON = "application/json; charset=UTF-8"
_GONE = (404, 410, 499)
"""The statuses of a session that was cancelled or has expired."""


async def open_upload(http: GcsHttp, tasks: TaskGroup, runtime: Runtime, name: str, metadata: Metadata, size: int | None) -> GcsUpload:
    """Begins an upload. Sends nothing yet, except the request that opens a session."""
    declared = metadata.size if size is None else size
    if declared is not None and declared <= SINGLE_BYTES_MAX:
        return SingleUpload(http, tasks, name, metadata, declared, f"{runtime.random.getrandbits(128):032x}")
    return SessionUpload(http, tasks, name, metadata, declared, await _start_session(http, name, metadata, declared))


async def cancel_session(http: GcsHttp, session: str) -> None:
    """Cancels a session. It is no error if the session is gone or complete.

    `CorruptRecordError`: it is not a session of this bucket, and nothing was sent.
    """
    if not http.is_session(session):
        raise CorruptRecordError(f"an upload session is none of bucket {http.bucket!r} at {http.endpoint}; nothing was cancelled")
    doing = f"cancelling an upload session of bucket {http.bucket!r}"
    answer = await http.call(GcsRequest("DELETE", session, doing, accept=(200, 204, *_GONE), effect=True, signed=False))
    if answer.status == 200 and answer.body:  # some servers say 200 instead of 499, but none with words
        raise http.odd(answer, doing, effect=True)


def check_stored(endpoint: str, name: str, metadata: Metadata, told: object) -> None:
    """Raises `ConfigurationError` if a new blob has not the metadata that were sent. It exists, and is to be deleted.

    A lifetime that is left over would end an object that stays.
    """
    if not isinstance(told, Mapping):
        raise UnconfirmedError(f"blob {name!r} was stored, and nobody told how; {BETWEEN}")
    if wrong := differing(name, metadata, told):
        raise ConfigurationError(
            f"blob {name!r} was stored by {endpoint} with other metadata than were sent ({', '.join(wrong)}), so it is not used;"
            " this service does not replace metadata as Google Cloud Storage does: use another, or put the object anew"
        ).telling(heard=True)


async def amend_stored(http: GcsHttp, name: str, metadata: Metadata) -> None:
    """Tells the service of a blob that it has stored what was known only at the payload's end.

    The request is sent once more if its answer is lost: it may come twice, and late, because no other write has this
    blob.
    """
    doing, url = f"setting the metadata of blob {name!r}", http.object_url(name, **_SHOWN)
    body, headers = encode_amended(metadata), {"Content-Type": _JSON}
    request = GcsRequest("PATCH", url, doing, accept=(200, 404), headers=headers, body=body, effect=True)
    try:
        try:
            answer = await http.call(request)
        except UnconfirmedError:
            answer = await http.call(request)
        if answer.status == 404:
            raise UnavailableError(f"{doing} failed: it is gone, because somebody took this write for abandoned; try again")
        check_stored(http.endpoint, name, metadata, answer.json(doing))
    except UnconfirmedError as error:
        raise UnavailableError(f"blob {name!r} was stored without its last metadata, and is not used: {error}") from error


async def _start_session(http: GcsHttp, name: str, metadata: Metadata, declared: int | None) -> str:
    headers = {"Content-Type": _JSON} | ({} if declared is None else {"X-Upload-Content-Length": str(declared)})
    if metadata.content_type.isascii() and metadata.content_type.isprintable():  # some servers look for it only here
        headers["X-Upload-Content-Type"] = metadata.content_type
    url = http.uploads_url(uploadType="resumable", **_CREATE_ONLY, **_SHOWN)
    doing = f"beginning the upload of blob {name!r}"
    answer = await http.call(GcsRequest("POST", url, doing, headers=headers, body=encode_resource(name, metadata)))
    session = answer.headers.get("Location", "")
    if not session:
        raise UnavailableError(f"{doing} was answered without a session; {BETWEEN}")
    if not http.is_session(session):
        raise ConfigurationError(f"{doing} was answered with a session of another address than {http.endpoint}; check the endpoint")
    return session


class GcsUpload(ABC):
    """`Upload`. Its request runs in `tasks` and starts with the first chunk that is not withheld."""

    session: str | None = None

    def __init__(self, http: GcsHttp, tasks: TaskGroup, name: str, metadata: Metadata, declared: int | None) -> None:
        self._http = http
        self._tasks = tasks
        self._name = name
        self._metadata = metadata
        self._amended: Metadata | None = None
        self._declared = declared
        self._size = 0
        self._crc = 0
        self._withheld: list[Chunk] = []
        self._pipe = _Pipe()
        self._begun = False
        self._ended = False
        self._stored = False
        self._released = False
        self._scope = CancelScope()
        self._done = Event()
        self._place = ConnectionSlot()
        self._result: GcsResponse | Exception | None = None

    async def write(self, chunk: Chunk) -> None:
        """Takes one chunk. After an error or a cancellation the upload has ended, and nothing of it will be visible."""
        self._refuse_if_ended()
        chunk = unchanging(chunk)
        if not chunk:
            return
        self._size += len(chunk)
        if self._declared is not None and self._size > self._declared:
            raise self._end(self._wrong_size("more than"))
        *parts, withheld = [*self._withheld, *_cut(chunk)]
        self._withheld = [withheld]
        if parts:
            await self._push(parts, last=False)
        self._crc = extend_crc(self._crc, chunk)  # after the sending has begun

    def amend(self, metadata: Metadata) -> None:
        self._amended = metadata

    async def finalise(self) -> None:
        """Makes the blob visible.

        `UnavailableError`: it was cancelled, or a blob of this name exists, or it arrived damaged.

        `UnconfirmedError`: all was sent, and nothing told the outcome.
        """
        self._refuse_if_ended()
        if self._declared is not None and self._size != self._declared:
            raise self._end(self._wrong_size("not"))
        await self._push(self._withheld or [b""], last=True)
        self._ended = True
        try:
            with move_on_after(self._http.answer_timeout_s):
                await self._done.wait()
        finally:
            self._scope.cancel()
        await self._judge()
        if self._amended is not None:
            await amend_stored(self._http, self._name, self._amended)
        self._stored = True

    async def abort(self) -> None:
        """Drops the request. A session is cancelled in the background."""
        if self._stored:
            return
        self._end()
        if self.session is not None:
            with suppress(RuntimeError):  # the adapter is closed
                self._tasks.start_soon(self._cancel_session, self.session)

    @abstractmethod
    def _request(self, total: int | None) -> tuple[str, str, Mapping[str, str]]:
        """Method, address and headers of the request. `total`: the number of bytes of the payload, if it is known."""

    @abstractmethod
    async def _asked_again(self, doing: str) -> GcsResponse | None:
        """Asks for the answer that was lost. None: this kind of upload cannot ask."""

    def _frame(self) -> tuple[bytes, bytes]:
        """The bytes of the body before and after the payload."""
        return b"", b""

    # --- the request

    def _begin(self, total: int | None) -> None:
        self._begun = True
        try:
            self._tasks.start_soon(self._run, *self._request(total))
        except RuntimeError:  # the adapter is closed
            raise self._end(self._early()) from None

    async def _run(self, method: str, url: str, headers: Mapping[str, str]) -> None:
        try:
            with self._scope:
                signed, body = self.session is None, _Once(self._body())
                self._result = await self._http.exchange(method, url, headers, body, signed=signed, place=self._place)
        except Exception as error:  # noqa: BLE001 - raised where the caller waits for it
            self._result = error
        finally:
            self._pipe.close()
            self._done.set()

    async def _body(self) -> AsyncIterator[Chunk]:
        """The body. It ends properly only after a part was marked as the last one. In every other case it breaks off.
        """
        head, tail = self._frame()
        if head:
            yield head
        last = False
        while not last:
            part, last = await self._pipe.take()
            self._released = last
            if part:
                yield part
        if tail:
            yield tail

    async def _push(self, parts: Sequence[Chunk], *, last: bool) -> None:
        """Gives parts to the request. Returns when it has taken most of them; if the last one is among them, all.

        Raises if the request has ended, or if it takes no part for as long as an answer may take. `AtCapacityError`: it
        has no connection yet, so nothing was sent.
        """
        ahead = 0 if last else PARTS_AHEAD
        try:
            await checkpoint_if_cancelled()  # so that nothing of a cancelled upload is taken any more
            if not self._begun:
                self._begin(self._size if last else self._declared)
            self._pipe.add(parts, last=last)
            while self._pipe.waiting > ahead:
                if self._pipe.closed:
                    raise self._end(None if self._ended else self._early())
                before = self._pipe.waiting
                is_ours = not self._place.had_one  # for a connection, or for a token
                with own_wait() if is_ours else nullcontext(), move_on_after(self._http.answer_timeout_s):
                    await self._pipe.wait_taken(ahead)
                if self._pipe.waiting == before and not self._pipe.closed:
                    raise self._end(self._untaken(last=last))
        except get_cancelled_exc_class():
            self._end()
            raise

    def _untaken(self, *, last: bool) -> TieredError:
        """The error of a request that takes no part. `last`: the last one is among those that wait."""
        return self._http.out_of_time(self._place, self._doing, effect=last)

    # --- the answer

    async def _judge(self) -> None:
        """Returns only if the blob is stored as it was written; raises otherwise."""
        result = self._result
        if isinstance(result, Exception) and not isinstance(result, NoAnswerError):
            raise result
        if not isinstance(result, GcsResponse) or _proves_nothing(result):
            result = await self._found_out(result or self._http.unanswered())
        if result.status in (200, 201):
            self._compare(result)
            return
        raise self._refusal(result)

    async def _found_out(self, lost: GcsResponse | NoAnswerError) -> GcsResponse:
        unclear = (
            self._unclear(lost) if isinstance(lost, GcsResponse)
            else lost_request(lost, self._doing, effect=self._released)
        )
        if not isinstance(unclear, UnconfirmedError):
            raise unclear
        again: GcsResponse | None = None
        with suppress(TieredError):
            again = await self._asked_again(self._doing)
        if again is None or again.status == 308 or _proves_nothing(again):  # 308: what was sent may still be on its way
            raise unclear
        return again

    def _unclear(self, answer: GcsResponse) -> TieredError:
        failed = answer.status == 408 or answer.status >= 500
        return (self._http.refusal if failed else self._http.odd)(answer, self._doing, effect=True)

    def _compare(self, answer: GcsResponse) -> None:
        resource = answer.json(self._doing, effect=True)
        told, written = resource.get("crc32c"), encode_crc(self._crc)
        if told != written:
            raise UnavailableError(
                f"blob {self._name!r} was damaged on its way: its crc32c is {told}, not {written}; delete it, try again"
            ).telling(heard=True)
        check_stored(self._http.endpoint, self._name, self._metadata, resource)

    def _early(self) -> Exception:
        """The error that ended the request before all of it was sent. Nothing is stored."""
        match self._result:
            case GcsResponse(status=200 | 201):
                return UnavailableError(f"{self._doing} was answered before all of it was sent; try again")
            case GcsResponse() as answer:
                return self._refusal(answer)
            case NoAnswerError() as lost:
                return lost_request(lost, self._doing, effect=False)
            case Exception() as error:
                return error
        return UnavailableError(f"{self._doing} was given up: the storage was closed")

    def _refusal(self, answer: GcsResponse) -> TieredError:
        if not answer.is_genuine:
            return self._http.refusal(answer, self._doing, effect=self._released)
        if answer.status == 412:
            return UnavailableError(f"blob {self._name!r} exists already, and nothing is overwritten").coded("412", heard=True)
        if answer.status == 308:
            return UnavailableError(f"{self._doing} failed: the service says that bytes are missing; try again").coded("308", heard=True)
        if self.session is not None and answer.status in _GONE:
            gone = f"the upload of blob {self._name!r} was cancelled before it was finalised, or is a week old; try again"
            return UnavailableError(gone).coded(str(answer.status), heard=True)
        return self._http.refusal(answer, self._doing, effect=self._released)

    # --- beside

    @property
    def _doing(self) -> str:
        return f"the upload of blob {self._name!r}"

    def _refuse_if_ended(self) -> None:
        if self._ended:
            raise InvalidRequestError(f"the upload of {self._name!r} has ended already; begin another")
        if self._done.is_set():
            raise self._end(self._early())

    def _end(self, error: Exception | None = None) -> Exception:
        """Drops the request, so that its body breaks off. Returns the error to raise."""
        self._ended = True
        self._withheld = []
        self._pipe.close()
        self._scope.cancel()
        return error or UnavailableError(f"{self._doing} was given up")

    def _wrong_size(self, relation: str) -> InvalidRequestError:
        return InvalidRequestError(f"the payload of {self._name!r} has {self._size} bytes, {relation} the declared {self._declared}")

    async def _cancel_session(self, session: str) -> None:
        with suppress(TieredError):  # recovery cancels it later, or it expires
            await cancel_session(self._http, session)


class SingleUpload(GcsUpload):
    """One POST with two parts: the resource and the payload. `boundary` is random, so that neither part contains it."""

    def __init__(self, http: GcsHttp, tasks: TaskGroup, name: str, metadata: Metadata, declared: int, boundary: str) -> None:
        super().__init__(http, tasks, name, metadata, declared)
        self._boundary = boundary
        self._before = (
            f"--{boundary}\r\nContent-Type: {_JSON}\r\n\r\n".encode() + encode_resource(name, metadata)
            + f"\r\n--{boundary}\r\nContent-Type: {metadata.content_type}\r\n\r\n".encode()
        )
        self._after = f"\r\n--{boundary}--\r\n".encode()

    def _frame(self) -> tuple[bytes, bytes]:
        return self._before, self._after

    def _request(self, total: int | None) -> tuple[str, str, Mapping[str, str]]:
        assert self._declared is not None, "known, or it would be a session"
        size = len(self._before) + self._declared + len(self._after)
        headers = {"Content-Type": f"multipart/related; boundary={self._boundary}", "Content-Length": str(size)}
        return "POST", self._http.uploads_url(uploadType="multipart", **_CREATE_ONLY, **_SHOWN), headers

    async def _asked_again(self, doing: str) -> GcsResponse | None:
        return None


class SessionUpload(GcsUpload):
    """One PUT to a session. `session` is its address. Whoever knows it may write, so it is never shown.

    The PUT tells the content type, as the start does: some servers of GCS's API take it from the PUT alone.
    """

    def __init__(self, http: GcsHttp, tasks: TaskGroup, name: str, metadata: Metadata, declared: int | None, session: str) -> None:
        super().__init__(http, tasks, name, metadata, declared)
        self.session: str | None = session
        self._url = session

    def _request(self, total: int | None) -> tuple[str, str, Mapping[str, str]]:
        """If the total is unknown, the body is sent in chunks, and its end tells the total."""
        headers = {"Content-Type": self._metadata.content_type}
        match total:
            case None:
                headers |= {"Content-Range": "bytes 0-*/*"}
            case 0:
                headers |= {"Content-Range": "bytes */0", "Content-Length": "0"}
            case _:
                headers |= {"Content-Range": f"bytes 0-{total - 1}/{total}", "Content-Length": str(total)}
        return "PUT", self._url, headers

    async def _asked_again(self, doing: str) -> GcsResponse | None:
        headers = {"Content-Type": self._metadata.content_type, "Content-Range": f"bytes */{self._size}"}
        accept = (200, 201, 308, 412, *_GONE)
        return await self._http.call(GcsRequest("PUT", self._url, doing, accept=accept, headers=headers, signed=False))


class _Once:
    """A body that can be iterated once, so that the HTTP library cannot repeat a request that was partly sent."""

    def __init__(self, chunks: AsyncIterator[Chunk]) -> None:
        self._chunks: AsyncIterator[Chunk] | None = chunks

    def __aiter__(self) -> AsyncIterator[Chunk]:
        chunks, self._chunks = self._chunks, None
        if chunks is None:
            raise RuntimeError("the body of an upload is sent once")
        return chunks


class _Pipe:
    """Parts on their way from the writer's task to the request's. Each is taken at most once, and in order."""

    def __init__(self) -> None:
        self._parts: deque[tuple[Chunk, bool]] = deque()
        self.closed = False
        self._ahead = 0
        self._added: Event | None = None
        self._taken: Event | None = None

    @property
    def waiting(self) -> int:
        """How many parts were added and not taken."""
        return len(self._parts)

    def add(self, parts: Sequence[Chunk], *, last: bool) -> None:
        """Adds parts. `last`: nothing comes after them."""
        self._parts.extend((part, last and place == len(parts)) for place, part in enumerate(parts, 1))
        if self._added is not None:
            self._added.set()

    async def take(self) -> tuple[Chunk, bool]:
        """Returns the next part, and whether it is the last one. Raises `BrokenPipeError` if the pipe is closed."""
        while not self._parts and not self.closed:
            self._added = Event()
            await self._added.wait()
        if self.closed:
            raise BrokenPipeError("the upload has ended")
        taken = self._parts.popleft()
        if self._taken is not None and len(self._parts) <= self._ahead:
            self._taken.set()
        return taken

    async def wait_taken(self, ahead: int) -> None:
        """Waits until at most `ahead` parts are left, or until the pipe is closed."""
        if len(self._parts) > ahead and not self.closed:
            self._ahead, self._taken = ahead, Event()
            await self._taken.wait()

    def close(self) -> None:
        """From now on, nothing is taken. Safe to repeat."""
        self.closed = True
        for waited_for in (self._added, self._taken):
            if waited_for is not None:
                waited_for.set()


def unchanging(chunk: Chunk) -> Chunk:
    """The chunk, or a copy of it if somebody else can change it."""
    if isinstance(chunk, bytes):
        return chunk
    view = memoryview(chunk).cast("B")
    return view if isinstance(view.obj, bytes) else bytes(view)


def _cut(chunk: Chunk) -> Iterator[Chunk]:
    """Cuts a chunk into parts of at most 256 KiB, and copies nothing."""
    if len(chunk) <= CHUNK_BYTES:
        yield chunk
        return
    view = memoryview(chunk)
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


def _proves_nothing(answer: GcsResponse) -> bool:
    """Whether it may be that the service did something else than the answer says, or that it did not answer at all."""
    if answer.status in (200, 201):
        return not answer.is_resource
    return answer.status == 408 or answer.status >= 500 or not answer.is_genuine
