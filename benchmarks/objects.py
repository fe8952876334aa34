"""Our store beside obstore, which is the `object_store` crate of Rust as a Python package.

    GCS           the store    `TieredStorage`: rows in Bigtable, large payloads in GCS, a changelog, the clean-up
                  its blobs    `GcsBlobs` alone: the same payload as one object, its checksum verified
                  obstore      its client of GCS, by the XML API
    a directory   the store    embedded: rows in SQLite, large payloads in files, all of it synced to the disk
                  obstore      `LocalStore`: a file for each object, renamed into place, and not synced

obstore asks the XML API of GCS, and our client the JSON API. The emulator does not take the same time for both. So only
the CPU of the client is compared there: `time.process_time`, all threads of this process, also those of Rust.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from benchmarks.figures import Cell, Figures
from benchmarks.rounds import Ratio, run_in_flight, take_turns, timed
from benchmarks.servers import BUCKET, Servers
from changelog.base.runtime import SystemRuntime
from tiered import Metadata, ObjectId, ObjectPrefix, Settings, TieredStorage
from tiered.gcs.blobs import GcsBlobs
from tiered.open import open_storage

RUNTIME = SystemRuntime()
ROUNDS = 7
KIB = 1024
SIZES = {"1 KiB": KIB, "2 MiB": 2 * KIB * KIB}
TIMES = {"1 KiB": 100, "2 MiB": 12}
IN_FLIGHT = (1, 16)
LISTED = 1000
NOT_INSTALLED = "obstore is not installed, so it is not measured; install it with: pip install '.[dev]' -c constraints.txt"


class ObjectsSide(Protocol):
    async def put(self, name: str, payload: bytes) -> object: ...
    async def get(self, name: str) -> bytes: ...
    async def list(self, prefix: str) -> int: ...


def is_installed() -> bool:
    return find_spec("obstore") is not None


async def figures(servers: Servers, size: float) -> list[Figures]:
    """Returns nothing if obstore is not installed; stderr says so."""
    if not is_installed():
        sys.stderr.write(f"{NOT_INSTALLED}\n")
        return []
    return [await on_gcs(servers, size), await in_directory(size)]


async def on_gcs(servers: Servers, size: float) -> Figures:
    async with AsyncExitStack() as opened:
        store = await opened.enter_async_context(open_storage(servers.settings(await servers.new_table(), "bigtable")))
        blobs = await opened.enter_async_context(GcsBlobs.connect(BUCKET, RUNTIME, endpoint=servers.gcs_url))
        sides: list[ObjectsSide] = [WholeStore(store), LargePayloadsAlone(blobs), Obstore(obstore_on_gcs(servers.gcs_url))]
        measured = await compare(sides, size)
    rows: list[list[Cell]] = []
    for named, rounds in measured:
        ours, alone, theirs = ([cpu_s for _, cpu_s in side] for side in rounds)
        costs = (f"{median(side) * 1e6:,.0f}" for side in (ours, alone, theirs))
        rows.append([*named, *costs, Ratio.of(ours, theirs), Ratio.of(alone, theirs)])
    columns = ["", "payload", "in flight", "the store, µs", "its blobs alone, µs", "obstore, µs", "store, of obstore", "blobs, of obstore"]
    return Figures("CPU of the client on GCS beside obstore", columns, rows, [
        "Each payload of obstore is an object of GCS. Those of the store of 1 KiB are in their rows, and it lists rows."
        f" A listing has {listed_at(size):,} names, and its times are of all of them. Medians of {ROUNDS} rounds.",
    ], named_by=columns[:3])  # fmt: skip


async def in_directory(size: float) -> Figures:
    from obstore.store import LocalStore

    with TemporaryDirectory(prefix="tiered-bench-") as directory:
        where = Path(directory)
        async with open_storage(Settings(directory=where / "ours")) as store:
            sides: list[ObjectsSide] = [WholeStore(store), Obstore(LocalStore(where / "obstore", mkdir=True))]
            measured = await compare(sides, size)
    rows: list[list[Cell]] = []
    for named, (ours, theirs) in measured:
        times = (f"{median(clock_s for clock_s, _ in side) * 1e3:.3f}" for side in (ours, theirs))
        clock, cpu = (Ratio.of([each[place] for each in ours], [each[place] for each in theirs]) for place in (0, 1))
        rows.append([*named, *times, clock, cpu])
    columns = ["", "payload", "in flight", "the store, ms", "obstore, ms", "time, of obstore", "CPU, of obstore"]
    return Figures("A directory beside obstore", columns, rows, [
        "Ours has synced what it has answered: a put survives a loss of power. That of obstore may not."
        f" Medians of {ROUNDS} rounds.",
    ], named_by=columns[:3])  # fmt: skip


def obstore_on_gcs(url: str, bucket: str = BUCKET) -> Any:
    """Opens obstore's client of GCS. Only a service account without OAuth keeps it from asking Google for a token."""
    from obstore.store import GCSStore

    account = {"gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    return GCSStore(bucket, config={"service_account_key": json.dumps(account)}, client_options={"allow_http": True})


Round = tuple[float, float]
"""The seconds of one operation: by the clock, and of CPU."""

Measured = list[tuple[tuple[str, str, str], list[list[Round]]]]
"""What was done, with which payload and how many in flight; and for each side its rounds."""


async def compare(sides: Sequence[ObjectsSide], size: float) -> Measured:
    measured: Measured = []
    for in_flight in IN_FLIGHT:
        for what, payload_bytes in SIZES.items():
            payload, times, names = os.urandom(payload_bytes), max(2, round(TIMES[what] * size)), count()
            items = [f"{what.replace(' ', '')}/{in_flight}/{number}" for number in range(times)]

            async def put(side: ObjectsSide, item: str, payload: bytes = payload, names: count[int] = names) -> None:
                await side.put(f"{item}-{next(names)}", payload)

            async def get(side: ObjectsSide, item: str, payload: bytes = payload) -> None:
                if len(await side.get(item)) != len(payload):
                    raise AssertionError(f"{item} is not what was put")

            measured.append((("put", what, str(in_flight)), await _rounds(sides, put, items, in_flight)))
            for side in sides:
                await run_in_flight(partial(side.put, payload=payload), items, in_flight)
            measured.append((("get", what, str(in_flight)), await _rounds(sides, get, items, in_flight)))
    listed = listed_at(size)
    for side in sides:
        await run_in_flight(partial(side.put, payload=b"x" * KIB), [f"listed/{number:06}" for number in range(listed)], 16)

    async def list_all(side: ObjectsSide, prefix: str) -> None:
        if await side.list(prefix) != listed:
            raise AssertionError("not all is listed")

    measured.append((("list", "", "1"), await _rounds(sides, list_all, ["listed"], 1)))
    return measured


def listed_at(size: float) -> int:
    return max(2, round(LISTED * size))


async def _rounds(
    sides: Sequence[ObjectsSide], work: Callable[[ObjectsSide, str], Awaitable[None]], items: Sequence[str], in_flight: int
) -> list[list[Round]]:
    async def seconds(side: ObjectsSide) -> Round:
        gc.collect()  # so that no side pays for another's garbage
        cpu_s = time.process_time()
        clock_s = await timed(run_in_flight(partial(work, side), items, in_flight))
        return clock_s / len(items), (time.process_time() - cpu_s) / len(items)

    return await take_turns([partial(seconds, side) for side in sides], ROUNDS)


# --- the sides -----------------------------------------------------------------------------------


class WholeStore:
    def __init__(self, storage: TieredStorage) -> None:
        self._storage = storage

    async def put(self, name: str, payload: bytes) -> None:
        await self._storage.put(ObjectId.create("bench", name), payload)

    async def get(self, name: str) -> bytes:
        found = await self._storage.get(ObjectId.create("bench", name))
        return b"" if found is None else await found.read()

    async def list(self, prefix: str) -> int:
        return len([each async for each in self._storage.list(ObjectPrefix.create("bench", f"{prefix}/"))])


class LargePayloadsAlone:
    """What the store does with a large payload, without rows and without changelog."""

    def __init__(self, blobs: GcsBlobs) -> None:
        self._blobs = blobs

    async def put(self, name: str, payload: bytes) -> None:
        upload = await self._blobs.open_upload(f"alone/{name}", Metadata(), len(payload))
        await upload.write(payload)
        await upload.finalise()

    async def get(self, name: str) -> bytes:
        reader = await self._blobs.open(f"alone/{name}")
        assert reader is not None
        try:
            return b"".join([chunk async for chunk in reader])
        finally:
            await reader.aclose()

    async def list(self, prefix: str) -> int:
        page = await self._blobs.list(f"alone/{prefix}/", f"alone/{prefix}0", LISTED)
        return len(page.blobs)


class Obstore:
    def __init__(self, store: Any) -> None:
        self._store = store

    async def put(self, name: str, payload: bytes) -> None:
        await self._store.put_async(name, payload)

    async def get(self, name: str) -> bytes:
        return bytes(await (await self._store.get_async(name)).bytes_async())

    async def list(self, prefix: str) -> int:
        return len(await self._store.list(prefix).collect_async())
