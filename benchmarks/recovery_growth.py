"""Calls to the changelog while writers and daemons become more, in virtual time: does anything grow with their product?

    writers   each holds one large change open, and renews it
    daemons   each runs the recovery loop and reports its statistics, with the settings as shipped

Nothing is stale, so all that is counted is the price of being there. Calls take no time here. Their number is what
counts, and it depends on the settings alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

import anyio

from benchmarks.figures import Figures
from benchmarks.servers import Servers
from changelog.change import Change, ChangeId
from changelog.heartbeat import Heartbeat
from changelog.log import ChangeLog
from emulators.world.deployment import SETTINGS
from emulators.world.runtime import SimulatedRuntime, run_world
from emulators.world.services import SimulatedBlobs, SimulatedChangeLog, SimulatedRows
from recovery.daemon import source_of
from recovery.loop import RecoveryLoop
from tiered.object_id import ObjectId, blob_name
from tiered.protocol.backends import Tiers

FLEETS = ((10, 1), (100, 1), (1000, 1), (10, 10), (100, 10), (1000, 10))
"""So many writers and daemons."""

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


async def figures(servers: Servers, size: float) -> list[Figures]:
    rows = []
    for writers, daemons in FLEETS:
        writers = max(1, round(writers * size))
        calls = await anyio.to_thread.run_sync(count_calls, writers, daemons)
        scans, all_of_one = calls.daemon.get("stale", 0.0), sum(calls.daemon.values())
        rows.append([
            f"{writers:,}", str(daemons), f"{sum(calls.writer.values()):.2f}", f"{all_of_one:.2f}", f"{scans:.2f}",
            f"{all_of_one * daemons:.1f}", f"{scans * daemons:.1f}",
        ])  # fmt: skip
    columns = ["writers", "daemons", "calls/s of a writer", "of a daemon", "scans of these", "of all daemons", "scans of these"]
    return [Figures("Recovery: calls to the changelog as writers and daemons become more", columns, rows)]
