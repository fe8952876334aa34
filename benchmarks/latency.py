"""How much later a large put is answered because its change is logged: beside a store without a changelog, by turns.

Every answer of Bigtable is 5 ms late, and every answer of GCS 30 ms (a relay for each: with one for both, the answer to
the record would wait behind the payload). The record is written while the payload streams, and that must hide its time.
One put is under way at a time. Both stores share rows and bucket. Before its first put each has opened its connections.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack

from benchmarks.harness import Contest, Figures, Measure, Operations
from benchmarks.servers import Servers, delayed, started_servers
from tiered import ObjectId, TieredStorage, open_storage

BIGTABLE_MS, GCS_MS = 5.0, 30.0
MIB = 1024 * 1024
PUTS = {2 * MIB: 10, 16 * MIB: 5}
NOTE = f"Goal: at most 1.03. Bigtable's answers are {BIGTABLE_MS:g} ms late and GCS's {GCS_MS:g} ms, by a relay."


def _put(payload: bytes) -> Operations[TieredStorage]:
    return {"put over nothing": lambda store, name, token: store.put(ObjectId.parse(name), payload)}


async def figures(size: float) -> list[Figures]:
    async with AsyncExitStack() as opened:
        servers = await opened.enter_async_context(started_servers())
        rows = await opened.enter_async_context(delayed(servers, BIGTABLE_MS, 0.0))
        blobs = await opened.enter_async_context(delayed(servers, 0.0, GCS_MS))
        late, table = Servers(rows.bigtable_host, blobs.gcs_url), await servers.new_table()
        sides = {
            "logged": await opened.enter_async_context(open_storage(late.settings(table, "bigtable"))),
            "not logged": await opened.enter_async_context(open_storage(late.settings(table, "noop"))),
        }
        title, measures = "Latency of a large put, with and without a changelog", [Measure("clock_s", "ms", digits=3)]
        contest = Contest(title, sides, 9, measures, ("", "payload"), [NOTE])
        await Contest("opens connections", sides, rounds=1).run(_put(bytes(2 * MIB)), 1, 1)
        for payload_bytes, puts in PUTS.items():
            await contest.run(_put(os.urandom(payload_bytes)), max(1, round(puts * size)), 1, f"{payload_bytes // MIB} MiB")
    return [contest.figures()]
