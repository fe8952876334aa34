"""Payloads as streams: every kind a caller may pass, what is refused, and that little is held at once."""

from __future__ import annotations

import gzip
import io
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from changelog.errors import InvalidRequestError
from tiered.payload import PIECE_BYTES, Payload, Piece, pieces, split_head

pytestmark = pytest.mark.anyio

BYTES = bytes(range(256)) * 4 + b"tail"


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def gathered(payload: Payload, size: int = 100) -> list[Piece]:
    async with aclosing(pieces(payload, size)) as source:
        return [piece async for piece in source]


async def size_of(payload: Payload) -> int | None:
    """As far as it is known when the payload has been begun."""
    async with aclosing(pieces(payload, 100)) as source:
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
async def test_every_kind_of_payload_comes_in_pieces_of_at_most_the_size_none_empty(kind: str, tmp_path: Path) -> None:
    payload = KINDS[kind](tmp_path / "payload")
    async with aclosing(pieces(payload, 100)) as source:
        got = [piece async for piece in source]
        assert source.size == (None if kind in SIZE_UNKNOWN else len(BYTES))
    assert b"".join(got) == BYTES
    assert all(0 < len(piece) <= 100 for piece in got)
    if isinstance(payload, io.IOBase):
        payload.close()


@pytest.mark.parametrize("payload", [b"", bytearray(), [], [b"", b""], io.BytesIO()])
async def test_an_empty_payload_has_no_pieces(payload: Payload) -> None:
    assert await gathered(payload) == []


async def test_bytes_are_sliced_and_never_copied() -> None:
    payload = bytes(3 * PIECE_BYTES)
    got = await gathered(payload, PIECE_BYTES)
    assert len(got) == 3
    assert all(isinstance(piece, memoryview) and piece.obj is payload for piece in got)


async def test_a_buffer_that_its_owner_refills_does_not_change_the_pieces_before() -> None:
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
        assert await size_of(file) == 0
        assert not file.closed


async def test_a_file_beyond_its_end_has_nothing_left(tmp_path: Path) -> None:
    with on_disk(tmp_path / "payload").open("rb") as on_the_disk:
        for file in (io.BytesIO(b"abc"), on_the_disk):
            file.seek(5000)
            assert await size_of(file) == 0
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


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ("text", r"type str .* text\.encode\(\), or pathlib\.Path"),
        ({"a": b"b"}, "type dict cannot be stored: pass bytes"),
        (None, "type NoneType"),
        (5, "type int"),
        (io.StringIO("text"), r"type StringIO yields text: open the file in binary mode \('rb'\)"),
        (memoryview(b"abcdef")[::2], r"contiguous .* pass bytes\(view\)"),
    ],
)
def test_what_is_no_payload_is_refused_at_once_with_the_fix(payload: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        pieces(payload)


@pytest.mark.parametrize("parts", [lambda *parts: list(parts), async_parts], ids=["iterable", "async iterable"])
@pytest.mark.parametrize(("wrong", "words"), [("text", "type str"), (5, "type int"), (None, "type NoneType")])
async def test_a_piece_that_is_not_bytes_is_refused_when_it_comes(parts: Any, wrong: object, words: str) -> None:
    async with aclosing(pieces(parts(b"fine", wrong))) as source:
        with pytest.raises(InvalidRequestError, match=f"piece of the payload has {words}: yield bytes"):
            await anext(source)


@pytest.mark.parametrize("name", ["missing", "missing/below", "."])
async def test_a_path_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=str(tmp_path / name)):
        await gathered(tmp_path / name)


# --- what a caller's iterator does ---------------------------------------------------------------


class OwnError(Exception):
    pass


def failing() -> Iterator[bytes]:
    yield b"before"
    raise OwnError


async def async_failing() -> AsyncIterator[bytes]:
    yield b"before"
    raise OwnError


@pytest.mark.parametrize("iterator", [failing, async_failing])
async def test_what_an_iterator_raises_half_way_is_passed_on_unchanged(iterator: Any) -> None:
    async with aclosing(pieces(iterator())) as source:
        with pytest.raises(OwnError):
            await anext(source)
        assert [piece async for piece in source] == []


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
    source = pieces(aiter(endless) if direct else endless)
    assert bytes(await anext(source)).startswith(b"again and again")
    await source.aclose()
    assert endless.closed


async def test_a_path_is_closed_when_the_payload_is_abandoned(tmp_path: Path) -> None:
    source = pieces(on_disk(tmp_path / "payload"), 10)
    await anext(source)
    before = len(os.listdir("/proc/self/fd"))
    await source.aclose()
    assert len(os.listdir("/proc/self/fd")) == before - 1


# --- heads ---------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.binary(max_size=20), max_size=20), limit=st.integers(0, 100))
async def test_a_head_is_the_whole_payload_or_just_more_than_the_limit(parts: list[bytes], limit: int) -> None:
    whole = b"".join(parts)
    async with aclosing(pieces(parts, 30)) as source:
        head, size, rest = await split_head(source, limit)
        assert size == sum(map(len, head))
        assert whole.startswith(b"".join(head))
        if rest is None:
            assert size == len(whole) <= limit
        else:
            assert limit < size <= limit + 30
            assert b"".join(head) + b"".join([piece async for piece in rest]) == whole


async def test_no_more_is_read_than_tells_small_from_large_and_what_fills_a_piece() -> None:
    taken = []

    async def counted() -> AsyncIterator[bytes]:
        for number in range(100):
            taken.append(number)
            yield b"x" * 10

    async with aclosing(pieces(counted(), 40)) as source:
        _, size, rest = await split_head(source, 25)
        assert (size, rest) == (40, source)
        assert taken == [0, 1, 2, 3]


async def test_a_file_of_anyio_is_a_payload_of_unknown_length(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"one\ntwo\n")
    async with await anyio.open_file(tmp_path / "file", "rb") as file:
        assert await size_of(file) is None
        await file.seek(0)
        assert b"".join(await gathered(file)) == b"one\ntwo\n"
