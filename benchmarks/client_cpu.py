"""CPU of the client on Bigtable and GCS: ours, the official clients' and that of bare calls, in one process, by turns.

    rows, 1 KiB     ours        `BigtableRows`
                    official    google.cloud.bigtable.data, its async client: the same predicates, mutations and reads
                    bare        the same messages, made by hand, over `grpc.aio`; nothing is checked
    small, 2 MiB    ours        `TieredStorage` with its changelog; clean-up included
                    official    for large objects google-cloud-storage in threads and plain row operations: what a user
                                would write himself, without changelog and without safety
                    bare        only the calls that the store makes: `grpc.aio` and aiohttp

All threads of this process count. The servers have processes of their own, which do not.
"""

from __future__ import annotations

import logging
import os
from contextlib import AsyncExitStack
from typing import Any

from benchmarks.bare import BareBlobs, BareRows
from benchmarks.harness import Contest, Figures, put_get_delete
from benchmarks.official import OfficialBlobs, OfficialRows
from benchmarks.servers import BUCKET, INSTANCE, PROJECT, started_servers
from benchmarks.sides import RowsSide, StoreSide
from tiered.settings import StoreSettings

IN_FLIGHT = (1, 16, 128)
SMALL, LARGE = os.urandom(1024), os.urandom(2 * 1024 * 1024)
SMALL_OPERATIONS = 400
LARGE_OPERATIONS = {1: 16, 16: 48, 128: 128}
GOAL = "Goal: at most 0.5 of the official client, at most 1.3 of bare calls."
UNSAFE = "Official: google-cloud-storage in threads and plain row operations, without changelog and without safety."


async def figures(size: float) -> list[Figures]:
    logging.getLogger("google").setLevel(logging.ERROR)
    async with AsyncExitStack() as opened:
        servers = await opened.enter_async_context(started_servers())
        os.environ["BIGTABLE_EMULATOR_HOST"] = servers.bigtable_host  # the official client reads it
        table, most = await servers.new_table(), max(IN_FLIGHT)
        settings = servers.settings(table, "bigtable", store=StoreSettings(concurrency_max=most))
        store = await opened.enter_async_context(StoreSide.open(settings))
        official = await opened.enter_async_context(OfficialRows.connect(PROJECT, INSTANCE, table))
        bare = await opened.enter_async_context(BareRows.connect(servers.bigtable_host, servers.full_name(table)))
        official_blobs = await opened.enter_async_context(OfficialBlobs.connect(official, servers.gcs_url, BUCKET, most))
        bare_blobs = await opened.enter_async_context(BareBlobs.connect(bare, servers.gcs_url, BUCKET))
        ours = RowsSide(store.backends.tiers.high_volume)
        rows, small, large = (
            Contest[Any](f"Client CPU {what}", dict(zip(("ours", "official", "bare"), sides, strict=True)), notes=notes)
            for what, sides, notes in (
                ("per row operation, 1 KiB", (ours, official, bare), [GOAL]),
                ("of the whole store, 1 KiB, beside the same row operations", (store, official, bare), []),
                ("of the whole store, 2 MiB", (store, official_blobs, bare_blobs), [UNSAFE]),
            )
        )
        for in_flight in IN_FLIGHT:
            many, few = max(2, round(SMALL_OPERATIONS * size)), max(2, round(LARGE_OPERATIONS[in_flight] * size))
            await rows.run(put_get_delete(SMALL, " row"), many, in_flight)
            await small.run(put_get_delete(SMALL, " small"), many, in_flight)
            await large.run(put_get_delete(LARGE, " large"), few, in_flight)
    return [rows.figures(), small.figures(), large.figures()]
