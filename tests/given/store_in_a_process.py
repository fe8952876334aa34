"""A store in a process of its own, in which one large object is put and read. It prints its size, and by how many KiB
the process grew since it did the same with a small one.

    python -m tests.given.store_in_a_process SERVICE WAY MEBIBYTES LOG ADDRESS [BUCKET]
"""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio

from changelog.base.runtime import SystemRuntime
from changelog.sqlite.log import Database, SqliteChangeLog
from tiered.gcs.blobs import GcsBlobs
from tiered.metadata import Metadata
from tiered.object_id import ObjectId
from tiered.open import open_storage
from tiered.s3 import arrival as s3_arrival
from tiered.s3.blobs import S3Blobs
from tiered.services.backends import LongTermBackend, Tiers
from tiered.settings import Settings
from tiered.storage import TieredStorage
from tiered.testing.rows import MemoryRows
from tiered.transfer import arrival

RUNTIME = SystemRuntime()
OBJECT, COPY = ObjectId.create("a", "key"), ObjectId.create("a", "copy")
MIB = 1024 * 1024
PIECE_MIB = 8

Put = Callable[[TieredStorage, int], Awaitable[None]]


async def payload(mebibytes: int) -> AsyncIterator[bytes]:
    for number in range(4 * mebibytes):
        yield bytes([number % 256]) * 262_144


async def known(storage: TieredStorage, mebibytes: int) -> None:
    await storage.put(OBJECT, payload(mebibytes), Metadata(size=mebibytes * MIB))


async def unknown(storage: TieredStorage, mebibytes: int) -> None:
    await storage.put(OBJECT, payload(mebibytes))


async def parts(storage: TieredStorage, mebibytes: int) -> None:
    upload = await storage.begin_multipart(OBJECT)
    for number in range(-(-mebibytes // PIECE_MIB)):
        await upload.upload_part(number + 1, payload(min(PIECE_MIB, mebibytes - number * PIECE_MIB)))
    await upload.complete()


async def resumed(storage: TieredStorage, mebibytes: int) -> None:
    upload = await storage.begin_resumable(OBJECT)
    await upload.append(0, payload(mebibytes), final=True)
    await upload.finish()


async def read_back(storage: TieredStorage, mebibytes: int) -> None:
    """As where a service tells nothing by which one could know that the bytes arrived."""
    for module in (arrival, s3_arrival):
        setattr(module, "is_md5", lambda tag: False)  # noqa: B010 - one of them imports it
    await known(storage, mebibytes)


WAYS: Mapping[str, Put] = {each.__name__: each for each in (known, unknown, parts, resumed, read_back)}
SERVICES = ("embedded", "gcs", "s3")


@asynccontextmanager
async def opened(service: str, way: str, log: str, address: str, bucket: str = "") -> AsyncIterator[TieredStorage]:
    if service == "embedded":
        async with open_storage(Settings(directory=Path(address), changelog="sqlite")) as storage:
            yield storage
        return
    async with AsyncExitStack() as stack:
        blobs: LongTermBackend
        if service == "gcs":
            blobs = await stack.enter_async_context(GcsBlobs.connect(bucket, RUNTIME, endpoint=address))
        else:
            blobs = await stack.enter_async_context(S3Blobs.connect(
                bucket, RUNTIME, endpoint=address, region="us-east-1", addressing_style="path", whole_checksums=way != "read_back"
            ))
        database = await stack.enter_async_context(Database.open(Path(log), RUNTIME))
        tiers, settings = Tiers(MemoryRows(RUNTIME), blobs), Settings(directory=Path(log).parent)
        yield await stack.enter_async_context(TieredStorage(tiers, SqliteChangeLog(database, RUNTIME), RUNTIME, settings))


def peak_kib() -> int:
    """Of this process alone. What `resource` tells begins with that of the process that started this one."""
    found = re.search(r"VmHWM:\s+([0-9]+) kB", Path("/proc/self/status").read_text())
    assert found is not None, "Linux"
    return int(found[1])


async def main(service: str, way: str, mebibytes: str, *where: str) -> None:
    async with opened(service, way, *where) as storage:
        await WAYS[way](storage, 2)
        before, size = peak_kib(), 0
        await WAYS[way](storage, int(mebibytes))
        stored = await storage.get(OBJECT)
        assert stored is not None
        async for chunk in stored:
            size += len(chunk)
        sys.stdout.write(f"{size} {peak_kib() - before}\n")


if __name__ == "__main__":
    what, how, many, *where = sys.argv[1:]
    anyio.run(main, what, how, many, *where)
