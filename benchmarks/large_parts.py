"""Where the client's CPU goes when it puts and gets 2 MiB: each part alone, ours beside the same calls made bare.

    rows        put: read the row, record, swap, forget (the rows and the changelog); get: read the row
    the blob    put: the upload; get: what the blob is, and its bytes
    checksum    crc32c of the payload, which is in the blob's part already, too; bare has none
    the store   limits, ids, metadata, tasks, the heartbeat, verdicts: a store over tiers in memory. Bare has nothing of
                this. The tiers in memory take a part of it.

The sum of the parts is put beside the whole operation, so that nothing is left out unseen.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from itertools import count, islice
from statistics import median

from benchmarks.bare import BareBlobs, BareRows
from benchmarks.figures import Figures
from benchmarks.rounds import run_in_flight, take_turns, timed
from benchmarks.servers import Servers
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from tiered import Metadata, ObjectId, Settings, TieredStorage
from tiered.open import Backends, open_backends
from tiered.payload.crc32c import extend_crc
from tiered.payload.streams import VIEW_BYTES, chunks
from tiered.protocol.backends import Tombstone
from tiered.testing.in_memory import NOWHERE, memory_storage

RUNTIME = SystemRuntime()
ROUNDS = 9
IN_FLIGHT = 16
OPERATIONS = 32
LARGE_BYTES = 2 * 1024 * 1024
SMALL_BYTES = 2048
SWAP_S = 60.0
PUT = ("put: rows and changelog", "put: the upload", "put: the store", "put: sum", "put: the whole", "of it: checksum of 2 MiB")
GET = ("get: row", "get: the blob", "get: the store", "get: sum", "get: the whole")
MEASURED = tuple(part for part in (*PUT, *GET) if not part.endswith("sum"))

Work = Callable[[str], Awaitable[object]]


async def figures(servers: Servers, size: float) -> list[Figures]:
    operations = max(2, round(OPERATIONS * size))
    async with AsyncExitStack() as opened:
        table = await servers.new_table()
        settings = servers.settings(table, "bigtable")
        assert settings.gcs is not None
        backends = await opened.enter_async_context(open_backends(settings, RUNTIME))
        store = await opened.enter_async_context(TieredStorage(backends.tiers, backends.log, RUNTIME, settings))
        bare_rows = await opened.enter_async_context(BareRows.connect(servers.bigtable_host, servers.full_name(table)))
        bare_blobs = await opened.enter_async_context(BareBlobs.connect(bare_rows, servers.gcs_url, settings.gcs.bucket))
        in_memory = await opened.enter_async_context(memory_storage(Settings(directory=NOWHERE, inline_bytes_max=SMALL_BYTES // 2)))
        payload, first = os.urandom(LARGE_BYTES), _path(0)
        for each in (store, in_memory):
            await each.put(ObjectId.parse(first), payload[: LARGE_BYTES if each is store else SMALL_BYTES])
        blob = await bare_rows.target(first)
        assert blob is not None, "put before"
        works = {
            **_ours(backends, store, in_memory, payload, blob), **_bare(bare_rows, bare_blobs, payload, blob)
        }  # fmt: skip
        names = count(1)
        gc.freeze()

        async def measure(work: Work) -> float:
            paths = [_path(name) for name in islice(names, operations)]
            gc.collect()
            return await timed(run_in_flight(work, paths, IN_FLIGHT), time.process_time) / len(paths)

        measured = await take_turns([partial(measure, work) for work in works.values()], ROUNDS)
        gc.unfreeze()
    micros = {key: 1e6 * median(side) for key, side in zip(works, measured, strict=True)}
    for side in ("ours", "bare"):
        for operation in (PUT, GET):
            micros[operation[3], side] = sum(micros.get((part, side), 0.0) for part in operation[:3])
    rows = [[part, *_cells(micros.get((part, "ours"), 0.0), micros.get((part, "bare"), 0.0))] for part in (*PUT, *GET)]
    columns = ["2 MiB", "ours, µs", "bare, µs", "ours more, µs"]
    notes = [
        f"Process time per operation with {IN_FLIGHT} in flight; each is the median of {ROUNDS} rounds.",
        "The checksum is in the upload and in the blob's part; bare has none.",
    ]
    return [Figures("Where the CPU of 2 MiB goes", columns, rows, notes)]


def _cells(ours: float, bare: float) -> list[str]:
    return [f"{ours:,.0f}", f"{bare:,.0f}" if bare else "", f"{ours - bare:,.0f}"]


def _path(number: int) -> str:
    return f"bench/objects/{number}"


def _ours(
    backends: Backends, store: TieredStorage, in_memory: TieredStorage, payload: bytes, blob: str
) -> dict[tuple[str, str], Work]:
    rows, blobs, log, small = backends.tiers.high_volume, backends.tiers.long_term, backends.log, payload[:SMALL_BYTES]

    async def row_calls(path: str) -> None:
        token = ChangeId.new(RUNTIME)
        await rows.read(path)
        entry = await log.record(Change(token, path, f"{path}/{token}", None, None, None), "bench")
        await rows.swap(path, token, None, Tombstone(f"{path}/{token}", token=token), RUNTIME.boot_time() + SWAP_S)
        await log.forget(entry)

    async def upload(path: str) -> None:
        begun = await blobs.open_upload(f"{path}/{ChangeId.new(RUNTIME)}", Metadata(), len(payload))
        async for chunk in chunks(payload, views=VIEW_BYTES):
            await begun.write(chunk)
        await begun.finalise()

    async def open_blob(_: str) -> None:
        reader = await blobs.open(blob)
        assert reader is not None, "put before"
        try:
            _whole(b"".join([chunk async for chunk in reader.chunks()]))
        finally:
            await reader.aclose()

    async def checksum(_: str) -> None:
        extend_crc(0, payload)

    async def put(storage: TieredStorage, payload: bytes, path: str) -> None:
        await storage.put(ObjectId.parse(path), payload)

    async def get(storage: TieredStorage, _: str) -> bytes:
        found = await storage.get(ObjectId.parse(_path(0)))
        assert found is not None, "put before"
        return await found.read()

    works: list[Work] = [
        row_calls, upload, partial(put, in_memory, small), partial(put, store, payload), checksum,
        rows.read, open_blob, partial(get, in_memory), partial(get, store),
    ]  # fmt: skip
    return {(part, "ours"): work for part, work in zip(MEASURED, works, strict=True)}


def _bare(rows: BareRows, blobs: BareBlobs, payload: bytes, blob: str) -> dict[tuple[str, str], Work]:
    async def row_calls(path: str) -> None:
        token = ChangeId.new(RUNTIME)
        await rows.target(path)
        await rows.record(path, token, f"{path}/{token}", None)
        await rows.swap(path, token, None, f"{path}/{token}")
        await rows.forget(token)

    async def upload(path: str) -> None:
        await blobs.upload(f"{path}/{ChangeId.new(RUNTIME)}", payload)

    async def read_blob(_: str) -> None:
        _whole(await blobs.read(blob))

    async def put(path: str) -> None:
        await blobs.put(path, ChangeId.new(RUNTIME), payload)

    async def get(_: str) -> None:
        _whole(await blobs.get(_path(0)) or b"")

    works: dict[str, Work] = {PUT[0]: row_calls, PUT[1]: upload, PUT[4]: put, GET[0]: rows.target, GET[1]: read_blob, GET[4]: get}
    return {(part, "bare"): work for part, work in works.items()}


def _whole(payload: bytes) -> None:
    if len(payload) != LARGE_BYTES:
        raise AssertionError(f"{len(payload)} bytes came, and not {LARGE_BYTES}: {payload[:300]!r}")
