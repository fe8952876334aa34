"""What recovery reports of itself, on a store in virtual time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from changelog.base.errors import UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId, Entry, encode
from changelog.noop import NoopChangeLog
from recovery import states
from recovery.daemon import recover_once, source_of
from recovery.loop import RecoveryLoop
from recovery.statistics import recovery_source, reporting
from recovery.statistics.counting import EntryCount
from recovery.statistics.persisted import Document, note_name, read_statistics
from recovery.statistics.recovery_source import RecoveryCounts, RecoverySource, count_backlog
from tests.given.tapped_store import TappedWorld
from tiered.notes.feed_off import END_BUDGET_S
from tiered.open import open_backends
from tiered.settings import Settings
from tiered.testing.log import StoredEntry

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_time"), pytest.mark.slow]


async def plant(world: TappedWorld, count: int, *, owner: str = "") -> list[Entry]:
    """So many entries of deletions that reached nothing; without an owner they are due at once."""
    changes = [Change(token, f"notes/objects/{token}", None, f"notes/objects/{token}/{token}") for token in tokens(world, count)]
    return [await world.log.target.record(change, owner) for change in changes]


def tokens(world: TappedWorld, count: int) -> list[ChangeId]:
    return [ChangeId.new(world.runtime) for _ in range(count)]


@asynccontextmanager
async def daemon(world: TappedWorld, **values: Any) -> AsyncIterator[tuple[RecoveryLoop, RecoverySource]]:
    """A loop and its source, as the daemon runs them; killed at the end."""
    loop = world.recovery(**values)
    source = source_of(loop, world.log, world.runtime, world.settings(**values))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loop.run)
        tasks.start_soon(source.run)
        yield loop, source
        tasks.cancel_scope.cancel()


async def stored(world: TappedWorld) -> Document:
    found = await read_statistics(world.log.target, "recovery")
    assert found is not None
    return found


# --- the backlog -------------------------------------------------------------------------------------


async def test_the_backlog_is_what_is_due_now_or_held_by_a_recoverer(world: TappedWorld) -> None:
    held, by_recoverer, waiting, released, parked, unreadable, kept = await plant(world, 7, owner="writer")
    now_ms = await world.log.target.now_ms()
    assert await world.log.target.claim(by_recoverer, "recovery")
    assert await world.log.target.release(waiting, now_ms + 10_000)
    assert await world.log.target.release(released)
    assert await world.log.target.park(parked, "why")
    assert await world.log.target.keep(kept)
    world.log.target.stored[unreadable.key] = StoredEntry(b"nonsense", now_ms)
    assert await count_backlog(world.log.target, world.runtime, now_ms, world.settings()) == EntryCount(3)
    later = await count_backlog(world.log.target, world.runtime, now_ms + 3_600_000, world.settings())
    assert later == EntryCount(4), "without the second look"
    assert await world.log.target.read(held.change.id) == held


async def test_an_entry_that_waited_for_a_late_upload_was_outstanding_twice_and_processed_twice(world: TappedWorld) -> None:
    """6,000 entries of dead writers were 11,990 outstanding, falling behind, with thrice the time that they took."""
    for token in tokens(world, 400):
        await world.log.target.record(Change(token, f"notes/objects/{token}", f"notes/objects/{token}/{token}"), "")
    kinds = set()
    async with daemon(world, recovery={"rate_per_s": 2, "late_upload_grace_s": 60}):
        for _ in range(60):  # the first looks alone take 200 s, and the second ones come while they last
            await world.runtime.sleep(10)
            document = await stored(world)
            kinds.add(document.verdict().kind)
            assert (document.total().outstanding_values or 0) <= 400
        found = document.total()
        assert found.outstanding_values == found.processed_values == 400 and document.regressions == 0
        assert found.updates_committed == 800 and world.log.target.stored == {}
    assert states.FALLING_BEHIND not in kinds and states.CATCHING_UP in kinds


# --- reports -----------------------------------------------------------------------------------------


async def test_a_daemon_reports_its_first_pass_and_catches_up(world: TappedWorld) -> None:
    entries = await plant(world, 1_000)
    kinds = []
    async with daemon(world, recovery={"rate_per_s": 10}):
        for _ in range(7):
            await world.runtime.sleep(12)
            kinds.append((await stored(world)).verdict().kind)
        found = (await stored(world)).total()
        assert found.snapshot_records_known is not None and 990 <= found.snapshot_records_known <= 1_000
        assert not found.snapshot_committed and found.snapshot_percentage is not None and found.snapshot_percentage < 100
        await world.runtime.sleep(90)
    document = await stored(world)
    found = document.total()
    assert found.snapshot_committed and found.snapshot_progress == 1_000 and found.lag == 0
    assert found.outstanding_values == found.processed_values == 1_000
    assert found.updates_staged == found.updates_committed == found.messages_received == 1_000
    assert found.bytes_received == sum(len(encode(entry)) for entry in entries)
    assert kinds[2] is states.CATCHING_UP and document.verdict().kind is states.HEALTHY
    assert document.regressions == 0


async def test_a_daemon_that_is_too_slow_falls_behind_and_one_whose_store_is_down_stalls(world: TappedWorld) -> None:
    async def arrive() -> None:
        while True:
            await plant(world, 8)
            await world.runtime.sleep(2)

    async def down(*arguments: Any) -> Any:
        raise UnavailableError("down")

    async with daemon(world, recovery={"rate_per_s": 1}), anyio.create_task_group() as tasks:
        tasks.start_soon(arrive)
        await world.runtime.sleep(150)
        found = (await stored(world)).verdict()
        assert found.kind is states.FALLING_BEHIND
        assert found.inflow_per_s == pytest.approx(4, rel=0.2) and found.drain_per_s == pytest.approx(1, rel=0.2)
        tasks.cancel_scope.cancel()
    world.rows.hooks["settle"] = down
    world.blobs.hooks["delete"] = down
    async with daemon(world):
        await world.runtime.sleep(200)
        assert (await stored(world)).verdict().kind is states.STALLED


@pytest.mark.night
async def test_two_daemons_share_the_work_and_nothing_is_counted_twice(world: TappedWorld) -> None:
    await plant(world, 2_000)
    async with daemon(world, recovery={"rate_per_s": 10}), daemon(world, recovery={"rate_per_s": 10}):
        lags = []
        for _ in range(20):  # they claim the same entries now and then, so 2,000 take more than 100 s
            await world.runtime.sleep(10)
            total = (await stored(world)).total()
            assert (total.outstanding_values or 0) <= 2_000, "no entry counts twice"
            lags.append(total.lag or 0)
    document = await stored(world)
    found, rows = document.total(), document.rows()
    assert len(rows) == 2 and lags == sorted(lags, reverse=True)
    assert sum(1 for row in rows.values() if row.snapshot_records_known == 0) == 1, "one is not responsible, and reports 0"
    assert found.updates_committed == 2_000 and found.lag == 0
    assert (found.outstanding_values, found.processed_values, document.regressions) == (2_000, 2_000, 0)


async def test_a_killed_daemon_and_its_successor_show_no_decrease(world: TappedWorld) -> None:
    await plant(world, 600)
    before = Document("recovery")
    for life_s in (25, 14, 33, 200):
        async with daemon(world, recovery={"rate_per_s": 4}):
            for _ in range(life_s):
                await world.runtime.sleep(1)
                after = await read_statistics(world.log.target, "recovery") or Document("recovery")
                for name in ("messages_received", "updates_staged", "updates_committed"):
                    assert getattr(after.total(), name) >= getattr(before.total(), name)
                if before.offsets and after.offsets:
                    assert after.offsets.outstanding >= before.offsets.outstanding
                    assert after.offsets.processed >= before.offsets.processed
                before = after
    found = (await stored(world)).total()
    assert (found.outstanding_values, found.processed_values) == (600, 600)


async def test_a_daemon_that_stood_still_and_was_forgotten_counts_on_from_there(
    world: TappedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.statistics.persisted.FOLDED_MAX", 2)
    await plant(world, 10)
    first = world.recovery()
    source = source_of(first, world.log, world.runtime, world.settings())
    await first.run_once()
    await source.report()
    for _ in range(4):
        await world.runtime.sleep(1_000)
        await source_of(world.recovery(), world.log, world.runtime, world.settings()).report()
    await plant(world, 5)
    await first.run_once()
    await source.report()
    assert (await stored(world)).total().updates_committed == 15


async def test_an_entry_that_must_be_parked_is_dealt_with(world: TappedWorld) -> None:
    entry, = await plant(world, 1)
    world.log.target.stored[entry.key] = StoredEntry(b"nonsense", 0)
    async with daemon(world):
        await world.runtime.sleep(30)
    found = (await stored(world)).total()
    assert (found.processed_values, found.updates_committed, found.lag, found.snapshot_committed) == (1, 0, 0, True)


async def test_a_pass_in_which_something_failed_is_not_complete(world: TappedWorld) -> None:
    async def down(*arguments: Any) -> Any:
        raise UnavailableError("down")

    await plant(world, 3)
    world.blobs.hooks["delete"] = down
    async with daemon(world):
        await world.runtime.sleep(60)
        assert not (await stored(world)).total().snapshot_committed
        del world.blobs.hooks["delete"]
        await world.runtime.sleep(200)
        assert (await stored(world)).total().snapshot_committed


async def test_one_pass_reports_what_it_did_and_leaves(world: TappedWorld) -> None:
    await plant(world, 7)
    loop = world.recovery()
    assert (await recover_once(loop, source_of(loop, world.log, world.runtime, world.settings()), None)).recovered == 7
    found = await stored(world)
    assert (found.total().snapshot_records_known, found.total().snapshot_committed, found.total().lag) == (7, True, 0)
    assert [each.left for each in found.workers.values()] == [True]


async def test_a_log_that_hangs_in_a_report_does_not_delay_one_pass(world: TappedWorld) -> None:
    async def hang(*arguments: Any) -> Any:
        await anyio.sleep_forever()

    await plant(world, 7)
    world.log.hooks["read_note"] = hang
    loop = world.recovery()
    began = world.runtime.monotonic()
    assert (await recover_once(loop, source_of(loop, world.log, world.runtime, world.settings()), None)).recovered == 7
    took_s = world.runtime.monotonic() - began  # it also tries to say that it forgets nothing more
    assert took_s <= reporting.FINAL_BUDGET_S + END_BUDGET_S + 1


async def test_one_pass_that_fails_reports_and_says_why(world: TappedWorld) -> None:
    async def down(*arguments: Any) -> Any:
        raise UnavailableError("down")

    world.log.hooks["stale"] = down
    loop = world.recovery()
    with pytest.raises(UnavailableError, match="down"):
        await recover_once(loop, source_of(loop, world.log, world.runtime, world.settings()), None)
    assert not (await stored(world)).total().snapshot_committed


# --- what statistics may not do ----------------------------------------------------------------------


@pytest.mark.parametrize("call", ["announce", "read_note", "swap_note", "entries"])
@pytest.mark.parametrize("error", [UnavailableError("down"), UnconfirmedError("no answer"), ZeroDivisionError(), None], ids=str)
async def test_whatever_fails_recovery_goes_on(
    world: TappedWorld, call: str, error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    fails = True

    async def hook(real: Any, *arguments: Any, **named: Any) -> Any:
        if fails and (call != "announce" or arguments[0] == "reporter"):
            if error is None:
                await anyio.sleep_forever()
            raise error or AssertionError
        return await real(*arguments, **named)

    caplog.set_level(logging.INFO, "tiered")
    await plant(world, 20)
    world.log.hooks[call] = hook
    loop = world.recovery()
    loop.counts = RecoveryCounts()
    source = RecoverySource(world.log, world.runtime, world.settings(), "reporter", loop.counts)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loop.run)
        tasks.start_soon(source.run)
        await world.runtime.sleep(100)
        assert loop.total.recovered == 20
        assert [record.message.split()[0] for record in caplog.records].count("statistics_not_reported") == 1, "said once"
        fails = False
        await world.runtime.sleep(60)
        assert "statistics_reported_again" in caplog.text
        assert (await stored(world)).total().updates_committed == 20
        tasks.cancel_scope.cancel()


async def test_a_damaged_note_is_left_as_it_is_and_recovery_goes_on(world: TappedWorld, caplog: pytest.LogCaptureFixture) -> None:
    await plant(world, 3)
    world.log.target.notes[note_name("recovery")] = b'{"v":2}'
    async with daemon(world) as (loop, _):
        await world.runtime.sleep(60)
        assert loop.total.recovered == 3
    assert world.log.target.notes == {note_name("recovery"): b'{"v":2}'}
    assert "written by newer software" in caplog.text


async def test_reports_are_few_and_no_pass_waits_for_one(world: TappedWorld) -> None:
    async with daemon(world):
        await world.runtime.sleep(1_000)
    assert 85 <= world.calls.count("swap_note") <= 115


async def test_a_log_that_keeps_nothing_is_not_asked(world: TappedWorld) -> None:
    class SilentLog(NoopChangeLog):
        async def announce(self, instance: str) -> int:
            raise AssertionError

    await RecoverySource(SilentLog(), world.runtime, world.settings(), "me", RecoveryCounts()).report()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_embedded_store_keeps_its_statistics_over_restarts(
    anyio_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery_source, "RESTS", 0)  # a slow look is followed by a rest that is longer than this whole test
    settings = Settings(directory=tmp_path, changelog="sqlite", instance="daemon-1")
    for turn in (1, 2, 3):
        async with open_backends(settings, SystemRuntime()) as backends:
            for _ in range(5):
                token = ChangeId.new(SystemRuntime())
                await backends.log.release(await backends.log.record(Change(token, "notes/objects/a", f"notes/objects/a/{token}"), "dead"))
            loop = RecoveryLoop(backends.tiers, backends.log, SystemRuntime(), settings)
            source = source_of(loop, backends.log, SystemRuntime(), settings)
            await source.report()
            await loop.run_once()
            await source.report(left=turn != 2)
        async with open_backends(settings, SystemRuntime(), writes=False) as backends:
            found = await read_statistics(backends.log, "recovery")
            assert found is not None
            assert (found.total().updates_committed, found.total().snapshot_committed) == (5 * turn, True)
            assert len(found.rows()) == (1 if turn < 3 else 2)
            assert found.offsets is not None and found.offsets.processed >= 5 * (turn if turn < 3 else 2)


def test_progress_starts_anew_until_a_pass_is_complete() -> None:
    counts = RecoveryCounts(progress=7)
    counts.begin_full_pass()
    assert counts.progress == 0
    counts.progress = 5
    counts.end_full_pass(complete=False)
    counts.begin_full_pass()
    assert (counts.progress, counts.passed) == (0, False)
    counts.progress = 9
    counts.end_full_pass(complete=True)
    counts.begin_full_pass()
    assert counts == replace(counts, progress=9, passed=True, passing=False)
