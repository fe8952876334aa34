"""What every changelog must do: the sentences of `ChangeLog`, one by one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import anyio
import pytest

from changelog.base.errors import UnavailableError
from changelog.base.runtime import Runtime
from changelog.change import LEGACY_OWNER, LOG_PREFIX, Change, ChangeId, Entry, Unreadable, encode
from changelog.key_values import NOTE_BYTES_MAX, REMOVED_AGE_MAX_MS, VALUE_BYTES_MAX, VALUE_KEY_BYTES_MAX, VERSION_MAX, ValuePage
from changelog.lease import SET_BACK_MS, EntryState, Renewal, entry_state
from changelog.log import ChangeLog, GarbageCollection, KeyRange

pytestmark = pytest.mark.anyio

EVERYTHING = KeyRange(LOG_PREFIX, "~changelog0")
EXPIRY_MS = 30_000
LATER_MS = 3_600_000
T = TypeVar("T")
Plant = Callable[[ChangeLog, str, bytes], Awaitable[None]]
"""Puts bytes into a log, under a key, that no call of this software writes; beaten just now."""


@pytest.fixture
def log(changelog: ChangeLog) -> ChangeLog:
    return changelog


def some_change(runtime: Runtime) -> Change:
    change_id = ChangeId.new(runtime)
    path = "notes/org.1/objects/kéy ☃"
    return Change(change_id, path, f"{path}/{change_id}", path, "session/1", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")


async def recorded(log: ChangeLog, runtime: Runtime, count: int, owner: str = "me") -> list[Entry]:
    """So many new entries, in key order."""
    return sorted([await log.record(some_change(runtime), owner) for _ in range(count)], key=lambda entry: entry.key)


async def stale(log: ChangeLog, now_ms: int, within: KeyRange = EVERYTHING) -> list[Entry | Unreadable]:
    page = await log.stale(within, now_ms, EXPIRY_MS, 1000)
    assert page.next_start is None
    return list(page.entries)


async def beat(log: ChangeLog, entry: Entry) -> int:
    """The last heartbeat (ms) of an entry that is in the log."""
    stored = await log.read(entry.change.id)
    assert stored == entry and isinstance(stored, Entry)
    return stored.heartbeat_ms


def only(items: list[T]) -> T:
    (item,) = items
    return item


# --- the owner's life --------------------------------------------------------------------------------


async def test_a_recorded_entry_is_read_as_it_was_recorded(log: ChangeLog, runtime: Runtime) -> None:
    change = some_change(runtime)
    entry = await log.record(change, "me")
    assert (entry.change, entry.owner, entry.attempt, entry.cleanup_after_ms, entry.stuck) == (change, "me", 0, None, None)
    assert entry.key == change.id.row_key()
    assert await log.read(change.id) == entry
    assert (await log.entries("", 10)).entries == (entry,)


# --- an entry that is assembling ---------------------------------------------------------------------


def an_open_one(runtime: Runtime, cleanup_after_ms: int | None = LATER_MS) -> Entry:
    change = some_change(runtime)
    return Entry(change, change.id.row_key(), "", 0, cleanup_after_ms, assembling='{"text":"of the tier ☃"}')


async def test_an_entry_is_opened_once_and_read_as_it_was(log: ChangeLog, runtime: Runtime) -> None:
    entry = an_open_one(runtime)
    assert await log.open(entry)
    assert await log.read(entry.change.id) == entry
    assert not await log.open(replace(entry, owner="another"))
    assert await log.read(entry.change.id) == entry
    recorded_before = await log.record(some_change(runtime), "me")
    assert not await log.open(replace(recorded_before, assembling="x"))
    assert await log.read(recorded_before.change.id) == recorded_before


async def test_an_open_entry_is_amended_only_as_it_was_read(log: ChangeLog, runtime: Runtime) -> None:
    entry = an_open_one(runtime)
    assert await log.open(entry)
    mine = replace(entry, owner="me", attempt=1, assembling="mine", change=replace(entry.change, old="another"))
    theirs = replace(entry, owner="they", attempt=1)
    assert await log.amend(entry, mine)
    assert not await log.amend(entry, theirs)
    assert not await log.amend(entry, entry)
    assert await log.read(entry.change.id) == mine
    assert await log.amend(mine, replace(entry, attempt=1))
    await log.forget(entry)
    assert not await log.amend(replace(entry, attempt=1), mine)
    assert await log.read(entry.change.id) is None


async def test_a_claim_of_an_open_entry_ends_that_for_ever(log: ChangeLog, runtime: Runtime) -> None:
    entry = an_open_one(runtime)
    assert await log.open(entry)
    tried = replace(entry, owner="me", attempt=7)
    assert await log.amend(entry, tried)
    assert await log.claim(entry, "recovery") is None
    claimed = await log.claim(tried, "recovery")
    assert claimed is not None
    assert (claimed.owner, claimed.attempt, claimed.cleanup_after_ms, claimed.assembling) == ("recovery", 1, None, None)
    assert await log.read(entry.change.id) == claimed
    assert not await log.amend(tried, entry)
    assert await log.release(claimed)
    again = await log.claim(claimed.released(None), "another")
    assert again is not None and again.attempt == 1


async def test_an_open_entry_is_stale_when_its_time_is_over_however_often_it_was_tried(log: ChangeLog, runtime: Runtime) -> None:
    now_ms = await log.now_ms()
    entry = an_open_one(runtime, now_ms + LATER_MS)
    assert await log.open(entry)
    assert await stale(log, now_ms) == [] == await stale(log, now_ms + LATER_MS - 1)
    assert await stale(log, now_ms + LATER_MS + 1) == [entry]
    tried = replace(entry, owner="me", attempt=1000)
    assert await log.amend(entry, tried)
    assert await stale(log, now_ms + LATER_MS - 1) == []
    assert await stale(log, now_ms + LATER_MS + EXPIRY_MS) == [tried]
    found = only(await stale(log, now_ms + LATER_MS + EXPIRY_MS))
    assert entry_state(found, now_ms + LATER_MS + EXPIRY_MS, EXPIRY_MS, attempts_max=1) is EntryState.CLAIMABLE


async def test_an_operator_parks_an_open_entry_and_retries_it_as_it_was(log: ChangeLog, runtime: Runtime) -> None:
    entry = an_open_one(runtime)
    assert await log.open(entry)
    tried = replace(entry, owner="me", attempt=3)
    assert await log.amend(entry, tried)
    assert await log.park(tried, "look at it")
    stuck = await log.read(entry.change.id)
    assert isinstance(stuck, Entry) and stuck.stuck is not None
    assert await log.retry(stuck)
    assert await log.read(entry.change.id) == tried, "an earlier value never comes back"


async def test_a_change_that_was_never_recorded_is_none(log: ChangeLog, runtime: Runtime) -> None:
    await recorded(log, runtime, 3)
    assert await log.read(ChangeId.new(runtime)) is None


async def test_recording_twice_is_recording_once(log: ChangeLog, runtime: Runtime) -> None:
    change = some_change(runtime)
    first = await log.record(change, "me")
    beat_ms = await beat(log, first)
    again = await log.record(change, "me")
    assert again == first and await beat(log, again) >= beat_ms
    assert (await log.entries("", 10)).entries == (again,)
    assert await log.renew([first]) == [Renewal.RENEWED]


async def test_recording_again_does_not_take_an_entry_back_from_its_claimer(log: ChangeLog, runtime: Runtime) -> None:
    change = some_change(runtime)
    claimed = await log.claim(await log.record(change, "me"), "recovery")
    assert claimed is not None
    with pytest.raises(UnavailableError):
        await log.record(change, "me")
    assert await log.read(change.id) == claimed


async def test_many_entries_recorded_at_once_are_all_there(log: ChangeLog, runtime: Runtime) -> None:
    changes = [some_change(runtime) for _ in range(64)]
    async with anyio.create_task_group() as tasks:
        for change in changes:
            tasks.start_soon(log.record, change, "me")
    entries = (await log.entries("", 100)).entries
    assert {entry.change for entry in entries if isinstance(entry, Entry)} == set(changes) and len(entries) == 64


async def test_renewing_beats_once_for_each_entry_and_tells_in_order(log: ChangeLog, runtime: Runtime) -> None:
    mine, claimed, forgotten, released, last = [await log.record(some_change(runtime), "me") for _ in range(5)]
    assert await log.claim(claimed, "recovery") is not None
    await log.forget(forgotten)
    assert await log.release(released)
    assert await log.renew([mine, claimed, forgotten, released, last]) == [
        Renewal.RENEWED, Renewal.NOT_YOURS, Renewal.NOT_YOURS, Renewal.NOT_YOURS, Renewal.RENEWED,
    ]
    assert await log.renew([]) == []


async def test_a_renewed_entry_has_a_fresh_heartbeat_and_is_otherwise_the_same(log: ChangeLog, runtime: Runtime) -> None:
    entry = await log.record(some_change(runtime), "me")
    for _ in range(2):
        before_ms = await log.now_ms()
        assert await log.renew([entry]) == [Renewal.RENEWED]
        assert before_ms <= await beat(log, entry) <= await log.now_ms()


async def test_renewing_never_recreates_a_forgotten_entry(log: ChangeLog, runtime: Runtime) -> None:
    entry = await log.record(some_change(runtime), "me")
    await log.forget(entry)
    assert await log.renew([entry]) == [Renewal.NOT_YOURS]
    assert await log.read(entry.change.id) is None


async def test_forgetting_removes_the_entry_whoever_holds_it_and_may_be_repeated(log: ChangeLog, runtime: Runtime) -> None:
    entry, other = await recorded(log, runtime, 2)
    assert await log.claim(entry, "recovery") is not None
    for _ in range(2):
        await log.forget(entry)
        assert (await log.entries("", 10)).entries == (other,)


async def test_the_servers_time_runs_with_its_heartbeats(log: ChangeLog, runtime: Runtime) -> None:
    before_ms = await log.announce("me")
    entry = await log.record(some_change(runtime), "me")
    after_ms = await log.announce("me")
    assert before_ms <= await beat(log, entry) <= after_ms
    assert (await log.entries("", 10)).entries == (entry,), "a presence row is no entry"


# --- giving up ---------------------------------------------------------------------------------------


async def test_a_released_entry_is_stale_at_once_though_it_beat_just_now(log: ChangeLog, runtime: Runtime) -> None:
    entry = await log.record(some_change(runtime), "me")
    assert await log.release(entry)
    found = only(await stale(log, await log.now_ms()))
    assert isinstance(found, Entry) and (found.owner, found.attempt, found.cleanup_after_ms) == ("", 0, None)


async def test_an_entry_that_waits_is_stale_once_the_servers_clock_passes(log: ChangeLog, runtime: Runtime) -> None:
    entry = await log.record(some_change(runtime), "me")
    now_ms = await log.now_ms()
    assert await log.release(entry, now_ms + LATER_MS)
    assert await stale(log, now_ms) == await stale(log, now_ms + LATER_MS - 1) == []
    found = only(await stale(log, now_ms + LATER_MS))
    assert isinstance(found, Entry) and found.cleanup_after_ms == now_ms + LATER_MS


async def test_releasing_what_is_not_ours_changes_nothing(log: ChangeLog, runtime: Runtime) -> None:
    claimed, forgotten = await recorded(log, runtime, 2)
    held = await log.claim(claimed, "recovery")
    await log.forget(forgotten)
    assert await log.release(claimed) is False
    assert await log.release(forgotten) is False
    assert (await log.entries("", 10)).entries == (held,)


# --- stale -------------------------------------------------------------------------------------------


async def test_an_entry_is_stale_when_nobody_renewed_it_for_longer_than_the_expiry(log: ChangeLog, runtime: Runtime) -> None:
    entry = await log.record(some_change(runtime), "me")
    beat_ms = await beat(log, entry)
    assert await stale(log, beat_ms) == await stale(log, beat_ms + EXPIRY_MS) == []
    assert await stale(log, beat_ms + EXPIRY_MS + 1) == [entry]


async def test_a_heartbeat_far_ahead_is_stale_because_the_clock_was_set_back(log: ChangeLog, runtime: Runtime) -> None:
    entry = await log.record(some_change(runtime), "me")
    beat_ms = await beat(log, entry)
    assert await stale(log, beat_ms - SET_BACK_MS) == []
    assert await stale(log, beat_ms - SET_BACK_MS - 1) == [entry]


async def test_stale_entries_come_in_key_order_page_by_page(log: ChangeLog, runtime: Runtime) -> None:
    entries = await recorded(log, runtime, 7)
    now_ms = await log.now_ms() + LATER_MS
    for limit in (1, 3, 7, 8):
        found: list[Entry | Unreadable] = []
        start: str | None = LOG_PREFIX
        while start is not None:
            page = await log.stale(KeyRange(start, EVERYTHING.end), now_ms, EXPIRY_MS, limit)
            assert len(page.entries) <= limit and (page.next_start is None or page.next_start > start)
            found += page.entries
            start = page.next_start
        assert found == entries


async def test_a_page_of_stale_entries_is_not_filled_by_others(log: ChangeLog, runtime: Runtime) -> None:
    """However many are held, parked or wait in front of it, the one stale entry is on the first page."""
    entries = await recorded(log, runtime, 13)
    now_ms = await log.now_ms()
    for index, entry in enumerate(entries[:12]):
        if index % 3 == 0:
            assert await log.park(entry, "parked")
        elif index % 3 == 1:
            assert await log.release(entry, now_ms + LATER_MS)
    assert await log.release(entries[12])
    page = await log.stale(EVERYTHING, now_ms, EXPIRY_MS, 1)
    assert [entry.key for entry in page.entries] == [entries[12].key] and page.next_start is None


async def test_the_ranges_hold_every_entry_once_wherever_older_software_put_it(log: ChangeLog, runtime: Runtime) -> None:
    entries = await recorded(log, runtime, 64, owner="")
    ranges = sorted(log.ranges(), key=lambda within: within.start)
    assert ranges[0].start <= LOG_PREFIX and ranges[-1].end >= EVERYTHING.end
    assert all(one.end == following.start for one, following in pairwise(ranges))
    now_ms = await log.now_ms()
    found = [entry.key for within in ranges for entry in await stale(log, now_ms, within)]
    assert found == [entry.key for entry in entries]


async def test_ranges_since_a_time_hold_the_entries_of_changes_made_since(log: ChangeLog, runtime: Runtime) -> None:
    entries = await recorded(log, runtime, 64, owner="")
    now_ms = await log.now_ms()
    for back_ms in (-LATER_MS, 0, LATER_MS):
        for cut in (entries[0], entries[31], entries[63]):
            since_ms = cut.change.id.created_ms - back_ms
            parts = sorted((within.since(since_ms) for within in log.ranges()), key=lambda within: within.start)
            found = [entry.key for within in parts for entry in await stale(log, now_ms, within)]
            assert found == [entry.key for entry in entries if entry.change.id.created_ms >= since_ms]


# --- claiming ----------------------------------------------------------------------------------------


async def test_a_claimed_entry_has_a_new_owner_one_more_attempt_and_a_fresh_heartbeat(log: ChangeLog, runtime: Runtime) -> None:
    entry = await log.record(some_change(runtime), "me")
    before_ms = await log.now_ms()
    claimed = await log.claim(entry, "recovery")
    assert claimed == replace(entry, owner="recovery", attempt=1)
    beat_ms = await beat(log, claimed)
    assert beat_ms >= before_ms and await stale(log, beat_ms) == []
    assert await log.renew([entry, claimed]) == [Renewal.NOT_YOURS, Renewal.RENEWED]


async def test_claiming_keeps_what_a_released_entry_waits_for(log: ChangeLog, runtime: Runtime) -> None:
    entry = await log.record(some_change(runtime), "me")
    assert await log.release(entry, 1)
    released = only(await stale(log, await log.now_ms()))
    assert isinstance(released, Entry)
    claimed = await log.claim(released, "recovery")
    assert claimed is not None and (claimed.cleanup_after_ms, claimed.attempt) == (1, 1)


async def test_of_many_that_claim_an_entry_exactly_one_gets_it(log: ChangeLog, runtime: Runtime) -> None:
    entry = await log.record(some_change(runtime), "me")
    won: list[Entry] = []

    async def claim(owner: str) -> None:
        if claimed := await log.claim(entry, owner):
            won.append(claimed)

    async with anyio.create_task_group() as tasks:
        for number in range(32):
            tasks.start_soon(claim, f"recovery-{number}")
    assert await log.read(entry.change.id) == only(won)


async def test_an_entry_is_claimed_from_its_claimer_when_that_one_died(log: ChangeLog, runtime: Runtime) -> None:
    entry: Entry | None = await log.record(some_change(runtime), "me")
    for attempt in (1, 2, 3):
        assert entry is not None
        entry = await log.claim(entry, f"recovery-{attempt}")
        assert entry is not None and entry.attempt == attempt


async def test_claiming_what_was_claimed_or_forgotten_is_a_lost_race(log: ChangeLog, runtime: Runtime) -> None:
    claimed, forgotten = await recorded(log, runtime, 2)
    held = await log.claim(claimed, "recovery-1")
    await log.forget(forgotten)
    assert await log.claim(claimed, "recovery-2") is None
    assert await log.claim(forgotten, "recovery-2") is None
    assert (await log.entries("", 10)).entries == (held,)


# --- parking -----------------------------------------------------------------------------------------


async def test_a_parked_entry_is_seen_by_operators_and_by_no_scan(log: ChangeLog, runtime: Runtime) -> None:
    entry, other = await recorded(log, runtime, 2)
    for error in ("the blob's name is not ours", "said again"):
        before_ms = await log.now_ms()
        assert await log.park(entry, error)
    now_ms = await log.now_ms()
    assert await stale(log, now_ms + LATER_MS) == [other]
    parked = only(list((await log.entries("", 10, stuck_only=True)).entries))
    assert isinstance(parked, Entry) and parked.stuck is not None
    assert parked.stuck.error == "said again" and before_ms <= parked.stuck.at_ms <= now_ms
    assert replace(parked, stuck=None) == entry
    assert await log.read(entry.change.id) == parked
    assert len((await log.entries("", 10)).entries) == 2


async def test_parking_what_changed_meanwhile_marks_nothing(log: ChangeLog, runtime: Runtime) -> None:
    claimed, forgotten = await recorded(log, runtime, 2)
    held = await log.claim(claimed, "recovery")
    await log.forget(forgotten)
    assert await log.park(claimed, "too late") is False
    assert await log.park(forgotten, "too late") is False
    assert (await log.entries("", 10)).entries == (held,)


async def test_a_retried_entry_is_stale_at_once_and_has_not_failed(log: ChangeLog, runtime: Runtime) -> None:
    entry: Entry | None = await log.record(some_change(runtime), "me")
    for number in range(3):
        assert entry is not None
        entry = await log.claim(entry, f"recovery-{number}")
    assert entry is not None and await log.park(entry, "failed 3 times")
    parked = only(list((await log.entries("", 10, stuck_only=True)).entries))
    assert await log.retry(parked) is True
    assert (await log.entries("", 10, stuck_only=True)).entries == ()
    retried = only(await stale(log, await log.now_ms()))
    assert isinstance(retried, Entry) and (retried.attempt, retried.stuck, retried.change) == (0, None, entry.change)
    assert await log.retry(parked) is False


async def test_retrying_what_is_not_stuck_does_not_take_it_from_its_owner(log: ChangeLog, runtime: Runtime) -> None:
    entry = await log.record(some_change(runtime), "me")
    assert await log.retry(entry) is False
    assert await log.renew([entry]) == [Renewal.RENEWED]


async def test_retrying_what_is_gone_recreates_nothing(log: ChangeLog, runtime: Runtime) -> None:
    entry = await log.record(some_change(runtime), "me")
    assert await log.park(entry, "parked")
    await log.forget(entry)
    assert await log.retry(entry) is False
    assert (await log.entries("", 10)).entries == ()


# --- for operators -----------------------------------------------------------------------------------


async def test_entries_are_listed_in_key_order_page_by_page(log: ChangeLog, runtime: Runtime) -> None:
    entries = await recorded(log, runtime, 8)
    stuck = [entry.key for entry in entries[1::2]]
    for entry in entries[1::2]:
        assert await log.park(entry, "parked")
    for stuck_only, expected in ((False, [entry.key for entry in entries]), (True, stuck)):
        for limit in (1, 3, 4, 8, 9):
            found: list[str] = []
            start: str | None = ""
            while start is not None:
                page = await log.entries(start, limit, stuck_only=stuck_only)
                assert len(page.entries) <= limit
                found += [entry.key for entry in page.entries]
                start = page.next_start
            assert found == expected


async def test_listings_while_entries_come_and_go_find_what_was_there_all_the_time_once_and_in_order(
    log: ChangeLog, runtime: Runtime
) -> None:
    keys = {entry.key for entry in await recorded(log, runtime, 8) if await log.release(entry)}
    assert len(keys) == 8

    done = anyio.Event()

    async def churn() -> None:
        while not done.is_set():
            for entry in await recorded(log, runtime, 4):
                await log.release(entry)
                await log.forget(entry)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(churn)
        for limit in (1, 3, 100):
            listed: list[str] = []
            due: list[str] = []
            start: str | None = ""
            while start is not None:
                page = await log.entries(start, limit)
                listed += [entry.key for entry in page.entries]
                start = page.next_start
            start, now_ms = EVERYTHING.start, await log.now_ms()
            while start is not None:
                page = await log.stale(KeyRange(start, EVERYTHING.end), now_ms, EXPIRY_MS, limit)
                due += [entry.key for entry in page.entries]
                start = page.next_start
            for found in (listed, due):
                assert found == sorted(set(found)) and keys <= set(found)
        done.set()


# --- what older or other software wrote --------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b"[]", b'{"v":null,"id":"notes/objects/k"}', b'{"v":1,"new":"x"}'])
async def test_an_unreadable_entry_is_stale_though_it_beat_just_now_and_can_be_parked(
    log: ChangeLog, plant: Plant, runtime: Runtime, raw: bytes
) -> None:
    change_id = ChangeId.new(runtime)
    await plant(log, change_id.row_key(), raw)
    found = only(await stale(log, await log.now_ms()))
    assert isinstance(found, Unreadable) and (found.key, found.raw) == (change_id.row_key(), raw) and found.key in found.error
    assert await log.read(change_id) == found
    assert await log.park(replace(found, raw=raw + b" "), "another value") is False
    assert await log.park(found, found.error) is True
    assert await stale(log, await log.now_ms()) == []
    parked = only(list((await log.entries("", 10, stuck_only=True)).entries))
    assert isinstance(parked, Unreadable) and parked.raw == raw and parked.stuck is not None and parked.stuck.error == found.error
    assert await log.retry(parked) is True
    assert await stale(log, await log.now_ms()) == [found]


async def test_an_entry_of_newer_software_is_nobodys_work_here_and_is_listed(log: ChangeLog, plant: Plant, runtime: Runtime) -> None:
    change_id = ChangeId.new(runtime)
    await plant(log, change_id.row_key(), b'{"v":2,"id":["notes","k"]}')
    assert await stale(log, await log.now_ms() + LATER_MS + EXPIRY_MS) == []
    found = await log.read(change_id)
    assert isinstance(found, Unreadable) and found.newer and "version 2" in found.error and "update" in found.error
    assert found in (await log.entries("", 10)).entries


async def test_an_unreadable_entry_does_not_block_the_others(log: ChangeLog, plant: Plant, runtime: Runtime) -> None:
    entries = await recorded(log, runtime, 4, owner="")
    await plant(log, f"{LOG_PREFIX}not a change", b"{}")
    found = await stale(log, await log.now_ms())
    assert [entry for entry in found if isinstance(entry, Entry)] == entries and len(found) == 5


@pytest.mark.parametrize("key", ["~changelog/{}", "~changelog/ff/{}"], ids=["no shard", "another number of shards"])
async def test_an_entry_under_another_key_is_found_claimed_and_forgotten(log: ChangeLog, plant: Plant, runtime: Runtime, key: str) -> None:
    change = Change(ChangeId.new(runtime), "notes/objects/k", None, "notes/objects/k")
    await plant(log, key.format(change.id), encode(Entry(change, "", "")))
    entry = await log.read(change.id)
    assert isinstance(entry, Entry) and (entry.change, entry.key) == (change, key.format(change.id))
    now_ms = await log.now_ms()
    assert [found for within in log.ranges() for found in await stale(log, now_ms, within)] == [entry]
    claimed = await log.claim(entry, "recovery")
    assert claimed is not None and claimed.key == entry.key and await log.renew([claimed]) == [Renewal.RENEWED]
    await log.forget(claimed)
    assert (await log.entries("", 10)).entries == ()


async def test_an_entry_of_older_software_can_be_claimed_and_parked(log: ChangeLog, plant: Plant, runtime: Runtime) -> None:
    """Its value has only `id`, `new` and `old`, so it is not what this software would write for it."""
    first, second = ChangeId.new(runtime), ChangeId.new(runtime)
    for change_id in (first, second):
        await plant(log, f"{LOG_PREFIX}{change_id}", b'{"id":"notes/objects/k", "old":"notes/objects/k", "new":null}')
    assert await stale(log, await log.now_ms()) == [], "held while it beats, though nobody is named"
    entries = await stale(log, await log.now_ms() + LATER_MS)
    assert [entry.owner for entry in entries if isinstance(entry, Entry)] == [LEGACY_OWNER, LEGACY_OWNER]
    claimed, parked = (entry for entry in entries if isinstance(entry, Entry))
    assert await log.claim(claimed, "recovery") is not None
    assert await log.claim(claimed, "another") is None
    assert await log.park(parked, "parked") is True
    assert [entry.key for entry in await stale(log, await log.now_ms() + LATER_MS)] == [claimed.key]


# --- presences and notes -----------------------------------------------------------------------------


async def test_presences_tell_who_announced_itself_and_when_last(log: ChangeLog, runtime: Runtime) -> None:
    assert list(await log.presences()) == []
    await log.announce("recovery-a")
    told = {"recovery-b/é": await log.announce("recovery-b/é"), "recovery-a": await log.announce("recovery-a")}
    assert dict(await log.presences()) == told and len(await log.presences()) == 2


async def test_the_time_that_is_asked_for_is_by_the_clock_that_dates_heartbeats(log: ChangeLog, runtime: Runtime) -> None:
    announced_ms = await log.announce("recovery")
    before_ms = await log.now_ms()
    entry = await log.record(some_change(runtime), "me")
    after_ms = await log.now_ms()
    assert announced_ms <= before_ms <= await beat(log, entry) <= after_ms <= await log.announce("recovery")


async def test_who_only_asks_for_the_time_is_no_presence(log: ChangeLog, runtime: Runtime) -> None:
    told = {"recovery": await log.announce("recovery")}
    assert await log.now_ms() >= told["recovery"]
    assert dict(await log.presences()) == told


async def test_presences_are_all_of_them_however_many(log: ChangeLog, runtime: Runtime) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(1_050):
            tasks.start_soon(log.announce, f"recovery-{number}")
    assert {instance for instance, _ in await log.presences()} == {f"recovery-{number}" for number in range(1_050)}


async def test_a_note_is_written_only_over_what_was_read(log: ChangeLog, runtime: Runtime) -> None:
    assert await log.read_note("a/b") is None
    assert await log.swap_note("a/b", b"1", b"2") is False and await log.read_note("a/b") is None
    assert await log.swap_note("a/b", None, b"1") is True
    assert await log.swap_note("a/b", None, b"2") is False
    assert await log.swap_note("a/b", b"0", b"2") is False and await log.read_note("a/b") == b"1"
    assert await log.swap_note("a/b", b"1", b"2") is True and await log.read_note("a/b") == b"2"
    assert await log.read_note("a") is None


async def test_writing_a_note_is_safe_to_repeat(log: ChangeLog, runtime: Runtime) -> None:
    for _ in range(2):
        assert await log.swap_note("a", None, b"1") is True
    for _ in range(2):
        assert await log.swap_note("a", b"1", b"2") is True
    assert await log.swap_note("a", None, b"1") is False and await log.read_note("a") == b"2"


async def test_of_many_that_write_a_note_over_the_same_value_exactly_one_does(log: ChangeLog, runtime: Runtime) -> None:
    assert await log.swap_note("a", None, b"first")
    won: list[bytes] = []

    async def swap(value: bytes) -> None:
        if await log.swap_note("a", b"first", value):
            won.append(value)

    async with anyio.create_task_group() as tasks:
        for number in range(16):
            tasks.start_soon(swap, b"%d" % number)
    assert await log.read_note("a") == only(won)


@pytest.mark.parametrize("value", [b"\0", bytes(range(256)), b"\xff" * NOTE_BYTES_MAX], ids=["zero", "all", "largest"])
async def test_a_note_holds_any_bytes(log: ChangeLog, runtime: Runtime, value: bytes) -> None:
    assert await log.swap_note("a", None, value) and await log.read_note("a") == value
    assert await log.swap_note("a", value[:-1] + b"?", b"?") is False
    assert await log.swap_note("a", value, b"next") and await log.read_note("a") == b"next"


@pytest.mark.parametrize("value", [b"", b"x" * (NOTE_BYTES_MAX + 1)], ids=["empty", "too large"])
async def test_a_note_that_cannot_be_kept_is_refused(log: ChangeLog, runtime: Runtime, value: bytes) -> None:
    with pytest.raises(ValueError, match="a note has"):
        await log.swap_note("a", None, value)
    assert await log.read_note("a") is None


async def test_no_scan_of_entries_shows_a_note(log: ChangeLog, runtime: Runtime) -> None:
    entry = await log.record(some_change(runtime), "me")
    assert await log.swap_note("a", None, b"1")
    assert (await log.entries("", 10)).entries == (entry,)
    assert await stale(log, await log.now_ms() + LATER_MS) == [entry]


# --- kept for the change feed ------------------------------------------------------------------------


async def kept(log: ChangeLog, within: KeyRange = EVERYTHING) -> list[Entry | Unreadable]:
    page = await log.kept(within, 1000)
    assert page.next_start is None
    return list(page.entries)


async def kept_since(log: ChangeLog, entry: Entry) -> int | None:
    """Since when the entry is kept (ms); None: it is not."""
    stored = await log.read(entry.change.id)
    assert isinstance(stored, Entry)
    return stored.kept_ms


async def test_a_kept_entry_is_no_work_and_stays_for_the_feed_until_it_is_forgotten(log: ChangeLog, runtime: Runtime) -> None:
    entry, other = await recorded(log, runtime, 2)
    before_ms = await log.now_ms()
    assert await log.keep(entry) is True
    now_ms = await log.now_ms()
    found = only(await kept(log))
    assert found == entry and isinstance(found, Entry) and found.stuck is None
    assert found.kept_ms is not None and before_ms <= found.kept_ms <= now_ms
    assert await stale(log, now_ms + LATER_MS) == [other]
    assert (await log.entries("", 10, stuck_only=True)).entries == ()
    listed = (await log.entries("", 10)).entries
    assert [each.kept_ms for each in listed] == [found.kept_ms if each == entry else None for each in listed] and len(listed) == 2
    await log.forget(found)
    assert await kept(log) == [] and (await log.entries("", 10)).entries == (other,)


async def test_keeping_is_safe_to_repeat(log: ChangeLog, runtime: Runtime) -> None:
    entry = await log.record(some_change(runtime), "me")
    for _ in range(2):
        assert await log.keep(entry) is True
    assert await kept(log) == [entry]


async def test_keeping_what_was_claimed_or_forgotten_changes_nothing(log: ChangeLog, runtime: Runtime) -> None:
    claimed, forgotten = await recorded(log, runtime, 2)
    held = await log.claim(claimed, "recovery")
    await log.forget(forgotten)
    assert await log.keep(claimed) is False
    assert await log.keep(forgotten) is False
    assert await kept(log) == [] and (await log.entries("", 10)).entries == (held,)
    assert held is not None and await log.keep(held) is True and await kept(log) == [held]


async def test_who_read_a_kept_entry_before_may_still_swap_it_and_it_stays_kept(log: ChangeLog, runtime: Runtime) -> None:
    """A renewal, a claim or a release may be under way when the entry is kept. So may a repeated `record`."""
    change = some_change(runtime)
    entry = await log.record(change, "me")
    assert await log.keep(entry)
    since_ms = await kept_since(log, entry)
    assert await log.record(change, "me") == entry
    assert await log.renew([entry]) == [Renewal.RENEWED]
    claimed = await log.claim(entry, "recovery")
    assert claimed is not None and await log.keep(entry) is False
    assert await kept(log) == [claimed] and await kept_since(log, claimed) == since_ms
    assert await log.release(claimed)
    released = only(await kept(log))
    assert isinstance(released, Entry) and (released.owner, released.kept_ms) == ("", since_ms)
    assert await stale(log, await log.now_ms() + LATER_MS) == []
    await log.forget(entry)
    assert await kept(log) == []


async def test_a_parked_entry_that_is_kept_is_stuck_no_more(log: ChangeLog, runtime: Runtime) -> None:
    entry = await log.record(some_change(runtime), "me")
    assert await log.park(entry, "parked")
    parked = await log.read(entry.change.id)
    assert await log.keep(entry) is True
    assert (await log.entries("", 10, stuck_only=True)).entries == () and await kept(log) == [entry]
    assert parked is not None and await log.retry(parked) is False and await kept(log) == [entry]


async def test_an_entry_that_was_kept_meanwhile_is_neither_parked_nor_retried(log: ChangeLog, runtime: Runtime) -> None:
    entry = await log.record(some_change(runtime), "me")
    assert await log.keep(entry)
    assert await log.park(entry, "too late") is False
    assert await log.retry(entry) is False
    assert await kept(log) == [entry]


async def test_what_was_read_as_kept_can_be_parked_and_then_retried(log: ChangeLog, runtime: Runtime) -> None:
    entry = await log.record(some_change(runtime), "me")
    assert await log.keep(entry)
    assert await log.park(only(await kept(log)), "its old blob is not its own") is True
    assert await kept(log) == []
    parked = only(list((await log.entries("", 10, stuck_only=True)).entries))
    assert parked.kept_ms is None and await log.retry(parked) is True
    retried = only(await stale(log, await log.now_ms()))
    assert isinstance(retried, Entry) and retried.change == entry.change


async def test_kept_entries_come_in_key_order_page_by_page_and_others_do_not_fill_a_page(log: ChangeLog, runtime: Runtime) -> None:
    entries = await recorded(log, runtime, 12)
    for index, entry in enumerate(entries):
        assert await (log.keep(entry) if index % 3 == 2 else log.park(entry, "parked") if index % 3 == 1 else log.release(entry))
    expected = [entry.key for entry in entries[2::3]]
    for limit in (1, 3, 4, 5):
        found: list[str] = []
        start: str | None = EVERYTHING.start
        while start is not None:
            page = await log.kept(KeyRange(start, EVERYTHING.end), limit)
            assert len(page.entries) <= limit and (page.next_start is None or page.next_start > start)
            found += [entry.key for entry in page.entries]
            start = page.next_start
        assert found == expected
    assert [entry.key for within in sorted(log.ranges(), key=lambda each: each.start) for entry in await kept(log, within)] == expected


# --- values ------------------------------------------------------------------------------------------

KEYS_IN_ORDER = ["a", "a\0", "a/b", "aé", "b", "é", "☃", "\uffff", "😀", "\U0010ffff"]
"""In byte order of UTF-8. UTF-16 has another order."""
DAY_MS = 24 * 3600 * 1000


async def test_of_each_key_the_value_of_the_highest_version_counts_whatever_comes_last(log: ChangeLog) -> None:
    assert dict(await log.read_values(["a", "b"])) == {}
    await log.write_values({"a": b"2", "b": b"2"}, 20)
    await log.write_values({"a": b"1", "c": b"1"}, 10)
    assert dict(await log.read_values(["c", "b", "a", "d", "a"])) == {"a": b"2", "b": b"2", "c": b"1"}
    for _ in range(2):
        await log.write_values({"a": b"3"}, 30)
    await log.write_values({"a": b"2"}, 20)
    assert dict(await log.read_values(["a"])) == {"a": b"3"}
    assert dict((await log.scan_values("a", "d", 10)).values) == {"a": b"3", "b": b"2", "c": b"1"}


async def test_what_was_removed_stays_removed_when_an_older_write_arrives(log: ChangeLog) -> None:
    await log.write_values({"a": b"1", "b": b"1"}, 10)
    await log.write_values({"a": None, "never": None}, 30)
    await log.write_values({"a": b"2", "never": b"2"}, 20)
    await log.write_values({"a": b"1"}, 10)
    assert dict(await log.read_values(["a", "b", "never"])) == {"b": b"1"}
    assert await log.scan_values("", "z", 10) == ValuePage({"b": b"1"}, None)
    await log.write_values({"a": b"4"}, 40)
    await log.write_values({"a": None}, 30)
    assert dict(await log.read_values(["a"])) == {"a": b"4"}


async def test_values_are_scanned_in_byte_order_of_their_keys_page_by_page(log: ChangeLog) -> None:
    await log.write_values({key: key.encode() for key in reversed(KEYS_IN_ORDER)}, 1)
    for limit in (1, 3, len(KEYS_IN_ORDER), 100):
        found: list[str] = []
        start: str | None = ""
        while start is not None:
            page = await log.scan_values(start, "\U0010ffff\0", limit)
            assert len(page.values) <= limit and all(value == key.encode() for key, value in page.values.items())
            found += page.values
            start = page.next_start
        assert found == KEYS_IN_ORDER
    assert list((await log.scan_values("a/b", "☃", 10)).values) == ["a/b", "aé", "b", "é"]
    for start, end in (("b", "b"), ("b", "a"), ("c", "d"), ("a", "")):
        assert await log.scan_values(start, end, 10) == ValuePage({}, None)


async def test_a_page_of_values_is_not_filled_by_removed_ones(log: ChangeLog) -> None:
    await log.write_values({f"{number:02}": b"x" for number in range(12)}, 1)
    await log.write_values({f"{number:02}": None for number in range(10)}, 2)
    assert await log.scan_values("", "z", 1) == ValuePage({"10": b"x"}, "11")
    assert await log.scan_values("", "z", 2) == ValuePage({"10": b"x", "11": b"x"}, None)


async def test_many_values_are_written_read_and_erased_by_one_call(log: ChangeLog) -> None:
    values = {f"{number:04}": b"%d" % number for number in range(1_100)}
    await log.write_values(values, 5)
    assert dict(await log.read_values(list(values))) == values
    await log.erase_values([key for key in values if key != "0007"])
    assert await log.scan_values("", "z", 2_000) == ValuePage({"0007": b"7"}, None)
    await log.erase_values(["0007", "0008"])
    assert dict(await log.read_values(list(values))) == {}
    await log.write_values({"0007": b"again"}, 1)
    assert dict(await log.read_values(["0007"])) == {"0007": b"again"}, "an erased key remembers no version"


async def test_no_keys_mean_nothing_and_not_everything(log: ChangeLog, runtime: Runtime) -> None:
    entry = await log.record(some_change(runtime), "me")
    await log.write_values({"a": b"1"}, 1)
    assert dict(await log.read_values([])) == {}
    await log.write_values({}, 2)
    await log.erase_values([])
    assert dict(await log.read_values(["a"])) == {"a": b"1"} and await log.read(entry.change.id) == entry


async def test_values_notes_entries_and_presences_do_not_appear_among_each_other(log: ChangeLog, runtime: Runtime) -> None:
    entry, done = await recorded(log, runtime, 2)
    assert await log.keep(done)
    seen_ms = await log.announce("recovery")
    names = [entry.key, done.key, "recovery", "~daemon/recovery", "~notes/n", "n"]
    await log.write_values(dict.fromkeys(names, b"value"), seen_ms)
    assert await log.swap_note("n", None, b"note")
    assert set((await log.scan_values("", "\U0010ffff", 10)).values) == set(names)
    assert await log.read_note("n") == b"note" and dict(await log.read_values(["n"])) == {"n": b"value"}
    assert (await log.entries("", 10)).entries == (entry, done) and await kept(log) == [done]
    assert await stale(log, seen_ms + LATER_MS) == [entry]
    assert dict(await log.presences()) == {"recovery": seen_ms}
    await log.erase_values(names)
    assert await log.read_note("n") == b"note" and (await log.entries("", 10)).entries == (entry, done)
    await log.forget(done)
    assert await log.scan_values("", "\U0010ffff", 10) == ValuePage({}, None)


@pytest.mark.parametrize("value", [b"\0", b"\0x", bytes(range(256)), b"\xff" * VALUE_BYTES_MAX], ids=["zero", "zeros", "all", "largest"])
async def test_a_value_holds_any_bytes_under_the_longest_key(log: ChangeLog, value: bytes) -> None:
    key = "é" * (VALUE_KEY_BYTES_MAX // 2)
    await log.write_values({key: value}, VERSION_MAX)
    assert dict(await log.read_values([key])) == {key: value}
    assert await log.scan_values("", "ê", 1) == ValuePage({key: value}, None)


@pytest.mark.parametrize(
    ("key", "value", "version"),
    [
        ("a", b"", 1), ("a", b"x" * (VALUE_BYTES_MAX + 1), 1), ("", b"x", 1), ("a" * (VALUE_KEY_BYTES_MAX + 1), b"x", 1), ("a", b"x", 0),
        ("a", None, 0), ("a", b"x", VERSION_MAX + 1), ("\ud800", b"x", 1),
    ],
    ids=["empty", "too large", "no key", "long key", "no version", "no version of a removal", "high version", "no Unicode"],
)  # fmt: skip
async def test_a_value_that_cannot_be_kept_is_refused_with_all_of_its_call(
    log: ChangeLog, key: str, value: bytes | None, version: int
) -> None:
    with pytest.raises(ValueError, match=r"value|surrogates"):
        await log.write_values({"good": b"1", key: value}, version)
    assert await log.scan_values("", "z", 10) == ValuePage({}, None)


async def test_a_removed_value_is_remembered_for_days_and_then_collected_so_many_at_a_time(log: ChangeLog, runtime: Runtime) -> None:
    assert isinstance(log, GarbageCollection)
    now_ms = await log.now_ms()
    old_ms, lately_ms = now_ms - REMOVED_AGE_MAX_MS - DAY_MS, now_ms - REMOVED_AGE_MAX_MS + DAY_MS
    await log.write_values({f"old/{number}": None for number in range(5)}, old_ms)
    await log.write_values({"stays": b"1"}, old_ms)
    await log.write_values({"lately": None}, lately_ms)
    assert [await log.collect(2) for _ in range(4)] == [2, 2, 1, 0]
    await log.write_values({"old/3": b"back", "lately": b"late", "stays": b"late"}, old_ms - 1)
    assert await log.scan_values("", "z", 10) == ValuePage({"old/3": b"back", "stays": b"1"}, None)
