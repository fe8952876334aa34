"""A store with a change feed whose writer does not run: each finished change is kept, and what it replaced stays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest

from changelog.base.errors import UnavailableError
from changelog.change import LOG_PREFIX, Change, ChangeId, Entry
from changelog.log import LOG_END, KeyRange
from tests.given.tapped_store import LARGE, OBJECT, SMALL, TappedWorld, fails, pieces
from tiered import TieredStorage
from tiered.metadata import Metadata
from tiered.object_id import blob_name

pytestmark = pytest.mark.anyio

FEED = {"feed": {"enabled": True}, "changelog": "sqlite"}
Write = Callable[[TieredStorage], Awaitable[object]]


async def kept(world: TappedWorld) -> list[Entry]:
    page = await world.log.target.kept(KeyRange(LOG_PREFIX, LOG_END), 100)
    assert page.next_start is None and all(isinstance(entry, Entry) for entry in page.entries)
    return sorted(page.entries, key=lambda entry: entry.change.id)


async def put_broken(storage: TieredStorage) -> None:
    with pytest.raises(ZeroDivisionError):
        await storage.put(OBJECT, pieces(LARGE, ZeroDivisionError()))


async def put_cancelled(storage: TieredStorage) -> None:
    with anyio.CancelScope() as scope:

        async def payload() -> AsyncIterator[bytes]:
            yield LARGE
            scope.cancel()
            await anyio.lowlevel.checkpoint()

        await storage.put(OBJECT, payload())


WRITES: dict[str, Write] = {
    "put": lambda storage: storage.put(OBJECT, LARGE),
    "overwrite by a small one": lambda storage: storage.put(OBJECT, SMALL),
    "delete": lambda storage: storage.delete(OBJECT),
    "a payload that breaks": put_broken,
    "a caller that is cancelled": put_cancelled,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_each_change_of_a_large_object_leaves_its_entry_and_every_blob_that_it_names(world: TappedWorld, write: Write) -> None:
    async with world.store(**FEED) as storage:
        await storage.put(OBJECT, LARGE)
        await write(storage)
    first, second = await kept(world)
    assert len(await world.entries()) == 2
    assert first.change.old is None and second.change.old == first.change.new
    names = await world.blob_names()
    assert first.change.new in names and not {"delete", "forget", "release"} & set(world.calls)
    row = await world.rows.target.read(OBJECT.path)
    assert row.target is None or row.target in names
    if write in (WRITES["put"], put_broken, put_cancelled):
        assert (second.change.new in names) == (write is WRITES["put"]) == (row.target == second.change.new)


async def test_a_put_that_came_too_late_is_settled_and_kept_with_its_blob(world: TappedWorld) -> None:
    async def overtaken(real: Any, path: str, *args: Any) -> Any:
        world.rows.hooks.clear()
        async with world.store(**FEED) as other:
            await other.put(OBJECT, LARGE)
        return await real(path, *args)

    async with world.store(**FEED) as storage:
        await storage.put(OBJECT, LARGE)
        world.rows.hooks["swap"] = overtaken
        await storage.put(OBJECT, LARGE)  # it is told ok: the last writer wins, and that was the other
    entries = await kept(world)
    assert len(entries) == 3 == len(await world.entries())
    row = await world.rows.target.read(OBJECT.path, marks=True)
    [late] = [entry.change for entry in entries if entry.change.id in row.refused]
    assert late.new is not None and late.new != row.target and {late.new, row.target} <= set(await world.blob_names())
    assert "delete" not in world.calls


async def test_what_has_no_entry_leaves_none_and_without_a_feed_nothing_is_kept(world: TappedWorld) -> None:
    async with world.store(**FEED) as storage:
        await storage.put(OBJECT, SMALL)
        await storage.delete(OBJECT)
    assert await world.entries() == []
    async with world.store() as storage:
        for _ in range(2):
            await storage.put(OBJECT, LARGE)
        await storage.delete(OBJECT)
    assert "keep" not in world.calls and await world.is_clean()


async def test_a_put_pays_no_call_more_and_leaves_two_to_the_writer_of_the_feed(world: TappedWorld) -> None:
    made: dict[bool, list[str]] = {}
    for feed in (False, True):
        async with world.store(**(FEED if feed else {})) as storage:
            await storage.put(OBJECT, LARGE)
        world.calls.clear()
        async with world.store(**(FEED if feed else {})) as storage:
            await storage.put(OBJECT, LARGE)
        made[feed] = sorted(world.calls)
    change = ["read", "record", "open_upload", "swap"]
    once = ["now_ms", "write_values", "read_note", "erase_values"]  # in five minutes: that the feed is off, and its end
    assert made == {False: sorted([*change, "settle", "delete", "forget", *once]), True: sorted([*change, "keep"])}


async def test_recovery_of_a_dead_process_settles_its_change_and_keeps_it(world: TappedWorld) -> None:
    token = ChangeId.new(world.runtime)
    name = blob_name(OBJECT.path, token)
    upload = await world.blobs.target.open_upload(name, Metadata(), None)
    await upload.write(LARGE)
    await upload.finalise()
    await world.log.target.record(Change(token, OBJECT.path, name, None, upload.session), "dead")
    await world.runtime.sleep(31)
    recovery = world.recovery(**FEED)
    report = await recovery.run_once()
    assert (report.recovered, report.failed, report.parked) == (1, 0, 0)
    assert [entry.change.id for entry in await kept(world)] == [token] and await world.blob_names() == [name]
    assert token in (await world.rows.target.read(OBJECT.path, marks=True)).refused
    assert not {"delete", "cancel"} & set(world.calls)
    await world.runtime.sleep(3600)
    assert (await recovery.run_once()).seen == 0, "it is no work any more"


async def test_an_entry_that_alone_cannot_be_settled_is_parked_while_others_are_kept(world: TappedWorld) -> None:
    """Without a feed, deleted garbage of others shows that the services answer. With one, kept entries of others do."""
    bad = Change(ChangeId.new(world.runtime), "attachments/objects/bad")
    await world.log.target.record(bad, "dead")

    async def refuses_one(real: Any, path: str, *args: Any) -> Any:
        if path == bad.object:
            raise UnavailableError("its tablet is away")
        return await real(path, *args)

    world.rows.hooks["settle"] = refuses_one
    recovery = world.recovery(**FEED, recovery={"concurrency_max": 2})
    for _ in range(5):
        await world.log.target.record(Change(ChangeId.new(world.runtime), OBJECT.path), "dead")
        await world.runtime.sleep(31)
        await recovery.run_once()
    assert recovery.total.parked == 1 and len(await kept(world)) == 5
    [stuck] = [entry for entry in await world.entries() if entry.stuck is not None]
    assert stuck.change == bad and "its tablet is away" in stuck.stuck.error


async def test_a_keep_that_is_not_answered_is_made_again_and_what_fails_is_left_to_recovery(world: TappedWorld) -> None:
    world.log.hooks["keep"] = fails(UnavailableError("the changelog is away"))
    async with world.store(**FEED) as storage:
        await storage.put(OBJECT, LARGE)
    assert await kept(world) == [] and len(await world.entries()) == 1 and world.calls.count("keep") > 1
    world.log.hooks.clear()
    await world.runtime.sleep(31)
    assert (await world.recovery(**FEED).run_once()).recovered == 1
    assert len(await kept(world)) == 1 and (await world.rows.target.read(OBJECT.path)).target == (await kept(world))[0].change.new
