"""A stored object is a payload: it streams from one name to another, however the copy ends."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.given.tapped_store import LARGE, OBJECT, SMALL, TappedWorld, head_of, opened, read
from tiered import ByteRange, InvalidRequestError, Metadata, ObjectId, UnavailableError

pytestmark = pytest.mark.anyio

COPY = ObjectId.create("attachments", "copy", {"org": "17"})


def sizes_of_uploads(world: TappedWorld) -> list[int | None]:
    sizes: list[int | None] = []

    async def open_upload(method: Any, name: str, metadata: Metadata, size: int | None) -> Any:
        sizes.append(size)
        return await method(name, metadata, size)

    world.blobs.hooks["open_upload"] = open_upload
    return sizes


@pytest.mark.parametrize("payload", [b"", SMALL, LARGE])
@pytest.mark.parametrize("to", [COPY, OBJECT])
async def test_a_copy_streams_with_its_size_known_and_closes_its_source(world: TappedWorld, payload: bytes, to: ObjectId) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, payload)
        sizes = sizes_of_uploads(world)
        source = await opened(storage)
        result = await storage.put(to, source, Metadata(content_type=source.metadata.content_type))
        assert result.size == len(payload) == source.length
        assert await read(storage, to) == await read(storage, OBJECT) == payload
        assert sizes == ([len(payload)] if payload == LARGE else [])
        with pytest.raises(InvalidRequestError, match="already read or closed; get it again"):
            await storage.put(to, source)
    assert await world.is_clean()


@pytest.mark.parametrize("span", [ByteRange(1000), ByteRange(0, 50), ByteRange(-4000), ByteRange(10, 4000), ByteRange(4000, 99_999)])
async def test_a_copy_of_a_range_has_the_size_of_the_range(world: TappedWorld, span: ByteRange) -> None:
    start, stop = span.within(len(LARGE))
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        sizes = sizes_of_uploads(world)
        async with await storage.get(OBJECT, span) as source:  # type: ignore[union-attr]
            assert source.length == stop - start
            await storage.put(COPY, source)
        assert await read(storage, COPY) == LARGE[start:stop]
        assert sizes == ([stop - start] if stop - start > 100 else [])


async def test_a_copy_with_the_metadata_of_its_source_has_them(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE, Metadata(custom={"k": "v"}))
        source = await opened(storage)
        await storage.put(COPY, source, source.metadata)
        assert (await head_of(storage, COPY)).metadata == source.metadata


async def test_an_object_is_read_once_and_its_iterator_is_one(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        stored = await opened(storage)
        iterator = aiter(stored)
        assert aiter(iterator) is iterator
        assert b"".join([chunk async for chunk in iterator]) == LARGE
        with pytest.raises(InvalidRequestError, match="already read or closed"):
            aiter(stored)


async def broken(method: Any, *args: Any, **named: Any) -> Any:
    raise UnavailableError("not now")


@pytest.mark.parametrize("backend", ["rows", "blobs"])
async def test_a_copy_that_fails_closes_its_source(world: TappedWorld, backend: str) -> None:
    async with world.store(store={"answer_budget_s": 1}) as storage:
        await storage.put(OBJECT, LARGE)
        source = await storage.get(OBJECT)
        if backend == "rows":
            world.rows.hooks["read"] = broken
        else:
            world.blobs.hooks["open_upload"] = broken
        with pytest.raises(UnavailableError, match="not now"):
            await storage.put(COPY, source)  # type: ignore[arg-type]
        assert source is not None
        with pytest.raises(InvalidRequestError, match="already read or closed"):
            await source.read()
        world.rows.hooks.clear()
        world.blobs.hooks.clear()
    assert await world.is_clean()


@pytest.mark.parametrize(
    ("object_id", "metadata"), [(COPY, Metadata().with_facts(size=-1)), ("no id", None), (COPY, "no metadata")],
    ids=["metadata", "id", "type"],
)
async def test_a_copy_that_is_refused_closes_its_source_too(world: TappedWorld, object_id: Any, metadata: Any) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        source = await opened(storage)
        with pytest.raises(InvalidRequestError):
            await storage.put(object_id, source, metadata)
        with pytest.raises(InvalidRequestError, match="already read or closed"):
            await source.read()


async def test_a_source_that_vanishes_on_the_way_leaves_the_target_as_it_was(world: TappedWorld) -> None:
    class Vanishing:
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield LARGE
            raise UnavailableError("the blob vanished on the way")

    async with world.store() as storage:
        await storage.put(COPY, SMALL)
        with pytest.raises(UnavailableError, match="vanished"):
            await storage.put(COPY, Vanishing())
        assert await read(storage, COPY) == SMALL
    assert await world.is_clean()


# --- the size that an upload is promised ---------------------------------------------------------


@pytest.mark.parametrize("path", ["/proc/cpuinfo", "/sys/devices/system/cpu/online", "/proc/version"])
async def test_an_upload_of_a_file_of_the_system_is_promised_no_size(world: TappedWorld, path: str) -> None:
    sizes = sizes_of_uploads(world)
    async with world.store(inline_bytes_max=1) as storage:
        size = (await storage.put(OBJECT, Path(path))).size
        assert len(await read(storage, OBJECT) or b"") == size > 1
    assert sizes == [None]


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more" * 1000)


@pytest.mark.parametrize("change", [grow, lambda path: None])
async def test_a_file_that_grows_is_stored_as_long_as_it_was_when_it_was_opened(
    world: TappedWorld, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """Nobody declared a size, so none is exceeded, whether it grows before its upload is opened or afterwards."""
    path = tmp_path / "log"
    path.write_bytes(bytes(1_000_000))

    async def open_upload(method: Any, name: str, metadata: Metadata, size: int | None) -> Any:
        change(path)
        assert size == 1_000_000
        return await method(name, metadata, size)

    world.blobs.hooks["open_upload"] = open_upload
    async with world.store() as storage:
        assert (await storage.put(OBJECT, path)).size == 1_000_000
        assert await read(storage, OBJECT) == bytes(1_000_000)


async def test_a_file_that_shrinks_while_it_is_stored_is_named_and_nothing_is_left(world: TappedWorld, tmp_path: Path) -> None:
    path = tmp_path / "truncated"
    path.write_bytes(bytes(1_000_000))

    async def open_upload(method: Any, *args: Any) -> Any:
        os.truncate(path, 500_000)
        return await method(*args)

    world.blobs.hooks["open_upload"] = open_upload
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        with pytest.raises(InvalidRequestError, match="truncated' became shorter while it was read"):
            await storage.put(OBJECT, path)
        assert await read(storage, OBJECT) == SMALL
    assert await world.is_clean()


async def test_a_declared_size_is_what_the_file_must_have(world: TappedWorld, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(LARGE)
    async with world.store() as storage:
        for wrong in (len(LARGE) - 1, len(LARGE) + 1):
            with pytest.raises(InvalidRequestError, match=r"declare"):
                await storage.put(OBJECT, path, Metadata(size=wrong))
        await storage.put(OBJECT, path, Metadata(size=len(LARGE)))
    assert await world.is_clean()
