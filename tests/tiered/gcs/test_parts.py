"""Uploads in parts on our emulator: calls, lost answers, answers that prove nothing, what is damaged on its way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import google_crc32c
import pytest

import emulators.gcs.parts
import tiered.gcs.parts
import tiered.transfer.parts
from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from emulators.gcs.store import Bucket
from tiered.gcs.blobs import GcsBlobs
from tiered.metadata import Metadata
from tiered.payload.chunks import Chunk
from tiered.payload.crc32c import encode_crc
from tiered.services.capabilities import PART_BYTES_MIN, Part
from tiered.testing.contracts.whole_blobs import read, store

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

RUNTIME = SystemRuntime()
NAME = "attachments/org.17/objects/a b?c#d=e%2F../018bcfe5-6800-7000-8000-000000000001"
PAYLOAD = b"first, last"
PROBABLY_OURS = "<html>welcome</html>"


@pytest.fixture
async def blobs(server: GcsEmulator) -> AsyncIterator[GcsBlobs]:
    server.parts.part_bytes_min = 0
    async with GcsBlobs.connect("blobs", RUNTIME, endpoint=server.url, answer_timeout_s=0.5) as blobs:
        yield blobs


async def uploaded(blobs: GcsBlobs) -> tuple[str, Sequence[Part]]:
    session = await blobs.begin_parts(NAME, Metadata())
    return session, [await blobs.put_part(NAME, session, number, [payload]) for number, payload in ((1, b"first, "), (2, b"last"))]


async def test_what_an_upload_in_parts_calls(blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket) -> None:
    session, parts = await uploaded(blobs)
    await blobs.parts(NAME, session)
    await blobs.complete_parts(NAME, session, parts)
    await blobs.cancel(session)
    assert server.calls == [
        "xml.parts.start", "xml.parts.put", "xml.parts.put", "xml.parts.list",
        "xml.parts.list", "xml.parts.complete", "object.get", "xml.parts.cancel",
    ]  # fmt: skip
    assert parts[0].checksum == f"crc32c={encode_crc(google_crc32c.value(b'first, '))}"
    assert session.startswith("parts:blobs/") and bucket.objects[NAME].payload == PAYLOAD


async def test_a_session_of_another_bucket_is_refused_and_nothing_is_sent(blobs: GcsBlobs, server: GcsEmulator) -> None:
    session, parts = await uploaded(blobs)
    server.calls.clear()
    for other in (session.replace("blobs/", "blobs2/", 1), session.replace("parts:", "", 1), session + "&x=y", session.partition("?")[0]):
        for call in (blobs.cancel(other), blobs.put_part(NAME, other, 1, [b"x"]), blobs.complete_parts(NAME, other, parts)):
            with pytest.raises(CorruptRecordError):
                await call
    with pytest.raises(InvalidRequestError):
        await blobs.parts(f"{NAME}x", session)
    assert server.calls == []


async def test_a_listing_of_many_parts_comes_in_pages(blobs: GcsBlobs, server: GcsEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulators.gcs.parts, "PARTS_LISTED_MAX", 2)
    session = await blobs.begin_parts(NAME, Metadata())
    put = [await blobs.put_part(NAME, session, number, [b"x" * number]) for number in range(1, 6)]
    assert await blobs.parts(NAME, session) == [replace(part, checksum=None) for part in put]
    assert server.calls.count("xml.parts.list") == 3


@pytest.mark.parametrize("mode", [FaultMode.DROP_AFTER, FaultMode.STALL_AFTER])
async def test_a_completion_whose_answer_is_lost_is_found_done(blobs: GcsBlobs, server: GcsEmulator, mode: FaultMode) -> None:
    session, parts = await uploaded(blobs)
    server.faults.append(GcsFault(mode, "xml.parts.complete"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tiered.gcs.parts, "COMPLETION_ANSWERS", 1)
        await blobs.complete_parts(NAME, session, parts)
    assert await read(blobs, NAME) == PAYLOAD


@pytest.mark.parametrize(
    "fault",
    [
        GcsFault(FaultMode.DROP_BEFORE, "xml.parts.complete"),
        GcsFault(FaultMode.STATUS, "xml.parts.complete", status=503),
        GcsFault(FaultMode.STATUS, "xml.parts.complete", status=200, text="<Error><Code>InternalError</Code></Error>"),
        GcsFault(FaultMode.STATUS, "xml.parts.complete", status=200, text=PROBABLY_OURS),
        GcsFault(FaultMode.STATUS, "xml.parts.complete", status=404, text=PROBABLY_OURS),
    ],
    ids=["dropped", "503", "error-in-200", "odd-200", "odd-404"],
)
async def test_a_completion_that_nobody_confirmed_is_unknown_and_may_be_repeated(
    blobs: GcsBlobs, server: GcsEmulator, fault: GcsFault
) -> None:
    session, parts = await uploaded(blobs)
    server.faults.append(replace(fault))
    with pytest.raises(UnconfirmedError):
        await blobs.complete_parts(NAME, session, parts)
    await blobs.complete_parts(NAME, session, parts)
    assert await read(blobs, NAME) == PAYLOAD


async def test_where_the_blob_cannot_be_looked_at_nobody_knows_what_became_of_an_ended_session(
    blobs: GcsBlobs, server: GcsEmulator
) -> None:
    session, parts = await uploaded(blobs)
    for ended in (False, True):
        server.faults.append(GcsFault(FaultMode.STATUS, "object.get"))
        with pytest.raises(UnconfirmedError):
            await blobs.complete_parts(NAME, session, parts)
        assert ended or not server.parts.uploads
    await blobs.complete_parts(NAME, session, parts)


async def test_a_blob_that_is_not_what_its_parts_are_is_to_be_deleted(blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket) -> None:
    session, parts = await uploaded(blobs)
    [upload] = server.parts.uploads.values()
    upload.parts[2] = replace(upload.parts[2], payload=b"lost")
    with pytest.raises(UnavailableError, match="delete it") as raised:
        await blobs.complete_parts(NAME, session, parts)
    assert raised.value.heard is True and NAME in bucket.objects


async def test_a_part_that_arrives_damaged_is_not_kept(blobs: GcsBlobs, server: GcsEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    session, parts = await uploaded(blobs)
    with monkeypatch.context() as patched:
        patched.setattr(tiered.transfer.parts, "extend_crc", lambda crc, chunk: 1)
        with pytest.raises(UnavailableError, match="damaged on its way") as raised:
            await blobs.put_part(NAME, session, 1, [b"other"])
    assert raised.value.heard is True
    await blobs.complete_parts(NAME, session, parts)


@pytest.mark.parametrize("status", [503, 404, 200])
async def test_a_part_that_nobody_confirmed_is_unknown(blobs: GcsBlobs, server: GcsEmulator, status: int) -> None:
    session, _ = await uploaded(blobs)
    server.faults.append(GcsFault(FaultMode.STATUS, "xml.parts.put", status=status, text=PROBABLY_OURS))
    with pytest.raises(UnconfirmedError):
        await blobs.put_part(NAME, session, 3, [b"x"])
    assert [part.number for part in await blobs.parts(NAME, session)] == [1, 2]


@pytest.mark.parametrize("mode", [FaultMode.DROP_BEFORE, FaultMode.DROP_AFTER])
async def test_a_part_whose_connection_breaks_may_be_sent_again(blobs: GcsBlobs, server: GcsEmulator, mode: FaultMode) -> None:
    session, parts = await uploaded(blobs)
    server.faults.append(GcsFault(mode, "xml.parts.put"))
    payload: list[Chunk] = [memoryview(b"x" * 600), b"y"]
    with pytest.raises(UnconfirmedError):
        await blobs.put_part(NAME, session, 3, payload)
    third = await blobs.put_part(NAME, session, 3, payload)
    await blobs.complete_parts(NAME, session, [*parts, third])
    assert await read(blobs, NAME) == PAYLOAD + b"x" * 600 + b"y"


async def test_a_part_that_is_too_small_is_said_when_the_parts_are_completed(blobs: GcsBlobs, server: GcsEmulator) -> None:
    server.parts.part_bytes_min = PART_BYTES_MIN
    session, parts = await uploaded(blobs)
    with pytest.raises(InvalidRequestError, match="smaller than the minimum"):
        await blobs.complete_parts(NAME, session, parts)
    await blobs.cancel(session)


async def test_a_bucket_that_is_gone_is_no_session_that_has_ended(blobs: GcsBlobs, server: GcsEmulator) -> None:
    session, parts = await uploaded(blobs)
    del server.buckets["blobs"]
    for call in (
        blobs.cancel(session), blobs.put_part(NAME, session, 1, [b"x"]), blobs.parts(NAME, session),
        blobs.complete_parts(NAME, session, parts), blobs.begin_parts(NAME, Metadata()),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match="no bucket"):
            await call


async def test_only_what_no_header_carries_is_packed_until_the_parts_are_completed(
    blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket
) -> None:
    odd = Metadata(filename="größe", origin="here", custom={"Upper": "x", "lower": "y", "a_b": "z", "empty": ""}, time_created_ns=5)
    plain = {"x-sn-origin": "here", "x-snme-lower": "y"}
    for is_away in (True, False):
        server.faults += [GcsFault(FaultMode.STATUS, "object.patch", status=503)] * is_away
        session = await blobs.begin_parts(NAME, odd)
        parts = [await blobs.put_part(NAME, session, 1, [b"x"])]
        await blobs.complete_parts(NAME, session, parts)
        there = dict(bucket.objects[NAME].metadata)
        if is_away:
            assert there.keys() == {*plain, "x-snme-tiered-packed"}
            await blobs.complete_parts(NAME, session, parts)
            there = dict(bucket.objects[NAME].metadata)
        assert there == {**plain, "x-sn-filename": "größe", "x-snme-Upper": "x", "x-snme-a_b": "z", "x-snme-empty": ""}
        head = await blobs.head(NAME)
        assert head is not None and head.metadata == odd.with_facts(size=1)
    session = await blobs.begin_parts(f"{NAME}2", Metadata(filename="plain.txt"))
    await blobs.complete_parts(f"{NAME}2", session, [await blobs.put_part(f"{NAME}2", session, 1, [b"x"])])
    assert bucket.objects[f"{NAME}2"].metadata == {"x-sn-filename": "plain.txt"}


async def test_somebody_elses_entry_of_the_name_of_the_packed_one_stays(blobs: GcsBlobs, bucket: Bucket) -> None:
    await store(blobs, NAME)
    for wrong in ("", "x", "eNo=", "bm90IHpsaWI="):
        bucket.objects[NAME] = replace(bucket.objects[NAME], metadata={"x-snme-tiered-packed": wrong, "x-snme-k": "v"})
        head = await blobs.head(NAME)
        assert head is not None and head.metadata.custom == {"k": "v", "tiered-packed": wrong}
