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
one whose answer is not shaped like the service's (`GcsResponse.is_genuine`), because something in between may have
given it: it proves nothing of what is stored. The other statuses are in `_ADVICE`. A request that gets no connection of
ours is `AtCapacityError`, and one that gets no token `UnavailableError`: the service is not to blame. 404 means here
that the bucket is missing. Uploads and blobs accept it, and give it another meaning. Whoever knows the address of an
upload session may write to it. So errors that are raised here do not contain it, and their causes do not, either. Runs
on asyncio only. Uses no proxies from the environment and no cookies, and follows no redirects.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Self
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

import aiohttp
from anyio import CancelScope, current_time, fail_after, move_on_after
from yarl import URL

from changelog.base.errors import ConfigurationError, InvalidRequestError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.own_waits import own_wait
from changelog.google.authorize import Authorize
from tiered.errors import AtCapacityError
from tiered.gcs.format import LISTING
from tiered.payload.chunks import Chunk
from tiered.protocol.paging import PageCheck
from tiered.stored import CHUNK_BYTES

ENDPOINT = "https://storage.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class GcsRequest:
    """A request to the service, and which answers to it are accepted.

    `doing`: what the request does, for messages. `accept`: statuses that are returned. `effect`: the request may change
    something, so without an answer it is `UnconfirmedError`. `signed` False: the address needs no credentials.
    `answers`: it may take as long as so many answers. `looked_into`: accepted statuses that are returned also if
    something in between may have given them, because the caller looks in another way. `xml`: it is one of the XML API.
    While a body streams, the time for the answer runs anew with each chunk that is taken.
    """

    method: str
    url: str
    doing: str
    _: KW_ONLY
    accept: Collection[int] = (200,)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | AsyncIterable[Chunk] = b""
    effect: bool = False
    signed: bool = True
    answers: int = 1
    looked_into: Collection[int] = ()
    xml: bool = False


@dataclass(frozen=True, slots=True)
class GcsResponse:
    """An answer of the service that has come completely."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_xml: bool = False

    def json(self, doing: str, *, effect: bool = False) -> Mapping[str, Any]:
        """The body as a JSON object. `doing`: what the request does, for messages.

        If it is none, it is no answer of the service: `UnconfirmedError` after a request with an `effect`, otherwise
        `UnavailableError`.
        """
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            kind = UnconfirmedError if effect else UnavailableError
            raise kind(f"{doing} was answered with what is no JSON object: {_shortened(self.body)!r}; {BETWEEN}")
        return value

    @property
    def is_genuine(self) -> bool:
        """Whether a status that is no success is shaped like the service's own answer.

        That is its JSON of an error, or the header that the service gives to every upload and download. Of 308, which
        may also be a redirect: it leads nowhere. Nobody but the service uses 499.
        """
        if self.status < 300 or self.status == 499 or _OWN_HEADER in self.headers:
            return True
        if self.status == 308:
            return "Location" not in self.headers
        error = self._error()
        return bool(error) and str(error.get("code", self.status)) == str(self.status)

    @property
    def message(self) -> str:
        """The service's own words about its refusal."""
        error = self._error()
        return _scrubbed(str(error.get("message") or _shortened(self.body)))

    @property
    def reason(self) -> str:
        errors = self._error().get("errors")
        first = errors[0] if isinstance(errors, list) and errors else None
        return str(first.get("reason", "")) if isinstance(first, dict) else ""

    @property
    def is_resource(self) -> bool:
        """Whether the body is the JSON of a blob, as far as its checksum shows."""
        try:
            return isinstance(json.loads(self.body)["crc32c"], str)
        except (ValueError, KeyError, TypeError, RecursionError):
            return False

    def _error(self) -> Mapping[str, Any]:
        if self.is_xml:
            error = xml_error(self.body)
            return {} if error is None else {"message": error[1], "errors": [{"reason": error[0]}]}
        try:
            error = json.loads(self.body)["error"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return {}
        return error if isinstance(error, dict) else {}


def xml_error(body: bytes) -> tuple[str, str] | None:
    """The code and the message of a refusal of the XML API. None: the body is none."""
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        return None
    code = root.findtext("Code") if root.tag == "Error" else None
    return None if not code else (code, root.findtext("Message") or code)


class NoAnswerError(Exception):
    """The connection failed. `sent` False: no byte of the request left this machine. The text holds no secret."""

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.sent = sent


class ConnectionSlot:
    """A request's place among the connections. `is_awaited`: it waits for its first one. `had_one`: it may be sent.

    Before it has a connection, no byte of it has left. The library itself sends some requests again if a connection
    that it had kept turns out to be closed.
    """

    __slots__ = ("_limit_s", "_own_wait", "_timer", "had_one", "is_awaited")

    def __init__(self) -> None:
        self.is_awaited = self.had_one = False
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
            connector=aiohttp.TCPConnector(limit=connections_max),
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

    # --- requests

    async def call(self, request: GcsRequest) -> GcsResponse:
        """Sends one request and returns its answer. A status that it does not accept is raised as `refusal` says."""
        doing, effect, answers = request.doing, request.effect, request.answers
        fault: TieredError | None = None  # raised outside of the clause, so that it is not chained to what holds the address
        place = ConnectionSlot()
        try:
            with place.answered_within(answers * self.answer_timeout_s):
                body = request.body if isinstance(request.body, bytes) else _advancing(request.body, place)
                answer = await self.exchange(request.method, request.url, request.headers, body, signed=request.signed, place=place)
        except NoAnswerError as error:
            fault = lost_request(error, doing, effect=effect)
        except TimeoutError:
            fault = self.out_of_time(place, doing, effect=effect, answers=answers)
        if fault is not None:
            raise fault
        if request.xml:
            answer = replace(answer, is_xml=True)
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
            page = listing_of(await self.call(GcsRequest("GET", self.objects_url(**asked), doing)), doing)
            items = [item for item in page.get("items", []) if isinstance(item, Mapping) and isinstance(item.get("name"), str)]
            token = page.get("nextPageToken")
            check.take([item["name"] for item in items], token, [item.get("generation") for item in items] if has_many else None)
            yield page
            if not token:
                return
            asked["pageToken"] = str(token)

    async def exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | AsyncIterable[Chunk], *, signed: bool = True,
        place: ConnectionSlot | None = None,
    ) -> GcsResponse:
        """Sends one request with a body that may stream.

        If the answer comes before the body's end, the rest is not sent.

        Raises `NoAnswerError`, and the errors of `Authorize`. It has no time limit and returns every status.
        """
        response = await self._begin(method, url, headers, body, signed=signed, place=place or ConnectionSlot())
        fault: NoAnswerError | None = None
        try:
            return GcsResponse(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, OSError) as error:
            fault = _no_answer(error, self.endpoint)
        finally:
            response.close()  # after an early answer, this stops the rest of the body
        raise fault

    async def open_media(self, url: str, headers: Mapping[str, str], doing: str, accept: Collection[int]) -> Media:
        """Opens an answer whose body is read chunk by chunk. The caller closes it.

        Compressed bytes come as they are stored: with `Accept-Encoding: gzip` the service does not decompress them.
        """
        fault: TieredError | None = None
        place = ConnectionSlot()
        try:
            with place.answered_within(self.answer_timeout_s):
                response = await self._begin("GET", url, {"Accept-Encoding": "gzip", **headers}, b"", signed=True, place=place)
                if response.status in accept:
                    return Media(response, self._session, self.answer_timeout_s, self.endpoint)
                answer = GcsResponse(response.status, response.headers, await response.read())
        except NoAnswerError as error:
            fault = lost_request(error, doing, effect=False)
        except TimeoutError:
            fault = self.out_of_time(place, doing, effect=False)
        except (aiohttp.ClientError, OSError) as error:
            fault = lost_request(_no_answer(error, self.endpoint), doing, effect=False)
        raise fault or self.refusal(answer, doing, effect=False)

    async def _begin(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | AsyncIterable[Chunk], *, signed: bool, place: ConnectionSlot
    ) -> aiohttp.ClientResponse:
        proof: Mapping[str, str] = {}
        if signed and self._authorize is not None:
            proof = await self._authorize(self.answer_timeout_s)
            place.go_on()
        try:
            response = await self._session.request(
                method, URL(url, encoded=True), data=body or None, headers={**headers, **proof}, allow_redirects=False,
                trace_request_ctx=place,
            )
            if response.status == 401 and self._authorize is not None:
                self._authorize.refused(proof)
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
        if not answer.is_genuine and status in _MEANT:
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
        return error.refusing() if status == 401 else error

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

    def __init__(self, response: aiohttp.ClientResponse, session: aiohttp.ClientSession, answer_timeout_s: float, endpoint: str) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._session = session
        self._timeout_s = answer_timeout_s
        self._endpoint = endpoint

    async def read(self) -> bytes:
        """The next bytes, at most 256 KiB. Empty: the body has ended. Raises `NoAnswerError`."""
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
        raise fault

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
_MEANT = {404, *_ADVICE} - {405, 501}
"""Statuses that mean something only in the service's own words. What says 405 or 501 is no service of this kind."""
_OWN_HEADER = "X-GUploader-UploadID"
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


def _shortened(body: bytes) -> str:
    return body[:300].decode(errors="replace")


def _scrubbed(text: str) -> str:
    return re.sub(r"(upload_id|uploadId)=[^&\s'\"<>]*", r"\1=(withheld)", text)


def check_of(query: Mapping[str, str], doing: str) -> PageCheck:
    return PageCheck(doing, start=query.get("startOffset"), end=query.get("endOffset"), prefix=query.get("prefix", ""))


def listing_of(answer: GcsResponse, doing: str) -> Mapping[str, Any]:
    """The listing that an answer holds. `UnavailableError`: it holds none, so it does not tell what is there."""
    error = answer.json(doing)
    if error.get("kind") != LISTING:
        raise UnavailableError(f"{doing} was answered with what is no listing; {BETWEEN}")
    return error


# --- addresses ---------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    """One segment of a path. Dots are escaped, too, so that no software on the way takes `..` for the parent."""
    return quote(text, safe="").replace(".", "%2E")


def _url(base: str, query: Mapping[str, str]) -> str:
    return f"{base}?{urlencode(query, quote_via=quote, safe='')}" if query else base
