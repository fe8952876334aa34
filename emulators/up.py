"""Starts both emulators and makes the tables and the bucket in them.

    async with start_emulators() as settings: ...      for tests: the settings contain both addresses
    python -m emulators up                             by hand: until SIGINT or SIGTERM (`emulators.__main__`)

The emulators keep everything in memory. *Crash*: if this process is killed, even by kill -9, a warden process kills the
Bigtable emulator; the GCS emulator runs in this process. *Failure*: a taken port, a missing Bigtable emulator and names
that cannot be provisioned give one sentence for each of them, and nothing keeps running. Only asyncio, like the GCS
emulator.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from changelog.base.errors import ConfigurationError
from emulators.bigtable.emulator import EmulatorFailedError, start_bigtable
from emulators.gcs.server import GcsEmulator
from emulators.ports import refuse_taken
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
    Bigtable emulator on this machine, `PortTakenError`, and `EmulatorFailedError` if one does not start or cannot be
    provisioned.
    """
    if names.bigtable is None or names.gcs is None:
        raise ConfigurationError("this store is in a directory, which needs no emulators: give settings with the sections bigtable and gcs")
    refuse_taken(bigtable_port, "bigtable_port")
    refuse_taken(gcs_port, "gcs_port")
    async with start_bigtable(bigtable_port) as bigtable, GcsEmulator(gcs_port) as gcs:
        at = names.model_copy(update={
            "bigtable": names.bigtable.model_copy(update={"emulator_host": bigtable.host}),
            "gcs": names.gcs.model_copy(update={"endpoint": gcs.url}),
        })
        if wrong := problems(await provision(at)):
            raise EmulatorFailedError("; ".join(wrong))
        yield at


def variables(at: Settings) -> Mapping[str, str]:
    """Returns what leads a store with these names here: Google's two variables."""
    assert at.bigtable is not None and at.gcs is not None
    return {BIGTABLE_EMULATOR: str(at.bigtable.emulator_host), GCS_EMULATOR: str(at.gcs.endpoint)}
