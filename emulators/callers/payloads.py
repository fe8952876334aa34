"""Payloads of every kind that `put` takes, and of those that it must refuse.

Each is a function that makes it when it is put.

    GOOD     the put is done, and reads return `content`
    FAILS    the put raises what the payload raised, the very object; nothing is stored
    WRONG    `InvalidRequestError`
    ODD      done (and what was stored is `content`, if that is known), or refused,
             or the put raises the payload's own error, or one of a type in `may_raise`

Kinds that need threads or files do not run in a simulated world, because a thread does not know its clock.
"""

from __future__ import annotations

import asyncio
import gzip
import inspect
import io
import os
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

import anyio
import anyio.lowlevel

from emulators.callers.interrupt import ELSEWHERE, ForeignTask
from emulators.callers.values import JUNK, Is, said
from tiered import UnavailableError

FOREVER_S = 10_000.0
STALL_S = 0.05


class OwnError(Exception):
    """Raised by our own payloads."""


@dataclass(slots=True)
class Made:
    """A payload as it is passed to `put`.

    `content`: what is stored if it is put; None: nobody knows. `fails`: the put must raise what the payload raises.
    `own`: the errors that the payload raises. `may_raise`: further types of error that the put may raise. `afterwards`:
    runs when the call has ended, to close files and end threads. `shows`: what the payload saw that it should not see.
    """

    payload: Any
    content: bytes | None
    verdict: Is = Is.GOOD
    fails: bool = False
    own: list[BaseException] = field(default_factory=list)
    may_raise: tuple[type[BaseException], ...] = ()
    afterwards: Callable[[], object] | None = None
    shows: list[str] = field(default_factory=list)


class PayloadContext(Protocol):
    """What a payload may use of the episode."""

    loop_thread: int
    directory: Path

    async def stored(self) -> Any: ...
    async def call_back(self) -> None: ...
    def new_path(self, content: bytes | None = None) -> Path: ...


@dataclass(frozen=True, slots=True)
class Payload:
    """The payload that a seed chose. `size`: about how many bytes. `salt`: makes its content."""

    kind: str
    size: int
    salt: int

    def __str__(self) -> str:
        return f"{said(JUNK[self.salt % len(JUNK)])} as payload" if self.kind == "junk" else f"{self.kind} of {self.size} bytes"

    @property
    def blocks(self) -> bool:
        """Whether it never ends. A put of it must be cancelled."""
        return self.kind in BLOCKING

    async def make(self, place: PayloadContext) -> Made:
        made = _KINDS[self.kind](self, place)
        return made if isinstance(made, Made) else await made

    def random(self) -> Random:
        return Random(f"payload {self.salt}")

    def content(self) -> bytes:
        return self.random().randbytes(self.size)

    def chunks(self) -> list[bytes]:
        return cut(self.content(), self.random())

    def tiny_chunks(self) -> bytes:
        return self.random().randbytes(20_000)


Maker = Callable[[Payload, PayloadContext], Made | Awaitable[Made]]
_KINDS: dict[str, Maker] = {}
BLOCKING: set[str] = set()
WITH_THREADS: set[str] = set()
ASYNCIO_ONLY: set[str] = set()
SLOW: set[str] = set()
"""Kinds that take long, and so are chosen seldom."""


def kind(*, blocks: bool = False, threads: bool = False, slow: bool = False, asyncio_only: bool = False) -> Callable[[Maker], Maker]:
    def add(maker: Maker) -> Maker:
        name = maker.__name__.strip("_").replace("_", " ")
        _KINDS[name] = maker
        for wanted, group in ((blocks, BLOCKING), (threads, WITH_THREADS), (slow, SLOW), (asyncio_only, ASYNCIO_ONLY)):
            if wanted:
                group.add(name)
        return maker

    return add


Generator = Callable[[Payload, PayloadContext, Made], AsyncIterator[bytes] | Iterator[bytes]]


def generator(
    content: Callable[[Payload], bytes | None] = lambda spec: None, *, fails: bool = False, may_raise: tuple[type[BaseException], ...] = (),
    **traits: bool,
) -> Callable[[Generator], Generator]:
    """Adds a kind whose payload is this generator. `content`: what it yields in all. `traits`: as for `kind`."""
    def add(function: Generator) -> Generator:
        is_sync = inspect.isgeneratorfunction(function)

        def make(spec: Payload, place: PayloadContext) -> Made:
            made = Made(None, content(spec), fails=fails, may_raise=may_raise)
            chunks: Any = function(spec, place, made)
            made.payload = _watched(chunks, place, made.shows) if is_sync else chunks
            return made

        make.__name__ = function.__name__
        kind(**{"threads": is_sync, **traits})(make)
        return function

    return add


def kinds(*, threads: bool, on_asyncio: bool) -> list[str]:
    return [name for name in _KINDS if (threads or name not in WITH_THREADS) and (on_asyncio or name not in ASYNCIO_ONLY)]


def cut(content: bytes, random: Random) -> list[bytes]:
    chunks, at = [], 0
    while at < len(content):
        size = random.choice((1, 7, 100, 5000, 300_000))
        chunks.append(content[at : at + size])
        at += size
        if random.random() < 0.2:
            chunks.append(b"")
    return chunks


# --- in memory -----------------------------------------------------------------------------------


_KINDS |= {
    "bytes": lambda spec, place: Made(spec.content(), spec.content()),
    "list of chunks": lambda spec, place: Made(spec.random().choice((list, tuple, deque))(spec.chunks()), spec.content()),
    "memoryview with gaps": lambda spec, place: Made(memoryview(bytes(max(4, spec.size)))[::2], None, Is.WRONG),
    "text": lambda spec, place: Made(spec.random().choice(("", "text", "\ud800", io.StringIO("text"))), None, Is.WRONG),
    "async iterator": lambda spec, place: Made(_Anyhow(spec.chunks()), spec.content()),
}


@kind()
def _bytearray_changed_afterwards(spec: Payload, place: PayloadContext) -> Made:
    payload = bytearray(spec.content())
    return Made(payload, spec.content(), afterwards=lambda: payload.__setitem__(slice(None), bytes(len(payload))))


@kind()
def _memoryview_of_integers(spec: Payload, place: PayloadContext) -> Made:
    numbers = array("I", range(spec.size // 4))
    return Made(memoryview(numbers), numbers.tobytes())


@kind()
def _memoryview_of_two_dimensions(spec: Payload, place: PayloadContext) -> Made:
    content = bytes(spec.size // 4 * 4 + 4)
    return Made(memoryview(content).cast("B", (2, len(content) // 2)), content)


@kind()
def _memoryview_that_was_released(spec: Payload, place: PayloadContext) -> Made:
    view = memoryview(spec.content())
    view.release()
    return Made(view, None, Is.WRONG)


@kind(threads=True)
def _bytes_io_at_a_position(spec: Payload, place: PayloadContext) -> Made:
    skipped = b"skip" if spec.content() else b""  # put refuses a file of which nothing is left
    file = io.BytesIO(skipped + spec.content())
    file.seek(len(skipped))
    return Made(file, spec.content())


@kind()
def _one_huge_chunk(spec: Payload, place: PayloadContext) -> Made:
    content = spec.random().randbytes(1_100_000)
    return Made([content], content)


@kind()
def _iterable_of_wrong_types(spec: Payload, place: PayloadContext) -> Made:
    odd = spec.random().choice([each for each in JUNK if not isinstance(each, (bytes, bytearray))])
    return Made([spec.content(), odd], None, Is.WRONG)


@kind(threads=True)
def _junk(spec: Payload, place: PayloadContext) -> Made:
    junk: Any = JUNK[spec.salt % len(JUNK)]
    empty = isinstance(junk, (tuple, list, set)) and not junk
    if isinstance(junk, (bytes, bytearray)) or empty:
        return Made(junk, b"" if empty else bytes(junk))
    return Made(junk, None, Is.WRONG)


# --- generators ----------------------------------------------------------------------------------


def _watched(chunks: Iterator[bytes], place: PayloadContext, shows: list[str]) -> Iterator[bytes]:
    """Yields the chunks. It may block, so it must not run in the thread of the event loop; `shows` records if it does.
    """
    if threading.get_ident() == place.loop_thread:
        shows.append("loop: a synchronous generator runs in the event loop's thread")
    yield from chunks


@generator(Payload.content)
def _generator(spec: Payload, place: PayloadContext, made: Made) -> Iterator[bytes]:
    yield from spec.chunks()


@generator(lambda spec: b"".join(spec.chunks()[:3]))
def _generator_that_blocks_a_little(spec: Payload, place: PayloadContext, made: Made) -> Iterator[bytes]:
    for chunk in spec.chunks()[:3]:
        time.sleep(STALL_S / 3)
        yield chunk


@kind(threads=True)
def _generator_that_yields_nothing(spec: Payload, place: PayloadContext) -> Made:
    return Made(iter(map(bytes, ())), b"")


@generator(lambda spec: b"")
def _generator_of_empty_chunks(spec: Payload, place: PayloadContext, made: Made) -> Iterator[bytes]:
    yield from (b"" for _ in range(2000))


@generator(Payload.tiny_chunks, slow=True)
def _generator_of_tiny_chunks(spec: Payload, place: PayloadContext, made: Made) -> Iterator[bytes]:
    yield from (bytes([each]) for each in spec.tiny_chunks())


class _Stops:
    """An iterable that is none: `__iter__` raises, or returns something else."""

    def __init__(self, what: object) -> None:
        self._what = what

    def __iter__(self) -> Any:
        if isinstance(self._what, BaseException):
            raise self._what
        return self._what


def _errors(random: Random) -> BaseException:
    return random.choice([
        OwnError("ours"), ValueError("v"), KeyError("k"), OSError(5, "Input/output error"), UnavailableError("ours, too"), TimeoutError("t"),
        ExceptionGroup("group", [OwnError("inside")]), RecursionError("r"), AttributeError("a"), LookupError(), EOFError(), TypeError("own"),
        anyio.EndOfStream(), anyio.ClosedResourceError(), anyio.BrokenResourceError(), anyio.WouldBlock(), BrokenPipeError(32, "Broken pipe"),
        FileNotFoundError(2, "No such file"), MemoryError(), AssertionError("a"),
    ])  # fmt: skip


@generator(fails=True)
def _generator_that_raises(spec: Payload, place: PayloadContext, made: Made) -> Iterator[bytes]:
    yield from spec.chunks()
    made.own.append(_errors(spec.random()))
    raise made.own[0]


@generator(fails=True, may_raise=ELSEWHERE, asyncio_only=True)
def _generator_that_raises_cancelled(spec: Payload, place: PayloadContext, made: Made) -> Iterator[bytes]:
    yield spec.content()
    made.own.append(asyncio.CancelledError("of another loop"))
    raise made.own[0]


@kind(threads=True)
def _iterable_whose_iter_fails(spec: Payload, place: PayloadContext) -> Made:
    what = spec.random().choice((OwnError("ours"), TypeError("own"), None, 5, "text"))
    own = [what] if isinstance(what, BaseException) else []
    return Made(_Stops(what), None, Is.ODD, own=list(own), may_raise=(TypeError,))


# --- asynchronous --------------------------------------------------------------------------------


@generator(Payload.content)
async def _async_generator(spec: Payload, place: PayloadContext, made: Made) -> AsyncIterator[bytes]:
    for chunk in spec.chunks():
        await anyio.lowlevel.checkpoint()
        yield chunk


@generator(Payload.content)
async def _async_generator_that_never_waits(spec: Payload, place: PayloadContext, made: Made) -> AsyncIterator[bytes]:
    for chunk in spec.chunks():
        yield chunk


@generator(lambda spec: b"")
async def _async_generator_that_yields_nothing(spec: Payload, place: PayloadContext, made: Made) -> AsyncIterator[bytes]:
    return
    yield b""


@generator(Payload.tiny_chunks, slow=True)
async def _async_generator_of_tiny_chunks(spec: Payload, place: PayloadContext, made: Made) -> AsyncIterator[bytes]:
    for each in spec.tiny_chunks():
        yield bytes([each])


@generator(blocks=True, threads=True)  # a virtual clock would stand still while it runs
async def _async_generator_of_empty_chunks_for_ever(spec: Payload, place: PayloadContext, made: Made) -> AsyncIterator[bytes]:
    yield spec.content()
    while True:
        yield b""


@generator(fails=True)
async def _async_generator_that_raises(spec: Payload, place: PayloadContext, made: Made) -> AsyncIterator[bytes]:
    yield spec.content()
    await anyio.lowlevel.checkpoint()
    made.own.append(_errors(spec.random()))
    raise made.own[0]


@generator(blocks=True)
async def _async_generator_that_blocks(spec: Payload, place: PayloadContext, made: Made) -> AsyncIterator[bytes]:
    yield spec.content()
    await anyio.sleep(FOREVER_S)
    yield b"never"


@generator(blocks=True)
async def _async_generator_that_blocks_while_it_is_closed(spec: Payload, place: PayloadContext, made: Made) -> AsyncIterator[bytes]:
    """It blocks for a little while, for its own clean-up."""
    try:
        yield spec.content()
        await anyio.sleep(FOREVER_S)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(STALL_S)


@generator(fails=True, may_raise=ELSEWHERE, asyncio_only=True)
async def _async_generator_that_awaits_a_task_cancelled_by_others(
    spec: Payload, place: PayloadContext, made: Made
) -> AsyncIterator[bytes]:
    yield spec.content()
    async with ForeignTask() as foreign:
        try:
            await foreign.cancelled()
        except asyncio.CancelledError as error:
            made.own.append(error)
            raise


@generator(lambda spec: spec.content() + b"and")
async def _async_generator_that_calls_the_store(spec: Payload, place: PayloadContext, made: Made) -> AsyncIterator[bytes]:
    yield spec.content()
    await place.call_back()
    yield b"and"


# If the scope ends while its chunk is being stored, the scope cancels that as well (docs/decisions/store.md, 19).
@generator(lambda spec: spec.content() + b"andthen", may_raise=ELSEWHERE)
async def _async_generator_with_a_scope_of_its_own(spec: Payload, place: PayloadContext, made: Made) -> AsyncIterator[bytes]:
    with anyio.CancelScope():
        yield spec.content()
        with anyio.move_on_after(0.001):
            yield b"and"
            await anyio.sleep(FOREVER_S)
        yield b"then"


@generator(Payload.content)
async def _async_generator_with_a_task_group(spec: Payload, place: PayloadContext, made: Made) -> AsyncIterator[bytes]:
    """If the put gives up in the middle, the group wraps the `GeneratorExit`. That is not an error."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep, FOREVER_S)
        yield spec.content()
        tasks.cancel_scope.cancel()


class _Anyhow:
    """An async iterator that is not a generator and has nothing to close."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def __aiter__(self) -> _Anyhow:
        return self

    async def __anext__(self) -> bytes:
        if not self._chunks:
            raise StopAsyncIteration
        return self._chunks.pop(0)


@kind()
async def _stored_object(spec: Payload, place: PayloadContext) -> Made:
    """A stored object as payload: a copy by streaming."""
    stored, content = await place.stored()
    if stored is None:
        return Made(spec.content(), spec.content())
    return Made(stored, content, may_raise=(UnavailableError,))  # another call may replace what it reads in the meantime


# --- files ---------------------------------------------------------------------------------------


@kind(threads=True)
def _path(spec: Payload, place: PayloadContext) -> Made:
    return Made(place.new_path(spec.content()), spec.content())


class _Named:
    def __init__(self, path: object) -> None:
        self._path = path

    def __fspath__(self) -> Any:
        if isinstance(self._path, BaseException):
            raise self._path
        return self._path


@kind(threads=True)
def _path_of_no_file(spec: Payload, place: PayloadContext) -> Made:
    odd = spec.random().choice([
        place.directory, place.new_path(), Path("/dev/null/none/x"), Path("a\0b"), Path("x" * 5000), _Named("a\0b"), _Named(5),
        _Named(b"/dev/null/none"), _Named(None), Path("\ud800"), Path("/dev/mem/x"),
    ])  # fmt: skip
    return Made(odd, None, Is.WRONG)


@kind(threads=True)
def _path_of_a_link(spec: Payload, place: PayloadContext) -> Made:
    link = place.new_path()
    link.symlink_to(place.new_path(spec.content()))
    return Made(link, spec.content())


@kind(threads=True)
def _path_under_proc(spec: Payload, place: PayloadContext) -> Made:
    return Made(Path("/proc/version"), Path("/proc/version").read_bytes())


@kind(threads=True)
def _open_file_at_a_position(spec: Payload, place: PayloadContext) -> Made:
    skipped = b"skip" if spec.content() else b""
    file = place.new_path(skipped + spec.content()).open("rb", buffering=spec.random().choice((0, -1)))
    file.seek(len(skipped))
    return Made(file, spec.content(), afterwards=file.close)


@kind(threads=True)
def _file_that_is_no_longer_open(spec: Payload, place: PayloadContext) -> Made:
    file = io.BytesIO() if spec.salt % 2 else (place.directory / "closed").open("wb")
    file.close()
    return Made(file, None, Is.ODD, may_raise=(ValueError, OSError))


@kind(threads=True)
def _file_for_writing_only(spec: Payload, place: PayloadContext) -> Made:
    file = place.new_path().open("wb")
    return Made(file, None, Is.ODD, may_raise=(ValueError, OSError), afterwards=file.close)


class _Changing(io.FileIO):
    """A file that somebody changes when it is first read."""

    def __init__(self, path: Path, change: Callable[[Path], object]) -> None:
        super().__init__(path)
        self._changes = [lambda: change(path)]

    def read(self, size: int | None = -1, /) -> bytes:
        if self._changes:
            self._changes.pop()()
        return super().read(-1 if size is None else size) or b""


@kind(threads=True)
def _file_that_grows(spec: Payload, place: PayloadContext) -> Made:
    file = _Changing(place.new_path(spec.content()), lambda path: path.write_bytes(spec.content() + b"grown"))
    return Made(file, spec.content() + b"grown", afterwards=file.close)


@kind(threads=True)
def _file_that_shrinks(spec: Payload, place: PayloadContext) -> Made:
    file = _Changing(place.new_path(spec.content() + b"xx"), lambda path: os.truncate(path, 1))
    return Made(file, None, Is.ODD, afterwards=file.close)


@kind(threads=True)
def _gzip_file(spec: Payload, place: PayloadContext) -> Made:
    file = gzip.open(place.new_path(gzip.compress(spec.content(), 1)), "rb")  # noqa: SIM115 - the put reads it
    return Made(file, spec.content(), afterwards=file.close)


@kind(threads=True)
def _text_file(spec: Payload, place: PayloadContext) -> Made:
    file = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - the put refuses it
    return Made(file, None, Is.WRONG, afterwards=file.close)


class _Reads:
    """An object that has `read` and nothing else."""

    def __init__(self, answers: list[Any]) -> None:
        self._answers = answers

    def read(self, size: int = -1) -> Any:
        answer = self._answers.pop(0) if self._answers else b""
        if isinstance(answer, BaseException):
            raise answer
        return answer


@kind(threads=True)
def _object_with_read(spec: Payload, place: PayloadContext) -> Made:
    random = spec.random()
    chunks = [chunk for chunk in cut(spec.content(), random) if chunk]
    if random.random() < 0.5:
        return Made(_Reads(chunks), spec.content())
    odd = random.choice((None, "text", 5, object(), OwnError("ours"), OSError(5, "Input/output error"), [b"x"], StopIteration("s")))
    own = [odd] if isinstance(odd, BaseException) else []
    return Made(_Reads([*chunks, odd]), None, Is.ODD, own=own, may_raise=(RuntimeError,) if isinstance(odd, StopIteration) else ())


@kind(threads=True)
def _path_of_a_pipe(spec: Payload, place: PayloadContext) -> Made:
    """A pipe whose writer is slow, and ends."""
    path = place.new_path()
    os.mkfifo(path)
    content = spec.content()[:50_000]

    def write() -> None:
        with suppress(OSError), path.open("wb", buffering=0) as pipe:
            time.sleep(STALL_S / 5)
            pipe.write(content)

    writer = threading.Thread(target=write, name="writes into a pipe")
    writer.start()
    return Made(path, content, afterwards=lambda: _end_of_pipe(path, writer))


def _end_of_pipe(path: Path, writer: threading.Thread) -> None:
    """Reads the rest of the pipe, so that a writer that nobody heard ends as well."""
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    deadline = time.monotonic() + 10
    while writer.is_alive() and time.monotonic() < deadline:
        with suppress(BlockingIOError):
            os.read(reader, 65536)
        writer.join(0.01)
    os.close(reader)


@kind(threads=True, blocks=True)
def _path_of_a_pipe_without_a_writer(spec: Payload, place: PayloadContext) -> Made:
    path = place.new_path()
    os.mkfifo(path)

    def unblock() -> None:
        """Gives a writer, which ends at once, to every thread that waits for one."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            with suppress(OSError):  # nobody reads, so nobody waits
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            time.sleep(0.01)
            if not any(each.name == "AnyIO worker thread" and _opens(each) for each in threading.enumerate()):
                return

    return Made(path, None, afterwards=unblock)


def _opens(thread: threading.Thread) -> bool:
    """Tells whether the thread waits in a function of `tiered/payload/streams.py`, which opens and reads files."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_filename.endswith("tiered/payload/streams.py"):
            return True
        frame = frame.f_back
    return False


@kind(threads=True, blocks=True)
def _pipe_that_stalls(spec: Payload, place: PayloadContext) -> Made:
    reader, writer = os.pipe()
    file = os.fdopen(reader, "rb", buffering=0)
    os.write(writer, spec.content()[:1000])

    def unblock() -> None:
        os.close(writer)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and any(_opens(each) for each in threading.enumerate()):
            time.sleep(0.01)
        file.close()

    return Made(file, None, afterwards=unblock)
