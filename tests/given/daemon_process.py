"""A recovery daemon in a process of its own, with its HTTP server, and what it answers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

PATIENCE_S = 60.0
"""More than anything here takes on a machine that is busy with other work."""

QUICK = {
    "TIERED_LEASE__EXPIRY_S": "0.3", "TIERED_RECOVERY__IDLE_S": "0.05", "TIERED_RECOVERY__LATE_UPLOAD_GRACE_S": "0.1",
}  # fmt: skip
HURRIED = {"recovery.http.sampler.EVERY_S": 0.25}
"""How often its server looks at the store, in seconds: a constant, because nobody should set it."""

_PROGRAM = """
import json, sys
from importlib import import_module
for name, value in json.loads(sys.argv.pop(1)).items():
    module, _, constant = name.rpartition(".")
    assert getattr(import_module(module), constant) > value
    setattr(import_module(module), constant, value)
from recovery.cli.main import main
main()
"""
_URL = re.compile(r"http_started\b.* url=(http://\S+)")


@dataclass(slots=True)
class DaemonProcess:
    """`url`: of its server, with a slash at its end. `log`: the file that has its stderr."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    @property
    def port(self) -> int:
        return httpx.URL(self.url).port or 80

    def get(self, address: str) -> httpx.Response:
        # It speaks plain HTTP. To load certificates at each call takes longer than the call.
        return httpx.get(f"{self.url}{address}", timeout=PATIENCE_S, trust_env=False, verify=False)

    def status(self) -> dict[str, Any]:
        return dict(self.get("status.json").json())

    def until(self, holds: Callable[[dict[str, Any]], bool], address: str = "status.json") -> dict[str, Any]:
        """The answer of that address, as soon as `holds` is true of it."""
        said: dict[str, Any] = {}

        def look() -> bool:
            said.clear()
            said.update(self.get(address).json())
            return holds(said)

        wait_for(look, said)
        return said

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends the signal, and returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


def wait_for(holds: Callable[[], bool], said: object = None) -> None:
    """Asks often at first and then four times a second, because each question costs a daemon and this process time."""
    deadline, pause_s = time.monotonic() + PATIENCE_S, 0.05
    while not holds():
        assert time.monotonic() < deadline, json.dumps(said, indent=1, default=str)
        time.sleep(pause_s)
        pause_s = min(0.25, pause_s * 1.2)


def hurried(constants: Mapping[str, float]) -> list[str]:
    """How a command line begins that runs `tiered` with these constants, in seconds, less than they are."""
    return [sys.executable, "-c", _PROGRAM, json.dumps(dict(constants))]


@contextmanager
def running_daemon(
    directory: Path, *arguments: str, port: int = 0, environment: Mapping[str, str] | None = None,
    constants: Mapping[str, float] | None = None,
) -> Iterator[DaemonProcess]:
    """Starts `tiered recover --http-port PORT`, waits until it listens, and kills it at the end if it still runs.

    `directory`: holds the store and the daemon's log. `constants`: more that are hurried.
    """
    log = directory / f"daemon-{time.monotonic_ns()}.log"
    known = {name: value for name, value in os.environ.items() if not name.startswith("TIERED_")}
    where = {"TIERED_DIRECTORY": str(directory / "store")} | QUICK if environment is None else dict(environment)
    command = [*hurried(HURRIED | dict(constants or {})), *arguments, "recover", "--http-port", str(port)]
    with log.open("wb") as errors, subprocess.Popen(command, env=known | where, stderr=errors, stdout=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: process.poll() is not None or _URL.search(log.read_text()) is not None)
            started = _URL.search(log.read_text())
            assert started is not None, log.read_text()
            yield DaemonProcess(process, started[1], log)
        finally:
            process.kill()
