"""A store on Bigtable in memory and on our server of the GCS API, and all bytes that lie in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.cloud.bigtable_admin_v2.types import GcRule

from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable
from changelog.bigtable.log import BigtableChangeLog
from changelog.bigtable.row_merge import Cell
from changelog.log import ChangeLog
from emulators.bigtable.memory import MemoryBigtable, MemoryChannel, MemoryTable
from emulators.gcs.server import GcsEmulator
from emulators.gcs.store import Bucket
from tiered.bigtable.cells import LEGACY_FAMILIES
from tiered.bigtable.rows import BigtableRows
from tiered.gcs.blobs import GcsBlobs
from tiered.provision.schema import FAMILIES
from tiered.services.backends import Tiers
from tiered.settings import Settings
from tiered.storage import TieredStorage

TABLE, BUCKET = "table", "blobs"
SETTINGS = Settings(directory=Path("unused"), changelog="noop", inline_bytes_max=100)
MAY_HAVE = {**FAMILIES, **dict.fromkeys(LEGACY_FAMILIES, GcRule())}


class TimeOfDay(SystemRuntime):
    """The machine's clocks, but the time of day is what a test has set (ns since 1970). None: the machine's."""

    def __init__(self, now_ns: int | None = None) -> None:
        super().__init__()
        self.now_ns = now_ns

    def wall_ns(self) -> int:
        return super().wall_ns() if self.now_ns is None else self.now_ns


@dataclass(slots=True)
class StoredBytes:
    """The deployment. `opened` opens a store on it."""

    runtime: TimeOfDay
    server: MemoryBigtable
    bucket: Bucket
    table: BigtableTable
    blobs: GcsBlobs

    @property
    def log(self) -> BigtableChangeLog:
        return BigtableChangeLog(self.table, self.runtime)

    @property
    def held(self) -> MemoryTable:
        return self.server.tables[TABLE]

    def opened(self, log: ChangeLog | None = None, *, writes: bool = True) -> TieredStorage:
        """A store. `log`: its changelog; None: one in the same table."""
        tiers = Tiers(BigtableRows(self.table, self.runtime, LEGACY_FAMILIES), self.blobs)
        return TieredStorage(tiers, log or self.log, self.runtime, SETTINGS, writes=writes)

    def rows(self) -> dict[str, tuple[Cell, ...]]:
        return {key.decode(): cells for key, cells in self.held.rows.items()}

    def resources(self) -> dict[str, dict[str, Any]]:
        """What the service tells of each blob."""
        return {name: stored.resource() for name, stored in self.bucket.objects.items()}

    def on_change(self, tell: Callable[[str], None]) -> None:
        """`tell` is called with the key of each row that changes, when it has just changed."""
        self.server.changed.append(lambda table, key, cause: tell(key.decode()))


@asynccontextmanager
async def stored_bytes(now_ns: int | None = None) -> AsyncIterator[StoredBytes]:
    runtime = TimeOfDay(now_ns)
    server = MemoryBigtable(runtime, {TABLE: MAY_HAVE})
    async with GcsEmulator(runtime=runtime) as gcs:
        bucket = gcs.create_bucket(BUCKET)
        async with GcsBlobs.connect(BUCKET, runtime, endpoint=gcs.url) as blobs:
            yield StoredBytes(runtime, server, bucket, BigtableTable(MemoryChannel(server), TABLE), blobs)
