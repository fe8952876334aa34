"""The changelog in Bigtable, cell by cell: what is written, whose version counts, and requests that land late."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import anyio
import pytest
from google.cloud.bigtable_v2.types import RowFilter

from changelog.base.errors import ConfigurationError, LeaseLostError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import DELETE_ROW, NEWEST, BigtableTable, KeySpan, insecure_channel, set_cell
from changelog.bigtable.log import BigtableChangeLog
from changelog.change import LOG_PREFIX, Change, ChangeId, Entry, Unreadable, encode
from changelog.key_values import PORTION_KEYS, ValuePage
from changelog.lease import Renewal
from changelog.log import KeyRange
from emulators.bigtable.emulator import provision, start_bigtable
from emulators.bigtable.memory import MemoryBigtable, MemoryChannel
from emulators.world.runtime import SimulatedRuntime
from tiered.bigtable.rows import BigtableRows
from tiered.provision.schema import FAMILIES
from tiered.services.backends import Tombstone

pytestmark = pytest.mark.anyio

RUNTIME = SystemRuntime()
PATH = "notes/org.1/objects/k"
EVERYTHING = KeyRange(LOG_PREFIX, "~changelog0")
EXPIRY_MS, LATER_MS = 30_000, 3_600_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def table(anyio_backend: str, fresh_table: Callable[[], AbstractAsyncContextManager[BigtableTable]]) -> AsyncIterator[BigtableTable]:
    async with fresh_table() as table:
        yield table


@pytest.fixture
def log(table: BigtableTable) -> BigtableChangeLog:
    return BigtableChangeLog(table, RUNTIME)


def some_change() -> Change:
    change_id = ChangeId.new(RUNTIME)
    return Change(change_id, PATH, f"{PATH}/{change_id}", None, "session/1")


async def cells(table: BigtableTable, key: str) -> list[tuple[bytes, bytes, bool]]:
    """(column, value, whether it is dated 0), all versions of them."""
    row = await table.read(key.encode(), RowFilter.pb()(pass_all_filter=True))
    return [] if row is None else [(cell.column, cell.value, cell.timestamp_us == 0) for cell in row.cells]


async def test_an_entry_is_one_cell_however_often_it_is_written(table: BigtableTable, log: BigtableChangeLog) -> None:
    change = some_change()
    entry = await log.record(change, "me")
    assert entry.key == change.id.row_key() and await cells(table, entry.key) == [(b"c", encode(entry), False)]
    await RUNTIME.sleep(0.002)
    assert await log.renew([entry, entry]) == [Renewal.RENEWED] * 2
    claimed = await log.claim(entry, "recovery")
    assert claimed is not None and await cells(table, entry.key) == [(b"c", encode(claimed), False)]


@pytest.mark.parametrize("claimer", ["a", "me", "z"], ids=["sorts before", "only its attempt differs", "sorts after"])
async def test_recording_again_never_overwrites_a_claim(table: BigtableTable, log: BigtableChangeLog, claimer: str) -> None:
    change = some_change()
    claimed = await log.claim(await log.record(change, "me"), claimer)
    assert claimed is not None
    with pytest.raises(LeaseLostError, match=change.id):
        await log.record(change, "me")
    assert await cells(table, claimed.key) == [(b"c", encode(claimed), False)]


async def test_what_has_no_owner_is_dated_0_until_it_is_claimed(table: BigtableTable, log: BigtableChangeLog) -> None:
    entry = await log.record(some_change(), "me")
    assert await log.release(entry, 5)
    released = entry.released(5)
    assert await cells(table, entry.key) == [(b"c", encode(released), True)]
    claimed = await log.claim(released, "recovery")
    assert claimed is not None and await cells(table, entry.key) == [(b"c", encode(claimed), False)]


async def test_parking_adds_a_cell_that_is_dated_by_the_server_and_leaves_the_entry(table: BigtableTable, log: BigtableChangeLog) -> None:
    entry = await log.record(some_change(), "me")
    assert await log.park(entry, "it has no end")
    parked = await log.read(entry.change.id)
    assert isinstance(parked, Entry) and parked.stuck is not None and replace(parked, stuck=None) == entry
    (_, value, _), (column, state, _) = await cells(table, entry.key)
    assert (column, value) == (b"s", encode(entry)) and state.startswith(b'{"state":"stuck","error":"it has no end","at":')
    row = await table.read(entry.key.encode())
    assert row is not None and row.cells[1].timestamp_us == parked.stuck.at_ms * 1000


async def test_an_entry_kept_as_done_is_no_work(table: BigtableTable, log: BigtableChangeLog) -> None:
    entry = await log.record(some_change(), "")
    await table.mutate(entry.key.encode(), set_cell("fc", b"s", b'{"state":"done"}'))
    assert (await log.stale(EVERYTHING, await log.now_ms(), EXPIRY_MS, 10)).entries == ()
    assert (await log.entries("", 10)).entries == (entry,) == (await log.kept(EVERYTHING, 10)).entries


async def test_keeping_adds_a_cell_that_is_dated_by_the_server_and_leaves_the_entry(table: BigtableTable, log: BigtableChangeLog) -> None:
    entry = await log.record(some_change(), "me")
    for _ in range(2):
        assert await log.keep(entry)
    assert await cells(table, entry.key) == [(b"c", encode(entry), False), (b"s", b'{"state":"done"}', False)]
    row, found = await table.read(entry.key.encode()), await log.read(entry.change.id)
    assert row is not None and found is not None and found.kept_ms == row.cells[1].timestamp_us // 1000


async def test_a_first_record_that_lands_over_a_kept_entry_leaves_it_kept_and_after_it_was_forgotten_makes_work(
    table: BigtableTable, log: BigtableChangeLog
) -> None:
    """Its caller never had its answer, recorded again, and went on."""
    change = some_change()
    first = Entry(change, change.id.row_key(), "me")
    claimed = await log.claim(await log.record(change, "me"), "recovery")
    assert claimed is not None and await log.keep(claimed)
    late = set_cell("fc", b"c", encode(first))
    await RUNTIME.sleep(0.002)
    await table.mutate(first.key.encode(), late)
    assert (await log.kept(EVERYTHING, 10)).entries == (first,) and await log.keep(claimed) is False
    assert (await log.stale(EVERYTHING, await log.now_ms() + LATER_MS, EXPIRY_MS, 10)).entries == ()
    await log.forget(first)
    await table.mutate(first.key.encode(), late)
    assert (await log.stale(EVERYTHING, await log.now_ms() + LATER_MS, EXPIRY_MS, 10)).entries == (first,)


async def test_a_kept_entry_that_cannot_be_read_can_be_parked_among_good_ones(table: BigtableTable, log: BigtableChangeLog) -> None:
    good, bad = [await log.record(some_change(), "me") for _ in range(2)]
    for entry in (good, bad):
        assert await log.keep(entry)
    await RUNTIME.sleep(0.002)
    await table.mutate(bad.key.encode(), set_cell("fc", b"c", b"{"))
    found = {entry.key: entry for entry in (await log.kept(EVERYTHING, 10)).entries}
    unreadable = found[bad.key]
    assert found[good.key] == good and isinstance(unreadable, Unreadable) and unreadable.kept_ms is not None
    assert await log.park(unreadable, unreadable.error) is True
    assert (await log.kept(EVERYTHING, 10)).entries == (good,)
    assert [entry.key for entry in (await log.entries("", 10, stuck_only=True)).entries] == [bad.key]


async def test_a_value_is_dated_by_its_version_and_an_older_one_is_hidden_though_not_collected(
    table: BigtableTable, log: BigtableChangeLog
) -> None:
    for value, version in ((b"2", 2), (b"1", 1), (None, 4), (b"3", 3)):
        await log.write_values({"é": value}, version)
    row = await table.read("~values/é".encode(), RowFilter.pb()(pass_all_filter=True))
    assert row is not None and (row.cells[0].column, row.cells[0].timestamp_us, row.cells[0].value) == (b"v", 4_000, b"")
    assert await log.read_values(["é"]) == {} and (await log.scan_values("", "z", 10)).values == {}


async def test_collecting_older_versions_brings_no_older_value_back() -> None:
    runtime = SimulatedRuntime(1)
    server = MemoryBigtable(runtime, {"table": FAMILIES})
    log = BigtableChangeLog(BigtableTable(MemoryChannel(server), "table"), runtime)
    for value, version in ((b"1", 1), (b"3", 3), (b"2", 2)):
        await log.write_values({"stays": value, "goes": None if version == 3 else value}, version)
    for share in (0.5, 1.0):
        server.collect(runtime.random, share)
        assert await log.read_values(["stays", "goes"]) == {"stays": b"3"}
    assert [len(cells) for cells in server.tables["table"].rows.values()] == [1, 1]


async def test_a_value_whose_key_is_no_text_does_not_hide_the_others(
    table: BigtableTable, log: BigtableChangeLog, caplog: pytest.LogCaptureFixture
) -> None:
    await log.write_values({"a": b"1", "z": b"1"}, 1)
    await table.mutate(b"~values/b\xff", set_cell("fc", b"v", b"1", 1000))
    assert (await log.scan_values("", "zz", 2)) == ValuePage({"a": b"1", "z": b"1"}, None)
    assert (await log.scan_values("", "zz", 1)) == ValuePage({"a": b"1"}, "z") and "unreadable_key" in caplog.text


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ([None, UnavailableError("turned away")], UnconfirmedError), ([UnavailableError("turned away")] * 2, UnavailableError),
        ([UnavailableError("turned away"), UnconfirmedError("lost")], UnconfirmedError),
        ([ConfigurationError("may not")] * 2, ConfigurationError),
    ],
    ids=["one of two", "none", "who knows", "not allowed"],
)  # fmt: skip
async def test_values_that_were_written_in_part_are_unconfirmed_and_safe_to_write_again(
    table: BigtableTable, log: BigtableChangeLog, monkeypatch: pytest.MonkeyPatch, told: list[Exception | None], error: type[Exception]
) -> None:
    async def in_part(rows: Any) -> Any:
        return told

    with monkeypatch.context() as during:
        during.setattr(table, "mutate_rows", in_part)
        with pytest.raises(error):
            await log.write_values({"a": b"1", "b": b"1"}, 1)
    await log.write_values({"a": b"1", "b": b"1"}, 1)
    assert await log.read_values(["a", "b"]) == {"a": b"1", "b": b"1"}


async def test_in_one_table_no_scan_of_rows_shows_what_the_log_keeps(table: BigtableTable, log: BigtableChangeLog) -> None:
    rows = BigtableRows(table, RUNTIME)
    entry = await log.record(some_change(), "me")
    assert await log.keep(entry) and await log.swap_note("feed", None, b"1")
    await log.write_values({"a": b"1", PATH: b"1"}, 1)
    change = some_change()
    assert await rows.swap(PATH, change.id, None, Tombstone(str(change.new)), RUNTIME.boot_time() + 60.0)
    page = await rows.redirects(b"", None, 10)
    assert [path for path, _, _ in page.redirects] == [PATH] and not page.corrupt
    listed = await rows.scan("", b"", 10)
    assert [row.path for row in listed.rows] == [PATH] and not listed.corrupt


async def test_of_several_versions_only_the_newest_counts(table: BigtableTable, log: BigtableChangeLog) -> None:
    """Whoever does not delete what he replaces leaves versions behind until they are collected."""
    change = some_change()
    old, now = Entry(change, change.id.row_key(), "me"), Entry(change, change.id.row_key(), "recovery", 1)
    now_ms = await log.now_ms()
    for entry, at_ms in ((old, now_ms - LATER_MS), (now, now_ms)):
        await table.mutate(entry.key.encode(), set_cell("fc", b"c", encode(entry), at_ms * 1000))
    assert await log.renew([old]) == [Renewal.NOT_YOURS]
    assert await log.claim(old, "another") is None
    assert (await log.stale(EVERYTHING, now_ms, EXPIRY_MS, 10)).entries == ()
    read = await log.read(change.id)
    assert isinstance(read, Entry) and read == now and read.heartbeat_ms == now_ms
    assert await log.renew([now]) == [Renewal.RENEWED]
    assert await cells(table, now.key) == [(b"c", encode(now), False)]


async def test_a_scan_for_stale_entries_is_not_sent_those_that_beat(
    table: BigtableTable, log: BigtableChangeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    real = table.read_bulk

    async def noted(*arguments: Any) -> Any:
        found = await real(*arguments)
        sent.append(found[0].rows)
        return found

    monkeypatch.setattr(table, "read_bulk", noted)
    entries = [await log.record(some_change(), "me") for _ in range(20)]
    assert await log.release(entries[7])
    page = await log.stale(EVERYTHING, await log.now_ms(), EXPIRY_MS, 10)
    assert [entry.key for entry in page.entries] == [entries[7].key] and sent == [1, 0]


async def test_long_ranges_are_read_by_bounded_requests(table: BigtableTable, log: BigtableChangeLog) -> None:
    entries = sorted([await log.record(some_change(), "") for _ in range(250)], key=lambda entry: entry.key)
    for entry in entries[:240]:
        assert await log.park(entry, "parked")
    page = await log.stale(EVERYTHING, await log.now_ms(), EXPIRY_MS, 4)
    assert list(page.entries) == entries[240:244] and page.next_start == entries[244].key
    assert len((await log.entries("", 300)).entries) == 250


async def test_the_servers_time_is_told_by_one_call_and_never_goes_back(table: BigtableTable, log: BigtableChangeLog) -> None:
    told = [await log.announce("daemon-1") for _ in range(3)]
    assert told == sorted(told) and abs(told[-1] * 1_000_000 - RUNTIME.wall_ns()) < 60e9
    row = await table.read(b"~daemon/daemon-1")
    assert row is not None and [cell.timestamp_us // 1000 for cell in row.cells] == told[-1:]


async def test_who_asks_for_the_time_writes_a_row_that_earlier_software_takes_for_nobody_too(
    table: BigtableTable, log: BigtableChangeLog
) -> None:
    told = [await log.now_ms() for _ in range(3)]
    assert told == sorted(told) and abs(told[-1] * 1_000_000 - RUNTIME.wall_ns()) < 60e9
    row = await table.read(b"~daemon/~clock")
    assert row is not None and [cell.timestamp_us // 1000 for cell in row.cells] == told[-1:]
    assert list(await log.presences()) == []


async def test_each_call_costs_as_many_requests_as_the_module_says(
    table: BigtableTable, log: BigtableChangeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def noted(name: str, real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            return real(*arguments, **options)

        return call

    for name in ("check_and_mutate", "mutate", "mutate_rows", "increment", "read", "read_all", "read_bulk", "scan"):
        monkeypatch.setattr(table, name, noted(name, getattr(table, name)))

    async def after(call: Any) -> tuple[Any, list[str]]:
        calls.clear()
        return await call, list(calls)

    change = some_change()
    entry, made = await after(log.record(change, "me"))
    assert made == ["mutate"]
    assert (await after(log.record(change, "me")))[1] == ["check_and_mutate"]
    assert (await after(log.renew([entry, entry, entry])))[1] == ["check_and_mutate"] * 3
    claimed, made = await after(log.claim(entry, "recovery"))
    assert made == ["check_and_mutate"]
    assert (await after(log.claim(entry, "another")))[1] == ["check_and_mutate", "read"]
    assert (await after(log.park(claimed, "parked")))[1] == ["read", "check_and_mutate"]
    assert (await after(log.retry(claimed)))[1] == ["read", "check_and_mutate"]
    assert (await after(log.announce("me")))[1] == ["increment"]
    assert (await after(log.now_ms()))[1] == ["increment"]
    found, made = await after(log.stale(EVERYTHING, 1, EXPIRY_MS, 10))
    assert len(found.entries) == 1 and made == ["read_bulk"] * 2
    assert await log.park(found.entries[0], "parked")
    assert (await after(log.stale(EVERYTHING, 1, EXPIRY_MS, 10)))[1] == ["read_bulk"] * 2
    assert (await after(log.keep(claimed)))[1] == ["check_and_mutate", "read"], "it was retried, so it has no owner"
    assert (await after(log.kept(EVERYTHING, 10)))[1] == ["scan"]
    assert (await after(log.read(entry.change.id)))[1] == ["read_all"]
    assert (await after(log.forget(entry)))[1] == ["mutate"]
    assert (await after(log.presences()))[1] == ["scan"]
    assert (await after(log.read_note("a")))[1] == ["read"]
    assert (await after(log.swap_note("a", None, b"1"))) == (True, ["check_and_mutate"])
    assert (await after(log.swap_note("a", b"1", b"2"))) == (True, ["check_and_mutate"])
    assert (await after(log.swap_note("a", b"1", b"3"))) == (False, ["check_and_mutate", "read"])
    keys = [f"{number:03}" for number in range(PORTION_KEYS)]
    assert (await after(log.write_values(dict.fromkeys(keys, b"1"), 1)))[1] == ["mutate_rows"]
    assert (await after(log.read_values([*keys, "one more"])))[1] == ["read_all", "read_all"]
    assert (await after(log.scan_values("", "z", 1000)))[1] == ["read_bulk"]
    assert (await after(log.erase_values(keys)))[1] == ["mutate_rows"]


async def test_changes_recorded_and_forgotten_at_once_share_calls(
    table: BigtableTable, log: BigtableChangeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = table.mutate_rows

    async def noted(rows: Any) -> Any:
        sizes.append(len(rows))
        return await real(rows)

    monkeypatch.setattr(table, "mutate_rows", noted)
    entries: list[Entry] = []

    async def record() -> None:
        entries.append(await log.record(some_change(), "me"))

    async with anyio.create_task_group() as tasks:
        for _ in range(64):
            tasks.start_soon(record)
    assert sizes[0] == 60, "four went alone, and all that came meanwhile together"
    assert set((await log.entries("", 100)).entries) == set(entries) and len(entries) == 64
    async with anyio.create_task_group() as tasks:
        for entry in entries:
            tasks.start_soon(log.forget, entry)
    assert sizes == [60, 63] and (await log.entries("", 100)).entries == ()


# --- what lands late -----------------------------------------------------------------------------------


async def landed_late(table: BigtableTable, change: Change) -> Entry:
    """The first `record` of the change, sent long ago by the owner "me"."""
    late = Entry(change, change.id.row_key(), "me")
    await BigtableChangeLog(table, RUNTIME).record(change, "me")
    return late


async def test_a_record_that_lands_over_a_claim_is_claimed_again(table: BigtableTable, log: BigtableChangeLog) -> None:
    change = some_change()
    claimed = await log.claim(await log.record(change, "me"), "recovery")
    assert claimed is not None
    late = await landed_late(table, change)
    assert await log.renew([claimed]) == [Renewal.NOT_YOURS] and not await log.release(claimed)
    now_ms = await log.now_ms()
    assert (await log.stale(EVERYTHING, now_ms, EXPIRY_MS, 10)).entries == ()
    assert (await log.stale(EVERYTHING, now_ms + LATER_MS, EXPIRY_MS, 10)).entries == (late,)
    again = await log.claim(late, "recovery")
    assert again is not None and await cells(table, again.key) == [(b"c", encode(again), False)]
    await log.forget(again)
    assert await log.read(change.id) is None


async def test_a_record_that_lands_over_a_released_or_parked_entry_leaves_it_to_recovery_or_parked(
    table: BigtableTable, log: BigtableChangeLog
) -> None:
    released, parked = some_change(), some_change()
    now_ms = await log.now_ms()
    assert await log.release(await log.record(released, "me"), now_ms + 100 * LATER_MS)
    assert await log.park(await log.record(parked, "me"), "it has no end")
    late = await landed_late(table, released)
    await landed_late(table, parked)
    assert (await log.stale(EVERYTHING, now_ms + LATER_MS, EXPIRY_MS, 10)).entries == (late,), "it waits for nothing: the grace begins anew"
    [stuck] = (await log.entries("", 10, stuck_only=True)).entries
    assert stuck.stuck is not None and stuck.stuck.error == "it has no end"


async def test_renewals_that_land_late_revive_nothing() -> None:
    async with start_bigtable() as emulator:
        await provision(emulator.host, "test", "emulated", "rows", "changes")
        async with insecure_channel(emulator.host) as channel:
            name = "projects/test/instances/emulated/tables/changes"
            log = BigtableChangeLog(BigtableTable(channel, name), RUNTIME)
            hasty = BigtableChangeLog(BigtableTable(channel, name, timeout_s=0.3), RUNTIME)
            forgotten, claimed, mine = [await log.record(some_change(), "me") for _ in range(3)]
            emulator.freeze()
            with pytest.raises(UnconfirmedError):
                await hasty.forget(forgotten)
            assert await hasty.renew([forgotten, claimed, mine]) == [Renewal.FAILED] * 3
            emulator.thaw()
            held = await log.claim(claimed, "recovery")
            await log.forget(forgotten)
            for _ in range(20):
                assert await log.read(forgotten.change.id) is None
                assert await log.read(claimed.change.id) == held
                await anyio.sleep(0.005)
            assert await log.renew([forgotten, claimed, mine]) == [Renewal.NOT_YOURS, Renewal.NOT_YOURS, Renewal.RENEWED]


async def test_presence_rows_of_daemons_that_are_gone_are_collected_after_a_day(table: BigtableTable, log: BigtableChangeLog) -> None:
    for instance in ("living", "gone", "long-gone"):
        await log.announce(instance)
    day_us = 24 * 3600 * 1_000_000
    now_us = RUNTIME.wall_ns() // 1000 // 1000 * 1000
    for instance, age_us in (("gone", day_us + 60_000_000), ("long-gone", 30 * day_us), ("nearly", day_us - 60_000_000)):
        key = f"~daemon/{instance}".encode()
        await table.mutate(key, DELETE_ROW)
        await table.mutate(key, set_cell("fc", b"c", bytes(8), now_us - age_us))
    entry = await log.record(some_change(), "")
    assert [await log.collect(1) for _ in range(3)] == [1, 1, 0]
    left = await table.scan([KeySpan.prefix(b"~")], NEWEST, 10)
    assert [row.key.decode() for row in left] == [entry.key, "~daemon/living", "~daemon/nearly"]
