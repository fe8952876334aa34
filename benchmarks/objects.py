"""Our store beside obstore, which is the `object_store` crate of Rust as a Python package.

    GCS           the store    `TieredStorage`: rows in Bigtable, large payloads in GCS, a changelog, the clean-up
                  its blobs    `GcsBlobs` alone: the same payload as one object, its checksum verified
                  obstore      its client of GCS, by the XML API
    a directory   the store    embedded: rows in SQLite, large payloads in files, all of it synced to the disk
                  obstore      `LocalStore`: a file for each object, renamed into place, and not synced

obstore asks the XML API of GCS, and our client the JSON API. The emulator does not take the same time for both. So only
the CPU of the client is compared there, which has that of Rust's threads in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from obstore.store import GCSStore, LocalStore

from benchmarks.harness import RUNTIME, Contest, Figures, Measure, put_get_delete
from benchmarks.servers import BUCKET, started_servers
from benchmarks.sides import BlobsSide, StoreSide
from changelog.change import ChangeId
from tiered import Settings
from tiered.gcs.blobs import GcsBlobs

IN_FLIGHT = (1, 16)
PAYLOADS = {"1 KiB": (os.urandom(1024), 100), "2 MiB": (os.urandom(2 * 1024 * 1024), 12)}
LABELS = ("", "payload", "in flight")
IN_ROWS = "Each payload of obstore is an object of GCS. Those of the store of 1 KiB are in their rows."
ALONE = "Our client of GCS without rows and without a changelog."
SYNCED = "Ours has synced what it has answered: a put survives a loss of power. That of obstore may not."
BOTH = (Measure("clock_s", "ms"), Measure("cpu_s", "ms", "CPU: "))


class Obstore:
    def __init__(self, store: Any) -> None:
        self._store = store

    async def put(self, name: str, token: ChangeId, payload: bytes) -> None:
        await self._store.put_async(f"obstore/{name}", payload)

    async def get(self, name: str) -> bytes | None:
        return bytes(await (await self._store.get_async(f"obstore/{name}")).bytes_async())

    async def delete(self, name: str, token: ChangeId) -> None:
        await self._store.delete_async(f"obstore/{name}")


def obstore_on_gcs(url: str, bucket: str = BUCKET) -> Any:
    """Opens obstore's client of GCS. Only a service account without OAuth keeps it from asking Google for a token."""
    account = {"gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    return GCSStore(bucket, config={"service_account_key": json.dumps(account)}, client_options={"allow_http": True})


async def compare(title: str, sides: Mapping[str, Any], measures: tuple[Measure, ...], note: str, size: float) -> Figures:
    contest = Contest(title, sides, measures=measures, labels=LABELS, notes=[note])
    for in_flight in IN_FLIGHT:
        for what, (payload, number) in PAYLOADS.items():
            await contest.run(put_get_delete(payload), max(2, round(number * size)), in_flight, what, str(in_flight))
    return contest.figures()


async def figures(size: float) -> list[Figures]:
    async with AsyncExitStack() as opened:
        servers = await opened.enter_async_context(started_servers())
        store = await opened.enter_async_context(StoreSide.open(servers.settings(await servers.new_table(), "bigtable")))
        blobs = await opened.enter_async_context(GcsBlobs.connect(BUCKET, RUNTIME, endpoint=servers.gcs_url))
        obstore, cpu = Obstore(obstore_on_gcs(servers.gcs_url)), (Measure("cpu_s", "µs"),)
        gcs = "CPU of the client on GCS beside obstore"
        tables = [await compare(gcs, {"the store": store, "obstore": obstore}, cpu, IN_ROWS, size)]
        tables.append(await compare(f"{gcs}: blobs alone", {"the blobs": BlobsSide(blobs), "obstore": obstore}, cpu, ALONE, size))
        where = Path(opened.enter_context(TemporaryDirectory(prefix="tiered-bench-")))
        embedded = await opened.enter_async_context(StoreSide.open(Settings(directory=where / "ours")))
        local = Obstore(LocalStore(where / "obstore", mkdir=True))
        tables.append(await compare("A directory beside obstore", {"the store": embedded, "obstore": local}, BOTH, SYNCED, size))
    return tables
