"""Where objects are saved: paths, open files, pipes, files of the caller's own; what is refused, and what is left."""

from __future__ import annotations

import errno
import gzip
import io
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.given.small_disk import disk, mount
from tiered import CorruptRecordError, InvalidRequestError, ObjectId, StoredObject, TieredStorage
from tiered.payload import destinations
from tiered.testing import memory_storage

__all__ = ["disk", "mount"]

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
OBJECT = ObjectId.create("notes", "large")
PAYLOAD = os.urandom(5 * MIB + 7)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def storage(anyio_backend: str) -> AsyncIterator[TieredStorage]:
    async with memory_storage() as storage:
        await storage.put(OBJECT, PAYLOAD)
        yield storage


async def opened(storage: TieredStorage, **options: Any) -> StoredObject:
    stored = await storage.get(OBJECT, **options)
    assert stored is not None
    return stored


def left_beside(file: Path) -> list[str]:
    return sorted(path.name for path in file.parent.iterdir())


async def test_a_path_keeps_its_mode_and_a_new_file_has_that_of_any_other(storage: TieredStorage, tmp_path: Path) -> None:
    (kept := tmp_path / "kept").write_bytes(b"x" * 20 * MIB)
    kept.chmod(0o640)
    (link := tmp_path / "link").symlink_to("kept")
    (usual := tmp_path / "usual").touch()
    for file in (link, tmp_path / "new"):
        await (await opened(storage)).save(file)
    assert link.is_symlink() and kept.read_bytes() == PAYLOAD and kept.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "new").stat().st_mode == usual.stat().st_mode


@pytest.mark.parametrize("how", ["wb", "r+b", "raw", "temporary"])
async def test_an_open_file_is_written_from_its_position_on(storage: TieredStorage, tmp_path: Path, how: str) -> None:
    (path := tmp_path / "file").write_bytes(b"0123456789")
    with tempfile.NamedTemporaryFile(dir=tmp_path) if how == "temporary" else (
        path.open("r+b" if how == "raw" else how, buffering=0 if how == "raw" else -1)
    ) as file:
        file.write(b"abc")
        await (await opened(storage)).save(file)  # type: ignore[arg-type]
        assert file.tell() == 3 + len(PAYLOAD)
        file.write(b"end")
        file.flush()
        assert Path(file.name).read_bytes() == b"abc" + PAYLOAD + b"end"


async def test_what_is_decompressed_has_no_length_before_its_end_and_is_saved_whole(storage: TieredStorage, tmp_path: Path) -> None:
    payload = bytes(range(256)) * 3000
    (path := tmp_path / "file").write_bytes(b"longer" * len(payload))
    for content in (b"", payload):
        await storage.put(OBJECT, content, compress="zstd")
        await (await opened(storage)).save(path)
        assert path.read_bytes() == content
        with path.open("r+b") as file:
            file.seek(3)
            await (await opened(storage)).save(file)
            assert file.tell() == 3 + len(content)
        assert path.read_bytes() == content[:3] + content
        path.write_bytes(b"as it was")
        stored = await opened(storage, decompress=False)
        await storage.put(OBJECT, (await stored.read())[:-1], stored.metadata.with_facts(size=None))
        with pytest.raises(CorruptRecordError, match="middle of a frame"):
            await (await opened(storage)).save(path)
        assert path.read_bytes() == b"as it was" and left_beside(path) == ["file"]


@pytest.mark.parametrize("how", ["append", "gzip", "bytesio", "pipe", "own"])
async def test_a_file_that_takes_no_bytes_in_any_order_gets_them_one_after_another(
    storage: TieredStorage, tmp_path: Path, how: str
) -> None:
    (path := tmp_path / "file").write_bytes(b"before")
    stored = await opened(storage)
    match how:
        case "append":
            with path.open("ab") as file:
                await stored.save(file)
            written = path.read_bytes().removeprefix(b"before")
        case "gzip":
            with gzip.open(path, "wb", compresslevel=1) as zipped:
                await stored.save(zipped)  # type: ignore[arg-type]
            written = gzip.decompress(path.read_bytes())
        case "bytesio":
            await stored.save(held := io.BytesIO())
            written = held.getvalue()
        case "own":
            written = await _own(stored)
        case _:
            os.mkfifo(fifo := tmp_path / "fifo")
            read: list[bytes] = []

            async def drain() -> None:
                read.append(await anyio.to_thread.run_sync(fifo.read_bytes))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(drain)
                await stored.save(fifo)
            written = b"".join(read)
    assert written == PAYLOAD


async def _own(stored: StoredObject) -> bytes:
    class Collector:
        def __init__(self) -> None:
            self.parts: list[bytes] = []

        def write(self, part: bytes) -> None:
            self.parts.append(part)

    await stored.save(collected := Collector())  # type: ignore[arg-type]
    return b"".join(collected.parts)


@pytest.mark.parametrize("what", ["closed", "read only", "text", "a directory", "in no directory"])
async def test_a_file_that_cannot_be_written_is_refused(storage: TieredStorage, tmp_path: Path, what: str) -> None:
    (path := tmp_path / "file").write_bytes(b"before")
    stored = await opened(storage)
    file: Any = tmp_path if what == "a directory" else tmp_path / "no" / "file" if what == "in no directory" else (
        path.open("rb") if what == "read only" else path.open("r+") if what == "text" else path.open("r+b")
    )
    if what == "closed":
        file.close()
    with pytest.raises((InvalidRequestError, OSError)) as refused:
        await stored.save(file)
    assert isinstance(refused.value, OSError) == isinstance(file, Path)
    assert not isinstance(refused.value, OSError) or refused.value.filename == str(file), "it names what was passed"
    if not isinstance(file, Path):
        file.close()
    assert path.read_bytes() == b"before" and left_beside(path) == ["file"]


async def test_a_full_disk_leaves_the_file_as_it_was(storage: TieredStorage, disk: Path) -> None:
    (file := disk / "saved").write_bytes(b"before")
    with pytest.raises(OSError, match="No space left") as full:
        await (await opened(storage)).save(file)
    assert full.value.errno == errno.ENOSPC
    assert file.read_bytes() == b"before" and left_beside(file) == ["saved"]


async def test_a_left_over_partial_file_of_the_same_name_is_left_alone(
    storage: TieredStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = next(destinations._partials)
    (left := tmp_path / f".tiered-{os.getpid()}-{number + 1}.partial").write_bytes(b"of a process that was killed")
    await (await opened(storage)).save(tmp_path / "saved")
    assert left.read_bytes() == b"of a process that was killed" and (tmp_path / "saved").read_bytes() == PAYLOAD


async def test_a_save_to_a_pipe_that_nobody_reads_can_be_cancelled(storage: TieredStorage, tmp_path: Path) -> None:
    os.mkfifo(fifo := tmp_path / "fifo")
    with anyio.move_on_after(0.2) as scope:
        await (await opened(storage)).save(fifo)
    assert scope.cancelled_caught
    os.close(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))  # lets the thread go that was given up


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), OSError(errno.ENOSPC, "full")])
async def test_what_a_file_of_the_callers_raises_reaches_the_caller(storage: TieredStorage, error: Exception) -> None:
    class Failing:
        def write(self, chunk: bytes) -> None:
            raise error

    with pytest.raises(type(error)) as raised:
        await (await opened(storage)).save(Failing())  # type: ignore[arg-type]
    assert raised.value is error
    with pytest.raises(InvalidRequestError, match="already read or closed"):
        await (await _closed(storage)).save(bytearray(len(PAYLOAD)))


async def _closed(storage: TieredStorage) -> StoredObject:
    stored = await opened(storage)
    await stored.aclose()
    return stored


async def test_a_raw_file_that_takes_a_part_of_what_it_is_given_gets_the_rest(storage: TieredStorage) -> None:
    class Sips(io.RawIOBase):
        taken = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, chunk: Any, /) -> int:
            part = bytes(chunk[:100_003])
            self.taken.extend(part)
            return len(part)

    await (await opened(storage)).save(sips := Sips())  # type: ignore[arg-type]
    assert sips.taken == PAYLOAD
