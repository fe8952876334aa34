"""Calls that share a statement: who is in which group, and what each is told."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import anyio
import pytest

from changelog.base.errors import UnavailableError, UnconfirmedError
from changelog.postgres.group_commit import ROWS_MAX, Item, SharedStatements

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])]


class AskedServer:
    """Answers when it is told to. `refuses`: keys for which a statement has no effect."""

    def __init__(self) -> None:
        self.groups: list[list[bytes]] = []
        self.answers = anyio.Event()
        self.failure: Exception | None = None
        self.refuses: set[bytes] = set()

    async def send(self, items: Sequence[Item]) -> Collection[bytes]:
        self.groups.append([key for key, _ in items])
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        return {key for key, _ in items} - self.refuses


async def test_what_waits_goes_together_sorted_and_no_key_twice(anyio_backend: str) -> None:
    server = AskedServer()
    commits = SharedStatements(server.send, groups_in_flight=1)
    server.refuses = {b"c"}
    told: dict[bytes, list[bool]] = {}

    async def call(key: bytes) -> None:
        told.setdefault(key, []).append(await commits.call(key, b"v"))

    async with anyio.create_task_group() as tasks:
        for key in (b"z", b"d", b"c", b"d", b"a"):
            tasks.start_soon(call, key)
            await anyio.wait_all_tasks_blocked()
        server.answers.set()
    assert server.groups == [[b"z"], [b"a", b"c", b"d"], [b"d"]]
    assert told == {b"z": [True], b"a": [True], b"c": [False], b"d": [True, True]}


async def test_each_caller_gets_an_error_of_its_own(anyio_backend: str) -> None:
    server = AskedServer()
    commits = SharedStatements(server.send, groups_in_flight=1)
    server.failure = UnavailableError("the disk is full")
    errors: list[UnavailableError] = []

    async def call(number: int) -> None:
        with pytest.raises(UnavailableError, match="the disk is full") as failed:
            await commits.call(b"%d" % number)
        errors.append(failed.value)

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(call, number)
        await anyio.wait_all_tasks_blocked()
        server.answers.set()
    assert len({id(error) for error in errors}) == 4 and len(server.groups) == 2
    server.failure = None
    assert await commits.call(b"next")


async def test_who_is_cancelled_while_it_waits_is_not_sent_and_who_leads_still_sends_for_the_others(anyio_backend: str) -> None:
    server = AskedServer()
    commits = SharedStatements(server.send, groups_in_flight=1)
    done: list[bytes] = []

    async def call(key: bytes, scope: anyio.CancelScope) -> None:
        with scope:
            await commits.call(key)
            done.append(key)

    scopes = {key: anyio.CancelScope() for key in (b"first", b"waits", b"leads", b"other")}
    async with anyio.create_task_group() as tasks:
        for key, scope in scopes.items():
            tasks.start_soon(call, key, scope)
            await anyio.wait_all_tasks_blocked()
        scopes[b"waits"].cancel()
        await anyio.wait_all_tasks_blocked()
        server.answers.set()
        scopes[b"leads"].cancel()
    assert server.groups[0] == [b"first"] and b"other" in done and not any(b"waits" in group for group in server.groups)


async def test_a_sender_that_is_stopped_leaves_the_others_with_an_unknown_outcome(anyio_backend: str) -> None:
    stopped = False

    async def send(items: Sequence[Item]) -> Collection[bytes]:
        await anyio.lowlevel.checkpoint()
        if len(items) > 1 and stopped:
            raise KeyboardInterrupt
        return {key for key, _ in items}

    commits = SharedStatements(send, groups_in_flight=1)
    stopped = True
    told: list[object] = []

    async def call(key: bytes) -> None:
        try:
            told.append(await commits.call(key))
        except (UnconfirmedError, KeyboardInterrupt) as error:
            told.append(type(error))

    async with anyio.create_task_group() as tasks:
        for key in (b"a", b"b", b"c"):
            tasks.start_soon(call, key)
    assert sorted(map(str, told)) == sorted(map(str, [True, KeyboardInterrupt, UnconfirmedError]))
    assert await commits.call(b"d")


async def test_a_group_is_bounded(anyio_backend: str) -> None:
    server = AskedServer()
    commits = SharedStatements(server.send, groups_in_flight=1)
    async with anyio.create_task_group() as tasks:
        for number in range(2 * ROWS_MAX + 10):
            tasks.start_soon(commits.call, b"%d" % number)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(commits.call, b"large", b"x" * (2 << 20))
        await anyio.wait_all_tasks_blocked()
        server.answers.set()
    assert max(map(len, server.groups)) == ROWS_MAX
    assert sum(map(len, server.groups)) == 2 * ROWS_MAX + 11
