"""`MemoryBigtable` beside Google's emulator.

Both get every request. Every answer is compared, and so is all that they hold.

What chance chooses: rows of any content, what the adapters do with them, and filters of every kind that adapters build.
Not compared are the times of the two clocks, and the order of families, which the service does not promise.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from itertools import pairwise
from typing import Any

import grpc.aio
import pytest
from google.cloud import bigtable_v2 as bigtable

from changelog.base.errors import TieredError
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import (
    DELETE_ROW,
    NEWEST,
    SERVER_TIME,
    WITHOUT_VALUES,
    BigtableTable,
    Channel,
    KeySpan,
    Message,
    chain,
    column_is,
    delete_column,
    delete_family,
    either,
    family_is,
    insecure_channel,
    set_cell,
    timestamp_in,
    value_after,
    value_before,
    value_begins_not_with,
    value_begins_with,
    value_between,
    value_is,
)
from changelog.bigtable.log import BigtableChangeLog
from changelog.bigtable.row_merge import CellRow, RowMerge
from changelog.change import LOG_PREFIX, Change, ChangeId, Entry, Unreadable
from changelog.log import LOG_END, KeyRange
from emulators.bigtable.faulty_channel import FaultyCall
from emulators.bigtable.memory import MemoryBigtable, MemoryChannel
from tiered.bigtable.cells import LEGACY_FAMILIES
from tiered.bigtable.rows import BigtableRows
from tiered.metadata import NS_PER_S, Metadata, TimeToLive, encode_metadata
from tiered.object_id import blob_name
from tiered.provision.schema import FAMILIES
from tiered.services.backends import Inline, RowState, Tombstone

pytestmark = pytest.mark.anyio

SEEDS, STEPS = 8, 60
PATHS = ["notes/objects/a", "notes/objects/b", "notes/uploads/c"]
TOKENS = [ChangeId(f"018bcfe5-6800-7000-8000-00000000000{digit}") for digit in range(3)]
PAST_US, MINUTE_US, HOUR_US = 1_700_000_000_000_000, 60_000_000, 3_600_000_000
COLUMNS = {"fg": b"pmrtv", "fm": b"pmrtv", "fpg": b"p", "fpm": b"p"}
METADATA = encode_metadata(Metadata(TimeToLive(ns=NS_PER_S)))
VALUES = [
    b"", b"\0", b"payload", METADATA, b"{}", b'{"is_redirect_tombstone":true}', b"\xff\xfe", *(token.encode() for token in TOKENS),
    *(path.encode() for path in PATHS), *(blob_name(path, token).encode() for path in PATHS for token in TOKENS),
]  # fmt: skip


class SeededRuntime(SystemRuntime):
    """The machine's clocks, which the emulator has too, and repeatable chance."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# --- both at once ------------------------------------------------------------------------------------


class Twins:
    """Implements `Channel` on two servers. `requests`: how many had one answer from both; any other fails the test."""

    def __init__(self, real: Channel, memory: MemoryChannel) -> None:
        self.requests = 0
        self._real = real
        self._memory = memory

    def unary_unary(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        real = self._real.unary_unary(method, request_serializer, response_deserializer)

        async def ask_real(request: Message) -> list[Message]:
            return [await real(request, timeout=10)]

        return self._callable(method.removeprefix("/google.bigtable.v2.Bigtable/"), ask_real)

    def unary_stream(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        real = self._real.unary_stream(method, request_serializer, response_deserializer)

        async def ask_real(request: Message) -> list[Message]:
            return [message async for message in real(request, timeout=10)]

        return self._callable(method.removeprefix("/google.bigtable.v2.Bigtable/"), ask_real)

    def _callable(self, method: str, ask_real: Callable[[Message], Awaitable[list[Message]]]) -> Any:
        async def ask_both(request: Message) -> Any:
            expected, found = await outcome(ask_real(request)), await outcome(self._memory.send(method, request))
            assert plain(method, found) == plain(method, expected), f"{method} {request}"
            self.requests += 1
            if isinstance(expected, grpc.aio.AioRpcError):
                raise expected
            return expected

        return lambda request, *, timeout, metadata=None: FaultyCall(lambda: ask_both(request))


async def outcome(answer: Awaitable[list[Message]]) -> Any:
    """Its messages, or the error that it raises."""
    try:
        return await answer
    except grpc.aio.AioRpcError as error:
        return error


def plain(method: str, messages: Any) -> list[Any]:
    """What an answer says, without the server's time and however it is cut into messages."""
    if isinstance(messages, grpc.aio.AioRpcError):
        return [messages.code()]
    if method == "ReadRows":
        merge = RowMerge()
        # A scan in bulk takes answers as bytes, and decodes them itself.
        answers = [bigtable.ReadRowsResponse.pb().FromString(each) if isinstance(each, bytes) else each for each in messages]
        rows = [row for answer in answers for row in merge.add(answer.chunks)]
        merge.end()
        return [(row.key, plain_cells(row)) for row in rows]
    if method == "ReadModifyWriteRow":
        [cell] = messages[0].row.families[0].columns[0].cells
        return [messages[0].row.key, plain_us(cell.timestamp_micros), cell.value]
    if method == "MutateRows":
        return sorted((entry.index, entry.status.code) for message in messages for entry in message.entries)
    return [str(message) for message in messages]


def plain_cells(row: CellRow) -> list[Any]:
    """Two versions that the server dated may be one, if it wrote them within a millisecond."""
    cells = sorted(row.cells, key=lambda cell: cell.family)
    found = [(cell.family, cell.column, plain_us(cell.timestamp_us), cell.value) for cell in cells]
    return [cell for before, cell in pairwise([None, *found]) if cell is not None and (cell != before or "now" not in cell)]


def plain_us(timestamp_us: int) -> int | str:
    return "now" if abs(timestamp_us - SystemRuntime().wall_ns() // 1000) < 10 * MINUTE_US else timestamp_us


@pytest.fixture
async def twins(
    anyio_backend: str, bigtable_host: str, fresh_table: Callable[[], AbstractAsyncContextManager[BigtableTable]]
) -> AsyncIterator[tuple[Twins, BigtableTable]]:
    """The pair, and the table in it."""
    families = {family: FAMILIES.get(family, FAMILIES["fm"]) for family in (*FAMILIES, *LEGACY_FAMILIES)}
    async with fresh_table() as table, insecure_channel(bigtable_host) as channel:
        server = MemoryBigtable(SystemRuntime(), {table.name: families}, piece_bytes=9, message_chunks=4)
        pair = Twins(channel, MemoryChannel(server))
        yield pair, BigtableTable(pair, table.name)


# --- what chance chooses -----------------------------------------------------------------------------


class Chooser:
    """Rows, calls and filters.

    `timestamps` are far from now, so that no answer depends on the millisecond it was made in.
    """

    def __init__(self, seed: int, table: BigtableTable) -> None:
        self.runtime = SeededRuntime(seed)
        self.chance = self.runtime.random
        self.table = table
        self.rows = BigtableRows(table, self.runtime, LEGACY_FAMILIES if seed % 2 else ())
        self.log = BigtableChangeLog(table, self.runtime)
        self.entries: list[Entry | Unreadable] = []
        self.changes: list[Change] = []
        now_us = self.runtime.wall_ns() // 1_000_000 * 1000
        self.timestamps = [PAST_US, PAST_US + 1000, now_us - HOUR_US, now_us + HOUR_US, now_us + 2 * HOUR_US]

    def cell_at(self) -> tuple[str, bytes]:
        if self.chance.random() < 0.2:
            return "ff", f"{self.chance.choice('wr')}:{self.chance.choice(TOKENS)}".encode()
        family = self.chance.choice(list(COLUMNS))
        return family, bytes([self.chance.choice(COLUMNS[family])])

    def filter(self, depth: int = 2) -> Message:
        """Of a kind that adapters build."""
        a, b = sorted(self.chance.sample(VALUES[1:], 2))
        kinds: list[Callable[[], Message]] = [
            lambda: family_is(self.cell_at()[0]), lambda: column_is(*self.cell_at()), lambda: column_is(*self.cell_at()),
            lambda: value_is(a), lambda: value_before(a), lambda: value_after(a), lambda: value_between(a, b),
            lambda: value_between(b"", b),
            lambda: value_begins_with(a[:4]), lambda: value_begins_not_with(a[:4]), lambda: NEWEST,
            lambda: timestamp_in(*sorted(self.chance.sample(self.timestamps, 2))),
            lambda: timestamp_in(self.chance.choice(self.timestamps), 0),
        ]  # fmt: skip
        nested: list[Callable[[], Message]] = [lambda: chain(*self.filters(depth)), lambda: either(*self.filters(depth))]
        chosen = self.chance.choice([*kinds, *(nested * 5 if depth else ())])()
        return chain(chosen, WITHOUT_VALUES) if depth == 2 and self.chance.random() < 0.2 else chosen

    def filters(self, depth: int) -> list[Message]:
        return [self.filter(depth - 1) for _ in range(self.chance.randint(2, 4))]

    def mutations(self) -> list[Message]:
        kinds: list[Callable[[], Message]] = [
            *[lambda: set_cell(*self.cell_at(), self.chance.choice(VALUES), self.chance.choice(self.timestamps))] * 6,
            lambda: set_cell("fm", b"t", b"{}", SERVER_TIME), lambda: delete_column(*self.cell_at()),
            lambda: delete_family(self.cell_at()[0]), lambda: DELETE_ROW,
        ]  # fmt: skip
        return [self.chance.choice(kinds)() for _ in range(self.chance.randint(1, 6))]

    def state(self, path: str, token: ChangeId) -> RowState:
        deadline_ns = self.chance.choice([None, *(each * 1000 for each in self.timestamps)])
        match self.chance.randrange(3):
            case 0:
                return Tombstone(blob_name(path, token), None, deadline_ns, token)
            case 1:
                return Inline(Metadata(time_expires_ns=deadline_ns, size=3), b"new", token)
        return None

    async def act(self) -> None:
        """One call on an adapter, or a request that one could send."""
        path, token = self.chance.choice(PATHS), self.chance.choice(TOKENS)
        key, state = path.encode(), self.state(path, token)
        match self.chance.randrange(11):
            case 0 | 1 | 2:
                await self.table.mutate(key, *self.mutations())
            case 3:
                await self.table.mutate_rows([(each.encode(), self.mutations()) for each in PATHS])
            case 4:
                await self.table.check_and_mutate(key, self.filter(), then=self.mutations(), otherwise=self.mutations())
            case 5:
                await self.table.scan([KeySpan(b"", b"~"), KeySpan(key, b"")], self.filter(), self.chance.randrange(4))
            case 6:
                await self.table.read_all([*map(str.encode, PATHS), b"none"], self.filter())
            case 7:
                expected = self.chance.choice([None, path, blob_name(path, token), blob_name(path, self.chance.choice(TOKENS))])
                await self.rows.swap(path, token, expected, state, self.runtime.boot_time() + 60)
            case 8:
                await self.rows.settle(path, token)
            case 9:
                await (self.rows.put_inline(path, token, state) if isinstance(state, Inline) else self.rows.delete_inline(path, token))
            case _:
                await self.act_reading(path)

    async def act_reading(self, path: str) -> None:
        await self.rows.scan(self.chance.choice(["", "notes/", "~"]), self.chance.choice(["", *PATHS]).encode(), self.chance.randint(1, 3))
        seen = (await self.rows.read(path, marks=self.chance.random() < 0.5)).state
        if seen is not None:
            await self.rows.touch(path, seen, self.chance.choice(self.timestamps) * 1000)

    async def act_on_log(self) -> None:
        now_ms = await self.log.now_ms()
        entry = self.chance.choice(self.entries) if self.entries else None
        match entry, self.chance.randrange(13):
            case (None, _) | (_, 0 | 1):
                change = self.chance.choice([*self.changes[-2:], Change(ChangeId.new(self.runtime), PATHS[0], None, PATHS[0])])
                self.changes.append(change)
                await self.log.record(change, self.chance.choice(["me", ""]))
            case _, 2:
                raw = self.chance.choice([b"", b"[]", b'{"id":"notes/objects/k", "old":null, "new":null}'])
                cell = set_cell("fc", b"c", raw, self.chance.choice(self.timestamps))
                await self.table.mutate(f"{LOG_PREFIX}07/{ChangeId.new(self.runtime)}".encode(), cell)
            case Entry(), 3:
                await self.log.renew([each for each in self.entries if isinstance(each, Entry)])
            case Entry(), 4:
                await self.log.claim(entry, self.chance.choice(["recovery-1", "recovery-2"]))
            case Entry(), 5:
                await self.log.release(entry, self.chance.choice([None, now_ms]))
            case Entry(), 6:
                await self.log.forget(entry)
            case (Entry() | Unreadable()) as any_entry, 7:
                await self.log.park(any_entry, "failed")
            case (Entry() | Unreadable()) as any_entry, 8:
                await self.log.retry(any_entry)
            case Entry(), 9:
                await self.log.keep(entry)
                await self.log.kept(KeyRange(LOG_PREFIX, LOG_END), 2)
            case _, 10:
                key, version = self.chance.choice(["a", "é"]), self.chance.randint(1, 9)
                await self.log.write_values({key: self.chance.choice([None, b"\0", b"value"]), "b": b"1"}, version)
                await self.log.scan_values("", "z", self.chance.randint(1, 3))
            case _, 11:
                await self.log.read_values(["a", "b", "é"])
                await self.log.erase_values([self.chance.choice(["a", "b"])])
            case _:
                await self.log.read(self.chance.choice(self.changes).id if self.changes else TOKENS[0])
                await self.log.collect(3)
        if self.chance.random() < 0.5:  # else the next call acts on what was seen before
            self.entries = list((await self.log.entries("", 100)).entries)
        now_ms += self.chance.choice([-2 * HOUR_US, 0, 2 * HOUR_US]) // 1000
        await self.log.stale(KeyRange(LOG_PREFIX, LOG_END), now_ms, 10 * MINUTE_US // 1000, 2)


# --- the comparison ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_any_requests_on_rows_have_the_same_answers_and_leave_the_same(twins: tuple[Twins, BigtableTable], seed: int) -> None:
    pair, table = twins
    chooser = Chooser(seed, table)
    for _ in range(STEPS):
        with suppress(TieredError):  # contents that no adapter writes
            await chooser.act()
        await table.scan([KeySpan(b"", b"")], WITHOUT_VALUES, 0)
    await table.scan([KeySpan(b"", b"")], NEWEST, 0)
    assert pair.requests > 2 * STEPS


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_any_requests_of_the_changelog_have_the_same_answers_and_leave_the_same(
    twins: tuple[Twins, BigtableTable], seed: int
) -> None:
    pair, table = twins
    chooser = Chooser(seed, table)
    for _ in range(STEPS // 2):
        with suppress(TieredError):
            await chooser.act_on_log()
        await table.scan([KeySpan(b"", b"")], NEWEST, 0)
    assert pair.requests > 2 * STEPS


async def test_a_difference_is_found(twins: tuple[Twins, BigtableTable]) -> None:
    """A twin that has lost a row has another answer."""
    pair, table = twins
    await table.mutate(b"key", set_cell("fm", b"p", b"value"))
    pair._memory._server.tables[table.name].put(b"key", ())
    with pytest.raises(AssertionError, match="ReadRows"):
        await table.read(b"key")
