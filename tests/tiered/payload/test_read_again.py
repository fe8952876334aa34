"""A payload is read once: a call that fails leaves it as it was, or the next one is refused. Never is less stored."""

from __future__ import annotations

import gzip
import inspect
import io
import os
import re
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import anyio
import pytest

import tiered
from tests.given.repository import ROOT
from tiered import AtCapacityError, InvalidRequestError, ObjectId, PutRequest, Settings, TieredError, UnavailableError
from tiered.sync.multipart import SyncMultipartUpload, SyncResumableUpload
from tiered.sync.storage import SyncTieredStorage
from tiered.testing import BlockingMemoryStorage, MemoryStorage, blocking_memory_storage, memory_storage

pytestmark = pytest.mark.anyio
OBJECT = ObjectId.create("files", "key")
CONTENT = b"content that is small" * 3
ONE_SLOT = Settings(directory="unused", store={"concurrency_max": 1, "queue_max": 0})

# --- every call that takes a payload, and every kind of payload --------------------------------------


async def put(storage: MemoryStorage, payload: Any) -> None:
    await storage.put(OBJECT, payload)


async def put_many(storage: MemoryStorage, payload: Any) -> None:
    async with storage.put_many([PutRequest(OBJECT, payload)]) as results:
        [result.value async for result in results]


async def upload_part(storage: MemoryStorage, payload: Any) -> None:
    upload = await storage.begin_multipart(OBJECT)
    await tried(storage, partial(upload.upload_part, 1, payload))
    await upload.complete()


async def append(storage: MemoryStorage, payload: Any) -> None:
    upload = await storage.begin_resumable(OBJECT)
    await tried(storage, partial(upload.append, 0, payload, final=True))
    await upload.finish()


CALLS: dict[str, Callable[[MemoryStorage, Any], Awaitable[None]]] = {
    "put": put, "put_many": put_many, "upload_part": upload_part, "append": append,
}  # fmt: skip


def put_blocking(storage: BlockingMemoryStorage, payload: Any) -> None:
    storage.put(OBJECT, payload)


def put_many_blocking(storage: BlockingMemoryStorage, payload: Any) -> None:
    with storage.put_many([PutRequest(OBJECT, payload)]) as results:
        [result.value for result in results]


def upload_part_blocking(storage: BlockingMemoryStorage, payload: Any) -> None:
    upload = storage.begin_multipart(OBJECT)
    upload.upload_part(1, payload)
    upload.complete()


def append_blocking(storage: BlockingMemoryStorage, payload: Any) -> None:
    upload = storage.begin_resumable(OBJECT)
    upload.append(0, payload, final=True)
    upload.finish()


BLOCKING: dict[str, Callable[[BlockingMemoryStorage, Any], None]] = {
    "put": put_blocking, "put_many": put_many_blocking, "upload_part": upload_part_blocking, "append": append_blocking,
}  # fmt: skip


@pytest.mark.parametrize(("calls", "kinds"), [
    (CALLS, (tiered.TieredStorage, tiered.MultipartUpload, tiered.ResumableUpload)),
    (BLOCKING, (SyncTieredStorage, SyncMultipartUpload, SyncResumableUpload)),
], ids=["async", "blocking"])  # fmt: skip
def test_every_call_that_takes_a_payload_is_in_the_table(calls: dict[str, Any], kinds: tuple[type, ...]) -> None:
    methods = [(name, method) for kind in kinds for name, method in vars(kind).items() if inspect.isfunction(method) and name[0] != "_"]
    assert {name for name, method in methods if "payload" in inspect.signature(method).parameters} | {"put_many"} == set(calls)


def test_no_other_code_reads_a_payload() -> None:
    """Links, directories, imports and the file system pass theirs on to these calls."""
    readers = [file for file in (ROOT / "tiered").rglob("*.py") if re.search(r"payload\.streams import .*\bchunks\b", file.read_text())]
    assert sorted(str(file.relative_to(ROOT)) for file in readers) == ["tiered/storage.py", "tiered/sync/callers_thread.py"]


class Own:
    """A caller's own kind of file, which tells nothing. `tells`: it tells where it is."""

    def __init__(self, content: bytes) -> None:
        self._file = io.BytesIO(content)

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)


class Telling(Own):
    def tell(self) -> int:
        return self._file.tell()

    def seek(self, position: int) -> None:
        self._file.seek(position)


def generator(content: bytes) -> Iterator[bytes]:
    yield content[:10]
    yield content[10:]


async def async_generator(content: bytes) -> AsyncIterator[bytes]:
    yield content[:10]
    yield content[10:]


def spooled(content: bytes) -> Any:
    file = tempfile.SpooledTemporaryFile()  # noqa: SIM115 - it is in memory
    file.write(content)
    file.seek(0)
    return file


def in_memory_after_a_header(content: bytes) -> BinaryIO:
    file = io.BytesIO(b"header" + content)
    file.seek(6)
    return file


def on_disk(content: bytes) -> Path:
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(content)
    return Path(file.name)


def plain(content: bytes) -> Any:
    file = on_disk(b"header" + content).open("rb")
    assert file.read(6) == b"header"
    os.unlink(file.name)
    return file


def compressed(content: bytes) -> Any:
    return gzip.open(io.BytesIO(gzip.compress(content)))


def pipe(content: bytes) -> BinaryIO:
    reading, writing = os.pipe()

    def send() -> None:
        with suppress(BrokenPipeError), os.fdopen(writing, "wb") as sender:
            sender.write(content)

    threading.Thread(target=send, daemon=True).start()
    return os.fdopen(reading, "rb")


AGAIN: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes, "list": lambda content: [content[:10], content[10:]], "in memory": in_memory_after_a_header, "plain": plain,
    "spooled": spooled, "path": on_disk,
}  # fmt: skip
"""What gives the same bytes to the next call."""

REFUSED: dict[str, Callable[[bytes], Any]] = {
    "compressed": compressed, "own": Own, "telling": Telling, "pipe": pipe, "generator": generator, "async generator": async_generator,
}  # fmt: skip
"""What cannot, so the next call is refused."""

KINDS: dict[str, Callable[[bytes], Any]] = {**AGAIN, **REFUSED}


@pytest.fixture
def made() -> Iterator[Callable[..., Any]]:
    """Makes a payload of a kind, and closes it if it is a file."""
    payloads = []

    def make(kind: str, content: bytes = CONTENT) -> Any:
        payloads.append(KINDS[kind](content))
        return payloads[-1]

    yield make
    for payload in payloads:
        if hasattr(payload, "read") and hasattr(payload, "close"):
            payload.close()
        elif isinstance(payload, Path):
            payload.unlink()


async def tried(storage: MemoryStorage, call: Callable[[], Awaitable[Any]]) -> None:
    """Where an upload is begun first: the fault is meant for the call, and not for the beginning."""
    await call()


async def stored(storage: MemoryStorage) -> bytes | None:
    found = await storage.get(OBJECT)
    return None if found is None else await found.read()


async def unavailable(*_: object, **__: object) -> Any:
    raise UnavailableError("nothing happened; try again")


# --- what becomes of it ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", ["put", "upload_part", "append"])
async def test_a_call_that_is_not_admitted_reads_nothing(call: str, kind: str, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """upload_part read the file before it asked for a slot, so the retry stored an empty part."""
    payload = made(kind)
    async with memory_storage(ONE_SLOT) as storage:
        full = True

        async def once_in_vain(storage: MemoryStorage, attempt: Callable[[], Awaitable[Any]]) -> None:
            nonlocal full
            slot = storage._writes.try_enter()
            assert slot is not None
            with pytest.raises(AtCapacityError) as refused:
                await attempt()
            assert not hasattr(refused.value, "__notes__")
            slot.release()
            full = False
            await attempt()

        if call == "put":
            await once_in_vain(storage, partial(put, storage, payload))
        else:
            monkeypatch.setitem(globals(), "tried", once_in_vain)
            await CALLS[call](storage, payload)
        assert not full and await stored(storage) == CONTENT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", CALLS)
async def test_after_a_call_that_failed_all_is_stored_or_nothing(call: str, kind: str, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator that has ended, and what was left of a file, were stored instead."""
    payload = made(kind)
    async with memory_storage(ONE_SLOT) as storage:
        with monkeypatch.context() as patch:
            patch.setattr(storage._writer, "put_small", unavailable)
            patch.setattr(storage._assembler, "put_part", unavailable)
            patch.setattr(storage._assembler, "append", unavailable)
            with pytest.raises(UnavailableError) as failed:
                await CALLS[call](storage, payload)
        if kind in AGAIN:
            assert not hasattr(failed.value, "__notes__")
            await CALLS[call](storage, payload)
            assert await stored(storage) == CONTENT
            return
        assert failed.value.__notes__ == [f"{len(CONTENT)} bytes of the payload were read in vain: make it anew before you try again"]
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match=r"has ended, so it gives nothing|was read by a call that failed"):
                await CALLS[call](storage, payload)
        assert await stored(storage) is None
        if kind in ("telling", "compressed"):
            payload.seek(0)
            await CALLS[call](storage, payload)
            assert await stored(storage) == CONTENT


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "async generator"])
@pytest.mark.parametrize("call", BLOCKING)
def test_after_a_blocking_call_that_failed_all_is_stored_or_nothing(
    call: str, kind: str, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = made(kind)
    with blocking_memory_storage() as storage:
        with monkeypatch.context() as patch:
            patch.setattr(storage._storage._writer, "put_small", unavailable)
            patch.setattr(storage._storage._assembler, "put_part", unavailable)
            patch.setattr(storage._storage._assembler, "append", unavailable)
            with pytest.raises(UnavailableError):
                BLOCKING[call](storage, payload)
        if kind in AGAIN:
            BLOCKING[call](storage, payload)
            found = storage.get(OBJECT)
            assert found is not None and found.read() == CONTENT
        else:
            with pytest.raises(InvalidRequestError, match=r"has ended, so it gives nothing|was read by a call that failed"):
                BLOCKING[call](storage, payload)
            assert storage.head(OBJECT) is None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_put_that_ends_half_way_is_put_again_whole(kind: str, made: Any) -> None:
    """Nothing said that the second put had begun in the middle."""
    content = os.urandom(3 << 20)
    payload = made(kind, content)

    def progress(so_far: int, total: int | None) -> None:
        if so_far > 1 << 20:
            raise UnavailableError("the caller's own")

    async with memory_storage() as storage:
        with pytest.raises(UnavailableError, match="the caller's own"):
            await storage.put(OBJECT, payload, progress=progress)
        try:
            await storage.put(OBJECT, payload)
        except InvalidRequestError:
            assert kind in REFUSED and await stored(storage) is None
        else:
            assert kind in AGAIN and await stored(storage) == content


@pytest.mark.parametrize("kind", ["own", "telling"])
async def test_a_put_that_is_cancelled_in_a_read_is_not_put_again_from_there(kind: str, made: Any) -> None:
    """What the read that was given up has taken is lost."""
    payload = made(kind)
    read = payload.read
    hold, has_read = threading.Event(), threading.Event()

    def slow(size: int = -1) -> bytes:
        hold.wait(10)
        taken: bytes = read(size)
        has_read.set()
        return taken

    payload.read = slow
    async with memory_storage() as storage:
        with anyio.move_on_after(0.1) as scope:
            await storage.put(OBJECT, payload)
        assert scope.cancelled_caught
        hold.set()
        assert await anyio.to_thread.run_sync(has_read.wait, 10)
        payload.read = read
        with pytest.raises(InvalidRequestError, match="was read by a call that failed"):
            await storage.put(OBJECT, payload)


async def test_the_last_append_may_have_a_file_with_nothing_left() -> None:
    whole = os.urandom(5 << 20)
    async with memory_storage() as storage:
        upload = await storage.begin_resumable(OBJECT)
        file = io.BytesIO(whole)
        assert await upload.append(0, file, part_bytes=5 << 20) == len(whole) == file.tell()
        assert await upload.append(len(whole), file, final=True) == len(whole)
        await upload.finish()
        assert await stored(storage) == whole


async def test_an_append_after_one_that_kept_less_than_it_read_is_refused() -> None:
    async with memory_storage() as storage:
        upload = await storage.begin_resumable(OBJECT)
        file = io.BytesIO(b"less than a piece")
        assert await upload.append(0, file) == 0
        with pytest.raises(InvalidRequestError, match="is at its end"):
            await upload.append(0, file, final=True)
        file.seek(0)
        await upload.append(0, file, final=True)
        await upload.finish()
        assert await stored(storage) == b"less than a piece"


async def test_many_parts_at_once_with_the_documented_retry_lose_nothing(tmp_path: Path) -> None:
    """Eight of them stored 400,000 of 800,000 bytes, and nobody was told."""
    settings = Settings(directory="unused", store={"concurrency_max": 2, "queue_max": 1})
    parts = {number: os.urandom(100_000) for number in range(1, 9)}
    async with memory_storage(settings) as storage:
        upload = await storage.begin_multipart(OBJECT)

        async def send(number: int) -> None:
            (tmp_path / str(number)).write_bytes(parts[number])
            with (tmp_path / str(number)).open("rb") as file:
                while True:
                    try:
                        await upload.upload_part(number, file)
                        return
                    except AtCapacityError as error:
                        await anyio.sleep(min(error.retry_after_s or 0.01, 0.01))

        async with anyio.create_task_group() as tasks:
            for number in parts:
                tasks.start_soon(send, number)
        await upload.complete()
        assert await stored(storage) == b"".join(parts.values())


async def test_an_error_of_the_payloads_own_gets_no_note() -> None:
    class Bad(Exception):
        pass

    async def broken() -> AsyncIterator[bytes]:
        yield b"some"
        raise Bad

    async with memory_storage() as storage:
        with pytest.raises(Bad) as raised:
            await storage.put(OBJECT, broken())
        assert not isinstance(raised.value, TieredError) and not hasattr(raised.value, "__notes__")
