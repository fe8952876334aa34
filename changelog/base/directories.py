"""Makes it durable what a file holds, and which names a directory has. A synced file can lose its name to a power cut.

On macOS, fsync leaves what was written in the cache of the disk, which a power cut empties. There `F_FULLFSYNC` is
asked for, as SQLite does with its `fullfsync`. That was read, and never run: there is no macOS to run it on.

A directory that is there may have been made a moment ago, by a process that was killed before it synced anything. So
whoever relies on a directory syncs it, and the directories above it, before anybody is told that something is safe.
All calls block. They raise `OSError`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

_CANNOT = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS)
_NO_FULL_SYNC = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY)
"""What a file system answers that has no `F_FULLFSYNC`, such as a network's."""


def sync_file(descriptor: int) -> None:
    """Makes durable what was written to the open file, or which names the open directory has."""
    full = getattr(fcntl, "F_FULLFSYNC", None)  # macOS alone has it
    if full is not None:
        try:
            fcntl.fcntl(descriptor, full)
            return
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
    os.fsync(descriptor)


def sync_directory(directory: Path) -> None:
    """Makes the names in the directory durable, and that others are gone from it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def sync_upwards(directory: Path) -> None:
    """Makes it durable that the directory is there: syncs it, and all above it up to the root of its file system.

    Above it, a directory is left out that this user may not read, or that its file system cannot sync.
    """
    real = Path(os.path.realpath(directory))
    sync_directory(real)
    device = os.stat(real).st_dev
    for above in real.parents:
        try:
            if os.stat(above).st_dev != device:
                return
            sync_directory(above)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
