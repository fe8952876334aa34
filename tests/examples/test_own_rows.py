"""examples/own_rows.py: whatever fails, each row names an object that is there, and a sweep finds the rest."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest
from anyio import create_task_group

from emulators.postgres.server import PostgresServer
from examples import own_rows
from examples.own_rows import PHOTOS, remove, save, sweep
from tiered import InvalidRequestError, ObjectId, OutcomeUnknownError, UnavailableError
from tiered.testing import BlockingMemoryStorage, blocking_memory_storage

LATER = timedelta(days=10)
GUIDE = Path(__file__).parents[2] / "docs/guides/own-rows.md"


@pytest.fixture
def storage() -> Iterator[BlockingMemoryStorage]:
    with blocking_memory_storage() as storage:
        yield storage


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(own_rows.TABLES)
        yield database


def rows(database: sqlite3.Connection) -> dict[str, str]:
    return dict(database.execute("SELECT id, object FROM photo").fetchall())


def objects(storage: BlockingMemoryStorage) -> set[str]:
    return {str(entry.object_id) for entry in storage.list(PHOTOS)}


def shown(storage: BlockingMemoryStorage, database: sqlite3.Connection, photo: str) -> bytes:
    stored = storage.get(ObjectId.parse(rows(database)[photo]))
    assert stored is not None, "the row names an object that is not there"
    return stored.read()


@contextmanager
def refusing(database: sqlite3.Connection, table: str, change: str) -> Iterator[None]:
    """The database fails at this change."""
    database.executescript(f"CREATE TRIGGER refuse BEFORE {change} ON {table} BEGIN SELECT RAISE(ROLLBACK, 'away'); END")
    with pytest.raises(sqlite3.IntegrityError, match="away"):
        yield
    database.execute("DROP TRIGGER refuse")


def test_what_is_saved_is_replaced_and_removed_and_leaves_nothing(storage: BlockingMemoryStorage, database: sqlite3.Connection) -> None:
    save(storage, database, "cat", b"old")
    save(storage, database, "cat", b"new")
    save(storage, database, "dog", b"dog")
    assert shown(storage, database, "cat") == b"new" and objects(storage) == {*rows(database).values()}
    remove(storage, database, "cat")
    remove(storage, database, "cat")
    assert [*rows(database)] == ["dog"] and objects(storage) == {*rows(database).values()}


def test_a_put_whose_row_failed_is_swept_when_it_is_old_and_a_retry_goes_through(
    storage: BlockingMemoryStorage, database: sqlite3.Connection
) -> None:
    save(storage, database, "cat", b"old")
    with refusing(database, "photo", "INSERT"):
        save(storage, database, "cat", b"new")
    assert shown(storage, database, "cat") == b"old" and len(objects(storage)) == 2
    save(storage, database, "cat", b"new")
    assert sweep(storage, database) == [] and len(objects(storage)) == 2, "it may be waiting for its row"
    storage.clock.advance(LATER)
    assert sweep(storage, database) == []
    assert shown(storage, database, "cat") == b"new" and objects(storage) == {*rows(database).values()}


@pytest.mark.parametrize("took_effect", [True, False])
def test_a_put_of_unknown_outcome_needs_no_answer(
    storage: BlockingMemoryStorage, database: sqlite3.Connection, took_effect: bool
) -> None:
    storage.faults.fail("put", OutcomeUnknownError, took_effect=took_effect)
    with pytest.raises(OutcomeUnknownError):
        save(storage, database, "cat", b"cat")
    assert rows(database) == {}
    save(storage, database, "cat", b"cat")
    storage.clock.advance(LATER)
    assert sweep(storage, database) == [] and objects(storage) == {*rows(database).values()}


def test_a_deletion_that_failed_is_made_by_the_next_call(storage: BlockingMemoryStorage, database: sqlite3.Connection) -> None:
    save(storage, database, "cat", b"cat")
    storage.faults.fail("delete", UnavailableError)
    with pytest.raises(UnavailableError):
        remove(storage, database, "cat")
    assert rows(database) == {} and len(objects(storage)) == 1
    save(storage, database, "dog", b"dog")
    assert objects(storage) == {*rows(database).values()}


def test_a_row_that_failed_to_go_keeps_its_object(storage: BlockingMemoryStorage, database: sqlite3.Connection) -> None:
    save(storage, database, "cat", b"cat")
    with refusing(database, "photo", "DELETE"):
        remove(storage, database, "cat")
    assert sweep(storage, database) == [] and shown(storage, database, "cat") == b"cat"


def test_what_is_lost_is_told_and_nothing_else(storage: BlockingMemoryStorage, database: sqlite3.Connection) -> None:
    for photo in ("cat", "dog"):
        save(storage, database, photo, b"photo")
    storage.delete(ObjectId.parse(rows(database)["cat"]))
    assert sweep(storage, database) == [rows(database)["cat"]]


def test_a_table_that_is_empty_deletes_nothing(storage: BlockingMemoryStorage, database: sqlite3.Connection) -> None:
    save(storage, database, "cat", b"cat")
    storage.clock.advance(LATER)
    with closing(sqlite3.connect(":memory:")) as wrong:
        wrong.executescript(own_rows.TABLES)
        with pytest.raises(InvalidRequestError, match="no id came"):
            sweep(storage, wrong)
    assert shown(storage, database, "cat") == b"cat"


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_with_the_lock_of_the_guide_no_two_writers_in_postgresql_forget_an_object(postgres: PostgresServer) -> None:
    lock = re.search(r"`(SELECT pg_advisory_xact_lock.*?)`", GUIDE.read_text())
    assert lock is not None, "the guide says how rows of PostgreSQL are locked"

    stored_at_once = [f"photos/objects/{number}" for number in range(10, 30)]

    async def replace(photo: str, stored: str) -> None:
        async with pool.acquire() as database, database.transaction():
            await database.execute(lock[1], photo)
            await database.execute("INSERT INTO gone SELECT object FROM photo WHERE id = $1", photo)
            await database.execute("SELECT pg_sleep(0.01)")
            await database.execute("DELETE FROM photo WHERE id = $1", photo)
            await database.execute("INSERT INTO photo VALUES ($1, $2)", photo, stored)

    async with asyncpg.create_pool(postgres.dsn(), server_settings={"search_path": "own_rows"}) as pool:
        await pool.execute(f"CREATE SCHEMA own_rows; {own_rows.TABLES}")
        async with create_task_group() as tasks:
            for stored in stored_at_once:
                tasks.start_soon(replace, "cat", stored)
        names = await pool.fetch("SELECT object FROM photo UNION ALL SELECT object FROM gone")
    assert sorted(name for (name,) in names) == stored_at_once


def test_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiered.yaml").write_text("directory: data\n")
    Path("cat.jpg").write_bytes(b"cat" * 100_000)
    own_rows.main("save", "cat", "cat.jpg")
    own_rows.main("sweep")
    own_rows.main("remove", "cat")
    own_rows.main("sweep")
    assert capsys.readouterr().out == ""
    with pytest.raises(SystemExit, match=r"python examples/own_rows\.py sweep"):
        own_rows.main("")
