"""The feed was off in a process, and is on again: no progress is published before all rows were read since."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from changelog.base.errors import UnavailableError
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from emulators.world.runtime import SimulatedRuntime
from recovery.feed.writer.checkpoint import NOTE, Checkpoint
from recovery.feed.writer.overdue import release_overdue
from recovery.loop import RecoveryLoop
from tests.given.fed_store import LARGE, FedStore, fed_store, object_id
from tiered.metadata import Metadata
from tiered.notes.feed_off import OVER_AFTER_MS, TELL_EVERY_S, FeedOffNotifier, read_notices
from tiered.open import open_backends, open_storage
from tiered.settings import Settings
from tiered.storage import TieredStorage

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_time")]


def off(store: FedStore, **values: Any) -> Settings:
    feed = store.settings.feed.model_copy(update={"enabled": False})
    return store.settings.model_copy(update={"feed": feed, **values})


def storage_with_feed_off(store: FedStore, **values: Any) -> TieredStorage:
    return TieredStorage(store.backends.tiers, store.log, store.runtime, off(store, **values))


def checkpoint(store: FedStore) -> Checkpoint:
    return Checkpoint.from_bytes(store.log.notes[NOTE])


async def agrees(store: FedStore) -> bool:
    return bool(store.sink.view()[0] == await store.references())


async def test_what_was_replaced_while_the_feed_was_off_is_published_by_the_next_run(store: FedStore) -> None:
    for name in "abc":
        await store.put(name)
    await store.run_once()
    async with storage_with_feed_off(store) as other:
        await other.put(object_id("a"), LARGE, Metadata())
        await other.delete(object_id("b"))
    [notice] = await read_notices(store.log)
    assert notice.ended and notice.process.startswith("store-")
    await store.run_once()
    assert await agrees(store) and await read_notices(store.log) == []


def test_a_process_that_was_cancelled_did_not_say_that_it_ended(tmp_path: Path) -> None:
    settings = Settings(directory=tmp_path / "store", inline_bytes_max=10)

    async def cancelled() -> None:
        with anyio.CancelScope() as scope:
            async with open_storage(settings) as storage:
                await storage.put(object_id("a"), LARGE, Metadata())
                scope.cancel()
                await anyio.sleep(1)
        async with open_backends(settings, SystemRuntime(), writes=False) as backends:
            assert await read_notices(backends.log) == []

    anyio.run(cancelled)


async def test_while_a_process_works_with_the_feed_off_no_progress_is_published_and_no_pass_runs() -> None:
    async with fed_store(SimulatedRuntime(seed=7), reconcile_every_s=60) as store:
        await store.put("a")
        await store.run_once()
        frontier = store.sink.view()[1]
        async with storage_with_feed_off(store, instance="web-7") as other:
            await other.put(object_id("a"), LARGE, Metadata())
            run = store.run()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run.run)
                await store.runtime.sleep(10)
                seq = checkpoint(store).seq
                await store.put("b")
                await store.runtime.sleep(200)
                assert await store.kept() == 0, "hints are worked on"
                found = checkpoint(store)
                assert found.gap and found.scan is None and found.lower == frontier[0]
                every_s = store.settings.feed.progress_every_s
                assert 0 < found.seq - seq <= 200 / every_s + 2, "it shows that it lives, and no more often"
                assert store.sink.view()[1] == frontier
                with pytest.raises(UnavailableError, match="another writer"):
                    await store.run_once()
                run.stop()
            with pytest.raises(UnavailableError, match=r"the process web-7-\d+ worked with the feed off .*: set feed.enabled there"):
                await store.run_once()
            assert checkpoint(store).closed and store.sink.view()[1] == frontier
        await store.run_once()
        assert await agrees(store) and store.sink.view()[1] > frontier


async def test_a_process_that_died_with_the_feed_off_holds_the_feed_for_a_few_minutes(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    await FeedOffNotifier(store.log, store.runtime, "dead").tell()
    await store.runtime.sleep(OVER_AFTER_MS / 1000 - 1)
    with pytest.raises(UnavailableError, match="dead"):
        await store.run_once()
    await store.runtime.sleep(2)
    passed = checkpoint(store).passed
    await store.run_once()
    assert await agrees(store) and (checkpoint(store).passed or 0) > (passed or 0) and await read_notices(store.log) == []


async def test_a_crash_between_the_gap_and_the_removal_costs_one_more_pass(store: FedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put("a")
    await store.run_once()
    async with storage_with_feed_off(store) as other:
        await other.delete(object_id("a"))
    killed = store.run()
    await killed.writer.open()
    with monkeypatch.context() as patched:
        async def die(*_: Any) -> None:
            raise KeyError

        patched.setattr("recovery.feed.writer.writer.remove_notices", die)
        await store.put("b")
        with pytest.raises(KeyError):
            await killed.writer.step()
    assert checkpoint(store).gap and await read_notices(store.log)
    await store.run_once()
    assert await agrees(store) and await read_notices(store.log) == []


async def test_a_notice_that_is_told_while_the_feed_removes_an_older_one_stays(store: FedStore) -> None:
    await store.run_once()
    notifier = FeedOffNotifier(store.log, store.runtime, "web")
    await notifier.tell()
    [before] = await read_notices(store.log)
    await store.runtime.sleep(OVER_AFTER_MS / 1000)
    write_values = store.log.write_values

    async def told_between(values: Any, version: int) -> None:
        if None in values.values():
            store.log.write_values = write_values  # type: ignore[method-assign]
            await notifier.tell()
        await write_values(values, version)

    store.log.write_values = told_between  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="web"):
        await store.run_once()
    [notice] = await read_notices(store.log)
    assert notice.version > before.version and not notice.ended


@pytest.mark.parametrize("value", [
    b"working", b"-1 working", b"0 working", b"9" * 19 + b" working", b"5 asleep", b"\xff 1", "٣ working".encode(),
])  # fmt: skip
async def test_a_notice_that_cannot_be_read_is_removed_after_a_pass(store: FedStore, value: bytes) -> None:
    await store.run_once()
    passed = checkpoint(store).passed
    store.log.values["feed-off/x"] = (value, 5)
    await store.runtime.sleep(1)
    await store.run_once()
    assert await read_notices(store.log) == [] and (checkpoint(store).passed or 0) > (passed or 0)


async def test_recovery_with_the_feed_off_tells_too_and_so_does_one_run(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    change = (await store.references())[str(object_id("a"))]
    await store.log.record(_replaced(store, change), "dead")
    await store.runtime.sleep(600)
    loop = RecoveryLoop(store.backends.tiers, store.log, store.runtime, off(store))
    assert (await loop.run_once()).recovered == 1
    await loop.leave()
    [notice] = await read_notices(store.log)
    assert notice.ended and notice.process.startswith("recovery-")
    await release_overdue(store.backends, store.runtime, off(store))
    assert checkpoint(store).gap and await read_notices(store.log) == [], "where no writer runs, recovery takes the notices"


def _replaced(store: FedStore, blob: str) -> Any:
    return Change(ChangeId.new(store.runtime), str(object_id("a")), None, blob)


# --- telling ----------------------------------------------------------------------------------------------


class CountedLog:
    """Counts the calls of a log by their names. `failing`: calls that fail."""

    def __init__(self, log: Any) -> None:
        self.calls: list[str] = []
        self.failing: set[str] = set()
        self._log = log

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._log, name)
        if not callable(found):
            return found

        async def call(*args: Any) -> Any:
            self.calls.append(name)
            await anyio.lowlevel.checkpoint()
            if name in self.failing:
                raise UnavailableError("away")
            return await found(*args)

        return call


async def test_many_at_once_tell_once_in_five_minutes_and_a_store_without_a_feed_keeps_nothing(store: FedStore) -> None:
    log = CountedLog(store.log)
    notifier = FeedOffNotifier(log, store.runtime, "web")
    await notifier.end()
    assert log.calls == []
    for _ in range(2):
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(notifier.tell)
        assert log.calls == ["now_ms", "write_values"]
        log.calls.clear()
        await store.runtime.sleep(TELL_EVERY_S)
    await notifier.end()
    assert log.calls == ["read_note", "erase_values"] and await read_notices(store.log) == []


async def test_a_change_is_not_forgotten_before_it_is_told(store: FedStore) -> None:
    await store.run_once()
    log = CountedLog(store.log)
    async with TieredStorage(store.backends.tiers, log, store.runtime, off(store)) as other:
        await other.put(object_id("small"), b"s", Metadata())
        await other.delete(object_id("small"))
        assert log.calls == [], "what needs no entry never pays"
        log.failing = {"write_values"}
        await other.put(object_id("a"), LARGE, Metadata())
        await other.put(object_id("a"), LARGE, Metadata())
        await store.runtime.sleep(store.settings.store.cleanup_budget_s + 10)
        assert "forget" not in log.calls and len(store.blob_names) == 2
        log.failing = set()
        await other.put(object_id("b"), LARGE, Metadata())
        await store.runtime.sleep(1)
        assert log.calls.index("forget") > len(log.calls) - 2 - log.calls[::-1].index("write_values")
        log.failing = {"write_values"}
    assert len(await read_notices(store.log)) == 1, "an end that fails leaves the notice, which gets old"


# --- in any order ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.night) for seed in range(6, 60))])
async def test_whoever_works_with_the_feed_off_each_progress_is_true(seed: int) -> None:
    """Random changes by stores with the feed on and off, one of which may be killed; recovery of both kinds; and
    writers. After each run its reader sees what the store holds, or its frontier has not moved.
    """
    chance = Random(seed)
    async with fed_store(SimulatedRuntime(seed=seed), batch_max=2) as store:
        stays = storage_with_feed_off(store)
        async with stays:
            await store.run_once()
            frontier = store.sink.view()[1]
            for _ in range(40):
                name = chance.choice("abc")
                match chance.choice(("on", "on", "off", "off", "gone", "wait", "recover", "recover off", "overdue", "publish", "publish")):
                    case "on":
                        await _change(store.storage, chance, name)
                    case "off":
                        await _change(stays, chance, name)
                    case "gone":
                        async with storage_with_feed_off(store) as other:
                            await _change(other, chance, name)
                    case "wait":
                        await store.runtime.sleep(chance.choice((1, 100, 400)))
                    case "recover" | "recover off" as how:
                        loop = RecoveryLoop(
                            store.backends.tiers, store.log, store.runtime, store.settings if how == "recover" else off(store)
                        )
                        await loop.run_once()
                        await loop.leave()
                    case "overdue":
                        await release_overdue(store.backends, store.runtime, off(store) if chance.random() < 0.5 else store.settings)
                    case "publish":
                        await store.runtime.sleep(0.1)
                        refused = ""
                        try:
                            await store.run_once()
                        except UnavailableError as error:
                            refused = str(error)
                        before, frontier = frontier, store.sink.view()[1]
                        assert (await agrees(store) and frontier > before) if not refused else frontier == before
                        assert not refused or "with the feed off" in refused
        await store.run_once()
        assert await agrees(store)


async def _change(storage: TieredStorage, chance: Random, name: str) -> None:
    if chance.random() < 0.3:
        await storage.delete(object_id(name))
    else:
        await storage.put(object_id(name), chance.choice((LARGE, LARGE, b"s")), Metadata())


