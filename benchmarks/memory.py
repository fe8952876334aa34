"""How much of the client's memory large uploads take.

That is its peak with many uploads at once, minus the peak with as many small puts.

    child 1   64 small puts at once -> peak A -> 64 puts of 64 MiB at once, from generators -> peak B: B - A are ours
    child 2   the same by google-cloud-storage, its BlobWriter in threads: a quarter as many, as each takes so much

Each side has its own child process, because a peak (`ru_maxrss`) never goes down. The generators make each chunk of 256
KiB when it is asked for, so payload bytes that are held are counted too: 1 MiB of each payload is read before it is
known that it is not inline. A sink in another process takes the uploads (`benchmarks.gcs_sink`), because an emulator
would keep them.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial

import anyio
import requests.adapters
from anyio import CapacityLimiter, to_thread
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage as google_storage

from benchmarks.figures import Figures
from benchmarks.rounds import run_in_flight
from benchmarks.servers import BUCKET, Servers, started, unless_left_alone
from tiered import ObjectId
from tiered.open import open_storage
from tiered.settings import StoreSettings

MIB = 1024 * 1024
CHUNK_BYTES = MIB // 4
UPLOAD_BYTES = 64 * MIB
UPLOADS = 64
TIMEOUT_S = 240.0


async def figures(servers: Servers, size: float) -> list[Figures]:
    uploads = max(2, round(UPLOADS * size))
    sides = (("ours, streamed", "ours", uploads), ("google-cloud-storage, BlobWriter in threads", "official", max(2, uploads // 4)))
    rows = []
    table = await servers.new_table()
    async with started("benchmarks.gcs_sink", servers.full_name(table)) as url:
        for name, side, at_once in sides:
            told = [side, str(at_once), str(UPLOAD_BYTES), servers.bigtable_host, url.strip(), table]
            async with started("benchmarks.memory", *told, within_s=TIMEOUT_S) as peaks:
                base, peak = map(int, peaks.split())
            extra_mib = (peak - base) / 1024
            what = f"{at_once} x {UPLOAD_BYTES // MIB} MiB"
            rows.append([name, what, f"{base / 1024:.0f}", f"{extra_mib:.0f}", f"{extra_mib / at_once:.2f}"])
    columns = ["", "at once", "peak of as many small puts, MiB", "more with the uploads, MiB", "for each, MiB"]
    return [Figures("Memory of concurrent uploads", columns, rows)]


# --- a child -------------------------------------------------------------------------------------


def peak_kib() -> int:
    """Returns the most memory that this process has ever held, in KiB on Linux."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def chunks(size: int) -> AsyncIterator[bytes]:
    for chunk in fresh_chunks(size):
        yield chunk


def fresh_chunks(size: int) -> Iterator[bytes]:
    chance = os.urandom(CHUNK_BYTES)
    for number in range(size // CHUNK_BYTES):
        yield number.to_bytes(8, "big") + chance[8:]


async def ours(uploads: int, size: int, servers: Servers, table: str) -> tuple[int, int]:
    settings = servers.settings(table, "bigtable", store=StoreSettings(concurrency_max=uploads))
    async with open_storage(settings) as storage:

        async def put_small(name: int) -> None:
            await storage.put(ObjectId.create("bench", f"small{name}"), bytes(1024))

        async def put_large(name: int) -> None:
            await storage.put(ObjectId.create("bench", f"large{name}"), chunks(size))

        await run_in_flight(put_small, range(uploads), uploads)
        base = peak_kib()
        await run_in_flight(put_large, range(uploads), uploads)
    return base, peak_kib()


async def official(uploads: int, size: int, servers: Servers, _: str) -> tuple[int, int]:
    client = google_storage.Client("bench", AnonymousCredentials(), client_options={"api_endpoint": servers.gcs_url})  # type: ignore[no-untyped-call]
    client._http.mount("http://", requests.adapters.HTTPAdapter(pool_connections=1, pool_maxsize=uploads))
    bucket, threads = client.bucket(BUCKET), CapacityLimiter(uploads)

    def write(name: int) -> None:
        with bucket.blob(f"large{name}").open("wb", if_generation_match=0) as blob:
            for chunk in fresh_chunks(size):
                blob.write(chunk)

    async def put_small(name: int) -> None:
        await to_thread.run_sync(bucket.blob(f"small{name}").upload_from_string, bytes(1024), limiter=threads)

    async def put_large(name: int) -> None:
        await to_thread.run_sync(write, name, limiter=threads)

    await run_in_flight(put_small, range(uploads), uploads)
    base = peak_kib()
    await run_in_flight(put_large, range(uploads), uploads)
    client.close()
    return base, peak_kib()


if __name__ == "__main__":
    side, how_many, how_large, host, address, table = sys.argv[1:]
    measure = partial({"ours": ours, "official": official}[side], int(how_many), int(how_large), Servers(host, address), table)
    print(*anyio.run(unless_left_alone, measure), flush=True)
