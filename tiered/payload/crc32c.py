"""crc32c, the checksum of a blob in GCS. Import it only where that is certain: its package comes with the extra `gcp`.
"""

from __future__ import annotations

import base64

import google_crc32c

_COPIED_BYTES = 256 * 1024


def extend_crc(crc: int, chunk: bytes | memoryview) -> int:
    if isinstance(chunk, bytes):
        return int(google_crc32c.extend(crc, chunk))
    # The library takes no views. Small copies stay in the processor's cache, and take half as long as the checksum.
    for start in range(0, len(chunk), _COPIED_BYTES):
        crc = google_crc32c.extend(crc, bytes(chunk[start : start + _COPIED_BYTES]))
    return int(crc)


def combine_crc(first: int, second: int, second_bytes: int) -> int:
    """The crc32c of some bytes and of those that follow them, from those of both.

    `second_bytes`: how many follow. This is `crc32_combine` of zlib 1.3 (crc32.c, Mark Adler) with another polynomial.
    What follows n bits multiplies the remainder of what is before it by x to the power of n. google_crc32c has none.
    """
    power, number = 1 << 31, 0  # the highest bit stands for 1, the next one for x
    bits = 8 * second_bytes
    while bits >> number:
        if number == len(_SQUARES):
            _SQUARES.append(_product(_SQUARES[-1], _SQUARES[-1]))
        if bits >> number & 1:
            power = _product(power, _SQUARES[number])
        number += 1
    return _product(power, first) ^ second


_CASTAGNOLI = 0x82F63B78
_SQUARES = [1 << 30]
"""x to the powers of 1, 2, 4, 8, …"""


def _product(left: int, right: int) -> int:
    """Of two polynomials, modulo that of crc32c."""
    product, bit = 0, 1 << 31
    while bit:
        if left & bit:
            product ^= right
        right = right >> 1 ^ (_CASTAGNOLI if right & 1 else 0)
        bit >>= 1
    return product


def encode_crc(crc: int) -> str:
    """Big-endian, in base64, as GCS tells it."""
    return base64.b64encode(digest_of(crc)).decode()


def digest_of(crc: int) -> bytes:
    return crc.to_bytes(4, "big")
