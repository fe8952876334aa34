"""The writer of the feed over a store in memory: what a reader sees, what is deleted when, what survives."""

from __future__ import annotations

import anyio
import pytest

from changelog.base.errors import UnavailableError
from changelog.change import Change, ChangeId
from emulators.world.runtime import SimulatedRuntime
from recovery.feed.writer import supervisor
from recovery.feed.writer.cleaning import Cleaning
from recovery.feed.writer.writer import FencedError
from tests.given.fed_store import FedStore, fed_store, object_id

pytestmark = pytest.mark.anyio


async def published(store: FedStore) -> dict[str, str]:
    view, frontier = store.sink.view()
    assert frontier > (1,)
    assert view == await store.references()
    return view


async def test_the_view_at_the_frontier_is_what_the_rows_hold(store: FedStore) -> None:
    await store.put("a")
    await store.put("b")
    await store.put("small", b"x")
    await store.run_once()
    assert len(await published(store)) == 2
    await store.put("a")
    await store.delete("b")
    await store.put("c")
    await store.run_once()
    assert {name.rpartition("/")[2] for name in await published(store)} == {"a", "c"}


async def test_an_old_blob_stays_until_its_minus_one_is_committed(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    (first,) = store.blob_names
    await store.put("a")
    assert first in store.blob_names
    await store.run_once()
    assert first not in store.blob_names
    assert len(store.blob_names) == 1
    assert await store.kept() == 0


async def test_a_sink_that_is_away_holds_up_no_deletion() -> None:
    async with fed_store(poll_s=0.01) as store:
        await store.put("a")
        await store.run_once()
        await store.put("a")
        store.sink.is_away = True
        run = store.run()
        await run.writer.open()
        await run.writer.step()
        await Cleaning(run.writer, store.backends, store.runtime, store.settings).clean_due()
        assert len(store.blob_names) == 1
        await run.writer.close()
        store.sink.is_away = False
        await store.run_once()
        await published(store)


async def test_a_second_writer_fences_the_first(store: FedStore) -> None:
    await store.put("a")
    first, second = store.run(), store.run()
    await first.writer.open()
    await second.writer.open()
    with pytest.raises(FencedError):
        await first.writer.step()
    await second.writer.close()
    await store.run_once()
    await published(store)


async def test_a_blob_that_was_shown_when_the_commit_was_read_is_not_deleted_after_it(store: FedStore) -> None:
    """The -1 of such a blob is not committed, although the row has moved on by now."""
    await store.put("a")
    await store.run_once()
    (first,) = store.blob_names
    lost = Change(ChangeId.new(store.runtime), object_id("a").path, None, first)  # a deletion that did not happen
    assert await store.log.keep(await store.log.record(lost, "somebody"))
    run = store.run()
    await run.writer.open()
    await run.writer.step()
    await store.put("a")
    await Cleaning(run.writer, store.backends, store.runtime, store.settings).clean_due()
    assert first in store.blob_names
    await run.writer.close()
    await store.run_once()
    assert first not in store.blob_names
    await published(store)


async def test_a_change_that_won_and_was_replaced_waits_for_no_late_upload() -> None:
    async with fed_store(sessions=False) as store:
        await store.put("a")
        await store.put("a")
        run = store.run()
        await run.writer.open()
        await run.writer.step()
        await Cleaning(run.writer, store.backends, store.runtime, store.settings).clean_due()
        assert len(store.blob_names) == 1
        assert await store.kept() == 0


@pytest.mark.usefixtures("virtual_time")
async def test_a_hint_is_late_as_long_as_its_upload_may_still_arrive_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fed_store(SimulatedRuntime(seed=7), sessions=False) as store:
        token = ChangeId.new(store.runtime)
        change = Change(token, str(object_id("a")), f"{object_id('a')}/{token}")
        assert await store.log.keep(entry := await store.log.record(change, "a store"))
        run = store.run()
        await run.writer.open()
        await run.writer.step()
        cleaning = Cleaning(run.writer, store.backends, store.runtime, store.settings)
        await cleaning.clean_due()
        assert run.counts.late == {entry.key} and await store.kept() == 1
        monkeypatch.setattr(store.backends.tiers.long_term, "delete", away)
        await store.runtime.sleep(store.settings.recovery.late_upload_grace_s + 1)
        await cleaning.clean_due()
        assert not run.counts.late and await store.kept() == 1, "its clean-up fails: it does not only wait"
        monkeypatch.undo()
        await store.runtime.sleep(60)
        await cleaning.clean_due()
        assert not run.counts.late and await store.kept() == 0


async def away(*_: object) -> None:
    raise UnavailableError("it is away")


async def test_once_ends_though_the_store_goes_on() -> None:
    async with fed_store() as store, anyio.create_task_group() as tasks:
        async def write() -> None:
            while True:
                await store.put("a")
                await anyio.sleep(0.001)

        tasks.start_soon(write)
        with anyio.fail_after(60):
            await store.run_once()
        tasks.cancel_scope.cancel()


async def test_once_ends_with_the_error_of_a_sink_that_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "ONCE_PATIENCE_S", 0.1)
    async with fed_store() as store:
        await store.put("a")
        store.sink.is_away = True
        with pytest.raises(UnavailableError, match="does not answer"), anyio.fail_after(60):
            await store.run_once()
        store.sink.is_away = False
        await store.run_once()
        await published(store)
