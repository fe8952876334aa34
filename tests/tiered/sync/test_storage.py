"""The blocking API: what callers see of it, where their code runs, and how it ends."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

import tiered.sync
from tests.given.repository import ROOT
from tiered import (
    ByteRange,
    InvalidRequestError,
    Metadata,
    ObjectId,
    ObjectPrefix,
    OutcomeUnknownError,
    Progress,
    PutRequest,
    Settings,
    Tier,
)
from tiered.settings import StoreSettings
from tiered.sync.callers_thread import CallersThread
from tiered.sync.loop import HeldContext

LARGE = bytes(range(256)) * 1000
OBJECT = ObjectId.create("notes", "key")
FORKING = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")


def named(number: int) -> ObjectId:
    return ObjectId.create("notes", f"{number:04}")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(directory=tmp_path / "store", inline_bytes_max=1000)


@pytest.fixture
def storage(settings: Settings) -> Iterator[tiered.sync.SyncTieredStorage]:
    with tiered.sync.open_storage(settings) as opened:
        yield opened


def got(
    storage: tiered.sync.SyncTieredStorage, object_id: ObjectId = OBJECT, range: ByteRange | None = None, progress: Progress | None = None
) -> tiered.sync.SyncStoredObject:
    stored = storage.get(object_id, range, progress=progress)
    assert stored is not None
    return stored


# --- operations ------------------------------------------------------------------------------------


def test_every_operation_works_without_an_event_loop(storage: tiered.sync.SyncTieredStorage) -> None:
    assert storage.get(OBJECT) is None and storage.head(OBJECT) is None
    put = storage.put(OBJECT, LARGE, Metadata(content_type="text/plain"))
    head = storage.head(OBJECT)
    assert head is not None and (head.size, head.tier, head.revision) == (len(LARGE), Tier.LONG_TERM, put.revision)
    assert got(storage).read() == LARGE and got(storage, OBJECT, ByteRange(-7)).read() == LARGE[-7:]
    assert [entry.object_id for entry in storage.list(ObjectPrefix.create("notes"))] == [OBJECT]
    assert storage.list_page(limit=1).objects[0].revision == put.revision and storage.services_away == {}
    assert storage.outcome(OutcomeUnknownError(OBJECT, put.revision)).name == "TOOK_EFFECT"
    changed = storage.update_metadata(OBJECT, lambda metadata: replace(metadata, content_type="text/html"))
    again = storage.head(OBJECT)
    assert changed is not None and again is not None and changed.revision == again.revision != put.revision
    assert storage.update_metadata(named(9), lambda metadata: metadata) is None
    storage.delete(OBJECT)
    assert list(storage.list()) == [] and storage.dangling_found == 0 and storage.close() == []


def test_errors_are_those_of_the_asynchronous_api(storage: tiered.sync.SyncTieredStorage) -> None:
    storage.put(OBJECT, b"small")
    with pytest.raises(InvalidRequestError, match="pass an ObjectId"):
        storage.put("notes/objects/key", b"")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="begins after"):
        storage.get(OBJECT, ByteRange(99))
    with pytest.raises(InvalidRequestError, match="is ambiguous"):
        storage.put(OBJECT, "text")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="not one str"):
        storage.delete_many("notes")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="concurrency is 0"):
        storage.delete_many([], concurrency=0)
    with pytest.raises(InvalidRequestError, match="a prefix is"):
        next(storage.list(7))  # type: ignore[call-overload]


def test_bulk_calls_give_each_request_its_own_result(storage: tiered.sync.SyncTieredStorage) -> None:
    me = threading.current_thread()

    def chunks(number: int) -> Iterator[bytes]:
        assert threading.current_thread() is me
        yield b"%d" % number
        yield LARGE

    def requests() -> Iterator[PutRequest]:
        assert threading.current_thread() is me
        for number in range(30):
            yield PutRequest(named(number), chunks(number) if number % 2 else b"small")

    with storage.put_many(requests(), concurrency=3) as stored:
        with pytest.raises(InvalidRequestError, match="a bulk call is entered once"):
            stored.__enter__()
        seen = {result.position: result.value.size for result in stored}
    assert seen == {number: len(LARGE) + len(str(number)) if number % 2 else 5 for number in range(30)}
    with pytest.raises(InvalidRequestError, match="a bulk call is entered once"), stored:
        pass
    with storage.get_many([named(number) for number in range(31)]) as read:
        found = {result.request: result.value for result in read}
    assert found[named(30)] is None and all(found[named(number)] is not None for number in range(30))
    with storage.head_many([named(number) for number in range(31)]) as looked:
        heads = {result.request: result.value for result in looked}
    assert heads == {object_id: storage.head(object_id) for object_id in found}
    with storage.delete_many(entry.object_id for entry in storage.list()) as deleted:
        assert [result.error for result in deleted] == [None] * 30
    assert list(storage.list()) == []


@pytest.mark.parametrize("payload", [b"small", LARGE], ids=["small", "large"])
def test_what_is_compressed_is_read_as_a_file_whole_and_in_pieces(storage: tiered.sync.SyncTieredStorage, payload: bytes) -> None:
    told: list[tuple[int, int | None]] = []
    size = storage.put(OBJECT, iter([payload, payload]), compress="zstd").size
    with storage.open(named(1), "wb", compress="zstd") as file:
        file.write(payload + payload)
    for object_id in (OBJECT, named(1)):
        for read in (_whole, b"".join, _in_pieces):
            stored = storage.get(object_id, progress=lambda so_far, total: told.append((so_far, total)))
            assert stored is not None and (stored.decompressed, stored.length, stored.metadata.compression) == (True, None, None)
            assert read(stored) == payload + payload and told[-1] == (2 * len(payload), None)
        raw = storage.get(object_id, decompress=False)
        assert raw is not None and (raw.decompressed, raw.metadata.compression) == (False, "Zstd")
        assert (raw.length, len(raw.read())) == (raw.size, raw.size)
    stored = storage.get(OBJECT)
    assert stored is not None and stored.size == size
    storage.put(named(2), stored, stored.metadata)
    copied = storage.get(named(2))
    assert copied is not None and (copied.decompressed, copied.read()) == (False, payload + payload)


def _whole(stored: tiered.sync.SyncStoredObject) -> bytes:
    return stored.read()


def _in_pieces(stored: tiered.sync.SyncStoredObject) -> bytes:
    return b"".join(iter(lambda: stored.read(7000), b""))


@pytest.mark.parametrize("payload", [b"small", LARGE], ids=["small", "large"])
def test_checksums_are_compared_and_what_is_known_at_the_end_is_told_by_the_callers_thread(
    storage: tiered.sync.SyncTieredStorage, payload: bytes
) -> None:
    checksums = {"sha256": hashlib.sha256(payload).hexdigest()}
    asked: list[int] = []

    def at_end() -> dict[str, str]:
        asked.append(threading.get_ident())
        return {"told": "at the end"}

    async def later() -> dict[str, str]:
        return {}

    storage.put(OBJECT, iter([payload]), checksums=checksums, custom_at_end=at_end)
    head = storage.head(OBJECT, checksum=True)
    assert head is not None and head.metadata.custom == {"told": "at the end"}
    with storage.put_many([PutRequest(named(1), payload, checksums=checksums, custom_at_end=at_end)]) as results:
        assert [result.error for result in results] == [None]
    assert asked == [threading.get_ident()] * 2
    for wrong in ({"checksums": {"sha256": "0" * 64}}, {"custom_at_end": later}, {"custom_at_end": 5}, {"custom_at_end": lambda: 5}):
        with pytest.raises(InvalidRequestError, match=r"the sha256|async function|is a function|must return"):
            storage.put(named(2), payload, **wrong)
    assert storage.head(named(2)) is None


# --- an object that is written ---------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"", b"small", LARGE], ids=["empty", "small", "large"])
def test_what_is_written_in_the_block_is_stored_at_its_end(storage: tiered.sync.SyncTieredStorage, payload: bytes) -> None:
    asked: list[int] = []

    def at_end() -> dict[str, str]:
        asked.append(threading.get_ident())
        return {"told": "at the end"}

    with storage.open(OBJECT, "wb", Metadata(content_type="text/plain"), custom_at_end=at_end) as file:
        for start in range(0, len(payload), 100_000):
            assert file.write(memoryview(payload)[start : start + 100_000]) == len(payload[start : start + 100_000])
        assert storage.head(OBJECT) is None
        with pytest.raises(InvalidRequestError, match="was not stored by this"):
            _ = file.result
    head = storage.head(OBJECT)
    assert head is not None and (head.revision, head.metadata.custom) == (file.result.revision, {"told": "at the end"})
    assert got(storage).read() == payload and asked == [threading.get_ident()]
    for use in (lambda: file.write(b"more"), file.__enter__):
        with pytest.raises(InvalidRequestError, match=r"was closed|entered once"):
            use()


@pytest.mark.parametrize("payload", [b"", b"small", LARGE], ids=["empty", "small", "large"])
def test_a_block_that_fails_stores_nothing(storage: tiered.sync.SyncTieredStorage, payload: bytes) -> None:
    storage.put(OBJECT, b"before")
    with pytest.raises(ZeroDivisionError), storage.open(OBJECT, "wb") as file:  # noqa: PT012 - it is the block that raises
        file.write(payload)
        raise ZeroDivisionError
    with pytest.raises(InvalidRequestError, match="the md5"), storage.open(OBJECT, "wb", checksums={"md5": "0" * 32}) as file:
        file.write(payload)
    assert got(storage).read() == b"before"


def test_what_is_wrong_with_an_opening_is_said_before_the_block(storage: tiered.sync.SyncTieredStorage) -> None:
    with pytest.raises(InvalidRequestError, match="'rb' is no mode"):
        storage.open(OBJECT, "rb")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="checksums is"), storage.open(OBJECT, "wb", checksums=5):  # type: ignore[arg-type]
        pytest.fail("the block was entered")
    with pytest.raises(InvalidRequestError, match="inside the block only"):
        storage.open(OBJECT, "wb").write(b"x")


def test_libraries_that_write_files_write_objects(storage: tiered.sync.SyncTieredStorage) -> None:
    with storage.open(OBJECT, "wb") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("name", LARGE)
    assert zipfile.ZipFile(io.BytesIO(got(storage).read())).read("name") == LARGE
    with storage.open(OBJECT, "wb") as file, io.TextIOWrapper(file, "utf-8", newline="") as text:
        csv.writer(text).writerows([["ä", number] for number in range(1000)])
    assert got(storage).read().decode().splitlines()[999] == "ä,999"
    with storage.open(OBJECT, "wb") as file, gzip.GzipFile(fileobj=file, mode="wb") as packed:
        shutil.copyfileobj(io.BytesIO(LARGE), packed)
    assert gzip.decompress(got(storage).read()) == LARGE


def test_a_block_that_nobody_leaves_stores_nothing(settings: Settings) -> None:
    """Neither when it is forgotten nor when the interpreter exits."""
    program = """
import sys, threading, tiered.sync
from tiered import ObjectId, Settings
storage = tiered.sync.open_storage(Settings(directory=sys.argv[1])).__enter__()
storage.open(ObjectId.create("notes", "forgotten"), "wb").__enter__().write(b"x" * 300_000)
kept = storage.open(ObjectId.create("notes", "kept"), "wb").__enter__()
kept.write(b"x" * 300_000)
"""
    subprocess.run([sys.executable, "-c", program, str(settings.directory)], check=True, cwd=ROOT, timeout=60)
    with tiered.sync.open_storage(settings) as storage:
        assert list(storage.list()) == []


def test_progress_is_told_in_the_callers_thread_and_ends_what_it_refuses(storage: tiered.sync.SyncTieredStorage) -> None:
    me, told = threading.current_thread(), []

    def progress(so_far: int, total: int | None) -> None:
        assert threading.current_thread() is me
        told.append((so_far, total))

    def stop(so_far: int, total: int | None) -> None:
        raise OSError("the disk of the caller is full")

    async def later(so_far: int, total: int | None) -> None:
        """Nobody awaits it."""

    storage.put(OBJECT, LARGE, progress=progress)
    assert told[-1] == (len(LARGE), len(LARGE))
    told.clear()
    assert got(storage, OBJECT, None, progress).read() == LARGE and told[-1] == (len(LARGE), len(LARGE))
    with storage.put_many([PutRequest(named(1), b"small", progress=progress), PutRequest(named(2), b"small", progress=stop)]) as results:
        assert [type(result.error) for result in results if result.error] == [OSError]
    for wrong, error in ((stop, OSError), (later, InvalidRequestError)):
        with pytest.raises(error):
            storage.put(named(3), LARGE, progress=wrong)
        stored = got(storage, OBJECT, None, wrong)
        with pytest.raises(error):
            stored.read()
        assert stored.closed
    assert storage.head(named(3)) is None and storage.head(named(2)) is None
    for use in (lambda: storage.put(named(3), b"", progress=7), lambda: storage.get(OBJECT, progress=7)):  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="progress is 7"):
            use()


def test_a_bulk_call_tells_of_errors_as_the_asynchronous_one_does(storage: tiered.sync.SyncTieredStorage) -> None:
    def failing() -> Iterator[bytes]:
        yield b"1"
        raise RuntimeError("torn")

    async def asynchronous() -> AsyncIterator[bytes]:
        yield b""

    storage.put(named(9), LARGE)
    with got(storage, named(9)) as begun:
        begun.read(1)
        request = PutRequest(OBJECT, failing())
        with storage.put_many([request, 7, PutRequest(OBJECT, asynchronous()), PutRequest(OBJECT, begun)]) as results:  # type: ignore[list-item]
            told = {result.position: result for result in results}
    assert "is read with await" in str(told[2].error) and "already read" in str(told[3].error)
    assert isinstance(told[0].error, RuntimeError) and told[0].request is request and told[1].request == 7  # type: ignore[comparison-overlap]
    with pytest.raises(InvalidRequestError, match="inside the block only"):
        next(results)
    with pytest.raises(InvalidRequestError, match="entered once"), results:
        pass
    closed = threading.Event()

    def endless() -> Iterator[ObjectId]:
        try:
            yield from map(named, count())
        finally:
            closed.set()

    with storage.delete_many(endless()) as deleted:
        next(deleted)
    assert closed.is_set()


# --- payloads ----------------------------------------------------------------------------------------


def test_an_iterator_is_read_in_the_callers_thread_and_context_and_closed_there(storage: tiered.sync.SyncTieredStorage) -> None:
    variable: ContextVar[str] = ContextVar("variable")
    variable.set("callers")
    seen: list[object] = []

    def chunks() -> Iterator[bytes]:
        try:
            for _ in range(5):
                seen.append((threading.current_thread(), variable.get()))
                yield LARGE
            raise ConnectionError("torn")
        finally:
            seen.append((threading.current_thread(), variable.get()))

    with pytest.raises(ConnectionError, match="torn"):
        storage.put(OBJECT, chunks())
    assert seen == [(threading.current_thread(), "callers")] * 6 and storage.get(OBJECT) is None


def test_files_and_what_is_like_them_are_payloads(storage: tiered.sync.SyncTieredStorage, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "zipped", "wb") as file:
        file.write(LARGE)
    with gzip.open(tmp_path / "zipped") as zipped:
        storage.put(OBJECT, zipped)
    assert got(storage).read() == LARGE
    (tmp_path / "plain").write_bytes(LARGE)
    with open(tmp_path / "plain", "rb") as plain:
        plain.seek(5)
        storage.put(OBJECT, plain)
    assert got(storage).read() == LARGE[5:]
    storage.put(OBJECT, io.BytesIO(b"in memory"))
    assert got(storage).read() == b"in memory"

    async def asynchronous() -> AsyncIterator[bytes]:
        yield b""

    with pytest.raises(InvalidRequestError, match="is read with await"):
        storage.put(OBJECT, asynchronous())  # type: ignore[arg-type]


class ReadOnly:
    """A reader of somebody else's, such as the body of an HTTP response: it tells where it is, and cannot go back."""

    def __init__(self, content: bytes) -> None:
        self._file = io.BytesIO(content)

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def tell(self) -> int:
        return self._file.tell()


@pytest.mark.parametrize("opened", [ReadOnly, lambda content: io.BufferedReader(io.BytesIO(content)), io.BytesIO])
@pytest.mark.parametrize("content", [b"", b"abc"])
def test_what_was_read_before_is_refused(
    storage: tiered.sync.SyncTieredStorage, opened: Callable[[bytes], Any], content: bytes
) -> None:
    file = opened(content)
    assert file.read() == content
    if not content:
        assert storage.put(OBJECT, file).size == 0
        return
    with pytest.raises(InvalidRequestError, match="is at its end, at byte 3: call seek"):
        storage.put(OBJECT, file)
    with storage.put_many([PutRequest(OBJECT, file)]) as results:
        assert ["is at its end" in str(result.error) for result in results] == [True]
    assert storage.head(OBJECT) is None
    with pytest.raises(InvalidRequestError, match="is at its end"):
        storage.begin_resumable(OBJECT).append(0, file)


def test_an_open_object_is_a_file(storage: tiered.sync.SyncTieredStorage) -> None:
    storage.put(OBJECT, LARGE * 4)
    whole = io.BytesIO()
    shutil.copyfileobj(got(storage), whole, 1000)
    assert whole.getvalue() == LARGE * 4
    with got(storage) as stored:
        assert stored.name == OBJECT.path and repr(stored).startswith(f"<SyncStoredObject {OBJECT} of {len(LARGE) * 4} bytes, revision ")
        assert stored.readable() and not stored.seekable() and not stored.writable()
        buffer = bytearray(300_000)
        assert stored.readinto(buffer) == 300_000 and bytes(buffer) == (LARGE * 4)[:300_000]
        assert stored.read(3) == (LARGE * 4)[300_000:300_003]
        assert stored.read() == (LARGE * 4)[300_003:] and stored.read() == stored.read(5) == b""
    assert b"".join(got(storage)) == LARGE * 4
    wrong_calls: list[Callable[[], object]] = [stored.read, lambda: next(stored), stored.peek]
    for wrong in wrong_calls:
        with pytest.raises(InvalidRequestError, match="was closed; get it again"):
            wrong()
    storage.put(OBJECT, b'{"a": [1]}\nsecond\n')
    assert io.TextIOWrapper(got(storage)).readlines() == ['{"a": [1]}\n', "second\n"]
    assert json.load(got(storage, OBJECT, ByteRange(0, 10))) == {"a": [1]}


def test_a_small_object_takes_one_trip_to_the_loop(storage: tiered.sync.SyncTieredStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.put(OBJECT, b"small")
    loop, trips = storage._loop, []

    def noting(name: str) -> Callable[..., object]:
        method = getattr(loop, name)

        def noted(*arguments: object) -> object:
            trips.append(name)
            return method(*arguments)

        return noted

    for name in ("call", "close_soon"):
        monkeypatch.setattr(loop, name, noting(name))
    with got(storage) as stored:
        assert stored.object_id == OBJECT and stored.read(0) == b""
        assert stored.peek() == b"small" and stored.read1(2) == b"sm" and stored.read() == b"all" and stored.read() == b"" == stored.read1()
    assert got(storage, OBJECT, ByteRange(1, 3)).read() == b"ma" and b"".join(got(storage)) == b"small"
    assert trips == ["call"] * 3
    with pytest.raises(InvalidRequestError, match="closed"):
        stored.read()


def test_chunks_of_an_object_in_its_row_are_as_small_as_others(tmp_path: Path) -> None:
    with tiered.sync.open_storage(Settings(directory=tmp_path / "store", inline_bytes_max=1 << 20)) as storage:
        storage.put(OBJECT, LARGE * 3)
        assert [len(chunk) for chunk in got(storage)] == [262144, 262144, 243712]


def test_an_open_object_is_a_payload_unless_it_was_read(storage: tiered.sync.SyncTieredStorage) -> None:
    storage.put(OBJECT, LARGE)
    source = got(storage)
    assert storage.put(named(1), source).size == len(LARGE) and source.closed
    with got(storage) as begun:
        begun.read(1)
        with pytest.raises(InvalidRequestError, match="already read or closed"):
            storage.put(named(1), begun)


def test_an_object_that_nobody_closes_is_closed_when_nobody_refers_to_it(storage: tiered.sync.SyncTieredStorage) -> None:
    storage.put(OBJECT, LARGE)
    stored = got(storage)
    inner = stored._stored
    stored.read(1)
    del stored
    assert inner._blob is not None
    storage.head(OBJECT)
    storage.head(OBJECT)
    assert inner._blob is None


# --- threads, interruptions, ends --------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"small", LARGE])
def test_an_object_is_saved_and_code_of_the_callers_runs_in_its_thread(
    storage: tiered.sync.SyncTieredStorage, tmp_path: Path, payload: bytes
) -> None:
    threads: list[threading.Thread] = []
    told: list[tuple[int, int | None]] = []

    class OwnTarget:
        def write(self, chunk: bytes) -> None:
            threads.append(threading.current_thread())
            written.extend(chunk)

    def progress(so_far: int, total: int | None) -> None:
        threads.append(threading.current_thread())
        told.append((so_far, total))

    storage.put(OBJECT, payload)
    written = bytearray()
    for destination in (tmp_path / "saved", bytearray(len(payload)), OwnTarget()):
        stored = storage.get(OBJECT, progress=progress)
        assert stored is not None
        stored.save(destination)  # type: ignore[arg-type]
        assert stored.closed and told[-1] == (len(payload), len(payload))
        with pytest.raises(InvalidRequestError, match="closed"):
            stored.save(tmp_path / "again")
    assert (tmp_path / "saved").read_bytes() == written == payload
    assert set(threads) == {threading.current_thread()}


def test_what_a_callback_raises_ends_the_save_and_leaves_no_file(storage: tiered.sync.SyncTieredStorage, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()

    async def progress(so_far: int, total: int | None) -> None: ...

    def refuse(so_far: int, total: int | None) -> None:
        raise ZeroDivisionError("enough")

    storage.put(OBJECT, LARGE)
    for callback, error in ((refuse, ZeroDivisionError), (progress, InvalidRequestError)):
        stored = storage.get(OBJECT, progress=callback)
        assert stored is not None
        with pytest.raises(error):
            stored.save(tmp_path / "here" / "saved")
        assert stored.closed and list((tmp_path / "here").iterdir()) == []


def test_many_threads_share_one_storage_and_one_event_loop(storage: tiered.sync.SyncTieredStorage, tmp_path: Path) -> None:
    def work(number: int) -> None:
        storage.put(named(number), iter([LARGE, b"%d" % number]))
        read[number] = got(storage, named(number)).read()

    read: dict[int, bytes] = {}
    threads = [threading.Thread(target=work, args=[number]) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == {number: LARGE + b"%d" % number for number in range(20)}
    with tiered.sync.open_storage(Settings(directory=tmp_path / "other")) as other:
        assert list(other.list()) == []
    assert sum(thread.name == "tiered event loop" for thread in threading.enumerate()) == 1


def test_an_interruption_cancels_the_call_and_waits_for_its_end(storage: tiered.sync.SyncTieredStorage) -> None:
    closed = threading.Event()

    def stalled() -> Iterator[bytes]:
        try:
            yield LARGE
            signal.raise_signal(signal.SIGINT)
            yield LARGE
        finally:
            closed.set()

    with pytest.raises(KeyboardInterrupt):
        storage.put(OBJECT, stalled())
    assert closed.is_set() and storage.get(OBJECT) is None
    reading, writing = os.pipe()
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - a thread that stood still outside of it would let the signal end the session
        timer.start()
        storage.put(OBJECT, Path(f"/dev/fd/{reading}"))  # waits in the event loop
    os.close(reading)
    os.close(writing)
    assert storage.get(OBJECT) is None and storage.put(OBJECT, LARGE).size == len(LARGE)


def test_use_after_the_block_and_a_second_entry_are_refused(settings: Settings) -> None:
    opening = tiered.sync.open_storage(settings)
    with opening as storage:
        storage.put(OBJECT, LARGE)
        stored = got(storage)
        with pytest.raises(InvalidRequestError, match="entered once"), opening:
            pass
        with tiered.sync.open_storage(settings) as second:
            assert got(second).read() == LARGE
    for use in (lambda: storage.put(OBJECT, stored), storage.list, lambda: storage.put_many([])):
        with pytest.raises(InvalidRequestError, match="not open; use it inside 'with'"):
            use()
    assert stored.read() == LARGE  # its file was open


def test_a_call_inside_an_event_loop_is_refused(storage: tiered.sync.SyncTieredStorage, settings: Settings) -> None:
    async def blocking() -> None:
        with pytest.raises(InvalidRequestError, match="would block the event loop"):
            storage.head(OBJECT)
        with pytest.raises(InvalidRequestError, match="would block the event loop"):
            tiered.sync.open_storage(settings).__enter__()
        assert await anyio.to_thread.run_sync(storage.head, OBJECT) is None

    anyio.run(blocking)


def test_an_error_of_opening_is_raised(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(tiered.ConfigurationError), tiered.sync.open_storage(Settings(directory=tmp_path / "file")):
        pass


# --- forks and exits ---------------------------------------------------------------------------------


def in_child(told: list[object]) -> list[str]:
    """What each call returns or raises in a forked child, which must answer within seconds."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        for call in told:
            try:
                answer = repr(call())  # type: ignore[operator]
            except Exception as error:  # noqa: BLE001 - told to the parent
                answer = f"{type(error).__name__}: {error}"
            os.write(writing, f"{answer}\n".encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as answers:
        timer = threading.Timer(60, os.kill, (child, signal.SIGKILL))
        timer.start()
        lines = answers.read().splitlines()
    timer.cancel()
    os.waitpid(child, 0)
    return lines


@FORKING
def test_a_forked_child_is_refused_at_once_and_opens_its_own(
    storage: tiered.sync.SyncTieredStorage, settings: Settings, tmp_path: Path
) -> None:
    storage.put(OBJECT, LARGE)
    storage.put(named(1), b"small")
    stored, small = got(storage), got(storage, named(1))
    ids = storage.list(ObjectPrefix.create("notes", key="k"))

    def own() -> object:
        with tiered.sync.open_storage(Settings(directory=tmp_path / "own")) as opened:
            return opened.put(OBJECT, LARGE).size

    def same() -> object:
        with tiered.sync.open_storage(settings) as opened:
            return opened

    uses = [lambda: storage.head(OBJECT), lambda: storage.put(OBJECT, b""), stored.read, small.read, lambda: next(ids)]
    uses.append(lambda: storage.put_many([]))
    *refused, child_own, child_same, closed, left = in_child([*uses, own, same, storage.close, stored.close])
    assert all(line.startswith("InvalidRequestError: this process was forked after the storage was opened") for line in refused)
    assert len(refused) == 6 and child_own == str(len(LARGE)) and (closed, left) == ("[]", "None")
    assert "SQLite would lose writes" in child_same
    assert stored.read() == LARGE and [entry.object_id for entry in ids] == [OBJECT]


@FORKING
def test_a_child_opens_the_directory_that_its_parent_has_closed(settings: Settings) -> None:
    def use() -> object:
        with tiered.sync.open_storage(settings) as opened:
            opened.put(OBJECT, LARGE)
            return len(got(opened).read())

    assert use() == len(LARGE)
    assert in_child([use]) == [str(len(LARGE))]
    assert use() == len(LARGE)


@FORKING
def test_a_payload_that_forks_ends_in_the_child(storage: tiered.sync.SyncTieredStorage) -> None:
    def forking() -> Iterator[bytes]:
        yield LARGE
        told.extend(in_child([]))
        yield LARGE

    told: list[str] = []
    assert storage.put(OBJECT, forking()).size == 2 * len(LARGE)


EXITING = """
import sys, threading, time
import tiered.sync
from tiered import ObjectId, Settings

storage = tiered.sync.open_storage(Settings(directory=sys.argv[1], inline_bytes_max=1000, store={"drain_budget_s": 1})).__enter__()
stored = ObjectId.create("notes", "key")
storage.put(stored, b"x" * 300_000)
reading = storage.get(stored)

def stalled():
    yield b"y" * 300_000
    time.sleep(3600)

def later():
    time.sleep(0.5)
    print(storage.put(stored, b"z" * 300_000).size, flush=True)

threading.Thread(target=storage.put, args=[ObjectId.create("notes", "stalled"), stalled()], daemon=True).start()
threading.Thread(target=later).start()
time.sleep(0.1)
"""


@pytest.mark.slow
def test_the_interpreter_exits_with_an_open_storage_a_stalled_call_and_a_thread_that_still_works(tmp_path: Path) -> None:
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", EXITING, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "300000\n"), ended.stderr
    assert time.monotonic() - began < 50
    with tiered.sync.open_storage(Settings(directory=tmp_path, inline_bytes_max=1000)) as storage:
        assert [entry.object_id for entry in storage.list()] == [OBJECT] and got(storage).read() == b"z" * 300_000


LEFT_OPEN = """
import sys
import tiered.sync
from tiered import ObjectId, Settings

storage = tiered.sync.open_storage(Settings(directory=sys.argv[1])).__enter__()
storage.put(ObjectId.create("notes", "key"), b"x")
"""


@pytest.mark.slow
def test_a_storage_that_nobody_left_is_closed_at_exit(tmp_path: Path) -> None:
    """Who closes a database moves its log into it."""
    subprocess.run([sys.executable, "-c", LEFT_OPEN, str(tmp_path)], check=True, cwd=ROOT, timeout=60)
    assert (tmp_path / "tiered.db-wal").stat().st_size == 0


# --- what was interrupted ---------------------------------------------------------------------------


Interrupt = Callable[[Callable[[Callable[[], None]], object]], None]


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Interrupt:
    """The next wait of a caller is interrupted. Until when, a function says that is given the wait itself."""

    def interrupt(until: Callable[[Callable[[], None]], object]) -> None:
        wait = CallersThread.wait

        def cut_off(self: CallersThread, call: object) -> None:
            monkeypatch.undo()
            until(lambda: wait(self, call))
            raise KeyboardInterrupt

        monkeypatch.setattr(CallersThread, "wait", cut_off)

    return interrupt


def test_a_result_that_came_while_its_taker_was_interrupted_is_given_to_the_next(
    storage: tiered.sync.SyncTieredStorage, interrupted: Interrupt
) -> None:
    requests = [PutRequest(named(number), b"x") for number in range(3)]
    with storage.put_many(requests) as results:
        interrupted(lambda wait: wait())
        with pytest.raises(KeyboardInterrupt):
            next(results)
        assert {result.request.object_id for result in results} == {request.object_id for request in requests}


class SlowContext:
    """An asynchronous context. `opens` False: it is never open. `begun`: to be entered, or left. `left`: to its end."""

    def __init__(self, opens: bool) -> None:
        self.opens = opens
        self.begun, self.left = threading.Event(), threading.Event()

    async def __aenter__(self) -> None:
        self.begun.set()
        try:
            if not self.opens:
                await anyio.sleep_forever()
        except BaseException:
            self.left.set()
            raise

    async def __aexit__(self, *error: object) -> None:
        self.begun.set()
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.05)
        self.left.set()


def test_a_context_that_opens_for_ever_is_given_up_when_its_caller_is_interrupted(
    storage: tiered.sync.SyncTieredStorage, interrupted: Interrupt
) -> None:
    context = SlowContext(opens=False)
    interrupted(lambda wait: context.begun.wait(20))
    with pytest.raises(KeyboardInterrupt):
        HeldContext(storage._loop, context).enter()
    assert context.left.wait(20)


def test_a_caller_that_is_interrupted_while_it_leaves_waits_until_the_context_was_left(
    storage: tiered.sync.SyncTieredStorage, interrupted: Interrupt
) -> None:
    context = SlowContext(opens=True)
    held = HeldContext(storage._loop, context)
    held.enter()
    context.begun.clear()
    interrupted(lambda wait: context.begun.wait(20))
    with pytest.raises(KeyboardInterrupt):
        held.leave()
    assert context.left.is_set()


def test_nothing_is_kept_of_what_was_left(storage: tiered.sync.SyncTieredStorage) -> None:
    before = len(storage._loop._kept)
    for _ in range(3):
        with storage.get_many([OBJECT]) as results:
            assert [result.value for result in results] == [None]
    assert len(storage._loop._kept) == before


# --- payloads that are slow, and callers that are ---------------------------------------------------


@pytest.fixture
def impatient(settings: Settings) -> Iterator[tiered.sync.SyncTieredStorage]:
    with tiered.sync.open_storage(settings.model_copy(update={"store": StoreSettings(payload_idle_s=0.2)})) as opened:
        yield opened


def test_the_payloads_of_a_bulk_call_were_ended_because_its_caller_was_slow(impatient: tiered.sync.SyncTieredStorage) -> None:
    """Only this thread reads them, and only while it waits for a result. They give bytes whenever they are asked."""
    went_on: list[bool] = []

    def until_the_caller_went_on() -> Iterator[bytes]:
        while not went_on:
            yield LARGE
        yield b"end"

    requests = [PutRequest(named(1), b"small"), PutRequest(named(2), until_the_caller_went_on())]
    with impatient.put_many(requests) as results:
        assert next(results).request is requests[0]
        time.sleep(0.5)
        went_on.append(True)
        assert next(results).error is None
    assert got(impatient, named(2)).read().endswith(b"end")


def test_a_payload_that_gives_nothing_is_ended_in_the_callers_thread_too(impatient: tiered.sync.SyncTieredStorage) -> None:
    def stalled() -> Iterator[bytes]:
        yield LARGE
        time.sleep(0.5)
        yield b"end"

    with pytest.raises(InvalidRequestError, match=r"gave no byte for 0\.2 s"):
        impatient.put(OBJECT, stalled())
    assert impatient.get(OBJECT) is None


def test_a_blocking_caller_signs_a_link(tmp_path: Path) -> None:
    links = {"base_url": "https://host/links", "keys": ["a key for tests, of 32 characters"]}
    with tiered.sync.open_storage(Settings(directory=tmp_path, links=links)) as storage:
        storage.put(OBJECT, b"a cat")
        url = storage.sign_get(OBJECT, timedelta(hours=1), content_type="image/png", disposition="attachment")
        assert url is not None and url.startswith("https://host/links/")
        assert storage.sign_get(named(9), timedelta(hours=1)) is None
