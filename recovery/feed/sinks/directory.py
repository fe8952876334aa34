"""`DirectorySink`: a directory of this machine, with one folder for each generation and one file for each segment.

    PATH/_feed.json                                               the mark: whose feed it is
         generation-0001795000000000/0000000000000000000.json     the first segment of the generation
                                     0001795000000012345.json
                                     .0001795000000012345.json.….partial    what a killed process left; nobody reads it

A file is written beside its place and flushed to the disk. A hard link gives it its name, which fails if the name is
taken. Then the folder is flushed. So a file is there as a whole or not at all, and nothing is ever overwritten. A file
that is there already is read and compared before it is believed, and flushed: nobody knows whether the process that
wrote it came that far.

*Crash* leaves at most partial files, which the next process removes; one of a mark stays, as another process may be at
work on it. *Failure*: see `Sink`. A full disk and a directory
that vanished are `UnavailableError`: it goes on by itself once they are well again. Only the first segment of a
generation makes its folder. So a disk that is not mounted is an error, and not an empty directory that fills up.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import anyio

from changelog.base.directories import sync_directory, sync_file, sync_upwards
from changelog.base.errors import ConfigurationError, CorruptRecordError, UnavailableError
from changelog.base.runtime import Runtime
from changelog.base.threads import in_thread
from recovery.display import escape_controls
from recovery.feed.files import is_left_out
from recovery.feed.sinks.sink import (
    MARK,
    MARK_BYTES_MAX,
    Owner,
    Segment,
    SinkContent,
    folder_of,
    generation_of,
    is_foreign,
    refuse_foreign,
    time_of,
)
from tiered.settings import Settings
from tiered.sinks import Place

_PARTIAL = re.compile(r"\.[0-9]{19}\.[a-z]+\.[0-9a-f]{16}\.partial")
_OWN_OF_THE_DISK = "lost+found"
"""A directory that some file systems have at their root."""

_REFUSED = {
    errno.EACCES: "this process may not write there: give it the right", errno.EPERM: "this process may not write there: give it the right",
    errno.EROFS: "the disk is read-only: mount it so that it can be written",
    errno.ENOTDIR: "a file is where a directory should be: move it away, or give another path",
    errno.EISDIR: "a directory is where a file should be: move it away",
    errno.ELOOP: "a symbolic link is where a file or a directory should be: move it away",
    errno.ENAMETOOLONG: "its name is too long: give a shorter path",
}  # fmt: skip
_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up", errno.EFBIG: "the file is larger than is allowed"}
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What file systems answer that have no hard links."""


def open_at(place: Place, runtime: Runtime, settings: Settings | None) -> DirectorySink:
    try:
        return DirectorySink(place.path, runtime)
    except (RuntimeError, ValueError) as error:
        raise ConfigurationError(f"{escape_controls(place.path)} is no path of a directory: {error}") from None


class DirectorySink:
    """A `Sink`. `path`: of the directory, which is made if its parent is there. A relative one begins where the process
    is now.
    """

    def __init__(self, path: str | Path, runtime: Runtime) -> None:
        self.root = Path(os.path.abspath(Path(path).expanduser()))
        self.name = str(self.root)
        self._runtime = runtime
        self._thread = anyio.CapacityLimiter(1)
        self._known: set[str] = set()
        """The folders that this process has looked into."""

    async def deliver(self, segment: Segment) -> None:
        chance = self._runtime.random.getrandbits(64)
        await in_thread(partial(self._keep, segment, f".{segment.name}.{chance:016x}.partial"), self._thread)

    async def look(self, generation: int, since: int) -> SinkContent:
        return await in_thread(partial(self._look, generation, since), self._thread)

    async def claim(self, owner: Owner) -> bool:
        chance = self._runtime.random.getrandbits(64)
        await in_thread(partial(self._claim, owner, f".{MARK}.{chance:016x}.partial"), self._thread)
        return True

    async def aclose(self) -> None:
        """Does nothing: no file stays open."""

    # --- in a thread

    def _keep(self, segment: Segment, beside: str) -> None:
        folder = self.root / segment.folder
        with self._explained(f"take {segment.path} of the feed", segment.folder):
            if segment.folder not in self._known:
                self._look_into(folder, segment)
                self._known.add(segment.folder)
            if not _holds(folder / segment.name, segment):
                _create(folder / segment.name, segment, folder / beside)
            sync_directory(folder)

    def _look(self, generation: int, since: int) -> SinkContent:
        with self._explained("be looked at"):
            try:
                names = os.listdir(self.root)
            except FileNotFoundError:
                return SinkContent(None, None, ())
            generations = [number for name in names if (number := generation_of(name)) is not None and _has_files(self.root / name)]
            folder = self.root / folder_of(generation)
            times = sorted(_times(folder, since)) if generation in generations else []
            foreign = sorted(filter(is_foreign, os.listdir(folder))) if folder.is_dir() else []
            return SinkContent(self._mark(), max(generations, default=None), tuple(times), tuple(foreign))

    def _mark(self) -> Owner | None:
        try:
            handle = os.open(self.root / MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with open(handle, "rb") as file:
            return Owner.from_bytes(file.read(MARK_BYTES_MAX + 1), str(self.root / MARK))

    def _claim(self, owner: Owner, beside: str) -> None:
        with self._explained(f"take the mark {MARK}"):
            self._make_root()
            if self._mark() is None:
                _link(self.root / MARK, owner.to_bytes(), self.root / beside)
            sync_upwards(self.root)

    def _look_into(self, folder: Path, segment: Segment) -> None:
        """Prepares a folder that this process has not used yet. Raises if it is not one of this feed."""
        if not folder.exists():
            if segment.time > 0:
                raise UnavailableError(_lost(f"there is no {folder}", segment))
            self._make_root()
            folder.mkdir(exist_ok=True)
        names = sorted(os.listdir(folder))
        refuse_foreign(list(filter(is_foreign, names)), f"the directory {folder}")
        if segment.time > 0 and not any(time_of(name) for name in names if name.startswith(f"{0:019d}.")):
            raise UnavailableError(_lost(f"{folder} has no first file", segment))
        for name in names:
            if _PARTIAL.fullmatch(name):
                (folder / name).unlink(missing_ok=True)
        sync_upwards(folder)  # another process may have made it, or the directory, and been killed before it synced that

    def _make_root(self) -> None:
        if self.root.exists():
            foreign = [each.name for each in sorted(self.root.iterdir()) if not _is_of_a_feed(each)]
            if foreign:
                raise ConfigurationError(
                    f"the directory {self.root} has {_some(foreign)}, so it is not the directory of a feed: give an empty one"
                )
        else:
            if not self.root.parent.exists():
                raise ConfigurationError(f"there is no directory {self.root.parent}: make it, or give another path than {self.root}")
            self.root.mkdir(mode=0o700, exist_ok=True)

    @contextmanager
    def _explained(self, doing: str, folder: str = "") -> Iterator[None]:
        """Turns errors of the file system into ours."""
        try:
            yield
        except OSError as error:
            what = f"{self.root} cannot {doing}"
            if error.errno == errno.ENOENT:
                self._known.discard(folder)
                raise UnavailableError(f"{what}: the directory vanished while it was used; bring it back") from error
            if (why := _REFUSED.get(error.errno or 0)) is not None:
                raise ConfigurationError(f"{what}: {why}") from error
            why = f"{_FULL[error.errno]}; free space" if error.errno in _FULL else error.strerror or str(error)
            raise UnavailableError(f"{what}: {why}") from error


def _times(folder: Path, since: int) -> Iterator[int]:
    """Yields the times of the files. An empty one holds no transaction, so it counts as lost."""
    with os.scandir(folder) as files:
        for file in files:
            if (known := time_of(file.name)) is not None and known[0] >= since and file.stat().st_size:
                yield known[0]


def _holds(path: Path, segment: Segment) -> bool:
    """Returns whether the segment is there, and on the disk. Raises `CorruptRecordError` if other bytes are."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        size = os.fstat(handle).st_size
        with open(handle, "rb", closefd=False) as file:  # of a directory it raises, and would leave the handle open
            if size != len(segment.data) or file.read(size + 1) != segment.data:
                raise CorruptRecordError(
                    f"{path} has {size} bytes that are not those of the feed ({len(segment.data)} bytes, sha256 {segment.sha256}):"
                    " it stays as it is; find out who wrote it, and move it away"
                )
        sync_file(handle)
    finally:
        os.close(handle)
    return True


def _create(path: Path, segment: Segment, beside: Path) -> None:
    if not _link(path, segment.data, beside):
        _holds(path, segment)


def _link(path: Path, content: bytes, beside: Path) -> bool:
    """Creates a file as a whole. Returns False if the name is taken."""
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            sync_file(file.fileno())
        try:
            os.link(beside, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # Another process could take the name in between. A segment of this name has the same bytes there.
            if path.exists():
                return False
            beside.rename(path)
        return True
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _has_files(folder: Path) -> bool:
    """Whether a folder has a file of a feed. What is no folder has none."""
    try:
        with os.scandir(folder) as found:
            return any(time_of(each.name) is not None for each in found)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _is_of_a_feed(path: Path) -> bool:
    return is_left_out(path.name) or path.name == _OWN_OF_THE_DISK or (generation_of(path.name) is not None and path.is_dir())


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]!r}{more}"


def _lost(what: str, segment: Segment) -> str:
    return (
        f"{what}, and {segment.name} of the feed is not its first file: what was delivered before is gone;"
        " mount the disk or bring the files back, or begin a new generation of the feed"
    )
