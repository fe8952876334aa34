"""Entries are counted, or estimated, whatever time they are from. At rest the estimate has no bias."""

from __future__ import annotations

from random import Random
from statistics import mean
from typing import Any
from uuid import UUID

import anyio
import pytest

from changelog.change import Change, ChangeId, Entry, encode
from changelog.log import EntryPage, KeyRange, shard_ranges
from recovery import states
from recovery.statistics import counting
from recovery.statistics.counting import EntryCount, count_entries
from recovery.statistics.persisted import Document, read_statistics
from recovery.statistics.recovery_source import RecoveryCounts, RecoverySource, count_backlog
from tests.given.tapped_store import TappedWorld
from tiered.testing.log import StoredEntry

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_time")]

DAY_MS = 86_400_000


def change_id(created_ms: int, random: Random) -> ChangeId:
    return ChangeId(str(UUID(int=created_ms << 80 | 0x7 << 76 | random.getrandbits(12) << 64 | 0b10 << 62 | random.getrandbits(62))))


def bursts(world: TappedWorld, number: int, *, share: float = 0.95) -> None:
    """Plants so many entries that are due. Most are of one second, the others of a whole day."""
    random, now_ms = Random(7), world.runtime.wall_ns() // 1_000_000
    for _ in range(number):
        age_ms = random.randrange(1000) if random.random() < share else random.randrange(DAY_MS)
        token = change_id(now_ms - 60_000 - age_ms, random)
        entry = Entry(Change(token, "n/objects/a"), token.row_key(), "")
        world.log.target.stored[entry.key] = StoredEntry(encode(entry), 0)


def slow(world: TappedWorld, page_s: float) -> None:
    async def wait(real: Any, *arguments: Any, **named: Any) -> Any:
        await world.runtime.sleep(page_s)
        return await real(*arguments, **named)

    world.log.hooks["entries"] = wait


async def backlog(world: TappedWorld) -> EntryCount:
    return await count_backlog(world.log, world.runtime, world.runtime.wall_ns() // 1_000_000, world.settings())


async def stored(world: TappedWorld) -> Document:
    found = await read_statistics(world.log.target, "recovery")
    assert found is not None
    return found


@pytest.mark.parametrize(("entries", "page"), [(5_200, 500), pytest.param(52_000, 5_000, marks=pytest.mark.night)])
async def test_all_entries_of_one_burst_are_counted_exactly_in_time_and_else_about(
    world: TappedWorld, monkeypatch: pytest.MonkeyPatch, entries: int, page: int
) -> None:
    monkeypatch.setattr(counting, "COUNT_PAGE", page)
    bursts(world, entries)
    assert await backlog(world) == EntryCount(entries)
    slow(world, 0.9)
    found = await backlog(world)
    assert found.estimated and found.number == pytest.approx(entries, rel=0.05)


@pytest.mark.parametrize("pages", range(2, 6))
async def test_a_range_that_was_read_in_part_tells_nothing_of_its_rest(
    world: TappedWorld, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    monkeypatch.setattr(counting, "COUNT_PAGE", 50)
    bursts(world, 1_600)  # about 100 in each range
    slow(world, 5 / pages)
    found = await backlog(world)
    assert found.estimated and (found.number is None or 1_200 < found.number < 2_000)
    assert pages > 3 or found.number is None


async def test_an_estimate_has_no_bias_where_one_range_has_most_entries(world: TappedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of older software all lie in one range."""
    entry = Entry(Change(ChangeId.new(world.runtime), "n/objects/a"), "key", "")
    sizes = {within: 1_000 if number == 1 else 10 for number, within in enumerate(shard_ranges())}

    async def read(within: KeyRange, limit: int) -> EntryPage:
        await world.runtime.sleep(1)
        return EntryPage((entry,) * sizes[within], None) if within in sizes else EntryPage((), "more")

    found = []
    for first in range(16):
        monkeypatch.setattr(world.runtime.random, "randrange", lambda number, first=first: first)
        found.append((await count_entries(read, shard_ranges(), lambda each: True, world.runtime, 5)).number or 0)
    assert len(set(found)) > 1 and mean(found) == sum(sizes.values())


async def test_an_estimate_is_never_below_what_was_seen(world: TappedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry(Change(ChangeId.new(world.runtime), "n/objects/a"), "key", "")

    async def read(within: KeyRange, limit: int) -> EntryPage:
        await world.runtime.sleep(1)
        endless = within.end != shard_ranges()[0].end
        return EntryPage((entry,) * (500 if endless else 2), f"{within.start}0" if endless else None)

    monkeypatch.setattr(world.runtime.random, "randrange", lambda number: 0)
    assert await count_entries(read, shard_ranges(), lambda each: True, world.runtime, 5) == EntryCount(2 + 3 * 500, True)


async def test_a_short_log_costs_one_call_and_an_endless_one_ends_in_time(world: TappedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    bursts(world, 400)
    assert await backlog(world) == EntryCount(400) and world.calls.count("entries") == 1
    monkeypatch.setattr(counting, "COUNT_PAGE", 10)
    slow(world, 2)
    with anyio.fail_after(7):
        assert await backlog(world) == EntryCount(None, estimated=True)


async def test_what_is_not_kept_or_due_is_not_counted_and_nothing_beyond_a_range_is(
    world: TappedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "COUNT_PAGE", 7)
    bursts(world, 100)
    for key in list(world.log.target.stored)[:30]:
        world.log.target.stored[key] = StoredEntry(world.log.target.stored[key].value, 0, '{"state":"done"}')
    for first in range(16):
        monkeypatch.setattr(world.runtime.random, "randrange", lambda number, first=first: first)
        assert await backlog(world) == EntryCount(70)


async def test_no_verdict_and_no_regression_rests_on_an_estimate(world: TappedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backlog stays as it is. Estimates of it seemed to grow, and to vanish."""
    monkeypatch.setattr(counting, "COUNT_PAGE", 100)
    bursts(world, 1_500)
    slow(world, 0.4)
    source = RecoverySource(world.log, world.runtime, world.settings(), "me", RecoveryCounts())
    for _ in range(8):
        await source.report()
        await world.runtime.sleep(30)
    found = await stored(world)
    assert (found.verdict().kind, found.regressions, found.elsewhere, found.offsets) == (states.UNKNOWN, 0, 0, None)
    total = found.total()
    assert (total.lag, total.outstanding_values, total.snapshot_known_estimated) == (None, None, True)
    assert total.snapshot_records_known == pytest.approx(1_500, rel=0.2)
    del world.log.hooks["entries"]
    await source.report()
    assert ((await stored(world)).total().lag, (await stored(world)).regressions) == (1_500, 0)


async def test_how_much_there_is_is_not_known_before_a_range_was_read_to_its_end(
    world: TappedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "COUNT_PAGE", 10)
    bursts(world, 1_500)
    slow(world, 2)
    counts = RecoveryCounts(progress=7)
    await RecoverySource(world.log, world.runtime, world.settings(), "me", counts).report()
    total = (await stored(world)).total()
    assert (total.snapshot_records_known, total.snapshot_known_estimated, total.snapshot_progress) == (None, False, 7)
    counts.passed = True
    await RecoverySource(world.log, world.runtime, world.settings(), "you", counts).report()
    assert (await stored(world)).rows()["you"].snapshot_records_known == 0, "it is not responsible"
