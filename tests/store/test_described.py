"""A row tells the metadata of its blob: after each way to write, until the next one, and where an older row did not."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from changelog.base.errors import UnconfirmedError
from tests.given.tapped_store import LARGE, OBJECT, TappedWorld, head_of, lost, pieces, read
from tiered import ListEntry, Metadata, ObjectId, TieredStorage, TimeToIdle, TimeToLive
from tiered.protocol import listing
from tiered.protocol.open_upload import WHOLE_BYTES_MAX

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
OTHER = ObjectId.create("attachments", "other")
GIVEN = Metadata(TimeToLive(HOUR), content_type="text/plain", filename="a.txt", custom={"Build": "a/b"}, unknown={"newer": [1]})


async def entry_of(storage: TieredStorage, object_id: ObjectId = OBJECT, **options: Any) -> ListEntry:
    [entry] = [each async for each in storage.list(**options) if isinstance(each, ListEntry) and each.object_id == object_id]
    return entry


async def put(storage: TieredStorage) -> None:
    await storage.put(OBJECT, LARGE, GIVEN)


async def put_unknown_size(storage: TieredStorage) -> None:
    await storage.put(OBJECT, pieces(LARGE, 3, LARGE), GIVEN)


async def told_at_the_end(storage: TieredStorage) -> None:
    await storage.put(OBJECT, pieces(LARGE, LARGE), GIVEN, custom_at_end=lambda: {"sum": "1"})


async def compressed(storage: TieredStorage) -> None:
    await storage.put(OBJECT, bytes(range(256)) * 50, GIVEN, compress="zstd")


async def created_before(storage: TieredStorage) -> None:
    await storage.put(OBJECT, LARGE, Metadata(time_created_ns=5))


async def conditional(storage: TieredStorage) -> None:
    await storage.put(OBJECT, LARGE, GIVEN, if_absent=True)


async def copied(storage: TieredStorage) -> None:
    await storage.put(OTHER, LARGE, GIVEN)
    await storage.copy(OTHER, OBJECT)


async def renamed(storage: TieredStorage) -> None:
    await storage.put(OTHER, LARGE, Metadata(TimeToIdle(HOUR)))
    await storage.rename(OTHER, OBJECT)


async def changed(storage: TieredStorage) -> None:
    await storage.put(OBJECT, LARGE, GIVEN)
    await storage.update_metadata(OBJECT, lambda told: Metadata(TimeToLive(2 * HOUR), content_type="a/b"))


async def expiring(storage: TieredStorage) -> None:
    await storage.put(OBJECT, LARGE)
    await storage.set_expiry(OBJECT, from_creation=HOUR)


async def in_parts(storage: TieredStorage) -> None:
    upload = await storage.begin_multipart(OBJECT, GIVEN)
    await upload.upload_part(1, LARGE)
    await storage._runtime.sleep(100)
    await upload.complete()


async def appended(storage: TieredStorage) -> None:
    upload = await storage.begin_resumable(OBJECT, Metadata(time_created_ns=7, custom={"k": "v"}))
    await upload.append(0, LARGE, final=True)
    await upload.finish()


WRITES = [
    put, put_unknown_size, told_at_the_end, compressed, created_before, conditional, copied, renamed, changed, expiring, in_parts, appended,
]  # fmt: skip


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
async def test_after_each_way_to_write_a_listing_tells_what_a_head_tells_and_asks_no_blob(
    world: TappedWorld, write: Callable[[TieredStorage], Awaitable[None]]
) -> None:
    async with world.store(changelog="sqlite") as storage:
        await write(storage)
        head = await head_of(storage)
        stored = await storage.get(OBJECT, decompress=False)
        assert stored is not None and stored.metadata == head.metadata
        await stored.aclose()
        world.calls.clear()
        plain, whole = await entry_of(storage), await entry_of(storage, metadata=True)
        assert world.calls == ["scan", "scan"]
    assert (plain.size, plain.time_created_ns, plain.time_expires_ns) == (
        head.size, head.metadata.time_created_ns, head.metadata.time_expires_ns,
    )
    assert plain.size is not None and plain.time_created_ns is not None
    assert whole.metadata == head.metadata and (plain.metadata, plain.revision) == (None, head.revision)


async def test_a_large_object_is_as_old_as_a_small_one_that_was_put_at_the_same_moment(world: TappedWorld) -> None:
    """Its time is that of the beginning of the put, and not that of the end of its upload."""
    async with world.store() as storage:
        began_ns = world.runtime.wall_ns()
        await storage.put(OBJECT, pieces(LARGE, 50, LARGE))
        assert world.runtime.wall_ns() - began_ns >= 50e9
        assert (await entry_of(storage)).time_created_ns == (await head_of(storage)).metadata.time_created_ns == began_ns


async def test_many_described_objects_are_listed_in_pages_as_large_as_without_metadata(
    world: TappedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    async def scan(real: Any, prefix: str, start: bytes, limit: int) -> Any:
        asked.append(limit)
        return await real(prefix, start, limit)

    monkeypatch.setattr(listing, "METADATA_PAGE_MAX", 5)
    async with world.store() as storage:
        for number in range(12):
            await storage.put(ObjectId.parse(f"photos/objects/{number:02}"), LARGE)
        world.rows.hooks["scan"] = scan
        world.calls.clear()
        assert len([entry async for entry in storage.list(metadata=True)]) == 12
        assert len((await storage.list_page(limit=11, metadata=True)).entries) == 11
        assert asked == [5, 1000, 5, 7] and "head" not in world.calls
        world.forget_described()
        asked.clear()
        assert len([entry async for entry in storage.list(metadata=True)]) == 12
        assert asked == [5, 5, 5]


async def test_what_older_software_wrote_is_told_once_a_read_has_extended_it(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE, Metadata(TimeToIdle(HOUR), content_type="text/plain"))
        world.forget_described()
        await world.runtime.sleep(3000)
    async with world.store() as storage:
        assert await read(storage) == LARGE
    async with world.store() as storage:  # the end of the one before waited for the touch
        world.calls.clear()
        entry = await entry_of(storage, metadata=True)
        assert world.calls == ["scan"] and entry.size == len(LARGE)
        assert entry.metadata == (await head_of(storage)).metadata


async def test_what_only_reads_tells_nothing_to_the_row(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE, Metadata(TimeToIdle(HOUR)))
        await storage.put(OTHER, LARGE)
        world.forget_described()
        await world.runtime.sleep(3000)
    async with TieredStorage(world.tiers, world.log, world.runtime, world.settings(), writes=False) as storage:
        assert await read(storage) == LARGE
        assert [entry.size async for entry in storage.list()] == [None, None]
    async with world.store() as storage:
        assert await read(storage, OTHER) == LARGE, "it does not expire, so no read writes"
        assert (await entry_of(storage, OTHER)).size is None


async def test_long_metadata_of_an_upload_in_parts_are_asked_of_its_blob(world: TappedWorld) -> None:
    async with world.store(changelog="sqlite") as storage:
        upload = await storage.begin_multipart(OBJECT, Metadata(custom={"k": "v" * WHOLE_BYTES_MAX}))
        await upload.upload_part(1, LARGE)
        await upload.complete()
        assert (await entry_of(storage)).size is None
        whole = await entry_of(storage, metadata=True)
        assert whole.size == len(LARGE) and whole.metadata == (await head_of(storage)).metadata


async def test_an_upload_that_older_software_began_is_completed_and_asked_of_its_blob(world: TappedWorld) -> None:
    async with world.store(changelog="sqlite") as storage:
        upload = await storage.begin_multipart(OBJECT, GIVEN)
        await upload.upload_part(1, LARGE)
        [entry] = await world.entries()
        older = {key: value for key, value in json.loads(entry.assembling).items() if key != "whole"}
        assert await world.log.target.amend(entry, replace(entry, assembling=json.dumps(older)))
        await upload.complete()
        assert (await entry_of(storage)).size is None
        assert (await entry_of(storage, metadata=True)).metadata == (await head_of(storage)).metadata


async def test_a_swap_whose_answer_was_lost_has_described_the_blob(world: TappedWorld) -> None:
    async with world.store() as storage:
        world.rows.hooks["swap"] = lost(UnconfirmedError("no answer"))
        with suppress(UnconfirmedError):
            await storage.put(OBJECT, LARGE, GIVEN)
        assert (await entry_of(storage)).size == len(LARGE)
