"""`BigtableTable`, one Bigtable table spoken to in raw protobuf messages over `grpc.aio`, and the words for its requests.

    check_and_mutate    one atomic row operation: which mutations are applied depends on whether a predicate yields a cell
    mutate, increment   the same without a predicate; `increment` tells the server's time of its own write
    read, scan          the cells of one row; of a page of rows in byte order

The messages are the client package's own, beneath proto-plus, which alone would double the CPU of a call. Each request
is sent once: what may be repeated is decided by the protocol, not here. *Failure*: one table below. A mutation that
was sent and never answered may land later, so whatever does not prove the contrary is `UnconfirmedError`. A read
has no effect: it is `UnavailableError`. `grpc.aio` runs on asyncio only, on the event loop that opened the channel, and does not
survive a fork. Rows, entries and retries do not belong here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode

import anyio
import grpc
import grpc.aio
from anyio.lowlevel import checkpoint_if_cancelled
from google.cloud.bigtable_v2.types import bigtable, data

from changelog.errors import ConfigurationError, InvalidRequestError, TieredError, UnavailableError, UnconfirmedError

CALL_TIMEOUT_S = 10.0
SCAN_TIMEOUT_S = 60.0
SERVER_TIME = -1
"""As a cell's timestamp: the server puts its own, in whole milliseconds."""

_SERVICE = "/google.bigtable.v2.Bigtable/"
_UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
"""gRPC's own limit of 4 MiB is below that of a cell."""

Message = Any
"""A protobuf message: the package's classes are made at run time, so nothing is known of their types."""

_Filter, _Mutation = data.RowFilter.pb(), data.Mutation.pb()
_ColumnRange, _ValueRange, _TimestampRange = data.ColumnRange.pb(), data.ValueRange.pb(), data.TimestampRange.pb()
_RowSet, _RowRange, _Rule = data.RowSet.pb(), data.RowRange.pb(), data.ReadModifyWriteRule.pb()


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. Its timestamp is in microseconds since 1970, whole milliseconds."""

    family: str
    column: bytes
    timestamp_us: int
    value: bytes


@dataclass(frozen=True, slots=True)
class CellRow:
    """A row's cells as the filter yields them: by family, by column, newest first."""

    key: bytes
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class KeySpan:
    """Row keys from `start` (inclusive) to `end` (exclusive; empty: no end)."""

    start: bytes
    end: bytes

    @staticmethod
    def prefix(prefix: bytes) -> KeySpan:
        return KeySpan(prefix, after_prefix(prefix))

    def beginning(self, start: bytes) -> KeySpan | None:
        """Its part from `start` on; None: there is none."""
        start = max(self.start, start)
        return None if self.end and start >= self.end else KeySpan(start, self.end)


def after_prefix(prefix: bytes) -> bytes:
    """The first bytes after all that begin with `prefix`; empty: nothing is."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b""


# --- filters and mutations ---------------------------------------------------------------------------


def chain(*filters: Message) -> Message:
    """Each filter sees what the one before it yields."""
    return _Filter(chain=_Filter.Chain(filters=filters))


def either(*filters: Message) -> Message:
    """What any of them yields; a cell may come more than once."""
    return _Filter(interleave=_Filter.Interleave(filters=filters))


def family_is(family: str) -> Message:
    return _Filter(column_range_filter=_ColumnRange(family_name=family))


def column_is(family: str, column: bytes) -> Message:
    return _Filter(
        column_range_filter=_ColumnRange(family_name=family, start_qualifier_closed=column, end_qualifier_closed=column)
    )


def value_is(value: bytes) -> Message:
    return _Filter(value_range_filter=_ValueRange(start_value_closed=value, end_value_closed=value))


def value_before(value: bytes) -> Message:
    return _Filter(value_range_filter=_ValueRange(end_value_open=value))


def value_after(value: bytes) -> Message:
    return _Filter(value_range_filter=_ValueRange(start_value_open=value))


def value_between(value: bytes, end: bytes) -> Message:
    """Both ends exclusive."""
    return _Filter(value_range_filter=_ValueRange(start_value_open=value, end_value_open=end))


def value_begins_with(prefix: bytes) -> Message:
    return _Filter(value_range_filter=_ValueRange(start_value_closed=prefix, end_value_open=after_prefix(prefix)))


def value_begins_not_with(prefix: bytes) -> Message:
    return either(value_before(prefix), _Filter(value_range_filter=_ValueRange(start_value_closed=after_prefix(prefix))))


def timestamp_in(start_us: int, end_us: int) -> Message:
    """From `start_us` (inclusive) to `end_us` (exclusive; 0: no end)."""
    return _Filter(timestamp_range_filter=_TimestampRange(start_timestamp_micros=start_us, end_timestamp_micros=end_us))


NEWEST = _Filter(cells_per_column_limit_filter=1)
"""Of each column its newest cell: older ones stay until they are collected."""

WITHOUT_VALUES = _Filter(strip_value_transformer=True)


def set_cell(family: str, column: bytes, value: bytes, timestamp_us: int = SERVER_TIME) -> Message:
    return _Mutation(
        set_cell=_Mutation.SetCell(family_name=family, column_qualifier=column, timestamp_micros=timestamp_us, value=value)
    )


def delete_column(family: str, column: bytes) -> Message:
    return _Mutation(delete_from_column=_Mutation.DeleteFromColumn(family_name=family, column_qualifier=column))


def delete_family(family: str) -> Message:
    return _Mutation(delete_from_family=_Mutation.DeleteFromFamily(family_name=family))


DELETE_ROW = _Mutation(delete_from_row=_Mutation.DeleteFromRow())


# --- the table ---------------------------------------------------------------------------------------


class Channel(Protocol):
    """What is used of `grpc.aio.Channel`."""

    def unary_unary(self, method: str, request_serializer: Any = ..., response_deserializer: Any = ...) -> Any: ...
    def unary_stream(self, method: str, request_serializer: Any = ..., response_deserializer: Any = ...) -> Any: ...


def insecure_channel(host: str) -> grpc.aio.Channel:
    """To an emulator at `host:port`. The caller closes it."""
    return grpc.aio.insecure_channel(host, options=_UNLIMITED)


class BigtableTable:
    """`name`: projects/…/instances/…/tables/…. The channel is the caller's, who closes it after the last call.

    Every call has a deadline: `timeout_s` seconds, a page of a scan `SCAN_TIMEOUT_S`.
    """

    def __init__(self, channel: Channel, name: str, app_profile: str = "", timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.name = name
        self._target = {"table_name": name} | ({"app_profile_id": app_profile} if app_profile else {})
        self._routing = (("x-goog-request-params", urlencode(self._target, safe="/")),)
        self._timeout_s = timeout_s
        self._check_and_mutate = _unary(channel, "CheckAndMutateRow", bigtable.CheckAndMutateRowRequest, bigtable.CheckAndMutateRowResponse)
        self._mutate = _unary(channel, "MutateRow", bigtable.MutateRowRequest, bigtable.MutateRowResponse)
        self._modify = _unary(channel, "ReadModifyWriteRow", bigtable.ReadModifyWriteRowRequest, bigtable.ReadModifyWriteRowResponse)
        self._read = channel.unary_stream(
            f"{_SERVICE}ReadRows", bigtable.ReadRowsRequest.pb().SerializeToString, bigtable.ReadRowsResponse.pb().FromString
        )

    async def check_and_mutate(
        self, key: bytes, predicate: Message, *, then: Sequence[Message] = (), otherwise: Sequence[Message] = (),
        timeout_s: float | None = None,
    ) -> bool:
        """Whether the predicate yielded a cell; in the same step `then` was applied if so, `otherwise` if not."""
        request = bigtable.CheckAndMutateRowRequest.pb()(
            row_key=key, predicate_filter=predicate, true_mutations=then, false_mutations=otherwise, **self._target
        )
        timeout_s = self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s)
        response = await self._write(self._check_and_mutate, request, timeout_s)
        return bool(response.predicate_matched)

    async def mutate(self, key: bytes, *mutations: Message) -> None:
        request = bigtable.MutateRowRequest.pb()(row_key=key, mutations=mutations, **self._target)
        await self._write(self._mutate, request, self._timeout_s)

    async def increment(self, key: bytes, family: str, column: bytes) -> Cell:
        """Counts the cell up by one; returns it, with the server's time of this write."""
        rule = _Rule(family_name=family, column_qualifier=column, increment_amount=1)
        request = bigtable.ReadModifyWriteRowRequest.pb()(row_key=key, rules=[rule], **self._target)
        response = await self._write(self._modify, request, self._timeout_s)
        cell = response.row.families[0].columns[0].cells[0]
        return Cell(family, column, cell.timestamp_micros, cell.value)

    async def read(self, key: bytes, yields: Message = NEWEST) -> CellRow | None:
        """The cells that the filter yields; None: there are none."""
        rows = await self._rows(_RowSet(row_keys=[key]), yields, 1, self._timeout_s)
        return rows[0] if rows else None

    async def read_all(self, keys: Iterable[bytes], yields: Message = NEWEST) -> list[CellRow]:
        """Those of the rows that exist, in byte order. Some hundred keys at most: a request has 512 KiB."""
        return await self._rows(_RowSet(row_keys=keys), yields, 0, self._timeout_s)

    async def scan(self, spans: Iterable[KeySpan], yields: Message, limit: int) -> list[CellRow]:
        """The first `limit` rows in byte order of which the filter yields a cell. Fewer: there are no more."""
        ranges = [_RowRange(start_key_closed=span.start, end_key_open=span.end) if span.end else _RowRange(start_key_closed=span.start)
                  for span in spans]  # fmt: skip
        return await self._rows(_RowSet(row_ranges=ranges), yields, limit, SCAN_TIMEOUT_S) if ranges else []

    async def _rows(self, rows: Message, yields: Message, limit: int, timeout_s: float) -> list[CellRow]:
        request = bigtable.ReadRowsRequest.pb()(rows=rows, filter=yields, rows_limit=limit, **self._target)
        merge = RowMerge()
        found: list[CellRow] = []
        stream = self._begun(self._read, request, timeout_s)
        try:
            async for response in stream:
                found.extend(merge.add(response.chunks))
        except (grpc.RpcError, grpc.aio.UsageError) as error:
            raise _translated(error, f"reading {self.name}", sent=False) from error
        finally:
            stream.cancel()
        merge.end()
        return found

    async def _write(self, method: Any, request: Message, timeout_s: float) -> Message:
        call = self._begun(method, request, timeout_s)
        try:
            return await call
        except anyio.get_cancelled_exc_class():
            # gRPC raises one of its own making, which no scope would know for its own: a scope's is raised here instead.
            await checkpoint_if_cancelled()
            raise
        except grpc.RpcError as error:
            raise _translated(error, f"writing the row {request.row_key.decode(errors='replace')} of {self.name}", sent=True) from error

    def _begun(self, method: Any, request: Message, timeout_s: float) -> Any:
        try:
            return method(request, timeout=timeout_s, metadata=self._routing)
        except grpc.aio.UsageError as error:
            raise UnavailableError(f"{self.name} cannot be reached, the channel is closed: open the storage again ({error})") from error


def _unary(channel: Channel, method: str, request: Any, response: Any) -> Any:
    return channel.unary_unary(_SERVICE + method, request.pb().SerializeToString, response.pb().FromString)


# --- failure -----------------------------------------------------------------------------------------

_ADVICE: dict[grpc.StatusCode, tuple[type[TieredError], str]] = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: (UnavailableError, "it was turned away; lower the load or add nodes"),
    grpc.StatusCode.UNAUTHENTICATED: (UnavailableError, "the credentials were not accepted; renew them"),
    grpc.StatusCode.PERMISSION_DENIED: (ConfigurationError, "grant roles/bigtable.user on the table to this identity"),
    grpc.StatusCode.NOT_FOUND: (
        ConfigurationError, "create the table, with families fg, fm, ff for objects and fc for the changelog (cbt createtable, Terraform)"
    ),
    grpc.StatusCode.FAILED_PRECONDITION: (
        ConfigurationError, "use an app profile with single-cluster routing and single-row transactions allowed"
    ),
    grpc.StatusCode.UNIMPLEMENTED: (ConfigurationError, "this server is no Bigtable"),
    grpc.StatusCode.INVALID_ARGUMENT: (InvalidRequestError, "the request breaks a limit"),
    grpc.StatusCode.OUT_OF_RANGE: (InvalidRequestError, "the request breaks a limit"),
}
"""Answers that prove that nothing was written. Every other status of a mutation proves nothing."""


def _translated(error: Any, doing: str, *, sent: bool) -> TieredError:
    """`sent`: it may have had an effect."""
    if not isinstance(error, grpc.aio.AioRpcError):  # only of a stream whose channel was closed meanwhile
        return UnavailableError(f"{doing} failed: {error}")
    code, details = error.code(), error.details()
    if code in _ADVICE:
        kind, advice = _ADVICE[code]
        return kind(f"{doing} failed with {code.name}: {advice} ({details})")
    if sent:
        return UnconfirmedError(f"{doing} was never confirmed: {code.name} ({details})")
    return UnavailableError(f"{doing} failed with {code.name}: {details}")


# --- what ReadRows answers ---------------------------------------------------------------------------


class RowMerge:
    """Puts rows together from the chunks of ReadRows, without I/O.

    A chunk is a cell or a piece of one; it leaves out the key, family and column that did not change. `value_size`
    announces that more pieces of the cell follow; a row counts only when committed, and one that is reset begins
    again. A message may hold many rows or a part of one. What breaks these rules is `UnavailableError`: read again.
    """

    _key: bytes | None
    _cells: list[Cell]
    _pieces: list[bytes]

    def __init__(self) -> None:
        self._last_key = b""
        self._clear()

    def add(self, chunks: Iterable[Message]) -> Iterator[CellRow]:
        """The rows that these chunks, the next in order, commit."""
        for chunk in chunks:
            if chunk.reset_row:
                self._check(self._key is not None and not chunk.row_key and not chunk.value, "resets no row")
                self._clear()
                continue
            self._begin(chunk)
            self._pieces.append(chunk.value)
            if chunk.value_size:
                self._check(not chunk.commit_row, "commits a row in the middle of a cell")
                self._split = True
                continue
            self._end_cell()
            if chunk.commit_row:
                yield self._commit()

    def end(self) -> None:
        """The stream has ended."""
        self._check(self._key is None, "ends in the middle of a row")

    def _begin(self, chunk: Message) -> None:
        if self._split:
            self._check(not chunk.HasField("family_name") and not chunk.HasField("qualifier"), "begins a cell in the middle of another")
            self._check(chunk.row_key in (b"", self._key), "begins a row in the middle of another")
            return
        if self._key is None:
            self._check(chunk.row_key > self._last_key, "does not begin a row in order")
            self._check(chunk.HasField("family_name"), "begins a row without a family")
            self._key = chunk.row_key
        self._check(chunk.row_key in (b"", self._key), "begins a row in the middle of another")
        if chunk.HasField("family_name"):
            self._check(chunk.HasField("qualifier"), "begins a family without a column")
            self._family = chunk.family_name.value
        if chunk.HasField("qualifier"):
            self._column = chunk.qualifier.value
        self._timestamp_us = chunk.timestamp_micros

    def _end_cell(self) -> None:
        self._cells.append(Cell(self._family, self._column, self._timestamp_us, b"".join(self._pieces)))
        self._pieces, self._split = [], False

    def _commit(self) -> CellRow:
        assert self._key is not None
        row = CellRow(self._key, tuple(self._cells))
        self._last_key = self._key
        self._clear()
        return row

    def _clear(self) -> None:
        self._key, self._cells, self._pieces, self._split = None, [], [], False
        self._family, self._column, self._timestamp_us = "", b"", 0

    def _check(self, holds: bool, fault: str) -> None:
        if not holds:
            raise UnavailableError(f"ReadRows answered with a chunk that {fault}, after row {self._last_key!r}; read again")
