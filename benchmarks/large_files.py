"""A large object is put from a file and saved to one: in lanes, in one stream, and by what others have.

    lanes          `put` and `save` as they are
    one stream     the same with `store.upload_memory_bytes` 0, and one lane of reads
    official       google-cloud-storage's `transfer_manager`, with its own sizes and eight threads
    obstore        `put_async` in parts of 8 MiB, eight at once; `get_async` in one stream: it has nothing else

Every request to GCS, or every answer, is late by the round trip (a relay), and so much of one connection is on its way
at most as with the window that Linux gives a connection by default. So one connection is as fast as it is far. Loopback
has no limit but the two cores, which the servers, the relay and the client share.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import obstore
from anyio import to_thread
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage import transfer_manager

from benchmarks.harness import Contest, Figures, Measure, few
from benchmarks.objects import obstore_on_gcs
from benchmarks.servers import PROJECT, Servers, delayed, started_servers
from changelog.change import ChangeId
from tiered import ObjectId, TieredStorage, open_storage

PAYLOAD_BYTES = 1024 * 1024 * 1024
WINDOW_KIB = 3 * 1024
ROUND_TRIPS_MS = (0, 20, 100)
OBJECT = ObjectId.create("bench", "large")
WORKERS, PART_BYTES = 8, 8 * 1024 * 1024
MEASURES = (Measure("clock_s", "s"), Measure("cpu_s", "s", "CPU: "))
NOTE = f"CPU: of all threads of the client. A connection has {WINDOW_KIB >> 10} MiB on its way at most."


async def _sides(opened: AsyncExitStack, late: Servers, table: str, file: Path, *, saves: bool) -> dict[str, Callable[[], Any]]:
    """What each side does once: puts the file, or saves its object to it."""
    settings = late.settings(table, "noop")
    slow = settings.model_copy(update={"store": settings.store.model_copy(update={"upload_memory_bytes": 0})})
    lanes, one = [await opened.enter_async_context(open_storage(each)) for each in (settings, slow)]
    one._reader._lanes.free = 0  # no helper begins
    client = storage.Client(PROJECT, AnonymousCredentials(), client_options={"api_endpoint": late.gcs_url})  # type: ignore[no-untyped-call]
    rust, threads = obstore_on_gcs(late.gcs_url, table), {"worker_type": transfer_manager.THREAD, "max_workers": WORKERS}

    async def save(store: TieredStorage) -> None:
        stored = await store.get(OBJECT)
        assert stored is not None
        await stored.save(file)

    async def fetch() -> None:
        with file.open("wb") as destination:
            async for chunk in (await obstore.get_async(rust, blob.name)).stream(PART_BYTES):
                destination.write(chunk)

    if saves:
        [blob] = client.list_blobs(table, prefix="bench/")
        download = partial(transfer_manager.download_chunks_concurrently, blob, str(file), **threads)
        return {"lanes": partial(save, lanes), "one stream": partial(save, one), "official": partial(to_thread.run_sync, download),
                "obstore": fetch}  # fmt: skip
    official = client.bucket(table).blob("official")
    upload = partial(transfer_manager.upload_chunks_concurrently, str(file), official, **threads)
    put = partial(obstore.put_async, rust, "obstore", file, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=WORKERS)
    return {"lanes": partial(lanes.put, OBJECT, file), "one stream": partial(one.put, OBJECT, file),
            "official": partial(to_thread.run_sync, upload), "obstore": put}  # fmt: skip


async def _do(side: Callable[[], Any], name: str, token: ChangeId) -> None:
    await side()


async def figures(size: float) -> list[Figures]:
    tables, payload_bytes = [], max(2 * 1024 * 1024, round(PAYLOAD_BYTES * size))
    for saves, what in ((False, "put from a file"), (True, "saved to a file")):
        contest = Contest[Callable[[], Any]](f"{payload_bytes >> 20} MiB {what}", {}, few(3, size), MEASURES, ("", "round trip"), [NOTE])
        for round_trip_ms in ROUND_TRIPS_MS:
            async with AsyncExitStack() as opened:
                servers = await opened.enter_async_context(started_servers())  # anew, because they keep what they have in memory
                file, table = Path(opened.enter_context(TemporaryDirectory())) / "payload", await servers.new_table()
                file.write_bytes(os.urandom(payload_bytes))
                async with open_storage(servers.settings(table, "noop")) as store:
                    await store.put(OBJECT, file)
                late = await opened.enter_async_context(delayed(servers, 0.0, float(round_trip_ms), WINDOW_KIB, of_requests=not saves))
                contest.sides = await _sides(opened, late, table, file, saves=saves)
                await contest.run({what: _do}, 1, 1, f"{round_trip_ms} ms")
                if file.stat().st_size != payload_bytes:
                    raise AssertionError("what was saved is not what was put")
        tables.append(contest.figures())
    return tables
