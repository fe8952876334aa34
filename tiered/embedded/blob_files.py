"""The blocking parts of `tiered/embedded/blobs.py`: its files and directories, one system call after another.

    UploadFile   the temporary file of one upload, locked (flock) by its process while that lives
    BlobFile     a blob that is open for reading; it stays readable after its name is gone

Everything here runs in threads. It raises the system's own `OSError`, or an error of ours if more is known.
`_already_happened` encloses the calls after an effect, so that no failure there claims that nothing happened. A lock is
never waited for, because a stopped process may hold it for ever. Event loops and clocks do not belong here.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Self

from changelog.base.directories import sync_directory, sync_file
from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError, UnavailableError, UnconfirmedError
from changelog.change import ChangeId
from tiered.embedded.crc32 import crc32
from tiered.embedded.file import (
    BLOCK_BYTES,
    BLOCK_CRC_BYTES,
    FOOTER_BYTES,
    Checksums,
    Footer,
    check_block,
    check_block_crcs,
    decode_footer,
    decode_stored_metadata,
    encode_deadline,
    encode_trailer,
    is_component,
)
from tiered.metadata import Metadata
from tiered.payload.crcs import CRC32, join_crcs
from tiered.services.backends import BlobHead, ByteRange
from tiered.services.scans import Generation, NotCopied, Removal

_TO_LOOK = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_PRIVATE = 0o700
"""The mode of a new store's directories."""

_BLOCKS_AHEAD = 4
"""How many blocks are read at once: a MiB. A get of 2 MiB takes 3/4 of the CPU that it takes block by block."""

_CRCS_AT_ONCE = 4096
"""How many blocks' checksums are read at once: those of a GiB."""


@contextmanager
def _already_happened(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnconfirmedError(f"{what}, but a power cut may undo it: {error.strerror}") from error


# --- one upload ----------------------------------------------------------------------------------


class UploadFile:
    """The file of one upload. A lock in this process keeps an abort from closing the file during a write.

    `settles`: another process may have made `root` and not synced that, and no upload of this one has done so yet.
    """

    def __init__(self, path: Path, target: Path, root: Path, settles: bool) -> None:
        self._path = path
        self._target = target
        self._root = root
        make_both(root, path.parent, [])
        if settles:
            sync_directory(root.parent)
        _refuse_if_apart(path.parent, target, root)
        self._file = _create_locked(path)
        self._lock = Lock()
        self._checksums = Checksums()

    def append(self, chunks: Sequence[bytearray | memoryview]) -> None:
        """Appends the chunks. A write that fails ends the upload."""
        with self._lock:
            self._refuse_if_ended()
            try:
                for chunk in chunks:
                    self._append(chunk)
            except OSError:
                self._end()
                raise

    def publish(self, last: Sequence[bytearray | memoryview], metadata: Metadata, written_ns: int) -> None:
        """Completes the file and links it into place, durably. The upload has ended afterwards, also after an error."""
        with self._lock:
            self._refuse_if_ended()
            try:
                for chunk in last:
                    self._append(chunk)
                write_all(self._file, memoryview(encode_trailer(metadata, self._checksums, written_ns)))
                sync_file(self._file.fileno())
                self._link()
            finally:
                self._end()

    def discard(self) -> None:
        with self._lock:
            self._end()

    def _append(self, chunk: bytearray | memoryview) -> None:
        view = memoryview(chunk).cast("B")
        write_all(self._file, view)
        self._checksums.add(view)

    def _link(self) -> None:
        try:
            link_blob(self._path, self._target, self._root)
        except FileNotFoundError:
            if self._path.exists():
                raise
            raise UnavailableError(f"the upload {self._path.name} was cancelled before it was finalised; try again") from None

    def _refuse_if_ended(self) -> None:
        if self._file.closed:
            raise InvalidRequestError(f"the upload {self._path.name} has ended already; begin another")

    def _end(self) -> None:
        """Ends the upload. A temporary file that cannot be unlinked now is collected later."""
        if not self._file.closed:
            with suppress(OSError):
                os.unlink(self._path)
            self._file.close()


BEGINNING = Lock()
"""Held while an upload's file is made and locked, and while this process collects such a file.

A service may collect beside its own writes, and would meet its own new files often. Other processes meet them rarely.
"""


def _create_locked(path: Path) -> io.FileIO:
    mode = mode_of(path.parent) & 0o666
    with BEGINNING:
        file = io.FileIO(path, "xb", opener=lambda name, flags: os.open(name, flags, mode))
        try:
            give(file.fileno(), os.stat(path.parent))
            # Between its creation and its lock the file looks abandoned, so another process may have collected it.
            if not lock(file) or not _is_at(file, path):
                raise UnavailableError(f"the upload {path.name} was collected before it began; try again")
        except BaseException:
            file.close()
            unlink(path)
            raise
        return file


def link_blob(path: Path, target: Path, root: Path) -> None:
    """Links a whole and synced file to `target`, durably: the blob becomes visible."""
    _make_parents(target.parent, root)
    _link(path, target)
    with _already_happened(f"{target} was linked"):
        _sync_upwards(target.parent, root)


def write_all(file: io.FileIO, view: memoryview) -> None:
    while view:
        view = view[os.write(file.fileno(), view) :]


# --- one blob ------------------------------------------------------------------------------------


class BlobFile:
    """An open blob, and its bytes from `start` to `stop` that are wanted.

    A lock keeps `close` from coming during a read.

    Every read is checked: block by block, or in version 1 the whole payload with its last bytes.
    """

    def __init__(self, file: io.FileIO, range: ByteRange | None) -> None:
        self._file = file
        self._lock = Lock()
        self._footer = footer = read_footer(file)
        self.size = footer.size
        self.written_ns, self.generation = footer.written_ns, footer.generation
        self.changed_ns = os.fstat(file.fileno()).st_mtime_ns
        self.metadata = decode_stored_metadata(os.pread(file.fileno(), footer.metadata_bytes, footer.size), footer)
        self.start, self.stop = (0, self.size) if range is None else range.within(self.size)
        self._is_whole = (self.start, self.stop) == (0, self.size)
        self._crcs, self._crcs_from = b"", 0

    @classmethod
    def open(cls, path: Path, range: ByteRange | None) -> Self | None:
        """Opens the blob; None: there is none. `range`: the bytes that are wanted; None: all."""
        try:
            file = open_blob(path)
        except FileNotFoundError:
            return None
        try:
            return cls(file, range)
        except BaseException:
            file.close()
            raise

    def read(self, start: int, crc: int) -> tuple[bytes, int]:
        """The wanted bytes of the block that contains `start`, from `start` on.

        In version 1 also `crc`, continued with them.
        """
        number = start // BLOCK_BYTES
        first = number * BLOCK_BYTES
        with self._lock:
            if self._file.closed:
                raise InvalidRequestError("the blob was closed while it was read; get it again")
            block = self._read(first, min(BLOCK_BYTES, self.size - first))
            if self._footer.version > 1:
                check_block(block, number, self._block_crc(number))
            elif (crc := crc32(block, crc)) != self._footer.crc and self._is_whole and first + len(block) == self.size:
                raise CorruptRecordError("it does not match its checksum: bytes on the disk have changed")
        return block[start - first : self.stop - first], crc

    def read_ahead(self, start: int, crc: int) -> tuple[list[bytes], int]:
        """`read` of up to `_BLOCKS_AHEAD` blocks: a block takes less than the way into a thread and back.

        What is wrong with a block is raised only if it is the first, so that it comes up in its place.
        """
        chunks: list[bytes] = []
        while start < self.stop and len(chunks) < _BLOCKS_AHEAD:
            try:
                chunk, crc = self.read(start, crc)
            except (OSError, CorruptRecordError):
                if not chunks:
                    raise
                break
            chunks.append(chunk)
            start += len(chunk)
        return chunks, crc

    def _block_crc(self, number: int) -> bytes:
        """The checksum of one block. Those of many blocks are read at once, but never all of those of a huge blob."""
        if not 0 <= number - self._crcs_from < len(self._crcs) // BLOCK_CRC_BYTES:
            count = min(_CRCS_AT_ONCE, self._footer.blocks - number)
            self._crcs = self._read(self._footer.block_crcs_at + number * BLOCK_CRC_BYTES, count * BLOCK_CRC_BYTES)
            self._crcs_from = number
            if count == self._footer.blocks:
                check_block_crcs(self._crcs, self._footer)
        at = (number - self._crcs_from) * BLOCK_CRC_BYTES
        return self._crcs[at : at + BLOCK_CRC_BYTES]

    def crc(self) -> int | None:
        """The crc32 of all bytes, joined from those of the blocks, which are not read. None: it has none of blocks."""
        if self._footer.version == 1:
            return None
        sizes = (min(BLOCK_BYTES, self.size - start) for start in range(0, self.size, BLOCK_BYTES))
        return join_crcs(((int.from_bytes(self._block_crc(number)), size) for number, size in enumerate(sizes)), CRC32)

    def _read(self, start: int, size: int) -> bytes:
        chunk = os.pread(self._file.fileno(), size, start)
        if len(chunk) < size:
            raise CorruptRecordError("it was cut short while it was read")
        return chunk

    def close(self) -> None:
        with self._lock:
            self._file.close()


def open_blob(path: Path | str, mode: str = "rb") -> io.FileIO:
    """Opens the file at `path`. It never waits, whatever is there: opening a pipe would wait for its other end."""
    file = io.FileIO(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise _no_file(path)
    return file


def _no_file(path: Path | str) -> CorruptRecordError:
    return CorruptRecordError(f"{path} is no file: something is in its place that this software did not put there")


def read_head(path: Path) -> BlobHead | None:
    """What the blob is; None: there is none."""
    file = BlobFile.open(path, None)
    if file is None:
        return None
    file.close()
    return BlobHead(file.metadata, file.size, file.written_ns, file.generation, file.changed_ns)


def extend(path: Path, deadline_us: int) -> bool | None:
    """Extends the deadline. Returns True; False: there is no such blob; None: another process has locked it."""
    try:
        file = open_blob(path, "r+b")
    except FileNotFoundError:
        return False
    with file:
        if not lock(file):
            return None
        if not _is_at(file, path):
            return False
        footer = read_footer(file)
        if footer.deadline_us and footer.deadline_us < deadline_us:
            os.pwrite(file.fileno(), encode_deadline(deadline_us), footer.deadline_at)
            with _already_happened(f"the deadline of {path} was extended"):
                sync_file(file.fileno())
    return True


def delete(path: Path) -> int:
    """Removes the blob, durably. It is no error if there is none. Returns the bytes of its file."""
    size = 0
    with suppress(FileNotFoundError):
        size = path.stat().st_size
    unlink(path)
    _sync_deletion(path)
    return size


def delete_generation(path: Path, generation: Generation) -> Removal | None:
    """Removes the blob, durably, if it has this generation. None: another process has locked it.

    The lock and the second look at the name make sure that the file that was read is the file that is unlinked, as far
    as others lock it, too. Nobody makes a second blob of a name that ends in a revision, except for a restoration from
    quarantine. It finds the name taken until this has unlinked it, and makes a file with another generation.
    """
    try:
        file = open_blob(path)
    except FileNotFoundError:
        _sync_deletion(path)
        return Removal.ABSENT
    with file:
        if not lock(file):
            return None
        if not _is_at(file, path):
            return None  # it was replaced or deleted since it was opened: look again
        if read_footer(file).generation != generation:
            return Removal.REPLACED
        os.unlink(path)
    _sync_deletion(path)
    return Removal.DELETED


def _sync_deletion(path: Path) -> None:
    """Makes it durable that the name is gone, also if it was gone before: the attempt that unlinked it may have stopped
    before it did this.
    """
    with _already_happened(f"{path} was unlinked"), suppress(FileNotFoundError):
        sync_directory(path.parent)


def set_aside(path: Path, generation: Generation, target: Path, root: Path) -> Generation | NotCopied | None:
    """Gives the blob a second name, if it has this generation: both are one file. None: another process has locked it.

    The file has its checksums and its deadline in it, and they are the same under both names.
    """
    try:
        file = open_blob(path)
    except FileNotFoundError:
        return NotCopied.ABSENT
    with file:
        if not lock(file) or not _is_at(file, path):
            return None
        if read_footer(file).generation != generation:
            return NotCopied.REPLACED
        _make_parents(target.parent, root)
        try:
            os.link(path, target)
        except FileExistsError:
            if not _is_at(file, target):
                return NotCopied.TAKEN
        with _already_happened(f"{target} was linked"):
            _sync_upwards(target.parent, root)
    return generation


def unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def read_footer(file: io.FileIO) -> Footer:
    size = os.fstat(file.fileno()).st_size
    return decode_footer(os.pread(file.fileno(), FOOTER_BYTES, max(0, size - FOOTER_BYTES)), size)


def read_footer_at(path: str) -> tuple[Footer, os.stat_result]:
    """The footer of the file at `path`, and what the system says of the file, in four system calls.

    An audit needs it for each blob, so no file object is made. As `open_blob`, it waits for nothing.
    `CorruptRecordError`: it is no file, or has no footer that can be read.
    """
    descriptor = os.open(path, _TO_LOOK)
    try:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode):
            raise _no_file(path)
        size = seen.st_size
        return decode_footer(os.pread(descriptor, FOOTER_BYTES, max(0, size - FOOTER_BYTES)), size), seen
    finally:
        os.close(descriptor)


def lock(file: io.FileIO) -> bool:
    """Locks the file; False: another process holds the lock. The lock ends with the file, also if the process dies."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: io.FileIO, path: Path) -> bool:
    """Whether the open file, now locked, still has this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


# --- directories ---------------------------------------------------------------------------------


def prepare(blobs: Path, uploads: Path, first: ChangeId, second: ChangeId) -> None:
    """Makes both directories, durably, and tests them. If this fails, it removes those that it made.

    The two test files are named like uploads, so `collect` removes them if a crash leaves them behind.
    """
    made: list[Path] = []
    missing = [directory for directory in blobs.parents if not directory.exists()]
    try:
        for directory in reversed(missing):
            _make_directory(directory, made, _PRIVATE if directory == blobs.parent else 0o777)
        make_both(blobs, uploads, made)
        _try_out(uploads / first, blobs / second)
    except (OSError, ConfigurationError):
        for directory in reversed(made):
            with suppress(OSError):
                directory.rmdir()
        raise


def make_both(blobs: Path, uploads: Path, made: list[Path]) -> None:
    """Makes what is missing of the two. One that is there says who may use the store, and a new store is private."""
    there = [directory for directory in (blobs, uploads) if directory.is_dir()]
    if len(there) < 2:
        mode = mode_of(there[0]) if there else _PRIVATE
        for directory in (blobs, uploads):
            if directory not in there:
                _make_directory(directory, made, mode)
                give_directory(directory)


def give(made: int, parent: os.stat_result) -> None:
    """Gives what root has made to the owner of the directory that it is in, as SQLite does with its files.

    Otherwise the user of a private store could neither read what a command of root's stored there, nor list the store.
    """
    if os.geteuid() == 0 and parent.st_uid != 0:
        with suppress(OSError):  # root may be one that the file system does not trust
            os.fchown(made, parent.st_uid, parent.st_gid)


def give_directory(directory: Path) -> None:
    """The same. The owner of the store might put a link in its place meanwhile, so it asks for the real parent."""
    if os.geteuid() == 0:
        made = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            give(made, os.stat("..", dir_fd=made))
        finally:
            os.close(made)


def mode_of(directory: Path) -> int:
    """Who may use the directory, and therefore what is made in it. The umask may still take something away."""
    return os.stat(directory).st_mode & 0o777


def _make_directory(directory: Path, made: list[Path], mode: int) -> None:
    if directory.is_dir():
        return
    try:
        directory.mkdir(mode)
        made.append(directory)
    except FileExistsError:
        if not directory.is_dir():  # otherwise another process was faster
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory)) from None
    sync_directory(directory.parent)


def _try_out(first: Path, second: Path) -> None:
    with _create_locked(first):
        try:
            _link(first, second)
        finally:
            unlink(second)
            unlink(first)


def _link(path: Path, target: Path) -> None:
    """Links the file to `target`. `ConfigurationError`: the two are on different file systems."""
    try:
        os.link(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise _apart(path.parent, target.parent) from None


def _apart(uploads: Path, blobs: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{uploads} and {blobs} are on two file systems, and a blob is linked from one into the other: put both on one"
    )


def _refuse_if_apart(uploads: Path, target: Path, root: Path) -> None:
    """Raises before any payload is written, if it could never be linked to its `target` below `root`."""
    nearest = target.parent
    while nearest != root and not nearest.exists():
        nearest = nearest.parent
    if os.stat(nearest).st_dev != os.stat(uploads).st_dev:
        raise _apart(uploads, nearest)


def refuse_foreign_directories(root: Path, uploads: Path) -> None:
    """Looks at every directory below `root`. Raises `ConfigurationError` for one that cannot be used.

    That is a symbolic link, or a directory on another file system: blobs in it could not be written or found.
    """
    pending = [root]
    while pending:
        directory = pending.pop()
        if os.stat(directory).st_dev != os.stat(uploads).st_dev:
            raise _apart(uploads, directory)
        with os.scandir(directory) as entries:
            for entry in entries:
                if is_component(entry.name, directory=True):
                    if entry.is_symlink():
                        raise ConfigurationError(f"{entry.path} is a symbolic link: put the directory itself there")
                    if entry.is_dir():
                        pending.append(Path(entry.path))


def _make_parents(directory: Path, root: Path) -> None:
    """Makes the directories below `root`; the caller syncs them.

    `root` itself is not made: if the store is gone, no new one is begun in its place.
    """
    if directory == root:
        return
    _make_parents(directory.parent, root)
    with suppress(FileExistsError):
        directory.mkdir(mode_of(directory.parent))
        give_directory(directory)
    if not stat.S_ISDIR(os.lstat(directory).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))


def _sync_upwards(directory: Path, root: Path) -> None:
    """Syncs all directories up to `root`. Another process may have made one of them and not synced it yet."""
    while directory != root:
        sync_directory(directory)
        directory = directory.parent
    sync_directory(root)


# --- garbage -------------------------------------------------------------------------------------


def unlink_if(path: Path, doomed: Callable[[io.FileIO], bool]) -> bool:
    """Removes the file if `doomed` says so; False: it is gone, or locked, or not doomed.

    This is not made durable: a file that a power cut brings back is collected again.
    """
    try:
        with open_blob(path) as file:
            if not lock(file) or not _is_at(file, path) or not doomed(file):
                return False
            os.unlink(path)
            return True
    except FileNotFoundError:
        return False


def is_of_this_process(error: OSError) -> bool:
    """Whether the error concerns this process, not the file, so that no other file would fare better."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
