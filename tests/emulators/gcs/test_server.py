"""The GCS emulator behaves as the service's documentation says, by plain HTTP."""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import io
import json
import socket
import warnings
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any, cast

import aiohttp
import pytest
import pytest_asyncio
from yarl import URL

from changelog.base.runtime import SystemRuntime
from emulators.gcs.server import FaultMode, GcsEmulator, GcsFault
from tests.given.raw_gcs import PartsClient, RawClient, at, crc32c, refused, uploads, xml_texts

pytestmark = pytest.mark.asyncio

KIB = 1024
GRANULE = 256 * KIB
DAY_NS = 86_400 * 1_000_000_000


class MovedRuntime(SystemRuntime):
    """The machine's clock, some time ahead."""

    ahead_ns = 0

    def wall_ns(self) -> int:
        return super().wall_ns() + self.ahead_ns


def names(listed: dict[str, Any]) -> list[str]:
    return [item["name"] for item in listed.get("items", [])]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the server sends no events
            await asyncio.sleep(0.001)


@pytest.fixture
def runtime() -> MovedRuntime:
    return MovedRuntime()


@pytest_asyncio.fixture
async def server(runtime: MovedRuntime) -> AsyncIterator[GcsEmulator]:
    async with GcsEmulator(runtime=runtime) as server:
        server.create_bucket("bucket")
        yield server


@pytest_asyncio.fixture
async def client(server: GcsEmulator) -> AsyncIterator[RawClient]:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        yield RawClient(session, server.url)


# --- single uploads ------------------------------------------------------------------------------


async def test_generations_grow_even_when_a_name_is_made_again_at_once(client: RawClient) -> None:
    generations = [int((await client.put("a")).json["generation"]) for _ in range(5)]
    assert generations == sorted(set(generations))


@pytest.mark.parametrize("head", ["Content-Length: 9", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("reset", [True, False])
async def test_a_connection_that_ends_before_its_body_creates_nothing(
    client: RawClient, server: GcsEmulator, head: str, reset: bool
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", URL(server.url).port)
    writer.write(f"POST {uploads('media', 'a')} HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
    writer.write(b"4\r\nfour\r\n" if "chunked" in head else b"four")
    await until(lambda: server.calls == ["upload.media"])
    if reset:
        writer.transport.abort()
    else:
        writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    await client.put("b")
    assert names(await client.list()) == ["b"]


async def test_an_upload_whose_last_chunk_is_withheld_is_invisible_until_it_comes(client: RawClient) -> None:
    last, sent = asyncio.Event(), asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"x" * GRANULE
        sent.set()
        await last.wait()
        yield b"last"

    upload = asyncio.create_task(client.put("a", chunks(), {"ifGenerationMatch": "0"}))
    await sent.wait()
    assert names(await client.list()) == []
    assert (await client.put("a", b"the other", {"ifGenerationMatch": "0"})).status == 200
    last.set()
    assert (await upload).status == 412
    assert (await client.read("a")).body == b"the other"


# --- resumable uploads ---------------------------------------------------------------------------


async def test_a_session_in_one_request_without_a_range_or_a_length(client: RawClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 100_000

    assert (await client.send("PUT", await client.start("a"), chunks())).json["size"] == "300000"
    assert (await client.put_range(await client.start("b"), "bytes 0-*/*", chunks())).json["size"] == "300000"


async def test_a_streamed_put_that_breaks_off_is_resumed(client: RawClient, server: GcsEmulator) -> None:
    payload = b"abcd" * GRANULE

    async def chunks() -> AsyncIterator[bytes]:
        yield payload[: 2 * GRANULE + 77]
        await until(lambda: len(kept.arrived) > 2 * GRANULE)
        raise ValueError("the connection broke")

    session = await client.start("a")
    [kept] = server.sessions.values()
    whole = f"bytes 0-{len(payload) - 1}/{len(payload)}"
    with pytest.raises((ValueError, aiohttp.ClientError)):
        await client.put_range(session, whole, chunks(), Content_Length=str(len(payload)))
    await until(lambda: len(kept.arrived) == 2 * GRANULE)
    status = await client.put_range(session, f"bytes */{len(payload)}")
    assert (status.status, status.headers["Range"]) == (308, f"bytes=0-{2 * GRANULE - 1}")
    rest = await client.put_range(session, f"bytes {2 * GRANULE}-{len(payload) - 1}/{len(payload)}", payload[2 * GRANULE :])
    assert rest.status == 200
    assert (await client.read("a")).body == payload


async def test_a_session_cancelled_while_its_body_comes_is_not_finalised(client: RawClient, server: GcsEmulator) -> None:
    last = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"x" * GRANULE
        await last.wait()
        yield b"y"

    session = await client.start("a")
    [kept] = server.sessions.values()
    upload = asyncio.create_task(client.put_range(session, f"bytes 0-{GRANULE}/{GRANULE + 1}", chunks()))
    await until(lambda: len(kept.arrived) == GRANULE)
    assert (await client.send("DELETE", session)).status == 499
    last.set()
    assert (await upload).status == 410
    assert names(await client.list()) == []


async def test_a_session_expires_after_a_week(client: RawClient, runtime: MovedRuntime) -> None:
    session = await client.start("a")
    runtime.ahead_ns = 7 * DAY_NS + 1
    assert (await client.put_range(session, "bytes 0-2/3", b"abc")).status == 410


# --- reads ---------------------------------------------------------------------------------------


async def test_a_read_under_way_keeps_its_bytes_when_the_object_is_replaced(client: RawClient) -> None:
    old = b"old!" * (4 * GRANULE)
    await client.put("a", io.BytesIO(old))
    async with client.session.get(URL(client.url + at("a") + "?alt=media", encoded=True)) as response:
        first = await response.content.readany()
        await client.put("a", b"new")
        assert first + await response.read() == old


# --- buckets and lifecycle -----------------------------------------------------------------------


async def test_lifecycle_deletes_by_custom_time_when_applied(server: GcsEmulator, client: RawClient, runtime: MovedRuntime) -> None:
    rule = {"action": {"type": "Delete"}, "condition": {"daysSinceCustomTime": 1, "matchesPrefix": ["u/"]}}
    await client.send("PATCH", "/storage/v1/b/bucket", json.dumps({"lifecycle": {"rule": [rule]}}))
    for name, time in (("u/old", "2020-01-01T00:00:00Z"), ("u/new", "2100-01-01T00:00:00Z"), ("v/old", "2020-01-01T00:00:00Z")):
        await client.put(name)
        await client.send("PATCH", at(name), json.dumps({"customTime": time}))
    await client.put("u/never")
    assert await server.apply_lifecycle() == ["u/old"]
    assert await server.apply_lifecycle() == []
    assert names(await client.list()) == ["u/never", "u/new", "v/old"]
    runtime.ahead_ns = 90 * 365 * DAY_NS
    assert await server.apply_lifecycle() == ["u/new"]


# --- uploads of several parts, by the XML API ----------------------------------------------------

SMALL = 4


async def test_parts_become_an_object_when_they_are_completed_and_not_before(client: RawClient, server: GcsEmulator) -> None:
    server.parts.part_bytes_min = SMALL
    custom = {"x-goog-meta-K": "v", "x-goog-custom-time": "2030-01-01T00:00:00Z", "Content-Encoding": "zstd"}
    upload = await PartsClient(client).start(Content_Type="text/plain", **custom)
    etags = [(number, (await upload.put(number, payload)).headers["ETag"]) for number, payload in ((7, b"last"), (2, b"first"))]
    assert names(await client.list()) == [] and (await client.read("a/b")).status == 404
    answer = await upload.complete(*sorted(etags))
    assert (answer.status, xml_texts(answer, "Key")) == (200, ["a/b"])
    shown = (await client.send("GET", at("a/b"))).json
    assert {key: shown.get(key) for key in ("size", "crc32c", "md5Hash", "contentType", "contentEncoding", "metadata", "customTime")} == {
        "size": "9", "crc32c": crc32c(b"firstlast"), "md5Hash": None, "contentType": "text/plain", "contentEncoding": "zstd",
        "metadata": {"k": "v"}, "customTime": "2030-01-01T00:00:00.000Z",
    }  # fmt: skip
    assert (await client.read("a/b")).body == b"firstlast" and "md5" not in (await client.read("a/b")).headers["X-Goog-Hash"]
    for again in (upload.complete(*sorted(etags)), upload.put(1, b"x"), upload.listed(), upload.cancel()):
        assert refused(await again) == (404, "NoSuchUpload")


async def test_parts_that_were_cancelled_can_never_be_completed(client: RawClient, server: GcsEmulator) -> None:
    upload = await PartsClient(client).start()
    etag = (await upload.put(1, b"x")).headers["ETag"]
    assert (await upload.cancel()).status == 204
    for late in (upload.complete((1, etag)), upload.put(1, b"x"), upload.listed(), upload.cancel()):
        assert refused(await late) == (404, "NoSuchUpload")
    assert not server.buckets["bucket"].objects


async def test_a_completion_replaces_and_knows_no_preconditions(client: RawClient) -> None:
    """Google's page on preconditions says 400 NotImplemented. It was 501."""
    await client.put("a/b", b"old")
    upload = await PartsClient(client).start()
    part = (1, (await upload.put(1, b"new")).headers["ETag"])
    for refusal in (
        upload.complete(part, **{"x-goog-if-generation-match": "0"}),
        client.send("POST", "/bucket/a/b?uploads", **{"x-goog-if-generation-match": "0"}),
    ):
        assert refused(await refusal) == (400, "NotImplemented")
    assert (await upload.complete(part)).status == 200
    assert (await client.read("a/b")).body == b"new"


async def test_a_completion_that_names_wrong_parts_is_refused_and_may_be_repeated(client: RawClient, server: GcsEmulator) -> None:
    server.parts.part_bytes_min = SMALL
    upload = await PartsClient(client).start()
    stale = (1, (await upload.put(1, b"older")).headers["ETag"])
    one, two, three = [
        (number, (await upload.put(number, payload)).headers["ETag"]) for number, payload in enumerate((b"first", b"abc", b"third"), 1)
    ]
    for named, why in (
        ((two, one), "InvalidPartOrder"), ((one, one), "InvalidPartOrder"), ((one, (9, two[1])), "InvalidPart"), ((stale,), "InvalidPart"),
        ((one, two, three), "EntityTooSmall"), ((), "MalformedXML"),
    ):  # fmt: skip
        assert refused(await upload.complete(*named)) == (400, why)
    assert refused(await client.send("POST", f"{upload.path}?uploadId={upload.id}", "<none")) == (400, "MalformedXML")
    assert (await upload.complete(one, three)).status == 200
    assert (await client.read("a/b")).body == b"firstthird"


async def test_a_part_whose_checksum_is_wrong_is_not_kept(client: RawClient, server: GcsEmulator) -> None:
    upload = await PartsClient(client).start()
    md5 = base64.b64encode(hashlib.md5(b"x").digest()).decode()
    other = base64.b64encode(hashlib.md5(b"y").digest()).decode()
    for wrong in ({"x-goog-hash": f"crc32c={crc32c(b'y')}"}, {"Content-MD5": other}, {"x-goog-hash": f"md5={other}"}):
        assert refused(await upload.put(1, b"x", **wrong)) == (400, "BadDigest")
    for wrong in ({"Content-MD5": md5[::-1]}, {"x-goog-hash": f"md5={md5[1:]}="}):
        assert refused(await upload.put(1, b"x", **wrong)) == (400, "InvalidDigest")
    assert xml_texts(await upload.listed(), "PartNumber") == []
    answer = await upload.put(1, b"x", **{"x-goog-hash": f"crc32c={crc32c(b'x')}", "Content-MD5": md5})
    assert (answer.status, answer.headers["X-Goog-Hash"]) == (200, f"crc32c={crc32c(b'x')},md5={md5}")
    for number in (0, 10_001, -1):
        assert refused(await upload.put(number, b"x")) == (400, "InvalidArgument")


async def test_parts_and_uploads_are_listed_in_pages(client: RawClient) -> None:
    uploads = [await PartsClient(client, f"/bucket/{name}").start() for name in ("b/2", "a", "b/1", "b/1")]
    for number in (3, 10_000, 1):
        await uploads[0].put(number, b"x" * number)
    first = await uploads[0].listed("&max-parts=2")
    assert (xml_texts(first, "PartNumber"), xml_texts(first, "Size"), xml_texts(first, "IsTruncated")) == (["1", "3"], ["1", "3"], ["true"])
    rest = await uploads[0].listed(f"&part-number-marker={xml_texts(first, 'NextPartNumberMarker')[0]}")
    assert (xml_texts(rest, "PartNumber"), xml_texts(rest, "IsTruncated")) == (["10000"], ["false"])
    uploads.append(await PartsClient(client, "/bucket/%C3%BC%20%26").start())
    for query, key in (("", "ü &"), ("&encoding-type=url", "%C3%BC%20%26")):
        for answer in (await client.send("GET", f"/bucket?uploads&prefix=%C3%BC{query}"), await uploads[-1].listed(query)):
            assert xml_texts(answer, "Key") == [key]
    found, query = [], ""
    while True:
        page = await client.send("GET", f"/bucket?uploads&prefix=b/&max-uploads=1{query}")
        found += [(key, upload) for key, upload in zip(xml_texts(page, "Key"), xml_texts(page, "UploadId"), strict=True)]
        if xml_texts(page, "IsTruncated") == ["false"]:
            break
        query = f"&key-marker={xml_texts(page, 'NextKeyMarker')[0]}&upload-id-marker={xml_texts(page, 'NextUploadIdMarker')[0]}"
    assert found == [*sorted([("b/1", uploads[2].id), ("b/1", uploads[3].id)]), ("b/2", uploads[0].id)]


async def test_an_upload_of_parts_belongs_to_its_name_and_its_bucket(client: RawClient, server: GcsEmulator) -> None:
    server.create_bucket("other")
    upload = await PartsClient(client).start()
    for path in ("/bucket/a", "/other/a/b", "/bucket/a/b/c"):
        upload.path = path
        for wrong in (upload.put(1, b"x"), upload.listed(), upload.complete((1, "x")), upload.cancel()):
            assert refused(await wrong) == (404, "NoSuchUpload")
    assert refused(await client.send("POST", "/none/a?uploads")) == (404, "NoSuchBucket")


async def test_only_a_lifecycle_rule_ends_an_upload_of_parts_by_itself(
    client: RawClient, server: GcsEmulator, runtime: MovedRuntime
) -> None:
    kept, ended = await PartsClient(client).start(), await PartsClient(client, "/bucket/b").start()
    runtime.ahead_ns += 30 * DAY_NS
    assert await server.apply_lifecycle() == []
    rule = {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 30, "matchesPrefix": ["b"]}}
    assert (await client.send("PATCH", "/storage/v1/b/bucket", json.dumps({"lifecycle": {"rule": [rule]}}))).status == 200
    assert await server.apply_lifecycle() == ["b"]
    assert (await kept.listed()).status == 200 and refused(await ended.listed()) == (404, "NoSuchUpload")
    wrong = {**rule, "condition": {"customTimeBefore": "2030-01-01"}}
    assert (await client.send("PATCH", "/storage/v1/b/bucket", json.dumps({"lifecycle": {"rule": [wrong]}}))).status == 400


@pytest.mark.parametrize(("mode", "kept"), [(FaultMode.DROP_BEFORE, []), (FaultMode.DROP_AFTER, ["1"]), (FaultMode.STATUS, [])])
async def test_faults_meet_the_parts_of_an_upload(client: RawClient, server: GcsEmulator, mode: FaultMode, kept: list[str]) -> None:
    upload = await PartsClient(client).start()
    server.faults.append(GcsFault(mode, "xml.parts.put", "a/b", times=2))  # the library sends it again
    try:
        assert (await upload.put(1, b"x")).status == 503
    except aiohttp.ClientError:
        assert mode is not FaultMode.STATUS
    assert xml_texts(await upload.listed(), "PartNumber") == kept


async def test_a_completion_may_be_answered_with_an_error_in_an_answer_of_200(client: RawClient, server: GcsEmulator) -> None:
    upload = await PartsClient(client).start()
    part = (1, (await upload.put(1, b"x")).headers["ETag"])
    server.faults.append(GcsFault(FaultMode.STATUS, "xml.parts.complete", status=200, text="<Error><Code>InternalError</Code></Error>"))
    assert refused(await upload.complete(part)) == (200, "InternalError")
    assert (await upload.complete(part)).status == 200


async def test_a_fault_answers_with_a_status_as_often_as_told_and_has_no_effect(client: RawClient, server: GcsEmulator) -> None:
    server.faults.append(GcsFault(FaultMode.STATUS, "upload.*", name="b", times=2, status=429, headers={"Retry-After": "1"}))
    assert (await client.put("a")).status == 200
    refused = await client.put("b")
    assert (refused.status, refused.headers["Retry-After"], (await client.put("b")).status) == (429, "1", 429)
    assert list(server.buckets["bucket"].objects) == ["a"]
    assert (await client.put("b")).status == 200


@pytest.mark.parametrize(("mode", "stored"), [(FaultMode.DROP_BEFORE, []), (FaultMode.DROP_AFTER, ["a"])])
async def test_a_dropped_connection_is_before_or_after_the_effect(
    client: RawClient, server: GcsEmulator, mode: FaultMode, stored: list[str]
) -> None:
    server.faults.append(GcsFault(mode, "upload.media"))
    with pytest.raises(aiohttp.ClientError):
        await client.put("a")
    assert list(server.buckets["bucket"].objects) == stored


async def test_a_delayed_request_takes_effect_after_its_client_gave_up(client: RawClient, server: GcsEmulator) -> None:
    server.faults.append(GcsFault(FaultMode.DELAY, "upload.put", name="a", seconds=0.05))
    session = await client.start("a")
    upload = asyncio.create_task(client.put_range(session, "bytes 0-2/3", b"abc"))
    await until(lambda: server.calls[-1:] == ["upload.put"] and any(each.complete for each in server.sessions.values()))
    upload.cancel()
    assert names(await client.list()) == []
    await until(lambda: "a" in server.buckets["bucket"].objects)
    assert (await client.read("a")).body == b"abc"


@pytest.mark.parametrize(("mode", "stored"), [(FaultMode.STALL_BEFORE, []), (FaultMode.STALL_AFTER, ["a"])])
async def test_a_stalled_request_is_never_answered_and_ends_with_the_server(mode: FaultMode, stored: list[str]) -> None:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        async with GcsEmulator() as server:
            server.create_bucket("bucket")
            server.faults.append(GcsFault(mode))
            client = RawClient(session, server.url)
            upload = asyncio.create_task(client.put("a"))
            await until(lambda: server.calls == ["upload.media"])
            assert (await client.put("b")).status == 200
            assert not upload.done()
        with pytest.raises(aiohttp.ClientError):
            await upload
    assert list(server.buckets["bucket"].objects) == [*stored, "b"]


async def test_a_reader_that_goes_away_is_no_error_of_the_servers(client: RawClient, caplog: pytest.LogCaptureFixture) -> None:
    await client.put("blob", io.BytesIO(bytes(16 * 1024 * KIB)))
    async with client.session.get(client.url + at("blob") + "?alt=media") as response:
        await response.content.readany()
        response.close()
    await until(lambda: not any("RequestHandler.start" in repr(task) for task in asyncio.all_tasks()))
    assert caplog.records == []


@pytest.mark.parametrize("size", [10, 3 * GRANULE])
async def test_a_truncated_answer_is_seen_by_the_client(client: RawClient, server: GcsEmulator, size: int) -> None:
    await client.put("a", b"x" * size)
    server.faults.append(GcsFault(FaultMode.TRUNCATE, "object.read"))
    with pytest.raises(aiohttp.ClientPayloadError):
        await client.read("a")
    assert len((await client.read("a")).body) == size


# --- soft delete ---------------------------------------------------------------------------------


async def test_what_was_deleted_or_overwritten_is_listed_until_the_policy_ends(client: RawClient, runtime: MovedRuntime) -> None:
    generations = [(await client.put(name, name.encode())).json["generation"] for name in ("a", "a", "ab", "b")]
    for name in ("ab", "a"):
        assert (await client.send("DELETE", at(name))).status == 204
    listed = await client.list(softDeleted="true", prefix="a")
    assert [(each["name"], each["generation"], each["size"]) for each in listed["items"]] == [
        ("a", generations[0], "1"), ("a", generations[1], "1"), ("ab", generations[2], "2"),
    ]  # fmt: skip
    deleted, gone = (datetime.fromisoformat(listed["items"][0][key]) for key in ("softDeleteTime", "hardDeleteTime"))
    assert (gone - deleted).days == 7
    assert names(await client.list()) == ["b"]
    runtime.ahead_ns = 8 * DAY_NS
    assert names(await client.list(softDeleted="true")) == []


async def test_bucket_whose_policy_keeps_nothing_has_no_soft_deleted_objects(client: RawClient, server: GcsEmulator) -> None:
    server.buckets["bucket"].settings["softDeletePolicy"] = {"retentionDurationSeconds": "0"}
    await client.put("a")
    await client.send("DELETE", at("a"))
    assert await client.list(softDeleted="true") == {"kind": "storage#objects"}


@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_that_was_just_accepted_when_the_server_stopped_was_left_open(turns: int) -> None:
    """Its `ResourceWarning` failed a later test."""
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always")
        async with GcsEmulator() as server:
            client = socket.create_connection((cast(str, URL(server.url).host), cast(int, URL(server.url).port)))
            for _ in range(turns):
                await asyncio.sleep(0)
        client.close()
        gc.collect()
    assert [str(each.message) for each in left] == []
