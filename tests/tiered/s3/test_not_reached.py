"""What answers at the endpoint is no S3 service: the error says why, and that nothing was sent."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream
from anyio.streams.tls import TLSStream

from changelog.base.errors import UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from emulators.s3.servers import CREDENTIALS
from tests.given.certificates import certificate
from tests.given.s3_buckets import s3_blobs

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


async def hang_up(stream: SocketStream) -> None:
    with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
        async with stream:
            await stream.receive()
            await stream.send(b"Protocol mismatch.\r\n")


@pytest.mark.parametrize(("scheme", "host", "said"), [
    ("https", None, r"failed: .* agree on no TLS: \S.*; check the endpoint, its certificate, and whom this machine trusts"),
    ("https", "localhost", "agree on no TLS: self-signed certificate; check"),
    ("http", None, "blob '~x' is failed: the connection to .* broke off"),
])  # fmt: skip
async def test_a_read_says_why_the_service_was_not_reached(scheme: str, host: str | None, said: str, tmp_path: Path) -> None:
    async def safely(stream: SocketStream) -> None:
        async with stream:
            with suppress(ssl.SSLError, anyio.BrokenResourceError, anyio.EndOfStream):
                await TLSStream.wrap(stream, server_side=True, ssl_context=context, standard_compatible=False)

    if host is not None:
        (path := tmp_path / "s3.pem").write_bytes(certificate(host))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(path)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, hang_up if host is None else safely)
        url = f"{scheme}://localhost:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        async with s3_blobs(url, "bucket", SystemRuntime()) as blobs:
            with pytest.raises(UnavailableError, match=said) as caught:
                await blobs.head("~x")
        assert "never confirmed" not in str(caught.value)
        tasks.cancel_scope.cancel()


async def test_a_request_with_an_effect_that_no_tls_carried_was_never_sent() -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, hang_up)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with s3_blobs(f"https://localhost:{port}", "bucket", SystemRuntime()) as blobs:
            with pytest.raises(UnavailableError, match="no TLS") as caught:
                await blobs.client.call("put_object", "giving it", effect=True, Key="k", body=b"")
            assert not isinstance(caught.value, UnconfirmedError)
        tasks.cancel_scope.cancel()
