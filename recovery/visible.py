"""Shows text that others wrote, so that it cannot control a terminal."""

from __future__ import annotations

import re

_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Control characters, direction marks, line separators and halves of surrogate pairs."""


def visible(text: str) -> str:
    """Returns the text with each character that could control a terminal written as `\\uXXXX`."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
