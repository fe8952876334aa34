"""Uploads to GCS: each payload streams out in ONE request, whose end is withheld until `finalise`.

What is cut off goes on in another request, from where the service has got to (`tiered/transfer/resuming.py`).

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
makes the caller delete it.

*Cut off* is a request whose connection breaks or takes nothing for as long as an answer may take, and one that is
answered with 308, 408, 429, 5xx but 501, or by something in between. A session is asked how far it is, and goes on
there. A multipart POST is sent anew, unless its end was sent and nothing proves that it was refused: it could arrive
twice, and late. Each is tried until the service has taken no more bytes for `Resuming.budget_s`. Meanwhile, `write`
waits. Then it is `UnavailableError`, or `UnconfirmedError` if an end was sent whose answer was lost; unless that gave a
limit of the service as its reason: then nothing was stored.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial

from anyio import CancelScope, Event, current_time, get_cancelled_exc_class, move_on_after
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled

from changelog.base.errors import (
    ConfigurationError,
    CorruptRecordError,
    TieredError,
    UnavailableError,
    UnconfirmedError,
)
from changelog.base.events import events
from changelog.base.own_waits import own_wait
from tiered.gcs.answers import GcsResponse, a_session, nothing
from tiered.gcs.format import CHECKED_FIELDS, encode_resource
from tiered.gcs.http import JSON, ConnectionSlot, GcsHttp, GcsRequest, NoAnswerError, lost_request
from tiered.gcs.pipe import Pipe, SentOnce, cut
from tiered.gcs.stored import amend_stored, check_stored
from tiered.metadata import Metadata
from tiered.payload.chunks import Chunk, Reread, unchanging
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.services.retry import backoff_s
from tiered.transfer.counted import CountedUpload, cancel_soon
from tiered.transfer.resuming import HELD_BYTES, Resuming, SentBytes

SINGLE_BYTES_MAX = 8 * 1024 * 1024
"""For larger blobs, the extra round trip that opens a session takes little time compared with the transfer."""

PARTS_AHEAD = 2
"""With more parts in the pipe, the two tasks change places less often. With fewer, an upload takes less memory."""

Outcome = GcsResponse | NoAnswerError

_CREATE_ONLY = {"ifGenerationMatch": "0"}
_SHOWN = {"fields": CHECKED_FIELDS}
_GONE = (404, 410, 499)
"""The statuses of a session that was cancelled or has expired."""


async def open_upload(http: GcsHttp, tasks: TaskGroup, resuming: Resuming, name: str, metadata: Metadata, size: int | None) -> GcsUpload:
    """Begins an upload. Sends nothing yet, except the request that opens a session."""
    declared = metadata.size if size is None else size
    if declared is not None and declared <= SINGLE_BYTES_MAX:
        boundary = f"{resuming.runtime.random.getrandbits(128):032x}"
        return SingleUpload(http, tasks, resuming, name, metadata, declared, boundary)
    session = await resuming.begin(lambda: _start_session(http, name, metadata, declared))
    return SessionUpload(http, tasks, resuming, name, metadata, declared, session)


async def cancel_session(http: GcsHttp, session: str) -> None:
    """Cancels a session. It is no error if the session is gone or complete.

    `CorruptRecordError`: it is not a session of this bucket, and nothing was sent.
    """
    if not http.is_session(session):
        raise CorruptRecordError(f"an upload session is none of bucket {http.bucket!r} at {http.endpoint}; nothing was cancelled")
    doing = f"cancelling an upload session of bucket {http.bucket!r}"
    # Some servers say 200 instead of 499, but none with words.
    await http.call(GcsRequest("DELETE", session, doing, nothing, accept=(200, 204, *_GONE), effect=True, signed=False))


async def _start_session(http: GcsHttp, name: str, metadata: Metadata, declared: int | None) -> str:
    headers = JSON | ({} if declared is None else {"X-Upload-Content-Length": str(declared)})
    if metadata.content_type.isascii() and metadata.content_type.isprintable():  # some servers look for it only here
        headers["X-Upload-Content-Type"] = metadata.content_type
    url = http.uploads_url(uploadType="resumable", **_CREATE_ONLY, **_SHOWN)
    doing = f"beginning the upload of blob {name!r}"
    answer = await http.call(GcsRequest("POST", url, doing, a_session, headers=headers, body=encode_resource(name, metadata)))
    session = str(answer.told)
    if not http.is_session(session):
        raise ConfigurationError(f"{doing} was answered with a session of another address than {http.endpoint}; check the endpoint")
    return session


class GcsUpload(CountedUpload, ABC):
    """`Upload`. Its request runs in `tasks` and starts with the first chunk that is not withheld."""

    def __init__(
        self, http: GcsHttp, tasks: TaskGroup, resuming: Resuming, name: str, metadata: Metadata, declared: int | None
    ) -> None:
        super().__init__(name, declared)
        self._http = http
        self._tasks = tasks
        self._metadata = metadata
        self._total = declared
        self._resuming = resuming
        self._sent = SentBytes()
        self._unreadable: Exception | None = None
        self._given_up = ""
        self._was_idle = False
        self._crc = 0
        self._withheld: list[Chunk] = []
        self._pipe = Pipe()
        self._begun = False
        self._stored = False
        self._stored_here = http.an_object(name, CHECKED_FIELDS)
        self._released = False
        self._scope = CancelScope()
        self._done = Event()
        self._place = ConnectionSlot()
        self._result: GcsResponse | Exception | None = None

    async def write(self, chunk: Chunk) -> None:
        """Takes one chunk. After an error or a cancellation the upload has ended, and nothing of it will be visible."""
        chunk = unchanging(chunk)
        self._count(len(chunk))
        if not chunk:
            return
        *parts, withheld = [*self._withheld, *cut(chunk)]
        self._withheld = [withheld]
        if parts:
            await self._push(parts, last=False)
        self._crc = extend_crc(self._crc, chunk)  # after the sending has begun

    def resume_with(self, reread: Reread) -> None:
        self._sent.reread = reread

    async def finalise(self) -> None:
        """Makes the blob visible.

        `UnavailableError`: it was cancelled, or a blob of this name exists, or it arrived damaged.

        `UnconfirmedError`: all was sent, and nothing told the outcome.
        """
        self._count_all()
        self._total = self._size
        await self._push(self._withheld or [b""], last=True)
        self._ended = True
        try:
            await self._done.wait()
        finally:
            self._scope.cancel()
        await self._judge()
        if self._amended is not None:
            await amend_stored(self._http, self._resuming, self._name, self._amended)
        self._stored = True

    async def abort(self) -> None:
        """Drops the request. A session is cancelled in the background."""
        if self._stored:
            return
        self._end()
        if self.session is not None:
            cancel_soon(self._tasks, partial(cancel_session, self._http), self.session)

    @abstractmethod
    def _request(self, offset: int) -> tuple[str, str, Mapping[str, str]]:
        """Method, address and headers of the request that brings the bytes of the payload from `offset` on."""

    @abstractmethod
    async def _reached(self, cut: Outcome) -> Outcome | int | None:
        """From which byte on to send after a request that was cut off. An outcome: it has ended. None: nobody told."""

    def _frame(self) -> tuple[bytes, bytes]:
        """The bytes of the body before and after the payload."""
        return b"", b""

    # --- the request

    def _begin(self) -> None:
        self._begun = True
        try:
            self._tasks.start_soon(self._run)
        except RuntimeError:  # the adapter is closed
            raise self._end(self._early()) from None

    async def _run(self) -> None:
        held = self._hold()
        try:
            with self._scope:
                self._result = await self._send()
        except Exception as error:  # noqa: BLE001 - raised where the caller waits for it
            self._result = error
        finally:
            self._pipe.close()
            self._sent.hold(0)
            self._resuming.hold(-held)
            self._done.set()

    def _hold(self) -> int:
        """Lets what is sent be held, if it may be needed again and there is room for it. Returns how many bytes."""
        resuming, size = self._resuming, HELD_BYTES if self._total is None else min(HELD_BYTES, self._total)
        if not resuming.budget_s or self._sent.reread is not None or not resuming.has_room(size):
            return 0
        resuming.hold(size)
        self._sent.hold(size)
        return size

    async def _send(self) -> Outcome:
        outcome = await self._attempt(0, self._place)
        may_go_on = _is_cut(outcome) and (self._resuming.budget_s or self._released)
        return await self._go_on(outcome) if may_go_on else outcome

    async def _go_on(self, outcome: Outcome) -> Outcome:
        """Sends what the service lacks after a request that was cut off, and so on while that makes progress."""
        runtime, budget_s = self._resuming.runtime, self._resuming.budget_s
        clock = runtime.monotonic
        ends_at, failures, most = clock() + budget_s, 0, 0
        unclear: Outcome | None = None
        while True:
            if unclear is None and self._is_unclear(outcome):
                unclear = outcome
            told = await self._reached(outcome)
            if isinstance(told, int):
                if told > most or self._was_idle:
                    ends_at, failures, most = clock() + budget_s, 0, max(told, most)
                if not self._sent.can_go_on_from(told):
                    self._given_up = f"the service has {told} bytes, and the payload cannot be read again from there"
                    break
            elif told is not None:
                outcome = told
                break
            failures += 1
            wait_s = backoff_s(runtime, failures)
            if clock() + wait_s >= ends_at:
                if budget_s:
                    of = f"{self._size} that were given" if self._total is None else f"{self._total}"
                    self._given_up = f"for {budget_s:g} s, the service has taken no more than {most} bytes of {of}"
                break
            if failures == 1:
                events.warning("upload_cut_off", self._error_of(outcome), reached=most)
            await runtime.sleep(wait_s)
            if isinstance(told, int):
                try:
                    outcome = await self._attempt(told, ConnectionSlot())
                except TieredError as error:
                    if unclear is None:
                        raise
                    self._given_up = str(error)
                    break
                if not _is_cut(outcome, again=True):
                    break
        return outcome if unclear is None or _is_certain(outcome) else unclear

    async def _attempt(self, offset: int, place: ConnectionSlot) -> Outcome:
        """One request. It ends also if it takes no part, or has no answer, for as long as an answer may take."""
        method, url, headers = self._request(offset)
        self._pipe.turn += 1
        self._was_idle = False
        outcome: Outcome = self._http.unanswered()
        with CancelScope(deadline=current_time() + self._http.answer_timeout_s if place is not self._place else math.inf) as watch:
            body = SentOnce(self._body(offset, watch, self._pipe.turn))
            is_single = self.session is None
            request = GcsRequest(
                method, url, self._doing, self._stored_here, accept=(200, 201, *([] if is_single else [308])), headers=headers,
                body=body, signed=is_single,
            )  # fmt: skip
            try:
                outcome = await self._http.exchange(request, place)
            except NoAnswerError as error:
                outcome = error
        self._was_idle = self._pipe.is_awaited
        if self._unreadable is not None:
            raise self._unreadable
        return outcome

    async def _body(self, offset: int, watch: CancelScope, turn: int) -> AsyncIterator[Chunk]:
        """The body. It ends properly only after a part was marked as the last one. In every other case it breaks off.

        The time of `watch` runs while a part is being sent, and after the end; not while the writer is waited for.
        """
        head, tail = self._frame()
        if head:
            yield head
        async for part in self._parts(offset, turn):
            watch.deadline = current_time() + self._http.answer_timeout_s
            yield part
            watch.deadline = math.inf
        watch.deadline = current_time() + self._http.answer_timeout_s
        if tail:
            yield tail

    async def _parts(self, offset: int, turn: int) -> AsyncIterator[Chunk]:
        try:
            async for chunk in self._sent.again(offset):
                for part in cut(chunk):
                    yield part
        except TieredError as error:  # the HTTP library would take it for its own
            self._unreadable = error
            raise
        while not self._released:
            part, last = await self._pipe.take(turn)
            self._sent.add(part)
            self._released = last
            if part:
                yield part

    async def _push(self, parts: Sequence[Chunk], *, last: bool) -> None:
        """Gives parts to the request. Returns when it has taken most of them; if the last one is among them, all.

        Raises if the request has ended: one that takes nothing ends by itself. `AtCapacityError`: it has no connection
        for as long as an answer may take, so nothing was sent.
        """
        ahead = 0 if last else PARTS_AHEAD
        try:
            await checkpoint_if_cancelled()  # so that nothing of a cancelled upload is taken any more
            if not self._begun:
                self._begin()
            self._pipe.add(parts, last=last)
            while self._pipe.waiting > ahead:
                if self._pipe.closed:
                    raise self._end(None if self._ended else self._early())
                if self._place.had_one:
                    await self._pipe.wait_taken(ahead)
                    continue
                with own_wait(), move_on_after(self._http.answer_timeout_s) as waiting:  # for a connection, or for a token
                    await self._pipe.wait_taken(ahead)
                if waiting.cancelled_caught and not self._place.had_one and not self._pipe.closed:
                    raise self._end(self._http.out_of_time(self._place, self._doing, effect=last))
        except get_cancelled_exc_class():
            self._end()
            raise

    # --- the answer

    async def _judge(self) -> None:
        """Returns only if the blob is stored as it was written; raises otherwise."""
        result = self._result or self._http.unanswered()
        if isinstance(result, Exception) and not isinstance(result, NoAnswerError):
            raise result
        if not isinstance(result, GcsResponse) or _proves_nothing(result) or result.status not in (200, 201):
            raise self._reaching(self._error_of(result))
        await check_stored(self._http, self._name, self._metadata, result.told, encode_crc(self._crc))

    def _error_of(self, outcome: Outcome) -> TieredError:
        if isinstance(outcome, GcsResponse) and not _proves_nothing(outcome):
            return self._refusal(outcome)
        return self._unclear(outcome)

    def _is_unclear(self, outcome: Outcome) -> bool:
        """Whether what was sent may have made the blob, or may make it yet."""
        is_lost = not isinstance(outcome, GcsResponse) or _proves_nothing(outcome)
        return self._released and is_lost and isinstance(self._unclear(outcome), UnconfirmedError)

    def _unclear(self, outcome: Outcome) -> TieredError:
        if not isinstance(outcome, GcsResponse):
            return lost_request(outcome, self._doing, effect=self._released)
        failed = outcome.status == 408 or outcome.status >= 500
        return (self._http.refusal if failed else self._http.odd)(outcome, self._doing, effect=True)

    def _reaching(self, error: TieredError) -> TieredError:
        """The error, with how far the upload got if it was gone on with."""
        if not self._given_up:
            return error
        return type(error)(f"{error}; {self._given_up}").like(error)

    def _early(self) -> Exception:
        """The error that ended the request before all of it was sent. Nothing is stored."""
        match self._result:
            case GcsResponse(status=200 | 201):
                return UnavailableError(f"{self._doing} was answered before all of it was sent; try again")
            case GcsResponse() as answer:
                return self._reaching(self._refusal(answer))
            case NoAnswerError() as lost:
                return self._reaching(lost_request(lost, self._doing, effect=False))
            case Exception() as error:
                return error
        return self._closed()

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

    def _failed(self) -> Exception | None:
        return self._early() if self._done.is_set() else None

    def _end(self, error: Exception | None = None) -> Exception:
        """Drops the request, so that its body breaks off. Returns the error to raise."""
        self._withheld = []
        self._pipe.close()
        self._scope.cancel()
        return super()._end(error)


class SingleUpload(GcsUpload):
    """One POST with two parts: the resource and the payload. `boundary` is random, so that neither part contains it."""

    def __init__(
        self, http: GcsHttp, tasks: TaskGroup, resuming: Resuming, name: str, metadata: Metadata, declared: int, boundary: str
    ) -> None:
        super().__init__(http, tasks, resuming, name, metadata, declared)
        self._boundary = boundary
        self._before = (
            f"--{boundary}\r\nContent-Type: {JSON['Content-Type']}\r\n\r\n".encode() + encode_resource(name, metadata)
            + f"\r\n--{boundary}\r\nContent-Type: {metadata.content_type}\r\n\r\n".encode()
        )
        self._after = f"\r\n--{boundary}--\r\n".encode()

    def _frame(self) -> tuple[bytes, bytes]:
        return self._before, self._after

    def _request(self, offset: int) -> tuple[str, str, Mapping[str, str]]:
        assert self._declared is not None, "known, or it would be a session"
        size = len(self._before) + self._declared + len(self._after)
        headers = {"Content-Type": f"multipart/related; boundary={self._boundary}", "Content-Length": str(size)}
        return "POST", self._http.uploads_url(uploadType="multipart", **_CREATE_ONLY, **_SHOWN), headers

    async def _reached(self, cut: Outcome) -> Outcome | int | None:
        return cut if self._is_unclear(cut) else 0


class SessionUpload(GcsUpload):
    """One PUT to a session, and one more after each cut. `session` is its address, which is never shown: whoever knows
    it may write.

    The PUT tells the content type, as the start does: some servers of GCS's API take it from the PUT alone.
    """

    def __init__(
        self, http: GcsHttp, tasks: TaskGroup, resuming: Resuming, name: str, metadata: Metadata, declared: int | None, session: str
    ) -> None:
        super().__init__(http, tasks, resuming, name, metadata, declared)
        self.session: str | None = session
        self._url = session

    def _request(self, offset: int) -> tuple[str, str, Mapping[str, str]]:
        """If the total is unknown, the body is sent in chunks, and its end tells the total."""
        headers = {"Content-Type": self._metadata.content_type}
        if self._total is None:
            headers |= {"Content-Range": f"bytes {offset}-*/*"}
        elif offset == self._total:
            headers |= {"Content-Range": f"bytes */{offset}", "Content-Length": "0"}
        else:
            headers |= {"Content-Range": f"bytes {offset}-{self._total - 1}/{self._total}", "Content-Length": str(self._total - offset)}
        return "PUT", self._url, headers

    async def _reached(self, cut: Outcome) -> Outcome | int | None:
        """What the session says of itself. Its end is told only when it was sent: the service may take it for one."""
        total = self._declared if self._declared is not None else self._size if self._released else "*"
        headers = {"Content-Type": self._metadata.content_type, "Content-Range": f"bytes */{total}"}
        accept = (200, 201, 308, 412, *_GONE)
        try:
            answer = await self._http.call(GcsRequest(
                "PUT", self._url, self._doing, self._stored_here, accept=accept, headers=headers, signed=False
            ))
        except TieredError:
            return None
        if answer.status == 308:
            return answer.reached if answer.reached <= self._sent.size else None
        return None if _proves_nothing(answer) else answer


def _is_cut(outcome: Outcome, *, again: bool = False) -> bool:
    """Whether the upload may go on in another request. `again`: it has gone on, so its offset may not fit any more."""
    if not isinstance(outcome, GcsResponse):
        return True
    return outcome.status in (308, 429) or (_proves_nothing(outcome) and outcome.status != 501) or (again and outcome.status == 400)


def _is_certain(outcome: Outcome) -> bool:
    """Whether it tells what became of the upload, whatever was sent before."""
    return isinstance(outcome, GcsResponse) and outcome.is_genuine and outcome.status in (200, 201, 412, *_GONE)


def _proves_nothing(answer: GcsResponse) -> bool:
    """Whether it may be that the service did something else than the answer says, or that it did not answer at all."""
    return answer.status == 408 or answer.status >= 500 or not answer.is_genuine
