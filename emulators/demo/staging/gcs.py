"""The GCS emulator in a process of its own, so that the demo can freeze it.

    python -m emulators.demo.staging.gcs          prints its address in one line, and serves until it is killed
"""

from __future__ import annotations

import sys

import anyio

from emulators.gcs.server import GcsEmulator


async def serve() -> None:
    async with GcsEmulator() as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(serve)
