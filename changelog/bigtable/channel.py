"""`BigtableTable`: one Bigtable table, used through raw protobuf messages over `grpc.aio`.

    check_and_mutate    one atomic row operation: whether a predicate yields a cell decides which mutations are applied
    mutate, increment   the same without a predicate; `increment` tells the server's time of its own write
    mutate_rows         many rows at once, each for itself
    read, read_in_one   the cells of one row; the same by a unary call, which costs less, if they come in one message
    read_each           the cells of many rows, each as soon as it has come
    read_all, scan      the cells of many rows at once; of a page of rows in byte order
    read_bulk, sample   many rows at the least cost; keys that split the table
    read_columns        many rows of one cell each, at a third of that

The functions before the class make the parts of its requests: filters and mutations. The messages are those of the
client package, without proto-plus, which would double the CPU time of a call. Each request is sent once. The protocol
decides what may be repeated, not this module.

*Failure*: one table below. A mutation that was sent and never answered may land later. So an error that does not prove
the contrary is `UnconfirmedError`. A read has no effect, so there it is `UnavailableError`. `grpc.aio` runs on asyncio
only, on the event loop that opened the channel, and does not survive a fork. Rows, entries and retries do not belong
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode

import anyio
import anyio.lowlevel
import grpc
import grpc.aio
from google.cloud.bigtable_v2.types import bigtable, data

from changelog.base.errors import ConfigurationError, InvalidRequestError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.tasks import is_asked_to_end
from changelog.base.threads import in_thread
from changelog.bigtable.column_scan import ColumnScan
from changelog.bigtable.row_merge import Cell, CellRow, RowMerge
from changelog.bigtable.row_scan import RowScan
from changelog.google.authorize import Authorize

CALL_TIMEOUT_S = 10.0
SCAN_TIMEOUT_S = 60.0
BLOCKING_READS = 4
"""How many threads may read columns of one table at once."""

SERVER_TIME = -1
"""As a cell's timestamp: the server sets its own time, in whole milliseconds."""

SERVICE = "/google.bigtable.v2.Bigtable/"
CHANNEL_OPTIONS = [
    # gRPC's own limit of 4 MiB is below that of a cell.
    ("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1),
    # Otherwise equal channels would share one connection.
    ("grpc.use_local_subchannel_pool", 1),
]  # fmt: skip

Message = Any
"""A protobuf message. The package makes its classes at run time, so their types are unknown here."""

_Filter, _Mutation = data.RowFilter.pb(), data.Mutation.pb()
_ColumnRange, _ValueRange, _TimestampRange = data.ColumnRange.pb(), data.ValueRange.pb(), data.TimestampRange.pb()
_RowSet, _RowRange, _Rule = data.RowSet.pb(), data.RowRange.pb(), data.ReadModifyWriteRule.pb()
_Entry = bigtable.MutateRowsRequest.Entry.pb()
_CheckAndMutate = bigtable.CheckAndMutateRowRequest.pb()


@dataclass(frozen=True, slots=True)
class KeySpan:
    """Row keys from `start` (inclusive) to `end` (exclusive; empty: no end)."""

    start: bytes
    end: bytes

    @staticmethod
    def prefix(prefix: bytes) -> KeySpan:
        return KeySpan(prefix, after_prefix(prefix))

    def beginning(self, start: bytes) -> KeySpan | None:
        """The part from `start` on; None: there is none."""
        start = max(self.start, start)
        return None if self.end and start >= self.end else KeySpan(start, self.end)


def after_prefix(prefix: bytes) -> bytes:
    """The first key after all keys that begin with `prefix`; empty: there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b""


# --- filters and mutations ---------------------------------------------------------------------------


def chain(*filters: Message) -> Message:
    """Each filter sees what the one before it yields."""
    return _Filter(chain=_Filter.Chain(filters=filters))


def either(*filters: Message) -> Message:
    """Yields what any of the filters yields. A cell may come more than once."""
    return _Filter(interleave=_Filter.Interleave(filters=filters))


class Stamp:
    """A message, such as a filter, that is built once, for one word, and then used for other words of the same length.

    This costs a tenth of building the message each time. Each call returns a message of its own, to which more may be
    added.
    """

    def __init__(self, build: Callable[[str], Message], word: str) -> None:
        message = build(word)
        self._word = word.encode()
        self._built: bytes = message.SerializeToString()
        self._read = type(message).FromString

    def __call__(self, word: str) -> Message:
        return self._read(self._built.replace(self._word, word.encode()))


def family_is(family: str) -> Message:
    return _Filter(column_range_filter=_ColumnRange(family_name=family))


def column_is(family: str, column: bytes) -> Message:
    return _Filter(
        column_range_filter=_ColumnRange(family_name=family, start_qualifier_closed=column, end_qualifier_closed=column)
    )


def value_is(value: bytes) -> Message:
    return _Filter(value_range_filter=_ValueRange(start_value_closed=value, end_value_closed=value))


def value_from(value: bytes) -> Message:
    return _Filter(value_range_filter=_ValueRange(start_value_closed=value))


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
    return either(value_before(prefix), value_from(after_prefix(prefix)))


def timestamp_in(start_us: int, end_us: int) -> Message:
    """From `start_us` (inclusive) to `end_us` (exclusive; 0: no end)."""
    return _Filter(timestamp_range_filter=_TimestampRange(start_timestamp_micros=start_us, end_timestamp_micros=end_us))


NEWEST = _Filter(cells_per_column_limit_filter=1)
"""The newest cell of each column. Older ones stay until they are collected."""

FIRST = _Filter(cells_per_row_limit_filter=1)
"""The first cell of the row. Within one family the columns have an order; between families there is none."""

WITHOUT_VALUES = _Filter(strip_value_transformer=True)


def set_cell(family: str, column: bytes, value: bytes, timestamp_us: int = SERVER_TIME) -> Message:
    mutation = _Mutation()
    cell = mutation.set_cell  # filled in place: a part that is passed to the constructor is copied
    cell.family_name, cell.column_qualifier, cell.timestamp_micros, cell.value = family, column, timestamp_us, value
    return mutation


def delete_column(family: str, column: bytes) -> Message:
    return _Mutation(delete_from_column=_Mutation.DeleteFromColumn(family_name=family, column_qualifier=column))


def delete_family(family: str) -> Message:
    return _Mutation(delete_from_family=_Mutation.DeleteFromFamily(family_name=family))


DELETE_ROW = _Mutation(delete_from_row=_Mutation.DeleteFromRow())


# --- the table ---------------------------------------------------------------------------------------


class Channel(Protocol):
    """The part of `grpc.aio.Channel` that is used."""

    def unary_unary(self, method: str, request_serializer: Any = ..., response_deserializer: Any = ...) -> Any: ...
    def unary_stream(self, method: str, request_serializer: Any = ..., response_deserializer: Any = ...) -> Any: ...


_WITHOUT_PROXY = ("grpc.enable_http_proxy", 0)


def insecure_channel(host: str) -> grpc.aio.Channel:
    """One connection to an emulator at `host:port`. The environment's proxy settings are ignored. The caller closes it.
    """
    return grpc.aio.insecure_channel(host, options=[*CHANNEL_OPTIONS, _WITHOUT_PROXY])


STREAMS_IN_CALLER = (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1)
"""An option of a blocking channel: the thread that reads a stream also receives it.

Then a message costs half of what it costs with `grpc.aio`, which wakes the event loop from a thread of its own for it.
"""


def insecure_blocking_channel(host: str) -> grpc.Channel:
    """The same for calls that block."""
    return grpc.insecure_channel(host, options=[*CHANNEL_OPTIONS, STREAMS_IN_CALLER, _WITHOUT_PROXY])


Proof = Mapping[str, str] | None
"""The headers that prove who calls. None: an emulator does not ask."""


async def proven(authorize: Authorize, timeout_s: float) -> tuple[Mapping[str, str], float]:
    """The headers that prove who calls, and what is left of `timeout_s`. `UnavailableError`: there are none in time."""
    began_at = anyio.current_time()
    proof = await authorize(timeout_s)
    left_s = timeout_s - (anyio.current_time() - began_at)
    if left_s <= 0:
        raise UnavailableError(f"there was no Google token for {timeout_s:.3g} s, so nothing was sent; try again").telling(heard=False)
    return proof, left_s


def as_metadata(proof: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Headers as gRPC wants them."""
    return tuple((key.lower(), value) for key, value in proof.items())


class BigtableTable:
    """One table. `name`: projects/…/instances/…/tables/…. The caller closes the channel after the last call.

    Every call has a deadline: `timeout_s` seconds; for bulk reads, scans and samples `SCAN_TIMEOUT_S`.

    `blocking`: returns a channel for calls that block, which `read_columns` then uses in a thread; None: it uses
    `channel`.

    `authorize`: gives each call its token, for which it waits within its own deadline; None: the calls carry none.
    """

    def __init__(
        self, channel: Channel, name: str, app_profile: str = "", timeout_s: float = CALL_TIMEOUT_S,
        blocking: Callable[[], grpc.Channel] | None = None, authorize: Authorize | None = None,
    ) -> None:
        self.name = name
        self._authorize = authorize
        self._target = {"table_name": name} | ({"app_profile_id": app_profile} if app_profile else {})
        self._routing = (("x-goog-request-params", urlencode(self._target, safe="/")),)
        self._timeout_s = timeout_s
        self._check_and_mutate = _unary(channel, "CheckAndMutateRow", bigtable.CheckAndMutateRowRequest, bigtable.CheckAndMutateRowResponse)
        self._mutate = _unary(channel, "MutateRow", bigtable.MutateRowRequest, bigtable.MutateRowResponse)
        self._modify = _unary(channel, "ReadModifyWriteRow", bigtable.ReadModifyWriteRowRequest, bigtable.ReadModifyWriteRowResponse)
        self._mutate_rows = _stream(channel, "MutateRows", bigtable.MutateRowsRequest, bigtable.MutateRowsResponse)
        self._read = _stream(channel, "ReadRows", bigtable.ReadRowsRequest, bigtable.ReadRowsResponse)
        self._read_in_one = channel.unary_unary(f"{SERVICE}ReadRows", bigtable.ReadRowsRequest.pb().SerializeToString, _in_one)
        self._comes_in_one = True
        self._read_raw = channel.unary_stream(f"{SERVICE}ReadRows", bigtable.ReadRowsRequest.pb().SerializeToString, None)
        self._blocking = blocking
        self._threads = anyio.CapacityLimiter(BLOCKING_READS)
        self._sample = _stream(channel, "SampleRowKeys", bigtable.SampleRowKeysRequest, bigtable.SampleRowKeysResponse)

    async def check_and_mutate(
        self, key: bytes, predicate: Message, *, then: Sequence[Message] = (), otherwise: Sequence[Message] = (),
        timeout_s: float | None = None,
    ) -> bool:
        """Whether the predicate yielded a cell.

        In the same step `then` was applied if it did, and `otherwise` if it did not.
        """
        return await self.send(self.to_check_and_mutate(key, predicate, then=then, otherwise=otherwise), timeout_s)

    def to_check_and_mutate(
        self, key: bytes, predicate: Message, *, then: Sequence[Message] = (), otherwise: Sequence[Message] = ()
    ) -> Message:
        """The request of `check_and_mutate`, for `send`. A `Stamp` of it saves building its constant parts each time.
        """
        return _CheckAndMutate(row_key=key, predicate_filter=predicate, true_mutations=then, false_mutations=otherwise, **self._target)

    async def send(self, request: Message, timeout_s: float | None = None) -> bool:
        """`check_and_mutate` with a request that was made before."""
        timeout_s = self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s)
        response = await self._write(self._check_and_mutate, request, timeout_s)
        return bool(response.predicate_matched)

    async def mutate(self, key: bytes, *mutations: Message) -> None:
        """Applies the mutations to one row, in one step."""
        request = bigtable.MutateRowRequest.pb()(row_key=key, mutations=mutations, **self._target)
        await self._write(self._mutate, request, self._timeout_s)

    async def mutate_rows(self, rows: Sequence[tuple[bytes, Sequence[Message]]]) -> list[TieredError | None]:
        """Writes many rows. Returns for each row, in order, what went wrong; None: it is written.

        Each row is atomic; between rows there is no order. At most 100,000 mutations and, as in every request, 256 MiB.
        Raises nothing but cancellation.
        """
        entries = [_Entry(row_key=key, mutations=mutations) for key, mutations in rows]
        request = bigtable.MutateRowsRequest.pb()(entries=entries, **self._target)
        doing = f"writing {len(rows)} rows of {self.name}"
        told: dict[int, TieredError | None] = {}
        error: TieredError = UnconfirmedError(f"{doing} was answered, but not for this row")
        try:
            proof, left_s = await self._proof(self._timeout_s)
            async for response in self._begun(self._mutate_rows, request, left_s, proof):
                told.update((entry.index, _error_of(entry.status, doing)) for entry in response.entries)
        except (grpc.RpcError, grpc.aio.UsageError) as failure:
            error = self._translated(failure, doing, proof, sent=True)
            if told:  # that the call was begun proves nothing about the other rows
                error = UnconfirmedError(str(error))
        except anyio.get_cancelled_exc_class() as cancelled:
            error = translated(await _closed_meanwhile(cancelled), doing, sent=True)
        except TieredError as unsent:
            error = unsent
        # Each caller gets an error object of its own, because each raises it.
        return [told[index] if index in told else copy(error) for index in range(len(rows))]

    async def increment(self, key: bytes, family: str, column: bytes) -> Cell:
        """Increases the cell by one. Returns it, with the server's time of this write."""
        rule = _Rule(family_name=family, column_qualifier=column, increment_amount=1)
        request = bigtable.ReadModifyWriteRowRequest.pb()(row_key=key, rules=[rule], **self._target)
        response = await self._write(self._modify, request, self._timeout_s)
        cell = response.row.families[0].columns[0].cells[0]
        return Cell(family, column, cell.timestamp_micros, cell.value)

    async def read(self, key: bytes, yields: Message = NEWEST) -> CellRow | None:
        """The cells of the row that the filter yields; None: there are none."""
        rows = await self._rows(_RowSet(row_keys=[key]), yields, 1, self._timeout_s)
        return rows[0] if rows else None

    async def read_in_one(self, key: bytes, yields: Message, patience_s: float) -> CellRow | None:
        """As `read`, for two thirds of its CPU, if the service answers in one message. No service has to.

        `grpc.aio` makes a stream of several steps, each with its turn of the event loop. A unary call is the same
        request in one step. But if there is a second message, gRPC waits in vain for the end. So after `patience_s`
        seconds the row is read as a stream; and once an answer had more messages, every row is, from the beginning.
        """
        rows = _RowSet(row_keys=[key])
        if self._comes_in_one:
            request = bigtable.ReadRowsRequest.pb()(rows=rows, filter=yields, rows_limit=1, **self._target)
            proof, left_s = await self._proof(self._timeout_s)
            call = self._begun(self._read_in_one, request, min(left_s, patience_s), proof)
            try:
                return _only_row(await answer(call))
            except grpc.RpcError as error:
                failure = self._translated(error, f"reading {self.name}", proof, sent=False)
                if failure.code not in _UNLESS_IN_ONE:
                    raise failure from error
        found: list[CellRow] = []
        self._comes_in_one &= await self._rows_to(found.append, rows, yields, 1, self._timeout_s) <= 1
        return found[0] if found else None

    async def read_each(self, keys: Iterable[bytes], yields: Message, take: Callable[[CellRow], object]) -> None:
        """As `read_all`, and gives each row to `take` as soon as it has come. If it raises, some were given before."""
        await self._rows_to(take, _RowSet(row_keys=keys), yields, 0, self._timeout_s)

    async def read_all(self, keys: Iterable[bytes], yields: Message = NEWEST) -> list[CellRow]:
        """Those of the rows that exist, in byte order. At most some hundred keys, because a request may have 512 KiB.
        """
        return await self._rows(_RowSet(row_keys=keys), yields, 0, self._timeout_s)

    async def scan(self, spans: Iterable[KeySpan], yields: Message, limit: int) -> list[CellRow]:
        """The first `limit` rows, in byte order, of which the filter yields a cell.

        If there are fewer, there are no more.
        """
        ranges = [_row_range(span) for span in spans]
        return await self._rows(_RowSet(row_ranges=ranges), yields, limit, SCAN_TIMEOUT_S) if ranges else []

    async def read_bulk(self, rows: Sequence[KeySpan] | Sequence[bytes], yields: Message, limit: int = 0) -> tuple[RowScan, bool]:
        """Reads the rows of these spans or keys, at most `limit` of them (0: any number).

        Returns what it read, and whether that is all. If the time is up after some rows, it returns what was read by
        then.
        """
        scan = RowScan()
        if not rows:  # a request without rows would mean all of them
            return scan, True
        request = self._bulk_request(rows, yields, limit)
        in_time = await self._receive(self._read_raw, request, SCAN_TIMEOUT_S, scan.add, lambda: bool(scan.last_key))
        return scan, _ended(scan, in_time, limit)

    async def read_columns(self, scan: ColumnScan, spans: Sequence[KeySpan], yields: Message, limit: int) -> bool:
        """Reads the first `limit` rows of these spans into a new scan.

        Returns whether that is all. If the time is up after some rows, the scan holds what was read by then.
        """
        if not spans:
            return True
        request = self._bulk_request(spans, yields, limit)
        if self._blocking is None:
            in_time = await self._receive(self._read_raw, request, SCAN_TIMEOUT_S, scan.add, lambda: bool(scan.last_key))
        else:
            in_time = await self._receive_in_thread(self._blocking(), request, scan)
        return _ended(scan, in_time, limit)

    def _bulk_request(self, rows: Sequence[KeySpan] | Sequence[bytes], yields: Message, limit: int) -> Message:
        keys = [each for each in rows if isinstance(each, bytes)]
        row_set = _RowSet(row_keys=keys, row_ranges=[_row_range(each) for each in rows if isinstance(each, KeySpan)])
        return bigtable.ReadRowsRequest.pb()(rows=row_set, filter=yields, rows_limit=limit, **self._target)

    async def _receive_in_thread(self, channel: grpc.Channel, request: Message, scan: ColumnScan) -> bool:
        """Does what `_receive` does, in a thread. If this task is cancelled, the call is, too, and the thread ends."""
        proof, left_s = await self._proof(SCAN_TIMEOUT_S)
        try:
            method = channel.unary_stream(f"{SERVICE}ReadRows", bigtable.ReadRowsRequest.pb().SerializeToString, None)
            stream = method(request, timeout=left_s, metadata=self._metadata(proof))
        except ValueError as error:
            raise self._closed(error) from error

        def receive() -> bool:
            try:
                for message in stream:
                    scan.add(message)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and scan.last_key:
                    return False
                raise self._translated(error, f"reading {self.name}", proof, sent=False) from error
            return True

        try:
            return await in_thread(receive, self._threads, abandon_on_cancel=True)
        finally:
            stream.cancel()

    async def sample(self) -> list[tuple[bytes, int]]:
        """Keys that split the table, each with the approximate number of bytes before it.

        The last key may be empty: the end of the table.
        """
        found: list[tuple[bytes, int]] = []
        request = bigtable.SampleRowKeysRequest.pb()(**self._target)
        await self._receive(self._sample, request, SCAN_TIMEOUT_S, lambda each: found.append((each.row_key, each.offset_bytes)))
        return found

    async def _rows(self, rows: Message, yields: Message, limit: int, timeout_s: float) -> list[CellRow]:
        found: list[CellRow] = []
        await self._rows_to(found.append, rows, yields, limit, timeout_s)
        return found

    async def _rows_to(self, take: Callable[[CellRow], object], rows: Message, yields: Message, limit: int, timeout_s: float) -> int:
        """Gives each row to `take`. Returns in how many messages they came."""
        request = bigtable.ReadRowsRequest.pb()(rows=rows, filter=yields, rows_limit=limit, **self._target)
        merge, messages = RowMerge(), 0

        def add(response: Message) -> None:
            nonlocal messages
            messages += 1
            for row in merge.add(response.chunks):
                take(row)

        await self._receive(self._read, request, timeout_s, add)
        merge.end()
        return messages

    async def _receive(
        self, method: Any, request: Message, timeout_s: float, take: Callable[[Any], None], may_end: Callable[[], bool] = lambda: False
    ) -> bool:
        """Gives every message of a stream that has no effect to `take`.

        False: the time was up, and `may_end` allowed it.
        """
        proof, left_s = await self._proof(timeout_s)
        stream = self._begun(method, request, left_s, proof)
        try:
            async for message in stream:
                take(message)
        except (grpc.RpcError, grpc.aio.UsageError) as error:
            if isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and may_end():
                return False
            raise self._translated(error, f"reading {self.name}", proof, sent=False) from error
        except anyio.get_cancelled_exc_class() as cancelled:
            raise translated(await _closed_meanwhile(cancelled), f"reading {self.name}", sent=False) from None
        finally:
            stream.cancel()
        return True

    async def _write(self, method: Any, request: Message, timeout_s: float) -> Message:
        proof, left_s = await self._proof(timeout_s)
        call = self._begun(method, request, left_s, proof)
        try:
            return await answer(call)
        except grpc.RpcError as error:
            doing = f"writing the row {request.row_key.decode(errors='replace')} of {self.name}"
            raise self._translated(error, doing, proof, sent=True) from error

    async def _proof(self, timeout_s: float) -> tuple[Proof, float]:
        """What proves who calls, and how many seconds are left to the call. `UnavailableError`: it was not sent."""
        return (None, timeout_s) if self._authorize is None else await proven(self._authorize, timeout_s)

    def _begun(self, method: Any, request: Message, timeout_s: float, proof: Proof) -> Any:
        try:
            return method(request, timeout=timeout_s, metadata=self._metadata(proof))
        except grpc.aio.UsageError as error:
            raise self._closed(error) from error

    def _metadata(self, proof: Proof) -> tuple[tuple[str, str], ...]:
        return self._routing if proof is None else (*self._routing, *as_metadata(proof))

    def _closed(self, error: Exception) -> UnavailableError:
        message = f"{self.name} cannot be reached, the channel is closed: open the storage again ({error})"
        return UnavailableError(message).telling(heard=False)

    def _translated(self, error: Any, doing: str, proof: Proof, *, sent: bool) -> TieredError:
        failure = translated(error, doing, sent=sent)
        if failure.code == grpc.StatusCode.UNAUTHENTICATED.name:
            may_be_taken = self._authorize is not None and proof is not None and self._authorize.refused(proof)
            return failure if may_be_taken else failure.refusing()
        return failure


_UNLESS_IN_ONE = {grpc.StatusCode.DEADLINE_EXCEEDED.name, grpc.StatusCode.UNIMPLEMENTED.name, grpc.StatusCode.INTERNAL.name}
"""How a unary call may end if its answer had not exactly one message: the first today, the others by gRPC's rules."""


def _in_one(raw: bytes | None) -> Message:
    """The only message of an answer. gRPC gives None for an answer without one."""
    return bigtable.ReadRowsResponse.pb().FromString(raw or b"")


def _only_row(response: Message) -> CellRow | None:
    merge = RowMerge()
    rows = [*merge.add(response.chunks)]
    merge.end()
    return rows[0] if rows else None


async def answer(call: Any) -> Message:
    """Awaits a unary call.

    If this task is cancelled, gRPC raises a cancellation error of its own, which a cancel scope would not recognise as
    the one that it caused. This function raises the right one.
    """
    try:
        return await call
    except anyio.get_cancelled_exc_class() as cancelled:
        raise await _closed_meanwhile(cancelled) from None


class _ClosedError(grpc.RpcError):  # type: ignore[misc]  # the package has no types
    """The channel was closed while the call was under way."""


async def _closed_meanwhile(cancelled: BaseException) -> _ClosedError:
    """The error that gRPC should have raised instead of `cancelled`, if nobody cancelled this task.

    A task group would take `cancelled` for a cancellation of its own task and end all others without an error. If a
    scope is cancelled, this raises what that scope expects. On an event loop other than asyncio's it always does.
    """
    await anyio.lowlevel.checkpoint_if_cancelled()
    if is_asked_to_end():
        raise cancelled
    return _ClosedError("the channel was closed meanwhile")


def _ended(scan: RowScan, in_time: bool, limit: int) -> bool:
    """Ends a scan, and returns whether it holds all rows. `in_time`: its stream came to its end."""
    if in_time:
        scan.end()
    return in_time and (limit == 0 or scan.rows < limit)


def _row_range(span: KeySpan) -> Message:
    return _RowRange(start_key_closed=span.start, end_key_open=span.end) if span.end else _RowRange(start_key_closed=span.start)


def _unary(channel: Channel, method: str, request: Any, response: Any) -> Any:
    return channel.unary_unary(SERVICE + method, request.pb().SerializeToString, response.pb().FromString)


def _stream(channel: Channel, method: str, request: Any, response: Any) -> Any:
    return channel.unary_stream(SERVICE + method, request.pb().SerializeToString, response.pb().FromString)


# --- failure -----------------------------------------------------------------------------------------

_ADVICE: dict[grpc.StatusCode, tuple[type[TieredError], str]] = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: (UnavailableError, "it was turned away; lower the load or add nodes"),
    grpc.StatusCode.UNAUTHENTICATED: (UnavailableError, "the credentials were not accepted; renew them"),
    grpc.StatusCode.PERMISSION_DENIED: (ConfigurationError, "grant roles/bigtable.user on the table to this identity"),
    grpc.StatusCode.NOT_FOUND: (
        ConfigurationError, "run 'tiered provision', or create the table, with families fg, fm, ff for objects and fc for the changelog"
    ),
    grpc.StatusCode.FAILED_PRECONDITION: (
        ConfigurationError, "use an app profile with single-cluster routing and single-row transactions allowed"
    ),
    grpc.StatusCode.UNIMPLEMENTED: (ConfigurationError, "this server is no Bigtable"),
    grpc.StatusCode.INVALID_ARGUMENT: (InvalidRequestError, "the request breaks a limit"),
    grpc.StatusCode.OUT_OF_RANGE: (InvalidRequestError, "the request breaks a limit"),
}
"""Answers that prove that nothing was written. After any other status, a mutation may or may not have been."""
_HEARD = {grpc.StatusCode.ABORTED, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.DATA_LOSS}
"""What only the service says, besides. gRPC itself gives the other statuses also if nobody answers."""


_CODES: dict[int, Any] = {code.value[0]: code for code in grpc.StatusCode}


def translated(error: Any, doing: str, *, sent: bool) -> TieredError:
    """The error in this project's terms. `sent`: the request may have had an effect."""
    if not isinstance(error, grpc.aio.AioRpcError | grpc.Call):  # only of a call whose channel was closed meanwhile
        return _failure(grpc.StatusCode.CANCELLED, str(error), doing, sent=sent).telling(heard=False)
    return _failure(error.code(), error.details(), doing, sent=sent)


def _error_of(status: Message, doing: str) -> TieredError | None:
    """What a `google.rpc.Status` says about one row."""
    return _failure(_CODES.get(status.code, grpc.StatusCode.UNKNOWN), status.message, doing, sent=True) if status.code else None


def _failure(code: Any, details: str | None, doing: str, *, sent: bool) -> TieredError:
    if code in _ADVICE:
        kind, advice = _ADVICE[code]
        return kind(f"{doing} failed with {code.name}: {advice} ({details})").coded(code.name, heard=True)
    heard = True if code in _HEARD else None
    if sent:
        return UnconfirmedError(f"{doing} was never confirmed: {code.name} ({details})").coded(code.name, heard=heard)
    return UnavailableError(f"{doing} failed with {code.name}: {details}").coded(code.name, heard=heard)
