"""A directory on the disk that lives as long as the process which made it, and is removed after a kill -9, too.

Its maker holds a lock on it, which ends with the process. Whoever makes the next one removes those that nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DISK = Path("/var/tmp")


@contextmanager
def held_directory(prefix: str, below: Path = DISK) -> Iterator[Path]:
    """A new directory for the length of the block. `below`: where it and those that were left behind lie."""
    with _only_one(prefix, below):
        for left in below.glob(f"{prefix}*"):
            if left.is_dir() and not left.is_symlink() and left.stat().st_uid == os.getuid() and not _is_held(left):
                shutil.rmtree(left, ignore_errors=True)
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=below))
        held = os.open(directory, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)
        os.close(held)


def _is_held(directory: Path) -> bool:
    with suppress(FileNotFoundError):
        opened = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(opened)
    return False


@contextmanager
def _only_one(prefix: str, below: Path) -> Iterator[None]:
    """Nobody removes a directory between its making and its lock."""
    with (below / f".{prefix}{os.getuid()}.lock").open("w") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        yield
