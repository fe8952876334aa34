"""Starts both emulators and makes the tables and the bucket in them.

    async with start_emulators() as settings: ...      for tests: the settings contain both addresses
    python -m emulators up                             by hand: until SIGINT or SIGTERM (`emulators.__main__`)

The emulators keep everything in memory. *Crash*: if this process is killed, even by kill -9, a warden process kills the
Bigtable emulator; the GCS emulator runs in this process. *Failure*: a taken port, a missing Bigtable emulator and names
that cannot be provisioned give one sentence for each of them, and nothing keeps running. Only asyncio, like the GCS
emulator.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from changelog.base.errors import ConfigurationError
from emulators.bigtable.emulator import EmulatorFailedError, start_bigtable
from emulators.gcs.server import GcsEmulator
from tiered.kinds.chosen import provision
from tiered.provision.findings import problems
from tiered.settings import BIGTABLE_EMULATOR, GCS_EMULATOR, BigtableSettings, GcsSettings, Settings

BUILT_IN = Settings(
    changelog="bigtable",
    bigtable=BigtableSettings(project="emulated-project", instance="emulated", emulator_host=None),
    gcs=GcsSettings(bucket="tiered-blobs", endpoint=None),
)
"""The names in deploy/emulators.yaml."""


@asynccontextmanager
async def start_emulators(names: Settings = BUILT_IN, *, bigtable_port: int = 0, gcs_port: int = 0) -> AsyncIterator[Settings]:
    """Starts two emulators on loopback, with tables and bucket, and yields `names` with their addresses in it.

    Port 0 means any free port. If `BIGTABLE_EMULATOR_HOST` is set, that emulator is used, and is left running.

    Raises `ConfigurationError` if the settings do not name Bigtable and GCS, `EmulatorNotFoundError` if there is no
    Bigtable emulator on this machine, and `EmulatorFailedError` if one does not start or cannot be provisioned.
    """
    if names.bigtable is None or names.gcs is None:
        raise ConfigurationError("this store is in a directory, which needs no emulators: give settings with the sections bigtable and gcs")
    for port, option in ((bigtable_port, "bigtable_port"), (gcs_port, "gcs_port")):
        _refuse_taken(port, option)
    async with start_bigtable(bigtable_port) as bigtable, GcsEmulator(gcs_port) as gcs:
        at = names.model_copy(update={
            "bigtable": names.bigtable.model_copy(update={"emulator_host": bigtable.host}),
            "gcs": names.gcs.model_copy(update={"endpoint": gcs.url}),
        })
        if wrong := problems(await provision(at)):
            raise EmulatorFailedError("; ".join(wrong))
        yield at


async def run(names: Settings, bigtable_port: int, gcs_port: int) -> None:
    """Starts both, prints their addresses as Google's two variables, and runs until SIGINT or SIGTERM.

    When it returns, both emulators have ended.
    """
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_serve, names, bigtable_port, gcs_port)
            await anext(signals)
            tasks.cancel_scope.cancel()


async def _serve(names: Settings, bigtable_port: int, gcs_port: int) -> None:
    async with start_emulators(names, bigtable_port=bigtable_port, gcs_port=gcs_port) as at:
        assert at.bigtable is not None and at.gcs is not None
        sys.stdout.write(f"{BIGTABLE_EMULATOR}={at.bigtable.emulator_host}\n{GCS_EMULATOR}={at.gcs.endpoint}\n")
        sys.stdout.flush()
        sys.stderr.write("emulators: both are up, and forget everything when they are stopped (Ctrl-C)\n")
        await anyio.sleep_forever()


def _refuse_taken(port: int, option: str) -> None:
    """Raises `EmulatorFailedError` if the port is taken. Asked first, since each server would say it in other words."""
    if port == 0:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise EmulatorFailedError(f"{option} {port} cannot be had: {error.strerror}; stop who has it, or give another") from None
