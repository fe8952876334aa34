"""`HttpSink`: each parcel is one HTTP PUT, and an answer 2xx acknowledges it.

    PUT {url}/generation-0001795000000000/0001795000000012345.json
    Content-Type: application/jsonl          or application/avro
    Repr-Digest: sha-256=:…:                 RFC 9530: what the receiver must have at the end
    If-None-Match: *                         nothing may be overwritten

    GET {url}/                               what is there, as `recovery.http.receiver` tells it. Others need not
    GET, PUT {url}/_feed.json                the mark, where the receiver tells what is there

    2xx            acknowledged: the receiver has it durably
    409, 412       something of this name is there: it is read with GET and compared
    408, 425, 429, 5xx, no answer in time    not now: `UnavailableError`
    3xx, other 4xx                           somebody must change something: `ConfigurationError`

A redirect is not followed: the settings name the receiver, not an answer. TLS is verified by the certificates of this
machine (`SSL_CERT_FILE` names others). Proxies and passwords from the environment are not used. A user and a password
in the URL are sent as basic authentication, and never shown. Runs on asyncio and trio.
"""

from __future__ import annotations

import json
import ssl
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256

import anyio
import httpx

from changelog.base.errors import ConfigurationError, CorruptRecordError, UnavailableError
from recovery.feed.sinks.sink import CONTENT_TYPES, MARK, MARK_BYTES_MAX, MARK_TYPE, Held, Owner, Parcel, folder_of, generation_of, time_of
from recovery.visible import visible
from tiered.places import Place

ANSWER_TIMEOUT_S = 30.0
BYTES_PER_S_MIN = 128 * 1024
"""A larger parcel has a second more for each so many bytes."""
CONNECT_TIMEOUT_S = 10.0
TOLD_BYTES_MAX = 300
"""So much of the receiver's own words is in an error."""
LIST_BYTES_MAX = 64 * 2**20
"""A longer list of files is not read: some 600,000 files."""
LIST_BYTES = 4 * 2**20
"""A list may take the time of so many bytes."""
LINES = "application/jsonl"
DROPPED_BYTES_MAX = 64 * 1024
_LATER = (408, 425, 429)
_TAKEN = (409, 412)
_ADVICE = {
    400: "it takes the request for a wrong one", 401: "the user and the password in the URL are wrong or missing",
    403: "it does not allow this to the user in the URL", 404: "there is no such address: check the path of the URL",
    405: "it takes no PUT at this address: check the path of the URL", 413: "the parcel is too large for it",
    415: "it does not take this type of file", 421: "it does not know the name of the host in the URL",
}  # fmt: skip


class HttpSink:
    """A `Sink`. `url`: under which the folders of the generations are; without query and fragment.

    `transport`: None: the network. `timeout_s`: how long an answer may take. `ConfigurationError`: it is no such URL.
    """

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._url, self._auth = _taken_apart(url)
        self.name = str(self._url).rstrip("/")
        self._transport = transport
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None
        self._tells = False

    async def deliver(self, parcel: Parcel) -> None:
        headers = {
            "Content-Type": CONTENT_TYPES[parcel.suffix], "If-None-Match": "*", "Content-Length": str(len(parcel.data)),
            "Repr-Digest": digest(parcel.sha256),
        }  # fmt: skip
        answer = await self._ask("PUT", parcel.path, headers, parcel.data, TOLD_BYTES_MAX, len(parcel.data))
        if 200 <= answer.status < 300:
            return
        if answer.status not in _TAKEN:
            raise self._refusal("PUT", parcel.path, answer)
        there = await self._ask("GET", parcel.path, {}, b"", len(parcel.data) + 1, len(parcel.data))
        if there.status in (404, 410):
            raise UnavailableError(f"{self.name} has {parcel.path} by its answer {answer.status}, and has it not by {there.status}")
        if there.status != 200:
            raise self._refusal("GET", parcel.path, there)
        if there.body != parcel.data:
            raise CorruptRecordError(
                f"{self.name}/{parcel.path} has other bytes than the feed ({len(parcel.data)} bytes, sha256 {parcel.sha256}):"
                " it stays as it is; find out who wrote it, and move it away"
            )

    async def look(self, generation: int, since: int) -> Held | None:
        self._tells = False
        if (folders := await self._listed("")) is None:
            return None
        generations = [number for each in folders if (number := generation_of(str(each.get("folder")))) is not None]
        files = (await self._listed(f"{folder_of(generation)}/") or []) if generation in generations else []
        times = sorted(known[0] for each in files if (known := time_of(str(each.get("name")))) is not None and known[0] >= since)
        mark = await self._ask("GET", MARK, {}, b"", MARK_BYTES_MAX + 1)
        if mark.status >= 500 or mark.status in _LATER:
            raise self._refusal("GET", MARK, mark)
        owner = Owner.from_bytes(mark.body, f"{self.name}/{MARK}") if mark.status == 200 else None
        self._tells = True
        return Held(owner, max(generations, default=None), tuple(times))

    async def claim(self, owner: Owner) -> bool:
        if not self._tells:
            return False
        mark = owner.to_bytes()
        headers = {
            "Content-Type": MARK_TYPE, "If-None-Match": "*", "Content-Length": str(len(mark)),
            "Repr-Digest": digest(sha256(mark).hexdigest()),
        }  # fmt: skip
        answer = await self._ask("PUT", MARK, headers, mark, TOLD_BYTES_MAX)
        if answer.status >= 500 or answer.status in _LATER:
            raise self._refusal("PUT", MARK, answer)
        return 200 <= answer.status < 300 or answer.status in _TAKEN

    async def _listed(self, path: str) -> list[dict[str, object]] | None:
        """Returns the lines of a list of our own receiver. None: it gives no such list.

        `UnavailableError`: it does not answer now, or the list breaks off.
        """
        answer = await self._ask("GET", path, {}, b"", LIST_BYTES_MAX + 1, LIST_BYTES)
        if answer.status in _LATER or (answer.status >= 500 and answer.status != 501):
            raise self._refusal("GET", path or "/", answer)
        if answer.status != 200 or answer.content_type.partition(";")[0].strip() != LINES:
            return None
        if len(answer.body) > LIST_BYTES_MAX:
            return None
        try:
            found = [json.loads(line) for line in answer.body.splitlines()]
        except ValueError:
            return None
        return found if all(isinstance(each, dict) for each in found) else None

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _ask(self, method: str, path: str, headers: dict[str, str], body: bytes, bytes_max: int, size: int = 0) -> _Answer:
        """Sends one request. Returns the answer with at most so many bytes of its body.

        `size`: it may take the time of so many bytes.
        """
        timeout_s = self._timeout_s + size / BYTES_PER_S_MIN
        if self._client is None:
            self._client = httpx.AsyncClient(
                transport=self._transport, verify=ssl.create_default_context(), trust_env=False, follow_redirects=False,
                timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S), headers={"User-Agent": "tiered", "Accept-Encoding": "identity"},
            )  # fmt: skip
        try:
            with anyio.fail_after(timeout_s):
                url = self._url.copy_with(path=f"{self._url.path.rstrip('/')}/{path}")
                async with self._client.stream(method, url, headers=headers, content=body, auth=self._auth) as response:
                    beginning = await _beginning(response, bytes_max)
                    told = response.headers
                    return _Answer(response.status_code, told.get("Location", ""), told.get("Content-Type", ""), beginning)
        except TimeoutError:
            raise UnavailableError(f"{self.name} gave no answer within {timeout_s:g} s") from None
        except (httpx.RequestError, httpx.StreamError, ssl.SSLError, OSError) as error:
            if (why := _untrusted(error)) is not None:
                raise ConfigurationError(f"{self.name} has a certificate that this machine does not trust: {why}") from None
            # The library's own error has the request, and so the password.
            raise UnavailableError(f"{self.name} cannot be reached: {type(error).__name__} {visible(str(error))}".rstrip()) from None

    def _refusal(self, method: str, path: str, answer: _Answer) -> UnavailableError | ConfigurationError:
        status, told = answer.status, answer.told
        what = f"{self.name} answered {method} of {path} with {status}"
        if status >= 500 or status in _LATER:
            return UnavailableError(f"{what}{told}").coded(str(status))
        if 300 <= status < 400:
            where = _shown_location(answer.location)
            return ConfigurationError(f"{what}, a redirection{where}: give the address that takes the feed itself").coded(str(status))
        return ConfigurationError(f"{what}: {_ADVICE.get(status, 'it does not take the parcel')}{told}").coded(str(status))


@dataclass(frozen=True, slots=True)
class _Answer:
    """`body`: the beginning of the body."""

    status: int
    location: str
    content_type: str
    body: bytes

    @property
    def told(self) -> str:
        """What the receiver says, as the end of a sentence."""
        text = " ".join(self.body[:TOLD_BYTES_MAX].decode(errors="replace").split())
        return f" ({visible(text)})" if text else ""


def digest(sha256: str) -> str:
    """Returns the header `Repr-Digest` for a checksum in hex."""
    return f"sha-256=:{b64encode(bytes.fromhex(sha256)).decode()}:"


async def _beginning(response: httpx.Response, bytes_max: int) -> bytes:
    """Returns the first bytes of the body, or none if the receiver says that it is much longer.

    The rest is read and dropped: on trio, the library's generators must come to their end.
    """
    declared = response.headers.get("Content-Length", "0")
    if not declared.isdecimal() or int(declared) > bytes_max + DROPPED_BYTES_MAX:
        return b""
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece[: bytes_max - len(body)]
    return bytes(body)


def _taken_apart(text: str) -> tuple[httpx.URL, httpx.BasicAuth | None]:
    """Returns the URL without the user and the password, and these."""
    place = Place.parse(text)
    if place.scheme not in ("http", "https"):
        raise ConfigurationError(f"{visible(place.shown)} is no address of a receiver: give a URL such as https://host/feed")
    try:
        url = httpx.URL(text)
        auth = httpx.BasicAuth(url.username, url.password) if url.userinfo else None
        return url.copy_with(username=None, password=None, path=url.path.rstrip("/") or "/"), auth
    except httpx.InvalidURL as error:
        raise ConfigurationError(f"{visible(place.shown)} is no URL: {type(error).__name__}") from None


def _shown_location(text: str) -> str:
    """Where a redirection leads, without what may be secret. Empty: nobody can tell what of it is."""
    try:
        return f" to {visible(Place.parse(text.partition('?')[0]).shown)}"
    except ConfigurationError:
        return ""


def _untrusted(error: BaseException | None) -> str | None:
    """Why the certificate of the receiver is not good, if that is the cause of the error."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return str(error.verify_message)
        error = error.__cause__ or error.__context__
    return None
