"""What callers really pass, put into a store on a disk: the error is the documented one, and nothing is left behind."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import from_thread
from anyio.lowlevel import current_token

from tests.given.embedded_store import embedded, files
from tiered import InvalidRequestError, ObjectId, ObjectPrefix, TieredStorage, open_storage

pytestmark = pytest.mark.anyio

OBJECT = ObjectId.create("attachments", "key", {"org": "17"})
OTHER = ObjectId.create("attachments", "other")
LARGE = b"large" * 500_000
BEFORE = b"what was there"


class OwnPayloadError(Exception):
    pass


async def read(storage: TieredStorage, object_id: ObjectId = OBJECT) -> bytes | None:
    stored = await storage.get(object_id)
    return None if stored is None else await stored.read()


def open_files(directory: Path) -> list[Path]:
    links = [Path("/proc/self/fd", each) for each in os.listdir("/proc/self/fd")]
    found = [Path(os.readlink(link)) for link in links if link.is_symlink()]
    return [path for path in found if path.is_relative_to(directory)]


def parts(*found: Any) -> Iterator[Any]:
    for part in found:
        if isinstance(part, Exception):
            raise part
        yield part


async def async_parts(*found: Any) -> AsyncIterator[Any]:
    for part in found:
        if isinstance(part, Exception):
            raise part
        yield part


class ClosesBadly:
    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            yield LARGE
            yield "text"
        finally:
            raise OwnPayloadError


def closes_badly() -> Iterator[Any]:
    try:
        yield LARGE
        yield "text"
    finally:
        raise OwnPayloadError


REFUSED: dict[str, tuple[Callable[[Path], Any], type[BaseException], str]] = {
    "a directory": (lambda path: path, InvalidRequestError, "cannot be read: Is a directory"),
    "a dict": (lambda path: {b"a": b"b"}, InvalidRequestError, "type dict"),
    "text": (lambda path: parts(LARGE, "text"), InvalidRequestError, "type str"),
    "raises": (lambda path: parts(LARGE, OwnPayloadError()), OwnPayloadError, ""),
    "raises, async": (lambda path: async_parts(LARGE, OwnPayloadError()), OwnPayloadError, ""),
    "closes badly": (lambda path: closes_badly(), OwnPayloadError, ""),
    "closes badly, async": (lambda path: ClosesBadly(), OwnPayloadError, ""),
    "stops oddly": (lambda path: parts(LARGE, StopAsyncIteration()), RuntimeError, "StopAsyncIteration"),
}
"""Of each way in which a put may end. Which payloads are refused with which words is in `payload/test_streams.py`."""


@pytest.mark.parametrize("what", REFUSED)
async def test_a_payload_that_cannot_be_stored_leaves_what_was_there(tmp_path: Path, what: str) -> None:
    make, kind, words = REFUSED[what]
    async with open_storage(embedded(tmp_path / "store")) as storage:
        await storage.put(OBJECT, BEFORE)
        with pytest.raises(kind, match=words or None):
            await storage.put(OBJECT, make(tmp_path))
        assert await read(storage) == BEFORE
    assert files(tmp_path / "store") == []


@pytest.mark.parametrize("payload", [BEFORE, LARGE])
@pytest.mark.parametrize("to", [OBJECT, OTHER])
async def test_a_copy_is_one_line(tmp_path: Path, payload: bytes, to: ObjectId) -> None:
    async with open_storage(embedded(tmp_path)) as storage:
        await storage.put(OBJECT, payload)
        for _ in range(3):
            await storage.put(to, await storage.get(OBJECT))  # type: ignore[arg-type]
        assert await read(storage, to) == payload
    assert open_files(tmp_path / "blobs") == []
    assert len(files(tmp_path)) == (payload == LARGE) * (1 if to == OBJECT else 2)


async def test_an_endless_device_can_be_cancelled_and_nothing_is_left(tmp_path: Path) -> None:
    async with open_storage(embedded(tmp_path)) as storage:
        with anyio.move_on_after(0.2) as scope:
            await storage.put(OBJECT, Path("/dev/zero"))
        assert scope.cancelled_caught
        assert await read(storage) is None
    assert files(tmp_path) == []


async def test_stalled_pipes_keep_nobody_from_anything_and_can_be_cancelled(tmp_path: Path) -> None:
    """Sixty of them, more than anyio's shared threads; half of them are paths that nobody writes to.

    A second store opens meanwhile.
    """
    pipes = [os.pipe() for _ in range(30)]
    stalled: list[Any] = [os.fdopen(reading, "rb") for reading, _ in pipes]
    for number in range(30):
        os.mkfifo(tmp_path / f"pipe{number}")
        stalled.append(tmp_path / f"pipe{number}")
    (tmp_path / "file").write_bytes(LARGE)
    async with open_storage(embedded(tmp_path / "store")) as storage, anyio.create_task_group() as tasks:
        for number, pipe in enumerate(stalled):
            tasks.start_soon(storage.put, ObjectId.create("stalled", str(number)), pipe)
        await anyio.sleep(0.2)
        with anyio.fail_after(60):
            await storage.put(OBJECT, tmp_path / "file")
            await storage.put(OTHER, parts(b"from a thread ", b"of its own"))
            async with open_storage(embedded(tmp_path / "store")) as second:
                assert await read(second) == LARGE
                assert await read(second, OTHER) == b"from a thread of its own"
            tasks.cancel_scope.cancel()
    with anyio.fail_after(60):
        async with open_storage(embedded(tmp_path / "store")) as storage:
            assert [str(entry.object_id) async for entry in storage.list(ObjectPrefix.create("stalled"))] == []
    for (_, writing), file in zip(pipes, stalled, strict=False):
        os.close(writing)
        file.close()


async def test_a_payload_may_use_the_store(tmp_path: Path) -> None:
    async with open_storage(embedded(tmp_path)) as storage:
        token = current_token()

        def inner() -> Iterator[bytes]:
            yield LARGE
            from_thread.run(storage.put, OTHER, b"from within", token=token)
            yield b"end"

        async def async_inner() -> AsyncIterator[bytes]:
            yield LARGE
            await storage.put(OTHER, b"from within, async")
            yield b"end"

        await storage.put(OBJECT, inner())
        assert await read(storage) == LARGE + b"end" and await read(storage, OTHER) == b"from within"
        await storage.put(OBJECT, async_inner())
        assert await read(storage) == LARGE + b"end" and await read(storage, OTHER) == b"from within, async"


@pytest.mark.slow
async def test_a_buffer_that_changes_while_it_is_stored_can_be_read(tmp_path: Path) -> None:
    """What was summed up is what was written, whatever of the change got into it."""
    buffer, stop = bytearray(6_000_000), threading.Event()

    def change() -> None:
        value = 0
        while not stop.is_set():
            value = (value + 1) % 256
            buffer[:] = bytes([value]) * len(buffer)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        async with open_storage(embedded(tmp_path)) as storage:
            await storage.put(OBJECT, buffer)
            await storage.put(OTHER, memoryview(buffer).toreadonly())
            assert len(await read(storage) or b"") == len(await read(storage, OTHER) or b"") == len(buffer)
    finally:
        stop.set()
        thread.join()
