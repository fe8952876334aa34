"""CRC-32 of payloads. ISA-L's takes a sixth of the CPU of zlib's, and both say the same; zlib's is everywhere."""

from __future__ import annotations

from collections.abc import Callable

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:  # pyproject.toml installs it where there are wheels of it
    from zlib import crc32 as _crc32

crc32: Callable[..., int] = _crc32
"""As `zlib.crc32`."""
