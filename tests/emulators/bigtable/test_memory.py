"""What the Bigtable in memory shows and Google's emulator does not.

That is: atomic failure, collection, scans without a snapshot, and trio.

That it answers like the emulator where that is right, `test_memory_beside_google.py` shows.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import pytest
from google.cloud.bigtable_v2.types import data

from changelog.base.errors import ConfigurationError, InvalidRequestError, UnavailableError, UnconfirmedError
from changelog.bigtable.channel import (
    DELETE_ROW,
    FIRST,
    NEWEST,
    WITHOUT_VALUES,
    BigtableTable,
    KeySpan,
    Message,
    chain,
    column_is,
    delete_family,
    either,
    family_is,
    set_cell,
    timestamp_in,
    value_after,
    value_before,
    value_begins_not_with,
    value_begins_with,
    value_between,
    value_is,
)
from changelog.bigtable.row_merge import Cell
from emulators.bigtable.filters import yields
from emulators.bigtable.memory import MemoryBigtable, MemoryChannel
from emulators.world.runtime import WALL_START_NS, SimulatedRuntime, run_world
from tests.given.virtual_time import simulated
from tiered.provision.schema import FAMILIES

NAME = "projects/p/instances/i/tables/t"
NOW_US = WALL_START_NS // 1000
DAY_US = 86_400_000_000
WRITE = set_cell("fm", b"p", b"value")


class Server(MemoryBigtable):
    """Its requests are under way for `travel_s`, and a scan takes `row_s` from row to row."""

    def __init__(self, travel_s: float = 0.0, row_s: float = 0.0, **cut: int) -> None:
        super().__init__(SimulatedRuntime(1), {NAME: FAMILIES}, **cut)
        self.travel_s = travel_s
        self.row_s = row_s
        self.table = BigtableTable(MemoryChannel(self), NAME)

    async def _travel(self) -> Any:
        await anyio.sleep(self.travel_s)
        return self.row_s

    def cells(self, key: bytes = b"k") -> list[tuple[str, bytes, int, bytes]]:
        return [(cell.family, cell.column, cell.timestamp_us, cell.value) for cell in self.tables[NAME].rows.get(key, ())]


# --- filters -----------------------------------------------------------------------------------------

OLD, NEW, MARK, OTHER = (
    Cell("fm", b"p", 1000, b"old"), Cell("fm", b"p", 5000, b"new"), Cell("ff", b"w:1", 3000, b""), Cell("fm", b"r", 5000, b"target"),
)  # fmt: skip
ROW = (MARK, NEW, OLD, OTHER)

FILTERS: dict[str, tuple[Message, list[Cell]]] = {
    "family": (family_is("fm"), [NEW, OLD, OTHER]),
    "no such family": (family_is("f"), []),
    "column": (column_is("fm", b"p"), [NEW, OLD]),
    "column of another family": (column_is("ff", b"p"), []),
    "value": (value_is(b"old"), [OLD]),
    "values before": (value_before(b"old"), [MARK, NEW]),
    "values after": (value_after(b"old"), [OTHER]),
    "values between": (value_between(b"new", b"target"), [OLD]),
    "values that begin with": (value_begins_with(b"ta"), [OTHER]),
    "values that do not": (value_begins_not_with(b"ne"), [MARK, OLD, OTHER]),
    "times": (timestamp_in(1000, 5000), [MARK, OLD]),
    "times without an end": (timestamp_in(1001, 0), [MARK, NEW, OTHER]),
    "newest": (NEWEST, [MARK, NEW, OTHER]),
    "chain": (chain(NEWEST, value_is(b"old")), []),
    "the other way round": (chain(value_is(b"old"), NEWEST), [OLD]),
    "either, in the row's order and twice": (either(value_after(b"new"), column_is("fm", b"p")), [NEW, OLD, OLD, OTHER]),
    "the first of those of one family": (chain(column_is("fm", b"p"), FIRST), [NEW]),
    "without values": (chain(value_is(b"old"), WITHOUT_VALUES), [Cell("fm", b"p", 1000, b"")]),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_yields(name: str) -> None:
    filter, expected = FILTERS[name]
    assert list(yields(filter)(ROW)) == expected


@pytest.mark.parametrize("fields", [{"row_key_regex_filter": b"k"}, {"pass_all_filter": True}, {"cells_per_row_offset_filter": 1}])
def test_a_filter_that_no_adapter_uses_is_refused(fields: Mapping[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match=next(iter(fields))):
        yields(data.RowFilter.pb()(**fields))


# --- writing -----------------------------------------------------------------------------------------


@simulated
async def test_a_mutation_that_fails_leaves_the_row_as_it_was_and_the_rows_beside_it_written() -> None:
    server = Server()
    await server.table.mutate(b"k", WRITE)
    before, wrong = server.cells(), set_cell("none", b"p", b"")
    with pytest.raises(ConfigurationError, match="column family none not found"):
        await server.table.mutate(b"k", delete_family("fm"), wrong)
    told = await server.table.mutate_rows([(b"k", [DELETE_ROW, wrong]), (b"l", [WRITE])])
    assert isinstance(told[0], ConfigurationError) and told[1] is None
    assert server.cells() == before and server.cells(b"l") == [("fm", b"p", NOW_US, b"value")]


@pytest.mark.parametrize("wrong", [set_cell("fm", b"p", b"", 1001), set_cell("fm", b"p", b"", -2)])
def test_a_timestamp_that_is_no_whole_millisecond_is_refused(wrong: Message) -> None:
    async def write() -> None:
        server = Server()
        with pytest.raises(InvalidRequestError, match="Timestamp granularity"):
            await server.table.mutate(b"k", wrong)
        assert server.cells() == []

    run_world(write, seed=1)


@simulated
async def test_the_servers_time_is_its_clocks_whole_millisecond_and_two_writes_in_one_are_one_cell() -> None:
    server = Server()
    for value, after_s in ((b"first", 0.0), (b"second", 0.0004), (b"third", 0.0007)):
        await anyio.sleep(after_s)
        await server.table.mutate(b"k", set_cell("fm", b"p", value))
    assert server.cells() == [("fm", b"p", NOW_US + 1000, b"third"), ("fm", b"p", NOW_US, b"second")]


@simulated
async def test_a_counter_never_becomes_older_than_it_was() -> None:
    server = Server()
    await server.table.mutate(b"k", set_cell("fc", b"c", bytes(8), NOW_US + DAY_US))
    assert await server.table.increment(b"k", "fc", b"c") == Cell("fc", b"c", NOW_US + DAY_US, bytes(7) + b"\1")


# --- reading -----------------------------------------------------------------------------------------


@simulated
async def test_cells_come_in_pieces_and_rows_in_parts_and_are_put_together() -> None:
    server = Server(piece_bytes=3, message_chunks=2)
    values = [b"", b"abc", b"abcd", b"abcdefghi"]
    for key in (b"k", b"l"):
        await server.table.mutate(key, *(set_cell("fm", bytes([number]), value) for number, value in enumerate(values)))
    rows = await server.table.scan([KeySpan(b"", b"")], NEWEST, 0)
    assert [row.key for row in rows] == [b"k", b"l"]
    assert [[cell.value for cell in row.cells] for row in rows] == [values, values]


@simulated
async def test_spans_that_overlap_yield_each_row_once_in_order_and_a_limit_counts_those_that_pass() -> None:
    server = Server()
    for key in (b"a", b"b", b"c", b"d"):
        await server.table.mutate(key, set_cell("fm" if key != b"b" else "fg", b"p", b"value"))
    spans = [KeySpan(b"b", b"d"), KeySpan(b"a", b"c"), KeySpan(b"c", b"")]
    assert [row.key for row in await server.table.scan(spans, NEWEST, 0)] == [b"a", b"b", b"c", b"d"]
    assert [row.key for row in await server.table.scan(spans, family_is("fm"), 2)] == [b"a", b"c"]


@simulated
async def test_a_slow_scan_is_no_snapshot() -> None:
    """What is written ahead of it is seen, what is written behind it is not."""
    server = Server(row_s=2.0)
    for key in (b"b", b"d"):
        await server.table.mutate(key, WRITE)
    found: list[bytes] = []

    async def scan() -> None:
        found.extend(row.key for row in await server.table.scan([KeySpan(b"", b"")], NEWEST, 0))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(scan)
        await anyio.sleep(1)
        for key in (b"a", b"c"):
            await server.table.mutate(key, WRITE)
        await server.table.mutate(b"d", DELETE_ROW)
    assert found == [b"b", b"c"]


# --- collection --------------------------------------------------------------------------------------


def aged(server: Server) -> set[bytes]:
    """A row with a cell that each rule may take and one that it may not. Returns the columns that must stay."""
    hour_us = 3_600_000_000
    cells = [
        Cell("fc", b"c", NOW_US, b"newest"), Cell("fc", b"c", NOW_US - DAY_US, b"older"), Cell("fc", b"c", 0, b"oldest"),
        Cell("ff", b"r:kept", NOW_US - 2 * DAY_US + hour_us, b""), Cell("ff", b"w:old", NOW_US - 2 * DAY_US - hour_us, b""),
        Cell("fg", b"expired", NOW_US - 1_001_000, b""), Cell("fg", b"just expired", NOW_US - 1_000_000, b""), Cell("fm", b"p", 0, b""),
    ]  # fmt: skip
    server.tables[NAME].put(b"k", tuple(cells))
    return {b"newest", b"r:kept", b"just expired", b"p"}


def left(server: Server) -> set[bytes]:
    return {value or column for _, column, _, value in server.cells()}


@simulated
async def test_what_a_rule_allows_to_go_stays_visible_until_it_is_collected_and_nothing_else_goes() -> None:
    server = Server()
    kept = aged(server)
    row = await server.table.read(b"k", either(NEWEST, family_is("fg")))
    assert row is not None and b"expired" in {cell.column for cell in row.cells}
    assert server.collect(random.Random(1)) == 4 and left(server) == kept
    assert server.collect(random.Random(1)) == 0


@simulated
async def test_collection_takes_some_cells_now_and_others_later_and_tells_of_each_row() -> None:
    lefts, told = set(), list[Any]()
    for seed in range(20):
        server = Server()
        server.changed.append(lambda table, key, cause: told.append((table, key, cause)))
        kept = aged(server)
        count = server.collect(random.Random(seed), share=0.5, limit=3)
        assert count <= 3 and left(server) >= kept and len(left(server)) == 8 - count
        lefts.add(frozenset(left(server)))
        assert len(told) == (count > 0)
        told.clear()
    assert len(lefts) > 5


# --- on trio -----------------------------------------------------------------------------------------


CALLS: dict[str, Callable[[BigtableTable], Awaitable[Any]]] = {
    "read": lambda table: table.read(b"k"),
    "mutate": lambda table: table.mutate(b"k", WRITE),
    "mutate_rows": lambda table: table.mutate_rows([(b"k", [WRITE])]),
    "check_and_mutate": lambda table: table.check_and_mutate(b"k", NEWEST, otherwise=[WRITE]),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_its_scope_cancels_ends_with_the_scope(call: str) -> None:
    async def cancelled() -> None:
        server = Server(travel_s=5)
        with anyio.move_on_after(1) as scope:
            await CALLS[call](server.table)
        assert scope.cancelled_caught and server.cells() == []

    run_world(cancelled, seed=1)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_whose_deadline_passes_is_not_confirmed_and_a_read_did_not_happen(call: str) -> None:
    async def late() -> None:
        server = Server(travel_s=11)
        try:
            told = await CALLS[call](server.table)
            error = told[0]
        except (UnconfirmedError, UnavailableError) as raised:
            error = raised
        assert anyio.current_time() == 10 and "DEADLINE_EXCEEDED" in str(error)
        assert type(error) is (UnavailableError if call == "read" else UnconfirmedError)

    run_world(late, seed=1)
