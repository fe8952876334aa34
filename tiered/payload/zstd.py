"""zstd in bounded memory: what `compress` of a put and `decompress` of a get do, one chunk after another.

    compressed     into one frame, which ends with a checksum, and tells the payload's size if that is known before
    decompressed   any number of frames, also skippable ones (RFC 8878); no byte is no frame, and an empty payload

A few stored bytes may stand for any number. So a decompressor gives `GIVEN_BYTES` at most before it is asked again, and
refuses a frame that looks back further than `WINDOW_LOG_MAX`. What may take long runs in threads of its own kind.

*Failure*: bytes that are no zstd, and a frame that is cut off, are a `CorruptRecordError`, never a shorter payload. But
first the rest of the stored bytes is read: if they were damaged on their way, their service's checksum says so, and
that is the error. The library is imported when it is first needed; Python has it from 3.14 on.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar

from changelog.base.errors import ConfigurationError, CorruptRecordError
from changelog.base.extras import installing
from changelog.base.threads import in_thread

COMPRESSION = "Zstd"
"""What metadata call it."""

WINDOW_LOG_MAX = 27
"""A frame may look back 128 MiB, which is what one open object then takes. All levels of zstd stay within that."""

GIVEN_BYTES = 1024 * 1024
"""So much is decompressed in one call into a thread."""

IN_THREAD_BYTES = 64 * 1024
"""A call into a thread costs 50 to 200 µs. To compress so many bytes takes 70 to 240 µs."""

_STEP_BYTES = 64 * 1024
"""What is decompressed at once, of what is stored and of what it stands for. The rest is copied after each frame."""

_SMALL_BYTES = 16 * 1024
_MAGIC, _HEADER_BYTES_MAX, _SINGLE_SEGMENT = b"\x28\xb5\x2f\xfd", 18, 0x20
_THREADS_MAX = 8
_threads: RunVar[CapacityLimiter] = RunVar("tiered.payload.zstd.threads")


class Compressor:
    """Compresses one payload. `ConfigurationError`: the library is not installed."""

    def __init__(self) -> None:
        library = _library()
        self._frame: Any = library.ZstdCompressor(options={library.CompressionParameter.checksum_flag: 1})

    def expect(self, size: int) -> None:
        """Says before the first byte how many bytes will come. No other number may come then."""
        self._frame.set_pledged_input_size(size)

    async def add(self, chunk: bytes | memoryview) -> bytes:
        """Takes the next chunk. Returns what can be stored, which may be nothing yet."""
        compress = partial(self._frame.compress, chunk)
        compressed: bytes = compress() if len(chunk) < IN_THREAD_BYTES else await _in_thread(compress)
        return compressed

    def end(self) -> bytes:
        """Returns what is left to be stored."""
        last: bytes = self._frame.flush()
        return last


class Decompressor:
    """Decompresses one payload. `name`: of the object, for messages. `ConfigurationError`: no library is installed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._library = _library("or read it with decompress=False")
        self._hold: Callable[[int], None] | None = None
        self._held = self._wanted = 0
        self._frame: Any = None
        self._input = self._after_frame = memoryview(b"")
        self._ready: deque[bytes] = deque()

    def ask(self, hold: Callable[[int], None]) -> None:
        """Lets it ask, in the event loop, before a frame looks back further (bytes) than any before. `hold` may raise.
        """
        self._hold = hold

    async def take(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """The next bytes of the payload. `StopAsyncIteration`: that was all. `CorruptRecordError`: it is damaged.

        `read` gives the next stored bytes, and raises `StopAsyncIteration` after the last. What else it raises is
        raised unchanged.
        """
        while not self._ready:
            try:
                if self._wanted and self._hold is not None:
                    self._hold(self._wanted)
                    self._held, self._wanted = self._wanted, 0
                if self._has_input():
                    await _in_thread(self._decompress)
                    continue
                self._input = memoryview(await read())
                if 0 < len(self._input) <= _SMALL_BYTES:
                    self._step()
            except StopAsyncIteration:
                if self._frame is None:
                    raise
                raise self._corrupt("it ends in the middle of a frame") from None
            except self._library.ZstdError as error:
                with suppress(StopAsyncIteration):
                    while True:
                        await read()
                raise self._corrupt(str(error)) from error
        return self._ready.popleft()

    def _corrupt(self, why: str) -> CorruptRecordError:
        return CorruptRecordError(
            f"{self._name} is stored as zstd, and cannot be decompressed ({why}): read it with decompress=False (--raw)"
        )

    def _has_input(self) -> bool:
        return bool(self._after_frame or self._input) or (self._frame is not None and not self._frame.needs_input)

    def _decompress(self) -> None:
        """Until `GIVEN_BYTES` came, or all input was taken."""
        size = 0
        while size < GIVEN_BYTES and self._has_input() and not self._wanted:
            size += self._step()

    def _step(self) -> int:
        """One call of the library, within one frame, of which a small input may have thousands. How many bytes came."""
        if self._frame is None:
            if self._hold is not None and (window := _window_of(self._after_frame or self._input)) > self._held:
                self._wanted = window
                return 0
            options = {self._library.DecompressionParameter.window_log_max: WINDOW_LOG_MAX}
            self._frame = self._library.ZstdDecompressor(options=options)
        given: bytes = self._frame.decompress(self._next_input(), _STEP_BYTES)
        if given:
            self._ready.append(given)
        if self._frame.eof:
            self._after_frame, self._frame = memoryview(self._frame.unused_data), None
        return len(given)

    def _next_input(self) -> memoryview:
        if not self._frame.needs_input:
            return memoryview(b"")
        if not self._after_frame:
            self._after_frame, self._input = self._input[:_STEP_BYTES], self._input[_STEP_BYTES:]
        taken, self._after_frame = self._after_frame, memoryview(b"")
        return taken


def _window_of(stored: memoryview) -> int:
    """How far the frame that begins here looks back (bytes), by its header (RFC 8878, 3.1.1). If that is not all here:
    as far as any.
    """
    header = bytes(stored[:_HEADER_BYTES_MAX])
    if len(header) > 3 and header[:4] != _MAGIC:
        return 0
    if len(header) > 5:
        descriptor, window = header[4:6]
        if not descriptor & _SINGLE_SEGMENT:
            return min(((8 + (window & 7)) << (window >> 3) + 10) // 8, 1 << WINDOW_LOG_MAX)
        begins, size = 5 + (0, 1, 2, 4)[descriptor & 3], 1 << (descriptor >> 6)  # after the id of a dictionary
        if len(header) >= begins + size:
            content = int.from_bytes(header[begins : begins + size], "little") + (256 if size == 2 else 0)
            return min(content, 1 << WINDOW_LOG_MAX)
    return 1 << WINDOW_LOG_MAX


async def _in_thread(call: Callable[[], Any]) -> Any:
    threads = _threads.get(None)
    if threads is None:
        _threads.set(threads := CapacityLimiter(_THREADS_MAX))
    return await in_thread(call, threads)


def _library(instead: str = "or compress it yourself, and set compression of its metadata") -> ModuleType:
    try:
        if sys.version_info >= (3, 14):
            import compression.zstd as zstd
        else:
            import backports.zstd as zstd
    except ImportError as missing:
        raise ConfigurationError(f"zstd needs {missing.name}, which is missing: {installing('zstd')}, {instead}") from None
    return zstd
