"""What sharing calls does to reads of single rows: their time, its tail, and the CPU of the client.

    alone     each read is a ReadRows of its own
    shared    reads that are asked for at the same moment go in one ReadRows (`SharedReads`)

Every answer of Bigtable is 5 ms late (a relay), so that calls are under way while others are asked for. CPU is that of
all threads of this process. The sides take turns, and read the same rows of 1 KiB.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from itertools import cycle, islice
from statistics import median, quantiles

from benchmarks.figures import Cell, Figures
from benchmarks.rounds import Ratio, run_in_flight, take_turns, timed
from benchmarks.servers import Servers, delayed
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import NEWEST, BigtableTable, chain, either, family_is, insecure_channel
from changelog.bigtable.shared_reads import SharedReads
from changelog.change import ChangeId
from tiered import Metadata
from tiered.bigtable.cells import DATA_FAMILIES
from tiered.bigtable.rows import BigtableRows
from tiered.protocol.backends import Inline

RUNTIME = SystemRuntime()
BIGTABLE_MS = 5.0
IN_FLIGHT = (1, 4, 16, 128)
READS = {1: 60, 4: 200, 16: 600, 128: 1200}
"""By the number in flight: how many reads a round has."""
ROWS = 256
PAYLOAD_BYTES = 1024
ROUNDS = 7

Read = Callable[[bytes], Awaitable[object]]


async def figures(servers: Servers, size: float) -> list[Figures]:
    rows: list[list[Cell]] = []
    async with AsyncExitStack() as opened:
        name = servers.full_name(await servers.new_table())
        keys = await _fill(BigtableTable(await opened.enter_async_context(insecure_channel(servers.bigtable_host)), name))
        late = await opened.enter_async_context(delayed(servers, BIGTABLE_MS, 0.0))
        table = BigtableTable(await opened.enter_async_context(insecure_channel(late.bigtable_host)), name)
        yields = chain(either(*map(family_is, DATA_FAMILIES)), NEWEST)
        alone: Read = lambda key: table.read(key, yields)  # noqa: E731
        for in_flight in IN_FLIGHT:
            reads = max(2 * in_flight, round(READS[in_flight] * size))
            sides = [partial(_round, read, keys, reads, in_flight) for read in (alone, SharedReads(table, yields).read)]
            rows.append([str(in_flight), *_cells(await take_turns(sides, ROUNDS))])
    columns = [
        "in flight", "alone: median, ms", "99 of 100, ms", "shared: median, ms", "99 of 100, ms", "median, of alone", "99 of 100, of alone",
        "CPU, of alone",
    ]  # fmt: skip
    return [Figures(f"Reads that share a call, with Bigtable's answers {BIGTABLE_MS:g} ms late", columns, rows, [
        f"Medians of {ROUNDS} rounds; a round's median and its slowest hundredth are of its reads.",
    ])]  # fmt: skip


def _cells(measured: list[list[tuple[float, float, float]]]) -> list[Cell]:
    """Returns the times of both sides, and the ratios. Each round of a side has its median, its tail and its CPU."""
    times = [f"{1000 * median(each[place] for each in side):.1f}" for side in measured for place in (0, 1)]
    alone, shared = measured
    return [*times, *(Ratio.of([each[place] for each in shared], [each[place] for each in alone]) for place in range(3))]


async def _round(read: Read, keys: list[bytes], reads: int, in_flight: int) -> tuple[float, float, float]:
    """Returns the median and the 99th percentile of the reads' seconds, and the seconds of CPU of one read."""
    seconds = []

    async def read_one(key: bytes) -> None:
        began = time.perf_counter()
        if await read(key) is None:
            raise AssertionError(f"the row {key.decode()} is not there")
        seconds.append(time.perf_counter() - began)

    cpu_s = await timed(run_in_flight(read_one, islice(cycle(keys), reads), in_flight), time.process_time)
    return median(seconds), quantiles(seconds, n=100, method="inclusive")[98], cpu_s / reads


async def _fill(table: BigtableTable) -> list[bytes]:
    rows, paths = BigtableRows(table, RUNTIME), [f"bench/objects/{number}" for number in range(ROWS)]

    async def put(path: str) -> None:
        token = ChangeId.new(RUNTIME)
        await rows.put_inline(path, token, Inline(Metadata(size=PAYLOAD_BYTES), os.urandom(PAYLOAD_BYTES), token))

    await run_in_flight(put, paths, 16)
    return [path.encode() for path in paths]
