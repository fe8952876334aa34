"""Joins the checksums of the parts of a payload, without their bytes.

A crc is the remainder of a polynomial, so n more bytes multiply it by x**(8 n). All is bitwise reflected: the highest
of the 32 bits stands for x**0. Two parts take some microseconds, whatever their sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

CRC32, CRC32C = 0xEDB88320, 0x82F63B78
"""The polynomials of zlib and of Castagnoli."""

_ONE, _X_8 = 1 << 31, 1 << 23


def join_crcs(parts: Iterable[tuple[int, int]], polynomial: int) -> int:
    """The crc of the parts one behind the other, of which the crc and the size in bytes are given."""
    joined = 0
    for crc, size in parts:
        joined = _multiplied(_shift(size, polynomial), joined, polynomial) ^ crc
    return joined


def _multiplied(first: int, second: int, polynomial: int) -> int:
    product = 0
    for place in range(31, -1, -1):
        if first >> place & 1:
            product ^= second
        second = second >> 1 ^ (polynomial if second & 1 else 0)
    return product


@lru_cache(maxsize=64)
def _shift(size: int, polynomial: int) -> int:
    """What `size` more bytes multiply a crc by. The parts of one upload have two sizes."""
    factor, square = _ONE, _X_8
    while size:
        if size & 1:
            factor = _multiplied(factor, square, polynomial)
        square = _multiplied(square, square, polynomial)
        size >>= 1
    return factor
