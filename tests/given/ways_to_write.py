"""The ways to write OBJECT that every store has, each with a payload and its metadata. What fails is raised."""

from __future__ import annotations

from tests.given.tapped_store import OBJECT, in_chunks
from tiered import Metadata, PutRequest, TieredStorage


async def by_put(storage: TieredStorage, payload: bytes, metadata: Metadata | None) -> None:
    await storage.put(OBJECT, payload, metadata)


async def by_put_many(storage: TieredStorage, payload: bytes, metadata: Metadata | None) -> None:
    async with storage.put_many([PutRequest(OBJECT, payload, metadata)]) as results:
        [result.value async for result in results]


async def by_stream(storage: TieredStorage, payload: bytes, metadata: Metadata | None) -> None:
    await storage.put(OBJECT, in_chunks(payload, 100), metadata)


async def by_writer(storage: TieredStorage, payload: bytes, metadata: Metadata | None) -> None:
    async with storage.open(OBJECT, "wb", metadata) as file:
        await file.write(payload)


async def by_parts(storage: TieredStorage, payload: bytes, metadata: Metadata | None) -> None:
    upload = await storage.begin_multipart(OBJECT, metadata)
    middle = len(payload) // 2
    await upload.upload_part(1, payload[:middle])
    await upload.upload_part(2, in_chunks(payload[middle:], 100))
    await upload.complete()


async def by_appending(storage: TieredStorage, payload: bytes, metadata: Metadata | None) -> None:
    upload = await storage.begin_resumable(OBJECT, metadata)
    await upload.append(0, payload, final=True)
    await upload.finish()
