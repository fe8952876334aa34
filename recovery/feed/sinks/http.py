"""`HttpSink`: each segment is one HTTP PUT, and an answer 2xx acknowledges it.

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
from base64 import b64encode
from hashlib import sha256

import httpx

from changelog.base.errors import ConfigurationError, UnavailableError
from changelog.base.runtime import Runtime
from recovery.feed.sinks.client import ANSWER_TIMEOUT_S, TOLD_BYTES_MAX, HttpClient, SinkResponse, shown_location
from recovery.feed.sinks.sink import (
    CONTENT_TYPES,
    MARK,
    MARK_BYTES_MAX,
    MARK_TYPE,
    Owner,
    Segment,
    SinkContent,
    folder_of,
    generation_of,
    is_foreign,
    time_of,
)
from tiered.settings import Settings
from tiered.sinks import Place

LIST_BYTES_MAX = 64 * 2**20
"""A longer list of files is not read: some 600,000 files."""
LIST_BYTES = 4 * 2**20
"""A list may take the time of so many bytes."""
LINES = "application/jsonl"
_TAKEN = (409, 412)
_ADVICE = {
    400: "it takes the request for a wrong one", 401: "the user and the password in the URL are wrong or missing",
    403: "it does not allow this to the user in the URL", 404: "there is no such address: check the path of the URL",
    405: "it takes no PUT at this address: check the path of the URL", 413: "the segment is too large for it",
    415: "it does not take this type of file", 421: "it does not know the name of the host in the URL",
}  # fmt: skip


def open_at(place: Place, runtime: Runtime, settings: Settings | None) -> HttpSink:
    return HttpSink(place.text)


class HttpSink:
    """A `Sink`. `url`: under which the folders of the generations are; without query and fragment.

    `transport`: None: the network. `timeout_s`: how long an answer may take. `ConfigurationError`: it is no such URL.
    """

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._client = HttpClient(url, "a receiver", transport, timeout_s)
        self.name = self._client.name
        self._tells = False

    async def deliver(self, segment: Segment) -> None:
        headers = {
            "Content-Type": CONTENT_TYPES[segment.suffix], "If-None-Match": "*", "Content-Length": str(len(segment.data)),
            "Repr-Digest": digest(segment.sha256),
        }  # fmt: skip
        answer = await self._client.request("PUT", segment.path, headers, segment.data, TOLD_BYTES_MAX, len(segment.data))
        if 200 <= answer.status < 300:
            return
        if answer.status not in _TAKEN:
            raise self._refusal("PUT", segment.path, answer)
        there = await self._client.request("GET", segment.path, {}, b"", len(segment.data) + 1, len(segment.data))
        if there.status in (404, 410):
            raise UnavailableError(f"{self.name} has {segment.path} by its answer {answer.status}, and has it not by {there.status}")
        if there.status != 200:
            raise self._refusal("GET", segment.path, there)
        if there.body != segment.data:
            raise segment.other_bytes(self.name)

    async def look(self, generation: int, since: int) -> SinkContent | None:
        self._tells = False
        if (folders := await self._listed("")) is None:
            return None
        generations = [number for each in folders if (number := generation_of(str(each.get("folder")))) is not None]
        files = (await self._listed(f"{folder_of(generation)}/") or []) if generation in generations else []
        named = [(str(each.get("name")), each.get("bytes")) for each in files]
        times = sorted(known[0] for name, size in named if (known := time_of(name)) is not None and known[0] >= since and size != 0)
        foreign = tuple(sorted(name for name, _ in named if is_foreign(name)))
        mark = await self._client.request("GET", MARK, {}, b"", MARK_BYTES_MAX + 1)
        if mark.may_pass:
            raise self._refusal("GET", MARK, mark)
        owner = Owner.from_bytes(mark.body, f"{self.name}/{MARK}") if mark.status == 200 else None
        self._tells = True
        return SinkContent(owner, max(generations, default=None), tuple(times), foreign)

    async def claim(self, owner: Owner) -> bool:
        if not self._tells:
            return False
        mark = owner.to_bytes()
        headers = {
            "Content-Type": MARK_TYPE, "If-None-Match": "*", "Content-Length": str(len(mark)),
            "Repr-Digest": digest(sha256(mark).hexdigest()),
        }  # fmt: skip
        answer = await self._client.request("PUT", MARK, headers, mark, TOLD_BYTES_MAX)
        if answer.may_pass:
            raise self._refusal("PUT", MARK, answer)
        return 200 <= answer.status < 300 or answer.status in _TAKEN

    async def _listed(self, path: str) -> list[dict[str, object]] | None:
        """Returns the lines of a list of our own receiver. None: it gives no such list.

        `UnavailableError`: it does not answer now, or the list breaks off.
        """
        answer = await self._client.request("GET", path, {}, b"", LIST_BYTES_MAX + 1, LIST_BYTES)
        if answer.may_pass and answer.status != 501:
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
        await self._client.aclose()

    def _refusal(self, method: str, path: str, answer: SinkResponse) -> UnavailableError | ConfigurationError:
        status, told = answer.status, answer.told
        what = f"{self.name} answered {method} of {path} with {status}"
        if answer.may_pass:
            return UnavailableError(f"{what}{told}").coded(str(status))
        if 300 <= status < 400:
            where = shown_location(answer.location)
            return ConfigurationError(f"{what}, a redirection{where}: give the address that takes the feed itself").coded(str(status))
        return ConfigurationError(f"{what}: {_ADVICE.get(status, 'it does not take the segment')}{told}").coded(str(status))


def digest(sha256: str) -> str:
    """Returns the header `Repr-Digest` for a checksum in hex."""
    return f"sha-256=:{b64encode(bytes.fromhex(sha256)).decode()}:"
