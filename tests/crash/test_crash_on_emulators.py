"""Every operation, and recovery, of the real adapters on the real emulator, with one thing going wrong at every call.

Each mode of going wrong is one test: all operations and all their calls at once, each on an object of its own. The calls are
learnt from a run without faults. Then the network heals, recovery drains the log, what is late lands, recovery drains
again, and everything is read. A finding names its case, as in `put_large_on_large|CheckAndMutateRow object r t v w: #1|CUT`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import anyio
import pytest

from changelog.bigtable_channel import BigtableTable, insecure_channel, set_cell
from changelog.runtime import SystemRuntime
from emulators.adapter_world import AdapterWorld
from emulators.blobs import SimulatedBlobs, SimulatedUpload
from emulators.checker import Answer
from emulators.faults import Fault, Network
from emulators.faulty_channel import READ_MODES, WireMode
from emulators.world import BrokenPayload, Client, content
from tiered.backends import LongTermBackend
from tiered.metadata import Metadata, TimeToIdle
from tiered.object_id import ObjectId
from tiered.settings import LeaseSettings, RecoverySettings, Settings, StoreSettings

pytestmark = pytest.mark.anyio

SMALL, LARGE = 50, 500
IDLE = TimeToIdle(timedelta(hours=1))
SOME_TIME_S = 2400
"""After it, a read extends the deadline of what is IDLE."""
TIMEOUT_S = 1.0
MEETING_S = 10.0
CASES_AT_ONCE = 40
GRACE_S = 1.0
EXPIRY_S = 0.5
_STORE = StoreSettings(answer_budget_s=3.0, cleanup_budget_s=3.0, drain_budget_s=10.0, queue_max=1000)
LIVING = Settings(
    directory=Path("emulated"), changelog="noop", inline_bytes_max=100, store=_STORE,
    recovery=RecoverySettings(late_upload_grace_s=GRACE_S),
)
DYING = LIVING.model_copy(update={"store": _STORE.model_copy(update={"drain_budget_s": 0.01})})
"""A dead process waits for nobody: its tasks are gone."""
RECOVERING = Settings(
    directory=Path("emulated"), changelog="noop", lease=LeaseSettings(heartbeat_interval_s=0.2, expiry_s=EXPIRY_S),
    recovery=RecoverySettings(
        late_upload_grace_s=GRACE_S, rate_per_s=100_000, concurrency_max=32, attempts_max=50, attempt_budget_s=3.0, shutdown_budget_s=1.0
    ),
)

Act = Callable[[Client, ObjectId], Awaitable[object]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# --- what is done --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    """`act` by one caller, on the object as `before` describes it: absent, small, large or legacy (a blob without revision)."""

    name: str
    before: str
    act: Act


def put(label: str, size: int) -> Act:
    return lambda client, object_id: client.put(object_id, label, size)


def put_stream(label: str, size: int) -> Act:
    """Of a size that nobody knows beforehand."""

    async def payload() -> AsyncIterator[bytes]:
        yield content(label, size)

    return lambda client, object_id: client.put(object_id, label, size, payload=payload())


async def delete(client: Client, object_id: ObjectId) -> Answer:
    return await client.delete(object_id)


async def put_broken(client: Client, object_id: ObjectId) -> None:
    async def payload() -> AsyncIterator[bytes]:
        yield content("new", LARGE // 2)
        raise BrokenPayload

    assert await client.put(object_id, "new", LARGE, payload=payload()) is Answer.NO


async def get_idle(client: Client, object_id: ObjectId) -> None:
    """A read that extends the deadline of an object with a time to idle."""
    await client.get(object_id)


def scenarios() -> Iterator[Scenario]:
    for before in ("absent", "small", "large", "legacy"):
        yield Scenario(f"put_small_on_{before}", before, put("new", SMALL))
        yield Scenario(f"put_large_on_{before}", before, put("new", LARGE))
        yield Scenario(f"put_stream_on_{before}", before, put_stream("new", LARGE))
        yield Scenario(f"delete_on_{before}", before, delete)
    yield Scenario("put_broken_on_large", "large", put_broken)
    yield Scenario("get_idle_small", "idle small", get_idle)
    yield Scenario("get_idle_large", "idle large", get_idle)


SCENARIOS = {scenario.name: scenario for scenario in scenarios()}


class Case:
    """One process, and what goes wrong in it: at the wire to Bigtable, or at a call of the long-term tier."""

    def __init__(self, scenario: Scenario, point: str, fault: WireMode | Fault | None) -> None:
        self.scenario = scenario
        self.name = "|".join([scenario.name, point, "" if fault is None else (fault.mode if isinstance(fault, Fault) else fault).name])
        self.object_id = ObjectId.create("crash", self.name)
        self.dies = self.name.rpartition("|")[2].startswith(("DIE", "CRASH"))
        self.met = anyio.Event()
        self.points: list[str] = []
        self.far_points: list[str] = []
        self.trace: list[str] = []
        self._point = point
        self._fault = fault

    def script(self, made: str) -> WireMode | None:
        return self._fault if made == self._point and isinstance(self._fault, WireMode) and self._meet() else None

    def plan(self, made: str) -> Fault | None:
        return self._fault if made == self._point and isinstance(self._fault, Fault) and self._meet() else None

    def _meet(self) -> bool:
        self.met.set()
        return True


# --- one world for many cases --------------------------------------------------------------------


class Stage:
    """A fresh table and blob store, on which many cases are lived through at once."""

    def __init__(self, world: AdapterWorld, blobs: LongTermBackend) -> None:
        self.world = world
        self.blobs = blobs

    async def prepare(self, cases: list[Case]) -> None:
        present, past = self.world.process("setup"), self.world.process("setup", skew_s=-SOME_TIME_S)
        async with self.world.client(present) as now, self.world.client(past) as then:
            await each(cases, lambda case: self._prepare(then if "idle" in case.scenario.before else now, case))

    async def _prepare(self, client: Client, case: Case) -> None:
        before, object_id = case.scenario.before, case.object_id
        if before == "legacy":
            # As older software left it: a tombstone without a token, and the blob under the storage path itself.
            upload = await self.blobs.open_upload(object_id.path, Metadata(custom={"label": "old"}, size=LARGE), LARGE)
            await upload.write(content("old", LARGE))
            await upload.finalise()
            await self.world.table.mutate(object_id.path.encode(), set_cell("fm", b"r", b""))
            self.world.history.end_write(self.world.history.begin_write(object_id.path, "old"), Answer.OK)
        elif before != "absent":
            size = SMALL if "small" in before else LARGE
            assert await client.put(object_id, "old", size, expiration=IDLE if "idle" in before else None) is Answer.OK

    async def live(self, case: Case) -> None:
        """The case's process, from the opening of its store to its close, or to its death."""
        process = self.world.process(case.name, case.plan)

        async def life() -> None:
            async with self.world.client(process, case.script, DYING if case.dies else LIVING) as client:
                wire = self.world.wires[-1]
                case.points, case.far_points, case.trace = wire.points, process.link.points, wire.trace
                await case.scenario.act(client, case.object_id)
                if case.dies:
                    with anyio.fail_after(MEETING_S):
                        await case.met.wait()  # in its clean-up

        await process.run(life)

    async def succeed(self, case: Case) -> None:
        """Another writer, of the same object, who is told that all is well."""
        async with self.world.client(self.world.process("successor")) as client:
            assert await client.put(case.object_id, "later", SMALL) is Answer.OK

    async def read(self, cases: list[Case]) -> None:
        found: list[dict[str, str | None]] = [{}, {}]
        async with self.world.client(self.world.process("reader")) as client:

            async def look(case: Case) -> None:
                for answers in found:
                    answers[case.name] = await client.get(case.object_id)

            await each(cases, look)
        assert found[0] == found[1]

    async def findings(self, cases: list[Case]) -> list[str]:
        """Recovery ends what is left, before and after what is late has landed, and once more after it has landed again."""
        for once_more in (None, False, True):
            if once_more is not None:
                await self.world.deliver(once_more=once_more)
            await self.world.drain()
            await self.read(cases)
        findings = await self.world.findings()
        missed = [f"{case.name} was never met: {case.points} {case.far_points}" for case in cases if not case.met.is_set()]
        return [*map(partial(_explained, cases), findings), *missed]


def _explained(cases: list[Case], finding: str) -> str:
    """With the calls of its case."""
    traces = [line for case in cases if f"/{case.name}" in finding for line in case.trace]
    return "\n    ".join([finding, *traces])


class MixedBlobs(SimulatedBlobs):
    """As GCS's adapter does: a payload of known size goes in a single request, any other by a session."""

    async def open_upload(self, name: str, metadata: Metadata, size: int | None) -> SimulatedUpload:
        self._sessions = size is None
        return await super().open_upload(name, metadata, size)


@pytest.fixture
async def stage(
    anyio_backend: str, bigtable_host: str, fresh_table: Callable[[], AbstractAsyncContextManager[BigtableTable]]
) -> AsyncIterator[Stage]:
    blobs = MixedBlobs(SystemRuntime())

    @asynccontextmanager
    async def open_blobs() -> AsyncIterator[LongTermBackend]:
        yield blobs

    async with fresh_table() as table, insecure_channel(bigtable_host) as channel, Network() as network:
        world = AdapterWorld(channel, table.name, open_blobs, lambda: set(blobs.uploads), network, LIVING, RECOVERING, TIMEOUT_S)
        yield Stage(world, blobs)


async def each(cases: list[Case], do: Callable[[Case], Awaitable[None]]) -> None:
    """For all of them, so many at a time."""
    limiter = anyio.CapacityLimiter(CASES_AT_ONCE)

    async def do_one(case: Case) -> None:
        async with limiter:
            await do(case)

    async with anyio.create_task_group() as tasks:
        for case in cases:
            tasks.start_soon(do_one, case)


async def points(stage: Stage) -> dict[str, Case]:
    """Every scenario without a fault: the case knows the calls."""
    cases = [Case(scenario, "", None) for scenario in SCENARIOS.values()]
    await stage.prepare(cases)
    await each(cases, stage.live)
    return {case.scenario.name: case for case in cases}


@pytest.mark.parametrize("mode", WireMode)
async def test_an_operation_with_a_fault_at_any_call_to_bigtable_answers_honestly_and_leaves_nothing(stage: Stage, mode: WireMode) -> None:
    cases = [
        Case(clean.scenario, point, mode) for clean in (await points(stage)).values() for point in clean.points
        if mode in READ_MODES or not point.startswith("ReadRows")
    ]  # fmt: skip
    await stage.prepare(cases)
    await each(cases, stage.live)
    assert await stage.findings(cases) == []
