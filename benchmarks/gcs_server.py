"""Our emulator of GCS in its own process.

`python -m benchmarks.gcs_server BUCKET` says its URL and serves until stdin ends.
"""

from __future__ import annotations

import sys

import anyio

from benchmarks.servers import left_alone
from emulators.gcs.server import GcsEmulator


async def serve(bucket: str) -> None:
    async with GcsEmulator() as server:
        server.create_bucket(bucket)
        print(server.url, flush=True)
        await left_alone()


if __name__ == "__main__":
    anyio.run(serve, sys.argv[1])
