"""A large object is put from a file: in one stream, in lanes, by google-cloud-storage in threads, and by obstore.

    one stream     `put` with `gcs.upload_lanes` 1
    lanes          `put` as it is
    official       `transfer_manager.upload_chunks_concurrently`, with its own sizes and eight threads
    obstore        `put_async` in parts of 8 MiB, eight at once, by the XML API

Every request to GCS is late by the round trip (a relay), and so much of one connection is on its way at most. So one
connection is as fast as it is far, as in `large_reads.py`. Loopback has no limit but the two cores, which the servers,
the relay and the client share.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from anyio import to_thread
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage import transfer_manager

from benchmarks.figures import Cell, Figures
from benchmarks.objects import obstore_on_gcs
from benchmarks.rounds import Ratio, take_turns
from benchmarks.servers import PROJECT, Servers, delayed
from tiered import ObjectId, TieredStorage, open_storage

ROUNDS = 3
PAYLOAD_BYTES = 1024 * 1024 * 1024
WINDOW_KIB = 3 * 1024
ROUND_TRIPS_MS = (0, 20, 100)
OBJECT = ObjectId.create("bench", "large")
WORKERS = 8
PART_BYTES = 8 * 1024 * 1024

Spent = tuple[float, float]
"""The seconds by the clock, and of CPU of this process."""


async def figures(servers: Servers, size: float) -> list[Figures]:
    rows: list[list[Cell]] = []
    with TemporaryDirectory(prefix="tiered-bench-") as directory:
        file = Path(directory) / "payload"
        file.write_bytes(os.urandom(max(2 * 1024 * 1024, round(PAYLOAD_BYTES * size))))
        for round_trip_ms in ROUND_TRIPS_MS:
            rows.append([f"{round_trip_ms} ms", *await _row(servers, round_trip_ms, file)])
        mebibytes = file.stat().st_size >> 20
    columns = [
        "round trip", "one stream, s", "lanes, s", "official, s", "obstore, s", "lanes, of one stream", "lanes, of official",
        "lanes, of obstore", "CPU, of one stream", "CPU, of official", "CPU, of obstore",
    ]  # fmt: skip
    return [Figures(f"{mebibytes} MiB put from a file", columns, rows, [
        f"Medians of {ROUNDS} rounds. CPU: of all threads of the client. A connection has {WINDOW_KIB >> 10} MiB on its way at most.",
    ])]  # fmt: skip


async def _row(servers: Servers, round_trip_ms: int, file: Path) -> list[Cell]:
    table = await servers.new_table()
    async with AsyncExitStack() as opened:
        late = await opened.enter_async_context(delayed(servers, 0.0, float(round_trip_ms), WINDOW_KIB, of_requests=True))

        async def store(**gcs: int) -> TieredStorage:
            settings = late.settings(table, "noop")
            assert settings.gcs is not None
            return await opened.enter_async_context(open_storage(settings.model_copy(update={"gcs": settings.gcs.model_copy(update=gcs)})))

        client = storage.Client(PROJECT, AnonymousCredentials(), client_options={"api_endpoint": late.gcs_url})  # type: ignore[no-untyped-call]
        blob = client.bucket(table).blob("official")
        sides: list[Callable[[], Awaitable[Spent]]] = [
            partial(_spent, partial((await store(upload_lanes=1)).put, OBJECT, file)),
            partial(_spent, partial((await store()).put, OBJECT, file)),
            partial(_spent, partial(to_thread.run_sync, upload, blob, file)),
            partial(_spent, partial(put_by_obstore, obstore_on_gcs(late.gcs_url, table), file)),
        ]
        measured = await take_turns(sides, ROUNDS)
        stored = [each.size for name in ("bench/", "official", "obstore") for each in client.list_blobs(table, prefix=name)]
        if set(stored) != {file.stat().st_size}:
            raise AssertionError("what was put is not what is stored")
        for each in (blob, client.bucket(table).blob("obstore")):
            each.delete()
    one, lanes, *others = measured
    times = [f"{median(clock_s for clock_s, _ in side):.2f}" for side in measured]
    ratios = [
        Ratio.of([each[place] for each in lanes], [each[place] for each in other]) for place in (0, 1) for other in (one, *others)
    ]
    return [*times, *ratios]


def upload(blob: Any, file: Path) -> None:
    transfer_manager.upload_chunks_concurrently(str(file), blob, worker_type=transfer_manager.THREAD, max_workers=WORKERS)


async def put_by_obstore(store: Any, file: Path) -> None:
    import obstore  # noqa: PLC0415 - some machines have none

    await obstore.put_async(store, "obstore", file, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=WORKERS)


async def _spent(work: Callable[[], Awaitable[object]]) -> Spent:
    gc.collect()
    began, cpu = time.perf_counter(), time.process_time()
    await work()
    return time.perf_counter() - began, time.process_time() - cpu
