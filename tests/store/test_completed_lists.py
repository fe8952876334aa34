"""What an upload was completed with is remembered as long as its marks are, and every later answer goes by it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest

from changelog.base.errors import UnconfirmedError
from changelog.change import ChangeId
from tests.given.tapped_store import LARGE, OBJECT, RARE_BEATS, SMALL, TappedWorld, fails, never_arrives, read
from tiered import InvalidRequestError, OutcomeUnknownError, TieredStorage, UnavailableError
from tiered.errors import UploadEndedError
from tiered.multipart import MultipartUpload
from tiered.protocol.completed import SIZE_MAX, CompletedLists
from tiered.protocol.open_upload import digest_of
from tiered.services.capabilities import Part

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0
ONE, TWO, THREE = b"1" * 50, b"2" * 50, b"3" * 50
OTHERS: dict[str, Callable[[list[Part]], list[Part]]] = {
    "of equal size": lambda parts: parts[1:],
    "a part less": lambda parts: parts[:1],
    "a part more": lambda parts: parts,
    "uploaded again": lambda parts: [parts[0], replace(parts[1], etag="forged")],
    "that never were": lambda parts: [Part(7, 999_999, None, "forged")],
}
"""Lists other than the one that was completed, which is that of the first two parts."""


async def uploaded(storage: TieredStorage) -> tuple[MultipartUpload, list[Part]]:
    upload = await storage.begin_multipart(OBJECT)
    return upload, [await upload.upload_part(number, payload) for number, payload in enumerate((ONE, TWO, THREE), 1)]


async def put_small(storage: TieredStorage) -> None:
    await storage.put(OBJECT, SMALL)


async def put_large(storage: TieredStorage) -> None:
    await storage.put(OBJECT, LARGE)


async def delete(storage: TieredStorage) -> None:
    await storage.delete(OBJECT)


async def nothing(storage: TieredStorage) -> None:
    """It is the object still."""


AFTERWARDS = (nothing, put_small, put_large, delete)


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("afterwards", AFTERWARDS)
async def test_another_list_than_the_completed_one_is_never_told_ok(
    world: TappedWorld, afterwards: Callable[[TieredStorage], Awaitable[None]], others: str
) -> None:
    async with world.store() as storage:
        upload, parts = await uploaded(storage)
        first = await upload.complete(parts[:2])
        await afterwards(storage)
        with pytest.raises(InvalidRequestError, match="was completed with other parts"):
            await upload.complete(OTHERS[others](parts))
        assert await upload.complete(parts[:2]) == first == await upload.complete()
    assert await world.is_clean()


async def test_of_two_lists_at_once_exactly_the_one_that_is_stored_is_told_ok(world: TappedWorld) -> None:
    told: dict[int, str] = {}
    async with world.store() as storage:
        for _ in range(20):
            upload, parts = await uploaded(storage)

            async def complete(begin: int, parts: list[Part] = parts, upload: MultipartUpload = upload) -> None:
                try:
                    await upload.complete(parts[begin : begin + 2])
                    told[begin] = "ok"
                except InvalidRequestError:
                    told[begin] = "other parts"

            async with anyio.create_task_group() as group:
                group.start_soon(complete, 0)
                group.start_soon(complete, 1)
            stored = await read(storage)
            assert sorted(told.values()) == ["ok", "other parts"]
            assert stored == (ONE + TWO if told[0] == "ok" else TWO + THREE)


async def test_an_upload_that_older_software_completed_has_ended_and_no_list_is_told_ok(world: TappedWorld) -> None:
    async with world.store(lease=RARE_BEATS) as storage:
        upload, parts = await uploaded(storage)
        first = await upload.complete(parts)
        world.rows.target.refused.clear()  # it leaves no marks of its own
        with pytest.raises(UploadEndedError) as caught:
            await upload.complete(parts)
        assert caught.value.completed is True
        assert await upload.complete() == first, "its blob tells the size"
        await storage.put(OBJECT, SMALL)
        with pytest.raises(UploadEndedError) as caught:
            await upload.complete()
        assert caught.value.completed is True


async def test_when_marks_may_be_collected_another_list_is_not_said_to_be_wrong(world: TappedWorld) -> None:
    async with world.store(lease=RARE_BEATS) as storage:
        upload, parts = await uploaded(storage)
        await world.runtime.sleep(5 * DAY_S)
        await upload.complete(parts)
        await storage.put(OBJECT, SMALL)
        await world.runtime.sleep(DAY_S)
        with pytest.raises(InvalidRequestError):
            await upload.complete(parts[:1])
        await world.runtime.sleep(DAY_S)
        world.rows.target.refused[OBJECT.path].pop(CompletedLists(upload.id).of_list(digest_of(parts)))
        with pytest.raises(UploadEndedError) as caught:
            await upload.complete(parts)
        assert caught.value.completed is True


async def test_marks_of_lists_move_the_horizon_no_further_than_other_marks(world: TappedWorld) -> None:
    async with world.store(lease=RARE_BEATS) as storage:
        upload, parts = await uploaded(storage)
        await world.runtime.sleep(3 * DAY_S)
        await upload.complete(parts)
        completed_ms = world.runtime.wall_ns() // 1_000_000
        await world.runtime.sleep(3 * DAY_S)
        while await world.rows.target.collect(1000):
            pass
        assert world.rows.target.horizon_ms <= completed_ms
        assert not any(world.rows.target.refused.values())
        await storage.put(OBJECT, LARGE)


@pytest.mark.parametrize("lost", ["the request", "the answer"])
async def test_marks_that_are_not_confirmed_are_made_good_by_the_next_completion(world: TappedWorld, lost: str) -> None:
    async def unanswered(real: Any, *args: Any) -> Any:
        if lost == "the answer":
            await real(*args)
        raise UnconfirmedError("no answer")

    async with world.store() as storage:
        upload, parts = await uploaded(storage)
        world.rows.hooks["settle"] = unanswered
        with pytest.raises((UnavailableError, OutcomeUnknownError)):
            await upload.complete(parts)
        assert await read(storage) is None
        del world.rows.hooks["settle"]
        with pytest.raises(InvalidRequestError, match="other parts"):
            await upload.complete(parts[:1])
        result = await upload.complete(parts)
        await storage.put(OBJECT, SMALL)
        assert await upload.complete(parts) == result


@pytest.mark.parametrize("size", [0, 1, 12_345, 5 << 40, SIZE_MAX, SIZE_MAX + 1])
@pytest.mark.parametrize("age_ms", [-5, 0, 3_599_999, 3_600_000, 30 * 86_400_000])
def test_a_size_is_read_back_from_its_mark(size: int, age_ms: int) -> None:
    upload_id = ChangeId("018bcfe5-6800-7000-8000-000000000001")
    lists = CompletedLists(upload_id)
    mark = lists.of_size(size, upload_id.created_ms + age_ms)
    others = [ChangeId("018bcfe5-6800-7fff-8000-000000000002"), upload_id, lists.of_list("ab"), CompletedLists(others_id).of_size(7, 0)]
    found = lists.completed({mark, *others})
    if size > SIZE_MAX:
        assert found is None or found.size is None
    else:
        assert found is not None and found.size == size
        assert 0 <= upload_id.created_ms + max(0, age_ms) - found.since_ms < 3_600_000
    assert mark.created_ms == lists.of_list("ab").created_ms == upload_id.created_ms


others_id = ChangeId("018bcfe5-6800-7000-8000-000000000002")


# --- to give up beside others ------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["abort", "complete", "upload_part", "parts"])
async def test_whoever_meets_a_sealed_upload_settles_it_and_tells_what_became_of_it(world: TappedWorld, call: str) -> None:
    """A process may have been killed, or be slow, between the seal and the settling."""
    async with world.store() as storage:
        upload, parts = await uploaded(storage)
        (entry,) = await world.entries()
        assert await world.log.target.claim(entry, "killed") is not None
        calls = {
            "abort": upload.abort, "complete": lambda: upload.complete(parts), "upload_part": lambda: upload.upload_part(1, b"x"),
            "parts": upload.parts,
        }  # fmt: skip
        if call == "abort":
            await upload.abort()
        else:
            with pytest.raises(UploadEndedError) as caught:
                await calls[call]()
            assert caught.value.completed is False
    await world.runtime.sleep(3600)
    await world.recovery().run_once()
    assert not world.blobs.target.in_parts


@pytest.mark.parametrize(("call", "told"), [("abort", OutcomeUnknownError), ("complete", OutcomeUnknownError), ("parts", UnavailableError)])
async def test_a_sealed_upload_that_cannot_be_settled_is_told_as_not_known(
    world: TappedWorld, call: str, told: type[Exception]
) -> None:
    async with world.store() as storage:
        upload, parts = await uploaded(storage)
        (entry,) = await world.entries()
        assert await world.log.target.claim(entry, "killed") is not None
        world.rows.hooks["settle"] = never_arrives
        calls = {"abort": upload.abort, "complete": lambda: upload.complete(parts), "parts": upload.parts}
        with pytest.raises(told):
            await calls[call]()
        del world.rows.hooks["settle"]


async def test_whoever_meets_a_sealed_upload_that_won_says_so(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload, parts = await uploaded(storage)
        world.log.hooks["claim"] = fails(UnavailableError("the changelog is away"))
        first = await upload.complete(parts)
        await world.runtime.sleep(60)
        del world.log.hooks["claim"]
        (entry,) = await world.entries()
        assert await world.log.target.claim(entry, "killed") is not None
        assert await upload.complete() == first
        with pytest.raises(UploadEndedError) as caught:
            await upload.abort()
        assert caught.value.completed is True


@pytest.mark.parametrize("call", ["upload_part", "parts", "sign_part", "append", "append elsewhere", "status"])
async def test_who_was_told_that_it_is_complete_finds_it_ended_before_it_is_sealed(world: TappedWorld, call: str) -> None:
    """Found by callers: an append was told to ask the status later, and the status was what had been appended."""
    async with world.store() as storage:
        resumable = await storage.begin_resumable(OBJECT)
        there = await resumable.append(0, b"all", final=True)
        upload = storage.multipart(OBJECT, resumable.id)
        world.log.hooks["claim"] = fails(UnavailableError("the changelog is away"))
        await resumable.finish()
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "upload_part": lambda: upload.upload_part(2, b"x"), "parts": upload.parts,
            "sign_part": lambda: upload.sign_part(2, timedelta(days=1)), "append": lambda: resumable.append(there, b"x"),
            "append elsewhere": lambda: resumable.append(there + 1, b"x"), "status": resumable.status,
        }  # fmt: skip
        with pytest.raises(UploadEndedError) as caught:
            await calls[call]()
        assert caught.value.completed is True
        del world.log.hooks["claim"]


@pytest.mark.parametrize("age_s", [0.0, 5 * DAY_S])
async def test_all_who_abort_at_once_are_told_the_same(world: TappedWorld, age_s: float) -> None:
    async with world.store(lease=RARE_BEATS) as storage:
        upload, _ = await uploaded(storage)
        await world.runtime.sleep(age_s)
        world.rows.hooks["settle"] = world.slow(0.5)
        async with anyio.create_task_group() as group:
            for delay_s in (0, 0, 0.1, 0.3, 2):
                group.start_soon(_abort_after, world, upload, delay_s)
        await upload.abort()


async def _abort_after(world: TappedWorld, upload: MultipartUpload, delay_s: float) -> None:
    await world.runtime.sleep(delay_s)
    await upload.abort()
