#!/usr/bin/env python3
"""Backs up an embedded store while other processes write to it: `python3 backup.py STORE INTO`.

It needs nothing but Python and SQLite. INTO becomes a store in the state of one moment, as a power cut at that moment
would have left it. Every write that was acknowledged before the command began is in it. INTO must be on the same file
system, because its blobs are hard links. Copy INTO to another machine afterwards; it takes no part in the store.

    1  link all blobs                                  writers go on
    2  take the database's write lock                  writers wait
    3  link the blobs that came, unlink those that went
    4  begin a read transaction                        this is the moment
    5  give the lock back                              writers go on
    6  copy the database out of the read transaction
    7  sync all of it, rename it, sync the directories above

Why the lock: a blob is deleted only after its revision was settled and found not live, and both the swap that replaced
it and the settling are writes to the database. So while nobody can write there, no row changes and no blob that a row
names can go away. Without the lock no order is safe. If the rows are copied first, a blob that they name may be deleted
before it is copied. If the blobs are copied first, the rows may name a blob that came later.

The backup is made in the directory INTO.partial, and gets its name when all of it is safe on the disk. A second backup
to the same name is refused while the first one works.

*Crash* at any moment: the locks end with the process. INTO.partial is left behind, and the next call empties it.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

DATABASE, BLOBS = "tiered.db", "blobs"
LOCK_WAIT_S = 60.0


class BackupError(Exception):
    """What was asked for cannot be done. Its text says what to change."""


def back_up(store: Path, into: Path) -> float:
    """Makes INTO. Returns for how many seconds writers had to wait.

    Raises `BackupError`, `OSError` or `sqlite3.Error`. Then INTO was not made, or a power cut may still take its name.
    """
    if not (store / DATABASE).is_file():
        raise BackupError(f"there is no store in {store}: it has no {DATABASE}")
    if into.exists():
        raise BackupError(f"{into} exists already: give the name of a new directory")
    if into.resolve().is_relative_to(store.resolve()):
        raise BackupError(f"{into} is inside the store: give the name of a directory beside it")
    with _partial(into) as partial:
        mirror(store / BLOBS, partial / BLOBS)
        with closing(_connect(store / DATABASE)) as reader:
            with writers_wait(store) as began:
                mirror(store / BLOBS, partial / BLOBS)
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # the transaction begins with its first read
            waited_s = time.monotonic() - began
            copy_database(reader, partial / DATABASE)
        shutil.copymode(store / DATABASE, partial / DATABASE)
        make_durable(partial)
        partial.rename(into)
        sync_above(into)
    return waited_s


@contextmanager
def _partial(into: Path) -> Iterator[Path]:
    """Makes INTO.partial, an empty directory that no other backup uses meanwhile. Raises `BackupError`."""
    partial = into.with_name(f"{into.name}.partial")
    partial.mkdir(mode=0o700, exist_ok=True)
    directory = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = partial.exists() and os.path.samestat(os.fstat(directory), partial.lstat())  # it was not renamed meanwhile
        except BlockingIOError:
            is_ours = False
        if not is_ours:
            raise BackupError(f"another backup to {into} is being made: wait for its end, or give another name")
        for name in sorted(os.listdir(partial)):
            if name != BLOBS and not name.startswith(DATABASE):
                raise BackupError(f"{partial} holds {name}, which is no part of a backup: move it away, or give another name")
        for path in partial.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield partial
    finally:
        os.close(directory)


@contextmanager
def writers_wait(store: Path) -> Iterator[float]:
    """Holds the write lock of the store's database. The value is the time at which it was taken."""
    with closing(_connect(store / DATABASE)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        try:
            yield time.monotonic()
        finally:
            holder.execute("ROLLBACK")


def mirror(source: Path, target: Path) -> None:
    """Makes `target` hold a hard link to each file in `source`, and nothing else. What is there already stays."""
    target.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileNotFoundError):  # no blob was written yet
        shutil.copymode(source, target)
    linked, found = set(os.listdir(target)), set()
    for entry in _entries(source):
        found.add(entry.name)
        if entry.is_dir(follow_symlinks=False):
            mirror(source / entry.name, target / entry.name)
        elif entry.name not in linked:
            with suppress(FileNotFoundError):  # deleted since it was listed
                os.link(entry.path, target / entry.name, follow_symlinks=False)
    for name in linked - found:
        path = target / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def copy_database(source: sqlite3.Connection, target: Path) -> None:
    """Copies the database as `source` sees it: in a read transaction, as it was when that began."""
    with closing(sqlite3.connect(target)) as copy:
        source.backup(copy)


def make_durable(partial: Path) -> None:
    """Makes what was linked and copied survive a power cut. The bytes of the blobs do already."""
    sync(partial / DATABASE)
    for directory, _, _ in os.walk(partial):
        sync(Path(directory))


def sync_above(path: Path) -> None:
    """Makes the path's name durable, up to the root of its file system. As `sync_upwards` of the changelog.

    A directory is left out that this user may not read, or that its file system cannot sync.
    """
    above = path.resolve().parents
    device = above[0].stat().st_dev
    for each in above:
        try:
            if each.stat().st_dev != device:
                return
            sync(each)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS):
                raise


def sync(path: Path) -> None:
    """As the store does, also on macOS, where fsync alone leaves bytes in the cache of the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # type: ignore[attr-defined,unused-ignore]
        except AttributeError:  # not macOS
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY):
                raise
            os.fsync(descriptor)  # the file system lacks it
    finally:
        os.close(descriptor)


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    """The entries of a directory. None if there is no such directory: no blob was written yet, or its last one went."""
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        yield from entries


def _connect(database: Path) -> sqlite3.Connection:
    """Opens an existing database. Transactions begin and end only where this module says so."""
    return sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True, timeout=LOCK_WAIT_S, isolation_level=None)


def main() -> int:
    parser = argparse.ArgumentParser(description="Backs up an embedded store while other processes write to it.")
    parser.add_argument("store", type=Path, help="the directory that holds tiered.db and blobs/")
    parser.add_argument("into", type=Path, help="a new directory on the same file system")
    asked = parser.parse_args()
    try:
        waited_s = back_up(asked.store, asked.into)
    except BackupError as error:
        print(f"backup: {error}", file=sys.stderr)
        return 3
    except (OSError, sqlite3.Error) as error:
        other_disk = isinstance(error, OSError) and error.errno == errno.EXDEV
        print(f"backup: {'INTO must be on the file system of the store' if other_disk else error}", file=sys.stderr)
        return 3 if other_disk else 4
    print(f"{asked.into} is complete; writers waited for {waited_s:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
