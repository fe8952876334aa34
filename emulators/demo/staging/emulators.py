"""The demo's backend on the emulators of Bigtable and GCS, which run in processes of their own and can be made to fail.

    writers, daemons --> relay --> Bigtable emulator
    writers, daemons --> relay --> GCS emulator
    director, check  ------------> both, directly

SIGSTOP freezes an emulator. Its relay cuts or delays connections. *Crash*: the emulators keep everything in memory;
warden processes end them when this process ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

from emulators.bigtable.emulator import EmulatorFailedError, freeze, start_bigtable
from emulators.demo.checking.google import StoredInGoogle
from emulators.demo.staging.relay import Relay, relayed, steps_of
from emulators.demo.staging.stage import CALL_S, EMULATORS, GRACE_S, Service, ServicesStage
from emulators.demo.staging.troupe import environment
from emulators.go import WITH_WARDEN

NAMES = {"project": "tiered-demo", "instance": "demo", "table": "tiered", "changelog_table": "tiered-changelog"}
BUCKET = "tiered-demo"


class EmulatorStage(ServicesStage):
    backend = EMULATORS
    are, keepers = "and the emulators of Bigtable and GCS, which are frozen and cut off", "emulators"

    def _raise(self) -> Mapping[str, Any]:
        enter = self._standing.enter_context
        portal = enter(start_blocking_portal())
        said = enter((self.log / "bigtable.log").open("wb"))
        bigtable = enter(portal.wrap_async_context_manager(start_bigtable(own=True, said=said)))
        gcs_pid, gcs_port = enter(_started_gcs(self.log / "gcs.log"))
        assert bigtable.pid is not None, "our own"
        bigtable_relay = enter(portal.wrap_async_context_manager(relayed(int(bigtable.host.rpartition(":")[2]))))
        gcs_relay = enter(portal.wrap_async_context_manager(relayed(gcs_port)))
        self.services = (
            _service("bigtable", bigtable.pid, portal, bigtable_relay), _service("gcs", gcs_pid, portal, gcs_relay),
        )
        settings: Mapping[str, Any] = {
            "bigtable": {**NAMES, "emulator_host": f"127.0.0.1:{bigtable_relay.port}", "timeout_s": CALL_S},
            "gcs": {"bucket": BUCKET, "endpoint": f"http://127.0.0.1:{gcs_relay.port}", "timeout_s": CALL_S},
            "changelog": "bigtable",
        }
        settings = self._provisioned(portal, settings)
        self.stored: StoredInGoogle = enter(StoredInGoogle(bigtable.host, f"127.0.0.1:{gcs_port}", NAMES, BUCKET, GRACE_S))
        return settings


def _service(name: str, pid: int, portal: BlockingPortal, relay: Relay) -> Service:
    return Service(name, partial(freeze, pid), partial(os.kill, pid, signal.SIGCONT), *steps_of(relay, portal))


@contextmanager
def _started_gcs(log: Path) -> Iterator[tuple[int, int]]:
    """Starts the GCS emulator. Yields its process id and its port."""
    command = ["sh", "-c", WITH_WARDEN, "sh", sys.executable, "-m", "emulators.demo.staging.gcs"]
    with (
        log.open("wb") as said,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, start_new_session=True, env=environment()
        ) as running,
    ):
        assert running.stdin is not None and running.stdout is not None
        try:
            address = running.stdout.readline().decode().strip()
            if not address:
                raise EmulatorFailedError(f"the GCS emulator did not start, see {log}")
            yield running.pid, int(address.rpartition(":")[2])
        finally:
            with suppress(BrokenPipeError):  # the warden has ended already
                running.stdin.write(b"\n")
                running.stdin.flush()
            running.kill()
