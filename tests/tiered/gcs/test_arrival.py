"""Nobody is told that bytes are stored which did not arrive in GCS, also where nothing but the answer tells of them."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from multidict import CIMultiDict

from changelog.base.errors import TieredError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.gcs.server import GcsEmulator
from tiered.gcs.answers import GcsResponse
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.http import ConnectionSlot, GcsHttp, GcsRequest
from tiered.metadata import Metadata
from tiered.object_id import blob_name
from tiered.services.capabilities import Part
from tiered.transfer.upload_lanes import UploadLanes

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
RUNTIME = SystemRuntime()
NAME = blob_name("u/objects/key", ChangeId.new(RUNTIME))
LETTERS = b"abcdefghij" * 50
PIECES = [LETTERS[:200], LETTERS[200:400], LETTERS[400:]]
LARGE = b"0123456789" * 900_000
LANES = UploadLanes(3, from_bytes=len(LARGE) - 1, part_bytes=len(LARGE) // 3)


# --- ways of writing ---------------------------------------------------------------------------------


async def single(blobs: GcsBlobs) -> bytes:
    return await _put(blobs, LETTERS, len(LETTERS))


async def session(blobs: GcsBlobs) -> bytes:
    return await _put(blobs, LETTERS, None)


async def lanes(blobs: GcsBlobs) -> bytes:
    return await _put(blobs, LARGE, len(LARGE))


async def _put(blobs: GcsBlobs, body: bytes, size: int | None) -> bytes:
    upload = await blobs.open_upload(NAME, Metadata(), size)
    await upload.write(body)
    await upload.finalise()
    return body


async def parts_told(blobs: GcsBlobs) -> bytes:
    of, parts = await _parts(blobs)
    await blobs.complete_parts(NAME, of, parts)
    return LETTERS


async def parts_listed(blobs: GcsBlobs) -> bytes:
    of, _ = await _parts(blobs)
    await blobs.complete_parts(NAME, of, await blobs.parts(NAME, of))
    return LETTERS


async def _parts(blobs: GcsBlobs) -> tuple[str, Sequence[Part]]:
    of = await blobs.begin_parts(NAME, Metadata())
    return of, [await blobs.put_part(NAME, of, number, [piece]) for number, piece in enumerate(PIECES, 1)]


WAYS = [single, session, lanes, parts_told, parts_listed]


# --- what becomes of bytes, and what is told of them -------------------------------------------------


def flipped(body: bytes) -> bytes:
    return body.replace(b"f", b"g").replace(b"6", b"7")


def exchanged(body: bytes) -> bytes:
    return body.replace(b"ab", b"ba").replace(b"01", b"10")


def nothing(body: bytes) -> bytes:
    return body


DAMAGES = [flipped, exchanged, nothing]
TOLD = {"hash-and-tag": (), "tag": ("x-goog-hash",), "neither": ("x-goog-hash", "etag")}
"""What the answer to a part tells of it: which headers it has not, or not as they are."""


@pytest.fixture
async def connection(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    """`damage`: of payloads on their way, of which nobody tells the service a checksum. `untold`: by the answers."""
    exchange = GcsHttp.exchange
    plan: dict[str, Any] = {"damage": nothing, "untold": ()}

    async def over_it(self: GcsHttp, request: GcsRequest, place: ConnectionSlot) -> GcsResponse:
        unchecked = {key: value for key, value in request.headers.items() if key.lower() != "x-goog-hash"}
        sent = request.body if isinstance(request.body, bytes) else _damaged(request.body, plan["damage"])
        untold = plan["untold"] if "partNumber" in request.url else ()

        def shape(answer: GcsResponse) -> Any:
            told = {key: value for key, value in answer.headers.items() if key.lower() not in untold}
            tag = '"any"' if "etag" in untold else answer.headers.get("ETag", "")
            return request.shape(replace(answer, headers=CIMultiDict({**told, "ETag": tag} if tag else told)))

        return await exchange(self, replace(request, headers=unchecked, body=sent, shape=shape), place)

    monkeypatch.setattr(GcsHttp, "exchange", over_it)
    return plan


async def _damaged(body: AsyncIterable[Any], damage: Callable[[bytes], bytes]) -> AsyncIterator[bytes]:
    async for chunk in body:
        yield bytes(chunk) if b"Content-Type" in bytes(chunk) else damage(bytes(chunk))


@pytest.mark.parametrize(
    ("way", "damage", "told"),
    [each for each in product(WAYS, DAMAGES, TOLD) if each[0] in (parts_told, parts_listed) or each[2] != "neither"],
)
async def test_what_did_not_arrive_is_never_acknowledged(
    server: GcsEmulator, connection: dict[str, Any], way: Callable[[GcsBlobs], Any], damage: Callable[[bytes], bytes], told: str
) -> None:
    server.parts.part_bytes_min = 1
    connection |= {"damage": damage, "untold": TOLD[told]}
    async with GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url, lanes=LANES, upload_budget_s=0.2) as blobs:
        if damage is nothing and told != "neither":
            body = await way(blobs)
            assert server.buckets["blobs"].objects[NAME].payload == body
            return
        with pytest.raises(UnconfirmedError if damage is nothing else TieredError):
            await way(blobs)
