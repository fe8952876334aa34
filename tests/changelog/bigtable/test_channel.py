"""What goes wrong on the wire between a table and its server. The connections are real; the server is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from google.cloud.bigtable_v2.types import MutateRowResponse, MutateRowsResponse, ReadModifyWriteRowResponse, ReadRowsResponse

from changelog.base.errors import ConfigurationError, InvalidRequestError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import (
    NEWEST,
    SCAN_TIMEOUT_S,
    SERVER_TIME,
    BigtableTable,
    KeySpan,
    column_is,
    insecure_blocking_channel,
    insecure_channel,
    set_cell,
)
from changelog.bigtable.column_scan import ColumnScan
from changelog.bigtable.row_merge import Cell, CellRow
from changelog.change import ChangeId
from tests.given.scripted_bigtable import REQUESTS, Fails
from tiered.bigtable.rows import BigtableRows
from tiered.services.backends import Row

pytestmark = pytest.mark.anyio

NAME = "projects/p/instances/i/tables/my table"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def table(server: Any) -> AsyncIterator[BigtableTable]:
    async with insecure_channel(server.host) as channel:
        yield BigtableTable(channel, NAME)


# --- cancelled ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["mutate", "read", "read_in_one"])
async def test_a_call_that_its_scope_cancels_ends_with_the_scope(server: Any, table: BigtableTable, verb: str) -> None:
    server.scripts["MutateRow"] = server.scripts["ReadRows"] = [asyncio.Event()]
    await ends_with_its_scope(server, partial(getattr(table, verb), b"k", *([NEWEST, 60.0] if verb == "read_in_one" else [])))


async def ends_with_its_scope(server: Any, call: Callable[[], Awaitable[object]]) -> None:
    scope = anyio.CancelScope()

    async def cancel() -> None:
        await server.until(1)
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)
        with scope:
            await call()
    assert scope.cancelled_caught
    await server.comes_true(lambda: len(server.cancelled) == 1)


WRITE = set_cell("fc", b"c", b"value")
UNDER_WAY: dict[str, tuple[Callable[[BigtableTable], Awaitable[Any]], type[TieredError]]] = {
    "read": (lambda table: table.read(b"k"), UnavailableError),
    "scan": (lambda table: table.scan([KeySpan(b"a", b"z")], column_is("fm", b"p"), 10), UnavailableError),
    "read_in_one": (lambda table: table.read_in_one(b"k", NEWEST, 60.0), UnavailableError),
    "mutate": (lambda table: table.mutate(b"k", WRITE), UnconfirmedError),
    "check_and_mutate": (lambda table: table.check_and_mutate(b"k", column_is("fc", b"c"), then=[WRITE]), UnconfirmedError),
    "increment": (lambda table: table.increment(b"k", "fc", b"c"), UnconfirmedError),
}


async def closed_during(server: Any, call: Callable[[BigtableTable], Awaitable[Any]]) -> list[Any]:
    """What the call ends with when its channel is closed under it; and that it ends nobody else."""
    server.scripts |= {key: [asyncio.Event()] for key in REQUESTS}
    ended, closed = list[Any](), anyio.Event()

    async def begin() -> None:
        try:
            ended.append(await call(BigtableTable(channel, NAME)))
        except TieredError as error:
            ended.append(error)

    async with insecure_channel(server.host) as channel, anyio.create_task_group() as tasks:
        tasks.start_soon(begin)
        tasks.start_soon(closed.wait)
        await server.until(1)
        await channel.close()
        await server.comes_true(lambda: ended or tasks.cancel_scope.cancel_called)
        closed.set()
    assert not tasks.cancel_scope.cancel_called
    return ended


@pytest.mark.parametrize("call", UNDER_WAY)
async def test_a_call_whose_channel_is_closed_fails_instead_of_ending_its_callers_other_tasks(server: Any, call: str) -> None:
    begin, kind = UNDER_WAY[call]
    [error] = await closed_during(server, begin)
    assert type(error) is kind and "closed meanwhile" in str(error)


async def test_rows_whose_channel_is_closed_are_all_unconfirmed(server: Any) -> None:
    [errors] = await closed_during(server, lambda table: table.mutate_rows(ROWS))
    assert kinds(errors) == [UnconfirmedError] * len(ROWS)


@pytest.mark.parametrize("call", ["read", "read_in_one", "mutate"])
async def test_a_task_that_asyncio_itself_cancels_is_cancelled(server: Any, table: BigtableTable, call: str) -> None:
    server.scripts["MutateRow"] = server.scripts["ReadRows"] = [asyncio.Event()]
    task = asyncio.ensure_future(UNDER_WAY[call][0](table))
    await server.until(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- many rows in one call ---------------------------------------------------------------------------


FAILURES_OF_COLUMNS = {
    grpc.StatusCode.UNAVAILABLE: UnavailableError, grpc.StatusCode.RESOURCE_EXHAUSTED: UnavailableError,
    grpc.StatusCode.PERMISSION_DENIED: ConfigurationError, grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
}  # fmt: skip
ROWS = [(b"row %d" % number, [set_cell("fc", b"c", b"value")]) for number in range(4)]


def told(**codes: grpc.StatusCode) -> Any:
    """One message of MutateRows: e0=OK: row 0 was written."""
    return MutateRowsResponse.pb()(entries=[
        {"index": int(name[1:]), "status": {"code": code.value[0], "message": f"said of row {name[1:]}"}} for name, code in codes.items()
    ])  # fmt: skip


def kinds(outcomes: list[TieredError | None]) -> list[type | None]:
    return [None if outcome is None else type(outcome) for outcome in outcomes]


OK, NOT_FOUND, INTERNAL = grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INTERNAL
UNAVAILABLE, DENIED, EXHAUSTED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_each_row_has_an_outcome_of_its_own_in_whatever_order_they_come(server: Any, table: BigtableTable) -> None:
    server.scripts["MutateRows"] = [told(e3=INTERNAL, e0=OK), told(), told(e2=NOT_FOUND, e1=grpc.StatusCode.INVALID_ARGUMENT)]
    outcomes = await table.mutate_rows(ROWS)
    assert kinds(outcomes) == [None, InvalidRequestError, ConfigurationError, UnconfirmedError]
    assert "said of row 3" in str(outcomes[3]) and NAME in str(outcomes[3])
    [sent] = server.arrived
    assert [(entry.row_key, list(entry.mutations)) for entry in sent.request.entries] == ROWS and sent.request.table_name == NAME


async def test_a_row_that_the_answer_leaves_out_is_unconfirmed(server: Any, table: BigtableTable) -> None:
    server.scripts["MutateRows"] = [told(e0=OK, e2=OK)]
    assert kinds(await table.mutate_rows(ROWS)) == [None, UnconfirmedError, None, UnconfirmedError]


async def test_a_status_that_nobody_knows_is_unconfirmed(server: Any, table: BigtableTable) -> None:
    server.scripts["MutateRows"] = [MutateRowsResponse.pb()(entries=[{"index": 0, "status": {"code": 99}}])]
    assert kinds(await table.mutate_rows(ROWS[:1])) == [UnconfirmedError]


@pytest.mark.parametrize(
    ("code", "kind"),
    [(UNAVAILABLE, UnconfirmedError), (DENIED, ConfigurationError), (EXHAUSTED, UnavailableError), (INTERNAL, UnconfirmedError)],
)
async def test_a_call_that_fails_before_any_row_was_told_fails_for_each(
    server: Any, table: BigtableTable, code: grpc.StatusCode, kind: type[TieredError]
) -> None:
    server.scripts["MutateRows"] = [Fails(code)]
    outcomes = await table.mutate_rows(ROWS)
    assert kinds(outcomes) == [kind] * 4 and len(set(map(id, outcomes))) == 4


@pytest.mark.parametrize("code", [UNAVAILABLE, DENIED, EXHAUSTED])
async def test_a_call_that_fails_in_the_middle_leaves_the_rest_unconfirmed_whatever_it_says(
    server: Any, table: BigtableTable, code: grpc.StatusCode
) -> None:
    server.scripts["MutateRows"] = [told(e1=OK), Fails(code)]
    assert kinds(await table.mutate_rows(ROWS)) == [UnconfirmedError, None, UnconfirmedError, UnconfirmedError]


async def test_a_closed_channel_sends_nothing(server: Any) -> None:
    async with insecure_channel(server.host) as channel:
        table = BigtableTable(channel, NAME)
    assert kinds(await table.mutate_rows(ROWS)) == [UnavailableError] * 4
    for call, _ in UNDER_WAY.values():
        with pytest.raises(UnavailableError, match="closed"):
            await call(table)
    assert not server.arrived


# --- what is read ------------------------------------------------------------------------------------


def message(*chunks: dict[str, Any]) -> Any:
    """One message of ReadRows; `f` and `c` are a chunk's family and column."""
    made = ReadRowsResponse.pb()()
    for chunk in chunks:
        made.chunks.add(
            family_name=None if "f" not in chunk else {"value": chunk["f"]}, qualifier=None if "c" not in chunk else {"value": chunk["c"]},
            **{name: value for name, value in chunk.items() if name not in "fc"},
        )
    return made


WHOLE = {"row_key": b"k", "f": "fm", "c": b"p", "value": b"x", "commit_row": True}
HALF = {"row_key": b"k", "f": "fm", "c": b"p", "value": b"x"}


async def test_rows_come_whole_however_they_are_cut_into_messages(server: Any, table: BigtableTable) -> None:
    server.scripts["ReadRows"] = [
        message(WHOLE | {"row_key": b"a"}, {"row_key": b"b", "f": "fm", "c": b"m", "value": b"lost"}),
        message(),
        message({"reset_row": True}, {"row_key": b"b", "f": "fg", "c": b"m", "value": b"on", "value_size": 3}),
        message({"value": b"e"}),
        message({"c": b"p", "value": b"two", "timestamp_micros": 7000}, {"f": "fm", "c": b"", "commit_row": True}),
        message(WHOLE | {"row_key": b"c"}),
    ]
    x = (Cell("fm", b"p", 0, b"x"),)
    b = (Cell("fg", b"m", 0, b"one"), Cell("fg", b"p", 7000, b"two"), Cell("fm", b"", 0, b""))
    assert await table.read_all([b"a", b"b", b"c"]) == [CellRow(b"a", x), CellRow(b"b", b), CellRow(b"c", x)]


X = CellRow(b"k", (Cell("fm", b"p", 0, b"x"),))


@pytest.mark.parametrize(("messages", "row"), [([message(WHOLE)], X), ([message()], None), ([], None)], ids=["row", "empty", "nothing"])
async def test_a_row_that_comes_in_one_message_takes_one_call(
    server: Any, table: BigtableTable, messages: list[Any], row: CellRow | None
) -> None:
    server.scripts["ReadRows"] = messages
    assert await table.read_in_one(b"k", NEWEST, 60.0) == row
    [sent] = server.arrived
    assert list(sent.request.rows.row_keys) == [b"k"] and sent.request.rows_limit == 1 and sent.request.filter == NEWEST


async def test_a_row_in_several_messages_is_read_as_a_stream_and_so_is_each_after_it(server: Any, table: BigtableTable) -> None:
    server.scripts["ReadRows"] = [message(HALF | {"value_size": 2}), message({"value": b"y", "commit_row": True})]
    whole = CellRow(b"k", (Cell("fm", b"p", 0, b"xy"),))
    assert await table.read_in_one(b"k", NEWEST, 0.05) == whole and len(server.arrived) == 2
    assert await table.read_in_one(b"k", NEWEST, 60.0) == whole and len(server.arrived) == 3


async def test_a_service_that_was_slow_once_is_asked_for_one_message_again(server: Any, table: BigtableTable) -> None:
    server.scripts["ReadRows"] = lambda request: [asyncio.Event()] if len(server.arrived) == 1 else [message(WHOLE)]
    assert await table.read_in_one(b"k", NEWEST, 0.05) == X and len(server.arrived) == 2
    server.scripts["ReadRows"] = [message(WHOLE)]
    assert await table.read_in_one(b"k", NEWEST, 5.0) == X
    assert server.arrived[-1].time_left_s < 6, "a stream would have 10"


@pytest.mark.parametrize("code", [INTERNAL, grpc.StatusCode.UNIMPLEMENTED])
async def test_what_grpc_may_say_of_several_messages_leads_to_a_stream(
    server: Any, table: BigtableTable, code: grpc.StatusCode
) -> None:
    server.scripts["ReadRows"] = lambda request: [Fails(code)] if len(server.arrived) == 1 else [message(WHOLE)]
    assert await table.read_in_one(b"k", NEWEST, 60.0) == X


@pytest.mark.parametrize(("code", "kind"), [(UNAVAILABLE, UnavailableError), (DENIED, ConfigurationError), (EXHAUSTED, UnavailableError)])
async def test_any_other_refusal_of_a_row_is_told_at_once(
    server: Any, table: BigtableTable, code: grpc.StatusCode, kind: type[TieredError]
) -> None:
    server.scripts["ReadRows"] = [message(WHOLE), Fails(code)]
    with pytest.raises(kind, match=code.name):
        await table.read_in_one(b"k", NEWEST, 60.0)
    assert len(server.arrived) == 1


async def test_a_message_that_ends_in_the_middle_of_a_row_is_no_answer(server: Any, table: BigtableTable) -> None:
    server.scripts["ReadRows"] = [message(HALF)]
    with pytest.raises(UnavailableError, match="in the middle of a row"):
        await table.read_in_one(b"k", NEWEST, 60.0)


@pytest.mark.parametrize("pieces", [1, 7], ids=["one message", "split"])
async def test_a_cell_beyond_grpcs_own_limit_is_read(server: Any, table: BigtableTable, pieces: int) -> None:
    size = 7 << 20
    piece = {"value": b"x" * (size // pieces), "value_size": size if pieces > 1 else 0}
    first, last = {"row_key": b"k", "f": "fm", "c": b"p"} | piece, {"value_size": 0, "commit_row": True}
    server.scripts["ReadRows"] = [message(first | last)] if pieces == 1 else [
        message(first), *(message(piece) for _ in range(pieces - 2)), message(piece | last),
    ]  # fmt: skip
    row = await table.read(b"k")
    assert row is not None and len(row.cells[0].value) == size


async def test_a_row_of_marks_only_is_an_absent_object(server: Any, table: BigtableTable) -> None:
    won, refused = ChangeId("018bcfe5-6800-7000-8000-000000000001"), ChangeId("018bcfe5-6800-7000-8000-000000000002")
    server.scripts["ReadRows"] = [
        message({"row_key": b"p", "f": "ff", "c": b"r:" + refused.encode()}),
        message({"c": b"w:" + won.encode(), "commit_row": True}),
    ]
    row = await BigtableRows(table, SystemRuntime()).read("p", marks=True)
    assert row == Row(None, frozenset({won}), frozenset({refused}))


@pytest.mark.parametrize("rest", ["nothing", "an error"])
@pytest.mark.parametrize("begun", [[message(HALF)], [message(HALF | {"value_size": 9})], [message(WHOLE | {"row_key": b"a"}, HALF)]])
async def test_a_stream_that_ends_in_the_middle_of_a_row_is_no_answer(
    server: Any, table: BigtableTable, begun: list[Any], rest: str
) -> None:
    server.scripts["ReadRows"] = begun if rest == "nothing" else [*begun, Fails(grpc.StatusCode.INTERNAL)]
    with pytest.raises(UnavailableError, match="in the middle of a row" if rest == "nothing" else "INTERNAL"):
        await table.scan([KeySpan(b"a", b"z")], column_is("fm", b"p"), 10)


@pytest.mark.parametrize("code", [UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.DEADLINE_EXCEEDED])
async def test_an_error_after_whole_rows_is_no_shorter_answer(server: Any, table: BigtableTable, code: grpc.StatusCode) -> None:
    server.scripts["ReadRows"] = [message(WHOLE), Fails(code)]
    with pytest.raises(UnavailableError, match=code.name):
        await table.scan([KeySpan(b"a", b"z")], column_is("fm", b"p"), 10)


# --- columns, in a thread ----------------------------------------------------------------------------


@pytest.fixture
async def blocking(server: Any, table: BigtableTable) -> AsyncIterator[BigtableTable]:
    """A table whose columns are read on a blocking channel. `table`: its other calls."""
    with insecure_blocking_channel(server.host) as channel, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "_blocking", lambda: channel)
        yield table


SPANS = [KeySpan(b"a", b"z")]
TOMBSTONE = {"row_key": b"k", "f": "fm", "c": b"r", "value": b"x", "timestamp_micros": 1000, "commit_row": True}


def columns() -> ColumnScan:
    return ColumnScan(b"r", "fm", "fg")


IN_A_THREAD = pytest.mark.parametrize("in_a_thread", [True, False], ids=["in a thread", "on the loop"])


@IN_A_THREAD
async def test_columns_are_read_to_the_end_of_the_stream(
    server: Any, blocking: BigtableTable, monkeypatch: pytest.MonkeyPatch, in_a_thread: bool
) -> None:
    if not in_a_thread:
        monkeypatch.setattr(blocking, "_blocking", None)
    server.scripts["ReadRows"] = [message(TOMBSTONE, TOMBSTONE | {"row_key": b"l", "f": "fg"}), message(WHOLE | {"row_key": b"m"})]
    scan = columns()
    assert await blocking.read_columns(scan, SPANS, column_is("fm", b"r"), 10)
    assert (scan.keys, scan.values, scan.stamps, scan.rows) == (["k", "l"], ["x", "x"], {"l": 1000}, 3)
    assert [cell[0] for cell in scan.cells] == [b"m"]
    [sent] = server.arrived
    assert sent.request.rows_limit == 10 and sent.request.table_name == NAME and sent.time_left_s is not None


@IN_A_THREAD
async def test_columns_end_at_the_limit_or_where_the_time_was_up(
    server: Any, blocking: BigtableTable, monkeypatch: pytest.MonkeyPatch, in_a_thread: bool
) -> None:
    if not in_a_thread:
        monkeypatch.setattr(blocking, "_blocking", None)
    server.scripts["ReadRows"] = [message(TOMBSTONE)]
    assert not await blocking.read_columns(columns(), SPANS, column_is("fm", b"r"), 1)
    server.scripts["ReadRows"] = [message(TOMBSTONE), Fails(grpc.StatusCode.DEADLINE_EXCEEDED)]
    scan = columns()
    assert not await blocking.read_columns(scan, SPANS, column_is("fm", b"r"), 10)
    assert scan.last_key == b"k"


@pytest.mark.parametrize("begun", [[], [message(TOMBSTONE)]], ids=["no row", "a row"])
@pytest.mark.parametrize("code", FAILURES_OF_COLUMNS)
async def test_columns_that_fail_say_why(
    server: Any, blocking: BigtableTable, begun: list[Any], code: grpc.StatusCode
) -> None:
    server.scripts["ReadRows"] = [*begun, Fails(code, "said by the server")]
    with pytest.raises(TieredError, match="said by the server") as caught:
        await blocking.read_columns(columns(), SPANS, column_is("fm", b"r"), 10)
    assert type(caught.value) is FAILURES_OF_COLUMNS[code]


async def test_columns_end_in_the_middle_of_a_row_with_an_error(server: Any, blocking: BigtableTable) -> None:
    server.scripts["ReadRows"] = [message(TOMBSTONE), message(HALF | {"row_key": b"l"})]
    with pytest.raises(UnavailableError, match="in the middle of a row"):
        await blocking.read_columns(columns(), SPANS, column_is("fm", b"r"), 10)


async def test_reading_columns_ends_when_its_scope_is_cancelled(server: Any, blocking: BigtableTable) -> None:
    server.scripts["ReadRows"] = [message(TOMBSTONE), asyncio.Event()]
    await ends_with_its_scope(server, lambda: blocking.read_columns(columns(), SPANS, column_is("fm", b"r"), 10))
    await server.comes_true(lambda: blocking._threads.borrowed_tokens == 0)


async def test_columns_of_a_closed_channel_are_unavailable(server: Any, blocking: BigtableTable) -> None:
    blocking._blocking().close()  # type: ignore[misc]  # the fixture has set it
    with pytest.raises(UnavailableError, match="closed"):
        await blocking.read_columns(columns(), SPANS, column_is("fm", b"r"), 10)


# --- what fails --------------------------------------------------------------------------------------


MISTAKES = {
    grpc.StatusCode.PERMISSION_DENIED: ConfigurationError, grpc.StatusCode.NOT_FOUND: ConfigurationError,
    grpc.StatusCode.FAILED_PRECONDITION: ConfigurationError, grpc.StatusCode.UNIMPLEMENTED: ConfigurationError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError, grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
}
TURNED_AWAY = {grpc.StatusCode.RESOURCE_EXHAUSTED: UnavailableError, grpc.StatusCode.UNAUTHENTICATED: UnavailableError}
FAILURES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


NEVER = MISTAKES | TURNED_AWAY
"""Statuses that prove that a mutation had no effect. Of a read they say whether someone must mend something."""
HEARD = {*NEVER, grpc.StatusCode.ABORTED, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.DATA_LOSS}


@pytest.mark.parametrize("code", FAILURES)
async def test_every_status_means_what_the_tables_say_and_whether_the_service_was_heard(
    server: Any, table: BigtableTable, code: grpc.StatusCode
) -> None:
    server.scripts |= {key: [Fails(code, "said by the server", trailing=(("retry-after", "1"),))] for key in REQUESTS}
    for name in ("read", "scan", "mutate", "check_and_mutate", "increment"):
        call, otherwise = UNDER_WAY[name]
        with pytest.raises(TieredError, match="said by the server") as caught:
            await call(table)
        error = caught.value
        assert (type(error), error.code, error.heard) == (NEVER.get(code, otherwise), code.name, True if code in HEARD else None), name
        assert NAME in str(error), name
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            assert "single-row transactions" in str(error), "the profile may forbid them"


async def outcomes(table: BigtableTable) -> list[type | None]:
    """Of a write, of a read, and of two rows written at once."""
    found: list[type | None] = []
    calls: list[Callable[[], Awaitable[Any]]] = [lambda: table.mutate(b"k"), lambda: table.read(b"k")]
    for call in calls:
        try:
            await call()
            found.append(None)
        except TieredError as error:
            found.append(type(error))
    return found + kinds(await table.mutate_rows(ROWS[:2]))


NOBODY_KNOWS = [UnconfirmedError, UnavailableError, UnconfirmedError, UnconfirmedError]


async def test_a_server_that_never_answers_is_given_up_at_the_deadline(server: Any) -> None:
    server.scripts = {method: [asyncio.Event()] for method in ("MutateRow", "ReadRows", "MutateRows")}
    async with insecure_channel(server.host) as channel:
        assert await outcomes(BigtableTable(channel, NAME, timeout_s=0.05)) == NOBODY_KNOWS
    assert server.arrived and all(call.time_left_s is not None and call.time_left_s <= 0.06 for call in server.arrived)


async def test_a_connection_that_is_refused_is_told_at_once() -> None:
    async with insecure_channel("127.0.0.1:1") as channel:
        assert await outcomes(BigtableTable(channel, NAME)) == NOBODY_KNOWS


async def test_a_connection_that_breaks_in_the_middle_of_a_call_leaves_a_write_unconfirmed() -> None:
    """Whoever is connected to is no gRPC server: it hears a request out and hangs up."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as listening:
        host, port = listening.sockets[0].getsockname()
        async with insecure_channel(f"{host}:{port}") as channel:
            assert await outcomes(BigtableTable(channel, NAME)) == NOBODY_KNOWS


@pytest.mark.parametrize("verb", ["mutate", "read"])
async def test_a_server_that_goes_away_and_comes_back_is_found_again(server: Any, table: BigtableTable, verb: str) -> None:
    server.scripts["MutateRow"] = server.scripts["ReadRows"] = [asyncio.Event()]
    told: list[TieredError] = []

    async def call() -> None:
        try:
            await getattr(table, verb)(b"k")
        except TieredError as error:
            told.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await server.until(1)
        await server.server.stop(None)
    assert kinds([*told]) == [UnconfirmedError if verb == "mutate" else UnavailableError]
    server.scripts.clear()
    await server.start(server.host)
    for _ in range(100):
        told.clear()
        await call()
        if not told:
            return
        await anyio.sleep(0.1)  # gRPC waits before it connects again
    pytest.fail("not within 10 s")


async def test_a_server_that_says_goodbye_answers_first_what_it_was_asked(server: Any, table: BigtableTable) -> None:
    go_on = asyncio.Event()
    server.scripts["MutateRow"] = [go_on, MutateRowResponse.pb()()]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(table.mutate, b"k")
        await server.until(1)
        tasks.start_soon(server.server.stop, 10)  # GOAWAY
        await anyio.sleep(0.01)
        go_on.set()


# --- what goes along ---------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["", "one cluster"])
async def test_every_call_says_where_it_goes_in_the_request_and_in_its_header(server: Any, profile: str) -> None:
    counted = ReadModifyWriteRowResponse.pb()(row={"families": [{"columns": [{"cells": [{"timestamp_micros": 7}]}]}]})
    server.scripts["ReadModifyWriteRow"] = [counted]
    async with insecure_channel(server.host) as channel:
        table = BigtableTable(channel, NAME, profile, timeout_s=3)
        await table.mutate(b"k", set_cell("fm", b"p", b"x", SERVER_TIME))
        await table.mutate_rows(ROWS)
        await table.check_and_mutate(b"k", column_is("fm", b"p"))
        assert await table.increment(b"k", "fc", b"c") == Cell("fc", b"c", 7, b"")
        await table.read(b"k")
        await table.read_all([b"k"])
        await table.scan([KeySpan(b"a", b"z")], column_is("fm", b"p"), 10)
    assert len(server.arrived) == 7
    *short, scan = (call.time_left_s for call in server.arrived)
    assert max(short) < 3.5 < scan < SCAN_TIMEOUT_S + 0.5
    route = "table_name=projects/p/instances/i/tables/my+table" + ("&app_profile_id=one+cluster" if profile else "")
    for call in server.arrived:
        assert (call.request.table_name, call.request.app_profile_id) == (NAME, profile), call.method
        assert call.metadata["x-goog-request-params"] == route and call.time_left_s is not None, call.method


@pytest.mark.parametrize(("asked_s", "most_s"), [(1, 1), (9, 3), (None, 3)])
async def test_a_call_may_have_less_time_and_never_more(server: Any, asked_s: float | None, most_s: float) -> None:
    async with insecure_channel(server.host) as channel:
        await BigtableTable(channel, NAME, timeout_s=3).check_and_mutate(b"k", column_is("fg", b"r"), timeout_s=asked_s)
    assert server.arrived[0].time_left_s < most_s + 0.5


async def test_no_ranges_are_no_rows_and_no_call(server: Any, table: BigtableTable) -> None:
    assert await table.scan([], column_is("fg", b"r"), 10) == [] and not server.arrived
