"""Row keys as an audit meets them: bytes that may not be text. Pure; no I/O.

    split_points    b"a/1" b"a/\\xff" b"a/\\xff"   ->   "a/1"         keys at which a table is cut, as text and in order
    printable       b"a/\\xff"                    ->   "a/\\\\xff"     for people
    corrupt_row     what is wrong with a row whose key or target is not text
"""

from __future__ import annotations

from collections.abc import Iterable

from tiered.services.scans import CorruptRow


def printable(raw: bytes) -> str:
    """The bytes as text. Bytes that are not UTF-8 are escaped as `\\xff`."""
    return raw.decode(errors="backslashreplace")


def corrupt_row(key: bytes, target: bytes) -> CorruptRow:
    """The finding for a row whose key or target is not UTF-8."""
    if not is_text(key):
        return CorruptRow(printable(key), f"its key {key!r} is no UTF-8", target.decode() or None if is_text(target) else None)
    return CorruptRow(printable(key), f"its target {target!r} is no UTF-8")


def split_points(keys: Iterable[bytes]) -> list[str]:
    """The keys as text, each cut off where it stops being text; a table may be split anywhere.

    Keys that would then be out of order, or equal, are left out.
    """
    found: list[str] = []
    for key in keys:
        point = _text_of(key)
        if point > (found[-1] if found else ""):
            found.append(point)
    return found


def is_text(raw: bytes) -> bool:
    return len(_text_of(raw).encode()) == len(raw)


def _text_of(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        return raw[: error.start].decode()
