"""`copy` and `rename`: a new revision elsewhere, whose bytes the service copies itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest

from tests.given.tapped_store import LARGE, OBJECT, SMALL, TappedWorld, answer_lost, pieces, read
from tiered import (
    ConditionFailedError,
    DanglingTombstoneError,
    InvalidRequestError,
    Metadata,
    ObjectId,
    TimeToLive,
    UnavailableError,
)

pytestmark = pytest.mark.anyio

OTHER = ObjectId.create("attachments", "other", {"org": "17"})
METADATA = Metadata(TimeToLive(timedelta(hours=1)), content_type="text/plain", custom={"a": "b"})
sizes = pytest.mark.parametrize("payload", [SMALL, LARGE], ids=["small", "large"])


@sizes
async def test_a_copy_is_a_new_revision_with_the_metadata_and_no_payload_passes_through(world: TappedWorld, payload: bytes) -> None:
    async with world.store() as storage:
        first = await storage.put(OBJECT, payload, METADATA)
        before = await storage.head(OBJECT)
        world.calls.clear()
        result = await storage.copy(OBJECT, OTHER)
        assert "open" not in world.calls and "open_upload" not in world.calls
        after = await storage.head(OTHER)
        assert result is not None and before is not None and after is not None
        assert result.revision == after.revision != first.revision
        assert (after.metadata, after.size, after.tier) == (before.metadata, before.size, before.tier)
        assert await read(storage, OBJECT) == payload == await read(storage, OTHER)
        await storage.delete(OBJECT)
        assert await read(storage, OTHER) == payload
    assert await world.is_clean()


@sizes
async def test_a_renamed_object_is_only_there_under_its_new_name(world: TappedWorld, payload: bytes) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, payload, METADATA)
        await storage.put(OTHER, LARGE[::-1])
        assert await storage.rename(OBJECT, OTHER) is not None
        assert await read(storage, OBJECT) is None and await read(storage, OTHER) == payload
    assert await world.is_clean()


async def test_what_is_not_there_is_not_copied(world: TappedWorld) -> None:
    async with world.store() as storage:
        assert await storage.copy(OBJECT, OTHER) is None
        assert await storage.rename(OBJECT, OTHER) is None
        for wrong in (storage.copy(OBJECT, OBJECT), storage.rename(OBJECT, OBJECT)):
            with pytest.raises(InvalidRequestError, match="onto itself"):
                await wrong


async def test_an_object_whose_data_are_lost_cannot_be_copied_and_stays_as_it_is(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        await world.blobs.target.delete((await world.blob_names())[0])
        for call in (
            storage.copy(OBJECT, OTHER), storage.rename(OBJECT, OTHER), storage.update_metadata(OBJECT, lambda metadata: metadata),
            storage.set_expiry(OBJECT),
        ):
            with pytest.raises(DanglingTombstoneError):
                await call
        assert await storage.head(OTHER) is None
        [entry] = [entry async for entry in storage.list()]
        assert entry.object_id == OBJECT


@sizes
async def test_conditions_are_about_the_destination(world: TappedWorld, payload: bytes) -> None:
    async with world.store() as storage:
        source = await storage.put(OBJECT, payload)
        other = await storage.put(OTHER, b"other")
        with pytest.raises(ConditionFailedError):
            await storage.copy(OBJECT, OTHER, if_absent=True)
        with pytest.raises(ConditionFailedError):
            await storage.rename(OBJECT, OTHER, if_revision=source.revision)
        assert await read(storage, OTHER) == b"other" and await read(storage, OBJECT) == payload
        assert await storage.copy(OBJECT, OTHER, if_revision=other.revision) is not None
        assert await read(storage, OTHER) == payload
    assert await world.is_clean()


async def test_a_source_that_is_replaced_after_the_copy_stays(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)

        async def replace(real: Any, *args: Any) -> Any:
            effective = await real(*args)
            world.rows.hooks.clear()
            await storage.put(OBJECT, b"newer")
            return effective

        world.rows.hooks["swap"] = replace
        with pytest.raises(ConditionFailedError) as caught:
            await storage.rename(OBJECT, OTHER)
        assert caught.value.object_id == OBJECT
        assert await read(storage, OBJECT) == b"newer" and await read(storage, OTHER) == LARGE
    assert await world.is_clean()


@sizes
async def test_a_store_that_is_closed_after_the_copy_finishes_the_rename(world: TappedWorld, payload: bytes) -> None:
    async with world.store() as storage, anyio.create_task_group() as tasks:
        await storage.put(OBJECT, payload)

        async def close() -> None:
            tasks.start_soon(storage.aclose)
            await anyio.wait_all_tasks_blocked()

        world.rows.before_next("put_inline" if payload is SMALL else "swap", close)
        assert await storage.rename(OBJECT, OTHER) is not None
    async with world.store() as storage:
        assert await read(storage, OBJECT) is None and await read(storage, OTHER) == payload
    assert await world.is_clean()


@sizes
async def test_a_store_at_capacity_finishes_the_renames_that_it_has_begun(world: TappedWorld, payload: bytes) -> None:
    """AtCapacityError says that nothing was begun. After the copy, it would not be true."""
    limits = {"concurrency_max": 1, "queue_max": 1, "queue_wait_s": 0.5}
    async with world.store(store=limits) as storage, anyio.create_task_group() as tasks:
        await storage.put(OBJECT, payload)

        async def crowd() -> None:
            tasks.start_soon(storage.put, ObjectId.create("attachments", "slow"), pieces(60, b"x"))
            await anyio.wait_all_tasks_blocked()

        world.rows.before_next("put_inline" if payload is SMALL else "swap", crowd)
        assert await storage.rename(OBJECT, OTHER) is not None
        assert await read(storage, OBJECT) is None and await read(storage, OTHER) == payload
    assert await world.is_clean()


async def test_a_source_that_is_gone_before_the_copy_is_unavailable_and_leaves_nothing(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        world.blobs.before_next("open_copy", lambda: storage.delete(OBJECT))
        with pytest.raises(UnavailableError):
            await storage.copy(OBJECT, OTHER)
        assert await read(storage, OTHER) is None
    assert await world.is_clean()


async def test_an_unanswered_copy_is_waited_for_by_recovery(world: TappedWorld) -> None:
    """It may land late, as an upload in a single request."""
    async with world.store() as storage:
        await storage.put(OBJECT, LARGE)
        world.hook_finalise(answer_lost, opened_by="open_copy")
        with pytest.raises(UnavailableError):
            await storage.copy(OBJECT, OTHER)
        assert await read(storage, OTHER) is None
    assert len(await world.entries()) == 1, "it waits out the grace"
    await world.runtime.sleep(1000)
    await world.recovery().run_once()
    assert await world.is_clean()
