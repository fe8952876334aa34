"""The file of embedded mode: what `Database` opens and refuses, how it commits, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from changelog.base.errors import ClockBehindError, ConfigurationError, CorruptRecordError, UnavailableError, UnconfirmedError
from changelog.base.runtime import SystemRuntime
from changelog.change import Change, ChangeId, Unreadable
from changelog.log import GarbageCollection
from changelog.sqlite.connections import READERS
from changelog.sqlite.database import SPARE_PAGES
from changelog.sqlite.log import Database, SqliteChangeLog
from changelog.sqlite.schema import APPLICATION_ID, FORMAT_VERSION
from changelog.sqlite.write_thread import GROUP_MAX, PendingWrite
from tests.given.repository import ROOT
from tiered.embedded.rows import SqliteRows
from tiered.metadata import NS_PER_S, Metadata, TimeToLive
from tiered.services.backends import MARK_AGE_MAX_S, Inline, Row, Tombstone
from tiered.testing.clock import Clock

pytestmark = pytest.mark.anyio

DAY_S = 24 * 3600
NOTES = ["CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT)"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiered.db"


@pytest.fixture
async def database(anyio_backend: str, path: Path, runtime: Clock) -> AsyncIterator[Database]:
    async with Database.open(path, runtime, busy_timeout_s=0.05) as database:
        database.require(NOTES)
        yield database


def note(text: str) -> Callable[[sqlite3.Connection], None]:
    def run(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO notes (text) VALUES (?)", (text,))

    return run


async def notes(database: Database) -> list[str]:
    return await database.read(lambda connection: [text for text, in connection.execute("SELECT text FROM notes ORDER BY id")])


async def refused(path: Path, runtime: SystemRuntime) -> str:
    with pytest.raises(ConfigurationError) as caught:
        async with Database.open(path, runtime):
            pass
    assert str(path) in str(caught.value) or str(path.parent) in str(caught.value)
    return str(caught.value)


# --- opening -----------------------------------------------------------------------------------------


async def test_missing_directories_are_made_and_the_file_is_marked_as_ours(tmp_path: Path, runtime: Clock) -> None:
    path = tmp_path / "a" / "b" / "tiered.db"
    async with Database.open(path, runtime) as database:
        version = await database.read(lambda connection: connection.execute("PRAGMA user_version").fetchone())
        mode = await database.read(lambda connection: connection.execute("PRAGMA journal_mode").fetchone())
        synchronous = await database.write(lambda connection: connection.execute("PRAGMA synchronous").fetchone())
    assert version == (FORMAT_VERSION,) and mode == ("wal",) and synchronous == (2,)


async def test_a_checkpoint_left_the_file_in_the_cache_of_the_disk_on_macos(
    path: Path, runtime: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite copies its log by another connection than it is written by, and each has a setting of its own."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*given: Any, **named: Any) -> sqlite3.Connection:
        opened.append(connect(*given, **named))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    async with Database.open(path, runtime) as database:
        kept = [connection for connection in opened if is_open(connection)]
        assert [connection.execute("PRAGMA fullfsync").fetchone() for connection in kept] == [(1,)] * (READERS + 2)
        await database.write(lambda connection: None)


def is_open(connection: sqlite3.Connection) -> bool:
    try:
        return bool(connection.execute("SELECT 1").fetchone())
    except sqlite3.ProgrammingError:
        return False


@pytest.mark.parametrize("content", [b"note", b"this is a text\n" * 500], ids=["short", "long"])
async def test_a_file_that_is_not_sqlite_is_refused_and_left_as_it_was(path: Path, runtime: Clock, content: bytes) -> None:
    path.write_bytes(content)
    assert "choose another path" in await refused(path, runtime)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        ("CREATE TABLE theirs (x)", "another program"), ("PRAGMA application_id=77", "another program"),
        ("PRAGMA user_version=3", "another program"),
        (f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT_VERSION + 1}", "install a newer tiered"),
    ],
)
async def test_an_sqlite_file_of_another_program_or_of_a_newer_format_is_refused_and_left_as_it_was(
    path: Path, runtime: Clock, statements: str, said: str
) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statements)
    before = path.read_bytes()
    assert said in await refused(path, runtime)
    assert path.read_bytes() == before


async def test_an_empty_file_is_a_new_one(path: Path, runtime: Clock) -> None:
    path.touch()
    async with Database.open(path, runtime) as database:
        database.require(NOTES)
        await database.write(note("here"))


def content(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return "\n".join([*connection.iterdump(), repr(connection.execute("PRAGMA user_version").fetchall())])


@pytest.mark.parametrize("changes", [["PRAGMA user_version=3"], ["PRAGMA user_version=3", "ALTER TABLE notes RENAME TO entries"]])
async def test_a_file_that_newer_software_takes_over_while_it_is_open_is_not_touched_again(
    path: Path, database: Database, changes: Sequence[str]
) -> None:
    await database.write(note("before"))
    assert await notes(database) == ["before"]
    newer = sqlite3.connect(path, isolation_level=None)
    for statement in ("BEGIN IMMEDIATE", *changes, "COMMIT"):
        newer.execute(statement)
    newer.close()
    before = content(path)
    said = "has format 3 and this software knows up to 2: install a newer tiered"
    for call in (lambda: database.write(note("after")), lambda: notes(database), database.try_writing, database.shrink):
        with pytest.raises(ConfigurationError, match=said):
            await call()
    answers: list[Exception] = []

    async def write(text: str) -> None:
        try:
            await database.write(note(text), grows=True)
        except ConfigurationError as error:
            answers.append(error)

    async with anyio.create_task_group() as group:  # they share a transaction, and each is told
        for number in range(10):
            group.start_soon(write, str(number))
    assert len(answers) == 10 and all(said in str(error) for error in answers)
    assert content(path) == before


async def test_a_file_that_newer_software_takes_over_in_the_middle_of_a_read_is_read_to_its_end(path: Path, database: Database) -> None:
    await database.write(note("before"))

    def read(connection: sqlite3.Connection) -> list[str]:
        found = [text for text, in connection.execute("SELECT text FROM notes")]
        newer = sqlite3.connect(path)
        newer.executescript("BEGIN IMMEDIATE; PRAGMA user_version=3; DROP TABLE notes; COMMIT")
        newer.close()
        return found + [text for text, in connection.execute("SELECT text FROM notes")]

    assert await database.read(read) == ["before", "before"]
    with pytest.raises(ConfigurationError, match="install a newer tiered"):
        await notes(database)


async def test_a_file_that_another_process_signs_meanwhile_is_ours(
    path: Path, runtime: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a run of the wheel's test: the file was read in three statements, and signed between two of them."""
    connect, asked = sqlite3.connect, threading.Event()

    class WatchedConnection(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            rows = super().execute(sql, *arguments)
            if "application_id" in sql and not asked.is_set():
                found = rows.fetchall()
                asked.set()
                other = connect(path, isolation_level=None)
                other.execute("BEGIN IMMEDIATE")
                other.execute(f"PRAGMA application_id={APPLICATION_ID}")
                other.execute(f"PRAGMA user_version={FORMAT_VERSION}")
                other.execute("CREATE TABLE of_another_process (id INTEGER)")
                other.execute("COMMIT")
                other.close()
                return super().execute(f"VALUES ({', '.join(map(str, found[0]))})")
            return rows

    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, **named, factory=WatchedConnection))
    async with Database.open(path, runtime):
        assert asked.is_set()


async def test_a_file_in_place_of_the_directory_is_named(tmp_path: Path, runtime: Clock) -> None:
    (tmp_path / "taken").write_text("a file")
    message = await refused(tmp_path / "taken" / "store" / "tiered.db", runtime)
    assert "cannot be made" in message and (tmp_path / "taken").read_text() == "a file"


async def test_a_name_that_no_disk_can_hold_leaves_no_directory_behind(tmp_path: Path, runtime: Clock) -> None:
    """Found by callers of the command, seed 607691211: the parents of such a name were made, and stayed."""
    message = await refused(tmp_path / "new" / "store" / ("n" * 300) / "tiered.db", runtime)
    assert "cannot be made" in message and list(tmp_path.iterdir()) == []


async def test_a_directory_in_place_of_the_file_is_named(path: Path, runtime: Clock) -> None:
    path.mkdir()
    await refused(path, runtime)


async def test_a_user_who_may_write_the_directory_and_not_the_file_was_told_to_be_let_into_the_directory(
    unprivileged: Path, runtime: Clock
) -> None:
    """New stores are private, so this is what a second user of a shared directory sees."""
    path = unprivileged / "tiered.db"
    path.touch(mode=0)
    assert f"the directory {unprivileged}, and the file if it is there" in await refused(path, runtime)


@pytest.mark.parametrize(
    ("mode", "said"), [(0o555, "let this user write"), (0, "run as the user whose store it is, or let this one in")],
    ids=["of no writing", "of another user, which was said not to be made"],
)
async def test_a_directory_that_lets_this_user_not_in_is_named(unprivileged: Path, runtime: Clock, mode: int, said: str) -> None:
    path = unprivileged / "store" / "tiered.db"
    path.parent.mkdir()
    path.parent.chmod(mode)
    assert said in await refused(path, runtime)


async def test_a_store_in_a_directory_that_may_not_be_written_is_read_and_takes_no_payload(
    unprivileged: Path, runtime: Clock
) -> None:
    path = unprivileged / "store" / "tiered.db"
    async with Database.open(path, runtime) as database:
        await put(SqliteRows(database, runtime), "u/objects/k", runtime, None)
    path.with_name("tiered.db-reserve").unlink()
    path.parent.chmod(0o555)
    async with Database.open(path, runtime) as database:
        rows = SqliteRows(database, runtime)
        assert (await rows.read("u/objects/k")).state is not None
        with pytest.raises(UnavailableError, match="let this user write the file and its directory"):
            await put(rows, "u/objects/new", runtime, None)


async def test_a_file_that_may_not_be_written_is_read_and_named_by_a_write(unprivileged: Path, runtime: Clock) -> None:
    path = unprivileged / "store" / "tiered.db"
    async with Database.open(path, runtime) as database:
        database.require(NOTES)
        await database.write(note("read"))
    path.chmod(0o444)
    async with Database.open(path, runtime) as database:
        database.require(NOTES)
        assert await notes(database) == ["read"]
        with pytest.raises(UnavailableError, match="let this user write") as caught:
            await database.write(note("never"))
        assert str(path) in str(caught.value)


OPENER = """
import sys
from pathlib import Path
import anyio
from changelog.change import Change, ChangeId
from changelog.base.runtime import SystemRuntime
from changelog.sqlite.log import Database, SqliteChangeLog

async def main():
    runtime = SystemRuntime()
    sys.stdin.readline()
    async with Database.open(Path(sys.argv[1]), runtime) as database:
        log = SqliteChangeLog(database, runtime)
        for _ in range(int(sys.argv[2])):
            entry = await log.record(Change(ChangeId.new(runtime), "u/objects/k"), "me")
            print(entry.change.id, flush=True)

anyio.run(main)
"""


def opener(path: Path, records: int) -> subprocess.Popen[str]:
    """A process that waits for a line, then opens the file and records so many changes, telling each."""
    return subprocess.Popen(
        [sys.executable, "-c", OPENER, str(path), str(records)], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


@pytest.mark.slow
def test_processes_that_open_a_new_file_at_once_all_succeed(path: Path) -> None:
    openers = [opener(path, 3) for _ in range(6)]
    for process in openers:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = {line for process in openers for line in process.communicate(timeout=60)[0].split()}
    assert [process.returncode for process in openers] == [0] * 6
    connection = sqlite3.connect(path)
    stored = {key[-36:] for key, in connection.execute("SELECT key FROM changes")}
    connection.close()
    assert stored == told and len(told) == 18


async def test_everything_that_a_killed_process_was_told_is_there(path: Path, runtime: Clock) -> None:
    process = opener(path, 1_000_000)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    told = [process.stdout.readline().strip() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    told += process.communicate(timeout=60)[0].split()[:-1]  # the last line may be half of one
    async with Database.open(path, runtime) as database:
        log = SqliteChangeLog(database, runtime)
        found = {entry.key[-36:] for entry in (await log.entries("", 1_000_000)).entries}
        await log.record(Change(ChangeId.new(runtime), "u/objects/k"), "the next")
    assert found >= set(told)


# --- committing --------------------------------------------------------------------------------------


async def test_writes_that_wait_together_share_a_transaction(database: Database) -> None:
    statements: list[str] = []
    await database.write(lambda connection: connection.set_trace_callback(statements.append))
    async with anyio.create_task_group() as tasks:
        for index in range(GROUP_MAX):
            tasks.start_soon(database.write, note(str(index)))
    assert len(await notes(database)) == GROUP_MAX
    assert statements.count("COMMIT") < GROUP_MAX / 4


async def test_a_small_put_alone_is_one_look_and_one_insert(database: Database, runtime: Clock) -> None:
    rows, token, statements = SqliteRows(database, runtime), ChangeId.new(runtime), list[str]()
    await database.write(lambda connection: connection.set_trace_callback(statements.append))
    statements.clear()
    assert await rows.put_inline("u/objects/k", token, Inline(Metadata(), b"small", token))
    verbs = [statement.split()[0] for statement in statements]
    assert verbs == ["BEGIN", "PRAGMA", "SELECT", "INSERT", "PRAGMA", "COMMIT"]


def spoil(connection: sqlite3.Connection) -> None:
    note("spoilt")(connection)
    raise ValueError("mine")


async def test_a_write_alone_that_raises_leaves_nothing_of_it_and_the_next_one_goes_on(database: Database) -> None:
    with pytest.raises(ValueError, match="mine"):  # it was to create the table, too, and that is undone
        await database.write(spoil)
    await database.write(note("after"))
    assert await notes(database) == ["after"]


async def test_a_write_that_raises_is_undone_alone_and_gets_its_own_error(database: Database) -> None:
    async def fail() -> None:
        with pytest.raises(ValueError, match="mine"):
            await database.write(spoil)

    async with anyio.create_task_group() as tasks:
        for index in range(8):
            tasks.start_soon(database.write, note(str(index)))
            tasks.start_soon(fail)
    assert sorted(await notes(database)) == [str(index) for index in range(8)]


class Gate:
    """A write that holds the writer's thread until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, connection: sqlite3.Connection) -> None:
        note("gate")(connection)
        self.entered.set()
        assert self.opened.wait(30)

    async def reached(self) -> None:
        assert await to_thread.run_sync(self.entered.wait, 30)


async def test_a_cancelled_write_that_waits_is_withdrawn(database: Database) -> None:
    gate = Gate()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(database.write, gate)
        await gate.reached()
        async with anyio.create_task_group() as waiting:
            for _ in range(GROUP_MAX + 10):  # more than the queue holds: some wait in it, some in front of it
                waiting.start_soon(database.write, note("withdrawn"))
            await anyio.wait_all_tasks_blocked()
            waiting.cancel_scope.cancel()
        gate.opened.set()
    await database.write(note("after"))
    assert await notes(database) == ["gate", "after"]


async def test_a_cancelled_write_that_has_begun_is_complete_when_its_caller_goes_on(database: Database) -> None:
    gate = Gate()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(database.write, gate)
        await gate.reached()
        tasks.cancel_scope.cancel()
        gate.opened.set()
    assert await notes(database) == ["gate"]


async def test_neighbours_of_a_cancelled_write_are_all_told(database: Database) -> None:
    gate, told = Gate(), []

    async def write(name: str, scope: anyio.CancelScope) -> None:
        with scope:
            await database.write(note(name))
            told.append(name)

    scopes = [anyio.CancelScope() for _ in range(40)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(database.write, gate)
        await gate.reached()
        for index, scope in enumerate(scopes):
            tasks.start_soon(write, f"{index:02}", scope)
        await anyio.wait_all_tasks_blocked()
        for scope in scopes[::3]:
            scope.cancel()
        await anyio.wait_all_tasks_blocked()
        gate.opened.set()
    kept = [f"{index:02}" for index in range(40) if index % 3]
    assert sorted(told) == kept and sorted(await notes(database)) == [*kept, "gate"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_write_that_asyncio_itself_cancels_again_and_again_is_complete_when_its_caller_goes_on(database: Database) -> None:
    gate = Gate()
    task = asyncio.create_task(database.write(gate))
    await gate.reached()
    waiting = asyncio.create_task(database.write(note("withdrawn")))
    await anyio.wait_all_tasks_blocked()
    waiting.cancel()
    for _ in range(5):
        task.cancel()
        await anyio.wait_all_tasks_blocked()
        assert not task.done()
    gate.opened.set()
    assert [type(outcome) for outcome in await asyncio.gather(task, waiting, return_exceptions=True)] == [asyncio.CancelledError] * 2
    await database.write(note("after"))
    assert await notes(database) == ["gate", "after"]


class NoThreads:
    """`anyio.to_thread` of a process that may start no more threads, while `exhausted`."""

    exhausted = False

    async def run_sync(self, function: Callable[[], object], **named: Any) -> object:
        if self.exhausted:
            raise RuntimeError("can't start new thread")
        return await to_thread.run_sync(function, **named)


async def test_where_no_thread_can_be_had_the_reads_of_that_moment_fail_and_no_other_call(
    path: Path, runtime: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = NoThreads()
    monkeypatch.setattr("changelog.base.threads.to_thread", threads)

    async def fail(call: Callable[[], Any]) -> None:
        with pytest.raises(UnavailableError, match="no thread could be started"):
            await call()

    with anyio.fail_after(30):
        async with Database.open(path, runtime) as database:
            database.require(NOTES)
            await database.write(note("before"))
            threads.exhausted = True
            async with anyio.create_task_group() as tasks:
                for _ in range(200):
                    tasks.start_soon(database.write, note("meanwhile"))  # its thread is there already
                    tasks.start_soon(fail, lambda: notes(database))
            threads.exhausted = False
            await database.write(note("after"))
            assert await notes(database) == ["before", *["meanwhile"] * 200, "after"]
            threads.exhausted = True  # closing goes without
        threads.exhausted = True
        with pytest.raises(UnavailableError, match="no thread could be started"):
            async with Database.open(path, runtime):
                pass


async def test_without_a_thread_for_writing_the_file_is_not_opened(path: Path, runtime: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as exhausted:
        exhausted.setattr("changelog.sqlite.write_thread.threading.Thread", NoThread)
        with pytest.raises(UnavailableError, match="no thread could be started"):
            async with Database.open(path, runtime, busy_timeout_s=0.05):
                pass
    async with Database.open(path, runtime, busy_timeout_s=0.05) as database:
        database.require(NOTES)
        await database.write(note("here"))
        assert await notes(database) == ["here"]


@pytest.fixture
def thread_ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keeps the error of the thread that ends in a test from pytest, and from the next test."""
    ended = threading.Event()
    monkeypatch.setattr("threading.excepthook", lambda _: ended.set())
    yield
    assert ended.wait(30)


@pytest.mark.usefixtures("thread_ended")
async def test_a_thread_that_ends_by_an_error_of_ours_leaves_nobody_waiting(
    path: Path, runtime: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*group: object) -> None:
        raise AssertionError("a defect")

    with anyio.fail_after(30):
        async with Database.open(path, runtime) as database:
            database.require(NOTES)
            monkeypatch.setattr(database._thread, "_commit_group", fail)
            with pytest.raises(UnconfirmedError, match="was given up"):
                await database.write(note("unknown"))
            with pytest.raises(UnavailableError, match="is closed"):
                await database.write(note("refused"))


@pytest.mark.usefixtures("thread_ended")
async def test_a_write_that_ends_the_thread_holds_up_no_other_process(path: Path, runtime: Clock, database: Database) -> None:
    def exits(connection: sqlite3.Connection) -> None:
        note("undone")(connection)
        raise SystemExit

    async with Database.open(path, runtime, busy_timeout_s=0.05) as ended:
        ended.require(NOTES)
        with pytest.raises(UnconfirmedError, match="was given up"):
            await ended.write(exits)
        await database.write(note("of another"))
    assert await notes(database) == ["of another"]


async def test_a_child_that_was_forked_while_the_file_was_open_is_refused_and_does_not_wait(
    path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await notes(database) == []  # the first read makes what is missing, which is a write
    found = path.stat()
    with monkeypatch.context() as child, anyio.fail_after(30):  # it has no thread that writes, and none of SQLite's locks
        child.setattr("changelog.sqlite.forks._inherited", {(found.st_dev, found.st_ino)})
        with pytest.raises(ConfigurationError, match="open the store in each process after the fork"):
            await database.write(note("of the child"))
        with pytest.raises(ConfigurationError, match="open the store in each process after the fork"):
            await notes(database)
    assert await notes(database) == []


def test_where_the_event_loop_has_ended_the_thread_ends_and_reports_no_defect(
    path: Path, runtime: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []
    begun, may_end = threading.Event(), threading.Event()

    def run(connection: sqlite3.Connection) -> None:
        begun.set()
        may_end.wait(30)

    async def leave_behind() -> tuple[Database, object]:
        opening = Database.open(path, runtime)
        database = await opening.__aenter__()
        database._thread._waiting.put(PendingWrite(run, grows=False))  # `write` would leave a task behind, too
        return database, opening

    monkeypatch.setattr("threading.excepthook", reported.append)
    threads = set(threading.enumerate())
    loop = asyncio.new_event_loop()
    database, _opening = loop.run_until_complete(leave_behind())
    (writer,) = (thread for thread in set(threading.enumerate()) - threads if thread.name == "tiered database")
    assert begun.wait(30)
    loop.close()
    may_end.set()
    writer.join(30)
    database._connections.close()
    assert not writer.is_alive()
    assert reported == []


async def test_a_runtime_error_of_the_callers_own_comes_out_as_it_is(database: Database) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        raise RuntimeError("mine")

    for call in (database.read, database.write):
        with pytest.raises(RuntimeError, match="mine"):
            await call(fail)


async def test_threads_that_others_hold_stop_no_opening_and_no_closing(path: Path, runtime: Clock) -> None:
    shared, released = to_thread.current_default_thread_limiter(), threading.Event()
    async with anyio.create_task_group() as tasks:
        for _ in range(int(shared.total_tokens)):
            tasks.start_soon(to_thread.run_sync, released.wait, 60)
        await anyio.wait_all_tasks_blocked()
        try:
            with anyio.fail_after(30):
                async with Database.open(path, runtime) as database:
                    database.require(NOTES)
                    await database.write(note("here"))
                    assert await notes(database) == ["here"]
        finally:
            released.set()


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_when_asyncio_itself_ends_every_task_nobody_waits_and_nothing_is_torn(path: Path, runtime: Clock) -> None:
    gate, told, started = Gate(), [], anyio.Event()

    async def use() -> None:
        async with Database.open(path, runtime) as database:
            database.require(NOTES)

            async def write(run: Callable[[sqlite3.Connection], None]) -> None:
                try:
                    await database.write(run)
                except BaseException as error:
                    told.append(type(error))
                    raise

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write, gate)
                await gate.reached()
                for _ in range(200):
                    tasks.start_soon(write, note("never"))
                started.set()

    before = asyncio.all_tasks()
    task = asyncio.create_task(use())
    with anyio.fail_after(30):
        await started.wait()
        await anyio.wait_all_tasks_blocked()
        for each in asyncio.all_tasks() - before:
            each.cancel()
        while len(told) < 200:  # noqa: ASYNC110 - all but the one that has begun end at once, and only then may that one end
            await anyio.sleep(0.001)
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(told) == 201
    async with Database.open(path, runtime) as database:
        database.require(NOTES)
        assert set(await notes(database)) <= {"gate"}


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_reads_cancelled_by_asyncio_itself_give_their_connections_back(database: Database) -> None:
    release = threading.Event()
    reads = [asyncio.create_task(database.read(lambda connection: release.wait(30))) for _ in range(20)]
    await anyio.wait_all_tasks_blocked()
    for read in reads:
        read.cancel()
    await anyio.wait_all_tasks_blocked()
    assert sum(not read.done() for read in reads) == READERS, "those that have a connection wait for their threads"
    release.set()
    await asyncio.gather(*reads, return_exceptions=True)
    assert await notes(database) == []


async def test_shielded_clean_up_still_writes_when_everything_around_it_was_cancelled(path: Path, runtime: Clock) -> None:
    with anyio.CancelScope() as scope:
        async with Database.open(path, runtime) as database:
            database.require(NOTES)
            try:
                scope.cancel()
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await database.write(note("cleaned up"))
    async with Database.open(path, runtime) as database:
        database.require(NOTES)
        assert await notes(database) == ["cleaned up"]


@pytest.mark.parametrize("error", [KeyError("mine"), SystemExit(3)])
async def test_an_error_of_the_body_comes_out_as_it_is(path: Path, runtime: Clock, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        async with Database.open(path, runtime):
            raise error
    assert caught.value is error


async def test_calls_after_closing_are_refused(path: Path, runtime: Clock) -> None:
    async with Database.open(path, runtime) as database:
        pass
    with pytest.raises(UnavailableError, match="is closed"):
        await database.write(note("late"))
    with pytest.raises(UnavailableError, match="is closed"):
        await database.read(lambda connection: connection.execute("SELECT 1"))


async def test_a_read_sees_one_snapshot_and_never_waits_for_a_writer(database: Database) -> None:
    gate = Gate()
    await database.write(note("before"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(database.write, gate)
        await gate.reached()
        assert await notes(database) == ["before"]
        gate.opened.set()


async def test_two_databases_on_one_file_see_each_others_writes_and_lose_none(path: Path, runtime: Clock) -> None:
    def add(connection: sqlite3.Connection) -> None:
        (count,), = connection.execute("SELECT coalesce(max(id), 0) FROM notes")
        connection.execute("INSERT INTO notes VALUES (?, 'counted')", (count + 1,))

    async with Database.open(path, runtime) as one, Database.open(path, runtime) as other:
        one.require(NOTES)
        other.require(NOTES)
        async with anyio.create_task_group() as tasks:
            for _ in range(30):
                tasks.start_soon(one.write, add)
                tasks.start_soon(other.write, add)
        assert await notes(one) == await notes(other) == ["counted"] * 60


# --- failing -----------------------------------------------------------------------------------------


async def test_a_lock_held_by_another_process_is_unavailable_and_nothing_is_written(path: Path, database: Database) -> None:
    await database.write(note("before"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(UnavailableError, match="is locked"):
        await database.write(note("refused"))
    assert await notes(database) == ["before"]
    other.execute("ROLLBACK")
    other.close()
    await database.write(note("after"))
    assert await notes(database) == ["before", "after"]


async def test_a_full_disk_fails_the_write_that_does_not_fit_and_no_other(path: Path, database: Database, runtime: Clock) -> None:
    rows, token = SqliteRows(database, runtime), ChangeId.new(runtime)
    assert await rows.put_inline("u/objects/small", token, Inline(Metadata(), b"small", token))
    (pages,) = await database.read(lambda connection: connection.execute("PRAGMA page_count").fetchone())
    await database.write(lambda connection: connection.execute(f"PRAGMA max_page_count={pages + 4}"))

    async def too_large() -> None:
        with pytest.raises(UnavailableError, match="the disk is full: free some space"):
            await rows.put_inline("u/objects/large", token, Inline(Metadata(), b"x" * 100_000, token))

    gate = Gate()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(database.write, gate)
        await gate.reached()
        tasks.start_soon(database.write, note("fits"))
        tasks.start_soon(too_large)
        tasks.start_soon(rows.delete_inline, "u/objects/small", ChangeId.new(runtime))
        await anyio.wait_all_tasks_blocked()
        gate.opened.set()
    assert await notes(database) == ["gate", "fits"]
    assert await rows.read("u/objects/small", marks=True) == await rows.read("u/objects/large", marks=True) == Row(None)


class FailingCommit:
    """A connection whose COMMIT fails on the way to the disk."""

    def __init__(self, connection: sqlite3.Connection, code: int) -> None:
        self._connection = connection
        self._code = code

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        if statement == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self._code
            raise error
        return self._connection.execute(statement, *parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (sqlite3.SQLITE_IOERR_FSYNC, UnconfirmedError), (sqlite3.SQLITE_FULL, UnavailableError),
        (sqlite3.SQLITE_READONLY, UnavailableError), (sqlite3.SQLITE_NOMEM, UnavailableError), (sqlite3.SQLITE_CORRUPT, CorruptRecordError),
    ],
)
async def test_a_commit_that_fails_says_what_is_known(
    monkeypatch: pytest.MonkeyPatch, database: Database, code: int, error: type[Exception]
) -> None:
    await database.write(note("before"))
    with monkeypatch.context() as failing:
        failing.setattr(database._connections, "writer", FailingCommit(database._connections.writer, code))
        with pytest.raises(error):
            await database.write(note("failed"))
    await database.write(note("after"))
    assert await notes(database) == ["before", "after"]


async def test_a_damaged_file_is_corrupt_not_unavailable(path: Path, runtime: Clock) -> None:
    async with Database.open(path, runtime) as database:
        database.require(NOTES)
        await database.write(lambda connection: connection.executemany("INSERT INTO notes (text) VALUES (?)", [("x" * 900,)] * 100))
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    async with Database.open(path, runtime) as database:
        with pytest.raises(CorruptRecordError, match="is damaged: restore it"):
            await notes(database)


# --- what lies in the tables ---------------------------------------------------------------------------


async def test_an_entry_kept_for_the_feed_is_listed_and_never_claimed(database: Database, runtime: Clock) -> None:
    log = SqliteChangeLog(database, runtime)
    entry = await log.record(Change(ChangeId.new(runtime), "u/objects/k"), "")
    await database.write(lambda connection: connection.execute("""UPDATE changes SET state = '{"state":"done"}'"""))
    assert [(await log.stale(within, runtime.wall_ns() // 1_000_000, 1, 10)).entries for within in log.ranges()] == [()] * 16
    assert (await log.entries("", 10)).entries == (entry,)
    assert (await log.entries("", 10, stuck_only=True)).entries == ()


@pytest.mark.parametrize("column", ["token = 'x'", "metadata = '{'", "metadata = '[]'"])
async def test_a_row_that_breaks_the_format_is_corrupt_and_stays(database: Database, runtime: Clock, column: str) -> None:
    rows = SqliteRows(database, runtime)
    await put(rows, "u/objects/k", runtime, None)
    await database.write(lambda connection: connection.execute(f"UPDATE rows SET {column}"))
    with pytest.raises(CorruptRecordError):
        await rows.read("u/objects/k")
    assert [name.path for name in (await rows.scan("", b"", 10)).rows] == ["u/objects/k"]


async def test_a_tombstone_that_is_no_text_or_has_no_deadline_is_corrupt_with_its_bytes_escaped_and_costs_no_other(
    database: Database, runtime: Clock
) -> None:
    rows = SqliteRows(database, runtime)
    for key in "abcd":
        await bury(rows, key, runtime, None)
    for change in (
        "path = CAST(x'62ff' AS TEXT) WHERE path = 'b'",
        "target = CAST(x'632ffe' AS TEXT) WHERE path = 'c'",
        "deadline_ms = 'soon' WHERE path = 'd'",
    ):
        await database.write(lambda connection, change=change: connection.execute(f"UPDATE rows SET crc = NULL, {change}"))  # type: ignore[misc]
    page = await rows.redirects(b"", None, 10)
    assert [each.path for each in page.redirects] == ["a"]
    faults = [(row.path, word) for row in page.corrupt for word in ("key", "target", "deadline") if f"its {word} " in row.fault]
    assert faults == [("b\\xff", "key"), ("c", "target"), ("d", "deadline")]
    assert await rows.redirects_at([b"d", b"c", b"b\xff", b"a"]) == page
    first = await rows.redirects(b"", None, 2)
    assert first.next_start == b"b\xff\0"
    assert [row.path for row in (await rows.redirects(first.next_start, None, 2)).corrupt] == ["c", "d"]
    assert await rows.boundaries(4) == ["b", "c", "d"]


async def test_a_damaged_deadline_or_key_costs_no_other_its_place_in_a_listing(database: Database, runtime: Clock) -> None:
    rows = SqliteRows(database, runtime)
    for key in "abcdef":
        await put(rows, key, runtime, None)
    for change in (
        "deadline_ms = 'soon' WHERE path = 'b'", "path = CAST(x'63ff' AS TEXT) WHERE path = 'c'", "deadline_ms = x'00' WHERE path = 'e'"
    ):
        await database.write(lambda connection, change=change: connection.execute(f"UPDATE rows SET {change}"))  # type: ignore[misc]
    assert [name.path for name in (await rows.scan("", b"", 10)).rows] == ["a", "b", "d", "e", "f"]
    assert [name.path for name in (await rows.scan("", b"b", 3)).rows] == ["b", "d"]
    assert (await rows.read("f")).state is not None
    with pytest.raises(CorruptRecordError):
        await rows.read("b")
    assert await rows.collect(100) == 0
    verified = await rows.verify(b"", 10)
    assert [row.path for row in verified.corrupt] == ["b", "c\\xff", "e"] and verified.rows == 6 and verified.last is None
    assert await rows.delete_inline("b", ChangeId.new(runtime)), "it can be deleted all the same"


@pytest.mark.parametrize("key", ["CAST(path AS BLOB)", "CAST(path || x'ff' AS TEXT)", "NULL"])
async def test_keys_that_are_no_text_are_verified_once_each_and_named(database: Database, runtime: Clock, key: str) -> None:
    rows = SqliteRows(database, runtime)
    for path in "abcdef":
        await put(rows, path, runtime, None)
    await database.write(lambda connection: connection.execute(f"UPDATE rows SET path = {key} WHERE path <> 'a'"))
    found, seen, after = 0, 0, b""
    for _ in range(10):
        verified = await rows.verify(after, 2)
        found, seen = found + len(verified.corrupt), seen + verified.rows
        if verified.last is None:
            break
        after = verified.last
    assert (found, seen, verified.last) == (5, 6, None)


@pytest.mark.parametrize(
    "column", ["payload = x'00'", "metadata = CAST('{}' AS BLOB)", "token = '018bcfe5-6800-7000-8000-00000000000a'", "crc = crc + 1"]
)
async def test_bytes_of_an_inline_object_that_have_changed_are_noticed(database: Database, runtime: Clock, column: str) -> None:
    rows = SqliteRows(database, runtime)
    for path in ("u/objects/k", "u/objects/other"):
        await put(rows, path, runtime, None)
    await database.write(lambda connection: connection.execute(f"UPDATE rows SET {column} WHERE path = 'u/objects/k'"))
    with pytest.raises(CorruptRecordError, match="row u/objects/k does not match its checksum"):
        await rows.read("u/objects/k")
    assert [row.path for row in (await rows.verify(b"", 10)).corrupt] == ["u/objects/k"]


@pytest.mark.parametrize(
    "column", ["target = 'x/' || target", """policy = '{"TimeToLive":{"secs":1,"nanos":0}}'""", "path = 'u/objects/l'"]
)
async def test_bytes_of_a_tombstone_that_have_changed_are_noticed(database: Database, runtime: Clock, column: str) -> None:
    rows = SqliteRows(database, runtime)
    await bury(rows, "u/objects/k", runtime, None)
    await database.write(lambda connection: connection.execute(f"UPDATE rows SET {column}"))
    [row] = (await rows.verify(b"", 10)).corrupt
    assert "does not match its checksum" in row.fault


async def test_damaged_entries_of_the_changelog_cost_no_other_its_place(
    database: Database, runtime: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    log = SqliteChangeLog(database, runtime)
    entries = [await log.record(Change(ChangeId.new(runtime), "u/objects/k"), "dead") for _ in range(6)]
    for broken, change in zip(entries, (
        "key = CAST(key || CAST(x'ff' AS TEXT) AS TEXT)", "value = CAST('{}' AS TEXT)", "value = CAST(x'7bff' AS TEXT)",
        "heartbeat_ms = 'once'",
        "state = CAST(x'7bff' AS TEXT)",
    ), strict=False):  # fmt: skip
        sql = f"UPDATE changes SET {change} WHERE key = ?"
        await database.write(lambda connection, sql=sql, key=broken.key: connection.execute(sql, (key,)))  # type: ignore[misc]
    listed = {entry.key for entry in (await log.entries("", 100)).entries}
    assert listed == {entry.key for entry in entries[1:]}
    now_ms = runtime.wall_ns() // 1_000_000 + 60_000
    due = [entry for within in log.ranges() for entry in (await log.stale(within, now_ms, 30_000, 100)).entries]
    assert {entry.key for entry in due} == {entry.key for entry in (*entries[1:4], entries[5])}, "the other has a state: it is parked"
    for entry in due:
        if isinstance(entry, Unreadable):
            assert await log.park(entry, "it cannot be read")
        else:
            assert await log.claim(entry, "alive") is not None
    assert [getattr(each, "event", "") for each in caplog.records] == ["unreadable_key"], "one line, however often it is met"


async def test_a_file_of_version_0_1_is_taken_over_as_it_is(path: Path, runtime: Clock) -> None:
    token = ChangeId.new(runtime)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(f"""
            PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version=1; PRAGMA journal_mode=WAL;
            CREATE TABLE rows (path TEXT PRIMARY KEY, target TEXT, token TEXT, deadline_ms INTEGER, policy TEXT, metadata BLOB,
                payload BLOB, CHECK ((target IS NULL) = (payload IS NOT NULL)));
            INSERT INTO rows VALUES ('u/objects/old', NULL, '{token}', NULL, NULL, x'7b7d', x'6f6c64');
        """)
    connection.close()
    for _ in range(2):
        async with Database.open(path, runtime) as database:
            rows = SqliteRows(database, runtime)
            assert await rows.read("u/objects/old") == Row(Inline(Metadata(size=3), b"old", token))
            await put(rows, "u/objects/new", runtime, None)
            verified = await rows.verify(b"", 10)
            assert (verified.rows, verified.without_checksum, verified.corrupt) == (2, 1, [])
            await database.shrink()
            assert await database.read(lambda connection: connection.execute("PRAGMA user_version").fetchone()) == (FORMAT_VERSION,)


async def test_opening_and_reading_what_is_there_writes_nothing(path: Path, runtime: Clock) -> None:
    async with Database.open(path, runtime) as database:
        SqliteChangeLog(database, runtime)
        await put(SqliteRows(database, runtime), "u/objects/k", runtime, None)
    before = path.read_bytes(), path.stat().st_mtime_ns
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # who wrote anything would wait
    async with Database.open(path, runtime, busy_timeout_s=0.05) as database:
        rows, log = SqliteRows(database, runtime), SqliteChangeLog(database, runtime)
        assert (await rows.read("u/objects/k")).state is not None
        assert (await log.entries("", 10)).entries == ()
        database.require(NOTES)
        with pytest.raises(UnavailableError, match="is locked"):
            await notes(database)  # what is missing must be written
    other.execute("ROLLBACK")
    other.close()
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_is_deleted_while_it_is_open_takes_no_more_writes(
    path: Path, database: Database, runtime: Clock, replaced: bool
) -> None:
    await database.write(note("before"))
    path.rename(path.with_name("moved"))
    if replaced:
        path.touch()
    with pytest.raises(UnavailableError, match="deleted or replaced while it was open"):
        await database.write(note("lost"))
    path.unlink(missing_ok=True)
    path.with_name("moved").rename(path)
    await database.write(note("after"))
    assert await notes(database) == ["before", "after"]


@pytest.mark.parametrize("parts", [("a",), ("a", "b", "c")])
async def test_a_lost_file_is_not_made_anew_beside_what_belongs_to_it(path: Path, runtime: Clock, parts: tuple[str, ...]) -> None:
    beside = path.with_name("blobs")
    file = beside.joinpath(*parts)
    file.parent.mkdir(parents=True)
    async with Database.open(path, runtime, beside=beside):  # empty directories are nothing
        pass
    file.touch()
    async with Database.open(path, runtime, beside=beside):
        pass
    for each in path.parent.glob("tiered.db*"):
        each.unlink()
    for _ in range(2):  # missing, and then as the first attempt left it
        with pytest.raises(ConfigurationError, match="lost or empty") as caught:
            async with Database.open(path, runtime, beside=beside):
                pass
        assert str(file) in str(caught.value) and str(path) in str(caught.value)
    file.unlink()
    async with Database.open(path, runtime, beside=beside):
        pass


# --- collecting --------------------------------------------------------------------------------------


async def test_collect_removes_expired_rows_of_both_kinds_and_no_others(database: Database, runtime: Clock) -> None:
    rows = SqliteRows(database, runtime)
    assert isinstance(rows, GarbageCollection)
    soon_ns = runtime.wall_ns() // 1_000_000 * 1_000_000 + 60 * 1_000_000_000
    await put(rows, "u/objects/kept", runtime, None)
    await put(rows, "u/objects/touched", runtime, soon_ns)
    await put(rows, "u/objects/expired", runtime, soon_ns)
    await bury(rows, "u/objects/gone", runtime, soon_ns)
    assert await rows.collect(100) == 0
    touched = (await rows.read("u/objects/touched")).state
    assert touched is not None and await rows.touch("u/objects/touched", touched, soon_ns + 3600 * 1_000_000_000)
    runtime.ahead_ns = 120 * NS_PER_S
    assert await rows.collect(1) == 1
    assert await rows.collect(100) == 1
    assert await rows.collect(100) == 0
    assert [name.path for name in (await rows.scan("", b"", 10)).rows] == ["u/objects/kept", "u/objects/touched"]


async def test_collect_keeps_marks_for_two_days(database: Database, runtime: Clock) -> None:
    rows, path = SqliteRows(database, runtime), "u/objects/k"
    won, refused = await bury(rows, path, runtime, None), ChangeId.new(runtime)
    assert not await rows.settle(path, refused)
    runtime.ahead_ns = (MARK_AGE_MAX_S - 60) * NS_PER_S
    assert await rows.collect(100) == 0
    assert (await rows.read(path, marks=True)).won == {won}
    runtime.ahead_ns = (MARK_AGE_MAX_S + 60) * NS_PER_S
    assert await rows.collect(100) == 2
    row = await rows.read(path, marks=True)
    assert row.target == f"{path}/{won}" and row.won == row.refused == frozenset()


@pytest.mark.slow
async def test_the_file_shrinks_when_what_it_held_is_gone(path: Path, runtime: Clock) -> None:
    async with Database.open(path, runtime) as database:
        rows = SqliteRows(database, runtime)
        for number in range(40):
            token = ChangeId.new(runtime)
            assert await rows.put_inline(f"{number:02}", token, Inline(Metadata(), bytes(500_000), token))
        for number in range(39):
            assert await rows.delete_inline(f"{number:02}", ChangeId.new(runtime))
        assert await rows.collect(1000) == 0
        assert (await rows.read("39")).state is not None
    assert path.stat().st_size < 3 << 20


async def test_thousands_of_free_pages_are_given_back_in_a_few_transactions(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE large (content)")
        connection.executemany("INSERT INTO large VALUES (?)", [(bytes(500_000),)] * 40)
        connection.execute("DELETE FROM large")

    await database.write(fill)
    real, writes = Database.write, 0

    async def counted(self: Database, run: Any, **named: Any) -> Any:
        nonlocal writes
        writes += 1
        return await real(self, run, **named)

    monkeypatch.setattr(Database, "write", counted)
    await database.shrink()
    [(free,)] = await database.read(lambda connection: connection.execute("PRAGMA freelist_count").fetchall())
    assert free <= SPARE_PAGES
    assert writes == 3, "20 MB are 4888 pages of 4 KiB, and a transaction gives 2048 back"


async def test_one_tokens_marks_are_found_among_many_without_reading_them(database: Database, runtime: Clock) -> None:
    rows, path = SqliteRows(database, runtime), "u/objects/k"
    won = await bury(rows, path, runtime, None)
    marks = [(path, ChangeId.new(runtime), runtime.wall_ns() // 1_000_000) for _ in range(10_000)]
    await database.write(lambda connection: connection.executemany("INSERT INTO marks VALUES (?, ?, 'refused', ?)", marks))
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    connections = [database._connections.readers.get() for _ in range(READERS)]
    for connection in connections:
        connection.set_progress_handler(count, 100)
        database._connections.readers.put(connection)
    assert (await rows.read(path, marks=won)).won == {won}
    assert steps < 5, "hundreds of instructions of SQLite's, not a hundred thousand"
    assert len((await rows.read(path, marks=True)).refused) == 10_000
    assert steps > 100


async def test_collect_goes_on_with_marks_where_rows_cannot_be_collected(database: Database, runtime: Clock) -> None:
    rows = SqliteRows(database, runtime)
    await bury(rows, "u/objects/k", runtime, None)
    await database.write(lambda connection: connection.execute(
        "CREATE TRIGGER damaged BEFORE DELETE ON rows BEGIN SELECT raise(ABORT, 'as if it were damaged'); END"
    ))  # fmt: skip
    await put(rows, "u/objects/expired", runtime, 1_000_000)
    runtime.ahead_ns = (MARK_AGE_MAX_S + 60) * NS_PER_S
    with pytest.raises(CorruptRecordError):
        await rows.collect(100)
    assert (await rows.read("u/objects/k", marks=True)).won == frozenset()


async def test_the_clocks_are_named_where_one_is_behind(database: Database, runtime: Clock) -> None:
    rows = SqliteRows(database, runtime)
    await bury(rows, "u/objects/k", runtime, None)
    runtime.ahead_ns = (MARK_AGE_MAX_S + 60) * NS_PER_S
    assert await rows.collect(100) == 1
    runtime.ahead_ns = NS_PER_S - SystemRuntime().wall_ns()
    with pytest.raises(ClockBehindError, match=r"clock says 1970-01-01 .* UTC, but the store has forgotten .* up to 20.*: set the clock"):
        await put(rows, "u/objects/other", runtime, None)
    await database.write(lambda connection: connection.execute("DELETE FROM horizon"))  # as docs/production.md says
    await put(rows, "u/objects/other", runtime, None)


async def test_collect_removes_presence_rows_after_a_day(database: Database, runtime: Clock) -> None:
    log = SqliteChangeLog(database, runtime)
    assert isinstance(log, GarbageCollection)
    entry = await log.record(Change(ChangeId.new(runtime), "u/objects/k"), "me")
    await log.announce("dead")
    runtime.ahead_ns = (DAY_S + 60) * NS_PER_S
    await log.announce("alive")
    assert await log.collect(100) == 1
    assert await log.collect(100) == 0
    assert await database.read(lambda connection: connection.execute("SELECT instance FROM daemons").fetchall()) == [("alive",)]
    assert await log.read(entry.change.id) == entry


async def test_earlier_software_that_asked_for_the_time_was_nobody(database: Database, runtime: Clock) -> None:
    log = SqliteChangeLog(database, runtime)
    await log.announce("~clock")  # what it wrote for that
    assert list(await log.presences()) == []


async def test_a_store_of_an_earlier_version_has_no_notes_until_the_first_is_written(tmp_path: Path, runtime: Clock) -> None:
    def tables(connection: sqlite3.Connection) -> set[str]:
        return {name for name, in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}

    async with Database.open(tmp_path / "other.db", runtime) as database:
        log = SqliteChangeLog(database, runtime)
        entry = await log.record(Change(ChangeId.new(runtime), "u/objects/k"), "me")
        assert await log.read_note("a") is None and "notes" not in await database.read(tables), "reading makes no table"
        assert await log.swap_note("a", b"1", b"2") is False
        assert await log.swap_note("a", None, b"1") and await log.read_note("a") == b"1"
        assert await log.read(entry.change.id) == entry


async def put(rows: SqliteRows, path: str, runtime: Clock, deadline_ns: int | None) -> None:
    token = ChangeId.new(runtime)
    metadata = Metadata(TimeToLive(ns=1) if deadline_ns else None, time_expires_ns=deadline_ns, size=1)
    assert await rows.put_inline(path, token, Inline(metadata, b"x", token))


async def bury(rows: SqliteRows, path: str, runtime: Clock, deadline_ns: int | None) -> ChangeId:
    token = ChangeId.new(runtime)
    assert await rows.swap(path, token, None, Tombstone(f"{path}/{token}", None, deadline_ns, token), runtime.boot_time() + 60)
    return token
