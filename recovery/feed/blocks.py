"""Bounds the memory that the bytes of an Avro file can take: its header, a message, and the blocks of a container.

    Limited     a file that gives no more than so many bytes to one message
    Unpacked    a container with its blocks unpacked, as fastavro reads it

A block of 1 kB can unpack to a gigabyte, and a length can be forged. So a block is unpacked here, up to `BYTES_MAX`,
and fastavro gets what came out. It would also stop in silence at the count that a block gives, and at a file that ends
within that count.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Any, BinaryIO

from recovery.feed.errors import FeedError, Rule
from tiered.text import quoted

BYTES_MAX = 64 * 2**20
"""Of one message, of the header of a container, and of one of its blocks, packed and unpacked."""
XZ_BYTES_MAX = 128 * 2**20
"""Of memory: xz reserves it before it has unpacked anything."""
MARKER_BYTES = 16

CODECS = ("bzip2", "deflate", "null", "xz")


class Limited:
    """Reads a file. `what`: the part of it that may have `BYTES_MAX` bytes, for the error."""

    def __init__(self, source: BinaryIO, what: str) -> None:
        self._source = source
        self._what = what
        self._left = BYTES_MAX

    def read(self, count: int) -> bytes:
        """Returns the next bytes, as a file does. Raises `FeedError` if they are too many for the part."""
        self._left -= count
        if self._left < 0 or count < 0:
            found = f"has more than {BYTES_MAX} bytes" if count >= 0 else f"has a length of {count} bytes"
            raise FeedError(Rule.FORM, f"{self._what} {found}")
        return self._source.read(count)


class Unpacked:
    """A container as fastavro reads it. `header`: the one that it is to see: of the codec `null`.

    `source`: the container after its header. `marker`: the 16 bytes after each block. `codec`: one of `CODECS`.
    `at`: at which byte of the container the block begins that was read last. Reading raises `FeedError` as soon as a
    block is cut off, damaged or too large.
    """

    def __init__(self, source: BinaryIO, header: bytes, codec: str, marker: bytes) -> None:
        self.at = 0
        self._part = BytesIO(header)
        self._blocks = self._unpacked(source, codec, marker)

    def read(self, count: int) -> bytes:
        """Returns the next bytes: never those of two blocks together."""
        found = self._part.read(count)
        if not found and count:
            self._part = BytesIO(next(self._blocks, b""))
            found = self._part.read(count)
        return found

    def tell(self) -> int:
        """Returns 0: fastavro asks for it, and nobody uses it."""
        return 0

    def _unpacked(self, source: BinaryIO, codec: str, marker: bytes) -> Iterator[bytes]:
        while True:
            self.at = source.tell()
            try:
                count = _long(source)
                if count is None:
                    return
                if count < 0 and source.read(3) == b"bj\x01":  # `O` is the number -40
                    raise FeedError(Rule.FORM, f"another Avro file begins at byte {self.at}: keep each in a file of its own")
                size = _long(source)
                if size is None:
                    raise EOFError
                block = f"the block at byte {self.at}"
                if count < 0:
                    raise FeedError(Rule.FORM, f"{block} says that it has {count} messages")
                if not 0 <= size <= BYTES_MAX:
                    raise FeedError(Rule.FORM, f"{block} has {size} bytes, and may have {BYTES_MAX}")
                packed, after = source.read(size), source.read(MARKER_BYTES)
                if len(packed) < size or len(after) < MARKER_BYTES:
                    raise EOFError
            except EOFError:
                raise FeedError(Rule.WHOLE, f"the file ends in the middle of the block at byte {self.at}") from None
            if after != marker:
                raise FeedError(Rule.FORM, f"{block} is damaged: it does not end with the marker of the file")
            data = packed if codec == "null" else _unpack(packed, codec, block)
            yield b"".join((_written(count), _written(len(data)), data, marker))


def _unpack(packed: bytes, codec: str, block: str) -> bytes:
    unpacker: Any
    if codec == "deflate":
        unpacker = zlib.decompressobj(-15)
    else:
        unpacker = bz2.BZ2Decompressor() if codec == "bzip2" else lzma.LZMADecompressor(memlimit=XZ_BYTES_MAX)
    try:
        data: bytes = unpacker.decompress(packed, BYTES_MAX + 1)
        if len(data) <= BYTES_MAX and not unpacker.eof:
            raise EOFError("it is cut off")
    except (EOFError, OSError, ValueError, MemoryError, zlib.error, lzma.LZMAError) as error:
        raise FeedError(Rule.FORM, f"{block} is damaged: {error}") from None
    if len(data) > BYTES_MAX:
        raise FeedError(Rule.FORM, f"{block} unpacks to more than {BYTES_MAX} bytes")
    if codec != "deflate" and unpacker.unused_data:  # behind deflate, fastavro leaves a part of a checksum
        raise FeedError(Rule.FORM, f"{block} is damaged: {quoted(unpacker.unused_data[:20])} follows what was packed")
    return data


def _long(source: BinaryIO) -> int | None:
    """The next number, as Avro writes it. None: the file is at its end. Raises `EOFError` if it ends within."""
    value, shift = 0, 0
    while byte := source.read(1):
        value |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            return (value >> 1) ^ -(value & 1)
        if shift > 63:
            raise FeedError(Rule.FORM, "a number in an Avro file has more than 64 bits")
    if shift:
        raise EOFError
    return None


def _written(number: int) -> bytes:
    """A number that is not negative, as Avro writes it."""
    number <<= 1
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)
