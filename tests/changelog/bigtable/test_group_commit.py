"""Group commit: who is sent with whom, who sends, and what each caller gets, whoever fails or is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from changelog.base.errors import InvalidRequestError, TieredError, UnavailableError, UnconfirmedError
from changelog.base.own_waits import OwnWaits
from changelog.bigtable.channel import set_cell
from changelog.bigtable.group_commit import BYTES_MAX, ROWS_MAX, GroupCommit

pytestmark = pytest.mark.anyio


class WrittenTable:
    """Notes what is sent and answers when told to; `failures` of rows, or of any call of several."""

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []
        self.failures: dict[bytes, TieredError] = {}
        self.broken: BaseException | None = None
        self._answers: list[anyio.Event] = []

    async def mutate(self, key: bytes, *mutations: Any) -> None:
        await self._travel([key])
        if key in self.failures:
            raise self.failures[key]

    async def mutate_rows(self, rows: Sequence[tuple[bytes, Any]]) -> list[TieredError | None]:
        await self._travel([key for key, _ in rows])
        if self.broken is not None:
            raise self.broken
        return [self.failures.get(key) for key, _ in rows]

    async def answer(self, call: int) -> None:
        self._answers[call].set()
        await settled()

    async def _travel(self, keys: list[bytes]) -> None:
        self.sent.append(keys)
        self._answers.append(anyio.Event())
        with anyio.fail_after(10):  # a sender is shielded: a test that fails would never end
            await self._answers[-1].wait()


async def settled() -> None:
    """All others have gone as far as they can."""
    for _ in range(20):
        await checkpoint()


class WritingCallers:
    """Tasks that write one row each, through groups of which two are in flight, and what came of them."""

    def __init__(self, tasks: Any, table: WrittenTable) -> None:
        self.outcomes: dict[bytes, Any] = {}
        self.scopes: dict[bytes, anyio.CancelScope] = {}
        self.when_written: dict[bytes, Callable[[], object]] = {}
        self._tasks = tasks
        self._commit = GroupCommit(table, groups_in_flight=2)  # type: ignore[arg-type]

    async def write(self, *keys: bytes, value: bytes = b"") -> None:
        for key in keys:
            self._tasks.start_soon(self._write, key, value)
            await settled()

    async def _write(self, key: bytes, value: bytes) -> None:
        with anyio.CancelScope() as self.scopes[key]:
            try:
                await self._commit.mutate(key, set_cell("fc", b"c", value))
                self.outcomes[key] = "written"
                self.when_written.get(key, bool)()
            except (TieredError, RuntimeError) as error:
                self.outcomes[key] = error
        if self.scopes[key].cancelled_caught:
            self.outcomes[key] = "cancelled"


@pytest.fixture
def table() -> WrittenTable:
    return WrittenTable()


async def test_who_finds_a_free_place_goes_at_once_and_alone(table: WrittenTable) -> None:
    async with anyio.create_task_group() as tasks:
        callers = WritingCallers(tasks, table)
        table.failures[b"b"] = UnavailableError("b is away")
        await callers.write(b"a", b"b")
        assert table.sent == [[b"a"], [b"b"]]
        await table.answer(1)
        await callers.write(b"c")
        assert table.sent == [[b"a"], [b"b"], [b"c"]]
        await table.answer(0)
        await table.answer(2)
    assert callers.outcomes == {b"a": "written", b"b": table.failures[b"b"], b"c": "written"}


async def test_who_comes_while_all_places_are_taken_is_sent_with_the_others_that_do(table: WrittenTable) -> None:
    table.failures = {b"d": UnavailableError("d is away"), b"e": InvalidRequestError("e is wrong")}
    async with anyio.create_task_group() as tasks:
        callers = WritingCallers(tasks, table)
        await callers.write(b"a", b"b", b"c", b"d", b"e", b"f")
        await table.answer(0)
        assert table.sent[2:] == [[b"c", b"d", b"e", b"f"]] and set(callers.outcomes) == {b"a"}
        await callers.write(b"g")
        assert len(table.sent) == 3, "both places are taken"
        await table.answer(2)
        assert table.sent[3:] == [[b"g"]]
        await table.answer(1)
        await table.answer(3)
        await callers.write(b"h", b"i")
        assert table.sent[4:] == [[b"h"], [b"i"]], "both places are free"
        await table.answer(4)
        await table.answer(5)
    assert callers.outcomes == {key: table.failures.get(key, "written") for key in (b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"i")}


async def test_who_waited_for_others_to_get_a_token_told_that_the_service_is_silent(table: WrittenTable) -> None:
    """Only the caller that sends knows whether a call was under way at all."""
    commit, waits = GroupCommit(table, groups_in_flight=1), OwnWaits(partial(next, count()))  # type: ignore[arg-type]

    async def wait_in_line() -> None:
        with waits:
            await commit.mutate(b"b", set_cell("fc", b"c", b""))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(commit.mutate, b"a")
        await settled()
        tasks.start_soon(wait_in_line)
        await settled()
        assert waits.over_at(-1) < waits.over_at(-1), "it waits in line"
        await table.answer(0)
        assert table.sent == [[b"a"], [b"b"]] and waits.over_at(-1) == waits.over_at(-1), "it is sent, so what is silent now is the service"
        await table.answer(1)


async def test_a_group_has_a_bounded_number_of_rows(table: WrittenTable) -> None:
    keys = [b"%03d" % number for number in range(ROWS_MAX + 2)]
    async with anyio.create_task_group() as tasks:
        callers = WritingCallers(tasks, table)
        await callers.write(b"a", b"b", *keys)
        await table.answer(0)
        await table.answer(1)
        assert table.sent[2:] == [keys[:ROWS_MAX], keys[ROWS_MAX:]]
        await table.answer(2)
        await table.answer(3)


async def test_a_group_has_bounded_bytes_and_what_is_larger_goes_alone(table: WrittenTable) -> None:
    async with anyio.create_task_group() as tasks:
        callers = WritingCallers(tasks, table)
        await callers.write(b"a", b"b")
        await callers.write(b"c", b"d", b"e", value=b"x" * (BYTES_MAX // 2 - 100))
        await callers.write(b"f", value=b"x" * BYTES_MAX)
        for number in range(5):
            await table.answer(number)
    assert table.sent[2:] == [[b"c", b"d"], [b"e"], [b"f"]] and set(callers.outcomes.values()) == {"written"}


async def test_who_is_cancelled_while_it_waits_is_not_sent(table: WrittenTable) -> None:
    async with anyio.create_task_group() as tasks:
        callers = WritingCallers(tasks, table)
        await callers.write(b"a", b"b", b"c", b"d", b"e")
        callers.scopes[b"c"].cancel()
        callers.scopes[b"e"].cancel()
        await settled()
        await table.answer(0)
        await table.answer(1)
        await table.answer(2)
    assert table.sent[2:] == [[b"d"]]
    assert callers.outcomes == {b"a": "written", b"b": "written", b"c": "cancelled", b"d": "written", b"e": "cancelled"}


async def test_who_is_cancelled_while_it_sends_for_others_sends_on(table: WrittenTable) -> None:
    async with anyio.create_task_group() as tasks:
        callers = WritingCallers(tasks, table)
        await callers.write(b"a", b"b", b"c", b"d")
        await table.answer(0)
        callers.scopes[b"c"].cancel()
        await settled()
        assert b"d" not in callers.outcomes
        await table.answer(2)
        assert callers.outcomes[b"d"] == "written"
        await table.answer(1)
    assert table.sent == [[b"a"], [b"b"], [b"c", b"d"]]


async def test_who_is_cancelled_while_others_send_for_it_leaves_them_alone(table: WrittenTable) -> None:
    async with anyio.create_task_group() as tasks:
        callers = WritingCallers(tasks, table)
        await callers.write(b"a", b"b", b"c", b"d", b"e")
        await table.answer(0)
        callers.scopes[b"d"].cancel()
        await settled()
        assert callers.outcomes[b"d"] == "cancelled"
        await table.answer(2)
        await table.answer(1)
    assert callers.outcomes[b"c"] == callers.outcomes[b"e"] == "written"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("others", [[], [b"d"], [b"d", b"e"]])
async def test_who_is_cancelled_when_it_has_just_been_told_to_send_sends_the_others_only(table: WrittenTable, others: list[bytes]) -> None:
    """Only asyncio's own cancellation comes between."""
    async with anyio.create_task_group() as tasks:
        callers = WritingCallers(tasks, table)
        await callers.write(b"a", b"b")
        told = asyncio.create_task(callers._commit.mutate(b"c"))
        await callers.write(*others)
        callers.when_written[b"a"] = told.cancel
        await table.answer(0)
        assert table.sent[2:] == ([others] if others else [])
        await table.answer(1)
        if others:
            await table.answer(2)
        assert told.cancelled()
    assert set(callers.outcomes.values()) == {"written"} and len(callers.outcomes) == 2 + len(others)


async def test_who_waits_for_a_sender_that_breaks_off_knows_nothing(table: WrittenTable) -> None:
    table.broken = RuntimeError("a defect")
    async with anyio.create_task_group() as tasks:
        callers = WritingCallers(tasks, table)
        await callers.write(b"a", b"b", b"c", b"d")
        await table.answer(0)
        await table.answer(2)
        assert callers.outcomes[b"c"] is table.broken and isinstance(callers.outcomes[b"d"], UnconfirmedError)
        await callers.write(b"e")
        assert table.sent[3:] == [[b"e"]], "its place is free again"
        await table.answer(1)
        await table.answer(3)


async def test_a_lone_call_that_is_cancelled_ends_at_once_and_frees_its_place(table: WrittenTable) -> None:
    async with anyio.create_task_group() as tasks:
        callers = WritingCallers(tasks, table)
        await callers.write(b"a", b"b")
        callers.scopes[b"a"].cancel()
        await settled()
        assert callers.outcomes == {b"a": "cancelled"}
        await callers.write(b"c")
        assert table.sent == [[b"a"], [b"b"], [b"c"]]
        await table.answer(1)
        await table.answer(2)
