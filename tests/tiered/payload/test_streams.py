"""Payloads as streams: every kind a caller may pass, what is refused, and that little is held at once."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, nullcontext, suppress
from contextvars import ContextVar
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO

import anyio
import pytest
from anyio import from_thread
from anyio.lowlevel import checkpoint, current_token
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from changelog.base.errors import InvalidRequestError, UnavailableError
from changelog.base.threads import in_thread
from emulators.world.runtime import elapse, run_world
from tests.given.no_threads import no_threads
from tiered.errors import AtCapacityError
from tiered.payload import in_threads, own_thread
from tiered.payload.chunks import Chunk, split_head
from tiered.payload.own_thread import LATE_S
from tiered.payload.streams import VIEW_BYTES, Payload, chunks
from tiered.stored import CHUNK_BYTES, ProgressCount

pytestmark = pytest.mark.anyio

BYTES = bytes(range(256)) * 4 + b"tail"


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def gathered(payload: Payload, size: int = 100) -> list[Chunk]:
    async with aclosing(chunks(payload, size)) as source:
        return [chunk async for chunk in source]


async def size_of(payload: Payload) -> int | None:
    """As far as it is known when the payload has been begun."""
    async with aclosing(chunks(payload, 100)) as source:
        await anext(source, None)
        return source.size


async def async_parts(*parts: Any) -> AsyncIterator[Any]:
    for part in parts:
        yield part


def on_disk(path: Path) -> Path:
    path.write_bytes(BYTES)
    return path


KINDS: dict[str, Callable[[Path], Payload]] = {
    "bytes": lambda path: BYTES,
    "bytearray": lambda path: bytearray(BYTES),
    "memoryview": lambda path: memoryview(BYTES),
    "memoryview of numbers": lambda path: memoryview(BYTES).cast("I"),
    "path": on_disk,
    "buffered file": lambda path: on_disk(path).open("rb"),
    "raw file": lambda path: on_disk(path).open("rb", buffering=0),
    "file in memory": lambda path: io.BytesIO(BYTES),
    "list": lambda path: [BYTES[:10], b"", BYTES[10:900], BYTES[900:]],
    "generator": lambda path: (BYTES[start : start + 7] for start in range(0, len(BYTES), 7)),
    "list of buffers": lambda path: [bytearray(BYTES[:500]), memoryview(BYTES)[500:]],  # type: ignore[list-item]
    "async generator": lambda path: async_parts(BYTES[:10], b"", BYTES[10:900], BYTES[900:]),
}
SIZE_UNKNOWN = {"list", "generator", "list of buffers", "async generator"}


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_payload_comes_in_chunks_of_at_most_the_size_none_empty(kind: str, tmp_path: Path) -> None:
    payload = KINDS[kind](tmp_path / "payload")
    async with aclosing(chunks(payload, 100)) as source:
        got = [chunk async for chunk in source]
        assert source.size == (None if kind in SIZE_UNKNOWN else len(BYTES))
    assert b"".join(got) == BYTES
    assert all(0 < len(chunk) <= 100 for chunk in got)
    if isinstance(payload, io.IOBase):
        payload.close()


@pytest.mark.parametrize("payload", [b"", bytearray(), [], [b"", b""], io.BytesIO()])
async def test_an_empty_payload_has_no_chunks(payload: Payload) -> None:
    assert await gathered(payload) == []


async def test_bytes_are_sliced_and_never_copied() -> None:
    payload = bytes(3 * CHUNK_BYTES)
    got = await gathered(payload, CHUNK_BYTES)
    assert len(got) == 3
    assert all(isinstance(chunk, memoryview) and chunk.obj is payload for chunk in got)


async def test_a_buffer_that_its_owner_refills_does_not_change_the_chunks_before() -> None:
    def refilled() -> Iterator[Any]:
        buffer = bytearray(b"first")
        yield buffer
        buffer[:] = b"other"
        yield memoryview(buffer)

    assert b"".join(await gathered(refilled())) == b"firstother"


async def test_a_file_is_read_from_its_position_and_left_open() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(BYTES)
        file.seek(1000)
        assert await size_of(file) == len(BYTES) - 1000
        file.seek(1000)
        assert b"".join(await gathered(file)) == BYTES[1000:]
        assert not file.closed


@pytest.mark.parametrize("kind", ["in memory", "on disk", "sparse", "compressed"])
@pytest.mark.parametrize("more", [0, 5000])
async def test_a_file_with_nothing_left_is_refused_unless_all_before_it_is_stored(tmp_path: Path, kind: str, more: int) -> None:
    """A sparse file has no blocks, so it was taken for one of /proc, and its position was not looked at."""
    path = tmp_path / "payload"
    path.write_bytes(gzip.compress(b"abc") if kind == "compressed" else b"" if kind == "sparse" else b"abc")
    if kind == "sparse":
        os.truncate(path, 3)
    with io.BytesIO(b"abc") if kind == "in memory" else gzip.open(path) if kind == "compressed" else path.open("rb") as file:
        file.seek(3 + (more if kind != "compressed" else 0))
        with pytest.raises(InvalidRequestError, match="is at its end"):
            await gathered(file)
        async with chunks(file) as source:
            source.offset = file.tell()
            assert [chunk async for chunk in source] == []


@pytest.mark.parametrize("kind", [bytes, io.BytesIO])
async def test_what_is_empty_is_no_file_at_its_end(tmp_path: Path, kind: Any) -> None:
    (tmp_path / "file.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "file").touch()
    with gzip.open(tmp_path / "file.gz") as compressed, (tmp_path / "file").open("rb") as plain:
        for file in (kind(), compressed, plain):
            assert await gathered(file) == []


async def test_the_size_of_a_compressed_file_is_not_taken_for_that_of_its_payload(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "file.gz", "wb") as file:
        file.write(BYTES)
    with gzip.open(tmp_path / "file.gz", "rb") as file:
        assert await size_of(file) is None
        file.seek(0)
        assert await size_of(io.BufferedReader(file)) is None


async def test_a_pipe_has_no_known_size_but_its_bytes() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as sender:
        sender.write(b"through the pipe")
    with os.fdopen(reading, "rb") as receiver:
        assert b"".join(await gathered(receiver)) == b"through the pipe"


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("opened", [lambda path: path, lambda path: path.open("rb"), lambda path: path.open("rb", buffering=0)])
@pytest.mark.parametrize("size", [200_000, 50_000], ids=["it grows", "it shrinks"])
async def test_a_file_that_grows_ends_where_it_ended_and_one_that_shrinks_is_an_error_that_names_it(
    tmp_path: Path, opened: Callable[[Path], Any], size: int
) -> None:
    (tmp_path / "log").write_bytes(BYTES * 100)
    payload = opened(tmp_path / "log")
    missing = len(BYTES) * 100 - size
    async with aclosing(chunks(payload, 1000)) as source:
        got = [await anext(source)]
        os.truncate(tmp_path / "log", size)
        with nullcontext() if missing < 0 else pytest.raises(InvalidRequestError, match=rf"log' became shorter .* {missing} of its "):
            got += [chunk async for chunk in source]
            assert b"".join(got) == BYTES * 100 and source.size == len(BYTES) * 100
    if isinstance(payload, io.IOBase):
        payload.close()


class Response:
    """As a client of HTTP gives it: all of it at once."""

    def read(self) -> bytes:
        return b""


class FormFile:
    """As FastAPI gives it."""

    file = io.BytesIO(b"of a form")

    async def read(self, size: int = -1) -> bytes:
        return b""


class Task:
    """As asyncio's: it is awaitable, and iterable for the sake of that."""

    def __await__(self) -> Iterator[None]:
        yield

    __iter__ = __await__


def not_awaited() -> Any:
    coroutine = checkpoint()
    coroutine.close()  # or the interpreter warns
    return coroutine


AT_ONCE: dict[str, Any] = {
    r"type str .* text\.encode\(\), or pathlib\.Path": "text",
    "type dict cannot be stored: pass bytes": {"a": b"b"},
    "type NoneType": None,
    "type int": 5,
    "type type cannot be stored": io.BytesIO,
    "type function cannot be stored: call it, or pass bytes": lambda: b"",
    "type coroutine cannot be stored: await it, or pass bytes": not_awaited(),
    "type Task cannot be stored: await it, or pass bytes": Task(),
    "type Response has a read that takes no size: pass an iterator": Response(),
    "type FormFile has an async read: pass its file, or an async iterator": FormFile(),
    r"type StringIO yields text: open the file in binary mode \('rb'\)": io.StringIO("text"),
    r"contiguous .* pass bytes\(view\)": memoryview(b"abcdef")[::2],
}
"""What is refused when the call is made, by what is said of it."""


@pytest.mark.parametrize("words", AT_ONCE)
def test_what_is_no_payload_is_refused_at_once_with_the_fix(words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        chunks(AT_ONCE[words])


# --- what a caller's iterator does ---------------------------------------------------------------


class OwnStreamError(Exception):
    pass


def failing() -> Iterator[bytes]:
    yield b"before"
    raise OwnStreamError


async def async_failing() -> AsyncIterator[bytes]:
    yield b"before"
    raise OwnStreamError


@pytest.mark.parametrize("iterator", [failing, async_failing])
async def test_what_an_iterator_raises_half_way_is_passed_on_unchanged(iterator: Any) -> None:
    async with aclosing(chunks(iterator())) as source:
        with pytest.raises(OwnStreamError):
            _ = [chunk async for chunk in source]
        assert [chunk async for chunk in source] == []


class IterableByGenerator:
    """Not a generator itself; each `async for` over it makes one."""

    closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"again and again"
        finally:
            self.closed = True


@pytest.mark.parametrize("direct", [True, False])
async def test_an_async_generator_is_closed_when_the_payload_is_abandoned(direct: bool) -> None:
    endless = IterableByGenerator()
    source = chunks(aiter(endless) if direct else endless)
    assert bytes(await anext(source)).startswith(b"again and again")
    await source.aclose()
    assert endless.closed


async def test_a_path_is_closed_when_the_payload_is_abandoned(tmp_path: Path) -> None:
    source = chunks(on_disk(tmp_path / "payload"), 10)
    await anext(source)
    before = len(os.listdir("/proc/self/fd"))
    await source.aclose()
    assert len(os.listdir("/proc/self/fd")) == before - 1


# --- heads ---------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.binary(max_size=20), max_size=20), limit=st.integers(0, 100))
async def test_a_head_is_the_whole_payload_or_just_more_than_the_limit(parts: list[bytes], limit: int) -> None:
    whole = b"".join(parts)
    async with aclosing(chunks(parts, 30)) as source:
        head, size, rest = await split_head(source, limit)
        assert size == sum(map(len, head))
        assert whole.startswith(b"".join(head))
        if rest is None:
            assert size == len(whole) <= limit
        else:
            assert limit < size <= limit + 30
            assert b"".join(head) + b"".join([chunk async for chunk in rest]) == whole


@pytest.mark.parametrize("kind", [bytes, bytearray, io.BytesIO])
@pytest.mark.parametrize("whole", [b"", b"whole"])
@pytest.mark.parametrize("limit", [4, 5])
async def test_a_head_of_what_is_in_memory_is_whole_or_leaves_nothing(kind: Callable[[bytes], Any], whole: bytes, limit: int) -> None:
    async with aclosing(chunks(kind(whole))) as source:
        head, size, rest = await split_head(source, limit)
        assert (b"".join(head), size) == (whole, len(whole))
        assert (rest is None) == (len(whole) <= limit)
        assert [chunk async for chunk in source] == []
        assert source.take_whole(100) is None


async def test_bytes_of_which_a_chunk_was_read_are_not_taken_as_a_whole() -> None:
    async with aclosing(chunks(b"abcdef", 2)) as source:
        assert await anext(source) == b"ab"
        assert source.take_whole(100) is None
        assert b"".join([chunk async for chunk in source]) == b"cdef"


async def test_no_more_is_read_than_tells_small_from_large() -> None:
    taken = []

    async def counted() -> AsyncIterator[bytes]:
        for number in range(100):
            taken.append(number)
            yield b"x" * 10

    async with aclosing(chunks(counted(), 40)) as source:
        _, size, rest = await split_head(source, 25)
        assert (size, rest) == (30, source)
        assert taken == [0, 1, 2]


async def test_a_file_of_anyio_is_a_payload_of_unknown_length(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"one\ntwo\n")
    async with await anyio.open_file(tmp_path / "file", "rb") as file:
        assert await size_of(file) is None
        await file.seek(0)
        assert b"".join(await gathered(file)) == b"one\ntwo\n"


# --- threads -------------------------------------------------------------------------------------


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - of other threads, which set no event
            await anyio.sleep(0.01)


async def give_up(payload: Payload, begun: threading.Event) -> None:
    """Leaves a payload as soon as its thread is stuck in it. A call that has not begun would never be made."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gathered, payload)
        await until(begun.is_set)
        tasks.cancel_scope.cancel()


async def test_an_iterator_that_blocks_does_not_keep_others_from_running() -> None:
    others_ran = threading.Event()

    def blocking() -> Iterator[bytes]:
        yield b"before"
        assert others_ran.wait(30)
        yield b"after"

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(to_be_set, others_ran)
        assert b"".join(await gathered(blocking())) == b"beforeafter"


async def to_be_set(event: threading.Event) -> None:
    await anyio.sleep(0.01)
    event.set()


async def test_an_iterator_has_one_thread_and_the_context_of_its_caller_from_beginning_to_end() -> None:
    inherited: ContextVar[str] = ContextVar("inherited")
    seen = []

    def parts() -> Iterator[bytes]:
        seen.append(threading.current_thread())
        token = inherited.set(inherited.get() + "'s own")
        try:
            for _ in range(5):
                yield bytes(100)
                seen.append(threading.current_thread())
        finally:
            seen.append(threading.current_thread())
            inherited.reset(token)

    inherited.set("caller")
    async with aclosing(chunks(parts(), 100)) as source:
        await anext(source)
        await anext(source)
    assert len(set(seen)) == 1 and seen[0] is not threading.current_thread()
    assert inherited.get() == "caller"
    await until(lambda: not seen[0].is_alive())


async def test_an_event_loop_may_run_in_an_iterator() -> None:
    async def part() -> bytes:
        await checkpoint()
        return b"from a loop of its own"

    assert await gathered(anyio.run(part) for _ in range(1)) == [b"from a loop of its own"]


async def test_an_iterator_may_call_back_with_the_token_of_the_event_loop() -> None:
    token, here = current_token(), threading.current_thread()
    parts = (from_thread.run_sync(threading.current_thread, token=token).name.encode() for _ in range(1))
    assert await gathered(parts) == [here.name.encode()]


@pytest.mark.parametrize("how", ["half-way", "a wrong chunk"])
async def test_a_generator_that_is_abandoned_is_closed_before_put_goes_on(how: str) -> None:
    closed = []

    def parts() -> Iterator[Any]:
        try:
            yield bytes(100)
            yield bytes(100) if how == "half-way" else 5
        finally:
            closed.append(True)

    async with aclosing(chunks(parts(), 100)) as source:
        await anext(source)
        if how == "a wrong chunk":
            with pytest.raises(InvalidRequestError):
                await anext(source)
    assert closed == [True]


async def test_a_generator_that_is_stuck_is_left_at_once_and_closed_when_it_returns() -> None:
    begun, go_on, closed, errors = threading.Event(), threading.Event(), [], []

    def stuck() -> Iterator[bytes]:
        try:
            begun.set()
            go_on.wait(60)
            yield b"too late"
            errors.append("asked for more")
        finally:
            closed.append(True)

    await give_up(stuck(), begun)
    assert not closed
    go_on.set()
    await until(lambda: bool(closed))
    assert not errors


async def test_an_error_of_closing_is_passed_on_and_logged_where_nobody_waits(caplog: pytest.LogCaptureFixture) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def parts(*, stuck: bool) -> Iterator[bytes]:
        try:
            yield bytes(100)
            if stuck:
                begun.set()
                go_on.wait(60)
            yield bytes(100)
        finally:
            raise OwnStreamError

    with pytest.raises(OwnStreamError):
        async with aclosing(chunks(parts(stuck=False), 100)) as source:
            await anext(source)
    await give_up(parts(stuck=True), begun)
    go_on.set()
    await until(lambda: "abandoned_payload_not_closed" in caplog.text)


async def test_a_generator_that_runs_already_is_an_error_of_its_own_and_not_disturbed() -> None:
    go_on, began = threading.Event(), threading.Event()

    def parts() -> Iterator[bytes]:
        began.set()
        go_on.wait(30)
        yield b"one"

    generator = parts()
    results: list[bytes] = []
    thread = threading.Thread(target=lambda: results.append(next(generator)))
    thread.start()
    began.wait(30)
    with pytest.raises(ValueError, match="already executing"):
        await gathered(generator)
    go_on.set()
    thread.join()
    assert results == [b"one"]


@pytest.mark.parametrize("raised", [StopIteration, StopAsyncIteration])
async def test_what_reads_as_an_end_and_is_none_is_an_error(raised: type[Exception]) -> None:
    class OddStream:
        def read(self, size: int) -> bytes:
            raise raised

    with pytest.raises(RuntimeError, match=raised.__name__):
        await gathered(OddStream())  # type: ignore[arg-type]


async def endless(chunk: bytes) -> AsyncIterator[bytes]:
    while True:
        yield chunk


@pytest.mark.slow
@pytest.mark.parametrize("payload", [lambda: endless(b""), lambda: itertools.repeat(b""), lambda: [b""] * 50_000_000])
async def test_chunks_that_are_empty_for_ever_can_be_cancelled(payload: Callable[[], Payload]) -> None:
    before = threading.active_count()
    with anyio.move_on_after(0.1) as scope:
        await gathered(payload())
    assert scope.cancelled_caught
    await until(lambda: threading.active_count() <= before)


@pytest.mark.parametrize("make", [list, iter, lambda parts: async_parts(*parts)])
async def test_tiny_chunks_are_joined(make: Any) -> None:
    got = await gathered(make([b"x"] * 50_000), CHUNK_BYTES)
    assert b"".join(got) == b"x" * 50_000
    assert len(got) < 1000  # 29, where this process is never kept from running for LATE_S


async def test_files_share_their_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many files are read at once, they take no more threads than this."""
    real, limiters = in_thread, set[anyio.CapacityLimiter]()

    async def noted(call: Callable[[], Any], limiter: anyio.CapacityLimiter, **named: Any) -> Any:
        limiters.add(limiter)
        return await real(call, limiter, **named)

    monkeypatch.setattr(in_threads, "in_thread", noted)
    for number in range(3):
        path = tmp_path / f"{number}"
        path.write_bytes(BYTES)
        assert b"".join(await gathered(path)) == BYTES
    [limiter] = limiters
    assert limiter.total_tokens == in_threads.FILE_THREADS_MAX


def test_chunks_that_come_steadily_but_slowly_are_not_held_back() -> None:
    """Each comes before the one in hand is late. A clock that began anew with each chunk would hold all back."""
    held_s: list[float] = []

    async def look() -> None:
        sent_at: list[float] = []

        async def slow() -> AsyncIterator[bytes]:
            yield b"-" * 100  # the first chunks are never held back
            for _ in range(100):
                yield b"-"
            for _ in range(20):
                await elapse(LATE_S * 0.6)
                sent_at.append(anyio.current_time())
                yield b"+"

        async with aclosing(chunks(slow())) as source:
            async for chunk in source:
                now = anyio.current_time()
                held_s.extend(now - at for at in sent_at[len(held_s) : len(held_s) + bytes(chunk).count(b"+")])

    run_world(look, seed=1)
    assert len(held_s) == 20 and max(held_s) <= 2 * LATE_S


async def test_what_was_joined_does_not_wait_long_for_more() -> None:
    more = anyio.Event()

    async def slow() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"-"
        yield b"first"
        await anyio.sleep(2 * LATE_S)
        yield b"second"
        await more.wait()

    async with aclosing(chunks(slow())) as source:
        with anyio.fail_after(30):
            found = b""
            while not found.endswith(b"firstsecond"):
                found += await anext(source)
        more.set()

    def slow_too() -> Iterator[bytes]:
        yield b"first"
        while not reader._late:  # what is late already when its thread begins comes alone
            time.sleep(0.001)
        yield b"second"
        assert taken.wait(60)

    taken, found = threading.Event(), b""
    reader: Any = chunks(slow_too())
    async with aclosing(reader) as source:
        with anyio.fail_after(30):
            while found != b"firstsecond":
                found += await anext(source)
        taken.set()


async def test_threads_are_bounded_those_that_are_stuck_included_and_free_ones_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_thread, "THREADS_MAX", 3)
    monkeypatch.setattr(own_thread, "WAIT_MAX_S", 60)
    go_on = threading.Event()

    def stuck(begun: threading.Event) -> Iterator[bytes]:
        begun.set()
        go_on.wait(120)
        yield b""

    for begun in (threading.Event(), threading.Event()):
        await give_up(stuck(begun), begun)
    async with aclosing(chunks(iter([bytes(100)] * 2), 100)) as source:
        await anext(source)
        with monkeypatch.context() as hasty:
            hasty.setattr(own_thread, "WAIT_MAX_S", 0.2)
            with pytest.raises(AtCapacityError, match=r"3 threads read payloads that may block \(2 of them stuck"):
                await gathered(iter([b"healthy"]))
        with anyio.move_on_after(0.05) as scope:
            await gathered(iter([b"healthy"]))
        assert scope.cancelled_caught
    for _ in range(10):  # the one that is left serves one after another
        assert await gathered(iter([b"healthy"])) == [b"healthy"]
    go_on.set()
    await until(lambda: own_thread._threads.get().free.borrowed_tokens == 0)
    assert own_thread._threads.get().stuck == 0


async def test_a_system_without_threads_is_unavailable_and_keeps_no_place() -> None:
    with no_threads(), pytest.raises(UnavailableError, match="can't start new thread"):
        await gathered(iter([b"x"]))
    assert own_thread._threads.get().free.borrowed_tokens == 0


# --- files whose length is not what it was -------------------------------------------------------


@pytest.mark.parametrize("path", ["/proc/version", "/sys/devices/system/cpu/online"])
async def test_a_file_whose_length_says_nothing_is_read_to_its_end(path: str) -> None:
    assert b"".join(await gathered(Path(path))) == Path(path).read_bytes() != b""
    assert await size_of(Path(path)) is None


# --- pipes ---------------------------------------------------------------------------------------


async def test_a_path_to_a_pipe_is_waited_for_without_a_thread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    threads = threading.active_count()
    with anyio.move_on_after(0.1) as scope:
        await gathered(tmp_path / "pipe")  # nobody has opened it for writing
    assert scope.cancelled_caught
    got: list[Chunk] = []

    async def read() -> None:
        got.extend(await gathered(tmp_path / "pipe"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        writer = -1
        with anyio.fail_after(30):
            while writer < 0:
                await anyio.sleep(0.01)
                with suppress(OSError):  # nobody reads yet
                    writer = os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK)
        for part in (b"one", b"two"):
            os.write(writer, part)
            await anyio.sleep(0.02)
        assert threading.active_count() <= threads + 1, "at most one that is idle"
        os.close(writer)
    assert b"".join(got) == b"onetwo"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_stuck_thread_does_not_keep_the_program_from_ending(backend: str) -> None:
    program = f"""
        import anyio, os
        from contextlib import aclosing
        from tiered.payload.streams import chunks

        async def main():
            with anyio.move_on_after(0.1) as scope:
                async with aclosing(chunks(os.fdopen(os.pipe()[0], "rb"))) as source:
                    await anext(source)
            print(scope.cancelled_caught, flush=True)

        anyio.run(main, backend={backend!r})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)


# --- odd payloads --------------------------------------------------------------------------------


class ReadsOddly:
    def __init__(self, *answers: Any) -> None:
        self._answers = iter(answers)

    def read(self, size: int) -> Any:
        return next(self._answers, b"")


class Both:
    def __iter__(self) -> Iterator[bytes]:
        raise AssertionError("the async one comes first")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"async"


class AsyncRead:
    async def read(self, size: int) -> bytes:
        return b""


class PathOfNumber:
    def __fspath__(self) -> Any:
        return 5


def open_for_writing() -> BinaryIO:
    return Path("/dev/null").open("wb")


def released() -> memoryview:
    view = memoryview(b"abc")
    view.release()
    return view


def closed_file() -> BinaryIO:
    with Path(__file__).open("rb") as file:
        return file


def closed_in_memory() -> BinaryIO:
    with io.BytesIO(b"abc") as file:
        return file


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        *((lambda parts=parts, wrong=wrong: parts(b"fine", wrong), f"chunk of the payload has {words}: yield bytes")
          for parts in (lambda *parts: list(parts), async_parts)
          for wrong, words in (("text", "type str"), (5, "type int"), (None, "type NoneType"))),
        (lambda: Path("/proc/missing"), "'/proc/missing' cannot be read: No such file"),
        (lambda: Path("/proc"), "'/proc' cannot be read: Is a directory"),
        (lambda: Path("/proc/self/mem"), "'/proc/self/mem' cannot be read: Input/output error"),
        (lambda: Path("a\0b"), r"cannot be read: embedded null byte"),
        (released, "released memoryview object"),
        (lambda: array("I", [1, 2]), "type int: yield bytes"),
        (lambda: [released()], r"cannot be read \(operation forbidden on released"),
        (closed_file, r"test_streams\.py' is closed"),
        (closed_in_memory, "BytesIO, is closed"),
        (open_for_writing, "'/dev/null' is open for writing only: open it with 'rb'"),
        (AsyncRead, "type AsyncRead has an async read: pass an async iterator"),
        (PathOfNumber, "type PathOfNumber is no path"),
        (lambda: ReadsOddly(b"x", None), "has nothing yet and does not block"),
        (lambda: ReadsOddly(b"x", "text"), "type str: yield bytes"),
        (lambda: ReadsOddly(b"x", ""), "type str: yield bytes"),
    ],
)  # fmt: skip
async def test_what_turns_out_to_be_no_payload_is_named(payload: Callable[[], Any], words: str) -> None:
    given = payload()
    with pytest.raises(InvalidRequestError, match=words):
        await gathered(given)
    if isinstance(given, io.IOBase):
        given.close()


async def test_a_pipe_without_blocking_that_has_nothing_yet_is_refused() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    nothing_yet = pytest.raises(InvalidRequestError, match="has nothing yet and does not block")
    with os.fdopen(reading, "rb") as receiver, os.fdopen(writing, "wb"), nothing_yet:
        await gathered(receiver)


async def test_odd_payloads_that_have_bytes(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "file.gz", "wb") as packed:
        packed.write(BYTES)
    with tempfile.NamedTemporaryFile() as named:
        named.write(BYTES)
        named.seek(10)
        assert await size_of(named) == len(BYTES) - 10
        named.seek(10)
        assert b"".join(await gathered(named)) == BYTES[10:]
    with gzip.open(tmp_path / "file.gz", "rb") as unpacked:
        assert b"".join(await gathered(unpacked)) == BYTES
    with on_disk(tmp_path / "file").open("rb") as plain, mmap(plain.fileno(), 0, access=ACCESS_READ) as mapped:
        assert b"".join(await gathered(mapped)) == BYTES  # type: ignore[arg-type]
    assert b"".join(await gathered(ReadsOddly(BYTES, bytearray(b"more"), memoryview(b"still"), b"", b"never"))) == BYTES + b"morestill"  # type: ignore[arg-type]
    assert await gathered(Both()) == [b"async"]
    file = io.BytesIO(BYTES)
    file.seek(5)
    assert b"".join(await gathered(file)) == BYTES[5:]
    assert file.read() == b"", "read to its end"


async def test_a_buffer_that_changes_while_it_is_read_does_not_change_chunks_that_were_taken() -> None:
    buffer = bytearray(b"a" * 200)
    async with aclosing(chunks(buffer, 100)) as source:
        first = await anext(source)
        buffer[:] = b"b" * 200
        assert (first, await anext(source)) == (b"a" * 100, b"b" * 100)


async def test_the_first_chunks_of_an_async_iterator_wait_for_no_other() -> None:
    """It may wait for what becomes of one before it yields the next; many small ones are joined."""
    taken = 0

    async def payload() -> AsyncIterator[bytes]:
        nonlocal taken
        for number in range(10_000):
            assert number > 10 or taken == number
            yield b"x"

    found = []
    async with aclosing(chunks(payload())) as source:
        async for chunk in source:
            taken += 1
            found.append(len(chunk))
    assert found[:11] == [1] * 11
    assert sum(found) == 10_000 and len(found) < 30


async def test_a_put_takes_bytes_in_large_views_unless_each_chunk_is_reported() -> None:
    payload = bytes(VIEW_BYTES + CHUNK_BYTES)
    assert [len(chunk) async for chunk in chunks(payload, views=VIEW_BYTES)] == [VIEW_BYTES, CHUNK_BYTES]
    [whole] = [chunk async for chunk in chunks(payload[:VIEW_BYTES], views=VIEW_BYTES)]
    assert isinstance(whole, bytes)  # the object itself: its checksum needs no copy
    reported = chunks(payload, views=VIEW_BYTES)
    reported.report_to(ProgressCount(lambda done, total: None), None)
    assert {len(chunk) async for chunk in reported} == {CHUNK_BYTES}


@pytest.mark.parametrize("more", [0, 1, 3 * CHUNK_BYTES])
async def test_a_large_file_takes_few_calls_into_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    path, calls, reads = tmp_path / "large", 0, in_threads.PlainFile._read
    path.write_bytes(b"first")
    os.truncate(path, in_threads.WIDE_FROM_BYTES + more)  # the rest is a hole

    def counted(file: in_threads.PlainFile) -> bytes | None:
        nonlocal calls
        calls += 1
        return reads(file)

    monkeypatch.setattr(in_threads.PlainFile, "_read", counted)
    wide = in_threads.WIDE_BYTES if more else CHUNK_BYTES
    async with aclosing(chunks(path)) as source:
        sizes = [len(chunk) async for chunk in source]
        assert source.size == sum(sizes) == in_threads.WIDE_FROM_BYTES + more
    assert set(sizes[:-1]) == {wide} and calls == len(sizes) == -(-sum(sizes) // wide)


async def test_a_buffer_that_can_change_is_not_taken_in_large_views() -> None:
    payload = bytearray(3 * CHUNK_BYTES)
    got = [chunk async for chunk in chunks(payload, views=VIEW_BYTES)]
    assert [len(chunk) for chunk in got] == 3 * [CHUNK_BYTES]
    assert all(isinstance(chunk, bytes) for chunk in got)


async def test_a_kind_of_bytes_that_tells_another_length_is_stored_as_its_buffer_is() -> None:
    class OddBytes(bytes):
        def __len__(self) -> int:
            return 10

    assert b"".join(await gathered(OddBytes(BYTES), size=10)) == BYTES
