"""Disks that are full, read-only, or two where one is needed.

They are small file systems in memory, mounted for the test.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from changelog.base.errors import ConfigurationError, CorruptRecordError, TieredError, UnavailableError
from recovery.daemon import collect
from tests.given.small_disk import MIB, Mount, disk, fill, mount
from tiered.embedded.blobs import FileBlobs
from tiered.metadata import NS_PER_S, Metadata, TimeToLive
from tiered.open import open_backends
from tiered.provision.embedded_store import inspect_directory
from tiered.provision.findings import NoticeKind
from tiered.settings import Settings
from tiered.testing.clock import Clock
from tiered.testing.contracts.whole_blobs import begin, read, store

pytestmark = pytest.mark.anyio

__all__ = ["disk", "mount"]  # fixtures

HOUR_NS = 3600 * NS_PER_S
LONG = "k" * 300


# --- full and read-only -----------------------------------------------------------------------------


async def test_on_a_full_disk_blobs_are_read_and_deleted_and_a_put_leaves_nothing(
    disk: Path, anyio_backend: str, runtime: Clock
) -> None:
    blobs = await FileBlobs.open_directory(disk, runtime)
    await store(blobs, "a", bytes(MIB))
    filler = fill(disk)
    with pytest.raises(UnavailableError, match=r"cannot (begin|write|finalise) .*'b'.*: the disk is full"):
        await store(blobs, "b", bytes(MIB))
    assert os.listdir(disk / "uploads") == []
    assert await read(blobs, "a") == bytes(MIB)
    again = await FileBlobs.open_directory(disk, runtime)
    assert [blob.name for blob in (await again.list("", None, 10)).blobs] == ["a"]
    await again.delete("a")
    await store(blobs, "b", bytes(MIB // 2))
    filler.unlink()
    await store(blobs, "c", bytes(MIB))


async def test_a_full_disk_is_opened_for_reading_and_gets_its_directories_when_there_is_room(
    disk: Path, mount: Mount, anyio_backend: str, runtime: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    (disk / "store").mkdir()
    mount(disk / "store", "-t", "tmpfs", "-o", "size=64k,nr_inodes=2", "tiered-test")
    (filler := disk / "store" / "filler").touch()
    blobs = await FileBlobs.open_directory(disk / "store", runtime)
    assert [record.message.split()[0] for record in caplog.records] == ["blobs_cannot_be_written"]
    assert (await blobs.list("", None, 10)).blobs == () and await blobs.collect(10) == 0
    with pytest.raises(ConfigurationError, match="blobs is gone"):  # so nothing is known of a blob in it
        await blobs.open("a")
    with pytest.raises(UnavailableError, match="the disk is full"):
        await store(blobs, "a")
    with pytest.raises(UnavailableError, match="the disk is full"):
        await FileBlobs.open_directory(disk / "store", runtime, verify=True)
    filler.unlink()
    mount(disk / "store", "-o", "remount,nr_inodes=20")
    await store(blobs, "a")
    assert await read(blobs, "a") == b"payload"


async def test_a_read_only_disk_is_read_and_every_write_says_what_it_is(
    disk: Path, mount: Mount, anyio_backend: str, runtime: Clock
) -> None:
    mortal = Metadata(TimeToLive(ns=HOUR_NS)).stamped(runtime.wall_ns())
    await store(await FileBlobs.open_directory(disk, runtime), "a", bytes(MIB), mortal)
    mount(disk, "-o", "remount,ro")
    blobs = await FileBlobs.open_directory(disk, runtime)
    assert await read(blobs, "a") == bytes(MIB)
    assert [blob.name for blob in (await blobs.list("", None, 10)).blobs] == ["a"]
    for attempt in (begin(blobs, "b"), blobs.delete("a"), blobs.touch("a", runtime.wall_ns() + 2 * HOUR_NS)):
        with pytest.raises(UnavailableError, match="the disk is read-only: mount it for writing"):
            await attempt
    with pytest.raises(UnavailableError, match="the disk is read-only"):
        await FileBlobs.open_directory(disk, runtime, verify=True)
    runtime.ahead_ns = 3 * HOUR_NS
    with pytest.raises(TieredError, match="Read-only"):
        await blobs.collect(10)
    mount(disk, "-o", "remount,rw")
    assert await blobs.collect(10) == 1


async def test_a_collection_on_a_full_disk_begins_with_what_frees_space(
    disk: Path, anyio_backend: str, runtime: Clock
) -> None:
    async with open_backends(Settings(directory=disk), runtime) as backends:
        mortal = Metadata(TimeToLive(ns=NS_PER_S)).stamped(runtime.wall_ns())
        for name in "abc":
            await store(backends.tiers.long_term, name, bytes(MIB // 2), mortal)
        await backends.log.announce("somebody")
        fill(disk)
        runtime.ahead_ns = 48 * HOUR_NS
        collected = await collect(backends)
        assert os.listdir(disk / "blobs") == []
        assert (collected.removed, collected.failures) == (4, []), "the log's part had the room that the files gave"


async def test_a_part_of_the_collection_that_fails_is_told_and_the_others_go_on(
    tmp_path: Path, anyio_backend: str, runtime: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backends(Settings(directory=tmp_path), runtime) as backends:
        await store(backends.tiers.long_term, "a", metadata=Metadata(TimeToLive(ns=NS_PER_S)).stamped(runtime.wall_ns()))
        await backends.tiers.high_volume.read("u/objects/a")
        await backends.log.announce("somebody")
        with closing(sqlite3.connect(tmp_path / "tiered.db", isolation_level=None)) as connection:
            connection.execute("DROP TABLE marks")
        runtime.ahead_ns = 48 * HOUR_NS
        collected = await collect(backends)
    assert (collected.removed, [type(failure) for failure in collected.failures]) == (2, [CorruptRecordError])
    assert [record.message.split()[0] for record in caplog.records] == ["collection_failed:"]


# --- two file systems -------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["blobs", "uploads"])
@pytest.mark.parametrize("how", ["mounted", "linked", "bound"])
async def test_parts_on_two_file_systems_are_refused_by_name_when_a_store_is_opened(
    disk: Path, tmp_path: Path, mount: Mount, anyio_backend: str, runtime: Clock, part: str, how: str
) -> None:
    root = tmp_path / "store"
    root.mkdir()
    if how == "linked":
        (root / part).symlink_to(disk)
    else:
        (root / part).mkdir()
        source = ("-t", "tmpfs", "tiered-test") if how == "mounted" else ("--bind", str(root / part))
        mount(root / part, *source)
    with pytest.raises(ConfigurationError, match=rf"{root}/uploads and {root}/blobs are on two file systems.*put both on one"):
        await FileBlobs.open_directory(root, runtime)
    assert [path for path in root.rglob("*") if path.is_file()] == [], "nothing of the trial is left"


@pytest.mark.parametrize("how", ["mounted", "bound"])
@pytest.mark.parametrize("where", ["blobs", "deeper"])
async def test_a_mount_that_comes_later_is_told_by_the_put(
    tmp_path: Path, mount: Mount, anyio_backend: str, runtime: Clock, how: str, where: str
) -> None:
    root = tmp_path / "store"
    blobs = await FileBlobs.open_directory(root, runtime)
    await store(blobs, LONG)
    path = root / "blobs" / ("k" * 199 + "+") if where == "deeper" else root / "blobs"
    source = ("-t", "tmpfs", "tiered-test") if how == "mounted" else ("--bind", str(path))
    mount(path, *source)
    with pytest.raises(ConfigurationError, match=rf"{root}/uploads and .*/blobs.* are on two file systems"):
        # Where the disks can be told apart, nothing of the payload is written first.
        await (blobs.open_upload(LONG + "2", Metadata(), None) if how == "mounted" else store(blobs, LONG + "2"))
    assert os.listdir(root / "uploads") == []
    if how == "mounted":
        with pytest.raises(ConfigurationError, match="are on two file systems"):
            await FileBlobs.open_directory(root, runtime, verify=True)


async def test_a_directory_below_that_is_a_link_is_refused_by_the_check_and_by_a_put(
    tmp_path: Path, anyio_backend: str, runtime: Clock
) -> None:
    blobs = await FileBlobs.open_directory(tmp_path / "store", runtime)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store" / "blobs" / ("k" * 199 + "+")).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="is a symbolic link: put the directory itself there"):
        await FileBlobs.open_directory(tmp_path / "store", runtime, verify=True)
    with pytest.raises(TieredError, match="did not put there"):
        await store(blobs, LONG)
    assert os.listdir(tmp_path / "elsewhere") == os.listdir(tmp_path / "store" / "uploads") == []


async def test_check_tells_of_two_file_systems(tmp_path: Path, mount: Mount, anyio_backend: str, runtime: Clock) -> None:
    async with open_backends(Settings(directory=tmp_path / "store"), runtime) as backends:
        await store(backends.tiers.long_term, LONG)
    mount(tmp_path / "store" / "blobs" / ("k" * 199 + "+"), "-t", "tmpfs", "tiered-test")
    found = await inspect_directory(tmp_path / "store", "tiered.db", "sqlite", runtime)
    [problem] = [finding.sentence for finding in found if finding.kind is NoticeKind.PROBLEM]
    assert "are on two file systems" in problem and "put both on one" in problem


# --- directories that go away -----------------------------------------------------------------------


async def test_uploads_that_were_removed_are_made_again(tmp_path: Path, anyio_backend: str, runtime: Clock) -> None:
    blobs = await FileBlobs.open_directory(tmp_path / "store", runtime)
    (tmp_path / "store" / "uploads").rmdir()
    assert await blobs.collect(10) == 0
    await store(blobs, "a")
    assert await read(blobs, "a") == b"payload"


@pytest.mark.parametrize("moment", ["before", "under way"])
async def test_a_store_that_was_removed_is_not_begun_anew(
    tmp_path: Path, anyio_backend: str, runtime: Clock, moment: str
) -> None:
    root = tmp_path / "store"
    blobs = await FileBlobs.open_directory(root, runtime)
    upload = await begin(blobs, LONG) if moment == "under way" else None
    root.rename(tmp_path / "gone")
    with pytest.raises(UnavailableError, match=r"its directory is gone|was cancelled"):
        await (begin(blobs, LONG) if upload is None else upload.finalise())
    assert not root.exists()
    assert (await blobs.list("", None, 10)).blobs == () and await blobs.collect(10) == 0


async def test_blobs_removed_under_an_upload_are_not_made_anew_but_told(
    tmp_path: Path, anyio_backend: str, runtime: Clock
) -> None:
    blobs = await FileBlobs.open_directory(tmp_path / "store", runtime)
    upload = await begin(blobs, LONG)
    (tmp_path / "store" / "blobs").rmdir()
    with pytest.raises(UnavailableError, match="its directory is gone: put the store back"):
        await upload.finalise()
    assert os.listdir(tmp_path / "store") == ["uploads"] and os.listdir(tmp_path / "store" / "uploads") == []


async def test_a_directory_may_be_a_link_but_not_to_nowhere(tmp_path: Path, anyio_backend: str, runtime: Clock) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    await store(await FileBlobs.open_directory(tmp_path / "link", runtime), "a")
    assert await read(await FileBlobs.open_directory(tmp_path / "real", runtime), "a") == b"payload"
    with pytest.raises(ConfigurationError, match=r"broken cannot hold blobs \(Not a directory"):
        await FileBlobs.open_directory(tmp_path / "broken", runtime)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("part", ["blobs", "uploads"])
async def test_rights_that_are_taken_away_are_told_and_may_be_given_back(
    unprivileged: Path, anyio_backend: str, runtime: Clock, part: str
) -> None:
    blobs = await FileBlobs.open_directory(unprivileged / "store", runtime)
    await store(blobs, "a")
    (unprivileged / "store" / part).chmod(0)
    with pytest.raises(ConfigurationError, match="give this process the right to read and write there"):
        await store(blobs, "b")
    if part == "blobs":
        with pytest.raises(ConfigurationError, match="give this process the right"):
            await blobs.open("a")
    else:
        assert await read(blobs, "a") == b"payload"
    (unprivileged / "store" / part).chmod(0o700)
    await store(blobs, "b")
    assert os.listdir(unprivileged / "store" / "uploads") == []
