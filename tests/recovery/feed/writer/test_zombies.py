"""A writer of the feed stands still in the middle of a call, another one goes on, and then the first one wakes up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import anyio
import pytest

from changelog.base.errors import UnavailableError
from changelog.change import Change, ChangeId
from changelog.log import ChangeLog
from recovery.feed.writer.checkpoint import NOTE
from recovery.feed.writer.cleaning import Cleaning
from recovery.feed.writer.delivery import Delivery
from recovery.feed.writer.overdue import set_gap
from recovery.feed.writer.supervisor import FeedRun
from recovery.feed.writer.writer import TRANSACTION_AGE_MAX_S, FencedError
from tests.given.fed_store import OWNER, FedStore, fed_store, object_id, view_of
from tiered.open import Backends

pytestmark = pytest.mark.anyio

PHOTO = object_id("a").path


class Interrupted:
    """A changelog that does something else before one call. `chosen` says before which; it is asked until it agrees."""

    def __init__(self, log: ChangeLog, chosen: Callable[[str, tuple[Any, ...]], bool], meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._log = log
        self._chosen: Callable[[str, tuple[Any, ...]], bool] | None = chosen
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._log, name)
        if not callable(attribute) or name == "ranges":
            return attribute

        async def call(*args: Any) -> Any:
            if self._chosen is not None and self._chosen(name, args):
                self._chosen = None
                await self._meanwhile()
            return await attribute(*args)

        return call


def interrupted(store: FedStore, chosen: Callable[[str, tuple[Any, ...]], bool], meanwhile: Callable[[], Awaitable[object]]) -> FeedRun:
    log = cast(ChangeLog, Interrupted(store.log, chosen, meanwhile))
    return FeedRun(Backends(store.backends.tiers, log), store.runtime, store.settings, {store.sink.name: store.sink})


def calls(wanted: str, text: str = "") -> Callable[[str, tuple[Any, ...]], bool]:
    return lambda name, args: name == wanted and text in repr(args)


async def taken_over(store: FedStore) -> None:
    """Ends whoever is at work, so that the next writer need not wait."""
    run = store.run()
    await run.writer.open()
    await run.writer.close()


async def finished(store: FedStore) -> None:
    """Lets a writer finish, and compares what readers have with the rows."""
    with anyio.fail_after(60):
        await taken_over(store)
        await store.run_once()
    view, _ = store.sink.view()
    assert view == await store.references()
    in_order = sorted(store.sink.segments, key=lambda each: (each.generation, each.name))
    newest = in_order[-1].generation
    messages = [message for each in in_order if each.generation == newest for message in each.messages()]
    assert view_of(messages)[0] == view


async def open_and_step(run: FeedRun, steps: int = 3) -> None:
    await run.writer.open()
    for _ in range(steps):
        await run.writer.step()


async def kept_and_refused(store: FedStore, old: str) -> None:
    """Leaves the hint of a change that would have replaced `old`, and was refused."""
    change_id = ChangeId.new(store.runtime)
    change = Change(change_id, PHOTO, f"{PHOTO}/{change_id}", old, "a session")
    entry = await store.log.record(change, "a store")
    assert not await store.rows.settle(PHOTO, change_id)
    assert await store.log.keep(entry)


async def test_a_refused_change_deletes_no_blob_that_a_later_change_takes_away(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    (first,) = store.blob_names
    await kept_and_refused(store, first)
    run = store.run()
    await open_and_step(run)
    await store.put("a")
    await Cleaning(run.writer, store.backends, store.runtime, store.settings).clean_due()
    assert first in store.blob_names, "its -1 is not committed"
    await run.writer.close()
    await finished(store)
    assert first not in store.blob_names


async def test_a_zombie_that_opens_sweeps_no_file_of_a_later_writer(store: FedStore) -> None:
    await store.put("a")
    await open_and_step(store.run())

    async def meanwhile() -> None:
        await store.put("b")
        await open_and_step(store.run())

    zombie = interrupted(store, calls("scan_values", "/staged/"), meanwhile)
    await zombie.writer.open()
    with pytest.raises(FencedError):
        await zombie.writer.step()
    await finished(store)


async def test_a_zombie_erases_no_count_that_a_later_writer_withholds() -> None:
    async with fed_store(batch_max=1) as store:
        await store.put("a")
        await open_and_step(store.run())
        async def meanwhile() -> None:
            await set_gap(store.log)
            await store.put("b")
            await store.put("c")
            await open_and_step(store.run(), 3)  # a pass begins, and its first pages are withheld

        await store.put("d")
        zombie = interrupted(store, calls("scan_values", "/withheld/"), meanwhile)
        with pytest.raises(FencedError):
            await open_and_step(zombie)
        await finished(store)


async def test_a_file_that_a_zombie_has_delivered_and_trimmed_is_not_delivered_again(store: FedStore) -> None:
    await store.put("a")
    first = store.run()
    await open_and_step(first)
    deliveries = [Delivery(store.sink.name, store.sink, first.writer, store.log, store.runtime, OWNER)]
    await deliveries[0].begin()
    second = store.run()
    await second.writer.open()
    late = Delivery(store.sink.name, store.sink, second.writer, store.log, store.runtime, OWNER)
    await late.begin()
    assert late.is_behind
    while deliveries[0].is_behind:
        await deliveries[0].deliver_next()
    await first.writer.trim(deliveries[0].acknowledged)
    while late.is_behind:
        await late.deliver_next()
    await second.writer.close()
    await finished(store)


async def test_a_file_is_trimmed_only_when_the_position_is_written_down(store: FedStore) -> None:
    await store.put("a")
    run = interrupted(store, lambda name, args: False, store.runtime.sleep)
    await open_and_step(run)

    class RefusingSink:
        def __getattr__(self, name: str) -> Any:
            return getattr(store.log, name)

        async def swap_note(self, name: str, expected: bytes | None, value: bytes) -> bool:
            if name != NOTE:
                raise UnavailableError("no note is written now")
            return await store.log.swap_note(name, expected, value)

    delivery = Delivery(store.sink.name, store.sink, run.writer, cast(ChangeLog, RefusingSink()), store.runtime, OWNER)
    await delivery.begin()
    with pytest.raises(UnavailableError):
        await delivery.deliver_next()
    await run.writer.trim(delivery.acknowledged)
    await run.writer.close()
    await finished(store)


async def test_a_zombie_that_opens_when_its_file_is_trimmed_is_fenced(store: FedStore) -> None:
    await store.put("a")
    await open_and_step(store.run(), 8)

    async def meanwhile() -> None:
        await store.put("b")
        await taken_over(store)
        await store.run_once()

    zombie = interrupted(store, calls("read_values", "/staged/"), meanwhile)
    with pytest.raises(FencedError):
        await zombie.writer.open()
    await finished(store)


async def test_values_of_older_generations_are_removed(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    await store.run_once(new_generation=True)
    await store.put("a")
    await store.run_once()
    newest = max(each.generation for each in store.sink.segments)
    assert {key.split("/")[1] for key, (value, _) in store.log.values.items() if value is not None} == {str(newest)}


async def test_a_zombie_of_an_older_generation_removes_nothing_of_a_newer_one(store: FedStore) -> None:
    await store.put("a")
    first = store.run()
    await open_and_step(first)
    await taken_over(store)
    await store.run_once(new_generation=True)
    before = dict(store.log.values)
    with suppress(FencedError):
        for _ in range(3):
            await first.writer.step()
    assert before.items() <= store.log.values.items()
    await finished(store)


async def test_a_zombie_that_finds_the_position_of_a_later_generation_is_fenced(store: FedStore) -> None:
    await store.put("a")
    await store.run_once()
    zombie = store.run()
    await open_and_step(zombie)
    await zombie.writer.trim(1 << 62)
    await taken_over(store)
    await store.run_once(new_generation=True)
    with pytest.raises(FencedError):
        await Delivery(store.sink.name, store.sink, zombie.writer, store.log, store.runtime, OWNER).begin()
    await finished(store)


async def test_a_zombie_that_sees_no_difference_forgets_no_hint(store: FedStore) -> None:
    zombie = store.run()
    await zombie.writer.open()
    await zombie.writer.step()
    await store.put("a")

    async def meanwhile() -> None:
        await store.delete("a")
        with pytest.raises(FencedError):
            await zombie.writer.step()
        assert not zombie.writer.covered

    # The put is committed and not applied when the zombie compares: the index has nothing, and the row has nothing.
    second = interrupted(store, calls("write_values", "/index/"), meanwhile)
    await open_and_step(second)
    await finished(store)


async def test_of_two_writers_that_open_at_once_one_wins(store: FedStore) -> None:
    await store.put("a")
    first = store.run()

    async def meanwhile() -> None:
        await first.writer.open()

    second = interrupted(store, calls("swap_note", NOTE), meanwhile)
    with pytest.raises(FencedError):
        await second.writer.open()
    await first.writer.step()
    await finished(store)


async def test_a_writer_that_stood_still_after_its_commit_writes_nothing_down_late(store: FedStore) -> None:
    """It would bring back a value whose removal nobody remembers any more. The next one writes it down in time."""
    await store.put("a")
    run = store.run()
    await run.writer.open()
    late_s = 0.0
    boot_time, swap_note = store.runtime.boot_time, store.log.swap_note

    async def stand_still(*args: Any) -> bool:
        nonlocal late_s
        swapped = await swap_note(*args)
        late_s += 2 * TRANSACTION_AGE_MAX_S
        return swapped

    store.runtime.boot_time = lambda: boot_time() + late_s
    store.log.swap_note = stand_still  # type: ignore[method-assign, assignment]
    with pytest.raises(FencedError, match="stood still"):
        await run.writer.step()
    store.log.swap_note = swap_note  # type: ignore[method-assign]
    await finished(store)


async def test_what_a_zombie_writes_into_the_index_late_changes_nothing_that_a_later_writer_wrote(store: FedStore) -> None:
    """Its call of an old transaction arrives when the object has another blob by now. The highest version counts."""
    sent: list[tuple[dict[str, bytes | None], int]] = []
    write = store.log.write_values

    async def noted(values: Mapping[str, bytes | None], version: int) -> None:
        if any("/index/" in key for key in values):
            sent.append((dict(values), version))
        await write(values, version)

    store.log.write_values = noted  # type: ignore[method-assign]
    await store.put("a")
    await store.run_once()
    store.log.write_values = write  # type: ignore[method-assign]
    for name in "ab":  # of the last transaction the next writer would write the index again
        await store.put(name)
        await store.run_once()
    assert sent
    for values, version in sent:
        await store.log.write_values(values, version)
    await store.put("a")
    await store.run_once()
    assert store.sink.view()[0] == await store.references()
