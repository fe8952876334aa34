"""What `tiered prove` tries of GCS by requests of its own, on the emulator: green, and red by each lie of a service.

`LIES` is the table: what the server does, and which line must notice it. A probe without a lie is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import pytest

from emulators.gcs.answers import WireResponse
from emulators.gcs.server import GcsEmulator
from emulators.gcs.service import GcsService
from emulators.gcs.wire import WireRequest
from tiered.gcs.blobs import GcsBlobs
from tiered.provision.gcs_probes import PROBES, try_requests
from tiered.provision.probes import RequestSizes, Result
from tiered.testing.clock import Clock

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
SIZES = RequestSizes(racers=16, rounds=2)

Answers: TypeAlias = Callable[[WireRequest, bytes], WireResponse]
Lie: TypeAlias = Callable[[GcsEmulator, Answers, WireRequest, bytes], WireResponse]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def red_lines(lie: Lie | None, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The lines that are not green, and what they say. Nothing is left."""
    async with GcsEmulator() as server:
        server.create_bucket("blobs")
        if lie is not None:
            honest = GcsService.answer

            def answer(service: GcsService, call: WireRequest, body: bytes) -> WireResponse:
                return lie(server, lambda call, body: honest(service, call, body), call, body)

            monkeypatch.setattr(GcsService, "answer", answer)
        connect = partial(GcsBlobs.connect, "blobs", Clock(), endpoint=server.url)
        async with connect() as ours, connect() as other:
            outcomes = await try_requests(ours.http, other.http, "a/", SIZES)
        assert not server.buckets["blobs"].objects
    return {each.probe.name: f"{each.result}: {each.said}" for each in outcomes if each.result is not Result.HELD}


# --- lies --------------------------------------------------------------------------------------------


def ignores(kind: str, *, query: str = "", body: bytes = b"") -> Lie:
    """It does not see a part of the query, or some JSON of the body."""

    def lie(server: GcsEmulator, go: Answers, call: WireRequest, sent: bytes) -> WireResponse:
        if re.fullmatch(kind, call.kind):
            kept = {key: value for key, value in call.query.items() if key != query}
            call, sent = replace(call, query=kept), re.sub(body, b"", sent) if body else sent
        return go(call, sent)

    return lie


def ignores_header(kind: str, header: str) -> Lie:
    def lie(server: GcsEmulator, go: Answers, call: WireRequest, sent: bytes) -> WireResponse:
        if call.kind == kind:
            kept = call.headers.copy()  # type: ignore[attr-defined]  # each is one of multidict's
            kept.popall(header, None)
            call = replace(call, headers=kept)
        return go(call, sent)

    return lie


def takes_after_cancelling(server: GcsEmulator, go: Answers, call: WireRequest, sent: bytes) -> WireResponse:
    """As fake-gcs-server: it says that it has cancelled."""
    return WireResponse(499) if call.kind == "upload.cancel" else go(call, sent)


def ends_again(server: GcsEmulator, go: Answers, call: WireRequest, sent: bytes) -> WireResponse:
    """The end of a session that is repeated makes the object again."""
    session = server.sessions.get(call.query.get("upload_id", ""))
    if session is not None and session.stored is not None and call.kind.startswith("upload"):
        bucket = server.buckets["blobs"]
        if session.name not in bucket.objects:
            bucket.insert(session.name, session.stored.payload, {}, {}, (), 1)
    return go(call, sent)


def tells_another_crc(server: GcsEmulator, go: Answers, call: WireRequest, sent: bytes) -> WireResponse:
    answer = go(call, sent)
    if call.kind != "object.get" or answer.status != 200:
        return answer
    told = {**json.loads(answer.body), "crc32c": "AAAAAA=="}
    return replace(answer, body=json.dumps(told).encode())


def damages(server: GcsEmulator, go: Answers, call: WireRequest, sent: bytes) -> WireResponse:
    answer = go(call, sent)
    return replace(answer, body=answer.body[::-1]) if call.kind == "object.read" and answer.status == 200 else answer


WHOLE, FIRST = rb', "crc32c": "[^"]*"', "ifGenerationMatch"
LIES: Mapping[str, tuple[Lie, set[str]]] = {
    "it damages what it gives": (damages, {"an object"}),
    "a request ignores ifGenerationMatch": (ignores("upload.multipart", query=FIRST), {"ifGenerationMatch=0"}),
    "a session ignores ifGenerationMatch": (ignores("upload.start", query=FIRST), {"ifGenerationMatch=0"}),
    "a change ignores ifMetagenerationMatch": (ignores("object.patch", query="ifMetagenerationMatch"), {"ifMetagenerationMatch"}),
    "a deletion ignores ifGenerationMatch": (ignores("object.delete", query=FIRST), {"ifGenerationMatch in a deletion"}),
    "a cancelled session goes on": (takes_after_cancelling, {"a cancelled session"}),
    "a session makes its object again": (ends_again, {"a session that is over"}),
    "a request ignores a crc32c": (ignores("upload.multipart", body=WHOLE), {"the crc32c of an object"}),
    "a session ignores a crc32c": (ignores("upload.start", body=WHOLE), {"the crc32c of a session"}),
    "a part ignores a crc32c": (ignores_header("xml.parts.put", "x-goog-hash"), {"the crc32c of a part"}),
    "it tells another crc32c": (tells_another_crc, {"the crc32c that is told"}),
}


def test_each_probe_has_a_lie_of_its_own() -> None:
    assert {line for _, lines in LIES.values() for line in lines} == {each.name for each in PROBES}


@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_turns_its_line_red_and_no_other(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    twist, lines = LIES[lie]
    found = await red_lines(twist, monkeypatch)
    assert set(found) == lines and all(each.startswith(Result.BROKEN) for each in found.values()), found


async def test_the_emulator_is_green(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await red_lines(None, monkeypatch) == {}
