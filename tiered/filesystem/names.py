"""Names as fsspec passes them: patterns, lists, slashes at the end. One that exists is no pattern."""

from __future__ import annotations

import os
from collections.abc import Iterable
from glob import has_magic
from typing import Any

from fsspec.utils import stringify_path

from changelog.base.errors import InvalidRequestError
from tiered.text import quoted


class ExactName(str):
    """The name of an object whose key ends with a slash, which is not cut off."""

    __slots__ = ()


def check_depth(maxdepth: int | None) -> None:
    if maxdepth is not None and maxdepth < 1:
        raise ValueError("maxdepth must be at least 1")


def slashes(path: Any) -> str:
    """The slashes at the end of a path."""
    text = str(stringify_path(path))
    return text[len(text.rstrip("/")) :]


def paths_of(path: Any) -> list[Any]:
    return list(path) if isinstance(path, Iterable) and not isinstance(path, str | bytes | os.PathLike) else [path]


def expanded(files: Any, paths: list[str], recursive: bool, maxdepth: int | None, literal: bool = False) -> list[str]:
    """What the paths name in a file system. One that exists names just that; any other may be a pattern."""
    check_depth(maxdepth)
    found: set[str] = set()
    for path in paths:
        is_pattern = not literal and means_pattern(files, path)
        roots = files.glob(path, maxdepth=maxdepth) if is_pattern else [path]
        below = None if maxdepth is None else maxdepth - is_pattern
        for root in roots if recursive and below != 0 else ():
            found.update(files.find(root, maxdepth=below, withdirs=True))
        found.update(root for root in roots if root not in found and (is_pattern or not recursive or files.exists(root)))
    if not found:
        raise FileNotFoundError(paths)
    return sorted(found)


def means_pattern(files: Any, path: Any) -> bool:
    return has_magic(path) and not files.exists(path)


def check_file_path(source: str, below: str) -> None:
    """Raises `InvalidRequestError` if no file can be there. `below`: the rest of its path, after the directory."""
    for name in below.removeprefix("/").removesuffix("/").split("/") if below else ():
        if name in ("", ".", ".."):
            raise InvalidRequestError(f"the key {quoted(source)} is no path of a file: it has a part {quoted(name)}")
