"""What a reader finds lost stays known after the process that found it, until it is mended."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from changelog.base.errors import CorruptRecordError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.noop import NoopChangeLog
from recovery.daemon import Recovery
from recovery.dangling import AUDIT_LATER_MS, SecondLook, forget_mended, has_more, look_again, look_at_lost_reads
from recovery.last_audit import Audits, LastAudit, note_audit
from recovery.outages import FULL_PASS_EVERY_S
from recovery.states import Level
from recovery.status.as_json import as_json
from recovery.status.judgement import judge
from recovery.status.known import Status
from recovery.status.look import gather
from tests.given.tapped_store import LARGE, OBJECT, SMALL, TappedWorld, fails, hangs
from tiered import DanglingTombstoneError, ObjectId, Settings, TieredStorage, open_storage
from tiered.metadata import NS_PER_MS
from tiered.notes.dangling import (
    EVERY_S,
    LISTED_MAX,
    NOTE,
    Dangling,
    DanglingNote,
    DanglingNotes,
    decode,
    encode,
    read_dangling,
)
from tiered.open import Backends, open_backends

pytestmark = pytest.mark.anyio


def objects(number: int) -> list[ObjectId]:
    return [ObjectId.create("attachments", f"key-{each}", {"org": "17"}) for each in range(number)]


async def lose(world: TappedWorld, storage: TieredStorage, *object_ids: ObjectId) -> None:
    """Puts large objects, and deletes their blobs behind the store's back."""
    for object_id in object_ids:
        await storage.put(object_id, LARGE)
        target = (await world.rows.target.read(object_id.path)).target
        await world.blobs.target.delete(target)


async def find(storage: TieredStorage, *object_ids: ObjectId) -> None:
    for object_id in object_ids:
        with pytest.raises(DanglingTombstoneError):
            await storage.get(object_id)


@asynccontextmanager
async def lost(world: TappedWorld, *object_ids: ObjectId, **values: Any) -> AsyncIterator[TieredStorage]:
    """A store whose objects are lost, and were found so."""
    async with world.store(**values) as storage:
        await lose(world, storage, *object_ids)
        await find(storage, *object_ids)
        yield storage


async def status(world: TappedWorld) -> Status:
    return await gather(Backends(world.tiers, world.log), world.settings(changelog="sqlite"), world.runtime)


async def noted(world: TappedWorld) -> DanglingNote:
    return await read_dangling(world.log.target)


async def forget(world: TappedWorld) -> None:
    await forget_mended(world.tiers, world.log, world.runtime)


# --- it is noted, and no reader waits for that ---------------------------------------------------------


async def test_a_loss_that_a_reader_found_is_known_after_its_process_has_ended(world: TappedWorld) -> None:
    async with lost(world, OBJECT) as storage:
        assert storage.dangling_found == 1
    found = await status(world)
    assert judge(found).level is Level.LOST and found.complete and found.problems == ()
    assert judge(found).headline.startswith("DATA IS LOST: readers found 1 object whose blob is gone. ")
    assert judge(found).orders[0].type == "tiered audit run"
    [each] = as_json(found)["lost_reads"]["objects"]
    assert each["object"] == OBJECT.path and as_json(found)["level"] == "lost"
    hidden = as_json(found, show_objects=False)
    assert hidden["lost_reads"]["objects"] == [{"object": "…", "blob": "…", "found": each["found"]}]
    assert OBJECT.path not in json.dumps(hidden)


async def test_a_head_a_listing_and_a_copy_find_it_as_a_read_does(world: TappedWorld) -> None:
    one, two, three = objects(3)
    async with world.store() as storage:
        await lose(world, storage, one, two, three)
        with pytest.raises(DanglingTombstoneError):
            await storage.head(one)
        with pytest.raises(DanglingTombstoneError):
            await storage.copy(two, OBJECT)
        await find(storage, three)
    assert {each.path for each in (await noted(world)).listed} == {one.path, two.path, three.path}


async def test_a_store_for_reading_and_one_whose_log_keeps_nothing_note_nothing(world: TappedWorld) -> None:
    async with world.store() as storage:
        await lose(world, storage, OBJECT)
    async with TieredStorage(world.tiers, world.log, world.runtime, world.settings(), writes=False) as reader:
        await find(reader, OBJECT)
    async with TieredStorage(world.tiers, NoopChangeLog(), world.runtime, world.settings()) as storage:
        await find(storage, OBJECT)
    assert world.log.target.notes == {} and "swap_note" not in world.calls
    found = await gather(Backends(world.tiers, NoopChangeLog()), world.settings(), world.runtime)
    assert (found.lost_reads, judge(found).level) == (None, Level.UNKNOWN), "nobody can know"


@pytest.mark.parametrize("hook", [hangs, fails(UnavailableError("down")), fails(UnconfirmedError("who knows"))])
@pytest.mark.parametrize("call", ["read_note", "swap_note"])
async def test_a_changelog_that_is_away_delays_no_read_and_is_asked_again(
    world: TappedWorld, call: str, hook: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world.log.hooks[call] = hook
    began = world.runtime.monotonic()
    async with lost(world, OBJECT) as storage:
        assert world.runtime.monotonic() - began < 1
        await world.runtime.sleep(60)
        assert caplog.text.count("dangling_not_noted") == 1 and world.log.target.notes == {}
        del world.log.hooks[call]
        await world.runtime.sleep(2 * EVERY_S)
        assert [each.path for each in (await noted(world)).listed] == [OBJECT.path]
        await find(storage, OBJECT)


@pytest.mark.parametrize("hook", [hangs, fails(UnavailableError("down"))])
async def test_the_end_of_a_store_waits_a_moment_for_the_note_and_not_for_ever(world: TappedWorld, hook: Any) -> None:
    world.log.hooks["swap_note"] = hook
    async with lost(world, OBJECT):
        await world.runtime.sleep(7)
        began = world.runtime.monotonic()
    assert world.runtime.monotonic() - began <= 6


async def test_what_is_found_while_the_store_is_being_closed_is_noted(world: TappedWorld) -> None:
    one, two = objects(2)
    async with world.store() as storage:
        await lose(world, storage, one, two)
        await find(storage, one)
        await world.runtime.sleep(1)
        await find(storage, two)  # waits for its turn
        assert [each.path for each in (await noted(world)).listed] == [one.path]
    assert [each.path for each in (await noted(world)).listed] == [one.path, two.path]


async def test_a_thousand_reads_of_lost_objects_cost_few_calls_and_a_small_note(world: TappedWorld) -> None:
    async with world.store() as storage:
        await lose(world, storage, *objects(50))
        world.calls.clear()
        for _ in range(20):
            await find(storage, *objects(50))
        assert world.calls.count("read_note") + world.calls.count("swap_note") <= 8
    note = await noted(world)
    assert len(note.listed) == LISTED_MAX and note.unlisted_ms is not None
    found = await status(world)
    assert f"readers found {LISTED_MAX} objects, and more, whose blob is gone." in judge(found).headline
    assert len(encode(note)) < 16_384


async def test_two_stores_note_their_finds_beside_each_other(world: TappedWorld) -> None:
    one, two = objects(2)
    async with world.store() as first, world.store() as second:
        await lose(world, first, one, two)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(find, first, one)
            tasks.start_soon(find, second, two)
            tasks.start_soon(find, second, one)
    assert {each.path for each in (await noted(world)).listed} == {one.path, two.path}


@pytest.mark.parametrize("raw", [
    b"?", b"[]", b"{}", b'{"v":2,"listed":[],"unlisted_ms":null}', b'{"v":true,"listed":[],"unlisted_ms":null}', b'{"v":1}',
    b'{"v":1,"listed":[1]}', b'{"v":1,"listed":[{"path":"a","blob":"b","found_ms":-1}]}',
    b'{"v":1,"listed":[{"path":"","blob":"b","found_ms":1}]}',
    b'{"v":1,"listed":[{"path":"\\ud800","blob":"b","found_ms":1}]}', b'{"v":1,"listed":[],"unlisted_ms":"x"}',
])  # fmt: skip
async def test_a_damaged_note_stays_as_it_is_and_is_told(world: TappedWorld, raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(CorruptRecordError, match="reads/dangling"):
        decode(raw)
    world.log.target.notes[NOTE] = raw
    async with lost(world, OBJECT):
        pass
    await forget(world)
    assert world.log.target.notes[NOTE] == raw
    assert "dangling_not_noted" in caplog.text and "dangling_not_looked_at" in caplog.text
    found = await status(world)
    assert (judge(found).level, found.lost_reads, found.complete) == (Level.UNKNOWN, None, False)
    assert "what readers found lost could not be read" in found.problems[0]


def test_a_note_is_read_back_and_keeps_the_first_time_of_each_find() -> None:
    one, two = Dangling("a/objects/ä", "a/objects/ä/1", 5), Dangling("b/objects/b", "b/objects/b/2", 6)
    note = DanglingNote().with_more([one, two]).with_more([replace(one, found_ms=9)])
    assert note == DanglingNote((one, two)) and decode(encode(note)) == note
    assert note.with_more([replace(one, blob="another")]).listed[2].blob == "another", "lost, replaced, and lost again"
    assert note.without([one]) == DanglingNote((two,))
    long = DanglingNote().with_more([Dangling("é" * 2000, f"b{number}", number) for number in range(2)])
    assert len(encode(long)) < 16_384 and len(long.listed) == 1 and long.unlisted_ms == 1
    assert decode(encode(DanglingNote((), 7))) == DanglingNote((), 7)
    assert DanglingNote((), 7).with_more([], 5).unlisted_ms == 7


async def test_one_find_is_noted_again_only_after_ten_minutes(world: TappedWorld) -> None:
    notes = DanglingNotes(world.log, world.runtime)
    assert notes.add("a", "b")
    notes.close()
    await notes.run()
    assert not notes.add("a", "b")
    await world.runtime.sleep(601)
    assert notes.add("a", "b")


# --- a second look, and what is mended -----------------------------------------------------------------


async def restore(world: TappedWorld, storage: TieredStorage) -> None:
    [each] = (await noted(world)).listed
    async with world.store() as other:
        twin = ObjectId.create("attachments", "twin", {})
        await other.put(twin, LARGE)
        name = (await world.rows.target.read(twin.path)).target
        world.blobs.target.blobs[each.blob] = world.blobs.target.blobs[name]


async def overwrite(world: TappedWorld, storage: TieredStorage) -> None:
    await storage.put(OBJECT, LARGE)


async def overwrite_small(world: TappedWorld, storage: TieredStorage) -> None:
    await storage.put(OBJECT, SMALL)


async def delete(world: TappedWorld, storage: TieredStorage) -> None:
    await storage.delete(OBJECT)


@pytest.mark.parametrize("mend", [restore, overwrite, overwrite_small, delete])
async def test_what_is_mended_or_went_in_good_order_is_no_loss_any_more(world: TappedWorld, mend: Any) -> None:
    async with lost(world, OBJECT) as storage:
        await world.runtime.sleep(1)
        assert judge(await status(world)).level is Level.LOST
        await mend(world, storage)
        assert judge(await status(world)).level is Level.OK
        assert len((await noted(world)).listed) == 1, "a status writes nothing"
        await forget(world)
        assert await noted(world) == DanglingNote()


async def test_what_is_still_lost_stays_noted_and_an_expired_object_does_not(world: TappedWorld) -> None:
    async with lost(world, OBJECT):
        pass
    await forget(world)
    [each] = (await noted(world)).listed
    assert await look_again(world.tiers, world.runtime, each) is SecondLook.LOST
    row = await world.rows.target.read(OBJECT.path)

    async def expired(*_: Any, **__: Any) -> Any:
        return replace(row, state=replace(row.state, deadline_ns=world.runtime.wall_ns()))

    world.rows.hooks["read"] = expired
    assert await look_again(world.tiers, world.runtime, each) is SecondLook.MENDED


async def test_an_object_that_is_replaced_during_the_second_look_is_not_lost(world: TappedWorld) -> None:
    async with lost(world, OBJECT) as storage:
        await world.runtime.sleep(1)

        async def overtaken(real: Any, name: str) -> Any:
            if name.startswith(OBJECT.path):  # a probe of the service has another
                del world.blobs.hooks["head"]
                await storage.put(OBJECT, LARGE)
            return await real(name)

        world.blobs.hooks["head"] = overtaken
        assert judge(await status(world)).level is Level.OK


DAMAGED = fails(CorruptRecordError(f"{objects(1)[0].path} is damaged"))


@pytest.mark.parametrize(("tier", "call"), [("rows", "read"), ("blobs", "head")])
@pytest.mark.parametrize("hook", [hangs, fails(UnavailableError("down")), DAMAGED])
async def test_a_loss_that_cannot_be_looked_at_again_stays_known(world: TappedWorld, tier: str, call: str, hook: Any) -> None:
    async with lost(world, *objects(9)):
        pass
    getattr(world, tier).hooks[call] = hook
    found = await status(world)
    assert judge(found).level is Level.LOST and not found.complete
    assert found.lost_reads is not None and (len(found.lost_reads.objects), found.lost_reads.not_looked_at) == (9, 9)
    assert any("what readers found lost could not be read" in problem for problem in found.problems)
    assert "objects/key" not in found.lost_reads.reason, "it is shown where no object may be named"
    await forget(world)
    assert len((await noted(world)).listed) == 9


def audit(started_ms: int, **values: Any) -> LastAudit:
    run = LastAudit("run", "/audits/1", started_ms * NS_PER_MS, (started_ms + 1) * NS_PER_MS, True, 9, 9, {}, 6, 0, 0)
    return replace(run, **values)


LATER = AUDIT_LATER_MS + 1


@pytest.mark.parametrize(("run", "more"), [
    (audit(LATER + 5), False),
    (audit(AUDIT_LATER_MS), True),
    (audit(LATER + 5, complete=False), True),
    (audit(LATER + 5, scope="media/"), True),
    (audit(LATER + 5, findings={"dangling": (1, 0)}), True),
    (None, True),
])  # fmt: skip
async def test_only_a_later_clean_audit_of_everything_ends_what_the_note_does_not_list(
    world: TappedWorld, run: LastAudit | None, more: bool
) -> None:
    note = DanglingNote((), 1)
    assert has_more(note, Audits(() if run is None else (run,))) is more and has_more(note, None)
    assert not has_more(DanglingNote(), None)
    world.log.target.notes[NOTE] = encode(note)
    if run is not None:
        await note_audit(world.log.target, run)
    found = await look_at_lost_reads(world.tiers, world.log, world.runtime, Audits(() if run is None else (run,)))
    assert (found.is_loss, found.more) == (more, more)
    level = judge(await status(world)).level
    assert (level is Level.LOST) is more
    await forget(world)
    assert await noted(world) == (note if more else DanglingNote())


async def test_a_daemon_takes_what_is_mended_out_of_the_note(world: TappedWorld) -> None:
    async with lost(world, OBJECT) as storage:
        await storage.delete(OBJECT)
    recovery = Recovery(Backends(world.tiers, world.log), world.runtime, world.settings(changelog="sqlite"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recovery.run_beside)
        await world.runtime.sleep(FULL_PASS_EVERY_S * 1.1)
        tasks.cancel_scope.cancel()
    assert await noted(world) == DanglingNote()


async def test_a_find_meanwhile_is_not_forgotten(world: TappedWorld, caplog: pytest.LogCaptureFixture) -> None:
    async with lost(world, OBJECT) as storage:
        await storage.delete(OBJECT)
    another = Dangling("b/objects/b", "b/objects/b/1", 5)

    async def beaten(real: Any, *arguments: Any) -> Any:
        before = await noted(world)
        world.log.target.notes[NOTE] = encode(before.with_more([another]))
        return await real(*arguments)

    world.log.hooks["swap_note"] = beaten
    await forget(world)
    assert another in (await noted(world)).listed and "dangling_not_looked_at" in caplog.text


# --- the real thing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_lost_blob_of_a_directory_is_red_until_it_is_put_back(anyio_backend: str, tmp_path: Path) -> None:
    settings = Settings(directory=tmp_path, changelog="sqlite", inline_bytes_max=10)
    async with open_storage(settings) as storage:
        await storage.put(OBJECT, LARGE)
        [file] = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
        kept = file.rename(tmp_path / "kept")
        with pytest.raises(DanglingTombstoneError):
            await storage.get(OBJECT)

    async def look() -> Status:
        async with open_backends(settings, SystemRuntime(), writes=False) as backends:
            return await gather(backends, settings, SystemRuntime())

    assert judge(await look()).level is Level.LOST
    kept.rename(file)
    assert judge(await look()).level is Level.OK
