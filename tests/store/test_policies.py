"""A store with policies for its usecases: whichever way an object is written, it keeps them; nothing is half done."""

from __future__ import annotations

import io
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from tests.given.signed_links import LINKS
from tests.given.tapped_store import OBJECT, RARE_BEATS, TappedWorld, answer_lost, head_of, read
from tests.given.ways_to_write import by_appending, by_parts, by_put, by_put_many, by_stream, by_writer
from tiered import (
    ByteRange,
    InvalidRequestError,
    Metadata,
    MultipartUpload,
    ObjectId,
    ObjectPrefix,
    PutRequest,
    RateLimitedError,
    TieredStorage,
    TimeToIdle,
    TimeToLive,
    UnavailableError,
)
from tiered.directories import upload_directory
from tiered.exports import import_objects

pytestmark = pytest.mark.anyio
HOUR, DAY, WEEK = timedelta(hours=1), timedelta(days=1), timedelta(days=7)
FREE = ObjectId.create("free", "key", {"org": "17"})
OTHER = ObjectId.create("attachments", "other", {"org": "17"})
SMALL, LARGE = b"s" * 50, b"l" * 5000
USECASE = OBJECT.usecase

Opening = Callable[..., AbstractAsyncContextManager[TieredStorage]]


@pytest.fixture
def opened(world: TappedWorld) -> Opening:
    """Opens the store with a policy for the usecase of OBJECT, and none for that of FREE."""

    def opening(**policy: Any) -> AbstractAsyncContextManager[TieredStorage]:
        return world.store(changelog="sqlite", lease=RARE_BEATS, usecases={USECASE: policy}, links=LINKS)

    return opening


async def pieces(payload: bytes, taken: list[int] | None = None) -> AsyncIterator[bytes]:
    size = 100 if len(payload) <= 1_000_000 else 100_000
    for at in range(0, len(payload), size):
        if taken is not None:
            taken.append(at)
        yield payload[at : at + size]


async def expiration(storage: TieredStorage, object_id: ObjectId = OBJECT) -> Any:
    head = await storage.head(object_id)
    return head and head.metadata.expiration


# --- every way in ----------------------------------------------------------------------------------


async def by_file(storage: TieredStorage, payload: bytes, metadata: Metadata | None) -> None:
    with tempfile.NamedTemporaryFile() as file:
        await anyio.Path(file.name).write_bytes(payload)
        await storage.put(OBJECT, Path(file.name), metadata)


async def by_copy(storage: TieredStorage, payload: bytes, metadata: Metadata | None) -> None:
    await storage.put(FREE, payload, metadata)
    await storage.copy(FREE, OBJECT)


async def by_rename(storage: TieredStorage, payload: bytes, metadata: Metadata | None) -> None:
    await storage.put(FREE, payload, metadata)
    await storage.rename(FREE, OBJECT)


async def by_keeping(storage: TieredStorage, payload: bytes, metadata: Metadata | None) -> None:
    """As an import puts what has a deadline already."""
    told = None if metadata is None else metadata.stamped(storage._runtime.wall_ns())
    async with storage.put_many([PutRequest(OBJECT, payload, told, keep_deadline=True)]) as results:
        [result.value async for result in results]


async def by_keeping_a_later_deadline(storage: TieredStorage, payload: bytes, metadata: Metadata | None) -> None:
    """The lifetime that it once had is short, and its end was moved."""
    told = None if metadata is None else replace(metadata.stamped(storage._runtime.wall_ns()), expiration=TimeToLive(timedelta(seconds=1)))
    async with storage.put_many([PutRequest(OBJECT, payload, told, keep_deadline=True)]) as results:
        [result.value async for result in results]


@asynccontextmanager
async def before(storage: TieredStorage) -> AsyncIterator[TieredStorage]:
    """The same store, of a process that knows no policy yet."""
    settings = storage._settings.model_copy(update={"usecases": {}})
    async with TieredStorage(storage._tiers, storage._assembler._log, storage._runtime, settings) as unjudged:
        yield unjudged


async def by_parts_begun_before(storage: TieredStorage, payload: bytes, metadata: Metadata | None) -> None:
    async with before(storage) as unjudged:
        upload = await unjudged.begin_multipart(OBJECT, metadata)
        part = await upload.upload_part(1, payload)
    await storage.multipart(OBJECT, upload.id).complete([part])


async def by_appending_begun_before(storage: TieredStorage, payload: bytes, metadata: Metadata | None) -> None:
    async with before(storage) as unjudged:
        upload = await unjudged.begin_resumable(OBJECT, metadata)
        await upload.append(0, payload, final=True)
    await storage.resumable(OBJECT, upload.id).finish()


async def by_link_signed_before(storage: TieredStorage, payload: bytes, metadata: Metadata | None) -> None:
    async with before(storage) as unjudged:
        signed = await unjudged.sign_put(OBJECT, HOUR, metadata)
        await signed.upload.upload_part(1, payload)
    await storage.multipart(OBJECT, signed.upload.id).complete()


async def by_directory(storage: TieredStorage, payload: bytes, metadata: Metadata | None) -> None:
    with tempfile.TemporaryDirectory() as directory:
        await (anyio.Path(directory) / OBJECT.key).write_bytes(payload)
        report = await upload_directory(storage, directory, ObjectPrefix.create(USECASE, "", dict(OBJECT.scopes)))
    for failure in report.failures:
        assert failure.error is not None
        raise failure.error


async def by_import(storage: TieredStorage, payload: bytes, metadata: Metadata | None) -> None:
    with tempfile.TemporaryDirectory() as directory:
        await (anyio.Path(directory) / OBJECT.key).write_bytes(payload)
        report = await import_objects(storage, directory, ObjectPrefix.create(USECASE, "", dict(OBJECT.scopes)))
    for failure in report.failures:
        assert failure.error is not None
        raise failure.error


NEW = [by_put, by_put_many, by_file, by_stream, by_writer, by_parts, by_appending]
COPIES = [by_copy, by_rename, by_keeping]
EARLIER = [by_parts_begun_before, by_appending_begun_before, by_link_signed_before]
OF_FILES = [by_directory, by_import]
WAYS = [*NEW, *COPIES, by_keeping_a_later_deadline, *EARLIER, *OF_FILES]

WRITES = {
    "put", "put_many", "open", "copy", "rename", "begin_multipart", "begin_resumable", "multipart", "resumable", "sign_put",
    "update_metadata", "set_expiry",
}  # fmt: skip
"""The calls of a store by which an object is written, with what they return. The last two change one that is there."""

NO_WRITES = {
    "aclose", "services_away", "dangling_found", "compare", "delete", "delete_many", "get", "get_many", "head", "head_many", "list",
    "list_page", "outcome", "sign_get",
}  # fmt: skip


def test_each_call_of_a_store_writes_and_is_a_way_here_or_writes_nothing() -> None:
    assert {name for name in vars(TieredStorage) if not name.startswith("_")} == WRITES | NO_WRITES


@pytest.mark.parametrize("way", WAYS)
async def test_no_way_stores_an_object_that_its_policy_forbids(opened: Opening, world: TappedWorld, way: Any) -> None:
    forbidden: list[tuple[dict[str, Any], bytes, Metadata | None]] = [
        ({"object_bytes_max": 4999}, LARGE, None),
        ({"object_bytes_max": 49}, SMALL, None),
        ({"lifetime_max_s": 3600}, SMALL, Metadata(TimeToLive(DAY))),
        ({"lifetime_max_s": 3600}, LARGE, Metadata(TimeToIdle(DAY))),
        ({"lifetime_max_s": 3600}, SMALL, None),
        ({"closed": True}, LARGE, None),
    ]
    for policy, payload, metadata in forbidden:
        async with opened(**policy) as storage:
            with pytest.raises(InvalidRequestError, match=rf"was not stored: .*\(usecases\.attachments\.{next(iter(policy))}\)"):
                await way(storage, payload, metadata)
            assert await storage.head(OBJECT) is None
    assert not any(name.startswith("attachments/") for name in await world.blob_names())


@pytest.mark.parametrize("way", [*NEW, *COPIES, *EARLIER])
async def test_every_way_stores_what_is_just_allowed(opened: Opening, way: Any) -> None:
    for payload in (LARGE, SMALL):
        async with opened(object_bytes_max=len(payload), lifetime_max_s=3600, bytes_per_s=1e9, requests_per_s=1e3) as storage:
            await way(storage, payload, Metadata(TimeToLive(HOUR)))
            assert await read(storage) == payload
            assert await expiration(storage) == TimeToLive(HOUR)
            await storage.delete(OBJECT)


@pytest.mark.parametrize("way", NEW)
async def test_an_object_without_an_expiration_gets_the_default(opened: Opening, world: TappedWorld, way: Any) -> None:
    async with opened(time_to_idle_default_s=DAY.total_seconds(), lifetime_max_s=WEEK.total_seconds()) as storage:
        for payload in (LARGE, SMALL):
            await way(storage, payload, Metadata(filename="a.txt"))
            head = await head_of(storage)
            assert (head.metadata.expiration, head.metadata.filename) == (TimeToIdle(DAY), "a.txt")
            await world.runtime.sleep(23 * 3600)
            assert await read(storage) == payload, "that renews it"
            await world.runtime.sleep(23 * 3600)
            assert await read(storage) == payload
            await world.runtime.sleep(25 * 3600)
            assert await storage.get(OBJECT) is None


async def test_what_keeps_its_deadline_gets_no_default(opened: Opening) -> None:
    """It was refused by "keep_deadline needs both expiration and time_expires_ns", neither of which it told."""
    async with opened(time_to_live_default_s=3600) as storage:
        await by_keeping(storage, SMALL, None)
        assert await read(storage) == SMALL and await expiration(storage) is None


async def test_a_stream_is_ended_by_the_first_chunk_that_is_too_much(opened: Opening, world: TappedWorld) -> None:
    taken: list[int] = []
    async with opened(object_bytes_max=3000) as storage:
        with pytest.raises(InvalidRequestError, match="at most 3000 bytes"):
            await storage.put(OBJECT, pieces(b"x" * 1_000_000, taken))
        assert len(taken) < 100
        with pytest.raises(InvalidRequestError, match="at most 3000 bytes"):
            await storage.put(OBJECT, pieces(LARGE), Metadata(size=3001))
        with pytest.raises(InvalidRequestError, match="at most 3000 bytes"):
            await storage.put(OBJECT, pieces(LARGE), Metadata(size=3000))
        await storage.put(OBJECT, pieces(b"x" * 3000), Metadata(size=3000))
    assert len(await world.blob_names()) == 1 and not await world.entries()


async def test_a_payload_that_is_compressed_counts_as_it_is_stored(opened: Opening) -> None:
    async with opened(object_bytes_max=1000, bytes_per_s=1000) as storage:
        result = await storage.put(OBJECT, bytes(100_000), compress="zstd")
        assert result.size <= 1000 and await read(storage) == bytes(100_000)
        noise = Random(1).randbytes(3000)
        with pytest.raises(InvalidRequestError, match="at most 1000 bytes"):
            await storage.put(OBJECT, noise, compress="zstd")


async def test_what_is_known_to_be_too_large_is_refused_before_anything_is_sent(opened: Opening, world: TappedWorld) -> None:
    async with opened(object_bytes_max=3000) as storage:
        for way in (by_put, by_file):
            world.calls.clear()
            with pytest.raises(InvalidRequestError, match="at most 3000 bytes"):
                await way(storage, LARGE, None)
            assert world.calls == []
        for declared in (partial(storage.begin_multipart, OBJECT), partial(storage.put, OBJECT, pieces(LARGE))):
            with pytest.raises(InvalidRequestError, match="at most 3000 bytes, and it has 3001"):
                await declared(metadata=Metadata(size=3001))
        assert world.calls == []


async def test_an_upload_that_became_too_large_stays_open_until_it_is_aborted(opened: Opening, world: TappedWorld) -> None:
    async with opened(object_bytes_max=5000) as storage:
        upload = await storage.begin_multipart(OBJECT)
        for number in (1, 2):
            await upload.upload_part(number, LARGE)
        for parts in (None, await upload.parts()):
            with pytest.raises(InvalidRequestError, match="at most 5000 bytes"):
                await upload.complete(parts)
        with pytest.raises(InvalidRequestError, match="at most 5000 bytes"):
            await upload.upload_part(3, LARGE + b"x")
        assert len(await upload.parts()) == 2
        await upload.complete((await upload.parts())[:1])
        assert await read(storage) == LARGE


async def test_an_upload_that_was_claimed_is_not_judged_by_a_policy_of_later(opened: Opening, world: TappedWorld) -> None:
    """Its first completion may yet take effect, so "nothing happened" would not be true."""
    async with world.store(changelog="sqlite", lease=RARE_BEATS) as storage:
        upload = await storage.begin_multipart(OBJECT)
        await upload.upload_part(1, LARGE)

        world.blobs.hooks["complete_parts"] = answer_lost
        with pytest.raises(UnavailableError):
            await upload.complete()
        del world.blobs.hooks["complete_parts"]
    async with opened(object_bytes_max=1) as storage:
        assert (await storage.multipart(OBJECT, upload.id).complete()).size == len(LARGE)
        assert await read(storage) == LARGE


async def test_an_append_counts_what_is_there(opened: Opening) -> None:
    five = b"x" * (5 << 20)
    async with opened(object_bytes_max=(5 << 20) + 10) as storage:
        upload = await storage.begin_resumable(OBJECT)
        at = await upload.append(0, five, part_bytes=5 << 20)
        with pytest.raises(InvalidRequestError, match="object_bytes_max"):
            await upload.append(at, b"y" * 11, final=True)
        assert await upload.status() == at
        await upload.append(at, b"y" * 10, final=True)
        await upload.finish()
        assert await read(storage) == five + b"y" * 10


async def test_a_change_of_metadata_keeps_the_policy_and_other_changes_are_free(opened: Opening, world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE, Metadata(filename="old"))
    async with opened(lifetime_max_s=3600, object_bytes_max=1, closed=True) as storage:
        await storage.update_metadata(OBJECT, lambda now: Metadata(filename="new"))
        for change in (
            partial(storage.set_expiry, OBJECT, from_creation=DAY),
            partial(storage.update_metadata, OBJECT, lambda now: Metadata(TimeToIdle(DAY))),
        ):
            with pytest.raises(InvalidRequestError, match=r"\(usecases\.attachments\.lifetime_max_s\)"):
                await change()
        await storage.put(FREE, SMALL)
        await storage.set_expiry(FREE, from_creation=WEEK)
        await storage.set_expiry(OBJECT, from_creation=HOUR)
        with pytest.raises(InvalidRequestError, match="it would stay until it is deleted"):
            await storage.set_expiry(OBJECT)
        head = await head_of(storage)
        assert (head.metadata.filename, head.metadata.expiration) == ("new", TimeToLive(HOUR))
        await storage.delete(OBJECT)


async def test_a_creation_in_the_future_hides_no_lifetime(opened: Opening, world: TappedWorld) -> None:
    """Deadlines that count from the creation would be years away, with a lifetime of an hour."""
    async with opened(lifetime_max_s=3600) as storage:
        created_ns = world.runtime.wall_ns() + 10**9 * 86_400 * 3650
        await storage.put(OBJECT, SMALL, Metadata(TimeToLive(HOUR), time_created_ns=created_ns))
        with pytest.raises(InvalidRequestError, match="lifetime_max_s"):
            await storage.set_expiry(OBJECT, from_creation=HOUR)


# --- rates -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [bytes, io.BytesIO, pieces])
async def test_each_byte_of_a_payload_counts_once(opened: Opening, payload: Callable[[bytes], Any]) -> None:
    """Whether its size is known from the first, once it was begun to be read, or never."""
    async with opened(bytes_per_s=1 << 20) as storage:
        await storage.put(OBJECT, payload(bytes(9 << 20)))
        with pytest.raises(RateLimitedError) as refused:
            await storage.get(OBJECT)
        assert refused.value.retry_after_s == pytest.approx(8, abs=0.01)


async def calls(storage: TieredStorage, upload: MultipartUpload) -> list[Callable[[], Any]]:
    """Every call that counts. It makes one itself."""
    part = await upload.upload_part(1, SMALL)
    prefix = ObjectPrefix.create(USECASE)

    async def listing() -> list[Any]:
        return [entry async for entry in storage.list(prefix)]

    async def writing() -> None:
        async with storage.open(OBJECT, "wb") as file:
            await file.write(SMALL)

    return [
        partial(storage.put, OBJECT, SMALL), partial(storage.put, OBJECT, pieces(LARGE)), writing, partial(storage.get, OBJECT),
        partial(storage.head, OBJECT), partial(storage.delete, OBJECT), partial(storage.copy, OBJECT, FREE),
        partial(storage.copy, FREE, OBJECT), partial(storage.rename, OBJECT, FREE), listing, partial(storage.list_page, prefix),
        partial(storage.update_metadata, OBJECT, lambda now: now), partial(storage.set_expiry, OBJECT, from_creation=HOUR),
        partial(storage.sign_get, OBJECT, HOUR), partial(storage.begin_multipart, OBJECT), partial(storage.begin_resumable, OBJECT),
        partial(storage.sign_put, OBJECT, HOUR), partial(upload.upload_part, 2, SMALL), upload.parts, partial(upload.complete, [part]),
        partial(upload.sign_part, 1, HOUR), partial(storage.resumable(OBJECT, upload.id).append, 50, SMALL),
    ]  # fmt: skip


async def test_every_call_is_refused_while_the_rate_is_used_up_and_nothing_is_sent(world: TappedWorld) -> None:
    policy = {"requests_per_s": 0.001, "burst_s": 2000}
    async with world.store(changelog="sqlite", links=LINKS, usecases={USECASE: policy}) as storage:
        upload = await storage.begin_multipart(OBJECT)
        every = await calls(storage, upload)  # that was the second of two
        world.calls.clear()
        for call in every:
            with pytest.raises(RateLimitedError, match=r"usecases\.attachments\.requests_per_s") as refused:
                await call()
            assert 990 < (refused.value.retry_after_s or 0) <= 1000
        assert world.calls == []
        await storage.put(FREE, SMALL)
        assert await read(storage, FREE) == SMALL
        await upload.abort()


async def test_a_call_that_takes_two_steps_counts_once(world: TappedWorld) -> None:
    """So it can succeed where a bucket never holds more than one."""
    async with world.store(changelog="sqlite", lease=RARE_BEATS, links=LINKS, usecases={USECASE: {"requests_per_s": 0.001}}) as storage:
        resumed = await storage.begin_resumable(OBJECT)
        for call in (
            partial(resumed.append, 0, SMALL), partial(resumed.append, 0, pieces(SMALL)), partial(storage.sign_put, OBJECT, HOUR),
            partial(storage.rename, FREE, OBJECT),
        ):  # fmt: skip
            await world.runtime.sleep(1000)
            await call()
            with pytest.raises(RateLimitedError):
                await storage.head(OBJECT)


async def test_a_range_that_is_refused_costs_no_bytes(opened: Opening) -> None:
    async with opened(bytes_per_s=1000) as storage:
        await storage.put(OBJECT, Random(1).randbytes(500), compress="zstd")
        for _ in range(3):
            with pytest.raises(InvalidRequestError, match="decompress=False"):
                await storage.get(OBJECT, ByteRange(0, 500))


async def test_bytes_that_were_moved_are_waited_for_and_what_has_begun_goes_on(opened: Opening, world: TappedWorld) -> None:
    async with opened(bytes_per_s=1000) as storage:
        upload = await storage.begin_multipart(OBJECT)
        for write, reads in ((LARGE, False), (pieces(LARGE), False), (LARGE, True)):
            if reads:
                assert await read(storage) == LARGE
            else:
                await storage.put(OBJECT, write)
            with pytest.raises(RateLimitedError, match=r"usecases\.attachments\.bytes_per_s") as refused:
                await (storage.get(OBJECT) if reads else storage.put(OBJECT, SMALL))
            assert refused.value.retry_after_s == pytest.approx(4, abs=0.01), "5000 bytes, of which 1000 were there"
            assert await storage.head(OBJECT) is not None
            for call in (partial(storage.put, OBJECT, pieces(LARGE)), partial(upload.upload_part, 1, SMALL)):
                with pytest.raises(RateLimitedError, match="bytes_per_s"):
                    await call()
            await world.runtime.sleep(5)


async def test_many_items_wait_for_their_turn_where_one_is_refused(opened: Opening, world: TappedWorld) -> None:
    async with opened(requests_per_s=10) as storage:
        began_s = world.runtime.monotonic()
        ids = [ObjectId.create(USECASE, f"{number:02}") for number in range(30)]
        async with storage.put_many([PutRequest(each, SMALL) for each in ids]) as stored:
            assert [result.error async for result in stored] == [None] * 30
        assert world.runtime.monotonic() - began_s == pytest.approx(2, abs=0.2)
        async with storage.get_many(ids) as loaded:
            assert {result.value is not None async for result in loaded} == {True}
        async with storage.head_many(ids) as heads:
            assert {result.value is not None async for result in heads} == {True}
        async with storage.delete_many(ids) as deleted:
            assert [result.error async for result in deleted] == [None] * 30
        assert world.runtime.monotonic() - began_s == pytest.approx(11, abs=0.5)


async def test_a_listing_that_has_begun_goes_on(opened: Opening, world: TappedWorld) -> None:
    async with world.store() as storage:
        for number in range(250):
            await storage.put(ObjectId.create(USECASE, f"{number:03}"), b"", Metadata(TimeToLive(HOUR)))
    async with opened(requests_per_s=1) as storage:
        began_s = world.runtime.monotonic()
        assert len([entry async for entry in storage.list(ObjectPrefix.create(USECASE), metadata=True)]) == 250
        assert world.runtime.monotonic() - began_s == pytest.approx(1, abs=0.1), "a page of 100 rows, and one of the rest"
        with pytest.raises(RateLimitedError):
            await anext(storage.list(ObjectPrefix.create(USECASE)))
        assert len([entry async for entry in storage.list()]) == 250, "a listing of all usecases is none's"
        await world.runtime.sleep(HOUR.total_seconds())
        assert (await storage.list_page(ObjectPrefix.create(USECASE), metadata=True)).entries == (), "all of three pages have expired"


async def test_leaving_a_bulk_call_ends_its_wait_at_once(opened: Opening, world: TappedWorld) -> None:
    async with opened(requests_per_s=0.001) as storage:
        began_s = world.runtime.monotonic()
        async with storage.delete_many([OBJECT, OTHER]) as results:
            assert (await anext(results)).error is None
        assert world.runtime.monotonic() == began_s


async def test_an_item_that_waits_while_the_store_is_closed_is_not_begun(world: TappedWorld) -> None:
    async with (
        world.store(usecases={USECASE: {"requests_per_s": 0.1}}) as storage,
        storage.put_many([PutRequest(each, SMALL) for each in (OBJECT, FREE, OTHER)]) as results,
    ):
        assert {(await anext(results)).error, (await anext(results)).error} == {None}
        await storage.aclose()
        world.calls.clear()
        with pytest.raises(InvalidRequestError, match="the storage is not open"):
            _ = (await anext(results)).value
    assert world.calls == []
