"""The demo's backend on the emulators of Bigtable and GCS, which run in processes of their own and can be made to fail.

    writers, daemons --> relay --> Bigtable emulator
    writers, daemons --> relay --> GCS emulator
    director, check  ------------> both, directly

SIGSTOP freezes an emulator. Its relay cuts or delays connections. A frozen server keeps the requests that it was sent,
so a request may take effect after it has timed out. Therefore a call's time limit (CALL_S) is shorter than a freeze,
and the entry of an aborted upload is kept until nothing of it can arrive any more (GRACE_S). *Crash*: the emulators
keep everything in memory; warden processes end them when this process ends.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

from changelog.base.errors import ConfigurationError
from emulators.bigtable.emulator import EmulatorFailedError, freeze, start_bigtable
from emulators.demo.checking.google import StoredInGoogle
from emulators.demo.staging.relay import Relay, relayed, steps_of
from emulators.demo.staging.stage import EMULATORS, DemoStage, Service
from emulators.demo.staging.troupe import environment
from emulators.go import WITH_WARDEN
from tiered.kinds.chosen import provision
from tiered.provision.findings import problems
from tiered.settings import Settings

CALL_S = 1.0
GRACE_S = 8.0
"""In seconds. Longer than a process is stopped, plus the longest delay of its last request."""

NAMES = {"project": "tiered-demo", "instance": "demo", "table": "tiered", "changelog_table": "tiered-changelog"}
BUCKET = "tiered-demo"


class EmulatorStage(DemoStage):
    backend = EMULATORS
    pause_s = (0.4, 1.2)
    rest_s = GRACE_S

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
        settings: dict[str, Any] = {
            "bigtable": {**NAMES, "emulator_host": f"127.0.0.1:{bigtable_relay.port}", "timeout_s": CALL_S},
            "gcs": {"bucket": BUCKET, "endpoint": f"http://127.0.0.1:{gcs_relay.port}", "timeout_s": CALL_S},
            "changelog": "bigtable",
        }
        if wrong := problems(portal.call(provision, Settings(**settings))):
            raise ConfigurationError("\n".join(wrong))
        self.stored: StoredInGoogle = enter(StoredInGoogle(bigtable.host, f"127.0.0.1:{gcs_port}", NAMES, BUCKET, GRACE_S))
        return settings | {"recovery": {"late_upload_grace_s": GRACE_S}}

    def introduce(self) -> str:
        return (
            "Real processes and signals, and the emulators of Bigtable and GCS, which are frozen and cut off now and then;"
            f" logs in {self.root}"
        )

    def farewell(self) -> str:
        return f"Logs and journals are in {shlex.quote(str(self.root))}; what was stored is gone with the emulators."

    def may_stand_still(self) -> bool:
        return True


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
