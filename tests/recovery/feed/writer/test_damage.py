"""The writer of the feed where something is damaged or wrong: one clear sentence or a new generation, no wrong view."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import anyio
import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError
from changelog.change import DONE, LOG_PREFIX, Change, ChangeId
from emulators.world.runtime import SimulatedRuntime
from recovery.feed.index_value import index_value
from recovery.feed.sinks.sink import Owner
from recovery.feed.writer.checkpoint import NOTE, Checkpoint
from recovery.feed.writer.delivery import LOOK_AT_SINK_EVERY_S, Delivery
from recovery.feed.writer.positions import note_name, read
from recovery.feed.writer.writer import StepResult
from tests.given.fed_store import OWNER, FedStore, ListSink, fed_store, object_id
from tiered.notes.note_fields import NewerNoteError
from tiered.services.backends import Tombstone
from tiered.testing.log import MemoryChangeLog, StoredEntry

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_time")]


def stored_under(store: FedStore, part: str) -> list[str]:
    return sorted(key for key in store.log.values if f"/{part}/" in key)


async def is_right(store: FedStore) -> None:
    view, frontier = store.sink.view()
    assert frontier > (1,)
    assert view == await store.references()


@pytest.mark.parametrize("garbage", [b"\xff\xfe", b"garbage", b"00000000 garbage"])
async def test_a_damaged_value_of_the_index_is_a_new_generation(store: FedStore, garbage: bytes) -> None:
    await store.put("a")
    await store.run_once()
    await store.put("b")
    await store.run_once()  # opening repeats what follows from the last commit, so "a" is not in that
    (key, _) = stored_under(store, "index")
    store.log.values[key] = (garbage, store.log.values[key][1])
    await store.put("a")
    await store.run_once()
    assert len({segment.generation for segment in store.sink.segments}) == 2
    await is_right(store)


async def test_a_value_of_the_index_under_the_key_of_another_object_is_a_new_generation() -> None:
    async with fed_store(SimulatedRuntime(seed=7), reconcile_every_s=60) as store:
        await store.put("a")
        await store.run_once()
        (key,) = stored_under(store, "index")
        store.log.values[f"{key}-2"] = store.log.values[key]
        await store.runtime.sleep(61)
        await store.run_once()
        assert len({segment.generation for segment in store.sink.segments}) == 2
        await is_right(store)


async def test_what_no_progress_tells_is_damaged() -> None:
    async with fed_store(SimulatedRuntime(seed=7), batch_max=1) as store:
        for name in "abc":
            await store.put(name)
        run = store.run()
        await run.writer.open()
        for _ in range(3):
            await run.writer.step()
        first, _ = stored_under(store, "withheld")
        store.log.values[first] = (b"9", store.log.values[first][1])
        await run.writer.close()
        await store.run_once()
        await is_right(store)


@pytest.mark.parametrize("note", [b"garbage", b"{}", b"\xff", b"[" * 5000])
async def test_a_damaged_checkpoint_ends_the_run_and_a_new_generation_mends_it(store: FedStore, note: bytes) -> None:
    await store.put("a")
    await store.run_once()
    store.log.notes[NOTE] = note
    with pytest.raises(CorruptRecordError, match=r"note feed is damaged.*--new-generation"):
        await store.run_once()
    await store.run_once(new_generation=True)
    await is_right(store)


async def test_a_checkpoint_of_newer_software_is_not_replaced_by_a_new_generation(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    store.log.notes[NOTE] = newer = json.dumps({**json.loads(store.log.notes[NOTE]), "v": 2}).encode()
    with pytest.raises(NewerNoteError, match="newer software wrote the note feed, in version 2"):
        await store.run_once(new_generation=True)
    with pytest.raises(NewerNoteError):
        await store.run(new_generation=True).writer.open(new_generation=True)
    assert store.log.notes[NOTE] == newer


async def test_a_position_of_newer_software_is_not_begun_anew(store: FedStore) -> None:
    await store.put("a")
    store.log.notes[note_name(store.sink.name)] = newer = b'{"v":2}'
    with pytest.raises(NewerNoteError, match="newer software wrote the note feed-sink-"):
        await store.run_once()
    assert store.log.notes[note_name(store.sink.name)] == newer and not store.sink.segments


async def test_a_generation_is_never_used_twice_where_the_checkpoint_is_lost_and_the_clock_went_back(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    (first,) = {segment.generation for segment in store.sink.segments}
    ahead = [key for key in store.log.values if key.endswith("/began")]
    for key in ahead:
        store.log.values[key.replace(str(first), str(first + 10**9))] = store.log.values[key]
    del store.log.notes[NOTE]
    await store.run_once()
    assert {segment.generation for segment in store.sink.segments} == {first, first + 10**9 + 1}


async def test_a_damaged_position_ends_the_run_and_a_new_generation_mends_it(store: FedStore) -> None:
    for _ in range(3):
        await store.put("a")
        await store.run_once()
    store.log.notes[note_name(store.sink.name)] = b"garbage"
    with pytest.raises(CorruptRecordError, match=r"position of the sink https://memory/feed.*--new-generation"):
        await store.run_once()
    await store.run_once(new_generation=True)
    await is_right(store)


@pytest.mark.parametrize(
    "value", [b"garbage", b"{}", b'{"staged":{"parts":"x"},"records":1,"before":0}', b'{"staged":null,"records":1,"before":0}']
)
async def test_a_damaged_entry_of_the_journal_ends_the_run(store: FedStore, value: bytes) -> None:
    await store.put("a")
    await store.run_once()
    key = stored_under(store, "journal")[-1]
    store.log.values[key.replace("journal/0", "journal/1")] = (value, 10**15)
    with pytest.raises(CorruptRecordError, match=r"journal.*--new-generation"):
        await store.run_once()
    await store.run_once(new_generation=True)
    await is_right(store)


async def test_a_sink_does_not_skip_a_file_that_the_journal_has_lost(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    store.sink.is_away = True
    for name in "bc":
        await store.put(name)
        run = store.run()
        await run.writer.open()
        await run.writer.step()
        await run.writer.close()
    lost = [key for key in stored_under(store, "journal") if store.log.values[key][0] is not None][-2]
    del store.log.values[lost]
    store.sink.is_away = False
    with pytest.raises((ConfigurationError, CorruptRecordError), match="--new-generation"):
        await store.run_once()


async def test_a_sink_that_was_left_out_for_a_while_is_told_that_it_cannot_go_on(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    left_out, store.sink = store.sink, ListSink("https://memory/feed", list(store.sink.segments))
    settings = store.settings
    other = ListSink("https://memory/other", list(left_out.segments))
    store.log.notes[note_name(other.name)] = store.log.notes[note_name(left_out.name)].replace(b"https://memory/feed", b"https://memory/other")
    for name in "bcd":
        await store.put(name)
        await store.run_once()
    store.settings = settings.model_copy(update={"feed": settings.feed.model_copy(update={"to": (store.sink.name, other.name)})})
    run = store.run(once=True)
    run._sinks = {store.sink.name: store.sink, other.name: other}
    with pytest.raises(ConfigurationError, match=r"https://memory/other was left out.*--new-generation"):
        await run.run()
    assert Checkpoint.from_bytes(store.log.notes[NOTE]).closed, "the next writer need not wait until this one counts as dead"


async def test_a_paused_writer_still_gives_signs_of_life(store: FedStore) -> None:
    run = store.run()
    await run.writer.open()
    run.writer.waiting[0] = replace(run.writer.waiting[0], staged=replace(run.writer.waiting[0].staged, bytes=1 << 41))
    await store.runtime.sleep(31)
    before = run.writer.checkpoint.seq
    assert await run.writer.step() is StepResult.PAUSED
    assert run.writer.checkpoint.seq == before + 1
    assert await run.writer.step() is StepResult.PAUSED
    assert run.writer.checkpoint.seq == before + 1


async def test_rows_are_read_again_where_the_last_pass_is_in_the_future(store: FedStore) -> None:
    """The clock of the writer before was far ahead."""
    await store.run_once()
    found = Checkpoint.from_bytes(store.log.notes[NOTE])
    assert found.passed is not None
    store.log.notes[NOTE] = replace(found, passed=found.passed + 10**12).to_bytes()
    await store.run_once()
    passed = Checkpoint.from_bytes(store.log.notes[NOTE]).passed
    assert passed is not None and passed < found.passed + 10**11


async def test_a_sink_that_never_returns_is_given_up_and_told() -> None:
    class HangingListSink(ListSink):
        async def deliver(self, segment: object) -> None:
            await anyio.sleep_forever()

    async with fed_store(SimulatedRuntime(seed=7)) as store:
        store.sink = sink = HangingListSink()
        run = store.run()
        await run.writer.open()
        delivery = Delivery(sink.name, sink, run.writer, store.log, store.runtime, OWNER)
        await delivery.begin()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(delivery.run)
            await store.runtime.sleep(1000)
            tasks.cancel_scope.cancel()
        assert json.loads(store.log.notes[note_name(sink.name)])["error"] == "the sink https://memory/feed has not answered for 900 s"


async def test_a_kept_entry_that_is_garbage_is_parked_and_the_others_go_on(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    await store.put("a")
    key = next(iter(store.log.stored))
    store.log.stored[f"{key}-garbage"] = StoredEntry(b"garbage", 0, DONE)
    run = await store.run_once()
    assert run.counts.hints == 1
    await store.put("b")
    await store.run_once()
    assert await store.kept() == 0
    await is_right(store)


async def test_before_a_kept_entry_of_newer_software_the_writer_stops_and_publishes_nothing(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    await store.put("b")
    key = next(iter(store.log.stored))
    store.log.stored[key] = StoredEntry(b'{"v":2}', 0, DONE)
    before, segments = dict(store.log.stored), len(store.sink.segments)
    with pytest.raises(ConfigurationError, match=r"newer software wrote it, in version 2, .* update this one"):
        await store.run_once()
    assert store.log.stored == before and len(store.sink.segments) == segments


async def test_a_kept_entry_about_a_blob_that_is_none_of_its_object_is_parked_and_the_others_go_on(store: FedStore) -> None:
    await store.put("a")
    (blob,) = store.blob_names
    wrong = Change(ChangeId.new(store.runtime), object_id("b").path, blob, "foreign", "session")
    assert await store.log.keep(await store.log.record(wrong, "somebody"))
    await store.run_once()
    assert await store.kept() == 0
    assert store.blob_names == {blob}
    await is_right(store)


async def test_a_second_run_of_everything_changes_nothing(store: FedStore) -> None:
    for name in ("ü/%ff", "line\u2028end", "x" * 500, "🎈"):
        await store.put(name)
    legacy = object_id("legacy").path  # of older software
    store.rows.states[legacy] = Tombstone(legacy)
    await store.run_once()
    await is_right(store)
    before = len(store.sink.segments)
    index = {key: store.log.values[key] for key in stored_under(store, "index")}
    run = await store.run_once()
    assert run.counts.committed == 0
    assert all(not segment.data.startswith(b'{"array"') for segment in store.sink.segments[before:])
    assert {key: store.log.values[key] for key in stored_under(store, "index")} == index


async def test_an_entry_that_is_garbage_and_cannot_be_parked_does_not_begin_a_pass_again_and_again() -> None:
    class DamagedLog(MemoryChangeLog):
        async def park(self, entry: Any, error: str) -> bool:
            return False

    async with fed_store(SimulatedRuntime(seed=7)) as store:
        log = DamagedLog(store.runtime)
        log.stored, log.values, log.notes, log.presence = store.log.stored, store.log.values, store.log.notes, store.log.presence
        store.backends = replace(store.backends, log=log)
        await store.run_once()
        store.log.stored[f"{LOG_PREFIX}00/garbage"] = StoredEntry(b"garbage", 0, DONE)
        await store.put("a")
        run = store.run()
        await run.writer.open()
        for _ in range(10):
            await run.writer.step()
            assert run.writer.checkpoint.scan is None
        assert run.writer.checkpoint.records == 1


async def test_a_row_with_a_name_that_is_too_long_for_the_index_is_told(store: FedStore, caplog: pytest.LogCaptureFixture) -> None:
    await store.put("a")
    shown = await store.references()
    long = f"n/objects/{'x' * 3000}"
    store.rows.states[long] = Tombstone(long)
    await store.run_once()
    view, frontier = store.sink.view()
    assert (view, frontier > (1,)) == (shown, True)
    assert "feed_row_damaged" in caplog.text


async def test_what_a_damaged_hint_was_about_is_found_by_a_pass(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    await store.put("b")
    await store.runtime.sleep(1)
    (key,) = [key for key, stored in store.log.stored.items() if stored.state is not None]
    store.log.stored[key] = replace(store.log.stored[key], value=b"garbage")
    await store.run_once()
    await is_right(store)
    assert len(await store.references()) == 2


async def test_what_a_fenced_writer_withheld_earlier_counts_no_more(store: FedStore) -> None:
    await store.put("a")
    run = store.run()
    await run.writer.open()
    stored = run.writer.stored
    store.log.values[stored._withheld(7)] = (index_value(f"{7:019d}", "3"), 1)
    assert await stored.withheld(7) == {7: 3}
    assert await stored.withheld(8) == {}


class UnaskedSink(ListSink):
    """A sink of which nobody can ask what it has."""

    async def look(self, generation: int, since: int) -> Any:
        return None

    async def claim(self, owner: Owner) -> bool:
        return False


@pytest.mark.night
async def test_a_sink_that_cannot_be_asked_is_looked_at_again_after_it_acknowledged(store: FedStore) -> None:
    run = store.run()
    run._sinks = {store.sink.name: UnaskedSink()}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run.run)
        for name in "abc":
            await store.put(name)
            await store.runtime.sleep(LOOK_AT_SINK_EVERY_S + 1)
        run.stop()
    found = (await read(store.log, [store.sink.name]))[store.sink.name]
    assert (found.failing_since, found.error) == (None, None)
    assert found.acknowledged == Checkpoint.from_bytes(store.log.notes[NOTE]).timestamp
