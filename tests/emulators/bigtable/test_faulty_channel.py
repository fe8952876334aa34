"""What the script does to a call, seen from both ends: what the caller gets, and what the emulator holds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager

import anyio
import grpc
import grpc.aio
import pytest

from changelog.base.errors import UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import NEWEST, BigtableTable, KeySpan, insecure_channel, set_cell
from emulators.bigtable.faulty_channel import FaultyChannel, WireMode
from emulators.world.faults import Network, Process

pytestmark = pytest.mark.anyio

KEY = b"notes/objects/k"
HANG_S = 0.2
"""How long a call waits that gets no answer. Any other has as long as it needs."""
NO_ANSWER = (WireMode.HANG, WireMode.LATE)
ERRORS = {
    WireMode.CUT: grpc.StatusCode.UNAVAILABLE, WireMode.DROP_ANSWER: grpc.StatusCode.UNAVAILABLE,
    WireMode.HANG: grpc.StatusCode.DEADLINE_EXCEEDED, WireMode.LATE: grpc.StatusCode.DEADLINE_EXCEEDED,
}  # fmt: skip
DEATHS = [mode for mode in WireMode if mode.name.startswith("DIE")]
EFFECTS = {WireMode.DROP_ANSWER: 1, WireMode.HANG: 1, WireMode.DUPLICATE: 2, WireMode.ECHO: 1, WireMode.DIE_AFTER: 1}
LATE_EFFECTS = (WireMode.LATE, WireMode.ECHO, WireMode.DIE_LATE)


class FaultyWire:
    """A process on a real channel, whose next calls meet `modes`; and the table as others see it."""

    def __init__(self, channel: grpc.aio.Channel, table: BigtableTable) -> None:
        self.modes: Iterator[WireMode] = iter(())
        self.process = Process("writer", SystemRuntime(), Network())
        self.channel = FaultyChannel(channel, self.process, lambda point: next(self.modes, None), HANG_S)
        self.patient = FaultyChannel(channel, self.process, lambda point: next(self.modes, None), 3600)
        self.far = BigtableTable(self.channel, table.name)
        self.near = table

    async def count(self) -> int:
        row = await self.near.read(KEY)
        return 0 if row is None else int.from_bytes(row.cells[0].value, "big")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def wire(
    anyio_backend: str, bigtable_host: str, fresh_table: Callable[[], AbstractAsyncContextManager[BigtableTable]]
) -> AsyncIterator[FaultyWire]:
    async with fresh_table() as table, insecure_channel(bigtable_host) as channel:
        yield FaultyWire(channel, table)


@pytest.mark.parametrize("mode", WireMode)
async def test_a_request_has_its_effect_as_often_as_its_mode_says_and_what_is_late_lands_when_delivered(
    wire: FaultyWire, mode: WireMode
) -> None:
    wire.modes = iter([mode])

    async def life() -> None:
        if mode in ERRORS:
            with pytest.raises(UnconfirmedError):
                await wire.far.increment(KEY, "fc", b"n")
        else:
            answered = await wire.far.increment(KEY, "fc", b"n")
            assert int.from_bytes(answered.value, "big") == EFFECTS[mode], "the last request is the one that is answered"

    await wire.process.run(life)
    assert wire.process.alive is (mode not in DEATHS)
    before = await wire.count()
    assert before == EFFECTS.get(mode, 0)
    landed = int(mode in LATE_EFFECTS)
    assert await wire.channel.deliver() == landed and await wire.count() == before + landed
    assert await wire.channel.deliver() == 0 and await wire.count() == before + landed
    assert await wire.channel.deliver(once_more=True) == landed and await wire.count() == before + 2 * landed


@pytest.mark.parametrize("mode", ERRORS)
async def test_the_errors_are_grpcs_own(wire: FaultyWire, mode: WireMode) -> None:
    wire.modes = iter([mode])
    with pytest.raises(UnconfirmedError) as caught:
        await wire.far.mutate(KEY, set_cell("fm", b"p", b""))
    assert isinstance(caught.value.__cause__, grpc.aio.AioRpcError) and caught.value.__cause__.code() is ERRORS[mode]


@pytest.mark.parametrize("mode", NO_ANSWER)
async def test_who_waits_for_no_answer_can_be_cancelled_and_the_request_is_where_it_was(wire: FaultyWire, mode: WireMode) -> None:
    slow = BigtableTable(wire.patient, wire.near.name, timeout_s=3600)
    wire.modes = iter([mode])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slow.increment, KEY, "fc", b"n")
        while not wire.patient.points or await wire.count() != EFFECTS.get(mode, 0):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    await wire.patient.deliver()
    assert await wire.count() == 1


@pytest.mark.parametrize("mode", [WireMode.CUT, WireMode.DROP_ANSWER, WireMode.HANG])
async def test_reads_fail_as_a_whole_and_the_next_one_does_not(wire: FaultyWire, mode: WireMode) -> None:
    await wire.near.mutate(KEY, set_cell("fm", b"p", b"hello"))
    wire.modes = iter([mode, mode])
    for read in (wire.far.read(KEY), wire.far.read_all([KEY])):
        with pytest.raises(UnavailableError):
            await read
    assert await wire.far.read(KEY) == await wire.near.read(KEY)
    assert len(await wire.far.scan([KeySpan(b"", b"")], NEWEST, 10)) == 1


@pytest.mark.parametrize("mode", DEATHS)
async def test_a_dead_process_sends_nothing_more_and_hears_nothing(wire: FaultyWire, mode: WireMode) -> None:
    wire.modes = iter([mode])
    after: list[object] = []

    async def life() -> None:
        try:
            await wire.far.increment(KEY, "fc", b"n")
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(0.05):
                after.append(wire.channel.points[:])
                after.append(await wire.far.increment(KEY, "fc", b"n"))

    await wire.process.run(life)
    assert after == [["ReadModifyWriteRow object n #1"]]
    assert len(wire.channel.points) == 1 and await wire.count() == EFFECTS.get(mode, 0)


async def test_points_are_named_by_what_they_read_or_write_and_counted(wire: FaultyWire) -> None:
    cell = set_cell("ff", b"w:018bcfe5-6800-7000-8000-000000000001", b"")
    await wire.far.check_and_mutate(KEY, NEWEST, then=[cell], otherwise=[set_cell("fm", b"p", b""), cell])
    await wire.far.mutate(b"~changelog/00/x", set_cell("fc", b"c", b""))
    await wire.far.mutate(KEY, set_cell("fm", b"p", b""))
    await wire.far.mutate(KEY, set_cell("fm", b"p", b""))
    await wire.far.increment(b"~daemon/me", "fc", b"c")
    await wire.far.read(KEY)
    await wire.far.scan([KeySpan(b"~changelog/00/", b"")], NEWEST, 1)
    assert wire.channel.points == [
        "CheckAndMutateRow object w: p #1", "MutateRow entry c #1", "MutateRow object p #1", "MutateRow object p #2",
        "ReadModifyWriteRow presence c #1", "ReadRows object #1", "ReadRows entry #1",
    ]  # fmt: skip
