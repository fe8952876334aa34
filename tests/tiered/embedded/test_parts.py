"""Uploads in parts of a directory: what lies where, what is collected, what a damaged disk and a crash leave."""

from __future__ import annotations

import errno
import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

import tiered.embedded.part_files
from changelog.base.errors import CorruptRecordError, InvalidRequestError, UnavailableError
from tiered.embedded.blobs import FileBlobs
from tiered.metadata import Metadata
from tiered.services.capabilities import PARTS_DAYS_MAX, Part
from tiered.testing.clock import Clock
from tiered.testing.contracts.whole_blobs import read, store

pytestmark = pytest.mark.anyio

NAME = "media/objects/cat/018bcfe5-6800-7000-8000-000000000001"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def blobs(root: Path, runtime: Clock) -> FileBlobs:
    return await FileBlobs.open_directory(root, runtime)


async def uploaded(blobs: FileBlobs) -> tuple[str, list[Part]]:
    session = await blobs.begin_parts(NAME, Metadata())
    return session, [await blobs.put_part(NAME, session, number, [payload]) for number, payload in ((1, b"first, "), (2, b"last"))]


def left(root: Path) -> list[str]:
    return sorted(os.listdir(root / "uploads"))


def directory(root: Path, session: str) -> Path:
    return root / "uploads" / f"{session.removeprefix('parts:')}.parts"


def files(parts: list[Part]) -> list[str]:
    """What lies in the directory of an upload: each part, and beside it a file that has its SHA-256 in the name."""
    tags = [f"{part.number:05}-{part.size}-{(part.checksum or '')[-8:]}-{part.etag}" for part in parts]
    return sorted([*(f"{part.number:05}" for part in parts), *tags, "about"])


async def test_parts_lie_in_a_directory_that_is_gone_with_the_session(blobs: FileBlobs, root: Path) -> None:
    session, parts = await uploaded(blobs)
    assert sorted(os.listdir(directory(root, session))) == files(parts)
    await blobs.complete_parts(NAME, session, parts)
    assert left(root) == [] and await read(blobs, NAME) == b"first, last"
    session, parts = await uploaded(blobs)
    await blobs.cancel(session)
    assert left(root) == []


async def test_any_process_goes_on_with_a_session(blobs: FileBlobs, root: Path, runtime: Clock) -> None:
    session, parts = await uploaded(blobs)
    other = await FileBlobs.open_directory(root, runtime)
    third = await other.put_part(NAME, session, 3, [b"!"])
    assert await other.collect(100) == 0
    await blobs.complete_parts(NAME, session, [*parts, third])
    assert await read(other, NAME) == b"first, last!"


async def test_an_upload_that_nobody_completes_is_collected_after_a_month(blobs: FileBlobs, root: Path, runtime: Clock) -> None:
    session, parts = await uploaded(blobs)
    for days, collected in ((-1, 0), (1, 1)):
        then_ns = runtime.wall_ns() - int(timedelta(days=PARTS_DAYS_MAX + days, hours=2).total_seconds() * 1e9)
        os.utime(directory(root, session), ns=(then_ns, then_ns))
        assert await blobs.collect(100) == collected
    assert left(root) == []
    with pytest.raises(UnavailableError):
        await blobs.complete_parts(NAME, session, parts)


async def test_a_process_that_died_while_it_ended_an_upload_leaves_nothing_for_long(
    blobs: FileBlobs, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the files were removed; and after the blob was linked, before the session ended."""
    session, parts = await uploaded(blobs)
    ended = directory(root, session).with_suffix(".ended")
    directory(root, session).rename(ended)
    with pytest.raises(UnavailableError):
        await blobs.complete_parts(NAME, session, parts)
    assert await blobs.collect(100) == 1 and left(root) == []

    session, parts = await uploaded(blobs)

    def die(*_: Any) -> None:
        raise OSError(errno.EIO, "the process has ended")

    with monkeypatch.context() as patched:
        patched.setattr(tiered.embedded.part_files, "end_parts", die)
        await blobs.complete_parts(NAME, session, parts)
    assert left(root) == [directory(root, session).name] and await read(blobs, NAME) == b"first, last"
    await blobs.complete_parts(NAME, session, parts)
    assert left(root) == []

    await blobs.delete(NAME)
    session, parts = await uploaded(blobs)
    with monkeypatch.context() as patched:
        patched.setattr(tiered.embedded.part_files, "end_parts", die)
        await blobs.complete_parts(NAME, session, parts)
    assert await blobs.collect(100) == 1 and left(root) == [] and await read(blobs, NAME) == b"first, last"


async def test_a_part_whose_bytes_changed_on_the_disk_makes_no_blob(blobs: FileBlobs, root: Path) -> None:
    session, parts = await uploaded(blobs)
    path = directory(root, session) / "00002"
    path.write_bytes(b"lost" + path.read_bytes()[4:])
    with pytest.raises(CorruptRecordError, match="part 2"):
        await blobs.complete_parts(NAME, session, parts)
    assert await blobs.open(NAME) is None and sorted(os.listdir(directory(root, session))) == files(parts)
    path.write_bytes(b"x")
    with pytest.raises(CorruptRecordError, match="cut short"):
        await blobs.parts(NAME, session)
    (directory(root, session) / "about").write_bytes(b"about")
    with pytest.raises(CorruptRecordError, match="about"):
        await blobs.put_part(NAME, session, 1, [b"x"])
    await blobs.cancel(session)
    assert left(root) == []


async def test_a_full_disk_leaves_the_session_as_it_was(blobs: FileBlobs, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, parts = await uploaded(blobs)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(tiered.embedded.part_files, "write_all", full)
        for call in (blobs.put_part(NAME, session, 1, [b"x"]), blobs.complete_parts(NAME, session, parts)):
            with pytest.raises(UnavailableError, match="full"):
                await call
    assert sorted(os.listdir(directory(root, session))) == files(parts)
    await blobs.complete_parts(NAME, session, parts)


async def test_another_blob_of_the_name_is_not_replaced(blobs: FileBlobs, root: Path) -> None:
    session, parts = await uploaded(blobs)
    await store(blobs, NAME, b"another")
    with pytest.raises(UnavailableError, match="exists"):
        await blobs.complete_parts(NAME, session, parts)
    assert await read(blobs, NAME) == b"another" and sorted(os.listdir(directory(root, session))) == files(parts)
    await blobs.cancel(session)


async def test_what_a_round_meets_that_is_no_upload_in_parts_stays(blobs: FileBlobs, root: Path) -> None:
    for name in ("x.parts", "x.ended", "018bcfe5-6800-7000-8000-000000000001.other"):
        (root / "uploads" / name).mkdir()
    (root / "uploads" / "018bcfe5-6800-7000-8000-000000000001.ended").write_text("a file")
    assert await blobs.collect(100) == 0 and len(left(root)) == 4


async def test_a_new_store_keeps_parts_private(blobs: FileBlobs, root: Path) -> None:
    session, _ = await uploaded(blobs)
    assert directory(root, session).stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in directory(root, session).iterdir())


# --- an ETag that nobody can aim at --------------------------------------------------------------------


def forged(payload: bytes, wanted: bytes) -> bytes:
    """The payload with other last four bytes, so that its crc32 is that of `wanted`: milliseconds, for anybody."""
    assert len(payload) == len(wanted)
    head = payload[:-4]
    base = crc32(head + bytes(4))
    basis: dict[int, tuple[int, int]] = {}
    for bit in range(32):
        value, mask = crc32(head + (1 << bit).to_bytes(4, "big")) ^ base, 1 << bit
        while value and value.bit_length() in basis:
            other, others = basis[value.bit_length()]
            value, mask = value ^ other, mask ^ others
        basis[value.bit_length()] = value, mask
    left, last = base ^ crc32(wanted), 0
    while left:
        value, mask = basis[left.bit_length()]
        left, last = left ^ value, last ^ mask
    return head + last.to_bytes(4, "big")


async def test_a_part_of_equal_size_and_crc32_is_not_taken_for_the_one_that_was_listed(blobs: FileBlobs) -> None:
    session = await blobs.begin_parts(NAME, Metadata())
    mine = await blobs.put_part(NAME, session, 1, [b"what was checked by its SHA-256"])
    other = forged(b"what somebody else has uploaded", b"what was checked by its SHA-256")
    theirs = await blobs.put_part(NAME, session, 1, [other])
    assert (theirs.size, theirs.checksum) == (mine.size, mine.checksum) and theirs.etag != mine.etag
    assert await blobs.parts(NAME, session) == [theirs]
    with pytest.raises(InvalidRequestError, match="uploaded again"):
        await blobs.complete_parts(NAME, session, [mine])
    assert await blobs.put_part(NAME, session, 1, [b"what was checked by its SHA-256"]) == mine
    assert await blobs.parts(NAME, session) == [mine]
    await blobs.complete_parts(NAME, session, [mine])
    assert await read(blobs, NAME) == b"what was checked by its SHA-256"


async def test_a_part_that_is_exchanged_while_it_is_put_together_is_not_stored(
    blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await blobs.begin_parts(NAME, Metadata())
    mine = await blobs.put_part(NAME, session, 1, [b"what was checked by its SHA-256"])
    other = forged(b"what somebody else has uploaded", b"what was checked by its SHA-256")
    real = tiered.embedded.part_files.PartsDirectory._put_together

    def exchanged(self: Any, *args: Any) -> None:
        number = self._path / "00001"
        number.write_bytes(other + number.read_bytes()[-4:])
        real(self, *args)

    monkeypatch.setattr(tiered.embedded.part_files.PartsDirectory, "_put_together", exchanged)
    with pytest.raises(CorruptRecordError, match="does not match"):
        await blobs.complete_parts(NAME, session, [mine])
    assert await blobs.open(NAME) is None


async def test_a_list_of_older_software_is_good_until_its_part_is_uploaded_again(blobs: FileBlobs, root: Path) -> None:
    session, parts = await uploaded(blobs)
    for name in os.listdir(directory(root, session)):
        if "-" in name:
            (directory(root, session) / name).unlink()
    older = [Part(part.number, part.size, part.checksum, f"{part.size}-{(part.checksum or '')[-8:]}") for part in parts]
    assert await blobs.parts(NAME, session) == older
    again = await blobs.put_part(NAME, session, 2, [b"last"])
    with pytest.raises(InvalidRequestError, match="uploaded again"):
        await blobs.complete_parts(NAME, session, older)
    await blobs.complete_parts(NAME, session, [older[0], again])
    assert await read(blobs, NAME) == b"first, last"
