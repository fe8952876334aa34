"""`memory_storage` and `blocking_memory_storage`: the real store over tiers in memory, for tests of services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
from anyio.lowlevel import current_token

import tiered.sync.storage
from changelog.base.errors import CancelledElsewhereError, InvalidRequestError
from changelog.base.home_loop import left_at_home
from changelog.base.tasks import wait_out
from tiered.limits.admission import Admission, Share, Slot
from tiered.object_id import ObjectId, ObjectPrefix
from tiered.services.backends import ByteRange, HighVolumeBackend, Tiers
from tiered.settings import Settings
from tiered.storage import TieredStorage
from tiered.stored import Progress, StoredObject
from tiered.sync.loop import LoopThread
from tiered.sync.open import Opening
from tiered.testing.blobs import MemoryBlobs
from tiered.testing.clock import Clock
from tiered.testing.faults import READ, Faults, FaultyRows, Naming, strike, torn
from tiered.testing.log import MemoryChangeLog
from tiered.testing.rows import MemoryRows
from tiered.text import quoted

NOWHERE = Path("memory")


class MemoryStorage(TieredStorage):
    """A `TieredStorage` whose rows, blobs and changelog are in memory. `faults`: what goes wrong. `clock`: its time."""

    def __init__(self, settings: Settings) -> None:
        self.faults = Faults()
        self.clock = Clock()
        rows = cast(HighVolumeBackend, FaultyRows(MemoryRows(self.clock)))
        tiers = Tiers(rows, MemoryBlobs(self.clock))
        super().__init__(tiers, MemoryChangeLog(self.clock), self.clock, settings, observer=Naming())

    async def _enter(self, admission: Admission | Share, *named: ObjectId | ObjectPrefix, moves: bool = False, waits: bool = False) -> Slot:
        slot = await super()._enter(admission, *named, moves=moves, waits=waits)
        try:
            strike(self.faults)
        except BaseException:
            slot.release()
            raise
        return slot

    async def _get(
        self, admission: Admission | Share, object_id: ObjectId, range: ByteRange | None = None, progress: Progress | None = None,
        *, decompress: bool,
    ) -> StoredObject | None:  # fmt: skip
        stored = await super()._get(admission, object_id, range, progress, decompress=decompress)
        if stored is not None and (fault := self.faults.take(READ)) is not None:
            stored._chunks = torn(stored._chunks, fault.error)
        return stored


class BlockingMemoryStorage(tiered.sync.storage.SyncTieredStorage):
    """A `tiered.sync.TieredStorage` in memory. `faults`: what goes wrong. `clock`: its time."""

    def __init__(self, loop: LoopThread, storage: MemoryStorage) -> None:
        super().__init__(loop, storage)
        self.faults = storage.faults
        self.clock = storage.clock


@left_at_home("this storage")
@asynccontextmanager
async def memory_storage(settings: Settings | None = None) -> AsyncIterator[MemoryStorage]:
    """Opens an empty store in memory: `async with memory_storage() as storage`. It is gone when the block ends.

    It runs on trio and on asyncio, where another task may leave it, as pytest-asyncio tears a fixture down.
    `settings`: for other limits, such as `inline_bytes_max`; its directory is not touched. Every operation is the real
    one, over tiers that pass the contract suites of all backends. There is no recovery daemon: after a fault, what it
    would clean up stays there.
    """
    if not isinstance(settings, Settings | None):
        raise InvalidRequestError(f"settings is Settings(…) or None, not {quoted(settings)}")
    storage = MemoryStorage(settings or Settings(directory=NOWHERE))
    async with _in_a_task_of_its_own(storage) if hasattr(current_token().native_token, "create_task") else storage:
        yield storage


@asynccontextmanager
async def _in_a_task_of_its_own(storage: MemoryStorage) -> AsyncIterator[None]:
    """A storage has a task group, which one task enters and leaves. Of trio, anyio's plugin sees to it."""
    loop: Any = current_token().native_token
    opened, leave, ended = anyio.Event(), anyio.Event(), anyio.Event()

    async def live() -> None:
        async with storage:
            opened.set()
            await leave.wait()

    def end(_: object) -> None:
        opened.set()  # it may fail to open
        ended.set()

    task = loop.create_task(live())
    task.add_done_callback(end)
    try:
        await opened.wait()
        if not task.done():
            yield
    finally:
        leave.set()
        await wait_out(ended)
        if task.cancelled():  # by name, as a program does that cancels all tasks it can find
            raise CancelledElsewhereError("the task in which this storage was open was cancelled, and so it was closed")
        await task


def blocking_memory_storage(settings: Settings | None = None) -> Opening[MemoryStorage, BlockingMemoryStorage]:
    """Opens an empty store in memory for blocking callers: `with blocking_memory_storage() as storage`.

    `settings`: as in `memory_storage`.
    """
    return Opening(lambda: memory_storage(settings), BlockingMemoryStorage, "blocking_memory_storage")
