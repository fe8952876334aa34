"""Custom metadata that are known only when the last byte has come: stored with it, in one revision, or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import pytest

from changelog.base.errors import UnavailableError, UnconfirmedError
from tests.given.tapped_store import LARGE, OBJECT, ON_BOTH, SMALL, TappedWorld, head_of, lost, read
from tiered import ConditionFailedError, InvalidRequestError, Metadata, PutRequest, TimeToLive

pytestmark = pytest.mark.anyio
SIZES = pytest.mark.parametrize("payload", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
BEFORE = Metadata(content_type="text/plain", custom={"before": "1", "both": "before"}, expiration=TimeToLive(ns=3600 * 10**9))


async def forever() -> Mapping[str, str]:
    await anyio.sleep_forever()
    return {}


class Hashing:
    """A payload that is hashed while it passes, and what is told of it at its end."""

    def __init__(self, payload: bytes) -> None:
        self.asked = 0
        self._payload = payload
        self._hash = hashlib.sha256()
        self.ended = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._payload), 1000):
            chunk = self._payload[start : start + 1000]
            self._hash.update(chunk)
            yield chunk
        self.ended = True

    def told(self) -> Mapping[str, str]:
        assert self.ended, "asked before the last byte"
        self.asked += 1
        return {"sha256": self._hash.hexdigest(), "both": "at the end"}

    async def told_later(self) -> Mapping[str, str]:
        await anyio.sleep(0.1)
        return self.told()


@ON_BOTH
@pytest.mark.parametrize("how", ["told", "told_later"])
@SIZES
async def test_what_is_told_at_the_end_is_stored_with_the_object_in_one_revision(world: TappedWorld, payload: bytes, how: str) -> None:
    source = Hashing(payload)
    async with world.store() as storage:
        result = await storage.put(OBJECT, source, BEFORE, custom_at_end=getattr(source, how))
        head = await head_of(storage)
        assert head.revision == result.revision and source.asked == 1
        assert head.metadata.custom == {"before": "1", "both": "at the end", "sha256": hashlib.sha256(payload).hexdigest()}
        assert (head.metadata.content_type, head.metadata.expiration, head.size) == ("text/plain", BEFORE.expiration, len(payload))
        stored = await storage.get(OBJECT)
        assert stored is not None and await stored.read() == payload and stored.metadata == head.metadata
    assert await world.is_clean()


@SIZES
async def test_a_payload_in_memory_may_have_an_end_to_ask_at_too(world: TappedWorld, payload: bytes) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, payload, custom_at_end=lambda: {"count": "1"})
        assert (await head_of(storage)).metadata.custom == {"count": "1"}
        async with storage.put_many([PutRequest(OBJECT, payload, custom_at_end=lambda: {"count": "2"})]) as results:
            assert [result.error async for result in results] == [None]
        assert (await head_of(storage)).metadata.custom == {"count": "2"}


async def test_a_small_object_that_is_told_at_its_end_is_still_one_row_operation(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, Hashing(SMALL), custom_at_end=dict)
    assert world.calls == ["put_inline"]


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), StopAsyncIteration("mine"), StopIteration("mine"), KeyboardInterrupt("mine")])
@pytest.mark.parametrize("is_async", [False, True])
@SIZES
async def test_a_function_that_raises_stores_nothing(world: TappedWorld, payload: bytes, is_async: bool, error: BaseException) -> None:
    def told() -> Mapping[str, str]:
        raise error

    async def told_later() -> Mapping[str, str]:
        raise error

    async with world.store() as storage:
        await storage.put(OBJECT, b"before")
        with pytest.raises((type(error), RuntimeError), match=r"mine|StopAsyncIteration|StopIteration"):
            await storage.put(OBJECT, Hashing(payload), custom_at_end=told_later if is_async else told)
        assert await read(storage) == b"before"
    assert await world.is_clean()


@pytest.mark.parametrize(("told", "wrong"), [
    (None, "custom_at_end must return a mapping"), (["a"], "custom_at_end must return a mapping"), ({"a": 5}, "custom value"),
    ({"a b": "c"}, "custom key"),
    ({"tiered-packed": "5"}, "own"),
    ({"a": "ü"}, "custom value of 'a' .*not ASCII"), ({"BEFORE": "2"}, "differ only in case"), ({"a": "x" * 9000}, "at most 8192 fit"),
])  # fmt: skip
@SIZES
async def test_what_is_no_custom_metadata_stores_nothing(world: TappedWorld, payload: bytes, told: Any, wrong: str) -> None:
    async with world.store() as storage:
        with pytest.raises(InvalidRequestError, match=wrong):
            await storage.put(OBJECT, Hashing(payload), BEFORE, custom_at_end=lambda: told)
        assert await storage.head(OBJECT) is None
    assert await world.is_clean()


async def test_what_is_no_function_is_refused_before_anything_is_done(world: TappedWorld) -> None:
    told: Any = {"a": "b"}
    async with world.store() as storage:
        with pytest.raises(InvalidRequestError, match="custom_at_end is a function"):
            await storage.put(OBJECT, SMALL, custom_at_end=told)
    assert world.calls == []


@ON_BOTH
@SIZES
async def test_a_function_that_blocks_is_ended_after_a_while_and_stores_nothing(world: TappedWorld, payload: bytes) -> None:
    async with world.store(store={"payload_idle_s": 0.05}) as storage:
        for source in (payload, [payload]):
            with pytest.raises(InvalidRequestError, match="was not stored"):
                await storage.put(OBJECT, source, custom_at_end=forever)
        assert await storage.head(OBJECT) is None
    assert await world.is_clean()


@ON_BOTH
@SIZES
async def test_a_put_that_is_cancelled_while_it_asks_stores_nothing(world: TappedWorld, payload: bytes) -> None:
    async with world.store() as storage:
        with anyio.move_on_after(0.05) as scope:
            await storage.put(OBJECT, Hashing(payload), custom_at_end=forever)
        assert scope.cancelled_caught
        assert await storage.head(OBJECT) is None
    assert await world.is_clean()


async def test_a_put_that_waits_for_its_end_lends_its_slot(world: TappedWorld) -> None:
    more = anyio.Event()

    async def told() -> Mapping[str, str]:
        await more.wait()
        return {}

    async with world.store(store={"concurrency_max": 1, "payloads_max": 5}) as storage, anyio.create_task_group() as tasks:
        for payload in (SMALL, LARGE):
            tasks.start_soon(lambda each: storage.put(OBJECT, each, custom_at_end=told), payload)
        await anyio.wait_all_tasks_blocked()
        await storage.put(OBJECT, SMALL)
        more.set()


async def test_nobody_is_asked_if_the_checksum_is_wrong_or_the_condition_false(world: TappedWorld) -> None:
    source = Hashing(LARGE)
    async with world.store() as storage:
        with pytest.raises(InvalidRequestError, match="md5"):
            await storage.put(OBJECT, source, checksums={"md5": "0" * 32}, custom_at_end=source.told)
        await storage.put(OBJECT, LARGE)
        with pytest.raises(ConditionFailedError):
            await storage.put(OBJECT, source, if_absent=True, custom_at_end=source.told)
    assert source.asked == 0


@pytest.mark.parametrize("error", [UnavailableError("no"), UnconfirmedError("perhaps")])
async def test_an_upload_that_cannot_be_finalised_leaves_nothing(world: TappedWorld, error: Exception) -> None:
    """As where the service took the blob, and not what was told at its end."""
    world.hook_finalise(lost(error))
    async with world.store() as storage:
        with pytest.raises(UnavailableError):
            await storage.put(OBJECT, LARGE, custom_at_end=lambda: {"a": "b"})
        world.blobs.hooks.clear()
        assert await storage.head(OBJECT) is None
    if isinstance(error, UnconfirmedError):
        await anyio.sleep(1000)
        await world.recovery().run_once()
    assert await world.is_clean()


