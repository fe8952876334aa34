"""Both sides as one stream: each file and each object once, in the byte order of their names.

    path of a file, from the directory on     2026/cat.jpg
    key of its object                         {key of the prefix}2026/cat.jpg

Nothing is escaped or changed on the way. A file whose name cannot be a key has no object, and an object whose key
cannot be a path has no file: both are errors of that one, which say why.

A walk gives its files in this order, and a listing its objects, so nothing of either side is kept: only the names above
the current one, and, where `a` and `A` are one file, the names beside these.
"""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import TypeVar

from changelog.base.errors import InvalidRequestError
from tiered.directories.tree import LocalEntry
from tiered.object_id import ObjectId, ObjectPrefix
from tiered.stored import ListEntry
from tiered.text import quoted

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pair:
    """A file and the object of the same name; one of the two may be None.

    `below_object`: an object has the name of a directory above it. `below_skipped`: something has, which is no
    directory that was looked into. `spelled`: the name that is already there, where both would be one file.
    """

    path: str
    local: LocalEntry | None
    remote: ListEntry | None
    below_object: bool
    below_skipped: bool
    spelled: str | None


async def pairs(
    prefix: ObjectPrefix, local: AsyncIterator[LocalEntry], remote: AsyncIterator[ListEntry], *, folds: bool = False
) -> AsyncGenerator[Pair, None]:
    """Yields all pairs. `folds`: names that differ only in case are one file."""
    above: list[tuple[bytes, bool, bool]] = []
    spellings = _Spellings() if folds else None
    start = len(prefix.path)
    file, entry = await anext(local, None), await anext(remote, None)
    while file is not None or entry is not None:
        file_order = None if file is None else file.order
        key_order = None if entry is None else entry.object_id.path[start:].encode()
        order = min(each for each in (file_order, key_order) if each is not None)
        there = file if file_order == order else None
        stored = entry if key_order == order else None
        path = there.path if there is not None else order.decode()
        while above and order > above[-1][0] and not order.startswith(above[-1][0]):
            above.pop()  # what lies below `a/` comes after `a!`, and before `a0`
        over = [each for each in above if order.startswith(each[0])]
        spelled = None if spellings is None else spellings.other(path)
        yield Pair(path, there, stored, any(each[1] for each in over), any(each[2] for each in over), spelled)
        is_skipped = there is not None and (there.skipped or there.fault) is not None
        is_object = stored is not None and not order.endswith(b"/")  # `a/` stands for a directory, and is in no way
        above.append((order.removesuffix(b"/") + b"/", is_object, is_skipped))
        if there is not None:
            file = await anext(local, None)
        if stored is not None:
            entry = await anext(remote, None)


def whole_prefix(prefix: object) -> ObjectPrefix:
    """The prefix of all objects of a directory: its key is empty or ends with `/`. Raises `InvalidRequestError`."""
    if not isinstance(prefix, ObjectPrefix) or prefix.usecase is None or prefix.key is None:
        raise InvalidRequestError(
            f"{quoted(prefix)} names no objects of a directory: pass ObjectPrefix.create('photos', '2026/'), "
            "or USECASE/[NAME.VALUE/…]objects/KEY to ObjectPrefix.parse"
        )
    key = prefix.key if prefix.key.endswith("/") or not prefix.key else f"{prefix.key}/"
    ObjectId.create(prefix.usecase, f"{key}name", prefix.scopes)  # says what is wrong before anything is done
    return ObjectPrefix(prefix.usecase, prefix.scopes, key)


def object_of(prefix: ObjectPrefix, path: str) -> ObjectId:
    """The object of a file. `InvalidRequestError`: no object can have its name."""
    assert prefix.usecase is not None
    return ObjectId.create(prefix.usecase, f"{prefix.key}{path}", prefix.scopes)


class _Spellings:
    """The names beside the current one and those above it, as a file system compares them that ignores case."""

    def __init__(self) -> None:
        self._levels: list[tuple[str, dict[str, str]]] = []

    def other(self, path: str) -> str | None:
        """The path that is already there under another spelling of this one; None: there is none."""
        names = path.split("/")
        for depth, name in enumerate(names):
            above = "/".join(names[:depth])
            if len(self._levels) <= depth or self._levels[depth][0] != above:
                del self._levels[depth:]
                self._levels.append((above, {}))
            known = self._levels[depth][1].setdefault(unicodedata.normalize("NFC", name).casefold(), name)
            if known != name:
                return f"{above}/{known}" if above else known
        return None
