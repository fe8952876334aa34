"""A directory goes to the store: only what differs, nothing half, and nothing that somebody else wrote is lost."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from io import BytesIO
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
from tests.given.metadata_fields import CARRIED, carried
from tiered import (
    ConditionFailedError,
    ConfigurationError,
    CorruptRecordError,
    InvalidRequestError,
    Metadata,
    ObjectId,
    ObjectPrefix,
    OutcomeUnknownError,
    PutRequest,
    Settings,
    Tier,
    TieredStorage,
    TimeToLive,
    UnavailableError,
    open_storage,
)
from tiered.directories import Kind, download_directory, upload_directory
from tiered.directories.tree import LocalFile, LocalTree
from tiered.metadata import SHA256_KEY
from tiered.testing import MemoryStorage, memory_storage
from tiered.testing.in_memory import NOWHERE

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


async def revisions(storage: TieredStorage) -> dict[str, object]:
    return {entry.object_id.key: entry.revision async for entry in storage.list(PREFIX)}


# --- what is copied ----------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["memory", "embedded"], indirect=True)
async def test_all_files_become_objects_and_a_second_run_does_nothing(storage: TieredStorage, directory: Path) -> None:
    write_tree(directory, TREE)
    (directory / "empty").mkdir()
    report = await upload_directory(storage, directory, PREFIX)
    assert (report.copied, report.unchanged, report.failed, report.skipped) == (len(TREE), 0, 0, 0)
    assert report.bytes_copied == sum(map(len, TREE.values()))
    assert await read_objects(storage) == TREE
    before = await revisions(storage)
    report = await upload_directory(storage, directory, PREFIX)
    assert (report.copied, report.unchanged) == (0, len(TREE)) and await revisions(storage) == before


async def test_a_second_run_asks_no_blob_in_either_direction(
    storage: TieredStorage, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked(*args: object) -> None:
        raise AssertionError("a blob was asked")

    write_tree(directory, TREE)
    await upload_directory(storage, directory, PREFIX)
    assert {entry.tier async for entry in storage.list(PREFIX)} == {*Tier}
    for call in ("head", "heads", "open"):
        monkeypatch.setattr(storage._tiers.long_term, call, asked, raising=False)
    assert (await upload_directory(storage, directory, PREFIX)).unchanged == len(TREE)
    assert (await download_directory(storage, PREFIX, directory)).unchanged == len(TREE)


async def test_each_call_waits_for_the_rate_of_its_usecase(directory: Path) -> None:
    """As bulk calls do: a call that lists, compares, copies and deletes fails at none of these."""
    write_tree(directory, TREE)
    rates = {PREFIX.usecase: {"requests_per_s": 200, "burst_s": 0.005}}
    async with memory_storage(Settings(directory=NOWHERE, usecases=rates)) as storage:
        for sync in (partial(upload_directory, storage, directory, PREFIX), partial(download_directory, storage, PREFIX, directory)):
            report = await sync(delete=True)
            assert (report.failed, report.copied + report.unchanged, report.deleted) == (0, len(TREE), 0)
            (directory / "z").write_bytes(b"y")
        (directory / "a").unlink()
        report = await upload_directory(storage, directory, PREFIX, delete=True)
        assert (report.failed, report.deleted) == (0, 1)


async def test_an_object_tells_its_checksum_and_the_type_of_the_files_name(storage: TieredStorage, directory: Path) -> None:
    write_tree(directory, TREE)
    await upload_directory(storage, str(directory), ObjectPrefix.parse("photos/org.17/objects/2026"))
    head = await storage.head(object_at("b/c.jpg"))
    assert head is not None and head.metadata.content_type == "image/jpeg" and head.size == len(HUGE)
    assert head.metadata.custom == {SHA256_KEY: hashlib.sha256(HUGE).hexdigest()}


@pytest.mark.parametrize("size", [1, 40], ids=["small", "large"])
async def test_an_upload_that_replaced_an_object_dropped_what_was_said_of_it(storage: TieredStorage, directory: Path, size: int) -> None:
    """All but what is of the bytes stays. The name of the file tells a type that nobody gave."""
    said = Metadata(TimeToLive(HOUR), **{**CARRIED, "compression": None}, custom={"mine": "x", SHA256_KEY: "0" * 64}, unknown={"newer": 1})
    await storage.put(object_at("a.jpg"), LARGE[: size * 50], said)
    await storage.put(object_at("b.jpg"), b"text " * 10 * size, compress="zstd")
    content = LARGE[::-1][: size * 50]
    write_tree(directory, {"a.jpg": content, "b.jpg": content})
    assert (await upload_directory(storage, directory, PREFIX)).copied == 2
    kept, typed = await storage.head(object_at("a.jpg")), await storage.head(object_at("b.jpg"))
    assert kept is not None and typed is not None
    assert carried(kept.metadata) == carried(said) and kept.metadata.unknown == said.unknown
    assert kept.metadata.custom == {"mine": "x", SHA256_KEY: hashlib.sha256(content).hexdigest()}
    assert kept.metadata.expiration == said.expiration
    assert (typed.metadata.content_type, typed.metadata.compression, typed.size) == ("image/jpeg", None, len(content))


async def test_a_text_that_the_store_refuses_now_fails_its_file_and_is_named(tmp_path: Path, directory: Path) -> None:
    write_tree(directory, {"a": SMALL, "b": SMALL})
    async with open_storage(Settings(directory=tmp_path / "store", store={"unicode_metadata": True})) as storage:
        await storage.put(object_at("a"), LARGE, Metadata(filename="ü"))
    async with open_storage(Settings(directory=tmp_path / "store")) as storage:
        report = await upload_directory(storage, directory, PREFIX)
        assert (report.copied, report.failed) == (1, 1) and "filename 'ü' has 'ü' (U+00FC)" in (report.failures[0].why or "")
        assert await read_objects(storage) == {"a": LARGE, "b": SMALL}


@pytest.mark.parametrize("content", [SMALL, LARGE, HUGE], ids=["small", "large", "huge"])
async def test_a_file_of_the_same_size_and_time_is_copied_if_its_bytes_differ(
    storage: TieredStorage, directory: Path, content: bytes
) -> None:
    write_tree(directory, {"a": content, "b": b"other"})
    os.utime(directory / "a", ns=(1, 1))
    await upload_directory(storage, directory, PREFIX)
    write_tree(directory, {"a": content[::-1]})
    os.utime(directory / "a", ns=(1, 1))
    report = await upload_directory(storage, directory, PREFIX, size_only=True)
    assert (report.copied, report.unchanged) == (0, 2)
    report = await upload_directory(storage, directory, PREFIX)
    assert (report.copied, report.unchanged) == (1, 1)
    assert await read_objects(storage) == {"a": content[::-1], "b": b"other"}


@pytest.mark.parametrize("storage", ["memory", "embedded"], indirect=True)
async def test_an_object_without_a_checksum_is_read_and_stays_as_it_is_if_it_is_the_same(storage: TieredStorage, directory: Path) -> None:
    write_tree(directory, {"a": SMALL, "b": LARGE, "c": b"mine!", "d": LARGE})
    await put_tree(storage, {"a": SMALL, "b": LARGE, "c": b"yours", "d": LARGE[::-1]})
    await storage.put(object_at("b"), LARGE, Metadata(custom={SHA256_KEY: "no checksum"}))
    before = await revisions(storage)
    report = await upload_directory(storage, directory, PREFIX)
    assert (report.copied, report.unchanged) == (2, 2)
    assert await read_objects(storage) == {"a": SMALL, "b": LARGE, "c": b"mine!", "d": LARGE}
    after = await revisions(storage)
    assert [before[f"2026/{name}"] == after[f"2026/{name}"] for name in "abcd"] == [True, True, False, False]


async def test_objects_beside_the_prefix_are_not_looked_at(storage: TieredStorage, directory: Path) -> None:
    write_tree(directory, {"a": SMALL})
    others = [ObjectId.create("photos", key, {"org": "17"}) for key in ("2026", "2026-old/a", "2027/a", "2026.")]
    others += [ObjectId.create("photos", "2026/a"), ObjectId.create("photos", "2026/b", {"org": "1"})]
    for each in others:
        await storage.put(each, b"others")
    told = Told()
    await upload_directory(storage, directory, ObjectPrefix.parse("photos/org.17/objects/2026"), delete=True, on_result=told)
    assert told.paths(Kind.DELETED) == []
    assert [each for each in others if await storage.head(each) is None] == []


async def test_names_around_a_slash_merge(storage: TieredStorage, directory: Path) -> None:
    """It sorts before some characters and after others."""
    names = {f"{a}{b}{c}": b"" for a in ("x", "xy") for b in ("/", "!", "-", "0", "z", "é") for c in ("1", "a/b")}
    write_tree(directory, names)
    assert (await upload_directory(storage, directory, PREFIX)).copied == len(names)
    report = await upload_directory(storage, directory, PREFIX, delete=True)
    assert (report.copied, report.unchanged, report.deleted) == (0, len(names), 0)


# --- what is no file ---------------------------------------------------------------------------------


async def test_links_and_special_files_are_named_and_skipped(storage: TieredStorage, directory: Path, tmp_path: Path) -> None:
    write_tree(tmp_path / "outside", {"secret": b"secret"})
    write_tree(directory, {"a": SMALL})
    (directory / "link").symlink_to(tmp_path / "outside/secret")
    (directory / "tree").symlink_to(tmp_path / "outside")
    (directory / "loop").symlink_to(directory)
    (directory / "dangling").symlink_to("nowhere")
    os.mkfifo(directory / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "socket"))
        told = Told()
        report = await upload_directory(storage, directory, PREFIX, on_result=told)
    assert told.paths(Kind.SKIPPED) == ["dangling", "link", "loop", "pipe", "socket", "tree"] and report.failed == 0
    assert told.why("link") == "it is a symbolic link" and told.why("pipe") == "it is no regular file"
    assert await read_objects(storage) == {"a": SMALL}


async def test_the_directory_itself_may_be_a_link(storage: TieredStorage, directory: Path, tmp_path: Path) -> None:
    write_tree(directory, {"a": SMALL})
    (tmp_path / "link").symlink_to(directory)
    assert (await upload_directory(storage, tmp_path / "link", PREFIX)).copied == 1


async def test_a_file_that_becomes_a_link_while_the_call_runs_is_not_followed(
    storage: TieredStorage, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "outside", {"secret": b"secret"})
    write_tree(directory, {"a": SMALL, "b/secret": b"mine"})
    opened = LocalTree.open

    def swap(tree: LocalTree, path: str) -> LocalFile:
        if path == "a":
            (directory / "a").unlink()
            (directory / "a").symlink_to(tmp_path / "outside/secret")
        else:
            (directory / "b").rename(directory / "c")
            (directory / "b").symlink_to(tmp_path / "outside")
        return opened(tree, path)

    monkeypatch.setattr(LocalTree, "open", swap)
    report = await upload_directory(storage, directory, PREFIX)
    assert report.failed == 2 and await read_objects(storage) == {}


async def test_one_file_that_cannot_be_read_stops_no_other(unprivileged: Path) -> None:
    write_tree(unprivileged, {"a": SMALL, "b": SMALL, "c/d": SMALL, "e": SMALL})
    (unprivileged / "b").chmod(0)
    (unprivileged / "c").chmod(0)
    async with memory_storage() as storage:
        await put_tree(storage, {"c/old": b"old", "gone": b"gone"})
        told = Told()
        report = await upload_directory(storage, unprivileged, PREFIX, delete=True, on_result=told)
        assert (report.copied, report.failed, report.deleted) == (2, 2, 0) and told.paths(Kind.FAILED) == ["b", "c"]
        assert "Permission denied" in told.why("b") and isinstance(report.failures[0].error, InvalidRequestError)
        assert report.deletes_nothing == "2 could not be copied" and set(await read_objects(storage)) == {"a", "e", "c/old", "gone"}
        (unprivileged / "b").chmod(0o600)
        (unprivileged / "c").chmod(0o700)
        report = await upload_directory(storage, unprivileged, PREFIX, delete=True)
        assert (report.copied, report.failed, report.deleted) == (2, 0, 2)
        assert await read_objects(storage) == dict.fromkeys(["a", "b", "c/d", "e"], SMALL)


async def test_names_that_no_key_may_have_are_told_and_the_others_go_on(storage: TieredStorage, directory: Path) -> None:
    write_tree(directory, {"a": SMALL, "new\nline": SMALL, f"{'/'.join(['x' * 200] * 5)}": SMALL})
    (Path(os.fsdecode(os.fsencode(directory) + b"/\xff"))).write_bytes(SMALL)
    told = Told()
    report = await upload_directory(storage, directory, PREFIX, on_result=told)
    assert (report.copied, report.failed) == (1, 3)
    whys = [each.why for each in told.results if each.why]
    assert any("control character U+000A" in why for why in whys) and any("is not valid Unicode" in why for why in whys)
    assert any("at most 987 fit" in why for why in whys)


async def test_a_store_within_the_directory_is_not_copied_into_itself(tmp_path: Path) -> None:
    async with open_storage(Settings(directory=tmp_path / "b/store")) as storage:
        write_tree(tmp_path, {"a": SMALL, "c": SMALL})
        for directory, why in (tmp_path, "holds the store"), (tmp_path / "b/store", "is in the store"):
            with pytest.raises(ConfigurationError, match=why):
                await upload_directory(storage, directory, PREFIX)
        told = Told()
        async with memory_storage() as other:
            report = await upload_directory(other, tmp_path, PREFIX, on_result=told)
        assert report.copied == 2 and told.paths(Kind.FAILED) == ["b/store"] and "embedded store" in told.why("b/store")


async def test_unfinished_downloads_are_no_objects(storage: TieredStorage, directory: Path) -> None:
    unfinished = {".tiered-sync-1-2.partial": b"half", "b/.tiered-3-4.partial": b"half"}
    write_tree(directory, {"a": SMALL, ".tiered-like.partial": SMALL} | unfinished)
    await upload_directory(storage, directory, PREFIX)
    assert set(await read_objects(storage)) == {"a", ".tiered-like.partial"}


# --- a checksum that is of other bytes ---------------------------------------------------------------


def declared(payload: bytes) -> dict[str, str]:
    return {"md5": hashlib.md5(payload).hexdigest(), "sha256": hashlib.sha256(payload).hexdigest()}


async def written(storage: TieredStorage, payload: bytes, metadata: Metadata) -> None:
    async with storage.open(object_at("a"), "wb", metadata) as file:
        await file.write(payload)


async def in_bulk(storage: TieredStorage, payload: bytes, metadata: Metadata) -> None:
    async with storage.put_many([PutRequest(object_at("a"), payload, metadata)]) as results:
        assert [result.error async for result in results] == [None]


async def in_parts(storage: TieredStorage, payload: bytes, metadata: Metadata) -> None:
    upload = await storage.begin_multipart(object_at("a"), metadata)
    await upload.complete([await upload.upload_part(1, payload)])


async def resumably(storage: TieredStorage, payload: bytes, metadata: Metadata) -> None:
    upload = await storage.begin_resumable(object_at("a"), metadata)
    await upload.append(0, payload, final=True)
    await upload.finish()


@pytest.mark.parametrize("write", [
    lambda storage, payload, metadata: storage.put(object_at("a"), payload, metadata),
    lambda storage, payload, metadata: storage.put(object_at("a"), BytesIO(payload), metadata, checksums=declared(payload)),
    written, in_bulk, in_parts, resumably,
])  # fmt: skip
@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
async def test_a_write_of_other_bytes_with_the_metadata_of_before_is_seen(
    storage: TieredStorage, directory: Path, content: bytes, write: Callable[[TieredStorage, bytes, Metadata], Awaitable[object]]
) -> None:
    write_tree(directory, {"a": content})
    await upload_directory(storage, directory, PREFIX)
    head = await storage.head(object_at("a"))
    assert head is not None
    await write(storage, content[::-1], head.metadata)
    assert (await upload_directory(storage, directory, PREFIX, dry_run=True)).copied == 1
    assert (await download_directory(storage, PREFIX, directory)).copied == 1
    assert read_tree(directory) == {"a": content[::-1]}


async def test_a_checksum_that_the_write_declares_is_kept_and_so_it_is_by_a_copy(storage: TieredStorage) -> None:
    noted = hashlib.sha256(LARGE).hexdigest()
    metadata = Metadata(custom={SHA256_KEY: noted, "mine": "x"})
    await storage.put(object_at("a"), LARGE, metadata, checksums={"sha256": noted})
    await storage.copy(object_at("a"), object_at("b"))
    await storage.update_metadata(object_at("b"), lambda now: replace(now, filename="b"))
    await storage.put(object_at("c"), LARGE, metadata, checksums={"sha256": noted}, compress="zstd")
    kept = [head.metadata.custom for name in "abc" if (head := await storage.head(object_at(name))) is not None]
    assert kept == [metadata.custom, metadata.custom, {"mine": "x"}]


# --- files that change -------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [SMALL, HUGE], ids=["small", "huge"])
@pytest.mark.parametrize("how", ["grows", "shrinks", "rewritten"])
async def test_a_file_that_changes_while_it_is_read_is_not_stored(
    storage: TieredStorage, directory: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, how: str
) -> None:
    write_tree(directory, {"a": content, "b": SMALL})
    changed = {"grows": content + b"more", "shrinks": content[:-1], "rewritten": content[::-1]}[how]
    read, changes = LocalFile.read, [changed]

    def meanwhile(file: LocalFile) -> bytes:
        found = read(file)
        if file.path == "a" and changes:
            with (directory / "a").open("r+b") as other:
                other.write(changes.pop())
                other.truncate(len(changed))
        return found

    monkeypatch.setattr(LocalFile, "read", meanwhile)
    told = Told()
    report = await upload_directory(storage, directory, PREFIX, on_result=told)
    assert (report.copied, report.failed) == (1, 1) and "was changed while it was read" in told.why("a")
    assert isinstance(report.failures[0].error, UnavailableError) and set(await read_objects(storage)) == {"b"}
    assert (await upload_directory(storage, directory, PREFIX)).copied == 1
    assert (await read_objects(storage))["a"] == changed


async def test_a_large_file_that_changes_between_its_checksum_and_its_upload_is_not_stored(
    storage: TieredStorage, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(directory, {"a": HUGE})
    found = os.stat(directory / "a")
    rewind = LocalFile.rewind

    def meanwhile(file: LocalFile) -> None:
        (directory / "a").write_bytes(HUGE[::-1])
        os.utime(directory / "a", ns=(found.st_atime_ns, found.st_mtime_ns))
        file.state = file.state._replace(changed_ns=os.stat(directory / "a").st_ctime_ns)  # as if no clock had told
        rewind(file)

    monkeypatch.setattr(LocalFile, "rewind", meanwhile)
    report = await upload_directory(storage, directory, PREFIX)
    assert report.failed == 1 and await read_objects(storage) == {}


async def test_a_file_that_is_deleted_meanwhile_is_skipped(
    storage: TieredStorage, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(directory, {"a": SMALL, "b/c": SMALL})
    opened = LocalTree.open

    def gone(tree: LocalTree, path: str) -> LocalFile:
        (directory / path).unlink()
        return opened(tree, path)

    monkeypatch.setattr(LocalTree, "open", gone)
    report = await upload_directory(storage, directory, PREFIX)
    assert (report.copied, report.skipped, report.failed) == (0, 2, 0)


# --- other writers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [None, b"before"])
async def test_what_another_writer_stored_after_the_comparison_is_not_overwritten(
    storage: TieredStorage, directory: Path, monkeypatch: pytest.MonkeyPatch, before: bytes | None
) -> None:
    write_tree(directory, {"a": SMALL, "b": SMALL})
    if before is not None:
        await put_tree(storage, {"a": before})
    put_many = storage.put_many

    def raced(requests: Any, **options: Any) -> Any:
        async def after_another() -> Any:
            for request in requests:
                if request.object_id == object_at("a"):
                    await storage.put(request.object_id, b"theirs")
                yield request

        return put_many(after_another(), **options) if requests else put_many(requests, **options)

    monkeypatch.setattr(storage, "put_many", raced)
    report = await upload_directory(storage, directory, PREFIX)
    assert (report.copied, report.failed) == (1, 1) and isinstance(report.failures[0].error, ConditionFailedError)
    assert await read_objects(storage) == {"a": b"theirs", "b": SMALL}


@pytest.mark.parametrize("storage", ["memory", "embedded"], indirect=True)
async def test_two_calls_that_copy_the_same_files_do_not_fail_over_each_other(storage: TieredStorage, directory: Path) -> None:
    write_tree(directory, {**TREE, **{f"{number}": SMALL for number in range(50)}})
    reports = []

    async def upload() -> None:
        reports.append(await upload_directory(storage, directory, PREFIX))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(upload)
    assert [each.failed for each in reports] == [0, 0, 0] and sum(each.copied for each in reports) == len(TREE) + 50
    assert len(await read_objects(storage)) == len(TREE) + 50


async def test_what_another_writer_stored_after_the_listing_is_not_deleted(
    storage: TieredStorage, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(directory, {"a": SMALL})
    await put_tree(storage, {"old": b"old"})
    delete = storage.delete

    async def raced(object_id: ObjectId, **options: Any) -> None:
        await storage.put(object_id, b"theirs")
        await delete(object_id, **options)

    monkeypatch.setattr(storage, "delete", raced)
    report = await upload_directory(storage, directory, PREFIX, delete=True)
    assert (report.deleted, report.failed) == (0, 1) and isinstance(report.failures[0].error, ConditionFailedError)
    assert await read_objects(storage) == {"a": SMALL, "old": b"theirs"}


async def test_an_object_without_a_revision_is_neither_replaced_nor_deleted(
    storage: TieredStorage, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(directory, {"a": SMALL})
    await put_tree(storage, {"a": b"of older software"})
    listed = storage.list

    async def older(*arguments: Any, **options: Any) -> Any:
        async for entry in listed(*arguments, **options):
            yield replace(entry, revision=None)

    monkeypatch.setattr(storage, "list", older)
    report = await upload_directory(storage, directory, PREFIX)
    assert report.failed == 1 and "other software wrote it" in (report.failures[0].why or "")


# --- services that fail ------------------------------------------------------------------------------


async def test_each_failure_is_that_of_its_file_and_the_next_run_does_what_is_left(directory: Path) -> None:
    write_tree(directory, TREE)
    async with memory_storage(Settings(directory=directory, inline_bytes_max=1000)) as storage:
        storage.faults.fail("put", UnavailableError)
        storage.faults.fail("put", OutcomeUnknownError, took_effect=True)
        report = await upload_directory(storage, directory, PREFIX, concurrency=1)
        assert {type(each.error) for each in report.failures} == {UnavailableError, OutcomeUnknownError}
        report = await upload_directory(storage, directory, PREFIX)
        assert (report.copied, report.unchanged) == (1, len(TREE) - 1) and await read_objects(storage) == TREE


async def test_it_gives_up_when_nothing_answers(directory: Path) -> None:
    write_tree(directory, {f"{number:04}": b"" for number in range(300)})
    async with memory_storage() as storage:
        storage.faults.fail("put", UnavailableError, calls=299)
        with pytest.raises(UnavailableError, match="given up after 100 files in a row"):
            await upload_directory(storage, directory, PREFIX)


async def test_a_listing_that_fails_ends_the_call_before_anything_is_deleted(directory: Path) -> None:
    async with memory_storage() as storage:
        await put_tree(storage, {"old": b"old"})
        write_tree(directory, {"a": SMALL})
        storage.faults.fail("list", UnavailableError)
        with pytest.raises(UnavailableError):
            await upload_directory(storage, directory, PREFIX, delete=True)
        assert "old" in await read_objects(storage)


async def test_a_damaged_object_is_told_and_not_overwritten(
    storage: TieredStorage, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(directory, {"a": SMALL})
    await put_tree(storage, {"a": b"old"})
    listed = storage.list

    async def damaged(*arguments: Any, **options: Any) -> Any:
        async for entry in listed(*arguments, **options):
            yield replace(entry, size=None, fault="it does not match its checksum")

    monkeypatch.setattr(storage, "list", damaged)
    report = await upload_directory(storage, directory, PREFIX, delete=True)
    assert isinstance(report.failures[0].error, CorruptRecordError) and report.deletes_nothing


# --- deletion ----------------------------------------------------------------------------------------


async def test_objects_without_a_file_are_deleted_only_if_that_is_asked_for(storage: TieredStorage, directory: Path) -> None:
    write_tree(directory, {"b": SMALL})
    await put_tree(storage, {"a": b"old", "b": SMALL, "b/c": LARGE, "z/": b""})
    assert (await upload_directory(storage, directory, PREFIX)).deleted == 0
    told = Told()
    report = await upload_directory(storage, directory, PREFIX, delete=True, dry_run=True, on_result=told)
    assert report.deleted == 3 and told.paths(Kind.DELETED) == ["a", "b/c", "z/"] and len(await read_objects(storage)) == 4
    assert (await upload_directory(storage, directory, PREFIX, delete=True)).deleted == 3
    assert await read_objects(storage) == {"b": SMALL}


async def test_an_object_that_a_link_may_stand_for_is_not_deleted(storage: TieredStorage, directory: Path, tmp_path: Path) -> None:
    write_tree(directory, {"a": SMALL})
    (directory / "link").symlink_to(tmp_path)
    await put_tree(storage, {"link": b"1", "link/below": b"2", "linked": b"3"})
    assert (await upload_directory(storage, directory, PREFIX, delete=True)).deleted == 1
    assert set(await read_objects(storage)) == {"a", "link", "link/below"}


@pytest.mark.parametrize("delete", [False, True])
async def test_an_empty_directory_deletes_nothing_unless_that_is_insisted_on(storage: TieredStorage, directory: Path, delete: bool) -> None:
    (directory / "lost+found").mkdir()
    (directory / "link").symlink_to("nowhere")
    await put_tree(storage, {"a": SMALL})
    if not delete:
        assert (await upload_directory(storage, directory, PREFIX)).copied == 0
        return
    for dry_run in (True, False):
        with pytest.raises(InvalidRequestError, match=r"is empty, and to delete all .*, or pass allow_empty=True"):
            await upload_directory(storage, directory, PREFIX, delete=True, dry_run=dry_run)
    assert await read_objects(storage) == {"a": SMALL}
    assert (await upload_directory(storage, directory, PREFIX, delete=True, allow_empty=True)).deleted == 1


async def test_a_directory_that_empties_before_the_deletion_deletes_nothing(storage: TieredStorage, directory: Path) -> None:
    write_tree(directory, {"a": SMALL, "b": SMALL})
    await put_tree(storage, {"old": b"old"})

    def empty(result: object) -> None:
        for each in directory.iterdir():
            each.unlink()

    with pytest.raises(InvalidRequestError, match="is empty"):
        await upload_directory(storage, directory, PREFIX, delete=True, on_result=empty, concurrency=1)
    assert "old" in await read_objects(storage)


# --- dry runs, arguments, the end --------------------------------------------------------------------


async def test_a_dry_run_says_what_the_run_then_does(storage: TieredStorage, directory: Path) -> None:
    write_tree(directory, TREE)
    (directory / "link").symlink_to("a")
    await put_tree(storage, {"a": b"other", "z": b"z", "old": b"old"})
    before, dry, wet = await revisions(storage), Told(), Told()
    told = await upload_directory(storage, directory, PREFIX, delete=True, dry_run=True, on_result=dry)
    assert await revisions(storage) == before
    report = await upload_directory(storage, directory, PREFIX, delete=True, on_result=wet)
    assert told == report and sorted(map(repr, dry.results)) == sorted(map(repr, wet.results))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"directory": "nowhere"}, "there is no directory"), ({"directory": __file__}, "in its place"),
        ({"directory": 5}, "a directory is a path"), ({"directory": ""}, "empty text"), ({"directory": b""}, "empty text"),
        ({"prefix": ObjectPrefix()}, "names no objects of a directory"), ({"prefix": ObjectPrefix.create("photos")}, "names no objects"),
        ({"prefix": "photos/objects/"}, "names no objects"), ({"prefix": ObjectPrefix.parse("photos/objects/../")}, "segment"),
        ({"concurrency": 0}, "concurrency is 0"), ({"concurrency": 10_000}, "concurrency is 10000"),
    ],
)  # fmt: skip
async def test_wrong_arguments_are_refused_at_once(directory: Path, arguments: dict[str, Any], message: str) -> None:
    async with memory_storage() as storage:
        with pytest.raises(InvalidRequestError, match=message):
            await upload_directory(storage, **{"directory": directory, "prefix": PREFIX, **arguments})


async def test_what_the_callback_raises_ends_the_call(storage: TieredStorage, directory: Path) -> None:
    write_tree(directory, TREE)

    async def stop(result: object) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        await upload_directory(storage, directory, PREFIX, on_result=stop)


async def test_a_cancelled_call_leaves_no_descriptor_open_and_the_next_one_does_the_rest(
    storage: TieredStorage, directory: Path
) -> None:
    write_tree(directory, {f"{number}": HUGE for number in range(20)})
    with anyio.CancelScope() as scope:
        await upload_directory(storage, directory, PREFIX, on_result=lambda result: scope.cancel())
    assert open_below(directory) == []
    report = await upload_directory(storage, directory, PREFIX)
    assert report.copied + report.unchanged == 20 and report.unchanged > 0


async def test_only_so_many_files_are_worked_on_at_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(directory, {f"{number}": SMALL for number in range(30)})
    running, most, three = 0, 0, anyio.Event()
    put = MemoryStorage._put

    async def counted(*arguments: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            three.set()
        with anyio.fail_after(60):
            await three.wait()
        await anyio.sleep(0.001)
        running -= 1
        return await put(*arguments)

    monkeypatch.setattr(MemoryStorage, "_put", counted)
    async with memory_storage() as storage:
        await upload_directory(storage, directory, PREFIX, concurrency=3)
    assert most == 3
