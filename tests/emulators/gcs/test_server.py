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
from tests.given.raw_gcs import Answered, PartsClient, RawClient, at, crc32c, refused, uploads, xml_texts

pytestmark = pytest.mark.asyncio

KIB = 1024
GRANULE = 256 * KIB
DAY_NS = 86_400 * 1_000_000_000
PRECONDITION = {"ifGenerationMatch": "0"}


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


async def test_a_media_upload_is_described_in_its_answer_and_read_back(client: RawClient) -> None:
    answer = await client.put("a", b"payload", Content_Type="text/plain")
    assert answer.status == 200
    assert {key: answer.json[key] for key in ("name", "bucket", "size", "contentType", "metageneration", "crc32c")} == {
        "name": "a", "bucket": "bucket", "size": "7", "contentType": "text/plain", "metageneration": "1", "crc32c": crc32c(b"payload"),
    }  # fmt: skip
    assert (await client.read("a")).body == b"payload"
    assert (await client.send("GET", at("a"))).json == answer.json


FORM = "Content-Disposition: form-data; name="
RELATED, PLAIN = "multipart/related; boundary=edge", "Content-Type: text/plain"
TWICE = [
    (f"Content-Type: multipart/form-data; boundary=edge\r\nContent-Type: {RELATED}", PLAIN),
    (f"content-type: {RELATED}\r\nCONTENT-TYPE: {RELATED}", f"{FORM}media\r\n{PLAIN}"),
    (f"Content-Type: {RELATED}", f"{PLAIN}\r\nContent-Type: text/html"),
]


@pytest.mark.parametrize("cut", [1, 20, 1 << 20])
@pytest.mark.parametrize(("request_headers", "part_headers"), TWICE)
async def test_a_multipart_upload_whose_content_type_is_told_twice_is_taken(
    server: GcsEmulator, request_headers: str, part_headers: str, cut: int
) -> None:
    """A form as reqwest sends it, with its header set twice.

    The body is not looked at, and the connection goes on.
    """
    payload = "Content-Type: a\r\nContent-Type: b\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    for name in ("first", "second"):
        body = f'--edge\r\n{FORM}metadata\r\n\r\n{{}}\r\n--edge\r\n{part_headers}\r\n\r\n{payload}\r\n--edge--\r\n'
        head = f"POST {uploads('multipart', name)} HTTP/1.1\r\nHost: x\r\n{request_headers}\r\nContent-Length: {len(body)}\r\n\r\n"
        request = (head + body).encode()
        for start in range(0, len(request), cut):
            writer.write(request[start : start + cut])
            await writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert b"200 OK" in await reader.readline()
            told = dict(line.decode().rstrip().split(": ", 1) for line in (await reader.readuntil(b"\r\n\r\n")).splitlines() if line)
            await reader.readexactly(int(told["Content-Length"]))
        stored = server.buckets["bucket"].objects[name]
        assert (stored.payload.decode(), stored.content["contentType"]) == (payload, "text/plain")
    writer.close()


async def test_a_multipart_upload_stores_its_metadata_and_any_bytes(client: RawClient) -> None:
    resource = {"name": "a", "metadata": {"k": "größe"}, "customTime": "2030-01-02T03:04:05.678Z", "contentEncoding": "zstd"}
    media = b"\r\n--edge \r\n\r\n--edg" + bytes(range(256))
    body = b"--edge\r\nContent-Type: application/json\r\n\r\n" + json.dumps(resource).encode()
    body += b"\r\n--edge\r\nContent-Type: image/png\r\n\r\n" + media + b"\r\n--edge--\r\n"
    answer = await client.send("POST", uploads("multipart", "a"), body, Content_Type='multipart/related; boundary="edge"')
    assert answer.status == 200
    assert {key: answer.json[key] for key in resource} == resource
    read = await client.read("a", Accept_Encoding="zstd")
    assert (read.body, read.headers["Content-Type"], read.headers["Content-Encoding"]) == (media, "image/png", "zstd")


@pytest.mark.parametrize("media", [b"", b"media", b"\r", b"a\r\n--edge--\r\n", b"\r\n--edge\r\n\r\n", bytes(range(256))])
async def test_lines_of_a_multipart_upload_may_end_with_a_bare_line_feed(client: RawClient, media: bytes) -> None:
    """As gcsfs sends them. How the first line ends says how the others do."""
    head = b'--edge\nContent-Type: application/json\n\n{"name": "a"}\n--edge\nContent-Type: image/png\n\n'
    sent = {"Content_Type": 'multipart/related; boundary="edge"'}
    assert (await client.send("POST", uploads("multipart", "a"), head + media + b"\n--edge--", **sent)).status == 200
    read = await client.read("a")
    assert (read.body, read.headers["Content-Type"]) == (media, "image/png")
    mixed = head.replace(b"--edge\n", b"--edge\r\n", 1) + media + b"\n--edge--"
    assert (await client.send("POST", uploads("multipart", "b"), mixed, **sent)).status == 400


async def test_an_upload_is_refused_by_its_precondition_and_changes_nothing(client: RawClient) -> None:
    first = await client.put("a", b"first", PRECONDITION)
    assert first.status == 200
    refused = await client.put("a", b"second", PRECONDITION)
    assert refused.status == 412
    assert refused.json["error"]["errors"][0]["reason"] == "conditionNotMet"
    assert (await client.put("a", b"second", {"ifGenerationMatch": first.json["generation"]})).status == 200
    assert (await client.put("a", b"third", {"ifGenerationMatch": first.json["generation"]})).status == 412
    assert (await client.put("b", b"third", {"ifGenerationMatch": "7"})).status == 412
    assert (await client.put("a", b"third", {"ifMetagenerationMatch": "2"})).status == 412
    assert (await client.read("a")).body == b"second"


async def test_generations_grow_even_when_a_name_is_made_again_at_once(client: RawClient) -> None:
    generations = [int((await client.put("a")).json["generation"]) for _ in range(5)]
    assert generations == sorted(set(generations))


@pytest.mark.parametrize("header", ["crc32c={}", "md5=AAAA,crc32c={}"])
async def test_a_wrong_checksum_is_400_and_no_object(client: RawClient, header: str) -> None:
    assert (await client.put("a", X_Goog_Hash=header.format(crc32c(b"other")))).status == 400
    assert (await client.send("GET", at("a"))).status == 404
    assert (await client.put("a", X_Goog_Hash=f"crc32c={crc32c(b'payload')}")).status == 200


@pytest.mark.parametrize("headers", [{}, {"Content_Length": str(2 * GRANULE)}])
async def test_a_body_that_breaks_off_creates_nothing(client: RawClient, server: GcsEmulator, headers: dict[str, str]) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"x" * GRANULE
        await until(lambda: server.calls == ["upload.media"])
        raise ValueError("the payload broke")

    with pytest.raises((ValueError, aiohttp.ClientError)):
        await client.put("a", chunks(), None, **headers)
    await client.put("b")
    assert names(await client.list()) == ["b"]


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

    upload = asyncio.create_task(client.put("a", chunks(), PRECONDITION))
    await sent.wait()
    assert names(await client.list()) == []
    assert (await client.put("a", b"the other", PRECONDITION)).status == 200
    last.set()
    assert (await upload).status == 412
    assert (await client.read("a")).body == b"the other"


async def test_an_upload_that_is_cancelled_while_its_last_chunk_is_withheld_creates_nothing(client: RawClient, server: GcsEmulator) -> None:
    sent = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"x" * GRANULE
        sent.set()
        await asyncio.Event().wait()

    upload = asyncio.create_task(client.put("a", chunks()))
    await sent.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert (await client.put("b")).status == 200
    assert list(server.buckets["bucket"].objects) == ["b"]


async def test_a_body_is_stored_as_it_came_whatever_its_encoding(client: RawClient) -> None:
    await client.put("a", b"not really gzip", {"contentEncoding": "gzip"}, Content_Encoding="gzip")
    read = await client.read("a")
    assert (read.body, read.headers["Content-Encoding"]) == (b"not really gzip", "gzip")


async def test_a_client_that_waits_to_be_told_to_continue_is_told(client: RawClient) -> None:
    async with client.session.post(client.url + uploads("media", "a"), data=b"payload", expect100=True) as response:
        assert response.status == 200
    assert (await client.read("a")).body == b"payload"


async def test_custom_metadata_beyond_8_kib_are_refused(client: RawClient) -> None:
    session = await client.start("a", {"metadata": {"k": "x" * 8192}})
    assert (await client.put_range(session, "bytes */0")).status == 400


# --- resumable uploads ---------------------------------------------------------------------------


async def test_a_session_takes_chunks_and_becomes_visible_with_the_last(client: RawClient) -> None:
    payload = bytes(range(256)) * (KIB * 2) + b"end"
    session = await client.start("a", {"contentType": "text/plain"})
    first = await client.put_range(session, f"bytes 0-{GRANULE - 1}/*", payload[:GRANULE])
    assert (first.status, first.headers["Range"]) == (308, f"bytes=0-{GRANULE - 1}")
    assert names(await client.list()) == []
    last = await client.put_range(session, f"bytes {GRANULE}-{len(payload) - 1}/{len(payload)}", payload[GRANULE:])
    assert (last.status, last.json["contentType"], last.json["crc32c"]) == (200, "text/plain", crc32c(payload))
    assert (await client.read("a")).body == payload


async def test_a_session_in_one_request_without_a_range_or_a_length(client: RawClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 100_000

    assert (await client.send("PUT", await client.start("a"), chunks())).json["size"] == "300000"
    assert (await client.put_range(await client.start("b"), "bytes 0-*/*", chunks())).json["size"] == "300000"


async def test_the_status_of_a_session_tells_what_is_kept(client: RawClient) -> None:
    session = await client.start("a")
    empty = await client.put_range(session, "bytes */*")
    assert (empty.status, "Range" in empty.headers) == (308, False)
    await client.put_range(session, f"bytes 0-{GRANULE - 1}/*", b"x" * GRANULE)
    kept = await client.put_range(session, f"bytes */{GRANULE + 1}")
    assert (kept.status, kept.headers["Range"]) == (308, f"bytes=0-{GRANULE - 1}")
    done = await client.put_range(session, f"bytes {GRANULE}-{GRANULE}/{GRANULE + 1}", b"y")
    again = await client.put_range(session, f"bytes */{GRANULE + 1}")
    assert (done.status, again.status) == (200, 200)
    assert again.json == done.json


async def test_an_empty_object_is_finalised_by_its_size(client: RawClient) -> None:
    session = await client.start("a")
    assert (await client.put_range(session, "bytes */0")).json["size"] == "0"
    assert (await client.read("a")).body == b""


async def test_a_chunk_that_is_no_multiple_of_256_kib_is_kept_in_part(client: RawClient) -> None:
    session = await client.start("a")
    answer = await client.put_range(session, f"bytes 0-{GRANULE + 9}/*", b"x" * (GRANULE + 10))
    assert (answer.status, answer.headers["Range"]) == (308, f"bytes=0-{GRANULE - 1}")


@pytest.mark.parametrize("size", [1, 1024, GRANULE - 1])
async def test_a_chunk_below_256_kib_that_is_not_the_last_spoils_its_session_and_was_ignored(client: RawClient, size: int) -> None:
    """Google's tests of its own client show this answer, and that it stays."""
    session = await client.start("a")
    await client.put_range(session, f"bytes 0-{GRANULE - 1}/*", b"x" * GRANULE)
    for count in (size, GRANULE):
        refused = await client.put_range(session, f"bytes {GRANULE}-{GRANULE + count - 1}/*", b"y" * count)
        assert refused.status == 400 and f"contained {size} bytes" in refused.json["error"]["message"]
    assert (await client.put_range(session, "bytes */*")).status == 400
    assert (await client.send("DELETE", session)).status == 499
    assert names(await client.list()) == []


async def test_bytes_sent_again_are_ignored(client: RawClient) -> None:
    session = await client.start("a")
    await client.put_range(session, f"bytes 0-{GRANULE - 1}/*", b"x" * GRANULE)
    answer = await client.put_range(session, f"bytes {GRANULE - 10}-{GRANULE + 9}/{GRANULE + 10}", b"y" * 20)
    assert answer.status == 200
    assert (await client.read("a")).body == b"x" * GRANULE + b"y" * 10


async def test_what_would_leave_a_gap_is_refused_and_the_session_goes_on(client: RawClient) -> None:
    session = await client.start("a")
    refused = await client.put_range(session, "bytes 5-9/10", b"world")
    assert refused.status == 400
    assert "exceeds already uploaded size of 0" in refused.json["error"]["message"]
    assert (await client.put_range(session, "bytes 0-9/10", b"helloworld")).status == 200


@pytest.mark.parametrize(
    ("content_range", "payload"), [("bytes 0-4/5", b"six666"), ("bytes 0-4/5", b"four"), ("bytes 0-5/5", b"sixsix"), ("nonsense", b"five5")]
)
async def test_a_range_that_its_body_belies_is_refused(client: RawClient, content_range: str, payload: bytes) -> None:
    session = await client.start("a")
    assert (await client.put_range(session, content_range, payload)).status == 400
    assert names(await client.list()) == []
    assert (await client.put_range(session, "bytes 0-4/5", b"five5")).status == 200


async def test_the_total_of_a_session_can_not_change(client: RawClient) -> None:
    session = await client.start("a")
    await client.put_range(session, f"bytes 0-{GRANULE - 1}/{GRANULE + 5}", b"x" * GRANULE)
    assert (await client.put_range(session, f"bytes {GRANULE}-{GRANULE + 5}/{GRANULE + 6}", b"y" * 6)).status == 400


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


async def test_a_cancelled_session_can_never_be_finalised(client: RawClient) -> None:
    session = await client.start("a")
    await client.put_range(session, f"bytes 0-{GRANULE - 1}/*", b"x" * GRANULE)
    assert (await client.send("DELETE", session)).status == 499
    for content_range, payload in ((f"bytes {GRANULE}-{GRANULE}/{GRANULE + 1}", b"y"), (f"bytes */{GRANULE}", b""), ("bytes 0-0/1", b"z")):
        assert (await client.put_range(session, content_range, payload)).status == 410
    assert (await client.send("DELETE", session)).status == 410
    assert names(await client.list()) == []


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


async def test_cancelling_after_the_end_keeps_the_object(client: RawClient) -> None:
    session = await client.start("a")
    await client.put_range(session, "bytes 0-2/3", b"abc")
    assert (await client.send("DELETE", session)).status == 404
    assert (await client.read("a")).body == b"abc"
    assert (await client.send("PUT", session.replace("upload_id=", "upload_id=0"), b"")).status == 404


async def test_the_precondition_of_a_session_is_looked_at_again_when_it_is_finalised(client: RawClient) -> None:
    session = await client.start("a", query=PRECONDITION)
    await client.put("a", b"the other")
    assert (await client.put_range(session, "bytes 0-2/3", b"abc")).status == 412
    assert (await client.read("a")).body == b"the other"
    refused = await client.send("POST", uploads("resumable", "a", PRECONDITION), b"{}")
    assert refused.status == 412


async def test_the_final_request_of_a_session_may_bring_checksum_and_metadata(client: RawClient) -> None:
    session = await client.start("a", {"metadata": {"early": "1"}})
    assert (await client.put_range(session, "bytes 0-2/3", b"abc", X_Goog_Hash=f"crc32c={crc32c(b'abd')}")).status == 400
    assert (await client.put_range(session, "bytes */3")).status == 410
    session = await client.start("a", {"metadata": {"early": "1"}})
    done = await client.put_range(session, "bytes 0-2/3", b"abc", X_Goog_Hash=f"crc32c={crc32c(b'abc')}", X_Goog_Meta_Late="2")
    assert done.json["metadata"] == {"early": "1", "late": "2"}


async def test_a_session_expires_after_a_week(client: RawClient, runtime: MovedRuntime) -> None:
    session = await client.start("a")
    runtime.ahead_ns = 7 * DAY_NS + 1
    assert (await client.put_range(session, "bytes 0-2/3", b"abc")).status == 410


# --- reads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "status", "body", "content_range"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"), ("bytes=7-", 206, b"789", "bytes 7-9/10"), ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=8-99", 206, b"89", "bytes 8-9/10"), ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=10-", 416, None, "bytes */10"), ("bytes=-0", 416, None, "bytes */10"), ("bytes=4-2", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
    ],
)  # fmt: skip
async def test_a_range_is_answered_as_http_has_it(
    client: RawClient, wanted: str, status: int, body: bytes | None, content_range: str | None
) -> None:
    await client.put("a", b"0123456789")
    answer = await client.read("a", Range=wanted)
    assert (answer.status, answer.headers.get("Content-Range")) == (status, content_range)
    assert body is None or answer.body == body


async def test_a_read_tells_generation_hash_and_content(client: RawClient) -> None:
    stored = (await client.put("a", b"payload", Content_Type="text/plain")).json
    for path in (at("a"), "/download" + at("a")):
        headers = (await client.send("GET", path + "?alt=media", Range="bytes=1-2")).headers
        assert headers["X-Goog-Generation"] == stored["generation"]
        assert headers["X-Goog-Metageneration"] == "1"
        assert headers["X-Goog-Hash"] == f"crc32c={stored['crc32c']},md5={stored['md5Hash']}"
        assert headers["X-Goog-Stored-Content-Length"] == "7"
        assert headers["Content-Type"] == "text/plain"


async def test_reads_heed_preconditions_and_the_generation_asked_for(client: RawClient) -> None:
    generation = (await client.put("a")).json["generation"]
    assert (await client.send("GET", f"{at('a')}?generation={generation}")).status == 200
    assert (await client.send("GET", f"{at('a')}?generation=1")).status == 404
    assert (await client.send("GET", f"{at('a')}?alt=media&ifGenerationMatch=1")).status == 412
    assert (await client.send("GET", f"{at('a')}?alt=media&ifGenerationNotMatch={generation}")).status == 304
    assert (await client.send("GET", f"{at('a')}?ifGenerationMatch=nonsense")).status == 400
    assert (await client.send("GET", f"{at('a')}?fields=name,generation")).json == {"name": "a", "generation": generation}


async def test_what_is_not_there_is_404_in_the_form_of_the_service(client: RawClient) -> None:
    for path in (at("a"), at("a") + "?alt=media", "/storage/v1/b/none/o/a", "/storage/v1/b/none/o", "/storage/v1/none"):
        answer = await client.send("GET", path)
        assert (answer.status, answer.json["error"]["code"], answer.json["error"]["errors"][0]["reason"]) == (404, 404, "notFound")
    assert (await client.send("POST", at("a"))).status == 405


async def test_a_read_under_way_keeps_its_bytes_when_the_object_is_replaced(client: RawClient) -> None:
    old = b"old!" * (4 * GRANULE)
    await client.put("a", io.BytesIO(old))
    async with client.session.get(URL(client.url + at("a") + "?alt=media", encoded=True)) as response:
        first = await response.content.readany()
        await client.put("a", b"new")
        assert first + await response.read() == old


# --- changes -------------------------------------------------------------------------------------


async def test_delete_is_204_then_404_and_heeds_the_generation(client: RawClient) -> None:
    generation = int((await client.put("a")).json["generation"])
    assert (await client.send("DELETE", f"{at('a')}?ifGenerationMatch={generation - 1}")).status == 412
    assert (await client.send("DELETE", f"{at('a')}?generation={generation - 1}")).status == 404
    assert (await client.send("DELETE", f"{at('a')}?ifGenerationMatch={generation}")).status == 204
    assert (await client.send("DELETE", at("a"))).status == 404


async def test_patch_merges_metadata_and_counts_metagenerations(client: RawClient) -> None:
    generation = (await client.put("a", Content_Type="text/plain")).json["generation"]
    await client.send("PATCH", at("a"), json.dumps({"metadata": {"a": "1", "b": "2"}}))
    answer = await client.send("PATCH", at("a"), json.dumps({"metadata": {"a": None, "c": "3"}, "contentType": "image/png"}))
    assert (answer.json["metadata"], answer.json["contentType"]) == ({"b": "2", "c": "3"}, "image/png")
    assert (answer.json["generation"], answer.json["metageneration"]) == (generation, "3")
    assert (await client.send("PATCH", at("a") + "?ifMetagenerationMatch=2", "{}")).status == 412
    assert (await client.send("PATCH", at("a"), "nonsense")).status == 400
    assert "metadata" not in (await client.send("PATCH", at("a"), json.dumps({"metadata": None}))).json


async def test_a_custom_time_moves_only_forward(client: RawClient) -> None:
    await client.put("a")

    async def patch(time: str | None) -> Answered:
        return await client.send("PATCH", at("a"), json.dumps({"customTime": time}))

    assert (await patch("2030-01-01T00:00:00Z")).json["customTime"] == "2030-01-01T00:00:00.000Z"
    assert (await patch("2030-01-01T00:00:00.0005+00:00")).json["customTime"] == "2030-01-01T00:00:00.000500Z"
    assert (await patch("2029-12-31T23:59:59Z")).status == 400
    assert (await patch(None)).status == 400
    assert (await patch("tomorrow")).status == 400
    assert (await client.send("GET", at("a"))).json["customTime"] == "2030-01-01T00:00:00.000500Z"


async def test_a_batch_answers_each_call_by_itself(client: RawClient) -> None:
    await client.put("a/b?")
    calls = [f"DELETE {at('a/b?')}", f"DELETE {at('none')}", "GET /nothing", f"POST {uploads('media', 'x')}"]
    head = "--edge\r\nContent-Type: application/http\r\nContent-ID:"
    parts = [f"{head} <{n}>\r\n\r\n{call} HTTP/1.1\r\n\r\n" for n, call in enumerate(calls)]
    body = "\r\n".join(parts) + "\r\n--edge--"
    answer = await client.send("POST", "/batch/storage/v1", body, Content_Type="multipart/mixed; boundary=edge")
    assert [line for line in answer.body.decode().splitlines() if line.startswith(("HTTP/1.1", "Content-ID"))] == [
        "Content-ID: <response-0>", "HTTP/1.1 204 Status", "Content-ID: <response-1>", "HTTP/1.1 404 Status",
        "Content-ID: <response-2>", "HTTP/1.1 404 Status", "Content-ID: <response-3>", "HTTP/1.1 400 Status",
    ]  # fmt: skip
    assert names(await client.list()) == []
    too_many = "\r\n".join(parts[:1] * 101) + "\r\n--edge--"
    assert (await client.send("POST", "/batch/storage/v1", too_many, Content_Type="multipart/mixed; boundary=edge")).status == 400


# --- listings and names --------------------------------------------------------------------------


async def test_a_listing_is_in_byte_order_and_keeps_to_prefix_and_offsets(client: RawClient) -> None:
    for name in ("b", "a/2", "a/10", "é", "\uffff", "😀", "a", "B"):
        await client.put(name)
    assert names(await client.list()) == ["B", "a", "a/10", "a/2", "b", "é", "\uffff", "😀"]
    assert names(await client.list(prefix="a/")) == ["a/10", "a/2"]
    assert names(await client.list(startOffset="a/2", endOffset="é")) == ["a/2", "b"]
    assert await client.list(prefix="none") == {"kind": "storage#objects"}


async def test_pages_and_delimiters_lose_and_repeat_nothing(client: RawClient) -> None:
    for name in ("a/1", "a/2", "b", "c/d/1", "c/e", "d"):
        await client.put(name)
    found: list[str] = []
    token = ""
    for _ in range(4):
        page = await client.list(delimiter="/", maxResults="1", **({"pageToken": token} if token else {}))
        found += [*page.get("prefixes", []), *names(page)]
        token = page.get("nextPageToken", "")
    assert (found, token) == (["a/", "b", "c/", "d"], "")
    assert (await client.list(prefix="c/", delimiter="/"))["prefixes"] == ["c/d/"]
    assert await client.list(fields="items(name),nextPageToken", maxResults="1", prefix="b") == {"items": [{"name": "b"}]}


async def test_a_page_may_be_shorter_than_asked_for(client: RawClient, server: GcsEmulator) -> None:
    server.buckets["bucket"].page_max = 2
    for name in "abc":
        await client.put(name)
    page = await client.list(maxResults="1000", fields="items/name,nextPageToken")
    assert names(page) == ["a", "b"]
    assert names(await client.list(pageToken=page["nextPageToken"])) == ["c"]


@pytest.mark.parametrize(
    "name",
    ["a#b?c=d&e", "a%2Fb", "a/../b", "../../etc/passwd", "a//b", "/a", "a/./b", "größe-日本", "🏳️‍🌈", "k" * 1024, "+=% ~", "o", "a\0b"],
)  # fmt: skip
async def test_any_name_is_stored_listed_read_and_deleted_as_it_is(client: RawClient, name: str) -> None:
    assert (await client.put(name, name.encode())).json["name"] == name
    assert names(await client.list()) == [name]
    assert (await client.read(name)).body == name.encode()
    assert (await client.send("PATCH", at(name), "{}")).status == 200
    assert (await client.send("DELETE", at(name))).status == 204
    assert names(await client.list()) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a\nb", "k" * 1025, ".well-known/acme-challenge/x"])
async def test_a_name_that_the_service_refuses_is_refused(client: RawClient, name: str) -> None:
    assert (await client.put(name)).status == 400


@pytest.mark.parametrize(
    "path",
    [
        "/upload/storage/v1/b/bucket/o?uploadType=media&name=%FF", "/upload/storage/v1/b/bucket/o?uploadType=other&name=a",
        "/upload/storage/v1/b/bucket/o?uploadType=media", "/upload/storage/v1/b/bucket/o?uploadType=multipart&name=a",
        "/upload/storage/v1/b/bucket/o?uploadType=resumable&name=a", "/batch/storage/v1",
    ],
)  # fmt: skip
async def test_an_upload_that_makes_no_sense_is_400(client: RawClient, path: str) -> None:
    assert (await client.send("POST", path, b'{"name": "\\ud800"}')).status == 400


@pytest.mark.parametrize("query", ["fields=items(name", "fields=)", "pageToken=!a", "maxResults=-1", "maxResults=x"])
async def test_a_listing_that_makes_no_sense_is_400(client: RawClient, query: str) -> None:
    assert (await client.send("GET", f"/storage/v1/b/bucket/o?{query}")).status == 400


async def test_a_slash_that_is_not_escaped_is_another_path(client: RawClient) -> None:
    await client.put("a/b")
    assert (await client.send("GET", "/storage/v1/b/bucket/o/a/b")).status == 404
    assert (await client.send("GET", "/storage/v1/b/bucket/o/%FF")).status == 400


# --- buckets and lifecycle -----------------------------------------------------------------------


async def test_buckets_are_created_shown_patched_and_deleted_when_empty(client: RawClient) -> None:
    rule = {"rule": [{"action": {"type": "Delete"}, "condition": {"daysSinceCustomTime": 1}}]}
    created = await client.send("POST", "/storage/v1/b?project=p", json.dumps({"name": "other", "lifecycle": rule}))
    assert created.status == 200
    assert created.json["lifecycle"] == rule
    assert created.json["softDeletePolicy"]["retentionDurationSeconds"] == "604800"
    assert (await client.send("POST", "/storage/v1/b?project=p", '{"name": "other"}')).status == 409
    assert (await client.send("POST", "/storage/v1/b?project=p", '{"name": "No"}')).status == 400
    change = {"softDeletePolicy": {"retentionDurationSeconds": "0"}, "lifecycle": None}
    patched = await client.send("PATCH", "/storage/v1/b/other", json.dumps(change))
    assert (patched.json["softDeletePolicy"], "lifecycle" in patched.json) == ({"retentionDurationSeconds": "0"}, False)
    assert (await client.send("GET", "/storage/v1/b/other")).json == patched.json
    assert names((await client.send("GET", "/storage/v1/b?project=p")).json) == ["bucket", "other"]
    assert (await client.send("DELETE", "/storage/v1/b/other")).status == 204
    await client.put("a")
    assert (await client.send("DELETE", "/storage/v1/b/bucket")).status == 409


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


async def test_a_lifecycle_rule_that_is_not_implemented_is_refused(client: RawClient) -> None:
    rule = {"action": {"type": "Delete"}, "condition": {"numNewerVersions": 3}}
    assert (await client.send("PATCH", "/storage/v1/b/bucket", json.dumps({"lifecycle": {"rule": [rule]}}))).status == 400


# --- faults --------------------------------------------------------------------------------------

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


async def test_soft_deleted_objects_are_listed_in_pages(client: RawClient, server: GcsEmulator) -> None:
    for name in ("a", "b", "c"):
        await client.put(name)
        await client.send("DELETE", at(name))
    page = await client.list(softDeleted="true", maxResults="2")
    assert names(page) == ["a", "b"]
    assert names(await client.list(softDeleted="true", maxResults="2", pageToken=page["nextPageToken"])) == ["c"]
    assert (await client.send("GET", "/storage/v1/b/bucket/o?softDeleted=true&versions=true")).status == 400


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
