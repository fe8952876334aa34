"""Take the names of objects out of texts that others may read. Pure.

An error or a log line may name an object anywhere. Where the name is known, it alone is replaced. Where it is not, the
text ends before the first thing that could be a name: a storage path has `objects/` in it, and may hold spaces. In the
name of a file or in a URL the slash is `%2f`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "…"
_MAY_BE_A_NAME = re.compile(r"(\S*objects(?:/|%2[fF])|cannot be read: )(.*)", re.DOTALL)


def redact_names(text: str, names: Iterable[str | None] = ()) -> str:
    """Returns the text without the names of objects. `names`: those that may be in it."""
    for name in sorted({name for name in names if name}, key=len, reverse=True):
        text = text.replace(name, HIDDEN)
        text = text.replace(repr(name)[1:-1], HIDDEN)  # as `!r` writes a name with a quote or a control character
    return _MAY_BE_A_NAME.sub(lambda found: f"{found[1] if found[1].endswith(': ') else ''}{HIDDEN}", text)
