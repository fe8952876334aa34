"""Blobs in GCS, on our emulator: which calls are made, what goes wrong on the way, and what is known then."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import aiohttp
import anyio
import anyio.lowlevel
import pytest

from changelog.base.errors import (
    ConfigurationError,
    CorruptRecordError,
    InvalidRequestError,
    TieredError,
    UnavailableError,
    UnconfirmedError,
)
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from emulators.gcs.store import Bucket
from tests.given.loop_clock import LoopClock
from tests.given.scripted_http import NumberedTokens, head_of, say, scripted, silent
from tests.given.tables import in_turn
from tiered.errors import AtCapacityError
from tiered.gcs.answers import GcsResponse
from tiered.gcs.blobs import GcsBlobs
from tiered.gcs.http import ConnectionSlot, GcsHttp, GcsRequest
from tiered.gcs.upload import PARTS_AHEAD, SINGLE_BYTES_MAX, GcsUpload, SessionUpload, SingleUpload
from tiered.metadata import NS_PER_S, Metadata, TimeToIdle
from tiered.payload.crc32c import encode_crc, extend_crc
from tiered.services.backends import ByteRange
from tiered.services.capabilities import BlobRestoration, KeptPage, Retention
from tiered.services.scans import BlobPage
from tiered.stored import CHUNK_BYTES
from tiered.testing.contracts import long_term as contract
from tiered.testing.contracts.whole_blobs import read
from tiered.transfer.upload_lanes import LaneUpload

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KIB, MIB = 1024, 1024 * 1024
NAME = "attachments/org.17/objects/abc123/018bcfe5-6800-7000-8000-000000000001"
DEADLINE_NS = 2_000_000_000 * NS_PER_S
IDLE = Metadata(TimeToIdle(ns=86_400 * NS_PER_S), time_expires_ns=DEADLINE_NS)
LARGE = bytes(range(256)) * (3 * MIB // 256)
RUNTIME = SystemRuntime()
SIZES = pytest.mark.parametrize("size", [len(LARGE), None], ids=["single", "session"])


def connected(url: str, **options: Any) -> AbstractAsyncContextManager[GcsBlobs]:
    """Nothing is tried again, so that each error is seen."""
    return GcsBlobs.connect("blobs", RUNTIME, endpoint=url, upload_budget_s=0, **options)


@pytest.fixture
async def blobs(server: GcsEmulator) -> AsyncIterator[GcsBlobs]:
    async with connected(server.url) as blobs:
        yield blobs


async def put(
    blobs: GcsBlobs, payload: bytes = b"payload", *, name: str = NAME, metadata: Metadata | None = None, session: bool = False
) -> None:
    upload = await blobs.open_upload(name, metadata or Metadata(), None if session else len(payload))
    await write(upload, payload)
    await upload.finalise()


async def write(upload: GcsUpload | LaneUpload[Any], payload: bytes) -> None:
    for start in range(0, len(payload), 256 * KIB):
        await upload.write(payload[start : start + 256 * KIB])


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - the server sends no events
            await anyio.sleep(0.001)


def everything_told(error: BaseException | None) -> str:
    """All that a log with tracebacks could show, and what is chained out of sight, too."""
    told = ""
    while error is not None:
        told += repr(error) + "".join(traceback.format_exception(error))
        error = error.__cause__ or error.__context__
    return told


# --- which calls are made ------------------------------------------------------------------------


async def test_a_session_said_the_content_type_of_the_http_library_where_its_bytes_are_sent() -> None:
    """Some servers take it from there, and some from the start alone."""
    told: list[tuple[str, list[str]]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await head_of(reader)
        told.append((head.partition(" ")[0], [line.lower() for line in head.split("\r\n") if "content-type" in line.lower()]))
        begun = {"Location": f"{url}/upload/storage/v1/b/blobs/o?upload_id=x"} if head.startswith("POST") else {}
        await say(writer, "200 OK", "{}", Connection="close", **begun)

    async with scripted(answer) as url, connected(url) as client:
        upload = await client.open_upload(NAME, Metadata(content_type="text/csv; header=present"), None)
        await upload.write(b"payload")
        with pytest.raises(UnconfirmedError):  # this server tells nothing of what it stored
            await upload.finalise()
    assert told == [
        ("POST", ["content-type: application/json; charset=utf-8", "x-upload-content-type: text/csv; header=present"]),
        ("PUT", ["content-type: text/csv; header=present"]),
        ("PUT", ["content-type: text/csv; header=present"]),  # the question what became of it
    ]


@pytest.mark.parametrize(("payload", "size", "told", "calls"), [
    (LARGE, len(LARGE), None, 1), (bytes(SINGLE_BYTES_MAX), SINGLE_BYTES_MAX, None, 1), (b"abc", None, 3, 1),
    (bytes(SINGLE_BYTES_MAX + 1), SINGLE_BYTES_MAX + 1, None, 2), *((payload, None, None, 2) for payload in (b"", b"x", LARGE)),
])  # fmt: skip
async def test_a_blob_of_known_moderate_size_is_one_call_and_any_other_has_a_session(
    blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket, payload: bytes, size: int | None, told: int | None, calls: int
) -> None:
    """`told`: its size, in the metadata."""
    upload = await blobs.open_upload(NAME, Metadata(size=told), size)
    assert (upload.session is None) == (calls == 1)
    await write(upload, payload)
    await upload.finalise()
    assert (server.calls[0], len(server.calls)) == ("upload.multipart" if calls == 1 else "upload.start", calls)
    assert bucket.objects[NAME].payload == payload


LOST = [FaultMode.DROP_AFTER, FaultMode.STALL_AFTER, FaultMode.TRUNCATE]


UNANSWERED: dict[str, tuple[str, list[GcsFault], type[TieredError] | None, bool]] = {
    **{f"a request, {mode.name}": ("M", [GcsFault(mode, "upload.multipart")], UnconfirmedError, True) for mode in LOST},
    **{f"a request, {status}": ("M", [GcsFault(FaultMode.STATUS, "upload.multipart", status=status)], UnconfirmedError, False)
       for status in (408, 500, 503)},
    **{f"a session, {mode.name}": ("SPQ", [GcsFault(mode, "upload.put")], None, True) for mode in LOST},
    "a session that tells nothing then": (
        "SPQ", [GcsFault(FaultMode.DROP_AFTER, "upload.put"), GcsFault(FaultMode.STATUS, "upload.status")], UnconfirmedError, True
    ),
    "a session that lacks the end": ("SPQ", [GcsFault(FaultMode.DROP_BEFORE, "upload.put")], UnconfirmedError, False),
    **{f"the start of a session, {mode.name}": ("S", [GcsFault(mode, "upload.start")], UnavailableError, False)
       for mode in (FaultMode.DROP_BEFORE, *LOST[:2])},
}  # fmt: skip
"""What is not answered: the calls by their letters, the faults, the error, and whether the blob is there."""


LETTERS = {"upload.multipart": "M", "upload.start": "S", "upload.put": "P", "upload.status": "Q"}


@pytest.mark.parametrize("what", UNANSWERED)
async def test_of_an_upload_without_an_answer_is_told_what_is_known(server: GcsEmulator, bucket: Bucket, what: str) -> None:
    calls, faults, error, is_there = UNANSWERED[what]
    server.faults += [replace(each) for each in faults]
    async with connected(server.url, answer_timeout_s=0.3) as blobs:
        with nullcontext() if error is None else pytest.raises(error, match=NAME):
            await put(blobs, session=calls != "M")
    assert "".join(LETTERS[call] for call in server.calls) == calls and (NAME in bucket.objects) is is_there


async def test_the_other_calls_are_one_each_but_two_to_open_and_to_touch(blobs: GcsBlobs, server: GcsEmulator) -> None:
    await put(blobs, metadata=IDLE)

    async def calls(call: Any) -> list[str]:
        server.calls.clear()
        await call
        return sorted(server.calls)

    assert await calls(read(blobs, NAME)) == ["object.get", "object.read"]
    assert await calls(read(blobs, NAME, range=ByteRange(-3))) == ["object.get", "object.read"]
    assert await calls(read(blobs, NAME, range=ByteRange(-3, 6))) == ["object.get", "object.read"]
    assert await calls(read(blobs, NAME, range=ByteRange(3, 3))) == ["object.get"]
    assert await calls(blobs.head(NAME)) == ["object.get"]
    assert await calls(blobs.touch(NAME, DEADLINE_NS + NS_PER_S)) == ["object.get", "object.patch"]
    assert await calls(blobs.touch(NAME, DEADLINE_NS)) == ["object.get"]
    assert await calls(blobs.list("a", None, 10)) == ["object.list"]
    assert await calls(blobs.delete(NAME)) == ["object.delete"]
    assert await calls(blobs.delete(NAME)) == ["object.delete"]
    assert await calls(blobs.open(NAME)) == ["object.get", "object.read"]


async def test_a_listing_is_one_request_for_what_the_service_gives_at_once(blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket) -> None:
    names = [f"u/objects/{n:02}" for n in range(10)]
    for name in names:
        await put(blobs, b"", name=name)
    bucket.page_max = 3
    server.calls.clear()
    page = await blobs.list(names[1], None, 5)
    assert ([info.name for info in page.blobs], page.next_start) == (names[1:4], f"{names[3]}\0")
    page = await blobs.list(f"{names[7]}\0", None, 5)
    assert ([info.name for info in page.blobs], page.next_start) == (names[8:], None)
    assert server.calls == ["object.list"] * 2


@asynccontextmanager
async def pages(*bodies: dict[str, Any], date: str = "Tue, 14 Nov 2023 22:13:20 GMT") -> AsyncIterator[tuple[GcsBlobs, list[str]]]:
    """A service that answers one request after the other with these, and the queries that it was sent."""
    asked: list[str] = []
    left = deque(json.dumps({"kind": "storage#objects", **body}) for body in bodies)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked.append(unquote((await head_of(reader)).split(" ")[1].partition("?")[2]))
            await say(writer, "200 OK", left.popleft(), **({"Date": date} if date else {}))

    async with scripted(answer) as url, connected(url) as client:
        yield client, asked


def item(name: str) -> dict[str, str]:
    return {"name": name, "size": "1", "generation": "1", "timeCreated": "2023-11-14T22:13:20Z"}


async def test_an_empty_page_with_a_token_never_ends_a_listing() -> None:
    later = {"items": [item("b")], "nextPageToken": "3"}
    async with pages({"nextPageToken": "1"}, {"items": [], "nextPageToken": "2"}, later) as (client, asked):
        page = await client.list("a", "z", 10)
    assert ([blob.name for blob in page.blobs], page.next_start) == (["b"], "b\0")
    assert [re.findall("pageToken=(.*?)(?:&|$)", query) for query in asked] == [[], ["1"], ["2"]]
    async with pages({"items": [item("a")], "nextPageToken": "1"}, {"items": []}) as (client, asked):
        assert await client.list("a\0", None, 1) == BlobPage([], [], None)
    assert len(asked) == 2


async def test_what_begins_or_ends_right_after_a_name_is_asked_for_without_a_nul() -> None:
    found = {"items": [item("a"), item("a\0"), item("b"), item("b\0"), item("b\x01")]}
    async with pages(found, found) as (client, asked):
        assert [blob.name for blob in (await client.list("a\0", "b\0", 10)).blobs] == ["a\0", "b"]
        assert [blob.name for blob in (await client.list("a", "c", 10)).blobs] == ["a", "a\0", "b", "b\0", "b\x01"]
        assert await client.list("c", "c", 10) == await client.list("d", "c", 10) == BlobPage((), (), None)
    assert "startOffset=a&endOffset=b " in asked[0] and "\0" not in asked[0]
    assert len(asked) == 2


async def test_a_blob_that_breaks_the_format_is_an_oddity_of_its_page_wherever_it_stands() -> None:
    broken = {**item("c"), "size": "many"}
    first, second = {"items": [item("b"), broken], "nextPageToken": "1"}, {"items": [broken, {}]}
    async with pages(first, first, second, second) as (client, _):  # each is asked for again
        page = await client.list("a", None, 10)
        assert ([blob.name for blob in page.blobs], [odd.name for odd in page.oddities], page.next_start) == (["b"], ["c"], "c\0")
        page = await client.list("c\0", None, 10)
        assert (page.blobs, [odd.is_blob for odd in page.oddities], page.next_start) == ([], [False], None)


async def test_the_time_is_that_of_the_service() -> None:
    async with pages({}) as (client, asked):
        assert await client.now_ns() == 1_700_000_000 * NS_PER_S
    assert "maxResults=1" in asked[0] and "items" not in asked[0]


@pytest.mark.parametrize("date", ["", "soon"])
async def test_a_service_that_tells_no_time_is_unavailable(date: str) -> None:
    async with pages({}, date=date) as (client, _):
        with pytest.raises(UnavailableError, match="has no Date"):
            await client.now_ns()


async def test_what_is_stored_is_as_the_format_says(blobs: GcsBlobs, bucket: Bucket) -> None:
    metadata = Metadata(IDLE.expiration, 5, DEADLINE_NS, "text/plain; charset=utf-8", "Zstd", filename="größe.txt", custom={"k": "v"})
    for session in (False, True):
        await put(blobs, b"zstd bytes", name=f"u/objects/{session}", metadata=metadata, session=session)
        stored = bucket.objects[f"u/objects/{session}"]
        assert stored.content == {
            "contentType": "text/plain; charset=utf-8", "contentEncoding": "zstd", "contentDisposition": "inline; created-ns=5",
        }  # fmt: skip
        assert stored.resource()["customTime"] == "2033-05-18T03:33:20.000Z"
        assert dict(stored.metadata) == {
            "x-sn-expiration": "tti:1day", "x-sn-filename": "größe.txt", "x-snme-k": "v",
        }


async def test_compressed_bytes_come_as_they_are_stored() -> None:
    seen: list[str] = []
    packed = b"\x1f\x8b\x08!"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(head := await head_of(reader))
        if "alt=media" in head:
            await say(writer, "200 OK", packed, Content_Encoding="gzip", X_Goog_Generation="1", Connection="close")
            return
        hashed = {"size": "4", "crc32c": encode_crc(extend_crc(0, packed))}
        resource = {**item(NAME), **hashed, "metageneration": "1", "contentEncoding": "gzip"}
        await say(writer, "200 OK", json.dumps(resource), Connection="close")

    async with scripted(answer) as url, connected(url) as client:
        assert await read(client, NAME) == packed
    assert sorted(re.findall(r"(?i)accept-encoding: (\S+)", "".join(seen))) == ["gzip", "identity"]


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [".", "..", "a\nb", "k" * 1025])
async def test_a_name_that_the_service_refuses_is_the_callers_mistake(blobs: GcsBlobs, name: str) -> None:
    for session in (False, True):
        with pytest.raises(InvalidRequestError, match="upload of blob"):
            await put(blobs, name=name, session=session)


async def test_a_name_is_one_segment_without_dots_on_the_wire() -> None:
    lines: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(await head_of(reader))
        await say(writer, "204 No Content", Connection="close")

    async with scripted(answer) as url, connected(url) as client:
        await client.delete("a/../b?c#d")
    assert lines[0].split(" ")[1] == "/storage/v1/b/blobs/o/a%2F%2E%2E%2Fb%3Fc%23d"


# --- uploads that do not end ---------------------------------------------------------------------


@SIZES
async def test_all_but_the_end_is_sent_before_finalise_and_nothing_is_visible(
    blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket, size: int | None
) -> None:
    upload = await blobs.open_upload(NAME, Metadata(), size)
    await write(upload, LARGE)
    await until(lambda: server.calls[-1] == ("upload.multipart" if size else "upload.put"))
    await is_there_from_its_end_on(upload, server, bucket, size)


async def is_there_from_its_end_on(upload: GcsUpload | LaneUpload[Any], server: GcsEmulator, bucket: Bucket, size: int | None) -> None:
    """`LARGE` was written: all but its end arrives, and nothing is visible before `finalise`."""
    if size is None:
        [session] = server.sessions.values()
        await until(lambda: len(session.arrived) == len(LARGE) - 256 * KIB)
    assert not bucket.objects
    await upload.finalise()
    assert bucket.objects[NAME].payload == LARGE


@SIZES
@pytest.mark.parametrize("how", ["abort", "close", "cancel"])
async def test_an_upload_that_breaks_off_creates_nothing(server: GcsEmulator, bucket: Bucket, size: int | None, how: str) -> None:
    async with AsyncExitStack() as stack:
        blobs = await stack.enter_async_context(connected(server.url))
        upload = await blobs.open_upload(NAME, Metadata(), size)
        await write(upload, LARGE)  # all of it, so that one byte more would do
        await until(lambda: server.calls[-1] in ("upload.multipart", "upload.put"))
        if how == "abort":
            await upload.abort()
            await upload.abort()
        elif how == "cancel":
            with anyio.move_on_after(0) as scope:
                await upload.finalise()
            assert scope.cancelled_caught
        if how != "close":
            with pytest.raises(InvalidRequestError, match="ended already"):
                await upload.finalise()
            with pytest.raises(InvalidRequestError, match="ended already"):
                await upload.write(b"more")
    if how == "close":
        with pytest.raises(UnavailableError, match="closed"):
            await upload.finalise()
    async with connected(server.url) as later:
        assert not (await later.list("", None, 10)).blobs
        assert await later.open(NAME) is None
    assert not bucket.objects


async def test_a_write_that_is_cancelled_ends_the_upload_so_that_no_byte_is_left_out() -> None:
    stalled = anyio.Event()
    async with scripted(silent(stalled)) as url, connected(url) as client:
        upload = await client.open_upload(NAME, Metadata(), SINGLE_BYTES_MAX)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, upload, bytes(SINGLE_BYTES_MAX))
            await stalled.wait()
            tasks.cancel_scope.cancel()
        with pytest.raises(InvalidRequestError, match="ended already"):
            await upload.finalise()


@SIZES
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_a_chunk_of_any_size_is_sent_but_for_its_end(
    blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket, size: int | None, kind: Callable[[bytes], Any]
) -> None:
    upload = await blobs.open_upload(NAME, Metadata(), size)
    chunk = kind(LARGE)
    await upload.write(chunk)
    if kind is bytearray:
        chunk[:] = bytes(len(LARGE))  # what was written counts
    await is_there_from_its_end_on(upload, server, bucket, size)


async def test_of_a_write_that_is_cancelled_nothing_more_is_taken() -> None:
    begun, arrived = anyio.Event(), bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        begun.set()
        await anyio.sleep(0.1)  # the connection is full by now
        while chunk := await reader.read(256 * KIB):
            arrived.extend(chunk)

    async with scripted(answer) as url, connected(url) as client:
        size = 64 * 1024 * KIB  # more than a connection holds
        upload = SingleUpload(client._http, client._tasks, client._resuming, NAME, Metadata(), size, "boundary")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(upload.write, bytes(size))
            await begun.wait()
            tasks.cancel_scope.cancel()
        waiting = upload._pipe.waiting
        await anyio.sleep(0.2)
        assert 0 < waiting == upload._pipe.waiting
        assert len(arrived) < size


async def test_a_write_whose_upload_is_aborted_meanwhile_says_so() -> None:
    stalled = anyio.Event()

    async def wait(upload: GcsUpload | LaneUpload[Any]) -> None:
        with pytest.raises(UnavailableError, match=r"was given up$"):
            await upload.write(bytes(SINGLE_BYTES_MAX))

    async with scripted(silent(stalled)) as url, connected(url) as client:
        upload = await client.open_upload(NAME, Metadata(), SINGLE_BYTES_MAX)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, upload)
            await stalled.wait()
            await upload.abort()


async def test_an_end_whose_upload_is_aborted_before_it_is_taken_is_not_unconfirmed(server: GcsEmulator) -> None:
    async def end(upload: GcsUpload | LaneUpload[Any]) -> None:
        with pytest.raises(UnavailableError, match=r"was given up$"):
            await upload.finalise()

    async with connected(server.url, authorize=NumberedTokens(waits=True)) as client:
        upload = await client.open_upload(NAME, Metadata(), 4)
        await upload.write(b"tiny")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end, upload)
            await anyio.sleep(0.05)
            await upload.abort()


async def test_a_service_that_takes_a_part_now_and_then_is_waited_for() -> None:
    clock = LoopClock()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        for _ in range(128):
            await reader.readexactly(256 * KIB)
            clock.ahead_s += 1.0

    async with scripted(answer) as url, connected(url, answer_timeout_s=30) as client:
        size = 128 * 256 * KIB  # more than a connection holds
        upload = SingleUpload(client._http, client._tasks, client._resuming, NAME, Metadata(), size, "boundary")
        await upload.write(bytes(size))
        assert clock.ahead_s > 30


async def test_a_service_that_takes_no_more_bytes_is_given_up() -> None:
    async with scripted(silent()) as url, connected(url, answer_timeout_s=0.2) as client:
        upload = await client.open_upload(NAME, Metadata(), SINGLE_BYTES_MAX)
        with pytest.raises(UnavailableError, match=r"no answer.*within 0\.2 s"):
            await write(upload, bytes(SINGLE_BYTES_MAX))


async def test_an_end_that_was_not_taken_in_time_is_never_sent() -> None:
    clock = LoopClock()
    async with scripted(silent()) as url, connected(url, answer_timeout_s=30) as client:
        session = f"{url}/upload/storage/v1/b/blobs/o?uploadType=resumable&upload_id=x"
        upload = SessionUpload(client._http, client._tasks, client._resuming, NAME, Metadata(), None, session)
        while upload._pipe.waiting < PARTS_AHEAD:  # until the connection holds no more
            await upload.write(bytes(256 * KIB))
            await anyio.sleep(0.01)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clock.pass_by, 30)
            with pytest.raises(UnavailableError, match=r"no answer.*within 30 s"):
                await upload.finalise()
        assert not upload._released


@pytest.mark.parametrize("size", [4, None])
async def test_an_upload_that_got_no_token_in_time_was_not_sent(server: GcsEmulator, size: int | None) -> None:
    async with connected(server.url, authorize=NumberedTokens(waits=True), answer_timeout_s=0.1) as client:
        with pytest.raises(UnavailableError, match=r"was not sent: there was no Google token for 0\.1 s") as caught:
            await put(client, b"tiny", session=size is None)
        with pytest.raises(UnavailableError, match="was not sent"):
            await client.delete(NAME)
    assert caught.value.heard is False and not server.calls


@pytest.mark.parametrize(
    ("status", "error", "told"),
    [
        (403, ConfigurationError, "roles/storage.objectUser"), (412, UnavailableError, "exists already"), (503, UnavailableError, "503"),
        (429, UnavailableError, "lower the load"), (404, ConfigurationError, "tiered provision"),
        (200, UnavailableError, "before all of it"),
    ],
)  # fmt: skip
async def test_an_early_refusal_is_raised_by_a_write_instead_of_hanging(status: int, error: type[TieredError], told: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        await say(writer, f"{status} No", json.dumps({"error": {"code": status}}))
        await asyncio.sleep(3600)  # and reads nothing more

    async with scripted(answer) as url, connected(url) as client:
        upload = await client.open_upload(NAME, Metadata(), SINGLE_BYTES_MAX)
        with pytest.raises(error, match=told), anyio.fail_after(5):
            await write(upload, bytes(SINGLE_BYTES_MAX))
        with pytest.raises(InvalidRequestError, match="ended already"):
            await upload.finalise()


STREAM = """
import resource, sys, anyio
from changelog.base.runtime import SystemRuntime
from tiered.errors import AtCapacityError
from tiered.gcs.blobs import GcsBlobs
from tiered.metadata import Metadata

async def main(url, size):
    async with GcsBlobs.connect("blobs", SystemRuntime(), endpoint=url) as blobs:
        upload = await blobs.open_upload("u/objects/k", Metadata(), size)
        for _ in range(size // 262144):
            await upload.write(bytes(262144))
        await upload.finalise()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

anyio.run(main, sys.argv[1], int(sys.argv[2]))
"""


async def test_the_memory_of_a_streamed_put_does_not_depend_on_its_size() -> None:
    """In a process of its own, against a server that keeps nothing."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            left = length = int(re.findall(r"\r\nContent-Length: (\d+)", head)[0])
            while left:
                left -= len(await reader.readexactly(min(left, 64 * KIB)))
            size = 64 * MIB if length >= 64 * MIB else 2 * MIB
            crc = 0
            for _ in range(size // MIB if length > MIB else 0):
                crc = extend_crc(crc, bytes(MIB))
            told = {"name": "u/objects/k", "generation": "1", "size": str(size), "crc32c": encode_crc(crc)}
            body = json.dumps({**told, "contentType": "application/octet-stream"}).encode()
            session = f"{url}/upload/storage/v1/b/blobs/o?uploadType=resumable&upload_id=x"
            writer.write(f"HTTP/1.1 200 OK\r\nLocation: {session}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()

    peak_kib = []
    async with scripted(answer) as url:
        for size in (2 * MIB, 64 * MIB):
            ended = await anyio.run_process([sys.executable, "-c", STREAM, url, str(size)])
            peak_kib.append(int(ended.stdout))
    assert peak_kib[1] - peak_kib[0] < 8 * KIB


# --- faults of the service -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, InvalidRequestError), (401, UnavailableError), (403, ConfigurationError), (409, UnavailableError), (412, UnavailableError),
        (429, UnavailableError), (302, ConfigurationError), (405, ConfigurationError), (501, ConfigurationError),
    ],
)  # fmt: skip
@SIZES
async def test_a_refused_upload_certainly_did_not_happen(
    blobs: GcsBlobs, server: GcsEmulator, size: int | None, status: int, error: type[TieredError]
) -> None:
    server.faults.append(GcsFault(FaultMode.STATUS, "upload.*", status=status))
    with pytest.raises(error, match=NAME) as caught:
        await put(blobs, LARGE, session=size is None)
    assert (type(caught.value), caught.value.code) == (error, str(status))
    assert len(str(caught.value).splitlines()) == 1


@SIZES
async def test_a_writer_may_pause_for_longer_than_an_answer_may_take(server: GcsEmulator, bucket: Bucket, size: int | None) -> None:
    payload = bytes(4 * CHUNK_BYTES)
    async with connected(server.url, answer_timeout_s=0.3) as blobs:
        upload = await blobs.open_upload(NAME, Metadata(), None if size is None else len(payload))
        await upload.write(payload[: 3 * CHUNK_BYTES])
        await anyio.sleep(0.5)
        await upload.write(payload[3 * CHUNK_BYTES :])
        await upload.finalise()
    assert bucket.objects[NAME].payload == payload and len(server.calls) == (2 if size is None else 1)


async def put_amended(blobs: GcsBlobs, size: int | None) -> None:
    upload = await blobs.open_upload(NAME, Metadata(custom={"a": "1"}), size)
    await upload.write(LARGE)
    upload.amend(Metadata(custom={"a": "2", "b": "3"}))
    await upload.finalise()


@SIZES
@pytest.mark.parametrize("mode", [None, FaultMode.DROP_AFTER, FaultMode.DROP_BEFORE, FaultMode.STALL_AFTER, FaultMode.TRUNCATE])
async def test_what_is_known_at_the_end_is_told_in_a_request_of_its_own_and_again_if_its_answer_is_lost(
    server: GcsEmulator, bucket: Bucket, size: int | None, mode: FaultMode | None
) -> None:
    if mode is not None:
        server.faults.append(GcsFault(mode, "object.patch"))
    async with connected(server.url, answer_timeout_s=0.3) as blobs:
        await put_amended(blobs, size)
        head = await blobs.head(NAME)
        assert head is not None and head.metadata.custom == {"a": "2", "b": "3"}
    assert server.calls.count("object.patch") == (1 if mode is None else 2)
    assert bucket.objects[NAME].payload == LARGE


@SIZES
@pytest.mark.parametrize(("fault", "error"), [
    (GcsFault(FaultMode.STATUS, "object.patch", status=503), UnavailableError),
    (GcsFault(FaultMode.STATUS, "object.patch", status=429), UnavailableError),
    (GcsFault(FaultMode.STATUS, "object.patch", status=404), UnavailableError),
    (GcsFault(FaultMode.STATUS, "object.patch", status=403), ConfigurationError),
    (GcsFault(FaultMode.DROP_AFTER, "object.patch"), UnavailableError),
])  # fmt: skip
async def test_a_blob_that_is_not_told_its_last_metadata_is_refused_and_there_to_be_deleted(
    blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket, size: int | None, fault: GcsFault, error: type[TieredError]
) -> None:
    """Never `UnconfirmedError`: that says that the blob may come later, and recovery would wait for it."""
    server.faults.append(replace(fault, times=None))
    with pytest.raises(error, match=NAME) as caught:
        await put_amended(blobs, size)
    assert type(caught.value) is error
    assert bucket.objects[NAME].payload == LARGE


async def test_a_cancelled_session_is_not_unconfirmed_when_its_answer_is_lost(blobs: GcsBlobs, server: GcsEmulator) -> None:
    upload = await blobs.open_upload(NAME, Metadata(), None)
    await upload.write(b"x")
    assert upload.session is not None
    await blobs.cancel(upload.session)
    server.faults.append(GcsFault(FaultMode.DROP_AFTER, "upload.put"))
    with pytest.raises(UnavailableError, match="cancelled before"):
        await upload.finalise()


async def test_a_connection_dropped_before_the_end_was_sent_is_unavailable(blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket) -> None:
    server.faults.append(GcsFault(FaultMode.DROP_BEFORE, "upload.multipart"))
    upload = await blobs.open_upload(NAME, Metadata(), len(LARGE))
    with pytest.raises(UnavailableError, match=f"{NAME}.*broke off"):  # noqa: PT012
        for _ in range(10_000):  # a socket may take some more before it notices
            await upload.write(b"x")
            await anyio.lowlevel.checkpoint()
    assert not bucket.objects


@SIZES
async def test_a_blob_damaged_on_its_way_is_unavailable_so_that_it_is_deleted(
    server: GcsEmulator, bucket: Bucket, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = Bucket.insert

    def damage(self: Bucket, name: str, payload: bytes, *args: Any) -> Any:
        return insert(self, name, payload[:-1] + b"?", *args)

    monkeypatch.setattr(Bucket, "insert", damage)
    async with connected(server.url) as blobs:
        with pytest.raises(UnavailableError, match=f"{NAME}.*damaged.*crc32c"):
            await put(blobs, LARGE, session=size is None)


CALLS: dict[str, Callable[[GcsBlobs], Any]] = {
    "object.get": lambda blobs: blobs.open(NAME),
    "object.read": lambda blobs: blobs.open(NAME),
    "object.list": lambda blobs: blobs.list("", None, 1),
    "object.delete": lambda blobs: blobs.delete(NAME),
    "object.patch": lambda blobs: blobs.touch(NAME, DEADLINE_NS + NS_PER_S),
}
WRITES = ("object.delete", "object.patch")


@pytest.mark.parametrize("kind", list(CALLS))
async def test_every_status_of_every_call_says_what_is_known_and_what_to_do(blobs: GcsBlobs, server: GcsEmulator, kind: str) -> None:
    await put(blobs, metadata=IDLE)
    failed = UnconfirmedError if kind in WRITES else UnavailableError
    for status, error, told in (
        (400, InvalidRequestError, "400"), (401, UnavailableError, "renew"), (403, ConfigurationError, "roles/storage.objectUser"),
        (429, UnavailableError, "lower the load"), (500, failed, "500"), (503, failed, "503"),
        (301, ConfigurationError, "check the endpoint"),
    ):  # fmt: skip
        server.faults.append(GcsFault(FaultMode.STATUS, kind, status=status))
        with pytest.raises(TieredError, match=told) as caught:
            await CALLS[kind](blobs)
        assert type(caught.value) is error and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("kind", list(CALLS))
@pytest.mark.parametrize("mode", [FaultMode.STALL_BEFORE, FaultMode.STALL_AFTER, FaultMode.DROP_BEFORE, FaultMode.DROP_AFTER])
async def test_a_call_that_is_not_answered_ends_in_time(server: GcsEmulator, kind: str, mode: FaultMode) -> None:
    async with connected(server.url, answer_timeout_s=0.3) as blobs:
        await put(blobs, metadata=IDLE)
        server.faults.append(GcsFault(mode, kind, times=None))
        with pytest.raises(UnconfirmedError if kind in WRITES else UnavailableError):
            await CALLS[kind](blobs)


async def test_a_quota_that_is_used_up_is_no_lack_of_permission() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        told = {"error": {"code": 403, "message": "Slow down", "errors": [{"reason": "rateLimitExceeded"}]}}
        await say(writer, "403 No", json.dumps(told), Connection="close")

    async with scripted(answer) as url, connected(url) as client:
        with pytest.raises(UnavailableError, match=r"lower the load.*Slow down"):
            await client.delete(NAME)


# --- reads ---------------------------------------------------------------------------------------


async def test_a_body_that_breaks_off_is_unavailable(blobs: GcsBlobs, server: GcsEmulator) -> None:
    await put(blobs, LARGE)
    server.faults.append(GcsFault(FaultMode.TRUNCATE, "object.read"))
    with pytest.raises(UnavailableError, match=NAME):
        await read(blobs, NAME)
    assert await read(blobs, NAME) == LARGE


async def test_a_read_whose_answers_show_different_generations_begins_again(blobs: GcsBlobs, server: GcsEmulator, bucket: Bucket) -> None:
    await put(blobs, b"first")
    replaced = anyio.Event()

    class UntilReplaced(SystemRuntime):
        async def sleep(self, seconds: float) -> None:
            await replaced.wait()

    server._runtime = UntilReplaced()
    server.faults.append(GcsFault(FaultMode.DELAY, "object.read"))
    async with anyio.create_task_group() as tasks:

        async def replace() -> None:
            await until(lambda: {"object.get", "object.read"} <= set(server.calls))  # the first is answered in the same step
            await blobs.delete(NAME)
            await put(blobs, b"second")
            replaced.set()

        tasks.start_soon(replace)
        assert await read(blobs, NAME) == b"second"
    assert server.calls.count("object.read") == 2


async def test_a_blob_deleted_between_the_two_answers_is_absent(blobs: GcsBlobs, server: GcsEmulator) -> None:
    await put(blobs)
    server.faults.append(GcsFault(FaultMode.STATUS, "object.read", status=404))
    assert await read(blobs, NAME) == b"payload"
    server.faults.append(GcsFault(FaultMode.STATUS, "object.read", status=404, times=None))
    with pytest.raises(UnavailableError, match="replaced 5 times"):
        await blobs.open(NAME)


async def test_a_whole_read_whose_checksum_is_wrong_never_comes_to_its_end(blobs: GcsBlobs, bucket: Bucket) -> None:
    await put(blobs, LARGE)
    object.__setattr__(bucket.objects[NAME], "payload", LARGE[:-1] + b"?")
    reader = await blobs.open(NAME)
    assert reader is not None
    got = b""
    with pytest.raises(UnavailableError, match=r"damaged on its way.*crc32c"):  # noqa: PT012
        async for chunk in reader.chunks():
            got += chunk
    await reader.aclose()
    assert len(got) < len(LARGE)
    assert await read(blobs, NAME, range=ByteRange(-2)) == LARGE[-2:-1] + b"?"


async def test_many_readers_that_are_left_in_the_middle_hold_no_connection(server: GcsEmulator) -> None:
    async with connected(server.url, connections_max=2) as blobs:
        await put(blobs, LARGE * 4)
        for _ in range(10):
            reader = await blobs.open(NAME)
            assert reader is not None
            await anext(aiter(reader.chunks()))
            await reader.aclose()
        for _ in range(10):
            with pytest.raises(InvalidRequestError):
                await blobs.open(NAME, ByteRange(100 * MIB))
        assert await read(blobs, NAME) == LARGE * 4


@pytest.mark.parametrize("session", [False, True])
async def test_calls_that_get_no_connection_tell_so_and_do_not_accuse_the_service(server: GcsEmulator, session: bool) -> None:
    async with connected(server.url) as patient:
        await put(patient, LARGE * 8)
    async with connected(server.url, connections_max=2, answer_timeout_s=0.3) as blobs:
        readers = [await blobs.open(NAME)]
        upload = await blobs.open_upload(f"{NAME}-2", Metadata(), None if session else 7)
        readers.append(await blobs.open(NAME))
        assert None not in readers
        for call in (blobs.head(NAME), blobs.open(NAME), blobs.delete(NAME), put(blobs, name=f"{NAME}-3", session=session)):
            with pytest.raises(AtCapacityError, match=r"all 2 connections to http.* were taken for 0\.3 s; close objects"):
                await call
        await upload.write(b"payload")
        with pytest.raises(AtCapacityError, match="all 2 connections"):
            await upload.finalise()
        for reader in readers:
            assert reader is not None
            await reader.aclose()
        assert await blobs.head(NAME) is not None and await blobs.head(f"{NAME}-2") is None and await blobs.head(f"{NAME}-3") is None


def test_a_request_that_was_sent_once_and_waits_to_be_sent_again_is_not_called_unsent() -> None:
    place = ConnectionSlot()
    place.wait()
    assert place.is_awaited
    place.get()
    place.wait()
    assert not place.is_awaited


async def test_a_copy_that_is_neither_done_nor_to_be_continued_is_not_begun_again(
    blobs: GcsBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(blobs, LARGE)
    head = await blobs.head(NAME)
    assert head is not None
    copy = await blobs.open_copy(NAME, head.generation, f"{NAME}-2", Metadata())
    calls: list[str] = []

    async def exchange(request: GcsRequest, place: ConnectionSlot) -> GcsResponse:
        calls.append(request.url)
        assert len(calls) < 3
        return GcsResponse.of(200, {}, b'{"done": false}', request.shape)

    monkeypatch.setattr(blobs._http, "exchange", exchange)
    with pytest.raises(UnconfirmedError, match="not in the way of Google"):
        await copy.finalise()
    assert len(calls) == 1


async def test_a_touch_that_another_touch_overtook_looks_again_and_never_shortens(blobs: GcsBlobs) -> None:
    await put(blobs, metadata=IDLE)
    later = [DEADLINE_NS + hours * 3600 * NS_PER_S for hours in (3, 1, 2, 5, 4)]
    async with anyio.create_task_group() as tasks:
        for deadline_ns in later:
            tasks.start_soon(blobs.touch, NAME, deadline_ns)
    [info] = (await blobs.list("", None, 10)).blobs
    assert info.deadline_ns == max(later)


async def test_a_touch_leaves_the_keys_of_others_as_they_are(blobs: GcsBlobs, bucket: Bucket) -> None:
    bucket.insert(NAME, b"old", {"metadata": {"foreign": "x"}, "customTime": "2030-01-01T00:00:00Z"}, {}, [], RUNTIME.wall_ns())
    assert await blobs.touch(NAME, DEADLINE_NS)
    assert dict(bucket.objects[NAME].metadata) == {"foreign": "x"}
    assert [info.deadline_ns for info in (await blobs.list("", None, 1)).blobs] == [DEADLINE_NS]


# --- misconfiguration ----------------------------------------------------------------------------

WITHOUT_BUCKET: dict[str, Callable[[GcsBlobs], Any]] = {
    "open": lambda blobs: blobs.open(NAME),
    "head": lambda blobs: blobs.head(NAME),
    "open a range": lambda blobs: blobs.open(NAME, ByteRange(-5, 3)),
    "list": lambda blobs: blobs.list("", None, 1),
    "now_ns": lambda blobs: blobs.now_ns(),
    "delete": lambda blobs: blobs.delete(NAME),
    "touch": lambda blobs: blobs.touch(NAME, DEADLINE_NS),
    "session": lambda blobs: put(blobs, session=True),
    "single": lambda blobs: put(blobs),
    "soft-deleted": lambda blobs: blobs.deleted_generations(NAME),
}


@pytest.mark.parametrize("call", list(WITHOUT_BUCKET))
async def test_a_missing_bucket_is_never_taken_for_missing_blobs(server: GcsEmulator, call: str) -> None:
    async with GcsBlobs.connect("nowhere", RUNTIME, endpoint=server.url) as blobs:
        with pytest.raises(ConfigurationError, match=r"no bucket 'nowhere'.*tiered provision"):
            await WITHOUT_BUCKET[call](blobs)


async def test_a_failed_listing_of_everything_names_the_bucket(blobs: GcsBlobs, server: GcsEmulator) -> None:
    server.faults.append(GcsFault(FaultMode.STATUS, "object.list", status=503))
    with pytest.raises(UnavailableError, match=r"^listing the blobs of bucket 'blobs' failed with 503"):
        await blobs.list("", None, 1)


@pytest.mark.parametrize("kind", ["object.get", "object.delete"])
async def test_a_404_that_does_not_name_the_blob_is_looked_into(blobs: GcsBlobs, server: GcsEmulator, kind: str) -> None:
    server.faults.append(GcsFault(FaultMode.STATUS, kind, status=404))
    if kind == "object.get":
        assert await blobs.open(NAME) is None
    else:
        await blobs.delete(NAME)
    assert server.calls[-1] == "object.list"
    server.faults += [GcsFault(FaultMode.STATUS, kind, status=404), GcsFault(FaultMode.STATUS, "object.list", status=503)]
    with pytest.raises(UnavailableError):
        await CALLS[kind](blobs)


@pytest.mark.parametrize("call", list(WITHOUT_BUCKET))
async def test_an_endpoint_where_nothing_listens_is_one_clear_sentence(call: str) -> None:
    async with GcsEmulator() as server:
        url = server.url
    async with connected(url) as blobs:
        with pytest.raises(UnavailableError, match=f"nothing could be reached at {url}: .*check the endpoint") as caught:
            await WITHOUT_BUCKET[call](blobs)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9199", "/", "ftp://x", "http://", "http://h/path", "http://user:secret@h"])
async def test_an_endpoint_that_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is no address such as https://storage\.googleapis\.com"):
        async with GcsBlobs.connect("blobs", RUNTIME, endpoint=endpoint):
            pass


async def test_an_error_in_the_block_passes_as_it_is(server: GcsEmulator) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with connected(server.url) as blobs:
            await blobs.open_upload(NAME, Metadata(), None)
            raise ZeroDivisionError


async def test_a_client_that_was_closed_says_so(server: GcsEmulator) -> None:
    async with connected(server.url) as blobs:
        pass
    with pytest.raises(UnavailableError, match="closed: open the storage again"):
        await blobs.delete(NAME)


@pytest.mark.parametrize("size", [2, None])
async def test_an_upload_that_begins_to_send_after_its_client_was_closed_says_so(server: GcsEmulator, size: int | None) -> None:
    async with connected(server.url) as blobs:
        upload = await blobs.open_upload(NAME, Metadata(), size)
        await upload.write(b"x")
    with pytest.raises(UnavailableError, match="the storage was closed"):
        await upload.write(b"y")
    await upload.abort()


async def test_a_reader_whose_client_was_closed_says_so(server: GcsEmulator) -> None:
    async with connected(server.url) as blobs:
        await put(blobs, bytes(16 * MIB))
        reader = await blobs.open(NAME)
        assert reader is not None
    with pytest.raises(UnavailableError, match="broke off"):
        async for _ in reader.chunks():
            pass
    await reader.aclose()


# --- credentials and sessions --------------------------------------------------------------------


async def test_every_request_is_authorised_but_those_of_a_session() -> None:
    seen: dict[str, bool] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await head_of(reader)
        seen[head.split(" HTTP")[0]] = "Authorization: Bearer secret-1" in head
        location = f"{url}/upload/storage/v1/b/blobs/o?uploadType=resumable&upload_id=x"
        is_blob = head.startswith("PUT") or "/o/" in head
        told = {"name": NAME, "generation": "1", "crc32c": "AAAAAA=="} if is_blob else {"kind": "storage#objects"}
        status, body = ("204 No Content", "") if head.startswith("DELETE") else ("200 OK", json.dumps(told))
        await say(writer, status, body, Location=location, Connection="close")

    async with scripted(answer) as url, connected(url, authorize=NumberedTokens()) as client:
        upload = await client.open_upload(NAME, Metadata(), None)
        await client.delete(NAME)
        await client.list("", None, 1)
        assert upload.session is not None
        await client.cancel(upload.session)
        await upload.write(b"x")
        with pytest.raises(UnavailableError, match="crc32c is AAAAAA=="):
            await upload.finalise()
    assert {request.partition("?")[0].split("/")[0] + str("upload_id" in request): told for request, told in seen.items()} == {
        "POST False": True, "DELETE False": True, "GET False": True, "DELETE True": False, "PUT True": False,
    }  # fmt: skip


async def test_credentials_that_fail_are_the_error_of_every_call(server: GcsEmulator) -> None:
    authorize = NumberedTokens(UnavailableError("the Google credentials could not be renewed"))
    async with connected(server.url, authorize=authorize) as blobs:
        for call in WITHOUT_BUCKET.values():
            with pytest.raises(UnavailableError, match="credentials could not be renewed"):
                await call(blobs)
    assert server.calls == []


async def test_credentials_that_were_refused_are_replaced_for_the_next_call(server: GcsEmulator) -> None:
    authorize = NumberedTokens()
    async with connected(server.url, authorize=authorize) as blobs:
        server.faults.append(GcsFault(FaultMode.STATUS, "object.delete", status=401))
        with pytest.raises(UnavailableError, match="not accepted; renew them"):
            await blobs.delete(NAME)
        assert authorize.number == 2
        await blobs.delete(NAME)
    assert authorize.number == 2


@pytest.mark.parametrize(
    "session",
    [
        "", "018bcfe5-6800-7000-8000-000000000001",
        "http://evil.example/upload/storage/v1/b/blobs/o?uploadType=resumable&upload_id=x",
        "{url}/upload/storage/v1/b/other/o?upload_id=x", "{url}/upload/storage/v1/b/blobs/o",
        "{url}/storage/v1/b/blobs/o/victim?upload_id=x",
        "{url}@evil.example/upload/storage/v1/b/blobs/o?upload_id=x", "{url}/upload/storage/v1/b/blobs/o?upload_id=",
        "{url}/upload/storage/v1/b/blobs/o?upload_id=x#y",
    ],
)  # fmt: skip
async def test_what_is_no_session_of_this_bucket_is_not_sent_anywhere(blobs: GcsBlobs, server: GcsEmulator, session: str) -> None:
    with pytest.raises(CorruptRecordError, match="none of bucket 'blobs'"):
        await blobs.cancel(session.format(url=server.url))
    assert server.calls == []


@pytest.mark.parametrize("port", ["", ":443"])
async def test_a_session_is_known_whether_or_not_the_endpoint_names_its_port(port: str) -> None:
    session = "https://storage.example.com/upload/storage/v1/b/blobs/o?uploadType=resumable&upload_id=x"
    async with GcsHttp.connect(f"https://storage.example.com{port}", "blobs", None, 1, 1.0) as http:
        assert http.is_session(session)
        assert not http.is_session(session.replace(".com/", ".com:4433/"))


async def test_a_bucket_whose_name_has_dots_takes_sessions(server: GcsEmulator) -> None:
    server.create_bucket("blobs.example.com")
    async with GcsBlobs.connect("blobs.example.com", RUNTIME, endpoint=server.url) as blobs:
        upload, given_up = [await blobs.open_upload(f"{NAME}{number}", Metadata(), None) for number in range(2)]
        await upload.write(b"x")
        await upload.finalise()
        assert given_up.session is not None
        await blobs.cancel(given_up.session)
        assert [blob.name for blob in (await blobs.list("", None, 9)).blobs] == [f"{NAME}0"]


async def test_a_session_of_another_address_is_not_accepted_from_a_server() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        location = "http://evil.example/upload/storage/v1/b/blobs/o?uploadType=resumable&upload_id=x"
        await say(writer, "200 OK", "{}", Location=location, Connection="close")

    async with scripted(answer) as url, connected(url) as client:
        with pytest.raises(ConfigurationError, match="session of another address") as caught:
            await client.open_upload(NAME, Metadata(), None)
    assert "evil" not in everything_told(caught.value)


async def test_the_address_of_a_session_is_not_told_even_if_the_service_does() -> None:
    secret = str(ChangeId.new(RUNTIME))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await head_of(reader)).split(" ")[1]
        await say(writer, "400 No", json.dumps({"error": {"code": 400, "message": f"Bad request: {target}"}}), Connection="close")

    async with scripted(answer) as url, connected(url) as client:
        with pytest.raises(InvalidRequestError, match="Bad request") as caught:
            await client.cancel(f"{url}/upload/storage/v1/b/blobs/o?uploadType=resumable&upload_id={secret}")
    assert secret not in everything_told(caught.value)


async def test_an_error_of_the_library_that_tells_the_whole_address_is_neither_shown_nor_chained_to(
    blobs: GcsBlobs, server: GcsEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await blobs.open_upload(NAME, Metadata(), None)
    [upload_id] = server.sessions
    assert upload.session is not None

    async def fail(self: aiohttp.ClientSession, method: str, url: object, **named: Any) -> None:
        raise aiohttp.ClientOSError(32, f"Can not write request body for {url}")

    monkeypatch.setattr(aiohttp.ClientSession, "request", fail)
    with pytest.raises(UnconfirmedError, match="broke off") as caught:
        await blobs.cancel(upload.session)
    assert upload_id not in everything_told(caught.value)
    with pytest.raises(UnavailableError, match="broke off") as caught_too:
        await upload.finalise()
    assert upload_id not in everything_told(caught_too.value)


@pytest.mark.parametrize(("status", "what"), in_turn([None, 400, 403, 500, 302], ["finalise", "cancel", "write"]))
async def test_the_address_of_a_session_is_never_told(
    blobs: GcsBlobs, server: GcsEmulator, caplog: pytest.LogCaptureFixture, status: int | None, what: str
) -> None:
    caplog.set_level(logging.DEBUG)
    upload = await blobs.open_upload(NAME, Metadata(), None)
    [upload_id] = server.sessions
    mode = FaultMode.DROP_BEFORE if status is None else FaultMode.STATUS
    server.faults.append(GcsFault(mode, "upload.[pcs]*", times=None, status=status or 0))
    assert upload.session is not None and upload_id in upload.session
    with pytest.raises(TieredError) as caught:  # noqa: PT012
        if what == "cancel":
            await blobs.cancel(upload.session)
        for _ in range(1000 if what == "write" else 1):
            await upload.write(LARGE[: 256 * KIB])
        await upload.finalise()
    await upload.abort()
    await anyio.lowlevel.checkpoint()
    logged = [record.getMessage() for record in caplog.records if record.name != "aiohttp.access"]  # which is the server's
    assert upload_id not in everything_told(caught.value) + repr(upload) + "".join(logged)


# --- soft delete ---------------------------------------------------------------------------------


@pytest.mark.parametrize("page_max", [1, 1000])
async def test_soft_deleted_generations_are_those_of_this_name(blobs: GcsBlobs, bucket: Bucket, page_max: int) -> None:
    for name in (NAME[:-1], NAME, f"{NAME}-beside"):
        for payload in (b"1", b"22"):
            await put(blobs, payload, name=name)
            await blobs.delete(name)
    assert isinstance(blobs, BlobRestoration)
    bucket.page_max = page_max
    first, second = await blobs.deleted_generations(NAME)
    assert (first.size, second.size) == (1, 2)
    assert int(first.generation) < int(second.generation)
    assert first.address == f"gs://blobs/{NAME}#{first.generation}"
    assert 0 <= second.deleted_ns - first.deleted_ns < 60 * NS_PER_S
    assert first.kept_until_ns is not None and first.kept_until_ns - first.deleted_ns == 7 * 86_400 * NS_PER_S


async def test_a_bucket_that_never_had_versions_keeps_none(blobs: GcsBlobs, bucket: Bucket) -> None:
    upload = await blobs.open_upload(NAME, Metadata(), 1)
    await upload.write(b"x")
    await upload.finalise()
    await blobs.delete(NAME)
    assert await blobs.kept(Retention.NONCURRENT, "", None, "") == KeptPage(0, 0, None, None)


async def test_noncurrent_generations_are_restored_as_soft_deleted_ones_are(blobs: GcsBlobs, bucket: Bucket) -> None:
    bucket.settings["versioning"] = {"enabled": True}
    await contract.test_a_deleted_generation_is_restored_whole_under_a_new_generation(blobs, NAME)
    await contract.test_a_restoration_overwrites_nothing_and_needs_a_generation_that_is_kept(blobs, "second")
    kept = await blobs.deleted_generations(NAME)
    assert len(kept) == 2 and all(each.kept_until_ns is None for each in kept)
    bucket.remove(NAME, {"generation": kept[1].generation}, RUNTIME.wall_ns())
    assert [each.kept_until_ns is None for each in await blobs.deleted_generations(NAME)] == [True, False]
    bucket.remove(NAME, {"generation": kept[0].generation}, RUNTIME.wall_ns() + NS_PER_S)
    listed = await blobs.deleted_generations(NAME)
    assert [each.generation for each in listed] == [each.generation for each in kept], "the newest was written last, not deleted last"
    assert listed[0].deleted_ns > listed[1].deleted_ns


async def test_nothing_is_soft_deleted_of_a_blob_that_lives_or_never_was(blobs: GcsBlobs) -> None:
    await put(blobs)
    assert await blobs.deleted_generations(NAME) == []
    assert await blobs.deleted_generations("never") == []


# --- what many blobs are -----------------------------------------------------------------------------


async def test_heads_tells_of_many_blobs_in_one_request_what_head_tells_of_each(
    server: GcsEmulator, blobs: GcsBlobs, bucket: Bucket
) -> None:
    names = [f"photos/objects/{key}/018bcfe5-6800-7000-8000-000000000001" for key in ("b", "a", "a!", "ü", "damaged", "gone")]
    for name in names[:-1]:
        await put(blobs, name.encode(), name=name, metadata=IDLE)
    await put(blobs, name="photos/objects/another")
    bucket.objects[names[4]] = replace(bucket.objects[names[4]], metadata={"x-sn-expiration": "at noon"})
    server.calls.clear()
    heads = await blobs.heads(names)
    assert server.calls == ["object.list"] and set(heads) == set(names[:4])
    for name in names[:4]:
        assert heads[name] == await blobs.head(name)


async def test_heads_reads_at_most_twice_as_many_blobs_as_are_asked_for(blobs: GcsBlobs) -> None:
    for number in range(8):
        await put(blobs, name=f"{number}")
    assert set(await blobs.heads(["1", "2", "7"])) == {"1", "2"} and set(await blobs.heads(["7"])) == {"7"}
