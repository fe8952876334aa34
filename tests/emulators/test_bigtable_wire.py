"""A table spoken to over real connections, against a server that says what a test tells it to: what goes wrong on a wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from changelog.bigtable_channel import BigtableTable, insecure_channel

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
