"""A process that writes to an embedded store until it is killed: `python -m tests.given.busy_writer STORE NAME`.

It puts, replaces and deletes objects whose payloads are blobs, and runs recovery beside that. It prints a line as soon
as the first object is stored.
"""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from pathlib import Path

import anyio

from changelog.base.runtime import SystemRuntime
from recovery.loop import RecoveryLoop
from tiered import ObjectId, Settings, TieredStorage, UnavailableError
from tiered.open import open_backends
from tiered.settings import LeaseSettings, RecoverySettings

KEYS = 6
BLOB_BYTES = 2000


def settings(directory: Path) -> Settings:
    return Settings(
        directory=directory, inline_bytes_max=100, lease=LeaseSettings(expiry_s=1.0),
        recovery=RecoverySettings(idle_s=0.1),
    )  # fmt: skip


def payload(object_id: ObjectId, number: int) -> bytes:
    """Says whose it is, so that a reader can tell a whole payload from another."""
    return f"{object_id.path} {number} ".encode().ljust(BLOB_BYTES, b".")


async def write(directory: Path, name: str) -> None:
    runtime, chosen = SystemRuntime(), settings(directory)
    async with open_backends(chosen, runtime) as backends, TieredStorage(backends.tiers, backends.log, runtime, chosen) as storage:

        async def change(object_id: ObjectId) -> None:
            is_first = object_id.key.endswith("/0")
            for number in range(1_000_000):
                with suppress(UnavailableError):  # a busy machine may stand for longer than this short lease lasts
                    if random.random() < 0.2:
                        await storage.delete(object_id)
                    await storage.put(object_id, payload(object_id, number))
                    if is_first:
                        sys.stdout.write("stored\n")
                        sys.stdout.flush()
                    is_first = False

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(RecoveryLoop(backends.tiers, backends.log, runtime, chosen).run)
            for key in range(KEYS):
                tasks.start_soon(change, ObjectId.create("notes", f"{name}/{key}"))


if __name__ == "__main__":
    anyio.run(write, Path(sys.argv[1]), sys.argv[2])
