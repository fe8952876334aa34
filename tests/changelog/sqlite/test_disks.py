"""The file of embedded mode on disks that are full or read-only.

The disks are real, with a few megabytes each. Where this user may not mount them, the tests are skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from changelog.base.errors import ConfigurationError, TieredError, UnavailableError
from changelog.change import Change, ChangeId
from changelog.key_values import ValuePage
from changelog.sqlite.database import Database
from changelog.sqlite.disk import RESERVE_BYTES
from changelog.sqlite.log import SMALL_VALUE_BYTES, SqliteChangeLog
from tests.given.repository import ROOT
from tests.given.rows_with_log import RowsWithLog
from tests.given.small_disk import MIB, Mount, disk, fill, mount
from tiered.services.backends import Tombstone
from tiered.testing.clock import Clock

pytestmark = pytest.mark.anyio
Remount = Callable[[str], None]

__all__ = ["disk", "mount"]  # fixtures


@pytest.fixture
def file(disk: Path) -> Path:
    return disk / "store" / "tiered.db"


@pytest.fixture
def remount(disk: Path, mount: Mount) -> Remount:
    return lambda how: mount(disk, "-o", f"remount,{how}")


async def test_on_a_disk_that_others_filled_everything_is_read_and_can_be_deleted_and_a_put_says_why_not(
    disk: Path, file: Path, runtime: Clock
) -> None:
    async with Database.open(file, runtime) as database:
        rows, large = RowsWithLog(database, runtime), ChangeId.new(runtime)
        await rows.put("a", 1000)
        await rows.put("b", 100_000)
        assert await rows.swap("large", large, None, Tombstone(f"large/{large}", token=large), runtime.boot_time() + 60)
    fill(disk)
    for _ in range(2):
        async with Database.open(file, runtime) as database:
            rows = RowsWithLog(database, runtime)
            assert (await rows.paths())[-1] == "large" and (await rows.read("b")).state is not None
            with pytest.raises(UnavailableError, match="the disk is full: free some space"):
                await rows.put("new", 1000)
            with pytest.raises(UnavailableError, match="the disk is full"):
                await database.try_writing()
        fill(disk)
    async with Database.open(file, runtime) as database:
        rows = RowsWithLog(database, runtime)
        await rows.delete("a")
        await rows.remove_blob("large")
        assert await rows.paths() == ["b"]
        with pytest.raises(UnavailableError, match="the disk is full"):
            await rows.put("new", 1000)
        (disk / "filler").unlink()
        await rows.put("new", 1000)
        assert file.with_name("tiered.db-reserve").stat().st_size == RESERVE_BYTES


@pytest.mark.slow
async def test_a_store_that_filled_its_disk_itself_is_emptied_and_filled_again(disk: Path, file: Path, runtime: Clock) -> None:
    async def puts(rows: RowsWithLog, size: int) -> list[str]:
        for number in range(1000):
            try:
                await rows.put(f"{number:03}", size)
            except UnavailableError:
                break
        with pytest.raises(UnavailableError, match="the disk is full"):
            await rows.put("one more", size)
        return await rows.paths()

    for size in (100_000, 3000):
        async with Database.open(file, runtime) as database:
            stored = await puts(RowsWithLog(database, runtime), size)
            assert len(stored) * size > MIB
        async with Database.open(file, runtime) as database:
            rows = RowsWithLog(database, runtime)
            assert await rows.paths() == stored
            fill(disk)
            for path in stored:
                await rows.delete(path)
            (disk / "filler").unlink()
            await rows.collect(1000)


async def test_puts_at_once_that_do_not_all_fit_are_told_apart(file: Path, runtime: Clock) -> None:
    told: list[str] = []

    async def put(rows: RowsWithLog, path: str) -> None:
        with suppress(UnavailableError):
            await rows.put(path, 500_000)
            told.append(path)

    async with Database.open(file, runtime) as database:
        rows = RowsWithLog(database, runtime)
        await rows.put("first", 10)
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(put, rows, f"{number:02}")
        assert 0 < len(told) < 20
        assert await rows.paths() == sorted([*told, "first"])
        for path in told:
            await rows.delete(path)


@pytest.mark.slow
async def test_a_store_whose_process_died_on_a_full_disk_is_read_and_emptied(disk: Path, file: Path, runtime: Clock) -> None:
    """Its write-ahead log stays, and nothing can be moved out of it, because others have taken the space.

    The reserve is all there is.
    """
    writer = f"""
import anyio, os
from pathlib import Path
from changelog.base.runtime import SystemRuntime
from changelog.base.errors import UnavailableError
from changelog.sqlite.database import Database
from tests.given.rows_with_log import RowsWithLog

async def main():
    async with Database.open(Path({str(file)!r}), SystemRuntime()) as database:
        rows = RowsWithLog(database, SystemRuntime())
        try:
            for number in range(1000):
                await rows.put(f"{{number:03}}", 20_000)
        except UnavailableError:
            print(number, flush=True)
            os.kill(os.getpid(), 9)

anyio.run(main)
"""
    done = await anyio.run_process([sys.executable, "-c", writer], cwd=ROOT, check=False)
    stored = int(done.stdout)
    fill(disk)
    async with Database.open(file, runtime) as database:
        rows = RowsWithLog(database, runtime)
        assert len(await rows.paths()) == stored > 20
        for path in (await rows.paths())[:20]:
            await rows.delete(path)
        (disk / "filler").unlink()
        for path in await rows.paths():
            await rows.delete(path)
        assert await rows.paths() == []


async def test_a_new_store_on_a_full_disk_says_so(disk: Path, file: Path, runtime: Clock) -> None:
    file.parent.mkdir()
    fill(disk)
    with pytest.raises(TieredError, match="the disk is full"):
        async with Database.open(file, runtime):
            pass


@pytest.mark.parametrize("copied", [False, True])
async def test_on_a_read_only_disk_everything_is_read_and_a_write_says_why_not(
    file: Path, remount: Remount, runtime: Clock, copied: bool
) -> None:
    async with Database.open(file, runtime) as database:
        await RowsWithLog(database, runtime).put("a", 1000)
    if not copied:
        assert file.with_name("tiered.db-wal").stat().st_size == 0, "the database alone holds all of it"
    for name in ("tiered.db-wal", "tiered.db-shm") if copied else ():
        file.with_name(name).unlink()
    remount("ro")
    async with Database.open(file, runtime) as database:
        rows = RowsWithLog(database, runtime)
        assert await rows.paths() == ["a"] and (await rows.read("a")).state is not None
        for write in (rows.put("b", 10), rows.delete("a"), database.try_writing()):
            with pytest.raises(UnavailableError, match="read-only"):
                await write
    remount("rw")
    async with Database.open(file, runtime) as database:
        await RowsWithLog(database, runtime).put("b", 10)


async def test_a_read_only_copy_of_a_store_that_was_not_closed_is_refused_with_the_way_out(
    file: Path, remount: Remount, runtime: Clock
) -> None:
    """What was committed last lies in the log, which SQLite cannot read without a file of locks."""
    async with Database.open(file, runtime) as database:
        await RowsWithLog(database, runtime).put("a", 1000)
        log = file.with_name("tiered.db-wal").read_bytes()
    file.with_name("tiered.db-wal").write_bytes(log)
    file.with_name("tiered.db-shm").unlink()
    remount("ro")
    with pytest.raises(ConfigurationError, match="was not closed") as caught:
        async with Database.open(file, runtime):
            pass
    assert "once where it can be written" in str(caught.value)


async def test_an_empty_read_only_disk_is_no_store(file: Path, remount: Remount, runtime: Clock) -> None:
    file.parent.mkdir()
    remount("ro")
    with pytest.raises(ConfigurationError):
        async with Database.open(file, runtime):
            pass


async def test_statistics_take_no_space_that_deletions_need(disk: Path, file: Path, runtime: Clock) -> None:
    async with Database.open(file, runtime) as database:
        log, rows = SqliteChangeLog(database, runtime), RowsWithLog(database, runtime)
        await rows.put("a", 100_000)
        assert await log.swap_note("a", None, b"1")
        fill(disk)
        with pytest.raises(UnavailableError, match="the disk is full"):
            await log.swap_note("a", b"1", b"2")
        assert await log.read_note("a") == b"1"
        await rows.delete("a")


async def test_values_take_no_space_that_deletions_need_and_are_removed_on_a_full_disk(disk: Path, file: Path, runtime: Clock) -> None:
    async with Database.open(file, runtime) as database:
        log = SqliteChangeLog(database, runtime)
        entry = await log.record(Change(ChangeId.new(runtime), "a"), "me")
        await log.write_values({"a": b"1", "b": b"1", "c": b"1"}, 1)
        fill(disk)
        with pytest.raises(UnavailableError, match="the disk is full"):
            await log.write_values({"a": b"2", "d": b"1"}, 2)
        with pytest.raises(UnavailableError, match="the disk is full"):
            await log.write_values({"a": bytes(SMALL_VALUE_BYTES + 1)}, 2)
        await log.write_values({"d": bytes(SMALL_VALUE_BYTES)}, 2)
        await log.write_values({"a": None, "d": None}, 2)
        await log.erase_values(["b"])
        assert await log.scan_values("", "z", 10) == ValuePage({"c": b"1"}, None)
        assert await log.keep(entry), "a change that is over must not stay open because of a full disk"


async def test_a_first_small_value_is_written_on_a_full_disk(disk: Path, file: Path, runtime: Clock) -> None:
    """Without it, a process whose change feed is off could not clean up what it deletes."""
    async with Database.open(file, runtime) as database:
        log = SqliteChangeLog(database, runtime)
        await RowsWithLog(database, runtime).put("a", 100_000)
        entry = await log.record(Change(ChangeId.new(runtime), "a"), "me")
        fill(disk)
        await log.write_values({"a": bytes(SMALL_VALUE_BYTES)}, 1)
        assert await log.read_values(["a"])
        await log.forget(entry)


@pytest.mark.parametrize("written", [True, False], ids=["with notes and values", "of an earlier version"])
async def test_on_a_read_only_disk_notes_and_values_are_read_and_writing_one_says_why_not(
    file: Path, remount: Remount, runtime: Clock, written: bool
) -> None:
    async with Database.open(file, runtime) as database:
        log = SqliteChangeLog(database, runtime)
        told = {"recovery": await log.announce("recovery")}
        if written:
            assert await log.swap_note("a", None, b"1")
            await log.write_values({"a": b"1"}, 1)
    remount("ro")
    async with Database.open(file, runtime) as database:
        log = SqliteChangeLog(database, runtime)
        note, expected = (b"1", {"a": b"1"}) if written else (None, {})
        assert await log.read_note("a") == note and dict(await log.presences()) == told
        assert dict(await log.read_values(["a"])) == expected and await log.scan_values("", "z", 10) == ValuePage(expected, None)
        for write in (log.swap_note("a", note, b"2"), log.write_values({"a": b"2"}, 2)):
            with pytest.raises(UnavailableError, match="is read-only"):
                await write
