"""`compress` and `decompress`: what is stored, what comes back, and what says of itself that it is compressed."""

from __future__ import annotations

import hashlib
import io
import re
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from changelog.base.extras import installing
from tests.given.tapped_store import OBJECT, TappedWorld, head_of, in_chunks, opened, pieces
from tiered import (
    ByteRange,
    ConfigurationError,
    CorruptRecordError,
    InvalidRequestError,
    Metadata,
    ObjectId,
    Payload,
    PutRequest,
    StoredObject,
    Tier,
    TieredStorage,
    UnavailableError,
)
from tiered.payload.zstd import IN_THREAD_BYTES, _library
from tiered.stored import CHUNK_BYTES

pytestmark = pytest.mark.anyio

COPY = ObjectId.create("attachments", "copy")
NOISE = bytes(number * number * 7919 % 251 for number in range(IN_THREAD_BYTES))
PAYLOADS = {"empty": b"", "small": b"small", "squeezed into the row": b"a" * 5000, "large": NOISE * 9}


KINDS: dict[str, Callable[[bytes], Payload]] = {"bytes": bytes, "an async iterator": in_chunks, "a file": io.BytesIO}


async def both(storage: TieredStorage, object_id: ObjectId = OBJECT) -> tuple[bytes, bytes]:
    """What the object gives, and what is stored."""
    return await (await opened(storage, object_id)).read(), await (await opened(storage, object_id, decompress=False)).read()


# --- what is stored, and what comes back -----------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
async def test_what_is_compressed_comes_back_as_it_was(world: TappedWorld, kind: str, payload: bytes) -> None:
    async with world.store() as storage:
        told: list[int] = []
        metadata = Metadata(content_type="text/plain", size=len(payload), custom={"a": "b"})
        result = await storage.put(
            OBJECT, KINDS[kind](payload), metadata, compress="zstd", checksums={"sha256": hashlib.sha256(payload).hexdigest()},
            progress=lambda so_far, total: told.append(so_far), custom_at_end=lambda: {"c": "d"},
        )  # fmt: skip
        given, stored = await both(storage)
        head = await head_of(storage)
        assert given == payload == _library().decompress(stored)
        assert result.size == head.size == len(stored) and told[-1:] == ([len(payload)] if payload else [])
        assert (head.metadata.compression, head.metadata.custom) == ("Zstd", {"a": "b", "c": "d"})
        assert head.tier is (Tier.LONG_TERM if len(stored) > 100 else Tier.HIGH_VOLUME)
        assert head.metadata.size in (None, len(stored))


async def test_an_open_object_says_what_it_gives_and_its_head_what_is_stored(world: TappedWorld) -> None:
    async with world.store() as storage:
        for payload in (b"small", NOISE):
            await storage.put(OBJECT, payload, Metadata(content_type="text/plain"), compress="zstd")
            stored = await opened(storage)
            assert (stored.decompressed, stored.length, stored.in_memory) == (True, None, None)
            assert (stored.metadata.compression, stored.metadata.size, stored.metadata.content_type) == (None, None, "text/plain")
            assert (stored.start, stored.stop) == (0, stored.size) == (0, stored.head.size) and stored.head.metadata.compression == "Zstd"
            await stored.aclose()
            raw = await opened(storage, decompress=False)
            assert (raw.decompressed, raw.length, raw.metadata.compression) == (False, raw.size, "Zstd")
            await raw.aclose()
            await storage.put(OBJECT, payload)
            plain = await opened(storage)
            assert (plain.decompressed, plain.length, plain.metadata.compression) == (False, len(payload), None)
            await plain.aclose()


async def test_what_a_caller_compressed_himself_is_stored_as_it_is_and_decompressed(world: TappedWorld) -> None:
    library = _library()
    made = library.compress(b"first, ") + library.compress(b"second")
    async with world.store() as storage:
        await storage.put(OBJECT, made, Metadata(compression="Zstd", size=len(made)))
        assert await both(storage) == (b"first, second", made)


async def test_what_is_compressed_in_another_way_is_given_as_it_is_stored(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, b"small" * 100)
        async def gzipped(real: Any, *args: Any) -> Any:
            found = await real(*args)
            found.metadata = found.metadata.with_facts(compression="gzip")
            return found

        world.blobs.hooks["open"] = gzipped
        stored = await opened(storage)
        assert (stored.decompressed, stored.metadata.compression) == (False, "gzip")
        assert await stored.read() == b"small" * 100


async def test_progress_counts_the_bytes_that_are_given(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, NOISE, compress="zstd")
        told: list[tuple[int, int | None]] = []
        stored = await opened(storage, progress=lambda so_far, total: told.append((so_far, total)))
        assert all([0 < len(chunk) <= CHUNK_BYTES async for chunk in stored]) and told[-1] == (len(NOISE), None)


async def test_a_bulk_read_counts_the_bytes_that_it_holds(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, bytes(5000), compress="zstd")
        await storage.put(COPY, NOISE[:300], compress="zstd")
        _, stored = await both(storage)
        for bytes_max, decompress, expected in (
            (5000, True, {OBJECT: bytes(5000), COPY: NOISE[:300]}), (4999, True, {OBJECT: None, COPY: NOISE[:300]}),
            (299, True, {OBJECT: None, COPY: None}), (100, False, {OBJECT: stored, COPY: None}),
        ):  # fmt: skip
            async with storage.get_many([OBJECT, COPY], payload_bytes_max=bytes_max, decompress=decompress) as results:
                found = [result async for result in results]
                assert {result.request for result in found} == {OBJECT, COPY}
                for result in found:
                    if (payload := expected[result.request]) is None:
                        assert "more than payload_bytes_max" in str(result.error)
                    else:
                        assert result.value is not None and (result.value.payload, result.value.decompressed) == (payload, decompress)
                        assert result.value.metadata.compression == (None if decompress else "Zstd")
                        assert result.value.head == await storage.head(result.request)


async def test_put_many_and_a_writer_compress_too(world: TappedWorld) -> None:
    async with world.store() as storage:
        async with storage.put_many([PutRequest(OBJECT, NOISE, compress="zstd")]) as results:
            assert [result.value.size < len(NOISE) async for result in results] == [True]
        async with storage.open(COPY, "wb", compress="zstd") as file:
            await file.write(NOISE)
        assert (await both(storage))[0] == (await both(storage, COPY))[0] == NOISE


async def test_it_is_saved_whole_and_a_buffer_that_is_too_short_is_refused(world: TappedWorld) -> None:
    async with world.store() as storage:
        for payload in (bytes(5000), NOISE):
            await storage.put(OBJECT, payload, compress="zstd")
            await (await opened(storage)).save(buffer := bytearray(len(payload)))
            assert buffer == payload
            with pytest.raises(InvalidRequestError, match=f"the buffer has {len(payload) - 1} bytes, and more came"):
                await (await opened(storage)).save(bytearray(len(payload) - 1))


# --- copies --------------------------------------------------------------------------------------


async def test_a_copy_keeps_what_is_stored_and_a_stored_object_is_put_as_it_comes(world: TappedWorld) -> None:
    async with world.store() as storage:
        for payload in (bytes(5000), NOISE):
            await storage.put(OBJECT, payload, Metadata(custom={"a": "b"}), compress="zstd")
            original = await both(storage)
            await storage.copy(OBJECT, COPY)
            assert await both(storage, COPY) == original == (payload, original[1])

            stored = await opened(storage)
            await storage.put(COPY, stored, stored.metadata)
            assert await both(storage, COPY) == (payload, payload)
            stored = await opened(storage, decompress=False)
            await storage.put(COPY, stored, stored.metadata)
            assert await both(storage, COPY) == original
            stored = await opened(storage)
            await storage.put(COPY, stored, stored.metadata, compress="zstd")
            assert (await both(storage, COPY))[0] == payload


async def test_decompressed_bytes_are_not_stored_as_compressed_ones(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, NOISE, compress="zstd")
        head = await head_of(storage)
        with pytest.raises(InvalidRequestError, match=r"decompressed while it is read.*compress='zstd'.*decompress=False"):
            await storage.put(COPY, await opened(storage), head.metadata)
        assert await storage.head(COPY) is None


@pytest.mark.parametrize("metadata", [None, Metadata(filename="a.txt")], ids=["no metadata", "other metadata"])
async def test_stored_bytes_do_not_lose_their_compression_without_a_word(world: TappedWorld, metadata: Metadata | None) -> None:
    """The copy was taken for what is not compressed, so its readers got zstd."""
    async with world.store() as storage:
        await storage.put(OBJECT, b"as if compressed" * 100, Metadata(compression="Zstd"))
        for compress in (None, "zstd"):
            with pytest.raises(InvalidRequestError, match=r"gives Zstd, as it is stored.*metadata=stored\.metadata"):
                await storage.put(COPY, await opened(storage, decompress=False), metadata, compress=compress)
            request = PutRequest(COPY, await opened(storage, decompress=False), metadata, compress=compress)
            async with storage.put_many([request]) as results:
                assert [type(result.error) async for result in results] == [InvalidRequestError]
        assert await storage.head(COPY) is None
        stored = await opened(storage, decompress=False)
        await storage.put(COPY, stored, stored.metadata)
        await storage.put(COPY, await opened(storage, range=ByteRange(2, 9), decompress=False))  # it says that it wants a part


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"compress": "zstd", "metadata": Metadata(compression="Zstd")}, "compressed already, not both"),
        ({"compress": "gzip"}, "compress is 'zstd' or None, not 'gzip'"), ({"compress": True}, "compress is 'zstd' or None, not True"),
        ({"compress": "zstd", "metadata": Metadata(size=4)}, "metadata declares 4 bytes, but the payload has 5"),
        ({"compress": "zstd", "metadata": Metadata(size=14)}, "metadata declares 14 bytes, but the payload has 5"),
        ({"compress": "zstd", "checksums": {"sha256": hashlib.sha256(b"other").hexdigest()}}, "other bytes came than were meant"),
    ],
)  # fmt: skip
async def test_a_put_that_contradicts_itself_stores_nothing(world: TappedWorld, arguments: dict[str, Any], why: str) -> None:
    async with world.store() as storage:
        for kind in KINDS.values():
            with pytest.raises(InvalidRequestError, match=why):
                await storage.put(OBJECT, kind(b"small"), **arguments)
        assert await storage.head(OBJECT) is None


async def test_a_part_of_a_compressed_object_is_refused_unless_it_is_raw(world: TappedWorld) -> None:
    async with world.store() as storage:
        for payload in (bytes(5000), NOISE):
            await storage.put(OBJECT, payload, compress="zstd")
            _, stored = await both(storage)
            for part in (ByteRange(0, 1), ByteRange(5), ByteRange(-3), ByteRange(0), ByteRange(0, 4000)):
                with pytest.raises(InvalidRequestError, match=r"a range counts the bytes as they are stored.*decompress=False \(--raw\)"):
                    await storage.get(OBJECT, part)
            assert await (await opened(storage, range=ByteRange(1, 5), decompress=False)).read() == stored[1:5]
            assert await (await opened(storage, range=ByteRange(0), decompress=False)).read() == stored
        for wrong in (1, "no", None):
            with pytest.raises(InvalidRequestError, match="decompress is True or False"):
                await storage.get(OBJECT, decompress=wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequestError, match="decompress is True or False"):
                storage.get_many([OBJECT], decompress=wrong)  # type: ignore[arg-type]


async def test_without_the_library_nothing_is_stored_and_what_is_stored_is_given_raw(
    world: TappedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, NOISE, compress="zstd")
        _, stored = await both(storage)
        for name in ("backports.zstd", "compression.zstd"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ConfigurationError, match=re.escape(installing("zstd"))):
            await storage.put(COPY, b"small", compress="zstd")
        with pytest.raises(ConfigurationError, match=re.escape(installing("zstd")) + ".*decompress=False"):
            await storage.get(OBJECT)
        assert await (await opened(storage, decompress=False)).read() == stored and await storage.head(COPY) is None


# --- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"small", NOISE], ids=["small", "large"])
async def test_what_is_no_zstd_or_ends_too_soon_is_corrupt_and_never_short(world: TappedWorld, payload: bytes) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, payload, compress="zstd")
        _, whole = await both(storage)
        for damaged in (whole[:-1], payload, whole + b"more"):
            await storage.put(OBJECT, damaged, Metadata(compression="Zstd"))
            for read in (StoredObject.read, lambda stored: stored.save(bytearray(len(payload)))):
                stored = await opened(storage)
                with pytest.raises(CorruptRecordError, match=r"attachments.*cannot be decompressed.*decompress=False"):
                    await read(stored)
                with pytest.raises(InvalidRequestError, match="already read or closed"):
                    await stored.read()
            assert await (await opened(storage, decompress=False)).read() == damaged


async def test_a_read_that_is_closed_by_another_task_is_no_damage(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, NOISE * 3, compress="zstd")
        stored, reached = await opened(storage), anyio.Event()

        class NeverEnding:
            async def __anext__(self) -> bytes:
                reached.set()
                await anyio.sleep(60)
                raise StopAsyncIteration

        stored._chunks = NeverEnding()  # type: ignore[assignment]
        errors: list[Exception] = []

        async def read() -> None:
            try:
                await stored.read()
            except InvalidRequestError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await reached.wait()
            await stored.aclose()
        assert "was closed before its end was read" in str(errors[0])


async def test_a_blob_that_breaks_off_is_unavailable_and_not_corrupt(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, NOISE * 3, compress="zstd")

        async def breaking(real: Any, *args: Any) -> Any:
            reader = await real(*args)
            reader.chunks = chunks
            return reader

        async def chunks() -> AsyncIterator[bytes]:
            yield stored[:1000]
            raise UnavailableError("the connection broke")

        _, stored = await both(storage)
        world.blobs.hooks["open"] = breaking
        with pytest.raises(UnavailableError, match="the connection broke"):
            await (await opened(storage)).read()


async def test_a_cancelled_put_or_read_leaves_nothing_open(world: TappedWorld) -> None:
    async with world.store() as storage:
        with anyio.move_on_after(1) as cancelled:
            await storage.put(OBJECT, pieces(NOISE, 3600), compress="zstd")
        assert cancelled.cancelled_caught and await storage.head(OBJECT) is None
        await storage.put(OBJECT, NOISE * 9, compress="zstd")
        stored = await opened(storage)
        async for _ in stored:
            break
        await stored.aclose()
        with pytest.raises(InvalidRequestError, match="already read or closed"):
            await stored.read()
        stored = await opened(storage, progress=lambda so_far, total: anyio.sleep(3600))
        with anyio.move_on_after(1) as cancelled:
            await stored.read()
        assert cancelled.cancelled_caught and stored._closed
