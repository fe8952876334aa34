"""The emulator dies, or stops for a while, under a store at work.

What callers are told, that closing ends, and what is left.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import NoneType

import anyio
import pytest

from changelog.base.errors import TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import NEWEST, BigtableTable, KeySpan, insecure_channel, set_cell
from changelog.bigtable.log import BigtableChangeLog
from emulators.bigtable.emulator import BigtableEmulator, provision, start_bigtable
from emulators.world.services import SimulatedBlobs
from recovery.loop import RecoveryLoop
from tiered.bigtable.rows import BigtableRows
from tiered.errors import OutcomeUnknownError
from tiered.object_id import ObjectId, blob_name
from tiered.protocol.writing import Outcome
from tiered.services.backends import Tiers
from tiered.services.retry import retry
from tiered.settings import LeaseSettings, RecoverySettings, Settings, StoreSettings
from tiered.storage import TieredStorage

pytestmark = pytest.mark.anyio

RUNTIME = SystemRuntime()
SMALL, LARGE = b"small", b"large" * 100
TABLE = "projects/test/instances/emulated/tables/both"
BUDGET_S = 2.5
SETTINGS = Settings(
    directory=Path("emulated"), changelog="noop", inline_bytes_max=100,
    store=StoreSettings(answer_budget_s=BUDGET_S, drain_budget_s=2.0),
    recovery=RecoverySettings(rate_per_s=10_000, attempts_max=50, late_upload_grace_s=0.2),
)  # fmt: skip
SOON = SETTINGS.model_copy(update={"lease": LeaseSettings(expiry_s=0.5)})
"""Recovery takes over what nobody renews any more. A writer with so short a lease would lose it in a pause of this
process, and before the emulator is away no call may fail.
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Private:
    """An emulator that no other test uses, and a store on it whose calls have little time."""

    emulator: BigtableEmulator
    tiers: Tiers
    log: BigtableChangeLog
    hasty: TieredStorage
    blobs: SimulatedBlobs
    told: dict[str, TieredError | None] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        assert self.emulator.pid is not None
        return self.emulator.pid

    def patient(self) -> TieredStorage:
        return TieredStorage(self.tiers, self.log, RUNTIME, SETTINGS)

    async def drain(self) -> None:
        """Recovery, until it has nothing left to do."""
        recovery = RecoveryLoop(self.tiers, self.log, RUNTIME, SOON)
        with anyio.fail_after(30):
            while (await self.log.entries("", 100)).entries:
                await recovery.run_once()

    async def tell(self, name: str, operation: Callable[[], Awaitable[object]]) -> None:
        """What its caller is told, by a name of its own."""
        try:
            await operation()
            self.told[name] = None
        except TieredError as error:
            self.told[name] = error


@asynccontextmanager
async def private() -> AsyncIterator[Private]:
    async with start_bigtable() as emulator:
        if emulator.pid is None:
            pytest.skip("the emulator is somebody else's: unset BIGTABLE_EMULATOR_HOST to start one that may be killed")
        await provision(emulator.host, "test", "emulated", "both", "both")
        async with insecure_channel(emulator.host) as channel:
            blobs = SimulatedBlobs(RUNTIME)
            table, slow = BigtableTable(channel, TABLE, timeout_s=0.3), BigtableTable(channel, TABLE)
            hasty = TieredStorage(Tiers(BigtableRows(table, RUNTIME), blobs), BigtableChangeLog(table, RUNTIME), RUNTIME, SETTINGS)
            yield Private(emulator, Tiers(BigtableRows(slow, RUNTIME), blobs), BigtableChangeLog(slow, RUNTIME), hasty, blobs)


def every_sentence(error: BaseException | None) -> str:
    return "" if error is None else f"{error} {every_sentence(error.__cause__)}"


async def test_an_emulator_that_is_killed_makes_every_call_fail_with_its_address_and_the_store_still_closes() -> None:
    async with private() as world:
        begun = anyio.Event()

        async def endless() -> AsyncIterator[bytes]:
            yield LARGE
            begun.set()
            await anyio.sleep_forever()
            yield b""

        async def broken() -> AsyncIterator[bytes]:
            yield LARGE
            os.kill(world.pid, signal.SIGKILL)
            yield LARGE

        with anyio.fail_after(30):
            async with world.hasty as storage:
                ids = {name: ObjectId.create("notes", name) for name in ("small", "large", "read", "streaming", "late", "deleted")}
                for object_id in ids.values():
                    await storage.put(object_id, LARGE)
                async with anyio.create_task_group() as tasks, anyio.create_task_group() as endless_tasks:
                    endless_tasks.start_soon(storage.put, ids["streaming"], endless())
                    await begun.wait()
                    await world.tell("during", lambda: storage.put(ids["late"], broken()))
                    tasks.start_soon(world.tell, "put small", lambda: storage.put(ids["small"], SMALL))
                    tasks.start_soon(world.tell, "put large", lambda: storage.put(ids["large"], LARGE))
                    tasks.start_soon(world.tell, "get", lambda: storage.get(ids["read"]))
                    tasks.start_soon(world.tell, "delete", lambda: storage.delete(ids["deleted"]))
                    while len(world.told) < 5:  # noqa: ASYNC110 - each is told in its own time
                        await anyio.sleep(0.01)
                    endless_tasks.cancel_scope.cancel()
        assert all(isinstance(error, (UnavailableError, OutcomeUnknownError)) for error in world.told.values()), world.told
        assert isinstance(world.told["get"], UnavailableError) and isinstance(world.told["put large"], UnavailableError)
        unnamed = {name: every_sentence(error) for name, error in world.told.items() if world.emulator.host not in every_sentence(error)}
        assert unnamed == {}


async def test_swaps_that_timed_out_on_a_frozen_emulator_land_as_they_may_and_leave_nothing_dangling() -> None:
    async with private() as world:
        ids = [ObjectId.create("notes", f"{number}") for number in range(12)]
        finalised: list[str] = []

        def freeze_at_last(call: str, what: str) -> None:
            """Between the upload of the last of them and its swap."""
            if call == "upload.finalise":
                finalised.append(what)
                if len(finalised) == len(ids):
                    world.emulator.freeze()

        async with world.hasty as storage:
            for object_id in ids[::2]:
                await storage.put(object_id, LARGE)
            world.blobs.observers.append(freeze_at_last)
            async with anyio.create_task_group() as tasks:
                for object_id in ids:
                    tasks.start_soon(world.tell, object_id.path, partial(storage.put, object_id, LARGE))
            world.emulator.thaw()
            unknown = [error for error in world.told.values() if isinstance(error, OutcomeUnknownError)]
            assert unknown and all(isinstance(error, (OutcomeUnknownError, UnavailableError, NoneType)) for error in world.told.values())
            await world.drain()
        targets = {object_id.path: (await world.tiers.high_volume.read(object_id.path)).target for object_id in ids}
        assert {target for target in targets.values() if target} == set(world.blobs.blobs) and world.blobs.uploads == {}
        for _ in range(3):  # what is still under way changes nothing more
            assert {path: (await world.tiers.high_volume.read(path)).target for path in targets} == targets
        async with world.patient() as storage:
            for error in unknown:
                outcome = await storage.outcome(error)
                took_effect = targets[error.object_id.path] == blob_name(error.object_id.path, error.change_id)
                assert outcome is (Outcome.TOOK_EFFECT if took_effect else Outcome.NO_EFFECT)


CALLS: dict[str, Callable[[BigtableTable], Awaitable[object]]] = {
    "check_and_mutate": lambda table: table.check_and_mutate(b"k", NEWEST),
    "mutate": lambda table: table.mutate(b"k", set_cell("fm", b"p", b"")),
    "increment": lambda table: table.increment(b"k", "fc", b"c"),
    "read": lambda table: table.read(b"k"),
    "scan": lambda table: table.scan([KeySpan(b"", b"")], NEWEST, 10),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_whose_time_is_up_ends_the_scope_that_says_so_and_nothing_else(call: str) -> None:
    """gRPC answers a cancellation with one of its own making, which no scope knows for its own."""
    async with private() as world, insecure_channel(world.emulator.host) as channel:
        table = BigtableTable(channel, TABLE)
        await CALLS[call](table)
        world.emulator.freeze()
        try:
            for delay_s in (0.0, 0.05):
                with anyio.move_on_after(delay_s) as scope:
                    await CALLS[call](table)
                assert scope.cancelled_caught
            with pytest.raises(TimeoutError):
                with anyio.fail_after(0.05):
                    await CALLS[call](table)
            with pytest.raises(UnconfirmedError):
                await retry(lambda: CALLS[call](table), RUNTIME, 0.05)
        finally:
            world.emulator.thaw()
