"""What uvloop, another event loop, saves a store on Bigtable and GCS: CPU and time of its operations with and without.

An event loop cannot be changed in a process, so each side of a round is a process of its own: `python -m
benchmarks.event_loop asyncio|uvloop …` opens a store, works, and says what it measured.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.util import find_spec
from itertools import count, islice
from statistics import median

import anyio

from benchmarks.figures import Cell, Figures
from benchmarks.rounds import Ratio, run_in_flight, take_turns
from benchmarks.servers import Servers, started, unless_left_alone
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from tiered import ObjectId
from tiered.open import open_storage

ROUNDS = 5
LOOPS = "asyncio", "uvloop"
SMALL_BYTES, LARGE_BYTES = 1024, 2 * 1024 * 1024
WORK = {(SMALL_BYTES, 1): 200, (SMALL_BYTES, 16): 400, (SMALL_BYTES, 128): 512, (LARGE_BYTES, 1): 16, (LARGE_BYTES, 16): 32}
"""By payload and number in flight: how many objects a round puts, gets and deletes."""

OPERATIONS = "put", "get", "delete"
NOT_INSTALLED = "uvloop is not installed, so nothing is measured; install it with: pip install -e '.[bench]' -c constraints.txt"

Spent = tuple[float, float]
"""Seconds of CPU, and of time, for each operation."""


def is_installed() -> bool:
    return find_spec("uvloop") is not None


async def figures(servers: Servers, size: float) -> list[Figures]:
    if not is_installed():
        raise SystemExit(NOT_INSTALLED)
    table = await servers.new_table()

    async def side(loop: str) -> list[list[Spent]]:
        arguments = [loop, servers.bigtable_host, servers.gcs_url, table, f"{size:g}"]
        async with started("benchmarks.event_loop", *arguments, within_s=120.0) as told:
            measured: list[list[Spent]] = json.loads(told)
            return measured

    ours, others = await take_turns([partial(side, loop) for loop in LOOPS], ROUNDS)
    rows: list[list[Cell]] = []
    for place, (payload_bytes, in_flight) in enumerate(WORK):
        for number, operation in enumerate(OPERATIONS):
            one, other = ([each[place][number] for each in rounds] for rounds in (ours, others))
            micros = [f"{1e6 * median(spent[0] for spent in each):,.0f}" for each in (one, other)]
            cpu, clock = (Ratio.of([spent[which] for spent in other], [spent[which] for spent in one]) for which in (0, 1))
            rows.append([f"{operation} {payload_bytes // 1024:,} KiB", str(in_flight), *micros, cpu, clock])
    columns = ["", "in flight", "asyncio, µs of CPU", "uvloop, µs of CPU", "ratio", "ratio of the times"]
    notes = [f"Medians of {ROUNDS} rounds. A ratio below 1: uvloop takes less."]
    return [Figures("A store with uvloop and without", columns, rows, notes, named_by=columns[:2])]


async def measure(host: str, gcs_url: str, table: str, size: float) -> list[list[Spent]]:
    names = count()
    async with open_storage(Servers(host, gcs_url).settings(table, "bigtable")) as storage:
        measured = []
        for (payload_bytes, in_flight), operations in WORK.items():
            payload, scope = os.urandom(payload_bytes), f"{ChangeId.new(SystemRuntime())}"

            async def put(object_id: ObjectId, payload: bytes = payload) -> None:
                await storage.put(object_id, payload)

            async def get(object_id: ObjectId, payload: bytes = payload) -> None:
                found = await storage.get(object_id)
                if found is None or await found.read() != payload:
                    raise AssertionError(f"{object_id} is not what was put")

            async def spent(work: Callable[[ObjectId], Awaitable[None]], ids: list[ObjectId], in_flight: int = in_flight) -> Spent:
                gc.collect()
                cpu_s, clock_s = time.process_time(), time.perf_counter()
                await run_in_flight(work, ids, in_flight)
                return (time.process_time() - cpu_s) / len(ids), (time.perf_counter() - clock_s) / len(ids)

            def new(number: int, scope: str = scope) -> list[ObjectId]:
                return [ObjectId.create("bench", f"{scope}-{name}") for name in islice(names, number)]

            first, ids = new(in_flight), new(max(2, round(operations * size)))
            for work in (put, get, storage.delete):  # the first ones open connections
                await spent(work, first)
            measured.append([await spent(work, ids) for work in (put, get, storage.delete)])
        return measured


if __name__ == "__main__":
    loop, host, gcs_url, table, size = sys.argv[1:]
    taken = anyio.run(
        unless_left_alone, partial(measure, host, gcs_url, table, float(size)), backend_options={"use_uvloop": loop == "uvloop"}
    )
    print(json.dumps(taken), flush=True)
