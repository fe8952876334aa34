"""PostgreSQL that crashes, freezes, is cut off, and fails over: real servers, with fsync, killed amid writes.

No write that was acknowledged is lost, except to an asynchronous standby; and what was not answered is settled.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import anyio
import pytest

from changelog.base.errors import UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId
from changelog.lease import Renewal
from changelog.postgres.log import PostgresChangeLog
from emulators.postgres.server import SAFE, PostgresServer, server_directory
from tests.conftest import postgres_or_skip
from tests.given.cutting_proxy import CutKind, cutting_proxy
from tests.given.fresh_schema import ask, made_schema, settings_of
from tests.given.waiting import becomes
from tiered.metadata import Metadata
from tiered.object_id import blob_name
from tiered.postgres.open import open_postgres
from tiered.postgres.rows import PostgresRows
from tiered.provision.findings import NoticeKind
from tiered.provision.postgres import inspect_postgres
from tiered.services.backends import Inline, Row, Tombstone

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
RUNTIME = SystemRuntime()
PATH = "notes/org.1/objects/key"
FAILURES = (UnavailableError, UnconfirmedError)
Opened = tuple[PostgresRows, PostgresChangeLog]


@pytest.fixture
def durable() -> Iterator[PostgresServer]:
    """A server that syncs, and that a test may kill."""
    with postgres_or_skip(SAFE) as server:
        yield server


def new() -> ChangeId:
    return ChangeId.new(RUNTIME)


def inline(token: ChangeId, payload: bytes = b"payload") -> Inline:
    return Inline(Metadata(size=len(payload)), payload, token)


def tombstone(token: ChangeId, path: str = PATH) -> Tombstone:
    return Tombstone(blob_name(path, token), None, None, token)


async def swap(rows: PostgresRows, token: ChangeId, path: str = PATH) -> bool:
    return await rows.swap(path, token, None, tombstone(token, path), RUNTIME.boot_time() + 60)


@asynccontextmanager
async def opened(server: PostgresServer, schema: str, **others: object) -> AsyncIterator[Opened]:
    async with open_postgres(settings_of(server, schema, **others), RUNTIME) as both:
        yield both


class Acknowledged:
    """Writers that write one new row after another, in all ways, and remember what they were told."""

    def __init__(self, rows: PostgresRows, log: PostgresChangeLog) -> None:
        self.rows, self.log = rows, log
        self.puts: dict[str, ChangeId] = {}
        self.swaps: dict[str, ChangeId] = {}
        self.refused: dict[str, ChangeId] = {}
        self.records: list[Change] = []
        self.notes: dict[str, bytes] = {}
        self.failed = 0

    def count(self) -> int:
        return len(self.puts) + len(self.swaps) + len(self.refused) + len(self.records) + len(self.notes)

    async def write(self, name: int) -> None:
        number = 0
        while True:
            number += 1
            path, token = f"notes/objects/{name}-{number}", new()
            try:
                if await self.rows.put_inline(path, token, inline(token, b"x" * 3000)):
                    self.puts[path] = token
                if await swap(self.rows, token, f"{path}/t"):
                    self.swaps[f"{path}/t"] = token
                if not await self.rows.settle(f"{path}/r", token):
                    self.refused[f"{path}/r"] = token
                change = Change(token, path)
                await self.log.record(change, "me")
                self.records.append(change)
                if await self.log.swap_note(path, None, b"note"):
                    self.notes[path] = b"note"
            except FAILURES:
                self.failed += 1
                await anyio.sleep(0.02)

    async def missing(self, rows: PostgresRows, log: PostgresChangeLog) -> list[str]:
        """What was acknowledged and is not there."""
        gone = [path for path, token in self.puts.items() if (await rows.read(path)).state != inline(token, b"x" * 3000)]
        gone += [path for path, token in self.swaps.items() if token not in (await rows.read(path, marks=token)).won]
        gone += [path for path, token in self.refused.items() if token not in (await rows.read(path, marks=token)).refused]
        gone += [change.object for change in self.records if await log.read(change.id) is None]
        return gone + [name for name, value in self.notes.items() if await log.read_note(name) != value]


async def until(told: Acknowledged, more: int) -> None:
    wanted = told.count() + more

    async def enough() -> bool:
        return told.count() >= wanted

    await becomes(enough)


async def test_a_server_that_is_killed_again_and_again_loses_nothing_that_was_acknowledged(durable: PostgresServer) -> None:
    schema = await made_schema(durable)
    async with opened(durable, schema, connections_max=8) as (rows, log), anyio.create_task_group() as tasks:
        told = Acknowledged(rows, log)
        for name in range(8):
            tasks.start_soon(told.write, name)
        for _ in range(3):
            await until(told, 150)
            await anyio.to_thread.run_sync(durable.stop)  # as pg_ctl stop -m immediate: no checkpoint, no goodbye
            await anyio.to_thread.run_sync(durable.start)
        await until(told, 50)
        tasks.cancel_scope.cancel()
    assert told.failed > 0
    async with opened(durable, schema) as (rows, log):
        assert await told.missing(rows, log) == []


# --- a statement that lands late -----------------------------------------------------------------


async def gone(server: PostgresServer, pid: int) -> bool:
    return not await ask(server, "SELECT 1 FROM pg_stat_activity WHERE pid = $1", pid)


async def prepared(rows: PostgresRows) -> int:
    """The process that serves the only connection. From now on the statement is sent whole: the one call that is not
    answered is the one that may land.
    """
    assert await swap(rows, new(), f"{PATH}/prepared")
    [[pid]] = await rows._pool.read("asking who answers", "SELECT pg_backend_pid()")
    return int(pid)


def has(rows: PostgresRows, timeout_s: float) -> None:
    """From now on each call has so much time. What went before had enough of it, however busy the machine is."""
    rows._pool._timeout_s = timeout_s
    if rows._pool._timer is not None:  # it is set for calls that have ended
        rows._pool._timer.cancel()
        rows._pool._timer = None


@contextmanager
def frozen(rows: PostgresRows, pid: int) -> Iterator[None]:
    """It stands still until the end of the block, and is waited for half a second only."""
    has(rows, 0.5)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
        has(rows, 10.0)


@pytest.mark.parametrize("write", ["put", "swap"])
async def test_a_write_that_stood_in_a_frozen_backend_lands_after_it_was_settled_and_has_no_effect(
    postgres: PostgresServer, write: str
) -> None:
    schema = await made_schema(postgres)
    token = new()
    async with opened(postgres, schema, connections_max=1) as (rows, _):
        pid = await prepared(rows)
        with frozen(rows, pid):
            with pytest.raises(UnconfirmedError):
                await (rows.put_inline(PATH, token, inline(token)) if write == "put" else swap(rows, token))
            async with opened(postgres, schema) as (others, _):
                assert await others.settle(PATH, token) is False
        await becomes(lambda: gone(postgres, pid))  # it reads the statement, then finds that nobody is there
        assert await rows.read(PATH, marks=token) == Row(None, refused=frozenset({token}))


async def test_a_write_that_landed_late_and_before_it_was_settled_is_found(postgres: PostgresServer) -> None:
    schema = await made_schema(postgres)
    token = new()
    async with opened(postgres, schema, connections_max=1) as (rows, log):
        pid = await prepared(rows)
        with frozen(rows, pid), pytest.raises(UnconfirmedError):
            await swap(rows, token)
        await becomes(lambda: gone(postgres, pid))
        assert await rows.settle(PATH, token) is True
        assert (await rows.read(PATH, marks=token)).won == {token}
        assert not await swap(rows, token), "to send it again has no effect"
        assert await log.now_ms() > 0


async def test_a_write_whose_connection_broke_is_unknown_until_it_is_settled_and_then_as_it_was_told(postgres: PostgresServer) -> None:
    schema = await made_schema(postgres)
    outcomes = set()
    async with cutting_proxy(f"x:{postgres.port}") as proxy:
        dsn = postgres.dsn(host_port=proxy.url.removeprefix("http://"))
        async with opened(postgres, schema, dsn=dsn, connections_max=1) as (rows, log):
            for number, (share, kind) in enumerate([(1.0, CutKind.MUTE), (0.5, CutKind.RESET), (1.0, CutKind.MUTE), (0.1, CutKind.RESET)]):
                path = f"{PATH}/{number}"
                for _ in range(2):  # the second has its length: nothing is prepared any more
                    before, warm = proxy.taken, new()
                    assert await swap(rows, warm, f"{path}/w{_}")
                length = proxy.taken - before
                token = new()
                # A token's path is two bytes shorter than that of the swap before.
                proxy.cuts.append((proxy.taken + int(length * share) - (6 if share == 1.0 else 0), kind))
                with pytest.raises(UnconfirmedError):
                    await swap(rows, token, path)
                live = await rows.settle(path, token)
                row = await rows.read(path, marks=token)
                assert live == (row.target is not None) == (token in row.won) != (token in row.refused)
                outcomes.add(live)
            entry = await log.record(Change(new(), PATH), "me")
            assert await log.renew([entry]) == [Renewal.RENEWED]
    assert outcomes <= {True, False} and False in outcomes


# --- standbys and failover -----------------------------------------------------------------------


@asynccontextmanager
async def with_standby(primary: PostgresServer) -> AsyncIterator[PostgresServer]:
    async with AsyncExitStack() as stack:
        standby = await anyio.to_thread.run_sync(primary.standby_in, stack.enter_context(server_directory()))
        stack.callback(standby.stop)
        await anyio.to_thread.run_sync(standby.start)
        await becomes(lambda: ask(primary, "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"))
        yield standby


async def holds(rows: PostgresRows, path: str) -> bool:
    return (await rows.read(path)).state is not None


async def receiver(standby: PostgresServer) -> int:
    [[pid]] = await ask(standby, "SELECT pid FROM pg_stat_wal_receiver")
    return int(pid)


def both_hosts(first: PostgresServer, second: PostgresServer) -> str:
    return first.dsn(host_port=f"127.0.0.1:{first.port},127.0.0.1:{second.port}")


async def test_a_failover_to_an_asynchronous_standby_goes_on_there_and_check_says_what_it_may_lose(durable: PostgresServer) -> None:
    schema = await made_schema(durable)
    early, late = new(), new()
    async with with_standby(durable) as standby:
        dsn = both_hosts(standby, durable)
        async with opened(durable, schema, dsn=dsn, connections_max=2, timeout_s=5) as (rows, log):
            assert await swap(rows, early, f"{PATH}/early")
            async with open_postgres(settings_of(standby, schema), RUNTIME, writes=False) as (readers, _):
                await becomes(lambda: holds(readers, f"{PATH}/early"))
                with pytest.raises(UnavailableError, match="standby") as refused:
                    await readers.settle(f"{PATH}/early", new())
                assert refused.value.code == "25006"
            with pytest.raises(UnavailableError, match="standby"):
                async with opened(standby, schema):
                    pass
            found = await inspect_postgres(settings_of(durable, schema), RUNTIME)
            notes = [each.sentence for each in found if each.kind is NoticeKind.NOTE]
            assert any("(1 are connected): a standby that is promoted may lack writes that were acknowledged" in note for note in notes)
            os.kill(await receiver(standby), signal.SIGSTOP)  # the network between the two is slow
            assert await swap(rows, late, f"{PATH}/late"), "an asynchronous standby is not waited for"
            await anyio.to_thread.run_sync(durable.stop)
            await anyio.to_thread.run_sync(lambda: standby.stop(signal.SIGQUIT))
            await anyio.to_thread.run_sync(standby.start)
            await anyio.to_thread.run_sync(standby.promote)

            async def goes_on() -> bool:
                try:
                    return await swap(rows, new(), f"{PATH}/after")
                except FAILURES:
                    return False

            await becomes(goes_on)  # the same store finds the new primary
            assert early in (await rows.read(f"{PATH}/early", marks=early)).won
            assert await rows.read(f"{PATH}/late", marks=late) == Row(None), "this is what the note is about"
            assert await log.now_ms() > 0


async def test_with_a_synchronous_standby_nothing_is_told_or_shown_that_it_does_not_have(
    durable: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("changelog.postgres.session.LOCK_SHARE", 0.05)  # so that the server's word on a lock comes long before the end
    schema = await made_schema(durable)
    token, cut = new(), new()
    async with with_standby(durable) as standby:
        await ask(durable, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        await ask(durable, "SELECT pg_reload_conf()")
        settings = settings_of(durable, schema)

        async def is_synchronous() -> bool:
            return any("commits wait for standbys" in each.sentence for each in await inspect_postgres(settings, RUNTIME))

        await becomes(is_synchronous)
        async with opened(durable, schema) as (rows, _), opened(durable, schema) as (others, _):
            assert await swap(rows, token, f"{PATH}/first")
            has(rows, 1.0)
            pid = await receiver(standby)
            os.kill(pid, signal.SIGSTOP)
            try:
                with pytest.raises(UnconfirmedError):
                    await swap(rows, cut)
                # It has committed there, and waits. Nobody asked the server to cancel that wait, so nobody sees it yet:
                assert await others.read(PATH) == Row(None)
                with pytest.raises(UnavailableError, match="55P03"):
                    await others.settle(PATH, cut)
            finally:
                os.kill(pid, signal.SIGCONT)
            await becomes(lambda: holds(others, PATH))
            assert await others.settle(PATH, cut) is True
        assert "canceling wait" not in durable.said() and "canceling the wait" not in durable.said()


async def test_a_store_of_a_standby_reads_and_says_what_it_cannot(durable: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    schema = await made_schema(durable)
    async with with_standby(durable) as standby:
        found = await inspect_postgres(settings_of(standby, schema), RUNTIME)
        assert any(each.kind is NoticeKind.PROBLEM and "is a standby" in each.sentence for each in found)
        async with open_postgres(settings_of(standby, schema), RUNTIME, writes=False) as (rows, log):
            assert await rows.read(PATH) == Row(None) and await log.presences() == []
            with pytest.raises(UnavailableError):
                await log.record(Change(new(), PATH), "me")
        assert caplog.text.count("standby_answers") == 1 and "no primary does" in caplog.text
        dsn = both_hosts(standby, durable) + "?target_session_attrs=prefer-standby"
        async with open_postgres(settings_of(durable, schema, dsn=dsn), RUNTIME, writes=False) as (rows, _):
            assert caplog.text.count("standby_answers") == 1, "nothing was read yet"
            assert await rows.read(PATH) == Row(None) and "postgres.dsn asks for one" in caplog.text
