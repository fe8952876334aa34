"""The storage in memory is the real one, and fails as it is told to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest

from tiered import (
    AtCapacityError,
    CancelledElsewhereError,
    CorruptRecordError,
    DanglingTombstoneError,
    InvalidRequestError,
    Metadata,
    ObjectId,
    Outcome,
    OutcomeUnknownError,
    PutRequest,
    ServiceAwayError,
    Settings,
    StoredObject,
    Tier,
    TieredError,
    TimeToLive,
    UnavailableError,
)
from tiered.multipart import MultipartUpload, ResumableUpload
from tiered.testing import BlockingMemoryStorage, MemoryStorage, blocking_memory_storage, memory_storage
from tiered.testing.faults import OF_UPLOADS

pytestmark = pytest.mark.anyio
pytest_plugins = ["tiered.testing.fixtures"]

OBJECT, OTHER = ObjectId.create("notes", "key"), ObjectId.create("notes", "other")
SMALL, LARGE = b"small", b"large" * 1_000_000


async def read(storage: MemoryStorage, object_id: ObjectId = OBJECT) -> bytes | None:
    stored = await storage.get(object_id)
    return None if stored is None else await stored.read()


async def test_it_stores_in_both_tiers_and_expires_when_the_clock_is_put_forward(memory_store: MemoryStorage) -> None:
    month = Metadata(expiration=TimeToLive(timedelta(days=30)))
    assert (await memory_store.put(OBJECT, SMALL, month)).tier is Tier.HIGH_VOLUME
    assert (await memory_store.put(OTHER, LARGE)).tier is Tier.LONG_TERM
    assert await read(memory_store) == SMALL and await read(memory_store, OTHER) == LARGE
    memory_store.clock.advance(timedelta(days=31))
    assert await memory_store.get(OBJECT) is None and [each.object_id async for each in memory_store.list()] == [OTHER]
    for wrong in (timedelta(-1), 5):
        with pytest.raises(InvalidRequestError, match="put forward by a timedelta"):
            memory_store.clock.advance(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [UnavailableError, AtCapacityError, ServiceAwayError, CorruptRecordError])
async def test_the_next_calls_fail_and_nothing_has_happened(memory_store: MemoryStorage, error: type[TieredError]) -> None:
    await memory_store.put(OBJECT, SMALL)
    memory_store.faults.fail("put", error, calls=2)
    for _ in range(2):
        with pytest.raises(error, match="by a test"):
            await memory_store.put(OBJECT, b"new")
    assert await read(memory_store) == SMALL
    await memory_store.put(OBJECT, b"new")
    assert await read(memory_store) == b"new" and memory_store.faults.made == {"put": 2}


async def test_a_service_that_is_away_is_named_with_when_to_try_again(memory_store: MemoryStorage) -> None:
    memory_store.faults.fail("get", ServiceAwayError)
    with pytest.raises(ServiceAwayError) as caught:
        await memory_store.get(OBJECT)
    assert (caught.value.service, caught.value.retry_after_s) == ("high_volume", 2.0)


@pytest.mark.parametrize("name", ["copy", "rename", "update_metadata", "set_expiry"])
async def test_what_reads_first_may_find_that_a_blob_is_gone(memory_store: MemoryStorage, name: str) -> None:
    await memory_store.put(OBJECT, SMALL)
    memory_store.faults.fail(name, DanglingTombstoneError)
    calls: dict[str, Any] = {
        "copy": lambda: memory_store.copy(OBJECT, OTHER), "rename": lambda: memory_store.rename(OBJECT, OTHER),
        "update_metadata": lambda: memory_store.update_metadata(OBJECT, lambda now: now),
        "set_expiry": lambda: memory_store.set_expiry(OBJECT),
    }
    with pytest.raises(DanglingTombstoneError):
        await calls[name]()
    assert await read(memory_store) == SMALL and await memory_store.get(OTHER) is None


async def test_each_operation_has_faults_of_its_own_and_bulk_calls_have_them_too(memory_store: MemoryStorage) -> None:
    await memory_store.put(OBJECT, SMALL)
    faults = memory_store.faults
    for name in ("get", "head", "delete", "list"):
        faults.fail(name)
    faults.fail("head", DanglingTombstoneError)
    calls: list[Any] = [memory_store.get, memory_store.delete, memory_store.head]
    for call in calls:
        with pytest.raises(UnavailableError):
            await call(OBJECT)
    with pytest.raises(DanglingTombstoneError):
        await memory_store.head(OBJECT)
    with pytest.raises(UnavailableError):
        await anext(memory_store.list())
    faults.fail("put", AtCapacityError)
    async with memory_store.put_many([PutRequest(OBJECT, b"1"), PutRequest(OTHER, b"2")], concurrency=1) as results:
        errors = [type(result.error) async for result in results]
    assert errors == [AtCapacityError, type(None)]
    faults.fail("get")
    faults.clear()
    assert await read(memory_store) == SMALL


@pytest.mark.parametrize("payload", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("took_effect", [True, False])
async def test_an_unknown_outcome_is_told_at_once_and_can_be_asked_for(
    memory_store: MemoryStorage, payload: bytes, took_effect: bool
) -> None:
    await memory_store.put(OBJECT, b"old")
    memory_store.faults.fail("put", OutcomeUnknownError, took_effect=took_effect)
    began = time.monotonic()
    with pytest.raises(OutcomeUnknownError) as unknown:
        await memory_store.put(OBJECT, payload)
    assert time.monotonic() - began < 5
    assert (await memory_store.outcome(unknown.value) is Outcome.TOOK_EFFECT) is took_effect
    assert await read(memory_store) == (payload if took_effect else b"old")
    memory_store.faults.fail("delete", OutcomeUnknownError, took_effect=took_effect)
    with pytest.raises(OutcomeUnknownError):
        await memory_store.delete(OBJECT)
    assert (await memory_store.get(OBJECT) is None) is took_effect


@pytest.mark.parametrize("error", [UnavailableError, CorruptRecordError])
@pytest.mark.parametrize("payload", [b"x", SMALL, LARGE], ids=["one", "small", "large"])
async def test_a_reading_can_be_cut_off(memory_store: MemoryStorage, payload: bytes, error: type[TieredError]) -> None:
    await memory_store.put(OBJECT, payload)
    memory_store.faults.fail("read", error)
    stored = await memory_store.get(OBJECT)
    assert isinstance(stored, StoredObject)
    taken = b""

    async def take() -> None:
        nonlocal taken
        async for chunk in stored:
            taken += chunk

    with pytest.raises(error, match="cut off"):
        await take()
    assert len(taken) < len(payload) and payload.startswith(taken)
    assert await read(memory_store) == payload


@pytest.mark.parametrize(
    ("arguments", "named", "sentence"),
    [
        (["write"], {}, "there is no operation 'write': pass one of abort, append, begin_multipart, complete, copy"),
        (["put", ValueError], {}, "no call ends with"),
        (["get", OutcomeUnknownError], {}, "get never raises OutcomeUnknownError"),
        (["put", DanglingTombstoneError], {}, "put never raises DanglingTombstoneError"),
        (["put"], {"took_effect": True}, "nothing has happened"),
        (["put"], {"calls": 0}, "calls is 0"),
        (["put"], {"calls": True}, "calls is True"),
        ([["put"]], {}, "there is no operation"),
        (["put", OutcomeUnknownError], {"took_effect": "no"}, "took_effect is True or False"),
        (["read", AtCapacityError], {}, "read never raises AtCapacityError"),
        (["read", DanglingTombstoneError], {}, "read never raises DanglingTombstoneError"),
    ],
)
def test_a_fault_that_no_store_has_is_refused(arguments: list[Any], named: dict[str, Any], sentence: str) -> None:
    with blocking_memory_storage() as storage, pytest.raises(InvalidRequestError, match=sentence):
        storage.faults.fail(*arguments, **named)


def test_another_task_may_leave_it() -> None:
    with asyncio.Runner() as runner:  # as pytest-asyncio tears a fixture down
        store = memory_storage()
        storage = runner.run(store.__aenter__())
        assert runner.run(storage.put(OBJECT, LARGE)).size == len(LARGE)
        runner.run(store.__aexit__(None, None, None))


def test_a_program_that_cancels_all_tasks_it_can_find_is_told_so_where_the_block_ends() -> None:
    async def cancel_all_others() -> None:
        async with memory_storage():
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)

    with pytest.raises(CancelledElsewhereError, match="the task in which this storage was open was cancelled"):
        asyncio.run(cancel_all_others())


async def test_a_block_that_is_cancelled_leaves_it_first() -> None:
    with anyio.CancelScope() as scope:
        async with memory_storage() as storage:
            scope.cancel()
            await anyio.sleep_forever()
    with pytest.raises(InvalidRequestError, match="is not open"):
        await storage.head(OBJECT)


def test_the_blocking_storage_has_faults_and_a_clock(blocking_memory_store: BlockingMemoryStorage) -> None:
    blocking_memory_store.put(OBJECT, LARGE)
    blocking_memory_store.faults.fail("head", AtCapacityError)
    with pytest.raises(AtCapacityError):
        blocking_memory_store.head(OBJECT)
    with pytest.raises(InvalidRequestError, match="settings is"), blocking_memory_storage(5):  # type: ignore[arg-type]
        pass
    stored = blocking_memory_store.get(OBJECT)
    assert stored is not None and stored.read() == LARGE
    blocking_memory_store.clock.advance(timedelta(days=1))


async def test_limits_come_from_settings_and_nothing_is_written_to_a_directory(tmp_path: Any) -> None:
    async with memory_storage(Settings(directory=tmp_path / "none", inline_bytes_max=1)) as storage:
        assert (await storage.put(OBJECT, SMALL)).tier is Tier.LONG_TERM
    assert not (tmp_path / "none").exists()


# --- of open uploads -----------------------------------------------------------------------------------

UPLOADS: dict[str, Callable[[MemoryStorage, MultipartUpload], Awaitable[object]]] = {
    "upload_part": lambda storage, upload: upload.upload_part(1, SMALL),
    "append": lambda storage, upload: storage.resumable(OBJECT, upload.id).append(0, SMALL, final=True),
    "parts": lambda storage, upload: upload.parts(),
    "complete": lambda storage, upload: upload.complete(),
    "abort": lambda storage, upload: upload.abort(),
}


def test_each_call_of_an_open_upload_has_faults() -> None:
    named = vars(MultipartUpload) | vars(ResumableUpload)
    calls = {name for name, call in named.items() if not name.startswith("_") and callable(call)}
    assert calls - {"status", "finish", "cancel"} == OF_UPLOADS == {*UPLOADS, "sign_part"}


@pytest.mark.parametrize("error", [UnavailableError, AtCapacityError, ServiceAwayError, CorruptRecordError])
@pytest.mark.parametrize("name", UPLOADS)
async def test_a_call_of_an_open_upload_fails_and_nothing_has_happened(
    memory_store: MemoryStorage, name: str, error: type[TieredError]
) -> None:
    upload = await memory_store.begin_multipart(OBJECT)
    if name != "append":
        await upload.upload_part(1, LARGE)
    before = await upload.parts()
    memory_store.faults.fail(name, error)
    with pytest.raises(error):
        await UPLOADS[name](memory_store, upload)
    assert await upload.parts() == before and await memory_store.head(OBJECT) is None
    assert memory_store.faults.made[name] == 1
    await UPLOADS[name](memory_store, upload)


@pytest.mark.parametrize("took_effect", [True, False])
@pytest.mark.parametrize("name", ["complete", "abort"])
async def test_the_end_of_an_upload_may_be_unknown_and_is_found_out_by_the_same_call(
    memory_store: MemoryStorage, name: str, took_effect: bool
) -> None:
    upload = await memory_store.begin_multipart(OBJECT)
    await upload.upload_part(1, LARGE)
    memory_store.faults.fail(name, OutcomeUnknownError, took_effect=took_effect)
    with pytest.raises(OutcomeUnknownError):
        await UPLOADS[name](memory_store, upload)
    assert (await memory_store.head(OBJECT) is not None) == (took_effect and name == "complete")
    await UPLOADS[name](memory_store, upload)
    assert (await memory_store.head(OBJECT) is not None) == (name == "complete")


@pytest.mark.parametrize("name", ["upload_part", "append", "parts", "sign_part", "begin_multipart"])
async def test_what_writes_no_row_has_no_unknown_outcome(memory_store: MemoryStorage, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="never raises"):
        memory_store.faults.fail(name, OutcomeUnknownError)


@pytest.mark.parametrize("payload", [SMALL, LARGE], ids=["small", "large"])
async def test_who_changes_metadata_that_were_told_changes_no_object(memory_store: MemoryStorage, payload: bytes) -> None:
    await memory_store.put(OBJECT, payload, Metadata(custom={"a": "b"}, unknown={"list": [1]}))
    stored, head = await memory_store.get(OBJECT), await memory_store.head(OBJECT)
    assert stored is not None and head is not None
    await stored.aclose()
    told: list[Any] = [stored.metadata, head.metadata, *[entry.metadata async for entry in memory_store.list(metadata=True)]]
    for metadata in told:
        metadata.custom["c"] = "d"
        metadata.unknown["list"].append(2)
    after = await memory_store.head(OBJECT)
    assert after is not None and after.metadata.custom == {"a": "b"} and after.metadata.unknown == {"list": [1]}
