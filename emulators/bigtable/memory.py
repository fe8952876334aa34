"""`MemoryBigtable`: the requests of Bigtable's data API that the adapters send, on tables in memory, in any event loop.

    BigtableRows, BigTableChangeLog --message--> MemoryChannel --(travels)--> MemoryBigtable --> MemoryTable

Each request takes effect at once when it has travelled. Each row is changed as a whole or not at all. MutateRows and
scans have no order and no snapshot between rows. Timestamps come from the server's own clock, in whole milliseconds.
Two writes of a column in one millisecond make one cell. A cell that its family's rule allows to go stays visible until
`collect` removes it, at any moment and each cell by itself. Answers come in chunks: pieces of a cell, parts of a row,
many rows in one message.

*Failure*: a real `grpc.aio.AioRpcError`. If its deadline passes, a call ends with DEADLINE_EXCEEDED, whether or not it
took effect. A request that no adapter sends raises `NotImplementedError`. A test compares all this with Google's
emulator, request by request.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random  # noqa: TID251 - only the type; the caller gives the chance
from typing import Any

import anyio
import grpc
from google.cloud.bigtable_admin_v2.types import GcRule
from google.cloud.bigtable_v2.types import bigtable

from changelog.base.runtime import Runtime
from changelog.bigtable.channel import SERVER_TIME, Message
from changelog.bigtable.row_merge import Cell
from emulators.bigtable.faulty_channel import FaultyCall, rpc_error
from emulators.bigtable.filters import KeyBounds, place, yields
from emulators.world.runtime import SimulatedService

Cells = tuple[Cell, ...]
Changed = Callable[[str, bytes, Message | None], None]
"""Told of a row's change as it happens: table, key, and the cause.

The cause is a request, an entry of MutateRows, or None for garbage collection.
"""

US_PER_MS = 1000
US_PER_S = 1_000_000
COUNTER_BYTES = 8
SAMPLED_ROWS = 4
"""One of so many rows is sampled."""

_CheckAndMutateRowResponse, _MutateRowResponse = bigtable.CheckAndMutateRowResponse.pb(), bigtable.MutateRowResponse.pb()
_MutateRowsResponse, _ModifyResponse = bigtable.MutateRowsResponse.pb(), bigtable.ReadModifyWriteRowResponse.pb()
_SampleResponse = bigtable.SampleRowKeysResponse.pb()
_ReadRowsResponse, _Chunk = bigtable.ReadRowsResponse.pb(), bigtable.ReadRowsResponse.CellChunk.pb()


class MemoryTable:
    """`rows`: key -> cells, in order, with those that may be collected. A row without cells does not exist.

    `families`: their rules.
    """

    def __init__(self, families: Mapping[str, GcRule]) -> None:
        self.families = families
        self.rows: dict[bytes, Cells] = {}
        self._keys: list[bytes] = []

    def put(self, key: bytes, cells: Cells) -> None:
        """Sets the row's cells."""
        if cells and key not in self.rows:
            insort(self._keys, key)
        if cells:
            self.rows[key] = cells
        elif self.rows.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def first(self, start: bytes, end: bytes | None) -> bytes | None:
        """Returns the first key of a row, from `start` (inclusive) to `end` (exclusive), or None."""
        index = bisect_left(self._keys, start)
        key = self._keys[index] if index < len(self._keys) else None
        return key if key is not None and (end is None or key < end) else None

    def mutated(self, key: bytes, mutations: Sequence[Message], now_us: int) -> Cells:
        """Returns the row's cells after the mutations, in their order.

        Raises the service's error if a mutation is wrong.
        """
        if not key or not mutations:
            raise rpc_error(grpc.StatusCode.INVALID_ARGUMENT, "a mutation has no row key" if not key else "No mutations provided")
        held = {place(cell): cell for cell in self.rows.get(key, ())}
        for mutation in mutations:
            kind = mutation.WhichOneof("mutation")
            part: Message = getattr(mutation, kind or "set_cell")
            if kind != "delete_from_row":
                self.check_family(part.family_name)
            match kind:
                case "set_cell":
                    cell = Cell(part.family_name, part.column_qualifier, _timestamp_us(part.timestamp_micros, now_us), part.value)
                    held[place(cell)] = cell
                case "delete_from_column" if not part.HasField("time_range"):
                    column = part.family_name, part.column_qualifier
                    held = {at: cell for at, cell in held.items() if at[:2] != column}
                case "delete_from_family":
                    held = {at: cell for at, cell in held.items() if at[0] != part.family_name}
                case "delete_from_row":
                    held = {}
                case _:
                    raise NotImplementedError(f"MemoryBigtable has no mutation {mutation}")
        return tuple(held[at] for at in sorted(held))

    def check_family(self, family: str) -> None:
        if family not in self.families:
            raise rpc_error(grpc.StatusCode.NOT_FOUND, f"Requested column family {family} not found")

    def kept(self, key: bytes, now_us: int, goes: Callable[[], bool]) -> Cells:
        """Returns the row's cells without those that a rule allows to go and that `goes` chooses."""
        found: list[Cell] = []
        column, version = None, 0
        for cell in self.rows[key]:
            column, version = ((cell.family, cell.column), 1) if (cell.family, cell.column) != column else (column, version + 1)
            if not (_may_go(self.families[cell.family], cell, version, now_us) and goes()):
                found.append(cell)
        return tuple(found)


class MemoryBigtable(SimulatedService):
    """The server. `tables`: by their full name. `changed`: observers of every effect. `runtime`: the server's own.

    In its answers, cells are cut into pieces of `piece_bytes` bytes, and messages have `message_chunks` chunks.
    """

    def __init__(
        self, runtime: Runtime, tables: Mapping[str, Mapping[str, GcRule]], *, piece_bytes: int = 1 << 20, message_chunks: int = 100
    ) -> None:
        super().__init__(runtime)
        self.tables = {name: MemoryTable(families) for name, families in tables.items()}
        self.changed: list[Changed] = []
        self._piece_bytes = piece_bytes
        self._message_chunks = message_chunks
        self._methods: dict[str, Callable[[Message], list[Message]]] = {
            "MutateRow": self._mutate_row,
            "MutateRows": self._mutate_rows,
            "CheckAndMutateRow": self._check_and_mutate_row,
            "ReadModifyWriteRow": self._read_modify_write_row,
            "SampleRowKeys": self._sample_row_keys,
        }

    async def call(self, method: str, request: Message) -> list[Message]:
        """Answers one request, which travels first. Returns its only answer, or all messages of a stream."""
        pause_s = await self._travel()  # the pause between two rows of a slow scan
        if method == "ReadRows":
            return await self._read_rows(request, pause_s)
        if method not in self._methods:
            raise NotImplementedError(f"MemoryBigtable has no method {method}")
        return self._methods[method](request)

    def collect(self, chance: Random, share: float = 1.0, limit: int | None = None) -> int:
        """Collects garbage. Returns how many cells were removed.

        `share`: how many of the cells that may go do go, from 0 to 1. `limit`: remove at most this many.
        """
        count = 0

        def goes() -> bool:
            nonlocal count
            gone = count != limit and chance.random() < share
            count += gone
            return gone

        for name, table in self.tables.items():
            for key in list(table.rows):
                cells = table.kept(key, self._now_us(), goes)
                if len(cells) != len(table.rows[key]):
                    self._write(name, key, cells, None)
        return count

    # --- requests ----------------------------------------------------------------------------------

    async def _read_rows(self, request: Message, pause_s: float) -> list[Message]:
        table, passes = self._table(request), yields(request.filter)
        found: list[tuple[bytes, Sequence[Cell]]] = []
        for key in _walk(table, request.rows):
            cells = passes(table.rows[key])
            if cells:
                found.append((key, cells))
                if len(found) == request.rows_limit:  # 0: no limit
                    break
            if pause_s:
                await self._runtime.sleep(pause_s)
        chunks = [chunk for key, cells in found for chunk in _chunks(key, cells, self._piece_bytes)]
        step = self._message_chunks
        return [_ReadRowsResponse(chunks=chunks[first : first + step]) for first in range(0, len(chunks), step)]

    def _mutate_row(self, request: Message) -> list[Message]:
        self._apply(request, request, request.mutations)
        return [_MutateRowResponse()]

    def _mutate_rows(self, request: Message) -> list[Message]:
        response = _MutateRowsResponse()
        for index, entry in enumerate(request.entries):
            told = response.entries.add(index=index)
            try:
                self._apply(request, entry, entry.mutations)
            except grpc.aio.AioRpcError as error:
                told.status.code, told.status.message = error.code().value[0], error.details()
        return [response]

    def _check_and_mutate_row(self, request: Message) -> list[Message]:
        if not request.true_mutations and not request.false_mutations:
            raise rpc_error(grpc.StatusCode.INVALID_ARGUMENT, "No mutations provided")
        cells = self._table(request).rows.get(request.row_key, ())
        matched = bool(cells and yields(request.predicate_filter)(cells))
        if mutations := request.true_mutations if matched else request.false_mutations:
            self._apply(request, request, mutations)
        return [_CheckAndMutateRowResponse(predicate_matched=matched)]

    def _read_modify_write_row(self, request: Message) -> list[Message]:
        table, now_us = self._table(request), self._now_us()
        held = {place(cell): cell for cell in table.rows.get(request.row_key, ())}
        response = _ModifyResponse()
        response.row.key = request.row_key
        for rule in request.rules:
            table.check_family(rule.family_name)
            if rule.WhichOneof("rule") != "increment_amount" or response.row.families:
                raise NotImplementedError("MemoryBigtable has ReadModifyWriteRow for one increment")
            newest = next((held[at] for at in sorted(held) if at[:2] == (rule.family_name, rule.column_qualifier)), None)
            counted = _counted(rule, newest, now_us)
            held[place(counted)] = counted
            family = response.row.families.add(name=counted.family)
            family.columns.add(qualifier=counted.column).cells.add(timestamp_micros=counted.timestamp_us, value=counted.value)
        self._write(request.table_name, request.row_key, tuple(held[at] for at in sorted(held)), request)
        return [response]

    def _sample_row_keys(self, request: Message) -> list[Message]:
        """Returns some of the keys, and the end of the table."""
        offset, found = 0, []
        for number, (key, cells) in enumerate(sorted(self._table(request).rows.items()), 1):
            offset += len(key) + sum(len(cell.value) for cell in cells)
            if number % SAMPLED_ROWS == 0:
                found.append(_SampleResponse(row_key=key, offset_bytes=offset))
        return [*found, _SampleResponse(offset_bytes=offset)]

    def _apply(self, request: Message, row: Message, mutations: Sequence[Message]) -> None:
        cells = self._table(request).mutated(row.row_key, mutations, self._now_us())
        self._write(request.table_name, row.row_key, cells, row)

    def _write(self, table: str, key: bytes, cells: Cells, cause: Message | None) -> None:
        self.tables[table].put(key, cells)
        for observe in self.changed:
            observe(table, key, cause)

    def _table(self, request: Message) -> MemoryTable:
        if request.table_name not in self.tables:
            raise rpc_error(grpc.StatusCode.NOT_FOUND, f"Table not found: {request.table_name}")
        return self.tables[request.table_name]

    def _now_us(self) -> int:
        return self._runtime.wall_ns() // 1_000_000 * US_PER_MS


class MemoryChannel:
    """Implements `Channel`: a connection to the server on which nothing goes wrong. It needs no asyncio."""

    def __init__(self, server: MemoryBigtable) -> None:
        self._server = server

    def unary_unary(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        """Returns the callable for one message. As gRPC does, it deserialises None if there is none, and after several
        it waits in vain.
        """
        name = method.rpartition("/")[2]

        async def only(request: Message, timeout_s: float) -> list[Message]:
            return await self._exchange(name, request, timeout_s, only=True) or [response_deserializer(None)]

        def call(request: Message, *, timeout: float, metadata: Any = None) -> FaultyCall:
            return FaultyCall(lambda: only(request, timeout))

        return call

    def unary_stream(self, method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        """Returns the callable for a stream.

        Without a `response_deserializer` the messages come as bytes, as gRPC hands them out.
        """
        name = method.rpartition("/")[2]

        async def in_bytes(request: Message, timeout_s: float) -> list[Any]:
            return [message.SerializeToString() for message in await self._exchange(name, request, timeout_s)]

        def call(request: Message, *, timeout: float, metadata: Any = None) -> FaultyCall:
            return FaultyCall(lambda: (self._exchange(name, request, timeout) if response_deserializer else in_bytes(request, timeout)))

        return call

    async def send(self, method: str, request: Message) -> list[Message]:
        """Carries one request to the server and its answers back."""
        return await self._server.call(method, request)

    async def _exchange(self, method: str, request: Message, timeout_s: float, *, only: bool = False) -> list[Message]:
        with anyio.move_on_after(timeout_s):
            messages = await self.send(method, request)
            if only and len(messages) > 1:
                await anyio.sleep_forever()
            return messages
        raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


# --- rows and cells ----------------------------------------------------------------------------------


def _walk(table: MemoryTable, rows: Message) -> Iterator[bytes]:
    """Yields the keys of the row set, in order. Each is looked up when the one before it has been read."""
    spans = [(key, key + b"\0") for key in rows.row_keys]
    for each in rows.row_ranges:
        bounds = KeyBounds.of(each, "key")
        spans.append((bounds.start, bounds.end or None))
    start = b""
    for first, end in sorted(spans, key=lambda span: span[0]) or [(b"", None)]:
        start = max(start, first)
        while (key := table.first(start, end)) is not None:
            yield key
            start = key + b"\0"


def _chunks(key: bytes, cells: Sequence[Cell], piece_bytes: int) -> Iterator[Message]:
    """Yields the chunks of one row. A field that is the same as in the chunk before is left out."""
    family = column = None
    for number, cell in enumerate(cells, 1):
        chunk = _Chunk(timestamp_micros=cell.timestamp_us)
        if number == 1:
            chunk.row_key = key
        if cell.family != family:
            chunk.family_name.value = family = cell.family
            column = None
        if cell.column != column:
            chunk.qualifier.value = column = cell.column
        for start in range(piece_bytes, len(cell.value), piece_bytes):
            chunk.value, chunk.value_size = cell.value[start - piece_bytes : start], len(cell.value)
            yield chunk
            chunk = _Chunk()
        chunk.value = cell.value[(len(cell.value) - 1) // piece_bytes * piece_bytes :] if cell.value else b""
        chunk.commit_row = number == len(cells)
        yield chunk


def _timestamp_us(wanted_us: int, now_us: int) -> int:
    if wanted_us == SERVER_TIME:
        return now_us
    if wanted_us < 0 or wanted_us % US_PER_MS:
        raise rpc_error(grpc.StatusCode.INVALID_ARGUMENT, f"Timestamp granularity mismatch: {wanted_us} is no whole millisecond")
    return wanted_us


def _counted(rule: Message, newest: Cell | None, now_us: int) -> Cell:
    """Returns the column's new cell. It is never older than the cell that it continues."""
    value, timestamp_us = (newest.value, newest.timestamp_us) if newest else (bytes(COUNTER_BYTES), 0)
    if len(value) != COUNTER_BYTES:
        raise rpc_error(grpc.StatusCode.FAILED_PRECONDITION, f"the cell has {len(value)} bytes, a counter has {COUNTER_BYTES}")
    number = int.from_bytes(value, signed=True) + rule.increment_amount
    return Cell(rule.family_name, rule.column_qualifier, max(now_us, timestamp_us), number.to_bytes(COUNTER_BYTES, signed=True))


def _may_go(rule: GcRule, cell: Cell, version: int, now_us: int) -> bool:
    """Tells whether the rule allows this cell to go. `version`: 1 is the column's newest."""
    match rule._pb.WhichOneof("rule"):
        case None:
            return False
        case "max_age":
            age_s: float = rule.max_age.total_seconds()
            return cell.timestamp_us < now_us - round(age_s * US_PER_S)
        case "max_num_versions":
            versions: int = rule.max_num_versions
            return version > versions
        case other:
            raise NotImplementedError(f"MemoryBigtable has no rule {other}")
