"""HTTP PUT as a sink: what is sent, and what each answer means."""

from __future__ import annotations

import base64
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path

import anyio
import httpx
import pytest
from anyio.abc import SocketStream
from anyio.streams.tls import TLSStream

from changelog.base.errors import ConfigurationError, CorruptRecordError, TieredError, UnavailableError
from recovery.feed.sinks.http import HttpSink
from tests.given.certificates import certificate
from tests.given.segments import segments

pytestmark = pytest.mark.anyio

FIRST, SECOND, *_ = segments()
SECRET = "pass:word%20é"


def sink(answer: Callable[[httpx.Request], httpx.Response], url: str = "https://receiver/feed/") -> HttpSink:
    return HttpSink(url, httpx.MockTransport(answer))


async def refused(answer: Callable[[httpx.Request], httpx.Response]) -> TieredError:
    with pytest.raises(TieredError) as caught:
        await sink(answer).deliver(FIRST)
    return caught.value


async def test_what_is_sent() -> None:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(201)

    for suffix, kind in (("json", "application/jsonl"), ("avro", "application/avro")):
        sent = segments(suffix)[1]  # type: ignore[arg-type]
        await sink(answer).deliver(sent)
        request = requests.pop()
        assert (request.method, str(request.url)) == ("PUT", f"https://receiver/feed/{sent.path}")
        assert request.content == sent.data
        assert request.headers["content-type"] == kind
        assert request.headers["if-none-match"] == "*"
        assert int(request.headers["content-length"]) == len(sent.data)
        assert "transfer-encoding" not in request.headers
        told = request.headers["repr-digest"].removeprefix("sha-256=:").removesuffix(":")
        assert base64.b64decode(told) == sha256(sent.data).digest()
        assert not requests


@pytest.mark.parametrize("status", [200, 201, 202, 204, 207])
async def test_every_2xx_acknowledges(status: int) -> None:
    await sink(lambda _: httpx.Response(status)).deliver(FIRST)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 507])
async def test_what_may_work_later(status: int) -> None:
    error = await refused(lambda _: httpx.Response(status, text="the disk\nis \x1b[31mfull"))
    assert type(error) is UnavailableError and error.code == str(status)
    assert str(error) == f"https://receiver/feed answered PUT of {FIRST.path} with {status} (the disk is \\u001b[31mfull)"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 415, 421, 451])
async def test_what_somebody_must_change(status: int) -> None:
    error = await refused(lambda _: httpx.Response(status))
    assert type(error) is ConfigurationError and error.code == str(status)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirection_is_told_and_not_followed(status: int) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(status, headers={"Location": "https://user:secret@elsewhere/feed?token=secret"})

    error = await refused(answer)
    assert type(error) is ConfigurationError
    assert "a redirection to https://…@elsewhere/feed: give the address" in str(error) and "secret" not in str(error)
    assert len(asked) == 1


# --- something is there already --------------------------------------------------------------------


@pytest.mark.parametrize("status", [409, 412])
async def test_what_is_there_already_is_read_and_compared(status: int) -> None:
    there = {"body": FIRST.data}

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status) if request.method == "PUT" else httpx.Response(200, content=there["body"])

    await sink(answer).deliver(FIRST)
    for other in (b"", FIRST.data[:-1], FIRST.data + b"x", FIRST.data * 100_000):
        there["body"] = other
        assert type(await refused(answer)) is CorruptRecordError


@pytest.mark.parametrize(("status", "kind"), [(404, UnavailableError), (405, ConfigurationError), (503, UnavailableError)])
async def test_a_receiver_that_does_not_say_what_it_has(status: int, kind: type[TieredError]) -> None:
    error = await refused(lambda request: httpx.Response(412 if request.method == "PUT" else status))
    assert type(error) is kind


# --- secrets ---------------------------------------------------------------------------------------


async def test_the_password_is_sent_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["authorization"])
        raise httpx.ConnectError("refused", request=request)

    one = sink(answer, f"https://us%40er:{SECRET}@receiver/feed")
    assert one.name == "https://receiver/feed"
    with pytest.raises(UnavailableError) as caught:
        await one.deliver(FIRST)
    assert seen == [httpx.BasicAuth("us@er", "pass:word é")._build_auth_header("us@er", "pass:word é")]
    for shown in (str(caught.value), repr(caught.value.__cause__), caplog.text, repr(vars(one._client)["_url"])):
        assert "word" not in shown and "us%40er" not in shown


@pytest.mark.parametrize(("url", "told"), [
    ("https://user:word@receiver/feed?token=word", "has no query and no fragment"),
    ("https://user:word@receiver/feed#part", "has no query and no fragment"),
    ("https://user:word@/feed", "https://… names no host"),
    ("https://user:word@receiver:port/feed", "https://… names no host"),
    ("gs://bucket/feed", "gs://bucket/feed is no address of a receiver"),
])  # fmt: skip
def test_a_url_that_will_not_do(url: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told.replace("?", r"\?")) as caught:
        HttpSink(url)
    assert "word" not in str(caught.value).replace("password", "")


# --- the network -----------------------------------------------------------------------------------


@asynccontextmanager
async def server(serve: Callable[[SocketStream], object]) -> AsyncIterator[int]:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("reply", [
    b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
])  # fmt: skip
async def test_a_receiver_that_never_answers_to_the_end(reply: bytes) -> None:
    async def serve(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            if reply:
                await stream.send(reply)
            await anyio.sleep_forever()

    async with server(serve) as port:
        one = HttpSink(f"http://127.0.0.1:{port}", timeout_s=0.2)
        with pytest.raises(UnavailableError, match=r"gave no answer within 0\.2"):
            await one.deliver(FIRST)
        await one.aclose()


@pytest.mark.parametrize("reply", [b"", b"SSH-2.0-other\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nx"])
async def test_a_connection_that_breaks_off_or_is_no_http(reply: bytes) -> None:
    async def serve(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            if reply:
                await stream.send(reply)

    async with server(serve) as port:
        one = HttpSink(f"http://127.0.0.1:{port}")
        with pytest.raises(UnavailableError, match=f"http://127.0.0.1:{port} cannot be reached: (RemoteProtocol|Read)Error"):
            await one.deliver(FIRST)
        await one.aclose()
    with pytest.raises(UnavailableError, match="cannot be reached: ConnectError"):
        await one.deliver(FIRST)
    await one.aclose()


async def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "receiver.pem"
    path.write_bytes(certificate("localhost"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)

    async def serve(stream: SocketStream) -> None:
        async with stream:
            with suppress(ssl.SSLError, anyio.BrokenResourceError, anyio.EndOfStream):
                safe = await TLSStream.wrap(stream, server_side=True, ssl_context=context, standard_compatible=False)
                await safe.receive()
                await safe.send(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with server(serve) as port:
        one = HttpSink(f"https://localhost:{port}")
        with pytest.raises(ConfigurationError, match="has a certificate that this machine does not trust: self-signed"):
            await one.deliver(FIRST)
        await one.aclose()
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        known = HttpSink(f"https://localhost:{port}")
        await known.deliver(FIRST)
        await known.aclose()
