"""How much later a large put is answered because its change is logged.

A store with the BigTable changelog is compared with one that has none, at 1 put in flight.

    every answer of Bigtable is 5 ms late, every answer of GCS 30 ms (a relay, `benchmarks.relay`)

The record is written while the payload streams, and that must hide its time. The two stores share rows and bucket, and
put by turns, each time under a new name. Between two puts both rest, so that neither pays for what the other has left
to clean up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from statistics import median

import anyio

from benchmarks.figures import Cell, Figures
from benchmarks.rounds import Ratio, take_turns, timed
from benchmarks.servers import Servers, delayed
from changelog.base.runtime import SystemRuntime
from tiered import ObjectId, TieredStorage
from tiered.open import open_backends, open_storage

BIGTABLE_MS, GCS_MS = 5.0, 30.0
MIB = 1024 * 1024
PUTS = {2 * MIB: 10, 16 * MIB: 5}
"""By the payload's size: how many puts a round has. Their median counts."""

ROUNDS = 9
REST_S = 0.05
GOAL = 1.05


async def figures(servers: Servers, size: float) -> list[Figures]:
    rows: list[list[Cell]] = []
    names = count()
    async with AsyncExitStack() as opened:
        late = await opened.enter_async_context(delayed(servers, BIGTABLE_MS, GCS_MS))
        table = await servers.new_table()
        logged = await opened.enter_async_context(open_storage(late.settings(table, "bigtable")))
        noop = await opened.enter_async_context(open_storage(late.settings(table, "noop")))
        tiers = (await opened.enter_async_context(open_backends(late.settings(table, "noop"), SystemRuntime()))).tiers
        read_ms = median([1000 * await timed(tiers.high_volume.read("bench/objects/nothing")) for _ in range(9)])
        for payload_bytes, puts in PUTS.items():
            payload, puts = os.urandom(payload_bytes), max(1, round(puts * size))
            for storage in (logged, noop):  # the first put opens connections
                await storage.put(ObjectId.create("bench", f"{next(names)}"), payload)

            async def put(storage: TieredStorage, payload: bytes = payload) -> None:
                await storage.put(ObjectId.create("bench", f"{next(names)}"), payload)

            measured = await take_turns([partial(_round, partial(put, storage), puts) for storage in (logged, noop)], ROUNDS)
            times = (f"{1000 * median(side):.1f}" for side in measured)
            rows.append([f"{payload_bytes // MIB} MiB", *times, Ratio.of(*measured, digits=3)])
    notes = [
        f"Goal: at most {GOAL}. Bigtable's answers are {BIGTABLE_MS:g} ms late and GCS's {GCS_MS:g} ms, by a relay; a read of one row"
        f" took {read_ms:.1f} ms. Medians of {ROUNDS} rounds, a round's number being the median of its puts.",
    ]
    columns = ["put over nothing", "BigTable changelog, ms", "no changelog, ms", "ratio"]
    return [Figures("Latency of a large put, with and without a changelog", columns, rows, notes)]


async def _round(put: Callable[[], Awaitable[None]], puts: int) -> float:
    seconds = []
    for _ in range(puts):
        await anyio.sleep(REST_S)
        seconds.append(await timed(put(), time.perf_counter))
    return median(seconds)
