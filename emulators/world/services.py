"""The services of a simulated world: those of `tiered/testing`, which keep everything in memory, behind a network."""

from __future__ import annotations

from emulators.world.runtime import SimulatedService
from tiered.testing.blobs import MemoryBlobs
from tiered.testing.log import MemoryChangeLog
from tiered.testing.rows import MemoryRows


class SimulatedRows(SimulatedService, MemoryRows):
    """The high-volume tier of a world."""


class SimulatedBlobs(SimulatedService, MemoryBlobs):
    """The long-term tier of a world."""


class SimulatedChangeLog(SimulatedService, MemoryChangeLog):
    """The changelog of a world."""
