"""A large object is saved to a file: in one stream, in lanes, by google-cloud-storage in threads, and by obstore.

    one stream     `save` with `store.read_lanes_max` 1
    lanes          `save` as it is
    official       `transfer_manager.download_chunks_concurrently`, with its own sizes and eight threads
    obstore        `get_async`, in one stream: it has nothing else for a whole object

Every answer of GCS is late by the round trip (a relay), and so much of one connection is on its way at most as with the
receive window that Linux gives a connection by default: half of the 6 MiB of `tcp_rmem`. So one connection is as fast
as it is far. Loopback has no limit but the two cores, which the servers, the relay and the client share.
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
from tiered import ObjectId, Settings, TieredStorage, open_storage

ROUNDS = 3
PAYLOAD_BYTES = 1024 * 1024 * 1024
WINDOW_KIB = 3 * 1024
ROUND_TRIPS_MS = (0, 20, 100)
OBJECT = ObjectId.create("bench", "large")
WORKERS = 8
CHUNK_BYTES = 8 * 1024 * 1024

Taken = tuple[float, float]
"""The seconds by the clock, and of CPU of this process."""


async def figures(servers: Servers, size: float) -> list[Figures]:
    payload = os.urandom(max(1024 * 1024 * 2, round(PAYLOAD_BYTES * size)))
    rows: list[list[Cell]] = []
    table = await servers.new_table()
    async with open_storage(servers.settings(table, "noop")) as store:
        await store.put(OBJECT, payload)
    with TemporaryDirectory(prefix="tiered-bench-") as directory:
        for round_trip_ms in ROUND_TRIPS_MS:
            rows.append([f"{round_trip_ms} ms", *await _row(servers, table, round_trip_ms, Path(directory) / "saved", payload)])
    columns = [
        "round trip", "one stream, s", "lanes, s", "official, s", "obstore, s", "lanes, of one stream", "lanes, of official",
        "lanes, of obstore", "CPU, of one stream", "CPU, of official", "CPU, of obstore",
    ]  # fmt: skip
    return [Figures(f"{len(payload) >> 20} MiB saved to a file", columns, rows, [
        f"Medians of {ROUNDS} rounds. CPU: of all threads of the client. A connection has {WINDOW_KIB >> 10} MiB on its way at most.",
    ])]  # fmt: skip


async def _row(servers: Servers, table: str, round_trip_ms: int, file: Path, payload: bytes) -> list[Cell]:
    async with AsyncExitStack() as opened:
        late = await opened.enter_async_context(delayed(servers, 0.0, float(round_trip_ms), WINDOW_KIB))

        async def store(**lanes: int) -> TieredStorage:
            settings: Settings = late.settings(table, "noop", store=lanes)
            return await opened.enter_async_context(open_storage(settings, writes=False))

        client = storage.Client(PROJECT, AnonymousCredentials(), client_options={"api_endpoint": late.gcs_url})  # type: ignore[no-untyped-call]
        [blob] = client.list_blobs(table, prefix="bench/")
        sides: list[Callable[[], Awaitable[Taken]]] = [
            partial(_taken, partial(save, await store(read_lanes_max=1), file), file, payload),
            partial(_taken, partial(save, await store(), file), file, payload),
            partial(_taken, partial(to_thread.run_sync, download, blob, file), file, payload),
            partial(_taken, partial(fetch, obstore_on_gcs(late.gcs_url, table), blob.name, file), file, payload),
        ]
        measured = await take_turns(sides, ROUNDS)
    one, lanes, *others = measured
    times = [f"{median(clock_s for clock_s, _ in side):.2f}" for side in measured]
    ratios = [
        Ratio.of([each[place] for each in lanes], [each[place] for each in other]) for place in (0, 1) for other in (one, *others)
    ]
    return [*times, *ratios]


async def save(store: TieredStorage, file: Path) -> None:
    stored = await store.get(OBJECT)
    assert stored is not None
    await stored.save(file)


def download(blob: Any, file: Path) -> None:
    transfer_manager.download_chunks_concurrently(blob, str(file), worker_type=transfer_manager.THREAD, max_workers=WORKERS)


async def fetch(store: Any, name: str, file: Path) -> None:
    """By obstore, which has one stream for a whole object."""
    import obstore  # noqa: PLC0415 - some machines have none

    with file.open("wb") as destination:
        async for chunk in (await obstore.get_async(store, name)).stream(CHUNK_BYTES):
            destination.write(chunk)


async def _taken(work: Callable[[], Awaitable[object]], file: Path, payload: bytes) -> Taken:
    gc.collect()
    began, cpu = time.perf_counter(), time.process_time()
    await work()
    taken = time.perf_counter() - began, time.process_time() - cpu
    if file.stat().st_size != len(payload) or (len(payload) < 1 << 24 and file.read_bytes() != payload):
        raise AssertionError("what was saved is not what was put")
    file.unlink()
    return taken
