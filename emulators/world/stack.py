"""What a simulated world needs of its rows, changelog and blobs, whichever implementation it uses.

    Stack              rows and log with a visible state, and each process's own way to them, on which faults happen
    SimulatedStack     `SimulatedRows` and `SimulatedChangeLog`: a call of the protocol is one request
    BlobBucket         the same for blobs; WorldBucket, in `emulators.s3.stack`, has the real adapter of S3
    BigtableStack      in `emulators.bigtable.stack`: the real adapters; a request is a message to a `MemoryBigtable`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from changelog.log import ChangeLog
from emulators.world.faults import Process
from emulators.world.services import SimulatedChangeLog, SimulatedRows
from tiered.metadata import Metadata
from tiered.services.backends import HighVolumeBackend, Inline, LongTermBackend, Tombstone
from tiered.testing.blobs import Blob
from tiered.testing.log import StoredEntry
from tiered.testing.service import Observer


class InspectedRows(HighVolumeBackend, Protocol):
    """Rows with a visible state, as `SimulatedRows`: what each row holds, its marks with their times, and observers."""

    states: dict[str, Inline | Tombstone]
    won: dict[str, dict[ChangeId, int]]
    refused: dict[str, dict[ChangeId, int]]
    observers: list[Observer]

    async def collect(self, limit: int) -> int:
        """Removes up to `limit` of what the service may remove. Returns how many."""


class InspectedLog(ChangeLog, Protocol):
    """A log with a visible state, as `SimulatedChangeLog`: the stored rows, who announced itself when, the notes,
    the values with their versions (None: removed), and observers.
    """

    stored: dict[str, StoredEntry]
    presence: dict[str, int]
    notes: dict[str, bytes]
    values: dict[str, tuple[bytes | None, int]]
    observers: list[Observer]

    def sharded(self, shards: int) -> Self:
        """Returns the same log, as processes see it that record under this many shards."""

    async def collect(self, limit: int) -> int:
        """Removes up to `limit` presence rows and removed values that are old enough. Returns how many."""


class InspectedBlobs(LongTermBackend, Protocol):
    """Blobs with a visible state, as `SimulatedBlobs`."""

    collect_after_s: float
    blobs: dict[str, Blob]
    collected: set[str]
    strays: set[str]
    observers: list[Observer]

    @property
    def uploads(self) -> Mapping[str, Any]: ...
    @property
    def in_parts(self) -> Mapping[str, Any]: ...
    async def collect(self, limit: int) -> int:
        """Removes up to `limit` of what has expired. Returns how many."""

    def plant(self, name: str, metadata: Metadata, payload: bytes) -> None:
        """Makes a blob at once."""


class BlobBucket(Protocol):
    """The blobs of a world, if they are not simulated. `blobs` themselves have no faults."""

    @property
    def blobs(self) -> InspectedBlobs: ...
    def blobs_of(self, process: Process) -> LongTermBackend: ...


class Stack(Protocol):
    """The rows and the log of a world. `rows` and `log` themselves have no faults.

    `shards`: under how many shards a process records; None: as this software does.
    """

    @property
    def rows(self) -> InspectedRows: ...
    @property
    def log(self) -> InspectedLog: ...
    def rows_of(self, process: Process) -> HighVolumeBackend: ...
    def log_of(self, process: Process, shards: int | None = None) -> ChangeLog: ...


class SimulatedStack:
    """Implements `Stack`. `runtime` is the services'. `horizon`: see `SimulatedRows`."""

    def __init__(self, runtime: Runtime, *, horizon: bool = True) -> None:
        self.rows = SimulatedRows(runtime, horizon=horizon)
        self.log = SimulatedChangeLog(runtime)

    def rows_of(self, process: Process) -> HighVolumeBackend:
        return process.link.rows(self.rows)

    def log_of(self, process: Process, shards: int | None = None) -> ChangeLog:
        return process.link.log(self.log if shards is None else self.log.sharded(shards))
