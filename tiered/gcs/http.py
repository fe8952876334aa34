"""`GcsHttp`: requests to one bucket over Google Cloud Storage's JSON API, and what its refusals mean.

Uploads in parts are in the XML API alone. Their requests are marked (`xml`), because refusals have another form there.

    call          one request, one answer; a status that is not accepted is raised
    exchange      the same for a body that streams, without a time limit, and with every status returned
    open_media    an answer whose body is read chunk by chunk

Each request is sent once. The protocol decides what may be repeated, not this module. A name becomes one segment of the
path, in which all bytes but letters, digits, `-`, `_` and `~` are escaped, also dots. The HTTP library does not parse
the URL again.

*Failure*: if there is no answer, or one that proves nothing (408, 5xx but 501, or a status from 400 on that is not in
`_ADVICE` below), a request with an effect ends with `UnconfirmedError` and any other with `UnavailableError`. So does
one whose answer is not shaped like the service's to this call (`tiered/gcs/answers.py`): something in between may have
given it, or it is that of another call. The other statuses are in `_ADVICE`. A request that gets no connection of ours
is `AtCapacityError`, and one that gets no token `UnavailableError`: the service is not to blame. 404 means here that
the bucket is missing. Uploads and blobs accept it, and give it another meaning. Whoever knows the address of an upload
session may write to it. So errors that are raised here do not contain it, and their causes do not, either. Runs on
asyncio only. Uses no proxies from the environment and no cookies, and follows no redirects.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Self
from urllib.parse import quote, urlencode

import aiohttp
from anyio import CancelScope, current_time, fail_after, move_on_after
from yarl import URL

from changelog.base.connections import unspoilt
from changelog.base.errors import ConfigurationError, InvalidRequestError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.own_waits import own_wait
from changelog.google.authorize import Authorize
from tiered.errors import AtCapacityError
from tiered.gcs.answers import GcsResponse, Shape, a_listing, an_object, is_media, media
from tiered.payload.chunks import Chunk
from tiered.services.paging import PageCheck
from tiered.stored import CHUNK_BYTES

ENDPOINT = "https://storage.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
CONNECT_TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""The largest answers are pages of a thousand blobs with all their metadata."""
REFUSAL_BYTES_MAX = 1024 * 1024
JSON = {"Content-Type": "application/json; charset=UTF-8"}


@dataclass(frozen=True, slots=True)
class GcsRequest:
    """A request to the service, and which answers to it are accepted.

    `doing`: what the request does, for messages. `shape`: what its success looks like. `accept`: statuses that are
    returned. `effect`: the request may change something, so without an answer it is `UnconfirmedError`. `signed` False:
    the address needs no credentials. `answers`: it may take as long as so many answers. `answer_bytes_max`: of a
    success. `looked_into`: accepted statuses that are returned also if something in between may have given them,
    because the caller looks in another way. `xml`: it is one of the XML API. While a body streams, the time for the
    answer runs anew with each chunk that is taken.
    """

    method: str
    url: str
    doing: str
    shape: Shape
    _: KW_ONLY
    accept: Collection[int] = (200,)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | AsyncIterable[Chunk] = b""
    effect: bool = False
    signed: bool = True
    answers: int = 1
    answer_bytes_max: int = ANSWER_BYTES_MAX
    looked_into: Collection[int] = ()
    xml: bool = False


class NoAnswerError(Exception):
    """The connection failed. `sent` False: no byte of the request left this machine. The text holds no secret."""

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.sent = sent


class ConnectionSlot:
    """A request's place among the connections. `is_awaited`: it waits for its first one. `had_one`: it may be sent.
    `renews`: its token was refused, and the next request has a newer one.

    Before it has a connection, no byte of it has left. The library itself sends some requests again if a connection
    that it had kept turns out to be closed.
    """

    __slots__ = ("_limit_s", "_own_wait", "_timer", "had_one", "is_awaited", "renews")

    def __init__(self) -> None:
        self.is_awaited = self.had_one = self.renews = False
        self._own_wait: own_wait | None = None
        self._timer: CancelScope | None = None
        self._limit_s = math.inf

    @contextmanager
    def answered_within(self, limit_s: float) -> Iterator[None]:
        """Raises `TimeoutError` after so long. The time runs anew when the request has its token, and its connection.
        """
        with move_on_after(limit_s) as self._timer:
            self._limit_s = limit_s
            yield
        if self._timer.cancelled_caught:
            raise TimeoutError

    def wait(self) -> None:
        self.is_awaited = not self.had_one
        self._own_wait = self._own_wait or own_wait()
        self._own_wait.begin()

    def get(self) -> None:
        self.is_awaited, self.had_one = False, True
        self.leave()
        self.go_on()

    def go_on(self) -> None:
        """What was waited for is there: from here on the time runs anew, but for a twentieth of it at most.

        Each piece of a body comes here. A timer that was set anew for each took 4 to 7 % of the CPU of a put in lanes.
        """
        if self._timer is None or self._timer.cancel_called:
            return
        deadline = current_time() + self._limit_s
        if deadline - self._timer.deadline >= self._limit_s / 20:
            self._timer.deadline = deadline

    def leave(self) -> None:
        """The request waits for nothing here any more: it is under way, or it has ended."""
        if self._own_wait is not None:
            self._own_wait.end()


class GcsHttp:
    """Open it with `GcsHttp.connect`.

    `answer_timeout_s`: how long one answer, or one chunk of a body, may take, in seconds.
    """

    def __init__(
        self, session: aiohttp.ClientSession, endpoint: str, bucket: str, authorize: Authorize | None, connections_max: int,
        answer_timeout_s: float,
    ) -> None:
        self.endpoint = endpoint
        self.bucket = bucket
        self.answer_timeout_s = answer_timeout_s
        self._session = session
        self._authorize = authorize
        self._connections_max = connections_max
        self._objects = f"{endpoint}/storage/v1/b/{quoted(bucket)}/o"
        self._uploads = f"{endpoint}/upload/storage/v1/b/{quoted(bucket)}/o"
        # For a bucket such as blobs.example.com the service does not escape the dots in the address of a session.
        self._sessions = {
            f"{endpoint}{kind}/storage/v1/b/{spelt}/o"
            for kind in ("/upload", "/resumable/upload") for spelt in (quoted(bucket), quote(bucket, safe=""))
        }

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, endpoint: str, bucket: str, authorize: Authorize | None, connections_max: int, answer_timeout_s: float
    ) -> AsyncIterator[Self]:
        """Prepares the connections; sends nothing yet. `ConfigurationError`: the endpoint is no URL."""
        # Without the default port, because the service leaves it out in the addresses of its sessions.
        endpoint = re.sub(r"^(https://[^/]+):443$|^(http://[^/]+):80$", r"\1\2", endpoint.rstrip("/"))
        if not re.fullmatch(r"https?://[^/?#@\s]+", endpoint):
            raise ConfigurationError(f"the GCS endpoint {endpoint!r} is no address such as {ENDPOINT} or http://127.0.0.1:9199")
        async with aiohttp.ClientSession(
            connector=unspoilt(aiohttp.TCPConnector(limit=connections_max)),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            headers={"Accept-Encoding": "identity", "User-Agent": "tiered"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False, trust_env=False, read_bufsize=CHUNK_BYTES, trace_configs=[_places()],
        ) as session:  # fmt: skip
            yield cls(session, endpoint, bucket, authorize, connections_max, answer_timeout_s)

    # --- addresses

    def object_url(self, name: str, **query: str) -> str:
        return _url(f"{self._objects}/{quoted(name)}", query)

    def copy_url(self, name: str, target: str, **query: str) -> str:
        """The address that copies a blob within the bucket."""
        return _url(f"{self._objects}/{quoted(name)}/rewriteTo/b/{quoted(self.bucket)}/o/{quoted(target)}", query)

    def restore_url(self, name: str, **query: str) -> str:
        """The address that makes a blob anew from a soft-deleted generation."""
        return _url(f"{self._objects}/{quoted(name)}/restore", query)

    def objects_url(self, **query: str) -> str:
        return _url(self._objects, query)

    def bucket_url(self, **query: str) -> str:
        return _url(self._objects.removesuffix("/o"), query)

    def xml_url(self, path: str, **query: str) -> str:
        """An address of the XML API. `path`: the bucket and a blob's name, as `xml_path` makes it."""
        return _url(f"{self.endpoint}/{path}", query)

    def xml_path(self, name: str) -> str:
        return f"{quoted(self.bucket)}/{'/'.join(map(quoted, name.split('/')))}"

    @property
    def batch_url(self) -> str:
        return f"{self.endpoint}/batch/storage/v1"

    def uploads_url(self, **query: str) -> str:
        return _url(self._uploads, query)

    def is_session(self, url: str) -> bool:
        """Whether the address is an upload session of this endpoint and bucket.

        Nothing is ever sent to any other address.
        """
        path, _, query = url.partition("?")
        return path in self._sessions and re.search(r"(^|&)upload_id=[^&#]", query) is not None and "#" not in url

    def an_object(self, name: str, fields: str, generation: str | None = None) -> Shape:
        """The shape of the resource of a blob here: see `answers.an_object`."""
        return an_object(self.bucket, name, fields, generation)

    # --- requests

    async def call(self, request: GcsRequest) -> GcsResponse:
        """Sends one request and returns its answer. A status that it does not accept is raised as `refusal` says."""
        doing, effect, answers = request.doing, request.effect, request.answers
        fault: TieredError | None = None  # raised outside of the clause, so that it is not chained to what holds the address
        place = ConnectionSlot()
        try:
            with place.answered_within(answers * self.answer_timeout_s):
                body = request.body if isinstance(request.body, bytes) else _advancing(request.body, place)
                answer = await self.exchange(replace(request, body=body), place)
        except NoAnswerError as error:
            fault = lost_request(error, doing, effect=effect)
        except TimeoutError:
            fault = self.out_of_time(place, doing, effect=effect, answers=answers)
        if fault is not None:
            raise fault
        if answer.status not in request.accept:
            raise self.refusal(answer, doing, effect=effect)
        if not answer.is_genuine and answer.status not in request.looked_into:
            raise self.odd(answer, doing, effect=effect)
        return answer

    async def pages(self, query: Mapping[str, str], doing: str) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yields the pages of a listing of the bucket, as the service gave them. `ListingError`: they cannot be true.

        The query asks for its `kind`, for names and, if there may be several blobs of one name, for generations.
        """
        asked, has_many = dict(query), "versions" in query or "softDeleted" in query
        check = check_of(query, doing)
        while True:
            page: Mapping[str, Any] = (await self.call(GcsRequest("GET", self.objects_url(**asked), doing, a_listing(asked)))).told
            items, token = page.get("items", []), page.get("nextPageToken")
            check.take([item["name"] for item in items], token, [item.get("generation") for item in items] if has_many else None)
            yield page
            if not token:
                return
            asked["pageToken"] = token

    async def exchange(self, request: GcsRequest, place: ConnectionSlot) -> GcsResponse:
        """Sends one request with a body that may stream.

        If the answer comes before the body's end, the rest is not sent.

        Raises `NoAnswerError`, and the errors of `Authorize`. It has no time limit and returns every status.
        """
        response = await self._begin(request, place)
        try:
            body = await self._read(response, request.answer_bytes_max)
        finally:
            response.close()  # after an early answer, this stops the rest of the body
        answer = GcsResponse.of(response.status, response.headers, body, request.shape, goes_on=308 in request.accept, xml=request.xml)
        return replace(answer, renews=True) if place.renews else answer

    async def _read(self, response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
        most, body = bytes_max if response.status < 300 else min(bytes_max, REFUSAL_BYTES_MAX), bytearray()
        try:
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > most:
                    break
            else:
                return bytes(body)
        except (aiohttp.ClientError, OSError) as error:
            fault = _no_answer(error, self.endpoint)
        else:
            fault = NoAnswerError(f"{self.endpoint} answered with more than {most} bytes; {BETWEEN}", sent=True)
        raise fault

    async def open_media(self, url: str, headers: Mapping[str, str], doing: str, accept: Collection[int]) -> Media:
        """Opens an answer whose body is read chunk by chunk. The caller closes it.

        Compressed bytes come as they are stored: with `Accept-Encoding: gzip` the service does not decompress them.
        `accept`: statuses that are returned. The caller looks into those that are no success.
        """
        fault: TieredError | None = None
        place = ConnectionSlot()
        response: aiohttp.ClientResponse | None = None
        opened: Media | None = None
        try:
            with place.answered_within(self.answer_timeout_s):
                response = await self._begin(GcsRequest("GET", url, doing, media, headers={"Accept-Encoding": "gzip", **headers}), place)
                if response.status in accept and (response.status >= 300 or is_media(response.headers)):
                    opened = Media(response, self._session, self.answer_timeout_s, self.endpoint, doing)
                    return opened
                answer = GcsResponse.of(response.status, response.headers, await self._read(response, REFUSAL_BYTES_MAX), media)
                answer = replace(answer, renews=place.renews)
        except NoAnswerError as error:
            fault = lost_request(error, doing, effect=False)
        except TimeoutError:
            fault = self.out_of_time(place, doing, effect=False)
        finally:
            if response is not None and opened is None:
                response.close()
        raise fault or (self.odd if answer.status in accept else self.refusal)(answer, doing, effect=False)

    async def _begin(self, request: GcsRequest, place: ConnectionSlot) -> aiohttp.ClientResponse:
        proof: Mapping[str, str] = {}
        if request.signed and self._authorize is not None:
            proof = await self._authorize(self.answer_timeout_s)
            place.go_on()
        try:
            response = await self._session.request(
                request.method, URL(request.url, encoded=True), data=request.body or None, headers={**request.headers, **proof},
                allow_redirects=False, trace_request_ctx=place,
            )  # fmt: skip
            if response.status == 401 and proof and self._authorize is not None:
                place.renews = self._authorize.refused(proof)
            return response
        except (aiohttp.ClientError, OSError) as error:
            fault = _no_answer(error, self.endpoint)
        except RuntimeError as error:
            if not self._session.closed:
                raise
            fault = NoAnswerError(f"the connection is closed: open the storage again ({error})", sent=False)
        finally:
            place.leave()
        raise fault

    # --- blobs

    async def resource(self, name: str, fields: str) -> Mapping[str, Any] | None:
        """What the service tells of a blob. `fields`: with its name. None: there is no such blob."""
        doing = f"reading what blob {name!r} is"
        url, shape = self.object_url(name, fields=fields), self.an_object(name, fields)
        answer = await self.call(GcsRequest("GET", url, doing, shape, accept=(200, 404), looked_into=(404,)))
        if answer.status == 404:
            await self.check_gone(name, answer, doing, effect=False)
            return None
        told: Mapping[str, Any] = answer.told
        return told

    async def check_gone(self, name: str, answer: GcsResponse, doing: str, *, effect: bool = True) -> None:
        """Returns if the blob is certainly not there, and the bucket is. Raises if the bucket is missing.

        Only the service's own words about this blob are evidence. After any other 404, and after a 200 to a deletion,
        which the service does not give, the blob is looked for in a listing. If that has it, something in between
        answered: `odd`, with this `effect`.
        """
        if answer.status == 404 and answer.is_genuine and answer.message == f"No such object: {self.bucket}/{name}":
            return
        if await self.check_bucket(name):
            raise self.odd(answer, doing, effect=effect).telling(heard=True)  # by the listing

    async def check_bucket(self, name: str) -> bool:
        """Whether the blob is listed. `ConfigurationError`: the bucket is missing, which a listing's 404 tells."""
        query = {"prefix": name, "maxResults": "1", "fields": "kind,items(name),nextPageToken"}
        async for page in self.pages(query, f"finding blob {name!r}"):
            if items := page.get("items", []):
                return any(item["name"] == name for item in items)
        return False

    def unanswered(self, answers: int = 1) -> NoAnswerError:
        return NoAnswerError(f"no answer from {self.endpoint} within {answers * self.answer_timeout_s:g} s", sent=True)

    def out_of_time(self, place: ConnectionSlot, doing: str, *, effect: bool, answers: int = 1) -> TieredError:
        """The error of a request whose time is up. If it has had no connection, it was not sent."""
        if place.had_one:
            return lost_request(self.unanswered(answers), doing, effect=effect)
        waited = f"for {answers * self.answer_timeout_s:g} s"
        if not place.is_awaited:
            return UnavailableError(f"{doing} was not sent: there was no Google token {waited}; try again").telling(heard=False)
        taken = f"all {self._connections_max} connections to {self.endpoint} were taken {waited}"
        return AtCapacityError(f"{doing} was not sent: {taken}; close objects that are open for reading, or raise gcs.connections_max")

    def refusal(self, answer: GcsResponse, doing: str, *, effect: bool) -> TieredError:
        """The error for a status that was not accepted. `effect` is the same as in `call`."""
        status, message = answer.status, answer.message
        if status < 300 or (not answer.is_genuine and (status < 400 or status in _MEANT)):
            return self.odd(answer, doing, effect=effect)
        if status == 404:
            missing = f"there is no bucket {self.bucket!r} at {self.endpoint}"
            return ConfigurationError(f"{doing} failed: {missing}; name another, or run `tiered provision` ({message})").coded("404")
        kind, advice = _LIMITED if answer.reason in _LIMIT_REASONS else _ADVICE.get(status, _NO_SERVICE if status < 400 else _UNCLEAR)
        if advice is _NO_SERVICE[1] and answer.is_xml:
            advice = "what answers there has no XML API of Google Cloud Storage, which uploads in parts need; check the endpoint"
        heard = kind is not UnconfirmedError
        if kind is UnconfirmedError and not effect:
            kind = UnavailableError
        error = kind(f"{doing} failed with {status}: {advice} ({message})").coded(str(status), heard=heard or None)
        return error.refusing() if status == 401 and not answer.renews else error

    def odd(self, answer: GcsResponse, doing: str, *, effect: bool) -> TieredError:
        """The error for an answer that something in between may have given. It proves nothing."""
        kind = UnconfirmedError if effect else UnavailableError
        message = f"{doing} was answered with {answer.status}, and not in the way of Google Cloud Storage; {BETWEEN} ({answer.message!r})"
        return kind(message).coded(str(answer.status))


async def _advancing(chunks: AsyncIterable[Chunk], place: ConnectionSlot) -> AsyncIterator[Chunk]:
    """A body that streams, and lets the time run anew with each chunk that was taken."""
    async for chunk in chunks:
        yield chunk
        place.go_on()


class Media:
    """The body of an answer that is still coming. `status` and `headers` are already known."""

    def __init__(
        self, response: aiohttp.ClientResponse, session: aiohttp.ClientSession, answer_timeout_s: float, endpoint: str, doing: str
    ) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._session = session
        self._timeout_s = answer_timeout_s
        self._endpoint = endpoint
        self._doing = doing

    async def read(self) -> bytes:
        """The next bytes, at most 256 KiB. Empty: the body has ended. `UnavailableError`: it broke off."""
        content = self._response.content
        try:
            if chunk := content.read_nowait(CHUNK_BYTES):
                return chunk
            with fail_after(self._timeout_s):
                return await content.read(CHUNK_BYTES)
        except TimeoutError:
            fault = NoAnswerError(f"{self._endpoint} sent no more bytes for {self._timeout_s:g} s", sent=True)
        except (aiohttp.ClientError, OSError) as error:
            fault = _no_answer(error, self._endpoint)
        except RuntimeError as error:
            if not self._session.closed:
                raise
            fault = _no_answer(error, self._endpoint)
        raise lost_request(fault, self._doing, effect=False)

    def close(self) -> None:
        """Drops the connection, unless the body was read to its end. Safe to repeat."""
        self._response.close()


def _places() -> aiohttp.TraceConfig:
    """Lets each request's `ConnectionSlot` know whether it waits for a connection."""
    async def wait(session: object, context: Any, params: object) -> None:
        context.trace_request_ctx.wait()

    async def get(session: object, context: Any, params: object) -> None:
        context.trace_request_ctx.get()

    trace = aiohttp.TraceConfig()
    trace.on_connection_queued_start.append(wait)
    for got in (trace.on_connection_queued_end, trace.on_connection_create_start, trace.on_connection_reuseconn):
        got.append(get)
    return trace


# --- failure -----------------------------------------------------------------------------------------

_REFUSED = (InvalidRequestError, "the request breaks a rule of the service")
_LIMITED = (UnavailableError, "it was turned away; lower the load, or raise the quota")
_LIMIT_REASONS = {"rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded", "dailyLimitExceeded"}
_NO_SERVICE = (ConfigurationError, "what answers there is no JSON API of Google Cloud Storage; check the endpoint")
_UNCLEAR = (UnconfirmedError, "the service failed")
_ADVICE: dict[int, tuple[type[TieredError], str]] = {
    400: _REFUSED, 411: _REFUSED, 413: _REFUSED, 414: _REFUSED, 431: _REFUSED,
    401: (UnavailableError, "the credentials were not accepted; renew them"),
    403: (ConfigurationError, "grant roles/storage.objectUser on the bucket to this identity"),
    405: _NO_SERVICE,
    409: (UnavailableError, "it conflicts with another request"),
    410: (UnavailableError, "it is gone"),
    412: (UnavailableError, "it was changed meanwhile"),
    416: _REFUSED,
    429: _LIMITED,
    501: _NO_SERVICE,
}  # fmt: skip
"""Statuses that prove that nothing happened. 404 and unexpected statuses below 400 count as such, too.

After any other status, a request with an effect may or may not have had it.
"""
_MEANT = {404, *_ADVICE}
"""Statuses that mean something only in the service's own words, as those below 400 do."""
BETWEEN = "something in between answered: look at proxies and gateways, and at the endpoint"


def lost_request(error: NoAnswerError, doing: str, *, effect: bool) -> TieredError:
    """The error for a connection that failed. `effect`: the request may change something."""
    if effect and error.sent:
        return UnconfirmedError(f"{doing} was never confirmed: {error}")
    return UnavailableError(f"{doing} failed: {error}")


def _no_answer(error: BaseException, endpoint: str) -> NoAnswerError:
    """Our own error, without the library's as its cause: that one contains the whole URL."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        why = getattr(error, "strerror", None) or type(error).__name__
        return NoAnswerError(f"nothing could be reached at {endpoint}: {why}; check the endpoint and the network", sent=False)
    return NoAnswerError(f"the connection to {endpoint} broke off ({type(error).__name__})", sent=True)


def check_of(query: Mapping[str, str], doing: str) -> PageCheck:
    return PageCheck(doing, start=query.get("startOffset"), end=query.get("endOffset"), prefix=query.get("prefix", ""))


# --- addresses ---------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    """One segment of a path. Dots are escaped, too, so that no software on the way takes `..` for the parent."""
    return quote(text, safe="").replace(".", "%2E")


def _url(base: str, query: Mapping[str, str]) -> str:
    return f"{base}?{urlencode(query, quote_via=quote, safe='')}" if query else base
