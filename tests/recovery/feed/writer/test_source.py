"""What the writer of a feed reports of itself, on a changelog in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from changelog.base.errors import UnavailableError
from changelog.change import DONE, Change, ChangeId, Entry
from changelog.noop import NoopChangeLog
from recovery import states
from recovery.feed.writer.checkpoint import NOTE, Checkpoint, Pass
from recovery.feed.writer.positions import Position, advance
from recovery.feed.writer.source import FeedSource, FeedWriterCounts, RetainedEntries, acknowledged, count_kept
from recovery.statistics import counting
from recovery.statistics.persisted import Document, read_statistics
from tests.given.tapped_store import TappedWorld
from tiered.testing.log import StoredEntry

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_time")]

ONE, TWO = "/var/feed", "gs://bucket/feed"
G = 5
FIRST = Pass(b"", 0, None, estimated=False, withheld=True, began=1, scanned=0)
BEGUN = replace(Checkpoint.begin(G, "s", "feed-1"), scan=FIRST)


def source(world: TappedWorld, counts: FeedWriterCounts | None = None, to: tuple[str, ...] = (ONE, TWO)) -> FeedSource:
    settings = world.settings(changelog="sqlite", feed={"enabled": True, "to": to})
    return FeedSource(world.log, world.runtime, settings, "writer", counts or FeedWriterCounts())


def put(world: TappedWorld, checkpoint: Checkpoint) -> None:
    world.log.target.notes[NOTE] = checkpoint.to_bytes()


def committed(records: int, generation: int = G, time: int = 900) -> Checkpoint:
    """Returns a checkpoint after the first pass, with so many records."""
    return replace(Checkpoint.begin(generation, "s", "feed-1"), timestamp=time, next=time + 1, bindings=((time, records),), passed=1)


async def told(world: TappedWorld, reporter: FeedSource) -> Document:
    await reporter.report()
    found = await read_statistics(world.log.target, "feed")
    assert found is not None
    return found


async def keep(world: TappedWorld, count: int) -> list[Entry]:
    entries = []
    for _ in range(count):
        token = ChangeId.new(world.runtime)
        entries.append(await world.log.target.record(Change(token, "notes/objects/k"), "owner"))
        assert await world.log.target.keep(entries[-1])
    return entries


# --- the hints that wait -------------------------------------------------------------------------------


async def test_kept_entries_are_counted_with_the_oldest_and_open_ones_are_not(world: TappedWorld) -> None:
    assert await count_kept(world.log, world.runtime) == RetainedEntries(0, False, None)
    began_ms = await world.log.target.now_ms()
    await keep(world, 1)
    await world.runtime.sleep(5)
    await world.log.target.record(Change(ChangeId.new(world.runtime), "notes/objects/k"), "owner")
    [unreadable] = await keep(world, 1)
    world.log.target.stored[unreadable.key] = StoredEntry(b"nonsense", 0, DONE)
    assert await count_kept(world.log, world.runtime) == RetainedEntries(2, False, began_ms)


async def test_many_kept_entries_are_estimated_and_no_verdict_rests_on_that(world: TappedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(real: Any, *arguments: Any) -> Any:
        await world.runtime.sleep(0.5)
        return await real(*arguments)

    monkeypatch.setattr(counting, "COUNT_PAGE", 50)
    put(world, committed(10))
    kept = await keep(world, 400)
    world.log.hooks["kept"] = slow
    found = await count_kept(world.log, world.runtime)
    assert found.estimated and found.entries is not None and 250 < found.entries < 600 and found.oldest_ms is not None
    document = await told(world, source(world))
    assert (document.offsets, document.total().lag, document.verdict().kind) == (None, None, states.UNKNOWN)
    del world.log.hooks["kept"]
    assert await count_kept(world.log, world.runtime) == RetainedEntries(400, False, found.oldest_ms) and len(kept) == 400


# --- the offsets ---------------------------------------------------------------------------------------


async def test_without_a_checkpoint_nothing_is_reported(world: TappedWorld) -> None:
    await source(world).report()
    assert await read_statistics(world.log.target, "feed") is None
    await FeedSource(NoopChangeLog(), world.runtime, world.settings(), "writer", FeedWriterCounts()).report()


async def test_outstanding_is_committed_and_waiting_and_processed_is_what_every_sink_has(world: TappedWorld) -> None:
    put(world, committed(10))
    await keep(world, 3)
    await advance(world.log, Position(ONE, G, 900, 10))
    total = (await told(world, source(world))).total()
    assert (total.outstanding_values, total.processed_values, total.lag) == (13, 0, 13), "one sink has no position yet"
    await advance(world.log, Position(TWO, G, 800, 7))
    total = (await told(world, source(world))).total()
    assert (total.outstanding_values, total.processed_values) == (13, 7)


async def test_a_hint_that_only_waits_for_a_late_upload_is_no_update_that_waits(world: TappedWorld) -> None:
    put(world, committed(10))
    late, *_ = await keep(world, 3)
    await advance(world.log, Position(ONE, G, 900, 10))
    total = (await told(world, source(world, FeedWriterCounts(late={late.key}), (ONE,)))).total()
    assert (total.outstanding_values, total.processed_values, total.lag) == (12, 10, 2)
    assert (await count_kept(world.log, world.runtime)).entries == 3, "it waits, and an operator is told so"


@pytest.mark.parametrize(("sinks", "known", "found"), [
    ((), {}, 10), ((ONE,), {ONE: Position(ONE, G, 900, 10)}, 10), ((ONE,), {ONE: Position(ONE, G - 1, 900, 10)}, 0),
    ((ONE, TWO), {ONE: Position(ONE, G, 900, 10), TWO: Position(TWO, G, 7, 4)}, 4),
])  # fmt: skip
def test_the_meet_is_over_the_sinks_of_this_generation(sinks: tuple[str, ...], known: dict[str, Position], found: int) -> None:
    assert acknowledged(committed(10), sinks, known) == found


async def test_a_position_ahead_of_an_old_checkpoint_gives_no_negative_lag(world: TappedWorld) -> None:
    put(world, committed(3))
    await advance(world.log, Position(ONE, G, 900, 10))
    total = (await told(world, source(world, to=(ONE,)))).total()
    assert (total.outstanding_values, total.processed_values) == (10, 10)


async def test_a_hint_that_leads_to_no_update_makes_no_offset_go_back(world: TappedWorld) -> None:
    put(world, committed(0))
    entries = await keep(world, 4)
    reporter = source(world, to=(ONE,))
    assert (await told(world, reporter)).total().outstanding_values == 4
    for entry in entries:
        await world.log.target.forget(entry)
    total = (await told(world, reporter)).total()
    assert (total.outstanding_values, total.processed_values) == (4, 4)


async def test_a_restart_goes_on_where_the_writer_before_ended(world: TappedWorld) -> None:
    put(world, committed(10))
    await advance(world.log, Position(ONE, G, 900, 6))
    counts = FeedWriterCounts(hints=9, hint_bytes=90, staged=11, committed=10)
    await told(world, source(world, counts, (ONE,)))
    await advance(world.log, Position(ONE, G, 900, 10))
    total = (await told(world, source(world, FeedWriterCounts(hints=1, hint_bytes=10, staged=1), (ONE,)))).total()
    assert (total.outstanding_values, total.processed_values) == (10, 10)
    assert (total.messages_received, total.bytes_received, total.updates_staged, total.updates_committed) == (10, 100, 12, 10)


async def test_a_new_generation_is_a_new_snapshot_and_no_offset_goes_back(world: TappedWorld) -> None:
    put(world, committed(10))
    await advance(world.log, Position(ONE, G, 900, 6))
    reporter = source(world, to=(ONE,))
    before = await told(world, reporter)
    assert before.total().snapshot_committed
    put(world, replace(BEGUN, generation=G + 1))
    after = await told(world, reporter)
    assert (after.total().outstanding_values, after.total().processed_values) == (10, 10), "nobody delivers the 4 any more"
    assert not after.total().snapshot_committed
    assert (after.snapshot, after.regressions, len(after.samples)) == ("generation-6", 0, 1)
    put(world, committed(3, G + 1))
    total = (await told(world, reporter)).total()
    assert (total.outstanding_values, total.processed_values) == (13, 10)
    await advance(world.log, Position(ONE, G + 1, 900, 3))
    total = (await told(world, reporter)).total()
    assert (total.outstanding_values, total.processed_values) == (13, 13)


async def test_a_sink_that_is_away_makes_the_feed_stall_in_the_verdict(world: TappedWorld) -> None:
    reporter = source(world, to=(ONE,))
    put(world, committed(10))
    await reporter.report()
    for _ in range(3):
        await world.runtime.sleep(20)
        found = await told(world, reporter)
    assert found.verdict().kind is states.STALLED
    await advance(world.log, Position(ONE, G, 900, 10))
    await world.runtime.sleep(20)
    assert (await told(world, reporter)).verdict().kind is states.HEALTHY


# --- the snapshot --------------------------------------------------------------------------------------


async def test_the_snapshot_is_the_first_pass_which_may_begin_anew(world: TappedWorld) -> None:
    reporter = source(world)

    async def shown(checkpoint: Checkpoint) -> tuple[int | None, bool, int | None, bool]:
        put(world, checkpoint)
        total = (await told(world, reporter)).total()
        return total.snapshot_records_known, total.snapshot_known_estimated, total.snapshot_progress, total.snapshot_committed

    assert await shown(BEGUN) == (None, False, 0, False)
    assert await shown(replace(BEGUN, scan=replace(FIRST, read=40, known=100, estimated=True))) == (100, True, 40, False)
    assert await shown(BEGUN.with_gap()) == (None, False, 0, False)
    assert await shown(replace(BEGUN, scan=replace(FIRST, read=120, known=120))) == (120, False, 120, False)
    assert await shown(committed(120)) == (None, False, None, True), "how many rows that pass has read is not stored"
    later = replace(committed(120), scan=replace(FIRST, read=3, known=9))
    assert await shown(later) == (None, False, None, True), "a later pass is no snapshot"
    reporter = source(world)
    assert await shown(replace(later, gap=True)) == (None, False, None, True)


# --- what fails ----------------------------------------------------------------------------------------


async def test_a_failure_is_logged_once_and_again_once_it_works(world: TappedWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    reporter = source(world)

    async def refuse(*_: Any) -> None:
        raise UnavailableError("away")

    world.log.hooks["now_ms"] = refuse
    await reporter.report()
    await reporter.report()
    world.log.hooks.clear()
    world.log.target.notes[NOTE] = b"{}"
    await reporter.report()
    put(world, BEGUN)
    await reporter.report(left=True)
    told_of = [record.event for record in caplog.records if hasattr(record, "event")]
    assert told_of == ["statistics_not_reported", "statistics_reported_again"]
    found = await read_statistics(world.log.target, "feed")
    assert found is not None
    assert found.workers["writer"].left
