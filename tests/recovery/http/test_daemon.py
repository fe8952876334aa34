"""A real daemon and its HTTP server.

It is under load, killed and restarted, stopped in the middle of a request, and refused its port; its services go away.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio import to_thread
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from changelog.base.errors import ConfigurationError
from changelog.base.runtime import SystemRuntime
from emulators.bigtable.emulator import start_bigtable
from emulators.gcs.server import GcsEmulator
from emulators.up import BUILT_IN
from recovery.http import server
from recovery.http.server import listening, names_of
from recovery.loop import RecoveryLoop
from tests.given.command_line import OBJECT, Command, plant
from tests.given.daemon_process import PATIENCE_S, QUICK, running_daemon, wait_for
from tiered import ObjectId, UnavailableError, open_storage
from tiered.kinds.chosen import provision
from tiered.open import open_backends
from tiered.settings import DaemonSettings, Settings

pytestmark = pytest.mark.slow

HALF = pytest.param(b"GET / HT", marks=pytest.mark.night)

# --- the port, before anything else -----------------------------------------------------------------


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_a_port_that_is_taken_is_told_in_one_sentence_before_the_store_is_opened(tmp_path: Path) -> None:
    tiered = Command(tmp_path)
    with taken_port() as port:
        tiered("recover", "--http-port", str(port), code=3)
    assert tiered.errors == (
        f"tiered: port {port} of 127.0.0.1 is taken by another program: choose another one (daemon.http_port, --http-port)\n"
    )
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("host", "told"),
    [("nowhere.invalid", "no host that this machine knows"), ("192.0.2.1", "no address of this machine"), ("a" * 200, "no host that this")],
)
def test_a_host_that_cannot_be_listened_on_is_told(host: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told), listening(DaemonSettings(http_host=host, http_port=0)):
        pass


@pytest.mark.parametrize(("number", "told"), [(errno.EACCES, "choose one above 1023"), (errno.EMFILE, "cannot listen on port 80")])
def test_a_port_that_the_system_refuses_is_told(monkeypatch: pytest.MonkeyPatch, number: int, told: str) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(ConfigurationError, match=told), listening(DaemonSettings(http_port=80)):
        pass


def test_other_names_are_refused_only_where_this_machine_alone_is_served() -> None:
    with listening(DaemonSettings(http_port=0)) as bound:
        assert names_of(bound, "127.0.0.1") == {"localhost", "127.0.0.1", "::1"}
    with listening(DaemonSettings(http_host="0.0.0.0", http_port=0)) as bound:
        assert names_of(bound, "0.0.0.0") is None


@pytest.mark.parametrize("mode", ["--once", "--dry-run"])
def test_a_pass_has_no_server(tmp_path: Path, mode: str) -> None:
    tiered = Command(tmp_path)
    tiered("recover", mode, "--http-port", "0", code=3)
    assert "--http-port is the daemon's" in tiered.errors


# --- alive, under load, dead, back ----------------------------------------------------------------


async def put_many(directory: Path, done: threading.Event) -> None:
    async with open_storage(Settings(directory=directory, changelog="sqlite", inline_bytes_max=100)) as storage:
        number = 0
        while not done.is_set():
            with suppress(UnavailableError):  # recovery took over what this busy machine did not renew in time
                await storage.put(ObjectId.create("load", f"key-{number % 7}"), b"x" * 1000)
            number += 1
            await anyio.sleep(0.01)  # some hundred puts are load enough


def test_it_answers_under_load_is_killed_and_is_back_on_its_port(tmp_path: Path) -> None:
    store, done = tmp_path / "store", threading.Event()
    plant(store, None)
    load = threading.Thread(target=anyio.run, args=(put_many, store, done))
    load.start()
    try:
        with running_daemon(tmp_path) as daemon:
            port = daemon.port
            said = daemon.until(lambda said: said["level"] == "ok" and said["stuck"]["count"] == 0)
            assert said["daemons"][0]["alive"] and said["store"]["kind"] == "embedded"
            recent = daemon.until(lambda said: any(each["event"] == "recovered" for each in said["decisions"]), "recent.json")
            assert OBJECT not in str(recent)
            for _ in range(10):
                assert daemon.get("healthz").status_code == 200
                list(text_string_to_metric_families(daemon.get("metrics").text))
            wait_for(lambda: daemon.get("readyz").status_code == 200)
            assert daemon.get("").text.startswith("<!doctype html>")
            daemon.end(signal.SIGKILL)
            with pytest.raises(httpx.ConnectError):
                daemon.get("healthz")
        plant(store, None)
        with running_daemon(tmp_path, port=port) as daemon:
            assert daemon.port == port
            daemon.until(lambda said: any(each["event"] == "recovered" for each in said["decisions"]), "recent.json")
            assert daemon.end() == 0
    finally:
        done.set()
        load.join()


def test_many_connections_that_say_nothing_or_half_a_request_stop_neither_recovery_nor_its_end(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, ExitStack() as open_ones:
        for _ in range(250):
            open_ones.enter_context(socket.create_connection(("127.0.0.1", daemon.port)))
        plant(tmp_path / "store", None)
        wait_for(lambda: "recovered " in daemon.log.read_text())
        half = open_ones.enter_context(socket.create_connection(("127.0.0.1", daemon.port)))
        half.sendall(b"GET /status.json HT")
        idle = open_ones.enter_context(httpx.Client(trust_env=False))
        assert idle.get(f"{daemon.url}healthz").status_code == 200  # and the connection stays open
        assert daemon.end() == 0
        log = daemon.log.read_text()
    assert re.search(r"recovery_stopping.* signal=SIGTERM", log)
    assert "recovery_stopped" in log
    assert "Traceback" not in log


def test_an_entry_that_is_stuck_is_shown_with_the_command_to_type(tmp_path: Path) -> None:
    change_id = plant(tmp_path / "store", "notes/objects/of-another/018bcfe5-6800-7000-8000-000000000001")
    with running_daemon(tmp_path) as daemon:
        said = daemon.until(lambda said: said["level"] == "stuck")
        [entry] = said["stuck"]["entries"]
        assert (entry["object"], entry["type"]) == ("…", f"tiered -d {tmp_path / 'store'} log retry {change_id}")
        elsewhere = Command(tmp_path, store=False)
        for command in [entry["type"], *(each["type"] for each in said["orders"])]:
            assert elsewhere(*shlex.split(command)[1:]), command
        assert OBJECT not in str(said)
        assert OBJECT not in str(daemon.get("recent.json").json())

        def collections() -> int:
            [(_, number)] = re.findall(r'(python_gc_collections_total\{generation="0"\}) (\S+)', daemon.get("metrics").text)
            return round(float(number))

        before = collections()
        wait_for(lambda: collections() > before + 1)  # an idle daemon grew for hours: one in 50,000 objects


@pytest.mark.night
def test_two_servers_of_one_store_say_the_same(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as one, running_daemon(tmp_path) as other:
        def both(said: dict[str, object]) -> bool:
            daemons = said.get("daemons")
            return isinstance(daemons, list) and len(daemons) == 2

        assert {each["instance"] for each in one.until(both)["daemons"]} == {each["instance"] for each in other.until(both)["daemons"]}


# --- services that go away --------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.usefixtures("bigtable_host")
async def test_a_service_that_goes_away_is_told_with_its_name_and_told_again_when_it_is_back(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        bigtable = await stack.enter_async_context(start_bigtable(own=True))
        gcs = GcsEmulator()
        await gcs.__aenter__()
        assert BUILT_IN.bigtable is not None and BUILT_IN.gcs is not None
        at = BUILT_IN.model_copy(update={
            "bigtable": BUILT_IN.bigtable.model_copy(update={"emulator_host": bigtable.host}),
            "gcs": BUILT_IN.gcs.model_copy(update={"endpoint": gcs.url}),
        })  # fmt: skip
        await provision(at)
        environment = QUICK | {
            "TIERED_CHANGELOG": "bigtable", "TIERED_BIGTABLE__PROJECT": "emulated-project", "TIERED_BIGTABLE__INSTANCE": "emulated",
            "TIERED_GCS__BUCKET": "tiered-blobs", "BIGTABLE_EMULATOR_HOST": bigtable.host, "STORAGE_EMULATOR_HOST": gcs.url,
            "TIERED_BIGTABLE__TIMEOUT_S": "1", "TIERED_GCS__TIMEOUT_S": "1",
        }  # fmt: skip
        hurried = running_daemon(tmp_path, environment=environment, constants={"recovery.status.look.ANSWER_S": 2.0})
        daemon = await to_thread.run_sync(stack.enter_context, hurried)
        until = partial(to_thread.run_sync, abandon_on_cancel=True)
        await until(lambda: wait_for(lambda: daemon.get("readyz").status_code == 200))
        await gcs.__aexit__(None, None, None)
        said = await until(daemon.until, lambda said: silent(said) == ["long-term tier"])
        assert said["headline"].startswith("The long-term tier does not answer")
        assert (await until(daemon.get, "readyz")).status_code == 503
        bigtable.freeze()
        try:
            said = await until(daemon.until, lambda said: said["sample"]["error"] is not None)
            assert said["level"] == "unknown"
            assert said["store"]["kind"] == "bigtable+gcs"
            assert (await until(daemon.get, "healthz")).status_code == 200
        finally:
            bigtable.thaw()
        # The figures are read again before recovery itself has met the changelog again: until then it counts as away.
        await until(daemon.until, lambda said: said["sample"]["error"] is None and silent(said) == ["long-term tier"])


def silent(said: dict[str, Any]) -> list[str]:
    """The services that do not answer."""
    return [service["name"] for service in said["services"] if not service["answers"]]


# --- beside the loop --------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_daemon_without_a_port_needs_no_asyncio(tmp_path: Path) -> None:
    async with open_backends(Settings(directory=tmp_path), SystemRuntime()) as backends:
        loop = RecoveryLoop(backends.tiers, backends.log, SystemRuntime(), Settings(directory=tmp_path))
        assert loop.passed_at is None
        await loop.run_once()
        assert loop.passed_at is not None and loop.answered_at is not None


# --- clients that hold connections ------------------------------------------------------------------


@pytest.fixture
def few_connections(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many a server has at once here."""
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 20)
    return 20


@pytest.mark.anyio
@pytest.mark.parametrize("sent", [b"", HALF, b"GET /hangs HTTP/1.1\r\nHost: localhost\r\n\r\n"])
async def test_connections_that_wait_kept_out_whoever_asked_whether_it_lives(sent: bytes, few_connections: int) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/hangs":
            await anyio.sleep_forever()
        await Response(b"alive")(scope, receive, send)

    def ask(path: str) -> int:
        return httpx.get(f"http://127.0.0.1:{port}/{path}", trust_env=False, timeout=PATIENCE_S).status_code

    with listening(DaemonSettings(http_port=0)) as bound, ExitStack() as waiting:
        port = bound.getsockname()[1]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run_uvicorn, app, bound, 1000.0)
            for _ in range(2 * few_connections):
                client = waiting.enter_context(socket.socket())
                await to_thread.run_sync(client.connect, ("127.0.0.1", port))
                client.sendall(sent)
            assert await to_thread.run_sync(ask, "healthz") == 200
            assert await to_thread.run_sync(ask, "other") == (503 if b"hangs" in sent else 200)
            tasks.cancel_scope.cancel()


WITHOUT_DESCRIPTORS = """
import resource, socket, sys
import anyio
resource.setrlimit(resource.RLIMIT_NOFILE, (80, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from recovery.http import server
from starlette.responses import Response
from tiered.settings import DaemonSettings

async def main():
    with server.listening(DaemonSettings(http_port=0)) as bound:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run_uvicorn, Response(b"alive"), bound)
            print(bound.getsockname()[1], flush=True)
            held = [open("/dev/null") for _ in range(HELD)]
            await anyio.to_thread.run_sync(sys.stdin.readline)
            for each in held:
                each.close()
            await anyio.to_thread.run_sync(sys.stdin.readline)
            tasks.cancel_scope.cancel()

anyio.run(main)
"""


@pytest.mark.parametrize("held", [pytest.param(60, marks=pytest.mark.night), 0])
def test_out_of_descriptors_was_told_thousands_of_times_and_is_over_when_there_are_some_again(tmp_path: Path, held: int) -> None:
    program = WITHOUT_DESCRIPTORS.replace("HELD", str(held))
    with (tmp_path / "errors").open("w+") as errors, subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
    ) as process, ExitStack() as clients:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        port = int(process.stdout.readline())
        for _ in range(100):
            client = clients.enter_context(socket.socket())
            client.connect(("127.0.0.1", port))
        if held:
            wait_for(lambda: "http_connection_not_accepted" in (tmp_path / "errors").read_text())
        process.stdin.write("\n")
        process.stdin.flush()
        wait_for(lambda: httpx.get(f"http://127.0.0.1:{port}/", trust_env=False, timeout=PATIENCE_S).status_code == 200)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(PATIENCE_S) == 0
        told = (tmp_path / "errors").read_text()
    assert told.count("\n") <= 1 and "socket.accept" not in told, told[:2000]


@pytest.mark.anyio
@pytest.mark.parametrize("sent", [b"", HALF, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"])
async def test_clients_that_stall_give_their_connections_back(sent: bytes, few_connections: int) -> None:
    """They send nothing, half a request, or do not read the answer. The next ones are answered all the same."""

    async def to_async(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        pieces = 1000 if scope["path"] == "/large" else 1
        await StreamingResponse(to_async(b"x" * 16_384 for _ in range(pieces)))(scope, receive, send)

    with listening(DaemonSettings(http_port=0)) as bound, ExitStack() as stalled:
        port = bound.getsockname()[1]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run_uvicorn, app, bound, 1.0)
            for _ in range(few_connections):
                client = stalled.enter_context(socket.socket())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                await to_thread.run_sync(client.connect, ("127.0.0.1", port))
                client.sendall(sent)
            url = f"http://127.0.0.1:{port}/"
            await to_thread.run_sync(wait_for, lambda: is_answered(url))
            tasks.cancel_scope.cancel()


def is_answered(url: str) -> bool:
    """Whether it was answered. The server also ends a connection whose client stands still for a second."""
    with suppress(httpx.TransportError):
        return httpx.get(url, trust_env=False, verify=False, timeout=PATIENCE_S).status_code == 200
    return False
