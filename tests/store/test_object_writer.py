"""Code that writes: `async with storage.open(id, "wb") as file`. All is stored at the end of the block, or nothing."""

# ruff: noqa: PT012 - it is the block that raises

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from sniffio import current_async_library

from changelog.base.errors import UnavailableError
from tests.given.tapped_store import LARGE, OBJECT, ON_BOTH, SMALL, TappedWorld, fails, hangs, head_of, read
from tiered import (
    AtCapacityError,
    ConditionFailedError,
    ConfigurationError,
    InvalidRequestError,
    Metadata,
    ObjectId,
    Tier,
    TieredStorage,
    TimeToLive,
)
from tiered.stored import CHUNK_BYTES

pytestmark = pytest.mark.anyio
SIZES = pytest.mark.parametrize("payload", [b"", SMALL, LARGE], ids=["empty", "small", "large"])


async def a_while() -> None:
    """Time for all that is under way. What waits for a time itself comes with trio, where a second costs nothing."""
    await anyio.wait_all_tasks_blocked()
    await anyio.sleep(1 if current_async_library() == "trio" else 0.05)


@ON_BOTH
@pytest.mark.parametrize("piece", [1, 3, 1000, 10**6])
@SIZES
async def test_what_is_written_is_stored_at_the_end_of_the_block(world: TappedWorld, payload: bytes, piece: int) -> None:
    async with world.store() as storage:
        async with storage.open(OBJECT, "wb", Metadata(content_type="text/plain")) as file:
            for start in range(0, len(payload), piece):
                chunk = payload[start : start + piece]
                assert await file.write(chunk) == len(chunk)
            await a_while()
            assert await storage.head(OBJECT) is None
        head = await head_of(storage)
        assert (head.revision, head.metadata.content_type) == (file.result.revision, "text/plain")
        assert file.result.size == len(payload) and file.result.tier is (Tier.LONG_TERM if payload is LARGE else Tier.HIGH_VOLUME)
        assert await read(storage) == payload
    assert await world.is_clean()


async def test_a_small_object_that_is_written_is_one_row_operation(world: TappedWorld) -> None:
    async with world.store() as storage, storage.open(OBJECT, "wb") as file:
        for byte in SMALL:
            await file.write(bytes([byte]))
    assert world.calls == ["put_inline"]


@ON_BOTH
@pytest.mark.parametrize("waits", [False, True])
@SIZES
async def test_a_block_that_raises_stores_nothing(world: TappedWorld, payload: bytes, waits: bool) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, b"before")
        with pytest.raises(ZeroDivisionError):
            async with storage.open(OBJECT, "wb") as file:
                await file.write(payload)
                if waits:
                    await a_while()
                raise ZeroDivisionError
        assert await read(storage) == b"before"
        with pytest.raises(InvalidRequestError, match="was not stored by this"):
            _ = file.result
    assert await world.is_clean()


@ON_BOTH
@SIZES
async def test_a_block_that_is_cancelled_stores_nothing(world: TappedWorld, payload: bytes) -> None:
    async with world.store() as storage:
        with anyio.move_on_after(0.05) as scope:
            async with storage.open(OBJECT, "wb") as file:
                await file.write(payload)
                await anyio.sleep_forever()
        assert scope.cancelled_caught and await read(storage) is None
    assert await world.is_clean()


@ON_BOTH
@pytest.mark.parametrize("call", ["finalise", "swap"])
async def test_a_cancellation_while_the_block_is_left_is_that_of_a_put(world: TappedWorld, call: str) -> None:
    """Before the swap nothing is stored; from it on the write is carried through."""
    async with world.store() as storage:
        with anyio.CancelScope() as scope:
            async def cancel(real: Any, *args: Any, **named: Any) -> Any:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
                return await real(*args, **named)

            if call == "swap":
                world.rows.hooks["swap"] = cancel
            else:
                world.hook_finalise(cancel)
            async with storage.open(OBJECT, "wb") as file:
                await file.write(LARGE)
        assert scope.cancelled_caught
    world.rows.hooks.clear()
    async with world.store() as storage:
        assert await read(storage) == (LARGE if call == "swap" else None)
    assert await world.is_clean()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_that_is_cancelled_by_name_while_it_leaves_the_block_stays_cancelled(world: TappedWorld) -> None:
    """Seed 50016 of the callers: anyio took the cancellation back, for one that the put had made within itself."""
    task = asyncio.current_task()
    assert task is not None

    async def cancel(real: Any, *args: Any) -> Any:
        task.cancel()
        with anyio.CancelScope(shield=True):  # as a thread, which runs to its end: meanwhile the put waits for it
            await anyio.sleep(0.01)
        await anyio.sleep_forever()

    world.blobs.hooks["open_upload"], world.rows.hooks["read"] = cancel, hangs
    async with world.store() as storage:
        with pytest.raises(asyncio.CancelledError):
            async with storage.open(OBJECT, "wb") as file:
                await file.write(LARGE)
        assert task.cancelling() == 1
        task.uncancel()
        world.rows.hooks.clear()
        assert await read(storage) is None
    assert await world.is_clean()


async def test_a_buffer_that_is_filled_again_is_stored_as_it_was(world: TappedWorld) -> None:
    buffer = bytearray(1000)
    async with world.store() as storage:
        async with storage.open(OBJECT, "wb") as file:
            for number in range(5):
                buffer[:] = bytes([number]) * 1000
                await file.write(memoryview(buffer))
        assert await read(storage) == b"".join(bytes([number]) * 1000 for number in range(5))


@ON_BOTH
async def test_a_writer_waits_for_a_store_that_is_slower(world: TappedWorld) -> None:
    """At most 256 KiB and one chunk wait, and what the store has taken."""
    opened, go_on, written = world.blobs.target.open_upload, anyio.Event(), 0

    async def open_upload(real: Any, *args: Any) -> Any:
        upload = await opened(*args)
        write = upload.write

        async def write_later(chunk: bytes) -> None:
            await go_on.wait()
            await write(chunk)

        upload.write = write_later
        return upload

    world.blobs.hooks["open_upload"] = open_upload
    async with world.store() as storage:
        async def fill() -> None:
            nonlocal written
            async with storage.open(OBJECT, "wb") as file:
                for _ in range(64):
                    written += await file.write(bytes(CHUNK_BYTES // 4))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fill)
            await anyio.wait_all_tasks_blocked()
            assert CHUNK_BYTES < written <= 4 * CHUNK_BYTES
            go_on.set()
        assert await read(storage) == bytes(64 * CHUNK_BYTES // 4)


async def test_what_a_put_takes_is_taken(world: TappedWorld) -> None:
    hashed = hashlib.sha256()
    async with world.store() as storage:
        first = await storage.put(OBJECT, b"before")
        with pytest.raises(ConditionFailedError):
            async with storage.open(OBJECT, "wb", if_absent=True) as file:
                await file.write(SMALL)
        with pytest.raises(InvalidRequestError, match="the md5"):
            async with storage.open(OBJECT, "wb", checksums={"md5": "0" * 32}) as file:
                await file.write(SMALL)
        assert await read(storage) == b"before"
        told = {"if_revision": first.revision, "checksums": {"sha256": hashlib.sha256(LARGE).hexdigest()}}
        metadata = Metadata(TimeToLive(ns=10**12), custom={"a": "b"})
        async with storage.open(OBJECT, "wb", metadata, **told, custom_at_end=lambda: {"sha256": hashed.hexdigest()}) as file:  # type: ignore[arg-type]
            hashed.update(LARGE)
            await file.write(LARGE)
        head = await head_of(storage)
        assert head.metadata.custom == {"a": "b", "sha256": hashlib.sha256(LARGE).hexdigest()}
        assert head.metadata.expiration == metadata.expiration
    assert await world.is_clean()


async def test_an_error_of_the_put_is_raised_by_the_next_write_and_by_the_end_of_the_block(world: TappedWorld) -> None:
    world.blobs.hooks["open_upload"] = fails(UnavailableError("nobody home"))
    async with world.store(store={"answer_budget_s": 1}) as storage:
        with pytest.raises(UnavailableError, match="nobody home"):
            async with storage.open(OBJECT, "wb") as file:
                with pytest.raises(UnavailableError, match="nobody home"):
                    for _ in range(1000):
                        await file.write(LARGE)
                        await anyio.sleep(0.1)
        with pytest.raises(UnavailableError, match="nobody home"):
            async with storage.open(OBJECT, "wb") as file:
                await file.write(LARGE)
        with pytest.raises(ZeroDivisionError):
            async with storage.open(OBJECT, "wb") as file:
                await file.write(LARGE)
                await anyio.sleep(100)
                raise ZeroDivisionError
    assert await world.is_clean()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_writer_that_writes_nothing_for_a_while_is_ended(world: TappedWorld) -> None:
    async with world.store(store={"payload_idle_s": 0.05}) as storage:
        with pytest.raises(InvalidRequestError, match="gave no byte"):
            async with storage.open(OBJECT, "wb") as file:
                await anyio.sleep(0.3)
                await file.write(SMALL)
        assert await read(storage) is None


Refused = Callable[[TieredStorage], Any]


@pytest.mark.parametrize(("refused", "wrong"), [
    (lambda storage: storage.open(OBJECT, "rb"), "'rb' is no mode.*get"), (lambda storage: storage.open(OBJECT, "w"), "'w' is no mode"),
    (lambda storage: storage.open(OBJECT, 5), "5 is no mode"), (lambda storage: storage.open("a/objects/b", "wb"), "pass an ObjectId"),
    (lambda storage: storage.open(OBJECT, "wb", {}), "metadata is"),
    (lambda storage: storage.open(OBJECT, "wb", checksums=5), "checksums is"),
    (lambda storage: storage.open(OBJECT, "wb", custom_at_end=5), "custom_at_end is"),
    (lambda storage: storage.open(OBJECT, "wb", if_absent=5), "if_absent"),
])  # fmt: skip
async def test_what_is_wrong_with_the_call_is_said_before_the_block(world: TappedWorld, refused: Refused, wrong: str) -> None:
    async with world.store() as storage:
        with pytest.raises(InvalidRequestError, match=wrong):
            async with refused(storage):
                pytest.fail("the block was entered")
    with pytest.raises(InvalidRequestError, match="not open"):
        async with storage.open(OBJECT, "wb"):
            pytest.fail("the block was entered")
    assert world.calls == []


async def test_a_store_that_is_full_or_only_read_says_so_before_the_block(world: TappedWorld) -> None:
    store = {"concurrency_max": 1, "queue_max": 0, "payloads_max": 1, "queue_wait_s": 0.1}
    async with world.store(store=store) as storage, storage.open(OBJECT, "wb"):
        with pytest.raises(AtCapacityError):
            async with storage.open(ObjectId.create("notes", "other"), "wb"):
                pytest.fail("the block was entered")
    async with TieredStorage(world.tiers, world.log, world.runtime, world.settings(), writes=False) as storage:
        with pytest.raises(ConfigurationError, match="read only"):
            async with storage.open(OBJECT, "wb"):
                pytest.fail("the block was entered")


async def test_a_file_is_written_in_its_block_alone_and_entered_once(world: TappedWorld) -> None:
    async with world.store() as storage:
        file = storage.open(OBJECT, "wb")
        with pytest.raises(InvalidRequestError, match="inside the block only"):
            await file.write(SMALL)
        async with file:
            await file.write(SMALL)
            with pytest.raises(InvalidRequestError, match="entered once"):
                async with file:
                    pytest.fail("the block was entered")
            for wrong in ("text", None, 5, [b"x"]):
                with pytest.raises(InvalidRequestError, match="write bytes to"):
                    await file.write(wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequestError, match="was not stored by this"):
                _ = file.result
        with pytest.raises(InvalidRequestError, match="inside the block only"):
            await file.write(SMALL)
        with pytest.raises(InvalidRequestError, match="entered once"):
            async with file:
                pytest.fail("the block was entered")
        assert await read(storage) == SMALL


async def test_after_a_write_that_was_cancelled_nothing_can_be_stored(world: TappedWorld) -> None:
    """Nobody knows whether its chunk was taken."""

    world.blobs.hooks["open_upload"] = hangs
    async with world.store() as storage:
        with pytest.raises(InvalidRequestError, match="was cancelled"):
            async with storage.open(OBJECT, "wb") as file:
                with anyio.move_on_after(1):
                    for _ in range(10):
                        await file.write(bytes(CHUNK_BYTES))
                with pytest.raises(InvalidRequestError, match="was cancelled"):
                    await file.write(SMALL)
        assert await read(storage) is None
    assert await world.is_clean()


async def test_a_generator_that_is_left_between_two_writes_stores_nothing(world: TappedWorld) -> None:
    @asynccontextmanager
    async def written(storage: TieredStorage) -> AsyncGenerator[None, None]:
        async with storage.open(OBJECT, "wb") as file:
            await file.write(SMALL)
            yield
            await file.write(SMALL)

    async with world.store() as storage:
        with suppress(ZeroDivisionError):
            async with written(storage):
                raise ZeroDivisionError
        assert await read(storage) is None
        async with written(storage):
            pass
        assert await read(storage) == 2 * SMALL


async def test_an_interrupt_in_the_put_leaves_the_block_plainly(world: TappedWorld) -> None:
    def interrupted() -> dict[str, str]:
        raise KeyboardInterrupt

    async with world.store() as storage:
        with pytest.raises(KeyboardInterrupt):
            async with storage.open(OBJECT, "wb", custom_at_end=interrupted) as file:
                await file.write(SMALL)
        assert await read(storage) is None
