"""Text that others wrote, as text that steers no terminal."""

from __future__ import annotations

import re

_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Control characters, marks of direction, separators of lines, halves of surrogate pairs."""


def visible(text: str) -> str:
    """The text as it is, and what steers is spelt out."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
