"""Entries that the feed takes up too late are cleaned up by recovery, and the feed is told first."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from changelog.base.errors import CorruptRecordError, UnavailableError, UnconfirmedError
from changelog.change import DONE, Change, ChangeId, Entry
from recovery.daemon import Recovery
from recovery.feed.writer.checkpoint import NOTE, Checkpoint, Pass
from recovery.feed.writer.overdue import DecidedEntries, release_overdue, set_gap
from tests.given.tapped_store import LARGE, OBJECT, RARE_BEATS, TappedWorld
from tiered.open import Backends
from tiered.testing.log import StoredEntry

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_time")]

HOLD_S = 3600.0
FEED = {"enabled": True, "hold_max_s": HOLD_S}
PASS = Pass(b"k", 5, None, estimated=False, withheld=False, began=1, scanned=2)
CHECKPOINT = replace(Checkpoint.begin(5, "s", "feed-1"), timestamp=9, next=10, scan=PASS)


@pytest.fixture
async def world(anyio_backend: Any) -> TappedWorld:
    return TappedWorld(shards=2)


async def release(world: TappedWorld, covered: DecidedEntries | None = None, **values: Any) -> int:
    settings = world.settings(**({"changelog": "sqlite", "feed": FEED} | values))
    return await release_overdue(Backends(world.tiers, world.log), world.runtime, settings, covered)


async def replaced(world: TappedWorld) -> str:
    """Puts an object twice. Returns the name of the blob that was replaced; its entry is kept."""
    async with world.store(changelog="sqlite", feed=FEED) as store:
        await store.put(OBJECT, LARGE)
        [blob] = await world.blob_names()
        await store.put(OBJECT, LARGE)
    return blob


async def planted(world: TappedWorld, *, upload: str | None = "session", owner: str = "dead") -> Entry:
    """Keeps the entry of a put that never reached its row. `upload` None: it was a single request."""
    token = ChangeId.new(world.runtime)
    entry: Entry = await world.log.target.record(Change(token, str(OBJECT), f"{OBJECT}/{token}", None, upload), owner)
    assert await world.log.target.keep(entry)
    return entry


def put_checkpoint(world: TappedWorld, checkpoint: Checkpoint = CHECKPOINT) -> bytes:
    world.log.target.notes[NOTE] = checkpoint.to_bytes()
    return checkpoint.to_bytes()


def stored(world: TappedWorld) -> Checkpoint:
    return Checkpoint.from_bytes(world.log.target.notes[NOTE])


async def test_a_replaced_blob_is_deleted_once_it_has_waited_for_too_long(world: TappedWorld) -> None:
    old = await replaced(world)
    await world.runtime.sleep(HOLD_S - 1)
    assert await release(world) == 0
    assert old in await world.blob_names()
    await world.runtime.sleep(2)
    assert await release(world) == 2
    assert old not in await world.blob_names()
    assert await world.is_clean()
    assert NOTE not in world.log.target.notes, "where there is no feed, none is begun"


async def test_what_becomes_garbage_after_the_gap_waits_again(world: TappedWorld) -> None:
    """A pass that begins after the gap may publish it, so it must not be deleted before its -1."""
    async with world.store(changelog="sqlite", feed=FEED) as store:
        await store.put(OBJECT, LARGE)
        [shown] = await world.blob_names()
        world.log.target.stored.clear()  # as after the feed has published it
        lost = Change(ChangeId.new(world.runtime), str(OBJECT), None, shown)  # a deletion that did not happen
        assert await world.log.target.keep(await world.log.target.record(lost, "dead"))
        put_checkpoint(world)
        await world.runtime.sleep(HOLD_S + 1)

        async def replace_then(swap_note: Any, *args: Any) -> Any:
            swapped = await swap_note(*args)
            await store.put(OBJECT, LARGE)
            return swapped

        world.log.hooks["swap_note"] = replace_then
        assert await release(world) == 1
        assert shown in await world.blob_names()


async def test_the_gap_comes_before_anything_is_deleted_and_stops_a_writer_that_has_read_the_entry(world: TappedWorld) -> None:
    await replaced(world)
    read = put_checkpoint(world)
    await world.runtime.sleep(HOLD_S + 1)
    world.calls.clear()
    assert await release(world) == 2
    assert world.calls.index("swap_note") < world.calls.index("delete")
    between = world.calls[world.calls.index("swap_note") : world.calls.index("delete")]
    assert "settle" not in between, "what is garbage is decided before the gap"
    assert stored(world) == replace(CHECKPOINT, seq=CHECKPOINT.seq + 1, gap=True, scan=None)
    late = replace(CHECKPOINT, seq=CHECKPOINT.seq + 1, timestamp=11, next=12)
    assert not await world.log.target.swap_note(NOTE, read, late.to_bytes())


async def test_after_a_crash_between_the_gap_and_the_deletion_all_is_found_again(world: TappedWorld) -> None:
    old = await replaced(world)
    put_checkpoint(world)
    await world.runtime.sleep(HOLD_S + 1)

    async def crash(*_: Any) -> None:
        scope.cancel()
        await anyio.lowlevel.checkpoint()

    world.blobs.hooks["delete"] = crash
    with anyio.CancelScope() as scope:
        await release(world)
    assert stored(world).gap
    assert old in await world.blob_names()
    assert await world.entries()
    world.blobs.hooks.clear()
    await release(world)
    assert await world.is_clean()
    assert stored(world).seq == CHECKPOINT.seq + 1, "no pass has begun since, so it need not be told again"


async def test_a_crash_between_the_deletion_and_the_forgetting_is_repeated(world: TappedWorld) -> None:
    await replaced(world)
    await world.runtime.sleep(HOLD_S + 1)
    world.log.hooks["forget"] = lambda forget, entry: fail()
    assert await release(world) == 0
    world.log.hooks.clear()
    assert await release(world) == 2
    assert await world.is_clean()


async def fail() -> None:
    raise UnavailableError("away")


async def test_a_pass_that_has_begun_after_a_gap_begins_anew_for_the_next_entry(world: TappedWorld) -> None:
    await planted(world)
    put_checkpoint(world, replace(CHECKPOINT, gap=True))
    await world.runtime.sleep(HOLD_S + 1)
    assert await release(world) == 1
    assert stored(world).scan is None


async def test_a_lost_race_for_the_checkpoint_is_run_again(world: TappedWorld) -> None:
    put_checkpoint(world)
    races = [replace(CHECKPOINT, seq=seq, timestamp=seq, next=seq + 1) for seq in (40, 41)]

    async def lose(swap: Any, *args: Any) -> bool:
        if races:
            put_checkpoint(world, races.pop(0))
        return bool(await swap(*args))

    world.log.hooks["swap_note"] = lose
    assert await set_gap(world.log)
    assert (stored(world).seq, stored(world).timestamp, stored(world).gap) == (42, 41, True)
    assert not await set_gap(world.log)


async def test_a_lost_answer_is_asked_for_again(world: TappedWorld) -> None:
    put_checkpoint(world)
    lost = [1, 2]

    async def lose(swap: Any, *args: Any) -> bool:
        done = bool(await swap(*args))
        if lost:
            lost.pop()
            raise UnconfirmedError("no answer")
        return done

    world.log.hooks["swap_note"] = lose
    await set_gap(world.log)
    assert (stored(world).gap, stored(world).seq) == (True, CHECKPOINT.seq + 1)


async def test_with_a_damaged_checkpoint_nothing_is_cleaned_up(world: TappedWorld) -> None:
    old = await replaced(world)
    world.log.target.notes[NOTE] = b"{}"
    await world.runtime.sleep(HOLD_S + 1)
    with pytest.raises(CorruptRecordError, match="the note feed is damaged"):
        await release(world)
    assert old in await world.blob_names()
    assert len(await world.entries()) == 2
    assert world.log.target.notes[NOTE] == b"{}"


async def test_what_cannot_be_read_is_parked_and_the_rest_goes_on(world: TappedWorld, caplog: pytest.LogCaptureFixture) -> None:
    damaged, wrong = await planted(world), await planted(world)
    world.log.target.stored[damaged.key] = StoredEntry(b"nonsense", 0, DONE)
    bad = replace(wrong, change=replace(wrong.change, new="of/objects/another"))
    world.log.target.stored.pop(wrong.key)
    assert await world.log.target.keep(await world.log.target.record(bad.change, "dead"))
    await replaced(world)
    await world.runtime.sleep(HOLD_S + 1)
    assert await release(world) == 2
    assert [entry.stuck is not None for entry in await world.entries()] == [True, True]
    assert sum(record.event == "entry_parked" for record in caplog.records if hasattr(record, "event")) == 2


async def test_what_newer_software_wrote_is_left_to_it(world: TappedWorld) -> None:
    newer = await planted(world)
    world.log.target.stored[newer.key] = StoredEntry(b'{"v":2}', 0, DONE)
    await world.runtime.sleep(HOLD_S + 1)
    assert await release(world) == 0 and world.log.target.stored[newer.key] == StoredEntry(b'{"v":2}', 0, DONE)


async def test_an_error_of_one_entry_stops_no_other_and_its_gap_is_set_once(world: TappedWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bad, _ = await planted(world), await planted(world)
    put_checkpoint(world)
    await world.runtime.sleep(HOLD_S + 1)

    async def refuse(delete: Any, name: str) -> None:
        if name == bad.change.new:
            raise UnavailableError("refused")
        await delete(name)

    world.blobs.hooks["delete"] = refuse
    covered: DecidedEntries = {}
    assert await release(world, covered) == 1
    assert "overdue_failed" in caplog.text
    assert "overdue_released count=1 parked=0 waiting=0 failed=1" in caplog.text
    put_checkpoint(world, replace(stored(world), scan=PASS))
    assert await release(world, covered) == 0
    assert stored(world).scan == PASS, "the pass that has begun after the gap goes on"
    world.blobs.hooks.clear()
    assert await release(world, covered) == 1
    assert covered == {}


async def test_a_single_request_waits_until_it_can_not_arrive_any_more(world: TappedWorld) -> None:
    await planted(world, upload=None)
    times: dict[str, Any] = {"feed": FEED | {"hold_max_s": 10.0}, "recovery": {"late_upload_grace_s": 900.0}}
    await world.runtime.sleep(100)
    assert await release(world, **times) == 0
    await world.runtime.sleep(801)
    assert await release(world, **times) == 1


async def test_where_the_feed_was_turned_off_entries_are_cleaned_up_by_the_same_bound(world: TappedWorld) -> None:
    await replaced(world)
    put_checkpoint(world)
    off: dict[str, Any] = {"feed": FEED | {"enabled": False}}
    assert await release(world, **off) == 0
    assert not stored(world).gap, "nothing was forgotten yet"
    await world.runtime.sleep(HOLD_S + 1)
    assert await release(world, **off) == 2
    assert stored(world).gap and await world.is_clean()


# --- as the daemon runs it ------------------------------------------------------------------------------


async def test_a_daemon_looks_once_in_a_while_and_goes_on_after_an_error(world: TappedWorld, caplog: pytest.LogCaptureFixture) -> None:
    old = await replaced(world)
    settings = world.settings(changelog="sqlite", feed=FEED, lease=RARE_BEATS)
    recovery = Recovery(Backends(world.tiers, world.log), world.runtime, settings)
    world.log.hooks["kept"] = lambda kept, *args: fail()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recovery.run_beside)
        await world.runtime.sleep(HOLD_S + 600)
        assert old in await world.blob_names()
        assert "overdue_not_released: away" in caplog.text
        del world.log.hooks["kept"]
        await world.runtime.sleep(601)
        tasks.cancel_scope.cancel()
    assert await world.is_clean()


async def test_where_no_feed_is_configured_a_daemon_asks_no_more_than_once_an_hour(world: TappedWorld) -> None:
    recovery = Recovery(Backends(world.tiers, world.log), world.runtime, world.settings(lease=RARE_BEATS))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recovery.run_beside)
        await world.runtime.sleep(4 * 3600)
        tasks.cancel_scope.cancel()
    assert 4 * 2 <= world.calls.count("kept") <= 8 * 2, "of each of the two ranges"
