"""For tests of services that use the store, and of backends. A caller imports everything from here.

    async with memory_storage() as storage:
        storage.faults.fail("put", OutcomeUnknownError, took_effect=True)
        storage.clock.advance(timedelta(days=31))

    in_memory.py             begin here: the real store over tiers in memory
    faults.py, clock.py      faults on demand, and a clock that can be put forward
    fixtures.py              fixtures for pytest; the only module here that needs it
    rows.py, blobs.py, log.py    the tiers and the changelog in memory; service.py is what they have in common
    contracts/               what every backend must do: a suite for each protocol

The simulation (`emulators/world`) puts its network in front of these tiers.
"""

from tiered.testing.clock import Clock
from tiered.testing.faults import Faults
from tiered.testing.in_memory import BlockingMemoryStorage, MemoryStorage, blocking_memory_storage, memory_storage

__all__ = ["BlockingMemoryStorage", "Clock", "Faults", "MemoryStorage", "blocking_memory_storage", "memory_storage"]
