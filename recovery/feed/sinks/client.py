"""`HttpClient`: one server with a user and a password in its URL. `http.py` sends it segments, `registry.py` schemas.

Secrets are not shown: names and errors have the URL without the user and the password.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

import anyio
import httpx

from changelog.base.errors import ConfigurationError, UnavailableError
from recovery.display import escape_controls
from tiered.sinks import Place

ANSWER_TIMEOUT_S = 30.0
BYTES_PER_S_MIN = 128 * 1024
"""A larger body has a second more for each so many bytes."""
CONNECT_TIMEOUT_S = 10.0
TOLD_BYTES_MAX = 300
"""So much of the server's own words is in an error."""
DROPPED_BYTES_MAX = 64 * 1024
LATER = (408, 425, 429)
"""The statuses below 500 that may pass by themselves."""


@dataclass(frozen=True, slots=True)
class SinkResponse:
    """`body`: the beginning of the body."""

    status: int
    location: str
    content_type: str
    body: bytes

    @property
    def told(self) -> str:
        """What the server says, as the end of a sentence."""
        text = " ".join(self.body[:TOLD_BYTES_MAX].decode(errors="replace").split())
        return f" ({escape_controls(text)})" if text else ""

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later, without a change by anybody."""
        return self.status >= 500 or self.status in LATER


class HttpClient:
    """`url`: without query and fragment. `what`: whose address it is, for errors. `transport`: None: the network.

    `timeout_s`: how long an answer may take. `ConfigurationError`: it is no such URL.
    """

    def __init__(self, url: str, what: str, transport: httpx.AsyncBaseTransport | None = None, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._url, self._auth = _taken_apart(url, what)
        self.name = str(self._url).rstrip("/")
        self._transport = transport
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None

    async def request(self, method: str, path: str, headers: dict[str, str], body: bytes, bytes_max: int, size: int = 0) -> SinkResponse:
        """Sends one request. Returns the answer with at most so many bytes of its body.

        `path`: below the URL. `size`: it may take the time of so many bytes. `UnavailableError`: there is no answer.
        `ConfigurationError`: the certificate of the server is not trusted.
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
                    return SinkResponse(response.status_code, told.get("Location", ""), told.get("Content-Type", ""), beginning)
        except TimeoutError:
            raise UnavailableError(f"{self.name} gave no answer within {timeout_s:g} s") from None
        except (httpx.RequestError, httpx.StreamError, ssl.SSLError, OSError) as error:
            if (why := _untrusted(error)) is not None:
                raise ConfigurationError(f"{self.name} has a certificate that this machine does not trust: {why}") from None
            # The library's own error has the request, and so the password.
            raise UnavailableError(
                f"{self.name} cannot be reached: {type(error).__name__} {escape_controls(str(error))}".rstrip()
            ) from None

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def shown_location(text: str) -> str:
    """Where a redirection leads, without what may be secret. Empty: nobody can tell what of it is."""
    try:
        return f" to {escape_controls(Place.parse(text.partition('?')[0]).shown)}"
    except ConfigurationError:
        return ""


async def _beginning(response: httpx.Response, bytes_max: int) -> bytes:
    """Returns the first bytes of the body, or none if the server says that it is much longer.

    The rest is read and dropped: on trio, the library's generators must come to their end.
    """
    declared = response.headers.get("Content-Length", "0")
    if not declared.isdecimal() or int(declared) > bytes_max + DROPPED_BYTES_MAX:
        return b""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk[: bytes_max - len(body)]
    return bytes(body)


def _taken_apart(text: str, what: str) -> tuple[httpx.URL, httpx.BasicAuth | None]:
    """Returns the URL without the user and the password, and these."""
    place = Place.parse(text)
    if place.scheme not in ("http", "https"):
        raise ConfigurationError(f"{escape_controls(place.shown)} is no address of {what}: give a URL such as https://host/feed")
    try:
        url = httpx.URL(text)
        _ = url.host  # decodes it, which IDNA may refuse
        auth = httpx.BasicAuth(url.username, url.password) if url.userinfo else None
        return url.copy_with(username=None, password=None, path=url.path.rstrip("/") or "/"), auth
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ConfigurationError(f"{escape_controls(place.shown)} is no URL: {type(error).__name__}") from None


def _untrusted(error: BaseException | None) -> str | None:
    """Why the certificate of the server is not good, if that is the cause of the error."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return str(error.verify_message)
        error = error.__cause__ or error.__context__
    return None
