"""A table spoken to over real connections, against a server that says what a test tells it to: what goes wrong on a wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from google.cloud.bigtable_v2.types import MutateRowsResponse

from changelog.bigtable_channel import BigtableTable, insecure_channel, set_cell
from changelog.errors import ConfigurationError, InvalidRequestError, TieredError, UnavailableError, UnconfirmedError

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


@pytest.mark.parametrize("verb", ["mutate", "read"])
async def test_a_call_that_its_scope_cancels_ends_with_the_scope(server: Any, table: BigtableTable, verb: str) -> None:
    server.scripts["MutateRow"] = server.scripts["ReadRows"] = [asyncio.Event()]
    scope = anyio.CancelScope()

    async def cancel() -> None:
        await server.until(1)
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)
        with scope:
            await getattr(table, verb)(b"k")
    assert scope.cancelled_caught
    await server.comes_true(lambda: len(server.cancelled) == 1)


# --- many rows in one call ---------------------------------------------------------------------------


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
    server: Any, fails: Any, table: BigtableTable, code: grpc.StatusCode, kind: type[TieredError]
) -> None:
    server.scripts["MutateRows"] = [fails(code)]
    outcomes = await table.mutate_rows(ROWS)
    assert kinds(outcomes) == [kind] * 4 and len(set(map(id, outcomes))) == 4


@pytest.mark.parametrize("code", [UNAVAILABLE, DENIED, EXHAUSTED])
async def test_a_call_that_fails_in_the_middle_leaves_the_rest_unconfirmed_whatever_it_says(
    server: Any, fails: Any, table: BigtableTable, code: grpc.StatusCode
) -> None:
    server.scripts["MutateRows"] = [told(e1=OK), fails(code)]
    assert kinds(await table.mutate_rows(ROWS)) == [UnconfirmedError, None, UnconfirmedError, UnconfirmedError]


async def test_on_a_closed_channel_no_row_is_written(server: Any) -> None:
    async with insecure_channel(server.host) as channel:
        table = BigtableTable(channel, NAME)
    assert kinds(await table.mutate_rows(ROWS)) == [UnavailableError] * 4 and not server.arrived
