"""How values are shown to people: numbers, sizes, times, and text that others wrote. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Control characters, direction marks, line separators and halves of surrogate pairs."""


def escape_controls(text: str) -> str:
    """Returns the text with each character that could control a terminal written as `\\uXXXX`."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def count(number: int, one: str, many: str = "") -> str:
    """Returns a count with its noun: 1 blob; 1,234 blobs. `many`: the plural, unless it is `one` and an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(size_bytes: int) -> str:
    """Returns a size in IEC units with about three digits: 512 B; 1.5 KiB; 20 MiB; 1,234 PiB."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1024
        if value < 999.5 or unit == "PiB":
            break
    return f"{value:,.0f} {unit}" if value >= 99.95 else f"{value:.1f} {unit}"


def size_si(number: float) -> str:
    """Returns a number of bytes in its largest unit, such as `1.2 GB`. Units are powers of 1000, as on the page."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:,.1f} PB"


def rate(per_s: float) -> str:
    return f"{per_s:,.0f}/s" if per_s >= 10 or per_s == 0 else f"{per_s:.2g}/s"


def elapsed(seconds: float) -> str:
    """Returns a time that was measured: 0.4 s; 12 s; 3 min 20 s; 4 h 05 min; 2 d 3 h."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def duration(seconds: float) -> str:
    """Returns a time in its two largest units, such as `3 h 20 min`."""
    whole = round(seconds)
    parts = [(whole // 86_400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next((number for number, (size, _) in enumerate(parts) if size), len(parts) - 1)
    return " ".join(f"{size:,} {unit}" for size, unit in parts[first : first + 2] if size or unit == parts[first][1])


def roughly(seconds: float) -> str:
    """Returns a time in one unit, such as `6 min`."""
    unit, size = next(((unit, size) for unit, size in (("h", 3600), ("min", 60)) if seconds >= 2 * size), ("s", 1))
    return f"{seconds / size:.0f} {unit}"


def span(seconds: float) -> str:
    """Returns a length of time that somebody chose: 24 h; 1 h 30 min; 30 s."""
    if seconds >= 3600 and seconds % 3600 == 0:
        return f"{seconds / 3600:g} h"
    return f"{seconds:g} s" if seconds < 60 else elapsed(seconds)


CLOCKS_APART_MAX_S = 60.0
"""A time that is ahead by no more than this is of now: two clocks are never the same."""


def ago(seconds: float) -> str:
    """Returns how long ago something was. A time that has not come yet was written before a clock was set back."""
    return f"{duration(max(0.0, seconds))} ago" if seconds >= -CLOCKS_APART_MAX_S else f"{duration(-seconds)} ahead of the clock"


def moment(time_ns: int) -> str:
    """Returns a time as 2026-11-21 20:15:03 UTC."""
    try:
        return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return "beyond any calendar"
