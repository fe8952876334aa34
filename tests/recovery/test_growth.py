"""What writers and daemons ask of the changelog does not grow with their product (docs/sizing.md). In virtual time.

    writers   each holds one large change open, and renews it
    daemons   each runs the recovery loop and reports its statistics, with the settings as shipped

Nothing is stale, so all that is counted is the price of being there. Calls take no time here: their number counts, and
it depends on the settings alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

import anyio
import pytest

from changelog.change import Change, ChangeId
from changelog.heartbeat import Heartbeat
from changelog.log import ChangeLog
from emulators.world.deployment import SETTINGS
from emulators.world.runtime import SimulatedRuntime, run_world
from emulators.world.services import SimulatedBlobs, SimulatedChangeLog, SimulatedRows
from recovery.daemon import source_of
from recovery.loop import RecoveryLoop
from tiered.object_id import ObjectId, blob_name
from tiered.services.backends import Tiers

pytestmark = pytest.mark.slow
STARTS_S, COUNTED_S = 120.0, 300.0
"""Counting begins after so many seconds, when daemons know of each other, and goes on for so many."""


class CountingLog:
    """A log that counts the calls of one process."""

    def __init__(self, log: ChangeLog, calls: Counter[str]) -> None:
        self._log = log
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._log, name)
        if name not in ("durable", "ranges"):
            self._calls[name] += 1
        return found


@dataclass(frozen=True)
class CallRates:
    """Calls in a second, by their names: those of one writer, and those of one daemon, on average."""

    writer: dict[str, float]
    daemon: dict[str, float]


def count_calls(writers: int, daemons: int) -> CallRates:
    """Runs so many of both in virtual time, and counts their calls to the changelog."""
    by_writers, by_daemons = Counter[str](), Counter[str]()

    async def world() -> None:
        services = SimulatedRuntime("services")
        log, tiers = SimulatedChangeLog(services), Tiers(SimulatedRows(services), SimulatedBlobs(services))

        async def write(number: int) -> None:
            runtime = SimulatedRuntime(f"writer-{number}")
            await runtime.sleep(runtime.random.uniform(0, SETTINGS.lease.heartbeat_interval_s))
            lease, counted = SETTINGS.lease, cast(ChangeLog, CountingLog(log, by_writers))
            heartbeat = Heartbeat(counted, runtime, f"writer-{number}", lease.heartbeat_interval_s, lease.expiry_s)
            path, token = ObjectId.create("bench", str(number)).path, ChangeId.new(runtime)
            await heartbeat.record(Change(token, path, blob_name(path, token), None))
            await heartbeat.run()

        async def recover(number: int) -> None:
            runtime = SimulatedRuntime(f"daemon-{number}")
            await runtime.sleep(runtime.random.uniform(0, SETTINGS.recovery.idle_s))
            counted = cast(ChangeLog, CountingLog(log, by_daemons))
            loop = RecoveryLoop(tiers, counted, runtime, SETTINGS)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(loop.run)
                tasks.start_soon(source_of(loop, counted, runtime, SETTINGS).run)

        async with anyio.create_task_group() as tasks:
            for number in range(writers):
                tasks.start_soon(write, number)
            for number in range(daemons):
                tasks.start_soon(recover, number)
            await services.sleep(STARTS_S)
            by_writers.clear()
            by_daemons.clear()
            await services.sleep(COUNTED_S)
            tasks.cancel_scope.cancel()

    run_world(world, seed=1)
    return CallRates(_per_second(by_writers, writers), _per_second(by_daemons, daemons))


def _per_second(calls: Counter[str], processes: int) -> dict[str, float]:
    return {name: count / processes / COUNTED_S for name, count in calls.items()}


@pytest.fixture(scope="module")
def fleets() -> dict[tuple[int, int], CallRates]:
    return {(writers, daemons): count_calls(writers, daemons) for writers in (10, 40) for daemons in (1, 10)}


@pytest.mark.night
def test_a_writer_pays_the_same_however_many_others_there_are(fleets: dict[tuple[int, int], CallRates]) -> None:
    """One renewal in 7.5 to 10 s for the entry that it has open."""
    for calls in fleets.values():
        assert calls.writer.keys() == {"renew"} and 1 / 10 <= calls.writer["renew"] <= 1 / 7


@pytest.mark.parametrize("daemons", [1, 10])
def test_a_daemon_pays_the_same_however_many_writers_there_are(fleets: dict[tuple[int, int], CallRates], daemons: int) -> None:
    assert fleets[40, daemons].daemon == pytest.approx(fleets[10, daemons].daemon, rel=0.1)


@pytest.mark.parametrize("writers", [10, 40])
def test_ten_daemons_scan_the_log_hardly_more_often_than_one(fleets: dict[tuple[int, int], CallRates], writers: int) -> None:
    alone, each = fleets[writers, 1].daemon, fleets[writers, 10].daemon
    assert alone["stale"] > 3, "16 ranges about every 4 s"
    assert 10 * each["stale"] <= 1.2 * alone["stale"]
    assert sum(each.values()) < sum(alone.values())
