"""Whose the files of a sink are: what the writer believes of a sink before it delivers, and while it does."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import anyio
import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError, UnavailableError
from emulators.world.runtime import SimulatedRuntime
from recovery.feed.sinks.sink import Owner
from recovery.feed.writer.delivery import LOOK_AT_SINK_EVERY_S, Delivery
from recovery.feed.writer.owner import ID_NOTE, owner_of
from recovery.feed.writer.positions import FileCount, Position, note_name, read
from tests.given.fed_store import FedStore, ListSink, fed_store

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_time")]


def backup(store: FedStore) -> dict[str, Any]:
    return {name: copy.deepcopy(vars(part)[name]) for part, name in _parts(store)}


def restore(store: FedStore, kept: dict[str, Any]) -> None:
    for part, name in _parts(store):
        vars(part)[name] = copy.deepcopy(kept[name])


def _parts(store: FedStore) -> list[tuple[Any, str]]:
    """All that a store in memory keeps."""
    return [
        (part, name) for part in (store.rows, store.blobs, store.log) for name, value in vars(part).items()
        if isinstance(value, dict | list | set)
    ]  # fmt: skip


def generations(store: FedStore) -> set[int]:
    return {segment.generation for segment in store.sink.segments}


@asynccontextmanager
async def at_work(store: FedStore) -> AsyncIterator[None]:
    """A writer is at work, for as long as the `with` lasts."""
    run = store.run()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run.run)
        yield
        run.stop()


async def noted(store: FedStore) -> Position:
    return (await read(store.log, [store.sink.name]))[store.sink.name]


async def test_a_store_that_went_back_in_time_begins_a_new_generation_whatever_it_had_delivered(store: FedStore) -> None:
    for name in "abc":
        await store.put(name)
    await store.run_once()
    kept = backup(store)
    for since in range(3):
        await store.put("a")
        await store.delete("bc"[since % 2])
        await store.put("def"[since])
        await store.run_once(new_generation=since == 1)
        restore(store, kept)
        await store.run_once()
        view, frontier = store.sink.view()
        assert view == await store.references() and frontier > (1,)
        assert {name.rpartition("/")[2] for name in view} == {"a", "b", "c"}


async def test_a_restored_writer_that_commits_before_its_sink_answers_still_learns_that_it_went_back(store: FedStore) -> None:
    """Its last commit is later by then than all that the sink has."""
    await store.put("a")
    await store.run_once()
    kept = backup(store)
    await store.put("b")
    await store.run_once()
    restore(store, kept)
    await store.put("c")
    killed = store.run()
    await killed.writer.open()
    await killed.writer.step()
    await store.run_once()
    view, _ = store.sink.view()
    assert view == await store.references()
    assert {name.rpartition("/")[2] for name in view} == {"a", "c"} and len(generations(store)) == 2


async def test_a_store_that_went_back_in_time_while_nothing_was_delivered_goes_on(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    kept = backup(store)
    await store.put("b")
    restore(store, kept)
    await store.put("c")
    await store.run_once()
    assert len(generations(store)) == 1
    assert store.sink.view()[0] == await store.references()


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.night) for seed in range(2, 40))])
async def test_however_a_store_is_restored_its_readers_find_what_it_holds(seed: int) -> None:
    """Random changes, writers that are killed, a sink that is away, and backups. Where a copy would have to be told
    from a restored store, the writer says so, and a new generation is begun by hand.
    """
    chance = Random(seed)
    async with fed_store(SimulatedRuntime(seed=seed), batch_max=2) as store:
        by_hand = False

        async def publish() -> None:
            nonlocal by_hand
            refused = None
            try:
                await store.run_once(new_generation=by_hand or chance.random() < 0.1)
            except ConfigurationError as error:
                refused = str(error)
            if by_hand := refused is not None:
                assert "has gone on there" in str(refused)
                await publish()
            view, frontier = store.sink.view()
            assert view == await store.references() and frontier > (1,)

        await publish()
        backups = [backup(store)]
        for _ in range(30):
            match chance.choice(("put", "put", "delete", "publish", "kill", "away", "backup", "restore")):
                case "put":
                    await store.put(chance.choice("abc"))
                case "delete":
                    await store.delete(chance.choice("abc"))
                case "publish":
                    await publish()
                case "kill":
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(store.run().run)
                        await store.runtime.sleep(chance.choice((0.1, 1.0, 150.0)))
                        tasks.cancel_scope.cancel()
                case "away":
                    store.sink.is_away = True
                    with pytest.raises((UnavailableError, ConfigurationError)):
                        await store.run_once()
                    store.sink.is_away = False
                case "backup":
                    backups.append(backup(store))
                case "restore":
                    restore(store, chance.choice(backups))
        await publish()
        await store.runtime.sleep(10)
        await publish()
        assert await store.kept() == 0


async def test_a_generation_that_somebody_else_begins_is_noticed_by_a_writer_at_work(store: FedStore) -> None:
    """A copy of the store, with the same id, has taken the place. Whoever reads it sees the other one's references."""
    await store.put("a")
    async with at_work(store):
        await store.runtime.sleep(60)
        assert (await noted(store)).error is None
        [first] = store.sink.segments[:1]
        store.sink.segments.append(type(first).of(first.generation + 10**6, 0, first.data, first.suffix))
        await store.runtime.sleep(LOOK_AT_SINK_EVERY_S + 1)
        error = (await noted(store)).error
        assert error is not None and "a copy of this store, or a backup that was restored, has gone on there" in error
        delivered = len(store.sink.segments)
        await store.runtime.sleep(LOOK_AT_SINK_EVERY_S)
        assert len(store.sink.segments) == delivered, "nothing more goes there"
        store.sink.segments = [segment for segment in store.sink.segments if segment.generation == first.generation]
        await store.runtime.sleep(120)
        assert (await noted(store)).error is None, "it goes on once the other files are away"


async def test_a_sink_that_lost_a_file_in_the_middle_says_so(store: FedStore) -> None:
    """It was healthy, `run --once` ended well, and readers stood still for ever."""
    for key in "abc":
        await store.put(key)
        await store.run_once()
    lost = store.sink.segments.pop(len(store.sink.segments) // 2)
    await store.put("d")
    delivered = len(store.sink.segments)
    with pytest.raises(UnavailableError, match=rf"generation-\d+ must have {delivered + 1}, and has {delivered}, or others; readers stand"):
        await store.run_once()
    assert len(store.sink.segments) == delivered and "does not have the files" in str((await noted(store)).error)
    store.sink.segments.append(lost)
    await store.run_once()
    assert (await noted(store)).error is None and store.sink.view()[0] == await store.references()


async def test_a_sink_whose_newest_file_was_overwritten_was_healthy(store: FedStore) -> None:
    """Also after a run in between, which commits and trims what it can."""
    for key in "ab":
        await store.put(key)
        await store.run_once()
    newest = store.sink.segments.pop()
    store.sink.segments.append(replace(newest, data=b"something else"))
    for key in "cd":
        await store.put(key)
        with pytest.raises(CorruptRecordError, match="other bytes"):
            await store.run_once()
    assert "other bytes" in str((await noted(store)).error) and store.sink.segments[-1].name == newest.name
    store.sink.segments[-1] = newest
    await store.run_once()
    assert (await noted(store)).error is None and store.sink.view()[0] == await store.references()


async def test_a_foreign_file_beside_those_of_the_feed_is_told_until_it_is_moved_away(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    store.sink.foreign = ("notes.txt",)
    with pytest.raises(ConfigurationError, match=r"generation-\d+ has 'notes.txt', and a feed did not put that there"):
        await store.run_once()
    assert "notes.txt" in str((await noted(store)).error)
    store.sink.foreign = ()
    await store.put("b")
    await store.run_once()
    assert (await noted(store)).error is None


async def test_a_run_ended_by_its_sink_called_it_healthy_where_the_log_was_slow(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    store.sink.foreign = ("notes.txt",)
    swap = store.log.swap_note

    async def slow(name: str, *values: Any) -> bool:
        await store.runtime.sleep(1 if name == note_name(store.sink.name) else 0)
        return await swap(name, *values)

    with patch.object(store.log, "swap_note", slow), pytest.raises(ConfigurationError, match="and a feed did not put"):
        await store.run_once()
    assert "notes.txt" in str((await noted(store)).error)


async def test_a_sink_that_can_never_be_filled_was_healthy(store: FedStore) -> None:
    """The run ended with 3, and the status with 0: the writer had ended in good order."""
    for key in "ab":
        await store.put(key)
        await store.run_once()
    store.sink = ListSink("https://memory/new")
    with pytest.raises(ConfigurationError, match="is new to generation"):
        await store.run_once()
    found = await noted(store)
    assert "is new to generation" in str(found.error) and found.failing_since is not None and found.acknowledged is None
    await store.run_once(new_generation=True)
    assert (await noted(store)).error is None and store.sink.view()[0] == await store.references()


async def test_a_sink_that_another_file_was_put_into_says_so(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    first = store.sink.segments[0]
    store.sink.segments.append(type(first).of(first.generation, 5, first.data, first.suffix))
    with pytest.raises(UnavailableError, match="does not have the files that were delivered"):
        await store.run_once()


@pytest.mark.night
async def test_a_writer_at_work_counts_the_files_now_and_then(store: FedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.feed.writer.delivery.LOOK_AT_ALL_EVERY_S", 2.5 * LOOK_AT_SINK_EVERY_S)
    await store.put("a")
    async with at_work(store):
        await store.runtime.sleep(60)
        await store.put("b")
        await store.runtime.sleep(60)
        lost = store.sink.segments.pop(1)
        await store.runtime.sleep(LOOK_AT_SINK_EVERY_S)
        assert (await noted(store)).error is None
        await store.runtime.sleep(2 * LOOK_AT_SINK_EVERY_S)
        assert "does not have the files" in str((await noted(store)).error)
        store.sink.segments.append(lost)
        await store.runtime.sleep(120)
        assert (await noted(store)).error is None


async def test_the_files_of_older_software_are_believed_once(store: FedStore) -> None:
    for key in "ab":
        await store.put(key)
        await store.run_once()
    raw = replace(await noted(store), files=None).to_bytes()
    assert b"files" not in raw and await store.log.swap_note(note_name(store.sink.name), (await noted(store)).to_bytes(), raw)
    store.sink.segments.pop(1)
    await store.run_once()
    assert (await noted(store)).files == FileCount.of([segment.time for segment in store.sink.segments])
    store.sink.segments.pop(0)
    with pytest.raises(UnavailableError, match="does not have the files"):
        await store.run_once()


async def test_a_sink_that_lost_the_last_file_that_it_acknowledged_says_so(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    lost = store.sink.segments.pop()
    with pytest.raises(UnavailableError, match=rf"lost files: the last one that it acknowledged, {lost.time:019d} in generation-"):
        await store.run_once()
    store.sink.segments.append(lost)
    await store.run_once()
    assert store.sink.view()[0] == await store.references()


async def test_files_without_a_mark_are_taken_over_only_by_the_feed_that_delivered_there(store: FedStore) -> None:
    """As older software leaves them."""
    await store.put("a")
    await store.run_once()
    store.sink.owner = None
    async with fed_store(SimulatedRuntime(seed=8)) as other:
        other.sink = store.sink
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="of a feed, and this feed has never delivered there: give an empty place"):
                await other.run_once()
        assert store.sink.owner is None
    await store.run_once(new_generation=True)
    assert store.sink.owner == await owner_of(store.log, store.runtime, store.settings)


async def test_a_store_with_the_place_of_another_one_is_refused_and_its_other_sinks_go_on(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    async with fed_store(SimulatedRuntime(seed=8)) as other:
        foreign, name = other.sink, "https://memory/foreign"
        foreign.name, foreign.owner = name, Owner("f" * 32, "the directory /var/other")
        run = other.run()
        run._sinks = {name: foreign, store.sink.name: type(store.sink)()}
        await other.put("b")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.run)
            await other.runtime.sleep(60)
            run.stop()
        assert foreign.segments == []
        assert len(run._sinks[store.sink.name].view()[0]) == 1  # type: ignore[attr-defined]
        position = (await read(other.log, [name]))[name]
        assert f"is the place of another feed, {'f' * 32} of the directory /var/other" in (position.error or "")


async def test_a_writer_that_was_fenced_does_not_take_its_successor_for_a_copy(store: FedStore) -> None:
    await store.put("a")
    zombie = store.run()
    await zombie.writer.open()
    owner = await owner_of(store.log, store.runtime, store.settings)
    await store.run_once(new_generation=True)
    late = Delivery(store.sink.name, store.sink, zombie.writer, store.log, store.runtime, owner)
    late._generation = zombie.writer.checkpoint.generation
    await late.look()
    assert (late.went_back, late.has_looked) == (None, True)
    assert (await noted(store)).error is None


async def test_the_id_of_a_feed_is_drawn_once_and_a_damaged_one_is_an_error(store: FedStore) -> None:
    first = await owner_of(store.log, store.runtime, store.settings)
    assert len(first.feed) == 32 and first == await owner_of(store.log, store.runtime, store.settings)
    assert store.log.notes[ID_NOTE] == b'{"feed":"%s"}' % first.feed.encode()
    store.log.notes[ID_NOTE] = b"{}"
    with pytest.raises(CorruptRecordError, match="the note feed-id is damaged"):
        await owner_of(store.log, store.runtime, store.settings)


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b'{"feed":1,"store":"s"}', b'{"feed":"","store":"s"}', b"\xff", b"[" * 100_000])
def test_a_mark_that_cannot_be_read_is_no_mark_of_anybody(raw: bytes) -> None:
    with pytest.raises(ConfigurationError, match=r"x/_feed\.json does not say whose feed it is about"):
        Owner.from_bytes(raw, "x/_feed.json")
    mine = Owner("0" * 32, "the directory /var/store")
    assert mine.to_bytes() == b'{"feed": "00000000000000000000000000000000", "store": "the directory /var/store"}\n'
    assert Owner.from_bytes(mine.to_bytes(), "x") == mine
