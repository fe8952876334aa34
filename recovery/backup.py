"""Backs up an embedded store while other processes write to it.

INTO becomes a store in the state of one moment, as a power cut at that moment would have left it. Every write that was
acknowledged before the call began is in it. INTO must be on the same file system, because its blobs are hard links.
Copy INTO to another machine afterwards; it takes no part in the store.

    1  link all blobs                                  writers go on
    2  take the database's write lock                  writers wait
    3  link the blobs that came, unlink those that went
    4  begin a read transaction                        this is the moment
    5  give the lock back                              writers go on
    6  copy the database out of the read transaction, let SQLite check the copy's pages (`quick_check`), and seal in it
       the uploads that are open: their parts are not copied
    7  sync all of it, rename the database and then all of it, sync the directories above

Why the lock: a blob is deleted only after its revision was settled and found not live, and both the swap that replaced
it and the settling are writes to the database. So while nobody can write there, no row changes and no blob that a row
names can go away. Without the lock no order is safe. If the rows are copied first, a blob that they name may be deleted
before it is copied. If the blobs are copied first, the rows may name a blob that came later.

The backup is made in INTO.partial/unfinished, and gets its name when all of it is safe on the disk. Until then its
database has another name. So whatever has a `tiered.db` is a store or a whole backup, wherever it lies, and is never
removed. A second backup to the same name is refused while the first one works.

*Crash* at any moment: the locks end with the process. INTO.partial is left, and the next call to INTO empties it.
After a *failure*, such as a full disk, and after Ctrl-C it is removed. All calls block.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from changelog.base.directories import sync_directory, sync_file, sync_upwards
from changelog.base.errors import CorruptRecordError, InvalidRequestError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.change import Entry, decode, encode
from changelog.sqlite.result_codes import translated
from changelog.sqlite.schema import refuse_newer
from tiered.settings import DATABASE_NAME
from tiered.whose import refuse_store

BLOBS = "blobs"
UNFINISHED, DRAFT = "unfinished", f"{DATABASE_NAME}.unfinished"
LOCK_WAIT_S = 60.0


def back_up(store: Path, into: Path, runtime: Runtime) -> float:
    """Makes INTO. Returns for how many seconds writers had to wait.

    Raises `InvalidRequestError` if it cannot be done like this: INTO was not made. Raises `ConfigurationError` if
    newer software has taken the store over, which may keep more than is known here: INTO was not made. Raises
    `CorruptRecordError` if the database is damaged: INTO was not made. Raises `UnavailableError` if a disk or the
    database refused: INTO was not made, or is whole and a power cut may still take its name.
    """
    if not (store / DATABASE_NAME).is_file():
        raise InvalidRequestError(f"there is no store in {store}: it has no {DATABASE_NAME}")
    if os.path.lexists(into):
        raise InvalidRequestError(f"{into} exists already: give the name of a new directory")
    if not into.parent.is_dir():
        raise InvalidRequestError(f"there is no directory {into.parent}: make it first, on the file system of the store")
    refuse_store(into, store)
    try:
        return _back_up(store, into, runtime)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise InvalidRequestError(f"{into} is on another file system than the store: blobs are linked, not copied") from None
        raise UnavailableError(f"the backup to {into} failed: {error}") from None
    except sqlite3.Error as error:
        meaning = translated(error, store / DATABASE_NAME)
        raise type(meaning)(f"the backup to {into} failed: {meaning}") from None


def _back_up(store: Path, into: Path, runtime: Runtime) -> float:
    with _partial(into) as partial:
        mirror(store / BLOBS, partial / BLOBS)
        with closing(_connect(store / DATABASE_NAME)) as reader:
            with writers_wait(store):
                began = runtime.monotonic()
                mirror(store / BLOBS, partial / BLOBS)
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # the transaction begins with its first read
                refuse_newer(reader, store / DATABASE_NAME)
            waited_s = runtime.monotonic() - began
            copy_database(reader, partial / DRAFT)
        if fault := _fault_of(partial / DRAFT):
            raise CorruptRecordError(f"no backup was made: {store / DATABASE_NAME} is damaged: restore it from an earlier one ({fault})")
        end_uploads(partial / DRAFT)
        shutil.copymode(store / DATABASE_NAME, partial / DRAFT)
        make_durable(partial)
        (partial / DRAFT).rename(partial / DATABASE_NAME)
        sync_directory(partial)
        partial.rename(into)
    sync_upwards(into)
    return waited_s


@contextmanager
def _partial(into: Path) -> Iterator[Path]:
    """Makes INTO.partial/unfinished, empty, which no other backup uses meanwhile. Raises `InvalidRequestError`."""
    around = into.with_name(f"{into.name}.partial")
    try:
        around.mkdir(mode=0o700, exist_ok=True)
        directory = os.open(around, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (FileExistsError, NotADirectoryError):
        raise InvalidRequestError(f"{around} is no directory, and a backup is made there: move it away, or give another name") from None
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = around.exists() and os.path.samestat(os.fstat(directory), around.lstat())  # it was not removed meanwhile
        except BlockingIOError:
            is_ours = False
        if not is_ours:
            raise InvalidRequestError(f"another backup to {into} is being made: wait for its end, or give another name")
        for name in sorted(os.listdir(around)):
            if name != UNFINISHED:
                raise InvalidRequestError(f"{around} holds {name}, which is no part of a backup: move it away, or give another name")
        unfinished = around / UNFINISHED
        if unfinished.is_symlink() or (unfinished / DATABASE_NAME).exists() or (unfinished.exists() and not unfinished.is_dir()):
            raise InvalidRequestError(f"{unfinished} is no unfinished backup: move it away, or give another name")
        with suppress(FileNotFoundError):
            shutil.rmtree(unfinished)
        try:
            unfinished.mkdir(mode=0o700)
            yield unfinished
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)  # unless it has got its name
            with suppress(OSError):  # somebody else put something there meanwhile
                around.rmdir()
    finally:
        os.close(directory)


@contextmanager
def writers_wait(store: Path) -> Iterator[None]:
    """Holds the write lock of the store's database."""
    with closing(_connect(store / DATABASE_NAME)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            holder.execute("ROLLBACK")


def mirror(source: Path, target: Path) -> None:
    """Makes `target` hold a hard link to each file in `source`, and nothing else. What is there already stays.

    Raises `InvalidRequestError` if there is a symbolic link below `source`, or `source` is one that leads nowhere.
    """
    if source.is_symlink() and not source.is_dir():
        raise InvalidRequestError(f"{source} is a link that leads to no directory: mount what it leads to")
    target.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileNotFoundError):  # no blob was written yet
        shutil.copymode(source, target)
    linked, found = set(os.listdir(target)), set()
    for entry in _entries(source):
        if entry.is_symlink():  # the store reads through it, and elsewhere it leads nowhere
            raise InvalidRequestError(f"{entry.path} is a link, so its bytes would not be in the backup: put the file itself there")
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


def end_uploads(database: Path) -> None:
    """Seals open uploads in the copy: their parts are not in it, so nobody can complete them there."""
    with closing(sqlite3.connect(database)) as copy, copy:
        if copy.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'changes'").fetchone() is None:
            return  # a store without a changelog
        changes = "SELECT CAST(key AS BLOB), CAST(value AS BLOB) FROM changes WHERE instr(CAST(value AS BLOB), ?)"
        for key, value in copy.execute(changes, (b'"assembling"',)).fetchall():
            entry = decode(key.decode(errors="replace"), value, 0)  # what is damaged is left to who looks at the log
            if isinstance(entry, Entry) and entry.assembling is not None:
                sealed = entry.claimed_by("").released(None)
                copy.execute("UPDATE changes SET value = ? WHERE key = ?", (encode(sealed), entry.key))


def _fault_of(database: Path) -> str:
    """What SQLite first finds wrong with the pages of a database; empty: nothing. Indexes are not compared."""
    with closing(sqlite3.connect(database)) as copy:
        (found,), = copy.execute("PRAGMA quick_check(1)")
    return "" if found == "ok" else " ".join(str(found).split())


def make_durable(partial: Path) -> None:
    """Makes what was linked and copied survive a power cut. The bytes of the blobs do already."""
    with open(partial / DRAFT, "rb") as database:
        sync_file(database.fileno())
    for directory, _, _ in os.walk(partial):
        sync_directory(Path(directory))


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    """The entries of a directory. None if there is no such directory: no blob was written yet, or its last one went."""
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        yield from entries


def _connect(database: Path) -> sqlite3.Connection:
    """Opens an existing database. Transactions begin and end only where this module says so."""
    return sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True, timeout=LOCK_WAIT_S, isolation_level=None)
