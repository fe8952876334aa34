"""zstd as a stream: any frames in any chunks, and what is cut off or damaged is never a shorter payload."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.base.errors import ConfigurationError, CorruptRecordError, UnavailableError
from changelog.base.extras import installing
from tiered.payload import zstd
from tiered.payload.zstd import GIVEN_BYTES, IN_THREAD_BYTES, Compressor, Decompressor

pytestmark = pytest.mark.anyio

LIBRARY = zstd._library()
SKIPPABLE = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"abcde"
FAR = bytes.fromhex("28b52ffd 00 90 010000")
"""An empty frame that may look back 256 MiB."""
NOISE = bytes(number * number * 7919 % 251 for number in range(3 * IN_THREAD_BYTES))


async def compressed(payload: bytes, chunk_bytes: int = 1 << 30, *, tells_size: bool = True) -> bytes:
    compressor = Compressor()
    if tells_size:
        compressor.expect(len(payload))
    made = [await compressor.add(payload[at : at + chunk_bytes]) for at in range(0, len(payload), chunk_bytes)]
    return b"".join([*made, compressor.end()])


async def pieces(stored: bytes, chunk_bytes: int = 1 << 30, error: Exception | None = None) -> list[bytes]:
    """What a decompressor gives of these bytes. `error`: what reading raises after them, instead of their end."""
    chunks: Iterable[bytes] = iter([stored[at : at + chunk_bytes] for at in range(0, len(stored), chunk_bytes)])
    decompressor, given = Decompressor("u/objects/k"), []

    async def read() -> bytes:
        for chunk in chunks:
            return chunk
        raise StopAsyncIteration if error is None else error

    with suppress(StopAsyncIteration):
        while True:
            given.append(await decompressor.take(read))
    return given


REPEATED = st.builds(lambda part, times: part * times, st.binary(min_size=1, max_size=9), st.integers(0, 20_000))


@settings(max_examples=60)
@given(
    payloads=st.lists(st.binary(max_size=300) | REPEATED, max_size=4), cut=st.integers(1, 5000), give=st.integers(1, 70_000),
    skip=st.booleans(), tells_size=st.booleans(),
)  # fmt: skip
def test_any_number_of_frames_in_any_chunks_are_the_payload(
    payloads: list[bytes], cut: int, give: int, skip: bool, tells_size: bool
) -> None:
    async def read_back() -> None:
        frames = [await compressed(payload, cut, tells_size=tells_size) for payload in payloads]
        given = await pieces((SKIPPABLE if skip else b"").join(frames), give)
        assert b"".join(given) == b"".join(payloads) and all(given)

    anyio.run(read_back)


async def test_large_chunks_are_worked_on_in_threads_and_give_the_same() -> None:
    payload = NOISE * 11
    stored = await compressed(payload, 4 * IN_THREAD_BYTES)
    assert len(stored) < len(payload) and LIBRARY.get_frame_info(stored).decompressed_size == len(payload)
    assert b"".join(await pieces(stored, 256 * 1024)) == payload
    assert LIBRARY.get_frame_info(await compressed(payload, IN_THREAD_BYTES, tells_size=False)).decompressed_size is None


@pytest.mark.parametrize("frames", [0, 1], ids=["no frame", "an empty frame"])
async def test_nothing_is_an_empty_payload(frames: int) -> None:
    assert await pieces(await compressed(b"") * frames) == []


async def test_a_bomb_comes_in_pieces_of_bounded_size() -> None:
    """A few KiB stand for 64 MiB. What is decompressed beside what is taken stays within a few MiB."""
    stored: bytes = LIBRARY.compress(bytes(64 << 20))
    waiting, chunks, decompressor, size = 0, iter([stored]), Decompressor("u/objects/k"), 0

    async def read() -> bytes:
        for chunk in chunks:
            return chunk
        raise StopAsyncIteration

    with suppress(StopAsyncIteration):
        while True:
            size += len(await decompressor.take(read))
            waiting = max(waiting, sum(map(len, decompressor._ready)))
    assert (len(stored) < 8192, size, waiting <= GIVEN_BYTES) == (True, 64 << 20, True)


async def test_many_small_frames_do_not_hold_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 KiB may be 2,000 frames. Each costs the same as a larger one, so only the first is worked on at once."""
    in_loop, loop, real = [0], threading.get_ident(), LIBRARY.ZstdDecompressor

    def counted(**options: object) -> object:
        in_loop[0] += threading.get_ident() == loop
        return real(**options)

    empty, full = await compressed(b""), await compressed(b"hello")
    monkeypatch.setattr(LIBRARY, "ZstdDecompressor", counted)
    for frame, payload in ((SKIPPABLE, b""), (empty, b""), (full, b"hello" * 500)):
        in_loop[0] = 0
        assert b"".join(await pieces(frame * 500)) == payload
        assert in_loop[0] == 1


async def test_each_cut_of_a_frame_is_corrupt_and_never_a_shorter_payload() -> None:
    for payload in (b"", b"hello", b"a" * 3000):
        whole = await compressed(payload)
        for end in range(1, len(whole)):
            for before in (b"", whole, SKIPPABLE):
                with pytest.raises(CorruptRecordError, match=r"u/objects/k is stored as zstd.*middle of a frame.*decompress=False"):
                    await pieces(before + whole[:end])


@pytest.mark.parametrize("chunk_bytes", [1 << 30, 7])
async def test_damaged_bytes_are_corrupt_and_say_why(chunk_bytes: int) -> None:
    frame = await compressed(NOISE[:1000])
    for damaged, why in (
        (b"no zstd at all", "Unknown frame descriptor"), (frame + b"trailing", "Unknown frame descriptor"),
        (frame[:-1] + bytes([frame[-1] ^ 1]), "match checksum"),
        (FAR, "too much memory"),
    ):  # fmt: skip
        with pytest.raises(CorruptRecordError, match=why):
            await pieces(damaged, chunk_bytes)


async def test_bytes_that_were_damaged_on_their_way_are_not_called_corrupt() -> None:
    """The service's checksum is compared after the last byte, and only it can tell."""
    on_the_way = UnavailableError("damaged on its way")
    for damaged in (b"no zstd" * 10_000, (await compressed(NOISE))[:-9] + b"damaged??"):
        with pytest.raises(UnavailableError, match="on its way"):
            await pieces(damaged, 5000, on_the_way)


async def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("backports.zstd", "compression.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=re.escape(f"{installing('zstd')}, or compress it yourself")):
        Compressor()
    with pytest.raises(ConfigurationError, match=re.escape(f"{installing('zstd')}, or read it with decompress=False")):
        Decompressor("u/objects/k")
