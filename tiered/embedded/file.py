"""One blob as one file: the path that its name becomes, and the bytes of the file. Pure; no I/O.

Name -> path. Each byte of the name's UTF-8 becomes text. The text sorts as the bytes do, and is safe on a file system
that ignores case. It is cut into components of 199 bytes, and all but the last end in `+`:

    0-9 a-z           themselves                  a blob and one below it coexist:
    0x00 - 0x2f       %00 - %2f                       x = 199 bytes of text, then y
    0x3a - 0x60       =3a - =60                       file       x
    0x7b - 0xff       ~7b - ~ff                       directory  x+/  with the file  y

File, version 2, integers big-endian. The payload comes first, so that any tool can read it (`head -c SIZE`):

    at                   bytes   what
    0                    n       payload
    n                    m       metadata, JSON, then spaces until the footer begins at a multiple of 8
    n + m                k       crc32 of each block of 256 KiB of the payload, the last one maybe shorter: 4 bytes each
    n + m + k            6       `tiered`
    n + m + k + 6        2       version, 2
    n + m + k + 8        8       deadline, microseconds since 1970; 0: none. The only bytes that ever change
    n + m + k + 16       8       written, microseconds since 1970, by the writer's clock
    n + m + k + 24       8       n
    n + m + k + 32       4       m
    n + m + k + 36       4       crc32 of the k bytes
    n + m + k + 40       4       crc32 of the metadata

Reads go by whole blocks, and each block is checked. Version 1 is still read. It has no checksums of blocks (k = 0), and
at n + m + 36 it has the crc32 of the payload. So a range of such a blob cannot be checked.

The deadline is aligned, so that no power cut leaves half of it. It is never earlier than the one in the JSON, and it
overrides that one. *Failure*: a file that breaks this format is a `CorruptRecordError`; nothing is guessed.
"""

from __future__ import annotations

import re
import struct
from pathlib import PurePath
from typing import NamedTuple

from changelog.base.errors import CorruptRecordError, InvalidRequestError, newer_version
from tiered.embedded.crc32 import crc32
from tiered.metadata import Metadata, decode_metadata, encode_metadata
from tiered.services.scans import Generation

COMPONENT_BYTES = 199
DIRECTORY_SUFFIX = "+"
NS_PER_US = 1000

_FOOTER = struct.Struct(">6sHqqQIII")
_DEADLINE = struct.Struct(">q")
_BLOCK_CRC = struct.Struct(">I")
_MAGIC, _VERSION = b"tiered", 2
_DEADLINE_AT = 8
_ESCAPED_BYTE = re.compile(r"([^0-9a-z])")
_PLAIN_OR_ESCAPED = re.compile(r"(?:[0-9a-z]|%[0-2][0-9a-f]|=(?:3[a-f]|[45][0-9a-f]|60)|~(?:7[b-f]|[89a-f][0-9a-f]))+")
_ESCAPE = re.compile(r"([%=~][0-9a-f]{2})")
_UNUSUAL = re.compile(r"[^0-9a-z/.-]")
"""Any other character than those of nearly all names."""

FOOTER_BYTES = _FOOTER.size
BLOCK_BYTES = 256 * 1024
BLOCK_CRC_BYTES = _BLOCK_CRC.size


# --- names ---------------------------------------------------------------------------------------


def _escape(byte: int) -> str:
    character = chr(byte)
    if character.isascii() and (character.isdigit() or character.islower()):
        return character
    return f"{'%' if byte < 0x30 else '=' if byte < 0x61 else '~'}{byte:02x}"


_ESCAPES = {chr(byte): escape for byte in range(256) if len(escape := _escape(byte)) > 1}
_ESCAPED = {escape: byte for byte, escape in _ESCAPES.items()}


def encode_name(name: str) -> str:
    """Text that sorts as the name's UTF-8 does. A prefix of the name becomes a prefix of the text."""
    try:
        parts = _ESCAPED_BYTE.split(name.encode().decode("latin-1"))
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"blob name {name!r} is not valid Unicode: {error.reason}") from None
    parts[1::2] = map(_ESCAPES.__getitem__, parts[1::2])
    return "".join(parts)


def decode_name(text: str) -> str | None:
    """The name that `encode_name` turns into this text; None: there is no such name.

    `_PLAIN_OR_ESCAPED` matches nothing but what `_escape` makes of bytes. So the text that a name becomes is this text.
    """
    if "-" not in text and "." not in text and "/" not in text:
        usual = text.replace("%2f", "/").replace("%2d", "-").replace("%2e", ".")
        if usual and _UNUSUAL.search(usual) is None:  # else something is escaped that is left, or nothing of ours
            return usual
    if _PLAIN_OR_ESCAPED.fullmatch(text) is None:
        return None
    parts = _ESCAPE.split(text)
    parts[1::2] = map(_ESCAPED.__getitem__, parts[1::2])
    try:
        return "".join(parts).encode("latin-1").decode()
    except UnicodeDecodeError:
        return None


def path_of(name: str) -> PurePath:
    """Where the blob's file is, below the directory of blobs."""
    components = components_of(name)
    if not components:
        raise InvalidRequestError("a blob's name is empty; it is STORAGE_PATH/REVISION")
    return PurePath(*components)


def components_of(name: str) -> tuple[str, ...]:
    """The components of the blob's path. They sort as the names do."""
    text = encode_name(name)
    if 0 < len(text) <= COMPONENT_BYTES:
        return (text,)  # most names
    cuts = [text[start : start + COMPONENT_BYTES] for start in range(0, len(text), COMPONENT_BYTES)]
    return (*(cut + DIRECTORY_SUFFIX for cut in cuts[:-1]), *cuts[-1:])


def is_component(entry: str, *, directory: bool) -> bool:
    """Whether a directory entry of this name and kind can be one of ours."""
    if directory:
        return len(entry) == COMPONENT_BYTES + 1 and entry.endswith(DIRECTORY_SUFFIX)
    return len(entry) <= COMPONENT_BYTES and not entry.endswith(DIRECTORY_SUFFIX)


# --- bytes ---------------------------------------------------------------------------------------


class Footer(NamedTuple):
    """The last 44 bytes of a blob's file. Sizes are in bytes, times in microseconds since 1970.

    `crc`: of the blocks' checksums; in version 1, of the payload.
    """

    version: int
    deadline_us: int
    written_us: int
    size: int
    metadata_bytes: int
    crc: int
    metadata_crc: int

    @property
    def blocks(self) -> int:
        """How many blocks have a checksum of their own."""
        return 0 if self.version == 1 else -(-self.size // BLOCK_BYTES)

    @property
    def block_crcs_at(self) -> int:
        """Offset in the file of the first block's checksum."""
        return self.size + self.metadata_bytes

    @property
    def deadline_ns(self) -> int | None:
        return self.deadline_us * NS_PER_US or None

    @property
    def written_ns(self) -> int:
        return self.written_us * NS_PER_US

    @property
    def generation(self) -> Generation:
        return str(self.written_us)

    @property
    def deadline_at(self) -> int:
        """Offset in the file of the eight bytes that `encode_deadline` makes."""
        return self.block_crcs_at + self.blocks * BLOCK_CRC_BYTES + _DEADLINE_AT


class Checksums:
    """The checksums of a payload's blocks, computed while its chunks pass.

    They take 4 bytes for each 256 KiB, so 16 MiB for a TiB.
    """

    def __init__(self) -> None:
        self.size = 0
        self._done = bytearray()
        self._crc = 0

    def add(self, chunk: memoryview) -> None:
        """Adds the next bytes of the payload. `chunk` must be a view of single bytes."""
        while chunk:
            part = chunk[: BLOCK_BYTES - self.size % BLOCK_BYTES]
            self._crc = crc32(part, self._crc)
            self.size += len(part)
            if self.size % BLOCK_BYTES == 0:
                self._done += _BLOCK_CRC.pack(self._crc)
                self._crc = 0
            chunk = chunk[len(part) :]

    def encoded(self) -> bytes:
        return bytes(self._done) + (_BLOCK_CRC.pack(self._crc) if self.size % BLOCK_BYTES else b"")


def encode_trailer(metadata: Metadata, checksums: Checksums, written_ns: int) -> bytes:
    """The bytes after the payload that `checksums` has seen: metadata, the blocks' checksums, footer."""
    size, crcs = checksums.size, checksums.encoded()
    raw = encode_metadata(metadata.with_facts(size=size))
    raw += b" " * (-(size + len(raw) + len(crcs)) % 8)
    times = microseconds(metadata.time_expires_ns), microseconds(written_ns)
    footer = _FOOTER.pack(_MAGIC, _VERSION, *times, size, len(raw), crc32(crcs), crc32(raw))
    return raw + crcs + footer


def encode_deadline(deadline_us: int) -> bytes:
    return _DEADLINE.pack(deadline_us)


def decode_footer(raw: bytes, file_bytes: int) -> Footer:
    """Reads the last `FOOTER_BYTES` of a file of `file_bytes`."""
    if len(raw) != FOOTER_BYTES:
        raise CorruptRecordError(f"it has {file_bytes} bytes, fewer than a footer")
    magic, version, *fields = _FOOTER.unpack(raw)
    if magic != _MAGIC:
        raise CorruptRecordError("it does not end in a footer: truncated, or not written by this software")
    if version > _VERSION:
        raise CorruptRecordError(f"{newer_version('it', version, f'versions up to {_VERSION}')}, or these bytes have changed")
    if version < 1:
        raise CorruptRecordError(f"it has version {version}, and there is none below 1: bytes on the disk have changed")
    footer = Footer(version, *fields)
    whole = footer.block_crcs_at + footer.blocks * BLOCK_CRC_BYTES + FOOTER_BYTES
    if whole != file_bytes:
        raise CorruptRecordError(f"it has {file_bytes} bytes where its footer says {whole}")
    return footer


def check_block_crcs(raw: bytes, footer: Footer) -> None:
    """Raises `CorruptRecordError` unless these, the checksums of all blocks, are those that were written."""
    if crc32(raw) != footer.crc:
        raise CorruptRecordError("the checksums of its blocks do not match their own: bytes on the disk have changed")


def check_block(block: bytes, number: int, raw_crc: bytes) -> None:
    """Raises `CorruptRecordError` unless the block matches its checksum, `raw_crc` as it is in the file."""
    if _BLOCK_CRC.pack(crc32(block)) != raw_crc:
        raise CorruptRecordError(
            f"it does not match its checksum: bytes on the disk have changed, between {number * BLOCK_BYTES} and"
            f" {number * BLOCK_BYTES + len(block)}"
        )


def decode_stored_metadata(raw: bytes, footer: Footer) -> Metadata:
    """The metadata that were written, with the payload's size and the deadline as it is now.

    The time of creation is when the blob was written, unless the caller told one.
    """
    if crc32(raw) != footer.metadata_crc:
        raise CorruptRecordError("its metadata do not match their checksum")
    metadata = decode_metadata(raw)
    written = metadata.time_expires_ns
    if footer.deadline_us < microseconds(written) or (written is None and footer.deadline_us):
        raise CorruptRecordError(f"its deadline {footer.deadline_us} contradicts the {written} of its metadata")
    # The footer holds microseconds only. If it was never extended, the deadline in the JSON is more exact.
    deadline = None if written is None else max(written, footer.deadline_us * NS_PER_US)
    created = footer.written_ns if metadata.time_created_ns is None else metadata.time_created_ns
    return metadata.with_facts(size=footer.size, time_expires_ns=deadline, time_created_ns=created)


def microseconds(ns: int | None) -> int:
    """The time as the footer counts it; None is 0."""
    value = (ns or 0) // NS_PER_US
    if not -(1 << 63) <= value < 1 << 63:
        raise InvalidRequestError(f"the time {ns} ns since 1970 lies beyond the year 294,000, the last that a blob's file can hold")
    return value
