"""Rows in Bigtable, cell by cell: what is written, what of older software is read, and requests that land late."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import (
    BigtableTable,
    delete_family,
    insecure_channel,
    set_cell,
)
from changelog.change import ChangeId
from emulators.bigtable.emulator import provision, start_bigtable
from emulators.bigtable.memory import MemoryBigtable, MemoryChannel
from tiered.bigtable.cells import LEGACY_FAMILIES
from tiered.bigtable.rows import BigtableRows
from tiered.metadata import NS_PER_S, Metadata, TimeToIdle, TimeToLive
from tiered.provision.schema import OBJECT_FAMILIES
from tiered.services.backends import Inline, Row, RowState, Tombstone
from tiered.services.scans import RowPage, ScannedRow

pytestmark = pytest.mark.anyio

PATH = "attachments/org.17/project.42/objects/abc123"
TOKEN, OTHER = ChangeId("018bcfe5-6800-7000-8000-000000000001"), ChangeId("018bcfe5-6800-7000-8000-000000000002")
BLOB = f"{PATH}/{TOKEN}"
HOUR = TimeToLive(ns=3600 * NS_PER_S)
DEADLINE_NS = 4_000_000_000 * NS_PER_S
DEADLINE_US, PAST_US = DEADLINE_NS // 1000, 1_700_000_000_000_000
PLAIN = b'{"content_type":"application/octet-stream","size":5}'
EXPIRING = (
    b'{"expiration_policy":{"TimeToLive":{"secs":3600,"nanos":0}},"time_expires":{"secs_since_epoch":4000000000,"nanos_since_epoch":0},'
    b'"content_type":"application/octet-stream","size":5}'
)
REDIRECT = b'{"is_redirect_tombstone":true,"expiration_policy":{"TimeToLive":{"secs":3600,"nanos":0}}}'
RUNTIME = SystemRuntime()
Cells = dict[tuple[str, bytes], bytes]


class CountedChannel:
    """A channel that notes what is called."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.calls: list[str] = []

    def unary_unary(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        return self._noted(method, self._channel.unary_unary(method, request_serializer, response_deserializer))

    def unary_stream(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        return self._noted(method, self._channel.unary_stream(method, request_serializer, response_deserializer))

    def _noted(self, method: str, call: Callable[..., Any]) -> Any:
        def noted(*arguments: Any, **options: Any) -> Any:
            self.calls.append(method.rpartition("/")[2])
            return call(*arguments, **options)

        return noted


@pytest.fixture
async def table(anyio_backend: str, fresh_table: Callable[[], AbstractAsyncContextManager[BigtableTable]]) -> AsyncIterator[BigtableTable]:
    async with fresh_table() as table:
        yield table


@pytest.fixture
def rows(table: BigtableTable) -> BigtableRows:
    return BigtableRows(table, RUNTIME, LEGACY_FAMILIES)


async def swap(rows: BigtableRows, token: ChangeId, expected: str | None, state: RowState, path: str = PATH) -> bool:
    return await rows.swap(path, token, expected, state, RUNTIME.boot_time() + 60)


async def plant(table: BigtableTable, cells: Cells, at_us: int = -1, path: str = PATH) -> None:
    await table.mutate(path.encode(), *(set_cell(family, column, value, at_us) for (family, column), value in cells.items()))


async def stored(table: BigtableTable, path: str = PATH) -> dict[tuple[str, bytes], tuple[bytes, int]]:
    row = await table.read(path.encode())
    return {} if row is None else {(cell.family, cell.column): (cell.value, cell.timestamp_us) for cell in row.cells}


# --- what is written ---------------------------------------------------------------------------------


async def test_an_object_that_stays_is_in_fm_at_the_servers_time(table: BigtableTable, rows: BigtableRows) -> None:
    assert await rows.put_inline(PATH, TOKEN, Inline(Metadata(size=5), b"hello"))
    cells = await stored(table)
    assert {name: value for name, (value, _) in cells.items()} == {
        ("fm", b"m"): PLAIN, ("fm", b"p"): b"hello", ("fm", b"v"): TOKEN.encode(),
    }  # fmt: skip
    assert all(abs(RUNTIME.wall_ns() // 1000 - at_us) < 60_000_000 and at_us % 1000 == 0 for _, at_us in cells.values())


async def test_an_object_that_expires_is_in_fg_and_its_cells_are_dated_with_the_deadline(table: BigtableTable, rows: BigtableRows) -> None:
    state = Inline(Metadata(HOUR, time_expires_ns=DEADLINE_NS, size=5), b"hello")
    assert await rows.put_inline(PATH, TOKEN, state)
    assert await stored(table) == {
        ("fg", b"m"): (EXPIRING, DEADLINE_US), ("fg", b"p"): (b"hello", DEADLINE_US), ("fg", b"v"): (TOKEN.encode(), DEADLINE_US),
    }  # fmt: skip


@pytest.mark.parametrize("column", [b"m", b"p"])
async def test_half_an_object_is_an_expired_one_also_where_bigtables_clock_is_ahead(
    table: BigtableTable, rows: BigtableRows, column: bytes
) -> None:
    cells: Cells = {("fg", column): b"{}", ("fg", b"v"): TOKEN.encode()}
    now_us = RUNTIME.wall_ns() // 1_000_000 * 1000
    await plant(table, cells, now_us + 60_000_000)
    assert (await rows.read(PATH)).state is None
    await plant(table, cells, now_us + 3_600_000_000, "n/objects/damaged")
    with pytest.raises(CorruptRecordError, match=r"metadata|payload"):
        await rows.read("n/objects/damaged")


async def test_a_tombstone_is_its_target_its_policy_its_token_and_the_mark_of_its_swap(table: BigtableTable, rows: BigtableRows) -> None:
    assert await swap(rows, TOKEN, None, Tombstone(BLOB, HOUR, DEADLINE_NS))
    policy = b'{"expiration_policy":{"TimeToLive":{"secs":3600,"nanos":0}}}'
    cells = await stored(table)
    mark, at_us = cells.pop(("ff", b"w:" + TOKEN.encode()))
    assert mark == b"" and abs(RUNTIME.wall_ns() // 1000 - at_us) < 60_000_000
    assert cells == {
        ("fg", b"r"): (BLOB.encode(), DEADLINE_US), ("fg", b"t"): (policy, DEADLINE_US), ("fg", b"v"): (TOKEN.encode(), DEADLINE_US),
    }  # fmt: skip


async def test_a_tombstone_that_stays_has_an_empty_policy(table: BigtableTable, rows: BigtableRows) -> None:
    assert await swap(rows, TOKEN, None, Tombstone(BLOB))
    assert (await stored(table))["fm", b"t"][0] == b"{}"


async def test_a_settled_token_leaves_one_empty_cell(table: BigtableTable, rows: BigtableRows) -> None:
    assert not await rows.settle(PATH, TOKEN)
    assert {name: value for name, (value, _) in (await stored(table)).items()} == {("ff", b"r:" + TOKEN.encode()): b""}


async def test_a_change_of_family_leaves_nothing_of_the_former_state(table: BigtableTable, rows: BigtableRows) -> None:
    await rows.put_inline(PATH, TOKEN, Inline(Metadata(HOUR, time_expires_ns=DEADLINE_NS), b"hello"))
    assert await rows.put_inline(PATH, OTHER, Inline(Metadata(), b""))
    assert {family for family, _ in await stored(table)} == {"fm"}
    assert await rows.delete_inline(PATH, TOKEN)
    assert await stored(table) == {}


async def test_a_payload_beyond_grpcs_own_limit_comes_back(rows: BigtableRows) -> None:
    payload = b"x" * (5 << 20)
    assert await rows.put_inline(PATH, TOKEN, Inline(Metadata(), payload))
    state = (await rows.read(PATH)).state
    assert isinstance(state, Inline) and state.payload == payload


# --- what older software wrote -----------------------------------------------------------------------

SECONDS = Metadata(HOUR, time_expires_ns=DEADLINE_NS, size=5)
LEGACY: dict[str, tuple[Cells, int, Inline | Tombstone]] = {
    "an object without a token": ({("fm", b"p"): b"hello", ("fm", b"m"): PLAIN}, -1, Inline(Metadata(size=5), b"hello")),
    "a payload in fpm": ({("fpm", b"p"): b"hello", ("fm", b"m"): PLAIN}, -1, Inline(Metadata(size=5), b"hello")),
    "a payload in fpg, whole seconds": ({("fpg", b"p"): b"hello", ("fg", b"m"): EXPIRING}, DEADLINE_US, Inline(SECONDS, b"hello")),
    "an object without metadata": ({("fm", b"p"): b"hello"}, -1, Inline(Metadata(size=5), b"hello")),
    "an object without metadata that expires": (
        {("fg", b"p"): b"hello"}, DEADLINE_US, Inline(Metadata(size=5, time_expires_ns=DEADLINE_NS), b"hello")
    ),
    "an empty object without a payload": ({("fm", b"m"): b'{"content_type":"a/b"}'}, -1, Inline(Metadata(size=0, content_type="a/b"), b"")),
    "an empty object of size 0": ({("fm", b"m"): b'{"size":0}'}, -1, Inline(Metadata(size=0), b"")),
    "an empty payload": ({("fm", b"p"): b"", ("fm", b"m"): PLAIN}, -1, Inline(Metadata(size=0), b"")),
    "a tombstone without t": ({("fm", b"r"): BLOB.encode()}, -1, Tombstone(BLOB)),
    "an empty r": ({("fm", b"r"): b"", ("fm", b"t"): b"{}"}, -1, Tombstone(PATH)),
    "an empty r that expires": ({("fg", b"r"): b""}, PAST_US, Tombstone(PATH, deadline_ns=PAST_US * 1000)),
    "a tombstone in m": ({("fm", b"m"): b'{"is_redirect_tombstone":true}', ("fm", b"p"): b""}, -1, Tombstone(PATH)),
    "a tombstone in m alone": ({("fg", b"m"): REDIRECT}, DEADLINE_US, Tombstone(PATH, HOUR, DEADLINE_NS)),
}
TOMBSTONES = [name for name, (_, _, state) in LEGACY.items() if isinstance(state, Tombstone)]
OBJECTS = [name for name in LEGACY if name not in TOMBSTONES]


@pytest.mark.parametrize("form", LEGACY)
async def test_older_forms_are_read(table: BigtableTable, rows: BigtableRows, form: str) -> None:
    cells, at_us, state = LEGACY[form]
    await plant(table, cells, at_us)
    assert await rows.read(PATH) == await rows.read(PATH, marks=True) == Row(state)
    [name] = (await rows.scan("", b"", 10)).rows
    assert (name.path, name.deadline_ns) == (PATH, state.deadline_ns)


@pytest.mark.parametrize("form", TOMBSTONES)
@pytest.mark.parametrize("expected", [None, PATH, BLOB, f"{PATH}/{OTHER}"])
async def test_older_tombstones_conflict_unless_they_are_expected(
    table: BigtableTable, rows: BigtableRows, form: str, expected: str | None
) -> None:
    cells, at_us, state = LEGACY[form]
    await plant(table, cells, at_us)
    assert not await rows.put_inline(PATH, OTHER, Inline(Metadata(), b""))
    assert not await rows.delete_inline(PATH, OTHER)
    assert (await rows.read(PATH)).state == state
    assert await swap(rows, OTHER, expected, None) is (expected == Row(state).target)


@pytest.mark.parametrize("target", ["0", "z", PATH[:-1], f"{PATH} ", BLOB])
@pytest.mark.parametrize("expected", [PATH, f"{PATH}/{OTHER}"])
async def test_another_target_conflicts_wherever_it_sorts(table: BigtableTable, rows: BigtableRows, target: str, expected: str) -> None:
    await plant(table, {("fm", b"r"): target.encode()})
    assert not await swap(rows, OTHER, expected, None)
    assert await swap(rows, OTHER, target, None)


@pytest.mark.parametrize("form", OBJECTS)
async def test_older_objects_are_replaced_in_the_current_form(table: BigtableTable, rows: BigtableRows, form: str) -> None:
    cells, at_us, _ = LEGACY[form]
    await plant(table, cells, at_us)
    assert await rows.put_inline(PATH, OTHER, Inline(Metadata(), b"new"))
    assert await rows.read(PATH) == Row(Inline(Metadata(size=3), b"new", OTHER))
    assert await rows.delete_inline(PATH, TOKEN)
    assert await rows.read(PATH) == Row(None)


PAYLOADS_APART: list[Cells] = [
    {("fpm", b"p"): b"hello", ("fm", b"m"): PLAIN}, {("fpg", b"p"): b"hello", ("fg", b"m"): EXPIRING}, {("fpm", b"p"): b"left behind"},
]


@pytest.mark.parametrize("cells", PAYLOADS_APART)
@pytest.mark.parametrize("expires", [False, True])
async def test_every_write_and_delete_clears_payloads_in_families_of_their_own(
    table: BigtableTable, rows: BigtableRows, cells: Cells, expires: bool
) -> None:
    new = Inline(Metadata(HOUR, time_expires_ns=DEADLINE_NS) if expires else Metadata(), b"new")
    tombstone = Tombstone(BLOB, HOUR, DEADLINE_NS) if expires else Tombstone(BLOB)
    writes: list[Callable[[str], Awaitable[bool]]] = [
        lambda path: rows.put_inline(path, TOKEN, new), lambda path: rows.delete_inline(path, TOKEN),
        lambda path: swap(rows, TOKEN, None, new, path), lambda path: swap(rows, TOKEN, None, tombstone, path),
        lambda path: swap(rows, TOKEN, None, None, path),
    ]  # fmt: skip
    for number, write in enumerate(writes):
        path = f"{PATH}{number}"
        await plant(table, cells, DEADLINE_US, path)
        assert await write(path)
        assert {family for family, _ in await stored(table, path)} <= {"fg", "fm", "ff"}


async def test_a_touch_moves_a_payload_to_its_object_and_clears_where_it_was(table: BigtableTable, rows: BigtableRows) -> None:
    await plant(table, PAYLOADS_APART[1], DEADLINE_US)
    seen = (await rows.read(PATH)).state
    assert isinstance(seen, Inline) and await rows.touch(PATH, seen, DEADLINE_NS + NS_PER_S)
    cells = await stored(table)
    assert set(cells) == {("fg", b"m"), ("fg", b"p")}
    assert {at_us for _, at_us in cells.values()} == {DEADLINE_US + 1_000_000}
    assert (await rows.read(PATH)).state == Inline(replace(SECONDS, time_expires_ns=DEADLINE_NS + NS_PER_S), b"hello")


async def test_a_payload_that_a_deletion_left_behind_is_no_object(table: BigtableTable, rows: BigtableRows) -> None:
    await plant(table, {("fpm", b"p"): b"left behind"})
    assert await rows.read(PATH) == await rows.read(PATH, marks=True) == Row(None)
    assert not (await rows.scan("", b"", 10)).rows


async def test_an_empty_object_gets_no_payload_that_another_left_behind(table: BigtableTable, rows: BigtableRows) -> None:
    await plant(table, {("fpg", b"p"): b"left behind"}, DEADLINE_US)
    await plant(table, {("fg", b"m"): b"{}"}, DEADLINE_US + 1000)
    state = (await rows.read(PATH)).state
    assert isinstance(state, Inline) and state.payload == b""


async def test_a_table_without_these_families_hears_nothing_of_them() -> None:
    """The service refuses a mutation that names a family which the table has not.

    Its simulation does so too; the emulator does not.
    """
    plain = BigtableTable(MemoryChannel(MemoryBigtable(RUNTIME, {"plain": OBJECT_FAMILIES})), "plain")
    rows = BigtableRows(plain, RUNTIME)
    assert await rows.put_inline(PATH, TOKEN, Inline(Metadata(), b"hello")) and await swap(rows, OTHER, None, Tombstone(BLOB))
    with pytest.raises(ConfigurationError, match="NOT_FOUND"):
        await BigtableRows(plain, RUNTIME, LEGACY_FAMILIES).put_inline(f"{PATH}2", TOKEN, Inline(Metadata(), b"hello"))


@pytest.mark.parametrize("form", [name for name, (_, at_us, _) in LEGACY.items() if at_us > 0])
async def test_touching_what_has_no_token_writes_the_current_form_and_only_while_it_is_there(
    table: BigtableTable, rows: BigtableRows, form: str
) -> None:
    cells, at_us, state = LEGACY[form]
    await plant(table, cells, at_us)
    later_ns = DEADLINE_NS + NS_PER_S
    assert await rows.touch(PATH, state, later_ns)
    touched = (await rows.read(PATH)).state
    assert isinstance(touched, (Inline, Tombstone)) and touched.deadline_ns == later_ns and touched.token is None
    assert {at_us for (family, _), (_, at_us) in (await stored(table)).items() if family == "fg"} == {later_ns // 1000}
    assert not await rows.touch(PATH, state, later_ns + NS_PER_S), "it no longer is what was seen"
    assert (await rows.read(PATH)).state == touched


async def test_touching_what_has_no_token_spares_a_write_of_the_same_that_came_in_between(
    table: BigtableTable, rows: BigtableRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, at_us, state = LEGACY["a tombstone in m alone"]
    real = table.check_and_mutate

    async def late(*arguments: Any, **options: Any) -> bool:
        await table.mutate(PATH.encode(), delete_family("fg"))
        await plant(table, cells, at_us + 1000)
        return await real(*arguments, **options)

    await plant(table, cells, at_us)
    monkeypatch.setattr(table, "check_and_mutate", late)
    assert not await rows.touch(PATH, state, DEADLINE_NS + NS_PER_S)
    assert (await rows.read(PATH)).state == Tombstone(PATH, HOUR, (at_us + 1000) * 1000)


async def test_touch_keeps_unknown_metadata_and_dates_every_cell_anew(table: BigtableTable, rows: BigtableRows) -> None:
    metadata = Metadata(TimeToIdle(ns=3600 * NS_PER_S), time_expires_ns=DEADLINE_NS, size=5, unknown={"newer": [1]})
    await rows.put_inline(PATH, TOKEN, Inline(metadata, b"hello"))
    seen = (await rows.read(PATH)).state
    assert isinstance(seen, Inline) and await rows.touch(PATH, seen, DEADLINE_NS + 1_999_999)
    cells = await stored(table)
    assert {at_us for _, at_us in cells.values()} == {DEADLINE_US + 1000} and b'"newer":[1]' in cells["fg", b"m"][0]
    assert cells["fg", b"v"][0] == TOKEN.encode()


# --- what nobody wrote -------------------------------------------------------------------------------

CORRUPT: dict[str, Cells] = {
    "metadata is not JSON": {("fm", b"p"): b"x", ("fm", b"m"): b"{"},
    "no payload": {("fm", b"m"): PLAIN},
    "no payload, of ours": {("fm", b"m"): b"{}", ("fm", b"v"): TOKEN.encode()},
    "no metadata, of ours": {("fm", b"p"): b"hello", ("fm", b"v"): TOKEN.encode()},
    "an object and a tombstone": {("fm", b"p"): b"x", ("fm", b"m"): PLAIN, ("fm", b"r"): BLOB.encode()},
    "both expires and does not": {("fm", b"r"): BLOB.encode(), ("fg", b"r"): BLOB.encode()},
    "no UTF-8": {("fm", b"r"): b"\xff"},
    "no expiration policy": {("fm", b"r"): BLOB.encode(), ("fm", b"t"): b"[]"},
    "no change id": {("fm", b"r"): BLOB.encode(), ("fm", b"v"): b"me"},
}


@pytest.mark.parametrize("fault", CORRUPT)
async def test_a_row_that_breaks_the_format_is_named_with_its_fault(table: BigtableTable, rows: BigtableRows, fault: str) -> None:
    await plant(table, CORRUPT[fault], DEADLINE_US)
    wanted = fault.partition(",")[0]
    with pytest.raises(CorruptRecordError, match=wanted.partition(" ")[2] if wanted.startswith("no ") else wanted) as caught:
        await rows.read(PATH, marks=True)
    assert PATH in str(caught.value)


async def test_cells_of_different_deadlines_are_of_different_writes(table: BigtableTable, rows: BigtableRows) -> None:
    await plant(table, {("fg", b"p"): b"hello"}, DEADLINE_US)
    await plant(table, {("fg", b"m"): EXPIRING}, DEADLINE_US + 1000)
    with pytest.raises(CorruptRecordError, match="different deadlines"):
        await rows.read(PATH)


async def test_a_foreign_mark_is_corrupt_where_marks_are_read(table: BigtableTable, rows: BigtableRows) -> None:
    await plant(table, {("ff", b"w:me"): b""})
    assert await rows.read(PATH) == Row(None)
    with pytest.raises(CorruptRecordError, match="w:me"):
        await rows.read(PATH, marks=True)


@pytest.mark.parametrize("column", [b"p", b"m", b"v", b"t"])
async def test_what_is_left_of_an_expired_row_is_absent(table: BigtableTable, rows: BigtableRows, column: bytes) -> None:
    value = {b"p": b"hello", b"m": EXPIRING, b"v": TOKEN.encode(), b"t": b"{}"}[column]
    await plant(table, {("fg", column): value}, PAST_US)
    assert await rows.read(PATH) == Row(None)


# --- scanning ----------------------------------------------------------------------------------------


OWN = ["~changelog/00/x", "~changelog/objects/x", "~daemon/me", "~notes/n", "~values/v"]


async def test_scan_omits_what_is_no_object_and_no_page_but_the_last_is_empty(table: BigtableTable, rows: BigtableRows) -> None:
    paths = [f"a/org.1/objects/{number}" for number in range(5)]
    paths += ["b/objects/uploads/x", "~", "~c/objects/x", "~x/objects/x", "\x7f/objects/x", "é/objects/x"]
    foreign = ["a/org.1/uploads/1", "a/org.1/uploads/2", "a/uploads/objects/2", *OWN]
    for path in (*paths, *foreign):
        await plant(table, {("fm", b"p"): b"", ("fm", b"m"): PLAIN}, path=path)
    assert [name.path for name in (await rows.scan("", b"", 100)).rows] == paths
    assert [name.path for name in (await rows.scan("a/", b"", 6)).rows] == paths[:5]
    for limit in (1, 2, 3):
        found: list[ScannedRow] = []
        start = b""
        while (page := await rows.scan("", start, limit)).next_start is not None:
            assert page.rows
            found, start = [*found, *page.rows], page.next_start
        assert [name.path for name in (*found, *page.rows)] == paths
    assert [name.path for name in (await rows.scan("~", b"", 10)).rows] == paths[6:9]
    assert (await rows.scan("~values/", b"", 10)).rows == [] == (await rows.scan("~notes/", b"~a", 10, b"~z")).rows


SCANNED: dict[str, tuple[Cells, ScannedRow]] = {
    "an object": (
        {("fm", b"p"): b"hello", ("fm", b"m"): PLAIN, ("fm", b"v"): TOKEN.encode()}, ScannedRow(PATH, None, TOKEN, None, Metadata(size=5)),
    ),
    "without a size": ({("fm", b"p"): b"hello", ("fm", b"m"): b"{}"}, ScannedRow(PATH, None, None, None, Metadata())),
    "a payload alone": ({("fm", b"p"): b"hello"}, ScannedRow(PATH, None)),
    "metadata alone": ({("fm", b"m"): PLAIN}, ScannedRow(PATH, None, None, None, Metadata(size=5))),
    "a tombstone": ({("fm", b"r"): BLOB.encode(), ("fm", b"v"): TOKEN.encode(), ("fm", b"t"): b"{}"}, ScannedRow(PATH, None, TOKEN, BLOB)),
    "a tombstone with an empty target": ({("fm", b"r"): b""}, ScannedRow(PATH, None, None, PATH)),
    "a legacy tombstone": ({("fm", b"m"): b'{"is_redirect_tombstone":true}', ("fm", b"p"): b""}, ScannedRow(PATH, None, None, PATH)),
}


@pytest.mark.parametrize("row", SCANNED)
async def test_scan_reads_every_form_of_a_row(table: BigtableTable, rows: BigtableRows, row: str) -> None:
    cells, expected = SCANNED[row]
    await plant(table, cells)
    page = await rows.scan("", b"", 10)
    assert page.rows == [expected] and not page.corrupt


@pytest.mark.parametrize("cells", [
    {("fm", b"p"): b"x", ("fm", b"m"): b"{"}, {("fm", b"r"): b"\xff"}, {("fm", b"r"): b"x", ("fm", b"p"): b"x"},
    {("fm", b"p"): b"x", ("fm", b"m"): PLAIN, ("fm", b"v"): b"no id"}, {("fm", b"p"): b"x", ("fg", b"m"): PLAIN},
])  # fmt: skip
async def test_scan_names_a_damaged_row_and_goes_on(table: BigtableTable, rows: BigtableRows, cells: Cells) -> None:
    await plant(table, cells, DEADLINE_US)
    await plant(table, {("fm", b"p"): b"x"}, path=f"{PATH}/next")
    page = await rows.scan("", b"", 10)
    assert [row.path for row in page.rows] == [PATH, f"{PATH}/next"] and [damaged.path for damaged in page.corrupt] == [PATH]
    assert page.corrupt[0].fault.startswith(f"the row {PATH} breaks the format: ")


async def test_scan_leaves_out_what_is_left_of_an_expired_row(table: BigtableTable, rows: BigtableRows) -> None:
    await plant(table, {("fg", b"v"): TOKEN.encode(), ("fg", b"t"): b"{}"}, PAST_US)
    assert await rows.scan("", b"", 10) == RowPage([], [], None)


# --- calls, and their failure ------------------------------------------------------------------------


async def test_each_row_operation_is_one_call(bigtable_host: str, table: BigtableTable) -> None:
    async with insecure_channel(bigtable_host) as channel:
        counted = CountedChannel(channel)
        rows = BigtableRows(BigtableTable(counted, table.name), RUNTIME)
        tombstone = Tombstone(BLOB, HOUR, DEADLINE_NS, TOKEN)
        assert await rows.put_inline(PATH, OTHER, Inline(Metadata(), b"hello"))
        assert await rows.delete_inline(PATH, OTHER)
        assert await swap(rows, TOKEN, None, tombstone)
        assert await rows.settle(PATH, TOKEN)
        assert await rows.touch(PATH, tombstone, DEADLINE_NS + NS_PER_S)
        assert counted.calls == ["CheckAndMutateRow"] * 5
        counted.calls.clear()
        await rows.read(PATH)
        await rows.read(PATH, marks=True)
        await rows.scan("", b"", 10)
        assert counted.calls == ["ReadRows"] * 3


async def test_no_predicate_uses_a_condition_or_a_regex(table: BigtableTable, rows: BigtableRows, monkeypatch: pytest.MonkeyPatch) -> None:
    predicates: list[str] = []
    real = table.send

    async def noted(request: Any, *options: Any) -> bool:
        predicates.append(str(request.predicate_filter))
        return await real(request, *options)

    monkeypatch.setattr(table, "send", noted)
    for expected in (None, PATH, BLOB):
        await swap(rows, TOKEN, expected, Tombstone(BLOB, HOUR, DEADLINE_NS))
    await rows.settle(PATH, OTHER)
    await rows.put_inline(PATH, OTHER, Inline(Metadata(), b""))
    await rows.touch(PATH, Tombstone(BLOB, HOUR, DEADLINE_NS, TOKEN), DEADLINE_NS + NS_PER_S)
    assert len(predicates) == 6
    assert not [word for predicate in predicates for word in ("condition", "regex", "limit") if word in predicate]


async def test_a_table_that_is_missing_is_named_with_the_families_it_needs(bigtable_host: str) -> None:
    async with insecure_channel(bigtable_host) as channel:
        rows = BigtableRows(BigtableTable(channel, "projects/test/instances/emulated/tables/nowhere"), RUNTIME)
        for call in (rows.read(PATH), rows.settle(PATH, TOKEN), rows.scan("", b"", 1)):
            with pytest.raises(ConfigurationError, match=r"tables/nowhere.*create the table, with families fg, fm, ff"):
                await call


async def test_a_server_that_cannot_be_reached_proves_nothing_of_a_write(table: BigtableTable) -> None:
    async with insecure_channel("127.0.0.1:1") as channel:
        rows = BigtableRows(BigtableTable(channel, table.name), RUNTIME)
        with pytest.raises(UnavailableError):
            await rows.read(PATH)
        with pytest.raises(UnconfirmedError):
            await rows.settle(PATH, TOKEN)


async def test_what_a_frozen_server_was_sent_lands_late_and_settling_decides_it() -> None:
    async with start_bigtable() as emulator:
        await provision(emulator.host, "test", "emulated", "rows", "changes")
        async with insecure_channel(emulator.host) as channel:
            name = "projects/test/instances/emulated/tables/rows"
            hasty = BigtableRows(BigtableTable(channel, name, timeout_s=0.3), RUNTIME)
            rows = BigtableRows(BigtableTable(channel, name), RUNTIME)
            tokens = {f"{PATH}/{number}": ChangeId.new(RUNTIME) for number in range(20)}
            unconfirmed = []

            async def send(path: str, token: ChangeId) -> None:
                with pytest.raises(UnconfirmedError):
                    await swap(hasty, token, None, Tombstone(f"{path}/{token}"), path)
                unconfirmed.append(path)

            await rows.read(PATH)  # so that the connection stands
            emulator.freeze()
            async with anyio.create_task_group() as tasks:
                for path, token in tokens.items():
                    tasks.start_soon(send, path, token)
            emulator.thaw()
            assert sorted(unconfirmed) == sorted(tokens)
            live = {path: await rows.settle(path, token) for path, token in tokens.items()}
            for path, token in tokens.items():
                row = await rows.read(path, marks=True)
                assert (row.target == f"{path}/{token}") == live[path] == (token in row.won) == (token not in row.refused)
                assert not await swap(rows, token, None, Tombstone(f"{path}/{token}"), path), "it never takes effect again"
