"""Checkpoints lose no commit, with any SQLite. Before 3.51.3, its own ones can (sqlite.org/wal.html, "walresetbug").

The interleavings are forced: another process is stopped inside its checkpoint, and this process commits there.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from anyio.abc import Process
from anyio.lowlevel import current_token
from anyio.streams.text import TextReceiveStream, TextSendStream

from changelog.base.errors import CorruptRecordError, UnavailableError
from changelog.sqlite.checkpoints import LOG_PAGES, SQLITE_VERSION, has_reset_bug
from changelog.sqlite.connections import WAL_BYTES_MAX
from changelog.sqlite.database import Database
from tests.given.repository import ROOT
from tiered.testing.clock import Clock

pytestmark = pytest.mark.anyio

TABLE = ["CREATE TABLE IF NOT EXISTS told (id INTEGER PRIMARY KEY, filling BLOB)"]
INSERT, ROW_BYTES = "INSERT INTO told (filling) VALUES (zeroblob(?))", 3000
"""So each row fills a page."""


def insert(rows: int) -> Callable[[sqlite3.Connection], None]:
    def run(connection: sqlite3.Connection) -> None:
        connection.executemany(INSERT, [(ROW_BYTES,)] * rows)

    return run


class Other:
    """A process that has the database open too. It stops where its checkpoints begin, and between their two looks."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._asked, self._said, self._rest = TextSendStream(process.stdin), TextReceiveStream(process.stdout), ""

    async def go_on(self, to: str = "go") -> str:
        """Tells it to go on, and returns where it stops next."""
        await self._asked.send(f"{to}\n")
        return await self.stops()

    async def until(self, where: str | tuple[str, ...], to: str = "go") -> str:
        """Tells it to go on, until it stops there."""
        stop = await self.go_on(to)
        while stop not in where:
            stop = await self.go_on()
        return stop

    async def stops(self) -> str:
        while "\n" not in self._rest:
            self._rest += await self._said.receive()
        line, self._rest = self._rest.split("\n", 1)
        return line


OTHER = f"""
import sys
from pathlib import Path
import anyio
from changelog.base.runtime import SystemRuntime
from changelog.sqlite.checkpoints import Checkpoints
from changelog.sqlite.database import Database
from tests.given.paused_checkpoint import call_at

def stop(where):
    print(where, flush=True)
    return sys.stdin.readline().strip()

async def main():
    async with Database.open(Path(sys.argv[1]), SystemRuntime()) as database:
        database.require({TABLE})
        asked = stop("open")
        while asked != "close":
            await database.write(lambda connection: connection.executemany("{INSERT}", [({ROW_BYTES},)] * int(asked)))
            asked = stop("written")
    stop("closed")

if sys.argv[2] == "unguarded":
    Checkpoints.empty = lambda self, how: self._copy(how)
call_at(stop)
anyio.run(main)
"""


@asynccontextmanager
async def other(path: Path, how: str = "guarded") -> AsyncIterator[Other]:
    async with await anyio.open_process([sys.executable, "-c", OTHER, str(path), how], cwd=ROOT, stderr=None) as process:
        try:
            told = Other(process)
            assert await told.stops() == "open"
            yield told
        finally:
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiered.db"


async def kept(database: Database, told: int) -> bool:
    """Whether the file is whole, and holds as many rows as were acknowledged."""
    try:
        return await database.read(lambda connection: [
            connection.execute(statement).fetchall() for statement in ("PRAGMA integrity_check", "SELECT count(*) FROM told")
        ]) == [[("ok",)], [(told,)]]  # fmt: skip
    except CorruptRecordError:
        return False


def faults(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall()


def log_bytes(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


def copy_all_of_the_log(path: Path) -> int:
    """Returns how many pages it had. No other connection may write or read meanwhile."""
    with closing(sqlite3.connect(path)) as connection:
        (_, pages, copied), = connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    assert pages == copied
    return int(pages)


@pytest.mark.slow
async def test_commits_were_lost_while_another_process_copied_its_log(path: Path, runtime: Clock) -> None:
    stops = []
    async with Database.open(path, runtime, busy_timeout_s=0) as database, other(path) as process:
        database.require(TABLE)
        await database.write(insert(1))
        told = 1
        for rows in (LOG_PAGES + 100, 1, LOG_PAGES + 100, 1):  # twice: a connection's first checkpoint has seen no other log
            stop = await process.go_on(str(rows))
            while stop != "written":
                stops.append(stop)
                with suppress(UnavailableError):  # it has to wait for the checkpoint
                    await database.write(insert(1))
                    told += 1
                stop = await process.go_on()
            told += rows
        for _ in range(3):  # the log grows beyond what was noted of the old one, and is copied again
            await database.write(insert(LOG_PAGES // 2))
            told += LOG_PAGES // 2
        assert "between" in stops and await kept(database, told)
    assert faults(path) == [("ok",)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["guarded", pytest.param(
    "unguarded", marks=pytest.mark.skipif(not has_reset_bug(SQLITE_VERSION), reason="this SQLite loses none")
)])  # fmt: skip
async def test_commits_were_lost_while_another_process_closed_the_file(path: Path, runtime: Clock, how: str) -> None:
    """`unguarded`: without the transaction that stands by they are lost. So this test would notice."""
    stops = []

    def begin_the_log_anew(connection: sqlite3.Connection) -> None:
        insert(1)(connection)
        stops.append(anyio.from_thread.run(process.until, ("between", "closed"), "close", token=token))

    token = current_token()
    async with Database.open(path, runtime) as database, other(path, how) as process:
        database.require(TABLE)
        await database.write(insert(1))
        for rows in (LOG_PAGES + 100, 1):
            await process.until("written", str(rows))
        await database.write(insert(300))
        pages = await to_thread.run_sync(copy_all_of_the_log, path)
        await database.write(begin_the_log_anew)
        assert stops == ["between"]
        await process.until("closed")
        told = LOG_PAGES + 403
        for _ in range(8):  # the log grows beyond what was noted of the old one, and is copied again
            await database.write(insert(pages))
            told += pages
        assert await kept(database, told) == (how == "guarded")


async def test_the_log_stays_short_and_its_space_is_given_back(path: Path, runtime: Clock) -> None:
    async with Database.open(path, runtime) as one, Database.open(path, runtime) as another:
        for database in (one, another):
            database.require(TABLE)
        for _ in range(20):
            for database in (one, another):
                await database.write(insert(100))
        assert log_bytes(path) < 2 * LOG_PAGES * 4096
        await one.write(insert(4 * LOG_PAGES))
        assert log_bytes(path) > WAL_BYTES_MAX
        await another.write(insert(1))
        assert log_bytes(path) <= WAL_BYTES_MAX
    assert log_bytes(path) == 0 and faults(path) == [("ok",)]


async def test_a_reader_that_holds_the_log_up_delays_no_write_and_the_log_is_short_again_afterwards(path: Path, runtime: Clock) -> None:
    async with Database.open(path, runtime) as database:
        database.require(TABLE)
        await database.write(insert(1))
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM told").fetchone() == (1,)
            for _ in range(4):
                await database.write(insert(LOG_PAGES))
            assert log_bytes(path) > 4 * LOG_PAGES * 4096
            assert reader.execute("SELECT count(*) FROM told").fetchone() == (1,)
        for _ in range(2):
            await database.write(insert(1))
        assert log_bytes(path) <= WAL_BYTES_MAX and await kept(database, 4 * LOG_PAGES + 3)


@pytest.mark.parametrize(
    ("bad", "cured"), [((3, 51, 2), (3, 51, 3)), ((3, 50, 6), (3, 50, 7)), ((3, 44, 5), (3, 44, 6)), ((3, 45, 0), (3, 53, 2))]
)
def test_the_versions_that_lose_commits_are_told_apart(bad: tuple[int, int, int], cured: tuple[int, int, int]) -> None:
    assert has_reset_bug(bad) and not has_reset_bug(cured)
