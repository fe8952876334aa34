"""`save` into a buffer, in several ranges at once: who reads what, and what happens when a range fails.

Files need threads, which virtual time does not see: see tests/tiered/gcs/test_ranges.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.base.observe import Observer
from tests.given.ranged_blobs import RangedBlobs, ranged
from tests.given.tapped_store import LARGE, OBJECT, SMALL, TappedWorld, opened, pieces
from tiered import AtCapacityError, ByteRange, InvalidRequestError, TieredStorage, UnavailableError
from tiered.services.backends import DamagedError
from tiered.telemetry.observed import observed_tiers
from tiered.transfer import lanes as lanes_of_reads
from tiered.transfer.lanes import GONE, WRITTEN_AFTER_S

pytestmark = pytest.mark.anyio

PART = 256 * 1024
HUGE = (bytes(number * 7 % 251 for number in range(251)) * 6300)[: 6 * PART + 5]
PARTS = [(start, min(start + PART, len(HUGE))) for start in range(0, len(HUGE), PART)]


@pytest.fixture
def blobs(world: TappedWorld) -> RangedBlobs:
    return ranged(world)


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_of_reads, "PART_BYTES", PART)
    monkeypatch.setattr(lanes_of_reads, "LANES_MAX", 4)


def in_parts(lanes: int = 4, **store: Any) -> dict[str, Any]:
    lanes_of_reads.LANES_MAX = lanes
    return {"store": store}


async def saved(storage: TieredStorage, range: ByteRange | None = None, **options: Any) -> bytes:
    stored = await opened(storage, range=range, **options)
    assert stored.length is not None
    await stored.save(buffer := bytearray(stored.length))
    return bytes(buffer)


def all_free(storage: TieredStorage) -> bool:
    return storage._reader._lanes.free == 64


# --- who reads what ------------------------------------------------------------------------------


@given(
    size=st.integers(101, 5 * PART) | st.sampled_from([PART, 2 * PART, 2 * PART + 1, 5 * PART]), lanes=st.integers(1, 8),
    begin=st.integers(0, 5 * PART), end=st.integers(0, 5 * PART),
)
@settings(max_examples=25, deadline=None)
async def test_any_range_of_any_object_is_saved_by_any_number_of_lanes(size: int, lanes: int, begin: int, end: int) -> None:
    world = TappedWorld()
    blobs = ranged(world)
    payload = (HUGE * 2)[:size]
    begin, end = sorted((begin % size, end % (size + 1)))
    told: list[tuple[int, int | None]] = []
    async with world.store(**in_parts(lanes)) as storage:
        await storage.put(OBJECT, payload)
        assert await saved(storage) == payload
        assert await saved(storage, ByteRange(begin, end), progress=lambda *so_far: told.append(so_far)) == payload[begin:end]
        assert all_free(storage)
    assert blobs.open_now == 0 and blobs.most_open <= lanes
    assert told == sorted(told) and all(total == end - begin for _, total in told)
    assert [so_far for so_far, _ in told][-1:] == ([end - begin] if end > begin else [])


async def test_helpers_read_the_last_parts_while_the_stream_goes_on_from_the_first(world: TappedWorld, blobs: RangedBlobs) -> None:
    async with world.store(**in_parts(3)) as storage:
        await storage.put(OBJECT, HUGE)
        assert await saved(storage) == HUGE
    whole, *ranges = blobs.opened
    assert whole == (0, len(HUGE)) and len(ranges) == len(set(ranges)) < len(PARTS)
    assert set(ranges) == set(PARTS[-len(ranges) :])
    assert blobs.most_open == 3


@pytest.mark.parametrize("payload", [SMALL, LARGE, HUGE[:PART]], ids=["inline", "a small blob", "one part"])
async def test_what_is_not_longer_than_a_part_comes_in_one_stream(world: TappedWorld, blobs: RangedBlobs, payload: bytes) -> None:
    async with world.store(**in_parts()) as storage:
        await storage.put(OBJECT, payload)
        assert await saved(storage) == payload
    assert len(blobs.opened) <= 1


async def test_a_tier_that_knows_no_ranges_gives_one_stream(world: TappedWorld) -> None:
    async with world.store(**in_parts()) as storage:
        await storage.put(OBJECT, HUGE)
        assert await saved(storage) == HUGE
    assert world.calls.count("open") == 1


async def test_the_helpers_of_all_reads_are_a_quarter_of_the_connections(world: TappedWorld, blobs: RangedBlobs) -> None:
    async with world.store(**in_parts(8)) as storage:
        storage._reader._lanes.free = 3
        await storage.put(OBJECT, HUGE)
        results: list[bytes] = []

        async def save_one() -> None:
            results.append(await saved(storage))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(save_one)
        assert results == [HUGE] * 5
        assert storage._reader._lanes.free == 3
    assert blobs.most_open <= 5 + 3
    gcs = {"bucket": "blobs", "connections_max": 40}
    assert world.settings(directory=None, changelog="noop", bigtable={"project": "project", "instance": "i"}, gcs=gcs).lanes_at_once == 10


# --- a range fails -------------------------------------------------------------------------------


async def cut_after(chunks_max: int, chunks: AsyncIterator[bytes], error: Exception | None = None) -> AsyncIterator[bytes]:
    """The first chunks, the last of them cut in half, and then an error; None: the end, too early."""
    for _ in range(chunks_max):
        yield await anext(chunks)
    chunk = await anext(chunks)
    yield chunk[: len(chunk) // 2]
    if error is not None:
        raise error


@pytest.mark.parametrize("error", [UnavailableError("cut"), DamagedError("damaged"), AtCapacityError("full"), None])
async def test_a_range_that_breaks_is_read_on_alone_where_it_stopped(
    world: TappedWorld, blobs: RangedBlobs, error: Exception | None
) -> None:
    first = PARTS[-1][0] - PART
    broken = iter([first])

    def spoil(start: int, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        return cut_after(0, chunks, error) if start == first and next(broken, None) is not None else chunks

    blobs.spoil = spoil
    async with world.store(**in_parts()) as storage:
        await storage.put(OBJECT, HUGE)
        assert await saved(storage) == HUGE
    assert (first + PART // 2, first + PART) in blobs.opened
    assert [extent for extent in blobs.opened if extent[0] == first] == [(first, first + PART)]


@pytest.mark.parametrize("lanes", [1, 4])
async def test_the_first_stream_that_breaks_is_read_on_where_it_stopped(world: TappedWorld, blobs: RangedBlobs, lanes: int) -> None:
    def spoil(start: int, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        return cut_after(0, chunks, UnavailableError("cut")) if start == 0 else chunks

    blobs.spoil = spoil
    async with world.store(**in_parts(lanes)) as storage:
        await storage.put(OBJECT, HUGE)
        assert await saved(storage) == HUGE
    again = [extent for extent in blobs.opened if extent[0] == PART // 2]
    assert len(again) == 1 and (lanes > 1 or again == [(PART // 2, len(HUGE))])


async def test_the_first_stream_gets_what_a_helper_never_got(world: TappedWorld, blobs: RangedBlobs) -> None:
    refused: list[int] = []

    def refuse(start: int) -> None:
        if start == PARTS[-1][0] and len(refused) < 5:
            refused.append(start)
            raise UnavailableError("down")

    blobs.refuse = refuse
    async with world.store(**in_parts(answer_budget_s=0.001)) as storage:
        await storage.put(OBJECT, HUGE)
        assert await saved(storage) == HUGE
        assert all_free(storage)
    assert len(refused) == 5


async def test_ranges_that_always_break_end_the_read_after_so_many_attempts(world: TappedWorld, blobs: RangedBlobs) -> None:
    def spoil(start: int, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        is_range = start % PART == 0 and start
        return cut_after(0, chunks, UnavailableError(f"cut at {start}")) if is_range else pieces(UnavailableError("down"))

    blobs.spoil = spoil
    async with world.store(**in_parts(3)) as storage:
        await storage.put(OBJECT, HUGE)
        with pytest.raises(UnavailableError, match=r"down|cut at"):
            await saved(storage)
        assert all_free(storage) and blobs.open_now == 0
    assert len(blobs.opened) < 1 + 4 * len(PARTS) * 2


async def test_bytes_that_are_not_those_that_were_stored_are_refused(world: TappedWorld, blobs: RangedBlobs) -> None:
    async def damaged(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            yield b"\xff" + chunk[1:]

    blobs.spoil = lambda start, chunks: damaged(chunks) if start == PARTS[-2][0] else chunks
    async with world.store(**in_parts()) as storage:
        await storage.put(OBJECT, HUGE)
        with pytest.raises(UnavailableError, match="damaged"):
            await saved(storage)


async def test_more_bytes_than_a_range_has_are_not_written_into_the_next(world: TappedWorld, blobs: RangedBlobs) -> None:
    async def longer(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            yield chunk + b"\xff" * PART

    blobs.spoil = lambda start, chunks: longer(chunks) if start else chunks
    async with world.store(**in_parts()) as storage:
        await storage.put(OBJECT, HUGE)
        assert await saved(storage) == HUGE and len(blobs.opened) > 1, "in ranges"


async def test_an_interrupt_in_one_lane_ends_them_all(world: TappedWorld, blobs: RangedBlobs) -> None:
    def refuse(start: int) -> None:
        if start == PARTS[-1][0]:
            raise KeyboardInterrupt

    async with world.store(**in_parts()) as storage:
        await storage.put(OBJECT, HUGE)
        blobs.refuse = refuse
        with pytest.raises(KeyboardInterrupt):
            await saved(storage)
        assert all_free(storage) and blobs.open_now == 0


async def test_telemetry_counts_each_range_and_changes_nothing(world: TappedWorld, blobs: RangedBlobs) -> None:
    calls: list[str] = []

    class CallsOfLanes(Observer):
        def call(self, service: str, method: str, *, traced: bool = True) -> AbstractContextManager[object]:
            calls.append(method)
            return nullcontext()

    tiers = observed_tiers(world.tiers, CallsOfLanes())
    async with TieredStorage(tiers, world.log, world.runtime, world.settings(**in_parts())) as storage:
        await storage.put(OBJECT, HUGE)
        assert await saved(storage) == HUGE
    assert calls.count("open") == len(blobs.opened) > 3
    assert calls.count("read_chunk") >= len(PARTS)


# --- overwritten meanwhile -----------------------------------------------------------------------


@pytest.mark.parametrize("then", ["put", "delete"])
async def test_an_object_that_is_replaced_meanwhile_comes_whole_from_the_stream_that_still_has_it(
    world: TappedWorld, blobs: RangedBlobs, then: str
) -> None:
    async def kept(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """A service goes on with a stream that it has begun; this one in memory does not."""
        for start in range(0, len(HUGE), PART):
            await world.runtime.sleep(1)
            yield HUGE[start : start + PART]

    blobs.spoil = lambda start, chunks: kept(chunks) if start == 0 else chunks
    async with world.store(**in_parts(3)) as storage:
        await storage.put(OBJECT, HUGE)
        stored = await opened(storage)
        await (storage.put(OBJECT, SMALL) if then == "put" else storage.delete(OBJECT))
        await world.runtime.sleep(60)
        await stored.save(buffer := bytearray(len(HUGE)))
        assert buffer == HUGE and all_free(storage)


async def test_parts_that_helpers_had_begun_when_the_object_was_replaced_come_from_the_first_stream(
    world: TappedWorld, blobs: RangedBlobs
) -> None:
    async with world.store(**in_parts(3)) as storage:
        async def kept(start: int) -> AsyncIterator[bytes]:
            for at in range(start, len(HUGE), PART):
                if start and at == start:
                    yield HUGE[at : at + 1000]
                    await storage.delete(OBJECT)
                    raise UnavailableError("cut")
                await world.runtime.sleep(5)
                yield HUGE[at : at + PART]

        await storage.put(OBJECT, HUGE)
        stored = await opened(storage)
        stored._chunks = kept(0)
        blobs.spoil = lambda start, chunks: kept(start)
        told: list[int] = []
        await stored._save(buffer := bytearray(len(HUGE)), partial(_note, told))
        assert buffer == HUGE and sum(told) == len(HUGE)


async def _note(told: list[int], size: int) -> None:
    told.append(size)


async def test_the_first_stream_passes_what_others_got_to_a_part_that_nobody_can_open(world: TappedWorld, blobs: RangedBlobs) -> None:
    def refuse(start: int) -> None:
        if start == PARTS[-1][0]:
            raise UnavailableError("down")

    blobs.refuse = refuse
    async with world.store(**in_parts(3)) as storage:
        await storage.put(OBJECT, HUGE)
        assert await saved(storage) == HUGE
    assert PARTS[-2] in blobs.opened, "somebody else got the part before it"


async def test_the_first_stream_that_breaks_on_its_way_to_a_part_is_opened_again(world: TappedWorld, blobs: RangedBlobs) -> None:
    """The last part was refused to a helper, and to the leader once. The stream breaks within the part before it."""
    refused: list[int] = []

    def refuse(start: int) -> None:
        if start == PARTS[-1][0] and len(refused) < 6 + 1:
            refused.append(start)
            raise UnavailableError("down")

    async def broken(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        for _ in range(len(PARTS) - 2):
            await world.runtime.sleep(60)
            yield await anext(chunks)
        raise UnavailableError("cut")

    blobs.refuse = refuse
    blobs.spoil = lambda start, chunks: broken(chunks) if start == 0 else chunks
    async with world.store(**in_parts(3)) as storage:
        await storage.put(OBJECT, HUGE)
        assert await saved(storage) == HUGE
    assert len(refused) == 7


async def test_an_object_that_is_gone_with_its_first_stream_says_so(world: TappedWorld, blobs: RangedBlobs) -> None:
    async with world.store(**in_parts(3)) as storage:
        await storage.put(OBJECT, HUGE)
        stored = await opened(storage)
        await storage.put(OBJECT, SMALL)
        await world.runtime.sleep(60)
        with pytest.raises(UnavailableError, match=GONE.partition(";")[0]):
            await stored.save(bytearray(len(HUGE)))
        assert all_free(storage) and await saved(storage) == SMALL


async def test_a_generation_of_the_same_name_is_never_mixed_in(world: TappedWorld, blobs: RangedBlobs) -> None:
    async with world.store(**in_parts(3)) as storage:
        await storage.put(OBJECT, HUGE)
        stored = await opened(storage)
        [name] = await world.blob_names()
        real = blobs.blobs.target
        real.plant(name, real.blobs[name].metadata, bytes(len(HUGE)))
        with pytest.raises(UnavailableError, match="overwritten or deleted"):
            await stored.save(bytearray(len(HUGE)))


# --- cancelled, told, refused --------------------------------------------------------------------


async def test_a_save_that_is_cancelled_leaves_nothing_open(world: TappedWorld, blobs: RangedBlobs) -> None:
    async def stalled(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        yield await anext(chunks)
        await anyio.sleep_forever()

    blobs.spoil = lambda start, chunks: stalled(chunks)
    async with world.store(**in_parts()) as storage:
        await storage.put(OBJECT, HUGE)
        stored = await opened(storage)
        with anyio.move_on_after(100) as scope:
            await stored.save(bytearray(len(HUGE)))
        assert scope.cancelled_caught and all_free(storage) and blobs.open_now == 0
        with pytest.raises(InvalidRequestError, match="already read or closed"):
            await stored.read()


async def test_one_slow_lane_is_seen_in_progress(world: TappedWorld, blobs: RangedBlobs) -> None:
    async def slow(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            for byte in range(0, len(chunk), PART // 8):
                await world.runtime.sleep(2 * WRITTEN_AFTER_S)
                yield chunk[byte : byte + PART // 8]

    blobs.spoil = lambda start, chunks: slow(chunks) if start == PARTS[-2][0] else chunks
    told: list[int] = []
    async with world.store(**in_parts()) as storage:
        await storage.put(OBJECT, HUGE)
        assert await saved(storage, progress=lambda so_far, total: told.append(so_far)) == HUGE
    assert told[-6:] == [len(HUGE) - left * PART // 8 for left in range(5, -1, -1)], "each piece of the slow lane is told by itself"


async def test_an_async_callback_is_told_by_one_lane_at_a_time_and_what_it_raises_ends_the_save(
    world: TappedWorld, blobs: RangedBlobs
) -> None:
    within = [0]

    async def progress(so_far: int, total: int | None) -> None:
        within[0] += 1
        assert within == [1]
        await world.runtime.sleep(1)
        within[0] -= 1
        if so_far > 3 * PART:
            raise ZeroDivisionError("enough")

    async with world.store(**in_parts()) as storage:
        await storage.put(OBJECT, HUGE)
        with pytest.raises(ZeroDivisionError, match="enough"):
            await saved(storage, progress=progress)
        assert all_free(storage) and blobs.open_now == 0


@pytest.mark.parametrize(("destination", "why"), [
    ("file", "ambiguous"), (b"x" * 5, "cannot be written"), (bytearray(4), "4 bytes, and 5 are to be written"), (5, "nothing can be saved"),
    (None, "nothing can be saved"),
])  # fmt: skip
async def test_what_is_no_destination_is_refused_and_the_object_closed(world: TappedWorld, destination: Any, why: str) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        stored = await opened(storage)
        with pytest.raises(InvalidRequestError, match=why):
            await stored.save(destination)
        for again in (stored.save(bytearray(5)), stored.read()):
            with pytest.raises(InvalidRequestError, match="already read or closed"):
                await again


async def test_a_longer_buffer_keeps_its_end(world: TappedWorld) -> None:
    async with world.store() as storage:
        await storage.put(OBJECT, SMALL)
        buffer = bytearray(b"-" * 8)
        await (await opened(storage)).save(memoryview(buffer)[1:])
    assert buffer == b"-" + SMALL + b"--"
