"""A directory or a bucket that holds an export: files by name, written whole or not at all, and read.

    /path, ./path      a directory: temporary file in `.unfinished/` -> fsync -> rename; `settle` syncs the names
    gs://, s3://       below a prefix of a bucket, by the clients of the store's own kinds: create-only, with checksums

Names are relative to the place and use `/`. *Crash*: a file is there as a whole or not; a directory may keep temporary
files, which the next export removes. *Failure*: `UnavailableError` (the disk is full, the service is away: go on
later) or `ConfigurationError` (another place, or other rights), each with one sentence that names the place.

One call at a time writes to a place. A directory has a lock, which ends with its process. A bucket has none that does,
so there the last call wins: it leaves a *claim*, a file below `.writing/`, and removes those of others. Whoever does
not find its own claim any more ends with `ConfigurationError`. A call looks for it before it removes or replaces a
file, and else every few seconds. What comes late is one request that was sent before.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import anyio

from changelog.base.directories import sync_directory, sync_file, sync_upwards
from changelog.base.errors import ConfigurationError, CorruptRecordError, InvalidRequestError, UnavailableError, UnconfirmedError
from changelog.base.runtime import Runtime
from changelog.base.threads import in_thread
from tiered.buckets.owned import BucketBlobs
from tiered.buckets.owners import taken
from tiered.kinds.gcs import BLOBS as GCS
from tiered.kinds.s3 import BLOBS as S3
from tiered.metadata import Metadata
from tiered.settings import GcsSettings, S3Settings, Settings, StoreSettings
from tiered.text import quoted, refuse_password
from tiered.whose import refuse_store

T = TypeVar("T")

READ_BYTES = 1024 * 1024
UNFINISHED, CLAIMS = ".unfinished", ".writing/"
LOOK_S = 5.0
"""A call that creates files in a bucket looks so often, in seconds, whether another call has taken the place over."""
_DRAFT = re.compile(r"[0-9a-f]{16}")
_ADDRESS = re.compile(r"(gs|s3)://([^/?#]+)(?:/([^?#]*))?")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")

Chunked = AsyncIterator[bytes]


class ExportPlace(Protocol):
    """Files of one place. `name`: what messages call it. `local`: a look at a size costs nothing."""

    name: str
    local: bool

    async def write(self, name: str, chunks: Chunked, size: int, content_type: str) -> None:
        """Creates a file of `size` bytes from these chunks, durably once `settle` has returned.

        A file of this name is replaced in a directory; in a bucket, `FileExistsError`: `remove` it first.
        """

    def read(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yields the bytes of a file. `FileNotFoundError`: there is none. `CorruptRecordError`: it is irregular."""

    async def size(self, name: str) -> int | None:
        """The size of a file in bytes. None: there is none."""

    async def remove(self, name: str) -> None:
        """Removes a file. No error if there is none."""

    async def claim(self) -> None:
        """From now on, an earlier call that writes to this export ends with `ConfigurationError`."""

    async def look(self) -> None:
        """`ConfigurationError`: another call has claimed the place since `claim`."""

    async def release(self) -> None:
        """Ends the claim."""

    async def settle(self) -> None:
        """Makes durable which files there are."""

    async def stranger(self) -> str | None:
        """The name of something that is in the place. None: it is empty."""


@asynccontextmanager
async def open_place(
    text: str | os.PathLike[str], runtime: Runtime, settings: Settings | None, *, writes: bool
) -> AsyncIterator[ExportPlace]:
    """Opens the place that a text names. `writes`: a directory is made, and locked.

    `settings`: of the store; they tell the endpoint and the region of a bucket. Raises `ConfigurationError`.
    """
    name = named(text)
    if (bucket := bucket_of(name)) is None:
        with _locked(Path(name), settings) if writes else _there(Path(name)) as directory:
            yield DirectoryPlace(directory, runtime)
        return
    scheme, at, prefix = bucket
    if not prefix:
        raise ConfigurationError(f"{name} is a whole bucket: give a prefix, too, such as {name.rstrip('/')}/export")
    async with open_bucket(scheme, at, settings, runtime) as blobs:
        if writes:
            await refuse_owned(blobs, bucket, settings, "give a bucket without a store")
        yield PrefixPlace(blobs, f"{scheme}://{at}/{prefix}", prefix, runtime)


async def refuse_owned(blobs: BucketBlobs, bucket: tuple[str, str, str], settings: Settings | None, cure: str) -> None:
    """Raises `ConfigurationError` if names of a bucket (`bucket_of`) belong to a store, also to that of `settings`."""
    scheme, at, prefix = bucket
    own = None if settings is None else settings.gcs if scheme == "gs" else settings.s3
    owned = [marker.prefix for marker in await blobs.owners()] + ([own.prefix] if own is not None and own.bucket == at else [])
    if (wrong := taken(f"{scheme}://{at}", prefix, owned)) is not None:
        raise ConfigurationError(f"{wrong}: {cure}")


def bucket_of(name: str) -> tuple[str, str, str] | None:
    """Scheme, bucket and prefix, which ends with `/` unless it is empty. None: the text names a directory.

    `ConfigurationError`: it is an address of something else.
    """
    if (found := _ADDRESS.fullmatch(name)) is not None:
        prefix = (found[3] or "").strip("/")
        return found[1], found[2], f"{prefix}/" if prefix else ""
    if _URL.match(name):
        raise ConfigurationError(f"{quoted(name)} is no place: give a directory, gs://BUCKET/PREFIX or s3://BUCKET/PREFIX")
    return None


@asynccontextmanager
async def open_bucket(scheme: str, bucket: str, settings: Settings | None, runtime: Runtime) -> AsyncIterator[BucketBlobs]:
    """Opens a bucket, whoever owns it, with the endpoint and the limits of the store's section of that service."""
    section: type[GcsSettings] | type[S3Settings] = GcsSettings if scheme == "gs" else S3Settings
    known = None if settings is None else settings.gcs if scheme == "gs" else settings.s3
    try:
        at = section(**{**({} if known is None else known.model_dump()), "bucket": bucket, "prefix": ""})
    except ValueError:
        raise ConfigurationError(f"{quoted(bucket)} is no name of a bucket") from None
    store = StoreSettings() if settings is None else settings.store
    connected = S3.connect(at, runtime, store) if isinstance(at, S3Settings) else GCS.connect(at, runtime, store)
    async with connected as blobs:
        yield blobs


def named(text: str | os.PathLike[str]) -> str:
    """The text of a place. `InvalidRequestError`: it is none."""
    try:
        name = os.fsdecode(text)
    except TypeError:
        raise InvalidRequestError(f"a place is a path, gs://BUCKET/PREFIX or s3://BUCKET/PREFIX, not {quoted(text)}") from None
    if not name.strip() or "\0" in name:
        raise InvalidRequestError(f"{quoted(name)} is no place: give a directory, gs://BUCKET/PREFIX or s3://BUCKET/PREFIX")
    refuse_password("the place", name)
    return name


# --- a directory -------------------------------------------------------------------------------------


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns an error of the system into one of ours, but for `FileNotFoundError`."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        raise ConfigurationError(f"{path}: {error.strerror}; give another place, or the right to write there") from error
    except OSError as error:
        kind: type[ConfigurationError | UnavailableError] = ConfigurationError if error.errno in _REFUSED else UnavailableError
        raise kind(f"{path}: {error.strerror or error}; mend that, and give the same command again: it goes on") from error


_REFUSED = (errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)


@contextmanager
def _there(directory: Path) -> Iterator[Path]:
    with explained(directory):
        is_there = directory.is_dir()
    if not is_there:
        raise ConfigurationError(f"there is no directory {quoted(str(directory))}")
    yield directory


@contextmanager
def _locked(directory: Path, settings: Settings | None) -> Iterator[Path]:
    """Makes the directory, for this user alone, and keeps other exports out of it. The lock ends with the process."""
    refuse_store(directory, None if settings is None else settings.directory)
    with explained(directory):
        drafts = directory / UNFINISHED
        is_foreign = drafts.is_symlink() or (drafts.exists() and not drafts.is_dir())
    if is_foreign:
        raise ConfigurationError(f"{drafts} is no directory, and files are made there: move it away, or give another place")
    with explained(directory):
        try:
            if not directory.exists():
                directory.parent.mkdir(parents=True, exist_ok=True)
                directory.mkdir(mode=0o700, exist_ok=True)
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise ConfigurationError(f"{directory}: {error.strerror}; give another place") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"another process writes an export to {directory}: wait until it has ended") from None
        yield directory
    finally:
        os.close(lock)


class DirectoryPlace:
    """`ExportPlace` in a directory of this machine."""

    local = True

    def __init__(self, directory: Path, runtime: Runtime) -> None:
        self.name = str(directory)
        self._directory = directory
        self._runtime = runtime
        self._threads = anyio.CapacityLimiter(32)
        self._unsettled: set[Path] = set()

    async def write(self, name: str, chunks: Chunked, size: int, content_type: str) -> None:
        path = self._directory / name
        draft = self._directory / UNFINISHED / f"{self._runtime.random.getrandbits(64):016x}"
        if size <= READ_BYTES:
            await self._call(path, partial(_written_whole, b"".join([chunk async for chunk in chunks]), size, draft, path))
            self._unsettled.add(path.parent)
            return
        with explained(path):
            file = await in_thread(partial(_begun, draft), self._threads, undo=partial(_dropped, draft=draft))
        try:
            written = 0
            async for chunk in chunks:
                written += len(chunk)
                await self._call(path, partial(_written, file, chunk))
            await self._call(path, partial(_published, file, written, size, draft, path))
            self._unsettled.add(path.parent)
        finally:
            _dropped(file, draft)

    async def _call(self, path: Path, function: Callable[[], T]) -> T:
        def call() -> T:
            with explained(path):
                return function()

        return await in_thread(call, self._threads)

    async def read(self, name: str) -> AsyncGenerator[bytes, None]:
        path = self._directory / name
        with explained(path):
            file, first = await in_thread(partial(_opened, self._directory, name), self._threads, undo=lambda opened: opened[0].close())
        try:
            if first:
                yield first
            if len(first) < READ_BYTES:
                return
            while chunk := await in_thread(partial(_some, file, path), self._threads):
                yield chunk
        finally:
            file.close()

    async def size(self, name: str) -> int | None:
        try:
            found = (self._directory / name).lstat()
        except OSError:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    async def remove(self, name: str) -> None:
        with explained(self._directory / name), suppress(FileNotFoundError):
            (self._directory / name).unlink()

    async def settle(self) -> None:
        unsettled, self._unsettled = self._unsettled, set()

        def sync() -> None:
            with explained(self._directory):
                for directory in unsettled:
                    sync_directory(directory)
                for directory in {above for each in unsettled for above in each.parents if above.is_relative_to(self._directory)}:
                    sync_directory(directory)
                sync_upwards(self._directory)

        await in_thread(sync, self._threads)

    async def claim(self) -> None:
        """Removes what a killed call left half-written. `open_place` has locked the directory."""
        def remove() -> None:
            with explained(self._directory / UNFINISHED), suppress(FileNotFoundError):
                for each in (self._directory / UNFINISHED).iterdir():
                    if _DRAFT.fullmatch(each.name) and not each.is_dir():
                        each.unlink(missing_ok=True)

        await in_thread(remove, self._threads)

    async def look(self) -> None:
        """The lock is held until `open_place` ends."""

    release = look

    async def stranger(self) -> str | None:
        with explained(self._directory):
            return min((each.name for each in self._directory.iterdir() if each.name != UNFINISHED), default=None)


def _begun(draft: Path) -> io.FileIO:
    draft.parent.mkdir(exist_ok=True)
    return io.FileIO(draft, "xb")


def _opened(directory: Path, name: str) -> tuple[io.FileIO, bytes]:
    """The file, and its first bytes: as many as are read at once, or all.

    A link is none, nor on the way: what it leads to would stay behind when the export is carried elsewhere.
    """
    path = directory / name
    at = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *above, last = name.split("/")
        for each in above:
            outer, at = at, os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(outer)
        # Without O_NONBLOCK, opening a pipe waits until somebody writes to it.
        file = io.FileIO(os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at), "rb")
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR):  # a link, a file on the way, a socket
            raise _irregular(path) from None
        raise
    finally:
        os.close(at)
    try:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _irregular(path)
        return file, file.read(READ_BYTES)
    except BaseException:
        file.close()
        raise


def _irregular(path: Path) -> CorruptRecordError:
    return CorruptRecordError(f"{path} is no regular file: put the file itself there, or export to this place again")


def _written(file: io.FileIO, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[file.write(rest) :]


def _written_whole(payload: bytes, size: int, draft: Path, path: Path) -> None:
    file = _begun(draft)
    try:
        _written(file, payload)
        _published(file, len(payload), size, draft, path)
    finally:
        _dropped(file, draft)


def _dropped(file: io.FileIO, draft: Path) -> None:
    """Closes the file, and removes it unless it was published."""
    with suppress(OSError):
        file.close()
    with suppress(OSError):
        draft.unlink(missing_ok=True)


def _published(file: io.FileIO, written: int, size: int, draft: Path, path: Path) -> None:
    if written != size:
        raise UnavailableError(f"{path}: {written} bytes came, and {size} were announced")
    sync_file(file.fileno())
    place = draft.parent.parent
    if (link := next((above for above in path.parents if place in above.parents and above.is_symlink()), None)) is not None:
        raise ConfigurationError(f"{link} is a symbolic link, and no reader of an export follows one: put the directory itself there")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft.replace(path)


def _some(file: io.FileIO, path: Path) -> bytes:
    with explained(path):
        return file.read(READ_BYTES)


# --- a bucket ----------------------------------------------------------------------------------------


class PrefixPlace:
    """`ExportPlace` below a prefix of a bucket."""

    local = False

    def __init__(self, blobs: BucketBlobs, name: str, prefix: str, runtime: Runtime) -> None:
        self.name = name.rstrip("/")
        self._blobs = blobs
        self._prefix = prefix
        self._runtime = runtime
        self._claim: str | None = None
        self._looked_at = 0.0

    async def claim(self) -> None:
        own = f"{CLAIMS}{self._runtime.random.getrandbits(64):016x}"
        await self._create(own, _nothing(), 0, "text/plain")
        start: str | None = self._prefix + CLAIMS
        while start is not None:
            page = await self._blobs.list(start, f"{self._prefix}{CLAIMS[:-1]}0", 1000)  # `0` comes after `/`
            for blob in page.blobs:
                if (name := blob.name.removeprefix(self._prefix)) != own:
                    await self._blobs.delete(self._prefix + name)
            start = page.next_start
        self._claim, self._looked_at = own, self._runtime.monotonic()

    async def look(self) -> None:
        self._looked_at = self._runtime.monotonic()
        if self._claim is not None and await self.size(self._claim) is None:
            raise ConfigurationError(f"another call has taken over the export in {self.name}: let that one end")

    async def release(self) -> None:
        if self._claim is not None:
            await self.remove(self._claim)
            self._claim = None

    async def write(self, name: str, chunks: Chunked, size: int, content_type: str) -> None:
        if self._runtime.monotonic() - self._looked_at > LOOK_S:
            await self.look()
        await self._create(name, chunks, size, content_type)

    async def _create(self, name: str, chunks: Chunked, size: int, content_type: str) -> None:
        upload = await self._blobs.open_upload(self._prefix + name, Metadata(content_type=content_type), size)
        try:
            async for chunk in chunks:
                await upload.write(chunk)
            await upload.finalise()
        except UnconfirmedError as error:
            raise UnavailableError(f"{self.name}/{name} may be there or not: give the same command again ({error})") from error
        except UnavailableError as error:
            if error.code == "412":
                raise FileExistsError(f"{self.name}/{name}") from error
            raise
        finally:
            await upload.abort()

    async def read(self, name: str) -> AsyncGenerator[bytes, None]:
        reader = await self._blobs.open(self._prefix + name)
        if reader is None:
            raise FileNotFoundError(name)
        try:
            async for chunk in reader.chunks():
                yield chunk
        finally:
            await reader.aclose()

    async def size(self, name: str) -> int | None:
        head = await self._blobs.head(self._prefix + name)
        return None if head is None else head.size

    async def remove(self, name: str) -> None:
        await self.look()
        try:
            await self._blobs.delete(self._prefix + name)
        except UnconfirmedError as error:
            raise UnavailableError(f"{self.name}/{name} may be there or not: give the same command again ({error})") from error

    async def settle(self) -> None:
        """The service has made each file durable."""

    async def stranger(self) -> str | None:
        page = await self._blobs.list(self._prefix, f"{self._prefix[:-1]}0", 1)  # `0` comes after `/`
        names = [*(blob.name for blob in page.blobs), *(odd.name for odd in page.oddities)]
        return min(names, default=None)


async def _nothing() -> Chunked:
    for chunk in tuple[bytes, ...]():
        yield chunk
