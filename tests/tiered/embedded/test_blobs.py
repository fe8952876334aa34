"""The directory of embedded mode.

What lies where, what a crash leaves, what is collected, and what is said when the disk fails.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio import to_thread

from changelog.base.errors import (
    ConfigurationError,
    CorruptRecordError,
    InvalidRequestError,
    TieredError,
    UnavailableError,
    UnconfirmedError,
)
from changelog.base.events import ONCE_MAX
from changelog.base.runtime import SystemRuntime
from changelog.change import ChangeId
from changelog.log import GarbageCollection, LeftGarbageError
from tests.given.repository import ROOT
from tiered.embedded import blob_files
from tiered.embedded.blob_listing import Listings
from tiered.embedded.blobs import COLLECT_AT_ONCE, COPIED_BYTES_MAX, GATHERED_BYTES, LOCK_ATTEMPTS, FileBlobs
from tiered.embedded.file import FOOTER_BYTES, Checksums, encode_trailer, path_of
from tiered.metadata import NS_PER_S, Metadata, TimeToIdle
from tiered.services.backends import ByteRange
from tiered.services.scans import Oddity
from tiered.testing.clock import Clock
from tiered.testing.contracts.whole_blobs import begin, read, store

pytestmark = pytest.mark.anyio

PIECE = 256 * 1024
HOUR_NS = 3600 * 1_000_000_000
NAME = "attachments/org.17/objects/abc123/018bcfe5-6800-7000-8000-000000000001"
LEGACY = "u/objects/key"


class HurriedRuntime(Clock):
    """Counts sleeps instead of sleeping."""

    sleeps = 0
    then: Callable[[], None] | None = None

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        then, self.then = self.then, None
        if then is not None:
            then()
        await anyio.lowlevel.checkpoint()


@pytest.fixture
def runtime() -> HurriedRuntime:
    return HurriedRuntime()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def blobs(anyio_backend: str, root: Path, runtime: HurriedRuntime) -> FileBlobs:
    return await FileBlobs.open_directory(root, runtime)


async def names(blobs: FileBlobs) -> list[str]:
    return [info.name for info in (await blobs.list("", None, 1000)).blobs]


def uploads(root: Path) -> list[str]:
    return os.listdir(root / "uploads")


def file_of(root: Path, name: str) -> Path:
    return root / "blobs" / path_of(name)


def idle(runtime: HurriedRuntime, ttl_ns: int = HOUR_NS) -> Metadata:
    return Metadata(expiration=TimeToIdle(timedelta(microseconds=ttl_ns // 1000))).stamped(runtime.wall_ns())


# --- opening -------------------------------------------------------------------------------------


async def test_opening_makes_the_directories_with_their_parents_and_may_be_repeated(tmp_path: Path, runtime: HurriedRuntime) -> None:
    root = tmp_path / "not" / "yet" / "there"
    await store(await FileBlobs.open_directory(root, runtime), NAME)
    again = await FileBlobs.open_directory(root, runtime)
    assert await read(again, NAME) == b"payload"
    assert sorted(os.listdir(root)) == ["blobs", "uploads"]
    assert uploads(root) == []


@pytest.mark.parametrize("taken", ["store", "store/blobs", "store/uploads"])
async def test_a_file_in_place_of_a_directory_is_refused_and_nothing_is_half_made(
    tmp_path: Path, runtime: HurriedRuntime, taken: str
) -> None:
    (tmp_path / taken).parent.mkdir(exist_ok=True)
    (tmp_path / taken).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigurationError, match=r"cannot hold blobs .*give a directory that this process may write to"):
        await FileBlobs.open_directory(tmp_path / "store", runtime)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("read_only", [".", "store", "store/blobs", "store/uploads"])
async def test_a_read_only_directory_is_refused_and_nothing_is_half_made(
    unprivileged: Path, runtime: HurriedRuntime, read_only: str
) -> None:
    (unprivileged / read_only).mkdir(parents=True, exist_ok=True)
    before = sorted(unprivileged.rglob("*"))
    (unprivileged / read_only).chmod(0o500)
    try:
        with pytest.raises(ConfigurationError, match="Permission denied"):
            await FileBlobs.open_directory(unprivileged / "store", runtime)
        assert sorted(unprivileged.rglob("*")) == before
    finally:
        (unprivileged / read_only).chmod(0o700)


async def test_a_file_system_without_hard_links_is_refused_and_nothing_is_half_made(
    tmp_path: Path, runtime: HurriedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    with pytest.raises(ConfigurationError, match="hard links"):
        await FileBlobs.open_directory(tmp_path / "new" / "store", runtime)
    assert os.listdir(tmp_path) == []


async def test_a_relative_directory_is_still_found_after_the_process_changed_its_own(
    tmp_path: Path, runtime: HurriedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blobs = await FileBlobs.open_directory(Path("store"), runtime)
    monkeypatch.chdir("/")
    await store(blobs, NAME)
    assert file_of(tmp_path / "store", NAME).is_file()


# --- files ---------------------------------------------------------------------------------------


async def test_a_blob_is_one_file_that_begins_with_its_payload(blobs: FileBlobs, root: Path) -> None:
    await store(blobs, NAME, b"readable with any tool")
    path = root / "blobs" / "attachments%2forg%2e17%2fobjects%2fabc123%2f018bcfe5%2d6800%2d7000%2d8000%2d000000000001"
    assert path.read_bytes().startswith(b'readable with any tool{"content_type":"application/octet-stream","size":22}')


async def test_an_upload_is_a_file_named_by_its_revision_until_it_ends(blobs: FileBlobs, root: Path) -> None:
    upload = await begin(blobs, NAME)
    assert [upload.session] == uploads(root) == [NAME[-36:]]
    await upload.finalise()
    assert uploads(root) == []


async def test_a_name_without_a_revision_gets_a_session_of_its_own(blobs: FileBlobs, root: Path) -> None:
    one, other = await begin(blobs, LEGACY), await begin(blobs, LEGACY)
    assert {one.session, other.session} == set(uploads(root))
    await one.abort()
    await other.abort()
    assert uploads(root) == []


async def test_small_chunks_are_gathered_before_they_are_written(blobs: FileBlobs, root: Path) -> None:
    upload = await begin(blobs, NAME, b"x" * 1000)
    temporary = root / "uploads" / NAME[-36:]
    assert temporary.stat().st_size == 0
    await upload.write(b"y" * GATHERED_BYTES)
    assert temporary.stat().st_size == 1000 + GATHERED_BYTES
    await upload.finalise()
    assert await read(blobs, NAME) == b"x" * 1000 + b"y" * GATHERED_BYTES


async def test_a_buffer_may_be_changed_as_soon_as_it_was_taken(blobs: FileBlobs) -> None:
    upload, expected = await begin(blobs, NAME, b""), b""
    buffer = bytearray(COPIED_BYTES_MAX + 1)
    for chunk in (memoryview(buffer), memoryview(buffer).toreadonly(), memoryview(buffer)[:5]):
        buffer[:3] = b"abc"
        expected += bytes(chunk)
        await upload.write(chunk)
        buffer[:3] = b"xyz"
    for whole in (os.urandom(COPIED_BYTES_MAX + 1), os.urandom(COPIED_BYTES_MAX), b"small"):
        expected += whole
        await upload.write(whole)
    await upload.finalise()
    assert await read(blobs, NAME) == expected


async def test_file_and_directories_are_synchronised_around_the_link(
    blobs: FileBlobs, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, link, unlink = os.fsync, os.link, os.unlink

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        events.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).relative_to(root)}")

    def noted_link(source: Path, target: Path) -> None:
        link(source, target)
        events.append("link")

    def noted_unlink(path: Path) -> None:
        unlink(path)
        events.append("unlink")

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    monkeypatch.setattr(os, "unlink", noted_unlink)
    session = NAME[-36:]
    await store(blobs, f"{'k' * 400}/{session}")
    part = "k" * 199 + "+"
    assert events.pop(0) == "fsync .", "at the first upload only: another process may have made blobs/"
    first, events[:] = list(events), []
    await store(blobs, f"{'k' * 400}/{'1' * 8}{session[8:]}")
    assert [each.replace("1" * 8, session[:8]) for each in events] == first
    assert first == [
        f"fsync uploads/{session}", "link", f"fsync blobs/{part}/{part}", f"fsync blobs/{part}", "fsync blobs", "unlink",
    ]  # fmt: skip


async def test_a_finished_upload_cannot_be_used_again(blobs: FileBlobs) -> None:
    upload = await begin(blobs, NAME)
    await upload.finalise()
    with pytest.raises(InvalidRequestError, match="has ended already"):
        await upload.finalise()
    with pytest.raises(InvalidRequestError, match="has ended already"):
        await upload.write(bytes(GATHERED_BYTES + 1))
    assert await read(blobs, NAME) == b"payload"


async def test_a_cancelled_task_can_still_abort_and_leaves_nothing(blobs: FileBlobs, root: Path) -> None:
    upload = await begin(blobs, NAME)
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await upload.write(bytes(GATHERED_BYTES + 1))
        finally:
            await upload.abort()
    assert scope.cancelled_caught
    assert uploads(root) == []
    assert await names(blobs) == []


async def test_a_write_that_is_cancelled_ends_the_upload_so_that_no_byte_is_left_out(blobs: FileBlobs) -> None:
    upload = await begin(blobs, NAME)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await upload.write(bytes(GATHERED_BYTES + 1))
    for call in (partial(upload.write, b"more"), upload.finalise):
        with pytest.raises(InvalidRequestError, match="has ended already"):
            await call()
    await upload.abort()
    assert await names(blobs) == []


async def test_a_reader_closed_under_a_read_says_so_and_reads_no_other_file(blobs: FileBlobs) -> None:
    await store(blobs, NAME, bytes(3 * PIECE))
    reader = await blobs.open(NAME)
    assert reader is not None
    chunks = reader.chunks()
    await anext(chunks)
    await reader.aclose()
    with pytest.raises(InvalidRequestError, match="closed while it was read"):
        await anext(chunks)


async def test_a_read_goes_into_a_thread_once_for_four_blocks_and_gives_each_in_its_turn(
    blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = b"".join(bytes([number]) * PIECE for number in range(9)) + b"end"
    await store(blobs, NAME, payload)
    reader = await blobs.open(NAME)
    assert reader is not None
    calls: list[object] = []
    monkeypatch.setattr(blobs._disk, "look", counted(blobs._disk.look, calls))
    chunks = [chunk async for chunk in reader.chunks()]
    await reader.aclose()
    assert [len(chunk) for chunk in chunks] == [PIECE] * 9 + [3]
    assert b"".join(chunks) == payload
    assert len(calls) == 3


def counted(call: Callable[..., Awaitable[object]], calls: list[object]) -> Callable[..., Awaitable[object]]:
    def counting(*args: object, **options: object) -> Awaitable[object]:
        calls.append(args)
        return call(*args, **options)

    return counting


async def test_a_cancelled_session_that_is_no_change_id_unlinks_nothing(blobs: FileBlobs, root: Path) -> None:
    await store(blobs, "victim")
    for session in ("../blobs/victim", "", ".", str(root / "blobs" / "victim"), "victim"):
        with pytest.raises(CorruptRecordError, match="expected a change id"):
            await blobs.cancel(session)
    assert await read(blobs, "victim") == b"payload"


@pytest.mark.parametrize("name", [".", "..", "line\nbreak\r\0nul"])
async def test_a_name_that_no_storage_path_can_be_stays_inside_the_root_all_the_same(blobs: FileBlobs, root: Path, name: str) -> None:
    upload = await begin(blobs, name)
    await upload.finalise()
    assert [info.name for info in (await blobs.list("", None, 10)).blobs] == [name]
    assert [path.is_relative_to(root / "blobs") for path in root.rglob("*") if path.is_file()] == [True]
    await blobs.delete(name)
    assert await blobs.open(name) is None


async def test_a_name_longer_than_the_file_system_holds_is_refused(blobs: FileBlobs) -> None:
    with pytest.raises(InvalidRequestError, match="longer than the file system can hold"):
        await store(blobs, "/" * 2000)
    with pytest.raises(InvalidRequestError, match="longer"):
        await blobs.open("/" * 2000)


# --- damage --------------------------------------------------------------------------------------


RANGES = [
    None, ByteRange(0), ByteRange(PIECE - 1, PIECE + 1), ByteRange(PIECE, PIECE + 1), ByteRange(2 * PIECE - 1, 2 * PIECE),
    ByteRange(-PIECE - 12, None),
]  # fmt: skip


def change(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


async def handed_out(blobs: FileBlobs, range: ByteRange | None) -> bytes:
    """What a read of a damaged blob gives away before it fails."""
    reader, got = await blobs.open(NAME, range), b""
    assert reader is not None
    try:
        with pytest.raises(CorruptRecordError, match=r"018bcfe5.* checksum"):  # noqa: PT012 - where it fails is the question
            async for chunk in reader.chunks():
                got += chunk
    finally:
        await reader.aclose()
    return got


@pytest.mark.parametrize("range", RANGES)
@pytest.mark.parametrize("at", [PIECE, PIECE + 5, 2 * PIECE - 1])
async def test_no_byte_of_a_block_that_changed_on_the_disk_is_handed_out(
    blobs: FileBlobs, root: Path, range: ByteRange | None, at: int
) -> None:
    payload = (bytes(251) + bytes([*b"abc"])) * (2 * PIECE // 254) + b"z" * 400
    await store(blobs, NAME, payload)
    change(file_of(root, NAME), at)
    start, _ = (0, 0) if range is None else range.within(len(payload))
    assert await handed_out(blobs, range) == payload[start : max(start, PIECE)]
    for sound in (ByteRange(0, PIECE), ByteRange(5, 6), ByteRange(2 * PIECE), ByteRange(-1)):
        first, last = sound.within(len(payload))
        assert await read(blobs, NAME, sound) == payload[first:last]


async def test_checksums_that_changed_on_the_disk_are_corruption_and_not_taken_for_the_truth(blobs: FileBlobs, root: Path) -> None:
    await store(blobs, NAME, b"x" * (PIECE + 10))
    size = file_of(root, NAME).stat().st_size
    change(file_of(root, NAME), size - FOOTER_BYTES - 1)
    for range in (None, ByteRange(1, 5), ByteRange(-1)):
        assert await handed_out(blobs, range) == b""


async def test_the_checksums_of_a_huge_blob_are_read_as_they_are_needed(
    blobs: FileBlobs, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiered.embedded.blob_files._CRCS_AT_ONCE", 2)
    payload = os.urandom(5 * PIECE + 10)
    await store(blobs, NAME, payload)
    for range in (None, ByteRange(PIECE + 1, 4 * PIECE), ByteRange(5 * PIECE)):
        start, stop = (0, len(payload)) if range is None else range.within(len(payload))
        assert await read(blobs, NAME, range) == payload[start:stop]
    change(file_of(root, NAME), 4 * PIECE)
    assert await handed_out(blobs, None) == payload[: 4 * PIECE]
    assert await handed_out(blobs, ByteRange(PIECE + 1)) == payload[PIECE + 1 : 4 * PIECE]


async def test_a_blob_of_version_1_is_checked_where_it_is_read_whole(blobs: FileBlobs, root: Path) -> None:
    payload = b"x" * (PIECE + 10)
    raw = b'{"content_type":"application/octet-stream","size":262154}'
    raw += b" " * (-(len(payload) + len(raw)) % 8)
    footer = struct.pack(">6sHqqQIII", b"tiered", 1, 0, 1_700_000_000_000_000, len(payload), len(raw), zlib.crc32(payload), zlib.crc32(raw))
    file_of(root, NAME).write_bytes(payload + raw + footer)
    assert await read(blobs, NAME) == payload
    assert [blob.size for blob in (await blobs.list("", None, 10)).blobs] == [len(payload)]
    change(file_of(root, NAME), 0)
    assert len(await handed_out(blobs, None)) == PIECE, "the last chunk is never given away"
    assert await read(blobs, NAME, ByteRange(1, 5)) == b"xxxx"


@pytest.mark.parametrize("kept", [0, 10, 2000, -1])
async def test_a_file_that_was_cut_is_corrupt_by_name_and_listed_as_an_oddity(
    blobs: FileBlobs, root: Path, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    await store(blobs, NAME, b"x" * 3000)
    await store(blobs, LEGACY)
    path = file_of(root, NAME)
    os.truncate(path, kept if kept >= 0 else path.stat().st_size + kept)
    with pytest.raises(CorruptRecordError, match=NAME):
        await blobs.open(NAME)
    with pytest.raises(CorruptRecordError, match=NAME):
        await blobs.touch(NAME, HOUR_NS)
    page = await blobs.list("", None, 10)
    assert [blob.name for blob in page.blobs] == [LEGACY]
    assert [(odd.name, odd.is_blob) for odd in page.oddities] == [(NAME, True)]
    with caplog.at_level(logging.WARNING, "tiered"), pytest.raises(LeftGarbageError, match=NAME):
        await blobs.collect(100)
    assert [record.message.split()[0] for record in caplog.records] == ["corrupt_blob"]
    assert path.exists()


async def test_a_corrupt_blob_counts_for_its_page_and_is_in_one_range_only(blobs: FileBlobs, root: Path) -> None:
    for name in ("a", "b", "c"):
        await store(blobs, name)
    os.truncate(file_of(root, "b"), 0)
    first = await blobs.list("", None, 2)
    assert ([blob.name for blob in first.blobs], [odd.name for odd in first.oddities], first.next_start) == (["a"], ["b"], "b\0")
    for start, end, odd in (("", "b", 0), ("b", "b\0", 1), ("a", "c", 1), ("b\0", None, 0)):
        assert len((await blobs.list(start, end, 10)).oddities) == odd


async def test_a_file_cut_while_it_is_read_is_corrupt(blobs: FileBlobs, root: Path) -> None:
    await store(blobs, NAME, bytes(3 * PIECE))
    reader = await blobs.open(NAME)
    assert reader is not None
    os.truncate(file_of(root, NAME), PIECE + 5)
    with pytest.raises(CorruptRecordError, match="cut short"):
        _ = [chunk async for chunk in reader.chunks()]
    await reader.aclose()


def plant(tree: Path) -> list[str]:
    """What is no blob, among blobs `a`, `m` and `z` * 300; returns what a listing calls it."""
    inner = tree / ("z" * 199 + "+")
    files = [
        *(tree / name for name in ("README", ".hidden", "b%zz", "c+", "~ff", os.fsdecode(b"\xff"), "z" * 199 + "!", "z" * 199 + "-x")),
        tree / ("m" * 199 + "+"), inner / "UPPER", inner / os.fsdecode(b"z\xfe"),
    ]  # fmt: skip
    for file in files:
        file.write_text("not ours")
    (tree / "directory").mkdir()
    (inner / ("q" * 199 + "+")).mkdir()
    (tree / "link").symlink_to(tree / "a")
    os.mkfifo(tree / "pipe")
    planted = (*files, tree / "directory", tree / "link", tree / "pipe")
    return sorted(os.fsencode(path).decode(errors="backslashreplace") for path in planted)


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_what_is_no_blob_is_listed_as_an_oddity_once_whatever_the_pages(blobs: FileBlobs, root: Path, limit: int) -> None:
    for name in ("a", "m", "z" * 300, "z" * 400):
        await store(blobs, name)
    planted = plant(root / "blobs")
    for cuts in (("",), ("", "a"), ("", "m\0", "z" * 199, "z" * 300), ("", "m" * 300, "z", "z" * 200, "z" * 250, "z" * 300 + "\0", "{")):
        blob_names: list[str] = []
        odd: list[Oddity] = []
        for start, end in zip(cuts, (*cuts[1:], None), strict=True):
            next_start: str | None = start
            while next_start is not None:
                page = await blobs.list(next_start, end, limit)
                blob_names += [blob.name for blob in page.blobs]
                odd += page.oddities
                next_start = page.next_start
        assert blob_names == ["a", "m", "z" * 300, "z" * 400]
        assert sorted(each.name for each in odd) == planted
        assert not any(each.is_blob for each in odd)
        assert all(each.size == (len("not ours") if os.path.isfile(each.name) and not os.path.islink(each.name) else None)
                   for each in odd if "\\x" not in each.name)  # a name that is no text is not the name of its file


async def test_what_is_no_blob_is_logged_when_garbage_is_collected_and_left_alone(
    blobs: FileBlobs, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "m", "z" * 300):
        await store(blobs, name)
    planted = plant(root / "blobs")
    with caplog.at_level(logging.WARNING, "tiered"):
        assert await blobs.collect(100) == 0
    assert len([record for record in caplog.records if record.message.startswith("foreign_file name=")]) == len(planted)
    assert (root / "blobs" / "README").exists()


def odd_files(blobs: FileBlobs) -> int | None:
    return blobs.odd_files


async def test_a_foreign_file_is_one_warning_and_not_one_for_each_collection(
    blobs: FileBlobs, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await store(blobs, "a")
    assert odd_files(blobs) is None, "nobody has looked"
    (root / "blobs/README 1").touch()
    for number in range(3):
        await blobs.collect(100)
        assert (len(caplog.records), odd_files(blobs)) == (1, 1), f"collection {number}"
    (root / "blobs/README 2").touch()
    await blobs.collect(100)
    assert [Path(getattr(each, "fields")["name"]).name for each in caplog.records] == ["README 1", "README 2"]  # noqa: B009
    for number in range(3, 200):
        (root / f"blobs/README {number}").touch()
    for _ in range(2):
        await blobs.collect(1000)
    events = [getattr(each, "event") for each in caplog.records]  # noqa: B009
    assert (events.count("foreign_file"), events.count("collection_found"), odd_files(blobs)) == (ONCE_MAX, 1, 199)


async def test_a_long_listing_reads_a_directory_once_for_many_pages(blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each page costs as much as the directory is large, and a listing grows with the square of it."""
    names = [f"{number:03}" for number in range(100)] + [f"{'z' * 250}{number}" for number in range(20)]
    for name in names:
        await store(blobs, name, b"")
    monkeypatch.setattr("tiered.embedded.blob_listing.LONG", 10)
    monkeypatch.setattr("tiered.embedded.blob_listing.NAMES_HELD", 60)
    scanned: list[str] = []
    scandir = os.scandir

    def counted(directory: Any) -> Any:
        scanned.append(Path(directory).name)
        return scandir(directory)

    monkeypatch.setattr("tiered.embedded.blob_listing.os.scandir", counted)
    found: list[str] = []
    start: str | None = ""
    while start is not None:
        page = await blobs.list(start, None, 10)
        assert len(page.blobs) <= 10
        found += [blob.name for blob in page.blobs]
        start = page.next_start
    assert found == sorted(names)
    assert len(scanned) == 3, "twice the root, with 101 entries, and the directory of the long names"
    scanned.clear()
    await blobs.list("050", "070", 10)
    await blobs.list("050", "070", 10)
    await blobs.list("060", None, 10)
    assert len(scanned) == 3, "these go on from nowhere"


async def test_a_listing_that_goes_on_leaves_out_what_was_deleted_meanwhile(blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        await store(blobs, f"{number:03}", b"")
    monkeypatch.setattr("tiered.embedded.blob_listing.LONG", 10)
    page = await blobs.list("", None, 10)
    await blobs.delete("010")
    await blobs.delete("015")
    assert page.next_start is not None
    rest = await blobs.list(page.next_start, None, 100)
    assert [blob.name for blob in rest.blobs] == [f"{number:03}" for number in range(11, 30) if number != 15]


async def test_listings_that_share_names_read_a_directory_once_and_list_the_same(
    blobs: FileBlobs, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number:03}" for number in range(100)] + [f"{'z' * 250}{number}" for number in range(20)]
    for name in names:
        await store(blobs, name, b"")
    plant(root / "blobs")
    monkeypatch.setattr("tiered.embedded.blob_listing.LONG", 10)
    monkeypatch.setattr("tiered.embedded.blob_listing.NAMES_HELD", 70)
    scans = 0
    scandir = os.scandir

    def counted(directory: Any) -> Any:
        nonlocal scans
        scans += Path(directory) == root / "blobs"
        return scandir(directory)

    cuts = ["", "007", "03", "030\0", "0305", "050", "080", "z", "z" * 250 + "1", "zz0"]
    bounds = [*pairwise(cuts), ("zz0", None), ("", None)]
    expected = [await blobs.list(start, end, 1000) for start, end in bounds]
    monkeypatch.setattr("tiered.embedded.blob_listing.os.scandir", counted)
    for order in (bounds, bounds[::-1]):
        for start, end in order:
            reader = FileBlobs(root, SystemRuntime())
            reader.share_names(str(order))
            assert await reader.list(start, end, 1000) == expected[bounds.index((start, end))]
    assert scans < 2 * len(bounds), "70 of its 110 names are held at a time"
    monkeypatch.setattr("tiered.embedded.blob_listing.NAMES_HELD", 200)
    scans = 0
    for start, end in bounds:
        reader = FileBlobs(root, SystemRuntime())
        reader.share_names("all at once")
        assert await reader.list(start, end, 10) is not None
    assert scans == 1
    await blobs.delete("050")
    await store(blobs, "0505", b"")
    listed = [blob.name for blob in (await reader.list("049", "052", 10)).blobs]
    assert listed == ["049", "051"], "it has the names of before, and looks at each file"
    reader.share_names("another audit")
    assert [blob.name for blob in (await reader.list("049", "052", 10)).blobs] == ["049", "0505", "051"]


async def test_a_second_look_reads_a_trailer_only_if_the_file_has_changed(
    blobs: FileBlobs, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{'z' * 200}/objects/{number}" for number in range(8)]
    for name in names:
        await store(blobs, name, b"content")
    as_it_is, gone, replaced, shorter, linked, set_back, foreign, dated = (root / "blobs" / path_of(name) for name in names)
    in_a_minute_ns = time.time_ns() + 60 * NS_PER_S  # so that the files changed long before
    listed = Listings(root / "blobs").page("", None, 1000, in_a_minute_ns).blobs
    before = {blob.name: blob.generation for blob in listed}
    gone.unlink()
    checksums = Checksums()
    checksums.add(memoryview(b"content"))
    other = encode_trailer(Metadata(), checksums, 4_000_000_000)
    raw = replaced.read_bytes()
    replaced.unlink()
    replaced.write_bytes(raw[: -len(other)] + other)  # of the same size, and perhaps with the same inode
    shorter.write_bytes(shorter.read_bytes()[:-1])
    os.link(linked, linked.with_name("y" + linked.name))
    changed = os.stat(set_back)
    set_back.write_bytes(raw[: -len(other)] + other)
    os.utime(set_back, ns=(changed.st_atime_ns, changed.st_mtime_ns))
    foreign.unlink()
    foreign.mkdir()
    dated.touch()
    read: list[str] = []
    read_footer_at = blob_files.read_footer_at

    def counted(path: str) -> Any:
        read.append(path)
        return read_footer_at(path)

    monkeypatch.setattr("tiered.embedded.blob_listing.read_footer_at", counted)
    now = await blobs.generations(listed)
    assert {name: now.get(name) == before[name] for name in names} == dict(zip(
        names, [True, False, False, False, True, False, False, True], strict=True
    ))  # fmt: skip
    assert now[names[5]] == "4000000" and not {names[1], names[3], names[6]} & now.keys()
    assert str(as_it_is) not in read and read, "an unchanged file is not opened"


async def test_a_file_that_changed_just_before_it_was_listed_is_read_again(blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's time of change has steps, so such a file may change once more and show the same time."""
    await store(blobs, "a", b"content")
    [blob] = (await blobs.list("", None, 1000)).blobs
    monkeypatch.setattr("tiered.embedded.blob_listing.os.lstat", None)
    assert await blobs.generations([blob]) == {"a": blob.generation}


@pytest.mark.slow
async def test_names_are_cut_into_parts_of_about_equal_number(blobs: FileBlobs, root: Path) -> None:
    assert await blobs.cuts("", None, 4) == []
    names = [f"{number:04}" for number in range(600)] + ["z" * 250 + str(number) for number in range(3)]
    for name in names:
        await store(blobs, name, b"")
    plant(root / "blobs")
    for start, end in (("", None), ("0100", "0500"), ("0100\0", None)):
        inside = [name for name in sorted(names) if start <= name and (end is None or name < end)]
        cuts = await blobs.cuts(start, end, 4)
        assert len(cuts) == 3 and list(cuts) == sorted(cuts) and all(start < cut and (end is None or cut < end) for cut in cuts)
        parts = list(zip([start, *cuts], [*cuts, end], strict=True))
        sizes = [sum(low <= name and (high is None or name < high) for name in inside) for low, high in parts]
        assert sum(sizes) == len(inside) and max(sizes) <= 0.4 * len(inside)
    assert await blobs.cuts("", None, 1) == await blobs.cuts("0100", "0100\0", 4) == await blobs.cuts("", "", 4) == []


# --- garbage -------------------------------------------------------------------------------------

UPLOADER = """
import sys, anyio
from pathlib import Path
from changelog.change import ChangeId
from changelog.base.runtime import SystemRuntime
from tiered.embedded.blobs import FileBlobs
from tiered.metadata import Metadata

async def main():
    runtime = SystemRuntime()
    blobs = await FileBlobs.open_directory(Path(sys.argv[1]), runtime)
    while True:
        name = "u/objects/key/" + ChangeId.new(runtime)
        upload = await blobs.open_upload(name, Metadata(), None)
        await upload.write(bytes(300_000))
        if sys.argv[2] == "stall":
            print(name, flush=True)
            await anyio.sleep_forever()
        await upload.finalise()
        print(name, flush=True)

anyio.run(main)
"""


def uploader(root: Path, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", UPLOADER, str(root), mode], stdout=subprocess.PIPE, text=True, cwd=ROOT)


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


def killed(process: subprocess.Popen[str]) -> list[str]:
    """What it had still said."""
    process.send_signal(signal.SIGKILL)
    return process.communicate()[0].splitlines()


async def test_the_upload_of_a_dead_process_is_collected_and_of_a_living_one_is_not(blobs: FileBlobs, root: Path) -> None:
    process = uploader(root, "stall")
    try:
        (name,) = await to_thread.run_sync(lines, process, 1)
        assert await blobs.collect(10) == 0
        assert uploads(root) == [name[-36:]]
    finally:
        killed(process)
    assert await blobs.collect(10) == 1
    assert uploads(root) == []


@pytest.mark.parametrize("limit", [1, 2, 9, 10, 11])
async def test_pages_of_abandoned_uploads_hold_each_once(blobs: FileBlobs, root: Path, runtime: HurriedRuntime, limit: int) -> None:
    left = sorted(ChangeId.new(runtime) for _ in range(9))
    for name in (*left, "notes.txt"):
        (root / "uploads" / name).write_bytes(b"x")
    seen: list[str] = []
    start: str | None = ""
    while start is not None:
        page = await blobs.abandoned_uploads(start, time.time_ns() + NS_PER_S, limit)
        assert 0 < len(page.uploads) <= limit or page.next_start is None
        seen += [each.name for each in page.uploads]
        start = page.next_start
    assert seen == [f"uploads/{name}" for name in left]
    assert len(uploads(root)) == 10, "it only looks"


async def test_the_upload_of_this_process_is_not_collected_while_it_is_open(blobs: FileBlobs, root: Path) -> None:
    upload = await begin(blobs, NAME)
    assert await blobs.collect(10) == 0
    await upload.finalise()
    assert await read(blobs, NAME) == b"payload"


@pytest.mark.slow
async def test_a_process_killed_at_any_moment_leaves_whole_blobs_and_what_it_said_it_wrote(blobs: FileBlobs, root: Path) -> None:
    for finished in (1, 5, 12):
        process = uploader(root, "write")
        try:
            written = await to_thread.run_sync(lines, process, finished)
        finally:
            written += killed(process)
        present = await names(blobs)
        assert set(written) <= set(present)
        assert all([await read(blobs, name) == bytes(300_000) for name in present])
        await blobs.collect(1000)
        assert uploads(root) == []
        assert await names(blobs) == present


async def test_a_temporary_file_that_was_linked_is_collected_and_its_blob_stays(blobs: FileBlobs, root: Path) -> None:
    await store(blobs, NAME)
    os.link(file_of(root, NAME), root / "uploads" / NAME[-36:])
    assert await blobs.collect(10) == 1
    assert await read(blobs, NAME) == b"payload"


async def test_what_is_no_upload_among_the_uploads_is_left_alone(blobs: FileBlobs, root: Path) -> None:
    (root / "uploads" / "notes.txt").write_text("mine")
    assert await blobs.collect(10) == 0
    assert uploads(root) == ["notes.txt"]


async def test_expired_blobs_are_collected_up_to_the_limit_and_no_others(blobs: FileBlobs, runtime: HurriedRuntime) -> None:
    assert isinstance(blobs, GarbageCollection)
    for number in range(5):
        await store(blobs, f"mortal{number}", metadata=idle(runtime))
    await store(blobs, "touched", metadata=idle(runtime))
    await store(blobs, "immortal")
    assert await blobs.collect(10) == 0
    assert await blobs.touch("touched", runtime.wall_ns() + 3 * HOUR_NS)
    runtime.ahead_ns = 2 * HOUR_NS
    assert [await blobs.collect(3) for _ in range(3)] == [3, 2, 0]
    assert await names(blobs) == ["immortal", "touched"]


async def many(blobs: FileBlobs, root: Path, runtime: HurriedRuntime, count: int) -> None:
    """Blobs that live for an hour, all of one file, so with one lock."""
    await store(blobs, "blob", metadata=idle(runtime))
    for number in range(1, count):
        os.link(file_of(root, "blob"), file_of(root, f"blob{number}"))


@pytest.mark.slow
async def test_one_collection_goes_through_all_blobs_however_many(blobs: FileBlobs, root: Path, runtime: HurriedRuntime) -> None:
    await many(blobs, root, runtime, 2600)
    await store(blobs, "immortal")
    runtime.ahead_ns = 2 * HOUR_NS - 60 * 1_000_000_000
    assert await blobs.collect(20_000) == 0, "a blob outlives its deadline by an hour"
    runtime.ahead_ns = 2 * HOUR_NS
    assert [await blobs.collect(1000) for _ in range(4)] == [1000, 1000, 600, 0]
    assert await names(blobs) == ["immortal"]


async def test_a_collection_can_be_stopped_between_chunks_and_sleeps_there(
    blobs: FileBlobs, root: Path, runtime: HurriedRuntime
) -> None:
    await many(blobs, root, runtime, 3 * COLLECT_AT_ONCE)
    runtime.ahead_ns = 2 * HOUR_NS
    with anyio.CancelScope() as scope:
        runtime.then = scope.cancel
        await blobs.collect(10_000)
    assert scope.cancelled_caught
    assert len(os.listdir(root / "blobs")) == 2 * COLLECT_AT_ONCE
    assert await blobs.collect(10_000) == 2 * COLLECT_AT_ONCE


async def test_two_that_collect_at_once_remove_everything_once(root: Path, blobs: FileBlobs, runtime: HurriedRuntime) -> None:
    await store(blobs, "blob", metadata=idle(runtime))
    for number in range(1, 1_000):
        shutil.copy(file_of(root, "blob"), file_of(root, f"blob{number}"))
    other, removed = await FileBlobs.open_directory(root, runtime), []
    runtime.ahead_ns = 2 * HOUR_NS

    async def collect(of: FileBlobs) -> None:
        removed.append(await of.collect(10_000))

    async with anyio.create_task_group() as tasks:
        for each in (blobs, other, blobs):
            tasks.start_soon(collect, each)
    assert os.listdir(root / "blobs") == [] and sum(removed) == 1_000


async def test_a_clock_that_is_set_back_in_the_middle_of_a_collection_saves_what_is_left(
    blobs: FileBlobs, root: Path, runtime: HurriedRuntime
) -> None:
    def set_back() -> None:
        runtime.ahead_ns = 0

    await many(blobs, root, runtime, 2 * COLLECT_AT_ONCE)
    runtime.ahead_ns, runtime.then = 2 * HOUR_NS, set_back
    assert await blobs.collect(10_000) == COLLECT_AT_ONCE
    assert len(await names(blobs)) == COLLECT_AT_ONCE


def hinder(how: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a blob one that can be neither looked at nor removed, or is gone when it is to be looked at."""
    real_open = os.open

    def failing_open(name: Any, *arguments: Any, **options: Any) -> int:
        if name == str(path):
            if how != "vanished":
                raise OSError(getattr(errno, how), os.strerror(getattr(errno, how)), name)
            path.unlink(missing_ok=True)
        return real_open(name, *arguments, **options)

    match how:
        case "empty":
            os.truncate(path, 0)
        case "directory" | "pipe":
            path.unlink()
            path.mkdir() if how == "directory" else os.mkfifo(path)
        case "denied":
            path.chmod(0)
        case _:
            monkeypatch.setattr(os, "open", failing_open)


@pytest.mark.parametrize(
    ("how", "event"),
    [
        ("empty", "corrupt_blob"), ("directory", "foreign_file"), ("pipe", "foreign_file"), ("denied", "corrupt_blob"),
        ("EIO", "corrupt_blob"), ("ELOOP", "corrupt_blob"), ("vanished", None),
    ],
)  # fmt: skip
async def test_what_cannot_be_looked_at_is_told_and_holds_up_no_other(
    unprivileged: Path, anyio_backend: str, runtime: HurriedRuntime, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, how: str, event: str | None,
) -> None:  # fmt: skip
    root = unprivileged / "store"
    blobs = await FileBlobs.open_directory(root, runtime)
    for name in "abcde":
        await store(blobs, name, metadata=idle(runtime))
    left = [] if how == "vanished" else ["c"]
    hinder(how, file_of(root, "c"), monkeypatch)
    page = await blobs.list("", None, 10)
    assert [blob.name for blob in page.blobs] == list("abde")
    assert len(page.oddities) == len(left)
    runtime.ahead_ns = 2 * HOUR_NS
    with caplog.at_level(logging.WARNING, "tiered"):
        if event == "corrupt_blob":
            with pytest.raises(LeftGarbageError, match=r"^1 file .*'c'") as raised:
                await blobs.collect(10)
            assert raised.value.removed == 4
        else:
            assert await blobs.collect(10) == 4
    assert os.listdir(root / "blobs") == left
    assert [record.message.split()[0] for record in caplog.records] == ([event] if event else [])


@pytest.mark.parametrize("part", ["blobs", "uploads", "deeper"])
async def test_a_directory_that_cannot_be_read_is_told_and_holds_up_nothing_else(
    unprivileged: Path, anyio_backend: str, runtime: HurriedRuntime, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    root = unprivileged / "store"
    blobs = await FileBlobs.open_directory(root, runtime)
    for name in ("a", "z" * 300):
        await store(blobs, name, metadata=idle(runtime))
    (root / "uploads" / ChangeId.new(runtime)).touch()
    runtime.ahead_ns = 2 * HOUR_NS
    directory = root / "blobs" / ("z" * 199 + "+") if part == "deeper" else root / part
    directory.chmod(0)
    try:
        with caplog.at_level(logging.WARNING, "tiered"), pytest.raises(LeftGarbageError, match="Permission denied") as raised:
            await blobs.collect(10)
    finally:
        directory.chmod(0o700)
    assert raised.value.removed == {"blobs": 1, "uploads": 2, "deeper": 2}[part]
    assert [record.message.split()[0] for record in caplog.records] == ["garbage_left"]
    assert await blobs.collect(10) == {"blobs": 2, "uploads": 1, "deeper": 1}[part]


async def test_expired_blobs_that_cannot_be_unlinked_are_told(
    blobs: FileBlobs, runtime: HurriedRuntime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, root: Path
) -> None:
    await many(blobs, root, runtime, 150)
    runtime.ahead_ns = 2 * HOUR_NS
    monkeypatch.setattr(os, "unlink", failing(errno.EROFS))
    with caplog.at_level(logging.WARNING, "tiered"), pytest.raises(LeftGarbageError, match=r"^150 files .*Read-only file system"):
        await blobs.collect(1000)
    assert len(caplog.records) == ONCE_MAX + 1, "and how many there are in all"
    monkeypatch.undo()
    assert await blobs.collect(1000) == 150


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_a_process_that_may_open_no_more_files_blames_no_blob(
    blobs: FileBlobs, runtime: HurriedRuntime, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    await store(blobs, NAME, metadata=idle(runtime))
    runtime.ahead_ns = 2 * HOUR_NS
    monkeypatch.setattr(os, "open", failing(number))
    for attempt in (blobs.collect(10), blobs.list("", None, 10)):
        with pytest.raises(UnavailableError, match="too many files are open"):
            await attempt
    monkeypatch.undo()
    assert await blobs.collect(10) == 1


async def test_an_expired_blob_that_is_being_touched_is_not_collected(blobs: FileBlobs, root: Path, runtime: HurriedRuntime) -> None:
    await store(blobs, NAME, metadata=idle(runtime))
    runtime.ahead_ns = 2 * HOUR_NS
    with file_of(root, NAME).open("rb") as other_process:
        fcntl.flock(other_process, fcntl.LOCK_EX)
        assert await blobs.collect(10) == 0
    assert await blobs.collect(10) == 1


async def test_a_touch_waits_for_a_lock_only_so_long(blobs: FileBlobs, root: Path, runtime: HurriedRuntime) -> None:
    metadata = idle(runtime)
    await store(blobs, NAME, metadata=metadata)
    with file_of(root, NAME).open("rb") as stopped_process:
        fcntl.flock(stopped_process, fcntl.LOCK_EX)
        with pytest.raises(UnavailableError, match="stayed locked"):
            await blobs.touch(NAME, runtime.wall_ns() + 2 * HOUR_NS)
    assert runtime.sleeps == LOCK_ATTEMPTS
    assert [info.deadline_ns for info in (await blobs.list("", None, 10)).blobs] == [metadata.time_expires_ns]


async def test_an_upload_collected_before_it_was_locked_is_refused_and_leaves_nothing(
    blobs: FileBlobs, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def collected_first(file: Any, operation: int) -> None:
        os.unlink(root / "uploads" / NAME[-36:])
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", collected_first)
    with pytest.raises(UnavailableError, match="collected before it began; try again"):
        await blobs.open_upload(NAME, Metadata(), None)
    monkeypatch.undo()
    await store(blobs, NAME)
    assert await read(blobs, NAME) == b"payload"


async def test_a_touch_whose_blob_was_replaced_meanwhile_says_that_its_blob_is_gone(
    blobs: FileBlobs, root: Path, monkeypatch: pytest.MonkeyPatch, runtime: HurriedRuntime
) -> None:
    await store(blobs, LEGACY, metadata=idle(runtime))
    # The blob keeps another name, so only the name itself tells.
    os.link(file_of(root, LEGACY), root / "uploads" / ChangeId.new(runtime))
    flock = fcntl.flock

    def deleted_first(file: Any, operation: int) -> None:
        os.unlink(file_of(root, LEGACY))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", deleted_first)
    assert not await blobs.touch(LEGACY, runtime.wall_ns() + 9 * HOUR_NS)


# --- the system fails ----------------------------------------------------------------------------


def failing(number: int) -> Any:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number), str(arguments[0]))

    return fail


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, UnavailableError, "the disk is full"),
        (errno.EDQUOT, UnavailableError, "the disk is full"),
        (errno.EROFS, UnavailableError, "the disk is read-only: mount it for writing"),
        (errno.EACCES, ConfigurationError, "the system refuses it"),
        (errno.EMFILE, UnavailableError, "too many files are open"),
        (errno.EIO, UnconfirmedError, "may or may not have happened"),
        (errno.ENOMEM, UnconfirmedError, "Cannot allocate memory; it may or may not have happened"),
    ],
)
@pytest.mark.parametrize("call", ["link", "write"])
async def test_what_the_system_says_is_translated_and_a_failed_upload_leaves_nothing(
    blobs: FileBlobs, root: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, kind: type[TieredError], words: str
) -> None:
    upload = await begin(blobs, NAME)
    monkeypatch.setattr(os, call, failing(number))
    with pytest.raises(kind, match=words) as raised:
        await upload.finalise()
    monkeypatch.undo()
    assert NAME in str(raised.value)
    assert uploads(root) == []
    assert await blobs.open(NAME) is None


@pytest.mark.parametrize("call", ["open", "pread"])
async def test_a_read_that_the_disk_fails_has_changed_nothing_and_says_so(
    blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    await store(blobs, NAME)
    reader = await blobs.open(NAME)
    assert reader is not None
    monkeypatch.setattr(os, call, failing(errno.EIO))
    for attempt in (blobs.open(NAME), blobs.head(NAME), *([anext(reader.chunks())] if call == "pread" else [])):
        with pytest.raises(UnavailableError, match=r"cannot (open|read|read what) .*Input/output error"):
            await attempt
    monkeypatch.undo()
    assert await anext(reader.chunks()) == b"payload"
    await reader.aclose()


async def test_a_refusal_names_the_path(blobs: FileBlobs, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await store(blobs, NAME)
    monkeypatch.setattr(os, "unlink", failing(errno.EACCES))
    with pytest.raises(ConfigurationError, match="the system refuses it") as raised:
        await blobs.delete(NAME)
    assert str(file_of(root, NAME)) in str(raised.value)


def failing_for_directories(number: int) -> Any:
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    return fail


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_once_a_blob_was_linked_no_failure_claims_that_nothing_happened(
    blobs: FileBlobs, root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    upload = await begin(blobs, NAME)
    monkeypatch.setattr(os, "fsync", failing_for_directories(number))
    with pytest.raises(UnconfirmedError, match="was linked, but a power cut may undo it"):
        await upload.finalise()
    monkeypatch.undo()
    assert await read(blobs, NAME) == b"payload"
    assert uploads(root) == []


async def test_a_deletion_that_was_not_made_durable_is_unconfirmed_and_may_be_repeated(
    blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store(blobs, NAME)
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    for _ in range(2):
        with pytest.raises(UnconfirmedError, match="was unlinked, but a power cut may undo it"):
            await blobs.delete(NAME)
    monkeypatch.undo()
    await blobs.delete(NAME)
    assert await blobs.open(NAME) is None


async def test_the_deadline_is_the_only_part_of_a_blob_that_a_touch_writes(blobs: FileBlobs, root: Path, runtime: HurriedRuntime) -> None:
    await store(blobs, NAME, b"x" * 1001, idle(runtime))
    before = file_of(root, NAME).read_bytes()
    assert await blobs.touch(NAME, runtime.wall_ns() + 5 * HOUR_NS)
    after = file_of(root, NAME).read_bytes()
    at = len(before) - FOOTER_BYTES + 8
    assert at % 8 == 0
    assert (before[:at], before[at + 8 :]) == (after[:at], after[at + 8 :])
    assert before[at : at + 8] < after[at : at + 8]
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
async def test_something_else_in_place_of_a_blob_is_corruption_and_nothing_waits_for_it(
    blobs: FileBlobs, root: Path, make: Callable[[Path], None]
) -> None:
    make(file_of(root, NAME))
    for attempt in (blobs.open(NAME), blobs.head(NAME), blobs.touch(NAME, HOUR_NS), *([blobs.delete(NAME)] if make is Path.mkdir else [])):
        with pytest.raises(CorruptRecordError, match="did not put there"):
            await attempt
