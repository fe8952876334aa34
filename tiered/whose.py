"""Whose a path is. Whatever takes a directory, or a file to write, asks here before it writes anything.

The files of a store are its own: its audit calls others foreign, and `tiered sync --delete` would delete its blobs. So
nothing is written, and no directory is copied, in a store (docs/decisions/callers.md, 220). Names in a bucket have
owners, too: `tiered.buckets.owners.taken`. Blocks for a few looks; *failure* to look is no answer that it is a store.
"""

from __future__ import annotations

import os
from pathlib import Path

from changelog.base.errors import ConfigurationError
from tiered.settings import DATABASE_NAME
from tiered.text import quoted


def refuse_store(path: str | os.PathLike[str], own: Path | None = None, *, around: bool = False) -> None:
    """Raises `ConfigurationError` if a path is in a store, or is one, also behind links, and if it is not there yet.

    `own`: the directory of the open store. Nobody else can tell that it is one where its rows are elsewhere, nor where
    its blobs are, if `blobs` is a link. `around`: refuses also a directory that has that store somewhere in it.
    """
    try:
        given, real = Path(os.path.abspath(path)), Path(os.path.realpath(path))
    except ValueError:  # a NUL: nothing has such a name
        return
    above = (each for inner in (given, real) for each in (inner, *inner.parents))
    store = next((each for each in above if os.path.lexists(each / DATABASE_NAME)), None)
    shown = quoted(os.fsdecode(path))
    files = [] if own is None else _files_of(own)
    if any(real.is_relative_to(each) for each in files):
        store = own
    elif around and any(each.is_relative_to(real) for each in files):
        raise ConfigurationError(f"{shown} holds the store {own}, whose files are its own: give a directory beside it")
    if store is not None:
        raise ConfigurationError(f"{shown} is in the store {store}, whose files are its own: give a place outside of it")


def _files_of(store: Path) -> list[Path]:
    """Where the files of an open store are. Empty: it is one in memory, whose settings name a directory, too."""
    is_there = any(os.path.lexists(store / each) for each in (DATABASE_NAME, "blobs"))
    return [Path(os.path.realpath(store / each)) for each in ("", "blobs", "uploads")] if is_there else []
