"""A process that uploads large objects until it is killed: puts in lanes, and uploads in parts, turn by turn.

    python -m tests.given.killed_uploader SETTINGS.yaml BYTES SEED SHARE

SHARE of them in parts. It prints the key and the label of each object that it was told ok for.
"""

from __future__ import annotations

import sys
from functools import partial
from random import Random

import anyio

import tiered.transfer.upload_lanes
from tiered import Metadata, ObjectId, TieredStorage, open_storage

KEYS = 5
PART_BYTES = 5 << 20


def payload_of(label: int, size: int) -> bytes:
    return (b"%016d" % label) * (size // 16)


async def upload(storage: TieredStorage, object_id: ObjectId, whole: bytes, *, in_parts: bool) -> None:
    if not in_parts:
        await storage.put(object_id, whole, Metadata(custom={"label": whole[:16].decode()}))
        return
    opened = await storage.begin_multipart(object_id, Metadata(custom={"label": whole[:16].decode()}))
    async with anyio.create_task_group() as group:
        for number, start in enumerate(range(0, len(whole), PART_BYTES), 1):
            group.start_soon(opened.upload_part, number, whole[start : start + PART_BYTES])
    await opened.complete()


async def main(config: str, size: int, seed: int, share: float) -> None:
    chance = Random(seed)
    lanes = tiered.transfer.upload_lanes.UploadLanes
    tiered.transfer.upload_lanes.UploadLanes = partial(lanes, 3, PART_BYTES, PART_BYTES)  # type: ignore[assignment, misc]
    async with open_storage(config) as storage:
        for label in range(seed * 1000, seed * 1000 + 1000):
            key = f"film-{chance.randrange(KEYS)}"
            await upload(storage, ObjectId.create("films", key), payload_of(label, size), in_parts=chance.random() < share)
            print(key, label, flush=True)  # noqa: T201 - to whoever kills it


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
