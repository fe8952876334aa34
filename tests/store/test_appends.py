"""An upload that is appended to is one thing, whoever goes on with it: also beside a process that only stood still."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from changelog.base.errors import UnconfirmedError
from changelog.change import ChangeId, Entry, encode
from tests.given.tapped_store import OBJECT, RARE_BEATS, TappedWorld, Withheld, fails, never_arrives, pieces, read
from tiered import InvalidRequestError, Metadata, OffsetMismatchError, TieredError, TieredStorage, UnavailableError
from tiered.errors import AtCapacityError, UploadEndedError
from tiered.metadata import Metadata as StoredMetadata
from tiered.multipart import ResumableUpload
from tiered.protocol.appending import SKIPPED_MAX, Appending
from tiered.protocol.open_upload import OpenUpload
from tiered.services.capabilities import PART_NUMBER_MAX, Part

pytestmark = pytest.mark.anyio

MIB = 1 << 20
PART = 5 * MIB
WHOLE = b"".join(bytes([number]) * PART for number in range(1, 5)) + b"end"


async def the_entry(world: TappedWorld) -> Entry:
    (entry,) = await world.entries()
    assert isinstance(entry, Entry)
    return entry


async def appending(world: TappedWorld) -> Appending:
    state = OpenUpload.of(await the_entry(world)).appending
    assert state is not None
    return state


class StandsStill:
    """Lets one process stand still in a call, until `wake`. What others call meanwhile goes through."""

    def __init__(self, *, after: int = 0, arrived: bool = False) -> None:
        """`after`: so many calls go through first. `arrived`: the call took effect before the process stood still."""
        self.wake, self.stands = anyio.Event(), anyio.Event()
        self._after = after
        self._arrived = arrived

    async def __call__(self, real: Any, *args: Any, **named: Any) -> Any:
        self._after -= 1
        if self._after != -1:
            return await real(*args, **named)
        told = await real(*args, **named) if self._arrived else None
        self.stands.set()
        await self.wake.wait()
        return told if self._arrived else await real(*args, **named)


@pytest.mark.parametrize("at", ["put_part", "amend"])
@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("arrived", [False, True], ids=["before", "after"])
async def test_a_process_that_stood_still_changes_nothing_when_it_wakes(world: TappedWorld, at: str, after: int, arrived: bool) -> None:
    """The issue's case: the client goes on elsewhere meanwhile, and the first process wakes in the middle of it."""
    stopped = StandsStill(after=after + (at == "amend"), arrived=arrived)
    told: list[object] = []
    async with world.store(instance="one") as one, world.store(instance="two") as two:
        upload = await one.begin_resumable(OBJECT)
        {"put_part": world.blobs, "amend": world.log}[at].hooks[at] = stopped

        async def append() -> None:
            try:
                told.append(await upload.append(0, WHOLE, final=True, part_bytes=PART))
            except TieredError as error:
                told.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(append)
            await stopped.stands.wait()
            other = two.resumable(OBJECT, upload.id)
            there = await other.status()
            with pytest.raises(InvalidRequestError, match=f"{PART} bytes in each part"):
                await other.append(there, WHOLE[there:], part_bytes=6 * MIB)
            there = await other.append(there, WHOLE[there : 3 * PART], final=False)
            stopped.wake.set()
            await world.runtime.sleep(60)
            assert await other.append(there, WHOLE[there:], final=True) == len(WHOLE)
        assert [type(each) for each in told] == [OffsetMismatchError]
        assert (await other.finish()).size == len(WHOLE)
        assert await read(two) == WHOLE


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.3])
async def test_of_two_appends_at_one_offset_exactly_one_is_told_ok(world: TappedWorld, delay_s: float) -> None:
    told: dict[bytes, object] = {}
    async with world.store() as storage:
        upload = await storage.begin_resumable(OBJECT)
        world.blobs.hooks["put_part"] = world.slow(0.1)

        async def append(word: bytes, delay_s: float) -> None:
            await world.runtime.sleep(delay_s)
            try:
                told[word] = await upload.append(0, word * 1000, final=True)
            except OffsetMismatchError as error:
                told[word] = error

        async with anyio.create_task_group() as group:
            group.start_soon(append, b"one", 0.0)
            group.start_soon(append, b"two", delay_s)
        (winner,) = [word for word, each in told.items() if each == 3000]
        await upload.finish()
        assert await read(storage) == winner * 1000


async def test_who_goes_on_may_leave_the_grid_to_the_upload_or_name_the_same(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await storage.begin_resumable(OBJECT)
        assert await upload.append(0, WHOLE, part_bytes=PART) == 4 * PART
        assert await upload.append(4 * PART, b"") == 4 * PART
        with pytest.raises(InvalidRequestError, match="leave part_bytes out"):
            await upload.append(4 * PART, b"end", final=True, part_bytes=8 * MIB)
        assert await upload.append(4 * PART, b"end", final=True, part_bytes=PART) == len(WHOLE)
        await upload.finish()
        assert await read(storage) == WHOLE


async def test_finish_takes_what_was_acknowledged_and_complete_does_too(world: TappedWorld) -> None:
    async with world.store() as storage:
        for end in ("finish", "complete", "complete with a list"):
            upload = await storage.begin_resumable(OBJECT)
            await upload.append(0, WHOLE, final=True, part_bytes=PART)
            multipart = storage.multipart(OBJECT, upload.id)
            counted = await multipart.parts()
            stray = await multipart.upload_part(9, b"nobody appended this")
            if end == "complete with a list":
                for wrong in ([*counted, stray], counted[1:], counted[:-1]):
                    with pytest.raises(InvalidRequestError):
                        await multipart.complete(wrong)
                await multipart.complete(counted)
            else:
                await (upload.finish() if end == "finish" else multipart.complete())
            assert await read(storage) == WHOLE


@pytest.mark.parametrize("changed", [b"\x07" * PART, b"shorter"], ids=["of the same size", "shorter"])
async def test_a_part_that_changed_since_it_was_acknowledged_is_told_and_not_stored(world: TappedWorld, changed: bytes) -> None:
    async with world.store() as storage:
        upload = await storage.begin_resumable(OBJECT)
        await upload.append(0, WHOLE, final=True, part_bytes=PART)
        await storage.multipart(OBJECT, upload.id).upload_part(2, changed)
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match="part 2 is another one" if len(changed) < PART else "a part is another one"):
                await upload.finish()
        assert await read(storage) is None
        await upload.cancel()


async def test_a_gap_is_told_where_nobody_has_acknowledged_anything(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await storage.begin_resumable(OBJECT)
        multipart = storage.multipart(OBJECT, upload.id)
        await multipart.upload_part(1, b"one")
        await multipart.upload_part(3, b"three")
        assert await upload.status() == 3
        with pytest.raises(InvalidRequestError, match="no part 2"):
            await upload.finish()
        await multipart.complete()
        assert await read(storage) == b"onethree"


async def test_what_older_software_appended_is_gone_on_with(world: TappedWorld) -> None:
    """Its process may be stopped in the middle of part 3, too."""
    async with world.store() as storage:
        upload = await storage.begin_resumable(OBJECT)
        older = storage.multipart(OBJECT, upload.id)
        for number in (1, 2):
            await older.upload_part(number, WHOLE[(number - 1) * PART : number * PART])
        assert OpenUpload.of(await the_entry(world)).appending is None
        assert await upload.status() == 2 * PART
        assert await upload.append(2 * PART, WHOLE[2 * PART :], final=True, part_bytes=PART) == len(WHOLE)
        await older.upload_part(3, b"late")
        await upload.finish()
        assert await read(storage) == WHOLE


@pytest.mark.parametrize("lost", ["the request", "the answer"])
@pytest.mark.parametrize("call", [0, 1, 2, 3, 4, 5])
async def test_a_swap_of_the_entry_that_is_not_answered_is_found_in_the_entry(world: TappedWorld, lost: str, call: int) -> None:
    left = call

    async def unanswered(real: Any, *args: Any) -> Any:
        nonlocal left
        left -= 1
        if left == -1:
            if lost == "the answer":
                await real(*args)
            raise UnconfirmedError("no answer")
        return await real(*args)

    async with world.store() as storage:
        upload = await storage.begin_resumable(OBJECT)
        world.log.hooks["amend"] = unanswered
        assert await upload.append(0, WHOLE, final=True, part_bytes=PART) == len(WHOLE)
        assert (await appending(world)).skipped == () and (await appending(world)).token is None
        await upload.finish()
        assert await read(storage) == WHOLE


async def test_a_log_that_takes_nothing_leaves_what_was_acknowledged(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await storage.begin_resumable(OBJECT)
        assert await upload.append(0, WHOLE[:PART], part_bytes=PART) == PART
        world.log.hooks["amend"] = fails(UnavailableError("the changelog is away"))
        with pytest.raises(UnavailableError):
            await upload.append(PART, WHOLE[PART:], final=True)
        del world.log.hooks["amend"]
        assert await upload.status() == PART
        assert await upload.append(PART, WHOLE[PART:], final=True) == len(WHOLE)
        await upload.finish()
        assert await read(storage) == WHOLE


async def break_off(storage: TieredStorage, upload: ResumableUpload) -> None:
    with pytest.raises(ConnectionResetError):
        await upload.append(0, pieces(WHOLE[: PART + 7], ConnectionResetError()), part_bytes=PART)


async def refuse_a_slot(storage: TieredStorage, upload: ResumableUpload) -> None:
    real = upload._uploads.append

    async def full(*args: Any, **named: Any) -> Any:
        raise AtCapacityError("too many")

    upload._uploads.append = full  # type: ignore[method-assign]
    with pytest.raises(AtCapacityError):
        await upload.append(0, WHOLE, part_bytes=PART)
    upload._uploads.append = real  # type: ignore[method-assign]


@pytest.mark.parametrize("interrupted", [break_off, refuse_a_slot])
async def test_an_append_that_has_nothing_under_way_gives_its_token_back(
    world: TappedWorld, interrupted: Callable[[TieredStorage, ResumableUpload], Awaitable[None]]
) -> None:
    async with world.store() as storage:
        upload = await storage.begin_resumable(OBJECT)
        await interrupted(storage, upload)
        assert (await appending(world)).token is None
        there = await upload.status()
        await upload.append(there, WHOLE[there:], final=True)
        assert (await appending(world)).skipped == ()
        await upload.finish()
        assert await read(storage) == WHOLE


async def test_a_part_that_may_be_under_way_keeps_its_number_though_its_repetition_found_no_connection(world: TappedWorld) -> None:
    sent = Withheld()

    async def then_full(real: Any, *args: Any, **named: Any) -> Any:
        world.blobs.hooks["put_part"] = fails(AtCapacityError("all connections are taken"))
        await sent(real, *args, **named)

    async with world.store() as storage:
        upload = await storage.begin_resumable(OBJECT)
        world.blobs.hooks["put_part"] = then_full
        with pytest.raises(UnavailableError):
            await upload.append(0, b"other" * PART, part_bytes=PART)
        del world.blobs.hooks["put_part"]
        await upload.append(0, WHOLE, final=True)
        assert (await appending(world)).skipped == (1,)
        await sent.arrive()
        await upload.finish()
        assert await read(storage) == WHOLE


async def test_what_is_appended_while_it_is_being_finished_is_refused_and_the_completion_stands(world: TappedWorld) -> None:
    async with world.store() as storage:
        upload = await storage.begin_resumable(OBJECT)
        await upload.append(0, WHOLE[:PART], part_bytes=PART)
        world.blobs.hooks["complete_parts"] = never_arrives
        with pytest.raises(UnavailableError):
            await upload.finish()
        with pytest.raises(UnavailableError, match="is being finished"):
            await upload.append(PART, WHOLE[PART:], final=True)
        del world.blobs.hooks["complete_parts"]
        assert (await upload.finish()).size == PART
        with pytest.raises(UploadEndedError):
            await upload.append(PART, b"x")
        with pytest.raises(UploadEndedError):
            await upload.status()


async def test_an_upload_may_be_finished_beside_somebody_who_still_appends(world: TappedWorld) -> None:
    stopped = StandsStill(after=1)
    async with world.store() as storage:
        upload = await storage.begin_resumable(OBJECT)
        world.blobs.hooks["put_part"] = stopped
        async with anyio.create_task_group() as group:

            async def append() -> None:
                with pytest.raises(UploadEndedError):
                    await upload.append(0, WHOLE, final=True, part_bytes=PART)

            group.start_soon(append)
            await stopped.stands.wait()
            assert (await upload.finish()).size == PART
            stopped.wake.set()
        assert await read(storage) == WHOLE[:PART]


async def test_the_entry_stays_short(world: TappedWorld) -> None:
    async with world.store(lease=RARE_BEATS) as storage:
        upload = await storage.begin_resumable(OBJECT, Metadata(custom={"key": "x" * 1000}))
        await upload.append(0, WHOLE, part_bytes=PART)
        assert len(encode(await the_entry(world))) < 1200
    worst = Appending(PART, 1 << 60, 5000, PART_NUMBER_MAX, "f" * 64, tuple(range(9000, 9000 + SKIPPED_MAX)), upload.id)
    assert len(OpenUpload(StoredMetadata(), None, 5, appending=worst).encode()) < 10_000


def test_what_was_appended_is_read_back_as_it_was_and_damage_is_said() -> None:
    token = ChangeId("018bcfe5-6800-7000-8000-000000000001")
    state = Appending.adopted(PART, [Part(1, PART, None, "a"), Part(3, 7, None, "b")]).taken(token)
    assert (state.size, state.parts, state.next, state.skipped) == (PART, 1, 3, (2,))
    told = json.loads(json.dumps(state.encode()))
    assert Appending.of(told) == state and Appending.of(None) is None
    for damage in ({"size": "x"}, {"skipped": [-1]}, {"token": "x"}, {"chain": None}, {"next": True}):
        with pytest.raises((ValueError, TypeError, InvalidRequestError)):
            Appending.of({**told, **damage})


def test_an_upload_ends_at_so_many_pieces_and_interruptions() -> None:
    token, other = ChangeId("018bcfe5-6800-7000-8000-000000000001"), ChangeId("018bcfe5-6800-7000-8000-000000000002")
    state = Appending(PART).taken(token)
    for _ in range(SKIPPED_MAX):
        state = state.taken(other)
    with pytest.raises(InvalidRequestError, match="interrupted"):
        state.taken(token)
    with pytest.raises(InvalidRequestError, match="larger part_bytes"):
        replace(state, next=PART_NUMBER_MAX + 1).number()
