"""Tries by requests what the adapter of GCS cannot try: a wrong checksum, plain conditions, sessions that are over.

    a bucket  -->  try_requests  -->  an Outcome for each probe of `PROBES`: a new probe is a row

All of it lies below `PREFIX~prove/requests/`, which no listing of blobs shows, and is removed at the end. Requests go
over the connections of `ours`; what is read goes over those of `other`.

*Crash*: what is left goes with the trial in whose prefix it lies. *Failure*: as of `try_all`. An answer that tells
nothing of the service (403, 429, 5xx) means that it was not tried.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from xml.etree import ElementTree

from anyio import CancelScope, create_task_group, move_on_after

from changelog.base.errors import TieredError
from tiered.gcs.answers import GcsResponse, child, tag_of
from tiered.gcs.http import JSON, GcsHttp, GcsRequest
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.provision.findings import NoticeKind
from tiered.provision.probes import NotTriedError, Probe, ProbeOutcome, RequestSizes, Tried, try_all
from tiered.settings import TRIALS

_CLEANING_S = 60.0
_EACH = range(200, 600)
_UNTOLD = {401, 403, 408, 429, *range(500, 600)}
"""After these nobody knows what the service would have done."""
_PAYLOAD, _OTHER = b"tiered tries what a service does", b"and it does so with other bytes."
_BOUNDARY = "tiered-prove"
_AT_ONE_NAME = 8
"""The service limits how often one name is written."""
_LATE_TRIES = 3


async def try_requests(ours: GcsHttp, other: GcsHttp, prefix: str, sizes: RequestSizes) -> list[ProbeOutcome[GcsBench]]:
    """`ours`, `other`: the same bucket over other connections. Raises `TieredError` if nobody answers."""
    bench = GcsBench(ours, other, f"{prefix}{TRIALS}requests/", sizes)
    try:
        return await try_all(PROBES, bench, sizes.limit_s)
    finally:
        with CancelScope(shield=True), move_on_after(_CLEANING_S):
            await bench.clean()


class GcsBench:
    """Where one run tries: its names, and the requests that a probe sends."""

    def __init__(self, ours: GcsHttp, other: GcsHttp, prefix: str, sizes: RequestSizes) -> None:
        self.ours, self.other, self.sizes = ours, other, sizes
        self._prefix = prefix
        self._names: list[str] = []

    def name(self) -> str:
        self._names.append(f"{self._prefix}{len(self._names)}")
        return self._names[-1]

    async def send(
        self, method: str, url: str, doing: str, body: bytes = b"", headers: Mapping[str, str] | None = None, *, goes_on: bool = False,
        signed: bool = True, xml: bool = False, http: GcsHttp | None = None,
    ) -> GcsResponse:  # fmt: skip
        """The answer, whatever it is. `goes_on`: a 308 says how far an upload is."""
        accept = _EACH if goes_on else [each for each in _EACH if each != 308]
        return await (http or self.ours).call(GcsRequest(
            method, url, doing, _anything, accept=accept, looked_into=_EACH, headers=headers or {}, body=body, effect=method != "GET",
            signed=signed, xml=xml,
        ))  # fmt: skip

    async def judged(self, *args: Any, **named: Any) -> bool:
        """Whether the service did it. `NotTriedError`: it did not say."""
        answer = await self.send(*args, **named)
        if answer.status in _UNTOLD:
            raise NotTriedError(f"{args[2]} was answered with {answer.status}")
        return answer.status < 300

    # --- objects

    async def put(self, name: str, payload: bytes, crc32c: str | None = None, **query: str) -> bool:
        """One request with the resource and the payload, as the adapter sends."""
        told = {"name": name, **({} if crc32c is None else {"crc32c": crc32c})}
        parts = (json.dumps(told).encode(), payload)
        types = (JSON["Content-Type"], "application/octet-stream")
        framed = zip(types, parts, strict=True)
        body = b"".join(f"--{_BOUNDARY}\r\nContent-Type: {kind}\r\n\r\n".encode() + part + b"\r\n" for kind, part in framed)
        headers = {"Content-Type": f"multipart/related; boundary={_BOUNDARY}"}
        url = self.ours.uploads_url(uploadType="multipart", **query)
        return await self.judged("POST", url, "an upload in one request", body + f"--{_BOUNDARY}--\r\n".encode(), headers)

    async def read(self, name: str) -> bytes | None:
        return await self._found(self.other.object_url(name, alt="media"))

    async def resource(self, name: str) -> Mapping[str, Any] | None:
        found = await self._found(self.other.object_url(name))
        return None if found is None else dict(json.loads(found))

    async def _found(self, url: str) -> bytes | None:
        answer = await self.send("GET", url, "reading an object", http=self.other)
        if answer.status not in (200, 404):
            raise NotTriedError(f"reading an object was answered with {answer.status}")
        return answer.body if answer.status == 200 else None

    async def generation(self, name: str) -> str:
        return str((await self.resource(name) or {}).get("generation", ""))

    async def delete(self, name: str, **query: str) -> bool:
        return await self.judged("DELETE", self.ours.object_url(name, **query), "deleting an object")

    # --- sessions

    async def begin(self, name: str, crc32c: str | None = None, **query: str) -> str:
        """The address of a session. `NotTriedError`: there is none."""
        told = {"name": name, **({} if crc32c is None else {"crc32c": crc32c})}
        url = self.ours.uploads_url(uploadType="resumable", **query)
        answer = await self.send("POST", url, "beginning a session", json.dumps(told).encode(), JSON)
        session = answer.headers.get("Location", "")
        if answer.status != 200 or not self.ours.is_session(session):
            raise NotTriedError(f"beginning a session was answered with {answer.status}")
        return session

    async def end(self, session: str, payload: bytes = _PAYLOAD) -> bool:
        size = len(payload)
        headers = {"Content-Range": f"bytes 0-{size - 1}/{size}"}
        return await self.judged("PUT", session, "ending a session", payload, headers, goes_on=True, signed=False)

    async def cancel(self, session: str) -> None:
        answer = await self.send("DELETE", session, "cancelling a session", signed=False)
        if answer.status not in (200, 204, 404, 410, 499):
            raise NotTriedError(f"cancelling a session was answered with {answer.status}")

    # --- parts

    async def begin_parts(self, name: str) -> str:
        answer = await self.send("POST", self.ours.xml_url(self.ours.xml_path(name), uploads=""), "beginning an upload in parts", xml=True)
        if answer.status != 200:
            raise NotTriedError(f"beginning an upload in parts was answered with {answer.status}")
        return child(_xml(answer), "UploadId")

    async def part(self, name: str, upload: str, payload: bytes, crc32c: str) -> bool:
        url = self.ours.xml_url(self.ours.xml_path(name), partNumber="1", uploadId=upload)
        return await self.judged("PUT", url, "uploading a part", payload, {"x-goog-hash": f"crc32c={crc32c}"}, xml=True)

    async def has_parts(self, name: str, upload: str) -> bool:
        url = self.ours.xml_url(self.ours.xml_path(name), uploadId=upload)
        answer = await self.send("GET", url, "listing parts", xml=True)
        return answer.status == 200 and any(tag_of(each) == "Part" for each in _xml(answer))

    async def cancel_parts(self, name: str, upload: str) -> None:
        await self.send("DELETE", self.ours.xml_url(self.ours.xml_path(name), uploadId=upload), "cancelling an upload in parts", xml=True)

    async def clean(self) -> None:
        """Removes what is there. What does not go goes with the trial."""
        for name in await _quietly(partial(self._left)):
            await _quietly(partial(self.delete, name))

    async def _left(self) -> list[str]:
        pages = self.ours.pages({"prefix": self._prefix, "fields": "kind,items(name),nextPageToken"}, "listing what was tried")
        return [str(item["name"]) async for page in pages for item in page.get("items", [])]


async def _quietly(call: Callable[[], Awaitable[Any]]) -> Any:
    with suppress(TieredError, NotTriedError):
        return await call()
    return ()


def _anything(answer: GcsResponse) -> object:
    return answer.body or "nothing"


def _xml(answer: GcsResponse) -> Any:
    try:
        return ElementTree.fromstring(answer.body)
    except ElementTree.ParseError:
        raise NotTriedError("an answer was no XML") from None


def _crc(payload: bytes, flipped: int = 0) -> str:
    return encode_crc(extend_crc(0, payload) ^ flipped)


async def _at_once(calls: Sequence[Callable[[], Awaitable[bool]]]) -> list[bool | None]:
    """The outcomes. None: nobody can tell."""
    outcomes: list[bool | None] = [None] * len(calls)

    async def one(number: int, call: Callable[[], Awaitable[bool]]) -> None:
        with suppress(TieredError, NotTriedError):
            outcomes[number] = await call()

    async with create_task_group() as tasks:
        for number, call in enumerate(calls):
            tasks.start_soon(one, number, call)
    return outcomes


# --- what is tried -----------------------------------------------------------------------------------


async def _basis(bench: GcsBench) -> Tried:
    name = bench.name()
    if not await bench.put(name, _PAYLOAD, _crc(_PAYLOAD)):
        return "refuses an object with its crc32c"
    return None if await bench.read(name) == _PAYLOAD else "does not give an object that it has just stored"


async def _refuses_a_wrong_object(bench: GcsBench) -> Tried:
    name = bench.name()
    taken = await bench.put(name, _PAYLOAD, _crc(_PAYLOAD, 1))
    return "takes bytes that do not have their crc32c, in one request" if taken or await bench.resource(name) else None


async def _refuses_a_wrong_session(bench: GcsBench) -> Tried:
    name = bench.name()
    taken = await bench.end(await bench.begin(name, _crc(_PAYLOAD, 1)))
    return "takes bytes that do not have their crc32c, in a session" if taken or await bench.resource(name) else None


async def _refuses_a_wrong_part(bench: GcsBench) -> Tried:
    name = bench.name()
    upload = await bench.begin_parts(name)
    taken = await bench.part(name, upload, _PAYLOAD, _crc(_PAYLOAD, 1)) or await bench.has_parts(name, upload)
    await bench.cancel_parts(name, upload)
    return "takes a part that does not have its crc32c" if taken else None


async def _tells_what_arrived(bench: GcsBench) -> Tried:
    name = bench.name()
    await bench.end(await bench.begin(name), _OTHER)
    told = (await bench.resource(name) or {}).get("crc32c")
    return None if told == _crc(_OTHER) else f"tells the crc32c {told} of bytes whose crc32c is {_crc(_OTHER)}"


async def _creations_race(bench: GcsBench) -> Tried:
    """Requests in one, and sessions that were begun before; then one of each that come late."""
    for number in range(bench.sizes.rounds):
        names = [bench.name() for _ in range(max(1, bench.sizes.racers // _AT_ONE_NAME))]
        found: list[Tried] = []

        async def race(name: str, found: list[Tried] = found, number: int = number) -> bool:
            found.append(await _creation_race(bench, name, number))
            return True

        if True not in await _at_once([partial(race, name) for name in names]):
            raise NotTriedError("no race came to its end")
        if wrong := next(filter(None, found), None):
            return wrong
    return None


async def _creation_race(bench: GcsBench, name: str, number: int) -> Tried:
    bodies = [f"{number:06}{each:02}".encode() for each in range(min(_AT_ONE_NAME, bench.sizes.racers))]
    half = len(bodies) // 2
    *sessions, late = [await bench.begin(name, ifGenerationMatch="0") for _ in range(half + 1)]
    puts = [partial(bench.put, name, body, ifGenerationMatch="0") for body in bodies[half:]]
    outcomes = await _at_once([*(partial(bench.end, *each) for each in zip(sessions, bodies, strict=False)), *puts])
    made = [body for body, outcome in zip(bodies, outcomes, strict=True) if outcome]
    if len(made) > 1:
        return f"told {len(made)} of {len(bodies)} requests at once, each with ifGenerationMatch=0, that they had made the same object"
    read = await bench.read(name)
    if made and read != made[0]:
        return "replaced the object of a request with ifGenerationMatch=0 by that of another"
    if read is None:
        return None if None in outcomes else f"refused each of {len(bodies)} requests at once, each with ifGenerationMatch=0"
    if await bench.put(name, _OTHER, ifGenerationMatch="0") or await bench.end(late, _OTHER) or await bench.read(name) != read:
        return "ignores ifGenerationMatch=0 of a request that comes late"
    return None


async def _changes_race(bench: GcsBench) -> Tried:
    """A deadline is changed on the condition that nobody has changed it meanwhile."""
    for _ in range(bench.sizes.rounds):
        name = bench.name()
        await bench.put(name, _PAYLOAD)
        told = await bench.resource(name) or {}
        query = {"ifGenerationMatch": str(told.get("generation")), "ifMetagenerationMatch": str(told.get("metageneration"))}
        url = bench.ours.object_url(name, **query)

        async def change(number: int, url: str = url) -> bool:
            body = json.dumps({"metadata": {"changed": str(number)}}).encode()
            return await bench.judged("PATCH", url, "changing an object", body, JSON)

        outcomes = await _at_once([partial(change, number) for number in range(_AT_ONE_NAME)])
        if outcomes.count(True) > 1:
            return f"told {outcomes.count(True)} of {len(outcomes)} changes at once, each with ifMetagenerationMatch, that they had won"
    return None


async def _deletes_only_the_generation(bench: GcsBench) -> Tried:
    name = bench.name()
    await bench.put(name, _PAYLOAD)
    old = await bench.generation(name)
    if await bench.delete(name, ifGenerationMatch=str(int(old or 1) + 1)) or await bench.resource(name) is None:
        return "ignores ifGenerationMatch where it deletes"
    for number in range(bench.sizes.rounds):
        name, again = bench.name(), f"again {number}".encode()
        await bench.put(name, _PAYLOAD)
        old = await bench.generation(name)

        async def makes(name: str = name, again: bytes = again) -> bool:
            for _ in range(_AT_ONE_NAME * 25):
                if await bench.put(name, again, ifGenerationMatch="0"):
                    return True
            return False

        async def deletes(name: str = name, old: str = old) -> bool:
            for _ in range(_LATE_TRIES):
                await bench.delete(name, ifGenerationMatch=old)
            return False

        *_, made = await _at_once([*[deletes] * _AT_ONE_NAME, makes])
        if made and await bench.read(name) != again:
            return "deleted what came after the object that deletions at once named by ifGenerationMatch"
    return None


async def _cancelled(bench: GcsBench) -> Tried:
    name = bench.name()
    session = await bench.begin(name)
    await bench.cancel(session)
    for _ in range(_LATE_TRIES):
        if await bench.end(session):
            return "takes the bytes of a session after it has cancelled it"
    return "made an object of a session that was cancelled" if await bench.resource(name) else None


async def _over(bench: GcsBench) -> Tried:
    """A session that has made its object is asked again after that was deleted."""
    name = bench.name()
    session = await bench.begin(name, ifGenerationMatch="0")
    if not await bench.end(session):
        return "refuses the end of a session"
    await bench.delete(name)
    for _ in range(_LATE_TRIES):
        await bench.end(session)
    return "brings back an object that was deleted, by the session that had made it" if await bench.resource(name) else None


# --- the table ---------------------------------------------------------------------------------------

_COMES_BACK = "a write that arrives late would replace a blob, and one that was deleted could come back"
_DAMAGED = "what is damaged on its way is found only by what is read back"
_GARBAGE = "a large put that recovery has undone could appear later, as garbage that nobody finds but the audit"

PROBES: Sequence[Probe[GcsBench]] = (
    Probe("an object", "an object is stored with its crc32c, and read", NoticeKind.PROBLEM, "no store can be kept there", _basis),
    Probe(
        "ifGenerationMatch=0", "of many requests and sessions with ifGenerationMatch=0 at once, one makes the object", NoticeKind.PROBLEM,
        _COMES_BACK, _creations_race,
    ),
    Probe(
        "ifMetagenerationMatch", "of many changes with ifMetagenerationMatch at once, one wins", NoticeKind.PROBLEM,
        "a deadline is shortened by a touch that comes late, and what is still read is lost", _changes_race,
    ),
    Probe(
        "ifGenerationMatch in a deletion", "an object is deleted only if it has the generation that was named", NoticeKind.PROBLEM,
        "the audit deletes another blob than it judged", _deletes_only_the_generation,
    ),
    Probe("a cancelled session", "a session that was cancelled makes no object any more", NoticeKind.PROBLEM, _GARBAGE, _cancelled),
    Probe("a session that is over", "a session makes its object once", NoticeKind.PROBLEM, _COMES_BACK, _over),
    Probe(
        "the crc32c of an object", "bytes that do not have their crc32c are refused, in one request", NoticeKind.NOTE, _DAMAGED,
        _refuses_a_wrong_object,
    ),
    Probe(
        "the crc32c of a session", "bytes that do not have their crc32c are refused, in a session", NoticeKind.NOTE, _DAMAGED,
        _refuses_a_wrong_session,
    ),
    Probe("the crc32c of a part", "a part that does not have its crc32c is refused", NoticeKind.NOTE, _DAMAGED, _refuses_a_wrong_part),
    Probe(
        "the crc32c that is told", "a crc32c that is told is that of the bytes that arrived", NoticeKind.PROBLEM,
        "what was damaged on its way would be said to be stored", _tells_what_arrived,
    ),
)  # fmt: skip
"""The first is what all others need."""
