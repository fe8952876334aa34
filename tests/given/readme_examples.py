"""The Python examples of the README and the reference, word for word, each in a function with the names it expects.

Nobody runs this. It is here for type checkers: mypy checks it with all of `tests`, strictly. `tests/test_readme.py`
compares it with the pages.
"""
# ruff: noqa: I001, PLC0415, T201

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

from tiered import ByteRange, ObjectId, ObjectPrefix, OutcomeUnknownError, PutRequest, TieredStorage, UnavailableError
from tiered.testing import memory_storage


def ten_lines() -> None:
    import anyio
    from tiered import Metadata, ObjectId, Settings, open_storage

    async def main() -> None:
        async with open_storage(Settings(directory="data")) as storage:
            photo = ObjectId.create("photos", "2026/cat.jpg", scopes={"org": "17"})
            payload = b"...any size: bytes, a path, a file, an async iterator..."
            await storage.put(photo, payload, Metadata(content_type="image/jpeg"))
            stored = await storage.get(photo)                     # None if there is none
            if stored is not None:
                print(await stored.read())                        # or: await stored.save(Path("cat.jpg"))
            await storage.delete(photo)

    anyio.run(main)


async def directory(storage: TieredStorage) -> None:
    from tiered.directories import upload_directory

    report = await upload_directory(storage, "photos", ObjectPrefix.create("photos", "2026/"), delete=True)
    if report.failed:
        print(report.failures[0].path, report.failures[0].why)


async def listing(storage: TieredStorage) -> None:
    prefix = ObjectPrefix.create("photos", "2026/", scopes={"org": "17"})
    async for entry in storage.list(prefix, metadata=True):
        print(entry.object_id.key, entry.size, entry.time_created, entry.revision)

    page = await storage.list_page(prefix, limit=100, delimiter="/")
    print([entry.object_id.key for entry in page.objects], [folder.prefix.path for folder in page.folders], page.next_page_token)


async def checked(
    storage: TieredStorage, photo: ObjectId, payload: bytes, digest: str, film: ObjectId, frames: Callable[[], AsyncIterator[bytes]],
    frame: bytes, count: int,
) -> None:  # fmt: skip
    await storage.put(photo, payload, checksums={"sha256": digest})   # other bytes: InvalidRequestError, nothing stored
    await storage.put(film, frames(), custom_at_end=lambda: {"frames": str(count)})
    async with storage.open(film, "wb") as file:                      # leaving it by an error stores nothing
        await file.write(frame)
    etag = f'"{file.result.revision}"'                                # a strong ETag, as the revision of a head is
    assert etag


async def compressed(storage: TieredStorage, log: ObjectId, lines: Callable[[], AsyncIterator[bytes]]) -> None:
    await storage.put(log, lines(), compress="zstd")
    stored = await storage.get(log)                                   # decompresses; only its end tells its length
    start = await storage.get(log, ByteRange(0, 100), decompress=False)
    assert stored and start


async def bulk(storage: TieredStorage, directory: Path) -> None:
    requests = (PutRequest(ObjectId.create("photos", path.name), path) for path in directory.iterdir())
    async with storage.put_many(requests) as results:
        async for result in results:                   # as they complete; .position and .request say which one it is
            if result.error is not None:               # .value raises the error, so nobody takes a failure for a None
                print(f"{result.request.object_id}: {result.error}")


def blocking() -> None:
    import json
    import tiered.sync
    from tiered import ObjectId, Settings

    with tiered.sync.open_storage(Settings(directory="data")) as storage:
        note = ObjectId.create("notes", "1.json")
        storage.put(note, b'{"text": "hello"}')
        stored = storage.get(note)                      # None if there is none
        if stored is not None:
            with stored:                                # a binary file: read(n), readinto, shutil.copyfileobj, …
                print(json.load(stored))


def pandas_file() -> None:
    import pandas

    pandas.read_parquet("tiered://tables/objects/2026.parquet", storage_options={"settings": "tiered.yaml"})


async def tests_of_a_service() -> None:
    async with memory_storage() as storage:                      # or: with blocking_memory_storage() as storage
        storage.faults.fail("put", OutcomeUnknownError, took_effect=True)
        storage.faults.fail("get", UnavailableError, calls=3)
        storage.faults.fail("append", UnavailableError)              # also upload_part, complete, abort, parts, sign_part
        storage.clock.advance(timedelta(days=31))                # objects expire
