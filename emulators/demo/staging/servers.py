"""The demo's backend in PostgreSQL and S3: real servers that keep what they have answered, so they can be killed, too.

    writers, daemons --> relay --> PostgreSQL (rows, changelog)
    writers, daemons --> relay --> versitygw (blobs)
    director, check  ------------> both, directly

SIGSTOP freezes a server: of PostgreSQL, all of its processes. Its relay cuts or delays connections. A crash is SIGQUIT
to PostgreSQL, which is `pg_ctl stop -m immediate`, and SIGKILL to versitygw; then the server is started again, over
what it left.

*Crash* of this process: warden processes end the servers. What was stored is removed with the stage.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from anyio.from_thread import start_blocking_portal

from changelog.base.errors import ConfigurationError
from emulators.bigtable.emulator import freeze
from emulators.demo.checking.servers import StoredInServers
from emulators.demo.staging.relay import relayed, steps_of
from emulators.demo.staging.stage import CALL_S, GRACE_S, POSTGRES_S3, Service, ServicesStage
from emulators.go import WITH_WARDEN
from emulators.ports import free_port
from emulators.postgres.server import SAFE, PostgresNotFoundError, PostgresServer, server_directory
from emulators.s3.servers import CREDENTIALS, REGION, S3ServerNotFoundError, on_a_disk, versitygw

CONNECTIONS = 6
"""Of each process to PostgreSQL. All together must fit into what the server takes."""
SCHEMA, BUCKET = "tiered_demo", "tiered-demo"
START_S = 10.0


class ServerStage(ServicesStage):
    backend = POSTGRES_S3
    are, keepers = "PostgreSQL and versitygw, which are frozen, cut off and killed", "servers"

    def _raise(self) -> Mapping[str, Any]:
        enter = self._standing.enter_context
        enter(patch.dict(os.environ, CREDENTIALS))  # all processes of the demo find their credentials there
        portal = enter(start_blocking_portal())
        try:
            postgres = enter(_postgres(self.log / "postgres.log"))
            s3 = enter(S3Process(enter(on_a_disk()), self.log / "s3.log").running(portal.call))
        except (PostgresNotFoundError, S3ServerNotFoundError) as missing:
            raise ConfigurationError(str(missing)) from missing
        postgres_relay, s3_relay = (enter(portal.wrap_async_context_manager(relayed(each.port))) for each in (postgres, s3))
        self.services = (
            Service(
                "postgres", lambda: _freeze_all(postgres.pid), lambda: _thaw_all(postgres.pid), *steps_of(postgres_relay, portal),
                postgres.stop, postgres.start,
            ),
            Service(
                "s3", lambda: freeze(s3.pid), lambda: os.kill(s3.pid, signal.SIGCONT), *steps_of(s3_relay, portal), s3.kill, s3.start
            ),
        )  # fmt: skip
        settings: Mapping[str, Any] = {
            "postgres": {
                "dsn": postgres.dsn(host_port=f"127.0.0.1:{postgres_relay.port}"), "schema_name": SCHEMA, "timeout_s": CALL_S,
                "connections_max": CONNECTIONS,
            },
            "s3": {
                "bucket": BUCKET, "endpoint": f"http://127.0.0.1:{s3_relay.port}", "region": REGION, "addressing_style": "path",
                "timeout_s": CALL_S,
            },
            "changelog": "postgres",
        }
        settings = self._provisioned(portal, settings)
        self.stored: StoredInServers = StoredInServers(
            portal, postgres.dsn(), SCHEMA, f"http://127.0.0.1:{s3.port}", CREDENTIALS, BUCKET, GRACE_S
        )
        return settings


class S3Process:
    """versitygw over a directory, always on the same port."""

    def __init__(self, directory: Path, log: Path) -> None:
        self.port = free_port()
        self._directory = directory
        self._log = log
        self._command: list[str] = []
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._running is not None, "it runs"
        return self._running.pid

    @contextmanager
    def running(self, call: Any) -> Iterator[S3Process]:
        """Runs it until the end of the block. `call`: runs a coroutine function elsewhere."""
        self._command = call(versitygw, self._directory, self.port)
        try:
            self.start()
            yield self
        finally:
            self.kill()

    def start(self) -> None:
        """Starts it, and returns when it takes connections."""
        with self._log.open("ab") as said:
            self._running = subprocess.Popen(
                ["sh", "-c", WITH_WARDEN, "sh", *self._command], stdin=subprocess.PIPE, stdout=said, stderr=said, start_new_session=True
            )
        give_up_at = time.monotonic() + START_S
        while not _listens(self.port):
            if self._running.poll() is not None or time.monotonic() > give_up_at:
                raise ConfigurationError(f"versitygw does not start, see {self._log}")
            time.sleep(0.02)

    def kill(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        running.kill()
        running.wait()
        assert running.stdin is not None
        with suppress(BrokenPipeError):
            running.stdin.close()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=START_S):
        return True
    return False


@contextmanager
def _postgres(log: Path) -> Iterator[PostgresServer]:
    """A server that loses nothing when it is killed. What it said is kept in `log`."""
    with server_directory() as directory:
        server = PostgresServer(directory, (*SAFE, "synchronous_commit=on"))
        server.create()
        try:
            server.start()
            yield server
        finally:
            server.stop()
            with suppress(OSError):
                shutil.copyfile(directory / "log", log)


def _freeze_all(postmaster: int) -> None:
    """Stops the first process, which starts all others, and then these."""
    freeze(postmaster)
    for pid in _children(postmaster):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)


def _thaw_all(postmaster: int) -> None:
    for pid in [*_children(postmaster), postmaster]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
