"""Backups of an embedded store that is in use. A restored store has every blob that a row names, and no other."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest

from changelog.base.runtime import SystemRuntime
from changelog.change import Entry
from changelog.lease import EntryState, entry_state
from recovery.backup import BLOBS, back_up, copy_database, mirror, writers_wait
from tests.given.busy_writer import payload, settings
from tests.given.command_line import Command
from tests.given.processes import StartedProcess
from tests.given.recovered import recover_all
from tests.given.repository import ROOT
from tiered import ConfigurationError, CorruptRecordError, InvalidRequestError, ObjectId, UploadEndedError, open_storage
from tiered.embedded.file import path_of
from tiered.open import open_backends
from tiered.settings import DATABASE_NAME

BACKUPS = 2
OBJECT = ObjectId.create("notes", "photo")


def rows(store: Path) -> list[str]:
    """The blobs that the rows name."""
    with closing(sqlite3.connect(store / DATABASE_NAME)) as database:
        return [target for target, in database.execute("SELECT target FROM rows WHERE target IS NOT NULL")]


def logged(store: Path) -> set[str]:
    """The blobs that the changelog names."""
    with closing(sqlite3.connect(store / DATABASE_NAME)) as database:
        changes = [json.loads(value) for value, in database.execute("SELECT value FROM changes")]
    return {blob for change in changes for blob in (change.get("new"), change.get("old")) if blob}


def blobs(store: Path) -> set[Path]:
    return {path.relative_to(store / BLOBS) for path in (store / BLOBS).rglob("*") if path.is_file()}


def paths(names: Iterator[str] | list[str] | set[str]) -> set[Path]:
    return {Path(path_of(name)) for name in names}


class BusyWriters:
    """Two processes that write to a store. They stand still while nothing is backed up, so that they cost no CPU."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: list[subprocess.Popen[str]] = []
        self.start()
        self.start()

    def start(self) -> None:
        name = f"writer{len(os.listdir(self._directory))}"
        command: list[str | Path] = [sys.executable, "-m", "tests.given.busy_writer", self._directory / "store", name]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._running.append(process)
        assert process.stdout is not None and process.stdout.readline() == "stored\n"

    def replace_one(self) -> None:
        """Kills one of them, and starts another."""
        self.end_one()
        self.start()

    def end_one(self) -> None:
        with self._running.pop(0) as process:
            process.kill()

    def end(self) -> None:
        while self._running:
            self.end_one()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        for process in self._running:
            process.send_signal(signal.SIGSTOP)
        yield
        for process in self._running:
            process.send_signal(signal.SIGCONT)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one object, whose payload is a blob."""

    async def fill() -> None:
        async with open_storage(settings(tmp_path / "store")) as storage:
            await storage.put(OBJECT, b"first" * 1000)

    anyio.run(fill)
    return tmp_path / "store"


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[BusyWriters]:
    writers = BusyWriters(tmp_path)
    yield writers
    writers.end()


@pytest.mark.slow
@pytest.mark.usefixtures("without_workers")
def test_what_is_restored_has_every_blob_that_a_row_names_and_no_orphan(
    writers: BusyWriters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mirror_slowly(source: Path, target: Path) -> None:
        """As on a large store: without the lock, rows and blobs would be of different moments."""
        mirror(source, target)
        time.sleep(0.1)

    monkeypatch.setattr("recovery.backup.mirror", mirror_slowly)
    entries = 0
    for number in range(BACKUPS):
        if number == 1:
            writers.replace_one()
        back_up(tmp_path / "store", into := tmp_path / "backup", SystemRuntime())
        with writers.stopped():
            shutil.copytree(into, restored := tmp_path / f"restored{number}")
            shutil.rmtree(into)
            named = rows(restored)
            assert named and paths(named) <= blobs(restored)
            assert blobs(restored) <= paths(named) | paths(logged(restored))
            entries += len(logged(restored))
            anyio.run(read_all, restored)
            anyio.run(recover, restored)
            assert blobs(restored) == paths(rows(restored)) == paths(named)
            anyio.run(read_all, restored)
    writers.end()
    assert entries > 0, "no backup was made in the middle of a change, so the test proves little"
    verify(restored)


async def read_all(store: Path) -> None:
    async with open_storage(settings(store)) as storage:
        found = [entry.object_id async for entry in storage.list()]
        assert found
        for object_id in found:
            stored = await storage.get(object_id)
            assert stored is not None
            content = await stored.read()
            assert content == payload(object_id, int(content.split()[1]))


async def recover(store: Path) -> None:
    loop = await recover_all(settings(store), within_s=30)
    assert loop.total.failed == loop.total.parked == 0


def verify(store: Path) -> None:
    """The commands that docs/production.md says."""
    tiered = Command(store.parent)
    tiered.store = store
    tiered("check")
    tiered("audit", "run", "--engine", "local", "--parallel", "1", "--to", str(store.with_suffix(".audit")))


@pytest.mark.anyio
async def test_a_backup_holds_what_was_there_and_nothing_of_later(store: Path, tmp_path: Path) -> None:
    async with open_storage(settings(store)) as storage:
        back_up(store, tmp_path / "backup", SystemRuntime())
        await storage.put(OBJECT, b"second" * 1000)
    async with open_storage(settings(tmp_path / "backup")) as restored:
        stored = await restored.get(OBJECT)
        assert stored is not None and await stored.read() == b"first" * 1000


@pytest.mark.anyio
async def test_an_upload_that_was_open_has_ended_where_the_backup_is_restored(tmp_path: Path) -> None:
    async with open_storage(settings(tmp_path / "store")) as storage:
        upload = await storage.begin_multipart(OBJECT)
        await upload.upload_part(1, b"part" * 1000)
        back_up(tmp_path / "store", tmp_path / "backup", SystemRuntime())
        await upload.complete()
    async with open_backends(settings(tmp_path / "backup"), SystemRuntime()) as backends:
        entry = await backends.log.read(upload.id)
    assert isinstance(entry, Entry) and entry_state(entry, SystemRuntime().wall_ns() // 1_000_000, 30_000, 5) is EntryState.CLAIMABLE
    async with open_storage(settings(tmp_path / "backup")) as restored:
        copy = restored.multipart(OBJECT, upload.id)
        with pytest.raises(UploadEndedError):
            await copy.upload_part(2, b"more")
        with pytest.raises(UploadEndedError) as caught:
            await copy.complete()
        assert caught.value.completed is False and await restored.head(OBJECT) is None


@pytest.mark.parametrize("mode", [0o700, 0o770])
def test_directories_of_a_backup_had_the_modes_of_the_umask(store: Path, tmp_path: Path, mode: int) -> None:
    """Those inside have the modes of the store, so that a store which a group shares is restored as one."""
    for path in store.rglob("*"):
        path.chmod(mode if path.is_dir() else mode & 0o666)
    before = os.umask(0)
    try:
        back_up(store, tmp_path / "backup", SystemRuntime())
    finally:
        os.umask(before)
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o700
    found = list((tmp_path / "backup").rglob("*"))
    assert len(found) > 2 and {path.stat().st_mode & 0o777 for path in found} == {mode, mode & 0o666}


async def rows_first(store: Path, into: Path, between: Callable[[], Awaitable[None]]) -> None:
    with closing(sqlite3.connect(store / DATABASE_NAME)) as source:
        copy_database(source, into / DATABASE_NAME)
    await between()
    mirror(store / BLOBS, into / BLOBS)


async def blobs_first(store: Path, into: Path, between: Callable[[], Awaitable[None]]) -> None:
    mirror(store / BLOBS, into / BLOBS)
    await between()
    with closing(sqlite3.connect(store / DATABASE_NAME)) as source:
        copy_database(source, into / DATABASE_NAME)


@pytest.mark.parametrize("naive", [rows_first, blobs_first])
@pytest.mark.anyio
async def test_without_the_lock_both_orders_lose_a_blob(naive: Callable[..., Awaitable[None]], store: Path, tmp_path: Path) -> None:
    (into := tmp_path / "backup").mkdir()
    async with open_storage(settings(store)) as storage:

        async def replaced() -> None:
            await storage.put(OBJECT, b"second" * 1000)
            await forgotten(store)

        await naive(store, into, replaced)
    assert not paths(rows(into)) <= blobs(into)


async def forgotten(store: Path) -> None:
    """Waits until no change is under way: its old blob is deleted."""
    with anyio.fail_after(10):
        while logged(store):  # noqa: ASYNC110 a file tells nobody
            await anyio.sleep(0.01)


@pytest.mark.anyio
async def test_while_the_lock_is_held_no_row_changes_and_no_named_blob_goes(store: Path) -> None:
    async with open_storage(settings(store)) as storage:
        [name] = rows(store)
        async with anyio.create_task_group() as tasks:
            with writers_wait(store):
                tasks.start_soon(storage.put, OBJECT, b"second" * 1000)
                await anyio.sleep(0.5)
                assert rows(store) == [name] and paths([name]) <= blobs(store)
        stored = await storage.get(OBJECT)
        assert stored is not None and await stored.read() == b"second" * 1000


@pytest.mark.anyio
async def test_an_interrupted_backup_leaves_nothing_and_a_killed_one_is_begun_anew(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(settings(store)) as storage:
        monkeypatch.setattr("recovery.backup.copy_database", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            back_up(store, tmp_path / "backup", SystemRuntime())
        monkeypatch.undo()
        assert os.listdir(tmp_path) == ["store"]
        (killed := tmp_path / "backup.partial" / "unfinished" / BLOBS).mkdir(parents=True)
        (killed / "blob").touch()
        await storage.put(OBJECT, b"second" * 1000)  # the lock is gone
        await forgotten(store)
        back_up(store, tmp_path / "backup", SystemRuntime())
    assert sorted(os.listdir(tmp_path)) == ["backup", "store"]
    assert paths(rows(tmp_path / "backup")) == blobs(tmp_path / "backup")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_second_backup_to_the_same_name_leaves_the_first_one_alone(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command: list[str | Path] = [sys.executable, "-m", "recovery.cli.main", "-d", store, "backup", tmp_path / "backup"]
    second = []

    def copy_beside_a_second_run(source: sqlite3.Connection, target: Path) -> None:
        second.append(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False))
        copy_database(source, target)

    monkeypatch.setattr("recovery.backup.copy_database", copy_beside_a_second_run)
    back_up(store, tmp_path / "backup", SystemRuntime())
    assert second[0].returncode == 3 and "another backup" in second[0].stderr
    assert paths(rows(tmp_path / "backup")) == blobs(tmp_path / "backup") != set()
    assert sorted(os.listdir(tmp_path)) == ["backup", "store"]


@pytest.mark.anyio
async def test_a_backup_whose_name_ended_in_partial_was_removed_by_the_next_one(store: Path, tmp_path: Path) -> None:
    async with open_storage(settings(store)) as storage:
        back_up(store, first := tmp_path / "backup.partial", SystemRuntime())
        kept = blobs(first)
        await storage.delete(OBJECT)
    with pytest.raises(InvalidRequestError, match=r"backup\.partial holds blobs, which is no part of a backup: move it away"):
        back_up(store, tmp_path / "backup", SystemRuntime())
    assert kept and blobs(first) == kept and paths(rows(first)) == kept
    with pytest.raises(InvalidRequestError, match=r"holds blobs"):  # nor is it removed as the store that is backed up
        back_up(first, tmp_path / "backup", SystemRuntime())
    assert blobs(first) == kept and not (tmp_path / "backup").exists()


def test_a_store_or_a_whole_backup_in_the_place_of_an_unfinished_one_was_removed(store: Path, tmp_path: Path) -> None:
    (tmp_path / "backup.partial").mkdir()
    there = tmp_path / "backup.partial" / "unfinished"
    back_up(store, there, SystemRuntime())
    kept = blobs(there)
    for each in (store, there):
        with pytest.raises(InvalidRequestError, match="unfinished is no unfinished backup: move it away"):
            back_up(each, tmp_path / "backup", SystemRuntime())
    assert kept and blobs(there) == kept == paths(rows(there)) and not (tmp_path / "backup").exists()


def test_a_backup_of_a_store_whose_blobs_are_gone_was_called_complete(store: Path, tmp_path: Path) -> None:
    tiered = Command(tmp_path)
    (tiered.store / BLOBS).rename(tmp_path / "away")  # as if its disk were not mounted
    tiered("backup", "backup", code=3)
    assert "is gone, and rows of the store name blobs in it: put it back, or mount it" in tiered.errors
    assert not (tmp_path / "backup").exists() and not (tmp_path / "backup.partial").exists()


@pytest.mark.parametrize("links", ["a blob", "the directory of blobs"])
@pytest.mark.anyio
async def test_a_backup_was_called_complete_although_a_blob_was_behind_a_link(store: Path, tmp_path: Path, links: str) -> None:
    """The store reads through the link. Copied to another machine, the backup had lost that blob."""
    [blob] = blobs(store)
    moved = store / BLOBS / (blob if links == "a blob" else "")
    moved.rename(tmp_path / "moved")
    moved.symlink_to(tmp_path / "moved")
    if links == "a blob":
        async with open_storage(settings(store)) as storage:
            stored = await storage.get(OBJECT)
            assert stored is not None and await stored.read() == b"first" * 1000
        expected = r"is a link, so its bytes would not be in the backup: put the file itself there"
    else:
        back_up(store, tmp_path / "through", SystemRuntime())
        assert blobs(tmp_path / "through") == {blob} and not (tmp_path / "through" / BLOBS).is_symlink()
        (tmp_path / "moved").rename(tmp_path / "away")  # as if its disk were not mounted
        expected = r"blobs is a link that leads to no directory: mount what it leads to"
    with pytest.raises(InvalidRequestError, match=expected):
        back_up(store, tmp_path / "backup", SystemRuntime())
    assert not (tmp_path / "backup").exists()


def test_a_store_that_newer_software_took_over_during_a_backup_was_copied(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command opens the store before, which refuses a newer one. The copy may lack what that keeps elsewhere."""
    newer_software: list[int] = []

    def mirror_and_take_over(source: Path, target: Path) -> None:
        mirror(source, target)
        if newer_software:
            return
        newer_software.append(1)
        with closing(sqlite3.connect(store / DATABASE_NAME)) as newer:
            newer.execute(f"PRAGMA user_version = {2**20}")

    monkeypatch.setattr("recovery.backup.mirror", mirror_and_take_over)
    with pytest.raises(ConfigurationError, match="has format 1048576"):
        back_up(store, tmp_path / "backup", SystemRuntime())
    assert not (tmp_path / "backup").exists()


def test_a_backup_to_another_file_system_is_refused_and_left_a_directory_there(store: Path, tmp_path: Path, other_disk: Path) -> None:
    with pytest.raises(InvalidRequestError, match="on another file system"):
        back_up(store, other_disk / "backup", SystemRuntime())
    assert not os.listdir(other_disk)


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    device = tmp_path.stat().st_dev
    disk = next((each for each in (Path("/dev/shm"), Path("/var/tmp"), ROOT) if each.is_dir() and each.stat().st_dev != device), None)
    if disk is None:
        pytest.skip("there is no second file system")
    with TemporaryDirectory(dir=disk) as made:
        yield Path(made)


def test_a_database_that_is_none_is_an_error_and_no_backup(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / DATABASE_NAME).write_bytes(b"no database" * 1000)
    with pytest.raises(CorruptRecordError, match=r"backup failed: .*tiered\.db is not an SQLite file"):
        back_up(tmp_path / "store", tmp_path / "backup", SystemRuntime())
    assert os.listdir(tmp_path) == ["store"]


@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
@pytest.mark.anyio
async def test_a_backup_of_a_damaged_database_was_called_complete(tmp_path: Path, byte: bytes) -> None:
    """A disk lost the page of a row. The backup copies pages and not rows, so it noticed nothing."""
    store = tmp_path / "store"
    async with open_storage(settings(store)) as storage:
        for number in range(200):
            await storage.put(ObjectId.create("notes", f"{number:03}"), f"{number:03}".encode() * 30)
    with closing(sqlite3.connect(store / DATABASE_NAME)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page_bytes,), = database.execute("PRAGMA page_size")
    whole = (store / DATABASE_NAME).read_bytes()
    begins = whole.index(b"030" * 30) // page_bytes * page_bytes
    (store / DATABASE_NAME).write_bytes(whole[:begins] + byte * page_bytes + whole[begins + page_bytes :])
    with pytest.raises(CorruptRecordError, match=r"no backup was made: .*tiered\.db is damaged: restore it from an earlier one \(.+\)"):
        back_up(store, tmp_path / "backup", SystemRuntime())
    assert os.listdir(tmp_path) == ["store"]


def test_the_command_backs_up_and_refuses_what_it_cannot_copy(tmp_path: Path) -> None:
    tiered = Command(tmp_path)
    tiered("put", str(OBJECT), "-", stdin=b"payload" * 1000)
    done = json.loads(tiered("--json", "backup", "backup"))
    assert done["backup"] == "backup" and done["writers_waited_s"] >= 0
    tiered("backup", "backup", code=3)
    assert tiered.errors == "tiered: backup exists already: give the name of a new directory\n"
    assert tiered("-d", str(tmp_path / "backup"), "get", str(OBJECT), store=False) == "payload" * 1000
    with closing(sqlite3.connect(tmp_path / "backup" / DATABASE_NAME)) as newer:
        newer.execute(f"PRAGMA user_version = {2**20}")
    tiered("-d", str(tmp_path / "backup"), "backup", "copy", store=False, code=3)
    assert "has format 1048576" in tiered.errors and not (tmp_path / "copy").exists() and not (tmp_path / "copy.partial").exists()


def test_a_backup_that_was_ended_by_ctrl_c_left_a_part_of_it(store: Path, tmp_path: Path) -> None:
    program = f"""
import sys, time
import recovery.backup
from recovery.cli.main import main

def copy_slowly(source, target):
    print("copying", flush=True)
    time.sleep(20)

recovery.backup.copy_database = copy_slowly
sys.argv = ["tiered", "-d", {str(tmp_path / "store")!r}, "backup", {str(tmp_path / "backup")!r}]
main()
"""
    with StartedProcess([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stdout.readline() == "copying\n"
        running.send_signal(signal.SIGINT)
        assert running.wait() == 130
    assert os.listdir(tmp_path) == ["store"]


def _letter(here: Path) -> None:
    (here / "backup.partial").mkdir()
    (here / "backup.partial" / "letter").touch()


NO_DIRECTORY = r"backup\.partial is no directory, .*: move it away, or give another name"
IN_THE_WAY: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a directory": (lambda here: (here / "backup").mkdir(), "backup", "exists already"),
    "a link to nowhere": (lambda here: (here / "backup").symlink_to("nowhere"), "backup", "exists already"),
    "the store": (lambda here: None, "store/backup", "is in the store"),
    "its blobs": (lambda here: None, "store/blobs/backup", "is in the store"),
    "its blobs by a detour": (lambda here: None, "store/blobs/../blobs/backup", "is in the store"),
    "no directory for it": (lambda here: None, "nowhere/backup", "there is no directory .*nowhere: make it first"),
    "a file, as the unfinished one": (lambda here: (here / "backup.partial").touch(), "backup", NO_DIRECTORY),
    "a link, as the unfinished one": (lambda here: (here / "backup.partial").symlink_to("store"), "backup", NO_DIRECTORY),
    "files of somebody else": (_letter, "backup", "holds letter, which is no part of a backup"),
}


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_what_is_in_the_way_of_a_backup_is_told_and_stays(store: Path, tmp_path: Path, what: str) -> None:
    put, into, told = IN_THE_WAY[what]
    put(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidRequestError, match=told):
        back_up(store, tmp_path / into, SystemRuntime())
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"there is no store in .*: it has no tiered\.db"):
        back_up(tmp_path, tmp_path / "backup", SystemRuntime())
