"""`tiered feed receive`, in a process of its own that is killed in between; and what it refuses before it listens."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import httpx
import pytest

from changelog.base.errors import CorruptRecordError, UnavailableError
from recovery.feed.sinks.http import HttpSink, digest
from tests.given.command_line import OWN_PROCESS, Command
from tests.given.processes import StartedProcess
from tests.given.segments import large, segments

pytestmark = pytest.mark.slow


@pytest.fixture
def tiered(tmp_path: Path) -> Command:
    return Command(tmp_path, store=False)


@contextmanager
def receiver(tiered: Command, listen: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, *OWN_PROCESS, "feed", "receive", "--json", "--listen", listen, "feed"]
    with StartedProcess(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tiered.directory, env=tiered.environment
    ) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()


def test_what_a_receiver_acknowledged_survives_its_kill_and_is_viewed(tiered: Command) -> None:
    first, second, third, last = segments()

    async def deliver() -> None:
        with receiver(tiered, "0") as (process, url):
            sink = HttpSink(url)
            assert url.startswith("http://127.0.0.1:")
            await sink.deliver(first)
            await sink.deliver(second)
            process.kill()
            process.wait()
        with pytest.raises(UnavailableError, match="cannot be reached"):
            await sink.deliver(third)
        with receiver(tiered, httpx.URL(url).netloc.decode()) as (process, _):
            for each in (second, third, last):
                await sink.deliver(each)
            with pytest.raises(CorruptRecordError, match="has other bytes"):
                await sink.deliver(large(2**14))
            await sink.aclose()
            stalled = socket.create_connection(("127.0.0.1", httpx.URL(url).port or 80))
            head = f"PUT /{last.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nRepr-Digest: {digest(last.sha256)}\r\n\r\n["
            stalled.sendall(head.encode())
            await anyio.sleep(0.2)  # it waits for the rest
            process.send_signal(signal.SIGTERM)
            with stalled:
                assert stalled.recv(1000).startswith(b"HTTP/1.1 503 "), "it was 500, and a traceback was printed"
            _, errors = process.communicate(timeout=20)
            assert process.returncode == 0 and "Traceback" not in errors

    anyio.run(deliver)
    assert json.loads(tiered("--json", "feed", "view", f"feed/{first.folder}"))["records"] == [
        {"record": {"object": "b", "blob": "b/1"}, "multiplicity": 1, "since": second.time}
    ]


def test_what_is_refused_before_it_listens(tiered: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for arguments, told in {
            ("--listen", str(port), "feed"): f"port {port} of 127.0.0.1 is taken by another program: choose another one (--listen)",
            ("--listen", "nowhere", "feed"): "--listen is 'nowhere': give a port, or an address and a port such as 127.0.0.1:9465",
            ("--listen", "127.0.0.1:70000", "feed"): "--listen is '127.0.0.1:70000'",
            ("--listen", "nowhere.invalid:1", "feed"): "--listen is 'nowhere.invalid', which is no host that this machine knows",
            (" ",): "DIR is empty: give a directory",
        }.items():
            tiered("feed", "receive", *arguments, code=3)
            assert told in tiered.errors
    assert not list(tiered.directory.iterdir())
