"""The services of a simulated world: those of `tiered/testing`, which keep everything in memory, behind a network."""

from __future__ import annotations

from emulators.world.runtime import Simulated
from tiered.testing.blobs import MemoryBlobs
from tiered.testing.log import MemoryChangeLog
from tiered.testing.rows import MemoryRows


class SimulatedRows(Simulated, MemoryRows):
    """The high-volume tier of a world."""


class SimulatedBlobs(Simulated, MemoryBlobs):
    """The long-term tier of a world."""


class SimulatedChangeLog(Simulated, MemoryChangeLog):
    """The changelog of a world."""
