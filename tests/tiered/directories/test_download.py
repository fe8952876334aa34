"""Objects go to a directory: whole files only, nothing outside of it, and nothing of others is lost."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.given.directories import (
    HUGE,
    LARGE,
    PREFIX,
    SMALL,
    TREE,
    Told,
    object_at,
    open_below,
    put_tree,
    read_objects,
    read_tree,
    write_tree,
)
from tiered import (
    ConfigurationError,
    InvalidRequestError,
    ListEntry,
    ObjectId,
    Settings,
    Tier,
    TieredStorage,
    UnavailableError,
    open_storage,
)
from tiered.directories import Kind, download_directory, upload_directory
from tiered.directories.tree import LocalTree, PartialFile
from tiered.metadata import SHA256_KEY
from tiered.testing import memory_storage

pytestmark = pytest.mark.anyio


def inodes(directory: Path) -> dict[str, int]:
    return {str(path): path.stat().st_ino for path in directory.rglob("*")}


# --- what is copied ----------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["memory", "embedded"], indirect=True)
async def test_all_objects_become_files_and_a_second_run_does_nothing(storage: TieredStorage, tmp_path: Path) -> None:
    await put_tree(storage, TREE)
    target = tmp_path / "new/directory"
    report = await download_directory(storage, PREFIX, target)
    assert (report.copied, report.failed, report.bytes_copied) == (len(TREE), 0, sum(map(len, TREE.values())))
    assert read_tree(target) == TREE
    before = inodes(target)
    report = await download_directory(storage, PREFIX, target)
    assert (report.copied, report.unchanged) == (0, len(TREE)) and inodes(target) == before


@pytest.mark.parametrize("storage", ["memory", "embedded"], indirect=True)
async def test_what_was_uploaded_comes_back_and_both_ways_agree_that_nothing_differs(
    storage: TieredStorage, directory: Path, tmp_path: Path
) -> None:
    write_tree(directory, TREE)
    await upload_directory(storage, directory, PREFIX)
    await download_directory(storage, PREFIX, tmp_path / "back")
    assert read_tree(tmp_path / "back") == TREE
    assert (await upload_directory(storage, tmp_path / "back", PREFIX)).unchanged == len(TREE)
    assert (await download_directory(storage, PREFIX, directory)).unchanged == len(TREE)


@pytest.mark.parametrize("told", [False, True])
async def test_a_file_that_differs_is_replaced_as_a_whole_and_keeps_its_mode(storage: TieredStorage, directory: Path, told: bool) -> None:
    write_tree(directory, {"a": SMALL, "b": HUGE, "c": LARGE})
    if told:
        await upload_directory(storage, directory, PREFIX)
    else:
        await put_tree(storage, read_tree(directory))
    write_tree(directory, {"a": SMALL[::-1], "b": HUGE + b"more"})
    (directory / "a").chmod(0o640)
    with (directory / "b").open("rb") as reader:
        report = await download_directory(storage, PREFIX, directory)
        assert reader.read() == HUGE + b"more"  # whoever reads it has the old one
    assert (report.copied, report.unchanged) == (2, 1)
    assert read_tree(directory) == {"a": SMALL, "b": HUGE, "c": LARGE} and (directory / "a").stat().st_mode & 0o777 == 0o640


async def test_sizes_alone_are_compared_if_that_is_asked_for(storage: TieredStorage, directory: Path) -> None:
    write_tree(directory, {"a": SMALL, "b": SMALL})
    await put_tree(storage, {"a": SMALL[::-1], "b": b"other"[:4]})
    report = await download_directory(storage, PREFIX, directory, size_only=True)
    assert (report.copied, report.unchanged) == (1, 1) and read_tree(directory) == {"a": SMALL, "b": b"othe"}


# --- names -------------------------------------------------------------------------------------------


def listed(storage: TieredStorage, monkeypatch: pytest.MonkeyPatch, *keys: str) -> None:
    """Lists objects with keys as older software may have written them."""
    entries = [ListEntry(ObjectId("photos", (("org", "17"),), f"2026/{key}"), Tier.HIGH_VOLUME, size=5) for key in sorted(keys)]
    there = storage.list

    async def with_older(*arguments: Any, **options: Any) -> AsyncGenerator[ListEntry, None]:
        kept = [entry async for entry in there(*arguments, **options)]
        for entry in sorted([*kept, *entries], key=lambda each: each.object_id.path.encode()):
            yield entry

    monkeypatch.setattr(storage, "list", with_older)


async def test_no_key_leads_out_of_the_directory(storage: TieredStorage, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await put_tree(storage, {"good": SMALL, "/etc/passwd": b"5long", "a//b": b"5long", "b/": b"full!", "c/": b"", "nul\\": b"fine."})
    await put_tree(storage, {"x/.tiered-sync-1-1.partial": SMALL})
    listed(storage, monkeypatch, "..", "../out", "a/../../out", "./here", "d/.", "nul\0byte", "new\nline")
    before = set(directory.parent.iterdir())
    told = Told()
    report = await download_directory(storage, PREFIX, directory, on_result=told)
    bad = {"..", "../out", "a/../../out", "./here", "d/.", "nul\0byte", "/etc/passwd", "a//b", "b/", "x/.tiered-sync-1-1.partial"}
    assert set(told.paths(Kind.FAILED)) == bad and told.paths(Kind.SKIPPED) == ["c/", "new\nline"]  # listed, and not there
    assert "it has a part '..'" in told.why("../out") and told.why("c/") == "it stands for a directory"
    assert set(read_tree(directory)) == {"good", "nul\\"} and set(directory.parent.iterdir()) == before and report.failed == len(bad)


async def test_links_in_the_directory_are_neither_followed_nor_replaced(storage: TieredStorage, directory: Path, tmp_path: Path) -> None:
    write_tree(tmp_path / "outside", {"a": b"theirs", "file": b"theirs"})
    (directory / "tree").symlink_to(tmp_path / "outside")
    (directory / "link").symlink_to(tmp_path / "outside/file")
    (directory / "dangling").symlink_to(tmp_path / "outside/new")
    await put_tree(storage, {"tree/a": SMALL, "tree/b/c": SMALL, "link": SMALL, "dangling": SMALL, "fine": SMALL})
    told = Told()
    report = await download_directory(storage, PREFIX, directory, delete=True, on_result=told)
    assert told.paths(Kind.FAILED) == ["dangling", "link", "tree/a", "tree/b/c"] and "symbolic link" in told.why("link")
    assert read_tree(tmp_path / "outside") == {"a": b"theirs", "file": b"theirs"} and report.copied == 1
    assert (directory / "link").is_symlink() and report.deletes_nothing is not None


async def test_a_directory_that_becomes_a_link_while_the_call_runs_is_not_followed(
    storage: TieredStorage, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside").mkdir()
    write_tree(directory, {"a/old": SMALL})
    await put_tree(storage, {"a/new": SMALL})
    begin = LocalTree.begin

    def swap(tree: LocalTree, path: str, *, is_new: bool) -> PartialFile:
        (directory / "a").rename(directory / "b")
        (directory / "a").symlink_to(tmp_path / "outside")
        return begin(tree, path, is_new=is_new)

    monkeypatch.setattr(LocalTree, "begin", swap)
    report = await download_directory(storage, PREFIX, directory)
    assert report.failed == 1 and read_tree(tmp_path / "outside") == {}


async def test_a_key_beside_one_that_goes_on_with_a_slash_wins(storage: TieredStorage, directory: Path) -> None:
    await put_tree(storage, {"a": SMALL, "a!": SMALL, "a/b": SMALL, "a/b/c": SMALL, "a0": SMALL, "m/": b"", "m/n": SMALL})
    for dry_run in (True, False):
        told = Told()
        await download_directory(storage, PREFIX, directory, on_result=told, dry_run=dry_run)
        assert told.paths(Kind.FAILED) == ["a/b", "a/b/c"] and "an object has the name of a directory above it" in told.why("a/b")
    assert set(read_tree(directory)) == {"a", "a!", "a0", "m/n"}


async def test_a_directory_or_a_file_in_the_way_is_told_in_a_dry_run_too(storage: TieredStorage, directory: Path) -> None:
    write_tree(directory, {"a/b": SMALL, "f": SMALL})
    (directory / "empty").mkdir()
    os.mkfifo(directory / "pipe")
    await put_tree(storage, {"a": SMALL, "f/g": SMALL, "empty": SMALL, "pipe": SMALL})
    for dry_run in (True, False):
        told = Told()
        report = await download_directory(storage, PREFIX, directory, on_result=told, dry_run=dry_run)
        assert told.paths(Kind.FAILED) == ["a", "empty", "f/g", "pipe"] and report.copied == 0
        assert "a directory is there in its place; remove it" in told.why("a") and "no regular file" in told.why("pipe")
    assert read_tree(directory) == {"a/b": SMALL, "f": SMALL}


async def test_keys_that_differ_only_in_case_are_one_file_on_some_disks(
    storage: TieredStorage, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_tree(storage, {"A": SMALL, "B/x": SMALL, "B/y": SMALL, "a": SMALL, "b/x": SMALL, "é": SMALL, "e\u0301": SMALL})
    told = Told()
    monkeypatch.setattr(LocalTree, "takes_case_for_nothing", lambda tree: True)
    report = await download_directory(storage, PREFIX, directory, on_result=told)
    assert told.paths(Kind.FAILED) == ["a", "b/x", "é"] and report.copied == 4
    assert "would be one file with 'A' here" in told.why("a") and "'B'" in told.why("b/x")
    monkeypatch.undo()
    assert (await download_directory(storage, PREFIX, directory)).copied == 3


async def test_a_name_that_is_too_long_for_a_file_is_told(storage: TieredStorage, directory: Path) -> None:
    await put_tree(storage, {"x" * 300: SMALL, "y" * 300 + "/a": SMALL, "z": SMALL})
    for dry_run in (True, False):
        report = await download_directory(storage, PREFIX, directory, dry_run=dry_run)
        assert (report.copied, report.failed) == (1, 2) and "File name too long" in (report.failures[0].why or "")


async def test_a_store_is_not_written_over(tmp_path: Path) -> None:
    async with open_storage(Settings(directory=tmp_path / "b/store")) as own, memory_storage() as storage:
        await put_tree(own, {"a": SMALL})
        await put_tree(storage, {"a": SMALL, "b/store/tiered.db": b"bad", "b/store/blobs/x": b"bad"})
        before = (tmp_path / "b/store/tiered.db").stat().st_ino
        told = Told()
        await download_directory(storage, PREFIX, tmp_path, on_result=told, delete=True)
        assert told.paths(Kind.FAILED) == ["b/store/blobs/x", "b/store/tiered.db"]
        assert (tmp_path / "b/store/tiered.db").stat().st_ino == before and await read_objects(own)
        for directory, why in (tmp_path, "holds the store"), (tmp_path / "b/store", "is in the store"):
            with pytest.raises(ConfigurationError, match=why):
                await download_directory(own, PREFIX, directory, delete=True)


# --- names that change their kind --------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [
    (["p/a"], ["p/a/b"]), (["p/a/b"], ["p/a"]), (["p"], ["p/a/b/c", "p/z"]), (["p/a/b/c", "p/z"], ["p"]),
    (["a", "b/x", "c"], ["a/x", "b", "c"]),
])  # fmt: skip
@pytest.mark.parametrize("storage", ["memory", "embedded"], indirect=True)
async def test_a_file_becomes_a_directory_and_a_directory_a_file(
    storage: TieredStorage, directory: Path, before: list[str], after: list[str]
) -> None:
    await put_tree(storage, dict.fromkeys(before, SMALL))
    await download_directory(storage, PREFIX, directory, delete=True)
    (directory / "p/a/empty/more").mkdir(parents=True) if (directory / "p/a").is_dir() else None
    for path in before:
        await storage.delete(object_at(path))
    await put_tree(storage, dict.fromkeys(after, LARGE))
    changed = len(set(after) - set(before))
    alone = await download_directory(storage, PREFIX, directory)
    assert alone.failed, "nothing is deleted unless that is asked for"
    dry = await download_directory(storage, PREFIX, directory, delete=True, dry_run=True)
    done = await download_directory(storage, PREFIX, directory, delete=True)
    assert (done.failed, done.deleted, done.copied) == (0, len(set(before) - set(after)), dry.copied) and done.deletes_nothing is None
    assert read_tree(directory) == dict.fromkeys(after, LARGE) and done.copied >= changed
    again = await download_directory(storage, PREFIX, directory, delete=True)
    assert (again.unchanged, again.copied, again.deleted) == (len(after), 0, 0)


async def test_a_directory_with_a_link_in_it_makes_no_room(storage: TieredStorage, directory: Path) -> None:
    (directory / "a/empty").mkdir(parents=True)
    (directory / "a/link").symlink_to("elsewhere")
    write_tree(directory, {"a/old": SMALL})
    await put_tree(storage, {"a": SMALL, "b": SMALL})
    told = Told()
    report = await download_directory(storage, PREFIX, directory, delete=True, on_result=told)
    assert (report.copied, report.deleted, report.failed) == (1, 1, 1) and "a directory is there in its place" in told.why("a")
    assert (directory / "a/link").is_symlink() and not (directory / "a/old").exists()


async def test_what_has_no_room_is_told_when_something_else_failed(storage: TieredStorage, directory: Path) -> None:
    write_tree(directory, {"a": SMALL})
    await put_tree(storage, {"a/b": SMALL, "c//x": SMALL})
    report = await download_directory(storage, PREFIX, directory, delete=True)
    assert report.deletes_nothing == "1 could not be copied, and 1 wait until what is in their place is deleted"
    assert read_tree(directory) == {"a": SMALL}


# --- what fails --------------------------------------------------------------------------------------


async def test_a_download_that_breaks_off_leaves_the_old_file_and_nothing_else(directory: Path) -> None:
    write_tree(directory, {"a": b"old"})
    async with memory_storage(Settings(directory=directory, inline_bytes_max=1000)) as storage:
        await put_tree(storage, {"a": HUGE, "new": HUGE})
        storage.faults.fail("read", UnavailableError, calls=2)
        report = await download_directory(storage, PREFIX, directory)
        assert report.failed == 2 and read_tree(directory) == {"a": b"old"}
        assert (await download_directory(storage, PREFIX, directory)).copied == 2
        assert read_tree(directory) == {"a": HUGE, "new": HUGE} and open_below(directory) == []


async def test_a_full_disk_is_told_as_what_may_pass(storage: TieredStorage, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(directory, {"a": b"old"})
    await put_tree(storage, {"a": HUGE, "b": SMALL})

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        for name in ("os.write", "os.pwrite"):
            patched.setattr(name, full)
        report = await download_directory(storage, PREFIX, directory)
    assert [type(each.error) for each in report.failures] == [UnavailableError] * 2 and read_tree(directory) == {"a": b"old"}


async def test_a_file_that_somebody_changes_after_the_comparison_is_not_replaced(
    storage: TieredStorage, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(directory, {"a": b"old"})
    await put_tree(storage, {"a": SMALL, "new": SMALL})
    finish = PartialFile.finish

    def raced(place: PartialFile, *arguments: Any) -> None:
        write_tree(directory, {"a": b"theirs", "new": b"theirs"})
        finish(place, *arguments)

    monkeypatch.setattr(PartialFile, "finish", raced)
    report = await download_directory(storage, PREFIX, directory)
    assert report.failed == 2 and read_tree(directory) == {"a": b"theirs", "new": b"theirs"}
    assert "was changed here meanwhile" in (report.failures[0].why or "")


async def test_a_checksum_of_other_bytes_is_told_and_nothing_is_replaced(storage: TieredStorage, directory: Path) -> None:
    write_tree(directory, {"a": b"old"})
    await storage.put(object_at("a"), SMALL)
    await storage.update_metadata(object_at("a"), lambda now: replace(now, custom={SHA256_KEY: "0" * 64}))
    report = await download_directory(storage, PREFIX, directory)
    assert "--remove-custom tiered-sha256" in (report.failures[0].why or "") and read_tree(directory) == {"a": b"old"}


async def test_an_object_that_is_deleted_or_replaced_meanwhile_is_skipped_or_fetched_as_it_is(
    storage: TieredStorage, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(directory / "source", {"a": SMALL, "b": SMALL})
    await upload_directory(storage, directory / "source", PREFIX)
    get = storage.get

    async def raced(object_id: ObjectId, **options: Any) -> Any:
        if object_id == object_at("a"):
            await storage.delete(object_id)
        else:
            await storage.put(object_id, HUGE)
        return await get(object_id, **options)

    monkeypatch.setattr(storage, "get", raced)
    report = await download_directory(storage, PREFIX, directory / "target")
    assert (report.copied, report.skipped, report.bytes_copied) == (1, 1, len(HUGE)) and read_tree(directory / "target") == {"b": HUGE}


async def test_a_cancelled_download_leaves_no_partial_file(storage: TieredStorage, directory: Path) -> None:
    await put_tree(storage, {f"{number}": HUGE for number in range(20)})
    with anyio.CancelScope() as scope:
        await download_directory(storage, PREFIX, directory, on_result=lambda result: scope.cancel())
    found = read_tree(directory)
    assert set(found.values()) == {HUGE} and open_below(directory) == []
    report = await download_directory(storage, PREFIX, directory)
    assert (report.unchanged, report.copied) == (len(found), 20 - len(found))


async def test_partial_files_of_dead_downloads_are_deleted_and_those_of_living_ones_are_not(
    storage: TieredStorage, directory: Path
) -> None:
    await put_tree(storage, {"a": SMALL})
    names = (".tiered-sync-1-1.partial", ".tiered-sync-2-2.partial", ".tiered-3-4.partial")
    dead, living, other = (directory / name for name in names)
    write_tree(directory, {each.name: b"half" for each in (dead, living, other)})
    with living.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        await download_directory(storage, PREFIX, directory, dry_run=True)
        assert dead.exists()
        await download_directory(storage, PREFIX, directory, delete=True)
    assert set(read_tree(directory)) == {"a", living.name, other.name}


# --- deletion ----------------------------------------------------------------------------------------


async def test_files_without_an_object_are_deleted_and_directories_that_are_empty_then(storage: TieredStorage, directory: Path) -> None:
    write_tree(directory, {"a": SMALL, "b/c/d": SMALL, "b/c/e": SMALL, "f/g": SMALL, "f/h": SMALL})
    (directory / "empty").mkdir()
    (directory / "f/link").symlink_to("h")
    await put_tree(storage, {"a": SMALL, "f/g": SMALL})
    assert (await download_directory(storage, PREFIX, directory)).deleted == 0
    told = Told()
    report = await download_directory(storage, PREFIX, directory, delete=True, dry_run=True, on_result=told)
    assert told.paths(Kind.DELETED) == ["b/c/d", "b/c/e", "f/h"] == sorted(set(read_tree(directory)) - {"a", "f/g"})
    report = await download_directory(storage, PREFIX, directory, delete=True)
    assert (report.deleted, report.skipped) == (3, 1) and read_tree(directory) == {"a": SMALL, "f/g": SMALL}
    assert sorted(each.name for each in directory.iterdir()) == ["a", "empty", "f"] and (directory / "f/link").is_symlink()


async def test_an_empty_prefix_deletes_nothing_unless_that_is_insisted_on(storage: TieredStorage, directory: Path) -> None:
    write_tree(directory, {"a": SMALL})
    with pytest.raises(InvalidRequestError, match=r"'photos/org\.17/objects/2026/' is empty"):
        await download_directory(storage, PREFIX, directory, delete=True)
    assert (await download_directory(storage, PREFIX, directory, delete=True, allow_empty=True)).deleted == 1
    assert list(directory.iterdir()) == []


async def test_a_dry_run_makes_nothing_and_says_what_the_run_then_does(storage: TieredStorage, directory: Path, tmp_path: Path) -> None:
    await put_tree(storage, TREE)
    write_tree(directory, {"a": SMALL[::-1], "old": SMALL})
    assert (await download_directory(storage, PREFIX, tmp_path / "new", dry_run=True, delete=True)).copied == len(TREE)
    assert not (tmp_path / "new").exists()
    before, dry, wet = read_tree(directory), Told(), Told()
    told = await download_directory(storage, PREFIX, directory, delete=True, dry_run=True, on_result=dry)
    assert read_tree(directory) == before
    report = await download_directory(storage, PREFIX, directory, delete=True, on_result=wet)
    assert told == report and sorted(map(repr, dry.results)) == sorted(map(repr, wet.results))


async def test_a_compressed_object_is_a_file_of_what_is_stored_in_both_directions(storage: TieredStorage, directory: Path) -> None:
    """Sizes and checksums of a listing are of these bytes, so a second call finds nothing that differs."""
    await storage.put(object_at("a"), HUGE, compress="zstd")
    await storage.put(object_at("b"), SMALL)
    stored = await storage.get(object_at("a"), decompress=False)
    assert stored is not None
    compressed = await stored.read()
    for copied, unchanged in ((2, 0), (0, 2)):
        report = await download_directory(storage, PREFIX, directory / "target")
        assert (report.copied, report.unchanged, report.failed) == (copied, unchanged, 0)
    assert read_tree(directory / "target") == {"a": compressed, "b": SMALL}
    report = await upload_directory(storage, directory / "target", PREFIX)
    assert (report.copied, report.unchanged) == (0, 2)
