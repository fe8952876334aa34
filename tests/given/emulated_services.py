"""Bigtable's and GCS's emulators for tests whose workers, or whose Arrow, talk to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from emulators.up import BUILT_IN
from tests.given.processes import StartedProcess
from tests.given.repository import ROOT
from tiered.settings import Settings


@contextmanager
def emulated_services(monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """The emulators, in a process of their own, and a bucket `audits` for runs.

    Arrow's client holds the interpreter's lock while it waits for an answer.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # both are its own: other tests fill the tables of `bigtable_host`
    command = [sys.executable, "-m", "emulators", "up", "--gcs-port", "0", "--bigtable-port", "0"]
    with StartedProcess(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env=environment) as up:
        assert up.stdout is not None
        addresses = dict(up.stdout.readline().strip().split("=") for _ in range(2))
        for name, address in addresses.items():
            monkeypatch.setenv(name, address)
        endpoint = addresses["STORAGE_EMULATOR_HOST"]
        make = urllib.request.Request(f"{endpoint}/storage/v1/b?project=p", json.dumps({"name": "audits"}).encode(), method="POST")
        urllib.request.urlopen(make).close()
        assert BUILT_IN.bigtable is not None and BUILT_IN.gcs is not None
        try:
            yield Settings(
                changelog="bigtable", inline_bytes_max=1,
                bigtable=BUILT_IN.bigtable.model_copy(update={"emulator_host": addresses["BIGTABLE_EMULATOR_HOST"]}),
                gcs=BUILT_IN.gcs.model_copy(update={"endpoint": endpoint}),
            )  # fmt: skip
        finally:
            up.send_signal(signal.SIGTERM)
