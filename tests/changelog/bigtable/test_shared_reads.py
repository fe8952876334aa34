"""Reads that share a call: who is read with whom, and what each caller gets, whoever is slow, damaged or cancelled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import iscoroutinefunction
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from changelog.base.errors import CorruptRecordError, TieredError, UnavailableError
from changelog.bigtable import shared_reads
from changelog.bigtable.channel import NEWEST
from changelog.bigtable.row_merge import CellRow
from changelog.bigtable.shared_reads import PATIENCE_MIN_S, ROWS_MAX, SharedReads
from tests.given.virtual_time import simulated

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_call_is_slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even on a machine that stands for a while. What is about slow calls runs in virtual time."""
    if iscoroutinefunction(request.function):
        monkeypatch.setattr(shared_reads, "PATIENCE_MIN_S", 600.0)


class ReadTable:
    """Notes what is read. A call is answered when it is told to, or at once; `slow` and `damaged` rows stop a call."""

    def __init__(self) -> None:
        self.calls: list[list[bytes]] = []
        self.absent: set[bytes] = set()
        self.slow: set[bytes] = set()
        self.damaged: set[bytes] = set()
        self.at_once = False
        self._answers: list[anyio.Event] = []

    async def read(self, key: bytes, yields: Any) -> CellRow | None:
        found: list[CellRow] = []
        await self.read_each([key], yields, found.append)
        return found[0] if found else None

    async def read_in_one(self, key: bytes, yields: Any, patience_s: float) -> CellRow | None:
        assert patience_s >= PATIENCE_MIN_S
        return await self.read(key, yields)

    async def read_each(self, keys: Iterable[bytes], yields: Any, take: Callable[[CellRow], object]) -> None:
        assert yields is NEWEST
        keys = list(keys)
        assert 0 < len(keys) == len(set(keys)) <= ROWS_MAX
        self.calls.append(keys)
        self._answers.append(anyio.Event())
        if not self.at_once:
            await self._answers[-1].wait()
        for key in sorted(keys):
            if key in self.slow:
                await anyio.sleep_forever()
            if key in self.damaged:
                raise UnavailableError(f"{key!r} is damaged") if len(keys) > 1 else CorruptRecordError(f"{key!r} is damaged")
            if key not in self.absent:
                take(CellRow(key, ()))
                await checkpoint()

    async def answer(self, call: int) -> None:
        self._answers[call].set()
        await settled()


async def settled() -> None:
    """All others have gone as far as they can."""
    for _ in range(30):
        await checkpoint()


class ReadingCallers:
    """Tasks that read one row each, with two calls at once, and what each of them got: a key, None or an error."""

    def __init__(self, tasks: Any, table: ReadTable) -> None:
        self.got: dict[str, Any] = {}
        self.scopes: dict[str, anyio.CancelScope] = {}
        self._tasks = tasks
        self._reads = SharedReads(table, NEWEST, calls_at_once=2)  # type: ignore[arg-type]

    async def read(self, *names: str) -> None:
        """All of them ask at one moment. The key is the first letter of a name."""
        for name in names:
            self._tasks.start_soon(self._read, name)
        await settled()

    async def wait_for(self, *names: str) -> None:
        with anyio.fail_after(100 * PATIENCE_MIN_S):
            while not self.got.keys() >= set(names):  # noqa: ASYNC110 - what is waited for is a time
                await anyio.sleep(PATIENCE_MIN_S / 4)

    async def _read(self, name: str) -> None:
        with anyio.CancelScope() as self.scopes[name]:
            try:
                row = await self._reads.read(name[:1].encode())
                self.got[name] = None if row is None else row.key.decode()
            except TieredError as error:
                self.got[name] = error


@pytest.fixture
def table() -> ReadTable:
    return ReadTable()


async def test_what_is_asked_for_at_one_moment_goes_in_one_call(table: ReadTable) -> None:
    table.absent = {b"b"}
    async with anyio.create_task_group() as tasks:
        callers = ReadingCallers(tasks, table)
        await callers.read("a", "b", "c", "c again")
        assert table.calls == [[b"a", b"b", b"c"]]
        await callers.read("d")
        assert table.calls[1:] == [[b"d"]], "there was a free place"
        await callers.read("e", "f")
        await callers.read("g")
        assert len(table.calls) == 2, "both places are taken"
        await table.answer(1)
        assert callers.got == {"d": "d"} and table.calls[2:] == [[b"e", b"f", b"g"]]
        await table.answer(0)
        await table.answer(2)
    assert callers.got == {"a": "a", "b": None, "c": "c", "c again": "c", "d": "d", "e": "e", "f": "f", "g": "g"}


async def test_a_call_has_a_bounded_number_of_rows(table: ReadTable) -> None:
    reads, got = SharedReads(table, NEWEST), set[bytes]()  # type: ignore[arg-type]
    table.at_once = True

    async def read(number: int) -> None:
        row = await reads.read(b"%04d" % number)
        assert row is not None
        got.add(row.key)

    async with anyio.create_task_group() as tasks:
        for number in range(2 * ROWS_MAX + 5):
            tasks.start_soon(read, number)
    assert [len(call) for call in table.calls] == [ROWS_MAX, ROWS_MAX, 5] and len(got) == 2 * ROWS_MAX + 5


@simulated
async def test_a_slow_row_holds_nobody_up_for_long() -> None:
    table = ReadTable()
    table.at_once, table.slow = True, {b"b"}
    async with anyio.create_task_group() as tasks:
        callers = ReadingCallers(tasks, table)
        await callers.read("d", "a", "b", "c")
        assert callers.got == {"a": "a"}, "a is answered before the call has ended"
        await callers.wait_for("c", "d")
        assert callers.got == {"a": "a", "c": "c", "d": "d"} and [b"b"] in table.calls
        # Both places are taken by slow reads now. What comes next waits no longer than for a slow call.
        await callers.read("b again")
        await callers.read("e")
        await callers.wait_for("e")
        tasks.cancel_scope.cancel()


async def test_a_damaged_row_fails_its_own_caller_only(table: ReadTable) -> None:
    table.at_once, table.damaged = True, {b"b"}
    async with anyio.create_task_group() as tasks:
        callers = ReadingCallers(tasks, table)
        await callers.read("a", "b", "c", "d")
    assert isinstance(callers.got.pop("b"), CorruptRecordError) and callers.got == {"a": "a", "c": "c", "d": "d"}


async def test_who_is_cancelled_leaves_the_others_alone(table: ReadTable) -> None:
    async with anyio.create_task_group() as tasks:
        callers = ReadingCallers(tasks, table)
        await callers.read("a", "b", "c")
        callers.scopes["b"].cancel()  # waits in a group
        await settled()
        callers.scopes["a"].cancel()  # reads for the others: they ask alone, and b does not, because it is gone
        await settled()
        assert table.calls == [[b"a", b"b", b"c"], [b"c"]]
        await callers.read("d")
        await callers.read("h")
        await callers.read("e", "f", "g")
        callers.scopes["e"].cancel()  # the first of the line, and nothing was sent for it
        await settled()
        await table.answer(1)
        assert callers.got == {"c": "c"} and table.calls[2:] == [[b"d"], [b"h"]]
        await table.answer(2)
        assert table.calls[4:] == [[b"f", b"g"]]
        await table.answer(3)
        await table.answer(4)
    assert callers.got == {"c": "c", "d": "d", "h": "h", "f": "f", "g": "g"}


async def test_who_is_left_alone_in_the_line_reads_for_itself(table: ReadTable) -> None:
    async with anyio.create_task_group() as tasks:
        callers = ReadingCallers(tasks, table)
        await callers.read("a")
        await callers.read("b")
        await callers.read("c", "d")
        callers.scopes["c"].cancel()  # the first of the line, and d is all that is left of it
        await table.answer(0)
        await table.answer(2)
        await table.answer(1)
    assert callers.got == {"a": "a", "b": "b", "d": "d"} and table.calls[2:] == [[b"d"]]


async def test_an_error_of_a_single_read_reaches_its_caller_and_frees_its_place(table: ReadTable) -> None:
    table.at_once, table.damaged = True, {b"x"}
    async with anyio.create_task_group() as tasks:
        callers = ReadingCallers(tasks, table)
        for number in range(3):
            await callers.read(f"x{number}")
        await callers.read("a")
    assert callers.got.pop("a") == "a" and len(callers.got) == 3
    assert all(isinstance(error, CorruptRecordError) for error in callers.got.values()) and len(table.calls) == 4
