"""What a simulated world needs of its rows and its changelog, whichever they are.

    Stack              rows and log, open to inspection, and each process's own way to them, on which faults happen
    SimulatedStack     `SimulatedRows` and `SimulatedChangeLog`: a call of the protocol is one request
    BigtableStack      in `emulators.bigtable.stack`: the real adapters, a request of which is a message to a `MemoryBigtable`
"""

from __future__ import annotations

from typing import Protocol, Self

from changelog.base.runtime import Runtime
from changelog.change import ChangeId
from changelog.log import ChangeLog
from emulators.world.faults import Process
from emulators.world.log import SimulatedChangeLog, Stored
from emulators.world.rows import SimulatedRows
from emulators.world.runtime import Observer
from tiered.protocol.backends import HighVolumeBackend, Inline, Tombstone


class InspectedRows(HighVolumeBackend, Protocol):
    """As `SimulatedRows`: what each row holds, its marks and when they were made, and who is told of each effect."""

    states: dict[str, Inline | Tombstone]
    won: dict[str, dict[ChangeId, int]]
    refused: dict[str, dict[ChangeId, int]]
    observers: list[Observer]

    async def collect(self, limit: int) -> int:
        """Removes up to so much of what the service may remove. Returns how much."""


class InspectedLog(ChangeLog, Protocol):
    """As `SimulatedChangeLog`: what is stored, by key, who announced itself when, and who is told of each effect."""

    stored: dict[str, Stored]
    presence: dict[str, int]
    observers: list[Observer]

    def sharded(self, shards: int) -> Self:
        """The same log, as processes see it that record under so many shards."""

    async def collect(self, limit: int) -> int:
        """Removes up to so many presence rows that are old enough. Returns how many."""


class Stack(Protocol):
    """`rows` and `log` themselves are without faults. `shards`: under how many a process records; None: as this software does."""

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
